//! One connection per broker, for all who want to ask something.
//!
//! Owns which brokers are connected, which failed lately and which one is asked when any will do. A connection that ended
//! is replaced when it is wanted again; nothing reconnects without being asked for.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    backoff::{Backoff, BackoffPolicy},
    connection::{Connection, ConnectionOptions},
    error::ConnectError,
};
use crate::{
    naming::{BrokerAddress, ServiceUrl},
    protocol::proto::pulsar::CommandConnect,
};

/// Says which brokers a pool may ask when any will do, and hears how they fared. Never blocks.
pub trait BrokerSource: fmt::Debug + Send + Sync {
    /// The brokers as known now, those to be asked first in front.
    fn brokers(&self) -> Vec<BrokerAddress>;
    /// Whether they are asked over TLS.
    fn tls(&self) -> bool;
    /// A connection to this broker was opened.
    fn connected(&self, _address: &BrokerAddress) {}
    /// Connecting to this broker failed.
    fn failed(&self, _address: &BrokerAddress, _error: &ConnectError) {}
}

impl BrokerSource for ServiceUrl {
    fn brokers(&self) -> Vec<BrokerAddress> {
        self.addresses.clone()
    }

    fn tls(&self) -> bool {
        Self::tls(self)
    }
}

/// Which broker [`BrokerPool::any`] asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The same one as long as it can be asked, so that asking does not end in a connection to every broker; the first one is
    /// chosen at random.
    Same,
    /// The first one of the source's list each time.
    First,
}

/// Connections to the brokers of one cluster; clones share them. When the last clone is dropped all are closed.
#[derive(Debug, Clone)]
pub struct BrokerPool {
    inner: Arc<Inner>,
}

/// Why the pool has no connection to give.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PoolError {
    /// Connecting failed just now.
    #[error("broker {address}: {error}")]
    Connect {
        /// The broker.
        address: BrokerAddress,
        /// What failed; shared by all that waited for the same attempt.
        error: Arc<ConnectError>,
    },
    /// Connecting failed a moment ago, and the next attempt is further away than a caller should wait.
    #[error("broker {address} failed and is not tried again for {wait:?}")]
    BackingOff {
        /// The broker.
        address: BrokerAddress,
        /// Until the next attempt.
        wait: Duration,
    },
    /// No broker is known yet.
    #[error("no broker is known")]
    NoBroker,
    /// As many brokers as the pool may hold are connected and in use.
    #[error("{0} brokers are connected already")]
    TooManyBrokers(usize),
    /// The pool was closed.
    #[error("the broker pool is closed")]
    Closed,
}

impl PoolError {
    /// Whether a broker could be reached and does not take this client.
    pub fn is_about_the_client(&self) -> bool {
        matches!(self, Self::Connect { error, .. } if error.is_about_the_client())
    }
}

impl BrokerPool {
    /// A pool that connects when asked. `connect` is sent to every broker, `policy` says how failed brokers are spared
    /// (a maximum of a few seconds keeps the way back short), `options` apply to each connection; its tracker gets the
    /// pool's tasks as well.
    pub fn new(
        service_url: ServiceUrl,
        connect: CommandConnect,
        options: ConnectionOptions,
        policy: BackoffPolicy,
    ) -> Self {
        Self::with_max_brokers(service_url, connect, options, policy, MAX_BROKERS)
    }

    /// As [`new`](Self::new), holding connections to at most `max_brokers` brokers. The one that was not wanted for the
    /// longest time is closed for a new one, if nobody holds it.
    pub fn with_max_brokers(
        service_url: ServiceUrl,
        connect: CommandConnect,
        options: ConnectionOptions,
        policy: BackoffPolicy,
        max_brokers: usize,
    ) -> Self {
        let source = Arc::new(service_url);
        let mut inner = Inner::new(source, Choice::Same, connect, options, policy);
        inner.max_brokers = max_brokers.max(1);
        Self {
            inner: Arc::new(inner),
        }
    }

