//! The receiver: answers what a producer asks and acknowledges every SEND, with as little work as possible.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use bytes::BytesMut;
use pulsegate::protocol::{
    command::Command,
    frame::FrameDecoder,
    proto::pulsar::{
        CommandConnected, CommandLookupTopicResponse, CommandPartitionedTopicMetadataResponse,
        CommandPong, CommandProducerSuccess, CommandSendReceipt, CommandSuccess, MessageIdData,
        command_lookup_topic_response::LookupType,
    },
};

/// Serves until it is killed.
pub(crate) fn run() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("pulsar://{}", listener.local_addr().expect("it is bound"));
    println!("{url}");
    for stream in listener.incoming().flatten() {
        let url = url.clone();
        std::thread::spawn(move || serve(stream, &url));
    }
}

/// Until the connection ends.
fn serve(mut stream: TcpStream, url: &str) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let decoder = FrameDecoder::default();
    let mut buffer = BytesMut::new();
    let mut chunk = vec![0; 256 * 1024];
    let mut answers = BytesMut::new();
    let mut stored = 0;
    loop {
        let len = stream.read(&mut chunk).ok().filter(|len| *len > 0)?;
        buffer.extend_from_slice(chunk.get(..len)?);
        while let Some(frame) = decoder.decode(&mut buffer).ok()? {
            let command = Command::decode(&frame.command).ok()?;
            if let Some(answer) = answer(command, url, &mut stored) {
                answer.encode(&mut answers);
            }
        }
        stream.write_all(&answers).ok()?;
        answers.clear();
    }
}

fn answer(command: Command, url: &str, stored: &mut u64) -> Option<Command> {
    Some(match command {
        Command::Send(send) => {
            *stored += 1;
            Command::from(CommandSendReceipt {
                producer_id: send.producer_id,
                sequence_id: send.sequence_id,
                message_id: Some(MessageIdData {
                    ledger_id: 12_345,
                    entry_id: *stored,
                    ..MessageIdData::default()
                }),
                highest_sequence_id: send.highest_sequence_id,
            })
        }
        Command::Connect(_) => Command::from(CommandConnected {
            server_version: "receiver".to_owned(),
            protocol_version: Some(21),
            max_message_size: Some(5 << 20),
            feature_flags: None,
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
            authoritative: Some(true),
            ..CommandLookupTopicResponse::default()
        }),
        Command::Producer(asked) => Command::from(CommandProducerSuccess {
            request_id: asked.request_id,
            producer_name: "standalone-0-1".to_owned(),
            ..CommandProducerSuccess::default()
        }),
        Command::CloseProducer(asked) => Command::from(CommandSuccess {
            request_id: asked.request_id,
            schema: None,
        }),
        Command::Ping(_) => Command::from(CommandPong {}),
        _ => return None,
    })
}
