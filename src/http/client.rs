//! A client for HTTP/1.1, plain or over TLS, that keeps connections for further requests.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body::{Body, BodyError};
use super::idle::{IdleControl, IdleStream};
use crate::naming::WebOrigin;
use crate::net::{Stream, TlsClient, TlsError, socket};

/// Gives the TLS client to use now, so that certificates can be replaced while we run; the error is for the log. The time that it takes
/// is part of that for connecting.
pub type TlsProvider = Arc<dyn Fn() -> TlsProviding + Send + Sync>;
/// What a [`TlsProvider`] gives.
pub type TlsProviding =
    Pin<Box<dyn Future<Output = Result<Arc<TlsClient>, BodyError>> + Send + 'static>>;
/// Judges an address that a host name resolved to; the address that is judged is the one that is connected to.
pub type AddressCheck = Arc<dyn Fn(&WebOrigin, IpAddr) -> bool + Send + Sync>;

/// Bounds and ways of an [`HttpClient`].
#[derive(Clone)]
pub struct HttpClientOptions {
    /// For resolving, connecting and TLS together, and for waiting until there may be one more connection.
    pub connect_timeout: Duration,
    /// A connection on which nothing moves for so long is closed, but for the wait for the head of an answer: the caller bounds
    /// that.
    pub idle_timeout: Duration,
    /// Connections at a time, to all hosts together.
    pub connections_max: usize,
    /// Of these, so many may be kept for further requests to one host.
    pub kept_per_host_max: usize,
    /// Largest head of an answer in bytes; under 8192 it counts as 8192.
    pub head_max: usize,
    /// For `https`; `None`: such requests are refused.
    pub tls: Option<TlsProvider>,
    /// `None` allows all.
    pub allowed: Option<AddressCheck>,
}

impl Default for HttpClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            connections_max: 1024,
            kept_per_host_max: 32,
            head_max: 8192,
            tls: None,
            allowed: None,
        }
    }
}

impl fmt::Debug for HttpClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClientOptions")
            .field("connect_timeout", &self.connect_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("connections_max", &self.connections_max)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    /// No such host, connection refused and so on.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// Connecting took too long.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// None of the host's addresses may be connected to.
    #[error("the host has no address that may be connected to")]
    AddressDenied,
    /// There are as many connections as there may be, and none became free in time.
    #[error("too many connections")]
    TooManyConnections,
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// TLS cannot be set up on our side.
    #[error("TLS is not set up: {0}")]
    TlsSetup(BodyError),
    /// The connection ended before the request was sent.
    #[error("the connection ended: {0}")]
    Unsent(#[source] hyper::Error),
    /// The exchange failed when some of the request may have been sent.
    #[error("{}", chain(.0))]
    Exchange(#[source] hyper::Error),
}

impl HttpClientError {
    /// Whether nobody can have seen anything of the request.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        !matches!(self, Self::Exchange(_))
    }

    /// Whether the answer's head was larger than is taken.
    #[must_use]
    pub fn is_head_too_large(&self) -> bool {
        matches!(self, Self::Exchange(error) if error.is_parse_too_large())
    }
}

/// The error with its causes: hyper's own texts name only the place.
fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The client. A cheap handle: clones share the connections, which end with the last of them.
#[derive(Clone, Debug)]
pub struct HttpClient {
    shared: Arc<Shared>,
}

struct Shared {
    options: HttpClientOptions,
    kept: Mutex<HashMap<WebOrigin, Vec<Kept>>>,
    /// A permit for each connection.
    places: Arc<Semaphore>,
    connections: TaskTracker,
    ended: CancellationToken,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// A connection that waits for a request.
struct Kept {
    sender: SendRequest<SentBody>,
    control: IdleControl,
}

impl HttpClient {
    /// A client without connections.
    #[must_use]
    pub fn new(options: HttpClientOptions) -> Self {
        let places = options.connections_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            shared: Arc::new(Shared {
                options,
                kept: Mutex::default(),
                places: Arc::new(Semaphore::new(places)),
                connections: TaskTracker::new(),
                ended: CancellationToken::new(),
            }),
        }
    }

    /// Connections that are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.len()
    }

    /// Sends a request whose target is a path, and returns the answer when its head is there; its body is still to be read. A
    /// kept connection that turns out to be closed is replaced by a new one. Waits for the head as long as the caller does.
    /// Cancel-safe: dropping it closes the connection. The answer's body dropped before its end closes the connection, too.
    ///
    /// # Errors
    /// [`HttpClientError`]; when [unsent](HttpClientError::is_unsent), the body has not been asked for anything.
    pub async fn send(
        &self,
        origin: &WebOrigin,
        request: hyper::Request<Body>,
    ) -> Result<hyper::Response<Body>, HttpClientError> {
        let exchange = Arc::new(Exchange::default());
        let mut request = request.map(|body| SentBody::new(body, Arc::clone(&exchange)));
        while let Some(kept) = self.shared.take(origin).await {
            match self.exchange(origin, kept, request, &exchange).await {
                Ok(answer) => return Ok(answer),
                Err((_, Some(unsent))) => request = *unsent,
                Err((error, None)) => return Err(HttpClientError::Exchange(error)),
            }
        }
        let fresh = self.shared.connect(origin).await?;
        self.exchange(origin, fresh, request, &exchange)
            .await
            .map_err(|(error, unsent)| match unsent {
                Some(_) => HttpClientError::Unsent(error),
                None => HttpClientError::Exchange(error),
            })
    }

    async fn exchange(
        &self,
        origin: &WebOrigin,
        mut connection: Kept,
        request: hyper::Request<SentBody>,
        exchange: &Arc<Exchange>,
    ) -> Result<hyper::Response<Body>, (hyper::Error, Option<Box<hyper::Request<SentBody>>>)> {
        exchange.begin(&connection.control, request.body().is_end_stream());
        let sent = connection.sender.try_send_request(request);
        match sent.await {
            Ok(answer) => {
                exchange.answered();
                Ok(answer.map(|body| {
                    Body::new(ReceivedBody {
                        body,
                        kept: Some(connection),
                        origin: origin.clone(),
                        exchange: Arc::clone(exchange),
                        client: Arc::downgrade(&self.shared),
                    })
                }))
            }
            Err(mut error) => {
                let unsent = error.take_message().map(Box::new);
                Err((error.into_error(), unsent))
            }
        }
    }
}

