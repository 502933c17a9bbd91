//! The journal over a simulated disk: what comes back after an end in order, a kill, a cut, damage and a full disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::format::{Change, Malformed};
use super::handle::Completion;
use super::kernel::{Limits, SharedChanges};
use super::*;
use crate::disk::Disk;
use crate::testing::sim_disk::{Change as DiskChange, SimDisk};
use crate::testing::sim_journal::{Latency, SimDriver};

/// Remembers entries; a ledger's entries die when it is deleted.
#[derive(Debug, Default, Clone)]
struct Held {
    state: Arc<Mutex<BTreeMap<(u64, u64), Location>>>,
}

#[derive(Debug, Default)]
struct Told {
    durable: Mutex<Vec<u64>>,
    failed: Mutex<Vec<String>>,
}

struct Opened {
    handle: JournalHandle,
    held: Held,
    changes: SharedChanges,
    files: SegmentFiles,
    salt: Salt,
    end: JoinHandle<JournalError>,
}

impl Replica for Held {
    fn apply(&mut self, record: &Record, at: Location) {
        let mut state = self.state.lock();
        match record {
            Record::Entry { ledger, entry, .. } => {
                state.insert((*ledger, *entry), at);
            }
            Record::Copied { ledger, entry, .. } => {
                if let Some(held) = state.get_mut(&(*ledger, *entry)) {
                    *held = at;
                }
            }
            Record::LedgerDeleted { ledger } => state.retain(|(held, _), _| held != ledger),
            _ => {}
        }
    }

    fn snapshot(&self) -> Vec<(u32, Vec<u8>)> {
        let mut out = Vec::new();
        for ((ledger, entry), at) in self.state.lock().iter() {
            for number in [
                *ledger,
                *entry,
                at.generation,
                u64::from(at.offset),
                u64::from(at.length),
            ] {
                out.extend(number.to_be_bytes());
            }
        }
        vec![(3, out)]
    }

    fn restore(&mut self, _: u32, bytes: &Bytes) -> Result<(), Malformed> {
        let mut reader = format::Reader::new(bytes);
        while !reader.is_empty() {
            let key = (reader.u64()?, reader.u64()?);
            let generation = reader.u64()?;
            let offset = u32::try_from(reader.u64()?).map_err(|_| Malformed("offset"))?;
            let length = u32::try_from(reader.u64()?).map_err(|_| Malformed("length"))?;
            self.state.lock().insert(
                key,
                Location {
                    generation,
                    offset,
                    length,
                },
            );
        }
        Ok(())
    }

    fn entries(&self) -> u64 {
        self.state.lock().len() as u64
    }

    fn live_segments(&self) -> Vec<u64> {
        let live: BTreeSet<u64> = self.state.lock().values().map(|at| at.generation).collect();
        live.into_iter().collect()
    }

    fn is_live(&self, ledger: u64, entry: u64, at: Location) -> bool {
        self.state.lock().get(&(ledger, entry)) == Some(&at)
    }

    fn worth_copying(&self, sealed: &[u64], _: u64) -> Option<u64> {
        let state = self.state.lock();
        let live = |generation: u64| {
            state
                .values()
                .filter(|at| at.generation == generation)
                .count()
        };
        sealed
            .iter()
            .copied()
            .find(|generation| (1..8).contains(&live(*generation)))
    }
}

impl Completion for Told {
    fn durable(&self, upto: u64) {
        self.durable.lock().push(upto);
    }

    fn failed(&self, error: &JournalError) {
        self.failed.lock().push(error.to_string());
    }
}

impl Opened {
    fn submit(&self, record: Record, upto: u64, told: &Arc<Told>) -> Result<(), JournalError> {
        let completion = Some(Arc::clone(told) as Arc<dyn Completion>);
        self.handle.submit(Submission {
            records: vec![record],
            upto,
            completion,
        })
    }

