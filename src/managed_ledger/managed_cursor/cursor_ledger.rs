//! Cursors in ledgers, as Apache Pulsar keeps them: each entry of a cursor ledger is a whole position, the last one counts, and the
//! node names the ledger. A cursor that is closed stands in its node alone, unless it has too many holes for one.
//!
//! Whatever takes a while (a new ledger, the node) is one step at a time, and nothing else is written meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::super::cursor::RecordedState;
use super::super::formats::{ManagedCursorInfo, PositionInfo};
use super::super::{CursorState, HolesForm, LogExtent};
use super::node::{CursorNode, Step};
use super::{CursorError, CursorFailure, CursorId, Flush, Recovered, RollBack};
use crate::ledger::{LedgerError, LedgerId, LedgerOptions, LedgerStore, LedgerWriter, Progress};
use crate::metadata::{Message, Version};

/// Cursor ledgers: where they are and how they are written.
#[derive(Debug, Clone)]
pub struct CursorLedgers {
    /// Where they are.
    pub store: Arc<dyn LedgerStore>,
    /// What they are made with; their cursor's name is added.
    pub options: LedgerOptions,
    /// When and how they are written.
    pub settings: CursorLedgerSettings,
}

/// When and how cursor ledgers are written. The default is Apache Pulsar's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CursorLedgerSettings {
    /// A ledger with so many entries is left (`managedLedgerCursorMaxEntriesPerLedger`).
    pub entries_max: u64,
    /// So is one this old (`managedLedgerCursorRolloverTimeInSeconds`).
    pub age_max: Duration,
    /// Time between two writes that nobody waits for (`managedLedgerDefaultMarkDeleteRateLimit`).
    pub write_interval: Duration,
    /// How holes are written (`managedLedgerPersistIndividualAckAsLongArray`).
    pub holes: HolesForm,
    /// Holes that a node takes (`managedLedgerMaxUnackedRangesToPersistInMetadataStore`).
    pub node_ranges_max: usize,
}

impl Default for CursorLedgerSettings {
    fn default() -> Self {
        Self {
            entries_max: 50_000,
            age_max: Duration::from_secs(14_400),
            write_interval: Duration::from_secs(1),
            holes: HolesForm::Ranges,
            node_ranges_max: 1000,
        }
    }
}

impl CursorLedgers {
    /// What a node says, and where it names a ledger, what the last entry of that says. Whoever writes there is fenced.
    pub(super) async fn recover(
        &self,
        info: &ManagedCursorInfo,
        log: &LogExtent,
    ) -> Result<(CursorState, Recovered), CursorError> {
        let Ok(ledger) = u64::try_from(info.cursors_ledger_id) else {
            return Ok((CursorState::from_node(info, log), Recovered::Whole));
        };
        let why = match self.last_entry(LedgerId(ledger)).await {
            Ok(Some(entry)) => match PositionInfo::decode(&entry) {
                Ok(position) => {
                    let state = CursorState::from_ledger(&position, info, log);
                    return Ok((state, Recovered::Whole));
                }
                Err(error) => RollBack::Entry(error),
            },
            Ok(None) => RollBack::Empty,
            Err(
                error @ (LedgerError::NoLedger(_)
                | LedgerError::NoEntry { .. }
                | LedgerError::Damaged { .. }),
            ) => RollBack::Ledger(error),
            Err(error) => return Err(CursorFailure::from(error).into()),
        };
        let state = CursorState::from_node(info, log);
        Ok((state, Recovered::RolledBack(why)))
    }

    async fn last_entry(&self, ledger: LedgerId) -> Result<Option<Bytes>, LedgerError> {
        let sealed = self.store.recover(ledger).await?;
        let Some(last) = sealed.last_entry else {
            return Ok(None);
        };
        let reader = self.store.open(ledger).await?;
        let range = last..last.saturating_add(1);
        let entries = reader.read(std::slice::from_ref(&range), 1).await?;
        Ok(entries.into_iter().next().map(|entry| entry.payload))
    }

    /// Deletes a ledger that nothing names any more. One that cannot be deleted stays behind, as with Apache Pulsar.
    async fn delete_left(&self, ledger: Option<u64>) {
        if let Some(ledger) = ledger {
            let _ = self.delete(ledger).await;
        }
    }

