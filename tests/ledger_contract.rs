//! What `pulsegate::ledger` promises of every engine, run on each: in memory, embedded over a simulated disk, embedded with threads over files.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pulsegate::disk::{Disk, RealDisk};
use pulsegate::journal::{JournalError, JournalSettings, ThreadDriver};
use pulsegate::ledger::embedded::Reads;
use pulsegate::ledger::{
    CursorName, CursorState, CursorStore, CursorUpdate, EmbeddedStore, Entry, LedgerError,
    LedgerId, LedgerOptions, LedgerReader, LedgerStore, LedgerWriter, MemoryStore, Progress,
    Sealed,
};
use pulsegate::testing::sim_disk::SimDisk;
use pulsegate::testing::sim_journal::{Latency, SimDriver};

trait Store: LedgerStore + CursorStore {}
impl<S: LedgerStore + CursorStore> Store for S {}

/// A store, and how to start it again as after a kill.
enum Engine {
    Memory(MemoryStore),
    Simulated(SimDisk),
    Files(tempfile::TempDir),
}

struct Running {
    store: Arc<dyn Store>,
    journal: Option<EmbeddedStore>,
    threads: Option<ThreadDriver>,
}

impl Engine {
    async fn start(&self) -> Running {
        match self {
            Self::Memory(store) => Running {
                store: Arc::new(store.clone()),
                journal: None,
                threads: None,
            },
            Self::Simulated(disk) => {
                let disk: Arc<dyn Disk> = Arc::new(disk.clone());
                let (store, journal) =
                    EmbeddedStore::recover_from(disk, &settings(), Reads::Inline).expect("store");
                let (driver, opened) = SimDriver::new(journal, 7, Latency::default());
                tokio::task::spawn_local(driver.run());
                opened.await.expect("driver").expect("opened");
                Running {
                    store: Arc::new(store.clone()),
                    journal: Some(store),
                    threads: None,
                }
            }
            Self::Files(folder) => {
                let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(folder.path()).expect("folder"));
                let (store, threads) = EmbeddedStore::open(disk, &settings()).expect("store");
                Running {
                    store: Arc::new(store.clone()),
                    journal: Some(store),
                    threads: Some(threads),
                }
            }
        }
    }

    /// Ends it in order and starts it again; the same store where nothing outlives the process.
    async fn restart(&self, running: Running) -> Running {
        if let Some(store) = &running.journal {
            store.journal().close();
            let mut stopped = store.journal().stopped();
            let end = stopped
                .wait_for(Option::is_some)
                .await
                .expect("journal")
                .clone();
            assert!(matches!(end, Some(JournalError::Closed)), "{end:?}");
        }
        if let Some(threads) = running.threads {
            threads.join();
        }
        tokio::task::yield_now().await;
        self.start().await
    }
}

fn settings() -> JournalSettings {
    JournalSettings {
        block: 512,
        segment_size: 64 << 10,
        group_max: 16 << 10,
        ..JournalSettings::new("test", [1; 16], 1_800_000_000)
    }
}

/// Runs a clause on each engine.
fn on_each_engine<F: AsyncFn(Engine)>(clause: F) {
    let folder = tempfile::tempdir().expect("folder");
    for engine in [
        Engine::Memory(MemoryStore::default()),
        Engine::Simulated(SimDisk::new(3)),
        Engine::Files(folder),
    ] {
        let paused = matches!(engine, Engine::Simulated(_));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(paused)
            .build()
            .expect("runtime");
        tokio::task::LocalSet::new().block_on(&runtime, clause(engine));
    }
}

fn payload(number: u64) -> Bytes {
    Bytes::from(format!(
        "entry {number} {}",
        "x".repeat(usize::try_from(number % 50).expect("small") * 20)
    ))
}

fn batch(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(payload).collect()
}

async fn create(running: &Running) -> Box<dyn LedgerWriter> {
    running
        .store
        .create(LedgerOptions::default())
        .await
        .expect("create")
}

