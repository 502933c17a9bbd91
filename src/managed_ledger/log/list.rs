//! The ledgers of a log, as their list in the metadata store has them. Pure.

use bytes::Bytes;

use crate::managed_ledger::formats::{
    FormatError, KeyValue, LedgerInfo, ManagedLedgerInfo, NestedPositionInfo, NodeCompression,
    decode_node, encode_node,
};
use crate::managed_ledger::{LogExtent, Position};
use crate::metadata::UnknownFields;

/// The list of a log's ledgers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LedgerList {
    /// In the order of writing.
    pub(super) ledgers: Vec<ListedLedger>,
    terminated: Option<NestedPositionInfo>,
    properties: Vec<KeyValue>,
    unknown: UnknownFields,
}

/// A ledger of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedLedger {
    pub(super) id: i64,
    /// What is known of its end; `None`: it is being written, or was when its writer went away.
    pub(super) closed: Option<Closed>,
    /// What else its entry in the list says: offloading, fields of later versions.
    rest: Option<Box<LedgerInfo>>,
}

/// How a ledger ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) entries: i64,
    pub(super) bytes: i64,
    /// When, in milliseconds since 1970.
    pub(super) at: i64,
}

/// A change of the list that is written on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// This ledger is the next. Those that ended without an entry go.
    Add(i64),
    /// These ledgers go.
    Remove(Vec<i64>),
    /// Nothing follows this entry any more.
    Terminate(Position),
    /// Properties are set, or removed.
    Properties {
        request: u64,
        set: Vec<(String, Option<String>)>,
    },
    /// What is known of the ends of ledgers is written down.
    Ends,
}

impl LedgerList {
    /// Reads the value of a log's node.
    pub(super) fn decode(value: &Bytes) -> Result<Self, FormatError> {
        // A node that only has cursors below it.
        if value.is_empty() {
            return Ok(Self::default());
        }
        let info: ManagedLedgerInfo = decode_node(value)?;
        Ok(Self {
            ledgers: info.ledgers.into_iter().map(ListedLedger::from).collect(),
            terminated: info.terminated_position,
            properties: info.properties,
            unknown: info.unknown,
        })
    }

    /// Writes it.
    pub(super) fn encode(&self, compression: NodeCompression) -> Result<Bytes, FormatError> {
        let info = ManagedLedgerInfo {
            ledgers: self.ledgers.iter().map(ListedLedger::info).collect(),
            terminated_position: self.terminated.clone(),
            properties: self.properties.clone(),
            unknown: self.unknown.clone(),
        };
        encode_node(&info, compression)
    }

    /// Applies a change; gives the ledgers that went.
    pub(super) fn apply(&mut self, change: &Change) -> Vec<i64> {
        match change {
            Change::Add(id) => {
                let gone = self.remove(|ledger| ledger.is_empty());
                self.ledgers.push(ListedLedger::open(*id));
                gone
            }
            Change::Remove(ids) => self.remove(|ledger| ids.contains(&ledger.id)),
            Change::Terminate(position) => {
                self.terminated = Some((*position).into());
                Vec::new()
            }
            Change::Properties { set, .. } => {
                for (key, value) in set {
                    self.set_property(key, value.clone());
                }
                Vec::new()
            }
            Change::Ends => Vec::new(),
        }
    }

    fn remove(&mut self, goes: impl Fn(&ListedLedger) -> bool) -> Vec<i64> {
        let gone = self.ledgers.iter().filter(|ledger| goes(ledger));
        let gone: Vec<i64> = gone.map(|ledger| ledger.id).collect();
        self.ledgers.retain(|ledger| !goes(ledger));
        gone
    }

    /// Ledgers that ended without an entry go, but for one where there is no other: positions count from it.
    pub(super) fn remove_empty(&mut self) -> Vec<i64> {
        let all = self.ledgers.iter().all(ListedLedger::is_empty);
        let stays = self.ledgers.last().filter(|_| all).map(|last| last.id);
        self.remove(|ledger| ledger.is_empty() && Some(ledger.id) != stays)
    }

    pub(super) fn get_mut(&mut self, id: i64) -> Option<&mut ListedLedger> {
        self.ledgers.iter_mut().rev().find(|ledger| ledger.id == id)
    }

    pub(super) fn contains(&self, id: i64) -> bool {
        self.ledgers.iter().any(|ledger| ledger.id == id)
    }

    pub(super) fn terminated(&self) -> Option<Position> {
        self.terminated.as_ref().map(Position::from)
    }

