//! One connection to a broker: requests with answers, keep-alive both ways, and what the broker sends of itself.
//!
//! [`Connection`] is a handle; one task per connection reads, writes and keeps alive. The decisions are in
//! `state.rs`; this file only waits and calls. The table of waiting requests is shared with the handles behind a lock
//! that is never held over an await.

use std::{fmt, future::Future, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Semaphore, TryAcquireError, mpsc, oneshot},
    time::{MissedTickBehavior, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::{
    authentication::{Answering, Authentication},
    clock::Clock,
    dial::open_stream,
    error::{CloseReason, ConnectError, RequestError},
    handshake::{broker_gave_up, handshake, server_error},
    state::{ConnectionState, Incoming, KeepAliveAction, RegisterError},
    tls::TlsSource,
};
use crate::{
    naming::BrokerAddress,
    net::{
        FrameReader, Outbound, OutboundError, OutboundLimits, OutboundWriter, Outgoing, Stream,
        outbound,
    },
    protocol::{
        command::{Command, name_of},
        frame::{Frame, FrameLimits},
        proto::pulsar::{
            CommandAuthChallenge, CommandConnect, CommandConnected, CommandPing, CommandPong,
            base_command::Type,
        },
        rewrite,
    },
};

/// Says whether the address that a broker's host name resolved to may be connected to.
pub type AddressCheck = Arc<dyn Fn(&BrokerAddress, IpAddr) -> bool + Send + Sync>;

/// Takes the frames that answer no request, on the connection's task, in the order they came. Never blocks; an error ends the
/// connection.
pub(crate) trait FrameSink: Send {
    /// A frame of this command type.
    fn on_frame(&mut self, command_type: i32, frame: Frame) -> Result<(), CloseReason>;
    /// All frames that had arrived were taken.
    fn on_idle(&mut self) -> Result<(), CloseReason>;
    /// The connection ended; nothing follows.
    fn on_end(&mut self, reason: &CloseReason);
}

/// How a connection behaves. All durations count from the event they name.
#[derive(Clone)]
pub struct ConnectionOptions {
    /// For resolving the host and opening the TCP connection, and as much again for the TLS handshake.
    pub connect_timeout: Duration,
    /// From CONNECT to CONNECTED. Short enough for another address of a service URL to be tried within the time of an
    /// operation where one accepts connections and is silent.
    pub handshake_timeout: Duration,
    /// From the call of a request to its answer, waiting for a free place among `max_in_flight` included.
    pub request_timeout: Duration,
    /// We send PING in this interval, and end the connection when nothing came for a whole further one. `None` = never.
    pub keep_alive_interval: Option<Duration>,
    /// Of frames from the broker, until CONNECTED names the broker's own.
    pub frame_limits: FrameLimits,
    /// Requests that may wait for their answer at a time; further ones wait for a place. At least 1.
    pub max_in_flight: usize,
    /// Frames that [`ConnectionEvents`] holds; when it is full, the connection stops reading. At least 1.
    pub max_events: usize,
    /// Bounds of what we send.
    pub outbound: OutboundLimits,
    /// What CONNECT says of us, read anew for each connection, and how authentication challenges are answered. With
    /// [`Authentication::none`] a challenge ends the handshake, and later ones are events.
    pub authentication: Authentication,
    /// For addresses that ask for TLS.
    pub tls: TlsSource,
    /// Addresses that ask for TLS are reached through this one, which learns from the server name in the TLS handshake whom we
    /// want (PIP-60). The certificate must be the broker's.
    pub sni_proxy: Option<BrokerAddress>,
    /// Judges resolved addresses before they are connected to. `None` = all may be.
    pub allowed: Option<AddressCheck>,
    /// Where the connection's task is spawned. Clones of the options share it, so an owner can wait for the tasks of all
    /// its connections.
    pub tracker: TaskTracker,
}

impl Default for ConnectionOptions {
    /// The times of an Apache client (10 s to connect, 30 s for a request) and of keep-alive (30 s), 10 s for a handshake, 50,000
    /// requests in flight.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            keep_alive_interval: Some(Duration::from_secs(30)),
            frame_limits: FrameLimits::default(),
            max_in_flight: 50_000,
            max_events: 128,
            outbound: OutboundLimits::default(),
            authentication: Authentication::none(),
            tls: TlsSource::System,
            sni_proxy: None,
            allowed: None,
            tracker: TaskTracker::new(),
        }
    }
}

