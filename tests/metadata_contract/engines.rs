//! The engines under test, and connections to them.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use pulsegate::disk::Disk;
use pulsegate::journal::{JournalSettings, StorageMetrics};
use pulsegate::ledger::embedded::Reads;

use pulsegate::metadata::{
    EmbeddedMetadata, MemoryLog, MemoryMetadata, MemorySession, MetadataStore, RecoverError,
    SystemClock,
};
use pulsegate::store::{Store, StoreOptions, recover, run_metadata};
use pulsegate::testing::sim_disk::SimDisk;
use pulsegate::testing::sim_journal::{Latency, SimDriver};
use tokio::task::JoinSet;

#[cfg(feature = "zookeeper")]
use crate::zookeeper::{Server, ZooKeeperSession};

pub(crate) enum Engine {
    Memory(MemoryMetadata),
    Embedded(Running),
    /// Over the journal of a data directory.
    Directory(Directory),
    /// Over a journal on a simulated disk.
    Simulated(Arc<EmbeddedMetadata>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Server),
}

/// An embedded store whose task runs.
pub(crate) struct Running {
    store: Arc<EmbeddedMetadata>,
    _task: JoinSet<()>,
}

pub(crate) struct Directory {
    store: Store,
    _folder: tempfile::TempDir,
}

impl Deref for Running {
    type Target = EmbeddedMetadata;

    fn deref(&self) -> &EmbeddedMetadata {
        &self.store
    }
}

pub(crate) fn running(store: Result<EmbeddedMetadata, RecoverError>) -> Running {
    let store = Arc::new(store.expect("recovered"));
    let mut task = JoinSet::new();
    let runs = Arc::clone(&store);
    task.spawn(async move { runs.run().await });
    Running { store, _task: task }
}

/// The store of a data directory.
pub(crate) fn open(directory: &Path) -> Store {
    let options = StoreOptions {
        segment_size: 4 << 20,
        ..StoreOptions::new("test")
    };
    Store::open(directory, &options, StorageMetrics::unseen()).expect("a store")
}

/// A connection: a session of its own where the engine has several.
pub(crate) enum Connection {
    Memory(MemorySession),
    Shared(Arc<dyn MetadataStore>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(ZooKeeperSession),
}

impl Engine {
    pub(crate) fn memory() -> Self {
        Self::Memory(MemoryMetadata::new(Arc::new(SystemClock::new())))
    }

    pub(crate) fn embedded() -> Self {
        let log = Arc::new(MemoryLog::new());
        let clock = Arc::new(SystemClock::new());
        Self::Embedded(running(EmbeddedMetadata::recover([], log, clock)))
    }

    pub(crate) fn directory() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::Directory(Directory {
            store: open(folder.path()),
            _folder: folder,
        })
    }

    /// Within a local set, in time of its own.
    pub(crate) async fn simulated(disk: &SimDisk, segment_size: u32) -> Self {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let settings = JournalSettings {
            segment_size,
            ..JournalSettings::new("test", [1; 16], 1_800_000_000)
        };
        let clock = Arc::new(SystemClock::new());
        let recovered = recover(disk, &settings, Reads::Inline, clock).expect("recovered");
        let (driver, opened) = SimDriver::new(recovered.journal, 3, Latency::default());
        tokio::task::spawn_local(driver.run());
        opened.await.expect("driver").expect("opened");
        let store = Arc::new(recovered.metadata);
        let (runs, log) = (Arc::clone(&store), recovered.log);
        tokio::task::spawn_local(async move { run_metadata(&runs, &log).await });
        Self::Simulated(store)
    }

    #[cfg(feature = "zookeeper")]
    pub(crate) async fn zookeeper() -> Option<Self> {
        Server::start().await.map(Self::ZooKeeper)
    }

    /// Whether all connections share one session, which lives as long as the process.
    pub(crate) fn has_one_session(&self) -> bool {
        matches!(
            self,
            Self::Embedded(_) | Self::Directory(_) | Self::Simulated(_)
        )
    }

    pub(crate) async fn connect(&self) -> Connection {
        match self {
            Self::Memory(store) => Connection::Memory(store.connect()),
            Self::Embedded(running) => Connection::Shared(Arc::clone(&running.store) as _),
            Self::Directory(directory) => Connection::Shared(directory.store.metadata()),
            Self::Simulated(store) => Connection::Shared(Arc::clone(store) as _),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(server) => Connection::ZooKeeper(server.connect().await),
        }
    }

    /// Another session where the engine has several, else the same once more.
    pub(crate) async fn connect_another(&self) -> Connection {
        self.connect().await
    }
}

impl Connection {
    pub(crate) fn store(&self) -> &dyn MetadataStore {
        match self {
            Self::Memory(session) => session,
            Self::Shared(store) => &**store,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(session) => session,
        }
    }

    /// Ends the session, as a process that ends does.
    #[expect(clippy::unused_async, reason = "ZooKeeper takes a while to notice")]
    pub(crate) async fn end(self) {
        match self {
            Self::Memory(session) => session.expire(),
            Self::Shared(_) => {}
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(session) => drop(session),
        }
    }
}
