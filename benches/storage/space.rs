//! Space under sustained load, and cold reads of one ledger among many.

use std::time::{Duration, Instant};

use pulsegate::ledger::{EmbeddedStore, LedgerError, LedgerId, LedgerStore as _};
use tokio::task::JoinSet;

use super::{Arguments, ENTRY, Outcome, Writers, bytes_on_disk, open, remove};

/// Entries for each ledger at a time.
const BATCH: usize = 16;

/// Live data stays the same: what is appended is trimmed elsewhere. Reports the most space, what was written for each byte
/// appended, and the rate beside that of a store where nothing is trimmed and so nothing copied.
pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let ledgers = arguments.size(arguments.ledgers, 1000, 20);
    let live = arguments.size(arguments.megabytes.first().copied(), 2000, 2) * 1_000_000;
    let seconds = Duration::from_secs(arguments.size(arguments.seconds, 600, 1));
    let kept = (live / (ledgers * ENTRY) as u64).max(BATCH as u64);
    let live = kept * (ledgers * ENTRY) as u64;

    let untouched = {
        let opened = open(&arguments.directory)?;
        let mut writers = Writers::create(&opened.store, ledgers).await?;
        fill(&mut writers, kept).await?;
        let began = Instant::now();
        let mut appended = 0;
        // At most 10 GB more: the disk has an end.
        while began.elapsed() < seconds.min(Duration::from_secs(30)) && appended < 10_000_000_000 {
            appended += round(&mut writers).await?.1;
        }
        let rate = appended as f64 / began.elapsed().as_secs_f64();
        drop(writers);
        opened.close();
        remove(&arguments.directory)?;
        rate
    };

    let opened = open(&arguments.directory)?;
    let mut writers = Writers::create(&opened.store, ledgers).await?;
    let ids = writers.ids();
    fill(&mut writers, kept).await?;
    let before = opened.counts.now();
    let began = Instant::now();
    let (mut appended, mut most, mut sampled) = (0, 0, began);
    let mut trimmed: Option<JoinSet<Result<(), LedgerError>>> = None;
    while began.elapsed() < seconds {
        let (next, bytes) = round(&mut writers).await?;
        appended += bytes;
        // The trims of a round are durable with the appends of the next one.
        if let Some(waiting) = trimmed.take() {
            finish(waiting).await?;
        }
        trimmed = Some(trim(&opened.store, &ids, next - kept));
        if sampled.elapsed() > Duration::from_millis(500) {
            sampled = Instant::now();
            most = most.max(bytes_on_disk(&arguments.directory)?);
        }
    }
    let rate = appended as f64 / began.elapsed().as_secs_f64();
    let counted = opened.counts.now().since(before);
    if let Some(waiting) = trimmed {
        finish(waiting).await?;
    }
    most = most.max(bytes_on_disk(&arguments.directory)?);
    println!(
        "space: {ledgers} ledgers, {live} B live, {} s: {appended} B appended",
        seconds.as_secs()
    );
    println!(
        "  most space {most} B = {:.2} x live",
        most as f64 / live as f64
    );
    println!(
        "  written {} B = {:.2} x appended; {} syncs",
        counted.written,
        counted.written as f64 / appended as f64,
        counted.syncs
    );
    println!(
        "  {:.1} MB/s; {:.2} x the {:.1} MB/s of the same without trimming",
        rate / 1e6,
        rate / untouched,
        untouched / 1e6
    );
    drop(writers);
    opened.close();
    Ok(())
}

/// Reads one ledger from its begin to its end after the page cache was told to forget the files.
pub(crate) async fn cold(arguments: &Arguments) -> Outcome {
    let ledgers = arguments.size(arguments.ledgers, 1000, 20);
    let live = arguments.size(arguments.megabytes.first().copied(), 2000, 2) * 1_000_000;
    let kept = (live / (ledgers * ENTRY) as u64).max(BATCH as u64);
    let opened = open(&arguments.directory)?;
    let mut writers = Writers::create(&opened.store, ledgers).await?;
    fill(&mut writers, kept).await?;
    let ids = writers.ids();
    // Needs root; without it the figures are those of the page cache.
    let is_cold = std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok();
    let (before, began) = (opened.counts.now(), Instant::now());
    let mut bytes = 0;
    for ledger in ids.iter().step_by(ledgers.div_ceil(3)).copied() {
        let reader = opened.store.open(ledger).await?;
        let (mut next, end) = (0, reader.last_confirmed().map_or(0, |last| last + 1));
        while next < end {
            let entries = reader
                .read(std::slice::from_ref(&(next..end)), 1 << 20)
                .await?;
            next += entries.len() as u64;
            bytes += entries
                .iter()
                .map(|entry| entry.payload.len() as u64)
                .sum::<u64>();
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let counted = opened.counts.now().since(before);
    println!(
        "cold: 3 of {ledgers} interleaved ledgers, one after the other, caches dropped: {is_cold}"
    );
    println!(
        "  {:.1} MB/s, {:.0} entries/s; {} reads of {} B for {bytes} B = {:.2} x",
        bytes as f64 / seconds / 1e6,
        (bytes / ENTRY as u64) as f64 / seconds,
        counted.reads,
        counted.read,
        counted.read as f64 / bytes as f64
    );
    drop(writers);
    opened.close();
    Ok(())
}

/// One batch for each ledger, and the wait for the batches before: how many entries each has, and what was appended.
async fn round(writers: &mut Writers) -> Outcome<(u64, u64)> {
    let next = writers.append(BATCH)?;
    writers.durable(next - BATCH as u64).await?;
    Ok((next, (writers.ids().len() * BATCH * ENTRY) as u64))
}

/// Appends until each ledger has `entries` durable ones.
pub(crate) async fn fill(writers: &mut Writers, entries: u64) -> Outcome {
    let mut next = 0;
    while next < entries {
        next = round(writers).await?.0;
    }
    writers.durable(next).await
}

fn trim(store: &EmbeddedStore, ids: &[LedgerId], first: u64) -> JoinSet<Result<(), LedgerError>> {
    let mut trims = JoinSet::new();
    for ledger in ids.iter().copied() {
        let store = store.clone();
        trims.spawn(async move { store.trim(ledger, first).await });
    }
    trims
}

async fn finish(mut trims: JoinSet<Result<(), LedgerError>>) -> Outcome {
    while let Some(trimmed) = trims.join_next().await {
        trimmed??;
    }
    Ok(())
}
