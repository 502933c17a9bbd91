//! Writing whole frame heads of the hot commands in one pass: both sizes, the envelope and the fields.
//!
//! Lengths are not computed before but filled in behind: a command of less than 128 bytes has one byte for its length,
//! and so has a message id without lists. What does not keep to that is declined with `false`, nothing written, and goes
//! the way of all commands, in [`crate::protocol::encode`]. Only an ACK of several ids, which is longer, guesses how many
//! bytes its length takes.
// hot path

use bytes::BytesMut;

use super::encode::signed;
use super::writer::{SLACK, Writer};
use super::{
    BYTES_2, BYTES_3, BYTES_9, LENGTH_DELIMITED, VARINT_1, VARINT_2, VARINT_3, VARINT_4, VARINT_5,
    VARINT_6, VARINT_7, VARINT_8,
};
use crate::protocol::command::Command;
use crate::protocol::proto::pulsar as pb;
use crate::protocol::wire::varint_len;

/// Where an entry is, as far as a message id says: what an ACK or a MESSAGE names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The ledger.
    pub ledger_id: u64,
    /// The number of the entry in the ledger.
    pub entry_id: u64,
    /// The index of the partition; a broker names it, clients leave it out of ACKs.
    pub partition: Option<i32>,
}

/// What a MESSAGE says of the entry that follows it (`CommandMessage`), but for an ack set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// The consumer on this connection.
    pub consumer_id: u64,
    /// The entry.
    pub position: Position,
    /// How often the entry was delivered before, where that is told.
    pub redelivery_count: Option<u32>,
    /// The epoch of the consumer, where it has one.
    pub consumer_epoch: Option<u64>,
}

/// Appends the frame of a hot command up to the payload, of which `payload_len` bytes will follow. `false`, and nothing
/// appended, if it is to be written another way.
#[inline]
pub(crate) fn put_head(command: &Command, payload_len: usize, out: &mut BytesMut) -> bool {
    match command {
        Command::Send(send) => put_send(send, payload_len, out),
        Command::SendReceipt(receipt) => put_send_receipt(receipt, payload_len, out),
        Command::Message(message) => put_message(message, payload_len, out),
        Command::Ack(ack) if ack.properties.is_empty() => {
            put_acks(ack, &ack.message_id, payload_len, out, |id, out| {
                put_id(BYTES_3, id, out);
            })
        }
        Command::Flow(flow) => put::<{ HEAD_LEN + 17 + SLACK }>(11, payload_len, out, |out| {
            out.field(VARINT_1, flow.consumer_id);
            out.field(VARINT_2, flow.message_permits.into());
        }),
        Command::Ping(_) if payload_len == 0 => put_constant(&PING, out),
        Command::Pong(_) if payload_len == 0 => put_constant(&PONG, out),
        _ => false,
    }
}

#[inline(always)]
pub(crate) fn put_send(send: &pb::CommandSend, payload_len: usize, out: &mut BytesMut) -> bool {
    put::<SHORT>(6, payload_len, out, |out| {
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
    })
}

#[inline(always)]
fn put_send_receipt(
    receipt: &pb::CommandSendReceipt,
    payload_len: usize,
    out: &mut BytesMut,
) -> bool {
    put::<SHORT>(7, payload_len, out, |out| {
        out.field(VARINT_1, receipt.producer_id);
        out.field(VARINT_2, receipt.sequence_id);
        if let Some(id) = &receipt.message_id {
            put_id(BYTES_3, id, out);
        }
        out.optional(VARINT_4, receipt.highest_sequence_id);
    })
}

#[inline(always)]
fn put_message(message: &pb::CommandMessage, payload_len: usize, out: &mut BytesMut) -> bool {
    put::<SHORT>(9, payload_len, out, |out| {
        out.field(VARINT_1, message.consumer_id);
        put_id(BYTES_2, &message.message_id, out);
        out.optional(VARINT_3, message.redelivery_count.map(u64::from));
        if !message.ack_set.is_empty() {
            out.refuse();
        }
        out.optional(VARINT_5, message.consumer_epoch);
    })
}

/// As a `CommandMessage` of these fields.
#[inline]
pub(crate) fn put_message_head(head: MessageHead, payload_len: usize, out: &mut BytesMut) -> bool {
    put::<SHORT>(9, payload_len, out, |out| {
        out.field(VARINT_1, head.consumer_id);
        put_position(BYTES_2, &head.position, out);
        out.optional(VARINT_3, head.redelivery_count.map(u64::from));
        out.optional(VARINT_5, head.consumer_epoch);
    })
}

