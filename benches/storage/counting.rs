//! A disk that counts what passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pulsegate::disk::{Disk, DiskError, DiskFile, DiskLock, RealDisk};

/// Bytes that were written and read, and how often files were synced.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    written: AtomicU64,
    read: AtomicU64,
    reads: AtomicU64,
    syncs: AtomicU64,
}

/// What [`Counts`] had at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counted {
    pub(crate) written: u64,
    pub(crate) read: u64,
    pub(crate) reads: u64,
    pub(crate) syncs: u64,
}

#[derive(Debug)]
pub(crate) struct CountingDisk {
    disk: RealDisk,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn DiskFile>,
    counts: Arc<Counts>,
}

impl Counts {
    pub(crate) fn now(&self) -> Counted {
        Counted {
            written: self.written.load(Ordering::Relaxed),
            read: self.read.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
        }
    }
}

impl Counted {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            written: self.written - before.written,
            read: self.read - before.read,
            reads: self.reads - before.reads,
            syncs: self.syncs - before.syncs,
        }
    }
}

impl CountingDisk {
    pub(crate) fn new(disk: RealDisk) -> (Self, Arc<Counts>) {
        let counts = Arc::<Counts>::default();
        (
            Self {
                disk,
                counts: Arc::clone(&counts),
            },
            counts,
        )
    }

    fn counted(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(CountingFile {
            file,
            counts: Arc::clone(&self.counts),
        })
    }
}

impl Disk for CountingDisk {
    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Ok(self.counted(self.disk.open(name)?))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Ok(self.counted(self.disk.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        self.disk.sync_dir()
    }

    fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        self.disk.lock(name)
    }
}

impl DiskFile for CountingFile {
    fn length(&self) -> Result<u64, DiskError> {
        self.file.length()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.counts
            .read
            .fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.counts
            .written
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        self.file.sync()
    }

    fn allocate(&self, length: u64) -> Result<(), DiskError> {
        self.file.allocate(length)
    }
}
