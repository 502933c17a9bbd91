//! A cursor with where it is kept: acknowledgements are applied at once, and it tells which of them are durable.
//!
//! One owner drives it, in three steps that never wait for each other: change it, [`ManagedCursor::flush`] after each batch of changes, and
//! wait in [`ManagedCursor::progressed`] beside whatever else the owner waits for. There is no task and no timer of its own.
//!
//! Three forms, with one face:
//! - in the change log of the embedded store (`change_log`): deltas, and now and then a snapshot;
//! - in a cursor ledger and a node, as Apache Pulsar keeps it (`cursor_ledger`);
//! - nowhere: the cursor of a reader ([`ManagedCursor::non_durable`]).
//!
//! With either of the first two the cursor has a node at Apache Pulsar's path; a cursor is there when its node is.

mod change_log;
mod cursor_ledger;
#[cfg(test)]
mod model_tests;
mod node;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::cursor::RecordedState;
use super::formats::{FormatError, ManagedCursorInfo, NodeCompression};
use super::{AckSet, Acknowledged, CursorRecordError, CursorState, LogExtent, LogView, Position};
use crate::ledger::{CursorName, CursorStore, LedgerError};
use crate::metadata::{LocalMetadata, LocalPath, MetadataError, PathError, paths};
use crate::naming::TopicName;

use change_log::ChangeLogForm;
use cursor_ledger::CursorLedgerForm;
pub use cursor_ledger::{CursorLedgerSettings, CursorLedgers};
use node::CursorNode;
pub use stats::CursorStats;

/// Where cursors are kept. All cursors of a broker share one.
#[derive(Debug)]
pub struct CursorStorage {
    /// Where their nodes are.
    pub metadata: LocalMetadata,
    /// How nodes are written (`managedCursorInfoCompressionType`).
    pub compression: NodeCompression,
    /// Where what changes often is.
    pub form: CursorForm,
}

/// Where what changes often is kept.
#[derive(Debug)]
pub enum CursorForm {
    /// In the change log of the embedded store, or in memory.
    ChangeLog(Arc<dyn CursorStore>),
    /// In ledgers, as Apache Pulsar does it.
    CursorLedger(Arc<CursorLedgers>),
}

/// A cursor of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorId {
    /// The topic or partition.
    pub topic: TopicName,
    /// The subscription, or what else has it.
    pub cursor: String,
}

/// When a change has to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// When the form's rate allows it: nobody waits.
    WhenDue,
    /// As soon as possible: a receipt waits.
    Now,
}

/// How a cursor was found.
#[derive(Debug)]
pub enum Recovered {
    /// As it was when it was written last.
    Whole,
    /// Its cursor ledger is gone or cannot be read: as it was when that was made. Messages come again; none is lost.
    RolledBack(RollBack),
}

/// Why a cursor was found only as it was earlier.
#[derive(Debug, thiserror::Error)]
pub enum RollBack {
    /// The ledger is gone or damaged.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// It has no entries.
    #[error("the cursor ledger is empty")]
    Empty,
    /// Its last entry is no position.
    #[error("the last entry of the cursor ledger: {0}")]
    Entry(#[from] crate::metadata::MessageError),
}

/// A cursor.
pub struct ManagedCursor {
    recorded: RecordedState,
    /// How often it was changed.
    changed: u64,
    /// How many of the changes are durable.
    durable: u64,
    form: Form,
    failed: Option<Box<CursorFailure>>,
}

enum Form {
    NonDurable,
    ChangeLog(Box<ChangeLogForm>),
    CursorLedger(Box<CursorLedgerForm>),
}

/// Why a cursor does not become durable any more. It has to be opened again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CursorFailure {
    /// Somebody else has opened or deleted it.
    #[error("fenced: somebody else has the cursor")]
    Fenced,
    /// The store of ledgers or of the change log failed.
    #[error(transparent)]
    Ledger(LedgerError),
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(MetadataError),
    /// Its node cannot be written.
    #[error(transparent)]
    Format(Arc<FormatError>),
}

