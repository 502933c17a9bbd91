//! What a subscription has acknowledged. Pure.
//!
//! Everything up to the mark-delete position is acknowledged; beyond it single entries are (the holes), and of some batches
//! single messages. Holes are a bitmap by ledger, so that their number has no limit.
//!
//! Which entries there are is told with each call ([`LogExtent`]): an acknowledgement of what is not there changes nothing,
//! and the mark-delete position steps over ledgers that are empty or gone.

mod changes;
mod find;
mod order;
mod reading;
#[cfg(test)]
mod reading_tests;
mod record;
#[cfg(test)]
mod record_tests;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::entry_set::EntrySet;
use super::log::EntryRange;
use super::{AckSet, LogExtent, Position};

pub(crate) use changes::{Changes, RecordedState};
pub use find::{Find, FindNewest, find_newest};
pub use order::MarkDeletes;
pub use reading::{ReadPosition, StartAt};
pub use record::CursorRecordError;
pub use stored::HolesForm;

/// The state of a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorState {
    /// Everything up to here is acknowledged.
    mark_delete: Position,
    /// Entries acknowledged behind it, by ledger. No set is empty.
    holes: BTreeMap<i64, EntrySet>,
    /// Batches behind it of which some messages are acknowledged and some are not. None is among the holes.
    batches: BTreeMap<Position, AckSet>,
    /// Properties of the position: they are stored with it.
    properties: BTreeMap<String, i64>,
    /// Properties of the cursor.
    cursor_properties: BTreeMap<String, String>,
}

/// What an acknowledgement changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// Nothing: it was acknowledged before, or is not there.
    Nothing,
    /// Something behind the mark-delete position.
    Behind,
    /// The mark-delete position moved.
    MarkDelete,
}

impl CursorState {
    /// A cursor that has acknowledged everything up to here and nothing behind.
    #[must_use]
    pub fn new(mark_delete: Position) -> Self {
        Self {
            mark_delete,
            holes: BTreeMap::new(),
            batches: BTreeMap::new(),
            properties: BTreeMap::new(),
            cursor_properties: BTreeMap::new(),
        }
    }

    /// Everything up to here is acknowledged.
    #[must_use]
    pub fn mark_delete(&self) -> Position {
        self.mark_delete
    }

    /// Whether an entry is acknowledged.
    #[must_use]
    pub fn is_acknowledged(&self, position: Position) -> bool {
        position <= self.mark_delete
            || self
                .holes
                .get(&position.ledger_id)
                .is_some_and(|entries| entries.contains(position.entry_id))
    }

    /// The messages of a batch that are not acknowledged, when only some are.
    #[must_use]
    pub fn batch(&self, position: Position) -> Option<&AckSet> {
        self.batches.get(&position)
    }

    /// The first entry behind a position that is not acknowledged.
    #[must_use]
    pub fn next_unacknowledged(&self, behind: Position, log: &LogExtent) -> Option<Position> {
        let mut position = log.next(behind.max(self.mark_delete))?;
        loop {
            let Some(entries) = self.holes.get(&position.ledger_id) else {
                return Some(position);
            };
            let missing = entries.first_missing(position.entry_id);
            if missing == position.entry_id {
                return Some(position);
            }
            // Either that entry, or the ledger has none any more.
            position = log.next(Position::new(position.ledger_id, missing - 1))?;
        }
    }

    /// Entries that are not acknowledged. A batch counts as one as long as any of its messages is not.
    #[must_use]
    pub fn backlog(&self, log: &LogExtent) -> i64 {
        let holes: i64 = self.holes.values().map(EntrySet::count).sum();
        (log.count_behind(self.mark_delete) - holes).max(0)
    }

    /// Acknowledges an entry.
    pub fn acknowledge(&mut self, position: Position, log: &LogExtent) -> Acknowledged {
        if !log.contains(position) || self.is_acknowledged(position) {
            return Acknowledged::Nothing;
        }
        self.batches.remove(&position);
        let entries = self.holes.entry(position.ledger_id).or_default();
        entries.insert(position.entry_id);
        self.advance(log)
    }

