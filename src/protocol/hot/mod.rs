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
mod metadata;
#[cfg(test)]
mod metadata_tests;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use decode::decode;
pub(crate) use encode::{body_len, put_body};
pub use metadata::MetadataView;
pub(crate) use writer::{SLACK, Writer};

use crate::protocol::wire::{Fields, take_varint};

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

#[inline]
fn varint(rest: &mut &[u8]) -> Option<u64> {
    take_varint(rest).ok()
}

/// Takes a length and as many bytes.
#[inline]
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
    let number = skip_field(message.get(start..)?, rest)?;
    (number > known).then_some(())
}

/// Skips the field that `field` starts with and returns its number; `rest` is what is behind it then.
fn skip_field<'a>(field: &'a [u8], rest: &mut &'a [u8]) -> Option<u32> {
    let skipped = Fields::new(field).next()?.ok()?;
    *rest = field.get(skipped.end..)?;
    Some(skipped.number)
}
