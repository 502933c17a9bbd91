//! What a log does next: inputs to effects. Pure.
//!
//! Entries wait in one queue, in the order in which they were appended, until they are durable. The front part of it is with the writer
//! of the present ledger, the rest waits for the next ledger. When a writer fails, its ledger is recovered: what that agrees on is
//! confirmed, what is behind goes to the next ledger again, in order. So nothing is in two ledgers, and nothing overtakes.
//!
//! A new ledger is made first and listed then; nothing is appended before it is listed, with the version that the list was read with. Who
//! finds another version there has lost the log to somebody else ([`LogEnd::Fenced`]). A ledger is taken off the list first and deleted
//! then. What a crash leaves between is a ledger of this log that is not listed; opening deletes those.

use std::collections::VecDeque;

use bytes::Bytes;

use super::event::{AppendError, Effect, Effects, Input, LogEnd, LogEvent, LogFailure};
use super::list::{Change, Closed, LedgerList};
use super::settings::LogSettings;
use super::view::LogView;
use crate::ledger::{LedgerError, LedgerId, Sealed};
use crate::managed_ledger::{LogExtent, Position};
use crate::metadata::{MetadataError, NodePath, Version};

/// The state of a log.
#[derive(Debug)]
pub(super) struct LogState {
    pub(super) settings: LogSettings,
    pub(super) list: LedgerList,
    pub(super) version: Option<Version>,
    pub(super) phase: Phase,
    pub(super) goal: Goal,
    /// Not confirmed, in the order of appends.
    pending: VecDeque<Bytes>,
    /// The number of the first of them.
    first_pending: u64,
    /// How many of them the present writer has. `written <= pending.len()`.
    written: usize,
    pending_bytes: usize,
    /// What is listed and confirmed; the last ledger may be the one that is written.
    pub(super) extent: LogExtent,
    pub(super) last_confirmed: Position,
    /// Entries of the first ledger below this one are trimmed.
    pub(super) first_entry: i64,
    /// Changes of the list that wait for their turn.
    pub(super) changes: Vec<Change>,
    pub(super) writing_list: Option<WritingList>,
    /// Ledgers that are off the list and still there.
    pub(super) undeleted: Vec<i64>,
    pub(super) deleting: bool,
    pub(super) retry_at: Option<i64>,
    pub(super) index: Option<u64>,
    /// What is known of ends is not listed yet.
    pub(super) ends_unlisted: bool,
    pub(super) counters: Counters,
}

/// What is counted for statistics.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counters {
    pub(super) entries_added: u64,
    pub(super) ledger_created_at: Option<i64>,
    pub(super) creation_failed_at: Option<i64>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// No ledger is being written.
    Idle,
    /// From one ledger to the next.
    Rolling(Rolling),
    /// A ledger is being written.
    Open(OpenLedger),
    Ended(LogEnd),
}

#[derive(Debug)]
pub(super) struct Rolling {
    /// The ledger that is being ended.
    pub(super) closing: Option<Closing>,
    pub(super) next: Next,
}

#[derive(Debug)]
pub(super) struct Closing {
    pub(super) ledger: OpenLedger,
    /// It could not be recovered; that is tried again.
    pub(super) stuck: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// None is wanted.
    No,
    Creating,
    Created(i64),
    Listing(i64),
}

#[derive(Debug)]
pub(super) struct OpenLedger {
    pub(super) id: i64,
    pub(super) created_at: i64,
    /// Entries and bytes that its writer has taken.
    pub(super) entries: i64,
    pub(super) bytes: i64,
    /// Entries that are confirmed. `confirmed <= entries`.
    pub(super) confirmed: i64,
}

#[derive(Debug)]
pub(super) struct WritingList {
    pub(super) changes: Vec<Change>,
    pub(super) value: Bytes,
    /// Whether it was written is not known, nor whether asking will help.
    pub(super) stuck: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    Write,
    Terminate,
    Close,
}

