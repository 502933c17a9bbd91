//! Snapshots and deltas: they say what the state is, in bytes in proportion to what changed, and nothing else is taken for one.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

const MESSAGES: u32 = 70;

#[derive(Debug, Clone)]
enum Change {
    Acknowledge(i64, i64),
    InBatch(i64, i64, u64),
    Through(i64, i64),
    ThroughBatch(i64, i64, u64),
    Skip(u64),
    Clear,
    Reset(i64, i64, Option<u64>),
    Properties(BTreeMap<String, i64>),
    CursorProperties(BTreeMap<String, String>),
    /// What changed so far is written.
    Write,
    Snapshot,
    Trim,
}

fn change() -> impl Strategy<Value = Change> {
    let ledger = || prop_oneof![Just(2_i64), Just(5), Just(9)];
    let entry = || prop_oneof![0..40_i64, 0..9000_i64];
    let properties = prop::collection::btree_map("[a-c]", any::<i64>(), 0..3);
    let texts = prop::collection::btree_map("[a-c]", "[a-zé]{0,4}", 0..3);
    prop_oneof![
        12 => (ledger(), entry()).prop_map(|(l, e)| Change::Acknowledge(l, e)),
        4 => (ledger(), entry(), any::<u64>()).prop_map(|(l, e, bits)| Change::InBatch(l, e, bits)),
        1 => (ledger(), entry()).prop_map(|(l, e)| Change::Through(l, e)),
        1 => (ledger(), entry(), any::<u64>()).prop_map(|(l, e, bits)| Change::ThroughBatch(l, e, bits)),
        1 => (0..50_u64).prop_map(Change::Skip),
        1 => Just(Change::Clear),
        1 => (ledger(), -1..60_i64, prop::option::of(any::<u64>())).prop_map(|(l, e, bits)| Change::Reset(l, e, bits)),
        1 => properties.prop_map(Change::Properties),
        1 => texts.prop_map(Change::CursorProperties),
        4 => Just(Change::Write),
        1 => Just(Change::Snapshot),
        1 => Just(Change::Trim),
    ]
}

fn remaining(bits: u64) -> AckSet {
    AckSet::from_words([bits.cast_signed(), 0b11])
}

