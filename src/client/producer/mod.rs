//! Producers: sending messages to a topic, partitioned or not.
//!
//! Order is kept per partition, and what has no receipt is sent again after a connection was lost, so a message is stored
//! once or more (exactly once with deduplication on the topic). Start at [`Producer`]; `state.rs` holds the rules of one
//! partition, `task.rs` the way to its broker.

mod answers;
mod batch;
mod entry;
mod error;
mod options;
mod pending;
mod routing;
mod state;
mod task;
mod topic_producer;

#[cfg(test)]
mod failure_tests;
#[cfg(test)]
mod routing_tests;
#[cfg(test)]
mod scripted_tests;
#[cfg(test)]
mod state_tests;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

pub use self::{
    error::SendError,
    options::{
        Acknowledgement, BatchingOptions, CompressionType, CustomRouting, HashingScheme,
        MessageKey, OutgoingMessage, ProducerAccessMode, ProducerOptions, RawEntry, ReceiptSink,
        Routing, Schema, Tokens,
    },
    topic_producer::Receipt,
};

use self::{routing::Router, task::ProducerTask, topic_producer::TopicProducer};
use super::{
    clock::{Clock, Deadline},
    error::{ClientError, RequestError},
    handshake::server_error,
    message_id::MessageId,
    pulsar_client::PulsarClient,
};
use crate::{
    naming::TopicName,
    protocol::{
        command::{Command, name_of},
        proto::pulsar::CommandGetOrCreateSchema,
    },
};

/// Sends messages to a topic; clones share the queue. When the last clone is dropped, what has no receipt is given up: see
/// [`close`](Self::close) and [`flush`](Self::flush).
#[derive(Clone)]
pub struct Producer {
    inner: Arc<Inner>,
}

struct Inner {
    client: PulsarClient,
    topic: TopicName,
    options: Arc<ProducerOptions>,
    sink: Option<Arc<dyn ReceiptSink>>,
    /// The topic itself, or its partitions. Never empty, only ever longer.
    partitions: RwLock<Arc<[Arc<TopicProducer>]>>,
    is_partitioned: bool,
    router: Router,
    clock: Clock,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

impl PulsarClient {
    /// Opens a producer of a topic, of all its partitions where it has some. A topic that is not there is created where the
    /// cluster allows that. Cancel-safe.
    ///
    /// # Errors
    /// See [`ClientError`]; passing ones are tried again within `operation_timeout`, which each partition has for itself: at
    /// most 32 are opened at a time, and the first that cannot be opened in its time ends it all.
    pub async fn producer(
        &self,
        topic: &TopicName,
        options: ProducerOptions,
    ) -> Result<Producer, ClientError> {
        Box::pin(Producer::open(self, topic, options, None)).await
    }

    /// As [`producer`](Self::producer), with a sink for the receipts of messages that are sent with tokens.
    ///
    /// # Errors
    /// As [`producer`](Self::producer).
    pub async fn producer_with_sink(
        &self,
        topic: &TopicName,
        options: ProducerOptions,
        sink: Arc<dyn ReceiptSink>,
    ) -> Result<Producer, ClientError> {
        Box::pin(Producer::open(self, topic, options, Some(sink))).await
    }
}

impl Producer {
    async fn open(
        client: &PulsarClient,
        topic: &TopicName,
        options: ProducerOptions,
        sink: Option<Arc<dyn ReceiptSink>>,
    ) -> Result<Self, ClientError> {
        let deadline = Deadline::within(client.options().operation_timeout);
        let partitions = partitions_of(client, topic, deadline).await?;
        let clock = Clock::new();
        let stop = client.stop().child_token();
        let router = Router::new(
            options.routing.clone(),
            options.hashing,
            options.batching.as_ref(),
            clock.random(),
        );
        let mut inner = Inner {
            client: client.clone(),
            topic: topic.clone(),
            options: Arc::new(options),
            sink,
            partitions: RwLock::new(Arc::new([])),
            is_partitioned: partitions > 0,
            router,
            clock,
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        };
        let topics = if partitions == 0 {
            vec![topic.clone()]
        } else {
            partition_names(topic, 0..partitions)?
        };
        let opened = inner.open_topics(topics, None, deadline).await?;
        *inner.partitions.get_mut() = opened.into();
        let inner = Arc::new(inner);
        if let (true, Some(interval)) = (inner.is_partitioned, inner.options.auto_update_partitions)
        {
            let update = follow_partitions(Arc::downgrade(&inner), interval, inner.stop.clone());
            client.tracker().spawn(update);
        }
        Ok(Self { inner })
    }

