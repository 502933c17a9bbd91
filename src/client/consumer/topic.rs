//! A consumer of one topic that is not partitioned, or of one partition: what its handles, its task and its connection share.
//!
//! The state is behind a lock that is held for a few lines. Messages are decoded by who receives them and not on the
//! connection's task, one receiver at a time.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::{
    acknowledgements::{NoBatchSize, Position},
    chunks::ChunkBytes,
    error::{AckError, ReceiveError},
    message::QueuedEntry,
    options::ConsumerOptions,
    permits::QueueSize,
    ready::ReadyTopics,
    receiving::{Notices, Receiving},
    state::{BeforeSeek, State, Ticket},
    unsent::{Acknowledging, Receipt, Unsent, give_up, send_all},
};
use crate::{
    client::{
        clock::{Clock, Deadline},
        connection::Connection,
        error::{ClientError, CloseReason},
        message_id::MessageId,
        session::{ConsumerEvents, Detached, Route, Session},
    },
    naming::TopicName,
    protocol::{command::Command, proto::pulsar::CommandMessage},
};

/// See the module.
pub(crate) struct TopicConsumer {
    pub(crate) name: TopicName,
    pub(crate) text: Arc<str>,
    pub(crate) options: Arc<ConsumerOptions>,
    pub(crate) clock: Clock,
    pub(crate) stop: CancellationToken,
    pub(crate) operation_timeout: Duration,
    pub(super) inner: Mutex<Inner>,
    pub(super) receiving: Mutex<Receiving>,
    /// The task has something to do.
    pub(super) wake: Notify,
    status: watch::Sender<Status>,
    pub(super) ready: Arc<ReadyTopics>,
    is_ready: AtomicBool,
    changes: Arc<watch::Sender<u64>>,
    tracker: TaskTracker,
    pub(super) notices: Arc<Notices>,
}

/// The answer to an acknowledgement, where one is wanted, and the entries that it acknowledges as a whole.
pub(crate) type AckOfEntries = (
    Option<oneshot::Receiver<Result<(), AckError>>>,
    Vec<Position>,
);

/// Where a consumer of a topic stands.
#[derive(Debug, Clone)]
pub(crate) enum Status {
    /// It was not subscribed yet, or lost its broker.
    Connecting,
    /// Subscribed.
    Connected(Ticket),
    /// Closed, or given up.
    Ended(ReceiveError),
}

/// What the lock guards.
pub(super) struct Inner {
    pub(super) state: State,
    pub(super) link: Option<Link>,
    /// Why the link is gone, for the task.
    pub(super) detached: Option<Detached>,
    /// The link has to be made anew.
    pub(super) reattach: bool,
    /// The subscription is gone; there is nothing to close.
    pub(super) is_unsubscribed: bool,
    /// What the connection had no room for.
    pub(super) unsent: VecDeque<Unsent>,
    /// Wait for the answer to the acknowledgements that are collected.
    receipts: Vec<Receipt>,
    /// When the task will wake by itself.
    pub(super) armed: Option<Duration>,
}

/// The attachment to a connection.
pub(super) struct Link {
    pub(super) session: Session,
    pub(super) consumer_id: u64,
    pub(super) ticket: Ticket,
    /// Dropped with the link.
    pub(super) _route: Route,
}

impl TopicConsumer {
    /// A consumer that is not subscribed; `set` has what it shares with the others of its kind.
    pub(crate) fn new(name: TopicName, queue_size: QueueSize, set: &Shared) -> Self {
        let text: Arc<str> = name.to_string().into();
        let options = Arc::clone(&set.options);
        Self {
            inner: Mutex::new(Inner {
                state: State::new(&options, queue_size),
                link: None,
                detached: None,
                reattach: false,
                is_unsubscribed: false,
                unsent: VecDeque::new(),
                receipts: Vec::new(),
                armed: None,
            }),
            receiving: Mutex::new(Receiving::new(
                Arc::clone(&text),
                name.partition(),
                &options,
                Arc::clone(&set.chunk_bytes),
            )),
            name,
            text,
            options,
            clock: set.clock,
            stop: set.stop.child_token(),
            operation_timeout: set.operation_timeout,
            wake: Notify::new(),
            status: watch::Sender::new(Status::Connecting),
            ready: Arc::clone(&set.ready),
            is_ready: AtomicBool::new(false),
            changes: Arc::clone(&set.changes),
            tracker: set.tracker.clone(),
            notices: Arc::clone(&set.notices),
        }
    }

    // For the list of topics that have something

    pub(super) fn mark_ready(&self) -> bool {
        !self.is_ready.swap(true, Ordering::AcqRel)
    }

