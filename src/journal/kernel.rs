//! The journal as one machine: group commit, segments, checkpoints and gc, and what is built from the log. Pure.
//!
//! [`Kernel::step`] gets what happened and says what is to be done; a driver does it and reports. `Write` and `Sync` are
//! done in order and at once, everything else may take its time beside them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::checkpoint::{self, Checkpoint};
use super::commit::{Committer, Effect as CommitEffect, Group, Layout};
use super::format::{Location, Position, Record, Salt};
use super::handle::{Completion, Submission};
use super::indexing::Indexing;
use super::recovery::Recovered;
use super::{ChangeLog, JournalError, Replica};
use crate::disk::{DiskError, DiskErrorKind};

/// The change log, as the journal goes on with it and others look at it for a moment.
pub type SharedChanges = Arc<Mutex<ChangeLog>>;

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// Records came.
    Submitted(Vec<Submission>),
    /// Somebody wants the journal to stop in order.
    Close,
    /// A write came back, with its buffer.
    Written(Vec<u8>, Result<(), DiskError>),
    /// A sync came back.
    Synced(Result<(), DiskError>),
    /// A segment was prepared, or not.
    Prepared(u64, Source, Result<(), DiskError>),
    /// A checkpoint was written, or not.
    CheckpointWritten(Result<(), DiskError>),
    /// Segments became these free files.
    Retired(Result<Vec<u32>, DiskError>),
    /// A segment was read for gc: its entries. A damaged one is not copied; its readers are told.
    SegmentRead(u64, Result<Vec<(Record, Location)>, JournalError>),
    /// Somebody found that an index file is missing.
    IndexWanted,
    /// An index file was written, or not; `false`: its segment could not be read.
    IndexWritten(u64, Result<bool, DiskError>),
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Write to the active segment.
    Write {
        /// Where.
        at: Position,
        /// What.
        bytes: Vec<u8>,
    },
    /// Sync the active segment.
    Sync {
        /// Which.
        generation: u64,
    },
    /// Make a segment of something.
    Prepare {
        /// Its generation.
        generation: u64,
        /// Of what.
        source: Source,
    },
    /// Write and sync a checkpoint.
    WriteCheckpoint {
        /// Its number.
        number: u64,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Free segments: so many are kept as files, the others removed.
    Retire {
        /// Which.
        generations: Vec<u64>,
        /// How many to keep.
        keep: usize,
    },
    /// Read the entries of a segment.
    ReadSegment {
        /// Which.
        generation: u64,
    },
    /// Write and sync the index of a segment.
    WriteIndex {
        /// Of which.
        generation: u64,
    },
    /// Tell who waits.
    Notify(Vec<Notice>),
    /// Whether entries are refused before they are queued.
    RefuseEntries(bool),
    /// What was recovered is durable: the journal is open.
    Opened,
    /// Nothing more will happen.
    Stopped(JournalError),
}

/// What a segment is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A new file.
    New,
    /// A free file.
    Free(u32),
    /// A segment without groups.
    Segment(u64),
}

/// Something to be told.
#[derive(Debug)]
pub struct Notice {
    completion: Arc<dyn Completion>,
    result: Result<u64, JournalError>,
}

/// Limits of a journal.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Free files that are kept.
    pub free_files: usize,
    /// Segments filled between checkpoints.
    pub checkpoint_segments: u32,
    /// How long until something is tried again that failed for lack of space.
    pub space_retry: Duration,
    /// Bytes that gc copies between other groups.
    pub copy_bytes: usize,
}

/// The machine.
#[derive(Debug)]
pub struct Kernel<R> {
    committer: Committer,
    salt: Salt,
    segment_size: u64,
    limits: Limits,
    changes: SharedChanges,
    replica: R,
    /// Segments with groups, but the active one.
    sealed: BTreeSet<u64>,
    active: Option<u64>,
    /// Found at the start and of no use; freed when the first group is durable.
    leftover: Vec<u64>,
    empty: BTreeSet<u64>,
    free: Vec<u32>,
    next_generation: u64,
    preparing: bool,
    retry_at: Option<Duration>,
    checkpointing: Checkpointing,
    checkpoint: u64,
    filled: u32,
    changed: bool,
    retiring: bool,
    copying: Copying,
    indexing: Indexing,
    /// Whether something happened since gc last found nothing to do.
    look_again: bool,
    /// Segments that gc has been through, or cannot read. What is left in them stays there.
    set_aside: BTreeSet<u64>,
    closing: Closing,
    opened: bool,
    stopped: bool,
}

