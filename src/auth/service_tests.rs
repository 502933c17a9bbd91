//! All methods together: who decides, who is anonymous, what is counted.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hyper::HeaderMap;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, date_time_ymd};

use super::{
    AuthenticationError, AuthenticationService, BasicError, CertificateError, Challenge, Exchange,
    Presented, Principal, Provider, Step, TokenError, UnixTime,
};
use crate::config::{
    IncomingAuthenticationSettings, ProviderSettings, PublicKeyKind, SecretBytes, TokenKeySettings,
    TokenProviderSettings,
};
use crate::telemetry::MetricRegistry;

const NOW: UnixTime = UnixTime::new(Duration::from_secs(1_800_000_000));

const SECRET: &[u8; 32] = b"0123456789abcdef0123456789abcdef";
const HTPASSWD: &[u8] = b"# users\nme:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\n\nyou:$2a$10$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga\n";

fn presented(certificate: Option<&[u8]>) -> Presented<'_> {
    Presented {
        address: "127.0.0.1:1".parse().expect("an address"),
        certificate,
    }
}

fn token_settings(key: TokenKeySettings) -> ProviderSettings {
    ProviderSettings::Token(TokenProviderSettings {
        key,
        role_claim: "sub".to_owned(),
        audience: None,
        allowed_clock_skew: Duration::ZERO,
    })
}

fn all_methods() -> Vec<ProviderSettings> {
    vec![
        token_settings(TokenKeySettings::Secret(SecretBytes::new(*SECRET))),
        ProviderSettings::Tls,
        ProviderSettings::Basic(SecretBytes::new(HTPASSWD)),
    ]
}

fn service(anonymous: Option<&str>) -> (AuthenticationService, MetricRegistry) {
    let registry = MetricRegistry::new("");
    let settings = IncomingAuthenticationSettings {
        providers: all_methods(),
        anonymous_role: anonymous.map(str::to_owned),
    };
    let service = AuthenticationService::new(&settings, &registry).expect("set up");
    (service, registry)
}

fn token(claims: &str) -> String {
    use aws_lc_rs::hmac;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#),
        URL_SAFE_NO_PAD.encode(claims)
    );
    let tag = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, SECRET),
        signed.as_bytes(),
    );
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

fn role(found: Result<Principal, AuthenticationError>) -> Result<String, AuthenticationError> {
    found.map(|principal| principal.role.to_string())
}

fn certificate(names: &[(DnType, &str)], last_year: i32) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for (kind, name) in names {
        params.distinguished_name.push(kind.clone(), *name);
    }
    params.not_after = date_time_ymd(last_year, 12, 31);
    let key = KeyPair::generate().expect("a key");
    params
        .self_signed(&key)
        .expect("a certificate")
        .der()
        .to_vec()
}

