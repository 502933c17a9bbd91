//! Changing single fields of an encoded command.
//!
//! A gateway passes on commands of peers that may be newer than it is. So it must not decode and encode them, which
//! would lose what it does not know: it changes the few fields that it has to, and every other byte stays. Owns exactly
//! that; which fields to change is decided elsewhere.

use bytes::{BufMut, Bytes, BytesMut};

use crate::protocol::command::{self, Command, CommandError, TYPE_FIELD};
use crate::protocol::wire::{self, Field, Fields, Value};

/// Changes fields of the sub-message of an encoded `BaseCommand`. All other bytes are kept as they are, fields that are
/// not known here included.
///
/// The sub-message that the type names is edited. Where a peer repeats it, only the last one counts (as for
/// [`Command::decode`]) and the others are left out, so that no receiver can see what was to be replaced.
#[derive(Clone, Debug)]
pub struct CommandEditor<'a> {
    command: &'a [u8],
    command_type: i32,
    body: &'a [u8],
    /// In the order of the field numbers, each number once.
    edits: Vec<Edit>,
}

#[derive(Clone, Debug)]
struct Edit {
    field: u32,
    /// The whole new field, tag included; empty to remove the field.
    encoded: Vec<u8>,
}

impl<'a> CommandEditor<'a> {
    /// Starts editing the bytes of a `BaseCommand`. Nothing is copied yet.
    ///
    /// An error if the bytes are malformed, down to the fields of the sub-message, or if the sub-message is missing;
    /// commands of unknown types can be edited if their sub-message has the number of their type.
    pub fn new(command: &'a [u8]) -> Result<Self, CommandError> {
        let command_type = Command::peek_type(command)?;
        if command_type == TYPE_FIELD.cast_signed() {
            return Err(CommandError::BodyMissing { command_type });
        }
        let body = command::body_of(command, command_type)?
            .ok_or(CommandError::BodyMissing { command_type })?;
        for field in Fields::new(body) {
            field?;
        }
        Ok(CommandEditor {
            command,
            command_type,
            body,
            edits: Vec::new(),
        })
    }

    /// The type of the command.
    pub fn command_type(&self) -> i32 {
        self.command_type
    }

    /// The value of an integer, boolean or enum field before any edit; the last one if it is repeated.
    pub fn varint(&self, field: u32) -> Option<u64> {
        self.value(field).and_then(Value::varint)
    }

