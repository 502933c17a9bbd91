//! Chunks: one message in several entries, because it is larger than an entry may be.
//!
//! Each chunk is a message of its own with the same metadata, sequence id included, and four more fields: `uuid` (the
//! same for all chunks of a message), `chunk_id` (from 0), `num_chunks_from_msg` and `total_chunk_msg_size`. What is cut
//! up is the payload as it would have been sent whole, that is compressed and encrypted; a batch is never cut (PIP-37).
//!
//! Start at [`split`] and [`Assembler`].

use std::collections::VecDeque;

use bytes::Bytes;

use crate::protocol::proto::pulsar::MessageMetadata;

/// Cuts `payload` into chunks of at most `max_chunk` bytes; each comes with the metadata to send it with.
///
/// A payload that fits into one chunk is not marked as one: it comes back with `template` unchanged. The slices share
/// the memory of `payload`.
///
/// # Errors
/// [`ChunkError::NoRoom`] when `max_chunk` is 0, [`ChunkError::TooLarge`] when the payload or the number of chunks does
/// not fit into the signed 32 bits of its field.
pub fn split(
    template: &MessageMetadata,
    payload: Bytes,
    uuid: &str,
    max_chunk: usize,
) -> Result<Chunks, ChunkError> {
    if max_chunk == 0 {
        return Err(ChunkError::NoRoom);
    }
    let size = payload.len();
    let too_large = ChunkError::TooLarge {
        size,
        max: MAX_MESSAGE_LEN,
    };
    let total = i32::try_from(size).map_err(|_| too_large.clone())?;
    let count = i32::try_from(size.div_ceil(max_chunk).max(1)).map_err(|_| too_large)?;
    let mut template = template.clone();
    if count > 1 {
        template.uuid = Some(uuid.to_owned());
        template.num_chunks_from_msg = Some(count);
        template.total_chunk_msg_size = Some(total);
    }
    Ok(Chunks {
        template,
        rest: payload,
        max_chunk,
        next: 0,
        count,
    })
}

/// The chunks of one message, in order; made by [`split`].
#[derive(Debug, Clone)]
pub struct Chunks {
    template: MessageMetadata,
    rest: Bytes,
    max_chunk: usize,
    /// `0 <= next <= count`
    next: i32,
    count: i32,
}

