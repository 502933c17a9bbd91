//! A random workload over ledgers, cursors and metadata, what it was told and when, and the comparison with what is found later.

#![allow(
    clippy::indexing_slicing,
    reason = "topics and ledgers are those that the workload made itself"
)]

#[path = "tree.rs"]
pub(crate) mod tree;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pulsegate::disk::Disk;
use pulsegate::journal::kernel::{Limits, SharedChanges};
use pulsegate::journal::{Durability, JournalError, JournalSettings};
use pulsegate::ledger::embedded::Reads;
use pulsegate::ledger::{
    CursorName, CursorStore, CursorUpdate, CursorWriter, EmbeddedStore, LedgerError, LedgerId,
    LedgerOptions, LedgerStore, LedgerWriter, Sealed,
};
use pulsegate::metadata::{Clock, EmbeddedMetadata, JournalLog};
use pulsegate::store::{RecoverStoreError, Recovered, recover, run_metadata};
use pulsegate::testing::sim_disk::SimDisk;
use pulsegate::testing::sim_journal::{Latency, SimDriver};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// When something was told: how many changes the disk had seen.
type Stamp = usize;

/// What a ledger was told to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LedgerHistory {
    created: Stamp,
    /// Lengths of all entries that were appended, confirmed or not.
    appended: Vec<usize>,
    /// (when, last confirmed entry).
    confirmed: Vec<(Stamp, u64)>,
    /// (when asked for, first entry that stays).
    trims: Vec<(Stamp, u64)>,
    sealed: Option<(Stamp, Sealed)>,
    delete_asked: Option<Stamp>,
    deleted: Option<Stamp>,
}

/// What a cursor was told to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CursorHistory {
    /// All updates, durable or not.
    updates: Vec<CursorUpdate>,
    /// (when, how many are durable).
    durable: Vec<(Stamp, u64)>,
}

/// All that a workload was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) seed: u64,
    /// Whether confirmed does not mean synced.
    relaxed: bool,
    ledgers: BTreeMap<u64, LedgerHistory>,
    cursors: BTreeMap<usize, CursorHistory>,
    tree: tree::TreeHistory,
}

/// What is found of a ledger: its end, and which entries can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundLedger {
    last: Option<u64>,
    /// From the first entry that may be asked for to the last.
    entries: Vec<(u64, Bytes)>,
}

/// What is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    ledgers: BTreeMap<u64, Option<FoundLedger>>,
    cursors: BTreeMap<usize, (Option<Bytes>, Vec<Bytes>)>,
    tree: tree::Tree,
}

/// A store that is open.
pub(crate) struct Opened {
    pub(crate) store: EmbeddedStore,
    metadata: Arc<EmbeddedMetadata>,
    changes: SharedChanges,
    tasks: [tokio::task::AbortHandle; 2],
}

/// A clock that stands, so that the same seed writes the same bytes.
#[derive(Debug)]
struct StandingClock;

