//! What was acknowledged and not sent yet, and the batches of which only some messages were. Pure.
//!
//! As Apache's clients: an entry is acknowledged when all its messages are, or message by message where the broker takes
//! that (PIP-54); a cumulative acknowledgement inside a batch is one of the entry before it, or one with an ack set; a
//! message in several entries is acknowledged with all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{ack_set::AckSet, options::AckGrouping};
use crate::{
    client::message_id::MessageId,
    protocol::proto::pulsar::{
        CommandAck, MessageIdData,
        command_ack::{AckType, ValidationError},
    },
};

/// An entry: its ledger and its number there.
pub(crate) type Position = (u64, u64);

/// The acknowledgements of one topic.
#[derive(Debug)]
pub(crate) struct Acknowledgements {
    grouping: Option<AckGrouping>,
    batch_index_ack: bool,
    /// Whole entries to be acknowledged.
    entries: Vec<Position>,
    /// Entries of which single messages are to be acknowledged; their sets are in `batches`.
    parts: BTreeSet<Position>,
    /// Up to where all is to be acknowledged.
    cumulative: Option<Cumulative>,
    /// Entries that were dropped, and why.
    invalid: Vec<(Position, ValidationError)>,
    /// Batches of which some messages were acknowledged: those that are not.
    batches: BTreeMap<Position, Batch>,
    /// Messages in several entries that were delivered: all entries, by the last.
    chunked: BTreeMap<Position, Vec<Position>>,
    /// When what is collected has to be sent.
    deadline: Option<Duration>,
    /// What was to be acknowledged when the last connection ended and may be delivered once more on this one.
    unsent_then: BTreeSet<Position>,
    cumulative_then: Option<Position>,
}

#[derive(Debug, Clone)]
struct Batch {
    left: AckSet,
    size: u32,
}

#[derive(Debug, Clone)]
struct Cumulative {
    position: Position,
    /// Of the entry at `position`, with its size; empty when it is acknowledged whole.
    ack_set: Vec<i64>,
    batch_size: Option<u32>,
    /// What it was acknowledged with: the order of two of them.
    rank: (u64, u64, u64),
}

/// An id that says which message of a batch it is, but not how large the batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoBatchSize;

impl Acknowledgements {
    /// Nothing yet.
    pub(crate) fn new(grouping: Option<AckGrouping>, batch_index_ack: bool) -> Self {
        Self {
            grouping,
            batch_index_ack,
            entries: Vec::new(),
            parts: BTreeSet::new(),
            cumulative: None,
            invalid: Vec::new(),
            batches: BTreeMap::new(),
            chunked: BTreeMap::new(),
            deadline: None,
            unsent_then: BTreeSet::new(),
            cumulative_then: None,
        }
    }

    /// Acknowledges one message. Returns whether the entry is done with.
    pub(crate) fn individual(
        &mut self,
        id: &MessageId,
        now: Duration,
    ) -> Result<bool, NoBatchSize> {
        let position = (id.ledger_id, id.entry_id);
        let is_done = match id.batch_index {
            Some(index) => self.take_from_batch(position, index, id.batch_size)?,
            None => true,
        };
        if is_done {
            self.parts.remove(&position);
            self.batches.remove(&position);
            self.whole(position);
        } else if self.batch_index_ack {
            self.parts.insert(position);
        } else {
            return Ok(false);
        }
        self.collected(now);
        Ok(is_done)
    }

    fn take_from_batch(
        &mut self,
        position: Position,
        index: u32,
        size: Option<u32>,
    ) -> Result<bool, NoBatchSize> {
        if let Some(batch) = self.batches.get_mut(&position) {
            batch.left.remove(index);
            return Ok(batch.left.is_empty());
        }
        let size = size.ok_or(NoBatchSize)?;
        let mut left = AckSet::starting_at(0, size);
        left.remove(index);
        if left.is_empty() {
            return Ok(true);
        }
        self.remember(position, Batch { left, size });
        Ok(false)
    }

    /// A broker says which messages of a batch are left: the others need no acknowledgement any more.
    pub(crate) fn delivered_in_part(&mut self, position: Position, words: &[i64], size: u32) {
        let left = AckSet::from_wire(words, size);
        match self.batches.get_mut(&position) {
            Some(batch) => batch.left = left,
            None => self.remember(position, Batch { left, size }),
        }
    }

    fn remember(&mut self, position: Position, batch: Batch) {
        if self.batches.len() >= BATCHES_MAX {
            // The oldest one will be delivered again some time, which a consumer has to expect anyway.
            self.batches.pop_first();
        }
        self.batches.insert(position, batch);
    }

    /// A message in several entries was delivered.
    pub(crate) fn delivered_in_chunks(&mut self, entries: Vec<Position>) {
        let Some(last) = entries.last() else { return };
        if self.chunked.len() >= CHUNKED_MAX {
            self.chunked.pop_first();
        }
        self.chunked.insert(*last, entries);
    }

    fn whole(&mut self, position: Position) {
        match self.chunked.remove(&position) {
            Some(chunks) => self.entries.extend(chunks),
            None => self.entries.push(position),
        }
    }

    /// All entries of the message that ends at this one.
    pub(crate) fn entries_of(&self, position: Position) -> &[Position] {
        self.chunked
            .get(&position)
            .map_or(&[], |chunks| chunks.as_slice())
    }

    /// Acknowledges entries that no message was delivered of.
    pub(crate) fn skipped(&mut self, entries: impl IntoIterator<Item = Position>, now: Duration) {
        self.entries.extend(entries);
        self.collected(now);
    }

    /// Acknowledges an entry that cannot be read.
    pub(crate) fn invalid(&mut self, position: Position, error: ValidationError) {
        self.invalid.push((position, error));
    }

