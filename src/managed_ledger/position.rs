//! Positions in a topic, and which of them there are.

use std::fmt;
use std::sync::Arc;

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

/// The entries that a topic has: how many there are in each of its ledgers. Cheap to clone and to let grow at its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogExtent {
    /// All ledgers but the last. Ids rise, no number of entries is negative.
    closed: Arc<[(i64, i64)]>,
    /// The ledger with the highest id.
    last: Option<(i64, i64)>,
    /// The first entry of the first ledger that is not trimmed.
    first_entry: i64,
}

impl LogExtent {
    /// Ledgers and how many entries they have, in any order. Of a ledger that comes twice the last one counts; one with a
    /// negative number has none, and none has more than [`LEDGER_ENTRIES_MAX`].
    #[must_use]
    pub fn new(ledgers: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let ordered: std::collections::BTreeMap<i64, i64> = ledgers.into_iter().collect();
        let mut ledgers: Vec<_> = ordered
            .into_iter()
            .map(|(ledger, entries)| (ledger, entries.clamp(0, LEDGER_ENTRIES_MAX)))
            .collect();
        let last = ledgers.pop();
        Self {
            closed: ledgers.into(),
            last,
            first_entry: 0,
        }
    }

    /// The same, but entries of the first ledger before this one are gone.
    #[must_use]
    pub fn with_first_entry(mut self, entry_id: i64) -> Self {
        self.first_entry = entry_id.max(0);
        self
    }

    /// The same, with so many entries in the last ledger.
    #[must_use]
    pub fn with_last_entries(mut self, entries: i64) -> Self {
        if let Some(last) = &mut self.last {
            last.1 = entries.clamp(0, LEDGER_ENTRIES_MAX);
        }
        self
    }

    /// How many entries a ledger has, those included that are trimmed; `None` when it is none of the topic's.
    #[must_use]
    pub fn entries(&self, ledger_id: i64) -> Option<i64> {
        let place = self.place(ledger_id).ok()?;
        self.from(place).next().map(|(_, _, entries)| entries)
    }

    /// Whether there is this entry.
    #[must_use]
    pub fn contains(&self, position: Position) -> bool {
        let Ok(place) = self.place(position.ledger_id) else {
            return false;
        };
        self.from(place)
            .next()
            .is_some_and(|(_, first, entries)| (first..entries).contains(&position.entry_id))
    }

    /// The first entry behind a position.
    #[must_use]
    pub fn next(&self, position: Position) -> Option<Position> {
        let (from, after) = match self.place(position.ledger_id) {
            Ok(place) => (place, position.entry_id.saturating_add(1).max(0)),
            Err(place) => (place, 0),
        };
        let mut after = after;
        for (ledger_id, first, entries) in self.from(from) {
            let next = first.max(after);
            if next < entries {
                return Some(Position::new(ledger_id, next));
            }
            after = 0;
        }
        None
    }

    /// The last entry before a position; before the first one it is [`Self::before_first`]. `None` when there are no ledgers.
    #[must_use]
    pub fn previous(&self, position: Position) -> Option<Position> {
        let (behind, last) = match self.place(position.ledger_id) {
            Ok(place) => (place.saturating_add(1), position.entry_id),
            Err(place) => (place, i64::MAX),
        };
        let mut bound = last;
        for (ledger_id, first, entries) in self.before(behind) {
            let entries = bound.min(entries);
            if entries > first {
                return Some(Position::new(ledger_id, entries - 1));
            }
            bound = i64::MAX;
        }
        self.before_first()
    }

    /// What stands before the first entry that is not trimmed: that of no entry in the first ledger, or the last trimmed one of it.
    /// `None` when there are no ledgers.
    #[must_use]
    pub fn before_first(&self) -> Option<Position> {
        let (ledger_id, first, _) = self.from(0).next()?;
        Some(Position::new(ledger_id, first - 1))
    }

    /// The last entry; `None` when there is none.
    #[must_use]
    pub fn last(&self) -> Option<Position> {
        let (ledger_id, _, entries) = self
            .before(usize::MAX)
            .find(|(_, first, entries)| entries > first)?;
        Some(Position::new(ledger_id, entries - 1))
    }

    /// How many entries stand behind a position.
    #[must_use]
    pub fn count_behind(&self, position: Position) -> i64 {
        let (from, after) = match self.place(position.ledger_id) {
            Ok(place) => (place, position.entry_id.saturating_add(1).max(0)),
            Err(place) => (place, 0),
        };
        let mut after = after;
        let mut count = 0_i64;
        for (_, first, entries) in self.from(from) {
            count = count.saturating_add((entries - first.max(after)).max(0));
            after = 0;
        }
        count
    }

