//! A gateway with its HTTP service, HTTP servers in place of brokers, and raw HTTP clients, for the tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pulsegate::admin::{
    Access, AccessOptions, ReverseProxy, ReverseProxyOptions, RouteOptions, WebBrokers, routes,
};
use pulsegate::config::GatewaySettings;
use pulsegate::gateway::{Gateway, GatewayHandle};
use pulsegate::http::{HttpLimits, HttpServer, Phase, PhaseSender, Response, Router, phases};
use pulsegate::naming::ServiceUrl;
use pulsegate::telemetry::MetricRegistry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::support::within;

/// A gateway with HTTP that runs in this process until it is dropped.
pub(crate) struct WebGateway {
    pub(crate) address: SocketAddr,
    /// Of HTTPS, where the settings turn that on.
    pub(crate) tls_address: Option<SocketAddr>,
    pub(crate) registry: MetricRegistry,
    pub(crate) gateway: GatewayHandle,
    phase: PhaseSender,
    stop: CancellationToken,
    _running: TaskTracker,
}

impl WebGateway {
    pub(crate) fn in_front_of(brokers: &[&HttpBroker]) -> Self {
        Self::with(brokers, |_| ())
    }

    pub(crate) fn with(brokers: &[&HttpBroker], change: impl FnOnce(&mut GatewaySettings)) -> Self {
        Self::with_access(brokers, change, |_| ())
    }

    pub(crate) fn with_access(
        brokers: &[&HttpBroker],
        change: impl FnOnce(&mut GatewaySettings),
        change_access: impl FnOnce(&mut AccessOptions),
    ) -> Self {
        let url: ServiceUrl = "pulsar://127.0.0.1:1".parse().unwrap();
        let mut settings = GatewaySettings::for_broker(url);
        settings.bind_address = "127.0.0.1".parse().unwrap();
        settings.service_port = Some(0);
        settings.cluster_name = "test".to_owned();
        settings.advertised_address = Some("gate".to_owned());
        settings.proxy.brokers = brokers.iter().map(|b| b.url().parse().unwrap()).collect();
        change(&mut settings);
        let mut access = AccessOptions {
            max_requests: settings.proxy.max_requests,
            requests_per_second: settings.proxy.requests_per_second,
            ..AccessOptions::default()
        };
        change_access(&mut access);
        let registry = MetricRegistry::new(&settings.cluster_name);
        let (phase, phases) = phases();
        let gateway = Gateway::bind(settings.clone(), &registry, phases).unwrap();
        let handle = gateway.handle();
        let running = TaskTracker::new();
        running.spawn(gateway.run());
        let known = handle.clone();
        let options = RouteOptions {
            settings: &settings.proxy,
            access: Access::new(access, &registry).unwrap(),
            proxy: ReverseProxy::new(
                settings.proxy.clone(),
                ReverseProxyOptions {
                    brokers: WebBrokers::new(&settings.proxy, false)
                        .with_known_hosts(Arc::new(move |host| known.knows_broker_host(host))),
                    connect_timeout: Duration::from_secs(2),
                    tls: None,
                    server_name: settings.advertised_address.clone(),
                },
            ),
            stats: settings.http.metrics_enabled,
            registry: registry.clone(),
            gateway: handle.clone(),
        };
        let router = routes(Router::new(), options).route("/livez", || Response::text(200, "ok\n"));
        let limits = HttpLimits {
            max_header_size: settings.http.max_request_header_size,
            idle_timeout: settings.http.idle_timeout,
            header_timeout: settings.http.idle_timeout,
            ..HttpLimits::default()
        };
        let any = "127.0.0.1:0".parse().unwrap();
        let mut server = HttpServer::bind(any, limits).unwrap();
        if let Some(tls) = handle.web_tls() {
            server = server.and_bind(any, Some(tls)).unwrap();
        }
        let address = server.local_addr().unwrap();
        let tls_address = server.tls_local_addr();
        let stop = CancellationToken::new();
        running.spawn(server.serve(router, stop.clone()));
        Self {
            address,
            tls_address,
            registry,
            gateway: handle,
            phase,
            stop,
            _running: running,
        }
    }

    /// Sends a request on a connection of its own, and returns the whole answer.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        within(stream.write_all(request.as_ref())).await.unwrap();
        let mut bytes = Vec::new();
        within(stream.read_to_end(&mut bytes)).await.unwrap();
        Reply::parse(&bytes)
    }

    /// A request without a body.
    pub(crate) async fn call(&self, method: &str, path: &str, headers: &str) -> Reply {
        self.ask(request(method, path, headers, "")).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, "").await
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

impl Drop for WebGateway {
    fn drop(&mut self) {
        self.stop.cancel();
        self.phase.advance(Phase::Stopped);
    }
}

