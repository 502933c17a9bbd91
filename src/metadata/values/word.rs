//! Words of a fixed set, which a later version may extend.

use serde::{Deserialize, Serialize};

/// A word as it stands in a value. Compare it with the constants beside the type it is a part of; one that is none of them
/// was written by another version and is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(transparent)]
pub struct Word(String);

impl Word {
    /// This word.
    #[must_use]
    pub fn new(word: impl Into<String>) -> Self {
        Self(word.into())
    }

    /// The word as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PartialEq<&str> for Word {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}
