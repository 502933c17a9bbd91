//! Bytes of segments, groups and records. Pure; `docs/storage-format.md` has the tables.

use bytes::{BufMut, Bytes};

/// The format that this version writes.
pub const FORMAT: u16 = 1;
/// The header of a group.
pub const GROUP_HEADER: usize = 64;
/// What is before the content of a record.
pub const RECORD_HEADER: usize = 12;
/// What is before the payload of an entry.
pub const ENTRY_HEADER: usize = RECORD_HEADER + 16;
/// The header of a segment, without the rest of its block.
pub const SEGMENT_HEADER: usize = 40;

const SEGMENT_MAGIC: &[u8; 4] = b"PGSG";
const GROUP_MAGIC: &[u8; 4] = b"PGGR";

/// A place in the log. Places are ordered as the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Generation of the segment.
    pub generation: u64,
    /// Bytes from the start of the segment.
    pub offset: u64,
}

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// Generation of the segment.
    pub generation: u64,
    /// Bytes from the start of the segment.
    pub offset: u32,
    /// Bytes of the record with its header.
    pub length: u32,
}

/// What the log is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The first of each segment.
    SegmentStart(SegmentStart),
    /// An entry of a ledger.
    Entry {
        /// Its ledger.
        ledger: u64,
        /// Its number in the ledger.
        entry: u64,
        /// Its content.
        payload: Bytes,
    },
    /// An entry that gc copied out of an older segment.
    Copied {
        /// Its ledger.
        ledger: u64,
        /// Its number in the ledger.
        entry: u64,
        /// Its content.
        payload: Bytes,
    },
    /// A new ledger.
    LedgerCreated {
        /// The ledger.
        ledger: u64,
        /// What its creator wants to be kept with it.
        options: Bytes,
    },
    /// The ledger ends here.
    LedgerSealed {
        /// The ledger.
        ledger: u64,
    },
    /// Entries of a ledger are not needed any more.
    LedgerTrimmed {
        /// The ledger.
        ledger: u64,
        /// The first entry that is needed.
        first: u64,
    },
    /// A ledger is not needed any more.
    LedgerDeleted {
        /// The ledger.
        ledger: u64,
    },
    /// A change of the change log.
    Change {
        /// Number of the table.
        table: u16,
        /// Key in the table.
        key: Bytes,
        /// What happens to its value.
        change: Change,
    },
    /// A checkpoint is durable.
    CheckpointDone {
        /// Its number.
        number: u64,
    },
}

/// What happens to a value of the change log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It is this.
    Put(Bytes),
    /// This is added to it.
    Delta(Bytes),
    /// It is gone.
    Delete,
}

/// How a segment follows the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentStart {
    /// Where the log ended before: the end of the last group of the previous segment. Generation 0: there was none.
    pub previous_end: Position,
    /// Number of the last group before; 0: there was none.
    pub previous_group: u64,
    /// Whether something behind that end was cut.
    pub cut: bool,
}

/// The header of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupHeader {
    /// Generation of its segment.
    pub generation: u64,
    /// Its number in the log, from 1.
    pub number: u64,
    /// Up to where the log was known to be synced.
    pub durable_upto: Position,
    /// Bytes of its records.
    pub body_length: u32,
    /// How many records.
    pub records: u32,
    /// Checksum of its records.
    pub body_crc: u32,
}

/// What checksums of a store start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(u32);

/// Bytes are not what they have to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

impl Salt {
    /// The salt of the store with this uuid.
    #[must_use]
    pub fn of(uuid: &[u8; 16]) -> Self {
        Self(crc32c::crc32c(uuid))
    }

    /// Salted checksum.
    #[must_use]
    pub fn crc(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, bytes)
    }

    /// The salt of records in a segment of this generation.
    #[must_use]
    pub fn for_generation(self, generation: u64) -> Self {
        Self(self.crc(&generation.to_be_bytes()))
    }
}

impl Record {
    /// Bytes it takes in a group.
    #[must_use]
    pub fn encoded_length(&self) -> usize {
        RECORD_HEADER
            + match self {
                Self::SegmentStart(_) => 25,
                Self::Entry { payload, .. } | Self::Copied { payload, .. } => 16 + payload.len(),
                Self::LedgerCreated { options, .. } => 8 + options.len(),
                Self::LedgerTrimmed { .. } => 16,
                Self::LedgerSealed { .. }
                | Self::LedgerDeleted { .. }
                | Self::CheckpointDone { .. } => 8,
                Self::Change { key, change, .. } => 6 + key.len() + change.length(),
            }
    }