/// As a `CommandAck` with these positions instead of its own ids.
#[inline]
pub(crate) fn put_positions_ack(
    ack: &pb::CommandAck,
    positions: &[Position],
    out: &mut BytesMut,
) -> bool {
    put_acks(ack, positions, 0, out, |position, out| {
        put_position(BYTES_3, position, out);
    })
}

/// Writes an ACK with the given ids, each of which takes at most [`ID_FIELD_MAX`] bytes.
#[inline(always)]
fn put_acks<T>(
    ack: &pb::CommandAck,
    ids: &[T],
    payload_len: usize,
    out: &mut BytesMut,
    put_id: impl Fn(&T, &mut Writer<'_>) + Copy,
) -> bool {
    let before = |out: &mut Writer<'_>| {
        out.field(VARINT_1, ack.consumer_id);
        out.field(VARINT_2, signed(ack.ack_type));
    };
    let behind = |out: &mut Writer<'_>| {
        out.optional(VARINT_4, ack.validation_error.map(signed));
        out.optional(VARINT_6, ack.txnid_least_bits);
        out.optional(VARINT_7, ack.txnid_most_bits);
        out.optional(VARINT_8, ack.request_id);
    };
    if let [] | [_] = ids {
        return put::<SHORT>(10, payload_len, out, |out| {
            before(out);
            if let [id] = ids {
                put_id(id, out);
            }
            behind(out);
        });
    }
    let start = out.len();
    let guessed = NUMBERS_LEN_USUAL + ids.len() * ID_FIELD_USUAL;
    let guessed_head_len = HEAD_LEN - 1 + varint_len(guessed as u64);
    out.reserve(guessed_head_len + guessed + PIECE);
    out.resize(start + guessed_head_len, 0);
    let mut written = put_piece::<PIECE>(out, before);
    for ids in ids.chunks(IDS_OF_PIECE) {
        written &= put_piece::<PIECE>(out, |out| {
            for id in ids {
                put_id(id, out);
            }
        });
    }
    written &= put_piece::<PIECE>(out, behind);
    written &= put_long_head(10, start, guessed_head_len, payload_len, out).is_some();
    if !written {
        out.truncate(start);
    }
    written
}

/// Writes the head of a command whose fields are there, from `start` on behind as many bytes as the head was thought to take.
fn put_long_head(
    command_type: u8,
    start: usize,
    guessed_head_len: usize,
    payload_len: usize,
    out: &mut BytesMut,
) -> Option<()> {
    let fields = start + guessed_head_len;
    let end = out.len();
    let body_len = end - fields;
    let command_len = COMMAND_HEAD_LEN - 1 + varint_len(body_len as u64) + body_len;
    let total = SIZE_LEN
        .checked_add(command_len)?
        .checked_add(payload_len)?;
    let mut head = [0; HEAD_LEN + 10 + SLACK];
    let mut writer = Writer::new(&mut head);
    writer.fixed(u32::try_from(total).ok()?);
    writer.fixed(u32::try_from(command_len).ok()?);
    for byte in envelope(command_type) {
        writer.varint(byte.into());
    }
    writer.varint(body_len as u64);
    let head_len = writer.end()?;
    // A guess that was wrong costs one more copy.
    if head_len > guessed_head_len {
        out.resize(start + head_len + body_len, 0);
    }
    if head_len != guessed_head_len {
        out.get_mut(..end.max(start + head_len + body_len))?
            .copy_within(fields..end, start + head_len);
        out.truncate(start + head_len + body_len);
    }
    out.get_mut(start..start + head_len)?
        .copy_from_slice(head.get(..head_len)?);
    Some(())
}

