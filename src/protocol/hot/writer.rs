//! Writing fields into memory of known size: one check of capacity for a whole command, and no copy.
// hot path

use crate::protocol::wire::varint_len;

/// Writes to the start of a piece of memory that is [`SLACK`] bytes longer than what will be written.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Writer { buffer, len: 0 }
    }

    /// How many bytes were written.
    #[inline]
    pub(crate) fn written(&self) -> usize {
        self.len
    }

    /// Writes a big-endian number.
    #[inline]
    pub(crate) fn fixed(&mut self, value: u32) {
        let place = self.buffer.get_mut(self.len..);
        if let Some(place) = place.and_then(|place| place.first_chunk_mut()) {
            *place = value.to_be_bytes();
            self.len += size_of::<u32>();
        }
    }

    /// Writes a varint.
    #[inline]
    pub(crate) fn varint(&mut self, value: u64) {
        self.put(value);
    }

    /// Writes a field of wire type 0, whose key is one byte.
    #[inline]
    pub(super) fn field(&mut self, key: u8, value: u64) {
        self.put_byte(key);
        self.put(value);
    }

    /// Writes a field of wire type 0 if it is there.
    #[inline]
    pub(super) fn optional(&mut self, key: u8, value: Option<u64>) {
        if let Some(value) = value {
            self.field(key, value);
        }
    }

    #[inline]
    fn put_byte(&mut self, byte: u8) {
        if let Some(place) = self.buffer.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }

    #[inline]
    fn put(&mut self, value: u64) {
        match u8::try_from(value) {
            Ok(byte) if byte < CONTINUED => self.put_byte(byte),
            _ => self.put_long(value),
        }
    }

    #[inline]
    fn put_long(&mut self, value: u64) {
        // The usual lengths one by one: they are guessed well, and what follows need not wait for them.
        match value {
            ..TWO => self.put_word(value, 2),
            TWO..THREE => self.put_word(value, 3),
            THREE..FOUR => self.put_word(value, 4),
            FOUR..EIGHT => self.put_word(value, varint_len(value)),
            _ => self.put_longest(value),
        }
    }

    /// Writes a varint of `len` bytes, at most eight.
    #[inline]
    fn put_word(&mut self, value: u64, len: usize) {
        // All bytes but the last are marked as continued.
        let marks = CONTINUED_ALL & ((1 << (8 * (len - 1))) - 1);
        let place = self.buffer.get_mut(self.len..);
        if let Some(place) = place.and_then(|place| place.first_chunk_mut()) {
            *place = (spread(value) | marks).to_le_bytes();
            self.len += len;
        }
    }

    /// Nine or ten bytes: negative numbers, and ids that somebody made up.
    fn put_longest(&mut self, mut value: u64) {
        while value >= u64::from(CONTINUED) {
            let [low, ..] = value.to_le_bytes();
            self.put_byte(low | CONTINUED);
            value >>= 7;
        }
        let [last, ..] = value.to_le_bytes();
        self.put_byte(last);
    }
}

/// Spreads the low 56 bits over eight bytes, seven bits each.
#[inline]
fn spread(value: u64) -> u64 {
    let value = (value & 0x0fff_ffff) | (value & 0x00ff_ffff_f000_0000) << 4;
    let value = (value & 0x0000_3fff_0000_3fff) | (value & 0x0fff_c000_0fff_c000) << 2;
    (value & 0x007f_007f_007f_007f) | (value & 0x3f80_3f80_3f80_3f80) << 1
}

/// The first values that two, three, four and eight bytes are not enough for.
const TWO: u64 = 1 << 14;
const THREE: u64 = 1 << 21;
const FOUR: u64 = 1 << 28;
const EIGHT: u64 = 1 << 56;
/// Varints are written in pieces of eight bytes, of which the last ones may be too many.
pub(crate) const SLACK: usize = 8;
/// The bit of a byte that says that the varint goes on.
const CONTINUED: u8 = 0x80;
const CONTINUED_ALL: u64 = 0x8080_8080_8080_8080;
