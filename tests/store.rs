//! A data directory as a whole: what it is opened with, what it refuses, how it stops.

#![allow(
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "what is indexed is what the tests themselves made; who writes the fixture is told its ids"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pulsegate::disk::{Disk, DiskErrorKind, Operation};
use pulsegate::journal::{Durability, JournalError, StorageMetrics};
use pulsegate::ledger::{
    CursorName, CursorUpdate, LedgerError, LedgerId, LedgerOptions, LedgerWriter,
};
use pulsegate::metadata::{CreateMode, Expected, MetadataError, NodePath};
use pulsegate::store::{SEGMENTS_LEAST, Store, StoreError, StoreOptions};
use pulsegate::telemetry::MetricRegistry;
use pulsegate::testing::sim_disk::SimDisk;

const SEGMENT: u32 = 64 << 10;

fn options() -> StoreOptions {
    StoreOptions {
        segment_size: SEGMENT,
        ..StoreOptions::new("test")
    }
}

fn open(directory: &Path) -> Result<Store, StoreError> {
    Store::open(directory, &options(), StorageMetrics::unseen())
}

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect(text)
}

fn name() -> CursorName {
    CursorName {
        topic: "persistent://t/n/a".to_owned(),
        cursor: "sub".to_owned(),
    }
}

async fn append(writer: &mut Box<dyn LedgerWriter>, payload: Bytes) -> Result<(), LedgerError> {
    let given = writer.append(&[payload])?;
    let mut progress = writer.progress();
    let reached = progress
        .wait_for(|progress| progress.failed.is_some() || progress.confirmed >= Some(given.start))
        .await
        .expect("the journal");
    match &reached.failed {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    }
}

fn contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .expect("list")
        .map(|file| {
            let file = file.expect("list");
            let name = file.file_name().to_string_lossy().into_owned();
            (name, fs::read(file.path()).expect("read"))
        })
        .collect();
    files.sort();
    files
}

/// One entry, one cursor, one node; the ledger.
async fn fill(store: &Store) -> LedgerId {
    let mut writer = store
        .ledgers()
        .create(LedgerOptions::default())
        .await
        .expect("a ledger");
    append(&mut writer, Bytes::from_static(b"hello"))
        .await
        .expect("append");
    let (_, mut cursor) = store.cursors().open_cursor(&name()).await.expect("cursor");
    let update = CursorUpdate::Snapshot(Bytes::from_static(b"at 0"));
    cursor.append(update).expect("append");
    let mut progress = cursor.progress();
    progress
        .wait_for(|progress| progress.durable == 1)
        .await
        .expect("the journal");
    store
        .metadata()
        .put(&path("/a/b"), Bytes::from_static(b"value"), Expected::Any)
        .await
        .expect("put");
    writer.id()
}

async fn check(store: &Store, ledger: LedgerId) {
    let reader = store.ledgers().open(ledger).await.expect("open");
    let read = reader
        .read(std::slice::from_ref(&(0..1)), 100)
        .await
        .expect("read");
    assert_eq!(read[0].payload, "hello");
    let (state, _) = store.cursors().open_cursor(&name()).await.expect("cursor");
    assert_eq!(state.snapshot, Some(Bytes::from_static(b"at 0")));
    let node = store.metadata().get(&path("/a/b")).await.expect("get");
    assert_eq!(node.expect("there").value, "value");
}

#[tokio::test]
async fn ledgers_cursors_and_metadata_of_one_directory_outlive_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("a/data");
    let store = open(&data).expect("made");
    let ledger = fill(&store).await;
    store
        .metadata()
        .create(
            &path("/a/e-"),
            Bytes::new(),
            CreateMode::EphemeralSequential,
        )
        .await
        .expect("created");
    check(&store, ledger).await;
    assert!(matches!(store.close().await, JournalError::Closed));
    let again = open(&data).expect("opened");
    check(&again, ledger).await;
    let children = again.metadata().children(&path("/a")).await;
    assert_eq!(children.expect("children"), ["b"], "no session is left");
    let next = again
        .metadata()
        .create(
            &path("/a/e-"),
            Bytes::new(),
            CreateMode::EphemeralSequential,
        )
        .await
        .expect("created");
    assert_eq!(next.path.name(), "e-0000000002");
    again.close().await;
}

#[tokio::test]
async fn a_directory_that_is_in_use_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = open(folder.path()).expect("made");
    let error = open(folder.path()).expect_err("in use").to_string();
    let directory = folder.path().display().to_string();
    assert!(
        error.contains(&directory) && error.contains("another process"),
        "{error}"
    );
    first.close().await;
    open(folder.path()).expect("free").close().await;
}

