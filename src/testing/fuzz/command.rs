use bytes::{Bytes, BytesMut};

use super::Input;
use crate::protocol::command::{self, Command};
use crate::protocol::frame::{FrameDecoder, FrameLimits};
use crate::protocol::rewrite::{self, CommandEditor};

/// The decoder of commands: an encoded `BaseCommand`.
///
/// - The type is what a peek at it says, the request id what a search for it finds.
/// - Value or error are what the generated code gives.
/// - What decodes, encodes to a command that decodes and encodes to the same bytes, alone and in a frame.
pub fn command(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let peeked = Command::peek_type(&bytes);
    let decoded = Command::decode(&bytes);
    let generated = Command::decode_generated(&bytes);
    // A rate that is no number equals nothing, not even itself; it prints as it is.
    assert!(
        decoded == generated || format!("{decoded:?}") == format!("{generated:?}"),
        "{decoded:?} is not {generated:?} of the generated code"
    );
    let Ok(command) = decoded else {
        return;
    };
    assert_eq!(peeked, Ok(command.command_type()));
    assert!(!command::name_of(command.command_type()).is_empty());
    assert_eq!(command.request_id(), rewrite::request_id_of(&bytes));
    if matches!(command, Command::Unknown { .. }) {
        return;
    }

    let encoded = command.encode_command();
    assert_eq!(encoded.len(), command.encoded_len());
    let again = Command::decode(&encoded).expect("an encoded command decodes");
    assert_eq!(
        again.encode_command(),
        encoded,
        "changes from one encoding to the next"
    );

    let payload: &[u8] = if command::has_payload(command.command_type()) {
        data
    } else {
        &[]
    };
    let mut wire = BytesMut::new();
    command.encode_with_payload(&[payload], &mut wire);
    let decoder = FrameDecoder::new(FrameLimits {
        max_frame: wire.len(),
    });
    let frame = decoder
        .decode(&mut wire)
        .expect("the sizes are right")
        .expect("it is all there");
    assert_eq!((frame.command, &frame.payload[..]), (encoded, payload));
    assert!(wire.is_empty());
}

/// The editor of encoded commands: `u8 kind of edit | u8 field | u32 value | an encoded BaseCommand`.
///
/// - A command without edits decodes as before, and editing it again changes nothing.
/// - An edit is found in the command, and every other field of it is as it was.
pub fn rewrite(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let field = u32::from(input.u8()).max(1);
    let value = u64::from(input.u32());
    let command = input.rest;
    let Ok(editor) = CommandEditor::new(command) else {
        assert!(rewrite::with_request_id(command, value).is_err());
        return;
    };

    let same = editor.finish();
    let unedited = CommandEditor::new(&same).expect("a command that was edited can be");
    assert_eq!(unedited.finish(), same);
    assert_eq!(unedited.command_type(), editor.command_type());
    assert_eq!(canonical(command), canonical(&same));

    let mut edited = editor.clone();
    let content = value.to_be_bytes();
    match kind % 4 {
        0 => edited.set_varint(field, value),
        1 => edited.set_bytes(field, &content),
        2 => edited.set_bool(field, value % 2 == 1),
        _ => edited.remove(field),
    };
    let edited = edited.finish();
    let result = CommandEditor::new(&edited).expect("an edited command can be edited");
    match kind % 4 {
        0 => assert_eq!(result.varint(field), Some(value)),
        1 => assert_eq!(result.bytes(field), Some(&content[..])),
        2 => assert_eq!(result.varint(field), Some(value % 2)),
        _ => assert_eq!((result.varint(field), result.bytes(field)), (None, None)),
    }
    for other in (1..=u32::from(u8::MAX)).filter(|other| *other != field) {
        assert_eq!(result.varint(other), editor.varint(other), "field {other}");
        assert_eq!(result.bytes(other), editor.bytes(other), "field {other}");
    }

    if let Ok(answer) = rewrite::with_request_id(command, value) {
        assert_eq!(rewrite::request_id_of(&answer), Some(value));
    }
}

/// What a command says, whatever way it was encoded; `None` when it does not decode.
fn canonical(command: &[u8]) -> Option<Bytes> {
    let command = Command::decode(&Bytes::copy_from_slice(command)).ok()?;
    Some(command.encode_command())
}
