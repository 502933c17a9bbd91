//! A connection for lookups: the gateway answers it.
//!
//! Owns the client's socket and a pool of broker connections that carry the client's credentials, so brokers authorise each
//! client's lookups. Requests are answered side by side, as many as [`IN_FLIGHT_MAX`]; beyond that, and while the client does
//! not read its answers, nothing more is read from it.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, split};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, timeout};
use tracing::debug;

use super::state::ConnectRequest;
use super::{asked_to_leave, pass_on_and_close, refuse};
use crate::client::{BackoffPolicy, BrokerPool, ConnectError, ConnectionOptions, PoolError};
use crate::gateway::Shared;
use crate::gateway::resolver::Resolver;
use crate::gateway::stats::{EndReason, LookupRequest};
use crate::net::outbound::{self, OutboundLimits};
use crate::net::{FrameReader, Outbound, Outgoing, ReadError};
use crate::protocol::command::{Command, name_of};
use crate::protocol::frame::{Frame, FrameLimits};
use crate::protocol::proto::pulsar::{
    CommandConnected, CommandPing, CommandPong, FeatureFlags, ServerError,
};
use crate::protocol::server_error::{CONNECTION_REQUEST_ID, UserFacingError, error_command};
use crate::protocol::version;

/// Connects to a broker on behalf of the client, answers its CONNECT, and then its requests until the connection ends.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    client: FrameReader<TcpStream>,
    request: ConnectRequest,
) -> EndReason {
    let (mut client, early) = client.into_parts();
    let brokers = BrokerPool::new(
        shared.settings.broker.clone(),
        request.connect.clone(),
        connection_options(shared),
        SPARE_FAILED_BROKERS,
    );
    let limit = shared.handshake_timeout();
    let connected = match timeout(limit, brokers.any()).await {
        Ok(Ok((_, broker))) => connected(broker.connected(), &request),
        Ok(Err(PoolError::Connect { error, .. }))
            if matches!(*error, ConnectError::Refused { .. }) =>
        {
            if let ConnectError::Refused { frame, .. } = error.as_ref() {
                pass_on_and_close(&mut client, frame).await;
            }
            return EndReason::BrokerRefused;
        }
        Ok(Err(error)) => {
            debug!("no broker for a lookup connection: {error}");
            refuse(&mut client, &NoBroker).await;
            return EndReason::BrokerUnreachable;
        }
        Err(_) => {
            refuse(&mut client, &NoBroker).await;
            return EndReason::BrokerUnreachable;
        }
    };
    let (read, write) = split(client);
    let limits = FrameLimits::for_max_message_size(shared.settings.max_message_size);
    let reader = FrameReader::new(Cursor::new(early).chain(read), limits);
    let (outbound, writer) = outbound::channel(OutboundLimits::default());
    let mut lookups = Lookups {
        resolver: Resolver::new(Arc::clone(shared), brokers),
        outbound,
        in_flight: JoinSet::new(),
        heard: true,
    };
    let mut writing = JoinSet::new();
    writing.spawn(writer.run(write));
    let reason = match lookups.send(&connected) {
        Ok(()) => tokio::select! {
            biased;
            () = asked_to_leave(shared) => EndReason::Drained,
            // The writer ends only when the socket fails: nobody has closed the lanes yet.
            _ = writing.join_next() => EndReason::Io,
            reason = lookups.run(reader, shared.settings.keep_alive_interval) => reason,
        },
        Err(reason) => reason,
    };
    lookups.finish().await;
    let _ = timeout(FLUSH_GRACE, writing.join_next()).await;
    reason
}

struct Lookups {
    resolver: Resolver,
    outbound: Outbound,
    in_flight: JoinSet<()>,
    /// A frame came since the last PING.
    heard: bool,
}

impl Lookups {
    async fn run<R: AsyncRead + Unpin>(
        &mut self,
        mut reader: FrameReader<R>,
        keep_alive: Option<Duration>,
    ) -> EndReason {
        let period = keep_alive.unwrap_or(NO_KEEP_ALIVE);
        let mut ticks = interval_at(Instant::now() + period, period);
        loop {
            let reading =
                self.in_flight.len() < IN_FLIGHT_MAX && self.outbound.queued_bytes() < QUEUED_MAX;
            tokio::select! {
                biased;
                Some(_) = self.in_flight.join_next() => {}
                _ = ticks.tick(), if keep_alive.is_some() => {
                    // Who is not read from cannot be heard.
                    if reading && !std::mem::take(&mut self.heard) {
                        return EndReason::Timeout;
                    }
                    if let Err(reason) = self.send_urgent(&Command::Ping(CommandPing::default())) {
                        return reason;
                    }
                }
                ready = self.outbound.ready(), if !reading && self.in_flight.len() < IN_FLIGHT_MAX => {
                    if ready.is_err() {
                        return EndReason::Io;
                    }
                }
                frame = reader.next(), if reading => {
                    self.heard = true;
                    let step = match frame {
                        Ok(Some(frame)) => self.on_frame(&frame),
                        Ok(None) => Err(EndReason::Closed),
                        Err(ReadError::Io(_)) => Err(EndReason::Io),
                        Err(error) => {
                            debug!("lookup connection: {error}");
                            Err(EndReason::ClientProtocol)
                        }
                    };
                    if let Err(reason) = step {
                        return reason;
                    }
                }
            }
        }
    }

