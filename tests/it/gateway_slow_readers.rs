//! Clients that read slowly or not at all: what waits for them is bounded, they are not given up while they live, and nobody else
//! notices.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pulsegate::net::outbound::{self, OutboundLimits};
use pulsegate::net::{FrameReader, Outgoing};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::frame::{Frame, FrameLimits};
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::{
    CommandFlow, CommandGetTopicsOfNamespace, CommandGetTopicsOfNamespaceResponse, CommandMessage,
    CommandPing, CommandPong, ServerError,
};
use pulsegate::testing::scripted_broker::{Script, ScriptedBroker, Step, connected};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect, within};

fn message(len: usize) -> Frame {
    Frame {
        command: Command::from(CommandMessage {
            consumer_id: 1,
            ..CommandMessage::default()
        })
        .encode_command(),
        payload: Bytes::from(vec![7; len]),
    }
}

/// What the sockets on the way and the gateway may hold for a client that does not read: the buffers of the systems, which grow to
/// 4 MiB for what is sent and 6 MiB for what is received, and of the gateway 128 KiB.
const ON_THE_WAY_MAX: usize = 12 * 1024 * 1024;

/// R11: consumers that took permits and stopped reading filled the memory of the proxy.
#[tokio::test]
async fn consumers_that_do_not_read_hold_a_bounded_part_of_their_backlog_and_others_are_served() {
    const CONSUMERS: usize = 8;
    const MESSAGES: usize = 8;
    let large = message(5 * 1024 * 1024 - 1000);
    let mut backlog = BytesMut::new();
    large.encode(&mut backlog);
    let backlog = backlog.freeze();
    let broker = ScriptedBroker::start(Script::new().on(Type::Flow, move |_| {
        vec![Step::Raw(backlog.clone()); MESSAGES]
    }))
    .await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let target = broker.address().to_string();
    let mut fast = RawClient::established(gateway.address(), direct_connect(&target)).await;
    let mut stuck = Vec::new();
    for _ in 0..CONSUMERS {
        let mut client = RawClient::connect_with_little_room(gateway.address()).await;
        client.send(direct_connect(&target)).await;
        assert!(matches!(client.receive().await, Command::Connected(_)));
        client
            .send(CommandFlow {
                consumer_id: 1,
                message_permits: 100_000,
            })
            .await;
        stuck.push(client);
    }
    broker.wait_for(Type::Flow, CONSUMERS).await;
    // Until nothing moves any more, the one that reads is served.
    let relayed = "pulsar_proxy_binary_bytes_total";
    let mut before = -1.0;
    within(async {
        while (gateway.metric(relayed) - before).abs() > 1_000.0 {
            before = gateway.metric(relayed);
            for _ in 0..20 {
                fast.send(CommandPing {}).await;
                assert!(matches!(fast.receive().await, Command::Pong(_)));
            }
        }
    })
    .await;
    let max = f64::from(u32::try_from(CONSUMERS * ON_THE_WAY_MAX).unwrap());
    let taken = gateway.metric(relayed);
    assert!(taken < max, "{taken} bytes were taken for {CONSUMERS}");
    // Who reads again gets all of it.
    let mut late = stuck.pop().unwrap();
    for _ in 0..MESSAGES {
        assert!(late.receive_frame().await == large, "changed on the way");
    }
    drop((fast, late, stuck));
    broker.wait_for_open(0).await;
    gateway.stop().await;
    broker.stop().await;
}

/// A broker that has 200 MB for every consumer and answers PING beside them, as brokers do.
async fn broker_with_backlog(stream: TcpStream) {
    const MESSAGES: usize = 200;
    let (read, write) = stream.into_split();
    let mut frames = FrameReader::new(read, FrameLimits::default());
    let (outbound, writer) = outbound::channel(OutboundLimits::default());
    let tasks = TaskTracker::new();
    tasks.spawn(writer.run(write));
    while let Ok(Some(frame)) = frames.next().await {
        match Command::decode(&frame.command).unwrap() {
            Command::Connect(_) => outbound.send(Outgoing::Command(&connected())).unwrap(),
            Command::Ping(_) => {
                let pong = Command::from(CommandPong {});
                let _ = outbound.send_urgent(Outgoing::Command(&pong));
            }
            Command::Flow(_) => {
                let (outbound, message) = (outbound.clone(), message(1_000_000));
                tasks.spawn(async move {
                    for _ in 0..MESSAGES {
                        if outbound.ready().await.is_err() {
                            return;
                        }
                        let _ = outbound.send(Outgoing::Frame(message.clone()));
                    }
                });
            }
            _ => {}
        }
    }
}