fn apply(recorded: &mut RecordedState, change: &Change, log: &LogExtent) {
    match change.clone() {
        Change::Acknowledge(ledger, entry) => {
            recorded.acknowledge(Position::new(ledger, entry), log);
        }
        Change::InBatch(ledger, entry, bits) => {
            let position = Position::new(ledger, entry);
            recorded.acknowledge_in_batch(position, MESSAGES, &remaining(bits), log);
        }
        Change::Through(ledger, entry) => {
            recorded.acknowledge_through(Position::new(ledger, entry), log);
        }
        Change::ThroughBatch(ledger, entry, bits) => {
            let position = Position::new(ledger, entry);
            recorded.acknowledge_through_batch(position, MESSAGES, &remaining(bits), log);
        }
        Change::Skip(entries) => {
            recorded.skip(entries, log);
        }
        Change::Clear => {
            recorded.clear_backlog(log);
        }
        Change::Reset(ledger, entry, bits) => {
            let last = log.entries(ledger).unwrap_or(0) - 1;
            let position = Position::new(ledger, entry.min(last));
            let next = log.next(position).filter(|_| bits.is_some());
            let partly = next.map(|next| (next, remaining(bits.unwrap_or(1))));
            recorded.reset(position, partly);
            recorded.log_changed(log);
        }
        Change::Properties(properties) => {
            recorded.set_properties(properties);
        }
        Change::CursorProperties(properties) => {
            recorded.set_cursor_properties(properties);
        }
        Change::Write | Change::Snapshot | Change::Trim => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever was changed, and however often it was written: a snapshot and the deltas since are the state.
    #[test]
    fn a_snapshot_and_the_deltas_since_are_the_state(changes in prop::collection::vec(change(), 1..60)) {
        let mut log = LogExtent::new([(2, 60), (5, 9000), (9, 40)]);
        let mut recorded = RecordedState::new(CursorState::new(Position::before(2)));
        let (mut snapshot, mut deltas, mut number) = (recorded.state().snapshot(7), Vec::new(), 7);
        for change in changes.iter().chain([&Change::Write]) {
            apply(&mut recorded, change, &log);
            match change {
                Change::Write if !recorded.changes.is_empty() => {
                    let more = recorded.state().deltas(&recorded.changes, number + 1);
                    number += more.len() as u64;
                    deltas.extend(more);
                    recorded.changes.written();
                    let (again, last) = CursorState::replay(Some(&snapshot), &deltas, &log).expect("its own");
                    prop_assert_eq!(&again, recorded.state());
                    prop_assert_eq!(last, number);
                }
                Change::Snapshot => {
                    number += 1;
                    (snapshot, deltas) = (recorded.state().snapshot(number), Vec::new());
                    recorded.changes.written();
                }
                Change::Trim => {
                    log = LogExtent::new([(5, 9000), (9, 40)]);
                    recorded.log_changed(&log);
                }
                _ => {}
            }
        }
        let (again, _) = CursorState::replay(Some(&snapshot), &deltas, &log).expect("its own");
        prop_assert_eq!(&again, recorded.state());
    }

    /// What was not written counts as not having happened, whole: there is no state in between.
    #[test]
    fn a_flipped_bit_is_told(changes in prop::collection::vec(change(), 1..20), bit in any::<prop::sample::Index>()) {
        let log = LogExtent::new([(2, 60), (5, 9000), (9, 40)]);
        let mut recorded = RecordedState::new(CursorState::new(Position::before(2)));
        let snapshot = recorded.state().snapshot(1);
        changes.iter().for_each(|change| apply(&mut recorded, change, &log));
        let deltas = recorded.state().deltas(&recorded.changes, 2);
        for record in deltas.iter().chain([&snapshot]) {
            let bit = bit.index(record.len() * 8);
            let mut bytes = record.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let damaged = Bytes::from(bytes);
            let found = if record == &snapshot {
                CursorState::replay(Some(&damaged), &deltas, &log)
            } else {
                CursorState::replay(Some(&snapshot), &[damaged], &log)
            };
            prop_assert_eq!(found.expect_err("damaged"), CursorRecordError::Checksum);
        }
    }

    /// Bytes that are no record but have its checksum: an error or a state that keeps the rules, in memory that the log bounds.
    #[test]
    fn any_bytes_are_read(items in prop::collection::vec(prop_oneof![0..12_u8, any::<u8>()], 0..60)) {
        let log = LogExtent::new([(0, 5), (1, 100_000), (3, 70)]);
        for kind in [1_u8, 2] {
            let mut bytes = vec![kind, 1, 1];
            bytes.extend_from_slice(&items);
            let record = with_checksum(bytes);
            let snapshot = CursorState::new(Position::before(0)).snapshot(0);
            let found = match kind {
                1 => CursorState::replay(Some(&record), &[], &log),
                _ => CursorState::replay(Some(&snapshot), &[record], &log),
            };
            if let Ok((state, _)) = found {
                prop_assert!(state.holes.values().all(|entries| !entries.is_empty()));
                prop_assert!(state.batches.keys().all(|position| !state.is_acknowledged(*position)));
                if let Some(first) = log.next(state.mark_delete()) {
                    prop_assert!(!state.is_acknowledged(first));
                }
            }
        }
    }
}

fn with_checksum(mut bytes: Vec<u8>) -> Bytes {
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_be_bytes());
    Bytes::from(bytes)
}

