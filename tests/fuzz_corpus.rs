//! The properties of the fuzz bodies, over the checked-in corpus, over mutations of it, and over random bytes.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected shall panic"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::{BufMut, Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use pulsegate::protocol::batch::{BatchBuilder, BatchLimits};
use pulsegate::protocol::chunk;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::compression;
use pulsegate::protocol::message::{self, MessageForm};
use pulsegate::protocol::proto::pulsar::{
    self as pb, BrokerEntryMetadata, CompressionType, KeyValue, MessageMetadata,
    SingleMessageMetadata,
};
use pulsegate::testing::fuzz::{BODIES, Body};

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The corpus of a target: file names and contents, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = fuzz_dir().join("corpus").join(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_body_has_a_target_and_a_corpus() {
    let bodies: BTreeSet<_> = BODIES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(bodies.len(), BODIES.len());
    let targets: BTreeSet<_> = fs::read_dir(fuzz_dir().join("fuzz_targets"))
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(bodies, targets);
    let manifest = fs::read_to_string(fuzz_dir().join("Cargo.toml")).unwrap();
    for name in &bodies {
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "no target {name}"
        );
        assert!(corpus(name).len() > 3, "{name} has no seeds");
    }
}

#[test]
fn the_properties_hold_over_the_corpus() {
    for (target, body) in BODIES {
        for (name, data) in corpus(target) {
            println!("{target}/{name}");
            body(&data);
        }
    }
}

/// One change of an entry.
#[derive(Debug, Clone)]
enum Mutation {
    Flip(Index, u8),
    Set(Index, u8),
    Truncate(Index),
    Insert(Index, Vec<u8>),
    Repeat(Index, Index),
    /// A size that lies.
    Overwrite(Index, u32),
}

