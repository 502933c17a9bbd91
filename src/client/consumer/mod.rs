//! Consumers: messages of one topic, of all partitions of one, of several, or of all whose names match a pattern.
//!
//! A [`Consumer`] is a set of consumers of single topics. Each of these has a pure state (`state.rs`) behind a lock, a task
//! that subscribes and comes back after the connection was lost (`task.rs`), and a decoder that runs where messages are
//! received (`receiving.rs`, `decode.rs`). Start at [`PulsarClient::consumer`].

mod ack_set;
mod acknowledgements;
mod chunks;
mod decode;
mod discovery;
mod error;
mod message;
mod open_batch;
mod options;
mod permits;
mod ready;
mod receiving;
#[cfg(test)]
mod receiving_tests;
mod redelivery;
#[cfg(test)]
mod scripted_chunk_tests;
#[cfg(test)]
mod scripted_delivery_tests;
#[cfg(test)]
mod scripted_tests;
mod set;
mod start;
mod state;
#[cfg(test)]
mod state_tests;
mod task;
mod topic;
mod unsent;

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use tokio::sync::{oneshot::error::TryRecvError, watch};

pub use self::{
    error::{AckError, ReceiveError},
    message::{HasMessageId, MessageView, RawEntry, ReceivedMessage},
    options::{
        AckGrouping, ChunkOptions, ConsumerOptions, InitialPosition, KeySharedPolicy, Schema,
        SeekTo, SubscriptionType, TopicMode, Topics,
    },
};
use self::{
    set::ConsumerSet,
    topic::{Status, TopicConsumer},
};
use super::{error::ClientError, message_id::MessageId, pulsar_client::PulsarClient};

impl PulsarClient {
    /// Subscribes, and waits until all topics are.
    ///
    /// # Errors
    /// That of the first topic that cannot be subscribed to within `operation_timeout`; nothing is left behind then.
    pub async fn consumer(
        &self,
        topics: impl Into<Topics>,
        options: ConsumerOptions,
    ) -> Result<Consumer, ClientError> {
        let set = ConsumerSet::subscribe(self.clone(), topics.into(), options).await?;
        Ok(Consumer {
            inner: Arc::new(Handle { set }),
        })
    }
}

/// A handle on a consumer; clones share it. [`close`](Self::close) closes it in order; when the last handle is dropped it is
/// closed in the background.
#[derive(Clone)]
pub struct Consumer {
    inner: Arc<Handle>,
}

struct Handle {
    set: Arc<ConsumerSet>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.set.stop();
    }
}

/// One topic of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicStatus {
    /// The topic; of a partitioned one the partition.
    pub topic: Arc<str>,
    /// Whether the broker has the consumer.
    pub is_connected: bool,
    /// Whether this is the active consumer, of a Failover subscription.
    pub is_active: Option<bool>,
    /// Whether the topic is terminated and all of it was sent.
    pub has_reached_end: bool,
    /// Entries that came and wait to be received.
    pub queued_entries: usize,
}

