//! A cursor's state, and what changed of it, as bytes: values and deltas of the change log. Pure.
//!
//! The bytes are described in `docs/storage-format.md`, "Cursors". A delta says how what changed is now, not what was done: its length
//! is in proportion to what changed since the last one, and deltas need no log to be understood.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};

use super::super::entry_set::EntrySet;
use super::super::position::LEDGER_ENTRIES_MAX;
use super::super::{AckSet, LogExtent, Position};
use super::{Changes, CursorState};

/// Why bytes are not a state of a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CursorRecordError {
    /// They are not what was written.
    #[error("a record of a cursor is damaged")]
    Checksum,
    /// A newer version wrote them.
    #[error("a record of a cursor has the unknown {what} {number}")]
    Unknown {
        /// What is unknown.
        what: &'static str,
        /// Its number.
        number: u8,
    },
    /// They are no record, though their checksum is right.
    #[error("a record of a cursor is malformed: {0}")]
    Malformed(&'static str),
    /// A record before it is missing, or it comes twice.
    #[error("a record of a cursor has the number {found}, not {expected}")]
    Order {
        /// The number behind that of the record before it.
        expected: u64,
        /// Its number.
        found: u64,
    },
    /// The value that deltas are added to is missing.
    #[error("a cursor has deltas and no state to add them to")]
    NoSnapshot,
}

impl CursorState {
    /// All of the state, as one record. It replaces those before it.
    pub(crate) fn snapshot(&self, number: u64) -> Bytes {
        let mut out = header(SNAPSHOT, number);
        put_position(&mut out, MARK_DELETE, self.mark_delete);
        for (ledger_id, entries) in &self.holes {
            put_entries(&mut out, *ledger_id, entries, |_| {});
        }
        for (position, remaining) in &self.batches {
            put_batch(&mut out, *position, remaining);
        }
        put_numbers(&mut out, &BTreeMap::new(), &self.properties);
        put_texts(&mut out, &BTreeMap::new(), &self.cursor_properties);
        sealed(out)
    }

    /// What changed, as records that follow the one before number `first`. They are several when they would be longer than
    /// [`DELTA_BYTES`]; what stands in one without those behind it was true as well.
    pub(crate) fn deltas(&self, changes: &Changes, first: u64) -> Vec<Bytes> {
        let mut deltas = Deltas {
            done: Vec::new(),
            open: header(DELTA, first),
            number: first,
        };
        let out = &mut deltas.open;
        if changes.reset {
            put_position(out, RESET, self.mark_delete);
        } else if changes.mark_delete {
            put_position(out, MARK_DELETE, self.mark_delete);
        }
        if let Some(before) = &changes.properties {
            put_numbers(out, before, &self.properties);
        }
        if let Some(before) = &changes.cursor_properties {
            put_texts(out, before, &self.cursor_properties);
        }
        for (ledger_id, touched) in &changes.touched {
            let mut whole = EntrySet::default();
            for (first, last) in touched.ranges() {
                for entry in first..=last {
                    let position = Position::new(*ledger_id, entry);
                    if position <= self.mark_delete {
                        continue;
                    }
                    if let Some(remaining) = self.batches.get(&position) {
                        put_batch(&mut deltas.open, position, remaining);
                        deltas.cut();
                    } else if self.is_acknowledged(position) {
                        whole.insert(entry);
                    }
                }
            }
            let mut pieces = Vec::new();
            let mut out = std::mem::take(&mut deltas.open);
            put_entries(&mut out, *ledger_id, &whole, |out| {
                if out.len() > DELTA_BYTES {
                    let next = header(DELTA, deltas.number + pieces.len() as u64 + 1);
                    pieces.push(sealed(std::mem::replace(out, next)));
                }
            });
            deltas.number += pieces.len() as u64;
            deltas.done.append(&mut pieces);
            deltas.open = out;
        }
        deltas.finish()
    }

