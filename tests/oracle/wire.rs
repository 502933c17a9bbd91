//! Frames from YAML and back, by the descriptors of `proto/`: every command and field can be written without code here.
//!
//! A frame is a command name (`PRODUCER`), the fields of its content under the names of `proto/PulsarApi.proto`, and for SEND and
//! MESSAGE what follows in the frame (see [`encode_message`]).

use std::sync::LazyLock;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value as Field,
};
use pulsegate::protocol::checksum::crc32c;
use pulsegate::protocol::compression;
use pulsegate::protocol::frame::{Frame, put_head};
use pulsegate::protocol::proto::DESCRIPTOR_SET;
use pulsegate::protocol::proto::pulsar::CompressionType;
use serde_yaml::{Mapping, Value};

use crate::value::{flow, mapping};

/// A frame, decoded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decoded {
    /// The command type's name; `UNKNOWN` when there is none.
    pub(crate) name: String,
    /// The fields that are present.
    pub(crate) fields: Value,
    /// What follows the command.
    pub(crate) message: Option<Value>,
}

/// Encodes a whole frame.
pub(crate) fn encode_frame(
    name: &str,
    fields: &Value,
    message: Option<&Value>,
) -> Result<BytesMut, String> {
    let command = encode_command(name, fields)?;
    let payload = match message {
        Some(message) => encode_message(message)?,
        None => Bytes::new(),
    };
    let mut out = BytesMut::new();
    put_head(&mut out, command.len(), payload.len());
    out.put_slice(&command);
    out.put_slice(&payload);
    Ok(out)
}

/// Encodes a `BaseCommand`.
fn encode_command(name: &str, fields: &Value) -> Result<Bytes, String> {
    let body = body_field(name)?;
    let Kind::Message(descriptor) = body.kind() else {
        return Err(format!("{name} has no content"));
    };
    let mut command = DynamicMessage::new(envelope());
    let number = i32::try_from(body.number()).expect("a small number");
    command.set_field_by_name("type", Field::EnumNumber(number));
    command.set_field(&body, Field::Message(from_yaml(&descriptor, fields)?));
    Ok(command.encode_to_vec().into())
}

/// Whether commands of this type have a request id that the client chooses.
pub(crate) fn takes_request_id(name: &str) -> Result<bool, String> {
    let Kind::Message(descriptor) = body_field(name)?.kind() else {
        return Ok(false);
    };
    Ok(descriptor
        .get_field_by_name("request_id")
        .is_some_and(|field| field.cardinality() == prost_reflect::Cardinality::Required))
}

/// Decodes a frame; what cannot be decoded is shown as bytes.
pub(crate) fn decode_frame(frame: &Frame) -> Decoded {
    let decoded = DynamicMessage::decode(envelope(), frame.command.clone())
        .ok()
        .and_then(|command| {
            let number = command.get_field_by_name("type")?.as_enum_number()?;
            let kind = envelope().get_field_by_name("type")?.kind();
            let name = kind.as_enum()?.get_value(number)?.name().to_owned();
            let body = envelope().get_field(u32::try_from(number).ok()?)?;
            let content = command.get_field(&body).as_message()?.clone();
            Some((name, to_yaml(&content)))
        });
    let (name, fields) = decoded.unwrap_or_else(|| {
        let bytes = bytes_to_yaml(&frame.command);
        ("UNKNOWN".to_owned(), mapping([("command", bytes)]))
    });
    let message = (!frame.payload.is_empty()).then(|| decode_message(&frame.payload));
    Decoded {
        name,
        fields,
        message,
    }
}

