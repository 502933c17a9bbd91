//! What a store is: its format, its uuid, whose it is.

use bytes::{BufMut, Bytes};

use super::JournalError;
use super::format::{Reader, put_at};

/// Name of the file.
pub const FILE: &str = "superblock";
/// Its length.
pub const LENGTH: usize = 4096;

const MAGIC: &[u8; 8] = b"PULSGATE";
/// The format that this version writes.
pub const FORMAT: u32 = 1;
/// Features that this version knows.
const FEATURES: u64 = 0;
const CLUSTER_MAX: usize = 255;
const CRC_AT: usize = LENGTH - 4;

/// The content of the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Chosen at random when the store was made.
    pub uuid: [u8; 16],
    /// Groups start at multiples of it.
    pub block: u32,
    /// Bytes of each segment.
    pub segment_size: u32,
    /// Unix seconds.
    pub created: u64,
    /// The cluster whose data it is.
    pub cluster: String,
}

impl Superblock {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_as(FORMAT, FORMAT, FEATURES)
    }

    fn encode_as(&self, format: u32, min_reader_format: u32, features: u64) -> Vec<u8> {
        let cluster = self.cluster.as_bytes();
        let cluster = cluster.get(..CLUSTER_MAX).unwrap_or(cluster);
        let mut out = Vec::with_capacity(LENGTH);
        out.put_slice(MAGIC);
        out.put_u32(format);
        out.put_u32(min_reader_format);
        out.put_u64(features);
        out.put_u64(0);
        out.put_slice(&self.uuid);
        out.put_u32(self.block);
        out.put_u32(self.segment_size);
        out.put_u64(self.created);
        out.put_u16(u16::try_from(cluster.len()).unwrap_or_default());
        out.put_slice(cluster);
        out.resize(LENGTH, 0);
        let crc = crc32c::crc32c(out.get(..CRC_AT).unwrap_or_default());
        put_at(&mut out, CRC_AT, &crc.to_be_bytes());
        out
    }

    /// Reads it.
    ///
    /// # Errors
    /// It does not verify, or needs a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, JournalError> {
        let damaged = |what: &str| JournalError::Damaged {
            file: FILE.to_owned(),
            offset: 0,
            what: what.to_owned(),
            ledgers: Vec::new(),
        };
        let covered = bytes
            .get(..CRC_AT)
            .ok_or_else(|| damaged("it is too short"))?;
        let crc = bytes
            .get(CRC_AT..LENGTH)
            .ok_or_else(|| damaged("it is too short"))?;
        if crc32c::crc32c(covered).to_be_bytes() != crc {
            return Err(damaged("its checksum is wrong"));
        }
        let mut reader = Reader::new(&Bytes::copy_from_slice(covered));
        Self::fields(&mut reader).map_err(|_| damaged("it is cut short"))?
    }

    fn fields(reader: &mut Reader) -> Result<Result<Self, JournalError>, super::format::Malformed> {
        if reader.take(8)?.as_ref() != MAGIC {
            return Ok(Err(JournalError::Foreign(
                "its superblock is another's".to_owned(),
            )));
        }
        let format = reader.u32()?;
        let min_reader_format = reader.u32()?;
        let features = reader.u64()?;
        reader.skip(8)?;
        if min_reader_format > FORMAT {
            let what = format!(
                "format {format}, to be read by format {min_reader_format} and above; this is {FORMAT}"
            );
            return Ok(Err(JournalError::TooNew(what)));
        }
        if features & !FEATURES != 0 {
            let what = format!("features {features:#x} of which this version knows {FEATURES:#x}");
            return Ok(Err(JournalError::TooNew(what)));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&reader.take(16)?);
        let block = reader.u32()?;
        let segment_size = reader.u32()?;
        let created = reader.u64()?;
        let length = usize::from(reader.u16()?);
        let cluster = String::from_utf8_lossy(&reader.take(length)?).into_owned();
        let superblock = Self {
            uuid,
            block,
            segment_size,
            created,
            cluster,
        };
        Ok(superblock.check().map(|()| superblock))
    }

    /// Whether its sizes are ones that the format allows.
    ///
    /// # Errors
    /// They are not.
    pub fn check(&self) -> Result<(), JournalError> {
        let block_fits = self.block.is_power_of_two() && (512..=4096).contains(&self.block);
        let whole = block_fits && self.segment_size.is_multiple_of(self.block);
        if whole && (SEGMENT_MIN..=SEGMENT_MAX).contains(&self.segment_size) {
            return Ok(());
        }
        Err(JournalError::Damaged {
            file: FILE.to_owned(),
            offset: 48,
            what: format!(
                "block {} and segment size {} are not allowed",
                self.block, self.segment_size
            ),
            ledgers: Vec::new(),
        })
    }
}

/// The smallest segment.
pub const SEGMENT_MIN: u32 = 16 << 10;
/// The largest segment.
pub const SEGMENT_MAX: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            uuid: [3; 16],
            block: 4096,
            segment_size: 64 << 20,
            created: 1_700_000_000,
            cluster: "standalone".to_owned(),
        }
    }

    #[test]
    fn is_read_back() {
        let bytes = superblock().encode();
        assert_eq!(bytes.len(), LENGTH);
        assert_eq!(Superblock::decode(&bytes).expect("own"), superblock());
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let bytes = superblock().encode();
        for at in (0..LENGTH).step_by(7).chain([8, 12, 4092, 4095]) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            Superblock::decode(&flipped).expect_err("flipped");
        }
        Superblock::decode(&bytes[..100]).expect_err("short");
        Superblock::decode(&[]).expect_err("empty");
    }

    #[test]
    fn a_store_for_newer_readers_is_refused_and_one_for_older_ones_is_not() {
        let newer = superblock().encode_as(9, 2, 0);
        let refused = Superblock::decode(&newer).expect_err("newer");
        assert!(matches!(refused, JournalError::TooNew(_)), "{refused}");
        let feature = superblock().encode_as(1, 1, 4);
        let refused = Superblock::decode(&feature).expect_err("feature");
        assert!(matches!(refused, JournalError::TooNew(_)), "{refused}");
        Superblock::decode(&superblock().encode_as(9, 1, 0)).expect("readable by format 1");
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for (block, segment_size) in [
            (0, 1 << 20),
            (100, 1 << 20),
            (4096, (1 << 20) + 1),
            (512, 512),
            (4096, 1 << 31),
        ] {
            let bytes = Superblock {
                block,
                segment_size,
                ..superblock()
            }
            .encode();
            Superblock::decode(&bytes).expect_err("sizes");
        }
    }
}
