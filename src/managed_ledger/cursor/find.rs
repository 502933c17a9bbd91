//! Finding an entry by what it says, when entries before it say the same and those behind it do not. Pure: the search says what
//! it wants to know; [`find_newest`] reads it.

use super::super::log::{EntryRange, LogEntry, LogRead, LogView, ReadBudget, ReadError};
use super::super::{LogExtent, Position};

/// A search for the last entry for which something holds, where it holds for all before that one: an entry published before some
/// time. It asks for the first entry, for the last one, and then halves what is between.
#[derive(Debug, Clone)]
pub struct FindNewest {
    /// It holds for what is up to here, or that is not looked at.
    floor: Position,
    /// It does not hold for what is behind here.
    end: Position,
    found: Option<Position>,
    asked: u8,
}

/// What a search wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Find {
    /// To know whether it holds for this entry.
    Ask(Position),
    /// Nothing: this is the entry. `None`: it holds for none.
    Found(Option<Position>),
}

impl FindNewest {
    /// Among the entries behind a position that there are now.
    #[must_use]
    pub fn behind(position: Position, view: &LogView) -> Self {
        let log = view.extent();
        Self {
            floor: position,
            end: log.last().unwrap_or(position),
            found: None,
            asked: 0,
        }
    }

    /// Among all entries that there are now.
    #[must_use]
    pub fn in_all(view: &LogView) -> Self {
        Self::behind(Position::before(i64::MIN), view)
    }

    /// What to do next, with the log as it is now.
    #[must_use]
    pub fn next(&self, log: &LogExtent) -> Find {
        let count = log.count_behind(self.floor) - log.count_behind(self.end);
        if count <= 0 || self.end <= self.floor {
            return Find::Found(self.found);
        }
        let ahead = match self.asked {
            0 => 1,
            1 => count,
            _ => (count + 1) / 2,
        };
        Find::Ask(log.position_after(self.floor, ahead))
    }

    /// Whether it holds for the entry that was asked for.
    pub fn answer(&mut self, asked: Position, holds: bool, log: &LogExtent) {
        self.asked = self.asked.saturating_add(1);
        if holds {
            self.found = Some(asked);
            self.floor = asked;
        } else {
            let before = log.previous(asked).unwrap_or(self.floor);
            self.end = before.max(self.floor);
        }
    }

    /// The entry that was asked for is trimmed, and so is what was before it.
    pub fn trimmed(&mut self, asked: Position) {
        self.floor = self.floor.max(asked);
    }
}

/// Does a search: at most two reads more than the logarithm of the number of entries, and one for each trim in between.
/// Cancel-safe.
///
/// # Errors
/// An entry could not be read.
pub async fn find_newest(
    mut find: FindNewest,
    view: impl Fn() -> LogView,
    log: &dyn LogRead,
    mut holds: impl FnMut(&LogEntry) -> bool,
) -> Result<Option<Position>, ReadError> {
    let budget = ReadBudget {
        entries: 1,
        bytes: 1,
    };
    loop {
        let extent = view().extent().clone();
        let asked = match find.next(&extent) {
            Find::Found(found) => return Ok(found),
            Find::Ask(asked) => asked,
        };
        let range = EntryRange {
            ledger_id: asked.ledger_id,
            entries: asked.entry_id..asked.entry_id.saturating_add(1),
        };
        match log.read(std::slice::from_ref(&range), budget).await {
            Ok(entries) => match entries.first() {
                Some(entry) => find.answer(asked, holds(entry), &extent),
                None => find.trimmed(asked),
            },
            Err(ReadError::Trimmed(_)) => find.trimmed(asked),
            Err(error) => return Err(error),
        }
    }
}