impl fmt::Debug for ConnectionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionOptions")
            .field("connect_timeout", &self.connect_timeout)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("keep_alive_interval", &self.keep_alive_interval)
            .field("frame_limits", &self.frame_limits)
            .field("max_in_flight", &self.max_in_flight)
            .field("authentication", &self.authentication)
            .field("tls", &self.tls)
            .field("sni_proxy", &self.sni_proxy)
            .finish_non_exhaustive()
    }
}

/// A handle on an open connection to a broker; clones share the connection. It ends when the last handle is dropped,
/// when [`close`](Self::close) is called, or when the broker or the network ends it.
#[derive(Debug, Clone)]
pub struct Connection {
    handle: Arc<Handle>,
}

/// The frames of a connection that answer none of its requests: MESSAGE, SEND_RECEIPT, CLOSE_PRODUCER and so on, in the
/// order they came. Once dropped, such frames are discarded.
#[derive(Debug)]
pub struct ConnectionEvents {
    frames: mpsc::Receiver<Frame>,
}

impl ConnectionEvents {
    /// The next frame, or `None` when the connection has ended and all its frames were taken. Cancel-safe.
    ///
    /// While nobody takes frames and `max_events` of them wait, the connection does not read, and so its requests get
    /// no answers.
    pub async fn recv(&mut self) -> Option<Frame> {
        self.frames.recv().await
    }
}

