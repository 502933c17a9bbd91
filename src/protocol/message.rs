//! What follows SEND and MESSAGE in a frame, and what a broker stores as an entry: a message or a batch.
//!
//! `[0x0e02 | u32 size | BrokerEntryMetadata] [0x0e01 | u32 CRC32C] u32 metadata size | MessageMetadata | payload`, all
//! integers big-endian, both parts in brackets optional (Apache Pulsar's "Binary protocol specification", section
//! "Framing"). The checksum covers everything after itself. The payload may be encrypted, compressed, a batch
//! ([`crate::protocol::batch`]) or a chunk ([`crate::protocol::chunk`]); the metadata says which.
//!
//! Start at [`split_payload`] (a client) or [`EncodedParts::split`] (a broker, which passes the bytes on).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

pub use crate::protocol::hot::MetadataView;

use crate::protocol::broker_entry::{self, BrokerEntryError};
use crate::protocol::checksum::{crc32c, crc32c_append, crc32c_combine};
use crate::protocol::hot;
use crate::protocol::proto::pulsar::{BrokerEntryMetadata, MessageMetadata};
use crate::protocol::required::{self, Violation};
use crate::protocol::wire::{Fields, WireError};

/// Splits a message into its parts and decodes them. The checksum is not verified: see [`MessageParts::verify_checksum`].
///
/// Nothing of the payload is copied.
///
/// # Errors
/// [`MessageError`] when a size points outside the message or one of the metadata blocks does not decode.
pub fn split_payload(message: Bytes) -> Result<MessageParts, MessageError> {
    let parts = EncodedParts::split(message)?;
    let broker_entry = match parts.broker_entry {
        Some(encoded) => {
            Some(BrokerEntryMetadata::decode(encoded).map_err(BrokerEntryError::Decode)?)
        }
        None => None,
    };
    Ok(MessageParts {
        broker_entry,
        checksum: parts.checksum,
        metadata: decode_metadata(parts.metadata)?,
        headers_and_payload: parts.headers_and_payload,
        payload: parts.payload,
    })
}

/// Decodes an encoded `MessageMetadata`.
///
/// Lists are what makes decoded metadata larger than encoded, up to forty times, so their length is bounded: a peer
/// cannot turn a frame of megabytes into hundreds of them.
///
/// # Errors
/// [`MessageError::TooManyElements`], [`MessageError::RequiredFieldMissing`], [`MessageError::Wire`] and
/// [`MessageError::Metadata`].
#[inline]
pub fn decode_metadata(encoded: Bytes) -> Result<MessageMetadata, MessageError> {
    match hot::decode_metadata(&encoded) {
        Some(metadata) => Ok(metadata),
        None => decode_metadata_generated(encoded),
    }
}

/// As [`decode_metadata`], by the generated code alone: the reference for the hand-written code.
pub(crate) fn decode_metadata_generated(encoded: Bytes) -> Result<MessageMetadata, MessageError> {
    if has_too_many_elements(&encoded) {
        return Err(MessageError::TooManyElements);
    }
    required::check_message_metadata(&encoded).map_err(|violation| match violation {
        Violation::Missing(field) => MessageError::RequiredFieldMissing { field },
        Violation::Malformed(error) => MessageError::Wire(error),
    })?;
    Ok(MessageMetadata::decode(encoded)?)
}

/// Whether an encoded `MessageMetadata` or `SingleMessageMetadata` has more than [`METADATA_ELEMENTS_MAX`] fields that
/// take memory of their own.
pub(crate) fn has_too_many_elements(metadata: &[u8]) -> bool {
    if metadata.len() / ELEMENT_LEN_MIN <= METADATA_ELEMENTS_MAX {
        return false;
    }
    let elements = |message| {
        Fields::new(message)
            .flatten()
            .filter_map(|field| Some((field.number, field.value.bytes()?)))
    };
    let nested = elements(metadata)
        .filter(|(number, _)| *number == ENCRYPTION_KEYS)
        .flat_map(|(_, key)| elements(key));
    elements(metadata)
        .chain(nested)
        .nth(METADATA_ELEMENTS_MAX)
        .is_some()
}

/// A message taken apart.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageParts {
    /// What the broker added when it stored the message, where it passes that on.
    pub broker_entry: Option<BrokerEntryMetadata>,
    /// The checksum the publisher sent; publishers may leave it out.
    pub checksum: Option<u32>,
    /// Who published what and when, and the form of the payload.
    pub metadata: MessageMetadata,
    /// Metadata size, metadata and payload: what the checksum covers.
    pub headers_and_payload: Bytes,
    /// The payload, as the metadata describes it.
    pub payload: Bytes,
}

