//! Walking over an encoded protobuf message without decoding it.
//!
//! Owns varints and the skipping of fields. Used where decoding a whole message would be too much: to find one
//! sub-message of a `BaseCommand`, to change one field, to read a few ids. It never allocates.
// hot path

use bytes::BufMut;
use thiserror::Error;

/// Why bytes are not an encoded protobuf message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("the message ends inside a field")]
    Truncated,
    /// A varint has more than the ten bytes that 64 bits need, or more than 64 bits.
    #[error("a varint is longer than 64 bits")]
    VarintTooLong,
    /// A field has the number 0 or one above 2^29 - 1.
    #[error("a field has an invalid number")]
    FieldNumber,
    /// A field has a wire type that Pulsar's messages do not use (3, 4: groups) or that does not exist (6, 7).
    #[error("field {field} has the unknown wire type {wire_type}")]
    WireType {
        /// The number of the field.
        field: u32,
        /// The wire type found.
        wire_type: u8,
    },
    /// Messages are nested deeper than any of Pulsar's is.
    #[error("messages are nested too deep")]
    TooDeep,
}

/// The value of a field, by wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Wire type 0: integers, booleans, enums.
    Varint(u64),
    /// Wire type 1: doubles and 64 bits of fixed size.
    Fixed64(u64),
    /// Wire type 2: strings, bytes, messages.
    Bytes(&'a [u8]),
    /// Wire type 5: floats and 32 bits of fixed size.
    Fixed32(u32),
}

impl<'a> Value<'a> {
    /// The integer of a field of wire type 0.
    pub fn varint(self) -> Option<u64> {
        match self {
            Value::Varint(value) => Some(value),
            _ => None,
        }
    }

    /// The content of a field of wire type 2.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(value) => Some(value),
            _ => None,
        }
    }

    /// The wire type's number.
    pub fn wire_type(self) -> u8 {
        match self {
            Value::Varint(_) => 0,
            Value::Fixed64(_) => 1,
            Value::Bytes(_) => 2,
            Value::Fixed32(_) => 5,
        }
    }
}

/// One field of a message and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field number.
    pub number: u32,
    /// The value.
    pub value: Value<'a>,
    /// Offset of the first byte of the field (of its tag) in the message.
    pub start: usize,
    /// Offset behind the last byte of the field. `start < end`.
    pub end: usize,
}