/// Reads up to the next PONG; returns how many bytes came before it.
async fn until_pong(client: &mut RawClient) -> usize {
    let mut before = 0;
    loop {
        let frame = client.receive_frame().await;
        if Command::peek_type(&frame.command).unwrap() == i32::from(Type::Pong) {
            return before;
        }
        before += frame.wire_len();
    }
}

/// R05: PONG stood behind everything that was queued, and clients cut the connection.
#[tokio::test]
async fn pong_reaches_a_consumer_that_reads_slowly_before_its_backlog() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let brokers = TaskTracker::new();
    let connections = brokers.clone();
    let accepting = brokers.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(broker_with_backlog(stream));
        }
    });
    let gateway = TestGateway::with(&[], |settings| {
        settings.broker = format!("pulsar://{address}").parse().unwrap();
    });
    let mut client = RawClient::connect_with_little_room(gateway.address()).await;
    client.send(direct_connect(&address)).await;
    assert!(matches!(client.receive().await, Command::Connected(_)));
    client
        .send(CommandFlow {
            consumer_id: 1,
            message_permits: 100_000,
        })
        .await;
    let first = client.receive_frame().await;
    assert_eq!(first.payload.len(), 1_000_000);
    for _ in 0..4 {
        client.send(CommandPing {}).await;
        let before = until_pong(&mut client).await;
        assert!(before < ON_THE_WAY_MAX * 2, "{before} bytes before PONG");
    }
    drop(client);
    gateway.stop().await;
    accepting.abort();
    brokers.close();
    within(brokers.wait()).await;
}

