//! The commands that are measured: as the Java client and broker send them, with numbers of usual size.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use prost::Message;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::message::{MetadataView, decode_metadata};
use pulsegate::protocol::proto::pulsar as pb;
use pulsegate::testing::codec::{decode_generated, decode_metadata_generated};

/// Does something as many times as it is told.
pub(crate) type Work = Box<dyn Fn(u32)>;

/// One operation on one value, done in several ways.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) by_hand: Work,
    /// The way of the cold commands.
    pub(crate) generated: Option<Work>,
    pub(crate) library: Work,
}

/// All cases.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, envelope) in commands() {
        let bytes = Bytes::from(envelope.encode_to_vec());
        let name = format!("{name}, {} bytes", bytes.len());
        let command = Command::decode(&bytes).expect("a command");
        assert_eq!(command.encode_command(), bytes, "{name}");
        cases.push(decoding(&name, bytes));
        cases.push(encoding(&name, command, envelope));
    }
    for (name, metadata) in metadata() {
        let bytes = Bytes::from(metadata.encode_to_vec());
        let len = bytes.len();
        let (view, owned) = (bytes.clone(), bytes.clone());
        let (generated, library) = (bytes.clone(), bytes.clone());
        cases.push(Case {
            name: format!("view {name}, {len} bytes"),
            by_hand: repeat(move || {
                black_box(&MetadataView::read(black_box(&view)));
            }),
            generated: Some(repeat(move || {
                decode_metadata_generated(black_box(&generated).clone())
            })),
            library: repeat(move || pb::MessageMetadata::decode(black_box(&library).clone())),
        });
        let (generated, library) = (bytes.clone(), bytes);
        cases.push(Case {
            name: format!("decode {name}, {len} bytes"),
            by_hand: repeat(move || decode_metadata(black_box(&owned).clone())),
            generated: Some(repeat(move || {
                decode_metadata_generated(black_box(&generated).clone())
            })),
            library: repeat(move || pb::MessageMetadata::decode(black_box(&library).clone())),
        });
    }
    cases
}

fn metadata() -> [(&'static str, pb::MessageMetadata); 2] {
    let batch = pb::MessageMetadata {
        producer_name: "standalone-0-17".to_owned(),
        sequence_id: 1_234_567,
        publish_time: 1_760_000_000_000,
        num_messages_in_batch: Some(100),
        compression: Some(1),
        uncompressed_size: Some(102_400),
        highest_sequence_id: Some(1_234_666),
        ..Default::default()
    };
    let single = pb::MessageMetadata {
        producer_name: "standalone-0-17".to_owned(),
        sequence_id: 1_234_567,
        publish_time: 1_760_000_000_000,
        properties: vec![pb::KeyValue {
            key: "origin".to_owned(),
            value: "eu-central".to_owned(),
        }],
        partition_key: Some("customer-4711".to_owned()),
        uncompressed_size: Some(1024),
        event_time: Some(1_760_000_000_000),
        schema_version: Some(Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 1])),
        ..Default::default()
    };
    [
        ("metadata of a batch", batch),
        ("metadata with a property", single),
    ]
}

fn decoding(name: &str, bytes: Bytes) -> Case {
    let (by_hand, generated) = (bytes.clone(), bytes.clone());
    Case {
        name: format!("decode {name}"),
        by_hand: repeat(move || Command::decode(black_box(&by_hand))),
        generated: Some(repeat(move || decode_generated(black_box(&generated)))),
        library: repeat(move || pb::BaseCommand::decode(black_box(&bytes[..]))),
    }
}

fn encoding(name: &str, command: Command, envelope: pb::BaseCommand) -> Case {
    Case {
        name: format!("encode {name}"),
        by_hand: into_buffer(move |out| black_box(&command).encode(out)),
        generated: None,
        library: into_buffer(move |out| {
            let envelope = black_box(&envelope);
            let len = u32::try_from(envelope.encoded_len()).unwrap_or(u32::MAX);
            out.extend_from_slice(&(len + 4).to_be_bytes());
            out.extend_from_slice(&len.to_be_bytes());
            envelope.encode_raw(out);
        }),
    }
}

fn repeat<T>(operation: impl Fn() -> T + 'static) -> Work {
    Box::new(move |times| {
        for _ in 0..times {
            // By reference: a copy of a value of hundreds of bytes would be measured as well.
            black_box(&operation());
        }
    })
}

/// Repeats what writes into a buffer that is large enough and emptied each time.
fn into_buffer(operation: impl Fn(&mut BytesMut) + 'static) -> Work {
    Box::new(move |times| {
        let mut out = BytesMut::with_capacity(16 << 10);
        for _ in 0..times {
            out.clear();
            operation(&mut out);
            black_box(&out);
        }
    })
}

fn id(entry_id: u64) -> pb::MessageIdData {
    pb::MessageIdData {
        ledger_id: 123_456,
        entry_id,
        partition: Some(3),
        ..Default::default()
    }
}

fn commands() -> Vec<(&'static str, pb::BaseCommand)> {
    use pb::base_command::Type;
    let of = |r#type: Type| pb::BaseCommand {
        r#type: r#type.into(),
        ..Default::default()
    };
    let ack = |ids: u64| pb::BaseCommand {
        ack: Some(Box::new(pb::CommandAck {
            consumer_id: 7,
            message_id: (0..ids).map(|n| id(40_000 + n)).collect(),
            request_id: Some(90_000),
            ..Default::default()
        })),
        ..of(Type::Ack)
    };
    vec![
        (
            "SEND",
            pb::BaseCommand {
                send: Some(Box::new(pb::CommandSend {
                    producer_id: 7,
                    sequence_id: 1_234_567,
                    num_messages: Some(100),
                    highest_sequence_id: Some(1_234_666),
                    ..Default::default()
                })),
                ..of(Type::Send)
            },
        ),
        (
            "SEND_RECEIPT",
            pb::BaseCommand {
                send_receipt: Some(Box::new(pb::CommandSendReceipt {
                    producer_id: 7,
                    sequence_id: 1_234_567,
                    message_id: Some(id(40_000)),
                    highest_sequence_id: Some(1_234_666),
                })),
                ..of(Type::SendReceipt)
            },
        ),
        (
            "MESSAGE",
            pb::BaseCommand {
                message: Some(Box::new(pb::CommandMessage {
                    consumer_id: 7,
                    message_id: id(40_000),
                    redelivery_count: Some(0),
                    ..Default::default()
                })),
                ..of(Type::Message)
            },
        ),
        ("ACK of 1", ack(1)),
        ("ACK of 100", ack(100)),
        (
            "FLOW",
            pb::BaseCommand {
                flow: Some(Box::new(pb::CommandFlow {
                    consumer_id: 7,
                    message_permits: 1000,
                })),
                ..of(Type::Flow)
            },
        ),
        (
            "PING",
            pb::BaseCommand {
                ping: Some(Box::new(pb::CommandPing {})),
                ..of(Type::Ping)
            },
        ),
        (
            "PONG",
            pb::BaseCommand {
                pong: Some(Box::new(pb::CommandPong {})),
                ..of(Type::Pong)
            },
        ),
    ]
}
