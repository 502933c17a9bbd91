//! How a producer behaves, and what it is given to send.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::error::SendError;
pub use super::routing::{HashingScheme, Routing};
use crate::{
    client::message_id::MessageId,
    protocol::proto::pulsar::{KeyValue, MessageMetadata},
};

pub use crate::protocol::proto::pulsar::{CompressionType, ProducerAccessMode, Schema};

/// How a producer behaves. The defaults are those of the Java client, but for the queue: it has one bound in messages and
/// one in bytes, for each partition.
#[derive(Clone)]
pub struct ProducerOptions {
    /// The name, unique among the producers of the topic. `None`: the broker chooses one.
    pub name: Option<String>,
    /// Whether other producers may be there (PIP-68).
    pub access_mode: ProducerAccessMode,
    /// Several messages in one entry. `None`: every message is an entry of its own.
    pub batching: Option<BatchingOptions>,
    /// The codec of payloads and of batches.
    pub compression: CompressionType,
    /// A payload or batch below this many bytes is not compressed.
    pub compression_min_size: usize,
    /// Whether a message that is too large for one entry is sent in several (PIP-37).
    pub chunking: bool,
    /// The largest chunk in bytes, if less than what the broker's limit leaves.
    pub chunk_max_size: Option<usize>,
    /// Messages of one partition without receipt. At least 1.
    pub max_pending: usize,
    /// Bytes of the messages of one partition without receipt; a single message may be larger.
    pub max_pending_bytes: usize,
    /// From enqueueing to the receipt. When the oldest message has it not in time, that message and all behind it fail,
    /// so that what the application sends again does not overtake. `None`: never.
    pub send_timeout: Option<Duration>,
    /// The sequence id of the first message; otherwise one more than the last that the broker knows of this name.
    pub initial_sequence_id: Option<u64>,
    /// Registered with the topic when the producer is created; messages carry the version that it got.
    pub schema: Option<Schema>,
    /// Shown in the statistics of the topic.
    pub properties: Vec<(String, String)>,
    /// A subscription that is created together with the topic (`initial_subscription_name`).
    pub initial_subscription: Option<String>,
    /// Which partition a message goes to.
    pub routing: Routing,
    /// The hash of keys that chooses a partition; all producers of a topic must agree on it.
    pub hashing: HashingScheme,
    /// How often a partitioned topic is asked for new partitions. `None`: never.
    pub auto_update_partitions: Option<Duration>,
}

/// When a batch is sent: when the first of these is reached, or by [`Producer::flush`](super::Producer::flush).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchingOptions {
    /// Messages of one batch.
    pub max_messages: u32,
    /// Uncompressed bytes of one batch. A message that is as large goes alone.
    pub max_bytes: usize,
    /// The time that the first message waits for others.
    pub max_delay: Duration,
    /// A batch for each key, so that Key_Shared subscriptions can give entries to consumers by key.
    pub key_based: bool,
}

impl Default for BatchingOptions {
    /// 1,000 messages, 128 KiB, 1 ms.
    fn default() -> Self {
        Self {
            max_messages: 1000,
            max_bytes: 128 * 1024,
            max_delay: Duration::from_millis(1),
            key_based: false,
        }
    }
}

impl Default for ProducerOptions {
    /// Shared access, batches, no compression, 30 s to send, new partitions every minute.
    fn default() -> Self {
        Self {
            name: None,
            access_mode: ProducerAccessMode::Shared,
            batching: Some(BatchingOptions::default()),
            compression: CompressionType::None,
            compression_min_size: 4 * 1024,
            chunking: false,
            chunk_max_size: None,
            max_pending: 1000,
            max_pending_bytes: 64 * 1024 * 1024,
            send_timeout: Some(Duration::from_secs(30)),
            initial_sequence_id: None,
            schema: None,
            properties: Vec::new(),
            initial_subscription: None,
            routing: Routing::RoundRobin,
            hashing: HashingScheme::JavaStringHash,
            auto_update_partitions: Some(Duration::from_secs(60)),
        }
    }
}

impl fmt::Debug for ProducerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerOptions")
            .field("name", &self.name)
            .field("access_mode", &self.access_mode)
            .field("batching", &self.batching)
            .field("compression", &self.compression)
            .field("chunking", &self.chunking)
            .field("max_pending", &self.max_pending)
            .field("send_timeout", &self.send_timeout)
            .finish_non_exhaustive()
    }
}

