//! What a peer claims costs no memory: the peak of the heap while parsers meet sizes and counts that lie.
//!
//! A binary of its own, with one test, since it replaces the global allocator and measures all of it. The C code of the
//! ZSTD codec allocates elsewhere; what it takes there is a fixed context and no window (see `protocol::compression`).

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that meets the unexpected shall panic, and the figures are worth a look"
)]

use bytes::{BufMut, Bytes, BytesMut};
use pulsegate::protocol::batch::BatchReader;
use pulsegate::protocol::chunk::{Assembler, AssemblerLimits};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::compression::{self, DECODER_STATE_MAX};
use pulsegate::protocol::encode::{
    MessageHead, Position, put_cumulative_ack, put_individual_ack, put_message_head,
    put_send_frame, put_send_head,
};
use pulsegate::protocol::frame::{FrameDecoder, FrameLimits};
use pulsegate::protocol::message;
use pulsegate::protocol::proto::pulsar::{self as pb, CompressionType, MessageMetadata};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// What typed errors and bookkeeping may take, in bytes.
const SLACK: usize = 1024;

/// The largest message of the default limits, in bytes.
const MAX_MESSAGE: usize = 5 << 20;

/// The peak of the heap in bytes while `work` runs, over what was there before.
fn peak(work: impl FnOnce()) -> usize {
    let profiler = dhat::Profiler::builder().testing().build();
    work();
    let peak = dhat::HeapStats::get().max_bytes;
    drop(profiler);
    peak
}

#[track_caller]
fn assert_peak(what: &str, bound: usize, work: impl FnOnce()) {
    let peak = peak(work);
    println!("{what}: {peak} bytes, bound {bound}");
    assert!(
        peak <= bound,
        "{what}: peak of {peak} bytes is above {bound}"
    );
}

#[test]
fn claims_of_a_peer_cost_no_memory() {
    hot_commands();
    frames();
    commands();
    messages();
    batches();
    blocks();
    chunks();
}

/// How many blocks `work` allocates.
fn blocks_of(work: impl FnOnce()) -> u64 {
    let profiler = dhat::Profiler::builder().testing().build();
    work();
    let blocks = dhat::HeapStats::get().total_blocks;
    drop(profiler);
    blocks
}

/// The commands that every message costs take no memory, but for the list of an ACK.
fn hot_commands() {
    let id = || pb::MessageIdData {
        ledger_id: 300,
        entry_id: 70_000,
        partition: Some(-1),
        ..Default::default()
    };
    let commands: [(Command, u64); 7] = [
        (
            pb::CommandSend {
                num_messages: Some(100),
                message_id: Some(id()),
                ..Default::default()
            }
            .into(),
            0,
        ),
        (
            pb::CommandSendReceipt {
                message_id: Some(id()),
                ..Default::default()
            }
            .into(),
            0,
        ),
        (
            pb::CommandMessage {
                message_id: id(),
                ..Default::default()
            }
            .into(),
            0,
        ),
        (
            pb::CommandAck {
                message_id: vec![id(); 100],
                ..Default::default()
            }
            .into(),
            1,
        ),
        (pb::CommandFlow::default().into(), 0),
        (pb::CommandPing {}.into(), 0),
        (pb::CommandPong {}.into(), 0),
    ];
    for (command, blocks) in commands {
        let mut out = BytesMut::with_capacity(8 << 10);
        assert_eq!(blocks_of(|| command.encode(&mut out)), 0, "{command:?}");
        let bytes = out.freeze().slice(8..);
        let decoding = || assert_eq!(Command::decode(&bytes).as_ref(), Ok(&command));
        assert_eq!(blocks_of(decoding), blocks, "{command:?}");
        let encoding = || assert_eq!(command.encode_command(), bytes);
        // The buffer, and what shares it.
        assert!(blocks_of(encoding) <= 2, "{command:?}");
    }
    let position = Position {
        ledger_id: 300,
        entry_id: 70_000,
        partition: None,
    };
    let send = pb::CommandSend {
        num_messages: Some(100),
        ..Default::default()
    };
    let head = MessageHead {
        consumer_id: 7,
        position,
        redelivery_count: Some(1),
        consumer_epoch: None,
    };
    let mut out = BytesMut::with_capacity(8 << 10);
    let writing = || {
        put_send_frame(&send, b"metadata", &[7; 1000], &mut out);
        put_send_head(&send, b"metadata", &[7; 1000], &mut out);
        put_message_head(head, 1000, &mut out);
        put_individual_ack(7, &[position; 100], Some(1), &mut out);
        put_cumulative_ack(7, position, None, &mut out);
    };
    assert_eq!(blocks_of(writing), 0);
}

