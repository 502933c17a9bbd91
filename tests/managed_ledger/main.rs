//! The managed ledger's log over ledger and metadata stores: what it promises when writers fail, processes end, others take over.

mod crashes;
mod embedded;
mod model;
mod stores;
mod world;

use std::sync::Arc;

use bytes::Bytes;
use pulsegate::journal::JournalError;
use pulsegate::ledger::{
    CursorName, CursorStore, CursorUpdate, LedgerError, LedgerId, LedgerOptions, MemoryStore,
};
use pulsegate::managed_ledger::formats::ManagedCursorInfo;
use pulsegate::managed_ledger::{
    AppendError, EntryRange, LogEnd, LogEvent, LogRead, ManagedLedger, OpenError, Position,
    ReadBudget, ReadError, Retention,
};
use pulsegate::metadata::{Message, MetadataError};

use self::stores::{Moment, WriterFault};
use self::world::{World, entry, on_paused_time, small_ledgers, until_stuck};

async fn opened() -> World {
    let mut world = World::in_memory(small_ledgers(), 0);
    assert!(world.open().await);
    world
}

async fn written(count: usize) -> World {
    let mut world = opened().await;
    assert!(world.append(count));
    world.settle().await;
    world.check().await;
    world
}

fn ledger_ids(world: &mut World) -> Vec<i64> {
    let ledgers = world.log().stats().ledgers.into_iter();
    ledgers.map(|ledger| ledger.ledger_id).collect()
}

async fn ended(world: &mut World) -> LogEnd {
    loop {
        let event = until_stuck(world.log().next_event()).await;
        if let LogEvent::Ended(end) = event.expect("it ends") {
            return end;
        }
    }
}

#[test]
fn a_log_at_rest_takes_little() {
    // What it points to at rest: one reader (its view, its part of the cache), a list of one ledger.
    let bytes = size_of::<ManagedLedger>() + size_of::<pulsegate::managed_ledger::LogReader>();
    assert!(bytes <= 1536, "{bytes}");
}

#[test]
fn a_new_log_has_a_position_and_goes_on_over_ledgers() {
    on_paused_time(async {
        let mut world = opened().await;
        let [first] = ledger_ids(&mut world)[..] else {
            panic!("one ledger");
        };
        assert_eq!(world.log().view().last_confirmed(), Position::before(first));
        assert_eq!(world.log().view().first_position(), Position::new(first, 0));
        assert!(world.append(10));
        world.settle().await;
        world.check().await;
        let stats = world.log().stats();
        assert_eq!((stats.entries_added, stats.entries), (10, 10));
        assert_eq!(stats.state, "LedgerOpened");
        let entries: Vec<i64> = stats.ledgers.iter().map(|ledger| ledger.entries).collect();
        assert_eq!(entries, [3, 3, 3, 0], "the open one is not counted there");
        assert_eq!(stats.current_ledger_entries, 1);
        let bytes: usize = (0..10).map(|number| entry(number).len()).sum();
        assert_eq!(stats.bytes, i64::try_from(bytes).expect("few"));
    });
}

#[test]
fn rolls_by_entries_bytes_and_time_but_not_before_the_minimum_age() {
    on_paused_time(async {
        let mut settings = small_ledgers();
        settings.min_rollover_millis = 1000;
        settings.max_rollover_millis = 5000;
        settings.max_bytes = 100;
        let mut world = World::in_memory(settings, 0);
        world.open().await;
        world.append(10);
        world.settle().await;
        assert_eq!(ledger_ids(&mut world).len(), 1, "too young");
        world.clock.advance(1001);
        world.log().tick();
        world.settle().await;
        assert_eq!(ledger_ids(&mut world).len(), 2, "entries");
        world.settings.max_entries = 1000;
        world.log = None;
        world.open().await;
        world.append(1);
        world.settle().await;
        let before = ledger_ids(&mut world).len();
        world.clock.advance(1001);
        world.append(9);
        world.settle().await;
        assert_eq!(ledger_ids(&mut world).len(), before + 1, "bytes");
        world.append(1);
        world.settle().await;
        let before = ledger_ids(&mut world).len();
        world.clock.advance(4999);
        world.log().tick();
        world.settle().await;
        assert_eq!(ledger_ids(&mut world).len(), before);
        world.clock.advance(1);
        world.log().tick();
        world.settle().await;
        assert_eq!(ledger_ids(&mut world).len(), before + 1, "age");
        world.clock.advance(50_000);
        world.log().tick();
        world.settle().await;
        assert_eq!(
            ledger_ids(&mut world).len(),
            before + 1,
            "an empty one stays"
        );
        world.check().await;
    });
}

