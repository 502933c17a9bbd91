//! The reverse proxy in front of the brokers' HTTP service, over real sockets.

use std::sync::Arc;
use std::time::Duration;

use pulsegate::admin::{HttpAuthenticationError, HttpAuthenticator};
use pulsegate::config::ProxyRoute;
use pulsegate::testing::scripted_broker::{Script, ScriptedBroker};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::support::{RawClient, direct_connect, within};
use super::web::{Act, HttpBroker, Reply, WebGateway, When, ok, redirect, request};

#[tokio::test]
async fn a_request_reaches_the_broker_as_it_was_but_for_what_is_about_the_connection() {
    let broker = HttpBroker::start(|_| ok("{}")).await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    let path = "/admin/v2/persistent/public/default/a%2Fb%20c/stats?getPreciseBacklog=true&x=%2F";
    let reply = gateway
        .call(
            "GET",
            path,
            "Authorization: Bearer t\r\nX-Original-Principal: admin\r\nAccept: */*\r\n",
        )
        .await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "{}"));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let seen = broker.seen_one();
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("GET", path));
    let host = broker.address().to_string();
    for (name, value) in [
        ("host", Some(host.as_str())),
        ("authorization", Some("Bearer t")),
        ("accept", Some("*/*")),
        ("via", Some("1.1 pulsegate")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-proto", Some("http")),
        ("x-forwarded-host", Some("gate")),
        ("x-forwarded-server", Some("gate")),
        ("x-original-principal", None),
        ("connection", None),
    ] {
        assert_eq!(seen.header(name), value, "{name}: {}", seen.head);
    }
}

#[tokio::test]
async fn every_method_passes_with_its_body() {
    let broker = HttpBroker::start(|seen| {
        if seen.method == "HEAD" {
            return Act::Say("HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n".to_owned());
        }
        if seen.method == "DELETE" {
            return Act::Say("HTTP/1.1 204 No Content\r\n\r\n".to_owned());
        }
        ok(&String::from_utf8_lossy(&seen.body))
    })
    .await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    for method in ["POST", "PUT", "PATCH"] {
        let reply = gateway
            .ask(request(method, "/admin/v2/x", "", "a body"))
            .await;
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (200, "a body"),
            "{method}"
        );
    }
    let chunked = "POST /admin/v2/x HTTP/1.1\r\nHost: gate\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n";
    let reply = gateway.ask(chunked).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "abcdefg"));
    assert_eq!(gateway.call("PUT", "/admin/v2/x", "").await.status, 200);
    let last = broker.seen().pop().unwrap();
    assert_eq!(last.header("content-length"), Some("0"));
    let reply = gateway.call("HEAD", "/admin/v2/x", "").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, ""));
    assert_eq!(reply.header("content-length"), Some("17"));
    let reply = gateway.ask(request("DELETE", "/admin/v2/x", "", "b")).await;
    assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    assert_eq!(broker.seen().pop().unwrap().body, b"b");
    assert_eq!(gateway.call("OPTIONS", "/admin/v2/x", "").await.status, 200);
    assert_eq!(broker.connections(), 1, "one connection serves them all");
}

#[tokio::test]
async fn redirects_are_followed_inside_with_body_and_credentials() {
    for status in [301, 302, 307, 308] {
        let owner = HttpBroker::start(|seen| ok(&String::from_utf8_lossy(&seen.body))).await;
        let location = format!("{}/admin/v2/a%2Fb?authoritative=true", owner.url());
        let first = HttpBroker::start(move |_| redirect(status, &location)).await;
        let gateway = WebGateway::with(&[&first, &owner], |_| ());
        let reply = gateway
            .ask(request(
                "POST",
                "/admin/v2/a%2Fb",
                "Authorization: Bearer t\r\n",
                "a body",
            ))
            .await;
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (200, "a body"),
            "{status}"
        );
        let seen = owner.seen_one();
        assert_eq!(seen.method, "POST");
        assert_eq!(seen.path, "/admin/v2/a%2Fb?authoritative=true");
        assert_eq!(seen.header("authorization"), Some("Bearer t"));
        assert_eq!(
            seen.header("host"),
            Some(owner.address().to_string().as_str())
        );
        assert_eq!(first.seen_one().body, b"a body");
    }
}

