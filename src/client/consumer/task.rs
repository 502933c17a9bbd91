//! The task of a consumer of one topic: subscribes, comes back after the connection was lost, and wakes when something is due.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::{
    error::ReceiveError,
    options::KeySharedPolicy,
    topic::{Attachment, Link, Status, TopicConsumer},
};
use crate::{
    client::{
        backoff::Backoff,
        clock::Deadline,
        connection::Connection,
        error::{ClientError, CloseReason, RequestError},
        pulsar_client::PulsarClient,
        session::{Detached, Session},
    },
    naming::BrokerAddress,
    protocol::{
        command::{Command, name_of},
        proto::pulsar::{
            CommandCloseConsumer, CommandSubscribe, IntRange, KeySharedMeta, KeySharedMode,
            KeyValue, ServerError,
        },
    },
};

/// Tells whether the first subscription succeeded.
pub(super) type Subscribed = oneshot::Sender<Result<(), ClientError>>;

/// See the module.
pub(super) struct TopicTask {
    pub(super) topic: Arc<TopicConsumer>,
    pub(super) client: PulsarClient,
    pub(super) consumer_name: String,
    /// Of the cluster that the topic was migrated to.
    pub(super) migrated: Option<PulsarClient>,
    /// Of the first subscription.
    pub(super) deadline: Deadline,
}

/// Why an attachment is over.
enum Next {
    /// The consumer is to be closed.
    Stop,
    /// Come back, to this broker if one is named.
    Attach(Option<BrokerAddress>),
    /// Come back because of what happened here, a seek or more than there is room for: the broker is well.
    Anew,
    /// Come back to another cluster.
    Migrate(Option<BrokerAddress>),
}

impl TopicTask {
    /// Until the consumer is closed or given up.
    pub(super) async fn run(mut self, subscribed: Subscribed) {
        let mut subscribed = Some(subscribed);
        let topic = Arc::clone(&self.topic);
        let stop = topic.stop.clone();
        let client_stop = self.client.stop().clone();
        let until_closed = async {
            let work = self.subscribe_again_and_again(&mut subscribed);
            tokio::select! {
                biased;
                () = client_stop.cancelled() => ReceiveError::Closed,
                error = work => error,
            }
        };
        let error = until_closed.await;
        debug!(topic = %topic.text, %error, "consumer ended");
        stop.cancel();
        topic.end(error.clone());
        if let Some(subscribed) = subscribed {
            let _ = subscribed.send(Err(match error {
                ReceiveError::Closed => ClientError::Closed,
                ReceiveError::Failed(error) => error,
            }));
        }
    }

    async fn subscribe_again_and_again(
        &mut self,
        subscribed: &mut Option<Subscribed>,
    ) -> ReceiveError {
        let topic = Arc::clone(&self.topic);
        let mut backoff = Backoff::new(self.client.options().backoff, rand::random());
        let deadline = self.deadline;
        let mut last = None;
        let mut assigned = None;
        let mut was_anew = false;
        loop {
            let attach = self.attach(assigned.take());
            let attached = if subscribed.is_none() {
                attach.await
            } else if let Some(attached) = deadline.keep(attach).await {
                attached
            } else {
                return ReceiveError::Failed(deadline.error(last));
            };
            let error = match attached {
                Some(Ok(())) => {
                    if let Some(subscribed) = subscribed.take() {
                        let _ = subscribed.send(Ok(()));
                    }
                    let since = topic.clock.now();
                    let next = self.serve().await;
                    topic.set_status(Status::Connecting);
                    let is_anew = matches!(next, Next::Anew);
                    // Once more soon after it: a broker that sends too much again and again is given time.
                    let is_at_once = is_anew && !std::mem::replace(&mut was_anew, is_anew);
                    match next {
                        Next::Stop => {
                            self.close().await;
                            return ReceiveError::Closed;
                        }
                        Next::Attach(broker) => assigned = broker,
                        Next::Anew => {}
                        Next::Migrate(to) => self.migrate(to),
                    }
                    drop(topic.unlink());
                    if topic.clock.now().saturating_sub(since) >= STABLE {
                        backoff.reset();
                        was_anew = false;
                        continue;
                    }
                    if is_at_once {
                        continue;
                    }
                    backoff.ease(STABLE);
                    None
                }
                Some(Err(error)) => Some(error),
                None => return ReceiveError::Closed,
            };
            let delay = backoff.next().unwrap_or(STABLE);
            if let Some(error) = error {
                debug!(topic = %topic.text, %error, ?delay, "cannot subscribe");
                let is_first = subscribed.is_some();
                // Also what is no fault of the moment: rights may be given back, as Apache's clients have it.
                if !is_first && let Some(untold) = topic.notices.lost.pass(topic.clock.now()) {
                    warn!(topic = %topic.text, %error, untold,
                        "a consumer cannot subscribe again and goes on trying");
                }
                if is_first && !error.is_retryable() {
                    return ReceiveError::Failed(error);
                }
                if is_first && delay >= deadline.left() {
                    return ReceiveError::Failed(deadline.error(Some(error)));
                }
                if error.server_error() == Some(ServerError::TopicNotFound) {
                    warn!(topic = %topic.text, "the topic of a consumer is gone");
                    return ReceiveError::Failed(error);
                }
                last = Some(error);
            }
            let pause = topic.stop.run_until_cancelled(tokio::time::sleep(delay));
            if pause.await.is_none() {
                return ReceiveError::Closed;
            }
        }
    }