async fn confirmed(writer: &dyn LedgerWriter, entry: u64) {
    let mut progress = writer.progress();
    let reached = |progress: &Progress| {
        progress
            .confirmed
            .is_some_and(|confirmed| confirmed >= entry)
    };
    progress
        .wait_for(|progress| reached(progress) || progress.failed.is_some())
        .await
        .expect("journal");
    assert!(
        progress.borrow().failed.is_none(),
        "{:?}",
        progress.borrow()
    );
}

async fn written(running: &Running, count: u64) -> Box<dyn LedgerWriter> {
    let mut writer = create(running).await;
    if count > 0 {
        assert_eq!(writer.append(&batch(0..count)).expect("append"), 0..count);
        confirmed(writer.as_ref(), count - 1).await;
    }
    writer
}

async fn reader(running: &Running, id: LedgerId) -> Box<dyn LedgerReader> {
    running.store.open(id).await.expect("open")
}

async fn assert_readable(running: &Running, id: LedgerId, range: std::ops::Range<u64>) {
    let read = reader(running, id)
        .await
        .read(std::slice::from_ref(&range), usize::MAX)
        .await
        .expect("read");
    let expected: Vec<Entry> = range
        .map(|entry| Entry {
            entry,
            payload: payload(entry),
        })
        .collect();
    assert_eq!(read, expected);
}

#[test]
fn l1_l2_l3_progress_follows_appends_and_outlives_the_process() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let mut writer = create(&running).await;
        let id = writer.id();
        let mut progress = writer.progress();
        let watcher = tokio::task::spawn_local(async move {
            let mut seen = Vec::new();
            while seen.last() != Some(&299) {
                if progress.changed().await.is_err() {
                    break;
                }
                seen.extend(progress.borrow_and_update().confirmed);
            }
            seen
        });
        tokio::task::yield_now().await;
        for number in 0..100 {
            let range = number * 3..number * 3 + 3;
            assert_eq!(writer.append(&batch(range.clone())).expect("append"), range);
            if number % 10 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        confirmed(writer.as_ref(), 299).await;
        let seen = watcher.await.expect("watcher");
        assert!(seen.is_sorted(), "{seen:?}");
        let running = engine.restart(running).await;
        assert_readable(&running, id, 0..300).await;
    });
}

#[test]
fn l4_a_recovered_ledger_fences_its_writer() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let mut writer = written(&running, 5).await;
        let sealed = running.store.recover(writer.id()).await.expect("recover");
        assert_eq!(sealed.last_entry, Some(4));
        let error = writer.append(&batch(5..6)).expect_err("fenced");
        assert!(matches!(error, LedgerError::Fenced), "{error}");
        let id = writer.id();
        let error = writer.seal().await.expect_err("fenced");
        assert!(matches!(error, LedgerError::Fenced), "{error}");
        assert_readable(&running, id, 0..5).await;
    });
}

#[test]
fn l4_what_was_appended_before_the_fence_is_in_the_ledger_as_far_as_it_was_confirmed() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let mut writer = create(&running).await;
        for number in 0..50 {
            writer.append(&batch(number..number + 1)).expect("append");
        }
        let sealed = running.store.recover(writer.id()).await.expect("recover");
        let confirmed = writer.progress().borrow().confirmed;
        assert!(confirmed <= sealed.last_entry, "{confirmed:?} {sealed:?}");
    });
}

#[test]
fn l5_a_sealed_ledger_stays_as_it_is() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let writer = written(&running, 7).await;
        let id = writer.id();
        let sealed = writer.seal().await.expect("seal");
        let length = batch(0..7).iter().map(|payload| payload.len() as u64).sum();
        assert_eq!(
            sealed,
            Sealed {
                last_entry: Some(6),
                length
            }
        );
        assert_eq!(running.store.recover(id).await.expect("recover"), sealed);
        running.store.trim(id, 3).await.expect("trim");
        assert_eq!(running.store.recover(id).await.expect("recover"), sealed);
        let running = engine.restart(running).await;
        assert_eq!(running.store.recover(id).await.expect("recover"), sealed);
        assert_eq!(reader(&running, id).await.last_confirmed(), Some(6));
        assert_readable(&running, id, 3..7).await;
    });
}

