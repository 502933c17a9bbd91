//! Writing fields into a small buffer on the stack first: one copy and one check of capacity for a whole command.
// hot path

use bytes::BufMut;

use crate::protocol::wire::varint_len;

/// Collects what is written and hands it on in few pieces. [`Writer::finish`] hands on the last one.
pub(crate) struct Writer<'a, B> {
    out: &'a mut B,
    buffer: [u8; SIZE],
    len: usize,
}

impl<'a, B: BufMut> Writer<'a, B> {
    #[inline]
    pub(crate) fn new(out: &'a mut B) -> Self {
        Writer {
            out,
            buffer: [0; SIZE],
            len: 0,
        }
    }

    /// Hands on all that was written, and gives back where it went.
    #[inline]
    pub(crate) fn finish(mut self) -> &'a mut B {
        self.flush();
        self.out
    }

    fn flush(&mut self) {
        self.out
            .put_slice(self.buffer.get(..self.len).unwrap_or_default());
        self.len = 0;
    }

    /// Makes room for the longest field.
    #[inline]
    fn reserve(&mut self) {
        if self.len > SIZE - FIELD_LEN_MAX {
            self.flush();
        }
    }

    /// Writes a big-endian number.
    #[inline]
    pub(crate) fn fixed(&mut self, value: u32) {
        self.reserve();
        let place = self.buffer.get_mut(self.len..);
        if let Some(place) = place.and_then(|place| place.first_chunk_mut()) {
            *place = value.to_be_bytes();
            self.len += size_of::<u32>();
        }
    }

    /// Writes a varint.
    #[inline]
    pub(crate) fn varint(&mut self, value: u64) {
        self.reserve();
        self.put(value);
    }

    /// Writes a field of wire type 0, whose key is one byte.
    #[inline]
    pub(super) fn field(&mut self, key: u8, value: u64) {
        self.reserve();
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
        let len = varint_len(value);
        if len <= size_of::<u64>() {
            // All bytes but the last are marked as continued.
            let marks = CONTINUED_ALL & ((1 << (8 * (len - 1))) - 1);
            let place = self.buffer.get_mut(self.len..);
            if let Some(place) = place.and_then(|place| place.first_chunk_mut()) {
                *place = (spread(value) | marks).to_le_bytes();
                self.len += len;
            }
        } else {
            self.put_longest(value);
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
fn spread(value: u64) -> u64 {
    let value = (value & 0x0fff_ffff) | (value & 0x00ff_ffff_f000_0000) << 4;
    let value = (value & 0x0000_3fff_0000_3fff) | (value & 0x0fff_c000_0fff_c000) << 2;
    (value & 0x007f_007f_007f_007f) | (value & 0x3f80_3f80_3f80_3f80) << 1
}

/// Large enough for SEND and FLOW in one piece, and for most of the others.
const SIZE: usize = 128;
/// A key of one byte and a varint of ten, which is written in a piece of eight if it is shorter.
const FIELD_LEN_MAX: usize = 11;
/// The bit of a byte that says that the varint goes on.
const CONTINUED: u8 = 0x80;
const CONTINUED_ALL: u64 = 0x8080_8080_8080_8080;