#[tokio::test]
async fn directories_of_others_are_refused_and_not_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("letters.txt"), b"dear").expect("write");
    let error = open(folder.path()).expect_err("somebody else's");
    assert!(error.to_string().contains("letters.txt"), "{error}");

    let folder = tempfile::tempdir().expect("a folder");
    open(folder.path()).expect("made").close().await;
    let before = contents(folder.path());
    let other = StoreOptions {
        cluster: "other".to_owned(),
        ..options()
    };
    let error = Store::open(folder.path(), &other, StorageMetrics::unseen());
    let error = error.expect_err("another cluster").to_string();
    assert!(
        error.contains("\"test\"") && error.contains("\"other\""),
        "{error}"
    );
    assert!(contents(folder.path()) == before, "nothing was changed");
}

/// A superblock that differs in one field, with the right checksum.
fn change_superblock(directory: &Path, at: usize, bytes: &[u8]) {
    let file = directory.join("superblock");
    let mut block = fs::read(&file).expect("read");
    block[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c(&block[..4092]);
    block[4092..].copy_from_slice(&crc.to_be_bytes());
    fs::write(file, block).expect("write");
}

#[tokio::test]
async fn a_directory_of_a_newer_version_is_refused_and_not_changed() {
    // The lowest format of a reader, and a feature that must be known.
    for (at, bytes) in [(12, &[0, 0, 0, 2][..]), (16, &[0, 0, 0, 0, 0, 0, 0, 1])] {
        let folder = tempfile::tempdir().expect("a folder");
        open(folder.path()).expect("made").close().await;
        change_superblock(folder.path(), at, bytes);
        let before = contents(folder.path());
        let error = open(folder.path()).expect_err("newer").to_string();
        assert!(error.contains("written by a newer version"), "{error}");
        assert!(contents(folder.path()) == before, "nothing was changed");
    }
    // A later version that this one may read.
    let folder = tempfile::tempdir().expect("a folder");
    open(folder.path()).expect("made").close().await;
    change_superblock(folder.path(), 8, &[0, 0, 0, 9]);
    open(folder.path()).expect("readable").close().await;
}

#[tokio::test]
async fn options_that_cannot_be_are_told_before_anything_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let wrong = [
        StoreOptions {
            segment_size: 1000,
            ..options()
        },
        StoreOptions {
            segment_size: (1 << 20) + 1,
            ..options()
        },
        StoreOptions {
            space: Some(u64::from(SEGMENT)),
            ..options()
        },
    ];
    for options in wrong {
        let error = Store::open(&data, &options, StorageMetrics::unseen());
        assert!(matches!(error, Err(StoreError::Options(_))), "{error:?}");
    }
    assert!(!data.exists());
}

#[tokio::test]
async fn a_store_stops_at_a_failed_sync_and_names_the_file() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let store = Store::open_on(shared, "data", &options(), StorageMetrics::unseen());
    let store = store.expect("made");
    let mut writer = store
        .ledgers()
        .create(LedgerOptions::default())
        .await
        .expect("a ledger");
    let segment = "segment-0000000000000001";
    disk.fail_syncs_of(segment);
    let error = append(&mut writer, Bytes::from_static(b"x")).await;
    assert!(error.expect_err("not synced").to_string().contains(segment));
    let reason = store.stopped().await;
    let JournalError::Disk(error) = &reason else {
        panic!("{reason}");
    };
    assert_eq!(
        (error.operation, error.kind),
        (Operation::Sync, DiskErrorKind::Io)
    );
    assert_eq!(error.file, segment);
    let refused = store
        .metadata()
        .put(&path("/a"), Bytes::new(), Expected::Any)
        .await;
    assert_eq!(refused, Err(MetadataError::Failed));
    store
        .ledgers()
        .create(LedgerOptions::default())
        .await
        .expect_err("stopped");
    let reason = store.close().await;
    assert!(
        matches!(reason, JournalError::Disk(_)),
        "closing does not hide it: {reason}"
    );
}

