//! The relay of a direct connection: bytes go through unchanged and head first, frame heads are looked at on the way. // hot path
//!
//! Owns both sockets of a pair after the handshake. One task drives both directions. Bytes are read into the thread's scratch
//! buffer and written to the other side at once; only what that side does not take is kept, at most one scratch buffer (128 KiB)
//! per direction, and nothing more is read until it is gone: that is the back-pressure. An idle pair holds no buffer.
//!
//! An end of one side is passed on after the bytes before it; the other side then has [`LINGER`] to end as well.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::inspect::Inspector;
use super::policy::TargetPolicy;
use super::rates::RelayMeter;
use crate::net::scratch;
use crate::protocol::frame::FrameLimits;
use crate::protocol::head::{HeadScanner, ScanError};

/// What the handshake hands over: both sockets, and the bytes that arrived with it and belong to the relay.
#[derive(Debug)]
pub(crate) struct Passthrough<C, B> {
    pub(crate) client: C,
    pub(crate) broker: B,
    /// Read from the client behind its CONNECT.
    pub(crate) early_from_client: Bytes,
    /// Read from the broker; starts with its CONNECTED unless the client has that already.
    pub(crate) early_from_broker: Bytes,
    /// From the broker's `max_message_size`.
    pub(crate) limits: FrameLimits,
}

/// Times and shared parts of a relay.
pub(crate) struct RelayContext<'a> {
    pub(crate) metrics: &'a RelayMeter,
    pub(crate) policy: &'a TargetPolicy,
    /// Longest time that a side may send nothing (`brokerProxyReadTimeoutMs`); `None` is for ever.
    pub(crate) idle_timeout: Option<Duration>,
}

/// Why a relay ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("reading from the {0}: {1}")]
    Read(Side, #[source] io::Error),
    #[error("writing to the {0}: {1}")]
    Write(Side, #[source] io::Error),
    #[error("the {0} sent nothing for too long")]
    Idle(Side),
    #[error("the {0} sent {1}")]
    BadFrame(Side, #[source] ScanError),
}

/// One of the two peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Broker,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Broker => "broker",
        })
    }
}

/// Relays until both sides have ended or one fails. When `drain` completes, the relay ends at the next frame boundaries: first
/// the client's frames stop, then, after the answers to them had time to pass, the broker's. Not cancel-safe: dropping it cuts
/// the connection.
///
/// # Errors
/// What ended the relay other than an orderly end of the peers; both sockets are closed by then in any case.
pub(crate) async fn relay<C, B, D>(
    pair: Passthrough<C, B>,
    inspector: Inspector,
    context: RelayContext<'_>,
    drain: D,
) -> Result<(), RelayError>
where
    D: Future<Output = ()>,
    C: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let now = Instant::now();
    let mut relay = Relay {
        client: pair.client,
        broker: pair.broker,
        upward: Direction::new(Side::Client, pair.early_from_client, pair.limits, now),
        downward: Direction::new(Side::Broker, pair.early_from_broker, pair.limits, now),
        observer: Observer {
            inspector,
            metrics: context.metrics,
            policy: context.policy,
        },
        idle_timeout: context.idle_timeout,
        stage: Stage::Open,
    };
    let first_check = context
        .idle_timeout
        .map_or(now + FAR_FUTURE, |timeout| now + timeout);
    let mut timer = pin!(sleep_until(first_check));
    let mut drain = pin!(drain);
    let mut draining = false;
    poll_fn(|cx| {
        if !draining && drain.as_mut().poll(cx).is_ready() {
            draining = true;
            relay.begin_drain(timer.as_mut());
        }
        relay.poll(cx, timer.as_mut())
    })
    .await
}

/// How far the end of the pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// The client's bytes have stopped at a frame boundary; the broker's answers still go through for a moment.
    Draining,
    /// At least one direction has ended; the timer ends the other.
    Ending,
}

struct Relay<'a, C, B> {
    client: C,
    broker: B,
    upward: Direction,
    downward: Direction,
    observer: Observer<'a>,
    idle_timeout: Option<Duration>,
    stage: Stage,
}

