//! Redirects of brokers, which the reverse proxy follows, and those that it does not.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::support::within;
use super::web::{Act, HttpBroker, Reply, WebGateway, When, ok, redirect, request};

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
