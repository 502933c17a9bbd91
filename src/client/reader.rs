//! Readers: consumers that choose where they begin and leave no position behind.
//!
//! A [`Reader`] is a consumer of a subscription of its own that is not durable, as in Apache's clients. What was read is
//! acknowledged cumulatively, so that statistics tell how far it is. Start at [`PulsarClient::reader`].

use std::time::Duration;

use super::{
    consumer::{
        AckError, ChunkOptions, Consumer, ConsumerOptions, HasMessageId, KeySharedPolicy,
        MessageView, RawEntry, ReceiveError, ReceivedMessage, Schema, SeekTo, Topics,
    },
    error::ClientError,
    message_id::MessageId,
    pulsar_client::PulsarClient,
};
use crate::naming::TopicName;

/// How a reader behaves.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// Behind which message it begins: [`MessageId::earliest`] for all there are, [`MessageId::latest`] for none of them.
    pub start: MessageId,
    /// Whether it begins with that message itself, and a seek goes to the message that it names.
    pub start_inclusive: bool,
    /// Begin this long before now instead, by publish time. Whole seconds count.
    pub start_rollback: Option<Duration>,
    /// Its name.
    pub name: Option<String>,
    /// The name of its subscription; without one a random one that begins with `reader-`.
    pub subscription: Option<String>,
    /// Read the compacted topic: only the latest message of each key.
    pub read_compacted: bool,
    /// Only messages whose keys have a hash, 0 to 65535, in one of these ranges, both ends included.
    pub key_hash_ranges: Vec<(u16, u16)>,
    /// Messages that the broker may send ahead. 0: one at a time.
    pub receiver_queue_size: u32,
    /// Bytes of messages that may wait: see [`ConsumerOptions::receiver_queue_bytes`].
    pub receiver_queue_bytes: usize,
    /// Properties of the consumer, shown in its statistics.
    pub properties: Vec<(String, String)>,
    /// The schema that the topic has to be readable with.
    pub schema: Option<Schema>,
    /// Whether a topic that does not exist is created, where the broker allows it.
    pub force_topic_creation: bool,
    /// Messages in several entries.
    pub chunks: ChunkOptions,
    /// How large a message or batch may be when decompressed, in bytes.
    pub max_message_size: usize,
    /// How often is looked for new partitions. `None` = never.
    pub auto_update_partitions: Option<Duration>,
}

impl ReaderOptions {
    /// The defaults of a Java reader, with this beginning.
    pub fn new(start: MessageId) -> Self {
        let consumer = ConsumerOptions::new("");
        Self {
            start,
            start_inclusive: false,
            start_rollback: None,
            name: None,
            subscription: None,
            read_compacted: false,
            key_hash_ranges: Vec::new(),
            receiver_queue_size: consumer.receiver_queue_size,
            receiver_queue_bytes: consumer.receiver_queue_bytes,
            properties: Vec::new(),
            schema: None,
            force_topic_creation: true,
            chunks: consumer.chunks,
            max_message_size: consumer.max_message_size,
            auto_update_partitions: consumer.auto_update_partitions,
        }
    }

    fn into_consumer(self) -> ConsumerOptions {
        let subscription = self
            .subscription
            .unwrap_or_else(|| format!("reader-{:010x}", rand::random::<u64>() >> 24));
        let start = if self.start_rollback.is_some() {
            MessageId::earliest()
        } else {
            self.start
        };
        ConsumerOptions {
            consumer_name: self.name,
            durable: false,
            start_message_id: Some(start),
            start_message_inclusive: self.start_inclusive,
            start_rollback: self.start_rollback,
            read_compacted: self.read_compacted,
            key_shared: (!self.key_hash_ranges.is_empty()).then_some(KeySharedPolicy::Sticky {
                ranges: self.key_hash_ranges,
                allow_out_of_order: false,
            }),
            receiver_queue_size: self.receiver_queue_size,
            receiver_queue_bytes: self.receiver_queue_bytes,
            properties: self.properties,
            schema: self.schema,
            force_topic_creation: self.force_topic_creation,
            chunks: self.chunks,
            max_message_size: self.max_message_size,
            auto_update_partitions: self.auto_update_partitions,
            ..ConsumerOptions::new(subscription)
        }
    }
}

impl PulsarClient {
    /// Opens a reader of a topic, of all its partitions if it has some.
    ///
    /// # Errors
    /// As [`PulsarClient::consumer`].
    pub async fn reader(
        &self,
        topic: &TopicName,
        options: ReaderOptions,
    ) -> Result<Reader, ClientError> {
        let consumer = self
            .consumer(Topics::One(topic.clone()), options.into_consumer())
            .await?;
        Ok(Reader { consumer })
    }
}

/// A handle on a reader; clones share it. When the last handle is dropped it is closed in the background.
#[derive(Debug, Clone)]
pub struct Reader {
    consumer: Consumer,
}

impl Reader {
    /// The next message. Cancel-safe.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn recv(&self) -> Result<ReceivedMessage, ReceiveError> {
        let message = self.consumer.recv().await?;
        self.has_read(&message).await;
        Ok(message)
    }

    /// As [`Consumer::receive_each`].
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn receive_each(
        &self,
        max_entries: usize,
        mut visit: impl FnMut(MessageView<'_>),
    ) -> Result<usize, ReceiveError> {
        let mut last = None;
        let count = self
            .consumer
            .receive_each(max_entries, |view| {
                // All are of one topic.
                last = Some((std::sync::Arc::clone(view.topic()), view.id()));
                visit(view);
            })
            .await?;
        if let Some(last) = last {
            self.has_read(&last).await;
        }
        Ok(count)
    }

    /// As [`Consumer::recv_entry`].
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn recv_entry(&self) -> Result<RawEntry, ReceiveError> {
        let entry = self.consumer.recv_entry().await?;
        self.has_read(&entry).await;
        Ok(entry)
    }

    /// Without receipts acknowledging never waits; that it is too late for it is told by the next receive.
    async fn has_read(&self, message: &impl HasMessageId) {
        let acknowledged: Result<(), AckError> = self.consumer.ack_cumulative(message).await;
        drop(acknowledged);
    }

    /// Whether there is a message that was not read yet. Where it says so a [`recv`](Self::recv) will return one, unless that
    /// is compacted away, expires or cannot be read.
    ///
    /// # Errors
    /// As [`Consumer::has_message_available`].
    pub async fn has_message_available(&self) -> Result<bool, ClientError> {
        self.consumer.has_message_available().await
    }

    /// As [`Consumer::seek`].
    ///
    /// # Errors
    /// As [`Consumer::seek`].
    pub async fn seek(&self, to: SeekTo) -> Result<(), ClientError> {
        self.consumer.seek(to).await
    }

    /// As [`Consumer::last_message_id`].
    ///
    /// # Errors
    /// As [`Consumer::last_message_id`].
    pub async fn last_message_id(&self) -> Result<MessageId, ClientError> {
        self.consumer.last_message_id().await
    }

    /// What it reads with: status of the topics, pausing, and what else concerns neither subscription nor acknowledgement.
    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Closes it in order.
    pub async fn close(&self) {
        self.consumer.close().await;
    }
}
