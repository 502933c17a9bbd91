//! Batches in the making. Pure.
// hot path

use std::{collections::BTreeMap, time::Duration};

use bytes::{Bytes, BytesMut};

use super::{entry::SingleMetadataWriter, options::BatchingOptions};
use crate::protocol::proto::pulsar::MessageMetadata;

/// Messages that become one entry.
#[derive(Debug)]
pub(crate) struct Batch<C> {
    /// All fields of the first message, of which a batch keeps what its messages share.
    pub(crate) metadata: MessageMetadata,
    /// The messages as the wire has them, uncompressed.
    pub(crate) payload: BytesMut,
    /// The payload of the last message in bytes.
    pub(crate) last_len: usize,
    /// One for each message.
    pub(crate) completions: Vec<C>,
    pub(crate) first_sequence_id: u64,
    pub(crate) last_sequence_id: u64,
    /// When the first message came.
    pub(crate) created: Duration,
    /// Whether the broker may have its messages already.
    may_be_duplicate: bool,
}

/// The batches in the making: one, or one for each key.
#[derive(Debug)]
pub(crate) struct Batches<C> {
    options: BatchingOptions,
    /// Without batches by key, all are under the empty key. At most `max_messages`.
    open: BTreeMap<Bytes, Batch<C>>,
    messages: usize,
    bytes: usize,
    single: SingleMetadataWriter,
    /// Room for completions, from a batch that was sent.
    spare: Vec<C>,
    /// The length of the last batch in bytes: the next one will be like it.
    last_len: usize,
}

/// What is to be added to a batch: a message, or several that differ in nothing but their sequence ids.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addition<'a> {
    pub(crate) metadata: &'a MessageMetadata,
    pub(crate) payload: &'a Bytes,
    pub(crate) now: Duration,
    /// The largest batch in bytes that the broker takes.
    pub(crate) max_bytes: usize,
}

impl<C> Batches<C> {
    pub(crate) fn new(options: BatchingOptions) -> Self {
        Self {
            options,
            open: BTreeMap::new(),
            messages: 0,
            bytes: 0,
            single: SingleMetadataWriter::default(),
            spare: Vec::new(),
            last_len: 0,
        }
    }

    /// Messages in all batches.
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// Bytes in all batches.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_key_based(&self) -> bool {
        self.options.key_based
    }

    /// When the oldest batch has waited long enough.
    pub(crate) fn due(&self) -> Option<Duration> {
        let created = self.open.values().map(|batch| batch.created).min()?;
        Some(created.saturating_add(self.options.max_delay))
    }

    /// To be called before messages with these fields are added.
    pub(crate) fn prepare(&mut self, addition: Addition<'_>) {
        self.single
            .prepare(addition.metadata, addition.payload.len());
    }

    /// Whether a message fits to what is there; if not, the batches are to be sent first.
    pub(crate) fn fits(&self, addition: Addition<'_>, may_be_duplicate: bool) -> bool {
        if self.messages == 0 {
            return true;
        }
        let size = self.bytes + self.single.overhead() + addition.payload.len();
        let max_bytes = self.options.max_bytes.min(addition.max_bytes);
        let max_messages = usize::try_from(self.options.max_messages).unwrap_or(usize::MAX);
        self.messages < max_messages
            && size <= max_bytes
            && self.open.values().all(|batch| {
                batch.may_be_duplicate == may_be_duplicate
                    && batch.metadata.schema_version == addition.metadata.schema_version
                    && batch.metadata.replicate_to == addition.metadata.replicate_to
            })
    }

    /// Adds a message; says whether the batches are full and to be sent.
    pub(crate) fn add(
        &mut self,
        addition: Addition<'_>,
        sequence_id: u64,
        may_be_duplicate: bool,
        completion: C,
    ) -> bool {
        let key = if self.options.key_based {
            key_of(addition.metadata)
        } else {
            Bytes::new()
        };
        let (spare, room) = (&mut self.spare, self.last_len);
        let batch = self.open.entry(key).or_insert_with(|| Batch {
            metadata: addition.metadata.clone(),
            payload: BytesMut::with_capacity(room),
            last_len: 0,
            completions: std::mem::take(spare),
            first_sequence_id: sequence_id,
            last_sequence_id: sequence_id,
            created: addition.now,
            may_be_duplicate,
        });
        let before = batch.payload.len();
        self.single
            .put(sequence_id, addition.payload, &mut batch.payload);
        batch.last_len = addition.payload.len();
        batch.last_sequence_id = sequence_id;
        batch.completions.push(completion);
        self.messages += 1;
        self.bytes += batch.payload.len() - before;
        let max_messages = usize::try_from(self.options.max_messages).unwrap_or(usize::MAX);
        self.messages >= max_messages || self.bytes >= self.options.max_bytes
    }

    /// Takes all batches, in the order in which they are to be sent.
    pub(crate) fn take(&mut self) -> Vec<Batch<C>> {
        self.last_len = self.bytes.checked_div(self.open.len()).unwrap_or_default();
        self.messages = 0;
        self.bytes = 0;
        let mut batches: Vec<_> = std::mem::take(&mut self.open).into_values().collect();
        // The ids of batches by key lie between each other; what counts for the broker is the last one.
        batches.sort_by_key(|batch| batch.last_sequence_id);
        batches
    }

    /// Takes the room of a batch that was sent.
    pub(crate) fn give_back(&mut self, mut completions: Vec<C>) {
        completions.clear();
        self.spare = completions;
    }
}

/// What a batch by key is of: the ordering key, or else the key.
fn key_of(metadata: &MessageMetadata) -> Bytes {
    match (&metadata.ordering_key, &metadata.partition_key) {
        (Some(key), _) => key.clone(),
        (None, Some(key)) => Bytes::copy_from_slice(key.as_bytes()),
        (None, None) => Bytes::new(),
    }
}