/// Iterates over the fields of an encoded message, in the order in which they stand. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Fields<'a> {
    /// The fields of `message`.
    pub fn new(message: &'a [u8]) -> Self {
        Fields {
            rest: message,
            offset: 0,
        }
    }

    fn parse(&mut self) -> Result<Field<'a>, WireError> {
        let before = self.rest.len();
        let start = self.offset;
        let tag = take_varint(&mut self.rest)?;
        let number = u32::try_from(tag >> 3).map_err(|_| WireError::FieldNumber)?;
        if number == 0 || number > MAX_FIELD_NUMBER {
            return Err(WireError::FieldNumber);
        }
        let value = match tag & 7 {
            0 => Value::Varint(take_varint(&mut self.rest)?),
            1 => Value::Fixed64(u64::from_le_bytes(take_array(&mut self.rest)?)),
            2 => {
                let length = take_varint(&mut self.rest)?;
                let length = usize::try_from(length).map_err(|_| WireError::Truncated)?;
                let (bytes, rest) = self
                    .rest
                    .split_at_checked(length)
                    .ok_or(WireError::Truncated)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(u32::from_le_bytes(take_array(&mut self.rest)?)),
            other => {
                let wire_type = u8::try_from(other).unwrap_or(u8::MAX);
                return Err(WireError::WireType {
                    field: number,
                    wire_type,
                });
            }
        };
        self.offset += before - self.rest.len();
        Ok(Field {
            number,
            value,
            start,
            end: self.offset,
        })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.parse();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Takes a varint from the front of `bytes`.
#[inline]
pub fn take_varint(bytes: &mut &[u8]) -> Result<u64, WireError> {
    let (value, rest) = split_varint(bytes)?;
    *bytes = rest;
    Ok(value)
}

// Slices go in and out by value: one that a call may change is kept in memory, and every field waits for it.
#[inline(always)]
fn split_varint(bytes: &[u8]) -> Result<(u64, &[u8]), WireError> {
    // Which of these it is, is guessed well, and what follows need not wait for the length to be known.
    match *bytes {
        [a, ref rest @ ..] if a < 0x80 => Ok((a.into(), rest)),
        // One check of the length and one load, for all but the last fields of a message.
        [a, b, c, d, ref rest @ ..] => {
            let word = u32::from_le_bytes([a, b, c, d]);
            if word & 0x8000 == 0 {
                let rest = bytes.get(2..).unwrap_or_default();
                Ok(((word & 0x7f | word >> 1 & 0x3f80).into(), rest))
            } else if word & 0x80_0000 == 0 {
                let rest = bytes.get(3..).unwrap_or_default();
                Ok((gather_less(word & 0x7f_7f7f), rest))
            } else if word & 0x8000_0000 == 0 {
                Ok((gather_less(word & 0x7f7f_7f7f), rest))
            } else {
                split_long_varint(bytes)
            }
        }
        [a, b, ref rest @ ..] if b < 0x80 => {
            Ok((gather_less(u32::from_le_bytes([a & 0x7f, b, 0, 0])), rest))
        }
        [a, b, c] if c < 0x80 => Ok((
            gather_less(u32::from_le_bytes([a, b, c, 0]) & 0x7f_7f7f),
            &[],
        )),
        _ => split_long_varint(bytes),
    }
}

#[inline(never)]
fn split_long_varint(bytes: &[u8]) -> Result<(u64, &[u8]), WireError> {
    // Up to eight bytes at once, where there are as many: the first byte without the top bit is the last of the varint.
    if let Some((word, _)) = bytes.split_first_chunk() {
        let word = u64::from_le_bytes(*word);
        let ends = !word & 0x8080_8080_8080_8080;
        if ends != 0 {
            let value = gather(word & (ends ^ (ends - 1)));
            let len = ends.trailing_zeros() as usize / 8 + 1;
            return Ok((value, bytes.get(len..).unwrap_or_default()));
        }
    }
    split_varint_bytewise(bytes)
}

/// As [`gather`], of four bytes.
#[inline(always)]
fn gather_less(word: u32) -> u64 {
    let word = (word & 0x007f_007f) | (word & 0x7f00_7f00) >> 1;
    ((word & 0x3fff) | (word & 0x3fff_0000) >> 2).into()
}

/// Moves the low seven bits of each byte together.
fn gather(word: u64) -> u64 {
    let word = (word & 0x007f_007f_007f_007f) | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let word = (word & 0x0000_3fff_0000_3fff) | (word & 0x3fff_0000_3fff_0000) >> 2;
    (word & 0x0fff_ffff) | (word & 0x0fff_ffff_0000_0000) >> 4
}

#[cold]
fn split_varint_bytewise(bytes: &[u8]) -> Result<(u64, &[u8]), WireError> {
    let mut value = 0_u64;
    for (at, &byte) in bytes.iter().take(VARINT_LEN_MAX).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            // The last byte holds only the topmost bit.
            if at == VARINT_LEN_MAX - 1 && byte > 1 {
                return Err(WireError::VarintTooLong);
            }
            return Ok((value, bytes.get(at + 1..).unwrap_or_default()));
        }
    }
    Err(if bytes.len() < VARINT_LEN_MAX {
        WireError::Truncated
    } else {
        WireError::VarintTooLong
    })
}

