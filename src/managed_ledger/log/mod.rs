//! The log of a topic: one sequence of entries over many ledgers.
//!
//! `state` decides, with `listing` (how the list of ledgers is written) and `trimming` (which ledgers go) beside it; all of that is pure.
//! [`ManagedLedger`] does what they want to a ledger store and a metadata store. It has no task and no timer of its own: who owns it calls
//! [`ManagedLedger::next_event`] in its loop, and [`ManagedLedger::tick`] from time to time. What is read goes through
//! [`ManagedLedger::reader`], which everybody may share, by the [`LogView`] that is published there.

mod event;
mod list;
mod listing;
mod open;
mod settings;
mod state;
mod stats;
mod trimming;
mod view;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tokio::sync::watch;

use self::event::{Effect, Effects, Input};
use self::state::LogState;
use super::Position;
use super::cache::EntryCache;
use super::reader::LogReader;
use crate::journal::JournalError;
use crate::ledger::{
    CursorStore, LedgerError, LedgerId, LedgerOptions, LedgerStore, LedgerWriter, Progress,
};
use crate::metadata::{Clock, LocalMetadata, LocalPath};
use crate::naming::TopicName;

pub use event::{AppendError, LogEnd, LogEvent, LogFailure};
pub use open::{DeleteError, OpenError};
pub use settings::{LogSettings, Retention};
pub use stats::{LedgerStats, LogStats};
pub use view::{EntryRange, LogEntry, LogRead, LogView, ReadBudget, ReadError, ReadFuture};

/// What all logs of a process share.
#[derive(Debug, Clone)]
pub struct LogContext {
    /// Where ledgers are.
    pub ledgers: Arc<dyn LedgerStore>,
    /// Where lists of ledgers are.
    pub metadata: LocalMetadata,
    /// Where cursors are that are not in ledgers: they go with their log.
    pub cursors: Option<Arc<dyn CursorStore>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The cache of entries.
    pub cache: EntryCache,
}

/// A log. Whoever has it owns the topic; that nobody else does is found out when the list of ledgers is written.
///
/// Entries have numbers from 0 in the order of appends, since it was opened. What becomes of them is told by [`LogEvent`]s in the same order.
pub struct ManagedLedger {
    context: LogContext,
    topic: TopicName,
    path: LocalPath,
    state: LogState,
    /// Of the ledger that is written.
    writer: Option<Box<dyn LedgerWriter>>,
    /// Of the ledger that is going to be.
    created: Option<Box<dyn LedgerWriter>>,
    progress: Option<watch::Receiver<Progress>>,
    work: Vec<Work>,
    events: VecDeque<LogEvent>,
    reader: Arc<LogReader>,
    requests: u64,
}

type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

enum Done {
    Created(Result<Box<dyn LedgerWriter>, LedgerError>),
    Other(Input),
    Nothing,
}

impl ManagedLedger {
    fn new(context: LogContext, topic: TopicName, path: LocalPath, state: LogState) -> Self {
        let ledgers = Arc::clone(&context.ledgers);
        let reader = LogReader::new(ledgers, context.cache.log(), state.view());
        Self {
            context,
            topic,
            path,
            state,
            writer: None,
            created: None,
            progress: None,
            work: Vec::new(),
            events: VecDeque::new(),
            reader: Arc::new(reader),
            requests: 0,
        }
    }

    /// Whose log it is.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// Reads it, and tells how it changes.
    #[must_use]
    pub fn reader(&self) -> &Arc<LogReader> {
        &self.reader
    }

    /// As it is now.
    #[must_use]
    pub fn view(&self) -> LogView {
        self.reader.view()
    }

    /// Puts entries behind all others and returns their numbers. Neither blocks nor waits. The caller bounds what it appends and has not
    /// been told of: all of it is kept until it is durable.
    ///
    /// # Errors
    /// None of them was taken.
    pub fn append(&mut self, entries: &[Bytes]) -> Result<Range<u64>, AppendError> {
        let now = self.context.clock.unix_millis();
        let first = self.state.append(entries, now)?;
        let mut out = Effects::new();
        let count = self.state.to_write(now);
        let result = if count == entries.len() {
            self.write(entries, Some(first), &mut out)
        } else {
            self.write_waiting(count, Some(first), &mut out)
        };
        self.state.advance(now, &mut out);
        self.perform(out, now);
        result.map(|()| first..first + entries.len() as u64)
    }