/// The text of a request; `headers` are whole lines.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = if body.is_empty() {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", body.len())
    };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n{headers}{length}\r\n{body}"
    )
}

/// An answer as a client gets it.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    /// Chunks put together.
    pub(crate) body: String,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.to_ascii_lowercase();
        let body = if head.contains("transfer-encoding: chunked") {
            unchunked(body)
        } else {
            body.to_owned()
        };
        Self { status, head, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        out.push_str(rest.get(..size).unwrap_or(rest));
        body = rest.get(size + 2..).unwrap_or("");
    }
    out
}

/// A request as a broker got it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    /// As it came.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

/// What a broker does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Answers so, byte for byte.
    Say(String),
    /// Says nothing.
    Hang,
    /// Ends the connection.
    Close,
}

/// 200 with this body.
pub(crate) fn ok(body: &str) -> Act {
    Act::Say(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ))
}

pub(crate) fn redirect(status: u16, location: &str) -> Act {
    Act::Say(format!(
        "HTTP/1.1 {status} Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    ))
}

type Script = Arc<dyn Fn(&Seen) -> Act + Send + Sync>;

/// When a broker answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// After the body.
    WholeRequest,
    /// After the head; the body is not read, and the connection ends.
    Head,
    /// After the body, which it asks for by 100 where the client waits for that.
    Continued,
}

/// An HTTP server in place of a broker's.
pub(crate) struct HttpBroker {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    stop: CancellationToken,
}

impl Drop for HttpBroker {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl HttpBroker {
    pub(crate) async fn start(script: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        Self::start_with(When::WholeRequest, script).await
    }

    pub(crate) async fn start_with(
        when: When,
        script: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let connections = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let script: Script = Arc::new(script);
        let tasks = TaskTracker::new();
        let accepting = {
            let (seen, connections, stop) = (seen.clone(), connections.clone(), stop.clone());
            let inner = tasks.clone();
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    connections.fetch_add(1, Ordering::SeqCst);
                    let serving = serve(stream, when, script.clone(), seen.clone());
                    let stop = stop.clone();
                    inner.spawn(async move { stop.run_until_cancelled(serving).await });
                }
            }
        };
        let ended = stop.clone();
        tasks.spawn(async move { ended.run_until_cancelled(accepting).await });
        Self {
            address,
            seen,
            connections,
            stop,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// The only request so far.
    pub(crate) fn seen_one(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve(mut stream: TcpStream, when: When, script: Script, seen: Arc<Mutex<Vec<Seen>>>) {
    let mut bytes = Vec::new();
    loop {
        let Some(end) = read_until(&mut stream, &mut bytes, b"\r\n\r\n").await else {
            return;
        };
        let head = String::from_utf8(bytes.drain(..end).collect()).unwrap();
        let mut line = head.split(' ');
        let (method, path) = (line.next().unwrap(), line.next().unwrap());
        let mut request = Seen {
            method: method.to_owned(),
            path: path.to_owned(),
            body: Vec::new(),
            head: head.clone(),
        };
        if when == When::Continued && header(&head, "expect").is_some() {
            stream
                .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                .await
                .unwrap();
        }
        if when != When::Head {
            let Some(body) = read_body(&mut stream, &mut bytes, &head).await else {
                return;
            };
            request.body = body;
        }
        let act = script(&request);
        seen.lock().push(request);
        match act {
            Act::Say(text) => {
                if stream.write_all(text.as_bytes()).await.is_err() || when == When::Head {
                    return;
                }
            }
            Act::Hang => std::future::pending().await,
            Act::Close => return,
        }
    }
}

async fn read_body(stream: &mut TcpStream, bytes: &mut Vec<u8>, head: &str) -> Option<Vec<u8>> {
    if header(head, "transfer-encoding").is_some() {
        let mut body = Vec::new();
        loop {
            let end = read_until(stream, bytes, b"\r\n").await?;
            let line = String::from_utf8(bytes.drain(..end).collect()).unwrap();
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            fill(stream, bytes, size + 2).await?;
            body.extend(bytes.drain(..size));
            bytes.drain(..2);
            if size == 0 {
                return Some(body);
            }
        }
    }
    let length = header(head, "content-length").map_or(0, |length| length.parse().unwrap());
    fill(stream, bytes, length).await?;
    Some(bytes.drain(..length).collect())
}

async fn read_until(stream: &mut TcpStream, bytes: &mut Vec<u8>, mark: &[u8]) -> Option<usize> {
    loop {
        let found = bytes.windows(mark.len()).position(|window| window == mark);
        if let Some(at) = found {
            return Some(at + mark.len());
        }
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

async fn fill(stream: &mut TcpStream, bytes: &mut Vec<u8>, length: usize) -> Option<()> {
    while bytes.len() < length {
        if stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(())
}
