//! A broker that answers by script, over a real socket or over any stream that a test hands to it.
//!
//! ```no_run
//! # use pulsegate::testing::scripted_broker::{Script, ScriptedBroker, Step, lookup_connect};
//! # use pulsegate::protocol::proto::pulsar::base_command::Type;
//! # async fn example() {
//! let broker = ScriptedBroker::start(Script::new()).await;
//! let url = broker.url();
//! broker.set_script(Script::new().on(Type::Lookup, move |received| {
//!     vec![Step::Send(lookup_connect(received.request_id(), &url))]
//! }));
//! // ... let something connect to `broker.address()` ...
//! broker.wait_for(Type::Lookup, 1).await;
//! broker.stop().await;
//! # }
//! ```

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, WriteHalf},
    net::TcpListener,
    sync::{Notify, broadcast},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    naming::BrokerAddress,
    net::FrameReader,
    protocol::{
        command::{Command, name_of},
        frame::{Frame, FrameLimits},
        proto::pulsar::{
            CommandAuthChallenge, CommandConnected, CommandError, CommandLookupTopicResponse,
            CommandPartitionedTopicMetadataResponse, CommandPong, ServerError, base_command::Type,
            command_lookup_topic_response::LookupType,
            command_partitioned_topic_metadata_response::LookupType as MetadataLookupType,
        },
    },
};

/// One thing that the broker does.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends a command as a frame without payload.
    Send(Command),
    /// Sends a frame.
    Frame(Frame),
    /// Sends bytes as they are: garbage, half a frame, many frames at once.
    Raw(Bytes),
    /// Does nothing for a while, not even read. Under paused time this takes none.
    Delay(Duration),
    /// Ends its side of the stream and goes on reading.
    HalfClose,
    /// Stops reading for good and keeps the connection open.
    StopReading,
    /// Ends the connection.
    Close,
}

/// A command that the broker received.
#[derive(Debug, Clone)]
pub struct Received {
    /// Which connection it came on, counted from 0 in the order they were accepted.
    pub connection: usize,
    /// The command.
    pub command: Command,
    /// The frame that it came in, payload included.
    pub frame: Frame,
}

impl Received {
    /// The request id of the command.
    ///
    /// # Panics
    /// When it has none.
    pub fn request_id(&self) -> u64 {
        self.command
            .request_id()
            .expect("the command has a request id")
    }
}

type Rule = Arc<dyn Fn(&Received) -> Vec<Step> + Send + Sync>;

/// What the broker does on which command. One that has no rule is recorded and not answered.
#[derive(Clone)]
pub struct Script {
    greeting: Vec<Step>,
    rules: BTreeMap<i32, Rule>,
}

impl Script {
    /// Answers CONNECT with [`connected`] and PING with PONG.
    pub fn new() -> Self {
        Self::empty()
            .on(Type::Connect, |_| vec![Step::Send(connected())])
            .on(Type::Ping, |_| vec![Step::Send(CommandPong {}.into())])
    }

    /// Answers nothing.
    pub fn empty() -> Self {
        Self {
            greeting: Vec::new(),
            rules: BTreeMap::new(),
        }
    }

    /// Sets what is done on a command of this type, in place of an earlier rule.
    #[must_use]
    pub fn on(
        mut self,
        command_type: Type,
        rule: impl Fn(&Received) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        self.rules.insert(command_type.into(), Arc::new(rule));
        self
    }

    /// Does nothing on commands of this type any more.
    #[must_use]
    pub fn ignore(mut self, command_type: Type) -> Self {
        self.rules.remove(&i32::from(command_type));
        self
    }

    /// Sets what is done as soon as a connection is open.
    #[must_use]
    pub fn greet(mut self, steps: Vec<Step>) -> Self {
        self.greeting = steps;
        self
    }
}

impl Default for Script {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("greeting", &self.greeting)
            .field("rules", &self.rules.keys())
            .finish()
    }
}

/// A running broker. Dropping it ends its connections; [`stop`](Self::stop) also waits for them.
#[derive(Debug)]
pub struct ScriptedBroker {
    shared: Arc<Shared>,
    address: Option<SocketAddr>,
}

