//! A connection to a broker that producers and consumers share, and the way of what the broker sends to each of them.
//!
//! Owns the table of producer and consumer ids of one connection. It calls its producers and consumers on the connection's
//! task: they take what came into their own state and never wait. It decides nothing for them; that a broker ended a
//! producer, or the connection did, is told and no more.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::RwLock;
use tracing::debug;

use super::{
    connection::{Connection, ConnectionOptions, FrameSink},
    error::{CloseReason, ConnectError},
};
use crate::{
    naming::BrokerAddress,
    protocol::{
        command::{Command, name_of},
        frame::Frame,
        proto::pulsar::{
            CommandConnect, CommandMessage, CommandSendError, CommandSendReceipt,
            base_command::Type, command_topic_migrated::ResourceType,
        },
    },
};

/// What a broker sends to a producer. Called on the connection's task: never blocks.
pub(crate) trait ProducerEvents: Send + Sync {
    /// Receipts in the order they came, at least one.
    fn on_receipts(&self, receipts: &[CommandSendReceipt]) -> Result<(), CloseReason>;
    /// A message was refused.
    fn on_send_error(&self, error: CommandSendError) -> Result<(), CloseReason>;
    /// The broker, or the end of the connection, took the producer away; nothing follows.
    fn on_detached(&self, detached: Detached);
}

/// What a broker sends to a consumer. Called on the connection's task: never blocks.
pub(crate) trait ConsumerEvents: Send + Sync {
    /// Entries of the topic in the order they came, at least one; takes them out of the list. An error, such as more than the
    /// permits allow, ends the connection.
    fn on_messages(&self, messages: &mut Vec<(CommandMessage, Bytes)>) -> Result<(), CloseReason>;
    /// ACTIVE_CONSUMER_CHANGE (PIP-146 and before): whether this consumer of a Failover subscription is the active one.
    fn on_active_change(&self, is_active: bool);
    /// REACHED_END_OF_TOPIC: nothing will ever follow what came.
    fn on_end_of_topic(&self);
    /// The broker, or the end of the connection, took the consumer away; nothing follows.
    fn on_detached(&self, detached: Detached);
}

/// What a broker sends to who watches the topics of a namespace (PIP-145). Called on the connection's task: never blocks.
pub(crate) trait WatcherEvents: Send + Sync {
    /// Topics came or went.
    fn on_update(&self);
    /// The broker, or the end of the connection, ended the watch; nothing follows.
    fn on_detached(&self);
}

/// Why a producer or consumer is no longer known to the broker.
#[derive(Debug, Clone)]
pub(crate) enum Detached {
    /// CLOSE_PRODUCER or CLOSE_CONSUMER: the topic moves, or somebody ended it. With the broker that has it now, where the
    /// broker says so (`assignedBrokerServiceUrl`, PIP-307).
    ByBroker { assigned: Option<BrokerAddress> },
    /// TOPIC_MIGRATED (PIP-188): it is served by another cluster, at this address.
    Migrated { to: Option<BrokerAddress> },
    /// The whole connection ended.
    Disconnected(CloseReason),
}

/// A connection and its table of producers and consumers. Clones share both.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    connection: Connection,
    routes: Arc<RwLock<Routes>>,
}

impl Session {
    /// Connects, and routes what the broker sends from then on.
    pub(crate) async fn open(
        address: &BrokerAddress,
        connect: CommandConnect,
        options: ConnectionOptions,
    ) -> Result<Self, ConnectError> {
        let routes = Arc::new(RwLock::new(Routes::default()));
        let sink = Router {
            routes: Arc::clone(&routes),
            tls: address.tls,
            receipts: Vec::new(),
            messages: Vec::new(),
        };
        let connection =
            Connection::open_with_sink(address, connect, options, Box::new(sink)).await?;
        Ok(Self { connection, routes })
    }

    /// For requests and for sending.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether both are the same connection.
    #[cfg(test)]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.routes, &other.routes)
    }

    /// From now on `events` gets what is for this producer, until the route is dropped or `on_detached` was called. To be
    /// called before PRODUCER is sent. `None` when the connection has ended.
    ///
    /// The ids of one client are unique over all its connections, so an id that is taken is a fault of the caller.
    pub(crate) fn attach_producer(
        &self,
        producer_id: u64,
        events: Arc<dyn ProducerEvents>,
    ) -> Option<Route> {
        self.attach(RouteKey::Producer(producer_id), |routes| {
            insert(&mut routes.producers, producer_id, events);
        })
    }

    /// As [`attach_producer`](Self::attach_producer), for SUBSCRIBE.
    pub(crate) fn attach_consumer(
        &self,
        consumer_id: u64,
        events: Arc<dyn ConsumerEvents>,
    ) -> Option<Route> {
        self.attach(RouteKey::Consumer(consumer_id), |routes| {
            insert(&mut routes.consumers, consumer_id, events);
        })
    }

    /// As [`attach_producer`](Self::attach_producer), for WATCH_TOPIC_LIST.
    pub(crate) fn attach_watcher(
        &self,
        watcher_id: u64,
        events: Arc<dyn WatcherEvents>,
    ) -> Option<Route> {
        self.attach(RouteKey::Watcher(watcher_id), |routes| {
            insert(&mut routes.watchers, watcher_id, events);
        })
    }

    fn attach(&self, key: RouteKey, add: impl FnOnce(&mut Routes)) -> Option<Route> {
        let mut routes = self.routes.write();
        if routes.ended {
            return None;
        }
        add(&mut routes);
        Some(Route {
            routes: Arc::clone(&self.routes),
            key,
        })
    }
}

