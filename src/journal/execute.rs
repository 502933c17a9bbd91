//! Does to the disk what the kernel wants. Every call blocks; a driver decides on which thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::checkpoint;
pub use super::files::SegmentFiles;
use super::format::{GROUP_HEADER, Location, Position, Record, Salt, encode_segment_header};
use super::kernel::{Effect, Input, Source};
use super::recovery::{free_file, index_file, segment_file, unfinished_index_file};
use super::segment::SegmentBytes;
use super::superblock::Superblock;
use super::{JournalError, SegmentIndexer};
use crate::disk::{Disk, DiskError, DiskErrorKind, DiskFile};
use bytes::Bytes;

/// Does what the kernel wants.
#[derive(Debug)]
pub struct Executor {
    disk: Arc<dyn Disk>,
    superblock: Superblock,
    salt: Salt,
    files: SegmentFiles,
    next_free: AtomicU32,
    indexer: Option<Arc<dyn SegmentIndexer>>,
}

/// Bytes written at a time where nobody waits for them.
const PIECE: usize = 1 << 20;

impl Executor {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        superblock: Superblock,
        files: SegmentFiles,
        next_free: u32,
    ) -> Self {
        let salt = Salt::of(&superblock.uuid);
        Self {
            disk,
            superblock,
            salt,
            files,
            next_free: AtomicU32::new(next_free),
            indexer: None,
        }
    }

    /// The same, with somebody who makes index files.
    #[must_use]
    pub(crate) fn with_indexer(self, indexer: Option<Arc<dyn SegmentIndexer>>) -> Self {
        Self { indexer, ..self }
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
            Effect::WriteIndex { generation } => {
                Input::IndexWritten(generation, self.write_index(generation))
            }
            Effect::Notify(_) | Effect::RefuseEntries(_) | Effect::Opened | Effect::Stopped(_) => {
                return None;
            }
        })
    }

    fn active(&self, generation: u64) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.files.open(generation)
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
        for generation in generations {
            if self.files.forget_index(*generation) {
                self.disk.remove(&index_file(*generation))?;
            }
        }
        self.disk.sync_dir()?;
        Ok(free)
    }

    /// Writes the index of a segment; `false`: the segment cannot be read.
    fn write_index(&self, generation: u64) -> Result<bool, DiskError> {
        let Some(indexer) = &self.indexer else {
            return Ok(false);
        };
        let bytes = match indexer.known_index(generation, self.salt) {
            Some(bytes) => bytes,
            None => match self.files.entries(generation) {
                Ok(entries) => indexer.index_of_entries(generation, self.salt, entries),
                // Whoever reads its entries is told.
                Err(_) => return Ok(false),
            },
        };
        let (new, name) = (unfinished_index_file(generation), index_file(generation));
        let file = match self.disk.create(&new) {
            // It could not be filled before, nor removed.
            Err(error) if error.kind == DiskErrorKind::Exists => self.disk.open(&new)?,
            other => other?,
        };
        let fill = || {
            file.allocate(bytes.len() as u64)?;
            for (index, piece) in bytes.chunks(PIECE).enumerate() {
                file.write_at((index * PIECE) as u64, piece)?;
                // In small steps, so that the journal's own syncs do not stand behind one large one.
                file.sync()?;
            }
            Ok(())
        };
        fill().inspect_err(|_: &DiskError| {
            // The space is for others; a file that stays is removed at the next start.
            let _ = self.disk.remove(&new);
        })?;
        self.disk.rename(&new, &name)?;
        self.disk.sync_dir()?;
        self.files.add_indexes([generation]);
        Ok(true)
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