    /// Submits one and waits for what becomes of it.
    async fn write(&self, record: Record) -> Result<(), String> {
        let told = Arc::new(Told::default());
        self.submit(record, 0, &told)
            .map_err(|error| error.to_string())?;
        loop {
            if let Some(error) = told.failed.lock().first() {
                return Err(error.clone());
            }
            if !told.durable.lock().is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }

    async fn close(self) {
        self.handle.close();
        let end = self.end.await.expect("driver");
        assert!(matches!(end, JournalError::Closed), "{end}");
    }

    fn read(&self, ledger: u64, entry: u64) -> Option<Bytes> {
        let at = *self.held.state.lock().get(&(ledger, entry))?;
        let mut bytes = vec![0; at.length as usize];
        let file = self
            .files
            .file(at.generation)
            .expect("segment of a live entry");
        file.read_at(u64::from(at.offset), &mut bytes)
            .expect("read");
        let salt = self.salt.for_generation(at.generation);
        match Record::decode(salt, &Bytes::from(bytes)).expect("record") {
            (
                Record::Entry {
                    ledger: l,
                    entry: e,
                    payload,
                }
                | Record::Copied {
                    ledger: l,
                    entry: e,
                    payload,
                },
                _,
            ) => {
                assert_eq!((l, e), (ledger, entry));
                Some(payload)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn settings() -> JournalSettings {
    JournalSettings {
        block: 512,
        segment_size: 32 << 10,
        group_max: 8 << 10,
        limits: Limits {
            free_files: 2,
            ..Limits::default()
        },
        ..JournalSettings::new("test", [5; 16], 1_800_000_000)
    }
}

async fn try_open(disk: &SimDisk) -> Result<Opened, JournalError> {
    let held = Held::default();
    let journal = Journal::open(Arc::new(disk.clone()), &settings(), held.clone())?;
    let (handle, changes, (files, salt)) = (journal.handle(), journal.changes(), journal.files());
    let (driver, opened) = SimDriver::new(journal, 1, Latency::default());
    let end = tokio::task::spawn_local(driver.run());
    opened.await.map_err(|_| JournalError::Closed)??;
    Ok(Opened {
        handle,
        held,
        changes,
        files,
        salt,
        end,
    })
}

async fn open(disk: &SimDisk) -> Opened {
    try_open(disk).await.expect("open")
}

fn entry(ledger: u64, entry: u64, length: usize) -> Record {
    let payload = Bytes::from(vec![u8::try_from(entry % 251).expect("small"); length]);
    Record::Entry {
        ledger,
        entry,
        payload,
    }
}

fn put(key: &'static str, value: &'static str) -> Record {
    Record::Change {
        table: Table::Metadata.number(),
        key: Bytes::from_static(key.as_bytes()),
        change: Change::Put(Bytes::from_static(value.as_bytes())),
    }
}

/// Runs on a runtime whose time is its own.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// The segment that groups are written to.
fn active_segment(disk: &SimDisk) -> String {
    let names = disk.list().expect("list");
    let with_groups = |name: &&String| {
        // Groups of an older use of the file do not count.
        let used =
            |content: Vec<u8>| content[512..516] == *b"PGGR" && content[8..16] == content[520..528];
        name.starts_with("segment-") && disk.content(name).is_some_and(used)
    };
    names.iter().rfind(with_groups).expect("a segment").clone()
}

#[test]
fn what_was_durable_is_there_after_an_end_in_order_and_after_a_kill() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        for number in 0..50 {
            journal.write(entry(1, number, 700)).await.expect("written");
        }
        journal.write(put("k", "v")).await.expect("written");
        let before = journal.held.state.lock().clone();
        let killed = disk.after_kill();
        journal.close().await;
        for disk in [disk, killed] {
            let journal = open(&disk).await;
            assert_eq!(*journal.held.state.lock(), before);
            let value = journal.changes.lock().value(Table::Metadata, b"k").cloned();
            assert_eq!(
                value.and_then(|value| value.base),
                Some(Bytes::from_static(b"v"))
            );
            assert_eq!(journal.read(1, 49), Some(Bytes::from(vec![49; 700])));
            journal.close().await;
        }
    });
}

#[test]
fn completions_come_in_order_and_groups_gather_what_waits() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        let told = Arc::new(Told::default());
        let before = disk.calls();
        for number in 0..100 {
            journal
                .submit(entry(1, number, 50), number, &told)
                .expect("queued");
        }
        journal.write(put("k", "v")).await.expect("written");
        assert_eq!(*told.durable.lock(), (0..100).collect::<Vec<_>>());
        assert!(
            disk.calls() - before < 20,
            "{} calls",
            disk.calls() - before
        );
        journal.close().await;
    });
}

