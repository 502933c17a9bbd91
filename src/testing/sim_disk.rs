//! A disk in memory that loses power and fails on demand, the same way each time for the same seed.
//!
//! What was written is seen at once by who reads it, as through a page cache, and is durable after a sync. At a power cut
//! ([`SimDisk::after_cut`]) every sector that was written since has any of its contents since the last sync, each sector for itself, and any subset
//! of the directory's changes since its last sync has happened. A failed sync leaves what was written readable and never
//! makes it durable, as Linux does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::disk::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock, Operation};

/// Bytes that are written whole or not at all.
pub const SECTOR: usize = 512;

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails as of broken hardware. A write may have been done in part, a sync may have made a part durable.
    Io,
    /// The call fails for lack of space.
    NoSpace,
    /// The power fails: this call and all after it fail.
    PowerCut,
}

/// One call that changed something, in the order of the calls; a [`SimDisk`] is what its calls made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A file was made.
    Create(String),
    /// Bytes were written.
    Write(String, u64, Vec<u8>),
    /// Space was taken.
    Allocate(String, u64),
    /// A file was synced.
    Sync(String),
    /// A file got another name.
    Rename(String, String),
    /// A file was removed.
    Remove(String),
    /// The directory was synced.
    SyncDir,
}

/// What was read of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reads {
    /// Calls.
    pub calls: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A disk in memory. Clones are the same disk; [`SimDisk::fork`] copies it.
#[derive(Debug, Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone, Default)]
struct State {
    files: BTreeMap<u64, File>,
    next_file: u64,
    /// Names as they are seen.
    names: BTreeMap<String, u64>,
    /// Names as they would be found after a cut, and what changed since.
    durable_names: BTreeMap<String, u64>,
    unsynced_names: Vec<NameChange>,
    locked: bool,
    calls: u64,
    faults: BTreeMap<u64, Fault>,
    /// Files whose syncs fail.
    failing_syncs: BTreeSet<String>,
    dead: bool,
    read_only: bool,
    capacity: Option<u64>,
    record: Option<Vec<Change>>,
    reads: BTreeMap<String, Reads>,
    seed: u64,
}

#[derive(Debug, Clone, Default)]
struct File {
    visible: Vec<u8>,
    durable: Vec<u8>,
    /// Contents of sectors since the last sync.
    unsynced: BTreeMap<usize, Vec<[u8; SECTOR]>>,
}

#[derive(Debug, Clone)]
enum NameChange {
    Create(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Debug)]
struct Handle {
    disk: SimDisk,
    id: u64,
    name: String,
}

