//! The protocol-aware TCP gateway in front of a cluster of Pulsar brokers.
//!
//! Clients connect here as they would to a broker. A connection whose CONNECT names no broker is for lookups: the gateway asks
//! a broker, follows redirects itself, and answers. A connection that names a broker is relayed to it, bytes unchanged
//! (`forward`). Never keeps a message, never parses a payload, never connects to a host that no broker named
//! (`policy`). Start at [`Gateway`], then `connection`.

mod accept;
mod answers;
mod checks;
mod connection;
mod discovery;
mod forward;
#[cfg(test)]
mod forward_tests;
mod health;
mod inspect;
mod introduction;
mod notices;
mod policy;
mod pools;
mod rates;
mod resolver;
mod stats;
mod tls;
mod topics;
mod upstream;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use self::answers::LargeAnswers;
use self::checks::CostlyChecks;
use self::discovery::Brokers;
use self::introduction::Introductions;
use self::notices::Notices;
use self::policy::TargetPolicy;
use self::pools::SharedPools;
pub use self::rates::ConnectionStats;
use self::stats::GatewayMetrics;
use self::tls::GatewayTls;
pub use self::tls::TlsStartError;
pub use self::topics::TopicStats;
use crate::auth::{AuthenticationError, AuthenticationService, Principal, SetupErrors};
use crate::client::{AddressCheck, Authentication, TlsSource};
use crate::config::GatewaySettings;
use crate::http::{Phase, Phases};
use crate::net::{Admission, Listener, ListenerLimits, TlsServerFiles};
use crate::telemetry::{MetricError, MetricRegistry};

/// A gateway that listens; [`run`](Self::run) serves.
#[derive(Debug)]
pub struct Gateway {
    ports: Ports<Listener>,
    addresses: Ports<SocketAddr>,
    shared: Arc<Shared>,
    phases: Phases,
}

/// Something of each port of the binary protocol that is on.
#[derive(Debug, Clone, Copy)]
struct Ports<T> {
    plain: Option<T>,
    tls: Option<T>,
}

/// A gateway as the health endpoints and the composition root see it.
#[derive(Debug, Clone)]
pub struct GatewayHandle {
    shared: Arc<Shared>,
    addresses: Ports<SocketAddr>,
}

