//! The ledgers as the log has them: what the journal tells is applied here, and readers look here.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::gc::Usage;
use super::index::LedgerIndex;
use super::options;
use crate::journal::format::{Malformed, Reader};
use crate::journal::{Completion, JournalError, Location, Record, Replica};
use crate::ledger::{LedgerError, LedgerId, LedgerOptions, Progress, Sealed};

/// Section of a checkpoint: ledgers.
const LEDGERS: u32 = 3;
/// Section of a checkpoint: the highest ledger id ever used.
const LAST_ID: u32 = 4;

/// All ledgers of a store, shared between the journal and handles.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    cells: RwLock<HashMap<u64, Arc<LedgerCell>>>,
    /// Ledgers by the hashes of what is in their custom metadata.
    by_metadata: Mutex<BTreeSet<(u64, u64)>>,
    last_id: Mutex<u64>,
}

/// One ledger.
#[derive(Debug)]
pub(super) struct LedgerCell {
    pub(super) id: u64,
    pub(super) state: Mutex<CellState>,
    pub(super) progress: watch::Sender<Progress>,
}

#[derive(Debug, Default)]
pub(super) struct CellState {
    /// What is durable.
    pub(super) index: LedgerIndex,
    /// The number of the next entry to be appended. `appended >= index.next()` while a writer works.
    pub(super) appended: u64,
    /// Why nothing more can be appended.
    pub(super) ended: Option<Ended>,
}

/// Why nothing more can be appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Sealed,
    Fenced,
    Failed,
    Deleted,
}

/// What the journal builds.
#[derive(Debug)]
pub struct LedgerReplica {
    ledgers: Arc<Ledgers>,
    usage: Usage,
}

impl Ledgers {
    pub(super) fn cell(&self, ledger: u64) -> Option<Arc<LedgerCell>> {
        self.cells.read().get(&ledger).cloned()
    }

    /// A number that was never given, and is not below `floor`.
    pub(super) fn next_id(&self, floor: u64) -> u64 {
        let mut last = self.last_id.lock();
        *last = (*last + 1).max(floor);
        *last
    }

    /// Ledgers with this in their custom metadata.
    pub(super) fn find(&self, name: &str, value: &[u8]) -> Vec<(LedgerId, LedgerOptions)> {
        let hash = metadata_hash(name, value);
        let same_hash: Vec<u64> = {
            let by_metadata = self.by_metadata.lock();
            let ids = by_metadata.range((hash, 0)..=(hash, u64::MAX));
            ids.map(|(_, id)| *id).collect()
        };
        let cells = same_hash.into_iter().filter_map(|id| self.cell(id));
        cells
            .filter_map(|cell| {
                let options = options::decode(&cell.state.lock().index.options).ok()?;
                options
                    .has(name, value)
                    .then_some((LedgerId(cell.id), options))
            })
            .collect()
    }

    /// A ledger with these options is there, or is gone.
    fn note(&self, ledger: u64, options: &Bytes, there: bool) {
        // Options that are not understood can only be those of a later version: the ledger is not found by them.
        let Ok(options) = options::decode(options) else {
            return;
        };
        let mut by_metadata = self.by_metadata.lock();
        for (name, value) in &options.custom_metadata {
            let key = (metadata_hash(name, value), ledger);
            if there {
                by_metadata.insert(key);
            } else {
                by_metadata.remove(&key);
            }
        }
    }

    fn used(&self, ledger: u64) {
        let mut last = self.last_id.lock();
        *last = (*last).max(ledger);
    }
}

/// The same in every process: the order of what is found must not depend on it.
fn metadata_hash(name: &str, value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (name, value).hash(&mut hasher);
    hasher.finish()
}

impl LedgerCell {
    fn new(id: u64, index: LedgerIndex) -> Self {
        let confirmed = index.next().checked_sub(1);
        let ended = index.sealed.then_some(Ended::Sealed);
        let appended = index.next();
        Self {
            id,
            state: Mutex::new(CellState {
                index,
                appended,
                ended,
            }),
            progress: watch::Sender::new(Progress {
                confirmed,
                failed: None,
            }),
        }
    }

    pub(super) fn sealed(&self) -> Sealed {
        let state = self.state.lock();
        Sealed {
            last_entry: state.index.next().checked_sub(1),
            length: state.index.length(),
        }
    }
}

impl Ended {
    pub(super) fn error(self, ledger: u64) -> LedgerError {
        match self {
            Self::Sealed => LedgerError::Sealed,
            Self::Fenced => LedgerError::Fenced,
            Self::Failed => LedgerError::WriterFailed,
            Self::Deleted => LedgerError::NoLedger(ledger),
        }
    }
}

impl Completion for LedgerCell {
    fn durable(&self, upto: u64) {
        self.progress.send_if_modified(|progress| {
            let further = progress.failed.is_none()
                && progress.confirmed.is_none_or(|confirmed| confirmed < upto);
            if further {
                progress.confirmed = Some(upto);
            }
            further
        });
    }

    fn failed(&self, error: &JournalError) {
        self.state.lock().ended.get_or_insert(Ended::Failed);
        self.progress.send_if_modified(|progress| {
            let first = progress.failed.is_none();
            progress.failed.get_or_insert_with(|| error.clone().into());
            first
        });
    }
}

