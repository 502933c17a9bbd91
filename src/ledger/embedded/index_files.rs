//! Reading index files: where the entries of segments are whose places are not in memory.
//!
//! Parts of index files are kept in a cache with a bound. A file that is missing or does not verify is told once, its segment is read instead,
//! and the journal is asked to write it again. What an index says is never believed: who reads an entry checks it at its place.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::replica::{Ledgers, index_of};
use super::segment_index::{Block, Directory, EntryKey, HEAD, IndexOf, Item, Place};
use crate::disk::{DiskError, DiskFile};
use crate::journal::format::Malformed;
use crate::journal::{JournalHandle, Salt, SegmentFiles};

/// The index files of a store. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct IndexFiles {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    files: SegmentFiles,
    salt: Salt,
    ledgers: Arc<Ledgers>,
    journal: JournalHandle,
    cache: Mutex<Cache>,
    /// Segments are read one at a time; those that were need not be read again to know what they have.
    scanned: Mutex<HashSet<u64>>,
}

/// Parts of index files, the least recently used of which goes first.
#[derive(Debug)]
struct Cache {
    parts: HashMap<Key, Held>,
    order: BTreeMap<u64, Key>,
    tick: u64,
    openings: u64,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Directory(u64),
    /// Of which opening, and its number there.
    Block(u64, u32),
}

#[derive(Debug)]
struct Held {
    part: Part,
    tick: u64,
    bytes: usize,
}

#[derive(Debug, Clone)]
enum Part {
    Directory(Arc<Opened>),
    Block(Arc<Block>),
}

/// The directory of an index, and where its blocks are.
#[derive(Debug)]
struct Opened {
    /// Of this opening alone: blocks of another file of the same name are others.
    id: u64,
    directory: Directory,
    /// The whole index, when it was made of its segment and may not be in a file yet.
    whole: Option<Bytes>,
}

/// Why an index says nothing.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Bytes of parts of index files in memory.
const CACHE_BYTES: usize = 32 << 20;
/// Bytes that are read first: the head, and the directory of an index of usual size.
const FIRST_READ: u64 = 4 << 10;

