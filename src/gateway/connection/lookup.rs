//! A connection for lookups: the gateway answers it.
//!
//! Owns the client's socket. Its broker connections (`pools`) carry what the client says of itself, its credentials included, so brokers
//! authorise each client's lookups. Requests are answered side by side, as many as [`IN_FLIGHT_MAX`]; beyond that, and while the client does
//! not read its answers, the next request waits and nothing behind it is read. PING before it is answered all the same: a client that
//! takes its answers slowly must not find the gateway dead.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, split};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tracing::debug;

use super::renewal::{Due, Renewal};
use super::state::{ConnectRequest, Credential, Refusal, challenge};
use super::{
    HANDSHAKE_FRAME_MAX, PROXY_VERSION, Peer, asked_to_leave, check, pass_on_and_close, reached,
    refuse,
};
use crate::auth::{self, AuthenticationError, Principal};
use crate::client::{ConnectError, ConnectionOptions, PoolError};
use crate::gateway::Shared;
use crate::gateway::introduction::Current;
use crate::gateway::resolver::{Answer, Resolver};
use crate::gateway::stats::{EndReason, LookupRequest};
use crate::gateway::upstream::HandshakeError;
use crate::net::outbound::{self, OutboundLimits};
use crate::net::{FrameReader, Outbound, OutboundError, Outgoing, ReadError, ServerStream};
use crate::protocol::command::{Command, CommandError, name_of};
use crate::protocol::frame::{Frame, FrameLimits};
use crate::protocol::proto::pulsar::base_command::Type;
use crate::protocol::proto::pulsar::{
    CommandConnected, CommandPing, CommandPong, FeatureFlags, ServerError,
};
use crate::protocol::rewrite;
use crate::protocol::server_error::{CONNECTION_REQUEST_ID, UserFacingError, error_command};
use crate::protocol::version;

/// Connects to a broker on behalf of the client, answers its CONNECT, and then its requests until the connection ends.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    client: FrameReader<ServerStream>,
    request: ConnectRequest,
    peer: Peer,
) -> EndReason {
    let (mut client, early) = client.into_parts();
    let mut credential = ClientCredential::new(shared, &request, peer);
    let introduction =
        shared
            .introductions
            .lookups(&request, credential.renews, credential.current.subscribe());
    let pools = shared.pools.pool_for(shared, introduction);
    let introduced = tokio::select! {
        biased;
        () = shared.draining.cancelled() => return EndReason::Drained,
        introduced = timeout(shared.handshake_timeout(), pools.current().0.brokers().any()) => introduced,
    };
    let connected = match introduced {
        Ok(Ok((_, broker))) => connected(broker.connected(), &request),
        Ok(Err(error)) => {
            return without_broker(shared, &mut client, &error).await;
        }
        Err(_) => {
            shared
                .notices
                .unreachable(&"no broker answered CONNECT in time");
            refuse(&mut client, &Trouble::NoBroker).await;
            return EndReason::BrokerUnreachable;
        }
    };
    let (read, write) = split(client);
    // What belongs here is as small as a CONNECT.
    let limits = FrameLimits {
        max_frame: HANDSHAKE_FRAME_MAX,
    };
    let mut reader = FrameReader::new(Cursor::new(early).chain(read), limits);
    let (outbound, writer) = outbound::channel(OutboundLimits::default());
    let mut lookups = Lookups {
        resolver: Resolver::new(Arc::clone(shared), pools),
        outbound,
        in_flight: JoinSet::new(),
        large: Arc::new(Semaphore::new(LARGE_IN_FLIGHT_MAX)),
        bytes: Arc::new(Semaphore::new(IN_FLIGHT_BYTES_MAX)),
        heard: true,
    };
    let mut writing = JoinSet::new();
    writing.spawn(writer.run(write));
    let reason = match lookups.send(&connected) {
        Ok(()) => tokio::select! {
            biased;
            () = asked_to_leave(shared) => EndReason::Drained,
            // The lanes are closed by nobody else: the socket failed.
            _ = writing.join_next() => EndReason::Io,
            reason = lookups.run(&mut reader, shared, &mut credential) => reason,
        },
        Err(reason) => reason,
    };
    lookups.finish().await;
    // Until the client ends its side as well: closing with its bytes unread would reset the connection under our last answers.
    let end = async {
        writing.join_next().await;
        while let Ok(Some(_)) = reader.next().await {}
    };
    let _ = timeout(FLUSH_GRACE, end).await;
    reason
}

