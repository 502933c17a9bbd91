//! Clients and brokers that do what no client and no broker does: their own connection ends, in bounded time and with a reason where
//! they can understand one, and nobody else notices.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pulsegate::naming::ServiceUrl;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::command_lookup_topic_response::LookupType;
use pulsegate::protocol::proto::pulsar::{
    CommandConnect, CommandLookupTopic, CommandPing, ServerError,
};
use pulsegate::testing::certificates::Authority;
use pulsegate::testing::scripted_broker::{Script, ScriptedBroker, Step, lookup_redirect};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::interval;

use crate::gateway_tls::{Files, reach_with_tls, secured, tls_address, trusting};
use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect, within};

fn lookup(request_id: u64) -> CommandLookupTopic {
    CommandLookupTopic {
        topic: "persistent://public/default/orders".to_owned(),
        request_id,
        ..CommandLookupTopic::default()
    }
}

/// The client is served.
async fn is_served(client: &mut RawClient) {
    client.send(CommandPing {}).await;
    assert!(matches!(client.receive().await, Command::Pong(_)));
}

/// What comes on a connection until it ends, in whatever way.
async fn until_the_end<S: AsyncRead + Unpin>(stream: &mut S) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = within(stream.read_to_end(&mut bytes)).await;
    bytes
}

/// R10: foreign bytes were read as the length of a giant frame.
#[tokio::test]
async fn bytes_of_other_protocols_end_their_connection_at_once_and_cost_nobody_else() {
    const EACH: usize = 60;
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| files.serve(settings));
    let target = broker.address().to_string();
    let mut relayed = RawClient::established(gateway.address(), direct_connect(&target)).await;
    let mut lookups = RawClient::established(gateway.address(), lookup_connect()).await;
    let mut connect = BytesMut::new();
    Command::from(lookup_connect()).encode(&mut connect);
    let client_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let plain = gateway.address();
    let foreign: [(SocketAddr, &[u8]); 6] = [
        (plain, client_hello),
        (plain, b"GET / HTTP/1.1\r\nHost: broker:6650\r\n\r\n"),
        (plain, b"SSH-2.0-OpenSSH_9.6\r\n"),
        (plain, b"\x7f\xff\xff\xff\x00\x00\x00\x04"),
        (plain, b"\x00\x01\x00\x01\x00\x01\x00\x01"),
        (tls_address(&gateway), &connect),
    ];
    for (address, bytes) in foreign {
        for _ in 0..EACH {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            // At once: the time that a handshake has is longer than this test waits.
            let answer = until_the_end(&mut stream).await;
            assert!(answer.len() < 16, "an alert at most: {answer:?}");
        }
        is_served(&mut relayed).await;
        is_served(&mut lookups).await;
    }
    let ends = "pulsegate_gateway_connection_ends_total";
    let strangers = f64::from(u32::try_from(5 * EACH).unwrap());
    gateway
        .wait_for_metric(
            &format!("{ends}{{reason=\"client_protocol_error\"}}"),
            strangers,
        )
        .await;
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 2.0)
        .await;
    drop((relayed, lookups));
    gateway.stop().await;
    broker.stop().await;
}

/// Sends a byte at a time, until the other side ends the connection.
async fn trickle<S: AsyncRead + AsyncWrite + Unpin>(stream: S, bytes: &[u8]) {
    let (mut read, mut write) = tokio::io::split(stream);
    let mut ticks = interval(Duration::from_millis(20));
    let writing = async {
        for byte in bytes {
            ticks.tick().await;
            let written = async {
                write.write_all(std::slice::from_ref(byte)).await?;
                write.flush().await
            };
            if written.await.is_err() {
                return;
            }
        }
        panic!("all of it was waited for");
    };
    let ending = async {
        let mut bytes = Vec::new();
        let _ = read.read_to_end(&mut bytes).await;
        assert!(bytes.is_empty(), "{bytes:?}");
    };
    within(async {
        tokio::select! {
            () = writing => {}
            () = ending => {}
        }
    })
    .await;
}

#[tokio::test]
async fn a_connect_that_trickles_in_has_no_more_time_than_a_silent_client() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        files.serve(settings);
        settings.keep_alive_interval = Some(Duration::from_secs(2));
    });
    // A byte at a time, it takes longer than anybody waits.
    let mut connect = BytesMut::new();
    Command::from(CommandConnect {
        auth_data: Some(Bytes::from(vec![b'x'; 5_000])),
        ..lookup_connect()
    })
    .encode(&mut connect);
    // A record of a handshake that is never whole.
    let mut hello = b"\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb\x03\x03".to_vec();
    hello.resize(5_000, 0);
    let plain = TcpStream::connect(gateway.address()).await.unwrap();
    let below_tls = TcpStream::connect(tls_address(&gateway)).await.unwrap();
    let inside_tls = secured(tls_address(&gateway), &trusting(&authority)).await;
    let served = async {
        let target = broker.address().to_string();
        let mut client = RawClient::established(gateway.address(), direct_connect(&target)).await;
        is_served(&mut client).await;
    };
    tokio::join!(
        trickle(plain, &connect),
        trickle(below_tls, &hello),
        trickle(inside_tls.unwrap(), &connect),
        served,
    );
    let reason =
        |reason: &str| format!("pulsegate_gateway_connection_ends_total{{reason=\"{reason}\"}}");
    gateway.wait_for_metric(&reason("timeout"), 2.0).await;
    gateway
        .wait_for_metric(&reason("tls_handshake_failed"), 1.0)
        .await;
    gateway.stop().await;
    broker.stop().await;
}

