//! A journal without threads: a task of the local runtime, with latencies drawn from a seed.
//!
//! On a current-thread runtime with paused time the same seed makes the same run. What the journal wants from the disk is done when its
//! latency has passed: writes and syncs of groups one after the other, everything else beside them in any order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::journal::execute::Executor;
use crate::journal::kernel::{Effect, Input, Kernel, Notice, failures};
use crate::journal::{Inbox, Journal, JournalError, Replica};

/// How long calls take.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// Of every call, at most.
    pub usual: Duration,
    /// One call in so many takes `stall` instead; 0: none.
    pub stall_one_in: u32,
    /// How long that is.
    pub stall: Duration,
}

/// Runs a journal; a future that ends when the journal does.
#[derive(Debug)]
pub struct SimDriver<R> {
    kernel: Kernel<R>,
    executor: Arc<Executor>,
    inbox: Arc<Inbox>,
    _lock: Box<dyn crate::disk::DiskLock>,
    opened: Option<oneshot::Sender<Result<(), JournalError>>>,
    random: StdRng,
    latency: Latency,
    start: Instant,
    /// What the disk has to do, and when it is done.
    pending: Vec<(Instant, Effect)>,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            usual: Duration::from_millis(2),
            stall_one_in: 0,
            stall: Duration::from_secs(10),
        }
    }
}

impl<R: Replica> SimDriver<R> {
    /// To be run; the receiver tells when the journal is open.
    #[must_use]
    pub fn new(
        journal: Journal<R>,
        seed: u64,
        latency: Latency,
    ) -> (Self, oneshot::Receiver<Result<(), JournalError>>) {
        let Journal {
            kernel,
            executor,
            inbox,
            lock,
            ..
        } = journal;
        let (opened, receiver) = oneshot::channel();
        let driver = Self {
            kernel,
            executor,
            inbox,
            _lock: lock,
            opened: Some(opened),
            random: StdRng::seed_from_u64(seed),
            latency,
            start: Instant::now(),
            pending: Vec::new(),
        };
        (driver, receiver)
    }

    /// Runs until the journal stops; why it did.
    pub async fn run(mut self) -> JournalError {
        let mut inputs = VecDeque::from([Input::Tick]);
        loop {
            while let Some(input) = inputs.pop_front() {
                let now = self.start.elapsed();
                for effect in self.kernel.step(input, now) {
                    if let Some(error) = self.perform(effect) {
                        return error;
                    }
                }
            }
            let disk = self.pending.iter().map(|(due, _)| *due).min();
            let tick = self.kernel.deadline().map(|at| self.start + at);
            let next = [disk, tick].into_iter().flatten().min();
            let far = Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                biased;
                () = self.inbox.added() => inputs.extend(self.inbox.take()),
                () = tokio::time::sleep_until(next.unwrap_or(far)) => {
                    inputs.extend(self.disk_done());
                    if tick.is_some_and(|tick| tick <= Instant::now()) {
                        inputs.push_back(Input::Tick);
                    }
                }
            }
        }
    }

    fn perform(&mut self, effect: Effect) -> Option<JournalError> {
        match effect {
            Effect::Notify(notices) => notices.into_iter().for_each(Notice::tell),
            Effect::RefuseEntries(refuse) => self.inbox.set_no_space(refuse),
            Effect::OutOfSpace(out_of_space) => self.inbox.set_out_of_space(out_of_space),
            Effect::Opened => {
                if let Some(opened) = self.opened.take() {
                    let _ = opened.send(Ok(()));
                }
            }
            Effect::Stopped(error) => {
                if let Some(opened) = self.opened.take() {
                    let _ = opened.send(Err(error.clone()));
                }
                let rest = self.inbox.stop(&error);
                failures(rest, &error).into_iter().for_each(Notice::tell);
                return Some(error);
            }
            effect => {
                let due = Instant::now() + self.draw();
                self.pending.push((due, effect));
            }
        }
        None
    }

    fn draw(&mut self) -> Duration {
        let Latency {
            usual,
            stall_one_in,
            stall,
        } = self.latency;
        if stall_one_in > 0 && self.random.random_range(0..stall_one_in) == 0 {
            return stall;
        }
        usual.mul_f64(self.random.random::<f64>())
    }

    /// Does what is due, in the order in which it is due.
    fn disk_done(&mut self) -> Vec<Input> {
        let now = Instant::now();
        self.pending.sort_by_key(|(due, _)| *due);
        let later = self.pending.partition_point(|(due, _)| *due <= now);
        let rest = self.pending.split_off(later);
        let due = std::mem::replace(&mut self.pending, rest);
        due.into_iter()
            .filter_map(|(_, effect)| self.executor.execute(effect))
            .collect()
    }
}
