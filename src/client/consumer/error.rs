//! What can go wrong with a consumer. Creating, seeking, closing and the like fail with [`ClientError`].

use crate::{client::error::ClientError, protocol::proto::pulsar::ServerError};

/// Why there is no further message.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReceiveError {
    /// The consumer is closed.
    #[error("the consumer is closed")]
    Closed,
    /// Its topic, or each of its topics, is lost for good: deleted, for example.
    #[error("the consumer has lost its topic: {0}")]
    Failed(ClientError),
}

/// Why a message was not acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AckError {
    /// The consumer is closed.
    #[error("the consumer is closed")]
    Closed,
    /// The id names no topic of this consumer, or does not say which of several.
    #[error("the id is of none of the topics of this consumer")]
    UnknownTopic,
    /// In a Shared or Key_Shared subscription messages are acknowledged one by one.
    #[error("cumulative acknowledgement is not possible in a shared subscription")]
    CumulativeNotAllowed,
    /// The id says which message of a batch it is, and not how large the batch is.
    #[error("the id lacks the size of its batch")]
    NoBatchSize,
    /// The subscription was moved before it was sent.
    #[error("a seek came before the acknowledgement was sent")]
    Sought,
    /// The broker answered that it cannot or will not.
    #[error("the broker refused the acknowledgement: {code:?}: {message}")]
    Refused {
        /// The broker's code.
        code: ServerError,
        /// The broker's text.
        message: String,
    },
    /// There was no answer; it may have been carried out all the same.
    #[error(transparent)]
    Client(#[from] ClientError),
}
