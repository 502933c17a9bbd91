//! What a run measures, from the threads that measure it to whoever reports it.
//!
//! Owns counts and latencies of one interval. A load thread adds to its own [`Measured`] once per batch; the reporter takes it
//! away at the end of each interval.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::latency::LatencyHistogram;

/// Counts and latencies since they were last taken.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Messages acknowledged, or received.
    pub messages: u64,
    /// Their payloads, in bytes.
    pub bytes: u64,
    /// How long each took; what was never answered, or never sent though it was due, counts with the time that it waited.
    pub latencies: LatencyHistogram,
    /// Messages that were sent and had no answer when the run gave them up.
    pub unanswered: u64,
    /// Messages that were due and not sent, because there was no room for them.
    pub unsent: u64,
    pub(crate) failures: Failures,
}

impl Measured {
    /// Counts `count` messages that failed for a reason.
    pub fn fail(&mut self, reason: impl FnOnce() -> String, count: u64) {
        self.failures.add(reason, count);
    }

    /// Adds everything in `other`.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.latencies.add(&other.latencies);
        self.unanswered += other.unanswered;
        self.unsent += other.unsent;
        for (reason, count) in &other.failures.0 {
            self.failures.add(|| reason.clone(), *count);
        }
    }

    /// Messages that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.0.values().sum()
    }

    /// Messages that failed, by reason.
    #[must_use]
    pub fn failures(&self) -> &BTreeMap<String, u64> {
        &self.failures.0
    }
}

/// Failed messages by reason; at most [`REASONS_MAX`] reasons, further ones count as "other".
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures(BTreeMap<String, u64>);

impl Failures {
    fn add(&mut self, reason: impl FnOnce() -> String, count: u64) {
        let mut reason = reason();
        // Brokers give texts of any length.
        if let Some((end, _)) = reason.char_indices().nth(REASON_LEN_MAX) {
            reason.truncate(end);
            reason.push_str("...");
        }
        if self.0.len() >= REASONS_MAX && !self.0.contains_key(&reason) {
            OTHER.clone_into(&mut reason);
        }
        *self.0.entry(reason).or_default() += count;
    }
}

/// The place where one load thread leaves what it measures.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Mutex<Measured>>);

impl Meter {
    /// Adds to what was measured; once per batch, not per message.
    pub fn measure<T>(&self, add: impl FnOnce(&mut Measured) -> T) -> T {
        add(&mut self.0.lock())
    }

    /// Moves what was measured since the last call into `total`.
    pub fn take_into(&self, total: &mut Measured) {
        let mut measured = self.0.lock();
        total.add(&measured);
        measured.messages = 0;
        measured.bytes = 0;
        measured.latencies.clear();
        measured.unanswered = 0;
        measured.unsent = 0;
        measured.failures.0.clear();
    }
}

const REASONS_MAX: usize = 32;
/// In characters.
const REASON_LEN_MAX: usize = 300;
const OTHER: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_taken_once() {
        let meter = Meter::default();
        meter.measure(|measured| {
            measured.messages += 2;
            measured.bytes += 20;
            measured.latencies.record(1_000_000, 2);
            measured.fail(|| "timed out".to_owned(), 3);
            measured.unanswered += 4;
            measured.unsent += 5;
        });
        let mut total = Measured::default();
        meter.take_into(&mut total);
        meter.take_into(&mut total);
        assert_eq!((total.messages, total.bytes), (2, 20));
        assert_eq!((total.latencies.count(), total.failed()), (2, 3));
        assert_eq!((total.unanswered, total.unsent), (4, 5));
    }

    #[test]
    fn reasons_are_bounded_and_nothing_is_lost() {
        let mut measured = Measured::default();
        for number in 0..1000 {
            measured.fail(|| format!("reason {number} {}", "é".repeat(1000)), 1);
        }
        assert_eq!(measured.failed(), 1000);
        assert_eq!(measured.failures().len(), REASONS_MAX + 1);
        assert!(measured.failures().keys().all(|reason| reason.len() < 700));
    }
}
