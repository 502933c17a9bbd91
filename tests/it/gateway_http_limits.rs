//! The reverse proxy between clients and brokers that are slow, large, gone or sly.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::support::within;
use super::web::{Act, HttpBroker, WebGateway, ok, request};

#[tokio::test]
async fn a_request_whose_fate_is_unknown_is_not_sent_again() {
    let broker = HttpBroker::start(|_| Act::Close).await;
    let other = HttpBroker::start(|_| Act::Close).await;
    let gateway = WebGateway::in_front_of(&[&broker, &other]);
    let reply = gateway.ask(request("POST", "/admin/x", "", "abc")).await;
    assert_eq!(reply.status, 502);
    assert_eq!(broker.seen().len() + other.seen().len(), 1);
}

#[tokio::test]
async fn a_connection_that_ended_while_it_was_kept_is_replaced() {
    let broker = HttpBroker::start(|seen| match seen.path.as_str() {
        // Announces nothing and ends after the answer.
        "/admin/last" => Act::Close,
        _ => ok("{}"),
    })
    .await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    assert_eq!(gateway.get("/admin/x").await.status, 200);
    assert_eq!(gateway.get("/admin/last").await.status, 502);
    // A request that changes nothing was tried twice.
    assert_eq!(broker.seen().len(), 3);
    assert_eq!(gateway.get("/admin/x").await.status, 200);
}

#[tokio::test]
async fn a_broker_that_does_not_answer_in_time_is_given_up() {
    let broker = HttpBroker::start(|_| Act::Hang).await;
    let gateway = WebGateway::with(&[&broker], |settings| {
        settings.proxy.timeout = Duration::from_millis(200);
    });
    let reply = gateway.get("/admin/x").await;
    assert_eq!(reply.status, 504);
    assert!(reply.body.contains("httpProxyTimeout"), "{}", reply.body);
}

#[tokio::test]
async fn an_answer_may_take_longer_than_connections_may_be_idle() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = WebGateway::with(&[], |settings| {
        settings.proxy.brokers = vec![url.parse().unwrap()];
        settings.proxy.idle_timeout = Duration::from_millis(100);
        settings.http.idle_timeout = Duration::from_millis(100);
    });
    let slow = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        // The slow broker is what is tested here.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate";
        stream.write_all(answer).await.unwrap();
        stream
    };
    let (reply, _stream) = tokio::join!(gateway.get("/admin/x"), slow);
    assert_eq!((reply.status, reply.body.as_str()), (200, "late"));
}

#[tokio::test]
async fn a_client_that_does_not_send_its_body_is_given_up() {
    let broker = HttpBroker::start(|_| ok("{}")).await;
    let gateway = WebGateway::with(&[&broker], |settings| {
        settings.http.idle_timeout = Duration::from_millis(200);
    });
    let mut client = gateway.connect().await;
    let head = "POST /admin/x HTTP/1.1\r\nHost: gate\r\nContent-Length: 100\r\n\r\nabc";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(client.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(broker.seen().is_empty());
}

#[tokio::test]
async fn a_broker_that_stops_within_its_answer_cuts_it() {
    let broker = HttpBroker::start(|_| {
        Act::Say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".to_owned())
    })
    .await;
    let gateway = WebGateway::with(&[&broker], |settings| {
        settings.proxy.idle_timeout = Duration::from_millis(200);
    });
    let reply = gateway.get("/admin/x").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "abc"));
    assert_eq!(
        reply.header("content-length"),
        Some("100"),
        "so the client sees the cut"
    );
}