impl IndexFiles {
    pub(super) fn new(
        files: SegmentFiles,
        salt: Salt,
        ledgers: Arc<Ledgers>,
        journal: JournalHandle,
    ) -> Self {
        let shared = Shared {
            files,
            salt,
            ledgers,
            journal,
            cache: Mutex::new(Cache::new(CACHE_BYTES)),
            scanned: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Places of an entry and of some that follow it; none when the segment has no such entry. Blocks.
    ///
    /// # Errors
    /// The segment cannot be read, and its index says nothing.
    pub(super) fn places(&self, generation: u64, key: EntryKey) -> Result<Vec<Place>, DiskError> {
        match self.in_index(generation, key) {
            Ok(places) if !places.is_empty() => Ok(places),
            Ok(_) => self.scan(generation, key, "it lacks an entry"),
            Err(error) => self.scan(generation, key, &error.to_string()),
        }
    }

    /// The same from the segment itself, unless it was read before: for an entry that is not where the index said. Blocks.
    ///
    /// # Errors
    /// The segment cannot be read.
    pub(super) fn places_again(
        &self,
        generation: u64,
        key: EntryKey,
    ) -> Result<Vec<Place>, DiskError> {
        if self.shared.scanned.lock().contains(&generation) {
            // What was found then is in the cache, or in a file by now.
            return Ok(self.in_index(generation, key).unwrap_or_default());
        }
        self.scan(generation, key, "an entry is not where it says")
    }

    fn in_index(&self, generation: u64, key: EntryKey) -> Result<Vec<Place>, Unusable> {
        let opened = self.directory(generation)?;
        let Some((number, item)) = opened.directory.block_of(key) else {
            return Ok(Vec::new());
        };
        Ok(self.block(generation, &opened, number, item)?.places(key))
    }

    fn directory(&self, generation: u64) -> Result<Arc<Opened>, Unusable> {
        let key = Key::Directory(generation);
        if let Some(Part::Directory(opened)) = self.shared.cache.lock().get(key) {
            return Ok(opened);
        }
        let file = self.shared.files.open_index(generation)?;
        let length = file.length()?;
        let first = read(file.as_ref(), 0, FIRST_READ.min(length))?;
        let of = self.index_of(generation);
        let head = of.head(&first)?;
        let end = head.directory_end();
        if end > length {
            return Err(Malformed("an index that is too short").into());
        }
        let bytes = if end <= first.len() as u64 {
            first.slice(HEAD..usize::try_from(end).unwrap_or(HEAD))
        } else {
            read(file.as_ref(), HEAD as u64, end - HEAD as u64)?
        };
        let opened = Arc::new(Opened {
            id: self.shared.cache.lock().opening(),
            directory: of.directory(head, &bytes)?,
            whole: None,
        });
        self.keep(key, Part::Directory(Arc::clone(&opened)));
        Ok(opened)
    }

    fn block(
        &self,
        generation: u64,
        opened: &Opened,
        number: u32,
        item: Item,
    ) -> Result<Arc<Block>, Unusable> {
        let key = Key::Block(opened.id, number);
        if let Some(Part::Block(block)) = self.shared.cache.lock().get(key) {
            return Ok(block);
        }
        let (start, length) = (u64::from(item.offset), u64::from(item.length));
        let bytes = match &opened.whole {
            Some(whole) => {
                let end = item.offset.saturating_add(item.length);
                let range = item.offset as usize..end as usize;
                let bytes = whole.get(range);
                Bytes::copy_from_slice(bytes.ok_or(Malformed("an index that is too short"))?)
            }
            None => {
                let file = self.shared.files.open_index(generation)?;
                if start + length > file.length()? {
                    return Err(Malformed("an index that is too short").into());
                }
                read(file.as_ref(), start, length)?
            }
        };
        let block = Arc::new(self.index_of(generation).block(item, bytes)?);
        self.keep(key, Part::Block(Arc::clone(&block)));
        Ok(block)
    }

    /// Reads the segment, since its index is of no use, and asks for another one.
    fn scan(&self, generation: u64, key: EntryKey, why: &str) -> Result<Vec<Place>, DiskError> {
        let mut scanned = self.shared.scanned.lock();
        // Somebody else may have done it meanwhile.
        if scanned.contains(&generation)
            && let Ok(places) = self.in_index(generation, key)
        {
            return Ok(places);
        }
        let entries = self.shared.files.entries(generation)?;
        if self.shared.ledgers.index_lost(generation) {
            tracing::warn!(
                generation,
                why,
                "the index file of a segment is of no use and is made again"
            );
        }
        self.shared.journal.want_index();
        scanned.insert(generation);
        let whole = Bytes::from(index_of(generation, self.shared.salt, entries));
        let of = self.index_of(generation);
        // What was just made verifies; were it not so, the entry would be told to be damaged.
        let directory = of.head(&whole).and_then(|head| {
            let end = usize::try_from(head.directory_end()).unwrap_or(HEAD);
            of.directory(head, &whole.slice(HEAD..end))
        });
        let Ok(directory) = directory else {
            return Ok(Vec::new());
        };
        let opened = Arc::new(Opened {
            id: self.shared.cache.lock().opening(),
            directory,
            whole: Some(whole),
        });
        self.keep(
            Key::Directory(generation),
            Part::Directory(Arc::clone(&opened)),
        );
        let Some((number, item)) = opened.directory.block_of(key) else {
            return Ok(Vec::new());
        };
        let block = self.block(generation, &opened, number, item);
        Ok(block.map_or_else(|_| Vec::new(), |block| block.places(key)))
    }

    fn index_of(&self, generation: u64) -> IndexOf {
        let size = self.shared.files.segment_size();
        IndexOf::segment(generation, size, self.shared.salt)
    }

    fn keep(&self, key: Key, part: Part) {
        self.shared.cache.lock().put(key, part);
    }

    /// Index files that were found missing or damaged.
    pub(super) fn lost(&self) -> u64 {
        self.shared.ledgers.lost_indexes()
    }
}

fn read(file: &dyn DiskFile, offset: u64, length: u64) -> Result<Bytes, DiskError> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    file.read_at(offset, &mut bytes)?;
    Ok(Bytes::from(bytes))
}

impl Part {
    fn memory(&self) -> usize {
        match self {
            Self::Directory(opened) => {
                let whole = opened.whole.as_ref().map_or(0, Bytes::len);
                opened.directory.memory() + whole
            }
            Self::Block(block) => block.memory(),
        }
    }
}

impl Cache {
    fn new(bytes_max: usize) -> Self {
        Self {
            parts: HashMap::new(),
            order: BTreeMap::new(),
            tick: 0,
            openings: 0,
            bytes: 0,
            bytes_max,
        }
    }

