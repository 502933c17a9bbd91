//! Where a cursor reads next, and where it begins. Pure.

use super::super::log::{EntryRange, LogView};
use super::super::{LogExtent, Position};
use super::CursorState;

/// Where a new cursor, a reader or a seek begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// With the first entry that there is.
    Earliest,
    /// Behind the last entry that there is.
    Latest,
    /// With this entry, or the next one that there is.
    At(Position),
    /// With the next entry behind this position.
    Behind(Position),
}

impl StartAt {
    /// The mark-delete position of a cursor that begins there, as Apache Pulsar resolves it: a position that is not in the log stands
    /// for the next entry that is, one behind the end for the end.
    #[must_use]
    pub fn mark_delete(self, view: &LogView) -> Position {
        let log = view.extent();
        let end = || log.last().unwrap_or(view.last_confirmed());
        let before = |position: Position| {
            let found = log.previous(position);
            found.unwrap_or(Position::before(position.ledger_id))
        };
        match self {
            Self::Earliest => log.before_first().unwrap_or(view.last_confirmed()),
            Self::Latest => end(),
            Self::At(position) if log.contains(position) => before(position),
            Self::At(position) | Self::Behind(position) => match log.next(position) {
                Some(next) => before(next),
                None => end(),
            },
        }
    }
}

/// Up to where a cursor has read. It is in memory only: after a restart everything that is not acknowledged is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPosition {
    /// The last position that was read or passed over.
    read: Position,
}

impl ReadPosition {
    /// Of a cursor that has read nothing yet.
    #[must_use]
    pub fn of(state: &CursorState) -> Self {
        Self {
            read: state.mark_delete(),
        }
    }

    /// The last position that was read or passed over.
    #[must_use]
    pub fn read(&self) -> Position {
        self.read
    }

    /// The next position: what Apache Pulsar shows as read position.
    #[must_use]
    pub fn next(&self, view: &LogView) -> Position {
        view.next_valid(self.read)
    }

    /// What to read next: at most so many entries that are not acknowledged, in at most so many runs.
    #[must_use]
    pub fn next_runs(
        &self,
        state: &CursorState,
        log: &LogExtent,
        entries: u64,
        runs: usize,
    ) -> Vec<EntryRange> {
        let mut left = i64::try_from(entries).unwrap_or(i64::MAX);
        let mut wanted = Vec::new();
        for mut run in state.unacknowledged_runs(self.read, log) {
            if left <= 0 || wanted.len() >= runs {
                break;
            }
            let length = (run.entries.end - run.entries.start).min(left);
            run.entries.end = run.entries.start + length;
            left -= length;
            wanted.push(run);
        }
        wanted
    }

    /// Whether there is something to read.
    #[must_use]
    pub fn has_more(&self, state: &CursorState, log: &LogExtent) -> bool {
        state.next_unacknowledged(self.read, log).is_some()
    }

    /// Everything up to here was read.
    pub fn advance(&mut self, read: Position) {
        self.read = self.read.max(read);
    }

    /// Begins again with the first entry that is not acknowledged: after a reset, and when a consumer wants everything again.
    pub fn rewind(&mut self, state: &CursorState) {
        self.read = state.mark_delete();
    }
}
