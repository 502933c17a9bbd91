//! What the embedded store takes and gives over time: space, write amplification, cold reads, restarts.
//!
//! `cargo bench --bench storage -- --case space|cold|restart|idle [--directory DIR] [--seconds N] [--megabytes N]`. The directory is
//! made, must not exist, and is removed. Every append counts only when it is durable. Without `--bench` (as in
//! `cargo test --benches`) every case runs for a moment.

#![expect(
    clippy::print_stdout,
    reason = "figures are the product of a benchmark"
)]

mod counting;
mod idle;
mod restart;
mod space;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use clap::{Parser, ValueEnum};
use pulsegate::disk::RealDisk;
use pulsegate::journal::{JournalSettings, ThreadDriver};
use pulsegate::ledger::{EmbeddedStore, LedgerOptions, LedgerStore as _, LedgerWriter};
use tokio::task::JoinSet;

use self::counting::{CountingDisk, Counts};

/// Errors end a benchmark with their text.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// What is measured; all by default.
    #[arg(long)]
    case: Vec<Case>,
    /// A directory that does not exist yet, on the disk to be measured.
    #[arg(long, default_value = "target/storage-bench")]
    directory: PathBuf,
    /// Length of what is measured over time.
    #[arg(long)]
    seconds: Option<u64>,
    /// Live data of the cases `space` and `cold`; what `restart` finds, several.
    #[arg(long)]
    megabytes: Vec<u64>,
    /// Ledgers over which it is spread.
    #[arg(long)]
    ledgers: Option<usize>,
    /// Fills a directory and waits to be killed.
    #[arg(long, hide = true)]
    fill: Option<String>,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Trimmed as fast as written.
    Space,
    /// One ledger among many, from the disk.
    Cold,
    /// A killed process, and how long the next one takes.
    Restart,
    /// Many ledgers with two cursors each.
    Idle,
}

/// Bytes of each entry.
pub(crate) const ENTRY: usize = 1024;

/// An open store and what passed through its disk.
pub(crate) struct Opened {
    pub(crate) store: EmbeddedStore,
    pub(crate) driver: ThreadDriver,
    pub(crate) counts: Arc<Counts>,
}

fn main() -> Outcome {
    let mut arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    if let Some(what) = arguments.fill.clone() {
        return runtime.block_on(restart::fill(&arguments, &what));
    }
    if arguments.case.is_empty() {
        arguments.case = vec![Case::Space, Case::Cold, Case::Restart, Case::Idle];
    }
    if arguments.directory.exists() {
        return Err(format!("{} exists", arguments.directory.display()).into());
    }
    for case in arguments.case.clone() {
        let result = match case {
            Case::Space => runtime.block_on(space::run(&arguments)),
            Case::Cold => runtime.block_on(space::cold(&arguments)),
            Case::Restart => runtime.block_on(restart::run(&arguments)),
            Case::Idle => runtime.block_on(idle::run(&arguments)),
        };
        remove(&arguments.directory)?;
        result?;
    }
    Ok(())
}

impl Arguments {
    /// A number for a real run, or a small one to see that it works.
    pub(crate) fn size<T>(&self, given: Option<T>, real: T, small: T) -> T {
        given.unwrap_or(if self.bench { real } else { small })
    }
}

pub(crate) fn open(directory: &Path) -> Outcome<Opened> {
    let (disk, counts) = CountingDisk::new(RealDisk::open(directory)?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let settings = JournalSettings::new("bench", now.as_nanos().to_be_bytes(), now.as_secs());
    let (store, driver) = EmbeddedStore::open(Arc::new(disk), &settings)?;
    Ok(Opened {
        store,
        driver,
        counts,
    })
}

impl Opened {
    pub(crate) fn close(self) {
        self.store.journal().close();
        self.driver.join();
    }
}

pub(crate) fn remove(directory: &Path) -> Outcome {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    Ok(())
}

/// Bytes that the files of a directory take.
pub(crate) fn bytes_on_disk(directory: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for file in fs::read_dir(directory)? {
        bytes += file?.metadata()?.len();
    }
    Ok(bytes)
}

/// Resident memory of this process.
pub(crate) fn resident() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}

/// Many ledgers that are written in turn.
pub(crate) struct Writers {
    writers: Vec<Box<dyn LedgerWriter>>,
    payload: Bytes,
}

impl Writers {
    pub(crate) async fn create(store: &EmbeddedStore, count: usize) -> Outcome<Self> {
        let mut made = JoinSet::new();
        for _ in 0..count {
            let store = store.clone();
            made.spawn(async move { store.create(LedgerOptions::default()).await });
        }
        let mut writers = Vec::with_capacity(count);
        while let Some(writer) = made.join_next().await {
            writers.push(writer??);
        }
        Ok(Self {
            writers,
            payload: Bytes::from((0..=u8::MAX).cycle().take(ENTRY).collect::<Vec<_>>()),
        })
    }

    pub(crate) fn ids(&self) -> Vec<pulsegate::ledger::LedgerId> {
        self.writers.iter().map(|writer| writer.id()).collect()
    }

    /// Appends `count` entries to each ledger and returns how many each has then.
    pub(crate) fn append(&mut self, count: usize) -> Outcome<u64> {
        let batch = vec![self.payload.clone(); count];
        let mut next = 0;
        for writer in &mut self.writers {
            next = writer.append(&batch)?.end;
        }
        Ok(next)
    }

    /// Waits until each ledger's first `count` entries are durable.
    pub(crate) async fn durable(&self, count: u64) -> Outcome {
        for writer in &self.writers {
            let mut progress = writer.progress();
            let reached = progress
                .wait_for(|now| now.failed.is_some() || now.confirmed >= count.checked_sub(1))
                .await?
                .clone();
            if let Some(error) = reached.failed {
                return Err(error.into());
            }
        }
        Ok(())
    }
}
