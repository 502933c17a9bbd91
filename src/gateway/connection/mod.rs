//! One client connection: the handshake decides what it is, then a relay or the lookup loop runs it to its end.
//!
//! Owns the client's socket. The handshake is a future of its own that is gone before the long part starts, so that an idle
//! relayed pair does not carry its memory.

mod lookup;
pub(crate) mod state;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::debug;

use self::state::{AwaitingConnect, ConnectRequest, Step};
use super::Shared;
use super::forward::{self, Passthrough, RelayContext, RelayError, Side};
use super::inspect::Inspector;
use super::stats::EndReason;
use super::upstream::{self, DialError, HandshakeError, Outcome};
use crate::client::ConnectError;
use crate::naming::BrokerAddress;
use crate::net::{FrameReader, ReadError, scratch};
use crate::protocol::command::Command;
use crate::protocol::frame::{Frame, FrameLimits};
use crate::protocol::server_error::{CONNECTION_REQUEST_ID, UserFacingError, error_command};

/// What the handshake came to.
enum Decided {
    Relay(Box<Passthrough<TcpStream, TcpStream>>),
    Lookups(Box<(FrameReader<TcpStream>, ConnectRequest)>),
    Ended(EndReason),
}

/// Serves one client until its connection ends, and says why it ended. Ends early and in order when the gateway drains.
/// Not cancel-safe: dropping it cuts the connection.
pub(crate) async fn serve(shared: Arc<Shared>, client: TcpStream, peer: SocketAddr) -> EndReason {
    let handshake = async {
        tokio::select! {
            biased;
            () = shared.draining.cancelled() => Decided::Ended(EndReason::Drained),
            decided = handshake(&shared, client) => decided,
        }
    };
    match Box::pin(handshake).await {
        Decided::Ended(reason) => {
            debug!(%peer, ?reason, "no handshake");
            reason
        }
        Decided::Relay(pair) => relay(&shared, *pair, peer).await,
        Decided::Lookups(lookups) => {
            let (client, request) = *lookups;
            Box::pin(lookup::serve(&shared, client, request)).await
        }
    }
}

/// Completes when this connection should leave because the gateway drains: at a time of its own within the drain's spread, so
/// that not all clients reconnect in the same second.
async fn asked_to_leave(shared: &Shared) {
    let turn = shared.next_turn();
    // A token of its own, since all relays would meet at the lock of a shared one.
    shared.draining.child_token().cancelled_owned().await;
    sleep(shared.drain_spread().mul_f64(turn)).await;
}

async fn relay(
    shared: &Shared,
    pair: Passthrough<TcpStream, TcpStream>,
    peer: SocketAddr,
) -> EndReason {
    let _broker = shared.metrics.broker_connected();
    let meter = shared.metrics.meter(peer, pair.broker.peer_addr().ok());
    let context = RelayContext {
        metrics: &meter,
        policy: &shared.policy,
        idle_timeout: shared.settings.broker_read_timeout,
    };
    let inspector = Inspector::new(Arc::clone(&shared.metrics.topics));
    match forward::relay(pair, inspector, context, asked_to_leave(shared)).await {
        Ok(()) if shared.draining.is_cancelled() => EndReason::Drained,
        Ok(()) => EndReason::Closed,
        Err(error) => {
            debug!("relay ended: {error}");
            match error {
                RelayError::BadFrame(Side::Client, _) => EndReason::ClientProtocol,
                RelayError::BadFrame(Side::Broker, _) => EndReason::BrokerProtocol,
                RelayError::Idle(_) => EndReason::Timeout,
                RelayError::Read(..) | RelayError::Write(..) => EndReason::Io,
            }
        }
    }
}

/// Reads up to the CONNECT and does what it asks for.
async fn handshake(shared: &Shared, client: TcpStream) -> Decided {
    let mut client = FrameReader::new(
        client,
        FrameLimits {
            max_frame: HANDSHAKE_FRAME_MAX,
        },
    );
    let state = AwaitingConnect::new(PROXY_VERSION);
    let deadline = Instant::now() + shared.handshake_timeout();
    loop {
        // A client that always has a further frame ready would never be waited for, and so never be late.
        if Instant::now() >= deadline {
            return Decided::Ended(EndReason::Timeout);
        }
        let frame = match timeout_at(deadline, client.next()).await {
            Ok(Ok(Some(frame))) => frame,
            Ok(Ok(None)) => return Decided::Ended(EndReason::Closed),
            Ok(Err(error)) => {
                debug!("before CONNECT: {error}");
                return Decided::Ended(EndReason::ClientProtocol);
            }
            Err(_) => return Decided::Ended(EndReason::Timeout),
        };
        match state.on_frame(&frame) {
            Step::Wait => {}
            Step::Answer(command) => {
                // A client that asks and does not read must not hold its place.
                match timeout_at(deadline, send(client.get_mut(), &command)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Decided::Ended(EndReason::Io),
                    Err(_) => return Decided::Ended(EndReason::Timeout),
                }
            }
            Step::Lookup(request) => {
                client.set_limits(FrameLimits::for_max_message_size(
                    shared.settings.max_message_size,
                ));
                return Decided::Lookups(Box::new((client, *request)));
            }
            Step::Direct(request, target) => {
                let asked = Asked {
                    request: *request,
                    target,
                    deadline,
                };
                return direct(shared, client, asked).await;
            }
            Step::Refuse(refusal) => {
                debug!("refused: {refusal}");
                refuse(client.get_mut(), &refusal).await;
                return Decided::Ended(EndReason::Refused);
            }
            Step::Close(violation) => {
                debug!("closed: {violation}");
                return Decided::Ended(EndReason::ClientProtocol);
            }
        }
    }
}

