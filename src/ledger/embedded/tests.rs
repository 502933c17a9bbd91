//! Index files over a simulated disk: what a start and a read cost, and what happens to one that is missing or says something else.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::segment_index::{Builder, EntryKey, Place};
use super::*;
use crate::disk::Disk;
use crate::journal::kernel::Limits;
use crate::journal::recovery::{index_file, segment_file};
use crate::journal::{Location, Record, Replica, Salt};
use crate::testing::sim_disk::{Reads as DiskReads, SimDisk};
use crate::testing::sim_journal::{Latency, SimDriver};

struct Running {
    store: EmbeddedStore,
    driver: tokio::task::AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.driver.abort();
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

async fn open(disk: &SimDisk) -> Running {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (store, journal) =
        EmbeddedStore::recover_from(shared, &settings(), Reads::Inline).expect("store");
    let (driver, opened) = SimDriver::new(journal, 3, Latency::default());
    let driver = tokio::task::spawn_local(driver.run()).abort_handle();
    opened.await.expect("driver").expect("opened");
    Running { store, driver }
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

/// Long enough for indexes, checkpoints and gc to be through.
async fn quiet() {
    tokio::time::sleep(Duration::from_secs(30)).await;
}

fn payload(ledger: u64, entry: u64) -> Bytes {
    let mut bytes = format!("{ledger}:{entry}:").into_bytes();
    bytes.resize(100, u8::try_from((ledger ^ entry) % 251).expect("small"));
    Bytes::from(bytes)
}

impl Running {
    async fn create(&self) -> Box<dyn LedgerWriter> {
        self.store
            .create(LedgerOptions::default())
            .await
            .expect("create")
    }

    /// As many ledgers, written in turn, each with as many entries.
    async fn written(&self, ledgers: usize, entries: u64) -> Vec<LedgerId> {
        let mut writers = Vec::new();
        for _ in 0..ledgers {
            writers.push(self.create().await);
        }
        self.append(&mut writers, 0..entries).await;
        writers.iter().map(|writer| writer.id()).collect()
    }

    async fn append(&self, writers: &mut [Box<dyn LedgerWriter>], entries: Range<u64>) {
        for start in entries.clone().step_by(5) {
            let end = (start + 5).min(entries.end);
            for writer in writers.iter_mut() {
                let id = writer.id().0;
                let batch: Vec<Bytes> = (start..end).map(|entry| payload(id, entry)).collect();
                writer.append(&batch).expect("append");
            }
            let last = writers.last().expect("a writer");
            let mut progress = last.progress();
            progress
                .wait_for(|progress| progress.confirmed >= Some(end - 1))
                .await
                .expect("journal");
        }
    }

    async fn read(&self, ledger: LedgerId, range: Range<u64>) -> Result<Vec<Entry>, LedgerError> {
        let reader = self.store.open(ledger).await?;
        reader.read(&[range], usize::MAX).await
    }

    async fn assert_readable(&self, ledger: LedgerId, range: Range<u64>) {
        let read = self.read(ledger, range.clone()).await.expect("read");
        assert_eq!(read.len() as u64, range.end - range.start);
        for (entry, read) in range.zip(read) {
            assert_eq!(
                (read.entry, read.payload),
                (entry, payload(ledger.0, entry))
            );
        }
    }

    fn runs(&self, ledger: LedgerId) -> Vec<super::packed_runs::Extent> {
        let cell = self.store.cell(ledger).expect("ledger");
        let state = cell.state.lock();
        state.index.runs().collect()
    }
}

fn indexes(disk: &SimDisk) -> Vec<String> {
    let mut names = disk.list().expect("list");
    names.retain(|name| name.starts_with("index-"));
    names
}

/// A store with three ledgers over many segments, all but the newest with an index in a file, after a kill.
async fn killed(entries: u64) -> (SimDisk, Vec<LedgerId>) {
    let disk = SimDisk::new(1);
    let running = open(&disk).await;
    let ids = running.written(3, entries).await;
    quiet().await;
    assert!(indexes(&disk).len() > 5, "{:?}", indexes(&disk));
    (disk.after_kill(), ids)
}

/// The generation of the segment that has an entry.
fn generation(running: &Running, ledger: LedgerId, entry: u64) -> u64 {
    let runs = running.runs(ledger);
    let run = runs.iter().find(|run| run.end() > entry).expect("a run");
    run.generation
}

fn write_over(disk: &SimDisk, name: &str, bytes: &[u8]) {
    disk.remove(name).expect("remove");
    let file = disk.create(name).expect("create");
    file.write_at(0, bytes).expect("write");
}

#[test]
fn a_start_reads_the_checkpoint_and_the_log_behind_it_and_nothing_else_however_much_there_is() {
    run(async {
        let mut read = Vec::new();
        for entries in [1_000, 4_000] {
            let (disk, ids) = killed(entries).await;
            disk.take_reads();
            let running = open(&disk).await;
            let reads = disk.take_reads();
            let segments: Vec<&String> = reads
                .keys()
                .filter(|name| name.starts_with("segment-"))
                .collect();
            let stored = disk.list().expect("list");
            let stored = stored
                .iter()
                .filter(|name| name.starts_with("segment-"))
                .count();
            assert!(segments.len() <= 5, "{segments:?} of {stored}");
            assert!(!reads.keys().any(|name| name.starts_with("index-")));
            let checkpoints = reads.iter().filter(|(name, _)| name.starts_with("check"));
            let checkpoints: u64 = checkpoints.map(|(_, reads)| reads.bytes).sum();
            let bytes: u64 = reads.values().map(|reads| reads.bytes).sum();
            let calls: u64 = reads.values().map(|reads| reads.calls).sum();
            println!(
                "{} entries in {stored} segments: {calls} reads of {bytes} bytes, {checkpoints} of them checkpoints",
                3 * entries
            );
            read.push(bytes - checkpoints);
            for id in ids {
                running.assert_readable(id, 0..entries).await;
            }
            assert_eq!(running.store.lost_indexes(), 0);
        }
        let spread = 2 * u64::from(settings().segment_size);
        assert!(read[1].abs_diff(read[0]) <= spread, "{read:?}");
    });
}

#[test]
fn a_cold_read_is_three_reads_and_one_beside_it_is_one() {
    run(async {
        let (disk, ids) = killed(1_000).await;
        let running = open(&disk).await;
        let id = ids[1];
        let old = generation(&running, id, 50);
        let reads = |disk: &SimDisk| -> BTreeMap<String, DiskReads> {
            let mut reads = disk.take_reads();
            reads.retain(|name, _| !name.starts_with("check"));
            reads
        };
        disk.take_reads();
        running.assert_readable(id, 50..51).await;
        let cold = reads(&disk);
        let calls = |reads: &BTreeMap<String, DiskReads>, name: &str| {
            reads.get(name).map_or(0, |reads| reads.calls)
        };
        assert_eq!(calls(&cold, &index_file(old)), 2, "{cold:?}");
        assert_eq!(calls(&cold, &segment_file(old)), 1, "{cold:?}");
        assert_eq!(cold.len(), 2, "{cold:?}");
        running.assert_readable(id, 52..53).await;
        let warm = reads(&disk);
        assert_eq!(calls(&warm, &segment_file(old)), 1, "{warm:?}");
        assert_eq!(warm.len(), 1, "{warm:?}");
        // Of one ledger from one end to the other: each segment once, and its index at most once.
        running.assert_readable(id, 0..1_000).await;
        let all = reads(&disk);
        assert!(all.values().all(|reads| reads.calls <= 2), "{all:?}");
        running.assert_readable(id, 0..1_000).await;
        let again = reads(&disk);
        assert!(!again.keys().any(|name| name.starts_with("index-")));
        assert!(again.values().all(|reads| reads.calls == 1), "{again:?}");
    });
}

#[test]
fn a_missing_index_is_made_again_at_the_start() {
    run(async {
        let (disk, ids) = killed(1_000).await;
        let name = indexes(&disk)[2].clone();
        let before = disk.content(&name);
        disk.remove(&name).expect("remove");
        let running = open(&disk).await;
        assert_eq!(running.store.lost_indexes(), 1);
        for id in &ids {
            running.assert_readable(*id, 0..1_000).await;
        }
        quiet().await;
        assert_eq!(disk.content(&name), before);
        drop(running);
        let running = open(&disk.after_kill()).await;
        assert_eq!(running.store.lost_indexes(), 0);
        running.assert_readable(ids[0], 0..1_000).await;
    });
}

#[test]
fn an_index_that_is_damaged_or_of_another_segment_or_lies_is_told_and_made_again() {
    run(async {
        let (disk, ids) = killed(1_000).await;
        let names = indexes(&disk);
        let name = &names[2];
        let before = disk.content(name).expect("index");
        let generation = u64::from_str_radix(name.trim_start_matches("index-"), 16).expect("hex");
        let salt = Salt::of(&settings().uuid);
        // Every checksum is right, and every entry is said to be where its neighbour is.
        let liar = {
            let files = open(&disk.fork()).await;
            let mut builder = Builder::new(generation, salt);
            for id in &ids {
                for run in files.runs(*id) {
                    if run.generation == generation {
                        for entry in run.first..run.end() {
                            let key = EntryKey {
                                ledger: id.0,
                                entry,
                            };
                            let place = Place {
                                offset: 1024,
                                length: 128,
                            };
                            builder.add(key, place);
                        }
                    }
                }
            }
            builder.finish()
        };
        let flipped = |at: usize| {
            let mut bytes = before.clone();
            bytes[at] ^= 4;
            bytes
        };
        let cases = [
            ("head", flipped(20)),
            ("directory", flipped(64 + 9)),
            ("block", flipped(before.len() - 3)),
            ("cut short", before[..before.len() - 100].to_vec()),
            ("empty", Vec::new()),
            (
                "of another segment",
                disk.content(&names[3]).expect("index"),
            ),
            ("without entries", Builder::new(generation, salt).finish()),
            ("a liar", liar),
        ];
        for (what, bytes) in cases {
            let disk = disk.fork();
            write_over(&disk, name, &bytes);
            let running = open(&disk).await;
            assert_eq!(
                running.store.lost_indexes(),
                0,
                "{what}: nobody has read it"
            );
            for id in &ids {
                running.assert_readable(*id, 0..1_000).await;
            }
            assert_eq!(running.store.lost_indexes(), 1, "{what}");
            quiet().await;
            assert_eq!(disk.content(name), Some(before.clone()), "{what}");
            disk.take_reads();
            for id in &ids {
                running.assert_readable(*id, 0..1_000).await;
            }
            let segment = disk.take_reads().remove(&segment_file(generation));
            let whole = u64::from(settings().segment_size);
            assert!(
                segment.is_some_and(|reads| reads.bytes < 3 * whole),
                "{what}: not read as a whole for each entry"
            );
        }
    });
}

#[test]
fn a_damaged_entry_is_told_by_its_place_and_its_neighbours_are_read_with_and_without_an_index() {
    run(async {
        let (disk, ids) = killed(1_000).await;
        let id = ids[1];
        let (name, offset, index) = {
            let running = open(&disk.fork()).await;
            let old = generation(&running, id, 60);
            let wanted = payload(id.0, 60);
            let content = disk.content(&segment_file(old)).expect("segment");
            let at = content
                .windows(wanted.len())
                .position(|window| window == wanted);
            (segment_file(old), at.expect("written"), index_file(old))
        };
        disk.flip(&name, offset + 50, 3);
        let without = disk.fork();
        without.remove(&index).expect("remove");
        let place = offset as u64 - 28;
        for disk in [&disk, &without] {
            let running = open(disk).await;
            for _ in 0..3 {
                match running.read(id, 55..65).await.expect_err("damaged") {
                    LedgerError::Damaged {
                        entry: 60,
                        file,
                        offset,
                        ..
                    } => assert_eq!((file, offset), (name.clone(), place)),
                    other => panic!("{other}"),
                }
            }
            for id in &ids {
                running.assert_readable(*id, 0..60).await;
                running.assert_readable(*id, 61..1_000).await;
            }
        }
    });
}

#[test]
fn on_a_full_disk_places_stay_in_memory_and_in_checkpoints_until_there_is_space() {
    run(async {
        let disk = SimDisk::new(1);
        let running = open(&disk).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut writer = [running.create().await];
        disk.limit_space(Some(disk.used()));
        let id = writer[0].id();
        let mut entries = 0;
        while entries < 160 {
            running.append(&mut writer, entries..entries + 5).await;
            entries += 5;
        }
        // One segment is finished, and there is no other free one.
        assert!(running.runs(id).len() > 1);
        quiet().await;
        assert_eq!(indexes(&disk), [""; 0]);
        running.assert_readable(id, 0..160).await;
        let killed = disk.after_kill();
        drop(running);
        for (limit, expected) in [(Some(killed.used()), false), (None, true)] {
            let disk = killed.fork();
            disk.limit_space(limit);
            let running = open(&disk).await;
            running.assert_readable(id, 0..160).await;
            quiet().await;
            assert_eq!(!indexes(&disk).is_empty(), expected, "{:?}", indexes(&disk));
            running.assert_readable(id, 0..160).await;
            assert_eq!(running.store.lost_indexes(), 0);
        }
    });
}

#[test]
fn what_a_crash_left_of_indexes_is_removed_at_the_start() {
    run(async {
        let (disk, ids) = killed(500).await;
        for name in [index_file(9_999), index_file(2) + ".new"] {
            disk.create(&name).expect("create");
        }
        let running = open(&disk).await;
        let names = indexes(&disk);
        assert!(!names.contains(&index_file(9_999)), "{names:?}");
        assert!(
            !names.iter().any(|name| name.ends_with(".new")),
            "{names:?}"
        );
        running.assert_readable(ids[0], 0..500).await;
    });
}

#[test]
fn gc_splits_runs_and_frees_segments_and_their_indexes() {
    run(async {
        let disk = SimDisk::new(1);
        let running = open(&disk).await;
        let mut kept = Vec::new();
        for _ in 0..4 {
            kept.push(running.create().await);
        }
        let mut gone = Vec::new();
        for round in 0..40_u64 {
            let mut writers = vec![running.create().await];
            running.append(&mut kept, round * 5..round * 5 + 5).await;
            running.append(&mut writers, 0..200).await;
            gone.push(writers[0].id());
            if let Some(old) = round.checked_sub(2) {
                let old = gone[usize::try_from(old).expect("small")];
                running.store.delete(old).await.expect("delete");
            }
        }
        for writer in &kept {
            // Inside of a run.
            running.store.trim(writer.id(), 23).await.expect("trim");
        }
        quiet().await;
        for writer in &kept {
            running.assert_readable(writer.id(), 23..200).await;
            running
                .read(writer.id(), 22..24)
                .await
                .expect_err("trimmed");
        }
        // About 1.2 MB went through; 4 times 177 entries of 128 bytes and two ledgers are left.
        let segments = |disk: &SimDisk| {
            let names = disk.list().expect("list");
            names
                .into_iter()
                .filter(|name| name.starts_with("segment-"))
                .collect::<Vec<_>>()
        };
        let left = segments(&disk);
        assert!(left.len() <= 16, "{left:?}");
        for index in indexes(&disk) {
            let segment = index.replace("index", "segment");
            assert!(left.contains(&segment), "{index} of a free segment");
        }
        for (disk, what) in [(disk.after_kill(), "killed"), (disk.after_cut(7), "cut")] {
            let running = open(&disk).await;
            for writer in &kept {
                running.assert_readable(writer.id(), 23..200).await;
            }
            assert_eq!(running.store.lost_indexes(), 0, "{what}");
            let live: u64 = kept
                .iter()
                .flat_map(|writer| running.runs(writer.id()))
                .map(|run| u64::from(run.count))
                .sum();
            assert_eq!(live, 4 * 177, "{what}");
        }
    });
}

/// A log of entries in turn over ledgers, without a disk.
fn replica(ledgers: u64, entries: u64, length: u32, segment_size: u32) -> LedgerReplica {
    let mut replica = LedgerReplica::new(Arc::default());
    let mut at = Location {
        generation: 1,
        offset: 4096,
        length,
    };
    for ledger in 0..ledgers {
        let options = Bytes::from_static(b"options");
        replica.apply(&Record::LedgerCreated { ledger, options }, at);
    }
    let payload = Bytes::from(vec![0; length as usize - ENTRY_HEADER]);
    for entry in 0..entries / ledgers {
        for ledger in 0..ledgers {
            let payload = payload.clone();
            replica.apply(
                &Record::Entry {
                    ledger,
                    entry,
                    payload,
                },
                at,
            );
            at.offset += length;
            if at.offset + length > segment_size {
                replica.indexed(at.generation);
                at.generation += 1;
                at.offset = 4096;
            }
        }
    }
    // As when the log has just gone on.
    replica.indexed(at.generation);
    replica
}

#[test]
fn a_checkpoint_grows_with_runs_and_not_with_entries() {
    let size = |ledgers, entries| {
        let replica = replica(ledgers, entries, 128, 64 << 20);
        let bytes: usize = replica
            .snapshot()
            .iter()
            .map(|(_, bytes)| bytes.len())
            .sum();
        println!(
            "{entries} entries of 100 bytes in {ledgers} ledgers: checkpoint of {bytes} bytes"
        );
        bytes
    };
    let few = size(1_000, 100_000);
    let many = size(1_000, 1_000_000);
    // 1,000 ledgers in 2 segments more.
    assert_eq!(many - few, 1_000 * 25);
}
