//! What the embedded store writes to: keys and values, changed in an order in which the changes become durable.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::key_values::KeyChange;

/// A log of changes of keys. Their numbers begin above 0 and rise; between them may be those of changes of others.
pub trait ChangeLog: fmt::Debug + Send + Sync {
    /// Puts changes behind those before; returns the number of the last. Never waits: when they are durable is told by
    /// [`Self::progress`]. A crash may leave a beginning of them.
    ///
    /// # Errors
    /// See [`AppendError`]; then the log is as before.
    fn append(&self, changes: Vec<KeyChange>, room: Room) -> Result<u64, AppendError>;

    /// How far the log is durable. The last value counts; numbers never go back.
    fn progress(&self) -> watch::Receiver<LogProgress>;
}

/// Which part of the disk changes may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// What is free.
    Free,
    /// Also what is kept back, so that a full disk can be emptied.
    Reserved,
}

/// Why changes were not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// There is no room.
    #[error("there is no room in the log")]
    Full,
    /// A key with its value is longer than the log takes.
    #[error("a key with its value has {len} bytes, at most {max} are taken")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Bytes taken.
        max: usize,
    },
    /// The log has failed and takes nothing more.
    #[error("the log has failed")]
    Failed,
}

/// How far a log is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogProgress {
    /// All changes up to this number are durable; 0: none yet.
    Durable(u64),
    /// What was not durable before may be lost; nothing becomes durable any more.
    Failed,
}

/// A log in memory: for tests, and for a process that is to forget.
#[derive(Debug)]
pub struct MemoryLog {
    inner: Mutex<Inner>,
    progress: watch::Sender<LogProgress>,
    /// Whether changes are durable as soon as they are appended.
    at_once: bool,
}

#[derive(Debug, Default)]
struct Inner {
    pairs: BTreeMap<Bytes, Bytes>,
    appended: u64,
    full: bool,
    failed: bool,
}

impl MemoryLog {
    /// A log whose changes are durable at once.
    #[must_use]
    pub fn new() -> Self {
        Self::with(true)
    }

    /// A log whose changes are durable when [`Self::sync_to`] says so.
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

    /// What all changes so far, durable or not, amount to.
    #[must_use]
    pub fn pairs(&self) -> BTreeMap<Bytes, Bytes> {
        self.inner.lock().pairs.clone()
    }

    /// Makes the changes up to this number durable.
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
    fn append(&self, changes: Vec<KeyChange>, room: Room) -> Result<u64, AppendError> {
        let number = {
            let mut inner = self.inner.lock();
            if inner.failed {
                return Err(AppendError::Failed);
            }
            if inner.full && room == Room::Free {
                return Err(AppendError::Full);
            }
            for change in changes {
                match change.value {
                    Some(value) => inner.pairs.insert(change.key, value),
                    None => inner.pairs.remove(&change.key),
                };
            }
            inner.appended += 1;
            inner.appended
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
