//! The schema options of `produce`: what the topic is told about the payloads, and payloads in their form on the wire.

use serde_json::{Value, json};

use super::avro::{Definition, DefinitionError, EncodeError};
use crate::protocol::proto::pulsar::{KeyValue, Schema, schema::Type};

/// What a key or a value is made of (`--value-schema`, `--key-schema`).
#[derive(Debug, Clone)]
pub(super) enum PayloadSchema {
    /// Any bytes; the topic gets no schema.
    Bytes,
    /// Text in UTF-8.
    Text,
    /// JSON that fits an Avro definition. The payload is the JSON as it was given.
    Json(Typed),
    /// A value of an Avro definition, given as JSON. The payload is Avro binary.
    Avro(Typed),
}

/// An Avro definition, and the text it was given as.
#[derive(Debug, Clone)]
pub(super) struct Typed {
    text: String,
    definition: Definition,
}

/// Why a schema option is not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum SchemaOptionError {
    /// It is of no known kind.
    #[error("expected bytes, string, json:DEFINITION or avro:DEFINITION")]
    UnknownKind,
    /// The definition behind `avro:` or `json:` is none.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
}

/// Why a payload does not fit its schema.
#[derive(Debug, thiserror::Error)]
pub(super) enum PayloadError {
    /// It is no JSON.
    #[error("it is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is JSON, but no value of the definition.
    #[error(transparent)]
    Avro(#[from] EncodeError),
    /// It is no Avro binary of the definition.
    #[error("it is no Avro value: {0}")]
    Binary(#[from] super::avro::DecodeError),
}

impl PayloadSchema {
    /// Reads a schema option.
    pub(super) fn parse(text: &str) -> Result<Self, SchemaOptionError> {
        let typed = |text: &str| {
            Ok::<_, SchemaOptionError>(Typed {
                definition: Definition::parse(text)?,
                text: text.to_owned(),
            })
        };
        match text.split_once(':') {
            None if text == "bytes" => Ok(Self::Bytes),
            None if text == "string" => Ok(Self::Text),
            Some(("avro", definition)) => Ok(Self::Avro(typed(definition)?)),
            Some(("json", definition)) => Ok(Self::Json(typed(definition)?)),
            _ => Err(SchemaOptionError::UnknownKind),
        }
    }

    /// The payload of what was typed: with an Avro schema the binary form of the JSON, else the text itself.
    pub(super) fn of_text(&self, text: &str) -> Result<Vec<u8>, PayloadError> {
        match self {
            Self::Bytes | Self::Text => {}
            Self::Json(_) => check_json(text.as_bytes())?,
            Self::Avro(typed) => {
                let json: Value = serde_json::from_str(text)?;
                return Ok(typed.definition.encode(&json)?);
            }
        }
        Ok(text.as_bytes().to_vec())
    }

    /// Checks bytes that are the payload already, such as those of a file.
    pub(super) fn check(&self, payload: &[u8]) -> Result<(), PayloadError> {
        match self {
            Self::Bytes | Self::Text => {}
            Self::Json(_) => check_json(payload)?,
            Self::Avro(typed) => {
                typed.definition.decode(payload)?;
            }
        }
        Ok(())
    }

    /// What a producer says about its messages; nothing for bytes.
    pub(super) fn on_the_wire(&self) -> Option<Schema> {
        let of = match self {
            Self::Bytes => return None,
            Self::Text => Type::String,
            Self::Json(_) => Type::Json,
            Self::Avro(_) => Type::Avro,
        };
        Some(Schema {
            name: self.name().to_owned(),
            schema_data: self.data().to_owned().into(),
            r#type: of.into(),
            properties: Vec::new(),
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Bytes => "Bytes",
            Self::Text => "String",
            Self::Json(_) | Self::Avro(_) => "client",
        }
    }

    fn data(&self) -> &str {
        match self {
            Self::Bytes | Self::Text => "",
            Self::Json(typed) | Self::Avro(typed) => &typed.text,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Bytes => "BYTES",
            Self::Text => "STRING",
            Self::Json(_) => "JSON",
            Self::Avro(_) => "AVRO",
        }
    }
}

/// Where the key of a key-value message lies (`KeyValueEncodingType` of Apache's clients).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyValueEncoding {
    /// The key is the message's key, in base64.
    Separated,
    /// Key and value are both in the payload.
    Inline,
}

impl KeyValueEncoding {
    /// Its name in a schema's properties.
    fn name(self) -> &'static str {
        match self {
            Self::Separated => "SEPARATED",
            Self::Inline => "INLINE",
        }
    }
}

/// What a producer of key-value messages says about them.
pub(super) fn key_value_schema(
    key: &PayloadSchema,
    value: &PayloadSchema,
    encoding: KeyValueEncoding,
) -> Schema {
    let property = |key: &str, value: &str| KeyValue {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    Schema {
        name: "KeyValue".to_owned(),
        schema_data: inline(Some(key.data().as_bytes()), value.data().as_bytes()).into(),
        r#type: Type::KeyValue.into(),
        properties: vec![
            property("key.schema.name", key.name()),
            property("key.schema.type", key.kind()),
            property("key.schema.properties", "{}"),
            property("value.schema.name", value.name()),
            property("value.schema.type", value.kind()),
            property("value.schema.properties", "{}"),
            property("kv.encoding.type", encoding.name()),
        ],
    }
}

/// Key and value in one: each behind its length in four bytes, which is -1 where there is none.
pub(super) fn inline(key: Option<&[u8]>, value: &[u8]) -> Vec<u8> {
    let mut both = Vec::with_capacity(8 + key.map_or(0, <[u8]>::len) + value.len());
    for part in [key, Some(value)] {
        let length = part.map_or(-1, |part| i32::try_from(part.len()).unwrap_or(i32::MAX));
        both.extend_from_slice(&length.to_be_bytes());
        both.extend_from_slice(part.unwrap_or_default());
    }
    both
}

fn check_json(payload: &[u8]) -> Result<(), PayloadError> {
    serde_json::from_slice::<serde::de::IgnoredAny>(payload)?;
    Ok(())
}

/// A topic's schema as it reads received payloads (`--schema-type auto_consume`).
#[derive(Debug)]
pub(super) enum ReceivedSchema {
    /// Any bytes.
    Bytes,
    Primitive(Primitive),
    /// JSON text; the fields that the definition names are shown.
    Json(Definition),
    Avro(Definition),
    KeyValue {
        key: Box<ReceivedSchema>,
        value: Box<ReceivedSchema>,
        encoding: KeyValueEncoding,
    },
}

/// A type of Pulsar's own, and the Java class by which `pulsar-client` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Primitive {
    Text,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Float,
    Double,
}

/// A received payload by its schema.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shown {
    Bytes(Vec<u8>),
    Primitive(Primitive, Value),
    Record(Value),
    KeyValue(Box<Option<Shown>>, Box<Option<Shown>>),
}

