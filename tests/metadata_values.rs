//! What Apache Pulsar wrote into its metadata store and its cursor ledgers (`tests/fixtures/metadata`), read and written again:
//! protobuf byte for byte, JSON value for value, and with fields added that nobody knows.

#![expect(
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected shall panic"
)]

#[expect(dead_code, reason = "other tests fill commands as well")]
mod proto_fill;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;

use bytes::Bytes;
use prost::Message as _;
use pulsegate::managed_ledger::formats::{
    self, ManagedCursorInfo, ManagedLedgerInfo, NodeCompression, PositionInfo, decode_node,
    encode_node,
};
use pulsegate::managed_ledger::{CursorState, LogExtent, Position};
use pulsegate::metadata::values::{
    BookieRacks, BundleData, ClusterData, ClusterPolicies, DynamicConfiguration, FailureDomain,
    JsonValue, LeaderBroker, LocalBrokerData, LocalPolicies, NamespaceEphemeralData,
    NamespaceIsolationPolicies, PartitionedTopicMetadata, Policies, ResourceGroup, ResourceQuota,
    SchemaLocator, TenantInfo, TimeAverageBrokerData,
};
use pulsegate::metadata::{Message, decode_name, paths};
use pulsegate::naming::{NamespaceName, TopicName};
use pulsegate::protocol::proto::pulsar::CompressionType;
use serde_json::{Value, json};

use proto_fill::{Filling, messages};

/// One line of a file.
struct Recorded {
    path: String,
    ephemeral: bool,
    value: Bytes,
}

/// Kinds of values. A path that has none is one that this project does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Only there because something is below it.
    Container,
    /// BookKeeper's own, and that of its functions.
    BookKeeper,
    Cluster,
    ClusterPolicies,
    FailureDomain,
    IsolationPolicies,
    Tenant,
    Namespace,
    LocalPolicies,
    PartitionedTopic,
    ResourceGroup,
    DynamicConfiguration,
    BookieRacks,
    ManagedLedger,
    Cursor,
    Schema,
    Owner,
    Broker,
    Leader,
    BundleData,
    BrokerAverage,
    ResourceQuota,
    ProducerNumber,
}

fn kind(path: &str) -> Option<Kind> {
    let names: Vec<&str> = path.split('/').skip(1).collect();
    Some(match names.as_slice() {
        ["admin", "clusters", _] => Kind::Cluster,
        ["admin", "clusters", _, "policies"] => Kind::ClusterPolicies,
        ["admin", "clusters", _, "failureDomain", _] => Kind::FailureDomain,
        ["admin", "clusters", _, "namespaceIsolationPolicies"] => Kind::IsolationPolicies,
        ["admin", "policies", _] => Kind::Tenant,
        ["admin", "policies", _, _] => Kind::Namespace,
        ["admin", "local-policies", _, _] => Kind::LocalPolicies,
        ["admin", "partitioned-topics", _, _, _, _] => Kind::PartitionedTopic,
        ["admin", "resourcegroups", _] => Kind::ResourceGroup,
        ["admin", "configuration"] => Kind::DynamicConfiguration,
        ["bookies"] => Kind::BookieRacks,
        ["managed-ledgers", _, _, _, _] => Kind::ManagedLedger,
        ["managed-ledgers", _, _, _, _, _] => Kind::Cursor,
        ["schemas", _, _, _] => Kind::Schema,
        // Heartbeats are in namespaces of the old form.
        ["namespace", _, _, last] | ["namespace", _, _, _, last] if last.starts_with("0x") => {
            Kind::Owner
        }
        ["namespace", _, last] if last.starts_with("0x") => Kind::Owner,
        ["loadbalance", "brokers", _] => Kind::Broker,
        ["loadbalance", "leader"] => Kind::Leader,
        ["loadbalance", "bundle-data", _, _, _] => Kind::BundleData,
        ["loadbalance", "broker-time-average", _] => Kind::BrokerAverage,
        ["loadbalance", "resource-quota", "default"]
        | ["loadbalance", "resource-quota", _, _, _] => Kind::ResourceQuota,
        ["counters", "producer-name", _] => Kind::ProducerNumber,
        ["ledgers", ..] | ["stream", ..] | ["pulsar", ..] => Kind::BookKeeper,
        [
            "admin" | "managed-ledgers" | "schemas" | "namespace" | "loadbalance" | "counters",
            ..,
        ] => Kind::Container,
        _ => return None,
    })
}

