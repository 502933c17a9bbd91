//! Append-only ledgers and the state of cursors: the seam under managed ledgers. Engines: [`MemoryStore`], [`EmbeddedStore`].
//!
//! A ledger is a sequence of entries numbered from 0, written by one writer until it is sealed. An engine knows nothing of topics or
//! messages. What every engine promises, run by `tests/ledger_contract.rs` on each of them:
//!
//! - **L1** Progress follows the order of appends and never goes back.
//! - **L2** Completed means durable, as configured.
//! - **L3** Completion of entry n implies that of all before n.
//! - **L4** After `recover` by anyone, appends of an older writer fail with [`LedgerError::Fenced`].
//! - **L5** The length of a sealed ledger never changes.
//! - **L6** What is confirmed is readable.
//! - **L7** Deleting twice is as deleting once.
//! - **L8** After one failure a writer accepts nothing more. A refusal by `append` itself is no such failure: nothing was taken.
//! - **L9** A read returns the entry of the ledger that was asked for, or an error; never other bytes.
//! - **L10** What recovery cut never becomes readable later.
//! - **L11** A ledger that was made is found by its custom metadata until it is deleted, where the store can look for ledgers at all.
//!
//! And of cursors:
//!
//! - **C1** Progress follows the order of appends and never goes back.
//! - **C2** Completed means durable, as configured.
//! - **C3** The state of a cursor is the last snapshot and all deltas since, in order.
//! - **C4** After `open` by anyone, appends of an older writer fail with [`LedgerError::Fenced`].
//! - **C5** Deleting twice is as deleting once; a cursor that was deleted is opened empty.

pub mod embedded;
mod memory;

use std::fmt;
use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;
use tokio::sync::watch;

use crate::journal::JournalError;

pub use embedded::EmbeddedStore;
pub use memory::MemoryStore;

/// What an operation on a store comes to.
pub type LedgerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LedgerError>> + Send + 'a>>;

/// The number of a ledger; higher than that of any made before in the same store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LedgerId(pub u64);

/// What a ledger is made with. The embedded engine keeps it and has one copy of everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerOptions {
    /// Nodes over which entries are spread.
    pub ensemble: u32,
    /// Copies of each entry.
    pub write_quorum: u32,
    /// Copies that make an entry durable.
    pub ack_quorum: u32,
    /// How entries are protected on their way.
    pub digest: Digest,
    /// Who may open it.
    pub password: Bytes,
    /// What its creator wants to find again.
    pub custom_metadata: Vec<(String, Bytes)>,
}

/// `BookKeeper`'s digest types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// CRC-32.
    Crc32,
    /// HMAC.
    Mac,
    /// CRC-32C.
    Crc32c,
    /// None.
    Dummy,
}

/// How a ledger ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Its last entry; `None`: it has none.
    pub last_entry: Option<u64>,
    /// Bytes of all entries ever appended.
    pub length: u64,
}

/// How far a writer got; entries up to `confirmed` are durable.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The last durable entry; `None`: none is.
    pub confirmed: Option<u64>,
    /// Why nothing more will be.
    pub failed: Option<LedgerError>,
}

/// An entry that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the ledger.
    pub entry: u64,
    /// Its content.
    pub payload: Bytes,
}

/// How far a cursor's writer got.
#[derive(Debug, Clone, Default)]
pub struct CursorProgress {
    /// How many appends are durable.
    pub durable: u64,
    /// Why no more will be.
    pub failed: Option<LedgerError>,
}

/// What is known of a cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CursorState {
    /// The last snapshot.
    pub snapshot: Option<Bytes>,
    /// All deltas since.
    pub deltas: Vec<Bytes>,
}

/// What is written of a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CursorUpdate {
    /// All of its state.
    Snapshot(Bytes),
    /// What changed.
    Delta(Bytes),
}

/// Which cursor of which topic; an engine does not look into the names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CursorName {
    /// The topic.
    pub topic: String,
    /// The cursor.
    pub cursor: String,
}

/// Where ledgers are.
pub trait LedgerStore: Send + Sync + fmt::Debug {
    /// Makes a ledger; it is durable when the future is ready. Cancelled, it may have been made.
    fn create(&self, options: LedgerOptions) -> LedgerFuture<'_, Box<dyn LedgerWriter>>;

    /// Opens a ledger to be read; it may still grow. Cancel-safe.
    fn open(&self, ledger: LedgerId) -> LedgerFuture<'_, Box<dyn LedgerReader>>;

    /// Fences the writer, if there is one, and agrees on the end. Idempotent, and so cancel-safe.
    fn recover(&self, ledger: LedgerId) -> LedgerFuture<'_, Sealed>;