    fn on_frame(&mut self, frame: &Frame) -> Result<(), EndReason> {
        let command = Command::decode(&frame.command).map_err(|error| {
            debug!("lookup connection: {error}");
            EndReason::ClientProtocol
        })?;
        let request = match &command {
            Command::Ping(_) => return self.send_urgent(&Command::Pong(CommandPong::default())),
            Command::Pong(_) => return Ok(()),
            Command::Lookup(_) => LookupRequest::Lookup,
            Command::PartitionedMetadata(_) => LookupRequest::PartitionedMetadata,
            Command::GetTopicsOfNamespace(_) => LookupRequest::TopicsOfNamespace,
            Command::GetSchema(_) => LookupRequest::Schema,
            Command::AuthResponse(_) => {
                self.send(&error_command(CONNECTION_REQUEST_ID, &NobodyAsked))?;
                return Err(EndReason::ClientProtocol);
            }
            other => return self.refuse_command(other),
        };
        let Some(request_id) = command.request_id() else {
            return Err(EndReason::ClientProtocol);
        };
        let (resolver, outbound) = (self.resolver.clone(), self.outbound.clone());
        // Its frame shares the read buffer with others that may live shorter.
        let command = Bytes::copy_from_slice(&frame.command);
        self.in_flight.spawn(async move {
            let answer = resolver.answer(request, command, request_id).await;
            let answer = Frame {
                command: answer,
                payload: Bytes::new(),
            };
            if let Err(error) = outbound.send(Outgoing::Frame(answer)) {
                debug!("an answer is lost with its connection: {error}");
                outbound.close_after_flush();
            }
        });
        Ok(())
    }

    /// A command that belongs on a direct connection. With a request id it gets an answer; without one there is nothing to
    /// answer it by, and it could only be lost.
    fn refuse_command(&mut self, command: &Command) -> Result<(), EndReason> {
        match command.request_id() {
            Some(request_id) if !matches!(command, Command::Connect(_)) => {
                self.send(&error_command(
                    request_id,
                    &NotOnLookupConnection(name_of(command.command_type())),
                ))
            }
            _ => Err(EndReason::ClientProtocol),
        }
    }

    fn send(&self, command: &Command) -> Result<(), EndReason> {
        self.outbound
            .send(Outgoing::Command(command))
            .map_err(|_| EndReason::SlowReader)
    }

    fn send_urgent(&self, command: &Command) -> Result<(), EndReason> {
        self.outbound
            .send_urgent(Outgoing::Command(command))
            .map_err(|_| EndReason::SlowReader)
    }

    /// Gives the requests in flight a moment to be answered.
    async fn finish(&mut self) {
        let answered = async { while self.in_flight.join_next().await.is_some() {} };
        if timeout(ANSWERS_GRACE, answered).await.is_err() {
            self.in_flight.shutdown().await;
        }
        self.outbound.close_after_flush();
    }
}

fn connection_options(shared: &Shared) -> ConnectionOptions {
    let settings = &shared.settings;
    ConnectionOptions {
        connect_timeout: if settings.broker_connect_timeout.is_zero() {
            shared.handshake_timeout()
        } else {
            settings.broker_connect_timeout
        },
        keep_alive_interval: settings.keep_alive_interval,
        frame_limits: FrameLimits::for_max_message_size(settings.max_message_size),
        max_in_flight: IN_FLIGHT_MAX,
        ..ConnectionOptions::default()
    }
}

/// The CONNECTED of a lookup connection: what the broker can, less what needs a connection of the client's own to it.
fn connected(broker: &CommandConnected, request: &ConnectRequest) -> Command {
    let asked = request.connect.protocol_version.unwrap_or(0);
    let offered = broker.protocol_version.unwrap_or(0);
    Command::Connected(CommandConnected {
        server_version: broker.server_version.clone(),
        protocol_version: Some(offered.min(asked).min(version::CURRENT)),
        max_message_size: broker.max_message_size,
        feature_flags: broker.feature_flags.map(|flags| FeatureFlags {
            supports_topic_watchers: Some(false),
            ..flags
        }),
    })
}

#[derive(Debug)]
struct NoBroker;

impl UserFacingError for NoBroker {
    fn code(&self) -> ServerError {
        ServerError::ServiceNotReady
    }

    fn retryable(&self) -> bool {
        true
    }

    fn client_message(&self) -> String {
        "No active broker is available".to_owned()
    }
}

#[derive(Debug)]
struct NobodyAsked;

impl UserFacingError for NobodyAsked {
    fn code(&self) -> ServerError {
        ServerError::AuthenticationError
    }

    fn retryable(&self) -> bool {
        false
    }

    fn client_message(&self) -> String {
        "Unable to handleAuthResponse".to_owned()
    }
}

#[derive(Debug)]
struct NotOnLookupConnection(&'static str);

impl UserFacingError for NotOnLookupConnection {
    fn code(&self) -> ServerError {
        ServerError::NotAllowedError
    }

    fn retryable(&self) -> bool {
        false
    }

    fn client_message(&self) -> String {
        format!(
            "{} needs a connection to a broker: connect with proxy_to_broker_url",
            self.0
        )
    }
}

/// How long a broker that failed is left alone: long enough not to hammer it, short enough to be back soon after it is.
const SPARE_FAILED_BROKERS: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(100),
    max: Duration::from_secs(2),
    jitter: 0.2,
    deadline: None,
};
/// Requests of one client that are answered at a time.
const IN_FLIGHT_MAX: usize = 1024;
/// Bytes of answers that a client may leave unread before nothing more is read from it.
const QUEUED_MAX: usize = 512 * 1024;
/// Period of the keep-alive ticks where there is no keep-alive; they do nothing.
const NO_KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// How long requests in flight may still be answered when the connection ends.
const ANSWERS_GRACE: Duration = Duration::from_millis(500);
/// How long the client has to take the last bytes.
const FLUSH_GRACE: Duration = Duration::from_secs(1);
