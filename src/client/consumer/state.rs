//! What one consumer of one topic knows: entries that came, permits, acknowledgements, what is to be delivered again, and
//! where to go on after the connection was lost. Pure.
//!
//! A consumer is attached to one connection after the other. What belongs to an attachment that is over, or was sent
//! before a seek, is dropped wherever it still turns up: [`Ticket`] says to which one something belongs.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use super::{
    acknowledgements::{Acknowledgements, NoBatchSize, Position, data},
    message::QueuedEntry,
    options::ConsumerOptions,
    permits::{Permits, PermitsExceeded, QueueSize},
    redelivery::Delayed,
    start::StartPosition,
};
use crate::{
    client::message_id::MessageId,
    protocol::{
        command::Command,
        proto::pulsar::{CommandFlow, CommandRedeliverUnacknowledgedMessages, MessageIdData},
    },
};

/// To which attachment and which beginning something belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ticket {
    /// Counts the attachments.
    pub(crate) attachment: u64,
    /// Counts how often what came was thrown away, by a new attachment, a seek or a redelivery of everything.
    beginning: u64,
}

/// Where a consumer was before a seek.
#[derive(Debug)]
pub(crate) struct BeforeSeek {
    consumed: Option<Consumed>,
    start: StartPosition,
    sought_by_time: bool,
    has_sought: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Detached,
    /// SUBSCRIBE is on its way.
    Subscribing,
    Ready,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    is_shared: bool,
    is_durable: bool,
    inclusive: bool,
    phase: Phase,
    consumer_id: u64,
    ticket: Ticket,
    queue: VecDeque<QueuedEntry>,
    permits: Permits,
    /// Goes up with each redelivery of everything; entries of an older one are dropped (PIP-84).
    epoch: u64,
    /// Everything up to here was handed out or dropped.
    consumed: Option<Consumed>,
    start: StartPosition,
    sought_by_time: bool,
    has_sought: bool,
    acknowledgements: Acknowledgements,
    negative: Delayed,
    unacknowledged: Option<Delayed>,
    /// Entries of messages that gave way to others.
    gave_way: Delayed,
    redeliver_all: bool,
    /// A seek is under way: what comes is from before it.
    is_seeking: bool,
    /// More came than there is room for: what follows is dropped, and comes again with the next attachment.
    is_overfull: bool,
    is_active: Option<bool>,
    has_ended: bool,
}

/// How far the messages of a topic were handed out: an entry, and the number in it of the message behind the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Consumed {
    position: Position,
    /// `u32::MAX`: the whole entry.
    next_index: u32,
}

impl Consumed {
    /// A whole entry.
    pub(crate) fn entry(position: Position) -> Self {
        Self {
            position,
            next_index: u32::MAX,
        }
    }

    /// Of an entry the messages up to `index`.
    pub(crate) fn message(position: Position, index: u32) -> Self {
        Self {
            position,
            next_index: index.saturating_add(1),
        }
    }
}

impl State {
    /// A consumer that was never attached. So many messages may come ahead.
    pub(crate) fn new(options: &ConsumerOptions, queue_size: QueueSize) -> Self {
        Self {
            is_shared: options.is_shared(),
            is_durable: options.durable,
            inclusive: options.start_message_inclusive,
            phase: Phase::Detached,
            consumer_id: 0,
            ticket: Ticket::default(),
            queue: VecDeque::new(),
            permits: Permits::new(queue_size),
            epoch: 0,
            consumed: None,
            start: if options.durable {
                StartPosition::unset()
            } else {
                let id = options.start_message_id.clone();
                StartPosition::at(
                    id.unwrap_or_else(MessageId::latest),
                    options.start_message_inclusive,
                )
            },
            sought_by_time: false,
            has_sought: false,
            acknowledgements: Acknowledgements::new(options.ack_grouping, options.batch_index_ack),
            negative: Delayed::new(options.negative_ack_delay),
            unacknowledged: options.ack_timeout.map(Delayed::new),
            gave_way: Delayed::new(options.negative_ack_delay.max(GAVE_WAY_DELAY_MIN)),
            redeliver_all: false,
            is_seeking: false,
            is_overfull: false,
            is_active: None,
            has_ended: false,
        }
    }

