//! One client connection: the handshake decides what it is, then a relay or the lookup loop runs it to its end.
//!
//! Owns the client's socket. The handshake is a future of its own that is gone before the long part starts, so that an idle
//! relayed pair does not carry its memory.

mod lookup;
mod renewal;
pub(crate) mod state;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::debug;

pub(super) use self::lookup::connection_options;
use self::state::{ConnectRequest, Credential, Handshake, Refusal, Rules, Step, Verdict};
use super::Shared;
use super::forward::{self, Passthrough, RelayContext, RelayError, Side};
use super::inspect::Inspector;
use super::introduction::IntroductionError;
use super::stats::EndReason;
use super::upstream::{self, DialError, HandshakeError, Outcome};
use crate::auth::{self, AuthenticationError, AuthenticationService, Presented, UnixTime};
use crate::client::ConnectError;
use crate::naming::BrokerAddress;
use crate::net::{FrameReader, ReadError, ServerStream, Stream, scratch};
use crate::protocol::command::Command;
use crate::protocol::frame::{Frame, FrameLimits};
use crate::protocol::proto::pulsar::ServerError;
use crate::protocol::server_error::{CONNECTION_REQUEST_ID, UserFacingError, error_command};

/// Who is at the other end of a client connection, below the protocol.
#[derive(Debug, Clone)]
struct Peer {
    address: SocketAddr,
    /// The certificate of the TLS handshake, in DER.
    certificate: Option<Arc<[u8]>>,
}

impl Peer {
    fn presented(&self) -> Presented<'_> {
        Presented {
            address: self.address,
            certificate: self.certificate.as_deref(),
        }
    }
}

/// What the handshake came to.
enum Decided {
    /// With what the end of the client's credential means for it.
    Relay(
        Box<Passthrough<ServerStream, Stream>>,
        Option<CredentialEnd>,
    ),
    Lookups(Box<(FrameReader<ServerStream>, ConnectRequest)>),
    Ended(EndReason),
}

/// What holds for a connection until its handshake is over.
#[derive(Debug)]
pub(crate) struct PendingHandshake {
    /// When it has to be over, TLS included.
    pub(crate) deadline: Instant,
    /// Its place among the connections whose handshake is not over, where these are bounded.
    pub(crate) place: Option<OwnedSemaphorePermit>,
}