#[test]
fn what_a_failed_writer_did_not_confirm_is_written_again_in_order() {
    on_paused_time(async {
        for stored in 0..5 {
            for untold in 0..3 {
                let mut settings = small_ledgers();
                settings.max_entries = 1000;
                let mut world = World::in_memory(settings, 0);
                world.open().await;
                world.faults.fail_writer(WriterFault { stored, untold });
                assert!(world.append(2) && world.append(2) && world.append(1));
                assert!(world.append(3), "taken while the next ledger is made");
                world.settle().await;
                assert_eq!(world.told.confirmed.len(), 8);
                let numbers = world.told.confirmed.iter().zip(0..);
                for ((_, payload), number) in numbers {
                    assert_eq!(*payload, entry(number));
                }
                world.check().await;
                assert!(world.append(2));
                world.settle().await;
                world.check().await;
                world.assert_no_leak().await;
            }
        }
    });
}

#[test]
fn who_finds_another_list_is_fenced_and_the_other_has_everything() {
    on_paused_time(async {
        let mut world = written(4).await;
        let old = world.log.take();
        assert!(world.open().await);
        world.reconcile().await;
        let new = std::mem::replace(&mut world.log, old);
        // Its writer may know or not.
        world.append(1);
        assert!(matches!(ended(&mut world).await, LogEnd::Fenced));
        let refused = world.log().append(&[entry(0)]);
        assert!(matches!(refused, Err(AppendError::Ended(LogEnd::Fenced))));
        world.log = new;
        world.told.pending.clear();
        assert!(world.append(3));
        world.settle().await;
        world.check().await;
        world.assert_no_leak().await;
    });
}

#[test]
fn a_list_that_somebody_else_wrote_fences_at_the_next_ledger() {
    on_paused_time(async {
        let mut world = written(2).await;
        let node = world
            .metadata
            .get(&world.path)
            .await
            .expect("read")
            .expect("listed");
        let any = pulsegate::metadata::Expected::Any;
        world
            .metadata
            .put(&world.path, node.value, any)
            .await
            .expect("written");
        assert!(world.append(4));
        assert!(matches!(ended(&mut world).await, LogEnd::Fenced));
        world.settle().await;
        world.crash().await;
        world.check().await;
    });
}

#[test]
fn an_answer_that_is_lost_is_looked_up() {
    on_paused_time(async {
        for moment in [Moment::Done, Moment::NotDone] {
            let mut world = written(2).await;
            world
                .faults
                .fail_metadata(MetadataError::ConnectionLost, moment);
            assert!(world.append(5));
            world.settle().await;
            assert_eq!(world.told.confirmed.len(), 7);
            world.check().await;
            world.assert_no_leak().await;
        }
    });
}

#[test]
fn without_a_ledger_appends_are_refused_and_later_tried_again() {
    on_paused_time(async {
        let mut world = written(2).await;
        world
            .faults
            .fail_create(LedgerError::Journal(JournalError::NoSpace));
        assert!(world.append(5), "the first is written");
        world.settle().await;
        assert_eq!(
            (world.told.confirmed.len(), world.told.pending.len()),
            (3, 0)
        );
        world.check().await;
        assert!(world.log().stats().ledger_creation_failed_at.is_some());
        let refused = world.log().append(&[entry(0)]);
        assert!(matches!(refused, Err(AppendError::TryLater)), "{refused:?}");
        world.clock.advance(10_000);
        assert!(world.append(5));
        world.settle().await;
        assert_eq!(world.told.confirmed.len(), 8);
        world.check().await;
        world
            .faults
            .fail_metadata(MetadataError::Full, Moment::NotDone);
        assert!(world.append(3));
        world.settle().await;
        world.clock.advance(10_000);
        world.log().tick();
        assert!(world.append(3));
        world.settle().await;
        world.check().await;
        world.assert_no_leak().await;
    });
}

#[test]
fn what_is_consumed_goes_by_whole_ledgers_but_the_last() {
    on_paused_time(async {
        let mut world = written(8).await;
        let fifth = world.told.confirmed[4].0;
        world.log().trim(Some(fifth));
        world.told.consumed = Some(fifth);
        world.settle().await;
        world.check().await;
        assert_eq!(
            world.read_all().await.len(),
            5,
            "the second ledger has one more"
        );
        world.assert_no_leak().await;
        world.log().trim(None);
        world.told.consumed = Some(Position::new(i64::MAX, 0));
        world.settle().await;
        world.check().await;
        world.assert_no_leak().await;
        assert_eq!(ledger_ids(&mut world).len(), 1);
        let last = world.log().view().last_confirmed();
        world.log().close().await;
        world.log = None;
        world.open().await;
        assert_eq!(world.log().view().last_confirmed(), last);
        // Nothing is written, so another ledger has to come before this one can go.
        world.log().trim(None);
        world.settle().await;
        world.log().trim(None);
        world.settle().await;
        let view = world.log().view();
        assert_eq!(view.last_confirmed(), last, "positions never go back");
        assert!(!view.contains(last) && view.next_valid(last) > last);
        assert!(world.append(1));
        world.settle().await;
        world.check().await;
        world.assert_no_leak().await;
    });
}

