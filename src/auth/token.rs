//! Method `token`: a signed JWT says the role.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter};
use serde_json::{Map, Value};

use super::jwt::{KeyError, TokenError, Verifier};
use super::{AuthenticationError, Presented, Principal, Provider, Step, UnixTime};
use crate::config::{TokenKeySettings, TokenProviderSettings};

/// Checks tokens as `AuthenticationProviderToken` does.
pub(super) struct TokenProvider {
    verifier: Verifier,
    role_claim: String,
    audience: Option<(String, String)>,
    allowed_clock_skew: Duration,
    metrics: Option<TokenMetrics>,
}

/// What only tokens have.
#[derive(Debug, Clone)]
pub(super) struct TokenMetrics {
    pub(super) expired: IntCounter,
    pub(super) expiring_minutes: Histogram,
}

impl TokenProvider {
    pub(super) fn new(
        settings: &TokenProviderSettings,
        metrics: Option<TokenMetrics>,
    ) -> Result<Self, KeyError> {
        let verifier = match &settings.key {
            TokenKeySettings::Secret(secret) => Verifier::of_secret(secret.reveal())?,
            TokenKeySettings::Public(bytes, kind) => Verifier::of_public_key(bytes, *kind)?,
        };
        Ok(Self {
            verifier,
            role_claim: settings.role_claim.clone(),
            audience: settings.audience.clone(),
            allowed_clock_skew: settings.allowed_clock_skew,
            metrics,
        })
    }

    fn check(&self, token: &[u8], now: UnixTime) -> Result<Principal, TokenError> {
        if token.is_empty() {
            return Err(TokenError::Missing);
        }
        let token = std::str::from_utf8(token).map_err(|_| TokenError::Malformed)?;
        let claims = self.verifier.claims(token)?;
        let not_before = time(&claims, "nbf")?;
        let in_time = now.checked_add(self.allowed_clock_skew);
        if not_before.is_some_and(|start| in_time.is_some_and(|now| now < start)) {
            return Err(TokenError::Premature);
        }
        let expiry = time(&claims, "exp")?;
        let expires_at = expiry.and_then(|end| end.checked_add(self.allowed_clock_skew));
        if expires_at.is_some_and(|end| end <= now) {
            return Err(TokenError::Expired);
        }
        if let Some((claim, wanted)) = &self.audience
            && !names(claims.get(claim), wanted)
        {
            return Err(TokenError::Audience);
        }
        let role = role(claims.get(&self.role_claim)).ok_or(TokenError::NoRole)?;
        if let (Some(metrics), Some(end)) = (&self.metrics, expires_at) {
            let left = end.saturating_since(now).as_secs_f64();
            metrics.expiring_minutes.observe(left / 60.0);
        }
        Ok(Principal {
            role,
            method: METHOD.into(),
            expires_at,
        })
    }
}

impl Provider for TokenProvider {
    fn method(&self) -> &'static str {
        METHOD
    }

    fn name(&self) -> &'static str {
        "AuthenticationProviderToken"
    }

    fn begin(
        &self,
        data: &[u8],
        _: &Presented<'_>,
        now: UnixTime,
    ) -> Result<Step, AuthenticationError> {
        let checked = self.check(data, now);
        if let (Err(TokenError::Expired), Some(metrics)) = (&checked, &self.metrics) {
            metrics.expired.inc();
        }
        Ok(Step::Done(checked?))
    }

    fn of_http(&self, authorization: Option<&str>, _: &Presented<'_>) -> Option<Vec<u8>> {
        let token = authorization?.strip_prefix("Bearer ")?;
        Some(token.trim().as_bytes().to_vec())
    }
}

impl fmt::Debug for TokenProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenProvider")
            .field("verifier", &self.verifier)
            .field("role_claim", &self.role_claim)
            .field("audience", &self.audience)
            .finish_non_exhaustive()
    }
}

/// A claim of seconds since 1970; fractions are allowed. What lies before 1970 counts as 1970.
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<UnixTime>, TokenError> {
    let number = match claims.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number,
        Some(_) => return Err(TokenError::Claim),
    };
    let since = match number.as_u64() {
        Some(seconds) => Duration::from_secs(seconds),
        // Clipped, so that it can be converted.
        None => {
            let seconds = number.as_f64().ok_or(TokenError::Claim)?;
            Duration::from_secs_f64(seconds.clamp(0.0, FAR_FUTURE_SECONDS))
        }
    };
    Ok(Some(UnixTime::new(since)))
}

/// Whether a claim is this text or a list that has it.
fn names(claim: Option<&Value>, wanted: &str) -> bool {
    match claim {
        Some(Value::String(text)) => text == wanted,
        Some(Value::Array(list)) => list.iter().any(|item| item.as_str() == Some(wanted)),
        _ => false,
    }
}

/// The role of a claim: its text, or the first text of its list.
fn role(claim: Option<&Value>) -> Option<Arc<str>> {
    let role = match claim? {
        Value::String(text) => text.as_str(),
        Value::Array(list) => list.first()?.as_str()?,
        _ => return None,
    };
    (!role.trim().is_empty()).then(|| role.into())
}

const METHOD: &str = "token";
const FAR_FUTURE_SECONDS: f64 = 1e15;
