//! Cursors as values of the change log.

use std::sync::Arc;

use bytes::{BufMut, Bytes};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{EmbeddedStore, wait};
use crate::journal::format::{Change, ENTRY_HEADER};
use crate::journal::{Completion, JournalError, Record, Submission, Table};
use crate::ledger::{
    CursorName, CursorProgress, CursorState, CursorStore, CursorUpdate, CursorWriter, LedgerError,
    LedgerFuture,
};

/// One opening of a cursor.
#[derive(Debug)]
pub(super) struct CursorCell {
    state: Mutex<CellState>,
    progress: watch::Sender<CursorProgress>,
}

#[derive(Debug, Default)]
struct CellState {
    appended: u64,
    /// Opened anew or deleted.
    fenced: bool,
    failed: bool,
}

#[derive(Debug)]
struct Writer {
    store: EmbeddedStore,
    key: Bytes,
    cell: Arc<CursorCell>,
}

impl Completion for CursorCell {
    fn durable(&self, upto: u64) {
        self.progress.send_if_modified(|progress| {
            let further = progress.failed.is_none() && progress.durable < upto;
            if further {
                progress.durable = upto;
            }
            further
        });
    }

    fn failed(&self, error: &JournalError) {
        self.state.lock().failed = true;
        self.progress.send_modify(|progress| {
            progress.failed.get_or_insert_with(|| error.clone().into());
        });
    }
}

impl EmbeddedStore {
    /// Nobody who has the cursor open writes any more; whether something of theirs is still on its way.
    fn fence(&self, name: &CursorName, next: Option<&Arc<CursorCell>>) -> bool {
        let mut cursors = self.shared.cursors.lock();
        let before = match next {
            Some(cell) => cursors.insert(name.clone(), Arc::downgrade(cell)),
            None => cursors.remove(name),
        };
        drop(cursors);
        before.and_then(|cell| cell.upgrade()).is_some_and(|cell| {
            let mut state = cell.state.lock();
            state.fenced = true;
            state.appended > cell.progress.borrow().durable
        })
    }
}

impl CursorStore for EmbeddedStore {
    fn open_cursor(
        &self,
        name: &CursorName,
    ) -> LedgerFuture<'_, (CursorState, Box<dyn CursorWriter>)> {
        let name = name.clone();
        Box::pin(async move {
            let cell = Arc::new(CursorCell {
                state: Mutex::default(),
                progress: watch::Sender::new(CursorProgress::default()),
            });
            if self.fence(&name, Some(&cell)) {
                // What the writer before has queued belongs to the state.
                wait(self.submit(Vec::new())).await?;
            }
            let key = key(&name);
            let value = self
                .shared
                .changes
                .lock()
                .value(Table::Cursors, &key)
                .cloned()
                .unwrap_or_default();
            let state = CursorState {
                snapshot: value.base,
                deltas: value.deltas,
            };
            let writer: Box<dyn CursorWriter> = Box::new(Writer {
                store: self.clone(),
                key,
                cell,
            });
            Ok((state, writer))
        })
    }

    fn delete_cursor(&self, name: &CursorName) -> LedgerFuture<'_, ()> {
        let name = name.clone();
        Box::pin(async move {
            let on_its_way = self.fence(&name, None);
            let key = key(&name);
            if on_its_way
                || self
                    .shared
                    .changes
                    .lock()
                    .value(Table::Cursors, &key)
                    .is_some()
            {
                self.write(change(key, Change::Delete)).await?;
            }
            Ok(())
        })
    }
}

impl CursorWriter for Writer {
    fn append(&mut self, update: CursorUpdate) -> Result<u64, LedgerError> {
        let journal = &self.store.shared.journal;
        let update = match update {
            CursorUpdate::Snapshot(bytes) => Change::Put(bytes),
            CursorUpdate::Delta(bytes) => Change::Delta(bytes),
        };
        let record = change(self.key.clone(), update);
        let (length, limit) = (
            record.encoded_length(),
            journal.submission_max() - ENTRY_HEADER,
        );
        if length > limit {
            return Err(LedgerError::TooLarge { length, limit });
        }
        let mut state = self.cell.state.lock();
        if state.fenced {
            return Err(LedgerError::Fenced);
        }
        if state.failed {
            return Err(LedgerError::WriterFailed);
        }
        let upto = state.appended + 1;
        let completion: Option<Arc<dyn Completion>> = Some(Arc::clone(&self.cell) as _);
        journal.submit(Submission {
            records: vec![record],
            upto,
            completion,
        })?;
        state.appended = upto;
        Ok(upto)
    }

    fn progress(&self) -> watch::Receiver<CursorProgress> {
        self.cell.progress.subscribe()
    }
}

fn change(key: Bytes, change: Change) -> Record {
    Record::Change {
        table: Table::Cursors.number(),
        key,
        change,
    }
}

impl CursorName {
    /// The name in a key of the table of cursors; `None`: it is no such key.
    #[must_use]
    pub fn of_key(key: &[u8]) -> Option<Self> {
        let (length, names) = key.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (topic, cursor) = names.split_at_checked(length)?;
        Some(Self {
            topic: String::from_utf8(topic.to_vec()).ok()?,
            cursor: String::from_utf8(cursor.to_vec()).ok()?,
        })
    }
}

/// Topic and cursor in one key, so that no two pairs have the same.
fn key(name: &CursorName) -> Bytes {
    let mut key = Vec::with_capacity(4 + name.topic.len() + name.cursor.len());
    key.put_u32(u32::try_from(name.topic.len()).unwrap_or(u32::MAX));
    key.put_slice(name.topic.as_bytes());
    key.put_slice(name.cursor.as_bytes());
    Bytes::from(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_from_its_key_and_other_keys_are_none() {
        let name = CursorName {
            topic: "persistent://t/n/a".to_owned(),
            cursor: "sub".to_owned(),
        };
        assert_eq!(CursorName::of_key(&key(&name)), Some(name));
        for bad in [&b""[..], b"\0\0", b"\0\0\0\x09abc", b"\0\0\0\x01\xffabc"] {
            assert_eq!(CursorName::of_key(bad), None);
        }
    }
}
