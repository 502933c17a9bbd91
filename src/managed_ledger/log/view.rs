//! What a log is at one moment, and how its entries are read. Pure.
//!
//! A log publishes a [`LogView`] whenever it changes; cursors look only at that and never at the log itself.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;

use crate::ledger::LedgerError;
use crate::managed_ledger::{LogExtent, Position};

/// What a log is at one moment: which entries are durable and not trimmed. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogView {
    extent: LogExtent,
    last_confirmed: Position,
    terminated: Option<Position>,
}

impl LogView {
    /// A log with these entries, all of them durable. `last_confirmed` may be of a ledger that is gone.
    #[must_use]
    pub fn new(extent: LogExtent, last_confirmed: Position, terminated: Option<Position>) -> Self {
        Self {
            extent,
            last_confirmed,
            terminated,
        }
    }

    /// The entries: what the state of a cursor is asked with.
    #[must_use]
    pub fn extent(&self) -> &LogExtent {
        &self.extent
    }

    /// The first entry that can be read, or where the next one will be.
    #[must_use]
    pub fn first_position(&self) -> Position {
        self.next_valid(Position::before(i64::MIN))
    }

    /// The last durable entry, trimmed or not. Of a log that never had one it is entry -1 of its first ledger.
    #[must_use]
    pub fn last_confirmed(&self) -> Position {
        self.last_confirmed
    }

    /// The last entry there will ever be, when the log is terminated.
    #[must_use]
    pub fn terminated(&self) -> Option<Position> {
        self.terminated
    }

    /// The entry that follows a position: over ends of ledgers and over what is trimmed or deleted. Behind the last entry it is a
    /// position behind [`Self::last_confirmed`] that no entry may ever have: ask again when the log has grown.
    #[must_use]
    pub fn next_valid(&self, after: Position) -> Position {
        match self.extent.next(after) {
            Some(next) => next,
            None => {
                let end = after.max(self.last_confirmed);
                Position::new(end.ledger_id, end.entry_id.saturating_add(1))
            }
        }
    }

    /// The position itself when there is an entry, else as [`Self::next_valid`]: where to read who has read up to before it.
    #[must_use]
    pub fn next_valid_at(&self, position: Position) -> Position {
        if self.contains(position) {
            position
        } else {
            self.next_valid(position)
        }
    }

    /// How many entries are behind `from` up to and with `to`. Takes as long as there are ledgers.
    #[must_use]
    pub fn entries_between(&self, from: Position, to: Position) -> u64 {
        if to <= from {
            return 0;
        }
        let count = self.extent.count_behind(from) - self.extent.count_behind(to);
        u64::try_from(count).unwrap_or(0)
    }

    /// The entry so many entries behind `from`; the last one when there are not so many.
    #[must_use]
    pub fn position_after(&self, from: Position, entries: u64) -> Position {
        let entries = i64::try_from(entries).unwrap_or(i64::MAX);
        self.extent.position_after(from, entries)
    }

    /// Whether there is this entry.
    #[must_use]
    pub fn contains(&self, position: Position) -> bool {
        self.extent.contains(position)
    }

    /// At most so many entries from `first` on that follow each other in one ledger; empty when there are none.
    #[must_use]
    pub fn run_from(&self, first: Position, entries: u64) -> EntryRange {
        let end = self.extent.entries(first.ledger_id).unwrap_or(0);
        let most = i64::try_from(entries).unwrap_or(i64::MAX);
        let end = first.entry_id.saturating_add(most).min(end);
        let end = if self.contains(first) {
            end
        } else {
            first.entry_id
        };
        EntryRange {
            ledger_id: first.ledger_id,
            entries: first.entry_id..end,
        }
    }
}

/// Entries of one ledger that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryRange {
    /// The ledger.
    pub ledger_id: i64,
    /// The entries; the end is not among them.
    pub entries: Range<i64>,
}

/// An entry that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Where it is.
    pub position: Position,
    /// Its content.
    pub payload: Bytes,
}

/// How much a read brings at most. The first entry comes whatever its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBudget {
    /// Entries.
    pub entries: usize,
    /// Bytes of entries.
    pub bytes: usize,
}

/// Why a read failed. Nothing was read then.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The first entry asked for was trimmed or its ledger deleted: go on from [`LogView::next_valid`] of the log's present view.
    #[error("entry {0} is trimmed")]
    Trimmed(Position),
    /// The ledger could not be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// What a read comes to.
pub type ReadFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<LogEntry>, ReadError>> + Send + 'a>>;

/// Reads entries, from a cache or from ledgers. All cursors of a topic share one.
pub trait LogRead: Send + Sync + fmt::Debug {
    /// The entries of the ranges in their order, as many as the budget holds. Where a later range meets what is trimmed, the read ends
    /// before it. Cancel-safe.
    fn read<'a>(&'a self, ranges: &'a [EntryRange], budget: ReadBudget) -> ReadFuture<'a>;

    /// The same from the cache alone, put behind `into`; `false`, and nothing changed, when the first entry is not in it.
    fn read_cached(
        &self,
        ranges: &[EntryRange],
        budget: ReadBudget,
        into: &mut Vec<LogEntry>,
    ) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_from_the_first_entry_to_behind_the_last() {
        let at = Position::new;
        let view = LogView::new(
            LogExtent::new([(3, 5), (7, 2)]).with_first_entry(4),
            at(7, 1),
            None,
        );
        assert_eq!(view.first_position(), at(3, 4));
        assert_eq!(view.next_valid(at(3, 4)), at(7, 0));
        assert_eq!(view.next_valid(at(7, 1)), at(7, 2));
        assert_eq!(view.next_valid(at(9, 9)), at(9, 10));
        assert_eq!(view.entries_between(at(3, 0), at(7, 0)), 2);
        assert_eq!(view.entries_between(at(7, 0), at(3, 0)), 0);
        assert_eq!(view.position_after(at(3, 0), 2), at(7, 0));
        assert_eq!(view.run_from(at(3, 4), 9).entries, 4..5);
        assert_eq!(view.run_from(at(7, 0), 1).entries, 0..1);
        assert!(view.run_from(at(3, 1), 9).entries.is_empty());
    }

    #[test]
    fn an_empty_log_has_a_place_for_its_first_entry() {
        let view = LogView::new(LogExtent::new([(7, 0)]), Position::before(7), None);
        assert_eq!(view.first_position(), Position::new(7, 0));
        assert_eq!(
            view.entries_between(Position::before(0), Position::before(7)),
            0
        );
    }
}