/// Why a payload is not shown by its schema.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShowError {
    /// The schema is of a kind that is not read here.
    #[error("schemas of type {0} are not read")]
    Kind(String),
    /// The schema is malformed.
    #[error("the schema cannot be read: {0}")]
    Definition(#[from] DefinitionError),
    /// Key and value cannot be told apart.
    #[error("it is no key-value pair")]
    KeyValue,
    /// The payload does not fit its schema.
    #[error("the payload does not fit its schema: {0}")]
    Payload(#[from] PayloadError),
    /// The payload is of another length.
    #[error("the payload is no {0:?}")]
    Length(Primitive),
}

impl ReceivedSchema {
    /// Reads a schema as a broker names it.
    pub(super) fn read(schema: &Schema) -> Result<Self, ShowError> {
        let text = String::from_utf8_lossy(&schema.schema_data);
        match schema.r#type() {
            Type::KeyValue => Self::key_value(schema),
            Type::None if schema.r#type == i32::from(Type::None) => Ok(Self::Bytes),
            _ => Self::simple(schema.r#type().as_str_name(), &text),
        }
    }

    /// One that is no key-value pair, by the name of its type in any case.
    fn simple(kind: &str, definition: &str) -> Result<Self, ShowError> {
        Ok(match kind.to_ascii_uppercase().as_str() {
            "BYTES" => Self::Bytes,
            "STRING" => Self::Primitive(Primitive::Text),
            "BOOL" | "BOOLEAN" => Self::Primitive(Primitive::Bool),
            "INT8" => Self::Primitive(Primitive::Int8),
            "INT16" => Self::Primitive(Primitive::Int16),
            "INT32" => Self::Primitive(Primitive::Int32),
            "INT64" => Self::Primitive(Primitive::Int64),
            "FLOAT" => Self::Primitive(Primitive::Float),
            "DOUBLE" => Self::Primitive(Primitive::Double),
            "JSON" => Self::Json(Definition::parse(definition)?),
            "AVRO" => Self::Avro(Definition::parse(definition)?),
            _ => return Err(ShowError::Kind(kind.to_owned())),
        })
    }

    fn key_value(schema: &Schema) -> Result<Self, ShowError> {
        let property = |name: &str| {
            let found = schema.properties.iter().find(|entry| entry.key == name);
            found.map_or("BYTES", |entry| entry.value.as_str())
        };
        let (key, value) = split_inline(&schema.schema_data).ok_or(ShowError::KeyValue)?;
        let part = |kind: &str, data: Option<&[u8]>| {
            let text = String::from_utf8_lossy(data.unwrap_or_default()).into_owned();
            Self::simple(property(kind), &text).map(Box::new)
        };
        Ok(Self::KeyValue {
            key: part("key.schema.type", key)?,
            value: part("value.schema.type", value)?,
            encoding: if property("kv.encoding.type") == KeyValueEncoding::Separated.name() {
                KeyValueEncoding::Separated
            } else {
                KeyValueEncoding::Inline
            },
        })
    }

    /// Reads a payload; `key` is the message's key in its bytes, of which separated key-value pairs are made.
    pub(super) fn show(&self, payload: &[u8], key: Option<&[u8]>) -> Result<Shown, ShowError> {
        Ok(match self {
            Self::Bytes => Shown::Bytes(payload.to_vec()),
            Self::Primitive(primitive) => Shown::Primitive(*primitive, primitive.read(payload)?),
            Self::Json(definition) => {
                let json: Value = serde_json::from_slice(payload).map_err(PayloadError::Json)?;
                Shown::Record(with_fields(json, definition))
            }
            Self::Avro(definition) => {
                let value = definition.decode(payload).map_err(PayloadError::Binary)?;
                Shown::Record(value)
            }
            Self::KeyValue {
                key: key_schema,
                value: value_schema,
                encoding,
            } => {
                let (key, value) = match encoding {
                    KeyValueEncoding::Separated => (key, Some(payload)),
                    KeyValueEncoding::Inline => split_inline(payload).ok_or(ShowError::KeyValue)?,
                };
                let show = |schema: &Self, part: Option<&[u8]>| {
                    part.map(|part| schema.show(part, None)).transpose()
                };
                Shown::KeyValue(
                    Box::new(show(key_schema, key)?),
                    Box::new(show(value_schema, value)?),
                )
            }
        })
    }
}

impl Primitive {
    fn read(self, payload: &[u8]) -> Result<Value, ShowError> {
        let wrong = |_| ShowError::Length(self);
        Ok(match self {
            Self::Text => Value::String(String::from_utf8_lossy(payload).into_owned()),
            Self::Bool => Value::Bool(<[u8; 1]>::try_from(payload).map_err(wrong)? != [0]),
            Self::Int8 => json!(i8::from_be_bytes(payload.try_into().map_err(wrong)?)),
            Self::Int16 => json!(i16::from_be_bytes(payload.try_into().map_err(wrong)?)),
            Self::Int32 => json!(i32::from_be_bytes(payload.try_into().map_err(wrong)?)),
            Self::Int64 => json!(i64::from_be_bytes(payload.try_into().map_err(wrong)?)),
            Self::Float => json!(f32::from_be_bytes(payload.try_into().map_err(wrong)?)),
            Self::Double => json!(f64::from_be_bytes(payload.try_into().map_err(wrong)?)),
        })
    }

    fn java_class(self) -> &'static str {
        match self {
            Self::Text => "java.lang.String",
            Self::Bool => "java.lang.Boolean",
            Self::Int8 => "java.lang.Byte",
            Self::Int16 => "java.lang.Short",
            Self::Int32 => "java.lang.Integer",
            Self::Int64 => "java.lang.Long",
            Self::Float => "java.lang.Float",
            Self::Double => "java.lang.Double",
        }
    }
}

