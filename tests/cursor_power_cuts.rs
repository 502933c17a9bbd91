//! Cursors over power cuts: after a cut at any change of the disk each cursor is as it was at one moment, and no earlier than the last
//! acknowledgement that was told to be durable.
//!
//! `SEED=n` runs that seed alone, `SEEDS=n` so many.

#![expect(
    clippy::indexing_slicing,
    reason = "cursors and histories are those that the test made itself"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pulsegate::disk::Disk;
use pulsegate::journal::JournalSettings;
use pulsegate::journal::kernel::Limits;
use pulsegate::ledger::EmbeddedStore;
use pulsegate::ledger::embedded::Reads;
use pulsegate::managed_ledger::formats::NodeCompression;
use pulsegate::managed_ledger::{
    AckSet, CursorForm, CursorId, CursorState, CursorStorage, Flush, LogExtent, ManagedCursor,
    Position,
};
use pulsegate::metadata::{LocalMetadata, MemoryMetadata, SystemClock};
use pulsegate::naming::TopicName;
use pulsegate::testing::sim_disk::{Change, SimDisk};
use pulsegate::testing::sim_journal::{Latency, SimDriver};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const CURSORS: usize = 5;
const OPERATIONS: usize = 260;
/// Images of the disk for each cut.
const IMAGES: u64 = 2;

/// A store that is open.
struct Opened {
    storage: Arc<CursorStorage>,
    driver: tokio::task::AbortHandle,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// All that a cursor was, and what was told of it.
#[derive(Debug, Default)]
struct History {
    /// Changes of the disk when it was there.
    created: usize,
    /// The state after so many changes.
    states: Vec<(u64, CursorState)>,
    /// (changes of the disk, changes of the cursor that are durable).
    told: Vec<(usize, u64)>,
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

fn settings() -> JournalSettings {
    JournalSettings {
        block: 512,
        segment_size: 16 << 10,
        group_max: 4 << 10,
        limits: Limits {
            free_files: 2,
            ..Limits::default()
        },
        ..JournalSettings::new("test", [9; 16], 1_800_000_000)
    }
}

fn log() -> LogExtent {
    LogExtent::new([(1, 400), (2, 0), (5, 300)])
}

fn id(cursor: usize) -> CursorId {
    CursorId {
        topic: TopicName::parse("persistent://tenant/namespace/topic").expect("a topic"),
        cursor: format!("cursor-{cursor}"),
    }
}

async fn open(disk: &SimDisk, metadata: &MemoryMetadata, latency: Latency) -> Opened {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let (store, journal) =
        EmbeddedStore::recover_from(disk, &settings(), Reads::Inline).expect("recovered");
    let (driver, opened) = SimDriver::new(journal, 5, latency);
    let driver = tokio::task::spawn_local(driver.run()).abort_handle();
    opened.await.expect("driver").expect("opened");
    let storage = CursorStorage {
        metadata: LocalMetadata::new(Arc::new(metadata.connect())),
        compression: NodeCompression::NEVER,
        form: CursorForm::ChangeLog(Arc::new(store)),
    };
    Opened {
        storage: Arc::new(storage),
        driver,
    }
}

fn stamp(disk: &SimDisk) -> usize {
    usize::try_from(disk.calls()).expect("small")
}

fn change(cursor: &mut ManagedCursor, random: &mut StdRng) {
    let log = log();
    let ledger = [1, 5][random.random_range(0..2)];
    let position = Position::new(ledger, random.random_range(0..300));
    let few = Position::new(1, random.random_range(0..30));
    match random.random_range(0..40) {
        0..18 => cursor.acknowledge(position, &log).map(drop),
        18..24 => cursor.acknowledge(few, &log).map(drop),
        24..32 => {
            let remaining = AckSet::from_words([random.random()]);
            cursor
                .acknowledge_in_batch(position, 64, &remaining, &log)
                .map(drop)
        }
        32..34 => cursor.acknowledge_through(few, &log).map(drop),
        34 => cursor.reset(few, None),
        35 => cursor.skip(random.random_range(0..5), &log).map(drop),
        36..38 => {
            let value = random.random_range(0..5);
            cursor.set_properties(BTreeMap::from([(format!("p{value}"), value)]))
        }
        _ => {
            let value = random.random_range(0..5);
            let properties = BTreeMap::from([(format!("c{value}"), value.to_string())]);
            cursor.set_cursor_properties(properties)
        }
    }
    .expect("works");
}

/// Does the work; what was told of each cursor by when.
async fn run(disk: &SimDisk, metadata: &MemoryMetadata, seed: u64) -> Vec<History> {
    let opened = open(disk, metadata, Latency::default()).await;
    let mut random = StdRng::seed_from_u64(seed);
    let (mut cursors, mut histories) = (Vec::new(), Vec::new());
    for number in 0..CURSORS {
        let state = CursorState::new(Position::before(1));
        let storage = Arc::clone(&opened.storage);
        let cursor = ManagedCursor::create(storage, &id(number), state.clone(), 1).await;
        cursors.push(cursor.expect("created"));
        histories.push(History {
            created: stamp(disk),
            states: vec![(0, state)],
            told: vec![(stamp(disk), 0)],
        });
    }
    for now in 0..OPERATIONS {
        let number = random.random_range(0..CURSORS);
        let now = i64::try_from(now).expect("small");
        let (cursor, history) = (&mut cursors[number], &mut histories[number]);
        match random.random_range(0..10) {
            0..6 => {
                change(cursor, &mut random);
                let state = (cursor.changed(), cursor.state().clone());
                history.states.push(state);
            }
            6..8 => cursor.flush(now, Flush::Now).expect("works"),
            8 => {
                let pause = Duration::from_micros(random.random_range(0..4000));
                let progress = tokio::time::timeout(pause, cursor.progressed()).await;
                progress.map_or(Ok(0), |progress| progress).expect("works");
            }
            _ => {
                if random.random_range(0..4) == 0 {
                    cursor.settled(now).await.expect("works");
                }
            }
        }
        history.told.push((stamp(disk), cursor.durable()));
    }
    histories
}

/// The disk as it is when the power fails while a change is made.
fn during(disk: &SimDisk, change: Option<&Change>) -> SimDisk {
    let disk = disk.fork();
    match change {
        None | Some(Change::Sync(_) | Change::SyncDir) => {}
        Some(change) => disk.replay(change),
    }
    disk
}

/// Opens all cursors of an image and compares them with what had been told; then each moves on, durably, and the power fails again.
async fn check(
    image: &SimDisk,
    metadata: &MemoryMetadata,
    histories: &[History],
    (cut, seed): (usize, u64),
) {
    let what = format!("SEED={seed}, cut at {cut}");
    let opened = open(image, metadata, Latency::default()).await;
    let mut later = Vec::new();
    for (number, history) in histories.iter().enumerate() {
        if history.created > cut {
            continue;
        }
        let storage = Arc::clone(&opened.storage);
        let cursor = ManagedCursor::open(storage, &id(number), &log()).await;
        let (mut cursor, _) =
            cursor.unwrap_or_else(|error| panic!("{what}: cursor {number}: {error}"));
        let told = history.told.iter().rfind(|(when, _)| *when <= cut);
        let (_, durable) = told.expect("it was there");
        let first = history
            .states
            .iter()
            .rposition(|(changed, _)| changed <= durable)
            .expect("the first state");
        let possible = &history.states[first..];
        assert!(
            possible.iter().any(|(_, state)| state == cursor.state()),
            "{what}: cursor {number} is none of what it was since {durable} changes: {:?}",
            cursor.state()
        );
        let position = Position::new(5, 299);
        cursor.acknowledge(position, &log()).expect("works");
        cursor.settled(1).await.expect("durable");
        later.push((number, cursor.state().clone()));
    }
    drop(opened);
    let opened = open(&image.after_cut(seed ^ 77), metadata, Latency::default()).await;
    for (number, state) in later {
        let storage = Arc::clone(&opened.storage);
        let cursor = ManagedCursor::open(storage, &id(number), &log()).await;
        let (cursor, _) = cursor.expect("opened again");
        assert_eq!(cursor.state(), &state, "{what}: cursor {number}");
    }
}

#[test]
fn a_cursor_is_never_behind_what_was_told_to_be_durable() {
    let seeds = match number("SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("SEEDS").unwrap_or(1),
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let metadata = MemoryMetadata::new(Arc::new(SystemClock::new()));
            let disk = SimDisk::new(seed);
            disk.start_recording();
            let histories = run(&disk, &metadata, seed).await;
            let changes = disk.recorded();
            let known: u64 = histories
                .iter()
                .filter_map(|history| history.told.last())
                .map(|(_, durable)| durable)
                .sum();
            assert!(
                known > 30 && changes.len() > 50,
                "{known} durable changes, {} of the disk",
                changes.len()
            );
            let rebuilt = SimDisk::new(seed);
            for cut in 0..=changes.len() {
                let state = during(&rebuilt, changes.get(cut));
                for image in 0..IMAGES {
                    let image = state.after_cut(seed * 1_000_003 + cut as u64 * IMAGES + image);
                    check(&image, &metadata, &histories, (cut, seed)).await;
                }
                if let Some(change) = changes.get(cut) {
                    rebuilt.replay(change);
                }
            }
            println!(
                "seed {seed}: {} cuts, {known} changes known to be durable at the end",
                (changes.len() + 1) * 2
            );
        });
    }
}

