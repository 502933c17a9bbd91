//! From a directory to what is shown of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::decode::{self, TopicNode};
use super::report::{
    CheckpointShown, CursorShown, DamageShown, EntryShown, LedgerShown, NodeShown, SpaceShown,
    SummaryShown, TopicCursorShown, TopicLedgerShown, TopicShown, VerifiedShown,
};
use super::{EntriesWanted, Failed};
use crate::disk::ReadOnlyDisk;
use crate::journal::audit::{self, Audit, Place};
use crate::journal::superblock::{self, Superblock};
use crate::journal::{JournalError, Record, Table};
use crate::ledger::CursorName;
use crate::ledger::embedded::{LedgerReplica, options};
use crate::metadata::{EmbeddedMetadata, JournalLog, StoredNode};

/// A store that is being looked at.
#[derive(Debug)]
pub(super) struct Look<'a> {
    disk: &'a ReadOnlyDisk,
    superblock: Superblock,
    audit: Audit<LedgerReplica>,
}

impl<'a> Look<'a> {
    pub(super) fn at(disk: &'a ReadOnlyDisk, superblock: Superblock) -> Result<Self, JournalError> {
        let audit = Audit::read(disk, &superblock, LedgerReplica::detached())?;
        Ok(Self {
            disk,
            superblock,
            audit,
        })
    }

    pub(super) fn summary(&self) -> Result<SummaryShown, Failed> {
        let recovered = &self.audit.recovered;
        let ledgers = self.ledgers();
        let nodes = self.nodes()?;
        let topics = nodes.iter().filter(|node| {
            matches!(
                TopicNode::of(&node.path),
                Some(TopicNode { cursor: None, .. })
            )
        });
        Ok(SummaryShown {
            format: superblock::FORMAT,
            uuid: hex(&self.superblock.uuid),
            cluster: self.superblock.cluster.clone(),
            created: self.superblock.created,
            block: self.superblock.block,
            segment_size: self.superblock.segment_size,
            end_segment: recovered.end.generation,
            end_offset: recovered.end.offset,
            next_group: recovered.next_group,
            checkpoint: recovered.checkpoint,
            torn_tail: recovered.cut,
            topics: topics.count(),
            ledgers: ledgers.len(),
            open_ledgers: ledgers.iter().filter(|ledger| !ledger.sealed).count(),
            entries: ledgers
                .iter()
                .map(|ledger| ledger.next - ledger.first)
                .sum(),
            cursors: recovered.changes.table(Table::Cursors).count(),
            metadata_nodes: nodes.len(),
            space: self.space()?,
        })
    }

    pub(super) fn space(&self) -> Result<SpaceShown, JournalError> {
        let space = audit::space(self.disk, &self.audit.recovered)?;
        let mut live = 0;
        self.audit.recovered.replica.visit(|_, index| {
            live += index.places().map(|at| u64::from(at.length)).sum::<u64>();
        });
        Ok(SpaceShown {
            segments: space.segments,
            segment_count: space.segment_count,
            live_entries: live,
            free: space.free,
            checkpoints: space.checkpoints,
            other: space.other,
        })
    }

    pub(super) fn ledgers(&self) -> Vec<LedgerShown> {
        let mut ledgers = Vec::new();
        self.audit.recovered.replica.visit(|ledger, index| {
            let segments: BTreeSet<u64> = index.places().map(|at| at.generation).collect();
            let options = options::decode(&index.options).map_err(|error| error.to_string());
            let (custom_metadata, problem) = match options {
                Ok(options) => (decode::texts(options.custom_metadata), None),
                Err(error) => (BTreeMap::new(), Some(error)),
            };
            ledgers.push(LedgerShown {
                ledger,
                sealed: index.sealed,
                first: index.first(),
                next: index.next(),
                appended_bytes: index.length(),
                live_bytes: index.places().map(|at| u64::from(at.length)).sum(),
                segments: segments.into_iter().collect(),
                custom_metadata,
                problem,
            });
        });
        ledgers
    }

    pub(super) fn topics(&self) -> Result<Vec<TopicShown>, Failed> {
        let mut topics: BTreeMap<String, TopicShown> = BTreeMap::new();
        for node in self.nodes()? {
            let Some(place) = TopicNode::of(&node.path) else {
                continue;
            };
            let topic = topics
                .entry(place.topic.clone())
                .or_insert_with(|| TopicShown {
                    topic: place.topic.clone(),
                    ..TopicShown::default()
                });
            match place.cursor {
                Some(cursor) => topic.cursors.push(TopicCursorShown {
                    cursor,
                    node: decode::cursor_node(&node.value),
                }),
                None => {
                    topic.node = decode::ledger_list(&node.value);
                    for ledger in decode::ledger_ids(&node.value) {
                        topic.ledgers.push(self.ledger_of_topic(ledger));
                    }
                }
            }
        }
        Ok(topics.into_values().collect())
    }