    pub(super) fn unmark_ready(&self) {
        self.is_ready.store(false, Ordering::Release);
    }

    // Status

    pub(super) fn set_status(&self, status: Status) {
        self.status.send_replace(status);
        self.changed();
    }

    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    fn changed(&self) {
        self.changes
            .send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Waits until it has ended, and says why. Cancel-safe.
    pub(crate) async fn ended(&self) -> ReceiveError {
        let mut status = self.status.subscribe();
        let ended = status
            .wait_for(|status| matches!(status, Status::Ended(_)))
            .await;
        match ended.as_deref() {
            Ok(Status::Ended(error)) => error.clone(),
            _ => ReceiveError::Closed,
        }
    }

    /// The connection and the consumer's id on it, once there is an attachment after `after`.
    pub(crate) async fn connected(
        &self,
        after: Option<Ticket>,
        deadline: Deadline,
    ) -> Result<(Connection, u64, Ticket), ClientError> {
        let mut status = self.status.subscribe();
        let connected = async {
            loop {
                let now = status.borrow_and_update().clone();
                match now {
                    Status::Ended(ReceiveError::Closed) => return Err(ClientError::Closed),
                    Status::Ended(ReceiveError::Failed(error)) => return Err(error),
                    Status::Connecting => {}
                    Status::Connected(ticket) => {
                        if let Some(found) = self.link_of(ticket, after) {
                            return Ok(found);
                        }
                    }
                }
                if status.changed().await.is_err() {
                    return Err(ClientError::Closed);
                }
            }
        };
        let connected = deadline.keep(connected).await;
        connected.unwrap_or_else(|| Err(deadline.error(Some(ClientError::NotConnected))))
    }

    fn link_of(&self, ticket: Ticket, after: Option<Ticket>) -> Option<(Connection, u64, Ticket)> {
        if after.is_some_and(|after| after.attachment >= ticket.attachment) {
            return None;
        }
        let inner = self.inner.lock();
        let link = inner.link.as_ref()?;
        let connection = link.session.connection().clone();
        Some((connection, link.consumer_id, link.ticket))
    }

    // Sending

    /// Sends what is due, as far as there is room, and wakes the task where it is needed for the rest.
    pub(super) fn flush(&self, inner: &mut Inner, now: Duration) {
        let is_full = self.send_if_due(inner, now);
        let deadline = inner.state.deadline();
        let is_sooner = deadline.is_some() && (inner.armed.is_none() || deadline < inner.armed);
        if is_sooner {
            // The task sleeps longer than it may.
            inner.armed = deadline;
        }
        if is_full || is_sooner {
            self.wake.notify_one();
        }
    }

    /// Sends what is due; says whether the connection has no room for all of it. For the task, which waits for room then.
    pub(super) fn send_if_due(&self, inner: &mut Inner, now: Duration) -> bool {
        let is_due = !inner.unsent.is_empty() || inner.state.is_due(now);
        is_due && self.send_due(inner, now, false)
    }

    /// As [`send_if_due`](Self::send_if_due), with all acknowledgements that are collected if `all_acks`.
    fn send_due(&self, inner: &mut Inner, now: Duration, all_acks: bool) -> bool {
        let Some(link) = &inner.link else {
            return false;
        };
        let connection = link.session.connection().clone();
        let consumer_id = link.consumer_id;
        if !inner.state.is_ready() {
            return false;
        }
        if !send_all(&connection, &mut inner.unsent, &self.tracker) {
            return true;
        }
        if all_acks || inner.state.acks_due(now) {
            let mut acks = Vec::new();
            inner.state.acknowledgements().take(consumer_id, &mut acks);
            if self.options.ack_receipt {
                let receipts = std::mem::take(&mut inner.receipts);
                if !acks.is_empty() || !receipts.is_empty() {
                    let acks = Acknowledging::new(acks, receipts);
                    inner.unsent.push_back(Unsent::Acknowledgements(acks));
                }
            } else {
                let acks = acks.into_iter().map(Command::from).map(Unsent::Command);
                inner.unsent.extend(acks);
            }
        }
        let mut commands = Vec::new();
        inner.state.commands(now, &mut commands);
        inner
            .unsent
            .extend(commands.into_iter().map(Unsent::Command));
        !send_all(&connection, &mut inner.unsent, &self.tracker)
    }

    /// Sends all that is due and all acknowledgements that are collected. Waits a while for room where there is none, so that
    /// they leave before what the caller sends next.
    pub(super) async fn drain(&self) {
        let drained = async {
            loop {
                let connection = {
                    let now = self.clock.now();
                    let mut inner = self.inner.lock();
                    if !self.send_due(&mut inner, now, true) {
                        return;
                    }
                    let Some(link) = &inner.link else { return };
                    link.session.connection().clone()
                };
                connection.room().await;
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            debug!(topic = %self.text, "a broker does not take what a consumer has to send");
        }
    }

    // Acknowledgements

    /// Acknowledges messages; the answer, where one is wanted, comes with the receipt.
    pub(crate) fn acknowledge(
        &self,
        ids: &mut dyn Iterator<Item = &MessageId>,
    ) -> Result<Option<oneshot::Receiver<Result<(), AckError>>>, AckError> {
        let now = self.clock.now();
        let mut inner = self.open()?;
        for id in ids {
            inner.state.acknowledge(id, now).map_err(no_size)?;
        }
        Ok(self.acknowledged(&mut inner, now))
    }

    /// As [`acknowledge`](Self::acknowledge), with the entries that are done with by that.
    pub(crate) fn acknowledge_entries(&self, id: &MessageId) -> Result<AckOfEntries, AckError> {
        let now = self.clock.now();
        let mut inner = self.open()?;
        let position = (id.ledger_id, id.entry_id);
        let mut entries = inner.state.acknowledgements().entries_of(position).to_vec();
        if entries.is_empty() {
            entries.push(position);
        }
        if !inner.state.acknowledge(id, now).map_err(no_size)? {
            entries.clear();
        }
        Ok((self.acknowledged(&mut inner, now), entries))
    }

    /// Acknowledges a message and all before it.
    pub(crate) fn acknowledge_cumulative(
        &self,
        id: &MessageId,
    ) -> Result<Option<oneshot::Receiver<Result<(), AckError>>>, AckError> {
        if self.options.is_shared() {
            return Err(AckError::CumulativeNotAllowed);
        }
        let now = self.clock.now();
        let mut inner = self.open()?;
        let lost = inner
            .state
            .acknowledge_cumulative(id, now)
            .map_err(no_size)?;
        let answer = self.acknowledged(&mut inner, now);
        drop(inner);
        if let Some(first) = lost.first() {
            let reason = "its message gave way to others and was acknowledged cumulatively";
            self.tell_discarded(*first, reason, lost.len(), now);
        }
        Ok(answer)
    }

    fn acknowledged(
        &self,
        inner: &mut Inner,
        now: Duration,
    ) -> Option<oneshot::Receiver<Result<(), AckError>>> {
        // Without a deadline nothing is to be sent: the rest of the batch is waited for.
        let wanted = self.options.ack_receipt && inner.state.deadline_of_acks().is_some();
        let answer = wanted.then(|| {
            let (receipt, answer) = oneshot::channel();
            inner.receipts.push(receipt);
            answer
        });
        self.flush(inner, now);
        answer
    }

    fn open(&self) -> Result<MutexGuard<'_, Inner>, AckError> {
        let inner = self.inner.lock();
        // Behind the lock: what is collected before the end takes it is told by the end.
        if self.stop.is_cancelled() {
            return Err(AckError::Closed);
        }
        Ok(inner)
    }

    /// SEEK is about to be sent, to this message or to a time. Acknowledgements that were not sent are forgotten.
    pub(super) fn begin_seek(&self, id: Option<MessageId>) -> BeforeSeek {
        let (before, receipts) = {
            let mut inner = self.inner.lock();
            (inner.state.seek(id), std::mem::take(&mut inner.receipts))
        };
        for receipt in receipts {
            let _ = receipt.send(Err(AckError::Sought));
        }
        before
    }

    /// Changes the state and sends what is due after that.
    pub(crate) fn with_state<T>(&self, change: impl FnOnce(&mut State, Duration) -> T) -> T {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let result = change(&mut inner.state, now);
        self.flush(&mut inner, now);
        result
    }

    /// Sends the acknowledgements that are collected.
    pub(crate) fn flush_acknowledgements(&self) {
        let now = self.clock.now();
        if self.send_due(&mut self.inner.lock(), now, true) {
            self.wake.notify_one();
        }
    }

    // Attachments

    /// SUBSCRIBE is about to be sent on a connection.
    pub(super) fn begin_attachment(&self, consumer_id: u64) -> Ticket {
        let mut inner = self.inner.lock();
        inner.detached = None;
        inner.reattach = false;
        give_up(
            &mut inner.unsent,
            &AckError::Client(ClientError::NotConnected),
        );
        inner.state.attach(consumer_id)
    }

    /// SUBSCRIBE succeeded.
    pub(super) fn attached(&self, link: Link) {
        let now = self.clock.now();
        let ticket = link.ticket;
        {
            let mut inner = self.inner.lock();
            inner.link = Some(link);
            if inner.detached.is_none() {
                inner.state.subscribed(ticket);
            }
            self.flush(&mut inner, now);
        }
        self.set_status(Status::Connected(ticket));
        // Who waits with a receiver queue of size 0 has to ask this broker, too.
        self.ready.wake_all();
    }

    /// The link is given up: its route with it, outside of the lock.
    pub(super) fn unlink(&self) -> Option<Link> {
        self.inner.lock().link.take()
    }

    /// Nothing follows.
    pub(super) fn end(&self, error: ReceiveError) {
        self.stop.cancel();
        let (link, receipts) = {
            let mut inner = self.inner.lock();
            let ticket = inner.state.ticket();
            inner.state.detach(ticket);
            give_up(&mut inner.unsent, &AckError::Closed);
            (inner.link.take(), std::mem::take(&mut inner.receipts))
        };
        drop(link);
        for receipt in receipts {
            let _ = receipt.send(Err(AckError::Closed));
        }
        self.set_status(Status::Ended(error));
        self.ready.wake_all();
    }
}

impl Inner {
    /// When the task has to look again. `None` while it could not do anything.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.state
            .is_ready()
            .then(|| self.state.deadline())
            .flatten()
    }
}

