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
    /// Up to there, and whether the entry there was acknowledged whole.
    cumulative_then: Option<(Position, bool)>,
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
        let is_part = match id.batch_index {
            None => false,
            Some(index) => self.take_up_to(position, index, id.batch_size)?,
        };
        let cumulative = match self.batches.get(&position).filter(|_| is_part) {
            None => whole,
            Some(batch) if self.batch_index_ack => Cumulative {
                ack_set: batch.left.to_wire(),
                batch_size: Some(batch.size),
                ..whole
            },
            // The entry before; in front of the first entry of a ledger it is -1 on the wire.
            Some(_) => Cumulative {
                position: (id.ledger_id, id.entry_id.wrapping_sub(1)),
                ..whole
            },
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

    /// Takes a message of a batch and those before it; says whether something is left.
    fn take_up_to(
        &mut self,
        position: Position,
        index: u32,
        size: Option<u32>,
    ) -> Result<bool, NoBatchSize> {
        let size = size.ok_or(NoBatchSize)?;
        let next = index.saturating_add(1);
        let mut batch = match self.batches.remove(&position) {
            Some(batch) => batch,
            None => Batch {
                left: AckSet::starting_at(0, size),
                size,
            },
        };
        batch.left.remove_before(next);
        if batch.left.is_empty() {
            return Ok(false);
        }
        self.remember(position, batch);
        Ok(true)
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
        self.cumulative_then = self
            .cumulative
            .as_ref()
            .map(|last| (last.position, last.ack_set.is_empty()));
    }

    /// Whether an entry was acknowledged already and comes once more only because the connection ended in between.
    pub(crate) fn is_duplicate(&self, position: Position) -> bool {
        // Of an entry that was acknowledged in part the rest is still wanted.
        let covers = |(end, is_whole): (Position, bool)| {
            end.1 != u64::MAX && (position < end || (is_whole && position == end))
        };
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(entry_id: u64, batch: Option<(u32, u32)>) -> MessageId {
        MessageId {
            batch_index: batch.map(|(index, _)| index),
            batch_size: batch.map(|(_, size)| size),
            ..MessageId::of_entry(1, entry_id)
        }
    }

    fn taken(acknowledgements: &mut Acknowledgements) -> Vec<CommandAck> {
        let mut commands = Vec::new();
        acknowledgements.take(9, &mut commands);
        commands
    }

    /// What a broker knows to be acknowledged after these commands: whole entries and single messages of batches of 3.
    fn apply(commands: &[CommandAck], known: &mut BTreeSet<(u64, u32)>, entries: u64) {
        for command in commands {
            let cumulative = command.ack_type == i32::from(AckType::Cumulative);
            for id in &command.message_id {
                let last = id.entry_id.wrapping_add(1);
                let whole = if id.ack_set.is_empty() {
                    last
                } else {
                    last - 1
                };
                let from = if cumulative { 0 } else { id.entry_id };
                for entry in (from..whole).filter(|entry| *entry < entries) {
                    known.extend((0..3).map(|index| (entry, index)));
                }
                if !id.ack_set.is_empty() {
                    let is_gone = |index: &u32| id.ack_set[0] >> index & 1 == 0;
                    known.extend((0..3).filter(is_gone).map(|index| (id.entry_id, index)));
                }
            }
        }
    }

    proptest! {
        /// With batch indexes a broker learns exactly what was acknowledged; without them nothing more than that, and
        /// every entry of which all messages were.
        #[test]
        fn brokers_learn_what_was_acknowledged(
            batch_index_ack: bool,
            steps in proptest::collection::vec((0u64..6, 0u32..3, 0u8..8), 1..60),
        ) {
            let mut acknowledgements = Acknowledgements::new(Some(AckGrouping::default()), batch_index_ack);
            let mut model = BTreeSet::new();
            let mut known = BTreeSet::new();
            for (entry, index, kind) in steps {
                let id = id(entry, Some((index, 3)));
                match kind {
                    0 => {
                        acknowledgements.cumulative(&id, Duration::ZERO).unwrap();
                        model.extend((0..entry).flat_map(|entry| (0..3).map(move |index| (entry, index))));
                        model.extend((0..=index).map(|index| (entry, index)));
                    }
                    1 => apply(&taken(&mut acknowledgements), &mut known, 6),
                    _ => {
                        acknowledgements.individual(&id, Duration::ZERO).unwrap();
                        model.insert((entry, index));
                    }
                }
            }
            apply(&taken(&mut acknowledgements), &mut known, 6);
            prop_assert!(known.is_subset(&model), "{known:?} beyond {model:?}");
            if batch_index_ack {
                prop_assert_eq!(&known, &model);
            }
            prop_assert!(acknowledgements.deadline().is_none());
        }
    }

    #[test]
    fn an_entry_is_acknowledged_when_all_its_messages_are() {
        let mut acknowledgements = Acknowledgements::new(Some(AckGrouping::default()), false);
        for index in [2, 0] {
            let done = acknowledgements.individual(&id(5, Some((index, 3))), Duration::ZERO);
            assert_eq!(done, Ok(false));
        }
        assert_eq!(acknowledgements.deadline(), None);
        let done = acknowledgements.individual(&id(5, Some((1, 3))), Duration::ZERO);
        assert_eq!(done, Ok(true));
        let commands = taken(&mut acknowledgements);
        assert_eq!(commands.len(), 1);
        assert_eq!(commands[0].message_id, [data((1, 5))]);
    }

    #[test]
    fn many_are_sent_together_at_the_first_ones_time_and_at_once_when_they_are_too_many() {
        let grouping = AckGrouping {
            max_delay: Duration::from_millis(100),
            max_messages: 3,
        };
        let mut acknowledgements = Acknowledgements::new(Some(grouping), false);
        let ms = Duration::from_millis;
        acknowledgements.individual(&id(0, None), ms(10)).unwrap();
        acknowledgements.individual(&id(1, None), ms(50)).unwrap();
        assert_eq!(acknowledgements.deadline(), Some(ms(110)));
        acknowledgements.individual(&id(2, None), ms(60)).unwrap();
        assert_eq!(acknowledgements.deadline(), Some(ms(60)));
        assert_eq!(taken(&mut acknowledgements)[0].message_id.len(), 3);
        assert_eq!(acknowledgements.deadline(), None);
    }

    #[test]
    fn a_message_in_several_entries_is_acknowledged_with_all_of_them() {
        let mut acknowledgements = Acknowledgements::new(None, false);
        acknowledgements.delivered_in_chunks(vec![(1, 3), (1, 4), (1, 6)]);
        acknowledgements
            .individual(&id(6, None), Duration::ZERO)
            .unwrap();
        let expected = [data((1, 3)), data((1, 4)), data((1, 6))];
        assert_eq!(taken(&mut acknowledgements)[0].message_id, expected);
    }

    #[test]
    fn what_a_broker_says_to_be_acknowledged_need_not_be_again() {
        let mut acknowledgements = Acknowledgements::new(None, false);
        acknowledgements.delivered_in_part((1, 3), &[0b100], 3);
        let done = acknowledgements.individual(&id(3, Some((2, 3))), Duration::ZERO);
        assert_eq!(done, Ok(true));
    }

    #[test]
    fn what_was_acknowledged_cumulatively_counts_for_its_batch() {
        let mut acknowledgements = Acknowledgements::new(None, false);
        let now = Duration::ZERO;
        acknowledgements
            .cumulative(&id(3, Some((1, 3))), now)
            .unwrap();
        let before = taken(&mut acknowledgements);
        assert_eq!(before[0].message_id, [data((1, 2))]);
        assert_eq!(
            acknowledgements.individual(&id(3, Some((2, 3))), now),
            Ok(true)
        );
    }

    #[test]
    fn of_a_batch_that_was_acknowledged_in_part_the_rest_is_taken_after_a_reconnect() {
        let mut acknowledgements = Acknowledgements::new(None, true);
        acknowledgements
            .cumulative(&id(3, Some((2, 10))), Duration::ZERO)
            .unwrap();
        acknowledgements.reconnecting();
        assert!(acknowledgements.is_duplicate((1, 2)));
        assert!(!acknowledgements.is_duplicate((1, 3)));
    }

    #[test]
    fn an_id_of_a_batch_needs_its_size() {
        let mut acknowledgements = Acknowledgements::new(None, false);
        let id = MessageId {
            batch_index: Some(1),
            ..MessageId::of_entry(1, 1)
        };
        assert_eq!(
            acknowledgements.individual(&id, Duration::ZERO),
            Err(NoBatchSize)
        );
        assert_eq!(
            acknowledgements.cumulative(&id, Duration::ZERO),
            Err(NoBatchSize)
        );
        assert!(taken(&mut acknowledgements).is_empty());
    }

    #[test]
    fn batches_of_which_some_are_acknowledged_are_bounded() {
        let mut acknowledgements = Acknowledgements::new(None, false);
        for entry in 0..=BATCHES_MAX {
            let entry = u64::try_from(entry).unwrap();
            let of_batch = id(entry, Some((0, 2)));
            acknowledgements
                .individual(&of_batch, Duration::ZERO)
                .unwrap();
        }
        assert_eq!(acknowledgements.batches.len(), BATCHES_MAX);
    }
}
