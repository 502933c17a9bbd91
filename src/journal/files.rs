//! The files of segments and of their indexes, opened when somebody reads them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::RwLock;

use super::execute::read_whole;
use super::format::{Location, Salt};
use super::recovery::{index_file, segment_file};
use super::segment::SegmentBytes;
use super::superblock::Superblock;
use crate::disk::{Disk, DiskError, DiskErrorKind, DiskFile, Operation};

/// All segments that may be read, and which of them have an index. Clones are the same.
#[derive(Debug, Clone)]
pub struct SegmentFiles {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    salt: Salt,
    block: u32,
    segment_size: u32,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By generation; a file once it was opened.
    held: HashMap<u64, Option<Arc<dyn DiskFile>>>,
    /// Those that are open, in the order of their opening.
    open: VecDeque<u64>,
    highest: u64,
    indexes: BTreeSet<u64>,
}

/// Entries with their places: (ledger, entry, where).
pub type Places = Vec<(u64, u64, Location)>;

/// Files of segments that are open at a time, so that there may be more segments than a process may have files.
const OPEN_MAX: usize = 256;
/// The newest segments stay open: they are written to, or will be.
const NEWEST: u64 = 16;

impl SegmentFiles {
    pub(crate) fn new(disk: Arc<dyn Disk>, superblock: &Superblock) -> Self {
        let shared = Shared {
            disk,
            salt: Salt::of(&superblock.uuid),
            block: superblock.block,
            segment_size: superblock.segment_size,
            state: RwLock::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Bytes of a segment.
    #[must_use]
    pub fn segment_size(&self) -> u32 {
        self.shared.segment_size
    }

    /// The file of a segment, if it may be read.
    #[must_use]
    pub fn file(&self, generation: u64) -> Option<Arc<dyn DiskFile>> {
        self.open(generation).ok()
    }

    /// The file of a segment.
    ///
    /// # Errors
    /// [`DiskErrorKind::Missing`]: it may not be read (any more).
    pub fn open(&self, generation: u64) -> Result<Arc<dyn DiskFile>, DiskError> {
        let missing = || DiskError {
            operation: Operation::Open,
            file: segment_file(generation),
            kind: DiskErrorKind::Missing,
            reason: "there is no such segment".to_owned(),
        };
        match self.shared.state.read().held.get(&generation) {
            None => return Err(missing()),
            Some(Some(file)) => return Ok(Arc::clone(file)),
            Some(None) => {}
        }
        let file = self.shared.disk.open(&segment_file(generation))?;
        let mut state = self.shared.state.write();
        if !state.held.contains_key(&generation) {
            // It became free meanwhile: what was opened may be anything by now.
            return Err(missing());
        }
        state.hold(generation, Arc::clone(&file));
        Ok(file)
    }

    /// A segment may be read; its file is opened by its first reader.
    pub(crate) fn know(&self, generation: u64) {
        let mut state = self.shared.state.write();
        state.held.entry(generation).or_default();
    }

    /// A segment may be read, and its file is this.
    pub(crate) fn insert(&self, generation: u64, file: Arc<dyn DiskFile>) {
        self.shared.state.write().hold(generation, file);
    }

    pub(crate) fn remove(&self, generation: u64) {
        let mut state = self.shared.state.write();
        state.held.remove(&generation);
        state.open.retain(|open| *open != generation);
    }

    /// The index file of a segment.
    ///
    /// # Errors
    /// As the operating system has it; [`DiskErrorKind::Missing`] among others.
    pub fn open_index(&self, generation: u64) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.shared.disk.open(&index_file(generation))
    }

    /// Segments have index files.
    pub(crate) fn add_indexes(&self, generations: impl IntoIterator<Item = u64>) {
        self.shared.state.write().indexes.extend(generations);
    }

    /// The index file of a segment is not needed any more; whether there is one.
    pub(crate) fn forget_index(&self, generation: u64) -> bool {
        self.shared.state.write().indexes.remove(&generation)
    }

    /// Reads a segment and finds all its entries, those that verify first, then damaged ones.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn entries(&self, generation: u64) -> Result<Places, DiskError> {
        let Shared {
            salt,
            block,
            segment_size,
            ..
        } = *self.shared;
        let file = self.open(generation)?;
        let bytes = read_whole(file.as_ref(), segment_size as usize)?;
        Ok(SegmentBytes::new(bytes, generation, salt, block).entries())
    }
}

impl State {
    fn hold(&mut self, generation: u64, file: Arc<dyn DiskFile>) {
        self.highest = self.highest.max(generation);
        if self.held.insert(generation, Some(file)).flatten().is_none() {
            self.open.push_back(generation);
        }
        for _ in 0..self.open.len() {
            if self.open.len() <= OPEN_MAX {
                break;
            }
            let Some(oldest) = self.open.pop_front() else {
                break;
            };
            if oldest + NEWEST > self.highest {
                self.open.push_back(oldest);
            } else if let Some(held) = self.held.get_mut(&oldest) {
                *held = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sim_disk::SimDisk;

    fn files(disk: &SimDisk) -> SegmentFiles {
        let superblock = Superblock {
            uuid: [1; 16],
            block: 512,
            segment_size: 16 << 10,
            created: 0,
            cluster: String::new(),
        };
        SegmentFiles::new(Arc::new(disk.clone()), &superblock)
    }

    #[test]
    fn many_segments_are_read_with_few_open_files_and_the_newest_stay_open() {
        let disk = SimDisk::new(1);
        let files = files(&disk);
        let count = OPEN_MAX as u64 + 100;
        for generation in 1..=count {
            disk.create(&segment_file(generation)).expect("create");
            files.know(generation);
        }
        let newest = disk.open(&segment_file(count)).expect("open");
        files.insert(count, Arc::clone(&newest));
        for generation in 1..=count {
            files.open(generation).expect("open");
        }
        let state = files.shared.state.read();
        let open = state.held.values().flatten().count();
        assert_eq!((open, state.open.len()), (OPEN_MAX, OPEN_MAX));
        let held = state.held.get(&count).and_then(Option::as_ref);
        assert!(held.is_some_and(|held| Arc::ptr_eq(held, &newest)));
        drop(state);
        files.open(1).expect("again");
        files.remove(1);
        let error = files.open(1).expect_err("free");
        assert_eq!(error.kind, DiskErrorKind::Missing);
    }
}
