//! From a directory to a kernel: lock, superblock, recovery. Blocks.

use std::sync::Arc;

use bytes::Bytes;

use super::commit::{Committer, Layout};
use super::driver::JournalSettings;
use super::execute::{Executor, SegmentFiles, read_whole};
use super::format::{SEGMENT_HEADER, Salt};
use super::handle::{Inbox, JournalHandle};
use super::kernel::{Kernel, SharedChanges};
use super::recovery::{Listing, Recovered, Recovery, free_file, index_file, listing, segment_file};
use super::superblock::{self, Superblock};
use super::{JournalError, Replica};
use crate::disk::{Disk, DiskError, DiskErrorKind, DiskLock};

/// A journal that needs a driver.
#[derive(Debug)]
pub struct Journal<R> {
    pub(crate) kernel: Kernel<R>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) lock: Box<dyn DiskLock>,
    handle: JournalHandle,
    cut: bool,
}

const LOCK: &str = "lock";
const NEW_SUPERBLOCK: &str = "superblock.new";
const CHECKPOINTS: [&str; 2] = ["checkpoint-0", "checkpoint-1"];

impl<R: Replica> Journal<R> {
    /// Opens what is on the disk, or makes a new store in an empty directory. Nothing is changed before the superblock and
    /// all that is needed verify.
    ///
    /// # Errors
    /// As `docs/storage-format.md`, "What is refused", has it.
    pub fn open(
        disk: Arc<dyn Disk>,
        settings: &JournalSettings,
        replica: R,
    ) -> Result<Self, JournalError> {
        let lock = disk.lock(LOCK)?;
        let superblock = superblock(disk.as_ref(), settings)?;
        let names = disk.list()?;
        let mut listing = listing(&names);
        let checkpoints: Vec<Bytes> = CHECKPOINTS
            .into_iter()
            .filter(|name| names.iter().any(|held| held == name))
            .map(|name| {
                let file = disk.open(name)?;
                let length = usize::try_from(file.length()?).unwrap_or(usize::MAX);
                read_whole(file.as_ref(), length)
            })
            .collect::<Result<_, DiskError>>()?;
        let files = SegmentFiles::new(Arc::clone(&disk), &superblock);
        let mut recovery = Recovery::start(superblock.clone(), &checkpoints, &listing, replica)?;
        for generation in &listing.segments {
            read_segment(
                disk.as_ref(),
                &superblock,
                &mut recovery,
                &files,
                *generation,
            )?;
        }
        let recovered = recovery.finish(&listing)?;
        rewrite(&recovered, &files)?;
        drop_unfit(disk.as_ref(), &superblock, &mut listing)?;
        files.add_indexes(listing.indexes.iter().copied());
        let next_free = listing.free.last().map_or(0, |last| last + 1);
        let layout = Layout {
            block: superblock.block,
            segment_size: superblock.segment_size,
            group_max: settings.group_max,
        };
        let salt = Salt::of(&superblock.uuid);
        let cut = recovered.cut;
        let free = listing.free.iter().copied().collect();
        let indexer = recovered.replica.indexer();
        let kernel = Kernel::new(recovered, free, layout, salt, settings.limits);
        let inbox = Arc::new(Inbox::default());
        let handle = JournalHandle::new(Arc::clone(&inbox), Committer::submission_max(layout));
        let executor =
            Arc::new(Executor::new(disk, superblock, files, next_free).with_indexer(indexer));
        Ok(Self {
            kernel,
            executor,
            inbox,
            lock,
            handle,
            cut,
        })
    }

    /// The way into it.
    #[must_use]
    pub fn handle(&self) -> JournalHandle {
        self.handle.clone()
    }

    /// Its change log.
    #[must_use]
    pub fn changes(&self) -> SharedChanges {
        self.kernel.changes()
    }

    /// What is built from it.
    #[must_use]
    pub fn replica(&self) -> &R {
        self.kernel.replica()
    }

    /// The files that entries are read from, and what their checksums start from.
    #[must_use]
    pub fn files(&self) -> (SegmentFiles, Salt) {
        (self.executor.files().clone(), self.executor.salt())
    }

    /// Whether a torn tail was cut.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.cut
    }
}

