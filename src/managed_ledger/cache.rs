//! The entries that were written last, in memory: what subscriptions at the tail read. Pure but for locks.
//!
//! One bound on bytes for all topics. What was put in first goes first, whichever topic it is of: each piece carries how many bytes had been
//! put in before it, so which pieces are too old is a comparison, and no list over all topics has to be kept.
// hot path

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use super::Position;
use super::log::{EntryRange, LogEntry, ReadBudget};

/// The cache of a process (`managedLedgerCacheSizeMB`). Clones are the same cache.
#[derive(Debug, Clone)]
pub struct EntryCache {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: u64,
    /// Bytes in all logs.
    bytes: AtomicU64,
    /// Bytes ever put in.
    inserted: AtomicU64,
    logs: Mutex<Vec<Weak<Mutex<Pieces>>>>,
}

/// The part of one log. What is in it goes when it is dropped.
#[derive(Debug)]
pub struct LogCache {
    shared: Arc<Shared>,
    pieces: Arc<Mutex<Pieces>>,
}

/// Entries of one log, oldest first.
#[derive(Debug, Default)]
struct Pieces {
    pieces: VecDeque<Piece>,
}

/// Entries of one ledger that follow each other.
#[derive(Debug)]
struct Piece {
    ledger_id: i64,
    first_entry: i64,
    payloads: Vec<Bytes>,
    bytes: u64,
    /// Bytes ever put in before it.
    stamp: u64,
}

impl EntryCache {
    /// A cache that holds so many bytes; 0: none.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                limit,
                bytes: AtomicU64::new(0),
                inserted: AtomicU64::new(0),
                logs: Mutex::default(),
            }),
        }
    }

    /// The part of one more log.
    #[must_use]
    pub fn log(&self) -> LogCache {
        let pieces = Arc::new(Mutex::new(Pieces::default()));
        let mut logs = self.shared.logs.lock();
        // Those that are gone are cleared out when a new one would make the list grow.
        if logs.len() == logs.capacity() {
            logs.retain(|log| log.strong_count() > 0);
        }
        logs.push(Arc::downgrade(&pieces));
        LogCache {
            shared: Arc::clone(&self.shared),
            pieces,
        }
    }

    /// Bytes in it, with what entries take beside their content.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// A moment: [`Self::evict_before`] with it lets go what was put in before.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.shared.inserted.load(Ordering::Relaxed)
    }

    /// Lets go what was put in before a moment.
    pub fn evict_before(&self, moment: u64) {
        self.shared.evict_before(moment);
    }
}

impl Shared {
    fn evict_before(&self, stamp: u64) {
        let logs: Vec<_> = self.logs.lock().iter().filter_map(Weak::upgrade).collect();
        for log in logs {
            let gone = log.lock().take_before(stamp);
            self.bytes.fetch_sub(gone, Ordering::Relaxed);
        }
    }
}

impl LogCache {
    /// Puts in entries that follow each other, the newest of the log. Small ones are copied: they would hold what was received
    /// together with them.
    pub fn insert(&self, first: Position, entries: Vec<Bytes>) {
        let bytes = entries.iter().map(weight).sum::<u64>();
        if entries.is_empty() || bytes > self.shared.limit / 4 {
            return;
        }
        let payloads = compact(entries);
        let stamp = self.shared.inserted.fetch_add(bytes, Ordering::Relaxed);
        let total = self.shared.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.pieces.lock().push(Piece {
            ledger_id: first.ledger_id,
            first_entry: first.entry_id,
            payloads,
            bytes,
            stamp,
        });
        if total > self.shared.limit {
            // A tenth at once, so that not each insertion looks at all logs.
            let kept = self.shared.limit - self.shared.limit / 10;
            self.shared
                .evict_before((stamp + bytes).saturating_sub(kept));
        }
    }

    /// Entries of the ranges in their order, as many as the budget holds; ends at the first that is not here. `false`: that is the first
    /// one, and nothing was put behind `into`.
    pub fn read(
        &self,
        ranges: &[EntryRange],
        budget: ReadBudget,
        into: &mut Vec<LogEntry>,
    ) -> bool {
        let before = into.len();
        let mut left = budget;
        let pieces = self.pieces.lock();
        for range in ranges {
            if !pieces.read(range, &mut left, into, before) {
                break;
            }
        }
        into.len() > before
    }