fn insert<E: ?Sized>(table: &mut HashMap<u64, Arc<E>>, id: u64, events: Arc<E>) {
    match table.entry(id) {
        Entry::Vacant(vacant) => {
            vacant.insert(events);
        }
        Entry::Occupied(_) => unreachable!("ids of producers and consumers are used once"),
    }
}

/// The place of one producer or consumer in a session's table; dropping it takes it out.
#[derive(Debug)]
pub(crate) struct Route {
    routes: Arc<RwLock<Routes>>,
    key: RouteKey,
}

impl Drop for Route {
    fn drop(&mut self) {
        let mut routes = self.routes.write();
        // Dropped outside of the lock: its owner may drop further things with it.
        let (producer, consumer, watcher) = match self.key {
            RouteKey::Producer(id) => (routes.producers.remove(&id), None, None),
            RouteKey::Consumer(id) => (None, routes.consumers.remove(&id), None),
            RouteKey::Watcher(id) => (None, None, routes.watchers.remove(&id)),
        };
        drop(routes);
        drop((producer, consumer, watcher));
    }
}

#[derive(Debug, Clone, Copy)]
enum RouteKey {
    Producer(u64),
    Consumer(u64),
    Watcher(u64),
}

#[derive(Default)]
struct Routes {
    producers: HashMap<u64, Arc<dyn ProducerEvents>>,
    consumers: HashMap<u64, Arc<dyn ConsumerEvents>>,
    watchers: HashMap<u64, Arc<dyn WatcherEvents>>,
    /// The connection has ended: nobody may be added, since nothing would ever be told.
    ended: bool,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes")
            .field("producers", &self.producers.len())
            .field("consumers", &self.consumers.len())
            .field("watchers", &self.watchers.len())
            .field("ended", &self.ended)
            .finish()
    }
}

/// The connection's end of a session. // hot path
struct Router {
    routes: Arc<RwLock<Routes>>,
    /// Whether the broker is spoken to over TLS, which says which of two assigned addresses is meant.
    tls: bool,
    /// Receipts of one producer that came one after another, told together.
    receipts: Vec<CommandSendReceipt>,
    /// Entries for one consumer that came one after another, told together.
    messages: Vec<(CommandMessage, Bytes)>,
}

impl Router {
    /// Tells what was held back.
    fn flush(&mut self) -> Result<(), CloseReason> {
        self.flush_receipts()?;
        self.flush_messages()
    }

    fn flush_messages(&mut self) -> Result<(), CloseReason> {
        let Some((first, _)) = self.messages.first() else {
            return Ok(());
        };
        let told = match self.consumer(first.consumer_id) {
            Some(consumer) => consumer.on_messages(&mut self.messages),
            None => Ok(()),
        };
        self.messages.clear();
        told
    }

    fn on_message(&mut self, message: CommandMessage, entry: Bytes) -> Result<(), CloseReason> {
        let is_other =
            |(first, _): &(CommandMessage, Bytes)| first.consumer_id != message.consumer_id;
        if self.messages.first().is_some_and(is_other) || self.messages.len() >= MESSAGES_MAX {
            self.flush_messages()?;
        }
        self.messages.push((message, entry));
        Ok(())
    }

    fn flush_receipts(&mut self) -> Result<(), CloseReason> {
        let Some(first) = self.receipts.first() else {
            return Ok(());
        };
        let producer = self
            .routes
            .read()
            .producers
            .get(&first.producer_id)
            .cloned();
        let told = match producer {
            Some(producer) => producer.on_receipts(&self.receipts),
            None => Ok(()),
        };
        self.receipts.clear();
        told
    }

    fn on_receipt(&mut self, receipt: CommandSendReceipt) -> Result<(), CloseReason> {
        let is_other = |first: &CommandSendReceipt| first.producer_id != receipt.producer_id;
        if self.receipts.first().is_some_and(is_other) || self.receipts.len() >= RECEIPTS_MAX {
            self.flush_receipts()?;
        }
        self.receipts.push(receipt);
        Ok(())
    }

