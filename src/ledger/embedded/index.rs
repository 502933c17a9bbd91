//! Which segments the entries of a ledger are in, and what a ledger is in checkpoints. Pure.
//!
//! A ledger is a sequence of runs: consecutive entries in one segment. Where in the segment each of them is, is kept here only while the
//! segment has no index file (`segment_index`): what is kept grows with runs, not with entries. Older runs are packed (`packed_runs`).

use std::collections::VecDeque;

use bytes::{BufMut, Bytes};

use super::packed_runs::{Extent, Pack};
use super::segment_index::Place;
use crate::journal::Location;
use crate::journal::format::{Malformed, Reader};

/// What the log has of one ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LedgerIndex {
    /// As its creator gave them.
    pub options: Bytes,
    /// Whether it has ended.
    pub sealed: bool,
    /// The first entry that is not trimmed.
    first: u64,
    /// The number of the next entry.
    next: u64,
    /// Runs of all entries from `first` to `next`, in order and without gaps; no two that follow each other are in the same segment. The
    /// first of them, all of segments with an index file, are here ...
    packs: VecDeque<Pack>,
    /// ... and the last ones here.
    runs: VecDeque<Run>,
    /// Bytes of all entries ever appended.
    length: u64,
}

/// Consecutive entries of a ledger in one segment, and where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    extent: Extent,
    /// Where each is; `None`: the index file of the segment says that.
    #[expect(
        clippy::box_collection,
        reason = "most runs have none, and are to be small"
    )]
    places: Option<Box<VecDeque<Place>>>,
}

/// So many runs are packed together, and as many stay as they are.
const PACK: usize = if cfg!(test) { 3 } else { 16 };

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// At this place.
    At(Location),
    /// In this segment, as all entries up to `end` are; its index file says where.
    In {
        /// Generation of the segment.
        generation: u64,
        /// The first entry that is not in the run.
        end: u64,
    },
}

/// What an entry of the log is to a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// Nothing: it does not follow the last one, or comes after the end.
    Refused,
    /// One more of the run before.
    Continued,
    /// The first of a run.
    Begun,
}

/// Entries that are not in a segment any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// The segment.
    pub generation: u64,
    /// How many.
    pub entries: u64,
    /// Bytes of their records, as far as they are known.
    pub bytes: u64,
}

impl Run {
    fn one(entry: u64, at: Location) -> Self {
        let place = Place {
            offset: at.offset,
            length: at.length,
        };
        Self {
            extent: Extent {
                generation: at.generation,
                first: entry,
                count: 1,
                bytes: at.length,
            },
            places: Some(Box::new(VecDeque::from([place]))),
        }
    }

    fn indexed(extent: Extent) -> Self {
        Self {
            extent,
            places: None,
        }
    }

    /// Which entries of which segment.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Where its entries are; `None`: the index file of the segment says that.
    #[must_use]
    pub fn places(&self) -> Option<&VecDeque<Place>> {
        self.places.as_deref()
    }

    /// Bytes of the first `count` entries.
    fn bytes_of(&self, count: u32) -> u32 {
        let Extent {
            count: all, bytes, ..
        } = self.extent;
        if count >= all {
            return bytes;
        }
        let first = match &self.places {
            Some(places) => places
                .iter()
                .take(count as usize)
                .map(|place| u64::from(place.length))
                .sum(),
            None => u64::from(bytes) * u64::from(count) / u64::from(all),
        };
        u32::try_from(first).unwrap_or(u32::MAX).min(bytes)
    }

    /// One more entry behind its last, in the same segment.
    fn push(&mut self, at: Location) {
        self.extent.count += 1;
        self.extent.bytes = self.extent.bytes.saturating_add(at.length);
        if let Some(places) = &mut self.places {
            places.push_back(Place {
                offset: at.offset,
                length: at.length,
            });
        }
    }

