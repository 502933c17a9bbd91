//! Positions in a topic, and which of them there are.

use std::fmt;

use super::formats::NestedPositionInfo;

/// An entry of a ledger. Ordered as entries were written: ledger ids of a topic rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The ledger.
    pub ledger_id: i64,
    /// The entry, from 0; -1 stands before the first one.
    pub entry_id: i64,
}

impl Position {
    /// This entry of this ledger.
    #[must_use]
    pub const fn new(ledger_id: i64, entry_id: i64) -> Self {
        Self {
            ledger_id,
            entry_id,
        }
    }

    /// Before the first entry of a ledger.
    #[must_use]
    pub const fn before(ledger_id: i64) -> Self {
        Self::new(ledger_id, -1)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ledger_id, self.entry_id)
    }
}

impl From<&NestedPositionInfo> for Position {
    fn from(info: &NestedPositionInfo) -> Self {
        Self::new(info.ledger_id, info.entry_id)
    }
}

impl From<Position> for NestedPositionInfo {
    fn from(position: Position) -> Self {
        Self {
            ledger_id: position.ledger_id,
            entry_id: position.entry_id,
            ..Self::default()
        }
    }
}

/// The entries that a topic has: how many there are in each of its ledgers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogExtent {
    /// Ids rise, no number of entries is negative.
    ledgers: Vec<(i64, i64)>,
}

impl LogExtent {
    /// Ledgers and how many entries they have, in any order. Of a ledger that comes twice the last one counts; one with a
    /// negative number has none, and none has more than [`LEDGER_ENTRIES_MAX`].
    #[must_use]
    pub fn new(ledgers: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let ordered: std::collections::BTreeMap<i64, i64> = ledgers.into_iter().collect();
        Self {
            ledgers: ordered
                .into_iter()
                .map(|(ledger, entries)| (ledger, entries.clamp(0, LEDGER_ENTRIES_MAX)))
                .collect(),
        }
    }

    /// How many entries a ledger has; `None` when it is none of the topic's.
    #[must_use]
    pub fn entries(&self, ledger_id: i64) -> Option<i64> {
        let place = self.place(ledger_id).ok()?;
        self.ledgers.get(place).map(|(_, entries)| *entries)
    }

    /// Whether there is this entry.
    #[must_use]
    pub fn contains(&self, position: Position) -> bool {
        position.entry_id >= 0
            && self
                .entries(position.ledger_id)
                .is_some_and(|entries| position.entry_id < entries)
    }

    /// The first entry behind a position.
    #[must_use]
    pub fn next(&self, position: Position) -> Option<Position> {
        let (from, after) = match self.place(position.ledger_id) {
            Ok(place) => (place, position.entry_id.saturating_add(1).max(0)),
            Err(place) => (place, 0),
        };
        let mut first = after;
        for (ledger_id, entries) in self.ledgers.get(from..)? {
            if first < *entries {
                return Some(Position::new(*ledger_id, first));
            }
            first = 0;
        }
        None
    }

    /// The last entry before a position; before the first one it is that of no entry, entry -1 of the first ledger.
    /// `None` when there are no ledgers.
    #[must_use]
    pub fn previous(&self, position: Position) -> Option<Position> {
        let (behind, last) = match self.place(position.ledger_id) {
            Ok(place) => (place.saturating_add(1), position.entry_id),
            Err(place) => (place, i64::MAX),
        };
        let mut bound = last;
        for (ledger_id, entries) in self.ledgers.get(..behind)?.iter().rev() {
            let entries = bound.min(*entries);
            if entries > 0 {
                return Some(Position::new(*ledger_id, entries - 1));
            }
            bound = i64::MAX;
        }
        self.ledgers
            .first()
            .map(|(ledger_id, _)| Position::before(*ledger_id))
    }

    /// The last entry; `None` when there is none.
    #[must_use]
    pub fn last(&self) -> Option<Position> {
        let (ledger_id, entries) = self
            .ledgers
            .iter()
            .rev()
            .find(|(_, entries)| *entries > 0)?;
        Some(Position::new(*ledger_id, entries - 1))
    }

    /// How many entries stand behind a position.
    #[must_use]
    pub fn count_behind(&self, position: Position) -> i64 {
        let (from, seen) = match self.place(position.ledger_id) {
            Ok(place) => (place, position.entry_id.saturating_add(1).max(0)),
            Err(place) => (place, 0),
        };
        let behind = self.ledgers.get(from..).unwrap_or_default();
        let mut seen = seen;
        let mut count = 0_i64;
        for (_, entries) in behind {
            count = count.saturating_add((entries - seen).max(0));
            seen = 0;
        }
        count
    }

    /// The ledgers and how many entries they have.
    pub fn ledgers(&self) -> impl DoubleEndedIterator<Item = (i64, i64)> + '_ {
        self.ledgers.iter().copied()
    }

    fn place(&self, ledger_id: i64) -> Result<usize, usize> {
        self.ledgers
            .binary_search_by_key(&ledger_id, |(ledger, _)| *ledger)
    }
}

/// More entries than any ledger has: Pulsar's own bit sets of them end here. A number beyond comes from a damaged value, and
/// would cost memory without a bound.
pub const LEDGER_ENTRIES_MAX: i64 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_entries_have_bounds() {
        let log = LogExtent::new([(1, i64::MAX), (2, -7)]);
        assert_eq!(
            (log.entries(1), log.entries(2)),
            (Some(LEDGER_ENTRIES_MAX), Some(0))
        );
    }

    #[test]
    fn goes_over_empty_and_missing_ledgers() {
        let log = LogExtent::new([(7, 0), (3, 2), (5, 0), (9, 1)]);
        let at = Position::new;
        assert_eq!(log.next(Position::before(0)), Some(at(3, 0)));
        assert_eq!(log.next(at(3, -1)), Some(at(3, 0)));
        assert_eq!(log.next(at(3, 0)), Some(at(3, 1)));
        for behind_three in [
            at(3, 1),
            at(3, i64::MAX),
            at(4, 8),
            at(5, -1),
            at(7, 3),
            at(9, -1),
        ] {
            assert_eq!(log.next(behind_three), Some(at(9, 0)), "{behind_three}");
        }
        assert_eq!(log.next(at(9, 0)), None);
        assert_eq!(log.next(at(10, 0)), None);
        assert_eq!(log.previous(at(9, 0)), Some(at(3, 1)));
        assert_eq!(log.previous(at(9, 1)), Some(at(9, 0)));
        assert_eq!(log.previous(at(8, 4)), Some(at(3, 1)));
        assert_eq!(log.previous(at(99, 0)), Some(at(9, 0)));
        assert_eq!(log.previous(at(3, 1)), Some(at(3, 0)));
        assert_eq!(log.previous(at(3, 0)), Some(at(3, -1)));
        assert_eq!(log.previous(at(1, 0)), Some(at(3, -1)));
        assert_eq!(LogExtent::default().previous(at(1, 0)), None);
        assert_eq!(
            (log.last(), LogExtent::new([(3, 0)]).last()),
            (Some(at(9, 0)), None)
        );
        assert_eq!(log.count_behind(at(3, 0)), 2);
        assert_eq!(log.count_behind(at(4, 0)), 1);
        assert_eq!(log.count_behind(Position::before(0)), 3);
        assert_eq!(log.count_behind(at(9, 0)), 0);
        assert!(log.contains(at(3, 1)) && !log.contains(at(3, 2)) && !log.contains(at(3, -1)));
    }
}