    /// Appends it to the body of a group of the generation that `salt` is for. Returns its offset in `out` and its length.
    ///
    /// # Panics
    /// When it is longer than 4 GiB: whoever takes records bounds them.
    #[must_use]
    pub fn encode(&self, salt: Salt, out: &mut Vec<u8>) -> (usize, u32) {
        let start = out.len();
        let length = u32::try_from(self.encoded_length()).expect("records are bounded");
        out.put_u32(length);
        out.put_u32(0);
        out.put_u8(self.kind());
        out.put_bytes(0, 3);
        match self {
            Self::SegmentStart(begin) => {
                out.put_u64(begin.previous_end.generation);
                out.put_u64(begin.previous_end.offset);
                out.put_u64(begin.previous_group);
                out.put_u8(u8::from(begin.cut));
            }
            Self::Entry {
                ledger,
                entry,
                payload,
            }
            | Self::Copied {
                ledger,
                entry,
                payload,
            } => {
                out.put_u64(*ledger);
                out.put_u64(*entry);
                out.extend_from_slice(payload);
            }
            Self::LedgerCreated { ledger, options } => {
                out.put_u64(*ledger);
                out.extend_from_slice(options);
            }
            Self::LedgerTrimmed { ledger, first } => {
                out.put_u64(*ledger);
                out.put_u64(*first);
            }
            Self::LedgerSealed { ledger } | Self::LedgerDeleted { ledger } => out.put_u64(*ledger),
            Self::CheckpointDone { number } => out.put_u64(*number),
            Self::Change { table, key, change } => {
                out.put_u16(*table);
                out.put_u32(u32::try_from(key.len()).expect("records are bounded"));
                out.extend_from_slice(key);
                out.extend_from_slice(change.bytes());
            }
        }
        let covered = out.get(start + 8..).unwrap_or_default();
        let crc = salt.crc(covered);
        put_at(out, start + 4, &crc.to_be_bytes());
        (start, length)
    }

    /// The record at the start of `bytes`, and its length.
    ///
    /// # Errors
    /// It does not verify, or is of no known type.
    pub fn decode(salt: Salt, bytes: &Bytes) -> Result<(Self, u32), Malformed> {
        let mut reader = Reader::new(bytes);
        let length = reader.u32()?;
        let crc = reader.u32()?;
        let whole = usize::try_from(length).map_err(|_| Malformed("record too long"))?;
        let covered = bytes
            .get(8..whole)
            .ok_or(Malformed("record ends behind its group"))?;
        if whole < RECORD_HEADER || salt.crc(covered) != crc {
            return Err(Malformed("checksum of a record"));
        }
        let mut content = Reader::new(&bytes.slice(..whole));
        content.skip(8)?;
        let kind = content.u8()?;
        content.skip(3)?;
        let record = Self::decode_content(kind, &mut content)?;
        Ok((record, length))
    }

    fn decode_content(kind: u8, content: &mut Reader) -> Result<Self, Malformed> {
        Ok(match kind {
            1 => Self::SegmentStart(SegmentStart {
                previous_end: Position {
                    generation: content.u64()?,
                    offset: content.u64()?,
                },
                previous_group: content.u64()?,
                cut: content.u8()? & 1 != 0,
            }),
            2 => Self::Entry {
                ledger: content.u64()?,
                entry: content.u64()?,
                payload: content.rest(),
            },
            3 => Self::Copied {
                ledger: content.u64()?,
                entry: content.u64()?,
                payload: content.rest(),
            },
            4 => Self::LedgerCreated {
                ledger: content.u64()?,
                options: content.rest(),
            },
            5 => Self::LedgerSealed {
                ledger: content.u64()?,
            },
            6 => Self::LedgerTrimmed {
                ledger: content.u64()?,
                first: content.u64()?,
            },
            7 => Self::LedgerDeleted {
                ledger: content.u64()?,
            },
            8..=10 => {
                let table = content.u16()?;
                let key = content.prefixed()?;
                let change = match kind {
                    8 => Change::Put(content.rest()),
                    9 => Change::Delta(content.rest()),
                    _ => Change::Delete,
                };
                Self::Change { table, key, change }
            }
            11 => Self::CheckpointDone {
                number: content.u64()?,
            },
            _ => return Err(Malformed("record of an unknown type")),
        })
    }