    /// Takes away the first `count` entries, which are not all, and have so many bytes.
    fn drop_front(&mut self, count: u32, bytes: u32) -> Gone {
        let bytes = bytes.min(self.extent.bytes);
        self.extent.bytes -= bytes;
        self.extent.first += u64::from(count);
        self.extent.count -= count;
        if let Some(places) = &mut self.places {
            places.drain(..(count as usize).min(places.len()));
            if places.len() * 4 < places.capacity() {
                places.shrink_to(places.len() * 2);
            }
        }
        Gone {
            generation: self.extent.generation,
            entries: u64::from(count),
            bytes: u64::from(bytes),
        }
    }

    /// Takes away the entries below `first`, which are some and not all.
    fn trim(&mut self, first: u64) -> Gone {
        let count = u32::try_from(first - self.extent.first).unwrap_or(u32::MAX);
        self.drop_front(count, self.bytes_of(count))
    }

    /// Keeps the first `count` entries and returns the others.
    fn split_off(&mut self, count: u32) -> Self {
        let bytes = self.bytes_of(count);
        let rest = Self {
            extent: Extent {
                generation: self.extent.generation,
                first: self.extent.first + u64::from(count),
                count: self.extent.count - count,
                bytes: self.extent.bytes - bytes,
            },
            places: self
                .places
                .as_mut()
                .map(|places| Box::new(places.split_off((count as usize).min(places.len())))),
        };
        self.extent.count = count;
        self.extent.bytes = bytes;
        rest
    }

    /// Takes another one behind it, of the same segment.
    fn join(&mut self, mut next: Self) {
        self.extent.count += next.extent.count;
        self.extent.bytes = self.extent.bytes.saturating_add(next.extent.bytes);
        // A segment has an index file or has none: both runs have places, or neither.
        self.places = match (self.places.take(), next.places.take()) {
            (Some(mut places), Some(mut more)) => {
                places.append(&mut more);
                Some(places)
            }
            _ => None,
        };
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.extent.generation);
        out.put_u64(self.extent.first);
        out.put_u32(self.extent.count);
        out.put_u32(self.extent.bytes);
        out.put_u8(u8::from(self.places.is_some()));
        for place in self.places.iter().flat_map(|places| places.iter()) {
            out.put_u32(place.offset);
            out.put_u32(place.length);
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, Malformed> {
        let mut run = Self::indexed(Extent {
            generation: reader.u64()?,
            first: reader.u64()?,
            count: reader.u32()?,
            bytes: reader.u32()?,
        });
        if run.extent.count == 0 {
            return Err(Malformed("a run without entries"));
        }
        if reader.u8()? != 0 {
            let mut places = VecDeque::new();
            for _ in 0..run.extent.count {
                places.push_back(Place {
                    offset: reader.u32()?,
                    length: reader.u32()?,
                });
            }
            run.places = Some(Box::new(places));
        }
        Ok(run)
    }
}

impl From<Extent> for Gone {
    fn from(all: Extent) -> Self {
        Self {
            generation: all.generation,
            entries: u64::from(all.count),
            bytes: u64::from(all.bytes),
        }
    }
}

impl LedgerIndex {
    /// A new ledger.
    #[must_use]
    pub fn new(options: Bytes) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// The number of the next entry.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The first entry that is not trimmed.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Bytes of all entries ever appended.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = Extent> {
        let packed = self.packs.iter().flat_map(Pack::unpack);
        packed.chain(self.runs.iter().map(Run::extent))
    }

    /// The last of its runs: all whose places are here, and some more.
    pub fn recent(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter()
    }

    /// Which of the last runs has an entry.
    fn position(&self, entry: u64) -> Option<usize> {
        if entry < self.first || entry >= self.next {
            return None;
        }
        let behind = self.runs.partition_point(|run| run.extent.first <= entry);
        behind.checked_sub(1)
    }