/// More than are refused by a frame at a time, on both ports, none of which reads or says anything.
#[tokio::test]
async fn a_flood_of_connections_beyond_the_limit_is_ended_and_those_within_are_served() {
    const FLOOD: usize = 300;
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        files.serve(settings);
        settings.max_connections = Some(2);
    });
    let target = broker.address().to_string();
    let mut relayed = RawClient::established(gateway.address(), direct_connect(&target)).await;
    let mut lookups = RawClient::established(gateway.address(), lookup_connect()).await;
    let mut flood = Vec::new();
    for address in [gateway.address(), tls_address(&gateway)] {
        for _ in 0..FLOOD {
            flood.push(TcpStream::connect(address).await.unwrap());
        }
        is_served(&mut relayed).await;
        is_served(&mut lookups).await;
    }
    let rejected = f64::from(u32::try_from(2 * FLOOD).unwrap());
    gateway
        .wait_for_metric("pulsar_proxy_rejected_connections_total", rejected)
        .await;
    assert!((gateway.metric("pulsar_proxy_active_connections") - 2.0).abs() < f64::EPSILON);
    let mut told = 0;
    for stream in &mut flood {
        if !until_the_end(stream).await.is_empty() {
            told += 1;
        }
    }
    assert!(told > 0, "nobody was told why");
    is_served(&mut relayed).await;
    drop((relayed, lookups));
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 0.0)
        .await;
    drop(RawClient::established(gateway.address(), lookup_connect()).await);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_lookup_that_is_sent_in_a_circle_fails_and_its_connection_goes_on() {
    let [first, second] = [
        ScriptedBroker::start(Script::new()).await,
        ScriptedBroker::start(Script::new()).await,
    ];
    for (broker, other) in [(&first, second.url()), (&second, first.url())] {
        broker.set_script(Script::new().on(Type::Lookup, move |received| {
            vec![Step::Send(lookup_redirect(
                received.request_id(),
                &other,
                false,
            ))]
        }));
    }
    let gateway = TestGateway::in_front_of(&[&first]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    client.send(lookup(1)).await;
    let response = client.lookup_response().await;
    assert_eq!(response.response(), LookupType::Failed);
    assert_eq!(
        (response.error(), response.message()),
        (
            ServerError::ServiceNotReady,
            "Reached max number of redirections"
        )
    );
    let asked = first.received_of(Type::Lookup).len() + second.received_of(Type::Lookup).len();
    assert_eq!(asked, 3, "a circle is seen when it closes");
    is_served(&mut client).await;
    drop(client);
    gateway.stop().await;
    first.stop().await;
    second.stop().await;
}

/// A pattern takes the place of the list, so whoever owns a name that matches it says where it leads.
#[tokio::test]
async fn a_name_that_a_pattern_allows_does_not_lead_to_what_runs_beside_the_gateway() {
    let beside = ScriptedBroker::start(Script::new()).await;
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.allowed_host_names = Some(vec!["local*".to_owned()]);
        settings.allowed_target_ports = Some(vec![beside.address().port]);
    });
    let mut client = RawClient::connect(gateway.address()).await;
    let target = format!("localhost:{}", beside.address().port);
    client.send(direct_connect(&target)).await;
    let Command::Error(refused) = client.receive().await else {
        panic!("no error")
    };
    assert_eq!(
        (refused.error(), refused.message.as_str()),
        (
            ServerError::ServiceNotReady,
            "Target broker cannot be validated."
        )
    );
    client.closed().await;
    assert_eq!(beside.accepted(), 0);
    gateway.stop().await;
    broker.stop().await;
    beside.stop().await;
}

#[tokio::test]
async fn frames_that_are_too_large_for_a_lookup_connection_end_it_and_no_other() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    // Both share a connection to the broker.
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    let mut other = RawClient::established(gateway.address(), lookup_connect()).await;
    // Length fields of a frame of a megabyte.
    client.send_bytes(b"\x00\x10\x00\x04\x00\x10\x00\x00").await;
    client.closed().await;
    is_served(&mut other).await;
    drop(other);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_answers_a_lookup_with_a_giant_frame_is_left_and_the_client_is_told() {
    let broker = ScriptedBroker::start(Script::new().on(Type::Lookup, |_| {
        vec![Step::Raw(Bytes::from_static(
            b"\x7f\xff\xff\xff\x00\x00\x00\x04",
        ))]
    }))
    .await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    client.send(lookup(1)).await;
    let response = client.lookup_response().await;
    assert_eq!(
        (response.response(), response.error()),
        (LookupType::Failed, ServerError::ServiceNotReady)
    );
    is_served(&mut client).await;
    drop(client);
    gateway.stop().await;
    broker.wait_for_open(0).await;
    broker.stop().await;
}

/// As a broker that hangs, or a host behind a firewall that takes every connection.
#[tokio::test]
async fn a_broker_that_never_answers_the_tls_handshake_is_given_up_and_the_client_is_told() {
    let authority = Authority::new("ours");
    let files = Files::new();
    let trusted = files.write("ca.pem", &authority.pem());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let script = Script::empty().greet(vec![Step::StopReading]);
    let silent = ScriptedBroker::start_on(listener, script);
    let gateway = TestGateway::with(&[], |settings| {
        reach_with_tls(settings, &silent, trusted);
        settings.broker = ServiceUrl::from(silent.tls_address("localhost"));
        settings.broker_connect_timeout = Duration::from_millis(300);
    });
    let mut client = RawClient::connect(gateway.address()).await;
    client
        .send(direct_connect(&format!("localhost:{}", address.port())))
        .await;
    let Command::Error(refused) = client.receive().await else {
        panic!("no error")
    };
    assert_eq!(
        (refused.error(), refused.message.as_str()),
        (
            ServerError::ServiceNotReady,
            "Target broker did not accept the connection in time."
        )
    );
    client.closed().await;
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 0.0)
        .await;
    gateway.stop().await;
    silent.stop().await;
}
