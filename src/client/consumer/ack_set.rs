//! Which messages of a batch are not acknowledged yet, as a set of bits (PIP-54). Pure.

/// The words of an ack set: bit `i` of word `i / 64` is set while message `i` is not acknowledged. Bits beyond the words are
/// not set.
#[derive(Debug, Clone)]
pub(crate) struct AckSet {
    words: Vec<u64>,
    /// How many bits are set, so that nobody has to count them for each message of a batch of millions.
    left: u32,
    /// No word before this one has a bit set.
    begin: usize,
}

impl PartialEq for AckSet {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl Eq for AckSet {}

impl AckSet {
    /// All of `size` messages, from `first` on.
    pub(crate) fn starting_at(first: u32, size: u32) -> Self {
        let words = (0..size.div_ceil(64))
            .map(|word| ones_below(size, word) & !ones_below(first, word))
            .collect();
        Self {
            words,
            left: size.saturating_sub(first),
            begin: 0,
        }
    }

    /// The messages of a batch of `size` that a broker says are left. No words: all are.
    pub(crate) fn from_wire(words: &[i64], size: u32) -> Self {
        let mut set = Self::starting_at(0, size);
        if !words.is_empty() {
            for (index, word) in set.words.iter_mut().enumerate() {
                *word &= words.get(index).map_or(0, |word| word.cast_unsigned());
            }
            set.left = count_left(words, size);
        }
        set
    }

    /// Takes a message out; says whether it was in.
    pub(crate) fn remove(&mut self, index: u32) -> bool {
        let Some(word) = self.word_mut(index) else {
            return false;
        };
        let bit = 1 << (index % 64);
        let was_in = *word & bit != 0;
        *word &= !bit;
        self.left -= u32::from(was_in);
        was_in
    }

    /// Takes all messages before `first` out.
    pub(crate) fn remove_before(&mut self, first: u32) {
        let end = usize::try_from(first.div_ceil(64)).unwrap_or(usize::MAX);
        let end = end.min(self.words.len());
        let words = self.words.get_mut(self.begin..end).unwrap_or_default();
        for (index, word) in (self.begin..).zip(words) {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let kept = *word & !ones_below(first, index);
            self.left -= word.count_ones() - kept.count_ones();
            *word = kept;
        }
        let whole = usize::try_from(first / 64).unwrap_or(usize::MAX);
        self.begin = self.begin.max(whole.min(self.words.len()));
    }

    /// Whether all are acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// The form on the wire.
    pub(crate) fn to_wire(&self) -> Vec<i64> {
        self.words.iter().map(|word| word.cast_signed()).collect()
    }

    fn word_mut(&mut self, index: u32) -> Option<&mut u64> {
        self.words.get_mut(usize::try_from(index / 64).ok()?)
    }
}

/// Whether a message is left in a broker's ack set, without building one. No words: it is.
pub(crate) fn is_left(words: &[i64], index: u32) -> bool {
    if words.is_empty() {
        return true;
    }
    let word = usize::try_from(index / 64)
        .ok()
        .and_then(|word| words.get(word));
    word.is_some_and(|word| word.cast_unsigned() >> (index % 64) & 1 == 1)
}

/// How many of the first `size` messages are left in a broker's ack set, without building one.
pub(crate) fn count_left(words: &[i64], size: u32) -> u32 {
    if words.is_empty() {
        return size;
    }
    (0..)
        .zip(words)
        .map(|(index, word)| (word.cast_unsigned() & ones_below(size, index)).count_ones())
        .sum()
}

/// The bits of word `word` for the messages below `end`.
fn ones_below(end: u32, word: u32) -> u64 {
    match end.saturating_sub(word.saturating_mul(64)) {
        0 => 0,
        bits if bits >= 64 => u64::MAX,
        bits => (1 << bits) - 1,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn left(set: &AckSet, size: u32) -> BTreeSet<u32> {
        (0..size)
            .filter(|index| is_left(&set.to_wire(), *index))
            .collect()
    }

    proptest! {
        #[test]
        fn it_is_a_set_of_indexes(
            size in 1u32..200, removed in proptest::collection::vec(0u32..220, 0..50), before in 0u32..220,
        ) {
            let mut set = AckSet::starting_at(0, size);
            let mut model: BTreeSet<u32> = (0..size).collect();
            for index in removed {
                prop_assert_eq!(set.remove(index), model.remove(&index));
            }
            let count = count_left(&set.to_wire(), size);
            prop_assert_eq!(usize::try_from(count).unwrap(), model.len());
            prop_assert_eq!(AckSet::from_wire(&set.to_wire(), size), set.clone());
            set.remove_before(before);
            model.retain(|index| *index >= before);
            prop_assert_eq!(left(&set, size), model.clone());
            prop_assert_eq!(set.is_empty(), model.is_empty());
            prop_assert_eq!(usize::try_from(set.left).unwrap(), model.len());
        }
    }

    #[test]
    fn a_broker_that_says_nothing_leaves_all_and_a_short_set_leaves_no_more_than_it_says() {
        assert_eq!(count_left(&AckSet::from_wire(&[], 70).to_wire(), 70), 70);
        assert_eq!(count_left(&[], 70), 70);
        assert_eq!(count_left(&AckSet::from_wire(&[-1], 70).to_wire(), 70), 64);
        assert_eq!(count_left(&[-1], 70), 64);
        assert_eq!(count_left(&[-1, -1, -1], 70), 70);
        assert!(!is_left(&[-1], 64));
    }
}