    fn run(&self, entry: u64) -> Option<Extent> {
        if entry < self.first || entry >= self.next {
            return None;
        }
        if let Some(index) = self.position(entry) {
            return self.runs.get(index).map(Run::extent);
        }
        let behind = self.packs.partition_point(|pack| pack.first() <= entry);
        let pack = self.packs.get(behind.checked_sub(1)?)?;
        pack.unpack().find(|run| run.end() > entry)
    }

    /// The segment that an entry is in.
    #[must_use]
    pub fn generation(&self, entry: u64) -> Option<u64> {
        self.run(entry).map(|run| run.generation)
    }

    /// Where an entry is.
    #[must_use]
    pub fn find(&self, entry: u64) -> Option<Found> {
        if let Some(at) = self.known(entry).next() {
            return Some(Found::At(at));
        }
        self.run(entry).map(|run| Found::In {
            generation: run.generation,
            end: run.end(),
        })
    }

    /// Places of an entry and those behind it in the same run; none when only an index file knows them.
    pub fn known(&self, entry: u64) -> impl Iterator<Item = Location> {
        let run = self.position(entry).and_then(|index| self.runs.get(index));
        let skipped = run.map_or(0, |run| entry - run.extent.first);
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        run.into_iter().flat_map(move |run| {
            let places = run.places().into_iter().flatten();
            places
                .skip(skipped)
                .map(|place| place.in_segment(run.extent.generation))
        })
    }

    /// An entry of the log.
    pub fn append(&mut self, entry: u64, payload: usize, at: Location) -> Appended {
        if self.sealed || entry != self.next {
            return Appended::Refused;
        }
        self.next += 1;
        self.length += payload as u64;
        match self.runs.back_mut() {
            Some(last) if last.extent.generation == at.generation => {
                last.push(at);
                Appended::Continued
            }
            _ => {
                self.runs.push_back(Run::one(entry, at));
                Appended::Begun
            }
        }
    }

    /// An entry was copied to another segment, which takes it out of the one it was in, if the ledger still has it.
    pub fn moved(&mut self, entry: u64, at: Location) -> Option<Gone> {
        if self.run(entry)?.generation == at.generation {
            // The same entry twice in a segment: either place has it.
            return None;
        }
        self.unpack_to(entry);
        let mut index = self.position(entry)?;
        let run = self.runs.get_mut(index)?;
        let before = u32::try_from(entry - run.extent.first).ok()?;
        if before > 0 {
            let rest = run.split_off(before);
            index += 1;
            self.runs.insert(index, rest);
        }
        let gone = self.take_first(index, at.length)?;
        // Copies come in order for the most part: the run before goes on.
        let before = index.checked_sub(1).and_then(|i| self.runs.get_mut(i));
        match before {
            Some(run) if run.extent.generation == at.generation => {
                run.push(at);
                index -= 1;
            }
            _ => self.runs.insert(index, Run::one(entry, at)),
        }
        self.join(index);
        Some(gone)
    }

    /// Takes away the first entry of a run, of so many bytes, and the run when it was the last.
    fn take_first(&mut self, index: usize, length: u32) -> Option<Gone> {
        let run = self.runs.get_mut(index)?;
        if run.extent.count > 1 {
            return Some(run.drop_front(1, length));
        }
        self.runs.remove(index).map(|run| run.extent.into())
    }

    /// Makes one of a run and the next one when they are in the same segment.
    fn join(&mut self, index: usize) {
        let generation = |run: Option<&Run>| run.map(|run| run.extent.generation);
        let next = self.runs.get(index + 1);
        if next.is_some() && generation(next) == generation(self.runs.get(index)) {
            let next = self.runs.remove(index + 1);
            if let (Some(run), Some(next)) = (self.runs.get_mut(index), next) {
                run.join(next);
            }
        }
    }