#[derive(Debug)]
struct Lock(SimDisk);

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let disk = Self::default();
        disk.state.lock().seed = seed;
        disk
    }

    /// From now on changes are recorded.
    pub fn start_recording(&self) {
        self.state.lock().record = Some(Vec::new());
    }

    /// What was recorded.
    #[must_use]
    pub fn recorded(&self) -> Vec<Change> {
        self.state.lock().record.clone().unwrap_or_default()
    }

    /// What was read of each file since this was last asked.
    pub fn take_reads(&self) -> BTreeMap<String, Reads> {
        std::mem::take(&mut self.state.lock().reads)
    }

    /// How many changing calls were made, failed ones included.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// The changing call with this number, counted from 0 for a new disk, fails.
    pub fn fail_call(&self, number: u64, fault: Fault) {
        self.state.lock().faults.insert(number, fault);
    }

    /// Syncs of the file fail from now on.
    pub fn fail_syncs_of(&self, name: &str) {
        self.state.lock().failing_syncs.insert(name.to_owned());
    }

    /// The bytes that all files together may have; `None`: any.
    pub fn limit_space(&self, capacity: Option<u64>) {
        self.state.lock().capacity = capacity;
    }

    /// Bytes of all files together.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// From now on nothing can be changed.
    pub fn make_read_only(&self) {
        self.state.lock().read_only = true;
    }

    /// Whether the power is off.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// A copy that goes its own way.
    #[must_use]
    pub fn fork(&self) -> Self {
        let mut state = self.state.lock().clone();
        state.locked = false;
        state.record = None;
        state.reads.clear();
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// What is found when the power comes back; `seed` chooses among all that may be.
    #[must_use]
    pub fn after_cut(&self, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let state = self.state.lock();
        // One image in four keeps all, one nothing: ends of the range that chance alone would not meet.
        let extreme: u8 = random.random_range(0..8);
        let mut keep = move |random: &mut StdRng| match extreme {
            0 | 1 => true,
            2 | 3 => false,
            _ => random.random(),
        };
        let mut names = state.durable_names.clone();
        for change in &state.unsynced_names {
            if keep(&mut random) {
                apply_name(&mut names, change);
            }
        }
        let files = names
            .values()
            .filter_map(|id| Some((*id, state.files.get(id)?.after_cut(&mut random, &mut keep))))
            .collect();
        let after = State {
            files,
            next_file: state.next_file,
            durable_names: names.clone(),
            names,
            seed,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(after)),
        }
    }

    /// What is found when the process was killed and the system goes on: everything, with nothing more durable than it was.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let disk = self.fork();
        let mut state = disk.state.lock();
        state.dead = false;
        state.faults.clear();
        state.failing_syncs.clear();
        drop(state);
        disk
    }

    /// Makes a recorded change, without counting it.
    pub fn replay(&self, change: &Change) {
        let mut state = self.state.lock();
        state.make(change);
    }

    /// Changes one bit of a file, on the disk and as it is read.
    pub fn flip(&self, name: &str, offset: usize, bit: u8) {
        let mut state = self.state.lock();
        let id = state.names.get(name).copied().unwrap_or(u64::MAX);
        let Some(file) = state.files.get_mut(&id) else {
            return;
        };
        for content in [&mut file.visible, &mut file.durable] {
            if let Some(byte) = content.get_mut(offset) {
                *byte ^= 1 << (bit % 8);
            }
        }
        if let Some(versions) = file.unsynced.get_mut(&(offset / SECTOR)) {
            for version in versions {
                if let Some(byte) = version.get_mut(offset % SECTOR) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }

    /// What is in a file as it is read.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let id = state.names.get(name)?;
        state.files.get(id).map(|file| file.visible.clone())
    }

    /// Counts a call that changes something, and fails it when that was planned.
    fn call(&self, operation: Operation, change: &Change, name: &str) -> Result<(), DiskError> {
        let mut state = self.state.lock();
        let failure = |kind, reason: &str| {
            Err(DiskError {
                operation,
                file: name.to_owned(),
                kind,
                reason: reason.to_owned(),
            })
        };
        if state.dead {
            return failure(DiskErrorKind::Io, "the power is off");
        }
        let number = state.calls;
        state.calls += 1;
        if state.read_only {
            return failure(DiskErrorKind::ReadOnly, "read-only file system");
        }
        let planned = state.faults.get(&number).copied();
        let sync_fails = matches!(change, Change::Sync(_)) && state.failing_syncs.contains(name);
        match planned.or(sync_fails.then_some(Fault::Io)) {
            Some(Fault::PowerCut) => {
                // What was asked may have happened in part: it is unsynced, so the cut decides.
                if !matches!(change, Change::Sync(_) | Change::SyncDir) {
                    state.make(change);
                }
                state.dead = true;
                return failure(DiskErrorKind::Io, "the power failed");
            }
            Some(Fault::Io) => {
                state.fail(change, number);
                return failure(DiskErrorKind::Io, "input/output error");
            }
            Some(Fault::NoSpace) => return failure(DiskErrorKind::NoSpace, "no space left"),
            None => {}
        }
        if state
            .capacity
            .is_some_and(|capacity| state.used() + state.growth(change) > capacity)
        {
            return failure(DiskErrorKind::NoSpace, "no space left");
        }
        state.make(change);
        if let Some(record) = &mut state.record {
            record.push(change.clone());
        }
        Ok(())
    }
}

impl State {
    fn used(&self) -> u64 {
        self.names
            .values()
            .filter_map(|id| self.files.get(id))
            .map(|file| file.visible.len() as u64)
            .sum()
    }

    /// Bytes that a change adds.
    fn growth(&self, change: &Change) -> u64 {
        let (name, end) = match change {
            Change::Write(name, offset, bytes) => (name, offset + bytes.len() as u64),
            Change::Allocate(name, length) => (name, *length),
            _ => return 0,
        };
        let length = self.file(name).map_or(0, |file| file.visible.len() as u64);
        end.saturating_sub(length)
    }

    fn file(&self, name: &str) -> Option<&File> {
        self.names.get(name).and_then(|id| self.files.get(id))
    }

    fn file_mut(&mut self, name: &str) -> Option<&mut File> {
        let id = self.names.get(name)?;
        self.files.get_mut(id)
    }

