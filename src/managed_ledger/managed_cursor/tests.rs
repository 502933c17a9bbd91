//! What each form of a cursor does and leaves behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::ledger::{CursorUpdate, LedgerId, LedgerOptions, LedgerStore as _, MemoryStore};
use crate::managed_ledger::formats::{ManagedCursorInfo, PositionInfo, decode_node, encode_node};
use crate::managed_ledger::{HolesForm, StartAt};
use crate::metadata::{Expected, MemoryMetadata, Message, SystemClock};

pub(super) fn on_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    runtime.block_on(test);
}

pub(super) fn id() -> CursorId {
    CursorId {
        topic: TopicName::parse("persistent://tenant/namespace/topic").expect("a topic"),
        cursor: "sub/1".to_owned(),
    }
}

/// A store in memory: what is written is durable at once, so that a crash is an end without close.
pub(super) struct Store {
    ledgers: MemoryStore,
    pub(super) storage: Arc<CursorStorage>,
}

fn settings() -> CursorLedgerSettings {
    CursorLedgerSettings {
        entries_max: 7,
        node_ranges_max: 2,
        ..CursorLedgerSettings::default()
    }
}

pub(super) fn store(in_ledgers: Option<HolesForm>) -> Store {
    let metadata = MemoryMetadata::new(Arc::new(SystemClock::new()));
    let metadata = LocalMetadata::new(Arc::new(metadata.connect()));
    let ledgers = MemoryStore::default();
    let form = match in_ledgers {
        None => CursorForm::ChangeLog(Arc::new(ledgers.clone())),
        Some(holes) => CursorForm::CursorLedger(Arc::new(CursorLedgers {
            store: Arc::new(ledgers.clone()),
            options: LedgerOptions::default(),
            settings: CursorLedgerSettings {
                holes,
                ..settings()
            },
        })),
    };
    let compression = NodeCompression::NEVER;
    let storage = Arc::new(CursorStorage {
        metadata,
        compression,
        form,
    });
    Store { ledgers, storage }
}

pub(super) fn stores() -> [Store; 3] {
    [None, Some(HolesForm::Ranges), Some(HolesForm::BitSets)].map(store)
}

impl Store {
    pub(super) async fn create(&self, mark_delete: Position) -> ManagedCursor {
        let state = CursorState::new(mark_delete);
        ManagedCursor::create(Arc::clone(&self.storage), &id(), state, 1)
            .await
            .expect("created")
    }

    pub(super) async fn open(&self, log: &LogExtent) -> ManagedCursor {
        let (cursor, recovered) = ManagedCursor::open(Arc::clone(&self.storage), &id(), log)
            .await
            .expect("opened");
        assert!(matches!(recovered, Recovered::Whole), "{recovered:?}");
        cursor
    }

    async fn node(&self) -> Option<ManagedCursorInfo> {
        let path = path(&id()).expect("a path");
        let node = self.storage.metadata.get(&path).await.expect("read")?;
        Some(decode_node(&node.value).expect("a cursor's node"))
    }

    async fn put_node(&self, info: &ManagedCursorInfo) {
        let path = path(&id()).expect("a path");
        let value = encode_node(info, NodeCompression::NEVER).expect("written");
        let put = self.storage.metadata.put(&path, value, Expected::Any).await;
        put.expect("put");
    }

    async fn is_ledger(&self, ledger: u64) -> bool {
        self.ledgers.open(LedgerId(ledger)).await.is_ok()
    }
}

/// What there is: a ledger of 12 entries.
fn log() -> LogExtent {
    LogExtent::new([(3, 12)])
}

#[test]
fn a_cursor_is_made_once_and_opened_when_it_is_there() {
    for store in stores() {
        on_runtime(async {
            let log = log();
            let missing = ManagedCursor::open(Arc::clone(&store.storage), &id(), &log).await;
            let error = missing.expect_err("none");
            assert!(matches!(error, CursorError::NotFound), "{error}");
            let first = store.create(Position::new(3, 4)).await;
            let state = CursorState::new(Position::before(3));
            let again = ManagedCursor::create(Arc::clone(&store.storage), &id(), state, 1).await;
            let error = again.expect_err("there");
            assert!(matches!(error, CursorError::AlreadyExists), "{error}");
            assert_eq!(first.state().mark_delete(), Position::new(3, 4));
            let node = store.node().await.expect("a node");
            assert_eq!(
                (node.cursors_ledger_id, node.mark_delete_entry_id),
                (-1, Some(4))
            );
            drop(first);
            let opened = store.open(&log).await;
            assert_eq!(opened.state().mark_delete(), Position::new(3, 4));
        });
    }
}

