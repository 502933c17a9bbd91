//! One data directory: ledgers, cursors and metadata over one journal.
//!
//! Owns the way from a directory and its [`StoreOptions`] to the three stores, and their end. Knows nothing of what is kept in them. Start
//! at [`Store::open`]; simulations begin at [`recover`] and drive the journal themselves.

mod open;

use std::sync::Arc;

use tokio_util::task::TaskTracker;

pub use open::{SEGMENTS_LEAST, StoreOptions};

use crate::disk::{Disk, DiskError};
use crate::journal::{Journal, JournalError, JournalSettings, ThreadDriver};
use crate::ledger::embedded::{LedgerReplica, Reads};
use crate::ledger::{CursorStore, EmbeddedStore, LedgerStore};
use crate::metadata::{Clock, EmbeddedMetadata, JournalLog, MetadataStore, RecoverError};

/// What a data directory has. Dropped, it is closed, and nobody waits for that: see [`Store::close`].
#[derive(Debug)]
pub struct Store {
    ledgers: EmbeddedStore,
    metadata: Arc<EmbeddedMetadata>,
    /// Until it is waited for.
    threads: Option<ThreadDriver>,
    tasks: TaskTracker,
}

/// Why a data directory was not opened. Nothing was changed in it unless its superblock and all that is needed verified.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An option cannot be used.
    #[error("{0}")]
    Options(String),
    /// The directory cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// What is in the directory cannot be used.
    #[error("{directory}: {error}")]
    Journal {
        /// The directory.
        directory: String,
        /// Why.
        error: JournalError,
    },
    /// The metadata in the directory cannot be used.
    #[error("{directory}: {error}")]
    Metadata {
        /// The directory.
        directory: String,
        /// Why.
        error: RecoverError,
    },
}

/// The stores that are on a disk, and the journal that has to be driven for anything to happen. Who drives it runs
/// [`run_metadata`], too.
#[derive(Debug)]
pub struct Recovered {
    /// Ledgers and cursors.
    pub ledgers: EmbeddedStore,
    /// Metadata.
    pub metadata: EmbeddedMetadata,
    /// What the metadata writes to.
    pub log: Arc<JournalLog>,
    /// What is to be driven.
    pub journal: Journal<LedgerReplica>,
}

/// Reads what is on a disk, or makes a new store on an empty one.
///
/// # Errors
/// As `docs/storage-format.md`, "What is refused", has it.
pub fn recover(
    disk: Arc<dyn Disk>,
    settings: &JournalSettings,
    reads: Reads,
    clock: Arc<dyn Clock>,
) -> Result<Recovered, RecoverStoreError> {
    let (ledgers, journal) = EmbeddedStore::recover_from(disk, settings, reads)?;
    let pairs: Vec<_> = JournalLog::pairs(&journal.changes().lock()).collect();
    let log = Arc::new(JournalLog::new(journal.handle()));
    let metadata = EmbeddedMetadata::recover(pairs, Arc::clone(&log) as _, clock)?;
    Ok(Recovered {
        ledgers,
        metadata,
        log,
        journal,
    })
}

/// Answers what is asked of the metadata as the journal becomes durable; ends with the journal, and everything fails then.
/// Cancel-safe.
pub async fn run_metadata(metadata: &EmbeddedMetadata, log: &JournalLog) {
    tokio::select! {
        biased;
        () = metadata.run() => {}
        () = log.until_stopped() => metadata.run().await,
    }
}

/// Why the stores of a disk were not made.
#[derive(Debug, thiserror::Error)]
pub enum RecoverStoreError {
    /// What is on the disk cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The metadata on it cannot be used.
    #[error(transparent)]
    Metadata(#[from] RecoverError),
}

impl StoreError {
    fn of(directory: &str, error: RecoverStoreError) -> Self {
        let directory = directory.to_owned();
        match error {
            RecoverStoreError::Journal(error) => Self::Journal { directory, error },
            RecoverStoreError::Metadata(error) => Self::Metadata { directory, error },
        }
    }
}

impl Store {
    /// Ledgers.
    #[must_use]
    pub fn ledgers(&self) -> Arc<dyn LedgerStore> {
        Arc::new(self.ledgers.clone())
    }

    /// Cursors.
    #[must_use]
    pub fn cursors(&self) -> Arc<dyn CursorStore> {
        Arc::new(self.ledgers.clone())
    }

    /// Metadata.
    #[must_use]
    pub fn metadata(&self) -> Arc<dyn MetadataStore> {
        Arc::clone(&self.metadata) as _
    }

    /// Waits until the store has stopped, and tells why. After any other reason than [`JournalError::Closed`] what was
    /// confirmed may be all that is on the disk: the process has to end, with this error, which names the file, and a code
    /// that is not 0. Cancel-safe.
    pub async fn stopped(&self) -> JournalError {
        let mut stopped = self.ledgers.journal().stopped();
        // It goes away without a word only when its thread panicked.
        let reason = stopped.wait_for(Option::is_some).await;
        reason
            .ok()
            .and_then(|reason| reason.clone())
            .unwrap_or(JournalError::Closed)
    }

    /// Writes all that waits, takes a checkpoint and stops; tells why it stopped. What is asked of the stores afterwards fails.
    /// Cancelled, it goes on stopping.
    pub async fn close(mut self) -> JournalError {
        self.ledgers.journal().close();
        let reason = self.stopped().await;
        self.tasks.close();
        self.tasks.wait().await;
        if let Some(threads) = self.threads.take() {
            // They have nothing more to do, so this does not take long; that it could not be waited for changes nothing.
            let _ = tokio::task::spawn_blocking(move || threads.join()).await;
        }
        reason
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.ledgers.journal().close();
    }
}