/// Encodes what follows a SEND or MESSAGE: `metadata`, and `payload` or `batch` (a list of the same with the metadata of
/// one message each). `compression` in the metadata compresses; sizes and counts are set where they are left out.
/// `checksum: none` leaves the checksum out, `wrong` makes it wrong; `broker_entry` puts broker entry metadata in front;
/// `bytes` instead of all that are sent as they are.
fn encode_message(spec: &Value) -> Result<Bytes, String> {
    if let Some(bytes) = spec.get("bytes") {
        return payload_bytes(bytes);
    }
    let mut metadata = match spec.get("metadata") {
        Some(Value::Mapping(fields)) => fields.clone(),
        _ => Mapping::new(),
    };
    let mut payload = match spec.get("batch") {
        Some(Value::Sequence(messages)) => {
            let count = Value::from(messages.len());
            set_default(&mut metadata, "num_messages_in_batch", count);
            encode_batch(messages)?
        }
        _ => payload_bytes(spec.get("payload").unwrap_or(&Value::Null))?,
    };
    let codec = codec_of(&metadata)?;
    if spec.get("batch").is_some() || codec != CompressionType::None {
        set_default(&mut metadata, "uncompressed_size", payload.len().into());
    }
    payload = compression::compress(codec, &payload).map_err(|error| error.to_string())?;

    let metadata = encode_as("MessageMetadata", &Value::Mapping(metadata))?;
    let mut covered = BytesMut::new();
    covered.put_u32(u32_len(&metadata));
    covered.put_slice(&metadata);
    covered.put_slice(&payload);

    let mut out = BytesMut::new();
    if let Some(entry) = spec.get("broker_entry") {
        let entry = encode_as("BrokerEntryMetadata", entry)?;
        out.put_u16(BROKER_ENTRY_MAGIC);
        out.put_u32(u32_len(&entry));
        out.put_slice(&entry);
    }
    match spec.get("checksum").and_then(Value::as_str) {
        Some("none") => {}
        Some("wrong") => {
            out.put_u16(CHECKSUM_MAGIC);
            out.put_u32(!crc32c(&covered));
        }
        _ => {
            out.put_u16(CHECKSUM_MAGIC);
            out.put_u32(crc32c(&covered));
        }
    }
    out.put_slice(&covered);
    Ok(out.freeze())
}

fn encode_batch(messages: &[Value]) -> Result<Bytes, String> {
    let mut out = BytesMut::new();
    for message in messages {
        let payload = match message.get("payload") {
            Some(payload) => payload_bytes(payload)?,
            None if message.is_mapping() => Bytes::new(),
            None => payload_bytes(message)?,
        };
        let mut metadata = match message.get("metadata") {
            Some(Value::Mapping(fields)) => fields.clone(),
            _ => Mapping::new(),
        };
        set_default(&mut metadata, "payload_size", payload.len().into());
        let metadata = encode_as("SingleMessageMetadata", &Value::Mapping(metadata))?;
        out.put_u32(u32_len(&metadata));
        out.put_slice(&metadata);
        out.put_slice(&payload);
    }
    Ok(out.freeze())
}

/// The inverse of [`encode_message`]; a message whose parts cannot be found is shown as `bytes`.
fn decode_message(payload: &Bytes) -> Value {
    try_decode_message(payload.clone())
        .unwrap_or_else(|| mapping([("bytes", bytes_to_yaml(payload))]))
}

fn try_decode_message(mut rest: Bytes) -> Option<Value> {
    let mut out = Mapping::new();
    if rest.starts_with(&BROKER_ENTRY_MAGIC.to_be_bytes()) {
        rest.advance(2);
        let entry = take_sized(&mut rest)?;
        let entry = DynamicMessage::decode(descriptor("BrokerEntryMetadata"), entry).ok()?;
        out.insert("broker_entry".into(), to_yaml(&entry));
    }
    if rest.starts_with(&CHECKSUM_MAGIC.to_be_bytes()) {
        rest.advance(2);
        if rest.try_get_u32().ok()? != crc32c(&rest) {
            out.insert("checksum".into(), "wrong".into());
        }
    } else {
        out.insert("checksum".into(), "none".into());
    }
    let metadata = take_sized(&mut rest)?;
    let metadata = DynamicMessage::decode(descriptor("MessageMetadata"), metadata).ok()?;
    let mut fields = to_yaml(&metadata);
    let plain = plain_payload(&metadata, &rest);
    let is_batch = metadata.has_field_by_name("num_messages_in_batch");
    if let Some(fields) = fields.as_mapping_mut() {
        // What `encode_message` sets by itself is not repeated.
        let size = fields.get("uncompressed_size").and_then(Value::as_u64);
        let plain_len = plain.as_ref().map(|plain| plain.len() as u64);
        if size.is_some() && size == plain_len && (is_batch || fields.contains_key("compression")) {
            fields.shift_remove("uncompressed_size");
        }
    }
    out.insert("metadata".into(), fields);
    let batch = match (&plain, is_batch) {
        (Some(plain), true) => decode_batch(&metadata, plain.clone()),
        _ => None,
    };
    match (batch, plain) {
        (Some(messages), _) => out.insert("batch".into(), Value::Sequence(messages)),
        (None, Some(plain)) => out.insert("payload".into(), payload_to_yaml(&plain)),
        (None, None) => return None,
    };
    Some(Value::Mapping(out))
}

