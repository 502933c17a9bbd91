//! Values of a metadata store and entries of cursor ledgers, which other brokers write, and the embedded store's own keys and values.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};

use crate::managed_ledger::formats::{
    ManagedCursorInfo, ManagedLedgerInfo, NodeCompression, PositionInfo, decode_node, encode_node,
};
use crate::managed_ledger::{CursorState, HolesForm, LogExtent, Position};
use crate::metadata::values::{JsonValue, LocalBrokerData, Policies, SchemaLocator};
use crate::metadata::{EmbeddedMetadata, MemoryLog, Message, SystemClock};

/// What is read and written again is the same when it is read once more; the state of a cursor keeps its rules; nothing
/// panics.
///
/// # Panics
/// When one of these does not hold.
pub fn stored(data: &[u8]) {
    let value = Bytes::copy_from_slice(data);
    node::<ManagedLedgerInfo>(&value);
    node::<SchemaLocator>(&value);
    node::<ManagedCursorInfo>(&value);
    node::<PositionInfo>(&value);
    json::<Policies>(data);
    json::<LocalBrokerData>(data);
    cursor(&value);
    cursor_records(data);
    tree(value);
}

fn node<M: Message + PartialEq + Debug>(value: &Bytes) {
    let Ok(message) = decode_node::<M>(value) else {
        return;
    };
    let bare = encode_node(&message, NodeCompression::NEVER).expect("written");
    let again: M = decode_node(&bare).expect("its own bytes");
    assert_eq!(again, message);
    assert_eq!(again.encode(), bare, "written in one way only");
}

fn json<T: JsonValue + PartialEq + Debug>(data: &[u8]) {
    let Ok(value) = T::from_json(data) else {
        return;
    };
    let bytes = value.to_json().expect("written");
    assert_eq!(T::from_json(&bytes).expect("its own JSON"), value);
}

fn cursor(value: &Bytes) {
    let log = LogExtent::new([(0, 3), (1, 0), (7, 200), (8, 40)]);
    let states = [
        decode_node(value)
            .ok()
            .map(|node| CursorState::from_node(&node, &log)),
        PositionInfo::decode(value)
            .ok()
            .map(|info| CursorState::from_ledger(&info, &ManagedCursorInfo::default(), &log)),
    ];
    for state in states.into_iter().flatten() {
        if let Some(first) = log.next(state.mark_delete()) {
            assert!(!state.is_acknowledged(first));
        }
        let node = state.to_node(0);
        assert_eq!(CursorState::from_node(&node, &log), state);
        for form in [HolesForm::Ranges, HolesForm::BitSets] {
            let info = state.to_ledger(form);
            assert_eq!(CursorState::from_ledger(&info, &node, &log), state);
        }
    }
}

/// A record of a cursor with the right checksum, whatever else it says.
fn cursor_records(data: &[u8]) {
    let log = LogExtent::new([(0, 3), (1, 0), (7, 200), (8, 40)]);
    let mut record = data.to_vec();
    record.extend_from_slice(&crc32c::crc32c(data).to_be_bytes());
    let record = Bytes::from(record);
    let snapshot = CursorState::new(Position::before(0)).snapshot(0);
    let found = [
        CursorState::replay(Some(&record), &[], &log),
        CursorState::replay(Some(&snapshot), &[record], &log),
    ];
    for (state, number) in found.into_iter().flatten() {
        if let Some(first) = log.next(state.mark_delete()) {
            assert!(!state.is_acknowledged(first));
        }
        let snapshot = state.snapshot(number);
        let again = CursorState::replay(Some(&snapshot), &[], &log);
        assert_eq!(again.expect("its own record"), (state, number));
    }
}

/// Whatever keys and values a log has, they make a store or are refused; a store that was made goes on and can be made again.
fn tree(mut data: Bytes) {
    let mut pairs = BTreeMap::new();
    while let Some([key, value, ..]) = data.first_chunk::<2>().copied() {
        data.advance(2);
        let key = data.split_to(usize::from(key).min(data.len()));
        pairs.insert(key, data.split_to(usize::from(value).min(data.len())));
    }
    if let Ok(nodes) = EmbeddedMetadata::stored_nodes(pairs.clone()) {
        let log = Arc::new(MemoryLog::new());
        let store = EmbeddedMetadata::recover(pairs.clone(), log, Arc::new(SystemClock::new()));
        store.expect("its nodes can be read");
        let again = EmbeddedMetadata::stored_nodes(pairs).expect("read before");
        assert_eq!(again, nodes);
    }
}
