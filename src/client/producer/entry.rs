//! Writing entries: the metadata of messages and batches, and the SEND frames around them. Pure.
// hot path

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::protocol::{
    checksum::{crc32c, crc32c_append},
    command::Command,
    message::CHECKSUM_MAGIC,
    proto::pulsar::{CommandSend, MessageMetadata},
    wire::{put_varint, varint_len},
};

/// The metadata of a message in the making: encoded, but for the sequence id. One buffer serves message after message.
#[derive(Debug, Default)]
pub(crate) struct MetadataWriter {
    /// All fields behind the first three.
    rest: Vec<u8>,
    /// The first three and `rest`.
    whole: Vec<u8>,
}

impl MetadataWriter {
    /// Takes all fields but the first three of `metadata`, which are given one by one, since they change most often.
    pub(crate) fn prepare(&mut self, metadata: &mut MessageMetadata) {
        metadata.producer_name.clear();
        metadata.sequence_id = 0;
        metadata.publish_time = 0;
        self.rest.clear();
        metadata.encode_raw(&mut self.rest);
    }

    /// The metadata with the first three fields; `name` is the encoded field of the producer's name.
    pub(crate) fn finish(&mut self, name: &[u8], sequence_id: u64, publish_time: u64) -> &[u8] {
        self.whole.clear();
        self.whole.extend_from_slice(name);
        self.whole.push(SEQUENCE_ID);
        put_varint(sequence_id, &mut self.whole);
        self.whole.push(PUBLISH_TIME);
        put_varint(publish_time, &mut self.whole);
        let rest = self.rest.get(EMPTY_FIRST_FIELDS_LEN..);
        self.whole.extend_from_slice(rest.unwrap_or_default());
        &self.whole
    }
}

/// The encoded field `producer_name`, for [`MetadataWriter::finish`].
pub(crate) fn name_field(name: &str) -> Bytes {
    let mut field = BytesMut::with_capacity(name.len() + 4);
    field.put_u8(PRODUCER_NAME);
    put_varint(name.len() as u64, &mut field);
    field.put_slice(name.as_bytes());
    field.freeze()
}

/// The fields of one message of a batch, encoded but for the sequence id.
#[derive(Debug, Default)]
pub(crate) struct SingleMetadataWriter {
    /// Fields before `sequence_id`, and those behind it.
    before: Vec<u8>,
    behind: Vec<u8>,
}

impl SingleMetadataWriter {
    /// Takes what `SingleMessageMetadata` has of the fields of a message with a payload of `payload_len` bytes.
    pub(crate) fn prepare(&mut self, metadata: &MessageMetadata, payload_len: usize) {
        let out = &mut self.before;
        out.clear();
        for property in &metadata.properties {
            put_message(SINGLE_PROPERTIES, property, out);
        }
        if let Some(key) = &metadata.partition_key {
            put_bytes(SINGLE_PARTITION_KEY, key.as_bytes(), out);
        }
        put_field(SINGLE_PAYLOAD_SIZE, payload_len as u64, out);
        if let Some(time) = metadata.event_time {
            put_field(SINGLE_EVENT_TIME, time, out);
        }
        if let Some(encoded) = metadata.partition_key_b64_encoded {
            put_field(SINGLE_KEY_B64, encoded.into(), out);
        }
        if let Some(key) = &metadata.ordering_key {
            put_bytes(SINGLE_ORDERING_KEY, key, out);
        }
        self.behind.clear();
        if let Some(null) = metadata.null_value {
            put_field(SINGLE_NULL_VALUE, null.into(), &mut self.behind);
        }
    }

    /// The bytes that a message takes in a batch besides its payload, at most.
    pub(crate) fn overhead(&self) -> usize {
        size_of::<u32>() + self.before.len() + self.behind.len() + 1 + VARINT_LEN_MAX
    }

    /// Appends the message to the payload of a batch.
    pub(crate) fn put(&self, sequence_id: u64, payload: &[u8], batch: &mut BytesMut) {
        let len = self.before.len() + 1 + varint_len(sequence_id) + self.behind.len();
        batch.reserve(size_of::<u32>() + len + payload.len());
        batch.put_u32(u32::try_from(len).expect("a message of a batch is smaller than 4 GiB"));
        batch.put_slice(&self.before);
        batch.put_u8(SINGLE_SEQUENCE_ID);
        put_varint(sequence_id, batch);
        batch.put_slice(&self.behind);
        batch.put_slice(payload);
    }
}

/// Appends a SEND frame up to the payload, which the caller puts behind it: the command, a checksum over all that
/// follows, and the encoded metadata.
pub(crate) fn put_send_head(
    send: CommandSend,
    metadata: &[u8],
    payload: &[u8],
    out: &mut BytesMut,
) {
    let metadata_len = u32::try_from(metadata.len())
        .expect("frames are limited to far less than 4 GiB")
        .to_be_bytes();
    let checksum = crc32c_append(crc32c_append(crc32c(&metadata_len), metadata), payload);
    Command::Send(send).encode_head(message_len(metadata.len(), payload.len()), out);
    out.put_u16(CHECKSUM_MAGIC);
    out.put_u32(checksum);
    out.put_slice(&metadata_len);
    out.put_slice(metadata);
}

/// Appends a SEND frame up to an entry's `headers_and_payload` (metadata size, metadata and payload).
pub(crate) fn put_raw_send_head(send: CommandSend, headers_and_payload: &[u8], out: &mut BytesMut) {
    let len = CHECKSUM_LEN + headers_and_payload.len();
    Command::Send(send).encode_head(len, out);
    out.put_u16(CHECKSUM_MAGIC);
    out.put_u32(crc32c(headers_and_payload));
}

/// Everything behind the command: what a broker compares with its `maxMessageSize`.
pub(crate) fn message_len(metadata_len: usize, payload_len: usize) -> usize {
    CHECKSUM_LEN + size_of::<u32>() + metadata_len + payload_len
}

fn put_field(key: u8, value: u64, out: &mut Vec<u8>) {
    out.push(key);
    put_varint(value, out);
}

fn put_bytes(key: u8, bytes: &[u8], out: &mut Vec<u8>) {
    put_field(key, bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn put_message(key: u8, message: &impl Message, out: &mut Vec<u8>) {
    put_field(key, message.encoded_len() as u64, out);
    message.encode_raw(out);
}

/// Room for a SEND frame besides its metadata and payload.
pub(crate) const SEND_OVERHEAD: usize = 96;

/// Magic number and checksum.
const CHECKSUM_LEN: usize = 6;
const VARINT_LEN_MAX: usize = 10;

/// Keys of `MessageMetadata` and of `SingleMessageMetadata`: number and wire type.
const PRODUCER_NAME: u8 = 1 << 3 | 2;
const SEQUENCE_ID: u8 = 2 << 3;
const PUBLISH_TIME: u8 = 3 << 3;
const SINGLE_PROPERTIES: u8 = 1 << 3 | 2;
const SINGLE_PARTITION_KEY: u8 = 2 << 3 | 2;
const SINGLE_PAYLOAD_SIZE: u8 = 3 << 3;
const SINGLE_EVENT_TIME: u8 = 5 << 3;
const SINGLE_KEY_B64: u8 = 6 << 3;
const SINGLE_ORDERING_KEY: u8 = 7 << 3 | 2;
const SINGLE_SEQUENCE_ID: u8 = 8 << 3;
const SINGLE_NULL_VALUE: u8 = 9 << 3;
/// An empty name and two zeros, with their keys.
const EMPTY_FIRST_FIELDS_LEN: usize = 6;