/// The payload without compression; `None` when it does not decompress.
fn plain_payload(metadata: &DynamicMessage, payload: &Bytes) -> Option<Bytes> {
    let number = metadata
        .get_field_by_name("compression")?
        .as_enum_number()?;
    let codec = CompressionType::try_from(number).ok()?;
    if codec == CompressionType::None || metadata.has_field_by_name("encryption_algo") {
        return Some(payload.clone());
    }
    let size = metadata.get_field_by_name("uncompressed_size")?.as_u32()?;
    compression::decompress(codec, payload, size, LARGEST_PAYLOAD).ok()
}

fn decode_batch(metadata: &DynamicMessage, mut rest: Bytes) -> Option<Vec<Value>> {
    let count = metadata
        .get_field_by_name("num_messages_in_batch")?
        .as_i32()?;
    let mut messages = Vec::new();
    for _ in 0..count {
        let single = take_sized(&mut rest)?;
        let single = DynamicMessage::decode(descriptor("SingleMessageMetadata"), single).ok()?;
        let size = single.get_field_by_name("payload_size")?.as_i32()?;
        let is_gap = single.get_field_by_name("compacted_out")?.as_bool()?;
        let size = if is_gap {
            0
        } else {
            usize::try_from(size).ok()?
        };
        if size > rest.len() {
            return None;
        }
        let payload = rest.split_to(size);
        let mut fields = to_yaml(&single);
        if !is_gap && let Some(fields) = fields.as_mapping_mut() {
            fields.shift_remove("payload_size");
        }
        let mut message = Mapping::new();
        if fields.as_mapping().is_some_and(|fields| !fields.is_empty()) {
            message.insert("metadata".into(), fields);
        }
        message.insert("payload".into(), payload_to_yaml(&payload));
        messages.push(Value::Mapping(message));
    }
    rest.is_empty().then_some(messages)
}

fn take_sized(rest: &mut Bytes) -> Option<Bytes> {
    let size = usize::try_from(rest.try_get_u32().ok()?).ok()?;
    (size <= rest.len()).then(|| rest.split_to(size))
}

/// Bytes from YAML: text, `hex:00ff`, `{repeat: x, count: 1000}`, `{u32: 7}`, or a list of these.
pub(crate) fn payload_bytes(spec: &Value) -> Result<Bytes, String> {
    match spec {
        Value::Null => Ok(Bytes::new()),
        Value::String(text) => match text.strip_prefix("hex:") {
            Some(hex) => unhex(hex).ok_or_else(|| format!("{text} is no hex")),
            None => Ok(text.clone().into()),
        },
        Value::Number(number) => Ok(number.to_string().into()),
        Value::Sequence(parts) => {
            let mut out = BytesMut::new();
            for part in parts {
                out.put_slice(&payload_bytes(part)?);
            }
            Ok(out.freeze())
        }
        Value::Mapping(_) => {
            if let Some(number) = spec.get("u32").and_then(Value::as_u64) {
                let number = u32::try_from(number).map_err(|error| error.to_string())?;
                return Ok(number.to_be_bytes().to_vec().into());
            }
            let repeated = spec.get("repeat").map(payload_bytes).transpose()?;
            let count = spec.get("count").and_then(Value::as_u64);
            match (
                repeated,
                count.and_then(|count| usize::try_from(count).ok()),
            ) {
                (Some(repeated), Some(count)) => Ok(repeated.repeat(count).into()),
                _ => Err(format!("{} are no bytes", flow(spec))),
            }
        }
        other => Err(format!("{} are no bytes", flow(other))),
    }
}