    /// What happens next. Pending while nothing does. Cancel-safe.
    pub async fn next_event(&mut self) -> LogEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            self.drive().await;
        }
    }

    /// The next event, if there is one already.
    pub fn try_event(&mut self) -> Option<LogEvent> {
        self.events.pop_front()
    }

    /// Waits until nothing is on its way: all that was appended is durable or refused, all changes are written. Events are kept. What a
    /// store did not do waits for [`Self::tick`], and so does this. Cancel-safe.
    pub async fn settled(&mut self) {
        while !self.work.is_empty() || (self.state.pending().0 > 0 && self.state.end().is_none()) {
            self.drive().await;
        }
    }

    /// Time goes by: ledgers become too old, what did not work is tried again. Some ten seconds apart are enough.
    pub fn tick(&mut self) {
        self.step(Input::Tick);
    }

    /// Goes on in a new ledger, if the present one has entries.
    pub fn roll(&mut self) {
        let now = self.context.clock.unix_millis();
        let mut out = Effects::new();
        self.state.roll_now(&mut out);
        self.state.advance(now, &mut out);
        self.perform(out, now);
    }

    /// Entries up to `consumed` are not needed by subscriptions; `None`: there are none. What retention does not keep goes.
    pub fn trim(&mut self, consumed: Option<Position>) {
        let now = self.context.clock.unix_millis();
        let last = self.view().last_confirmed();
        let consumed = consumed.map_or(last, |consumed| consumed.min(last));
        let mut out = Effects::new();
        self.state.trim(consumed, now, &mut out);
        self.perform(out, now);
    }

    /// Other retention from now on; [`Self::trim`] goes by it.
    pub fn set_retention(&mut self, retention: Retention) {
        self.state.settings.retention = retention;
    }

    /// Takes nothing more; when all that was taken is durable, that is the end of the topic: [`LogEnd::Terminated`].
    pub fn terminate(&mut self) {
        self.state.terminate();
        self.advance();
    }

    /// Sets properties of the topic, or removes those without a value. [`LogEvent::Properties`] with the number that is returned tells
    /// when that is durable.
    pub fn set_properties(&mut self, set: Vec<(String, Option<String>)>) -> u64 {
        self.requests += 1;
        let request = self.requests;
        match self.state.end() {
            Some(end) if !matches!(end, LogEnd::Terminated(_)) => {
                let result = Err(LogFailure::Ended);
                self.events
                    .push_back(LogEvent::Properties { request, result });
            }
            _ => {
                self.state.set_properties(request, set);
                self.advance();
            }
        }
        request
    }

    /// The topic's properties, as they are listed.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        self.state.list.properties()
    }

    /// The index of the last broker entry that was appended. It is written whenever the list of ledgers is, so that it goes on when
    /// no entry is left that has it.
    pub fn set_index(&mut self, index: u64) {
        self.state.set_index(index);
    }

    /// The index that was written last. Entries that came later have higher ones: the last entry of the last ledger tells.
    #[must_use]
    pub fn listed_index(&self) -> Option<u64> {
        self.state
            .list
            .property(state::INDEX_PROPERTY)
            .and_then(|index| index.parse().ok())
    }

    /// What is known of it.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.state.stats()
    }

    /// Why it takes nothing more, if so.
    #[must_use]
    pub fn end(&self) -> Option<&LogEnd> {
        self.state.end()
    }

    /// Ends the present ledger when all that was taken is durable, and writes down how it ended, so that opening has nothing to recover.
    /// Then [`Self::end`] is there. Not ready while a store does not do its part: the caller has a time limit. Cancelled, it is to be called
    /// again, or recovered when opened.
    pub async fn close(&mut self) {
        if self.state.end().is_none() {
            self.state.close();
            self.advance();
        }
        while self.state.end().is_none() || !self.work.is_empty() {
            self.drive().await;
        }
    }

    /// Deletes the topic: its ledgers, its cursors and its list. Cancelled or failed, it is deleted when it is opened or deleted the next
    /// time.
    ///
    /// # Errors
    /// It is not deleted, or not all of it.
    pub async fn delete(mut self) -> Result<(), DeleteError> {
        self.state.abandon();
        self.writer = None;
        while !self.work.is_empty() {
            let done = finished(&mut self.work).await;
            self.done(done);
        }
        open::delete_log(&self.context, &self.topic, self.state.version()).await
    }

    fn advance(&mut self) {
        let now = self.context.clock.unix_millis();
        let mut out = Effects::new();
        self.state.advance(now, &mut out);
        self.perform(out, now);
    }

    /// Waits for the next thing that happens, and does what follows.
    async fn drive(&mut self) {
        let open = self.state.is_open();
        let done = tokio::select! {
            biased;
            input = progressed(&mut self.progress, open) => Done::Other(input),
            done = finished(&mut self.work) => done,
        };
        self.done(done);
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Created(Ok(writer)) => {
                let id = writer.id();
                self.created = Some(writer);
                self.step(Input::Created(Ok(id)));
            }
            Done::Created(Err(error)) => self.step(Input::Created(Err(error))),
            Done::Other(input) => self.step(input),
            Done::Nothing => {}
        }
    }

    fn step(&mut self, input: Input) {
        let now = self.context.clock.unix_millis();
        let mut out = Effects::new();
        self.state.step(input, now, &mut out);
        self.perform(out, now);
    }

    fn perform(&mut self, mut out: Effects, now: i64) {
        let mut publish = false;
        while !out.is_empty() {
            for effect in std::mem::take(&mut out) {
                publish |= matches!(effect, Effect::Publish | Effect::Confirmed { .. });
                self.effect(effect);
            }
            let count = self.state.to_write(now);
            if count > 0 {
                // Not of a call that waits for an answer: it is told by an event.
                let _ = self.write_waiting(count, None, &mut out);
                self.state.advance(now, &mut out);
            }
        }
        if publish {
            self.reader.publish(self.state.view());
        }
    }

    fn effect(&mut self, effect: Effect) {
        let store = Arc::clone(&self.context.ledgers);
        match effect {
            Effect::Create => {
                let options = self.ledger_options();
                self.start(async move { Done::Created(store.create(options).await) });
            }
            Effect::UseCreated => {
                self.writer = self.created.take();
                self.progress = self.writer.as_ref().map(|writer| writer.progress());
            }
            Effect::Seal => {
                if let Some(writer) = self.writer.take() {
                    let id = writer.id();
                    self.start(async move {
                        let sealed = match writer.seal().await {
                            // It failed before that was told.
                            Err(LedgerError::WriterFailed) => store.recover(id).await,
                            sealed => sealed,
                        };
                        Done::Other(Input::Closed(sealed))
                    });
                }
            }
            Effect::Recover(id) => {
                self.writer = None;
                self.start(async move { Done::Other(Input::Closed(store.recover(id).await)) });
            }
            Effect::WriteList(value, expected) => {
                let (metadata, path) = (self.context.metadata.clone(), self.path.clone());
                self.start(async move {
                    let result = metadata.put(&path, value, expected).await;
                    Done::Other(Input::Listed(result.map(|stat| stat.version)))
                });
            }
            Effect::ReadList => {
                let (metadata, path) = (self.context.metadata.clone(), self.path.clone());
                self.start(async move {
                    let node = metadata.get(&path).await;
                    let found = node.map(|node| node.map(|node| (node.stat.version, node.value)));
                    Done::Other(Input::ListRead(found))
                });
            }
            Effect::Delete(ids) => {
                let created = self.created.as_ref().map(|writer| writer.id());
                if created.is_some_and(|created| ids.contains(&created)) {
                    self.created = None;
                }
                self.start(
                    async move { Done::Other(Input::Deleted(delete_ledgers(store, ids).await)) },
                );
            }
            Effect::Trim(id, first) => self.start(async move {
                if let Err(error) = store.trim(id, first).await {
                    tracing::debug!("entries of ledger {id} were not trimmed: {error}");
                }
                Done::Nothing
            }),
            Effect::Confirmed {
                first_number,
                first,
                entries,
            } => {
                let numbers = first_number..first_number + entries.len() as u64;
                self.reader.cache().insert(first, entries);
                self.events
                    .push_back(LogEvent::Confirmed { numbers, first });
            }
            Effect::Publish => {}
            Effect::Tell(event) => {
                if let LogEvent::Ended(_) = event {
                    self.writer = None;
                }
                self.events.push_back(event);
            }
        }
    }

    fn start(&mut self, work: impl Future<Output = Done> + Send + 'static) {
        self.work.push(Box::pin(work));
    }

    fn write_waiting(
        &mut self,
        count: usize,
        call: Option<u64>,
        out: &mut Effects,
    ) -> Result<(), AppendError> {
        let entries: Vec<Bytes> = self.state.waiting(count).cloned().collect();
        self.write(&entries, call, out)
    }

    /// Gives the first waiting entries to the writer.
    fn write(
        &mut self,
        entries: &[Bytes],
        call: Option<u64>,
        out: &mut Effects,
    ) -> Result<(), AppendError> {
        let Some(writer) = self.writer.as_mut().filter(|_| !entries.is_empty()) else {
            return Ok(());
        };
        match writer.append(entries) {
            Ok(numbers) => {
                debug_assert_eq!(numbers.end - numbers.start, entries.len() as u64);
                self.state.written(entries.len());
                Ok(())
            }
            Err(error) => match self.state.not_written(error, call, out) {
                Some(error) => Err(error),
                None => Ok(()),
            },
        }
    }

    /// What ledgers are made with: Apache Pulsar's names for whose they are (`LedgerMetadataUtils`).
    fn ledger_options(&self) -> LedgerOptions {
        let mut options = self.state.settings.ledger.clone();
        let mut add = |name: &str, value: &str| {
            let value = Bytes::copy_from_slice(value.as_bytes());
            options.custom_metadata.push((name.to_owned(), value));
        };
        add("application", "pulsar");
        add("component", "managed-ledger");
        add(open::OWNER, open::log_name(&self.path));
        options
    }
}

