//! Reading the hot commands.
// hot path

use super::{
    BYTES_2, BYTES_3, BYTES_5, BYTES_7, BYTES_9, VARINT_1, VARINT_2, VARINT_3, VARINT_4, VARINT_5,
    VARINT_6, VARINT_7, VARINT_8, bytes, skip, take_byte, varint,
};
use crate::protocol::command::Command;
use crate::protocol::proto::pulsar as pb;
use crate::protocol::wire::low_i32;

/// Decodes an encoded `BaseCommand` that consists of its type and a hot sub-message, in this order, as everybody writes
/// them. `None` for all else.
///
/// What is decoded here decodes to the same value by the generated code.
#[inline]
pub(crate) fn decode(command: &[u8]) -> Option<Command> {
    let &[VARINT_1, command_type, ref rest @ ..] = command else {
        return None;
    };
    match command_type {
        6 => Some(Command::Send(send(body(rest, [0x32])?)?)),
        7 => Some(Command::SendReceipt(send_receipt(body(rest, [0x3a])?)?)),
        9 => Some(Command::Message(message(body(rest, [0x4a])?)?)),
        10 => Some(Command::Ack(ack(body(rest, [0x52])?)?)),
        11 => Some(Command::Flow(flow(body(rest, [0x5a])?)?)),
        18 => empty(body(rest, [0x92, 1])?).map(|()| Command::Ping(pb::CommandPing {})),
        19 => empty(body(rest, [0x9a, 1])?).map(|()| Command::Pong(pb::CommandPong {})),
        _ => None,
    }
}

/// The content of a field with the given key that takes all of `rest`.
#[inline]
fn body<const N: usize>(rest: &[u8], key: [u8; N]) -> Option<&[u8]> {
    let mut rest = rest.strip_prefix(&key)?;
    let body = bytes(&mut rest)?;
    rest.is_empty().then_some(body)
}

fn send(body: &[u8]) -> Option<pb::CommandSend> {
    let (mut producer_id, mut sequence_id) = (None, None);
    let mut send = pb::CommandSend::default();
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => producer_id = Some(varint(&mut rest)?),
            VARINT_2 => sequence_id = Some(varint(&mut rest)?),
            VARINT_3 => send.num_messages = Some(low_i32(varint(&mut rest)?)),
            VARINT_4 => send.txnid_least_bits = Some(varint(&mut rest)?),
            VARINT_5 => send.txnid_most_bits = Some(varint(&mut rest)?),
            VARINT_6 => send.highest_sequence_id = Some(varint(&mut rest)?),
            VARINT_7 => send.is_chunk = Some(varint(&mut rest)? != 0),
            VARINT_8 => send.marker = Some(varint(&mut rest)? != 0),
            BYTES_9 if send.message_id.is_none() => {
                send.message_id = Some(message_id(bytes(&mut rest)?, NESTED_MAX)?);
            }
            _ => skip(body, &mut rest, 9)?,
        }
    }
    send.producer_id = producer_id?;
    send.sequence_id = sequence_id?;
    Some(send)
}

fn send_receipt(body: &[u8]) -> Option<pb::CommandSendReceipt> {
    let (mut producer_id, mut sequence_id) = (None, None);
    let mut receipt = pb::CommandSendReceipt::default();
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => producer_id = Some(varint(&mut rest)?),
            VARINT_2 => sequence_id = Some(varint(&mut rest)?),
            BYTES_3 if receipt.message_id.is_none() => {
                receipt.message_id = Some(message_id(bytes(&mut rest)?, NESTED_MAX)?);
            }
            VARINT_4 => receipt.highest_sequence_id = Some(varint(&mut rest)?),
            _ => skip(body, &mut rest, 4)?,
        }
    }
    receipt.producer_id = producer_id?;
    receipt.sequence_id = sequence_id?;
    Some(receipt)
}

fn message(body: &[u8]) -> Option<pb::CommandMessage> {
    let (mut consumer_id, mut id) = (None, None);
    let (mut redelivery_count, mut consumer_epoch) = (None, None);
    let mut ack_set = Vec::new();
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => consumer_id = Some(varint(&mut rest)?),
            BYTES_2 if id.is_none() => id = Some(message_id(bytes(&mut rest)?, NESTED_MAX)?),
            VARINT_3 => redelivery_count = Some(low_u32(varint(&mut rest)?)),
            VARINT_4 => ack_set.push(varint(&mut rest)?.cast_signed()),
            PACKED_4 => packed(bytes(&mut rest)?, &mut ack_set)?,
            VARINT_5 => consumer_epoch = Some(varint(&mut rest)?),
            _ => skip(body, &mut rest, 5)?,
        }
    }
    Some(pb::CommandMessage {
        consumer_id: consumer_id?,
        message_id: id?,
        redelivery_count,
        ack_set,
        consumer_epoch,
    })
}