#[test]
fn every_value_of_a_cluster_is_of_a_kind_that_is_read() {
    let mut seen = BTreeSet::new();
    for node in recorded("cluster.txt") {
        let kind = kind(&node.path).unwrap_or_else(|| panic!("{} is not known", node.path));
        seen.insert(kind);
        check(kind, &node);
        let expected_ephemeral = matches!(
            kind,
            Kind::Owner | Kind::Broker | Kind::Leader | Kind::ProducerNumber
        );
        assert!(
            kind == Kind::BookKeeper || node.ephemeral == expected_ephemeral,
            "{}",
            node.path
        );
    }
    assert_eq!(seen.len(), 23, "there is a value of each kind: {seen:?}");
}

#[test]
fn managed_ledgers_and_cursors_come_back_byte_for_byte() {
    let files = [
        "closed.txt",
        "closed_in_ledger.txt",
        "compressed_lz4.txt",
        "compressed_zlib.txt",
        "compressed_zstd.txt",
        "compressed_snappy.txt",
    ];
    for file in files {
        let nodes = recorded(file);
        assert!(nodes.len() > 40, "{file}");
        for node in nodes {
            check(kind(&node.path).expect("a managed ledger or above"), &node);
        }
    }
}

#[test]
fn entries_of_cursor_ledgers_come_back_byte_for_byte() {
    let (mut ranges, mut bit_sets, mut properties) = (0, 0, 0);
    for file in ["cursor_ledgers.txt", "cursor_ledgers_other_form.txt"] {
        for entry in recorded(file) {
            let info: PositionInfo = same_bytes(&entry.path, &entry.value);
            ranges += info.individual_deleted_messages.len();
            bit_sets += info.individual_deleted_message_ranges.len();
            properties += info.properties.len();
        }
    }
    assert!(
        ranges > 10 && bit_sets > 5 && properties > 5,
        "{ranges} {bit_sets} {properties}"
    );
}

/// The bit sets of the one recording are those entries that the test's own acknowledgements make of them: the topic's messages
/// 100 to 139 were acknowledged, and one ledger holds 100 to 124.
#[test]
fn bits_of_a_set_are_entries() {
    let entries = recorded("cursor_ledgers_other_form.txt");
    let entry = entries
        .iter()
        .rfind(|entry| entry.path == "holes/holes")
        .expect("recorded");
    let info = PositionInfo::decode(&entry.value).expect("valid");
    let ledgers = recorded("closed.txt");
    let node = ledgers
        .iter()
        .find(|node| node.path.ends_with("/holes"))
        .expect("recorded");
    let topic = ManagedLedgerInfo::decode(&node.value).expect("valid");
    let log = LogExtent::new(
        topic
            .ledgers
            .iter()
            .map(|ledger| (ledger.ledger_id, ledger.entries.unwrap_or(10))),
    );
    let state = CursorState::from_ledger(&info, &ManagedCursorInfo::default(), &log);
    let fifth = topic.ledgers.get(4).expect("it rolled over").ledger_id;
    for entry in 0..25 {
        assert!(
            state.is_acknowledged(Position::new(fifth, entry)),
            "{entry}"
        );
    }
    assert_eq!(
        state.mark_delete(),
        Position::new(topic.ledgers[0].ledger_id, 4)
    );
    assert!(!state.is_acknowledged(Position::new(topic.ledgers[0].ledger_id, 5)));
}

/// A closed cursor, read and written by what a broker of ours makes of it, says to Pulsar what it said before.
#[test]
fn cursors_that_we_write_say_what_pulsars_said() {
    let nodes = recorded("closed.txt");
    let mut holes = 0;
    for (place, node) in nodes.iter().enumerate() {
        if kind(&node.path) != Some(Kind::Cursor) {
            continue;
        }
        let (topic, _) = node.path.rsplit_once('/').expect("a path");
        let topic = nodes[..place]
            .iter()
            .rfind(|node| node.path == topic)
            .expect("above it");
        let topic: ManagedLedgerInfo = decode_node(&topic.value).expect("valid");
        let log = LogExtent::new(
            topic
                .ledgers
                .iter()
                .map(|ledger| (ledger.ledger_id, ledger.entries.unwrap_or(30))),
        );
        let theirs: ManagedCursorInfo = decode_node(&node.value).expect("valid");
        let state = CursorState::from_node(&theirs, &log);
        let mut ours = state.to_node(theirs.last_active.unwrap_or(0));
        // Pulsar writes it when a cursor was used, and leaves it out after a while without.
        ours.last_active = theirs.last_active;
        holes += theirs.individual_deleted_messages.len()
            + theirs.batched_entry_deletion_index_info.len();
        assert_eq!(sorted(ours), sorted(theirs), "{}", node.path);
    }
    assert!(holes > 20, "{holes}");
}