    /// Subscribes once. `None`: the consumer is to be closed.
    async fn attach(&mut self, assigned: Option<BrokerAddress>) -> Option<Result<(), ClientError>> {
        let topic = Arc::clone(&self.topic);
        let way = self.migrated.as_ref().unwrap_or(&self.client);
        let session = way.session_for(&topic.name, assigned);
        let session = match topic.stop.run_until_cancelled(session).await? {
            Ok(session) => session,
            Err(error) => return Some(Err(error)),
        };
        topic
            .stop
            .clone()
            .run_until_cancelled(self.subscribe(session))
            .await
    }

    async fn subscribe(&mut self, session: Session) -> Result<(), ClientError> {
        let topic = &self.topic;
        let consumer_id = self.client.next_id();
        let ticket = topic.begin_attachment(consumer_id);
        let attachment = Attachment {
            topic: Arc::clone(topic),
            ticket,
        };
        let route = session
            .attach_consumer(consumer_id, Arc::new(attachment))
            .ok_or(RequestError::Closed(CloseReason::EndOfStream))?;
        let mut unanswered = CloseOnDrop {
            connection: Some(session.connection().clone()),
            consumer_id,
            tracker: self.client.tracker().clone(),
        };
        let command = Command::from(self.subscribe_command(consumer_id));
        match session.connection().request(command).await {
            Ok(Command::Success(_)) => unanswered.connection = None,
            Ok(answer) => {
                return Err(ClientError::UnexpectedAnswer(name_of(
                    answer.command_type(),
                )));
            }
            // Whether it was carried out is not known then: it is closed to be sure.
            Err(error @ RequestError::Timeout(_)) => return Err(error.into()),
            Err(error) => {
                unanswered.connection = None;
                return Err(error.into());
            }
        }
        topic.attached(Link {
            session,
            consumer_id,
            ticket,
            _route: route,
        });
        Ok(())
    }

    fn subscribe_command(&self, consumer_id: u64) -> CommandSubscribe {
        let options = &self.topic.options;
        let pairs = |pairs: &[(String, String)]| {
            let pair = |(key, value): &(String, String)| KeyValue {
                key: key.clone(),
                value: value.clone(),
            };
            pairs.iter().map(pair).collect()
        };
        let inner = self.topic.inner.lock();
        // Back from when the consumer was made, and only until something was received: then the position is known.
        let rollback = options
            .start_rollback
            .filter(|_| inner.state.is_untouched())
            .map(|rollback| rollback.saturating_add(self.topic.clock.now()).as_secs());
        CommandSubscribe {
            topic: self.topic.text.to_string(),
            subscription: options.subscription.clone(),
            sub_type: options.subscription_type.into(),
            consumer_id,
            request_id: 0,
            consumer_name: Some(self.consumer_name.clone()),
            priority_level: Some(options.priority_level),
            durable: Some(options.durable),
            start_message_id: inner.state.start_message_id(),
            metadata: pairs(&options.properties),
            read_compacted: Some(options.read_compacted),
            schema: options.schema.clone(),
            initial_position: Some(options.initial_position.into()),
            replicate_subscription_state: options.replicate_subscription_state,
            force_topic_creation: Some(options.force_topic_creation),
            start_message_rollback_duration_sec: rollback,
            key_shared_meta: options.key_shared.as_ref().map(key_shared_meta),
            subscription_properties: pairs(&options.subscription_properties),
            consumer_epoch: inner.state.epoch(),
        }
    }

