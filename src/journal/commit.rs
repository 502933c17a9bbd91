//! Group commit: what waits becomes one group, one write and one sync; meanwhile the next group gathers. Pure.
//!
//! Relaxed by a setting, records are told to be durable once they are written, and syncs come when they are due: after [`RELAXED`], before the
//! log goes on in another segment, and with what makes others believe that more is on the disk. `durable_upto` of a group tells of
//! syncs only, so that recovery never takes for damage what no sync had reached.
//!
//! There is no timer: a lone record is written at once, and a group is whatever arrived while the one before was synced.
//! Data may begin a segment, or go on in one, only when another stands ready behind it; that one is for what must be written when the disk
//! is full.

use std::collections::VecDeque;
use std::time::Duration;

use super::JournalError;
use super::format::{
    GROUP_HEADER, GroupHeader, Location, Position, Record, Salt, SegmentStart, in_blocks,
};
use super::handle::Submission;

/// Sizes of a journal.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Groups start at multiples of it.
    pub block: u32,
    /// Bytes of a segment.
    pub segment_size: u32,
    /// Bytes of a group; a longer submission is a group of its own.
    pub group_max: usize,
}

/// When records are told to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once they are synced.
    #[default]
    Synced,
    /// Once they are written: when the power fails, the last moments are lost.
    Relaxed,
}

/// The machine.
#[derive(Debug)]
pub struct Committer {
    layout: Layout,
    salt: Salt,
    queue: VecDeque<Submission>,
    /// Where the next group goes; `None`: the next segment is not there yet.
    active: Option<Position>,
    /// Prepared segments, oldest first.
    ready: VecDeque<u64>,
    next_group: u64,
    /// The end of the last durable group.
    end: Position,
    /// Whether what is behind `end` was cut, until that is written down.
    cut: bool,
    in_flight: Option<Group>,
    durability: Durability,
    /// Up to where the log is known to be synced. `synced == end` between groups unless durability is relaxed.
    synced: Position,
    /// When that was.
    synced_at: Duration,
    /// A sync without a group, and what comes then.
    syncing: Option<Then>,
    mode: Mode,
    /// Whether entries were refused since there was no space.
    refusing: bool,
    /// When the last group became durable, while no empty group follows it.
    quiet_since: Option<Duration>,
    buffer: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Running,
    NoSpace,
    Stopped,
}

/// What waits for a sync without a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Whatever is next.
    GoOn,
    /// The group that shows that the one before was synced.
    SealQuiet,
}

/// A group on its way to the disk.
#[derive(Debug)]
pub struct Group {
    /// Where it starts.
    pub start: Position,
    /// Where the next one may start.
    pub end: Position,
    /// Its own first record, of a new segment.
    pub begin: Option<(Record, Location)>,
    /// What it consists of.
    pub submissions: Vec<Submission>,
    /// Places of all records of `submissions`.
    pub locations: Vec<Location>,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Write, then report with [`Committer::written`].
    Write {
        /// Where.
        at: Position,
        /// What.
        bytes: Vec<u8>,
    },
    /// Sync the segment, then report with [`Committer::synced`].
    Sync {
        /// Which.
        generation: u64,
    },
    /// The group is durable.
    Durable(Group),
    /// These were not written.
    Refused(Vec<Submission>, JournalError),
}

/// How long without a group until an empty one shows that the last one was synced.
pub const QUIET: Duration = Duration::from_secs(1);
/// How long written groups wait for a sync when durability is relaxed.
pub const RELAXED: Duration = Duration::from_secs(1);
/// How many prepared segments there should be: the next one and the reserve.
pub const READY: usize = 2;

impl Committer {
    /// Continues a log that ends at `end` with the group before `next_group`. Its first group begins a new segment.
    #[must_use]
    pub fn new(layout: Layout, salt: Salt, end: Position, next_group: u64, cut: bool) -> Self {
        Self {
            layout,
            salt,
            queue: VecDeque::new(),
            active: None,
            ready: VecDeque::new(),
            next_group,
            end,
            cut,
            in_flight: None,
            durability: Durability::Synced,
            synced: end,
            synced_at: Duration::ZERO,
            syncing: None,
            mode: Mode::Running,
            refusing: false,
            quiet_since: None,
            buffer: Vec::new(),
        }
    }