#[derive(Debug)]
enum Checkpointing {
    Idle,
    /// The file is being written.
    Writing {
        number: u64,
        below: u64,
        live: BTreeSet<u64>,
    },
    /// The log is to say so.
    Logging {
        number: u64,
        below: u64,
        live: BTreeSet<u64>,
    },
}

#[derive(Debug)]
enum Copying {
    Idle,
    Reading,
    Copies {
        rest: VecDeque<(Record, Location)>,
        on_their_way: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    Draining,
    Checkpointed,
    Sealed,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            free_files: 4,
            checkpoint_segments: 2,
            space_retry: Duration::from_secs(1),
            copy_bytes: 1 << 20,
        }
    }
}

impl Notice {
    /// Tells it.
    pub fn tell(self) {
        match self.result {
            Ok(upto) => self.completion.durable(upto),
            Err(error) => self.completion.failed(&error),
        }
    }
}

impl<R: Replica> Kernel<R> {
    /// Goes on from what was recovered.
    #[must_use]
    pub fn new(
        recovered: Recovered<R>,
        free: Vec<u32>,
        layout: Layout,
        salt: Salt,
        limits: Limits,
    ) -> Self {
        let Recovered {
            end,
            next_group,
            cut,
            ..
        } = recovered;
        Self {
            committer: Committer::new(layout, salt, end, next_group, cut),
            salt,
            segment_size: u64::from(layout.segment_size),
            limits,
            changes: Arc::new(Mutex::new(recovered.changes)),
            replica: recovered.replica,
            sealed: recovered.sealed,
            active: None,
            leftover: recovered.dead.into_iter().collect(),
            empty: recovered.empty,
            free,
            next_generation: recovered.next_generation,
            preparing: false,
            retry_at: None,
            checkpointing: Checkpointing::Idle,
            checkpoint: recovered.checkpoint,
            filled: 0,
            changed: false,
            retiring: false,
            copying: Copying::Idle,
            indexing: Indexing::new(),
            look_again: true,
            set_aside: BTreeSet::new(),
            closing: Closing::No,
            opened: false,
            stopped: false,
        }
    }

    /// The change log.
    #[must_use]
    pub fn changes(&self) -> SharedChanges {
        Arc::clone(&self.changes)
    }

    /// What is built from the log.
    #[must_use]
    pub fn replica(&self) -> &R {
        &self.replica
    }