#[test]
fn a_delta_is_as_long_as_what_changed() {
    let log = LogExtent::new([(1 << 40, 1_000_000)]);
    let at = |entry| Position::new(1 << 40, entry);
    let mut recorded = RecordedState::new(CursorState::new(Position::before(1 << 40)));
    let mut length = |change: &dyn Fn(&mut RecordedState)| {
        change(&mut recorded);
        let deltas = recorded.state().deltas(&recorded.changes, 1000);
        recorded.changes.written();
        deltas.iter().map(Bytes::len).sum::<usize>()
    };
    assert!(
        length(&|state| (100_000..400_000)
            .step_by(2)
            .for_each(|entry| _ = state.acknowledge(at(entry), &log)))
            < 40_000,
        "150,000 single entries: as bits"
    );
    assert!(length(&|state| _ = state.acknowledge(at(700_001), &log)) <= 24);
    assert!(length(&|state| _ = state.acknowledge_through(at(70), &log)) <= 20);
    assert!(
        length(&|state| _ = state.acknowledge_in_batch(at(90), 70, &AckSet::of(3), &log)) <= 32
    );
    let properties = |count: i64| {
        let all = (0..count).map(|number| (format!("producer-{number}"), number));
        all.collect::<BTreeMap<String, i64>>()
    };
    assert!(length(&|state| _ = state.set_properties(properties(1000))) > 10_000);
    assert!(
        length(&|state| _ = state.set_properties(properties(1001))) <= 32,
        "one more"
    );
    assert!(length(&|state| _ = state.set_properties(properties(1000))) <= 32);
    assert!(
        length(&|state| state.reset(at(9), None)) > 10_000,
        "the properties go"
    );
    assert!(length(&|state| state.reset(at(900_000), None)) <= 20);
}

#[test]
fn what_is_long_becomes_several_deltas_and_each_prefix_of_them_is_a_state() {
    let log = LogExtent::new([(1, 600_000)]);
    let mut recorded = RecordedState::new(CursorState::new(Position::before(1)));
    let snapshot = recorded.state().snapshot(1);
    for entry in (1..600_000).step_by(3) {
        recorded.acknowledge(Position::new(1, entry), &log);
    }
    for entry in (2..20_000).step_by(9) {
        let position = Position::new(1, entry);
        recorded.acknowledge_in_batch(position, MESSAGES, &remaining(7), &log);
    }
    let deltas = recorded.state().deltas(&recorded.changes, 2);
    assert!(deltas.len() > 3, "{} deltas", deltas.len());
    assert!(deltas.iter().all(|delta| delta.len() < 40 << 10));
    let mut backlog = i64::MAX;
    for count in 0..=deltas.len() {
        let (state, _) =
            CursorState::replay(Some(&snapshot), &deltas[..count], &log).expect("a prefix");
        let less = state.backlog(&log);
        assert!(less <= backlog);
        backlog = less;
        if count == deltas.len() {
            assert_eq!(&state, recorded.state());
        }
    }
}

