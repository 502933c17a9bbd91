//! The operating system's files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock, Operation};

/// A directory of the operating system.
#[derive(Debug, Clone)]
pub struct RealDisk {
    directory: PathBuf,
}

#[derive(Debug)]
struct RealFile {
    file: File,
    path: PathBuf,
}

#[derive(Debug)]
struct RealLock {
    /// The lock goes with the descriptor.
    _file: File,
}

impl RealDisk {
    /// The directory at `path`; it is made if it is not there, and its name in the parent is synced.
    ///
    /// # Errors
    /// It cannot be made or read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let directory = path.into();
        let failed = |operation, error: &io::Error| {
            DiskError::of_io(operation, directory.display().to_string(), error)
        };
        if !directory.is_dir() {
            fs::create_dir_all(&directory).map_err(|error| failed(Operation::Create, &error))?;
            // Every level may be new; syncing one that is not costs nothing at start.
            let absolute =
                std::path::absolute(&directory).map_err(|error| failed(Operation::Open, &error))?;
            for level in absolute.ancestors().skip(1) {
                // A parent that we may not read was not made by us.
                if let Ok(opened) = File::open(level) {
                    opened
                        .sync_all()
                        .map_err(|error| failed(Operation::SyncDirectory, &error))?;
                }
            }
        }
        Ok(Self { directory })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.directory
    }

    fn error(&self, operation: Operation, name: &str, error: &io::Error) -> DiskError {
        DiskError::of_io(
            operation,
            self.directory.join(name).display().to_string(),
            error,
        )
    }

    fn with(
        &self,
        operation: Operation,
        name: &str,
        options: &mut OpenOptions,
    ) -> Result<Arc<dyn DiskFile>, DiskError> {
        let path = self.directory.join(name);
        let file = options
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| self.error(operation, name, &error))?;
        Ok(Arc::new(RealFile { file, path }))
    }
}

impl Disk for RealDisk {
    fn list(&self) -> Result<Vec<String>, DiskError> {
        let failed = |error: &io::Error| self.error(Operation::List, "", error);
        fs::read_dir(&self.directory)
            .map_err(|error| failed(&error))?
            .map(|entry| {
                let entry = entry.map_err(|error| failed(&error))?;
                Ok(entry.file_name().to_string_lossy().into_owned())
            })
            .collect()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.with(Operation::Open, name, &mut OpenOptions::new())
    }

    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.with(Operation::Create, name, OpenOptions::new().create_new(true))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        fs::rename(self.directory.join(from), self.directory.join(to))
            .map_err(|error| self.error(Operation::Rename, from, &error))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        fs::remove_file(self.directory.join(name))
            .map_err(|error| self.error(Operation::Remove, name, &error))
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| self.error(Operation::SyncDirectory, "", &error))
    }

    fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.directory.join(name))
            .map_err(|error| self.error(Operation::Lock, name, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(RealLock { _file: file })),
            Err(TryLockError::WouldBlock) => Err(DiskError {
                operation: Operation::Lock,
                file: self.directory.join(name).display().to_string(),
                kind: DiskErrorKind::Locked,
                reason: "another process has this directory open".to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(self.error(Operation::Lock, name, &error)),
        }
    }
}

impl RealFile {
    fn error(&self, operation: Operation, error: &io::Error) -> DiskError {
        DiskError::of_io(operation, self.path.display().to_string(), error)
    }
}

impl DiskFile for RealFile {
    fn length(&self) -> Result<u64, DiskError> {
        self.file
            .metadata()
            .map(|metadata| metadata.len())
            .map_err(|error| self.error(Operation::Read, &error))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|error| self.error(Operation::Read, &error))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| self.error(Operation::Write, &error))
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.file
            .sync_data()
            .map_err(|error| self.error(Operation::Sync, &error))
    }

    fn allocate(&self, length: u64) -> Result<(), DiskError> {
        rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, length)
            .map_err(|error| self.error(Operation::Write, &error.into()))
    }
}

impl DiskLock for RealLock {}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (tempfile::TempDir, RealDisk) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let disk = RealDisk::open(folder.path().join("a/b")).expect("disk");
        (folder, disk)
    }

    #[test]
    fn reads_back_what_was_written_at_a_place() {
        let (_folder, disk) = disk();
        let file = disk.create("x").expect("create");
        file.write_at(10, b"hello").expect("write");
        file.sync().expect("sync");
        let mut buffer = [0xff; 7];
        disk.open("x")
            .and_then(|again| again.read_at(8, &mut buffer))
            .expect("read");
        assert_eq!(&buffer, b"\0\0hello");
        assert_eq!(file.length().expect("length"), 15);
    }

    #[test]
    fn says_what_went_wrong_and_where() {
        let (_folder, disk) = disk();
        let missing = disk.open("none").expect_err("missing");
        assert_eq!(missing.kind, DiskErrorKind::Missing);
        assert!(missing.to_string().contains("a/b/none"), "{missing}");
        let file = disk.create("x").expect("create");
        assert_eq!(
            disk.create("x").expect_err("exists").kind,
            DiskErrorKind::Exists
        );
        let short = file.read_at(0, &mut [0]).expect_err("short");
        assert_eq!(short.kind, DiskErrorKind::Short);
    }

    #[test]
    fn allocating_grows_a_file_and_never_shortens_it() {
        let (_folder, disk) = disk();
        let file = disk.create("x").expect("create");
        file.allocate(8192).expect("allocate");
        assert_eq!(file.length().expect("length"), 8192);
        file.allocate(100).expect("allocate");
        assert_eq!(file.length().expect("length"), 8192);
    }

    #[test]
    fn renames_replace_and_removals_remove() {
        let (_folder, disk) = disk();
        disk.create("x").expect("create");
        disk.create("y").expect("create");
        disk.rename("x", "y").expect("rename");
        disk.create("z").expect("create");
        disk.remove("z").expect("remove");
        disk.sync_dir().expect("sync");
        assert_eq!(disk.list().expect("list"), ["y"]);
    }

    #[test]
    fn a_directory_is_locked_once_at_a_time() {
        let (_folder, disk) = disk();
        let lock = disk.lock("lock").expect("lock");
        let second = disk.lock("lock").expect_err("locked");
        assert_eq!(second.kind, DiskErrorKind::Locked);
        drop(lock);
        disk.lock("lock").expect("lock again");
    }

    #[test]
    fn a_directory_that_may_not_be_made_is_an_error() {
        let folder = tempfile::tempdir().expect("temporary folder");
        std::fs::write(folder.path().join("file"), b"").expect("file");
        let error = RealDisk::open(folder.path().join("file/below")).expect_err("not a directory");
        assert_eq!(error.operation, Operation::Create);
    }
}