#[test]
fn l5_an_empty_ledger_is_sealed_empty() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let writer = written(&running, 0).await;
        let id = writer.id();
        assert_eq!(
            writer.seal().await.expect("seal"),
            Sealed {
                last_entry: None,
                length: 0
            }
        );
        assert_eq!(reader(&running, id).await.last_confirmed(), None);
    });
}

#[test]
fn l6_what_is_confirmed_is_readable_at_once() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let mut writer = create(&running).await;
        let reader = reader(&running, writer.id()).await;
        for number in 0..30 {
            writer.append(&batch(number..number + 1)).expect("append");
            confirmed(writer.as_ref(), number).await;
            assert_eq!(reader.last_confirmed(), Some(number));
            let range = number..number + 1;
            let read = reader
                .read(std::slice::from_ref(&range), 0)
                .await
                .expect("read");
            assert_eq!(
                read,
                [Entry {
                    entry: number,
                    payload: payload(number)
                }]
            );
        }
    });
}

#[test]
fn l7_deleting_is_idempotent_and_ends_the_writer() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let mut writer = written(&running, 3).await;
        let id = writer.id();
        running.store.delete(id).await.expect("delete");
        running.store.delete(id).await.expect("again");
        running
            .store
            .delete(LedgerId(987_654))
            .await
            .expect("never made");
        writer.append(&batch(3..4)).expect_err("deleted");
        let running = engine.restart(running).await;
        let error = running.store.open(id).await.expect_err("deleted");
        assert!(
            matches!(error, LedgerError::NoLedger(ledger) if ledger == id.0),
            "{error}"
        );
        running.store.recover(id).await.expect_err("deleted");
        running.store.trim(id, 1).await.expect_err("deleted");
    });
}

#[test]
fn l9_only_what_was_asked_is_read() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let one = written(&running, 20).await;
        let other = written(&running, 4).await;
        let reader = reader(&running, one.id()).await;
        let read = reader
            .read(&[3..5, 10..12], usize::MAX)
            .await
            .expect("read");
        assert_eq!(
            read.iter().map(|entry| entry.entry).collect::<Vec<_>>(),
            [3, 4, 10, 11]
        );
        for missing in [20..21, 19..21, 1000..1001] {
            let error = reader
                .read(&[missing], usize::MAX)
                .await
                .expect_err("not there");
            assert!(matches!(error, LedgerError::NoEntry { .. }), "{error}");
        }
        assert_readable(&running, other.id(), 0..4).await;
        assert_eq!(reader.read(&[], 10).await.expect("nothing"), []);
    });
}

#[test]
fn l9_a_budget_bounds_a_read_and_the_first_entry_always_comes() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let writer = written(&running, 40).await;
        let reader = reader(&running, writer.id()).await;
        let budget = payload(10).len() + payload(11).len();
        for (budget, count) in [(0, 1), (budget, 2), (budget + 1, 2), (budget - 1, 1)] {
            let range = 10..40;
            let read = reader
                .read(std::slice::from_ref(&range), budget)
                .await
                .expect("read");
            assert_eq!(read.len(), count, "budget {budget}");
        }
    });
}

#[test]
fn l9_trimmed_entries_are_not_there_and_others_are_while_the_ledger_grows() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let mut writer = written(&running, 10).await;
        let id = writer.id();
        running.store.trim(id, 6).await.expect("trim");
        running.store.trim(id, 2).await.expect("lower: nothing");
        writer.append(&batch(10..15)).expect("append");
        confirmed(writer.as_ref(), 14).await;
        let running = engine.restart(running).await;
        assert_readable(&running, id, 6..15).await;
        let range = 5..7;
        reader(&running, id)
            .await
            .read(std::slice::from_ref(&range), usize::MAX)
            .await
            .expect_err("trimmed");
    });
}