/// What a client that wants a relay asked for.
struct Asked {
    request: ConnectRequest,
    /// `None` is any broker.
    target: Option<BrokerAddress>,
    /// When the handshake has to be over.
    deadline: Instant,
}

/// Connects the client to the broker that it names.
async fn direct(shared: &Shared, mut client: FrameReader<TcpStream>, asked: Asked) -> Decided {
    let dial = async {
        match asked.target {
            Some(target) => upstream::dial(shared, &target).await,
            None => any_broker(shared).await,
        }
    };
    // A tenth of the time is left for telling the client that it failed.
    let reserve = shared.handshake_timeout() / 10;
    let dialled = timeout_at(asked.deadline - reserve, dial)
        .await
        .unwrap_or_else(|_| Err(ConnectError::DialTimeout(shared.handshake_timeout()).into()));
    let broker = match dialled {
        Ok(broker) => broker,
        Err(error) => {
            if error.is_denied() {
                shared.notices.denied(&error);
            } else {
                shared.notices.unreachable(&error);
            }
            refuse(client.get_mut(), &error).await;
            return Decided::Ended(if error.is_denied() {
                EndReason::TargetDenied
            } else {
                EndReason::BrokerUnreachable
            });
        }
    };
    let limits = FrameLimits::for_max_message_size(shared.settings.max_message_size);
    let introduced = upstream::introduce(&mut client, broker, &asked.request, limits);
    let error = match timeout_at(asked.deadline, introduced).await {
        Ok(Ok(Outcome::Accepted(broker))) => {
            return Decided::Relay(Box::new(broker.with_client(client)));
        }
        Ok(Ok(Outcome::Refused)) => {
            close(client.get_mut()).await;
            return Decided::Ended(EndReason::BrokerRefused);
        }
        Ok(Err(error)) => error,
        Err(_) => HandshakeError::BrokerSilent,
    };
    debug!("handshake with a broker failed: {error}");
    if !error.is_clients() {
        refuse(client.get_mut(), &error).await;
    }
    Decided::Ended(match error {
        HandshakeError::BrokerRead(ReadError::Frame(_)) | HandshakeError::BrokerUnexpected(_) => {
            shared.notices.broker_protocol(&error);
            EndReason::BrokerProtocol
        }
        HandshakeError::BrokerRead(_)
        | HandshakeError::BrokerWrite(_)
        | HandshakeError::ClientRead(_)
        | HandshakeError::ClientWrite(_) => EndReason::Io,
        HandshakeError::BrokerClosed => EndReason::BrokerRefused,
        HandshakeError::BrokerSilent => EndReason::Timeout,
        HandshakeError::ClientClosed => EndReason::Closed,
        HandshakeError::ClientUnexpected(_) => EndReason::ClientProtocol,
    })
}

/// The first configured broker, in turn, that takes a connection.
async fn any_broker(shared: &Shared) -> Result<TcpStream, DialError> {
    let mut last = DialError::from(ConnectError::DialTimeout(Duration::ZERO));
    for target in shared.brokers_in_turn() {
        match upstream::dial(shared, &target).await {
            Ok(broker) => return Ok(broker),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Answers a CONNECT by a connection-level ERROR and closes in order, so that the client sees the frame and not a reset.
pub(super) async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut S,
    error: &(dyn UserFacingError + Sync),
) {
    let mut bytes = BytesMut::new();
    error_command(CONNECTION_REQUEST_ID, error).encode(&mut bytes);
    close_behind(client, &bytes).await;
}

/// Sends a broker's frame as it is and closes in order.
async fn pass_on_and_close<S: AsyncRead + AsyncWrite + Unpin>(client: &mut S, frame: &Frame) {
    let mut bytes = BytesMut::with_capacity(frame.wire_len());
    frame.encode(&mut bytes);
    close_behind(client, &bytes).await;
}

/// Sends the last bytes and closes in order. A client that does not take them in time, or is gone, is not waited for.
async fn close_behind<S: AsyncRead + AsyncWrite + Unpin>(client: &mut S, bytes: &[u8]) {
    if let Ok(Ok(())) = timeout(LAST_WORDS_GRACE, client.write_all(bytes)).await {
        close(client).await;
    }
}

/// Ends our side and gives the client a moment to end its own: closing with its bytes unread would reset the connection under
/// the frame that it should still read.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(client: &mut S) {
    if client.shutdown().await.is_err() {
        return;
    }
    let rest = async {
        let mut left = DISCARD_MAX;
        while left > 0 {
            match poll_fn(|cx| discard(client, cx)).await {
                Ok(0) | Err(_) => return,
                Ok(read) => left = left.saturating_sub(read),
            }
        }
    };
    let _ = timeout(CLOSE_GRACE, rest).await;
}

fn discard<R: AsyncRead + Unpin>(reader: &mut R, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    scratch::with(|buffer| {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(reader).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    })
}

async fn send<W: AsyncWrite + Unpin>(client: &mut W, command: &Command) -> io::Result<()> {
    let mut bytes = BytesMut::new();
    command.encode(&mut bytes);
    client.write_all(&bytes).await
}

/// What brokers see as `CommandConnect.proxy_version`.
pub(crate) const PROXY_VERSION: &str = concat!("pulsegate-", env!("CARGO_PKG_VERSION"));
/// Largest frame before a CONNECT was seen: a credential fits many times, a flood of strangers costs little.
const HANDSHAKE_FRAME_MAX: usize = 64 * 1024;
/// How long a client has to take the ERROR that ends its connection.
const LAST_WORDS_GRACE: Duration = Duration::from_secs(3);
/// How long a client has to end its side after we ended ours.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Most bytes of it that are read meanwhile.
const DISCARD_MAX: usize = 1024 * 1024;