impl ScriptedBroker {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When that is not possible.
    pub async fn start(script: Script) -> Self {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), script).await
    }

    /// Listens at this address: a stopped broker comes back.
    ///
    /// # Panics
    /// When that is not possible.
    pub async fn start_at(address: SocketAddr, script: Script) -> Self {
        let listener = TcpListener::bind(address).await;
        Self::start_on(listener.expect("the address is free"), script)
    }

    /// Listens on a free port of 127.0.0.1 with TLS. A connection counts when its handshake is done.
    ///
    /// # Panics
    /// When that is not possible.
    pub async fn start_tls(script: Script, acceptor: TlsAcceptor) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let mut broker = Self::without_listener(script);
        broker.address = Some(listener.local_addr().expect("the listener is bound"));
        let shared = Arc::clone(&broker.shared);
        broker.shared.tracker.spawn(async move {
            let stop = shared.stop.clone();
            let accept = async {
                while let Ok((stream, _)) = listener.accept().await {
                    let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
                    let stop = shared.stop.clone();
                    let tracker = shared.tracker.clone();
                    tracker.spawn(async move {
                        // A client that does not like our certificate is what some tests want.
                        if let Some(Ok(stream)) =
                            stop.run_until_cancelled(acceptor.accept(stream)).await
                        {
                            shared.serve(stream);
                        }
                    });
                }
            };
            let _ = stop.run_until_cancelled(accept).await;
        });
        broker
    }

    /// Serves a listener that the test made.
    ///
    /// # Panics
    /// When the listener has no address.
    pub fn start_on(listener: TcpListener, script: Script) -> Self {
        let mut broker = Self::without_listener(script);
        broker.address = Some(listener.local_addr().expect("the listener is bound"));
        let shared = Arc::clone(&broker.shared);
        broker.shared.tracker.spawn(async move {
            let stop = shared.stop.clone();
            let accept = async {
                while let Ok((stream, _)) = listener.accept().await {
                    let _ = stream.set_nodelay(true);
                    shared.serve(stream);
                }
            };
            let _ = stop.run_until_cancelled(accept).await;
        });
        broker
    }

    /// Listens nowhere; connections come from [`connect`](Self::connect) and [`serve`](Self::serve).
    pub fn without_listener(script: Script) -> Self {
        let shared = Shared {
            script: Mutex::new(script),
            received: Mutex::new(Vec::new()),
            changed: Notify::new(),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            pushes: broadcast::channel(PUSHES).0,
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
        };
        Self {
            shared: Arc::new(shared),
            address: None,
        }
    }

    /// The address it listens on.
    ///
    /// # Panics
    /// When it listens nowhere.
    pub fn socket_address(&self) -> SocketAddr {
        self.address.expect("this broker listens")
    }

    /// The address it listens on, as that of a broker.
    ///
    /// # Panics
    /// When it listens nowhere.
    pub fn address(&self) -> BrokerAddress {
        BrokerAddress::from_host_port(&self.socket_address().to_string()).expect("a socket address")
    }

    /// The address it listens on, as that of a broker with TLS and by this host name.
    ///
    /// # Panics
    /// When it listens nowhere.
    pub fn tls_address(&self, host: &str) -> BrokerAddress {
        BrokerAddress {
            host: host.to_owned(),
            port: self.socket_address().port(),
            tls: true,
        }
    }

    /// The address it listens on, as a `pulsar://` URL.
    ///
    /// # Panics
    /// When it listens nowhere.
    pub fn url(&self) -> String {
        self.address().url()
    }

    /// Replaces the script, also of open connections.
    pub fn set_script(&self, script: Script) {
        *self.shared.script.lock() = script;
    }

    /// Serves one connection over a stream.
    pub fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(&self, stream: S) {
        self.shared.serve(stream);
    }

    /// A connection in memory that takes `capacity` bytes per direction before it blocks; returns the client's end.
    pub fn connect(&self, capacity: usize) -> DuplexStream {
        let (client, broker) = tokio::io::duplex(capacity);
        self.serve(broker);
        client
    }

    /// Does these steps on every connection that is open now.
    pub fn push(&self, steps: Vec<Step>) {
        // An error says that no connection is open.
        let _ = self.shared.pushes.send(steps);
    }

    /// All commands received, in order.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().clone()
    }

    /// The commands of one type received, in order.
    pub fn received_of(&self, command_type: Type) -> Vec<Received> {
        let mut received = self.received();
        received.retain(|received| received.command.command_type() == i32::from(command_type));
        received
    }

    /// Waits until at least `count` commands of this type came and returns all of them.
    ///
    /// # Panics
    /// When they do not come within [`WAIT_LIMIT`] of real time.
    pub async fn wait_for(&self, command_type: Type, count: usize) -> Vec<Received> {
        self.wait_until(WAIT_LIMIT, |broker| {
            let received = broker.received_of(command_type);
            (received.len() >= count).then_some(received)
        })
        .await
        .unwrap_or_else(|| panic!("{count} x {command_type:?} did not come: {}", self.seen()))
    }

    /// Waits until exactly `count` connections are open.
    ///
    /// # Panics
    /// When that does not come to pass within [`WAIT_LIMIT`] of real time.
    pub async fn wait_for_open(&self, count: usize) {
        self.wait_until(WAIT_LIMIT, |broker| (broker.open() == count).then_some(()))
            .await
            .unwrap_or_else(|| panic!("{count} connections are not open: {}", self.seen()));
    }

    /// What happened so far, for a test that waits in vain.
    fn seen(&self) -> String {
        let received = self.received();
        let commands: Vec<&str> = received
            .iter()
            .map(|received| name_of(received.command.command_type()))
            .collect();
        format!("{} are open, and there came {commands:?}", self.open())
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Ends the listener and all connections and waits for their tasks.
    pub async fn stop(self) {
        self.shared.stop.cancel();
        self.shared.tracker.close();
        self.shared.tracker.wait().await;
    }

    /// The value of the condition, as soon as it has one; `None` after this long.
    async fn wait_until<T>(
        &self,
        limit: Duration,
        condition: impl Fn(&Self) -> Option<T>,
    ) -> Option<T> {
        let mut watchdog = None;
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if let Some(value) = condition(self) {
                return Some(value);
            }
            let watchdog = watchdog.get_or_insert_with(|| Watchdog::start(&self.shared, limit));
            if watchdog.has_barked() {
                return None;
            }
            changed.await;
        }
    }
}

