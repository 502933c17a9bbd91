//! From entries to messages: checksum, decompression, batches, chunks. Pure.

use std::{
    fmt::Display,
    ops::ControlFlow,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use prost::Message;

use super::{
    acknowledgements::Position,
    chunks::{ChunkBytes, Chunks},
    message::{MessageView, QueuedEntry},
    open_batch::{BatchCursor, OpenBatch},
    options::ConsumerOptions,
    start::StartPosition,
};
use crate::protocol::{
    compression,
    message::{EncodedParts, MetadataView},
    proto::pulsar::{BrokerEntryMetadata, CompressionType, command_ack::ValidationError},
};

/// Makes messages of the entries of one topic, in their order.
#[derive(Debug)]
pub(crate) struct Decoder {
    topic: Arc<str>,
    partition: Option<u32>,
    max_message_size: usize,
    chunks: Chunks,
}

/// An entry to decode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) entry: &'a QueuedEntry,
    /// What comes before it is left out.
    pub(crate) start: &'a StartPosition,
    pub(crate) now: Duration,
    /// Asks the clock that publishers count by, in milliseconds since 1970. Few entries need it.
    pub(crate) now_ms: fn() -> u64,
}

/// What an entry turns out to be, told before its messages are handed out: they may be acknowledged while they are.
#[derive(Debug)]
pub(crate) enum Known {
    /// A batch of which the broker says that part is acknowledged: its size.
    Part(u32),
    /// The last one of a message in several: all entries of that.
    Chunks(Vec<Position>),
}

/// Takes what is known.
pub(crate) type Tell<'a> = dyn FnMut(Known) + 'a;

/// Takes a message, and says whether it takes a further one now.
pub(crate) type Visit<'a> = dyn FnMut(MessageView<'_>) -> ControlFlow<()> + 'a;

/// What became of an entry.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// Messages that were handed out.
    pub(crate) messages: u32,
    /// Of a batch, the place of the last one of them.
    pub(crate) last: Option<u32>,
    /// It is a batch of which no further message was taken: the rest of it.
    pub(crate) rest: Option<OpenBatch>,
    /// It cannot be read, from the first message on that was not handed out.
    pub(crate) invalid: Option<Unreadable>,
    /// Messages that will not be completed: acknowledge their entries, they are lost.
    pub(crate) lost: Vec<Lost>,
    /// Entries that are of no use, because what they hold is in others as well: acknowledge them.
    pub(crate) spare: Vec<Position>,
    /// It is part of a message larger than is taken here, and is to be left as it is: what is wrong.
    pub(crate) too_large: Option<String>,
    /// Entries of messages that cannot be completed now: have them delivered again after a while.
    pub(crate) again: Vec<Position>,
    /// It is kept until the rest of its message comes: if the connection is lost before that, it is needed once more.
    pub(crate) is_waiting: bool,
}

/// Why an entry, or the rest of it, cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// What the broker is told.
    pub(crate) code: ValidationError,
    /// For people.
    pub(crate) reason: String,
}

impl Unreadable {
    pub(super) fn new(code: ValidationError, reason: impl Display) -> Self {
        let reason = reason.to_string();
        Self { code, reason }
    }
}

/// A message in several entries that will not be completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Those of its entries that came.
    pub(crate) entries: Vec<Position>,
    /// Why not, for people.
    pub(crate) reason: String,
}

impl Lost {
    pub(super) fn new(entries: Vec<Position>, reason: impl Display) -> Self {
        let reason = reason.to_string();
        Self { entries, reason }
    }
}

impl Decoded {
    /// Whether there is nothing to be acknowledged, asked for again or remembered of it.
    pub(crate) fn is_plain(&self) -> bool {
        self.invalid.is_none()
            && self.lost.is_empty()
            && self.spare.is_empty()
            && self.too_large.is_none()
            && self.again.is_empty()
    }
}

impl Decoder {
    /// A decoder without incomplete messages.
    pub(crate) fn new(
        topic: Arc<str>,
        partition: Option<u32>,
        options: &ConsumerOptions,
        chunk_bytes: Arc<ChunkBytes>,
    ) -> Self {
        Self {
            topic,
            partition,
            max_message_size: options.max_message_size,
            chunks: Chunks::new(options.chunks, options.is_shared(), chunk_bytes),
        }
    }