#[test]
fn who_opened_it_before_is_fenced() {
    for store in stores() {
        on_runtime(async {
            let log = log();
            let mut first = store.create(Position::before(3)).await;
            first.acknowledge(Position::new(3, 5), &log).expect("works");
            first.settled(1).await.expect("durable");
            let mut second = store.open(&log).await;
            second
                .acknowledge(Position::new(3, 6), &log)
                .expect("works");
            second.settled(2).await.expect("durable");
            first
                .acknowledge(Position::new(3, 7), &log)
                .expect("applied");
            let error = first.settled(9000).await.expect_err("fenced");
            assert!(
                matches!(error, CursorError::Failed(CursorFailure::Fenced)),
                "{error}"
            );
            assert!(first.failure().is_some());
            first
                .acknowledge(Position::new(3, 8), &log)
                .expect_err("poisoned");
            let third = store.open(&log).await;
            assert!(third.state().is_acknowledged(Position::new(3, 6)));
            assert!(!third.state().is_acknowledged(Position::new(3, 7)));
        });
    }
}

#[test]
fn a_deleted_cursor_fails_for_who_has_it_open() {
    for store in stores() {
        on_runtime(async {
            let log = log();
            let mut cursor = store.create(Position::before(3)).await;
            cursor
                .acknowledge(Position::new(3, 5), &log)
                .expect("works");
            cursor.settled(1).await.expect("durable");
            ManagedCursor::delete(&store.storage, &id())
                .await
                .expect("deleted");
            assert!(store.node().await.is_none());
            cursor
                .acknowledge(Position::new(3, 7), &log)
                .expect("applied");
            cursor.settled(9000).await.expect_err("deleted");
            assert!(store.node().await.is_none(), "it does not come back");
        });
    }
}

#[test]
fn deltas_do_not_outgrow_what_they_are_added_to() {
    on_runtime(async {
        let store = store(None);
        let log = LogExtent::new([(3, 100_000)]);
        let mut cursor = store.create(Position::before(3)).await;
        for round in 0..50 {
            for entry in 0..100 {
                let position = Position::new(3, 1 + 2 * (round * 100 + entry));
                cursor.acknowledge(position, &log).expect("works");
            }
            cursor.flush(1, Flush::Now).expect("works");
        }
        cursor.settled(1).await.expect("durable");
        let CursorForm::ChangeLog(cursors) = &store.storage.form else {
            panic!("another form")
        };
        let (stored, _) = cursors.open_cursor(&name(&id())).await.expect("open");
        let deltas: usize = stored.deltas.iter().map(Bytes::len).sum();
        let snapshot = stored.snapshot.expect("a snapshot").len();
        assert!(stored.deltas.len() < 50);
        assert!(
            deltas <= snapshot + 512,
            "{deltas} bytes of deltas behind {snapshot}"
        );
        assert!(snapshot < 2000, "5,000 holes take {snapshot} bytes");
    });
}

#[test]
fn a_damaged_change_log_is_told_and_not_opened() {
    on_runtime(async {
        let store = store(None);
        drop(store.create(Position::before(3)).await);
        let CursorForm::ChangeLog(cursors) = &store.storage.form else {
            panic!("another form")
        };
        let (_, mut writer) = cursors.open_cursor(&name(&id())).await.expect("open");
        let delta = CursorUpdate::Delta(Bytes::from_static(b"something else"));
        writer.append(delta).expect("append");
        let opened = ManagedCursor::open(Arc::clone(&store.storage), &id(), &log()).await;
        let error = opened.expect_err("damaged");
        assert!(
            matches!(error, CursorError::Record(CursorRecordError::Checksum)),
            "{error}"
        );
    });
}

