//! What the embedded store writes to: a log of records that become durable in order.

use std::fmt;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

/// A log of records. Their numbers begin above 0 and rise; between them may be those of records of others.
pub trait ChangeLog: fmt::Debug + Send + Sync {
    /// Puts a record behind those before; returns its number. Never waits: when it is durable is told by
    /// [`Self::progress`].
    ///
    /// # Errors
    /// See [`AppendError`]; then the log is as before.
    fn append(&self, record: Bytes, room: Room) -> Result<u64, AppendError>;

    /// How far the log is durable. The last value counts; numbers never go back.
    fn progress(&self) -> watch::Receiver<LogProgress>;
}

/// Which part of the disk a record may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// What is free.
    Free,
    /// Also what is kept back, so that a full disk can be emptied.
    Reserved,
}

/// Why a record was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// There is no room.
    #[error("there is no room in the log")]
    Full,
    /// The log has failed and takes nothing more.
    #[error("the log has failed")]
    Failed,
}

/// How far a log is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogProgress {
    /// All records up to this number are durable; 0: none yet.
    Durable(u64),
    /// What was not durable before may be lost; nothing becomes durable any more.
    Failed,
}

/// A log in memory: for tests, and for a process that is to forget.
#[derive(Debug)]
pub struct MemoryLog {
    inner: Mutex<Inner>,
    progress: watch::Sender<LogProgress>,
    /// Whether records are durable as soon as they are appended.
    at_once: bool,
}

#[derive(Debug, Default)]
struct Inner {
    records: Vec<Bytes>,
    full: bool,
    failed: bool,
}

impl MemoryLog {
    /// A log whose records are durable at once.
    #[must_use]
    pub fn new() -> Self {
        Self::with(true)
    }

    /// A log whose records are durable when [`Self::sync_to`] says so.
    #[must_use]
    pub fn manual() -> Self {
        Self::with(false)
    }

    fn with(at_once: bool) -> Self {
        Self {
            inner: Mutex::default(),
            progress: watch::Sender::new(LogProgress::Durable(0)),
            at_once,
        }
    }

    /// All records so far, durable or not.
    #[must_use]
    pub fn records(&self) -> Vec<Bytes> {
        self.inner.lock().records.clone()
    }

    /// Makes the records up to this number durable.
    pub fn sync_to(&self, number: u64) {
        self.progress.send_modify(|progress| {
            if let LogProgress::Durable(upto) = progress {
                *upto = number.max(*upto);
            }
        });
    }

    /// From now on there is, or is not, room for what must not take the reserve.
    pub fn set_full(&self, full: bool) {
        self.inner.lock().full = full;
    }

    /// The log fails.
    pub fn fail(&self) {
        self.inner.lock().failed = true;
        self.progress.send_replace(LogProgress::Failed);
    }
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self::new()
    }
}

impl ChangeLog for MemoryLog {
    fn append(&self, record: Bytes, room: Room) -> Result<u64, AppendError> {
        let number = {
            let mut inner = self.inner.lock();
            if inner.failed {
                return Err(AppendError::Failed);
            }
            if inner.full && room == Room::Free {
                return Err(AppendError::Full);
            }
            inner.records.push(record);
            u64::try_from(inner.records.len()).unwrap_or(u64::MAX)
        };
        if self.at_once {
            self.sync_to(number);
        }
        Ok(number)
    }

    fn progress(&self) -> watch::Receiver<LogProgress> {
        self.progress.subscribe()
    }
}
