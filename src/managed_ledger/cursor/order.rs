//! The cursors of a topic by their mark-delete positions: the slowest one holds back trimming. Pure.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use super::super::Position;

/// Mark-delete positions of cursors. Each change takes time in the logarithm of their number.
#[derive(Debug, Clone)]
pub struct MarkDeletes<C> {
    ordered: BTreeSet<(Position, C)>,
    positions: HashMap<C, Position>,
}

impl<C: Clone + Ord + Hash> Default for MarkDeletes<C> {
    fn default() -> Self {
        Self {
            ordered: BTreeSet::new(),
            positions: HashMap::new(),
        }
    }
}

impl<C: Clone + Ord + Hash> MarkDeletes<C> {
    /// A cursor is there, forwards or backwards of where it was.
    pub fn set(&mut self, cursor: C, mark_delete: Position) {
        if let Some(before) = self.positions.insert(cursor.clone(), mark_delete) {
            self.ordered.remove(&(before, cursor.clone()));
        }
        self.ordered.insert((mark_delete, cursor));
    }

    /// A cursor is gone.
    pub fn remove(&mut self, cursor: &C) {
        if let Some(before) = self.positions.remove(cursor) {
            self.ordered.remove(&(before, cursor.clone()));
        }
    }

    /// The cursor that is furthest behind; the first by name of several.
    #[must_use]
    pub fn slowest(&self) -> Option<(&C, Position)> {
        let (position, cursor) = self.ordered.first()?;
        Some((cursor, *position))
    }

    /// How many cursors there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn knows_the_slowest(changes in prop::collection::vec((0..6_u8, prop::option::of((0..3_i64, -1..5_i64))), 0..60)) {
            let mut slowest = MarkDeletes::default();
            let mut model: HashMap<u8, Position> = HashMap::new();
            for (cursor, at) in changes {
                if let Some((ledger, entry)) = at {
                    slowest.set(cursor, Position::new(ledger, entry));
                    model.insert(cursor, Position::new(ledger, entry));
                } else {
                    slowest.remove(&cursor);
                    model.remove(&cursor);
                }
                prop_assert_eq!(slowest.slowest().map(|(_, position)| position), model.values().min().copied());
                prop_assert_eq!((slowest.len(), slowest.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(slowest.ordered.len(), model.len());
            }
        }
    }
}
