//! What a log is told: when it goes on in a new ledger, how long it keeps what was consumed.

use crate::ledger::LedgerOptions;
use crate::managed_ledger::formats::NodeCompression;

/// The settings of a log. The defaults are those of Apache Pulsar's `broker.conf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// What ledgers are made with; the log adds whose they are.
    pub ledger: LedgerOptions,
    /// A ledger with so many entries is full (`managedLedgerMaxEntriesPerLedger`).
    pub max_entries: i64,
    /// A ledger with so many bytes is full (`managedLedgerMaxSizePerLedgerMbytes`).
    pub max_bytes: i64,
    /// No ledger is left before it is older than this, in milliseconds (`managedLedgerMinLedgerRolloverTimeMinutes`).
    pub min_rollover_millis: i64,
    /// A ledger of this age that has entries is full (`managedLedgerMaxLedgerRolloverTimeMinutes`).
    pub max_rollover_millis: i64,
    /// After a ledger could not be made, appends are refused for so long.
    pub creation_retry_millis: i64,
    /// Of the first ledger so many bytes of consumed entries stay. Ledgers are removed as a whole; this bounds what a long one holds
    /// back, and keeps what readers from the earliest entry find in short ones.
    pub keep_consumed_bytes: i64,
    /// How long what was consumed is kept.
    pub retention: Retention,
    /// How the list of ledgers is written (`managedLedgerInfoCompressionType`).
    pub compression: NodeCompression,
}

/// How long ledgers are kept that all subscriptions have consumed: until they are too old, or too large together, whichever is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Milliseconds since a ledger was closed; negative: without end.
    pub millis: i64,
    /// Bytes of all ledgers; negative: without end.
    pub bytes: i64,
}

impl Retention {
    /// Nothing is kept that was consumed.
    pub const NONE: Self = Self {
        millis: 0,
        bytes: 0,
    };

    /// Whether a ledger is to go: how long ago it was closed, and how many bytes there are without it and those before it.
    #[must_use]
    pub fn is_over(self, age_millis: i64, bytes_without: i64) -> bool {
        let too_old = self.millis == 0 || (self.millis > 0 && age_millis > self.millis);
        let too_large = self.bytes >= 0 && bytes_without >= self.bytes;
        too_old || too_large
    }
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            ledger: LedgerOptions::default(),
            max_entries: 50_000,
            max_bytes: 2048 << 20,
            min_rollover_millis: 10 * MINUTE,
            max_rollover_millis: 240 * MINUTE,
            creation_retry_millis: 10_000,
            keep_consumed_bytes: 64 << 20,
            retention: Retention::NONE,
            compression: NodeCompression::NEVER,
        }
    }
}

const MINUTE: i64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_bound_ends_retention_and_none_keeps_for_ever() {
        let retention = |millis, bytes| Retention { millis, bytes };
        assert!(Retention::NONE.is_over(0, 0));
        assert!(!retention(-1, -1).is_over(i64::MAX, i64::MAX));
        assert!(!retention(100, -1).is_over(100, i64::MAX));
        assert!(retention(100, -1).is_over(101, 0));
        assert!(!retention(-1, 10).is_over(i64::MAX, 9));
        assert!(retention(-1, 10).is_over(0, 10));
        assert!(retention(100, 10).is_over(101, 0) && retention(100, 10).is_over(0, 10));
    }
}
