//! Writing the contents of the hot commands, of any length, fields in the order of their numbers.
// hot path

use super::writer::Writer;
use super::{
    BYTES_2, BYTES_3, BYTES_7, BYTES_9, VARINT_1, VARINT_2, VARINT_3, VARINT_4, VARINT_5, VARINT_6,
    VARINT_7, VARINT_8,
};
use crate::protocol::command::Command;
use crate::protocol::proto::pulsar as pb;
use crate::protocol::wire::varint_len;

/// The length of the sub-message, in bytes; `None` if the command is not a hot one.
#[inline]
pub(crate) fn body_len(command: &Command) -> Option<usize> {
    Some(match command {
        Command::Send(send) => send_len(send),
        Command::SendReceipt(receipt) => send_receipt_len(receipt),
        Command::Message(message) => message_len(message),
        Command::Ack(ack) if ack.properties.is_empty() => ack_len(ack),
        Command::Flow(flow) => field(flow.consumer_id) + field(flow.message_permits.into()),
        Command::Ping(_) | Command::Pong(_) => 0,
        _ => return None,
    })
}

/// Writes the sub-message of a command that [`body_len`] gives a length of; nothing of others.
#[inline]
pub(crate) fn put_body(command: &Command, out: &mut Writer<'_>) {
    match command {
        Command::Send(send) => put_send(send, out),
        Command::SendReceipt(receipt) => put_send_receipt(receipt, out),
        Command::Message(message) => put_message(message, out),
        Command::Ack(ack) => put_ack(ack, out),
        Command::Flow(flow) => {
            out.field(VARINT_1, flow.consumer_id);
            out.field(VARINT_2, flow.message_permits.into());
        }
        _ => {}
    }
}

fn send_len(send: &pb::CommandSend) -> usize {
    field(send.producer_id)
        + field(send.sequence_id)
        + optional(send.num_messages.map(signed))
        + optional(send.txnid_least_bits)
        + optional(send.txnid_most_bits)
        + optional(send.highest_sequence_id)
        + optional(send.is_chunk.map(u64::from))
        + optional(send.marker.map(u64::from))
        + send.message_id.as_ref().map_or(0, id_field)
}

fn put_send(send: &pb::CommandSend, out: &mut Writer<'_>) {
    out.field(VARINT_1, send.producer_id);
    out.field(VARINT_2, send.sequence_id);
    out.optional(VARINT_3, send.num_messages.map(signed));
    out.optional(VARINT_4, send.txnid_least_bits);
    out.optional(VARINT_5, send.txnid_most_bits);
    out.optional(VARINT_6, send.highest_sequence_id);
    out.optional(VARINT_7, send.is_chunk.map(u64::from));
    out.optional(VARINT_8, send.marker.map(u64::from));
    if let Some(id) = &send.message_id {
        put_id(BYTES_9, id, out);
    }
}

fn send_receipt_len(receipt: &pb::CommandSendReceipt) -> usize {
    field(receipt.producer_id)
        + field(receipt.sequence_id)
        + receipt.message_id.as_ref().map_or(0, id_field)
        + optional(receipt.highest_sequence_id)
}

fn put_send_receipt(receipt: &pb::CommandSendReceipt, out: &mut Writer<'_>) {
    out.field(VARINT_1, receipt.producer_id);
    out.field(VARINT_2, receipt.sequence_id);
    if let Some(id) = &receipt.message_id {
        put_id(BYTES_3, id, out);
    }
    out.optional(VARINT_4, receipt.highest_sequence_id);
}

fn message_len(message: &pb::CommandMessage) -> usize {
    field(message.consumer_id)
        + id_field(&message.message_id)
        + optional(message.redelivery_count.map(u64::from))
        + list(&message.ack_set)
        + optional(message.consumer_epoch)
}

fn put_message(message: &pb::CommandMessage, out: &mut Writer<'_>) {
    out.field(VARINT_1, message.consumer_id);
    put_id(BYTES_2, &message.message_id, out);
    out.optional(VARINT_3, message.redelivery_count.map(u64::from));
    for word in &message.ack_set {
        out.field(VARINT_4, word.cast_unsigned());
    }
    out.optional(VARINT_5, message.consumer_epoch);
}

fn ack_len(ack: &pb::CommandAck) -> usize {
    field(ack.consumer_id)
        + field(signed(ack.ack_type))
        + ack.message_id.iter().map(id_field).sum::<usize>()
        + optional(ack.validation_error.map(signed))
        + optional(ack.txnid_least_bits)
        + optional(ack.txnid_most_bits)
        + optional(ack.request_id)
}

fn put_ack(ack: &pb::CommandAck, out: &mut Writer<'_>) {
    out.field(VARINT_1, ack.consumer_id);
    out.field(VARINT_2, signed(ack.ack_type));
    for id in &ack.message_id {
        put_id(BYTES_3, id, out);
    }
    out.optional(VARINT_4, ack.validation_error.map(signed));
    out.optional(VARINT_6, ack.txnid_least_bits);
    out.optional(VARINT_7, ack.txnid_most_bits);
    out.optional(VARINT_8, ack.request_id);
}

/// The length of a message id with its key and length.
fn id_field(id: &pb::MessageIdData) -> usize {
    let len = id_len(id);
    KEY_LEN + varint_len(len as u64) + len
}

fn id_len(id: &pb::MessageIdData) -> usize {
    field(id.ledger_id)
        + field(id.entry_id)
        + optional(id.partition.map(signed))
        + optional(id.batch_index.map(signed))
        + list(&id.ack_set)
        + optional(id.batch_size.map(signed))
        + id.first_chunk_message_id.as_deref().map_or(0, id_field)
}

fn put_id(key: u8, id: &pb::MessageIdData, out: &mut Writer<'_>) {
    out.field(key, id_len(id) as u64);
    out.field(VARINT_1, id.ledger_id);
    out.field(VARINT_2, id.entry_id);
    out.optional(VARINT_3, id.partition.map(signed));
    out.optional(VARINT_4, id.batch_index.map(signed));
    for word in &id.ack_set {
        out.field(VARINT_5, word.cast_unsigned());
    }
    out.optional(VARINT_6, id.batch_size.map(signed));
    if let Some(first) = &id.first_chunk_message_id {
        put_id(BYTES_7, first, out);
    }
}

/// The length of a varint field with its key.
#[inline]
fn field(value: u64) -> usize {
    KEY_LEN + varint_len(value)
}

#[inline]
fn optional(value: Option<u64>) -> usize {
    value.map_or(0, field)
}

fn list(values: &[i64]) -> usize {
    values
        .iter()
        .map(|value| field(value.cast_unsigned()))
        .sum()
}

/// An `int32` or enum as a varint: negative ones take ten bytes.
#[inline]
pub(super) fn signed(value: i32) -> u64 {
    i64::from(value).cast_unsigned()
}

/// All field numbers are below 16.
const KEY_LEN: usize = 1;