    /// The segment has an index file now: places in it need not be kept.
    pub fn indexed(&mut self, generation: u64) {
        let runs = self.runs.iter_mut();
        runs.filter(|run| run.extent.generation == generation)
            .for_each(|run| run.places = None);
        let ready = |run: &Run| run.places.is_none();
        while self.runs.len() >= 2 * PACK && self.runs.iter().take(PACK).all(ready) {
            let runs = self.runs.drain(..PACK).map(|run| run.extent);
            self.packs.extend(Pack::of(runs));
            // While indexes were waited for there may have been more.
            self.runs.shrink_to(2 * PACK);
        }
        self.shrink();
    }

    /// The run of an entry and all behind it are as they change.
    fn unpack_to(&mut self, entry: u64) {
        while let Some(pack) = self.packs.pop_back_if(|pack| pack.end() > entry) {
            let mut runs: VecDeque<Run> = pack.unpack().map(Run::indexed).collect();
            runs.append(&mut self.runs);
            self.runs = runs;
        }
    }

    fn shrink(&mut self) {
        if self.runs.len() * 4 < self.runs.capacity() {
            self.runs.shrink_to(self.runs.len() * 2);
        }
        if self.packs.len() * 4 < self.packs.capacity() {
            self.packs.shrink_to(self.packs.len() * 2);
        }
    }

    /// Entries below `first` are gone; returns what that is of which segment. Never beyond the last entry.
    pub fn trim(&mut self, first: u64) -> Vec<Gone> {
        let first = first.min(self.next);
        let mut gone = Vec::new();
        while let Some(pack) = self.packs.pop_front_if(|pack| pack.first() < first) {
            let mut rest = Vec::new();
            for run in pack.unpack() {
                if run.end() <= first {
                    gone.push(run.into());
                } else if run.first < first {
                    let mut run = Run::indexed(run);
                    gone.push(run.trim(first));
                    rest.push(run.extent);
                } else {
                    rest.push(run);
                }
            }
            if let Some(rest) = Pack::of(rest) {
                self.packs.push_front(rest);
            }
        }
        while let Some(run) = self.runs.front_mut()
            && run.extent.first < first
        {
            if run.extent.end() <= first {
                gone.push(run.extent.into());
                self.runs.pop_front();
            } else {
                gone.push(run.trim(first));
            }
        }
        self.first = self.first.max(first);
        self.shrink();
        gone
    }

    /// Appends it to a section of a checkpoint.
    ///
    /// # Panics
    /// When the options are longer than 4 GiB, or there are as many runs; the length of a record and the number of segments bound them.
    pub fn encode(&self, ledger: u64, out: &mut Vec<u8>) {
        out.put_u64(ledger);
        out.put_u8(u8::from(self.sealed));
        out.put_u64(self.first);
        out.put_u64(self.next);
        out.put_u64(self.length);
        out.put_u32(
            u32::try_from(self.options.len())
                .expect("options are bounded by the length of a record"),
        );
        out.put_slice(&self.options);
        let few = "runs are bounded by memory";
        out.put_u32(u32::try_from(self.packs.len()).expect(few));
        for pack in &self.packs {
            out.put_u32(pack.runs());
            out.put_u32(u32::try_from(pack.bytes().len()).expect("a pack is some runs"));
            out.put_slice(pack.bytes());
        }
        out.put_u32(u32::try_from(self.runs.len()).expect(few));
        self.runs.iter().for_each(|run| run.encode(out));
    }