/// The inverse of [`payload_bytes`] for a payload: long ones of one byte are short.
fn payload_to_yaml(bytes: &[u8]) -> Value {
    match bytes.first() {
        Some(first) if bytes.len() >= 64 && bytes.iter().all(|byte| byte == first) => mapping([
            ("repeat", bytes_to_yaml(&[*first])),
            ("count", bytes.len().into()),
        ]),
        _ => bytes_to_yaml(bytes),
    }
}

/// Bytes as text where they are printable, else in hex.
pub(crate) fn bytes_to_yaml(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with("hex:") && !text.chars().any(char::is_control) => text.into(),
        _ => {
            let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
            format!("hex:{}", digits.collect::<String>()).into()
        }
    }
}

fn unhex(hex: &str) -> Option<Bytes> {
    let digits: Vec<u8> = hex.bytes().filter(|c| !c.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| match pair {
        [_, _] => u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok(),
        _ => None,
    });
    pairs.collect::<Option<Vec<u8>>>().map(Bytes::from)
}

/// A message of this type from YAML.
fn from_yaml(descriptor: &MessageDescriptor, value: &Value) -> Result<DynamicMessage, String> {
    let mut message = DynamicMessage::new(descriptor.clone());
    let fields = match value {
        Value::Null => return Ok(message),
        Value::Mapping(fields) => fields,
        // The two ids that clients have names for.
        Value::String(name) if descriptor.name() == "MessageIdData" => {
            let number = match name.as_str() {
                "earliest" => EARLIEST,
                "latest" => LATEST,
                _ => return Err(format!("{name} is no message id")),
            };
            message.set_field_by_name("ledgerId", Field::U64(number));
            message.set_field_by_name("entryId", Field::U64(number));
            return Ok(message);
        }
        other => return Err(format!("{} is no {}", flow(other), descriptor.name())),
    };
    for (key, value) in fields {
        let key = key.as_str().unwrap_or_default();
        let field = descriptor.get_field_by_name(key).ok_or_else(|| {
            let names: Vec<String> = descriptor
                .fields()
                .map(|field| field.name().to_owned())
                .collect();
            format!(
                "{} has no field {key}; it has {}",
                descriptor.name(),
                names.join(", ")
            )
        })?;
        if value.is_null() && field.kind().as_message().is_none() {
            continue;
        }
        let converted = if field.is_list() {
            let items = crate::value::list(value);
            let items = items.iter().map(|item| field_from_yaml(&field, item));
            Field::List(items.collect::<Result<_, _>>()?)
        } else {
            field_from_yaml(&field, value)?
        };
        message.set_field(&field, converted);
    }
    Ok(message)
}

fn field_from_yaml(field: &FieldDescriptor, value: &Value) -> Result<Field, String> {
    let wrong = || format!("{} cannot be {}", field.full_name(), flow(value));
    // All integers are read as 64 bits: -1 is the largest unsigned one.
    let bits = || match value {
        Value::Number(number) => number
            .as_i64()
            .or_else(|| number.as_u64().map(u64::cast_signed)),
        Value::String(name) if name == "MAX" => Some(i64::MAX),
        _ => None,
    };
    let integer = || bits().ok_or_else(wrong);
    Ok(match field.kind() {
        Kind::Bool => Field::Bool(value.as_bool().ok_or_else(wrong)?),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
            Field::I32(integer()?.try_into().map_err(|_| wrong())?)
        }
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Field::I64(integer()?),
        Kind::Uint32 | Kind::Fixed32 => Field::U32(integer()?.try_into().map_err(|_| wrong())?),
        Kind::Uint64 | Kind::Fixed64 => Field::U64(integer()?.cast_unsigned()),
        Kind::Float => return Err(wrong()),
        Kind::Double => Field::F64(value.as_f64().unwrap_or_default()),
        Kind::String => Field::String(match value {
            Value::Number(number) => number.to_string(),
            Value::String(text) => text.clone(),
            _ => return Err(wrong()),
        }),
        Kind::Bytes => Field::Bytes(payload_bytes(value)?),
        Kind::Enum(names) => Field::EnumNumber(match value {
            Value::String(name) => names.get_value_by_name(name).ok_or_else(wrong)?.number(),
            _ => integer()?.try_into().map_err(|_| wrong())?,
        }),
        Kind::Message(descriptor) => Field::Message(from_yaml(&descriptor, value)?),
    })
}