    fn consumer(&self, id: u64) -> Option<Arc<dyn ConsumerEvents>> {
        self.routes.read().consumers.get(&id).cloned()
    }

    fn detach_producer(&self, id: u64, detached: Detached) {
        let removed = self.routes.write().producers.remove(&id);
        if let Some(events) = removed {
            events.on_detached(detached);
        }
    }

    fn detach_consumer(&self, id: u64, detached: Detached) {
        let removed = self.routes.write().consumers.remove(&id);
        if let Some(events) = removed {
            events.on_detached(detached);
        }
    }

    /// The address that is meant for us, of the two that a broker names.
    fn choose(&self, plain: Option<String>, tls: Option<String>) -> Option<BrokerAddress> {
        let url = if self.tls { tls } else { plain };
        let url = url.filter(|url| !url.is_empty())?;
        BrokerAddress::from_url(&url).ok()
    }

    fn on_command(&mut self, frame: Frame) -> Result<(), CloseReason> {
        match Command::decode(&frame.command)
            .map_err(|error| CloseReason::Command(Arc::new(error)))?
        {
            Command::SendError(error) => {
                let producer = self
                    .routes
                    .read()
                    .producers
                    .get(&error.producer_id)
                    .cloned();
                if let Some(producer) = producer {
                    producer.on_send_error(error)?;
                }
            }
            Command::CloseProducer(close) => {
                let assigned = self.choose(
                    close.assigned_broker_service_url,
                    close.assigned_broker_service_url_tls,
                );
                self.detach_producer(close.producer_id, Detached::ByBroker { assigned });
            }
            Command::CloseConsumer(close) => {
                let assigned = self.choose(
                    close.assigned_broker_service_url,
                    close.assigned_broker_service_url_tls,
                );
                self.detach_consumer(close.consumer_id, Detached::ByBroker { assigned });
            }
            Command::TopicMigrated(migrated) => {
                let is_producer = migrated.resource_type == ResourceType::Producer as i32;
                let to = self.choose(migrated.broker_service_url, migrated.broker_service_url_tls);
                let detached = Detached::Migrated { to };
                if is_producer {
                    self.detach_producer(migrated.resource_id, detached);
                } else {
                    self.detach_consumer(migrated.resource_id, detached);
                }
            }
            Command::ActiveConsumerChange(change) => {
                if let Some(consumer) = self.consumer(change.consumer_id) {
                    consumer.on_active_change(change.is_active());
                }
            }
            Command::ReachedEndOfTopic(reached) => {
                if let Some(consumer) = self.consumer(reached.consumer_id) {
                    consumer.on_end_of_topic();
                }
            }
            Command::WatchTopicUpdate(update) => {
                let watcher = self.routes.read().watchers.get(&update.watcher_id).cloned();
                if let Some(watcher) = watcher {
                    watcher.on_update();
                }
            }
            Command::WatchTopicListClose(close) => {
                let watcher = self.routes.write().watchers.remove(&close.watcher_id);
                if let Some(watcher) = watcher {
                    watcher.on_detached();
                }
            }
            other => {
                debug!(
                    command = name_of(other.command_type()),
                    "a frame that nobody asked for was discarded"
                );
            }
        }
        Ok(())
    }
}

impl FrameSink for Router {
    fn on_frame(&mut self, command_type: i32, frame: Frame) -> Result<(), CloseReason> {
        if command_type == Type::SendReceipt as i32 || command_type == Type::Message as i32 {
            return match Command::decode(&frame.command)
                .map_err(|error| CloseReason::Command(Arc::new(error)))?
            {
                Command::SendReceipt(receipt) => self.on_receipt(receipt),
                Command::Message(message) => self.on_message(message, frame.payload),
                _ => Ok(()),
            };
        }
        // What came before it is told before it.
        self.flush()?;
        self.on_command(frame)
    }

    fn on_idle(&mut self) -> Result<(), CloseReason> {
        self.flush()
    }

    fn on_end(&mut self, reason: &CloseReason) {
        // Receipts that came before the end count: their messages need not be sent again.
        let _ = self.flush();
        let (producers, consumers, watchers) = {
            let mut routes = self.routes.write();
            routes.ended = true;
            (
                std::mem::take(&mut routes.producers),
                std::mem::take(&mut routes.consumers),
                std::mem::take(&mut routes.watchers),
            )
        };
        for events in watchers.into_values() {
            events.on_detached();
        }
        for events in producers.into_values() {
            events.on_detached(Detached::Disconnected(reason.clone()));
        }
        for events in consumers.into_values() {
            events.on_detached(Detached::Disconnected(reason.clone()));
        }
    }
}

/// Receipts that are held back to be told together.
const RECEIPTS_MAX: usize = 1024;

/// Entries that are held back to be told together.
const MESSAGES_MAX: usize = 1024;
