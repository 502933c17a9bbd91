//! Power cuts: every change that a workload makes to the disk is a place where the power fails, with any subset of what was not synced on
//! the disk, and again during the recovery.
//!
//! The workload runs once, over ledgers, cursors and metadata through their public handles, and notes what it was told and how many changes the disk
//! had seen by then. Then the disk is built again change by change, and at each one what is found after a cut is opened and
//! compared with what had been told. One seed is cut at every change; many small ones, a fourth of them with relaxed durability, at a few
//! changes each. `SEED=n` runs that seed alone, `SEEDS=n` so many small ones, `THOROUGH_SEEDS=n` so many of the other kind; the
//! defaults are few enough for every day.

#[path = "storage/damage.rs"]
mod damage;
#[path = "storage/workload.rs"]
mod workload;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pulsegate::testing::sim_disk::{Change, SimDisk};
use pulsegate::testing::sim_journal::Latency;
use rand::{RngExt, SeedableRng};
use workload::{History, Opened, Workload, on_paused_time, open, relaxed, settings};

/// Images of the disk for each cut.
const IMAGES: u64 = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().expect("a number"))
}

fn seeds(count: &str, usual: u64) -> Vec<u64> {
    match number("SEED") {
        Some(seed) => vec![seed],
        None => (1..=number(count).unwrap_or(usual)).collect(),
    }
}

/// The disk as it is when the power fails while a change is made.
fn during(disk: &SimDisk, change: Option<&Change>) -> SimDisk {
    let disk = disk.fork();
    match change {
        // How far a sync got is the same as which subset is on the disk.
        None | Some(Change::Sync(_) | Change::SyncDir) => {}
        Some(change) => disk.replay(change),
    }
    disk
}

async fn opened(disk: &SimDisk, what: &str) -> Opened {
    match open(disk, 1, Latency::default()).await {
        Ok(opened) => opened,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Opens what is left after a cut, and again after a cut during that; returns how many cuts that were.
async fn check(image: &SimDisk, history: &History, cut: usize, what: &str) -> u64 {
    let (again, before) = (image.fork(), image.fork());
    image.start_recording();
    let first = opened(image, what).await;
    let changes = image.recorded();
    let mut found = first.found(history).await;
    history.check(&found, cut, what);
    // The recovery fails in its turn, at any of its changes.
    let at =
        usize::try_from(history.seed.wrapping_add(cut as u64)).unwrap_or(0) % (changes.len() + 1);
    for change in changes.iter().take(at) {
        again.replay(change);
    }
    let second = during(&again, changes.get(at)).after_cut(cut as u64 + 3);
    let reopened = opened(&second, &format!("{what}, and at {at} of its recovery")).await;
    history.check(&reopened.found(history).await, cut, what);
    // What the completed recovery has shown stays, whatever comes, and nothing that it cut comes back: neither after the next
    // segments have been filled, nor at any change on the way there.
    let shown = image.recorded().len();
    let id = first.write_something().await;
    let changes = image.recorded();
    let at = shown + cut * 7 % (changes.len() - shown);
    for change in changes.iter().take(at) {
        before.replay(change);
    }
    let third = if cut.is_multiple_of(2) {
        image.after_cut(cut as u64 + 9)
    } else {
        during(&before, changes.get(at)).after_cut(cut as u64 + 9)
    };
    let last = opened(
        &third,
        &format!(
            "{what}, and at {at} of {} after its recovery",
            changes.len()
        ),
    )
    .await;
    let mut later = last.found(history).await;
    // The workload may have made a ledger of this number, had it gone on.
    for found in [&mut found, &mut later] {
        found.forget(id);
    }
    assert_eq!(
        later, found,
        "{what}: recovery showed something else before"
    );
    3
}

/// Runs a workload once and cuts it at every change; the cuts are shared out among the processors.
fn run_seed(seed: u64, operations: usize, topics: usize) -> (u64, usize) {
    let mut run = None;
    on_paused_time(async {
        let disk = SimDisk::new(seed);
        disk.start_recording();
        let history = Workload::new(seed, operations, topics).run(&disk).await;
        run = Some((history, disk.recorded()));
    });
    let (history, changes) = run.expect("ran");
    let cuts = AtomicU64::new(0);
    let shares: Vec<usize> = (0..SHARES).collect();
    on_all_processors(&shares, |share| {
        let done = cut_at_each(&history, &changes, share);
        cuts.fetch_add(done, Ordering::Relaxed);
    });
    (cuts.into_inner(), changes.len())
}

/// Cuts at each change of a share; returns how many cuts that were.
fn cut_at_each(history: &History, changes: &[Change], share: usize) -> u64 {
    let seed = history.seed;
    let mut cuts = 0;
    on_paused_time(async {
        let rebuilt = SimDisk::new(seed);
        for cut in 0..=changes.len() {
            if cut % SHARES == share {
                let state = during(&rebuilt, changes.get(cut));
                for image in 0..IMAGES {
                    let what = format!(
                        "SEED={seed}, cut at {cut} of {}, image {image}: {:?}",
                        changes.len(),
                        changes.get(cut).map(name)
                    );
                    let image = state.after_cut(seed * 1_000_003 + cut as u64 * IMAGES + image);
                    cuts += check(&image, history, cut, &what).await;
                }
            }
            if let Some(change) = changes.get(cut) {
                rebuilt.replay(change);
            }
        }
    });
    cuts
}

/// A small workload, and the power fails at some of its changes.
fn run_small_seed(seed: u64) -> u64 {
    let mut cuts = 0;
    on_paused_time(async {
        let disk = SimDisk::new(seed);
        disk.start_recording();
        let settings = if seed.is_multiple_of(4) {
            relaxed()
        } else {
            settings()
        };
        let workload = Workload::new(seed, SMALL_OPERATIONS, SMALL_TOPICS);
        let history = workload.with_settings(settings).run(&disk).await;
        let changes = disk.recorded();
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let mut at: Vec<usize> = (0..SMALL_CUTS)
            .map(|_| random.random_range(0..=changes.len()))
            .collect();
        at.sort_unstable();
        let rebuilt = SimDisk::new(seed);
        let mut made = 0;
        for cut in at {
            for change in changes.get(made..cut).unwrap_or_default() {
                rebuilt.replay(change);
            }
            made = made.max(cut);
            let what = format!(
                "SEED={seed}, cut at {cut} of {}: {:?}",
                changes.len(),
                changes.get(cut).map(name)
            );
            let image = during(&rebuilt, changes.get(cut)).after_cut(random.random());
            cuts += check(&image, &history, cut, &what).await;
        }
    });
    cuts
}

/// Runs all on as many threads as there are processors.
fn on_all_processors<T: Copy + Sync>(work: &[T], run: impl Fn(T) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(*item);
                }
            });
        }
    });
}

