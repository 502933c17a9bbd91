//! Which segment gets an index next. Pure.
//!
//! Indexes are written one after the other, beside the journal, and nothing waits for them: one that cannot be written for lack of space is
//! tried again later, and one whose segment cannot be read stays unwritten.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::disk::{DiskError, DiskErrorKind};

/// The machine.
#[derive(Debug)]
pub(super) struct Indexing {
    /// Whether something may be wanted.
    due: bool,
    writing: Option<u64>,
    /// Segments that could not be read.
    given_up: BTreeSet<u64>,
    retry_at: Option<Duration>,
}

impl Indexing {
    pub(super) fn new() -> Self {
        Self {
            due: true,
            writing: None,
            given_up: BTreeSet::new(),
            retry_at: None,
        }
    }

    /// Something may be wanted.
    pub(super) fn look(&mut self) {
        self.due = true;
    }

    /// Whether [`Indexing::start`] may find something.
    pub(super) fn may_start(&self) -> bool {
        self.due && self.writing.is_none() && self.retry_at.is_none()
    }

    /// The segment to be indexed now: of those that are wanted, the first that is finished.
    pub(super) fn start(&mut self, wanted: &[u64], finished: &BTreeSet<u64>) -> Option<u64> {
        let mut wanted = wanted.iter().copied();
        self.writing = wanted.find(|generation| {
            finished.contains(generation) && !self.given_up.contains(generation)
        });
        self.due = self.writing.is_some();
        self.writing
    }

    /// An index was written, or not, since its segment could not be read; whether it was.
    ///
    /// # Errors
    /// The disk does not work.
    pub(super) fn written(
        &mut self,
        generation: u64,
        result: Result<bool, DiskError>,
        retry_at: Duration,
    ) -> Result<bool, DiskError> {
        self.writing = None;
        match result {
            Ok(true) => Ok(true),
            Ok(false) => {
                self.given_up.insert(generation);
                Ok(false)
            }
            Err(error) if error.kind == DiskErrorKind::NoSpace => {
                self.retry_at = Some(retry_at);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Which is being written.
    pub(super) fn writing(&self) -> Option<u64> {
        self.writing
    }

    /// Whether one is being written, or will be at once.
    pub(super) fn is_busy(&self) -> bool {
        self.writing.is_some() || self.may_start()
    }

    /// When [`Indexing::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.retry_at
    }

    /// Time passed.
    pub(super) fn tick(&mut self, now: Duration) {
        self.retry_at = self.retry_at.filter(|at| *at > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Operation;

    fn error(kind: DiskErrorKind) -> DiskError {
        DiskError {
            operation: Operation::Write,
            file: "index".to_owned(),
            kind,
            reason: String::new(),
        }
    }

    #[test]
    fn finished_segments_are_indexed_one_after_the_other() {
        let mut indexing = Indexing::new();
        let finished = BTreeSet::from([1, 2]);
        assert_eq!(indexing.start(&[1, 2, 3], &finished), Some(1));
        assert!(!indexing.may_start() && indexing.is_busy());
        assert!(indexing.written(1, Ok(true), Duration::ZERO).is_ok());
        assert_eq!(indexing.start(&[2, 3], &finished), Some(2));
        assert!(indexing.written(2, Ok(true), Duration::ZERO).is_ok());
        assert_eq!(indexing.start(&[3], &finished), None, "still written to");
        assert!(!indexing.may_start() && !indexing.is_busy());
        indexing.look();
        assert!(indexing.may_start());
    }

    #[test]
    fn a_full_disk_is_tried_again_and_a_segment_that_cannot_be_read_is_not() {
        let mut indexing = Indexing::new();
        let finished = BTreeSet::from([1, 2]);
        let later = Duration::from_secs(5);
        assert_eq!(indexing.start(&[1], &finished), Some(1));
        let full = indexing.written(1, Err(error(DiskErrorKind::NoSpace)), later);
        assert!(matches!(full, Ok(false)));
        assert!(!indexing.may_start() && !indexing.is_busy());
        indexing.tick(Duration::from_secs(4));
        assert_eq!(indexing.deadline(), Some(later));
        indexing.tick(later);
        assert_eq!(indexing.start(&[1], &finished), Some(1));
        assert!(matches!(indexing.written(1, Ok(false), later), Ok(false)));
        assert_eq!(indexing.start(&[1, 2], &finished), Some(2));
        let broken = indexing.written(2, Err(error(DiskErrorKind::Io)), later);
        assert!(broken.is_err());
    }
}
