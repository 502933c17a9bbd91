//! The index file of a segment: where in it the entries of each ledger are. Pure; `docs/storage-format.md` has the tables.
//!
//! Derived from the segment and never the only place where something is said: one that does not verify is made again.

use bytes::{BufMut, Bytes};

use crate::journal::Location;
use crate::journal::format::{ENTRY_HEADER, FORMAT, Malformed, Reader, Salt, put_at};

/// Where in a segment a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Bytes from the start of the segment.
    pub offset: u32,
    /// Bytes of the record with its header.
    pub length: u32,
}

/// An entry of any ledger. Entries are ordered by ledger, then number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryKey {
    /// The ledger.
    pub ledger: u64,
    /// The entry.
    pub entry: u64,
}

/// Writes an index.
#[derive(Debug)]
pub struct Builder {
    generation: u64,
    salt: Salt,
    directory: Vec<Item>,
    /// Blocks that are complete, one behind the other.
    blocks: Vec<u8>,
    block: Vec<u8>,
    /// The first entry of the block.
    first: Option<EntryKey>,
    piece: Option<Piece>,
}

/// Entries that follow each other, in the block that is being written.
#[derive(Debug)]
struct Piece {
    next: EntryKey,
    count: u32,
    count_at: usize,
}

/// Reads an index, and checks that it is that of its segment.
#[derive(Debug, Clone, Copy)]
pub struct IndexOf {
    generation: u64,
    segment_size: u64,
    salt: Salt,
}

/// What the head of an index says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    blocks: u32,
    directory_crc: u32,
}

/// Which entries are in which block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    items: Vec<Item>,
}

/// A block, as the directory has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    first: EntryKey,
    /// Bytes from the start of the file.
    pub offset: u32,
    /// Bytes of the block.
    pub length: u32,
    crc: u32,
}

/// A block that verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    bytes: Bytes,
}

/// Bytes before the directory.
pub const HEAD: usize = 64;
/// Bytes of a block of the directory.
const ITEM: usize = 28;
/// A block is closed once it has so many bytes.
const BLOCK_BYTES: usize = 16 << 10;
/// Entries of a piece; more are several pieces, so that a block is read in little more than its usual size.
const PIECE_ENTRIES: u32 = 1024;
const PLACE: usize = 8;
const MAGIC: &[u8; 4] = b"PGIX";

impl Place {
    /// The same in the segment of this generation.
    #[must_use]
    pub fn in_segment(self, generation: u64) -> Location {
        Location {
            generation,
            offset: self.offset,
            length: self.length,
        }
    }
}

impl EntryKey {
    fn next(self) -> Self {
        Self {
            entry: self.entry.wrapping_add(1),
            ..self
        }
    }
}

impl Builder {
    /// Of the segment of this generation; `salt` is that of the store.
    #[must_use]
    pub fn new(generation: u64, salt: Salt) -> Self {
        Self {
            generation,
            salt: salt.for_generation(generation),
            directory: Vec::new(),
            blocks: Vec::new(),
            block: Vec::new(),
            first: None,
            piece: None,
        }
    }

    /// Adds an entry. Entries come in their order, each once.
    pub fn add(&mut self, key: EntryKey, place: Place) {
        let fits = |piece: &Piece| piece.next == key && piece.count < PIECE_ENTRIES;
        if !self.piece.as_ref().is_some_and(fits) {
            self.close_piece();
            if self.block.len() >= BLOCK_BYTES {
                self.close_block();
            }
            self.first.get_or_insert(key);
            self.block.put_u64(key.ledger);
            self.block.put_u64(key.entry);
            let count_at = self.block.len();
            self.block.put_u32(0);
            self.piece = Some(Piece {
                next: key,
                count: 0,
                count_at,
            });
        }
        self.block.put_u32(place.offset);
        self.block.put_u32(place.length);
        if let Some(piece) = &mut self.piece {
            piece.next = key.next();
            piece.count += 1;
        }
    }

    fn close_piece(&mut self) {
        if let Some(piece) = self.piece.take() {
            put_at(&mut self.block, piece.count_at, &piece.count.to_be_bytes());
        }
    }

