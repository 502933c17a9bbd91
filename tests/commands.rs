//! Every command type, with all of its fields, through decoding, encoding and editing.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "values are made up from random bits, any of them will do"
)]

mod proto_fill;

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use prost::Message;
use prost_reflect::{
    Cardinality, DynamicMessage, FieldDescriptor, Kind, ReflectMessage, UnknownField, Value,
};
use pulsegate::protocol::command::{self, Command, CommandError};
use pulsegate::protocol::proto::pulsar::{self as pb, BaseCommand};
use pulsegate::protocol::required;
use pulsegate::protocol::rewrite::{self, CommandEditor};
use pulsegate::protocol::wire::WireError;

use proto_fill::{Filling, bodies, body_descriptor, messages, pool, through_generated_type};

fn encoded(field: &FieldDescriptor, filling: Filling) -> Bytes {
    proto_fill::command(field, filling).encode_to_vec().into()
}

#[test]
fn the_table_of_commands_is_that_of_the_protocol() {
    let types = pool()
        .get_enum_by_name("pulsar.proto.BaseCommand.Type")
        .expect("declared");
    let declared: BTreeMap<i32, String> = types
        .values()
        .map(|v| (v.number(), v.name().to_owned()))
        .collect();
    let known: BTreeMap<i32, String> = command::COMMAND_TYPES
        .iter()
        .map(|&number| (number, command::name_of(number).to_owned()))
        .collect();
    assert_eq!(known, declared);
    assert_eq!(
        bodies()
            .iter()
            .map(|(number, _)| *number)
            .collect::<Vec<_>>(),
        command::COMMAND_TYPES
    );
    for (number, field) in bodies() {
        let request_id = body_descriptor(&field)
            .get_field_by_name("request_id")
            .map(|field| field.number());
        assert_eq!(
            command::request_id_field(number),
            request_id,
            "{}",
            command::name_of(number)
        );
        assert!(command::is_known(number));
    }
    assert!(!command::is_known(70));
    assert_eq!(command::name_of(70), "UNKNOWN");
    let with_payload: Vec<&str> = (0..100)
        .filter(|&t| command::has_payload(t))
        .map(command::name_of)
        .collect();
    assert_eq!(with_payload, ["SEND", "MESSAGE"]);
}

#[test]
fn every_command_with_all_fields_comes_back_byte_equal() {
    for (number, field) in bodies() {
        for filling in [Filling::All, Filling::Extreme] {
            let bytes = encoded(&field, filling);
            let command = Command::decode(&bytes).expect("well-formed");
            assert_eq!(command.command_type(), number);
            assert_eq!(
                command.encode_command(),
                bytes,
                "{}",
                command::name_of(number)
            );
            assert_eq!(command.encoded_len(), bytes.len());
            let by_library = BaseCommand::decode(bytes.clone())
                .expect("well-formed")
                .encode_to_vec();
            assert_eq!(command.encode_command(), by_library);
            assert_eq!(Command::peek_type(&bytes), Ok(number));
            assert_eq!(command.request_id(), rewrite::request_id_of(&bytes));
        }
    }
}

#[test]
fn every_message_with_all_fields_comes_back_byte_equal() {
    for descriptor in messages() {
        for filling in [Filling::All, Filling::Extreme] {
            let bytes = proto_fill::message(&descriptor, filling).encode_to_vec();
            let back =
                through_generated_type(descriptor.full_name(), &bytes).expect("a generated type");
            assert_eq!(
                back.expect("well-formed"),
                bytes,
                "{}",
                descriptor.full_name()
            );
        }
    }
}

#[test]
fn a_frame_has_both_lengths_and_the_payload() {
    let command = Command::from(pb::CommandSend {
        producer_id: 1,
        sequence_id: 2,
        ..Default::default()
    });
    let inner = command.encode_command();
    let mut frame = BytesMut::new();
    command.encode_with_payload(&[b"pay", b"load"], &mut frame);
    let total = u32::try_from(4 + inner.len() + 7)
        .expect("small")
        .to_be_bytes();
    let command_len = u32::try_from(inner.len()).expect("small").to_be_bytes();
    assert_eq!(
        frame,
        [&total[..], &command_len, &inner, b"payload"].concat()
    );

    let mut frames = BytesMut::new();
    Command::from(pb::CommandPing {}).encode(&mut frames);
    Command::from(pb::CommandPong {}).encode(&mut frames);
    assert_eq!(
        frames.as_ref(),
        [
            0, 0, 0, 9, 0, 0, 0, 5, 8, 18, 0x92, 1, 0, 0, 0, 0, 9, 0, 0, 0, 5, 8, 19, 0x9a, 1, 0
        ]
    );
}

