//! The topics of one consumer: subscribing to them, finding the one that something belongs to, and what concerns all.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    chunks::ChunkBytes,
    discovery::{Discovery, Matcher},
    error::{AckError, ReceiveError},
    message::HasMessageId,
    options::{ConsumerOptions, SeekTo, Topics},
    permits::QueueSize,
    ready::ReadyTopics,
    state::Ticket,
    task::TopicTask,
    topic::{Shared, Status, TopicConsumer},
};
use crate::{
    client::{
        clock::{Clock, Deadline},
        connection::Connection,
        error::{ClientError, RequestError},
        message_id::MessageId,
        pulsar_client::PulsarClient,
    },
    naming::TopicName,
    protocol::{
        command::{Command, name_of},
        proto::pulsar::{CommandGetLastMessageId, CommandSeek, CommandUnsubscribe},
    },
};

/// See the module.
pub(crate) struct ConsumerSet {
    pub(super) client: PulsarClient,
    pub(super) shared: Shared,
    pub(super) ready: Arc<ReadyTopics>,
    consumer_name: String,
    topics: Mutex<BTreeMap<TopicName, Arc<TopicConsumer>>>,
    /// Topics may come and go.
    is_pattern: bool,
}

impl ConsumerSet {
    /// Finds the topics, subscribes to them, and keeps looking for new ones where there can be any.
    pub(super) async fn subscribe(
        client: PulsarClient,
        topics: Topics,
        options: ConsumerOptions,
    ) -> Result<Arc<Self>, ClientError> {
        let deadline = Deadline::within(client.options().operation_timeout);
        let matcher = Matcher::new(topics)?;
        let create = options.force_topic_creation;
        let found = matcher.find(&client, create, deadline).await?;
        let is_pattern = matcher.is_pattern();
        options.check(if is_pattern { 2 } else { found.len() })?;
        let ready = Arc::new(ReadyTopics::default());
        let shared = Shared {
            clock: Clock::new(),
            stop: client.stop().child_token(),
            operation_timeout: client.options().operation_timeout,
            ready: Arc::clone(&ready),
            changes: Arc::new(watch::Sender::new(0)),
            tracker: client.tracker().clone(),
            notices: Arc::default(),
            chunk_bytes: Arc::new(ChunkBytes::new(options.chunks.max_bytes)),
            options: Arc::new(options),
        };
        let consumer_name = shared
            .options
            .consumer_name
            .clone()
            .unwrap_or_else(|| format!("{:010x}", rand::random::<u64>() >> 24));
        let set = Arc::new(Self {
            client,
            ready,
            consumer_name,
            topics: Mutex::new(BTreeMap::new()),
            is_pattern,
            shared,
        });
        // Until all are subscribed; then the handle does it.
        let guard = set.shared.stop.clone().drop_guard();
        set.add(found, deadline).await?;
        if let Some(discovery) = Discovery::new(matcher, &set) {
            set.shared.tracker.spawn(discovery.run());
        }
        guard.disarm();
        Ok(set)
    }

    /// Subscribes to topics that are not there yet. The error is that of the first one that fails; it is not there then.
    pub(super) async fn add(
        &self,
        names: Vec<TopicName>,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let new: Vec<TopicName> = {
            let topics = self.topics.lock();
            let is_new = |name: &TopicName| !topics.contains_key(name);
            names.into_iter().filter(is_new).collect()
        };
        let queue_size = self.share_of(new.len() + self.topics.lock().len());
        let mut waiting = Vec::new();
        for name in new {
            let topic = Arc::new(TopicConsumer::new(name.clone(), queue_size, &self.shared));
            let (subscribed, first) = oneshot::channel();
            let task = TopicTask {
                topic: Arc::clone(&topic),
                client: self.client.clone(),
                consumer_name: self.consumer_name.clone(),
                migrated: None,
                deadline,
            };
            self.shared.tracker.spawn(task.run(subscribed));
            self.topics.lock().insert(name.clone(), topic);
            waiting.push((name, first));
        }
        if !waiting.is_empty() {
            self.share_anew();
        }
        let mut result = Ok(());
        for (name, first) in waiting {
            let subscribed = first.await.unwrap_or(Err(ClientError::Closed));
            if let Err(error) = subscribed {
                self.topics.lock().remove(&name);
                if result.is_ok() {
                    result = Err(error);
                }
            }
        }
        if result.is_err() {
            self.share_anew();
        }
        self.shared
            .changes
            .send_modify(|changes| *changes = changes.wrapping_add(1));
        result
    }

    /// What each of so many topics may have waiting, so that all together keep to the bounds of the consumer.
    fn share_of(&self, topics: usize) -> QueueSize {
        let options = &self.shared.options;
        let topics = topics.max(1);
        let messages = u32::try_from(topics).unwrap_or(u32::MAX);
        let messages = options.max_total_receiver_queue_size / messages;
        QueueSize {
            messages: options.receiver_queue_size.min(messages.max(1)),
            bytes: options.receiver_queue_bytes / topics,
        }
    }