#[test]
fn each_method_has_its_provider_and_only_unknown_ones_are_anonymous() {
    let good = token(r#"{"sub":"client"}"#);
    for anonymous in [None, Some("nobody")] {
        let (service, _) = service(anonymous);
        let ask = |method: &str, data: &[u8]| {
            role(service.authenticate(method, data, &presented(None), NOW))
        };
        assert_eq!(ask("token", good.as_bytes()), Ok("client".to_owned()));
        assert_eq!(ask("basic", b"me:secret"), Ok("me".to_owned()));
        assert_eq!(ask("token", b""), Err(TokenError::Missing.into()));
        assert_eq!(ask("token", b"\xff"), Err(TokenError::Malformed.into()));
        assert_eq!(ask("tls", b""), Err(CertificateError::Missing.into()));
        assert_eq!(ask("basic", b"me:Secret"), Err(BasicError::Wrong.into()));
        for unknown in ["none", "", "sasl", "TOKEN"] {
            let expected = match anonymous {
                Some(role) => Ok(role.to_owned()),
                None => Err(AuthenticationError::NoProvider(unknown.to_owned())),
            };
            assert_eq!(ask(unknown, b"x"), expected);
        }
    }
}

#[test]
fn passwords_are_checked_and_remembered_only_when_good() {
    let (service, _) = service(None);
    let ask = |data: &[u8]| role(service.authenticate("basic", data, &presented(None), NOW));
    for _ in 0..2 {
        assert_eq!(ask(b"you:allmine"), Ok("you".to_owned()));
        assert_eq!(ask(b"you:secret"), Err(BasicError::Wrong.into()));
        assert_eq!(ask(b"me:allmine"), Err(BasicError::Wrong.into()));
    }
    assert_eq!(ask(b"nobody:secret"), Err(BasicError::Wrong.into()));
    assert_eq!(ask(b""), Err(BasicError::Missing.into()));
    let long = format!("me:{}", "x".repeat(257));
    for malformed in [&b"me"[..], b":secret", b"me:\xff", long.as_bytes()] {
        assert_eq!(ask(malformed), Err(BasicError::Malformed.into()));
    }
    assert!(service.is_costly("basic", b"a:b"));
    let settings = IncomingAuthenticationSettings {
        providers: vec![ProviderSettings::Basic(SecretBytes::new(
            *b"me:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/",
        ))],
        anonymous_role: None,
    };
    let weak = AuthenticationService::new(&settings, &MetricRegistry::new("")).expect("set up");
    assert!(
        weak.is_costly("basic", b"me:longpassword"),
        "a thousand rounds over what a stranger sends"
    );
    // What was good last is not hashed again, so that it need not wait behind what strangers try.
    assert!(!service.is_costly("basic", b"you:allmine"));
    assert!(service.is_costly("basic", b"you:secret"));
    assert!(!service.is_costly("token", b"a:b"));
}

#[test]
fn the_role_of_a_certificate_is_its_last_common_name() {
    let (service, _) = service(None);
    let ask = |der: &[u8]| service.authenticate("tls", b"", &presented(Some(der)), NOW);
    let named = |names: &[(DnType, &str)]| role(ask(&certificate(names, 2090)));
    assert_eq!(
        named(&[
            (DnType::OrganizationName, "us"),
            (DnType::CommonName, "client")
        ]),
        Ok("client".to_owned())
    );
    // No name may pass for another by the characters in it.
    assert_eq!(
        named(&[
            (DnType::CommonName, "client"),
            (DnType::OrganizationName, "x,CN=admin")
        ]),
        Ok("client".to_owned())
    );
    // Where a header or a list carries the name on, blanks around it get lost: it would be another's.
    for blank in [" admin", "admin ", "\tadmin", " ", "\u{a0}admin"] {
        assert_eq!(
            named(&[(DnType::CommonName, blank)]),
            Err(CertificateError::Blanks.into()),
            "{blank:?}"
        );
    }
    assert_eq!(
        named(&[(DnType::OrganizationName, "us")]),
        Err(CertificateError::NoCommonName.into())
    );
    assert_eq!(
        ask(b"garbage").err(),
        Some(CertificateError::Malformed.into())
    );
    let expired = certificate(&[(DnType::CommonName, "client")], 2001);
    assert_eq!(ask(&expired).err(), Some(CertificateError::Expired.into()));
    let good = ask(&certificate(&[(DnType::CommonName, "client")], 2090)).expect("good");
    assert!(good.expires_at.is_some_and(|end| end > NOW));
}

#[test]
fn http_requests_are_authenticated_by_what_they_carry() {
    let good = format!("Bearer {}", token(r#"{"sub":"client"}"#));
    let basic = format!("Basic {}", STANDARD.encode("me:secret"));
    let der = certificate(&[(DnType::CommonName, "machine")], 2090);
    let ask = |service: &AuthenticationService, headers: &[(&'static str, &str)], tls: bool| {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().expect("a value"));
        }
        let presented = presented(tls.then_some(&der));
        role(service.authenticate_http(&map, &presented, NOW))
    };
    let (strict, _) = service(None);
    let (open, _) = service(Some("nobody"));
    for service in [&strict, &open] {
        assert_eq!(
            ask(service, &[("authorization", &good)], false),
            Ok("client".to_owned())
        );
        assert_eq!(
            ask(service, &[("authorization", &basic)], false),
            Ok("me".to_owned())
        );
        assert_eq!(ask(service, &[], true), Ok("machine".to_owned()));
        let wrong = [("authorization", "Bearer x.y.z")];
        assert_eq!(
            ask(service, &wrong, false),
            Err(TokenError::Malformed.into())
        );
        let wrong = [("authorization", "Basic !")];
        assert_eq!(ask(service, &wrong, false), Err(BasicError::Missing.into()));
        let negotiate = [("authorization", "Negotiate x")];
        assert_eq!(
            ask(service, &negotiate, false),
            Err(AuthenticationError::NoCredential)
        );
        let tls = [
            ("x-pulsar-auth-method-name", "tls"),
            ("authorization", &good),
        ];
        assert_eq!(ask(service, &tls, true), Ok("machine".to_owned()));
        assert_eq!(
            ask(service, &tls, false),
            Err(AuthenticationError::NoCredential)
        );
        let sasl = [("x-pulsar-auth-method-name", "sasl")];
        assert_eq!(
            ask(service, &sasl, false),
            Err(AuthenticationError::NoProvider("sasl".to_owned()))
        );
    }
    assert_eq!(
        ask(&strict, &[], false),
        Err(AuthenticationError::NoCredential)
    );
    assert_eq!(ask(&open, &[], false), Ok("nobody".to_owned()));
}

/// Asks for a word, twice.
#[derive(Debug)]
struct TwoQuestions;

#[derive(Debug)]
struct Asked(u32);

fn question() -> Challenge {
    Challenge {
        data: Bytes::from_static(b"and?"),
        method: "questions",
        exchange: Box::new(Asked(1)),
    }
}

impl Provider for TwoQuestions {
    fn method(&self) -> &'static str {
        "questions"
    }

    fn name(&self) -> &'static str {
        "AuthenticationProviderQuestions"
    }

    fn begin(&self, _: &[u8], _: &Presented<'_>, _: UnixTime) -> Result<Step, AuthenticationError> {
        Ok(Step::Challenge(question()))
    }

    fn of_http(&self, _: Option<&str>, _: &Presented<'_>) -> Option<Vec<u8>> {
        Some(Vec::new())
    }
}

impl Exchange for Asked {
    fn respond(self: Box<Self>, data: &[u8], _: UnixTime) -> Result<Step, AuthenticationError> {
        match (self.0, data) {
            (1, b"one") => Ok(Step::Challenge(Challenge {
                exchange: Box::new(Self(2)),
                ..question()
            })),
            (2, b"two") => Ok(Step::Done(Principal {
                role: "asked".into(),
                method: "questions".into(),
                expires_at: None,
            })),
            _ => Err(AuthenticationError::Exchange),
        }
    }
}

#[test]
fn an_authentication_may_take_several_steps_but_not_over_http() {
    let service = AuthenticationService::of_providers(vec![Box::new(TwoQuestions)], None);
    let begin = || match service.begin("questions", b"", &presented(None), NOW) {
        Ok(Step::Challenge(challenge)) => challenge,
        other => panic!("{other:?}"),
    };
    let second = match service.respond(begin(), b"one", NOW) {
        Ok(Step::Challenge(challenge)) => challenge,
        other => panic!("{other:?}"),
    };
    assert_eq!(second.data, "and?");
    assert!(
        matches!(service.respond(second, b"two", NOW), Ok(Step::Done(principal)) if &*principal.role == "asked")
    );
    assert!(matches!(
        service.respond(begin(), b"two", NOW),
        Err(AuthenticationError::Exchange)
    ));
    let over_http = service.authenticate_http(&HeaderMap::new(), &presented(None), NOW);
    assert_eq!(over_http, Err(AuthenticationError::Exchange));
}

#[test]
fn of_providers_of_one_method_the_first_that_is_content_decides() {
    let other = b"another secret of at least 32 bytes!";
    let settings = IncomingAuthenticationSettings {
        providers: vec![
            token_settings(TokenKeySettings::Secret(SecretBytes::new(*other))),
            token_settings(TokenKeySettings::Secret(SecretBytes::new(*SECRET))),
        ],
        anonymous_role: None,
    };
    let service = AuthenticationService::new(&settings, &MetricRegistry::new("")).expect("set up");
    let good = token(r#"{"sub":"client"}"#);
    let found = service.authenticate("token", good.as_bytes(), &presented(None), NOW);
    assert_eq!(role(found), Ok("client".to_owned()));
}

#[test]
fn successes_failures_and_expiries_are_counted_under_apaches_names() {
    let (service, registry) = service(None);
    let ask = |method: &str, data: &str| {
        let _ = service.begin(method, data.as_bytes(), &presented(None), NOW);
    };
    ask("token", &token(r#"{"sub":"client"}"#));
    ask("token", &token(r#"{"sub":"client","exp":1800000400}"#));
    ask("token", &token(r#"{"sub":"client","exp":1}"#));
    ask("token", "x");
    ask("basic", "me:wrong");
    ask("sasl", "");
    let text = registry.render();
    for line in [
        r#"pulsar_authentication_success_total{auth_method="token",provider_name="AuthenticationProviderToken",cluster=""} 2"#,
        r#"pulsar_authentication_failures_total{auth_method="token",provider_name="AuthenticationProviderToken",reason="INVALID_TOKEN",cluster=""} 2"#,
        r#"pulsar_authentication_failures_total{auth_method="basic",provider_name="AuthenticationProviderBasic",reason="INVALID_TOKEN",cluster=""} 1"#,
        r#"pulsar_authentication_failures_total{auth_method="",provider_name="",reason="NO_PROVIDER",cluster=""} 1"#,
        r#"pulsar_expired_token_total{cluster=""} 1"#,
        r#"pulsar_expiring_token_minutes_bucket{cluster="",le="5"} 0"#,
        r#"pulsar_expiring_token_minutes_bucket{cluster="",le="10"} 1"#,
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn everything_that_cannot_be_set_up_is_listed_and_nothing_of_it_quoted() {
    let settings = IncomingAuthenticationSettings {
        providers: vec![
            token_settings(TokenKeySettings::Public(b"secret".to_vec(), PublicKeyKind::Rsa)),
            ProviderSettings::Basic(SecretBytes::new(
                *b"a:secret\nno colon secret\nb:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\nb:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/",
            )),
        ],
        anonymous_role: None,
    };
    let errors =
        AuthenticationService::new(&settings, &MetricRegistry::new("")).expect_err("unusable");
    let text = errors.to_string();
    for part in [
        "tokenPublicKey: no RSA public key",
        "basicAuthConf: line 1: the hash is of a kind",
        "basicAuthConf: line 2: not of the form",
        "basicAuthConf: line 4: the user was on an earlier line",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(errors.0.len(), 4, "{text}");
    assert!(!text.contains("secret"), "{text}");
    let empty = IncomingAuthenticationSettings {
        providers: vec![ProviderSettings::Basic(SecretBytes::new(*b"# nobody\n"))],
        anonymous_role: None,
    };
    let errors =
        AuthenticationService::new(&empty, &MetricRegistry::new("")).expect_err("unusable");
    assert_eq!(errors.to_string(), "basicAuthConf: there is no user");
}

#[test]
fn a_credential_is_not_printed() {
    let (service, _) = service(None);
    let printed = format!("{service:?}");
    assert!(
        !printed.contains("0123456789") && !printed.contains("apr1"),
        "{printed}"
    );
}