impl Connection {
    /// Connects to a broker; frames that answer no request are discarded. Dropped early, it leaves nothing behind.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(
        address: &BrokerAddress,
        connect: CommandConnect,
        options: ConnectionOptions,
    ) -> Result<Self, ConnectError> {
        Ok(Self::open_with_events(address, connect, options).await?.0)
    }

    /// As [`open`](Self::open), with the frames that answer no request.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open_with_events(
        address: &BrokerAddress,
        connect: CommandConnect,
        options: ConnectionOptions,
    ) -> Result<(Self, ConnectionEvents), ConnectError> {
        let (events, frames) = mpsc::channel(options.max_events.max(1));
        let connection = Self::dial(address, connect, options, Events::Queue(events)).await?;
        Ok((connection, ConnectionEvents { frames }))
    }

    /// As [`open`](Self::open), with the frames that answer no request handed to `sink`.
    pub(crate) async fn open_with_sink(
        address: &BrokerAddress,
        connect: CommandConnect,
        options: ConnectionOptions,
        sink: Box<dyn FrameSink>,
    ) -> Result<Self, ConnectError> {
        Self::dial(address, connect, options, Events::Sink(sink)).await
    }

    async fn dial(
        address: &BrokerAddress,
        connect: CommandConnect,
        options: ConnectionOptions,
        events: Events,
    ) -> Result<Self, ConnectError> {
        // Boxed: the handshakes are large, and this is part of the task of every producer and consumer.
        Box::pin(async move {
            match open_stream(address, &options).await? {
                Stream::Plain(stream) => {
                    let (reader, writer) = stream.into_split();
                    Self::start(reader, writer, connect, options, events).await
                }
                Stream::Tls(stream) => {
                    let (reader, writer) = tokio::io::split(stream);
                    Self::start(reader, writer, connect, options, events).await
                }
            }
        })
        .await
    }

    /// Makes a connection of the two halves of any stream: performs the handshake and starts the task.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn establish<R, W>(
        reader: R,
        writer: W,
        connect: CommandConnect,
        options: ConnectionOptions,
    ) -> Result<(Self, ConnectionEvents), ConnectError>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (events, frames) = mpsc::channel(options.max_events.max(1));
        let connection =
            Self::start(reader, writer, connect, options, Events::Queue(events)).await?;
        Ok((connection, ConnectionEvents { frames }))
    }

    async fn start<R, W>(
        reader: R,
        mut writer: W,
        connect: CommandConnect,
        options: ConnectionOptions,
        events: Events,
    ) -> Result<Self, ConnectError>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let mut reader = FrameReader::new(reader, options.frame_limits);
        let challenged = Challenged {
            authentication: options.authentication.clone(),
            client_version: connect.client_version.clone(),
            protocol_version: connect.protocol_version,
        };
        let shaken = handshake(&mut reader, &mut writer, connect, &options).await?;
        let (outbound, outbound_writer) = outbound::channel(options.outbound);
        let max_in_flight = options.max_in_flight.max(1);
        let shared = Arc::new(Shared {
            state: Mutex::new(ConnectionState::new(max_in_flight)),
            places: Semaphore::new(max_in_flight.min(Semaphore::MAX_PERMITS)),
            ended: CancellationToken::new(),
        });
        let stop = CancellationToken::new();
        let driver = Driver {
            reader,
            events,
            parked: None,
            outbound: outbound.clone(),
            stop: stop.clone(),
            ended: EndGuard {
                shared: Arc::clone(&shared),
            },
            challenged,
            clock: Clock::new(),
            challenges: ChallengeRate::default(),
            answering: None,
            keep_alive_interval: options.keep_alive_interval,
        };
        options.tracker.spawn(driver.run(outbound_writer, writer));
        let handle = Handle {
            shared,
            outbound,
            connected: shaken.connected,
            connected_frame: shaken.frame,
            request_timeout: options.request_timeout,
            stop,
        };
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    /// What the broker said of itself in CONNECTED.
    pub fn connected(&self) -> &CommandConnected {
        &self.handle.connected
    }

    /// CONNECTED as it came.
    pub fn connected_frame(&self) -> &Frame {
        &self.handle.connected_frame
    }

    /// Sends a command and waits for its answer; the request id of `command` is replaced. Cancel-safe in that nothing is
    /// left behind, but the command may have been sent.
    ///
    /// A PRODUCER_SUCCESS whose `producer_ready` is false is not the answer: the one that follows it is, and it has all the
    /// time that the broker needs.
    ///
    /// # Errors
    /// See [`RequestError`]; an answer that is ERROR is [`RequestError::Refused`]. Answers that report a failure in
    /// their own fields, such as LOOKUP_RESPONSE, are returned as they are.
    pub async fn request(&self, command: Command) -> Result<Command, RequestError> {
        let answer = self.request_raw(command.encode_command()).await?;
        decode_answer(&answer)
    }

    /// Sends an encoded `BaseCommand` with its request id replaced, all else unchanged, and returns the answer as it
    /// came: the request id in it is ours. An ERROR is an answer, too. Cancel-safe as [`request`](Self::request).
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn request_raw(&self, command: Bytes) -> Result<Frame, RequestError> {
        let limit = self.handle.request_timeout;
        let shared = &self.handle.shared;
        let mut deadline = std::pin::pin!(tokio::time::sleep(limit));
        let begin = async {
            // The semaphore is closed only by the end of the connection.
            let place = shared.places.acquire().await.map_err(|_| shared.closed())?;
            Ok::<_, RequestError>((place, self.send_request(&command).await?))
        };
        let (_place, mut waiting) = tokio::select! {
            biased;
            begun = begin => begun?,
            () = &mut deadline => return Err(RequestError::Timeout(limit)),
        };
        let answer = tokio::select! {
            biased;
            answer = &mut waiting.answer => answer,
            () = deadline => {
                if !shared.state.lock().is_deferred(waiting.request_id) {
                    return Err(RequestError::Timeout(limit));
                }
                (&mut waiting.answer).await
            }
        };
        answer.map_err(|_| shared.closed())
    }

    /// As [`request`](Self::request) without waiting: the request is queued when this returns, behind what was sent before.
    /// `None` where there is no [`room`](Self::room) for it.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub(crate) fn request_later(
        &self,
        command: Command,
    ) -> Result<Option<LaterAnswer>, RequestError> {
        let shared = &self.handle.shared;
        let place = match shared.places.try_acquire() {
            Ok(place) => place,
            Err(TryAcquireError::NoPermits) => return Ok(None),
            Err(TryAcquireError::Closed) => return Err(shared.closed()),
        };
        let Some((request_id, answer)) = self.queue_request(&command.encode_command())? else {
            return Ok(None);
        };
        // Given back by the answer.
        place.forget();
        Ok(Some(LaterAnswer {
            connection: self.clone(),
            request_id,
            answer,
        }))
    }

    /// Waits until a request can be queued, or until the connection has ended. Cancel-safe.
    pub(crate) async fn room(&self) {
        // The end of the connection is told to who sends next.
        let _ = self.handle.outbound.ready().await;
        let _ = self.handle.shared.places.acquire().await;
    }

    /// Registers and sends, waiting for room in the outbound lane where there is none.
    async fn send_request(&self, command: &Bytes) -> Result<Waiting<'_>, RequestError> {
        loop {
            if let Some((request_id, answer)) = self.queue_request(command)? {
                return Ok(Waiting {
                    shared: &self.handle.shared,
                    request_id,
                    answer,
                });
            }
            // An end while waiting is reported by the next turn.
            let _ = self.handle.outbound.ready().await;
        }
    }

    /// Registers and queues a request that has a place. `None`: the outbound lane is full.
    fn queue_request(
        &self,
        command: &Bytes,
    ) -> Result<Option<(u64, oneshot::Receiver<Frame>)>, RequestError> {
        let Handle {
            shared, outbound, ..
        } = &*self.handle;
        let (sender, answer) = oneshot::channel();
        // Registered and queued under one lock, so that requests leave in the order of their ids.
        let mut state = shared.state.lock();
        let request_id = state.register(sender).map_err(|error| match error {
            RegisterError::Ended(reason) => RequestError::Closed(reason),
            RegisterError::TooMany => {
                unreachable!("there are no more places than requests in flight")
            }
        })?;
        let command = rewrite::with_request_id(command, request_id);
        let queued = command.map(|command| {
            outbound.send(Outgoing::Frame(Frame {
                command,
                payload: Bytes::new(),
            }))
        });
        match queued {
            Ok(Ok(())) => Ok(Some((request_id, answer))),
            Ok(Err(OutboundError::Full)) => {
                state.forget(request_id);
                Ok(None)
            }
            Ok(Err(OutboundError::Closed)) => {
                state.forget(request_id);
                Err(RequestError::Closed(
                    state.ended().cloned().unwrap_or(CloseReason::Local),
                ))
            }
            Err(error) => {
                state.forget(request_id);
                Err(error.into())
            }
        }
    }

    /// Queues something that needs no answer, or whose answer is an event. Never waits.
    ///
    /// # Errors
    /// See [`OutboundError`].
    pub fn send(&self, outgoing: Outgoing<'_>) -> Result<(), OutboundError> {
        self.handle.outbound.send(outgoing)
    }

    /// The way out, for waiting until there is room in it.
    pub fn outbound(&self) -> &Outbound {
        &self.handle.outbound
    }

    /// Ends the connection for all handles: what is queued is sent within a second, waiting requests fail.
    pub fn close(&self) {
        self.handle.stop.cancel();
    }

    /// Waits until the connection has ended and returns why. Cancel-safe.
    pub async fn closed(&self) -> CloseReason {
        self.handle.shared.ended.cancelled().await;
        self.handle.shared.close_reason()
    }

    /// Whether the connection has ended or is being closed.
    pub fn is_closed(&self) -> bool {
        self.handle.stop.is_cancelled() || self.handle.shared.ended.is_cancelled()
    }

    /// Requests that wait for an answer.
    pub fn in_flight(&self) -> usize {
        self.handle.shared.state.lock().in_flight()
    }

    /// Whether this is the only handle.
    pub(crate) fn is_only_handle(&self) -> bool {
        Arc::strong_count(&self.handle) == 1
    }
}

