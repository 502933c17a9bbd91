//! Messages in several entries: putting them together, and giving up those that will not become whole. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    acknowledgements::Position,
    decode::{Decoded, Input, Known, Lost, Tell, Unreadable, Visit, decompress},
    message::MessageView,
    options::ChunkOptions,
};
use crate::protocol::{
    chunk::{Assembled, Assembler, AssemblerLimits, ChunkError, ChunkOutcome},
    message::{EncodedParts, decode_metadata},
    proto::pulsar::{MessageMetadata, command_ack::ValidationError},
};

/// The bytes of incomplete messages, of all topics of a consumer together.
#[derive(Debug)]
pub(crate) struct ChunkBytes {
    max: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    held: usize,
    /// A message of so many bytes had no room because of those of other topics, and not for the first time.
    wanted: usize,
}

impl ChunkBytes {
    /// None is held, and at most so many may be.
    pub(crate) fn new(max: usize) -> Self {
        let counts = Mutex::default();
        Self { max, counts }
    }

    /// Whether a message had no room because of those of other topics, and would have none now. Where it has, it is helped.
    pub(super) fn is_crowded(&self) -> bool {
        let mut counts = self.counts.lock();
        let is_crowded = counts.wanted > 0 && counts.held.saturating_add(counts.wanted) > self.max;
        if !is_crowded {
            // What comes later into the way of others is another matter.
            counts.wanted = 0;
        }
        is_crowded
    }

    /// Whoever had no room is helped as far as possible.
    pub(super) fn settle(&self) {
        self.counts.lock().wanted = 0;
    }
}

/// The incomplete messages of one topic.
#[derive(Debug)]
pub(super) struct Chunks {
    options: ChunkOptions,
    /// Whether entries come in any order: otherwise none comes whose beginning does not come before it.
    is_shared: bool,
    assembler: Assembler,
    bytes: Arc<ChunkBytes>,
    /// What is counted there of this topic.
    counted: usize,
    /// The entries of incomplete messages, by uuid.
    incomplete: BTreeMap<String, Incomplete>,
    /// The same in the order of their first chunks, in which they expire.
    order: VecDeque<(Duration, String)>,
    /// Messages that gave way and were not completed since, the last ones: what comes of them without their beginning is to
    /// be delivered again with it.
    gave_way: VecDeque<GaveWay>,
}

#[derive(Debug)]
struct GaveWay {
    uuid: String,
    /// Everything is delivered again since: its beginning, if it is still there, with the rest.
    is_delivered_again: bool,
}

#[derive(Debug)]
struct Incomplete {
    since: Duration,
    entries: Vec<Position>,
}