#[test]
fn the_nodes_of_another_store_are_taken_over_by_the_change_log() {
    on_runtime(async {
        let store = store(None);
        let log = log();
        let mut info = CursorState::new(Position::new(3, 2)).to_node(5);
        store.put_node(&info).await;
        let mut cursor = store.open(&log).await;
        assert_eq!(cursor.state().mark_delete(), Position::new(3, 2));
        cursor
            .acknowledge(Position::new(3, 3), &log)
            .expect("works");
        cursor.settled(6).await.expect("durable");
        drop(cursor);
        assert_eq!(
            store.open(&log).await.state().mark_delete(),
            Position::new(3, 3)
        );
        info.cursors_ledger_id = 77;
        store.put_node(&info).await;
        let opened = ManagedCursor::open(Arc::clone(&store.storage), &id(), &log).await;
        let error = opened.expect_err("elsewhere");
        assert!(matches!(error, CursorError::OtherForm(77)), "{error}");
    });
}

#[test]
fn a_cursor_ledger_comes_with_the_first_write_and_goes_with_the_close() {
    on_runtime(async {
        let store = store(Some(HolesForm::Ranges));
        let log = log();
        let mut cursor = store.create(Position::before(3)).await;
        let view = LogView::new(log.clone(), Position::new(3, 11), None);
        assert_eq!(
            (cursor.stats(&view).cursor_ledger, cursor.stats(&view).state),
            (-1, "NoLedger")
        );
        cursor
            .acknowledge(Position::new(3, 5), &log)
            .expect("works");
        cursor.settled(7).await.expect("durable");
        let ledger = store.node().await.expect("a node").cursors_ledger_id;
        let stats = cursor.stats(&view);
        assert_eq!(
            (stats.cursor_ledger, stats.cursor_ledger_last_entry),
            (ledger, 0)
        );
        assert_eq!(
            (stats.state, stats.last_ledger_switch_timestamp),
            ("Open", 7)
        );
        let first = u64::try_from(ledger).expect("a ledger");
        for entry in [0, 1, 2, 3, 6, 7] {
            cursor
                .acknowledge(Position::new(3, entry), &log)
                .expect("works");
            cursor.settled(8).await.expect("durable");
        }
        assert_eq!(cursor.stats(&view).cursor_ledger_last_entry, 6);
        cursor
            .acknowledge(Position::new(3, 9), &log)
            .expect("works");
        cursor.settled(8).await.expect("durable");
        let second = store.node().await.expect("a node").cursors_ledger_id;
        assert_ne!(second, ledger, "it was full");
        assert!(!store.is_ledger(first).await, "nobody needs it");
        cursor
            .acknowledge(Position::new(3, 11), &log)
            .expect("works");
        cursor.settled(8 + 14_400_000).await.expect("durable");
        let third = store.node().await.expect("a node").cursors_ledger_id;
        assert_ne!(third, second, "it was old");
        assert_eq!(
            cursor.individually_deleted_messages(9),
            "[(3:4..3:7],(3:8..3:9],(3:10..3:11]]"
        );
        cursor
            .acknowledge(Position::new(3, 4), &log)
            .expect("works");
        cursor.close(9).await.expect("closed");
        let node = store.node().await.expect("a node");
        assert_eq!(
            (
                node.cursors_ledger_id,
                node.individual_deleted_messages.len()
            ),
            (-1, 2)
        );
        assert!(
            !store
                .is_ledger(u64::try_from(third).expect("a ledger"))
                .await
        );
        assert_eq!(
            store.open(&log).await.state().mark_delete(),
            Position::new(3, 7)
        );
    });
}

#[test]
fn a_cursor_with_many_holes_stays_in_its_ledger_when_it_is_closed() {
    on_runtime(async {
        let store = store(Some(HolesForm::BitSets));
        let log = LogExtent::new([(3, 100)]);
        let mut cursor = store.create(Position::before(3)).await;
        (1..99).step_by(2).for_each(|entry| {
            cursor
                .acknowledge(Position::new(3, entry), &log)
                .expect("works");
        });
        cursor.close(9).await.expect("closed");
        let node = store.node().await.expect("a node");
        assert!(node.cursors_ledger_id > 0 && node.individual_deleted_messages.is_empty());
        assert_eq!(store.open(&log).await.state().backlog(&log), 51);
    });
}