/// Lists whose order says nothing.
fn sorted(mut info: ManagedCursorInfo) -> ManagedCursorInfo {
    info.batched_entry_deletion_index_info
        .sort_by_key(|batch| Position::from(&batch.position));
    info.cursor_properties.sort_by(|a, b| a.name.cmp(&b.name));
    info.properties.sort_by(|a, b| a.name.cmp(&b.name));
    info
}

#[test]
fn paths_are_where_pulsar_has_them() {
    let nodes = recorded("cluster.txt");
    let there: BTreeSet<&str> = nodes.iter().map(|node| node.path.as_str()).collect();
    let namespace = NamespaceName::parse("team/orders").expect("valid");
    let topic =
        |name: &str| TopicName::parse(&format!("persistent://team/orders/{name}")).expect("valid");
    let strange = "a b+c*d~e%f-\u{fc}.x_y:z\u{20ac}\u{1f600}";
    let light = TopicName::parse("non-persistent://team/orders/light").expect("valid");
    let configuration = [
        Ok(paths::clusters()),
        paths::cluster("remote"),
        paths::failure_domains("cluster"),
        paths::namespace_isolation_policies("cluster"),
        Ok(paths::tenants()),
        paths::tenant("team"),
        paths::namespace(&namespace),
        paths::partitioned_topics(&namespace, light.domain()),
        paths::partitioned_topic(&light),
        paths::partitioned_topic(&topic("parted-partition-2")),
        Ok(paths::resource_groups()),
    ];
    let local = [
        paths::cluster_policies("remote"),
        paths::local_policies(&namespace),
        Ok(paths::dynamic_configuration()),
        Ok(paths::bookie_racks()),
        paths::managed_ledgers(&namespace, topic("x").domain()),
        paths::managed_ledger(&topic(strange)),
        paths::cursor(&topic(strange), &format!("s/{strange}")),
        paths::cursor(&topic("keyed"), "__compaction"),
        paths::schema(&topic("versions")),
        paths::schema(&topic("__change_events-partition-1")),
        paths::owned_bundles(&namespace),
        Ok(paths::brokers()),
        Ok(paths::leader()),
        paths::bundle_data(&namespace),
        Ok(paths::broker_time_averages()),
        paths::default_resource_quota(),
        paths::resource_quotas(&namespace),
        Ok(paths::producer_name_counter()),
    ];
    let ours = configuration
        .map(|path| path.expect("valid").to_string())
        .into_iter()
        .chain(local.map(|path| path.expect("valid").to_string()));
    for path in ours {
        assert!(
            there.contains(path.as_str()),
            "{path} is not in the recording"
        );
    }
    let encoded = there
        .iter()
        .find(|path| path.contains("%F0%9F%98%80"))
        .expect("recorded");
    let name = encoded.split('/').nth(5).expect("a topic");
    assert_eq!(decode_name(name).as_deref(), Some(strange));
}