/// Serves one client until its connection ends, and says why it ended. Ends early and in order when the gateway drains.
/// Not cancel-safe: dropping it cuts the connection.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    client: ServerStream,
    address: SocketAddr,
    pending: PendingHandshake,
) -> EndReason {
    let PendingHandshake { deadline, place } = pending;
    let peer = Peer {
        address,
        certificate: client.peer_certificate().map(Into::into),
    };
    let handshake = async {
        tokio::select! {
            biased;
            () = shared.draining.cancelled() => Decided::Ended(EndReason::Drained),
            decided = handshake(&shared, client, &peer, deadline) => decided,
        }
    };
    let decided = Box::pin(handshake).await;
    drop(place);
    match decided {
        Decided::Ended(reason) => {
            debug!(peer = %address, ?reason, "no handshake");
            reason
        }
        Decided::Relay(pair, end) => relay(&shared, *pair, address, end).await,
        Decided::Lookups(lookups) => {
            let (client, request) = *lookups;
            Box::pin(lookup::serve(&shared, client, request, peer)).await
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

/// Completes when this time has come; never without one. Cancel-safe.
async fn reached(time: Option<UnixTime>) {
    let Some(time) = time else {
        return std::future::pending().await;
    };
    loop {
        let left = time.saturating_since(auth::clock::now());
        if left.is_zero() {
            return;
        }
        // The system's clock may be set meanwhile.
        sleep(left.min(CLOCK_CHECK)).await;
    }
}

/// Relays a pair, until the client's credential ends where that has an end. One without TLS on either side is a relay of its own, which
/// has nothing to do with TLS.
async fn relay(
    shared: &Shared,
    pair: Passthrough<ServerStream, Stream>,
    client: SocketAddr,
    end: Option<CredentialEnd>,
) -> EndReason {
    let _broker = shared.metrics.broker_connected();
    let meter = shared
        .metrics
        .meter(client, pair.broker.socket().peer_addr().ok());
    let context = RelayContext {
        metrics: &meter,
        policy: &shared.policy,
        idle_timeout: shared.settings.broker_read_timeout,
    };
    let mut inspector = Inspector::new(Arc::clone(&shared.metrics.topics));
    if let Some(asked) = end.as_ref().and_then(|end| end.asked.clone()) {
        inspector = inspector.noting_challenges(asked);
    }
    let expired = AtomicBool::new(false);
    let leave = async {
        let Some(end) = &end else {
            return asked_to_leave(shared).await;
        };
        tokio::select! {
            biased;
            () = asked_to_leave(shared) => {}
            () = end.came() => expired.store(true, Ordering::Relaxed),
        }
    };
    let result = match pair.without_tls() {
        Ok(pair) => forward::relay(pair, inspector, context, leave).await,
        Err(pair) => Box::pin(forward::relay(*pair, inspector, context, leave)).await,
    };
    match result {
        Ok(()) if expired.load(Ordering::Relaxed) => EndReason::CredentialExpired,
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

impl Passthrough<ServerStream, Stream> {
    /// The bare sockets, where neither side has TLS.
    fn without_tls(self) -> Result<Passthrough<TcpStream, TcpStream>, Box<Self>> {
        match (self.client, self.broker) {
            (ServerStream::Plain(client), Stream::Plain(broker)) => Ok(Passthrough {
                client,
                broker,
                early_from_client: self.early_from_client,
                early_from_broker: self.early_from_broker,
                limits: self.limits,
            }),
            (client, broker) => Err(Box::new(Self {
                client,
                broker,
                early_from_client: self.early_from_client,
                early_from_broker: self.early_from_broker,
                limits: self.limits,
            })),
        }
    }
}

/// Reads up to the CONNECT and does what it asks for.
async fn handshake(
    shared: &Shared,
    client: ServerStream,
    peer: &Peer,
    deadline: Instant,
) -> Decided {
    let mut client = FrameReader::new(
        client,
        FrameLimits {
            max_frame: HANDSHAKE_FRAME_MAX,
        },
    );
    let rules = Rules {
        authenticates: shared.authentication.is_some(),
        trusted_proxy_roles: &shared.settings.authentication.trusted_proxy_roles,
    };
    let mut state = Handshake::new(PROXY_VERSION, rules);
    let mut challenge = None;
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
        let step = match state.on_frame(&frame) {
            Step::Check(credential) => {
                // Some of the time is left for telling the client that its turn did not come.
                let within = deadline
                    .saturating_duration_since(Instant::now())
                    .mul_f64(0.9);
                let checked = verdict(shared, &credential, peer, within, &mut challenge);
                match timeout_at(deadline, checked).await {
                    Ok(verdict) => state.on_checked(verdict),
                    Err(_) => return Decided::Ended(EndReason::Timeout),
                }
            }
            step => step,
        };
        match step {
            // A credential that was checked leads to something else.
            Step::Wait | Step::Check(_) => {}
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
            Step::Direct(..) if shared.settings.discovery.lookup_only => {
                refuse(client.get_mut(), &LookupOnly).await;
                return Decided::Ended(EndReason::Refused);
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
                return Decided::Ended(if refusal == Refusal::Unauthenticated {
                    EndReason::AuthenticationFailed
                } else {
                    EndReason::Refused
                });
            }
            Step::Close(violation) => {
                debug!("closed: {violation}");
                return Decided::Ended(EndReason::ClientProtocol);
            }
        }
    }
}

/// Finds out whose credential it is. `challenge` is the question that it answers, and then the next one.
async fn verdict(
    shared: &Shared,
    credential: &Credential,
    peer: &Peer,
    within: Duration,
    challenge: &mut Option<auth::Challenge>,
) -> Verdict {
    let Some(service) = &shared.authentication else {
        return Verdict::Refused;
    };
    let step = match challenge.take() {
        Some(asked) => service.respond(asked, &credential.data, auth::clock::now()),
        None => check(shared, service, credential, peer, within).await,
    };
    match step {
        Ok(auth::Step::Done(principal)) => Verdict::Good(principal),
        Ok(auth::Step::Challenge(next)) => {
            let data = next.data.clone();
            *challenge = Some(next);
            Verdict::Challenge(data)
        }
        Err(error) => {
            shared
                .notices
                .unauthenticated(&format_args!("{}: {error}", peer.address));
            if error == AuthenticationError::Busy {
                Verdict::Busy
            } else {
                Verdict::Refused
            }
        }
    }
}

/// Checks a credential; one that takes long, as a hashed password does, elsewhere than on the threads that serve everybody, and
/// only a few at a time. Its turn has to come `within` that time.
async fn check(
    shared: &Shared,
    service: &AuthenticationService,
    credential: &Credential,
    peer: &Peer,
    within: Duration,
) -> Result<auth::Step, AuthenticationError> {
    let now = auth::clock::now();
    if !service.is_costly(&credential.method, &credential.data) {
        return service.begin(&credential.method, &credential.data, &peer.presented(), now);
    }
    let (service, credential, peer) = (service.clone(), credential.clone(), peer.clone());
    let from = peer.address.ip();
    let check = move || service.begin(&credential.method, &credential.data, &peer.presented(), now);
    shared.check_costly(from, within, check).await
}

/// What a client that wants a relay asked for.
struct Asked {
    request: ConnectRequest,
    /// `None` is any broker.
    target: Option<BrokerAddress>,
    /// When the handshake has to be over.
    deadline: Instant,
}

/// How a relay ends because the client's credential does.
#[derive(Debug)]
struct CredentialEnd {
    at: UnixTime,
    /// Set when the broker asked the client for another credential: it looks at it itself then, and nothing is to be done. `None`:
    /// nobody but the gateway ends the relay.
    asked: Option<Arc<AtomicBool>>,
}

impl CredentialEnd {
    /// `None`: the credential's end is not that of the relay.
    fn of(shared: &Shared, request: &ConnectRequest) -> Option<Self> {
        let interval = shared.settings.authentication.refresh_check?;
        let client = request.client.as_ref()?;
        let expires_at = client.identity.authenticated.expires_at?;
        let introductions = &shared.introductions;
        if introductions.ends_at_expiry(client) || !introductions.renews(request) {
            return Some(Self {
                at: expires_at,
                asked: None,
            });
        }
        // Brokers that look at forwarded tokens do so every `authenticationRefreshCheckSeconds` of theirs.
        Some(Self {
            at: expires_at.checked_add(interval + interval.min(CHALLENGE_GRACE))?,
            asked: Some(Arc::default()),
        })
    }

    /// Completes when the relay has to end. Cancel-safe.
    async fn came(&self) {
        reached(Some(self.at)).await;
        if self
            .asked
            .as_ref()
            .is_some_and(|asked| asked.load(Ordering::Relaxed))
        {
            std::future::pending().await
        }
    }
}

/// Connects the client to the broker that it names.
async fn direct(shared: &Shared, mut client: FrameReader<ServerStream>, asked: Asked) -> Decided {
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
    let introduction = shared.introductions.direct(&asked.request);
    let introduction = timeout_at(asked.deadline, introduction).await;
    let introduction = match introduction.unwrap_or(Err(IntroductionError::TooLong)) {
        Ok(introduction) => introduction,
        Err(error) => {
            shared.notices.own_credential(&error);
            refuse(client.get_mut(), &HandshakeError::NoCredential).await;
            return Decided::Ended(EndReason::GatewayCredential);
        }
    };
    let limits = FrameLimits::for_max_message_size(shared.settings.max_message_size);
    let introduced = upstream::introduce(&mut client, broker, &introduction, limits);
    let error = match timeout_at(asked.deadline, introduced).await {
        Ok(Ok(Outcome::Accepted(broker))) => {
            let end = CredentialEnd::of(shared, &asked.request);
            return Decided::Relay(Box::new(broker.with_client(client)), end);
        }
        Ok(Ok(Outcome::Refused(why))) => {
            if introduction.own.is_some() {
                shared.notices.refused_by_broker(&why);
            }
            close(client.get_mut()).await;
            return Decided::Ended(EndReason::BrokerRefused);
        }
        Ok(Err(error)) => error,
        Err(_) => HandshakeError::BrokerSilent,
    };
    debug!("handshake with a broker failed: {error}");
    if let Some(error) = error.of_tls() {
        shared.notices.unreachable(&error);
    }
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
        HandshakeError::NoCredential | HandshakeError::Credential(_) => {
            shared.notices.own_credential(&error);
            EndReason::GatewayCredential
        }
        HandshakeError::BrokerSilent => EndReason::Timeout,
        HandshakeError::ClientClosed => EndReason::Closed,
        HandshakeError::ClientUnexpected(_) => EndReason::ClientProtocol,
    })
}

/// The first known broker, in turn, that takes a connection.
async fn any_broker(shared: &Shared) -> Result<Stream, DialError> {
    let mut last = DialError::from(ConnectError::DialTimeout(Duration::ZERO));
    for target in shared.brokers.in_turn() {
        match upstream::dial_chosen(shared, &target).await {
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
pub(super) async fn close<S: AsyncRead + AsyncWrite + Unpin>(client: &mut S) {
    let rest = async {
        // With TLS this has to write, too.
        if client.shutdown().await.is_err() {
            return;
        }
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

/// The answer to a CONNECT that names a broker where `lookupOnly` is on.
#[derive(Debug)]
struct LookupOnly;

impl UserFacingError for LookupOnly {
    fn code(&self) -> ServerError {
        ServerError::NotAllowedError
    }

    fn retryable(&self) -> bool {
        false
    }

    fn client_message(&self) -> String {
        "This service only answers lookups: connect to the broker itself".to_owned()
    }
}

/// Sends a command during a handshake, before either side has a writer of its own.
pub(super) async fn send<W: AsyncWrite + Unpin>(
    writer: &mut W,
    command: &Command,
) -> io::Result<()> {
    let mut bytes = BytesMut::new();
    command.encode(&mut bytes);
    writer.write_all(&bytes).await?;
    writer.flush().await
}

/// What brokers see as `CommandConnect.proxy_version`.
pub(crate) const PROXY_VERSION: &str = concat!("pulsegate-", env!("CARGO_PKG_VERSION"));
/// Largest frame before a CONNECT was seen: a credential fits many times, a flood of strangers costs little.
const HANDSHAKE_FRAME_MAX: usize = 64 * 1024;
/// Longest time without a look at the system's clock while a credential is good.
const CLOCK_CHECK: Duration = Duration::from_secs(3600);
/// How much later than its interval says a broker may ask a client for another credential.
const CHALLENGE_GRACE: Duration = Duration::from_secs(10);
/// How long a client has to take the ERROR that ends its connection.
const LAST_WORDS_GRACE: Duration = Duration::from_secs(3);
/// How long a client has to end its side after we ended ours.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Most bytes of it that are read meanwhile.
const DISCARD_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::duplex;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::testing::certificates::Authority;
    use crate::testing::tls::acceptor;

    #[tokio::test(start_paused = true)]
    async fn closing_a_connection_with_tls_is_bounded_when_its_client_takes_nothing() {
        let (client, server) = duplex(4096);
        let authority = Authority::new("ours");
        let accept = acceptor(&authority.sign(&["localhost"]), &[], None).accept(server);
        let mut roots = RootCertStore::empty();
        let issuer = CertificateDer::from_pem_slice(authority.pem().as_bytes());
        roots.add(issuer.unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connect = TlsConnector::from(Arc::new(config)).connect(name, client);
        let (server, client) = tokio::join!(accept, connect);
        let (mut server, _client) = (server.unwrap(), client.unwrap());
        let begun = Instant::now();
        // Not even a close_notify has room behind what the client has not read.
        close_behind(&mut server, &[0; 1024 * 1024]).await;
        assert_eq!(begun.elapsed(), LAST_WORDS_GRACE);
        close(&mut server).await;
        assert_eq!(begun.elapsed(), LAST_WORDS_GRACE + CLOSE_GRACE);
    }
}
