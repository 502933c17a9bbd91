//! What `stats-internal` shows of a cursor.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::{LogView, Position, ReadPosition};
use super::{Form, ManagedCursor};

/// A cursor as `stats-internal` shows it, but for what its dispatcher knows: the read position ([`ReadPosition::next`]), and which reads
/// wait. Names are those of the JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorStats {
    /// `markDeletePosition`
    pub mark_delete_position: Position,
    /// Entries that are not acknowledged, exactly. `messagesConsumedCounter` is the log's `entriesAddedCounter` less this, so that Apache
    /// Pulsar's two ways to count a backlog, precise and not, agree here.
    pub backlog: i64,
    /// `cursorLedger`; -1: none.
    pub cursor_ledger: i64,
    /// `cursorLedgerLastEntry`; -1: none.
    pub cursor_ledger_last_entry: i64,
    /// `lastLedgerSwitchTimestamp`, milliseconds since 1970; 0: never.
    pub last_ledger_switch_timestamp: i64,
    /// `state`
    pub state: &'static str,
    /// `totalNonContiguousDeletedMessagesRange`
    pub total_non_contiguous_deleted_messages_range: usize,
    /// `properties`
    pub properties: BTreeMap<String, i64>,
}

pub(super) fn of(cursor: &ManagedCursor, view: &LogView) -> CursorStats {
    let state = cursor.state();
    let (ledger, switched, name) = match &cursor.form {
        Form::CursorLedger(form) if form.is_open() => (form.ledger(), form.switched, OPEN),
        Form::CursorLedger(form) => (form.ledger(), form.switched, "NoLedger"),
        Form::ChangeLog(_) | Form::NonDurable => ((-1, -1), 0, OPEN),
    };
    CursorStats {
        mark_delete_position: state.mark_delete(),
        backlog: state.backlog(view.extent()),
        cursor_ledger: ledger.0,
        cursor_ledger_last_entry: ledger.1,
        last_ledger_switch_timestamp: switched,
        state: if cursor.failed.is_some() {
            "Closed"
        } else {
            name
        },
        total_non_contiguous_deleted_messages_range: state.acknowledged_ranges().count(),
        properties: state.properties().clone(),
    }
}

impl ManagedCursor {
    /// `individuallyDeletedMessages`: ranges without their lower and with their upper ends, at most so many of them.
    #[must_use]
    pub fn individually_deleted_messages(&self, ranges_max: usize) -> String {
        let mut text = String::from("[");
        for (place, run) in self
            .state()
            .acknowledged_ranges()
            .take(ranges_max)
            .enumerate()
        {
            let comma = if place > 0 { "," } else { "" };
            let (ledger, entries) = (run.ledger_id, run.entries);
            let (lower, upper) = (entries.start - 1, entries.end - 1);
            // Nothing fails that writes into a text.
            let _ = write!(text, "{comma}({ledger}:{lower}..{ledger}:{upper}]");
        }
        text.push(']');
        text
    }

    /// `numberOfEntriesSinceFirstNotAckedMessage`: entries between the mark-delete position and where it reads next.
    #[must_use]
    pub fn entries_since_first_unacknowledged(&self, read: &ReadPosition, view: &LogView) -> u64 {
        view.entries_between(self.state().mark_delete(), read.read())
    }
}

const OPEN: &str = "Open";
