//! Single fields read from the start of an encoded command or message metadata, for who relays bytes and decodes nothing. // hot path
//!
//! All readers take cut input: what is behind the cut is as if it were absent, and nothing here fails. Who acts on a command
//! (and does not merely count it) decodes it with [`super::command`].

use super::broker_entry;
use super::fields;
use super::message::CHECKSUM_MAGIC;
use super::wire::{low_i32, take_varint};

/// One field of a protobuf message as it stands on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// A varint: bool, enum and all integer fields of the Pulsar protocol.
    Varint(u64),
    /// String, bytes or message; cut where the input was cut.
    Bytes(&'a [u8]),
    /// A fixed-width field, which no command uses.
    Fixed,
}

/// The fields of one encoded message in wire order, up to the first byte that does not parse.
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of `message`.
    pub fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    #[inline]
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    // Apart from the kinds that occur, so that these are told apart by a predictable branch and not by a jump table.
    #[cold]
    fn take_fixed(&mut self, wire_type: u64) -> Option<FieldValue<'a>> {
        let len = match wire_type {
            1 => 8,
            5 => 4,
            _ => return None,
        };
        self.take(len);
        Some(FieldValue::Fixed)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, FieldValue<'a>);

    // Inlined, so that a caller that wants one kind of field does not build the others.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => FieldValue::Varint(varint(&mut self.0)?),
            2 => {
                let len = varint(&mut self.0)?;
                FieldValue::Bytes(self.take(usize::try_from(len).unwrap_or(usize::MAX)))
            }
            other => self.take_fixed(other)?,
        };
        Some((u32::try_from(key >> 3).ok()?, value))
    }
}

/// Type number and sub-message of an encoded BaseCommand; the sub-message has the field number of the type. `None` when the bytes
/// hold no type.
pub fn command(base_command: &[u8]) -> Option<(i32, &[u8])> {
    // As everybody writes it: the type and then its sub-message, and no more. One look at each, for every frame that passes.
    if let [TYPE_KEY, command_type, behind @ ..] = base_command
        && *command_type < 0x80
    {
        let mut fields = Fields::of(behind);
        if let Some((number, FieldValue::Bytes(body))) = fields.next()
            && number == u32::from(*command_type)
            && fields.0.is_empty()
        {
            return Some((i32::from(*command_type), body));
        }
    }
    any_command(base_command)
}

fn any_command(base_command: &[u8]) -> Option<(i32, &[u8])> {
    let command_type = low_i32(varint_field(base_command, fields::base_command::TYPE)?);
    let number = u32::try_from(command_type).ok();
    let bodies = Fields::of(base_command).filter_map(|(field, value)| match value {
        FieldValue::Bytes(body) if Some(field) == number => Some(body),
        _ => None,
    });
    Some((command_type, bodies.last().unwrap_or_default()))
}

/// The varint field with this number in `message`; the last one wins, as in protobuf.
pub fn varint_field(message: &[u8], number: u32) -> Option<u64> {
    let mut found = None;
    for (field, value) in Fields::of(message) {
        if field == number
            && let FieldValue::Varint(value) = value
        {
            found = Some(value);
        }
    }
    found
}

/// `CommandSend.producer_id` and how many messages the SEND carries: `CommandSend.num_messages`, 1 when it says nothing or nothing
/// that can be.
pub fn send(send: &[u8]) -> (Option<u64>, u64) {
    let (producer_id, messages) = send_in_order(send).unwrap_or_else(|| any_send(send));
    (producer_id, if messages > BATCH_MAX { 1 } else { messages })
}

/// As everybody writes it, in the order of the numbers: behind the number of messages there is nothing to look for. `None`: look
/// at all of it.
fn send_in_order(send: &[u8]) -> Option<(Option<u64>, u64)> {
    let rest = send.strip_prefix(&[key(fields::send::PRODUCER_ID)])?;
    let (producer_id, rest) = split_short_varint(rest)?;
    let rest = rest.strip_prefix(&[key(fields::send::SEQUENCE_ID)])?;
    let rest = skip_varint(rest)?;
    match rest.split_first() {
        None => Some((Some(producer_id), 1)),
        Some((&behind, rest)) if behind == key(fields::send::NUM_MESSAGES) => {
            Some((Some(producer_id), split_short_varint(rest)?.0))
        }
        Some(_) => None,
    }
}