impl Shown {
    /// As `pulsar-client` prints it. `bytes` makes text of bytes.
    pub(super) fn text(&self, bytes: &impl Fn(&[u8]) -> String) -> String {
        let part = |part: &Option<Self>| match part {
            None => "{value=NULL}".to_owned(),
            Some(shown) => shown.text(bytes),
        };
        match self {
            // It makes text of the bytes before it asks for the class.
            Self::Bytes(raw) => format!("{{value={}, type=class java.lang.String}}", bytes(raw)),
            Self::Primitive(primitive, value) => {
                let class = primitive.java_class();
                format!("{{value={}, type=class {class}}}", java_text(value))
            }
            Self::Record(value) => java_text(value),
            Self::KeyValue(key, value) => format!("{{key={}, value={}}}", part(key), part(value)),
        }
    }

    /// As JSON; `None` for bytes, which have no JSON form of their own.
    pub(super) fn json(&self) -> Option<Value> {
        let part = |part: &Option<Self>| match part {
            None => Value::Null,
            Some(Self::Bytes(raw)) => Value::String(String::from_utf8_lossy(raw).into_owned()),
            Some(shown) => shown.json().unwrap_or_default(),
        };
        match self {
            Self::Bytes(_) => None,
            Self::Primitive(_, value) | Self::Record(value) => Some(value.clone()),
            Self::KeyValue(key, value) => Some(json!({"key": part(key), "value": part(value)})),
        }
    }
}