    /// When [`Input::Tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        if self.stopped {
            return None;
        }
        [
            self.committer.deadline(),
            self.retry_at,
            self.indexing.deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Something happened at `now`, counted from any fixed time.
    pub fn step(&mut self, input: Input, now: Duration) -> Vec<Effect> {
        if self.stopped {
            return Self::refuse_late(input);
        }
        let mut commits = Vec::new();
        let mut effects = Vec::new();
        let refusing = self.committer.is_refusing();
        match self.take(input, now, &mut commits) {
            Ok(()) => {
                self.commits(commits, &mut effects);
                self.advance(&mut effects);
            }
            Err(error) => {
                self.committer.stop(&error, &mut commits);
                self.commits(commits, &mut effects);
                self.stopped = true;
                effects.push(Effect::Stopped(error));
            }
        }
        if refusing != self.committer.is_refusing() {
            effects.push(Effect::RefuseEntries(!refusing));
        }
        effects
    }

    fn take(
        &mut self,
        input: Input,
        now: Duration,
        commits: &mut Vec<CommitEffect>,
    ) -> Result<(), JournalError> {
        match input {
            Input::Submitted(submissions) => self.committer.submit(submissions, commits),
            Input::Close => {
                if self.closing == Closing::No {
                    self.closing = Closing::Draining;
                }
            }
            Input::Written(buffer, result) => {
                result?;
                self.committer.written(buffer, commits);
            }
            Input::Synced(result) => {
                result?;
                self.committer.synced(now, commits);
            }
            Input::Prepared(generation, source, result) => {
                commits.extend(self.prepared(generation, source, result, now)?);
            }
            Input::CheckpointWritten(result) => self.checkpoint_written(result, now, commits)?,
            Input::Retired(result) => {
                self.free.extend(result?);
                self.retiring = false;
            }
            Input::SegmentRead(generation, result) => self.segment_read(generation, result),
            Input::IndexWanted => self.indexing.look(),
            Input::IndexWritten(generation, result) => {
                let retry_at = now + self.limits.space_retry;
                if self.indexing.written(generation, result, retry_at)? {
                    self.replica.indexed(generation);
                }
            }
            Input::Tick => {
                self.indexing.tick(now);
                self.committer.tick(now, commits);
                self.retry_at = self.retry_at.filter(|at| *at > now);
            }
        }
        Ok(())
    }

    /// What the group commit wants.
    fn commits(&mut self, commits: Vec<CommitEffect>, effects: &mut Vec<Effect>) {
        for commit in commits {
            match commit {
                CommitEffect::Write { at, bytes } => effects.push(Effect::Write { at, bytes }),
                CommitEffect::Sync { generation } => effects.push(Effect::Sync { generation }),
                CommitEffect::Durable(group) => self.durable(group, effects),
                CommitEffect::Refused(submissions, error) => {
                    self.forget_copies(&submissions);
                    effects.push(Effect::Notify(failures(submissions, &error)));
                }
            }
        }
    }

    fn durable(&mut self, group: Group, effects: &mut Vec<Effect>) {
        if let Some((record, at)) = &group.begin {
            self.sealed
                .extend(self.active.replace(group.start.generation));
            self.filled += 1;
            self.look_again = true;
            self.indexing.look();
            self.replica.apply(record, *at);
        }
        let records = group
            .submissions
            .iter()
            .flat_map(|submission| &submission.records);
        for (record, at) in records.zip(&group.locations) {
            self.apply(record, *at);
        }
        let notices = group.submissions.into_iter().filter_map(|submission| {
            let result = Ok(submission.upto);
            submission
                .completion
                .map(|completion| Notice { completion, result })
        });
        effects.push(Effect::Notify(notices.collect()));
        if !self.opened {
            self.opened = true;
            self.leftover.extend(std::mem::take(&mut self.empty));
            effects.push(Effect::Opened);
        }
    }

    fn apply(&mut self, record: &Record, at: Location) {
        match record {
            Record::Change { table, key, change } => self.changes.lock().apply(*table, key, change),
            Record::CheckpointDone { number } => self.checkpoint_durable(*number),
            Record::Copied { .. } => self.copied(),
            Record::LedgerTrimmed { .. } | Record::LedgerDeleted { .. } => self.look_again = true,
            _ => {}
        }
        self.changed |= !matches!(record, Record::CheckpointDone { .. });
        self.replica.apply(record, at);
    }

    /// Starts what is due.
    fn advance(&mut self, effects: &mut Vec<Effect>) {
        let may_try = self.retry_at.is_none();
        if !self.preparing
            && may_try
            && self.committer.missing_segments() > 0
            && self.wants_segments()
        {
            self.prepare(effects);
        }
        if !self.opened {
            return;
        }
        if self.closing == Closing::No && self.indexing.may_start() {
            let wanted = self.replica.wants_index();
            if let Some(generation) = self.indexing.start(&wanted, &self.sealed) {
                effects.push(Effect::WriteIndex { generation });
            }
        }
        self.retire(effects);
        // What has an index is not in the checkpoint: it waits a little for indexes under way.
        let patience = u32::from(self.indexing.is_busy()) + 1;
        let due = self.filled >= self.limits.checkpoint_segments.saturating_mul(patience);
        let urgent = self.committer.is_out_of_space() && self.changed;
        if may_try && (due || urgent) {
            self.start_checkpoint(effects);
        }
        self.copy_on(effects);
        self.close_on(effects);
    }

    /// Frees segments that nothing needs. One whose index is being written has to wait, or the file would stay behind.
    fn retire(&mut self, effects: &mut Vec<Effect>) {
        let writing = self.indexing.writing();
        if self.retiring || self.leftover.iter().all(|held| Some(*held) == writing) {
            return;
        }
        let generations = std::mem::take(&mut self.leftover);
        let (held, generations) = generations
            .into_iter()
            .partition(|held| Some(*held) == writing);
        self.leftover = held;
        let keep = self.limits.free_files.saturating_sub(self.free.len());
        self.retiring = true;
        effects.push(Effect::Retire { generations, keep });
    }

    fn wants_segments(&self) -> bool {
        self.closing == Closing::No || !self.committer.is_idle()
    }

    fn prepare(&mut self, effects: &mut Vec<Effect>) {
        let source = match self.free.pop() {
            Some(number) => Source::Free(number),
            // Before the first group nothing else may be freed, and on a full disk this is all there is.
            None if !self.opened => self.empty.pop_first().map_or(Source::New, Source::Segment),
            None => Source::New,
        };
        self.preparing = true;
        let generation = self.next_generation;
        self.next_generation += 1;
        effects.push(Effect::Prepare { generation, source });
    }

    fn prepared(
        &mut self,
        generation: u64,
        source: Source,
        result: Result<(), DiskError>,
        now: Duration,
    ) -> Result<Vec<CommitEffect>, JournalError> {
        self.preparing = false;
        let mut commits = Vec::new();
        // The first segment of a run cannot be waited for: nothing would be open.
        let may_wait = source == Source::New && self.committer.position().is_some();
        match result {
            Ok(()) => self.committer.prepared(generation, &mut commits),
            Err(error) if error.kind == DiskErrorKind::NoSpace && may_wait => {
                self.retry_at = Some(now + self.limits.space_retry);
                self.committer.no_space(&mut commits);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(commits)
    }

    fn start_checkpoint(&mut self, effects: &mut Vec<Effect>) {
        let Checkpointing::Idle = self.checkpointing else {
            return;
        };
        let Some(position) = self.committer.position() else {
            return;
        };
        let number = self.checkpoint + 1;
        let live: BTreeSet<u64> = self.replica.live_segments().into_iter().collect();
        let needed: Vec<u64> = self
            .sealed
            .intersection(&live)
            .copied()
            .filter(|generation| *generation < position.generation)
            .collect();
        let mut sections = vec![
            (checkpoint::SEGMENTS, checkpoint::encode_segments(&needed)),
            (
                checkpoint::CHANGES,
                Bytes::from(self.changes.lock().snapshot()),
            ),
        ];
        let built = self.replica.snapshot();
        sections.extend(
            built
                .into_iter()
                .map(|(kind, bytes)| (kind, Bytes::from(bytes))),
        );
        let checkpoint = Checkpoint {
            number,
            position,
            next_group: self.committer.next_group(),
            next_generation: self.next_generation,
            sections,
        };
        self.filled = 0;
        self.changed = false;
        self.checkpointing = Checkpointing::Writing {
            number,
            below: position.generation,
            live,
        };
        effects.push(Effect::WriteCheckpoint {
            number,
            bytes: checkpoint.encode(self.salt),
        });
    }

    fn checkpoint_written(
        &mut self,
        result: Result<(), DiskError>,
        now: Duration,
        commits: &mut Vec<CommitEffect>,
    ) -> Result<(), JournalError> {
        let Checkpointing::Writing {
            number,
            below,
            live,
        } = std::mem::replace(&mut self.checkpointing, Checkpointing::Idle)
        else {
            return Ok(());
        };
        match result {
            Ok(()) => {
                self.checkpoint = number;
                self.checkpointing = Checkpointing::Logging {
                    number,
                    below,
                    live,
                };
                let records = vec![Record::CheckpointDone { number }];
                self.committer.submit(
                    vec![Submission {
                        records,
                        upto: 0,
                        completion: None,
                    }],
                    commits,
                );
            }
            Err(error) if error.kind == DiskErrorKind::NoSpace => {
                self.filled = self.limits.checkpoint_segments;
                self.changed = true;
                self.retry_at = Some(now + self.limits.space_retry);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Segments that neither the checkpoint nor the log behind it needs become free.
    fn checkpoint_durable(&mut self, done: u64) {
        let Checkpointing::Logging {
            number,
            below,
            live,
        } = std::mem::replace(&mut self.checkpointing, Checkpointing::Idle)
        else {
            return;
        };
        debug_assert_eq!(number, done);
        let dead: Vec<u64> = self
            .sealed
            .iter()
            .copied()
            .filter(|generation| *generation < below && !live.contains(generation))
            .collect();
        for generation in dead {
            self.sealed.remove(&generation);
            self.set_aside.remove(&generation);
            self.leftover.push(generation);
        }
        // There may be room now.
        self.retry_at = None;
    }

    fn segment_read(
        &mut self,
        generation: u64,
        result: Result<Vec<(Record, Location)>, JournalError>,
    ) {
        let Copying::Reading = self.copying else {
            return;
        };
        self.copying = match result {
            Ok(entries) => Copying::Copies {
                rest: entries.into(),
                on_their_way: 0,
            },
            // It stays where it is, so that readers of what is whole are served and others are told.
            Err(_) => Copying::Idle,
        };
        self.set_aside.insert(generation);
    }

    /// Copies some more entries out of the segment that gc works on.
    fn copy_on(&mut self, effects: &mut Vec<Effect>) {
        if self.committer.is_out_of_space() || self.closing != Closing::No {
            return;
        }
        if let Copying::Idle = self.copying {
            if !std::mem::take(&mut self.look_again) {
                return;
            }
            let sealed: Vec<u64> = self.sealed.difference(&self.set_aside).copied().collect();
            if let Some(generation) = self.replica.worth_copying(&sealed, self.segment_size) {
                self.copying = Copying::Reading;
                effects.push(Effect::ReadSegment { generation });
            }
            return;
        }
        let Copying::Copies {
            rest,
            on_their_way: on_their_way @ 0,
        } = &mut self.copying
        else {
            return;
        };
        let mut submissions = Vec::new();
        let mut bytes = 0;
        while bytes < self.limits.copy_bytes
            && let Some((record, at)) = rest.pop_front()
        {
            if let Record::Entry {
                ledger,
                entry,
                payload,
            }
            | Record::Copied {
                ledger,
                entry,
                payload,
            } = record
                && self.replica.is_live(ledger, entry, at)
            {
                bytes += payload.len();
                let records = vec![Record::Copied {
                    ledger,
                    entry,
                    payload,
                }];
                submissions.push(Submission {
                    records,
                    upto: 0,
                    completion: None,
                });
            }
        }
        *on_their_way = submissions.len();
        if submissions.is_empty() {
            self.copying = Copying::Idle;
            self.look_again = true;
            return;
        }
        let mut commits = Vec::new();
        self.committer.submit(submissions, &mut commits);
        self.commits(commits, effects);
    }

    fn copied(&mut self) {
        if let Copying::Copies { on_their_way, .. } = &mut self.copying {
            *on_their_way = on_their_way.saturating_sub(1);
        }
    }

    fn forget_copies(&mut self, refused: &[Submission]) {
        let copies = refused.iter().flat_map(|submission| &submission.records);
        if copies
            .into_iter()
            .any(|record| matches!(record, Record::Copied { .. }))
        {
            self.copying = Copying::Idle;
        }
    }

    /// Moves on towards the end, once everything else is done.
    fn close_on(&mut self, effects: &mut Vec<Effect>) {
        let busy = self.retiring
            || self.preparing
            || self.indexing.writing().is_some()
            || !self.leftover.is_empty()
            || matches!(self.copying, Copying::Reading);
        let at_work =
            !matches!(self.checkpointing, Checkpointing::Idle) || !self.committer.is_idle();
        if self.closing == Closing::No || busy || at_work {
            return;
        }
        match self.closing {
            Closing::No => {}
            Closing::Draining => {
                self.closing = Closing::Checkpointed;
                if self.changed {
                    self.start_checkpoint(effects);
                } else {
                    self.close_on(effects);
                }
            }
            Closing::Checkpointed => {
                self.closing = Closing::Sealed;
                let mut commits = Vec::new();
                self.committer.seal_quiet(&mut commits);
                self.commits(commits, effects);
                if self.committer.is_idle() {
                    self.close_on(effects);
                }
            }
            Closing::Sealed => {
                self.stopped = true;
                effects.push(Effect::Stopped(JournalError::Closed));
            }
        }
    }

    fn refuse_late(input: Input) -> Vec<Effect> {
        match input {
            Input::Submitted(submissions) => {
                vec![Effect::Notify(failures(submissions, &JournalError::Closed))]
            }
            _ => Vec::new(),
        }
    }
}

/// Tells that submissions were not written.
pub(crate) fn failures(submissions: Vec<Submission>, error: &JournalError) -> Vec<Notice> {
    let told = submissions
        .into_iter()
        .filter_map(|submission| submission.completion);
    told.map(|completion| Notice {
        completion,
        result: Err(error.clone()),
    })
    .collect()
}
