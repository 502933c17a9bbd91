//! Which ledgers of a log go. Pure.

use super::event::{Effect, Effects};
use super::list::Change;
use super::state::{Goal, LogState, Phase, ledger_id};
use crate::managed_ledger::Position;

impl LogState {
    /// Removes ledgers whose entries are all at or before `consumed`, as far as retention allows. What is behind stays, and so does the
    /// ledger that is written, or was written last: positions count on it.
    pub(super) fn trim(&mut self, consumed: Position, now: i64, out: &mut Effects) {
        let goes_already = |change: &Change| matches!(change, Change::Remove(_));
        let writing = self
            .writing_list
            .iter()
            .flat_map(|writing| &writing.changes);
        if self.changes.iter().chain(writing).any(goes_already) {
            return;
        }
        let open = self.present().map_or(0, |ledger| ledger.bytes);
        let mut bytes = self.list.bytes().saturating_add(open);
        let mut gone = Vec::new();
        let mut all_closed_go = !self.list.ledgers.is_empty();
        for ledger in &self.list.ledgers {
            let Some(closed) = ledger.closed else {
                all_closed_go = false;
                break;
            };
            let last = Position::new(ledger.id, closed.entries - 1);
            let age = now.saturating_sub(closed.at);
            bytes = bytes.saturating_sub(closed.bytes);
            if last > consumed || !self.settings.retention.is_over(age, bytes) {
                all_closed_go = false;
                break;
            }
            gone.push(ledger.id);
        }
        if all_closed_go {
            // There has to be another one before the last can go.
            let last = gone.pop();
            if last == Some(self.last_confirmed.ledger_id) && self.last_confirmed.entry_id >= 0 {
                self.roll_when_idle(out);
            }
        }
        if gone.is_empty() {
            self.trim_first(consumed, out);
        } else {
            self.changes.push(Change::Remove(gone));
        }
        self.advance(now, out);
    }

    /// Gives up the beginning of the first ledger, when very much of it is consumed.
    fn trim_first(&mut self, consumed: Position, out: &mut Effects) {
        let Some(first) = self.list.ledgers.first() else {
            return;
        };
        let (entries, each) = match (first.closed, self.present()) {
            (Some(closed), _) => (closed.entries, closed.bytes / closed.entries.max(1)),
            (None, Some(open)) if open.id == first.id => {
                (open.confirmed, open.bytes / open.entries.max(1))
            }
            _ => return,
        };
        let retention = self.settings.retention;
        let keeps = retention.millis != 0 && retention.bytes != 0;
        if keeps || entries == 0 || consumed < Position::new(first.id, 0) {
            return;
        }
        let consumed = match consumed.ledger_id == first.id {
            true => consumed.entry_id.saturating_add(1).min(entries),
            false => entries,
        };
        let kept = self.settings.keep_consumed_bytes / each.max(1);
        let goes = consumed.saturating_sub(kept);
        // In steps, so that not each acknowledgement is a trim.
        if goes <= self.first_entry || goes - self.first_entry < kept / 4 {
            return;
        }
        self.first_entry = goes;
        out.push(Effect::Publish);
        if let (Some(id), Ok(first)) = (ledger_id(first.id), u64::try_from(goes)) {
            out.push(Effect::Trim(id, first));
        }
    }

    fn roll_when_idle(&mut self, out: &mut Effects) {
        if matches!(self.phase, Phase::Idle) && self.goal == Goal::Write {
            self.roll(true, out);
        }
    }

    pub(super) fn delete_unlisted(&mut self, out: &mut Effects) {
        if self.deleting || self.undeleted.is_empty() {
            return;
        }
        let ids = std::mem::take(&mut self.undeleted);
        self.deleting = true;
        out.push(Effect::Delete(
            ids.into_iter().filter_map(ledger_id).collect(),
        ));
    }
}