impl LedgerReplica {
    pub(super) fn new(ledgers: Arc<Ledgers>) -> Self {
        Self {
            ledgers,
            usage: Usage::default(),
        }
    }

    /// One that nobody else shares: for looking at a store.
    #[must_use]
    pub fn detached() -> Self {
        Self::new(Arc::default())
    }

    /// Shows all ledgers in the order of their ids.
    pub fn visit(&self, mut look: impl FnMut(u64, &LedgerIndex)) {
        let mut cells: Vec<_> = self.ledgers.cells.read().values().cloned().collect();
        cells.sort_unstable_by_key(|cell| cell.id);
        for cell in cells {
            look(cell.id, &cell.state.lock().index);
        }
    }

    /// A ledger as it is now.
    #[must_use]
    pub fn index_of(&self, ledger: u64) -> Option<LedgerIndex> {
        let cell = self.ledgers.cell(ledger)?;
        let index = cell.state.lock().index.clone();
        Some(index)
    }

    fn delete(&mut self, ledger: u64) {
        let Some(cell) = self.ledgers.cells.write().remove(&ledger) else {
            return;
        };
        let mut state = cell.state.lock();
        let index = std::mem::take(&mut state.index);
        state.ended = Some(Ended::Deleted);
        drop(state);
        self.ledgers.note(ledger, &index.options, false);
        index
            .places()
            .for_each(|at| self.usage.remove(at.generation, at.length));
    }
}

impl Replica for LedgerReplica {
    fn apply(&mut self, record: &Record, at: Location) {
        match record {
            Record::Entry {
                ledger,
                entry,
                payload,
            } => {
                if let Some(cell) = self.ledgers.cell(*ledger)
                    && cell.state.lock().index.append(*entry, payload.len(), at)
                {
                    self.usage.add(at.generation, at.length);
                }
            }
            Record::Copied { ledger, entry, .. } => {
                if let Some(cell) = self.ledgers.cell(*ledger)
                    && let Some(old) = cell.state.lock().index.moved(*entry, at)
                {
                    self.usage.remove(old.generation, old.length);
                    self.usage.add(at.generation, at.length);
                }
            }
            Record::LedgerCreated { ledger, options } => {
                self.ledgers.used(*ledger);
                let index = LedgerIndex::new(Bytes::copy_from_slice(options));
                self.ledgers.note(*ledger, &index.options, true);
                let cell = Arc::new(LedgerCell::new(*ledger, index));
                self.ledgers.cells.write().entry(*ledger).or_insert(cell);
            }
            Record::LedgerSealed { ledger } => {
                if let Some(cell) = self.ledgers.cell(*ledger) {
                    let mut state = cell.state.lock();
                    state.index.sealed = true;
                    state.ended.get_or_insert(Ended::Sealed);
                }
            }
            Record::LedgerTrimmed { ledger, first } => {
                if let Some(cell) = self.ledgers.cell(*ledger) {
                    let gone = cell.state.lock().index.trim(*first);
                    gone.iter()
                        .for_each(|at| self.usage.remove(at.generation, at.length));
                }
            }
            Record::LedgerDeleted { ledger } => self.delete(*ledger),
            Record::SegmentStart(_) | Record::Change { .. } | Record::CheckpointDone { .. } => {}
        }
    }

    fn snapshot(&self) -> Vec<(u32, Vec<u8>)> {
        let mut ledgers = Vec::new();
        let cells = self.ledgers.cells.read();
        let mut sorted: Vec<_> = cells.iter().collect();
        // The same state makes the same bytes.
        sorted.sort_unstable_by_key(|(id, _)| **id);
        for (id, cell) in sorted {
            cell.state.lock().index.encode(*id, &mut ledgers);
        }
        let mut last = Vec::new();
        last.put_u64(*self.ledgers.last_id.lock());
        vec![(LEDGERS, ledgers), (LAST_ID, last)]
    }

    fn restore(&mut self, kind: u32, bytes: &Bytes) -> Result<(), Malformed> {
        let mut reader = Reader::new(bytes);
        match kind {
            LEDGERS => {
                let mut cells = self.ledgers.cells.write();
                while !reader.is_empty() {
                    let (id, index) = LedgerIndex::decode(&mut reader)?;
                    index
                        .places()
                        .for_each(|at| self.usage.add(at.generation, at.length));
                    self.ledgers.note(id, &index.options, true);
                    cells.insert(id, Arc::new(LedgerCell::new(id, index)));
                }
            }
            LAST_ID => self.ledgers.used(reader.u64()?),
            // A section that a later version adds and this one may ignore; one it may not sets a feature bit.
            _ => {}
        }
        Ok(())
    }

    fn live_segments(&self) -> Vec<u64> {
        self.usage.live_segments()
    }

    fn entries(&self) -> u64 {
        self.usage.records()
    }

    fn is_live(&self, ledger: u64, entry: u64, at: Location) -> bool {
        let cell = self.ledgers.cell(ledger);
        cell.is_some_and(|cell| cell.state.lock().index.place(entry) == Some(at))
    }

    fn worth_copying(&self, sealed: &[u64], segment_size: u64) -> Option<u64> {
        self.usage.worth_copying(sealed, segment_size)
    }
}