/// What the clones of a connection share; the last one to go ends the task.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    outbound: Outbound,
    connected: CommandConnected,
    connected_frame: Frame,
    request_timeout: Duration,
    stop: CancellationToken,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What handles and task share.
#[derive(Debug)]
struct Shared {
    state: Mutex<ConnectionState<oneshot::Sender<Frame>>>,
    /// One per request in flight. Closed when the connection has ended.
    places: Semaphore,
    /// Cancelled when the connection has ended, after the reason is in `state`.
    ended: CancellationToken,
}

impl Shared {
    fn end(&self, reason: CloseReason) {
        let waiters = self.state.lock().end(reason);
        self.places.close();
        self.ended.cancel();
        // Whoever waits on one of them finds the reason in the state.
        drop(waiters);
    }

    fn close_reason(&self) -> CloseReason {
        self.state
            .lock()
            .ended()
            .cloned()
            .unwrap_or(CloseReason::Local)
    }

    fn closed(&self) -> RequestError {
        RequestError::Closed(self.close_reason())
    }
}

/// A registered request; dropped, it is forgotten.
struct Waiting<'a> {
    shared: &'a Shared,
    request_id: u64,
    answer: oneshot::Receiver<Frame>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.state.lock().forget(self.request_id);
    }
}

/// The answer to a request that was queued; dropped, the request is forgotten.
#[derive(Debug)]
pub(crate) struct LaterAnswer {
    connection: Connection,
    request_id: u64,
    answer: oneshot::Receiver<Frame>,
}

