//! What a producer's state makes of answers, of their absence, and of the end. Pure.
// hot path

use std::time::Duration;

use super::{
    batch::Batches,
    error::SendError,
    pending::{ChunkPlace, Entry, Segment},
    state::{AfterSendError, BadReceipt, Now, Outcome, ProducerState, fail_all},
};
use crate::{
    client::{error::ClientError, message_id::MessageId},
    protocol::proto::pulsar::{CommandSendReceipt, MessageIdData, ServerError},
};

impl<C> ProducerState<C> {
    /// The next frames that the connection is to be given.
    pub(crate) fn unsent(&self) -> Option<&Segment> {
        self.pending.unsent()
    }

    /// The connection took them.
    pub(crate) fn mark_sent(&mut self) {
        self.pending.mark_sent();
    }

    /// A receipt came.
    ///
    /// Receipts come in the order of SEND. One for an older message is of a message that was given up (or of one that was
    /// sent twice) and means nothing.
    ///
    /// # Errors
    /// The receipt is for a message that is not next, or was not sent: what the broker stored is not known any more, and
    /// all has to be sent again on another connection.
    pub(crate) fn on_receipt(&mut self, receipt: &CommandSendReceipt) -> Result<(), BadReceipt> {
        let Some((front, is_sent)) = self.pending.front() else {
            return Ok(());
        };
        if receipt.sequence_id < front.sequence_id {
            return Ok(());
        }
        if receipt.sequence_id > front.sequence_id || !is_sent {
            return Err(BadReceipt("a receipt for a message that is not next"));
        }
        if front
            .highest_sequence_id
            .is_some_and(|highest| receipt.highest_sequence_id != Some(highest))
        {
            return Err(BadReceipt("a receipt for a part of a batch"));
        }
        let highest = front.highest_sequence_id.unwrap_or(front.sequence_id);
        self.problem = None;
        self.last_published = self.last_published.max(Some(highest));
        let (is_batch, size, chunk) = (front.is_batch, front.messages, front.chunk);
        let mut id = self.message_id(receipt.message_id.as_ref());
        match chunk {
            Some(ChunkPlace::First) => self.first_chunk = Some((id.ledger_id, id.entry_id)),
            Some(ChunkPlace::Last) => id.first_chunk = self.first_chunk.take().map(Box::new),
            Some(ChunkPlace::Middle) | None => {}
        }
        if is_batch {
            id.batch_size = Some(size);
        }
        self.pending.pop(|index, completion| {
            let mut id = id.clone();
            if is_batch {
                id.batch_index = Some(index);
            }
            self.outcomes.push(Outcome {
                completion,
                result: Ok(id),
            });
        });
        self.retire_flushes();
        Ok(())
    }

    /// Forgets flushes whose messages are all answered.
    #[inline]
    fn retire_flushes(&mut self) {
        let first = self.pending.first_ordinal();
        while self
            .flushes
            .front()
            .is_some_and(|flush| flush.end() <= first)
        {
            self.flushes.pop_front();
        }
    }

    /// -1, -1 for a message that the broker had already (deduplication).
    fn message_id(&self, data: Option<&MessageIdData>) -> MessageId {
        let mut id = MessageId::earliest();
        if let Some(data) = data {
            id = MessageId::of_entry(data.ledger_id, data.entry_id);
        }
        id.partition = self.options.partition;
        id
    }

    /// The broker refused a message.
    pub(crate) fn on_send_error(
        &mut self,
        sequence_id: u64,
        code: ServerError,
        message: String,
    ) -> AfterSendError {
        let is_front = |entry: &Entry| {
            entry.sequence_id == sequence_id || entry.highest_sequence_id == Some(sequence_id)
        };
        match code {
            ServerError::TopicTerminatedError => {
                self.end(SendError::Terminated);
                AfterSendError::Terminated
            }
            ServerError::NotAllowedError => {
                if self
                    .pending
                    .front()
                    .is_some_and(|(entry, _)| is_front(entry))
                {
                    self.fail_message(&SendError::Refused { code, message });
                }
                AfterSendError::GoOn
            }
            ServerError::ChecksumError => {
                let is_intact = self.pending.is_front_intact();
                let Some(front) = self.pending.front_mut().filter(|entry| is_front(entry)) else {
                    return AfterSendError::GoOn;
                };
                front.checksum_errors += 1;
                if is_intact && front.checksum_errors < CHECKSUM_ATTEMPTS {
                    self.pending.rewind();
                    return AfterSendError::Resend;
                }
                self.fail_message(&SendError::Checksum);
                // What follows was sent and will be answered.
                AfterSendError::GoOn
            }
            _ => AfterSendError::Reconnect,
        }
    }

    /// Why messages may have no receipt yet.
    pub(crate) fn note_problem(&mut self, problem: ClientError) {
        self.problem = Some(Box::new(problem));
    }

    /// Whether such a reason is known.
    pub(crate) fn has_problem(&self) -> bool {
        self.problem.is_some()
    }

    /// When [`on_time`](Self::on_time) is to be called next.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let batch = self.batches.as_ref().and_then(Batches::due);
        let timeout = self.timeout_at();
        match (batch, timeout) {
            (Some(batch), Some(timeout)) => Some(batch.min(timeout)),
            (batch, timeout) => batch.or(timeout),
        }
    }

    fn timeout_at(&self) -> Option<Duration> {
        let (front, _) = self.pending.front()?;
        Some(front.created.saturating_add(self.options.send_timeout?))
    }

    /// Sends batches that waited long enough, and gives up messages that did.
    pub(crate) fn on_time(&mut self, now: Now) {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= now.elapsed);
        if is_due(self.batches.as_ref().and_then(Batches::due)) {
            self.flush_batches(now);
        }
        if let Some(timeout) = self.options.send_timeout
            && is_due(self.timeout_at())
        {
            self.fail_everything(&SendError::Timeout {
                limit: timeout,
                last: self.problem.clone(),
            });
        }
    }

    /// Nothing more can be sent, for this reason; all that waits fails.
    pub(crate) fn end(&mut self, error: SendError) {
        self.fail_everything(&error);
        self.ended.get_or_insert(error);
    }

    /// Gives room back that an idle producer does not need.
    pub(crate) fn release_buffer(&mut self) {
        self.pending.release_buffer();
    }

    /// All that waits fails with this.
    pub(crate) fn fail_everything(&mut self, error: &SendError) {
        while !self.pending.is_empty() {
            self.fail_front(error);
        }
        self.first_chunk = None;
        if let Some(batches) = &mut self.batches {
            for batch in batches.take() {
                fail_all(batch.completions, error, &mut self.outcomes);
            }
        }
    }

    /// Fails the message at the front; of a chunked one all chunks that are left.
    pub(super) fn fail_message(&mut self, error: &SendError) {
        while let Some((entry, _)) = self.pending.front() {
            let is_end = !matches!(entry.chunk, Some(ChunkPlace::First | ChunkPlace::Middle));
            self.fail_front(error);
            if is_end {
                break;
            }
        }
        self.first_chunk = None;
    }

    fn fail_front(&mut self, error: &SendError) {
        let ordinal = self.pending.first_ordinal();
        self.pending.pop(|_, completion| {
            self.outcomes.push(Outcome {
                completion,
                result: Err(error.clone()),
            });
        });
        for flush in self.flushes.iter().filter(|flush| ordinal < flush.end()) {
            flush.fail(error);
        }
        self.retire_flushes();
    }
}

/// How often a message is sent that arrives with another checksum.
const CHECKSUM_ATTEMPTS: u8 = 3;
