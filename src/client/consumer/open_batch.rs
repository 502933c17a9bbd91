//! A batch of which some messages were handed out: the others are made when they are wanted. Pure.

use std::{
    ops::ControlFlow,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;

use super::{
    ack_set,
    acknowledgements::Position,
    decode::{Unreadable, Visit},
    message::{EntryMetadata, MessageView},
    start::StartPosition,
};
use crate::protocol::{
    batch::{BatchError, BatchReader},
    proto::pulsar::{BrokerEntryMetadata, command_ack::ValidationError},
};

/// A place in a batch.
#[derive(Debug)]
pub(super) struct BatchCursor {
    messages: BatchReader,
    /// Of the next message.
    index: u32,
    size: u32,
}

/// What a walk along a batch came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Walked {
    /// Messages that were handed out.
    pub(super) messages: u32,
    /// The place of the last one of them.
    pub(super) last: Option<u32>,
    /// Whether nothing is left.
    pub(super) is_over: bool,
    /// From the first message on that was not handed out, it is not what it claims.
    pub(super) invalid: Option<Unreadable>,
}

impl BatchCursor {
    /// In front of the first of the `count` messages that `payload` is said to have.
    pub(super) fn new(payload: Bytes, count: i32) -> Result<Self, Unreadable> {
        Ok(Self {
            messages: BatchReader::new(payload, count).map_err(malformed)?,
            index: 0,
            size: u32::try_from(count).unwrap_or_default(),
        })
    }

    /// How many messages the batch has.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Hands out the messages that are wanted until `visit` takes no more. `base` is the view of the entry.
    pub(super) fn walk(
        &mut self,
        base: MessageView<'_>,
        ack_set: &[i64],
        start: &StartPosition,
        visit: &mut Visit<'_>,
    ) -> Walked {
        let mut walked = Walked {
            messages: 0,
            last: None,
            is_over: false,
            invalid: None,
        };
        for message in self.messages.by_ref() {
            let index = self.index;
            self.index = self.index.saturating_add(1);
            let (single, payload) = match message {
                Ok(message) => message,
                Err(error) => {
                    walked.invalid = Some(malformed(error));
                    break;
                }
            };
            if single.compacted_out()
                || !ack_set::is_left(ack_set, index)
                || start.leaves_out(base.position, Some(index))
            {
                continue;
            }
            walked.messages += 1;
            walked.last = Some(index);
            let taken = visit(MessageView {
                batch: Some((index, self.size)),
                single: Some(&single),
                payload: &payload,
                ..base
            });
            if taken == ControlFlow::Break(()) {
                break;
            }
        }
        walked.is_over = walked.invalid.is_some() || self.messages.remaining() == 0;
        walked
    }
}

fn malformed(error: BatchError) -> Unreadable {
    Unreadable::new(ValidationError::BatchDeSerializeError, error)
}

/// The rest of a batch, with what its messages have in common.
#[derive(Debug)]
pub(crate) struct OpenBatch {
    cursor: BatchCursor,
    topic: Arc<str>,
    partition: Option<u32>,
    position: Position,
    redelivery_count: u32,
    ack_set: Vec<i64>,
    common: EntryMetadata,
    sequence_id: u64,
    publish_time: u64,
    broker_entry: Option<BrokerEntryMetadata>,
}

impl OpenBatch {
    /// What is left at `cursor` of the batch that `view` is of.
    pub(super) fn new(cursor: BatchCursor, view: MessageView<'_>, ack_set: &[i64]) -> Self {
        Self {
            cursor,
            topic: Arc::clone(view.topic),
            partition: view.partition,
            position: view.position,
            redelivery_count: view.redelivery_count,
            ack_set: ack_set.to_vec(),
            common: view.entry_metadata().clone(),
            sequence_id: view.metadata.sequence_id,
            publish_time: view.metadata.publish_time,
            broker_entry: view.broker_entry.cloned(),
        }
    }

    /// Where it lies.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Goes on: see [`BatchCursor::walk`].
    pub(super) fn walk(&mut self, start: &StartPosition, visit: &mut Visit<'_>) -> Walked {
        let metadata = self.common.view(self.sequence_id, self.publish_time);
        let common = OnceLock::from(self.common.clone());
        let base = MessageView {
            topic: &self.topic,
            partition: self.partition,
            position: self.position,
            batch: None,
            first_chunk: None,
            redelivery_count: self.redelivery_count,
            metadata: &metadata,
            common: &common,
            single: None,
            broker_entry: self.broker_entry.as_ref(),
            payload: &Bytes::new(),
        };
        self.cursor.walk(base, &self.ack_set, start, visit)
    }
}
