//! The receiving end of a consumer of one topic: takes entries, makes messages of them and gives permits back.

use std::{
    collections::VecDeque,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tracing::warn;

use super::{
    acknowledgements::Position,
    chunks::ChunkBytes,
    decode::{Decoded, Decoder, Input, Known, Visit},
    message::{MessageView, QueuedEntry, RawEntry, ReceivedMessage},
    open_batch::OpenBatch,
    options::ConsumerOptions,
    start::StartPosition,
    state::{Consumed, State, Ticket},
    topic::{Inner, TopicConsumer},
};
use crate::client::{clock::unix_ms, message_id::MessageId, throttle::Throttle};

/// What one receiver at a time works with.
#[derive(Debug)]
pub(super) struct Receiving {
    decoder: Decoder,
    /// To what all that is here belongs.
    ticket: Ticket,
    start: StartPosition,
    /// Taken, not decoded yet. Mostly empty but during a call.
    entries: VecDeque<QueuedEntry>,
    /// The batch of which not all messages were handed out, and the permits that these have.
    open: Option<(OpenBatch, u32)>,
    /// The message that was made to see whether there is one: it is the next one.
    peeked: Option<(ReceivedMessage, Step)>,
    has_ack_timeout: bool,
}

/// What went wrong with a consumer, of all its topics.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// Entries that could not be read and were acknowledged all the same.
    pub(super) discarded: AtomicU64,
    unreadable: Throttle,
    /// For lost connections.
    pub(super) lost: Throttle,
}

/// What handing out messages came to, to be told to the state.
#[derive(Debug, Clone, Copy)]
struct Step {
    messages: u32,
    permits: u32,
    /// `None`: it is not done with.
    consumed: Option<Consumed>,
    position: Position,
}

impl Receiving {
    /// Nothing was received yet.
    pub(super) fn new(
        topic: Arc<str>,
        partition: Option<u32>,
        options: &ConsumerOptions,
        chunk_bytes: Arc<ChunkBytes>,
    ) -> Self {
        Self {
            decoder: Decoder::new(topic, partition, options, chunk_bytes),
            ticket: Ticket::default(),
            start: StartPosition::unset(),
            entries: VecDeque::new(),
            open: None,
            peeked: None,
            has_ack_timeout: options.ack_timeout.is_some(),
        }
    }

    /// Drops what is from before a seek, a redelivery of everything or another attachment.
    fn drop_stale(&mut self, state: &mut State) {
        let ticket = state.ticket();
        if self.ticket == ticket {
            return;
        }
        let peeked = self.peeked.take().map_or(0, |(_, step)| step.permits);
        let open = self.open.take().map_or(0, |(_, permits)| permits);
        let counts = self.entries.drain(..).map(|entry| entry.count);
        let left = counts.fold(peeked.saturating_add(open), u32::saturating_add);
        // Those of another attachment count no more, which the state knows.
        state.consumed(self.ticket, left, None);
        if self.ticket.attachment == ticket.attachment {
            // After a seek as well: another attachment follows it before anything else comes.
            self.decoder.begin_anew();
        } else {
            self.decoder.clear();
        }
        self.start = state.start().clone();
        self.ticket = ticket;
    }

    /// Whether something waits behind the queue of the state.
    fn has_rest(&self) -> bool {
        self.open.is_some() || self.peeked.is_some() || !self.entries.is_empty()
    }

