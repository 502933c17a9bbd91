//! The ledgers as the log has them: what the journal tells is applied here, and readers look here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::gc::Usage;
use super::index::{Appended, Gone, LedgerIndex, Run};
use super::segment_index::{Builder, EntryKey, Place};
use crate::journal::format::{Malformed, Reader};
use crate::journal::{
    Completion, JournalError, Location, Places, Record, Replica, Salt, SegmentIndexer,
};
use crate::ledger::{LedgerError, Progress, Sealed};

/// Section of a checkpoint: ledgers.
const LEDGERS: u32 = 3;
/// Section of a checkpoint: the highest ledger id ever used.
const LAST_ID: u32 = 4;

/// All ledgers of a store, shared between the journal and handles.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    cells: RwLock<HashMap<u64, Arc<LedgerCell>>>,
    last_id: Mutex<u64>,
    indexes: Mutex<Indexes>,
}

/// Which segments have no index file.
#[derive(Debug, Default)]
struct Indexes {
    /// Segments with places in memory, and the ledgers that have runs in them.
    unwritten: BTreeMap<u64, BTreeSet<u64>>,
    /// Segments whose index file is missing or damaged.
    lost: BTreeSet<u64>,
    /// How many were ever lost.
    lost_count: u64,
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

    /// The index file of a segment cannot be used: it is to be made again. Whether that was news.
    pub(super) fn index_lost(&self, generation: u64) -> bool {
        let mut indexes = self.indexes.lock();
        let news = indexes.lost.insert(generation);
        indexes.lost_count += u64::from(news);
        news
    }

    /// How many index files were found missing or damaged.
    pub(super) fn lost_indexes(&self) -> u64 {
        self.indexes.lock().lost_count
    }

    /// A ledger has a run in a segment whose places are in memory.
    fn unwritten(&self, generation: u64, ledger: u64) {
        let mut indexes = self.indexes.lock();
        indexes
            .unwritten
            .entry(generation)
            .or_default()
            .insert(ledger);
    }

    fn used(&self, ledger: u64) {
        let mut last = self.last_id.lock();
        *last = (*last).max(ledger);
    }
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

    fn delete(&mut self, ledger: u64) {
        let Some(cell) = self.ledgers.cells.write().remove(&ledger) else {
            return;
        };
        let mut state = cell.state.lock();
        let index = std::mem::take(&mut state.index);
        state.ended = Some(Ended::Deleted);
        drop(state);
        index.runs().for_each(|run| self.gone(run.into()));
    }

    fn gone(&mut self, gone: Gone) {
        if self.usage.remove(gone) {
            let mut indexes = self.ledgers.indexes.lock();
            indexes.unwritten.remove(&gone.generation);
            indexes.lost.remove(&gone.generation);
        }
    }
}

/// One entry at a place.
fn one(at: Location) -> Gone {
    Gone {
        generation: at.generation,
        entries: 1,
        bytes: u64::from(at.length),
    }
}

impl SegmentIndexer for Ledgers {
    fn known_index(&self, generation: u64, salt: Salt) -> Option<Vec<u8>> {
        let ledgers: Vec<u64> = {
            let indexes = self.indexes.lock();
            if indexes.lost.contains(&generation) {
                return None;
            }
            let ledgers = indexes.unwritten.get(&generation);
            ledgers.into_iter().flatten().copied().collect()
        };
        let mut builder = Builder::new(generation, salt);
        for ledger in ledgers {
            let Some(cell) = self.cell(ledger) else {
                continue;
            };
            let runs: Vec<Run> = {
                // Copied, so that the journal does not wait for the lock longer than that takes.
                let state = cell.state.lock();
                let runs = state.index.recent();
                let here = runs.filter(|run| run.extent().generation == generation);
                here.cloned().collect()
            };
            for run in runs {
                for (entry, place) in (run.extent().first..).zip(run.places().into_iter().flatten())
                {
                    builder.add(EntryKey { ledger, entry }, *place);
                }
            }
        }
        Some(builder.finish())
    }