    /// Acknowledges those messages of a batch that are not in `remaining`. `messages` is how many the batch has.
    pub fn acknowledge_in_batch(
        &mut self,
        position: Position,
        messages: u32,
        remaining: &AckSet,
        log: &LogExtent,
    ) -> Acknowledged {
        if !log.contains(position) || self.is_acknowledged(position) {
            return Acknowledged::Nothing;
        }
        let known = self.batches.get(&position);
        let mut unacknowledged = known.cloned().unwrap_or_else(|| AckSet::of(messages));
        let changed = unacknowledged.intersect(remaining);
        if unacknowledged.is_empty() {
            return self.acknowledge(position, log);
        }
        if !changed {
            return Acknowledged::Nothing;
        }
        self.batches.insert(position, unacknowledged);
        Acknowledged::Behind
    }

    /// Acknowledges everything up to and with an entry.
    pub fn acknowledge_through(&mut self, position: Position, log: &LogExtent) -> Acknowledged {
        if position <= self.mark_delete || !log.contains(position) {
            return Acknowledged::Nothing;
        }
        self.move_to(position);
        self.advance(log);
        Acknowledged::MarkDelete
    }

    /// Acknowledges everything before a batch, and those of its messages that are not in `remaining`.
    pub fn acknowledge_through_batch(
        &mut self,
        position: Position,
        messages: u32,
        remaining: &AckSet,
        log: &LogExtent,
    ) -> Acknowledged {
        if position <= self.mark_delete || !log.contains(position) {
            return Acknowledged::Nothing;
        }
        let before = match log.previous(position) {
            Some(previous) if log.contains(previous) => self.acknowledge_through(previous, log),
            _ => Acknowledged::Nothing,
        };
        let within = self.acknowledge_in_batch(position, messages, remaining, log);
        match (before, within) {
            (Acknowledged::Nothing, within) => within,
            (before, _) => before,
        }
    }

    /// Acknowledges the next so many entries that are not acknowledged; all, when there are not so many. What is acknowledged
    /// already does not count, as with Apache Pulsar's `skip`.
    pub fn skip(&mut self, entries: u64, log: &LogExtent) -> Acknowledged {
        let mut left = entries;
        let mut last = None;
        for run in self.unacknowledged_runs(self.mark_delete, log) {
            if left == 0 {
                break;
            }
            let length = u64::try_from(run.entries.end - run.entries.start).unwrap_or(0);
            let taken = length.min(left);
            left -= taken;
            let taken = i64::try_from(taken).unwrap_or(0);
            last = Some(Position::new(run.ledger_id, run.entries.start + taken - 1));
        }
        match last {
            Some(last) => self.acknowledge_through(last, log),
            None => Acknowledged::Nothing,
        }
    }

    /// Acknowledges all entries that there are.
    pub fn clear_backlog(&mut self, log: &LogExtent) -> Acknowledged {
        match log.last() {
            Some(last) => self.acknowledge_through(last, log),
            None => Acknowledged::Nothing,
        }
    }

    /// Moves the cursor to right behind a position, forwards or backwards, and forgets what was acknowledged behind it. As with
    /// Apache Pulsar, the position's properties are forgotten, those of the cursor stay. What stands in the log is not looked at:
    /// [`StartAt::mark_delete`] finds the position.
    pub fn reset(&mut self, mark_delete: Position) {
        self.mark_delete = mark_delete;
        self.holes.clear();
        self.batches.clear();
        self.properties.clear();
    }

    /// After a reset to right before a batch: only these of its messages are not acknowledged.
    pub(crate) fn restore_batch(&mut self, position: Position, remaining: AckSet) {
        if position > self.mark_delete && !remaining.is_empty() {
            self.batches.insert(position, remaining);
        }
    }

