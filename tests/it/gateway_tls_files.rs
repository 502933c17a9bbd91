//! Files of certificates and keys that are replaced while the gateway runs (R14: rotated certificates were not picked up on every leg).

use std::fs;
use std::net::SocketAddr;

use pulsegate::net::{Stream, TlsError, TlsOptions};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::proto::pulsar::{CommandPing, ServerError};
use pulsegate::testing::certificates::Authority;
use pulsegate::testing::scripted_broker::{Script, ScriptedBroker};
use pulsegate::testing::tls::acceptor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::gateway_tls::{Files, established, reach_with_tls, secured, tls_address, trusting};
use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect, within};
use crate::web::WebGateway;

/// Waits until new connections are served with a certificate of this issuer. A look at the files that began before they were replaced
/// may still be under way, and there is one at a time.
async fn served_by(address: SocketAddr, options: &TlsOptions) -> Stream {
    within(async {
        loop {
            if let Ok(stream) = secured(address, options).await {
                return stream;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_replaced_certificate_is_that_of_new_connections_and_a_bad_one_is_not() {
    let [old, new] = ["old", "new"].map(Authority::new);
    let files = Files::of(&old.sign(&["localhost"]));
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| files.serve(settings));
    let target = broker.address().to_string();
    let mut before = established(&gateway, &trusting(&old), direct_connect(&target)).await;
    let success = "pulsegate_gateway_tls_last_reload_success{side=\"clients\"}";
    gateway.wait_for_metric(success, 1.0).await;

    // Half of a replacement: the new certificate with the old key.
    let replacement = new.sign_expired(&["localhost"]);
    files.write("cert.pem", &replacement.certificate);
    drop(established(&gateway, &trusting(&old), direct_connect(&target)).await);
    gateway.wait_for_metric(success, 0.0).await;
    fs::remove_file(files.path("key.pem")).unwrap();
    drop(established(&gateway, &trusting(&old), direct_connect(&target)).await);

    files.replace(&new.sign(&["localhost"]));
    drop(served_by(tls_address(&gateway), &trusting(&new)).await);
    let refused = secured(tls_address(&gateway), &trusting(&old)).await;
    assert!(
        matches!(refused, Err(TlsError::UnknownIssuer { .. })),
        "{refused:?}"
    );
    drop(established(&gateway, &trusting(&new), direct_connect(&target)).await);
    gateway.wait_for_metric(success, 1.0).await;

    files.replace(&replacement);
    let expiry = "pulsegate_gateway_tls_certificate_expiry_time_seconds{side=\"clients\"}";
    gateway.wait_for_metric(expiry, 1_009_843_200.0).await;

    // Who was connected before has noticed nothing.
    before.send(CommandPing {}).await;
    assert!(matches!(before.receive().await, Command::Pong(_)));
    drop(before);
    gateway.stop().await;
    broker.stop().await;
}

/// Asks over an open HTTPS connection, which stays open.
async fn is_alive(stream: &mut Stream) {
    let request = b"GET /livez HTTP/1.1\r\nHost: gate\r\n\r\n";
    within(stream.write_all(request)).await.unwrap();
    within(stream.flush()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\n") {
        let read = within(stream.read_buf(&mut answer)).await.unwrap();
        assert!(read > 0, "{:?}", String::from_utf8_lossy(&answer));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn the_https_port_follows_its_files_and_keeps_the_old_ones_while_they_are_of_no_use() {
    let [old, new] = ["old", "new"].map(Authority::new);
    let files = Files::of(&old.sign(&["localhost"]));
    let gateway = WebGateway::with(&[], |settings| {
        files.serve(settings);
        settings.tls.service_port = None;
        settings.tls.web_service_port = Some(0);
    });
    let address = gateway.tls_address.unwrap();
    let mut before = secured(address, &trusting(&old)).await.unwrap();
    is_alive(&mut before).await;

    let replacement = new.sign(&["localhost"]);
    let (half, _) = replacement
        .certificate
        .split_at(replacement.certificate.len() / 2);
    for (name, text) in [
        ("cert.pem", half),
        ("cert.pem", &replacement.certificate),
        ("key.pem", ""),
    ] {
        files.write(name, text);
        let mut served = secured(address, &trusting(&old)).await.unwrap();
        is_alive(&mut served).await;
    }
    files.replace(&replacement);
    is_alive(&mut served_by(address, &trusting(&new)).await).await;
    let refused = secured(address, &trusting(&old)).await;
    assert!(
        matches!(refused, Err(TlsError::UnknownIssuer { .. })),
        "{refused:?}"
    );
    is_alive(&mut before).await;
}

#[tokio::test]
async fn a_broker_that_asks_for_a_certificate_gets_the_one_that_is_there_now() {
    let [ours, other] = ["ours", "other"].map(Authority::new);
    let files = Files::of(&other.sign(&["gateway"]));
    let trusted = files.write("ca.pem", &ours.pem());
    let tls = acceptor(&ours.sign(&["localhost"]), &[], Some(&ours.pem()));
    let broker = ScriptedBroker::start_tls(Script::new(), tls).await;
    let gateway = TestGateway::with(&[], |settings| {
        reach_with_tls(settings, &broker, trusted.clone());
        settings.tls.brokers.identity = files.certificate();
    });
    let target = broker.tls_address("localhost").to_string();
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(direct_connect(&target)).await;
    let Command::Error(refused) = client.receive().await else {
        panic!("no error")
    };
    assert_eq!(refused.error(), ServerError::ServiceNotReady);
    assert!(!gateway.handle.is_ready());
    files.replace(&ours.sign(&["gateway"]));
    // A probe of the broker's health may be looking at the files of before.
    within(async {
        loop {
            let mut client = RawClient::connect(gateway.address()).await;
            client.send(direct_connect(&target)).await;
            if matches!(client.receive().await, Command::Connected(_)) {
                break;
            }
        }
    })
    .await;
    drop(RawClient::established(gateway.address(), lookup_connect()).await);
    gateway.stop().await;
    broker.stop().await;
}