    /// The state that a snapshot and the deltas behind it make, and the number of the last record. What they say of entries
    /// that the log does not have is left out.
    pub(crate) fn replay(
        snapshot: Option<&Bytes>,
        deltas: &[Bytes],
        log: &LogExtent,
    ) -> Result<(Self, u64), CursorRecordError> {
        let snapshot = snapshot.ok_or(CursorRecordError::NoSnapshot)?;
        let mut state = Self::new(Position::before(-1));
        let mut number = state.read_record(snapshot, SNAPSHOT, None, log)?;
        for delta in deltas {
            number = state.read_record(delta, DELTA, Some(number + 1), log)?;
        }
        state.settle(log);
        Ok((state, number))
    }

    /// The number of a record; `None` when it is none.
    pub(crate) fn record_number(record: &[u8]) -> Option<u64> {
        let (content, checksum) = record.split_last_chunk::<4>()?;
        if crc32c::crc32c(content) != u32::from_be_bytes(*checksum) {
            return None;
        }
        Reader(content.get(2..)?).varint().ok()
    }

    fn read_record(
        &mut self,
        record: &[u8],
        kind: u8,
        expected: Option<u64>,
        log: &LogExtent,
    ) -> Result<u64, CursorRecordError> {
        let (content, checksum) = record
            .split_last_chunk::<4>()
            .ok_or(CursorRecordError::Checksum)?;
        if crc32c::crc32c(content) != u32::from_be_bytes(*checksum) {
            return Err(CursorRecordError::Checksum);
        }
        let mut reader = Reader(content);
        let found = reader.byte()?;
        if found != kind {
            let what = "kind";
            return Err(CursorRecordError::Unknown {
                what,
                number: found,
            });
        }
        let format = reader.byte()?;
        if format != FORMAT {
            return Err(CursorRecordError::Unknown {
                what: "format",
                number: format,
            });
        }
        let found = reader.varint()?;
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(CursorRecordError::Order { expected, found });
        }
        while !reader.0.is_empty() {
            self.read_item(&mut reader, log)?;
        }
        Ok(found)
    }

    fn read_item(
        &mut self,
        reader: &mut Reader<'_>,
        log: &LogExtent,
    ) -> Result<(), CursorRecordError> {
        match reader.byte()? {
            MARK_DELETE => self.move_to(reader.position()?),
            RESET => self.reset_holes(reader.position()?),
            RANGES => {
                let ledger_id = reader.signed()?;
                let mut entry = 0_i64;
                for _ in 0..reader.varint()? {
                    let first = reader.entry(entry)?;
                    let last = reader.entry(first)?;
                    self.read_entries(ledger_id, first, last, log);
                    entry = last + 1;
                }
            }
            BITS => {
                let ledger_id = reader.signed()?;
                let first = reader.varint()?;
                let first = i64::try_from(first).ok();
                let first = first.and_then(|word| word.checked_mul(64));
                let start = first.filter(|first| *first <= LEDGER_ENTRIES_MAX);
                let start =
                    start.ok_or(CursorRecordError::Malformed("an entry is out of bounds"))?;
                let words = reader.words()?;
                // What is further than that is of no ledger.
                for (first, last) in EntrySet::from_words(&words, LEDGER_ENTRIES_MAX).ranges() {
                    self.read_entries(ledger_id, start + first, start + last, log);
                }
            }
            BATCH => {
                let position = reader.position()?;
                let remaining = AckSet::from_words(reader.words()?);
                if remaining.is_empty() {
                    return Err(CursorRecordError::Malformed("a batch without messages"));
                }
                if log.contains(position) {
                    self.batches.insert(position, remaining);
                }
            }
            PROPERTY => {
                let name = reader.text()?;
                let value = reader.signed()?;
                self.properties.insert(name, value);
            }
            PROPERTY_GONE => {
                self.properties.remove(&reader.text()?);
            }
            CURSOR_PROPERTY => {
                let name = reader.text()?;
                let value = reader.text()?;
                self.cursor_properties.insert(name, value);
            }
            CURSOR_PROPERTY_GONE => {
                self.cursor_properties.remove(&reader.text()?);
            }
            number => {
                let what = "item";
                return Err(CursorRecordError::Unknown { what, number });
            }
        }
        Ok(())
    }

    fn reset_holes(&mut self, mark_delete: Position) {
        self.mark_delete = mark_delete;
        self.holes.clear();
        self.batches.clear();
    }

    /// Entries are acknowledged. The log bounds what that takes.
    fn read_entries(&mut self, ledger_id: i64, first: i64, last: i64, log: &LogExtent) {
        let Some(entries) = log.entries(ledger_id) else {
            return;
        };
        let last = last.min(entries - 1);
        self.add_hole(ledger_id, first, last);
        if first <= last {
            let range = Position::new(ledger_id, first)..=Position::new(ledger_id, last);
            let gone: Vec<Position> = self.batches.range(range).map(|(at, _)| *at).collect();
            for position in gone {
                self.batches.remove(&position);
            }
        }
    }
}