    /// Goes on with the batch that is open, or else with the next entry: hands out messages as long as `visit` takes them.
    /// `None`: there is neither.
    fn step(
        &mut self,
        topic: &TopicConsumer,
        now: Duration,
        visit: &mut Visit<'_>,
    ) -> Option<Step> {
        if let Some((mut batch, mut permits_left)) = self.open.take() {
            let position = batch.position();
            let walked = batch.walk(&self.start, visit);
            if let Some(unreadable) = &walked.invalid {
                self.with_state(topic, |state| {
                    let acknowledgements = state.acknowledgements();
                    acknowledgements.invalid(position, unreadable.code);
                });
                topic.tell_discarded(position, &unreadable.reason, 1, now);
            }
            let permits = if walked.is_over {
                permits_left
            } else {
                walked.messages.min(permits_left)
            };
            permits_left -= permits;
            if !walked.is_over {
                self.open = Some((batch, permits_left));
            }
            let of_message = |index| Consumed::message(position, index);
            let consumed = if walked.is_over {
                Some(Consumed::entry(position))
            } else {
                walked.last.map(of_message)
            };
            return Some(Step {
                messages: walked.messages,
                permits,
                consumed,
                position,
            });
        }
        let entry = self.entries.pop_front()?;
        let position = entry.position();
        let mut decoded = self.decode(topic, &entry, now, visit);
        let mut step = Step {
            messages: decoded.messages,
            permits: entry.count.max(decoded.messages),
            consumed: (!decoded.is_waiting).then(|| Consumed::entry(position)),
            position,
        };
        if let Some(rest) = decoded.rest.take() {
            step.permits = decoded.messages.min(entry.count);
            let of_message = |index| Consumed::message(position, index);
            step.consumed = decoded.last.map(of_message);
            self.open = Some((rest, entry.count - step.permits));
        }
        Some(step)
    }

    /// Decodes an entry and tells the state what is to be acknowledged of it.
    fn decode(
        &mut self,
        topic: &TopicConsumer,
        entry: &QueuedEntry,
        now: Duration,
        visit: &mut Visit<'_>,
    ) -> Decoded {
        let input = Input {
            entry,
            start: &self.start,
            now,
            now_ms: unix_ms,
        };
        let position = entry.position();
        let ticket = self.ticket;
        let mut tell = |known: Known| {
            let mut inner = topic.inner.lock();
            if inner.state.ticket() != ticket {
                return;
            }
            let acknowledgements = inner.state.acknowledgements();
            match known {
                Known::Part(size) => {
                    acknowledgements.delivered_in_part(position, &entry.ack_set, size);
                }
                Known::Chunks(entries) => acknowledgements.delivered_in_chunks(entries),
            }
        };
        let decoded = self.decoder.decode(input, &mut tell, visit);
        if !decoded.is_plain() {
            self.with_state(topic, |state| apply(state, position, &decoded, now));
            topic.tell_unreadable(position, &decoded, now);
        }
        decoded
    }

    /// Changes the state, unless what is here does not belong to it any more.
    fn with_state(&self, topic: &TopicConsumer, change: impl FnOnce(&mut State)) {
        let mut inner = topic.inner.lock();
        if inner.state.ticket() == self.ticket {
            change(&mut inner.state);
        }
    }
}

/// What a decoded entry, the one at `position`, means for acknowledgements.
fn apply(state: &mut State, position: Position, decoded: &Decoded, now: Duration) {
    if let Some(unreadable) = &decoded.invalid {
        state.acknowledgements().invalid(position, unreadable.code);
    }
    let lost = decoded.lost.iter().flat_map(|lost| &lost.entries);
    let dropped: Vec<Position> = lost.chain(&decoded.spare).copied().collect();
    if !dropped.is_empty() {
        state.acknowledgements().skipped(dropped, now);
    }
    state.redeliver_later(decoded.again.iter().copied(), now);
}

impl TopicConsumer {
    /// The next message, if there is one. Puts the topic back among those that have something while there is more.
    pub(crate) fn receive_one(self: &Arc<Self>) -> Option<ReceivedMessage> {
        let mut receiving = self.receiving.lock();
        let receiving = &mut *receiving;
        let received = self.next_message(receiving);
        self.push_if_more(receiving);
        received
    }

    fn next_message(&self, receiving: &mut Receiving) -> Option<ReceivedMessage> {
        loop {
            let now = self.clock.now();
            {
                let mut inner = self.inner.lock();
                receiving.drop_stale(&mut inner.state);
                if let Some((message, step)) = receiving.peeked.take() {
                    self.handed_out(receiving, &mut inner, step, now);
                    return Some(message);
                }
                if !receiving.has_rest() {
                    inner.state.take(1, &mut receiving.entries);
                    self.flush(&mut inner, now);
                }
            }
            let mut message = None;
            let step = receiving.step(self, now, &mut |view| {
                message = Some(view.to_message());
                ControlFlow::Break(())
            })?;
            self.handed_out(receiving, &mut self.inner.lock(), step, now);
            if message.is_some() {
                return message;
            }
        }
    }