#[test]
fn a_missing_required_field_is_refused() {
    for (number, field) in bodies() {
        for required in body_descriptor(&field)
            .fields()
            .filter(|f| f.cardinality() == Cardinality::Required)
        {
            let mut command = proto_fill::command(&field, Filling::All);
            let Some(Value::Message(body)) = command.get_field_by_name_mut(field.name()) else {
                panic!()
            };
            body.clear_field(&required);
            let error = Command::decode(&command.encode_to_vec().into()).expect_err("incomplete");
            let expected = CommandError::RequiredFieldMissing {
                command_type: number,
                field: required.number(),
            };
            assert_eq!(error, expected);
        }
    }
    let nested = pb::CommandAck {
        message_id: vec![pb::MessageIdData::default()],
        ..Default::default()
    };
    let mut bytes = Command::from(nested).encode_command().to_vec();
    // Renames the entry id (2) of the message id to the number of its batch index (4).
    let place = bytes.len() - 2;
    assert_eq!(bytes[place..], [0x10, 0]);
    bytes[place] = 0x20;
    let error = Command::decode(&bytes.into()).expect_err("incomplete");
    assert_eq!(
        error,
        CommandError::RequiredFieldMissing {
            command_type: 10,
            field: 2
        }
    );

    let metadata = pb::SingleMessageMetadata::default().encode_to_vec();
    assert_eq!(required::check_single_message_metadata(&metadata), Ok(()));
    assert_eq!(
        required::check_single_message_metadata(&[]),
        Err(required::Violation::Missing(3))
    );
    let metadata = pb::MessageMetadata::default().encode_to_vec();
    assert_eq!(required::check_message_metadata(&metadata), Ok(()));
    assert_eq!(
        required::check_message_metadata(&metadata[2..]),
        Err(required::Violation::Missing(1))
    );
}

