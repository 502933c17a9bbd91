//! The client's side of the throughput and latency cases.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use pulsegate::net::FrameReader;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::frame::FrameLimits;
use pulsegate::protocol::proto::pulsar::{CommandConnect, CommandProducer, CommandSubscribe};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::broker::{Behaviour, Broker};
use crate::frames::{Block, BlockOf, ID, send_command};
use crate::pipe;
use crate::relays::Relay;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) flow: Flow,
    /// Payload of a message, in bytes.
    pub(crate) payload: usize,
    pub(crate) connections: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// SEND frames to the broker, without waiting for anything.
    Send,
    /// MESSAGE frames to the client.
    Message,
    /// Both at once.
    Both,
    /// One SEND frame at a time, which comes back.
    PingPong,
}

pub(crate) const CASES: [Case; 6] = [
    case("send-1k", Flow::Send, 1024, 1),
    case("send-1k-x4", Flow::Send, 1024, 4),
    case("send-64k", Flow::Send, 64 * 1024, 1),
    case("message-1k", Flow::Message, 1024, 1),
    case("both-1k", Flow::Both, 1024, 1),
    case("pingpong-100-x64", Flow::PingPong, 100, 64),
];

const fn case(name: &'static str, flow: Flow, payload: usize, connections: usize) -> Case {
    Case {
        name,
        flow,
        payload,
        connections,
    }
}

/// What one run of a case came to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// From the first byte to the end of the last connection, in seconds.
    pub(crate) seconds: f64,
    /// Bytes that arrived, both directions.
    pub(crate) bytes: u64,
    /// Of each ping until its pong, in microseconds.
    pub(crate) round_trips: Vec<u32>,
}

impl Case {
    /// Runs the case for about `time`. Every byte that was sent must arrive.
    pub(crate) async fn run(
        self,
        relay: &Relay,
        broker: &Broker,
        time: Duration,
    ) -> anyhow::Result<Outcome> {
        let (behaviour, subject) = match self.flow {
            Flow::Send => (Behaviour::Discard, Subject::Producer),
            Flow::Message | Flow::Both => (Behaviour::Fill(self.payload), Subject::Consumer),
            Flow::PingPong => (Behaviour::Echo, Subject::Producer),
        };
        let mut clients = Vec::with_capacity(self.connections);
        for _ in 0..self.connections {
            clients.push(open(relay.address, broker.address, behaviour, subject).await?);
        }
        let received_before = broker.seen.received.load(Ordering::Relaxed);
        let begin = Instant::now();
        let until = begin + time;
        let mut running = JoinSet::new();
        for client in clients {
            running.spawn(drive(client, self, until));
        }
        let mut outcome = Outcome::default();
        let mut sent = 0;
        while let Some(done) = running.join_next().await {
            let done = done??;
            sent += done.sent;
            outcome.bytes += done.received;
            outcome.round_trips.extend(done.round_trips);
        }
        outcome.seconds = begin.elapsed().as_secs_f64();
        if self.flow == Flow::PingPong {
            ensure!(sent == outcome.bytes, "pongs were lost");
            outcome.bytes += sent;
        } else {
            let received = broker.seen.received.load(Ordering::Relaxed) - received_before;
            ensure!(
                sent == received,
                "{sent} bytes sent and {received} received"
            );
            outcome.bytes += received;
        }
        ensure!(outcome.bytes > 0, "nothing was relayed");
        Ok(outcome)
    }
}

/// What the client opens before the bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Producer,
    Consumer,
}

/// A connection after the handshake, and the bytes that came with the end of it.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) early: u64,
}

/// Connects through the relay and opens a producer or consumer.
pub(crate) async fn open(
    relay: SocketAddr,
    broker: SocketAddr,
    behaviour: Behaviour,
    subject: Subject,
) -> anyhow::Result<Client> {
    let mut stream = TcpStream::connect(relay)
        .await
        .context("connect to the relay")?;
    stream.set_nodelay(true)?;
    let connect = Command::from(CommandConnect {
        client_version: behaviour.to_string(),
        protocol_version: Some(21),
        proxy_to_broker_url: Some(broker.to_string()),
        ..CommandConnect::default()
    });
    send_command(&mut stream, &connect).await?;
    let mut reader = FrameReader::new(stream, FrameLimits::default());
    let connected = reader
        .next()
        .await?
        .context("closed instead of CONNECTED")?;
    let connected = Command::decode(&connected.command)?;
    ensure!(
        matches!(connected, Command::Connected(_)),
        "{connected:?} instead of CONNECTED"
    );
    let topic = "persistent://public/default/bench".to_owned();
    let request = match subject {
        Subject::Producer => Command::from(CommandProducer {
            topic,
            producer_id: ID,
            request_id: 1,
            ..CommandProducer::default()
        }),
        Subject::Consumer => Command::from(CommandSubscribe {
            topic,
            subscription: "bench".to_owned(),
            consumer_id: ID,
            request_id: 1,
            ..CommandSubscribe::default()
        }),
    };
    send_command(reader.get_mut(), &request).await?;
    let opened = reader.next().await?.context("closed instead of success")?;
    let opened = Command::decode(&opened.command)?;
    ensure!(
        opened.request_id() == Some(1),
        "{opened:?} instead of success"
    );
    let (stream, early) = reader.into_parts();
    Ok(Client {
        stream,
        early: early.len() as u64,
    })
}

#[derive(Debug, Default)]
struct Done {
    sent: u64,
    received: u64,
    round_trips: Vec<u32>,
}

async fn drive(client: Client, case: Case, until: Instant) -> anyhow::Result<Done> {
    let Client { mut stream, early } = client;
    if case.flow == Flow::PingPong {
        return ping(stream, case.payload, until).await;
    }
    let block = Block::new(BlockOf::Send, case.payload);
    let (read, mut write) = stream.split();
    let received = AtomicU64::new(early);
    let reading = pipe::read_to_end(read.as_ref(), &received);
    let writing = async {
        let mut sent = 0;
        if case.flow == Flow::Message {
            tokio::time::sleep_until(until.into()).await;
        }
        while case.flow != Flow::Message && Instant::now() < until {
            write.write_all(&block.bytes).await?;
            sent += block.bytes.len() as u64;
        }
        write.shutdown().await?;
        Ok(sent)
    };
    let ((), sent) = tokio::try_join!(reading, writing)?;
    Ok(Done {
        sent,
        received: received.into_inner(),
        round_trips: Vec::new(),
    })
}

async fn ping(mut stream: TcpStream, payload: usize, until: Instant) -> anyhow::Result<Done> {
    let frame = Block::single(BlockOf::Send, payload).bytes;
    let mut pong = vec![0; frame.len()];
    let mut done = Done::default();
    let mut now = Instant::now();
    while now < until {
        stream.write_all(&frame).await?;
        stream.read_exact(&mut pong).await?;
        done.sent += frame.len() as u64;
        done.received += pong.len() as u64;
        let then = std::mem::replace(&mut now, Instant::now());
        let micros = now.duration_since(then).as_micros();
        done.round_trips
            .push(u32::try_from(micros).unwrap_or(u32::MAX));
    }
    ensure!(pong == frame, "the pong is not the ping");
    stream.shutdown().await?;
    Ok(done)
}
