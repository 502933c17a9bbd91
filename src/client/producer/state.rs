//! What a producer of one topic or partition knows: its messages without receipt, its batches, its sequence ids. Pure: no
//! IO, time and names passed in.
//!
//! `C` is who is told what became of a message; it comes back in an [`Outcome`], exactly once.
// hot path

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;

use super::{
    batch::{Addition, Batch, Batches},
    entry::{self, MetadataWriter},
    error::SendError,
    options::{BatchingOptions, RawEntry},
    pending::{ChunkPlace, Entry, Pending},
};
use crate::{
    client::{error::ClientError, message_id::MessageId},
    protocol::{
        chunk, compression,
        proto::pulsar::{CommandSend, CompressionType, MessageMetadata},
    },
};

/// What became of a message.
#[derive(Debug)]
pub(crate) struct Outcome<C> {
    pub(crate) completion: C,
    pub(crate) result: Result<MessageId, SendError>,
}

/// The bounds and forms of one producer.
#[derive(Debug, Clone)]
pub(crate) struct StateOptions {
    pub(crate) producer_id: u64,
    /// The partition that is produced to.
    pub(crate) partition: Option<u32>,
    pub(crate) batching: Option<BatchingOptions>,
    pub(crate) compression: CompressionType,
    pub(crate) compression_min_size: usize,
    pub(crate) chunking: bool,
    pub(crate) chunk_max_size: Option<usize>,
    pub(crate) max_pending: usize,
    pub(crate) max_pending_bytes: usize,
    pub(crate) send_timeout: Option<Duration>,
    pub(crate) initial_sequence_id: Option<u64>,
}

/// What a broker said when it took the producer.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    pub(crate) name: String,
    /// The last sequence id that the broker has of this name.
    pub(crate) last_sequence_id: Option<u64>,
    /// The version of the producer's schema.
    pub(crate) schema_version: Option<Bytes>,
    /// The largest message, metadata included, in bytes.
    pub(crate) max_message_size: usize,
}

/// The time, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Since the producer was created.
    pub(crate) elapsed: Duration,
    /// In milliseconds since 1970.
    pub(crate) publish_time: u64,
}

/// Messages to be sent that differ in nothing but their sequence ids.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) metadata: MessageMetadata,
    /// Compressed, unless the message may become part of a batch.
    pub(crate) payload: Bytes,
    /// Given by the application.
    pub(crate) sequence_id: Option<u64>,
    /// How many messages.
    pub(crate) count: usize,
}

/// What is to be done after a SEND_ERROR.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AfterSendError {
    /// Nothing.
    GoOn,
    /// All messages are to be sent again on this connection.
    Resend,
    /// The topic takes no messages any more: the producer has ended.
    Terminated,
    /// The connection is to be closed, and all messages sent again on another one.
    Reconnect,
}

/// A receipt that no honest broker sends; with what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadReceipt(pub(crate) &'static str);

/// All that was enqueued before some moment, to be waited for.
#[derive(Debug, Clone)]
pub(crate) struct Flush {
    /// The number of the first entry that does not belong to it.
    end: u64,
    /// The first error of what belongs to it.
    failure: Arc<OnceLock<SendError>>,
}

impl Flush {
    /// The number that [`ProducerState::first_ordinal`] has when all is answered.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// A message that belongs to it failed; only the first error counts.
    pub(super) fn fail(&self, error: &SendError) {
        self.failure.get_or_init(|| error.clone());
    }

