//! From files to state: what of the log counts, what is a torn tail and what is damage. Pure: files are read by the caller.
//!
//! The rules are those of `docs/storage-format.md`, "Recovery". A segment's groups are applied only when the segment behind it has
//! said where it ends, so that nothing is applied that an earlier recovery has cut.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::checkpoint::{self, Checkpoint};
use super::format::{Malformed, Position, Record, Salt, SegmentStart, is_segment_header};
use super::segment::{ScannedGroup, SegmentBytes};
use super::superblock::Superblock;
use super::{ChangeLog, JournalError, Replica};

/// The names of the directory, sorted by what they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Generations of all segments.
    pub segments: BTreeSet<u64>,
    /// Numbers of all free files.
    pub free: BTreeSet<u32>,
    /// Generations of all segments that have an index.
    pub indexes: BTreeSet<u64>,
    /// Index files that were not finished.
    pub unfinished: BTreeSet<String>,
}

/// Recovery under way.
#[derive(Debug)]
pub struct Recovery<R> {
    superblock: Superblock,
    salt: Salt,
    changes: ChangeLog,
    replica: R,
    position: Position,
    needed: BTreeSet<u64>,
    loaded: u64,
    next_generation: u64,
    highest: Option<u64>,
    /// The end of the log as far as it was read, and the number of its last group.
    end: Position,
    last_group: u64,
    /// Groups read and not yet applied, all of one segment.
    pending: Vec<ScannedGroup>,
    /// The last segment with groups.
    tail: Option<Tail>,
    with_groups: BTreeSet<u64>,
    empty: BTreeSet<u64>,
}

#[derive(Debug)]
struct Tail {
    bytes: SegmentBytes,
    /// Where its first group that does not verify would be.
    bad: u64,
}

/// What recovery found.
#[derive(Debug)]
pub struct Recovered<R> {
    /// The change log.
    pub changes: ChangeLog,
    /// What was built.
    pub replica: R,
    /// The end of the log.
    pub end: Position,
    /// Number of the next group.
    pub next_group: u64,
    /// The lowest generation that was never given.
    pub next_generation: u64,
    /// Number of the loaded checkpoint; 0: none.
    pub checkpoint: u64,
    /// Segments that may be read.
    pub sealed: BTreeSet<u64>,
    /// Segments with nothing in them.
    pub empty: BTreeSet<u64>,
    /// Segments that nothing needs.
    pub dead: BTreeSet<u64>,
    /// Bytes to be written again to their place, because nothing shows that they reached the disk.
    pub rewrite: Option<(Position, Bytes)>,
    /// Whether something behind the end was cut.
    pub cut: bool,
}

/// Sorts names.
#[must_use]
pub fn listing(names: &[String]) -> Listing {
    let mut listing = Listing::default();
    for name in names {
        if let Some(generation) = parse_hex(name, "segment-", 16) {
            listing.segments.insert(generation);
        } else if let Some(number) = parse_hex(name, "free-", 8) {
            listing.free.extend(u32::try_from(number));
        } else if let Some(generation) = parse_hex(name, "index-", 16) {
            listing.indexes.insert(generation);
        } else if let Some(index) = name.strip_suffix(UNFINISHED)
            && parse_hex(index, "index-", 16).is_some()
        {
            listing.unfinished.insert(name.clone());
        }
    }
    listing
}

/// The file of a segment.
#[must_use]
pub fn segment_file(generation: u64) -> String {
    format!("segment-{generation:016x}")
}

/// The file of a segment's index.
#[must_use]
pub fn index_file(generation: u64) -> String {
    format!("index-{generation:016x}")
}

/// The same while it is being written.
#[must_use]
pub fn unfinished_index_file(generation: u64) -> String {
    index_file(generation) + UNFINISHED
}

/// The file of a free segment.
#[must_use]
pub fn free_file(number: u32) -> String {
    format!("free-{number:08x}")
}

/// What a file is called behind its name until it is complete.
const UNFINISHED: &str = ".new";

