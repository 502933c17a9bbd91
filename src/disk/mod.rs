//! The file system as durable storage uses it: one flat directory, positional reads and writes, explicit syncs.
//!
//! Owns every access to data files. It never retries, never hides an error and never syncs on its own: what is durable is the
//! caller's decision. [`RealDisk`] is the operating system's, [`ReadOnlyDisk`] the same without any way to change it; `testing::sim_disk` is one that fails on demand.

mod read_only;
mod real;

use std::fmt;
use std::io;
use std::sync::Arc;

pub use read_only::ReadOnlyDisk;
pub use real::RealDisk;

/// A directory with files of one level. All methods block.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Names of all files, in no order.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn list(&self) -> Result<Vec<String>, DiskError>;

    /// A file that exists, to be read and written.
    ///
    /// # Errors
    /// [`DiskErrorKind::Missing`] among others.
    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError>;

    /// An empty file that did not exist. Its name is durable after [`Disk::sync_dir`].
    ///
    /// # Errors
    /// [`DiskErrorKind::Exists`] among others.
    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError>;

    /// Gives a file another name, over a file that has it. Durable after [`Disk::sync_dir`].
    ///
    /// # Errors
    /// As the operating system has it.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Removes a file. Durable after [`Disk::sync_dir`].
    ///
    /// # Errors
    /// As the operating system has it.
    fn remove(&self, name: &str) -> Result<(), DiskError>;

    /// Makes all names durable as they are.
    ///
    /// # Errors
    /// After an error nothing is known of the names since the last success.
    fn sync_dir(&self) -> Result<(), DiskError>;

    /// Locks the directory through a file, against other processes as well, until the lock is dropped.
    ///
    /// # Errors
    /// [`DiskErrorKind::Locked`] when somebody has it.
    fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>, DiskError>;
}

/// An open file. All methods block; several threads may call them at a time.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Its length in bytes.
    ///
    /// # Errors
    /// As the operating system has it.
    fn length(&self) -> Result<u64, DiskError>;

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// [`DiskErrorKind::Short`] when the file ends before.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError>;

    /// Writes all of `bytes` at `offset`; the file grows when it has to.
    ///
    /// # Errors
    /// After an error any part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;

    /// Makes content and length durable (fdatasync).
    ///
    /// # Errors
    /// After an error nothing is known of what was written since the last success, and a later success says nothing of it either.
    fn sync(&self) -> Result<(), DiskError>;

    /// Takes the space for a length of `length` bytes, so that writes below do not fail for lack of it. Shorter files grow.
    ///
    /// # Errors
    /// [`DiskErrorKind::NoSpace`] among others.
    fn allocate(&self, length: u64) -> Result<(), DiskError>;
}

/// Holds a directory until it is dropped.
pub trait DiskLock: Send + Sync + fmt::Debug {}

/// A call to the file system that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} {file}: {reason}")]
pub struct DiskError {
    /// What was tried.
    pub operation: Operation,
    /// The file, or the directory.
    pub file: String,
    /// What a caller may decide by.
    pub kind: DiskErrorKind,
    /// The words of the operating system.
    pub reason: String,
}

/// What was tried when a [`DiskError`] happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Listing the directory.
    List,
    /// Opening a file.
    Open,
    /// Making a file.
    Create,
    /// Reading, or asking for the length.
    Read,
    /// Writing, or taking space.
    Write,
    /// Syncing a file.
    Sync,
    /// Syncing the directory.
    SyncDirectory,
    /// Renaming.
    Rename,
    /// Removing.
    Remove,
    /// Locking.
    Lock,
}

/// What a caller may decide by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskErrorKind {
    /// No space, or over quota.
    NoSpace,
    /// The file system is read-only.
    ReadOnly,
    /// Permission denied.
    Denied,
    /// There is no such file.
    Missing,
    /// There is one already.
    Exists,
    /// The file ends before what was asked.
    Short,
    /// Somebody else has the lock.
    Locked,
    /// Anything else; the hardware's errors are here.
    Io,
}

impl DiskError {
    /// From an error of the operating system.
    pub(crate) fn of_io(operation: Operation, file: impl Into<String>, error: &io::Error) -> Self {
        use io::ErrorKind as K;
        let kind = match error.kind() {
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => DiskErrorKind::NoSpace,
            K::ReadOnlyFilesystem => DiskErrorKind::ReadOnly,
            K::PermissionDenied => DiskErrorKind::Denied,
            K::NotFound => DiskErrorKind::Missing,
            K::AlreadyExists => DiskErrorKind::Exists,
            K::UnexpectedEof => DiskErrorKind::Short,
            _ => DiskErrorKind::Io,
        };
        Self {
            operation,
            file: file.into(),
            kind,
            reason: error.to_string(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "list",
            Self::Open => "open",
            Self::Create => "create",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::SyncDirectory => "sync directory",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::Lock => "lock",
        })
    }
}
