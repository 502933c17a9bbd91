//! The protocol-aware TCP gateway in front of a cluster of Pulsar brokers.
//!
//! Clients connect here as they would to a broker. A connection whose CONNECT names no broker is for lookups: the gateway asks
//! a broker, follows redirects itself, and answers. A connection that names a broker is relayed to it, bytes unchanged
//! (`forward`). Never keeps a message, never parses a payload, never connects to a host that no broker named
//! (`policy`). Start at [`Gateway`], then `connection`.

mod connection;
mod forward;
#[cfg(test)]
mod forward_tests;
mod health;
mod inspect;
mod notices;
mod policy;
mod rates;
mod resolver;
mod stats;
mod topics;
mod upstream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use self::health::BrokerHealth;
use self::notices::Notices;
use self::policy::TargetPolicy;
pub use self::rates::ConnectionStats;
use self::stats::{EndReason, GatewayMetrics};
pub use self::topics::TopicStats;
use crate::client::AddressCheck;
use crate::config::GatewaySettings;
use crate::http::{Phase, Phases};
use crate::naming::BrokerAddress;
use crate::net::{Admission, Listener, ListenerLimits, RejectReason};
use crate::protocol::proto::pulsar::ServerError;
use crate::protocol::server_error::UserFacingError;
use crate::telemetry::{MetricError, MetricRegistry};

/// A gateway that listens; [`run`](Self::run) serves.
#[derive(Debug)]
pub struct Gateway {
    listener: Listener,
    local_addr: SocketAddr,
    shared: Arc<Shared>,
    phases: Phases,
}

/// A gateway as the health endpoints and the composition root see it.
#[derive(Debug, Clone)]
pub struct GatewayHandle {
    shared: Arc<Shared>,
    local_addr: SocketAddr,
}

impl GatewayHandle {
    /// The address that clients connect to, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Whether clients can be served: a configured broker answered lately.
    pub fn is_ready(&self) -> bool {
        self.shared.health.is_reachable()
    }

    /// The relays that are open, in no order.
    pub fn connections(&self) -> Vec<ConnectionStats> {
        self.shared.metrics.relays.stats()
    }

    /// The topics that have metrics of their own, in no order.
    pub fn topics(&self) -> Vec<TopicStats> {
        self.shared.metrics.topics.stats()
    }

    /// Whether a host name, in lower case, is that of a broker: a configured one, one that a broker named, or one that
    /// `brokerProxyAllowedHostNames` allows.
    pub fn knows_broker_host(&self, host: &str) -> bool {
        self.shared.policy.knows_host(host)
    }
}

/// What all connections of a gateway share.
#[derive(Debug)]
pub(crate) struct Shared {
    settings: GatewaySettings,
    policy: Arc<TargetPolicy>,
    metrics: GatewayMetrics,
    /// Lookups in flight, process-wide: a permit is held until the answer is there.
    lookups: Semaphore,
    /// Cancelled when connections have to leave.
    draining: CancellationToken,
    /// All tasks of connections, those of their broker connections included.
    connections: TaskTracker,
    health: BrokerHealth,
    notices: Notices,
    next_broker: AtomicUsize,
    next_turn: AtomicU32,
    /// Bounds the connections that are being refused.
    refusals: Arc<Semaphore>,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The settings turn the binary port off.
    #[error("servicePort is not set: there is nothing to listen on")]
    NoPort,
    /// A metric name is taken.
    #[error(transparent)]
    Metric(#[from] MetricError),
}

impl Gateway {
    /// Binds the listener of the binary protocol and registers the metrics. Nothing is accepted before [`run`](Self::run).
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn bind(
        settings: GatewaySettings,
        registry: &MetricRegistry,
        phases: Phases,
    ) -> Result<Self, StartError> {
        let port = settings.service_port.ok_or(StartError::NoPort)?;
        let policy = Arc::new(TargetPolicy::new(&settings));
        let metrics = GatewayMetrics::register(registry, settings.max_tracked_topics)?;
        let address = SocketAddr::new(settings.bind_address, port);
        let limits = ListenerLimits {
            max_connections: settings.max_connections,
            max_per_ip: settings.max_connections_per_ip,
        };
        let listener =
            Listener::bind(address, limits).map_err(|error| StartError::Listen(address, error))?;
        let local_addr = listener
            .local_addr()
            .map_err(|error| StartError::Listen(address, error))?;
        let lookups = Semaphore::new(settings.max_lookups.min(Semaphore::MAX_PERMITS));
        Ok(Self {
            listener,
            local_addr,
            shared: Arc::new(Shared {
                settings,
                policy,
                metrics,
                lookups,
                draining: CancellationToken::new(),
                connections: TaskTracker::new(),
                health: BrokerHealth::default(),
                notices: Notices::new(),
                next_broker: AtomicUsize::new(0),
                next_turn: AtomicU32::new(0),
                refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            }),
            phases,
        })
    }

    /// What others may see of this gateway, also after [`run`](Self::run) took it.
    pub fn handle(&self) -> GatewayHandle {
        GatewayHandle {
            shared: Arc::clone(&self.shared),
            local_addr: self.local_addr,
        }
    }

