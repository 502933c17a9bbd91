//! The log of a topic: one sequence of entries over many ledgers.

mod view;

pub use view::{EntryRange, LogEntry, LogRead, LogView, ReadBudget, ReadError, ReadFuture};