    /// How it ended, once all is answered.
    pub(crate) fn result(&self) -> Result<(), SendError> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ProducerState<C> {
    pub(super) options: StateOptions,
    pub(super) name: String,
    /// The name as it stands in the metadata of messages.
    pub(super) name_field: Bytes,
    pub(super) schema_version: Option<Bytes>,
    pub(super) max_message_size: usize,
    /// `None` until a broker took the producer for the first time.
    pub(super) next_sequence_id: Option<u64>,
    pub(super) last_pushed: Option<u64>,
    pub(super) last_published: Option<u64>,
    pub(super) pending: Pending<C>,
    pub(super) batches: Option<Batches<C>>,
    pub(super) writer: MetadataWriter,
    /// Where the first chunk of the chunked message at the front lies.
    pub(super) first_chunk: Option<(u64, u64)>,
    /// Flushes that are not over, by their ends. Those of one end share an item until it has failed, so there are no more than
    /// a few for each entry that waits.
    pub(super) flushes: VecDeque<Flush>,
    pub(super) ended: Option<SendError>,
    /// What went wrong since the last receipt, for messages that get none.
    pub(super) problem: Option<Box<ClientError>>,
    /// What is to be told once the lock is released.
    pub(super) outcomes: Vec<Outcome<C>>,
}

impl<C> ProducerState<C> {
    pub(crate) fn new(options: StateOptions) -> Self {
        Self {
            name: String::new(),
            name_field: Bytes::new(),
            schema_version: None,
            max_message_size: 0,
            next_sequence_id: None,
            last_pushed: None,
            last_published: None,
            pending: Pending::new(),
            batches: options.batching.map(Batches::new),
            writer: MetadataWriter::default(),
            first_chunk: None,
            flushes: VecDeque::new(),
            ended: None,
            problem: None,
            outcomes: Vec::new(),
            options,
        }
    }

    /// A broker took the producer. What waits is to be sent, from the front on, and was not sent on this connection.
    pub(crate) fn open(&mut self, opened: Opened) {
        self.name_field = entry::name_field(&opened.name);
        self.name = opened.name;
        self.schema_version = opened.schema_version;
        self.max_message_size = opened.max_message_size;
        if self.next_sequence_id.is_none() {
            // Later answers do not count: they do not know what waits here.
            let last = self.options.initial_sequence_id.or(opened.last_sequence_id);
            self.last_published = last;
            self.last_pushed = last;
            self.next_sequence_id = Some(last.map_or(0, |last| last.wrapping_add(1)));
        }
        self.pending.rewind();
        // A broker that takes less than the last one would close the connection again and again.
        while let Some((front, _)) = self.pending.front() {
            let size = front.frame_len;
            if size <= self.max_message_size.saturating_add(FRAME_PADDING) {
                break;
            }
            let max = self.max_message_size;
            // Of a chunked one the last chunk may fit, and its receipt would be taken for that of the whole.
            self.fail_message(&SendError::TooLarge { size, max });
        }
    }

    /// The connection is gone.
    pub(crate) fn detach(&mut self) {
        self.pending.rewind();
    }

    /// Takes what became of messages since the last call, in exchange for the room in `empty`.
    pub(crate) fn take_outcomes(&mut self, empty: &mut Vec<Outcome<C>>) {
        if !self.outcomes.is_empty() {
            std::mem::swap(&mut self.outcomes, empty);
        }
    }

    /// Why nothing more can be sent.
    pub(crate) fn ended(&self) -> Option<&SendError> {
        self.ended.as_ref()
    }

    /// The name to ask for: that of the producers of other partitions.
    pub(crate) fn set_name(&mut self, name: String) {
        self.name = name;
    }

    /// The name, once a broker took the producer.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The version of the producer's schema.
    pub(crate) fn schema_version(&self) -> Option<&Bytes> {
        self.schema_version.as_ref()
    }

    /// The highest sequence id that is known to be stored.
    pub(crate) fn last_sequence_id(&self) -> Option<u64> {
        self.last_published
    }

    /// Messages without receipt.
    pub(crate) fn messages(&self) -> usize {
        self.pending.messages() + self.batches.as_ref().map_or(0, Batches::messages)
    }

    fn bytes(&self) -> usize {
        self.pending.bytes() + self.batches.as_ref().map_or(0, Batches::bytes)
    }

