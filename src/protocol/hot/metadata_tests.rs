use bytes::Bytes;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use prost::Message;

use super::MetadataView;
use crate::protocol::message::{decode_metadata, decode_metadata_generated};
use crate::protocol::proto::pulsar as pb;
use crate::protocol::wire::put_varint;

fn raw() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..12).prop_map(Bytes::from)
}

fn properties() -> impl Strategy<Value = Vec<pb::KeyValue>> {
    let property = (".{0,8}", ".{0,8}").prop_map(|(key, value)| pb::KeyValue { key, value });
    vec(property, 0..4)
}

fn keys() -> impl Strategy<Value = Vec<pb::EncryptionKeys>> {
    let key =
        (".{0,8}", raw(), properties()).prop_map(|(key, value, metadata)| pb::EncryptionKeys {
            key,
            value,
            metadata,
        });
    prop_oneof![3 => Just(Vec::new()), 1 => vec(key, 0..3)]
}

type Flags = (Option<bool>, Option<bool>, Option<bool>);
type Numbers = (
    Option<i32>,
    Option<u32>,
    Option<i32>,
    Option<u64>,
    Option<i64>,
    Option<i32>,
    Option<i32>,
);
type More = (
    Option<u64>,
    Option<u64>,
    Option<u64>,
    Option<i32>,
    Option<i32>,
);

fn metadata() -> impl Strategy<Value = pb::MessageMetadata> {
    let texts = (
        ".{0,8}",
        of(".{0,8}"),
        of(".{0,8}"),
        of(".{0,8}"),
        of(".{0,8}"),
    );
    let blobs = (of(raw()), of(raw()), of(raw()));
    let lists = (properties(), vec(".{0,8}", 0..3), keys());
    let head = (any::<u64>(), any::<u64>());
    let numbers = any::<(Flags, Numbers, More)>();
    (texts, blobs, lists, head, numbers).prop_map(
        |(texts, blobs, lists, head, (flags, numbers, more))| pb::MessageMetadata {
            producer_name: texts.0,
            sequence_id: head.0,
            publish_time: head.1,
            properties: lists.0,
            replicated_from: texts.1,
            partition_key: texts.2,
            replicate_to: lists.1,
            compression: numbers.0,
            uncompressed_size: numbers.1,
            num_messages_in_batch: numbers.2,
            event_time: numbers.3,
            encryption_keys: lists.2,
            encryption_algo: texts.3,
            encryption_param: blobs.0,
            schema_version: blobs.1,
            partition_key_b64_encoded: flags.0,
            ordering_key: blobs.2,
            deliver_at_time: numbers.4,
            marker_type: numbers.5,
            txnid_least_bits: more.0,
            txnid_most_bits: more.1,
            highest_sequence_id: more.2,
            null_value: flags.1,
            uuid: texts.4,
            num_chunks_from_msg: numbers.6,
            total_chunk_msg_size: more.3,
            chunk_id: more.4,
            null_partition_key: flags.2,
        },
    )
}

/// A view as a value of the generated type, with encryption keys, of which it only knows that there are some.
fn owned(view: &MetadataView<'_>, encryption_keys: Vec<pb::EncryptionKeys>) -> pb::MessageMetadata {
    let text = |text: &str| text.to_owned();
    let property = |(key, value): (&str, &str)| pb::KeyValue {
        key: text(key),
        value: text(value),
    };
    pb::MessageMetadata {
        producer_name: text(view.producer_name),
        sequence_id: view.sequence_id,
        publish_time: view.publish_time,
        properties: view.properties().map(property).collect(),
        replicated_from: view.replicated_from.map(text),
        partition_key: view.partition_key.map(text),
        replicate_to: view.replicate_to().map(text).collect(),
        compression: view.compression,
        uncompressed_size: view.uncompressed_size,
        num_messages_in_batch: view.num_messages_in_batch,
        event_time: view.event_time,
        encryption_keys,
        encryption_algo: view.encryption_algo.map(text),
        encryption_param: view.encryption_param.map(Bytes::copy_from_slice),
        schema_version: view.schema_version.map(Bytes::copy_from_slice),
        partition_key_b64_encoded: view.partition_key_b64_encoded,
        ordering_key: view.ordering_key.map(Bytes::copy_from_slice),
        deliver_at_time: view.deliver_at_time,
        marker_type: view.marker_type,
        txnid_least_bits: view.txnid_least_bits,
        txnid_most_bits: view.txnid_most_bits,
        highest_sequence_id: view.highest_sequence_id,
        null_value: view.null_value,
        uuid: view.uuid.map(text),
        num_chunks_from_msg: view.num_chunks_from_msg,
        total_chunk_msg_size: view.total_chunk_msg_size,
        chunk_id: view.chunk_id,
        null_partition_key: view.null_partition_key,
    }
}