impl Clock for StandingClock {
    fn unix_millis(&self) -> i64 {
        1_800_000_000_000
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

/// What is to be done.
pub(crate) struct Workload {
    seed: u64,
    operations: usize,
    topics: usize,
    /// Updates of all cursors, so that each is told from all others.
    updates: u64,
    random: StdRng,
    history: Rc<RefCell<History>>,
    tree: tree::Model,
    settings: JournalSettings,
}

/// Segments are small, so that they are filled, recycled and copied all the time.
pub(crate) fn settings() -> JournalSettings {
    JournalSettings {
        block: 512,
        segment_size: 16 << 10,
        group_max: 4 << 10,
        limits: Limits {
            free_files: 2,
            ..Limits::default()
        },
        ..JournalSettings::new("test", [9; 16], 1_800_000_000)
    }
}

/// The same without waiting for syncs.
pub(crate) fn relaxed() -> JournalSettings {
    let strict = settings();
    JournalSettings {
        limits: Limits {
            durability: Durability::Relaxed,
            ..strict.limits
        },
        ..strict
    }
}

/// Runs on a runtime whose time is its own.
pub(crate) fn on_paused_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

pub(crate) async fn open(
    disk: &SimDisk,
    seed: u64,
    latency: Latency,
) -> Result<Opened, RecoverStoreError> {
    open_with(disk, seed, latency, &settings()).await
}

pub(crate) async fn open_with(
    disk: &SimDisk,
    seed: u64,
    latency: Latency,
    settings: &JournalSettings,
) -> Result<Opened, RecoverStoreError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let Recovered {
        ledgers: store,
        metadata,
        log,
        journal,
    } = recover(disk, settings, Reads::Inline, Arc::new(StandingClock))?;
    let changes = journal.changes();
    let (driver, opened) = SimDriver::new(journal, seed, latency);
    let driver = tokio::task::spawn_local(driver.run()).abort_handle();
    opened.await.map_err(|_| JournalError::Closed)??;
    let metadata = Arc::new(metadata);
    let running = Arc::clone(&metadata);
    let running =
        tokio::task::spawn_local(async move { run_metadata(&running, &log).await }).abort_handle();
    Ok(Opened {
        store,
        metadata,
        changes,
        tasks: [driver, running],
    })
}

/// The content of an entry: it says which one it is.
fn payload(ledger: u64, entry: u64, length: usize) -> Bytes {
    let mut bytes = format!("{ledger}:{entry}:").into_bytes();
    let filler = u8::try_from((ledger ^ entry) % 251).expect("small");
    bytes.resize(bytes.len() + length, filler);
    Bytes::from(bytes)
}

fn cursor_name(number: usize) -> CursorName {
    CursorName {
        topic: format!("topic-{}", number / 2),
        cursor: format!("cursor-{}", number % 2),
    }
}

impl Workload {
    pub(crate) fn new(seed: u64, operations: usize, topics: usize) -> Self {
        let history = History {
            seed,
            ..History::default()
        };
        Self {
            seed,
            operations,
            topics,
            updates: 0,
            random: StdRng::seed_from_u64(seed),
            history: Rc::new(RefCell::new(history)),
            tree: tree::Model::default(),
            settings: settings(),
        }
    }

    /// The same, with a journal of these settings.
    pub(crate) fn with_settings(self, settings: JournalSettings) -> Self {
        self.history.borrow_mut().relaxed = settings.limits.durability == Durability::Relaxed;
        Self { settings, ..self }
    }

    /// Does all of it; the power is still on at the end, and things are still on their way.
    pub(crate) async fn run(mut self, disk: &SimDisk) -> History {
        let latency = Latency {
            stall_one_in: 300,
            ..Latency::default()
        };
        let opened = open_with(disk, self.seed, latency, &self.settings)
            .await
            .expect("a new store");
        let store = opened.store.clone();
        let mut writers: Vec<Option<Box<dyn LedgerWriter>>> = Vec::new();
        let mut cursors: Vec<Option<Box<dyn CursorWriter>>> = Vec::new();
        for _ in 0..self.topics {
            writers.push(Some(self.create(&store, disk).await));
            cursors.push(None);
        }
        for _ in 0..self.operations {
            let topic = self.random.random_range(0..self.topics);
            match self.random.random_range(0..100) {
                0..50 => self.append(writers[topic].as_mut()),
                50..60 => self.change_tree(&opened.metadata, disk),
                60..75 => {
                    self.move_cursor(&store, disk, topic, &mut cursors[topic])
                        .await
                }
                75..85 => self.trim(&store, disk, writers[topic].as_deref()),
                85..93 => {
                    if let Some(writer) = writers[topic].take() {
                        self.seal(writer, disk).await;
                    }
                    writers[topic] = Some(self.create(&store, disk).await);
                }
                93..97 => self.delete_one(&store, disk),
                _ => self.rest().await,
            }
            if self.random.random_range(0..3) == 0 {
                let pause = self.random.random_range(0..3000);
                tokio::time::sleep(Duration::from_micros(pause)).await;
            }
        }
        self.history.borrow().clone()
    }