    /// How many messages with a payload of `len` bytes there is room for. There is always room for one if nothing waits.
    pub(crate) fn room(&self, len: usize) -> usize {
        let messages = self.messages();
        let by_count = self.options.max_pending.max(1).saturating_sub(messages);
        let bytes_left = self.options.max_pending_bytes.saturating_sub(self.bytes());
        let by_bytes = bytes_left / len.max(1);
        let least = usize::from(messages == 0);
        by_count.min(by_bytes.max(least))
    }

    /// Whether at most half of the room is taken, so that whoever waited can send many at once.
    pub(crate) fn is_half_empty(&self) -> bool {
        self.messages() <= self.options.max_pending / 2
            && self.bytes() <= self.options.max_pending_bytes / 2
    }

    /// All entries before this one are done with.
    pub(crate) fn first_ordinal(&self) -> u64 {
        self.pending.first_ordinal()
    }

    /// Makes entries of all batches in the making; what waits now is answered when [`first_ordinal`](Self::first_ordinal) is
    /// the end of the flush. A batch that cannot be sent fails it.
    pub(crate) fn begin_flush(&mut self, now: Now) -> Flush {
        let refused = self.flush_batches(now);
        let end = self.pending.next_ordinal();
        let is_shared = |flush: &&Flush| flush.end == end && flush.failure.get().is_none();
        let flush = match self.flushes.back().filter(is_shared) {
            Some(flush) if refused.is_none() => flush.clone(),
            _ => Flush {
                end,
                failure: Arc::new(refused.map_or_else(OnceLock::new, OnceLock::from)),
            },
        };
        let is_waiting = !self.pending.is_empty() && flush.failure.get().is_none();
        let is_new = self
            .flushes
            .back()
            .is_none_or(|last| !Arc::ptr_eq(&last.failure, &flush.failure));
        if is_waiting && is_new {
            self.flushes.push_back(flush.clone());
        }
        flush
    }

    /// Whether a message may become part of a batch, and so is not to be compressed by itself.
    pub(crate) fn is_for_batch(
        batching: Option<&BatchingOptions>,
        metadata: &MessageMetadata,
        payload_len: usize,
    ) -> bool {
        batching.is_some_and(|batching| payload_len < batching.max_bytes)
            && metadata.deliver_at_time.is_none()
    }

    /// Enqueues messages, for which the caller has checked that there is room.
    ///
    /// # Errors
    /// The message cannot be sent; nothing was enqueued then.
    pub(crate) fn push(
        &mut self,
        mut outgoing: Outgoing,
        now: Now,
        mut completion: impl FnMut(usize) -> C,
    ) -> Result<(), SendError> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let metadata = &mut outgoing.metadata;
        if metadata.schema_version.is_none() {
            metadata.schema_version.clone_from(&self.schema_version);
        }
        let batching = self.options.batching;
        if !Self::is_for_batch(batching.as_ref(), metadata, outgoing.payload.len()) {
            self.flush_batches(now);
            return self.push_alone(outgoing, now, completion);
        }
        if outgoing.payload.len() >= self.max_message_size.saturating_sub(BATCH_METADATA_LEN) {
            // The options allow larger batches than the broker does.
            outgoing.payload = compress(&self.options, metadata, outgoing.payload)?;
            self.flush_batches(now);
            return self.push_alone(outgoing, now, completion);
        }
        let addition = Addition {
            metadata: &outgoing.metadata,
            payload: &outgoing.payload,
            now: now.elapsed,
            max_bytes: self.max_message_size.saturating_sub(BATCH_METADATA_LEN),
        };
        if let Some(batches) = &mut self.batches {
            batches.prepare(addition);
        }
        for index in 0..outgoing.count {
            let sequence_id = self.take_sequence_id(outgoing.sequence_id);
            let may_be_duplicate = self.last_pushed.is_some_and(|last| sequence_id <= last);
            self.note_pushed(sequence_id);
            let fits = self.batches.as_ref();
            if !fits.is_some_and(|batches| batches.fits(addition, may_be_duplicate)) {
                self.flush_batches(now);
            }
            if let Some(batches) = &mut self.batches
                && batches.add(addition, sequence_id, may_be_duplicate, completion(index))
            {
                self.flush_batches(now);
            }
        }
        Ok(())
    }