#[test]
fn retention_keeps_what_is_consumed_for_its_time_and_within_its_size() {
    on_paused_time(async {
        let mut world = written(8).await;
        world.told.consumed = Some(Position::new(i64::MAX, 0));
        let hour = 3_600_000;
        world.log().set_retention(Retention {
            millis: hour,
            bytes: -1,
        });
        world.log().trim(None);
        world.settle().await;
        assert_eq!(ledger_ids(&mut world).len(), 3);
        world.clock.advance(hour + 1);
        let total = world.log().stats().bytes;
        world.log().set_retention(Retention {
            millis: -1,
            bytes: total,
        });
        world.log().trim(None);
        world.settle().await;
        assert_eq!(ledger_ids(&mut world).len(), 3);
        world.log().set_retention(Retention {
            millis: -1,
            bytes: total / 2,
        });
        world.log().trim(None);
        world.settle().await;
        assert_eq!(ledger_ids(&mut world).len(), 2);
        world.log().set_retention(Retention {
            millis: hour,
            bytes: -1,
        });
        world.log().trim(None);
        world.settle().await;
        assert_eq!(ledger_ids(&mut world).len(), 1);
        world.check().await;
    });
}

#[test]
fn the_beginning_of_a_long_ledger_goes_and_is_found_to_be_gone_after_a_restart() {
    on_paused_time(async {
        let mut settings = small_ledgers();
        settings.max_entries = 1000;
        settings.keep_consumed_bytes = 100;
        let mut world = World::in_memory(settings, 0);
        world.open().await;
        world.append(40);
        world.settle().await;
        let consumed = world.told.confirmed[34].0;
        world.log().trim(Some(consumed));
        world.told.consumed = Some(consumed);
        world.settle().await;
        world.check().await;
        let first = world.log().view().first_position();
        assert!(first.entry_id > 20 && first <= consumed, "{first}");
        let gone = EntryRange {
            ledger_id: first.ledger_id,
            entries: 0..1,
        };
        let budget = ReadBudget {
            entries: 1,
            bytes: 1,
        };
        let reader = Arc::clone(world.log().reader());
        let read = reader.read(std::slice::from_ref(&gone), budget).await;
        assert!(matches!(read, Err(ReadError::Trimmed(_))), "{read:?}");
        world.crash().await;
        assert_eq!(world.log().view().first_position(), first);
        world.check().await;
    });
}

#[test]
fn a_terminated_log_keeps_what_it_has_and_takes_nothing_more() {
    on_paused_time(async {
        let mut world = opened().await;
        assert!(world.append(4));
        world.log().terminate();
        assert!(!world.append(1));
        world.settle().await;
        world.settle().await;
        let last = world.told.confirmed[3].0;
        let end = world.log().end().cloned();
        assert!(
            matches!(end, Some(LogEnd::Terminated(at)) if at == last),
            "{end:?}"
        );
        assert_eq!(world.log().view().terminated(), Some(last));
        world.check().await;
        let request = world
            .log()
            .set_properties(vec![("a".into(), Some("b".into()))]);
        let told = until_stuck(world.log().next_event()).await;
        assert!(
            matches!(told, Some(LogEvent::Properties { request: told, result: Ok(()) }) if told == request)
        );
        world.crash().await;
        assert!(!world.append(1));
        assert_eq!(world.log().view().terminated(), Some(last));
        assert_eq!(world.log().stats().state, "Terminated");
        world.check().await;
    });
}

#[test]
fn properties_and_the_index_outlive_restarts_and_trimming() {
    on_paused_time(async {
        let mut world = written(2).await;
        world.log().set_index(17);
        let set = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
        world
            .log()
            .set_properties(vec![set("a", Some("1")), set("b", Some("2"))]);
        world.log().set_properties(vec![set("b", None)]);
        world.settle().await;
        world.crash().await;
        assert_eq!(world.log().listed_index(), Some(17));
        let properties: Vec<_> = world.log().properties().collect();
        assert_eq!(properties, [("a", "1"), ("index", "17")]);
        world.log().set_index(23);
        world.append(7);
        world.settle().await;
        world.log().trim(None);
        world.told.consumed = Some(Position::new(i64::MAX, 0));
        world.settle().await;
        world.crash().await;
        assert_eq!(world.log().listed_index(), Some(23));
    });
}