/// Why something was not done with a cursor.
#[derive(Debug, thiserror::Error)]
pub enum CursorError {
    /// There is no such cursor.
    #[error("there is no such cursor")]
    NotFound,
    /// There is such a cursor.
    #[error("there is such a cursor already")]
    AlreadyExists,
    /// Its name is none.
    #[error(transparent)]
    Name(#[from] PathError),
    /// It has failed before; nothing was changed.
    #[error("the cursor failed: {0}")]
    Failed(#[from] CursorFailure),
    /// The node is none of a cursor.
    #[error("the cursor's node: {0}")]
    Node(#[from] FormatError),
    /// What is stored of it cannot be read.
    #[error(transparent)]
    Record(#[from] CursorRecordError),
    /// It is kept in a cursor ledger, and this store has none.
    #[error("the cursor is kept in ledger {0} of another store")]
    OtherForm(i64),
    /// A property of that name is set by the broker alone, as with Apache Pulsar.
    #[error("property names that begin with #pulsar.internal. are the broker's own")]
    InternalProperty,
}

impl ManagedCursor {
    /// Makes a cursor that begins in this state; it is durable when the future is ready. `now` is in milliseconds since 1970, here and
    /// everywhere. Cancelled, it may have been made.
    ///
    /// # Errors
    /// [`CursorError::AlreadyExists`], or the store failed.
    pub async fn create(
        storage: Arc<CursorStorage>,
        id: &CursorId,
        state: CursorState,
        now: i64,
    ) -> Result<Self, CursorError> {
        let form = match &storage.form {
            CursorForm::ChangeLog(store) => {
                let store = Arc::clone(store);
                let form = ChangeLogForm::create(storage, store, id, &state, now).await?;
                Form::ChangeLog(Box::new(form))
            }
            CursorForm::CursorLedger(ledgers) => {
                let ledgers = Arc::clone(ledgers);
                let node = CursorNode::create(storage, path(id)?, state.to_node(now)).await?;
                Form::CursorLedger(Box::new(CursorLedgerForm::new(ledgers, id, node, None)))
            }
        };
        Ok(Self::with(state, form))
    }

    /// Opens a cursor that is there, and fences whoever has it open. Cancel-safe.
    ///
    /// # Errors
    /// [`CursorError::NotFound`], what is stored is damaged, or the store failed.
    pub async fn open(
        storage: Arc<CursorStorage>,
        id: &CursorId,
        log: &LogExtent,
    ) -> Result<(Self, Recovered), CursorError> {
        let path = path(id)?;
        let (node, info) = CursorNode::read(Arc::clone(&storage), path).await?;
        match &storage.form {
            CursorForm::ChangeLog(store) => {
                if info.cursors_ledger_id >= 0 {
                    return Err(CursorError::OtherForm(info.cursors_ledger_id));
                }
                let store = Arc::clone(store);
                let (form, state) = ChangeLogForm::open(store, id, node, &info, log).await?;
                let form = Form::ChangeLog(Box::new(form));
                Ok((Self::with(state, form), Recovered::Whole))
            }
            CursorForm::CursorLedger(ledgers) => {
                let (state, recovered) = ledgers.recover(&info, log).await?;
                let named = u64::try_from(info.cursors_ledger_id).ok();
                let form = CursorLedgerForm::new(Arc::clone(ledgers), id, node, named);
                let form = Form::CursorLedger(Box::new(form));
                Ok((Self::with(state, form), recovered))
            }
        }
    }

    /// The cursor of a reader: it ends with its owner. [`super::StartAt`] says where it begins.
    #[must_use]
    pub fn non_durable(state: CursorState) -> Self {
        Self::with(state, Form::NonDurable)
    }

    fn with(state: CursorState, form: Form) -> Self {
        Self {
            recorded: RecordedState::new(state),
            changed: 0,
            durable: 0,
            form,
            failed: None,
        }
    }

    /// Deletes a cursor, open or not; one that is not there is no error. Who has it open finds it fenced. Cancelled, or after an
    /// error, it may have been deleted.
    ///
    /// # Errors
    /// The store failed.
    pub async fn delete(storage: &Arc<CursorStorage>, id: &CursorId) -> Result<(), CursorError> {
        let path = path(id)?;
        // Without its node it is no cursor any more: what a crash leaves behind is never found again.
        let info = CursorNode::delete(storage, &path).await?;
        match &storage.form {
            CursorForm::ChangeLog(store) => {
                store
                    .delete_cursor(&name(id))
                    .await
                    .map_err(CursorFailure::from)?;
            }
            CursorForm::CursorLedger(ledgers) => {
                if let Some(ledger) =
                    info.and_then(|info| u64::try_from(info.cursors_ledger_id).ok())
                {
                    ledgers.delete(ledger).await.map_err(CursorFailure::from)?;
                }
            }
        }
        Ok(())
    }

    /// How it is now, durable or not.
    #[must_use]
    pub fn state(&self) -> &CursorState {
        self.recorded.state()
    }

    /// Whether it outlives its owner.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        !matches!(self.form, Form::NonDurable)
    }

    /// How often it was changed. What is acknowledged by now is durable once [`Self::durable`] has come so far.
    #[must_use]
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// How many of the changes are known to be durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Why nothing becomes durable any more.
    #[must_use]
    pub fn failure(&self) -> Option<&CursorFailure> {
        self.failed.as_deref()
    }

    /// See [`CursorState::acknowledge`].
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn acknowledge(
        &mut self,
        position: Position,
        log: &LogExtent,
    ) -> Result<Acknowledged, CursorError> {
        self.change(|state| state.acknowledge(position, log))
    }

    /// See [`CursorState::acknowledge_in_batch`].
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn acknowledge_in_batch(
        &mut self,
        position: Position,
        messages: u32,
        remaining: &AckSet,
        log: &LogExtent,
    ) -> Result<Acknowledged, CursorError> {
        self.change(|state| state.acknowledge_in_batch(position, messages, remaining, log))
    }

    /// See [`CursorState::acknowledge_through`].
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn acknowledge_through(
        &mut self,
        position: Position,
        log: &LogExtent,
    ) -> Result<Acknowledged, CursorError> {
        self.change(|state| state.acknowledge_through(position, log))
    }

    /// See [`CursorState::acknowledge_through_batch`].
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn acknowledge_through_batch(
        &mut self,
        position: Position,
        messages: u32,
        remaining: &AckSet,
        log: &LogExtent,
    ) -> Result<Acknowledged, CursorError> {
        self.change(|state| state.acknowledge_through_batch(position, messages, remaining, log))
    }

    /// See [`CursorState::skip`].
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn skip(&mut self, entries: u64, log: &LogExtent) -> Result<Acknowledged, CursorError> {
        self.change(|state| state.skip(entries, log))
    }

    /// See [`CursorState::clear_backlog`].
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn clear_backlog(&mut self, log: &LogExtent) -> Result<Acknowledged, CursorError> {
        self.change(|state| state.clear_backlog(log))
    }

    /// Moves it, forwards or backwards: see [`CursorState::reset`]. With a batch behind the position, only these of its messages are
    /// not acknowledged then, as after a seek to a message inside it.
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn reset(
        &mut self,
        mark_delete: Position,
        partly: Option<(Position, AckSet)>,
    ) -> Result<(), CursorError> {
        self.change(|state| {
            state.reset(mark_delete, partly);
            Acknowledged::MarkDelete
        })
        .map(drop)
    }

    /// See [`CursorState::log_changed`].
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn log_changed(&mut self, log: &LogExtent) -> Result<Acknowledged, CursorError> {
        self.change(|state| state.log_changed(log))
    }

    /// Replaces the properties of the position.
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn set_properties(&mut self, properties: BTreeMap<String, i64>) -> Result<(), CursorError> {
        self.change(|state| behind(state.set_properties(properties)))
            .map(drop)
    }

    /// Replaces the properties of the cursor that are its users': the broker's own stay, as with Apache Pulsar. There is no
    /// condition to it: one owner makes all changes.
    ///
    /// # Errors
    /// One of them has a name of the broker's own, or the cursor has failed.
    pub fn set_cursor_properties(
        &mut self,
        mut properties: BTreeMap<String, String>,
    ) -> Result<(), CursorError> {
        if properties.keys().any(|name| is_internal(name)) {
            return Err(CursorError::InternalProperty);
        }
        let own = self.state().cursor_properties().iter();
        let own = own.filter(|(name, _)| is_internal(name));
        properties.extend(own.map(|(name, value)| (name.clone(), value.clone())));
        self.change(|state| behind(state.set_cursor_properties(properties)))
            .map(drop)
    }

    /// Sets one property of the cursor, or removes it; of any name.
    ///
    /// # Errors
    /// The cursor has failed.
    pub fn put_cursor_property(
        &mut self,
        name: &str,
        value: Option<String>,
    ) -> Result<(), CursorError> {
        let mut properties = self.state().cursor_properties().clone();
        match value {
            Some(value) => properties.insert(name.to_owned(), value),
            None => properties.remove(name),
        };
        self.change(|state| behind(state.set_cursor_properties(properties)))
            .map(drop)
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut RecordedState) -> Acknowledged,
    ) -> Result<Acknowledged, CursorError> {
        if let Some(failure) = &self.failed {
            return Err(CursorFailure::clone(failure).into());
        }
        let done = change(&mut self.recorded);
        if done != Acknowledged::Nothing {
            self.changed += 1;
            if matches!(self.form, Form::NonDurable) {
                self.recorded.changes.written();
                self.durable = self.changed;
            }
        }
        Ok(done)
    }

    /// Queues what has changed since, if the form takes it now; all of it as one. Neither blocks nor waits.
    ///
    /// # Errors
    /// The cursor has failed, now or before.
    pub fn flush(&mut self, now: i64, urgency: Flush) -> Result<(), CursorError> {
        if let Some(failure) = &self.failed {
            return Err(CursorFailure::clone(failure).into());
        }
        let (recorded, changed) = (&mut self.recorded, self.changed);
        let done = match &mut self.form {
            Form::NonDurable => Ok(()),
            Form::ChangeLog(form) => form.flush(recorded, changed, now),
            Form::CursorLedger(form) => form.flush(recorded, changed, now, urgency),
        };
        self.after(done)
    }

    /// Waits until more is durable, or there is room to flush again, and returns how many changes are durable. Never ready while
    /// nothing is on its way. Cancel-safe.
    ///
    /// # Errors
    /// The cursor has failed, now or before.
    pub async fn progressed(&mut self) -> Result<u64, CursorError> {
        if let Some(failure) = &self.failed {
            return Err(CursorFailure::clone(failure).into());
        }
        let done = match &mut self.form {
            Form::NonDurable => std::future::pending().await,
            Form::ChangeLog(form) => form.progressed().await,
            Form::CursorLedger(form) => form.progressed(&mut self.recorded).await,
        };
        self.after(done)?;
        Ok(self.durable)
    }

    /// Waits until all changes are durable. Cancel-safe.
    ///
    /// # Errors
    /// The cursor has failed, now or before.
    pub async fn settled(&mut self, now: i64) -> Result<(), CursorError> {
        loop {
            self.flush(now, Flush::Now)?;
            if self.durable >= self.changed {
                return Ok(());
            }
            self.progressed().await?;
        }
    }

    /// Whether there is something that is not durable.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.durable < self.changed
    }

    /// Gives up what a cursor needs only to change, and what is stored beyond its state; the next flush takes it up again. False when
    /// something has to be waited for ([`Self::progressed`]) before that is done: to be asked again. Neither blocks nor waits.
    ///
    /// # Errors
    /// The cursor has failed, now or before.
    pub fn rest(&mut self, now: i64) -> Result<bool, CursorError> {
        self.flush(now, Flush::Now)?;
        let (recorded, changed) = (&mut self.recorded, self.changed);
        let Form::ChangeLog(form) = &mut self.form else {
            return Ok(self.durable >= changed);
        };
        match form.rest(recorded, changed, now) {
            Ok(rests) => {
                self.after(Ok(()))?;
                Ok(rests)
            }
            Err(failure) => self.after(Err(failure)).map(|()| false),
        }
    }

    /// Makes all of it durable in the form that takes least to open again, and its node say so. Cancelled, it is as durable as it was.
    ///
    /// # Errors
    /// The cursor has failed, now or before.
    pub async fn close(mut self, now: i64) -> Result<(), CursorError> {
        if let Some(failure) = self.failed.take() {
            return Err((*failure).into());
        }
        match self.form {
            Form::NonDurable => Ok(()),
            Form::ChangeLog(ref mut form) => {
                form.close(&mut self.recorded, self.changed, now).await?;
                Ok(())
            }
            Form::CursorLedger(ref form) => {
                if form.closes_into_node(self.recorded.state()) {
                    let Form::CursorLedger(form) = self.form else {
                        return Ok(());
                    };
                    form.close_into_node(&mut self.recorded, now).await?;
                    return Ok(());
                }
                self.settled(now).await?;
                if let Form::CursorLedger(form) = self.form {
                    form.close_ledger().await?;
                }
                Ok(())
            }
        }
    }

    /// What `stats-internal` shows of it.
    #[must_use]
    pub fn stats(&self, view: &LogView) -> CursorStats {
        stats::of(self, view)
    }

    /// Takes over how far the form got, and fails when it failed.
    fn after(&mut self, done: Result<(), CursorFailure>) -> Result<(), CursorError> {
        let durable = match &self.form {
            Form::NonDurable => self.changed,
            Form::ChangeLog(form) => form.durable(),
            Form::CursorLedger(form) => form.durable(),
        };
        self.durable = self.durable.max(durable);
        done.map_err(|failure| {
            self.failed = Some(Box::new(failure.clone()));
            failure.into()
        })
    }
}

impl fmt::Debug for ManagedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedCursor")
            .field("state", self.state())
            .field("changed", &self.changed)
            .field("durable", &self.durable)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl From<LedgerError> for CursorFailure {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Fenced => Self::Fenced,
            error => Self::Ledger(error),
        }
    }
}