    /// Lets go all entries.
    pub fn clear(&self) {
        let gone = self.pieces.lock().take_before(u64::MAX);
        self.shared.bytes.fetch_sub(gone, Ordering::Relaxed);
    }
}

impl Drop for LogCache {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Pieces {
    fn push(&mut self, mut piece: Piece) {
        if let Some(last) = self.pieces.back_mut()
            && last.ledger_id == piece.ledger_id
            && last.end() == piece.first_entry
            && last.payloads.len() + piece.payloads.len() <= PIECE_ENTRIES
            && last.bytes + piece.bytes <= PIECE_BYTES
        {
            last.payloads.append(&mut piece.payloads);
            last.bytes += piece.bytes;
            return;
        }
        self.pieces.push_back(piece);
    }

    /// Whether all of the range was read.
    fn read(
        &self,
        range: &EntryRange,
        left: &mut ReadBudget,
        into: &mut Vec<LogEntry>,
        before: usize,
    ) -> bool {
        let Range { start, end } = range.entries;
        let mut next = start;
        let key = |piece: &Piece| (piece.ledger_id, piece.end());
        let from = self
            .pieces
            .partition_point(|piece| key(piece) <= (range.ledger_id, start));
        for piece in self.pieces.range(from..) {
            let skipped = usize::try_from(next - piece.first_entry);
            let (true, Ok(skipped)) = (piece.ledger_id == range.ledger_id, skipped) else {
                break;
            };
            for payload in piece.payloads.iter().skip(skipped) {
                if next >= end {
                    return true;
                }
                let first = into.len() == before;
                if !first && (left.entries == 0 || payload.len() > left.bytes) {
                    return false;
                }
                left.entries = left.entries.saturating_sub(1);
                left.bytes = left.bytes.saturating_sub(payload.len());
                into.push(LogEntry {
                    position: Position::new(range.ledger_id, next),
                    payload: payload.clone(),
                });
                next += 1;
            }
        }
        next >= end
    }

    /// Removes the pieces that were put in before; their bytes.
    fn take_before(&mut self, stamp: u64) -> u64 {
        let mut gone = 0;
        while self.pieces.front().is_some_and(|piece| piece.stamp < stamp) {
            gone += self.pieces.pop_front().map_or(0, |piece| piece.bytes);
        }
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
        gone
    }
}

impl Piece {
    /// The entry behind its last one.
    fn end(&self) -> i64 {
        self.first_entry
            .saturating_add(i64::try_from(self.payloads.len()).unwrap_or(i64::MAX))
    }
}

/// The same entries; those that are small are in pieces of memory of their own.
fn compact(mut entries: Vec<Bytes>) -> Vec<Bytes> {
    let mut rest = entries.as_mut_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let small = rest.iter().take_while(|entry| {
            bytes += entry.len();
            entry.len() < COPIED_BELOW && bytes <= CHUNK_BYTES
        });
        let count = small.count();
        let (copied, behind) = rest.split_at_mut(count.max(1));
        if count > 0 {
            let length = copied.iter().map(Bytes::len).sum();
            let mut chunk = BytesMut::with_capacity(length);
            copied
                .iter()
                .for_each(|entry| chunk.extend_from_slice(entry));
            let mut chunk = chunk.freeze();
            for entry in copied {
                *entry = chunk.split_to(entry.len());
            }
        }
        rest = behind;
    }
    entries
}

/// What an entry counts.
fn weight(entry: &Bytes) -> u64 {
    (entry.len() + size_of::<Bytes>()) as u64
}