fn any_send(send: &[u8]) -> (Option<u64>, u64) {
    let (mut producer_id, mut messages) = (None, 1);
    for (field, value) in Fields::of(send) {
        match (field, value) {
            (fields::send::PRODUCER_ID, FieldValue::Varint(id)) => producer_id = Some(id),
            (fields::send::NUM_MESSAGES, FieldValue::Varint(count)) => messages = count,
            _ => {}
        }
    }
    (producer_id, messages)
}

/// How many messages the payload of a MESSAGE frame carries: `MessageMetadata.num_messages_in_batch`, 1 when it is not a batch
/// or the metadata is not within the given start of the payload.
pub fn messages_in_payload(payload: &[u8]) -> u64 {
    metadata(payload)
        .and_then(messages_in_batch)
        .filter(|count| *count <= BATCH_MAX)
        .unwrap_or(1)
}

/// `MessageMetadata.num_messages_in_batch`. Fields come in the order of their numbers, as all clients write them: behind the
/// first greater one it is not looked for, so that properties and keys behind it cost nothing.
fn messages_in_batch(mut metadata: &[u8]) -> Option<u64> {
    const NUMBER: u8 = key(fields::message_metadata::NUM_MESSAGES_IN_BATCH);
    loop {
        let (&key, rest) = metadata.split_first()?;
        if key >= NUMBER {
            // A number of two bytes is a greater one, too.
            return match key {
                NUMBER => varint(&mut { rest }),
                _ => None,
            };
        }
        metadata = match key & 7 {
            0 => skip_varint(rest)?,
            2 => {
                let (len, rest) = split_short_varint(rest)?;
                rest.get(usize::try_from(len).ok()?..)?
            }
            _ => return None,
        };
    }
}

/// The key of a varint field with a number below 16.
const fn key(number: u32) -> u8 {
    assert!(number < 16);
    number.to_le_bytes()[0] << 3
}

/// Behind the varint at the front.
#[inline(always)]
fn skip_varint(bytes: &[u8]) -> Option<&[u8]> {
    // Times and numbers of messages take several bytes: their ends are found at once and not byte by byte.
    if let Some(first) = bytes.first_chunk::<8>() {
        let ends = !u64::from_le_bytes(*first) & 0x8080_8080_8080_8080;
        if ends != 0 {
            return bytes.get((ends.trailing_zeros() / 8 + 1) as usize..);
        }
    }
    let end = bytes.iter().position(|byte| *byte < 0x80)?;
    bytes.get(end + 1..)
}

/// A varint of one to ten bytes; those of one byte at once.
#[inline(always)]
fn split_short_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    match bytes {
        [byte, rest @ ..] if *byte < 0x80 => Some((u64::from(*byte), rest)),
        mut longer => varint(&mut longer).map(|value| (value, longer)),
    }
}

/// The message metadata (perhaps cut) behind the optional broker entry metadata and checksum.
fn metadata(mut payload: &[u8]) -> Option<&[u8]> {
    if let Some(rest) = payload.strip_prefix(&broker_entry::MAGIC.to_be_bytes()) {
        let (size, rest) = rest.split_first_chunk::<4>()?;
        payload = rest.get(usize::try_from(u32::from_be_bytes(*size)).ok()?..)?;
    }
    if let Some(rest) = payload.strip_prefix(&CHECKSUM_MAGIC.to_be_bytes()) {
        payload = rest.get(4..)?;
    }
    let (size, rest) = payload.split_first_chunk::<4>()?;
    let size = usize::try_from(u32::from_be_bytes(*size)).ok()?;
    Some(rest.get(..size).unwrap_or(rest))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    take_varint(bytes).ok()
}

/// The key of `BaseCommand.type`.
const TYPE_KEY: u8 = 1 << 3;

