//! Does to the disk what the kernel wants. Every call blocks; a driver decides on which thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;

use super::JournalError;
use super::checkpoint;
use super::format::{GROUP_HEADER, Location, Position, Record, Salt, encode_segment_header};
use super::kernel::{Effect, Input, Source};
use super::recovery::{free_file, segment_file};
use super::segment::SegmentBytes;
use super::superblock::Superblock;
use crate::disk::{Disk, DiskError, DiskErrorKind, DiskFile, Operation};

/// The open files of all segments that may be read.
#[derive(Debug, Clone, Default)]
pub struct SegmentFiles {
    files: Arc<RwLock<HashMap<u64, Arc<dyn DiskFile>>>>,
}

/// Does what the kernel wants.
#[derive(Debug)]
pub struct Executor {
    disk: Arc<dyn Disk>,
    superblock: Superblock,
    salt: Salt,
    files: SegmentFiles,
    next_free: AtomicU32,
    /// Bytes that all files together may have.
    space: Option<u64>,
}

/// Bytes written at a time where nobody waits for them.
const PIECE: usize = 1 << 20;

impl SegmentFiles {
    /// The file of a segment, if it may be read.
    #[must_use]
    pub fn file(&self, generation: u64) -> Option<Arc<dyn DiskFile>> {
        self.files.read().get(&generation).cloned()
    }

    pub(crate) fn insert(&self, generation: u64, file: Arc<dyn DiskFile>) {
        self.files.write().insert(generation, file);
    }

    fn remove(&self, generation: u64) {
        self.files.write().remove(&generation);
    }
}