/// A message to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The content.
    pub payload: Bytes,
    /// What it is about: chooses the partition, the consumer of a Key_Shared subscription, and what compaction keeps.
    pub key: Option<MessageKey>,
    /// Chooses the consumer of a Key_Shared subscription instead of the key.
    pub ordering_key: Option<Bytes>,
    /// Names and values that the application adds.
    pub properties: Vec<(String, String)>,
    /// When it happened, in milliseconds since 1970.
    pub event_time: Option<u64>,
    /// Its place in the order of the producer, for deduplication: ids must go up. `None`: the producer counts.
    pub sequence_id: Option<u64>,
    /// When it is to be delivered, in milliseconds since 1970. Such a message is never part of a batch.
    pub deliver_at: Option<i64>,
    /// The clusters that it is replicated to, instead of those of the namespace.
    pub replicate_to: Vec<String>,
    /// Whether it stays in this cluster.
    pub disable_replication: bool,
    /// Whether it has no value at all, which is not the same as an empty one: compaction removes its key.
    pub null_value: bool,
    /// The version of its schema, where that is not the producer's.
    pub schema_version: Option<Bytes>,
}

/// The key of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageKey {
    /// Text.
    Text(String),
    /// Bytes; on the wire in Base64 with a mark.
    Bytes(Bytes),
}

impl From<&str> for MessageKey {
    fn from(key: &str) -> Self {
        Self::Text(key.to_owned())
    }
}

impl From<String> for MessageKey {
    fn from(key: String) -> Self {
        Self::Text(key)
    }
}

impl OutgoingMessage {
    /// A message of nothing but this content.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            ..Self::default()
        }
    }

    /// The metadata, without what the producer adds, and the content.
    pub(crate) fn into_parts(self) -> (MessageMetadata, Bytes, Option<u64>) {
        let (partition_key, partition_key_b64_encoded) = match self.key {
            None => (None, None),
            Some(MessageKey::Text(key)) => (Some(key), Some(false)),
            Some(MessageKey::Bytes(key)) => (Some(super::base64::encode(&key)), Some(true)),
        };
        let replicate_to = if self.disable_replication {
            vec![NOT_REPLICATED.to_owned()]
        } else {
            self.replicate_to
        };
        let properties = self.properties.into_iter();
        let metadata = MessageMetadata {
            properties: properties
                .map(|(key, value)| KeyValue { key, value })
                .collect(),
            partition_key,
            partition_key_b64_encoded,
            ordering_key: self.ordering_key,
            event_time: self.event_time,
            deliver_at_time: self.deliver_at,
            replicate_to,
            null_value: self.null_value.then_some(true),
            schema_version: self.schema_version,
            ..MessageMetadata::default()
        };
        (metadata, self.payload, self.sequence_id)
    }
}

/// An entry that is stored as it is: replicators and compactors take it from one topic to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    /// Of its first message.
    pub sequence_id: u64,
    /// Of its last message, for a batch.
    pub highest_sequence_id: Option<u64>,
    /// How many messages the entry has. At least 1.
    pub num_messages: i32,
    /// Whether it is a chunk.
    pub is_chunk: bool,
    /// Whether it is a marker of a broker rather than a message of an application.
    pub marker: bool,
    /// Metadata size, metadata and payload, without checksum: that is computed here.
    pub headers_and_payload: Bytes,
    /// Comes back with the receipt.
    pub token: u64,
}

/// What became of a message that was sent with a token.
#[derive(Debug, Clone)]
pub struct Acknowledgement {
    /// The token.
    pub token: u64,
    /// Where it is stored, or why it is not known to be.
    pub result: Result<MessageId, SendError>,
}

/// Takes the receipts of messages that were sent with tokens.
pub trait ReceiptSink: Send + Sync {
    /// Receipts, in the order of their messages within a partition. Called on a connection's task or the producer's:
    /// never blocks, and sends nothing by itself but through something that is queued.
    fn on_receipts(&self, receipts: &[Acknowledgement]);
}

/// The tokens of the messages of one call: `first`, `first + step`, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    /// Of the first message.
    pub first: u64,
    /// What each further one has more.
    pub step: u64,
}

/// The cluster name of a message that stays where it is (`MessageImpl.disableReplication` of the Java client).
const NOT_REPLICATED: &str = "__local__";

/// Something that is called for every message to choose its partition.
pub type CustomRouting = Arc<dyn Fn(&OutgoingMessage, u32) -> u32 + Send + Sync>;
