//! Limits, back-pressure, time-outs and the end of a gateway.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pulsegate::http::Phase;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::frame::Frame;
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::{CommandPing, CommandSend, ServerError};
use pulsegate::testing::scripted_broker::{Script, ScriptedBroker, Step, error};
use tokio::net::TcpStream;

use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect, within};

#[tokio::test]
async fn connections_beyond_the_limit_are_told_and_places_come_back() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| settings.max_connections = Some(2));
    let first = RawClient::established(gateway.address(), lookup_connect()).await;
    let second = RawClient::established(gateway.address(), lookup_connect()).await;
    let mut third = RawClient::connect(gateway.address()).await;
    let Command::Error(refused) = third.receive().await else {
        panic!("no error")
    };
    assert_eq!(
        (refused.request_id, refused.error()),
        (u64::MAX, ServerError::NotAllowedError)
    );
    assert_eq!(refused.message, "Reached the maximum number of connections");
    third.closed().await;
    assert!((gateway.metric("pulsar_proxy_rejected_connections_total") - 1.0).abs() < f64::EPSILON);
    drop((first, second, third));
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 0.0)
        .await;
    drop(RawClient::established(gateway.address(), lookup_connect()).await);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_silent_client_is_closed_after_the_handshake_timeout() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.keep_alive_interval = Some(Duration::from_secs(3));
    });
    let client = RawClient::connect(gateway.address()).await;
    assert!(client.rest().await.is_empty());
    // The same interval pings an idle lookup connection, and closes it when the answer is missing.
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    assert!(matches!(client.receive().await, Command::Ping(_)));
    client.rest().await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn an_idle_relay_is_closed_after_the_read_timeout() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.broker_read_timeout = Some(Duration::from_millis(100));
    });
    let client = RawClient::established(
        gateway.address(),
        direct_connect(&broker.address().to_string()),
    )
    .await;
    assert!(client.rest().await.is_empty());
    broker.wait_for_open(0).await;
    gateway
        .wait_for_metric(
            "pulsegate_gateway_connection_ends_total{reason=\"timeout\"}",
            1.0,
        )
        .await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn the_end_of_either_side_is_the_end_of_both() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let target = broker.address().to_string();
    let mut client = RawClient::established(gateway.address(), direct_connect(&target)).await;
    client.end().await;
    client.closed().await;
    broker.wait_for_open(0).await;
    let client = RawClient::established(gateway.address(), direct_connect(&target)).await;
    broker.push(vec![Step::Close]);
    assert!(client.rest().await.is_empty());
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 0.0)
        .await;
    gateway.stop().await;
    broker.stop().await;
}

/// A SEND with `len` bytes of payload.
fn send_frame(len: usize) -> BytesMut {
    let mut bytes = BytesMut::new();
    Frame {
        command: Command::from(CommandSend {
            producer_id: 1,
            sequence_id: 1,
            ..CommandSend::default()
        })
        .encode_command(),
        payload: Bytes::from(vec![7; len]),
    }
    .encode(&mut bytes);
    bytes
}

