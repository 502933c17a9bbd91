//! Power cuts: every change that a workload makes to the disk is a place where the power fails, with any subset of what was not synced on
//! the disk, and again during the recovery.
//!
//! The workload runs once, over ledgers and cursors through their public handles, and notes what it was told and how many changes the disk
//! had seen by then. Then the disk is built again change by change, and at each one what is found after a cut is opened and
//! compared with what had been told. `SEED=n` runs that seed alone, `SEEDS=n` so many; the default is few enough for every day.

#[path = "storage/workload.rs"]
mod workload;

use std::sync::Arc;

use pulsegate::testing::sim_disk::{Change, SimDisk};
use pulsegate::testing::sim_journal::Latency;
use workload::{History, Opened, Workload, on_paused_time, open};

/// Images of the disk for each cut.
const IMAGES: u64 = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().expect("a number"))
}

fn seeds() -> Vec<u64> {
    match number("SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("SEEDS").unwrap_or(1)).collect(),
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

fn run_seed(seed: u64, operations: usize, topics: usize) -> (u64, usize) {
    let mut cuts = 0;
    let mut changes_made = 0;
    on_paused_time(async {
        let disk = SimDisk::new(seed);
        disk.start_recording();
        let history = Workload::new(seed, operations, topics).run(&disk).await;
        let changes = disk.recorded();
        changes_made = changes.len();
        let is_index =
            |change: &&Change| matches!(change, Change::Rename(_, to) if to.starts_with("index-"));
        let indexes = changes.iter().filter(is_index).count();
        assert!(indexes > 5, "{indexes} index files were written");
        let rebuilt = SimDisk::new(seed);
        for cut in 0..=changes.len() {
            let state = during(&rebuilt, changes.get(cut));
            for image in 0..IMAGES {
                let what = format!(
                    "SEED={seed}, cut at {cut} of {}, image {image}: {:?}",
                    changes.len(),
                    changes.get(cut).map(name)
                );
                let image = state.after_cut(seed * 1_000_003 + cut as u64 * IMAGES + image);
                cuts += check(&image, &history, cut, &what).await;
            }
            if let Some(change) = changes.get(cut) {
                rebuilt.replay(change);
            }
        }
    });
    (cuts, changes_made)
}

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
    for seed in seeds() {
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
fn a_seed_replays_equal() {
    let run = |seed| {
        let mut result = None;
        on_paused_time(async {
            let disk = SimDisk::new(seed);
            disk.start_recording();
            let history = Workload::new(seed, 300, 20).run(&disk).await;
            result = Some((disk.recorded(), history));
        });
        result.expect("ran")
    };
    let (changes, history) = run(11);
    let (again, history_again) = run(11);
    assert!(
        changes == again,
        "the same seed made other changes to the disk"
    );
    assert_eq!(history, history_again);
    let (other, _) = run(12);
    assert!(changes != other, "another seed made the same changes");
}

#[test]
fn a_killed_process_loses_nothing_that_was_written() {
    for seed in 1..=10 {
        on_paused_time(async {
            let disk = SimDisk::new(seed);
            let history = Workload::new(seed, 300, 20).run(&disk).await;
            let calls = usize::try_from(disk.calls()).expect("small");
            let killed = disk.after_kill();
            let first = opened(&killed, "after a kill").await;
            let found = first.found(&history).await;
            history.check(&found, calls, "after a kill");
            // What it shows is durable by then: the page cache it came from may go.
            let cut = opened(&killed.after_cut(seed), "after a kill and a cut").await;
            assert_eq!(cut.found(&history).await, found, "seed {seed}");
        });
    }
}

#[test]
fn a_flipped_bit_is_refused_or_told_and_never_read() {
    use rand::{RngExt, SeedableRng};
    let seed = 5;
    on_paused_time(async {
        let disk = SimDisk::new(seed);
        let history = Workload::new(seed, 400, 20).run(&disk).await;
        let calls = usize::try_from(disk.calls()).expect("small");
        let killed = Arc::new(disk.after_kill());
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let names = pulsegate::disk::Disk::list(&disk).expect("list");
        let (mut refused, mut told, mut unharmed, mut torn) = (0, 0, 0, 0);
        for _ in 0..400 {
            let disk = killed.fork();
            let name = &names[random.random_range(0..names.len())];
            let length = disk.content(name).map_or(0, |content| content.len());
            if length == 0 {
                continue;
            }
            disk.flip(
                name,
                random.random_range(0..length),
                random.random_range(0..8),
            );
            match open(&disk, 1, Latency::default()).await {
                Err(error) => {
                    assert!(
                        error.to_string().contains("damaged")
                            || error.to_string().contains("pulsegate"),
                        "{error}"
                    );
                    refused += 1;
                }
                Ok(opened) => match opened.try_found(&history).await {
                    Ok(found) => {
                        history.check_content(&found, &format!("flip in {name}"));
                        // The group written last may be a torn tail, and so be cut; any other is refused.
                        if history.is_complete(&found, calls) {
                            unharmed += 1;
                        } else {
                            torn += 1;
                        }
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("damaged"), "{error}");
                        told += 1;
                    }
                },
            }
        }
        println!(
            "{refused} refused at the start, {told} told by a read, {unharmed} without effect, {torn} in a torn tail"
        );
        assert!(
            refused > 20 && told > 20 && unharmed > 20 && torn < 10,
            "{refused} {told} {unharmed} {torn}"
        );
    });
}