    fn make(&mut self, change: &Change) {
        match change {
            Change::Create(name) => {
                let id = self.next_file;
                self.next_file += 1;
                self.files.insert(id, File::default());
                self.change_name(NameChange::Create(name.clone(), id));
            }
            Change::Write(name, offset, bytes) => {
                if let Some(file) = self.file_mut(name) {
                    file.write(usize::try_from(*offset).expect("small files"), bytes);
                }
            }
            Change::Allocate(name, length) => {
                if let Some(file) = self.file_mut(name) {
                    file.grow(usize::try_from(*length).expect("small files"));
                }
            }
            Change::Sync(name) => {
                if let Some(file) = self.file_mut(name) {
                    file.sync();
                }
            }
            Change::Rename(from, to) => {
                self.change_name(NameChange::Rename(from.clone(), to.clone()));
            }
            Change::Remove(name) => self.change_name(NameChange::Remove(name.clone())),
            Change::SyncDir => {
                self.durable_names = self.names.clone();
                self.unsynced_names.clear();
            }
        }
    }

    /// What a failing call leaves behind.
    fn fail(&mut self, change: &Change, number: u64) {
        let mut random = StdRng::seed_from_u64(self.seed ^ number);
        match change {
            Change::Write(name, offset, bytes) => {
                let part = random.random_range(0..=bytes.len());
                if let Some(file) = self.file_mut(name) {
                    let written = bytes.get(..part).unwrap_or_default();
                    file.write(usize::try_from(*offset).expect("small files"), written);
                }
            }
            Change::Sync(name) => {
                if let Some(file) = self.file_mut(name) {
                    file.fail_sync(&mut random);
                }
            }
            _ => {}
        }
    }

    fn change_name(&mut self, change: NameChange) {
        apply_name(&mut self.names, &change);
        self.unsynced_names.push(change);
    }
}

fn apply_name(names: &mut BTreeMap<String, u64>, change: &NameChange) {
    match change {
        NameChange::Create(name, id) => {
            names.insert(name.clone(), *id);
        }
        NameChange::Rename(from, to) => {
            if let Some(id) = names.remove(from) {
                names.insert(to.clone(), id);
            }
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
    }
}

impl File {
    fn grow(&mut self, length: usize) {
        let first = self.visible.len() / SECTOR;
        if length > self.visible.len() {
            self.visible.resize(length, 0);
            self.note(first, length.div_ceil(SECTOR));
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        self.grow(end);
        if let Some(target) = self.visible.get_mut(offset..end) {
            target.copy_from_slice(bytes);
        }
        self.note(offset / SECTOR, end.div_ceil(SECTOR));
    }

    /// Sectors `first..end` have a new content.
    fn note(&mut self, first: usize, end: usize) {
        for sector in first..end {
            let content = self.sector(sector);
            self.unsynced.entry(sector).or_default().push(content);
        }
    }

    fn sector(&self, sector: usize) -> [u8; SECTOR] {
        let mut content = [0; SECTOR];
        let bytes = self.visible.get(sector * SECTOR..).unwrap_or_default();
        for (to, from) in content.iter_mut().zip(bytes) {
            *to = *from;
        }
        content
    }

    fn sync(&mut self) {
        self.durable.resize(self.visible.len(), 0);
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            if let Some(last) = versions.last() {
                put(&mut self.durable, sector, last);
            }
        }
    }

    fn fail_sync(&mut self, random: &mut StdRng) {
        let length = self.visible.len();
        self.durable.resize(length, 0);
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            if let (true, Some(last)) = (random.random::<bool>(), versions.last()) {
                put(&mut self.durable, sector, last);
            }
        }
    }

    fn after_cut(&self, random: &mut StdRng, keep: &mut impl FnMut(&mut StdRng) -> bool) -> Self {
        let mut durable = self.durable.clone();
        if keep(random) {
            durable.resize(self.visible.len(), 0);
        }
        for (sector, versions) in &self.unsynced {
            if !keep(random) || versions.is_empty() {
                continue;
            }
            // Mostly the last one, sometimes one before it.
            let last = versions.len() - 1;
            let chosen = if random.random_range(0..4) == 0 {
                random.random_range(0..=last)
            } else {
                last
            };
            if let Some(version) = versions.get(chosen) {
                put(&mut durable, *sector, version);
            }
        }
        Self {
            visible: durable.clone(),
            durable,
            unsynced: BTreeMap::new(),
        }
    }
}

