//! Protobuf messages that keep what they do not know.
//!
//! Values in the metadata store are read, changed and written again by brokers of several versions. A field that a later version
//! added has to survive that, also inside a repeated message; the types that prost generates drop it. A message declared
//! with `protobuf_messages!` keeps such fields as bytes and writes them behind those it knows, as Java's library does: what
//! that library wrote comes back byte for byte.
//!
//! Only for proto2 and the field types that Pulsar's stored messages have. When a field stands there twice, the last one counts.

use bytes::{BufMut, Bytes};

use crate::protocol::wire::{Fields, Value, WireError};

/// Why bytes are no message of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// They are no protobuf message at all.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// A field that has to be there is missing.
    #[error("the field {0} is missing")]
    Missing(&'static str),
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
}

/// A message of one kind.
pub trait Message: Sized {
    /// Reads a message.
    ///
    /// # Errors
    /// See [`MessageError`].
    fn decode(bytes: &[u8]) -> Result<Self, MessageError>;

    /// Writes the message behind what is in `out`.
    fn encode_to(&self, out: &mut Vec<u8>);

    /// The message as bytes.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_to(&mut out);
        out
    }
}

/// Fields that a message does not know, as they stood there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnknownFields(Vec<u8>);

impl UnknownFields {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps an encoded field.
    pub(crate) fn keep(&mut self, field: &[u8]) {
        self.0.extend_from_slice(field);
    }

    /// Writes all of them.
    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

/// The value of one field: a number, a text, a message.
pub(crate) trait Scalar: Sized {
    /// `None`: the value has another wire type, so the field is one that is not known.
    fn read(value: Value<'_>) -> Result<Option<Self>, MessageError>;

    /// Writes tag and value.
    fn write(&self, number: u32, out: &mut Vec<u8>);
}

/// A field as a message declares it: required, optional or repeated.
pub(crate) trait Field: Sized {
    /// What has been read of it so far.
    type Read: Default;

    /// Takes a value; false when it is none of this field.
    fn merge(read: &mut Self::Read, value: Value<'_>) -> Result<bool, MessageError>;

    /// The field, once the message has been read.
    fn finish(read: Self::Read, name: &'static str) -> Result<Self, MessageError>;

    /// Writes the field, if it is set.
    fn write_all(&self, number: u32, out: &mut Vec<u8>);
}

impl<T: Scalar> Field for T {
    type Read = Option<T>;

    fn merge(read: &mut Option<T>, value: Value<'_>) -> Result<bool, MessageError> {
        Option::merge(read, value)
    }

    fn finish(read: Option<T>, name: &'static str) -> Result<T, MessageError> {
        read.ok_or(MessageError::Missing(name))
    }

    fn write_all(&self, number: u32, out: &mut Vec<u8>) {
        self.write(number, out);
    }
}

impl<T: Scalar> Field for Option<T> {
    type Read = Self;

    fn merge(read: &mut Self, value: Value<'_>) -> Result<bool, MessageError> {
        let value = T::read(value)?;
        let fits = value.is_some();
        if fits {
            *read = value;
        }
        Ok(fits)
    }

    fn finish(read: Self, _: &'static str) -> Result<Self, MessageError> {
        Ok(read)
    }

    fn write_all(&self, number: u32, out: &mut Vec<u8>) {
        if let Some(value) = self {
            value.write(number, out);
        }
    }
}

impl<T: Scalar> Field for Vec<T> {
    type Read = Self;

    fn merge(read: &mut Self, value: Value<'_>) -> Result<bool, MessageError> {
        let value = T::read(value)?;
        let fits = value.is_some();
        read.extend(value);
        Ok(fits)
    }

    fn finish(read: Self, _: &'static str) -> Result<Self, MessageError> {
        Ok(read)
    }

    fn write_all(&self, number: u32, out: &mut Vec<u8>) {
        for value in self {
            value.write(number, out);
        }
    }
}

impl Scalar for i64 {
    fn read(value: Value<'_>) -> Result<Option<Self>, MessageError> {
        Ok(value.varint().map(u64::cast_signed))
    }

    fn write(&self, number: u32, out: &mut Vec<u8>) {
        put_tag(number, VARINT, out);
        put_varint(self.cast_unsigned(), out);
    }
}

impl Scalar for i32 {
    fn read(value: Value<'_>) -> Result<Option<Self>, MessageError> {
        // Of a number that is too large the lower bits count, as everywhere in protobuf.
        let lower = value.varint().map(|number| number & u64::from(u32::MAX));
        let number = lower.and_then(|number| u32::try_from(number).ok());
        Ok(number.map(u32::cast_signed))
    }

    fn write(&self, number: u32, out: &mut Vec<u8>) {
        // Negative numbers are written as 64 bits.
        i64::from(*self).write(number, out);
    }
}

impl Scalar for bool {
    fn read(value: Value<'_>) -> Result<Option<Self>, MessageError> {
        Ok(value.varint().map(|number| number != 0))
    }

    fn write(&self, number: u32, out: &mut Vec<u8>) {
        i64::from(*self).write(number, out);
    }
}

impl Scalar for String {
    fn read(value: Value<'_>) -> Result<Option<Self>, MessageError> {
        let Some(bytes) = value.bytes() else {
            return Ok(None);
        };
        let text = std::str::from_utf8(bytes).map_err(|_| MessageError::Text)?;
        Ok(Some(text.to_owned()))
    }

    fn write(&self, number: u32, out: &mut Vec<u8>) {
        put_bytes(number, self.as_bytes(), out);
    }
}

impl Scalar for Bytes {
    fn read(value: Value<'_>) -> Result<Option<Self>, MessageError> {
        Ok(value.bytes().map(Bytes::copy_from_slice))
    }

    fn write(&self, number: u32, out: &mut Vec<u8>) {
        put_bytes(number, self, out);
    }
}

/// The fields of an encoded message.
pub(crate) fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields::new(bytes)
}

/// Writes a field of bytes.
pub(crate) fn put_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    put_tag(number, BYTES, out);
    // A length in memory fits.
    put_varint(u64::try_from(bytes.len()).unwrap_or(u64::MAX), out);
    out.extend_from_slice(bytes);
}

fn put_tag(number: u32, wire_type: u64, out: &mut Vec<u8>) {
    put_varint((u64::from(number) << 3) | wire_type, out);
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        // Seven bits fit.
        let [low, ..] = (value & 0x7f).to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.put_u8(low);
            return;
        }
        out.put_u8(low | 0x80);
    }
}

