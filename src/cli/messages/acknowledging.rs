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
    message: (Arc<str>, MessageId),
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
        self.send((Arc::clone(&message.topic), message.id.clone()))?;
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
                    // Of a batch it is not known here which others were acknowledged with it: it is delivered again.
                    if first.message.1.batch_index.is_none() {
                        self.send(first.message)?;
                    }
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
                match first.receipt.await {
                    Err(AckError::Client(error))
                        if error.is_retryable() && first.message.1.batch_index.is_none() =>
                    {
                        last = error;
                        self.send(first.message)?;
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

    fn send(&mut self, message: (Arc<str>, MessageId)) -> Result<(), AckError> {
        let receipt = self.consumer.ack_later(&message)?;
        self.waiting.push_back(Waiting { message, receipt });
        Ok(())
    }
}

/// Whether it may not have reached the broker.
fn is_lost(error: &AckError) -> bool {
    matches!(error, AckError::Client(error) if error.is_retryable())
}

/// Acknowledgements that may be without an answer.
const WAITING_MAX: usize = 50_000;