#[test]
fn ledger_ids_rise_over_deletion_and_restart() {
    on_each_engine(async |engine| {
        let mut running = engine.start().await;
        let mut last = 0;
        for _ in 0..3 {
            let id = written(&running, 1).await.id();
            assert!(id.0 > last && id.0 < 1 << 53, "{id}");
            last = id.0;
            running.store.delete(id).await.expect("delete");
            running = engine.restart(running).await;
        }
    });
}

#[test]
fn an_entry_that_is_too_large_is_refused_and_the_writer_goes_on() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        if running.journal.is_none() {
            return;
        }
        let mut writer = written(&running, 1).await;
        let error = writer
            .append(&[payload(1), Bytes::from(vec![0; 1 << 20])])
            .expect_err("too large");
        assert!(matches!(error, LedgerError::TooLarge { .. }), "{error}");
        assert_eq!(writer.append(&batch(1..3)).expect("append"), 1..3);
        confirmed(writer.as_ref(), 2).await;
        // A batch of many entries is longer than a group, and than a segment.
        assert_eq!(writer.append(&batch(3..400)).expect("append"), 3..400);
        confirmed(writer.as_ref(), 399).await;
        assert_readable(&running, writer.id(), 0..400).await;
    });
}

fn name(cursor: &str) -> CursorName {
    CursorName {
        topic: "persistent://t/n/topic".to_owned(),
        cursor: cursor.to_owned(),
    }
}

fn delta(number: u64) -> CursorUpdate {
    CursorUpdate::Delta(Bytes::from(format!("delta {number}")))
}

#[test]
fn c1_c2_c3_a_cursor_is_its_last_snapshot_and_what_came_since() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let (state, mut writer) = running.store.open_cursor(&name("c")).await.expect("open");
        assert_eq!(state, CursorState::default());
        for number in 0..5 {
            assert_eq!(writer.append(delta(number)).expect("append"), number + 1);
        }
        writer
            .append(CursorUpdate::Snapshot(Bytes::from_static(b"all")))
            .expect("append");
        let last = writer.append(delta(9)).expect("append");
        let mut progress = writer.progress();
        progress
            .wait_for(|progress| progress.durable == last)
            .await
            .expect("journal");
        let running = engine.restart(running).await;
        let (state, _) = running.store.open_cursor(&name("c")).await.expect("open");
        assert_eq!(state.snapshot, Some(Bytes::from_static(b"all")));
        assert_eq!(state.deltas, [Bytes::from_static(b"delta 9")]);
        let (other, _) = running.store.open_cursor(&name("cc")).await.expect("open");
        assert_eq!(other, CursorState::default());
    });
}

#[test]
fn c4_a_later_opening_fences_the_earlier_and_sees_what_it_queued() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let (_, mut first) = running.store.open_cursor(&name("c")).await.expect("open");
        first.append(delta(1)).expect("append");
        let (state, mut second) = running.store.open_cursor(&name("c")).await.expect("open");
        assert_eq!(state.deltas, [Bytes::from_static(b"delta 1")]);
        let error = first.append(delta(2)).expect_err("fenced");
        assert!(matches!(error, LedgerError::Fenced), "{error}");
        second.append(delta(3)).expect("append");
    });
}

#[test]
fn c5_a_deleted_cursor_is_empty() {
    on_each_engine(async |engine| {
        let running = engine.start().await;
        let (_, mut writer) = running.store.open_cursor(&name("c")).await.expect("open");
        writer.append(delta(1)).expect("append");
        running
            .store
            .delete_cursor(&name("c"))
            .await
            .expect("delete");
        running
            .store
            .delete_cursor(&name("c"))
            .await
            .expect("again");
        writer.append(delta(2)).expect_err("deleted");
        let running = engine.restart(running).await;
        let (state, _) = running.store.open_cursor(&name("c")).await.expect("open");
        assert_eq!(state, CursorState::default());
    });
}