#[tokio::test]
async fn a_hundred_lookups_see_no_redirect() {
    let owner = HttpBroker::start(|seen| ok(&seen.path)).await;
    let url = owner.url();
    let first = HttpBroker::start(move |seen| redirect(307, &format!("{url}{}", seen.path))).await;
    let gateway = Arc::new(WebGateway::in_front_of(&[&first, &owner]));
    let mut all = JoinSet::new();
    for n in 0..100 {
        let gateway = Arc::clone(&gateway);
        all.spawn(async move {
            let path = format!("/lookup/v2/topic/persistent/public/default/t{n}");
            let reply = gateway.get(&path).await;
            assert_eq!((reply.status, reply.body), (200, path));
        });
    }
    while let Some(done) = within(all.join_next()).await {
        done.unwrap();
    }
    assert_eq!(owner.seen().len(), 100);
}

#[tokio::test]
async fn a_host_that_is_no_broker_gets_no_request_at_all() {
    let stranger = HttpBroker::start(|_| ok("{}")).await;
    for location in [
        format!("http://{}/x", stranger.address()),
        format!("//{}/x", stranger.address()),
        format!("https://{}/x", stranger.address()),
    ] {
        let broker = HttpBroker::start(move |_| redirect(307, &location)).await;
        let gateway = WebGateway::in_front_of(&[&broker]);
        let reply = gateway
            .call("GET", "/admin/v2/x", "Authorization: Bearer t\r\n")
            .await;
        assert_eq!(reply.status, 502, "{reply:?}");
        assert!(
            reply.body.contains("not known to be a broker"),
            "{}",
            reply.body
        );
        assert_eq!(reply.header("location"), None);
    }
    assert_eq!(stranger.connections(), 0);
}

#[tokio::test]
async fn a_host_of_brokers_is_known_at_the_port_of_their_http_service() {
    let broker = HttpBroker::start(|seen| {
        let host = seen.header("host").unwrap();
        redirect(
            307,
            &format!("http://{}/x", host.replace("127.0.0.1", "127.0.0.2")),
        )
    })
    .await;
    let text = |reply: Reply| (reply.status, reply.body);
    let closed = WebGateway::in_front_of(&[&broker]);
    let (status, body) = text(closed.get("/admin/x").await);
    assert!(
        status == 502 && body.contains("not known"),
        "{status} {body}"
    );
    // Allowed, and nobody is there.
    let open = WebGateway::with(&[&broker], |settings| {
        settings.allowed_host_names = Some(vec!["127.0.0.*".to_owned()]);
    });
    let (status, body) = text(open.get("/admin/x").await);
    assert!(
        status == 502 && body.contains("cannot connect"),
        "{status} {body}"
    );
}

#[tokio::test]
async fn a_server_is_known_by_its_address_under_another_name() {
    let broker = HttpBroker::start(|seen| match seen.path.as_str() {
        "/there" => ok(seen.header("host").unwrap()),
        _ => {
            let host = seen.header("host").unwrap();
            redirect(
                307,
                &format!("http://{}/there", host.replace("127.0.0.1", "localhost")),
            )
        }
    })
    .await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    let reply = gateway.get("/admin/x").await;
    let expected = format!("localhost:{}", broker.address().port());
    assert_eq!((reply.status, reply.body), (200, expected));
}

#[tokio::test]
async fn relative_redirects_are_followed_and_circles_end() {
    let broker = HttpBroker::start(|seen| match seen.path.as_str() {
        "/admin/a" => redirect(302, "/admin/b?c=d"),
        "/admin/b?c=d" => ok("there"),
        _ => redirect(302, "/admin/circle"),
    })
    .await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    assert_eq!(gateway.get("/admin/a").await.body, "there");
    let reply = gateway.get("/admin/circle").await;
    assert_eq!(reply.status, 502);
    assert!(reply.body.contains("redirects again"), "{}", reply.body);
    assert_eq!(broker.seen().len(), 2 + 11);
}

#[tokio::test]
async fn a_redirect_without_a_usable_target_is_told() {
    let broker = HttpBroker::start(|seen| match seen.path.as_str() {
        "/admin/none" => Act::Say("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n".to_owned()),
        _ => redirect(302, "not a url"),
    })
    .await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    assert_eq!(gateway.get("/admin/none").await.status, 302);
    assert_eq!(gateway.get("/admin/bad").await.status, 502);
}

#[tokio::test]
async fn a_body_too_large_to_be_kept_survives_a_redirect_that_comes_before_it() {
    let owner =
        HttpBroker::start_with(When::Continued, |seen| ok(&seen.body.len().to_string())).await;
    let location = format!("{}/admin/x", owner.url());
    let first = HttpBroker::start_with(When::Head, move |_| redirect(307, &location)).await;
    let gateway = WebGateway::with(&[&first, &owner], |settings| {
        settings.proxy.replay_max = 1000
    });
    let reply = gateway
        .ask(request("POST", "/admin/x", "", &"x".repeat(300_000)))
        .await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "300000"));
    assert_eq!(first.seen_one().header("expect"), Some("100-continue"));
}

