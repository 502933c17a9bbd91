//! Who may connect to a server role, and as whom the gateway itself connects to brokers.

use std::time::Duration;

use super::authentication::{self, AuthenticationSettings, Refused};
use super::build::{BOOLEAN, Builder, DAY_SECONDS, LIST_MAX, boolean, none_if_zero, refusal};
use super::credential::CredentialSource;
use super::key_material::{self, SecretBytes};
use super::keys::GATEWAY_KEYS;
use super::problem::Problem;

/// Settings of authentication in the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAuthenticationSettings {
    /// `authenticationEnabled`: how clients are authenticated; `None`: they are not, and brokers are told what clients say.
    pub clients: Option<IncomingAuthenticationSettings>,
    /// `authorizationEnabled`: roles are told apart by the HTTP endpoints; all else is the brokers' to authorize.
    pub authorization_enabled: bool,
    /// `superUserRoles`: roles that may see what is about all clients.
    pub super_user_roles: Vec<String>,
    /// `trustedProxyRoles`: roles that may say, as a proxy does, whom they connect for.
    pub trusted_proxy_roles: Vec<String>,
    /// `forwardAuthorizationCredentials`: brokers get the client's credential beside its role.
    pub forward_credentials: bool,
    /// `authenticationRefreshCheckSeconds`: how long a client has to renew a credential that expired; `None`: expiry is not
    /// looked at after CONNECT.
    pub refresh_check: Option<Duration>,
    /// `brokerClientAuthenticationPlugin` and `brokerClientAuthenticationParameters`: what the gateway says of itself.
    pub broker_credential: AuthenticationSettings,
}

impl Default for GatewayAuthenticationSettings {
    fn default() -> Self {
        Self {
            clients: None,
            authorization_enabled: false,
            super_user_roles: Vec::new(),
            trusted_proxy_roles: Vec::new(),
            forward_credentials: false,
            refresh_check: Some(Duration::from_secs(60)),
            broker_credential: AuthenticationSettings::None,
        }
    }
}

/// How those who connect to us are authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IncomingAuthenticationSettings {
    /// `authenticationProviders`, each once, in their order.
    pub providers: Vec<ProviderSettings>,
    /// `anonymousUserRole`: the role of those whose method no provider has.
    pub anonymous_role: Option<String>,
}

/// One of `authenticationProviders`, with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderSettings {
    /// `AuthenticationProviderToken`: signed JWTs.
    Token(TokenProviderSettings),
    /// `AuthenticationProviderTls`: the certificate of the TLS handshake.
    Tls,
    /// `AuthenticationProviderBasic`: user and password. The content of `basicAuthConf`, lines of `htpasswd`.
    Basic(SecretBytes),
}

/// Settings of JWTs. Their names begin with `tokenSettingPrefix` where that is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenProviderSettings {
    /// `tokenSecretKey`, or else `tokenPublicKey`.
    pub key: TokenKeySettings,
    /// `tokenAuthClaim`: the claim that is the role.
    pub role_claim: String,
    /// `tokenAudienceClaim` and `tokenAudience`: a claim, and the value that it must have or list.
    pub audience: Option<(String, String)>,
    /// `tokenAllowedClockSkewSeconds`: how far clocks may be apart.
    pub allowed_clock_skew: Duration,
}

/// What tokens are verified with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenKeySettings {
    /// A secret of at least 32 bytes.
    Secret(SecretBytes),
    /// A public key, in DER or PEM, and its kind by `tokenPublicAlg`.
    Public(Vec<u8>, PublicKeyKind),
}

/// The kinds of public keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublicKeyKind {
    /// Of RS256 to RS512 and PS256 to PS512.
    Rsa,
    /// Of ES256 to ES512.
    EllipticCurve,
}