    /// Enqueues messages as entries of their own.
    fn push_alone(
        &mut self,
        mut outgoing: Outgoing,
        now: Now,
        mut completion: impl FnMut(usize) -> C,
    ) -> Result<(), SendError> {
        self.writer.prepare(&mut outgoing.metadata);
        let count = outgoing.count;
        let payload = &outgoing.payload;
        let first = outgoing.sequence_id.or(self.next_sequence_id);
        let metadata = self.writer.finish(
            &self.name_field,
            first.unwrap_or_default(),
            now.publish_time,
        );
        // Further sequence ids take a few bytes more at most.
        let size = entry::message_len(metadata.len(), payload.len()) + count.min(4);
        if size > self.max_message_size {
            let max = self.max_message_size;
            if !self.options.chunking {
                return Err(SendError::TooLarge { size, max });
            }
            for index in 0..count {
                let outgoing = Outgoing {
                    metadata: outgoing.metadata.clone(),
                    payload: outgoing.payload.clone(),
                    sequence_id: outgoing.sequence_id,
                    count: 1,
                };
                self.push_chunks(outgoing, now, completion(index))?;
            }
            return Ok(());
        }
        let mut entry = Entry {
            sequence_id: 0,
            highest_sequence_id: None,
            messages: 1,
            is_batch: false,
            chunk: None,
            charge: 0,
            created: now.elapsed,
            frame_len: 0,
            checksum_errors: 0,
        };
        for index in 0..count {
            entry.sequence_id = self.take_sequence_id(outgoing.sequence_id);
            self.note_pushed(entry.sequence_id);
            self.push_entry(entry, payload, now, std::iter::once(completion(index)));
        }
        self.pending.push_written(Bytes::new());
        Ok(())
    }

    /// Enqueues a message in several entries.
    fn push_chunks(
        &mut self,
        outgoing: Outgoing,
        now: Now,
        completion: C,
    ) -> Result<(), SendError> {
        let size = outgoing.payload.len();
        let max = self.max_message_size;
        let too_large = SendError::TooLarge { size, max };
        let sequence_id = self.take_sequence_id(outgoing.sequence_id);
        let uuid = format!("{}-{sequence_id}", self.name);
        self.writer.prepare(&mut outgoing.metadata.clone());
        let metadata = self
            .writer
            .finish(&self.name_field, sequence_id, now.publish_time);
        let overhead = entry::message_len(metadata.len(), uuid.len()) + CHUNK_FIELDS_LEN;
        let room = max.saturating_sub(overhead);
        let max_chunk = self
            .options
            .chunk_max_size
            .map_or(room, |limit| limit.min(room));
        if max_chunk == 0 || size.div_ceil(max_chunk) > CHUNKS_MAX {
            return Err(too_large);
        }
        let chunks = chunk::split(&outgoing.metadata, outgoing.payload, &uuid, max_chunk)
            .map_err(|_| too_large)?;
        self.note_pushed(sequence_id);
        let mut completion = Some(completion);
        let count = chunks.len();
        for (index, (mut metadata, payload)) in chunks.enumerate() {
            let chunk = match index {
                _ if index + 1 == count => ChunkPlace::Last,
                0 => ChunkPlace::First,
                _ => ChunkPlace::Middle,
            };
            let own = completion.take_if(|_| chunk == ChunkPlace::Last);
            self.writer.prepare(&mut metadata);
            let entry = Entry {
                sequence_id,
                highest_sequence_id: None,
                messages: u32::from(own.is_some()),
                is_batch: false,
                chunk: Some(chunk),
                charge: 0,
                created: now.elapsed,
                frame_len: 0,
                checksum_errors: 0,
            };
            self.push_entry(entry, &payload, now, own.into_iter());
        }
        self.pending.push_written(Bytes::new());
        Ok(())
    }

