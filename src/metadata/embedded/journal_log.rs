//! The change log of the journal as the log of the embedded store.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::change_log::{AppendError, ChangeLog, LogProgress, Room};
use super::key_values::KeyChange;
use crate::journal::format::Change;
use crate::journal::{
    ChangeLog as JournalChanges, Completion, JournalError, JournalHandle, Record, Submission, Table,
};

/// Changes of [`Table::Metadata`].
pub struct JournalLog {
    journal: JournalHandle,
    /// The number of the last submission. Held while it is queued, so that numbers follow the order of the log.
    appended: Mutex<u64>,
    told: Arc<Told>,
}

/// What the journal tells.
#[derive(Debug)]
struct Told {
    progress: watch::Sender<LogProgress>,
}

impl JournalLog {
    /// Goes on behind what `journal` has recovered.
    #[must_use]
    pub fn new(journal: JournalHandle) -> Self {
        let told = Told {
            progress: watch::Sender::new(LogProgress::Durable(0)),
        };
        Self {
            journal,
            appended: Mutex::new(0),
            told: Arc::new(told),
        }
    }

    /// The keys and values that a journal has of the tree.
    pub fn pairs(changes: &JournalChanges) -> impl Iterator<Item = (Bytes, Bytes)> {
        // Nobody writes deltas to this table.
        let table = changes.table(Table::Metadata);
        table.filter_map(|(key, value)| Some((key.clone(), value.base.clone()?)))
    }

    /// Waits until the journal has stopped. Nothing becomes durable any more then, which those who look at the progress are told
    /// though none of their changes was on its way. Cancel-safe.
    pub async fn until_stopped(&self) {
        let mut stopped = self.journal.stopped();
        // It goes away without a word only when its thread panicked.
        let _ = stopped.wait_for(Option::is_some).await;
        self.told.progress.send_replace(LogProgress::Failed);
    }

    fn submit(&self, records: Vec<Record>, upto: u64) -> Result<(), AppendError> {
        let completion: Option<Arc<dyn Completion>> = Some(Arc::clone(&self.told) as _);
        let submission = Submission {
            records,
            upto,
            completion,
        };
        self.journal
            .submit(submission)
            .map_err(|error| match error {
                JournalError::NoSpace => AppendError::Full,
                _ => AppendError::Failed,
            })
    }
}

impl ChangeLog for JournalLog {
    fn append(&self, changes: Vec<KeyChange>, room: Room) -> Result<u64, AppendError> {
        if room == Room::Free && self.journal.is_out_of_space() {
            return Err(AppendError::Full);
        }
        let max = self.journal.submission_max();
        let records: Vec<Record> = changes.into_iter().map(record).collect();
        let longest = records.iter().map(Record::encoded_length).max();
        if let Some(len) = longest.filter(|len| *len > max) {
            return Err(AppendError::TooLong { len, max });
        }
        let mut appended = self.appended.lock();
        for (index, piece) in pieces(records, max).into_iter().enumerate() {
            match self.submit(piece, *appended + 1) {
                Ok(()) => *appended += 1,
                // The first of them are on their way: what is known of the tree is not what the log has.
                Err(_) if index > 0 => return Err(AppendError::Failed),
                Err(error) => return Err(error),
            }
        }
        Ok(*appended)
    }

    fn progress(&self) -> watch::Receiver<LogProgress> {
        self.told.progress.subscribe()
    }
}

impl Completion for Told {
    fn durable(&self, upto: u64) {
        self.progress.send_if_modified(|progress| match progress {
            LogProgress::Durable(before) if *before < upto => {
                *before = upto;
                true
            }
            _ => false,
        });
    }

    fn failed(&self, _: &JournalError) {
        self.progress.send_replace(LogProgress::Failed);
    }
}

impl fmt::Debug for JournalLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalLog")
            .field("appended", &self.appended)
            .finish_non_exhaustive()
    }
}

fn record(change: KeyChange) -> Record {
    Record::Change {
        table: Table::Metadata.number(),
        key: change.key,
        change: change.value.map_or(Change::Delete, Change::Put),
    }
}

/// As few pieces as fit, in order.
fn pieces(records: Vec<Record>, max: usize) -> Vec<Vec<Record>> {
    let mut pieces = Vec::new();
    let mut piece = Vec::new();
    let mut length = 0;
    for record in records {
        let needed = record.encoded_length();
        if length + needed > max && !piece.is_empty() {
            pieces.push(std::mem::take(&mut piece));
            length = 0;
        }
        length += needed;
        piece.push(record);
    }
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_for_one_submission_is_cut_between_records() {
        let change = |number: u8| {
            record(KeyChange {
                key: Bytes::from(vec![number; 10]),
                value: None,
            })
        };
        let records: Vec<Record> = (0..7).map(change).collect();
        let one = records[0].encoded_length();
        let cut = pieces(records.clone(), one * 3);
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 1]);
        assert_eq!(cut.concat(), records);
    }
}