#[test]
fn segments_come_back_when_nothing_needs_them() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        for ledger in 0..200 {
            for number in 0..10 {
                journal
                    .write(entry(ledger, number, 1000))
                    .await
                    .expect("written");
            }
            if ledger >= 3 {
                let old = Record::LedgerDeleted { ledger: ledger - 3 };
                journal.write(old).await.expect("written");
            }
        }
        // 2 MB went through; 30 entries of 1 KB are left.
        assert!(
            disk.used() < 16 * (32 << 10),
            "{} bytes in use",
            disk.used()
        );
        for number in 0..10 {
            assert!(journal.read(199, number).is_some());
        }
        journal.close().await;
    });
}

#[test]
fn a_freed_segment_is_not_written_before_its_new_name_is_durable() {
    run(async {
        let disk = SimDisk::new(1);
        disk.start_recording();
        let journal = open(&disk).await;
        for ledger in 0..60 {
            for number in 0..10 {
                journal
                    .write(entry(ledger, number, 1000))
                    .await
                    .expect("written");
            }
            let old = Record::LedgerDeleted { ledger };
            journal.write(old).await.expect("written");
        }
        journal.close().await;
        let (mut unsynced, mut freed) = (BTreeSet::new(), BTreeSet::new());
        let mut reused = 0;
        for change in disk.recorded() {
            match change {
                DiskChange::Rename(_, to) if to.starts_with("free-") => {
                    unsynced.insert(to.clone());
                    freed.insert(to);
                }
                DiskChange::SyncDir => unsynced.clear(),
                DiskChange::Write(name, ..) => {
                    assert!(!unsynced.contains(&name), "{name} may still be a segment");
                    reused += usize::from(freed.contains(&name));
                }
                _ => {}
            }
        }
        assert!(reused > 5, "{reused} files used again");
    });
}

#[test]
fn gc_copies_what_is_left_and_frees_the_rest() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        for number in 0..600 {
            // One in thirty stays.
            let ledger = if number % 30 == 0 {
                7
            } else {
                1000 + number / 30
            };
            journal
                .write(entry(ledger, number, 1000))
                .await
                .expect("written");
            if number % 30 == 29 {
                journal
                    .write(Record::LedgerDeleted {
                        ledger: 1000 + number / 30,
                    })
                    .await
                    .expect("written");
            }
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(
            disk.used() < 14 * (32 << 10),
            "{} bytes in use",
            disk.used()
        );
        let check = |journal: &Opened| {
            for number in (0..600).step_by(30) {
                let payload = journal.read(7, number).expect("kept");
                assert_eq!(
                    payload,
                    vec![u8::try_from(number % 251).expect("small"); 1000]
                );
            }
        };
        check(&journal);
        let killed = disk.after_kill();
        journal.close().await;
        check(&open(&killed).await);
    });
}

#[test]
fn a_failed_sync_stops_the_journal_and_nothing_is_tried_again() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        journal.write(entry(1, 0, 10)).await.expect("written");
        let segment = active_segment(&disk);
        disk.fail_syncs_of(&segment);
        let calls = disk.calls();
        let error = journal
            .write(entry(1, 1, 10))
            .await
            .expect_err("sync failed");
        assert!(error.contains(&segment), "{error}");
        let error = journal.write(entry(1, 2, 10)).await.expect_err("stopped");
        assert!(error.contains(&segment), "{error}");
        assert_eq!(disk.calls() - calls, 2, "one write, one sync");
        assert!(journal.handle.stopped().borrow().is_some());
    });
}

