//! Required fields.
//!
//! The generated types do not tell a missing required field from one that is 0 or empty. Pulsar's own libraries refuse
//! a message without one, so that is checked here, on the bytes.
// hot path

use crate::protocol::wire::{Fields, Value};

include!(concat!(env!("OUT_DIR"), "/required.rs"));

/// What a message needs to have.
struct Requirement {
    /// Bit n: the field with the number n is required. Numbers are below 64.
    fields: u64,
    /// The fields that are messages which need something themselves: number and place in `REQUIREMENTS`.
    messages: &'static [(u32, usize)],
}

/// Checks the sub-message of a command. The error is the number of a missing field in the innermost message that lacks
/// one. `body` has been decoded before: malformed bytes are not reported here, and nesting is not too deep.
pub(crate) fn check_command(command_type: i32, body: &[u8]) -> Result<(), u32> {
    match requirement_of_command(command_type) {
        Some(index) => check(index, body),
        None => Ok(()),
    }
}

/// Checks an encoded `MessageMetadata`, which must have been decoded before. The error is the number of a missing field
/// in the innermost message that lacks one.
pub fn check_message_metadata(metadata: &[u8]) -> Result<(), u32> {
    check(MESSAGE_METADATA, metadata)
}

/// Checks an encoded `SingleMessageMetadata` as [`check_message_metadata`] does.
pub fn check_single_message_metadata(metadata: &[u8]) -> Result<(), u32> {
    check(SINGLE_MESSAGE_METADATA, metadata)
}

fn check(index: usize, message: &[u8]) -> Result<(), u32> {
    let Some(requirement) = REQUIREMENTS.get(index) else {
        return Ok(());
    };
    let mut missing = requirement.fields;
    for field in Fields::new(message).flatten() {
        missing &= !1_u64.checked_shl(field.number).unwrap_or(0);
        if let Value::Bytes(bytes) = field.value
            && let Some(&(_, inner)) = requirement
                .messages
                .iter()
                .find(|(number, _)| *number == field.number)
        {
            check(inner, bytes)?;
        }
    }
    if missing == 0 {
        Ok(())
    } else {
        Err(missing.trailing_zeros())
    }
}