    /// Entries behind a position that are not acknowledged, each run of them in one ledger and as long as it can be.
    pub fn unacknowledged_runs<'a>(
        &'a self,
        behind: Position,
        log: &'a LogExtent,
    ) -> impl Iterator<Item = EntryRange> + 'a {
        let mut behind = behind;
        std::iter::from_fn(move || {
            let first = self.next_unacknowledged(behind, log)?;
            let end = log.entries(first.ledger_id)?;
            let hole = self
                .holes
                .get(&first.ledger_id)
                .and_then(|entries| entries.first_present(first.entry_id));
            let end = hole.map_or(end, |hole| hole.min(end));
            behind = Position::new(first.ledger_id, end - 1);
            Some(EntryRange {
                ledger_id: first.ledger_id,
                entries: first.entry_id..end,
            })
        })
    }

    /// The so manieth entry that is not acknowledged, counted from 1, as with `peek` of admin clients.
    #[must_use]
    pub fn nth_unacknowledged(&self, place: u64, log: &LogExtent) -> Option<Position> {
        let mut left = i64::try_from(place).ok()?.checked_sub(1)?;
        for run in self.unacknowledged_runs(self.mark_delete, log) {
            let length = run.entries.end - run.entries.start;
            if left < length {
                let entry = run.entries.start.checked_add(left).filter(|_| left >= 0)?;
                return Some(Position::new(run.ledger_id, entry));
            }
            left -= length;
        }
        None
    }

    /// What is acknowledged behind the mark-delete position, in order.
    pub fn acknowledged_ranges(&self) -> impl Iterator<Item = EntryRange> + '_ {
        self.holes.iter().flat_map(|(ledger_id, entries)| {
            entries.ranges().map(|(first, last)| EntryRange {
                ledger_id: *ledger_id,
                entries: first..last + 1,
            })
        })
    }

    /// Whether the holes make more than so many ranges. Looks at no more than that.
    #[must_use]
    pub fn has_more_ranges_than(&self, limit: usize) -> bool {
        self.acknowledged_ranges().nth(limit).is_some()
    }

    /// Entries are gone from the log, or came to it: what is no longer there counts as acknowledged.
    pub fn log_changed(&mut self, log: &LogExtent) -> Acknowledged {
        let before = self.mark_delete;
        if let Some(gone) = log.before_first()
            && self.mark_delete < gone
        {
            self.move_to(gone);
        }
        self.holes
            .retain(|ledger_id, _| log.entries(*ledger_id).is_some());
        self.batches.retain(|position, _| log.contains(*position));
        self.advance(log);
        if self.mark_delete == before {
            Acknowledged::Nothing
        } else {
            Acknowledged::MarkDelete
        }
    }

    /// The properties of the position.
    #[must_use]
    pub fn properties(&self) -> &BTreeMap<String, i64> {
        &self.properties
    }

    /// Replaces the properties of the position.
    pub fn set_properties(&mut self, properties: BTreeMap<String, i64>) {
        self.properties = properties;
    }

    /// The properties of the cursor.
    #[must_use]
    pub fn cursor_properties(&self) -> &BTreeMap<String, String> {
        &self.cursor_properties
    }

    /// Replaces the properties of the cursor.
    pub fn set_cursor_properties(&mut self, properties: BTreeMap<String, String>) {
        self.cursor_properties = properties;
    }

    /// Lets the mark-delete position follow what is acknowledged right behind it.
    fn advance(&mut self, log: &LogExtent) -> Acknowledged {
        let reached = match self.next_unacknowledged(self.mark_delete, log) {
            Some(first) => log.previous(first),
            None => log.last(),
        };
        match reached {
            Some(reached) if reached > self.mark_delete && log.contains(reached) => {
                self.move_to(reached);
                Acknowledged::MarkDelete
            }
            _ => Acknowledged::Behind,
        }
    }

    /// Sets the mark-delete position and forgets what is covered by it.
    fn move_to(&mut self, position: Position) {
        self.mark_delete = position;
        self.holes = self.holes.split_off(&position.ledger_id);
        if let Some(entries) = self.holes.get_mut(&position.ledger_id) {
            entries.remove_through(position.entry_id);
            if entries.is_empty() {
                self.holes.remove(&position.ledger_id);
            }
        }
        // What is behind the position, not at it.
        let behind = Position::new(position.ledger_id, position.entry_id.saturating_add(1));
        self.batches = self.batches.split_off(&behind);
    }
}
