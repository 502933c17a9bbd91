//! Why a message was not sent.

use std::time::Duration;

use crate::{client::error::ClientError, protocol::proto::pulsar::ServerError};

/// Why a message was not sent, or is not known to be stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SendError {
    /// As many messages or bytes wait for their receipts as may.
    #[error("the producer's queue is full")]
    QueueFull,
    /// No receipt within `send_timeout`, for this message or one before it; it may have been stored all the same.
    #[error("no receipt within {limit:?}{}", of_last(last.as_deref()))]
    Timeout {
        /// `send_timeout`.
        limit: Duration,
        /// What the broker, or the way to it, said last meanwhile.
        last: Option<Box<ClientError>>,
    },
    /// It is larger than the broker takes, and chunks are off.
    #[error("the message takes {size} bytes, the broker takes {max}")]
    TooLarge {
        /// Metadata and payload in bytes.
        size: usize,
        /// The broker's limit in bytes.
        max: usize,
    },
    /// The broker refused this message.
    #[error("the broker refused the message: {code:?}: {message}")]
    Refused {
        /// The broker's code, [`ServerError::UnknownError`] when it is none that we know.
        code: ServerError,
        /// The broker's text.
        message: String,
    },
    /// Another producer has taken the topic over (PIP-68). The producer is of no use any more.
    #[error("the producer was fenced by another one")]
    Fenced,
    /// The topic was terminated: nothing can ever be added.
    #[error("the topic was terminated")]
    Terminated,
    /// The broker says again and again that the message came with another checksum than it was sent with.
    #[error("the message was corrupted on its way")]
    Checksum,
    /// The codec refused the payload.
    #[error("the message cannot be compressed")]
    Compression,
    /// The producer or its client was closed.
    #[error("the producer is closed")]
    Closed,
    /// The producer cannot get back to its topic.
    #[error(transparent)]
    Client(#[from] ClientError),
}

fn of_last(last: Option<&ClientError>) -> String {
    last.map_or_else(String::new, |last| format!("; last: {last}"))
}