#[test]
fn entries_are_refused_on_a_full_disk_and_changes_are_not_and_space_coming_back_is_noticed() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        disk.limit_space(Some(disk.used()));
        let mut number = 0;
        let error = loop {
            match journal.write(entry(1, number, 1000)).await {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
            assert!(number < 1000, "never full");
        };
        assert!(error.contains("no space"), "{error}");
        for _ in 0..20 {
            journal.write(put("k", "v")).await.expect("changes go on");
        }
        journal
            .write(entry(2, 0, 1000))
            .await
            .expect_err("still full");
        disk.limit_space(None);
        tokio::time::sleep(Duration::from_secs(3)).await;
        journal
            .write(entry(3, 0, 1000))
            .await
            .expect("space is back");
        let before = journal.held.state.lock().clone();
        journal.close().await;
        assert_eq!(*open(&disk).await.held.state.lock(), before);
    });
}

#[test]
fn deleting_on_a_full_disk_makes_space() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        for number in 0..100 {
            journal
                .write(entry(1, number, 1000))
                .await
                .expect("written");
        }
        disk.limit_space(Some(disk.used()));
        let mut number = 0;
        while journal.write(entry(2, number, 1000)).await.is_ok() {
            number += 1;
        }
        journal
            .write(Record::LedgerDeleted { ledger: 1 })
            .await
            .expect("deletes go on");
        tokio::time::sleep(Duration::from_secs(5)).await;
        journal
            .write(entry(3, 0, 1000))
            .await
            .expect("space of the deleted ledger");
        journal.close().await;
    });
}

#[test]
fn a_store_on_a_disk_that_is_still_full_opens_after_a_kill() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        disk.limit_space(Some(disk.used()));
        let mut number = 0;
        while journal.write(entry(2, number, 1000)).await.is_ok() {
            number += 1;
        }
        let killed = disk.after_kill();
        let again = open(&killed).await;
        assert_eq!(again.held.state.lock().len() as u64, number);
        again.write(put("k", "v")).await.expect("changes go on");
        // What made it possible is used up now.
        let killed = killed.after_kill();
        let error = try_open(&killed).await.err().expect("full");
        assert!(error.to_string().contains("no space"), "{error}");
        killed.limit_space(None);
        let killed = killed.after_kill();
        assert_eq!(open(&killed).await.held.state.lock().len() as u64, number);
    });
}

#[test]
fn damage_in_what_was_synced_is_refused_by_name() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        for number in 0..5 {
            journal
                .write(entry(77, number, 700))
                .await
                .expect("written");
        }
        let segment = active_segment(&disk);
        let killed = disk.after_kill();
        // The second entry, behind the group that begins the segment.
        killed.flip(&segment, 512 * 5 + 20, 1);
        let Err(JournalError::Damaged {
            file,
            offset,
            ledgers,
            ..
        }) = try_open(&killed).await
        else {
            panic!("opened");
        };
        assert_eq!((file, offset), (segment, 512 * 4));
        assert_eq!(ledgers, [77]);
    });
}

#[test]
fn damage_in_the_last_group_is_refused_once_it_was_quiet() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        journal.write(entry(1, 0, 100)).await.expect("written");
        let segment = active_segment(&disk);
        let at_once = disk.after_kill();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let calls = disk.calls();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(disk.calls(), calls, "one empty group, not one a second");
        let quiet = disk.after_kill();
        for disk in [&at_once, &quiet] {
            disk.flip(&segment, 1024 + 100, 0);
        }
        let torn = open(&at_once).await;
        assert!(torn.held.state.lock().is_empty(), "a torn tail is cut");
        try_open(&quiet).await.err().expect("damage");
    });
}

#[test]
fn what_was_cut_does_not_come_back() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        journal.write(entry(1, 0, 100)).await.expect("written");
        let segment = active_segment(&disk);
        let torn = disk.after_kill();
        torn.flip(&segment, 1024 + 100, 0);
        let again = open(&torn).await;
        assert_eq!(again.read(1, 0), None, "cut");
        again.write(entry(2, 0, 50)).await.expect("written");
        let twice = torn.after_kill();
        // The bits are whole again, as after a read that failed for a while.
        twice.flip(&segment, 1024 + 100, 0);
        let last = open(&twice).await;
        assert_eq!(last.read(1, 0), None, "cut before");
        assert_eq!(last.read(2, 0).expect("written since").len(), 50);
    });
}

