//! What topics and entries at rest cost the embedded store: bytes of the heap, over files.
//!
//! A binary of its own, with one test, since it replaces the global allocator and measures all of it.

#![expect(clippy::print_stdout, reason = "the figures are worth a look")]

use std::sync::Arc;

use bytes::Bytes;
use pulsegate::disk::{Disk, RealDisk};
use pulsegate::journal::{JournalSettings, ThreadDriver};
use pulsegate::ledger::{
    CursorName, CursorStore, CursorUpdate, EmbeddedStore, LedgerOptions, LedgerStore, LedgerWriter,
};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// What an idle topic with two cursors may take in the store, in bytes.
const TOPIC_MAX: usize = 3 << 10;
/// What an entry in a segment with an index may take, in bytes. It took 16 when each place was in memory.
const ENTRY_MAX: usize = 2;
/// What an entry may take that is alone in its segment, in bytes.
const ALONE_MAX: usize = 16;
const SEGMENT: u32 = 1 << 20;
/// Of 450 entries.
const SMALL: u32 = 64 << 10;
const ENTRY: usize = 100;

fn heap() -> usize {
    dhat::HeapStats::get().curr_bytes
}

fn topic(number: usize) -> String {
    format!("persistent://tenant/namespace/topic-of-usual-length-{number}")
}

async fn durable(writer: &dyn LedgerWriter, entry: u64) {
    let mut progress = writer.progress();
    progress
        .wait_for(|progress| progress.confirmed >= Some(entry) || progress.failed.is_some())
        .await
        .expect("journal");
}

/// A topic at rest: a ledger with some entries, two cursors that have moved, nobody who has them open.
async fn add_topic(store: &EmbeddedStore, number: usize) {
    let options = LedgerOptions {
        custom_metadata: vec![
            (
                "component".to_owned(),
                Bytes::from_static(b"managed-ledger"),
            ),
            (
                "pulsar/managed-ledger".to_owned(),
                Bytes::from(topic(number)),
            ),
        ],
        ..LedgerOptions::default()
    };
    let mut writer = store.create(options).await.expect("create");
    writer
        .append(&vec![Bytes::from(vec![7; ENTRY]); 3])
        .expect("append");
    durable(writer.as_ref(), 2).await;
    for cursor in ["subscription-one", "subscription-two"] {
        let name = CursorName {
            topic: topic(number),
            cursor: cursor.to_owned(),
        };
        let (_, mut writer) = store.open_cursor(&name).await.expect("open");
        writer
            .append(CursorUpdate::Snapshot(Bytes::from(vec![1; 64])))
            .expect("append");
        let upto = writer
            .append(CursorUpdate::Delta(Bytes::from(vec![2; 16])))
            .expect("append");
        let mut progress = writer.progress();
        progress
            .wait_for(|progress| progress.durable == upto)
            .await
            .expect("journal");
    }
}

async fn topics(store: &EmbeddedStore) {
    const FIRST: usize = 100;
    const MORE: usize = 500;
    for number in 0..FIRST {
        add_topic(store, number).await;
    }
    let before = heap();
    for number in FIRST..FIRST + MORE {
        add_topic(store, number).await;
    }
    let each = heap().saturating_sub(before) / MORE;
    println!("an idle topic with two cursors: {each} bytes");
    assert!(each <= TOPIC_MAX, "{each} bytes");
}

/// Waits until only segments that are still written to are without an index.
async fn indexed(folder: &std::path::Path) {
    loop {
        let (mut segments, mut indexes) = (0, 0);
        for file in std::fs::read_dir(folder).expect("folder") {
            let name = file.expect("file").file_name();
            let name = name.to_string_lossy();
            segments += u32::from(name.starts_with("segment-"));
            indexes += u32::from(name.starts_with("index-") && !name.ends_with(".new"));
        }
        // The one that is written to, and those that stand ready.
        if indexes + 3 >= segments {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Writes batches to as many ledgers in turn; the heap after the first rounds, and by how much it grew in the others.
async fn grown(
    (store, folder): (&EmbeddedStore, &std::path::Path),
    (ledgers, batch): (usize, usize),
    rounds: [usize; 2],
) -> usize {
    let mut writers = Vec::new();
    for _ in 0..ledgers {
        let options = LedgerOptions::default();
        writers.push(store.create(options).await.expect("create"));
    }
    let payloads = vec![Bytes::from(vec![7; ENTRY]); batch];
    let mut heaps = [0; 2];
    let mut last = 0;
    for (rounds, held) in rounds.into_iter().zip(&mut heaps) {
        for _ in 0..rounds {
            for writer in &mut writers {
                last = writer.append(&payloads).expect("append").end - 1;
            }
            for writer in &writers {
                durable(writer.as_ref(), last).await;
            }
        }
        indexed(folder).await;
        *held = heap();
    }
    let ([_, more], [before, after]) = (rounds, heaps);
    let added = more * batch * ledgers;
    let grown = after.saturating_sub(before);
    println!(
        "{added} entries more in {ledgers} ledgers, {batch} together: {grown} bytes more than {before}"
    );
    grown
}

/// The places of the segment that is written to are in memory, twice as many as there are for growth.
fn active(segment: u32) -> usize {
    2 * 8 * (segment as usize / (ENTRY + 28))
}

fn opened(folder: &std::path::Path, segment_size: u32) -> (EmbeddedStore, ThreadDriver) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(folder).expect("disk"));
    let settings = JournalSettings {
        segment_size,
        ..JournalSettings::new("test", [1; 16], 1_800_000_000)
    };
    EmbeddedStore::open(disk, &settings).expect("store")
}

#[test]
fn topics_and_entries_at_rest_take_little_memory() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("runtime");
    runtime.block_on(async {
        let folder = tempfile::tempdir().expect("folder");
        let (store, threads) = opened(folder.path(), SEGMENT);
        topics(&store).await;
        let grown_by = grown((&store, folder.path()), (100, 50), [4, 16]).await;
        assert!(
            grown_by <= 80_000 * ENTRY_MAX + active(SEGMENT),
            "{grown_by}"
        );
        store.journal().close();
        threads.join();
        // The other extreme: every entry of a ledger is alone in its segment.
        let folder = tempfile::tempdir().expect("folder");
        let (store, threads) = opened(folder.path(), SMALL);
        let grown_by = grown((&store, folder.path()), (500, 1), [130, 128]).await;
        assert!(grown_by <= 64_000 * ALONE_MAX + active(SMALL), "{grown_by}");
        store.journal().close();
        threads.join();
    });
}
