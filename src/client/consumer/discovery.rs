//! Which topics a consumer reads, and looking for new ones: partitions that are added, topics that match a pattern.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use regex::Regex;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::{
    options::{TopicMode, Topics},
    set::ConsumerSet,
};
use crate::{
    client::{
        clock::Deadline,
        connection::Connection,
        error::{ClientError, CloseReason, RequestError},
        pulsar_client::PulsarClient,
        session::{Route, WatcherEvents},
    },
    naming::{NamespaceName, TopicName},
    protocol::{
        command::{Command, name_of},
        proto::pulsar::{CommandWatchTopicList, CommandWatchTopicListClose, FeatureFlags},
    },
};

/// Finds topics.
#[derive(Debug)]
pub(super) enum Matcher {
    Named(Vec<TopicName>),
    Pattern {
        namespace: NamespaceName,
        pattern: Regex,
        /// As brokers are told it.
        source: String,
        mode: TopicMode,
    },
}

impl Matcher {
    pub(super) fn new(topics: Topics) -> Result<Self, ClientError> {
        match topics {
            Topics::One(topic) => Ok(Self::Named(vec![topic])),
            Topics::Many(topics) => Ok(Self::Named(topics)),
            Topics::Pattern {
                namespace,
                pattern,
                mode,
            } => {
                // The whole name has to match, and the scheme does not count: both as in Apache's clients.
                let source = pattern
                    .split_once("://")
                    .map_or(&*pattern, |(_, rest)| rest);
                let pattern = Regex::new(&format!("^(?:{source})$"))
                    .map_err(|_| ClientError::InvalidOptions("the pattern is malformed"))?;
                Ok(Self::Pattern {
                    namespace,
                    pattern,
                    source: source.to_owned(),
                    mode,
                })
            }
        }
    }

    pub(super) fn is_pattern(&self) -> bool {
        matches!(self, Self::Pattern { .. })
    }

    /// The topics there are, partitions one by one.
    pub(super) async fn find(
        &self,
        client: &PulsarClient,
        create: bool,
        deadline: Deadline,
    ) -> Result<Vec<TopicName>, ClientError> {
        match self {
            Self::Named(topics) => {
                let mut found = BTreeSet::new();
                for topic in topics {
                    found.extend(partitions_of(client, topic, create, deadline).await?);
                }
                Ok(found.into_iter().collect())
            }
            Self::Pattern {
                namespace,
                pattern,
                mode,
                ..
            } => {
                let names = retry(client, deadline, || {
                    client.lookups().topics_of_namespace(namespace, *mode)
                })
                .await?;
                let names = names.iter().filter_map(|name| TopicName::parse(name).ok());
                Ok(names.filter(|name| matches(pattern, name)).collect())
            }
        }
    }
}

/// Whether the name without its scheme, of a partition that of its topic, matches.
fn matches(pattern: &Regex, name: &TopicName) -> bool {
    let name = name.partitioned_topic().to_string();
    let name = name.split_once("://").map_or(&*name, |(_, rest)| rest);
    pattern.is_match(name)
}

/// The partitions of a topic, or the topic itself.
async fn partitions_of(
    client: &PulsarClient,
    topic: &TopicName,
    create: bool,
    deadline: Deadline,
) -> Result<Vec<TopicName>, ClientError> {
    if topic.partition().is_some() {
        return Ok(vec![topic.clone()]);
    }
    let lookups = client.lookups();
    let count = if create {
        retry(client, deadline, || lookups.partitions_or_create(topic)).await?
    } else {
        retry(client, deadline, || lookups.partitions(topic)).await?
    };
    if count == 0 {
        return Ok(vec![topic.clone()]);
    }
    if count > PARTITIONS_MAX {
        return Err(ClientError::InvalidOptions(
            "the broker claims more partitions than a topic can have",
        ));
    }
    let names =
        (0..count).map(|partition| TopicName::parse(&format!("{topic}-partition-{partition}")));
    names
        .collect::<Result<_, _>>()
        .map_err(|_| ClientError::InvalidOptions("the name of the topic is too long"))
}

/// Tries while the error may pass, until the deadline.
async fn retry<T, F: Future<Output = Result<T, crate::client::LookupError>>>(
    client: &PulsarClient,
    deadline: Deadline,
    mut attempt: impl FnMut() -> F,
) -> Result<T, ClientError> {
    let mut last = None;
    let attempts = async {
        let delays = crate::client::Backoff::new(client.options().backoff, rand::random());
        for delay in delays {
            match attempt().await.map_err(ClientError::from) {
                Err(error) if error.is_retryable() => last = Some(error),
                result => return result,
            }
            tokio::time::sleep(delay).await;
        }
        Err(ClientError::NotConnected)
    };
    let result = client
        .stop()
        .run_until_cancelled(deadline.keep(attempts))
        .await;
    match result {
        None => Err(ClientError::Closed),
        Some(Some(result)) => result,
        Some(None) => Err(deadline.error(last)),
    }
}

/// Has a broker tell when topics of a pattern come or go (PIP-145). What it tells is only a reason to look again.
#[derive(Debug, Default)]
struct Watch {
    has_changed: Notify,
    is_open: AtomicBool,
}

impl WatcherEvents for Watch {
    fn on_update(&self) {
        self.has_changed.notify_one();
    }

    fn on_detached(&self) {
        self.is_open.store(false, Ordering::Release);
    }
}