    fn close_block(&mut self) {
        let Some(first) = self.first.take() else {
            return;
        };
        let small = "an index is not longer than its segment";
        self.directory.push(Item {
            first,
            // The place of the first block is known when the directory is complete.
            offset: u32::try_from(self.blocks.len()).expect(small),
            length: u32::try_from(self.block.len()).expect(small),
            crc: self.salt.crc(&self.block),
        });
        self.blocks.append(&mut self.block);
    }

    /// The bytes of the file.
    ///
    /// # Panics
    /// When it is longer than 4 GiB: no segment has so many entries.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.close_piece();
        self.close_block();
        let mut directory = Vec::with_capacity(self.directory.len() * ITEM);
        let blocks_at = HEAD + self.directory.len() * ITEM;
        for item in &self.directory {
            directory.put_u64(item.first.ledger);
            directory.put_u64(item.first.entry);
            let offset = u32::try_from(blocks_at + item.offset as usize);
            directory.put_u32(offset.expect("an index is not longer than its segment"));
            directory.put_u32(item.length);
            directory.put_u32(item.crc);
        }
        let mut out = Vec::with_capacity(blocks_at + self.blocks.len());
        out.put_slice(MAGIC);
        out.put_u16(FORMAT);
        out.put_u16(0);
        out.put_u64(self.generation);
        out.put_u32(u32::try_from(self.directory.len()).expect("blocks are not tiny"));
        out.put_u32(self.salt.crc(&directory));
        out.resize(HEAD - 4, 0);
        let crc = self.salt.crc(&out);
        out.put_u32(crc);
        out.append(&mut directory);
        out.append(&mut self.blocks);
        out
    }
}

impl Head {
    /// Where the directory ends, in bytes from the start of the file.
    #[must_use]
    pub fn directory_end(&self) -> u64 {
        HEAD as u64 + u64::from(self.blocks) * ITEM as u64
    }
}

impl IndexOf {
    /// Reads the index of the segment of this generation and size; `salt` is that of the store.
    #[must_use]
    pub fn segment(generation: u64, size: u32, salt: Salt) -> Self {
        Self {
            generation,
            segment_size: u64::from(size),
            salt: salt.for_generation(generation),
        }
    }

    /// The head, from the start of the file.
    ///
    /// # Errors
    /// It is of another store, another segment or another format, or damaged.
    pub fn head(&self, bytes: &Bytes) -> Result<Head, Malformed> {
        let mut reader = Reader::new(bytes);
        let covered = reader
            .take(HEAD - 4)
            .map_err(|_| Malformed("an index that is too short"))?;
        if self.salt.crc(&covered) != reader.u32()? {
            return Err(Malformed("checksum of an index's head"));
        }
        let mut reader = Reader::new(&covered);
        if reader.take(4)?.as_ref() != MAGIC || reader.u16()? != FORMAT {
            return Err(Malformed("no index of this format"));
        }
        reader.skip(2)?;
        if reader.u64()? != self.generation {
            return Err(Malformed("index of another segment"));
        }
        Ok(Head {
            blocks: reader.u32()?,
            directory_crc: reader.u32()?,
        })
    }

    /// The directory, from the bytes between [`HEAD`] and [`Head::directory_end`].
    ///
    /// # Errors
    /// They are not what the head says.
    pub fn directory(&self, head: Head, bytes: &Bytes) -> Result<Directory, Malformed> {
        if self.salt.crc(bytes) != head.directory_crc {
            return Err(Malformed("checksum of an index's directory"));
        }
        let mut reader = Reader::new(bytes);
        let mut items: Vec<Item> = Vec::with_capacity(bytes.len() / ITEM);
        while !reader.is_empty() {
            let item = Item {
                first: EntryKey {
                    ledger: reader.u64()?,
                    entry: reader.u64()?,
                },
                offset: reader.u32()?,
                length: reader.u32()?,
                crc: reader.u32()?,
            };
            if items.last().is_some_and(|last| last.first >= item.first) {
                return Err(Malformed("blocks of an index out of order"));
            }
            items.push(item);
        }
        Ok(Directory { items })
    }