impl<R: Replica> Recovery<R> {
    /// Starts with what the checkpoint files have; those that do not verify do not count.
    ///
    /// # Errors
    /// The checkpoint verifies and yet makes no sense, or a segment that it needs is not there.
    pub fn start(
        superblock: Superblock,
        checkpoints: &[Bytes],
        listing: &Listing,
        mut replica: R,
    ) -> Result<Self, JournalError> {
        let salt = Salt::of(&superblock.uuid);
        let newest = checkpoints
            .iter()
            .filter_map(|bytes| Checkpoint::decode(salt, bytes).ok())
            .max_by_key(|checkpoint| checkpoint.number);
        let mut changes = ChangeLog::default();
        let mut needed = BTreeSet::new();
        let mut at_start = (Position::default(), 1, 1, 0);
        if let Some(checkpoint) = newest {
            let broken =
                |error: Malformed| damaged(&checkpoint::file_of(checkpoint.number), 0, error.0);
            needed.extend(checkpoint.segments().map_err(broken)?);
            for (kind, bytes) in &checkpoint.sections {
                match *kind {
                    checkpoint::SEGMENTS => {}
                    checkpoint::CHANGES => changes = ChangeLog::restore(bytes).map_err(broken)?,
                    kind => replica.restore(kind, bytes).map_err(broken)?,
                }
            }
            at_start = (
                checkpoint.position,
                checkpoint.next_group,
                checkpoint.next_generation,
                checkpoint.number,
            );
        }
        let (position, next_group, next_generation, loaded) = at_start;
        let own = (loaded > 0).then_some(position.generation);
        for generation in needed.iter().copied().chain(own) {
            if !listing.segments.contains(&generation) {
                return Err(damaged(
                    &segment_file(generation),
                    0,
                    "the segment is missing",
                ));
            }
        }
        let highest = listing.segments.last().map_or(0, |highest| highest + 1);
        Ok(Self {
            superblock,
            salt,
            changes,
            replica,
            position,
            needed,
            loaded,
            next_generation: next_generation.max(highest).max(1),
            highest: listing.segments.last().copied(),
            end: position,
            last_group: next_group - 1,
            pending: Vec::new(),
            tail: None,
            with_groups: BTreeSet::new(),
            empty: BTreeSet::new(),
        })
    }

    /// Whether a segment has to be read as a whole; of others the header is enough.
    #[must_use]
    pub fn wants(&self, generation: u64) -> bool {
        generation >= self.position.generation
    }

    /// Whether a segment is needed for what is before the checkpoint's place.
    #[must_use]
    pub fn needs(&self, generation: u64) -> bool {
        self.wants(generation) || self.needed.contains(&generation)
    }

    /// Checks the header of a segment that is needed.
    ///
    /// # Errors
    /// It is not the header of this segment.
    pub fn header(&self, generation: u64, bytes: &[u8]) -> Result<(), JournalError> {
        let Superblock {
            uuid, segment_size, ..
        } = &self.superblock;
        if is_segment_header(bytes, generation, uuid, *segment_size) {
            return Ok(());
        }
        Err(damaged(
            &segment_file(generation),
            0,
            "its header is not that of this segment",
        ))
    }

    /// Whether a segment of the highest generation was being made of an older one that had no groups.
    #[must_use]
    pub fn is_interrupted(&self, generation: u64, bytes: &[u8]) -> bool {
        let Superblock {
            uuid, segment_size, ..
        } = &self.superblock;
        let older = bytes
            .get(8..16)
            .and_then(|held| held.try_into().ok())
            .map(u64::from_be_bytes);
        self.highest == Some(generation)
            && older.is_some_and(|older| {
                older < generation && is_segment_header(bytes, older, uuid, *segment_size)
            })
    }

    /// A segment that could not become one.
    pub fn interrupted(&mut self, generation: u64) {
        self.empty.insert(generation);
    }

    /// Takes all bytes of a segment that is wanted; segments come in order of their generation.
    ///
    /// # Errors
    /// Something that had been synced is damaged or missing.
    pub fn segment(&mut self, generation: u64, bytes: Bytes) -> Result<(), JournalError> {
        self.header(generation, &bytes)?;
        let block = self.superblock.block;
        let segment = SegmentBytes::new(bytes, generation, self.salt, block);
        if generation == self.position.generation {
            let groups = segment.groups(self.position.offset, Some(self.last_group + 1));
            self.take(generation, segment, self.position.offset, groups);
            return Ok(());
        }
        let from = u64::from(block);
        let Ok(first) = segment.group(from, None) else {
            if let Some((at, _)) = segment.evidence_behind(from, 0) {
                return Err(self.damaged_group(generation, &segment, from, at));
            }
            self.empty.insert(generation);
            return Ok(());
        };
        let Some((Record::SegmentStart(start), _)) = first.records.first() else {
            return Err(damaged(
                &segment_file(generation),
                from,
                "its first group is not a start",
            ));
        };
        self.link(generation, start)?;
        let groups = segment.groups(from, Some(first.header.number));
        if first.header.number != self.last_group + 1 {
            return Err(damaged(
                &segment_file(generation),
                from,
                "its number does not follow",
            ));
        }
        self.take(generation, segment, from, groups);
        Ok(())
    }

