//! Latencies in a histogram of high dynamic range, and what of it is reported.
// hot path

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies, to three digits, of up to an hour; longer ones count as an hour.
#[derive(Debug, Clone)]
pub struct LatencyHistogram(Histogram<u64>);

impl LatencyHistogram {
    /// An empty histogram; takes about 300 KiB.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, HOUR, DIGITS);
        Self(histogram.expect("the bounds are constants that the crate takes"))
    }

    /// Adds `count` messages that took `nanos` nanoseconds each.
    #[inline]
    pub fn record(&mut self, nanos: u64, count: u64) {
        // Of no message there is no latency: the crate would take it for a maximum all the same.
        if count > 0 {
            self.0.saturating_record_n(nanos, count);
        }
    }

    /// Adds everything in `other`.
    pub fn add(&mut self, other: &Self) {
        self.0
            .add(&other.0)
            .expect("all histograms have the same bounds");
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// How many messages are in it.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// What is reported.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        let at = |quantile| milliseconds(self.0.value_at_quantile(quantile));
        LatencySummary {
            mean_ms: self.0.mean() / NANOS_PER_MILLI,
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            p99_9_ms: at(0.999),
            p99_99_ms: at(0.9999),
            max_ms: milliseconds(self.0.max()),
        }
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

/// Mean, percentiles and maximum, in milliseconds; all 0 when nothing was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct LatencySummary {
    /// The arithmetic mean.
    pub mean_ms: f64,
    /// Half of the messages took no longer.
    pub p50_ms: f64,
    /// 95 of 100 messages took no longer.
    pub p95_ms: f64,
    /// 99 of 100 messages took no longer.
    pub p99_ms: f64,
    /// 999 of 1,000 messages took no longer.
    pub p99_9_ms: f64,
    /// 9,999 of 10,000 messages took no longer.
    pub p99_99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an hour in nanoseconds is far below 2^53"
)]
fn milliseconds(nanos: u64) -> f64 {
    nanos as f64 / NANOS_PER_MILLI
}

/// In nanoseconds.
const HOUR: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;
const NANOS_PER_MILLI: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut histogram = LatencyHistogram::new();
        for milli in 1..=1000 {
            histogram.record(milli * 1_000_000, 1);
        }
        let summary = histogram.summary();
        for (value, expected) in [
            (summary.mean_ms, 500.5),
            (summary.p50_ms, 500.0),
            (summary.p95_ms, 950.0),
            (summary.p99_ms, 990.0),
            (summary.p99_9_ms, 999.0),
            (summary.p99_99_ms, 1000.0),
            (summary.max_ms, 1000.0),
        ] {
            assert!((value / expected - 1.0).abs() < 2e-3, "{summary:?}");
        }
    }

    #[test]
    fn what_is_longer_than_an_hour_counts_as_an_hour() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(u64::MAX, 2);
        assert_eq!(histogram.count(), 2);
        assert!((histogram.summary().max_ms / 3_600_000.0 - 1.0).abs() < 2e-3);
    }

    #[test]
    fn what_happened_to_no_message_is_not_a_maximum() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(1_000_000, 1);
        histogram.record(9_000_000, 0);
        assert!(histogram.summary().max_ms < 1.1);
    }

    #[test]
    fn histograms_add_up() {
        let (mut sum, mut other) = (LatencyHistogram::new(), LatencyHistogram::new());
        sum.record(1_000_000, 3);
        other.record(3_000_000, 1);
        sum.add(&other);
        assert_eq!(sum.count(), 4);
        assert!((sum.summary().mean_ms - 1.5).abs() < 0.01);
        sum.clear();
        assert_eq!(sum.summary(), LatencySummary::default());
    }
}
