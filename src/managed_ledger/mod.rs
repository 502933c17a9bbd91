//! One log per topic over ledgers, and the cursors that read it.
//!
//! What Apache Pulsar stores of managed ledgers and cursors, byte for byte ([`formats`]), positions, how a log looks at one moment
//! ([`LogView`]), and cursors: their state, what of it is written, and where. All of it is pure (no runtime, no files, no clock)
//! but `managed_cursor`, which waits for stores. Nothing here knows what is in an entry.
//!
//! Start at [`CursorState`] for what a subscription has acknowledged, at [`ManagedCursor`] for how that becomes durable, at [`formats`]
//! for how Apache Pulsar writes it.

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
