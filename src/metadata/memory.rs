//! A store in memory: for tests, and for processes that are to forget. Several sessions share one tree.

use std::fmt;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::tree::{Answer, Change, SessionId, Tree};
use super::watch::WatchRegistry;
use super::{
    Clock, CreateMode, Created, Event, Expected, MetadataError, MetadataStore, Node, NodePath,
    Session, SessionState, Stat, StoreFuture, Version, Watch, WatchScope,
};

/// The tree that sessions connect to. Cheap to clone.
#[derive(Clone)]
pub struct MemoryMetadata {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Mutex<Inner>,
    watches: WatchRegistry,
    clock: Arc<dyn Clock>,
}

struct Inner {
    tree: Tree,
    /// Sessions made so far.
    sessions: u64,
}

impl MemoryMetadata {
    /// A store with nothing in it.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let inner = Inner {
            tree: Tree::new(),
            sessions: 0,
        };
        Self {
            shared: Arc::new(Shared {
                inner: Mutex::new(inner),
                watches: WatchRegistry::default(),
                clock,
            }),
        }
    }

    /// A new session.
    #[must_use]
    pub fn connect(&self) -> MemorySession {
        let id = self.shared.next_session();
        let first = Session {
            epoch: 0,
            state: SessionState::Connected,
        };
        MemorySession {
            shared: Arc::clone(&self.shared),
            id: Mutex::new(id),
            state: watch::Sender::new(first),
        }
    }
}

impl fmt::Debug for MemoryMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryMetadata")
    }
}

/// A session with a [`MemoryMetadata`]. Its ephemeral nodes go when it is dropped. The methods beside those of
/// [`MetadataStore`] play what a network does to a session.
pub struct MemorySession {
    shared: Arc<Shared>,
    id: Mutex<SessionId>,
    state: watch::Sender<Session>,
}

impl MemorySession {
    /// The connection goes; requests fail until [`Self::restore`].
    pub fn lose(&self) {
        let since = self.shared.clock.monotonic();
        self.set_state(SessionState::Lost { since });
    }

    /// The connection comes back, in the same session. Watches may have missed something.
    pub fn restore(&self) {
        self.shared.watches.publish_lagged();
        self.set_state(SessionState::Connected);
    }

    /// The session ends, whether the connection is there or not.
    pub fn expire(&self) {
        self.shared.end(*self.id.lock());
        self.set_state(SessionState::Expired);
    }

    /// A new session takes the place of one that ended.
    pub fn renew(&self) {
        *self.id.lock() = self.shared.next_session();
        self.shared.watches.publish_lagged();
        self.state.send_modify(|session| {
            session.epoch += 1;
            session.state = SessionState::Connected;
        });
    }

    fn set_state(&self, state: SessionState) {
        self.state.send_modify(|session| session.state = state);
    }

    /// The session, when it can be used.
    fn usable(&self) -> Result<SessionId, MetadataError> {
        match self.state.borrow().state {
            SessionState::Connected => Ok(*self.id.lock()),
            SessionState::Lost { .. } => Err(MetadataError::ConnectionLost),
            SessionState::Expired => Err(MetadataError::SessionExpired),
        }
    }

    fn change(&self, change: Change) -> Result<Answer, MetadataError> {
        let session = self.usable()?;
        self.shared.change(change, session)
    }
}

impl Shared {
    fn next_session(&self) -> SessionId {
        let mut inner = self.inner.lock();
        inner.sessions += 1;
        SessionId(inner.sessions)
    }

    fn change(&self, change: Change, session: SessionId) -> Result<Answer, MetadataError> {
        let mut inner = self.inner.lock();
        let plan = inner.tree.plan(change, session, self.clock.unix_millis())?;
        let mut events: Vec<Event> = Vec::new();
        for step in plan.steps {
            let told = inner.tree.apply(step);
            events.extend(told.expect("a plan fits the tree it was made from"));
        }
        // Under the lock, so that watches are told in the order of the changes.
        self.watches.publish(&events);
        Ok(plan.answer)
    }

    fn end(&self, session: SessionId) {
        let ended = self.change(Change::EndSession, session);
        debug_assert!(ended.is_ok(), "a session can always end");
    }
}

impl MetadataStore for MemorySession {
    fn get<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Option<Node>> {
        let read = |session| self.shared.inner.lock().tree.get(path, session);
        Box::pin(async move { self.usable().map(read) })
    }