impl From<MetadataError> for CursorFailure {
    fn from(error: MetadataError) -> Self {
        match error {
            // The node is the one that we know as long as nobody else writes it.
            MetadataError::BadVersion(_) | MetadataError::NotFound(_) => Self::Fenced,
            error => Self::Metadata(error),
        }
    }
}

impl From<FormatError> for CursorFailure {
    fn from(error: FormatError) -> Self {
        Self::Format(Arc::new(error))
    }
}

fn path(id: &CursorId) -> Result<LocalPath, PathError> {
    paths::cursor(&id.topic, &id.cursor)
}

fn name(id: &CursorId) -> CursorName {
    CursorName {
        topic: id.topic.to_string(),
        cursor: id.cursor.clone(),
    }
}

fn behind(changed: bool) -> Acknowledged {
    if changed {
        Acknowledged::Behind
    } else {
        Acknowledged::Nothing
    }
}

fn is_internal(property: &str) -> bool {
    property.starts_with(INTERNAL_PROPERTY_PREFIX)
}

/// A state in a node, with as many holes as a node takes.
fn node_of(state: &CursorState, ranges_max: usize, now: i64) -> ManagedCursorInfo {
    if state.has_more_ranges_than(ranges_max) {
        state.to_node_beside(-1, now)
    } else {
        state.to_node(now)
    }
}

/// Apache Pulsar's `CURSOR_INTERNAL_PROPERTY_PREFIX`.
const INTERNAL_PROPERTY_PREFIX: &str = "#pulsar.internal.";
