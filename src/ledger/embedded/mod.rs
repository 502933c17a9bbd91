//! Ledgers and cursors in the journal: its segments are the data, an index says where entries are: runs of entries in memory, each place in
//! files beside the segments.
//!
//! A ledger is written by handing records to the journal; the journal's thread applies them when they are durable (`replica`), and
//! only then a reader finds them. Cursors are values of the change log.

mod cursors;
pub mod gc;
pub mod index;
mod index_files;
pub mod options;
pub mod packed_runs;
mod reads;
mod replica;
pub mod segment_index;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use self::cursors::CursorCell;
use self::index_files::IndexFiles;
use self::reads::Fetcher;
pub use self::reads::Reads;
pub use self::replica::LedgerReplica;
use self::replica::{Ended, LedgerCell, Ledgers};
use super::{
    CursorName, Entry, LedgerError, LedgerFuture, LedgerId, LedgerOptions, LedgerReader,
    LedgerStore, LedgerWriter, Progress, Sealed,
};
use crate::disk::Disk;
use crate::journal::format::ENTRY_HEADER;
use crate::journal::kernel::SharedChanges;
use crate::journal::{
    Completion, Journal, JournalError, JournalHandle, JournalSettings, Record, Submission,
    ThreadDriver,
};

/// A store in one directory. Clones are the same store.
#[derive(Debug, Clone)]
pub struct EmbeddedStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    ledgers: Arc<Ledgers>,
    journal: JournalHandle,
    changes: SharedChanges,
    fetcher: Fetcher,
    cursors: Mutex<HashMap<CursorName, Weak<CursorCell>>>,
    /// Ledgers made from now on have at least this number.
    first_id: u64,
}

#[derive(Debug)]
struct Writer {
    store: EmbeddedStore,
    cell: Arc<LedgerCell>,
}

#[derive(Debug)]
struct Reader {
    store: EmbeddedStore,
    cell: Arc<LedgerCell>,
}

/// Tells one waiter.
#[derive(Debug)]
struct Once {
    sender: Mutex<Option<oneshot::Sender<Result<(), JournalError>>>>,
}

/// Bytes of entries that are submitted together; a longer batch is split, so that one topic does not hold up all others.
const SUBMISSION_BYTES: usize = 1 << 20;
/// Ledger ids count from this second on, so many to a second: they rise over a wiped store, too.
const ID_EPOCH_SECONDS: u64 = 1_700_000_000;
const IDS_PER_SECOND: u64 = 65_536;

impl EmbeddedStore {
    /// Reads what is on the disk. The journal that is returned has to be driven for anything to happen.
    ///
    /// # Errors
    /// As `docs/storage-format.md`, "What is refused", has it.
    pub fn recover_from(
        disk: Arc<dyn Disk>,
        settings: &JournalSettings,
        reads: Reads,
    ) -> Result<(Self, Journal<LedgerReplica>), JournalError> {
        let ledgers = Arc::new(Ledgers::default());
        let replica = LedgerReplica::new(Arc::clone(&ledgers));
        let journal = Journal::open(disk, settings, replica)?;
        let (files, salt) = journal.files();
        let first_id = settings
            .unix_seconds
            .saturating_sub(ID_EPOCH_SECONDS)
            .saturating_mul(IDS_PER_SECOND);
        let shared = Shared {
            journal: journal.handle(),
            changes: journal.changes(),
            fetcher: Fetcher::new(
                files.clone(),
                salt,
                IndexFiles::new(files, salt, Arc::clone(&ledgers), journal.handle()),
                reads,
            ),
            ledgers,
            cursors: Mutex::default(),
            first_id,
        };
        Ok((
            Self {
                shared: Arc::new(shared),
            },
            journal,
        ))
    }

    /// Opens the store and starts its threads. Blocks; reads later run on the blocking threads of the caller's runtime.
    ///
    /// # Errors
    /// As `docs/storage-format.md`, "What is refused", has it.
    pub fn open(
        disk: Arc<dyn Disk>,
        settings: &JournalSettings,
    ) -> Result<(Self, ThreadDriver), JournalError> {
        let (store, journal) = Self::recover_from(disk, settings, Reads::beside())?;
        Ok((store, ThreadDriver::start(journal)?))
    }