impl Executor {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        superblock: Superblock,
        files: SegmentFiles,
        next_free: u32,
        space: Option<u64>,
    ) -> Self {
        let salt = Salt::of(&superblock.uuid);
        Self {
            disk,
            superblock,
            salt,
            files,
            next_free: AtomicU32::new(next_free),
            space,
        }
    }

    /// What the store is.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// What checksums start from.
    #[must_use]
    pub fn salt(&self) -> Salt {
        self.salt
    }

    /// The files of segments.
    #[must_use]
    pub fn files(&self) -> &SegmentFiles {
        &self.files
    }

    /// Does one thing; `None`: it is nothing for a disk.
    #[must_use]
    pub fn execute(&self, effect: Effect) -> Option<Input> {
        Some(match effect {
            Effect::Write { at, bytes } => {
                let result = self.write(at, &bytes);
                Input::Written(bytes, result)
            }
            Effect::Sync { generation } => {
                Input::Synced(self.active(generation).and_then(|file| file.sync()))
            }
            Effect::Prepare { generation, source } => {
                let result = self.prepare(generation, source);
                Input::Prepared(generation, source, result)
            }
            Effect::WriteCheckpoint { number, bytes } => {
                Input::CheckpointWritten(self.write_checkpoint(number, &bytes))
            }
            Effect::Retire { generations, keep } => Input::Retired(self.retire(&generations, keep)),
            Effect::ReadSegment { generation } => {
                Input::SegmentRead(generation, self.read_entries(generation))
            }
            Effect::Notify(_)
            | Effect::RefuseEntries(_)
            | Effect::OutOfSpace(_)
            | Effect::Opened
            | Effect::Stopped(_) => return None,
        })
    }

    fn active(&self, generation: u64) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.files.file(generation).ok_or_else(|| DiskError {
            operation: Operation::Open,
            file: segment_file(generation),
            kind: DiskErrorKind::Missing,
            reason: "the segment is not open".to_owned(),
        })
    }

    fn write(&self, at: Position, bytes: &[u8]) -> Result<(), DiskError> {
        self.active(at.generation)?.write_at(at.offset, bytes)
    }

    fn prepare(&self, generation: u64, source: Source) -> Result<(), DiskError> {
        let name = segment_file(generation);
        let mut header = encode_segment_header(
            generation,
            &self.superblock.uuid,
            self.superblock.segment_size,
        );
        header.resize(self.superblock.block as usize, 0);
        if let Source::Segment(older) = source {
            // The name first: of an older generation it would be taken for damage.
            self.files.remove(older);
            self.disk.rename(&segment_file(older), &name)?;
            self.disk.sync_dir()?;
            let file = self.disk.open(&name)?;
            file.write_at(0, &header)?;
            file.sync()?;
            self.files.insert(generation, file);
            return Ok(());
        }
        let free = match source {
            Source::Free(number) => free_file(number),
            _ => self.make_file()?,
        };
        let file = self.disk.open(&free)?;
        file.write_at(0, &header)?;
        file.sync()?;
        self.disk.rename(&free, &name)?;
        self.disk.sync_dir()?;
        self.files.insert(generation, self.disk.open(&name)?);
        Ok(())
    }

    /// A file of the size of a segment, written as a whole: overwriting costs a sync half of what growing does.
    fn make_file(&self) -> Result<String, DiskError> {
        let name = free_file(self.next_free.fetch_add(1, Ordering::Relaxed));
        self.check_space(&name)?;
        let file = self.disk.create(&name)?;
        let size = self.superblock.segment_size as usize;
        let zeros = vec![0; PIECE.min(size)];
        let fill = || {
            file.allocate(size as u64)?;
            let mut offset = 0;
            while offset < size {
                let piece = zeros.get(..(size - offset).min(PIECE)).unwrap_or(&zeros);
                file.write_at(offset as u64, piece)?;
                // In small steps, so that the journal's own syncs do not stand behind one large one.
                file.sync()?;
                offset += piece.len();
            }
            Ok(())
        };
        fill().inspect_err(|_: &DiskError| {
            // What cannot be filled must not take the last space; that it stays for the next start does no harm.
            let _ = self.disk.remove(&name);
        })?;
        Ok(name)
    }

    /// Whether one more segment is within what the directory may take.
    fn check_space(&self, name: &str) -> Result<(), DiskError> {
        let Some(space) = self.space else {
            return Ok(());
        };
        let mut used = u64::from(self.superblock.segment_size);
        for held in self.disk.list()? {
            // It was renamed or removed meanwhile, or is none of ours.
            let length = self.disk.open(&held).and_then(|file| file.length());
            used += length.unwrap_or(0);
        }
        if used <= space {
            return Ok(());
        }
        Err(DiskError {
            operation: Operation::Create,
            file: name.to_owned(),
            kind: DiskErrorKind::NoSpace,
            reason: format!("the store may take {space} bytes"),
        })
    }

    fn write_checkpoint(&self, number: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let name = checkpoint::file_of(number);
        let file = match self.disk.open(&name) {
            Err(error) if error.kind == DiskErrorKind::Missing => {
                let file = self.disk.create(&name)?;
                self.disk.sync_dir()?;
                file
            }
            other => other?,
        };
        let length = bytes.len() as u64;
        if file.length()? < length {
            // Room for growth, so that a full disk does not end checkpoints, which are what makes space.
            match file.allocate(length * 2) {
                Err(error) if error.kind == DiskErrorKind::NoSpace => file.allocate(length)?,
                other => other?,
            }
        }
        for (index, piece) in bytes.chunks(PIECE).enumerate() {
            file.write_at((index * PIECE) as u64, piece)?;
        }
        file.sync()
    }

    fn retire(&self, generations: &[u64], keep: usize) -> Result<Vec<u32>, DiskError> {
        let mut free = Vec::new();
        for generation in generations {
            self.files.remove(*generation);
            if free.len() < keep {
                let number = self.next_free.fetch_add(1, Ordering::Relaxed);
                self.disk
                    .rename(&segment_file(*generation), &free_file(number))?;
                free.push(number);
            } else {
                self.disk.remove(&segment_file(*generation))?;
            }
        }
        self.disk.sync_dir()?;
        Ok(free)
    }

    fn read_entries(&self, generation: u64) -> Result<Vec<(Record, Location)>, JournalError> {
        let file = self.active(generation)?;
        let bytes = read_whole(file.as_ref(), self.superblock.segment_size as usize)?;
        let block = self.superblock.block;
        let segment = SegmentBytes::new(bytes, generation, self.salt, block);
        let groups = segment.groups(u64::from(block), None);
        let end = groups.last().map_or(u64::from(block), |group| group.end);
        let last = groups.last().map_or(0, |group| group.header.number);
        if segment.evidence_behind(end, last).is_some() {
            return Err(JournalError::Damaged {
                file: segment_file(generation),
                offset: end + GROUP_HEADER as u64,
                what: "a group does not verify".to_owned(),
                ledgers: segment.ledgers_at(end),
            });
        }
        let records = groups.into_iter().flat_map(|group| group.records);
        let is_entry =
            |record: &Record| matches!(record, Record::Entry { .. } | Record::Copied { .. });
        Ok(records.filter(|(record, _)| is_entry(record)).collect())
    }
}

/// Reads the first `length` bytes.
pub(crate) fn read_whole(file: &dyn DiskFile, length: usize) -> Result<Bytes, DiskError> {
    let mut bytes = vec![0; length];
    file.read_at(0, &mut bytes)?;
    Ok(Bytes::from(bytes))
}
