//! The shared durable log under ledgers, cursors and metadata: segments, groups, change log, checkpoints, recovery.
//!
//! Everything but `driver`, `execute`, `open`, `handle`, `metrics`, `audit` and `repair` is pure: it gets bytes, results and time, and says what is to be done. A group of
//! records is one write and one fdatasync; nothing is told to be durable before that sync came back, and a failed one is the end of the
//! journal. The format and the rules of recovery are in `docs/storage-format.md`; start reading at `commit`.
//!
//! The journal knows records, not what they mean: what is built from them is a [`Replica`], which gets each durable record
//! once, in the order of the log, and after a restart again from the last checkpoint on.

pub mod audit;
pub mod change_log;
pub mod checkpoint;
pub mod commit;
pub mod driver;
pub mod execute;
pub mod format;
mod handle;
pub mod kernel;
mod metrics;
mod open;
pub mod recovery;
pub mod repair;
pub mod segment;
pub mod superblock;

use bytes::Bytes;

use crate::disk::DiskError;

pub use change_log::{ChangeLog, Table};
pub use commit::Durability;
pub use driver::{Journal, JournalSettings, ThreadDriver};
pub use execute::SegmentFiles;
pub use format::{Location, Position, Record, Salt};
pub use handle::{Completion, Inbox, JournalHandle, Submission};
pub use metrics::StorageMetrics;

/// What is built from the records of the log. It lives with the journal and must not block.
pub trait Replica: Send + 'static {
    /// A record became durable, or was found by recovery. Records come in the order of the log, each at the place it is
    /// read from. The payload of an entry may share memory with many others: it must not be kept.
    fn apply(&mut self, record: &Record, at: Location);

    /// All that records so far amount to, as sections 3 and above of a checkpoint: (kind, bytes).
    fn snapshot(&self) -> Vec<(u32, Vec<u8>)>;

    /// Takes back what [`Replica::snapshot`] gave.
    ///
    /// # Errors
    /// The bytes are not of a snapshot.
    fn restore(&mut self, kind: u32, bytes: &Bytes) -> Result<(), format::Malformed>;

    /// Generations of segments from which an entry may still be read.
    fn live_segments(&self) -> Vec<u64>;

    /// How many entries it knows the places of.
    fn entries(&self) -> u64;

    /// Whether the copy of an entry is still worth writing: the ledger has it, and at this place.
    fn is_live(&self, ledger: u64, entry: u64, at: Location) -> bool;

    /// The segment that gc should copy forward, if any; `sealed` are those that may be chosen, each of `segment_size` bytes.
    fn worth_copying(&self, sealed: &[u64], segment_size: u64) -> Option<u64>;
}

/// Why a journal does not work, or does not work any more.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// A call to the file system failed; the journal has stopped, or did not start.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Something durable is not what was written.
    #[error("{file} is damaged at {offset}: {what}{}", affected(ledgers))]
    Damaged {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong with it.
        what: String,
        /// Ledgers that lost entries, as far as they can be told.
        ledgers: Vec<u64>,
    },
    /// The directory has something else in it.
    #[error("not a store of pulsegate: {0}")]
    Foreign(String),
    /// A newer version wrote it.
    #[error("written by a newer version: {0}")]
    TooNew(String),
    /// It belongs to another cluster.
    #[error("the store belongs to cluster {found:?}, not {expected:?}")]
    OtherCluster {
        /// Whose it is.
        found: String,
        /// Who we are.
        expected: String,
    },
    /// No space for more entries.
    #[error("no space for entries")]
    NoSpace,
    /// The journal was closed.
    #[error("the store is closed")]
    Closed,
}

fn affected(ledgers: &[u64]) -> String {
    if ledgers.is_empty() {
        String::new()
    } else {
        format!("; ledgers affected: {ledgers:?}")
    }
}

#[cfg(test)]
mod tests;