fn ack(body: &[u8]) -> Option<pb::CommandAck> {
    let (mut consumer_id, mut ack_type) = (None, None);
    let mut ack = pb::CommandAck::default();
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => consumer_id = Some(varint(&mut rest)?),
            VARINT_2 => ack_type = Some(low_i32(varint(&mut rest)?)),
            BYTES_3 => {
                let id = message_id(bytes(&mut rest)?, NESTED_MAX)?;
                // Not before there is an id: a list of ids that lack their fields must cost no memory.
                if ack.message_id.is_empty() {
                    ack.message_id.reserve_exact(1 + further_ids(rest));
                }
                ack.message_id.push(id);
            }
            VARINT_4 => ack.validation_error = Some(low_i32(varint(&mut rest)?)),
            VARINT_6 => ack.txnid_least_bits = Some(varint(&mut rest)?),
            VARINT_7 => ack.txnid_most_bits = Some(varint(&mut rest)?),
            VARINT_8 => ack.request_id = Some(varint(&mut rest)?),
            _ => skip(body, &mut rest, 8)?,
        }
    }
    ack.consumer_id = consumer_id?;
    ack.ack_type = ack_type?;
    Some(ack)
}

/// How many message ids follow in the rest of an ACK; an estimate where fields stand between them.
fn further_ids(mut rest: &[u8]) -> usize {
    let longest = rest.len() / ID_LEN_MIN;
    let mut ids = 0;
    while take_byte(&mut rest) == Some(BYTES_3) && bytes(&mut rest).is_some() {
        ids += 1;
    }
    longest.min(ids)
}

fn flow(body: &[u8]) -> Option<pb::CommandFlow> {
    let (mut consumer_id, mut permits) = (None, None);
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => consumer_id = Some(varint(&mut rest)?),
            VARINT_2 => permits = Some(low_u32(varint(&mut rest)?)),
            _ => skip(body, &mut rest, 2)?,
        }
    }
    Some(pb::CommandFlow {
        consumer_id: consumer_id?,
        message_permits: permits?,
    })
}

/// A message without fields.
fn empty(body: &[u8]) -> Option<()> {
    let mut rest = body;
    while take_byte(&mut rest).is_some() {
        skip(body, &mut rest, 0)?;
    }
    Some(())
}

/// An id may have the id of the first chunk in it, `nested` times.
fn message_id(encoded: &[u8], nested: u32) -> Option<pb::MessageIdData> {
    let (mut ledger_id, mut entry_id) = (None, None);
    let mut id = pb::MessageIdData::default();
    let mut rest = encoded;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => ledger_id = Some(varint(&mut rest)?),
            VARINT_2 => entry_id = Some(varint(&mut rest)?),
            VARINT_3 => id.partition = Some(low_i32(varint(&mut rest)?)),
            VARINT_4 => id.batch_index = Some(low_i32(varint(&mut rest)?)),
            VARINT_5 => id.ack_set.push(varint(&mut rest)?.cast_signed()),
            BYTES_5 => packed(bytes(&mut rest)?, &mut id.ack_set)?,
            VARINT_6 => id.batch_size = Some(low_i32(varint(&mut rest)?)),
            BYTES_7 if id.first_chunk_message_id.is_none() => {
                let first = message_id(bytes(&mut rest)?, nested.checked_sub(1)?)?;
                id.first_chunk_message_id = Some(Box::new(first));
            }
            _ => skip(encoded, &mut rest, 7)?,
        }
    }
    id.ledger_id = ledger_id?;
    id.entry_id = entry_id?;
    Some(id)
}

/// A packed list: varints one behind the other.
fn packed(mut encoded: &[u8], list: &mut Vec<i64>) -> Option<()> {
    while !encoded.is_empty() {
        list.push(varint(&mut encoded)?.cast_signed());
    }
    Some(())
}

/// The value of a `uint32` field: protobuf keeps the low 32 bits of the varint.
fn low_u32(varint: u64) -> u32 {
    low_i32(varint).cast_unsigned()
}

/// The key of `CommandMessage.ack_set` when it is packed.
const PACKED_4: u8 = VARINT_4 | super::LENGTH_DELIMITED;

/// How deep ids may be nested here: the id of a chunked message has the one of its first chunk in it, which has none.
const NESTED_MAX: u32 = 2;

/// A message id in an ACK: key, length, and two fields of two bytes.
const ID_LEN_MIN: usize = 6;
