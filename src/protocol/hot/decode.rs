//! Reading the hot commands, fields in any order: what [`super::ordered`] declines.

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
pub(super) fn decode(command: &[u8]) -> Option<Command> {
    let &[VARINT_1, command_type, ref rest @ ..] = command else {
        return None;
    };
    match command_type {
        6 => send(body(rest, [0x32])?),
        7 => send_receipt(body(rest, [0x3a])?),
        9 => message(body(rest, [0x4a])?),
        10 => ack(body(rest, [0x52])?),
        11 => flow(body(rest, [0x5a])?),
        18 => empty(body(rest, [0x92, 1])?).map(|()| Command::Ping(pb::CommandPing {})),
        19 => empty(body(rest, [0x9a, 1])?).map(|()| Command::Pong(pb::CommandPong {})),
        _ => None,
    }
}

/// The content of a field with the given key that takes all of `rest`.
pub(super) fn body<const N: usize>(rest: &[u8], key: [u8; N]) -> Option<&[u8]> {
    let mut rest = rest.strip_prefix(&key)?;
    let body = bytes(&mut rest)?;
    rest.is_empty().then_some(body)
}

// Fields are variables of their own until all are there, so that they stay in registers and each is stored once.
fn send(body: &[u8]) -> Option<Command> {
    let (mut producer_id, mut sequence_id, mut num_messages) = (None, None, None);
    let (mut txnid_least_bits, mut txnid_most_bits, mut highest_sequence_id) = (None, None, None);
    let (mut is_chunk, mut marker, mut id) = (None, None, None);
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => producer_id = Some(varint(&mut rest)?),
            VARINT_2 => sequence_id = Some(varint(&mut rest)?),
            VARINT_3 => num_messages = Some(low_i32(varint(&mut rest)?)),
            VARINT_4 => txnid_least_bits = Some(varint(&mut rest)?),
            VARINT_5 => txnid_most_bits = Some(varint(&mut rest)?),
            VARINT_6 => highest_sequence_id = Some(varint(&mut rest)?),
            VARINT_7 => is_chunk = Some(varint(&mut rest)? != 0),
            VARINT_8 => marker = Some(varint(&mut rest)? != 0),
            BYTES_9 if id.is_none() => id = Some(bytes(&mut rest)?),
            _ => skip(body, &mut rest, 9)?,
        }
    }
    Some(Command::Send(pb::CommandSend {
        producer_id: producer_id?,
        sequence_id: sequence_id?,
        num_messages,
        txnid_least_bits,
        txnid_most_bits,
        highest_sequence_id,
        is_chunk,
        marker,
        message_id: optional_id(id)?,
    }))
}

fn send_receipt(body: &[u8]) -> Option<Command> {
    let (mut producer_id, mut sequence_id) = (None, None);
    let (mut id, mut highest_sequence_id) = (None, None);
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => producer_id = Some(varint(&mut rest)?),
            VARINT_2 => sequence_id = Some(varint(&mut rest)?),
            BYTES_3 if id.is_none() => id = Some(bytes(&mut rest)?),
            VARINT_4 => highest_sequence_id = Some(varint(&mut rest)?),
            _ => skip(body, &mut rest, 4)?,
        }
    }
    Some(Command::SendReceipt(pb::CommandSendReceipt {
        producer_id: producer_id?,
        sequence_id: sequence_id?,
        message_id: optional_id(id)?,
        highest_sequence_id,
    }))
}

fn message(body: &[u8]) -> Option<Command> {
    let (mut consumer_id, mut id) = (None, None);
    let (mut redelivery_count, mut consumer_epoch) = (None, None);
    let mut ack_set = Vec::new();
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => consumer_id = Some(varint(&mut rest)?),
            BYTES_2 if id.is_none() => id = Some(bytes(&mut rest)?),
            VARINT_3 => redelivery_count = Some(low_u32(varint(&mut rest)?)),
            VARINT_4 => ack_set.push(varint(&mut rest)?.cast_signed()),
            PACKED_4 => packed(bytes(&mut rest)?, &mut ack_set)?,
            VARINT_5 => consumer_epoch = Some(varint(&mut rest)?),
            _ => skip(body, &mut rest, 5)?,
        }
    }
    Some(Command::Message(pb::CommandMessage {
        consumer_id: consumer_id?,
        message_id: message_id(id?, NESTED_MAX)?,
        redelivery_count,
        ack_set,
        consumer_epoch,
    }))
}

