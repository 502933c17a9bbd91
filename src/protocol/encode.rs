//! Writing commands as frames.
//!
//! Owns the envelope: the two length fields of a frame and the `BaseCommand` around a sub-message. Nothing is built on
//! the side: the bytes go straight into the caller's buffer.
// hot path

use bytes::{BufMut, Bytes, BytesMut};

pub use crate::protocol::hot::{MessageHead, Position};

use crate::protocol::checksum::{crc32c, crc32c_append};
use crate::protocol::command::{Command, TYPE_FIELD};
use crate::protocol::hot::{self, SLACK, Writer};
use crate::protocol::message::CHECKSUM_MAGIC;
use crate::protocol::proto::pulsar as pb;
use crate::protocol::wire;

/// The size of each of the two length fields of a frame, in bytes. They are big-endian.
pub const LENGTH_FIELD: usize = 4;

impl Command {
    /// The length of the encoded `BaseCommand`, in bytes.
    pub fn encoded_len(&self) -> usize {
        Envelope::of(self).len()
    }

    /// Encodes the `BaseCommand` alone, without the length fields of a frame.
    pub fn encode_command(&self) -> Bytes {
        let envelope = Envelope::of(self);
        let mut out = BytesMut::with_capacity(envelope.len() + SLACK);
        envelope.put(None, self, &mut out);
        out.freeze()
    }

    /// Appends a whole frame without payload: both length fields and the command.
    #[inline]
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_head(0, out);
    }

    /// Appends a whole frame: both length fields, the command, and `payload` in one piece.
    ///
    /// # Panics
    ///
    /// If the frame is larger than the 4 GiB that its length field can tell; frames are limited to far less.
    pub fn encode_with_payload(&self, payload: &[&[u8]], out: &mut BytesMut) {
        let payload_len = payload.iter().map(|part| part.len()).sum::<usize>();
        out.reserve(payload_len);
        self.encode_head(payload_len, out);
        for part in payload {
            out.put_slice(part);
        }
    }

    /// Appends a frame up to the payload, which the caller sends behind it: `payload_len` bytes.
    ///
    /// # Panics
    ///
    /// As [`Command::encode_with_payload`].
    #[inline]
    pub fn encode_head(&self, payload_len: usize, out: &mut BytesMut) {
        if !hot::put_head(self, payload_len, out) {
            self.encode_any_head(payload_len, out);
        }
    }

    /// As [`Command::encode_head`], for commands of any length and type.
    fn encode_any_head(&self, payload_len: usize, out: &mut BytesMut) {
        let envelope = Envelope::of(self);
        let command_len = envelope.len();
        let total_len = LENGTH_FIELD + command_len + payload_len;
        out.reserve(2 * LENGTH_FIELD + command_len + SLACK);
        let lengths = [
            u32::try_from(total_len).expect("frames are limited to far less than 4 GiB"),
            u32::try_from(command_len).expect("a command is smaller than its frame"),
        ];
        envelope.put(Some(lengths), self, out);
    }
}

/// Appends a SEND frame: the command, a checksum, the encoded `MessageMetadata` and the payload. Allocates nothing where
/// `out` has room.
///
/// # Panics
/// When the frame would reach 4 GiB; frames are limited to far less.
#[inline]
pub fn put_send_frame(send: &pb::CommandSend, metadata: &[u8], payload: &[u8], out: &mut BytesMut) {
    // The command, the sizes and the checksum take less than what is asked for in addition.
    out.reserve(SEND_HEAD_USUAL + metadata.len() + payload.len());
    put_send_head(send, metadata, payload, out);
    out.extend_from_slice(payload);
}

/// As [`put_send_frame`] without the payload, which the caller sends behind it and need not copy.
///
/// # Panics
/// As [`put_send_frame`].
#[inline]
pub fn put_send_head(send: &pb::CommandSend, metadata: &[u8], payload: &[u8], out: &mut BytesMut) {
    let metadata_len = u32::try_from(metadata.len())
        .expect("frames are limited to far less than 4 GiB")
        .to_be_bytes();
    let checksum = crc32c_append(crc32c_append(crc32c(&metadata_len), metadata), payload);
    let message_len = CHECKSUM_LEN + LENGTH_FIELD + metadata.len() + payload.len();
    if !hot::put_send(send, message_len, out) {
        Command::Send(send.clone()).encode_any_head(message_len, out);
    }
    let [a, b] = CHECKSUM_MAGIC.to_be_bytes();
    let [c, d, e, f] = checksum.to_be_bytes();
    let [g, h, i, j] = metadata_len;
    out.extend_from_slice(&[a, b, c, d, e, f, g, h, i, j]);
    out.extend_from_slice(metadata);
}

