//! Reading entries: places from the index, bytes from segments, and checks that they are what was asked for.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::index::Found;
use super::index_files::IndexFiles;
use super::replica::LedgerCell;
use super::segment_index::EntryKey;
use crate::disk::{DiskError, DiskErrorKind};
use crate::journal::format::ENTRY_HEADER;
use crate::journal::recovery::segment_file;
use crate::journal::{JournalError, Location, Record, Salt, SegmentFiles};
use crate::ledger::{Entry, LedgerError};

/// Where reads run.
#[derive(Debug, Clone)]
pub enum Reads {
    /// Where they are asked for; for disks that do not block.
    Inline,
    /// On blocking threads of the runtime, so many at a time.
    Beside(Arc<Semaphore>),
}

/// Reads entries.
#[derive(Debug, Clone)]
pub(super) struct Fetcher {
    files: SegmentFiles,
    salt: Salt,
    indexes: IndexFiles,
    reads: Reads,
}

/// Reads at a time.
const READS_MAX: usize = 8;
/// Entries this near to each other in a segment are read in one go ...
const GAP_MAX: u32 = 4 << 10;
/// ... of at most so many bytes.
const READ_MAX: u32 = 1 << 20;
/// Places that are looked at together.
const PLACES: usize = 256;
/// How often an entry is looked for while gc moves it.
const ATTEMPTS: u32 = 4;

impl Reads {
    /// On blocking threads, a few at a time.
    #[must_use]
    pub fn beside() -> Self {
        Self::Beside(Arc::new(Semaphore::new(READS_MAX)))
    }
}

impl Fetcher {
    pub(super) fn new(files: SegmentFiles, salt: Salt, indexes: IndexFiles, reads: Reads) -> Self {
        Self {
            files,
            salt,
            indexes,
            reads,
        }
    }

    /// Index files that were found missing or damaged.
    pub(super) fn lost_indexes(&self) -> u64 {
        self.indexes.lost()
    }

    /// Entries of the ranges, as many as the budget holds.
    pub(super) async fn read(
        &self,
        cell: &Arc<LedgerCell>,
        ranges: &[Range<u64>],
        budget: usize,
    ) -> Result<Vec<Entry>, LedgerError> {
        match &self.reads {
            Reads::Inline => self.read_now(cell, ranges, budget),
            Reads::Beside(permits) => {
                let closed = |_| LedgerError::Journal(JournalError::Closed);
                let permit = Arc::clone(permits).acquire_owned().await.map_err(closed)?;
                let (fetcher, cell, ranges) = (self.clone(), Arc::clone(cell), ranges.to_vec());
                let read = tokio::task::spawn_blocking(move || {
                    let _permit = permit;
                    fetcher.read_now(&cell, &ranges, budget)
                });
                read.await
                    .unwrap_or(Err(LedgerError::Journal(JournalError::Closed)))
            }
        }
    }

    fn read_now(
        &self,
        cell: &LedgerCell,
        ranges: &[Range<u64>],
        budget: usize,
    ) -> Result<Vec<Entry>, LedgerError> {
        let places = self.places(cell, ranges, budget)?;
        self.fetch(cell, &places)
    }

    /// Places of the entries that the budget holds.
    fn places(
        &self,
        cell: &LedgerCell,
        ranges: &[Range<u64>],
        budget: usize,
    ) -> Result<Vec<(u64, Location)>, LedgerError> {
        let mut places = Vec::new();
        let mut left = budget;
        for range in ranges {
            let mut entry = range.start;
            while entry < range.end {
                for at in self.find(cell, entry..range.end)? {
                    let length = (at.length as usize).saturating_sub(ENTRY_HEADER);
                    if !places.is_empty() && length > left {
                        return Ok(places);
                    }
                    left = left.saturating_sub(length);
                    places.push((entry, at));
                    entry += 1;
                }
            }
        }
        Ok(places)
    }

    /// Places of the first entries of a range, at least one.
    fn find(&self, cell: &LedgerCell, range: Range<u64>) -> Result<Vec<Location>, LedgerError> {
        let (ledger, entry) = (cell.id, range.start);
        let key = EntryKey { ledger, entry };
        let within = |end: u64| usize::try_from(end - entry).unwrap_or(usize::MAX);
        let mut attempts = 0;
        loop {
            let (generation, end) = {
                let state = cell.state.lock();
                let found = state.index.find(entry);
                match found.ok_or(LedgerError::NoEntry { ledger, entry })? {
                    Found::At(_) => {
                        let count = within(range.end).min(PLACES);
                        return Ok(state.index.known(entry).take(count).collect());
                    }
                    Found::In { generation, end } => (generation, end.min(range.end)),
                }
            };
            let places = match self.indexes.places(generation, key) {
                // The segment has become free, unless the entry is still in it.
                Err(error) if error.kind == DiskErrorKind::Missing => Vec::new(),
                places => places.map_err(JournalError::from)?,
            };
            if !places.is_empty() {
                let places = places.into_iter().take(within(end));
                return Ok(places.map(|place| place.in_segment(generation)).collect());
            }
            attempts += 1;
            if attempts == ATTEMPTS || !self.has_moved(cell, entry, generation) {
                return Err(damaged(key, generation, 0));
            }
        }
    }

    fn has_moved(&self, cell: &LedgerCell, entry: u64, before: u64) -> bool {
        cell.state.lock().index.generation(entry) != Some(before)
    }

