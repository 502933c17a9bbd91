//! Reading entries: places from the index, bytes from segments, and checks that they are what was asked for.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::replica::LedgerCell;
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
    reads: Reads,
}

/// Reads at a time.
const READS_MAX: usize = 8;
/// Entries this near to each other in a segment are read in one go ...
const GAP_MAX: u32 = 4 << 10;
/// ... of at most so many bytes.
const READ_MAX: u32 = 1 << 20;

impl Reads {
    /// On blocking threads, a few at a time.
    #[must_use]
    pub fn beside() -> Self {
        Self::Beside(Arc::new(Semaphore::new(READS_MAX)))
    }
}

impl Fetcher {
    pub(super) fn new(files: SegmentFiles, salt: Salt, reads: Reads) -> Self {
        Self { files, salt, reads }
    }

    /// Entries of the ranges, as many as the budget holds.
    pub(super) async fn read(
        &self,
        cell: &Arc<LedgerCell>,
        ranges: &[Range<u64>],
        budget: usize,
    ) -> Result<Vec<Entry>, LedgerError> {
        let places = places(cell, ranges, budget)?;
        match &self.reads {
            Reads::Inline => self.fetch(cell, &places),
            Reads::Beside(permits) => {
                let closed = |_| LedgerError::Journal(JournalError::Closed);
                let permit = Arc::clone(permits).acquire_owned().await.map_err(closed)?;
                let (fetcher, cell) = (self.clone(), Arc::clone(cell));
                let read = tokio::task::spawn_blocking(move || {
                    let _permit = permit;
                    fetcher.fetch(&cell, &places)
                });
                read.await
                    .unwrap_or(Err(LedgerError::Journal(JournalError::Closed)))
            }
        }
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
                .map(|(_, at)| at.offset + at.length)
                .max()
                .unwrap_or(first.offset);
            let whole = Location {
                length: end - first.offset,
                ..*first
            };
            let bytes = self.bytes(whole);
            for (entry, at) in run {
                let start = (at.offset - first.offset) as usize;
                let slice = bytes
                    .as_ref()
                    .ok()
                    .map(|bytes| bytes.slice(start..start + at.length as usize));
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

    /// What was read is not the entry: it may have moved meanwhile; if not, it is damaged.
    fn again(&self, cell: &LedgerCell, entry: u64, before: Location) -> Result<Bytes, LedgerError> {
        let ledger = cell.id;
        let now = cell.state.lock().index.place(entry);
        let at = now.ok_or(LedgerError::NoEntry { ledger, entry })?;
        let bytes = self.bytes(at)?;
        let damaged = LedgerError::Damaged {
            ledger,
            entry,
            file: segment_file(before.generation),
            offset: u64::from(before.offset),
        };
        self.payload(ledger, entry, at, &bytes).ok_or(damaged)
    }

    fn bytes(&self, at: Location) -> Result<Bytes, LedgerError> {
        let Some(file) = self.files.file(at.generation) else {
            return Ok(Bytes::new());
        };
        let mut bytes = vec![0; at.length as usize];
        file.read_at(u64::from(at.offset), &mut bytes)
            .map_err(JournalError::from)?;
        Ok(Bytes::from(bytes))
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

/// Places of the entries that the budget holds.
fn places(
    cell: &LedgerCell,
    ranges: &[Range<u64>],
    budget: usize,
) -> Result<Vec<(u64, Location)>, LedgerError> {
    let state = cell.state.lock();
    let mut places = Vec::new();
    let mut left = budget;
    for entry in ranges.iter().flat_map(Clone::clone) {
        let missing = LedgerError::NoEntry {
            ledger: cell.id,
            entry,
        };
        let at = state.index.place(entry).ok_or(missing)?;
        let length = (at.length as usize).saturating_sub(ENTRY_HEADER);
        if !places.is_empty() && length > left {
            break;
        }
        left = left.saturating_sub(length);
        places.push((entry, at));
    }
    Ok(places)
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