    // Attachments

    /// SUBSCRIBE is about to be sent. Returns to which attachment belongs what comes from now on.
    pub(crate) fn attach(&mut self, consumer_id: u64) -> Ticket {
        if !self.is_durable
            && let Some(consumed) = self.consumed
        {
            let index = match consumed.next_index {
                u32::MAX => None,
                next => next.checked_sub(1),
            };
            let (ledger_id, entry_id) = consumed.position;
            let id = MessageId {
                batch_index: index,
                ..MessageId::of_entry(ledger_id, entry_id)
            };
            self.start = StartPosition::at(id, false);
        }
        self.phase = Phase::Subscribing;
        self.consumer_id = consumer_id;
        self.ticket.attachment += 1;
        self.is_seeking = false;
        self.is_overfull = false;
        self.is_active = None;
        self.begin_anew();
        self.permits.reset();
        // All of it is delivered again now.
        self.negative.clear();
        self.gave_way.clear();
        self.redeliver_all = false;
        if let Some(unacknowledged) = &mut self.unacknowledged {
            unacknowledged.clear();
        }
        self.acknowledgements.reconnecting();
        self.ticket
    }

    fn begin_anew(&mut self) {
        self.queue.clear();
        self.permits.drop_all();
        self.ticket.beginning += 1;
    }

    /// Where SUBSCRIBE of a subscription that is not durable says that it begins.
    pub(crate) fn start_message_id(&self) -> Option<MessageIdData> {
        if self.is_durable {
            None
        } else {
            self.start.to_data()
        }
    }

    /// Whether nothing was handed out and nobody has sought: it begins where its options say.
    pub(crate) fn is_untouched(&self) -> bool {
        self.consumed.is_none() && !self.has_sought
    }

    /// What SUBSCRIBE says of the epoch. Only where everything is delivered again at once there is one.
    pub(crate) fn epoch(&self) -> Option<u64> {
        (!self.is_shared).then_some(self.epoch)
    }

    /// SUBSCRIBE succeeded.
    pub(crate) fn subscribed(&mut self, ticket: Ticket) {
        if self.is_of_this_attachment(ticket) && self.phase == Phase::Subscribing {
            self.phase = Phase::Ready;
        }
    }

    /// The attachment is over. What came stays until the next one begins.
    pub(crate) fn detach(&mut self, ticket: Ticket) {
        if self.is_of_this_attachment(ticket) {
            self.phase = Phase::Detached;
        }
    }

    /// Whether something belongs to the connection that there is.
    pub(crate) fn is_of_this_attachment(&self, ticket: Ticket) -> bool {
        ticket.attachment == self.ticket.attachment
    }

    /// Whether the broker knows the consumer.
    pub(crate) fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// To what belongs what comes now.
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    // Entries

    /// Takes entries that came, in their order. Says whether there is something new to take.
    pub(crate) fn on_entries(
        &mut self,
        ticket: Ticket,
        entries: &mut Vec<QueuedEntry>,
    ) -> Result<bool, PermitsExceeded> {
        let is_unwanted = self.is_seeking || self.is_overfull || self.phase == Phase::Detached;
        if !self.is_of_this_attachment(ticket) || is_unwanted {
            entries.clear();
            return Ok(false);
        }
        let before = self.queue.len();
        let entries_max = self.permits.entries_max();
        for entry in entries.drain(..) {
            self.permits.use_for(entry.count)?;
            if self.queue.len() >= entries_max {
                return Err(PermitsExceeded);
            }
            if entry.epoch.is_some_and(|epoch| epoch < self.epoch) {
                self.permits.give_back(entry.count);
            } else if self.permits.take_in(&entry) {
                self.queue.push_back(entry);
            } else {
                self.is_overfull = true;
                break;
            }
        }
        entries.clear();
        Ok(self.queue.len() > before)
    }

    /// Whether more came than there is room for: only another attachment brings the rest.
    pub(crate) fn is_overfull(&self) -> bool {
        self.is_overfull
    }