impl<C, B> Relay<'_, C, B>
where
    C: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut timer: Pin<&mut Sleep>,
    ) -> Poll<Result<(), RelayError>> {
        loop {
            let up = self
                .upward
                .pump(cx, &mut self.client, &mut self.broker, &mut self.observer);
            let down =
                self.downward
                    .pump(cx, &mut self.broker, &mut self.client, &mut self.observer);
            if up.is_ready() && down.is_ready() {
                return Poll::Ready(self.verdict());
            }
            if self.stage != Stage::Ending && (self.upward.is_ending() || self.downward.is_ending())
            {
                self.stage = Stage::Ending;
                // Where a drain had begun, there is nothing to hold for any more.
                self.upward.end = End::Close;
                timer.as_mut().reset(Instant::now() + LINGER);
                continue;
            }
            ready!(timer.as_mut().poll(cx));
            if let Some(result) = self.timer_fired(timer.as_mut()) {
                return Poll::Ready(result);
            }
        }
    }

    /// The deadline of the current stage is here. `None`: go on, the timer is set anew.
    fn timer_fired(&mut self, mut timer: Pin<&mut Sleep>) -> Option<Result<(), RelayError>> {
        let now = Instant::now();
        match self.stage {
            Stage::Open => {
                let Some(timeout) = self.idle_timeout else {
                    timer.as_mut().reset(now + FAR_FUTURE);
                    return None;
                };
                let (up, down) = (
                    self.upward.silent_since(now),
                    self.downward.silent_since(now),
                );
                let (oldest, side) = if up <= down {
                    (up, Side::Client)
                } else {
                    (down, Side::Broker)
                };
                // Where both sides are held, neither is silent; then it counts whether anything moves at all.
                let moved = self.upward.last_moved.max(self.downward.last_moved);
                let oldest = oldest.min(moved);
                if oldest + timeout <= now {
                    return Some(Err(RelayError::Idle(side)));
                }
                timer.as_mut().reset(oldest + timeout);
                None
            }
            Stage::Draining => {
                self.upward.end = End::Close;
                self.downward.stop_at_boundary = true;
                self.stage = Stage::Ending;
                timer.as_mut().reset(now + LINGER);
                None
            }
            Stage::Ending => Some(self.verdict()),
        }
    }

    /// What ended the pair: the first thing that went wrong on the client's way in counts before the way out.
    fn verdict(&mut self) -> Result<(), RelayError> {
        match self
            .upward
            .failure
            .take()
            .or_else(|| self.downward.failure.take())
        {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn begin_drain(&mut self, timer: Pin<&mut Sleep>) {
        if self.stage == Stage::Open {
            self.stage = Stage::Draining;
            self.upward.stop_at_boundary = true;
            self.upward.end = End::Hold;
            timer.reset(Instant::now() + ANSWERS_GRACE);
        }
    }
}

/// Who looks at what passes.
struct Observer<'a> {
    inspector: Inspector,
    metrics: &'a RelayMeter,
    policy: &'a TargetPolicy,
}

/// What happens to the target's socket when the source has no more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Shut down its write half.
    Close,
    /// Wait; the stage's deadline changes this to `Close`.
    Hold,
}

/// Bytes from one side to the other.
#[derive(Debug)]
struct Direction {
    from: Side,
    scanner: HeadScanner,
    /// Read, looked at, and not yet taken by the target from `sent` on.
    unsent: Bytes,
    /// Bytes of the early data that are still to be looked at.
    early: Bytes,
    reading: bool,
    stop_at_boundary: bool,
    end: End,
    /// The target takes or gets no more bytes. What still comes from the source is read and dropped, so that closing its socket
    /// does not reset the connection under bytes that the source has not read yet.
    discarding: bool,
    /// The source sends nothing more.
    source_ended: bool,
    /// Nothing more happens in this direction.
    finished: bool,
    failure: Option<RelayError>,
    /// When the source last sent something, or was last read from again.
    last_read: Instant,
    /// When a byte was last read or written.
    last_moved: Instant,
}

impl Direction {
    fn new(from: Side, early: Bytes, limits: FrameLimits, now: Instant) -> Self {
        Self {
            from,
            scanner: HeadScanner::new(limits),
            unsent: Bytes::new(),
            early,
            reading: true,
            stop_at_boundary: false,
            end: End::Close,
            discarding: false,
            source_ended: false,
            finished: false,
            failure: None,
            last_read: now,
            last_moved: now,
        }
    }

    /// Since when the source sends nothing. Who is not read from is not silent.
    fn silent_since(&self, now: Instant) -> Instant {
        if self.unsent.is_empty() {
            self.last_read
        } else {
            now
        }
    }

    /// Whether no further frame will pass, so that the other direction has to come to its end as well.
    fn is_ending(&self) -> bool {
        self.finished || self.discarding
    }

