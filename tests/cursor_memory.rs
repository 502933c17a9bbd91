//! What cursors at rest take: heap of many open cursors, with what a store in memory and the metadata tree hold of them.
//!
//! A binary of its own, with one test, since it replaces the global allocator and measures all of it.

use std::sync::Arc;

use pulsegate::ledger::{LedgerOptions, MemoryStore};
use pulsegate::managed_ledger::formats::NodeCompression;
use pulsegate::managed_ledger::{
    CursorForm, CursorId, CursorLedgerSettings, CursorLedgers, CursorState, CursorStorage,
    LogExtent, ManagedCursor, Position,
};
use pulsegate::metadata::{LocalMetadata, MemoryMetadata, SystemClock};
use pulsegate::naming::TopicName;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const CURSORS: usize = 1000;
const CHANGE_LOG: &str = "change log";
/// A topic with two cursors is to take 3 KiB at most, and there is more to it than its cursors. Only for cursors in the change log:
/// in ledgers they keep a writer.
const BYTES_MAX: usize = 1350;

fn storage(form: CursorForm) -> Arc<CursorStorage> {
    let metadata = MemoryMetadata::new(Arc::new(SystemClock::new()));
    Arc::new(CursorStorage {
        metadata: LocalMetadata::new(Arc::new(metadata.connect())),
        compression: NodeCompression::NEVER,
        form,
    })
}

/// Bytes of the heap for each of many cursors that have acknowledged something and are at rest.
async fn bytes_of_one(form: CursorForm) -> (usize, usize) {
    let storage = storage(form);
    let log = LogExtent::new([(1 << 45, 1000)]);
    let before = dhat::HeapStats::get();
    let mut cursors = Vec::with_capacity(CURSORS);
    for number in 0..CURSORS {
        let topic = format!("persistent://tenant/namespace/topic-{}", number / 2);
        let id = CursorId {
            topic: TopicName::parse(&topic).expect("a topic"),
            cursor: format!("subscription-{}", number % 2),
        };
        let state = CursorState::new(Position::before(1 << 45));
        let created = ManagedCursor::create(Arc::clone(&storage), &id, state, 1).await;
        let mut cursor = created.expect("created");
        for entry in 0..30 {
            let position = Position::new(1 << 45, entry * 2);
            cursor.acknowledge_through(position, &log).expect("works");
            cursor.settled(entry * 2000).await.expect("durable");
        }
        while !cursor.rest(60_000).expect("works") {
            cursor.progressed().await.expect("works");
        }
        cursors.push(cursor);
    }
    let after = dhat::HeapStats::get();
    let all = (after.curr_bytes - before.curr_bytes) / CURSORS;
    drop(cursors);
    let rest = dhat::HeapStats::get();
    let stored = (rest.curr_bytes - before.curr_bytes) / CURSORS;
    (all, stored)
}

#[test]
fn a_cursor_at_rest_takes_little_memory() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("runtime");
    runtime.block_on(async {
        println!(
            "ManagedCursor: {} bytes, CursorState: {} bytes",
            size_of::<ManagedCursor>(),
            size_of::<CursorState>()
        );
        let change_log = CursorForm::ChangeLog(Arc::new(MemoryStore::default()));
        let ledgers = CursorForm::CursorLedger(Arc::new(CursorLedgers {
            store: Arc::new(MemoryStore::default()),
            options: LedgerOptions::default(),
            settings: CursorLedgerSettings {
                // Entries of ledgers are in memory here, and nowhere else.
                entries_max: 2,
                ..CursorLedgerSettings::default()
            },
        }));
        for (name, form) in [(CHANGE_LOG, change_log), ("cursor ledger", ledgers)] {
            let (all, stored) = bytes_of_one(form).await;
            println!(
                "{name}: {all} bytes for a cursor, {stored} of them what stores in memory hold"
            );
            assert!(name != CHANGE_LOG || all <= BYTES_MAX, "{name}: {all}");
        }
    });
}
