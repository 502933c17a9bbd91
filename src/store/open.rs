//! From a directory to running stores.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio_util::task::TaskTracker;

use super::{Recovered, Store, StoreError, recover, run_metadata};
use crate::disk::{Disk, RealDisk};
use crate::journal::kernel::Limits;
use crate::journal::superblock::{SEGMENT_MAX, SEGMENT_MIN};
use crate::journal::{Durability, JournalSettings, StorageMetrics, ThreadDriver};
use crate::ledger::embedded::Reads;
use crate::metadata::SystemClock;

/// What a data directory is opened with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// Whose data it is. A directory of another cluster is refused.
    pub cluster: String,
    /// Bytes of a segment, of a new directory only: a multiple of 4 KiB from 16 KiB to 1 GiB. Half of it is the largest entry.
    pub segment_size: u32,
    /// Bytes that the directory may take, at least [`SEGMENTS_LEAST`] segments; `None`: what the file system has. What comes beyond
    /// is refused as on a full disk.
    pub space: Option<u64>,
    /// When appends are confirmed.
    pub durability: Durability,
}

/// With fewer segments there is no room for any entry beside those that are kept ready and in reserve.
pub const SEGMENTS_LEAST: u64 = 4;
const BLOCK: u32 = 4096;

impl StoreOptions {
    /// The usual ones: segments of 64 MiB, all the space there is, nothing confirmed before it is synced.
    #[must_use]
    pub fn new(cluster: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            segment_size: 64 << 20,
            space: None,
            durability: Durability::Synced,
        }
    }

    fn settings(&self) -> JournalSettings {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = now.map_or(0, |now| now.as_secs());
        JournalSettings {
            block: BLOCK,
            segment_size: self.segment_size,
            space: self.space,
            limits: Limits {
                durability: self.durability,
                ..Limits::default()
            },
            ..JournalSettings::new(self.cluster.clone(), rand::random(), seconds)
        }
    }

    fn check(&self) -> Result<(), StoreError> {
        let size = self.segment_size;
        let fits = (SEGMENT_MIN..=SEGMENT_MAX).contains(&size) && size.is_multiple_of(BLOCK);
        if !fits {
            return Err(StoreError::Options(format!(
                "a segment size of {size} bytes is not possible: a multiple of {BLOCK} from {SEGMENT_MIN} to {SEGMENT_MAX} is"
            )));
        }
        let least = SEGMENTS_LEAST * u64::from(size);
        match self.space {
            Some(space) if space < least => Err(StoreError::Options(format!(
                "space of {space} bytes is too little: {SEGMENTS_LEAST} segments have {least}"
            ))),
            _ => Ok(()),
        }
    }
}

impl Store {
    /// Opens a data directory, which is made if it is not there, and starts its threads and its task. Blocks while it reads; to be called on a
    /// thread that may, within the runtime that the stores are used on.
    ///
    /// # Errors
    /// As `docs/storage-format.md`, "What is refused", has it; the directory and the file are named.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open(
        directory: &Path,
        options: &StoreOptions,
        metrics: StorageMetrics,
    ) -> Result<Self, StoreError> {
        options.check()?;
        let disk = Arc::new(RealDisk::open(directory)?);
        Self::open_on(disk, &directory.display().to_string(), options, metrics)
    }

    /// The same on any disk, which has this name in errors.
    ///
    /// # Errors
    /// As [`Store::open`].
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        name: &str,
        options: &StoreOptions,
        metrics: StorageMetrics,
    ) -> Result<Self, StoreError> {
        options.check()?;
        if options.durability == Durability::Relaxed {
            tracing::warn!(
                directory = name,
                "DURABILITY IS RELAXED by a setting: messages are acknowledged before they are on the disk, and a power failure \
                 loses those of about the last second"
            );
        }
        let failed = |error| StoreError::of(name, error);
        let clock = Arc::new(SystemClock::new());
        let Recovered {
            ledgers,
            metadata,
            log,
            journal,
        } = recover(disk, &options.settings(), Reads::beside(), clock).map_err(failed)?;
        let threads =
            ThreadDriver::start(journal, metrics).map_err(|error| failed(error.into()))?;
        let metadata = Arc::new(metadata);
        let tasks = TaskTracker::new();
        let running = Arc::clone(&metadata);
        tasks.spawn(async move { run_metadata(&running, &log).await });
        Ok(Self {
            ledgers,
            metadata,
            threads: Some(threads),
            tasks,
        })
    }
}