    /// Moves what can be moved. Ready when the direction has ended; pending otherwise, with a wake-up for what it waits for.
    fn pump<S, T>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        target: &mut T,
        observer: &mut Observer<'_>,
    ) -> Poll<()>
    where
        S: AsyncRead + Unpin,
        T: AsyncWrite + Unpin,
    {
        if self.finished {
            return Poll::Ready(());
        }
        for _ in 0..CHUNKS_PER_TURN {
            ready!(self.poll_unsent(cx, target));
            if self.stop_at_boundary
                && !self.discarding
                && self.early.is_empty()
                && self.scanner.at_boundary()
            {
                self.reading = false;
            }
            if !self.reading {
                ready!(self.poll_end(cx, target));
                if self.source_ended {
                    self.finished = true;
                    return Poll::Ready(());
                }
                self.discarding = true;
                self.reading = true;
            }
            if self.early.is_empty() {
                ready!(self.poll_chunk(cx, source, target, observer));
            } else {
                let early = std::mem::take(&mut self.early);
                let forward = self.look(&early, observer);
                self.unsent = early.slice(..forward);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads one chunk and offers it to the target. Ready unless the source has nothing to read now.
    fn poll_chunk<S, T>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        target: &mut T,
        observer: &mut Observer<'_>,
    ) -> Poll<()>
    where
        S: AsyncRead + Unpin,
        T: AsyncWrite + Unpin,
    {
        scratch::with(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            match Pin::new(source).poll_read(cx, &mut buffer) {
                Poll::Pending => {
                    if let Poll::Ready(Err(error)) = Pin::new(target).poll_flush(cx) {
                        self.target_failed(error);
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => {
                    self.reading = false;
                    self.source_ended = true;
                    self.failure
                        .get_or_insert(RelayError::Read(self.from, error));
                    return Poll::Ready(());
                }
                Poll::Ready(Ok(())) => {}
            }
            let chunk = buffer.filled();
            if chunk.is_empty() {
                self.reading = false;
                self.source_ended = true;
                return Poll::Ready(());
            }
            self.last_read = Instant::now();
            self.last_moved = self.last_read;
            if self.discarding {
                return Poll::Ready(());
            }
            let forward = self.look(chunk, observer);
            let chunk = chunk.get(..forward).unwrap_or_default();
            match Pin::new(target).poll_write(cx, chunk) {
                Poll::Ready(Ok(taken)) => self.unsent = keep(chunk.get(taken..)),
                Poll::Ready(Err(error)) => self.target_failed(error),
                Poll::Pending => self.unsent = keep(Some(chunk)),
            }
            Poll::Ready(())
        })
    }

    /// Writes what is left of earlier chunks. Ready when nothing is left.
    fn poll_unsent<T: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut T,
    ) -> Poll<()> {
        if self.unsent.is_empty() {
            return Poll::Ready(());
        }
        while !self.unsent.is_empty() {
            match ready!(Pin::new(&mut *target).poll_write(cx, &self.unsent)) {
                Ok(0) => self.target_failed(io::ErrorKind::WriteZero.into()),
                Ok(taken) => {
                    let _ = self.unsent.split_to(taken);
                    self.last_moved = Instant::now();
                }
                Err(error) => self.target_failed(error),
            }
        }
        // Also frees the allocation that the last slice of it keeps.
        self.unsent = Bytes::new();
        self.last_read = Instant::now();
        Poll::Ready(())
    }

    fn target_failed(&mut self, error: io::Error) {
        self.discarding = true;
        self.unsent = Bytes::new();
        self.early = Bytes::new();
        self.failure
            .get_or_insert(RelayError::Write(self.from.other(), error));
    }

    /// Tells the target that nothing more comes. Ready when it is told.
    fn poll_end<T: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut T,
    ) -> Poll<()> {
        if self.end == End::Hold {
            // What was written last must not wait for the end in the buffers of TLS.
            if let Err(error) = ready!(Pin::new(target).poll_flush(cx)) {
                self.target_failed(error);
            }
            return Poll::Pending;
        }
        // A peer that is gone already needs no telling.
        let _ = ready!(Pin::new(target).poll_shutdown(cx));
        Poll::Ready(())
    }

    /// Looks at the next bytes of the stream. Returns how many of them are to be forwarded.
    fn look(&mut self, chunk: &[u8], observer: &mut Observer<'_>) -> usize {
        let Observer {
            inspector,
            metrics,
            policy,
        } = observer;
        let scanned = match self.from {
            Side::Client => self
                .scanner
                .scan(chunk, |head| inspector.client_frame(head)),
            Side::Broker => self.scanner.scan(chunk, |head| {
                if let Some(named) = inspector.broker_frame(head) {
                    policy.learn_both(&named);
                }
            }),
        };
        inspector.flush();
        let forward = match scanned {
            Ok(Some(boundary)) if self.stop_at_boundary => {
                self.reading = false;
                boundary
            }
            Ok(_) => chunk.len(),
            // The peer refuses the frame itself and closes; it must see no more than the head that it refuses.
            Err(error) => {
                self.reading = false;
                let offset = error.offset;
                self.failure
                    .get_or_insert(RelayError::BadFrame(self.from, error));
                offset
            }
        };
        metrics.relayed(self.from == Side::Client, forward);
        forward
    }
}

/// Bytes that the target did not take, out of the scratch buffer.
fn keep(rest: Option<&[u8]>) -> Bytes {
    match rest {
        Some(rest) if !rest.is_empty() => Bytes::copy_from_slice(rest),
        _ => Bytes::new(),
    }
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Client => Self::Broker,
            Self::Broker => Self::Client,
        }
    }
}

/// Chunks that one direction moves before the other one, and other connections, have a turn.
const CHUNKS_PER_TURN: usize = 8;
/// How long the second side of a pair may live after the first has ended.
pub(super) const LINGER: Duration = Duration::from_secs(5);
/// How long answers to what the client sent before a drain still go through.
const ANSWERS_GRACE: Duration = Duration::from_millis(500);
/// Longest time from the beginning of a pair's drain to its end.
pub(super) const DRAIN_TIME: Duration = ANSWERS_GRACE.saturating_add(LINGER);
/// "Never" for a timer.
const FAR_FUTURE: Duration = Duration::from_secs(365 * 24 * 3600);
