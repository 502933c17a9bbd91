//! The operating system's files, to be looked at only: nothing is ever opened for writing, and every change is refused.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock, Operation};

/// A directory of the operating system that is not changed.
#[derive(Debug, Clone)]
pub struct ReadOnlyDisk {
    directory: PathBuf,
}

#[derive(Debug)]
struct ReadOnlyFile {
    file: File,
    path: PathBuf,
}

/// A lock that others may have at the same time, but none who writes; without a file when nobody ever made one.
#[derive(Debug)]
struct SharedLock {
    /// The lock goes with the descriptor.
    _file: Option<File>,
}

impl ReadOnlyDisk {
    /// The directory at `path`, which has to be there.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let disk = Self {
            directory: path.into(),
        };
        // A missing directory and one that may not be read are told apart from an empty one here.
        disk.list()?;
        Ok(disk)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.directory
    }

    fn error(&self, operation: Operation, name: &str, error: &io::Error) -> DiskError {
        DiskError::of_io(operation, self.name(name), error)
    }

    fn name(&self, name: &str) -> String {
        let path = match name {
            "" => self.directory.clone(),
            name => self.directory.join(name),
        };
        path.display().to_string()
    }

    fn refused(&self, operation: Operation, name: &str) -> DiskError {
        refused(operation, self.name(name))
    }
}

fn refused(operation: Operation, file: String) -> DiskError {
    DiskError {
        operation,
        file,
        kind: DiskErrorKind::ReadOnly,
        reason: "it is only looked at".to_owned(),
    }
}

impl Disk for ReadOnlyDisk {
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
        let path = self.directory.join(name);
        let file = File::open(&path).map_err(|error| self.error(Operation::Open, name, &error))?;
        Ok(Arc::new(ReadOnlyFile { file, path }))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Err(self.refused(Operation::Create, name))
    }

    fn rename(&self, from: &str, _: &str) -> Result<(), DiskError> {
        Err(self.refused(Operation::Rename, from))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        Err(self.refused(Operation::Remove, name))
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        Err(self.refused(Operation::SyncDirectory, ""))
    }

    /// Refused while somebody has the directory open for writing; keeps others from that.
    fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        let file = match File::open(self.directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Box::new(SharedLock { _file: None }));
            }
            other => other.map_err(|error| self.error(Operation::Lock, name, &error))?,
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Box::new(SharedLock { _file: Some(file) })),
            Err(TryLockError::WouldBlock) => Err(DiskError {
                operation: Operation::Lock,
                file: self.name(name),
                kind: DiskErrorKind::Locked,
                reason: "another process has this directory open".to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(self.error(Operation::Lock, name, &error)),
        }
    }
}

impl ReadOnlyFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

impl DiskFile for ReadOnlyFile {
    fn length(&self) -> Result<u64, DiskError> {
        let metadata = self.file.metadata();
        metadata
            .map(|metadata| metadata.len())
            .map_err(|error| DiskError::of_io(Operation::Read, self.name(), &error))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|error| DiskError::of_io(Operation::Read, self.name(), &error))
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), DiskError> {
        Err(refused(Operation::Write, self.name()))
    }

    fn sync(&self) -> Result<(), DiskError> {
        Err(refused(Operation::Sync, self.name()))
    }

    fn allocate(&self, _: u64) -> Result<(), DiskError> {
        Err(refused(Operation::Write, self.name()))
    }
}

impl DiskLock for SharedLock {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn reads_and_refuses_every_change() {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::write(folder.path().join("x"), b"hello").expect("write");
        let disk = ReadOnlyDisk::open(folder.path()).expect("disk");
        let file = disk.open("x").expect("open");
        let mut buffer = [0; 4];
        file.read_at(1, &mut buffer).expect("read");
        assert_eq!(&buffer, b"ello");
        let refusals = [
            disk.create("y").map(drop),
            disk.rename("x", "y"),
            disk.remove("x"),
            disk.sync_dir(),
            file.write_at(0, b"j"),
            file.sync(),
            file.allocate(100),
        ];
        for refusal in refusals {
            assert_eq!(refusal.expect_err("refused").kind, DiskErrorKind::ReadOnly);
        }
        assert_eq!(disk.list().expect("list"), ["x"]);
        assert_eq!(fs::read(folder.path().join("x")).expect("read"), b"hello");
    }

    #[test]
    fn is_kept_out_by_who_writes_and_keeps_out_who_would() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let writer = RealDisk::open(folder.path()).expect("disk");
        let looker = ReadOnlyDisk::open(folder.path()).expect("disk");
        drop(looker.lock("lock").expect("nobody made the file"));
        let written = writer.lock("lock").expect("lock");
        let refused = looker.lock("lock").expect_err("locked");
        assert_eq!(refused.kind, DiskErrorKind::Locked);
        drop(written);
        let looked = looker.lock("lock").expect("lock");
        drop(looker.lock("lock").expect("two may look"));
        writer.lock("lock").expect_err("somebody looks");
        drop(looked);
        writer.lock("lock").expect("lock");
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_and_is_not_made() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let missing = folder.path().join("none");
        let error = ReadOnlyDisk::open(&missing).expect_err("missing");
        assert_eq!(error.kind, DiskErrorKind::Missing);
        assert!(!missing.exists());
    }
}