/// The fields of a message that are present, in the order of their numbers.
fn to_yaml(message: &DynamicMessage) -> Value {
    let mut fields: Vec<_> = message.fields().collect();
    fields.sort_by_key(|(field, _)| field.number());
    let mut out = Mapping::new();
    for (field, value) in fields {
        out.insert(field.name().into(), field_to_yaml(&field, value));
    }
    for unknown in message.unknown_fields() {
        out.insert(format!("unknown {}", unknown.number()).into(), Value::Null);
    }
    Value::Mapping(out)
}

fn field_to_yaml(field: &FieldDescriptor, value: &Field) -> Value {
    match value {
        Field::Bool(value) => (*value).into(),
        Field::I32(value) => (*value).into(),
        Field::I64(value) => (*value).into(),
        Field::U32(value) => (*value).into(),
        Field::U64(u64::MAX) => Value::from(-1),
        Field::U64(LATEST) => "MAX".into(),
        Field::U64(value) => (*value).into(),
        Field::F32(value) => (*value).into(),
        Field::F64(value) => (*value).into(),
        Field::String(value) => value.as_str().into(),
        Field::Bytes(value) => bytes_to_yaml(value),
        Field::EnumNumber(number) => match field.kind() {
            Kind::Enum(names) => match names.get_value(*number) {
                Some(value) => value.name().into(),
                None => (*number).into(),
            },
            _ => (*number).into(),
        },
        Field::Message(message) => to_yaml(message),
        Field::List(items) => items
            .iter()
            .map(|item| field_to_yaml(field, item))
            .collect(),
        Field::Map(_) => Value::Null,
    }
}

fn encode_as(name: &str, fields: &Value) -> Result<Vec<u8>, String> {
    Ok(from_yaml(&descriptor(name), fields)?.encode_to_vec())
}

fn codec_of(metadata: &Mapping) -> Result<CompressionType, String> {
    match metadata.get("compression") {
        None => Ok(CompressionType::None),
        Some(Value::String(name)) => {
            CompressionType::from_str_name(name).ok_or_else(|| format!("{name} is no compression"))
        }
        Some(other) => Err(format!("{} is no compression", flow(other))),
    }
}

fn set_default(fields: &mut Mapping, key: &str, value: Value) {
    if !fields.contains_key(key) {
        fields.insert(key.into(), value);
    }
}

fn body_field(name: &str) -> Result<FieldDescriptor, String> {
    let kind = envelope()
        .get_field_by_name("type")
        .expect("the envelope has a type")
        .kind();
    let number = kind
        .as_enum()
        .and_then(|types| types.get_value_by_name(name))
        .ok_or_else(|| format!("there is no command {name}"))?
        .number();
    let number = u32::try_from(number).expect("types are positive");
    Ok(envelope()
        .get_field(number)
        .expect("every type has a field of its number"))
}

fn envelope() -> MessageDescriptor {
    descriptor("BaseCommand")
}

fn descriptor(name: &str) -> MessageDescriptor {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(DESCRIPTOR_SET).expect("made by build.rs"));
    POOL.get_message_by_name(&format!("pulsar.proto.{name}"))
        .expect("a message of PulsarApi.proto")
}

fn u32_len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("far less than 4 GiB")
}

/// `MessageId.earliest` of the clients: -1.
const EARLIEST: u64 = u64::MAX;
/// `MessageId.latest` of the clients.
const LATEST: u64 = i64::MAX.cast_unsigned();
/// `Commands.magicCrc32c`.
const CHECKSUM_MAGIC: u16 = 0x0e01;
/// `Commands.magicBrokerEntryMetadata`.
const BROKER_ENTRY_MAGIC: u16 = 0x0e02;
/// No payload of a scenario is larger.
const LARGEST_PAYLOAD: usize = 16 * 1024 * 1024;
