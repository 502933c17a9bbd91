//! The way to a broker for a direct connection: resolve, check, dial, and speak the client's CONNECT.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::Shared;
use super::connection::{self, PROXY_VERSION};
use super::forward::Passthrough;
use super::introduction::Introduction;
use super::policy::Denied;
use crate::client::{self, Authentication, ConnectError};
use crate::config::CredentialError;
use crate::naming::BrokerAddress;
use crate::net::{FrameReader, ReadError, Stream, TlsError};
use crate::protocol::command::{Command, name_of};
use crate::protocol::frame::{Frame, FrameLimits};
use crate::protocol::proto::pulsar::base_command::Type;
use crate::protocol::proto::pulsar::{CommandAuthResponse, CommandPong, ServerError};
use crate::protocol::server_error::UserFacingError;
use crate::protocol::version;

/// Why a target was not reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl DialError {
    /// Whether the target is one that clients must not reach.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(
            self,
            Self::Denied(_) | Self::Connect(ConnectError::AddressDenied)
        )
    }
}

impl UserFacingError for DialError {
    fn code(&self) -> ServerError {
        ServerError::ServiceNotReady
    }

    fn retryable(&self) -> bool {
        true
    }

    fn client_message(&self) -> String {
        match self {
            Self::Denied(Denied::NotActive(_)) => "Target broker isn't available.",
            denied if denied.is_denied() => "Target broker cannot be validated.",
            Self::Connect(ConnectError::DialTimeout(_) | ConnectError::TlsTimeout(_)) => {
                "Target broker did not accept the connection in time."
            }
            _ => "Target broker cannot be reached.",
        }
        .to_owned()
    }
}

/// Opens a connection to a target that a client named, if the policy allows it, with TLS where that is how brokers are reached: a
/// client cannot know, so what it says of that does not count. Cancel-safe: dropping it closes what was opened.
///
/// # Errors
/// See [`DialError`].
pub(crate) async fn dial(shared: &Shared, target: &BrokerAddress) -> Result<Stream, DialError> {
    shared.policy.check_named(target)?;
    let tls = shared.settings.tls.brokers.enabled;
    let target = shared.policy.as_reached(target, tls);
    shared.policy.check_named(&target)?;
    dial_chosen(shared, &target).await
}

/// Opens a connection to a broker that the gateway chose itself. Cancel-safe, as [`dial`].
///
/// # Errors
/// See [`DialError`].
pub(crate) async fn dial_chosen(
    shared: &Shared,
    target: &BrokerAddress,
) -> Result<Stream, DialError> {
    shared.policy.check(target)?;
    let _timer = shared.metrics.dialling();
    let limit = shared.connect_timeout();
    let check = shared.address_check();
    let dialled = client::dial::dial(target, limit, Some(&check), &shared.tls.brokers).await;
    if let Err(error) = &dialled {
        shared.brokers.failed(target, error);
    }
    Ok(dialled?)
}

/// How the broker took the client's CONNECT.
#[derive(Debug)]
pub(crate) enum Outcome<B> {
    /// Accepted: relay from here on.
    Accepted(Accepted<B>),
    /// Refused: the broker's ERROR has been passed on; its code and text.
    Refused(String),
}

/// A broker connection that belongs to the client now.
#[derive(Debug)]
pub(crate) struct Accepted<B> {
    broker: B,
    /// CONNECTED and whatever was read behind it.
    early: Bytes,
    limits: FrameLimits,
}

impl<B> Accepted<B> {
    /// Both ends, for the relay.
    pub(crate) fn with_client<C: AsyncRead + Unpin>(
        self,
        client: FrameReader<C>,
    ) -> Passthrough<C, B> {
        let (client, early_from_client) = client.into_parts();
        Passthrough {
            client,
            broker: self.broker,
            early_from_client,
            early_from_broker: self.early,
            limits: self.limits,
        }
    }
}