#[test]
fn a_lost_cursor_ledger_rolls_the_cursor_back_to_its_node() {
    on_runtime(async {
        let store = store(Some(HolesForm::Ranges));
        let log = log();
        let mut cursor = store.create(Position::before(3)).await;
        cursor
            .acknowledge_through(Position::new(3, 1), &log)
            .expect("works");
        cursor.settled(1).await.expect("durable");
        cursor
            .acknowledge_through(Position::new(3, 6), &log)
            .expect("works");
        cursor.settled(1).await.expect("durable");
        let ledger = store.node().await.expect("a node").cursors_ledger_id;
        assert_eq!(
            store.open(&log).await.state().mark_delete(),
            Position::new(3, 6)
        );
        store
            .ledgers
            .delete(LedgerId(u64::try_from(ledger).expect("one")))
            .await
            .expect("deleted");
        let id = id();
        let open = || ManagedCursor::open(Arc::clone(&store.storage), &id, &log);
        let (cursor, recovered) = open().await.expect("opened");
        assert!(
            matches!(recovered, Recovered::RolledBack(RollBack::Ledger(_))),
            "{recovered:?}"
        );
        assert_eq!(
            cursor.state().mark_delete(),
            Position::new(3, 1),
            "where it was when the ledger was made"
        );
        for (entry, empty) in [(None, true), (Some(Bytes::from_static(b"\xff")), false)] {
            let mut writer = store
                .ledgers
                .create(LedgerOptions::default())
                .await
                .expect("created");
            entry.map(|entry| writer.append(&[entry]).expect("append"));
            let mut info = store.node().await.expect("a node");
            info.cursors_ledger_id = i64::try_from(writer.id().0).expect("small");
            store.put_node(&info).await;
            let (mut cursor, recovered) = open().await.expect("opened");
            let told = matches!(recovered, Recovered::RolledBack(RollBack::Empty));
            assert_eq!(told, empty, "{recovered:?}");
            assert_eq!(cursor.state().mark_delete(), Position::new(3, 1));
            cursor
                .acknowledge_through(Position::new(3, 2), &log)
                .expect("works");
            cursor.settled(1).await.expect("durable, in another ledger");
            assert!(!store.is_ledger(writer.id().0).await);
            info.cursors_ledger_id = -1;
            info.mark_delete_entry_id = Some(1);
            drop(cursor);
            store.put_node(&info).await;
        }
    });
}

#[test]
fn a_cursor_ledger_that_ends_is_followed_by_another() {
    on_runtime(async {
        let store = store(Some(HolesForm::Ranges));
        let log = log();
        let mut cursor = store.create(Position::before(3)).await;
        cursor
            .acknowledge(Position::new(3, 4), &log)
            .expect("works");
        cursor.settled(1).await.expect("durable");
        // What Apache Pulsar reads.
        let ledger =
            u64::try_from(store.node().await.expect("a node").cursors_ledger_id).expect("one");
        let reader = store.ledgers.open(LedgerId(ledger)).await.expect("there");
        let range = 0..1;
        let entries = reader
            .read(std::slice::from_ref(&range), 1)
            .await
            .expect("read");
        let info = PositionInfo::decode(&entries[0].payload).expect("a position");
        assert_eq!(info.individual_deleted_messages.len(), 1);
        assert_eq!((info.ledger_id, info.entry_id), (3, -1));
    });
}

#[test]
fn nobody_waits_for_the_rate_who_has_a_receipt_to_send() {
    on_runtime(async {
        let store = store(Some(HolesForm::Ranges));
        let log = log();
        let mut cursor = store.create(Position::before(3)).await;
        cursor
            .acknowledge(Position::new(3, 4), &log)
            .expect("works");
        cursor.settled(1000).await.expect("durable");
        cursor
            .acknowledge(Position::new(3, 5), &log)
            .expect("works");
        cursor.flush(1500, Flush::WhenDue).expect("works");
        let waits = tokio::time::timeout(Duration::from_secs(60), cursor.progressed()).await;
        assert!(
            waits.is_err() && cursor.is_dirty(),
            "half a second after the last write"
        );
        cursor
            .acknowledge(Position::new(3, 6), &log)
            .expect("works");
        cursor.flush(1500, Flush::Now).expect("works");
        assert_eq!(
            cursor.progressed().await.expect("works"),
            3,
            "both in one entry"
        );
        cursor
            .acknowledge(Position::new(3, 7), &log)
            .expect("works");
        cursor.flush(2500, Flush::WhenDue).expect("works");
        assert_eq!(cursor.progressed().await.expect("works"), 4);
    });
}

