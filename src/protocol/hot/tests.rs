use bytes::Bytes;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use prost::Message;

use super::{body_len, ordered};
use crate::protocol::command::{Command, CommandError};
use crate::protocol::proto::pulsar as pb;
use crate::protocol::wire::put_varint;

const HOT: [u8; 7] = [6, 7, 9, 10, 11, 18, 19];

/// Numbers of every length as a varint.
pub(super) fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift)
}

pub(super) fn signed() -> impl Strategy<Value = i32> {
    prop_oneof![
        Just(-1),
        any::<i32>(),
        0..300,
        Just(i32::MIN),
        Just(i32::MAX)
    ]
}

fn words() -> impl Strategy<Value = Vec<i64>> {
    prop_oneof![3 => Just(Vec::new()), 1 => vec(any::<i64>(), 1..20)]
}

pub(super) fn id(nested: u32) -> BoxedStrategy<pb::MessageIdData> {
    let first = if nested == 0 {
        Just(None).boxed()
    } else {
        prop_oneof![3 => Just(None), 1 => id(nested - 1).prop_map(|id| Some(Box::new(id)))].boxed()
    };
    let numbers = (number(), number(), of(signed()), of(signed()), of(signed()));
    (numbers, words(), first)
        .prop_map(
            |((ledger_id, entry_id, partition, batch_index, batch_size), ack_set, first)| {
                pb::MessageIdData {
                    ledger_id,
                    entry_id,
                    partition,
                    batch_index,
                    ack_set,
                    batch_size,
                    first_chunk_message_id: first,
                }
            },
        )
        .boxed()
}

pub(super) fn send() -> impl Strategy<Value = Command> {
    let numbers = (
        number(),
        number(),
        of(signed()),
        of(number()),
        of(number()),
        of(number()),
    );
    (numbers, any::<(Option<bool>, Option<bool>)>(), of(id(1))).prop_map(
        |(numbers, (is_chunk, marker), message_id)| {
            let (producer_id, sequence_id, num_messages, least, most, highest) = numbers;
            Command::Send(pb::CommandSend {
                producer_id,
                sequence_id,
                num_messages,
                txnid_least_bits: least,
                txnid_most_bits: most,
                highest_sequence_id: highest,
                is_chunk,
                marker,
                message_id,
            })
        },
    )
}

fn receipt() -> impl Strategy<Value = Command> {
    (number(), number(), of(id(2)), of(number())).prop_map(
        |(producer_id, sequence_id, message_id, highest_sequence_id)| {
            Command::SendReceipt(pb::CommandSendReceipt {
                producer_id,
                sequence_id,
                message_id,
                highest_sequence_id,
            })
        },
    )
}

fn message() -> impl Strategy<Value = Command> {
    (number(), id(1), of(any::<u32>()), words(), of(number())).prop_map(
        |(consumer_id, message_id, redelivery_count, ack_set, consumer_epoch)| {
            Command::Message(pb::CommandMessage {
                consumer_id,
                message_id,
                redelivery_count,
                ack_set,
                consumer_epoch,
            })
        },
    )
}

pub(super) fn ack(properties: usize) -> impl Strategy<Value = Command> {
    let numbers = (
        number(),
        signed(),
        of(signed()),
        of(number()),
        of(number()),
        of(number()),
    );
    let properties = vec((any::<String>(), number()), 0..=properties);
    (numbers, vec(id(1), 0..6), properties).prop_map(|(numbers, message_id, properties)| {
        let (consumer_id, ack_type, validation_error, least, most, request_id) = numbers;
        Command::Ack(pb::CommandAck {
            consumer_id,
            ack_type,
            message_id,
            validation_error,
            properties: properties
                .into_iter()
                .map(|(key, value)| pb::KeyLongValue { key, value })
                .collect(),
            txnid_least_bits: least,
            txnid_most_bits: most,
            request_id,
        })
    })
}

fn flow() -> impl Strategy<Value = Command> {
    (number(), any::<u32>()).prop_map(|(consumer_id, message_permits)| {
        Command::Flow(pb::CommandFlow {
            consumer_id,
            message_permits,
        })
    })
}

/// Any hot command; ACKs with up to so many properties.
pub(super) fn command(properties: usize) -> impl Strategy<Value = Command> {
    prop_oneof![
        send(),
        receipt(),
        message(),
        ack(properties),
        flow(),
        Just(Command::Ping(pb::CommandPing {})),
        Just(Command::Pong(pb::CommandPong {})),
    ]
}