    async fn rest(&mut self) {
        let pause = self.random.random_range(1..2000);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    async fn create(&mut self, store: &EmbeddedStore, disk: &SimDisk) -> Box<dyn LedgerWriter> {
        let writer = store
            .create(LedgerOptions::default())
            .await
            .expect("create");
        let id = writer.id().0;
        let created = LedgerHistory {
            created: stamp(disk),
            ..LedgerHistory::default()
        };
        self.history.borrow_mut().ledgers.insert(id, created);
        let mut progress = writer.progress();
        let (history, disk) = (Rc::clone(&self.history), disk.clone());
        tokio::task::spawn_local(async move {
            while progress.changed().await.is_ok() {
                let confirmed = progress.borrow_and_update().confirmed;
                let mut history = history.borrow_mut();
                let ledger = history.ledgers.get_mut(&id).expect("created");
                ledger
                    .confirmed
                    .extend(confirmed.map(|entry| (stamp(&disk), entry)));
            }
        });
        writer
    }

    fn change_tree(&mut self, store: &Arc<EmbeddedMetadata>, disk: &SimDisk) {
        let disk = disk.clone();
        let stamp = move || stamp(&disk);
        self.tree
            .go_on(&mut self.random, store, &self.history, stamp);
    }

    fn append(&mut self, writer: Option<&mut Box<dyn LedgerWriter>>) {
        let Some(writer) = writer else { return };
        let id = writer.id().0;
        let mut history = self.history.borrow_mut();
        let ledger = history.ledgers.get_mut(&id).expect("created");
        let count = self.random.random_range(1..6);
        let first = ledger.appended.len() as u64;
        let lengths: Vec<usize> = (0..count)
            .map(|_| self.random.random_range(0..700))
            .collect();
        let batch: Vec<Bytes> = (first..)
            .zip(&lengths)
            .map(|(entry, length)| payload(id, entry, *length))
            .collect();
        let given = writer.append(&batch).expect("append");
        assert_eq!(given, first..first + count);
        ledger.appended.extend(lengths);
    }

    async fn move_cursor(
        &mut self,
        store: &EmbeddedStore,
        disk: &SimDisk,
        number: usize,
        writer: &mut Option<Box<dyn CursorWriter>>,
    ) {
        if writer.is_none() {
            let (_, opened) = store.open_cursor(&cursor_name(number)).await.expect("open");
            let mut progress = opened.progress();
            let (history, disk) = (Rc::clone(&self.history), disk.clone());
            tokio::task::spawn_local(async move {
                while progress.changed().await.is_ok() {
                    let durable = progress.borrow_and_update().durable;
                    let mut history = history.borrow_mut();
                    let cursor = history.cursors.entry(number).or_default();
                    cursor.durable.push((stamp(&disk), durable));
                }
            });
            *writer = Some(opened);
        }
        self.updates += 1;
        let text = Bytes::from(format!("update {}", self.updates));
        let update = match self.random.random_range(0..4) {
            0 => CursorUpdate::Snapshot(text),
            _ => CursorUpdate::Delta(text),
        };
        let mut history = self.history.borrow_mut();
        history
            .cursors
            .entry(number)
            .or_default()
            .updates
            .push(update.clone());
        writer
            .as_mut()
            .expect("opened")
            .append(update)
            .expect("append");
    }

    /// Most of what is confirmed is not needed any more.
    fn trim(&mut self, store: &EmbeddedStore, disk: &SimDisk, writer: Option<&dyn LedgerWriter>) {
        let Some(id) = writer.map(LedgerWriter::id) else {
            return;
        };
        let mut history = self.history.borrow_mut();
        let ledger = history.ledgers.get_mut(&id.0).expect("created");
        let Some((_, confirmed)) = ledger.confirmed.last() else {
            return;
        };
        let first = self.random.random_range(0..=confirmed + 1);
        ledger.trims.push((stamp(disk), first));
        let store = store.clone();
        tokio::task::spawn_local(async move { store.trim(id, first).await });
    }

    async fn seal(&mut self, writer: Box<dyn LedgerWriter>, disk: &SimDisk) {
        let id = writer.id().0;
        match writer.seal().await {
            Ok(sealed) => {
                let mut history = self.history.borrow_mut();
                let ledger = history.ledgers.get_mut(&id).expect("created");
                ledger.sealed = Some((stamp(disk), sealed));
            }
            Err(error) => assert!(matches!(error, LedgerError::NoLedger(_)), "{error}"),
        }
    }

    /// Deletes a sealed ledger.
    fn delete_one(&mut self, store: &EmbeddedStore, disk: &SimDisk) {
        let mut history = self.history.borrow_mut();
        let mut candidates = history
            .ledgers
            .iter_mut()
            .filter(|(_, ledger)| ledger.sealed.is_some() && ledger.delete_asked.is_none());
        let Some((id, ledger)) = candidates.next() else {
            return;
        };
        ledger.delete_asked = Some(stamp(disk));
        let (store, id, disk) = (store.clone(), *id, disk.clone());
        let history = Rc::clone(&self.history);
        tokio::task::spawn_local(async move {
            if store.delete(LedgerId(id)).await.is_ok() {
                let mut history = history.borrow_mut();
                history.ledgers.get_mut(&id).expect("created").deleted = Some(stamp(&disk));
            }
        });
    }
}

fn stamp(disk: &SimDisk) -> Stamp {
    usize::try_from(disk.calls()).expect("small")
}

impl Opened {
    /// Ledgers that the workload knows, all recovered, and its cursors.
    pub(crate) async fn found(&self, history: &History) -> Found {
        self.try_found(history).await.expect("readable")
    }