impl MessageParts {
    /// Compares the checksum with the bytes; a message without one is taken as it is.
    ///
    /// # Errors
    /// [`ChecksumMismatch`] when they differ.
    pub fn verify_checksum(&self) -> Result<(), ChecksumMismatch> {
        verify_checksum(self.checksum, &self.headers_and_payload)
    }

    /// Whether the payload is a batch.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        is_batch(&self.metadata)
    }
}

/// A message taken apart, with its metadata still encoded: enough to verify the checksum and pass the message on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedParts {
    /// The encoded `BrokerEntryMetadata`, without magic number and size.
    pub broker_entry: Option<Bytes>,
    /// The checksum the publisher sent.
    pub checksum: Option<u32>,
    /// The encoded `MessageMetadata`.
    pub metadata: Bytes,
    /// Metadata size, metadata and payload: what the checksum covers.
    pub headers_and_payload: Bytes,
    /// Everything after the metadata.
    pub payload: Bytes,
}

impl EncodedParts {
    /// Finds the parts of a message, without copying and without decoding the metadata.
    ///
    /// # Errors
    /// [`MessageError`] when a size points outside the message.
    pub fn split(mut message: Bytes) -> Result<Self, MessageError> {
        let broker_entry = broker_entry::take_encoded(&mut message)?;
        // A metadata size that looks like the magic number would be over 235 million.
        let checksum = if message.first_chunk() == Some(&CHECKSUM_MAGIC.to_be_bytes()) {
            message.advance(CHECKSUM_MAGIC_LEN);
            Some(message.try_get_u32().map_err(|_| MessageError::TooShort)?)
        } else {
            None
        };
        let headers_and_payload = message.clone();
        let size = message.try_get_u32().map_err(|_| MessageError::TooShort)?;
        let available = message.len();
        let metadata = match usize::try_from(size) {
            Ok(len) if len <= available => message.split_to(len),
            _ => return Err(MessageError::MetadataBeyondMessage { size, available }),
        };
        Ok(Self {
            broker_entry,
            checksum,
            metadata,
            headers_and_payload,
            payload: message,
        })
    }

    /// Compares the checksum with the bytes; a message without one is taken as it is.
    ///
    /// # Errors
    /// [`ChecksumMismatch`] when they differ.
    pub fn verify_checksum(&self) -> Result<(), ChecksumMismatch> {
        verify_checksum(self.checksum, &self.headers_and_payload)
    }
}

/// Encodes a message around `payload`, which is passed through and not copied. With [`MessageForm::checksum`] the
/// checksum is computed over it.
///
/// # Panics
/// When the metadata takes 4 GiB encoded.
#[must_use]
pub fn encode(metadata: &MessageMetadata, payload: Bytes, form: MessageForm<'_>) -> EncodedMessage {
    let metadata_len = metadata.encoded_len();
    let mut covered = BytesMut::with_capacity(METADATA_SIZE_LEN + metadata_len);
    covered.put_u32(u32::try_from(metadata_len).expect("metadata is smaller than 4 GiB"));
    metadata.encode_raw(&mut covered);
    if form.broker_entry.is_none() && !form.checksum {
        return EncodedMessage {
            header: covered.freeze(),
            payload,
        };
    }
    let prefix = form.broker_entry.map_or(0, broker_entry::block_len) + CHECKSUM_LEN;
    let mut header = BytesMut::with_capacity(prefix + covered.len());
    if let Some(broker_entry) = form.broker_entry {
        broker_entry::put(broker_entry, &mut header);
    }
    if form.checksum {
        header.put_u16(CHECKSUM_MAGIC);
        header.put_u32(crc32c_append(crc32c(&covered), &payload));
    }
    header.put_slice(&covered);
    EncodedMessage {
        header: header.freeze(),
        payload,
    }
}