    /// Messages are the application's now, or there were none.
    fn handed_out(&self, receiving: &Receiving, inner: &mut Inner, step: Step, now: Duration) {
        inner
            .state
            .consumed(receiving.ticket, step.permits, step.consumed);
        if receiving.has_ack_timeout && step.messages > 0 {
            inner.state.delivered(step.position, now);
        }
        self.flush(inner, now);
    }

    /// Tells what could not be read of an entry, and of those that waited for it.
    fn tell_unreadable(&self, position: Position, decoded: &Decoded, now: Duration) {
        if let Some(unreadable) = &decoded.invalid {
            self.tell_discarded(position, &unreadable.reason, 1, now);
        }
        for lost in &decoded.lost {
            let first = lost.entries.first().copied().unwrap_or(position);
            self.tell_discarded(first, &lost.reason, lost.entries.len(), now);
        }
        if let Some(reason) = &decoded.too_large
            && let Some(untold) = self.notices.unreadable.pass(now)
        {
            let (ledger, entry) = position;
            warn!(topic = %self.text, ledger, entry, %reason, untold,
                "a message is left out and not acknowledged");
        }
    }

    /// Entries are acknowledged, the first of them being there, and what they hold is lost.
    pub(super) fn tell_discarded(
        &self,
        position: Position,
        reason: &str,
        entries: usize,
        now: Duration,
    ) {
        let entries = u64::try_from(entries).unwrap_or(u64::MAX);
        self.notices.discarded.fetch_add(entries, Ordering::Relaxed);
        if let Some(untold) = self.notices.unreadable.pass(now) {
            let (ledger, entry) = position;
            warn!(topic = %self.text, ledger, entry, %reason, untold,
                "a message cannot be read: it is acknowledged and dropped");
        }
    }

    /// Decodes entries until there is a message to hand out; says whether there is one.
    pub(crate) fn has_message_here(&self) -> bool {
        let mut receiving = self.receiving.lock();
        let receiving = &mut *receiving;
        loop {
            let now = self.clock.now();
            {
                let mut inner = self.inner.lock();
                receiving.drop_stale(&mut inner.state);
                if receiving.peeked.is_some() {
                    return true;
                }
                if !receiving.has_rest() {
                    inner.state.take(1, &mut receiving.entries);
                }
            }
            let mut message = None;
            let step = receiving.step(self, now, &mut |view| {
                message = Some(view.to_message());
                ControlFlow::Break(())
            });
            match (step, message) {
                (None, _) => return false,
                (Some(step), Some(message)) => receiving.peeked = Some((message, step)),
                (Some(step), None) => {
                    self.handed_out(receiving, &mut self.inner.lock(), step, now);
                }
            }
        }
    }