impl LaterAnswer {
    /// Waits for it, for the time that a request has.
    ///
    /// # Errors
    /// As [`Connection::request`].
    pub(crate) async fn wait(mut self) -> Result<Command, RequestError> {
        let limit = self.connection.handle.request_timeout;
        let answer = timeout(limit, &mut self.answer)
            .await
            .map_err(|_| RequestError::Timeout(limit))?
            .map_err(|_| self.connection.handle.shared.closed())?;
        decode_answer(&answer)
    }
}

impl Drop for LaterAnswer {
    fn drop(&mut self) {
        let shared = &self.connection.handle.shared;
        shared.state.lock().forget(self.request_id);
        shared.places.add_permits(1);
    }
}

fn decode_answer(answer: &Frame) -> Result<Command, RequestError> {
    match Command::decode(&answer.command)? {
        Command::Error(error) => Err(RequestError::Refused {
            code: server_error(error.error),
            message: error.message,
        }),
        answer => Ok(answer),
    }
}

/// Ends the connection for its handles however the task ends.
struct EndGuard {
    shared: Arc<Shared>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.shared.end(CloseReason::Local);
    }
}

/// Where the frames go that answer no request.
enum Events {
    Queue(mpsc::Sender<Frame>),
    Sink(Box<dyn FrameSink>),
}

impl Events {
    /// Waits for a place in the queue and puts the frame there. Cancel-safe: the frame stays parked.
    async fn put(&mut self, parked: &mut Option<Frame>) {
        let Self::Queue(queue) = self else { return };
        let permit = queue.reserve().await;
        if let (Some(frame), Ok(permit)) = (parked.take(), permit) {
            permit.send(frame);
        }
    }
}

/// The task of a connection, but for the writer.
struct Driver<R> {
    reader: FrameReader<R>,
    events: Events,
    /// A frame that the full event queue has not taken; nothing is read while there is one.
    parked: Option<Frame>,
    outbound: Outbound,
    stop: CancellationToken,
    ended: EndGuard,
    challenged: Challenged,
    clock: Clock,
    challenges: ChallengeRate,
    /// The answer to the broker's challenge, while it is being made; a further challenge meanwhile asks for the same.
    answering: Option<Answering>,
    keep_alive_interval: Option<Duration>,
}

impl<R: AsyncRead + Unpin> Driver<R> {
    async fn run<W: AsyncWrite + Unpin>(mut self, outbound_writer: OutboundWriter, writer: W) {
        let mut writing = std::pin::pin!(outbound_writer.run(writer));
        let (reason, written) = self.drive(writing.as_mut()).await;
        debug!(%reason, "connection to a broker ended");
        self.outbound.close_after_flush();
        if matches!(reason, CloseReason::Local) && !written {
            // What was sent before the close still goes out, unless the broker does not read.
            let _ = timeout(FLUSH_ON_CLOSE, writing).await;
        }
        if let Events::Sink(sink) = &mut self.events {
            sink.on_end(&reason);
        }
        self.ended.shared.end(reason);
    }

