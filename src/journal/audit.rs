//! Looking at a store without changing it: what recovery makes of it, and whether every checksum is right. Blocks.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::checkpoint::{self, Checkpoint};
use super::execute::{SegmentFiles, read_whole};
use super::format::{Location, Record, Salt};
use super::open::{CHECKPOINTS, Found, LOCK};
use super::recovery::{Recovered, Recovery, segment_file};
use super::segment::SegmentBytes;
use super::superblock::Superblock;
use super::{JournalError, Replica};
use crate::disk::{Disk, DiskLock};

pub use super::open::read_superblock;

/// What recovery makes of a store.
#[derive(Debug)]
pub struct Audit<R> {
    superblock: Superblock,
    salt: Salt,
    /// What it found.
    pub recovered: Recovered<R>,
    files: SegmentFiles,
}

/// Something that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// Ledgers that it has to do with, as far as they can be told.
    pub ledgers: Vec<u64>,
}

/// An entry, and where it has to be.
pub type Place = (u64, u64, Location);

/// A checkpoint file, and its number or what is wrong with it.
pub type CheckpointFile = (String, Result<u64, &'static str>);

/// Bytes by what they are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Segments that hold something, in bytes.
    pub segments: u64,
    /// How many they are.
    pub segment_count: u64,
    /// Segments that nothing needs and files that wait to be segments.
    pub free: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Anything else.
    pub other: u64,
}

/// Keeps other processes from opening a store for writing while it is looked at.
///
/// # Errors
/// Somebody has it open.
pub fn hold(disk: &dyn Disk) -> Result<Box<dyn DiskLock>, JournalError> {
    Ok(disk.lock(LOCK)?)
}

impl<R: Replica> Audit<R> {
    /// Reads a store as its start would, changing nothing.
    ///
    /// # Errors
    /// What its start would say.
    pub fn read(
        disk: &dyn Disk,
        superblock: &Superblock,
        replica: R,
    ) -> Result<Self, JournalError> {
        Self::read_as(disk, superblock, replica, |recovery| recovery)
    }

    pub(super) fn read_as(
        disk: &dyn Disk,
        superblock: &Superblock,
        replica: R,
        how: impl FnOnce(Recovery<R>) -> Recovery<R>,
    ) -> Result<Self, JournalError> {
        let found = Found::read(disk)?;
        let mut recovery = how(found.start(superblock, replica)?);
        let files = found.recover(disk, superblock, &mut recovery)?;
        Ok(Self {
            superblock: superblock.clone(),
            salt: Salt::of(&superblock.uuid),
            recovered: recovery.finish(&found.listing)?,
            files,
        })
    }

    pub(super) fn files(&self) -> &SegmentFiles {
        &self.files
    }

    /// The record at a place.
    ///
    /// # Errors
    /// It cannot be read, or does not verify.
    pub fn record(&self, at: Location) -> Result<Record, JournalError> {
        let damaged = |what: &str| JournalError::Damaged {
            file: segment_file(at.generation),
            offset: u64::from(at.offset),
            what: what.to_owned(),
            ledgers: Vec::new(),
        };
        let file = self.files.file(at.generation);
        let file = file.ok_or_else(|| damaged("the segment is missing"))?;
        let mut bytes = vec![0; at.length as usize];
        file.read_at(u64::from(at.offset), &mut bytes)?;
        let salt = self.salt.for_generation(at.generation);
        match Record::decode(salt, &Bytes::from(bytes)) {
            Ok((record, _)) => Ok(record),
            Err(error) => Err(damaged(error.0)),
        }
    }

