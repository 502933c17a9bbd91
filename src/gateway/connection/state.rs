//! What the first frames of a client connection lead to; pure.
//!
//! `AwaitingConnect` takes frames until the CONNECT decides: a connection that names a broker is a direct one, any other answers
//! lookups. Gone after that decision: the relay and the lookup loop keep their own state.

use std::fmt;

use bytes::Bytes;

use crate::naming::{BrokerAddress, NameError};
use crate::protocol::command::{Command, CommandError, name_of};
use crate::protocol::fields::connect;
use crate::protocol::frame::Frame;
use crate::protocol::proto::pulsar::{CommandConnect, CommandPong, ServerError};
use crate::protocol::rewrite::CommandEditor;
use crate::protocol::server_error::UserFacingError;

/// A client of which no CONNECT was seen.
#[derive(Debug)]
pub(crate) struct AwaitingConnect {
    /// Our own version, which brokers see as `proxy_version`.
    proxy_version: &'static str,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send this and go on waiting.
    Answer(Command),
    /// Nothing to do; go on waiting.
    Wait,
    /// The client wants lookups.
    Lookup(Box<ConnectRequest>),
    /// The client wants a relay to a broker; `None` is any broker.
    Direct(Box<ConnectRequest>, Option<BrokerAddress>),
    /// Send the error and close.
    Refuse(Refusal),
    /// Close without a word, as a broker does.
    Close(ProtocolViolation),
}

/// The CONNECT that goes to a broker for the client.
#[derive(Clone)]
pub(crate) struct ConnectRequest {
    /// As decoded from what the client sent, without the fields that are between proxies.
    pub(crate) connect: CommandConnect,
    /// The encoded command: the client's bytes, fields unknown to us included, but for the fields that are between proxies.
    pub(crate) encoded: Bytes,
}

impl fmt::Debug for ConnectRequest {
    /// Without the encoded form, which holds the credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("connect", &self.connect)
            .finish_non_exhaustive()
    }
}

/// A CONNECT that is answered by an ERROR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("Must not provide proxyVersion")]
    FromProxy,
    #[error("proxy_to_broker_url: {0}")]
    BadTarget(NameError),
}

impl UserFacingError for Refusal {
    fn code(&self) -> ServerError {
        ServerError::NotAllowedError
    }

    fn retryable(&self) -> bool {
        false
    }

    fn client_message(&self) -> String {
        self.to_string()
    }
}

/// Frames that no client sends before its CONNECT was answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolViolation {
    #[error("undecodable command: {0}")]
    Undecodable(#[from] CommandError),
    #[error("{0} before CONNECT")]
    Unexpected(&'static str),
}

impl AwaitingConnect {
    /// A new connection.
    pub(crate) fn new(proxy_version: &'static str) -> Self {
        Self { proxy_version }
    }

    /// Takes the next frame of the client.
    pub(crate) fn on_frame(&self, frame: &Frame) -> Step {
        let command = match Command::decode(&frame.command) {
            Ok(command) => command,
            Err(error) => return Step::Close(error.into()),
        };
        match command {
            Command::Connect(connect) => self.on_connect(*connect, &frame.command),
            Command::Ping(_) => Step::Answer(Command::Pong(CommandPong::default())),
            Command::Pong(_) => Step::Wait,
            other => Step::Close(ProtocolViolation::Unexpected(name_of(other.command_type()))),
        }
    }

    fn on_connect(&self, mut connect: CommandConnect, raw: &[u8]) -> Step {
        // Without authentication nobody is trusted to be a proxy.
        if connect.proxy_version.is_some() {
            return Step::Refuse(Refusal::FromProxy);
        }
        let target = connect.proxy_to_broker_url.take();
        connect.original_principal = None;
        connect.original_auth_data = None;
        connect.original_auth_method = None;
        connect.proxy_version = Some(self.proxy_version.to_owned());
        let encoded = match self.encode(raw) {
            Ok(encoded) => encoded,
            Err(error) => return Step::Close(error.into()),
        };
        let request = Box::new(ConnectRequest { connect, encoded });
        match target.as_deref() {
            None => Step::Lookup(request),
            Some("") => Step::Direct(request, None),
            Some(target) => match BrokerAddress::from_host_port(target) {
                Ok(target) => Step::Direct(request, Some(target)),
                Err(error) => Step::Refuse(Refusal::BadTarget(error)),
            },
        }
    }

    fn encode(&self, raw: &[u8]) -> Result<Bytes, CommandError> {
        let mut editor = CommandEditor::new(raw)?;
        for field in BETWEEN_PROXIES {
            editor.remove(field);
        }
        editor.set_bytes(connect::PROXY_VERSION, self.proxy_version.as_bytes());
        Ok(editor.finish())
    }
}

/// What is between proxies in `CommandConnect`.
const BETWEEN_PROXIES: [u32; 4] = [
    connect::PROXY_TO_BROKER_URL,
    connect::ORIGINAL_PRINCIPAL,
    connect::ORIGINAL_AUTH_DATA,
    connect::ORIGINAL_AUTH_METHOD,
];