#[test]
fn what_is_missing_unknown_or_out_of_order_is_told() {
    let log = LogExtent::new([(1, 50)]);
    let mut recorded = RecordedState::new(CursorState::new(Position::before(1)));
    let snapshot = recorded.state().snapshot(4);
    let mut deltas = Vec::new();
    for (entry, number) in [(3, 5), (5, 6), (7, 7)] {
        recorded.acknowledge(Position::new(1, entry), &log);
        deltas.extend(recorded.state().deltas(&recorded.changes, number));
        recorded.changes.written();
    }
    let replay = |deltas: &[Bytes]| CursorState::replay(Some(&snapshot), deltas, &log);
    let told = |deltas: &[Bytes]| replay(deltas).expect_err("refused");
    assert!(replay(&deltas).is_ok() && replay(&deltas[..2]).is_ok());
    let order = |expected, found| CursorRecordError::Order { expected, found };
    assert_eq!(told(&deltas[1..]), order(5, 6), "the first is missing");
    let twice = [deltas[0].clone(), deltas[0].clone()];
    assert_eq!(told(&twice), order(6, 5));
    assert_eq!(
        CursorState::replay(None, &deltas, &log).expect_err("nothing"),
        CursorRecordError::NoSnapshot
    );
    let unknown = |what, number| CursorRecordError::Unknown { what, number };
    assert_eq!(told(std::slice::from_ref(&snapshot)), unknown("kind", 1));
    assert_eq!(told(&[with_checksum(vec![2, 9, 5])]), unknown("format", 9));
    assert_eq!(
        told(&[with_checksum(vec![2, 1, 5, 77])]),
        unknown("item", 77)
    );
    let malformed = [
        &[2, 1][..],
        &[2, 1, 5, 1, 4],
        &[2, 1, 5, 3, 2, 200],
        &[
            2, 1, 5, 3, 2, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0,
        ],
        &[2, 1, 5, 4, 2, 0, 3, 0],
        &[2, 1, 5, 5, 2, 2, 0],
        &[2, 1, 5, 6, 1, 255, 0],
        &[2, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2],
    ];
    for bytes in malformed {
        let error = told(&[with_checksum(bytes.to_vec())]);
        assert!(
            matches!(error, CursorRecordError::Malformed(_)),
            "{bytes:?}: {error}"
        );
    }
    assert_eq!(
        told(&[Bytes::from_static(&[1, 2])]),
        CursorRecordError::Checksum
    );
}

#[test]
fn what_a_log_lost_does_not_count() {
    // The log had 50 entries when this was written, and lost 30 of them since.
    let log = LogExtent::new([(1, 50)]);
    let mut recorded = RecordedState::new(CursorState::new(Position::new(1, 10)));
    let snapshot = recorded.state().snapshot(1);
    recorded.acknowledge(Position::new(1, 15), &log);
    recorded.acknowledge(Position::new(1, 40), &log);
    recorded.acknowledge_in_batch(Position::new(1, 41), MESSAGES, &AckSet::of(1), &log);
    let mut deltas = recorded.state().deltas(&recorded.changes, 2);
    recorded.changes.written();
    let short = LogExtent::new([(1, 20), (4, 3)]);
    let (state, _) = CursorState::replay(Some(&snapshot), &deltas, &short).expect("replay");
    assert_eq!(state.backlog(&short), 11);
    recorded.acknowledge_through(Position::new(1, 45), &log);
    deltas.extend(recorded.state().deltas(&recorded.changes, 3));
    let (state, _) = CursorState::replay(Some(&snapshot), &deltas, &short).expect("replay");
    assert_eq!(
        state.next_unacknowledged(state.mark_delete(), &short),
        Some(Position::new(4, 0))
    );
    let only = LogExtent::new([(1, 20)]);
    let (state, _) = CursorState::replay(Some(&snapshot), &deltas, &only).expect("replay");
    assert_eq!(
        state.mark_delete(),
        Position::new(1, 19),
        "the end of the log"
    );
}

/// Snapshots and deltas of format 1, as they were written when it was new. They are read for ever.
#[test]
fn records_of_format_1_are_read() {
    let log = LogExtent::new([(7, 300), (9, 9000), (12, 40)]);
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/storage/format-1/cursors.txt"
    );
    let text = std::fs::read_to_string(file).expect("fixture");
    let (mut snapshot, mut deltas, mut states) = (None, Vec::new(), 0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (kind, hex) = line.split_once('\t').expect("two columns");
        match kind {
            "snapshot" => (snapshot, deltas) = (Some(from_hex(hex)), Vec::new()),
            "delta" => deltas.push(from_hex(hex)),
            "state" => {
                states += 1;
                let (state, _) = CursorState::replay(snapshot.as_ref(), &deltas, &log).expect(line);
                assert_eq!(described(&state), hex);
            }
            other => panic!("{other}"),
        }
    }
    assert!(states >= 5, "{states} states");
}