    fn fetch(
        &self,
        cell: &LedgerCell,
        places: &[(u64, Location)],
    ) -> Result<Vec<Entry>, LedgerError> {
        let mut entries = Vec::with_capacity(places.len());
        let mut rest = places;
        while let Some(((_, first), _)) = rest.split_first() {
            let count = run_length(rest);
            let (run, behind) = rest.split_at(count);
            rest = behind;
            let end = run
                .iter()
                .map(|(_, at)| at.offset.saturating_add(at.length))
                .max()
                .unwrap_or(first.offset);
            let whole = Location {
                length: end - first.offset,
                ..*first
            };
            let bytes = self.bytes(whole);
            for (entry, at) in run {
                let start = (at.offset - first.offset) as usize;
                let range = start..start + at.length as usize;
                let slice = bytes.as_ref().ok().filter(|bytes| range.end <= bytes.len());
                let slice = slice.map(|bytes| bytes.slice(range));
                let payload = slice.and_then(|slice| self.payload(cell.id, *entry, *at, &slice));
                let payload = match payload {
                    Some(payload) => payload,
                    None => self.again(cell, *entry, *at)?,
                };
                entries.push(Entry {
                    entry: *entry,
                    payload,
                });
            }
        }
        Ok(entries)
    }

    /// What was read is not the entry: it may have moved meanwhile, or the index is wrong; if not, it is damaged.
    fn again(&self, cell: &LedgerCell, entry: u64, before: Location) -> Result<Bytes, LedgerError> {
        let ledger = cell.id;
        let key = EntryKey { ledger, entry };
        let mut last = before;
        for _ in 0..ATTEMPTS {
            let found = cell.state.lock().index.find(entry);
            let at = match found.ok_or(LedgerError::NoEntry { ledger, entry })? {
                Found::In { generation, .. } if generation == last.generation => {
                    let places = match self.indexes.places_again(generation, key) {
                        Err(error) if error.kind == DiskErrorKind::Missing => Vec::new(),
                        places => places.map_err(JournalError::from)?,
                    };
                    places.first().map(|place| place.in_segment(generation))
                }
                Found::At(at) => Some(at),
                Found::In { .. } => self.find(cell, entry..entry + 1)?.first().copied(),
            };
            last = at.unwrap_or(last);
            let bytes = self.bytes(last)?;
            if let Some(payload) = self.payload(ledger, entry, last, &bytes) {
                return Ok(payload);
            }
            if !self.has_moved(cell, entry, last.generation) {
                break;
            }
        }
        Err(damaged(key, last.generation, last.offset))
    }

    /// What is at a place; fewer bytes when there is no such place (any more).
    fn bytes(&self, at: Location) -> Result<Bytes, LedgerError> {
        let read = || -> Result<Bytes, DiskError> {
            let file = self.files.open(at.generation)?;
            let mut bytes = vec![0; at.length as usize];
            file.read_at(u64::from(at.offset), &mut bytes)?;
            Ok(Bytes::from(bytes))
        };
        match read() {
            Err(error) if matches!(error.kind, DiskErrorKind::Missing | DiskErrorKind::Short) => {
                Ok(Bytes::new())
            }
            other => Ok(other.map_err(JournalError::from)?),
        }
    }

    /// The payload of a record, if it is this entry's.
    fn payload(&self, ledger: u64, entry: u64, at: Location, bytes: &Bytes) -> Option<Bytes> {
        let (record, length) =
            Record::decode(self.salt.for_generation(at.generation), bytes).ok()?;
        match record {
            Record::Entry {
                ledger: l,
                entry: e,
                payload,
            }
            | Record::Copied {
                ledger: l,
                entry: e,
                payload,
            } if (l, e) == (ledger, entry) && length == at.length => Some(payload),
            _ => None,
        }
    }
}

fn damaged(key: EntryKey, generation: u64, offset: u32) -> LedgerError {
    LedgerError::Damaged {
        ledger: key.ledger,
        entry: key.entry,
        file: segment_file(generation),
        offset: u64::from(offset),
    }
}

/// How many of the first places are read in one go.
fn run_length(places: &[(u64, Location)]) -> usize {
    let Some((_, first)) = places.first() else {
        return 0;
    };
    let near = |pair: &&[(u64, Location)]| match pair {
        [(_, one), (_, next)] => {
            let end = one.offset.saturating_add(one.length);
            next.generation == first.generation
                && next.offset >= end
                && next.offset - end <= GAP_MAX
                && next.offset.saturating_add(next.length) - first.offset <= READ_MAX
        }
        _ => false,
    };
    1 + places.windows(2).take_while(near).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(generation: u64, offset: u32, length: u32) -> (u64, Location) {
        (
            0,
            Location {
                generation,
                offset,
                length,
            },
        )
    }

    #[test]
    fn near_entries_of_one_segment_are_read_in_one_go() {
        assert_eq!(run_length(&[]), 0);
        assert_eq!(
            run_length(&[at(1, 0, 10), at(1, 10, 10), at(1, 100, 10)]),
            3
        );
        assert_eq!(run_length(&[at(1, 0, 10), at(1, 10 + GAP_MAX + 1, 10)]), 1);
        assert_eq!(run_length(&[at(1, 0, 10), at(2, 10, 10)]), 1);
        assert_eq!(
            run_length(&[at(1, 50, 10), at(1, 10, 10)]),
            1,
            "copied out of order"
        );
        assert_eq!(run_length(&[at(1, 0, READ_MAX), at(1, READ_MAX, 10)]), 1);
    }
}