impl GatewayHandle {
    /// The address that clients without TLS connect to, with the real port; `None` where that port is off.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.addresses.plain
    }

    /// The address that clients with TLS connect to, with the real port; `None` where that port is off.
    pub fn tls_local_addr(&self) -> Option<SocketAddr> {
        self.addresses.tls
    }

    /// TLS for the HTTPS port, where the settings have one.
    pub fn web_tls(&self) -> Option<Arc<TlsServerFiles>> {
        self.shared.tls.web.clone()
    }

    /// Who authenticates clients; `None`: nobody does.
    pub fn authentication(&self) -> Option<&AuthenticationService> {
        self.shared.authentication.as_ref()
    }

    /// Whether clients can be served: a known broker answered lately, and where brokers are discovered a list of them came.
    pub fn is_ready(&self) -> bool {
        self.shared.brokers.is_ready()
    }

    /// The relays that are open, in no order.
    pub fn connections(&self) -> Vec<ConnectionStats> {
        self.shared.metrics.relays.stats()
    }

    /// The topics that have metrics of their own, in no order.
    pub fn topics(&self) -> Vec<TopicStats> {
        self.shared.metrics.topics.stats()
    }

    /// Checks a credential that takes long for a client of this address: one of a few at a time, in turn with other addresses,
    /// where it holds nobody else up. [`AuthenticationError::Busy`] when its turn does not come in the time of a handshake.
    pub fn check_costly<F>(
        &self,
        from: IpAddr,
        check: F,
    ) -> impl Future<Output = Result<Principal, AuthenticationError>> + Send + 'static + use<F>
    where
        F: FnOnce() -> Result<Principal, AuthenticationError> + Send + 'static,
    {
        let shared = &self.shared;
        shared.check_costly(from, shared.handshake_timeout(), check)
    }

    /// How brokers are reached over TLS.
    pub fn broker_tls(&self) -> TlsSource {
        self.shared.tls.brokers.clone()
    }

    /// Base URLs of the HTTP service of discovered brokers, each time beginning with the next one.
    pub fn discovered_web_services(&self) -> Vec<String> {
        self.shared.brokers.web_in_turn()
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
    /// Who authenticates clients; `None`: nobody does.
    authentication: Option<AuthenticationService>,
    /// What brokers are told about clients.
    introductions: Introductions,
    /// The checks of credentials that take long.
    costly_checks: Arc<CostlyChecks>,
    /// Lookups in flight, process-wide: a permit is held until the answer is there.
    lookups: Semaphore,
    large_answers: LargeAnswers,
    /// Cancelled when connections have to leave.
    draining: CancellationToken,
    /// All tasks of connections, those of their broker connections included.
    connections: TaskTracker,
    brokers: Arc<Brokers>,
    /// Connections to brokers that clients share.
    pools: SharedPools,
    notices: Notices,
    next_turn: AtomicU32,
    /// Bounds the connections that are being refused.
    refusals: Arc<Semaphore>,
    /// Of these, those that need a TLS handshake first.
    tls_refusals: Arc<Semaphore>,
    /// Bounds the connections whose handshake is not over.
    unauthenticated: Option<Arc<Semaphore>>,
    tls: GatewayTls,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The settings turn both binary ports off.
    #[error("neither servicePort nor servicePortTls is set: there is nothing to listen on")]
    NoPort,
    /// A certificate, a key or trusted issuers cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsStartError),
    /// A metric name is taken.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// Clients cannot be authenticated as the settings say.
    #[error("authentication cannot be set up: {0}")]
    Authentication(#[from] SetupErrors),
}

impl Gateway {
    /// Reads certificates and keys, then binds the listeners of the binary protocol, and registers the metrics. Nothing is accepted
    /// before [`run`](Self::run).
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn bind(
        settings: GatewaySettings,
        registry: &MetricRegistry,
        phases: Phases,
    ) -> Result<Self, StartError> {
        if settings.service_port.is_none() && settings.tls.service_port.is_none() {
            return Err(StartError::NoPort);
        }
        let tls = GatewayTls::open(&settings.tls)?;
        let policy = Arc::new(TargetPolicy::new(&settings));
        let metrics = GatewayMetrics::register(registry, settings.max_tracked_topics)?;
        let authentication = settings
            .authentication
            .clients
            .as_ref()
            .map(|clients| AuthenticationService::new(clients, registry))
            .transpose()?;
        let introductions = Introductions::new(
            Authentication::of_settings(&settings.authentication.broker_credential),
            settings.authentication.forward_credentials,
        );
        let brokers = Arc::new(Brokers::new(&settings, Arc::clone(&policy), registry)?);
        let (ports, addresses) = bind_ports(&settings)?;
        tls.register(registry);
        let large_answers = LargeAnswers::new(settings.max_topic_list_bytes);
        let lookups = Semaphore::new(settings.max_lookups.min(Semaphore::MAX_PERMITS));
        let unauthenticated = settings
            .max_unauthenticated_connections
            .map(|max| Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))));
        Ok(Self {
            ports,
            addresses,
            shared: Arc::new(Shared {
                settings,
                policy,
                metrics,
                authentication,
                introductions,
                costly_checks: Arc::default(),
                lookups,
                large_answers,
                draining: CancellationToken::new(),
                connections: TaskTracker::new(),
                brokers,
                pools: SharedPools::new(),
                notices: Notices::new(),
                next_turn: AtomicU32::new(0),
                refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
                tls_refusals: Arc::new(Semaphore::new(TLS_REFUSALS_MAX)),
                unauthenticated,
                tls,
            }),
            phases,
        })
    }

    /// What others may see of this gateway, also after [`run`](Self::run) took it.
    pub fn handle(&self) -> GatewayHandle {
        GatewayHandle {
            shared: Arc::clone(&self.shared),
            addresses: self.addresses,
        }
    }

    /// Serves until the phase is `Draining`; then asks the connections to leave, spread over up to half of the drain time, and
    /// returns when all have, or when the phase is `Stopped`: what is left then is cut. Not cancel-safe.
    pub async fn run(self) {
        let Self {
            ports,
            shared,
            phases,
            ..
        } = self;
        let mut upkeep = std::pin::pin!(discovery::keep_up(&shared));
        let mut sampler = std::pin::pin!(sample(&shared));
        let connections = shared.connections.clone();
        let cut = CancellationToken::new();
        loop {
            // Not biased between the ports, so that a flood on one does not shut the other.
            let admitted = async {
                tokio::select! {
                    admission = accept_on(ports.plain.as_ref()) => (admission, None),
                    admission = accept_on(ports.tls.as_ref()) => (admission, shared.tls.clients.as_ref()),
                }
            };
            let (admission, tls) = tokio::select! {
                biased;
                () = phases.reached(Phase::Draining) => break,
                never = &mut upkeep => match never {},
                never = &mut sampler => match never {},
                admitted = admitted => admitted,
            };
            accept::admit(&shared, &cut, tls, admission);
        }
        drop(ports);
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
        shared.pools.close().await;
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

/// Binds the ports that are on. They share the limits on connections.
fn bind_ports(
    settings: &GatewaySettings,
) -> Result<(Ports<Listener>, Ports<SocketAddr>), StartError> {
    let limits = ListenerLimits {
        max_connections: settings.max_connections,
        max_per_ip: settings.max_connections_per_ip,
    };
    let bind = |port: Option<u16>, beside: Option<&Listener>| {
        let Some(port) = port else {
            return Ok((None, None));
        };
        let address = SocketAddr::new(settings.bind_address, port);
        let failed = |error| StartError::Listen(address, error);
        let listener = match beside {
            None => Listener::bind(address, limits),
            Some(other) => Listener::bind_beside(address, other),
        };
        let listener = listener.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Ok::<_, StartError>((Some(listener), Some(bound)))
    };
    let (plain, plain_address) = bind(settings.service_port, None)?;
    let (tls, tls_address) = bind(settings.tls.service_port, plain.as_ref())?;
    let addresses = Ports {
        plain: plain_address,
        tls: tls_address,
    };
    Ok((Ports { plain, tls }, addresses))
}

/// The next connection of a port; never where it is off.
async fn accept_on(listener: Option<&Listener>) -> Admission {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
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

    /// Checks a credential that takes long, as a hashed password does, elsewhere than on the threads that serve everybody, and
    /// only a few at a time; see [`CostlyChecks::check`].
    fn check_costly<T, F>(
        &self,
        from: IpAddr,
        within: Duration,
        check: F,
    ) -> impl Future<Output = Result<T, AuthenticationError>> + Send + 'static + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, AuthenticationError> + Send + 'static,
    {
        self.costly_checks
            .check(&self.connections, from, within, check)
    }

    /// A place among the connections that are being refused, if there is one.
    fn refusal_place(&self, with_tls: bool) -> Option<OwnedSemaphorePermit> {
        let places = if with_tls {
            &self.tls_refusals
        } else {
            &self.refusals
        };
        Arc::clone(places).try_acquire_owned().ok()
    }

    /// A place among the connections whose handshake is not over; an error where all are taken.
    fn unauthenticated_place(&self) -> Result<accept::Place, TryAcquireError> {
        let places = self.unauthenticated.as_ref().map(Arc::clone);
        places.map(Semaphore::try_acquire_owned).transpose()
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
/// The same on the port with TLS, where a refusal needs a handshake.
const TLS_REFUSALS_MAX: usize = 32;