    /// Verifies all groups of all segments, and that entries are where they have to be.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn verify(
        &self,
        places: impl IntoIterator<Item = Place>,
    ) -> Result<Vec<Damage>, JournalError> {
        let mut by_segment: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
        for place in places {
            by_segment
                .entry(place.2.generation)
                .or_default()
                .push(place);
        }
        let mut damage = Vec::new();
        for generation in &self.recovered.sealed {
            let places = by_segment.remove(generation).unwrap_or_default();
            damage.extend(self.verify_segment(*generation, &places)?);
        }
        for (generation, places) in by_segment {
            damage.push(Damage {
                file: segment_file(generation),
                offset: 0,
                what: format!("the segment of {} entries is missing", places.len()),
                ledgers: ledgers_of(&places),
            });
        }
        Ok(damage)
    }

    fn verify_segment(
        &self,
        generation: u64,
        places: &[Place],
    ) -> Result<Vec<Damage>, JournalError> {
        let file = segment_file(generation);
        let Some(open) = self.files.file(generation) else {
            return Ok(Vec::new());
        };
        let size = self.superblock.segment_size as usize;
        let length = usize::try_from(open.length()?).unwrap_or(usize::MAX);
        let bytes = read_whole(open.as_ref(), length.min(size))?;
        let block = u64::from(self.superblock.block);
        let segment =
            SegmentBytes::new(bytes.clone(), generation, self.salt, self.superblock.block);
        let groups = segment.groups(block, None);
        let end = groups.last().map_or(block, |group| group.end);
        let last = groups.last().map_or(0, |group| group.header.number);
        let mut damage = Vec::new();
        if length < size {
            damage.push(Damage {
                file: file.clone(),
                offset: length as u64,
                what: "it is shorter than a segment".to_owned(),
                ledgers: Vec::new(),
            });
        }
        let is_last = self.recovered.end.generation == generation;
        if !is_last && let Some((shown_by, _)) = segment.evidence_behind(end, last) {
            let why = segment.group(end, None).err();
            damage.push(Damage {
                file: file.clone(),
                offset: end,
                what: format!(
                    "{}; the group at {shown_by} shows that it was synced",
                    why.map_or("a group does not follow the one before", |error| error.0)
                ),
                ledgers: segment.ledgers_at(end),
            });
        }
        let salt = self.salt.for_generation(generation);
        let wrong = places.iter().filter(|(ledger, entry, at)| {
            let start = at.offset as usize;
            let slice = bytes.get(start..start.saturating_add(at.length as usize));
            let record = slice.and_then(|slice| {
                Record::decode(salt, &Bytes::copy_from_slice(slice)).ok()
            });
            !matches!(
                record,
                Some((Record::Entry { ledger: l, entry: e, .. } | Record::Copied { ledger: l, entry: e, .. }, length))
                    if (l, e, length) == (*ledger, *entry, at.length)
            )
        });
        damage.extend(wrong.map(|(ledger, entry, at)| Damage {
            file: file.clone(),
            offset: u64::from(at.offset),
            what: format!("entry {entry} of ledger {ledger} is not there"),
            ledgers: vec![*ledger],
        }));
        Ok(damage)
    }
}

/// What is wrong with the checkpoint files; one may be, while the other counts.
///
/// # Errors
/// A file cannot be read.
pub fn checkpoints(
    disk: &dyn Disk,
    superblock: &Superblock,
) -> Result<Vec<CheckpointFile>, JournalError> {
    let salt = Salt::of(&superblock.uuid);
    let names = disk.list()?;
    let mut found = Vec::new();
    for name in CHECKPOINTS {
        if !names.iter().any(|held| held == name) {
            continue;
        }
        let file = disk.open(name)?;
        let length = usize::try_from(file.length()?).unwrap_or(usize::MAX);
        let bytes = read_whole(file.as_ref(), length)?;
        let number = Checkpoint::decode(salt, &bytes)
            .map(|checkpoint| checkpoint.number)
            .map_err(|error| error.0);
        debug_assert!(
            number.is_err() || number.is_ok_and(|number| checkpoint::file_of(number) == name)
        );
        found.push((name.to_owned(), number));
    }
    Ok(found)
}

/// What the files of a directory are used for.
///
/// # Errors
/// A file cannot be read.
pub fn space<R>(disk: &dyn Disk, recovered: &Recovered<R>) -> Result<Space, JournalError> {
    let mut space = Space::default();
    for name in disk.list()? {
        let length = disk.open(&name).and_then(|file| file.length());
        // Not all that lies in a directory is a file that can be read; it is none of ours then.
        let Ok(length) = length else { continue };
        let kind = super::recovery::listing(std::slice::from_ref(&name));
        if let Some(generation) = kind.segments.first() {
            if recovered.sealed.contains(generation) {
                space.segments += length;
                space.segment_count += 1;
            } else {
                space.free += length;
            }
        } else if !kind.free.is_empty() {
            space.free += length;
        } else if CHECKPOINTS.contains(&name.as_str()) {
            space.checkpoints += length;
        } else {
            space.other += length;
        }
    }
    Ok(space)
}

fn ledgers_of(places: &[Place]) -> Vec<u64> {
    let mut ledgers: Vec<u64> = places.iter().map(|(ledger, _, _)| *ledger).collect();
    ledgers.sort_unstable();
    ledgers.dedup();
    ledgers
}