const VARINT: u64 = 0;
const BYTES: u64 = 2;

/// Declares messages. Each field is `number name: type;` where `T` is required, `Option<T>` optional and `Vec<T>` repeated.
/// Fields are declared in the order of their numbers, in which they are written.
macro_rules! protobuf_messages {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident {
            $( $(#[$field_doc:meta])* $number:literal $field:ident: $type:ty; )*
        }
    )+) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $name {
            $( $(#[$field_doc])* pub $field: $type, )*
            /// Fields of later versions.
            pub unknown: $crate::metadata::UnknownFields,
        }

        impl $crate::metadata::Message for $name {
            fn decode(bytes: &[u8]) -> Result<Self, $crate::metadata::MessageError> {
                use $crate::metadata::protobuf::Field;

                $( let mut $field: <$type as Field>::Read = Default::default(); )*
                let mut unknown = $crate::metadata::UnknownFields::default();
                for field in $crate::metadata::protobuf::fields(bytes) {
                    let field = field?;
                    let known = match field.number {
                        $( $number => <$type as Field>::merge(&mut $field, field.value)?, )*
                        _ => false,
                    };
                    if !known {
                        unknown.keep(bytes.get(field.start..field.end).unwrap_or_default());
                    }
                }
                Ok(Self {
                    $( $field: <$type as Field>::finish($field, stringify!($field))?, )*
                    unknown,
                })
            }

            fn encode_to(&self, out: &mut Vec<u8>) {
                use $crate::metadata::protobuf::Field;

                $( self.$field.write_all($number, out); )*
                self.unknown.encode_to(out);
            }
        }

        impl $crate::metadata::protobuf::Scalar for $name {
            fn read(
                value: $crate::protocol::wire::Value<'_>,
            ) -> Result<Option<Self>, $crate::metadata::MessageError> {
                value.bytes().map($crate::metadata::Message::decode).transpose()
            }

            fn write(&self, number: u32, out: &mut Vec<u8>) {
                let message = $crate::metadata::Message::encode(self);
                $crate::metadata::protobuf::put_bytes(number, &message, out);
            }
        }
    )+ };
}

pub(crate) use protobuf_messages;