/// Deltas as they are written.
struct Deltas {
    done: Vec<Bytes>,
    open: Vec<u8>,
    /// That of the open one.
    number: u64,
}

impl Deltas {
    /// Begins another one when the open one is long.
    fn cut(&mut self) {
        if self.open.len() > DELTA_BYTES {
            self.number += 1;
            let next = header(DELTA, self.number);
            self.done
                .push(sealed(std::mem::replace(&mut self.open, next)));
        }
    }

    fn finish(mut self) -> Vec<Bytes> {
        if self.open.len() > header(DELTA, self.number).len() || self.done.is_empty() {
            self.done.push(sealed(self.open));
        }
        self.done
    }
}

fn header(kind: u8, number: u64) -> Vec<u8> {
    let mut out = vec![kind, FORMAT];
    put_varint(&mut out, number);
    out
}

fn sealed(mut out: Vec<u8>) -> Bytes {
    let checksum = crc32c::crc32c(&out);
    out.put_u32(checksum);
    Bytes::from(out)
}

fn put_position(out: &mut Vec<u8>, item: u8, position: Position) {
    out.put_u8(item);
    put_signed(out, position.ledger_id);
    put_signed(out, position.entry_id);
}

/// Entries of a ledger: those near each other in the shorter of the two forms. `between` is called after each item.
fn put_entries(
    out: &mut Vec<u8>,
    ledger_id: i64,
    entries: &EntrySet,
    mut between: impl FnMut(&mut Vec<u8>),
) {
    let mut near: Vec<(i64, i64)> = Vec::new();
    for range in entries.ranges() {
        let start = near.first().map_or(range.0, |(first, _)| *first);
        if range.1 - start >= ITEM_ENTRIES && !near.is_empty() {
            put_near(out, ledger_id, &near);
            between(out);
            near.clear();
        }
        near.push(range);
    }
    if !near.is_empty() {
        put_near(out, ledger_id, &near);
        between(out);
    }
}

fn put_near(out: &mut Vec<u8>, ledger_id: i64, ranges: &[(i64, i64)]) {
    let mut as_ranges = Vec::new();
    let mut entry = 0;
    for (first, last) in ranges {
        put_unsigned(&mut as_ranges, first - entry);
        put_unsigned(&mut as_ranges, last - first);
        entry = last + 1;
    }
    let first = ranges.first().map_or(0, |(first, _)| first / 64);
    let last = ranges.last().map_or(0, |(_, last)| last / 64);
    let words = usize::try_from(last - first + 1).unwrap_or(usize::MAX);
    if as_ranges.len() <= words.saturating_mul(8) {
        out.put_u8(RANGES);
        put_signed(out, ledger_id);
        put_varint(out, ranges.len() as u64);
        out.extend_from_slice(&as_ranges);
        return;
    }
    let mut set = EntrySet::default();
    let start = first * 64;
    for (first, last) in ranges {
        set.insert_range(first - start, last - start);
    }
    out.put_u8(BITS);
    put_signed(out, ledger_id);
    put_unsigned(out, first);
    put_words(out, &set.to_words());
}

fn put_batch(out: &mut Vec<u8>, position: Position, remaining: &AckSet) {
    put_position(out, BATCH, position);
    let words: Vec<i64> = remaining.words().collect();
    put_words(out, &words);
}