/// Encodes a command by the generated code alone, envelope and all.
pub(super) fn generated(command: &Command) -> Bytes {
    let mut envelope = pb::BaseCommand {
        r#type: command.command_type(),
        ..Default::default()
    };
    match command.clone() {
        Command::Send(content) => envelope.send = Some(Box::new(content)),
        Command::SendReceipt(content) => envelope.send_receipt = Some(Box::new(content)),
        Command::Message(content) => envelope.message = Some(Box::new(content)),
        Command::Ack(content) => envelope.ack = Some(Box::new(content)),
        Command::Flow(content) => envelope.flow = Some(Box::new(content)),
        Command::Ping(content) => envelope.ping = Some(Box::new(content)),
        Command::Pong(content) => envelope.pong = Some(Box::new(content)),
        other => panic!("not hot: {other:?}"),
    }
    envelope.encode_to_vec().into()
}

/// Decodes by hand, if that is possible.
fn decode(bytes: &[u8]) -> Option<Command> {
    let unordered = super::decode::decode(bytes);
    let refusal = || Err(CommandError::TypeMissing);
    match ordered::decode_or(bytes, refusal) {
        Ok(command) => {
            assert_eq!(Some(&command), unordered.as_ref());
            Some(command)
        }
        Err(_) => unordered,
    }
}

/// What has to hold for any bytes; tells whether they were read by hand.
fn agrees(bytes: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(bytes);
    let expected = Command::decode_generated(&bytes);
    let by_hand = decode(&bytes);
    if let Some(command) = &by_hand {
        assert_eq!(Ok(command), expected.as_ref(), "{bytes:x?}");
        assert_eq!(command.encode_command(), generated(command));
    }
    assert_eq!(Command::decode(&bytes), expected);
    by_hand.is_some()
}

/// A command with this content.
fn envelope(command_type: u8, body: &[u8]) -> Vec<u8> {
    let mut command = vec![8, command_type];
    prost::encoding::bytes::encode(command_type.into(), &body.to_vec(), &mut command);
    command
}

/// A field with any number in reach and any wire type, content nested as deep as `depth`.
fn field(depth: u32) -> BoxedStrategy<Vec<u8>> {
    let key = |number: u64, wire_type: u64| {
        let mut key = Vec::new();
        put_varint(number << 3 | wire_type, &mut key);
        key
    };
    let varint = (1..12_u64, number()).prop_map(move |(at, value)| {
        let mut field = key(at, 0);
        put_varint(value, &mut field);
        field
    });
    let content = if depth == 0 {
        vec(any::<u8>(), 0..6).boxed()
    } else {
        fields(depth - 1).boxed()
    };
    let message = (1..12_u64, content).prop_map(move |(at, content)| {
        let mut field = key(at, 2);
        put_varint(content.len() as u64, &mut field);
        field.extend(content);
        field
    });
    // An id with its required fields, in a place where one is expected.
    let id =
        (prop_oneof![Just(2_u64), Just(3), Just(7), Just(9)], id(1)).prop_map(move |(at, id)| {
            let mut field = key(at, 2);
            field.extend(id.encode_length_delimited_to_vec());
            field
        });
    let odd = prop_oneof![
        (1..200_u64).prop_map(move |at| [key(at, 1), vec![7; 8]].concat()),
        (1..200_u64).prop_map(move |at| [key(at, 5), vec![7; 4]].concat()),
        (1..200_u64).prop_map(move |at| [key(at, 3), key(at, 4)].concat()),
        (16..200_u64).prop_map(move |at| [key(at, 0), vec![0xff, 1]].concat()),
        // A key in more bytes than it needs.
        (1..10_u8).prop_map(|at| vec![at << 3 | 0x80, 0, 1]),
    ];
    prop_oneof![12 => varint, 4 => message, 4 => id, 1 => odd].boxed()
}

fn fields(depth: u32) -> impl Strategy<Value = Vec<u8>> {
    let required = prop_oneof![3 => Just(vec![8, 1, 16, 2]), 1 => Just(Vec::new())];
    (required, vec(field(depth), 0..6))
        .prop_map(|(required, fields)| [required, fields.concat()].concat())
}

