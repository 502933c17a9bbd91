//! A cursor's state as Pulsar stores it, in a node or in a cursor ledger, and back.

use std::collections::BTreeMap;

use super::super::entry_set::EntrySet;
use super::super::formats::{
    BatchedEntryDeletionIndexInfo, LongListMap, LongProperty, ManagedCursorInfo, MessageRange,
    PositionInfo, StringProperty,
};
use super::super::{AckSet, LogExtent, Position};
use super::CursorState;

/// How holes are written into a cursor ledger. Both forms are read, whatever the setting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HolesForm {
    /// As ranges: what every version of Pulsar reads.
    #[default]
    Ranges,
    /// As bit sets (`managedLedgerPersistIndividualAckAsLongArray`).
    BitSets,
}

impl CursorState {
    /// Reads an entry of a cursor ledger, the last one, and what stands beside it in the cursor's node. What it says of
    /// entries that are not there is left out.
    #[must_use]
    pub fn from_ledger(info: &PositionInfo, node: &ManagedCursorInfo, log: &LogExtent) -> Self {
        let mut state = Self::new(Position::new(info.ledger_id, info.entry_id));
        state.read_ranges(&info.individual_deleted_messages, log);
        for set in &info.individual_deleted_message_ranges {
            if let Some(entries) = log.entries(set.key) {
                for (first, last) in EntrySet::from_words(&set.values, entries).ranges() {
                    state.add_hole(set.key, first, last);
                }
            }
        }
        state.read_batches(&info.batched_entry_deletion_index_info, log);
        state.properties = numbers(&info.properties);
        state.cursor_properties = texts(&node.cursor_properties);
        state.settle(log);
        state
    }

    /// Reads a node. Where it names a cursor ledger, this is only where the cursor was when that ledger was made.
    #[must_use]
    pub fn from_node(node: &ManagedCursorInfo, log: &LogExtent) -> Self {
        let at = (node.mark_delete_ledger_id, node.mark_delete_entry_id);
        let mark_delete = match at {
            (Some(ledger_id), entry_id) => Position::new(ledger_id, entry_id.unwrap_or(-1)),
            (None, _) => Position::before(-1),
        };
        let mut state = Self::new(mark_delete);
        state.read_ranges(&node.individual_deleted_messages, log);
        state.read_batches(&node.batched_entry_deletion_index_info, log);
        state.properties = numbers(&node.properties);
        state.cursor_properties = texts(&node.cursor_properties);
        state.settle(log);
        state
    }

    /// The entry of a cursor ledger that says this.
    #[must_use]
    pub fn to_ledger(&self, form: HolesForm) -> PositionInfo {
        let mut info = PositionInfo {
            ledger_id: self.mark_delete.ledger_id,
            entry_id: self.mark_delete.entry_id,
            properties: self.stored_properties(),
            batched_entry_deletion_index_info: self.stored_batches(),
            ..PositionInfo::default()
        };
        match form {
            HolesForm::Ranges => info.individual_deleted_messages = self.stored_ranges(),
            HolesForm::BitSets => {
                let sets = self.holes.iter().map(|(ledger_id, entries)| LongListMap {
                    key: *ledger_id,
                    values: entries.to_words(),
                    ..LongListMap::default()
                });
                info.individual_deleted_message_ranges = sets.collect();
            }
        }
        info
    }

    /// The node of a cursor that is closed: it says all of this, and names no cursor ledger. `last_active` is in milliseconds
    /// since 1970.
    #[must_use]
    pub fn to_node(&self, last_active: i64) -> ManagedCursorInfo {
        ManagedCursorInfo {
            individual_deleted_messages: self.stored_ranges(),
            batched_entry_deletion_index_info: self.stored_batches(),
            ..self.to_node_beside(-1, last_active)
        }
    }

    /// The node of a cursor whose state is in a cursor ledger, or elsewhere: where it was when this was written, without what
    /// is acknowledged beyond.
    #[must_use]
    pub fn to_node_beside(&self, cursors_ledger_id: i64, last_active: i64) -> ManagedCursorInfo {
        ManagedCursorInfo {
            cursors_ledger_id,
            mark_delete_ledger_id: Some(self.mark_delete.ledger_id),
            mark_delete_entry_id: Some(self.mark_delete.entry_id),
            properties: self.stored_properties(),
            last_active: Some(last_active),
            cursor_properties: self
                .cursor_properties
                .iter()
                .map(|(name, value)| StringProperty {
                    name: name.clone(),
                    value: value.clone(),
                    ..StringProperty::default()
                })
                .collect(),
            ..ManagedCursorInfo::default()
        }
    }

