//! Messages in several entries: putting them together, and giving up those that will not become whole. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{
    acknowledgements::Position,
    decode::{Decoded, Input, Visit, decompress},
    message::MessageView,
    options::ChunkOptions,
};
use crate::protocol::{
    chunk::{Assembler, AssemblerLimits, ChunkOutcome},
    message::{EncodedParts, decode_metadata},
    proto::pulsar::command_ack::ValidationError,
};

/// The incomplete messages of one topic.
#[derive(Debug)]
pub(super) struct Chunks {
    options: ChunkOptions,
    max_message_size: usize,
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
    /// None yet. A message may have `max_message_size` bytes.
    pub(super) fn new(options: ChunkOptions, max_message_size: usize) -> Self {
        let assembler = Assembler::new(AssemblerLimits {
            max_incomplete: options.max_incomplete,
            max_bytes: options.max_bytes,
            max_message: max_message_size.min(options.max_bytes),
        });
        Self {
            options,
            max_message_size,
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
    ) -> Result<(), ValidationError> {
        if start.leaves_out(entry.position(), None) {
            return Ok(());
        }
        let unreadable = |_| ValidationError::ChecksumMismatch;
        let metadata = decode_metadata(parts.metadata.clone()).map_err(unreadable)?;
        let Some(uuid) = metadata.uuid.as_deref() else {
            return Err(ValidationError::ChecksumMismatch);
        };
        let assembled = match self.assembler.push(&metadata, &parts.payload) {
            Ok(assembled) => assembled,
            Err(_) => {
                // The rest of a message whose beginning was lost, or one that contradicts itself: it never becomes whole.
                if let Some(incomplete) = self.incomplete.remove(uuid) {
                    decoded.lost.extend(incomplete.entries);
                }
                decoded.lost.push(entry.position());
                return Ok(());
            }
        };
        for evicted in assembled.evicted {
            let Some(incomplete) = self.incomplete.remove(&evicted) else {
                continue;
            };
            if self.options.ack_oldest_when_full {
                decoded.lost.extend(incomplete.entries);
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
                    decoded.lost.push(entry.position());
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
                    match decompress(view.metadata, &payload, self.max_message_size) {
                        Ok(payload) => payload,
                        Err(error) => {
                            entries.pop();
                            decoded.lost.extend(entries);
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
                .lost
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
                decoded.lost.extend(incomplete.entries);
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
                    decoded.lost.extend(incomplete.entries);
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