/// The property with the index of the last entry, as Apache Pulsar's `AppendIndexMetadataInterceptor` keeps it.
pub(super) const INDEX_PROPERTY: &str = "index";

impl LogState {
    /// A log as it was read. All its ledgers are closed.
    pub(super) fn new(settings: LogSettings, list: LedgerList, version: Option<Version>) -> Self {
        let end = list.terminated().map(LogEnd::Terminated);
        let last_confirmed = list.last_entry().unwrap_or(NO_ENTRY);
        Self {
            settings,
            version,
            phase: end.map_or(Phase::Idle, Phase::Ended),
            goal: Goal::Write,
            pending: VecDeque::new(),
            first_pending: 0,
            written: 0,
            pending_bytes: 0,
            extent: list.extent(),
            last_confirmed,
            first_entry: 0,
            changes: Vec::new(),
            writing_list: None,
            undeleted: Vec::new(),
            deleting: false,
            retry_at: None,
            index: None,
            ends_unlisted: false,
            counters: Counters::default(),
            list,
        }
    }

    /// A log that never had a ledger gets one, so that there are positions.
    pub(super) fn start(&mut self, out: &mut Effects) {
        if self.list.ledgers.is_empty() && matches!(self.phase, Phase::Idle) {
            self.roll(true, out);
        }
    }

    pub(super) fn view(&self) -> LogView {
        let extent = self.extent.clone().with_first_entry(self.first_entry);
        LogView::new(extent, self.last_confirmed, self.list.terminated())
    }

    pub(super) fn version(&self) -> Option<Version> {
        self.version
    }

    pub(super) fn end(&self) -> Option<&LogEnd> {
        match &self.phase {
            Phase::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Whether there is a ledger that is written.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open(_))
    }

    pub(super) fn pending(&self) -> (usize, usize) {
        (self.pending.len(), self.pending_bytes)
    }

    /// Entries and bytes of the ledger that is written.
    pub(super) fn current(&self) -> Option<(i64, i64)> {
        let ledger = self.present()?;
        Some((ledger.entries, ledger.bytes))
    }

