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

impl<'a> MetadataView<'a> {
    /// Reads encoded metadata. `None` if it is refused; [`crate::protocol::message::decode_metadata`] tells why, and
    /// takes and refuses the same bytes.
    pub fn read(encoded: &'a [u8]) -> Option<Self> {
        if has_too_many_elements(encoded) {
            return None;
        }
        let (mut producer_name, mut sequence_id, mut publish_time) = (None, None, None);
        let mut view = MetadataView {
            encoded,
            ..MetadataView::default()
        };
        let mut rest = encoded;
        while !rest.is_empty() {
            let field = rest;
            match varint(&mut rest)? {
                0x0a => producer_name = Some(string(&mut rest)?),
                0x10 => sequence_id = Some(varint(&mut rest)?),
                0x18 => publish_time = Some(varint(&mut rest)?),
                PROPERTIES => {
                    key_value(bytes(&mut rest)?)?;
                    view.properties += 1;
                }
                0x2a => view.replicated_from = Some(string(&mut rest)?),
                0x32 => view.partition_key = Some(string(&mut rest)?),
                REPLICATE_TO => {
                    string(&mut rest)?;
                    view.replicate_to += 1;
                }
                0x40 => view.compression = Some(low_i32(varint(&mut rest)?)),
                0x48 => {
                    view.uncompressed_size = Some(low_i32(varint(&mut rest)?).cast_unsigned());
                }
                0x58 => view.num_messages_in_batch = Some(low_i32(varint(&mut rest)?)),
                0x60 => view.event_time = Some(varint(&mut rest)?),
                key => {
                    if !view.read_rare(key, &mut rest)? {
                        let number = skip_field(field, &mut rest)?;
                        if number <= NUMBER_MAX && !UNUSED.contains(&number) {
                            return None;
                        }
                    }
                }
            }
        }
        view.producer_name = producer_name?;
        view.sequence_id = sequence_id?;
        view.publish_time = publish_time?;
        Some(view)
    }

    /// Reads a field that most metadata does not have; `false`, and nothing read, if it is none of these.
    fn read_rare(&mut self, key: u64, rest: &mut &'a [u8]) -> Option<bool> {
        match key {
            ENCRYPTION_KEYS => {
                encryption_key(bytes(rest)?)?;
                self.encryption_keys += 1;
            }
            0x72 => self.encryption_algo = Some(string(rest)?),
            0x7a => self.encryption_param = Some(bytes(rest)?),
            0x82 => self.schema_version = Some(bytes(rest)?),
            0x88 => self.partition_key_b64_encoded = Some(varint(rest)? != 0),
            0x92 => self.ordering_key = Some(bytes(rest)?),
            0x98 => self.deliver_at_time = Some(varint(rest)?.cast_signed()),
            0xa0 => self.marker_type = Some(low_i32(varint(rest)?)),
            0xb0 => self.txnid_least_bits = Some(varint(rest)?),
            0xb8 => self.txnid_most_bits = Some(varint(rest)?),
            0xc0 => self.highest_sequence_id = Some(varint(rest)?),
            0xc8 => self.null_value = Some(varint(rest)? != 0),
            0xd2 => self.uuid = Some(string(rest)?),
            0xd8 => self.num_chunks_from_msg = Some(low_i32(varint(rest)?)),
            0xe0 => self.total_chunk_msg_size = Some(low_i32(varint(rest)?)),
            0xe8 => self.chunk_id = Some(low_i32(varint(rest)?)),
            0xf0 => self.null_partition_key = Some(varint(rest)? != 0),
            _ => return Some(false),
        }
        Some(true)
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

    /// The same as a value of its own. Fields of bytes share memory with `encoded`, which is what was read.
    ///
    /// # Panics
    /// If `encoded` is not the memory that this is a view of.
    pub(crate) fn to_metadata(self, encoded: &Bytes) -> pb::MessageMetadata {
        let owned = |text: &str| text.to_owned();
        let shared = |bytes: &[u8]| encoded.slice_ref(bytes);
        pb::MessageMetadata {
            producer_name: owned(self.producer_name),
            sequence_id: self.sequence_id,
            publish_time: self.publish_time,
            properties: list(self.properties, self.properties().map(property)),
            replicated_from: self.replicated_from.map(owned),
            partition_key: self.partition_key.map(owned),
            replicate_to: list(self.replicate_to, self.replicate_to().map(owned)),
            compression: self.compression,
            uncompressed_size: self.uncompressed_size,
            num_messages_in_batch: self.num_messages_in_batch,
            event_time: self.event_time,
            encryption_keys: list(
                self.encryption_keys,
                occurrences(self.encoded, ENCRYPTION_KEYS, self.encryption_keys)
                    .filter_map(|key| pb::EncryptionKeys::decode(shared(key)).ok()),
            ),
            encryption_algo: self.encryption_algo.map(owned),
            encryption_param: self.encryption_param.map(shared),
            schema_version: self.schema_version.map(shared),
            partition_key_b64_encoded: self.partition_key_b64_encoded,
            ordering_key: self.ordering_key.map(shared),
            deliver_at_time: self.deliver_at_time,
            marker_type: self.marker_type,
            txnid_least_bits: self.txnid_least_bits,
            txnid_most_bits: self.txnid_most_bits,
            highest_sequence_id: self.highest_sequence_id,
            null_value: self.null_value,
            uuid: self.uuid.map(owned),
            num_chunks_from_msg: self.num_chunks_from_msg,
            total_chunk_msg_size: self.total_chunk_msg_size,
            chunk_id: self.chunk_id,
            null_partition_key: self.null_partition_key,
        }
    }
}

fn property((key, value): (&str, &str)) -> pb::KeyValue {
    pb::KeyValue {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

/// A list of `len` elements, in one allocation.
fn list<T>(len: usize, elements: impl Iterator<Item = T>) -> Vec<T> {
    let mut list = Vec::with_capacity(len);
    list.extend(elements);
    list
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
            skip_field(field, &mut rest)?;
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
            _ => (skip_field(field, &mut rest)? > 2).then_some(())?,
        }
    }
    Some((key?, value?))
}

/// Checks an `EncryptionKeys`: a name, a value, and metadata of the key.
fn encryption_key(encoded: &[u8]) -> Option<()> {
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
            _ => (skip_field(field, &mut rest)? > 3).then_some(())?,
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
