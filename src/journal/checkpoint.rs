//! What the log up to a place amounts to. Two files take turns; the one being written is never the one that counts.

use bytes::{BufMut, Bytes};

use super::format::{Malformed, Position, Reader, Salt, put_at};

/// Bytes before the sections.
pub const HEADER: usize = 4096;
/// Section: generations of segments that are needed.
pub const SEGMENTS: u32 = 1;
/// Section: the change log.
pub const CHANGES: u32 = 2;

const MAGIC: &[u8; 4] = b"PGCK";
const SECTIONS_MAX: u32 = 16;
const CRC_AT: usize = HEADER - 4;

/// A checkpoint as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// From 1.
    pub number: u64,
    /// The first group that it does not contain ...
    pub position: Position,
    /// ... and the number of that group.
    pub next_group: u64,
    /// The lowest generation that was never given.
    pub next_generation: u64,
    /// Kind and content.
    pub sections: Vec<(u32, Bytes)>,
}

/// The file of the checkpoint with this number.
#[must_use]
pub fn file_of(number: u64) -> String {
    format!("checkpoint-{}", number % 2)
}

impl Checkpoint {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self, salt: Salt) -> Vec<u8> {
        let length: usize = self.sections.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut out = Vec::with_capacity(HEADER + length);
        out.put_slice(MAGIC);
        out.put_u16(super::format::FORMAT);
        out.put_u16(0);
        out.put_u64(self.number);
        out.put_u64(self.position.generation);
        out.put_u64(self.position.offset);
        out.put_u64(self.next_group);
        out.put_u64(self.next_generation);
        out.put_u32(u32::try_from(self.sections.len()).unwrap_or(u32::MAX));
        out.put_u32(0);
        for (kind, bytes) in &self.sections {
            out.put_u32(*kind);
            out.put_u32(salt.crc(bytes));
            out.put_u64(bytes.len() as u64);
        }
        out.resize(HEADER, 0);
        let crc = salt.crc(out.get(..CRC_AT).unwrap_or_default());
        put_at(&mut out, CRC_AT, &crc.to_be_bytes());
        self.sections
            .iter()
            .for_each(|(_, bytes)| out.extend_from_slice(bytes));
        out
    }

    /// Reads one; the file may be longer.
    ///
    /// # Errors
    /// It does not verify.
    pub fn decode(salt: Salt, bytes: &Bytes) -> Result<Self, Malformed> {
        let covered = bytes
            .get(..CRC_AT)
            .ok_or(Malformed("checkpoint is too short"))?;
        let crc = bytes
            .get(CRC_AT..HEADER)
            .ok_or(Malformed("checkpoint is too short"))?;
        if salt.crc(covered).to_be_bytes() != crc {
            return Err(Malformed("checksum of a checkpoint's header"));
        }
        let mut header = Reader::new(&bytes.slice(..CRC_AT));
        if header.take(4)?.as_ref() != MAGIC || header.u16()? != super::format::FORMAT {
            return Err(Malformed("no checkpoint of this format"));
        }
        header.skip(2)?;
        let mut checkpoint = Self {
            number: header.u64()?,
            position: Position {
                generation: header.u64()?,
                offset: header.u64()?,
            },
            next_group: header.u64()?,
            next_generation: header.u64()?,
            sections: Vec::new(),
        };
        let count = header.u32()?;
        header.skip(4)?;
        if count > SECTIONS_MAX {
            return Err(Malformed("checkpoint with too many sections"));
        }
        let mut content = Reader::new(&bytes.slice(HEADER..));
        for _ in 0..count {
            let (kind, crc) = (header.u32()?, header.u32()?);
            let length =
                usize::try_from(header.u64()?).map_err(|_| Malformed("section too long"))?;
            let section = content.take(length)?;
            if salt.crc(&section) != crc {
                return Err(Malformed("checksum of a checkpoint's section"));
            }
            checkpoint.sections.push((kind, section));
        }
        Ok(checkpoint)
    }

    /// The section of a kind.
    #[must_use]
    pub fn section(&self, kind: u32) -> Option<&Bytes> {
        self.sections
            .iter()
            .find(|(k, _)| *k == kind)
            .map(|(_, bytes)| bytes)
    }

    /// The segments before its position that are needed.
    ///
    /// # Errors
    /// The section is missing or cut short.
    pub fn segments(&self) -> Result<Vec<u64>, Malformed> {
        let section = self
            .section(SEGMENTS)
            .ok_or(Malformed("checkpoint without segments"))?;
        let mut reader = Reader::new(section);
        let mut segments = Vec::new();
        while !reader.is_empty() {
            segments.push(reader.u64()?);
        }
        Ok(segments)
    }
}

/// The section of segments.
#[must_use]
pub fn encode_segments(segments: &[u64]) -> Bytes {
    let mut out = Vec::with_capacity(segments.len() * 8);
    segments
        .iter()
        .for_each(|generation| out.put_u64(*generation));
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            number: 3,
            position: Position {
                generation: 4,
                offset: 4096,
            },
            next_group: 17,
            next_generation: 6,
            sections: vec![
                (SEGMENTS, encode_segments(&[1, 3])),
                (CHANGES, Bytes::new()),
                (3, Bytes::from_static(b"ledgers")),
            ],
        }
    }

    #[test]
    fn is_read_back_from_a_longer_file() {
        let salt = Salt::of(&[1; 16]);
        let mut bytes = checkpoint().encode(salt);
        bytes.extend([0xaa; 100]);
        let back = Checkpoint::decode(salt, &Bytes::from(bytes)).expect("own");
        assert_eq!(back, checkpoint());
        assert_eq!(back.segments(), Ok(vec![1, 3]));
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_seen() {
        let salt = Salt::of(&[1; 16]);
        let bytes = checkpoint().encode(salt);
        for at in (0..120).chain(4090..bytes.len()) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            Checkpoint::decode(salt, &Bytes::from(flipped)).expect_err("flipped");
        }
        for length in [0, 10, 4095, 4096, bytes.len() - 1] {
            Checkpoint::decode(salt, &Bytes::copy_from_slice(&bytes[..length])).expect_err("cut");
        }
        Checkpoint::decode(Salt::of(&[2; 16]), &Bytes::from(bytes)).expect_err("another store");
    }
}
