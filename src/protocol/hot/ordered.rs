//! Reading the hot commands as clients and brokers write them: each field once, in the order of their numbers.
//!
//! What comes next is guessed well then. Everything else (other fields, lists, ids in ids) is declined with `None` before
//! anything is allocated, and is for [`super::decode`].
// hot path

use super::decode::{ID_LEN_MIN, body, further_ids, low_u32};
use super::{
    BYTES_2, BYTES_3, VARINT_1, VARINT_2, VARINT_3, VARINT_4, VARINT_5, VARINT_6, VARINT_7,
    VARINT_8, varint,
};
use crate::protocol::command::{Command, CommandError};
use crate::protocol::proto::pulsar as pb;
use crate::protocol::wire::low_i32;

/// Decodes an encoded `BaseCommand`; `otherwise` is what decodes those that are declined here.
// Each value is built where it is returned: a command is so large that every move of it would be seen.
#[inline(always)]
pub(super) fn decode_or(
    command: &[u8],
    otherwise: impl FnOnce() -> Result<Command, CommandError>,
) -> Result<Command, CommandError> {
    if let [VARINT_1, command_type, rest @ ..] = command {
        match command_type {
            6 => {
                if let Some(send) = body(rest, [0x32]).and_then(send) {
                    return Ok(Command::Send(send));
                }
            }
            7 => {
                if let Some(receipt) = body(rest, [0x3a]).and_then(send_receipt) {
                    return Ok(Command::SendReceipt(receipt));
                }
            }
            9 => {
                if let Some(message) = body(rest, [0x4a]).and_then(message) {
                    return Ok(Command::Message(message));
                }
            }
            10 => {
                if let Some(ack) = body(rest, [0x52]).and_then(ack) {
                    return Ok(Command::Ack(ack));
                }
            }
            11 => {
                if let Some(flow) = body(rest, [0x5a]).and_then(flow) {
                    return Ok(Command::Flow(flow));
                }
            }
            18 if rest == [0x92, 1, 0] => return Ok(Command::Ping(pb::CommandPing {})),
            19 if rest == [0x9a, 1, 0] => return Ok(Command::Pong(pb::CommandPong {})),
            _ => {}
        }
    }
    otherwise()
}

/// Takes a field of wire type 0 with the given key.
#[inline(always)]
fn required(rest: &mut &[u8], key: u8) -> Option<u64> {
    match **rest {
        [first, ref behind @ ..] if first == key => *rest = behind,
        _ => return None,
    }
    varint(rest)
}

/// Takes a field of wire type 0 if it has the given key.
#[inline(always)]
fn optional(rest: &mut &[u8], key: u8) -> Option<Option<u64>> {
    match **rest {
        [first, ref behind @ ..] if first == key => *rest = behind,
        _ => return Some(None),
    }
    Some(Some(varint(rest)?))
}

/// What most message ids have. It becomes an id where that is stored: numbers stay in registers, and what might have to be
/// dropped does not.
#[derive(Clone, Copy)]
struct PlainId {
    ledger_id: u64,
    entry_id: u64,
    partition: Option<i32>,
}

impl PlainId {
    /// Takes a message id with the given key which has a ledger, an entry and perhaps a partition.
    #[inline(always)]
    fn take(rest: &mut &[u8], key: u8) -> Option<Self> {
        let [first, len, ref fields @ ..] = **rest else {
            return None;
        };
        if first != key || len >= 0x80 {
            return None;
        }
        // The fields are read without looking where the id ends; it does so here or it is another id.
        let end = fields.len().checked_sub(len.into())?;
        *rest = fields;
        let ledger_id = required(rest, VARINT_1)?;
        let entry_id = required(rest, VARINT_2)?;
        let partition = if rest.len() == end {
            None
        } else {
            Some(low_i32(required(rest, VARINT_3)?))
        };
        if rest.len() != end {
            return None;
        }
        Some(PlainId {
            ledger_id,
            entry_id,
            partition,
        })
    }

    #[inline(always)]
    fn into_id(self) -> pb::MessageIdData {
        pb::MessageIdData {
            ledger_id: self.ledger_id,
            entry_id: self.entry_id,
            partition: self.partition,
            batch_index: None,
            ack_set: Vec::new(),
            batch_size: None,
            first_chunk_message_id: None,
        }
    }
}

