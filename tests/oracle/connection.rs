//! A connection of a scenario: sends bytes, collects frames.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::frame::{Frame, FrameDecoder, FrameLimits};
use pulsegate::protocol::proto::pulsar::CommandPong;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

/// What came from the other side.
#[derive(Debug, Clone)]
pub(crate) enum Arrival {
    Frame(Frame),
    /// The end of the stream, in order or by a reset.
    Closed,
}

/// An open connection. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    writer: Arc<Mutex<OwnedWriteHalf>>,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    /// Arrived but not asked for yet.
    waiting: std::collections::VecDeque<Arrival>,
    _reader: JoinSet<()>,
}

impl Connection {
    /// Opens a connection that answers PING, or one that does not.
    pub(crate) async fn open(address: &str, answers: bool) -> std::io::Result<Self> {
        let connecting = timeout(Duration::from_secs(10), TcpStream::connect(address));
        let stream = connecting.await??;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let writer = Arc::new(Mutex::new(writer));
        let (sender, arrivals) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let answering = answers.then(|| Arc::clone(&writer));
        tasks.spawn(read(reader, answering, sender));
        Ok(Self {
            writer,
            arrivals,
            waiting: std::collections::VecDeque::new(),
            _reader: tasks,
        })
    }

    /// Sends bytes. A connection that is closed takes them as well: that is seen when reading.
    pub(crate) async fn send(&self, bytes: &[u8]) {
        let mut writer = self.writer.lock().await;
        let _ = timeout(Duration::from_secs(10), writer.write_all(bytes)).await;
    }

    /// Ends the direction to the server.
    pub(crate) async fn half_close(&self) {
        let _ = self.writer.lock().await.shutdown().await;
    }

    /// The next arrival before `deadline`.
    pub(crate) async fn next(&mut self, deadline: Instant) -> Option<Arrival> {
        if let Some(arrival) = self.waiting.pop_front() {
            return Some(arrival);
        }
        timeout_at(deadline, self.arrivals.recv())
            .await
            .ok()
            .flatten()
    }

    /// How many arrivals nobody asked for yet.
    pub(crate) fn waiting(&mut self) -> usize {
        while let Ok(arrival) = self.arrivals.try_recv() {
            self.waiting.push_back(arrival);
        }
        self.waiting.len()
    }

    /// All arrivals that nobody asked for yet.
    pub(crate) fn take_waiting(&mut self) -> Vec<Arrival> {
        self.waiting();
        self.waiting.drain(..).collect()
    }
}

/// Reads to the end. The server's PING is answered and not reported: when it comes depends on the time.
async fn read(
    mut reader: OwnedReadHalf,
    writer: Option<Arc<Mutex<OwnedWriteHalf>>>,
    arrivals: mpsc::UnboundedSender<Arrival>,
) {
    let decoder = FrameDecoder::new(FrameLimits {
        max_frame: LARGEST_FRAME,
    });
    let mut buffer = BytesMut::new();
    loop {
        match decoder.decode(&mut buffer) {
            Ok(Some(frame)) => {
                if matches!(Command::decode(&frame.command), Ok(Command::Ping(_))) {
                    let mut pong = BytesMut::new();
                    Command::from(CommandPong {}).encode(&mut pong);
                    if let Some(writer) = &writer {
                        let _ = writer.lock().await.write_all(&pong).await;
                    }
                } else if arrivals.send(Arrival::Frame(frame)).is_err() {
                    return;
                }
                continue;
            }
            Ok(None) => {}
            Err(_) => break,
        }
        if !matches!(reader.read_buf(&mut buffer).await, Ok(1..)) {
            break;
        }
    }
    let _ = arrivals.send(Arrival::Closed);
}

/// Larger than any frame of a scenario.
const LARGEST_FRAME: usize = 32 * 1024 * 1024;
