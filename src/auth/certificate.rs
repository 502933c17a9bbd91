//! Method `tls`: the certificate of the TLS handshake says the role.

use std::time::Duration;

use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{AuthenticationError, Presented, Principal, Provider, Step, UnixTime};

/// Why a certificate gives no role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The peer has none, or does not use TLS.
    #[error("missing")]
    Missing,
    /// It is no X.509 certificate.
    #[error("malformed")]
    Malformed,
    /// Its subject has no common name.
    #[error("has no common name")]
    NoCommonName,
    /// Its common name begins or ends with a blank.
    #[error("has a common name with a blank at its begin or end")]
    Blanks,
    /// It is not good any more.
    #[error("expired")]
    Expired,
}

impl CertificateError {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Missing | Self::Malformed | Self::Expired => "INVALID_CERTS",
            Self::NoCommonName | Self::Blanks => "INVALID_CN",
        }
    }
}

/// Takes the common name of the subject, as `AuthenticationProviderTls` does. That the peer has the key, and that somebody
/// vouches for the certificate, was seen in the TLS handshake.
#[derive(Debug)]
pub(super) struct CertificateProvider;

impl Provider for CertificateProvider {
    fn method(&self) -> &'static str {
        METHOD
    }

    fn name(&self) -> &'static str {
        "AuthenticationProviderTls"
    }

    fn begin(
        &self,
        _: &[u8],
        presented: &Presented<'_>,
        now: UnixTime,
    ) -> Result<Step, AuthenticationError> {
        let certificate = presented.certificate.ok_or(CertificateError::Missing)?;
        Ok(Step::Done(principal(certificate, now)?))
    }

    fn of_http(&self, _: Option<&str>, presented: &Presented<'_>) -> Option<Vec<u8>> {
        presented.certificate.map(|_| Vec::new())
    }
}

fn principal(der: &[u8], now: UnixTime) -> Result<Principal, CertificateError> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|_| CertificateError::Malformed)?;
    let seconds = certificate.validity().not_after.timestamp();
    // The last second belongs to the certificate's life.
    let end = Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
        .saturating_add(Duration::from_secs(1));
    let expires_at = UnixTime::new(end);
    if expires_at <= now {
        return Err(CertificateError::Expired);
    }
    // Apache takes the first of the name's text form, in which the parts stand in reverse.
    let name = certificate.subject().iter_common_name().last();
    let role = name
        .and_then(|name| name.as_str().ok())
        .filter(|name| !name.is_empty())
        .ok_or(CertificateError::NoCommonName)?;
    // On the way through a header or a list of the settings it would become the name without them: somebody else's.
    if role.trim() != role {
        return Err(CertificateError::Blanks);
    }
    Ok(Principal {
        role: role.into(),
        method: METHOD.into(),
        expires_at: Some(expires_at),
    })
}

const METHOD: &str = "tls";