impl Builder {
    /// All settings of authentication. Files of keys and passwords are read only where they are asked for.
    pub(super) fn authentication(&mut self) -> GatewayAuthenticationSettings {
        let enabled = self.parse("authenticationEnabled", false, BOOLEAN, boolean);
        let settings = GatewayAuthenticationSettings {
            clients: enabled.then(|| self.incoming_authentication()),
            authorization_enabled: self.parse("authorizationEnabled", false, BOOLEAN, boolean),
            super_user_roles: self.roles("superUserRoles"),
            trusted_proxy_roles: self.roles("trustedProxyRoles"),
            forward_credentials: self.parse(
                "forwardAuthorizationCredentials",
                false,
                BOOLEAN,
                boolean,
            ),
            refresh_check: none_if_zero(Duration::from_secs(self.number(
                "authenticationRefreshCheckSeconds",
                60,
                0,
                DAY_SECONDS,
            ))),
            broker_credential: self.broker_credential(),
        };
        self.check_authentication_together(&settings);
        settings
    }

    fn check_authentication_together(&mut self, settings: &GatewayAuthenticationSettings) {
        if let Some(clients) = &settings.clients {
            self.check_void(clients, settings);
        }
        if settings.clients.is_some() {
            if settings.authorization_enabled {
                self.warn(
                    "authorizationEnabled",
                    "the brokers authorize, by original_principal; the gateway itself only keeps who is not in superUserRoles \
                     from what is about all clients",
                );
            }
            return;
        }
        if settings.authorization_enabled {
            let key = "authorizationEnabled";
            self.problems.push(
                Problem::new(self.origin(key), key, "nobody has a role to authorize")
                    .expected("authenticationEnabled=true as well"),
            );
        }
        for key in [
            "authenticationProviders",
            "anonymousUserRole",
            "trustedProxyRoles",
        ] {
            if self.text(key).is_some() {
                self.warn(key, "without effect: authenticationEnabled is not true");
            }
        }
        if settings.forward_credentials {
            self.warn(
                "forwardAuthorizationCredentials",
                "without effect: authenticationEnabled is not true",
            );
        }
    }

    /// Settings that leave nothing of authentication, whatever the others say.
    fn check_void(
        &mut self,
        clients: &IncomingAuthenticationSettings,
        settings: &GatewayAuthenticationSettings,
    ) {
        if let Some(anonymous) = &clients.anonymous_role {
            let lists = [
                (
                    "trustedProxyRoles",
                    &settings.trusted_proxy_roles,
                    "anybody could act for anybody",
                ),
                (
                    "superUserRoles",
                    &settings.super_user_roles,
                    "everybody would be a super user",
                ),
            ];
            for (key, roles, so) in lists {
                if roles.contains(anonymous) {
                    let what = format!("{anonymous} is the anonymousUserRole: {so}");
                    self.problems.push(
                        Problem::new(self.origin(key), key, what)
                            .expected("roles that somebody has to prove"),
                    );
                }
            }
        }
        let key = "tlsAllowInsecureConnection";
        if clients.providers.contains(&ProviderSettings::Tls)
            && self.text(key).and_then(boolean) == Some(true)
        {
            let what = "AuthenticationProviderTls would take whatever name a client writes into a certificate of its own";
            self.problems.push(
                Problem::new(self.origin(key), key, what).expected(
                    "false, with issuers in tlsTrustCertsFilePath and brokerClientTrustCertsFilePath; or no AuthenticationProviderTls",
                ),
            );
        }
    }

    /// How clients are authenticated.
    fn incoming_authentication(&mut self) -> IncomingAuthenticationSettings {
        let anonymous_role = self.text("anonymousUserRole").map(str::to_owned);
        let key = "authenticationProviders";
        let names: Vec<String> = self.items(key);
        let mut kinds = Vec::new();
        for name in &names {
            match ProviderKind::named(name) {
                Some(kind) if kinds.contains(&kind) => {}
                Some(kind) => kinds.push(kind),
                None => {
                    let what = format!(
                        "{}: not supported by this version",
                        refusal(GATEWAY_KEYS, key, name)
                    );
                    self.problems
                        .push(Problem::new(self.origin(key), key, what).expected(PROVIDERS));
                }
            }
        }
        if names.is_empty() && anonymous_role.is_none() {
            let what = "nobody could connect without any";
            self.problems
                .push(Problem::new(self.origin(key), key, what).expected(PROVIDERS));
        }
        let providers = kinds
            .into_iter()
            .filter_map(|kind| match kind {
                ProviderKind::Token => self.token_provider().map(ProviderSettings::Token),
                ProviderKind::Tls => Some(ProviderSettings::Tls),
                ProviderKind::Basic => {
                    let missing = "AuthenticationProviderBasic needs it";
                    self.key_material("basicAuthConf", missing)
                        .map(ProviderSettings::Basic)
                }
            })
            .collect();
        IncomingAuthenticationSettings {
            providers,
            anonymous_role,
        }
    }