    /// Takes up to `max` entries into `taken`, those left out that were acknowledged already, and says what they belong to.
    pub(crate) fn take(&mut self, max: usize, taken: &mut VecDeque<QueuedEntry>) -> Ticket {
        let mut left = max;
        while left > 0
            && let Some(entry) = self.queue.pop_front()
        {
            self.permits.take_out(&entry);
            if self.acknowledgements.is_duplicate(entry.position()) {
                self.permits.give_back(entry.count);
                continue;
            }
            left -= 1;
            taken.push_back(entry);
        }
        self.ticket
    }

    /// Whether there are entries to take.
    pub(crate) fn has_entries(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Entries that wait to be taken.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// `count` messages were handed out or dropped, the last one being there.
    pub(crate) fn consumed(&mut self, ticket: Ticket, count: u32, last: Option<Consumed>) {
        if self.is_of_this_attachment(ticket) {
            self.permits.give_back(count);
        }
        if ticket == self.ticket && last.is_some() {
            self.consumed = last;
        }
    }

    /// A message that has to be acknowledged was handed out.
    pub(crate) fn delivered(&mut self, position: Position, now: Duration) {
        if let Some(unacknowledged) = &mut self.unacknowledged {
            unacknowledged.add(position, now);
        }
    }

    /// Which messages of an entry are not wanted.
    pub(crate) fn start(&self) -> &StartPosition {
        &self.start
    }

    // Permits

    /// Someone waits for a message of a consumer without a queue.
    pub(crate) fn want_one(&mut self) {
        if self.queue.is_empty() {
            self.permits.want_one();
        }
    }

    /// How much may come ahead from now on. What was asked for already still comes.
    pub(crate) fn set_queue_size(&mut self, queue_size: QueueSize) {
        self.permits.resize(queue_size);
    }

    /// Whether new messages are asked for.
    pub(crate) fn set_paused(&mut self, paused: bool) {
        self.permits.set_paused(paused);
    }

    // Acknowledgements

    /// What was acknowledged and what is left of batches.
    pub(crate) fn acknowledgements(&mut self) -> &mut Acknowledgements {
        &mut self.acknowledgements
    }

    /// Acknowledges one message. Returns whether its entry is done with.
    pub(crate) fn acknowledge(
        &mut self,
        id: &MessageId,
        now: Duration,
    ) -> Result<bool, NoBatchSize> {
        let is_done = self.acknowledgements.individual(id, now)?;
        if is_done {
            let position = (id.ledger_id, id.entry_id);
            if let Some(unacknowledged) = &mut self.unacknowledged {
                unacknowledged.remove(position);
            }
        }
        Ok(is_done)
    }

    /// Acknowledges a message and all before it. Returns the entries among them of messages that gave way: these will not
    /// come again, and so are lost.
    pub(crate) fn acknowledge_cumulative(
        &mut self,
        id: &MessageId,
        now: Duration,
    ) -> Result<Vec<Position>, NoBatchSize> {
        self.acknowledgements.cumulative(id, now)?;
        let is_last = id
            .batch_index
            .is_none_or(|index| id.batch_size.is_none_or(|size| index + 1 >= size));
        let entry_id = if is_last {
            Some(id.entry_id)
        } else {
            id.entry_id.checked_sub(1)
        };
        let Some(entry_id) = entry_id else {
            return Ok(Vec::new());
        };
        let last = (id.ledger_id, entry_id);
        if let Some(unacknowledged) = &mut self.unacknowledged {
            unacknowledged.remove_to(last);
        }
        Ok(self.gave_way.remove_to(last))
    }

    /// This entry is to be delivered again after the delay.
    pub(crate) fn acknowledge_negative(&mut self, id: &MessageId, now: Duration) {
        let position = (id.ledger_id, id.entry_id);
        if let Some(unacknowledged) = &mut self.unacknowledged {
            unacknowledged.remove(position);
        }
        self.negative.add(position, now);
    }

    /// These entries are of messages that had no room: they are to be delivered again after the delay of negative
    /// acknowledgements, so that what has no room then either does not come and go without end.
    pub(crate) fn redeliver_later(
        &mut self,
        positions: impl IntoIterator<Item = Position>,
        now: Duration,
    ) {
        for position in positions {
            // Beyond them the next attachment brings the rest.
            if self.gave_way.len() < GAVE_WAY_MAX {
                self.gave_way.add(position, now);
            }
        }
    }

    /// Everything that is not acknowledged is to be delivered again: what came and was not handed out is dropped.
    pub(crate) fn redeliver_all(&mut self) {
        let count = self
            .queue
            .iter()
            .fold(0u32, |sum, entry| sum.saturating_add(entry.count));
        self.permits.give_back(count);
        self.begin_anew();
        if !self.is_shared {
            self.epoch += 1;
        }
        self.negative.clear();
        self.gave_way.clear();
        if let Some(unacknowledged) = &mut self.unacknowledged {
            unacknowledged.clear();
        }
        self.redeliver_all = true;
    }

    // Seek

    /// SEEK is about to be sent: nothing that came or comes on this attachment counts any more. Returns what to undo it
    /// with.
    pub(crate) fn seek(&mut self, id: Option<MessageId>) -> BeforeSeek {
        let before = BeforeSeek {
            consumed: self.consumed,
            start: self.start.clone(),
            sought_by_time: self.sought_by_time,
            has_sought: self.has_sought,
        };
        self.is_seeking = true;
        self.begin_anew();
        self.acknowledgements.clear();
        self.negative.clear();
        self.gave_way.clear();
        self.redeliver_all = false;
        if let Some(unacknowledged) = &mut self.unacknowledged {
            unacknowledged.clear();
        }
        self.consumed = None;
        self.has_ended = false;
        self.has_sought = true;
        self.sought_by_time = id.is_none();
        self.start = match id {
            Some(id) if self.is_durable => StartPosition::in_entry(id, self.inclusive),
            Some(id) => StartPosition::at(id, self.inclusive),
            None if self.is_durable => StartPosition::unset(),
            // Where the broker begins it knows by itself.
            None => StartPosition::at(MessageId::earliest(), true),
        };
        before
    }

    /// The seek was refused: the next attachment goes on where it was.
    pub(crate) fn undo_seek(&mut self, before: BeforeSeek) {
        self.begin_anew();
        self.consumed = before.consumed;
        self.start = before.start;
        self.sought_by_time = before.sought_by_time;
        self.has_sought = before.has_sought;
    }

    /// Whether there is a message behind what was consumed. `last` is the last one of the topic with its batch index,
    /// `mark_delete` up to where the broker says that all is acknowledged.
    pub(crate) fn is_behind(&self, last: &MessageId, mark_delete: Option<&MessageId>) -> bool {
        // -1: nothing is there.
        if last.entry_id == u64::MAX {
            return false;
        }
        let end = Consumed {
            position: (last.ledger_id, last.entry_id),
            next_index: last
                .batch_index
                .map_or(u32::MAX, |index| index.saturating_add(1)),
        };
        if let Some(consumed) = self.consumed {
            return end.position > consumed.position
                || (end.position == consumed.position && end.next_index > consumed.next_index);
        }
        if self.is_durable || self.sought_by_time || self.start.is_latest() {
            let Some(mark_delete) = mark_delete else {
                return self.inclusive && !self.sought_by_time;
            };
            let is_before_ledger =
                mark_delete.entry_id == u64::MAX && mark_delete.ledger_id > last.ledger_id;
            if is_before_ledger {
                return self.inclusive && !self.sought_by_time;
            }
            // -1 as an entry comes before the first one.
            let rank = |id: &MessageId| (id.ledger_id.wrapping_add(1), id.entry_id.wrapping_add(1));
            let (acknowledged, end) = (rank(mark_delete), rank(last));
            let is_left = acknowledged < end
                || (acknowledged == end && self.inclusive && self.start.is_latest());
            return is_left && (self.start.is_latest() || self.start.is_before(last));
        }
        self.start.is_before(last)
    }

    // What the broker tells

    /// Sets whether this consumer of a Failover subscription is the active one.
    pub(crate) fn on_active_change(&mut self, ticket: Ticket, is_active: bool) {
        if self.is_of_this_attachment(ticket) {
            self.is_active = Some(is_active);
        }
    }

    /// Whether it is, as far as the broker said.
    pub(crate) fn is_active(&self) -> Option<bool> {
        self.is_active
    }

    /// The topic is terminated and everything of it was sent.
    pub(crate) fn on_end_of_topic(&mut self, ticket: Ticket) {
        if self.is_of_this_attachment(ticket) {
            self.has_ended = true;
        }
    }

    /// Whether it is.
    pub(crate) fn has_reached_end(&self) -> bool {
        self.has_ended
    }

    // What the broker is told

    /// Whether [`commands`](Self::commands) has something to say.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.phase == Phase::Ready
            && !self.is_seeking
            && (self.permits.is_due()
                || self.redeliver_all
                || self.deadline().is_some_and(|deadline| deadline <= now))
    }