    /// Reads one of a section.
    ///
    /// # Errors
    /// It is not one.
    pub(crate) fn decode(reader: &mut Reader) -> Result<(u64, Self), Malformed> {
        let ledger = reader.u64()?;
        let mut index = Self {
            sealed: reader.u8()? != 0,
            first: reader.u64()?,
            next: reader.u64()?,
            length: reader.u64()?,
            ..Self::default()
        };
        index.options = Bytes::copy_from_slice(&reader.prefixed()?);
        let mut end = index.first;
        for _ in 0..reader.u32()? {
            let runs = reader.u32()?;
            let pack = Pack::decode(end, runs, &reader.prefixed()?)?;
            end = pack.end();
            index.packs.push_back(pack);
        }
        for _ in 0..reader.u32()? {
            let run = Run::decode(reader)?;
            if run.extent.first != end {
                return Err(Malformed("runs of a ledger do not follow each other"));
            }
            end = end
                .checked_add(u64::from(run.extent.count))
                .ok_or(Malformed("entries of a ledger are too many"))?;
            index.runs.push_back(run);
        }
        if index.next != end {
            return Err(Malformed("entries of a ledger are missing"));
        }
        Ok((ledger, index))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn place(number: u64, generation: u64) -> Location {
        let small = u32::try_from(number).expect("small");
        Location {
            generation,
            offset: small * 3,
            length: small + 40,
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Append(u64),
        Trim(u64),
        Move(u64),
        Seal,
        /// The log goes on to the next segment.
        NextSegment,
        /// A segment that was finished has an index file.
        Indexed(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            20 => (0..3_u64).prop_map(Step::Append),
            2 => (0..60_u64).prop_map(Step::Trim),
            6 => (0..60_u64).prop_map(Step::Move),
            1 => Just(Step::Seal),
            4 => Just(Step::NextSegment),
            3 => (0..8_u64).prop_map(Step::Indexed),
        ];
        proptest::collection::vec(step, 0..120)
    }

    /// Entries and bytes of each segment, as the runs have them.
    fn usage(index: &LedgerIndex) -> BTreeMap<u64, (u64, u64)> {
        let mut usage = BTreeMap::new();
        for run in index.runs() {
            let (entries, bytes) = usage.entry(run.generation).or_insert((0, 0));
            *entries += u64::from(run.count);
            *bytes += u64::from(run.bytes);
        }
        usage
    }

    proptest! {
        #[test]
        fn knows_what_a_plain_map_knows_and_comes_back_from_its_bytes(steps in steps()) {
            let mut index = LedgerIndex::new(Bytes::from_static(b"opt"));
            let mut model: BTreeMap<u64, Location> = BTreeMap::new();
            let mut indexed = BTreeSet::new();
            let mut counted: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            let (mut next, mut sealed, mut length, mut generation) = (0, false, 0, 1);
            for (number, step) in (0..).zip(&steps) {
                let at = place(number, generation);
                let mut gone = Vec::new();
                match step {
                    Step::Append(off) => {
                        let follows = *off == 0 && !sealed;
                        let begun = model.get(&(next.max(1) - 1)).is_none_or(|last| last.generation != generation);
                        let expected = match (follows, begun) {
                            (false, _) => Appended::Refused,
                            (true, true) => Appended::Begun,
                            (true, false) => Appended::Continued,
                        };
                        prop_assert_eq!(index.append(next + off, 5, at), expected);
                        if follows {
                            model.insert(next, at);
                            next += 1;
                            length += 5;
                            let counted = counted.entry(generation).or_default();
                            *counted = (counted.0 + 1, counted.1 + u64::from(at.length));
                        }
                    }
                    Step::Trim(first) => {
                        model = model.split_off(first);
                        gone = index.trim(*first);
                    }
                    Step::Move(entry) => {
                        // Copied as it was, from a segment before this one.
                        let held = model.get_mut(entry).filter(|held| held.generation < generation);
                        let copy = held.as_ref().map_or(at, |held| Location { length: held.length, ..at });
                        let moved = index.moved(*entry, copy);
                        prop_assert_eq!(moved.map(|gone| gone.generation), held.as_ref().map(|held| held.generation));
                        if let Some(held) = held {
                            *held = copy;
                            gone.extend(moved);
                            let counted = counted.entry(generation).or_default();
                            *counted = (counted.0 + 1, counted.1 + u64::from(copy.length));
                        }
                    }
                    Step::Seal => {
                        index.sealed = true;
                        sealed = true;
                    }
                    Step::NextSegment => generation += 1,
                    Step::Indexed(back) => {
                        if let Some(old) = generation.checked_sub(1 + back) {
                            index.indexed(old);
                            indexed.insert(old);
                        }
                    }
                }
                for gone in gone {
                    let counted = counted.get_mut(&gone.generation).expect("counted");
                    prop_assert!(counted.0 >= gone.entries && counted.1 >= gone.bytes);
                    *counted = (counted.0 - gone.entries, counted.1 - gone.bytes);
                }
                counted.retain(|_, (entries, _)| *entries > 0);
                prop_assert_eq!(&usage(&index), &counted, "what was told to be gone is what is gone");
                prop_assert_eq!((index.next(), index.length()), (next, length));
                for entry in 0..next + 2 {
                    let held = model.get(&entry);
                    prop_assert_eq!(index.generation(entry), held.map(|held| held.generation));
                    match index.find(entry) {
                        Some(Found::In { generation, end }) => {
                            prop_assert!(indexed.contains(&generation) && end > entry);
                            prop_assert!((entry..end).all(|entry| index.generation(entry) == Some(generation)));
                        }
                        Some(Found::At(at)) => prop_assert_eq!(Some(&at), held),
                        None => prop_assert_eq!(held, None),
                    }
                }
                let mut runs = index.runs();
                if let Some(mut run) = runs.next() {
                    for next in runs {
                        prop_assert!(run.generation != next.generation && run.end() == next.first);
                        run = next;
                    }
                }
            }
            let mut bytes = Vec::new();
            index.encode(9, &mut bytes);
            let mut reader = Reader::new(&Bytes::from(bytes));
            prop_assert_eq!(LedgerIndex::decode(&mut reader), Ok((9, index)));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            let _ = LedgerIndex::decode(&mut Reader::new(&Bytes::from(bytes)));
        }
    }

    #[test]
    fn a_run_of_an_indexed_segment_takes_the_same_memory_however_long_it_is() {
        assert_eq!(size_of::<Run>(), 32);
        let mut index = LedgerIndex::default();
        for entry in 0..100_000 {
            index.append(entry, 100, place(1, 1));
        }
        index.indexed(1);
        let mut bytes = Vec::new();
        index.encode(1, &mut bytes);
        assert_eq!((index.runs().count(), bytes.len()), (1, 45 + 25));
    }

    #[test]
    fn older_runs_are_packed_and_a_copy_of_an_entry_among_them_unpacks_them_for_a_while() {
        let mut index = LedgerIndex::default();
        let runs = 20 * PACK as u64;
        for entry in 0..runs {
            index.append(entry, 100, place(entry, entry + 1));
            index.indexed(entry);
        }
        let (packs, rest) = (index.packs.len(), index.runs.len());
        assert!(packs >= 18 && rest <= 2 * PACK, "{packs} {rest}");
        let length = place(5, 0).length;
        let at = Location {
            length,
            ..place(9, 1_000)
        };
        let gone = index.moved(5, at).expect("there");
        assert_eq!((gone.generation, gone.entries), (6, 1));
        assert_eq!(index.find(5), Some(Found::At(at)));
        assert_eq!(index.runs().count() as u64, runs);
        index.indexed(runs);
        assert!(index.packs.len() < 3, "places of the copy are here");
        index.indexed(1_000);
        assert_eq!((index.packs.len(), index.runs.len()), (packs, rest));
        let in_index = Found::In {
            generation: 1_000,
            end: 6,
        };
        assert_eq!(index.find(5), Some(in_index));
    }

    #[test]
    fn the_last_entry_of_a_run_takes_all_that_is_left_of_its_bytes() {
        let mut index = LedgerIndex::default();
        for (entry, length) in (0..).zip([100, 1, 1]) {
            let at = Location {
                generation: 1,
                offset: 0,
                length,
            };
            index.append(entry, 1, at);
        }
        index.indexed(1);
        let bytes: u64 = (1..=3)
            .flat_map(|first| index.trim(first))
            .map(|gone| gone.bytes)
            .sum();
        assert_eq!((bytes, index.runs().count()), (102, 0));
    }
}
