//! What is known of a log: the part of Apache Pulsar's `PersistentTopicInternalStats` that is the managed ledger's. Pure.

use super::state::LogState;
use crate::managed_ledger::Position;

/// What is known of a log. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStats {
    /// Entries that became durable since it was opened (`entriesAddedCounter`).
    pub entries_added: u64,
    /// Entries in all ledgers (`numberOfEntries`).
    pub entries: i64,
    /// Bytes in all ledgers (`totalSize`).
    pub bytes: i64,
    /// Entries of the ledger that is written (`currentLedgerEntries`).
    pub current_ledger_entries: i64,
    /// Its bytes (`currentLedgerSize`).
    pub current_ledger_bytes: i64,
    /// When it was made (`lastLedgerCreatedTimestamp`).
    pub ledger_created_at: Option<i64>,
    /// When one could not be made (`lastLedgerCreationFailureTimestamp`).
    pub ledger_creation_failed_at: Option<i64>,
    /// Entries that wait to be durable (`pendingAddEntriesCount`).
    pub pending_entries: usize,
    /// Their bytes.
    pub pending_bytes: usize,
    /// The last durable entry (`lastConfirmedEntry`).
    pub last_confirmed: Position,
    /// How it stands, in Apache Pulsar's words (`state`).
    pub state: &'static str,
    /// Its ledgers, oldest first (`ledgers`).
    pub ledgers: Vec<LedgerStats>,
}

/// A ledger of a log. Of one that is written entries and bytes are 0, as Apache Pulsar has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerStats {
    /// The ledger.
    pub ledger_id: i64,
    /// Its entries.
    pub entries: i64,
    /// Their bytes.
    pub bytes: i64,
    /// Whether it was copied to other storage.
    pub offloaded: bool,
}

impl LogState {
    pub(super) fn stats(&self) -> LogStats {
        let (current_ledger_entries, current_ledger_bytes) = self.current().unwrap_or_default();
        let ledgers = self.list.ledgers.iter().map(|ledger| LedgerStats {
            ledger_id: ledger.id,
            entries: ledger.closed.map_or(0, |closed| closed.entries),
            bytes: ledger.closed.map_or(0, |closed| closed.bytes),
            offloaded: ledger.is_offloaded(),
        });
        let ledgers: Vec<LedgerStats> = ledgers.collect();
        let (pending_entries, pending_bytes) = self.pending();
        LogStats {
            entries_added: self.counters.entries_added,
            entries: ledgers.iter().map(|ledger| ledger.entries).sum::<i64>()
                + current_ledger_entries,
            bytes: self.list.bytes().saturating_add(current_ledger_bytes),
            current_ledger_entries,
            current_ledger_bytes,
            ledger_created_at: self.counters.ledger_created_at,
            ledger_creation_failed_at: self.counters.creation_failed_at,
            pending_entries,
            pending_bytes,
            last_confirmed: self.view().last_confirmed(),
            state: self.name(),
            ledgers,
        }
    }
}
