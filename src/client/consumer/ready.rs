//! Which topics of a consumer have something to receive.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};

use super::topic::TopicConsumer;

/// The topics that have something, each once, in the order in which they got it.
#[derive(Default)]
pub(crate) struct ReadyTopics {
    topics: Mutex<VecDeque<Arc<TopicConsumer>>>,
    changed: Notify,
}

impl ReadyTopics {
    /// Puts a topic behind all others, unless it is among them.
    pub(crate) fn push(&self, topic: &Arc<TopicConsumer>) {
        if topic.mark_ready() {
            self.topics.lock().push_back(Arc::clone(topic));
            self.changed.notify_one();
        }
    }

    /// Takes the first one. It is on its way out of the list: what comes for it from now on puts it there again.
    pub(crate) fn pop(&self) -> Option<Arc<TopicConsumer>> {
        let topic = self.topics.lock().pop_front()?;
        topic.unmark_ready();
        Some(topic)
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