    /// The end of the log is found.
    ///
    /// # Errors
    /// Something that had been synced is damaged.
    pub fn finish(mut self, listing: &Listing) -> Result<Recovered<R>, JournalError> {
        let mut cut = false;
        if let Some(tail) = self.tail.take() {
            let generation = self.end.generation;
            if let Some((at, _)) = tail.bytes.evidence_behind(tail.bad, self.last_group) {
                return Err(self.damaged_group(generation, &tail.bytes, tail.bad, at));
            }
            // Any byte there that is not of an older use is a torn write; whether it is does not matter, the end does.
            cut = tail.bytes.range(tail.bad, tail.bad + 4).as_ref() == b"PGGR";
            self.tail = Some(tail);
        }
        let rewrite = self.unproven();
        self.apply_pending()?;
        self.replica.found_indexes(&listing.indexes);
        let sealed: BTreeSet<u64> = self.needed.union(&self.with_groups).copied().collect();
        let dead = listing
            .segments
            .iter()
            .copied()
            .filter(|generation| !sealed.contains(generation) && !self.empty.contains(generation))
            .collect();
        Ok(Recovered {
            changes: self.changes,
            replica: self.replica,
            end: self.end,
            next_group: self.last_group + 1,
            next_generation: self.next_generation,
            checkpoint: self.loaded,
            sealed,
            empty: self.empty,
            dead,
            rewrite,
            cut,
        })
    }

    /// What was read behind the last place that is known to be synced.
    fn unproven(&self) -> Option<(Position, Bytes)> {
        let tail = self.tail.as_ref()?;
        let first = self.pending.last()?;
        let known = first.header.durable_upto;
        let start = if known.generation == self.end.generation {
            known.offset
        } else {
            first.start
        };
        let at = Position {
            generation: self.end.generation,
            offset: start,
        };
        Some((at, tail.bytes.range(start, self.end.offset)))
    }

    /// A segment says what was before it: groups behind that were cut, and none may be missing.
    fn link(&mut self, generation: u64, start: &SegmentStart) -> Result<(), JournalError> {
        if start.previous_end.generation != self.end.generation {
            let missing = start.previous_end.generation;
            let file = if missing > self.end.generation {
                missing
            } else {
                generation
            };
            return Err(damaged(
                &segment_file(file),
                0,
                "a segment of the log is missing or has lost all its groups",
            ));
        }
        if start.previous_group > self.last_group || start.previous_end > self.end {
            let bad = self.end.offset;
            return Err(match self.tail.take() {
                Some(tail) => {
                    let before = start.previous_end.generation;
                    self.damaged_group(before, &tail.bytes, bad, bad)
                }
                None => damaged(
                    &segment_file(start.previous_end.generation),
                    bad,
                    "groups are missing",
                ),
            });
        }
        self.pending
            .retain(|group| group.header.number <= start.previous_group);
        if start.previous_group < self.last_group {
            self.last_group = start.previous_group;
            self.end = start.previous_end;
        }
        self.apply_pending()
    }

    fn take(&mut self, generation: u64, bytes: SegmentBytes, from: u64, groups: Vec<ScannedGroup>) {
        let end = groups.last().map_or(from, |group| group.end);
        if let Some(last) = groups.last() {
            self.last_group = last.header.number;
        }
        self.end = Position {
            generation,
            offset: end,
        };
        self.tail = Some(Tail { bytes, bad: end });
        self.pending = groups;
        self.with_groups.insert(generation);
    }

    fn apply_pending(&mut self) -> Result<(), JournalError> {
        for group in std::mem::take(&mut self.pending) {
            for (record, at) in &group.records {
                match record {
                    Record::Change { table, key, change } => {
                        self.changes.apply(*table, key, change)
                    }
                    Record::CheckpointDone { number } if *number > self.loaded => {
                        let file = checkpoint::file_of(*number);
                        return Err(damaged(
                            &file,
                            0,
                            "the checkpoint was durable and does not verify",
                        ));
                    }
                    _ => {}
                }
                self.replica.apply(record, *at);
            }
        }
        Ok(())
    }

    fn damaged_group(
        &self,
        generation: u64,
        segment: &SegmentBytes,
        bad: u64,
        shown_by: u64,
    ) -> JournalError {
        let what = match segment.group(bad, None) {
            Err(error) => error.0,
            Ok(_) => "a group does not follow the one before",
        };
        let proof = if shown_by == bad {
            String::new()
        } else {
            format!(", and the group at {shown_by} shows that it was synced")
        };
        JournalError::Damaged {
            file: segment_file(generation),
            offset: bad,
            what: format!("{what}{proof}"),
            ledgers: segment.ledgers_at(bad),
        }
    }
}

fn damaged(file: &str, offset: u64, what: &str) -> JournalError {
    JournalError::Damaged {
        file: file.to_owned(),
        offset,
        what: what.to_owned(),
        ledgers: Vec::new(),
    }
}

fn parse_hex(name: &str, prefix: &str, digits: usize) -> Option<u64> {
    let rest = name.strip_prefix(prefix)?;
    if rest.len() != digits || rest.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    u64::from_str_radix(rest, 16).ok()
}