    /// Deletes a ledger, there or not.
    pub(super) async fn delete(&self, ledger: u64) -> Result<(), LedgerError> {
        match self.store.delete(LedgerId(ledger)).await {
            Ok(()) | Err(LedgerError::NoLedger(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// An open cursor in a ledger.
pub(super) struct CursorLedgerForm {
    ledgers: Arc<CursorLedgers>,
    cursor: String,
    node: CursorNode,
    /// The ledger that the node names.
    named: Option<u64>,
    /// The same, when it is ours to write.
    open: Option<OpenLedger>,
    /// When it was made; 0: none was.
    pub(super) switched: i64,
    /// What is on its way: (entry, changes that are durable with it).
    outstanding: VecDeque<(u64, u64)>,
    /// Changes that are written with what is on its way.
    claimed: u64,
    durable: u64,
    step: Option<Running>,
    written: Option<i64>,
}

struct OpenLedger {
    writer: Box<dyn LedgerWriter>,
    progress: watch::Receiver<Progress>,
    entries: u64,
}

struct Running {
    step: Step<Stepped>,
    covers: u64,
}

/// What a step came to.
struct Stepped {
    version: Version,
    ledger: Ledger,
}

enum Ledger {
    /// As it was.
    Kept,
    /// None: all of it is in the node.
    None,
    New(OpenLedger),
}

impl CursorLedgerForm {
    pub(super) fn new(
        ledgers: Arc<CursorLedgers>,
        id: &CursorId,
        node: CursorNode,
        named: Option<u64>,
    ) -> Self {
        Self {
            ledgers,
            cursor: id.cursor.clone(),
            node,
            named,
            open: None,
            switched: 0,
            outstanding: VecDeque::new(),
            claimed: 0,
            durable: 0,
            step: None,
            written: None,
        }
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// The cursor ledger and its last entry; -1 stands for none, as with Apache Pulsar.
    pub(super) fn ledger(&self) -> (i64, i64) {
        let id = self.named.and_then(|ledger| i64::try_from(ledger).ok());
        let entries = self.open.as_ref().map_or(0, |open| open.entries);
        (id.unwrap_or(-1), i64::try_from(entries).unwrap_or(0) - 1)
    }

    /// Whether there is a ledger to write to.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Queues what changed, when it is time and not too much is on its way: else it becomes one with what comes.
    pub(super) fn flush(
        &mut self,
        recorded: &mut RecordedState,
        covers: u64,
        now: i64,
        urgency: Flush,
    ) -> Result<(), CursorFailure> {
        self.look(recorded)?;
        let is_busy = self.step.is_some() || self.outstanding.len() >= OUTSTANDING_MAX;
        if is_busy || recorded.changes.is_empty() || !self.is_due(now, urgency) {
            return Ok(());
        }
        let is_full = self.is_full(now);
        let position = recorded.changes.position_changed();
        let properties = recorded.changes.cursor_properties_changed();
        if let Some(open) = self.open.as_mut().filter(|_| !is_full && position) {
            let entry = append(open, recorded.state(), self.ledgers.settings.holes)
                .map_err(|error| taken_over(&error).unwrap_or(CursorFailure::Ledger(error)))?;
            // Properties of the cursor come behind it, into the node.
            self.claimed = if properties { self.claimed } else { covers };
            self.outstanding.push_back((entry, self.claimed));
            recorded.changes.position_written();
            self.written = Some(now);
            return Ok(());
        }
        if !self.outstanding.is_empty() {
            return Ok(());
        }
        let step = if self.open.is_some() && !is_full {
            self.note_properties(recorded.state(), now)
        } else if !position && self.fits_node(recorded.state()) {
            self.put_in_node(recorded.state(), now)
        } else {
            self.switched = now;
            self.switch(recorded.state(), now)
        };
        recorded.changes.written();
        self.claimed = covers;
        self.written = Some(now);
        self.step = Some(Running { step, covers });
        Ok(())
    }

    fn is_due(&self, now: i64, urgency: Flush) -> bool {
        let interval = self.ledgers.settings.write_interval;
        let interval = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX);
        let due = self
            .written
            .is_none_or(|written| now >= written.saturating_add(interval));
        due || urgency == Flush::Now
    }

    fn is_full(&self, now: i64) -> bool {
        let settings = self.ledgers.settings;
        let age = i64::try_from(settings.age_max.as_millis()).unwrap_or(i64::MAX);
        let is_old = now >= self.switched.saturating_add(age);
        self.open
            .as_ref()
            .is_some_and(|open| is_old || open.entries >= settings.entries_max)
    }

    fn fits_node(&self, state: &CursorState) -> bool {
        !state.has_more_ranges_than(self.ledgers.settings.node_ranges_max)
    }

    /// The node with other properties of the cursor.
    fn note_properties(&self, state: &CursorState, now: i64) -> Step<Stepped> {
        let (ledger, _) = self.ledger();
        let write = self.node.write(state.to_node_beside(ledger, now));
        Box::pin(async move {
            Ok(Stepped {
                version: write.await?,
                ledger: Ledger::Kept,
            })
        })
    }

    /// All of it into the node, which names no ledger then.
    fn put_in_node(&self, state: &CursorState, now: i64) -> Step<Stepped> {
        let write = self.node.write(state.to_node(now));
        let (ledgers, old) = (Arc::clone(&self.ledgers), self.named);
        Box::pin(async move {
            let version = write.await?;
            ledgers.delete_left(old).await;
            Ok(Stepped {
                version,
                ledger: Ledger::None,
            })
        })
    }

    /// A new ledger with the state as its first entry, then the node that names it; then the old one goes. Where no ledger can be made,
    /// all of it goes into the node.
    fn switch(&self, state: &CursorState, now: i64) -> Step<Stepped> {
        let (ledgers, old) = (Arc::clone(&self.ledgers), self.named);
        let first = Bytes::from(state.to_ledger(ledgers.settings.holes).encode());
        let second = (first.len() > LONG_ENTRY).then(|| {
            let bits = state.to_ledger(HolesForm::BitSets).encode();
            Bytes::from(bits)
        });
        let options = self.options();
        let without_ledger = self.put_in_node(state, now);
        // The ledger's id is not known yet.
        let mut beside = state.to_node_beside(-1, now);
        let node = self.node.clone();
        Box::pin(async move {
            let Ok(writer) = ledgers.store.create(options).await else {
                return without_ledger.await;
            };
            let id = writer.id().0;
            let filled = fill(writer, first, second).await;
            let open = match filled {
                Ok(open) => open,
                Err(error) => {
                    ledgers.delete_left(Some(id)).await;
                    return match error {
                        LedgerError::Fenced => Err(CursorFailure::Fenced),
                        _ => without_ledger.await,
                    };
                }
            };
            beside.cursors_ledger_id = i64::try_from(id).unwrap_or(i64::MAX);
            let version = match node.write(beside).await {
                Ok(version) => version,
                Err(error) => {
                    // Not when the node may name it.
                    if matches!(error, CursorFailure::Fenced) {
                        ledgers.delete_left(Some(id)).await;
                    }
                    return Err(error);
                }
            };
            ledgers.delete_left(old).await;
            Ok(Stepped {
                version,
                ledger: Ledger::New(open),
            })
        })
    }

    fn options(&self) -> LedgerOptions {
        let mut options = self.ledgers.options.clone();
        let name = Bytes::from(self.cursor.clone());
        options.custom_metadata.push((CURSOR_KEY.to_owned(), name));
        options
    }

    /// Waits until something on its way has arrived, or failed. Cancel-safe.
    pub(super) async fn progressed(
        &mut self,
        recorded: &mut RecordedState,
    ) -> Result<(), CursorFailure> {
        if let Some(running) = &mut self.step {
            let stepped = running.step.as_mut().await;
            let covers = running.covers;
            self.step = None;
            let stepped = stepped?;
            self.node.written(stepped.version);
            match stepped.ledger {
                Ledger::Kept => {}
                Ledger::None => (self.open, self.named) = (None, None),
                Ledger::New(open) => {
                    self.named = Some(open.writer.id().0);
                    self.open = Some(open);
                }
            }
            self.durable = self.durable.max(covers);
            return Ok(());
        }
        match &mut self.open {
            Some(open) if !self.outstanding.is_empty() => {
                let changed = open.progress.changed().await;
                changed.map_err(|_| LedgerError::WriterFailed)?;
                self.look(recorded)
            }
            _ => std::future::pending().await,
        }
    }

    /// Looks how far the ledger is. One that failed is left: the next write goes into a new one.
    fn look(&mut self, recorded: &mut RecordedState) -> Result<(), CursorFailure> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let progress = open.progress.borrow_and_update().clone();
        while let Some((entry, covers)) = self.outstanding.front()
            && progress
                .confirmed
                .is_some_and(|confirmed| *entry <= confirmed)
        {
            self.durable = self.durable.max(*covers);
            self.outstanding.pop_front();
        }
        match progress.failed {
            None => Ok(()),
            Some(error) if taken_over(&error).is_some() => Err(CursorFailure::Fenced),
            Some(_) => {
                self.open = None;
                if !self.outstanding.is_empty() {
                    self.outstanding.clear();
                    recorded.changes.position_lost();
                }
                Ok(())
            }
        }
    }

    /// Whether a close leaves all of it in the node.
    pub(super) fn closes_into_node(&self, state: &CursorState) -> bool {
        self.fits_node(state)
    }

    /// All of it into the node; the ledger goes.
    pub(super) async fn close_into_node(
        mut self: Box<Self>,
        recorded: &mut RecordedState,
        now: i64,
    ) -> Result<(), CursorFailure> {
        while self.step.is_some() {
            self.progressed(recorded).await?;
        }
        self.look(recorded)?;
        if self.named.is_some() || !recorded.changes.is_empty() {
            self.put_in_node(recorded.state(), now).await?;
        }
        Ok(())
    }

    /// What the ledger says is all: it is sealed, so that nobody has to.
    pub(super) async fn close_ledger(self: Box<Self>) -> Result<(), CursorFailure> {
        if let Some(open) = self.open {
            open.writer.seal().await?;
        }
        Ok(())
    }
}

/// Only somebody who took the cursor over, or deleted it, ends a ledger that we write.
fn taken_over(error: &LedgerError) -> Option<CursorFailure> {
    let ended = matches!(
        error,
        LedgerError::Fenced | LedgerError::Sealed | LedgerError::NoLedger(_)
    );
    ended.then_some(CursorFailure::Fenced)
}

/// Appends a position; one that is too long with its holes as bit sets.
fn append(
    open: &mut OpenLedger,
    state: &CursorState,
    holes: HolesForm,
) -> Result<u64, LedgerError> {
    let entry = Bytes::from(state.to_ledger(holes).encode());
    let range = match open.writer.append(std::slice::from_ref(&entry)) {
        Err(LedgerError::TooLarge { .. }) if holes == HolesForm::Ranges => {
            let entry = Bytes::from(state.to_ledger(HolesForm::BitSets).encode());
            open.writer.append(std::slice::from_ref(&entry))
        }
        appended => appended,
    }?;
    open.entries = range.end;
    Ok(range.start)
}

/// The first entry of a ledger, or the second when it takes none that is so long; until it is durable.
async fn fill(
    mut writer: Box<dyn LedgerWriter>,
    first: Bytes,
    second: Option<Bytes>,
) -> Result<OpenLedger, LedgerError> {
    let appended = match (writer.append(&[first]), second) {
        (Err(LedgerError::TooLarge { .. }), Some(second)) => writer.append(&[second]),
        (appended, _) => appended,
    }?;
    let mut progress = writer.progress();
    let reached = progress
        .wait_for(|progress| progress.confirmed.is_some() || progress.failed.is_some())
        .await
        .map_err(|_| LedgerError::WriterFailed)?
        .clone();
    if let (None, Some(error)) = (reached.confirmed, reached.failed) {
        return Err(error);
    }
    Ok(OpenLedger {
        writer,
        progress,
        entries: appended.end,
    })
}

/// Bytes from which on an entry is also tried with its holes as bit sets.
const LONG_ENTRY: usize = 64 << 10;
/// Entries on their way.
const OUTSTANDING_MAX: usize = 2;
/// What Apache Pulsar calls a cursor in the metadata of its ledger.
const CURSOR_KEY: &str = "pulsar/cursor";
