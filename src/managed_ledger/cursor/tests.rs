//! The state of a cursor against a model that knows every message by itself.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::managed_ledger::formats::{ManagedCursorInfo, PositionInfo};
use crate::metadata::Message;

/// Messages of a batch: the model takes every entry for one of so many.
const MESSAGES: u32 = 5;

#[derive(Debug, Clone)]
enum Change {
    Acknowledge(usize),
    InBatch(usize, u8),
    Through(usize),
    ThroughBatch(usize, u8),
    /// To before this entry.
    Reset(usize),
    /// So many entries come to the last ledger.
    Append(i64),
    /// A ledger with an id so much higher.
    Roll(i64),
    /// The first ledger goes, unless it is the last one.
    Trim,
    /// Through what is stored, in each form.
    Restart(u8),
    /// An acknowledgement of what is not there.
    Nowhere(i64, i64),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let place = || 0..200_usize;
    let change = prop_oneof![
        8 => place().prop_map(Change::Acknowledge),
        4 => (place(), 0..32_u8).prop_map(|(place, bits)| Change::InBatch(place, bits)),
        1 => place().prop_map(Change::Through),
        1 => (place(), 0..32_u8).prop_map(|(place, bits)| Change::ThroughBatch(place, bits)),
        1 => place().prop_map(Change::Reset),
        3 => (1..20_i64).prop_map(Change::Append),
        2 => (1..4_i64).prop_map(Change::Roll),
        1 => Just(Change::Trim),
        1 => (0..3_u8).prop_map(Change::Restart),
        1 => (-1..12_i64, -1..90_i64).prop_map(|(ledger, entry)| Change::Nowhere(ledger, entry)),
    ];
    prop::collection::vec(change, 1..80)
}

/// Every message that is there, and those that are not acknowledged.
struct Model {
    ledgers: BTreeMap<i64, i64>,
    unacknowledged: BTreeMap<Position, BTreeSet<u32>>,
}

impl Model {
    fn new() -> Self {
        let mut model = Self {
            ledgers: BTreeMap::from([(2, 0)]),
            unacknowledged: BTreeMap::new(),
        };
        model.append(10);
        model
    }

    fn log(&self) -> LogExtent {
        LogExtent::new(self.ledgers.clone())
    }

    fn entries(&self) -> Vec<Position> {
        let ledgers = self.ledgers.iter();
        ledgers
            .flat_map(|(ledger, entries)| (0..*entries).map(|entry| Position::new(*ledger, entry)))
            .collect()
    }

    fn at(&self, place: usize) -> Option<Position> {
        let entries = self.entries();
        entries.get(place % entries.len().max(1)).copied()
    }

    fn append(&mut self, count: i64) {
        let mut last = self.ledgers.last_entry().expect("there is always one");
        let first = *last.get();
        *last.get_mut() += count;
        let ledger = *last.key();
        for entry in first..first + count {
            self.unacknowledged
                .insert(Position::new(ledger, entry), (0..MESSAGES).collect());
        }
    }

    fn acknowledge(&mut self, position: Position, remaining: u8) {
        if let Some(messages) = self.unacknowledged.get_mut(&position) {
            messages.retain(|message| remaining & (1 << message) != 0);
            if messages.is_empty() {
                self.unacknowledged.remove(&position);
            }
        }
    }

    fn compare(&self, state: &CursorState) {
        let log = self.log();
        for position in self.entries() {
            let messages = self.unacknowledged.get(&position);
            assert_eq!(
                state.is_acknowledged(position),
                messages.is_none(),
                "{position}"
            );
            let partly = messages.filter(|messages| messages.len() < 5);
            let batch = state.batch(position).map(|batch| {
                (0..64)
                    .filter(|message| batch.contains(*message))
                    .collect::<BTreeSet<u32>>()
            });
            assert_eq!(batch.as_ref(), partly, "{position}");
        }
        let first = self.unacknowledged.keys().next().copied();
        assert_eq!(state.next_unacknowledged(state.mark_delete(), &log), first);
        assert_eq!(
            log.next(state.mark_delete()),
            first,
            "it stands right before what is not acknowledged"
        );
        let backlog = i64::try_from(self.unacknowledged.len()).expect("few");
        assert_eq!(state.backlog(&log), backlog);
        for place in [0, 7, 23] {
            let Some(from) = self.at(place) else { continue };
            let next = self
                .unacknowledged
                .range(from..)
                .find(|(position, _)| **position > from);
            assert_eq!(
                state.next_unacknowledged(from, &log),
                next.map(|(position, _)| *position),
                "behind {from}"
            );
        }
    }
}

