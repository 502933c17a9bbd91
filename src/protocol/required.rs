//! Required fields.
//!
//! The generated types do not tell a missing required field from one that is 0 or empty. Pulsar's own libraries refuse
//! a message without one, so that is checked here, on the bytes.
// hot path

use crate::protocol::wire::{Fields, Value, WireError};

include!(concat!(env!("OUT_DIR"), "/required.rs"));

/// What a message needs to have.
struct Requirement {
    /// Bit n: the field with the number n is required. Numbers are below 64.
    fields: u64,
    /// The fields that are messages which need something themselves: number and place in `REQUIREMENTS`.
    messages: &'static [(u32, usize)],
}

/// Why an encoded message is refused before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A required field is missing. It is the number of the field in the innermost message that lacks one.
    Missing(u32),
    /// The message, or one in it that has required fields, is malformed.
    Malformed(WireError),
}

impl From<WireError> for Violation {
    fn from(error: WireError) -> Self {
        Violation::Malformed(error)
    }
}

/// Checks the sub-message of a command.
///
/// To be called before decoding: a list of messages that lack their required fields takes two bytes an element encoded,
/// and fifty times as much decoded.
pub(crate) fn check_command(command_type: i32, body: &[u8]) -> Result<(), Violation> {
    match requirement_of_command(command_type) {
        Some(index) => check(index, body, DEPTH_MAX),
        None => check_fields(body),
    }
}

/// Checks an encoded `MessageMetadata`, before it is decoded.
pub fn check_message_metadata(metadata: &[u8]) -> Result<(), Violation> {
    check(MESSAGE_METADATA, metadata, DEPTH_MAX)
}

/// Checks an encoded `SingleMessageMetadata`, before it is decoded.
pub fn check_single_message_metadata(metadata: &[u8]) -> Result<(), Violation> {
    check(SINGLE_MESSAGE_METADATA, metadata, DEPTH_MAX)
}

/// Checks that a message without requirements is well-formed: the decoder skips groups, which no field of Pulsar's is
/// and its own libraries refuse.
fn check_fields(message: &[u8]) -> Result<(), Violation> {
    for field in Fields::new(message) {
        field?;
    }
    Ok(())
}

fn check(index: usize, message: &[u8], depth: u32) -> Result<(), Violation> {
    let Some(requirement) = REQUIREMENTS.get(index) else {
        return check_fields(message);
    };
    let depth = depth.checked_sub(1).ok_or(WireError::TooDeep)?;
    let mut missing = requirement.fields;
    for field in Fields::new(message) {
        let field = field?;
        missing &= !1_u64.checked_shl(field.number).unwrap_or(0);
        if let Value::Bytes(bytes) = field.value
            && let Some(&(_, inner)) = requirement
                .messages
                .iter()
                .find(|(number, _)| *number == field.number)
        {
            check(inner, bytes, depth)?;
        }
    }
    if missing == 0 {
        Ok(())
    } else {
        Err(Violation::Missing(missing.trailing_zeros()))
    }
}

/// How deep messages may be nested; the decoder has the same limit.
const DEPTH_MAX: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: i32 = 10;

    /// An ACK of one message id whose first chunk's id has a first chunk's id, and so on.
    fn nested(levels: u32) -> Vec<u8> {
        let mut id = b"\x08\0\x10\0".to_vec();
        for _ in 1..levels {
            let mut outer = b"\x08\0\x10\0".to_vec();
            prost::encoding::bytes::encode(7, &id, &mut outer);
            id = outer;
        }
        let mut ack = b"\x08\x01\x10\0".to_vec();
        prost::encoding::bytes::encode(3, &id, &mut ack);
        ack
    }

    #[test]
    fn refuses_what_is_nested_too_deep() {
        assert_eq!(check_command(ACK, &nested(DEPTH_MAX - 1)), Ok(()));
        let too_deep = Err(Violation::Malformed(WireError::TooDeep));
        assert_eq!(check_command(ACK, &nested(DEPTH_MAX)), too_deep);
        assert_eq!(check_command(ACK, &nested(10_000)), too_deep);
    }

    #[test]
    fn names_the_missing_field() {
        assert_eq!(check_command(ACK, b"\x08\x01"), Err(Violation::Missing(2)));
        let without_entry = b"\x08\x01\x10\0\x1a\x02\x08\x01";
        assert_eq!(
            check_command(ACK, without_entry),
            Err(Violation::Missing(2))
        );
    }

    #[test]
    fn refuses_groups() {
        let group = WireError::WireType {
            field: 14,
            wire_type: 3,
        };
        let ping = 18;
        assert_eq!(
            check_command(ping, b"\x73\x74"),
            Err(Violation::Malformed(group))
        );
        let close_consumer = 16;
        let bytes = b"\x10\x10\x08\x69\x73\x74\x10\x21";
        assert_eq!(
            check_command(close_consumer, bytes),
            Err(Violation::Malformed(group))
        );
    }
}