/// Reads the superblock, or makes one in an empty directory.
fn superblock(disk: &dyn Disk, settings: &JournalSettings) -> Result<Superblock, JournalError> {
    match disk.open(superblock::FILE) {
        Ok(file) => {
            let length = usize::try_from(file.length()?).unwrap_or(usize::MAX);
            let bytes = read_whole(file.as_ref(), length.min(superblock::LENGTH))?;
            let superblock = Superblock::decode(&bytes)?;
            if superblock.cluster != settings.cluster {
                return Err(JournalError::OtherCluster {
                    found: superblock.cluster,
                    expected: settings.cluster.clone(),
                });
            }
            Ok(superblock)
        }
        Err(error) if error.kind == DiskErrorKind::Missing => make(disk, settings),
        Err(error) => Err(error.into()),
    }
}

fn make(disk: &dyn Disk, settings: &JournalSettings) -> Result<Superblock, JournalError> {
    let mut names = disk.list()?;
    names.retain(|name| ![LOCK, NEW_SUPERBLOCK, "lost+found"].contains(&name.as_str()));
    if let Some(name) = names.first() {
        return Err(JournalError::Foreign(format!(
            "there is no superblock, but {name}"
        )));
    }
    let superblock = Superblock {
        uuid: settings.uuid,
        block: settings.block,
        segment_size: settings.segment_size,
        created: settings.unix_seconds,
        cluster: settings.cluster.clone(),
    };
    superblock.check()?;
    let file = match disk.open(NEW_SUPERBLOCK) {
        Err(error) if error.kind == DiskErrorKind::Missing => disk.create(NEW_SUPERBLOCK)?,
        other => other?,
    };
    file.write_at(0, &superblock.encode())?;
    file.sync()?;
    disk.rename(NEW_SUPERBLOCK, superblock::FILE)?;
    disk.sync_dir()?;
    Ok(superblock)
}

fn read_segment<R: Replica>(
    disk: &dyn Disk,
    superblock: &Superblock,
    recovery: &mut Recovery<R>,
    files: &SegmentFiles,
    generation: u64,
) -> Result<(), JournalError> {
    if !recovery.needs(generation) {
        return Ok(());
    }
    if !recovery.wants(generation) {
        // Each read of it checks what it reads.
        files.know(generation);
        return Ok(());
    }
    let file = disk.open(&segment_file(generation))?;
    let short = |error: DiskError| match error.kind {
        DiskErrorKind::Short => JournalError::Damaged {
            file: segment_file(generation),
            offset: 0,
            what: "it is shorter than a segment".to_owned(),
            ledgers: Vec::new(),
        },
        _ => error.into(),
    };
    let head = read_whole(file.as_ref(), SEGMENT_HEADER).map_err(short)?;
    if recovery.is_interrupted(generation, &head) {
        recovery.interrupted(generation);
        return Ok(());
    }
    let whole = read_whole(file.as_ref(), superblock.segment_size as usize).map_err(short)?;
    recovery.segment(generation, whole)?;
    files.insert(generation, file);
    Ok(())
}

/// Writes again what may be in the page cache only.
fn rewrite<R>(recovered: &Recovered<R>, files: &SegmentFiles) -> Result<(), JournalError> {
    let Some((at, bytes)) = &recovered.rewrite else {
        return Ok(());
    };
    if let Some(file) = files.file(at.generation) {
        file.write_at(at.offset, bytes)?;
        file.sync()?;
    }
    Ok(())
}

/// Files that were being made when the power failed are of no use.
fn drop_unfit(
    disk: &dyn Disk,
    superblock: &Superblock,
    listing: &mut Listing,
) -> Result<(), JournalError> {
    let mut unfit = Vec::new();
    for number in &listing.free {
        let length = disk.open(&free_file(*number))?.length()?;
        if length != u64::from(superblock.segment_size) {
            unfit.push(*number);
        }
    }
    for number in unfit {
        disk.remove(&free_file(number))?;
        listing.free.remove(&number);
    }
    for name in &listing.unfinished {
        disk.remove(name)?;
    }
    // Of segments that became free.
    for generation in listing.indexes.difference(&listing.segments) {
        disk.remove(&index_file(*generation))?;
    }
    listing.indexes = &listing.indexes & &listing.segments;
    Ok(())
}