impl Mutation {
    fn apply(&self, data: &mut Vec<u8>) {
        let at = |index: &Index| index.index(data.len() + 1);
        match self {
            Mutation::Flip(index, bits) => {
                let at = at(index);
                if let Some(byte) = data.get_mut(at) {
                    *byte ^= bits;
                }
            }
            Mutation::Set(index, value) => {
                let at = at(index);
                if let Some(byte) = data.get_mut(at) {
                    *byte = *value;
                }
            }
            Mutation::Truncate(index) => data.truncate(at(index)),
            Mutation::Insert(index, bytes) => {
                let at = at(index);
                data.splice(at..at, bytes.iter().copied());
            }
            Mutation::Repeat(from, to) => {
                let (from, to) = (at(from), at(to));
                let part = data[from.min(to)..from.max(to)].to_vec();
                data.splice(from..from, part);
            }
            Mutation::Overwrite(index, value) => {
                let at = at(index);
                if let Some(place) = data.get_mut(at..at + 4) {
                    place.copy_from_slice(&value.to_be_bytes());
                }
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<Index>;
    let lies = prop_oneof![
        any::<u32>(),
        0_u32..300,
        select(vec![0, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x4000_0000]),
    ];
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, bits)| Mutation::Flip(at, bits)),
        (index(), any::<u8>()).prop_map(|(at, value)| Mutation::Set(at, value)),
        index().prop_map(Mutation::Truncate),
        (index(), vec(any::<u8>(), 0..9)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        (index(), index()).prop_map(|(from, to)| Mutation::Repeat(from, to)),
        (index(), lies).prop_map(|(at, value)| Mutation::Overwrite(at, value)),
    ]
}

/// An entry of some corpus, and the body it belongs to.
fn entry() -> impl Strategy<Value = (&'static str, Body, Vec<u8>)> {
    let of = |target| corpus(target).into_iter().map(|(_, data)| data).collect();
    let all: Vec<(_, _, Vec<Vec<u8>>)> = BODIES
        .iter()
        .map(|(target, body)| (*target, *body, of(target)))
        .collect();
    (select(all), any::<Index>()).prop_map(|((target, body, entries), index)| {
        let data = index.get(&entries).clone();
        (target, body, data)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn the_properties_hold_over_mutations_of_the_corpus(
        (target, body, mut data) in entry(),
        mutations in vec(mutation(), 1..5),
    ) {
        let _ = target;
        for mutation in &mutations {
            mutation.apply(&mut data);
        }
        body(&data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_properties_hold_over_random_bytes(
        data in vec(prop_oneof![Just(0), Just(4), 0_u8..32, any::<u8>()], 0..200),
    ) {
        for (_, body) in BODIES {
            body(&data);
        }
    }
}

/// Writes the named seeds of every corpus. They are checked in, so that the corpus does not change under a failing case.
#[test]
#[ignore = "writes into the source tree"]
fn write_seeds() {
    let seeds = [
        ("batch", batch_seeds()),
        ("chunk", chunk_seeds()),
        ("command", command_seeds()),
        ("decompress", decompress_seeds()),
        ("frame", frame_seeds()),
        ("message", message_seeds()),
        ("rewrite", rewrite_seeds()),
    ];
    for (target, seeds) in seeds {
        let dir = fuzz_dir().join("corpus").join(target);
        fs::create_dir_all(&dir).unwrap();
        for (name, data) in seeds {
            fs::write(dir.join(name), data).unwrap();
        }
    }
}

type Seeds = Vec<(String, Bytes)>;

fn with_prefix(prefix: &[u8], data: &[u8]) -> Bytes {
    [prefix, data].concat().into()
}

fn metadata() -> MessageMetadata {
    let property = KeyValue {
        key: "k".into(),
        value: "v".into(),
    };
    MessageMetadata {
        producer_name: "standalone-0-1".into(),
        sequence_id: 7,
        publish_time: 1_700_000_000_000,
        properties: vec![property],
        partition_key: Some("key".into()),
        ..Default::default()
    }
}

fn batch_of(count: u64) -> (MessageMetadata, Bytes) {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    for sequence_id in 0..count {
        let metadata = SingleMessageMetadata {
            sequence_id: Some(sequence_id),
            partition_key: (sequence_id % 2 == 1).then(|| "key".to_owned()),
            ..Default::default()
        };
        if sequence_id == 2 {
            builder.push_compacted_out(metadata).unwrap();
        } else {
            builder.push(metadata, b"payload").unwrap();
        }
    }
    builder
        .finish(metadata(), CompressionType::None)
        .unwrap()
        .unwrap()
}

fn batch_seeds() -> Seeds {
    let claims = [
        ("one", 1, 1),
        ("four", 4, 4),
        ("fewer", 3, 5),
        ("more", 3, 2),
    ];
    let mut seeds: Seeds = claims
        .iter()
        .map(|(name, count, claimed)| {
            let claimed: i32 = *claimed;
            (
                (*name).to_owned(),
                with_prefix(&claimed.to_be_bytes(), &batch_of(*count).1),
            )
        })
        .collect();
    seeds.push((
        "huge-count".into(),
        with_prefix(&i32::MAX.to_be_bytes(), &batch_of(2).1),
    ));
    seeds
}

fn message_seeds() -> Seeds {
    let broker_entry = BrokerEntryMetadata {
        broker_timestamp: Some(5),
        index: Some(9),
    };
    let (batch_metadata, batch) = batch_of(2);
    let chunk = chunk::split(&metadata(), Bytes::from_static(b"abcdef"), "u", 3)
        .unwrap()
        .nth(1)
        .unwrap();
    let form = |checksum, broker_entry| MessageForm {
        checksum,
        broker_entry,
    };
    let encode = |metadata: &_, payload, form| message::encode(metadata, payload, form).to_bytes();
    let payload = Bytes::from_static(b"payload");
    vec![
        (
            "plain".into(),
            encode(&metadata(), payload.clone(), form(false, None)),
        ),
        (
            "checksum".into(),
            encode(&metadata(), payload.clone(), form(true, None)),
        ),
        (
            "broker-entry".into(),
            encode(&metadata(), payload, form(true, Some(&broker_entry))),
        ),
        (
            "batch".into(),
            encode(&batch_metadata, batch, form(true, None)),
        ),
        ("chunk".into(), encode(&chunk.0, chunk.1, form(true, None))),
        (
            "lying-size".into(),
            Bytes::from_static(b"\x0e\x01\0\0\0\0\x7f\xff\xff\xff\x0a\0"),
        ),
    ]
}

fn decompress_seeds() -> Seeds {
    let codecs = [
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ];
    let text = Bytes::from_static(b"a message, a message, another message and a message");
    let zeros = Bytes::from(vec![0; 3000]);
    let mut seeds = Vec::new();
    for (number, codec) in (0_u8..).zip(codecs) {
        for (name, data) in [("text", &text), ("zeros", &zeros)] {
            let block = compression::compress(codec, data).unwrap();
            let mut seed = vec![number];
            seed.put_u32(u32::try_from(data.len()).unwrap());
            let name = format!("{}-{name}", codec.as_str_name().to_lowercase());
            seeds.push((name, with_prefix(&seed, &block)));
        }
    }
    seeds.push((
        "gigabytes".into(),
        Bytes::from_static(b"\x03\x7f\xff\xff\xff\x28\xb5\x2f\xfd\0"),
    ));
    seeds
}

fn chunk_seeds() -> Seeds {
    let seed = |bytes: &'static [u8]| Bytes::from_static(bytes);
    vec![
        ("in-order".into(), seed(b"\x00\x00\x03\x06\x02ab\x00\x01\x03\x06\x02cd\x00\x02\x03\x06\x02ef")),
        ("mixed".into(), seed(b"\x00\x00\x02\x02\x01a\x01\x00\x02\x02\x01b\x01\x01\x02\x02\x01c\x00\x01\x02\x02\x01d")),
        ("evicting".into(), seed(b"\x00\x00\x02\x02\x01a\x01\x00\x02\x02\x01b\x02\x00\x02\x02\x01c\x03\x00\x02\x02\x01d")),
        ("again".into(), seed(b"\x00\x00\x02\x02\x01a\x00\x00\x02\x02\x01a\x00\x01\x02\x02\x01b")),
        ("wide".into(), seed(b"\x10\0\0\0\0\0\0\0\x02\x7f\xff\xff\xff\x01a")),
        ("no-id".into(), seed(b"\x20\x00\x02\x02\x01a\x40\x00\x02\x02\x01a\x80\x00\x02\x02\x01a")),
    ]
}

fn commands() -> Vec<(&'static str, Command)> {
    let message_id = pb::MessageIdData {
        ledger_id: 3,
        entry_id: 5,
        ..Default::default()
    };
    let topic = "persistent://public/default/t".to_owned();
    vec![
        (
            "connect",
            Command::Connect(Box::new(pb::CommandConnect {
                client_version: "a client".into(),
                protocol_version: Some(21),
                feature_flags: Some(pb::FeatureFlags {
                    supports_auth_refresh: Some(true),
                    ..Default::default()
                }),
                ..Default::default()
            })),
        ),
        (
            "lookup",
            Command::Lookup(Box::new(pb::CommandLookupTopic {
                topic: topic.clone(),
                request_id: 9,
                authoritative: Some(true),
                ..Default::default()
            })),
        ),
        (
            "subscribe",
            Command::Subscribe(Box::new(pb::CommandSubscribe {
                topic,
                subscription: "s".into(),
                consumer_id: 1,
                request_id: 300,
                start_message_id: Some(message_id.clone()),
                ..Default::default()
            })),
        ),
        (
            "ack",
            Command::Ack(pb::CommandAck {
                consumer_id: 1,
                message_id: vec![message_id.clone(), message_id],
                request_id: Some(4),
                ..Default::default()
            }),
        ),
        (
            "send",
            Command::Send(pb::CommandSend {
                producer_id: 1,
                sequence_id: 2,
                ..Default::default()
            }),
        ),
        (
            "flow",
            Command::Flow(pb::CommandFlow {
                consumer_id: 1,
                message_permits: 1000,
            }),
        ),
        ("ping", Command::Ping(pb::CommandPing {})),
    ]
}

fn command_seeds() -> Seeds {
    let mut seeds: Seeds = commands()
        .into_iter()
        .map(|(name, command)| (name.to_owned(), command.encode_command()))
        .collect();
    seeds.push((
        "unknown-type".into(),
        Bytes::from_static(b"\x08\xe7\x07\xba\x3e\x02\x08\x01"),
    ));
    seeds.push(("no-body".into(), Bytes::from_static(b"\x08\x06")));
    seeds.push((
        "body-twice".into(),
        Bytes::from_static(b"\x08\x12\x92\x01\x00\x92\x01\x00"),
    ));
    seeds
}

fn rewrite_seeds() -> Seeds {
    let edits = [
        [0, 2, 0, 0, 1, 0],
        [1, 3, 0, 0, 0, 9],
        [2, 30, 0, 0, 0, 1],
        [3, 1, 0, 0, 0, 0],
    ];
    command_seeds()
        .into_iter()
        .zip(edits.iter().cycle())
        .map(|((name, command), edit)| (name, with_prefix(edit, &command)))
        .collect()
}

fn frame_seeds() -> Seeds {
    let mut stream = BytesMut::new();
    for (_, command) in commands() {
        let (metadata, batch) = batch_of(2);
        let message = message::encode(&metadata, batch, MessageForm::default());
        match command {
            Command::Send(_) => {
                command.encode_with_payload(&[&message.header, &message.payload], &mut stream);
            }
            _ => command.encode(&mut stream),
        }
    }
    let reads = |limit: u16, read: u8| {
        let [high, low] = limit.to_be_bytes();
        with_prefix(&[high, low, read], &stream)
    };
    vec![
        ("bytewise".into(), reads(10_000, 1)),
        ("in-reads".into(), reads(10_000, 50)),
        ("too-large".into(), reads(60, 20)),
        (
            "beyond".into(),
            Bytes::from_static(b"\x01\0\x05\0\0\0\x08\0\0\0\x05abcd"),
        ),
        (
            "too-short".into(),
            Bytes::from_static(b"\x01\0\x05\0\0\0\x03\0\0\0"),
        ),
        (
            "negative".into(),
            Bytes::from_static(b"\xff\xff\x05\xff\xff\xff\xff\0\0\0\x01"),
        ),
    ]
}