    /// While attached: wakes for what is due.
    async fn serve(&self) -> Next {
        let topic = &self.topic;
        loop {
            let woken = topic.wake.notified();
            let armed = {
                let now = topic.clock.now();
                let mut inner = topic.inner.lock();
                match inner.detached.take() {
                    Some(Detached::ByBroker { assigned }) => return Next::Attach(assigned),
                    Some(Detached::Migrated { to }) => return Next::Migrate(to),
                    Some(Detached::Disconnected(reason)) => {
                        if let Some(untold) = topic.notices.lost.pass(now) {
                            warn!(topic = %topic.text, %reason, untold,
                                "a consumer lost its connection and looks for its broker");
                        }
                        return Next::Attach(None);
                    }
                    None => {}
                }
                if inner.reattach {
                    None
                } else {
                    let is_full = topic.send_if_due(&mut inner, now);
                    let connection = inner.link.as_ref().map(|link| link.session.connection());
                    let full = connection.filter(|_| is_full).cloned();
                    inner.armed = inner.deadline().filter(|_| full.is_none());
                    Some((inner.armed, full))
                }
            };
            let Some((deadline, full)) = armed else {
                self.close().await;
                return Next::Anew;
            };
            tokio::select! {
                biased;
                () = topic.stop.cancelled() => return Next::Stop,
                () = woken => {}
                () = topic.clock.sleep_until(deadline) => {}
                () = room(full.as_ref()), if full.is_some() => {}
            }
        }
    }

    /// Sends what was acknowledged and closes the consumer at the broker.
    async fn close(&self) {
        let topic = &self.topic;
        topic.drain().await;
        let (connection, consumer_id) = {
            let inner = topic.inner.lock();
            let Some(link) = &inner.link else { return };
            if inner.is_unsubscribed || !inner.state.is_of_this_attachment(link.ticket) {
                return;
            }
            (link.session.connection().clone(), link.consumer_id)
        };
        close_consumer(connection, consumer_id).await;
    }

    /// From now on topics are looked up in the cluster that this broker is of (PIP-188).
    fn migrate(&mut self, to: Option<BrokerAddress>) {
        let Some(to) = to else { return };
        debug!(topic = %self.topic.text, cluster = %to, "topic migrated to another cluster");
        self.migrated = Some(self.client.migrated_to(&to));
    }
}

fn key_shared_meta(policy: &KeySharedPolicy) -> KeySharedMeta {
    match policy {
        KeySharedPolicy::AutoSplit { allow_out_of_order } => KeySharedMeta {
            key_shared_mode: KeySharedMode::AutoSplit.into(),
            hash_ranges: Vec::new(),
            allow_out_of_order_delivery: Some(*allow_out_of_order),
        },
        KeySharedPolicy::Sticky {
            ranges,
            allow_out_of_order,
        } => KeySharedMeta {
            key_shared_mode: KeySharedMode::Sticky.into(),
            hash_ranges: ranges
                .iter()
                .map(|(start, end)| IntRange {
                    start: (*start).into(),
                    end: (*end).into(),
                })
                .collect(),
            allow_out_of_order_delivery: Some(*allow_out_of_order),
        },
    }
}

async fn room(connection: Option<&Connection>) {
    if let Some(connection) = connection {
        connection.room().await;
    }
}

/// Asks the broker to close a consumer and waits a while for it to do so.
async fn close_consumer(connection: Connection, consumer_id: u64) {
    let close = Command::from(CommandCloseConsumer {
        consumer_id,
        request_id: 0,
        ..CommandCloseConsumer::default()
    });
    // A broker that does not answer, or refuses, ends the consumer with the connection.
    match tokio::time::timeout(CLOSE_TIMEOUT, connection.request(close)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => debug!(%error, "consumer not closed by its broker"),
        Err(_) => debug!("consumer not closed by its broker in time"),
    }
}

/// Closes a consumer that may or may not be there.
struct CloseOnDrop {
    /// `None`: nothing is to be done.
    connection: Option<Connection>,
    consumer_id: u64,
    tracker: TaskTracker,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.tracker
                .spawn(close_consumer(connection, self.consumer_id));
        }
    }
}

/// An attachment that lasted this long was a good one: the next attempt is made at once.
const STABLE: Duration = Duration::from_secs(1);

/// How long closing waits for the broker.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
