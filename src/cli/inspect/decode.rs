//! Values and entries, readable.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::managed_ledger::formats::{
    ManagedCursorInfo, ManagedLedgerInfo, MessageRange, NestedPositionInfo, decode_node,
};
use crate::metadata::{NodePath, decode_name};
use crate::protocol::message::{EncodedParts, decode_metadata};

/// What a node below `/managed-ledgers` is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopicNode {
    /// `persistent://tenant/namespace/name`.
    pub(super) topic: String,
    /// The cursor, when it is one's node.
    pub(super) cursor: Option<String>,
}

/// An entry, as far as it can be told.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryContent {
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) damage: Option<String>,
    /// Its bytes.
    pub(super) length: usize,
    /// Why it is no message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_message: Option<String>,
    /// Of the broker, in front of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<u64>,
    /// When the broker got it, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) broker_timestamp: Option<u64>,
    /// Whether the publisher's checksum is right; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) checksum: Option<bool>,
    /// The metadata of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<Value>,
    /// Bytes behind the metadata, as they are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload_length: Option<usize>,
}

impl TopicNode {
    pub(super) fn of(path: &NodePath) -> Option<Self> {
        let names: Vec<&str> = path.as_str().split('/').collect();
        let (tenant, namespace, domain, topic, cursor) = match names.as_slice() {
            ["", "managed-ledgers", tenant, namespace, domain, topic] => {
                (tenant, namespace, domain, topic, None)
            }
            [
                "",
                "managed-ledgers",
                tenant,
                namespace,
                domain,
                topic,
                cursor,
            ] => (tenant, namespace, domain, topic, Some(readable(cursor))),
            _ => return None,
        };
        Some(Self {
            topic: format!("{domain}://{tenant}/{namespace}/{}", readable(topic)),
            cursor,
        })
    }
}

impl EntryContent {
    pub(super) fn damaged(why: String) -> Self {
        Self {
            damage: Some(why),
            ..Self::default()
        }
    }
}

/// An entry as a message.
pub(super) fn entry(payload: Bytes) -> EntryContent {
    let mut shown = EntryContent {
        length: payload.len(),
        ..EntryContent::default()
    };
    let mut rest = payload;
    match crate::protocol::broker_entry::take(&mut rest) {
        Ok(block) => {
            let block = block.unwrap_or_default();
            shown.index = block.index;
            shown.broker_timestamp = block.broker_timestamp;
        }
        Err(error) => {
            shown.no_message = Some(error.to_string());
            return shown;
        }
    }
    let parts = match EncodedParts::split(rest) {
        Ok(parts) => parts,
        Err(error) => {
            shown.no_message = Some(error.to_string());
            return shown;
        }
    };
    shown.checksum = parts.checksum.map(|_| parts.verify_checksum().is_ok());
    shown.payload_length = Some(parts.payload.len());
    match decode_metadata(parts.metadata) {
        Ok(metadata) => {
            let properties: BTreeMap<&str, &str> = metadata
                .properties
                .iter()
                .map(|property| (property.key.as_str(), property.value.as_str()))
                .collect();
            let mut message = json!({
                "producer": metadata.producer_name,
                "sequenceId": metadata.sequence_id,
                "publishTime": metadata.publish_time,
            });
            let optional = [
                ("key", metadata.partition_key.clone().map(Value::from)),
                ("messages", metadata.num_messages_in_batch.map(Value::from)),
                (
                    "eventTime",
                    metadata.event_time.filter(|at| *at > 0).map(Value::from),
                ),
                (
                    "compression",
                    metadata
                        .compression
                        .filter(|kind| *kind != 0)
                        .map(Value::from),
                ),
                (
                    "uncompressedSize",
                    metadata.uncompressed_size.map(Value::from),
                ),
                ("deliverAt", metadata.deliver_at_time.map(Value::from)),
                ("markerType", metadata.marker_type.map(Value::from)),
                (
                    "properties",
                    (!properties.is_empty()).then(|| json!(properties)),
                ),
            ];
            if let Value::Object(fields) = &mut message {
                for (name, value) in optional {
                    if let Some(value) = value {
                        fields.insert(name.to_owned(), value);
                    }
                }
            }
            shown.message = Some(message);
        }
        Err(error) => shown.no_message = Some(error.to_string()),
    }
    shown
}

/// The value of a node: what is known to stand at its path, else JSON or text, else its bytes.
pub(super) fn node(path: &NodePath, value: &Bytes) -> Value {
    match TopicNode::of(path) {
        Some(TopicNode { cursor: None, .. }) => ledger_list(value),
        Some(_) => cursor_node(value),
        None => plain(value),
    }
}

fn plain(value: &Bytes) -> Value {
    if value.is_empty() {
        return Value::Null;
    }
    if let Ok(value) = serde_json::from_slice(value) {
        return value;
    }
    match std::str::from_utf8(value) {
        Ok(text) if !text.chars().any(char::is_control) => Value::from(text),
        _ => json!({ "base64": STANDARD.encode(value) }),
    }
}