#[test]
fn l8_after_a_failed_sync_a_writer_accepts_nothing_more() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let disk = SimDisk::new(3);
        let engine = Engine::Simulated(disk.clone());
        let running = engine.start().await;
        let mut writer = written(&running, 2).await;
        for name in disk.list().expect("list") {
            disk.fail_syncs_of(&name);
        }
        assert_eq!(writer.append(&batch(2..4)).expect("queued"), 2..4);
        let mut progress = writer.progress();
        progress
            .wait_for(|progress| progress.failed.is_some())
            .await
            .expect("journal");
        assert_eq!(
            progress.borrow().confirmed,
            Some(1),
            "not the two that failed"
        );
        writer.append(&batch(4..5)).expect_err("failed before");
        running
            .store
            .create(LedgerOptions::default())
            .await
            .expect_err("the store has stopped");
    });
}

#[test]
fn l11_a_ledger_is_found_by_its_custom_metadata_until_it_is_deleted() {
    on_each_engine(async |engine| {
        let mut running = engine.start().await;
        let options = |owner: &'static str| LedgerOptions {
            custom_metadata: vec![
                ("application".to_owned(), Bytes::from_static(b"pulsar")),
                ("owner".to_owned(), Bytes::from_static(owner.as_bytes())),
            ],
            ..LedgerOptions::default()
        };
        let mut ids = Vec::new();
        for owner in ["one", "other", "one"] {
            let made = running.store.create(options(owner)).await;
            ids.push(made.expect("create").id());
        }
        create(&running).await;
        running = engine.restart(running).await;
        let find = async |running: &Running, name, value: &'static str| {
            let found = running.store.find(name, value.as_bytes()).await;
            let ids = found.expect("find").into_iter().map(|(id, _)| id);
            ids.collect::<Vec<_>>()
        };
        assert_eq!(find(&running, "owner", "one").await, [ids[0], ids[2]]);
        assert_eq!(find(&running, "application", "pulsar").await, ids);
        assert!(find(&running, "owner", "nobody").await.is_empty());
        assert!(find(&running, "application", "one").await.is_empty());
        let found = running.store.find("owner", b"other").await.expect("find");
        assert_eq!(found, [(ids[1], options("other"))]);
        running.store.delete(ids[0]).await.expect("delete");
        assert_eq!(find(&running, "owner", "one").await, [ids[2]]);
        running = engine.restart(running).await;
        assert_eq!(find(&running, "owner", "one").await, [ids[2]]);
    });
}

#[test]
fn l9_a_damaged_entry_is_an_error_that_names_its_place_and_others_are_read() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let disk = SimDisk::new(3);
        let engine = Engine::Simulated(disk.clone());
        let running = engine.start().await;
        let writer = written(&running, 40).await;
        let wanted = payload(23);
        let (file, offset) = disk
            .list()
            .expect("list")
            .into_iter()
            .find_map(|name| {
                let content = disk.content(&name)?;
                let at = content
                    .windows(wanted.len())
                    .position(|window| window == wanted)?;
                Some((name, at))
            })
            .expect("on the disk");
        disk.flip(&file, offset + 3, 5);
        let error = {
            let range = 20..30;
            reader(&running, writer.id())
                .await
                .read(std::slice::from_ref(&range), usize::MAX)
                .await
                .expect_err("damaged")
        };
        match error {
            LedgerError::Damaged {
                entry: 23,
                file: named,
                offset: at,
                ..
            } => {
                assert_eq!((named, at), (file, offset as u64 - 28));
            }
            other => panic!("{other}"),
        }
        assert_readable(&running, writer.id(), 24..40).await;
    });
}