#[test]
fn properties_of_the_broker_are_its_own() {
    for store in stores() {
        on_runtime(async {
            let log = log();
            let mut cursor = store.create(Position::before(3)).await;
            let one = |name: &str| BTreeMap::from([(name.to_owned(), "v".to_owned())]);
            let internal = "#pulsar.internal.state";
            cursor
                .put_cursor_property(internal, Some("on".to_owned()))
                .expect("works");
            cursor.set_cursor_properties(one("a")).expect("works");
            cursor.set_cursor_properties(one("b")).expect("works");
            let error = cursor
                .set_cursor_properties(one(internal))
                .expect_err("not theirs");
            assert!(matches!(error, CursorError::InternalProperty), "{error}");
            cursor.settled(1).await.expect("durable");
            let mut cursor = store.open(&log).await;
            let names: Vec<&String> = cursor.state().cursor_properties().keys().collect();
            assert_eq!(names, [internal, "b"]);
            cursor.put_cursor_property(internal, None).expect("works");
            assert_eq!(cursor.changed(), 1);
            cursor.put_cursor_property(internal, None).expect("works");
            assert_eq!(cursor.changed(), 1, "nothing changed");
            cursor.close(2).await.expect("closed");
            assert_eq!(
                store.node().await.expect("a node").cursor_properties.len(),
                1
            );
        });
    }
}

#[test]
fn fields_of_later_versions_stay_in_the_node() {
    for store in stores() {
        on_runtime(async {
            let info = CursorState::new(Position::new(3, 2)).to_node(5);
            let mut bytes = info.encode();
            // Field 99, a number.
            bytes.extend_from_slice(&[0x98, 0x06, 0x07]);
            let later = ManagedCursorInfo::decode(&bytes).expect("a node");
            assert!(!later.unknown.is_empty());
            store.put_node(&later).await;
            let log = log();
            let mut cursor = store.open(&log).await;
            cursor
                .acknowledge(Position::new(3, 3), &log)
                .expect("works");
            cursor.settled(6).await.expect("durable");
            cursor.close(7).await.expect("closed");
            let node = store.node().await.expect("a node");
            assert_eq!(node.unknown, later.unknown);
            assert_eq!(node.mark_delete_entry_id, Some(3));
        });
    }
}

#[test]
fn a_reader_leaves_nothing_behind() {
    on_runtime(async {
        let view = LogView::new(log(), Position::new(3, 11), None);
        let start = StartAt::Behind(Position::new(3, 4)).mark_delete(&view);
        let mut cursor = ManagedCursor::non_durable(CursorState::new(start));
        assert!(!cursor.is_durable());
        cursor
            .acknowledge_through(Position::new(3, 6), view.extent())
            .expect("works");
        cursor.flush(1, Flush::Now).expect("works");
        cursor.settled(1).await.expect("nothing to wait for");
        assert_eq!(cursor.stats(&view).backlog, 5);
        assert!(!cursor.is_dirty() && cursor.recorded.changes.is_empty());
        cursor.close(1).await.expect("closed");
    });
}

