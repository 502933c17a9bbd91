//! One log per topic over ledgers, and the cursors that read it.
//!
//! So far: what Apache Pulsar stores of managed ledgers and cursors, byte for byte ([`formats`]), positions, and the state
//! of a cursor. All of it is pure: no runtime, no files, no clock. Nothing here knows what is in an entry.
//!
//! Start at [`CursorState`] for what a subscription has acknowledged, at [`formats`] for how that is written.

mod ack_set;
mod cursor;
mod entry_set;
pub mod formats;
mod log;
mod managed_cursor;
mod position;

pub use ack_set::AckSet;
pub use cursor::{
    Acknowledged, CursorRecordError, CursorState, Find, FindNewest, HolesForm, MarkDeletes,
    ReadPosition, StartAt, find_newest,
};
pub use log::{EntryRange, LogEntry, LogRead, LogView, ReadBudget, ReadError, ReadFuture};
pub use managed_cursor::{
    CursorError, CursorFailure, CursorForm, CursorId, CursorLedgerSettings, CursorLedgers,
    CursorStats, CursorStorage, Flush, ManagedCursor, Recovered, RollBack,
};
pub use position::{LEDGER_ENTRIES_MAX, LogExtent, Position};
