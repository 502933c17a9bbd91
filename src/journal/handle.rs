//! How others give records to the journal: a queue that never makes them wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, watch};

use super::JournalError;
use super::format::Record;
use super::kernel::Input;

/// Records that become durable together.
#[derive(Debug)]
pub struct Submission {
    /// In order.
    pub records: Vec<Record>,
    /// What `completion` is told when they are durable.
    pub upto: u64,
    /// Who wants to know.
    pub completion: Option<Arc<dyn Completion>>,
}

/// Who waits for records to be durable. Called by the journal, which it must not block.
pub trait Completion: Send + Sync + fmt::Debug {
    /// A submission with this `upto` is durable, and so are all before it.
    fn durable(&self, upto: u64);
    /// A submission was not written; nor will be what was submitted behind it with the same completion, unless it is durable already.
    fn failed(&self, error: &JournalError);
}

/// The way into a journal. Clones are the same way.
#[derive(Debug, Clone)]
pub struct JournalHandle {
    inbox: Arc<Inbox>,
    /// The longest submission in bytes.
    submission_max: usize,
}

/// What waits for the journal.
#[derive(Debug)]
pub struct Inbox {
    waiting: Mutex<Waiting>,
    thread: Condvar,
    task: Notify,
    stopped: watch::Sender<Option<JournalError>>,
}

#[derive(Debug, Default)]
struct Waiting {
    inputs: Vec<Input>,
    submissions: Vec<Submission>,
    bytes: usize,
    stopped: Option<JournalError>,
    no_space: bool,
}

/// Bytes that may wait for the journal. Publishers are bounded by their own budget; this is the last resort.
const WAITING_MAX: usize = 1 << 30;

impl Submission {
    /// Bytes in the log.
    #[must_use]
    pub fn encoded_length(&self) -> usize {
        self.records.iter().map(Record::encoded_length).sum()
    }

    /// Whether it adds entries, which are refused first when there is no space.
    #[must_use]
    pub fn is_data(&self) -> bool {
        self.records
            .iter()
            .any(|record| matches!(record, Record::Entry { .. } | Record::Copied { .. }))
    }
}

impl JournalHandle {
    pub(crate) fn new(inbox: Arc<Inbox>, submission_max: usize) -> Self {
        Self {
            inbox,
            submission_max,
        }
    }

    /// The longest submission in bytes, as encoded.
    #[must_use]
    pub fn submission_max(&self) -> usize {
        self.submission_max
    }

    /// Queues records. Never waits; what happens to them is told to their completion.
    ///
    /// # Errors
    /// Nothing was queued: the journal has stopped, has no space for entries, or too much is waiting.
    ///
    /// # Panics
    /// When the submission is longer than [`JournalHandle::submission_max`].
    pub fn submit(&self, submission: Submission) -> Result<(), JournalError> {
        let length = submission.encoded_length();
        assert!(
            length <= self.submission_max,
            "whoever submits splits what is too long"
        );
        let mut waiting = self.inbox.waiting.lock();
        if let Some(error) = &waiting.stopped {
            return Err(error.clone());
        }
        let full = waiting.bytes.saturating_add(length) > WAITING_MAX;
        if submission.is_data() && (waiting.no_space || full) {
            return Err(JournalError::NoSpace);
        }
        waiting.bytes += length;
        waiting.submissions.push(submission);
        drop(waiting);
        self.inbox.wake();
        Ok(())
    }

    /// Tells the journal that an index file is wanted.
    pub(crate) fn want_index(&self) {
        self.inbox.post(Input::IndexWanted);
    }

    /// Asks the journal to write all that waits, take a checkpoint and stop. [`JournalHandle::stopped`] tells when it has.
    pub fn close(&self) {
        self.inbox.post(Input::Close);
    }

    /// Why the journal has stopped, once it has. [`JournalError::Closed`] is the ordinary end; after any other the process should end.
    #[must_use]
    pub fn stopped(&self) -> watch::Receiver<Option<JournalError>> {
        self.inbox.stopped.subscribe()
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            thread: Condvar::new(),
            task: Notify::new(),
            stopped: watch::Sender::new(None),
        }
    }
}

impl Inbox {
    /// Adds something that is no submission.
    pub(crate) fn post(&self, input: Input) {
        self.waiting.lock().inputs.push(input);
        self.wake();
    }

    fn wake(&self) {
        self.thread.notify_one();
        self.task.notify_one();
    }

    /// Takes all that waits, results before submissions.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn take(&self) -> Vec<Input> {
        let mut waiting = self.waiting.lock();
        take(&mut waiting)
    }

    /// Takes all that waits, results before submissions, after waiting for something until `timeout` has passed. Blocks the thread.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Vec<Input> {
        let mut waiting = self.waiting.lock();
        if waiting.inputs.is_empty() && waiting.submissions.is_empty() {
            match timeout {
                Some(timeout) => {
                    self.thread.wait_for(&mut waiting, timeout);
                }
                None => self.thread.wait(&mut waiting),
            }
        }
        take(&mut waiting)
    }

    /// Comes back when something may have been added. Cancel-safe.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) async fn added(&self) {
        self.task.notified().await;
    }

    /// Whether entries are refused.
    pub(crate) fn set_no_space(&self, no_space: bool) {
        self.waiting.lock().no_space = no_space;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.waiting.lock().stopped.is_some()
    }

    /// Nothing is taken any more; returns what was waiting.
    pub(crate) fn stop(&self, error: &JournalError) -> Vec<Submission> {
        let mut waiting = self.waiting.lock();
        waiting.stopped.get_or_insert_with(|| error.clone());
        let rest = std::mem::take(&mut waiting.submissions);
        drop(waiting);
        self.stopped.send_replace(Some(error.clone()));
        rest
    }
}

fn take(waiting: &mut Waiting) -> Vec<Input> {
    waiting.bytes = 0;
    let mut inputs = std::mem::take(&mut waiting.inputs);
    if !waiting.submissions.is_empty() {
        inputs.push(Input::Submitted(std::mem::take(&mut waiting.submissions)));
    }
    inputs
}