    /// The content of a string, bytes or message field before any edit; the last one if it is repeated.
    pub fn bytes(&self, field: u32) -> Option<&'a [u8]> {
        self.value(field).and_then(Value::bytes)
    }

    /// Sets an integer or enum field. Of several fields with this number one remains.
    ///
    /// # Panics
    ///
    /// This and the other setters: if `field` is not a field number (1 to 2^29 - 1). It must not come from a peer.
    pub fn set_varint(&mut self, field: u32, value: u64) -> &mut Self {
        let mut encoded = Vec::with_capacity(MAX_TAG_LEN + wire::varint_len(value));
        put_tag(field, 0, &mut encoded);
        wire::put_varint(value, &mut encoded);
        self.edit(Edit { field, encoded })
    }

    /// Sets a boolean field.
    pub fn set_bool(&mut self, field: u32, value: bool) -> &mut Self {
        self.set_varint(field, u64::from(value))
    }

    /// Sets a string, bytes or message field (the latter encoded by the caller). Of several fields with this number one
    /// remains.
    pub fn set_bytes(&mut self, field: u32, value: &[u8]) -> &mut Self {
        let len = value.len() as u64;
        let mut encoded = Vec::with_capacity(MAX_TAG_LEN + wire::varint_len(len) + value.len());
        put_tag(field, 2, &mut encoded);
        wire::put_varint(len, &mut encoded);
        encoded.extend_from_slice(value);
        self.edit(Edit { field, encoded })
    }

    /// Removes every field with this number.
    pub fn remove(&mut self, field: u32) -> &mut Self {
        self.edit(Edit {
            field,
            encoded: Vec::new(),
        })
    }

    /// The command with all edits. A field that was there keeps its place; a new one stands before the first field with
    /// a higher number, where an encoder would put it.
    pub fn finish(&self) -> Bytes {
        let body = self.edited_body();
        let mut out = BytesMut::with_capacity(self.command.len() + body.len() + MAX_TAG_LEN);
        let number = self.command_type.cast_unsigned();
        let last = self
            .fields_of(self.command)
            .filter(|field| field.number == number)
            .last();
        for field in self.fields_of(self.command) {
            if field.number != number {
                out.put_slice(self.command.get(field.start..field.end).unwrap_or_default());
            } else if Some(field) == last {
                put_tag(number, 2, &mut out);
                wire::put_varint(body.len() as u64, &mut out);
                out.put_slice(&body);
            }
        }
        out.freeze()
    }

    fn edited_body(&self) -> Vec<u8> {
        let added: usize = self.edits.iter().map(|edit| edit.encoded.len()).sum();
        let mut out = Vec::with_capacity(self.body.len() + added);
        // Those edits whose fields are not there: they are placed by number. The others replace the first of theirs.
        let mut new: Vec<&Edit> = self
            .edits
            .iter()
            .filter(|edit| self.value(edit.field).is_none())
            .collect();
        let mut replaced: Vec<u32> = Vec::with_capacity(self.edits.len());
        for field in self.fields_of(self.body) {
            let due = new
                .iter()
                .take_while(|edit| edit.field < field.number)
                .count();
            for edit in new.drain(..due) {
                out.extend_from_slice(&edit.encoded);
            }
            match self.edits.iter().find(|edit| edit.field == field.number) {
                None => {
                    out.extend_from_slice(self.body.get(field.start..field.end).unwrap_or_default())
                }
                Some(_) if replaced.contains(&field.number) => {}
                Some(edit) => {
                    replaced.push(field.number);
                    out.extend_from_slice(&edit.encoded);
                }
            }
        }
        for edit in new {
            out.extend_from_slice(&edit.encoded);
        }
        out
    }

    fn edit(&mut self, edit: Edit) -> &mut Self {
        match self
            .edits
            .binary_search_by_key(&edit.field, |other| other.field)
        {
            Ok(place) => {
                if let Some(known) = self.edits.get_mut(place) {
                    *known = edit;
                }
            }
            Err(place) => self.edits.insert(place, edit),
        }
        self
    }

    fn value(&self, field: u32) -> Option<Value<'a>> {
        self.fields_of(self.body)
            .filter(|found| found.number == field)
            .last()
            .map(|found| found.value)
    }

    /// The fields of a message that was walked over before without an error.
    fn fields_of(&self, message: &'a [u8]) -> impl Iterator<Item = Field<'a>> + use<'a> {
        Fields::new(message).flatten()
    }
}

/// The request id of an encoded `BaseCommand`; `None` if its type has none, if it carries none, or if it is malformed.
pub fn request_id_of(command: &[u8]) -> Option<u64> {
    let command_type = Command::peek_type(command).ok()?;
    let request_id = command::request_id_field(command_type)?;
    let body = command::body_of(command, command_type).ok()??;
    let mut found = None;
    for field in Fields::new(body) {
        let field = field.ok()?;
        if field.number == request_id {
            found = field.value.varint();
        }
    }
    found
}

/// An encoded `BaseCommand` with another request id, all else as it is.
pub fn with_request_id(command: &[u8], request_id: u64) -> Result<Bytes, CommandError> {
    let mut editor = CommandEditor::new(command)?;
    let command_type = editor.command_type();
    let field = command::request_id_field(command_type)
        .ok_or(CommandError::NoRequestId { command_type })?;
    Ok(editor.set_varint(field, request_id).finish())
}

fn put_tag(field: u32, wire_type: u64, out: &mut impl BufMut) {
    assert!(
        (1..1 << 29).contains(&field),
        "{field} is not a field number"
    );
    wire::put_varint(u64::from(field) << 3 | wire_type, out);
}

/// The longest tag, in bytes.
const MAX_TAG_LEN: usize = 5;
