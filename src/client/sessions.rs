//! The sessions of one client: which connection leads to a broker, and opening it once for all who want it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    connection::ConnectionOptions, error::ConnectError, lookup::BrokerLookup, session::Session,
};
use crate::{
    naming::{BrokerAddress, ServiceUrl},
    protocol::proto::pulsar::CommandConnect,
};

/// The connections of a client to the brokers of its topics, opened when they are wanted. Attempts end with it.
pub(crate) struct Sessions {
    inner: Arc<Inner>,
    _stop_on_drop: DropGuard,
}

struct Inner {
    service_url: ServiceUrl,
    connect: CommandConnect,
    options: ConnectionOptions,
    connections_per_broker: usize,
    /// Which address of the service URL, and which connection of a broker, is taken next.
    turn: AtomicUsize,
    open: Mutex<BTreeMap<Key, Slot>>,
    /// Cancelled when all is closed: attempts end.
    stop: CancellationToken,
}

/// A broker, the way to it, and which of several connections to it.
type Key = (BrokerAddress, bool, usize);
/// `None` as long as the attempt goes on.
type Attempt = Option<Result<Session, Arc<ConnectError>>>;
/// Where the result of an attempt comes to. Only those that wait for it receive; a slot does not.
type Slot = Arc<watch::Sender<Attempt>>;

/// One who waits for an attempt; the last one to give up takes the attempt with it.
struct Waiting {
    inner: Arc<Inner>,
    key: Key,
    slot: Slot,
    /// Taken out when it gives up.
    result: Option<watch::Receiver<Attempt>>,
}

impl Sessions {
    /// No connections yet.
    pub(crate) fn new(
        service_url: ServiceUrl,
        connect: CommandConnect,
        options: ConnectionOptions,
        connections_per_broker: usize,
    ) -> Self {
        let stop = CancellationToken::new();
        let inner = Inner {
            service_url,
            connect,
            options,
            connections_per_broker: connections_per_broker.max(1),
            turn: AtomicUsize::new(0),
            open: Mutex::new(BTreeMap::new()),
            stop: stop.clone(),
        };
        Self {
            inner: Arc::new(inner),
            _stop_on_drop: stop.drop_guard(),
        }
    }

    /// A session with this broker: one that is open, or a new one. Several callers share one attempt and its error.
    /// Cancel-safe: the attempt goes on for others, and ends when nobody waits for it any more.
    ///
    /// # Errors
    /// That of the attempt; whoever calls after it failed makes a new one.
    pub(crate) async fn to(&self, broker: &BrokerLookup) -> Result<Session, Arc<ConnectError>> {
        let inner = &self.inner;
        let turn = inner.turn.fetch_add(1, Ordering::Relaxed);
        let index = turn.checked_rem(inner.connections_per_broker).unwrap_or(0);
        let key = (
            broker.address.clone(),
            broker.proxy_through_service_url,
            index,
        );
        inner.wait_for(key, broker, turn).result().await
    }

    /// A session with an address of the service URL, for what any broker can answer. Cancel-safe.
    pub(crate) async fn to_any(&self) -> Result<Session, Arc<ConnectError>> {
        let turn = self.inner.turn.fetch_add(1, Ordering::Relaxed);
        let addresses = &self.inner.service_url.addresses;
        let address = addresses.iter().cycle().nth(turn % addresses.len().max(1));
        let Some(address) = address else {
            return Err(Arc::new(ConnectError::ClosedDuringHandshake));
        };
        self.to(&BrokerLookup {
            address: address.clone(),
            proxy_through_service_url: false,
        })
        .await
    }

    /// Closes all connections, and ends the attempts to open some.
    pub(crate) fn close(&self) {
        self.inner.stop.cancel();
        let open = std::mem::take(&mut *self.inner.open.lock());
        for slot in open.into_values() {
            if let Some(Ok(session)) = &*slot.borrow() {
                session.connection().close();
            }
        }
    }
}

impl Inner {
    /// A place among those that wait for the connection of this key; begins an attempt where there is none, or where the
    /// connection has ended.
    fn wait_for(self: &Arc<Self>, key: Key, broker: &BrokerLookup, turn: usize) -> Waiting {
        let mut open = self.open.lock();
        // Brokers that are gone must not stay for ever.
        open.retain(|_, slot| match &*slot.borrow() {
            Some(Ok(session)) => !session.connection().is_closed(),
            Some(Err(_)) => false,
            None => true,
        });
        let present = open.get(&key).cloned();
        let slot = present.clone().unwrap_or_default();
        let result = slot.subscribe();
        if present.is_none() {
            // Only now that somebody waits for it.
            let attempt = Arc::clone(self).attempt(Arc::clone(&slot), broker.clone(), turn);
            self.options.tracker.spawn(attempt);
            open.insert(key.clone(), Arc::clone(&slot));
        }
        Waiting {
            inner: Arc::clone(self),
            key,
            slot,
            result: Some(result),
        }
    }

    /// Opens a session for all who wait at `slot`, unless they all give up.
    async fn attempt(self: Arc<Self>, slot: Slot, broker: BrokerLookup, turn: usize) {
        let opened = tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(ConnectError::ClosedDuringHandshake),
            () = slot.closed() => return,
            opened = self.open(&broker, turn) => opened,
        };
        // Under the lock, so that `close` finds either the session or nobody.
        let open = self.open.lock();
        let result = match opened {
            Ok(session) if self.stop.is_cancelled() => {
                session.connection().close();
                Err(ConnectError::ClosedDuringHandshake)
            }
            opened => opened,
        };
        slot.send_replace(Some(result.map_err(Arc::new)));
        drop(open);
    }

    async fn open(&self, broker: &BrokerLookup, turn: usize) -> Result<Session, ConnectError> {
        let mut connect = self.connect.clone();
        if !broker.proxy_through_service_url {
            return Session::open(&broker.address, connect, self.options.clone()).await;
        }
        connect.proxy_to_broker_url = Some(broker.address.to_string());
        let addresses = &self.service_url.addresses;
        let mut last = ConnectError::ClosedDuringHandshake;
        let first = turn.checked_rem(addresses.len()).unwrap_or(0);
        for address in addresses.iter().cycle().skip(first).take(addresses.len()) {
            match Session::open(address, connect.clone(), self.options.clone()).await {
                Ok(session) => return Ok(session),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Waiting {
    async fn result(mut self) -> Result<Session, Arc<ConnectError>> {
        let mut result = None;
        if let Some(receiver) = &mut self.result {
            // The sender is the slot, which is held here.
            let received = receiver.wait_for(Option::is_some).await;
            result = received.ok().and_then(|result| result.clone());
        }
        result.unwrap_or_else(|| Err(Arc::new(ConnectError::ClosedDuringHandshake)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Those that give up are counted one after another, and nobody comes meanwhile.
        let mut open = self.inner.open.lock();
        self.result = None;
        let is_over = match &*self.slot.borrow() {
            Some(Ok(_)) => return,
            Some(Err(_)) => true,
            // Nobody else: what the attempt would bring is for nobody, and it may have taken long already.
            None => self.slot.receiver_count() == 0,
        };
        // The next attempt may have the place already.
        let is_own = open
            .get(&self.key)
            .is_some_and(|slot| Arc::ptr_eq(slot, &self.slot));
        if is_over && is_own {
            open.remove(&self.key);
        }
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions")
            .field("service_url", &self.inner.service_url)
            .field("open", &self.inner.open.lock().len())
            .finish_non_exhaustive()
    }
}
