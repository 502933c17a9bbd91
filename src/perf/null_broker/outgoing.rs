//! The messages that the null broker sends to consumers. // hot path
//!
//! Owns one message, ready for the wire: headers, checksum and payload. All messages to consumers are this one behind
//! another message id; only its publish time changes, which costs one header and no look at the payload.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::protocol::batch::{BatchBuilder, BatchLimits};
use crate::protocol::checksum::crc32c;
use crate::protocol::command::Command;
use crate::protocol::message;
use crate::protocol::proto::pulsar::{
    CommandMessage, CompressionType, MessageMetadata, SingleMessageMetadata,
};

/// What all messages have in common.
#[derive(Debug)]
pub(super) struct MessageTemplate {
    metadata: MessageMetadata,
    payload: Bytes,
    payload_crc: u32,
    /// Messages in one entry: 1 without batches.
    messages: u32,
}

impl MessageTemplate {
    /// Entries of one message of `size` bytes or, with `batch`, of so many messages in a batch.
    pub(super) fn new(size: usize, batch: Option<u32>) -> Self {
        let metadata = MessageMetadata {
            producer_name: PRODUCER_NAME.to_owned(),
            ..MessageMetadata::default()
        };
        let single = vec![b'x'; size];
        let count = batch.map_or(1, |batch| batch.max(1));
        let (metadata, payload) = match batch {
            None => (metadata, Bytes::from(single)),
            Some(_) => batch_of(&single, count, metadata),
        };
        Self {
            metadata,
            payload_crc: crc32c(&payload),
            payload,
            messages: count,
        }
    }

    /// Messages in one entry.
    pub(super) fn messages(&self) -> u32 {
        self.messages
    }
}

fn batch_of(single: &[u8], count: u32, metadata: MessageMetadata) -> (MessageMetadata, Bytes) {
    let mut builder = BatchBuilder::new(BatchLimits {
        max_messages: i32::MAX,
        max_bytes: usize::MAX,
    });
    for sequence_id in 0..count {
        let message = SingleMessageMetadata {
            sequence_id: Some(sequence_id.into()),
            ..SingleMessageMetadata::default()
        };
        builder
            .push(message, single)
            .expect("the settings bound an entry far below 2 GiB");
    }
    builder
        .finish(metadata, CompressionType::None)
        .expect("nothing is compressed")
        .expect("a batch has a message")
}

/// Writes messages with the publish time of now; one per connection.
#[derive(Debug)]
pub(super) struct MessageWriter {
    template: Arc<MessageTemplate>,
    metadata: MessageMetadata,
    /// Everything between the command and the payload.
    header: BytesMut,
}

impl MessageWriter {
    pub(super) fn new(template: Arc<MessageTemplate>) -> Self {
        Self {
            metadata: template.metadata.clone(),
            header: BytesMut::new(),
            template,
        }
    }

    /// Gives the messages that follow this publish time, in milliseconds of the Unix epoch.
    pub(super) fn set_publish_time(&mut self, publish_time: u64) {
        if self.metadata.publish_time == publish_time && !self.header.is_empty() {
            return;
        }
        self.metadata.publish_time = publish_time;
        self.header.clear();
        message::put_header(
            &self.metadata,
            self.template.payload_crc,
            self.template.payload.len(),
            &mut self.header,
        );
    }

    /// Appends the frame of one message.
    pub(super) fn put(&self, command: CommandMessage, out: &mut BytesMut) {
        let payload = &self.template.payload;
        let len = self.header.len() + payload.len();
        out.reserve(len + COMMAND_ROOM);
        Command::from(command).encode_head(len, out);
        out.put_slice(&self.header);
        out.put_slice(payload);
    }
}

/// `MessageMetadata.producer_name` of all messages.
const PRODUCER_NAME: &str = "null-broker";

/// More than the frame's sizes and the command take, in bytes.
const COMMAND_ROOM: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::batch::BatchReader;
    use crate::protocol::frame::{Frame, FrameDecoder};
    use crate::protocol::message::split_payload;

    fn frames(writer: &MessageWriter, count: usize) -> Vec<Frame> {
        let mut out = BytesMut::new();
        for _ in 0..count {
            writer.put(CommandMessage::default(), &mut out);
        }
        let decoder = FrameDecoder::default();
        std::iter::from_fn(|| decoder.decode(&mut out).unwrap()).collect()
    }

    #[test]
    fn messages_have_the_size_the_time_and_a_right_checksum() {
        let mut writer = MessageWriter::new(Arc::new(MessageTemplate::new(1000, None)));
        for publish_time in [1_700_000_000_000, 1_700_000_000_001] {
            writer.set_publish_time(publish_time);
            for frame in frames(&writer, 2) {
                let parts = split_payload(frame.payload).unwrap();
                assert_eq!(parts.verify_checksum(), Ok(()));
                assert_eq!(parts.metadata.publish_time, publish_time);
                assert_eq!((parts.payload.len(), parts.is_batch()), (1000, false));
            }
        }
    }

    #[test]
    fn a_batch_holds_its_messages() {
        let template = MessageTemplate::new(10, Some(3));
        assert_eq!(template.messages(), 3);
        let mut writer = MessageWriter::new(Arc::new(template));
        writer.set_publish_time(5);
        let frame = frames(&writer, 1).remove(0);
        let parts = split_payload(frame.payload).unwrap();
        assert_eq!(parts.verify_checksum(), Ok(()));
        assert_eq!(parts.metadata.num_messages_in_batch, Some(3));
        let sizes: Vec<_> = BatchReader::new(parts.payload, 3)
            .unwrap()
            .map(|message| message.unwrap().1.len())
            .collect();
        assert_eq!(sizes, [10, 10, 10]);
    }
}
