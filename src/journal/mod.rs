//! The shared durable log under ledgers, cursors and metadata: segments, groups, change log, checkpoints, recovery.
//!
//! Everything but `driver`, `execute`, `open` and `handle` is pure: it gets bytes, results and time, and says what is to be done. A group of
//! records is one write and one fdatasync; nothing is told to be durable before that sync came back, and a failed one is the end of the
//! journal. The format and the rules of recovery are in `docs/storage-format.md`; start reading at `commit`.
//!
//! The journal knows records, not what they mean: what is built from them is a [`Replica`], which gets each durable record
//! once, in the order of the log, and after a restart again from the last checkpoint on.

pub mod change_log;
pub mod checkpoint;
pub mod commit;
pub mod driver;
pub mod execute;
mod files;
pub mod format;
mod handle;
mod indexing;
pub mod kernel;
mod open;
pub mod recovery;
pub mod segment;
pub mod superblock;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::DiskError;

pub use change_log::{ChangeLog, Table};
pub use driver::{Journal, JournalSettings, ThreadDriver};
pub use files::{Places, SegmentFiles};
pub use format::{Location, Position, Record, Salt};
pub use handle::{Completion, Inbox, JournalHandle, Submission};

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

    /// Whether the copy of an entry is still worth writing: the ledger has it, and in the segment of this place.
    fn is_live(&self, ledger: u64, entry: u64, at: Location) -> bool;

    /// Segments with an index file, as recovery found them; what is missing may be wanted from now on.
    fn found_indexes(&mut self, _found: &BTreeSet<u64>) {}

    /// Segments that should get an index file, the one it matters most for first. One that is written to may be among them.
    fn wants_index(&self) -> Vec<u64> {
        Vec::new()
    }

    /// The index file of a segment is durable.
    fn indexed(&mut self, _generation: u64) {}

    /// Who makes index files; `None`: there are none.
    fn indexer(&self) -> Option<Arc<dyn SegmentIndexer>> {
        None
    }

    /// The segment that gc should copy forward, if any; `sealed` are those that may be chosen, each of `segment_size` bytes.
    fn worth_copying(&self, sealed: &[u64], segment_size: u64) -> Option<u64>;
}

/// Makes the content of index files. Called beside the journal, on a segment that nothing is added to any more.
pub trait SegmentIndexer: Send + Sync + fmt::Debug {
    /// From what is in memory; `None`: the segment has to be read.
    fn known_index(&self, generation: u64, salt: Salt) -> Option<Vec<u8>>;

    /// From all entries of the segment, those that verify before those that are damaged.
    fn index_of_entries(&self, generation: u64, salt: Salt, entries: Places) -> Vec<u8>;
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