    /// When [`commands`](Self::commands) has something to say without anything happening before.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        if self.is_seeking {
            // Nothing is sent until it is over.
            return None;
        }
        let unacknowledged = self.unacknowledged.as_ref().and_then(Delayed::deadline);
        [
            self.acknowledgements.deadline(),
            self.negative.deadline(),
            self.gave_way.deadline(),
            unacknowledged,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// What to send now: FLOW and requests to deliver again. Acknowledgements are apart: see [`Self::acks_due`].
    pub(crate) fn commands(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let mut due = BTreeSet::new();
        self.negative.take_due(now, &mut due);
        self.gave_way.take_due(now, &mut due);
        if let Some(unacknowledged) = &mut self.unacknowledged {
            unacknowledged.take_due(now, &mut due);
        }
        if !due.is_empty() {
            if self.is_shared {
                self.redeliver_these(&due, commands);
            } else {
                self.redeliver_all();
            }
        }
        if std::mem::take(&mut self.redeliver_all) {
            commands.push(Command::from(CommandRedeliverUnacknowledgedMessages {
                consumer_id: self.consumer_id,
                message_ids: Vec::new(),
                consumer_epoch: self.epoch(),
            }));
        }
        if let Some(permits) = self.permits.take_due() {
            commands.push(Command::from(CommandFlow {
                consumer_id: self.consumer_id,
                message_permits: permits,
            }));
        }
    }

    fn redeliver_these(&mut self, due: &BTreeSet<Position>, commands: &mut Vec<Command>) {
        let mut ids: Vec<MessageIdData> = Vec::with_capacity(due.len());
        for position in due {
            let chunks = self.acknowledgements.entries_of(*position);
            ids.extend(chunks.iter().copied().map(data));
            if chunks.is_empty() {
                ids.push(data(*position));
            }
        }
        // What waits here comes once more.
        let mut given_back = 0u32;
        let permits = &mut self.permits;
        self.queue.retain(|entry| {
            let again = due.contains(&entry.position());
            if again {
                permits.take_out(entry);
                given_back = given_back.saturating_add(entry.count);
            }
            !again
        });
        self.permits.give_back(given_back);
        for ids in ids.chunks(REDELIVERED_IDS_MAX) {
            commands.push(Command::from(CommandRedeliverUnacknowledgedMessages {
                consumer_id: self.consumer_id,
                message_ids: ids.to_vec(),
                consumer_epoch: None,
            }));
        }
    }

    /// When collected acknowledgements have to be sent. `None`: there are none.
    pub(crate) fn deadline_of_acks(&self) -> Option<Duration> {
        self.acknowledgements.deadline()
    }

    /// Whether collected acknowledgements have to be sent now: at their time, and before something is delivered again, so
    /// that it is not what was acknowledged.
    pub(crate) fn acks_due(&self, now: Duration) -> bool {
        let is_due = |deadline: Option<Duration>| deadline.is_some_and(|deadline| deadline <= now);
        let redelivers = self.redeliver_all
            || is_due(self.negative.deadline())
            || is_due(self.gave_way.deadline())
            || is_due(self.unacknowledged.as_ref().and_then(Delayed::deadline));
        let collected = self.acknowledgements.deadline();
        is_due(collected) || (redelivers && collected.is_some())
    }
}

/// The shortest time after which a message that gave way comes again.
const GAVE_WAY_DELAY_MIN: Duration = Duration::from_secs(1);

/// Entries of messages that gave way and are to come again.
const GAVE_WAY_MAX: usize = 65_536;

/// Ids in one REDELIVER_UNACKNOWLEDGED_MESSAGES, as Apache's clients have it.
const REDELIVERED_IDS_MAX: usize = 1000;
