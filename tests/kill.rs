//! A process that is killed with SIGKILL under load, again and again: what it had receipts for is there and in order, cursors are where
//! they were acknowledged to be or further, and so is metadata.
//!
//! The test starts itself again as the process that writes. It notes each receipt in a file and syncs that before the receipt counts; the
//! parent kills it at a random moment, opens the store and compares. `KILLS=n` sets how often, `SEED=n` the random moments.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pulsegate::journal::{Durability, JournalError, StorageMetrics};
use pulsegate::ledger::{
    CursorName, CursorUpdate, LedgerError, LedgerId, LedgerOptions, LedgerWriter,
};
use pulsegate::metadata::{Expected, NodePath, Version};
use pulsegate::store::{Store, StoreOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Set for the process that writes: its directory.
const DIRECTORY: &str = "KILL_TEST_DIRECTORY";
/// Which time it is started.
const ROUND: &str = "KILL_TEST_ROUND";
/// Topics written to at a time.
const TOPICS: usize = 4;
/// Entries of a ledger.
const ROLL: u64 = 120;

/// Every third process does not wait for syncs: a kill, unlike a power failure, loses nothing by that.
fn options(round: u64) -> StoreOptions {
    StoreOptions {
        segment_size: 256 << 10,
        durability: if round % 3 == 2 {
            Durability::Relaxed
        } else {
            Durability::Synced
        },
        ..StoreOptions::new("kill")
    }
}

fn open(directory: &Path, round: u64) -> Store {
    Store::open(
        &directory.join("data"),
        &options(round),
        StorageMetrics::unseen(),
    )
    .expect("the store")
}

fn payload(ledger: u64, entry: u64) -> Bytes {
    let mut bytes = format!("{ledger}:{entry}:").into_bytes();
    let length = usize::try_from((ledger * 31 + entry * 7) % 900).expect("small");
    bytes.resize(bytes.len() + length, b'.');
    Bytes::from(bytes)
}

fn cursor(topic: usize) -> CursorName {
    CursorName {
        topic: format!("topic-{topic}"),
        cursor: "sub".to_owned(),
    }
}

fn node(topic: usize) -> NodePath {
    NodePath::parse(&format!("/topics/{topic}")).expect("a path")
}

/// Receipts, a line each; a line counts when the file was synced behind it.
struct Receipts(File);

impl Receipts {
    fn open(directory: &Path) -> Self {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(directory.join("receipts"));
        let mut receipts = Self(file.expect("the file of receipts"));
        // Behind what a kill has cut.
        receipts.note("\n");
        receipts
    }

    fn note(&mut self, line: &str) {
        self.0.write_all(line.as_bytes()).expect("write");
        self.0.sync_data().expect("sync");
    }
}

/// What is in the file of receipts.
#[derive(Debug, Default)]
struct Told {
    /// The last entry of each ledger that had a receipt.
    entries: BTreeMap<u64, u64>,
    sealed: BTreeMap<u64, u64>,
    deleted: Vec<u64>,
    /// The number of the last durable update of each cursor.
    cursors: BTreeMap<usize, u64>,
    versions: BTreeMap<usize, u32>,
}

impl Told {
    fn read(directory: &Path) -> Self {
        let mut told = Self::default();
        let Ok(file) = File::open(directory.join("receipts")) else {
            return told;
        };
        for line in BufReader::new(file).lines() {
            let line = line.expect("read");
            let words: Vec<&str> = line.split(' ').collect();
            let number = |word: &str| -> u64 { word.parse().expect("a number") };
            let topic = |word: &str| usize::try_from(number(word)).expect("small");
            match words.as_slice() {
                // A process was killed while it wrote this.
                [.., last] if *last != ";" => {}
                ["entry", ledger, entry, _] => {
                    told.entries.insert(number(ledger), number(entry));
                }
                ["sealed", ledger, next, _] => {
                    told.sealed.insert(number(ledger), number(next));
                }
                ["deleted", ledger, _] => told.deleted.push(number(ledger)),
                ["cursor", at, count, _] => {
                    told.cursors.insert(topic(at), number(count));
                }
                ["version", at, version, _] => {
                    let version = u32::try_from(number(version)).expect("small");
                    told.versions.insert(topic(at), version);
                }
                other => panic!("{other:?} is no receipt"),
            }
        }
        told
    }

    async fn check(&self, store: &Store, what: &str) {
        let ledgers = store.ledgers();
        for (ledger, entry) in &self.entries {
            if self.deleted.contains(ledger) {
                continue;
            }
            let id = LedgerId(*ledger);
            // A deletion may have come to be without its receipt.
            let sealed = match ledgers.recover(id).await {
                Ok(sealed) => sealed,
                Err(LedgerError::NoLedger(_)) if self.sealed.contains_key(ledger) => continue,
                Err(error) => panic!("{what}: ledger {ledger}: {error}"),
            };
            let last = sealed
                .last_entry
                .unwrap_or_else(|| panic!("{what}: ledger {ledger} is empty"));
            assert!(
                last >= *entry,
                "{what}: ledger {ledger} ends with {last}, {entry} had a receipt"
            );
            if let Some(next) = self.sealed.get(ledger) {
                assert_eq!(last + 1, *next, "{what}: ledger {ledger} was sealed");
            }
            let reader = ledgers.open(id).await.expect("open");
            let mut next = 0;
            while next <= last {
                let range = next..last + 1;
                let read = reader.read(std::slice::from_ref(&range), 1 << 20).await;
                for read in read.unwrap_or_else(|error| panic!("{what}: {error}")) {
                    assert_eq!(read.entry, next, "{what}: ledger {ledger}");
                    assert_eq!(
                        read.payload,
                        payload(*ledger, next),
                        "{what}: {ledger}:{next}"
                    );
                    next += 1;
                }
            }
        }
        for ledger in &self.deleted {
            let found = ledgers.open(LedgerId(*ledger)).await;
            assert!(
                matches!(found, Err(LedgerError::NoLedger(_))),
                "{what}: ledger {ledger} is back"
            );
        }
        for (topic, count) in &self.cursors {
            let found = cursor_count(store, *topic).await;
            assert!(
                found >= *count,
                "{what}: cursor of {topic} is at {found}, {count} had a receipt"
            );
        }
        for (topic, version) in &self.versions {
            let found = store.metadata().get(&node(*topic)).await.expect("metadata");
            let found = found.unwrap_or_else(|| panic!("{what}: node of {topic} is gone"));
            let Version(held) = found.stat.version;
            assert!(
                held >= *version,
                "{what}: version {held} of {topic}, {version} had a receipt"
            );
            assert_eq!(found.value, Bytes::from(held.to_string()), "{what}");
        }
    }
}

/// How many updates a cursor has: a snapshot says how many were before it, a delta which one it is.
async fn cursor_count(store: &Store, topic: usize) -> u64 {
    let opened = store.cursors().open_cursor(&cursor(topic)).await;
    let (state, _) = opened.expect("a cursor");
    let number = |bytes: &Bytes| -> u64 {
        let text = std::str::from_utf8(bytes).expect("text");
        text.parse().expect("a number")
    };
    let mut count = state.snapshot.as_ref().map_or(0, number);
    for delta in &state.deltas {
        assert_eq!(number(delta), count + 1, "deltas are in order");
        count += 1;
    }
    count
}

/// What the process does that gets killed.
#[test]
fn the_process_that_writes() {
    // Nothing, when it is run as a test like any other.
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let round: u64 = std::env::var(ROUND)
        .expect("set")
        .parse()
        .expect("a number");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("runtime");
    runtime.block_on(write(PathBuf::from(directory), round));
}

async fn write(directory: PathBuf, round: u64) {
    let opening = directory.clone();
    let store = tokio::task::spawn_blocking(move || open(&opening, round)).await;
    let store = std::sync::Arc::new(store.expect("opened"));
    let mut receipts = Receipts::open(&directory);
    let mut random = StdRng::seed_from_u64(round);
    let mut topics = Vec::new();
    for number in 0..TOPICS {
        topics.push(Topic::start(&store, number).await);
    }
    loop {
        let topic = random.random_range(0..TOPICS);
        let topic = topics.get_mut(topic).expect("there");
        match random.random_range(0..20) {
            0..13 => {
                topic
                    .append(random.random_range(1..20), &mut receipts)
                    .await
            }
            13..17 => topic.move_cursor(&mut receipts).await,
            _ => topic.put(&store, &mut receipts).await,
        }
        if topic.next >= ROLL {
            topic.roll(&store, &mut receipts).await;
        }
    }
}

struct Topic {
    number: usize,
    writer: Box<dyn LedgerWriter>,
    next: u64,
    before: Option<u64>,
    cursor: Box<dyn pulsegate::ledger::CursorWriter>,
    /// Updates of the cursor so far, and how many of them in this process.
    updates: u64,
    mine: u64,
}

impl Topic {
    async fn start(store: &Store, number: usize) -> Self {
        let updates = cursor_count(store, number).await;
        let opened = store.cursors().open_cursor(&cursor(number)).await;
        let (_, cursor) = opened.expect("a cursor");
        let writer = store.ledgers().create(LedgerOptions::default()).await;
        Self {
            number,
            writer: writer.expect("a ledger"),
            next: 0,
            before: None,
            cursor,
            updates,
            mine: 0,
        }
    }

    async fn append(&mut self, count: u64, receipts: &mut Receipts) {
        let ledger = self.writer.id().0;
        let batch: Vec<Bytes> = (self.next..self.next + count)
            .map(|entry| payload(ledger, entry))
            .collect();
        let given = self.writer.append(&batch).expect("append");
        self.next = given.end;
        // Half of the time something is still on its way when the next is asked for.
        let waited_for = if count.is_multiple_of(2) {
            given.end - 1
        } else {
            given.start
        };
        let mut progress = self.writer.progress();
        let reached = progress
            .wait_for(|progress| progress.confirmed >= Some(waited_for))
            .await;
        let confirmed = reached.expect("the journal").confirmed.expect("reached");
        receipts.note(&format!("entry {ledger} {confirmed} ;\n"));
    }

    async fn move_cursor(&mut self, receipts: &mut Receipts) {
        self.updates += 1;
        self.mine += 1;
        let text = Bytes::from(self.updates.to_string());
        let update = if self.updates.is_multiple_of(10) {
            CursorUpdate::Snapshot(text)
        } else {
            CursorUpdate::Delta(text)
        };
        self.cursor.append(update).expect("append");
        let mut progress = self.cursor.progress();
        let mine = self.mine;
        progress
            .wait_for(|progress| progress.durable >= mine)
            .await
            .expect("the journal");
        receipts.note(&format!("cursor {} {} ;\n", self.number, self.updates));
    }

    async fn put(&mut self, store: &Store, receipts: &mut Receipts) {
        let (metadata, path) = (store.metadata(), node(self.number));
        let held = metadata.get(&path).await.expect("metadata");
        let (value, expected) = match held {
            None => (0, Expected::Absent),
            Some(held) => (
                held.stat.version.0 + 1,
                Expected::Version(held.stat.version),
            ),
        };
        let stat = metadata
            .put(&path, Bytes::from(value.to_string()), expected)
            .await;
        let Version(version) = stat.expect("put").version;
        receipts.note(&format!("version {} {version} ;\n", self.number));
    }

    async fn roll(&mut self, store: &Store, receipts: &mut Receipts) {
        let next = store
            .ledgers()
            .create(LedgerOptions::default())
            .await
            .expect("a ledger");
        let full = std::mem::replace(&mut self.writer, next);
        let id = full.id();
        let sealed = full.seal().await.expect("sealed");
        let end = sealed.last_entry.map_or(0, |last| last + 1);
        receipts.note(&format!("sealed {id} {end} ;\n"));
        self.next = 0;
        if let Some(before) = self.before.replace(id.0) {
            store
                .ledgers()
                .delete(LedgerId(before))
                .await
                .expect("deleted");
            receipts.note(&format!("deleted {before} ;\n"));
        }
    }
}

/// Lets the process write until it has so many bytes of receipts more, and a moment longer; kills it.
#[expect(
    clippy::disallowed_methods,
    reason = "no runtime runs here, and the moment of the kill is to be any"
)]
fn write_and_kill(directory: &Path, round: u64, random: &mut StdRng) {
    let log = directory.join("receipts");
    let length = || std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
    let enough = length() + random.random_range(1..6000);
    let mut writer = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "the_process_that_writes", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(ROUND, round.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("start");
    let patience = Instant::now() + Duration::from_secs(120);
    while length() < enough {
        let ended = writer.try_wait().expect("wait");
        assert!(
            ended.is_none(),
            "round {round}: the process ended by itself: {ended:?}"
        );
        assert!(Instant::now() < patience, "round {round}: no receipts");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Somewhere between two receipts.
    std::thread::sleep(Duration::from_micros(random.random_range(0..3000)));
    writer.kill().expect("kill");
    writer.wait().expect("wait");
}

#[test]
fn a_process_killed_under_load_has_all_that_it_gave_receipts_for() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse().expect("a number"))
    };
    let kills: u64 = number("KILLS").unwrap_or(5);
    let seed = number("SEED").unwrap_or(1);
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("runtime");
    for round in 0..kills {
        write_and_kill(folder.path(), round, &mut random);
        let told = Told::read(folder.path());
        let what = format!("SEED={seed}, kill {round}");
        // Every other time a copy is looked at, so that the next process finds what the kill left, and not what an end in order did.
        let copy = (round % 2 == 1).then(|| copy(&folder.path().join("data")));
        let looked_at = copy.as_ref().map_or(folder.path(), tempfile::TempDir::path);
        runtime.block_on(async {
            let opening = looked_at.to_path_buf();
            let store = tokio::task::spawn_blocking(move || open(&opening, round)).await;
            let store = store.expect("opened");
            told.check(&store, &what).await;
            if copy.is_none() {
                forget_old(&store, &told, folder.path()).await;
            }
            let end = store.close().await;
            assert!(matches!(end, JournalError::Closed), "{what}: {end}");
        });
    }
    let told = Told::read(folder.path());
    println!(
        "{kills} kills: {} ledgers with receipts, {} deleted, cursors at {:?}, versions {:?}",
        told.entries.len(),
        told.deleted.len(),
        told.cursors,
        told.versions
    );
    assert!(!told.entries.is_empty() && !told.cursors.is_empty() && !told.versions.is_empty());
}

/// A folder with a copy of a data directory.
fn copy(data: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("data");
    std::fs::create_dir(&to).expect("a folder");
    for file in std::fs::read_dir(data).expect("list") {
        let file = file.expect("list");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copy");
    }
    folder
}

/// Deletes all but the newest ledgers, so that a hundred rounds do not read them a hundred times.
async fn forget_old(store: &Store, told: &Told, directory: &Path) {
    let kept = told
        .entries
        .keys()
        .filter(|ledger| !told.deleted.contains(ledger));
    let mut receipts = Receipts::open(directory);
    for ledger in kept.rev().skip(6 * TOPICS) {
        store
            .ledgers()
            .delete(LedgerId(*ledger))
            .await
            .expect("deleted");
        receipts.note(&format!("deleted {ledger} ;\n"));
    }
}
