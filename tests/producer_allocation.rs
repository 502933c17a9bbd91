//! Sending takes no allocation for each message: blocks of the heap while a producer sends to a receiver that takes none.
//!
//! A binary of its own, with one test, since it replaces the global allocator and measures all of it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected shall panic, and the figures are worth a look"
)]

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
};

use bytes::BytesMut;
use pulsegate::{
    client::{
        OutgoingMessage, Producer, ProducerOptions, PulsarClient,
        producer::{Acknowledgement, BatchingOptions, ReceiptSink, Tokens},
    },
    naming::TopicName,
    protocol::{
        command::Command,
        frame::FrameDecoder,
        proto::pulsar::{
            CommandConnected, CommandLookupTopicResponse, CommandPartitionedTopicMetadataResponse,
            CommandProducerSuccess, CommandSendReceipt, MessageIdData,
            command_lookup_topic_response::LookupType,
        },
    },
};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Messages that are measured.
const MESSAGES: usize = 20_000;
/// Messages of one call.
const AT_A_TIME: usize = 100;

struct Ignored;

impl ReceiptSink for Ignored {
    fn on_receipts(&self, receipts: &[Acknowledgement]) {
        assert!(receipts.iter().all(|receipt| receipt.result.is_ok()));
    }
}

#[test]
fn sending_takes_no_allocation_for_each_message() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("pulsar://{}", listener.local_addr().unwrap());
    let of_receiver = url.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, url) = (stream.unwrap(), of_receiver.clone());
            std::thread::spawn(move || serve(stream, &url));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _profiler = dhat::Profiler::builder().testing().build();
    for (name, batching) in [
        ("unbatched", None),
        ("batched", Some(BatchingOptions::default())),
    ] {
        let client = PulsarClient::new(url.parse().unwrap(), Default::default());
        let blocks = runtime.block_on(async {
            let options = ProducerOptions {
                batching,
                max_pending: 2000,
                ..ProducerOptions::default()
            };
            let topic = TopicName::parse("allocation").unwrap();
            let producer = client
                .producer_with_sink(&topic, options, Arc::new(Ignored))
                .await
                .unwrap();
            send(&producer, 4000).await;
            let before = dhat::HeapStats::get().total_blocks;
            send(&producer, MESSAGES).await;
            dhat::HeapStats::get().total_blocks - before
        });
        client.close();
        println!("{name}: {blocks} blocks for {MESSAGES} messages");
        let calls = (MESSAGES / AT_A_TIME) as u64;
        // Frames and reads share pieces of memory; each call and each read may take a few.
        assert!(blocks < 10 * calls, "{name}: {blocks} blocks");
    }
}

async fn send(producer: &Producer, count: usize) {
    let message = OutgoingMessage::new(vec![7_u8; 1024]);
    let mut left = count;
    while left > 0 {
        let wanted = left.min(AT_A_TIME);
        let tokens = Tokens { first: 0, step: 1 };
        let taken = producer.enqueue_many(&message, wanted, tokens).unwrap();
        left -= taken;
        if taken < wanted {
            producer.ready().await.unwrap();
        }
    }
    producer.flush().await.unwrap();
}

/// A broker that takes no memory for SEND: it finds the command in place.
fn serve(mut stream: TcpStream, url: &str) -> Option<()> {
    let decoder = FrameDecoder::default();
    let mut buffer = vec![0; 1 << 20];
    let mut filled = 0;
    let mut answers = BytesMut::with_capacity(1 << 20);
    loop {
        filled += stream
            .read(&mut buffer[filled..])
            .ok()
            .filter(|len| *len > 0)?;
        let mut at = 0;
        loop {
            let rest = &buffer[at..filled];
            let Some(total) = rest.first_chunk() else {
                break;
            };
            let len = 4 + usize::try_from(u32::from_be_bytes(*total)).unwrap();
            if rest.len() < len {
                break;
            }
            let command_len = u32::from_be_bytes(*rest[4..].first_chunk().unwrap());
            let command_len = usize::try_from(command_len).unwrap();
            let command = &rest[8..8 + command_len];
            if command[..2] == [8, 6] {
                // The hot decoder borrows; a copy into `Bytes` would be an allocation.
                answer_send(command, &mut answers);
            } else {
                let mut frame = BytesMut::from(&rest[..len]);
                let frame = decoder.decode(&mut frame).unwrap().unwrap();
                if let Some(answer) = answer(Command::decode(&frame.command).unwrap(), url) {
                    answer.encode(&mut answers);
                }
            }
            at += len;
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        stream.write_all(&answers).ok()?;
        answers.clear();
    }
}

/// Reads producer id and sequence ids: the fields 1, 2 and 6, all varints.
fn answer_send(command: &[u8], answers: &mut BytesMut) {
    let mut rest = &command[2..];
    let mut next = || {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let (byte, tail) = rest.split_first()?;
            rest = tail;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if *byte < 0x80 {
                return Some(value);
            }
        }
    };
    let (_tag, _len) = (next().unwrap(), next().unwrap());
    let mut receipt = CommandSendReceipt {
        message_id: Some(MessageIdData {
            ledger_id: 7,
            ..MessageIdData::default()
        }),
        ..CommandSendReceipt::default()
    };
    while let Some(key) = next() {
        let value = next().unwrap();
        match key >> 3 {
            1 => receipt.producer_id = value,
            2 => receipt.sequence_id = value,
            6 => receipt.highest_sequence_id = Some(value),
            _ => {}
        }
    }
    Command::from(receipt).encode(answers);
}

fn answer(command: Command, url: &str) -> Option<Command> {
    Some(match command {
        Command::Connect(_) => Command::from(CommandConnected {
            server_version: "receiver".to_owned(),
            protocol_version: Some(21),
            ..CommandConnected::default()
        }),
        Command::PartitionedMetadata(asked) => {
            Command::from(CommandPartitionedTopicMetadataResponse {
                request_id: asked.request_id,
                partitions: Some(0),
                response: Some(0),
                ..CommandPartitionedTopicMetadataResponse::default()
            })
        }
        Command::Lookup(asked) => Command::from(CommandLookupTopicResponse {
            request_id: asked.request_id,
            broker_service_url: Some(url.to_owned()),
            response: Some(LookupType::Connect.into()),
            ..CommandLookupTopicResponse::default()
        }),
        Command::Producer(asked) => Command::from(CommandProducerSuccess {
            request_id: asked.request_id,
            producer_name: "standalone-0-1".to_owned(),
            ..CommandProducerSuccess::default()
        }),
        _ => return None,
    })
}
