//! Reading message metadata without a copy.
// hot path

use bytes::Bytes;
use prost::Message;

use super::{bytes, skip_field, varint};
use crate::protocol::message::has_too_many_elements;
use crate::protocol::proto::pulsar as pb;
use crate::protocol::wire::low_i32;

/// What a `MessageMetadata` says, borrowed from its encoding: for who looks at it and does not keep it.
///
/// Fields have the names and the meaning they have in `proto/PulsarApi.proto`; lists are walked again when they are
/// asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the comments are in proto/PulsarApi.proto")]
pub struct MetadataView<'a> {
    pub producer_name: &'a str,
    pub sequence_id: u64,
    pub publish_time: u64,
    pub replicated_from: Option<&'a str>,
    pub partition_key: Option<&'a str>,
    pub compression: Option<i32>,
    pub uncompressed_size: Option<u32>,
    pub num_messages_in_batch: Option<i32>,
    pub event_time: Option<u64>,
    pub encryption_algo: Option<&'a str>,
    pub encryption_param: Option<&'a [u8]>,
    pub schema_version: Option<&'a [u8]>,
    pub partition_key_b64_encoded: Option<bool>,
    pub ordering_key: Option<&'a [u8]>,
    pub deliver_at_time: Option<i64>,
    pub marker_type: Option<i32>,
    pub txnid_least_bits: Option<u64>,
    pub txnid_most_bits: Option<u64>,
    pub highest_sequence_id: Option<u64>,
    pub null_value: Option<bool>,
    pub uuid: Option<&'a str>,
    pub num_chunks_from_msg: Option<i32>,
    pub total_chunk_msg_size: Option<i32>,
    pub chunk_id: Option<i32>,
    pub null_partition_key: Option<bool>,
    encoded: &'a [u8],
    properties: usize,
    replicate_to: usize,
    encryption_keys: usize,
}

/// Reads all fields of encoded metadata into `$metadata`, and leaves the function with `None` where they are refused.
///
/// [`MetadataView`] and the generated type have fields of the same names; `$text` and `$blob` make their values, and
/// each list has an expression for one element.
macro_rules! read_fields {
    (
        $encoded:expr, $metadata:ident, $text:expr, $blob:expr,
        properties: $property:expr, replicate_to: $cluster:expr, encryption_keys: $encryption_key:expr,
    ) => {{
        if has_too_many_elements($encoded) {
            return None;
        }
        let (mut producer_name, mut sequence_id, mut publish_time) = (None, None, None);
        let mut rest: &[u8] = $encoded;
        while !rest.is_empty() {
            let field = rest;
            let rest = &mut rest;
            match varint(rest)? {
                0x0a => producer_name = Some(string(rest)?),
                0x10 => sequence_id = Some(varint(rest)?),
                0x18 => publish_time = Some(varint(rest)?),
                PROPERTIES => $property(key_value(bytes(rest)?)?),
                0x2a => $metadata.replicated_from = Some($text(string(rest)?)),
                0x32 => $metadata.partition_key = Some($text(string(rest)?)),
                REPLICATE_TO => $cluster(string(rest)?),
                0x40 => $metadata.compression = Some(low_i32(varint(rest)?)),
                0x48 => $metadata.uncompressed_size = Some(low_i32(varint(rest)?).cast_unsigned()),
                0x58 => $metadata.num_messages_in_batch = Some(low_i32(varint(rest)?)),
                0x60 => $metadata.event_time = Some(varint(rest)?),
                ENCRYPTION_KEYS => {
                    let key = bytes(rest)?;
                    check_encryption_key(key)?;
                    $encryption_key(key)?;
                }
                0x72 => $metadata.encryption_algo = Some($text(string(rest)?)),
                0x7a => $metadata.encryption_param = Some($blob(bytes(rest)?)),
                0x82 => $metadata.schema_version = Some($blob(bytes(rest)?)),
                0x88 => $metadata.partition_key_b64_encoded = Some(varint(rest)? != 0),
                0x92 => $metadata.ordering_key = Some($blob(bytes(rest)?)),
                0x98 => $metadata.deliver_at_time = Some(varint(rest)?.cast_signed()),
                0xa0 => $metadata.marker_type = Some(low_i32(varint(rest)?)),
                0xb0 => $metadata.txnid_least_bits = Some(varint(rest)?),
                0xb8 => $metadata.txnid_most_bits = Some(varint(rest)?),
                0xc0 => $metadata.highest_sequence_id = Some(varint(rest)?),
                0xc8 => $metadata.null_value = Some(varint(rest)? != 0),
                0xd2 => $metadata.uuid = Some($text(string(rest)?)),
                0xd8 => $metadata.num_chunks_from_msg = Some(low_i32(varint(rest)?)),
                0xe0 => $metadata.total_chunk_msg_size = Some(low_i32(varint(rest)?)),
                0xe8 => $metadata.chunk_id = Some(low_i32(varint(rest)?)),
                0xf0 => $metadata.null_partition_key = Some(varint(rest)? != 0),
                _ => *rest = skip_unknown(field)?,
            }
        }
        $metadata.producer_name = $text(producer_name?);
        $metadata.sequence_id = sequence_id?;
        $metadata.publish_time = publish_time?;
    }};
}