    /// The same with this durability.
    #[must_use]
    pub fn with_durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// The longest submission.
    #[must_use]
    pub fn submission_max(layout: Layout) -> usize {
        let room = (layout.segment_size - layout.block) as usize;
        room.saturating_sub(GROUP_HEADER + segment_start_length()) / 2
    }

    /// Where the next group goes, if its segment is known.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        self.active
    }

    /// The number of the next group.
    #[must_use]
    pub fn next_group(&self) -> u64 {
        self.next_group
    }

    /// Whether nothing waits and nothing is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_none() && self.syncing.is_none()
    }

    /// How many prepared segments are missing.
    #[must_use]
    pub fn missing_segments(&self) -> usize {
        READY.saturating_sub(self.ready.len())
    }

    /// When [`Committer::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        // While something waits or is on its way there is nothing to do: a deadline in the past would be one at all times.
        self.quiet_since
            .filter(|_| self.is_idle())
            .map(|since| since + QUIET)
    }

    /// Records to be written.
    pub fn submit(&mut self, submissions: Vec<Submission>, effects: &mut Vec<Effect>) {
        if self.mode == Mode::Stopped {
            refuse(submissions, &JournalError::Closed, effects);
            return;
        }
        self.queue.extend(submissions);
        self.next(effects);
    }

    /// A segment stands ready.
    pub fn prepared(&mut self, generation: u64, effects: &mut Vec<Effect>) {
        self.ready.push_back(generation);
        if self.ready.len() >= READY && self.mode == Mode::NoSpace {
            self.mode = Mode::Running;
            self.refusing = false;
        }
        self.next(effects);
    }

    /// No segment could be prepared for lack of space: entries that wait are refused.
    pub fn no_space(&mut self, effects: &mut Vec<Effect>) {
        if self.mode == Mode::Running {
            self.mode = Mode::NoSpace;
        }
        self.next(effects);
    }

    /// Whether the space is at its end: no segment could be prepared.
    #[must_use]
    pub fn is_out_of_space(&self) -> bool {
        self.mode == Mode::NoSpace
    }

    /// Whether entries are refused for lack of space.
    #[must_use]
    pub fn is_refusing(&self) -> bool {
        self.refusing
    }

    /// The write came back.
    pub fn written(&mut self, buffer: Vec<u8>, now: Duration, effects: &mut Vec<Effect>) {
        self.buffer = buffer;
        let Some(group) = &self.in_flight else {
            return;
        };
        if self.needs_sync(group, now) {
            effects.push(Effect::Sync {
                generation: group.start.generation,
            });
        } else {
            self.complete(now, effects);
        }
    }

    /// The sync came back.
    pub fn synced(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let end = self.in_flight.as_ref().map_or(self.end, |group| group.end);
        self.synced = end;
        self.synced_at = now;
        match self.syncing.take() {
            None => self.complete(now, effects),
            Some(Then::GoOn) => self.next(effects),
            Some(Then::SealQuiet) => {
                self.seal_quiet(effects);
                self.next(effects);
            }
        }
    }

    fn complete(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let Some(group) = self.in_flight.take() else {
            return;
        };
        self.end = group.end;
        self.cut = false;
        self.next_group += 1;
        self.active = Some(group.end);
        let empty = group.begin.is_none() && group.submissions.is_empty();
        self.quiet_since = (!empty).then_some(now);
        effects.push(Effect::Durable(group));
        self.next(effects);
    }

    /// Whether a written group is synced before anybody is told of it.
    fn needs_sync(&self, group: &Group, now: Duration) -> bool {
        let mut records = group
            .submissions
            .iter()
            .flat_map(|submission| &submission.records);
        self.durability == Durability::Synced
            || self.synced_at + RELAXED <= now
            // A segment start, and a group that is to show that the one before was synced.
            || group.begin.is_some()
            || group.submissions.is_empty()
            // Segments are freed on its word, so all that the checkpoint rests on has to be on the disk.
            || records.any(|record| matches!(record, Record::CheckpointDone { .. }))
    }

    /// Time passed.
    pub fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let quiet = self.deadline().is_some_and(|deadline| deadline <= now);
        if quiet {
            self.seal_quiet(effects);
        }
    }

    /// Writes an empty group, which shows that the one before was synced.
    pub fn seal_quiet(&mut self, effects: &mut Vec<Effect>) {
        self.quiet_since = None;
        if self.sync_alone(Then::SealQuiet, effects) {
            return;
        }
        if let Some(at) = self
            .active
            .filter(|at| self.room(*at) >= u64::from(self.layout.block))
        {
            self.write_group(at, None, effects);
        }
    }

    /// Nothing is written any more; what waits is refused.
    pub fn stop(&mut self, error: &JournalError, effects: &mut Vec<Effect>) {
        self.mode = Mode::Stopped;
        self.quiet_since = None;
        let mut refused: Vec<Submission> = Vec::new();
        refused.extend(
            self.in_flight
                .take()
                .into_iter()
                .flat_map(|group| group.submissions),
        );
        refused.extend(self.queue.drain(..));
        refuse(refused, error, effects);
    }

    /// Starts the next group if there is one to write.
    fn next(&mut self, effects: &mut Vec<Effect>) {
        if self.in_flight.is_some() || self.syncing.is_some() || self.mode == Mode::Stopped {
            return;
        }
        let Some(first) = self.queue.front() else {
            // The first segment of a run is begun without being asked: only then what was recovered may be seen.
            if self.active.is_none() && self.end_is_old() {
                self.begin_segment(false, effects);
            }
            return;
        };
        let needed = (GROUP_HEADER + first.encoded_length()) as u64;
        let is_data = first.is_data();
        let has_room = |at: &Position| self.room(*at) >= needed;
        match self.active.filter(has_room) {
            // Something else has begun the last segment, which entries must not fill.
            Some(_) if is_data && self.ready.is_empty() => {}
            Some(at) => self.write_group(at, None, effects),
            None => self.begin_segment(is_data, effects),
        }
        let stands = self.in_flight.is_none() && self.syncing.is_none();
        if stands && self.mode == Mode::NoSpace && self.refuse_data(effects) {
            self.next(effects);
        }
    }

    /// There is no segment for entries and none to be had: those that wait are refused, what else waits goes on.
    fn refuse_data(&mut self, effects: &mut Vec<Effect>) -> bool {
        let (data, rest): (Vec<_>, Vec<_>) = self.queue.drain(..).partition(Submission::is_data);
        self.queue = rest.into();
        self.refusing |= !data.is_empty();
        let some = !data.is_empty();
        refuse(data, &JournalError::NoSpace, effects);
        some
    }

    fn end_is_old(&self) -> bool {
        self.ready
            .front()
            .is_some_and(|ready| *ready > self.end.generation)
    }

    fn begin_segment(&mut self, for_data: bool, effects: &mut Vec<Effect>) {
        let reserve = if for_data { 1 } else { 0 };
        if self.ready.len() <= reserve {
            return;
        }
        // The segment start says where the log ends: that has to be on the disk before.
        if self.sync_alone(Then::GoOn, effects) {
            return;
        }
        let Some(generation) = self.ready.pop_front() else {
            return;
        };
        let at = Position {
            generation,
            offset: u64::from(self.layout.block),
        };
        let start = Record::SegmentStart(SegmentStart {
            previous_end: self.end,
            previous_group: self.next_group - 1,
            cut: self.cut,
        });
        self.active = Some(at);
        self.write_group(at, Some(start), effects);
    }

    /// Syncs what was written and not synced; whether there is any.
    fn sync_alone(&mut self, then: Then, effects: &mut Vec<Effect>) -> bool {
        if self.synced == self.end {
            return false;
        }
        self.syncing = Some(then);
        effects.push(Effect::Sync {
            generation: self.end.generation,
        });
        true
    }

    /// Bytes left in the segment.
    fn room(&self, at: Position) -> u64 {
        u64::from(self.layout.segment_size).saturating_sub(at.offset)
    }

    fn write_group(&mut self, at: Position, begin: Option<Record>, effects: &mut Vec<Effect>) {
        let salt = self.salt.for_generation(at.generation);
        let limit = usize::try_from(self.room(at))
            .unwrap_or(usize::MAX)
            .min(self.layout.group_max);
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        bytes.resize(GROUP_HEADER, 0);
        let mut records = 0_u32;
        let mut put = |record: &Record, bytes: &mut Vec<u8>| {
            let (offset, length) = record.encode(salt, bytes);
            records += 1;
            let offset =
                u32::try_from(at.offset + offset as u64).expect("a segment is at most 1 GiB");
            Location {
                generation: at.generation,
                offset,
                length,
            }
        };
        let begin = begin.map(|record| {
            let location = put(&record, &mut bytes);
            (record, location)
        });
        let mut submissions = Vec::new();
        let mut locations = Vec::new();
        let mut first = true;
        while let Some(submission) = self.queue.front() {
            let fits = bytes.len() + submission.encoded_length() <= limit;
            let may_be_longer =
                first && (bytes.len() + submission.encoded_length()) as u64 <= self.room(at);
            let in_reserve = submission.is_data() && self.ready.is_empty();
            if !fits && !may_be_longer || in_reserve {
                break;
            }
            first = false;
            locations.extend(
                submission
                    .records
                    .iter()
                    .map(|record| put(record, &mut bytes)),
            );
            submissions.extend(self.queue.pop_front());
        }
        let body = bytes.get(GROUP_HEADER..).unwrap_or_default();
        let header = GroupHeader {
            generation: at.generation,
            number: self.next_group,
            durable_upto: self.synced,
            body_length: u32::try_from(body.len()).expect("a segment is at most 1 GiB"),
            records,
            body_crc: self.salt.crc(body),
        };
        header.encode(self.salt, &mut bytes);
        let whole = in_blocks(bytes.len() as u64, self.layout.block);
        bytes.resize(
            usize::try_from(whole).expect("a segment is at most 1 GiB"),
            0,
        );
        let end = Position {
            generation: at.generation,
            offset: at.offset + whole,
        };
        self.in_flight = Some(Group {
            start: at,
            end,
            begin,
            submissions,
            locations,
        });
        effects.push(Effect::Write { at, bytes });
    }
}

