//! The producer of one topic or one partition: what its handles, its task and its connection share.
//!
//! All decisions are in `state.rs`. A lock guards it; it is held for the time of an encoding, never over an await, and
//! what became of messages is told after it was released.
// hot path

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    error::SendError,
    options::{Acknowledgement, OutgoingMessage, ProducerOptions, RawEntry, ReceiptSink, Tokens},
    state::{self, AfterSendError, Flush, Now, Outcome, Outgoing, ProducerState, StateOptions},
};
use crate::{
    client::{
        clock::Clock,
        connection::Connection,
        error::{ClientError, CloseReason, RequestError},
        handshake::server_error,
        message_id::MessageId,
        session::{Detached, ProducerEvents},
    },
    naming::TopicName,
    net::{self, OutboundError},
    protocol::proto::pulsar::{CommandSendError, CommandSendReceipt, ServerError},
};

/// The receipt of one message, as a future. Dropped, the message is sent all the same.
#[derive(Debug)]
pub struct Receipt {
    receiver: oneshot::Receiver<Result<MessageId, SendError>>,
}

impl Future for Receipt {
    type Output = Result<MessageId, SendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver)
            .poll(context)
            .map(|result| result.unwrap_or(Err(SendError::Closed)))
    }
}

/// Who is told what became of a message.
#[derive(Debug)]
pub(crate) enum Completion {
    Waiter(oneshot::Sender<Result<MessageId, SendError>>),
    Token(u64),
}

/// See the module.
pub(crate) struct TopicProducer {
    pub(crate) topic: TopicName,
    pub(crate) id: u64,
    pub(crate) options: Arc<ProducerOptions>,
    pub(crate) clock: Clock,
    state_options: StateOptions,
    locked: Mutex<Locked>,
    sink: Option<Arc<dyn ReceiptSink>>,
    /// Told when a deadline or the need for room on the connection is new.
    timers: Notify,
    /// Told when the connection is gone.
    detached: Notify,
    /// Told when there is room, when entries that a flush waits for are done, and at the end.
    progress: Notify,
    /// Cancelled when the producer is to end.
    pub(crate) stop: CancellationToken,
}

struct Locked {
    state: ProducerState<Completion>,
    /// The connection that has the producer.
    link: Option<Connection>,
    /// Counts connections; events of an earlier one mean nothing.
    generation: u64,
    /// Why the connection of this generation is gone.
    detached: Option<Detached>,
    /// The connection took no more: its room is to be waited for.
    is_outbound_full: bool,
    /// Until when the task sleeps.
    armed: Option<Duration>,
    is_room_wanted: bool,
    /// The ordinal that somebody waits for.
    flush_goal: Option<u64>,
    topic_epoch: Option<u64>,
}

/// Room for what became of messages, used again and again.
#[derive(Default)]
struct Told {
    outcomes: Vec<Outcome<Completion>>,
    acknowledgements: Vec<Acknowledgement>,
}

/// The connection's way to tell the producer; one for each time it is opened.
pub(crate) struct Attachment {
    producer: Arc<TopicProducer>,
    generation: u64,
    told: Mutex<Told>,
}

impl TopicProducer {
    pub(crate) fn new(
        topic: TopicName,
        id: u64,
        options: Arc<ProducerOptions>,
        sink: Option<Arc<dyn ReceiptSink>>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let state_options = StateOptions {
            producer_id: id,
            partition: topic.partition(),
            batching: options.batching,
            compression: options.compression,
            compression_min_size: options.compression_min_size,
            chunking: options.chunking,
            chunk_max_size: options.chunk_max_size,
            max_pending: options.max_pending.max(1),
            max_pending_bytes: options.max_pending_bytes,
            send_timeout: options.send_timeout,
            initial_sequence_id: options.initial_sequence_id,
        };
        Arc::new(Self {
            topic,
            id,
            options,
            clock: Clock::new(),
            locked: Mutex::new(Locked {
                state: ProducerState::new(state_options.clone()),
                link: None,
                generation: 0,
                detached: None,
                is_outbound_full: false,
                armed: None,
                is_room_wanted: false,
                flush_goal: None,
                topic_epoch: None,
            }),
            state_options,
            sink,
            timers: Notify::new(),
            detached: Notify::new(),
            progress: Notify::new(),
            stop,
        })
    }

