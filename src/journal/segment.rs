//! A segment read as a whole: which groups verify, where they end, and whether anything behind that shows that more was synced. Pure.

use bytes::Bytes;

use super::format::{
    ENTRY_HEADER, GROUP_HEADER, GroupHeader, Location, Malformed, Position, RECORD_HEADER, Record,
    Salt, in_blocks,
};

/// A group that verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedGroup {
    /// Its header.
    pub header: GroupHeader,
    /// Where it starts in the segment.
    pub start: u64,
    /// Where the next one may start.
    pub end: u64,
    /// Its records and their places.
    pub records: Vec<(Record, Location)>,
}

/// The bytes of one segment.
#[derive(Debug, Clone)]
pub struct SegmentBytes {
    bytes: Bytes,
    generation: u64,
    salt: Salt,
    block: u32,
}

impl SegmentBytes {
    /// All bytes of the segment with its header.
    #[must_use]
    pub fn new(bytes: Bytes, generation: u64, salt: Salt, block: u32) -> Self {
        Self {
            bytes,
            generation,
            salt,
            block,
        }
    }

    /// The group at `start`, if it verifies and has this number; any number when `None`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn group(&self, start: u64, number: Option<u64>) -> Result<ScannedGroup, Malformed> {
        let (header, body) = self.verified(start)?;
        if number.is_some_and(|number| number != header.number) {
            return Err(Malformed("number of a group"));
        }
        let salt = self.salt.for_generation(self.generation);
        let mut records = Vec::new();
        let mut rest = body;
        let mut offset = start + GROUP_HEADER as u64;
        while !rest.is_empty() {
            let (record, length) = Record::decode(salt, &rest)?;
            let place = u32::try_from(offset).map_err(|_| Malformed("segment too long"))?;
            records.push((
                record,
                Location {
                    generation: self.generation,
                    offset: place,
                    length,
                },
            ));
            offset += u64::from(length);
            let length = usize::try_from(length).map_err(|_| Malformed("record too long"))?;
            rest = rest.slice(length..);
        }
        if records.len() as u64 != u64::from(header.records) {
            return Err(Malformed("number of records of a group"));
        }
        let end = in_blocks(offset, self.block);
        Ok(ScannedGroup {
            header,
            start,
            end,
            records,
        })
    }

    /// All groups from `start` on that follow each other, the first with this number.
    #[must_use]
    pub fn groups(&self, mut start: u64, mut number: Option<u64>) -> Vec<ScannedGroup> {
        let mut groups = Vec::new();
        while let Ok(group) = self.group(start, number) {
            start = group.end;
            number = Some(group.header.number + 1);
            groups.push(group);
        }
        groups
    }

    /// A verifying group behind `bad` which shows that the log was synced beyond `bad`, and where it is.
    #[must_use]
    pub fn evidence_behind(&self, bad: u64, number: u64) -> Option<(u64, GroupHeader)> {
        let block = u64::from(self.block);
        let bad_position = Position {
            generation: self.generation,
            offset: bad,
        };
        let mut start = bad + block;
        while start < self.bytes.len() as u64 {
            if let Ok((header, _)) = self.verified(start)
                && header.number > number
                && header.durable_upto > bad_position
            {
                return Some((start, header));
            }
            start += block;
        }
        None
    }

    /// Ledgers that a group which does not verify seems to have had entries of.
    #[must_use]
    pub fn ledgers_at(&self, start: u64) -> Vec<u64> {
        const LEDGERS_MAX: usize = 64;
        let mut ledgers = Vec::new();
        let mut at = usize::try_from(start)
            .unwrap_or(usize::MAX)
            .saturating_add(GROUP_HEADER);
        while ledgers.len() < LEDGERS_MAX
            && let Some(head) = self.bytes.get(at..at.saturating_add(ENTRY_HEADER))
        {
            let mut reader = super::format::Reader::new(&Bytes::copy_from_slice(head));
            let Ok(length) = reader.u32() else { break };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length < RECORD_HEADER || reader.skip(4).is_err() {
                break;
            }
            if let (Ok(2..=3), Ok(()), Ok(ledger)) = (reader.u8(), reader.skip(3), reader.u64())
                && !ledgers.contains(&ledger)
            {
                ledgers.push(ledger);
            }
            at = at.saturating_add(length);
        }
        ledgers
    }

    /// Bytes as they were read.
    #[must_use]
    pub fn range(&self, start: u64, end: u64) -> Bytes {
        let bound = |at: u64| {
            usize::try_from(at)
                .unwrap_or(usize::MAX)
                .min(self.bytes.len())
        };
        self.bytes.slice(bound(start)..bound(end).max(bound(start)))
    }

    /// Header and body, when both checksums and the generation are right.
    fn verified(&self, start: u64) -> Result<(GroupHeader, Bytes), Malformed> {
        let at = usize::try_from(start).map_err(|_| Malformed("segment too long"))?;
        let head = self.bytes.get(at..).ok_or(Malformed("no group"))?;
        let header = GroupHeader::decode(self.salt, head)?;
        if header.generation != self.generation {
            return Err(Malformed("group of another generation"));
        }
        let length =
            usize::try_from(header.body_length).map_err(|_| Malformed("group too long"))?;
        let from = at + GROUP_HEADER;
        if length > self.bytes.len() - from {
            return Err(Malformed("group ends behind its segment"));
        }
        let body = self.bytes.slice(from..from + length);
        if self.salt.crc(&body) != header.body_crc {
            return Err(Malformed("checksum of a group"));
        }
        Ok((header, body))
    }
}
