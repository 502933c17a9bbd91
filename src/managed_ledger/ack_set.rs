//! Which messages of a batch are not acknowledged yet.

/// A bit set of messages that are not acknowledged, 64 a word, lowest first: the form in which clients send it and Pulsar
/// stores it. What lies beyond the words is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AckSet {
    /// The last word is not 0.
    words: Vec<u64>,
}

impl AckSet {
    /// A batch of so many messages, none of them acknowledged.
    #[must_use]
    pub fn of(messages: u32) -> Self {
        let full = usize::try_from(messages / 64).unwrap_or(usize::MAX);
        let mut words = vec![u64::MAX; full];
        let rest = messages % 64;
        if rest > 0 {
            words.push((1 << rest) - 1);
        }
        Self { words }
    }

    /// These words, as clients send them and as they are stored.
    #[must_use]
    pub fn from_words(words: impl IntoIterator<Item = i64>) -> Self {
        let mut set = Self {
            words: words.into_iter().map(i64::cast_unsigned).collect(),
        };
        set.trim();
        set
    }

    /// The words, none of them 0 at the end.
    pub fn words(&self) -> impl Iterator<Item = i64> + '_ {
        self.words.iter().map(|word| word.cast_signed())
    }

    /// Whether all messages are acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Messages that are not acknowledged.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.words
            .iter()
            .fold(0, |count, word| count.saturating_add(word.count_ones()))
    }

    /// Whether this message is not acknowledged.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        usize::try_from(index / 64)
            .ok()
            .and_then(|place| self.words.get(place))
            .is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    /// What neither this nor the other has acknowledged. True when that is less than before.
    pub fn intersect(&mut self, other: &Self) -> bool {
        let before = self.count();
        self.words.truncate(other.words.len());
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
        self.trim();
        self.count() < before
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_messages_of_a_batch() {
        for messages in [0, 1, 63, 64, 65, 200] {
            let set = AckSet::of(messages);
            assert_eq!(set.count(), messages);
            assert_eq!(set.is_empty(), messages == 0);
            assert!(!set.contains(messages));
            assert!(messages == 0 || set.contains(messages - 1));
            assert_eq!(AckSet::from_words(set.words()), set);
        }
    }

    #[test]
    fn what_either_has_acknowledged_is_acknowledged() {
        let mut set = AckSet::of(130);
        assert!(set.intersect(&AckSet::from_words([-1, 0b101])));
        assert_eq!(set.count(), 66);
        assert!(
            !set.intersect(&AckSet::of(70)),
            "nothing more is acknowledged by this"
        );
        assert!(set.intersect(&AckSet::from_words([0, 0b100, -1, 0])));
        assert_eq!(set.words().collect::<Vec<_>>(), [0, 0b100]);
        assert!(set.intersect(&AckSet::from_words([0, 0])));
        assert!(set.is_empty());
    }
}
