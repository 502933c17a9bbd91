//! The server: accepts connections within limits and serves requests by a [`Router`].

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body::{AnswerBody, Body, ImpatientBody};
use super::idle::{IdleControl, IdleStream};
use super::router::{Peer, Router};
use crate::net::{Admission, Listener, ListenerLimits, ServerStream, TlsServerFiles};

/// Bounds on what HTTP clients can make the server hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at a time; one more is closed at once. `None` is no bound.
    pub max_connections: Option<usize>,
    /// A request head must be complete within this time of its connection's last answer, or of its begin.
    pub header_timeout: Duration,
    /// Largest request head in bytes; a larger one is answered 431, a request target that is larger by itself 414. Values under
    /// 8192 count as 8192.
    pub max_header_size: usize,
    /// A connection on which no byte moves for so long is closed, unless its request is being worked on; a request body of
    /// which nothing comes for so long fails.
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
        let accepted = async { tls.server().await.accept(stream).await };
        let accepted = tokio::time::timeout(self.limits.header_timeout, accepted);
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
            local: stream.socket().local_addr().ok(),
            certificate: stream.peer_certificate().map(Into::into),
            tls: matches!(stream, ServerStream::Tls(_)),
        };
        serve_connection(stream, peer, self.router, self.limits, self.stop).await;
    }
}

async fn serve_connection<S>(
    stream: S,
    peer: Peer,
    router: Arc<Router>,
    limits: HttpLimits,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let control = IdleControl::default();
    let head_max = limits.max_header_size.max(MIN_HEADER_SIZE);
    let stream = IdleStream::new(stream, limits.idle_timeout, control.clone());
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (router, peer, control) = (Arc::clone(&router), peer.clone(), control.clone());
        let patience = limits.idle_timeout;
        async move {
            // While the answer is made, the client has only its request body to send, and that has a limit of its own.
            control.pause();
            let request = request.map(|body| Body::new(ImpatientBody::new(body, patience)));
            let answer = router.answer(request, peer, head_max).await;
            control.resume();
            Ok::<_, Infallible>(answer.map(|body| AnswerBody::new(body, control)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(head_max + HEAD_EXCESS)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

/// Smallest limit of a head that is kept.
const MIN_HEADER_SIZE: usize = 8192;
/// How much more of a head is read, so that what is too large about it can be told. Beyond that hyper answers 431 itself.
const HEAD_EXCESS: usize = 8192;
