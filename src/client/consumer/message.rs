//! What a consumer hands out: a view of a message, a message of its own, or an entry as it came.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::{acknowledgements::Position, permits::permits_of};
use crate::{
    client::message_id::MessageId,
    protocol::{
        message::{EncodedParts, MetadataView},
        proto::pulsar::{BrokerEntryMetadata, CommandMessage, KeyValue, SingleMessageMetadata},
    },
};

/// A message, borrowed from the consumer while it is being received.
#[derive(Debug, Clone, Copy)]
pub struct MessageView<'a> {
    pub(crate) topic: &'a Arc<str>,
    pub(crate) partition: Option<u32>,
    pub(crate) position: Position,
    /// The place in its batch, and the size of that.
    pub(crate) batch: Option<(u32, u32)>,
    pub(crate) first_chunk: Option<Position>,
    pub(crate) redelivery_count: u32,
    pub(crate) metadata: &'a MetadataView<'a>,
    /// What the messages of the entry that are kept have in common.
    pub(crate) common: &'a OnceLock<EntryMetadata>,
    pub(crate) single: Option<&'a SingleMessageMetadata>,
    pub(crate) broker_entry: Option<&'a BrokerEntryMetadata>,
    pub(crate) payload: &'a Bytes,
}

impl<'a> MessageView<'a> {
    /// Where it lies.
    pub fn id(&self) -> MessageId {
        MessageId {
            ledger_id: self.position.0,
            entry_id: self.position.1,
            partition: self.partition,
            batch_index: self.batch.map(|(index, _)| index),
            batch_size: self.batch.map(|(_, size)| size),
            first_chunk: self.first_chunk.map(Box::new),
        }
    }

    /// Ledger and entry.
    pub fn position(&self) -> (u64, u64) {
        self.position
    }

    /// The place in its batch and the size of the batch.
    pub fn batch(&self) -> Option<(u32, u32)> {
        self.batch
    }

    /// The topic; of a partitioned one the partition.
    pub fn topic(&self) -> &'a Arc<str> {
        self.topic
    }

    /// The content. It may share a larger piece of memory: a copy of a small one that is kept for long saves that.
    pub fn payload(&self) -> &'a Bytes {
        self.payload
    }

    /// How often it was asked for again, as the broker counts.
    pub fn redelivery_count(&self) -> u32 {
        self.redelivery_count
    }

    /// The metadata of its entry.
    pub fn metadata(&self) -> &'a MetadataView<'a> {
        self.metadata
    }

    /// When it was published, in milliseconds since 1970.
    pub fn publish_time(&self) -> u64 {
        self.metadata.publish_time
    }

    /// What its application set as its time, in milliseconds since 1970.
    pub fn event_time(&self) -> Option<u64> {
        let time = match self.single {
            Some(single) => single.event_time,
            None => self.metadata.event_time,
        };
        time.filter(|time| *time > 0)
    }

    /// Its number, as its producer counts.
    pub fn sequence_id(&self) -> u64 {
        self.single
            .and_then(|single| single.sequence_id)
            .unwrap_or(self.metadata.sequence_id)
    }

    /// Its key, as it was sent: base64 of bytes where [`is_key_base64`](Self::is_key_base64) says so.
    pub fn key(&self) -> Option<&'a str> {
        let (key, is_null) = match self.single {
            Some(single) => (single.partition_key.as_deref(), single.null_partition_key()),
            None => (
                self.metadata.partition_key,
                self.metadata.null_partition_key.unwrap_or_default(),
            ),
        };
        key.filter(|_| !is_null)
    }

    /// Whether the key is base64 of bytes.
    pub fn is_key_base64(&self) -> bool {
        match self.single {
            Some(single) => single.partition_key_b64_encoded(),
            None => self.metadata.partition_key_b64_encoded.unwrap_or_default(),
        }
    }

    /// What it is ordered by in a Key_Shared subscription, in place of its key.
    pub fn ordering_key(&self) -> Option<&'a [u8]> {
        match self.single {
            Some(single) => single.ordering_key.as_deref(),
            None => self.metadata.ordering_key,
        }
    }

    /// Whether it has no content, which is not the same as an empty one.
    pub fn is_null(&self) -> bool {
        match self.single {
            Some(single) => single.null_value(),
            None => self.metadata.null_value.unwrap_or_default(),
        }
    }

    /// Whether the payload is still encrypted; then it is compressed and may be a whole batch, as the metadata says.
    pub fn is_encrypted(&self) -> bool {
        self.metadata.is_encrypted()
    }

    /// What the broker added: the number of the message in its topic (of a batch: of its last one) and when it came.
    pub fn broker_entry(&self) -> Option<&'a BrokerEntryMetadata> {
        self.broker_entry
    }

    /// The number of the message in its topic, where the broker tells it (PIP-70).
    pub fn index(&self) -> Option<u64> {
        let last = self.broker_entry?.index?;
        match self.batch {
            Some((index, size)) => {
                let behind = size.checked_sub(index)?.checked_sub(1)?;
                last.checked_sub(u64::from(behind))
            }
            None => Some(last),
        }
    }

    /// What it has in common with the other messages of its entry, as a value to be shared.
    pub(crate) fn entry_metadata(&self) -> &'a EntryMetadata {
        self.common.get_or_init(|| EntryMetadata::of(self.metadata))
    }

    /// The same as a value of its own.
    pub fn to_message(&self) -> ReceivedMessage {
        let owned = |text: &str| text.to_owned();
        let properties = match self.single {
            Some(single) => single
                .properties
                .iter()
                .map(|property| (property.key.clone(), property.value.clone()))
                .collect(),
            None => self
                .metadata
                .properties()
                .map(|(key, value)| (owned(key), owned(value)))
                .collect(),
        };
        let payload = if self.payload.len() < SMALL {
            Bytes::copy_from_slice(self.payload)
        } else {
            self.payload.clone()
        };
        let common = self.entry_metadata();
        ReceivedMessage {
            id: self.id(),
            topic: Arc::clone(self.topic),
            payload,
            key: self.key().map(owned),
            is_key_base64: self.is_key_base64(),
            ordering_key: self.ordering_key().map(Bytes::copy_from_slice),
            properties,
            publish_time: self.publish_time(),
            event_time: self.event_time(),
            producer_name: Arc::clone(&common.producer_name),
            sequence_id: self.sequence_id(),
            redelivery_count: self.redelivery_count,
            schema_version: common.schema_version.clone(),
            index: self.index(),
            broker_publish_time: self.broker_entry.and_then(|entry| entry.broker_timestamp),
            is_null: self.is_null(),
            is_encrypted: self.is_encrypted(),
            replicated_from: common.replicated_from.clone(),
        }
    }
}