    fn token_provider(&mut self) -> Option<TokenProviderSettings> {
        if let Some(prefix) = self.text("tokenSettingPrefix").map(str::to_owned) {
            self.take_prefixed(&prefix, TOKEN_SETTINGS);
        }
        let [
            secret,
            public,
            algorithm,
            claim,
            audience_claim,
            audience,
            skew,
        ] = *TOKEN_SETTINGS;
        let kind = self.parse(
            algorithm,
            PublicKeyKind::Rsa,
            "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or ES512",
            PublicKeyKind::of_algorithm,
        );
        let key = if self.text(secret).is_some() {
            if self.text(public).is_some() {
                self.warn(public, "without effect: tokenSecretKey is set");
            }
            self.token_secret(secret)
        } else {
            let missing = "AuthenticationProviderToken needs it, or tokenSecretKey";
            let bytes = self.key_material(public, missing);
            bytes.map(|bytes| TokenKeySettings::Public(bytes.reveal().to_vec(), kind))
        };
        let role_claim = self.text(claim).unwrap_or("sub").to_owned();
        let audience = match (self.text(audience_claim), self.text(audience)) {
            (Some(claim), Some(audience)) => Some((claim.to_owned(), audience.to_owned())),
            (Some(_), None) => {
                let what = "tokenAudienceClaim is set, so tokens must name an audience";
                self.problems
                    .push(Problem::new(self.origin(audience), audience, what));
                None
            }
            (None, Some(_)) => {
                self.warn(audience, "without effect: tokenAudienceClaim is not set");
                None
            }
            (None, None) => None,
        };
        let allowed_clock_skew = Duration::from_secs(self.number(skew, 0, 0, DAY_SECONDS));
        key.map(|key| TokenProviderSettings {
            key,
            role_claim,
            audience,
            allowed_clock_skew,
        })
    }

    fn token_secret(&mut self, key: &'static str) -> Option<TokenKeySettings> {
        let secret = self.key_material(key, "")?;
        if secret.reveal().len() < SECRET_LEN_MIN {
            let what = "the key is too short to be safe";
            let expected = format!("at least {SECRET_LEN_MIN} bytes");
            self.problems
                .push(Problem::new(self.origin(key), key, what).expected(expected));
            return None;
        }
        Some(TokenKeySettings::Secret(secret))
    }

    /// The bytes that a setting means; a problem says `missing` where it is empty.
    fn key_material(&mut self, key: &'static str, missing: &str) -> Option<SecretBytes> {
        let read = match self.text(key) {
            Some(text) => key_material::read(text).map_err(|error| error.to_string()),
            None => Err(missing.to_owned()),
        };
        match read {
            Ok(bytes) => Some(bytes),
            Err(what) => {
                self.problems
                    .push(Problem::new(self.origin(key), key, what).expected(KEY_MATERIAL));
                None
            }
        }
    }

    fn broker_credential(&mut self) -> AuthenticationSettings {
        let (plugin_key, params_key) = (
            "brokerClientAuthenticationPlugin",
            "brokerClientAuthenticationParameters",
        );
        let plugin = self.text(plugin_key).unwrap_or_default().to_owned();
        let params = self.text(params_key).unwrap_or_default().to_owned();
        if plugin.is_empty() {
            if !params.is_empty() {
                self.warn(
                    params_key,
                    "without effect: brokerClientAuthenticationPlugin is not set",
                );
            }
            return AuthenticationSettings::None;
        }
        let problem = match authentication::parse(&plugin, &params) {
            Ok(AuthenticationSettings::Token(source)) => match check(&source) {
                None => return AuthenticationSettings::Token(source),
                Some(what) => Problem::new(self.origin(params_key), params_key, what),
            },
            Ok(settings) => return settings,
            Err(Refused::Plugin(_)) => {
                let what = refusal(GATEWAY_KEYS, plugin_key, &plugin);
                Problem::new(self.origin(plugin_key), plugin_key, what).expected(PLUGINS)
            }
            Err(Refused::Params(what)) => Problem::new(self.origin(params_key), params_key, what),
        };
        self.problems.push(problem);
        AuthenticationSettings::None
    }

