//! Tokens: every algorithm with its key, and hostile ones.

use std::time::Duration;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self, EcdsaKeyPair, KeyPair as _, RsaKeyPair};
use aws_lc_rs::{hmac, rsa};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::jwt::KeyError;
use super::token::TokenProvider;
use super::{AuthenticationError, Presented, Principal, Provider as _, Step, TokenError, UnixTime};
use crate::config::{PublicKeyKind, SecretBytes, TokenKeySettings, TokenProviderSettings};

const SECRET: &[u8; 64] = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const NOW: u64 = 1_800_000_000;

fn settings(key: TokenKeySettings) -> TokenProviderSettings {
    TokenProviderSettings {
        key,
        role_claim: "sub".to_owned(),
        audience: None,
        allowed_clock_skew: Duration::ZERO,
    }
}

fn secret() -> TokenProviderSettings {
    settings(TokenKeySettings::Secret(SecretBytes::new(*SECRET)))
}

fn public(der: &[u8], kind: PublicKeyKind) -> TokenProviderSettings {
    settings(TokenKeySettings::Public(der.to_vec(), kind))
}

fn check(settings: &TokenProviderSettings, token: &str) -> Result<Principal, TokenError> {
    let provider = TokenProvider::new(settings, None).expect("a usable key");
    let presented = Presented {
        address: "127.0.0.1:1".parse().expect("an address"),
        certificate: None,
    };
    let now = UnixTime::new(Duration::from_secs(NOW));
    match provider.begin(token.as_bytes(), &presented, now) {
        Ok(Step::Done(principal)) => Ok(principal),
        Ok(Step::Challenge(_)) => panic!("tokens take one step"),
        Err(AuthenticationError::Token(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

fn role(settings: &TokenProviderSettings, token: &str) -> Result<String, TokenError> {
    check(settings, token).map(|principal| principal.role.to_string())
}

fn compact(header: &Value, claims: &[u8], sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let [header, claims] =
        [header.to_string().as_bytes(), claims].map(|part| URL_SAFE_NO_PAD.encode(part));
    let signed = format!("{header}.{claims}");
    let signature = URL_SAFE_NO_PAD.encode(sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn with_secret(algorithm: hmac::Algorithm, secret: &[u8]) -> impl Fn(&[u8]) -> Vec<u8> {
    let key = hmac::Key::new(algorithm, secret);
    move |signed| hmac::sign(&key, signed).as_ref().to_vec()
}

/// A token of our secret.
fn hs256(claims: &Value) -> String {
    let sign = with_secret(hmac::HMAC_SHA256, SECRET);
    compact(
        &json!({"alg": "HS256"}),
        claims.to_string().as_bytes(),
        sign,
    )
}

fn rsa_pair() -> (RsaKeyPair, Vec<u8>) {
    let pair = RsaKeyPair::generate(rsa::KeySize::Rsa2048).expect("a key");
    let der = pair.public_key().as_der().expect("DER");
    (pair, der.as_ref().to_vec())
}

fn with_rsa<'a>(
    pair: &'a RsaKeyPair,
    encoding: &'static dyn signature::RsaEncoding,
) -> impl Fn(&[u8]) -> Vec<u8> + 'a {
    move |signed| {
        let mut out = vec![0; pair.public_modulus_len()];
        pair.sign(encoding, &SystemRandom::new(), signed, &mut out)
            .expect("signed");
        out
    }
}

fn ec_pair(algorithm: &'static signature::EcdsaSigningAlgorithm) -> (EcdsaKeyPair, Vec<u8>) {
    let pair = EcdsaKeyPair::generate(algorithm).expect("a key");
    let der = pair.public_key().as_der().expect("DER");
    (pair, der.as_ref().to_vec())
}

fn pem(der: &[u8]) -> Vec<u8> {
    let encoded = STANDARD.encode(der);
    let lines: Vec<&str> = encoded
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).expect("ASCII"))
        .collect();
    format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
        lines.join("\n")
    )
    .into_bytes()
}

const CLAIMS: &[u8] = br#"{"sub":"me"}"#;

#[test]
fn tokens_of_a_secret_are_good_in_every_length_of_hash() {
    for (name, algorithm) in [
        ("HS256", hmac::HMAC_SHA256),
        ("HS384", hmac::HMAC_SHA384),
        ("HS512", hmac::HMAC_SHA512),
    ] {
        let token = compact(
            &json!({"alg": name}),
            CLAIMS,
            with_secret(algorithm, SECRET),
        );
        assert_eq!(role(&secret(), &token).as_deref(), Ok("me"), "{name}");
        // A secret that is shorter than the hash is no key for it.
        let short = &SECRET[..32];
        let token = compact(&json!({"alg": name}), CLAIMS, with_secret(algorithm, short));
        let settings = settings(TokenKeySettings::Secret(SecretBytes::new(short)));
        let expected = if name == "HS256" {
            Ok("me".to_owned())
        } else {
            Err(TokenError::Algorithm)
        };
        assert_eq!(role(&settings, &token), expected, "{name}");
    }
}

#[test]
fn tokens_of_an_rsa_key_are_good_in_every_algorithm_and_with_no_other_key() {
    let (pair, der) = rsa_pair();
    let (_, other) = rsa_pair();
    let algorithms: [(&str, &'static dyn signature::RsaEncoding); 6] = [
        ("RS256", &signature::RSA_PKCS1_SHA256),
        ("RS384", &signature::RSA_PKCS1_SHA384),
        ("RS512", &signature::RSA_PKCS1_SHA512),
        ("PS256", &signature::RSA_PSS_SHA256),
        ("PS384", &signature::RSA_PSS_SHA384),
        ("PS512", &signature::RSA_PSS_SHA512),
    ];
    for (name, encoding) in algorithms {
        let token = compact(
            &json!({"alg": name, "typ": "JWT", "kid": "1"}),
            CLAIMS,
            with_rsa(&pair, encoding),
        );
        for key in [der.clone(), pem(&der)] {
            let settings = public(&key, PublicKeyKind::Rsa);
            assert_eq!(role(&settings, &token).as_deref(), Ok("me"), "{name}");
        }
        let settings = public(&other, PublicKeyKind::Rsa);
        assert_eq!(
            role(&settings, &token),
            Err(TokenError::Signature),
            "{name}"
        );
        assert_eq!(
            role(&secret(), &token),
            Err(TokenError::Algorithm),
            "{name}"
        );
    }
    // The algorithm that was signed with has to be the one that the header names.
    let token = compact(
        &json!({"alg": "PS256"}),
        CLAIMS,
        with_rsa(&pair, &signature::RSA_PKCS1_SHA256),
    );
    let settings = public(&der, PublicKeyKind::Rsa);
    assert_eq!(role(&settings, &token), Err(TokenError::Signature));
}

#[test]
fn tokens_of_an_elliptic_key_are_good_in_the_algorithm_of_its_curve() {
    for (name, algorithm) in [
        ("ES256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        ("ES384", &signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        ("ES512", &signature::ECDSA_P521_SHA512_FIXED_SIGNING),
    ] {
        let (pair, der) = ec_pair(algorithm);
        let sign = |signed: &[u8]| {
            let signature = pair.sign(&SystemRandom::new(), signed).expect("signed");
            signature.as_ref().to_vec()
        };
        for key in [der.clone(), pem(&der)] {
            let settings = public(&key, PublicKeyKind::EllipticCurve);
            let token = compact(&json!({"alg": name}), CLAIMS, sign);
            assert_eq!(role(&settings, &token).as_deref(), Ok("me"), "{name}");
            for others in ["ES256", "ES384", "ES512", "RS256", "HS256"] {
                if others != name {
                    let token = compact(&json!({"alg": others}), CLAIMS, sign);
                    assert_eq!(
                        role(&settings, &token),
                        Err(TokenError::Algorithm),
                        "{others}"
                    );
                }
            }
        }
        assert_eq!(
            TokenProvider::new(&public(&der, PublicKeyKind::Rsa), None).err(),
            Some(KeyError::Rsa)
        );
    }
}

#[test]
fn no_token_is_good_without_a_signature() {
    let (_, der) = rsa_pair();
    for settings in [secret(), public(&der, PublicKeyKind::Rsa)] {
        for name in ["none", "None", "NONE", "", "hs256", "HS256 "] {
            let token = compact(&json!({"alg": name}), CLAIMS, |_| Vec::new());
            assert_eq!(
                role(&settings, &token),
                Err(TokenError::Algorithm),
                "{name}"
            );
        }
        for token in ["", ".", "..", "...", "a.b", "e30.e30", "e30.e30."] {
            let refused = role(&settings, token);
            assert!(
                matches!(refused, Err(TokenError::Missing | TokenError::Malformed)),
                "{token}"
            );
        }
    }
    let token = compact(&json!({"alg": "HS256"}), CLAIMS, |_| Vec::new());
    assert_eq!(role(&secret(), &token), Err(TokenError::Signature));
}

/// Who has the public key could sign with it as if it were a secret.
#[test]
fn a_public_key_is_no_secret() {
    let (_, der) = rsa_pair();
    let (_, ec) = ec_pair(&signature::ECDSA_P256_SHA256_FIXED_SIGNING);
    for (der, kind) in [
        (der, PublicKeyKind::Rsa),
        (ec, PublicKeyKind::EllipticCurve),
    ] {
        for (name, algorithm) in [("HS256", hmac::HMAC_SHA256), ("HS512", hmac::HMAC_SHA512)] {
            for secret in [der.clone(), pem(&der)] {
                let token = compact(
                    &json!({"alg": name}),
                    CLAIMS,
                    with_secret(algorithm, &secret),
                );
                for key in [der.clone(), pem(&der)] {
                    assert_eq!(
                        role(&public(&key, kind), &token),
                        Err(TokenError::Algorithm)
                    );
                }
            }
        }
    }
}

#[test]
fn a_key_inside_the_token_is_not_looked_at() {
    let sign = with_secret(
        hmac::HMAC_SHA256,
        b"an attacker's own secret, of enough bytes",
    );
    let header = json!({"alg": "HS256", "jwk": {"kty": "oct", "k": "YQ"}, "jku": "http://attacker.example", "kid": "../../dev/null"});
    assert_eq!(
        role(&secret(), &compact(&header, CLAIMS, sign)),
        Err(TokenError::Signature)
    );
}

#[test]
fn huge_nested_and_extended_tokens_are_refused() {
    let sign = || with_secret(hmac::HMAC_SHA256, SECRET);
    let large = json!({"sub": "me", "padding": "x".repeat(80_000)});
    assert_eq!(role(&secret(), &hs256(&large)), Err(TokenError::TooLarge));
    let nested = format!(
        "{{\"sub\":\"me\",\"a\":{}{}}}",
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let token = compact(&json!({"alg": "HS256"}), nested.as_bytes(), sign());
    assert_eq!(role(&secret(), &token), Err(TokenError::Malformed));
    let header = format!(
        "{{\"alg\":\"HS256\",\"a\":{}{}}}",
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    // Of the header only what matters is looked at, without recursion.
    let token = format!("{}.e30.AA", URL_SAFE_NO_PAD.encode(header));
    assert_eq!(role(&secret(), &token), Err(TokenError::Signature));
    for extension in [
        json!({"alg": "HS256", "crit": ["b64"], "b64": false}),
        json!({"alg": "HS256", "zip": "DEF"}),
    ] {
        let token = compact(&extension, CLAIMS, sign());
        assert_eq!(role(&secret(), &token), Err(TokenError::Extension));
    }
    for claims in [&b"[]"[..], b"\"me\"", b"{", b"\xff", b""] {
        let token = compact(&json!({"alg": "HS256"}), claims, sign());
        assert_eq!(role(&secret(), &token), Err(TokenError::Malformed));
    }
    let twice = format!(
        "{}.e30.AA",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"none","alg":"HS256"}"#)
    );
    assert_eq!(role(&secret(), &twice), Err(TokenError::Malformed));
}

#[test]
fn times_are_kept_to_the_second_and_the_skew() {
    let skew = |seconds| TokenProviderSettings {
        allowed_clock_skew: Duration::from_secs(seconds),
        ..secret()
    };
    let cases = [
        (json!({"sub": "me", "exp": NOW + 1}), 0, Ok(Some(NOW + 1))),
        (
            json!({"sub": "me", "exp": NOW}),
            0,
            Err(TokenError::Expired),
        ),
        (json!({"sub": "me", "exp": NOW}), 1, Ok(Some(NOW + 1))),
        (
            json!({"sub": "me", "exp": NOW - 1}),
            1,
            Err(TokenError::Expired),
        ),
        (json!({"sub": "me", "exp": 0}), 0, Err(TokenError::Expired)),
        (json!({"sub": "me", "exp": -1}), 0, Err(TokenError::Expired)),
        (
            json!({"sub": "me", "exp": -1e300}),
            0,
            Err(TokenError::Expired),
        ),
        (
            json!({"sub": "me", "exp": 1e300}),
            0,
            Ok(Some(1_000_000_000_000_000)),
        ),
        (json!({"sub": "me", "exp": u64::MAX}), 0, Ok(Some(u64::MAX))),
        (json!({"sub": "me", "exp": u64::MAX}), 1, Ok(None)),
        (json!({"sub": "me", "exp": null}), 0, Ok(None)),
        (
            json!({"sub": "me", "exp": "tomorrow"}),
            0,
            Err(TokenError::Claim),
        ),
        (
            json!({"sub": "me", "exp": [NOW]}),
            0,
            Err(TokenError::Claim),
        ),
        (json!({"sub": "me", "nbf": NOW}), 0, Ok(None)),
        (
            json!({"sub": "me", "nbf": NOW + 1}),
            0,
            Err(TokenError::Premature),
        ),
        (json!({"sub": "me", "nbf": NOW + 1}), 1, Ok(None)),
    ];
    for (claims, seconds, expected) in cases {
        let found = check(&skew(seconds), &hs256(&claims))
            .map(|principal| principal.expires_at.map(|end| end.since_1970().as_secs()));
        assert_eq!(found, expected, "{claims} {seconds}");
    }
    let fraction = check(
        &secret(),
        &hs256(&json!({"sub": "me", "exp": 1_800_000_000.5})),
    )
    .expect("good");
    assert_eq!(
        fraction
            .expires_at
            .map(|end| end.since_1970().subsec_millis()),
        Some(500)
    );
}

#[test]
fn the_audience_is_one_or_among_several() {
    let settings = TokenProviderSettings {
        audience: Some(("aud".to_owned(), "us".to_owned())),
        ..secret()
    };
    for (audience, expected) in [
        (json!("us"), Ok("me".to_owned())),
        (json!(["them", "us"]), Ok("me".to_owned())),
        (json!("them"), Err(TokenError::Audience)),
        (json!([]), Err(TokenError::Audience)),
        (json!(["them"]), Err(TokenError::Audience)),
        (json!({"us": "us"}), Err(TokenError::Audience)),
        (json!(null), Err(TokenError::Audience)),
    ] {
        assert_eq!(
            role(&settings, &hs256(&json!({"sub": "me", "aud": audience}))),
            expected,
            "{audience}"
        );
    }
    assert_eq!(
        role(&settings, &hs256(&json!({"sub": "me"}))),
        Err(TokenError::Audience)
    );
}

#[test]
fn the_role_is_a_text_or_the_first_of_a_list() {
    let settings = TokenProviderSettings {
        role_claim: "role".to_owned(),
        ..secret()
    };
    for (claim, expected) in [
        (json!("a"), Some("a")),
        (json!(["a", "b"]), Some("a")),
        (json!([]), None),
        (json!([1, "a"]), None),
        (json!(""), None),
        (json!("  "), None),
        (json!(1), None),
        (json!({"a": 1}), None),
        (json!(null), None),
    ] {
        let found = role(&settings, &hs256(&json!({"sub": "other", "role": claim})));
        assert_eq!(found.as_deref().ok(), expected, "{claim}");
    }
    assert_eq!(
        role(&settings, &hs256(&json!({"sub": "me"}))),
        Err(TokenError::NoRole)
    );
}

#[test]
fn unusable_keys_are_found_at_the_start() {
    let (_, rsa) = rsa_pair();
    for (settings, expected) in [
        (
            settings(TokenKeySettings::Secret(SecretBytes::new([0; 31]))),
            KeyError::Short,
        ),
        (public(b"", PublicKeyKind::Rsa), KeyError::Rsa),
        (
            public(b"garbage", PublicKeyKind::EllipticCurve),
            KeyError::EllipticCurve,
        ),
        (
            public(&rsa, PublicKeyKind::EllipticCurve),
            KeyError::EllipticCurve,
        ),
        (
            public(
                b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
                PublicKeyKind::Rsa,
            ),
            KeyError::Rsa,
        ),
    ] {
        assert_eq!(TokenProvider::new(&settings, None).err(), Some(expected));
    }
}

proptest! {
    #[test]
    fn no_bytes_but_a_token_are_one(token in ".{0,200}") {
        prop_assert!(check(&secret(), &token).is_err());
    }

    #[test]
    fn a_token_is_good_only_as_it_was_made(place in 0_usize..1000, with in "[A-Za-z0-9_.=-]") {
        let token = hs256(&json!({"sub": "me", "exp": NOW + 60}));
        let place = place % token.len();
        let mut changed = token.clone();
        changed.replace_range(place..=place, &with);
        prop_assert_eq!(check(&secret(), &changed).is_ok(), changed == token);
    }
}