    /// Enqueues an entry as it is. The caller has checked that there is room.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub(crate) fn push_raw(
        &mut self,
        raw: RawEntry,
        now: Now,
        completion: C,
    ) -> Result<(), SendError> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let payload = raw.headers_and_payload;
        let size = entry::message_len(0, payload.len());
        let max = self.max_message_size;
        if size > max.saturating_add(FRAME_PADDING) {
            return Err(SendError::TooLarge { size, max });
        }
        self.flush_batches(now);
        self.note_pushed(raw.highest_sequence_id.unwrap_or(raw.sequence_id));
        let send = CommandSend {
            producer_id: self.options.producer_id,
            sequence_id: raw.sequence_id,
            num_messages: (raw.num_messages > 1).then_some(raw.num_messages),
            highest_sequence_id: raw.highest_sequence_id,
            is_chunk: raw.is_chunk.then_some(true),
            marker: raw.marker.then_some(true),
            ..CommandSend::default()
        };
        let copied = payload.len() < COPY_BELOW;
        let room = entry::SEND_OVERHEAD + if copied { payload.len() } else { 0 };
        let buffer = self.pending.buffer(room);
        entry::put_raw_send_head(send, &payload, buffer);
        if copied {
            buffer.extend_from_slice(&payload);
        }
        let frame_len = buffer.len() + if copied { 0 } else { payload.len() };
        let entry = Entry {
            sequence_id: raw.sequence_id,
            highest_sequence_id: raw.highest_sequence_id,
            messages: 1,
            is_batch: false,
            chunk: None,
            charge: frame_len,
            created: now.elapsed,
            frame_len,
            checksum_errors: 0,
        };
        self.pending.push_entry(entry, std::iter::once(completion));
        self.pending
            .push_written(if copied { Bytes::new() } else { payload });
        Ok(())
    }

    /// Makes entries of all batches in the making. Returns the error of the first one that cannot be sent, which its messages
    /// were told.
    pub(crate) fn flush_batches(&mut self, now: Now) -> Option<SendError> {
        let batches = self.batches.as_mut()?;
        if batches.messages() == 0 {
            return None;
        }
        let is_key_based = batches.is_key_based();
        let mut refused = None;
        for mut batch in batches.take() {
            if let Err(error) = self.push_batch(&mut batch, is_key_based, now) {
                fail_all(batch.completions.drain(..), &error, &mut self.outcomes);
                refused.get_or_insert(error);
            }
            if let Some(batches) = &mut self.batches {
                batches.give_back(batch.completions);
            }
        }
        self.pending.push_written(Bytes::new());
        refused
    }

    fn push_batch(
        &mut self,
        batch: &mut Batch<C>,
        is_key_based: bool,
        now: Now,
    ) -> Result<(), SendError> {
        let count = batch.completions.len();
        let count = u32::try_from(count).expect("a batch has far fewer messages");
        let mut payload = batch.payload.split().freeze();
        let mut metadata = std::mem::take(&mut batch.metadata);
        // Batches by key overlap in their ids; a broker then takes them by their last one (as the Java client has it).
        let (sequence_id, highest) = if is_key_based || count == 1 {
            (batch.last_sequence_id, None)
        } else {
            (batch.first_sequence_id, Some(batch.last_sequence_id))
        };
        if count == 1 {
            payload = payload.split_off(payload.len() - batch.last_len);
        } else {
            metadata.properties.clear();
            metadata.event_time = None;
            metadata.null_value = None;
            metadata.num_messages_in_batch = i32::try_from(count).ok();
            metadata.highest_sequence_id = highest;
        }
        let payload = compress(&self.options, &mut metadata, payload)?;
        self.writer.prepare(&mut metadata);
        let size = entry::message_len(
            self.writer
                .finish(&self.name_field, sequence_id, now.publish_time)
                .len(),
            payload.len(),
        );
        if size > self.max_message_size {
            // Keys and properties count as well, and are known to be too large only now.
            let max = self.max_message_size;
            return Err(SendError::TooLarge { size, max });
        }
        let entry = Entry {
            sequence_id,
            highest_sequence_id: highest,
            messages: count,
            is_batch: count > 1,
            chunk: None,
            charge: 0,
            created: batch.created,
            frame_len: 0,
            checksum_errors: 0,
        };
        self.push_entry(entry, &payload, now, batch.completions.drain(..));
        Ok(())
    }

    /// Writes the frame of an entry whose metadata the writer has.
    #[inline]
    fn push_entry(
        &mut self,
        mut entry: Entry,
        payload: &Bytes,
        now: Now,
        completions: impl Iterator<Item = C>,
    ) {
        let send = CommandSend {
            producer_id: self.options.producer_id,
            sequence_id: entry.sequence_id,
            num_messages: i32::try_from(entry.messages)
                .ok()
                .filter(|count| *count > 1),
            highest_sequence_id: entry.highest_sequence_id,
            is_chunk: entry.chunk.map(|_| true),
            ..CommandSend::default()
        };
        let metadata = self
            .writer
            .finish(&self.name_field, entry.sequence_id, now.publish_time);
        let copied = payload.len() < COPY_BELOW;
        let room = entry::SEND_OVERHEAD + metadata.len() + if copied { payload.len() } else { 0 };
        if !copied {
            // The segment that it shares with nothing else.
            self.pending.push_written(Bytes::new());
        }
        let buffer = self.pending.buffer(room);
        let before = buffer.len();
        entry::put_send_head(send, metadata, payload, buffer);
        if copied {
            buffer.extend_from_slice(payload);
        }
        entry.frame_len = buffer.len() - before + if copied { 0 } else { payload.len() };
        entry.charge = entry.frame_len;
        self.pending.push_entry(entry, completions);
        if !copied {
            self.pending.push_written(payload.clone());
        }
    }

    fn take_sequence_id(&mut self, given: Option<u64>) -> u64 {
        given.unwrap_or_else(|| {
            let next = self.next_sequence_id.unwrap_or_default();
            self.next_sequence_id = Some(next.wrapping_add(1));
            next
        })
    }

    fn note_pushed(&mut self, sequence_id: u64) {
        self.last_pushed = self.last_pushed.max(Some(sequence_id));
    }
}