    /// Serves until the phase is `Draining`; then asks the connections to leave, spread over up to half of the drain time, and
    /// returns when all have, or when the phase is `Stopped`: what is left then is cut. Not cancel-safe.
    pub async fn run(self) {
        let Self {
            listener,
            shared,
            phases,
            ..
        } = self;
        let mut probe = std::pin::pin!(health::probe(&shared));
        let mut sampler = std::pin::pin!(sample(&shared));
        let connections = shared.connections.clone();
        let cut = CancellationToken::new();
        loop {
            let admission = tokio::select! {
                biased;
                () = phases.reached(Phase::Draining) => break,
                never = &mut probe => match never {},
                never = &mut sampler => match never {},
                admission = listener.accept() => admission,
            };
            admit(&shared, &connections, &cut, admission);
        }
        drop(listener);
        info!(connections = connections.len(), "draining");
        shared.draining.cancel();
        connections.close();
        tokio::select! {
            biased;
            () = connections.wait() => {}
            () = phases.reached(Phase::Stopped) => {
                info!(connections = connections.len(), "cutting connections that did not leave in time");
                cut.cancel();
                connections.wait().await;
            }
        }
    }
}

/// Takes samples for the rates of relays and topics, for ever. Cancel-safe.
async fn sample(shared: &Shared) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(SAMPLE_PERIOD).await;
        shared.metrics.relays.sample(SAMPLE_PERIOD);
        shared.metrics.topics.sample(SAMPLE_PERIOD);
    }
}

/// Starts what an accepted connection needs.
fn admit(
    shared: &Arc<Shared>,
    connections: &TaskTracker,
    cut: &CancellationToken,
    admission: Admission,
) {
    let shared = Arc::clone(shared);
    let cut = cut.clone();
    match admission {
        Admission::Accepted {
            stream,
            peer,
            permit,
        } => {
            let active = shared.metrics.connection_opened();
            connections.spawn(async move {
                let metrics = Arc::clone(&shared);
                tokio::select! {
                    biased;
                    () = cut.cancelled() => metrics.metrics.connection_ended(EndReason::Drained),
                    reason = connection::serve(shared, stream, peer) => {
                        metrics.metrics.connection_ended(reason);
                        debug!(%peer, ?reason, "connection ended");
                    }
                }
                drop((active, permit));
            });
        }
        Admission::Rejected {
            mut stream,
            peer,
            reason,
        } => {
            shared.metrics.connection_rejected();
            let error = TooManyConnections(reason);
            shared
                .notices
                .rejected(&format_args!("{peer}: {}", error.client_message()));
            // More than these at a time are closed without an answer: refusing must stay cheaper than asking.
            if let Some(place) = shared.refusal_place() {
                connections.spawn(async move {
                    tokio::select! {
                        biased;
                        () = cut.cancelled() => {}
                        () = connection::refuse(&mut stream, &error) => {}
                    }
                    drop(place);
                });
            }
        }
    }
}

impl Shared {
    /// Longest time from accepting a connection to the end of its handshake: the keep-alive interval, as in Apache's proxy;
    /// bounded also where keep-alive is off.
    fn handshake_timeout(&self) -> Duration {
        self.settings
            .keep_alive_interval
            .unwrap_or(HANDSHAKE_TIMEOUT)
    }

    /// Over how long the connections leave when the gateway drains: half of the time, or less where the last of them would have
    /// no time left to end.
    fn drain_spread(&self) -> Duration {
        let window = self
            .settings
            .drain_timeout
            .saturating_sub(self.settings.not_ready_period);
        (window / 2).min(window.saturating_sub(forward::DRAIN_TIME + DRAIN_RESERVE))
    }

    /// Bound on opening a connection to a broker. Leaves time in the handshake to tell the client that it failed.
    fn connect_timeout(&self) -> Duration {
        let within_handshake = self.handshake_timeout().mul_f64(0.9);
        match self.settings.broker_connect_timeout {
            Duration::ZERO => within_handshake,
            limit => limit.min(within_handshake),
        }
    }

    /// The policy as the client module asks for it.
    fn address_check(&self) -> AddressCheck {
        let policy = Arc::clone(&self.policy);
        Arc::new(move |target, address| policy.allows_address(target, address))
    }

    /// A number from 0 to 1 for the next connection. In a row they lie evenly, however many are taken (multiples of the golden
    /// ratio), so connections that leave by it leave evenly.
    fn next_turn(&self) -> f64 {
        let turn = self.next_turn.fetch_add(GOLDEN_STEP, Ordering::Relaxed);
        f64::from(turn) / f64::from(u32::MAX)
    }

    /// The configured brokers, each time beginning with the next one.
    fn brokers_in_turn(&self) -> impl Iterator<Item = BrokerAddress> {
        let brokers = &self.settings.broker.addresses;
        let turn = self.next_broker.fetch_add(1, Ordering::Relaxed) % brokers.len().max(1);
        brokers
            .iter()
            .cycle()
            .skip(turn)
            .take(brokers.len())
            .cloned()
    }

    /// A place among the connections that are being refused, if there is one.
    fn refusal_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.refusals).try_acquire_owned().ok()
    }
}

/// The answer to a connection beyond a limit. NotAllowedError, so that clients do not come back in a tight loop.
#[derive(Debug)]
struct TooManyConnections(RejectReason);

impl UserFacingError for TooManyConnections {
    fn code(&self) -> ServerError {
        ServerError::NotAllowedError
    }

    fn retryable(&self) -> bool {
        false
    }

    fn client_message(&self) -> String {
        match self.0 {
            RejectReason::TooManyConnections => "Reached the maximum number of connections",
            RejectReason::TooManyFromIp => "Reached the maximum number of connections on address",
        }
        .to_owned()
    }
}

/// Time over which rates are taken.
const SAMPLE_PERIOD: Duration = Duration::from_secs(5);
/// Bound of a handshake where keep-alive is off.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// 2^32 divided by the golden ratio.
const GOLDEN_STEP: u32 = 2_654_435_769;
/// What is left of the drain time when the last connection has to be gone.
const DRAIN_RESERVE: Duration = Duration::from_millis(500);
/// Connections that are being refused at a time.
const REFUSALS_MAX: usize = 256;
