//! Batches: several messages in one entry.
//!
//! The payload of a batch, after decryption and decompression, is `u32 size | SingleMessageMetadata | payload` for each
//! message, one after the other. The metadata of the entry has the number of messages (`num_messages_in_batch`, whose
//! mere presence marks a batch), in `sequence_id` the id of the first and in `highest_sequence_id` that of the last.
//!
//! Start at [`BatchReader`] and [`BatchBuilder`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::protocol::compression::{self, CompressionError};
use crate::protocol::message;
use crate::protocol::proto::pulsar::{CompressionType, MessageMetadata, SingleMessageMetadata};
use crate::protocol::required::{self, Violation};
use crate::protocol::wire::WireError;

/// Iterates over the messages of a batch.
///
/// The count comes from the publisher and is distrusted: it must fit the payload exactly, and nothing is allocated by
/// it. After an error the iterator ends.
#[derive(Debug, Clone)]
pub struct BatchReader {
    rest: Bytes,
    /// Messages still claimed to be in `rest`.
    remaining: u32,
    failed: bool,
}

impl BatchReader {
    /// A reader of the uncompressed `payload` of a batch that claims `count` messages (`num_messages_in_batch`).
    ///
    /// # Errors
    /// [`BatchError::Count`] when `count` is not positive or so large that `payload` cannot hold as many messages.
    pub fn new(payload: Bytes, count: i32) -> Result<Self, BatchError> {
        let most = payload.len() / MESSAGE_LEN_MIN;
        let error = BatchError::Count { count, most };
        let remaining = u32::try_from(count).map_err(|_| error.clone())?;
        if remaining == 0 || usize::try_from(remaining).is_ok_and(|remaining| remaining > most) {
            return Err(error);
        }
        Ok(Self {
            rest: payload,
            remaining,
            failed: false,
        })
    }

    /// Messages that are claimed and were not read yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    fn read(&mut self) -> Result<(SingleMessageMetadata, Bytes), BatchError> {
        let size = self.rest.try_get_u32().map_err(|_| BatchError::Fewer)?;
        let metadata_len = match usize::try_from(size) {
            Ok(len) if len <= self.rest.len() => len,
            _ => {
                let available = self.rest.len();
                return Err(BatchError::MetadataBeyondBatch { size, available });
            }
        };
        let metadata = decode_metadata(self.rest.split_to(metadata_len))?;
        let size = metadata.payload_size;
        let payload = match usize::try_from(size) {
            Ok(len) if len <= self.rest.len() => self.rest.split_to(len),
            _ => {
                let available = self.rest.len();
                return Err(BatchError::PayloadBeyondBatch { size, available });
            }
        };
        self.remaining = self.remaining.saturating_sub(1);
        if self.remaining == 0 && !self.rest.is_empty() {
            return Err(BatchError::More {
                bytes: self.rest.len(),
            });
        }
        Ok((metadata, payload))
    }
}

impl Iterator for BatchReader {
    /// The metadata of one message and its payload, a slice of the batch. A message with `compacted_out` set is a gap
    /// that compaction left to keep the indexes of the others.
    type Item = Result<(SingleMessageMetadata, Bytes), BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.remaining == 0 {
            return None;
        }
        let item = self.read();
        self.failed = item.is_err();
        Some(item)
    }
}

impl std::iter::FusedIterator for BatchReader {}

fn decode_metadata(encoded: Bytes) -> Result<SingleMessageMetadata, BatchError> {
    if message::has_too_many_elements(&encoded) {
        return Err(BatchError::TooManyElements);
    }
    required::check_single_message_metadata(&encoded).map_err(|violation| match violation {
        Violation::Missing(field) => BatchError::RequiredFieldMissing { field },
        Violation::Malformed(error) => BatchError::Wire(error),
    })?;
    Ok(SingleMessageMetadata::decode(encoded)?)
}

/// Collects messages and makes one batch of them.
#[derive(Debug)]
pub struct BatchBuilder {
    limits: BatchLimits,
    payload: BytesMut,
    count: i32,
    first_sequence_id: Option<u64>,
    last_sequence_id: Option<u64>,
}

impl BatchBuilder {
    /// An empty batch that will not grow beyond `limits`.
    #[must_use]
    pub fn new(limits: BatchLimits) -> Self {
        Self {
            limits,
            payload: BytesMut::new(),
            count: 0,
            first_sequence_id: None,
            last_sequence_id: None,
        }
    }