impl Iterator for Chunks {
    type Item = (MessageMetadata, Bytes);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.count {
            return None;
        }
        let mut metadata = self.template.clone();
        if self.count > 1 {
            metadata.chunk_id = Some(self.next);
        }
        self.next += 1;
        let len = self.rest.len().min(self.max_chunk);
        Some((metadata, self.rest.split_to(len)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.count - self.next).unwrap_or_default();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Chunks {}
impl std::iter::FusedIterator for Chunks {}

/// Whether the message that `metadata` describes is a chunk of a larger one.
#[must_use]
pub fn is_chunk(metadata: &MessageMetadata) -> bool {
    metadata.num_chunks_from_msg.is_some_and(|count| count > 1) || metadata.chunk_id.is_some()
}

/// Puts messages together from their chunks, several at a time, within bounds.
///
/// The chunks of one message must come in order, as a broker delivers them; those of several messages may be mixed.
/// What the chunks claim is distrusted: nothing is allocated before the bytes are there, and never more than
/// [`AssemblerLimits::max_bytes`] for all incomplete messages together (while a message grows, its old and its new
/// buffer exist side by side, so for a moment up to twice that).
#[derive(Debug)]
pub struct Assembler {
    limits: AssemblerLimits,
    /// The oldest first. There are at most `limits.max_incomplete`, which is small, so a search is fine.
    incomplete: VecDeque<Incomplete>,
}

/// What is there of one message.
#[derive(Debug)]
struct Incomplete {
    uuid: String,
    count: u32,
    total: usize,
    /// The chunk that must come next: `next < count`, and 0 only while the first is being added.
    next: u32,
    /// `payload.len() <= total`
    payload: Vec<u8>,
}

impl Incomplete {
    /// An empty message with the claims of its first chunk.
    fn of(chunk: &Chunk, uuid: &str) -> Self {
        Self {
            uuid: uuid.to_owned(),
            count: chunk.count,
            total: chunk.total,
            next: 0,
            payload: Vec::new(),
        }
    }

    /// The capacity to give the payload before it grows to `size` bytes: doubling, so that many small chunks are not
    /// copied again and again, but never beyond the total, and nothing by the claim alone.
    fn capacity_for(&self, size: usize) -> usize {
        let capacity = self.payload.capacity();
        if size <= capacity {
            capacity
        } else {
            capacity.saturating_mul(2).min(self.total).max(size)
        }
    }

    /// The bytes of memory it takes.
    fn held(&self) -> usize {
        self.payload.capacity().saturating_add(self.uuid.len())
    }
}

impl Assembler {
    /// An assembler without messages.
    #[must_use]
    pub fn new(limits: AssemblerLimits) -> Self {
        Self {
            limits,
            incomplete: VecDeque::new(),
        }
    }

    /// Adds a chunk: the metadata and the payload of a message for which [`is_chunk`] holds.
    ///
    /// To stay within its limits it may discard the oldest incomplete messages, which it names in the answer.
    ///
    /// # Errors
    /// [`ChunkError`] when the chunk cannot be part of the message it names, or the message of any the assembler takes.
    /// What there was of this message is discarded, and its further chunks are [`ChunkError::OutOfOrder`].
    pub fn push(
        &mut self,
        metadata: &MessageMetadata,
        payload: &[u8],
    ) -> Result<Assembled, ChunkError> {
        let uuid = metadata.uuid.as_deref().ok_or(ChunkError::NoChunk)?;
        let at = self
            .incomplete
            .iter()
            .position(|incomplete| incomplete.uuid == uuid);
        let outcome = Chunk::new(metadata, &self.limits)
            .and_then(|chunk| self.add(at, &chunk, uuid, payload));
        if outcome.is_err() {
            self.discard(uuid);
        }
        outcome
    }

    /// Forgets an incomplete message, if it is there: its consumer gave up waiting.
    pub fn discard(&mut self, uuid: &str) {
        self.incomplete.retain(|incomplete| incomplete.uuid != uuid);
    }

    /// Forgets all incomplete messages: the consumer was told to start again elsewhere.
    pub fn clear(&mut self) {
        self.incomplete.clear();
    }

    /// Sets [`AssemblerLimits::max_bytes`] for what is added from now on: several assemblers may share what there is.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.limits.max_bytes = max_bytes;
    }

    /// The number of incomplete messages.
    #[must_use]
    pub fn incomplete(&self) -> usize {
        self.incomplete.len()
    }

    /// The bytes held for incomplete messages.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.incomplete.iter().map(Incomplete::held).sum()
    }

    fn add(
        &mut self,
        at: Option<usize>,
        chunk: &Chunk,
        uuid: &str,
        payload: &[u8],
    ) -> Result<Assembled, ChunkError> {
        let (mut message, age) = match at.and_then(|at| Some((self.incomplete.remove(at)?, at))) {
            Some((message, age)) if chunk.id >= message.next => (message, age),
            Some((message, age)) if chunk.id > 0 => {
                self.incomplete.insert(age, message);
                return Ok(Assembled {
                    outcome: ChunkOutcome::Duplicate,
                    evicted: Vec::new(),
                });
            }
            // The first chunk again, or the first of a message that is not there: the delivery starts (over) here.
            _ => (Incomplete::of(chunk, uuid), self.incomplete.len()),
        };
        if chunk.id != message.next {
            return Err(ChunkError::OutOfOrder {
                expected: message.next,
                chunk_id: chunk.id,
            });
        }
        if (chunk.count, chunk.total) != (message.count, message.total) {
            return Err(ChunkError::Contradiction);
        }
        let size = message.payload.len().saturating_add(payload.len());
        let is_last = chunk.id + 1 == chunk.count;
        if size > chunk.total || (is_last && size != chunk.total) {
            return Err(ChunkError::WrongTotal {
                total: chunk.total,
                size,
            });
        }
        let mut evicted = Vec::new();
        let capacity = message.capacity_for(size);
        self.make_room(capacity.saturating_add(uuid.len()), &mut evicted)?;
        message
            .payload
            .reserve_exact(capacity.saturating_sub(message.payload.len()));
        message.payload.extend_from_slice(payload);
        message.next += 1;
        if is_last {
            let outcome = ChunkOutcome::Complete(message.payload.into());
            return Ok(Assembled { outcome, evicted });
        }
        let outcome = ChunkOutcome::Waiting { next: message.next };
        let age = age.saturating_sub(evicted.len()).min(self.incomplete.len());
        self.incomplete.insert(age, message);
        Ok(Assembled { outcome, evicted })
    }

