//! The sessions of one client: which connection leads to a broker, and opening it once for all who want it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::{
    connection::ConnectionOptions, error::ConnectError, lookup::BrokerLookup, session::Session,
};
use crate::{
    naming::{BrokerAddress, ServiceUrl},
    protocol::proto::pulsar::CommandConnect,
};

/// The connections of a client to the brokers of its topics, opened when they are wanted.
pub(crate) struct Sessions {
    service_url: ServiceUrl,
    connect: CommandConnect,
    options: ConnectionOptions,
    connections_per_broker: usize,
    /// Which address of the service URL, and which connection of a broker, is taken next.
    turn: AtomicUsize,
    open: Mutex<BTreeMap<Key, Slot>>,
}

/// A broker, the way to it, and which of several connections to it.
type Key = (BrokerAddress, bool, usize);
/// Filled by whoever comes first; the others wait for it.
type Slot = Arc<OnceCell<Session>>;

impl Sessions {
    /// No connections yet.
    pub(crate) fn new(
        service_url: ServiceUrl,
        connect: CommandConnect,
        options: ConnectionOptions,
        connections_per_broker: usize,
    ) -> Self {
        Self {
            service_url,
            connect,
            options,
            connections_per_broker: connections_per_broker.max(1),
            turn: AtomicUsize::new(0),
            open: Mutex::new(BTreeMap::new()),
        }
    }

    /// A session with this broker: one that is open, or a new one. Several callers share one attempt. Cancel-safe: another
    /// caller then goes on with the attempt.
    pub(crate) async fn to(&self, broker: &BrokerLookup) -> Result<Session, ConnectError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let index = turn.checked_rem(self.connections_per_broker).unwrap_or(0);
        let key = (
            broker.address.clone(),
            broker.proxy_through_service_url,
            index,
        );
        let slot = self.slot(key);
        let session = slot.get_or_try_init(|| self.open(broker, turn)).await?;
        Ok(session.clone())
    }

    /// A session with an address of the service URL, for what any broker can answer. Cancel-safe.
    pub(crate) async fn to_any(&self) -> Result<Session, ConnectError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let addresses = &self.service_url.addresses;
        let address = addresses.iter().cycle().nth(turn % addresses.len().max(1));
        let Some(address) = address else {
            return Err(ConnectError::ClosedDuringHandshake);
        };
        self.to(&BrokerLookup {
            address: address.clone(),
            proxy_through_service_url: false,
        })
        .await
    }

    /// The slot of a key; a fresh one where its connection has ended.
    fn slot(&self, key: Key) -> Slot {
        let mut open = self.open.lock();
        // Brokers that are gone must not stay for ever.
        open.retain(|_, slot| {
            slot.get()
                .is_none_or(|session| !session.connection().is_closed())
        });
        Arc::clone(open.entry(key).or_default())
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

    /// Closes all connections.
    pub(crate) fn close(&self) {
        let open = std::mem::take(&mut *self.open.lock());
        for slot in open.into_values() {
            if let Some(session) = slot.get() {
                session.connection().close();
            }
        }
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions")
            .field("service_url", &self.service_url)
            .field("open", &self.open.lock().len())
            .finish_non_exhaustive()
    }
}
