//! Acknowledgements of messages that were shown, followed until the broker has taken them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::client::{
    ClientError, MessageId,
    consumer::{AckError, AckReceipt, Consumer, ReceivedMessage},
};

/// Those without an answer.
pub(super) struct Acknowledging<'a> {
    consumer: &'a Consumer,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    topic: Arc<str>,
    /// What is acknowledged. Nothing, if it is a message of a batch of which others are not: then no acknowledgement is lost
    /// with the answer.
    entries: Vec<(u64, u64)>,
    receipt: AckReceipt,
}

impl<'a> Acknowledging<'a> {
    /// None yet.
    pub(super) fn new(consumer: &'a Consumer) -> Self {
        Self {
            consumer,
            waiting: VecDeque::new(),
        }
    }

    /// Acknowledges a message. Waits only where far too many have no answer.
    ///
    /// # Errors
    /// This one, or one before it, is refused.
    pub(super) async fn add(&mut self, message: &ReceivedMessage) -> Result<(), AckError> {
        self.send(&message.topic, &message.id)?;
        while let Some(mut first) = self.waiting.pop_front() {
            let answer = match first.receipt.try_answer() {
                Some(answer) => answer,
                None if self.waiting.len() >= WAITING_MAX => first.receipt.await,
                None => {
                    self.waiting.push_front(first);
                    break;
                }
            };
            match answer {
                Err(error) if is_lost(&error) => {
                    self.send_again(&first.topic, &first.entries)?;
                    break;
                }
                answer => answer?,
            }
        }
        Ok(())
    }

    /// Sends what is collected and waits until the broker has taken all.
    ///
    /// # Errors
    /// One is refused, or not known to be taken within `limit`.
    pub(super) async fn settle(mut self, limit: Duration) -> Result<(), AckError> {
        self.consumer.flush_acks();
        let mut last = ClientError::NotConnected;
        let settled = async {
            while let Some(first) = self.waiting.pop_front() {
                let Waiting {
                    topic,
                    entries,
                    receipt,
                } = first;
                match receipt.await {
                    Err(AckError::Client(error)) if error.is_retryable() => {
                        last = error;
                        self.send_again(&topic, &entries)?;
                        self.consumer.flush_acks();
                    }
                    answer => answer?,
                }
            }
            Ok(())
        };
        match tokio::time::timeout(limit, settled).await {
            Ok(settled) => settled,
            Err(_) => Err(AckError::Client(ClientError::Timeout {
                limit,
                last: Box::new(last),
            })),
        }
    }

    fn send(&mut self, topic: &Arc<str>, id: &MessageId) -> Result<(), AckError> {
        let message = (Arc::clone(topic), id.clone());
        let (receipt, entries) = self.consumer.ack_entries_later(&message)?;
        self.waiting.push_back(Waiting {
            topic: message.0,
            entries,
            receipt,
        });
        Ok(())
    }

    /// Entries, not messages: what was a message of a batch or of several chunks is not known to the consumer any more.
    fn send_again(&mut self, topic: &Arc<str>, entries: &[(u64, u64)]) -> Result<(), AckError> {
        for (ledger_id, entry_id) in entries {
            self.send(topic, &MessageId::of_entry(*ledger_id, *entry_id))?;
        }
        Ok(())
    }
}

/// Whether it may not have reached the broker.
fn is_lost(error: &AckError) -> bool {
    matches!(error, AckError::Client(error) if error.is_retryable())
}

/// Acknowledgements that may be without an answer.
const WAITING_MAX: usize = 50_000;
