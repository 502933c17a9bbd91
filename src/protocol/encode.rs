//! Writing commands as frames.
//!
//! Owns the envelope: the two length fields of a frame and the `BaseCommand` around a sub-message. Nothing is built on
//! the side: the bytes go straight into the caller's buffer.
// hot path

use bytes::{BufMut, Bytes, BytesMut};

use crate::protocol::command::{Command, TYPE_FIELD};
use crate::protocol::hot::{self, SLACK, Writer};
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
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_with_payload(&[], out);
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
    pub fn encode_head(&self, payload_len: usize, out: &mut BytesMut) {
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

/// Wire type of messages.
const LENGTH_DELIMITED: u64 = 2;
/// The tag of `BaseCommand.type`: its number and the wire type of varints, 0.
const TYPE_TAG: u8 = 8;
const TYPE_TAG_LEN: usize = 1;
const _: () = assert!(
    TYPE_FIELD << 3 == TYPE_TAG as u32,
    "the tag follows from the number"
);
