//! The metrics of a data directory.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

use super::kernel::Status;
use crate::telemetry::{MetricError, MetricRegistry};

/// What a store counts. A cheap handle: clones count together.
#[derive(Debug, Clone)]
pub struct StorageMetrics {
    groups: IntCounter,
    written_bytes: IntCounter,
    sync_seconds: Histogram,
    checkpoint_seconds: Histogram,
    gc_copied_bytes: IntCounter,
    refused_appends: IntCounter,
    segments_in_use: IntGauge,
    segments_free: IntGauge,
    index_entries: IntGauge,
}

impl StorageMetrics {
    /// Registers all series.
    ///
    /// # Errors
    /// When the registry has one of the names already.
    pub fn register(registry: &MetricRegistry) -> Result<Self, MetricError> {
        Ok(Self {
            groups: registry.counter(
                "pulsegate_storage_groups_total",
                "Groups of records written to the journal.",
            )?,
            written_bytes: registry.counter(
                "pulsegate_storage_written_bytes_total",
                "Bytes of these groups, as they are on the disk.",
            )?,
            sync_seconds: registry.histogram(
                "pulsegate_storage_sync_seconds",
                "How long syncs of the journal took.",
                SYNC_SECONDS.to_vec(),
            )?,
            checkpoint_seconds: registry.histogram(
                "pulsegate_storage_checkpoint_seconds",
                "How long the writing of checkpoints took.",
                CHECKPOINT_SECONDS.to_vec(),
            )?,
            gc_copied_bytes: registry.counter(
                "pulsegate_storage_gc_copied_bytes_total",
                "Bytes of entries that were copied so that their segments could be freed.",
            )?,
            refused_appends: registry.counter(
                "pulsegate_storage_refused_appends_total",
                "Submissions of entries that were refused for lack of space.",
            )?,
            segments_in_use: registry.gauge(
                "pulsegate_storage_segments_in_use",
                "Segments that hold something.",
            )?,
            segments_free: registry.gauge(
                "pulsegate_storage_segments_free",
                "Files that wait to be segments.",
            )?,
            index_entries: registry.gauge(
                "pulsegate_storage_index_entries",
                "Entries whose places the index holds.",
            )?,
        })
    }

    /// Metrics that nobody looks at.
    ///
    /// # Panics
    /// Never: a registry of its own has none of the names.
    #[must_use]
    pub fn unseen() -> Self {
        Self::register(&MetricRegistry::new("")).expect("a registry of its own has no names")
    }

    pub(super) fn written(&self, bytes: usize) {
        self.groups.inc();
        self.written_bytes.inc_by(bytes as u64);
    }

    pub(super) fn synced(&self, took: Duration) {
        self.sync_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn checkpoint_written(&self, took: Duration) {
        self.checkpoint_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn refused(&self, appends: u64) {
        self.refused_appends.inc_by(appends);
    }

    pub(super) fn stands(&self, status: Status) {
        self.segments_in_use
            .set(gauge(status.segments_in_use as u64));
        self.segments_free.set(gauge(status.segments_free as u64));
        self.index_entries.set(gauge(status.index_entries));
        let before = self.gc_copied_bytes.get();
        self.gc_copied_bytes
            .inc_by(status.copied_bytes.saturating_sub(before));
    }
}

fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// From a device with a write cache that outlives power to a disk that is worn out.
const SYNC_SECONDS: [f64; 14] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0,
];
const CHECKPOINT_SECONDS: [f64; 9] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_series_are_there_before_anything_happens() {
        let registry = MetricRegistry::new("c");
        let metrics = StorageMetrics::register(&registry).expect("registered");
        metrics.written(4096);
        metrics.stands(Status {
            segments_in_use: 2,
            segments_free: 1,
            copied_bytes: 10,
            index_entries: 7,
        });
        metrics.stands(Status {
            copied_bytes: 15,
            ..Status::default()
        });
        let text = registry.render();
        for line in [
            "pulsegate_storage_groups_total{cluster=\"c\"} 1",
            "pulsegate_storage_written_bytes_total{cluster=\"c\"} 4096",
            "pulsegate_storage_sync_seconds_count{cluster=\"c\"} 0",
            "pulsegate_storage_checkpoint_seconds_count{cluster=\"c\"} 0",
            "pulsegate_storage_gc_copied_bytes_total{cluster=\"c\"} 15",
            "pulsegate_storage_refused_appends_total{cluster=\"c\"} 0",
            "pulsegate_storage_segments_in_use{cluster=\"c\"} 0",
            "pulsegate_storage_index_entries{cluster=\"c\"} 0",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