    /// Acknowledges a message and all before it. An id before the last one acknowledged so changes nothing.
    pub(crate) fn cumulative(&mut self, id: &MessageId, now: Duration) -> Result<(), NoBatchSize> {
        let index = id.batch_index.map_or(u64::MAX, u64::from);
        let rank = (id.ledger_id, id.entry_id, index);
        if self
            .cumulative
            .as_ref()
            .is_some_and(|last| last.rank >= rank)
        {
            return Ok(());
        }
        let position = (id.ledger_id, id.entry_id);
        let whole = Cumulative {
            position,
            ack_set: Vec::new(),
            batch_size: None,
            rank,
        };
        let cumulative = match id.batch_index {
            None => whole,
            Some(index) => {
                let size = id.batch_size.ok_or(NoBatchSize)?;
                let next = index.saturating_add(1);
                if next >= size {
                    whole
                } else if self.batch_index_ack {
                    let mut left = match self.batches.get(&position) {
                        Some(batch) => batch.left.clone(),
                        None => AckSet::starting_at(0, size),
                    };
                    left.remove_before(next);
                    Cumulative {
                        ack_set: left.to_wire(),
                        batch_size: Some(size),
                        ..whole
                    }
                } else {
                    // The entry before; in front of the first entry of a ledger it is -1 on the wire.
                    Cumulative {
                        position: (id.ledger_id, id.entry_id.wrapping_sub(1)),
                        ..whole
                    }
                }
            }
        };
        let is_whole = cumulative.ack_set.is_empty() && cumulative.position == position;
        let covers = |entry: &Position| *entry < position || (is_whole && *entry == position);
        self.entries.retain(|entry| !covers(entry));
        self.parts.retain(|entry| !covers(entry));
        self.batches.retain(|entry, _| !covers(entry));
        self.chunked.retain(|entry, _| !covers(entry));
        self.cumulative = Some(cumulative);
        self.collected(now);
        Ok(())
    }

    fn collected(&mut self, now: Duration) {
        let deadline = match self.grouping {
            None => now,
            Some(grouping) if self.entries.len() >= grouping.max_messages.max(1) => now,
            Some(grouping) => now.saturating_add(grouping.max_delay),
        };
        self.deadline = Some(self.deadline.map_or(deadline, |soon| soon.min(deadline)));
    }

    /// When what is collected has to be sent. `None`: nothing is.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        if self.invalid.is_empty() {
            self.deadline
        } else {
            Some(Duration::ZERO)
        }
    }

    /// Takes what is collected, as commands.
    pub(crate) fn take(&mut self, consumer_id: u64, commands: &mut Vec<CommandAck>) {
        self.deadline = None;
        for (position, error) in self.invalid.drain(..) {
            commands.push(CommandAck {
                validation_error: Some(error.into()),
                ..ack(consumer_id, AckType::Individual, vec![data(position)])
            });
        }
        if let Some(cumulative) = self.cumulative.take() {
            let id = MessageIdData {
                ack_set: cumulative.ack_set,
                batch_size: wire(cumulative.batch_size),
                ..data(cumulative.position)
            };
            commands.push(ack(consumer_id, AckType::Cumulative, vec![id]));
        }
        let parts = std::mem::take(&mut self.parts);
        let parts = parts.into_iter().filter_map(|position| {
            let batch = self.batches.get(&position)?;
            Some(MessageIdData {
                ack_set: batch.left.to_wire(),
                batch_size: wire(Some(batch.size)),
                ..data(position)
            })
        });
        let mut ids: Vec<MessageIdData> = Vec::with_capacity(self.entries.len());
        ids.extend(self.entries.drain(..).map(data));
        ids.extend(parts);
        if ids.len() <= IDS_MAX {
            if !ids.is_empty() {
                commands.push(ack(consumer_id, AckType::Individual, ids));
            }
            return;
        }
        for ids in ids.chunks(IDS_MAX) {
            commands.push(ack(consumer_id, AckType::Individual, ids.to_vec()));
        }
    }

    /// The connection ended. What is collected is sent on the next one, before which the broker may deliver it again.
    pub(crate) fn reconnecting(&mut self) {
        self.unsent_then = self.entries.iter().copied().collect();
        self.cumulative_then = self.cumulative.as_ref().map(|last| last.position);
    }

    /// Whether an entry was acknowledged already and comes once more only because the connection ended in between.
    pub(crate) fn is_duplicate(&self, position: Position) -> bool {
        let covers = |end: Position| end.1 != u64::MAX && position <= end;
        self.cumulative_then.is_some_and(covers)
            || (!self.unsent_then.is_empty() && self.unsent_then.contains(&position))
    }

    /// Forgets everything: the subscription goes elsewhere.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.grouping, self.batch_index_ack);
    }
}

fn ack(consumer_id: u64, ack_type: AckType, message_id: Vec<MessageIdData>) -> CommandAck {
    CommandAck {
        consumer_id,
        ack_type: ack_type.into(),
        message_id,
        ..CommandAck::default()
    }
}

fn wire(size: Option<u32>) -> Option<i32> {
    size.and_then(|size| i32::try_from(size).ok())
}

/// An entry on the wire.
pub(crate) fn data((ledger_id, entry_id): Position) -> MessageIdData {
    MessageIdData {
        ledger_id,
        entry_id,
        ..MessageIdData::default()
    }
}

/// Ids in one ACK.
const IDS_MAX: usize = 1000;

/// Batches of which only some messages are acknowledged.
const BATCHES_MAX: usize = 65_536;

/// Messages in several entries that were delivered and not acknowledged.
const CHUNKED_MAX: usize = 16_384;
