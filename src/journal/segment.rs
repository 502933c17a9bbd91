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

    /// A group behind `bad` which shows that the log was synced beyond `bad`, and where it is. Its header is enough: it was written after
    /// that sync, whatever became of its own body.
    #[must_use]
    pub fn evidence_behind(&self, bad: u64, number: u64) -> Option<(u64, GroupHeader)> {
        let block = u64::from(self.block);
        let bad_position = Position {
            generation: self.generation,
            offset: bad,
        };
        let mut start = bad + block;
        while start < self.bytes.len() as u64 {
            if let Ok(header) = self.header(start)
                && header.number > number
                && header.durable_upto > bad_position
            {
                return Some((start, header));
            }
            start += block;
        }
        None
    }

    /// All entries with their places, whatever became of their groups: those whose records verify, and behind them those that are
    /// damaged, as far as they tell what they were.
    #[must_use]
    pub fn entries(&self) -> Vec<(u64, u64, Location)> {
        let whole = self.bytes.len() as u64;
        let (mut entries, mut damaged) = (Vec::new(), Vec::new());
        let mut group = u64::from(self.block);
        while group < whole {
            let body = group + GROUP_HEADER as u64;
            let end = match self.header(group) {
                Ok(header) => {
                    let end = body + u64::from(header.body_length);
                    self.entries_between(body, end, &mut entries, Some(&mut damaged));
                    end
                }
                // Its records tell where they end, as long as they verify.
                Err(_) => self.entries_between(body, whole, &mut entries, None),
            };
            group = in_blocks(end.max(group + 1), self.block);
        }
        entries.append(&mut damaged);
        entries
    }

    /// Finds entries among records that follow each other; returns the end of the last one that verifies, or 0. It ends before a damaged
    /// one, unless those are wanted: they still have their length, unless that is what is damaged.
    fn entries_between(
        &self,
        mut at: u64,
        end: u64,
        entries: &mut Vec<(u64, u64, Location)>,
        mut damaged: Option<&mut Vec<(u64, u64, Location)>>,
    ) -> u64 {
        let salt = self.salt.for_generation(self.generation);
        let mut read = 0;
        while at < end {
            let rest = self.range(at, end);
            let location = |length: u32| Location {
                generation: self.generation,
                offset: u32::try_from(at).unwrap_or(u32::MAX),
                length,
            };
            if let Ok((record, length)) = Record::decode(salt, &rest) {
                if let Record::Entry { ledger, entry, .. } | Record::Copied { ledger, entry, .. } =
                    record
                {
                    entries.push((ledger, entry, location(length)));
                }
                at += u64::from(length);
                read = at;
                continue;
            }
            let Some(damaged) = &mut damaged else { break };
            let length = rest.first_chunk().map(|held| u32::from_be_bytes(*held));
            let Some(length) = length.filter(|length| *length as usize >= RECORD_HEADER) else {
                break;
            };
            if let Some((ledger, entry)) = entry_of(&rest, length) {
                damaged.push((ledger, entry, location(length)));
            }
            at += u64::from(length);
        }
        read
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

    /// The header at `start`, when its checksum and its generation are right.
    fn header(&self, start: u64) -> Result<GroupHeader, Malformed> {
        let at = usize::try_from(start).map_err(|_| Malformed("segment too long"))?;
        let head = self.bytes.get(at..).ok_or(Malformed("no group"))?;
        let header = GroupHeader::decode(self.salt, head)?;
        if header.generation != self.generation {
            return Err(Malformed("group of another generation"));
        }
        Ok(header)
    }

    /// Header and body, when both checksums and the generation are right.
    fn verified(&self, start: u64) -> Result<(GroupHeader, Bytes), Malformed> {
        let header = self.header(start)?;
        let at = usize::try_from(start).map_err(|_| Malformed("segment too long"))?;
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

/// Ledger and entry of a record of so many bytes that does not verify.
fn entry_of(bytes: &Bytes, length: u32) -> Option<(u64, u64)> {
    const KINDS: [u8; 2] = [2, 3];
    let length = length as usize;
    let is_entry = bytes.get(8).is_some_and(|kind| KINDS.contains(kind));
    if !is_entry || length < ENTRY_HEADER || length > bytes.len() {
        return None;
    }
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_be_bytes(bytes))
    };
    Some((number(RECORD_HEADER)?, number(RECORD_HEADER + 8)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 512;

    /// A segment of generation 5 with a group of one entry in each block from the second on, the first with number 10.
    fn segment(groups: u64) -> Vec<u8> {
        let salt = Salt::of(&[1; 16]);
        let mut bytes = vec![0; BLOCK as usize];
        for index in 0..groups {
            let mut group = vec![0; GROUP_HEADER];
            let payload = Bytes::from_static(b"payload");
            let record = Record::Entry {
                ledger: 40 + index,
                entry: 0,
                payload,
            };
            let _ = record.encode(salt.for_generation(5), &mut group);
            let body = &group[GROUP_HEADER..];
            let header = GroupHeader {
                generation: 5,
                number: 10 + index,
                durable_upto: Position {
                    generation: 5,
                    offset: bytes.len() as u64,
                },
                body_length: u32::try_from(body.len()).expect("small"),
                records: 1,
                body_crc: salt.crc(body),
            };
            header.encode(salt, &mut group);
            group.resize(BLOCK as usize, 0);
            bytes.extend(group);
        }
        bytes.resize(16 << 10, 0);
        bytes
    }

    fn scanned(bytes: Vec<u8>, generation: u64) -> SegmentBytes {
        SegmentBytes::new(Bytes::from(bytes), generation, Salt::of(&[1; 16]), BLOCK)
    }

    #[test]
    fn groups_are_read_until_one_does_not_follow() {
        let groups = scanned(segment(3), 5).groups(512, Some(10));
        let numbers: Vec<u64> = groups.iter().map(|group| group.header.number).collect();
        assert_eq!(numbers, [10, 11, 12]);
        assert_eq!(groups.last().map(|group| group.end), Some(4 * 512));
        assert!(scanned(segment(3), 5).groups(512, Some(11)).is_empty());
    }

    #[test]
    fn groups_of_an_older_use_of_the_file_are_none() {
        let segment = scanned(segment(3), 6);
        assert_eq!(
            segment.group(512, None),
            Err(Malformed("group of another generation"))
        );
        assert_eq!(segment.evidence_behind(512, 0), None);
    }

    #[test]
    fn any_flipped_bit_of_a_group_is_seen() {
        let group = 512..512 + GROUP_HEADER + ENTRY_HEADER + 7;
        for bit in group.start * 8..group.end * 8 {
            let mut bytes = segment(1);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(scanned(bytes, 5).group(512, None).is_err(), "bit {bit}");
        }
        let mut bytes = segment(1);
        bytes[512 + GROUP_HEADER + ENTRY_HEADER] ^= 1;
        let error = scanned(bytes, 5).group(512, None);
        assert_eq!(
            error,
            Err(Malformed("checksum of a group")),
            "before any of its records is looked at"
        );
    }

    #[test]
    fn entries_are_found_between_damaged_groups_and_records() {
        let found = |bytes: Vec<u8>| -> Vec<u64> {
            let entries = scanned(bytes, 5).entries();
            entries.into_iter().map(|(ledger, _, _)| ledger).collect()
        };
        let whole = scanned(segment(3), 5);
        let groups = whole.groups(512, Some(10));
        let expected: Vec<_> = groups.iter().flat_map(|group| &group.records).collect();
        let entries = whole.entries();
        assert_eq!(entries.len(), 3);
        for ((_, entry, at), (record, location)) in entries.iter().zip(expected) {
            assert_eq!((entry, at), (&0, location));
            assert!(matches!(record, Record::Entry { .. }));
        }
        let ledgers = found(segment(3));
        let [one, two, three] = ledgers[..] else {
            panic!("{ledgers:?}")
        };
        for (at, expected) in [
            (512 + 2, vec![one, two, three]),
            (1024 + 95, vec![one, three, two]),
            // What says how long it is, and which kind.
            (512 + 64, vec![two, three]),
            (512 + 64 + 8, vec![two, three, one]),
        ] {
            let mut bytes = segment(3);
            bytes[at] ^= 1;
            assert_eq!(found(bytes), expected, "flipped at {at}");
        }
        assert_eq!(found(vec![0xff; 16 << 10]), [0_u64; 0]);
    }

    #[test]
    fn a_later_group_shows_that_an_earlier_one_was_synced_even_when_its_own_body_is_torn() {
        let mut bytes = segment(2);
        bytes[512 + 95] ^= 1;
        let whole = scanned(bytes.clone(), 5).evidence_behind(512, 9);
        assert_eq!(
            whole.map(|(at, header)| (at, header.number)),
            Some((1024, 11))
        );
        bytes[1024 + 95] ^= 1;
        let torn = scanned(bytes.clone(), 5).evidence_behind(512, 9);
        assert_eq!(torn.map(|(at, _)| at), Some(1024));
        assert_eq!(scanned(bytes.clone(), 5).evidence_behind(1024, 10), None);
        assert_eq!(scanned(bytes, 5).ledgers_at(512), [40]);
    }
}
