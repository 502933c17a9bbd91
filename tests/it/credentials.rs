//! Tokens, and gateways that want them.

use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use pulsegate::config::{
    AuthenticationSettings, CredentialSource, GatewayAuthenticationSettings,
    IncomingAuthenticationSettings, ProviderSettings, Secret, SecretBytes, TokenKeySettings,
    TokenProviderSettings,
};
use pulsegate::protocol::proto::pulsar::CommandConnect;

pub(crate) const SECRET: &[u8; 32] = b"0123456789abcdef0123456789abcdef";
/// User `me` with the password `secret`.
const HTPASSWD: &[u8] = b"me:$6$salty$KvzWKWLYEXXyw/4wzxu854gkPY3lhi7u.wm/HJabfYGIHFFddhyZ3xA43wiP4pG2CNfejds7h3eeku.O.9PSx0";

/// A token of this role, with an expiry in whole seconds since 1970.
pub(crate) fn token_until(role: &str, expiry: Option<u64>) -> String {
    let expiry = expiry.map_or(String::new(), |expiry| format!(",\"exp\":{expiry}"));
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#),
        URL_SAFE_NO_PAD.encode(format!("{{\"sub\":\"{role}\"{expiry}}}"))
    );
    let tag = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, SECRET),
        signed.as_bytes(),
    );
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// A token that never expires.
pub(crate) fn token(role: &str) -> String {
    token_until(role, None)
}

/// A token that expires between two and three seconds from now.
pub(crate) fn short_token(role: &str) -> String {
    token_until(role, Some(unix_seconds() + 3))
}

/// A token that expires in a minute.
pub(crate) fn longer_token(role: &str) -> String {
    token_until(role, Some(unix_seconds() + 60))
}

/// A token that expired a minute ago.
pub(crate) fn expired_token(role: &str) -> String {
    token_until(role, Some(unix_seconds() - 60))
}

fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// The CONNECT with this token.
pub(crate) fn with_token(connect: CommandConnect, token: &str) -> CommandConnect {
    CommandConnect {
        auth_method_name: Some("token".to_owned()),
        auth_data: Some(Bytes::copy_from_slice(token.as_bytes())),
        ..connect
    }
}

/// Clients are authenticated by token or password; the gateway has the token `gateway-token` itself.
pub(crate) fn authenticating() -> GatewayAuthenticationSettings {
    GatewayAuthenticationSettings {
        clients: Some(IncomingAuthenticationSettings {
            providers: vec![
                ProviderSettings::Token(TokenProviderSettings {
                    key: TokenKeySettings::Secret(SecretBytes::new(*SECRET)),
                    role_claim: "sub".to_owned(),
                    audience: None,
                    allowed_clock_skew: Duration::ZERO,
                }),
                ProviderSettings::Basic(SecretBytes::new(HTPASSWD)),
            ],
            anonymous_role: None,
        }),
        broker_credential: own_token("gateway-token"),
        ..GatewayAuthenticationSettings::default()
    }
}

/// The same, and brokers get the credentials of clients.
pub(crate) fn forwarding() -> GatewayAuthenticationSettings {
    GatewayAuthenticationSettings {
        forward_credentials: true,
        ..authenticating()
    }
}

pub(crate) fn own_token(token: &str) -> AuthenticationSettings {
    AuthenticationSettings::Token(CredentialSource::Text(Secret::new(token)))
}
