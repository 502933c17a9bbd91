//! `pulsegate inspect` through the built binary, over directories that a store made.

#![allow(
    clippy::indexing_slicing,
    reason = "what is indexed is what the tests themselves made"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use bytes::{Bytes, BytesMut};
use pulsegate::journal::StorageMetrics;
use pulsegate::ledger::{CursorName, CursorUpdate, LedgerOptions};
use pulsegate::managed_ledger::formats::{
    LedgerInfo, ManagedCursorInfo, ManagedLedgerInfo, NodeCompression, encode_node,
};
use pulsegate::metadata::{Expected, NodePath};
use pulsegate::protocol::broker_entry;
use pulsegate::protocol::message::{MessageForm, encode};
use pulsegate::protocol::proto::pulsar::{BrokerEntryMetadata, MessageMetadata};
use pulsegate::store::{Store, StoreOptions};
use serde_json::Value;

const TOPIC: &str = "/managed-ledgers/public/default/persistent/my%3Atopic";
const SEGMENT: u64 = 256 << 10;
const BLOCK: u64 = 4096;

fn inspect(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pulsegate"));
    command.arg("inspect").args(arguments);
    command.output().expect("run")
}

fn shown(arguments: &[&str]) -> String {
    let output = inspect(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(arguments: &[&str]) -> Value {
    let text = shown(&[arguments, &["--json"]].concat());
    serde_json::from_str(&text).expect("JSON")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("a code")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
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

fn options() -> StoreOptions {
    StoreOptions {
        segment_size: u32::try_from(SEGMENT).expect("small"),
        ..StoreOptions::new("test")
    }
}

fn open(directory: &Path) -> Store {
    Store::open(directory, &options(), StorageMetrics::unseen()).expect("a store")
}

/// A message as a broker stores it.
fn message(number: u64) -> Bytes {
    let mut entry = BytesMut::new();
    let block = BrokerEntryMetadata {
        index: Some(number),
        broker_timestamp: Some(1_700_000_000_000),
    };
    broker_entry::put(&block, &mut entry);
    let metadata = MessageMetadata {
        producer_name: "producer-1".to_owned(),
        sequence_id: number,
        publish_time: 1_700_000_000_001,
        partition_key: Some("key".to_owned()),
        ..MessageMetadata::default()
    };
    let form = MessageForm::default();
    let payload = Bytes::from(vec![b'x'; 1000]);
    entry.extend_from_slice(&encode(&metadata, payload, form).to_bytes());
    entry.freeze()
}

struct Filled {
    folder: tempfile::TempDir,
    ledger: u64,
}

impl Filled {
    fn data(&self) -> &str {
        self.folder.path().to_str().expect("a path")
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}

/// A directory with a topic of one ledger, closed in order.
async fn filled(entries: u64) -> Filled {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let ledger = fill(&store, entries).await;
    store.close().await;
    Filled { folder, ledger }
}

async fn fill(store: &Store, entries: u64) -> u64 {
    let options = LedgerOptions {
        custom_metadata: vec![("application".to_owned(), Bytes::from_static(b"pulsar"))],
        ..LedgerOptions::default()
    };
    let mut writer = store.ledgers().create(options).await.expect("a ledger");
    let ledger = writer.id().0;
    let mut progress = writer.progress();
    for number in 0..entries {
        writer.append(&[message(number)]).expect("append");
        progress
            .wait_for(|progress| progress.confirmed == Some(number))
            .await
            .expect("the journal");
    }
    let id = i64::try_from(ledger).expect("small");
    let list = ManagedLedgerInfo {
        ledgers: vec![LedgerInfo {
            ledger_id: id,
            ..LedgerInfo::default()
        }],
        ..ManagedLedgerInfo::default()
    };
    let cursor = ManagedCursorInfo {
        cursors_ledger_id: -1,
        mark_delete_ledger_id: Some(id),
        mark_delete_entry_id: Some(3),
        ..ManagedCursorInfo::default()
    };
    let nodes = [
        (TOPIC.to_owned(), encode_node(&list, NodeCompression::NEVER)),
        (
            format!("{TOPIC}/sub"),
            encode_node(&cursor, NodeCompression::NEVER),
        ),
    ];
    for (path, value) in nodes {
        let path = NodePath::parse(&path).expect("a path");
        let value = value.expect("encoded");
        store
            .metadata()
            .put(&path, value, Expected::Absent)
            .await
            .expect("put");
    }
    let clusters = NodePath::parse("/admin/clusters/test").expect("a path");
    let value = Bytes::from_static(b"{\"serviceUrl\":\"http://localhost\"}");
    store
        .metadata()
        .put(&clusters, value, Expected::Absent)
        .await
        .expect("put");
    let name = CursorName {
        topic: "persistent://public/default/my:topic".to_owned(),
        cursor: "sub".to_owned(),
    };
    let (_, mut writer) = store.cursors().open_cursor(&name).await.expect("a cursor");
    writer
        .append(CursorUpdate::Snapshot(Bytes::from_static(b"state")))
        .expect("append");
    let count = writer
        .append(CursorUpdate::Delta(Bytes::from_static(b"more")))
        .expect("append");
    let mut progress = writer.progress();
    progress
        .wait_for(|progress| progress.durable == count)
        .await
        .expect("the journal");
    ledger
}

#[tokio::test]
async fn everything_is_shown_and_nothing_is_changed() {
    let filled = filled(10).await;
    let (data, ledger) = (filled.data(), filled.ledger.to_string());
    let before = contents(filled.folder.path());

    let summary = json(&[data]);
    assert_eq!(summary["cluster"], "test");
    assert_eq!(summary["segmentSize"], SEGMENT);
    assert_eq!(summary["entries"], 10);
    assert_eq!(summary["topics"], 1);
    assert_eq!(summary["cursors"], 1);
    assert_eq!(summary["openLedgers"], 1);
    assert!(shown(&[data]).contains("cluster          test"));
    assert!(json(&[data, "space"])["segments"].as_u64() >= Some(SEGMENT));

    let topics = json(&[data, "topics"]);
    assert_eq!(topics[0]["topic"], "persistent://public/default/my:topic");
    assert_eq!(topics[0]["ledgers"][0]["next"], 10);
    assert_eq!(topics[0]["cursors"][0]["cursor"], "sub");
    let mark_delete = format!("{ledger}:3");
    assert_eq!(topics[0]["cursors"][0]["node"]["markDelete"], mark_delete);
    let text = shown(&[data, "topics"]);
    assert!(
        text.contains(&format!("ledger {ledger}: entries 0 to 9")),
        "{text}"
    );

    let ledgers = json(&[data, "ledgers"]);
    assert_eq!(ledgers[0]["customMetadata"]["application"], "pulsar");
    let cursors = json(&[data, "cursors"]);
    assert_eq!(cursors[0]["snapshotBytes"], 5);
    assert_eq!(cursors[0]["deltas"], 1);
    assert_eq!(cursors[0]["node"]["markDelete"], mark_delete);
    let nodes = json(&[data, "metadata"]);
    let nodes = nodes.as_array().expect("nodes");
    let cluster = nodes
        .iter()
        .find(|node| node["path"] == "/admin/clusters/test");
    assert_eq!(
        cluster.expect("there")["value"]["serviceUrl"],
        "http://localhost"
    );

    let entries = json(&[data, "entries", "--ledger", &ledger, "--from", "8"]);
    assert_eq!(entries.as_array().map(Vec::len), Some(2));
    assert_eq!(entries[0]["entry"], 8);
    assert_eq!(entries[0]["index"], 8);
    assert_eq!(entries[0]["checksum"], true);
    assert_eq!(entries[0]["message"]["producer"], "producer-1");
    assert_eq!(entries[0]["message"]["key"], "key");
    assert_eq!(entries[0]["payloadLength"], 1000);
    let few = shown(&[data, "entries", "--ledger", &ledger, "--count", "3"]);
    assert_eq!(few.lines().count(), 3);

    let verified = json(&[data, "verify"]);
    assert_eq!(verified["entries"], 10);
    assert_eq!(verified["damage"], serde_json::json!([]));
    for what in ["ledgers", "cursors", "metadata", "space", "verify"] {
        assert!(!shown(&[data, what]).is_empty());
    }
    assert!(
        contents(filled.folder.path()) == before,
        "nothing was changed"
    );
}

#[tokio::test]
async fn a_directory_that_a_process_has_open_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let data = folder.path().to_str().expect("a path");
    for arguments in [&[data][..], &[data, "verify"], &[data, "--repair"]] {
        let output = inspect(arguments);
        assert_eq!(code(&output), 4, "{output:?}");
        let error = stderr(&output);
        assert!(
            error.contains(data) && error.contains("another process"),
            "{error}"
        );
    }
    store.close().await;
    shown(&[data]);
}

#[tokio::test]
async fn what_cannot_be_looked_at_is_told_and_not_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("none");
    let output = inspect(&[missing.to_str().expect("a path")]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("none"), "{output:?}");
    assert!(!missing.exists());

    fs::write(folder.path().join("letters.txt"), b"dear").expect("write");
    let data = folder.path().to_str().expect("a path");
    for arguments in [&[data][..], &[data, "--repair"]] {
        let output = inspect(arguments);
        assert_eq!(code(&output), 1);
        assert!(
            stderr(&output).contains("not a store of pulsegate"),
            "{output:?}"
        );
    }
    assert_eq!(contents(folder.path()).len(), 1, "not even a lock");

    let filled = filled(1).await;
    let before = contents(filled.folder.path());
    for arguments in [
        &["--cluster", "other"][..],
        &["--cluster", "other", "--repair"],
    ] {
        let output = inspect(&[&[filled.data()], arguments].concat());
        assert_eq!(code(&output), 1);
        assert!(
            stderr(&output).contains("belongs to cluster \"test\""),
            "{output:?}"
        );
    }
    shown(&[filled.data(), "--cluster", "test"]);
    let output = inspect(&[filled.data(), "entries", "--ledger", "77"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("no ledger 77"), "{output:?}");
    assert!(
        contents(filled.folder.path()) == before,
        "nothing was changed"
    );
}

#[test]
fn wrong_arguments_are_told_all_at_once() {
    let output = inspect(&["data", "entries", "--count", "0", "--repair"]);
    assert_eq!(code(&output), 64);
    let error = stderr(&output);
    for what in ["--count", "--ledger", "--repair"] {
        assert!(error.contains(what), "{error}");
    }
    let output = inspect(&[]);
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("DATA"), "{output:?}");
    let output = inspect(&["data", "everything"]);
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("summary"), "{output:?}");
}

/// Which file has an entry, and where.
fn place_of(filled: &Filled, entry: u64) -> (String, u64) {
    let ledger = filled.ledger.to_string();
    let from = entry.to_string();
    let shown = json(&[
        filled.data(),
        "entries",
        "--ledger",
        &ledger,
        "--from",
        &from,
        "--count",
        "1",
    ]);
    let segment = shown[0]["segment"].as_u64().expect("a segment");
    let offset = shown[0]["offset"].as_u64().expect("an offset");
    (format!("segment-{segment:016x}"), offset)
}

fn flip(file: &Path, at: u64) {
    let mut bytes = fs::read(file).expect("read");
    bytes[usize::try_from(at).expect("small")] ^= 1;
    fs::write(file, bytes).expect("write");
}

#[tokio::test]
async fn a_store_that_is_refused_is_repaired_at_its_owners_word_and_tells_what_it_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    // A process that was killed: no checkpoint takes the log's place.
    let store = open(folder.path());
    let ledger = fill(&store, 30).await;
    let copy = tempfile::tempdir().expect("a folder");
    for (name, bytes) in contents(folder.path()) {
        fs::write(copy.path().join(name), bytes).expect("write");
    }
    store.close().await;
    let filled = Filled {
        folder: copy,
        ledger,
    };
    // Each entry was confirmed before the next, so it is the first of its group.
    let (segment, offset) = place_of(&filled, 12);
    let group = offset / BLOCK * BLOCK;
    flip(&filled.file(&segment), offset + 100);
    let before = contents(filled.folder.path());
    for what in ["summary", "topics", "verify"] {
        let output = inspect(&[filled.data(), what]);
        assert_eq!(code(&output), 2, "{output:?}");
        let error = stderr(&output);
        assert!(
            error.contains(&segment) && error.contains(&group.to_string()),
            "{error}"
        );
        assert!(error.contains(&ledger.to_string()), "{error}");
    }
    assert!(
        contents(filled.folder.path()) == before,
        "nothing was changed"
    );

    let repaired = json(&[filled.data(), "--repair"]);
    let repair = &repaired[0];
    let lost = &repair["lostLedgers"][0];
    assert_eq!(lost["ledger"], ledger);
    assert_eq!(lost["entries"][1], 29, "{repaired}");
    assert!(lost["entries"][0].as_u64() <= Some(13), "{repaired}");
    assert_eq!(
        repair["cursors"][0],
        "persistent://public/default/my:topic sub"
    );
    assert!(
        repair["metadata"].to_string().contains("my%3Atopic"),
        "{repaired}"
    );
    let kept = repair["kept"][0].as_str().expect("a file");
    let (_, original) = before
        .iter()
        .find(|(name, _)| *name == segment)
        .expect("there");
    assert!(
        fs::read(kept).expect("kept") == *original,
        "what was cut is kept"
    );

    assert_eq!(json(&[filled.data()])["entries"], 12);
    assert_eq!(code(&inspect(&[filled.data(), "verify"])), 0);
    assert!(shown(&[filled.data(), "--repair"]).contains("nothing to repair"));
    let store = open(filled.folder.path());
    let reader = store
        .ledgers()
        .open(pulsegate::ledger::LedgerId(ledger))
        .await
        .expect("open");
    let read = reader
        .read(std::slice::from_ref(&(0..12)), usize::MAX)
        .await
        .expect("read");
    assert_eq!(read.last().expect("entries").payload, message(11));
    store.close().await;
}