    /// Until the connection ends; says whether the writer has ended as well (it must not be polled again then).
    async fn drive(
        &mut self,
        mut writing: impl Future<Output = std::io::Result<()>> + Unpin,
    ) -> (CloseReason, bool) {
        let mut ticks = self
            .keep_alive_interval
            .filter(|interval| !interval.is_zero())
            .map(|interval| {
                let mut ticks = tokio::time::interval(interval);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                // The first tick is due after an interval, not at once.
                ticks.reset();
                ticks
            });
        let stop = self.stop.clone();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return (CloseReason::Local, false),
                result = &mut writing => {
                    let reason = result.map_or_else(|error| CloseReason::Io(Arc::new(error)), |()| CloseReason::Local);
                    return (reason, true);
                }
                () = self.events.put(&mut self.parked), if self.parked.is_some() => {}
                answer = answered(&mut self.answering) => {
                    let sent = match answer {
                        Ok(Some(response)) => self.send_urgent(&Command::from(response)),
                        Ok(None) => Ok(()),
                        Err(error) => Err(CloseReason::Credential(error)),
                    };
                    if let Err(reason) = sent {
                        return (reason, false);
                    }
                }
                frame = self.reader.next(), if self.parked.is_none() => {
                    let result = match frame {
                        Ok(Some(frame)) => self.on_frames(frame),
                        Ok(None) => Err(CloseReason::EndOfStream),
                        Err(error) => Err(error.into()),
                    };
                    if let Err(reason) = result {
                        return (reason, false);
                    }
                }
                // After the reader: what has come shows that the broker lives, however late we get to it.
                due = async { ticks.as_mut().expect("checked by the branch's condition").tick().await }, if ticks.is_some() => {
                    if let Err(reason) = self.on_keep_alive_tick(due.elapsed()) {
                        return (reason, false);
                    }
                }
            }
        }
    }

    /// `late` is the time since the tick was due. Where this task or its whole process stood still, neither PING was sent nor
    /// anything read meanwhile, and the silence is ours.
    fn on_keep_alive_tick(&mut self, late: Duration) -> Result<(), CloseReason> {
        let reading = self.parked.is_none() && late < TICK_LATE;
        let action = self.ended.shared.state.lock().on_keep_alive_tick(reading);
        match action {
            KeepAliveAction::Close => Err(CloseReason::KeepAliveTimeout),
            KeepAliveAction::SendPing => self.send_urgent(&Command::from(CommandPing {})),
        }
    }

    /// A frame and those that came with it, until one has to wait. Their number is bounded by what one read brings.
    fn on_frames(&mut self, first: Frame) -> Result<(), CloseReason> {
        self.ended.shared.state.lock().on_alive();
        let mut next = Some(first);
        while let Some(frame) = next {
            self.on_frame(frame)?;
            next = match self.parked {
                Some(_) => None,
                None => self.reader.next_buffered()?,
            };
        }
        match &mut self.events {
            Events::Sink(sink) => sink.on_idle(),
            Events::Queue(_) => Ok(()),
        }
    }

    fn on_frame(&mut self, frame: Frame) -> Result<(), CloseReason> {
        let command_type = Command::peek_type(&frame.command).map_err(command_close)?;
        let shared = &self.ended.shared;
        if let Events::Sink(sink) = &mut self.events
            && (command_type == Type::SendReceipt as i32 || command_type == Type::Message as i32)
        {
            // Commands without a request id, one per message: they take no lock.
            return sink.on_frame(command_type, frame);
        }
        if command_type == Type::ProducerSuccess as i32 && !is_producer_ready(&frame)? {
            if let Some(request_id) = rewrite::request_id_of(&frame.command) {
                shared.state.lock().defer(request_id);
            }
            return Ok(());
        }
        let incoming = shared
            .state
            .lock()
            .on_frame(command_type, rewrite::request_id_of(&frame.command));
        match incoming {
            Incoming::Answer(waiter) => {
                // The request may just have been given up; then nobody misses the answer.
                let _ = waiter.send(frame);
                Ok(())
            }
            Incoming::Ping => self.send_urgent(&Command::from(CommandPong {})),
            Incoming::Alive => Ok(()),
            Incoming::Late => {
                debug!(
                    command = name_of(command_type),
                    "an answer came after its request was given up"
                );
                Ok(())
            }
            Incoming::ConnectionError => {
                match Command::decode(&frame.command).map_err(command_close)? {
                    Command::Error(error) => Err(broker_gave_up(error)),
                    _ => Ok(()),
                }
            }
            Incoming::Unsolicited => self.on_unsolicited(command_type, frame),
        }
    }

    fn on_unsolicited(&mut self, command_type: i32, frame: Frame) -> Result<(), CloseReason> {
        if command_type == Type::AuthChallenge as i32
            && self.challenged.authentication.answers_challenges()
        {
            if !self.challenges.take(self.clock.now()) {
                return Err(CloseReason::Violation("too many authentication challenges"));
            }
            if let Command::AuthChallenge(challenge) =
                Command::decode(&frame.command).map_err(command_close)?
                && self.answering.is_none()
            {
                self.answering = Some(self.challenged.answer(challenge));
            }
            return Ok(());
        }
        let queue = match &mut self.events {
            Events::Sink(sink) => return sink.on_frame(command_type, frame),
            Events::Queue(queue) => queue,
        };
        match queue.try_send(frame) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(frame)) => {
                self.parked = Some(frame);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                debug!(
                    command = name_of(command_type),
                    "a frame that nobody asked for was discarded"
                );
                Ok(())
            }
        }
    }

    fn send_urgent(&self, command: &Command) -> Result<(), CloseReason> {
        match self.outbound.send_urgent(Outgoing::Command(command)) {
            // A full urgent lane holds PONGs already: the broker does not read, and keep-alive will notice.
            Ok(()) | Err(OutboundError::Full) => Ok(()),
            Err(OutboundError::Closed) => Err(CloseReason::Local),
        }
    }
}