    fn children<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Vec<String>> {
        let read = |_| self.shared.inner.lock().tree.children(path);
        Box::pin(async move { self.usable().map(read) })
    }

    fn put<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        expected: Expected,
    ) -> StoreFuture<'a, Stat> {
        let change = Change::Put {
            path: path.clone(),
            value,
            expected,
        };
        Box::pin(async move { self.change(change)?.stat() })
    }

    fn create<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        mode: CreateMode,
    ) -> StoreFuture<'a, Created> {
        let change = Change::Create {
            path: path.clone(),
            value,
            mode,
        };
        Box::pin(async move { self.change(change)?.created() })
    }

    fn delete<'a>(&'a self, path: &'a NodePath, expected: Option<Version>) -> StoreFuture<'a, ()> {
        let change = Change::Delete {
            path: path.clone(),
            expected,
        };
        Box::pin(async move { self.change(change).map(drop) })
    }

    fn delete_recursive<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, ()> {
        let change = Change::DeleteRecursive { path: path.clone() };
        Box::pin(async move { self.change(change).map(drop) })
    }

    fn sync<'a>(&'a self, _: &'a NodePath) -> StoreFuture<'a, ()> {
        // There is one tree, and every session reads it.
        Box::pin(ready(self.usable().map(drop)))
    }

    fn watch<'a>(&'a self, path: &'a NodePath, scope: WatchScope) -> StoreFuture<'a, Watch> {
        let watch = move |_| self.shared.watches.watch(path, scope);
        Box::pin(async move { self.usable().map(watch) })
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.state.subscribe()
    }
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.shared.end(*self.id.lock());
    }
}

impl fmt::Debug for MemorySession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemorySession")
            .field(&*self.id.lock())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug)]
    struct StandingClock;

    impl Clock for StandingClock {
        fn unix_millis(&self) -> i64 {
            1_700_000_000_000
        }

        fn monotonic(&self) -> Duration {
            Duration::from_secs(7)
        }
    }

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect(text)
    }

    #[tokio::test]
    async fn a_lost_session_fails_requests_and_keeps_its_nodes() {
        let server = MemoryMetadata::new(Arc::new(StandingClock));
        let (session, other) = (server.connect(), server.connect());
        let node = path("/a");
        let made = session
            .create(&node, Bytes::new(), CreateMode::Ephemeral)
            .await;
        made.expect("made");
        let mut watch = session
            .watch(&node, WatchScope::Node)
            .await
            .expect("watched");
        let mut states = session.session();
        session.lose();
        let since = Duration::from_secs(7);
        let state = states.borrow_and_update().state;
        assert_eq!(state, SessionState::Lost { since });
        assert_eq!(session.get(&node).await, Err(MetadataError::ConnectionLost));
        assert!(other.get(&node).await.expect("read").is_some());
        session.restore();
        assert!(session.get(&node).await.expect("read").is_some());
        assert_eq!(
            watch.next().await,
            Some(Event::Lagged),
            "it may have missed something"
        );
        let restored = *states.borrow_and_update();
        assert_eq!(
            (restored.epoch, restored.state),
            (0, SessionState::Connected)
        );
    }

    #[tokio::test]
    async fn a_session_after_one_that_ended_has_another_epoch() {
        let server = MemoryMetadata::new(Arc::new(StandingClock));
        let session = server.connect();
        let node = path("/a");
        let make = || session.create(&node, Bytes::new(), CreateMode::Ephemeral);
        make().await.expect("made");
        session.lose();
        session.expire();
        assert_eq!(session.get(&node).await, Err(MetadataError::SessionExpired));
        let mut watch = server
            .connect()
            .watch(&node, WatchScope::Node)
            .await
            .expect("watched");
        session.renew();
        let renewed = *session.session().borrow();
        assert_eq!((renewed.epoch, renewed.state), (1, SessionState::Connected));
        assert_eq!(session.get(&node).await, Ok(None), "its nodes are gone");
        assert_eq!(watch.next().await, Some(Event::Lagged));
        make().await.expect("made");
        assert_eq!(watch.next().await, Some(Event::Created(node.clone())));
        drop(session);
        assert_eq!(
            watch.next().await,
            Some(Event::Deleted(node)),
            "it ends when it is dropped"
        );
    }
}