/// Every message of the formats, with every field and with random ones, against the types generated from `proto/`.
#[test]
fn formats_are_those_of_the_protocol_files() {
    type Again = fn(&[u8]) -> Vec<u8>;
    fn again<M: Message>(bytes: &[u8]) -> Vec<u8> {
        M::decode(bytes).expect("a message").encode()
    }
    let ours: [(&str, Again); 16] = [
        ("ManagedLedgerInfo", again::<ManagedLedgerInfo>),
        ("ManagedLedgerInfo.LedgerInfo", again::<formats::LedgerInfo>),
        ("ManagedCursorInfo", again::<ManagedCursorInfo>),
        ("PositionInfo", again::<PositionInfo>),
        ("NestedPositionInfo", again::<formats::NestedPositionInfo>),
        ("MessageRange", again::<formats::MessageRange>),
        (
            "BatchedEntryDeletionIndexInfo",
            again::<formats::BatchedEntryDeletionIndexInfo>,
        ),
        ("LongListMap", again::<formats::LongListMap>),
        ("LongProperty", again::<formats::LongProperty>),
        ("StringProperty", again::<formats::StringProperty>),
        ("KeyValue", again::<formats::KeyValue>),
        ("OffloadContext", again::<formats::OffloadContext>),
        ("OffloadSegment", again::<formats::OffloadSegment>),
        (
            "OffloadDriverMetadata",
            again::<formats::OffloadDriverMetadata>,
        ),
        (
            "ManagedLedgerInfoMetadata",
            again::<formats::CompressionHeader>,
        ),
        (
            "ManagedCursorInfoMetadata",
            again::<formats::CompressionHeader>,
        ),
    ];
    let declared: Vec<_> = messages()
        .into_iter()
        .filter(|message| message.full_name().starts_with("pulsar.ml_data."))
        .collect();
    assert_eq!(declared.len(), ours.len(), "one type for each message");
    let fillings = [Filling::All, Filling::Extreme]
        .into_iter()
        .chain((0..50).map(Filling::Random));
    for filling in fillings {
        for message in &declared {
            let name = message
                .full_name()
                .strip_prefix("pulsar.ml_data.")
                .expect("filtered");
            let (_, again) = ours.iter().find(|(ours, _)| *ours == name).expect(name);
            let bytes = proto_fill::message(message, filling).encode_to_vec();
            assert_eq!(again(&bytes), bytes, "{name} {filling:?}");
        }
    }
}

#[test]
fn fields_of_later_versions_survive_in_every_message() {
    // Field 77 of each wire type, behind every message and inside of those in it.
    let tail = [
        [0xe8, 0x04, 0x05].as_slice(),
        &[0xe9, 0x04, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0xea, 0x04, 2, b'h', b'i'],
        &[0xed, 0x04, 1, 2, 3, 4],
    ]
    .concat();
    let ledger = [b"\x08\x07\x10\x03".as_slice(), &tail].concat();
    let mut info = vec![0x0a, u8::try_from(ledger.len()).expect("short")];
    info.extend_from_slice(&ledger);
    info.extend_from_slice(&tail);
    let decoded: ManagedLedgerInfo = same_bytes("added", &info.clone().into());
    assert_eq!(
        (decoded.ledgers[0].ledger_id, decoded.ledgers[0].entries),
        (7, Some(3))
    );
    assert!(!decoded.unknown.is_empty() && !decoded.ledgers[0].unknown.is_empty());

    // What is changed is changed, and the rest is still there.
    let mut changed = decoded;
    changed.ledgers[0].entries = Some(4);
    info[5] = 4;
    assert_eq!(changed.encode(), info);

    for node in recorded("closed.txt") {
        let with_tail: Bytes = [&node.value[..], &tail].concat().into();
        match kind(&node.path) {
            Some(Kind::ManagedLedger) => {
                drop(same_bytes::<ManagedLedgerInfo>(&node.path, &with_tail))
            }
            Some(Kind::Cursor) => drop(same_bytes::<ManagedCursorInfo>(&node.path, &with_tail)),
            _ => {}
        }
    }
    // A known number with another wire type is none of ours either.
    let other_type: Bytes = Bytes::from_static(&[0x08, 0x07, 0x12, 1, b'x']);
    let ledger: formats::LedgerInfo = same_bytes("other type", &other_type);
    assert_eq!(ledger.entries, None);
}

#[test]
fn damaged_values_are_errors() {
    for file in [
        "closed.txt",
        "compressed_lz4.txt",
        "compressed_zlib.txt",
        "compressed_zstd.txt",
        "compressed_snappy.txt",
    ] {
        for node in recorded(file) {
            for len in 0..node.value.len() {
                let _ = decode_node::<ManagedLedgerInfo>(&node.value.slice(..len));
                let _ = decode_node::<ManagedCursorInfo>(&node.value.slice(..len));
            }
        }
    }
    let missing = ManagedCursorInfo::decode(&[]).expect_err("it needs a ledger id");
    assert_eq!(
        missing.to_string(),
        "the field cursors_ledger_id is missing"
    );
    for (bytes, what) in [
        (&[0x47, 0x78][..], "no header"),
        (
            &[0x47, 0x78, 0, 0, 0, 9, 8, 1],
            "a header longer than the value",
        ),
        (
            &[0x47, 0x78, 0, 0, 0, 4, 8, 9, 16, 1, 0],
            "a codec that does not exist",
        ),
        (
            &[0x47, 0x78, 0, 0, 0, 7, 8, 1, 16, 0xff, 0xff, 0xff, 0x7f],
            "more than is ever stored",
        ),
    ] {
        let decoded = decode_node::<ManagedLedgerInfo>(&Bytes::copy_from_slice(bytes));
        assert!(decoded.is_err(), "{what}");
    }
}