/// What has to hold for any bytes.
fn agrees(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let expected = decode_metadata_generated(bytes.clone());
    let view = MetadataView::read(&bytes);
    match (&view, &expected) {
        (Some(view), Ok(expected)) => {
            assert_eq!(&owned(view, expected.encryption_keys.clone()), expected);
            let properties: Vec<_> = view.properties().collect();
            let listed = expected.properties.iter();
            let listed: Vec<_> = listed.map(|p| (p.key.as_str(), p.value.as_str())).collect();
            assert_eq!(properties, listed);
            assert!(view.replicate_to().eq(expected.replicate_to.iter()));
            assert_eq!(view.is_encrypted(), !expected.encryption_keys.is_empty());
        }
        (None, Err(_)) => {}
        _ => panic!("{view:?} is not {expected:?}, of {bytes:x?}"),
    }
    assert_eq!(decode_metadata(bytes), expected);
}

/// A field with any number in reach and any wire type, its content perhaps a message.
fn field() -> impl Strategy<Value = Vec<u8>> {
    let content = prop_oneof![
        "[a-z]{0,4}".prop_map(String::into_bytes),
        vec(any::<u8>(), 0..8),
        Just(b"\x0a\x01k\x12\x01v".to_vec()),
        Just(b"\x0a\x01k\x12\x01v\x1a\x06\x0a\x01k\x12\x01v\x20\x01".to_vec()),
        Just(b"\x12\x01v\x0a\x01k\x0a\x01l".to_vec()),
    ];
    (1..34_u64, 0..8_u64, any::<u64>(), 0..64_u32, content).prop_map(
        |(number, kind, value, shift, content)| {
            let mut field = Vec::new();
            let wire_type = [0, 0, 0, 2, 2, 2, 1, 5][usize::try_from(kind).unwrap()];
            put_varint(number << 3 | wire_type, &mut field);
            match wire_type {
                0 => put_varint(value >> shift, &mut field),
                1 => field.extend(value.to_le_bytes()),
                2 => {
                    put_varint(content.len() as u64, &mut field);
                    field.extend(content);
                }
                _ => field.extend([1, 2, 3, 4]),
            }
            field
        },
    )
}

proptest! {
    #[test]
    fn reads_what_the_generated_code_reads(metadata in metadata()) {
        let bytes = Bytes::from(metadata.encode_to_vec());
        agrees(&bytes);
        prop_assert_eq!(decode_metadata(bytes), Ok(metadata));
    }

    #[test]
    fn damaged_metadata_gives_the_same_value_or_the_same_error(
        metadata in metadata(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut: prop::sample::Index,
    ) {
        let mut bytes = metadata.encode_to_vec();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        agrees(&bytes);
        bytes.truncate(cut.index(bytes.len() + 1));
        agrees(&bytes);
    }

    #[test]
    fn fields_in_any_order_and_number(fields in vec(field(), 0..4), more in vec(field(), 0..3)) {
        let required = b"\x0a\x01p\x10\x03\x18\x05";
        agrees(&fields.concat());
        agrees(&[&fields.concat(), &required[..], &more.concat()].concat());
    }

    #[test]
    fn one_field_of_any_kind(field in field()) {
        agrees(&[&b"\x0a\x01p\x10\x03\x18\x05"[..], &field].concat());
    }

    #[test]
    fn metadata_twice(one in metadata(), other in metadata()) {
        agrees(&[one.encode_to_vec(), other.encode_to_vec()].concat());
    }
}

#[test]
fn fields_of_later_versions_and_unused_numbers_are_read_over() {
    let bytes =
        b"\x50\x01\x0a\x01p\x10\x03\xaa\x01\x02hi\x18\x05\xf8\x07\x01\xf5\x07\x01\x02\x03\x04";
    agrees(bytes);
    let view = MetadataView::read(bytes).expect("well-formed");
    assert_eq!(
        (view.producer_name, view.sequence_id, view.publish_time),
        ("p", 3, 5)
    );
}
