use proptest::prelude::*;

use super::*;
use crate::protocol::batch::{BatchBuilder, BatchLimits, BatchReader};
use crate::protocol::proto::pulsar::{CompressionType, KeyValue, SingleMessageMetadata};

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
    let message = Bytes::from_static(b"\0\0\0\x09\x0a\x01\xff\x10\x03\x18\x05\x0a\0");
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

/// The messages in `testdata/message_java.txt`, by name.
fn java_message(name: &str) -> Bytes {
    let line = include_str!("testdata/message_java.txt")
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .unwrap();
    let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
    (0..line.len()).step_by(2).map(byte).collect()
}

fn property(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: value.into(),
    }
}

#[test]
fn reads_and_writes_messages_as_the_java_client_does() {
    let metadata = MessageMetadata {
        producer_name: "standalone-0-1".into(),
        sequence_id: 7,
        publish_time: 1_700_000_000_000,
        partition_key: Some("key".into()),
        event_time: Some(5),
        properties: vec![property("k", "v")],
        ..Default::default()
    };
    let broker_entry = BrokerEntryMetadata {
        broker_timestamp: None,
        index: Some(2),
    };
    let forms = [
        ("plain", false, None),
        ("checksum", true, None),
        ("broker-entry", true, Some(&broker_entry)),
    ];
    for (name, checksum, broker_entry) in forms {
        let message = java_message(name);
        let parts = split_payload(message.clone()).unwrap();
        assert_eq!(parts.broker_entry.as_ref(), broker_entry, "{name}");
        assert_eq!(parts.checksum.is_some(), checksum, "{name}");
        assert_eq!(parts.verify_checksum(), Ok(()), "{name}");
        assert_eq!(parts.metadata, metadata, "{name}");
        assert_eq!(parts.payload, "payload", "{name}");
        let form = MessageForm {
            checksum,
            broker_entry,
        };
        let encoded = encode(&metadata, parts.payload, form).to_bytes();
        assert_eq!(encoded, message, "{name}");
    }
}

#[test]
fn reads_and_writes_batches_as_the_java_client_does() {
    let message = java_message("batch");
    let parts = split_payload(message.clone()).unwrap();
    assert_eq!(parts.verify_checksum(), Ok(()));
    assert!(parts.is_batch());
    let count = parts.metadata.num_messages_in_batch();
    let messages: Vec<_> = BatchReader::new(parts.payload, count)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let payloads: Vec<_> = messages.iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, ["message 0", "", "message 2"]);
    assert_eq!(messages[0].0.properties, [property("n", "0")]);
    assert!(messages[1].0.compacted_out());

    let mut builder = BatchBuilder::new(BatchLimits::default());
    for (metadata, payload) in messages {
        if metadata.compacted_out() {
            let metadata = SingleMessageMetadata {
                compacted_out: None,
                ..metadata
            };
            builder.push_compacted_out(metadata).unwrap();
        } else {
            builder.push(metadata, &payload).unwrap();
        }
    }
    let template = MessageMetadata {
        producer_name: "p".into(),
        publish_time: 1,
        ..Default::default()
    };
    let (metadata, payload) = builder
        .finish(template, CompressionType::None)
        .unwrap()
        .unwrap();
    let encoded = encode(&metadata, payload, MessageForm::default());
    assert_eq!(encoded.to_bytes(), message);
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

    #[test]
    fn a_header_around_a_known_checksum_is_the_same(
        sequence_id: u64,
        producer_name in "[a-z]{0,40}",
        payload in proptest::collection::vec(any::<u8>(), 0..5000),
    ) {
        let metadata = MessageMetadata { producer_name, sequence_id, ..Default::default() };
        let mut message = BytesMut::from(&b"before"[..]);
        put_header(&metadata, crc32c(&payload), payload.len(), &mut message);
        message.extend_from_slice(&payload);
        let expected = encode(&metadata, payload.into(), MessageForm::default()).to_bytes();
        prop_assert_eq!(&message[6..], expected);
    }
}
