//! What is shown: as JSON the fields as they are, as text lines for people.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::decode::EntryContent;

/// What one run shows.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Report {
    Summary(Box<SummaryShown>),
    Space(SpaceShown),
    Topics(Vec<TopicShown>),
    Ledgers(Vec<LedgerShown>),
    Cursors(Vec<CursorShown>),
    Metadata(Vec<NodeShown>),
    Entries(Vec<EntryShown>),
    Verified(VerifiedShown),
    Repaired(Vec<RepairShown>),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SummaryShown {
    pub(super) format: u32,
    pub(super) uuid: String,
    pub(super) cluster: String,
    /// Unix seconds.
    pub(super) created: u64,
    pub(super) block: u32,
    pub(super) segment_size: u32,
    pub(super) end_segment: u64,
    pub(super) end_offset: u64,
    pub(super) next_group: u64,
    pub(super) checkpoint: u64,
    /// Whether the next start will cut something that was never confirmed.
    pub(super) torn_tail: bool,
    pub(super) topics: usize,
    pub(super) ledgers: usize,
    pub(super) open_ledgers: usize,
    pub(super) entries: u64,
    pub(super) cursors: usize,
    pub(super) metadata_nodes: usize,
    pub(super) space: SpaceShown,
}

/// Bytes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SpaceShown {
    pub(super) segments: u64,
    pub(super) segment_count: u64,
    pub(super) live_entries: u64,
    pub(super) free: u64,
    pub(super) checkpoints: u64,
    pub(super) other: u64,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TopicShown {
    pub(super) topic: String,
    /// As its node has it.
    pub(super) node: Value,
    /// As the store has them.
    pub(super) ledgers: Vec<TopicLedgerShown>,
    pub(super) cursors: Vec<TopicCursorShown>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TopicLedgerShown {
    pub(super) ledger: i64,
    pub(super) is_there: bool,
    pub(super) sealed: bool,
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) live_bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TopicCursorShown {
    pub(super) cursor: String,
    pub(super) node: Value,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LedgerShown {
    pub(super) ledger: u64,
    pub(super) sealed: bool,
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) appended_bytes: u64,
    pub(super) live_bytes: u64,
    pub(super) segments: Vec<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) custom_metadata: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CursorShown {
    pub(super) topic: String,
    pub(super) cursor: String,
    pub(super) snapshot_bytes: Option<usize>,
    pub(super) deltas: usize,
    pub(super) delta_bytes: usize,
    pub(super) node: Option<Value>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeShown {
    pub(super) path: String,
    pub(super) version: u32,
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) children_made: u64,
    pub(super) value: Value,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryShown {
    pub(super) ledger: u64,
    pub(super) entry: u64,
    pub(super) segment: u64,
    pub(super) offset: u32,
    #[serde(flatten)]
    pub(super) content: EntryContent,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VerifiedShown {
    pub(super) segments: usize,
    pub(super) entries: usize,
    pub(super) checkpoints: Vec<CheckpointShown>,
    /// Why the metadata cannot be read.
    pub(super) metadata: Option<String>,
    pub(super) damage: Vec<DamageShown>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckpointShown {
    pub(super) file: String,
    /// Whether a start begins with it.
    pub(super) counts: bool,
    pub(super) number: Option<u64>,
    /// What is wrong with one that does not count.
    pub(super) problem: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DamageShown {
    pub(super) file: String,
    pub(super) offset: u64,
    pub(super) what: String,
    pub(super) ledgers: Vec<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RepairShown {
    pub(super) damage: String,
    pub(super) done: String,
    pub(super) kept: Vec<String>,
    pub(super) lost_ledgers: Vec<LostLedgerShown>,
    /// Ledgers that may have lost more than can be told.
    pub(super) perhaps: Vec<u64>,
    /// Cursors that go back to what they were before.
    pub(super) cursors: Vec<String>,
    /// Nodes that go back to what they were before.
    pub(super) metadata: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LostLedgerShown {
    pub(super) ledger: u64,
    /// First and last entry.
    pub(super) entries: Option<(u64, u64)>,
    pub(super) count: u64,
    /// The whole ledger.
    pub(super) created: bool,
    /// That it was sealed, trimmed or deleted.
    pub(super) ended: bool,
}

impl Report {
    /// Whether it shows damage.
    pub(super) fn is_damaged(&self) -> bool {
        match self {
            Self::Verified(shown) => !shown.damage.is_empty() || shown.metadata.is_some(),
            Self::Entries(entries) => entries.iter().any(|entry| entry.content.damage.is_some()),
            _ => false,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Summary(shown) => shown.fmt(f),
            Self::Space(shown) => shown.fmt(f),
            Self::Topics(shown) => lines(f, shown, "no topic"),
            Self::Ledgers(shown) => lines(f, shown, "no ledger"),
            Self::Cursors(shown) => lines(f, shown, "no cursor"),
            Self::Metadata(shown) => lines(f, shown, "no node"),
            Self::Entries(shown) => lines(f, shown, "no entry"),
            Self::Verified(shown) => shown.fmt(f),
            Self::Repaired(shown) => lines(f, shown, "nothing to repair"),
        }
    }
}

fn lines<T: fmt::Display>(f: &mut fmt::Formatter<'_>, shown: &[T], none: &str) -> fmt::Result {
    if shown.is_empty() {
        return writeln!(f, "{none}");
    }
    shown.iter().try_for_each(|item| write!(f, "{item}"))
}

impl fmt::Display for SummaryShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "format           {}", self.format)?;
        writeln!(f, "uuid             {}", self.uuid)?;
        writeln!(f, "cluster          {}", self.cluster)?;
        writeln!(f, "created          {} (Unix seconds)", self.created)?;
        writeln!(f, "block            {} bytes", self.block)?;
        writeln!(f, "segment size     {} bytes", self.segment_size)?;
        writeln!(
            f,
            "end of the log   segment {}, offset {}, {} groups",
            self.end_segment,
            self.end_offset,
            self.next_group.saturating_sub(1)
        )?;
        if self.torn_tail {
            writeln!(f, "torn tail        cut by the next start; never confirmed")?;
        }
        writeln!(f, "checkpoint       {}", self.checkpoint)?;
        writeln!(f, "topics           {}", self.topics)?;
        writeln!(
            f,
            "ledgers          {}, {} of them open",
            self.ledgers, self.open_ledgers
        )?;
        writeln!(f, "entries          {}", self.entries)?;
        writeln!(f, "cursors          {}", self.cursors)?;
        writeln!(f, "metadata nodes   {}", self.metadata_nodes)?;
        self.space.fmt(f)
    }
}

impl fmt::Display for SpaceShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "segments         {} bytes in {}, {} of them entries that are needed",
            self.segments, self.segment_count, self.live_entries
        )?;
        writeln!(f, "free             {} bytes", self.free)?;
        writeln!(f, "checkpoints      {} bytes", self.checkpoints)?;
        writeln!(f, "other            {} bytes", self.other)
    }
}

impl fmt::Display for TopicShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.topic)?;
        if let Some(problem) = self.node.get("problem") {
            writeln!(f, "  cannot be read: {problem}")?;
        }
        for ledger in &self.ledgers {
            if ledger.is_there {
                writeln!(
                    f,
                    "  ledger {}: {}, {} bytes{}",
                    ledger.ledger,
                    extent(ledger.first, ledger.next),
                    ledger.live_bytes,
                    state(ledger.sealed)
                )?;
            } else {
                writeln!(f, "  ledger {}: not in this store", ledger.ledger)?;
            }
        }
        for cursor in &self.cursors {
            writeln!(f, "  cursor {}: {}", cursor.cursor, cursor.node)?;
        }
        Ok(())
    }
}

