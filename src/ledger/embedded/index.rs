//! Where the entries of a ledger are, and what a ledger is in checkpoints. Pure.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes};

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
    /// Places of all entries from `first` on.
    places: VecDeque<Location>,
    /// Bytes of all entries ever appended.
    length: u64,
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
        self.first + self.places.len() as u64
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

    /// Where an entry is.
    #[must_use]
    pub fn place(&self, entry: u64) -> Option<Location> {
        let index = usize::try_from(entry.checked_sub(self.first)?).ok()?;
        self.places.get(index).copied()
    }

    /// An entry of the log. Whether it is one of the ledger: what does not follow the last one, or comes after the end, is not.
    pub fn append(&mut self, entry: u64, payload: usize, at: Location) -> bool {
        if self.sealed || entry != self.next() {
            return false;
        }
        self.places.push_back(at);
        self.length += payload as u64;
        true
    }

    /// An entry is at another place; returns the old one, if the ledger still has the entry.
    pub fn moved(&mut self, entry: u64, at: Location) -> Option<Location> {
        let index = usize::try_from(entry.checked_sub(self.first)?).ok()?;
        let place = self.places.get_mut(index)?;
        Some(std::mem::replace(place, at))
    }

    /// Entries below `first` are gone; returns their places. Never beyond the last entry.
    pub fn trim(&mut self, first: u64) -> Vec<Location> {
        let count = first.min(self.next()).saturating_sub(self.first);
        let count = usize::try_from(count)
            .unwrap_or(usize::MAX)
            .min(self.places.len());
        self.first += count as u64;
        let gone = self.places.drain(..count).collect();
        if self.places.len() * 4 < self.places.capacity() {
            self.places.shrink_to(self.places.len() * 2);
        }
        gone
    }

    /// Places of all entries.
    pub fn places(&self) -> impl Iterator<Item = Location> {
        self.places.iter().copied()
    }

    /// Appends it to a section of a checkpoint.
    ///
    /// # Panics
    /// When the options are longer than 4 GiB; the length of a record bounds them.
    pub fn encode(&self, ledger: u64, out: &mut Vec<u8>) {
        out.put_u64(ledger);
        out.put_u8(u8::from(self.sealed));
        out.put_u64(self.first);
        out.put_u64(self.next());
        out.put_u64(self.length);
        out.put_u32(
            u32::try_from(self.options.len())
                .expect("options are bounded by the length of a record"),
        );
        out.put_slice(&self.options);
        let count_at = out.len();
        out.put_u32(0);
        let mut runs = 0_u32;
        let mut entry = self.first;
        let mut rest = self.places.iter().copied().peekable();
        while let Some(head) = rest.peek().copied() {
            let mut run = Vec::new();
            while let Some(place) = rest.next_if(|place| place.generation == head.generation) {
                run.put_u32(place.offset);
                run.put_u32(place.length);
            }
            let count = run.len() / 8;
            out.put_u64(head.generation);
            out.put_u64(entry);
            out.put_u32(u32::try_from(count).expect("a segment is at most 1 GiB"));
            out.extend_from_slice(&run);
            entry += count as u64;
            runs += 1;
        }
        crate::journal::format::put_at(out, count_at, &runs.to_be_bytes());
    }

    /// Reads one of a section.
    ///
    /// # Errors
    /// It is not one.
    pub(crate) fn decode(reader: &mut Reader) -> Result<(u64, Self), Malformed> {
        let ledger = reader.u64()?;
        let sealed = reader.u8()? != 0;
        let first = reader.u64()?;
        let next = reader.u64()?;
        let length = reader.u64()?;
        let options = Bytes::copy_from_slice(&reader.prefixed()?);
        let mut places = VecDeque::new();
        for _ in 0..reader.u32()? {
            let generation = reader.u64()?;
            let entry = reader.u64()?;
            if entry != first.wrapping_add(places.len() as u64) {
                return Err(Malformed("runs of a ledger do not follow each other"));
            }
            for _ in 0..reader.u32()? {
                let offset = reader.u32()?;
                let length = reader.u32()?;
                places.push_back(Location {
                    generation,
                    offset,
                    length,
                });
            }
        }
        if next != first.wrapping_add(places.len() as u64) {
            return Err(Malformed("entries of a ledger are missing"));
        }
        Ok((
            ledger,
            Self {
                options,
                sealed,
                first,
                places,
                length,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(number: u64) -> Location {
        let small = u32::try_from(number).expect("small");
        Location {
            generation: number / 7,
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
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            10 => (0..3_u64).prop_map(Step::Append),
            2 => (0..60_u64).prop_map(Step::Trim),
            3 => (0..60_u64).prop_map(Step::Move),
            1 => Just(Step::Seal),
        ];
        proptest::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn knows_what_a_plain_map_knows_and_comes_back_from_its_bytes(steps in steps()) {
            let mut index = LedgerIndex::new(Bytes::from_static(b"opt"));
            let mut model = std::collections::BTreeMap::new();
            let (mut next, mut sealed, mut length) = (0, false, 0);
            for (number, step) in (0..).zip(&steps) {
                match step {
                    Step::Append(off) => {
                        let follows = *off == 0 && !sealed;
                        prop_assert_eq!(index.append(next + off, 5, place(number)), follows);
                        if follows {
                            model.insert(next, place(number));
                            next += 1;
                            length += 5;
                        }
                    }
                    Step::Trim(first) => {
                        let kept = model.split_off(first);
                        let gone: Vec<Location> = std::mem::replace(&mut model, kept).into_values().collect();
                        prop_assert_eq!(index.trim(*first), gone);
                    }
                    Step::Move(entry) => {
                        let held = model.get_mut(entry).map(|held| std::mem::replace(held, place(number)));
                        prop_assert_eq!(index.moved(*entry, place(number)), held);
                    }
                    Step::Seal => {
                        index.sealed = true;
                        sealed = true;
                    }
                }
                prop_assert_eq!((index.next(), index.length()), (next, length));
                for entry in 0..next + 2 {
                    prop_assert_eq!(index.place(entry), model.get(&entry).copied());
                }
            }
            let mut bytes = Vec::new();
            index.encode(9, &mut bytes);
            let mut reader = Reader::new(&Bytes::from(bytes));
            prop_assert_eq!(LedgerIndex::decode(&mut reader), Ok((9, index)));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = LedgerIndex::decode(&mut Reader::new(&Bytes::from(bytes)));
        }
    }
}