/// The words of those messages of a batch of five that remain.
fn remaining(bits: u8) -> AckSet {
    AckSet::from_words([i64::from(bits)])
}

fn restart(state: &CursorState, form: u8, log: &LogExtent) -> CursorState {
    let node = state.to_node(17);
    let node = ManagedCursorInfo::decode(&node.encode()).expect("its own bytes");
    let form = match form {
        0 => return CursorState::from_node(&node, log),
        1 => HolesForm::Ranges,
        _ => HolesForm::BitSets,
    };
    let info = PositionInfo::decode(&state.to_ledger(form).encode()).expect("its own bytes");
    CursorState::from_ledger(&info, &node, log)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn knows_what_the_model_knows(changes in changes()) {
        let mut model = Model::new();
        let mut state = CursorState::new(Position::before(2));
        state.set_properties(BTreeMap::from([("p".to_owned(), 7)]));
        state.set_cursor_properties(BTreeMap::from([("c".to_owned(), "v".to_owned())]));
        for change in changes {
            let log = model.log();
            let before = state.clone();
            let told = match change {
                Change::Acknowledge(place) => model.at(place).map(|position| {
                    model.acknowledge(position, 0);
                    state.acknowledge(position, &log)
                }),
                Change::InBatch(place, bits) => model.at(place).map(|position| {
                    model.acknowledge(position, bits);
                    state.acknowledge_in_batch(position, MESSAGES, &remaining(bits), &log)
                }),
                Change::Through(place) => model.at(place).map(|position| {
                    model.unacknowledged.retain(|other, _| *other > position);
                    state.acknowledge_through(position, &log)
                }),
                Change::ThroughBatch(place, bits) => model.at(place).map(|position| {
                    model.unacknowledged.retain(|other, _| *other >= position);
                    model.acknowledge(position, bits);
                    state.acknowledge_through_batch(position, MESSAGES, &remaining(bits), &log)
                }),
                Change::Reset(place) => {
                    if let Some(position) = model.at(place) {
                        let behind = model.entries().into_iter().filter(|other| *other >= position);
                        model.unacknowledged = behind.map(|other| (other, (0..MESSAGES).collect())).collect();
                        state.reset(log.previous(position).expect("there are ledgers"));
                        prop_assert!(state.properties().is_empty(), "they were those of another position");
                        state.set_properties(BTreeMap::from([("p".to_owned(), 7)]));
                    }
                    None
                }
                Change::Append(count) => {
                    model.append(count);
                    state.log_changed(&model.log());
                    None
                }
                Change::Roll(higher) => {
                    let (last, _) = model.ledgers.last_key_value().expect("there is always one");
                    model.ledgers.insert(last + higher, 0);
                    state.log_changed(&model.log());
                    None
                }
                Change::Trim => {
                    if model.ledgers.len() > 1 {
                        let (gone, _) = model.ledgers.pop_first().expect("two");
                        model.unacknowledged.retain(|position, _| position.ledger_id != gone);
                        state.log_changed(&model.log());
                    }
                    None
                }
                Change::Restart(form) => {
                    let again = restart(&state, form, &log);
                    prop_assert_eq!(&again, &state);
                    state = again;
                    None
                }
                Change::Nowhere(ledger, entry) => {
                    let position = Position::new(ledger, entry);
                    if !log.contains(position) {
                        prop_assert_eq!(state.acknowledge(position, &log), Acknowledged::Nothing);
                        prop_assert_eq!(state.acknowledge_through(position, &log), Acknowledged::Nothing);
                    }
                    None
                }
            };
            if let Some(told) = told {
                let expected = if state == before {
                    Acknowledged::Nothing
                } else if state.mark_delete() == before.mark_delete() {
                    Acknowledged::Behind
                } else {
                    Acknowledged::MarkDelete
                };
                prop_assert_eq!(told, expected);
                prop_assert!(state.mark_delete() >= before.mark_delete());
            }
            model.compare(&state);
        }
        prop_assert_eq!(state.properties().get("p"), Some(&7));
        prop_assert_eq!(state.cursor_properties().get("c").map(String::as_str), Some("v"));
    }

    /// Whatever stands there is read, in time and memory that the log bounds, and keeps the rules.
    #[test]
    fn reads_any_numbers(numbers in prop::collection::vec(prop_oneof![any::<i64>(), -2..70_i64], 24)) {
        let log = LogExtent::new([(0, 5), (3, 100_000), (4, -3), (9, 70)]);
        let mut numbers = numbers.into_iter();
        let mut next = || numbers.next().expect("enough");
        let range = |a: i64, b: i64, c: i64, d: i64| crate::managed_ledger::formats::MessageRange {
            lower_endpoint: Position::new(a, b).into(),
            upper_endpoint: Position::new(c, d).into(),
            ..Default::default()
        };
        let info = PositionInfo {
            ledger_id: next(),
            entry_id: next(),
            individual_deleted_messages: vec![range(next(), next(), next(), next()), range(0, next(), 9, next())],
            batched_entry_deletion_index_info: vec![crate::managed_ledger::formats::BatchedEntryDeletionIndexInfo {
                position: Position::new(next(), next()).into(),
                delete_set: vec![next(), next()],
                ..Default::default()
            }],
            individual_deleted_message_ranges: vec![crate::managed_ledger::formats::LongListMap {
                key: next(),
                values: vec![next(), next(), next()],
                ..Default::default()
            }],
            ..PositionInfo::default()
        };
        let state = CursorState::from_ledger(&info, &ManagedCursorInfo::default(), &log);
        prop_assert!(state.holes.values().all(|entries| !entries.is_empty()));
        prop_assert!(state.batches.keys().all(|position| !state.is_acknowledged(*position)));
        if let Some(first) = log.next(state.mark_delete()) {
            prop_assert!(!state.is_acknowledged(first));
        }
    }
}

