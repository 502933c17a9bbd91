//! Which topics of a consumer have something to receive.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};

use super::topic::TopicConsumer;

/// The topics that have something, each once, in the order in which they got it.
#[derive(Default)]
pub(crate) struct ReadyTopics {
    /// Weak: a topic holds this list, and would keep itself alive through it.
    topics: Mutex<VecDeque<Weak<TopicConsumer>>>,
    changed: Notify,
}

impl ReadyTopics {
    /// Puts a topic behind all others, unless it is among them.
    pub(crate) fn push(&self, topic: &Arc<TopicConsumer>) {
        if topic.mark_ready() {
            self.topics.lock().push_back(Arc::downgrade(topic));
            self.changed.notify_one();
        }
    }

    /// Takes the first one. It is on its way out of the list: what comes for it from now on puts it there again.
    pub(crate) fn pop(&self) -> Option<Arc<TopicConsumer>> {
        loop {
            let topic = self.topics.lock().pop_front()?;
            if let Some(topic) = topic.upgrade() {
                topic.unmark_ready();
                return Some(topic);
            }
        }
    }

    /// Forgets all topics.
    pub(crate) fn clear(&self) {
        while self.pop().is_some() {}
    }

    /// Waits for the next push, or for [`wake_all`](Self::wake_all).
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Has one of those who wait look again.
    pub(crate) fn wake_one(&self) {
        self.changed.notify_one();
    }

    /// Has everyone who waits look again.
    pub(crate) fn wake_all(&self) {
        self.changed.notify_waiters();
        // Who is just about to wait must see it, too.
        self.changed.notify_one();
    }
}

impl std::fmt::Debug for ReadyTopics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyTopics")
            .field("topics", &self.topics.lock().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::watch;
    use tokio_util::{sync::CancellationToken, task::TaskTracker};

    use super::*;
    use crate::{
        client::{
            clock::Clock,
            consumer::{
                chunks::ChunkBytes, options::ConsumerOptions, permits::QueueSize, topic::Shared,
            },
        },
        naming::TopicName,
    };

    #[test]
    fn a_topic_that_has_something_is_not_kept_alive_by_it() {
        let ready = Arc::new(ReadyTopics::default());
        let shared = Shared {
            options: Arc::new(ConsumerOptions::new("s")),
            clock: Clock::new(),
            stop: CancellationToken::new(),
            operation_timeout: Duration::from_secs(1),
            ready: Arc::clone(&ready),
            changes: Arc::new(watch::Sender::new(0)),
            tracker: TaskTracker::new(),
            notices: Arc::default(),
            chunk_bytes: Arc::new(ChunkBytes::new(0)),
        };
        let name = TopicName::parse("persistent://public/default/t").unwrap();
        let topic = Arc::new(TopicConsumer::new(
            name,
            QueueSize {
                messages: 10,
                bytes: 1000,
            },
            &shared,
        ));
        ready.push(&topic);
        let left = Arc::downgrade(&topic);
        drop(topic);
        assert!(left.upgrade().is_none());
        assert!(ready.pop().is_none());
    }
}