#[tokio::test]
async fn heads_have_limits_both_ways() {
    let broker = HttpBroker::start(|seen| match seen.path.as_str() {
        "/admin/large" => Act::Say(format!(
            "HTTP/1.1 200 OK\r\nX-Large: {}\r\nContent-Length: 0\r\n\r\n",
            "x".repeat(20_000)
        )),
        _ => Act::Say("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned()),
    })
    .await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    let long = format!("/admin/{}", "a".repeat(10 * 1024));
    assert_eq!(gateway.get(&long).await.status, 414);
    let header = format!("X-Large: {}\r\n", "x".repeat(9000));
    assert_eq!(gateway.call("GET", "/admin/x", &header).await.status, 431);
    assert!(broker.seen().is_empty());
    let reply = gateway.get("/admin/large").await;
    assert_eq!(reply.status, 502);
    assert!(
        reply.body.contains("httpMaxResponseHeaderSize"),
        "{}",
        reply.body
    );
    let wide = WebGateway::with(&[&broker], |settings| {
        settings.http.max_request_header_size = 20_000;
        settings.proxy.response_head_max = 30_000;
    });
    assert_eq!(wide.get(&long).await.status, 404, "the broker's");
    assert_eq!(wide.get("/admin/large").await.status, 200);
}

#[tokio::test]
async fn paths_that_lead_elsewhere_reach_no_broker() {
    let broker = HttpBroker::start(|_| ok("{}")).await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    for path in [
        "/admin/../metrics",
        "/admin/%2e%2e/metrics",
        "/admin/..;/metrics",
        "/admin/v2/a%2f..%2f..%2f..%2fmetrics",
        "/lookup/./x",
    ] {
        let reply = gateway.get(path).await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.body.contains("lead elsewhere"), "{path}");
    }
    for path in ["/x/../admin/v2", "/%61dmin/v2", "//admin/v2", "/admin%2Fv2"] {
        assert_eq!(gateway.get(path).await.status, 404, "{path}");
    }
    assert!(broker.seen().is_empty());
}