    /// The journal below, to be closed and watched.
    #[must_use]
    pub fn journal(&self) -> &JournalHandle {
        &self.shared.journal
    }

    /// How many index files were found missing or damaged since the start; they are made again.
    #[must_use]
    pub fn lost_indexes(&self) -> u64 {
        self.shared.fetcher.lost_indexes()
    }

    fn cell(&self, ledger: LedgerId) -> Result<Arc<LedgerCell>, LedgerError> {
        self.shared
            .ledgers
            .cell(ledger.0)
            .ok_or(LedgerError::NoLedger(ledger.0))
    }

    /// Queues records, and gives what to wait for.
    fn submit(
        &self,
        records: Vec<Record>,
    ) -> Result<oneshot::Receiver<Result<(), JournalError>>, JournalError> {
        let (sender, receiver) = oneshot::channel();
        let once = Once {
            sender: Mutex::new(Some(sender)),
        };
        let completion: Option<Arc<dyn Completion>> = Some(Arc::new(once));
        self.shared.journal.submit(Submission {
            records,
            upto: 0,
            completion,
        })?;
        Ok(receiver)
    }

    async fn write(&self, record: Record) -> Result<(), LedgerError> {
        wait(self.submit(vec![record])).await
    }
}

/// Waits for what was queued.
async fn wait(
    queued: Result<oneshot::Receiver<Result<(), JournalError>>, JournalError>,
) -> Result<(), LedgerError> {
    // A journal that goes away without a word was stopped.
    queued?.await.unwrap_or(Err(JournalError::Closed))?;
    Ok(())
}

impl Completion for Once {
    fn durable(&self, _: u64) {
        self.tell(Ok(()));
    }

    fn failed(&self, error: &JournalError) {
        self.tell(Err(error.clone()));
    }
}

impl Once {
    fn tell(&self, result: Result<(), JournalError>) {
        if let Some(sender) = self.sender.lock().take() {
            // Nobody waits any more when the future was dropped.
            let _ = sender.send(result);
        }
    }
}

impl LedgerStore for EmbeddedStore {
    fn create(&self, options: LedgerOptions) -> LedgerFuture<'_, Box<dyn LedgerWriter>> {
        Box::pin(async move {
            let ledger = self.shared.ledgers.next_id(self.shared.first_id);
            let options = Bytes::from(options::encode(&options));
            let length = options.len();
            let limit = self.shared.journal.submission_max() - ENTRY_HEADER;
            if length > limit {
                return Err(LedgerError::TooLarge { length, limit });
            }
            self.write(Record::LedgerCreated { ledger, options })
                .await?;
            let cell = self.cell(LedgerId(ledger))?;
            let writer: Box<dyn LedgerWriter> = Box::new(Writer {
                store: self.clone(),
                cell,
            });
            Ok(writer)
        })
    }

    fn open(&self, ledger: LedgerId) -> LedgerFuture<'_, Box<dyn LedgerReader>> {
        let opened = self.cell(ledger).map(|cell| -> Box<dyn LedgerReader> {
            Box::new(Reader {
                store: self.clone(),
                cell,
            })
        });
        Box::pin(std::future::ready(opened))
    }

    fn recover(&self, ledger: LedgerId) -> LedgerFuture<'_, Sealed> {
        Box::pin(async move {
            let cell = self.cell(ledger)?;
            let queued = {
                let mut state = cell.state.lock();
                match state.ended {
                    Some(Ended::Deleted) => return Err(LedgerError::NoLedger(ledger.0)),
                    Some(Ended::Sealed | Ended::Fenced) => {}
                    Some(Ended::Failed) | None => state.ended = Some(Ended::Fenced),
                }
                if state.index.sealed {
                    drop(state);
                    return Ok(cell.sealed());
                }
                // Under the lock, so that it comes behind all that was appended.
                self.submit(vec![Record::LedgerSealed { ledger: ledger.0 }])
            };
            wait(queued).await?;
            Ok(cell.sealed())
        })
    }

    fn trim(&self, ledger: LedgerId, first: u64) -> LedgerFuture<'_, ()> {
        Box::pin(async move {
            let cell = self.cell(ledger)?;
            let first = first.min(cell.state.lock().index.next());
            self.write(Record::LedgerTrimmed {
                ledger: ledger.0,
                first,
            })
            .await
        })
    }

    fn delete(&self, ledger: LedgerId) -> LedgerFuture<'_, ()> {
        Box::pin(async move {
            if let Ok(cell) = self.cell(ledger) {
                cell.state.lock().ended = Some(Ended::Deleted);
                self.write(Record::LedgerDeleted { ledger: ledger.0 })
                    .await?;
            }
            Ok(())
        })
    }
}