    /// As [`new`](Self::new), of brokers that may change.
    pub fn of_source(
        source: Arc<dyn BrokerSource>,
        choice: Choice,
        connect: CommandConnect,
        options: ConnectionOptions,
        policy: BackoffPolicy,
    ) -> Self {
        Self {
            inner: Arc::new(Inner::new(source, choice, connect, options, policy)),
        }
    }

    /// The connection to this broker, opened if there is none. Callers that come while it is being opened wait for the
    /// same attempt. A broker that failed lately is tried when its backoff is over, if that is within `connect_timeout`.
    /// Cancel-safe: the attempt goes on for others.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub async fn get(&self, address: &BrokerAddress) -> Result<Connection, PoolError> {
        let mut opening = match self.inner.find(address)? {
            Found::Open(connection) => return Ok(connection),
            Found::Opening(opening) => opening,
        };
        // The sender goes away unused only when the pool is closed.
        let result = opening
            .wait_for(Option::is_some)
            .await
            .map_err(|_| PoolError::Closed)?;
        result.clone().unwrap_or(Err(PoolError::Closed))
    }

    /// A connection to any broker, chosen as the pool's [`Choice`] says. Those that failed lately are left out unless all did; then
    /// the one whose backoff ends first is tried. Cancel-safe as [`get`](Self::get).
    ///
    /// # Errors
    /// That of the broker tried last.
    pub async fn any(&self) -> Result<(BrokerAddress, Connection), PoolError> {
        let mut last = PoolError::NoBroker;
        for address in self.inner.candidates() {
            match self.get(&address).await {
                Ok(connection) => {
                    self.inner.prefer(&address);
                    return Ok((address, connection));
                }
                // Another broker would say the same about this client.
                Err(error) if error.is_about_the_client() => return Err(error),
                Err(error) => {
                    debug!(%error, "a broker cannot be asked");
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// Leaves a broker out of [`any`](Self::any) for a while, as if connecting to it had failed: it does not answer.
    pub fn spare(&self, address: &BrokerAddress) {
        let now = self.inner.now();
        self.inner.state.lock().failures.failed(address, now);
    }

    /// The brokers that are connected or being connected.
    pub fn brokers(&self) -> Vec<BrokerAddress> {
        self.inner.state.lock().slots.keys().cloned().collect()
    }

    /// Whether its brokers are asked over TLS.
    pub fn tls(&self) -> bool {
        self.inner.source.tls()
    }

    /// Closes all connections, also those that callers hold; further requests get [`PoolError::Closed`].
    pub fn close(&self) {
        self.inner.close();
    }
}

#[derive(Debug)]
struct Inner {
    source: Arc<dyn BrokerSource>,
    choice: Choice,
    connect: CommandConnect,
    options: ConnectionOptions,
    max_brokers: usize,
    started: Instant,
    stop: CancellationToken,
    state: Mutex<PoolState>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Debug)]
struct PoolState {
    /// At most `max_brokers`.
    slots: BTreeMap<BrokerAddress, Slot>,
    /// Counts uses of slots, to tell which was used last.
    uses: u64,
    /// The broker that `any` tries first where it stays with one.
    preferred: Option<BrokerAddress>,
    failures: Failures,
}

type Attempt = Option<Result<Connection, PoolError>>;

#[derive(Debug)]
enum Slot {
    Opening(watch::Receiver<Attempt>),
    Open {
        connection: Connection,
        last_use: u64,
    },
}

enum Found {
    Open(Connection),
    Opening(watch::Receiver<Attempt>),
}

impl Inner {
    fn new(
        source: Arc<dyn BrokerSource>,
        choice: Choice,
        connect: CommandConnect,
        options: ConnectionOptions,
        policy: BackoffPolicy,
    ) -> Self {
        let brokers = source.brokers();
        let first = rand::random_range(0..brokers.len().max(1));
        Self {
            source,
            choice,
            connect,
            options,
            max_brokers: MAX_BROKERS,
            started: Instant::now(),
            stop: CancellationToken::new(),
            state: Mutex::new(PoolState {
                slots: BTreeMap::new(),
                uses: 0,
                preferred: brokers.into_iter().nth(first),
                failures: Failures::new(policy),
            }),
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn find(self: &Arc<Self>, address: &BrokerAddress) -> Result<Found, PoolError> {
        let mut state = self.state.lock();
        if self.stop.is_cancelled() {
            return Err(PoolError::Closed);
        }
        let state = &mut *state;
        state.uses += 1;
        match state.slots.get_mut(address) {
            Some(Slot::Open {
                connection,
                last_use,
            }) if !connection.is_closed() => {
                *last_use = state.uses;
                return Ok(Found::Open(connection.clone()));
            }
            Some(Slot::Opening(opening)) => return Ok(Found::Opening(opening.clone())),
            Some(Slot::Open { .. }) => {
                state.slots.remove(address);
            }
            None => {}
        }
        let wait = state.failures.wait(address, self.now());
        if wait > self.options.connect_timeout {
            let address = address.clone();
            return Err(PoolError::BackingOff { address, wait });
        }
        state.make_room(self.max_brokers)?;
        let (sender, opening) = watch::channel(None);
        state
            .slots
            .insert(address.clone(), Slot::Opening(opening.clone()));
        let attempt = open(
            Arc::downgrade(self),
            self.stop.clone(),
            address.clone(),
            wait,
            sender,
        );
        self.options.tracker.spawn(attempt);
        Ok(Found::Opening(opening))
    }

    /// Puts the result of an attempt into its slot and tells those that wait for it.
    fn opened(
        &self,
        address: BrokerAddress,
        result: Result<Connection, ConnectError>,
        sender: &watch::Sender<Attempt>,
    ) {
        let mut state = self.state.lock();
        let outcome = match result {
            // The pool may have been closed meanwhile; then nobody would close this connection.
            Ok(_) if self.stop.is_cancelled() => Err(PoolError::Closed),
            Ok(connection) => {
                self.source.connected(&address);
                state.failures.succeeded(&address);
                let last_use = state.uses;
                state.slots.insert(
                    address,
                    Slot::Open {
                        connection: connection.clone(),
                        last_use,
                    },
                );
                Ok(connection)
            }
            Err(error) => {
                self.source.failed(&address, &error);
                // A broker that refuses this client is none that fails, and the one to hear the reason from.
                let wait = if error.is_about_the_client() {
                    Duration::ZERO
                } else {
                    state.failures.failed(&address, self.now())
                };
                state.slots.remove(&address);
                // Whoever asked handles it; a warning here would repeat for each of many pools.
                debug!(broker = %address, %error, ?wait, "cannot connect to a broker");
                Err(PoolError::Connect {
                    address,
                    error: Arc::new(error),
                })
            }
        };
        drop(state);
        sender.send_replace(Some(outcome));
    }

    fn prefer(&self, address: &BrokerAddress) {
        if self.choice == Choice::Same {
            let mut state = self.state.lock();
            if state.preferred.as_ref() != Some(address) {
                state.preferred = Some(address.clone());
            }
        }
    }

    /// The brokers to try, in this order.
    fn candidates(&self) -> Vec<BrokerAddress> {
        let mut brokers = self.source.brokers();
        let state = self.state.lock();
        let preferred = match self.choice {
            Choice::Same => state.preferred.as_ref(),
            Choice::First => None,
        };
        let first =
            preferred.and_then(|preferred| brokers.iter().position(|broker| broker == preferred));
        brokers.rotate_left(first.unwrap_or(0));
        let now = self.now();
        let wait = |address: &BrokerAddress| state.failures.wait(address, now);
        if brokers.iter().any(|address| wait(address).is_zero()) {
            brokers.retain(|address| wait(address).is_zero());
            return brokers;
        }
        let soonest = brokers.into_iter().min_by_key(|address| wait(address));
        soonest.into_iter().collect()
    }

    fn close(&self) {
        self.stop.cancel();
        let slots = std::mem::take(&mut self.state.lock().slots);
        for slot in slots.into_values() {
            if let Slot::Open { connection, .. } = slot {
                connection.close();
            }
        }
    }
}

impl PoolState {
    fn make_room(&mut self, max_brokers: usize) -> Result<(), PoolError> {
        if self.slots.len() < max_brokers {
            return Ok(());
        }
        self.slots.retain(
            |_, slot| !matches!(slot, Slot::Open { connection, .. } if connection.is_closed()),
        );
        while self.slots.len() >= max_brokers {
            let idle = self.slots.iter().filter_map(|(address, slot)| match slot {
                Slot::Open {
                    connection,
                    last_use,
                } if connection.is_only_handle() => Some((*last_use, address)),
                Slot::Open { .. } | Slot::Opening(_) => None,
            });
            let Some((_, address)) = idle.min() else {
                return Err(PoolError::TooManyBrokers(max_brokers));
            };
            let address = address.clone();
            debug!(broker = %address, "closing an idle connection to make room for another broker");
            self.slots.remove(&address);
        }
        Ok(())
    }
}

/// One attempt to connect. It must not keep the pool alive, so that dropping the pool ends it.
async fn open(
    pool: Weak<Inner>,
    stop: CancellationToken,
    address: BrokerAddress,
    wait: Duration,
    sender: watch::Sender<Attempt>,
) {
    let connect = async {
        sleep(wait).await;
        let (connect, options) = {
            let pool = pool.upgrade()?;
            (pool.connect.clone(), pool.options.clone())
        };
        Some(Connection::open(&address, connect, options).await)
    };
    let result = tokio::select! {
        biased;
        () = stop.cancelled() => return,
        result = connect => result,
    };
    if let (Some(result), Some(pool)) = (result, pool.upgrade()) {
        pool.opened(address, result, &sender);
    }
}

/// The brokers that could not be connected lately. Time is counted from the start of the pool.
#[derive(Debug)]
struct Failures {
    policy: BackoffPolicy,
    /// At most [`MAX_FAILURES`].
    by_address: BTreeMap<BrokerAddress, Failure>,
    /// Makes the seeds of the backoffs differ.
    next_seed: u64,
}

#[derive(Debug)]
struct Failure {
    backoff: Backoff,
    /// When the next attempt is due.
    until: Duration,
}

impl Failures {
    fn new(policy: BackoffPolicy) -> Self {
        // A deadline makes no sense here: a broker of the cluster is never given up.
        let policy = BackoffPolicy {
            deadline: None,
            ..policy
        };
        // Processes must not come back in step; within one, the seeds of the brokers differ.
        Self {
            policy,
            by_address: BTreeMap::new(),
            next_seed: rand::random(),
        }
    }

    /// Notes a failed attempt; returns the time until the next one.
    fn failed(&mut self, address: &BrokerAddress, now: Duration) -> Duration {
        if !self.by_address.contains_key(address) && self.by_address.len() >= MAX_FAILURES {
            let oldest = self
                .by_address
                .iter()
                .min_by_key(|(_, failure)| failure.until);
            if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                self.by_address.remove(&oldest);
            }
        }
        self.next_seed = self.next_seed.wrapping_add(1);
        let (policy, seed) = (self.policy, self.next_seed);
        let failure = self
            .by_address
            .entry(address.clone())
            .or_insert_with(|| Failure {
                backoff: Backoff::new(policy, seed),
                until: now,
            });
        let wait = failure.backoff.next().unwrap_or(policy.max);
        failure.until = now.saturating_add(wait);
        wait
    }

    fn succeeded(&mut self, address: &BrokerAddress) {
        self.by_address.remove(address);
    }

    /// How long this broker is still to be spared; zero for most.
    fn wait(&self, address: &BrokerAddress, now: Duration) -> Duration {
        self.by_address
            .get(address)
            .map_or(Duration::ZERO, |failure| failure.until.saturating_sub(now))
    }
}

/// Brokers connected at a time unless the caller says otherwise: more than any cluster has.
const MAX_BROKERS: usize = 1024;
/// Failed brokers that are remembered.
const MAX_FAILURES: usize = 1024;