fn ack(body: &[u8]) -> Option<Command> {
    let (mut consumer_id, mut ack_type, mut ids) = (None, None, Vec::new());
    let (mut validation_error, mut request_id) = (None, None);
    let (mut txnid_least_bits, mut txnid_most_bits) = (None, None);
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => consumer_id = Some(varint(&mut rest)?),
            VARINT_2 => ack_type = Some(low_i32(varint(&mut rest)?)),
            BYTES_3 => {
                let id = message_id(bytes(&mut rest)?, NESTED_MAX)?;
                // Not before there is an id: a list of ids that lack their fields must cost no memory.
                if ids.is_empty() {
                    ids.reserve_exact(1 + further_ids(rest));
                }
                ids.push(id);
            }
            VARINT_4 => validation_error = Some(low_i32(varint(&mut rest)?)),
            VARINT_6 => txnid_least_bits = Some(varint(&mut rest)?),
            VARINT_7 => txnid_most_bits = Some(varint(&mut rest)?),
            VARINT_8 => request_id = Some(varint(&mut rest)?),
            _ => skip(body, &mut rest, 8)?,
        }
    }
    Some(Command::Ack(pb::CommandAck {
        consumer_id: consumer_id?,
        ack_type: ack_type?,
        message_id: ids,
        validation_error,
        properties: Vec::new(),
        txnid_least_bits,
        txnid_most_bits,
        request_id,
    }))
}

/// How many message ids follow in the rest of an ACK; an estimate where fields stand between them.
pub(super) fn further_ids(mut rest: &[u8]) -> usize {
    let longest = rest.len() / ID_LEN_MIN;
    let mut ids = 0;
    while take_byte(&mut rest) == Some(BYTES_3) && bytes(&mut rest).is_some() {
        ids += 1;
    }
    longest.min(ids)
}

fn flow(body: &[u8]) -> Option<Command> {
    let (mut consumer_id, mut permits) = (None, None);
    let mut rest = body;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => consumer_id = Some(varint(&mut rest)?),
            VARINT_2 => permits = Some(low_u32(varint(&mut rest)?)),
            _ => skip(body, &mut rest, 2)?,
        }
    }
    Some(Command::Flow(pb::CommandFlow {
        consumer_id: consumer_id?,
        message_permits: permits?,
    }))
}

/// A message without fields.
fn empty(body: &[u8]) -> Option<()> {
    let mut rest = body;
    while take_byte(&mut rest).is_some() {
        skip(body, &mut rest, 0)?;
    }
    Some(())
}

fn optional_id(encoded: Option<&[u8]>) -> Option<Option<pb::MessageIdData>> {
    Some(match encoded {
        Some(encoded) => Some(message_id(encoded, NESTED_MAX)?),
        None => None,
    })
}

/// An id may have the id of the first chunk in it, `nested` times.
fn message_id(encoded: &[u8], nested: u32) -> Option<pb::MessageIdData> {
    let (mut ledger_id, mut entry_id, mut partition) = (None, None, None);
    let (mut batch_index, mut ack_set, mut batch_size) = (None, Vec::new(), None);
    let mut first_chunk = None;
    let mut rest = encoded;
    while let Some(key) = take_byte(&mut rest) {
        match key {
            VARINT_1 => ledger_id = Some(varint(&mut rest)?),
            VARINT_2 => entry_id = Some(varint(&mut rest)?),
            VARINT_3 => partition = Some(low_i32(varint(&mut rest)?)),
            VARINT_4 => batch_index = Some(low_i32(varint(&mut rest)?)),
            VARINT_5 => ack_set.push(varint(&mut rest)?.cast_signed()),
            BYTES_5 => packed(bytes(&mut rest)?, &mut ack_set)?,
            VARINT_6 => batch_size = Some(low_i32(varint(&mut rest)?)),
            BYTES_7 if first_chunk.is_none() => {
                first_chunk = Some(nested_id(bytes(&mut rest)?, nested.checked_sub(1)?)?);
            }
            _ => skip(encoded, &mut rest, 7)?,
        }
    }
    Some(pb::MessageIdData {
        ledger_id: ledger_id?,
        entry_id: entry_id?,
        partition,
        batch_index,
        ack_set,
        batch_size,
        first_chunk_message_id: first_chunk,
    })
}

fn nested_id(encoded: &[u8], nested: u32) -> Option<Box<pb::MessageIdData>> {
    Some(Box::new(message_id(encoded, nested)?))
}

/// A packed list: varints one behind the other.
fn packed(mut encoded: &[u8], list: &mut Vec<i64>) -> Option<()> {
    while !encoded.is_empty() {
        list.push(varint(&mut encoded)?.cast_signed());
    }
    Some(())
}

/// The value of a `uint32` field: protobuf keeps the low 32 bits of the varint.
pub(super) fn low_u32(varint: u64) -> u32 {
    low_i32(varint).cast_unsigned()
}

/// The key of `CommandMessage.ack_set` when it is packed.
const PACKED_4: u8 = VARINT_4 | super::LENGTH_DELIMITED;

/// How deep ids may be nested here: the id of a chunked message has the one of its first chunk in it, which has none.
const NESTED_MAX: u32 = 2;

/// A message id in an ACK: key, length, and two fields of two bytes.
pub(super) const ID_LEN_MIN: usize = 6;