    fn index_of_entries(&self, generation: u64, salt: Salt, entries: Places) -> Vec<u8> {
        index_of(generation, salt, entries)
    }
}

/// The index of a segment with these entries.
pub(super) fn index_of(generation: u64, salt: Salt, mut entries: Places) -> Vec<u8> {
    // A segment has an entry once. Should a damaged record look like it, the one that verifies comes first and stays so.
    entries.sort_by_key(|(ledger, entry, _)| (*ledger, *entry));
    entries.dedup_by_key(|(ledger, entry, _)| (*ledger, *entry));
    let mut builder = Builder::new(generation, salt);
    for (ledger, entry, at) in entries {
        let place = Place {
            offset: at.offset,
            length: at.length,
        };
        builder.add(EntryKey { ledger, entry }, place);
    }
    builder.finish()
}

impl Replica for LedgerReplica {
    fn apply(&mut self, record: &Record, at: Location) {
        match record {
            Record::Entry {
                ledger,
                entry,
                payload,
            } => {
                let Some(cell) = self.ledgers.cell(*ledger) else {
                    return;
                };
                let appended = cell.state.lock().index.append(*entry, payload.len(), at);
                if appended != Appended::Refused {
                    self.usage.add(one(at));
                }
                if appended == Appended::Begun {
                    self.ledgers.unwritten(at.generation, *ledger);
                }
            }
            Record::Copied { ledger, entry, .. } => {
                let cell = self.ledgers.cell(*ledger);
                let gone = cell.and_then(|cell| cell.state.lock().index.moved(*entry, at));
                if let Some(gone) = gone {
                    self.gone(gone);
                    self.usage.add(one(at));
                    self.ledgers.unwritten(at.generation, *ledger);
                }
            }
            Record::LedgerCreated { ledger, options } => {
                self.ledgers.used(*ledger);
                let index = LedgerIndex::new(Bytes::copy_from_slice(options));
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
                    gone.into_iter().for_each(|gone| self.gone(gone));
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
                    for run in index.runs() {
                        self.usage.add(run.into());
                    }
                    for run in index.recent().filter(|run| run.places().is_some()) {
                        self.ledgers.unwritten(run.extent().generation, id);
                    }
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

    fn is_live(&self, ledger: u64, entry: u64, at: Location) -> bool {
        let cell = self.ledgers.cell(ledger);
        cell.is_some_and(|cell| cell.state.lock().index.generation(entry) == Some(at.generation))
    }

    fn worth_copying(&self, sealed: &[u64], segment_size: u64) -> Option<u64> {
        self.usage.worth_copying(sealed, segment_size)
    }

    fn found_indexes(&mut self, found: &BTreeSet<u64>) {
        let live = self.usage.live_segments();
        let mut missing = 0;
        for generation in live {
            let unwritten = |indexes: &Indexes| indexes.unwritten.contains_key(&generation);
            let written = !unwritten(&self.ledgers.indexes.lock());
            if written && !found.contains(&generation) {
                missing += u64::from(self.ledgers.index_lost(generation));
            }
        }
        if missing > 0 {
            tracing::warn!(missing, "index files are missing and are made again");
        }
    }

    fn wants_index(&self) -> Vec<u64> {
        let indexes = self.ledgers.indexes.lock();
        // What is in memory first: it is what memory and checkpoints are smaller by.
        let wanted = indexes.unwritten.keys().chain(&indexes.lost);
        wanted.copied().collect()
    }

    fn indexed(&mut self, generation: u64) {
        let ledgers = {
            let mut indexes = self.ledgers.indexes.lock();
            indexes.lost.remove(&generation);
            indexes.unwritten.remove(&generation).unwrap_or_default()
        };
        for cell in ledgers.into_iter().filter_map(|id| self.ledgers.cell(id)) {
            cell.state.lock().index.indexed(generation);
        }
    }

    fn indexer(&self) -> Option<Arc<dyn SegmentIndexer>> {
        Some(Arc::clone(&self.ledgers) as Arc<dyn SegmentIndexer>)
    }
}