/// Appends a MESSAGE frame up to the entry, which the caller sends behind it: `entry_len` bytes.
///
/// # Panics
/// As [`put_send_frame`].
#[inline]
pub fn put_message_head(head: MessageHead, entry_len: usize, out: &mut BytesMut) {
    if !hot::put_message_head(head, entry_len, out) {
        let message = pb::CommandMessage {
            consumer_id: head.consumer_id,
            message_id: head.position.into(),
            redelivery_count: head.redelivery_count,
            ack_set: Vec::new(),
            consumer_epoch: head.consumer_epoch,
        };
        Command::Message(message).encode_any_head(entry_len, out);
    }
}

/// Appends an ACK frame of single entries. A `request_id` asks the broker for an answer.
///
/// # Panics
/// As [`put_send_frame`].
#[inline]
pub fn put_individual_ack(
    consumer_id: u64,
    positions: &[Position],
    request_id: Option<u64>,
    out: &mut BytesMut,
) {
    put_ack(
        pb::command_ack::AckType::Individual,
        consumer_id,
        positions,
        request_id,
        out,
    );
}

/// Appends an ACK frame of an entry and all before it. A `request_id` asks the broker for an answer.
#[inline]
pub fn put_cumulative_ack(
    consumer_id: u64,
    position: Position,
    request_id: Option<u64>,
    out: &mut BytesMut,
) {
    put_ack(
        pb::command_ack::AckType::Cumulative,
        consumer_id,
        &[position],
        request_id,
        out,
    );
}

#[inline(always)]
fn put_ack(
    ack_type: pb::command_ack::AckType,
    consumer_id: u64,
    positions: &[Position],
    request_id: Option<u64>,
    out: &mut BytesMut,
) {
    let mut ack = pb::CommandAck {
        consumer_id,
        ack_type: ack_type.into(),
        request_id,
        ..Default::default()
    };
    if !hot::put_positions_ack(&ack, positions, out) {
        ack.message_id = positions.iter().copied().map(Into::into).collect();
        Command::Ack(ack).encode_any_head(0, out);
    }
}

impl From<Position> for pb::MessageIdData {
    fn from(position: Position) -> Self {
        pb::MessageIdData {
            ledger_id: position.ledger_id,
            entry_id: position.entry_id,
            partition: position.partition,
            ..Default::default()
        }
    }
}

/// The sizes around the sub-message of a command, computed once.
struct Envelope {
    /// As the varint of `BaseCommand.type`: the low 32 bits, sign-extended.
    command_type: u64,
    /// The tag of the sub-message's field; `None` for an unknown type, whose content is not known.
    body_tag: Option<u64>,
    body_len: usize,
    /// Whether the sub-message is written by hand.
    is_hot: bool,
}

impl Envelope {
    fn of(command: &Command) -> Self {
        let command_type = i64::from(command.command_type()).cast_unsigned();
        let body_tag = match command {
            Command::Unknown { .. } => None,
            _ => Some(command_type << 3 | LENGTH_DELIMITED),
        };
        let hot_len = hot::body_len(command);
        Envelope {
            command_type,
            body_tag,
            body_len: hot_len.unwrap_or_else(|| command.generated_body_len()),
            is_hot: hot_len.is_some(),
        }
    }

    fn len(&self) -> usize {
        let body = match self.body_tag {
            Some(tag) => {
                wire::varint_len(tag) + wire::varint_len(self.body_len as u64) + self.body_len
            }
            None => 0,
        };
        TYPE_TAG_LEN + wire::varint_len(self.command_type) + body
    }

    /// Appends the command, behind the length fields of a frame if these are given.
    fn put(&self, lengths: Option<[u32; 2]>, command: &Command, out: &mut BytesMut) {
        let start = out.len();
        let lengths_len = lengths.map_or(0, |lengths| lengths.len() * LENGTH_FIELD);
        let end = start + lengths_len + self.len();
        let written_by_hand = if self.is_hot {
            end
        } else {
            end - self.body_len
        };
        out.resize(written_by_hand + SLACK, 0);
        let mut writer = Writer::new(out.get_mut(start..).unwrap_or_default());
        for length in lengths.into_iter().flatten() {
            writer.fixed(length);
        }
        writer.varint(TYPE_TAG.into());
        writer.varint(self.command_type);
        if let Some(tag) = self.body_tag {
            writer.varint(tag);
            writer.varint(self.body_len as u64);
            if self.is_hot {
                hot::put_body(command, &mut writer);
            }
        }
        debug_assert_eq!(start + writer.written(), written_by_hand);
        out.truncate(written_by_hand);
        if !self.is_hot {
            command.put_generated_body(out);
        }
    }
}

/// The magic number of a checksum, and the checksum.
const CHECKSUM_LEN: usize = 6;
/// What a frame of SEND has before the metadata, and some more; a longer command makes the buffer grow once more.
const SEND_HEAD_USUAL: usize = 192;
/// Wire type of messages.
const LENGTH_DELIMITED: u64 = 2;
/// The tag of `BaseCommand.type`: its number and the wire type of varints, 0.
const TYPE_TAG: u8 = 8;
const TYPE_TAG_LEN: usize = 1;
const _: () = assert!(
    TYPE_FIELD << 3 == TYPE_TAG as u32,
    "the tag follows from the number"
);