    /// Discards the oldest messages until one more that holds `added` bytes fits.
    fn make_room(&mut self, added: usize, evicted: &mut Vec<String>) -> Result<(), ChunkError> {
        let max = self.limits.max_bytes;
        if added > max {
            return Err(ChunkError::TooLarge { size: added, max });
        }
        let most = self.limits.max_incomplete.max(1);
        while self.incomplete.len() >= most || self.held_bytes().saturating_add(added) > max {
            match self.incomplete.pop_front() {
                Some(oldest) => evicted.push(oldest.uuid),
                None => break,
            }
        }
        Ok(())
    }
}

/// How much an [`Assembler`] takes and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssemblerLimits {
    /// The most messages that may be incomplete at a time (`maxPendingChunkedMessage` of a consumer); at least 1.
    pub max_incomplete: usize,
    /// The most bytes that all incomplete messages together may hold, the one that is being completed included.
    pub max_bytes: usize,
    /// The largest message in bytes, as its chunks claim it.
    pub max_message: usize,
}

impl Default for AssemblerLimits {
    /// 10 messages as a Java consumer has it, 64 MiB each, 128 MiB together.
    fn default() -> Self {
        Self {
            max_incomplete: 10,
            max_bytes: 128 << 20,
            max_message: 64 << 20,
        }
    }
}

/// What became of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// What the chunk did to its message.
    pub outcome: ChunkOutcome,
    /// The uuids of older messages that were discarded to make room; they will not be completed.
    pub evicted: Vec<String>,
}

/// What a chunk did to its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// The message needs more chunks.
    Waiting {
        /// The id of the chunk that must come next.
        next: u32,
    },
    /// The chunk was the last: the payload of the whole message.
    Complete(Bytes),
    /// The chunk is there already; this one was ignored.
    Duplicate,
}

/// Why a message cannot be cut into chunks, or a chunk not be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// Chunks of no bytes.
    #[error("chunks of 0 bytes")]
    NoRoom,
    /// The message is larger than its fields can say or its reader takes.
    #[error("chunked message of {size} bytes is larger than the limit of {max} bytes")]
    TooLarge {
        /// The size of the message, or of the memory needed for it, in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The metadata lacks `uuid`, `chunk_id`, `num_chunks_from_msg` or `total_chunk_msg_size`.
    #[error("message is no chunk")]
    NoChunk,
    /// The numbers in the metadata exclude each other.
    #[error("chunk {chunk_id} of {count} with {total} bytes in all")]
    Impossible {
        /// `chunk_id`.
        chunk_id: i32,
        /// `num_chunks_from_msg`.
        count: i32,
        /// `total_chunk_msg_size`.
        total: i32,
    },
    /// A chunk before this one is missing.
    #[error("chunk {chunk_id} where chunk {expected} is expected")]
    OutOfOrder {
        /// The chunk that had to come.
        expected: u32,
        /// The chunk that came.
        chunk_id: u32,
    },
    /// The chunk names another number of chunks or another total size than the first one.
    #[error("chunk contradicts the first chunk of its message")]
    Contradiction,
    /// The chunks so far hold more than they claim, or all of them less.
    #[error("chunks hold {size} bytes where the message is said to have {total}")]
    WrongTotal {
        /// `total_chunk_msg_size`.
        total: usize,
        /// What they hold.
        size: usize,
    },
}

/// The numbers of one chunk, checked against each other.
struct Chunk {
    /// `id < count`
    id: u32,
    count: u32,
    total: usize,
}

impl Chunk {
    fn new(metadata: &MessageMetadata, limits: &AssemblerLimits) -> Result<Self, ChunkError> {
        let chunk_id = metadata.chunk_id.ok_or(ChunkError::NoChunk)?;
        let count = metadata.num_chunks_from_msg.ok_or(ChunkError::NoChunk)?;
        let total = metadata.total_chunk_msg_size.ok_or(ChunkError::NoChunk)?;
        let chunk = match (chunk_id.try_into(), count.try_into(), total.try_into()) {
            (Ok(id), Ok(count), Ok(total)) if id < count => Self { id, count, total },
            _ => {
                return Err(ChunkError::Impossible {
                    chunk_id,
                    count,
                    total,
                });
            }
        };
        if chunk.total > limits.max_message {
            return Err(ChunkError::TooLarge {
                size: chunk.total,
                max: limits.max_message,
            });
        }
        Ok(chunk)
    }
}

/// `total_chunk_msg_size` is a signed 32-bit number.
const MAX_MESSAGE_LEN: usize = 0x7fff_ffff;

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