    fn now(&self) -> Now {
        Now {
            elapsed: self.clock.now(),
            publish_time: self.clock.publish_time(),
        }
    }

    /// Enqueues a message if there is room, with its receipt to come.
    pub(crate) fn try_enqueue(&self, message: OutgoingMessage) -> Result<Receipt, SendError> {
        let (sender, receiver) = oneshot::channel();
        let (outgoing, payload_len) = self.prepare(message)?;
        let mut completion = Some(Completion::Waiter(sender));
        self.with_state(|state, now| {
            if state.ended().is_none() && state.room(payload_len) == 0 {
                state.flush_batches(now);
                return Err(SendError::QueueFull);
            }
            let take = |_| completion.take().expect("one message has one completion");
            state.push(outgoing, now, take)
        })?;
        Ok(Receipt { receiver })
    }

    /// As [`try_enqueue`](Self::try_enqueue), waiting for room. Cancel-safe: then the message was not enqueued.
    pub(crate) async fn enqueue(&self, message: OutgoingMessage) -> Result<Receipt, SendError> {
        let (outgoing, payload_len) = self.prepare(message)?;
        let mut outgoing = Some(outgoing);
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            let receipt = self.with_locked(|locked, now| {
                let state = &mut locked.state;
                if state.ended().is_none() && state.room(payload_len) == 0 {
                    // What waits in a batch would only wait for its time.
                    state.flush_batches(now);
                    locked.is_room_wanted = true;
                    return Ok(None);
                }
                let (sender, receiver) = oneshot::channel();
                let mut completion = Some(Completion::Waiter(sender));
                let take = |_| completion.take().expect("one message has one completion");
                let outgoing = outgoing.take().expect("the loop ends with the first push");
                state.push(outgoing, now, take)?;
                Ok(Some(Receipt { receiver }))
            });
            if let Some(receipt) = receipt? {
                return Ok(receipt);
            }
            progress.await;
        }
    }

    /// Enqueues up to `count` messages that differ in nothing but their sequence ids and tokens; says how many there was
    /// room for.
    pub(crate) fn enqueue_many(
        &self,
        message: OutgoingMessage,
        count: usize,
        tokens: Tokens,
    ) -> Result<usize, SendError> {
        let (mut outgoing, payload_len) = self.prepare(message)?;
        self.with_state(|state, now| {
            let wanted = count;
            let count = state.room(payload_len).min(wanted);
            let token = |index: usize| {
                let index = u64::try_from(index).unwrap_or(u64::MAX);
                let offset = tokens.step.wrapping_mul(index);
                Completion::Token(tokens.first.wrapping_add(offset))
            };
            if count == 0 {
                return state.ended().cloned().map_or(Ok(0), Err);
            }
            outgoing.count = count;
            state.push(outgoing, now, token)?;
            if count < wanted {
                // The caller will wait for room, and batches in the making make none.
                state.flush_batches(now);
            }
            Ok(count)
        })
    }

    /// Enqueues an entry as it is, if there is room.
    pub(crate) fn send_entry(&self, entry: RawEntry) -> Result<(), SendError> {
        self.with_state(|state, now| {
            if state.ended().is_none() && state.room(entry.headers_and_payload.len()) == 0 {
                return Err(SendError::QueueFull);
            }
            let token = Completion::Token(entry.token);
            state.push_raw(entry, now, token)
        })
    }

    /// Compresses what does not become part of a batch, without holding the lock.
    fn prepare(&self, message: OutgoingMessage) -> Result<(Outgoing, usize), SendError> {
        let (mut metadata, mut payload, sequence_id) = message.into_parts();
        let batching = self.state_options.batching.as_ref();
        if !ProducerState::<Completion>::is_for_batch(batching, &metadata, payload.len()) {
            payload = state::compress(&self.state_options, &mut metadata, payload)?;
        }
        let payload_len = payload.len();
        let outgoing = Outgoing {
            metadata,
            payload,
            sequence_id,
            count: 1,
        };
        Ok((outgoing, payload_len))
    }

    /// Waits until at most half of the queue is taken. Cancel-safe.
    pub(crate) async fn ready(&self) -> Result<(), SendError> {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            {
                let mut locked = self.locked.lock();
                if let Some(ended) = locked.state.ended() {
                    return Err(ended.clone());
                }
                if locked.state.is_half_empty() {
                    return Ok(());
                }
                locked.is_room_wanted = true;
            }
            progress.await;
        }
    }

    /// Sends the batches in the making; what was enqueued before is to be waited for.
    pub(crate) fn begin_flush(&self) -> Result<Flush, SendError> {
        self.with_state(|state, now| match state.ended() {
            Some(ended) => Err(ended.clone()),
            None => Ok(state.begin_flush(now)),
        })
    }

    /// Waits until all messages of a flush are answered. Cancel-safe.
    pub(crate) async fn flushed(&self, flush: Flush) -> Result<(), SendError> {
        self.wait_flushed(flush, |_| true).await
    }

    /// As [`flushed`](Self::flushed), but gives up when the connection is gone.
    pub(crate) async fn flushed_while_connected(&self, flush: Flush) -> Result<(), SendError> {
        self.wait_flushed(flush, |locked| locked.link.is_some())
            .await
    }

    async fn wait_flushed(
        &self,
        flush: Flush,
        go_on: impl Fn(&Locked) -> bool,
    ) -> Result<(), SendError> {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            {
                let mut locked = self.locked.lock();
                if locked.state.first_ordinal() >= flush.end() {
                    return flush.result();
                }
                if !go_on(&locked) {
                    return Err(SendError::Closed);
                }
                let goal = locked.flush_goal.unwrap_or(u64::MAX);
                locked.flush_goal = Some(goal.min(flush.end()));
            }
            progress.await;
        }
    }

    fn with_state<T>(
        &self,
        change: impl FnOnce(&mut ProducerState<Completion>, Now) -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        self.with_locked(|locked, now| change(&mut locked.state, now))
    }

    /// Changes the state, gives the connection what is new, wakes the task if it is to wake earlier, and tells what became of
    /// messages.
    fn with_locked<T>(
        &self,
        change: impl FnOnce(&mut Locked, Now) -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        let mut told = Told::default();
        let now = self.now();
        let result = {
            let mut locked = self.locked.lock();
            let result = change(&mut locked, now);
            self.after(&mut locked, &mut told);
            result
        };
        self.tell(&mut told);
        result
    }

    /// What follows every change of the state.
    fn after(&self, locked: &mut Locked, told: &mut Told) {
        locked.state.take_outcomes(&mut told.outcomes);
        let was_full = locked.is_outbound_full;
        locked.send_on();
        let deadline = locked.state.deadline();
        let is_earlier = match (deadline, locked.armed) {
            (Some(deadline), Some(armed)) => deadline < armed,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if is_earlier || (locked.is_outbound_full && !was_full) {
            locked.armed = deadline;
            self.timers.notify_one();
        }
        let has_room = locked.is_room_wanted && locked.state.is_half_empty();
        let is_flushed = |goal| locked.state.first_ordinal() >= goal;
        let is_goal_reached = locked.flush_goal.is_some_and(is_flushed);
        if has_room || is_goal_reached || locked.state.ended().is_some() {
            locked.is_room_wanted = false;
            locked.flush_goal = None;
            self.progress.notify_waiters();
        }
    }

    fn tell(&self, told: &mut Told) {
        for Outcome { completion, result } in told.outcomes.drain(..) {
            match completion {
                // Nobody may be interested in the receipt.
                Completion::Waiter(sender) => drop(sender.send(result)),
                Completion::Token(token) => {
                    told.acknowledgements
                        .push(Acknowledgement { token, result });
                }
            }
        }
        if !told.acknowledgements.is_empty()
            && let Some(sink) = &self.sink
        {
            sink.on_receipts(&told.acknowledgements);
        }
        told.acknowledgements.clear();
    }

    /// Whatever waits fails with this; the producer goes on.
    pub(crate) fn fail_pending(&self, error: &SendError) {
        let _ = self.with_state(|state, _| {
            state.fail_everything(error);
            Ok(())
        });
    }

    /// Why messages may have no receipt yet.
    pub(crate) fn note_problem(&self, problem: ClientError) {
        self.locked.lock().state.note_problem(problem);
    }

    /// The producer ends: whatever waits fails with this.
    pub(crate) fn end(&self, error: SendError) {
        let _ = self.with_locked(|locked, _| {
            locked.state.end(error);
            locked.link = None;
            Ok(())
        });
    }

    /// Sends and gives up what is due. To be called when [`timer`](Self::timer) is over.
    pub(crate) fn on_time(&self) {
        let _ = self.with_locked(|locked, now| {
            locked.armed = None;
            locked.is_outbound_full = false;
            locked.state.on_time(now);
            if locked.state.deadline().is_none() {
                locked.state.release_buffer();
            }
            Ok(())
        });
    }

    /// Waits until [`on_time`](Self::on_time) is to be called. Cancel-safe.
    pub(crate) async fn timer(&self) {
        loop {
            let (deadline, connection) = {
                let mut locked = self.locked.lock();
                locked.armed = locked.state.deadline();
                let connection = locked.link.clone();
                (locked.armed, connection.filter(|_| locked.is_outbound_full))
            };
            let sleep = self.clock.sleep_until(deadline);
            let room = async {
                match &connection {
                    // When it closes, the producer is detached as well.
                    Some(connection) if connection.outbound().ready().await.is_ok() => {}
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.timers.notified() => {}
                () = sleep => return,
                () = room => return,
            }
        }
    }

    /// Begins another connection; events of earlier ones mean nothing from now on.
    pub(crate) fn attach(self: &Arc<Self>) -> Arc<Attachment> {
        let mut locked = self.locked.lock();
        locked.generation += 1;
        locked.detached = None;
        locked.link = None;
        locked.state.detach();
        Arc::new(Attachment {
            producer: Arc::clone(self),
            generation: locked.generation,
            told: Mutex::default(),
        })
    }

    /// The broker took the producer: sends what waits. `false` when the connection was lost meanwhile.
    pub(crate) fn opened(
        &self,
        opened: state::Opened,
        topic_epoch: Option<u64>,
        connection: Connection,
    ) -> bool {
        let mut told = Told::default();
        let is_there = {
            let mut locked = self.locked.lock();
            let is_there = locked.detached.is_none();
            if is_there {
                locked.topic_epoch = topic_epoch.or(locked.topic_epoch);
                locked.link = Some(connection);
                locked.is_outbound_full = false;
                locked.state.open(opened);
                self.after(&mut locked, &mut told);
            }
            is_there
        };
        self.tell(&mut told);
        is_there
    }

    /// Waits until the connection is gone and says why. Cancel-safe.
    pub(crate) async fn wait_detached(&self) -> Detached {
        loop {
            let notified = self.detached.notified();
            if let Some(detached) = self.locked.lock().detached.take() {
                return detached;
            }
            notified.await;
        }
    }

    /// The connection that has the producer.
    pub(crate) fn connection(&self) -> Option<Connection> {
        self.locked.lock().link.clone()
    }

    /// Whether a broker has the producer.
    pub(crate) fn is_connected(&self) -> bool {
        self.locked.lock().link.is_some()
    }

    /// The name to ask for.
    pub(crate) fn set_name(&self, name: String) {
        self.locked.lock().state.set_name(name);
    }

    /// The name, once a broker took the producer.
    pub(crate) fn name(&self) -> String {
        self.locked.lock().state.name().to_owned()
    }

    pub(crate) fn last_sequence_id(&self) -> Option<u64> {
        self.locked.lock().state.last_sequence_id()
    }

    pub(crate) fn topic_epoch(&self) -> Option<u64> {
        self.locked.lock().topic_epoch
    }

    pub(crate) fn schema_version(&self) -> Option<Bytes> {
        self.locked.lock().state.schema_version().cloned()
    }

    /// Messages without receipt.
    pub(crate) fn pending(&self) -> usize {
        self.locked.lock().state.messages()
    }

    /// Why nothing more can be sent.
    pub(crate) fn ended(&self) -> Option<SendError> {
        self.locked.lock().state.ended().cloned()
    }
}

impl Locked {
    /// Gives the connection what it has not got, as far as it takes it.
    fn send_on(&mut self) {
        let Some(link) = &self.link else {
            return;
        };
        while let Some(segment) = self.state.unsent() {
            let head = segment.head.clone();
            let outgoing = if segment.payload.is_empty() {
                net::Outgoing::Raw(head)
            } else {
                net::Outgoing::Message {
                    header: head,
                    payload: segment.payload.clone(),
                }
            };
            match link.send(outgoing) {
                Ok(()) => self.state.mark_sent(),
                Err(OutboundError::Full) => {
                    self.is_outbound_full = true;
                    return;
                }
                // That it is gone is told on its task.
                Err(OutboundError::Closed) => return,
            }
        }
    }
}

impl Attachment {
    /// Changes the state on an event of the connection, if it still is the producer's.
    fn on_event(
        &self,
        change: impl FnOnce(&mut Locked) -> Result<(), CloseReason>,
    ) -> Result<(), CloseReason> {
        let mut told = self.told.lock();
        let result = {
            let mut locked = self.producer.locked.lock();
            if locked.generation != self.generation {
                return Ok(());
            }
            let result = change(&mut locked);
            self.producer.after(&mut locked, &mut told);
            result
        };
        self.producer.tell(&mut told);
        result
    }
}

impl ProducerEvents for Attachment {
    fn on_receipts(&self, receipts: &[CommandSendReceipt]) -> Result<(), CloseReason> {
        self.on_event(|locked| {
            for receipt in receipts {
                locked
                    .state
                    .on_receipt(receipt)
                    .map_err(|bad| CloseReason::Violation(bad.0))?;
            }
            Ok(())
        })
    }

    fn on_send_error(&self, error: CommandSendError) -> Result<(), CloseReason> {
        let code = server_error(error.error);
        self.on_event(|locked| {
            let message = match ServerError::try_from(error.error) {
                Ok(_) => error.message,
                Err(_) => format!("code {}: {}", error.error, error.message),
            };
            locked
                .state
                .note_problem(ClientError::Request(RequestError::Refused {
                    code,
                    message: message.clone(),
                }));
            let text: Arc<str> = message.as_str().into();
            let after = locked.state.on_send_error(error.sequence_id, code, message);
            match after {
                AfterSendError::GoOn | AfterSendError::Resend => Ok(()),
                AfterSendError::Terminated => {
                    self.producer.stop.cancel();
                    Ok(())
                }
                AfterSendError::Reconnect => Err(CloseReason::Broker {
                    code,
                    message: text,
                }),
            }
        })
    }

    fn on_detached(&self, detached: Detached) {
        let _ = self.on_event(|locked| {
            locked.link = None;
            locked.is_outbound_full = false;
            locked.state.detach();
            match &detached {
                // The end of the connection is what follows a refused message.
                Detached::Disconnected(CloseReason::Broker { .. })
                    if locked.state.has_problem() => {}
                Detached::Disconnected(reason) => {
                    let closed = RequestError::Closed(reason.clone());
                    locked.state.note_problem(ClientError::Request(closed));
                }
                Detached::ByBroker { .. } | Detached::Migrated { .. } => {}
            }
            locked.detached = Some(detached);
            Ok(())
        });
        self.producer.detached.notify_one();
        self.producer.progress.notify_waiters();
    }
}