#[test]
fn a_closed_log_opens_without_recovering_and_goes_on() {
    on_paused_time(async {
        let mut world = written(4).await;
        world.log().close().await;
        assert!(matches!(world.log().end(), Some(LogEnd::Closed)));
        assert!(!world.append(1));
        let calls = world.faults.calls();
        world.log = None;
        assert!(world.open().await);
        assert_eq!(world.faults.calls(), calls, "nothing had to be changed");
        world.check().await;
        assert_eq!(world.log().stats().state, "ClosedLedger");
        assert!(world.append(4));
        world.settle().await;
        world.check().await;
        world.assert_no_leak().await;
    });
}

#[test]
fn a_deleted_log_leaves_nothing_and_begins_anew() {
    on_paused_time(async {
        let mut world = written(8).await;
        let cursor = world.path.child("sub").expect("name");
        let any = pulsegate::metadata::Expected::Any;
        let nothing = bytes::Bytes::new();
        world
            .metadata
            .put(&cursor, nothing, any)
            .await
            .expect("cursor");
        let last = world.log().view().last_confirmed();
        let log = world.log.take().expect("open");
        log.delete().await.expect("deleted");
        assert!(world.ledgers_there().await.is_empty());
        assert_eq!(world.metadata.get(&world.path).await.expect("read"), None);
        assert_eq!(world.metadata.get(&cursor).await.expect("read"), None);
        ManagedLedger::delete_closed(&world.context, &world.topic)
            .await
            .expect("deleting twice is as deleting once");
        let missing =
            ManagedLedger::open(&world.context, &world.topic, small_ledgers(), false).await;
        assert!(matches!(missing, Err(OpenError::NotFound)));
        world.told.confirmed.clear();
        assert!(world.open().await);
        assert!(
            world.log().view().last_confirmed() > last,
            "positions rise over deletion"
        );
        assert!(world.append(2));
        world.settle().await;
        world.check().await;
    });
}

#[test]
fn a_deleted_log_takes_its_cursors_with_it() {
    on_paused_time(async {
        let mut world = World::in_memory(small_ledgers(), 0);
        let cursors = Arc::new(MemoryStore::default());
        world.context.cursors = Some(Arc::clone(&cursors) as _);
        assert!(world.open().await);
        let name = CursorName {
            topic: "persistent://t/n/x".into(),
            cursor: "a/b".into(),
        };
        let (_, mut writer) = cursors.open_cursor(&name).await.expect("cursor");
        let state = Bytes::from_static(b"state");
        writer
            .append(CursorUpdate::Snapshot(state))
            .expect("written");
        let ledger = world.ledgers.create(LedgerOptions::default()).await;
        let ledger = ledger.expect("a cursor's ledger").id();
        let info = ManagedCursorInfo {
            cursors_ledger_id: i64::try_from(ledger.0).expect("id"),
            ..ManagedCursorInfo::default()
        };
        for (cursor, value) in [("a%2Fb", Vec::new()), ("c", info.encode())] {
            let node = world.path.child(cursor).expect("name");
            let any = pulsegate::metadata::Expected::Any;
            let put = world.metadata.put(&node, value.into(), any).await;
            put.expect("a cursor's node");
        }
        let log = world.log.take().expect("open");
        log.delete().await.expect("deleted");
        let (state, _) = cursors.open_cursor(&name).await.expect("cursor");
        assert_eq!(state, pulsegate::ledger::CursorState::default());
        let opened = world.ledgers.open(ledger).await;
        assert!(matches!(opened, Err(LedgerError::NoLedger(_))));
        let left = world.metadata.children(&world.path).await.expect("read");
        assert!(left.is_empty());
    });
}

#[test]
fn a_listed_ledger_that_does_not_exist_is_left_out_if_it_was_the_last() {
    on_paused_time(async {
        let mut world = written(7).await;
        let open = *ledger_ids(&mut world).last().expect("open");
        let lost = world.told.confirmed.pop();
        world.log = None;
        let id = LedgerId(u64::try_from(open).expect("id"));
        world.ledgers.delete(id).await.expect("deleted");
        assert!(world.open().await);
        world.check().await;
        assert!(lost.is_some() && !ledger_ids(&mut world).contains(&open));
    });
}
