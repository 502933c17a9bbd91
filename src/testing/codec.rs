//! The generated code as the reference for what is written by hand.

use bytes::Bytes;

use crate::protocol::command::{Command, CommandError};

/// As [`Command::decode`], by the generated code alone.
///
/// # Errors
/// As [`Command::decode`].
pub fn decode_generated(bytes: &Bytes) -> Result<Command, CommandError> {
    Command::decode_generated(bytes)
}
