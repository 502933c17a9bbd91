//! The receiving end of a consumer of one topic: takes entries, makes messages of them and gives permits back.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    acknowledgements::Position,
    decode::{Decoded, Decoder, Input},
    message::{MessageView, QueuedEntry, RawEntry, ReceivedMessage},
    options::ConsumerOptions,
    start::StartPosition,
    state::{Consumed, State, Ticket},
    topic::TopicConsumer,
};
use crate::client::message_id::MessageId;

/// What one receiver at a time works with.
#[derive(Debug)]
pub(super) struct Receiving {
    decoder: Decoder,
    /// To what all that is here belongs.
    ticket: Ticket,
    start: StartPosition,
    /// Taken, not decoded yet. Empty but during a call.
    entries: VecDeque<QueuedEntry>,
    /// The rest of a batch.
    rest: VecDeque<(ReceivedMessage, Consumed)>,
    has_ack_timeout: bool,
}

impl Receiving {
    /// Nothing was received yet.
    pub(super) fn new(topic: Arc<str>, partition: Option<u32>, options: &ConsumerOptions) -> Self {
        Self {
            decoder: Decoder::new(topic, partition, options),
            ticket: Ticket::default(),
            start: StartPosition::unset(),
            entries: VecDeque::new(),
            rest: VecDeque::new(),
            has_ack_timeout: options.ack_timeout.is_some(),
        }
    }

    /// Drops what is from before a seek, a redelivery of everything or another attachment.
    fn drop_stale(&mut self, state: &mut State) {
        let ticket = state.ticket();
        if self.ticket == ticket {
            return;
        }
        // Those of another attachment count no more, which the state knows.
        let left = u32::try_from(self.rest.len()).unwrap_or(u32::MAX);
        state.consumed(self.ticket, left, None);
        self.rest.clear();
        self.entries.clear();
        self.decoder.clear();
        self.start = state.start().clone();
        self.ticket = ticket;
    }

    /// Decodes an entry and tells the state what is to be acknowledged of it.
    fn decode(
        &mut self,
        topic: &TopicConsumer,
        entry: &QueuedEntry,
        now: Duration,
        visit: &mut dyn FnMut(MessageView<'_>),
    ) -> Decoded {
        let input = Input {
            entry,
            start: &self.start,
            now,
        };
        let decoded = self.decoder.decode(input, visit);
        let is_plain = Decoded {
            messages: decoded.messages,
            ..Decoded::default()
        } == decoded;
        if !is_plain {
            let mut inner = topic.inner.lock();
            if inner.state.ticket() == self.ticket {
                apply(&mut inner.state, entry, &decoded, now);
            }
        }
        decoded
    }
}

/// What a decoded entry means for acknowledgements.
fn apply(state: &mut State, entry: &QueuedEntry, decoded: &Decoded, now: Duration) {
    let position = entry.position();
    if let Some(error) = decoded.invalid {
        state.acknowledgements().invalid(position, error);
    }
    if let Some(size) = decoded.part_of {
        state
            .acknowledgements()
            .delivered_in_part(position, &entry.ack_set, size);
    }
    if let Some(chunks) = &decoded.chunks {
        state.acknowledgements().delivered_in_chunks(chunks.clone());
    }
    if !decoded.lost.is_empty() {
        state
            .acknowledgements()
            .skipped(decoded.lost.iter().copied(), now);
    }
    state.redeliver(decoded.again.iter().copied());
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
                if let Some((message, consumed)) = receiving.rest.pop_front() {
                    inner.state.consumed(receiving.ticket, 1, Some(consumed));
                    if receiving.has_ack_timeout {
                        let position = (message.id.ledger_id, message.id.entry_id);
                        inner.state.delivered(position, now);
                    }
                    self.flush(&mut inner, now);
                    return Some(message);
                }
                inner.state.take(1, &mut receiving.entries);
                self.flush(&mut inner, now);
            }
            let entry = receiving.entries.pop_front()?;
            self.decode_to_rest(receiving, &entry, now);
        }
    }

    /// Decodes an entry; its messages wait in `rest`, and what was left out of it is done with.
    fn decode_to_rest(&self, receiving: &mut Receiving, entry: &QueuedEntry, now: Duration) {
        let mut messages = Vec::new();
        let decoded = receiving.decode(self, entry, now, &mut |view| {
            messages.push(view.to_message());
        });
        let position = entry.position();
        let last = messages.len();
        for (number, message) in (1..).zip(messages) {
            let consumed = match message.id.batch_index {
                Some(index) if number < last => Consumed::message(position, index),
                _ => Consumed::entry(position),
            };
            receiving.rest.push_back((message, consumed));
        }
        let left_out = entry.count.saturating_sub(decoded.messages);
        if left_out > 0 || decoded.messages == 0 {
            let is_over = decoded.messages == 0 && !decoded.is_waiting;
            let consumed = is_over.then(|| Consumed::entry(position));
            let mut inner = self.inner.lock();
            inner.state.consumed(receiving.ticket, left_out, consumed);
            self.flush(&mut inner, now);
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
                if !receiving.rest.is_empty() {
                    return true;
                }
                inner.state.take(1, &mut receiving.entries);
            }
            let Some(entry) = receiving.entries.pop_front() else {
                return false;
            };
            self.decode_to_rest(receiving, &entry, now);
        }
    }

    /// Hands out the messages of up to `max` entries and returns how many that were.
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
            inner.state.take(max, &mut receiving.entries);
        }
        let mut messages = 0u32;
        let mut permits = 0u32;
        let mut last = None;
        let mut delivered: Vec<Position> = Vec::new();
        while let Some((message, consumed)) = receiving.rest.pop_front() {
            message.with_view(&mut *visit);
            messages = messages.saturating_add(1);
            permits = permits.saturating_add(1);
            last = Some(consumed);
            delivered.push((message.id.ledger_id, message.id.entry_id));
        }
        while let Some(entry) = receiving.entries.pop_front() {
            let decoded = receiving.decode(self, &entry, now, visit);
            messages = messages.saturating_add(decoded.messages);
            permits = permits.saturating_add(entry.count.max(decoded.messages));
            if !decoded.is_waiting {
                last = Some(Consumed::entry(entry.position()));
            }
            if receiving.has_ack_timeout && decoded.messages > 0 {
                delivered.push(entry.position());
            }
        }
        {
            let mut inner = self.inner.lock();
            inner.state.consumed(receiving.ticket, permits, last);
            if receiving.has_ack_timeout {
                for position in delivered {
                    inner.state.delivered(position, now);
                }
            }
            self.flush(&mut inner, now);
        }
        self.push_if_more(receiving);
        usize::try_from(messages).unwrap_or(usize::MAX)
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
                inner.state.take(1, &mut receiving.entries);
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

    /// Asks for a message where there is no queue.
    pub(crate) fn want_one(&self) {
        if self.receiving.lock().rest.is_empty() {
            self.with_state(|state, _| state.want_one());
        }
    }

    fn push_if_more(self: &Arc<Self>, receiving: &Receiving) {
        if !receiving.rest.is_empty() || self.inner.lock().state.has_entries() {
            self.ready.push(self);
        }
    }
}