#[test]
fn others_directories_clusters_and_versions_are_refused_and_nothing_is_changed() {
    run(async {
        let disk = SimDisk::new(1);
        disk.create("bookkeeper.dat").expect("create");
        let calls = disk.calls();
        let error = try_open(&disk).await.err().expect("foreign");
        assert!(matches!(error, JournalError::Foreign(_)), "{error}");
        assert_eq!(disk.calls(), calls);

        let disk = SimDisk::new(1);
        open(&disk).await.close().await;
        let calls = disk.calls();
        let other = JournalSettings {
            cluster: "other".to_owned(),
            ..settings()
        };
        let error =
            Journal::open(Arc::new(disk.clone()), &other, Held::default()).expect_err("other");
        assert!(error.to_string().contains("\"test\""), "{error}");
        assert_eq!(disk.calls(), calls);
    });
}

#[test]
fn a_missing_segment_and_a_damaged_checkpoint_are_refused() {
    run(async {
        let disk = SimDisk::new(1);
        let journal = open(&disk).await;
        for number in 0..200 {
            journal
                .write(entry(1, number, 1000))
                .await
                .expect("written");
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let killed = disk.after_kill();
        for name in killed.list().expect("list") {
            let disk = killed.fork();
            let used = disk.content(&name).is_some_and(|content| {
                content[512..516] == *b"PGGR" && content[8..16] == content[520..528]
            });
            if name.starts_with("segment-") && used {
                disk.remove(&name).expect("remove");
                try_open(&disk)
                    .await
                    .err()
                    .unwrap_or_else(|| panic!("{name} was not missed"));
            }
        }
        let newest = ["checkpoint-0", "checkpoint-1"]
            .into_iter()
            .max_by_key(|name| killed.content(name).map(|content| content[8..16].to_vec()));
        killed.flip(newest.expect("checkpoint"), 4096 + 3, 2);
        let error = try_open(&killed).await.err().expect("damaged");
        assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    });
}

#[test]
fn a_second_process_is_told_that_the_directory_is_in_use() {
    run(async {
        let disk = SimDisk::new(1);
        let _first = open(&disk).await;
        let error = try_open(&disk).await.err().expect("locked");
        assert!(error.to_string().contains("another process"), "{error}");
    });
}

#[test]
fn a_read_only_disk_is_an_error_with_the_file_named() {
    run(async {
        let disk = SimDisk::new(1);
        open(&disk).await.close().await;
        disk.make_read_only();
        let error = try_open(&disk).await.err().expect("read-only");
        assert!(error.to_string().contains("read-only"), "{error}");
    });
}

#[test]
fn threads_do_what_the_simulation_does() {
    let folder = tempfile::tempdir().expect("folder");
    let disk = Arc::new(crate::disk::RealDisk::open(folder.path()).expect("disk"));
    for round in 0..3_u64 {
        let held = Held::default();
        let settings = JournalSettings {
            segment_size: 1 << 20,
            ..settings()
        };
        let journal = Journal::open(
            Arc::clone(&disk) as Arc<dyn crate::disk::Disk>,
            &settings,
            held.clone(),
        )
        .expect("open");
        let handle = journal.handle();
        let driver = ThreadDriver::start(journal, StorageMetrics::unseen()).expect("start");
        assert_eq!(held.state.lock().len() as u64, round * 3000);
        let told = Arc::new(Told::default());
        for number in 0..3000 {
            let records = vec![entry(round, number, 300)];
            let completion = Some(Arc::clone(&told) as Arc<dyn Completion>);
            handle
                .submit(Submission {
                    records,
                    upto: number,
                    completion,
                })
                .expect("queued");
        }
        handle.close();
        driver.join();
        assert_eq!(*told.durable.lock(), (0..3000).collect::<Vec<_>>());
        assert!(matches!(
            *handle.stopped().borrow(),
            Some(JournalError::Closed)
        ));
    }
}