/// What the fixture says of a state.
fn described(state: &CursorState) -> String {
    let ranges: Vec<String> = state
        .acknowledged_ranges()
        .map(|run| format!("{}:{:?}", run.ledger_id, run.entries))
        .collect();
    let batches: Vec<String> = state
        .batches
        .iter()
        .map(|(position, remaining)| {
            format!("{position}={:?}", remaining.words().collect::<Vec<_>>())
        })
        .collect();
    format!(
        "{} {} {} {:?} {:?}",
        state.mark_delete(),
        ranges.join(","),
        batches.join(","),
        state.properties(),
        state.cursor_properties()
    )
}

fn from_hex(hex: &str) -> Bytes {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len())
        .step_by(2)
        .map(byte)
        .collect::<Vec<u8>>()
        .into()
}

/// Writes the fixture: only for a format that has none yet.
#[test]
#[ignore = "writes the fixture of a new format"]
fn write_fixture() {
    use std::fmt::Write as _;
    let log = LogExtent::new([(7, 300), (9, 9000), (12, 40)]);
    let at = Position::new;
    let mut recorded = RecordedState::new(CursorState::new(Position::before(7)));
    let mut out = String::from(
        "# Records of cursors of format 1: what docs/storage-format.md describes, and the state that the records up to a line make\n\
         # in a log of the ledgers 7, 9 and 12 with 300, 9,000 and 40 entries. Never changed; later formats get a folder of their own.\n",
    );
    let hex = |bytes: &Bytes| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let mut number = 1;
    writeln!(out, "snapshot\t{}", hex(&recorded.state().snapshot(number))).expect("text");
    writeln!(out, "state\t{}", described(recorded.state())).expect("text");
    type Step<'a> = &'a dyn Fn(&mut RecordedState);
    let steps: &[Step<'_>] = &[
        &|state| _ = state.acknowledge(at(7, 5), &log),
        &|state| _ = state.acknowledge_through(at(7, 2), &log),
        &|state| _ = state.acknowledge_in_batch(at(7, 9), 70, &AckSet::from_words([-2, 3]), &log),
        &|state| {
            (100..700)
                .step_by(2)
                .for_each(|entry| _ = state.acknowledge(at(9, entry), &log))
        },
        &|state| {
            _ = state.set_properties(BTreeMap::from([
                ("cluster-0-1".into(), 17),
                ("x".into(), -1),
            ]))
        },
        &|state| {
            _ = state.set_cursor_properties(BTreeMap::from([("purpose".into(), "größe".into())]))
        },
        &|state| _ = state.set_properties(BTreeMap::from([("cluster-0-1".into(), i64::MAX)])),
        &|state| _ = state.set_cursor_properties(BTreeMap::from([("other".into(), String::new())])),
        &|state| {
            _ = state.acknowledge_through_batch(
                at(9, 401),
                64,
                &AckSet::from_words([1 << 40]),
                &log,
            )
        },
        &|state| state.reset(at(7, 8), Some((at(7, 9), AckSet::from_words([6])))),
        &|state| {
            state.acknowledge(at(12, 3), &log);
            state.acknowledge(at(12, 4), &log);
        },
        &|state| _ = state.clear_backlog(&log),
    ];
    for (place, step) in steps.iter().enumerate() {
        step(&mut recorded);
        for delta in recorded.state().deltas(&recorded.changes, number + 1) {
            number += 1;
            writeln!(out, "delta\t{}", hex(&delta)).expect("text");
        }
        recorded.changes.written();
        writeln!(out, "state\t{}", described(recorded.state())).expect("text");
        if place == 8 {
            number += 1;
            writeln!(out, "snapshot\t{}", hex(&recorded.state().snapshot(number))).expect("text");
            writeln!(out, "state\t{}", described(recorded.state())).expect("text");
        }
    }
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/storage/format-1"
    );
    let file = format!("{folder}/cursors.txt");
    assert!(
        !std::path::Path::new(&file).exists(),
        "a fixture is written once"
    );
    std::fs::create_dir_all(folder).expect("folder");
    std::fs::write(file, out).expect("written");
}