    /// When the first chunk of the oldest incomplete message came.
    pub(crate) fn oldest_incomplete(&mut self) -> Option<Duration> {
        self.chunks.oldest()
    }

    /// The oldest incomplete message gives way, unless others go because their time is over.
    pub(crate) fn give_up_oldest(&mut self, now: Duration) -> Decoded {
        let mut decoded = Decoded::default();
        self.chunks.expire(now, &mut decoded);
        if decoded.lost.is_empty() {
            self.chunks.give_up_oldest(&mut decoded);
        }
        decoded
    }

    /// Forgets incomplete messages, and those that gave way: the topic is delivered from elsewhere.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
    }

    /// Forgets incomplete messages: everything that is not acknowledged is delivered again.
    pub(crate) fn begin_anew(&mut self) {
        self.chunks.begin_anew();
    }

    /// Hands out the messages of an entry that are wanted: not acknowledged, not before `start`. The messages of a batch are
    /// made one by one, as long as `visit` takes them: a small entry may be a batch of millions.
    pub(crate) fn decode(
        &mut self,
        input: Input<'_>,
        tell: &mut Tell<'_>,
        visit: &mut Visit<'_>,
    ) -> Decoded {
        let mut decoded = Decoded::default();
        self.chunks.expire(input.now, &mut decoded);
        if let Err(error) = self.read(input, tell, visit, &mut decoded) {
            decoded.invalid = Some(error);
        }
        decoded
    }

    fn read(
        &mut self,
        input: Input<'_>,
        tell: &mut Tell<'_>,
        visit: &mut Visit<'_>,
        decoded: &mut Decoded,
    ) -> Result<(), Unreadable> {
        let Input { entry, start, .. } = input;
        // What cannot be read at all is told as a wrong checksum, as Apache's Java client does.
        let code = ValidationError::ChecksumMismatch;
        let parts = EncodedParts::split(entry.payload.clone())
            .map_err(|error| Unreadable::new(code, error))?;
        parts
            .verify_checksum()
            .map_err(|error| Unreadable::new(code, error))?;
        let metadata = MetadataView::read(&parts.metadata)
            .ok_or_else(|| Unreadable::new(code, "its metadata cannot be read"))?;
        let broker_entry = match parts.broker_entry.clone() {
            // It is not the publisher's: a message is as good without it.
            Some(encoded) => BrokerEntryMetadata::decode(encoded).ok(),
            None => None,
        };
        let common = OnceLock::new();
        let view = MessageView {
            topic: &self.topic,
            partition: self.partition,
            position: entry.position(),
            batch: None,
            first_chunk: None,
            redelivery_count: entry.redelivery_count,
            metadata: &metadata,
            common: &common,
            single: None,
            broker_entry: broker_entry.as_ref(),
            payload: &parts.payload,
        };
        let is_chunk = metadata.num_chunks_from_msg.is_some_and(|count| count > 1);
        if is_chunk {
            let chunk = (&parts, view);
            return self.chunks.read(input, chunk, (tell, visit), decoded);
        }
        if metadata.is_encrypted() {
            if !start.leaves_out(entry.position(), None) {
                decoded.messages += 1;
                // There is no further one in this entry.
                let _ = visit(view);
            }
            return Ok(());
        }
        let payload = decompress(&metadata, &parts.payload, self.max_message_size)?;
        let view = MessageView {
            payload: &payload,
            ..view
        };
        match metadata.num_messages_in_batch {
            Some(count) => read_batch(input, (view, count), tell, visit, decoded),
            None => {
                if !start.leaves_out(entry.position(), None) {
                    decoded.messages += 1;
                    let _ = visit(view);
                }
                Ok(())
            }
        }
    }
}