#[tokio::test]
async fn a_body_that_is_gone_when_a_redirect_comes_is_told() {
    let owner = HttpBroker::start(|_| ok("{}")).await;
    let location = format!("{}/admin/x", owner.url());
    // It asks for the body and redirects only then.
    let first = HttpBroker::start_with(When::Continued, move |_| redirect(307, &location)).await;
    let gateway = WebGateway::with(&[&first, &owner], |settings| {
        settings.proxy.replay_max = 1000
    });
    let reply = gateway
        .ask(request("POST", "/admin/x", "", &"x".repeat(3000)))
        .await;
    assert_eq!(reply.status, 502);
    assert!(
        reply.body.contains("httpInputMaxReplayBufferSize"),
        "{}",
        reply.body
    );
    assert!(owner.seen().is_empty());
}

#[tokio::test]
async fn a_client_that_waits_for_the_broker_to_want_its_body_is_told_to_go_on() {
    let broker = HttpBroker::start_with(When::Continued, |seen| {
        ok(&String::from_utf8_lossy(&seen.body))
    })
    .await;
    let gateway = WebGateway::in_front_of(&[&broker]);
    let mut client = gateway.connect().await;
    let head = "POST /admin/x HTTP/1.1\r\nHost: gate\r\nConnection: close\r\nExpect: 100-continue\r\n\
                Content-Length: 4\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    within(client.read_exact(&mut interim)).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"body").await.unwrap();
    let mut rest = String::new();
    within(client.read_to_string(&mut rest)).await.unwrap();
    assert!(
        rest.starts_with("HTTP/1.1 200") && rest.ends_with("body"),
        "{rest}"
    );
}

