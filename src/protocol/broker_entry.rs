//! Broker entry metadata: what a broker puts in front of a message it stores.
//!
//! The block is `0x0e02 | u32 size | BrokerEntryMetadata`. It stands before the checksum and the metadata, is not covered
//! by the checksum, and reaches only clients that asked for it with the feature flag `supports_broker_entry_metadata`
//! (PIP-70, PIP-90).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::protocol::proto::pulsar::BrokerEntryMetadata;

/// Takes the broker entry metadata off the front of `payload`; `None`, and `payload` unchanged, when there is none.
///
/// # Errors
/// [`BrokerEntryError`] when the block is announced but cannot be read. `payload` may be past the block then.
pub fn take(payload: &mut Bytes) -> Result<Option<BrokerEntryMetadata>, BrokerEntryError> {
    match take_encoded(payload)? {
        None => Ok(None),
        Some(block) => Ok(Some(BrokerEntryMetadata::decode(block)?)),
    }
}

/// Like [`take`], but leaves the `BrokerEntryMetadata` encoded. The two share the memory of `payload`.
///
/// # Errors
/// [`BrokerEntryError::Truncated`] when the block would end after `payload`, which is unchanged then.
pub fn take_encoded(payload: &mut Bytes) -> Result<Option<Bytes>, BrokerEntryError> {
    if payload.first_chunk() != Some(&MAGIC.to_be_bytes()) {
        return Ok(None);
    }
    let mut rest = payload.slice(MAGIC_LEN..);
    let available = rest.len();
    let size = rest
        .try_get_u32()
        .map_err(|_| BrokerEntryError::Truncated { size: 0, available })?;
    let available = rest.len();
    match usize::try_from(size) {
        Ok(len) if len <= available => {
            let block = rest.split_to(len);
            *payload = rest;
            Ok(Some(block))
        }
        _ => Err(BrokerEntryError::Truncated { size, available }),
    }
}

/// Appends the block that holds `metadata`.
///
/// # Panics
/// When the metadata takes 4 GiB encoded; it is two numbers.
pub fn put(metadata: &BrokerEntryMetadata, buffer: &mut BytesMut) {
    let len = metadata.encoded_len();
    buffer.reserve(block_len(metadata));
    buffer.put_u16(MAGIC);
    buffer.put_u32(u32::try_from(len).expect("broker entry metadata is a few bytes"));
    metadata.encode_raw(buffer);
}

/// The length in bytes of what [`put`] appends.
#[must_use]
pub fn block_len(metadata: &BrokerEntryMetadata) -> usize {
    MAGIC_LEN + 4 + metadata.encoded_len()
}

/// Broker entry metadata that is announced by its magic number but cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerEntryError {
    /// The block ends after the payload.
    #[error("broker entry metadata of {size} bytes, but {available} bytes are left")]
    Truncated {
        /// The size field in bytes; 0 when the field itself is incomplete.
        size: u32,
        /// The bytes that are there.
        available: usize,
    },
    /// The block is no `BrokerEntryMetadata`.
    #[error("broker entry metadata does not decode")]
    Decode(#[from] prost::DecodeError),
}

/// The number that announces broker entry metadata (`Commands.magicBrokerEntryMetadata`).
pub const MAGIC: u16 = 0x0e02;

const MAGIC_LEN: usize = size_of::<u16>();

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn takes_the_block_and_leaves_the_message() {
        let mut payload = Bytes::from_static(b"\x0e\x02\0\0\0\x04\x08\x07\x10\x05\x0e\x01rest");
        let metadata = take(&mut payload).unwrap().unwrap();
        assert_eq!(
            (metadata.broker_timestamp, metadata.index),
            (Some(7), Some(5))
        );
        assert_eq!(payload, &b"\x0e\x01rest"[..]);
    }

    #[test]
    fn leaves_a_payload_without_the_magic_alone() {
        for bytes in [&b""[..], b"\x0e", b"\x0e\x01\0\0\0\0", b"\0\0\0\x01x"] {
            let mut payload = Bytes::from_static(bytes);
            assert_eq!(take(&mut payload), Ok(None));
            assert_eq!(payload, bytes);
        }
    }

    #[test]
    fn refuses_a_block_beyond_the_payload() {
        let cases = [
            (&b"\x0e\x02\0\0\0"[..], 0, 3),
            (b"\x0e\x02\0\0\0\x03\x08\x07", 3, 2),
            (b"\x0e\x02\xff\xff\xff\xff\x08\x07", u32::MAX, 2),
        ];
        for (bytes, size, available) in cases {
            let mut payload = Bytes::from_static(bytes);
            assert_eq!(
                take(&mut payload),
                Err(BrokerEntryError::Truncated { size, available })
            );
            assert_eq!(payload, bytes);
        }
    }

    #[test]
    fn refuses_a_block_that_does_not_decode() {
        let mut payload = Bytes::from_static(b"\x0e\x02\0\0\0\x01\xff");
        assert!(matches!(
            take(&mut payload),
            Err(BrokerEntryError::Decode(_))
        ));
    }

    proptest! {
        #[test]
        fn takes_what_was_put(
            broker_timestamp: Option<u64>,
            index: Option<u64>,
            rest in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let metadata = BrokerEntryMetadata { broker_timestamp, index };
            let mut buffer = BytesMut::new();
            put(&metadata, &mut buffer);
            prop_assert_eq!(buffer.len(), block_len(&metadata));
            buffer.put_slice(&rest);
            let mut payload = buffer.freeze();
            prop_assert_eq!(take(&mut payload), Ok(Some(metadata)));
            prop_assert_eq!(payload, rest);
        }
    }
}