fn read_batch(
    Input { entry, start, .. }: Input<'_>,
    (view, count): (MessageView<'_>, i32),
    tell: &mut Tell<'_>,
    visit: &mut Visit<'_>,
    decoded: &mut Decoded,
) -> Result<(), Unreadable> {
    let mut cursor = BatchCursor::new(view.payload.clone(), count)?;
    // Only now the batch is known to have room for so many messages: a set of that size is made of it.
    if !entry.ack_set.is_empty() {
        tell(Known::Part(cursor.size()));
    }
    let walked = cursor.walk(view, &entry.ack_set, start, visit);
    decoded.messages = walked.messages;
    decoded.last = walked.last;
    if !walked.is_over {
        decoded.rest = Some(OpenBatch::new(cursor, view, &entry.ack_set));
    }
    walked.invalid.map_or(Ok(()), Err)
}

/// The payload before it was compressed.
pub(super) fn decompress(
    metadata: &MetadataView<'_>,
    payload: &Bytes,
    limit: usize,
) -> Result<Bytes, Unreadable> {
    let codec = CompressionType::try_from(metadata.compression.unwrap_or_default())
        .map_err(|error| Unreadable::new(ValidationError::DecompressionError, error))?;
    let claimed = metadata.uncompressed_size.unwrap_or_default();
    compression::decompress(codec, payload, claimed, limit).map_err(|error| {
        let code = match error {
            compression::CompressionError::TooLarge { .. } => {
                ValidationError::UncompressedSizeCorruption
            }
            _ => ValidationError::DecompressionError,
        };
        Unreadable::new(code, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        message::{self, MessageForm},
        proto::pulsar::MessageMetadata,
    };

    #[test]
    fn the_size_that_an_unreadable_batch_claims_is_not_believed() {
        let metadata = MessageMetadata {
            num_messages_in_batch: Some(i32::MAX),
            ..MessageMetadata::default()
        };
        let payload = Bytes::from_static(b"no batch at all");
        let entry = QueuedEntry {
            ledger_id: 1,
            entry_id: 1,
            redelivery_count: 0,
            ack_set: vec![1],
            epoch: None,
            count: 1,
            payload: message::encode(&metadata, payload, MessageForm::default()).to_bytes(),
        };
        let mut decoder = decoder();
        let input = Input {
            entry: &entry,
            start: &StartPosition::unset(),
            now: Duration::ZERO,
            now_ms: || 0,
        };
        let decoded = decoder.decode(input, &mut |known| panic!("{known:?}"), &mut |_| {
            panic!("no message")
        });
        assert_eq!(
            decoded.invalid.map(|unreadable| unreadable.code),
            Some(ValidationError::BatchDeSerializeError)
        );
    }

    fn decoder() -> Decoder {
        let options = ConsumerOptions::new("s");
        let bytes = Arc::new(ChunkBytes::new(options.chunks.max_bytes));
        Decoder::new("t".into(), None, &options, bytes)
    }

    /// A chunk of two of a message that claims so many bytes.
    fn chunk(decoder: &mut Decoder, total: i32) -> Decoded {
        let metadata = MessageMetadata {
            uuid: Some("u".to_owned()),
            chunk_id: Some(0),
            num_chunks_from_msg: Some(2),
            total_chunk_msg_size: Some(total),
            ..MessageMetadata::default()
        };
        let payload = Bytes::from_static(b"the beginning");
        let entry = QueuedEntry {
            ledger_id: 1,
            entry_id: 1,
            redelivery_count: 0,
            ack_set: Vec::new(),
            epoch: None,
            count: 1,
            payload: message::encode(&metadata, payload, MessageForm::default()).to_bytes(),
        };
        let input = Input {
            entry: &entry,
            start: &StartPosition::unset(),
            now: Duration::ZERO,
            now_ms: || 0,
        };
        decoder.decode(input, &mut |known| panic!("{known:?}"), &mut |_| {
            panic!("no message")
        })
    }

    #[test]
    fn a_message_whose_time_is_over_does_not_give_way_but_expires() {
        let mut decoder = decoder();
        assert!(chunk(&mut decoder, 100).is_waiting);
        let minute = Duration::from_secs(60);
        let decoded = decoder.give_up_oldest(minute);
        assert_eq!(decoded.again, []);
        assert_eq!(decoded.lost.len(), 1);
        assert!(chunk(&mut decoder, 100).is_waiting);
        let decoded = decoder.give_up_oldest(minute / 2);
        assert_eq!(decoded.again, [(1, 1)]);
        assert_eq!(decoded.lost, []);
    }

    #[test]
    fn a_large_message_in_chunks_is_taken_and_one_that_is_too_large_left_as_it_is() {
        let mut decoder = decoder();
        assert!(chunk(&mut decoder, (64 << 20) + 1).is_waiting);
        let decoded = chunk(&mut decoder, (512 << 20) + 1);
        assert!(decoded.too_large.is_some());
        assert!(decoded.lost.is_empty() && decoded.spare.is_empty());
        assert!(decoded.invalid.is_none() && decoded.again.is_empty());
    }
}
