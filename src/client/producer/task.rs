//! The life of a producer of one topic: finding its broker, getting back to it, timers, the end.
//!
//! Owns nothing but the route of the present connection; what is shared is in `topic_producer.rs`.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::{error::SendError, state::Opened, topic_producer::TopicProducer};
use crate::{
    client::{
        backoff::Backoff,
        clock::Deadline,
        connection::Connection,
        error::{ClientError, CloseReason, RequestError},
        pulsar_client::PulsarClient,
        session::{Detached, Route},
    },
    naming::BrokerAddress,
    net::{OutboundError, Outgoing},
    protocol::{
        command::{Command, name_of},
        proto::pulsar::{
            CommandCloseProducer, CommandProducer, KeyValue, ProducerAccessMode, ServerError,
        },
    },
};

/// The task of one producer; made with the first connection.
pub(crate) struct ProducerTask {
    producer: Arc<TopicProducer>,
    client: PulsarClient,
    /// Counts connections: brokers prefer the newer of two that claim the same name.
    epoch: u64,
    backoff: Backoff,
    /// The place at the present connection.
    route: Option<Route>,
    /// A CLOSE_PRODUCER that waits for room on its connection. Behind the next PRODUCER it would close that one.
    closing: Mutex<Option<JoinHandle<()>>>,
}

impl ProducerTask {
    /// Nothing is done yet: see [`create`](Self::create).
    pub(crate) fn new(producer: Arc<TopicProducer>, client: PulsarClient) -> Self {
        let seed = producer.clock.random();
        let backoff = Backoff::new(client.options().backoff, seed);
        Self {
            producer,
            client,
            epoch: 0,
            backoff,
            route: None,
            closing: Mutex::new(None),
        }
    }

    /// What it is the task of.
    pub(crate) fn producer(&self) -> &Arc<TopicProducer> {
        &self.producer
    }

    /// Opens the producer for the first time, again while the error may pass, until the deadline. Cancel-safe.
    ///
    /// # Errors
    /// The last error, or that of the first attempt that will not pass.
    pub(crate) async fn create(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        let mut last = None;
        let stop = self.producer.stop.clone();
        let waits = self.producer.options.access_mode == ProducerAccessMode::WaitForExclusive;
        let attempts = async {
            loop {
                match self.open(None).await {
                    Ok(()) => return Ok(()),
                    Err(error) if !error.is_retryable() => return Err(error),
                    Err(error) => last = Some(error),
                }
                let delay = self.backoff.next().unwrap_or(Duration::MAX);
                tokio::time::sleep(delay).await;
            }
        };
        let attempts = async {
            if waits {
                // Waiting for its turn has no limit, and a connection may be lost meanwhile.
                Some(attempts.await)
            } else {
                deadline.keep(attempts).await
            }
        };
        let result = match stop.run_until_cancelled(attempts).await {
            Some(Some(result)) => result,
            Some(None) => Err(deadline.error(last)),
            None => Err(ClientError::Closed),
        };
        self.backoff.reset();
        result
    }

    /// Runs until the producer ends; then nothing waits any more.
    pub(crate) async fn run(mut self) {
        let producer = Arc::clone(&self.producer);
        let timers = async {
            loop {
                producer.timer().await;
                producer.on_time();
            }
        };
        let stop = producer.stop.clone();
        let error = tokio::select! {
            biased;
            () = stop.cancelled() => SendError::Closed,
            error = self.stay_open() => error,
            () = timers => SendError::Closed,
        };
        self.finish(error);
    }

    /// The producer ends, at the broker as well.
    fn finish(&mut self, error: SendError) {
        if let Some(connection) = self.producer.connection() {
            abandon(&connection, self.producer.id, self.client.tracker());
        }
        self.route = None;
        self.producer.end(error);
        self.producer.stop.cancel();
    }