/// Puts a sector where the file has room for it.
fn put(content: &mut [u8], sector: usize, bytes: &[u8; SECTOR]) {
    let target = content.get_mut(sector * SECTOR..).unwrap_or_default();
    for (to, from) in target.iter_mut().zip(bytes) {
        *to = *from;
    }
}

impl Disk for SimDisk {
    fn list(&self) -> Result<Vec<String>, DiskError> {
        let state = self.state.lock();
        if state.dead {
            return Err(off(Operation::List, ""));
        }
        Ok(state.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        let state = self.state.lock();
        if state.dead {
            return Err(off(Operation::Open, name));
        }
        let id = *state.names.get(name).ok_or_else(|| DiskError {
            operation: Operation::Open,
            file: name.to_owned(),
            kind: DiskErrorKind::Missing,
            reason: "no such file".to_owned(),
        })?;
        Ok(self.handle(id, name))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        if self.state.lock().names.contains_key(name) {
            return Err(DiskError {
                operation: Operation::Create,
                file: name.to_owned(),
                kind: DiskErrorKind::Exists,
                reason: "the file exists".to_owned(),
            });
        }
        self.call(Operation::Create, &Change::Create(name.to_owned()), name)?;
        self.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let change = Change::Rename(from.to_owned(), to.to_owned());
        self.call(Operation::Rename, &change, from)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.call(Operation::Remove, &Change::Remove(name.to_owned()), name)
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        self.call(Operation::SyncDirectory, &Change::SyncDir, "")
    }

    fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        let mut state = self.state.lock();
        if state.locked {
            return Err(DiskError {
                operation: Operation::Lock,
                file: name.to_owned(),
                kind: DiskErrorKind::Locked,
                reason: "another process has this directory open".to_owned(),
            });
        }
        state.locked = true;
        Ok(Box::new(Lock(self.clone())))
    }
}

impl SimDisk {
    fn handle(&self, id: u64, name: &str) -> Arc<dyn DiskFile> {
        Arc::new(Handle {
            disk: self.clone(),
            id,
            name: name.to_owned(),
        })
    }
}

impl Handle {
    /// A handle stays with its file when that is renamed.
    fn name(&self) -> String {
        let state = self.disk.state.lock();
        let mut names = state.names.iter();
        let found = names.find(|(_, id)| **id == self.id);
        found.map_or_else(|| self.name.clone(), |(name, _)| name.clone())
    }
}

impl DiskFile for Handle {
    fn length(&self) -> Result<u64, DiskError> {
        let state = self.disk.state.lock();
        let file = state.files.get(&self.id);
        Ok(file.map_or(0, |file| file.visible.len() as u64))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        let name = self.name();
        let mut state = self.disk.state.lock();
        if state.dead {
            return Err(off(Operation::Read, &self.name));
        }
        let reads = state.reads.entry(name).or_default();
        reads.calls += 1;
        reads.bytes += buffer.len() as u64;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let content = state
            .files
            .get(&self.id)
            .map_or(&[][..], |file| &file.visible);
        let range = start..start.saturating_add(buffer.len());
        let Some(bytes) = content.get(range) else {
            return Err(DiskError {
                operation: Operation::Read,
                file: self.name.clone(),
                kind: DiskErrorKind::Short,
                reason: "the file ends before".to_owned(),
            });
        };
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let name = self.name();
        let change = Change::Write(name.clone(), offset, bytes.to_vec());
        self.disk.call(Operation::Write, &change, &name)
    }

    fn sync(&self) -> Result<(), DiskError> {
        let name = self.name();
        self.disk
            .call(Operation::Sync, &Change::Sync(name.clone()), &name)
    }

    fn allocate(&self, length: u64) -> Result<(), DiskError> {
        let name = self.name();
        let change = Change::Allocate(name.clone(), length);
        self.disk.call(Operation::Write, &change, &name)
    }
}

impl DiskLock for Lock {}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.state.lock().locked = false;
    }
}