#[tokio::test]
async fn a_broker_that_does_not_read_stops_the_client_and_nobody_else() {
    let broker =
        ScriptedBroker::start(Script::new().on(Type::Send, |_| vec![Step::StopReading])).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let target = broker.address().to_string();
    let mut stuck = TcpStream::connect(gateway.address()).await.unwrap();
    let mut connect = BytesMut::new();
    Command::from(direct_connect(&target)).encode(&mut connect);
    tokio::io::AsyncWriteExt::write_all(&mut stuck, &connect)
        .await
        .unwrap();
    broker.wait_for(Type::Connect, 1).await;
    let frame = send_frame(1024 * 1024);
    let mut sent = 0;
    loop {
        let writable = tokio::time::timeout(Duration::from_millis(300), stuck.writable()).await;
        if writable.is_err() {
            break;
        }
        match stuck.try_write(&frame[sent % frame.len()..]) {
            Ok(taken) => sent += taken,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 64 * 1024 * 1024, "the gateway takes without end");
    }
    // Another client of the same broker is served meanwhile.
    let mut other = RawClient::established(gateway.address(), direct_connect(&target)).await;
    other.send(CommandPing {}).await;
    assert!(matches!(other.receive().await, Command::Pong(_)));
    drop((stuck, other));
    gateway.advance(Phase::Stopped);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn draining_refuses_new_connections_and_ends_open_ones_at_a_frame_boundary() {
    let broker = ScriptedBroker::start(Script::new().on(Type::Send, |received| {
        vec![Step::Frame(received.frame.clone())]
    }))
    .await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.drain_timeout = Duration::from_millis(200);
    });
    let target = broker.address().to_string();
    let lookups = RawClient::established(gateway.address(), lookup_connect()).await;
    let mut client = RawClient::established(gateway.address(), direct_connect(&target)).await;
    let frame = send_frame(100_000);
    let (begun, missing) = frame.split_at(60_000);
    client.send_bytes(begun).await;
    // Until the gateway has seen it, the connection is at a boundary.
    within(async {
        while gateway.metric("pulsar_proxy_binary_bytes_total") < 60_000.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    gateway.advance(Phase::Draining);
    within(async { while TcpStream::connect(gateway.address()).await.is_ok() {} }).await;
    // The begun frame may still be completed and goes through; its answer does as well if it comes in time, but never in part.
    client.send_bytes(missing).await;
    broker.wait_for(Type::Send, 1).await;
    let rest = client.rest().await;
    assert!(
        rest.is_empty() || rest == frame[..],
        "{} bytes of an answer",
        rest.len()
    );
    assert!(lookups.rest().await.is_empty());
    broker.wait_for_open(0).await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn readiness_follows_the_brokers() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let address = broker.socket_address();
    let gateway = TestGateway::in_front_of(&[&broker]);
    within(async {
        while !gateway.handle.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    broker.stop().await;
    within(async {
        while gateway.handle.is_ready() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let broker = ScriptedBroker::start_at(address, Script::new()).await;
    within(async {
        while !gateway.handle.is_ready() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn configured_brokers_need_no_rule() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.allowed_host_names = Some(vec!["*.svc".to_owned()]);
        settings.allowed_target_ports = Some(vec![6650]);
        settings.allowed_ip_addresses = Some(Vec::new());
    });
    within(async {
        while !gateway.handle.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let target = broker.address().to_string();
    drop(RawClient::established(gateway.address(), direct_connect(&target)).await);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn any_broker_is_one_that_can_be_reached() {
    let gone = ScriptedBroker::start(Script::new()).await;
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&gone, &broker]);
    gone.stop().await;
    for _ in 0..3 {
        drop(RawClient::established(gateway.address(), direct_connect("")).await);
    }
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn any_broker_is_a_configured_one_also_where_named_ones_must_be_active() {
    let broker = ScriptedBroker::start(Script::new()).await;
    // No list of active brokers comes, so that none is on it.
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.discovery.check_active_brokers = true;
    });
    let target = broker.address().to_string();
    let mut named = RawClient::connect(gateway.address()).await;
    named.send(direct_connect(&target)).await;
    let Command::Error(refused) = named.receive().await else {
        panic!("no error")
    };
    assert_eq!(refused.error(), ServerError::ServiceNotReady);
    assert_eq!(refused.message, "Target broker isn't available.");
    named.closed().await;
    assert!(broker.received_of(Type::Connect).is_empty());
    drop(RawClient::established(gateway.address(), direct_connect("")).await);
    assert_eq!(broker.received_of(Type::Connect).len(), 1);
    gateway.stop().await;
    broker.stop().await;
}

/// R04: a keep-alive of the gateway's own closed idle relays.
#[tokio::test]
async fn an_idle_relay_outlives_the_keep_alive_and_hears_none_of_the_gateways_pings() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let interval = Duration::from_millis(200);
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.keep_alive_interval = Some(interval);
    });
    let target = broker.address().to_string();
    let mut client = RawClient::established(gateway.address(), direct_connect(&target)).await;
    tokio::time::sleep(interval * 10).await;
    let frame = Frame {
        command: Command::from(CommandSend {
            producer_id: 1,
            sequence_id: 1,
            ..CommandSend::default()
        })
        .encode_command(),
        payload: Bytes::from_static(b"after a long time"),
    };
    broker.push(vec![Step::Frame(frame.clone())]);
    assert_eq!(client.receive_frame().await, frame, "the first to come");
    let relay = broker.received_of(Type::Connect)[0].connection;
    let pings = broker.received_of(Type::Ping);
    assert!(pings.iter().all(|ping| ping.connection != relay));
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

/// R06: hung connections to brokers piled up until no local port was left.
#[tokio::test]
async fn a_broker_that_hangs_costs_no_connections_once_its_clients_are_told_or_gone() {
    let hung = ScriptedBroker::start(Script::empty()).await;
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&hung, &broker], |settings| {
        settings.keep_alive_interval = Some(Duration::from_secs(2));
    });
    let target = hung.address().to_string();
    let mut waiting = Vec::new();
    for _ in 0..30 {
        let mut client = RawClient::connect(gateway.address()).await;
        client.send(direct_connect(&target)).await;
        waiting.push(client);
    }
    hung.wait_for(Type::Connect, 30).await;
    // Half of them do not wait for the end.
    waiting.truncate(15);
    let healthy = direct_connect(&broker.address().to_string());
    drop(RawClient::established(gateway.address(), healthy).await);
    for mut client in waiting {
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(refused.error(), ServerError::ServiceNotReady);
        client.closed().await;
    }
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 0.0)
        .await;
    gateway.stop().await;
    hung.wait_for_open(0).await;
    hung.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_client_that_waits_for_a_silent_broker_leaves_with_the_drain() {
    let broker = ScriptedBroker::start(Script::empty()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(lookup_connect()).await;
    broker.wait_for(Type::Connect, 1).await;
    gateway.advance(Phase::Draining);
    assert!(client.rest().await.is_empty());
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_client_that_pings_and_does_not_read_is_closed_after_the_handshake_timeout() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.keep_alive_interval = Some(Duration::from_secs(1));
    });
    let mut client = RawClient::connect_with_little_room(gateway.address()).await;
    let mut pings = BytesMut::new();
    for _ in 0..1000 {
        Command::from(CommandPing {}).encode(&mut pings);
    }
    client.send_until_refused(&pings, usize::MAX).await;
    gateway
        .wait_for_metric(
            "pulsegate_gateway_connection_ends_total{reason=\"timeout\"}",
            1.0,
        )
        .await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_why_it_is_refused_does_not_keep_its_place() {
    let script = Script::new().on(Type::Connect, |_| {
        let message = "m".repeat(4 * 1024 * 1024);
        vec![Step::Send(error(
            u64::MAX,
            ServerError::AuthenticationError,
            &message,
        ))]
    });
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect_with_little_room(gateway.address()).await;
    client.send(lookup_connect()).await;
    gateway
        .wait_for_metric(
            "pulsegate_gateway_connection_ends_total{reason=\"broker_refused\"}",
            1.0,
        )
        .await;
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn connections_that_do_not_end_their_side_leave_within_the_drain_time() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.drain_timeout = Duration::from_secs(8);
    });
    // What is decided here is the order of seconds; a slow machine may take a few more.
    let at_most = Duration::from_secs(15);
    let target = broker.address().to_string();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(RawClient::established(gateway.address(), direct_connect(&target)).await);
    }
    gateway.advance(Phase::Draining);
    tokio::time::timeout(at_most, gateway.finished())
        .await
        .expect("connections are left at the end of the drain time");
    drop(clients);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn what_is_no_broker_does_not_make_a_gateway_ready() {
    for script in [
        Script::empty(),
        Script::empty().greet(vec![Step::Raw(Bytes::from_static(
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
        ))]),
        Script::empty().on(Type::Ping, |_| vec![Step::Close]),
    ] {
        let other = ScriptedBroker::start(script).await;
        let gateway = TestGateway::in_front_of(&[&other]);
        within(async {
            while other.accepted() < 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert!(!gateway.handle.is_ready());
        gateway.stop().await;
        other.stop().await;
    }
}