#[test]
fn acknowledgements_that_wait_for_the_disk_become_one() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let metadata = MemoryMetadata::new(Arc::new(SystemClock::new()));
        let opened = open(&SimDisk::new(3), &metadata, Latency::default()).await;
        let state = CursorState::new(Position::before(1));
        let storage = Arc::clone(&opened.storage);
        let cursor = ManagedCursor::create(storage, &id(0), state, 1).await;
        let mut cursor = cursor.expect("created");
        for entry in 1..200 {
            cursor
                .acknowledge(Position::new(1, entry), &log())
                .expect("works");
            cursor.flush(1, Flush::Now).expect("works");
        }
        cursor.settled(1).await.expect("durable");
        assert_eq!(cursor.durable(), 199);
        let CursorForm::ChangeLog(store) = &opened.storage.form else {
            panic!("another form")
        };
        let name = pulsegate::ledger::CursorName {
            topic: id(0).topic.to_string(),
            cursor: id(0).cursor,
        };
        let (stored, _) = store.open_cursor(&name).await.expect("open");
        let lengths: Vec<usize> = stored.deltas.iter().map(bytes::Bytes::len).collect();
        assert_eq!(
            lengths.len(),
            3,
            "one in the group, one behind it, and all others: {lengths:?}"
        );
        assert!(lengths.iter().sum::<usize>() < 60, "{lengths:?}");
    });
}
