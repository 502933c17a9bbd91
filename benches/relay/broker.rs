//! The smallest broker that a relay can stand in front of: it answers the handshake, then does what the client's CONNECT asks for.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{io, thread};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use pulsegate::net::FrameReader;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::frame::FrameLimits;
use pulsegate::protocol::proto::pulsar::{
    CommandConnected, CommandProducerSuccess, CommandSuccess,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::frames::{Block, BlockOf, send_command};
use crate::pipe;

/// What the broker does with a connection after the handshake. Travels as `CommandConnect.client_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Read and drop until the client ends.
    Discard,
    /// Send MESSAGE frames of this payload size, and drop what comes, until the client ends.
    Fill(usize),
    /// Send back what comes.
    Echo,
    /// Never read; send MESSAGE frames until the connection takes no more. The number tells the connections apart.
    Stall(usize),
}

impl std::fmt::Display for Behaviour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Discard => f.write_str("discard"),
            Self::Fill(size) => write!(f, "fill {size}"),
            Self::Echo => f.write_str("echo"),
            Self::Stall(id) => write!(f, "stall {id}"),
        }
    }
}

impl FromStr for Behaviour {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text.split_once(' ') {
            None if text == "discard" => Self::Discard,
            None if text == "echo" => Self::Echo,
            Some(("fill", size)) => Self::Fill(size.parse()?),
            Some(("stall", id)) => Self::Stall(id.parse()?),
            _ => bail!("unknown behaviour {text:?}"),
        })
    }
}

/// The broker's end of a connection that it does not read.
#[derive(Debug, Clone)]
pub(crate) struct Stalled {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Bytes of frames that the socket took.
    pub(crate) sent: Arc<AtomicU64>,
}

/// What the broker saw, over all connections.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Bytes behind the handshake.
    pub(crate) received: AtomicU64,
    pub(crate) stalled: Mutex<HashMap<usize, Stalled>>,
}

/// A broker on a thread of its own; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    stop: Arc<Notify>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Broker {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let listener = pipe::listen()?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Seen::default());
        let stop = Arc::new(Notify::new());
        let (shared, stopped) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = pipe::on_a_thread(async move {
            let listener = TcpListener::from_std(listener).expect("inside a runtime");
            tokio::select! {
                () = stopped.notified() => {}
                () = accept(listener, shared) => {}
            }
        });
        Ok(Self {
            address,
            seen,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has shown itself already.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, seen: Arc<Seen>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    let seen = Arc::clone(&seen);
                    // What fails here is missed by the client, which counts.
                    connections.spawn(async move { serve(stream, &seen).await.ok() });
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, seen: &Seen) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut client = FrameReader::new(stream, FrameLimits::default());
    let Command::Connect(connect) = next(&mut client).await? else {
        bail!("no CONNECT");
    };
    let behaviour: Behaviour = connect.client_version.parse()?;
    let connected = Command::from(CommandConnected {
        server_version: "bench".to_owned(),
        protocol_version: Some(21),
        max_message_size: Some(5 << 20),
        ..CommandConnected::default()
    });
    send_command(client.get_mut(), &connected).await?;
    let answer = match next(&mut client).await? {
        Command::Producer(producer) => Command::from(CommandProducerSuccess {
            request_id: producer.request_id,
            producer_name: "bench".to_owned(),
            ..CommandProducerSuccess::default()
        }),
        Command::Subscribe(subscribe) => Command::from(CommandSuccess {
            request_id: subscribe.request_id,
            ..CommandSuccess::default()
        }),
        _ => bail!("neither PRODUCER nor SUBSCRIBE"),
    };
    send_command(client.get_mut(), &answer).await?;
    let (mut stream, early) = client.into_parts();
    seen.received
        .fetch_add(early.len() as u64, Ordering::Relaxed);
    match behaviour {
        Behaviour::Discard => {
            pipe::read_to_end(&stream, &seen.received).await?;
            stream.shutdown().await?;
        }
        Behaviour::Echo => echo(&mut stream, early.to_vec()).await?,
        Behaviour::Fill(size) => fill(&mut stream, size, seen).await?,
        Behaviour::Stall(id) => stall(&stream, id, seen).await?,
    }
    Ok(())
}

async fn next(client: &mut FrameReader<TcpStream>) -> anyhow::Result<Command> {
    let frame = client.next().await?.context("the client ended")?;
    Ok(Command::decode(&frame.command)?)
}

async fn echo(stream: &mut TcpStream, early: Vec<u8>) -> io::Result<()> {
    stream.write_all(&early).await?;
    let mut chunk = Vec::with_capacity(1024);
    while pipe::read_some(stream, &mut chunk).await? > 0 {
        stream.write_all(&chunk).await?;
    }
    stream.shutdown().await
}

async fn fill(stream: &mut TcpStream, size: usize, seen: &Seen) -> io::Result<()> {
    let block = Block::new(BlockOf::Message, size);
    let (read, mut write) = stream.split();
    let ended = AtomicBool::new(false);
    let reading = async {
        let read = pipe::read_to_end(read.as_ref(), &seen.received).await;
        ended.store(true, Ordering::Relaxed);
        read
    };
    let writing = async {
        while !ended.load(Ordering::Relaxed) {
            write.write_all(&block.bytes).await?;
        }
        write.shutdown().await
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

async fn stall(stream: &TcpStream, id: usize, seen: &Seen) -> io::Result<()> {
    let sent = Arc::new(AtomicU64::new(0));
    let stalled = Stalled {
        local: stream.local_addr()?,
        remote: stream.peer_addr()?,
        sent: Arc::clone(&sent),
    };
    seen.stalled.lock().insert(id, stalled);
    let block = Block::new(BlockOf::Message, 1024);
    pipe::push_for_ever(stream, &block.bytes, &sent).await
}
