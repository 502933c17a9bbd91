//! Runs a journal: one thread that writes and syncs, one beside it for what may take its time.
//!
//! The only place of the journal that blocks, spawns and reads a clock.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::execute::Executor;
use super::kernel::{Effect, Input, Kernel, Limits, failures};
use super::{Inbox, JournalError, Replica};

pub use super::open::Journal;
use crate::disk::{DiskError, Operation};

/// What a journal is opened with.
#[derive(Debug, Clone)]
pub struct JournalSettings {
    /// Whose data it is.
    pub cluster: String,
    /// For a new store: groups start at multiples of it, bytes.
    pub block: u32,
    /// For a new store: bytes of a segment.
    pub segment_size: u32,
    /// For a new store: random.
    pub uuid: [u8; 16],
    /// The time now.
    pub unix_seconds: u64,
    /// Bytes of a group.
    pub group_max: usize,
    /// Other limits.
    pub limits: Limits,
}

/// The threads of a journal. Dropping it does not stop them; [`ThreadDriver::join`] waits for the end that was asked for.
#[derive(Debug)]
pub struct ThreadDriver {
    journal: thread::JoinHandle<()>,
    beside: thread::JoinHandle<()>,
}

impl JournalSettings {
    /// The usual sizes.
    #[must_use]
    pub fn new(cluster: impl Into<String>, uuid: [u8; 16], unix_seconds: u64) -> Self {
        Self {
            cluster: cluster.into(),
            block: 4096,
            segment_size: 64 << 20,
            uuid,
            unix_seconds,
            group_max: 4 << 20,
            limits: Limits::default(),
        }
    }
}

impl ThreadDriver {
    /// Starts the threads and waits until what was recovered is durable.
    ///
    /// # Errors
    /// No thread could be started, or the journal stopped before it was open.
    pub fn start<R: Replica>(journal: Journal<R>) -> Result<Self, JournalError> {
        if journal.was_cut() {
            tracing::warn!(
                "the end of the log was torn and has been cut; nothing of it had been confirmed"
            );
        }
        let Journal {
            kernel,
            executor,
            inbox,
            lock,
            ..
        } = journal;
        // The lock goes when both have done their last write.
        let lock = Arc::new(lock);
        let (work, works) = mpsc::channel();
        let (open, opened) = mpsc::channel();
        let beside = {
            let (executor, inbox) = (Arc::clone(&executor), Arc::clone(&inbox));
            let lock = Arc::clone(&lock);
            spawn("journal-beside", move || {
                let _lock = lock;
                run_beside(&executor, &inbox, &works);
            })?
        };
        let journal = spawn("journal", move || {
            let _lock = lock;
            // Also when this thread panics: whoever waits must not do so for ever.
            let _stop = StopAtEnd(Arc::clone(&inbox));
            Runner {
                kernel,
                executor,
                inbox,
                work,
                open,
            }
            .run();
        })?;
        match opened.recv() {
            Ok(result) => result.map(|()| Self { journal, beside }),
            Err(mpsc::RecvError) => Err(JournalError::Closed),
        }
    }

    /// Waits until the journal has stopped. Blocks.
    pub fn join(self) {
        // A panic in them has been reported by the panic hook.
        let _ = self.journal.join();
        let _ = self.beside.join();
    }
}

struct Runner<R> {
    kernel: Kernel<R>,
    executor: Arc<Executor>,
    inbox: Arc<Inbox>,
    work: mpsc::Sender<Effect>,
    open: mpsc::Sender<Result<(), JournalError>>,
}

impl<R: Replica> Runner<R> {
    fn run(mut self) {
        let start = Instant::now();
        let mut inputs = VecDeque::from([Input::Tick]);
        loop {
            while let Some(input) = inputs.pop_front() {
                for effect in self.kernel.step(input, start.elapsed()) {
                    match self.perform(effect) {
                        Performed::Done => {}
                        Performed::Came(input) => inputs.push_back(input),
                        Performed::Stopped => return,
                    }
                }
            }
            let left = self
                .kernel
                .deadline()
                .map(|at| at.saturating_sub(start.elapsed()));
            inputs.extend(self.inbox.wait(left));
            if left.is_some() && inputs.is_empty() {
                inputs.push_back(Input::Tick);
            }
        }
    }

    fn perform(&mut self, effect: Effect) -> Performed {
        match effect {
            Effect::Write { .. } | Effect::Sync { .. } => self
                .executor
                .execute(effect)
                .map_or(Performed::Done, Performed::Came),
            Effect::Notify(notices) => {
                notices.into_iter().for_each(super::kernel::Notice::tell);
                Performed::Done
            }
            Effect::RefuseEntries(refuse) => {
                self.inbox.set_no_space(refuse);
                Performed::Done
            }
            Effect::Opened => {
                // Nobody waits for it any more when the owner is gone.
                let _ = self.open.send(Ok(()));
                Performed::Done
            }
            Effect::Stopped(error) => {
                let _ = self.open.send(Err(error.clone()));
                let rest = self.inbox.stop(&error);
                failures(rest, &error)
                    .into_iter()
                    .for_each(super::kernel::Notice::tell);
                Performed::Stopped
            }
            Effect::Prepare { .. }
            | Effect::WriteCheckpoint { .. }
            | Effect::Retire { .. }
            | Effect::ReadSegment { .. }
            | Effect::WriteIndex { .. } => {
                // The other thread lives as long as this one holds the sender.
                let _ = self.work.send(effect);
                Performed::Done
            }
        }
    }
}

struct StopAtEnd(Arc<Inbox>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        let closed = JournalError::Closed;
        if self.0.is_stopped() {
            return;
        }
        let rest = self.0.stop(&closed);
        failures(rest, &closed)
            .into_iter()
            .for_each(super::kernel::Notice::tell);
    }
}

enum Performed {
    Done,
    Came(Input),
    Stopped,
}

fn run_beside(executor: &Executor, inbox: &Inbox, works: &mpsc::Receiver<Effect>) {
    while let Ok(effect) = works.recv() {
        if let Some(input) = executor.execute(effect) {
            inbox.post(input);
        }
    }
}

fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, JournalError> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder
        .spawn(run)
        .map_err(|error: io::Error| DiskError::of_io(Operation::Open, "a thread", &error).into())
}
