//! Random lives of a log, compared with a plain list of what it was told.

use proptest::prelude::*;
use pulsegate::journal::JournalError;
use pulsegate::ledger::LedgerError;
use pulsegate::managed_ledger::LogEnd;
use pulsegate::metadata::MetadataError;

use crate::stores::{Moment, WriterFault};
use crate::world::{World, on_paused_time, small_ledgers, until_stuck};

#[derive(Debug, Clone)]
enum Step {
    Append(usize),
    Settle,
    Read,
    FailWriter(usize, u64),
    FailCreate,
    FailMetadata(bool, bool),
    Roll,
    /// So many percent of what there is are acknowledged by all.
    Trim(usize),
    CrashIn(u64, bool),
    Crash,
    Restart,
    Terminate,
    Delete,
    Wait(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        30 => (1..9_usize).prop_map(Step::Append),
        12 => Just(Step::Settle),
        6 => Just(Step::Read),
        4 => (0..8_usize, 0..4_u64).prop_map(|(stored, untold)| Step::FailWriter(stored, untold)),
        2 => Just(Step::FailCreate),
        3 => (any::<bool>(), any::<bool>()).prop_map(|(lost, done)| Step::FailMetadata(lost, done)),
        3 => Just(Step::Roll),
        6 => (0..110_usize).prop_map(Step::Trim),
        6 => (0..12_u64, any::<bool>()).prop_map(|(calls, done)| Step::CrashIn(calls, done)),
        3 => Just(Step::Crash),
        3 => Just(Step::Restart),
        1 => Just(Step::Terminate),
        1 => Just(Step::Delete),
        3 => prop_oneof![Just(1), Just(11_000), Just(15_000_000)].prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..80)
}

fn moment(done: bool) -> Moment {
    if done { Moment::Done } else { Moment::NotDone }
}

async fn take(world: &mut World, step: Step) {
    match step {
        Step::Append(count) => {
            world.append(count);
        }
        Step::Settle => world.settle().await,
        Step::Read => {
            world.settle().await;
            if !world.faults.has_crashed() && world.log().end().is_none() {
                world.check().await;
            }
        }
        Step::FailWriter(stored, untold) => {
            world.faults.fail_writer(WriterFault { stored, untold });
        }
        Step::FailCreate => {
            let error = LedgerError::Journal(JournalError::NoSpace);
            world.faults.fail_create(error);
        }
        Step::FailMetadata(true, done) => {
            let lost = MetadataError::ConnectionLost;
            world.faults.fail_metadata(lost, moment(done));
        }
        Step::FailMetadata(false, _) => {
            world
                .faults
                .fail_metadata(MetadataError::Full, Moment::NotDone);
        }
        Step::Roll => world.log().roll(),
        Step::Trim(percent) => {
            world.settle().await;
            let told = &world.told.confirmed;
            let place = told.len() * percent / 100;
            let bound = told.get(place).or(told.last()).map(|(at, _)| *at);
            if percent >= 100 || bound.is_none() {
                world.told.consumed = world.told.consumed.max(told.last().map(|(at, _)| *at));
                world.log().trim(None);
            } else {
                world.told.consumed = world.told.consumed.max(bound);
                world.log().trim(bound);
            }
        }
        Step::CrashIn(calls, done) => world.faults.crash_in(calls, moment(done)),
        Step::Crash => {
            world.take_events();
            world.crash().await;
            world.check().await;
        }
        Step::Restart => {
            let log = world.log.as_mut().expect("open");
            if until_stuck(log.close()).await.is_none() {
                assert!(world.faults.has_crashed());
            }
            world.take_events();
            world.crash().await;
            world.check().await;
        }
        Step::Terminate => {
            world.log().terminate();
            world.settle().await;
        }
        Step::Delete => {
            world.settle().await;
            let log = world.log.take().expect("open");
            let deleted = until_stuck(log.delete()).await;
            world.faults.restart();
            // Cut off, it may not have begun. So it is done again.
            if !matches!(deleted, Some(Ok(()))) {
                pulsegate::managed_ledger::ManagedLedger::delete_closed(
                    &world.context,
                    &world.topic,
                )
                .await
                .expect("deleted");
            }
            assert!(world.ledgers_there().await.is_empty());
            world.told.confirmed.clear();
            world.told.pending.clear();
            world.told.unsure.clear();
            assert!(world.open().await);
        }
        Step::Wait(millis) => {
            world.clock.advance(millis);
            world.log().tick();
        }
    }
    if world.faults.has_crashed() {
        world.take_events();
        world.crash().await;
        world.check().await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_told_is_lost_or_moved_and_nothing_else_appears(
        steps in steps(),
        cache in prop_oneof![Just(0_u64), Just(400), Just(1 << 20)],
        keep in prop_oneof![Just(0_i64), Just(40), Just(1 << 20)],
    ) {
        on_paused_time(async {
            let settings = pulsegate::managed_ledger::LogSettings {
                keep_consumed_bytes: keep,
                ..small_ledgers()
            };
            let mut world = World::in_memory(settings, cache);
            assert!(world.open().await);
            for step in steps {
                take(&mut world, step).await;
                if matches!(world.log().end(), Some(LogEnd::Fenced | LogEnd::Failed(_))) {
                    panic!("nobody else is there: {:?}", world.log);
                }
            }
            world.settle().await;
            if world.faults.has_crashed() {
                world.crash().await;
            }
            world.check().await;
            world.crash().await;
            world.check().await;
        });
    }
}