impl Shared {
    /// A kept connection that is still good.
    async fn take(&self, origin: &WebOrigin) -> Option<Kept> {
        loop {
            let mut found = {
                let mut kept = self.kept.lock();
                let list = kept.get_mut(origin)?;
                let found = list.pop();
                if list.is_empty() {
                    kept.remove(origin);
                }
                found?
            };
            // What ended the last exchange may still be on its way through the connection's task.
            if let Ok(Ok(())) = timeout(READY_TIME, found.sender.ready()).await {
                return Some(found);
            }
        }
    }

    fn keep(&self, origin: WebOrigin, connection: Kept) {
        if connection.sender.is_closed() {
            return;
        }
        connection.control.resume();
        let mut kept = self.kept.lock();
        // Hosts that are not asked any more would keep their closed connections.
        kept.retain(|_, list| {
            list.retain(|kept| !kept.sender.is_closed());
            !list.is_empty()
        });
        let list = kept.entry(origin).or_default();
        if list.len() < self.options.kept_per_host_max {
            list.push(connection);
        }
    }

    async fn connect(&self, origin: &WebOrigin) -> Result<Kept, HttpClientError> {
        let limit = self.options.connect_timeout;
        let deadline = Instant::now() + limit;
        let place = self.place(deadline).await?;
        let tls = match (origin.tls, &self.options.tls) {
            (false, _) => None,
            (true, Some(provider)) => {
                let provided = timeout_at(deadline, provider()).await;
                let provided = provided.map_err(|_| HttpClientError::ConnectTimeout(limit))?;
                Some(provided.map_err(HttpClientError::TlsSetup)?)
            }
            (true, None) => {
                return Err(HttpClientError::TlsSetup(
                    "there are no TLS settings".into(),
                ));
            }
        };
        let stream = self.dial(origin, deadline).await?;
        let stream = match tls {
            None => Stream::Plain(stream),
            Some(tls) => {
                let secured = timeout_at(deadline, tls.connect(stream, &origin.host)).await;
                secured.map_err(|_| HttpClientError::ConnectTimeout(limit))??
            }
        };
        let control = IdleControl::default();
        let stream = IdleStream::new(stream, self.options.idle_timeout, control.clone());
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(self.options.head_max.max(HEAD_MIN))
            .handshake(TokioIo::new(stream))
            .await
            .map_err(HttpClientError::Unsent)?;
        let ended = self.ended.clone();
        self.connections.spawn(async move {
            let _place: OwnedSemaphorePermit = place;
            if let Some(Err(error)) = ended.run_until_cancelled(connection).await {
                tracing::debug!(%error, "HTTP connection to a server ended");
            }
        });
        Ok(Kept { sender, control })
    }

