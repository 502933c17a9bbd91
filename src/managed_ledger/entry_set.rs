//! Entries of one ledger as a set, for what is acknowledged beyond the mark-delete position.
//!
//! A bitmap in chunks of [`CHUNK_ENTRIES`]; full chunks take no bits. So every second of a million entries takes 130 KB, and a
//! million in a row 10 KB; how many ranges they make does not matter.

use std::collections::BTreeMap;

/// A set of entry ids, none of them negative.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct EntrySet {
    /// By entry id divided by [`CHUNK_ENTRIES`]. No chunk is empty, and none that has all its bits is `Some`.
    chunks: BTreeMap<i64, Chunk>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Chunk {
    Full,
    Bits(Box<[u64; CHUNK_WORDS]>),
}

impl EntrySet {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// How many there are.
    pub(super) fn count(&self) -> i64 {
        self.chunks.values().map(Chunk::count).sum()
    }

    pub(super) fn contains(&self, entry: i64) -> bool {
        let (chunk, word, bit) = split(entry);
        match self.chunks.get(&chunk) {
            None => false,
            Some(Chunk::Full) => true,
            Some(Chunk::Bits(words)) => words.get(word).is_some_and(|word| word & bit != 0),
        }
    }

    /// Adds an entry; false when it is there already.
    pub(super) fn insert(&mut self, entry: i64) -> bool {
        let (index, word, bit) = split(entry);
        let chunk = self
            .chunks
            .entry(index)
            .or_insert_with(|| Chunk::Bits(Box::new([0; CHUNK_WORDS])));
        let Chunk::Bits(words) = chunk else {
            return false;
        };
        let Some(word) = words.get_mut(word) else {
            return false;
        };
        let added = *word & bit == 0;
        *word |= bit;
        if words.iter().all(|word| *word == u64::MAX) {
            *chunk = Chunk::Full;
        }
        added
    }

    /// Adds all entries from the first to the last one. Costs as much as there are entries in the chunks at both ends, and
    /// one step for each chunk between them.
    pub(super) fn insert_range(&mut self, first: i64, last: i64) {
        let mut entry = first.max(0);
        while entry <= last {
            let (index, ..) = split(entry);
            let start = index * CHUNK_ENTRIES;
            let end = start + CHUNK_ENTRIES - 1;
            if entry == start && last >= end {
                self.chunks.insert(index, Chunk::Full);
                entry = end + 1;
            } else {
                self.insert(entry);
                entry += 1;
            }
        }
    }

    /// Removes this entry and all before it.
    pub(super) fn remove_through(&mut self, entry: i64) {
        let (index, word, bit) = split(entry.saturating_add(1));
        self.chunks = self.chunks.split_off(&index);
        if entry < 0 {
            return;
        }
        let Some(chunk) = self.chunks.get_mut(&index) else {
            return;
        };
        let mut words = chunk.words();
        for (place, value) in words.iter_mut().enumerate() {
            if place < word {
                *value = 0;
            } else if place == word {
                // The bits from this one on.
                *value &= !(bit - 1);
            }
        }
        if words.iter().all(|word| *word == 0) {
            self.chunks.remove(&index);
        } else if words.iter().any(|word| *word != u64::MAX) {
            *chunk = Chunk::Bits(Box::new(words));
        }
    }

    /// Removes this entry and all behind it.
    pub(super) fn remove_from(&mut self, entry: i64) {
        let (index, word, bit) = split(entry);
        self.chunks.split_off(&(index + 1));
        let Some(chunk) = self.chunks.get_mut(&index) else {
            return;
        };
        let mut words = chunk.words();
        for (place, value) in words.iter_mut().enumerate() {
            if place > word {
                *value = 0;
            } else if place == word {
                // The bits before this one.
                *value &= bit - 1;
            }
        }
        if words.iter().all(|word| *word == 0) {
            self.chunks.remove(&index);
        } else {
            // Not full: the entry's own bit is gone.
            *chunk = Chunk::Bits(Box::new(words));
        }
    }

    /// The first entry at or behind this one that is not in the set.
    pub(super) fn first_missing(&self, from: i64) -> i64 {
        let mut entry = from.max(0);
        loop {
            let (index, word, bit) = split(entry);
            let words = match self.chunks.get(&index) {
                None => return entry,
                Some(Chunk::Full) => {
                    entry = (index + 1) * CHUNK_ENTRIES;
                    continue;
                }
                Some(Chunk::Bits(words)) => words,
            };
            // All bits before count as there.
            let here = words.get(word).copied().unwrap_or(u64::MAX) | (bit - 1);
            if here != u64::MAX {
                return entry - entry % WORD_ENTRIES + i64::from(here.trailing_ones());
            }
            entry = entry - entry % WORD_ENTRIES + WORD_ENTRIES;
        }
    }

    /// The first entry at or behind this one that is in the set.
    pub(super) fn first_present(&self, from: i64) -> Option<i64> {
        let from = from.max(0);
        let (first, ..) = split(from);
        for (index, chunk) in self.chunks.range(first..) {
            let start = (index * CHUNK_ENTRIES).max(from);
            let Chunk::Bits(words) = chunk else {
                return Some(start);
            };
            let (_, word, bit) = split(start);
            let masked = words.iter().enumerate().skip(word);
            for (place, value) in masked {
                let value = if place == word {
                    value & !(bit - 1)
                } else {
                    *value
                };
                if value != 0 {
                    let place = i64::try_from(place).unwrap_or(0);
                    let within = place * WORD_ENTRIES + i64::from(value.trailing_zeros());
                    return Some(index * CHUNK_ENTRIES + within);
                }
            }
        }
        None
    }