#[inline(always)]
fn send(mut rest: &[u8]) -> Option<pb::CommandSend> {
    let producer_id = required(&mut rest, VARINT_1)?;
    let sequence_id = required(&mut rest, VARINT_2)?;
    let num_messages = optional(&mut rest, VARINT_3)?;
    let txnid_least_bits = optional(&mut rest, VARINT_4)?;
    let txnid_most_bits = optional(&mut rest, VARINT_5)?;
    let highest_sequence_id = optional(&mut rest, VARINT_6)?;
    let is_chunk = optional(&mut rest, VARINT_7)?;
    let marker = optional(&mut rest, VARINT_8)?;
    if !rest.is_empty() {
        return None;
    }
    Some(pb::CommandSend {
        producer_id,
        sequence_id,
        num_messages: num_messages.map(low_i32),
        txnid_least_bits,
        txnid_most_bits,
        highest_sequence_id,
        is_chunk: is_chunk.map(|value| value != 0),
        marker: marker.map(|value| value != 0),
        message_id: None,
    })
}

#[inline(always)]
fn send_receipt(mut rest: &[u8]) -> Option<pb::CommandSendReceipt> {
    let producer_id = required(&mut rest, VARINT_1)?;
    let sequence_id = required(&mut rest, VARINT_2)?;
    let message_id = PlainId::take(&mut rest, BYTES_3)?;
    let highest_sequence_id = optional(&mut rest, VARINT_4)?;
    if !rest.is_empty() {
        return None;
    }
    Some(pb::CommandSendReceipt {
        producer_id,
        sequence_id,
        message_id: Some(message_id.into_id()),
        highest_sequence_id,
    })
}

#[inline(always)]
fn message(mut rest: &[u8]) -> Option<pb::CommandMessage> {
    let consumer_id = required(&mut rest, VARINT_1)?;
    let message_id = PlainId::take(&mut rest, BYTES_2)?;
    let redelivery_count = optional(&mut rest, VARINT_3)?;
    let consumer_epoch = optional(&mut rest, VARINT_5)?;
    if !rest.is_empty() {
        return None;
    }
    Some(pb::CommandMessage {
        consumer_id,
        message_id: message_id.into_id(),
        redelivery_count: redelivery_count.map(low_u32),
        ack_set: Vec::new(),
        consumer_epoch,
    })
}

#[inline(always)]
fn ack(mut rest: &[u8]) -> Option<pb::CommandAck> {
    let consumer_id = required(&mut rest, VARINT_1)?;
    let ack_type = required(&mut rest, VARINT_2)?;
    let mut ids = Vec::new();
    while let [BYTES_3, id_len, ..] = *rest {
        let id = PlainId::take(&mut rest, BYTES_3)?;
        // Not before there is an id: a list of ids that lack their fields must cost no memory.
        if ids.len() == ids.capacity() {
            reserve_ids(&mut ids, id_len, rest);
        }
        // As a push, which would build the id elsewhere and copy it, to be able to drop it if there is no memory.
        ids.resize_with(ids.len() + 1, || id.into_id());
    }
    let validation_error = optional(&mut rest, VARINT_4)?;
    let txnid_least_bits = optional(&mut rest, VARINT_6)?;
    let txnid_most_bits = optional(&mut rest, VARINT_7)?;
    let request_id = optional(&mut rest, VARINT_8)?;
    if !rest.is_empty() {
        return None;
    }
    Some(pb::CommandAck {
        consumer_id,
        ack_type: low_i32(ack_type),
        message_id: ids,
        validation_error: validation_error.map(low_i32),
        properties: Vec::new(),
        txnid_least_bits,
        txnid_most_bits,
        request_id,
    })
}

/// Makes room for an id and those that follow it in `rest`.
#[inline(never)]
fn reserve_ids(ids: &mut Vec<pb::MessageIdData>, id_len: u8, rest: &[u8]) {
    // Ids of one ACK are of one length, as a rule, so that counting few of them is seldom worth a walk.
    let further = if ids.is_empty() && rest.len() <= ESTIMATED_MAX {
        rest.len() / ID_LEN_MIN.max(usize::from(id_len) + 2)
    } else {
        further_ids(rest)
    };
    ids.reserve_exact(1 + further);
}

#[inline(always)]
fn flow(mut rest: &[u8]) -> Option<pb::CommandFlow> {
    let consumer_id = required(&mut rest, VARINT_1)?;
    let message_permits = required(&mut rest, VARINT_2)?;
    if !rest.is_empty() {
        return None;
    }
    Some(pb::CommandFlow {
        consumer_id,
        message_permits: low_u32(message_permits),
    })
}

/// Up to so many bytes the number of ids in the rest of an ACK is estimated. A wrong estimate costs a second list for a
/// moment, which must not be large.
const ESTIMATED_MAX: usize = 16 << 10;