    fn ledger_of_topic(&self, id: i64) -> TopicLedgerShown {
        let mut shown = TopicLedgerShown {
            ledger: id,
            ..TopicLedgerShown::default()
        };
        let index = u64::try_from(id)
            .ok()
            .and_then(|id| self.audit.recovered.replica.index_of(id));
        if let Some(index) = index {
            shown.is_there = true;
            shown.sealed = index.sealed;
            shown.first = index.first();
            shown.next = index.next();
            shown.live_bytes = index.places().map(|at| u64::from(at.length)).sum();
        }
        shown
    }

    pub(super) fn cursors(&self) -> Result<Vec<CursorShown>, Failed> {
        let nodes: BTreeMap<(String, String), Bytes> = self
            .nodes()?
            .into_iter()
            .filter_map(|node| {
                let place = TopicNode::of(&node.path)?;
                Some(((place.topic, place.cursor?), node.value))
            })
            .collect();
        let changes = &self.audit.recovered.changes;
        let table = changes.table(Table::Cursors);
        let shown = table.map(|(key, value)| {
            let name = CursorName::of_key(key);
            let (topic, cursor) = match name {
                Some(name) => (name.topic, name.cursor),
                None => (key.escape_ascii().to_string(), String::new()),
            };
            let node = nodes.get(&(topic.clone(), cursor.clone()));
            CursorShown {
                topic,
                cursor,
                snapshot_bytes: value.base.as_ref().map(Bytes::len),
                deltas: value.deltas.len(),
                delta_bytes: value.deltas.iter().map(Bytes::len).sum(),
                node: node.map(decode::cursor_node),
            }
        });
        Ok(shown.collect())
    }

    pub(super) fn metadata(&self) -> Result<Vec<NodeShown>, Failed> {
        let nodes = self.nodes()?.into_iter().map(|node| NodeShown {
            path: node.path.to_string(),
            version: node.version.0,
            created: node.created,
            modified: node.modified,
            children_made: node.children_made,
            value: decode::node(&node.path, &node.value),
        });
        Ok(nodes.collect())
    }

    pub(super) fn entries(&self, wanted: EntriesWanted) -> Result<Vec<EntryShown>, Failed> {
        let EntriesWanted {
            ledger,
            from,
            count,
        } = wanted;
        let index = self.audit.recovered.replica.index_of(ledger);
        let index = index.ok_or_else(|| Failed::Missing(format!("there is no ledger {ledger}")))?;
        let first = from.unwrap_or_else(|| index.first()).max(index.first());
        let mut shown = Vec::new();
        for entry in (first..index.next()).take(count) {
            let Some(at) = index.place(entry) else { break };
            let payload = match self.audit.record(at) {
                Ok(
                    Record::Entry {
                        ledger: l,
                        entry: e,
                        payload,
                    }
                    | Record::Copied {
                        ledger: l,
                        entry: e,
                        payload,
                    },
                ) if (l, e) == (ledger, entry) => Ok(payload),
                Ok(_) => Err("another record is in its place".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            shown.push(EntryShown {
                ledger,
                entry,
                segment: at.generation,
                offset: at.offset,
                content: payload.map_or_else(decode::EntryContent::damaged, decode::entry),
            });
        }
        Ok(shown)
    }

    pub(super) fn verify(&self) -> Result<VerifiedShown, Failed> {
        let mut places: Vec<Place> = Vec::new();
        self.audit.recovered.replica.visit(|ledger, index| {
            places.extend(
                (index.first()..)
                    .zip(index.places())
                    .map(|(entry, at)| (ledger, entry, at)),
            );
        });
        let entries = places.len();
        let damage = self.audit.verify(places)?;
        let checkpoints = audit::checkpoints(self.disk, &self.superblock)?;
        let metadata = self.nodes().err().map(|error| match error {
            Failed::Journal(error) => error.to_string(),
            Failed::Missing(what) => what,
        });
        Ok(VerifiedShown {
            segments: self.audit.recovered.sealed.len(),
            entries,
            checkpoints: checkpoints
                .into_iter()
                .map(|(file, number)| CheckpointShown {
                    file,
                    counts: number == Ok(self.audit.recovered.checkpoint),
                    number: number.ok(),
                    problem: number.err().map(str::to_owned),
                })
                .collect(),
            metadata,
            damage: damage
                .into_iter()
                .map(|damage| DamageShown {
                    file: super::in_directory(self.disk.path(), &damage.file),
                    offset: damage.offset,
                    what: damage.what,
                    ledgers: damage.ledgers,
                })
                .collect(),
        })
    }

    fn nodes(&self) -> Result<Vec<StoredNode>, Failed> {
        let pairs = JournalLog::pairs(&self.audit.recovered.changes);
        EmbeddedMetadata::stored_nodes(pairs).map_err(|error| Failed::Missing(error.to_string()))
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    })
}