    /// A block, from the bytes at its place.
    ///
    /// # Errors
    /// They are not what the directory says.
    pub fn block(&self, item: Item, bytes: Bytes) -> Result<Block, Malformed> {
        if self.salt.crc(&bytes) != item.crc {
            return Err(Malformed("checksum of a block of an index"));
        }
        let mut reader = Reader::new(&bytes);
        let mut least = item.first;
        while !reader.is_empty() {
            let first = EntryKey {
                ledger: reader.u64()?,
                entry: reader.u64()?,
            };
            let count = reader.u32()?;
            let end = first.entry.checked_add(u64::from(count));
            let Some(end) = end.filter(|_| count > 0 && first >= least) else {
                return Err(Malformed("entries of an index out of order"));
            };
            for _ in 0..count {
                let (offset, length) = (reader.u32()?, reader.u32()?);
                let behind = u64::from(offset) + u64::from(length);
                if (length as usize) < ENTRY_HEADER || behind > self.segment_size {
                    return Err(Malformed("a place that is not in its segment"));
                }
            }
            least = EntryKey {
                entry: end,
                ..first
            };
        }
        Ok(Block { bytes })
    }
}

impl Directory {
    /// The block that has an entry, if any has it: its number and what the directory has of it.
    #[must_use]
    pub fn block_of(&self, key: EntryKey) -> Option<(u32, Item)> {
        let behind = self.items.partition_point(|item| item.first <= key);
        let index = behind.checked_sub(1)?;
        Some((u32::try_from(index).ok()?, *self.items.get(index)?))
    }

    /// Bytes it takes in memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.items.len() * size_of::<Item>()
    }
}

impl Block {
    /// Places of an entry and of those that follow it here; none when it is not here.
    #[must_use]
    pub fn places(&self, key: EntryKey) -> Vec<Place> {
        // What was checked when it was decoded does not fail here.
        self.try_places(key).unwrap_or_default()
    }

    fn try_places(&self, key: EntryKey) -> Result<Vec<Place>, Malformed> {
        let mut reader = Reader::new(&self.bytes);
        while !reader.is_empty() {
            let (ledger, first) = (reader.u64()?, reader.u64()?);
            let count = u64::from(reader.u32()?);
            let skipped = key.entry.checked_sub(first).filter(|at| *at < count);
            let Some(skipped) = skipped.filter(|_| ledger == key.ledger) else {
                reader.skip(usize::try_from(count).unwrap_or(usize::MAX) * PLACE)?;
                continue;
            };
            reader.skip(usize::try_from(skipped).unwrap_or(usize::MAX) * PLACE)?;
            return (skipped..count)
                .map(|_| {
                    Ok(Place {
                        offset: reader.u32()?,
                        length: reader.u32()?,
                    })
                })
                .collect();
        }
        Ok(Vec::new())
    }

    /// Bytes it takes in memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const SIZE: u32 = 1 << 26;
    const PIECE_HEADER: usize = 20;

    fn salt() -> Salt {
        Salt::of(&[1; 16])
    }

    fn built(entries: &BTreeMap<EntryKey, Place>) -> Bytes {
        let mut builder = Builder::new(7, salt());
        entries
            .iter()
            .for_each(|(key, place)| builder.add(*key, *place));
        Bytes::from(builder.finish())
    }

    fn opened(of: IndexOf, bytes: &Bytes) -> Result<Directory, Malformed> {
        let head = of.head(bytes)?;
        let end = usize::try_from(head.directory_end()).expect("small");
        if end > bytes.len() {
            return Err(Malformed("cut short"));
        }
        of.directory(head, &bytes.slice(HEAD..end))
    }

    fn block(of: IndexOf, bytes: &Bytes, item: Item) -> Result<Block, Malformed> {
        let start = item.offset as usize;
        let end = start + item.length as usize;
        if end > bytes.len() {
            return Err(Malformed("cut short"));
        }
        of.block(item, bytes.slice(start..end))
    }

    fn place_of(of: IndexOf, bytes: &Bytes, key: EntryKey) -> Result<Option<Place>, Malformed> {
        let Some((_, item)) = opened(of, bytes)?.block_of(key) else {
            return Ok(None);
        };
        Ok(block(of, bytes, item)?.places(key).first().copied())
    }

    fn key(ledger: u64, entry: u64) -> EntryKey {
        EntryKey { ledger, entry }
    }

