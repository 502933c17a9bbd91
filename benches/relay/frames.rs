//! The frames that are sent: made once, as real ones of a producer and of a broker.

use std::io;

use bytes::{Bytes, BytesMut};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::message::{self, MessageForm};
use pulsegate::protocol::proto::pulsar::{
    CommandMessage, CommandSend, MessageIdData, MessageMetadata,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

/// Id of the producer and of the consumer on every connection.
pub(crate) const ID: u64 = 1;

/// Which command carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockOf {
    Send,
    Message,
}

/// Whole frames that are written in one piece.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) bytes: Bytes,
}

impl Block {
    /// Frames of `payload` bytes each, as many as make about 128 KiB.
    pub(crate) fn new(of: BlockOf, payload: usize) -> Self {
        let mut bytes = BytesMut::new();
        let mut sequence_id = 0;
        while bytes.len() + payload <= BLOCK_LEN || bytes.is_empty() {
            put_frame(of, payload, sequence_id, &mut bytes);
            sequence_id += 1;
        }
        Self {
            bytes: bytes.freeze(),
        }
    }

    /// One frame.
    pub(crate) fn single(of: BlockOf, payload: usize) -> Self {
        let mut bytes = BytesMut::new();
        put_frame(of, payload, 0, &mut bytes);
        Self {
            bytes: bytes.freeze(),
        }
    }
}

fn put_frame(of: BlockOf, payload: usize, sequence_id: u64, out: &mut BytesMut) {
    let metadata = MessageMetadata {
        producer_name: "bench".to_owned(),
        sequence_id,
        publish_time: 1_700_000_000_000,
        ..MessageMetadata::default()
    };
    let message = message::encode(
        &metadata,
        vec![b'x'; payload].into(),
        MessageForm::default(),
    );
    let command = match of {
        BlockOf::Send => Command::from(CommandSend {
            producer_id: ID,
            sequence_id,
            ..CommandSend::default()
        }),
        BlockOf::Message => Command::from(CommandMessage {
            consumer_id: ID,
            message_id: MessageIdData {
                ledger_id: 4711,
                entry_id: sequence_id,
                ..MessageIdData::default()
            },
            ..CommandMessage::default()
        }),
    };
    command.encode_with_payload(&[&message.header, &message.payload], out);
}

/// Writes one command as a frame.
pub(crate) async fn send_command(stream: &mut TcpStream, command: &Command) -> io::Result<()> {
    let mut bytes = BytesMut::new();
    command.encode(&mut bytes);
    stream.write_all(&bytes).await
}

const BLOCK_LEN: usize = 128 * 1024;