impl fmt::Display for LedgerShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ledger {}: {}, {} bytes in segments {:?}{}",
            self.ledger,
            extent(self.first, self.next),
            self.live_bytes,
            self.segments,
            state(self.sealed)
        )?;
        for (name, value) in &self.custom_metadata {
            write!(f, ", {name} = {value}")?;
        }
        if let Some(problem) = &self.problem {
            write!(f, ", {problem}")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for CursorShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.topic, self.cursor)?;
        match self.snapshot_bytes {
            Some(bytes) => write!(f, "state of {bytes} bytes")?,
            None => write!(f, "no state")?,
        }
        write!(f, ", {} deltas of {} bytes", self.deltas, self.delta_bytes)?;
        match &self.node {
            Some(node) => writeln!(f, ", node {node}"),
            None => writeln!(f),
        }
    }
}

impl fmt::Display for NodeShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (version {}) {}", self.path, self.version, self.value)
    }
}

impl fmt::Display for EntryShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.ledger, self.entry)?;
        let content = &self.content;
        if let Some(damage) = &content.damage {
            return writeln!(f, "damaged: {damage}");
        }
        write!(f, "{} bytes", content.length)?;
        if let Some(index) = content.index {
            write!(f, ", index {index}")?;
        }
        if content.checksum == Some(false) {
            write!(f, ", the publisher's checksum is wrong")?;
        }
        if let Some(message) = &content.message {
            write!(f, ", {message}")?;
        }
        if let Some(why) = &content.no_message {
            write!(f, ", no message: {why}")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for VerifiedShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for damage in &self.damage {
            writeln!(
                f,
                "{} at {}: {}; ledgers affected: {:?}",
                damage.file, damage.offset, damage.what, damage.ledgers
            )?;
        }
        if let Some(metadata) = &self.metadata {
            writeln!(f, "metadata: {metadata}")?;
        }
        for checkpoint in &self.checkpoints {
            match (&checkpoint.problem, checkpoint.number) {
                (Some(problem), _) => {
                    writeln!(f, "{}: not used, {problem}", checkpoint.file)?;
                }
                (None, number) => writeln!(
                    f,
                    "{}: number {}{}",
                    checkpoint.file,
                    number.unwrap_or(0),
                    if checkpoint.counts { ", used" } else { "" }
                )?,
            }
        }
        writeln!(
            f,
            "{} segments and {} entries checked, {} damaged",
            self.segments,
            self.entries,
            self.damage.len()
        )
    }
}

impl fmt::Display for RepairShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.damage)?;
        writeln!(f, "  done: {}", self.done)?;
        for kept in &self.kept {
            writeln!(f, "  kept: {kept}")?;
        }
        for lost in &self.lost_ledgers {
            write!(f, "  lost: ledger {}", lost.ledger)?;
            if lost.created {
                write!(f, " as a whole")?;
            }
            if let Some((first, last)) = lost.entries {
                write!(f, ", {} entries from {first} to {last}", lost.count)?;
            }
            if lost.ended {
                write!(f, ", that it was sealed, trimmed or deleted")?;
            }
            writeln!(f)?;
        }
        if !self.perhaps.is_empty() {
            writeln!(f, "  perhaps more of ledgers {:?}", self.perhaps)?;
        }
        for cursor in &self.cursors {
            writeln!(f, "  as it was before: cursor {cursor}")?;
        }
        for path in &self.metadata {
            writeln!(f, "  as it was before: node {path}")?;
        }
        Ok(())
    }
}

fn extent(first: u64, next: u64) -> String {
    match next.checked_sub(1) {
        Some(last) if last >= first => format!("entries {first} to {last}"),
        _ => "no entry".to_owned(),
    }
}

fn state(sealed: bool) -> &'static str {
    if sealed { "" } else { ", open" }
}
