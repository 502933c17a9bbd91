//! One log per topic over ledgers, and the cursors that read it.
//!
//! [`ManagedLedger`] is the log; [`LogView`] is what it is at one moment, [`LogReader`] reads it, through an [`EntryCache`]. What a
//! subscription has acknowledged is a [`CursorState`]; [`ManagedCursor`] makes that durable. What Apache Pulsar stores of managed ledgers
//! and cursors is in [`formats`], byte for byte. Nothing here knows what is in an entry, nor where ledgers and metadata are.
//!
//! All of it is pure (no runtime, no files, no clock) but for what drives a log (`log`, `log/open`), the reader, and `managed_cursor`,
//! which waits for stores.

mod ack_set;
mod cache;
mod cursor;
mod entry_set;
pub mod formats;
mod log;
mod managed_cursor;
mod position;
mod reader;

pub use ack_set::AckSet;
pub use cache::{EntryCache, LogCache};
pub use cursor::{
    Acknowledged, CursorRecordError, CursorState, Find, FindNewest, HolesForm, MarkDeletes,
    ReadPosition, StartAt, find_newest,
};
pub use log::{
    AppendError, DeleteError, EntryRange, LedgerStats, LogContext, LogEnd, LogEntry, LogEvent,
    LogFailure, LogRead, LogSettings, LogStats, LogView, ManagedLedger, OpenError, ReadBudget,
    ReadError, ReadFuture, Retention,
};
pub use managed_cursor::{
    CursorError, CursorFailure, CursorForm, CursorId, CursorLedgerSettings, CursorLedgers,
    CursorStats, CursorStorage, Flush, ManagedCursor, Recovered, RollBack,
};
pub use position::{LEDGER_ENTRIES_MAX, LogExtent, Position};
pub use reader::LogReader;
