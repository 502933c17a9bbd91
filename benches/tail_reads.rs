//! What reading the end of a log costs, on one core.
//!
//! `cargo bench --bench tail_reads -- [--seconds N] [--size BYTES] [--group N] [--readers N]`. Entries are appended in groups to a log over
//! a store in memory; after each group, readers that are at the end read it from the cache. Measured apart: appending and taking in what
//! was confirmed; reading, by the call that gives what is cached and by the one that is a future. Without `--bench` (as in
//! `cargo test --benches`) it runs for a moment.

#![expect(
    clippy::print_stdout,
    reason = "figures are the product of a benchmark"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use pulsegate::ledger::MemoryStore;
use pulsegate::managed_ledger::{
    EntryCache, LogContext, LogRead, LogSettings, ManagedLedger, ReadBudget,
};
use pulsegate::metadata::{LocalMetadata, MemoryMetadata, SystemClock};
use pulsegate::naming::TopicName;

#[derive(Debug, Parser)]
struct Arguments {
    /// Length of the measurement.
    #[arg(long)]
    seconds: Option<f64>,
    /// Bytes of an entry.
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Entries that are appended together.
    #[arg(long, default_value_t = 100)]
    group: usize,
    /// Readers of each kind.
    #[arg(long, default_value_t = 3)]
    readers: usize,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Default)]
struct Spent {
    appending: Duration,
    cached: Duration,
    by_future: Duration,
    appended: u64,
    read_cached: u64,
    read_by_future: u64,
}

fn main() {
    let arguments = Arguments::parse();
    let seconds = arguments
        .seconds
        .unwrap_or(if arguments.bench { 3.0 } else { 0.05 });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("runtime");
    let spent = runtime.block_on(measure(&arguments, Duration::from_secs_f64(seconds)));
    let per_second = |count: u64, time: Duration| {
        let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        count / time.as_secs_f64() / 1e6
    };
    println!(
        "entries of {} bytes in groups of {}: appended and taken in {:.2} M/s; read from the cache {:.2} M/s, by a future {:.2} M/s",
        arguments.size,
        arguments.group,
        per_second(spent.appended, spent.appending),
        per_second(spent.read_cached, spent.cached),
        per_second(spent.read_by_future, spent.by_future),
    );
}

async fn measure(arguments: &Arguments, time: Duration) -> Spent {
    let clock = Arc::new(SystemClock::new());
    let metadata = MemoryMetadata::new(Arc::clone(&clock) as _).connect();
    let context = LogContext {
        ledgers: Arc::new(MemoryStore::default()),
        metadata: LocalMetadata::new(Arc::new(metadata)),
        cursors: None,
        clock,
        cache: EntryCache::new(64 << 20),
    };
    let topic = TopicName::parse("persistent://t/n/x").expect("topic");
    let settings = LogSettings {
        min_rollover_millis: 0,
        keep_consumed_bytes: 0,
        ..LogSettings::default()
    };
    let mut log = ManagedLedger::open(&context, &topic, settings, true)
        .await
        .expect("log");
    let reader = Arc::clone(log.reader());
    let group: Vec<Bytes> = (0..arguments.group)
        .map(|_| Bytes::from(vec![7; arguments.size]))
        .collect();
    let budget = ReadBudget {
        entries: arguments.group,
        bytes: usize::MAX,
    };
    let mut positions = vec![log.view().first_position(); arguments.readers * 2];
    let mut entries = Vec::with_capacity(arguments.group);
    let mut spent = Spent::default();
    let start = Instant::now();
    while start.elapsed() < time {
        let before = Instant::now();
        log.append(&group).expect("append");
        log.settled().await;
        while log.try_event().is_some() {}
        spent.appending += before.elapsed();
        spent.appended += group.len() as u64;
        let (cached, by_future) = positions.split_at_mut(arguments.readers);
        let before = Instant::now();
        for position in cached {
            loop {
                let view = reader.view();
                let run = view.run_from(view.next_valid_at(*position), arguments.group as u64);
                entries.clear();
                if run.entries.is_empty() || !reader.read_cached(&[run], budget, &mut entries) {
                    break;
                }
                spent.read_cached += entries.len() as u64;
                let last = entries.last().expect("some").position;
                *position = view.next_valid(last);
            }
        }
        spent.cached += before.elapsed();
        let before = Instant::now();
        for position in by_future {
            loop {
                let view = reader.view();
                let run = view.run_from(view.next_valid_at(*position), arguments.group as u64);
                if run.entries.is_empty() {
                    break;
                }
                let read = reader.read(&[run], budget).await.expect("read");
                spent.read_by_future += read.len() as u64;
                let last = read.last().expect("some").position;
                *position = view.next_valid(last);
            }
        }
        spent.by_future += before.elapsed();
        if spent.appended % 100_000 == 0 {
            log.trim(None);
            log.settled().await;
        }
    }
    assert_eq!(spent.read_cached, spent.appended * arguments.readers as u64);
    assert_eq!(spent.read_by_future, spent.read_cached);
    spent
}