#[test]
fn what_is_compressed_here_is_read_again() {
    let nodes = recorded("closed.txt");
    let codecs = [
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ];
    for node in nodes
        .iter()
        .filter(|node| kind(&node.path) == Some(Kind::Cursor))
    {
        let info: ManagedCursorInfo = decode_node(&node.value).expect("valid");
        for codec in codecs {
            let compression = NodeCompression {
                codec,
                threshold: 50,
            };
            let value = encode_node(&info, compression).expect("compressed");
            let compressed = codec != CompressionType::None && node.value.len() > 50;
            assert_eq!(
                value.starts_with(&[0x47, 0x78]),
                compressed,
                "{}",
                node.path
            );
            assert_eq!(
                decode_node::<ManagedCursorInfo>(&value).expect("valid"),
                info
            );
        }
    }
}

/// Decodes a node's value and encodes it again.
fn check(kind: Kind, node: &Recorded) {
    let value = &node.value;
    let path = &node.path;
    match kind {
        Kind::Container | Kind::ProducerNumber => assert!(value.is_empty(), "{path} has a value"),
        Kind::BookKeeper => {}
        Kind::Cluster => same_json::<ClusterData>(node, 0),
        Kind::ClusterPolicies => same_json::<ClusterPolicies>(node, 0),
        Kind::FailureDomain => same_json::<FailureDomain>(node, 0),
        Kind::IsolationPolicies => same_json::<NamespaceIsolationPolicies>(node, 1),
        Kind::Tenant => same_json::<TenantInfo>(node, 0),
        Kind::Namespace => same_json::<Policies>(node, 0),
        Kind::LocalPolicies => same_json::<LocalPolicies>(node, 0),
        Kind::PartitionedTopic => same_json::<PartitionedTopicMetadata>(node, 0),
        Kind::ResourceGroup => same_json::<ResourceGroup>(node, 0),
        Kind::DynamicConfiguration => {
            let theirs: Value = serde_json::from_slice(value).expect("JSON");
            assert_eq!(through_json::<DynamicConfiguration>(node, &theirs), theirs);
        }
        Kind::BookieRacks => same_json::<BookieRacks>(node, 2),
        Kind::Owner => same_json::<NamespaceEphemeralData>(node, 0),
        Kind::Broker => same_json::<LocalBrokerData>(node, 0),
        Kind::Leader => same_json::<LeaderBroker>(node, 0),
        Kind::BundleData => same_json::<BundleData>(node, 0),
        Kind::BrokerAverage => same_json::<TimeAverageBrokerData>(node, 0),
        Kind::ResourceQuota => same_json::<ResourceQuota>(node, 0),
        Kind::Schema => drop(same_bytes::<SchemaLocator>(path, value)),
        Kind::ManagedLedger => same_node::<ManagedLedgerInfo>(node),
        Kind::Cursor => same_node::<ManagedCursorInfo>(node),
    }
}

/// JSON comes back value for value, also with fields in every object that nobody knows. `maps`: so many levels at the top are
/// maps, in which a field would be an element.
fn same_json<T: JsonValue + Debug>(node: &Recorded, maps: usize) {
    let theirs: Value = serde_json::from_slice(&node.value).expect("JSON");
    assert_eq!(through_json::<T>(node, &theirs), theirs, "{}", node.path);
    let mut later = theirs.clone();
    add_fields(&mut later, maps);
    assert_ne!(later, theirs);
    assert_eq!(
        through_json::<T>(node, &later),
        later,
        "{} of a later version",
        node.path
    );
}

fn through_json<T: JsonValue>(node: &Recorded, value: &Value) -> Value {
    let bytes = serde_json::to_vec(value).expect("written");
    let ours = T::from_json(&bytes).unwrap_or_else(|error| panic!("{}: {error}", node.path));
    serde_json::from_slice(&ours.to_json().expect("written")).expect("JSON")
}