/// What challenges on an open connection are answered with.
struct Challenged {
    authentication: Authentication,
    client_version: String,
    protocol_version: Option<i32>,
}

impl Challenged {
    fn answer(&self, challenge: CommandAuthChallenge) -> Answering {
        self.authentication
            .answer(challenge, &self.client_version, self.protocol_version)
    }
}

/// How fast challenges come.
#[derive(Debug, Default)]
struct ChallengeRate {
    /// When the present interval began; `None`: there was no challenge yet.
    since: Option<Duration>,
    /// Challenges in it.
    count: u32,
}

impl ChallengeRate {
    /// A challenge came; says whether it is one that may.
    fn take(&mut self, now: Duration) -> bool {
        let is_over = |since: Duration| now.saturating_sub(since) >= CHALLENGES_INTERVAL;
        if self.since.is_none_or(is_over) {
            self.since = Some(now);
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.count <= CHALLENGES_MAX
    }
}

/// The answer that is being made; for ever when none is. Cancel-safe.
async fn answered(answering: &mut Option<Answering>) -> <Answering as Future>::Output {
    let Some(answer) = answering else {
        return std::future::pending().await;
    };
    let answer = answer.await;
    *answering = None;
    answer
}

fn is_producer_ready(frame: &Frame) -> Result<bool, CloseReason> {
    match Command::decode(&frame.command).map_err(command_close)? {
        Command::ProducerSuccess(success) => Ok(success.producer_ready()),
        _ => Ok(true),
    }
}

fn command_close(error: crate::protocol::command::CommandError) -> CloseReason {
    CloseReason::Command(Arc::new(error))
}

/// Challenges that are taken in [`CHALLENGES_INTERVAL`]. Brokers send one each minute at most
/// (`authenticationRefreshCheckSeconds`).
const CHALLENGES_MAX: u32 = 100;
/// How long [`CHALLENGES_MAX`] are enough for.
const CHALLENGES_INTERVAL: Duration = Duration::from_secs(60);
/// A keep-alive tick that comes so much after its time says that we did not run.
const TICK_LATE: Duration = Duration::from_secs(1);
/// How long closing waits for a broker to take what was sent before.
const FLUSH_ON_CLOSE: Duration = Duration::from_secs(1);