    pub(crate) async fn try_found(&self, history: &History) -> Result<Found, LedgerError> {
        let mut found = Found {
            ledgers: BTreeMap::new(),
            cursors: BTreeMap::new(),
            tree: tree::stored(JournalLog::pairs(&self.changes.lock())),
        };
        let mut recoveries = tokio::task::JoinSet::new();
        for id in history.ledgers.keys().copied() {
            let store = self.store.clone();
            recoveries.spawn_local(async move { (id, store.recover(LedgerId(id)).await) });
        }
        while let Some(recovery) = recoveries.join_next().await {
            let (id, recovered) = recovery.expect("no panic");
            let ledger = match recovered {
                Ok(sealed) => Some(self.read(id, sealed).await?),
                Err(LedgerError::NoLedger(_)) => None,
                Err(error) => return Err(error),
            };
            found.ledgers.insert(id, ledger);
        }
        for number in history.cursors.keys() {
            let (state, _) = self.store.open_cursor(&cursor_name(*number)).await?;
            found
                .cursors
                .insert(*number, (state.snapshot, state.deltas));
        }
        Ok(found)
    }

    /// Reads a ledger from its end towards its start until nothing more is there.
    async fn read(&self, id: u64, sealed: Sealed) -> Result<FoundLedger, LedgerError> {
        let reader = self.store.open(LedgerId(id)).await?;
        assert_eq!(reader.last_confirmed(), sealed.last_entry);
        let mut entries = Vec::new();
        let mut next = sealed.last_entry.map_or(0, |last| last + 1);
        while let Some(entry) = next.checked_sub(1) {
            let range = entry..next;
            match reader.read(std::slice::from_ref(&range), usize::MAX).await {
                Ok(read) => entries.extend(read.into_iter().map(|read| (read.entry, read.payload))),
                Err(LedgerError::NoEntry { .. }) => break,
                Err(error) => return Err(error),
            }
            next = entry;
        }
        entries.reverse();
        Ok(FoundLedger {
            last: sealed.last_entry,
            entries,
        })
    }

    /// Adds a ledger with as many entries as fill some segments, durably.
    pub(crate) async fn write_something(&self) -> u64 {
        let mut writer = self
            .store
            .create(LedgerOptions::default())
            .await
            .expect("create");
        let mut progress = writer.progress();
        for entry in 0..15 {
            writer
                .append(&[Bytes::from(vec![7; 3000])])
                .expect("append");
            progress
                .wait_for(|progress| progress.confirmed == Some(entry))
                .await
                .expect("journal");
        }
        writer.id().0
    }
}

impl Found {
    /// As if nobody had asked for this ledger.
    pub(crate) fn forget(&mut self, ledger: u64) {
        self.ledgers.remove(&ledger);
    }
}

impl History {
    /// Compares what is found after a cut with what had been told by then.
    pub(crate) fn check(&self, found: &Found, cut: Stamp, what: &str) {
        self.check_content(found, what);
        if self.relaxed {
            // What was told may be lost, and only that: what is there is what there was once.
            return;
        }
        self.check_all(found, cut, what);
    }

    /// Compares as if confirmed meant synced: after a kill it does.
    pub(crate) fn check_all(&self, found: &Found, cut: Stamp, what: &str) {
        self.check_content(found, what);
        for (id, told) in &self.ledgers {
            let ledger = found.ledgers.get(id).and_then(Option::as_ref);
            told.check(*id, ledger, cut, what);
        }
        self.tree.check(&found.tree, cut, what);
        for (number, told) in &self.cursors {
            let (snapshot, deltas) = found.cursors.get(number).expect("opened");
            let known = last_by(&told.durable, cut).unwrap_or(0);
            let possible = (known..=told.updates.len() as u64).any(|count| {
                let count = usize::try_from(count).expect("small");
                told.state_after(count) == (snapshot.clone(), deltas.clone())
            });
            assert!(
                possible,
                "{what}: cursor {number} is older than its {known} durable updates: {snapshot:?} {deltas:?}"
            );
        }
    }