#[test]
fn reads_ranges_over_several_ledgers() {
    // As Pulsar wrote them before it kept them by ledger.
    let range = crate::managed_ledger::formats::MessageRange {
        lower_endpoint: Position::new(2, 1).into(),
        upper_endpoint: Position::new(7, 0).into(),
        ..Default::default()
    };
    let info = PositionInfo {
        ledger_id: 2,
        entry_id: -1,
        individual_deleted_messages: vec![range],
        ..PositionInfo::default()
    };
    let log = LogExtent::new([(2, 3), (4, 2), (7, 2)]);
    let state = CursorState::from_ledger(&info, &ManagedCursorInfo::default(), &log);
    let acknowledged: Vec<String> = log
        .ledgers()
        .flat_map(|(ledger, entries)| (0..entries).map(move |entry| Position::new(ledger, entry)))
        .filter(|position| state.is_acknowledged(*position))
        .map(|position| position.to_string())
        .collect();
    assert_eq!(acknowledged, ["2:2", "4:0", "4:1", "7:0"]);
    assert_eq!(state.mark_delete(), Position::before(2));
}

#[test]
fn a_hundred_thousand_ranges_are_no_limit() {
    let log = LogExtent::new([(1, 200_001)]);
    let mut state = CursorState::new(Position::before(1));
    for entry in (1..200_001).step_by(2) {
        state.acknowledge(Position::new(1, entry), &log);
    }
    assert_eq!(state.backlog(&log), 100_001);
    assert_eq!(
        state
            .to_ledger(HolesForm::Ranges)
            .individual_deleted_messages
            .len(),
        100_000
    );
    let bits = state.to_ledger(HolesForm::BitSets).encode();
    assert!(bits.len() < 40_000, "{} bytes", bits.len());
    assert_eq!(restart(&state, 2, &log), state);
}