#[tokio::test]
async fn a_store_stays_within_its_space_and_goes_on_when_something_is_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let space = (SEGMENTS_LEAST + 4) * u64::from(SEGMENT);
    let options = StoreOptions {
        space: Some(space),
        ..options()
    };
    let registry = MetricRegistry::new("");
    let metrics = StorageMetrics::register(&registry).expect("registered");
    let store = Store::open(folder.path(), &options, metrics).expect("made");
    let mut writer = store
        .ledgers()
        .create(LedgerOptions::default())
        .await
        .expect("a ledger");
    let entry = Bytes::from(vec![7; 8000]);
    let mut count = 0;
    let refused = loop {
        match append(&mut writer, entry.clone()).await {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 1000, "there is no end");
    };
    assert!(
        matches!(refused, LedgerError::Journal(JournalError::NoSpace)),
        "{refused}"
    );
    let used: usize = contents(folder.path())
        .iter()
        .filter(|(name, _)| !name.starts_with("checkpoint"))
        .map(|(_, content)| content.len())
        .sum();
    assert!(used as u64 <= space, "{used} of {space}");
    // Metadata that would make it larger is refused as well, once no further segment can be made; what makes it smaller is not.
    let full = store
        .metadata()
        .put(&path("/more"), Bytes::from_static(b"x"), Expected::Any)
        .await;
    assert_eq!(full, Err(MetadataError::Full));
    let refused = store.ledgers().create(LedgerOptions::default()).await;
    let refused = refused.expect_err("a ledger makes it larger");
    assert!(
        matches!(refused, LedgerError::Journal(JournalError::NoSpace)),
        "{refused}"
    );
    store.ledgers().delete(writer.id()).await.expect("deleted");
    // Space comes back a moment later.
    let mut again = loop {
        match store.ledgers().create(LedgerOptions::default()).await {
            Ok(writer) => break writer,
            Err(LedgerError::Journal(JournalError::NoSpace)) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    append(&mut again, entry).await.expect("space again");
    store.close().await;
    let text = registry.render();
    let refused = text
        .lines()
        .find_map(|line| {
            line.strip_prefix("pulsegate_storage_refused_appends_total{cluster=\"\"} ")
        })
        .or_else(|| {
            text.lines()
                .find_map(|line| line.strip_prefix("pulsegate_storage_refused_appends_total "))
        })
        .expect("the series");
    assert!(refused.parse::<u64>().expect("a number") > 0);
}

/// A place for log lines.
#[derive(Clone, Default)]
struct Lines(Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn relaxed_durability_is_loud_and_never_the_default() {
    assert_eq!(StoreOptions::new("c").durability, Durability::Synced);
    let said = |options: StoreOptions| {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .finish();
        let store = tracing::subscriber::with_default(subscriber, || {
            Store::open(folder.path(), &options, StorageMetrics::unseen()).expect("made")
        });
        let text = String::from_utf8(lines.0.lock().clone()).expect("text");
        (folder, store, text)
    };
    let (_folder, store, text) = said(options());
    assert!(!text.contains("DURABILITY"), "{text}");
    store.close().await;
    let (folder, store, text) = said(StoreOptions {
        durability: Durability::Relaxed,
        ..options()
    });
    assert!(
        text.contains("WARN") && text.contains("DURABILITY IS RELAXED"),
        "{text}"
    );
    let ledger = fill(&store).await;
    store.close().await;
    let again = open(folder.path()).expect("opened");
    check(&again, ledger).await;
    again.close().await;
}

#[tokio::test]
async fn what_a_store_does_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = MetricRegistry::new("c");
    let metrics = StorageMetrics::register(&registry).expect("registered");
    let store = Store::open(folder.path(), &options(), metrics).expect("made");
    fill(&store).await;
    store.close().await;
    let text = registry.render();
    let value = |name: &str| -> f64 {
        let series = format!("pulsegate_storage_{name}{{cluster=\"c\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("{series} is not in {text}"))
            .parse()
            .expect("a number")
    };
    assert!(value("groups_total") >= 4.0);
    assert!(value("written_bytes_total") >= 4.0 * 4096.0);
    assert!(value("sync_seconds_count") >= 4.0);
    assert!(value("checkpoint_seconds_count") >= 1.0);
    assert!(value("segments_in_use") >= 1.0);
    assert!((value("index_entries") - 1.0).abs() < f64::EPSILON);
}

/// A directory as format 1 wrote it, its files compressed.
const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/storage/format-1/store"
);
/// Ids of its ledgers: those of the first process follow each other.
const FIXTURE_LEDGER: u64 = 6_299_827_830_784;
/// That of the second process.
const FIXTURE_LATER: u64 = 6_299_827_830_787;
/// Bytes of a segment of it.
const FIXTURE_SEGMENT: u32 = 32 << 10;

fn fixture_options() -> StoreOptions {
    StoreOptions {
        segment_size: FIXTURE_SEGMENT,
        ..StoreOptions::new("fixture")
    }
}

fn fixture_entry(number: u64) -> Bytes {
    Bytes::from(format!("entry {number} {}", "x".repeat(2000)))
}

/// Four ledgers by what becomes of them: sealed and trimmed, deleted, open; and one made by a second process.
async fn write_fixture(directory: &Path) {
    let open = || Store::open(directory, &fixture_options(), StorageMetrics::unseen());
    let store = open().expect("made");
    let ledgers = store.ledgers();
    let mut writers = Vec::new();
    for _ in 0..3 {
        let options = LedgerOptions {
            custom_metadata: vec![("application".to_owned(), Bytes::from_static(b"pulsar"))],
            ..LedgerOptions::default()
        };
        writers.push(ledgers.create(options).await.expect("a ledger"));
    }
    for number in 0..20 {
        for writer in &mut writers {
            append(writer, fixture_entry(number)).await.expect("append");
        }
    }
    let mut rest = writers.into_iter();
    let (sealed, deleted) = (rest.next().expect("three"), rest.next().expect("three"));
    let id = sealed.id();
    sealed.seal().await.expect("sealed");
    ledgers.trim(id, 12).await.expect("trimmed");
    ledgers.delete(deleted.id()).await.expect("deleted");
    let (_, mut cursor) = store.cursors().open_cursor(&name()).await.expect("cursor");
    for update in [
        CursorUpdate::Snapshot(Bytes::from_static(b"all")),
        CursorUpdate::Delta(Bytes::from_static(b"more")),
    ] {
        cursor.append(update).expect("append");
    }
    let metadata = store.metadata();
    for (at, value) in [("/a/b", "1"), ("/a/b", "2"), ("/gone/c", "3")] {
        let value = Bytes::from_static(value.as_bytes());
        metadata
            .put(&path(at), value, Expected::Any)
            .await
            .expect("put");
    }
    metadata
        .delete_recursive(&path("/gone"))
        .await
        .expect("deleted");
    store.close().await;
    let store = open().expect("opened");
    let mut writer = store
        .ledgers()
        .create(LedgerOptions::default())
        .await
        .expect("a ledger");
    append(&mut writer, fixture_entry(0)).await.expect("append");
    println!("FIXTURE_LEDGER = {id}, FIXTURE_LATER = {}", writer.id());
    let created = store
        .metadata()
        .create(
            &path("/a/s-"),
            Bytes::new(),
            CreateMode::PersistentSequential,
        )
        .await;
    created.expect("created");
    // It is killed: the directory is copied as it is now.
    let to = Path::new(FIXTURE);
    fs::create_dir_all(to).expect("a folder");
    for (name, bytes) in contents(directory) {
        let bytes = zstd::bulk::compress(&bytes, 19).expect("compressed");
        fs::write(to.join(format!("{name}.zst")), bytes).expect("write");
    }
    store.close().await;
}

#[tokio::test]
#[ignore = "writes the fixture again, which is for a new format only"]
async fn writes_the_fixture() {
    let folder = tempfile::tempdir().expect("a folder");
    write_fixture(folder.path()).await;
}

#[tokio::test]
async fn a_directory_that_format_1_wrote_is_read_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in contents(Path::new(FIXTURE)) {
        let bytes = zstd::bulk::decompress(&bytes, 1 << 20).expect("decompressed");
        let name = name.strip_suffix(".zst").expect("compressed");
        fs::write(folder.path().join(name), bytes).expect("write");
    }
    let store = Store::open(folder.path(), &fixture_options(), StorageMetrics::unseen());
    let store = store.expect("opened");
    let metadata = store.metadata();
    let node = metadata
        .get(&path("/a/b"))
        .await
        .expect("get")
        .expect("there");
    assert_eq!(
        (node.value, node.stat.version.0),
        (Bytes::from_static(b"2"), 1)
    );
    let children = |at| {
        let (metadata, at) = (Arc::clone(&metadata), path(at));
        async move { metadata.children(&at).await.expect("children") }
    };
    assert_eq!(children("/").await, ["a"]);
    assert_eq!(children("/a").await, ["b", "s-0000000001"]);
    let (state, _) = store.cursors().open_cursor(&name()).await.expect("cursor");
    assert_eq!(state.snapshot, Some(Bytes::from_static(b"all")));
    assert_eq!(state.deltas, [Bytes::from_static(b"more")]);
    let first = FIXTURE_LEDGER;
    let expected = [(first, 12, 20), (first + 2, 0, 20), (FIXTURE_LATER, 0, 1)];
    for (ledger, from, to) in expected {
        let reader = store.ledgers().open(LedgerId(ledger)).await.expect("open");
        let range = from..to;
        let read = reader.read(std::slice::from_ref(&range), usize::MAX).await;
        let read = read.expect("read");
        let entries = read.iter().map(|read| (read.entry, read.payload.clone()));
        assert!(
            entries.eq((from..to).map(|entry| (entry, fixture_entry(entry)))),
            "{ledger}"
        );
        assert_eq!(reader.last_confirmed(), Some(to - 1));
    }
    for gone in [first + 1, FIXTURE_LATER + 1] {
        store
            .ledgers()
            .open(LedgerId(gone))
            .await
            .expect_err("not there");
    }
    let writer = store.ledgers().create(LedgerOptions::default()).await;
    assert!(
        writer.expect("a ledger").id().0 > FIXTURE_LATER,
        "no number comes twice"
    );
    store.close().await;
}