/// What the messages of an entry have in common and can be large: made once, however many of them are kept.
#[derive(Debug, Clone)]
pub(crate) struct EntryMetadata {
    producer_name: Arc<str>,
    schema_version: Option<Bytes>,
    replicated_from: Option<Arc<str>>,
}

impl EntryMetadata {
    /// A copy of what the metadata of an entry says.
    fn of(metadata: &MetadataView<'_>) -> Self {
        Self {
            producer_name: metadata.producer_name.into(),
            schema_version: metadata.schema_version.map(Bytes::copy_from_slice),
            replicated_from: metadata.replicated_from.map(Arc::from),
        }
    }

    /// What these messages were made of, with the numbers of their entry.
    pub(crate) fn view(&self, sequence_id: u64, publish_time: u64) -> MetadataView<'_> {
        let mut metadata = MetadataView::default();
        metadata.producer_name = &self.producer_name;
        metadata.sequence_id = sequence_id;
        metadata.publish_time = publish_time;
        metadata.schema_version = self.schema_version.as_deref();
        metadata.replicated_from = self.replicated_from.as_deref();
        metadata
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Where it lies.
    pub id: MessageId,
    /// The topic; of a partitioned one the partition.
    pub topic: Arc<str>,
    /// The content. From 1 KiB on it may share memory with messages that came with it, at most 128 KiB.
    pub payload: Bytes,
    /// Its key, as it was sent.
    pub key: Option<String>,
    /// Whether the key is base64 of bytes.
    pub is_key_base64: bool,
    /// What it is ordered by in a Key_Shared subscription, in place of its key.
    pub ordering_key: Option<Bytes>,
    /// In the order in which they were sent.
    pub properties: Vec<(String, String)>,
    /// In milliseconds since 1970.
    pub publish_time: u64,
    /// What its application set as its time, in milliseconds since 1970.
    pub event_time: Option<u64>,
    /// Who published it. Shared with the other messages of its entry.
    pub producer_name: Arc<str>,
    /// Its number, as its producer counts.
    pub sequence_id: u64,
    /// How often it was asked for again, as the broker counts.
    pub redelivery_count: u32,
    /// The version of its schema.
    pub schema_version: Option<Bytes>,
    /// Its number in the topic, where the broker tells it (PIP-70).
    pub index: Option<u64>,
    /// When the broker took it, in milliseconds since 1970, where the broker tells it.
    pub broker_publish_time: Option<u64>,
    /// Whether it has no content, which is not the same as an empty one.
    pub is_null: bool,
    /// Whether the payload is still encrypted; then it is compressed and may be a whole batch.
    pub is_encrypted: bool,
    /// The cluster that it was replicated from.
    pub replicated_from: Option<Arc<str>>,
}

