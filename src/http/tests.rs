//! The server over real sockets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::config::TlsParameters;
use crate::net::{ClientRules, TlsClient, TlsOptions, TlsServerFiles, TlsServerPaths};
use crate::testing::certificates::Authority;

const BOUND: Duration = Duration::from_secs(20);

struct Running {
    addr: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(limits: HttpLimits) -> Self {
        let router = Router::new()
            .route("/livez", || Response::text(200, "ok\n"))
            .route("/readyz", || Response::text(503, "draining\n"))
            .route("/large", || {
                Response::text(200, "x".repeat(64 * 1024 * 1024))
            });
        let addr = "127.0.0.1:0".parse().expect("address");
        let server = HttpServer::bind(addr, limits).expect("bind");
        let (addr, stop) = (
            server.local_addr().expect("bound"),
            CancellationToken::new(),
        );
        let tracker = tokio_util::task::TaskTracker::new();
        let task = tracker.spawn(server.serve(router, stop.clone()));
        Self { addr, stop, task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.expect("connect")
    }

    async fn stopped(self) {
        self.stop.cancel();
        tokio::time::timeout(BOUND, self.task)
            .await
            .expect("ends")
            .expect("no panic");
    }
}

/// Sends `request` and reads until the server closes.
async fn exchange(server: &Running, request: &str) -> String {
    let mut stream = server.connect().await;
    stream.write_all(request.as_bytes()).await.expect("write");
    read_to_end(&mut stream).await
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(BOUND, stream.read_to_end(&mut answer))
        .await
        .expect("server closes in time");
    // A reset after the answer is a close too.
    drop(read);
    String::from_utf8(answer).expect("text")
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn answers_by_method_and_path() {
    let server = Running::start(HttpLimits::default()).await;
    let cases = [
        ("GET", "/livez", "200 OK", "ok\n"),
        ("GET", "/livez?x=1", "200 OK", "ok\n"),
        ("HEAD", "/livez", "200 OK", ""),
        ("GET", "/readyz", "503 Service Unavailable", "draining\n"),
        ("GET", "/livez/", "404 Not Found", "not found\n"),
        ("GET", "/../livez", "404 Not Found", "not found\n"),
        (
            "POST",
            "/livez",
            "405 Method Not Allowed",
            "only GET and HEAD are served here\n",
        ),
        ("DELETE", "/nothing", "404 Not Found", "not found\n"),
    ];
    for (method, path, status, body) in cases {
        let answer = exchange(&server, &request(method, path)).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{method} {path}: {answer}"
        );
        let (head, found) = answer.split_once("\r\n\r\n").expect("head");
        assert_eq!(found, body, "{method} {path}");
        assert!(
            head.contains("content-type: text/plain; charset=utf-8"),
            "{head}"
        );
        assert_eq!(
            head.contains("allow: GET, HEAD"),
            status.starts_with("405"),
            "{head}"
        );
    }
    server.stopped().await;
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let server = Running::start(HttpLimits::default()).await;
    let mut stream = server.connect().await;
    let mut kept = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3);
    kept.push_str(&request("GET", "/livez"));
    stream.write_all(kept.as_bytes()).await.expect("write");
    let answer = read_to_end(&mut stream).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 4);
    server.stopped().await;
}

#[tokio::test]
async fn malformed_and_oversized_heads_are_refused() {
    let server = Running::start(HttpLimits::default()).await;
    assert!(
        exchange(&server, "garbage\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 400 ")
    );
    let long = format!(
        "GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n",
        "a".repeat(100_000)
    );
    let answer = exchange(&server, &long).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
        "{answer}"
    );
    server.stopped().await;
}