    /// Entries below `first` are not needed any more, in a ledger that still grows, too. A hint: reading them may go on to work. Never
    /// undone by a lower number. Cancel-safe.
    fn trim(&self, ledger: LedgerId, first: u64) -> LedgerFuture<'_, ()>;

    /// Ledgers with this name and value in their custom metadata, and what they were made with; in the order of their ids. For who
    /// wants to find what was made and never written down. A store whose ledgers are spread over other machines may know none.
    /// Cancel-safe.
    fn find<'a>(
        &'a self,
        name: &'a str,
        value: &'a [u8],
    ) -> LedgerFuture<'a, Vec<(LedgerId, LedgerOptions)>>;

    /// Deletes a ledger; its writer's appends fail. Cancelled, it may have been deleted.
    fn delete(&self, ledger: LedgerId) -> LedgerFuture<'_, ()>;
}

/// The one who appends to a ledger.
pub trait LedgerWriter: Send + fmt::Debug {
    /// Which ledger.
    fn id(&self) -> LedgerId;

    /// Queues entries and returns their numbers. Neither blocks nor waits; [`LedgerWriter::progress`] tells what becomes of them.
    ///
    /// # Errors
    /// Nothing was queued.
    fn append(&mut self, batch: &[Bytes]) -> Result<Range<u64>, LedgerError>;

    /// How far it got; the last value is the one that counts.
    fn progress(&self) -> watch::Receiver<Progress>;

    /// Ends the ledger after what was appended and did not fail. Cancelled, it may have been sealed.
    fn seal(self: Box<Self>) -> LedgerFuture<'static, Sealed>;
}

/// Reads a ledger.
pub trait LedgerReader: Send + Sync + fmt::Debug {
    /// Which ledger.
    fn id(&self) -> LedgerId;

    /// Entries of the ranges in their order, the first whatever its size, then as many as `budget` bytes hold. Cancel-safe.
    fn read(&self, ranges: &[Range<u64>], budget: usize) -> LedgerFuture<'_, Vec<Entry>>;

    /// The last entry that can be read; `None`: there is none.
    fn last_confirmed(&self) -> Option<u64>;
}

/// Where the state of cursors is.
pub trait CursorStore: Send + Sync + fmt::Debug {
    /// The state of a cursor and the way to change it; of one that is not there, an empty one. Cancel-safe.
    fn open_cursor(
        &self,
        name: &CursorName,
    ) -> LedgerFuture<'_, (CursorState, Box<dyn CursorWriter>)>;

    /// Deletes a cursor. Cancelled, it may have been deleted.
    fn delete_cursor(&self, name: &CursorName) -> LedgerFuture<'_, ()>;
}

/// The one who changes a cursor.
pub trait CursorWriter: Send + fmt::Debug {
    /// Queues an update and returns how many there are now; neither blocks nor waits.
    ///
    /// # Errors
    /// Nothing was queued.
    fn append(&mut self, update: CursorUpdate) -> Result<u64, LedgerError>;

    /// How far it got.
    fn progress(&self) -> watch::Receiver<CursorProgress>;
}

/// Why an operation on a ledger or a cursor failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// There is no such ledger.
    #[error("there is no ledger {0}")]
    NoLedger(u64),
    /// Somebody else has taken it over.
    #[error("fenced: somebody else has taken over")]
    Fenced,
    /// It is sealed.
    #[error("the ledger is sealed")]
    Sealed,
    /// The writer has failed before.
    #[error("the writer has failed before")]
    WriterFailed,
    /// An entry is larger than the store takes.
    #[error("an entry of {length} bytes is larger than {limit}")]
    TooLarge {
        /// Its bytes.
        length: usize,
        /// What the store takes.
        limit: usize,
    },
    /// The entry was trimmed, or is not confirmed.
    #[error("ledger {ledger} has no entry {entry}")]
    NoEntry {
        /// The ledger.
        ledger: u64,
        /// The entry.
        entry: u64,
    },
    /// What is stored is not what was written.
    #[error("entry {entry} of ledger {ledger} is damaged in {file} at {offset}")]
    Damaged {
        /// The ledger.
        ledger: u64,
        /// The entry.
        entry: u64,
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
    },
    /// The store is full, damaged or closed.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl fmt::Display for LedgerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl LedgerOptions {
    /// Whether the custom metadata has this name with this value.
    #[must_use]
    pub fn has(&self, name: &str, value: &[u8]) -> bool {
        self.custom_metadata
            .iter()
            .any(|(key, content)| key == name && content == value)
    }
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            ensemble: 1,
            write_quorum: 1,
            ack_quorum: 1,
            digest: Digest::Crc32c,
            password: Bytes::new(),
            custom_metadata: Vec::new(),
        }
    }
}