#[tokio::test]
async fn a_request_has_one_end_only() {
    let broker = HttpBroker::start(|_| ok("{}")).await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    let smuggled = "GET /admin/smuggled HTTP/1.1\r\nHost: gate\r\n\r\n";
    let post = "POST /admin/x HTTP/1.1\r\nHost: gate\r\n";
    let length = format!("Content-Length: {}\r\n", smuggled.len() + 5);
    let chunked = "Transfer-Encoding: chunked\r\n";
    for both in [format!("{length}{chunked}"), format!("{chunked}{length}")] {
        let reply = gateway
            .ask(format!("{post}{both}\r\n0\r\n\r\n{smuggled}"))
            .await;
        // The coding wins, and nothing behind the request is looked at.
        assert_eq!((reply.status, reply.body.as_str()), (200, "{}"), "{both}");
        assert_eq!(reply.header("connection"), Some("close"));
    }
    for bad in [
        "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Content-Length: 3, 4\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: -1\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
    ] {
        let reply = gateway.ask(format!("{post}{bad}\r\nabcd")).await;
        assert_eq!(reply.status, 400, "{bad}");
    }
    let seen = broker.seen();
    assert!(
        seen.iter().all(|seen| !seen.path.contains("smuggled")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn methods_and_forms_for_other_proxies_are_refused_or_ours() {
    let broker = HttpBroker::start(|seen| ok(&seen.path)).await;
    let stranger = HttpBroker::start(|_| ok("stranger")).await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    let to = stranger.address();
    let connect = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    assert_eq!(gateway.ask(connect).await.status, 405);
    assert_eq!(gateway.call("TRACE", "/admin/x", "").await.status, 405);
    let absolute = request("GET", &format!("http://{to}/admin/v2/x?y"), "", "");
    assert_eq!(
        gateway.ask(absolute).await.body,
        "/admin/v2/x?y",
        "our broker's"
    );
    assert_eq!(stranger.connections(), 0);
    let no_host = "GET /admin/x HTTP/1.1\r\nConnection: close\r\n\r\n";
    assert_eq!(gateway.ask(no_host).await.status, 400);
    let two_hosts = "GET /admin/x HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n";
    assert_eq!(gateway.ask(two_hosts).await.status, 400);
    let injected = request(
        "GET",
        "/admin/x",
        "X-A: b\rX-Original-Principal: admin\r\n",
        "",
    );
    assert_eq!(gateway.ask(injected).await.status, 400);
    // An escaped line break stays escaped.
    gateway.get("/admin/x%0d%0aX-Evil:%201").await;
    assert_eq!(broker.seen().pop().unwrap().header("x-evil"), None);
}

#[tokio::test]
async fn a_large_upload_is_streamed_and_waits_for_the_broker() {
    const SIZE: usize = 50 * 1024 * 1024;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = WebGateway::with(&[], |settings| {
        settings.proxy.brokers = vec![url.parse().unwrap()];
    });
    let mut client = gateway.connect().await;
    let head = format!(
        "POST /admin/v3/packages/x HTTP/1.1\r\nHost: gate\r\nConnection: close\r\nContent-Length: {SIZE}\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![7; 64 * 1024];
    let mut sent = 0;
    // The broker takes nothing yet: what the client gets rid of is in the systems' buffers, and not in the gateway.
    while let Ok(written) = timeout(Duration::from_millis(1500), client.write(&piece)).await {
        sent += written.unwrap();
        assert!(sent < SIZE / 2, "the gateway holds the body");
    }
    let broker = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = 0;
        let mut buffer = vec![0; 256 * 1024];
        while received < SIZE {
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0);
            received += read;
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
        stream.write_all(answer).await.unwrap();
        stream
    };
    let upload = async {
        while sent < SIZE {
            let length = piece.len().min(SIZE - sent);
            sent += client.write(&piece[..length]).await.unwrap();
        }
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let (answer, _stream) = within(async { tokio::join!(upload, broker) }).await;
    assert!(answer.ends_with("done"), "{answer}");
}

#[tokio::test]
async fn an_answer_that_nobody_takes_is_not_held() {
    const SIZE: usize = 50 * 1024 * 1024;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = WebGateway::with(&[], |settings| {
        settings.proxy.brokers = vec![url.parse().unwrap()];
        settings.http.idle_timeout = Duration::from_secs(3);
    });
    let mut client = gateway.connect().await;
    client
        .write_all(request("GET", "/admin/x", "", "").as_bytes())
        .await
        .unwrap();
    let (mut broker, _) = listener.accept().await.unwrap();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n");
    broker.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![7; 64 * 1024];
    let mut sent = 0;
    while let Ok(Ok(written)) = timeout(Duration::from_secs(10), broker.write(&piece)).await {
        sent += written;
        assert!(sent < SIZE / 2, "the gateway holds the answer");
    }
    // The client did not read for its idle time, so both connections ended.
    drop(client);
}

#[tokio::test]
async fn requests_beyond_the_limits_are_refused() {
    let broker = HttpBroker::start(|seen| match seen.path.as_str() {
        "/admin/hang" => Act::Hang,
        _ => ok("{}"),
    })
    .await;
    let gateway = WebGateway::with(&[&broker], |settings| settings.proxy.max_requests = Some(1));
    let mut hanging = gateway.connect().await;
    hanging
        .write_all(request("GET", "/admin/hang", "", "").as_bytes())
        .await
        .unwrap();
    within(async {
        while broker.seen().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(gateway.get("/admin/x").await.status, 503);
    assert_eq!(gateway.get("/livez").await.status, 200);
    drop(hanging);
    within(async { while gateway.get("/admin/x").await.status != 200 {} }).await;

    let slow = WebGateway::with(&[&broker], |settings| {
        settings.proxy.requests_per_second = Some(0.001);
    });
    assert_eq!(slow.get("/admin/x").await.status, 200);
    assert_eq!(slow.get("/admin/x").await.status, 429);
    assert_eq!(slow.get("/livez").await.status, 200);
    let metrics = slow.registry.render();
    let expected = "pulsar_broker_http_rejected_requests{cluster=\"test\"} 1\n";
    assert!(metrics.contains(expected), "{metrics}");
}