    /// The entries as ranges, both ends in them, in order and apart from each other.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let first = self.first_present(from)?;
            from = self.first_missing(first);
            Some((first, from - 1))
        })
    }

    /// The entries as a bit set, lowest first, no word 0 at the end.
    pub(super) fn to_words(&self) -> Vec<i64> {
        let mut words = Vec::new();
        for (index, chunk) in &self.chunks {
            let before = usize::try_from(*index).unwrap_or(0) * CHUNK_WORDS;
            words.resize(before, 0);
            words.extend(chunk.words().map(u64::cast_signed));
        }
        while words.last() == Some(&0) {
            words.pop();
        }
        words
    }

    /// The entries of a bit set that are below `end`.
    pub(super) fn from_words(words: &[i64], end: i64) -> Self {
        let mut set = Self::default();
        for (place, word) in (0_i64..).zip(words) {
            let mut bits = word.cast_unsigned();
            while bits != 0 {
                let entry = place * WORD_ENTRIES + i64::from(bits.trailing_zeros());
                if entry >= end {
                    return set;
                }
                set.insert(entry);
                bits &= bits - 1;
            }
        }
        set
    }
}

impl Chunk {
    fn count(&self) -> i64 {
        match self {
            Self::Full => CHUNK_ENTRIES,
            Self::Bits(words) => words.iter().map(|word| i64::from(word.count_ones())).sum(),
        }
    }

    fn words(&self) -> [u64; CHUNK_WORDS] {
        match self {
            Self::Full => [u64::MAX; CHUNK_WORDS],
            Self::Bits(words) => **words,
        }
    }
}

/// The chunk of an entry, the word in it, and the bit in that. A negative entry has those of 0.
fn split(entry: i64) -> (i64, usize, u64) {
    let entry = entry.max(0);
    let within = entry % CHUNK_ENTRIES;
    let word = usize::try_from(within / WORD_ENTRIES).unwrap_or(0);
    (entry / CHUNK_ENTRIES, word, 1 << (within % WORD_ENTRIES))
}

const WORD_ENTRIES: i64 = 64;
const CHUNK_WORDS: usize = 64;
const CHUNK_ENTRIES: i64 = 4096;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Change {
        Insert(i64),
        Range(i64, i64),
        Through(i64),
        From(i64),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        // Around the limits of words and chunks.
        let entry = || prop_oneof![0..200_i64, 4030..4170_i64, 0..9000_i64];
        let change = prop_oneof![
            4 => entry().prop_map(Change::Insert),
            2 => (entry(), 0..6000_i64).prop_map(|(first, len)| Change::Range(first, first + len)),
            1 => prop_oneof![Just(-1), entry()].prop_map(Change::Through),
            1 => entry().prop_map(Change::From),
        ];
        prop::collection::vec(change, 0..30)
    }

    proptest! {
        #[test]
        fn is_a_set(changes in changes(), from in 0..9000_i64) {
            let (mut set, mut model) = (EntrySet::default(), BTreeSet::new());
            for change in changes {
                match change {
                    Change::Insert(entry) => prop_assert_eq!(set.insert(entry), model.insert(entry)),
                    Change::Range(first, last) => {
                        set.insert_range(first, last);
                        model.extend(first..=last);
                    }
                    Change::Through(entry) => {
                        set.remove_through(entry);
                        model = model.split_off(&(entry + 1));
                    }
                    Change::From(entry) => {
                        set.remove_from(entry);
                        model.split_off(&entry);
                    }
                }
                prop_assert_eq!(set.count(), i64::try_from(model.len()).expect("few"));
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert_eq!(set.contains(from), model.contains(&from));
                prop_assert_eq!(set.first_present(from), model.range(from..).next().copied());
                prop_assert_eq!(Some(set.first_missing(from)), (from..).find(|entry| !model.contains(entry)));
            }
            let from_ranges: BTreeSet<i64> = set.ranges().flat_map(|(first, last)| first..=last).collect();
            prop_assert_eq!(&from_ranges, &model);
            prop_assert_eq!(EntrySet::from_words(&set.to_words(), i64::MAX), set.clone());
            let mut again = EntrySet::default();
            set.ranges().for_each(|(first, last)| again.insert_range(first, last));
            prop_assert_eq!(&again, &set, "one form for one set");
            let below = EntrySet::from_words(&set.to_words(), from);
            prop_assert_eq!(below.count(), i64::try_from(model.range(..from).count()).expect("few"));
        }
    }

    #[test]
    fn a_million_in_a_row_take_little() {
        let mut set = EntrySet::default();
        set.insert_range(0, 4096 * 250 - 1);
        assert!(set.chunks.values().all(|chunk| *chunk == Chunk::Full));
        assert_eq!(set.ranges().collect::<Vec<_>>(), [(0, 4096 * 250 - 1)]);
    }
}