/// The value of an `int32` or enum field: protobuf keeps the low 32 bits of the varint.
pub fn low_i32(varint: u64) -> i32 {
    let [a, b, c, d, ..] = varint.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// Appends `value` as a varint.
pub fn put_varint(value: u64, out: &mut impl BufMut) {
    prost::encoding::encode_varint(value, out);
}

/// The length of `value` as a varint, in bytes: 1 to 10.
pub fn varint_len(value: u64) -> usize {
    prost::encoding::encoded_len_varint(value)
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], WireError> {
    let (array, rest) = bytes.split_first_chunk::<N>().ok_or(WireError::Truncated)?;
    *bytes = rest;
    Ok(*array)
}

const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;
/// 64 bits, seven a byte.
const VARINT_LEN_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(message: &[u8]) -> Result<Vec<Field<'_>>, WireError> {
        Fields::new(message).collect()
    }

    #[test]
    fn yields_each_wire_type_with_its_place() {
        let message = [
            0x08, 0x96, 0x01, // 1: varint 150
            0x12, 0x02, b'h', b'i', // 2: bytes
            0x1d, 1, 0, 0, 0, // 3: fixed 32
            0x21, 2, 0, 0, 0, 0, 0, 0, 0, // 4: fixed 64
        ];
        let fields = all(&message).expect("well-formed");
        let expected = [
            (1, Value::Varint(150), 0, 3),
            (2, Value::Bytes(b"hi"), 3, 7),
            (3, Value::Fixed32(1), 7, 12),
            (4, Value::Fixed64(2), 12, 21),
        ];
        let found: Vec<_> = fields
            .iter()
            .map(|f| (f.number, f.value, f.start, f.end))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn reports_what_is_wrong() {
        assert_eq!(all(&[0x08]), Err(WireError::Truncated));
        assert_eq!(all(&[0x08, 0x80]), Err(WireError::Truncated));
        assert_eq!(all(&[0x12, 3, 1, 2]), Err(WireError::Truncated));
        assert_eq!(all(&[0x09, 1, 2]), Err(WireError::Truncated));
        assert_eq!(all(&[0x00, 1]), Err(WireError::FieldNumber));
        assert_eq!(
            all(&[0x0b]),
            Err(WireError::WireType {
                field: 1,
                wire_type: 3
            })
        );
        assert_eq!(
            all(&[0x0f]),
            Err(WireError::WireType {
                field: 1,
                wire_type: 7
            })
        );
        let mut too_long = vec![0x08];
        too_long.extend([0xff; 9]);
        too_long.push(2);
        assert_eq!(all(&too_long), Err(WireError::VarintTooLong));
        // A length that does not fit the bytes, nor any memory.
        assert_eq!(
            all(&[
                0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1
            ]),
            Err(WireError::Truncated)
        );
    }

    #[test]
    fn ends_after_an_error() {
        assert_eq!(Fields::new(&[0x0b, 0x08, 1]).count(), 1);
    }

    proptest! {
        #[test]
        fn varints_come_back(value: u64, tail: Vec<u8>) {
            let mut bytes = Vec::new();
            put_varint(value, &mut bytes);
            prop_assert_eq!(bytes.len(), varint_len(value));
            bytes.extend(&tail);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(take_varint(&mut rest), Ok(value));
            prop_assert_eq!(rest, tail.as_slice());
        }

        #[test]
        fn varints_without_end_or_beyond_64_bits_are_refused(len in 0..12_usize, last in 0_u8..) {
            let mut bytes = vec![0xff; len];
            bytes.push(last);
            let mut rest = bytes.as_slice();
            let expected = match bytes.len() {
                10 if last > 1 => Err(WireError::VarintTooLong),
                11.. => Err(WireError::VarintTooLong),
                _ if last >= 0x80 => Err(WireError::Truncated),
                _ => Ok(()),
            };
            prop_assert_eq!(take_varint(&mut rest).map(|_| ()), expected);
            if expected.is_err() {
                prop_assert_eq!(rest, bytes.as_slice());
            }
        }

        #[test]
        fn enums_keep_the_low_32_bits(value: i32) {
            prop_assert_eq!(low_i32(i64::from(value).cast_unsigned()), value);
        }

        #[test]
        fn garbage_is_walked_or_refused(bytes: Vec<u8>) {
            let mut end = 0;
            for field in Fields::new(&bytes).flatten() {
                prop_assert_eq!(field.start, end);
                prop_assert!(field.start < field.end && field.end <= bytes.len());
                end = field.end;
            }
        }
    }
}