/// Adds a field to an object and to all in it that have fields.
fn add_fields(value: &mut Value, maps: usize) {
    /// Maps by names that an administrator, a broker or a topic chose, and what is in them: 0 for values with fields.
    const MAPS: &[(&str, usize)] = &[
        ("namespace_auth", usize::MAX),
        ("destination_auth", usize::MAX),
        ("subscription_auth_roles", usize::MAX),
        ("backlog_quota_map", 1),
        ("clusterDispatchRate", 1),
        ("topicDispatchRate", 1),
        ("subscriptionDispatchRate", 1),
        ("replicatorDispatchRate", 1),
        ("clusterSubscribeRate", 1),
        ("publishMaxMessageRate", 1),
        ("latency_stats_sample_rate", usize::MAX),
        ("properties", usize::MAX),
        ("managedLedgerExtraConfigurations", usize::MAX),
        ("parameters", usize::MAX),
        ("protocols", usize::MAX),
        ("lastStats", 1),
        ("advertisedListeners", 1),
    ];
    let Value::Object(fields) = value else {
        return;
    };
    for (name, inner) in fields.iter_mut() {
        let named = MAPS.iter().find(|(map, _)| map == name);
        let levels = named.map_or(0, |(_, levels)| *levels);
        add_fields(inner, if maps > 0 { maps - 1 } else { levels });
    }
    if maps == 0 {
        fields.insert(
            "later".to_owned(),
            json!({"deeper": [1, null, 1.5], "e": {}}),
        );
    }
}

/// Protobuf comes back byte for byte.
fn same_bytes<M: Message>(path: &str, value: &Bytes) -> M {
    let message = M::decode(value).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(hex(&message.encode()), hex(value), "{path}");
    message
}

/// As [`same_bytes`]; of a compressed value what it was before compression, since each library compresses in its own way.
fn same_node<M: Message + Debug + PartialEq>(node: &Recorded) {
    let path = &node.path;
    let message: M = decode_node(&node.value).unwrap_or_else(|error| panic!("{path}: {error}"));
    let bare = encode_node(&message, NodeCompression::NEVER).expect("written");
    if node.value.starts_with(&[0x47, 0x78]) {
        let header_len = usize::from(node.value[5]);
        let header =
            formats::CompressionHeader::decode(&node.value[6..6 + header_len]).expect("valid");
        assert_eq!(
            usize::try_from(header.uncompressed_size),
            Ok(bare.len()),
            "{path}"
        );
        assert!(header.unknown.is_empty(), "{path}");
        assert_eq!(decode_node::<M>(&bare).expect("valid"), message);
    } else {
        assert_eq!(hex(&bare), hex(&node.value), "{path}");
    }
}

/// The lines of a file.
fn recorded(file: &str) -> Vec<Recorded> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/metadata")
        .join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let columns: Vec<&str> = line.split('\t').collect();
            let value = columns.last().expect("a value");
            let value = match value.split_once(':') {
                Some(("text", text)) => Bytes::copy_from_slice(text.as_bytes()),
                Some(("hex", digits)) => bytes(digits),
                _ => panic!("{file}: no value in {line:?}"),
            };
            Recorded {
                path: columns[0].to_owned(),
                ephemeral: columns[1] == "ephemeral",
                value,
            }
        })
        .collect()
}

fn bytes(digits: &str) -> Bytes {
    let places = (0..digits.len()).step_by(2);
    let decoded: Vec<u8> = places
        .map(|place| u8::from_str_radix(&digits[place..place + 2], 16).expect("hex"))
        .collect();
    decoded.into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn properties_say_what_the_recording_did() {
    let nodes: BTreeMap<String, Bytes> = recorded("closed.txt")
        .into_iter()
        .map(|node| (node.path, node.value))
        .collect();
    let cursor = |topic: &str, cursor: &str| -> ManagedCursorInfo {
        let path = format!("/managed-ledgers/team/orders/persistent/{topic}/{cursor}");
        decode_node(&nodes[&path]).expect("valid")
    };
    let property = |info: &ManagedCursorInfo| {
        let property = info.properties.first().expect("one");
        (property.name.clone(), property.value)
    };
    let compaction = cursor("keyed", "__compaction");
    assert_eq!(property(&compaction).0, "CompactedTopicLedger");
    assert_eq!(
        property(&cursor("once", "pulsar.dedup")),
        ("named".to_owned(), 4)
    );
    let replicated = property(&cursor("far", "replicated"));
    assert_eq!(replicated, ("pulsar.replicated.subscription".to_owned(), 1));
    let noted = cursor("described", "noted");
    assert_eq!(noted.cursor_properties[0].name, "purpose");
    let ended: ManagedLedgerInfo =
        decode_node(&nodes["/managed-ledgers/team/orders/persistent/ended"]).expect("valid");
    assert_eq!(ended.terminated_position.expect("terminated").entry_id, 6);
}