proptest! {
    #[test]
    fn writes_and_reads_what_the_generated_code_does(command in command(0)) {
        let bytes = generated(&command);
        prop_assert_eq!(command.encode_command(), &bytes);
        prop_assert_eq!(command.encoded_len(), bytes.len());
        prop_assert!(body_len(&command).is_some());
        prop_assert_eq!(decode(&bytes), Some(command));
        prop_assert!(agrees(&bytes));
    }

    #[test]
    fn leaves_properties_of_acks_to_the_generated_code(command in ack(3)) {
        let bytes = generated(&command);
        prop_assert_eq!(command.encode_command(), &bytes);
        prop_assert_eq!(Command::decode(&bytes), Ok(command));
        agrees(&bytes);
    }

    #[test]
    fn damaged_commands_give_the_same_value_or_the_same_error(
        command in command(1),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut: prop::sample::Index,
    ) {
        let mut bytes = generated(&command).to_vec();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        agrees(&bytes);
        bytes.truncate(cut.index(bytes.len() + 1));
        agrees(&bytes);
    }

    #[test]
    fn damaged_contents_of_the_right_length_too(
        command in command(1),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut: prop::sample::Index,
    ) {
        let number = u8::try_from(command.command_type()).unwrap();
        let mut body = Vec::new();
        command.put_generated_body(&mut body);
        body.truncate(cut.index(body.len() + 1));
        for (index, byte) in damage {
            if !body.is_empty() {
                let at = index.index(body.len());
                body[at] = byte;
            }
        }
        agrees(&envelope(number, &body));
    }

    #[test]
    fn fields_in_any_order_and_number(at in 0..HOT.len(), body in fields(2), behind in fields(0)) {
        let bytes = envelope(HOT[at], &body);
        agrees(&bytes);
        agrees(&[bytes, behind].concat());
    }

    #[test]
    fn two_contents_in_one(one in command(1), other in command(1)) {
        let number = u8::try_from(one.command_type()).unwrap();
        let mut body = Vec::new();
        one.put_generated_body(&mut body);
        other.put_generated_body(&mut body);
        agrees(&envelope(number, &body));
        agrees(&[generated(&one), generated(&other)].concat());
    }
}

#[test]
fn fields_of_later_versions_are_read_over() {
    let later = b"\xf8\x07\x01\x82\x08\x02hi\xf5\x07\x01\x02\x03\x04\xf9\x07\x01\x02\x03\x04\x05\x06\x07\x08";
    let id = [&b"\x08\x01\x10\x02"[..], later].concat();
    let mut with_id = Vec::new();
    prost::encoding::bytes::encode(2, &id, &mut with_id);
    for (number, body) in [
        (6, &b"\x08\x01\x10\x02"[..]),
        (7, b"\x08\x01\x10\x02"),
        (9, &[b"\x08\x01", &with_id[..]].concat()),
        (10, b"\x08\x01\x10\x01\x1a\x04\x08\x01\x10\x02"),
        (11, b"\x08\x01\x10\x02"),
        (18, b""),
        (19, b""),
    ] {
        assert!(
            agrees(&envelope(number, &[body, later].concat())),
            "{number}"
        );
        assert!(
            agrees(&envelope(number, &[later, body].concat())),
            "{number}"
        );
    }
}

#[test]
fn ack_sets_are_read_packed_and_not() {
    let mixed = b"\x08\x01\x10\x02\x2a\x03\x01\xac\x02\x28\x07\x2a\x00\x2a\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    let mut body = b"\x08\x01\x20\x05\x22\x02\x06\x07".to_vec();
    prost::encoding::bytes::encode(2, &mixed.to_vec(), &mut body);
    let bytes = envelope(9, &body);
    assert!(agrees(&bytes));
    let Some(Command::Message(message)) = decode(&bytes) else {
        panic!("no MESSAGE");
    };
    assert_eq!(message.ack_set, [5, 6, 7]);
    assert_eq!(message.message_id.ack_set, [1, 300, 7, -1]);
}

#[test]
fn the_list_of_an_ack_takes_what_it_needs() {
    let ids = b"\x1a\x04\x08\x01\x10\x02".repeat(100);
    let Some(Command::Ack(ack)) = decode(&envelope(10, &[b"\x08\x01\x10\0", &ids[..]].concat()))
    else {
        panic!("no ACK");
    };
    assert_eq!(
        (ack.message_id.len(), ack.message_id.capacity()),
        (100, 100)
    );
}