    fn roles(&mut self, key: &'static str) -> Vec<String> {
        self.items(key)
    }

    /// The items of a comma list, each once.
    fn items(&mut self, key: &'static str) -> Vec<String> {
        let mut items: Vec<String> = Vec::new();
        let text = self.text(key).unwrap_or_default();
        for item in text.split(',').map(str::trim) {
            if !item.is_empty() && !items.iter().any(|known| known == item) {
                items.push(item.to_owned());
            }
        }
        if items.len() > LIST_MAX {
            let what = format!("lists more than {LIST_MAX} items");
            self.problems
                .push(Problem::new(self.origin(key), key, what));
            items.truncate(LIST_MAX);
        }
        items
    }

    fn warn(&mut self, key: &str, what: &str) {
        self.warnings
            .push(Problem::new(self.origin(key), key, what));
    }
}

/// A token that cannot be read now is a mistake; what it is later is seen later.
fn check(source: &CredentialSource) -> Option<String> {
    source.read().err().map(|error| error.to_string())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProviderKind {
    Token,
    Tls,
    Basic,
}

impl ProviderKind {
    /// By Apache's class name, or by that of the method.
    fn named(name: &str) -> Option<Self> {
        let short = name
            .strip_prefix("org.apache.pulsar.broker.authentication.AuthenticationProvider")
            .unwrap_or(name);
        match short {
            "Token" | "token" => Some(Self::Token),
            "Tls" | "tls" => Some(Self::Tls),
            "Basic" | "basic" => Some(Self::Basic),
            _ => None,
        }
    }
}

impl PublicKeyKind {
    fn of_algorithm(name: &str) -> Option<Self> {
        match name {
            "RS256" | "RS384" | "RS512" | "PS256" | "PS384" | "PS512" => Some(Self::Rsa),
            "ES256" | "ES384" | "ES512" => Some(Self::EllipticCurve),
            _ => None,
        }
    }
}

/// The settings that `tokenSettingPrefix` is for.
const TOKEN_SETTINGS: &[&str; 7] = &[
    "tokenSecretKey",
    "tokenPublicKey",
    "tokenPublicAlg",
    "tokenAuthClaim",
    "tokenAudienceClaim",
    "tokenAudience",
    "tokenAllowedClockSkewSeconds",
];
const PROVIDERS: &str = "AuthenticationProviderToken, AuthenticationProviderTls or AuthenticationProviderBasic of \
                         org.apache.pulsar.broker.authentication, comma separated";
const PLUGINS: &str = "AuthenticationToken, AuthenticationTls or AuthenticationBasic of org.apache.pulsar.client.impl.auth";
const KEY_MATERIAL: &str = "data:;base64,.., file:///path, a path or Base64";
/// Of HS256, in bytes (RFC 7518, section 3.2).
const SECRET_LEN_MIN: usize = 32;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{
        CertificateFiles, ConfigErrors, LoadedGateway, Secret, Sources, load_gateway,
    };
    use super::*;

    const CLASSES: &str = "org.apache.pulsar.broker.authentication.AuthenticationProvider";
    const KEY: &str = "tokenSecretKey=data:,0123456789abcdef0123456789abcdef";

    fn load(sets: &[&str]) -> Result<LoadedGateway, ConfigErrors> {
        let sets = ["brokerServiceURL=pulsar://b:1"].iter().chain(sets);
        load_gateway(&Sources {
            sets: sets.map(|set| (*set).to_owned()).collect(),
            ..Sources::default()
        })
    }

    fn authentication(sets: &[&str]) -> GatewayAuthenticationSettings {
        load(sets)
            .unwrap_or_else(|errors| panic!("{sets:?}: {errors}"))
            .settings
            .authentication
    }

    fn problems(sets: &[&str]) -> Vec<String> {
        let errors = load(sets).expect_err("wrong settings");
        let of = |problem: &Problem| {
            format!(
                "{}: {}",
                problem.key.as_deref().unwrap_or_default(),
                problem.what
            )
        };
        errors.problems.iter().map(of).collect()
    }

    fn secret() -> TokenKeySettings {
        TokenKeySettings::Secret(SecretBytes::new(*b"0123456789abcdef0123456789abcdef"))
    }

    #[test]
    fn apaches_classes_and_their_settings_become_providers() {
        let providers = format!(
            "authenticationProviders={CLASSES}Token,{CLASSES}Tls, {CLASSES}Basic,{CLASSES}Token"
        );
        let read = authentication(&[
            "authenticationEnabled=true",
            &providers,
            KEY,
            "basicAuthConf=data:,me:$apr1$x$y",
            "tokenAuthClaim=role",
            "tokenAudienceClaim=aud",
            "tokenAudience=us",
            "tokenAllowedClockSkewSeconds=7",
            "anonymousUserRole=nobody",
            "superUserRoles=admin, root",
            "trustedProxyRoles=edge",
            "forwardAuthorizationCredentials=true",
            "authenticationRefreshCheckSeconds=0",
        ]);
        let token = TokenProviderSettings {
            key: secret(),
            role_claim: "role".to_owned(),
            audience: Some(("aud".to_owned(), "us".to_owned())),
            allowed_clock_skew: Duration::from_secs(7),
        };
        let expected = GatewayAuthenticationSettings {
            clients: Some(IncomingAuthenticationSettings {
                providers: vec![
                    ProviderSettings::Token(token),
                    ProviderSettings::Tls,
                    ProviderSettings::Basic(SecretBytes::new(*b"me:$apr1$x$y")),
                ],
                anonymous_role: Some("nobody".to_owned()),
            }),
            authorization_enabled: false,
            super_user_roles: vec!["admin".to_owned(), "root".to_owned()],
            trusted_proxy_roles: vec!["edge".to_owned()],
            forward_credentials: true,
            refresh_check: None,
            broker_credential: AuthenticationSettings::None,
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn a_prefix_names_other_token_settings() {
        let read = authentication(&[
            "authenticationEnabled=true",
            "authenticationProviders=token",
            "tokenSettingPrefix=my",
            "mytokenSecretKey=data:,0123456789abcdef0123456789abcdef",
            "tokenAuthClaim=ignored",
        ]);
        let providers = read.clients.expect("on").providers;
        let token = TokenProviderSettings {
            key: secret(),
            role_claim: "sub".to_owned(),
            audience: None,
            allowed_clock_skew: Duration::ZERO,
        };
        assert_eq!(providers, [ProviderSettings::Token(token)]);
    }

    #[test]
    fn nothing_is_read_where_authentication_is_off() {
        let loaded = load(&[
            "authenticationProviders=no.such.Class",
            "tokenSecretKey=file:///no/such/file",
            "forwardAuthorizationCredentials=true",
        ])
        .expect("valid");
        let expected = GatewayAuthenticationSettings {
            forward_credentials: true,
            ..GatewayAuthenticationSettings::default()
        };
        assert_eq!(loaded.settings.authentication, expected);
        let warned: Vec<_> = loaded
            .warnings
            .iter()
            .filter_map(|w| w.key.as_deref())
            .collect();
        assert_eq!(
            warned,
            ["authenticationProviders", "forwardAuthorizationCredentials"]
        );
    }

    #[test]
    fn everything_wrong_is_listed_at_once_and_no_credential_quoted() {
        let found = problems(&[
            "authenticationEnabled=true",
            "authenticationProviders=token,basic,org.example.Mine,org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID",
            "tokenSecretKey=data:,secret",
            "tokenPublicAlg=HS256",
            "tokenAudienceClaim=aud",
            "tokenAllowedClockSkewSeconds=-1",
            "authenticationRefreshCheckSeconds=x",
            "brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2",
            "brokerClientAuthenticationParameters=secret",
        ]);
        let begins = [
            "authenticationProviders: \"org.example.Mine\" is not accepted: not supported",
            "authenticationProviders: \"org.apache.pulsar.broker.authentication.oidc.Auth",
            "tokenPublicAlg: \"HS256\" is not accepted",
            "tokenSecretKey: the key is too short",
            "tokenAudience: tokenAudienceClaim is set",
            "tokenAllowedClockSkewSeconds: \"-1\"",
            "basicAuthConf: AuthenticationProviderBasic needs it",
            "authenticationRefreshCheckSeconds: \"x\"",
            "brokerClientAuthenticationPlugin: \"org.apache.pulsar.client.impl.auth.oauth2",
        ];
        for begin in begins {
            assert!(
                found.iter().any(|problem| problem.starts_with(begin)),
                "{begin}: {found:#?}"
            );
        }
        assert_eq!(found.len(), begins.len(), "{found:#?}");
        assert!(!found.iter().any(|problem| problem.contains("secret")));
    }

    #[test]
    fn authorization_wants_authentication_and_says_who_decides() {
        assert_eq!(
            problems(&["authorizationEnabled=true"]),
            ["authorizationEnabled: nobody has a role to authorize"]
        );
        let loaded = load(&[
            "authorizationEnabled=true",
            "authenticationEnabled=true",
            "authenticationProviders=tls",
        ])
        .expect("valid");
        assert!(loaded.settings.authentication.authorization_enabled);
        assert!(
            loaded
                .warnings
                .iter()
                .any(|w| w.what.contains("brokers authorize"))
        );
        let anybody = problems(&[
            "authenticationEnabled=true",
            "authenticationProviders=tls",
            "anonymousUserRole=edge",
            "trustedProxyRoles=edge",
        ]);
        assert!(anybody[0].contains("anybody could act"), "{anybody:?}");
        let everybody = problems(&[
            "authenticationEnabled=true",
            "authenticationProviders=tls",
            "anonymousUserRole=root",
            "superUserRoles=admin,root",
        ]);
        assert_eq!(
            everybody,
            ["superUserRoles: root is the anonymousUserRole: everybody would be a super user"]
        );
        let unchecked = [
            "authenticationEnabled=true",
            "authenticationProviders=tls",
            "tlsAllowInsecureConnection=true",
        ];
        assert_eq!(
            problems(&unchecked),
            [
                "tlsAllowInsecureConnection: AuthenticationProviderTls would take whatever name a client writes into a \
                 certificate of its own"
            ]
        );
        let nobody = problems(&["authenticationEnabled=true"]);
        assert_eq!(
            nobody,
            ["authenticationProviders: nobody could connect without any"]
        );
    }

    #[test]
    fn the_gateways_own_credential_is_that_of_apaches_plugins() {
        const PLUGIN: &str =
            "brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.Authentication";
        let own = |plugin: &str, params: &str| {
            let (plugin, params) = (
                format!("{PLUGIN}{plugin}"),
                format!("brokerClientAuthenticationParameters={params}"),
            );
            let tls = [
                "tlsEnabledWithBroker=true",
                "brokerServiceURLTLS=pulsar+ssl://b:2",
            ];
            authentication(&[&plugin, &params, tls[0], tls[1]]).broker_credential
        };
        assert_eq!(
            own("Token", "token:a.b.c"),
            AuthenticationSettings::Token(CredentialSource::Text(Secret::new("a.b.c")))
        );
        assert_eq!(
            own("Tls", "tlsCertFile:/c.pem,tlsKeyFile:/k.pem"),
            AuthenticationSettings::Tls(Some(CertificateFiles {
                certificate: PathBuf::from("/c.pem"),
                key: PathBuf::from("/k.pem"),
            }))
        );
        assert!(matches!(
            own("Basic", r#"{"userId":"me","password":"p"}"#),
            AuthenticationSettings::Basic { .. }
        ));
        let plugin = format!("{PLUGIN}Token");
        let missing = problems(&[
            &plugin,
            "brokerClientAuthenticationParameters=file:///no/such/token",
        ]);
        assert!(
            missing[0].starts_with("brokerClientAuthenticationParameters: /no/such/token"),
            "{missing:?}"
        );
    }
}