impl LedgerWriter for Writer {
    fn id(&self) -> LedgerId {
        LedgerId(self.cell.id)
    }

    fn append(&mut self, batch: &[Bytes]) -> Result<Range<u64>, LedgerError> {
        let journal = &self.store.shared.journal;
        let limit = journal.submission_max() - ENTRY_HEADER;
        if let Some(large) = batch.iter().find(|payload| payload.len() > limit) {
            return Err(LedgerError::TooLarge {
                length: large.len(),
                limit,
            });
        }
        let mut state = self.cell.state.lock();
        if let Some(ended) = state.ended {
            return Err(ended.error(self.cell.id));
        }
        let first = state.appended;
        for records in self.split(batch, first) {
            let count = records.len() as u64;
            let upto = state.appended + count - 1;
            let completion: Option<Arc<dyn Completion>> = Some(Arc::clone(&self.cell) as _);
            if let Err(error) = journal.submit(Submission {
                records,
                upto,
                completion,
            }) {
                if state.appended == first {
                    return Err(error.into());
                }
                // A part of the batch is on its way: that the rest is not has to be told by the progress.
                drop(state);
                self.cell.failed(&error);
                return Ok(first..first + batch.len() as u64);
            }
            state.appended += count;
        }
        Ok(first..state.appended)
    }

    fn progress(&self) -> watch::Receiver<Progress> {
        self.cell.progress.subscribe()
    }

    fn seal(self: Box<Self>) -> LedgerFuture<'static, Sealed> {
        Box::pin(async move {
            let queued = {
                let mut state = self.cell.state.lock();
                match state.ended {
                    Some(ended @ (Ended::Deleted | Ended::Fenced)) => {
                        return Err(ended.error(self.cell.id));
                    }
                    _ => state.ended = Some(Ended::Sealed),
                }
                self.store.submit(vec![Record::LedgerSealed {
                    ledger: self.cell.id,
                }])
            };
            wait(queued).await?;
            Ok(self.cell.sealed())
        })
    }
}

impl Writer {
    /// Records of a batch in pieces that are submitted one by one.
    fn split(&self, batch: &[Bytes], first: u64) -> Vec<Vec<Record>> {
        let limit = SUBMISSION_BYTES.min(self.store.shared.journal.submission_max());
        let mut pieces = Vec::new();
        let mut piece = Vec::with_capacity(batch.len());
        let mut length = 0;
        for (entry, payload) in (first..).zip(batch) {
            let needed = ENTRY_HEADER + payload.len();
            if length + needed > limit && !piece.is_empty() {
                pieces.push(std::mem::take(&mut piece));
                length = 0;
            }
            length += needed;
            piece.push(Record::Entry {
                ledger: self.cell.id,
                entry,
                payload: payload.clone(),
            });
        }
        if !piece.is_empty() {
            pieces.push(piece);
        }
        pieces
    }
}

impl LedgerReader for Reader {
    fn id(&self) -> LedgerId {
        LedgerId(self.cell.id)
    }

    fn read(&self, ranges: &[Range<u64>], budget: usize) -> LedgerFuture<'_, Vec<Entry>> {
        let ranges = ranges.to_vec();
        Box::pin(async move {
            self.store
                .shared
                .fetcher
                .read(&self.cell, &ranges, budget)
                .await
        })
    }

    fn last_confirmed(&self) -> Option<u64> {
        self.cell.state.lock().index.next().checked_sub(1)
    }
}