fn segment_start_length() -> usize {
    super::format::RECORD_HEADER + 25
}

fn refuse(submissions: Vec<Submission>, error: &JournalError, effects: &mut Vec<Effect>) {
    if !submissions.is_empty() {
        effects.push(Effect::Refused(submissions, error.clone()));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn committer() -> Committer {
        let layout = Layout {
            block: 512,
            segment_size: 16 << 10,
            group_max: 4096,
        };
        Committer::new(layout, Salt::of(&[1; 16]), Position::default(), 1, false)
    }

    fn entry(length: usize) -> Submission {
        let record = Record::Entry {
            ledger: 1,
            entry: 0,
            payload: Bytes::from(vec![0; length]),
        };
        Submission {
            records: vec![record],
            upto: 0,
            completion: None,
        }
    }

    /// Plays the disk; returns where groups were written.
    fn play(committer: &mut Committer, mut effects: Vec<Effect>, now: Duration) -> Vec<Position> {
        let mut written = Vec::new();
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Write { at, bytes } => {
                    written.push(at);
                    committer.written(bytes, now, &mut effects);
                }
                Effect::Sync { .. } => committer.synced(now, &mut effects),
                Effect::Durable(_) | Effect::Refused(..) => {}
            }
        }
        written
    }

    #[test]
    fn nothing_is_due_while_something_is_on_its_way() {
        let mut committer = committer();
        let mut effects = Vec::new();
        committer.prepared(1, &mut effects);
        committer.prepared(2, &mut effects);
        play(&mut committer, effects, Duration::ZERO);
        assert_eq!(committer.deadline(), Some(QUIET));
        let mut effects = Vec::new();
        committer.submit(vec![entry(10)], &mut effects);
        assert_eq!(committer.deadline(), None, "in flight");
        committer.tick(Duration::from_secs(60), &mut effects);
        assert_eq!(effects.len(), 1, "one write");
        play(&mut committer, effects, Duration::from_secs(60));
        assert_eq!(committer.deadline(), Some(QUIET + Duration::from_secs(60)));
    }

    #[test]
    fn nothing_is_due_while_a_segment_is_waited_for() {
        let mut committer = committer();
        let mut effects = Vec::new();
        committer.prepared(1, &mut effects);
        for _ in 0..4 {
            committer.submit(vec![entry(7000)], &mut effects);
        }
        play(&mut committer, effects, Duration::ZERO);
        assert!(!committer.is_idle(), "no segment behind the first");
        assert_eq!(committer.deadline(), None);
    }

    /// Plays the disk and tells what came to pass: writes with their offset and what they say to be synced, syncs, and what is durable.
    fn told(committer: &mut Committer, mut effects: Vec<Effect>, now: Duration) -> Vec<String> {
        let mut told = Vec::new();
        while !effects.is_empty() {
            match effects.remove(0) {
                Effect::Write { at, bytes } => {
                    let header = GroupHeader::decode(Salt::of(&[1; 16]), &bytes).expect("own");
                    let upto = header.durable_upto;
                    told.push(format!(
                        "write {}/{} synced {}/{}",
                        at.generation, at.offset, upto.generation, upto.offset
                    ));
                    committer.written(bytes, now, &mut effects);
                }
                Effect::Sync { generation } => {
                    told.push(format!("sync {generation}"));
                    committer.synced(now, &mut effects);
                }
                Effect::Durable(_) => told.push("durable".to_owned()),
                Effect::Refused(..) => told.push("refused".to_owned()),
            }
        }
        told
    }

    #[test]
    fn relaxed_groups_are_told_to_be_durable_before_they_are_synced_and_say_only_what_was() {
        let mut committer = committer().with_durability(Durability::Relaxed);
        let mut effects = Vec::new();
        committer.prepared(1, &mut effects);
        committer.prepared(2, &mut effects);
        let begun = told(&mut committer, effects, Duration::ZERO);
        assert_eq!(begun, ["write 1/512 synced 0/0", "sync 1", "durable"]);
        let submit = |committer: &mut Committer, length, millis| {
            let mut effects = Vec::new();
            committer.submit(vec![entry(length)], &mut effects);
            told(committer, effects, Duration::from_millis(millis))
        };
        assert_eq!(
            submit(&mut committer, 100, 10),
            ["write 1/1024 synced 1/1024", "durable"]
        );
        assert_eq!(
            submit(&mut committer, 100, 20),
            ["write 1/1536 synced 1/1024", "durable"]
        );
        assert_eq!(
            submit(&mut committer, 100, 1000),
            ["write 1/2048 synced 1/1024", "sync 1", "durable"],
            "a second has passed"
        );
        assert_eq!(
            submit(&mut committer, 7000, 1010),
            ["write 1/2560 synced 1/2560", "durable"]
        );
        // The next does not fit; no segment start before all that is before it is synced.
        let mut effects = Vec::new();
        committer.prepared(3, &mut effects);
        committer.submit(vec![entry(7000)], &mut effects);
        assert_eq!(
            told(&mut committer, effects, Duration::from_millis(1020)),
            ["sync 1", "write 2/512 synced 1/9728", "sync 2", "durable"]
        );
    }

    #[test]
    fn a_relaxed_log_is_synced_when_it_falls_quiet_and_before_segments_are_freed() {
        let mut committer = committer().with_durability(Durability::Relaxed);
        let mut effects = Vec::new();
        committer.prepared(1, &mut effects);
        committer.prepared(2, &mut effects);
        told(&mut committer, effects, Duration::ZERO);
        let mut effects = Vec::new();
        committer.submit(vec![entry(100)], &mut effects);
        told(&mut committer, effects, Duration::from_millis(1));
        let mut effects = Vec::new();
        committer.tick(Duration::from_millis(1001), &mut effects);
        assert_eq!(
            told(&mut committer, effects, Duration::from_millis(1001)),
            ["sync 1", "write 1/1536 synced 1/1536", "sync 1", "durable"]
        );
        assert!(committer.is_idle());
        let done = Submission {
            records: vec![Record::CheckpointDone { number: 1 }],
            upto: 0,
            completion: None,
        };
        let mut effects = Vec::new();
        committer.submit(vec![entry(100)], &mut effects);
        committer.submit(vec![done], &mut effects);
        assert_eq!(
            told(&mut committer, effects, Duration::from_millis(1002)),
            [
                "write 1/2048 synced 1/2048",
                "durable",
                "write 1/2560 synced 1/2048",
                "sync 1",
                "durable"
            ]
        );
    }

    #[test]
    fn entries_do_not_go_on_in_the_last_segment_when_something_else_has_begun_it() {
        let mut committer = committer();
        let mut effects = Vec::new();
        committer.prepared(1, &mut effects);
        committer.prepared(2, &mut effects);
        play(&mut committer, effects, Duration::ZERO);
        let mut effects = Vec::new();
        committer.no_space(&mut effects);
        let change = || Submission {
            records: vec![Record::LedgerDeleted { ledger: 1 }],
            upto: 0,
            completion: None,
        };
        committer.submit(vec![entry(7000), entry(7000)], &mut effects);
        committer.submit((0..100).map(|_| change()).collect(), &mut effects);
        let written = play(&mut committer, effects, Duration::ZERO);
        let last = written.last().expect("changes");
        assert_eq!(last.generation, 2, "{written:?}");
        let mut effects = Vec::new();
        committer.submit(vec![change(), entry(10), change()], &mut effects);
        let refused = told(&mut committer, effects, Duration::ZERO);
        assert_eq!(refused.iter().filter(|told| *told == "refused").count(), 1);
        assert!(refused.iter().filter(|told| *told == "durable").count() >= 2);
    }

    #[test]
    fn entries_leave_the_last_segment_to_what_must_be_written() {
        let mut committer = committer();
        let mut effects = Vec::new();
        committer.prepared(1, &mut effects);
        committer.prepared(2, &mut effects);
        play(&mut committer, effects, Duration::ZERO);
        let mut effects = Vec::new();
        committer.submit(vec![entry(7000), entry(7000), entry(7000)], &mut effects);
        let written = play(&mut committer, effects, Duration::ZERO);
        assert!(written.iter().all(|at| at.generation == 1), "{written:?}");
        let mut effects = Vec::new();
        committer.no_space(&mut effects);
        assert!(
            matches!(&effects[..], [Effect::Refused(refused, JournalError::NoSpace)] if refused.len() == 1),
            "{effects:?}"
        );
        let mut effects = Vec::new();
        let trims = |_| Submission {
            records: vec![Record::LedgerTrimmed {
                ledger: 1,
                first: 1,
            }],
            upto: 0,
            completion: None,
        };
        committer.submit((0..300).map(trims).collect(), &mut effects);
        let written = play(&mut committer, effects, Duration::ZERO);
        assert!(written.iter().any(|at| at.generation == 2), "{written:?}");
        assert!(committer.is_idle());
    }

    #[test]
    fn a_group_names_how_far_the_log_is_synced() {
        let mut committer = committer();
        let mut effects = Vec::new();
        committer.prepared(1, &mut effects);
        committer.prepared(2, &mut effects);
        play(&mut committer, effects, Duration::ZERO);
        let mut effects = Vec::new();
        committer.submit(vec![entry(10)], &mut effects);
        let [Effect::Write { at, bytes }] = &effects[..] else {
            panic!("{effects:?}")
        };
        let header = GroupHeader::decode(Salt::of(&[1; 16]), bytes).expect("header");
        assert_eq!((header.durable_upto, header.number), (*at, 2));
    }
}