/// The ledgers of a topic.
pub(super) fn ledger_list(value: &Bytes) -> Value {
    let info: ManagedLedgerInfo = match decode_node(value) {
        Ok(info) => info,
        Err(error) => return json!({ "problem": error.to_string() }),
    };
    let ledgers = info.ledgers.iter().map(|ledger| {
        json!({
            "ledger": ledger.ledger_id,
            "entries": ledger.entries,
            "size": ledger.size,
            "closed": ledger.timestamp,
        })
    });
    let properties: BTreeMap<&str, &str> = info
        .properties
        .iter()
        .map(|property| (property.key.as_str(), property.value.as_str()))
        .collect();
    json!({
        "ledgers": ledgers.collect::<Vec<_>>(),
        "terminated": info.terminated_position.as_ref().map(position),
        "properties": properties,
    })
}

/// The ids of these ledgers.
pub(super) fn ledger_ids(value: &Bytes) -> Vec<i64> {
    let info = decode_node::<ManagedLedgerInfo>(value);
    let ledgers = info.into_iter().flat_map(|info| info.ledgers);
    ledgers.map(|ledger| ledger.ledger_id).collect()
}

/// A cursor as its node has it.
pub(super) fn cursor_node(value: &Bytes) -> Value {
    let info: ManagedCursorInfo = match decode_node(value) {
        Ok(info) => info,
        Err(error) => return json!({ "problem": error.to_string() }),
    };
    let mark_delete = match (info.mark_delete_ledger_id, info.mark_delete_entry_id) {
        (Some(ledger), Some(entry)) => Some(format!("{ledger}:{entry}")),
        _ => None,
    };
    let ranges: Vec<String> = info.individual_deleted_messages.iter().map(range).collect();
    let properties: BTreeMap<&str, i64> = info
        .properties
        .iter()
        .map(|property| (property.name.as_str(), property.value))
        .collect();
    let cursor_properties: BTreeMap<&str, &str> = info
        .cursor_properties
        .iter()
        .map(|property| (property.name.as_str(), property.value.as_str()))
        .collect();
    json!({
        "cursorLedger": info.cursors_ledger_id,
        "markDelete": mark_delete,
        "acknowledgedBeyond": ranges,
        "batchesInPart": info.batched_entry_deletion_index_info.len(),
        "properties": properties,
        "cursorProperties": cursor_properties,
        "lastActive": info.last_active,
    })
}

/// Names with values that are text where they can be.
pub(super) fn texts(pairs: Vec<(String, Bytes)>) -> BTreeMap<String, Value> {
    pairs
        .into_iter()
        .map(|(name, value)| {
            let value = plain(&value);
            (name, value)
        })
        .collect()
}

fn range(range: &MessageRange) -> String {
    format!(
        "({}..{}]",
        position(&range.lower_endpoint),
        position(&range.upper_endpoint)
    )
}

fn position(position: &NestedPositionInfo) -> String {
    format!("{}:{}", position.ledger_id, position.entry_id)
}

/// A name of the tree as it was before it was encoded; as it stands when it is none.
fn readable(name: &str) -> String {
    decode_name(name).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect(text)
    }

    #[test]
    fn topics_and_cursors_are_known_by_their_paths() {
        let topic = TopicNode::of(&path("/managed-ledgers/t/ns/persistent/a%2Fb"));
        let topic = topic.expect("a topic");
        assert_eq!(topic.topic, "persistent://t/ns/a/b");
        assert_eq!(topic.cursor, None);
        let cursor = TopicNode::of(&path("/managed-ledgers/t/ns/persistent/a/sub%3A1"));
        assert_eq!(cursor.expect("a cursor").cursor.as_deref(), Some("sub:1"));
        assert_eq!(
            TopicNode::of(&path("/managed-ledgers/t/ns/persistent")),
            None
        );
        assert_eq!(TopicNode::of(&path("/admin/policies/t/ns/x/y")), None);
    }

    #[test]
    fn what_is_no_message_says_so() {
        let shown = entry(Bytes::from_static(b"hello"));
        assert_eq!(shown.length, 5);
        assert!(
            shown.message.is_none() && shown.no_message.is_some(),
            "{shown:?}"
        );
        let shown = entry(Bytes::new());
        assert!(shown.no_message.is_some());
    }

    #[test]
    fn values_are_shown_as_what_they_are() {
        let at = path("/admin/x");
        let shown = |value: &'static [u8]| node(&at, &Bytes::from_static(value));
        assert_eq!(shown(b""), Value::Null);
        assert_eq!(shown(b"{\"a\":1}"), json!({ "a": 1 }));
        assert_eq!(shown(b"hello there"), json!("hello there"));
        assert_eq!(shown(b"\xff\x00"), json!({ "base64": "/wA=" }));
    }
}