    /// Whatever is found was written, and is in order.
    pub(crate) fn check_content(&self, found: &Found, what: &str) {
        assert!(
            self.tree.was(&found.tree),
            "{what}: the tree was never like this: {:?}",
            found.tree
        );
        for (id, ledger) in &found.ledgers {
            let told = &self.ledgers[id];
            let numbers = ledger.iter().flat_map(|ledger| &ledger.entries);
            let mut numbers = numbers.map(|(entry, _)| *entry);
            if let Some(first) = numbers.next() {
                assert!(
                    (first + 1..)
                        .zip(numbers)
                        .all(|(next, entry)| next == entry),
                    "{what}: ledger {id} has a hole"
                );
            }
            for (entry, bytes) in ledger.iter().flat_map(|ledger| &ledger.entries) {
                let length = told.appended.get(usize::try_from(*entry).expect("small"));
                let length = length.unwrap_or_else(|| {
                    panic!("{what}: ledger {id} has entry {entry}, which nobody appended")
                });
                assert_eq!(
                    bytes,
                    &payload(*id, *entry, *length),
                    "{what}: ledger {id}, entry {entry}"
                );
            }
        }
    }

    /// Whether nothing that was confirmed by then is missing.
    pub(crate) fn is_complete(&self, found: &Found, cut: Stamp) -> bool {
        self.ledgers.iter().all(|(id, told)| {
            let last = found
                .ledgers
                .get(id)
                .and_then(Option::as_ref)
                .and_then(|ledger| ledger.last);
            told.delete_asked.is_some() || last >= last_by(&told.confirmed, cut)
        })
    }
}

impl LedgerHistory {
    fn check(&self, id: u64, found: Option<&FoundLedger>, cut: Stamp, what: &str) {
        if self.created > cut {
            return;
        }
        let Some(found) = found else {
            assert!(
                self.delete_asked.is_some_and(|asked| asked <= cut),
                "{what}: ledger {id} is gone"
            );
            return;
        };
        assert!(
            self.deleted.is_none_or(|deleted| deleted > cut),
            "{what}: ledger {id} is back"
        );
        let confirmed = last_by(&self.confirmed, cut);
        assert!(
            found.last >= confirmed,
            "{what}: ledger {id} ends with {:?}, confirmed was {confirmed:?}",
            found.last
        );
        if let Some((when, sealed)) = self.sealed
            && when <= cut
        {
            assert_eq!(
                found.last, sealed.last_entry,
                "{what}: ledger {id} was sealed"
            );
        }
        // All trims that may have been written.
        let trimmed = self
            .trims
            .iter()
            .filter(|(when, _)| *when <= cut)
            .map(|(_, first)| *first)
            .max()
            .unwrap_or(0);
        let first = found.entries.first().map_or_else(
            || found.last.map_or(0, |last| last + 1),
            |(entry, _)| *entry,
        );
        assert!(
            first <= trimmed,
            "{what}: ledger {id} begins with {first}, trimmed was {trimmed}"
        );
        let numbers = found.entries.iter().map(|(entry, _)| *entry);
        assert!(
            numbers.eq(first..first + found.entries.len() as u64),
            "{what}: ledger {id} has a hole"
        );
    }
}

impl CursorHistory {
    /// The state after so many updates.
    fn state_after(&self, count: usize) -> (Option<Bytes>, Vec<Bytes>) {
        let mut state = (None, Vec::new());
        for update in self.updates.iter().take(count) {
            match update {
                CursorUpdate::Snapshot(bytes) => state = (Some(bytes.clone()), Vec::new()),
                CursorUpdate::Delta(bytes) => state.1.push(bytes.clone()),
            }
        }
        state
    }
}

/// The last of what was told before a cut.
fn last_by(told: &[(Stamp, u64)], cut: Stamp) -> Option<u64> {
    told.iter()
        .rev()
        .find(|(when, _)| *when <= cut)
        .map(|(_, value)| *value)
}
