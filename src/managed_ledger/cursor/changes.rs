//! A cursor's state that knows what of it has not been written yet. Pure.

use std::collections::BTreeMap;

use super::super::entry_set::EntrySet;
use super::super::{AckSet, LogExtent, Position};
use super::{Acknowledged, CursorState};

/// What of a state has to be written: only where it changed, so that what is written is always how it is then.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Everything behind the mark-delete position was forgotten; what was touched was so after that.
    pub(super) reset: bool,
    /// The mark-delete position moved.
    pub(super) mark_delete: bool,
    /// Entries that were acknowledged, as a whole or in part.
    pub(super) touched: BTreeMap<i64, EntrySet>,
    /// The properties of the position as they were written last, when they are others now.
    pub(super) properties: Option<BTreeMap<String, i64>>,
    /// The properties of the cursor as they were written last, when they are others now.
    pub(super) cursor_properties: Option<BTreeMap<String, String>>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        !self.position_changed() && !self.cursor_properties_changed()
    }

    /// Whether something changed that goes with the position.
    pub(crate) fn position_changed(&self) -> bool {
        self.reset || self.mark_delete || !self.touched.is_empty() || self.properties.is_some()
    }

    /// Whether properties of the cursor changed.
    pub(crate) fn cursor_properties_changed(&self) -> bool {
        self.cursor_properties.is_some()
    }

    /// What goes with the position has been written.
    pub(crate) fn position_written(&mut self) {
        let cursor_properties = self.cursor_properties.take();
        *self = Self {
            cursor_properties,
            ..Self::default()
        };
    }

    /// All of it has been written.
    pub(crate) fn written(&mut self) {
        *self = Self::default();
    }

    /// What was written last is lost: the position has to be written again, as a whole.
    pub(crate) fn position_lost(&mut self) {
        self.mark_delete = true;
    }
}

/// A cursor's state and what of it is not written yet.
#[derive(Debug)]
pub(crate) struct RecordedState {
    state: CursorState,
    pub(crate) changes: Changes,
}

impl RecordedState {
    /// A state that is written as it is.
    pub(crate) fn new(state: CursorState) -> Self {
        Self {
            state,
            changes: Changes::default(),
        }
    }

    pub(crate) fn state(&self) -> &CursorState {
        &self.state
    }

    /// See [`CursorState::acknowledge`].
    pub(crate) fn acknowledge(&mut self, position: Position, log: &LogExtent) -> Acknowledged {
        let done = self.state.acknowledge(position, log);
        self.noted(done, Some(position))
    }

    /// See [`CursorState::acknowledge_in_batch`].
    pub(crate) fn acknowledge_in_batch(
        &mut self,
        position: Position,
        messages: u32,
        remaining: &AckSet,
        log: &LogExtent,
    ) -> Acknowledged {
        let done = self
            .state
            .acknowledge_in_batch(position, messages, remaining, log);
        self.noted(done, Some(position))
    }

    /// See [`CursorState::acknowledge_through`].
    pub(crate) fn acknowledge_through(
        &mut self,
        position: Position,
        log: &LogExtent,
    ) -> Acknowledged {
        let done = self.state.acknowledge_through(position, log);
        self.noted(done, None)
    }

    /// See [`CursorState::acknowledge_through_batch`].
    pub(crate) fn acknowledge_through_batch(
        &mut self,
        position: Position,
        messages: u32,
        remaining: &AckSet,
        log: &LogExtent,
    ) -> Acknowledged {
        let done = self
            .state
            .acknowledge_through_batch(position, messages, remaining, log);
        self.noted(done, Some(position))
    }

    /// See [`CursorState::skip`].
    pub(crate) fn skip(&mut self, entries: u64, log: &LogExtent) -> Acknowledged {
        let done = self.state.skip(entries, log);
        self.noted(done, None)
    }

    /// See [`CursorState::clear_backlog`].
    pub(crate) fn clear_backlog(&mut self, log: &LogExtent) -> Acknowledged {
        let done = self.state.clear_backlog(log);
        self.noted(done, None)
    }

    /// See [`CursorState::reset`].
    pub(crate) fn reset(&mut self, mark_delete: Position, partly: Option<(Position, AckSet)>) {
        let batch = partly.as_ref().map(|(position, _)| *position);
        let had_properties = !self.state.properties().is_empty();
        if had_properties {
            self.keep_properties();
        }
        self.state.reset(mark_delete);
        self.changes.reset = true;
        self.changes.touched.clear();
        if let Some((position, remaining)) = partly {
            self.state.restore_batch(position, remaining);
        }
        self.noted(Acknowledged::Behind, batch);
    }

    /// See [`CursorState::log_changed`].
    pub(crate) fn log_changed(&mut self, log: &LogExtent) -> Acknowledged {
        let done = self.state.log_changed(log);
        self.noted(done, None)
    }

    /// See [`CursorState::set_properties`]; whether they were others before.
    pub(crate) fn set_properties(&mut self, properties: BTreeMap<String, i64>) -> bool {
        let changed = *self.state.properties() != properties;
        if changed {
            self.keep_properties();
            self.state.set_properties(properties);
        }
        changed
    }

    /// See [`CursorState::set_cursor_properties`]; whether they were others before.
    pub(crate) fn set_cursor_properties(&mut self, properties: BTreeMap<String, String>) -> bool {
        let changed = *self.state.cursor_properties() != properties;
        if changed {
            let before = self.state.cursor_properties();
            let kept = &mut self.changes.cursor_properties;
            kept.get_or_insert_with(|| before.clone());
            self.state.set_cursor_properties(properties);
        }
        changed
    }

    fn keep_properties(&mut self) {
        let before = self.state.properties();
        let kept = &mut self.changes.properties;
        kept.get_or_insert_with(|| before.clone());
    }

    fn noted(&mut self, done: Acknowledged, entry: Option<Position>) -> Acknowledged {
        match done {
            Acknowledged::Nothing => return done,
            Acknowledged::MarkDelete => self.changes.mark_delete = true,
            Acknowledged::Behind => {}
        }
        if let Some(position) = entry.filter(|position| *position > self.state.mark_delete()) {
            let entries = self.changes.touched.entry(position.ledger_id).or_default();
            entries.insert(position.entry_id);
        }
        done
    }
}