/// The fields that a definition names, in its order; missing ones are null.
fn with_fields(json: Value, definition: &Definition) -> Value {
    match (json, definition.fields()) {
        (Value::Object(mut object), Some(fields)) => {
            let named = fields.map(|name| {
                let value = object.get_mut(name).map(Value::take);
                (name.to_owned(), value.unwrap_or_default())
            });
            Value::Object(named.collect())
        }
        (json, _) => json,
    }
}

/// The key or the value of an inline pair, which may be none.
type Part<'a> = Option<&'a [u8]>;

/// Key and value of an inline pair.
fn split_inline(both: &[u8]) -> Option<(Part<'_>, Part<'_>)> {
    let (key, rest) = split_part(both)?;
    let (value, rest) = split_part(rest)?;
    rest.is_empty().then_some((key, value))
}

fn split_part(bytes: &[u8]) -> Option<(Part<'_>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    match i32::from_be_bytes(*length) {
        -1 => Some((None, rest)),
        length => {
            let (part, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            Some((Some(part), rest))
        }
    }
}

/// A value as Java's collections print it: `{a=1, b=[x, y]}`.
fn java_text(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(java_text).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}={}", java_text(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"type":"record","name":"K","fields":[{"name":"a","type":"int"},{"name":"b","type":["null","string"]}]}"#;

    fn schema(text: &str) -> PayloadSchema {
        PayloadSchema::parse(text).expect("valid")
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    #[test]
    fn wrong_schema_options_say_what_is_expected() {
        for (given, expected) in [
            ("protobuf", "expected bytes, string, json:DEFINITION"),
            ("xml:<a/>", "expected bytes, string, json:DEFINITION"),
            ("avro:{", "no JSON"),
            ("json:\"x\"", "\"x\" is not known"),
        ] {
            let error = PayloadSchema::parse(given).expect_err(given).to_string();
            assert!(error.contains(expected), "{given}: {error}");
        }
    }

    #[test]
    fn payloads_are_made_and_checked_by_their_schema() {
        let avro = schema(&format!("avro:{RECORD}"));
        let json = schema(&format!("json:{RECORD}"));
        let typed = r#"{"a":1,"b":{"string":"x"}}"#;
        let encoded = avro.of_text(typed).expect("fits");
        assert_eq!(encoded, [0x02, 0x02, 0x02, b'x']);
        assert!(avro.check(&encoded).is_ok());
        assert!(avro.check(b"no").is_err());
        assert!(avro.of_text("{}").is_err());
        assert_eq!(json.of_text(typed).expect("JSON"), typed.as_bytes());
        assert!(json.of_text("nojson").is_err());
        assert!(json.check(b"{\"a\":").is_err());
        assert_eq!(schema("string").of_text("x").expect("text"), b"x");
        assert!(schema("bytes").check(&[0xff]).is_ok());
    }

    #[test]
    fn schemas_are_told_as_the_apache_client_tells_them() {
        assert_eq!(schema("bytes").on_the_wire(), None);
        let of_text = schema("string").on_the_wire().expect("a schema");
        assert_eq!(
            (of_text.name.as_str(), of_text.r#type()),
            ("String", Type::String)
        );
        let both = key_value_schema(
            &schema("string"),
            &schema(&format!("avro:{RECORD}")),
            KeyValueEncoding::Separated,
        );
        assert_eq!(both.schema_data[..4], [0; 4]);
        assert_eq!(&both.schema_data[8..], RECORD.as_bytes());
        let properties: Vec<String> = both
            .properties
            .iter()
            .map(|entry| format!("{}={}", entry.key, entry.value))
            .collect();
        assert_eq!(
            properties.join(" "),
            "key.schema.name=String key.schema.type=STRING key.schema.properties={} value.schema.name=client \
             value.schema.type=AVRO value.schema.properties={} kv.encoding.type=SEPARATED"
        );
    }

    #[test]
    fn received_payloads_are_shown_by_their_schema() {
        let shown = |schema: Option<Schema>, payload: &[u8], key: Option<&[u8]>| {
            let schema = ReceivedSchema::read(&schema.expect("a schema")).expect("read");
            schema.show(payload, key).expect("fits").text(&text)
        };
        let avro = schema(&format!("avro:{RECORD}"));
        let json = schema(&format!("json:{RECORD}"));
        assert_eq!(
            shown(schema("string").on_the_wire(), b"hello", None),
            "{value=hello, type=class java.lang.String}"
        );
        assert_eq!(
            shown(avro.on_the_wire(), &[2, 2, 2, b'x'], None),
            "{a=1, b=x}"
        );
        assert_eq!(
            shown(
                json.on_the_wire(),
                br#"{"other":1,"a":[2,{"c":null}]}"#,
                None
            ),
            "{a=[2, {c=NULL}], b=NULL}"
        );
        let separated = key_value_schema(&json, &avro, KeyValueEncoding::Separated);
        assert_eq!(
            shown(Some(separated.clone()), &[2, 0], Some(br#"{"a":3}"#)),
            "{key={a=3, b=NULL}, value={a=1, b=NULL}}"
        );
        let both = key_value_schema(
            &schema("string"),
            &schema("bytes"),
            KeyValueEncoding::Inline,
        );
        assert_eq!(
            shown(Some(both.clone()), &inline(Some(b"k"), b"v"), None),
            "{key={value=k, type=class java.lang.String}, value={value=v, type=class java.lang.String}}"
        );
        assert_eq!(
            shown(Some(both), &inline(None, b"v"), None),
            "{key={value=NULL}, value={value=v, type=class java.lang.String}}"
        );
        let of = |kind: Type| {
            Some(Schema {
                r#type: kind.into(),
                ..Schema::default()
            })
        };
        assert_eq!(
            shown(of(Type::Int32), &[0xff; 4], None),
            "{value=-1, type=class java.lang.Integer}"
        );
        assert_eq!(
            shown(of(Type::None), b"raw", None),
            "{value=raw, type=class java.lang.String}"
        );
    }

    #[test]
    fn what_cannot_be_shown_is_an_error() {
        let of = |kind: Type, data: &'static [u8]| Schema {
            r#type: kind.into(),
            schema_data: data.into(),
            ..Schema::default()
        };
        assert!(ReceivedSchema::read(&of(Type::ProtobufNative, b"")).is_err());
        assert!(ReceivedSchema::read(&of(Type::Avro, b"{")).is_err());
        assert!(ReceivedSchema::read(&of(Type::KeyValue, b"\0\0\0\x09")).is_err());
        let number = ReceivedSchema::read(&of(Type::Int64, b"")).expect("known");
        assert!(number.show(b"1234567", None).is_err());
        let pair = ReceivedSchema::read(&of(Type::KeyValue, &[0; 8])).expect("of bytes");
        assert!(pair.show(&[0, 0, 0, 1], None).is_err());
    }
}