/// Why the handshake with the broker came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("the broker: {0}")]
    BrokerRead(#[source] ReadError),
    #[error("the broker: {0}")]
    BrokerWrite(#[source] io::Error),
    #[error("the broker closed the connection")]
    BrokerClosed,
    #[error("the broker sent {0} instead of CONNECTED")]
    BrokerUnexpected(&'static str),
    #[error("the broker did not answer in time")]
    BrokerSilent,
    #[error("the client: {0}")]
    ClientRead(#[source] ReadError),
    #[error("the client: {0}")]
    ClientWrite(#[source] io::Error),
    #[error("the client closed the connection")]
    ClientClosed,
    #[error("the client sent {0} instead of AUTH_RESPONSE")]
    ClientUnexpected(&'static str),
    #[error("the broker asks the gateway for a credential, and it has none of its own")]
    NoCredential,
    #[error("the credential of the gateway cannot be read: {0}")]
    Credential(#[from] CredentialError),
}

impl HandshakeError {
    /// What TLS says of the broker's connection: with TLS 1.3 a broker judges our certificate only after the handshake.
    pub(crate) fn of_tls(&self) -> Option<TlsError> {
        match self {
            Self::BrokerRead(ReadError::Io(error)) | Self::BrokerWrite(error) => {
                TlsError::of_stream(error)
            }
            _ => None,
        }
    }

    /// Whether it is the client's connection that is of no more use.
    pub(crate) fn is_clients(&self) -> bool {
        matches!(
            self,
            Self::ClientRead(_)
                | Self::ClientWrite(_)
                | Self::ClientClosed
                | Self::ClientUnexpected(_)
        )
    }
}

impl UserFacingError for HandshakeError {
    fn code(&self) -> ServerError {
        ServerError::ServiceNotReady
    }

    fn retryable(&self) -> bool {
        true
    }

    fn client_message(&self) -> String {
        match self {
            Self::BrokerSilent => "Target broker did not answer in time.",
            Self::NoCredential | Self::Credential(_) => {
                "The gateway cannot authenticate itself to the target broker."
            }
            _ => "Target broker ended the connection.",
        }
        .to_owned()
    }
}

/// Introduces the client to the broker. An AUTH_CHALLENGE is answered by whose credential is in the CONNECT: by the gateway, or
/// by the client. Nothing else of what either side says is changed or lost; bytes that came early are kept.
///
/// Not cancel-safe: dropped in between, the broker's connection is of no further use, and the client's may be told so.
///
/// # Errors
/// See [`HandshakeError`].
pub(crate) async fn introduce<C, B>(
    client: &mut FrameReader<C>,
    broker: B,
    introduction: &Introduction,
    limits: FrameLimits,
) -> Result<Outcome<B>, HandshakeError>
where
    C: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut broker = FrameReader::new(broker, limits);
    let connect = Frame {
        command: introduction.command.clone(),
        payload: Bytes::new(),
    };
    send(broker.get_mut(), &connect)
        .await
        .map_err(HandshakeError::BrokerWrite)?;
    loop {
        let frame = broker
            .next()
            .await
            .map_err(HandshakeError::BrokerRead)?
            .ok_or(HandshakeError::BrokerClosed)?;
        let command_type = Command::peek_type(&frame.command)
            .map_err(|_| HandshakeError::BrokerUnexpected("an undecodable command"))?;
        match Type::try_from(command_type) {
            Ok(Type::Connected) => {
                let limits = limits_of(&frame).unwrap_or(limits);
                return Ok(Outcome::Accepted(accepted(broker, &frame, limits)));
            }
            Ok(Type::Error) => {
                send(client.get_mut(), &frame)
                    .await
                    .map_err(HandshakeError::ClientWrite)?;
                return Ok(Outcome::Refused(refusal_of(&frame)));
            }
            Ok(Type::AuthChallenge) if let Some(own) = &introduction.own => {
                let response = own_response(own).await?;
                send(broker.get_mut(), &response)
                    .await
                    .map_err(HandshakeError::BrokerWrite)?;
            }
            Ok(Type::AuthChallenge) => {
                send(client.get_mut(), &frame)
                    .await
                    .map_err(HandshakeError::ClientWrite)?;
                let response = auth_response(client).await?;
                send(broker.get_mut(), &response)
                    .await
                    .map_err(HandshakeError::BrokerWrite)?;
            }
            Ok(Type::Ping) => pong(broker.get_mut())
                .await
                .map_err(HandshakeError::BrokerWrite)?,
            Ok(Type::Pong) => {}
            _ => return Err(HandshakeError::BrokerUnexpected(name_of(command_type))),
        }
    }
}

/// What an ERROR says, for the log.
fn refusal_of(frame: &Frame) -> String {
    match Command::decode(&frame.command) {
        Ok(Command::Error(error)) => format!("{:?}: {}", error.error(), error.message),
        _ => "an ERROR that cannot be read".to_owned(),
    }
}

/// The gateway's answer to a challenge: its credential, read anew.
async fn own_response(own: &Authentication) -> Result<Frame, HandshakeError> {
    let response = own.auth_data().await?.ok_or(HandshakeError::NoCredential)?;
    let response = Command::from(CommandAuthResponse {
        client_version: Some(PROXY_VERSION.to_owned()),
        response: Some(response),
        protocol_version: Some(version::CURRENT),
    });
    Ok(Frame {
        command: response.encode_command(),
        payload: Bytes::new(),
    })
}

/// The client's next AUTH_RESPONSE; a PING before it is answered.
async fn auth_response<C>(client: &mut FrameReader<C>) -> Result<Frame, HandshakeError>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let frame = client
            .next()
            .await
            .map_err(HandshakeError::ClientRead)?
            .ok_or(HandshakeError::ClientClosed)?;
        let command_type = Command::peek_type(&frame.command)
            .map_err(|_| HandshakeError::ClientUnexpected("an undecodable command"))?;
        match Type::try_from(command_type) {
            Ok(Type::AuthResponse) => return Ok(frame),
            Ok(Type::Ping) => pong(client.get_mut())
                .await
                .map_err(HandshakeError::ClientWrite)?,
            Ok(Type::Pong) => {}
            _ => return Err(HandshakeError::ClientUnexpected(name_of(command_type))),
        }
    }
}

fn accepted<B: AsyncRead + Unpin>(
    broker: FrameReader<B>,
    connected: &Frame,
    limits: FrameLimits,
) -> Accepted<B> {
    let (broker, behind) = broker.into_parts();
    let mut early = BytesMut::with_capacity(connected.wire_len() + behind.len());
    connected.encode(&mut early);
    early.extend_from_slice(&behind);
    Accepted {
        broker,
        early: early.freeze(),
        limits,
    }
}

async fn pong<W: AsyncWrite + Unpin>(writer: &mut W) -> io::Result<()> {
    connection::send(writer, &Command::Pong(CommandPong::default())).await
}

/// The frame limits that follow from the broker's `CommandConnected.max_message_size`.
fn limits_of(connected: &Frame) -> Option<FrameLimits> {
    match Command::decode(&connected.command) {
        Ok(Command::Connected(connected)) => connected
            .max_message_size
            .and_then(|size| u32::try_from(size).ok())
            .filter(|size| *size > 0)
            .map(FrameLimits::for_max_message_size),
        _ => None,
    }
}

async fn send<W: AsyncWrite + Unpin>(writer: &mut W, frame: &Frame) -> io::Result<()> {
    let mut bytes = BytesMut::with_capacity(frame.wire_len());
    frame.encode(&mut bytes);
    writer.write_all(&bytes).await?;
    writer.flush().await
}