    fn kind(&self) -> u8 {
        match self {
            Self::SegmentStart(_) => 1,
            Self::Entry { .. } => 2,
            Self::Copied { .. } => 3,
            Self::LedgerCreated { .. } => 4,
            Self::LedgerSealed { .. } => 5,
            Self::LedgerTrimmed { .. } => 6,
            Self::LedgerDeleted { .. } => 7,
            Self::Change { change, .. } => match change {
                Change::Put(_) => 8,
                Change::Delta(_) => 9,
                Change::Delete => 10,
            },
            Self::CheckpointDone { .. } => 11,
        }
    }
}

impl Change {
    fn length(&self) -> usize {
        self.bytes().len()
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Put(bytes) | Self::Delta(bytes) => bytes,
            Self::Delete => &[],
        }
    }
}

impl GroupHeader {
    /// Writes it to the start of `group`, which has its body behind.
    pub fn encode(&self, salt: Salt, group: &mut [u8]) {
        let mut out = Vec::with_capacity(GROUP_HEADER);
        out.put_slice(GROUP_MAGIC);
        out.put_u16(FORMAT);
        out.put_u16(0);
        out.put_u64(self.generation);
        out.put_u64(self.number);
        out.put_u64(self.durable_upto.generation);
        out.put_u64(self.durable_upto.offset);
        out.put_u32(self.body_length);
        out.put_u32(self.records);
        out.put_u32(self.body_crc);
        out.put_u64(0);
        let crc = salt.crc(&out);
        out.put_u32(crc);
        put_at(group, 0, &out);
    }

    /// The header at the start of `bytes`.
    ///
    /// # Errors
    /// There is none that verifies.
    pub fn decode(salt: Salt, bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.get(..4) != Some(GROUP_MAGIC) {
            return Err(Malformed("no group"));
        }
        let covered = bytes
            .get(..60)
            .ok_or(Malformed("group ends behind its segment"))?;
        let mut reader = Reader::new(&Bytes::copy_from_slice(
            bytes
                .get(4..GROUP_HEADER)
                .ok_or(Malformed("group ends behind its segment"))?,
        ));
        let format = reader.u16()?;
        reader.skip(2)?;
        let header = Self {
            generation: reader.u64()?,
            number: reader.u64()?,
            durable_upto: Position {
                generation: reader.u64()?,
                offset: reader.u64()?,
            },
            body_length: reader.u32()?,
            records: reader.u32()?,
            body_crc: reader.u32()?,
        };
        reader.skip(8)?;
        if reader.u32()? != salt.crc(covered) {
            return Err(Malformed("checksum of a group's header"));
        }
        if format != FORMAT {
            return Err(Malformed("group of another format"));
        }
        Ok(header)
    }
}

/// The header of a segment.
#[must_use]
pub fn encode_segment_header(generation: u64, uuid: &[u8; 16], segment_size: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(SEGMENT_HEADER);
    out.put_slice(SEGMENT_MAGIC);
    out.put_u16(FORMAT);
    out.put_u16(0);
    out.put_u64(generation);
    out.put_slice(uuid);
    out.put_u32(segment_size);
    let crc = Salt::of(uuid).crc(&out);
    out.put_u32(crc);
    out
}

/// Whether `bytes` start with the header of this segment.
#[must_use]
pub fn is_segment_header(
    bytes: &[u8],
    generation: u64,
    uuid: &[u8; 16],
    segment_size: u32,
) -> bool {
    bytes.get(..SEGMENT_HEADER) == Some(&encode_segment_header(generation, uuid, segment_size)[..])
}

/// `length` in whole blocks.
#[must_use]
pub fn in_blocks(length: u64, block: u32) -> u64 {
    length.div_ceil(u64::from(block)) * u64::from(block)
}

