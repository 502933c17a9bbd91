//! How the list of a log's ledgers is written: one change after the other, each against the version before. Pure.

use bytes::Bytes;

use super::event::{Effect, Effects, LogEnd, LogEvent};
use super::list::Change;
use super::state::{Goal, INDEX_PROPERTY, LogState, NO_ENTRY, OpenLedger, Phase, WritingList};
use crate::managed_ledger::Position;
use crate::managed_ledger::formats::NodeCompression;
use crate::metadata::{Expected, MetadataError, NodePath, Version};

impl LogState {
    /// Changes properties: [`LogEvent::Properties`] with this number tells when they are written.
    pub(super) fn set_properties(&mut self, request: u64, set: Vec<(String, Option<String>)>) {
        self.changes.push(Change::Properties { request, set });
    }

    pub(super) fn write_list(&mut self, out: &mut Effects) {
        if self.writing_list.is_some() || self.changes.is_empty() {
            return;
        }
        if matches!(&self.phase, Phase::Ended(end) if !matches!(end, LogEnd::Terminated(_))) {
            return;
        }
        let changes = std::mem::take(&mut self.changes);
        let mut next = self.list.clone();
        for change in &changes {
            next.apply(change);
        }
        if let Some(index) = self.index {
            next.set_property(INDEX_PROPERTY, Some(index.to_string()));
        }
        // Compression of what is in memory does not fail; a value that is not compressed is read as well.
        let value = next
            .encode(self.settings.compression)
            .unwrap_or_else(|_| next.encode(NodeCompression::NEVER).unwrap_or_default());
        let expected = self.version.map_or(Expected::Absent, Expected::Version);
        out.push(Effect::WriteList(value.clone(), expected));
        self.writing_list = Some(WritingList {
            changes,
            value,
            stuck: false,
        });
    }

    pub(super) fn listed(
        &mut self,
        result: Result<Version, MetadataError>,
        now: i64,
        out: &mut Effects,
    ) {
        let Some(writing) = self.writing_list.take() else {
            return;
        };
        match result {
            Ok(version) => {
                self.version = Some(version);
                // Ends that became known meanwhile are not in what was written.
                self.ends_unlisted = false;
                for change in writing.changes {
                    self.apply(&change, now, out);
                }
            }
            Err(
                MetadataError::BadVersion(_)
                | MetadataError::NotFound(_)
                | MetadataError::AlreadyExists(_),
            ) => {
                self.not_listed(writing.changes, None, now, out);
                self.finish(LogEnd::Fenced, out);
            }
            Err(
                MetadataError::ConnectionLost
                | MetadataError::SessionExpired
                | MetadataError::Failed,
            ) => {
                self.writing_list = Some(writing);
                out.push(Effect::ReadList);
            }
            Err(error) => self.not_listed(writing.changes, Some(error), now, out),
        }
    }

    /// The list as it stands, after a write of which it is not known whether it happened.
    pub(super) fn list_read(
        &mut self,
        result: Result<Option<(Version, Bytes)>, MetadataError>,
        now: i64,
        out: &mut Effects,
    ) {
        let Some(writing) = &mut self.writing_list else {
            return;
        };
        let result = match result {
            Ok(Some((version, value))) if value == writing.value => Ok(version),
            Ok(found) if found.as_ref().map(|(version, _)| *version) == self.version => {
                // It was not written: once more.
                let mut changes = std::mem::take(&mut writing.changes);
                changes.append(&mut self.changes);
                self.changes = changes;
                self.writing_list = None;
                return;
            }
            Ok(_) => Err(MetadataError::BadVersion(NodePath::root())),
            Err(MetadataError::ConnectionLost) => {
                writing.stuck = true;
                return;
            }
            Err(error) => {
                self.finish(LogEnd::Failed(error.into()), out);
                return;
            }
        };
        self.listed(result, now, out);
    }

    fn apply(&mut self, change: &Change, now: i64, out: &mut Effects) {
        let gone = self.list.apply(change);
        if let Some(index) = self.index {
            self.list
                .set_property(INDEX_PROPERTY, Some(index.to_string()));
        }
        match change {
            Change::Add(id) => {
                if self.last_confirmed == NO_ENTRY {
                    self.last_confirmed = Position::before(*id);
                }
                if let Phase::Rolling(_) = self.phase {
                    self.counters.ledger_created_at = Some(now);
                    self.retry_at = None;
                    self.phase = Phase::Open(OpenLedger {
                        id: *id,
                        created_at: now,
                        entries: 0,
                        bytes: 0,
                        confirmed: 0,
                    });
                    out.push(Effect::UseCreated);
                }
            }
            Change::Terminate(position) => self.finish(LogEnd::Terminated(*position), out),
            Change::Properties { request, .. } => out.push(Effect::Tell(LogEvent::Properties {
                request: *request,
                result: Ok(()),
            })),
            Change::Remove(_) | Change::Ends => {}
        }
        let first = self.list.ledgers.first().map(|ledger| ledger.id);
        if first != self.extent.ledgers().next().map(|(id, _)| id) {
            self.first_entry = 0;
        }
        let before = std::mem::replace(&mut self.extent, self.list.extent());
        if let Some(last) = self.list.ledgers.last()
            && last.closed.is_none()
        {
            let confirmed = before.entries(last.id).unwrap_or(0);
            let extent = std::mem::take(&mut self.extent);
            self.extent = extent.with_last_entries(confirmed);
        }
        out.push(Effect::Publish);
        self.undeleted.extend(gone);
        self.delete_unlisted(out);
    }

    /// Changes were not written. Without an error: because somebody else has the log.
    fn not_listed(
        &mut self,
        changes: Vec<Change>,
        error: Option<MetadataError>,
        now: i64,
        out: &mut Effects,
    ) {
        for change in changes {
            match (change, &error) {
                (Change::Add(id), error) => {
                    self.undeleted.push(id);
                    self.delete_unlisted(out);
                    if let Some(error) = error {
                        self.no_next(error.clone().into(), now, out);
                    }
                }
                (Change::Terminate(_), Some(error)) => {
                    self.goal = Goal::Write;
                    out.push(Effect::Tell(LogEvent::NotTerminated(error.clone().into())));
                }
                (Change::Properties { request, .. }, error) => {
                    let path = NodePath::root();
                    let error = error.clone().unwrap_or(MetadataError::BadVersion(path));
                    out.push(Effect::Tell(LogEvent::Properties {
                        request,
                        result: Err(error.into()),
                    }));
                }
                // What is known of ends is known again when they are recovered.
                (Change::Ends, Some(_)) => self.ends_unlisted = false,
                (Change::Ends | Change::Remove(_) | Change::Terminate(_), _) => {}
            }
        }
    }
}
