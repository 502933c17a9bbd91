use bytes::{BufMut, Bytes, BytesMut};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use prost::Message;

use super::tests::{ack, command, generated, id, number, send, signed};
use crate::protocol::command::Command;
use crate::protocol::encode::{
    MessageHead, Position, put_cumulative_ack, put_individual_ack, put_message_head,
    put_send_frame, put_send_head,
};
use crate::protocol::message::{self, MessageForm};
use crate::protocol::proto::pulsar as pb;

/// What is in the buffer before, which has to stay.
const BEFORE: &[u8] = b"before";

/// A buffer with little room behind what is in it.
fn buffer() -> BytesMut {
    BytesMut::from(BEFORE)
}

/// A frame by the generated code up to its payload, behind what was there before.
fn reference(command: &Command, payload_len: usize) -> BytesMut {
    let bytes = generated(command);
    let mut out = buffer();
    out.put_u32(u32::try_from(4 + bytes.len() + payload_len).unwrap());
    out.put_u32(u32::try_from(bytes.len()).unwrap());
    out.extend_from_slice(&bytes);
    out
}

fn head_of(command: &Command, payload_len: usize) -> BytesMut {
    let mut out = buffer();
    command.encode_head(payload_len, &mut out);
    out
}

fn position() -> impl Strategy<Value = Position> {
    (number(), number(), of(signed())).prop_map(|(ledger_id, entry_id, partition)| Position {
        ledger_id,
        entry_id,
        partition,
    })
}

fn metadata() -> impl Strategy<Value = pb::MessageMetadata> {
    (".{0,20}", number(), number()).prop_map(|(producer_name, sequence_id, publish_time)| {
        pb::MessageMetadata {
            producer_name,
            sequence_id,
            publish_time,
            ..Default::default()
        }
    })
}

fn ack_of(
    ack_type: pb::command_ack::AckType,
    consumer_id: u64,
    positions: &[Position],
    request_id: Option<u64>,
) -> Command {
    Command::Ack(pb::CommandAck {
        consumer_id,
        ack_type: ack_type.into(),
        message_id: positions.iter().copied().map(Into::into).collect(),
        request_id,
        ..Default::default()
    })
}

proptest! {
    #[test]
    fn heads_are_those_of_the_generated_code(command in command(1), payload_len in 0..100_000_usize) {
        prop_assert_eq!(head_of(&command, payload_len), reference(&command, payload_len));
    }

    #[test]
    fn so_are_those_of_acks_of_many_ids(
        ack in ack(0),
        ids in vec(id(0), 0..60),
        copies in 1..40_usize,
        payload_len in 0..100_usize,
    ) {
        let Command::Ack(mut ack) = ack else { unreachable!() };
        ack.message_id = (0..copies).flat_map(|_| ids.clone()).collect();
        let with_lists = Command::Ack(ack.clone());
        prop_assert_eq!(head_of(&with_lists, payload_len), reference(&with_lists, payload_len));
        for id in &mut ack.message_id {
            id.ack_set.clear();
        }
        let without = Command::Ack(ack);
        prop_assert_eq!(head_of(&without, payload_len), reference(&without, payload_len));
    }

    #[test]
    fn frames_to_publish_are_those_of_command_and_message(
        send in send(),
        metadata in metadata(),
        payload in vec(any::<u8>(), 0..300),
    ) {
        let Command::Send(content) = &send else { unreachable!() };
        let message = message::encode(&metadata, Bytes::from(payload.clone()), MessageForm::default());
        let mut expected = reference(&send, message.wire_len());
        expected.extend_from_slice(&message.header);
        let encoded = metadata.encode_to_vec();
        let mut out = buffer();
        put_send_head(content, &encoded, &payload, &mut out);
        prop_assert_eq!(&out, &expected);
        expected.extend_from_slice(&payload);
        let mut out = buffer();
        put_send_frame(content, &encoded, &payload, &mut out);
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn heads_of_messages_are_those_of_their_commands(
        consumer_id in number(),
        position in position(),
        redelivery_count in of(any::<u32>()),
        consumer_epoch in of(number()),
        entry_len in 0..100_000_usize,
    ) {
        let command = Command::Message(pb::CommandMessage {
            consumer_id,
            message_id: position.into(),
            redelivery_count,
            ack_set: Vec::new(),
            consumer_epoch,
        });
        let mut out = buffer();
        let head = MessageHead { consumer_id, position, redelivery_count, consumer_epoch };
        put_message_head(head, entry_len, &mut out);
        prop_assert_eq!(out, reference(&command, entry_len));
    }

    #[test]
    fn acks_of_positions_are_those_of_their_commands(
        consumer_id in number(),
        positions in vec(position(), 0..30),
        request_id in of(number()),
    ) {
        use pb::command_ack::AckType;
        let mut out = buffer();
        put_individual_ack(consumer_id, &positions, request_id, &mut out);
        let expected = ack_of(AckType::Individual, consumer_id, &positions, request_id);
        prop_assert_eq!(out, reference(&expected, 0));
        if let [position, ..] = positions[..] {
            let mut out = buffer();
            put_cumulative_ack(consumer_id, position, request_id, &mut out);
            let expected = ack_of(AckType::Cumulative, consumer_id, &[position], request_id);
            prop_assert_eq!(out, reference(&expected, 0));
        }
    }
}

#[test]
fn the_length_of_an_ack_may_take_any_number_of_bytes_that_was_not_guessed() {
    for (ledger_id, lens) in [(1, 15..22), (1 << 20, 6..16), (u64::MAX, 1..16)] {
        let position = |entry_id| Position {
            ledger_id,
            entry_id,
            partition: None,
        };
        let counts = lens
            .chain(350..360)
            .chain(700..720)
            .chain(1250..1400)
            .chain(2000..2100);
        for count in counts {
            let positions: Vec<_> = (0..count).map(position).collect();
            let mut out = buffer();
            put_individual_ack(7, &positions, Some(1), &mut out);
            let expected = ack_of(pb::command_ack::AckType::Individual, 7, &positions, Some(1));
            assert_eq!(out, reference(&expected, 0), "{count} ids");
        }
    }
}