/// Appends everything in front of a payload that many messages share, so that its checksum need not be computed for each:
/// what [`encode`] writes with a checksum and without broker entry metadata. `payload_crc` is the CRC32C of the payload,
/// `payload_len` its length in bytes.
///
/// # Panics
/// When the metadata takes 4 GiB encoded.
pub fn put_header(
    metadata: &MessageMetadata,
    payload_crc: u32,
    payload_len: usize,
    out: &mut BytesMut,
) {
    let metadata_len = metadata.encoded_len();
    out.reserve(CHECKSUM_LEN + METADATA_SIZE_LEN + metadata_len);
    out.put_u16(CHECKSUM_MAGIC);
    let checksum_at = out.len();
    out.put_u32(0);
    let covered_from = out.len();
    out.put_u32(u32::try_from(metadata_len).expect("metadata is smaller than 4 GiB"));
    metadata.encode_raw(out);
    let covered = out.get(covered_from..).unwrap_or_default();
    let checksum = crc32c_combine(crc32c(covered), payload_crc, payload_len);
    if let Some(place) = out.get_mut(checksum_at..covered_from) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Which of the optional parts of a message [`encode`] writes.
#[derive(Debug, Clone, Copy)]
pub struct MessageForm<'a> {
    /// With a checksum, which the Go and Rust clients demand of every message they receive.
    pub checksum: bool,
    /// With broker entry metadata in front.
    pub broker_entry: Option<&'a BrokerEntryMetadata>,
}

impl Default for MessageForm<'_> {
    /// What every client publishes: a checksum, no broker entry metadata.
    fn default() -> Self {
        Self {
            checksum: true,
            broker_entry: None,
        }
    }
}

/// A message ready for the wire in two parts, so that the payload need not be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedMessage {
    /// Everything before the payload.
    pub header: Bytes,
    /// The payload as it was given.
    pub payload: Bytes,
}

impl EncodedMessage {
    /// The length of both parts in bytes.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Both parts in one piece; this copies.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut message = BytesMut::with_capacity(self.wire_len());
        message.put_slice(&self.header);
        message.put_slice(&self.payload);
        message.freeze()
    }
}

/// Whether the payload that `metadata` describes is a batch: the mere presence of `num_messages_in_batch` says so, even
/// when it is 1, which is also its default.
#[must_use]
pub fn is_batch(metadata: &MessageMetadata) -> bool {
    metadata.num_messages_in_batch.is_some()
}

/// Compares `checksum`, if there is one, with the CRC32C of `covered`: metadata size, metadata and payload.
///
/// # Errors
/// [`ChecksumMismatch`] when they differ.
pub fn verify_checksum(checksum: Option<u32>, covered: &[u8]) -> Result<(), ChecksumMismatch> {
    let Some(expected) = checksum else {
        return Ok(());
    };
    let computed = crc32c(covered);
    if computed == expected {
        Ok(())
    } else {
        Err(ChecksumMismatch { expected, computed })
    }
}

/// A message whose parts cannot be found or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The broker entry metadata is announced but cannot be read.
    #[error(transparent)]
    BrokerEntry(#[from] BrokerEntryError),
    /// The message ends within its checksum or metadata size.
    #[error("message ends before its metadata")]
    TooShort,
    /// The metadata would end after the message.
    #[error("message metadata of {size} bytes, but {available} bytes are left")]
    MetadataBeyondMessage {
        /// The metadata size field in bytes.
        size: u32,
        /// The bytes that are there.
        available: usize,
    },
    /// The metadata has more than [`METADATA_ELEMENTS_MAX`] strings, properties, clusters and encryption keys.
    #[error("message metadata has more than {METADATA_ELEMENTS_MAX} elements")]
    TooManyElements,
    /// The metadata, or a message in it, lacks a field that it must have.
    #[error("message metadata lacks its field {field}")]
    RequiredFieldMissing {
        /// The number of the field.
        field: u32,
    },
    /// The metadata is no protobuf message.
    #[error("malformed message metadata: {0}")]
    Wire(WireError),
    /// The metadata is no `MessageMetadata`.
    #[error("message metadata does not decode")]
    Metadata(#[from] prost::DecodeError),
}

/// A message whose bytes are not those that its publisher computed the checksum of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("message has checksum {expected:08x}, but its bytes have {computed:08x}")]
pub struct ChecksumMismatch {
    /// The checksum in the message.
    pub expected: u32,
    /// The checksum of its bytes.
    pub computed: u32,
}

/// The number that announces a checksum (`Commands.magicCrc32c`).
pub const CHECKSUM_MAGIC: u16 = 0x0e01;

/// The most strings, properties, clusters to replicate to, and encryption keys that metadata may have in all.
pub const METADATA_ELEMENTS_MAX: usize = 65_536;

/// The number of `MessageMetadata.encryption_keys`.
const ENCRYPTION_KEYS: u32 = 13;

/// An empty string or message in bytes: its tag and its length.
const ELEMENT_LEN_MIN: usize = 2;

const CHECKSUM_MAGIC_LEN: usize = size_of::<u16>();
const CHECKSUM_LEN: usize = CHECKSUM_MAGIC_LEN + size_of::<u32>();
const METADATA_SIZE_LEN: usize = size_of::<u32>();

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