/// Puts bytes over others that are there.
pub(crate) fn put_at(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(target) = out.get_mut(at..at + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

/// Reads integers without ever going behind the end.
#[derive(Debug)]
pub(crate) struct Reader {
    bytes: Bytes,
}

impl Reader {
    pub(crate) fn new(bytes: &Bytes) -> Self {
        Self {
            bytes: bytes.clone(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<Bytes, Malformed> {
        if length > self.bytes.len() {
            return Err(Malformed("ends too early"));
        }
        Ok(self.bytes.split_to(length))
    }

    pub(crate) fn skip(&mut self, length: usize) -> Result<(), Malformed> {
        self.take(length).map(|_| ())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let bytes = self.take(N)?;
        bytes
            .as_ref()
            .try_into()
            .map_err(|_| Malformed("ends too early"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// Bytes with their length before them.
    pub(crate) fn prefixed(&mut self) -> Result<Bytes, Malformed> {
        let length = self.u32()?;
        self.take(usize::try_from(length).map_err(|_| Malformed("ends too early"))?)
    }

    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn salt() -> Salt {
        Salt::of(&[7; 16]).for_generation(3)
    }

    pub(super) fn records() -> Vec<Record> {
        let bytes = Bytes::from_static;
        vec![
            Record::SegmentStart(SegmentStart {
                previous_end: Position {
                    generation: 3,
                    offset: 4096,
                },
                previous_group: 9,
                cut: true,
            }),
            Record::Entry {
                ledger: 1,
                entry: 2,
                payload: bytes(b"hello"),
            },
            Record::Copied {
                ledger: 1,
                entry: 2,
                payload: bytes(b""),
            },
            Record::LedgerCreated {
                ledger: u64::MAX,
                options: bytes(b"o"),
            },
            Record::LedgerSealed { ledger: 5 },
            Record::LedgerTrimmed {
                ledger: 5,
                first: 6,
            },
            Record::LedgerDeleted { ledger: 5 },
            Record::Change {
                table: 1,
                key: bytes(b"k"),
                change: Change::Put(bytes(b"v")),
            },
            Record::Change {
                table: 2,
                key: bytes(b""),
                change: Change::Delta(bytes(b"")),
            },
            Record::Change {
                table: 2,
                key: bytes(b"key"),
                change: Change::Delete,
            },
            Record::CheckpointDone { number: 4 },
        ]
    }

    #[test]
    fn every_record_is_read_back() {
        for record in records() {
            let mut out = vec![9; 3];
            let (start, length) = record.encode(salt(), &mut out);
            assert_eq!((start, length as usize), (3, record.encoded_length()));
            let bytes = Bytes::from(out).slice(3..);
            assert_eq!(Record::decode(salt(), &bytes), Ok((record, length)));
        }
    }

    #[test]
    fn the_bytes_of_an_entry_are_those_of_the_document() {
        let record = Record::Entry {
            ledger: 1,
            entry: 2,
            payload: Bytes::from_static(b"AB"),
        };
        let mut out = Vec::new();
        let _ = record.encode(salt(), &mut out);
        let mut expected = vec![0, 0, 0, 30, 0, 0, 0, 0, 2, 0, 0, 0];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, b'A', b'B']);
        let mut start = [7_u8; 24];
        start[16..].copy_from_slice(&3_u64.to_be_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&start), &expected[8..]);
        expected[4..8].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(out, expected);
    }

    #[test]
    fn a_record_of_another_generation_or_store_does_not_verify() {
        let mut out = Vec::new();
        let _ = records()[1].encode(salt(), &mut out);
        let bytes = Bytes::from(out);
        Record::decode(salt(), &bytes).expect("own");
        Record::decode(Salt::of(&[7; 16]).for_generation(4), &bytes).expect_err("generation");
        Record::decode(Salt::of(&[8; 16]).for_generation(3), &bytes).expect_err("store");
    }

    #[test]
    fn a_group_header_is_read_back_and_any_flipped_bit_is_seen() {
        let header = GroupHeader {
            generation: 1,
            number: 2,
            durable_upto: Position {
                generation: 3,
                offset: 4,
            },
            body_length: 5,
            records: 6,
            body_crc: 7,
        };
        let mut group = vec![0; GROUP_HEADER + 5];
        header.encode(salt(), &mut group);
        assert_eq!(GroupHeader::decode(salt(), &group), Ok(header));
        for bit in 0..GROUP_HEADER * 8 {
            let mut flipped = group.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            GroupHeader::decode(salt(), &flipped).expect_err("flipped");
        }
        GroupHeader::decode(salt(), &group[..63]).expect_err("short");
    }

    #[test]
    fn a_segment_header_belongs_to_one_generation_of_one_store() {
        let header = encode_segment_header(5, &[1; 16], 65536);
        assert_eq!(header.len(), SEGMENT_HEADER);
        assert!(is_segment_header(&header, 5, &[1; 16], 65536));
        assert!(!is_segment_header(&header, 6, &[1; 16], 65536));
        assert!(!is_segment_header(&header, 5, &[2; 16], 65536));
        assert!(!is_segment_header(&header[..20], 5, &[1; 16], 65536));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = GroupHeader::decode(salt(), &bytes);
            let _ = Record::decode(salt(), &Bytes::from(bytes));
        }

        #[test]
        fn a_flipped_bit_in_a_record_is_seen(which in 0..11_usize, bit in 0..2000_usize) {
            let mut out = Vec::new();
            let _ = records()[which].encode(salt(), &mut out);
            let bit = bit % (out.len() * 8);
            out[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Record::decode(salt(), &Bytes::from(out)).is_err());
        }
    }
}
