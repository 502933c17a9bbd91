//! Messages in several entries: putting them together, and giving up those that will not become whole. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{
    acknowledgements::Position,
    decode::{Decoded, Input, Lost, Unreadable, Visit, decompress},
    message::MessageView,
    options::ChunkOptions,
};
use crate::protocol::{
    chunk::{Assembler, AssemblerLimits, ChunkError, ChunkOutcome},
    message::{EncodedParts, decode_metadata},
    proto::pulsar::command_ack::ValidationError,
};

/// The incomplete messages of one topic.
#[derive(Debug)]
pub(super) struct Chunks {
    options: ChunkOptions,
    assembler: Assembler,
    /// The entries of incomplete messages, by uuid.
    incomplete: BTreeMap<String, Incomplete>,
    /// The same in the order of their first chunks, in which they expire.
    order: VecDeque<(Duration, String)>,
}

#[derive(Debug)]
struct Incomplete {
    since: Duration,
    entries: Vec<Position>,
}

impl Chunks {
    /// None yet.
    pub(super) fn new(options: ChunkOptions) -> Self {
        let assembler = Assembler::new(AssemblerLimits {
            max_incomplete: options.max_incomplete,
            max_bytes: options.max_bytes,
            max_message: options.max_message_size.min(options.max_bytes),
        });
        Self {
            options,
            assembler,
            incomplete: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.assembler.clear();
        self.incomplete.clear();
        self.order.clear();
    }

    /// Takes a chunk. The last one of a message hands it out.
    pub(super) fn read(
        &mut self,
        Input { entry, start, now }: Input<'_>,
        (parts, view): (&EncodedParts, MessageView<'_>),
        visit: &mut Visit<'_>,
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
        let assembled = match self.assembler.push(&metadata, &parts.payload) {
            Ok(assembled) => assembled,
            Err(error @ ChunkError::TooLarge { .. }) => {
                // It may be all right, and somebody else may have room for it: nothing of it is acknowledged.
                self.incomplete.remove(uuid);
                decoded.too_large = Some(error.to_string());
                return Ok(());
            }
            Err(error) => {
                // The rest of a message whose beginning was lost, or one that contradicts itself: it never becomes whole.
                let incomplete = self.incomplete.remove(uuid);
                let mut entries = incomplete.map_or_else(Vec::new, |incomplete| incomplete.entries);
                entries.push(entry.position());
                decoded.lost.push(Lost::new(entries, error));
                return Ok(());
            }
        };
        for evicted in assembled.evicted {
            let Some(incomplete) = self.incomplete.remove(&evicted) else {
                continue;
            };
            if self.options.ack_oldest_when_full {
                let reason = "too many messages are incomplete, and this one is the oldest";
                decoded.lost.push(Lost::new(incomplete.entries, reason));
            } else {
                decoded.again.extend(incomplete.entries);
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
                        Err(error) => {
                            entries.pop();
                            decoded.spare.extend(entries);
                            return Err(error);
                        }
                    }
                };
                decoded.messages += 1;
                decoded.chunks = Some(entries);
                let _ = visit(MessageView {
                    first_chunk,
                    payload: &payload,
                    ..view
                });
            }
        }
        Ok(())
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
        while let Some((since, uuid)) = self.order.front() {
            if since.saturating_add(expire_after) > now {
                return;
            }
            let is_it = |incomplete: &Incomplete| incomplete.since == *since;
            if self.incomplete.get(uuid).is_some_and(is_it) {
                self.assembler.discard(uuid);
                if let Some(incomplete) = self.incomplete.remove(uuid) {
                    let reason = "the rest of the message did not come in time";
                    decoded.lost.push(Lost::new(incomplete.entries, reason));
                }
            }
            self.order.pop_front();
        }
    }
}

/// Entries of one message. The bytes of its chunks are bounded, but there are chunks without any.
const CHUNKS_MAX: usize = 65_536;

/// Places of messages that are complete, which are not worth a walk over all.
const ORDER_SPARE: usize = 64;
