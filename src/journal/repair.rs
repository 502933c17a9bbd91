//! Making a store start again that recovery refuses, at the price of what cannot be read. Only ever at the word of who owns it. Blocks.
//!
//! What is taken away is kept under another name beside it. A repair that is interrupted is begun again: the damage that it was for is
//! removed last.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::audit::Audit;
use super::checkpoint::{self, Checkpoint};
use super::execute::read_whole;
use super::format::{Record, Salt, encode_segment_header};
use super::open::{CHECKPOINTS, rewrite};
use super::recovery::{listing, segment_file};
use super::segment::SegmentBytes;
use super::superblock::Superblock;
use super::{JournalError, Replica};
use crate::disk::{Disk, DiskErrorKind};

/// One thing that was repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The damage, as recovery tells it.
    pub damage: String,
    /// What was done.
    pub done: String,
    /// Files that keep what was there before.
    pub kept: Vec<String>,
    /// What is lost by it.
    pub lost: Lost,
}

/// What a cut took away.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lost {
    /// By ledger.
    pub ledgers: BTreeMap<u64, LostOfLedger>,
    /// Ledgers of which something cannot be read that may have been more.
    pub perhaps: BTreeSet<u64>,
    /// Keys of the change log, by table, that go back to an older value.
    pub changes: BTreeSet<(u16, Bytes)>,
}

/// What a cut took away of one ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LostOfLedger {
    /// The first and the last entry.
    pub entries: Option<(u64, u64)>,
    /// How many.
    pub count: u64,
    /// The ledger itself.
    pub created: bool,
    /// That it was sealed, trimmed or deleted.
    pub ended: bool,
}

/// Repairs until recovery goes through.
///
/// # Errors
/// What recovery says that cannot be repaired, or the disk.
pub fn repair<R: Replica>(
    disk: &dyn Disk,
    superblock: &Superblock,
    replica: impl Fn() -> R,
) -> Result<Vec<Repair>, JournalError> {
    let mut repairs = Vec::new();
    // Each of them removes one damage; there are not endlessly many.
    for _ in 0..REPAIRS_MAX {
        let error = match Audit::read(disk, superblock, replica()) {
            Ok(_) => return Ok(repairs),
            Err(error) => error,
        };
        let JournalError::Damaged { file, offset, .. } = &error else {
            return Err(error);
        };
        let repairer = Repairer {
            disk,
            superblock,
            prefix: free_prefix(disk)?,
        };
        let damaged = listing(std::slice::from_ref(file)).segments.pop_first();
        let mut repair = match damaged {
            Some(generation) => repairer.segment(generation, *offset, &error)?,
            None if CHECKPOINTS.contains(&file.as_str()) => {
                repairer.checkpoint(file, replica(), &error)?
            }
            None => return Err(error),
        };
        repair.damage = error.to_string();
        repairs.push(repair);
    }
    match Audit::read(disk, superblock, replica()) {
        Ok(_) => Ok(repairs),
        Err(error) => Err(error),
    }
}

struct Repairer<'a> {
    disk: &'a dyn Disk,
    superblock: &'a Superblock,
    /// Before the names of what is kept.
    prefix: String,
}