#[test]
fn malformed_commands_are_told_apart() {
    let decode = |bytes: &'static [u8]| Command::decode(&Bytes::from_static(bytes));
    assert_eq!(decode(&[]), Err(CommandError::TypeMissing));
    assert_eq!(decode(&[0x10, 1]), Err(CommandError::TypeMissing));
    assert_eq!(decode(&[0x0a, 1, 6]), Err(CommandError::TypeMissing));
    assert_eq!(decode(&[8]), Err(CommandError::Wire(WireError::Truncated)));
    assert_eq!(
        decode(&[8, 0x80, 0x80]),
        Err(CommandError::Wire(WireError::Truncated))
    );
    assert_eq!(
        decode(&[8, 18]),
        Err(CommandError::BodyMissing { command_type: 18 })
    );
    // PING with the content of PONG.
    assert_eq!(
        decode(&[8, 18, 0x9a, 1, 0]),
        Err(CommandError::BodyMissing { command_type: 18 })
    );
    // FLOW (11) as an integer instead of a message.
    assert_eq!(
        decode(&[8, 11, 0x58, 1]),
        Err(CommandError::BodyMissing { command_type: 11 })
    );
    // FLOW whose consumer id is a string.
    let error = decode(&[8, 11, 0x5a, 4, 0x0a, 0, 0x10, 1]).expect_err("wrong wire type");
    assert!(
        matches!(
            error,
            CommandError::Body {
                command_type: 11,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        decode(&[8, 11, 0x5a, 200, 1]),
        Err(CommandError::Wire(WireError::Truncated))
    );
}

#[test]
fn unknown_types_are_kept_as_numbers() {
    for command_type in [0, 1, 41, 69, 70, 81, i32::MAX, -1] {
        let command = Command::Unknown { command_type };
        let bytes = command.encode_command();
        assert_eq!(Command::decode(&bytes), Ok(command));
        assert_eq!(rewrite::request_id_of(&bytes), None);
    }
    // With a content, which is left alone.
    let scalable = Bytes::from_static(&[8, 70, 0xb2, 4, 2, 8, 1]);
    assert_eq!(
        Command::decode(&scalable),
        Ok(Command::Unknown { command_type: 70 })
    );
}

#[test]
fn the_last_type_and_the_last_content_win() {
    let flow = |permits: u8| [0x5a, 4, 8, 1, 0x10, permits];
    let bytes = [&[8, 18, 8, 11][..], &flow(5), &flow(6)].concat();
    let Ok(Command::Flow(command)) = Command::decode(&bytes.into()) else {
        panic!()
    };
    assert_eq!(command.message_permits, 6);
    // The content may stand before the type.
    let bytes = [&flow(7)[..], &[8, 11]].concat();
    let Ok(Command::Flow(command)) = Command::decode(&bytes.into()) else {
        panic!()
    };
    assert_eq!(command.message_permits, 7);
}

#[test]
fn nesting_without_end_is_refused() {
    let mut id = vec![8, 1, 0x10, 1];
    for _ in 0..1000 {
        let mut outer = vec![8, 1, 0x10, 1, 0x3a];
        prost::encoding::encode_varint(id.len() as u64, &mut outer);
        outer.extend(&id);
        id = outer;
    }
    let mut body = vec![8, 1, 0x12];
    prost::encoding::encode_varint(id.len() as u64, &mut body);
    body.extend(&id);
    let mut bytes = vec![8, 9, 0x4a];
    prost::encoding::encode_varint(body.len() as u64, &mut bytes);
    bytes.extend(&body);
    assert_eq!(
        Command::decode(&bytes.into()),
        Err(CommandError::Wire(WireError::TooDeep))
    );
}

#[test]
fn debug_output_shows_no_credentials() {
    let secret = "s3cret";
    let auth_data = pb::AuthData {
        auth_method_name: Some("token".into()),
        auth_data: Some(secret.into()),
    };
    let original_auth_data = Some(secret.to_owned());
    let commands = [
        Command::from(pb::CommandConnect {
            auth_data: Some(secret.into()),
            original_auth_data: original_auth_data.clone(),
            ..Default::default()
        }),
        Command::from(pb::CommandAuthResponse {
            response: Some(auth_data.clone()),
            ..Default::default()
        }),
        Command::from(pb::CommandAuthChallenge {
            challenge: Some(auth_data),
            ..Default::default()
        }),
        Command::from(pb::CommandLookupTopic {
            original_auth_data: original_auth_data.clone(),
            ..Default::default()
        }),
        Command::from(pb::CommandPartitionedTopicMetadata {
            original_auth_data,
            ..Default::default()
        }),
    ];
    for command in commands {
        let shown = format!("{command:?}");
        assert!(
            !shown.contains(secret) && shown.contains("<6 bytes>"),
            "{shown}"
        );
        let bytes = format!("{:?}", secret.as_bytes());
        assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
    }
}

#[test]
fn every_field_of_the_hidden_messages_is_shown() {
    for name in [
        "CommandConnect",
        "AuthData",
        "CommandLookupTopic",
        "CommandPartitionedTopicMetadata",
    ] {
        let descriptor = pool()
            .get_message_by_name(&format!("pulsar.proto.{name}"))
            .expect("declared");
        let shown = match name {
            "CommandConnect" => format!("{:?}", pb::CommandConnect::default()),
            "AuthData" => format!("{:?}", pb::AuthData::default()),
            "CommandLookupTopic" => format!("{:?}", pb::CommandLookupTopic::default()),
            _ => format!("{:?}", pb::CommandPartitionedTopicMetadata::default()),
        };
        for field in descriptor.fields() {
            assert!(
                shown.contains(&format!("{}:", field.name())),
                "{} in {shown}",
                field.name()
            );
        }
    }
}

#[test]
fn the_request_id_of_every_command_can_be_replaced() {
    for (number, field) in bodies() {
        let bytes = encoded(&field, Filling::All);
        let changed = rewrite::with_request_id(&bytes, u64::MAX);
        if command::request_id_field(number).is_none() {
            assert_eq!(
                changed,
                Err(CommandError::NoRequestId {
                    command_type: number
                })
            );
            continue;
        }
        let changed = changed.expect("has one");
        assert_eq!(rewrite::request_id_of(&changed), Some(u64::MAX));
        assert_eq!(
            Command::decode(&changed).expect("well-formed").request_id(),
            Some(u64::MAX)
        );
        let before = rewrite::request_id_of(&bytes).expect("has one");
        assert_eq!(
            rewrite::with_request_id(&changed, before).expect("has one"),
            bytes
        );
    }
}

#[test]
fn an_edited_command_keeps_what_is_not_known_here() {
    // Unknown fields in the envelope and in PRODUCER, out of order and of all wire types.
    let body = [
        &[0x0a, 1, b't'][..],               // topic
        &[0xf5, 7, 1, 2, 3, 4],             // 126, 32 bits
        &[0x18, 9],                         // request id
        &[0xf9, 7, 1, 2, 3, 4, 5, 6, 7, 8], // 127, 64 bits
        &[0x10, 1],                         // producer id
        &[0x82, 8, 2, 0xca, 0xfe],          // 128, bytes
    ];
    let edited = [
        &[0x0a, 1, b't'][..],
        &[0x22, 3, b'n', b'e', b'w'], // producer name: before the first higher number
        &[0xf5, 7, 1, 2, 3, 4],
        &[0x18, 0xac, 2],
        &[0xf9, 7, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x82, 8, 2, 0xca, 0xfe],
    ];
    let envelope = |body: &[&[u8]]| {
        let body = body.concat();
        let len = u8::try_from(body.len()).expect("small");
        [&[0xf8, 7, 1, 8, 5, 0x2a, len][..], &body, &[0x82, 8, 1, 7]].concat()
    };
    let command = envelope(&body);
    let mut editor = CommandEditor::new(&command).expect("well-formed");
    assert_eq!(editor.command_type(), 5);
    assert_eq!(
        (editor.varint(3), editor.bytes(1), editor.varint(1)),
        (Some(9), Some(&b"t"[..]), None)
    );
    assert_eq!(editor.finish(), command);
    editor
        .set_varint(3, 1)
        .remove(2)
        .set_bytes(4, b"new")
        .set_varint(3, 300);
    assert_eq!(editor.finish(), envelope(&edited));
}

#[test]
fn repeated_fields_and_repeated_contents_are_left_with_one() {
    // FLOW with two permits fields, and another FLOW before it.
    let command = [
        &[0x5a, 4, 8, 1, 0x10, 5][..],
        &[8, 11],
        &[0x5a, 6, 8, 1, 0x10, 6, 0x10, 7],
    ]
    .concat();
    let mut editor = CommandEditor::new(&command).expect("well-formed");
    assert_eq!(editor.varint(2), Some(7));
    assert_eq!(
        editor.set_varint(2, 8).finish(),
        [&[8, 11][..], &[0x5a, 4, 8, 1, 0x10, 8]].concat()
    );
    let mut editor = CommandEditor::new(&command).expect("well-formed");
    assert_eq!(
        editor.remove(2).finish(),
        [&[8, 11][..], &[0x5a, 2, 8, 1]].concat()
    );
}

#[test]
fn the_editor_refuses_malformed_commands() {
    let refused = |bytes: &[u8]| CommandEditor::new(bytes).expect_err("malformed");
    assert_eq!(refused(&[]), CommandError::TypeMissing);
    assert_eq!(refused(&[8, 1, 0x0a, 0]), CommandError::TypeMissing);
    assert_eq!(
        refused(&[8, 1]),
        CommandError::BodyMissing { command_type: 1 }
    );
    assert_eq!(
        refused(&[8, 0]),
        CommandError::BodyMissing { command_type: 0 }
    );
    assert_eq!(
        refused(&[8, 11]),
        CommandError::BodyMissing { command_type: 11 }
    );
    assert_eq!(
        refused(&[8, 11, 0x5a, 1, 8]),
        CommandError::Wire(WireError::Truncated)
    );
}

/// How the editor is told a value.
enum NewValue {
    Bool(bool),
    Varint(u64),
    Bytes(String),
}

impl NewValue {
    fn apply(&self, field: u32, editor: &mut CommandEditor<'_>) {
        match self {
            NewValue::Bool(value) => editor.set_bool(field, *value),
            NewValue::Varint(value) => editor.set_varint(field, *value),
            NewValue::Bytes(value) => editor.set_bytes(field, value.as_bytes()),
        };
    }
}

/// A value for a field, in both forms.
fn new_value(field: &FieldDescriptor, bits: u64) -> Option<(Value, NewValue)> {
    if field.is_list() {
        return None;
    }
    Some(match field.kind() {
        Kind::Bool => (Value::Bool(bits & 1 == 1), NewValue::Bool(bits & 1 == 1)),
        Kind::Uint64 => (Value::U64(bits), NewValue::Varint(bits)),
        Kind::Int32 => (
            Value::I32(bits as i32),
            NewValue::Varint(i64::from(bits as i32) as u64),
        ),
        Kind::String => (
            Value::String(format!("value {bits}")),
            NewValue::Bytes(format!("value {bits}")),
        ),
        _ => return None,
    })
}

fn with_unknown_fields(mut command: DynamicMessage, body: &FieldDescriptor) -> Vec<u8> {
    let tail = [0x82, 8, 2, 0xca, 0xfe, 0x88, 8, 1];
    let Some(Value::Message(message)) = command.get_field_by_name_mut(body.name()) else {
        panic!()
    };
    let known = message.encode_to_vec();
    *message = DynamicMessage::decode(
        message.descriptor(),
        [&known[..], &tail].concat().as_slice(),
    )
    .expect("valid");
    assert_eq!(
        message
            .unknown_fields()
            .map(UnknownField::number)
            .collect::<Vec<_>>(),
        [128, 129]
    );
    [command.encode_to_vec(), tail.to_vec()].concat()
}

proptest! {
    #[test]
    fn decoding_undoes_encoding(place in 0..bodies().len(), seed: u64) {
        let (_, field) = &bodies()[place];
        let bytes = encoded(field, Filling::Random(seed));
        let command = Command::decode(&bytes).expect("well-formed");
        prop_assert_eq!(command.encode_command(), &bytes);
        let mut frame = BytesMut::new();
        command.encode(&mut frame);
        prop_assert_eq!(Command::decode(&frame.freeze().slice(8..)), Ok(command));
        prop_assert_eq!(BaseCommand::decode(bytes.clone()).expect("well-formed").encode_to_vec(), bytes);
    }

    #[test]
    fn editing_then_decoding_is_decoding_then_editing(
        place in 0..bodies().len(),
        seed: u64,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>(), any::<bool>()), 0..5),
    ) {
        let (_, body) = &bodies()[place];
        let fields: Vec<FieldDescriptor> = body_descriptor(body).fields().collect();
        let mut expected = proto_fill::command(body, Filling::Random(seed));
        let before = expected.encode_to_vec();
        let with_unknown = with_unknown_fields(expected.clone(), body);
        let mut editor = CommandEditor::new(&before).expect("well-formed");
        let mut editor_with_unknown = CommandEditor::new(&with_unknown).expect("well-formed");
        for (index, bits, remove) in edits {
            if fields.is_empty() {
                break;
            }
            let field = index.get(&fields);
            let Some(Value::Message(message)) = expected.get_field_by_name_mut(body.name()) else { panic!() };
            if remove {
                message.clear_field(field);
                editor.remove(field.number());
                editor_with_unknown.remove(field.number());
            } else if let Some((value, new)) = new_value(field, bits) {
                message.set_field(field, value);
                new.apply(field.number(), &mut editor);
                new.apply(field.number(), &mut editor_with_unknown);
            }
        }
        prop_assert_eq!(editor.finish(), expected.encode_to_vec());
        prop_assert_eq!(editor_with_unknown.finish(), with_unknown_fields(expected, body));
    }

    #[test]
    fn garbage_is_decoded_or_refused(bytes: Vec<u8>) {
        exercise(&bytes);
    }

    #[test]
    fn damaged_commands_are_decoded_or_refused(
        place in 0..bodies().len(),
        seed: u64,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut: prop::sample::Index,
    ) {
        let mut bytes = encoded(&bodies()[place].1, Filling::Random(seed)).to_vec();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        exercise(&bytes);
        bytes.truncate(cut.index(bytes.len() + 1));
        exercise(&bytes);
    }
}

/// What has to hold for any bytes.
fn exercise(bytes: &[u8]) {
    let shared = Bytes::copy_from_slice(bytes);
    if let Ok(command) = Command::decode(&shared) {
        let encoded = command.encode_command();
        assert_eq!(command.encoded_len(), encoded.len());
        assert_eq!(Command::decode(&encoded), Ok(command));
    }
    if let Ok(mut editor) = CommandEditor::new(bytes) {
        let same = editor.finish();
        assert_eq!(
            Command::decode(&same).is_ok(),
            Command::decode(&shared).is_ok()
        );
        editor.set_varint(2, 7).remove(1).set_bytes(3, b"x");
        let edited = editor.finish();
        let again = CommandEditor::new(&edited).expect("an edited command is well-formed");
        assert_eq!(
            (again.varint(2), again.bytes(1), again.bytes(3)),
            (Some(7), None, Some(&b"x"[..]))
        );
    }
    let _ = rewrite::request_id_of(bytes);
    let _ = rewrite::with_request_id(bytes, 1);
}