/// Appends what `fields` writes: at most `N` bytes less [`SLACK`]. `false` if it cannot be written.
#[inline(always)]
fn put_piece<const N: usize>(out: &mut BytesMut, fields: impl FnOnce(&mut Writer<'_>)) -> bool {
    let start = out.len();
    // Zeros of a length that the compiler knows are a few stores and no call.
    out.extend_from_slice(&[0; N]);
    let place = out.get_mut(start..);
    let end = place
        .and_then(|place| place.first_chunk_mut::<N>())
        .and_then(|place| {
            let mut writer = Writer::new(place);
            fields(&mut writer);
            writer.end()
        });
    out.truncate(start + end.unwrap_or_default());
    end.is_some()
}

/// Appends a frame up to its payload: the head, and of the command what `fields` writes; both take at most `N` bytes less
/// [`SLACK`]. `false`, and nothing appended, if that is not so or the fields take 128 bytes or more.
#[inline(always)]
fn put<const N: usize>(
    command_type: u8,
    payload_len: usize,
    out: &mut BytesMut,
    fields: impl FnOnce(&mut Writer<'_>),
) -> bool {
    let start = out.len();
    out.extend_from_slice(&[0; N]);
    let place = out.get_mut(start..);
    let end = place
        .and_then(|place| place.first_chunk_mut::<N>())
        .and_then(|place| {
            let mut writer = Writer::behind(HEAD_LEN, place);
            fields(&mut writer);
            let end = writer.end()?;
            let body_len = u8::try_from(end - HEAD_LEN).ok()?;
            if body_len >= CONTINUED {
                return None;
            }
            let command_len = u32::from(body_len) + 4;
            let total = u32::try_from(payload_len)
                .ok()?
                .checked_add(command_len + 4)?;
            let [a, b, c, d] = total.to_be_bytes();
            let [e, f, g, h] = command_len.to_be_bytes();
            let [i, j, k] = envelope(command_type);
            *place.first_chunk_mut()? = [a, b, c, d, e, f, g, h, i, j, k, body_len];
            Some(end)
        });
    out.truncate(start + end.unwrap_or_default());
    end.is_some()
}

fn put_constant(frame: &[u8], out: &mut BytesMut) -> bool {
    out.extend_from_slice(frame);
    true
}

/// Everything of a `BaseCommand` before the length of the sub-message, for types below 16: both keys are one byte.
const fn envelope(command_type: u8) -> [u8; 3] {
    [VARINT_1, command_type, command_type << 3 | LENGTH_DELIMITED]
}

#[inline(always)]
fn put_id(key: u8, id: &pb::MessageIdData, out: &mut Writer<'_>) {
    let begin = out.begin_message(key);
    out.field(VARINT_1, id.ledger_id);
    out.field(VARINT_2, id.entry_id);
    out.optional(VARINT_3, id.partition.map(signed));
    out.optional(VARINT_4, id.batch_index.map(signed));
    out.optional(VARINT_6, id.batch_size.map(signed));
    out.end_message(begin);
    if !id.ack_set.is_empty() || id.first_chunk_message_id.is_some() {
        out.refuse();
    }
}

#[inline(always)]
fn put_position(key: u8, position: &Position, out: &mut Writer<'_>) {
    let begin = out.begin_message(key);
    out.field(VARINT_1, position.ledger_id);
    out.field(VARINT_2, position.entry_id);
    out.optional(VARINT_3, position.partition.map(signed));
    out.end_message(begin);
}

const PING: [u8; 13] = [0, 0, 0, 9, 0, 0, 0, 5, VARINT_1, 18, 0x92, 1, 0];
const PONG: [u8; 13] = [0, 0, 0, 9, 0, 0, 0, 5, VARINT_1, 19, 0x9a, 1, 0];

/// The length of one of the sizes in front of a frame.
const SIZE_LEN: usize = 4;
/// Both keys, the type, and one byte of length.
const COMMAND_HEAD_LEN: usize = 4;
const HEAD_LEN: usize = 2 * SIZE_LEN + COMMAND_HEAD_LEN;
/// The first value of a byte that says that the varint goes on.
const CONTINUED: u8 = 0x80;

/// Memory for the frame head of any command of less than 128 bytes.
const SHORT: usize = HEAD_LEN + 127 + SLACK;
/// The most that an id without lists takes: key, length, and five numbers of ten bytes with their keys.
const ID_FIELD_MAX: usize = 2 + 5 * 11;
/// So many ids are written before the buffer is asked for room again.
const IDS_OF_PIECE: usize = 4;
const PIECE: usize = IDS_OF_PIECE * ID_FIELD_MAX + SLACK;
/// What an id takes as a rule, and all other fields of an ACK together.
const ID_FIELD_USUAL: usize = 12;
const NUMBERS_LEN_USUAL: usize = 10;
