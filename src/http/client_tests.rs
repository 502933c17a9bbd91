//! The client against real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::*;
use crate::naming::{WebOrigin, WebUrl};
use crate::net::{TlsClient, TlsOptions};
use crate::testing::certificates::Authority;
use crate::testing::tls::acceptor;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Answers each request that has no body by `answer`.
async fn answer_all<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, answer: &[u8]) {
    let mut seen = Vec::new();
    while stream.read_buf(&mut seen).await.is_ok_and(|read| read > 0) {
        while let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
            seen.drain(..end + 4);
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
    }
}

struct Server {
    origin: WebOrigin,
    connections: Arc<AtomicUsize>,
    _tasks: TaskTracker,
}

async fn serve(answer: &'static [u8]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let url: WebUrl = format!("http://{address}").parse().expect("a URL");
    let connections = Arc::new(AtomicUsize::new(0));
    let tasks = TaskTracker::new();
    let (counted, inner) = (Arc::clone(&connections), tasks.clone());
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            inner.spawn(answer_all(stream, answer));
        }
    });
    Server {
        origin: url.origin,
        connections,
        _tasks: tasks,
    }
}

fn get() -> Request {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = "/x".parse().expect("a path");
    request
}

fn client() -> HttpClient {
    HttpClient::new(HttpClientOptions {
        connect_timeout: Duration::from_secs(5),
        ..HttpClientOptions::default()
    })
}

async fn body(answer: Answer) -> String {
    let bytes = answer.into_body().read(1000).await.expect("a short body");
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let server = serve(ANSWER).await;
    let client = client();
    for _ in 0..5 {
        let answer = client.send(&server.origin, get()).await.expect("an answer");
        assert_eq!(body(answer).await, "ok");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    assert_eq!(client.connections(), 1);
}

#[tokio::test]
async fn an_answer_that_is_not_read_ends_its_connection() {
    let server = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok").await;
    let client = client();
    for _ in 0..2 {
        let answer = client.send(&server.origin, get()).await.expect("an answer");
        drop(answer);
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
    while client.connections() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn connections_have_a_bound() {
    let server = serve(ANSWER).await;
    let client = HttpClient::new(HttpClientOptions {
        connect_timeout: Duration::from_millis(200),
        connections_max: 1,
        ..HttpClientOptions::default()
    });
    let first = client.send(&server.origin, get()).await.expect("an answer");
    let second = client.send(&server.origin, get()).await;
    let error = second.expect_err("the only connection is in use");
    assert!(matches!(error, HttpClientError::TooManyConnections) && error.is_unsent());
    assert_eq!(body(first).await, "ok");
    // One that is kept for another host gives way.
    let other = serve(ANSWER).await;
    let answer = client.send(&other.origin, get()).await.expect("an answer");
    assert_eq!(body(answer).await, "ok");
}

#[tokio::test]
async fn addresses_that_are_not_allowed_are_not_connected_to() {
    let server = serve(ANSWER).await;
    let client = HttpClient::new(HttpClientOptions {
        allowed: Some(Arc::new(|_, address| !address.is_loopback())),
        ..HttpClientOptions::default()
    });
    let error = client
        .send(&server.origin, get())
        .await
        .expect_err("denied");
    assert!(matches!(error, HttpClientError::AddressDenied));
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn heads_of_answers_have_a_bound() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let url: WebUrl = format!("http://{address}").parse().expect("a URL");
    let large = async {
        let (stream, _) = listener.accept().await.expect("a connection");
        let head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(20_000));
        answer_all(stream, head.as_bytes()).await;
    };
    let client = client();
    let (answer, ()) = tokio::join!(client.send(&url.origin, get()), large);
    let error = answer.expect_err("too large");
    assert!(error.is_head_too_large() && !error.is_unsent(), "{error}");
}

#[tokio::test]
async fn tls_is_spoken_where_the_url_says_so() {
    let authority = Authority::new("authority");
    let certificate = authority.sign(&["localhost"]);
    let tls = acceptor(&certificate, &[], None);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    let tasks = TaskTracker::new();
    let inner = tasks.clone();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            inner.spawn(async move {
                if let Ok(stream) = tls.accept(stream).await {
                    answer_all(stream, ANSWER).await;
                }
            });
        }
    });
    let url: WebUrl = format!("https://localhost:{port}").parse().expect("a URL");
    let with = |trusted: Option<String>| {
        let made = TlsClient::new(&TlsOptions {
            trusted: trusted.map(String::into_bytes),
            ..TlsOptions::default()
        });
        let made = Arc::new(made.expect("a client"));
        HttpClient::new(HttpClientOptions {
            tls: Some(Arc::new(move || {
                Box::pin(std::future::ready(Ok(Arc::clone(&made))))
            })),
            ..HttpClientOptions::default()
        })
    };
    let answer = with(Some(authority.pem())).send(&url.origin, get()).await;
    assert_eq!(body(answer.expect("an answer")).await, "ok");
    let stranger = with(Some(Authority::new("other").pem()));
    let error = stranger
        .send(&url.origin, get())
        .await
        .expect_err("a stranger");
    assert!(matches!(error, HttpClientError::Tls(_)) && error.is_unsent());
    let without = client().send(&url.origin, get()).await;
    let error = without.expect_err("no TLS settings");
    assert!(matches!(error, HttpClientError::TlsSetup(_)));
}
