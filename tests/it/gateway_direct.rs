//! Connections to a broker: introduced once, then relayed byte for byte.

use bytes::{BufMut as _, Bytes, BytesMut};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::frame::Frame;
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::{
    CommandAuthResponse, CommandCloseProducer, CommandLookupTopic, CommandPing, CommandPong,
    CommandProducer, CommandProducerSuccess, CommandSend, CommandSubscribe, CommandSuccess,
    ServerError, command_subscribe,
};
use pulsegate::testing::scripted_broker::{
    Script, ScriptedBroker, Step, auth_challenge, connected, connected_with, error,
    lookup_connect as answer_connect,
};

use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect};

/// `command` with a field that no version of the protocol has, at the end of its sub-message.
fn with_unknown_field(command: &Command) -> Frame {
    const FIELD_1000: [u8; 4] = [0xc2, 0x3e, 1, b'x'];
    let encoded = command.encode_command();
    // type (2 bytes), key of the sub-message, one byte of length: small commands only.
    let key_len = if encoded[2] & 0x80 == 0 { 1 } else { 2 };
    let length_at = 2 + key_len;
    let mut out = BytesMut::from(&encoded[..]);
    out[length_at] += 4;
    assert!(out[length_at] < 0x80, "a small command");
    out.put_slice(&FIELD_1000);
    Frame {
        command: out.freeze(),
        payload: Bytes::new(),
    }
}

#[tokio::test]
async fn the_broker_gets_the_clients_connect_with_ours_in_place_of_what_proxies_say() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut connect = direct_connect(&broker.address().to_string());
    connect.protocol_version = Some(7);
    connect.auth_method_name = Some("token".to_owned());
    connect.auth_data = Some(Bytes::from_static(b"secret"));
    connect.original_principal = Some("forged".to_owned());
    connect.original_auth_data = Some("forged".to_owned());
    connect.original_auth_method = Some("forged".to_owned());
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(connect.clone()).await;
    assert!(matches!(client.receive().await, Command::Connected(_)));
    let Command::Connect(seen) = &broker.received_of(Type::Connect)[0].command else {
        panic!("no CONNECT")
    };
    connect.proxy_to_broker_url = None;
    connect.original_principal = None;
    connect.original_auth_data = None;
    connect.original_auth_method = None;
    connect.proxy_version = seen.proxy_version.clone();
    assert_eq!(**seen, connect);
    assert!(seen.proxy_version().starts_with("pulsegate-"));
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn connected_reaches_the_client_as_the_broker_sent_it() {
    let sent = with_unknown_field(&connected());
    let frame = sent.clone();
    let broker = ScriptedBroker::start(
        Script::new().on(Type::Connect, move |_| vec![Step::Frame(frame.clone())]),
    )
    .await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect(gateway.address()).await;
    client
        .send(direct_connect(&broker.address().to_string()))
        .await;
    assert_eq!(client.receive_frame().await, sent);
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn the_brokers_refusal_reaches_the_client_as_the_broker_sent_it() {
    let sent = with_unknown_field(&error(
        u64::MAX,
        ServerError::AuthorizationError,
        "Invalid roles.",
    ));
    let frame = sent.clone();
    let script = Script::empty().on(Type::Connect, move |_| {
        vec![Step::Frame(frame.clone()), Step::Close]
    });
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect(gateway.address()).await;
    client
        .send(direct_connect(&broker.address().to_string()))
        .await;
    assert_eq!(client.receive_frame().await, sent);
    client.closed().await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn challenges_of_the_broker_are_answered_by_the_client() {
    let script = Script::new()
        .on(Type::Connect, |_| vec![Step::Send(auth_challenge())])
        .on(Type::AuthResponse, |_| vec![Step::Send(connected())]);
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect(gateway.address()).await;
    client
        .send(direct_connect(&broker.address().to_string()))
        .await;
    assert!(matches!(client.receive().await, Command::AuthChallenge(_)));
    client.send(CommandPing {}).await;
    assert!(matches!(client.receive().await, Command::Pong(_)));
    let response = CommandAuthResponse {
        client_version: Some("x".to_owned()),
        ..CommandAuthResponse::default()
    };
    client.send(response.clone()).await;
    assert!(matches!(client.receive().await, Command::Connected(_)));
    assert_eq!(
        broker.received_of(Type::AuthResponse)[0].command,
        Command::from(response)
    );
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn only_brokers_that_were_configured_or_named_by_a_broker_are_targets() {
    let named = ScriptedBroker::start(Script::new()).await;
    let assigned = ScriptedBroker::start(Script::new()).await;
    let configured = ScriptedBroker::start(Script::new()).await;
    let url = named.url();
    configured.set_script(Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(answer_connect(received.request_id(), &url))]
    }));
    let gateway = TestGateway::in_front_of(&[&configured]);
    let named_address = named.address().to_string();

    let mut client = RawClient::connect(gateway.address()).await;
    client.send(direct_connect(&named_address)).await;
    let Command::Error(refused) = client.receive().await else {
        panic!("no error")
    };
    assert_eq!(refused.error(), ServerError::ServiceNotReady);
    client.closed().await;
    assert_eq!(named.accepted(), 0);

    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    client
        .send(CommandLookupTopic {
            topic: "t".to_owned(),
            request_id: 1,
            ..CommandLookupTopic::default()
        })
        .await;
    client.receive().await;
    let mut client =
        RawClient::established(gateway.address(), direct_connect(&named_address)).await;

    // PIP-307: the broker that closes a producer says where it is now.
    named.push(vec![Step::Send(Command::from(CommandCloseProducer {
        producer_id: 1,
        request_id: 1,
        assigned_broker_service_url: Some(assigned.url()),
        ..CommandCloseProducer::default()
    }))]);
    assert!(matches!(client.receive().await, Command::CloseProducer(_)));
    let assigned_address = assigned.address().to_string();
    drop(RawClient::established(gateway.address(), direct_connect(&assigned_address)).await);
    drop(client);
    gateway.stop().await;
    for broker in [named, assigned, configured] {
        broker.stop().await;
    }
}