    /// Adds a message; its `payload_size` is set here.
    ///
    /// # Errors
    /// [`BatchError::Full`] when the message does not fit into the limits. The batch is unchanged: finish it and add the
    /// message to the next.
    pub fn push(
        &mut self,
        mut metadata: SingleMessageMetadata,
        payload: &[u8],
    ) -> Result<(), BatchError> {
        metadata.payload_size = i32::try_from(payload.len()).map_err(|_| BatchError::Full)?;
        let metadata_len = metadata.encoded_len();
        let added = SIZE_FIELD_LEN
            .saturating_add(metadata_len)
            .saturating_add(payload.len());
        let size = self.payload.len().saturating_add(added);
        let max_bytes = self.limits.max_bytes.min(MAX_BATCH_LEN);
        if self.count >= self.limits.max_messages || size > max_bytes {
            return Err(BatchError::Full);
        }
        let metadata_len = u32::try_from(metadata_len).map_err(|_| BatchError::Full)?;
        self.payload.reserve(added);
        self.payload.put_u32(metadata_len);
        metadata.encode_raw(&mut self.payload);
        self.payload.put_slice(payload);
        self.count += 1;
        if let Some(sequence_id) = metadata.sequence_id {
            self.first_sequence_id.get_or_insert(sequence_id);
            self.last_sequence_id = Some(sequence_id);
        }
        Ok(())
    }

    /// Adds the mark of a message that compaction removed: its metadata without its payload. The other messages keep
    /// their batch indexes.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_compacted_out(
        &mut self,
        mut metadata: SingleMessageMetadata,
    ) -> Result<(), BatchError> {
        metadata.compacted_out = Some(true);
        self.push(metadata, &[])
    }

    /// The number of messages so far.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or_default()
    }

    /// Whether there is no message yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The size so far in bytes, uncompressed.
    #[must_use]
    pub fn uncompressed_len(&self) -> usize {
        self.payload.len()
    }

    /// Ends the batch: the metadata of its entry and its payload compressed with `codec`.
    ///
    /// The metadata is `template` with the fields that describe the batch set: `num_messages_in_batch`,
    /// `uncompressed_size`, `compression`, and `sequence_id` and `highest_sequence_id` from the first and last message
    /// that has a sequence id. `None` when the batch is empty.
    ///
    /// # Errors
    /// [`CompressionError::Encoder`] as [`compression::compress`].
    pub fn finish(
        self,
        mut template: MessageMetadata,
        codec: CompressionType,
    ) -> Result<Option<(MessageMetadata, Bytes)>, CompressionError> {
        if self.is_empty() {
            return Ok(None);
        }
        let payload = self.payload.freeze();
        template.num_messages_in_batch = Some(self.count);
        template.uncompressed_size = u32::try_from(payload.len()).ok();
        template.compression = match codec {
            CompressionType::None => None,
            codec => Some(codec.into()),
        };
        if let Some(first) = self.first_sequence_id {
            template.sequence_id = first;
        }
        if let Some(last) = self.last_sequence_id {
            template.highest_sequence_id = Some(last);
        }
        Ok(Some((template, compression::compress(codec, &payload)?)))
    }
}

/// How far a batch may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// The most messages (`batchingMaxMessages` of a producer).
    pub max_messages: i32,
    /// The largest uncompressed size in bytes (`batchingMaxBytes` of a producer).
    pub max_bytes: usize,
}

impl Default for BatchLimits {
    /// What a Java producer has: 1000 messages, 128 KiB.
    fn default() -> Self {
        Self {
            max_messages: 1000,
            max_bytes: 128 * 1024,
        }
    }
}

/// A batch that does not hold what it claims, or cannot take another message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The number of messages cannot be right, whatever the payload holds.
    #[error("batch claims {count} messages, its payload could hold {most}")]
    Count {
        /// `num_messages_in_batch`.
        count: i32,
        /// The most messages that a payload of this size could hold.
        most: usize,
    },
    /// The payload ends before the last of the claimed messages.
    #[error("batch holds fewer messages than it claims")]
    Fewer,
    /// Bytes are left after the last of the claimed messages.
    #[error("batch has {bytes} bytes after the last message it claims")]
    More {
        /// How many.
        bytes: usize,
    },
    /// The metadata of a message would end after the batch.
    #[error("single message metadata of {size} bytes, but {available} bytes are left")]
    MetadataBeyondBatch {
        /// The size field in bytes.
        size: u32,
        /// The bytes that are there.
        available: usize,
    },
    /// The payload of a message has a negative size or would end after the batch.
    #[error("payload of {size} bytes, but {available} bytes are left in the batch")]
    PayloadBeyondBatch {
        /// `payload_size`.
        size: i32,
        /// The bytes that are there.
        available: usize,
    },
    /// The metadata of a message has more than [`message::METADATA_ELEMENTS_MAX`] strings and properties.
    #[error("single message metadata has too many elements")]
    TooManyElements,
    /// The metadata of a message, or a property in it, lacks a field that it must have.
    #[error("single message metadata lacks its field {field}")]
    RequiredFieldMissing {
        /// The number of the field.
        field: u32,
    },
    /// The metadata of a message is no protobuf message.
    #[error("malformed single message metadata: {0}")]
    Wire(WireError),
    /// The metadata of a message is no `SingleMessageMetadata`.
    #[error("single message metadata does not decode")]
    Metadata(#[from] prost::DecodeError),
    /// A message does not fit into the limits of the batch.
    #[error("the batch is full")]
    Full,
}