impl Consumer {
    /// The next message. Cancel-safe. Several may wait at the same time; each message goes to one of them.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn recv(&self) -> Result<ReceivedMessage, ReceiveError> {
        self.receive(|topic| topic.receive_one()).await
    }

    /// A message that is here already.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub fn try_recv(&self) -> Result<Option<ReceivedMessage>, ReceiveError> {
        let set = self.set();
        while let Some(topic) = set.ready.pop() {
            let message = topic.receive_one();
            set.make_room_for_chunks();
            if let Some(message) = message {
                return Ok(Some(message));
            }
        }
        set.over().map_or(Ok(None), Err)
    }

    /// Waits for messages of one topic and hands out all that are here, of up to `max_entries` entries and at most 65,536
    /// messages at a time, without making values of them. Returns how many that were, at least 1. Cancel-safe. `visit` must not receive from the same
    /// consumer; it may acknowledge.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn receive_each(
        &self,
        max_entries: usize,
        mut visit: impl FnMut(MessageView<'_>),
    ) -> Result<usize, ReceiveError> {
        self.receive(|topic| {
            let count = topic.receive_each(max_entries.max(1), &mut visit);
            (count > 0).then_some(count)
        })
        .await
    }

    /// Waits for messages of one topic and puts those that are here into `messages`, of up to `max_entries` entries and at
    /// most 65,536 messages at a time. Cancel-safe.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn receive_many(
        &self,
        messages: &mut Vec<ReceivedMessage>,
        max_entries: usize,
    ) -> Result<usize, ReceiveError> {
        self.receive_each(max_entries, |view| messages.push(view.to_message()))
            .await
    }

    /// The next entry as it lies in the topic, whole batches and single chunks included. Its checksum is not verified.
    /// Not to be mixed with the other ways to receive. Cancel-safe.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn recv_entry(&self) -> Result<RawEntry, ReceiveError> {
        self.receive(|topic| topic.receive_entry()).await
    }

    async fn receive<T>(
        &self,
        mut take: impl FnMut(&Arc<TopicConsumer>) -> Option<T>,
    ) -> Result<T, ReceiveError> {
        let set = self.set();
        loop {
            let mut changed = std::pin::pin!(set.ready.changed());
            changed.as_mut().enable();
            while let Some(topic) = set.ready.pop() {
                let taken = take(&topic);
                set.make_room_for_chunks();
                if let Some(taken) = taken {
                    if set.shared.options.receiver_queue_size == 0 {
                        // One message was asked for, whoever waits. The next one asks for the next.
                        set.ready.wake_one();
                    }
                    return Ok(taken);
                }
            }
            if let Some(error) = set.over() {
                return Err(error);
            }
            set.want_one();
            changed.await;
        }
    }

    /// Acknowledges a message. With [`ConsumerOptions::ack_receipt`] it waits for the broker's answer, else it only collects;
    /// messages of a batch whose others are not acknowledged yet are not waited for.
    ///
    /// # Errors
    /// See [`AckError`].
    pub async fn ack(&self, message: impl HasMessageId) -> Result<(), AckError> {
        let topic = self.set().topic_of(&message)?;
        let receipt = topic.acknowledge(&mut std::iter::once(message.message_id()))?;
        answer(receipt).await
    }

    /// As [`ack`](Self::ack) without waiting: what it would wait for is the receipt. It comes with the others of
    /// [`ConsumerOptions::ack_grouping`], or soon after [`flush_acks`](Self::flush_acks).
    ///
    /// # Errors
    /// See [`AckError`].
    pub fn ack_later(&self, message: impl HasMessageId) -> Result<AckReceipt, AckError> {
        let topic = self.set().topic_of(&message)?;
        let answer = topic.acknowledge(&mut std::iter::once(message.message_id()))?;
        Ok(AckReceipt { answer })
    }

    /// As [`ack_later`](Self::ack_later), with the entries that are acknowledged as a whole by that: all of a message in
    /// chunks, and of a batch its entry if none of its messages is left. Whoever does not get the answer acknowledges these
    /// again.
    ///
    /// # Errors
    /// See [`AckError`].
    pub(crate) fn ack_entries_later(
        &self,
        message: impl HasMessageId,
    ) -> Result<(AckReceipt, Vec<(u64, u64)>), AckError> {
        let topic = self.set().topic_of(&message)?;
        let (answer, entries) = topic.acknowledge_entries(message.message_id())?;
        Ok((AckReceipt { answer }, entries))
    }

    /// Acknowledges messages of one topic. Without [`ConsumerOptions::ack_receipt`] it never waits.
    ///
    /// # Errors
    /// See [`AckError`]; some of them may be acknowledged then.
    pub async fn ack_many<M: HasMessageId>(&self, messages: &[M]) -> Result<(), AckError> {
        let Some(first) = messages.first() else {
            return Ok(());
        };
        let topic = self.set().topic_of(first)?;
        let receipt = topic.acknowledge(&mut messages.iter().map(HasMessageId::message_id))?;
        answer(receipt).await
    }

    /// Acknowledges a message and all of its topic before it.
    ///
    /// # Errors
    /// See [`AckError`].
    pub async fn ack_cumulative(&self, message: impl HasMessageId) -> Result<(), AckError> {
        let topic = self.set().topic_of(&message)?;
        let receipt = topic.acknowledge_cumulative(message.message_id())?;
        answer(receipt).await
    }

    /// Has a message delivered again after [`ConsumerOptions::negative_ack_delay`]: of a batch all messages, and where one
    /// consumer reads a topic alone, everything from the first one on that is not acknowledged.
    ///
    /// # Errors
    /// [`AckError::Closed`] and [`AckError::UnknownTopic`].
    pub fn negative_ack(&self, message: impl HasMessageId) -> Result<(), AckError> {
        let topic = self.set().topic_of(&message)?;
        topic.with_state(|state, now| state.acknowledge_negative(message.message_id(), now));
        Ok(())
    }

    /// Has everything delivered again that was delivered to this consumer and not acknowledged.
    pub fn redeliver_all(&self) {
        for topic in self.set().topics() {
            topic.with_state(|state, _| state.redeliver_all());
        }
    }

    /// Sends the acknowledgements that are collected.
    pub fn flush_acks(&self) {
        for topic in self.set().topics() {
            topic.flush_acknowledgements();
        }
    }

    /// Moves the subscription; what comes afterwards is from there. Acknowledgements that were not sent are forgotten.
    ///
    /// By id only in the topic that the id is of, or in all with the earliest or latest one.
    ///
    /// # Errors
    /// [`ClientError::Request`] if the broker refuses: the consumer goes on where it was.
    pub async fn seek(&self, to: SeekTo) -> Result<(), ClientError> {
        self.set().seek(to).await
    }

    /// The last messages of the topics.
    ///
    /// # Errors
    /// That of the first topic that did not answer within `operation_timeout`.
    pub async fn last_message_ids(&self) -> Result<Vec<(Arc<str>, MessageId)>, ClientError> {
        let mut ids = Vec::new();
        for topic in self.set().topics() {
            ids.push((Arc::clone(&topic.text), topic.last_message_id().await?.0));
        }
        Ok(ids)
    }

    /// The last message of the only topic, or of the first one.
    ///
    /// # Errors
    /// As [`last_message_ids`](Self::last_message_ids); [`ClientError::NotConnected`] without a topic.
    pub async fn last_message_id(&self) -> Result<MessageId, ClientError> {
        let topic = self.set().topics().into_iter().next();
        let topic = topic.ok_or(ClientError::NotConnected)?;
        Ok(topic.last_message_id().await?.0)
    }

    /// Whether there is a message that was not received yet, here or at a broker.
    ///
    /// # Errors
    /// That of the first topic that did not answer within `operation_timeout`.
    pub async fn has_message_available(&self) -> Result<bool, ClientError> {
        for topic in self.set().topics() {
            if topic.has_message_available().await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Asks for no more messages; those that were asked for still come.
    pub fn pause(&self) {
        for topic in self.set().topics() {
            topic.with_state(|state, _| state.set_paused(true));
        }
    }

    /// Asks for messages again.
    pub fn resume(&self) {
        for topic in self.set().topics() {
            topic.with_state(|state, _| state.set_paused(false));
        }
    }

    /// Deletes the subscription and closes the consumer. `force`: even if there are other consumers.
    ///
    /// # Errors
    /// That of the first topic where it did not succeed; the consumer is not closed then.
    pub async fn unsubscribe(&self, force: bool) -> Result<(), ClientError> {
        for topic in self.set().topics() {
            topic.unsubscribe(force).await?;
        }
        self.close().await;
        Ok(())
    }

    /// Sends the acknowledgements that are collected and closes the consumer. What was not acknowledged goes to others.
    pub async fn close(&self) {
        self.set().close().await;
    }

    /// The topics, partitions one by one.
    pub fn topics(&self) -> Vec<TopicStatus> {
        let status = |topic: Arc<TopicConsumer>| {
            let inner = topic.inner.lock();
            TopicStatus {
                topic: Arc::clone(&topic.text),
                is_connected: matches!(topic.status(), Status::Connected(_)),
                is_active: inner.state.is_active(),
                has_reached_end: inner.state.has_reached_end(),
                queued_entries: inner.state.queued(),
            }
        };
        self.set().topics().into_iter().map(status).collect()
    }

    /// Entries that could not be read, or that were parts of messages that were never completed, or that gave way to others
    /// and were acknowledged cumulatively before they came again. They were acknowledged all
    /// the same, with the reason where the protocol has one (`validation_error`), as Apache's clients do; each second the
    /// first of them is logged.
    pub fn discarded(&self) -> u64 {
        let notices = &self.set().shared.notices;
        notices.discarded.load(Ordering::Relaxed)
    }

    /// Whether all topics are connected.
    pub fn is_connected(&self) -> bool {
        self.topics().iter().all(|topic| topic.is_connected)
    }

    /// Changes whenever [`topics`](Self::topics) may have: connections, partitions, who is active, the end of a topic.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.set().changes()
    }

    fn set(&self) -> &Arc<ConsumerSet> {
        &self.inner.set
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("topics", &self.set().topics())
            .finish_non_exhaustive()
    }
}

type Answer = tokio::sync::oneshot::Receiver<Result<(), AckError>>;

async fn answer(answer: Option<Answer>) -> Result<(), AckError> {
    AckReceipt { answer }.await
}

/// What a broker answers to an acknowledgement, as a future. Dropped, it is sent all the same.
#[derive(Debug)]
pub struct AckReceipt {
    /// `None`: nothing is waited for.
    answer: Option<Answer>,
}

impl AckReceipt {
    /// The answer, if it is there. Not to be asked again then.
    pub fn try_answer(&mut self) -> Option<Result<(), AckError>> {
        match self.answer.as_mut().map(Answer::try_recv) {
            None => Some(Ok(())),
            Some(Ok(answer)) => Some(answer),
            Some(Err(TryRecvError::Empty)) => None,
            Some(Err(TryRecvError::Closed)) => Some(Err(AckError::Closed)),
        }
    }
}

impl Future for AckReceipt {
    type Output = Result<(), AckError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.answer {
            None => Poll::Ready(Ok(())),
            Some(answer) => Pin::new(answer)
                .poll(context)
                .map(|answer| answer.unwrap_or(Err(AckError::Closed))),
        }
    }
}