    /// Gets back to a broker whenever the connection is lost; returns when that cannot be.
    async fn stay_open(&mut self) -> SendError {
        loop {
            let since = self.producer.clock.now();
            let detached = self.producer.wait_detached().await;
            self.route = None;
            let lasted = self.producer.clock.now().saturating_sub(since);
            // A broker that closes it again and again gets about an attempt a second, and so does a topic that moves as often.
            let mut is_stable = lasted >= STABLE;
            if is_stable {
                self.backoff.reset();
            } else {
                self.backoff.ease(STABLE);
            }
            let mut assigned = match detached {
                Detached::ByBroker { assigned } => assigned,
                Detached::Migrated { to } => {
                    if let Some(address) = &to {
                        self.client = self.client.migrated_to(address);
                    }
                    None
                }
                Detached::Disconnected(reason) => {
                    debug!(topic = %self.producer.topic, %reason, "a producer lost its connection");
                    None
                }
            };
            loop {
                if assigned.is_none() || !std::mem::take(&mut is_stable) {
                    let Some(delay) = self.backoff.next() else {
                        return SendError::Closed;
                    };
                    tokio::time::sleep(delay).await;
                }
                match self.open(assigned.take()).await {
                    Ok(()) => break,
                    Err(error) => {
                        if let Some(error) = final_error(&error) {
                            warn!(topic = %self.producer.topic, %error, "a producer has ended");
                            return error;
                        }
                        debug!(topic = %self.producer.topic, %error, "a producer could not get back");
                        self.producer.note_problem(error.clone());
                        if error.server_error()
                            == Some(ServerError::ProducerBlockedQuotaExceededException)
                        {
                            // The quota's policy is to refuse what comes, not the producer (`producer_exception`).
                            self.producer.fail_pending(&SendError::Client(error));
                        }
                    }
                }
            }
        }
    }

    /// One attempt to open the producer at its broker.
    async fn open(&mut self, assigned: Option<BrokerAddress>) -> Result<(), ClientError> {
        let closing = self.closing.get_mut().take();
        if let Some(closing) = closing {
            // It ends within the time of a request, and how it ended makes no difference.
            let _ = closing.await;
        }
        let producer = &self.producer;
        // Connecting takes much room, and a producer is connected most of the time.
        let session = Box::pin(self.client.session_for(&producer.topic, assigned)).await?;
        let connection = session.connection();
        let lost = || ClientError::Request(RequestError::Closed(CloseReason::EndOfStream));
        let route = session.attach_producer(producer.id, producer.attach());
        let route = route.ok_or_else(lost)?;
        let mut abandoned = Abandoned {
            connection: Some(connection),
            producer_id: producer.id,
            tracker: self.client.tracker(),
            closing: &self.closing,
        };
        let answer = connection.request(self.command()).await;
        self.epoch += 1;
        let success = match answer {
            Ok(Command::ProducerSuccess(success)) => success,
            Ok(other) => {
                return Err(ClientError::UnexpectedAnswer(name_of(other.command_type())));
            }
            Err(error @ RequestError::Timeout(_)) => return Err(error.into()),
            Err(error) => {
                abandoned.connection = None;
                return Err(error.into());
            }
        };
        let max_message_size = connection.connected().max_message_size;
        let opened = Opened {
            name: success.producer_name,
            last_sequence_id: success
                .last_sequence_id
                .and_then(|last| u64::try_from(last).ok()),
            schema_version: success
                .schema_version
                .filter(|version| producer.options.schema.is_some() && !version.is_empty()),
            max_message_size: max_message_size
                .and_then(|size| usize::try_from(size).ok())
                .filter(|size| *size > 0)
                .unwrap_or(MAX_MESSAGE_SIZE),
        };
        if !producer.opened(opened, success.topic_epoch, connection.clone()) {
            return Err(lost());
        }
        abandoned.connection = None;
        self.route = Some(route);
        Ok(())
    }