#[tokio::test]
async fn refusals_of_the_gateway_say_why() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let target = broker.address().to_string();
    let mut from_proxy = direct_connect(&target);
    from_proxy.proxy_version = Some("1".to_owned());
    for (connect, code, text) in [
        (
            from_proxy,
            ServerError::NotAllowedError,
            "Must not provide proxyVersion",
        ),
        (
            direct_connect("no-port"),
            ServerError::NotAllowedError,
            "proxy_to_broker_url",
        ),
        (
            direct_connect("host:99999"),
            ServerError::NotAllowedError,
            "proxy_to_broker_url",
        ),
        (
            direct_connect("localhost:22"),
            ServerError::ServiceNotReady,
            "validated",
        ),
    ] {
        let mut client = RawClient::connect(gateway.address()).await;
        client.send(connect).await;
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!((refused.request_id, refused.error()), (u64::MAX, code));
        assert!(refused.message.contains(text), "{}", refused.message);
        client.closed().await;
    }
    let gone = broker.address().to_string();
    broker.stop().await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(direct_connect(&gone)).await;
    let Command::Error(refused) = client.receive().await else {
        panic!("no error")
    };
    assert_eq!(refused.error(), ServerError::ServiceNotReady);
    assert!(
        !refused.message.contains("127.0.0.1"),
        "{}",
        refused.message
    );
    client.closed().await;
    gateway.stop().await;
}