impl ReceivedMessage {
    /// The view of a message that was made to see whether there is one.
    pub(crate) fn with_view(&self, visit: impl FnOnce(MessageView<'_>)) {
        let common = EntryMetadata {
            producer_name: Arc::clone(&self.producer_name),
            schema_version: self.schema_version.clone(),
            replicated_from: self.replicated_from.clone(),
        };
        let metadata = common.view(self.sequence_id, self.publish_time);
        let common = OnceLock::from(common.clone());
        let property = |(key, value): &(String, String)| KeyValue {
            key: key.clone(),
            value: value.clone(),
        };
        let single = SingleMessageMetadata {
            properties: self.properties.iter().map(property).collect(),
            partition_key: self.key.clone(),
            payload_size: i32::try_from(self.payload.len()).unwrap_or(i32::MAX),
            event_time: self.event_time,
            partition_key_b64_encoded: Some(self.is_key_base64),
            ordering_key: self.ordering_key.clone(),
            sequence_id: Some(self.sequence_id),
            null_value: Some(self.is_null),
            ..SingleMessageMetadata::default()
        };
        let batch = self.id.batch_index.zip(self.id.batch_size);
        let behind = batch.map_or(0, |(index, size)| {
            size.saturating_sub(index).saturating_sub(1)
        });
        // The broker numbers the last message of an entry.
        let index = self.index.map(|index| index.saturating_add(behind.into()));
        let broker_entry = BrokerEntryMetadata {
            broker_timestamp: self.broker_publish_time,
            index,
        };
        let is_numbered = broker_entry != BrokerEntryMetadata::default();
        visit(MessageView {
            topic: &self.topic,
            partition: self.id.partition,
            position: (self.id.ledger_id, self.id.entry_id),
            batch,
            first_chunk: self.id.first_chunk.as_deref().copied(),
            redelivery_count: self.redelivery_count,
            metadata: &metadata,
            common: &common,
            single: Some(&single),
            broker_entry: is_numbered.then_some(&broker_entry),
            payload: &self.payload,
        });
    }
}

/// An entry as it lies in the topic: a message, a batch or a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    /// Where it lies.
    pub id: MessageId,
    /// The topic; of a partitioned one the partition.
    pub topic: Arc<str>,
    /// How often it was asked for again, as the broker counts.
    pub redelivery_count: u32,
    /// Of a batch the messages that are not acknowledged yet, where the broker tells it: bit `i % 64` of word `i / 64`.
    pub ack_set: Vec<i64>,
    /// How many messages that are.
    pub messages: u32,
    /// Broker entry metadata, checksum, metadata and payload, as they came: see [`crate::protocol::message`].
    pub entry: Bytes,
}

/// What has an id that can be acknowledged, and where it matters, the topic that the id is of.
pub trait HasMessageId {
    /// The id.
    fn message_id(&self) -> &MessageId;
    /// The topic, of a partitioned one the partition; needed where a consumer reads several topics.
    fn topic(&self) -> Option<&str>;
}

impl HasMessageId for MessageId {
    fn message_id(&self) -> &MessageId {
        self
    }

    fn topic(&self) -> Option<&str> {
        None
    }
}

impl HasMessageId for ReceivedMessage {
    fn message_id(&self) -> &MessageId {
        &self.id
    }

    fn topic(&self) -> Option<&str> {
        Some(&self.topic)
    }
}

impl HasMessageId for RawEntry {
    fn message_id(&self) -> &MessageId {
        &self.id
    }

    fn topic(&self) -> Option<&str> {
        Some(&self.topic)
    }
}

impl HasMessageId for (Arc<str>, MessageId) {
    fn message_id(&self) -> &MessageId {
        &self.1
    }

    fn topic(&self) -> Option<&str> {
        Some(&self.0)
    }
}

impl<M: HasMessageId> HasMessageId for &M {
    fn message_id(&self) -> &MessageId {
        (**self).message_id()
    }

    fn topic(&self) -> Option<&str> {
        (**self).topic()
    }
}

/// An entry that came and waits to be taken.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QueuedEntry {
    pub(crate) ledger_id: u64,
    pub(crate) entry_id: u64,
    pub(crate) redelivery_count: u32,
    pub(crate) ack_set: Vec<i64>,
    pub(crate) epoch: Option<u64>,
    /// The permits that it took: its messages that are not acknowledged yet.
    pub(crate) count: u32,
    pub(crate) payload: Bytes,
}

impl QueuedEntry {
    /// What came with a MESSAGE.
    pub(crate) fn new(command: CommandMessage, payload: Bytes) -> Self {
        let messages = messages_of(&payload);
        Self {
            ledger_id: command.message_id.ledger_id,
            entry_id: command.message_id.entry_id,
            redelivery_count: command.redelivery_count.unwrap_or_default(),
            count: permits_of(messages, &command.ack_set),
            ack_set: command.ack_set,
            epoch: command.consumer_epoch,
            payload,
        }
    }

    /// Where it lies.
    pub(crate) fn position(&self) -> Position {
        (self.ledger_id, self.entry_id)
    }
}

/// How many messages an entry claims to be; 1 where it cannot be read.
fn messages_of(entry: &Bytes) -> i32 {
    let messages = |parts: EncodedParts| {
        let metadata = MetadataView::read(&parts.metadata)?;
        metadata.num_messages_in_batch
    };
    EncodedParts::split(entry.clone())
        .ok()
        .and_then(messages)
        .unwrap_or(1)
}

/// Payloads below this many bytes are copied into messages that may be kept: it costs little and frees the memory that came
/// with them.
const SMALL: usize = 1024;
