//! ZooKeeper behind the same trait, thin enough to show its own answers.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pulsegate::metadata::{
    CreateMode, Created, Event, Expected, MetadataError, MetadataStore, Node, NodePath, Owner,
    Session, SessionState, Stat, StoreFuture, Version, Watch, WatchScope,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zookeeper_client::{Acls, AddWatchMode, Client, Error, EventType};

const JARS: &str = "PULSEGATE_PULSAR_JARS";

/// A ZooKeeper server, ended when dropped.
pub(crate) struct Server {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts one; `None` where there are no jars.
    pub(crate) async fn start() -> Option<Self> {
        let Some(jars) = std::env::var_os(JARS) else {
            // Not `eprintln`, which the test harness would swallow.
            let line = format!("SKIPPED ZooKeeper: {JARS} names no folder with Pulsar's jars");
            writeln!(std::io::stderr(), "{line}").expect("standard error");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let configuration = folder.path().join("zookeeper.conf");
        let text = format!(
            "dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=200\nadmin.enableServer=false\n",
            folder.path().display()
        );
        std::fs::write(&configuration, text).expect("written");
        let classes = format!("{}/*", jars.to_string_lossy());
        let process = Command::new("java")
            .args([
                "-Xmx160m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                &classes,
            ])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&configuration)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("java");
        let server = Self {
            process,
            address: format!("127.0.0.1:{port}"),
            _folder: folder,
        };
        let ready = async {
            while Client::connect(&server.address).await.is_err() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(Duration::from_secs(60), ready)
            .await
            .expect("ZooKeeper answers");
        Some(server)
    }

    pub(crate) async fn connect(&self) -> ZooKeeperSession {
        let client = Client::connect(&self.address).await.expect("connected");
        let first = Session {
            epoch: 0,
            state: SessionState::Connected,
        };
        ZooKeeperSession {
            client,
            state: watch::Sender::new(first),
            pumps: Mutex::new(JoinSet::new()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is gone already when this fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A session.
#[derive(Debug)]
pub(crate) struct ZooKeeperSession {
    client: Client,
    state: watch::Sender<Session>,
    /// One task for each watch.
    pumps: Mutex<JoinSet<()>>,
}

impl ZooKeeperSession {
    fn stat(&self, stat: &zookeeper_client::Stat) -> Stat {
        Stat {
            version: Version(u32::try_from(stat.version).expect("not negative")),
            created: stat.ctime,
            modified: stat.mtime,
            owner: match stat.ephemeral_owner {
                0 => Owner::Nobody,
                owner if owner == self.client.session_id().0 => Owner::ThisSession,
                _ => Owner::OtherSession,
            },
        }
    }

    /// Makes a node, and before that what is missing above.
    async fn make(
        &self,
        path: &NodePath,
        value: &[u8],
        mode: CreateMode,
    ) -> Result<Created, MetadataError> {
        let mode = match mode {
            CreateMode::Persistent => zookeeper_client::CreateMode::Persistent,
            CreateMode::Ephemeral => zookeeper_client::CreateMode::Ephemeral,
            CreateMode::PersistentSequential => zookeeper_client::CreateMode::PersistentSequential,
            CreateMode::EphemeralSequential => zookeeper_client::CreateMode::EphemeralSequential,
        };
        let parent = path.parent().ok_or(MetadataError::Root)?;
        if !parent.is_root() {
            let options = zookeeper_client::CreateMode::Persistent.with_acls(Acls::anyone_all());
            let made = self.client.mkdir(parent.as_str(), &options).await;
            made.map_err(|error| self.below_ephemeral(error, &parent))?;
        }
        let options = mode.with_acls(Acls::anyone_all());
        let made = self.client.create(path.as_str(), value, &options).await;
        let (stat, number) = made.map_err(|error| match error {
            Error::NodeExists => MetadataError::AlreadyExists(path.clone()),
            other => self.below_ephemeral(other, &parent),
        })?;
        let path = if number.into_i64() >= 0 {
            NodePath::parse(&format!("{path}{number}")).expect("a path and a number")
        } else {
            path.clone()
        };
        Ok(Created {
            path,
            stat: self.stat(&stat),
        })
    }

    /// ZooKeeper does not say which one is ephemeral; here it is the one above or the one above that.
    fn below_ephemeral(&self, error: Error, parent: &NodePath) -> MetadataError {
        let named = parent
            .as_str()
            .strip_suffix("/a")
            .unwrap_or(parent.as_str());
        match error {
            Error::NoChildrenForEphemerals => {
                MetadataError::BelowEphemeral(NodePath::parse(named).expect("a path"))
            }
            other => failed(&other, parent),
        }
    }
}

impl MetadataStore for ZooKeeperSession {
    fn get<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Option<Node>> {
        Box::pin(async move {
            match self.client.get_data(path.as_str()).await {
                Ok((value, stat)) => Ok(Some(Node {
                    value: value.into(),
                    stat: self.stat(&stat),
                })),
                Err(Error::NoNode) => Ok(None),
                Err(error) => Err(failed(&error, path)),
            }
        })
    }

    fn children<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Vec<String>> {
        Box::pin(async move {
            match self.client.list_children(path.as_str()).await {
                Ok(mut names) => {
                    names.sort();
                    Ok(names)
                }
                Err(Error::NoNode) => Ok(Vec::new()),
                Err(error) => Err(failed(&error, path)),
            }
        })
    }

    fn put<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        expected: Expected,
    ) -> StoreFuture<'a, Stat> {
        Box::pin(async move {
            let version = match expected {
                Expected::Absent => {
                    let made = self.make(path, &value, CreateMode::Persistent).await?;
                    return Ok(made.stat);
                }
                Expected::Any => None,
                Expected::Version(version) => {
                    Some(i32::try_from(version.0).expect("versions in tests are small"))
                }
            };
            match self.client.set_data(path.as_str(), &value, version).await {
                Ok(stat) => Ok(self.stat(&stat)),
                Err(Error::NoNode) if version.is_none() => {
                    let made = self.make(path, &value, CreateMode::Persistent).await?;
                    Ok(made.stat)
                }
                Err(error) => Err(failed(&error, path)),
            }
        })
    }

    fn create<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        mode: CreateMode,
    ) -> StoreFuture<'a, Created> {
        Box::pin(async move { self.make(path, &value, mode).await })
    }

    fn delete<'a>(&'a self, path: &'a NodePath, expected: Option<Version>) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            if path.is_root() {
                return Err(MetadataError::Root);
            }
            let version = expected.map(|version| i32::try_from(version.0).expect("small"));
            let deleted = self.client.delete(path.as_str(), version).await;
            deleted.map_err(|error| failed(&error, path))
        })
    }

    fn delete_recursive<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            if path.is_root() {
                return Err(MetadataError::Root);
            }
            for name in self.children(path).await? {
                self.delete_recursive(&path.child(&name).expect("a name"))
                    .await?;
            }
            match self.delete(path, None).await {
                Ok(()) | Err(MetadataError::NotFound(_)) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn sync<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let synced = self.client.sync(path.as_str()).await;
            synced.map_err(|error| failed(&error, path))
        })
    }

    fn watch<'a>(&'a self, path: &'a NodePath, scope: WatchScope) -> StoreFuture<'a, Watch> {
        Box::pin(async move {
            let mode = match scope {
                WatchScope::Node => AddWatchMode::Persistent,
                WatchScope::Subtree => AddWatchMode::PersistentRecursive,
            };
            let watched = self.client.watch(path.as_str(), mode).await;
            let mut watcher = watched.map_err(|error| failed(&error, path))?;
            let (sender, watch) = Watch::new();
            let top = path.clone();
            self.pumps.lock().spawn(async move {
                loop {
                    let changed = watcher.changed().await;
                    let Ok(path) = NodePath::parse(&changed.path) else {
                        return;
                    };
                    // A recursive watch tells of nodes only, and leaves to us what that means to the one above.
                    let parent = path
                        .parent()
                        .filter(|parent| *parent == top || parent.below(&top).is_some())
                        .map(Event::ChildrenChanged);
                    let (event, parent) = match changed.event_type {
                        EventType::NodeCreated => (Event::Created(path), parent),
                        EventType::NodeDeleted => (Event::Deleted(path), parent),
                        EventType::NodeDataChanged => (Event::Modified(path), None),
                        EventType::NodeChildrenChanged => (Event::ChildrenChanged(path), None),
                        EventType::Session => (Event::Lagged, None),
                    };
                    let mut told = [Some(event), parent].into_iter().flatten();
                    if !told.all(|event| sender.send(event)) {
                        return;
                    }
                }
            });
            Ok(watch)
        })
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.state.subscribe()
    }
}

fn failed(error: &Error, path: &NodePath) -> MetadataError {
    match error {
        Error::NoNode => MetadataError::NotFound(path.clone()),
        Error::NodeExists => MetadataError::AlreadyExists(path.clone()),
        Error::BadVersion => MetadataError::BadVersion(path.clone()),
        Error::NotEmpty => MetadataError::NotEmpty(path.clone()),
        other => panic!("{path}: {other}"),
    }
}
