//! Watches: what happens to nodes, told to those who asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc::{self, error::TrySendError};

use super::NodePath;

/// What a watch covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchScope {
    /// The node, and which nodes are directly below it.
    Node,
    /// The node and all below it.
    Subtree,
}

/// What happened to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was made.
    Created(NodePath),
    /// Its value was set.
    Modified(NodePath),
    /// It was deleted, or its session ended.
    Deleted(NodePath),
    /// A node directly below it was made or deleted.
    ChildrenChanged(NodePath),
    /// Events were lost: the watch was not read for long, or the connection was away. Anything may have changed.
    Lagged,
}

impl Event {
    /// The node; none for [`Event::Lagged`].
    #[must_use]
    pub fn path(&self) -> Option<&NodePath> {
        match self {
            Self::Created(path)
            | Self::Modified(path)
            | Self::Deleted(path)
            | Self::ChildrenChanged(path) => Some(path),
            Self::Lagged => None,
        }
    }
}

/// Events in the order in which they happened. Dropped, it ends.
#[derive(Debug)]
pub struct Watch {
    events: mpsc::Receiver<Event>,
    lagged: Arc<AtomicBool>,
}

impl Watch {
    /// A watch and the end that feeds it.
    pub fn new() -> (WatchSender, Self) {
        let (sender, events) = mpsc::channel(WATCH_EVENTS_MAX);
        let lagged = Arc::new(AtomicBool::new(false));
        let feed = WatchSender {
            events: sender,
            lagged: Arc::clone(&lagged),
        };
        (feed, Self { events, lagged })
    }

    /// The next event; `None` when the store is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if self.lagged.swap(false, Ordering::AcqRel) {
                // What is still queued is older than what a reader now reads anew.
                while self.events.try_recv().is_ok() {}
                return Some(Event::Lagged);
            }
            let event = self.events.recv().await?;
            if !self.lagged.load(Ordering::Acquire) {
                return Some(event);
            }
        }
    }
}

/// Feeds one [`Watch`].
#[derive(Debug, Clone)]
pub struct WatchSender {
    events: mpsc::Sender<Event>,
    lagged: Arc<AtomicBool>,
}

impl WatchSender {
    /// Tells an event, never waiting; an event that finds no room becomes [`Event::Lagged`]. False when nobody listens
    /// any more.
    pub fn send(&self, event: Event) -> bool {
        if event == Event::Lagged {
            self.lagged.store(true, Ordering::Release);
        }
        match self.events.try_send(event) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.lagged.store(true, Ordering::Release);
                true
            }
            Err(TrySendError::Closed(_)) => false,
        }
    }
}

/// The watches on one store.
#[derive(Debug, Default)]
pub(super) struct WatchRegistry {
    watches: Mutex<HashMap<(NodePath, WatchScope), Vec<WatchSender>>>,
}

impl WatchRegistry {
    /// A new watch. It is told what is published from now on.
    pub(super) fn watch(&self, path: &NodePath, scope: WatchScope) -> Watch {
        let (sender, watch) = Watch::new();
        let mut watches = self.watches.lock();
        let others = watches.entry((path.clone(), scope)).or_default();
        // Those that ended are otherwise only found when something happens to the node.
        others.retain(|other| !other.events.is_closed());
        others.push(sender);
        watch
    }

    /// Tells events to those who watch the nodes. Costs one look-up for each name in the path of an event.
    pub(super) fn publish(&self, events: &[Event]) {
        let mut watches = self.watches.lock();
        if watches.is_empty() {
            return;
        }
        for event in events {
            let Some(path) = event.path() else { continue };
            tell(&mut watches, (path.clone(), WatchScope::Node), event);
            let mut above = Some(path.clone());
            while let Some(path) = above {
                above = path.parent();
                tell(&mut watches, (path, WatchScope::Subtree), event);
            }
        }
    }

    /// Tells everybody that anything may have changed.
    pub(super) fn publish_lagged(&self) {
        for senders in self.watches.lock().values_mut() {
            senders.retain(|sender| sender.send(Event::Lagged));
        }
    }

    /// Ends all watches.
    pub(super) fn close(&self) {
        self.watches.lock().clear();
    }
}

fn tell(
    watches: &mut HashMap<(NodePath, WatchScope), Vec<WatchSender>>,
    key: (NodePath, WatchScope),
    event: &Event,
) {
    if let Some(senders) = watches.get_mut(&key) {
        senders.retain(|sender| sender.send(event.clone()));
        if senders.is_empty() {
            watches.remove(&key);
        }
    }
}

/// Events that a watch keeps for a slow reader.
pub const WATCH_EVENTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect(text)
    }

    #[tokio::test]
    async fn tells_a_slow_reader_once_that_it_lost_events() {
        let registry = WatchRegistry::default();
        let mut watch = registry.watch(&path("/a"), WatchScope::Node);
        let event = Event::Modified(path("/a"));
        registry.publish(&vec![event.clone(); WATCH_EVENTS_MAX]);
        registry.publish(std::slice::from_ref(&event));
        assert_eq!(watch.next().await, Some(Event::Lagged));
        registry.publish(std::slice::from_ref(&event));
        assert_eq!(
            watch.next().await,
            Some(event.clone()),
            "what comes after it is told again"
        );
        registry.publish_lagged();
        registry.publish(&[event]);
        assert_eq!(watch.next().await, Some(Event::Lagged));
        registry.close();
        assert_eq!(watch.next().await, None);
    }

    #[tokio::test]
    async fn forgets_watches_that_were_dropped() {
        let registry = WatchRegistry::default();
        drop(registry.watch(&path("/a"), WatchScope::Subtree));
        registry.publish(&[Event::Created(path("/a/b"))]);
        assert!(registry.watches.lock().is_empty());
        for _ in 0..3 {
            drop(registry.watch(&path("/never"), WatchScope::Node));
        }
        assert_eq!(
            registry
                .watches
                .lock()
                .values()
                .map(Vec::len)
                .sum::<usize>(),
            1
        );
    }
}
