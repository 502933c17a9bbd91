//! Ledgers and cursors in memory, for tests and for brokers that keep nothing. Everything is durable at once, until the end of the process.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    CursorName, CursorProgress, CursorState, CursorStore, CursorUpdate, CursorWriter, Entry,
    LedgerError, LedgerFuture, LedgerId, LedgerOptions, LedgerReader, LedgerStore, LedgerWriter,
    Progress, Sealed,
};

/// A store in memory. Clones are the same store.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    last_ledger: u64,
    ledgers: HashMap<u64, Arc<Mutex<Ledger>>>,
    cursors: BTreeMap<CursorName, Cursor>,
}

#[derive(Debug, Default)]
struct Ledger {
    options: LedgerOptions,
    entries: BTreeMap<u64, Bytes>,
    next: u64,
    length: u64,
    sealed: bool,
    fenced: bool,
    deleted: bool,
}

#[derive(Debug, Default)]
struct Cursor {
    state: CursorState,
    /// Grows with each opening: only the last writer may write.
    openings: u64,
}

#[derive(Debug)]
struct Writer {
    id: LedgerId,
    ledger: Arc<Mutex<Ledger>>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct Reader {
    id: LedgerId,
    ledger: Arc<Mutex<Ledger>>,
}

#[derive(Debug)]
struct MemoryCursor {
    store: MemoryStore,
    name: CursorName,
    opening: u64,
    progress: watch::Sender<CursorProgress>,
}

impl MemoryStore {
    fn ledger(&self, id: LedgerId) -> Result<Arc<Mutex<Ledger>>, LedgerError> {
        let state = self.state.lock();
        state
            .ledgers
            .get(&id.0)
            .cloned()
            .ok_or(LedgerError::NoLedger(id.0))
    }
}

impl LedgerStore for MemoryStore {
    fn create(&self, options: LedgerOptions) -> LedgerFuture<'_, Box<dyn LedgerWriter>> {
        let mut state = self.state.lock();
        state.last_ledger += 1;
        let id = LedgerId(state.last_ledger);
        let ledger = Arc::new(Mutex::new(Ledger {
            options,
            ..Ledger::default()
        }));
        state.ledgers.insert(id.0, Arc::clone(&ledger));
        let progress = watch::Sender::new(Progress::default());
        let writer: Box<dyn LedgerWriter> = Box::new(Writer {
            id,
            ledger,
            progress,
        });
        ready(Ok(writer))
    }

    fn open(&self, id: LedgerId) -> LedgerFuture<'_, Box<dyn LedgerReader>> {
        let open = |ledger| -> Box<dyn LedgerReader> { Box::new(Reader { id, ledger }) };
        ready(self.ledger(id).map(open))
    }

    fn recover(&self, id: LedgerId) -> LedgerFuture<'_, Sealed> {
        ready(self.ledger(id).map(|ledger| {
            let mut ledger = ledger.lock();
            ledger.fenced |= !ledger.sealed;
            ledger.seal()
        }))
    }

    fn trim(&self, id: LedgerId, first: u64) -> LedgerFuture<'_, ()> {
        ready(self.ledger(id).map(|ledger| {
            let mut ledger = ledger.lock();
            ledger.entries = ledger.entries.split_off(&first);
        }))
    }

    fn find<'a>(
        &'a self,
        name: &'a str,
        value: &'a [u8],
    ) -> LedgerFuture<'a, Vec<(LedgerId, LedgerOptions)>> {
        let state = self.state.lock();
        let mut found: Vec<_> = state
            .ledgers
            .iter()
            .map(|(id, ledger)| (LedgerId(*id), ledger.lock().options.clone()))
            .filter(|(_, options)| options.has(name, value))
            .collect();
        found.sort_unstable_by_key(|(id, _)| *id);
        ready(Ok(found))
    }

    fn delete(&self, id: LedgerId) -> LedgerFuture<'_, ()> {
        if let Some(ledger) = self.state.lock().ledgers.remove(&id.0) {
            let mut ledger = ledger.lock();
            ledger.deleted = true;
            ledger.entries.clear();
        }
        ready(Ok(()))
    }
}

impl Ledger {
    fn seal(&mut self) -> Sealed {
        self.sealed = true;
        Sealed {
            last_entry: self.next.checked_sub(1),
            length: self.length,
        }
    }
}

