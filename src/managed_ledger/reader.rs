//! Reads entries of a log: from the cache, else from ledgers. All cursors of a topic share one.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::cache::LogCache;
use super::log::{EntryRange, LogEntry, LogRead, LogView, ReadBudget, ReadError, ReadFuture};
use super::{LogExtent, Position};
use crate::ledger::{LedgerError, LedgerId, LedgerReader, LedgerStore};

/// Reads a log.
#[derive(Debug)]
pub struct LogReader {
    store: Arc<dyn LedgerStore>,
    cache: LogCache,
    view: watch::Sender<LogView>,
    /// Ledgers that were read last, the latest behind.
    open: Mutex<Vec<(i64, Arc<dyn LedgerReader>)>>,
}

impl LogReader {
    pub(super) fn new(store: Arc<dyn LedgerStore>, cache: LogCache, view: LogView) -> Self {
        Self {
            store,
            cache,
            view: watch::Sender::new(view),
            open: Mutex::default(),
        }
    }

    /// The log's views; the last one counts.
    #[must_use]
    pub fn views(&self) -> watch::Receiver<LogView> {
        self.view.subscribe()
    }

    /// The log as it is now.
    #[must_use]
    pub fn view(&self) -> LogView {
        self.view.borrow().clone()
    }

    pub(super) fn cache(&self) -> &LogCache {
        &self.cache
    }

    /// The log changed. What was found to be trimmed stays so.
    pub(super) fn publish(&self, view: LogView) {
        self.view.send_modify(|now| {
            let found = now.extent().before_first();
            *now = view;
            if let Some(found) = found {
                raise(now, found);
            }
        });
        let gone = |ledger_id: i64| self.view.borrow().extent().entries(ledger_id).is_none();
        self.open.lock().retain(|(ledger_id, _)| !gone(*ledger_id));
    }

    async fn read_ledgers(
        &self,
        ranges: &[EntryRange],
        budget: ReadBudget,
    ) -> Result<Vec<LogEntry>, ReadError> {
        let Some(first) = ranges.iter().find(|range| !range.entries.is_empty()) else {
            return Ok(Vec::new());
        };
        let first = Position::new(first.ledger_id, first.entries.start);
        if !self.view.borrow().contains(first) {
            return Err(ReadError::Trimmed(first));
        }
        match self.read_ledger(first.ledger_id, ranges, budget).await {
            Ok(entries) => Ok(entries),
            Err(LedgerError::NoLedger(_) | LedgerError::NoEntry { .. })
                if !self.view.borrow().contains(first) =>
            {
                Err(ReadError::Trimmed(first))
            }
            Err(LedgerError::NoEntry { ledger, entry }) => {
                if self.find_first(first).await? {
                    Err(ReadError::Trimmed(first))
                } else {
                    Err(LedgerError::NoEntry { ledger, entry }.into())
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Entries of the ranges of one ledger that come first.
    async fn read_ledger(
        &self,
        ledger_id: i64,
        ranges: &[EntryRange],
        budget: ReadBudget,
    ) -> Result<Vec<LogEntry>, LedgerError> {
        let mut left = i64::try_from(budget.entries.max(1)).unwrap_or(i64::MAX);
        let mut wanted = Vec::new();
        let filled = ranges.iter().filter(|range| !range.entries.is_empty());
        for range in filled.take_while(|range| range.ledger_id == ledger_id) {
            let start = range.entries.start;
            let end = range.entries.end.min(start.saturating_add(left));
            left -= end - start;
            if let (Ok(start), Ok(end)) = (u64::try_from(start), u64::try_from(end)) {
                wanted.push(start..end);
            }
            if left <= 0 {
                break;
            }
        }
        let reader = self.ledger(ledger_id).await?;
        let entries = reader.read(&wanted, budget.bytes).await?;
        let at = |entry| Position::new(ledger_id, i64::try_from(entry).unwrap_or(i64::MAX));
        let entries = entries.into_iter().map(|entry| LogEntry {
            position: at(entry.entry),
            payload: entry.payload,
        });
        Ok(entries.collect())
    }

    async fn ledger(&self, ledger_id: i64) -> Result<Arc<dyn LedgerReader>, LedgerError> {
        {
            let mut open = self.open.lock();
            if let Some(place) = open.iter().position(|(id, _)| *id == ledger_id) {
                let found = open.remove(place);
                let reader = Arc::clone(&found.1);
                open.push(found);
                return Ok(reader);
            }
        }
        let id = u64::try_from(ledger_id).map_err(|_| LedgerError::NoLedger(0))?;
        let reader: Arc<dyn LedgerReader> = self.store.open(LedgerId(id)).await?.into();
        let mut open = self.open.lock();
        if open.len() >= OPEN_LEDGERS_MAX {
            open.remove(0);
        }
        open.push((ledger_id, Arc::clone(&reader)));
        Ok(reader)
    }

    /// Entries of the first ledger may be trimmed without the view knowing, when that happened before the log was opened. Looks for the
    /// first that is there, and lets the view know; whether it found that the one asked for is gone.
    async fn find_first(&self, asked: Position) -> Result<bool, LedgerError> {
        let view = self.view();
        let Some((ledger_id, entries)) = view.extent().ledgers().next() else {
            return Ok(false);
        };
        if ledger_id != asked.ledger_id {
            return Ok(false);
        }
        let reader = self.ledger(ledger_id).await?;
        // All before `gone` are not there, all from `there` on are.
        let (mut gone, mut there) = (asked.entry_id.saturating_add(1), entries);
        while gone < there {
            let middle = gone + (there - gone) / 2;
            let entry = u64::try_from(middle).unwrap_or(0);
            match reader
                .read(std::slice::from_ref(&(entry..entry + 1)), 0)
                .await
            {
                Ok(_) => there = middle,
                Err(LedgerError::NoEntry { .. }) => gone = middle + 1,
                Err(error) => return Err(error),
            }
        }
        let before_first = Position::new(ledger_id, there - 1);
        self.view.send_if_modified(|view| raise(view, before_first));
        Ok(true)
    }
}

/// The view has nothing up to this position; whether that is new.
fn raise(view: &mut LogView, before_first: Position) -> bool {
    let known = view.extent().before_first();
    let higher = known
        .is_some_and(|known| known.ledger_id == before_first.ledger_id && known < before_first);
    if higher {
        let extent: LogExtent = view.extent().clone();
        let extent = extent.with_first_entry(before_first.entry_id.saturating_add(1));
        *view = LogView::new(extent, view.last_confirmed(), view.terminated());
    }
    higher
}

impl LogRead for LogReader {
    fn read<'a>(&'a self, ranges: &'a [EntryRange], budget: ReadBudget) -> ReadFuture<'a> {
        let mut entries = Vec::new();
        if self.read_cached(ranges, budget, &mut entries) {
            return Box::pin(std::future::ready(Ok(entries)));
        }
        Box::pin(self.read_ledgers(ranges, budget))
    }

    fn read_cached(
        &self,
        ranges: &[EntryRange],
        budget: ReadBudget,
        into: &mut Vec<LogEntry>,
    ) -> bool {
        self.cache.read(ranges, budget, into)
    }
}

/// Ledgers of a log that are kept open for reading.
const OPEN_LEDGERS_MAX: usize = 4;