    /// Sends a message and waits for its receipt. Cancel-safe in that the message is sent or not: never in part.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(&self, message: OutgoingMessage) -> Result<MessageId, SendError> {
        self.enqueue(message).await?.await
    }

    /// Enqueues a message, waiting for room; its receipt is to come. Cancel-safe: then it was not enqueued.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn enqueue(&self, message: OutgoingMessage) -> Result<Receipt, SendError> {
        self.choose(&message).enqueue(message).await
    }

    /// Enqueues a message if there is room.
    ///
    /// # Errors
    /// [`SendError::QueueFull`] where there is none; else as [`enqueue`](Self::enqueue).
    pub fn try_enqueue(&self, message: OutgoingMessage) -> Result<Receipt, SendError> {
        self.choose(&message).try_enqueue(message)
    }

    /// Enqueues up to `count` messages that differ in nothing but their sequence ids, all for one partition, under one lock
    /// and without an allocation for each; says how many there was room for. Their receipts go to the sink with their
    /// tokens.
    ///
    /// # Errors
    /// See [`SendError`]; then none was enqueued.
    pub fn enqueue_many(
        &self,
        message: &OutgoingMessage,
        count: usize,
        tokens: Tokens,
    ) -> Result<usize, SendError> {
        self.choose(message)
            .enqueue_many(message.clone(), count, tokens)
    }

    /// Enqueues an entry as it is, if there is room, to the topic or to its first partition: whoever copies entries copies
    /// partition by partition. The receipt goes to the sink.
    ///
    /// # Errors
    /// [`SendError::QueueFull`] where there is no room: see [`ready`](Self::ready).
    pub fn send_entry(&self, entry: RawEntry) -> Result<(), SendError> {
        let partitions = self.partitions();
        let first = partitions.first().ok_or(SendError::Closed)?;
        first.send_entry(entry)
    }

    /// Waits until at most half of the queue of every partition is taken. Cancel-safe.
    ///
    /// # Errors
    /// The producer has ended.
    pub async fn ready(&self) -> Result<(), SendError> {
        for partition in self.partitions().iter() {
            partition.ready().await?;
        }
        Ok(())
    }

    /// Sends the batches in the making, and waits until all that was enqueued before is answered. Cancel-safe.
    ///
    /// # Errors
    /// One of these messages that had no receipt yet failed, with its error.
    pub async fn flush(&self) -> Result<(), SendError> {
        let partitions = self.partitions();
        // All go out before the first is waited for.
        let flushes: Vec<_> = partitions
            .iter()
            .map(|partition| (partition, partition.begin_flush()))
            .collect();
        let mut result = Ok(());
        for (partition, flush) in flushes {
            let flushed = match flush {
                Ok(flush) => partition.flushed(flush).await,
                Err(error) => Err(error),
            };
            result = result.and(flushed);
        }
        result
    }

    /// Sends what waits, waits for the receipts, and ends the producer at its brokers. What has no receipt within
    /// `operation_timeout`, or when a broker is not connected, fails with [`SendError::Closed`]. All partitions are closed at
    /// once, so that one which hangs holds up no other. Cancel-safe in that it can be called again.
    ///
    /// # Errors
    /// A broker did not answer; the producer is closed all the same.
    pub async fn close(&self) -> Result<(), ClientError> {
        let limit = self.inner.client.options().operation_timeout;
        let partitions = self.partitions();
        let mut closing = JoinSet::new();
        for partition in partitions.iter() {
            let partition = Arc::clone(partition);
            let flush = partition.begin_flush();
            closing.spawn(async move {
                if let Ok(flush) = flush {
                    // What fails here is told to who sent it.
                    let flushed = partition.flushed_while_connected(flush);
                    let _ = tokio::time::timeout(limit, flushed).await;
                }
                let result = task::close(&partition).await;
                partition.end(SendError::Closed);
                result
            });
        }
        let mut result = Ok(());
        while let Some(closed) = closing.join_next().await {
            // A partition whose task is gone is as good as closed.
            result = result.and(closed.unwrap_or(Ok(())));
        }
        self.inner.stop.cancel();
        result
    }

    /// The name, given or chosen by the broker. The producers of all partitions have the same.
    pub fn name(&self) -> String {
        self.partitions()
            .first()
            .map(|partition| partition.name())
            .unwrap_or_default()
    }

    /// The topic.
    pub fn topic(&self) -> &TopicName {
        &self.inner.topic
    }

    /// The number of partitions that messages go to; 1 where the topic has none.
    pub fn partition_count(&self) -> usize {
        self.partitions().len()
    }

    /// The highest sequence id of a message that is known to be stored, of all partitions.
    pub fn last_sequence_id(&self) -> Option<u64> {
        let partitions = self.partitions();
        partitions
            .iter()
            .filter_map(|partition| partition.last_sequence_id())
            .max()
    }

    /// Whether brokers have the producer now, for all partitions.
    pub fn is_connected(&self) -> bool {
        self.partitions()
            .iter()
            .all(|partition| partition.is_connected())
    }

    /// The epoch that the broker gave to an exclusive producer (PIP-68).
    pub fn topic_epoch(&self) -> Option<u64> {
        self.partitions().first()?.topic_epoch()
    }

    /// The version of the producer's schema, which messages carry.
    pub fn schema_version(&self) -> Option<Bytes> {
        self.partitions().first()?.schema_version()
    }

    /// Messages without receipt.
    pub fn pending(&self) -> usize {
        self.partitions()
            .iter()
            .map(|partition| partition.pending())
            .sum()
    }

    /// Why the producer takes no more messages, if it does not.
    pub fn ended(&self) -> Option<SendError> {
        self.partitions()
            .iter()
            .find_map(|partition| partition.ended())
    }

    /// Registers a further schema with the topic (GET_OR_CREATE_SCHEMA) and returns its version, for
    /// [`OutgoingMessage::schema_version`].
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Closed`] when no broker is connected.
    pub async fn register_schema(&self, schema: Schema) -> Result<Bytes, ClientError> {
        let partitions = self.partitions();
        let connection = partitions.first().and_then(|first| first.connection());
        let connection = connection.ok_or(ClientError::Closed)?;
        let command = Command::from(CommandGetOrCreateSchema {
            topic: self.inner.topic.to_string(),
            schema,
            ..CommandGetOrCreateSchema::default()
        });
        match connection.request(command).await? {
            Command::GetOrCreateSchemaResponse(response) => match response.error_code {
                Some(code) => Err(ClientError::Request(RequestError::Refused {
                    code: server_error(code),
                    message: response.error_message.unwrap_or_default(),
                })),
                None => Ok(response.schema_version.unwrap_or_default()),
            },
            other => Err(ClientError::UnexpectedAnswer(name_of(other.command_type()))),
        }
    }

    fn partitions(&self) -> Arc<[Arc<TopicProducer>]> {
        Arc::clone(&self.inner.partitions.read())
    }

    /// The partition that a message goes to.
    fn choose(&self, message: &OutgoingMessage) -> Arc<TopicProducer> {
        let inner = &self.inner;
        // Not under the lock: a custom routing is the application's code, which may take its time or ask this producer.
        let partitions = self.partitions();
        let count = u32::try_from(partitions.len()).unwrap_or(u32::MAX);
        let chosen = if count <= 1 {
            0
        } else {
            inner.router.route(message, count, || inner.clock.now())
        };
        let chosen = usize::try_from(chosen)
            .ok()
            .and_then(|chosen| partitions.get(chosen));
        let chosen = chosen.or(partitions.first());
        Arc::clone(chosen.expect("a producer has a topic or partitions"))
    }
}

impl Inner {
    /// Opens the producers of these topics, all with the same name, and starts their tasks when all are open. The first one
    /// until the deadline; the others have their time from when it is their turn, or a topic with very many partitions
    /// could never be opened.
    async fn open_topics(
        &self,
        topics: Vec<TopicName>,
        name: Option<String>,
        deadline: Deadline,
    ) -> Result<Vec<Arc<TopicProducer>>, ClientError> {
        let mut topics = topics.into_iter().enumerate();
        let mut opened = BTreeMap::new();
        let mut opening = JoinSet::new();
        let mut name = name;
        loop {
            // The first one is told its name by its broker, and the others have the same.
            let most = if name.is_some() { OPENING_MAX } else { 1 };
            while opening.len() < most
                && let Some((index, topic)) = topics.next()
            {
                let deadline = match index {
                    0 => deadline,
                    _ => Deadline::within(self.client.options().operation_timeout),
                };
                opening.spawn(self.open_topic(index, topic, name.clone(), deadline));
            }
            let Some(joined) = opening.join_next().await else {
                break;
            };
            // A task that is gone has ended with the client.
            let (index, task) = joined.unwrap_or(Err(ClientError::Closed))?;
            name.get_or_insert_with(|| task.producer().name());
            opened.insert(index, task);
        }
        let mut producers = Vec::with_capacity(opened.len());
        for task in opened.into_values() {
            producers.push(Arc::clone(task.producer()));
            self.client.tracker().spawn(task.run());
        }
        Ok(producers)
    }

    /// Opens the producer of one topic.
    fn open_topic(
        &self,
        index: usize,
        topic: TopicName,
        name: Option<String>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(usize, ProducerTask), ClientError>> + Send + use<> {
        let producer = TopicProducer::new(
            topic,
            self.client.next_id(),
            Arc::clone(&self.options),
            self.sink.clone(),
            self.stop.child_token(),
        );
        if let Some(name) = name {
            producer.set_name(name);
        }
        let mut task = ProducerTask::new(producer, self.client.clone());
        Box::pin(async move {
            task.create(deadline).await?;
            Ok((index, task))
        })
    }

    /// Opens producers for partitions that are new.
    async fn update_partitions(&self) -> Result<(), ClientError> {
        let present = Arc::clone(&self.partitions.read());
        let count = self.client.lookups().partitions(&self.topic).await?;
        let known = u32::try_from(present.len()).unwrap_or(u32::MAX);
        if count <= known {
            return Ok(());
        }
        debug!(topic = %self.topic, from = known, to = count, "a topic has more partitions");
        let names = partition_names(&self.topic, known..count)?;
        let name = present.first().map(|first| first.name());
        let deadline = Deadline::within(self.client.options().operation_timeout);
        let new = self.open_topics(names, name, deadline).await?;
        *self.partitions.write() = present.iter().cloned().chain(new).collect();
        Ok(())
    }
}

/// Asks for new partitions until the producer is gone.
async fn follow_partitions(inner: Weak<Inner>, interval: Duration, stop: CancellationToken) {
    let follow = async {
        loop {
            tokio::time::sleep(interval).await;
            let Some(inner) = inner.upgrade() else {
                return;
            };
            if let Err(error) = Box::pin(inner.update_partitions()).await {
                warn!(topic = %inner.topic, %error, "new partitions of a topic cannot be used yet");
            }
        }
    };
    let _ = stop.run_until_cancelled(follow).await;
}

/// The number of partitions, asked again while the error may pass.
async fn partitions_of(
    client: &PulsarClient,
    topic: &TopicName,
    deadline: Deadline,
) -> Result<u32, ClientError> {
    if topic.partition().is_some() {
        return Ok(0);
    }
    let mut last = None;
    let attempts = async {
        let seed = Clock::new().random();
        let mut backoff = super::backoff::Backoff::new(client.options().backoff, seed);
        loop {
            let error = match client.lookups().partitions_or_create(topic).await {
                Ok(count) if count > PARTITIONS_MAX => {
                    return Err(ClientError::UnexpectedAnswer("too many partitions"));
                }
                Ok(count) => return Ok(count),
                Err(error) => ClientError::from(error),
            };
            if !error.is_retryable() {
                return Err(error);
            }
            last = Some(error);
            tokio::time::sleep(backoff.next().unwrap_or(Duration::MAX)).await;
        }
    };
    let attempts = deadline.keep(attempts);
    match client.stop().run_until_cancelled(attempts).await {
        Some(Some(result)) => result,
        Some(None) => Err(deadline.error(last)),
        None => Err(ClientError::Closed),
    }
}

fn partition_names(
    topic: &TopicName,
    partitions: std::ops::Range<u32>,
) -> Result<Vec<TopicName>, ClientError> {
    if partitions.end > PARTITIONS_MAX {
        return Err(ClientError::UnexpectedAnswer("too many partitions"));
    }
    partitions
        .map(|partition| {
            let name = format!("{topic}-partition-{partition}");
            TopicName::parse(&name)
                .map_err(|_| ClientError::UnexpectedAnswer("a topic name too long for partitions"))
        })
        .collect()
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("topic", &self.inner.topic)
            .field("name", &self.name())
            .field("partitions", &self.partition_count())
            .finish_non_exhaustive()
    }
}

/// Producers of partitions that are opened at the same time.
const OPENING_MAX: usize = 32;
/// What a broker may say of its partitions: each costs a producer.
const PARTITIONS_MAX: u32 = 10_000;