    /// The entry so many entries behind a position; the last one, or the position itself, when there are not so many.
    #[must_use]
    pub fn position_after(&self, position: Position, entries: i64) -> Position {
        let (from, after) = match self.place(position.ledger_id) {
            Ok(place) => (place, position.entry_id.saturating_add(1).max(0)),
            Err(place) => (place, 0),
        };
        let (mut after, mut left, mut reached) = (after, entries, position);
        for (ledger_id, first, entries) in self.from(from) {
            if left <= 0 {
                break;
            }
            let next = first.max(after);
            let here = (entries - next).clamp(0, left);
            if here > 0 {
                reached = Position::new(ledger_id, next + here - 1);
                left -= here;
            }
            after = 0;
        }
        reached
    }

    /// The ledgers and how many entries they have, those included that are trimmed.
    pub fn ledgers(&self) -> impl DoubleEndedIterator<Item = (i64, i64)> + '_ {
        self.closed.iter().copied().chain(self.last)
    }

    /// Ledgers from a place on: id, first entry that is not trimmed, number of entries.
    fn from(&self, place: usize) -> impl Iterator<Item = (i64, i64, i64)> + '_ {
        let first_entry = if place == 0 { self.first_entry } else { 0 };
        let closed = self.closed.get(place..).unwrap_or_default();
        let last = self.last.filter(|_| place <= self.closed.len());
        let firsts = std::iter::once(first_entry).chain(std::iter::repeat(0));
        closed
            .iter()
            .copied()
            .chain(last)
            .zip(firsts)
            .map(|((ledger_id, entries), first)| (ledger_id, first, entries))
    }

    /// Ledgers before a place, the last of them first: as [`Self::from`].
    fn before(&self, place: usize) -> impl Iterator<Item = (i64, i64, i64)> + '_ {
        let closed = self.closed.get(..place).unwrap_or(&self.closed);
        let last = self.last.filter(|_| place > self.closed.len());
        let oldest = self.from(0).next().map(|(ledger_id, ..)| ledger_id);
        let ledgers = last.into_iter().chain(closed.iter().rev().copied());
        ledgers.map(move |(ledger_id, entries)| {
            let is_oldest = oldest == Some(ledger_id);
            let first = if is_oldest { self.first_entry } else { 0 };
            (ledger_id, first, entries)
        })
    }

    fn place(&self, ledger_id: i64) -> Result<usize, usize> {
        match self.last {
            Some((last, _)) if ledger_id == last => Ok(self.closed.len()),
            Some((last, _)) if ledger_id > last => Err(self.closed.len() + 1),
            _ => self
                .closed
                .binary_search_by_key(&ledger_id, |(ledger, _)| *ledger),
        }
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
    fn what_is_trimmed_is_not_there() {
        let at = Position::new;
        let log = LogExtent::new([(3, 5), (4, 2)]).with_first_entry(2);
        assert_eq!(log.next(Position::before(0)), Some(at(3, 2)));
        assert_eq!(log.next(at(3, 0)), Some(at(3, 2)));
        assert_eq!(log.previous(at(3, 2)), Some(at(3, 1)));
        assert_eq!(log.previous(at(3, 3)), Some(at(3, 2)));
        assert_eq!(log.before_first(), Some(at(3, 1)));
        assert_eq!(log.count_behind(Position::before(3)), 5);
        assert!(!log.contains(at(3, 1)) && log.contains(at(3, 2)));
        let all = LogExtent::new([(3, 5)]).with_first_entry(5);
        assert_eq!((all.last(), all.next(at(3, 0))), (None, None));
        assert_eq!(all.before_first(), Some(at(3, 4)));
        assert_eq!(all.with_last_entries(6).last(), Some(at(3, 5)));
    }

    #[test]
    fn counts_entries_forward() {
        let at = Position::new;
        let log = LogExtent::new([(3, 5), (4, 0), (6, 2)]).with_first_entry(2);
        assert_eq!(log.position_after(Position::before(0), 1), at(3, 2));
        assert_eq!(log.position_after(at(3, 2), 3), at(6, 0));
        assert_eq!(log.position_after(at(3, 2), 2), at(3, 4));
        assert_eq!(log.position_after(at(3, 2), 99), at(6, 1));
        assert_eq!(log.position_after(at(6, 1), 99), at(6, 1));
        assert_eq!(log.position_after(at(3, 3), 0), at(3, 3));
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