impl LedgerWriter for Writer {
    fn id(&self) -> LedgerId {
        self.id
    }

    fn append(&mut self, batch: &[Bytes]) -> Result<Range<u64>, LedgerError> {
        let mut ledger = self.ledger.lock();
        if ledger.deleted {
            return Err(LedgerError::NoLedger(self.id.0));
        }
        if ledger.sealed {
            return Err(if ledger.fenced {
                LedgerError::Fenced
            } else {
                LedgerError::Sealed
            });
        }
        let first = ledger.next;
        for payload in batch {
            let entry = ledger.next;
            ledger.entries.insert(entry, payload.clone());
            ledger.next += 1;
            ledger.length += payload.len() as u64;
        }
        let range = first..ledger.next;
        self.progress
            .send_modify(|progress| progress.confirmed = ledger.next.checked_sub(1));
        Ok(range)
    }

    fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    fn seal(self: Box<Self>) -> LedgerFuture<'static, Sealed> {
        let mut ledger = self.ledger.lock();
        let result = match (ledger.deleted, ledger.fenced) {
            (true, _) => Err(LedgerError::NoLedger(self.id.0)),
            (_, true) => Err(LedgerError::Fenced),
            _ => Ok(ledger.seal()),
        };
        ready(result)
    }
}

impl LedgerReader for Reader {
    fn id(&self) -> LedgerId {
        self.id
    }

    fn read(&self, ranges: &[Range<u64>], budget: usize) -> LedgerFuture<'_, Vec<Entry>> {
        let ledger = self.ledger.lock();
        let mut entries = Vec::new();
        let mut left = budget;
        for entry in ranges.iter().flat_map(Clone::clone) {
            let Some(payload) = ledger.entries.get(&entry) else {
                return ready(Err(LedgerError::NoEntry {
                    ledger: self.id.0,
                    entry,
                }));
            };
            if !entries.is_empty() && payload.len() > left {
                break;
            }
            left = left.saturating_sub(payload.len());
            entries.push(Entry {
                entry,
                payload: payload.clone(),
            });
        }
        ready(Ok(entries))
    }

    fn last_confirmed(&self) -> Option<u64> {
        self.ledger.lock().next.checked_sub(1)
    }
}

impl CursorStore for MemoryStore {
    fn open_cursor(
        &self,
        name: &CursorName,
    ) -> LedgerFuture<'_, (CursorState, Box<dyn CursorWriter>)> {
        let mut state = self.state.lock();
        let cursor = state.cursors.entry(name.clone()).or_default();
        cursor.openings += 1;
        let writer = MemoryCursor {
            store: self.clone(),
            name: name.clone(),
            opening: cursor.openings,
            progress: watch::Sender::new(CursorProgress::default()),
        };
        let writer: Box<dyn CursorWriter> = Box::new(writer);
        ready(Ok((cursor.state.clone(), writer)))
    }

    fn delete_cursor(&self, name: &CursorName) -> LedgerFuture<'_, ()> {
        if let Some(cursor) = self.state.lock().cursors.get_mut(name) {
            cursor.state = CursorState::default();
            cursor.openings += 1;
        }
        ready(Ok(()))
    }
}

impl CursorWriter for MemoryCursor {
    fn append(&mut self, update: CursorUpdate) -> Result<u64, LedgerError> {
        let mut state = self.store.state.lock();
        let cursor = state
            .cursors
            .get_mut(&self.name)
            .ok_or(LedgerError::Fenced)?;
        if cursor.openings != self.opening {
            return Err(LedgerError::Fenced);
        }
        match update {
            CursorUpdate::Snapshot(snapshot) => {
                cursor.state = CursorState {
                    snapshot: Some(snapshot),
                    deltas: Vec::new(),
                };
            }
            CursorUpdate::Delta(delta) => cursor.state.deltas.push(delta),
        }
        self.progress.send_modify(|progress| progress.durable += 1);
        Ok(self.progress.borrow().durable)
    }

    fn progress(&self) -> watch::Receiver<CursorProgress> {
        self.progress.subscribe()
    }
}

fn ready<'a, T: Send + 'a>(result: Result<T, LedgerError>) -> LedgerFuture<'a, T> {
    Box::pin(std::future::ready(result))
}