/// Cursor ledgers as Apache Pulsar wrote them are read, written further and left in a form that says the same.
#[test]
fn cursors_of_apache_pulsar_are_opened_and_go_on() {
    let log = LogExtent::new((0..200).map(|ledger| (ledger, 1000)));
    for (file, holes) in [
        ("cursor_ledgers.txt", HolesForm::Ranges),
        ("cursor_ledgers_other_form.txt", HolesForm::BitSets),
    ] {
        let path = format!(
            "{}/tests/fixtures/metadata/{file}",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = std::fs::read_to_string(path).expect("recorded");
        let mut ledgers: BTreeMap<&str, Vec<Bytes>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut columns = line.split('\t');
            let name = columns.next().expect("a cursor");
            let hex = columns.nth(1).and_then(|value| value.strip_prefix("hex:"));
            let hex = hex.expect("bytes");
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
            let entry: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            ledgers.entry(name).or_default().push(entry.into());
        }
        let mut with_holes = 0;
        for (name, entries) in ledgers {
            on_runtime(async {
                let store = store(Some(holes));
                let last = PositionInfo::decode(entries.last().expect("one")).expect("a position");
                let mut writer = store
                    .ledgers
                    .create(LedgerOptions::default())
                    .await
                    .expect("created");
                writer.append(&entries).expect("append");
                let node = ManagedCursorInfo {
                    cursors_ledger_id: i64::try_from(writer.id().0).expect("small"),
                    ..ManagedCursorInfo::default()
                };
                store.put_node(&node).await;
                let mut cursor = store.open(&log).await;
                let mark_delete = Position::new(last.ledger_id, last.entry_id);
                assert_eq!(cursor.state().mark_delete(), mark_delete, "{name}");
                let ranges = cursor.state().acknowledged_ranges().count();
                let bits = last.individual_deleted_message_ranges.iter();
                let is_set = bits.flat_map(|set| &set.values).any(|word| *word != 0);
                match holes {
                    HolesForm::Ranges => assert_eq!(ranges, last.individual_deleted_messages.len()),
                    HolesForm::BitSets => assert_eq!(
                        ranges > 0,
                        is_set || !last.individual_deleted_messages.is_empty()
                    ),
                }
                with_holes += usize::from(ranges > 0);
                assert_eq!(cursor.state().properties().len(), last.properties.len());
                let next = cursor
                    .state()
                    .next_unacknowledged(mark_delete, &log)
                    .expect("more");
                cursor.acknowledge(next, &log).expect("works");
                cursor.settled(1).await.expect("durable");
                let state = cursor.state().clone();
                drop(cursor);
                let again = store.open(&log).await;
                assert_eq!(again.state(), &state, "{name}");
                again.close(2).await.expect("closed");
                assert_eq!(store.open(&log).await.state(), &state, "{name}");
            });
        }
        assert!(with_holes > 0, "{file}");
    }
}

#[test]
fn a_cursor_that_rests_goes_on_where_it_was_unless_somebody_else_has_it() {
    for store in stores() {
        on_runtime(async {
            let log = log();
            let mut cursor = store.create(Position::before(3)).await;
            for entry in [5, 7] {
                cursor
                    .acknowledge(Position::new(3, entry), &log)
                    .expect("works");
                while !cursor.rest(1).expect("works") {
                    cursor.progressed().await.expect("works");
                }
                assert!(!cursor.is_dirty());
                assert!(cursor.rest(1).expect("works"), "it rests");
            }
            if let CursorForm::ChangeLog(cursors) = &store.storage.form {
                let (stored, _) = cursors.open_cursor(&name(&id())).await.expect("open");
                assert!(stored.deltas.is_empty(), "a snapshot is all");
            }
            cursor
                .acknowledge(Position::new(3, 9), &log)
                .expect("works");
            cursor.settled(1).await.expect("durable");
            assert_eq!(cursor.durable(), 3);
            cursor
                .acknowledge(Position::new(3, 0), &log)
                .expect("works");
            cursor.settled(1).await.expect("durable");
            while !cursor.rest(1).expect("works") {
                cursor.progressed().await.expect("works");
            }
            let mut other = store.open(&log).await;
            assert_eq!(other.state(), cursor.state());
            other.acknowledge(Position::new(3, 1), &log).expect("works");
            other.settled(1).await.expect("durable");
            cursor
                .acknowledge(Position::new(3, 2), &log)
                .expect("applied");
            let error = cursor.settled(1).await.expect_err("another has it");
            assert!(
                matches!(error, CursorError::Failed(CursorFailure::Fenced)),
                "{error}"
            );
            assert!(
                !store
                    .open(&log)
                    .await
                    .state()
                    .is_acknowledged(Position::new(3, 2))
            );
        });
    }
}