const SIZE_FIELD_LEN: usize = size_of::<u32>();

/// The shortest message of a batch in bytes: the size of its metadata, and metadata of nothing but `payload_size`.
const MESSAGE_LEN_MIN: usize = SIZE_FIELD_LEN + 2;

/// The sizes in a batch are signed 32-bit numbers in the clients that read it.
const MAX_BATCH_LEN: usize = 0x7fff_ffff;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(sequence_id: u64) -> SingleMessageMetadata {
        SingleMessageMetadata {
            sequence_id: Some(sequence_id),
            ..Default::default()
        }
    }

    fn read(
        payload: &Bytes,
        count: i32,
    ) -> Result<Vec<(SingleMessageMetadata, Bytes)>, BatchError> {
        BatchReader::new(payload.clone(), count)?.collect()
    }

    /// The messages "ab", "" and "c" with the sequence ids 7, 8 and 9.
    fn three() -> (MessageMetadata, Bytes) {
        let mut builder = BatchBuilder::new(BatchLimits::default());
        builder.push(message(7), b"ab").unwrap();
        builder.push_compacted_out(message(8)).unwrap();
        builder.push(message(9), b"c").unwrap();
        assert_eq!(builder.len(), 3);
        builder
            .finish(MessageMetadata::default(), CompressionType::None)
            .unwrap()
            .unwrap()
    }

    #[test]
    fn writes_the_layout_of_the_wire() {
        let (_, payload) = three();
        let expected = b"\0\0\0\x04\x18\x02\x40\x07ab\0\0\0\x06\x18\x00\x20\x01\x40\x08\0\0\0\x04\x18\x01\x40\x09c";
        assert_eq!(payload, &expected[..]);
    }

    #[test]
    fn describes_the_batch_in_the_metadata_of_the_entry() {
        let (metadata, payload) = three();
        assert_eq!(metadata.num_messages_in_batch, Some(3));
        assert_eq!(metadata.sequence_id, 7);
        assert_eq!(metadata.highest_sequence_id, Some(9));
        assert_eq!(
            metadata.uncompressed_size,
            u32::try_from(payload.len()).ok()
        );
        assert_eq!(metadata.compression, None);
    }

    #[test]
    fn a_batch_of_one_states_its_count() {
        let mut builder = BatchBuilder::new(BatchLimits::default());
        builder.push(message(1), b"x").unwrap();
        let template = MessageMetadata {
            sequence_id: 5,
            ..Default::default()
        };
        let (metadata, _) = builder
            .finish(template, CompressionType::None)
            .unwrap()
            .unwrap();
        assert_eq!(metadata.num_messages_in_batch, Some(1));
        assert_eq!(
            (metadata.sequence_id, metadata.highest_sequence_id),
            (1, Some(1))
        );
    }

    #[test]
    fn without_sequence_ids_the_template_keeps_its_own() {
        let mut builder = BatchBuilder::new(BatchLimits::default());
        builder
            .push(SingleMessageMetadata::default(), b"x")
            .unwrap();
        let template = MessageMetadata {
            sequence_id: 5,
            ..Default::default()
        };
        let (metadata, _) = builder
            .finish(template, CompressionType::None)
            .unwrap()
            .unwrap();
        assert_eq!(
            (metadata.sequence_id, metadata.highest_sequence_id),
            (5, None)
        );
    }

    #[test]
    fn an_empty_batch_is_no_entry() {
        let builder = BatchBuilder::new(BatchLimits::default());
        assert_eq!(
            builder.finish(MessageMetadata::default(), CompressionType::Lz4),
            Ok(None)
        );
    }

    #[test]
    fn compresses_the_batch_as_one_block() {
        let mut builder = BatchBuilder::new(BatchLimits::default());
        builder.push(message(1), &[0; 1000]).unwrap();
        let size = builder.uncompressed_len();
        let (metadata, block) = builder
            .finish(MessageMetadata::default(), CompressionType::Zstd)
            .unwrap()
            .unwrap();
        assert_eq!(metadata.compression(), CompressionType::Zstd);
        let claimed = metadata.uncompressed_size.unwrap();
        let payload =
            compression::decompress(metadata.compression(), &block, claimed, size).unwrap();
        assert_eq!(read(&payload, 1).unwrap()[0].1, &[0; 1000][..]);
    }

    #[test]
    fn a_full_batch_refuses_and_keeps_what_it_has() {
        let mut builder = BatchBuilder::new(BatchLimits {
            max_messages: 2,
            max_bytes: 20,
        });
        builder.push(message(1), b"0123456789").unwrap();
        assert_eq!(
            builder.push(message(2), b"0123456789"),
            Err(BatchError::Full)
        );
        assert_eq!(builder.uncompressed_len(), 18);

        let mut builder = BatchBuilder::new(BatchLimits {
            max_messages: 1,
            max_bytes: 100,
        });
        builder.push(message(1), b"").unwrap();
        assert_eq!(builder.push(message(2), b""), Err(BatchError::Full));
        let (metadata, _) = builder
            .finish(MessageMetadata::default(), CompressionType::None)
            .unwrap()
            .unwrap();
        assert_eq!(metadata.highest_sequence_id, Some(1));
    }

    #[test]
    fn refuses_counts_that_the_payload_cannot_hold() {
        let (_, payload) = three();
        let most = payload.len() / 6;
        for count in [i32::MIN, -1, 0, i32::MAX, 6] {
            assert_eq!(
                read(&payload, count),
                Err(BatchError::Count { count, most })
            );
        }
        assert_eq!(
            read(&Bytes::new(), 1),
            Err(BatchError::Count { count: 1, most: 0 })
        );
    }

    #[test]
    fn refuses_fewer_and_more_messages_than_claimed() {
        let (_, payload) = three();
        assert_eq!(read(&payload, 4), Err(BatchError::Fewer));
        assert_eq!(read(&payload, 2), Err(BatchError::More { bytes: 9 }));
    }

    #[test]
    fn ends_after_an_error() {
        let (_, payload) = three();
        let mut reader = BatchReader::new(payload, 4).unwrap();
        assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 3);
        assert!(reader.next().is_none());
    }

    #[test]
    fn refuses_missing_sizes_and_sizes_beyond_the_batch() {
        for size in [3_u32, 0x7fff_ffff, u32::MAX] {
            let mut payload = BytesMut::new();
            payload.put_u32(size);
            payload.put_slice(b"\x18\x00");
            let error = BatchError::MetadataBeyondBatch { size, available: 2 };
            assert_eq!(read(&payload.freeze(), 1), Err(error));
        }
        let metadata = Bytes::from_static(b"\0\0\0\x02\x40\x07");
        assert_eq!(
            read(&metadata, 1),
            Err(BatchError::RequiredFieldMissing { field: 3 })
        );
        for size in [2, -1, i32::MIN, i32::MAX] {
            let metadata = SingleMessageMetadata {
                payload_size: size,
                ..Default::default()
            };
            let mut payload = BytesMut::new();
            payload.put_u32(u32::try_from(metadata.encoded_len()).unwrap());
            metadata.encode_raw(&mut payload);
            payload.put_u8(0);
            let error = BatchError::PayloadBeyondBatch { size, available: 1 };
            assert_eq!(read(&payload.freeze(), 1), Err(error));
        }
    }

    proptest! {
        #[test]
        fn reads_what_was_built(
            messages in proptest::collection::vec(
                (any::<Option<u64>>(), ".{0,9}", proptest::collection::vec(any::<u8>(), 0..50)),
                1..20,
            ),
        ) {
            let mut builder = BatchBuilder::new(BatchLimits::default());
            let mut expected = Vec::new();
            for (sequence_id, key, payload) in messages {
                let mut metadata = SingleMessageMetadata {
                    sequence_id,
                    partition_key: Some(key),
                    ..Default::default()
                };
                builder.push(metadata.clone(), &payload).unwrap();
                metadata.payload_size = i32::try_from(payload.len()).unwrap();
                expected.push((metadata, Bytes::from(payload)));
            }
            let (metadata, payload) =
                builder.finish(MessageMetadata::default(), CompressionType::None).unwrap().unwrap();
            prop_assert_eq!(read(&payload, metadata.num_messages_in_batch.unwrap()), Ok(expected));
        }
    }
}