fn put_words(out: &mut Vec<u8>, words: &[i64]) {
    put_varint(out, words.len() as u64);
    for word in words {
        out.put_i64(*word);
    }
}

/// How properties differ from what they were.
fn put_numbers(out: &mut Vec<u8>, before: &BTreeMap<String, i64>, now: &BTreeMap<String, i64>) {
    for (name, value) in now {
        if before.get(name) != Some(value) {
            out.put_u8(PROPERTY);
            put_text(out, name);
            put_signed(out, *value);
        }
    }
    for name in before.keys().filter(|name| !now.contains_key(*name)) {
        out.put_u8(PROPERTY_GONE);
        put_text(out, name);
    }
}

fn put_texts(out: &mut Vec<u8>, before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) {
    for (name, value) in now {
        if before.get(name) != Some(value) {
            out.put_u8(CURSOR_PROPERTY);
            put_text(out, name);
            put_text(out, value);
        }
    }
    for name in before.keys().filter(|name| !now.contains_key(*name)) {
        out.put_u8(CURSOR_PROPERTY_GONE);
        put_text(out, name);
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// A number that is not negative.
fn put_unsigned(out: &mut Vec<u8>, number: i64) {
    put_varint(out, u64::try_from(number).unwrap_or(0));
}

fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_varint(out, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    loop {
        // Seven bits fit.
        let [low, ..] = (number & 0x7f).to_le_bytes();
        number >>= 7;
        if number == 0 {
            out.put_u8(low);
            return;
        }
        out.put_u8(low | 0x80);
    }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, CursorRecordError> {
        let (byte, rest) = self.0.split_first().ok_or(ENDS)?;
        self.0 = rest;
        Ok(*byte)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], CursorRecordError> {
        let length = usize::try_from(length).map_err(|_| ENDS)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ENDS)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, CursorRecordError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(CursorRecordError::Malformed("a number has too many bits"))
    }

    fn signed(&mut self) -> Result<i64, CursorRecordError> {
        let number = self.varint()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn position(&mut self) -> Result<Position, CursorRecordError> {
        Ok(Position::new(self.signed()?, self.signed()?))
    }

    /// An entry so many behind another one.
    fn entry(&mut self, from: i64) -> Result<i64, CursorRecordError> {
        let entry = i64::try_from(self.varint()?).ok();
        let entry = entry.and_then(|behind| from.checked_add(behind));
        entry
            .filter(|entry| *entry < LEDGER_ENTRIES_MAX)
            .ok_or(CursorRecordError::Malformed("an entry is out of bounds"))
    }

    fn words(&mut self) -> Result<Vec<i64>, CursorRecordError> {
        let bytes = self.varint()?.checked_mul(8).ok_or(ENDS)?;
        let (words, _) = self.take(bytes)?.as_chunks::<8>();
        Ok(words.iter().map(|word| i64::from_be_bytes(*word)).collect())
    }

    fn text(&mut self) -> Result<String, CursorRecordError> {
        let length = self.varint()?;
        let text = std::str::from_utf8(self.take(length)?);
        text.map(str::to_owned)
            .map_err(|_| CursorRecordError::Malformed("a text is not UTF-8"))
    }
}

const ENDS: CursorRecordError = CursorRecordError::Malformed("it ends too early");

/// A delta that is longer is followed by another one.
const DELTA_BYTES: usize = 32 << 10;
/// Entries that one item spans, unless they are all in one range.
const ITEM_ENTRIES: i64 = 32 << 10;

const FORMAT: u8 = 1;
// Kinds of records; never used again for something else, as are those of items.
const SNAPSHOT: u8 = 1;
const DELTA: u8 = 2;
// Kinds of items.
const MARK_DELETE: u8 = 1;
const RESET: u8 = 2;
const RANGES: u8 = 3;
const BITS: u8 = 4;
const BATCH: u8 = 5;
const PROPERTY: u8 = 6;
const PROPERTY_GONE: u8 = 7;
const CURSOR_PROPERTY: u8 = 8;
const CURSOR_PROPERTY_GONE: u8 = 9;