fn frames() {
    let decoder = FrameDecoder::new(FrameLimits::default());
    let largest = u32::try_from(FrameLimits::default().max_frame).unwrap();
    for total in [
        0,
        3,
        4,
        largest,
        largest + 1,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX,
    ] {
        for command in [0, 5, largest, 0x7fff_ffff, u32::MAX] {
            let mut buffer = BytesMut::with_capacity(64);
            buffer.put_u32(total);
            buffer.put_u32(command);
            buffer.put_slice(b"some bytes");
            assert_peak("frame", SLACK, || {
                let _ = decoder.decode(&mut buffer);
                assert!(decoder.missing(&buffer) <= decoder.limits().max_frame);
            });
        }
    }
}

/// The largest ACK with as many message ids as fit, each of `id`.
fn ack_of(id: &[u8]) -> Bytes {
    let ids = id.repeat(MAX_MESSAGE / id.len());
    let body = [&b"\x08\x01\x10\0"[..], &ids].concat();
    let mut command = vec![0x08, 10];
    prost::encoding::bytes::encode(10, &body, &mut command);
    command.into()
}

fn commands() {
    // Two bytes an id: decoded one by one they would take fifty times as much.
    let ack = ack_of(b"\x1a\0");
    assert_peak("ack of millions of incomplete ids", SLACK, || {
        assert!(Command::decode(&ack).is_err());
    });
    let ack = ack_of(b"\x1a\x04\x08\0\x10\0");
    assert_peak("ack of very many ids", 16 * ack.len(), || {
        assert!(Command::decode(&ack).is_ok());
    });
}

fn messages() {
    for size in [11, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        let mut message = BytesMut::new();
        message.put_slice(b"\x0e\x02\0\0\0\0\x0e\x01\0\0\0\0");
        message.put_u32(size);
        message.put_slice(b"0123456789");
        let message = message.freeze();
        assert_peak("message with lying metadata size", SLACK, || {
            assert!(message::split_payload(message).is_err());
        });
        let block = [b"\x0e\x02", &size.to_be_bytes()[..], b"0123"].concat();
        let block = Bytes::from(block);
        assert_peak("lying broker entry metadata", SLACK, || {
            assert!(message::split_payload(block).is_err());
        });
    }

    // Two bytes an element: decoded one by one they would take 24 to 80 times as much.
    for tag in [4_u8 << 3 | 2, 7 << 3 | 2, 13 << 3 | 2] {
        let metadata = Bytes::from([tag, 0].repeat(MAX_MESSAGE / 2));
        assert_peak("metadata of millions of elements", SLACK, || {
            assert!(message::decode_metadata(metadata).is_err());
        });
    }
    // As many as are taken, each of the smallest that has its required fields.
    let key = b"\x6a\x04\x0a\0\x12\0".repeat(message::METADATA_ELEMENTS_MAX / 3 - 1);
    let metadata = Bytes::from([&b"\x0a\0\x10\0\x18\0"[..], &key].concat());
    assert_peak("metadata of very many elements", 8 << 20, || {
        assert!(message::decode_metadata(metadata).is_ok());
    });
}

