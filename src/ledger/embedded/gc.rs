//! Which segment is worth copying forward. Pure.
//!
//! Entries die where they are, in the open ledger, too; a segment is only freed as a whole. When more space is taken than the target
//! allows, the segment with the fewest live bytes is copied: each byte copied then frees the most.

use std::collections::BTreeMap;

/// Live bytes of each segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    segments: BTreeMap<u64, u64>,
    /// Live records of all segments.
    records: u64,
}

/// Space may be so many percent of what is live ...
const TARGET_PERCENT: u64 = 140;
/// ... and so many segments more.
const SLACK_SEGMENTS: u64 = 2;

impl Usage {
    /// A record in a segment is live.
    pub fn add(&mut self, generation: u64, length: u32) {
        *self.segments.entry(generation).or_default() += u64::from(length);
        self.records += 1;
    }

    /// A record in a segment is dead.
    pub fn remove(&mut self, generation: u64, length: u32) {
        if let Some(live) = self.segments.get_mut(&generation) {
            self.records = self.records.saturating_sub(1);
            *live = live.saturating_sub(u64::from(length));
            if *live == 0 {
                self.segments.remove(&generation);
            }
        }
    }

    /// How many records are live.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
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
            .filter_map(|generation| Some((*generation, *self.segments.get(generation)?)));
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

    fn usage(live: &[(u64, u32)]) -> Usage {
        let mut usage = Usage::default();
        live.iter()
            .for_each(|(generation, length)| usage.add(*generation, *length));
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
        usage.remove(2, 10);
        assert_eq!(usage.live_segments(), [1]);
        assert_eq!(usage.records(), 1);
        assert_eq!(usage.worth_copying(&[1, 2, 3, 4, 5], 100), None);
    }
}
