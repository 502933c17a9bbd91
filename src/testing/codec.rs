//! The generated code as the reference for what is written by hand.

use bytes::Bytes;

use crate::protocol::command::{Command, CommandError};
use crate::protocol::message::{self, MessageError};
use crate::protocol::proto::pulsar::MessageMetadata;

/// As [`Command::decode`], by the generated code alone.
///
/// # Errors
/// As [`Command::decode`].
pub fn decode_generated(bytes: &Bytes) -> Result<Command, CommandError> {
    Command::decode_generated(bytes)
}

/// As [`message::decode_metadata`], by the generated code alone.
///
/// # Errors
/// As [`message::decode_metadata`].
pub fn decode_metadata_generated(encoded: Bytes) -> Result<MessageMetadata, MessageError> {
    message::decode_metadata_generated(encoded)
}