impl std::fmt::Debug for TopicConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TopicConsumer")
            .field("topic", &self.text)
            .finish_non_exhaustive()
    }
}

/// What the consumers of several topics share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) options: Arc<ConsumerOptions>,
    pub(crate) clock: Clock,
    pub(crate) stop: CancellationToken,
    pub(crate) operation_timeout: Duration,
    pub(crate) ready: Arc<ReadyTopics>,
    pub(crate) changes: Arc<watch::Sender<u64>>,
    pub(crate) tracker: TaskTracker,
    pub(crate) notices: Arc<Notices>,
    pub(crate) chunk_bytes: Arc<ChunkBytes>,
}

/// What a connection calls. Belongs to one attachment.
pub(super) struct Attachment {
    pub(super) topic: Arc<TopicConsumer>,
    pub(super) ticket: Ticket,
}

impl ConsumerEvents for Attachment {
    fn on_messages(&self, messages: &mut Vec<(CommandMessage, Bytes)>) -> Result<(), CloseReason> {
        let mut entries: Vec<QueuedEntry> = messages
            .drain(..)
            .map(|(message, entry)| QueuedEntry::new(message, entry))
            .collect();
        let is_new = {
            let mut inner = self.topic.inner.lock();
            if inner.state.has_entries() {
                own_memory(&mut entries);
            }
            let is_new = inner.state.on_entries(self.ticket, &mut entries);
            if inner.state.is_overfull() && !inner.reattach {
                debug!(topic = %self.topic.text, "more bytes came than a consumer has room for: it is opened anew");
                inner.reattach = true;
                self.topic.wake.notify_one();
            }
            is_new
        };
        if is_new.map_err(|_| CloseReason::Violation(TOO_MANY))? {
            self.topic.ready.push(&self.topic);
        }
        Ok(())
    }

