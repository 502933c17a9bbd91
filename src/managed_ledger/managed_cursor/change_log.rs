//! Cursors in the change log of the embedded store.
//!
//! The truth is the change log; the node says that the cursor is there, and for tools where it was when it was made, at the last snapshot
//! and when it was closed.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use super::super::cursor::RecordedState;
use super::super::formats::ManagedCursorInfo;
use super::super::{CursorState, LogExtent};
use super::node::{CursorNode, Step};
use super::{CursorError, CursorFailure, CursorId, CursorStorage, name, node_of, path};
use crate::ledger::{
    CursorName, CursorProgress, CursorStore, CursorUpdate, CursorWriter, LedgerError,
};
use crate::metadata::Version;

/// An open cursor in the change log.
pub(super) struct ChangeLogForm {
    store: Arc<dyn CursorStore>,
    name: CursorName,
    /// `None` while the cursor rests: most cursors do most of the time, and a writer takes more memory than all else.
    open: Option<OpenLog>,
    node: CursorNode,
    /// Number of the last record.
    number: u64,
    /// Bytes that the last snapshot took, and the deltas since.
    snapshot_bytes: usize,
    delta_bytes: usize,
    /// What is on its way: (append, changes that are durable with it).
    outstanding: VecDeque<(u64, u64)>,
    durable: u64,
    step: Option<Running>,
}

struct OpenLog {
    writer: Box<dyn CursorWriter>,
    progress: watch::Receiver<CursorProgress>,
}

enum Running {
    /// The node is being written.
    Node(Step<Version>),
    /// A cursor that rested is being opened: the writer, and the number of the last record.
    Open(Step<(Box<dyn CursorWriter>, u64)>),
}

enum Stepped {
    Node(Result<Version, CursorFailure>),
    Open(Result<(Box<dyn CursorWriter>, u64), CursorFailure>),
}

impl ChangeLogForm {
    /// A crash before the node is there leaves a state that the next creation replaces.
    pub(super) async fn create(
        storage: Arc<CursorStorage>,
        store: Arc<dyn CursorStore>,
        id: &CursorId,
        state: &CursorState,
        now: i64,
    ) -> Result<Self, CursorError> {
        let path = path(id)?;
        if CursorNode::exists(&storage, &path).await? {
            return Err(CursorError::AlreadyExists);
        }
        let name = name(id);
        let opened = store.open_cursor(&name).await;
        let (_, mut writer) = opened.map_err(CursorFailure::from)?;
        let snapshot_bytes = write_first(writer.as_mut(), state).await?;
        let node = CursorNode::create(storage, path, node_of(state, NODE_RANGES_MAX, now)).await?;
        let place = (store, name, node);
        Ok(Self::new(place, writer, 1, (snapshot_bytes, 0)))
    }

    /// A cursor without a state is one that another store made: its node tells all.
    pub(super) async fn open(
        store: Arc<dyn CursorStore>,
        id: &CursorId,
        node: CursorNode,
        info: &ManagedCursorInfo,
        log: &LogExtent,
    ) -> Result<(Self, CursorState), CursorError> {
        let name = name(id);
        let opened = store.open_cursor(&name).await;
        let (stored, mut writer) = opened.map_err(CursorFailure::from)?;
        let place = (store, name, node);
        if stored.snapshot.is_none() && stored.deltas.is_empty() {
            let state = CursorState::from_node(info, log);
            let snapshot_bytes = write_first(writer.as_mut(), &state).await?;
            return Ok((Self::new(place, writer, 1, (snapshot_bytes, 0)), state));
        }
        let (state, number) = CursorState::replay(stored.snapshot.as_ref(), &stored.deltas, log)?;
        let snapshot_bytes = stored.snapshot.map_or(0, |snapshot| snapshot.len());
        let deltas = stored.deltas.iter();
        let delta_bytes = deltas.map(|delta| delta.len() + DELTA_OVERHEAD).sum();
        let form = Self::new(place, writer, number, (snapshot_bytes, delta_bytes));
        Ok((form, state))
    }

