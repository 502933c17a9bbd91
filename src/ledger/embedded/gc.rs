//! Which segment is worth copying forward. Pure.
//!
//! Entries die where they are, in the open ledger, too; a segment is only freed as a whole. When more space is taken than the target
//! allows, the segment with the fewest live bytes is copied: each byte copied then frees the most.

use std::collections::BTreeMap;

use super::index::Gone;

/// What is live in each segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Only segments with something live.
    segments: BTreeMap<u64, Live>,
    /// Live records of all segments.
    records: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Live {
    /// How many records: exact, since a segment without any is free.
    records: u64,
    /// Their bytes: an estimate once records have died whose length was not known.
    bytes: u64,
}

/// Space may be so many percent of what is live ...
const TARGET_PERCENT: u64 = 140;
/// ... and so many segments more.
const SLACK_SEGMENTS: u64 = 2;

impl Usage {
    /// Records in a segment are live.
    pub fn add(&mut self, live: Gone) {
        let segment = self.segments.entry(live.generation).or_default();
        segment.records += live.entries;
        segment.bytes += live.bytes;
        self.records += live.entries;
    }

    /// Records in a segment are dead; whether it has none left that is live.
    pub fn remove(&mut self, gone: Gone) -> bool {
        let Some(live) = self.segments.get_mut(&gone.generation) else {
            return false;
        };
        self.records = self.records.saturating_sub(gone.entries);
        live.records = live.records.saturating_sub(gone.entries);
        live.bytes = live.bytes.saturating_sub(gone.bytes);
        let free = live.records == 0;
        if free {
            self.segments.remove(&gone.generation);
        }
        free
    }

    /// How many records are live.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Whether a segment has something live.
    #[must_use]
    pub fn is_live(&self, generation: u64) -> bool {
        self.segments.contains_key(&generation)
    }

    /// Segments with something live.
    #[must_use]
    pub fn live_segments(&self) -> Vec<u64> {
        self.segments.keys().copied().collect()
    }

    /// The segment to copy forward, of those that may be.
    #[must_use]
    pub fn worth_copying(&self, candidates: &[u64], segment_size: u64) -> Option<u64> {
        let used = candidates
            .iter()
            .filter_map(|generation| Some((*generation, self.segments.get(generation)?.bytes)));
        let (mut space, mut live) = (0, 0);
        for (_, bytes) in used.clone() {
            space += segment_size;
            live += bytes;
        }
        if space <= live * TARGET_PERCENT / 100 + SLACK_SEGMENTS * segment_size {
            return None;
        }
        used.min_by_key(|(_, bytes)| *bytes)
            .map(|(generation, _)| generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(generation: u64, entries: u64, bytes: u64) -> Gone {
        Gone {
            generation,
            entries,
            bytes,
        }
    }

    fn usage(live: &[(u64, u64)]) -> Usage {
        let mut usage = Usage::default();
        live.iter()
            .for_each(|(generation, bytes)| usage.add(records(*generation, 2, *bytes)));
        usage
    }

    #[test]
    fn full_segments_are_left_alone() {
        let usage = usage(&[(1, 100), (2, 90), (3, 100), (4, 95)]);
        assert_eq!(usage.worth_copying(&[1, 2, 3, 4], 100), None);
    }

    #[test]
    fn the_emptiest_segment_is_copied_when_space_is_above_its_target() {
        let usage = usage(&[(1, 30), (2, 10), (3, 30), (4, 30)]);
        assert_eq!(usage.worth_copying(&[1, 2, 3, 4], 100), Some(2));
        assert_eq!(usage.worth_copying(&[1, 3, 4], 100), None);
    }

    #[test]
    fn segments_without_anything_live_need_no_copying() {
        let mut usage = usage(&[(1, 60), (2, 10)]);
        assert!(usage.remove(records(2, 2, 10)));
        assert_eq!(usage.live_segments(), [1]);
        assert_eq!(usage.records(), 2);
        assert_eq!(usage.worth_copying(&[1, 2, 3, 4, 5], 100), None);
    }

    #[test]
    fn a_segment_is_live_to_its_last_record_whatever_its_bytes_are_thought_to_be() {
        let mut usage = usage(&[(1, 60)]);
        assert!(!usage.remove(records(1, 1, 60)));
        assert!(usage.is_live(1));
        assert!(usage.remove(records(1, 1, 0)));
        assert!(!usage.is_live(1));
    }
}