    /// Topics came or went: all that are there get their share.
    fn share_anew(&self) {
        let topics = self.topics();
        let queue_size = self.share_of(topics.len());
        for topic in topics {
            topic.with_state(|state, _| state.set_queue_size(queue_size));
        }
    }

    /// Closes the consumers of topics that are not among these any more, and forgets those that have ended.
    pub(super) fn retain(&self, names: &[TopicName]) {
        let before = self.topics.lock().len();
        self.topics.lock().retain(|name, topic| {
            let is_ended = matches!(topic.status(), Status::Ended(_));
            let stays = !is_ended && names.contains(name);
            if !stays {
                topic.stop.cancel();
            }
            stays
        });
        if self.topics.lock().len() < before {
            self.share_anew();
        }
    }

    /// The topics in the order of their names.
    pub(super) fn topics(&self) -> Vec<Arc<TopicConsumer>> {
        self.topics.lock().values().map(Arc::clone).collect()
    }

    /// The topic that a message is of.
    pub(super) fn topic_of(
        &self,
        message: &impl HasMessageId,
    ) -> Result<Arc<TopicConsumer>, AckError> {
        self.find(message.topic(), message.message_id())
            .ok_or(AckError::UnknownTopic)
    }

    fn find(&self, name: Option<&str>, id: &MessageId) -> Option<Arc<TopicConsumer>> {
        let topics = self.topics.lock();
        if name.is_none() && topics.len() == 1 {
            return topics.values().next().map(Arc::clone);
        }
        let mut found = topics.values().filter(|topic| match name {
            Some(name) => *topic.text == *name,
            None => id.partition.is_some() && topic.name.partition() == id.partition,
        });
        let topic = found.next()?;
        // Partitions of several topics have the same numbers.
        found.next().is_none().then(|| Arc::clone(topic))
    }

    /// Why nothing can come any more.
    pub(super) fn over(&self) -> Option<ReceiveError> {
        if self.shared.stop.is_cancelled() {
            return Some(ReceiveError::Closed);
        }
        if self.is_pattern {
            return None;
        }
        let mut error = None;
        for topic in self.topics.lock().values() {
            match topic.status() {
                Status::Ended(why) => error = Some(why),
                _ => return None,
            }
        }
        error
    }

    /// Where a message in chunks had no room because of those of other topics, the oldest of these give way, so that it has
    /// room when it comes again. To be called without the lock of a topic.
    pub(super) fn make_room_for_chunks(&self) {
        let bytes = &self.shared.chunk_bytes;
        if !bytes.is_crowded() {
            return;
        }
        while bytes.is_crowded() {
            let topics = self.topics().into_iter();
            let ages = topics.filter_map(|topic| Some((topic.oldest_incomplete()?, topic)));
            let oldest = ages.min_by_key(|(since, _)| *since);
            if !oldest.is_some_and(|(_, topic)| topic.give_up_oldest()) {
                break;
            }
        }
        bytes.settle();
    }

    /// Asks for one message, of a consumer without a queue.
    pub(super) fn want_one(&self) {
        if self.shared.options.receiver_queue_size == 0 {
            for topic in self.topics() {
                topic.want_one();
            }
        }
    }

    pub(super) async fn seek(&self, to: SeekTo) -> Result<(), ClientError> {
        let topics = match &to {
            SeekTo::Id(id) if !id.is_earliest() && !id.is_latest() => {
                let topic = self.find(None, id);
                vec![topic.ok_or(ClientError::InvalidOptions(
                    "the id does not say of which topic it is",
                ))?]
            }
            _ => self.topics(),
        };
        for topic in topics {
            topic.seek(&to).await?;
        }
        Ok(())
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    pub(super) fn stop_token(&self) -> &CancellationToken {
        &self.shared.stop
    }

    /// Has the consumers close in the background.
    pub(super) fn stop(&self) {
        self.shared.stop.cancel();
        self.ready.clear();
        self.ready.wake_all();
    }

    pub(super) async fn close(&self) {
        self.stop();
        for topic in self.topics() {
            topic.ended().await;
        }
        self.ready.clear();
    }
}

impl TopicConsumer {
    /// The last message and up to where the broker says that all is acknowledged.
    pub(super) async fn last_message_id(
        &self,
    ) -> Result<(MessageId, Option<MessageId>), ClientError> {
        let deadline = Deadline::within(self.operation_timeout);
        let (connection, consumer_id, _) = self.connected(None, deadline).await?;
        let command = Command::from(CommandGetLastMessageId {
            consumer_id,
            request_id: 0,
        });
        match ask(&connection, command, deadline).await? {
            Command::GetLastMessageIdResponse(response) => Ok((
                MessageId {
                    partition: self.name.partition(),
                    ..MessageId::from_data(&response.last_message_id)
                },
                response
                    .consumer_mark_delete_position
                    .as_ref()
                    .map(MessageId::from_data),
            )),
            answer => Err(ClientError::UnexpectedAnswer(name_of(
                answer.command_type(),
            ))),
        }
    }