impl Repairer<'_> {
    fn segment(
        &self,
        generation: u64,
        offset: u64,
        error: &JournalError,
    ) -> Result<Repair, JournalError> {
        let name = segment_file(generation);
        let block = u64::from(self.superblock.block);
        let size = self.superblock.segment_size;
        let file = match self.disk.open(&name) {
            Ok(file) => file,
            // What is missing cannot be made up, but the log can end before it.
            Err(missing) if missing.kind == DiskErrorKind::Missing => {
                return self.end_before(generation, error);
            }
            Err(failed) => return Err(failed.into()),
        };
        if file.length()? < u64::from(size) {
            let kept = vec![self.keep_copy(&name)?];
            file.allocate(u64::from(size))?;
            file.sync()?;
            return Ok(Repair::of("given its length again, with zeros", kept));
        }
        if offset >= block {
            return self.cut(generation, offset);
        }
        let bytes = read_whole(file.as_ref(), size as usize)?;
        let salt = Salt::of(&self.superblock.uuid);
        let segment = SegmentBytes::new(bytes, generation, salt, self.superblock.block);
        let header = encode_segment_header(generation, &self.superblock.uuid, size);
        let has_groups = segment.group(block, None).is_ok();
        let mut held = vec![0; header.len()];
        file.read_at(0, &mut held)?;
        if held != header && has_groups {
            let kept = vec![self.keep_copy(&name)?];
            file.write_at(0, &header)?;
            file.sync()?;
            return Ok(Repair::of("header written again; its groups verify", kept));
        }
        self.end_before(generation, error)
    }

    /// Takes away this segment and all behind it.
    fn end_before(&self, generation: u64, error: &JournalError) -> Result<Repair, JournalError> {
        let found = listing(&self.disk.list()?);
        let behind: Vec<u64> = found.segments.range(generation..).copied().collect();
        if behind.is_empty() {
            return Err(error.clone());
        }
        let mut lost = Lost::default();
        let kept = self.take_away(&behind, &mut lost)?;
        Ok(Repair {
            lost,
            ..Repair::of("the log ends before it now", kept)
        })
    }

    /// Takes away all from a place on.
    fn cut(&self, generation: u64, offset: u64) -> Result<Repair, JournalError> {
        let mut lost = Lost::default();
        let name = segment_file(generation);
        lost.add(&self.segment_bytes(generation)?, offset);
        let mut kept = vec![self.keep_copy(&name)?];
        let found = listing(&self.disk.list()?);
        let behind: Vec<u64> = found.segments.range(generation + 1..).copied().collect();
        kept.extend(self.take_away(&behind, &mut lost)?);
        let rest = u64::from(self.superblock.segment_size).saturating_sub(offset);
        let file = self.disk.open(&name)?;
        file.write_at(offset, &vec![0; usize::try_from(rest).unwrap_or(0)])?;
        file.sync()?;
        Ok(Repair {
            lost,
            ..Repair::of("the log ends here now", kept)
        })
    }

    /// Gives segments other names, the last first: as long as one is left, so is the damage.
    fn take_away(&self, generations: &[u64], lost: &mut Lost) -> Result<Vec<String>, JournalError> {
        let mut kept = Vec::new();
        for generation in generations.iter().rev() {
            lost.add(
                &self.segment_bytes(*generation)?,
                u64::from(self.superblock.block),
            );
            let name = segment_file(*generation);
            let other = format!("{}{name}", self.prefix);
            self.disk.rename(&name, &other)?;
            self.disk.sync_dir()?;
            kept.push(other);
        }
        Ok(kept)
    }

    /// Writes a checkpoint again from the log, where the log still has all that was in it.
    fn checkpoint<R: Replica>(
        &self,
        file: &str,
        replica: R,
        error: &JournalError,
    ) -> Result<Repair, JournalError> {
        let whole = Audit::read_as(self.disk, self.superblock, replica, |recovery| {
            recovery.without_checkpoint()
        });
        let Ok(audit) = whole else {
            return Err(error.clone());
        };
        let recovered = &audit.recovered;
        // What the checkpoint stands for has to be on the disk before it.
        rewrite(recovered, audit.files())?;
        let live: BTreeSet<u64> = recovered.replica.live_segments().into_iter().collect();
        let needed: Vec<u64> = recovered
            .sealed
            .intersection(&live)
            .copied()
            .filter(|generation| *generation < recovered.end.generation)
            .collect();
        let mut sections = vec![
            (checkpoint::SEGMENTS, checkpoint::encode_segments(&needed)),
            (
                checkpoint::CHANGES,
                Bytes::from(recovered.changes.snapshot()),
            ),
        ];
        let built = recovered.replica.snapshot();
        sections.extend(
            built
                .into_iter()
                .map(|(kind, bytes)| (kind, Bytes::from(bytes))),
        );
        let bytes = Checkpoint {
            number: recovered.checkpoint,
            position: recovered.end,
            next_group: recovered.next_group,
            next_generation: recovered.next_generation,
            sections,
        }
        .encode(Salt::of(&self.superblock.uuid));
        if checkpoint::file_of(recovered.checkpoint) != file {
            return Err(error.clone());
        }
        let kept = match self.keep_copy(file) {
            Ok(kept) => vec![kept],
            Err(JournalError::Disk(missing)) if missing.kind == DiskErrorKind::Missing => {
                self.disk.create(file)?;
                self.disk.sync_dir()?;
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let open = self.disk.open(file)?;
        open.write_at(0, &bytes)?;
        open.sync()?;
        Ok(Repair::of(
            "written again from the log; nothing is lost",
            kept,
        ))
    }

    fn segment_bytes(&self, generation: u64) -> Result<SegmentBytes, JournalError> {
        let file = self.disk.open(&segment_file(generation))?;
        let length = usize::try_from(file.length()?).unwrap_or(usize::MAX);
        let bytes = read_whole(
            file.as_ref(),
            length.min(self.superblock.segment_size as usize),
        )?;
        let salt = Salt::of(&self.superblock.uuid);
        Ok(SegmentBytes::new(
            bytes,
            generation,
            salt,
            self.superblock.block,
        ))
    }

    fn keep_copy(&self, name: &str) -> Result<String, JournalError> {
        let file = self.disk.open(name)?;
        let length = usize::try_from(file.length()?).unwrap_or(usize::MAX);
        let bytes = read_whole(file.as_ref(), length)?;
        let copy = format!("{}{name}", self.prefix);
        let to = self.disk.create(&copy)?;
        to.write_at(0, &bytes)?;
        to.sync()?;
        self.disk.sync_dir()?;
        Ok(copy)
    }
}

impl Repair {
    fn of(done: &str, kept: Vec<String>) -> Self {
        Self {
            damage: String::new(),
            done: done.to_owned(),
            kept,
            lost: Lost::default(),
        }
    }
}

impl Lost {
    /// All that a segment has from a place on.
    fn add(&mut self, segment: &SegmentBytes, from: u64) {
        let records = segment.salvage(from);
        for record in &records {
            match record {
                Record::Entry { ledger, entry, .. } => {
                    let lost = self.ledgers.entry(*ledger).or_default();
                    let (first, last) = lost.entries.unwrap_or((*entry, *entry));
                    lost.entries = Some((first.min(*entry), last.max(*entry)));
                    lost.count += 1;
                }
                Record::LedgerCreated { ledger, .. } => {
                    self.ledgers.entry(*ledger).or_default().created = true;
                }
                Record::LedgerSealed { ledger }
                | Record::LedgerTrimmed { ledger, .. }
                | Record::LedgerDeleted { ledger } => {
                    self.ledgers.entry(*ledger).or_default().ended = true;
                }
                Record::Change { table, key, .. } => {
                    self.changes.insert((*table, key.clone()));
                }
                // The original of a copy is where it was.
                Record::Copied { .. } | Record::SegmentStart(_) | Record::CheckpointDone { .. } => {
                }
            }
        }
        self.perhaps.extend(segment.ledgers_at(from));
    }
}

/// `repair-<number>-`, with a number that no file has.
fn free_prefix(disk: &dyn Disk) -> Result<String, JournalError> {
    let names = disk.list()?;
    let is_free = |number: &u32| {
        let prefix = format!("repair-{number}-");
        !names.iter().any(|name| name.starts_with(&prefix))
    };
    let number = (1..).find(is_free).unwrap_or(u32::MAX);
    Ok(format!("repair-{number}-"))
}

const REPAIRS_MAX: usize = 64;
