//! The brokers behind the gateway: those of `brokerServiceURL`, or the live list that Apache's brokers keep in ZooKeeper.
//!
//! Owns which brokers there are and in which order they are asked; `state` decides, `health` finds out who answers, `zookeeper`
//! keeps the list. What a broker's lookup answers name is no part of the list: `policy` knows those.

#[cfg(feature = "zookeeper")]
mod announcement;
mod state;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntGauge;
use rustix::io::Errno;
use tokio::time::Instant;
use tracing::{info, warn};

use self::state::BrokerTable;
pub(crate) use self::state::{Announced, Change};
use super::Shared;
use super::health;
use super::policy::TargetPolicy;
use crate::client::{BrokerSource, ConnectError};
use crate::config::GatewaySettings;
use crate::naming::BrokerAddress;
use crate::protocol::proto::pulsar::ServerError;
use crate::telemetry::{MetricError, MetricRegistry};

/// The brokers that can be asked, as known now; shared by all connections.
#[derive(Debug)]
pub(crate) struct Brokers {
    table: Mutex<BrokerTable>,
    policy: Arc<TargetPolicy>,
    /// Whether the table comes from the metadata store.
    discovered: bool,
    /// Whether a list is still to come without which nobody can be served.
    unlisted: AtomicBool,
    tls: bool,
    started: Instant,
    known: IntGauge,
    healthy: IntGauge,
}

impl Brokers {
    /// The configured brokers; those that discovery finds come later.
    ///
    /// # Errors
    /// When a metric name is taken.
    pub(crate) fn new(
        settings: &GatewaySettings,
        policy: Arc<TargetPolicy>,
        registry: &MetricRegistry,
    ) -> Result<Self, MetricError> {
        let configured = &settings.broker.addresses;
        let mut table = BrokerTable::default();
        let announced = configured.iter().map(|address| Announced {
            address: Some(address.clone()),
            ..Announced::default()
        });
        table.replace(announced, Duration::ZERO);
        Ok(Self {
            table: Mutex::new(table),
            policy,
            discovered: configured.is_empty(),
            unlisted: AtomicBool::new(settings.discovery.metadata_store.is_some()),
            tls: settings.tls.brokers.enabled,
            started: Instant::now(),
            known: registry.gauge(
                "pulsegate_gateway_brokers_known",
                "Brokers that are configured or discovered.",
            )?,
            healthy: registry.gauge(
                "pulsegate_gateway_brokers_healthy",
                "Known brokers that answer and are asked.",
            )?,
        })
    }

    /// All brokers that can be asked, healthy ones first, each time beginning with the next one; all known ones where none is healthy.
    pub(crate) fn in_turn(&self) -> Vec<BrokerAddress> {
        self.table.lock().in_turn(self.now())
    }

    /// Base URLs of the HTTP service of discovered brokers, likewise.
    pub(crate) fn web_in_turn(&self) -> Vec<String> {
        self.table.lock().web_in_turn(self.now())
    }

    /// Whether clients can be served: there is a list, and a broker on it answers.
    pub(crate) fn is_ready(&self) -> bool {
        !self.unlisted.load(Ordering::Relaxed) && self.table.lock().any_answers()
    }

    /// Whether every known broker is known not to answer.
    pub(crate) fn all_silent(&self) -> bool {
        self.table.lock().all_silent()
    }

    /// A broker could not be connected, or not be spoken with.
    pub(crate) fn failed(&self, address: &BrokerAddress, error: &ConnectError) {
        let now = self.now();
        match error {
            ConnectError::Shared(error) => self.failed(address, error),
            error if is_our_own(error) => {}
            ConnectError::Dial(_) | ConnectError::DialTimeout(_) => {
                self.table.lock().unreachable(address, now);
            }
            // A client can bring these about by what it says of itself, and must not put a broker out of others' reach.
            ConnectError::ClosedDuringHandshake | ConnectError::Io(_) => {}
            ConnectError::Refused { code, .. } if *code != ServerError::ServiceNotReady => {}
            error if error.is_about_the_client() => {}
            _ => self.table.lock().failed_handshake(address, now),
        }
    }

    /// Up to `max` brokers that are to be probed now.
    pub(super) fn due(&self, max: usize) -> Vec<BrokerAddress> {
        self.table.lock().due(self.now(), max)
    }

    /// The outcome of a probe.
    pub(super) fn probed(&self, address: &BrokerAddress, answered: bool) -> Option<Change> {
        self.table.lock().probed(address, answered, self.now())
    }

    /// A probe failed for a reason that says nothing of the broker.
    pub(super) fn not_probed(&self, address: &BrokerAddress) {
        self.table.lock().not_probed(address, self.now());
    }

    /// What is due from time to time.
    pub(super) fn tick(&self) {
        let now = self.now();
        self.policy.forget_gone(now);
        let (known, healthy) = self.table.lock().counts(now);
        self.known.set(i64::try_from(known).unwrap_or(i64::MAX));
        self.healthy.set(i64::try_from(healthy).unwrap_or(i64::MAX));
    }

    /// Takes a list of the metadata store. An empty one changes nothing: brokers that all lost their sessions at once are not all
    /// gone, and there would be nobody to ask.
    #[cfg_attr(not(feature = "zookeeper"), allow(dead_code))]
    fn on_list(&self, list: Vec<Announced>) {
        if list.is_empty() {
            warn!("the metadata store lists no broker; going on with those known so far");
            return;
        }
        let now = self.now();
        let addresses = list
            .iter()
            .flat_map(|broker| broker.address.iter().chain(&broker.aliases));
        let changed = self.policy.discovered(addresses, now);
        self.unlisted.store(false, Ordering::Relaxed);
        if changed {
            info!(brokers = list.len(), "the list of brokers changed");
        }
        if self.discovered {
            self.table.lock().replace(list, now);
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

impl BrokerSource for Brokers {
    fn brokers(&self) -> Vec<BrokerAddress> {
        self.in_turn()
    }

    fn tls(&self) -> bool {
        self.tls
    }

    fn connected(&self, address: &BrokerAddress) {
        self.table.lock().succeeded(address);
    }

    fn failed(&self, address: &BrokerAddress, error: &ConnectError) {
        Brokers::failed(self, address, error);
    }
}

/// Whether connecting failed on our side: no file descriptor, no port or no memory is left.
pub(super) fn is_our_own(error: &ConnectError) -> bool {
    let ConnectError::Dial(error) = error else {
        return false;
    };
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::ADDRNOTAVAIL)
    )
}

/// Keeps the list and the health of its brokers up to date, for ever. Cancel-safe.
pub(super) async fn keep_up(shared: &Arc<Shared>) -> Infallible {
    tokio::select! {
        never = health::watch(shared) => never,
        never = watch(shared) => never,
    }
}

#[cfg(feature = "zookeeper")]
async fn watch(shared: &Shared) -> Infallible {
    let settings = &shared.settings.discovery;
    let Some(store) = &settings.metadata_store else {
        return std::future::pending().await;
    };
    let watch = zookeeper::Watch {
        store,
        session_timeout: settings.session_timeout,
        wanted: announcement::Wanted {
            tls: shared.brokers.tls,
            listener: settings.broker_listener_name.as_deref(),
        },
        seed: rand::random(),
    };
    watch.run(&|list| shared.brokers.on_list(list)).await
}

/// The settings name no metadata store in a build that knows none.
#[cfg(not(feature = "zookeeper"))]
async fn watch(_: &Shared) -> Infallible {
    std::future::pending().await
}

#[cfg(test)]
mod tests;
