//! A client of a Pulsar cluster: what producers, consumers and readers of one application share.
//!
//! Owns the way to the brokers: lookups, connections, ids. Start at [`PulsarClient::new`].

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    backoff::BackoffPolicy,
    connection::ConnectionOptions,
    error::{ClientError, ConnectError},
    lookup::{BrokerLookup, LookupClient},
    pool::BrokerPool,
    session::Session,
    sessions::Sessions,
};
use crate::{
    naming::{BrokerAddress, ServiceUrl, TopicName},
    protocol::{
        proto::pulsar::{CommandConnect, FeatureFlags},
        version,
    },
};

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Of each connection. Its tracker gets the tasks of producers and consumers as well.
    pub connection: ConnectionOptions,
    /// Connections to one broker that producers and consumers are spread over. At least 1.
    pub connections_per_broker: usize,
    /// How long creating, looking up and other operations are tried again while the error may pass.
    pub operation_timeout: Duration,
    /// The delays between attempts to get back to a broker.
    pub backoff: BackoffPolicy,
    /// Which of a broker's `advertisedListeners` lookups ask for (`advertised_listener_name`, PIP-61).
    pub listener_name: Option<String>,
    /// How the client calls itself in CONNECT (`client_version`).
    pub client_version: String,
}

impl Default for ClientOptions {
    /// One connection to a broker, 30 s for operations.
    fn default() -> Self {
        Self {
            connection: ConnectionOptions::default(),
            connections_per_broker: 1,
            operation_timeout: Duration::from_secs(30),
            backoff: BackoffPolicy::default(),
            listener_name: None,
            client_version: format!("pulsegate-{}", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// A handle on a client; clones share it. [`close`](Self::close) ends its producers and consumers.
#[derive(Debug, Clone)]
pub struct PulsarClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ClientOptions,
    lookups: LookupClient,
    pool: BrokerPool,
    sessions: Sessions,
    next_id: AtomicU64,
    stop: CancellationToken,
    /// Clients of the clusters that topics were migrated to (PIP-188). At most [`MIGRATED_MAX`].
    migrated: Mutex<BTreeMap<BrokerAddress, PulsarClient>>,
}

impl PulsarClient {
    /// A client of the cluster at this address. Connects when something is asked of it.
    pub fn new(service_url: ServiceUrl, options: ClientOptions) -> Self {
        let connect = CommandConnect {
            client_version: options.client_version.clone(),
            protocol_version: Some(version::CURRENT),
            feature_flags: Some(FeatureFlags {
                supports_auth_refresh: Some(true),
                supports_broker_entry_metadata: Some(true),
                supports_partial_producer: Some(true),
                supports_topic_watchers: Some(true),
                supports_get_partitioned_metadata_without_auto_creation: Some(true),
                ..FeatureFlags::default()
            }),
            ..CommandConnect::default()
        };
        let mut lookup_connection = options.connection.clone();
        if service_url.addresses.len() > 1 {
            // A broker that does not answer must leave time to ask another one.
            let share = options.operation_timeout / 3;
            lookup_connection.request_timeout = lookup_connection.request_timeout.min(share);
        }
        let pool = BrokerPool::new(
            service_url.clone(),
            connect.clone(),
            lookup_connection,
            BackoffPolicy {
                max: LOOKUP_BACKOFF_MAX,
                ..options.backoff
            },
        );
        let sessions = Sessions::new(
            service_url,
            connect,
            options.connection.clone(),
            options.connections_per_broker,
        );
        Self {
            shared: Arc::new(Shared {
                lookups: LookupClient::new(pool.clone())
                    .with_listener_name(options.listener_name.as_deref()),
                pool,
                sessions,
                next_id: AtomicU64::new(0),
                stop: CancellationToken::new(),
                migrated: Mutex::default(),
                options,
            }),
        }
    }

    /// Lookups, partition metadata and topics of namespaces.
    pub fn lookups(&self) -> &LookupClient {
        &self.shared.lookups
    }

    /// Closes all connections. Producers and consumers end; call their `close` first to lose nothing.
    pub fn close(&self) {
        self.shared.stop.cancel();
        let migrated = std::mem::take(&mut *self.shared.migrated.lock());
        for client in migrated.into_values() {
            client.close();
        }
        self.shared.sessions.close();
        self.shared.pool.close();
    }

    /// How it behaves.
    pub fn options(&self) -> &ClientOptions {
        &self.shared.options
    }

    /// Where tasks of producers and consumers are spawned.
    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.shared.options.connection.tracker
    }

    /// Cancelled when the client is closed: tasks of producers and consumers end.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.shared.stop
    }

    /// An id for a producer or consumer, unique in this client.
    pub(crate) fn next_id(&self) -> u64 {
        self.shared.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A client of the cluster at this address, to which a broker says that a topic was migrated. It gives the way there and
    /// no ids: those of its producers and consumers are this client's.
    pub(crate) fn migrated_to(&self, address: &BrokerAddress) -> Self {
        let mut migrated = self.shared.migrated.lock();
        if migrated.len() >= MIGRATED_MAX && !migrated.contains_key(address) {
            // Who uses it keeps it.
            migrated.pop_first();
        }
        let client = migrated.entry(address.clone()).or_insert_with(|| {
            Self::new(
                ServiceUrl::from(address.clone()),
                self.shared.options.clone(),
            )
        });
        client.clone()
    }

    /// A connection for what any broker can answer. One attempt. Cancel-safe.
    pub(crate) async fn session_for_any(&self) -> Result<Session, ConnectError> {
        let session = self.shared.sessions.to_any().await;
        session.map_err(ConnectError::Shared)
    }

    /// A connection to the broker that serves a topic, `assigned` if the topic's last broker named its successor. One
    /// attempt. Cancel-safe.
    pub(crate) async fn session_for(
        &self,
        topic: &TopicName,
        assigned: Option<BrokerAddress>,
    ) -> Result<Session, ClientError> {
        if self.shared.stop.is_cancelled() {
            return Err(ClientError::Closed);
        }
        let broker = match assigned {
            // Through which way it is reached is known from a lookup only.
            Some(address) if !self.shared.lookups.goes_through_service_url() => BrokerLookup {
                address,
                proxy_through_service_url: false,
            },
            _ => self.shared.lookups.lookup(topic).await?,
        };
        let session = self.shared.sessions.to(&broker).await;
        session.map_err(|error| ClientError::Connect {
            address: broker.address,
            error,
        })
    }
}

/// Clusters that topics may have been migrated to.
const MIGRATED_MAX: usize = 8;
/// The longest time that a broker of the service URL which failed is not asked.
const LOOKUP_BACKOFF_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_address_of_the_service_url_leaves_time_for_the_next_one() {
        let options = ClientOptions::default();
        let connection = &options.connection;
        let spent = connection.connect_timeout + connection.handshake_timeout;
        assert!(spent < options.operation_timeout);
    }
}