#[tokio::test]
async fn an_entry_that_rotted_behind_a_checkpoint_is_found_by_verify() {
    let filled = filled(60).await;
    // Another start, so that the log begins behind.
    open(filled.folder.path()).close().await;
    let (segment, offset) = place_of(&filled, 5);
    flip(&filled.file(&segment), offset + 100);
    let before = contents(filled.folder.path());
    let output = inspect(&[filled.data(), "verify"]);
    assert_eq!(code(&output), 2, "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&segment), "{text}");
    assert!(
        text.contains(&format!("entry 5 of ledger {}", filled.ledger)),
        "{text}"
    );
    let ledger = filled.ledger.to_string();
    let output = inspect(&[filled.data(), "entries", "--ledger", &ledger]);
    assert_eq!(code(&output), 2);
    assert!(
        String::from_utf8_lossy(&output.stdout).contains(":5: damaged"),
        "{output:?}"
    );
    assert!(
        contents(filled.folder.path()) == before,
        "nothing was changed"
    );
    // It does not keep the store from starting, so there is nothing to repair.
    assert!(shown(&[filled.data(), "--repair"]).contains("nothing to repair"));
}

#[tokio::test]
async fn a_directory_that_may_not_be_written_can_be_looked_at_and_not_repaired() {
    use std::os::unix::fs::PermissionsExt as _;
    let filled = filled(3).await;
    for (name, _) in contents(filled.folder.path()) {
        let file = filled.file(&name);
        fs::set_permissions(file, fs::Permissions::from_mode(0o400)).expect("permissions");
    }
    let folder = filled.folder.path();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o500)).expect("permissions");
    let before = contents(folder);
    assert_eq!(json(&[filled.data()])["entries"], 3);
    // The superuser may write whatever the permissions say.
    if fs::File::create(folder.join("probe")).is_err() {
        let output = inspect(&[filled.data(), "--repair"]);
        assert_eq!(code(&output), 1, "{output:?}");
        assert!(
            stderr(&output).to_lowercase().contains("denied"),
            "{output:?}"
        );
        assert!(contents(folder) == before, "nothing was changed");
    } else {
        let _ = fs::remove_file(folder.join("probe"));
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("permissions");
}
