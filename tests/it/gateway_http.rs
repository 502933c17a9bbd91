//! The reverse proxy in front of the brokers' HTTP service, and `/proxy-stats`, over real sockets.

use std::sync::Arc;

use pulsegate::admin::{HttpAuthenticationError, HttpAuthenticator};
use pulsegate::config::ProxyRoute;
use pulsegate::testing::scripted_broker::{Script, ScriptedBroker};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

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
        let role = match token.and_then(|token| token.strip_prefix("Bearer ")) {
            Some(role) => Ok(Some(role.into())),
            None => Err(HttpAuthenticationError::Refused(
                "Authentication required".to_owned(),
            )),
        };
        Box::pin(std::future::ready(role))
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
async fn only_trusted_proxies_say_whom_they_ask_for() {
    let broker = HttpBroker::start(|seen| ok(seen.header("x-original-principal").unwrap())).await;
    let gateway = WebGateway::with_access(
        &[&broker],
        |_| (),
        |access| {
            access.authenticator = Some(authenticator());
            access.super_users = Some(["root".to_owned(), "edge".to_owned()].into());
            access.trusted_proxy_roles = vec!["edge".to_owned(), "other-edge".to_owned()];
        },
    );
    let headers = |role: &str, originals: &[&str]| {
        let lines = originals
            .iter()
            .map(|name| format!("X-Original-Principal: {name}\r\n"));
        let lines: String = lines.collect();
        format!("Authorization: Bearer {role}\r\n{lines}")
    };
    for (role, originals, told) in [
        ("edge", &["me"][..], "me"),
        ("edge", &[], "edge"),
        ("me", &["root"], "me"),
    ] {
        let reply = gateway
            .call("GET", "/admin/x", &headers(role, originals))
            .await;
        assert_eq!((reply.status, reply.body.as_str()), (200, told), "{role}");
    }
    let before = broker.seen().len();
    for originals in [&[""][..], &["edge"], &["other-edge"], &["me", "root"]] {
        let reply = gateway
            .call("GET", "/admin/x", &headers("edge", originals))
            .await;
        assert_eq!(reply.status, 403, "{originals:?}");
        assert!(
            reply.body.contains("X-Original-Principal"),
            "{}",
            reply.body
        );
    }
    assert_eq!(broker.seen().len(), before, "no broker has heard of it");
    // Both have to be super users: who asks, and whom it asks for.
    for (role, original, status) in [
        ("edge", "root", 200),
        ("edge", "me", 401),
        ("other-edge", "root", 401),
    ] {
        let headers = headers(role, &[original]);
        let reply = gateway.call("GET", "/proxy-stats/topics", &headers).await;
        assert_eq!(reply.status, status, "{role} for {original}");
    }
}

#[tokio::test]
async fn who_had_no_turn_to_be_authenticated_may_come_again() {
    let broker = HttpBroker::start(|_| ok("{}")).await;
    let gateway = WebGateway::with_access(
        &[&broker],
        |_| (),
        |access| {
            access.authenticator = Some(Arc::new(|_, _, _| {
                Box::pin(std::future::ready(Err(HttpAuthenticationError::Busy)))
            }));
        },
    );
    assert_eq!(gateway.get("/admin/x").await.status, 503);
    assert!(broker.seen().is_empty());
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
    let relay = RawClient::established(
        gateway.gateway.local_addr().unwrap(),
        direct_connect(&address),
    )
    .await;
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
