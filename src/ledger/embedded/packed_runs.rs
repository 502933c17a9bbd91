//! Runs that hardly ever change, in a few bytes each. Pure.
//!
//! A ledger has a run for each segment that it has entries in: with many ledgers written in turn a run may be a single entry, and what is
//! kept of it must be little.

use crate::journal::format::Malformed;

/// Consecutive entries of a ledger in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Generation of the segment.
    pub generation: u64,
    /// The first of them.
    pub first: u64,
    /// How many, at least one.
    pub count: u32,
    /// Bytes of their records. An estimate once entries have gone whose places were not known.
    pub bytes: u32,
}

/// Some runs of a ledger, which follow each other, packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    /// The first entry.
    first: u64,
    /// The first entry behind the last.
    end: u64,
    runs: u32,
    bytes: Box<[u8]>,
}

impl Extent {
    /// The first entry that is not in it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }
}

impl Pack {
    /// Packs runs that follow each other; `None`: there are none.
    #[must_use]
    pub fn of(runs: impl IntoIterator<Item = Extent>) -> Option<Self> {
        let mut bytes = Vec::new();
        let mut before = 0;
        let mut packed: Option<(u64, u64, u32)> = None;
        for run in runs {
            // Generations mostly rise, and a copied run has a higher one than those around it.
            let step = run.generation.wrapping_sub(before).cast_signed();
            put(&mut bytes, ((step << 1) ^ (step >> 63)).cast_unsigned());
            put(&mut bytes, u64::from(run.count));
            put(&mut bytes, u64::from(run.bytes));
            before = run.generation;
            let (first, _, count) = packed.unwrap_or((run.first, 0, 0));
            packed = Some((first, run.end(), count + 1));
        }
        let (first, end, runs) = packed?;
        let bytes = bytes.into_boxed_slice();
        Some(Self {
            first,
            end,
            runs,
            bytes,
        })
    }

    /// From bytes of another one that begins with this entry.
    ///
    /// # Errors
    /// They are not so many runs.
    pub fn decode(first: u64, runs: u32, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut unpacking = Unpacking {
            rest: bytes,
            generation: 0,
            first,
        };
        for _ in 0..runs {
            unpacking.try_next()?;
        }
        if runs == 0 || !unpacking.rest.is_empty() {
            return Err(Malformed("packed runs that are not as many as they say"));
        }
        Ok(Self {
            first,
            end: unpacking.first,
            runs,
            bytes: bytes.into(),
        })
    }

    /// Its runs.
    #[must_use]
    pub fn unpack(&self) -> Unpacking<'_> {
        Unpacking {
            rest: &self.bytes,
            generation: 0,
            first: self.first,
        }
    }

    /// The first entry.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The first entry behind the last.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// How many runs.
    #[must_use]
    pub fn runs(&self) -> u32 {
        self.runs
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Runs of a pack, one after the other.
#[derive(Debug, Clone)]
pub struct Unpacking<'a> {
    rest: &'a [u8],
    generation: u64,
    first: u64,
}

impl Unpacking<'_> {
    fn try_next(&mut self) -> Result<Extent, Malformed> {
        let step = self.number()?;
        let step = (step >> 1) ^ (step & 1).wrapping_neg();
        let short = |number: u64| u32::try_from(number).map_err(|_| Malformed("run too long"));
        let run = Extent {
            generation: self.generation.wrapping_add(step),
            first: self.first,
            count: short(self.number()?)?,
            bytes: short(self.number()?)?,
        };
        let end = run.first.checked_add(u64::from(run.count));
        self.first = end
            .filter(|_| run.count > 0)
            .ok_or(Malformed("a run without entries, or with too many"))?;
        self.generation = run.generation;
        Ok(run)
    }

    /// Seven bits in each byte, the lowest first; the highest bit says that more follow.
    fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self
                .rest
                .split_first()
                .ok_or(Malformed("packed runs end too early"))?;
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed("number of packed runs too long"))
    }
}

impl Iterator for Unpacking<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        // What was packed, or checked when it was decoded, does not fail before its end.
        self.try_next().ok()
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs() -> impl Strategy<Value = Vec<Extent>> {
        let run = (any::<u64>(), 1..u32::MAX, any::<u32>());
        let small = (0..40_u64, 1..5_u32, 28..5000_u32);
        let runs = proptest::collection::vec(prop_oneof![small, run], 1..20);
        (0..1_000_000_u64, runs).prop_map(|(mut first, runs)| {
            let runs = runs.into_iter().map(|(generation, count, bytes)| {
                let run = Extent {
                    generation,
                    first,
                    count,
                    bytes,
                };
                first = run.end();
                run
            });
            runs.collect()
        })
    }

    proptest! {
        #[test]
        fn runs_come_back_as_they_were(runs in runs()) {
            let pack = Pack::of(runs.iter().copied()).expect("some");
            prop_assert_eq!(pack.unpack().collect::<Vec<_>>(), runs.clone());
            let count = u32::try_from(runs.len()).expect("few");
            prop_assert_eq!(pack.runs(), count);
            prop_assert_eq!((pack.first(), pack.end()), (runs[0].first, runs[runs.len() - 1].end()));
            prop_assert_eq!(Pack::decode(pack.first(), count, pack.bytes()), Ok(pack.clone()));
            prop_assert!(Pack::decode(pack.first(), count + 1, pack.bytes()).is_err());
            prop_assert!(Pack::decode(pack.first(), count - 1, pack.bytes()).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_panic(
            first in any::<u64>(),
            runs in any::<u32>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            if let Ok(pack) = Pack::decode(first, runs, &bytes) {
                prop_assert_eq!(pack.unpack().count() as u64, u64::from(runs));
            }
        }
    }

    #[test]
    fn a_run_takes_five_bytes_when_each_segment_has_one_entry_of_a_ledger() {
        let run = |number: u64| Extent {
            generation: 20_000 + number * 3,
            first: 7_000 + number,
            count: 1,
            bytes: 1_124,
        };
        let pack = Pack::of((0..64).map(run)).expect("some");
        assert!(pack.bytes().len() <= 64 * 4 + 2, "{}", pack.bytes().len());
    }
}