    /// A number for an opening.
    fn opening(&mut self) -> u64 {
        self.openings += 1;
        self.openings
    }

    fn get(&mut self, key: Key) -> Option<Part> {
        let held = self.parts.get_mut(&key)?;
        self.order.remove(&held.tick);
        self.tick += 1;
        held.tick = self.tick;
        self.order.insert(held.tick, key);
        Some(held.part.clone())
    }

    fn put(&mut self, key: Key, part: Part) {
        self.remove(key);
        let bytes = part.memory() + ENTRY_OVERHEAD;
        if bytes > self.bytes_max {
            return;
        }
        self.tick += 1;
        let tick = self.tick;
        self.bytes += bytes;
        self.parts.insert(key, Held { part, tick, bytes });
        self.order.insert(tick, key);
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, key: Key) {
        if let Some(held) = self.parts.remove(&key) {
            self.order.remove(&held.tick);
            self.bytes -= held.bytes;
        }
    }
}

/// What holding a part takes beside it, roughly.
const ENTRY_OVERHEAD: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bytes: usize) -> Part {
        let mut builder = super::super::segment_index::Builder::new(1, Salt::of(&[1; 16]));
        let place = Place {
            offset: 512,
            length: 40,
        };
        for entry in 0..bytes as u64 / 8 {
            builder.add(EntryKey { ledger: 1, entry }, place);
        }
        let whole = Bytes::from(builder.finish());
        let of = IndexOf::segment(1, 1 << 20, Salt::of(&[1; 16]));
        let head = of.head(&whole).expect("own");
        let end = usize::try_from(head.directory_end()).expect("small");
        let directory = of.directory(head, &whole.slice(HEAD..end)).expect("own");
        let key = EntryKey {
            ledger: 1,
            entry: 0,
        };
        let (_, item) = directory.block_of(key).expect("there");
        let start = item.offset as usize;
        let bytes = whole.slice(start..start + item.length as usize);
        Part::Block(Arc::new(of.block(item, bytes).expect("own")))
    }

    #[test]
    fn the_cache_keeps_within_its_bound_what_was_used_last() {
        let size = block(800).memory() + ENTRY_OVERHEAD;
        let mut cache = Cache::new(size * 3);
        for number in 0..3 {
            cache.put(Key::Block(1, number), block(800));
        }
        assert!(cache.get(Key::Block(1, 0)).is_some());
        cache.put(Key::Block(2, 0), block(800));
        cache.put(Key::Block(2, 0), block(800));
        assert!(cache.get(Key::Block(1, 1)).is_none(), "used longest ago");
        assert!(cache.get(Key::Block(1, 0)).is_some());
        assert_eq!(cache.bytes, size * 3);
        cache.put(Key::Block(3, 0), block(8000));
        assert!(
            cache.get(Key::Block(3, 0)).is_none(),
            "larger than the cache"
        );
        assert_eq!((cache.parts.len(), cache.order.len()), (3, 3));
    }
}
