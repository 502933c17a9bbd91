//! What can go wrong with a connection to a broker.

use std::{io, sync::Arc, time::Duration};

use super::{
    lookup::{LookupError, LookupFailure},
    pool::PoolError,
};
use crate::{
    config::CredentialError,
    naming::BrokerAddress,
    net::{ReadError, TlsConfigError, TlsError},
    protocol::{
        command::CommandError,
        frame::{Frame, FrameError},
        proto::pulsar::ServerError,
    },
};

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection: name not resolved, refused, unreachable.
    #[error("cannot connect: {0}")]
    Dial(#[source] io::Error),
    /// The TCP connection took longer than `connect_timeout`.
    #[error("cannot connect within {0:?}")]
    DialTimeout(Duration),
    /// [`ConnectionOptions::allowed`](super::ConnectionOptions::allowed) does not allow the address.
    #[error("the address of the broker's host name is not allowed")]
    AddressDenied,
    /// TLS cannot be set up: the operating system has no trusted certificates.
    #[error(transparent)]
    TlsConfig(TlsConfigError),
    /// The TLS handshake failed, or a side refused the other's certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The TLS handshake took longer than `connect_timeout`.
    #[error("no TLS handshake within {0:?}")]
    TlsTimeout(Duration),
    /// Our own credential cannot be read.
    #[error("the credential cannot be read: {0}")]
    Credential(#[from] CredentialError),
    /// The broker did not complete the handshake within `handshake_timeout`.
    #[error("no answer to CONNECT within {0:?}")]
    HandshakeTimeout(Duration),
    /// The broker ended the connection instead of answering CONNECT.
    #[error("the broker closed the connection during the handshake")]
    ClosedDuringHandshake,
    /// The connection failed during the handshake.
    #[error("the connection failed during the handshake: {0}")]
    Io(#[source] io::Error),
    /// The broker sent bytes that are no frame.
    #[error("the broker sent a malformed frame: {0}")]
    Frame(#[from] FrameError),
    /// The broker sent a frame that holds no valid command.
    #[error("the broker sent a malformed command: {0}")]
    Command(#[from] CommandError),
    /// The broker answered CONNECT with something that is no answer to it.
    #[error("the broker answered CONNECT with {0}")]
    UnexpectedAnswer(&'static str),
    /// The broker asks for a further authentication step, and we have no method of authentication.
    #[error("the broker sent an authentication challenge, which is not supported")]
    ChallengeUnsupported,
    /// The broker asks for one authentication step after the other.
    #[error("the broker sent more than {0} authentication challenges")]
    TooManyChallenges(u32),
    /// The broker answered CONNECT with ERROR.
    #[error("the broker refused the connection: {code:?}: {message}")]
    Refused {
        /// The broker's code, [`ServerError::UnknownError`] when it is none that we know.
        code: ServerError,
        /// The broker's text.
        message: String,
        /// The whole answer, for a caller that passes it on unchanged.
        frame: Box<Frame>,
    },
    /// An attempt failed that others waited for as well.
    #[error(transparent)]
    Shared(Arc<ConnectError>),
}

impl ConnectError {
    /// The error of a stream during the handshake.
    pub(crate) fn of_io(error: io::Error) -> Self {
        match TlsError::of_stream(&error) {
            Some(error) => Self::Tls(error),
            None => Self::Io(error),
        }
    }

    /// Whether it is about our own settings or rights: trying again, or another broker, makes no difference.
    pub fn is_about_the_client(&self) -> bool {
        match self {
            Self::ChallengeUnsupported | Self::TlsConfig(_) | Self::Credential(_) => true,
            Self::Refused { code, .. } => matches!(
                code,
                ServerError::AuthenticationError
                    | ServerError::AuthorizationError
                    | ServerError::NotAllowedError
            ),
            Self::Shared(error) => error.is_about_the_client(),
            _ => false,
        }
    }

    /// Whether the same may succeed a moment later, on whichever way it was connected.
    fn may_pass(&self) -> bool {
        match self {
            Self::Refused { code, .. } => is_passing(*code),
            Self::TlsConfig(_)
            | Self::Credential(_)
            | Self::AddressDenied
            | Self::ChallengeUnsupported
            | Self::TooManyChallenges(_) => false,
            Self::Tls(error) => !error.is_lasting(),
            Self::Shared(error) => error.may_pass(),
            _ => true,
        }
    }
}

impl From<ReadError> for ConnectError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => Self::of_io(error),
            ReadError::Frame(error) => Self::Frame(error),
            ReadError::Truncated { .. } => Self::ClosedDuringHandshake,
        }
    }
}

/// Why a connection ended. Every request that was waiting gets it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CloseReason {
    /// We closed it, or dropped the last handle.
    #[error("closed by us")]
    Local,
    /// The broker ended the stream.
    #[error("closed by the broker")]
    EndOfStream,
    /// Nothing came from the broker for a whole keep-alive interval after a PING.
    #[error("the broker did not answer PING")]
    KeepAliveTimeout,
    /// Reading or writing failed.
    #[error("the connection failed: {0}")]
    Io(Arc<io::Error>),
    /// The broker sent bytes that are no frame.
    #[error("the broker sent a malformed frame: {0}")]
    Frame(FrameError),
    /// The broker sent a command that cannot be read.
    #[error("the broker sent a malformed command: {0}")]
    Command(Arc<CommandError>),
    /// The broker asked for our credential again, and it cannot be read.
    #[error("the credential cannot be read: {0}")]
    Credential(CredentialError),
    /// The broker sent something that it must not send, and what both sides know is not the same any more.
    #[error("the broker broke the protocol: {0}")]
    Violation(&'static str),
    /// The broker sent an ERROR that concerns the whole connection.
    #[error("the broker gave up the connection: {code:?}: {message}")]
    Broker {
        /// The broker's code.
        code: ServerError,
        /// The broker's text.
        message: Arc<str>,
    },
}

impl From<ReadError> for CloseReason {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => Self::Io(Arc::new(error)),
            ReadError::Frame(error) => Self::Frame(error),
            ReadError::Truncated { .. } => Self::EndOfStream,
        }
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestError {
    /// No answer within `request_timeout`; it may have been carried out all the same.
    #[error("no answer from the broker within {0:?}")]
    Timeout(Duration),
    /// The connection ended first; the request may have been carried out all the same.
    #[error("the connection ended: {0}")]
    Closed(#[source] CloseReason),
    /// The command to send, or the answer, cannot be read as a command.
    #[error("malformed command: {0}")]
    Command(Arc<CommandError>),
    /// The broker answered ERROR.
    #[error("the broker refused the request: {code:?}: {message}")]
    Refused {
        /// The broker's code, [`ServerError::UnknownError`] when it is none that we know.
        code: ServerError,
        /// The broker's text.
        message: String,
    },
}

impl From<CommandError> for RequestError {
    fn from(error: CommandError) -> Self {
        Self::Command(Arc::new(error))
    }
}

/// Why something that a client does over lookups and connections failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// The broker of the topic is not known.
    #[error("lookup failed: {0}")]
    Lookup(Arc<LookupError>),
    /// The broker of the topic cannot be connected to.
    #[error("no connection to {address}: {error}")]
    Connect {
        /// The broker.
        address: BrokerAddress,
        /// Why not.
        error: Arc<ConnectError>,
    },
    /// No address of the service URL can be connected to.
    #[error("no connection to the service URL: {0}")]
    ServiceUrl(Arc<ConnectError>),
    /// The broker refused, or did not answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The broker answered with something else.
    #[error("the broker answered with {0}")]
    UnexpectedAnswer(&'static str),
    /// It did not succeed within `operation_timeout`; with what went wrong last.
    #[error("not done within {limit:?}; last: {last}")]
    Timeout {
        /// The time that was given.
        limit: Duration,
        /// The error of the last attempt.
        last: Box<ClientError>,
    },
    /// The broker of the topic is gone and the next one not found yet.
    #[error("not connected")]
    NotConnected,
    /// The client, producer or consumer is closed.
    #[error("closed")]
    Closed,
    /// The options exclude each other, or nothing could be done with them.
    #[error("invalid options: {0}")]
    InvalidOptions(&'static str),
}

impl From<LookupError> for ClientError {
    fn from(error: LookupError) -> Self {
        Self::Lookup(Arc::new(error))
    }
}

impl ClientError {
    /// Whether the same may succeed a moment later: the topic is moving, the broker restarts, the network is gone.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Lookup(error) => match &**error {
                LookupError::Refused { code, .. } => is_passing(*code),
                LookupError::Failure(LookupFailure::Pool(PoolError::Connect { error, .. })) => {
                    error.may_pass()
                }
                LookupError::Failure(_) => true,
                LookupError::UnexpectedAnswer(_) => false,
            },
            Self::Connect { error, .. } | Self::ServiceUrl(error) => error.may_pass(),
            Self::Request(RequestError::Refused { code, .. }) => is_passing(*code),
            Self::Request(RequestError::Timeout(_) | RequestError::Closed(_))
            | Self::NotConnected => true,
            Self::Request(RequestError::Command(_))
            | Self::UnexpectedAnswer(_)
            | Self::Timeout { .. }
            | Self::Closed
            | Self::InvalidOptions(_) => false,
        }
    }

    /// The code with which a broker refused, if that is what happened.
    pub fn server_error(&self) -> Option<ServerError> {
        match self {
            Self::Lookup(error) => match &**error {
                LookupError::Refused { code, .. } => Some(*code),
                LookupError::Failure(failure) => failure.refusal(),
                LookupError::UnexpectedAnswer(_) => None,
            },
            Self::Connect { error, .. } | Self::ServiceUrl(error) => match &**error {
                ConnectError::Refused { code, .. } => Some(*code),
                _ => None,
            },
            Self::Request(RequestError::Refused { code, .. }) => Some(*code),
            Self::Timeout { last, .. } => last.server_error(),
            _ => None,
        }
    }
}

/// The codes of a state that passes. Apache's clients try again after all but those that name a fault of the request or
/// of its rights.
fn is_passing(code: ServerError) -> bool {
    matches!(
        code,
        ServerError::UnknownError
            | ServerError::MetadataError
            | ServerError::PersistenceError
            | ServerError::ServiceNotReady
            | ServerError::TooManyRequests
            | ServerError::ConsumerNotFound
            // Room may come while the broker holds the producer back (`producer_request_hold`).
            | ServerError::ProducerBlockedQuotaExceededError
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failure to connect, for the topic's broker and for the lookup of it.
    fn both_ways(error: ConnectError) -> [ClientError; 2] {
        let error = Arc::new(error);
        let address = BrokerAddress::from_host_port("broker:6650").unwrap();
        let failure = LookupFailure::Pool(PoolError::Connect {
            address: address.clone(),
            error: Arc::clone(&error),
        });
        [
            ClientError::Connect { address, error },
            ClientError::from(LookupError::Failure(failure)),
        ]
    }

    #[test]
    fn a_fault_of_our_own_passes_no_more_in_a_lookup_than_at_the_broker() {
        let lasting: [fn() -> ConnectError; 3] = [
            || ConnectError::AddressDenied,
            || ConnectError::ChallengeUnsupported,
            || ConnectError::Tls(TlsError::NotTls),
        ];
        for error in lasting {
            for error in both_ways(error()) {
                assert!(!error.is_retryable(), "{error}");
            }
        }
        let passing: [fn() -> ConnectError; 2] = [
            || ConnectError::DialTimeout(Duration::ZERO),
            || ConnectError::ClosedDuringHandshake,
        ];
        for error in passing {
            for error in both_ways(error()) {
                assert!(error.is_retryable(), "{error}");
            }
        }
    }
}
