//! CONNECT, up to the point where the connection may be used.
//!
//! A function over a reader and a writer, not a task: who forwards the bytes afterwards takes the streams back from it.

use std::io;

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::{
    connection::ConnectionOptions,
    error::{CloseReason, ConnectError},
};
use crate::{
    config::CredentialError,
    net::FrameReader,
    protocol::{
        command::{Command, name_of},
        frame::{Frame, FrameLimits},
        proto::pulsar::{self, CommandConnect, CommandConnected, ServerError},
    },
};

/// The broker's consent.
#[derive(Debug, Clone)]
pub struct Handshake {
    /// What the broker said of itself.
    pub connected: CommandConnected,
    /// The same as it came, for a caller that passes it on unchanged.
    pub frame: Frame,
}

/// Sends CONNECT and waits for CONNECTED, answering PING and, where there is a method of authentication,
/// AUTH_CHALLENGE meanwhile. The method and its credential are put into CONNECT here.
/// The reader's limits then follow the broker's `max_message_size`. Not cancel-safe: drop the streams with it.
///
/// # Errors
/// See [`ConnectError`]; the connection is of no use afterwards.
pub async fn handshake<R, W>(
    reader: &mut FrameReader<R>,
    writer: &mut W,
    mut connect: CommandConnect,
    options: &ConnectionOptions,
) -> Result<Handshake, ConnectError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (client_version, protocol_version) =
        (connect.client_version.clone(), connect.protocol_version);
    // Apart, since the broker is not to blame for one that does not come.
    let introduced = options.authentication.introduce(&mut connect);
    timeout(options.handshake_timeout, introduced)
        .await
        .unwrap_or_else(|_| Err(CredentialError::Supplier("none came in time".to_owned())))?;
    let steps = async {
        write(writer, &Command::from(connect)).await?;
        let mut challenges = 0;
        loop {
            let frame = reader
                .next()
                .await?
                .ok_or(ConnectError::ClosedDuringHandshake)?;
            match Command::decode(&frame.command)? {
                Command::Connected(connected) => return Ok(Handshake { connected, frame }),
                Command::Error(error) => {
                    return Err(ConnectError::Refused {
                        code: server_error(error.error),
                        message: error.message,
                        frame: Box::new(frame),
                    });
                }
                Command::AuthChallenge(challenge) => {
                    challenges += 1;
                    if challenges > CHALLENGES_MAX {
                        return Err(ConnectError::TooManyChallenges(CHALLENGES_MAX));
                    }
                    let response = options
                        .authentication
                        .answer(challenge, &client_version, protocol_version)
                        .await?;
                    let response = response.ok_or(ConnectError::ChallengeUnsupported)?;
                    write(writer, &Command::from(response)).await?;
                }
                Command::Ping(_) => write(writer, &Command::from(pulsar::CommandPong {})).await?,
                Command::Pong(_) => {}
                other => {
                    return Err(ConnectError::UnexpectedAnswer(name_of(
                        other.command_type(),
                    )));
                }
            }
        }
    };
    let handshake = timeout(options.handshake_timeout, steps)
        .await
        .map_err(|_| ConnectError::HandshakeTimeout(options.handshake_timeout))??;
    if let Some(limits) = frame_limits(&handshake.connected) {
        reader.set_limits(limits);
    }
    Ok(handshake)
}

/// The broker's own limit, if it names a usable one.
fn frame_limits(connected: &CommandConnected) -> Option<FrameLimits> {
    let size = u32::try_from(connected.max_message_size?).ok()?;
    (size > 0).then(|| FrameLimits::for_max_message_size(size.min(MAX_MESSAGE_SIZE_CEILING)))
}

/// The code of an error answer; one that we do not know is an unknown error.
pub(crate) fn server_error(code: i32) -> ServerError {
    ServerError::try_from(code).unwrap_or(ServerError::UnknownError)
}

/// An ERROR that concerns the whole connection, as the reason of its end.
pub(crate) fn broker_gave_up(error: pulsar::CommandError) -> CloseReason {
    CloseReason::Broker {
        code: server_error(error.error),
        message: error.message.into(),
    }
}

async fn write<W: AsyncWrite + Unpin>(
    writer: &mut W,
    command: &Command,
) -> Result<(), ConnectError> {
    let mut buffer = BytesMut::new();
    command.encode(&mut buffer);
    let sent: io::Result<()> = async {
        writer.write_all_buf(&mut buffer).await?;
        writer.flush().await
    }
    .await;
    sent.map_err(ConnectError::of_io)
}

/// Steps of an authentication: more than any method has, and few enough that nobody gets our credential again and again.
const CHALLENGES_MAX: u32 = 10;

/// A broker that claims to take larger messages is believed up to this many bytes, since frames of the size are
/// buffered here.
const MAX_MESSAGE_SIZE_CEILING: u32 = 1024 * 1024 * 1024;
