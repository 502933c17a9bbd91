//! How near the embedded store comes to what its disk can do.
//!
//! `cargo bench --bench journal_ceiling -- [--seconds N] [--folder DIR] [--size BYTES]`. Measured on the same file system, one after the
//! other: the time of an fdatasync; a lone append (one entry at a time); durable appends from 1, 100 and 10,000 ledgers through the public
//! handles. Then, for each of these, the ceiling: a raw loop that writes the groups that the journal wrote, same sizes, same places, into a
//! file of its own that was written before, each with its sync. The ratio is payload per second of the store through that of the raw
//! loop. Without `--bench` (as in `cargo test --benches`) it runs for a moment.

#![expect(
    clippy::print_stdout,
    reason = "figures are the product of a benchmark"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use clap::Parser;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use pulsegate::disk::{Disk, DiskError, DiskFile, DiskLock, RealDisk};
use pulsegate::journal::{JournalSettings, ThreadDriver};
use pulsegate::ledger::{EmbeddedStore, LedgerOptions, LedgerStore, LedgerWriter, Progress};
use tokio::sync::watch;

#[derive(Debug, Parser)]
struct Arguments {
    /// Length of each measurement.
    #[arg(long)]
    seconds: Option<f64>,
    /// On the file system that is measured; else a temporary folder.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Bytes of an entry.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Entries on their way.
    #[arg(long, default_value_t = 16_384)]
    window: usize,
    /// Ledgers that are written; several are measured by default.
    #[arg(long)]
    ledgers: Vec<usize>,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A disk that notes what the journal writes.
#[derive(Debug)]
struct Noting {
    disk: RealDisk,
    notes: Arc<Notes>,
}

#[derive(Debug)]
struct NotingFile {
    file: Arc<dyn DiskFile>,
    notes: Arc<Notes>,
    segment: bool,
}

/// Writes to segments, and how long their syncs took.
#[derive(Debug)]
struct Notes {
    on: Mutex<bool>,
    writes: Mutex<Vec<(u64, usize)>>,
    syncs: Mutex<Histogram<u64>>,
}

/// A store with its threads.
struct Running {
    store: EmbeddedStore,
    threads: ThreadDriver,
    notes: Arc<Notes>,
}

fn main() {
    let arguments = Arguments::parse();
    let seconds = arguments
        .seconds
        .unwrap_or(if arguments.bench { 5.0 } else { 0.05 });
    let time = Duration::from_secs_f64(seconds);
    let above = arguments.folder.clone();
    let folder = tempfile::tempdir_in(above.unwrap_or_else(std::env::temp_dir))
        .expect("a folder to write to");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("runtime");
    syncs(folder.path(), time);
    let ledgers = match (&arguments.ledgers[..], arguments.bench) {
        ([], true) => vec![1, 100, 10_000],
        ([], false) => vec![1, 10],
        (given, _) => given.to_vec(),
    };
    let running = start(&folder.path().join("lone"));
    runtime.block_on(lone(&running.store, arguments.size, time));
    stop(running);
    for count in ledgers {
        let path = folder.path().join(format!("{count}-ledgers"));
        let running = start(&path);
        let store = runtime.block_on(many(&running, count, &arguments, time));
        let writes = running.notes.writes.lock().clone();
        let syncs = running.notes.syncs.lock().clone();
        stop(running);
        report(folder.path(), count, &store, &writes, &syncs);
    }
}

struct Appended {
    entries: u64,
    bytes: u64,
    time: Duration,
}

fn report(
    folder: &Path,
    ledgers: usize,
    store: &Appended,
    writes: &[(u64, usize)],
    syncs: &Histogram<u64>,
) {
    let raw = raw_loop(folder, writes);
    let written: usize = writes.iter().map(|(_, length)| length).sum();
    let rate = |bytes: f64, time: Duration| bytes / 1e6 / time.as_secs_f64();
    let by_store = rate(as_float(store.bytes), store.time);
    // The raw loop carried the same payload.
    let by_raw = rate(as_float(store.bytes), raw);
    println!(
        "{ledgers:>6} ledgers: {:>8.0} entries/s {by_store:>7.1} MB/s; raw loop {by_raw:>7.1} MB/s; ratio {:.3}",
        as_float(store.entries) / store.time.as_secs_f64(),
        by_store / by_raw,
    );
    println!(
        "        groups {}, {:.1} KiB and {:.1} entries each, {:.3} bytes written per byte of payload; sync in the store p50 {} us, p99 {} us",
        writes.len(),
        as_float(written as u64) / 1024.0 / as_float(writes.len() as u64),
        as_float(store.entries) / as_float(writes.len() as u64),
        as_float(written as u64) / as_float(store.bytes),
        syncs.value_at_quantile(0.5),
        syncs.value_at_quantile(0.99),
    );
}

/// Writes of a page, each with its sync.
fn syncs(folder: &Path, time: Duration) {
    let file = prewritten(folder, "syncs", 64 << 20);
    let mut histogram = histogram();
    let start = Instant::now();
    let page = vec![1; 4096];
    for place in (0..16_384).cycle() {
        if start.elapsed() >= time {
            break;
        }
        let before = Instant::now();
        file.write_at(place * 4096, &page).expect("write");
        file.sync().expect("sync");
        note(&mut histogram, before.elapsed());
    }
    println!(
        "write of 4 KiB and fdatasync: p50 {} us, p99 {} us, {} of them",
        histogram.value_at_quantile(0.5),
        histogram.value_at_quantile(0.99),
        histogram.len()
    );
}

/// One entry at a time.
async fn lone(store: &EmbeddedStore, size: usize, time: Duration) {
    let mut writer = create(store).await;
    let mut progress = writer.progress();
    let mut histogram = histogram();
    let payload = [Bytes::from(vec![7; size])];
    let start = Instant::now();
    while start.elapsed() < time {
        let before = Instant::now();
        let range = writer.append(&payload).expect("append");
        confirmed(&mut progress, range.start).await;
        note(&mut histogram, before.elapsed());
    }
    println!(
        "lone append of {size} bytes: p50 {} us, p99 {} us, {} of them",
        histogram.value_at_quantile(0.5),
        histogram.value_at_quantile(0.99),
        histogram.len()
    );
}

/// As many appends as the window allows, from many ledgers in turn.
async fn many(
    running: &Running,
    ledgers: usize,
    arguments: &Arguments,
    time: Duration,
) -> Appended {
    let mut writers = Vec::with_capacity(ledgers);
    for _ in 0..ledgers {
        let writer = create(&running.store).await;
        let progress = writer.progress();
        writers.push((writer, progress, 0_u64));
    }
    let window = (arguments.window / ledgers).max(2) as u64;
    let batch = (window / 4).clamp(1, 64);
    let payload = Bytes::from(vec![7; arguments.size]);
    let batch: Vec<Bytes> = (0..batch).map(|_| payload.clone()).collect();
    *running.notes.on.lock() = true;
    let start = Instant::now();
    while start.elapsed() < time {
        let mut appended = false;
        for (writer, progress, next) in &mut writers {
            let told = progress.borrow().confirmed.map_or(0, |last| last + 1);
            if *next - told + batch.len() as u64 <= window {
                *next = writer.append(&batch).expect("append").end;
                appended = true;
            }
        }
        if !appended {
            // The one that waits longest.
            if let Some((_, progress, _)) = writers.first_mut() {
                progress.borrow_and_update();
                tokio::time::timeout(Duration::from_millis(20), progress.changed())
                    .await
                    .ok();
            }
        }
    }
    let mut entries = 0;
    for (_, progress, next) in &mut writers {
        if let Some(last) = next.checked_sub(1) {
            confirmed(progress, last).await;
        }
        entries += *next;
    }
    let time = start.elapsed();
    *running.notes.on.lock() = false;
    Appended {
        entries,
        bytes: entries * arguments.size as u64,
        time,
    }
}

/// The same writes without a store.
fn raw_loop(folder: &Path, writes: &[(u64, usize)]) -> Duration {
    let end = writes
        .iter()
        .map(|(offset, length)| *offset + *length as u64)
        .max();
    let file = prewritten(folder, "raw", end.unwrap_or(0));
    let longest = writes.iter().map(|(_, length)| *length).max().unwrap_or(0);
    let bytes = vec![3; longest];
    let start = Instant::now();
    for (offset, length) in writes {
        let bytes = bytes.get(..*length).unwrap_or_default();
        file.write_at(*offset, bytes).expect("write");
        file.sync().expect("sync");
    }
    start.elapsed()
}

fn prewritten(folder: &Path, name: &str, length: u64) -> Arc<dyn DiskFile> {
    let disk = RealDisk::open(folder).expect("folder");
    let file = disk
        .open(name)
        .or_else(|_| disk.create(name))
        .expect("file");
    let zeros = vec![0; 1 << 20];
    for place in 0..length.div_ceil(1 << 20) {
        file.write_at(place << 20, &zeros).expect("write");
    }
    file.sync().expect("sync");
    file
}

fn start(path: &Path) -> Running {
    std::fs::create_dir_all(path).expect("folder");
    let notes = Arc::new(Notes {
        on: Mutex::new(false),
        writes: Mutex::default(),
        syncs: Mutex::new(histogram()),
    });
    let disk = Noting {
        disk: RealDisk::open(path).expect("folder"),
        notes: Arc::clone(&notes),
    };
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let settings = JournalSettings::new("bench", [5; 16], seconds);
    let (store, threads) = EmbeddedStore::open(Arc::new(disk), &settings).expect("store");
    Running {
        store,
        threads,
        notes,
    }
}

fn stop(running: Running) {
    running.store.journal().close();
    running.threads.join();
}

async fn create(store: &EmbeddedStore) -> Box<dyn LedgerWriter> {
    store
        .create(LedgerOptions::default())
        .await
        .expect("ledger")
}

async fn confirmed(progress: &mut watch::Receiver<Progress>, entry: u64) {
    let reached = progress
        .wait_for(|progress| progress.confirmed >= Some(entry) || progress.failed.is_some())
        .await;
    let failed = reached.expect("journal").failed.clone();
    assert!(failed.is_none(), "{failed:?}");
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits")
}

fn note(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
}

#[expect(
    clippy::cast_precision_loss,
    reason = "figures are printed with few digits"
)]
fn as_float(number: u64) -> f64 {
    number as f64
}

impl Noting {
    fn noting(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(NotingFile {
            file,
            notes: Arc::clone(&self.notes),
            // Free files become segments by another name.
            segment: name.contains("segment") || name.contains("free"),
        })
    }
}

impl Disk for Noting {
    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Ok(self.noting(name, self.disk.open(name)?))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Ok(self.noting(name, self.disk.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        self.disk.sync_dir()
    }

    fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        self.disk.lock(name)
    }
}

impl DiskFile for NotingFile {
    fn length(&self) -> Result<u64, DiskError> {
        self.file.length()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        // Segments are made and zeroed beside the journal's thread: those writes are no groups.
        let is_group =
            self.segment && *self.notes.on.lock() && bytes.iter().take(16).any(|byte| *byte != 0);
        if is_group {
            self.notes.writes.lock().push((offset, bytes.len()));
        }
        self.file.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), DiskError> {
        let before = Instant::now();
        let result = self.file.sync();
        if self.segment && *self.notes.on.lock() {
            note(&mut self.notes.syncs.lock(), before.elapsed());
        }
        result
    }

    fn allocate(&self, length: u64) -> Result<(), DiskError> {
        self.file.allocate(length)
    }
}