/// Entries shorter than this are copied.
const COPIED_BELOW: usize = 16 << 10;
/// Bytes of entries that are copied together: what one that is still in use holds.
const CHUNK_BYTES: usize = 64 << 10;
/// Pieces are merged up to this.
const PIECE_ENTRIES: usize = 256;
const PIECE_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ReadBudget = ReadBudget {
        entries: usize::MAX,
        bytes: usize::MAX,
    };

    fn entries(range: Range<i64>) -> Vec<Bytes> {
        range
            .map(|number| Bytes::from(format!("entry {number:04}")))
            .collect()
    }

    fn range(ledger_id: i64, entries: Range<i64>) -> EntryRange {
        EntryRange { ledger_id, entries }
    }

    fn read(log: &LogCache, ranges: &[EntryRange], budget: ReadBudget) -> Vec<Position> {
        let mut into = Vec::new();
        let any = log.read(ranges, budget, &mut into);
        assert_eq!(any, !into.is_empty());
        for entry in &into {
            let expected = format!("entry {:04}", entry.position.entry_id);
            assert_eq!(entry.payload, expected.as_bytes());
        }
        into.into_iter().map(|entry| entry.position).collect()
    }

    #[test]
    fn gives_what_was_put_in_over_groups_and_ledgers() {
        let cache = EntryCache::new(1 << 20);
        let log = cache.log();
        for start in (0..1000).step_by(10) {
            log.insert(Position::new(3, start), entries(start..start + 10));
        }
        log.insert(Position::new(5, 0), entries(0..5));
        let all = read(&log, &[range(3, 0..1000), range(5, 0..5)], ALL);
        assert_eq!(all.len(), 1005);
        assert_eq!(all[1000], Position::new(5, 0));
        let some = read(
            &log,
            &[range(3, 7..9), range(3, 505..507), range(5, 2..3)],
            ALL,
        );
        let at = Position::new;
        assert_eq!(some, [at(3, 7), at(3, 8), at(3, 505), at(3, 506), at(5, 2)]);
        assert!(read(&log, &[range(4, 0..3)], ALL).is_empty());
        assert_eq!(read(&log, &[range(5, 3..9)], ALL), [at(5, 3), at(5, 4)]);
        assert!(read(&log, &[range(5, 5..9)], ALL).is_empty());
    }

    #[test]
    fn keeps_to_the_budget_but_gives_the_first_entry() {
        let cache = EntryCache::new(1 << 20);
        let log = cache.log();
        log.insert(Position::new(3, 0), entries(0..10));
        let budget = |entries, bytes| ReadBudget { entries, bytes };
        let count = |budget| read(&log, &[range(3, 0..10)], budget).len();
        assert_eq!(count(budget(3, 1000)), 3);
        assert_eq!(count(budget(100, 25)), 2);
        assert_eq!(count(budget(100, 1)), 1);
    }

    #[test]
    fn a_gap_ends_what_is_read() {
        let cache = EntryCache::new(1 << 20);
        let log = cache.log();
        log.insert(Position::new(3, 0), entries(0..2));
        log.insert(Position::new(3, 4), entries(4..6));
        assert_eq!(read(&log, &[range(3, 0..6)], ALL).len(), 2);
        assert!(read(&log, &[range(3, 2..6)], ALL).is_empty());
        assert_eq!(read(&log, &[range(3, 5..6)], ALL).len(), 1);
    }

    #[test]
    fn the_oldest_of_all_logs_goes_first_and_the_bound_holds() {
        let cache = EntryCache::new(10_000);
        let (one, other) = (cache.log(), cache.log());
        one.insert(Position::new(1, 0), entries(0..10));
        for start in (0..2000).step_by(10) {
            other.insert(Position::new(2, start), entries(start..start + 10));
            assert!(cache.bytes() <= 10_000);
        }
        assert!(read(&one, &[range(1, 0..10)], ALL).is_empty());
        assert_eq!(read(&other, &[range(2, 1990..2000)], ALL).len(), 10);
        assert!(read(&other, &[range(2, 0..10)], ALL).is_empty());
        drop(other);
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn what_was_put_in_before_a_moment_can_be_let_go() {
        let cache = EntryCache::new(1 << 20);
        let log = cache.log();
        log.insert(Position::new(1, 0), entries(0..300));
        let moment = cache.moment();
        log.insert(Position::new(1, 300), entries(300..600));
        cache.evict_before(moment);
        assert!(read(&log, &[range(1, 0..1)], ALL).is_empty());
        assert_eq!(read(&log, &[range(1, 300..600)], ALL).len(), 300);
    }

    #[test]
    fn a_small_entry_does_not_hold_what_it_was_received_with() {
        let chunk = Bytes::from(vec![7; 1 << 20]);
        let cache = EntryCache::new(1 << 30);
        let log = cache.log();
        let large = chunk.slice(100..100 + COPIED_BELOW);
        log.insert(Position::new(1, 0), vec![chunk.slice(0..100), large]);
        let mut into = Vec::new();
        assert!(log.read(&[range(1, 0..2)], ALL, &mut into));
        let inside = |entry: &LogEntry| chunk.as_ptr_range().contains(&entry.payload.as_ptr());
        assert_eq!(into.iter().map(inside).collect::<Vec<_>>(), [false, true]);
    }
}
