use bytes::{BufMut, Bytes, BytesMut};

use super::Input;
use crate::protocol::batch::{BatchBuilder, BatchLimits, BatchReader};
use crate::protocol::broker_entry;
use crate::protocol::message::{self, CHECKSUM_MAGIC, EncodedParts, MessageForm, MetadataView};
use crate::protocol::proto::pulsar::{CompressionType, MessageMetadata};

/// The splitting of a message: the payload of a SEND or MESSAGE frame.
///
/// - The parts are the message: put together they are the same bytes.
/// - The metadata is what the generated code makes of it, or the same error.
/// - What decodes, encodes to a message with the same metadata and payload and a right checksum.
pub fn message(data: &[u8]) {
    let whole = Bytes::copy_from_slice(data);
    let Ok(parts) = EncodedParts::split(whole.clone()) else {
        assert!(
            message::split_payload(whole).is_err(),
            "parts that cannot be found"
        );
        return;
    };
    let mut joined = BytesMut::new();
    if let Some(broker_entry) = &parts.broker_entry {
        joined.put_u16(broker_entry::MAGIC);
        joined.put_u32(len_of(broker_entry));
        joined.put_slice(broker_entry);
    }
    if let Some(checksum) = parts.checksum {
        joined.put_u16(CHECKSUM_MAGIC);
        joined.put_u32(checksum);
    }
    let covered_at = joined.len();
    joined.put_u32(len_of(&parts.metadata));
    joined.put_slice(&parts.metadata);
    joined.put_slice(&parts.payload);
    assert_eq!(joined, whole, "the parts are not the message");
    assert_eq!(
        joined.get(covered_at..),
        Some(&parts.headers_and_payload[..])
    );

    let decoded = message::decode_metadata(parts.metadata.clone());
    assert_eq!(
        MetadataView::read(&parts.metadata).is_some(),
        decoded.is_ok()
    );
    let generated = message::decode_metadata_generated(parts.metadata.clone());
    assert_eq!(decoded, generated, "not as the generated code");

    let Ok(decoded) = message::split_payload(whole) else {
        return;
    };
    assert_eq!(decoded.verify_checksum(), parts.verify_checksum());
    let form = MessageForm {
        checksum: true,
        broker_entry: decoded.broker_entry.as_ref(),
    };
    let encoded = message::encode(&decoded.metadata, decoded.payload.clone(), form).to_bytes();
    let again = message::split_payload(encoded).expect("an encoded message splits");
    assert_eq!(again.verify_checksum(), Ok(()));
    assert_eq!(again.metadata, decoded.metadata);
    assert_eq!(again.broker_entry, decoded.broker_entry);
    assert_eq!(again.payload, decoded.payload);
}

/// The batch reader: `i32 claimed count | payload`.
///
/// - It yields the claimed number of messages, or an error after fewer.
/// - The payloads come one after the other out of the batch.
/// - A batch built from the messages reads as the same messages.
pub fn batch(data: &[u8]) {
    let mut input = Input::new(data);
    let count = input.i32();
    let payload = Bytes::copy_from_slice(input.rest);
    let Ok(mut reader) = BatchReader::new(payload.clone(), count) else {
        return;
    };
    let messages: Vec<_> = reader.by_ref().map_while(Result::ok).collect();
    assert!(reader.next().is_none(), "goes on after its end");
    let claimed = usize::try_from(count).expect("a count that was taken is positive");
    assert!(messages.len() <= claimed);
    let mut at = payload.as_ptr();
    for (metadata, part) in &messages {
        assert_eq!(usize::try_from(metadata.payload_size), Ok(part.len()));
        assert!(
            part.is_empty()
                || (at < part.as_ptr() && payload.as_ptr_range().contains(&part.as_ptr()))
        );
        at = if part.is_empty() {
            at
        } else {
            part.as_ptr_range().end
        };
    }
    if messages.len() < claimed {
        return;
    }

    let limits = BatchLimits {
        max_messages: i32::MAX,
        max_bytes: usize::MAX,
    };
    let mut builder = BatchBuilder::new(limits);
    for (metadata, part) in &messages {
        builder
            .push(metadata.clone(), part)
            .expect("no limit is in reach");
    }
    let (metadata, rebuilt) = builder
        .finish(MessageMetadata::default(), CompressionType::None)
        .expect("no codec can fail")
        .expect("the batch is not empty");
    assert_eq!(metadata.num_messages_in_batch, Some(count));
    let again: Result<Vec<_>, _> = BatchReader::new(rebuilt, count)
        .expect("a built batch has its count")
        .collect();
    assert_eq!(again, Ok(messages));
}

fn len_of(part: &Bytes) -> u32 {
    u32::try_from(part.len()).expect("the fuzzer's bytes are few")
}