/// Compresses a payload where that is worth it, and says so in the metadata.
///
/// # Errors
/// [`SendError::Compression`].
pub(crate) fn compress(
    options: &StateOptions,
    metadata: &mut MessageMetadata,
    payload: Bytes,
) -> Result<Bytes, SendError> {
    metadata.uncompressed_size = u32::try_from(payload.len()).ok();
    if options.compression == CompressionType::None || payload.len() < options.compression_min_size
    {
        return Ok(payload);
    }
    metadata.compression = Some(options.compression.into());
    compression::compress(options.compression, &payload).map_err(|_| SendError::Compression)
}

pub(super) fn fail_all<C>(
    completions: impl IntoIterator<Item = C>,
    error: &SendError,
    outcomes: &mut Vec<Outcome<C>>,
) {
    outcomes.extend(completions.into_iter().map(|completion| Outcome {
        completion,
        result: Err(error.clone()),
    }));
}

/// Payloads below are copied behind their heads, so that many messages are one write.
const COPY_BELOW: usize = 4096;
/// What brokers let a frame have beyond `maxMessageSize` (`Commands.MESSAGE_SIZE_FRAME_PADDING`).
const FRAME_PADDING: usize = 10 * 1024;
/// Room for the metadata of a batch within the broker's limit.
const BATCH_METADATA_LEN: usize = 4 * 1024;
/// The four fields of chunks, but for the text of `uuid`.
const CHUNK_FIELDS_LEN: usize = 48;
/// Chunks of one message; a broker that takes next to nothing must not make us cut a message into dust.
const CHUNKS_MAX: usize = 10_000;