/// A watch at a broker, which is ended there when this is dropped.
struct Watching {
    connection: Connection,
    watcher_id: u64,
    tracker: TaskTracker,
    _route: Route,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let close = Command::from(CommandWatchTopicListClose {
            request_id: 0,
            watcher_id: self.watcher_id,
        });
        let connection = self.connection.clone();
        self.tracker.spawn(async move {
            // One that is not ended ends with the connection.
            let closed = tokio::time::timeout(CLOSE_TIMEOUT, connection.request(close)).await;
            if !matches!(closed, Ok(Ok(_))) {
                debug!(?closed, "a watch of topics was not ended by its broker");
            }
        });
    }
}

/// Begins to watch. `Ok(None)`: the broker does not do that.
async fn watch(
    client: &PulsarClient,
    matcher: &Matcher,
    events: &Arc<Watch>,
) -> Result<Option<Watching>, ClientError> {
    let Matcher::Pattern {
        namespace, source, ..
    } = matcher
    else {
        return Ok(None);
    };
    let session = client
        .session_for_any()
        .await
        .map_err(|error| ClientError::ServiceUrl(Arc::new(error)))?;
    let flags = session.connection().connected().feature_flags.as_ref();
    if !flags.is_some_and(FeatureFlags::supports_topic_watchers) {
        return Ok(None);
    }
    let watcher_id = client.next_id();
    let closed = || RequestError::Closed(CloseReason::EndOfStream);
    let route = session
        .attach_watcher(watcher_id, Arc::clone(events) as Arc<dyn WatcherEvents>)
        .ok_or_else(closed)?;
    let command = Command::from(CommandWatchTopicList {
        request_id: 0,
        watcher_id,
        namespace: namespace.to_string(),
        topics_pattern: source.clone(),
        topics_hash: None,
    });
    events.is_open.store(true, Ordering::Release);
    match session.connection().request(command).await? {
        Command::WatchTopicListSuccess(_) => {
            // What came between the last look and now was told to nobody.
            events.on_update();
            Ok(Some(Watching {
                connection: session.connection().clone(),
                watcher_id,
                tracker: client.tracker().clone(),
                _route: route,
            }))
        }
        answer => Err(ClientError::UnexpectedAnswer(name_of(
            answer.command_type(),
        ))),
    }
}

/// Looks for new topics from time to time while the consumer is there.
pub(super) struct Discovery {
    matcher: Matcher,
    set: Weak<ConsumerSet>,
    interval: Duration,
    stop: tokio_util::sync::CancellationToken,
}

impl Discovery {
    /// `None` where there cannot be new ones.
    pub(super) fn new(matcher: Matcher, set: &Arc<ConsumerSet>) -> Option<Self> {
        let options = &set.shared.options;
        let interval = match &matcher {
            Matcher::Pattern { .. } => Some(options.pattern_discovery),
            // Partitions can only be added to topics that have some.
            Matcher::Named(_)
                if set
                    .topics()
                    .iter()
                    .any(|topic| topic.name.partition().is_some()) =>
            {
                options.auto_update_partitions
            }
            Matcher::Named(_) => None,
        };
        Some(Self {
            matcher,
            set: Arc::downgrade(set),
            interval: interval?.max(INTERVAL_MIN),
            stop: set.stop_token().clone(),
        })
    }

    pub(super) async fn run(self) {
        let stop = self.stop.clone();
        let _ = stop.run_until_cancelled(self.look_again_and_again()).await;
    }

    async fn look_again_and_again(self) {
        let events = Arc::new(Watch::default());
        let mut watching = None;
        let mut is_watchable = self.matcher.is_pattern();
        loop {
            let Some(set) = self.set.upgrade() else {
                return;
            };
            if is_watchable && !events.is_open.load(Ordering::Acquire) {
                drop(watching.take());
                match watch(&set.client, &self.matcher, &events).await {
                    Ok(new) => {
                        is_watchable = new.is_some();
                        watching = new;
                    }
                    Err(error) => {
                        // A proxy in between may know nothing of it: then looking from time to time has to do.
                        debug!(%error, "topics cannot be watched");
                        is_watchable = error.is_retryable()
                            && !matches!(error, ClientError::Request(RequestError::Closed(_)));
                        events.is_open.store(false, Ordering::Release);
                    }
                }
            }
            drop(set);
            // However often a broker says that something changed.
            tokio::time::sleep(INTERVAL_MIN).await;
            tokio::select! {
                () = tokio::time::sleep(self.interval.saturating_sub(INTERVAL_MIN)) => {}
                () = events.has_changed.notified() => {}
            }
            let Some(set) = self.set.upgrade() else {
                return;
            };
            let deadline = Deadline::within(set.client.options().operation_timeout);
            let found = match self.matcher.find(&set.client, false, deadline).await {
                Ok(found) => found,
                Err(error) => {
                    debug!(%error, "cannot look for new topics");
                    continue;
                }
            };
            if self.matcher.is_pattern() {
                set.retain(&found);
            }
            if let Err(error) = set.add(found, deadline).await {
                debug!(%error, "cannot subscribe to a new topic");
            }
        }
    }
}

/// More partitions than Pulsar allows by far; keeps a claim from becoming memory.
const PARTITIONS_MAX: u32 = 100_000;

/// How long ending a watch waits for the broker.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest time between two looks.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