#[tokio::test]
async fn a_broker_that_cannot_be_reached_gives_way_to_the_next() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let broker = HttpBroker::start(|seen| ok(&String::from_utf8_lossy(&seen.body))).await;
    let gateway = WebGateway::with(&[&broker], |settings| {
        settings
            .proxy
            .brokers
            .insert(0, format!("http://{gone}").parse().unwrap());
    });
    for _ in 0..4 {
        let reply = gateway.ask(request("POST", "/admin/x", "", "abc")).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "abc"));
    }
    let alone = WebGateway::with(&[], |settings| {
        settings.proxy.brokers = vec![format!("http://{gone}").parse().unwrap()];
    });
    let reply = alone.get("/admin/x").await;
    assert_eq!(reply.status, 502);
    assert!(reply.body.contains("cannot connect"), "{}", reply.body);
}

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
async fn without_brokers_the_paths_say_so() {
    let gateway = WebGateway::in_front_of(&[]);
    for path in ["/admin/v2/clusters", "/admin", "/lookup/v2/topic/x"] {
        let reply = gateway.get(path).await;
        assert_eq!(reply.status, 503);
        assert!(
            reply.body.contains("brokerWebServiceURL is not set"),
            "{}",
            reply.body
        );
    }
    assert_eq!(gateway.get("/livez").await.status, 200);
    assert_eq!(gateway.get("/topics/x").await.status, 404);
    assert_eq!(gateway.get("/administrator").await.status, 404);
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
        "/admin/v2/a%2f..%2f..%2fmetrics",
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
async fn answers_are_streamed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = WebGateway::with(&[], |settings| {
        settings.proxy.brokers = vec![url.parse().unwrap()];
    });
    let mut client = gateway.connect().await;
    client
        .write_all(request("GET", "/admin/x", "", "").as_bytes())
        .await
        .unwrap();
    let (mut broker, _) = listener.accept().await.unwrap();
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    broker.write_all(head).await.unwrap();
    let mut seen = String::new();
    while !seen.contains("first") {
        let mut buffer = [0; 1024];
        let read = within(client.read(&mut buffer)).await.unwrap();
        seen.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    broker.write_all(b"6\r\nsecond\r\n0\r\n\r\n").await.unwrap();
    within(client.read_to_string(&mut seen)).await.unwrap();
    assert!(seen.contains("second"), "{seen}");
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

#[tokio::test]
async fn functions_go_to_their_workers() {
    let broker = HttpBroker::start(|_| ok("broker")).await;
    let worker = HttpBroker::start(|_| ok("worker")).await;
    let gateway = WebGateway::with(&[&broker], |settings| {
        settings.proxy.functions = Some(worker.url().parse().unwrap());
    });
    for path in [
        "/admin/v3/functions/a/b",
        "/admin/v3/sinks/x",
        "/admin/v2/worker/cluster",
    ] {
        assert_eq!(gateway.get(path).await.body, "worker", "{path}");
    }
    for path in [
        "/admin/v2/clusters",
        "/admin/v2/persistent/a/b/functions",
        "/lookup/v2/topic/x",
    ] {
        assert_eq!(gateway.get(path).await.body, "broker", "{path}");
    }
    let without = WebGateway::in_front_of(&[&broker]);
    assert_eq!(without.get("/admin/v3/functions/a").await.body, "broker");
}

#[tokio::test]
async fn further_routes_lead_where_the_settings_say() {
    let other = HttpBroker::start(|seen| match seen.path.as_str() {
        "/base/away" => redirect(302, "http://elsewhere/"),
        path => Act::Say(format!(
            "HTTP/1.1 201 Created\r\nLocation: http://{}/base/made\r\nContent-Length: {}\r\n\r\n{path}",
            seen.header("host").unwrap(),
            path.len()
        )),
    })
    .await;
    let gateway = WebGateway::with(&[], |settings| {
        settings.proxy.routes = vec![ProxyRoute {
            name: "ui".to_owned(),
            path: "/ui".to_owned(),
            target: format!("{}/base", other.url()).parse().unwrap(),
        }];
    });
    for (asked, expected) in [
        ("/ui/foobar?x=y", "/base/foobar?x=y"),
        ("/ui", "/base/"),
        ("/ui/", "/base/"),
        ("/ui?x", "/base/?x"),
        ("/ui/a%2Fb", "/base/a%2Fb"),
    ] {
        let reply = gateway.get(asked).await;
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (201, expected),
            "{asked}"
        );
        assert_eq!(reply.header("location"), Some("/ui/made"));
    }
    let away = gateway.get("/ui/away").await;
    assert_eq!(
        (away.status, away.header("location")),
        (302, Some("http://elsewhere/"))
    );
    assert_eq!(gateway.get("/uix").await.status, 404);
    assert_eq!(gateway.get("/ui/../x").await.status, 404);
}

#[tokio::test]
async fn addresses_of_brokers_in_answers_become_ours() {
    let broker = HttpBroker::start(|seen| {
        Act::Say(format!(
            "HTTP/1.1 201 Created\r\nLocation: http://{}/admin/v2/new\r\nServer: Jetty\r\n\
             Connection: X-Private\r\nX-Private: 1\r\nContent-Length: 0\r\n\r\n",
            seen.header("host").unwrap()
        ))
    })
    .await;
    let gateway = WebGateway::with(&[&broker], |settings| {
        settings.proxy.response_headers = vec![("X-Frame-Options".to_owned(), "DENY".to_owned())];
    });
    let reply = gateway.ask(request("PUT", "/admin/v2/new", "", "{}")).await;
    assert_eq!(reply.status, 201);
    assert_eq!(reply.header("location"), Some("/admin/v2/new"));
    assert_eq!(reply.header("x-private"), None);
    assert_eq!(reply.header("server"), Some("jetty"));
    assert_eq!(reply.header("x-frame-options"), Some("deny"));
    let own = gateway.get("/livez").await;
    assert_eq!(own.header("x-frame-options"), Some("deny"));
}

#[tokio::test]
async fn forwarding_headers_are_believed_only_where_the_settings_say() {
    let broker = HttpBroker::start(|seen| ok(seen.header("x-forwarded-for").unwrap())).await;
    let sent = "X-Forwarded-For: 1.2.3.4\r\n";
    let strict = WebGateway::in_front_of(&[&broker]);
    assert_eq!(strict.call("GET", "/admin/x", sent).await.body, "127.0.0.1");
    let trusting = WebGateway::with(&[&broker], |settings| settings.proxy.trust_forwarded = true);
    let reply = trusting.call("GET", "/admin/x", sent).await;
    assert_eq!(reply.body, "1.2.3.4, 127.0.0.1");
}

/// Takes `Authorization: Bearer <role>`.
fn authenticator() -> HttpAuthenticator {
    Arc::new(|headers, _, _| {
        let token = headers
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        match token.and_then(|token| token.strip_prefix("Bearer ")) {
            Some(role) => Ok(Some(role.into())),
            None => Err(HttpAuthenticationError(
                "Authentication required".to_owned(),
            )),
        }
    })
}

#[tokio::test]
async fn a_role_is_told_by_the_gateway_alone() {
    let broker = HttpBroker::start(|seen| ok(seen.header("x-original-principal").unwrap())).await;
    let gateway = WebGateway::with_access(
        &[&broker],
        |_| (),
        |access| {
            access.authenticator = Some(authenticator());
            access.super_users = Some(["root".to_owned()].into());
        },
    );
    let reply = gateway.get("/admin/x").await;
    assert_eq!(
        (reply.status, reply.body.as_str()),
        (401, "Authentication required\n")
    );
    assert!(broker.seen().is_empty());
    let spoof = "Authorization: Bearer me\r\nX-Original-Principal: root\r\n";
    assert_eq!(gateway.call("GET", "/admin/x", spoof).await.body, "me");
    assert_eq!(broker.seen_one().header("authorization"), Some("Bearer me"));
    assert_eq!(gateway.get("/livez").await.status, 200);
    assert_eq!(gateway.get("/metrics").await.status, 401);
    assert_eq!(gateway.call("GET", "/metrics", spoof).await.status, 200);
    assert_eq!(
        gateway
            .call("GET", "/proxy-stats/topics", spoof)
            .await
            .status,
        401
    );
    let root = "Authorization: Bearer root\r\n";
    assert_eq!(
        gateway
            .call("GET", "/proxy-stats/topics", root)
            .await
            .status,
        200
    );

    let open = WebGateway::with_access(
        &[&broker],
        |settings| settings.proxy.authenticate_metrics = false,
        |access| access.authenticator = Some(authenticator()),
    );
    assert_eq!(open.get("/metrics").await.status, 200);
    assert_eq!(open.get("/proxy-stats/topics").await.status, 401);
    let anybody = "Authorization: Bearer me\r\n";
    let reply = open.call("GET", "/proxy-stats/topics", anybody).await;
    assert_eq!(
        reply.status, 200,
        "super users are told only where authorization is on"
    );
}

#[tokio::test]
async fn proxy_stats_answer_as_the_apache_proxy() {
    let gateway = WebGateway::in_front_of(&[]);
    let json = |reply: &Reply| {
        assert_eq!(reply.header("content-type"), Some("application/json"));
        (reply.status, reply.body.clone())
    };
    assert_eq!(
        json(&gateway.get("/proxy-stats/connections").await),
        (200, "[]".to_owned())
    );
    assert_eq!(
        json(&gateway.get("/proxy-stats/topics").await),
        (200, "{}".to_owned())
    );
    assert_eq!(
        json(&gateway.get("/proxy-stats/logging").await),
        (200, "0".to_owned())
    );
    let set = gateway.call("POST", "/proxy-stats/logging/2", "").await;
    assert_eq!((set.status, set.body.as_str()), (204, ""));
    assert_eq!(
        json(&gateway.get("/proxy-stats/logging").await),
        (200, "2".to_owned())
    );
    for level in ["3", "-1"] {
        let refused = gateway
            .call("POST", &format!("/proxy-stats/logging/{level}"), "")
            .await;
        let reason = "{\"reason\":\"Proxy log level can be only [0-2]\"}".to_owned();
        assert_eq!(json(&refused), (412, reason));
    }
    for (method, path, status) in [
        ("POST", "/proxy-stats/logging/x", 404),
        ("GET", "/proxy-stats/logging/1", 405),
        ("POST", "/proxy-stats/topics", 405),
        ("GET", "/proxy-stats", 404),
        ("GET", "/proxy-stats/other", 404),
    ] {
        assert_eq!(
            gateway.call(method, path, "").await.status,
            status,
            "{method} {path}"
        );
    }
    let without = WebGateway::with(&[], |settings| settings.http.metrics_enabled = false);
    assert_eq!(without.get("/proxy-stats/connections").await.status, 404);
    assert_eq!(without.get("/metrics").await.status, 404);
}

#[tokio::test]
async fn proxy_stats_tell_the_relays_that_are_open() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let address = broker.address().to_string();
    let gateway = WebGateway::with(&[], |settings| {
        settings.broker = format!("pulsar://{address}").parse().unwrap();
    });
    let relay =
        RawClient::established(gateway.gateway.local_addr(), direct_connect(&address)).await;
    let reply = gateway.get("/proxy-stats/connections").await;
    let relays: Vec<serde_json::Value> = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(relays.len(), 1, "{relays:?}");
    assert_eq!(relays[0]["brokerAddress"], format!("/{address}"));
    let client = relays[0]["clientAddress"].as_str().unwrap();
    assert!(client.starts_with("/127.0.0.1:"), "{client}");
    assert!(relays[0]["requestRate"].is_f64() && relays[0]["byteRate"].is_f64());
    drop(relay);
    within(async { while gateway.get("/proxy-stats/connections").await.body != "[]" {} }).await;
    broker.stop().await;
}