#[tokio::test]
async fn bytes_that_come_early_and_frames_of_every_size_arrive_unchanged_and_in_order() {
    let echo = Script::new()
        .on(Type::Send, |received| {
            vec![Step::Frame(received.frame.clone())]
        })
        .on(Type::Connect, |_| {
            // CONNECTED and what follows it in one write.
            let mut bytes = BytesMut::new();
            connected().encode(&mut bytes);
            Command::from(CommandPing {}).encode(&mut bytes);
            vec![Step::Raw(bytes.freeze())]
        });
    let broker = ScriptedBroker::start(echo).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let frames: Vec<Frame> = [
        0_usize, 1, 100, 4000, 4096, 70_000, 131_072, 1_000_000, 5_242_880, 3,
    ]
    .iter()
    .enumerate()
    .map(|(n, len)| Frame {
        command: Command::from(CommandSend {
            producer_id: 1,
            sequence_id: n.try_into().unwrap(),
            ..CommandSend::default()
        })
        .encode_command(),
        payload: (0..*len)
            .map(|at| u8::try_from((at * 31 + n) % 256).unwrap())
            .collect::<Vec<u8>>()
            .into(),
    })
    .collect();
    let mut client = RawClient::connect(gateway.address()).await;
    let mut early = BytesMut::new();
    Command::from(direct_connect(&broker.address().to_string())).encode(&mut early);
    for frame in &frames[..4] {
        frame.encode(&mut early);
    }
    // The fifth is cut by the end of the early bytes.
    let mut fifth = BytesMut::new();
    frames[4].encode(&mut fifth);
    early.extend_from_slice(&fifth[..50]);
    client.send_bytes(&early).await;
    assert!(matches!(client.receive().await, Command::Connected(_)));
    assert!(matches!(client.receive().await, Command::Ping(_)));
    client.send_bytes(&fifth[50..]).await;
    for frame in &frames[..5] {
        assert_eq!(&client.receive_frame().await, frame);
    }
    for frame in &frames[5..] {
        client.send_frame(frame).await;
        assert!(
            &client.receive_frame().await == frame,
            "{} bytes",
            frame.payload.len()
        );
    }
    drop(client);
    broker.wait_for_open(0).await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn garbage_ends_its_own_connection_after_what_came_before_it_and_no_other() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let target = broker.address().to_string();
    let mut other = RawClient::established(gateway.address(), direct_connect(&target)).await;
    let lies: [&[u8]; 4] = [
        &[0xff; 64],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 10, 0, 0, 0, 11, 1, 2, 3, 4, 5, 6],
        &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 4],
    ];
    for lie in lies {
        let mut client = RawClient::established(gateway.address(), direct_connect(&target)).await;
        let mut bytes = BytesMut::new();
        Command::from(CommandPing {}).encode(&mut bytes);
        bytes.put_slice(lie);
        client.send_bytes(&bytes).await;
        assert!(
            matches!(client.receive().await, Command::Pong(_)),
            "what came before is answered"
        );
        assert!(client.rest().await.is_empty());
    }
    for lie in lies {
        let mut client = RawClient::connect(gateway.address()).await;
        client.send_bytes(lie).await;
        client.rest().await;
    }
    other.send(CommandPing {}).await;
    assert!(matches!(other.receive().await, Command::Pong(_)));
    drop(other);
    broker.wait_for_open(0).await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn commands_before_connect_close_the_connection_and_ping_is_answered() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(CommandPing {}).await;
    assert!(matches!(client.receive().await, Command::Pong(_)));
    client.send(CommandPong {}).await;
    client
        .send(CommandLookupTopic {
            topic: "t".to_owned(),
            request_id: 1,
            ..CommandLookupTopic::default()
        })
        .await;
    assert!(client.rest().await.is_empty());
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn traffic_is_counted_per_topic_once_the_broker_accepted_it() {
    let script = Script::new()
        .on(Type::Producer, |received| {
            let Command::Producer(producer) = &received.command else {
                return Vec::new();
            };
            if producer.topic.ends_with("refused") {
                return vec![Step::Send(error(
                    producer.request_id,
                    ServerError::TopicNotFound,
                    "no",
                ))];
            }
            vec![Step::Send(Command::from(CommandProducerSuccess {
                request_id: producer.request_id,
                producer_name: "p".to_owned(),
                ..CommandProducerSuccess::default()
            }))]
        })
        .on(Type::Subscribe, |received| {
            vec![Step::Send(Command::from(CommandSuccess {
                request_id: received.request_id(),
                ..CommandSuccess::default()
            }))]
        })
        .on(Type::CloseProducer, |received| {
            vec![Step::Send(Command::from(CommandSuccess {
                request_id: received.request_id(),
                ..CommandSuccess::default()
            }))]
        });
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::established(
        gateway.address(),
        direct_connect(&broker.address().to_string()),
    )
    .await;
    for (producer_id, topic) in [(1, "orders"), (2, "persistent://public/default/refused")] {
        client
            .send(CommandProducer {
                topic: topic.to_owned(),
                producer_id,
                request_id: producer_id,
                ..CommandProducer::default()
            })
            .await;
        client.receive().await;
    }
    client
        .send(CommandSubscribe {
            topic: "persistent://public/default/orders".to_owned(),
            subscription: "s".to_owned(),
            sub_type: command_subscribe::SubType::Shared.into(),
            consumer_id: 7,
            request_id: 9,
            ..CommandSubscribe::default()
        })
        .await;
    client.receive().await;
    let topic = "{topic=\"persistent://public/default/orders\"}";
    gateway
        .wait_for_metric(&format!("pulsegate_gateway_topic_producers{topic}"), 1.0)
        .await;
    gateway
        .wait_for_metric(&format!("pulsegate_gateway_topic_consumers{topic}"), 1.0)
        .await;
    assert!(!gateway.registry.render().contains("default/refused"));

    for producer_id in [1, 1, 2] {
        let send = Command::from(CommandSend {
            producer_id,
            sequence_id: 1,
            num_messages: Some(5),
            ..CommandSend::default()
        });
        let mut bytes = BytesMut::new();
        send.encode_with_payload(&[b"payload"], &mut bytes);
        client.send_bytes(&bytes).await;
    }
    gateway
        .wait_for_metric(
            &format!("pulsegate_gateway_topic_in_messages_total{topic}"),
            10.0,
        )
        .await;

    client
        .send(CommandCloseProducer {
            producer_id: 1,
            request_id: 11,
            ..CommandCloseProducer::default()
        })
        .await;
    gateway
        .wait_for_metric(&format!("pulsegate_gateway_topic_producers{topic}"), 0.0)
        .await;
    drop(client);
    gateway
        .wait_for_metric(&format!("pulsegate_gateway_topic_consumers{topic}"), 0.0)
        .await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_fails_in_the_handshake_is_reported_to_the_client() {
    let garbage = Script::empty().on(Type::Connect, |_| {
        vec![Step::Raw(Bytes::from_static(&[0xff; 16]))]
    });
    let other_command = Script::empty().on(Type::Connect, |_| {
        vec![Step::Send(Command::from(CommandSuccess::default()))]
    });
    let gone = Script::empty().on(Type::Connect, |_| vec![Step::Close]);
    let silent = Script::empty();
    for (script, text) in [
        (garbage, "ended the connection"),
        (other_command, "ended the connection"),
        (gone, "ended the connection"),
        (silent, "did not answer in time"),
    ] {
        let broker = ScriptedBroker::start(script).await;
        let gateway = TestGateway::with(&[&broker], |settings| {
            if text.contains("in time") {
                settings.keep_alive_interval = Some(std::time::Duration::from_secs(1));
            }
        });
        let mut client = RawClient::connect(gateway.address()).await;
        client
            .send(direct_connect(&broker.address().to_string()))
            .await;
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(refused.error(), ServerError::ServiceNotReady);
        assert!(refused.message.contains(text), "{}", refused.message);
        client.closed().await;
        gateway.stop().await;
        broker.stop().await;
    }
}

#[tokio::test]
async fn a_ping_of_the_broker_in_the_handshake_is_answered() {
    let script = Script::empty()
        .on(Type::Connect, |_| {
            vec![Step::Send(Command::from(CommandPing {}))]
        })
        .on(Type::Pong, |_| vec![Step::Send(connected())]);
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let target = broker.address().to_string();
    drop(RawClient::established(gateway.address(), direct_connect(&target)).await);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn the_size_limit_of_a_relay_is_the_brokers() {
    let script = Script::new()
        .on(Type::Connect, |_| {
            vec![Step::Send(connected_with(21, Some(1_000_000)))]
        })
        .on(Type::Send, |received| {
            vec![Step::Frame(received.frame.clone())]
        });
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::with(&[&broker], |settings| settings.max_message_size = 10_000);
    let target = broker.address().to_string();
    let mut client = RawClient::established(gateway.address(), direct_connect(&target)).await;
    let frame = |len: usize| Frame {
        command: Command::from(CommandSend::default()).encode_command(),
        payload: vec![1; len].into(),
    };
    client.send_frame(&frame(1_000_000)).await;
    assert_eq!(client.receive_frame().await, frame(1_000_000));
    let mut beyond = BytesMut::new();
    frame(1_020_000).encode(&mut beyond);
    client.send_bytes(&beyond[..100]).await;
    assert!(client.rest().await.is_empty());
    gateway.stop().await;
    broker.stop().await;
}