    pub(super) fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        self.properties
            .iter()
            .map(|property| (property.key.as_str(), property.value.as_str()))
    }

    pub(super) fn property(&self, key: &str) -> Option<&str> {
        self.properties()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
    }

    pub(super) fn set_property(&mut self, key: &str, value: Option<String>) {
        let Some(value) = value else {
            self.properties.retain(|property| property.key != key);
            return;
        };
        match self
            .properties
            .iter_mut()
            .find(|property| property.key == key)
        {
            Some(property) => property.value = value,
            None => self.properties.push(KeyValue {
                key: key.to_owned(),
                value,
                ..KeyValue::default()
            }),
        }
    }

    /// Which entries there are; of a ledger that is being written none.
    pub(super) fn extent(&self) -> LogExtent {
        LogExtent::new(self.ledgers.iter().map(|ledger| {
            let entries = ledger.closed.map_or(0, |closed| closed.entries);
            (ledger.id, entries)
        }))
    }

    /// The last entry; of a log without any, what stands before the first of its last ledger.
    pub(super) fn last_entry(&self) -> Option<Position> {
        let last = self.ledgers.last()?;
        let extent = self.extent();
        Some(extent.last().unwrap_or(Position::before(last.id)))
    }

    /// Bytes of all closed ledgers.
    pub(super) fn bytes(&self) -> i64 {
        let closed = self.ledgers.iter().filter_map(|ledger| ledger.closed);
        closed.fold(0, |sum, closed| sum.saturating_add(closed.bytes))
    }
}

impl ListedLedger {
    fn open(id: i64) -> Self {
        Self {
            id,
            closed: None,
            rest: None,
        }
    }

    /// It ended, without an entry.
    fn is_empty(&self) -> bool {
        self.closed.is_some_and(|closed| closed.entries == 0)
    }

    /// Whether it was copied elsewhere.
    pub(super) fn is_offloaded(&self) -> bool {
        let context = self
            .rest
            .as_ref()
            .and_then(|rest| rest.offload_context.as_ref());
        context.is_some_and(|context| context.complete == Some(true))
    }

    fn info(&self) -> LedgerInfo {
        let rest = self.rest.as_deref().cloned().unwrap_or_default();
        LedgerInfo {
            ledger_id: self.id,
            entries: self.closed.map(|closed| closed.entries),
            size: self.closed.map(|closed| closed.bytes),
            timestamp: Some(self.closed.map_or(0, |closed| closed.at)),
            ..rest
        }
    }
}

impl From<LedgerInfo> for ListedLedger {
    fn from(info: LedgerInfo) -> Self {
        let closed = info.entries.map(|entries| Closed {
            entries: entries.max(0),
            bytes: info.size.unwrap_or(0).max(0),
            at: info.timestamp.unwrap_or(0),
        });
        let id = info.ledger_id;
        let has_more = info.offload_context.is_some() || !info.unknown.is_empty();
        let rest = has_more.then(|| Box::new(info));
        Self { id, closed, rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(id: i64, entries: i64) -> ListedLedger {
        ListedLedger {
            closed: Some(Closed {
                entries,
                bytes: entries * 10,
                at: 7,
            }),
            ..ListedLedger::open(id)
        }
    }

    #[test]
    fn what_it_does_not_know_stays_as_it_is() {
        use crate::metadata::Message;
        let info = ManagedLedgerInfo::decode(&[
            10, 7, 8, 3, 16, 4, 0x98, 0x06, 1, 10, 8, 8, 5, 24, 0, 32, 0, 42, 0, 0x9a, 0x06, 1, 65,
        ]);
        let Ok(info) = info else {
            // The bytes are only written here by hand: they have to be a message.
            panic!("{info:?}");
        };
        let value = Bytes::from(info.encode());
        let list = LedgerList::decode(&value).expect("list");
        let again = list.encode(NodeCompression::NEVER).expect("encoded");
        let again = ManagedLedgerInfo::decode(&again).expect("message");
        assert_eq!(again.unknown, info.unknown);
        assert_eq!(again.ledgers[0].unknown, info.ledgers[0].unknown);
        assert_eq!(
            again.ledgers[1].offload_context,
            info.ledgers[1].offload_context
        );
    }

    #[test]
    fn empty_ledgers_go_but_not_the_only_one() {
        let mut list = LedgerList {
            ledgers: vec![closed(1, 0), closed(2, 0)],
            ..LedgerList::default()
        };
        assert_eq!(list.last_entry(), Some(Position::before(2)));
        assert_eq!(list.remove_empty(), [1]);
        assert_eq!(list.apply(&Change::Add(5)), [2]);
        assert_eq!(list.ledgers, [ListedLedger::open(5)]);
        list.ledgers = vec![closed(5, 3), closed(6, 0)];
        assert_eq!(list.last_entry(), Some(Position::new(5, 2)));
        assert_eq!(list.remove_empty(), [6]);
    }

    #[test]
    fn properties_are_set_and_removed() {
        let mut list = LedgerList::default();
        let set = |key: &str, value: Option<&str>| Change::Properties {
            request: 0,
            set: vec![(key.to_owned(), value.map(str::to_owned))],
        };
        list.apply(&set("a", Some("1")));
        list.apply(&set("b", Some("2")));
        list.apply(&set("a", Some("3")));
        list.apply(&set("b", None));
        assert_eq!(list.properties().collect::<Vec<_>>(), [("a", "3")]);
        assert_eq!(list.property("a"), Some("3"));
    }
}
