//! The commands that are measured: as the Java client and broker send them, with numbers of usual size.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use prost::Message;
use pulsegate::protocol::checksum::{crc32c, crc32c_append};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::encode::{
    MessageHead, Position, put_individual_ack, put_message_head, put_send_frame,
};
use pulsegate::protocol::frame::{Frame, FrameLimits};
use pulsegate::protocol::head::HeadScanner;
use pulsegate::protocol::message::{MetadataView, decode_metadata};
use pulsegate::protocol::peek;
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
    cases.extend([
        publishing(),
        pushing(),
        acknowledging(1),
        acknowledging(100),
        relaying("SEND", true),
        relaying("MESSAGE", false),
    ]);
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
        library: into_buffer(move |out| put_generated(black_box(&envelope), 0, out)),
    }
}

/// Writes a frame head by the generated code.
fn put_generated(envelope: &pb::BaseCommand, payload_len: usize, out: &mut BytesMut) {
    let len = u32::try_from(envelope.encoded_len()).unwrap_or(u32::MAX);
    let payload_len = u32::try_from(payload_len).unwrap_or(u32::MAX);
    out.extend_from_slice(&(len + 4 + payload_len).to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    envelope.encode_raw(out);
}

/// What a relay does with each frame of 1 KiB that passes it: find it, and count its messages. The library decodes the command, and
/// of a MESSAGE the metadata, of a frame that is found already.
fn relaying(name: &str, is_send: bool) -> Case {
    const FRAMES: u32 = 100;
    let (_, command) = commands()
        .into_iter()
        .find(|(known, _)| known.starts_with(name))
        .expect("one of the commands");
    let [(_, metadata), _] = metadata();
    let (command, metadata) = (command.encode_to_vec(), metadata.encode_to_vec());
    let mut payload = BytesMut::new();
    payload.extend_from_slice(&[0x0e, 0x01, 0, 0, 0, 0]);
    payload.extend_from_slice(&u32::try_from(metadata.len()).unwrap_or(0).to_be_bytes());
    payload.extend_from_slice(&metadata);
    payload.resize(1024, b'x');
    let frame = Frame {
        command: command.clone().into(),
        payload: payload.freeze(),
    };
    let mut chunk = BytesMut::new();
    for _ in 0..FRAMES {
        frame.encode(&mut chunk);
    }
    Case {
        name: format!("relay {name} of 1 KiB"),
        by_hand: Box::new(move |times| {
            let mut scanner = HeadScanner::new(FrameLimits::default());
            for _ in 0..times / FRAMES {
                let mut messages = 0;
                let scanned = scanner.scan(black_box(&chunk), |head| {
                    let Some((_, body)) = peek::command(head.command) else {
                        return;
                    };
                    messages += if is_send {
                        peek::send(body).1
                    } else {
                        black_box(peek::varint_field(body, 1));
                        peek::messages_in_payload(head.payload)
                    };
                });
                assert!(scanned.is_ok() && black_box(messages) > 0);
            }
        }),
        generated: None,
        library: repeat(move || {
            let metadata =
                (!is_send).then(|| pb::MessageMetadata::decode(black_box(&metadata[..])));
            (pb::BaseCommand::decode(black_box(&command[..])), metadata)
        }),
    }
}

// From numbers to bytes: what a client or broker does that keeps no command.

fn publishing() -> Case {
    let [(_, metadata), _] = metadata();
    let metadata = metadata.encode_to_vec();
    let payload = vec![b'x'; 100];
    let command = || pb::CommandSend {
        producer_id: black_box(7),
        sequence_id: black_box(1_234_567),
        num_messages: black_box(Some(100)),
        highest_sequence_id: black_box(Some(1_234_666)),
        ..Default::default()
    };
    let (same_metadata, same_payload) = (metadata.clone(), payload.clone());
    Case {
        name: "publish, 100 bytes of payload".to_owned(),
        by_hand: into_buffer(move |out| put_send_frame(&command(), &metadata, &payload, out)),
        generated: None,
        library: into_buffer(move |out| {
            let (metadata, payload) = (black_box(&same_metadata), black_box(&same_payload));
            let send = pb::BaseCommand {
                send: Some(Box::new(command())),
                ..of(pb::base_command::Type::Send)
            };
            let len = u32::try_from(metadata.len())
                .unwrap_or(u32::MAX)
                .to_be_bytes();
            put_generated(&send, 10 + metadata.len() + payload.len(), out);
            let checksum = crc32c_append(crc32c_append(crc32c(&len), metadata), payload);
            out.extend_from_slice(&[0x0e, 0x01]);
            out.extend_from_slice(&checksum.to_be_bytes());
            out.extend_from_slice(&len);
            out.extend_from_slice(metadata);
            out.extend_from_slice(payload);
        }),
    }
}

fn pushing() -> Case {
    Case {
        name: "push, the head".to_owned(),
        by_hand: into_buffer(|out| {
            let head = MessageHead {
                consumer_id: black_box(7),
                position: position(black_box(40_000)),
                redelivery_count: black_box(Some(0)),
                consumer_epoch: None,
            };
            put_message_head(head, 1000, out);
        }),
        generated: None,
        library: into_buffer(|out| {
            let message = pb::CommandMessage {
                consumer_id: black_box(7),
                message_id: id(black_box(40_000)),
                redelivery_count: black_box(Some(0)),
                ..Default::default()
            };
            let message = pb::BaseCommand {
                message: Some(Box::new(message)),
                ..of(pb::base_command::Type::Message)
            };
            put_generated(&message, 1000, out);
        }),
    }
}

fn acknowledging(ids: u64) -> Case {
    let positions: Vec<_> = (0..ids).map(|n| position(40_000 + n)).collect();
    let same_positions = positions.clone();
    Case {
        name: format!("acknowledge {ids}"),
        by_hand: into_buffer(move |out| {
            put_individual_ack(black_box(7), black_box(&positions), Some(90_000), out);
        }),
        generated: None,
        library: into_buffer(move |out| {
            let positions = black_box(&same_positions);
            let ack = pb::CommandAck {
                consumer_id: black_box(7),
                message_id: positions.iter().map(|at| id(at.entry_id)).collect(),
                request_id: Some(90_000),
                ..Default::default()
            };
            let ack = pb::BaseCommand {
                ack: Some(Box::new(ack)),
                ..of(pb::base_command::Type::Ack)
            };
            put_generated(&ack, 0, out);
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

fn position(entry_id: u64) -> Position {
    Position {
        ledger_id: 123_456,
        entry_id,
        partition: Some(3),
    }
}

fn of(r#type: pb::base_command::Type) -> pb::BaseCommand {
    pb::BaseCommand {
        r#type: r#type.into(),
        ..Default::default()
    }
}

fn commands() -> Vec<(&'static str, pb::BaseCommand)> {
    use pb::base_command::Type;
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