    fn new(
        (store, name, node): (Arc<dyn CursorStore>, CursorName, CursorNode),
        writer: Box<dyn CursorWriter>,
        number: u64,
        (snapshot_bytes, delta_bytes): (usize, usize),
    ) -> Self {
        Self {
            store,
            name,
            open: Some(OpenLog::new(writer)),
            node,
            number,
            snapshot_bytes,
            delta_bytes,
            outstanding: VecDeque::new(),
            durable: 0,
            step: None,
        }
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Queues what changed, unless so much is on its way already that it would only wait: then it becomes one with what comes.
    pub(super) fn flush(
        &mut self,
        recorded: &mut RecordedState,
        covers: u64,
        now: i64,
    ) -> Result<(), CursorFailure> {
        self.look()?;
        if self.outstanding.len() >= OUTSTANDING_MAX || recorded.changes.is_empty() {
            return Ok(());
        }
        if self.open.is_none() {
            self.wake();
            return Ok(());
        }
        let deltas = recorded.state().deltas(&recorded.changes, self.number + 1);
        let lengths = deltas.iter().map(|delta| delta.len() + DELTA_OVERHEAD);
        let bytes: usize = lengths.sum();
        if self.delta_bytes + bytes > self.snapshot_bytes + DELTA_BYTES_FLOOR
            && self.take_snapshot(recorded, covers, now)?
        {
            return Ok(());
        }
        for delta in deltas {
            let append = self.append(CursorUpdate::Delta(delta))?;
            self.number += 1;
            // The changes are durable with the last one; those before it only bound what is on its way.
            self.outstanding.push_back((append, self.durable));
        }
        if let Some((_, last)) = self.outstanding.back_mut() {
            *last = covers;
        }
        self.delta_bytes += bytes;
        recorded.changes.written();
        Ok(())
    }

    /// Queues all of the state; false when the store takes none that is so long.
    fn take_snapshot(
        &mut self,
        recorded: &mut RecordedState,
        covers: u64,
        now: i64,
    ) -> Result<bool, CursorFailure> {
        let snapshot = recorded.state().snapshot(self.number + 1);
        let length = snapshot.len();
        // Tried again when there are as many deltas again.
        self.snapshot_bytes = length.max(self.delta_bytes);
        match self.append(CursorUpdate::Snapshot(snapshot)) {
            Ok(append) => self.outstanding.push_back((append, covers)),
            Err(LedgerError::TooLarge { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.number += 1;
        self.snapshot_bytes = length;
        self.delta_bytes = 0;
        recorded.changes.written();
        if self.step.is_none() {
            let info = node_of(recorded.state(), NODE_RANGES_MAX, now);
            self.step = Some(Running::Node(self.node.write(info)));
        }
        Ok(true)
    }

    fn append(&mut self, update: CursorUpdate) -> Result<u64, LedgerError> {
        let open = self.open.as_mut().ok_or(LedgerError::WriterFailed)?;
        open.writer.append(update)
    }

    /// Begins to open a cursor that rests.
    fn wake(&mut self) {
        if self.step.is_some() {
            return;
        }
        let (store, name) = (Arc::clone(&self.store), self.name.clone());
        self.step = Some(Running::Open(Box::pin(async move {
            let (stored, writer) = store.open_cursor(&name).await?;
            let last = stored.deltas.last().or(stored.snapshot.as_ref());
            let number = last.and_then(|record| CursorState::record_number(record));
            // Without a record it was deleted.
            Ok((writer, number.ok_or(CursorFailure::Fenced)?))
        })));
    }

    /// Gives up the writer, once a snapshot is all that is stored; false when there is something to wait for first. What has changed is
    /// flushed.
    pub(super) fn rest(
        &mut self,
        recorded: &mut RecordedState,
        covers: u64,
        now: i64,
    ) -> Result<bool, CursorFailure> {
        self.look()?;
        if self.open.is_none() && recorded.changes.is_empty() && self.step.is_none() {
            return Ok(true);
        }
        let is_busy = !self.outstanding.is_empty() || self.step.is_some();
        if is_busy || !recorded.changes.is_empty() {
            return Ok(false);
        }
        if self.delta_bytes > 0 && self.take_snapshot(recorded, covers, now)? {
            return Ok(false);
        }
        self.open = None;
        self.outstanding.shrink_to_fit();
        Ok(true)
    }

    /// Waits until something on its way has arrived, or failed. Cancel-safe.
    pub(super) async fn progressed(&mut self) -> Result<(), CursorFailure> {
        let waits = self.step.is_some();
        let step = async {
            match &mut self.step {
                Some(Running::Node(step)) => Stepped::Node(step.await),
                Some(Running::Open(step)) => Stepped::Open(step.await),
                None => std::future::pending().await,
            }
        };
        let is_outstanding = !self.outstanding.is_empty();
        let changed = async {
            match &mut self.open {
                Some(open) => open.progress.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            stepped = step, if waits => {
                self.step = None;
                self.note(stepped)
            }
            changed = changed, if is_outstanding => {
                changed.map_err(|_| LedgerError::WriterFailed)?;
                self.look()
            }
            else => std::future::pending().await,
        }
    }

    fn note(&mut self, stepped: Stepped) -> Result<(), CursorFailure> {
        match stepped {
            Stepped::Node(written) => self.note_node(written),
            Stepped::Open(opened) => {
                let (writer, number) = opened?;
                if number != self.number {
                    // Somebody else wrote meanwhile.
                    return Err(CursorFailure::Fenced);
                }
                // Appends are counted anew.
                self.open = Some(OpenLog::new(writer));
                Ok(())
            }
        }
    }

    /// Only what tells that somebody else has the cursor is a failure: the node is not what counts, and is written again.
    fn note_node(&mut self, written: Result<Version, CursorFailure>) -> Result<(), CursorFailure> {
        match written {
            Ok(version) => self.node.written(version),
            Err(CursorFailure::Fenced) => return Err(CursorFailure::Fenced),
            Err(_) => {}
        }
        Ok(())
    }

    /// Looks how far the store is.
    fn look(&mut self) -> Result<(), CursorFailure> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let progress = open.progress.borrow_and_update();
        while let Some((append, covers)) = self.outstanding.front()
            && *append <= progress.durable
        {
            self.durable = self.durable.max(*covers);
            self.outstanding.pop_front();
        }
        match &progress.failed {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }

    /// Leaves a snapshot, no deltas, and a node that says the same.
    pub(super) async fn close(
        &mut self,
        recorded: &mut RecordedState,
        covers: u64,
        now: i64,
    ) -> Result<(), CursorFailure> {
        while self.open.is_none() && (!recorded.changes.is_empty() || self.step.is_some()) {
            self.flush(recorded, covers, now)?;
            self.progressed().await?;
        }
        let is_changed = !recorded.changes.is_empty() || self.delta_bytes > 0;
        if is_changed && !self.take_snapshot(recorded, covers, now)? {
            self.flush(recorded, covers, now)?;
        }
        while !self.outstanding.is_empty() || self.step.is_some() {
            self.progressed().await?;
            self.flush(recorded, covers, now)?;
        }
        let info = node_of(recorded.state(), NODE_RANGES_MAX, now);
        let written = self.node.write(info).await;
        self.note_node(written)
    }
}

impl OpenLog {
    fn new(writer: Box<dyn CursorWriter>) -> Self {
        let progress = writer.progress();
        Self { writer, progress }
    }
}

/// The first record, until it is durable; its length.
async fn write_first(
    writer: &mut dyn CursorWriter,
    state: &CursorState,
) -> Result<usize, CursorFailure> {
    let snapshot = state.snapshot(1);
    let length = snapshot.len();
    let mut progress = writer.progress();
    let append = writer.append(CursorUpdate::Snapshot(snapshot))?;
    let reached = progress
        .wait_for(|progress| progress.durable >= append || progress.failed.is_some())
        .await
        .map_err(|_| LedgerError::WriterFailed)?;
    match &reached.failed {
        Some(error) if reached.durable < append => Err(error.clone().into()),
        _ => Ok(length),
    }
}

/// Appends on their way: one in the group that is being written, one for the next.
const OUTSTANDING_MAX: usize = 2;
/// What a delta takes beside its bytes, about, in the log and in memory.
const DELTA_OVERHEAD: usize = 32;
/// Deltas may take so many bytes more than the snapshot that they follow.
const DELTA_BYTES_FLOOR: usize = 512;
/// Holes that a node takes (`managedLedgerMaxUnackedRangesToPersistInMetadataStore`).
const NODE_RANGES_MAX: usize = 1000;
