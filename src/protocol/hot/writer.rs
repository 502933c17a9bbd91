//! Writing fields into memory that is there: one check of capacity for a whole command, and no copy.
// hot path

use crate::protocol::wire::varint_len;

/// Writes to the start of a piece of memory that is [`SLACK`] bytes longer than what will be written.
///
/// Writing beyond the memory does nothing but move on, so that it need not be handled field by field: whoever does not
/// know the length before asks [`Writer::end`] afterwards.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Writer::behind(0, buffer)
    }

    /// A writer that leaves the first `len` bytes alone.
    #[inline]
    pub(super) fn behind(len: usize, buffer: &'a mut [u8]) -> Self {
        Writer { buffer, len }
    }

    /// How many bytes were written, the ones left alone included.
    #[inline]
    pub(crate) fn written(&self) -> usize {
        self.len
    }

    /// As [`Writer::written`]; `None` if the memory may have been too short.
    #[inline]
    pub(super) fn end(&self) -> Option<usize> {
        (self.len.saturating_add(SLACK) <= self.buffer.len()).then_some(self.len)
    }

    /// Makes [`Writer::end`] say `None`: something cannot be written here.
    #[inline]
    pub(super) fn refuse(&mut self) {
        self.len = self.buffer.len();
    }

    /// Writes a big-endian number.
    #[inline]
    pub(crate) fn fixed(&mut self, value: u32) {
        self.place(value.to_be_bytes());
        self.len += size_of::<u32>();
    }

    /// Writes a varint.
    #[inline]
    pub(crate) fn varint(&mut self, value: u64) {
        match value {
            ..ONE => self.word(value, 1),
            ONE..TWO => self.word(two(value), 2),
            TWO..EIGHT => {
                let len = varint_len(value);
                self.word(spread(value) | marks(len), len);
            }
            _ => self.longest(value),
        }
    }

    /// Writes a field of wire type 0, whose key is one byte.
    #[inline(always)]
    pub(super) fn field(&mut self, key: u8, value: u64) {
        let first = u64::from(key);
        // The usual lengths one by one: they are guessed well, and what follows need not wait for them. Key and number
        // are stored at once.
        match value {
            ..ONE => self.word(first | value << 8, 2),
            ONE..TWO => self.word(first | two(value) << 8, 3),
            TWO..THREE => self.word(first | (spread_less(value) | marks(3)) << 8, 4),
            THREE..FOUR => self.word(first | (spread_less(value) | marks(4)) << 8, 5),
            _ => self.len = put_long_field(self.buffer, self.len, key, value),
        }
    }

    /// Writes a field of wire type 0 if it is there.
    #[inline(always)]
    pub(super) fn optional(&mut self, key: u8, value: Option<u64>) {
        if let Some(value) = value {
            self.field(key, value);
        }
    }

    /// Begins a message of less than 128 bytes: writes its key and leaves room for its length. Returns what
    /// [`Writer::end_message`] wants to know.
    #[inline(always)]
    pub(super) fn begin_message(&mut self, key: u8) -> usize {
        self.word(key.into(), 2);
        self.len
    }

    /// Writes the length of a message that has come to its end.
    #[inline(always)]
    pub(super) fn end_message(&mut self, begin: usize) {
        match u8::try_from(self.len - begin) {
            Ok(len) if u64::from(len) < ONE => {
                if let Some(place) = self.buffer.get_mut(begin - 1) {
                    *place = len;
                }
            }
            _ => self.refuse(),
        }
    }

    /// Writes the low `len` bytes of `word`, at most eight.
    #[inline(always)]
    fn word(&mut self, word: u64, len: usize) {
        self.place(word.to_le_bytes());
        self.len += len;
    }

    #[inline(always)]
    fn place<const N: usize>(&mut self, bytes: [u8; N]) {
        let place = self.buffer.get_mut(self.len..);
        if let Some(place) = place.and_then(|place| place.first_chunk_mut()) {
            *place = bytes;
        }
    }

    /// Nine or ten bytes: negative numbers, and ids that somebody made up.
    fn longest(&mut self, mut value: u64) {
        while value >= ONE {
            let [low, ..] = value.to_le_bytes();
            self.word(u64::from(low) | ONE, 1);
            value >>= 7;
        }
        self.word(value, 1);
    }
}

/// Numbers of five bytes and more are not worth their code in place. The writer itself is not passed, so that it need not be
/// in memory. Returns how many bytes are written then.
#[inline(never)]
fn put_long_field(buffer: &mut [u8], len: usize, key: u8, value: u64) -> usize {
    let mut writer = Writer::behind(len, buffer);
    writer.word(key.into(), 1);
    writer.varint(value);
    writer.len
}

/// A number of two bytes.
#[inline(always)]
fn two(value: u64) -> u64 {
    (value & 0x7f) | ONE | value >> 7 << 8
}

/// Spreads the low 28 bits over four bytes, seven bits each.
#[inline(always)]
fn spread_less(value: u64) -> u64 {
    let value = (value & 0x3fff) | (value & 0x0fff_c000) << 2;
    (value & 0x007f_007f) | (value & 0x3f80_3f80) << 1
}

/// Spreads the low 56 bits over eight bytes, seven bits each.
#[inline]
fn spread(value: u64) -> u64 {
    let value = (value & 0x0fff_ffff) | (value & 0x00ff_ffff_f000_0000) << 4;
    let value = (value & 0x0000_3fff_0000_3fff) | (value & 0x0fff_c000_0fff_c000) << 2;
    (value & 0x007f_007f_007f_007f) | (value & 0x3f80_3f80_3f80_3f80) << 1
}

/// Marks all of `len` bytes but the last as continued; at most eight.
#[inline(always)]
fn marks(len: usize) -> u64 {
    0x8080_8080_8080_8080 & ((1 << (8 * (len - 1))) - 1)
}

/// The first values that one, two, three, four and eight bytes are not enough for. The first is also the bit of a byte
/// that says that the varint goes on.
const ONE: u64 = 1 << 7;
const TWO: u64 = 1 << 14;
const THREE: u64 = 1 << 21;
const FOUR: u64 = 1 << 28;
const EIGHT: u64 = 1 << 56;
/// Fields are written in pieces of eight bytes, of which the last ones may be too many.
pub(crate) const SLACK: usize = 8;
