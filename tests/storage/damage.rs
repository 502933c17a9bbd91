//! Damage anywhere in a directory: what was known to be synced is refused with its file, or told by the read that meets it; the unsynced
//! tail is cut; nothing that comes back is anything but what was written; nothing panics; what `inspect` would say agrees; and a
//! repaired store starts again. `SEED=n` runs that seed alone, `SEEDS=n` so many.

use std::sync::Arc;

use pulsegate::disk::Disk;
use pulsegate::journal::audit::{Audit, read_superblock};
use pulsegate::journal::{JournalError, repair::repair};
use pulsegate::ledger::embedded::LedgerReplica;
use pulsegate::store::RecoverStoreError;
use pulsegate::testing::sim_disk::SimDisk;
use pulsegate::testing::sim_journal::Latency;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::workload::{History, Workload, on_paused_time, open};

/// Harms of each seed.
const HARMS: usize = 120;

/// How often what came of it.
#[derive(Debug, Default)]
struct Tally {
    refused: usize,
    told: usize,
    unharmed: usize,
    torn: usize,
    repaired: usize,
}

/// Does some harm; says what.
fn harm(disk: &SimDisk, random: &mut StdRng) -> Option<String> {
    let names = disk.list().expect("list");
    let name = names
        .get(random.random_range(0..names.len()))
        .expect("in range");
    let length = disk.content(name).map_or(0, |content| content.len());
    if length == 0 {
        return None;
    }
    let at = random.random_range(0..length);
    Some(match random.random_range(0..10) {
        0..5 => {
            disk.flip(name, at, random.random_range(0..8));
            format!("a bit of {name} at {at}")
        }
        5 => {
            let sector = at / 512 * 512;
            disk.overwrite(name, sector, &[0; 512]);
            format!("zeros in {name} at {sector}")
        }
        6 => {
            let count = random.random_range(1..2000);
            let bytes: Vec<u8> = (0..count).map(|_| random.random()).collect();
            disk.overwrite(name, at, &bytes);
            format!("{count} bytes of {name} at {at}")
        }
        7 => {
            // A write that went to the wrong place.
            let sectors = length / 512;
            let from = random.random_range(0..sectors.max(1)) * 512;
            let content = disk.content(name).expect("there");
            let sector = content.get(from..from + 512).unwrap_or_default().to_vec();
            let to = at / 512 * 512;
            disk.overwrite(name, to, &sector);
            format!("sector {from} of {name} at {to}")
        }
        8 => {
            disk.truncate(name, at);
            format!("{name} cut to {at}")
        }
        _ => {
            disk.remove(name).expect("remove");
            format!("{name} removed")
        }
    })
}

/// What a look at the store finds wrong, without opening it.
fn looked_at(disk: &SimDisk) -> Result<Vec<String>, JournalError> {
    let superblock = read_superblock(disk)?;
    let audit = Audit::read(disk, &superblock, LedgerReplica::detached())?;
    let mut places = Vec::new();
    audit.recovered.replica.visit(|ledger, index| {
        places.extend(
            (index.first()..)
                .zip(index.places())
                .map(|(entry, at)| (ledger, entry, at)),
        );
    });
    let damage = audit.verify(places)?;
    Ok(damage.into_iter().map(|damage| damage.what).collect())
}

async fn check(
    killed: &SimDisk,
    history: &History,
    calls: usize,
    random: &mut StdRng,
    tally: &mut Tally,
) {
    let disk = killed.fork();
    let Some(what) = harm(&disk, random) else {
        return;
    };
    let what = format!("SEED={}, {what}", history.seed);
    let before = contents(&disk);
    let looked = looked_at(&disk);
    assert!(
        contents(&disk) == before,
        "{what}: looking changed something"
    );
    match open(&disk, 1, Latency::default()).await {
        Err(RecoverStoreError::Journal(error)) => {
            named(&error, &what);
            looked.expect_err(&what);
            if try_repair(&disk, history, &what).await {
                tally.repaired += 1;
            }
            tally.refused += 1;
        }
        Err(other) => panic!("{what}: {other}"),
        Ok(opened) => match opened.try_found(history).await {
            Ok(found) => {
                history.check_content(&found, &what);
                // The group written last may be a torn tail, and so be cut; any other is refused.
                if history.is_complete(&found, calls) {
                    tally.unharmed += 1;
                } else {
                    tally.torn += 1;
                }
            }
            Err(error) => {
                assert!(
                    error.to_string().contains("damaged") || error.to_string().contains("segment-"),
                    "{what}: {error}"
                );
                let looked = looked.expect(&what);
                assert!(
                    !looked.is_empty(),
                    "{what}: a read fails and a look finds nothing"
                );
                tally.told += 1;
            }
        },
    }
}

/// An error says which file it is about.
fn named(error: &JournalError, what: &str) {
    let named = match error {
        JournalError::Damaged { file, .. } => ["superblock", "segment-", "checkpoint-"]
            .iter()
            .any(|known| file.starts_with(known)),
        JournalError::Foreign(_) | JournalError::TooNew(_) | JournalError::OtherCluster { .. } => {
            true
        }
        _ => false,
    };
    assert!(named, "{what}: {error}");
}

/// Repairs what can be; a repaired store starts, and has nothing that was never written.
async fn try_repair(disk: &SimDisk, history: &History, what: &str) -> bool {
    let Ok(superblock) = read_superblock(disk) else {
        return false;
    };
    let Ok(repairs) = repair(disk, &superblock, LedgerReplica::detached) else {
        return false;
    };
    assert!(
        !repairs.is_empty(),
        "{what}: refused, and nothing to repair"
    );
    let opened = open(disk, 1, Latency::default()).await;
    let opened = opened.unwrap_or_else(|error| panic!("{what}, repaired {repairs:?}: {error}"));
    if let Ok(found) = opened.try_found(history).await {
        history.check_content(&found, what);
    }
    for repair in repairs {
        for kept in repair.kept {
            assert!(disk.content(&kept).is_some(), "{what}: {kept} is not kept");
        }
    }
    true
}

fn contents(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let mut names = disk.list().expect("list");
    names.sort();
    names
        .into_iter()
        .map(|name| {
            let content = disk.content(&name).expect("listed");
            (name, content)
        })
        .collect()
}

fn run_seed(seed: u64, tally: &mut Tally) {
    on_paused_time(async {
        let disk = SimDisk::new(seed);
        let history = Workload::new(seed, 400, 20).run(&disk).await;
        let calls = usize::try_from(disk.calls()).expect("small");
        let killed = Arc::new(disk.after_kill());
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..HARMS {
            check(&killed, &history, calls, &mut random, tally).await;
        }
    });
}

#[test]
fn damage_is_refused_or_told_or_cut_and_never_read() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse().expect("a number"))
    };
    let seeds: Vec<u64> = match number("SEED") {
        Some(seed) => vec![seed],
        None => (5..5 + number("SEEDS").unwrap_or(4)).collect(),
    };
    let mut tally = Tally::default();
    for seed in &seeds {
        run_seed(*seed, &mut tally);
    }
    println!("{} seeds: {tally:?}", seeds.len());
    if seeds.len() >= 4 {
        let Tally {
            refused,
            told,
            unharmed,
            torn,
            repaired,
        } = tally;
        assert!(refused > 40 && told > 20 && unharmed > 40 && torn < refused && repaired > 10);
    }
}
