//! A log over the embedded engine, whose disk loses power.

use std::sync::Arc;

use pulsegate::disk::Disk;
use pulsegate::journal::JournalSettings;
use pulsegate::ledger::embedded::Reads;
use pulsegate::ledger::{EmbeddedStore, LedgerStore};
use pulsegate::managed_ledger::LogSettings;
use pulsegate::testing::sim_disk::{Fault, SimDisk};
use pulsegate::testing::sim_journal::{Latency, SimDriver};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::stores::{Faults, FaultyLedgers};
use crate::world::{World, on_paused_time, small_ledgers};

struct Machine {
    disk: SimDisk,
    driver: tokio::task::AbortHandle,
    store: EmbeddedStore,
}

async fn start(disk: SimDisk, seed: u64) -> Machine {
    let settings = JournalSettings {
        block: 512,
        segment_size: 16 << 10,
        group_max: 4 << 10,
        ..JournalSettings::new("test", [9; 16], 1_800_000_000)
    };
    let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let (store, journal) =
        EmbeddedStore::recover_from(as_disk, &settings, Reads::Inline).expect("store");
    let (driver, opened) = SimDriver::new(journal, seed, Latency::default());
    let driver = tokio::task::spawn_local(driver.run()).abort_handle();
    opened.await.expect("driver").expect("opened");
    Machine {
        disk,
        driver,
        store,
    }
}

fn give(world: &mut World, machine: &Machine, faults: &Faults) {
    let store: Arc<dyn LedgerStore> = Arc::new(machine.store.clone());
    world.ledgers = Arc::clone(&store);
    world.context.ledgers = Arc::new(FaultyLedgers {
        store,
        faults: faults.clone(),
    });
}

/// Metadata survive as answered; what was asked for and not answered has happened or not.
async fn live_and_lose_power(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut machine = start(SimDisk::new(seed), seed).await;
    let faults = Faults::default();
    let store: Arc<dyn LedgerStore> = Arc::new(machine.store.clone());
    let settings = LogSettings {
        max_entries: 10,
        ..small_ledgers()
    };
    let cache = random.random_range(0..3) * 500;
    let mut world = World::over(Arc::clone(&store), store, faults.clone(), settings, cache);
    give(&mut world, &machine, &faults);
    assert!(world.open().await);
    for life in 0..4 {
        for _ in 0..random.random_range(1..60) {
            match random.random_range(0..20) {
                0..13 => {
                    world.append(random.random_range(1..6));
                }
                13..16 => world.settle().await,
                16 => world.log().roll(),
                17 => {
                    world.take_events();
                    let told = &world.told.confirmed;
                    let bound = told.get(told.len() / 2).map(|(at, _)| *at);
                    if bound.is_some() {
                        world.told.consumed = world.told.consumed.max(bound);
                        world.log().trim(bound);
                    }
                }
                _ => {
                    let pause = std::time::Duration::from_micros(random.random_range(0..3000));
                    let log = world.log.as_mut().expect("open");
                    let _ = tokio::time::timeout(pause, log.settled()).await;
                    world.take_events();
                }
            }
        }
        // Power goes; what the log knows from before counts, and nothing that it would be told from now on.
        world.take_events();
        machine.driver.abort();
        let cut = machine.disk.after_cut(seed ^ life);
        world.log = None;
        machine = start(cut, seed + life).await;
        give(&mut world, &machine, &faults);
        world.crash().await;
        world.check().await;
    }
    machine.driver.abort();
}

#[test]
fn what_was_told_is_there_after_power_was_lost() {
    for seed in 0..60 {
        on_paused_time(live_and_lose_power(seed));
    }
}

#[test]
fn a_failed_sync_ends_the_log_and_nothing_told_is_lost() {
    on_paused_time(async {
        let machine = start(SimDisk::new(5), 5).await;
        let faults = Faults::default();
        let store: Arc<dyn LedgerStore> = Arc::new(machine.store.clone());
        let mut world = World::over(
            Arc::clone(&store),
            store,
            faults.clone(),
            small_ledgers(),
            0,
        );
        assert!(world.open().await);
        assert!(world.append(5));
        world.settle().await;
        assert_eq!(world.told.confirmed.len(), 5);
        machine.disk.fail_call(machine.disk.calls() + 3, Fault::Io);
        for _ in 0..10 {
            world.append(2);
            world.settle().await;
        }
        let end = world.log().end().cloned();
        assert!(
            matches!(end, Some(pulsegate::managed_ledger::LogEnd::Failed(_))),
            "{end:?}"
        );
        assert!(world.told.pending.is_empty(), "all are told of");
        let machine = start(machine.disk.after_cut(1), 6).await;
        give(&mut world, &machine, &faults);
        world.crash().await;
        world.check().await;
        machine.driver.abort();
    });
}
