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

use crate::protocol::broker_entry::{self, BrokerEntryError};
use crate::protocol::checksum::{crc32c, crc32c_append};
use crate::protocol::proto::pulsar::{BrokerEntryMetadata, MessageMetadata};
use crate::protocol::required;
use crate::protocol::wire::Fields;

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
/// [`MessageError::TooManyElements`], [`MessageError::RequiredFieldMissing`] and [`MessageError::Metadata`].
pub fn decode_metadata(encoded: Bytes) -> Result<MessageMetadata, MessageError> {
    if has_too_many_elements(&encoded) {
        return Err(MessageError::TooManyElements);
    }
    required::check_message_metadata(&encoded)
        .map_err(|field| MessageError::RequiredFieldMissing { field })?;
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn metadata() -> MessageMetadata {
        MessageMetadata {
            producer_name: "p".into(),
            sequence_id: 3,
            publish_time: 5,
            ..Default::default()
        }
    }

    /// `metadata()` and the payload "data", with the checksum and broker entry metadata computed by hand and by
    /// the checksum's definition.
    const PLAIN: &[u8] = b"\0\0\0\x07\x0a\x01p\x10\x03\x18\x05data";

    #[test]
    fn writes_the_parts_in_the_order_of_the_wire() {
        let broker_entry = BrokerEntryMetadata {
            broker_timestamp: Some(1),
            index: Some(2),
        };
        let payload = Bytes::from_static(b"data");
        let form = MessageForm {
            checksum: false,
            broker_entry: None,
        };
        let plain = encode(&metadata(), payload.clone(), form);
        assert_eq!(plain.to_bytes(), PLAIN);
        assert_eq!(plain.payload.as_ptr(), payload.as_ptr());

        let form = MessageForm {
            checksum: true,
            broker_entry: Some(&broker_entry),
        };
        let full = encode(&metadata(), payload.clone(), form);
        let mut expected = BytesMut::from(&b"\x0e\x02\0\0\0\x04\x08\x01\x10\x02\x0e\x01"[..]);
        expected.put_u32(crc32c(PLAIN));
        expected.put_slice(PLAIN);
        assert_eq!(full.to_bytes(), expected);
        assert_eq!(full.wire_len(), expected.len());
    }

    #[test]
    fn splits_without_copying() {
        let message = encode(&metadata(), "data".into(), MessageForm::default()).to_bytes();
        let range = message.as_ptr_range();
        let parts = split_payload(message.clone()).unwrap();
        assert_eq!(parts.metadata, metadata());
        assert_eq!(parts.payload, "data");
        assert_eq!(parts.headers_and_payload, PLAIN);
        assert!(range.contains(&parts.payload.as_ptr()));
        assert_eq!(parts.verify_checksum(), Ok(()));
        assert!(!parts.is_batch());
    }

    #[test]
    fn a_message_without_checksum_verifies() {
        let parts = split_payload(Bytes::from_static(PLAIN)).unwrap();
        assert_eq!(parts.checksum, None);
        assert_eq!(parts.verify_checksum(), Ok(()));
    }

    #[test]
    fn any_changed_bit_after_the_checksum_is_found() {
        let message = encode(&metadata(), "data".into(), MessageForm::default()).to_bytes();
        for at in CHECKSUM_LEN + METADATA_SIZE_LEN..message.len() {
            for bit in 0..8 {
                let mut changed = message.to_vec();
                changed[at] ^= 1 << bit;
                let parts = EncodedParts::split(changed.into()).unwrap();
                assert!(parts.verify_checksum().is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn a_batch_of_one_is_a_batch() {
        let metadata = MessageMetadata {
            num_messages_in_batch: Some(1),
            ..metadata()
        };
        assert!(is_batch(&metadata));
    }

    #[test]
    fn refuses_metadata_beyond_the_message() {
        for size in [12_u32, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let mut message = BytesMut::from(PLAIN);
            message[..4].copy_from_slice(&size.to_be_bytes());
            let error = MessageError::MetadataBeyondMessage {
                size,
                available: 11,
            };
            assert_eq!(split_payload(message.freeze()), Err(error));
        }
    }

    #[test]
    fn refuses_every_truncation_within_the_headers() {
        let broker_entry = BrokerEntryMetadata {
            broker_timestamp: Some(1),
            index: Some(2),
        };
        let form = MessageForm {
            checksum: true,
            broker_entry: Some(&broker_entry),
        };
        let message = encode(&metadata(), Bytes::new(), form).to_bytes();
        for len in 0..message.len() {
            // After the broker entry metadata nothing but the magic number tells a checksum from a size.
            assert!(split_payload(message.slice(..len)).is_err(), "{len} bytes");
        }
        assert!(split_payload(message).is_ok());
    }

    #[test]
    fn refuses_metadata_that_does_not_decode() {
        let message = Bytes::from_static(b"\0\0\0\x08\x0a\x01p\x10\x03\x18\x05\x0b");
        assert!(matches!(
            split_payload(message),
            Err(MessageError::Metadata(_))
        ));
    }

    #[test]
    fn refuses_metadata_without_its_required_fields() {
        let message = Bytes::from_static(b"\0\0\0\x05\x0a\x01p\x18\x05data");
        let error = MessageError::RequiredFieldMissing { field: 2 };
        assert_eq!(split_payload(message), Err(error));
    }

    #[test]
    fn refuses_metadata_with_too_many_elements() {
        let with = |number: u8, count: usize| {
            let mut encoded = metadata().encode_to_vec();
            for _ in 0..count {
                encoded.extend_from_slice(&[number << 3 | 2, 0]);
            }
            decode_metadata(encoded.into())
        };
        // One element is the producer name; 7 is `replicate_to`.
        assert!(with(7, METADATA_ELEMENTS_MAX - 1).is_ok());
        let too_many = Err(MessageError::TooManyElements);
        assert_eq!(with(7, METADATA_ELEMENTS_MAX), too_many);

        let key = [3 << 3 | 2, 0].repeat(METADATA_ELEMENTS_MAX);
        let mut encoded = metadata().encode_to_vec();
        prost::encoding::bytes::encode(ENCRYPTION_KEYS, &key, &mut encoded);
        assert_eq!(decode_metadata(encoded.into()), too_many);
    }

    proptest! {
        #[test]
        fn splits_what_was_encoded(
            checksum: bool,
            index in proptest::option::of(any::<u64>()),
            sequence_id: u64,
            producer_name in "[a-z]{0,40}",
            payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let metadata = MessageMetadata { producer_name, sequence_id, ..Default::default() };
            let broker_entry = index.map(|index| BrokerEntryMetadata {
                index: Some(index),
                ..Default::default()
            });
            let form = MessageForm { checksum, broker_entry: broker_entry.as_ref() };
            let message = encode(&metadata, payload.clone().into(), form).to_bytes();
            let parts = split_payload(message).unwrap();
            prop_assert_eq!(parts.checksum.is_some(), checksum);
            prop_assert_eq!(parts.verify_checksum(), Ok(()));
            prop_assert_eq!(&parts.broker_entry, &broker_entry);
            prop_assert_eq!(&parts.metadata, &metadata);
            prop_assert_eq!(&parts.payload, &payload);
        }
    }
}