impl Chunks {
    /// None yet.
    pub(super) fn new(options: ChunkOptions, is_shared: bool, bytes: Arc<ChunkBytes>) -> Self {
        let assembler = Assembler::new(AssemblerLimits {
            max_incomplete: options.max_incomplete,
            max_bytes: options.max_bytes,
            max_message: options.max_message_size.min(options.max_bytes),
        });
        Self {
            options,
            is_shared,
            assembler,
            bytes,
            counted: 0,
            incomplete: BTreeMap::new(),
            order: VecDeque::new(),
            gave_way: VecDeque::new(),
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.begin_anew();
        self.gave_way.clear();
    }

    /// Everything is delivered again: forgets what is incomplete, but not what gave way before, which so may be helped.
    pub(super) fn begin_anew(&mut self) {
        self.assembler.clear();
        self.incomplete.clear();
        self.order.clear();
        for gave_way in &mut self.gave_way {
            gave_way.is_delivered_again = true;
        }
        self.count();
    }

    /// Tells what is held now.
    fn count(&mut self) {
        let held = self.assembler.held_bytes();
        let mut counts = self.bytes.counts.lock();
        counts.held = counts
            .held
            .saturating_sub(self.counted)
            .saturating_add(held);
        self.counted = held;
    }

    /// Adds a chunk as far as all topics together have room for it.
    fn add(
        &mut self,
        uuid: &str,
        metadata: &MessageMetadata,
        payload: &[u8],
    ) -> Result<Assembled, Refused> {
        let is_again = self.gave_way(uuid).is_some();
        let mut counts = self.bytes.counts.lock();
        let others = counts.held.saturating_sub(self.counted);
        let room = self.bytes.max.saturating_sub(others);
        self.assembler.set_max_bytes(room);
        let added = self.assembler.push(metadata, payload);
        let held = self.assembler.held_bytes();
        counts.held = others.saturating_add(held);
        self.counted = held;
        added.map_err(|error| match error {
            ChunkError::TooLarge { .. } => {
                let claimed = usize::try_from(metadata.total_chunk_msg_size());
                let claimed = claimed.unwrap_or(usize::MAX);
                let needed = claimed.saturating_add(uuid.len());
                if others > 0
                    && claimed <= self.options.max_message_size
                    && needed <= self.bytes.max
                {
                    // Not the first time: what is in its way then may be so for ever.
                    if is_again {
                        counts.wanted = counts.wanted.max(needed);
                    }
                    Refused::NoRoom
                } else {
                    Refused::TooLarge(error)
                }
            }
            ChunkError::OutOfOrder { .. } => Refused::OutOfOrder(error),
            error => Refused::Impossible(error),
        })
    }

    /// Takes a chunk. The last one of a message hands it out.
    pub(super) fn read(
        &mut self,
        Input {
            entry,
            start,
            now,
            now_ms,
        }: Input<'_>,
        (parts, view): (&EncodedParts, MessageView<'_>),
        (tell, visit): (&mut Tell<'_>, &mut Visit<'_>),
        decoded: &mut Decoded,
    ) -> Result<(), Unreadable> {
        if start.leaves_out(entry.position(), None) {
            return Ok(());
        }
        let metadata = decode_metadata(parts.metadata.clone())
            .map_err(|error| Unreadable::new(ValidationError::ChecksumMismatch, error))?;
        let Some(uuid) = metadata.uuid.as_deref() else {
            let reason = "a chunk does not say of which message it is";
            return Err(Unreadable::new(ValidationError::ChecksumMismatch, reason));
        };
        let assembled = match self.add(uuid, &metadata, &parts.payload) {
            Ok(assembled) => assembled,
            Err(refused) => {
                let incomplete = self.incomplete.remove(uuid);
                let mut entries = incomplete.map_or_else(Vec::new, |incomplete| incomplete.entries);
                entries.push(entry.position());
                match refused {
                    // It may be all right, and somebody else may have room for it: nothing of it is acknowledged.
                    Refused::TooLarge(error) => decoded.too_large = Some(error.to_string()),
                    Refused::NoRoom => self.give_way(uuid, entries, decoded),
                    Refused::OutOfOrder(error) => {
                        if self.may_begin_anew(uuid, &metadata, now_ms) {
                            decoded.again.extend(entries);
                        } else {
                            decoded.lost.push(Lost::new(entries, error));
                        }
                    }
                    // It contradicts itself: it never becomes whole.
                    Refused::Impossible(error) => decoded.lost.push(Lost::new(entries, error)),
                }
                return Ok(());
            }
        };
        for evicted in assembled.evicted {
            if let Some(incomplete) = self.incomplete.remove(&evicted) {
                self.give_way(&evicted, incomplete.entries, decoded);
            }
        }
        match assembled.outcome {
            ChunkOutcome::Waiting { next } => {
                decoded.is_waiting = true;
                self.keep(uuid, next, (entry.position(), now), decoded);
            }
            ChunkOutcome::Duplicate => {
                // A chunk that was published twice is of no use; one that was delivered twice is acknowledged with its
                // message.
                let is_known = self
                    .incomplete
                    .get(uuid)
                    .is_some_and(|incomplete| incomplete.entries.contains(&entry.position()));
                if is_known {
                    decoded.is_waiting = true;
                } else {
                    decoded.spare.push(entry.position());
                }
            }
            ChunkOutcome::Complete(payload) => {
                self.forget(uuid);
                let mut entries = self
                    .incomplete
                    .remove(uuid)
                    .map_or_else(Vec::new, |incomplete| incomplete.entries);
                entries.push(entry.position());
                let first_chunk = entries.first().copied();
                let payload = if view.is_encrypted() {
                    payload
                } else {
                    match decompress(view.metadata, &payload, self.options.max_message_size) {
                        Ok(payload) => payload,
                        // As one whose chunks say so.
                        Err(error) if error.code == ValidationError::UncompressedSizeCorruption => {
                            decoded.too_large = Some(error.reason);
                            return Ok(());
                        }
                        Err(error) => {
                            entries.pop();
                            decoded.spare.extend(entries);
                            return Err(error);
                        }
                    }
                };
                decoded.messages += 1;
                tell(Known::Chunks(entries));
                let _ = visit(MessageView {
                    first_chunk,
                    payload: &payload,
                    ..view
                });
            }
        }
        Ok(())
    }

    /// A message has no room beside others: it is to come again, unless it is to be given up then.
    fn give_way(&mut self, uuid: &str, entries: Vec<Position>, decoded: &mut Decoded) {
        if self.options.ack_oldest_when_full {
            let reason = "too many messages are incomplete, and this one has to give way";
            decoded.lost.push(Lost::new(entries, reason));
            return;
        }
        decoded.again.extend(entries);
        if uuid.len() > UUID_MAX {
            return;
        }
        let mut known = self.gave_way.iter_mut();
        if let Some(gave_way) = known.find(|gave_way| gave_way.uuid == uuid) {
            gave_way.is_delivered_again = false;
            return;
        }
        if self.gave_way.len() >= GAVE_WAY_MAX {
            self.gave_way.pop_front();
        }
        self.gave_way.push_back(GaveWay {
            uuid: uuid.to_owned(),
            is_delivered_again: false,
        });
    }

    fn forget(&mut self, uuid: &str) {
        self.gave_way.retain(|gave_way| gave_way.uuid != uuid);
    }

    fn gave_way(&self, uuid: &str) -> Option<&GaveWay> {
        self.gave_way.iter().find(|gave_way| gave_way.uuid == uuid)
    }

    /// Whether the beginning of a message, which is not here, may come yet.
    fn may_begin_anew(&self, uuid: &str, metadata: &MessageMetadata, now_ms: fn() -> u64) -> bool {
        let gave_way = self.gave_way(uuid);
        if self.is_shared {
            // Another consumer may have had it; Apache's Java client as well gives a chunk up only when it is old.
            gave_way.is_some() || !self.is_old(metadata, now_ms)
        } else {
            // In its place it would have come before.
            gave_way.is_some_and(|gave_way| !gave_way.is_delivered_again)
        }
    }

    /// Whether a message was published too long ago for its beginning to be waited for.
    fn is_old(&self, metadata: &MessageMetadata, now_ms: fn() -> u64) -> bool {
        let age = self.options.expire_after.unwrap_or(BEGINNING_WITHIN);
        let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        metadata.publish_time.saturating_add(age) < now_ms()
    }

    /// When the first chunk of the oldest message came.
    pub(super) fn oldest(&mut self) -> Option<Duration> {
        while let Some((since, uuid)) = self.order.front() {
            let is_it = |incomplete: &Incomplete| incomplete.since == *since;
            if self.incomplete.get(uuid).is_some_and(is_it) {
                return Some(*since);
            }
            self.order.pop_front();
        }
        None
    }

    /// The oldest message gives way.
    pub(super) fn give_up_oldest(&mut self, decoded: &mut Decoded) {
        if self.oldest().is_some()
            && let Some((_, uuid)) = self.order.pop_front()
        {
            self.assembler.discard(&uuid);
            self.count();
            if let Some(incomplete) = self.incomplete.remove(&uuid) {
                self.give_way(&uuid, incomplete.entries, decoded);
            }
        }
    }

    /// A chunk that is not the last one was taken.
    fn keep(
        &mut self,
        uuid: &str,
        next: u32,
        (position, now): (Position, Duration),
        decoded: &mut Decoded,
    ) {
        if next == 1
            && let Some(before) = self.incomplete.remove(uuid)
        {
            // The message begins anew: published again after an error, or delivered again.
            let is_again = before.entries.contains(&position);
            decoded
                .spare
                .extend(before.entries.into_iter().filter(|_| !is_again));
        }
        if !self.incomplete.contains_key(uuid) {
            self.order.push_back((now, uuid.to_owned()));
        }
        let incomplete = self
            .incomplete
            .entry(uuid.to_owned())
            .or_insert_with(|| Incomplete {
                since: now,
                entries: Vec::new(),
            });
        incomplete.entries.push(position);
        if incomplete.entries.len() > CHUNKS_MAX {
            self.assembler.discard(uuid);
            self.count();
            if let Some(incomplete) = self.incomplete.remove(uuid) {
                let reason = "a message has too many chunks";
                decoded.lost.push(Lost::new(incomplete.entries, reason));
            }
        }
        let (incomplete, order) = (&self.incomplete, &mut self.order);
        if order.len() > 2 * incomplete.len() + ORDER_SPARE {
            order.retain(|(since, uuid)| {
                incomplete
                    .get(uuid)
                    .is_some_and(|incomplete| incomplete.since == *since)
            });
        }
    }

    /// Gives up messages whose rest did not come in time.
    pub(super) fn expire(&mut self, now: Duration, decoded: &mut Decoded) {
        let Some(expire_after) = self.options.expire_after else {
            return;
        };
        while let Some(since) = self.oldest() {
            if since.saturating_add(expire_after) > now {
                return;
            }
            let Some((_, uuid)) = self.order.pop_front() else {
                return;
            };
            self.assembler.discard(&uuid);
            self.count();
            self.forget(&uuid);
            if let Some(incomplete) = self.incomplete.remove(&uuid) {
                let reason = "the rest of the message did not come in time";
                decoded.lost.push(Lost::new(incomplete.entries, reason));
            }
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Why a chunk is not taken.
enum Refused {
    /// The message is larger than is taken at all.
    TooLarge(ChunkError),
    /// Messages of other topics hold what it would need.
    NoRoom,
    /// A chunk before it is missing.
    OutOfOrder(ChunkError),
    /// It cannot be a chunk of its message.
    Impossible(ChunkError),
}

/// How old a chunk is given up that comes without those before it, where messages do not expire. It would be delivered again
/// and again for ever.
const BEGINNING_WITHIN: Duration = Duration::from_secs(3600);

/// Messages that gave way and are remembered.
const GAVE_WAY_MAX: usize = 1024;

/// Bytes of the uuid of a message that is remembered: those of Apache's clients have a name and a number.
const UUID_MAX: usize = 512;

/// Entries of one message. The bytes of its chunks are bounded, but there are chunks without any.
const CHUNKS_MAX: usize = 65_536;

/// Places of messages that are complete, which are not worth a walk over all.
const ORDER_SPARE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(bytes: &Arc<ChunkBytes>) -> Chunks {
        let options = ChunkOptions {
            max_bytes: bytes.max,
            max_message_size: bytes.max,
            ..ChunkOptions::default()
        };
        Chunks::new(options, true, Arc::clone(bytes))
    }

    /// The first of two chunks of a message that claims so many bytes. Says whether it had room.
    fn begin(chunks: &mut Chunks, uuid: &str, total: i32, payload: &[u8]) -> bool {
        let metadata = MessageMetadata {
            uuid: Some(uuid.to_owned()),
            chunk_id: Some(0),
            num_chunks_from_msg: Some(2),
            total_chunk_msg_size: Some(total),
            ..MessageMetadata::default()
        };
        match chunks.add(uuid, &metadata, payload) {
            Ok(assembled) => {
                assert!(matches!(assembled.outcome, ChunkOutcome::Waiting { .. }));
                true
            }
            Err(refused) => {
                assert!(matches!(refused, Refused::NoRoom));
                chunks.give_way(uuid, vec![(1, 1)], &mut Decoded::default());
                false
            }
        }
    }

    #[test]
    fn whoever_has_room_by_itself_is_not_helped_later() {
        let bytes = Arc::new(ChunkBytes::new(20));
        let (mut one, mut other) = (chunks(&bytes), chunks(&bytes));
        assert!(begin(&mut one, "a", 12, &[0; 10]));
        for _ in 0..2 {
            assert!(!begin(&mut other, "b", 12, &[0; 10]));
        }
        assert!(bytes.is_crowded());
        one.clear();
        assert!(!bytes.is_crowded());
        assert!(begin(&mut one, "c", 12, &[0; 10]));
        assert!(!bytes.is_crowded());
    }

    #[test]
    fn the_name_of_a_message_wants_room_as_well() {
        let bytes = Arc::new(ChunkBytes::new(20));
        let (mut one, mut other) = (chunks(&bytes), chunks(&bytes));
        assert!(begin(&mut one, "a", 12, &[0; 7]));
        for _ in 0..2 {
            assert!(!begin(&mut other, "long", 12, &[0; 10]));
        }
        // Without its name it would just have room.
        assert!(bytes.is_crowded());
    }
}