    /// A range may go over several ledgers in what old versions wrote.
    fn read_ranges(&mut self, ranges: &[MessageRange], log: &LogExtent) {
        for range in ranges {
            let lower = Position::from(&range.lower_endpoint);
            let upper = Position::from(&range.upper_endpoint);
            for (ledger_id, entries) in log.ledgers() {
                if ledger_id < lower.ledger_id || ledger_id > upper.ledger_id {
                    continue;
                }
                let first = if ledger_id == lower.ledger_id {
                    lower.entry_id.saturating_add(1)
                } else {
                    0
                };
                let last = if ledger_id == upper.ledger_id {
                    upper.entry_id.min(entries - 1)
                } else {
                    entries - 1
                };
                self.add_hole(ledger_id, first, last);
            }
        }
    }

    pub(super) fn add_hole(&mut self, ledger_id: i64, first: i64, last: i64) {
        if first <= last && last >= 0 {
            let entries = self.holes.entry(ledger_id).or_default();
            entries.insert_range(first, last);
        }
    }

    fn read_batches(&mut self, batches: &[BatchedEntryDeletionIndexInfo], log: &LogExtent) {
        for batch in batches {
            let position = Position::from(&batch.position);
            let unacknowledged = AckSet::from_words(batch.delete_set.iter().copied());
            if !log.contains(position) {
                continue;
            }
            if unacknowledged.is_empty() {
                self.add_hole(position.ledger_id, position.entry_id, position.entry_id);
            } else {
                self.batches.insert(position, unacknowledged);
            }
        }
    }

    /// Makes what was read keep the rules of the state: nothing is said of what the mark-delete position covers, nor of entries
    /// that the log does not have. A position behind the end of the log moves to its end, as with Apache Pulsar: a log that lost its
    /// tail gets other entries there.
    pub(super) fn settle(&mut self, log: &LogExtent) {
        if let Some(end) = log.last().or_else(|| log.before_first())
            && self.mark_delete > end
        {
            self.mark_delete = end;
        }
        self.move_to(self.mark_delete);
        self.holes.retain(|ledger_id, entries| {
            entries.remove_from(log.entries(*ledger_id).unwrap_or(0));
            !entries.is_empty()
        });
        let holes = &self.holes;
        let is_hole = |position: &Position| {
            let entries = holes.get(&position.ledger_id);
            entries.is_some_and(|entries| entries.contains(position.entry_id))
        };
        self.batches.retain(|position, _| !is_hole(position));
        self.log_changed(log);
    }

    fn stored_ranges(&self) -> Vec<MessageRange> {
        let ranges = self.holes.iter().flat_map(|(ledger_id, entries)| {
            entries.ranges().map(|(first, last)| MessageRange {
                lower_endpoint: Position::new(*ledger_id, first - 1).into(),
                upper_endpoint: Position::new(*ledger_id, last).into(),
                ..MessageRange::default()
            })
        });
        ranges.collect()
    }

    fn stored_batches(&self) -> Vec<BatchedEntryDeletionIndexInfo> {
        let batches = self.batches.iter();
        batches
            .map(|(position, unacknowledged)| BatchedEntryDeletionIndexInfo {
                position: (*position).into(),
                delete_set: unacknowledged.words().collect(),
                ..BatchedEntryDeletionIndexInfo::default()
            })
            .collect()
    }

    fn stored_properties(&self) -> Vec<LongProperty> {
        let properties = self.properties.iter();
        properties
            .map(|(name, value)| LongProperty {
                name: name.clone(),
                value: *value,
                ..LongProperty::default()
            })
            .collect()
    }
}

fn numbers(properties: &[LongProperty]) -> BTreeMap<String, i64> {
    let pairs = properties.iter();
    pairs
        .map(|property| (property.name.clone(), property.value))
        .collect()
}

fn texts(properties: &[StringProperty]) -> BTreeMap<String, String> {
    let pairs = properties.iter();
    pairs
        .map(|property| (property.name.clone(), property.value.clone()))
        .collect()
}
