//! Codecs written by hand for the commands and metadata that every message costs.
//!
//! SEND, SEND_RECEIPT, MESSAGE, ACK, FLOW, PING and PONG, and the `MessageMetadata` of an entry. The values are those of the
//! generated types, and so are the bytes: the generated code is the reference that tests compare with. Reading is for
//! what clients and brokers send; whatever else the reference might take (a sub-message in two pieces, properties of an
//! ACK, bytes that are wrong) is declined with `None` and then goes the way of all other commands, which also says what
//! is wrong. Callers use [`crate::protocol::command`], [`crate::protocol::encode`] and [`crate::protocol::message`].
// hot path

mod decode;
mod encode;
mod frame_head;
#[cfg(test)]
mod frame_head_tests;
mod metadata;
#[cfg(test)]
mod metadata_tests;
mod ordered;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use encode::{body_len, put_body};
pub use frame_head::{MessageHead, Position};
pub(crate) use frame_head::{put_head, put_message_head, put_positions_ack, put_send};
pub use metadata::MetadataView;
pub(crate) use metadata::decode_metadata;
pub(crate) use writer::{SLACK, Writer};

use crate::protocol::command::{Command, CommandError};
use crate::protocol::wire::{Fields, take_varint};

/// Decodes an encoded `BaseCommand`; `otherwise` is called for all that is not a hot command, or not written as clients and
/// brokers write it.
///
/// What is decoded here decodes to the same value by the generated code.
#[inline(always)]
pub(crate) fn decode_or(
    command: &[u8],
    otherwise: impl FnOnce() -> Result<Command, CommandError>,
) -> Result<Command, CommandError> {
    ordered::decode_or(command, || match decode::decode(command) {
        Some(command) => Ok(command),
        None => otherwise(),
    })
}

/// The keys (number and wire type) of varint fields.
const VARINT_1: u8 = 1 << 3;
const VARINT_2: u8 = 2 << 3;
const VARINT_3: u8 = 3 << 3;
const VARINT_4: u8 = 4 << 3;
const VARINT_5: u8 = 5 << 3;
const VARINT_6: u8 = 6 << 3;
const VARINT_7: u8 = 7 << 3;
const VARINT_8: u8 = 8 << 3;
/// The keys of strings, bytes, messages and packed lists.
const BYTES_2: u8 = VARINT_2 | LENGTH_DELIMITED;
const BYTES_3: u8 = VARINT_3 | LENGTH_DELIMITED;
const BYTES_5: u8 = VARINT_5 | LENGTH_DELIMITED;
const BYTES_7: u8 = VARINT_7 | LENGTH_DELIMITED;
const BYTES_9: u8 = 9 << 3 | LENGTH_DELIMITED;

/// Wire type of strings, bytes and messages.
const LENGTH_DELIMITED: u8 = 2;

/// Takes one byte: the key of a field, if its number is below 16.
#[inline]
fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (&byte, tail) = rest.split_first()?;
    *rest = tail;
    Some(byte)
}

#[inline(always)]
fn varint(rest: &mut &[u8]) -> Option<u64> {
    take_varint(rest).ok()
}

/// Takes a length and as many bytes.
#[inline(always)]
fn bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(varint(rest)?).ok()?;
    let (bytes, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(bytes)
}

/// Skips a field whose first byte, `key`, has been taken, and which is not one of the numbers `1..=known`: one of these
/// in an unexpected form is for the reference to judge.
#[cold]
fn skip<'a>(message: &'a [u8], rest: &mut &'a [u8], known: u32) -> Option<()> {
    let start = message.len().checked_sub(rest.len() + 1)?;
    let (number, behind) = skip_field(message.get(start..)?)?;
    *rest = behind;
    (number > known).then_some(())
}

/// The number of the field at the front of `message`, and what is behind it.
fn skip_field(message: &[u8]) -> Option<(u32, &[u8])> {
    let field = Fields::new(message).next()?.ok()?;
    Some((field.number, message.get(field.end..)?))
}