/// Decodes encoded metadata. `None` if it is refused. Fields of bytes share memory with `encoded`.
///
/// In one pass of its own: by way of a [`MetadataView`] it would take as long as the generated code.
#[inline]
pub(crate) fn decode_metadata(encoded: &Bytes) -> Option<pb::MessageMetadata> {
    let mut metadata = pb::MessageMetadata::default();
    let text = |text: &str| text.to_owned();
    let shared = |bytes: &[u8]| encoded.slice_ref(bytes);
    read_fields!(
        encoded, metadata, text, shared,
        properties: |(key, value): (&str, &str)| metadata.properties.push(pb::KeyValue {
            key: key.to_owned(),
            value: value.to_owned(),
        }),
        replicate_to: |cluster: &str| metadata.replicate_to.push(cluster.to_owned()),
        encryption_keys: |key| {
            let key = pb::EncryptionKeys::decode(shared(key)).ok()?;
            metadata.encryption_keys.push(key);
            Some(())
        },
    );
    Some(metadata)
}

impl<'a> MetadataView<'a> {
    /// Reads encoded metadata. `None` if it is refused; [`crate::protocol::message::decode_metadata`] tells why, and
    /// takes and refuses the same bytes.
    #[inline]
    pub fn read(encoded: &'a [u8]) -> Option<Self> {
        let mut view = MetadataView {
            encoded,
            ..MetadataView::default()
        };
        read_fields!(
            encoded, view, |text| text, |bytes| bytes,
            properties: |_| view.properties += 1,
            replicate_to: |_| view.replicate_to += 1,
            encryption_keys: |_| {
                view.encryption_keys += 1;
                Some(())
            },
        );
        Some(view)
    }

    /// The properties, in the order in which they stand.
    pub fn properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        occurrences(self.encoded, PROPERTIES, self.properties).filter_map(key_value)
    }

    /// The clusters that the message is to be replicated to.
    pub fn replicate_to(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        occurrences(self.encoded, REPLICATE_TO, self.replicate_to)
            .filter_map(|name| str::from_utf8(name).ok())
    }

    /// Whether the payload is encrypted: there are keys to decrypt it with.
    pub fn is_encrypted(&self) -> bool {
        self.encryption_keys > 0
    }
}

/// The contents of the `count` fields with this key in a well-formed message.
fn occurrences(message: &[u8], key: u64, count: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = message;
    let found = std::iter::from_fn(move || {
        while !rest.is_empty() {
            let field = rest;
            if varint(&mut rest)? == key {
                return bytes(&mut rest);
            }
            (_, rest) = skip_field(field)?;
        }
        None
    });
    found.take(count)
}

fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    str::from_utf8(bytes(rest)?).ok()
}

/// A `KeyValue`: both are required.
fn key_value(encoded: &[u8]) -> Option<(&str, &str)> {
    let (mut key, mut value) = (None, None);
    let mut rest = encoded;
    while !rest.is_empty() {
        let field = rest;
        match varint(&mut rest)? {
            0x0a => key = Some(string(&mut rest)?),
            0x12 => value = Some(string(&mut rest)?),
            _ => rest = skip_above(2, field)?,
        }
    }
    Some((key?, value?))
}

/// What is behind a field that metadata is not known to have; one that it has, in an unexpected form, is for the reference
/// to judge.
#[cold]
fn skip_unknown(field: &[u8]) -> Option<&[u8]> {
    let (number, rest) = skip_field(field)?;
    (number > NUMBER_MAX || UNUSED.contains(&number)).then_some(rest)
}

/// As [`skip_unknown`], of messages that have all numbers up to `known`.
#[cold]
fn skip_above(known: u32, field: &[u8]) -> Option<&[u8]> {
    let (number, rest) = skip_field(field)?;
    (number > known).then_some(rest)
}

/// Checks an `EncryptionKeys`: a name, a value, and metadata of the key.
fn check_encryption_key(encoded: &[u8]) -> Option<()> {
    let (mut key, mut value) = (None, None);
    let mut rest = encoded;
    while !rest.is_empty() {
        let field = rest;
        match varint(&mut rest)? {
            0x0a => key = Some(string(&mut rest)?),
            0x12 => value = Some(bytes(&mut rest)?),
            0x1a => {
                key_value(bytes(&mut rest)?)?;
            }
            _ => rest = skip_above(3, field)?,
        }
    }
    key.and(value).map(|_| ())
}

/// The keys of the lists.
const PROPERTIES: u64 = 0x22;
const REPLICATE_TO: u64 = 0x3a;
const ENCRYPTION_KEYS: u64 = 0x6a;

/// The highest number of a field of `MessageMetadata`, and those below that it does not have.
const NUMBER_MAX: u32 = 30;
const UNUSED: [u32; 2] = [10, 21];
