//! The engines under test, and connections to them.

use std::ops::Deref;
use std::sync::Arc;

use pulsegate::metadata::{
    EmbeddedMetadata, MemoryLog, MemoryMetadata, MemorySession, MetadataStore, RecoverError,
    SystemClock,
};
use tokio::task::JoinSet;

#[cfg(feature = "zookeeper")]
use crate::zookeeper::{Server, ZooKeeperSession};

pub(crate) enum Engine {
    Memory(MemoryMetadata),
    Embedded(Running),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Server),
}

/// An embedded store whose task runs.
pub(crate) struct Running {
    store: Arc<EmbeddedMetadata>,
    _task: JoinSet<()>,
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

/// A connection: a session of its own where the engine has several.
pub(crate) enum Connection {
    Memory(MemorySession),
    Embedded(Arc<EmbeddedMetadata>),
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

    #[cfg(feature = "zookeeper")]
    pub(crate) async fn zookeeper() -> Option<Self> {
        Server::start().await.map(Self::ZooKeeper)
    }

    /// Whether all connections share one session, which lives as long as the process.
    pub(crate) fn has_one_session(&self) -> bool {
        matches!(self, Self::Embedded(_))
    }

    pub(crate) async fn connect(&self) -> Connection {
        match self {
            Self::Memory(store) => Connection::Memory(store.connect()),
            Self::Embedded(running) => Connection::Embedded(Arc::clone(&running.store)),
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
            Self::Embedded(store) => &**store,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(session) => session,
        }
    }

    /// Ends the session, as a process that ends does.
    #[expect(clippy::unused_async, reason = "ZooKeeper takes a while to notice")]
    pub(crate) async fn end(self) {
        match self {
            Self::Memory(session) => session.expire(),
            Self::Embedded(_) => {}
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(session) => drop(session),
        }
    }
}