    /// Apache Pulsar's word for how it stands (`ManagedLedgerImpl.State`).
    pub(super) fn name(&self) -> &'static str {
        match &self.phase {
            Phase::Idle => "ClosedLedger",
            Phase::Rolling(Rolling {
                closing: Some(_), ..
            }) => "ClosingLedger",
            Phase::Rolling(_) => "CreatingLedger",
            Phase::Open(_) => "LedgerOpened",
            Phase::Ended(LogEnd::Terminated(_)) => "Terminated",
            Phase::Ended(LogEnd::Fenced) => "Fenced",
            Phase::Ended(LogEnd::Closed) => "Closed",
            Phase::Ended(LogEnd::Failed(_)) => "WriteFailed",
        }
    }

    /// The index of the last entry that was appended; written with the list when that is written.
    pub(super) fn set_index(&mut self, index: u64) {
        self.index = Some(index);
    }

    /// Puts entries behind those that wait; returns the number of the first. [`Self::to_write`] says what to do with them.
    pub(super) fn append(&mut self, entries: &[Bytes], now: i64) -> Result<u64, AppendError> {
        if let Phase::Ended(end) = &self.phase {
            return Err(end.clone().into());
        }
        match self.goal {
            Goal::Write => {}
            // It will be; where exactly is not known yet.
            Goal::Terminate => return Err(LogEnd::Terminated(self.last_confirmed).into()),
            Goal::Close => return Err(LogEnd::Closed.into()),
        }
        if matches!(self.phase, Phase::Idle) && self.retry_at.is_some_and(|at| now < at) {
            return Err(AppendError::TryLater);
        }
        let first = self.first_pending + self.pending.len() as u64;
        self.pending.extend(entries.iter().cloned());
        self.pending_bytes += entries.iter().map(Bytes::len).sum::<usize>();
        Ok(first)
    }

    /// How many of the waiting entries the writer is to get now; [`Self::waiting`] gives them, [`Self::written`] or
    /// [`Self::not_written`] must follow.
    pub(super) fn to_write(&self, now: i64) -> usize {
        let waiting = self.pending.len() - self.written;
        let Phase::Open(ledger) = &self.phase else {
            return 0;
        };
        if waiting == 0 || !self.is_old_enough(ledger, now) {
            return waiting;
        }
        let (mut entries, mut bytes) = (ledger.entries, ledger.bytes);
        let mut count = 0;
        for entry in self.pending.range(self.written..) {
            if entries >= self.settings.max_entries || bytes >= self.settings.max_bytes {
                break;
            }
            entries += 1;
            bytes = bytes.saturating_add(length(entry));
            count += 1;
        }
        count
    }

    /// The first of the waiting entries.
    pub(super) fn waiting(&self, count: usize) -> impl Iterator<Item = &Bytes> {
        self.pending.iter().skip(self.written).take(count)
    }

    /// The writer took so many.
    pub(super) fn written(&mut self, count: usize) {
        let range = self.written..(self.written + count).min(self.pending.len());
        if let Phase::Open(ledger) = &mut self.phase {
            for entry in self.pending.range(range.clone()) {
                ledger.entries += 1;
                ledger.bytes = ledger.bytes.saturating_add(length(entry));
            }
            self.written = range.end;
        }
    }

    /// The writer took nothing. What a call has just appended, from this number on, is taken back and the error is returned; older entries
    /// that waited are refused. With neither, they go on waiting: the writer has failed, and its ledger is recovered.
    pub(super) fn not_written(
        &mut self,
        error: LedgerError,
        call: Option<u64>,
        out: &mut Effects,
    ) -> Option<AppendError> {
        let error: AppendError = match error {
            LedgerError::WriterFailed => {
                self.writer_failed(out);
                return None;
            }
            LedgerError::Fenced | LedgerError::Sealed | LedgerError::NoLedger(_) => {
                LogEnd::Fenced.into()
            }
            error if is_final(&error) => LogEnd::Failed(error.into()).into(),
            error => AppendError::Refused(error.into()),
        };
        if let Some(call) = call {
            let before = call.saturating_sub(self.first_pending);
            self.take_back(usize::try_from(before).unwrap_or(usize::MAX));
        }
        match &error {
            AppendError::Ended(end) => self.finish(end.clone(), out),
            _ => self.refuse_waiting(&error, out),
        }
        call.map(|_| error)
    }

    /// Something happened.
    pub(super) fn step(&mut self, input: Input, now: i64, out: &mut Effects) {
        match input {
            Input::Created(result) => self.created(result, now, out),
            Input::Progress { confirmed, failed } => {
                if let Some(last) = confirmed {
                    self.confirm(entry_count(Some(last)), out);
                }
                match failed {
                    None => {}
                    Some(LedgerError::Fenced | LedgerError::NoLedger(_)) => {
                        self.finish(LogEnd::Fenced, out);
                    }
                    Some(error) if is_final(&error) => {
                        self.finish(LogEnd::Failed(error.into()), out);
                    }
                    Some(_) => self.writer_failed(out),
                }
            }
            Input::Closed(result) => self.closed(result, now, out),
            Input::Listed(result) => self.listed(result, now, out),
            Input::ListRead(result) => self.list_read(result, now, out),
            Input::Deleted(failed) => {
                self.deleting = false;
                self.undeleted.extend(failed.into_iter().map(position_id));
            }
            Input::Tick => self.tick(now, out),
        }
        self.advance(now, out);
    }

    /// Does what the goal and the queue ask for.
    pub(super) fn advance(&mut self, now: i64, out: &mut Effects) {
        let waiting = self.pending.len() > self.written;
        match &self.phase {
            Phase::Idle if waiting => self.roll(true, out),
            Phase::Idle => self.reach_goal(out),
            Phase::Open(_) if !waiting && self.goal != Goal::Write => self.roll(false, out),
            Phase::Open(ledger) if self.is_full(ledger, now) => self.roll(true, out),
            Phase::Rolling(rolling) if rolling.closing.is_none() => self.next_ledger(out),
            _ => {}
        }
        self.write_list(out);
    }

    fn reach_goal(&mut self, out: &mut Effects) {
        let busy = self.writing_list.is_some() || !self.changes.is_empty();
        match self.goal {
            Goal::Write => {}
            Goal::Terminate => {
                let queued = |change: &Change| matches!(change, Change::Terminate(_));
                let writing = self
                    .writing_list
                    .iter()
                    .flat_map(|writing| &writing.changes);
                if !self.changes.iter().chain(writing).any(queued) {
                    self.changes.push(Change::Terminate(self.last_confirmed));
                }
            }
            Goal::Close if busy => {}
            Goal::Close if self.ends_unlisted => self.changes.push(Change::Ends),
            Goal::Close => self.finish(LogEnd::Closed, out),
        }
    }

    /// Nothing is taken any more; when what was taken is durable, the log ends here.
    pub(super) fn terminate(&mut self) {
        if self.end().is_none() && self.goal == Goal::Write {
            self.goal = Goal::Terminate;
        }
    }

    /// Nothing is taken any more; when what was taken is durable, the present ledger is ended and listed.
    pub(super) fn close(&mut self) {
        self.goal = Goal::Close;
    }

    /// Nothing is done any more; what is on its way is still told of.
    pub(super) fn abandon(&mut self) {
        let created = match &self.phase {
            Phase::Rolling(rolling) => match rolling.next {
                Next::Created(id) => Some(id),
                _ => None,
            },
            _ => None,
        };
        self.undeleted.extend(created);
        self.phase = Phase::Ended(LogEnd::Closed);
        self.changes.clear();
    }

    /// Goes on in a new ledger, if the present one has entries.
    pub(super) fn roll_now(&mut self, out: &mut Effects) {
        if matches!(&self.phase, Phase::Open(ledger) if ledger.entries > 0)
            && self.goal == Goal::Write
        {
            self.roll(true, out);
        }
    }

    fn tick(&mut self, now: i64, out: &mut Effects) {
        if let Phase::Rolling(rolling) = &mut self.phase
            && let Some(closing) = &mut rolling.closing
            && std::mem::take(&mut closing.stuck)
            && let Some(id) = ledger_id(closing.ledger.id)
        {
            out.push(Effect::Recover(id));
        }
        if let Some(writing) = &mut self.writing_list
            && std::mem::take(&mut writing.stuck)
        {
            out.push(Effect::ReadList);
        }
        if !self.deleting && self.end().is_none() {
            self.delete_unlisted(out);
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
    }

    /// Leaves the present ledger, if there is one, and makes the next if one is wanted.
    pub(super) fn roll(&mut self, next: bool, out: &mut Effects) {
        self.leave(next, Effect::Seal, out);
    }

    fn leave(&mut self, next: bool, how: Effect, out: &mut Effects) {
        let closing = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Open(ledger) => {
                out.push(how);
                Some(Closing {
                    ledger,
                    stuck: false,
                })
            }
            _ => None,
        };
        if !next && closing.is_none() {
            return;
        }
        if next {
            out.push(Effect::Create);
        }
        let next = if next { Next::Creating } else { Next::No };
        self.phase = Phase::Rolling(Rolling { closing, next });
    }

    fn writer_failed(&mut self, out: &mut Effects) {
        let Phase::Open(ledger) = &self.phase else {
            // A ledger that is being ended tells by that how it ended.
            return;
        };
        if let Some(id) = ledger_id(ledger.id) {
            let next = self.goal == Goal::Write || !self.pending.is_empty();
            self.leave(next, Effect::Recover(id), out);
        }
    }

    fn created(&mut self, result: Result<LedgerId, LedgerError>, now: i64, out: &mut Effects) {
        match result {
            Ok(id) => {
                let id = position_id(id);
                match &mut self.phase {
                    Phase::Rolling(rolling) if rolling.next == Next::Creating => {
                        rolling.next = Next::Created(id);
                    }
                    _ => {
                        self.undeleted.push(id);
                        self.delete_unlisted(out);
                    }
                }
            }
            Err(error) if is_final(&error) => self.finish(LogEnd::Failed(error.into()), out),
            Err(error) => self.no_next(error.into(), now, out),
        }
    }

    /// There is no next ledger now: what waits for one is refused, when it is known what does.
    pub(super) fn no_next(&mut self, error: LogFailure, now: i64, out: &mut Effects) {
        self.counters.creation_failed_at = Some(now);
        self.retry_at = Some(now.saturating_add(self.settings.creation_retry_millis));
        if let Phase::Rolling(rolling) = &mut self.phase {
            rolling.next = Next::No;
            if rolling.closing.is_none() {
                self.phase = Phase::Idle;
            }
        }
        self.refuse_waiting(&AppendError::Refused(error), out);
    }

    fn closed(&mut self, result: Result<Sealed, LedgerError>, now: i64, out: &mut Effects) {
        let Phase::Rolling(rolling) = &mut self.phase else {
            return;
        };
        let Some(closing) = &mut rolling.closing else {
            return;
        };
        match result {
            Ok(sealed) => {
                let id = closing.ledger.id;
                let entries = entry_count(sealed.last_entry);
                self.confirm(entries, out);
                if let Some(listed) = self.list.get_mut(id) {
                    listed.closed = Some(Closed {
                        entries,
                        bytes: i64::try_from(sealed.length).unwrap_or(i64::MAX),
                        at: now,
                    });
                }
                self.ends_unlisted = true;
                self.written = 0;
                if let Phase::Rolling(rolling) = &mut self.phase {
                    rolling.closing = None;
                    if rolling.next == Next::No {
                        self.phase = Phase::Idle;
                    }
                }
            }
            Err(LedgerError::Fenced | LedgerError::NoLedger(_)) => {
                self.finish(LogEnd::Fenced, out);
            }
            Err(error) if is_final(&error) => self.finish(LogEnd::Failed(error.into()), out),
            Err(_) => closing.stuck = true,
        }
    }

    /// The ledger before is ended: the next is listed once it is there.
    fn next_ledger(&mut self, out: &mut Effects) {
        let Phase::Rolling(rolling) = &mut self.phase else {
            return;
        };
        match rolling.next {
            Next::Created(id) => {
                rolling.next = Next::Listing(id);
                self.changes.push(Change::Add(id));
            }
            Next::No => {
                self.phase = Phase::Idle;
                self.reach_goal(out);
            }
            Next::Creating | Next::Listing(_) => {}
        }
    }

    /// Entries of the present ledger below `entries` are durable.
    fn confirm(&mut self, entries: i64, out: &mut Effects) {
        let ledger = match &mut self.phase {
            Phase::Open(ledger) => ledger,
            Phase::Rolling(Rolling {
                closing: Some(closing),
                ..
            }) => &mut closing.ledger,
            _ => return,
        };
        let count = entries.min(ledger.entries) - ledger.confirmed;
        let count = usize::try_from(count).unwrap_or(0).min(self.written);
        if count == 0 {
            return;
        }
        let first = Position::new(ledger.id, ledger.confirmed);
        let entries: Vec<Bytes> = self.pending.drain(..count).collect();
        if self.pending.is_empty() && self.pending.capacity() > IDLE_QUEUE {
            self.pending.shrink_to(IDLE_QUEUE);
        }
        ledger.confirmed += i64::try_from(count).unwrap_or(i64::MAX);
        self.last_confirmed = Position::new(ledger.id, ledger.confirmed - 1);
        let extent = std::mem::take(&mut self.extent);
        self.extent = extent.with_last_entries(ledger.confirmed);
        let first_number = self.first_pending;
        self.first_pending += count as u64;
        self.counters.entries_added += count as u64;
        self.written -= count;
        self.pending_bytes -= entries.iter().map(Bytes::len).sum::<usize>();
        out.push(Effect::Confirmed {
            first_number,
            first,
            entries,
        });
    }

    fn take_back(&mut self, keep: usize) {
        let gone = self.pending.split_off(keep.min(self.pending.len()));
        self.pending_bytes -= gone.iter().map(Bytes::len).sum::<usize>();
    }

    fn refuse_waiting(&mut self, error: &AppendError, out: &mut Effects) {
        // Of what a failed writer had it is not known yet whether it is stored.
        let keep = self.written;
        let end = self.first_pending + self.pending.len() as u64;
        let numbers = self.first_pending + keep as u64..end;
        self.take_back(keep);
        if !numbers.is_empty() {
            out.push(Effect::Tell(LogEvent::Refused {
                numbers,
                error: error.clone(),
            }));
        }
    }

    pub(super) fn finish(&mut self, end: LogEnd, out: &mut Effects) {
        if self.end().is_some() {
            return;
        }
        // A ledger that was made for nothing goes, where that can still be.
        if let Phase::Rolling(Rolling {
            next: Next::Created(id),
            ..
        }) = self.phase
        {
            self.undeleted.push(id);
        }
        self.phase = Phase::Ended(end.clone());
        self.delete_unlisted(out);
        let numbers = self.first_pending..self.first_pending + self.pending.len() as u64;
        self.written = 0;
        self.take_back(0);
        if !numbers.is_empty() {
            out.push(Effect::Tell(LogEvent::Refused {
                numbers,
                error: end.clone().into(),
            }));
        }
        for change in std::mem::take(&mut self.changes) {
            if let Change::Properties { request, .. } = change {
                let error = MetadataError::BadVersion(NodePath::root());
                out.push(Effect::Tell(LogEvent::Properties {
                    request,
                    result: Err(error.into()),
                }));
            }
        }
        out.push(Effect::Tell(LogEvent::Ended(end)));
    }

    pub(super) fn present(&self) -> Option<&OpenLedger> {
        match &self.phase {
            Phase::Open(ledger) => Some(ledger),
            Phase::Rolling(rolling) => rolling.closing.as_ref().map(|closing| &closing.ledger),
            _ => None,
        }
    }

    fn is_old_enough(&self, ledger: &OpenLedger, now: i64) -> bool {
        let age = now.saturating_sub(ledger.created_at);
        let min = self.settings.min_rollover_millis;
        min <= 0 || age > min
    }

    fn is_full(&self, ledger: &OpenLedger, now: i64) -> bool {
        let settings = &self.settings;
        let too_large =
            ledger.entries >= settings.max_entries || ledger.bytes >= settings.max_bytes;
        let too_old = now.saturating_sub(ledger.created_at) >= settings.max_rollover_millis;
        ledger.entries > 0 && (too_large || too_old) && self.is_old_enough(ledger, now)
    }
}

/// Errors after which the store does nothing more.
fn is_final(error: &LedgerError) -> bool {
    use crate::journal::JournalError;
    matches!(error, LedgerError::Journal(error) if !matches!(error, JournalError::NoSpace))
}

fn entry_count(last: Option<u64>) -> i64 {
    last.map_or(0, |last| {
        i64::try_from(last)
            .unwrap_or(i64::MAX - 1)
            .saturating_add(1)
    })
}

fn length(entry: &Bytes) -> i64 {
    i64::try_from(entry.len()).unwrap_or(i64::MAX)
}

/// The ledger of a position, if it can be one.
pub(super) fn ledger_id(id: i64) -> Option<LedgerId> {
    u64::try_from(id).ok().map(LedgerId)
}

/// A ledger's id as positions have it. Ids of all stores are far below the limit.
pub(super) fn position_id(id: LedgerId) -> i64 {
    i64::try_from(id.0).unwrap_or(i64::MAX)
}

/// The last entry of a log that has no ledger yet.
pub(super) const NO_ENTRY: Position = Position::new(-1, -1);
/// Places that the queue of an idle log keeps.
const IDLE_QUEUE: usize = 4;