    /// Whether there is a message that was not received.
    pub(super) async fn has_message_available(&self) -> Result<bool, ClientError> {
        if self.has_message_here() {
            return Ok(true);
        }
        let (last, mark_delete) = self.last_message_id().await?;
        Ok(self.has_message_here()
            || self.with_state(|state, _| state.is_behind(&last, mark_delete.as_ref())))
    }

    pub(super) async fn unsubscribe(&self, force: bool) -> Result<(), ClientError> {
        let deadline = Deadline::within(self.operation_timeout);
        let (connection, consumer_id, _) = self.connected(None, deadline).await?;
        let command = Command::from(CommandUnsubscribe {
            consumer_id,
            request_id: 0,
            force: Some(force),
        });
        expect_success(ask(&connection, command, deadline).await?)?;
        self.inner.lock().is_unsubscribed = true;
        self.stop.cancel();
        Ok(())
    }

    /// Moves the subscription. Where the connection is lost meanwhile, nobody knows whether it was moved: it is asked for
    /// again.
    pub(super) async fn seek(&self, to: &SeekTo) -> Result<(), ClientError> {
        let deadline = Deadline::within(self.operation_timeout);
        let mut after = None;
        let mut lost = None;
        loop {
            let connected = match self.connected(after, deadline).await {
                Ok(connected) => connected,
                Err(ClientError::Timeout { .. }) if lost.is_some() => {
                    return Err(deadline.error(lost));
                }
                Err(error) => return Err(error),
            };
            let ticket = connected.2;
            match self.seek_on(connected, to, deadline).await {
                Ok(()) => return self.connected(Some(ticket), deadline).await.map(|_| ()),
                Err(ClientError::Request(error @ RequestError::Closed(_))) => {
                    lost = Some(error.into());
                    after = Some(ticket);
                }
                Err(error) => {
                    warn!(topic = %self.text, "a seek failed: the consumer goes on where it was");
                    return Err(error);
                }
            }
        }
    }

    /// One SEEK on this connection.
    async fn seek_on(
        &self,
        (connection, consumer_id, ticket): (Connection, u64, Ticket),
        to: &SeekTo,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        self.drain().await;
        let id = match to {
            SeekTo::Id(id) => Some(id.clone()),
            SeekTo::Time(_) => None,
        };
        let before = self.begin_seek(id);
        // Given up half-way, nothing would come any more.
        let given_up = ReattachOnDrop { topic: Some(self) };
        let command = Command::from(CommandSeek {
            consumer_id,
            request_id: 0,
            message_id: match to {
                SeekTo::Id(id) => Some(super::start::to_data(
                    id,
                    self.options.start_message_inclusive,
                )),
                SeekTo::Time(_) => None,
            },
            message_publish_time: match to {
                SeekTo::Id(_) => None,
                SeekTo::Time(time) => Some(*time),
            },
        });
        let answer = ask(&connection, command, deadline).await;
        given_up.disarm();
        let result = answer.and_then(expect_success);
        {
            let mut inner = self.inner.lock();
            if result.is_err() {
                inner.state.undo_seek(before);
            }
            // A broker closes the consumers of a subscription that it moves. Who refused, or does not do that, is
            // asked again for all that was thrown away meanwhile.
            if result.is_err() || inner.state.is_of_this_attachment(ticket) {
                inner.reattach = true;
            }
        }
        self.wake.notify_one();
        result
    }
}

/// A request, for which there is no more time than until the deadline.
async fn ask(
    connection: &Connection,
    command: Command,
    deadline: Deadline,
) -> Result<Command, ClientError> {
    match deadline.keep(connection.request(command)).await {
        Some(answer) => Ok(answer?),
        None => Err(deadline.error(None)),
    }
}

/// Has the consumer of a topic attached again unless it is told that all is well.
struct ReattachOnDrop<'a> {
    topic: Option<&'a TopicConsumer>,
}

impl ReattachOnDrop<'_> {
    fn disarm(mut self) {
        self.topic = None;
    }
}

impl Drop for ReattachOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(topic) = self.topic {
            topic.inner.lock().reattach = true;
            topic.wake.notify_one();
        }
    }
}

fn expect_success(answer: Command) -> Result<(), ClientError> {
    match answer {
        Command::Success(_) => Ok(()),
        Command::Error(error) => Err(ClientError::Request(RequestError::Refused {
            code: crate::client::handshake::server_error(error.error),
            message: error.message,
        })),
        answer => Err(ClientError::UnexpectedAnswer(name_of(
            answer.command_type(),
        ))),
    }
}