const SMALL_OPERATIONS: usize = 200;
const SMALL_TOPICS: usize = 8;
const SMALL_CUTS: usize = 8;
/// Pieces that the cuts of one seed are shared out in.
const SHARES: usize = 8;

/// A change without its bytes.
fn name(change: &Change) -> String {
    match change {
        Change::Write(name, at, bytes) => format!("write {} bytes at {at} of {name}", bytes.len()),
        other => format!("{other:?}"),
    }
}

#[test]
fn nothing_confirmed_is_lost_and_nothing_cut_comes_back() {
    let operations =
        number("OPERATIONS").map_or(400, |given| usize::try_from(given).expect("small"));
    let mut cuts = 0;
    for seed in seeds("THOROUGH_SEEDS", 1) {
        let (more, changes) = run_seed(seed, operations, 50);
        assert!(
            changes > operations / 4,
            "{changes} changes: the workload did not reach the disk"
        );
        cuts += more;
        println!("seed {seed}: {changes} changes, {more} cuts");
    }
    println!("{cuts} cuts");
}

#[test]
fn many_seeds_lose_nothing_either() {
    let seeds = seeds("SEEDS", 24);
    let start = std::time::Instant::now();
    let cuts = AtomicU64::new(0);
    on_all_processors(&seeds, |seed| {
        cuts.fetch_add(run_small_seed(seed), Ordering::Relaxed);
    });
    println!(
        "{} seeds, {} cuts, {:?} in all",
        seeds.len(),
        cuts.into_inner(),
        start.elapsed()
    );
}

#[test]
fn a_seed_replays_equal() {
    let run = |seed, settings| {
        let mut result = None;
        on_paused_time(async {
            let disk = SimDisk::new(seed);
            disk.start_recording();
            let workload = Workload::new(seed, 300, 20).with_settings(settings);
            let history = workload.run(&disk).await;
            result = Some((disk.recorded(), history));
        });
        result.expect("ran")
    };
    let mut runs = Vec::new();
    for settings in [settings, relaxed] {
        let (changes, history) = run(11, settings());
        let (again, history_again) = run(11, settings());
        assert!(
            changes == again,
            "the same seed made other changes to the disk"
        );
        assert_eq!(history, history_again);
        let (other, _) = run(12, settings());
        assert!(changes != other, "another seed made the same changes");
        runs.push(changes);
    }
    let [syncs, relaxed_syncs] = [&runs[0], &runs[1]].map(|changes| {
        let syncs = changes.iter();
        syncs
            .filter(|change| matches!(change, Change::Sync(_)))
            .count()
    });
    assert!(
        relaxed_syncs < syncs,
        "{relaxed_syncs} syncs when relaxed, {syncs} when not"
    );
}

#[test]
fn a_killed_process_loses_nothing_that_was_written() {
    for seed in 1..=10 {
        on_paused_time(async {
            let disk = SimDisk::new(seed);
            let settings = if seed % 2 == 0 { relaxed() } else { settings() };
            let workload = Workload::new(seed, 300, 20).with_settings(settings);
            let history = workload.run(&disk).await;
            let calls = usize::try_from(disk.calls()).expect("small");
            let killed = disk.after_kill();
            let first = opened(&killed, "after a kill").await;
            let found = first.found(&history).await;
            history.check_all(&found, calls, "after a kill");
            // What it shows is durable by then: the page cache it came from may go.
            let cut = opened(&killed.after_cut(seed), "after a kill and a cut").await;
            assert_eq!(cut.found(&history).await, found, "seed {seed}");
        });
    }
}