    fn many(ledgers: u64, entries: u64) -> BTreeMap<EntryKey, Place> {
        let keys = (0..ledgers).flat_map(|ledger| (0..entries).map(move |entry| (ledger, entry)));
        let places = (0..).step_by(40).map(|offset| Place { offset, length: 40 });
        let keys = keys.map(|(ledger, entry)| key(ledger * 3, entry + 5));
        keys.zip(places).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn says_of_every_entry_where_it_is_and_of_others_nothing(
            runs in proptest::collection::btree_map((0..6_u64, 0..8_u64), (1..3000_u64, 28..90_u32), 0..12),
        ) {
            let mut entries = BTreeMap::new();
            let mut offset = 4096;
            for ((ledger, start), (count, length)) in runs {
                for entry in start * 1000..start * 1000 + count {
                    entries.insert(key(ledger, entry), Place { offset, length });
                    offset += length;
                }
            }
            let bytes = built(&entries);
            let of = IndexOf::segment(7, SIZE, salt());
            let directory = opened(of, &bytes).expect("own");
            let mut found = BTreeMap::new();
            for item in &directory.items {
                prop_assert!(item.length as usize <= BLOCK_BYTES + PIECE_HEADER + PIECE_ENTRIES as usize * PLACE);
                prop_assert!(block(of, &bytes, *item).is_ok());
            }
            for at in entries.keys().step_by(97).chain(entries.keys().last()) {
                let (_, item) = directory.block_of(*at).expect("in a block");
                let places = block(of, &bytes, item).expect("own").places(*at);
                prop_assert!(!places.is_empty());
                for (entry, place) in (at.entry..).zip(places) {
                    found.insert(key(at.ledger, entry), place);
                }
            }
            prop_assert!(found.iter().all(|(key, place)| entries.get(key) == Some(place)));
            for (ledger, entry) in [(9, 0), (0, 999_999), (3, u64::MAX)] {
                prop_assert_eq!(place_of(of, &bytes, key(ledger, entry)), Ok(None));
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let of = IndexOf::segment(7, SIZE, salt());
            let bytes = Bytes::from(bytes);
            let _ = of.head(&bytes);
            let crc = salt().for_generation(7).crc(&bytes);
            let head = Head { blocks: 3, directory_crc: crc };
            if let Ok(directory) = of.directory(head, &bytes) {
                let _ = directory.block_of(key(0, 0));
            }
            let item = Item { first: key(0, 0), offset: 0, length: 0, crc };
            if let Ok(block) = of.block(item, bytes) {
                let _ = block.places(key(0, 0));
            }
        }
    }

    #[test]
    fn an_index_without_entries_says_nothing() {
        let of = IndexOf::segment(7, SIZE, salt());
        let bytes = built(&BTreeMap::new());
        assert_eq!(bytes.len(), HEAD);
        assert_eq!(place_of(of, &bytes, key(0, 0)), Ok(None));
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_seen_by_who_needs_that_part() {
        let entries = many(40, 100);
        let bytes = built(&entries);
        let of = IndexOf::segment(7, SIZE, salt());
        let all = |bytes: &Bytes| -> Result<(), Malformed> {
            for item in opened(of, bytes)?.items {
                block(of, bytes, item)?;
            }
            Ok(())
        };
        all(&bytes).expect("own");
        for at in (0..HEAD + 3 * ITEM).chain((HEAD + 3 * ITEM..bytes.len()).step_by(61)) {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << (at % 8);
            all(&Bytes::from(flipped)).expect_err("flipped");
        }
        for length in [0, 10, HEAD - 1, HEAD, HEAD + 1, bytes.len() - 1] {
            all(&bytes.slice(..length)).expect_err("cut");
        }
    }

    #[test]
    fn the_index_of_another_segment_or_store_is_none_of_this() {
        let bytes = built(&many(1, 1));
        for of in [
            IndexOf::segment(8, SIZE, salt()),
            IndexOf::segment(7, SIZE, Salt::of(&[2; 16])),
        ] {
            opened(of, &bytes).expect_err("foreign");
        }
    }

    #[test]
    fn a_place_outside_of_the_segment_is_refused() {
        let bytes = built(&many(1, 100));
        let small = IndexOf::segment(7, 3999, salt());
        assert_eq!(
            place_of(small, &bytes, key(0, 5)),
            Err(Malformed("a place that is not in its segment"))
        );
    }

    #[test]
    fn an_entry_takes_eight_bytes_in_long_runs_and_a_fraction_more_for_what_finds_it() {
        let one = built(&many(1, 100_000)).len();
        assert!(one < 100_000 * 8 + 5_000, "{one}");
        let scattered = built(&many(10_000, 1)).len();
        assert!(scattered < 10_000 * 29, "{scattered}");
    }
}