    fn command(&self) -> Command {
        let producer = &self.producer;
        let options = &producer.options;
        let name = producer.name();
        let name = options
            .name
            .clone()
            .or(Some(name).filter(|name| !name.is_empty()));
        Command::from(CommandProducer {
            topic: producer.topic.to_string(),
            producer_id: producer.id,
            producer_name: name,
            metadata: options
                .properties
                .iter()
                .map(|(key, value)| KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect(),
            schema: options.schema.clone(),
            epoch: Some(self.epoch),
            user_provided_producer_name: Some(options.name.is_some()),
            producer_access_mode: Some(options.access_mode.into()),
            topic_epoch: producer.topic_epoch(),
            initial_subscription_name: options.initial_subscription.clone(),
            ..CommandProducer::default()
        })
    }
}

impl Drop for ProducerTask {
    fn drop(&mut self) {
        self.finish(SendError::Closed);
    }
}

/// Tells the broker to forget a producer, if it is dropped with a connection: a PRODUCER that nobody waits for any more may
/// have been carried out, and its name would stay taken.
struct Abandoned<'a> {
    connection: Option<&'a Connection>,
    producer_id: u64,
    tracker: &'a TaskTracker,
    closing: &'a Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection {
            *self.closing.lock() = abandon(connection, self.producer_id, self.tracker);
        }
    }
}

/// Closes a producer at the broker without waiting for the answer, which is discarded. Where the connection has no room
/// now, a task waits for it as long as a request may take, and is returned.
fn abandon(
    connection: &Connection,
    producer_id: u64,
    tracker: &TaskTracker,
) -> Option<JoinHandle<()>> {
    let command = Command::from(CommandCloseProducer {
        producer_id,
        request_id: NOBODYS_REQUEST_ID,
        ..CommandCloseProducer::default()
    });
    match connection.send(Outgoing::Command(&command)) {
        // On a closed connection there is nothing to close.
        Ok(()) | Err(OutboundError::Closed) => return None,
        Err(OutboundError::Full) => {}
    }
    // Outside a runtime nothing is left that the connection could be written by.
    let runtime = Handle::try_current().ok()?;
    let connection = connection.clone();
    let closing = async move {
        if let Err(error) = connection.request(command).await {
            debug!(%error, producer_id, "a producer could not be closed at its broker");
        }
    };
    Some(tracker.spawn_on(closing, &runtime))
}

/// Closes a producer at its broker and waits for the answer.
pub(crate) async fn close(producer: &TopicProducer) -> Result<(), ClientError> {
    let Some(connection) = producer.connection() else {
        return Ok(());
    };
    let command = Command::from(CommandCloseProducer {
        producer_id: producer.id,
        ..CommandCloseProducer::default()
    });
    match connection.request(command).await {
        // With its connection the producer is gone as well.
        Ok(_) | Err(RequestError::Closed(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What ends a producer that was open before. All else may pass, also what is no fault of the moment: an administrator may
/// give rights back. Messages fail by their time.
fn final_error(error: &ClientError) -> Option<SendError> {
    match error.server_error() {
        Some(ServerError::ProducerFenced) => Some(SendError::Fenced),
        Some(ServerError::TopicTerminatedError) => Some(SendError::Terminated),
        Some(ServerError::TopicNotFound) => Some(SendError::Client(error.clone())),
        _ if matches!(error, ClientError::Closed) => Some(SendError::Closed),
        _ => None,
    }
}

/// The largest message where CONNECTED does not tell it (`Commands.DEFAULT_MAX_MESSAGE_SIZE`).
const MAX_MESSAGE_SIZE: usize = 5 * 1024 * 1024;
/// A connection that lasted as long is no reason to be careful with the next one.
const STABLE: Duration = Duration::from_secs(1);
/// An id that no request gets.
const NOBODYS_REQUEST_ID: u64 = 0x7fff_ffff_ffff_ffff;