fn off(operation: Operation, name: &str) -> DiskError {
    DiskError {
        operation,
        file: name.to_owned(),
        kind: DiskErrorKind::Io,
        reason: "the power is off".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_sectors(seed: u64) -> SimDisk {
        let disk = SimDisk::new(seed);
        let file = disk.create("x").expect("create");
        file.write_at(0, &[1; 2 * SECTOR]).expect("write");
        file.sync().expect("sync");
        disk.sync_dir().expect("sync");
        disk
    }

    #[test]
    fn what_was_synced_is_found_after_any_cut() {
        let disk = two_sectors(1);
        for seed in 0..100 {
            assert_eq!(disk.after_cut(seed).content("x"), Some(vec![1; 2 * SECTOR]));
        }
    }

    #[test]
    fn any_subset_of_unsynced_sectors_is_found() {
        let disk = two_sectors(1);
        let file = disk.open("x").expect("open");
        file.write_at(0, &[2; 2 * SECTOR]).expect("write");
        let found: BTreeSet<(u8, u8)> = (0..200)
            .map(|seed| disk.after_cut(seed).content("x").expect("file"))
            .map(|content| (content[0], content[SECTOR]))
            .collect();
        assert_eq!(found, BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)]));
        assert_eq!(disk.after_kill().content("x"), Some(vec![2; 2 * SECTOR]));
    }

    #[test]
    fn a_file_whose_name_was_not_synced_may_be_gone_or_have_its_old_name() {
        let disk = SimDisk::new(1);
        disk.create("a").expect("create").sync().expect("sync");
        disk.sync_dir().expect("sync");
        disk.rename("a", "b").expect("rename");
        disk.create("c").expect("create").sync().expect("sync");
        let found: BTreeSet<Vec<String>> = (0..200)
            .map(|seed| disk.after_cut(seed).list().expect("list"))
            .collect();
        let expected = [vec!["a"], vec!["a", "c"], vec!["b"], vec!["b", "c"]];
        let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect());
        assert_eq!(found, BTreeSet::from(expected));
    }

    #[test]
    fn a_failed_sync_never_becomes_durable_by_a_later_one() {
        let lost = (0..50).any(|seed| {
            let disk = two_sectors(seed);
            let file = disk.open("x").expect("open");
            disk.fail_call(disk.calls() + 1, Fault::Io);
            file.write_at(0, &[7; 2 * SECTOR]).expect("write");
            file.sync().expect_err("planned");
            file.sync().expect("sync");
            let mut seen = [0; 1];
            file.read_at(0, &mut seen).expect("read");
            assert_eq!(seen, [7], "still readable");
            disk.after_cut(0).content("x") != Some(vec![7; 2 * SECTOR])
        });
        assert!(lost);
    }

    #[test]
    fn space_ends_and_comes_back() {
        let disk = SimDisk::new(1);
        disk.limit_space(Some(1000));
        let file = disk.create("x").expect("create");
        file.allocate(1000).expect("room");
        let full = file.write_at(999, &[1, 1]).expect_err("full");
        assert_eq!(full.kind, DiskErrorKind::NoSpace);
        file.write_at(0, &[1; 1000]).expect("no growth");
        disk.limit_space(None);
        file.write_at(999, &[1, 1]).expect("room again");
    }

    #[test]
    fn the_nth_call_fails_and_after_a_cut_all_do() {
        let disk = two_sectors(1);
        let file = disk.open("x").expect("open");
        disk.fail_call(disk.calls() + 1, Fault::PowerCut);
        file.write_at(0, &[2]).expect("first");
        file.write_at(0, &[3]).expect_err("second");
        file.sync().expect_err("dead");
        disk.list().expect_err("dead");
        assert!(disk.is_dead());
        disk.after_cut(1).open("x").expect("back");
    }

    #[test]
    fn replaying_what_was_recorded_makes_the_same_disk() {
        let disk = SimDisk::new(1);
        disk.start_recording();
        let file = disk.create("a").expect("create");
        file.write_at(3, b"xyz").expect("write");
        file.sync().expect("sync");
        disk.rename("a", "b").expect("rename");
        let again = SimDisk::new(1);
        disk.recorded()
            .iter()
            .for_each(|change| again.replay(change));
        assert_eq!(again.content("b"), disk.content("b"));
        assert_eq!(again.list().expect("list"), ["b"]);
        for seed in 0..20 {
            assert_eq!(
                again.after_cut(seed).list().expect("list"),
                disk.after_cut(seed).list().expect("list")
            );
        }
    }

    #[test]
    fn one_lock_at_a_time() {
        let disk = SimDisk::new(1);
        let lock = disk.lock("lock").expect("lock");
        disk.lock("lock").expect_err("locked");
        drop(lock);
        disk.lock("lock").expect("free");
    }
}