/// Counts beyond this are not believed; they only feed a metric.
const BATCH_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::wire::put_varint;

    proptest! {
        #[test]
        fn a_command_is_the_same_by_either_way(
            parts in proptest::collection::vec(
                prop_oneof![
                    (0..12_u8).prop_map(|number| vec![8, number]),
                    (0..12_u8, 0..4_u8).prop_map(|(number, len)| vec![number << 3 | 2, len]),
                    proptest::collection::vec(any::<u8>(), 0..4),
                ],
                0..5,
            ),
        ) {
            let bytes = parts.concat();
            prop_assert_eq!(command(&bytes), any_command(&bytes));
        }
    }

    fn field() -> impl Strategy<Value = Vec<u8>> {
        let varint = (0..14_u8, any::<u64>()).prop_map(|(number, value)| {
            let mut bytes = vec![number << 3];
            put_varint(value >> (value % 64), &mut bytes);
            bytes
        });
        let bytes = (0..12_u8, 0..9_u8).prop_map(|(number, len)| {
            let mut bytes = vec![number << 3 | 2, len];
            bytes.resize(2 + usize::from(len), 0x58);
            bytes
        });
        prop_oneof![varint, bytes]
    }

    /// Each number once, ascending, all below 16.
    fn in_order(fields: &mut Vec<Vec<u8>>) {
        fields.retain(|field| field.first().is_some_and(|key| *key < 0x78));
        fields.sort_by_key(|field| field[0] >> 3);
        fields.dedup_by_key(|field| field[0] >> 3);
    }

    proptest! {
        #[test]
        fn a_send_in_order_is_the_same_by_either_way(
            mut fields in proptest::collection::vec(field(), 0..6),
            cut in 0..60_usize,
        ) {
            in_order(&mut fields);
            let bytes = fields.concat();
            let bytes = &bytes[..cut.min(bytes.len())];
            if let Some(found) = send_in_order(bytes) {
                prop_assert_eq!(found, any_send(bytes));
            }
        }

        #[test]
        fn the_messages_of_a_batch_are_found_where_fields_are_in_order(
            mut fields in proptest::collection::vec(field(), 0..8),
            cut in 0..80_usize,
        ) {
            in_order(&mut fields);
            let bytes = fields.concat();
            let bytes = &bytes[..cut.min(bytes.len())];
            if let Some(found) = messages_in_batch(bytes) {
                prop_assert_eq!(Some(found), varint_field(bytes, 11));
            } else if Fields::of(bytes).count() == fields.len() {
                prop_assert_eq!(None, varint_field(bytes, 11));
            }
        }
    }

    #[test]
    fn a_send_as_clients_write_it_takes_the_short_way() {
        let send = [0x08, 3, 0x10, 0xac, 0x02, 0x18, 5];
        assert_eq!(send_in_order(&send), Some((Some(3), 5)));
        assert_eq!(send_in_order(&send[..5]), Some((Some(3), 1)));
    }

    #[test]
    fn reads_type_and_body_and_fields_of_a_send() {
        // type = SEND(6), send(6) { producer_id = 3, sequence_id = 300, num_messages = 5 }
        let bytes = [0x08, 6, 0x32, 7, 0x08, 3, 0x10, 0xac, 0x02, 0x18, 5];
        let (command_type, body) = command(&bytes).unwrap();
        assert_eq!(command_type, 6);
        assert_eq!(varint_field(body, 1), Some(3));
        assert_eq!(varint_field(body, 2), Some(300));
        assert_eq!(send(body), (Some(3), 5));
    }

    #[test]
    fn a_count_that_cannot_be_is_counted_as_one_message() {
        // num_messages = -5, which would take messages away from a counter
        let send = [
            0x18, 0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
        ];
        assert_eq!(varint_field(&send, 3), Some(u64::MAX - 4));
        assert_eq!(super::send(&send), (None, 1));
    }

    #[test]
    fn cut_input_gives_what_is_there_and_never_panics() {
        let bytes = [0x08, 6, 0x32, 7, 0x08, 3, 0x10, 0xac, 0x02, 0x18, 5];
        for len in 0..bytes.len() {
            if let Some((_, body)) = command(&bytes[..len]) {
                send(body);
            }
        }
        assert_eq!(command(&bytes[..6]).unwrap().1, &[0x08, 3]);
    }

    #[test]
    fn counts_the_messages_of_a_batch_behind_entry_metadata_and_checksum() {
        let metadata = [0x0a, 1, b'p', 0x10, 0, 0x18, 9, 0x58, 12];
        let mut payload = vec![0x0e, 0x02, 0, 0, 0, 2, 0x10, 7, 0x0e, 0x01, 1, 2, 3, 4];
        payload.extend_from_slice(&u32::try_from(metadata.len()).unwrap().to_be_bytes());
        payload.extend_from_slice(&metadata);
        payload.extend_from_slice(b"rest");
        assert_eq!(messages_in_payload(&payload), 12);
        assert_eq!(messages_in_payload(b"nonsense"), 1);
    }
}