    /// Hands out the messages of up to `max` entries and returns how many that were: at most [`MESSAGES_MAX`], the rest
    /// comes with the next call.
    pub(crate) fn receive_each(
        self: &Arc<Self>,
        max: usize,
        visit: &mut dyn FnMut(MessageView<'_>),
    ) -> usize {
        let mut receiving = self.receiving.lock();
        let receiving = &mut *receiving;
        let now = self.clock.now();
        {
            let mut inner = self.inner.lock();
            receiving.drop_stale(&mut inner.state);
            let wanted = max.saturating_sub(receiving.entries.len());
            inner.state.take(wanted, &mut receiving.entries);
        }
        let mut messages = 0usize;
        let mut permits = 0u32;
        let mut last = None;
        let mut note = |step: Step| {
            permits = permits.saturating_add(step.permits);
            last = step.consumed.or(last);
        };
        let ticket = receiving.ticket;
        let has_ack_timeout = receiving.has_ack_timeout;
        let mut waited_for = None;
        // Before the application sees a message, which it may acknowledge at once, it is waited for.
        let mut show = |view: MessageView<'_>| {
            let position = view.position();
            if has_ack_timeout && waited_for.replace(position) != Some(position) {
                let mut inner = self.inner.lock();
                if inner.state.ticket() == ticket {
                    inner.state.delivered(position, now);
                }
            }
            visit(view);
        };
        if let Some((message, step)) = receiving.peeked.take() {
            message.with_view(&mut show);
            messages += 1;
            note(step);
        }
        while messages < MESSAGES_MAX {
            let step = receiving.step(self, now, &mut |view| {
                show(view);
                messages += 1;
                if messages < MESSAGES_MAX {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            let Some(step) = step else { break };
            note(step);
        }
        {
            let mut inner = self.inner.lock();
            inner.state.consumed(receiving.ticket, permits, last);
            self.flush(&mut inner, now);
        }
        self.push_if_more(receiving);
        messages
    }

    /// The next entry as it came, if there is one.
    pub(crate) fn receive_entry(self: &Arc<Self>) -> Option<RawEntry> {
        let mut receiving = self.receiving.lock();
        let receiving = &mut *receiving;
        let now = self.clock.now();
        let entry = {
            let mut inner = self.inner.lock();
            receiving.drop_stale(&mut inner.state);
            loop {
                if receiving.entries.is_empty() {
                    inner.state.take(1, &mut receiving.entries);
                }
                let Some(entry) = receiving.entries.pop_front() else {
                    break None;
                };
                let position = entry.position();
                let consumed = Some(Consumed::entry(position));
                inner
                    .state
                    .consumed(receiving.ticket, entry.count, consumed);
                if entry.count == 0 || receiving.start.leaves_out(position, Some(u32::MAX)) {
                    continue;
                }
                if receiving.has_ack_timeout {
                    inner.state.delivered(position, now);
                }
                break Some(entry);
            }
        };
        self.flush(&mut self.inner.lock(), now);
        self.push_if_more(receiving);
        let entry = entry?;
        Some(RawEntry {
            id: MessageId {
                partition: self.name.partition(),
                ..MessageId::of_entry(entry.ledger_id, entry.entry_id)
            },
            topic: Arc::clone(&self.text),
            redelivery_count: entry.redelivery_count,
            ack_set: entry.ack_set,
            messages: entry.count,
            entry: entry.payload,
        })
    }

    /// When the first chunk of the oldest incomplete message came; `None` also while somebody receives.
    pub(super) fn oldest_incomplete(&self) -> Option<Duration> {
        let mut receiving = self.receiving.try_lock()?;
        receiving.decoder.oldest_incomplete()
    }

    /// The oldest incomplete message gives way to one of another topic; says whether there was one.
    pub(super) fn give_up_oldest(&self) -> bool {
        let Some(mut receiving) = self.receiving.try_lock() else {
            return false;
        };
        let now = self.clock.now();
        let decoded = receiving.decoder.give_up_oldest(now);
        if decoded.is_plain() {
            return false;
        }
        let mut inner = self.inner.lock();
        if inner.state.ticket() == receiving.ticket {
            let first = decoded.lost.iter().flat_map(|lost| &lost.entries).next();
            let position = first.copied().unwrap_or_default();
            apply(&mut inner.state, position, &decoded, now);
            self.flush(&mut inner, now);
            drop(inner);
            self.tell_unreadable(position, &decoded, now);
        }
        true
    }

    /// Asks for a message where there is no queue.
    pub(crate) fn want_one(&self) {
        if !self.receiving.lock().has_rest() {
            self.with_state(|state, _| state.want_one());
        }
    }

    fn push_if_more(self: &Arc<Self>, receiving: &Receiving) {
        if receiving.has_rest() || self.inner.lock().state.has_entries() {
            self.ready.push(self);
        }
    }
}

/// Messages that are handed out at a time, however many entries are wanted: a batch may have millions.
const MESSAGES_MAX: usize = 65_536;