struct Lookups {
    resolver: Resolver,
    outbound: Outbound,
    /// Each yields whether a broker refused the client meanwhile.
    in_flight: JoinSet<bool>,
    /// Places for requests whose answers may be megabytes.
    large: Arc<Semaphore>,
    /// One for each byte that the requests in flight may have.
    bytes: Arc<Semaphore>,
    /// A frame came since the last PING.
    heard: bool,
}

impl Lookups {
    async fn run<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut FrameReader<R>,
        shared: &Shared,
        credential: &mut ClientCredential,
    ) -> EndReason {
        let keep_alive = shared.settings.keep_alive_interval;
        let period = keep_alive.unwrap_or(NO_KEEP_ALIVE);
        let mut ticks = interval_at(Instant::now() + period, period);
        // After a stall of ours, ticks in a burst would find the client silent before it was read from.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut blocked_ticks, mut queued) = (0, 0);
        let mut waiting: Option<Frame> = None;
        loop {
            let room = self.outbound.is_ready();
            let may_ask = room
                && self.in_flight.len() < IN_FLIGHT_MAX
                && self.bytes.available_permits() >= HANDSHAKE_FRAME_MAX;
            if may_ask && let Some(frame) = waiting.take() {
                if let Err(reason) = self.on_frame(&frame) {
                    return reason;
                }
                continue;
            }
            tokio::select! {
                biased;
                Some(refused) = self.in_flight.join_next() => {
                    if refused.unwrap_or(false) {
                        return EndReason::BrokerRefused;
                    }
                }
                _ = ticks.tick(), if keep_alive.is_some() => {
                    // Who may not ask may have no reason to speak, but has to make room some day.
                    let before = std::mem::replace(&mut queued, self.outbound.queued_bytes());
                    blocked_ticks = if room || queued < before { 0 } else { blocked_ticks + 1 };
                    if blocked_ticks > BLOCKED_TICKS_MAX {
                        return EndReason::SlowReader;
                    }
                    if may_ask && !std::mem::take(&mut self.heard) {
                        return EndReason::Timeout;
                    }
                    if let Err(reason) = self.send_urgent(&Command::Ping(CommandPing::default())) {
                        return reason;
                    }
                }
                () = reached(credential.deadline()) => {
                    let step = match credential.on_time() {
                        None => Ok(()),
                        Some(question) => question.and_then(|question| self.send(&question)),
                    };
                    if let Err(reason) = step {
                        return reason;
                    }
                }
                ready = self.outbound.ready(), if !room => {
                    if ready.is_err() {
                        return EndReason::Io;
                    }
                }
                frame = reader.next(), if waiting.is_none() => {
                    self.heard = true;
                    let step = match frame {
                        Ok(Some(frame)) if credential.is_answer(&frame) => {
                            self.renew(shared, credential, &frame).await
                        }
                        Ok(Some(frame)) if may_ask || is_keep_alive(&frame) => self.on_frame(&frame),
                        Ok(Some(frame)) => {
                            waiting = Some(frame);
                            Ok(())
                        }
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
        let malformed = |error: CommandError| {
            debug!("lookup connection: {error}");
            EndReason::ClientProtocol
        };
        let command_type = Command::peek_type(&frame.command).map_err(malformed)?;
        let request = match Type::try_from(command_type) {
            Ok(Type::Ping) => {
                return self.send_urgent(&Command::Pong(CommandPong::default()));
            }
            Ok(Type::Pong) => return Ok(()),
            Ok(Type::Lookup) => LookupRequest::Lookup,
            Ok(Type::PartitionedMetadata) => LookupRequest::PartitionedMetadata,
            Ok(Type::GetTopicsOfNamespace) => LookupRequest::TopicsOfNamespace,
            Ok(Type::GetSchema) => LookupRequest::Schema,
            Ok(Type::AuthResponse) => {
                self.send(&error_command(CONNECTION_REQUEST_ID, &Trouble::NobodyAsked))?;
                return Err(EndReason::ClientProtocol);
            }
            _ => return self.refuse_command(command_type, &frame.command),
        };
        let command = Command::decode(&frame.command).map_err(malformed)?;
        let Some(request_id) = command.request_id() else {
            return Err(EndReason::ClientProtocol);
        };
        let (resolver, outbound) = (self.resolver.clone(), self.outbound.clone());
        let large = request.may_be_large().then(|| Arc::clone(&self.large));
        // There are enough of them for the largest frame whenever something may be asked.
        let len = u32::try_from(frame.command.len()).unwrap_or(u32::MAX);
        let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(len).ok();
        // Its frame shares the read buffer with others that may live shorter.
        let command = Bytes::copy_from_slice(&frame.command);
        self.in_flight.spawn(async move {
            let _bytes = bytes;
            let _place = match large {
                Some(large) => large.acquire_owned().await.ok(),
                None => None,
            };
            // Nothing is asked for that the client has no room for yet.
            if outbound.ready().await.is_err() {
                return false;
            }
            match resolver.answer(request, command, request_id).await {
                Some(Answer { command, room }) => {
                    deliver(&outbound, command).await;
                    if let Some(room) = room {
                        // It is here until the client has taken it.
                        let _ = outbound.ready().await;
                        drop(room);
                    }
                    false
                }
                // A broker that took this client's credential takes it no more. An answer would be final for the client, while
                // the end of the connection makes it come back, with another credential if it has one.
                None => true,
            }
        });
        Ok(())
    }

    /// Takes the client's answer to our question for a new credential.
    async fn renew(
        &self,
        shared: &Shared,
        credential: &mut ClientCredential,
        frame: &Frame,
    ) -> Result<(), EndReason> {
        let Err(error) = credential.renew(shared, frame).await else {
            return Ok(());
        };
        shared
            .notices
            .unauthenticated(&format_args!("{}: {error}", credential.peer.address));
        let (refusal, reason) = match error {
            RenewalError::Authentication(AuthenticationError::Busy) => {
                (Refusal::Busy, EndReason::Timeout)
            }
            _ => (Refusal::Unauthenticated, EndReason::AuthenticationFailed),
        };
        self.send(&error_command(CONNECTION_REQUEST_ID, &refusal))?;
        Err(reason)
    }

    /// A command that belongs on a direct connection. With a request id it gets an answer; without one there is nothing to
    /// answer it by, and it could only be lost. Not decoded: nobody here has a use for what it says.
    fn refuse_command(&mut self, command_type: i32, command: &[u8]) -> Result<(), EndReason> {
        match rewrite::request_id_of(command) {
            Some(request_id) => self.send(&error_command(
                request_id,
                &Trouble::NotHere(name_of(command_type)),
            )),
            None => Err(EndReason::ClientProtocol),
        }
    }

    fn send(&self, command: &Command) -> Result<(), EndReason> {
        self.outbound
            .send(Outgoing::Command(command))
            .map_err(|_| EndReason::SlowReader)
    }

    /// PING and PONG. When as many as the lane holds are waiting, one more says nothing new.
    fn send_urgent(&self, command: &Command) -> Result<(), EndReason> {
        match self.outbound.send_urgent(Outgoing::Command(command)) {
            Ok(()) | Err(OutboundError::Full) => Ok(()),
            Err(OutboundError::Closed) => Err(EndReason::Io),
        }
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

/// Whether it is PING or PONG, which need no room.
fn is_keep_alive(frame: &Frame) -> bool {
    let command_type = Command::peek_type(&frame.command).map(Type::try_from);
    matches!(command_type, Ok(Ok(Type::Ping | Type::Pong)))
}

/// What this client says who it is, from its CONNECT on.
struct ClientCredential {
    /// `None`: nobody looks at its end.
    renewal: Option<Renewal>,
    /// Whether it is asked for another one in time.
    renews: bool,
    /// The newest, for those that speak for it to brokers.
    current: watch::Sender<Current>,
    protocol_version: Option<i32>,
    peer: Peer,
}

/// Why a new credential is not taken.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error("the answer to the challenge has no credential")]
    Empty,
    #[error("the new credential is of another role")]
    OtherRole,
    #[error(transparent)]
    Authentication(#[from] AuthenticationError),
}

impl ClientCredential {
    fn new(shared: &Shared, request: &ConnectRequest, peer: Peer) -> Self {
        let interval = shared.settings.authentication.refresh_check;
        let renews = interval.is_some() && shared.introductions.renews(request);
        let client = request.client.as_ref();
        let principal = client.map(|client| &client.identity.authenticated);
        let renewal = interval
            .and_then(|interval| Some(Renewal::new(principal?, renews.then_some(interval))));
        let current = Current {
            credential: client.and_then(|client| client.credential.clone()),
            expires_at: principal.and_then(|principal| principal.expires_at),
        };
        Self {
            renewal,
            renews,
            current: watch::Sender::new(current),
            protocol_version: request.connect.protocol_version,
            peer,
        }
    }

    /// When something has to be done.
    fn deadline(&self) -> Option<auth::UnixTime> {
        self.renewal.as_ref()?.deadline()
    }

    /// The question to the client that is due now, or the end of its connection.
    fn on_time(&mut self) -> Option<Result<Command, EndReason>> {
        let due = self.renewal.as_mut()?.on_time(auth::clock::now())?;
        Some(match due {
            Due::Ask => {
                let question = Bytes::from_static(auth::REFRESH);
                Ok(challenge(
                    PROXY_VERSION,
                    &self.method(),
                    question,
                    self.protocol_version,
                ))
            }
            Due::Close => Err(EndReason::CredentialExpired),
        })
    }

    fn method(&self) -> String {
        let current = self.current.borrow();
        let credential = current.credential.as_ref();
        credential.map_or_else(String::new, |credential| credential.method.clone())
    }

    /// Whether this frame answers our question.
    fn is_answer(&self, frame: &Frame) -> bool {
        let asked = self.renewal.as_ref().is_some_and(Renewal::is_asked);
        asked && Command::peek_type(&frame.command).ok() == Some(Type::AuthResponse as i32)
    }

    async fn renew(&mut self, shared: &Shared, frame: &Frame) -> Result<(), RenewalError> {
        let credential = match Command::decode(&frame.command) {
            Ok(Command::AuthResponse(response)) => {
                Credential::of_response(response, &self.method())
            }
            _ => None,
        };
        let credential = credential.ok_or(RenewalError::Empty)?;
        let principal = self.check(shared, &credential).await?;
        let renewal = self.renewal.as_mut().ok_or(RenewalError::Empty)?;
        if !renewal.on_renewed(&principal) {
            return Err(RenewalError::OtherRole);
        }
        self.current.send_replace(Current {
            credential: Some(credential),
            expires_at: principal.expires_at,
        });
        Ok(())
    }

    async fn check(
        &self,
        shared: &Shared,
        credential: &Credential,
    ) -> Result<Principal, AuthenticationError> {
        let service = shared.authentication.as_ref();
        let service = service.ok_or(AuthenticationError::Interrupted)?;
        // As long as for the credential of a CONNECT: nothing else of this client is done meanwhile.
        let within = shared.handshake_timeout();
        match check(shared, service, credential, &self.peer, within).await? {
            auth::Step::Done(principal) => Ok(principal),
            auth::Step::Challenge(_) => Err(AuthenticationError::Exchange),
        }
    }
}

/// Sends an answer as soon as the client has room for it.
async fn deliver(outbound: &Outbound, command: Bytes) {
    let frame = Frame {
        command,
        payload: Bytes::new(),
    };
    loop {
        match outbound.send(Outgoing::Frame(frame.clone())) {
            Err(OutboundError::Full) if outbound.ready().await.is_ok() => {}
            // Sent, or lost with its connection.
            _ => return,
        }
    }
}

/// Tells the client why no broker can be asked for it.
async fn without_broker(
    shared: &Shared,
    client: &mut ServerStream,
    error: &PoolError,
) -> EndReason {
    if let PoolError::Connect { error, .. } = error {
        match error.as_ref() {
            ConnectError::Refused { frame, .. } => {
                if shared.introductions.has_own() {
                    shared.notices.refused_by_broker(error);
                }
                pass_on_and_close(client, frame).await;
                return EndReason::BrokerRefused;
            }
            ConnectError::Credential(_) => {
                shared.notices.own_credential(error);
                refuse(client, &HandshakeError::NoCredential).await;
                return EndReason::GatewayCredential;
            }
            ConnectError::ChallengeUnsupported => {
                refuse(client, &Trouble::ChallengeUnsupported).await;
                return EndReason::BrokerRefused;
            }
            _ => {}
        }
    }
    shared.notices.unreachable(error);
    refuse(client, &Trouble::NoBroker).await;
    EndReason::BrokerUnreachable
}

/// How brokers are connected for lookups.
pub(in crate::gateway) fn connection_options(shared: &Shared) -> ConnectionOptions {
    let settings = &shared.settings;
    ConnectionOptions {
        connect_timeout: shared.connect_timeout(),
        // A broker that takes the connection and says nothing must leave time for another one.
        handshake_timeout: BROKER_ANSWER_TIMEOUT.min(shared.handshake_timeout() / 3),
        request_timeout: BROKER_ANSWER_TIMEOUT,
        keep_alive_interval: settings.keep_alive_interval,
        frame_limits: FrameLimits::for_max_message_size(settings.max_message_size),
        max_in_flight: IN_FLIGHT_MAX,
        allowed: Some(shared.address_check()),
        tracker: shared.connections.clone(),
        tls: shared.tls.brokers.clone(),
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

/// What the gateway itself has to tell a client of a lookup connection.
#[derive(Debug)]
enum Trouble {
    NoBroker,
    ChallengeUnsupported,
    NobodyAsked,
    /// The command belongs on a direct connection.
    NotHere(&'static str),
}

impl UserFacingError for Trouble {
    fn code(&self) -> ServerError {
        match self {
            Self::NoBroker => ServerError::ServiceNotReady,
            Self::ChallengeUnsupported | Self::NobodyAsked => ServerError::AuthenticationError,
            Self::NotHere(_) => ServerError::NotAllowedError,
        }
    }

    fn retryable(&self) -> bool {
        matches!(self, Self::NoBroker)
    }

    fn client_message(&self) -> String {
        match self {
            Self::NoBroker => "No active broker is available".to_owned(),
            Self::ChallengeUnsupported => {
                "Authentication in several steps is not supported for lookups through this gateway"
                    .to_owned()
            }
            Self::NobodyAsked => "Unable to handleAuthResponse".to_owned(),
            Self::NotHere(command) => {
                format!(
                    "{command} needs a connection to a broker: connect with proxy_to_broker_url"
                )
            }
        }
    }
}

/// Requests of one client that are answered at a time.
const IN_FLIGHT_MAX: usize = 1024;
/// Bytes that they may have together, so that large ones are few.
const IN_FLIGHT_BYTES_MAX: usize = 1024 * 1024;
/// Requests of one client at a time whose answers may be megabytes: topics of a namespace and schemas.
const LARGE_IN_FLIGHT_MAX: usize = 4;
/// How long a broker may take to answer before another one is asked: two of them are within the time that clients wait.
const BROKER_ANSWER_TIMEOUT: Duration = Duration::from_secs(12);
/// Keep-alive intervals that a client may take to make room for its answers.
const BLOCKED_TICKS_MAX: u32 = 2;
/// Period of the keep-alive ticks where there is no keep-alive; they do nothing.
const NO_KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// How long requests in flight may still be answered when the connection ends.
const ANSWERS_GRACE: Duration = Duration::from_millis(500);
/// How long the client has to take the last bytes.
const FLUSH_GRACE: Duration = Duration::from_secs(1);
