//! The process ends between any two steps of the metadata store and the ledger store.

use pulsegate::managed_ledger::{ManagedLedger, Position};

use crate::stores::Moment;
use crate::world::{World, on_paused_time, small_ledgers, until_stuck};

/// Some of everything. Ends early when the process has.
async fn life(world: &mut World) {
    if !world.open().await {
        return;
    }
    for round in 0..4 {
        if !world.append(4) {
            return;
        }
        world.settle().await;
        if world.faults.has_crashed() {
            return;
        }
        let value = Some(round.to_string());
        world
            .log()
            .set_properties(vec![("round".to_owned(), value)]);
        if round == 2 {
            let consumed = world.told.confirmed.get(5).map(|(at, _)| *at);
            world.told.consumed = consumed;
            world.log().trim(consumed);
        }
        world.settle().await;
        if world.faults.has_crashed() {
            return;
        }
    }
    world.log().terminate();
    world.settle().await;
}

async fn calls_of_a_life() -> u64 {
    let mut world = World::in_memory(small_ledgers(), 0);
    life(&mut world).await;
    assert!(!world.faults.has_crashed());
    world.check().await;
    world.faults.calls()
}

#[test]
fn a_crash_between_any_two_steps_loses_nothing_and_leaks_nothing() {
    on_paused_time(async {
        let calls = calls_of_a_life().await;
        assert!(calls > 20, "{calls}");
        for call in 0..calls {
            for moment in [Moment::NotDone, Moment::Done] {
                let mut world = World::in_memory(small_ledgers(), 0);
                world.faults.crash_in(call, moment);
                life(&mut world).await;
                assert!(world.faults.has_crashed(), "{call} {moment:?}");
                world.crash().await;
                world.check().await;
                if world.append(5) {
                    world.settle().await;
                    world.check().await;
                    world.assert_no_leak().await;
                }
            }
        }
    });
}

#[test]
fn a_crash_while_it_is_opened_again_loses_nothing_either() {
    on_paused_time(async {
        let calls = calls_of_a_life().await;
        for call in 0..calls {
            for again in 0..4 {
                for moment in [Moment::NotDone, Moment::Done] {
                    let mut world = World::in_memory(small_ledgers(), 0);
                    world.faults.crash_in(call, moment);
                    life(&mut world).await;
                    world.log = None;
                    world.faults.restart();
                    world.faults.crash_in(again, moment);
                    let pending = std::mem::take(&mut world.told.pending);
                    world.told.unsure.extend(pending.into_values());
                    if world.open().await {
                        world.reconcile().await;
                    }
                    world.crash().await;
                    world.check().await;
                }
            }
        }
    });
}

#[test]
fn a_deletion_that_is_cut_off_is_finished_later() {
    on_paused_time(async {
        for reopen in [true, false] {
            for call in 0..12 {
                for moment in [Moment::NotDone, Moment::Done] {
                    let mut world = World::in_memory(small_ledgers(), 0);
                    world.open().await;
                    world.append(8);
                    world.settle().await;
                    world.faults.crash_in(call, moment);
                    let log = world.log.take().expect("open");
                    let done = until_stuck(log.delete()).await;
                    assert_eq!(done.is_none(), world.faults.has_crashed());
                    world.faults.restart();
                    if !reopen {
                        ManagedLedger::delete_closed(&world.context, &world.topic)
                            .await
                            .expect("deleted");
                        assert!(world.ledgers_there().await.is_empty());
                        let node = world.metadata.get(&world.path).await;
                        assert_eq!(node.expect("read"), None);
                        continue;
                    }
                    assert!(world.open().await);
                    let marked = call > 0 || moment == Moment::Done;
                    if marked {
                        world.told.confirmed.clear();
                        world.told.consumed = Some(Position::new(i64::MAX, 0));
                    }
                    world.check().await;
                    world.assert_no_leak().await;
                    assert!(world.append(2));
                    world.settle().await;
                    world.check().await;
                }
            }
        }
    });
}