fn batches() {
    for payload in [
        Bytes::from_static(b"\0\0\0\x02\x18\0"),
        Bytes::from(vec![0; MAX_MESSAGE]),
    ] {
        for count in [i32::MIN, -1, 0, 1 << 20, 1 << 30, i32::MAX] {
            let payload = payload.clone();
            assert_peak("batch with a lying count", SLACK, || {
                assert!(BatchReader::new(payload, count).is_err());
            });
        }
    }
    let payload = Bytes::from(b"\0\0\0\x02\x18\0".repeat(MAX_MESSAGE / 6));
    let count = i32::try_from(MAX_MESSAGE / 6).unwrap();
    assert_peak("batch of very many empty messages", SLACK, || {
        assert!(
            BatchReader::new(payload, count)
                .unwrap()
                .all(|message| message.is_ok())
        );
    });
}

fn blocks() {
    let zeros = Bytes::from(vec![0; 64 << 20]);
    let small = Bytes::from(vec![0; 100]);
    let codecs = [
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ];
    for codec in codecs {
        let block = compression::compress(codec, &small).unwrap();
        for claimed in [0x4000_0000, 0x7fff_ffff, u32::MAX] {
            assert_peak("block that claims gigabytes", SLACK, || {
                assert!(compression::decompress(codec, &block, claimed, MAX_MESSAGE).is_err());
            });
        }
        // Within the limit, but more than so short a block of most codecs can hold.
        let claimed = u32::try_from(MAX_MESSAGE).unwrap();
        let bound = if codec == CompressionType::Zstd {
            MAX_MESSAGE
        } else {
            0
        };
        assert_peak("small block that claims megabytes", bound + SLACK, || {
            assert!(compression::decompress(codec, &block, claimed, MAX_MESSAGE).is_err());
        });

        let bomb = compression::compress(codec, &zeros).unwrap();
        for claimed in [0, 1000, MAX_MESSAGE] {
            assert_peak("bomb", claimed + DECODER_STATE_MAX, || {
                let claimed = u32::try_from(claimed).unwrap();
                assert!(compression::decompress(codec, &bomb, claimed, MAX_MESSAGE).is_err());
            });
        }
        assert_peak("block as claimed", zeros.len() + DECODER_STATE_MAX, || {
            let claimed = u32::try_from(zeros.len()).unwrap();
            assert!(compression::decompress(codec, &bomb, claimed, zeros.len()).is_ok());
        });
    }
}

fn chunks() {
    let limits = AssemblerLimits {
        max_incomplete: 4,
        max_bytes: 1 << 20,
        max_message: 1 << 20,
    };
    let chunk = |uuid: u32, chunk_id, count, total| MessageMetadata {
        uuid: Some(uuid.to_string()),
        chunk_id: Some(chunk_id),
        num_chunks_from_msg: Some(count),
        total_chunk_msg_size: Some(total),
        ..Default::default()
    };
    let mut assembler = Assembler::new(limits);
    let metadata = chunk(0, 0, i32::MAX, i32::MAX);
    assert_peak("chunk of gigabytes", SLACK, || {
        assert!(assembler.push(&metadata, b"part").is_err());
    });

    let part = vec![7; 1000];
    let all: Vec<_> = (0..100)
        .flat_map(|id| (0..50).map(move |uuid| (uuid, id)))
        .map(|(uuid, id)| chunk(uuid, id, i32::MAX, 1 << 20))
        .collect();
    let mut assembler = Assembler::new(limits);
    assert_peak(
        "chunks of many messages at once",
        limits.max_bytes + SLACK,
        || {
            for metadata in &all {
                let _ = assembler.push(metadata, &part);
            }
        },
    );

    let mut assembler = Assembler::new(limits);
    let all: Vec<_> = (0..2000)
        .map(|id| chunk(0, id, i32::MAX, 1 << 20))
        .collect();
    assert_peak(
        "a message of very many chunks",
        2 * limits.max_bytes,
        || {
            for metadata in &all {
                let _ = assembler.push(metadata, &part);
            }
        },
    );
}
