//! Frames that official clients and Apache Pulsar sent to each other (`tests/golden/frames.txt`, recorded by `tests/tap`):
//! whatever is decoded encodes to the same bytes.

#![expect(
    clippy::unwrap_used,
    reason = "a frame that does not decode fails the test"
)]

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use pulsegate::protocol::batch::BatchReader;
use pulsegate::protocol::command::{Command, has_payload, name_of};
use pulsegate::protocol::compression;
use pulsegate::protocol::frame::{Frame, FrameDecoder, FrameLimits};
use pulsegate::protocol::head::HeadScanner;
use pulsegate::protocol::message::{self, MessageForm, MessageParts};
use pulsegate::protocol::peek;
use pulsegate::protocol::rewrite;

const FRAMES: &str = include_str!("golden/frames.txt");

struct Golden {
    /// `>` from the client, `<` from the broker.
    direction: &'static str,
    client: &'static str,
    command: &'static str,
    bytes: Bytes,
}

fn golden() -> Vec<Golden> {
    let frames = FRAMES.lines().filter(|line| !line.starts_with('#'));
    frames
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [direction, client, command, hex] = fields[..] else {
                panic!("not a frame: {line}")
            };
            Golden {
                direction,
                client,
                command,
                bytes: unhex(hex),
            }
        })
        .collect()
}

fn unhex(hex: &str) -> Bytes {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn decode(golden: &Golden) -> Frame {
    let mut buffer = BytesMut::from(&golden.bytes[..]);
    let decoder = FrameDecoder::new(FrameLimits::default());
    let frame = decoder.decode(&mut buffer).unwrap().unwrap();
    assert!(buffer.is_empty(), "more than one frame");
    frame
}

#[test]
fn there_are_many_of_them_from_every_client_and_none_twice() {
    let golden = golden();
    let distinct: BTreeSet<_> = golden.iter().map(|frame| &frame.bytes).collect();
    assert!(distinct.len() >= 300, "{}", distinct.len());
    let recorded: BTreeSet<_> = golden
        .iter()
        .map(|frame| (frame.client, frame.direction, &frame.bytes))
        .collect();
    assert_eq!(recorded.len(), golden.len());
    for client in ["java", "python", "go"] {
        for direction in ["<", ">"] {
            let some = golden
                .iter()
                .any(|frame| frame.client == client && frame.direction == direction);
            assert!(some, "{client} {direction}");
        }
    }
    let mut commands: BTreeMap<_, usize> = BTreeMap::new();
    for frame in &golden {
        *commands.entry(frame.command).or_default() += 1;
    }
    assert!(commands.len() >= 45, "{commands:?}");
}

#[test]
fn frames_and_commands_encode_to_the_bytes_they_were_decoded_from() {
    for golden in golden() {
        let frame = decode(&golden);
        let command = Command::decode(&frame.command).unwrap();
        assert_eq!(name_of(command.command_type()), golden.command);
        assert_eq!(command.encode_command(), frame.command, "{command:?}");
        let mut encoded = BytesMut::new();
        command.encode_with_payload(&[&frame.payload], &mut encoded);
        assert_eq!(encoded, golden.bytes, "{command:?}");
        let mut encoded = BytesMut::new();
        frame.encode(&mut encoded);
        assert_eq!(encoded, golden.bytes);
        assert_eq!(
            has_payload(command.command_type()),
            !frame.payload.is_empty()
        );
    }
}

#[test]
fn messages_encode_to_the_bytes_they_were_decoded_from() {
    let mut messages = 0;
    for golden in golden() {
        let frame = decode(&golden);
        if frame.payload.is_empty() {
            continue;
        }
        messages += 1;
        let parts = message::split_payload(frame.payload.clone()).unwrap();
        parts.verify_checksum().unwrap();
        let form = MessageForm {
            checksum: parts.checksum.is_some(),
            broker_entry: parts.broker_entry.as_ref(),
        };
        let encoded = message::encode(&parts.metadata, parts.payload.clone(), form);
        assert_eq!(encoded.to_bytes(), frame.payload, "{:?}", parts.metadata);
        assert_batch_encodes_to_its_bytes(&parts);
    }
    assert!(messages >= 100, "{messages}");
}

fn assert_batch_encodes_to_its_bytes(parts: &MessageParts) {
    if !parts.is_batch() || !parts.metadata.encryption_keys.is_empty() {
        return;
    }
    let claimed = parts.metadata.uncompressed_size();
    let codec = parts.metadata.compression();
    let payload = compression::decompress(codec, &parts.payload, claimed, 10_000_000).unwrap();
    let count = parts.metadata.num_messages_in_batch();
    let mut encoded = BytesMut::new();
    for single in BatchReader::new(payload.clone(), count).unwrap() {
        let (metadata, payload) = single.unwrap();
        let metadata = metadata.encode_to_vec();
        encoded.put_u32(metadata.len().try_into().unwrap());
        encoded.put_slice(&metadata);
        encoded.put_slice(&payload);
    }
    assert_eq!(encoded, payload);
}

#[test]
fn what_the_relay_peeks_at_is_what_a_decode_says() {
    for golden in golden() {
        let frame = decode(&golden);
        let mut scanner = HeadScanner::new(FrameLimits::default());
        let mut seen = 0;
        scanner
            .scan(&golden.bytes, |head| {
                seen += 1;
                assert_eq!(head.wire_len, golden.bytes.len());
                let (command_type, body) = peek::command(head.command).unwrap();
                assert_eq!(name_of(command_type), golden.command);
                match Command::decode(&frame.command).unwrap() {
                    Command::Send(send) => {
                        let messages = u64::try_from(send.num_messages()).unwrap();
                        assert_eq!(peek::send(body), (Some(send.producer_id), messages));
                    }
                    Command::Message(message) => {
                        assert_eq!(peek::varint_field(body, 1), Some(message.consumer_id));
                        let parts = message::split_payload(frame.payload.clone()).unwrap();
                        let messages =
                            u64::try_from(parts.metadata.num_messages_in_batch()).unwrap();
                        assert_eq!(peek::messages_in_payload(head.payload), messages);
                    }
                    _ => {}
                }
            })
            .unwrap();
        assert_eq!(seen, 1);
    }
}

#[test]
fn only_the_request_id_changes_when_it_is_replaced() {
    for golden in golden() {
        let frame = decode(&golden);
        let Some(request_id) = Command::decode(&frame.command).unwrap().request_id() else {
            continue;
        };
        assert_eq!(rewrite::request_id_of(&frame.command), Some(request_id));
        let other = rewrite::with_request_id(&frame.command, request_id ^ 0x5555_5555).unwrap();
        assert_ne!(other, frame.command);
        let back = rewrite::with_request_id(&other, request_id).unwrap();
        assert_eq!(back, frame.command, "{}", golden.command);
    }
}