    /// A place for one more connection. One that is kept for another host gives way.
    async fn place(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, HttpClientError> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(place);
        }
        let oldest = {
            let mut kept = self.kept.lock();
            let host = kept.keys().next().cloned();
            host.and_then(|host| kept.remove(&host))
        };
        drop(oldest);
        match timeout_at(deadline, Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(HttpClientError::TooManyConnections),
        }
    }

    /// Tries the addresses of a host in turn, each for an equal share of the time that is left.
    async fn dial(
        &self,
        origin: &WebOrigin,
        deadline: Instant,
    ) -> Result<TcpStream, HttpClientError> {
        let limit = self.options.connect_timeout;
        let resolved: Vec<SocketAddr> =
            timeout_at(deadline, lookup_host((origin.host.as_str(), origin.port)))
                .await
                .map_err(|_| HttpClientError::ConnectTimeout(limit))?
                .map_err(HttpClientError::Connect)?
                .take(ADDRESSES_MAX)
                .collect();
        let mut last = HttpClientError::Connect(io::ErrorKind::AddrNotAvailable.into());
        for (tried, target) in resolved.iter().enumerate() {
            let allowed = self.options.allowed.as_ref();
            if allowed.is_some_and(|allowed| !allowed(origin, target.ip())) {
                last = HttpClientError::AddressDenied;
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(resolved.len() - tried).unwrap_or(1);
            match timeout(share, TcpStream::connect(target)).await {
                Ok(Ok(stream)) => {
                    socket::prepare(&stream).map_err(HttpClientError::Connect)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => last = HttpClientError::Connect(error),
                Err(_) => last = HttpClientError::ConnectTimeout(share),
            }
        }
        Err(last)
    }
}

/// How far a request and its answer are.
#[derive(Default)]
struct Exchange {
    sent: AtomicBool,
    answered: AtomicBool,
    control: Mutex<Option<IdleControl>>,
}

impl Exchange {
    /// The request goes out; `whole` when it has no body.
    fn begin(&self, control: &IdleControl, whole: bool) {
        *self.control.lock() = Some(control.clone());
        if whole {
            self.sent();
        }
    }

    /// All of the request is out: until the answer begins, nothing has to move.
    fn sent(&self) {
        self.sent.store(true, Ordering::Release);
        if !self.answered.load(Ordering::Acquire)
            && let Some(control) = &*self.control.lock()
        {
            control.pause();
        }
    }

    fn answered(&self) {
        self.answered.store(true, Ordering::Release);
        if let Some(control) = &*self.control.lock() {
            control.resume();
        }
    }

    fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }
}

/// The body of a request, which tells when all of it was taken.
struct SentBody {
    body: Body,
    /// Bytes to come, where that is known: then nobody asks for the end.
    left: Option<u64>,
    exchange: Arc<Exchange>,
}

impl SentBody {
    fn new(body: Body, exchange: Arc<Exchange>) -> Self {
        Self {
            left: body.size_hint().exact(),
            body,
            exchange,
        }
    }
}

impl HttpBody for SentBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let ended = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                let length = u64::try_from(length).unwrap_or(u64::MAX);
                self.left = self.left.map(|left| left.saturating_sub(length));
                self.left == Some(0) || self.body.is_end_stream()
            }
            _ => false,
        };
        if ended {
            self.exchange.sent();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. At its end the connection is kept, if all of the request was sent; else it ends.
struct ReceivedBody {
    body: Incoming,
    kept: Option<Kept>,
    origin: WebOrigin,
    exchange: Arc<Exchange>,
    client: Weak<Shared>,
}

impl HttpBody for ReceivedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => self.finish(),
            Poll::Ready(Some(Err(_))) => self.kept = None,
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl ReceivedBody {
    fn finish(&mut self) {
        if let Some(kept) = self.kept.take()
            && self.exchange.is_sent()
            && let Some(client) = self.client.upgrade()
        {
            client.keep(self.origin.clone(), kept);
        }
    }
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.finish();
        }
    }
}

/// How long a connection may need to be ready for the next request.
const READY_TIME: Duration = Duration::from_millis(100);
/// Addresses of one host name that are tried.
const ADDRESSES_MAX: usize = 16;
/// Smallest buffer that hyper works with.
const HEAD_MIN: usize = 8192;