impl fmt::Debug for ManagedLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedLedger")
            .field("topic", &self.topic)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// The next progress of the writer. A progress that ends tells its last value: while the ledger is open that is a failure.
async fn progressed(progress: &mut Option<watch::Receiver<Progress>>, open: bool) -> Input {
    let Some(receiver) = progress else {
        return std::future::pending().await;
    };
    let more = receiver.changed().await.is_ok();
    let Progress {
        confirmed,
        mut failed,
    } = receiver.borrow_and_update().clone();
    if !more && open && failed.is_none() {
        failed = Some(LedgerError::Journal(JournalError::Closed));
    }
    if !more || failed.is_some() {
        *progress = None;
    }
    Input::Progress { confirmed, failed }
}

/// The first piece of work that is done.
async fn finished(work: &mut Vec<Work>) -> Done {
    std::future::poll_fn(|context| {
        for place in 0..work.len() {
            let Some(piece) = work.get_mut(place) else {
                break;
            };
            if let Poll::Ready(done) = piece.as_mut().poll(context) {
                drop(work.swap_remove(place));
                if work.is_empty() {
                    *work = Vec::new();
                }
                return Poll::Ready(done);
            }
        }
        Poll::Pending
    })
    .await
}

/// Those that were not deleted.
async fn delete_ledgers(store: Arc<dyn LedgerStore>, ids: Vec<LedgerId>) -> Vec<LedgerId> {
    let mut left = Vec::new();
    for id in ids {
        if let Err(error) = store.delete(id).await {
            tracing::debug!("ledger {id} was not deleted: {error}");
            left.push(id);
        }
    }
    left
}