/// Wakes those who wait when their time is over. By a thread and not by a timer: under paused time a timer would fire as soon as
/// everything else is idle.
#[derive(Debug)]
struct Watchdog {
    barked: Arc<AtomicBool>,
    /// Its thread ends when this is dropped.
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    fn start(shared: &Arc<Shared>, limit: Duration) -> Self {
        let barked = Arc::new(AtomicBool::new(false));
        let (alive, ended) = mpsc::channel();
        let (shared, barks) = (Arc::clone(shared), Arc::clone(&barked));
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                barks.store(true, Ordering::SeqCst);
                shared.changed.notify_waiters();
            }
        });
        Self {
            barked,
            _alive: alive,
        }
    }

    fn has_barked(&self) -> bool {
        self.barked.load(Ordering::SeqCst)
    }
}

impl Drop for ScriptedBroker {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

#[derive(Debug)]
struct Shared {
    script: Mutex<Script>,
    received: Mutex<Vec<Received>>,
    /// Notified when `received` or `open` changed.
    changed: Notify,
    accepted: AtomicUsize,
    open: AtomicUsize,
    pushes: broadcast::Sender<Vec<Step>>,
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Shared {
    fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(self: &Arc<Self>, stream: S) {
        let connection = self.accepted.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_waiters();
        let shared = Arc::clone(self);
        let pushes = self.pushes.subscribe();
        self.tracker.spawn(async move {
            let run = shared.run(connection, stream, pushes);
            let _ = shared.stop.run_until_cancelled(run).await;
            shared.open.fetch_sub(1, Ordering::SeqCst);
            shared.changed.notify_waiters();
        });
    }

    async fn run<S: AsyncRead + AsyncWrite>(
        &self,
        connection: usize,
        stream: S,
        mut pushes: broadcast::Receiver<Vec<Step>>,
    ) -> Option<()> {
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = FrameReader::new(reader, FrameLimits::default());
        let greeting = self.script.lock().greeting.clone();
        perform(greeting, &mut writer).await?;
        loop {
            let steps = tokio::select! {
                biased;
                steps = pushes.recv() => steps.ok()?,
                frame = reader.next() => self.receive(connection, frame.ok()??)?,
            };
            perform(steps, &mut writer).await?;
        }
    }

    /// Records a frame and returns what to do; `None` when it holds no command.
    fn receive(&self, connection: usize, frame: Frame) -> Option<Vec<Step>> {
        let command = Command::decode(&frame.command).ok()?;
        let received = Received {
            connection,
            command,
            frame,
        };
        let rule = self
            .script
            .lock()
            .rules
            .get(&received.command.command_type())
            .cloned();
        let steps = rule.map(|rule| rule(&received)).unwrap_or_default();
        self.received.lock().push(received);
        self.changed.notify_waiters();
        Some(steps)
    }
}

/// Does the steps; `None` when the connection is over.
async fn perform<S: AsyncRead + AsyncWrite>(
    steps: Vec<Step>,
    writer: &mut WriteHalf<S>,
) -> Option<()> {
    for step in steps {
        match step {
            Step::Send(command) => {
                let mut buffer = BytesMut::new();
                command.encode(&mut buffer);
                writer.write_all(&buffer).await.ok()?;
            }
            Step::Frame(frame) => {
                let mut buffer = BytesMut::new();
                frame.encode(&mut buffer);
                writer.write_all(&buffer).await.ok()?;
            }
            Step::Raw(bytes) => writer.write_all(&bytes).await.ok()?,
            Step::Delay(delay) => tokio::time::sleep(delay).await,
            Step::HalfClose => writer.shutdown().await.ok()?,
            Step::StopReading => std::future::pending().await,
            Step::Close => return None,
        }
        writer.flush().await.ok()?;
    }
    Some(())
}

/// CONNECTED of protocol version 21 with the default message size.
pub fn connected() -> Command {
    connected_with(21, Some(5 * 1024 * 1024))
}

/// CONNECTED with this protocol version and message size in bytes.
pub fn connected_with(protocol_version: i32, max_message_size: Option<i32>) -> Command {
    Command::from(CommandConnected {
        server_version: "Scripted Broker".to_owned(),
        protocol_version: Some(protocol_version),
        max_message_size,
        feature_flags: None,
    })
}

/// AUTH_CHALLENGE without content.
pub fn auth_challenge() -> Command {
    Command::from(CommandAuthChallenge::default())
}

/// ERROR.
pub fn error(request_id: u64, code: ServerError, message: &str) -> Command {
    Command::from(CommandError {
        request_id,
        error: code.into(),
        message: message.to_owned(),
    })
}

/// LOOKUP_RESPONSE: this broker serves the topic.
pub fn lookup_connect(request_id: u64, url: &str) -> Command {
    Command::from(CommandLookupTopicResponse {
        broker_service_url: Some(url.to_owned()),
        response: Some(LookupType::Connect.into()),
        request_id,
        authoritative: Some(true),
        ..CommandLookupTopicResponse::default()
    })
}

/// LOOKUP_RESPONSE: ask this broker.
pub fn lookup_redirect(request_id: u64, url: &str, authoritative: bool) -> Command {
    Command::from(CommandLookupTopicResponse {
        broker_service_url: Some(url.to_owned()),
        response: Some(LookupType::Redirect.into()),
        request_id,
        authoritative: Some(authoritative),
        ..CommandLookupTopicResponse::default()
    })
}

/// LOOKUP_RESPONSE: refused.
pub fn lookup_failed(request_id: u64, code: ServerError, message: &str) -> Command {
    Command::from(CommandLookupTopicResponse {
        response: Some(LookupType::Failed.into()),
        request_id,
        error: Some(code.into()),
        message: Some(message.to_owned()),
        ..CommandLookupTopicResponse::default()
    })
}

/// PARTITIONED_METADATA_RESPONSE: this many partitions.
pub fn partitions(request_id: u64, partitions: u32) -> Command {
    Command::from(CommandPartitionedTopicMetadataResponse {
        partitions: Some(partitions),
        request_id,
        response: Some(MetadataLookupType::Success.into()),
        ..CommandPartitionedTopicMetadataResponse::default()
    })
}

/// Pushes that a connection may lag behind.
const PUSHES: usize = 1024;
/// How long a test waits for what a broker is to see: more than any time-out that it may be waiting for.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    /// One that comes in time, one that does not, under paused time as well.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_for_what_does_not_come() {
        let broker = ScriptedBroker::without_listener(Script::new());
        let limit = Duration::from_millis(20);
        let waited = broker.wait_until(limit, |broker| (broker.open() == 1).then_some("open"));
        assert_eq!(waited.await, None);
        let client = broker.connect(1024);
        let waited = broker.wait_until(limit, |broker| (broker.open() == 1).then_some("open"));
        assert_eq!(waited.await, Some("open"));
        assert_eq!(broker.seen(), "1 are open, and there came []");
        drop(client);
        broker.stop().await;
    }
}