    fn on_active_change(&self, is_active: bool) {
        self.topic
            .inner
            .lock()
            .state
            .on_active_change(self.ticket, is_active);
        self.topic.changed();
    }

    fn on_end_of_topic(&self) {
        self.topic.inner.lock().state.on_end_of_topic(self.ticket);
        self.topic.changed();
    }

    fn on_detached(&self, detached: Detached) {
        {
            let mut inner = self.topic.inner.lock();
            if !inner.state.is_of_this_attachment(self.ticket) {
                return;
            }
            inner.state.detach(self.ticket);
            inner.detached = Some(detached);
        }
        self.topic.wake.notify_one();
    }
}

/// Gives entries that have to wait memory of their own when they are few: they may be a small part of what one read brought,
/// which they would keep alive as a whole.
fn own_memory(entries: &mut [QueuedEntry]) {
    let len: usize = entries.iter().map(|entry| entry.payload.len()).sum();
    if len >= SHARED_MEMORY_MIN {
        return;
    }
    let mut own = BytesMut::with_capacity(len);
    for entry in entries {
        own.extend_from_slice(&entry.payload);
        entry.payload = own.split().freeze();
    }
}

fn no_size(_: NoBatchSize) -> AckError {
    AckError::NoBatchSize
}

/// What a connection ends with whose broker does not keep to the permits.
const TOO_MANY: &str = "more messages than a consumer permitted";

/// How long what is to be sent before something else waits for room.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// From so many bytes on, entries that came together are a good part of what one read brings (128 KiB).
const SHARED_MEMORY_MIN: usize = 16 * 1024;