#[tokio::test]
async fn silent_and_slow_clients_are_closed() {
    let limits = HttpLimits {
        header_timeout: Duration::from_millis(50),
        idle_timeout: Duration::from_millis(100),
        ..HttpLimits::default()
    };
    let server = Running::start(limits).await;
    let mut silent = server.connect().await;
    read_to_end(&mut silent).await;
    let mut partial = server.connect().await;
    partial.write_all(b"GET /livez HT").await.expect("write");
    read_to_end(&mut partial).await;
    let mut kept_alive = server.connect().await;
    kept_alive
        .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .expect("write");
    assert!(read_to_end(&mut kept_alive).await.ends_with("ok\n"));
    server.stopped().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_closed() {
    let limits = HttpLimits {
        idle_timeout: Duration::from_millis(100),
        max_connections: Some(1),
        ..HttpLimits::default()
    };
    let server = Running::start(limits).await;
    let mut stuck = server.connect().await;
    stuck
        .write_all(request("GET", "/large").as_bytes())
        .await
        .expect("write");
    // The only permit comes back when the stuck connection is given up.
    let answered = async {
        loop {
            let answer = exchange(&server, &request("GET", "/livez")).await;
            if answer.ends_with("ok\n") {
                break;
            }
        }
    };
    tokio::time::timeout(BOUND, answered)
        .await
        .expect("the permit comes back");
    drop(stuck);
    server.stopped().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once() {
    let server = Running::start(HttpLimits {
        max_connections: Some(1),
        ..HttpLimits::default()
    })
    .await;
    let mut first = server.connect().await;
    first
        .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .expect("write");
    let mut begin = [0; 15];
    first.read_exact(&mut begin).await.expect("answer");
    assert_eq!(exchange(&server, &request("GET", "/livez")).await, "");
    server.stopped().await;
}

#[tokio::test]
async fn stopping_closes_idle_connections_and_the_port() {
    let server = Running::start(HttpLimits::default()).await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .expect("write");
    let mut begin = [0; 15];
    idle.read_exact(&mut begin).await.expect("answer");
    let addr = server.addr;
    server.stopped().await;
    read_to_end(&mut idle).await;
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn stopping_cuts_requests_that_outlast_the_grace() {
    let limits = HttpLimits {
        shutdown_grace: Duration::from_millis(50),
        ..HttpLimits::default()
    };
    let server = Running::start(limits).await;
    let mut stuck = server.connect().await;
    stuck
        .write_all(request("GET", "/large").as_bytes())
        .await
        .expect("write");
    let mut begin = [0; 15];
    stuck.read_exact(&mut begin).await.expect("answer begins");
    server.stopped().await;
}

#[tokio::test]
async fn handlers_run_at_each_request() {
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let router = Router::new().route("/count", move || {
        let mut calls = counted.lock().expect("no panic while held");
        *calls += 1;
        Response::text(200, calls.to_string())
    });
    for expected in ["1", "2"] {
        assert_eq!(body_of(&router, "/count").await, expected);
    }
}

/// The body of the answer to a GET.
async fn body_of(router: &Router, path: &str) -> String {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().expect("a path");
    let host = "x".parse().expect("a value");
    request.headers_mut().insert("host", host);
    let peer = Peer {
        address: "127.0.0.1:1".parse().expect("an address"),
        local: None,
        certificate: None,
        tls: false,
    };
    let answer = router.answer(request, peer, 8192).await;
    let body = answer.into_body().read(1000).await.expect("a short body");
    String::from_utf8(body.to_vec()).expect("text")
}

#[tokio::test]
async fn the_longest_path_above_wins_and_exact_ones_before_it() {
    let text = |text: &'static str| text_handler(move || Response::text(200, text));
    let router = Router::new()
        .handle_below("/a", text("a"))
        .handle_below("/a/b", text("b"))
        .handle("/a/b/exact", text("exact"));
    for (path, expected) in [
        ("/a", "a"),
        ("/a/", "a"),
        ("/a/x/y", "a"),
        ("/a/b", "b"),
        ("/a/b/c", "b"),
        ("/a/b/exact", "exact"),
        ("/a/b/exact/", "b"),
        ("/a/bc", "a"),
        ("/ab", "not found\n"),
        ("/%61", "not found\n"),
        ("/", "not found\n"),
    ] {
        assert_eq!(body_of(&router, path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn https_and_http_are_served_beside_each_other() {
    let authority = Authority::new("ours");
    let signed = authority.sign(&["localhost"]);
    let directory = tempfile::tempdir().expect("temporary directory");
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
    std::fs::write(&certificate, signed.certificate).expect("write");
    std::fs::write(&key, signed.key).expect("write");
    let paths = TlsServerPaths {
        certificate,
        key,
        trusted: None,
        rules: ClientRules {
            require_certificate: false,
            allow_insecure: false,
        },
        parameters: TlsParameters::default(),
    };
    let tls = TlsServerFiles::open(paths, Duration::ZERO).expect("certificates");
    let addr = "127.0.0.1:0".parse().expect("address");
    let limits = HttpLimits {
        max_connections: Some(2),
        header_timeout: Duration::from_millis(300),
        ..HttpLimits::default()
    };
    let server = HttpServer::bind(addr, limits)
        .and_then(|server| server.and_bind(addr, Some(Arc::new(tls))))
        .expect("bind");
    let [http, https] = [server.local_addr(), server.tls_local_addr()].map(|a| a.expect("bound"));
    let stop = CancellationToken::new();
    let router = Router::new().route("/livez", || Response::text(200, "ok\n"));
    let tracker = tokio_util::task::TaskTracker::new();
    let task = tracker.spawn(server.serve(router, stop.clone()));
    let client = TlsClient::new(&TlsOptions {
        trusted: Some(authority.pem().into_bytes()),
        ..TlsOptions::default()
    })
    .expect("a client");

    // Two that shake no hands hold both places, and lose them.
    let mut silent = Vec::new();
    for addr in [https, https] {
        silent.push(TcpStream::connect(addr).await.expect("connect"));
    }
    for stream in &mut silent {
        assert_eq!(read_to_end(stream).await, "");
    }
    let stream = TcpStream::connect(https).await.expect("connect");
    let mut stream = client.connect(stream, "localhost").await.expect("TLS");
    let asked = request("GET", "/livez");
    stream.write_all(asked.as_bytes()).await.expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("read");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let mut stream = TcpStream::connect(http).await.expect("connect");
    stream.write_all(asked.as_bytes()).await.expect("write");
    assert!(read_to_end(&mut stream).await.ends_with("ok\n"));
    stop.cancel();
    tokio::time::timeout(BOUND, task)
        .await
        .expect("ends")
        .expect("no panic");
}