/// R05 on a lookup connection, where the gateway answers PING itself.
#[tokio::test]
async fn pong_reaches_a_client_that_takes_its_answers_slowly_before_they_are_all_there() {
    const REQUESTS: u64 = 100;
    let topics: Vec<String> = (0..32_000)
        .map(|n| format!("persistent://public/default/a-topic-with-a-long-name-{n:08}"))
        .collect();
    let answer = Command::from(CommandGetTopicsOfNamespaceResponse {
        topics,
        ..CommandGetTopicsOfNamespaceResponse::default()
    });
    let script = Script::new().on(Type::GetTopicsOfNamespace, move |received| {
        let Command::GetTopicsOfNamespaceResponse(mut answer) = answer.clone() else {
            panic!("another command")
        };
        answer.request_id = received.request_id();
        vec![Step::Send(Command::from(answer))]
    });
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect_with_little_room(gateway.address()).await;
    client.send(lookup_connect()).await;
    assert!(matches!(client.receive().await, Command::Connected(_)));
    for request_id in 0..REQUESTS {
        // Equal ones would be asked once.
        let namespace = format!("public/ns-{request_id}");
        client.send(topics_of(&namespace, request_id)).await;
    }
    // 200 MB of answers, of which the client has read the first.
    let first = client.receive_frame().await;
    assert!(first.command.len() > 1_900_000, "{}", first.command.len());
    // While it reads nothing, its PINGs are taken, more of them than the sockets between could hold.
    let mut ping = Command::from(CommandPing {}).encode_command().to_vec();
    // Field 1000, which nobody knows, with 60,000 bytes.
    ping.extend_from_slice(&[0xc2, 0x3e, 0xe0, 0xd4, 0x03]);
    ping.resize(ping.len() + 60_000, 0);
    let mut large_ping = BytesMut::new();
    Frame {
        command: ping.into(),
        payload: Bytes::new(),
    }
    .encode(&mut large_ping);
    let pings = large_ping.repeat(2 * ON_THE_WAY_MAX / large_ping.len());
    client.send_bytes(&pings).await;
    for _ in 0..3 {
        client.send(CommandPing {}).await;
        let before = until_pong(&mut client).await;
        assert!(before < ON_THE_WAY_MAX * 2, "{before} bytes before PONG");
    }
    let asked = broker.received_of(Type::GetTopicsOfNamespace).len();
    assert!(
        asked < 60,
        "{asked} were asked for a client that does not read"
    );
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

/// Answers GET_TOPICS_OF_NAMESPACE with one small topic for `public/small`, and else with some 4 MB.
fn large_and_small_namespaces() -> Script {
    Script::new().on(Type::GetTopicsOfNamespace, |received| {
        let Command::GetTopicsOfNamespace(asked) = &received.command else {
            panic!("another command")
        };
        let topics = if asked.namespace == "public/small" {
            vec!["t".to_owned()]
        } else {
            vec!["t".repeat(1_000_000); 4]
        };
        vec![Step::Send(Command::from(
            CommandGetTopicsOfNamespaceResponse {
                request_id: received.request_id(),
                topics,
                ..CommandGetTopicsOfNamespaceResponse::default()
            },
        ))]
    })
}

fn topics_of(namespace: &str, request_id: u64) -> CommandGetTopicsOfNamespace {
    CommandGetTopicsOfNamespace {
        request_id,
        namespace: namespace.to_owned(),
        ..CommandGetTopicsOfNamespace::default()
    }
}

/// Whether a list came; else it was too many.
fn is_list(answer: Command) -> bool {
    match answer {
        Command::GetTopicsOfNamespaceResponse(_) => true,
        Command::Error(error) => {
            assert_eq!(error.error(), ServerError::TooManyRequests);
            false
        }
        other => panic!("{other:?}"),
    }
}

/// PIP-442: the topic lists of many clients that do not read filled the memory of the proxy.
#[tokio::test]
async fn large_answers_of_all_clients_have_a_bound_together_and_small_ones_pass() {
    const REQUESTS: u64 = 20;
    let broker = ScriptedBroker::start(large_and_small_namespaces()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.max_topic_list_bytes = Some(5_000_000);
    });
    let mut stuck = RawClient::connect_with_little_room(gateway.address()).await;
    stuck.send(lookup_connect()).await;
    assert!(matches!(stuck.receive().await, Command::Connected(_)));
    for request_id in 0..REQUESTS {
        let namespace = format!("public/ns-{request_id}");
        stuck.send(topics_of(&namespace, request_id)).await;
    }
    let mut other = RawClient::established(gateway.address(), lookup_connect()).await;
    // As soon as the sockets of the client that does not read are full, its answers have all the room.
    let mut request_id = 0;
    within(async {
        loop {
            request_id += 1;
            other.send(topics_of("public/large", request_id)).await;
            if !is_list(other.receive().await) {
                break;
            }
        }
    })
    .await;
    other.send(topics_of("public/small", 0)).await;
    assert!(is_list(other.receive().await));
    // It gets an answer to each of its requests once it reads, and the room is there again.
    let mut lists = 0;
    for _ in 0..REQUESTS {
        lists += u64::from(is_list(stuck.receive().await));
    }
    assert!(lists > 0);
    within(async {
        loop {
            request_id += 1;
            other.send(topics_of("public/large", request_id)).await;
            if is_list(other.receive().await) {
                break;
            }
        }
    })
    .await;
    drop((stuck, other));
    gateway.stop().await;
    broker.stop().await;
}

/// A client that says it is there and takes nothing: its answers are not kept for ever.
#[tokio::test]
async fn a_client_that_only_pings_and_takes_no_answers_is_given_up() {
    let broker = ScriptedBroker::start(large_and_small_namespaces()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.keep_alive_interval = Some(Duration::from_secs(1));
    });
    let mut client = RawClient::connect_with_little_room(gateway.address()).await;
    client.send(lookup_connect()).await;
    assert!(matches!(client.receive().await, Command::Connected(_)));
    for request_id in 0..8 {
        let namespace = format!("public/ns-{request_id}");
        client.send(topics_of(&namespace, request_id)).await;
    }
    let ended = "pulsegate_gateway_connection_ends_total{reason=\"slow_reader\"}";
    let mut ping = BytesMut::new();
    Command::from(CommandPing {}).encode(&mut ping);
    within(async {
        while gateway.metric(ended) < 1.0 {
            client.send_until_refused(&ping, ping.len()).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}
