//! The server: accepts connections within limits and serves requests by a [`Router`].

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::router::{Response, Router};
use crate::net::{Admission, Listener, ListenerLimits, ServerStream, TlsServerFiles};

/// Bounds on what HTTP clients can make the server hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at a time; one more is closed at once. `None` is no bound.
    pub max_connections: Option<usize>,
    /// A request head must be complete within this time of its connection's last answer, or of its begin.
    pub header_timeout: Duration,
    /// Largest request head in bytes; a larger one is answered 431. Values under 8192 count as 8192.
    pub max_header_size: usize,
    /// A connection on which no byte moves for so long is closed.
    pub idle_timeout: Duration,
    /// At the end, how long requests in progress may take to finish.
    pub shutdown_grace: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_connections: Some(2048),
            header_timeout: Duration::from_secs(30),
            max_header_size: 8192,
            idle_timeout: Duration::from_secs(30),
            shutdown_grace: Duration::from_secs(2),
        }
    }
}

/// An HTTP server that is bound to one or two ports.
#[derive(Debug)]
pub struct HttpServer {
    ports: Vec<Port>,
    limits: HttpLimits,
}

#[derive(Debug)]
struct Port {
    listener: Listener,
    local_addr: SocketAddr,
    tls: Option<Arc<TlsServerFiles>>,
}

/// Who sent a request; an extension of every request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The other end of the connection.
    pub address: SocketAddr,
    /// The certificate (DER) that the client presented, as [`ServerStream::peer_certificate`].
    pub certificate: Option<Bytes>,
}

impl HttpServer {
    /// Binds `addr`; port 0 picks a free one.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn bind(addr: SocketAddr, limits: HttpLimits) -> io::Result<Self> {
        Self::unbound(limits).and_bind(addr, None)
    }

    /// A server that listens nowhere yet.
    #[must_use]
    pub fn unbound(limits: HttpLimits) -> Self {
        Self {
            ports: Vec::new(),
            limits,
        }
    }

    /// Binds a further address, with `tls` for HTTPS. The limit on connections is one for all addresses.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn and_bind(
        mut self,
        addr: SocketAddr,
        tls: Option<Arc<TlsServerFiles>>,
    ) -> io::Result<Self> {
        let listener = match self.ports.first() {
            Some(port) => Listener::bind_beside(addr, &port.listener)?,
            None => {
                let bounds = ListenerLimits {
                    max_connections: self.limits.max_connections,
                    max_per_ip: None,
                };
                Listener::bind(addr, bounds)?
            }
        };
        let local_addr = listener.local_addr()?;
        self.ports.push(Port {
            listener,
            local_addr,
            tls,
        });
        Ok(self)
    }

    /// The address without TLS that is bound, with its real port.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.bound(false)
    }

    /// The address with TLS that is bound, with its real port.
    #[must_use]
    pub fn tls_local_addr(&self) -> Option<SocketAddr> {
        self.bound(true)
    }

    fn bound(&self, tls: bool) -> Option<SocketAddr> {
        let port = self.ports.iter().find(|port| port.tls.is_some() == tls);
        port.map(|port| port.local_addr)
    }

    /// Serves until `stop` is cancelled; then accepts no more, lets requests in progress finish within the grace, and
    /// returns when every connection is closed. Not cancel-safe: dropped, it leaves connections running on their own.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let serving = Serving {
            router: Arc::new(router),
            limits: self.limits,
            connections: TaskTracker::new(),
            stop,
            abort: CancellationToken::new(),
        };
        let accepting = TaskTracker::new();
        for port in self.ports {
            accepting.spawn(serving.clone().accept(port));
        }
        accepting.close();
        accepting.wait().await;
        let connections = &serving.connections;
        connections.close();
        if tokio::time::timeout(serving.limits.shutdown_grace, connections.wait())
            .await
            .is_err()
        {
            serving.abort.cancel();
            connections.wait().await;
        }
    }
}

/// What all connections of a server share.
#[derive(Clone)]
struct Serving {
    router: Arc<Router>,
    limits: HttpLimits,
    connections: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Serving {
    /// Starts the connections of one port until the server stops.
    async fn accept(self, port: Port) {
        loop {
            let admission = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                admission = port.listener.accept() => admission,
            };
            let Admission::Accepted {
                stream,
                peer,
                permit,
            } = admission
            else {
                tracing::debug!("HTTP connection refused: too many are open");
                continue;
            };
            let (serving, tls) = (self.clone(), port.tls.clone());
            self.connections.spawn(async move {
                let _permit = permit;
                let connection = async {
                    if let Some(stream) = serving.secure(stream, tls).await {
                        serving.clone().serve(stream, peer).await;
                    }
                };
                let _ = serving.abort.run_until_cancelled(connection).await;
            });
        }
    }

    /// The TLS handshake, where the port has TLS.
    async fn secure(
        &self,
        stream: TcpStream,
        tls: Option<Arc<TlsServerFiles>>,
    ) -> Option<ServerStream> {
        let Some(tls) = tls else {
            return Some(ServerStream::Plain(stream));
        };
        let server = tls.server();
        let accepted = tokio::time::timeout(self.limits.header_timeout, server.accept(stream));
        match self.stop.run_until_cancelled(accepted).await? {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err((error, _))) => tracing::debug!(%error, "HTTPS connection without TLS"),
            Err(_) => tracing::debug!("an HTTPS client took too long for its TLS handshake"),
        }
        None
    }

    async fn serve(self, stream: ServerStream, address: SocketAddr) {
        let peer = Peer {
            address,
            certificate: stream.peer_certificate().map(Bytes::copy_from_slice),
        };
        let router = self.router;
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            let answer = answer(&request, &router);
            async move { Ok::<_, Infallible>(answer) }
        });
        let io = TokioIo::new(IdleStream::new(stream, self.limits.idle_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_buf_size(self.limits.max_header_size.max(MIN_HEADER_SIZE))
            .serve_connection(io, service);
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "HTTP connection ended");
        }
    }
}

fn answer(request: &Request<Incoming>, router: &Router) -> hyper::Response<Full<Bytes>> {
    let Some(handler) = router.find(request.uri().path()) else {
        return to_hyper(Response::text(404, "not found\n"));
    };
    if request.method() == Method::GET || request.method() == Method::HEAD {
        return to_hyper(handler());
    }
    let mut refused = to_hyper(Response::text(405, "only GET and HEAD are served here\n"));
    refused
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    refused
}

fn to_hyper(response: Response) -> hyper::Response<Full<Bytes>> {
    let mut out = hyper::Response::new(Full::new(Bytes::from(response.body)));
    *out.status_mut() =
        StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    out.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static(response.content_type),
    );
    out
}

/// A stream that fails with `TimedOut` when neither direction moves for a while, so that neither a silent client nor one
/// that does not read its answer holds a connection for ever.
struct IdleStream<S> {
    stream: S,
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl<S> IdleStream<S> {
    fn new(stream: S, timeout: Duration) -> Self {
        Self {
            stream,
            timeout,
            deadline: Box::pin(tokio::time::sleep(timeout)),
        }
    }

    /// Passes `polled` on; pending beyond the deadline becomes an error.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            if let Some(next) = Instant::now().checked_add(self.timeout) {
                self.deadline.as_mut().reset(next);
            }
            return polled;
        }
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.watch(cx, polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Smallest buffer that hyper works with.
const MIN_HEADER_SIZE: usize = 8192;
