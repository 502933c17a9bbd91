//! The store of a single process: the tree in memory, every change in a log.
//!
//! `key_values` says how the tree is written, `state` when requests are answered, `journal_log` is the log of a data directory; here is
//! what ties them together and to those who ask. A session is the life of the process: ephemeral nodes are never written.

mod change_log;
mod journal_log;
mod key_values;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

pub use change_log::{AppendError, ChangeLog, LogProgress, MemoryLog, Room};
pub use journal_log::JournalLog;
pub use key_values::{KeyChange, RecordError, StoredNode};

use self::state::{Effect, Input, Outcome, Reply, Request, RequestId, State};
use super::tree::{Answer, Change};
use super::watch::WatchRegistry;
use super::{
    Clock, CreateMode, Created, Expected, MetadataError, MetadataStore, Node, NodePath, Session,
    SessionState, Stat, StoreFuture, Version, Watch, WatchScope,
};

/// A store over a [`ChangeLog`]. Nothing is answered before what the answer rests on is durable.
///
/// [`Self::run`] has to run for requests to be answered.
pub struct EmbeddedMetadata {
    inner: Mutex<Inner>,
    watches: WatchRegistry,
    log: Arc<dyn ChangeLog>,
    clock: Arc<dyn Clock>,
    session: watch::Sender<Session>,
}

struct Inner {
    state: State,
    /// Who waits for answers. Those who gave up are still among them.
    replies: HashMap<RequestId, oneshot::Sender<Outcome>>,
    next_request: u64,
}

/// Why the keys and values of a log make no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("metadata {key:?} cannot be used: {error}")]
pub struct RecoverError {
    /// Which key, readable as far as it can be.
    pub key: String,
    /// What is wrong with it or its value.
    pub error: RecordError,
}

impl EmbeddedMetadata {
    /// The store that keys and values of `log` describe, in any order. New changes go to `log`.
    ///
    /// # Errors
    /// When a key or value is damaged, of a later version, or does not fit the others.
    pub fn recover(
        pairs: impl IntoIterator<Item = (Bytes, Bytes)>,
        log: Arc<dyn ChangeLog>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, RecoverError> {
        let state = State::recover(pairs).map_err(RecoverError::of)?;
        let inner = Inner {
            state,
            replies: HashMap::new(),
            next_request: 0,
        };
        Ok(Self {
            inner: Mutex::new(inner),
            watches: WatchRegistry::default(),
            log,
            clock,
            session: watch::Sender::new(Session {
                epoch: 0,
                state: SessionState::Connected,
            }),
        })
    }

    /// All nodes that keys and values describe, in the order of their paths, the root first.
    ///
    /// # Errors
    /// As [`Self::recover`].
    pub fn stored_nodes(
        pairs: impl IntoIterator<Item = (Bytes, Bytes)>,
    ) -> Result<Vec<StoredNode>, RecoverError> {
        key_values::stored_nodes(pairs).map_err(RecoverError::of)
    }

    /// The node that a key is about, if it is one of a log's.
    #[must_use]
    pub fn path_of_key(key: &[u8]) -> Option<NodePath> {
        key_values::path_of(key)
    }

    /// Answers requests as the log becomes durable. Ends when the log has failed or is gone; everything fails then.
    /// Cancel-safe.
    pub async fn run(&self) {
        let mut progress = self.log.progress();
        loop {
            let now = *progress.borrow_and_update();
            self.step(Input::Progress(now));
            if now == LogProgress::Failed {
                return;
            }
            if progress.changed().await.is_err() {
                self.step(Input::Progress(LogProgress::Failed));
                return;
            }
        }
    }

    async fn ask(&self, request: Request) -> Outcome {
        let (sender, answer) = oneshot::channel();
        {
            let mut inner = self.inner.lock();
            let id = RequestId(inner.next_request);
            inner.next_request += 1;
            inner.replies.insert(id, sender);
            let now = self.clock.unix_millis();
            let input = Input::Request { id, request, now };
            self.step_locked(&mut inner, input);
        }
        // The sender is only dropped with the store.
        answer.await.unwrap_or(Err(MetadataError::Failed))
    }

    async fn change(&self, change: Change) -> Result<Answer, MetadataError> {
        match self.ask(Request::Change(change)).await? {
            Reply::Change(answer) => Ok(answer),
            _ => Err(MetadataError::Failed),
        }
    }

    fn step(&self, input: Input) {
        self.step_locked(&mut self.inner.lock(), input);
    }

    /// Under the lock throughout, so that records are appended and watches told in the order of the changes.
    fn step_locked(&self, inner: &mut Inner, input: Input) {
        let mut effects = inner.state.step(input);
        while !effects.is_empty() {
            let mut more = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Append { changes, room } => {
                        let appended = self.log.append(changes, room);
                        more.extend(inner.state.step(Input::Appended(appended)));
                    }
                    Effect::Reply(id, outcome) => {
                        if let Some(waiting) = inner.replies.remove(&id) {
                            // Who gave up does not want to know.
                            let _ = waiting.send(outcome);
                        }
                    }
                    Effect::Tell(events) => self.watches.publish(&events),
                    Effect::Fail => {
                        self.watches.close();
                        self.session
                            .send_modify(|session| session.state = SessionState::Expired);
                    }
                }
            }
            effects = more;
        }
    }
}

impl RecoverError {
    fn of((key, error): (Bytes, RecordError)) -> Self {
        let key = match key_values::path_of(&key) {
            Some(path) => path.to_string(),
            None => key.escape_ascii().to_string(),
        };
        Self { key, error }
    }
}

impl MetadataStore for EmbeddedMetadata {
    fn get<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Option<Node>> {
        Box::pin(async move {
            match self.ask(Request::Get(path.clone())).await? {
                Reply::Node(node) => Ok(node),
                _ => Err(MetadataError::Failed),
            }
        })
    }

    fn children<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Vec<String>> {
        Box::pin(async move {
            match self.ask(Request::Children(path.clone())).await? {
                Reply::Children(names) => Ok(names),
                _ => Err(MetadataError::Failed),
            }
        })
    }

    fn put<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        expected: Expected,
    ) -> StoreFuture<'a, Stat> {
        let path = path.clone();
        let change = Change::Put {
            path,
            value,
            expected,
        };
        Box::pin(async move { self.change(change).await?.stat() })
    }

    fn create<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        mode: CreateMode,
    ) -> StoreFuture<'a, Created> {
        let path = path.clone();
        let change = Change::Create { path, value, mode };
        Box::pin(async move { self.change(change).await?.created() })
    }

    fn delete<'a>(&'a self, path: &'a NodePath, expected: Option<Version>) -> StoreFuture<'a, ()> {
        let path = path.clone();
        let change = Change::Delete { path, expected };
        Box::pin(async move { self.change(change).await.map(drop) })
    }

    fn delete_recursive<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, ()> {
        let change = Change::DeleteRecursive { path: path.clone() };
        Box::pin(async move { self.change(change).await.map(drop) })
    }

    fn sync<'a>(&'a self, _: &'a NodePath) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.ask(Request::Sync).await.map(drop) })
    }

    fn watch<'a>(&'a self, path: &'a NodePath, scope: WatchScope) -> StoreFuture<'a, Watch> {
        Box::pin(async move {
            // A store that has failed tells nobody anything.
            self.ask(Request::Sync).await?;
            Ok(self.watches.watch(path, scope))
        })
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.session.subscribe()
    }
}

impl fmt::Debug for EmbeddedMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedMetadata")
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}
