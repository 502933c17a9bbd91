//! Who somebody is who connects: credentials in, roles out.
//!
//! Sans-IO: [`AuthenticationService`] takes what a peer presented and says whom it is from, or asks a question back; reading
//! sockets, time-outs and what follows from a role are the caller's. The same module serves the binary protocol (CONNECT and
//! AUTH_RESPONSE) and HTTP, and knows neither gateway nor broker.
//!
//! A credential is never printed, and no error quotes one. Time is passed in, as [`UnixTime`].

mod basic;
mod certificate;
pub mod clock;
mod jwt;
mod metrics;
mod password_hash;
mod service;
mod token;

#[cfg(test)]
mod service_tests;
#[cfg(test)]
mod token_tests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use self::basic::BasicError;
pub use self::certificate::CertificateError;
pub use self::jwt::TokenError;
pub(crate) use self::service::ANONYMOUS_METHOD;
pub use self::service::{AuthenticationService, SetupError, SetupErrors};

/// A time of the calendar, counted from 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(Duration);

impl UnixTime {
    /// So long after 1970.
    #[must_use]
    pub const fn new(since_1970: Duration) -> Self {
        Self(since_1970)
    }

    /// How long after 1970 it is.
    #[must_use]
    pub const fn since_1970(self) -> Duration {
        self.0
    }

    /// How long it is from `earlier` to this time; zero when it is not later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// This time and `duration`; `None` when that is beyond what can be counted.
    #[must_use]
    pub fn checked_add(self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }
}

/// What a peer shows of itself beside the credential in its command or header.
#[derive(Debug, Clone, Copy)]
pub struct Presented<'a> {
    /// Where it connects from.
    pub address: SocketAddr,
    /// The certificate that it proved to have in the TLS handshake, in DER.
    pub certificate: Option<&'a [u8]>,
}

/// Somebody whose credential was good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Pulsar's name for who somebody is in permissions; never empty.
    pub role: Arc<str>,
    /// The method of authentication, as on the wire; `none` for the anonymous role.
    pub method: Arc<str>,
    /// From when on the credential is not good any more.
    pub expires_at: Option<UnixTime>,
}

impl Principal {
    /// Whether its credential is not good any more.
    #[must_use]
    pub fn is_expired(&self, now: UnixTime) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }
}

/// On whose behalf a connection acts. Who decides on permissions has to look at both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Whose credential was checked.
    pub authenticated: Principal,
    /// The role that a trusted proxy says it acts for.
    pub original: Option<Arc<str>>,
}

impl Identity {
    /// The role that a client has in the end: the one that a proxy acts for, or its own.
    #[must_use]
    pub fn role(&self) -> &str {
        self.original.as_deref().unwrap_or(&self.authenticated.role)
    }
}

/// What follows from a credential.
#[derive(Debug)]
pub enum Step {
    /// The peer has to answer a question first.
    Challenge(Challenge),
    /// It is somebody.
    Done(Principal),
}

/// A question to the peer (AUTH_CHALLENGE), and the state that its answer goes back to.
#[derive(Debug)]
pub struct Challenge {
    /// What the peer is asked.
    pub data: Bytes,
    /// The method.
    pub method: &'static str,
    exchange: Box<dyn Exchange>,
}

/// An authentication that takes several steps, between two of them.
pub(crate) trait Exchange: fmt::Debug + Send {
    /// Takes the peer's answer.
    fn respond(self: Box<Self>, data: &[u8], now: UnixTime) -> Result<Step, AuthenticationError>;
}

/// One method of authentication. Implementations have no clock and do no IO.
pub(crate) trait Provider: fmt::Debug + Send + Sync {
    /// The method's name on the wire.
    fn method(&self) -> &'static str;

    /// The simple name of Apache's class, for metrics.
    fn name(&self) -> &'static str;

    /// Takes the first credential of a peer.
    fn begin(
        &self,
        data: &[u8],
        presented: &Presented<'_>,
        now: UnixTime,
    ) -> Result<Step, AuthenticationError>;

    /// The credential of an HTTP request, from the value of its `Authorization` header; `None`: it has none for this method.
    fn of_http(&self, authorization: Option<&str>, presented: &Presented<'_>) -> Option<Vec<u8>>;

    /// Whether [`begin`](Self::begin) with this credential may take milliseconds and more.
    fn is_costly(&self, _data: &[u8]) -> bool {
        false
    }
}

/// Why somebody was not authenticated. For logs: the peer is told only that it was not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    /// Nobody knows the method, and there is no role for anonymous peers.
    #[error("no provider has the method {0:?}, and no role is given to anonymous clients")]
    NoProvider(String),
    /// An HTTP request says nothing of who sends it.
    #[error("no credential")]
    NoCredential,
    /// A token is not good.
    #[error("token: {0}")]
    Token(#[from] TokenError),
    /// A certificate is not good.
    #[error("certificate: {0}")]
    Certificate(#[from] CertificateError),
    /// User or password are not good.
    #[error("basic: {0}")]
    Basic(#[from] BasicError),
    /// An answer came that no question was asked for, or too many rounds were needed.
    #[error("the answers to the challenges lead to nothing")]
    Exchange,
    /// So many checks wait that this one has not had its turn. The credential may be good.
    #[error("too many checks of credentials wait")]
    Busy,
    /// The check did not end: the process stops.
    #[error("the check was interrupted")]
    Interrupted,
}

impl AuthenticationError {
    /// The label `reason` of the failure metric: Apache's error codes where it has them.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NoProvider(_) => "NO_PROVIDER",
            Self::NoCredential => "NO_CREDENTIAL",
            Self::Token(error) => error.reason(),
            Self::Certificate(error) => error.reason(),
            Self::Basic(error) => error.reason(),
            Self::Exchange | Self::Busy | Self::Interrupted => "UNKNOWN",
        }
    }
}

/// What AUTH_CHALLENGE carries when it asks for a fresh credential (PIP-30).
pub const REFRESH: &[u8] = b"PulsarAuthRefresh";
