//! Which brokers are asked, over which connections, and what clients notice of brokers that fail.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::command_lookup_topic_response::LookupType;
use pulsegate::protocol::proto::pulsar::{
    CommandConnect, CommandGetSchema, CommandGetTopicsOfNamespace, CommandLookupTopic,
    CommandLookupTopicResponse, CommandPartitionedTopicMetadata, CommandPing, ServerError,
};
use pulsegate::testing::scripted_broker::{
    Script, ScriptedBroker, Step, lookup_connect as answer_connect, partitions,
};

use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect, within};

const TOPIC: &str = "persistent://public/default/orders";

fn lookup(request_id: u64, topic: &str) -> CommandLookupTopic {
    CommandLookupTopic {
        topic: topic.to_owned(),
        request_id,
        ..CommandLookupTopic::default()
    }
}

/// Answers every lookup with the broker itself.
fn owner(broker: &ScriptedBroker) -> Script {
    let url = broker.url();
    Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(answer_connect(received.request_id(), &url))]
    })
}

fn with_token(token: &'static [u8]) -> CommandConnect {
    CommandConnect {
        auth_method_name: Some("token".to_owned()),
        auth_data: Some(Bytes::from_static(token)),
        ..lookup_connect()
    }
}

#[tokio::test]
async fn clients_that_look_alike_share_a_connection_and_those_with_credentials_do_not() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(RawClient::established(gateway.address(), lookup_connect()).await);
    }
    assert_eq!(broker.received_of(Type::Connect).len(), 1);
    let other = CommandConnect {
        client_version: "Pulsar-Java-v4.0.8".to_owned(),
        ..lookup_connect()
    };
    clients.push(RawClient::established(gateway.address(), other).await);
    assert_eq!(broker.received_of(Type::Connect).len(), 2, "brokers log it");
    for token in [b"alice".as_slice(), b"alice", b"bob"] {
        clients.push(RawClient::established(gateway.address(), with_token(token)).await);
    }
    let method_alone = CommandConnect {
        auth_method_name: Some("athenz".to_owned()),
        ..lookup_connect()
    };
    for _ in 0..2 {
        clients.push(RawClient::established(gateway.address(), method_alone.clone()).await);
    }
    assert_eq!(broker.received_of(Type::Connect).len(), 7);
    // A certificate is not passed on, so it makes no difference to brokers.
    let certificate = CommandConnect {
        auth_method_name: Some("tls".to_owned()),
        ..lookup_connect()
    };
    clients.push(RawClient::established(gateway.address(), certificate).await);
    assert_eq!(broker.received_of(Type::Connect).len(), 7);
    drop(clients);
    gateway.stop().await;
    broker.wait_for_open(0).await;
    broker.stop().await;
}

#[tokio::test]
async fn equal_requests_of_many_clients_are_one_request_of_a_broker() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(RawClient::established(gateway.address(), lookup_connect()).await);
    }
    let before = gateway.metric("pulsar_proxy_lookup_requests_total");
    for (client, request_id) in clients.iter_mut().zip(10..) {
        client.send(lookup(request_id, TOPIC)).await;
        client.send(lookup(request_id + 100, "another")).await;
    }
    gateway
        .wait_for_metric("pulsar_proxy_lookup_requests_total", before + 8.0)
        .await;
    // One that differs in a field that this version does not look at is another request.
    let with_listener = CommandLookupTopic {
        advertised_listener_name: Some("outside".to_owned()),
        ..lookup(7, TOPIC)
    };
    clients[0].send(with_listener).await;
    let asked = broker.wait_for(Type::Lookup, 3).await;
    // The first to ask leaves; the others get their answers nevertheless.
    let left = clients.remove(0);
    drop(left);
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 3.0)
        .await;
    let url = broker.url();
    for received in asked {
        broker.push(vec![Step::Send(answer_connect(
            received.request_id(),
            &url,
        ))]);
    }
    for (client, request_id) in clients.iter_mut().zip(11..) {
        let mut ids = [
            client.lookup_response().await.request_id,
            client.lookup_response().await.request_id,
        ];
        ids.sort_unstable();
        assert_eq!(ids, [request_id, request_id + 100]);
    }
    assert_eq!(broker.received_of(Type::Lookup).len(), 3);

    // What is answered is over: the next one is asked again.
    broker.set_script(owner(&broker));
    clients[0].send(lookup(1, TOPIC)).await;
    assert_eq!(clients[0].lookup_response().await.request_id, 1);
    assert_eq!(broker.received_of(Type::Lookup).len(), 4);
    drop(clients);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_request_that_makes_brokers_break_off_does_not_harm_other_clients() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let url = broker.url();
    broker.set_script(Script::new().on(Type::Lookup, move |received| {
        let Command::Lookup(lookup) = &received.command else {
            panic!("{received:?}")
        };
        match lookup.topic.as_str() {
            "evil" => vec![Step::Close],
            _ => vec![Step::Send(answer_connect(received.request_id(), &url))],
        }
    }));
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut evil = RawClient::established(gateway.address(), lookup_connect()).await;
    let mut good = RawClient::established(gateway.address(), lookup_connect()).await;
    for request_id in 0..3 {
        evil.send(lookup(request_id, "evil")).await;
        good.send(lookup(request_id, TOPIC)).await;
        let response = good.lookup_response().await;
        assert_eq!(response.response(), LookupType::Connect, "{response:?}");
        let response = evil.lookup_response().await;
        assert_eq!(
            (response.request_id, response.error()),
            (request_id, ServerError::ServiceNotReady)
        );
    }
    // From its first failure on, it has been breaking its own connections.
    let shared = broker.received_of(Type::Connect).len();
    evil.send(lookup(8, "evil")).await;
    evil.lookup_response().await;
    good.send(lookup(8, TOPIC)).await;
    good.lookup_response().await;
    let last = broker.received_of(Type::Lookup).pop().unwrap().connection;
    let before = broker.received_of(Type::Connect);
    assert!(
        before[..shared]
            .iter()
            .any(|connect| connect.connection == last)
    );
    drop((evil, good));
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_command_that_brokers_close_a_connection_over_is_answered_and_not_sent() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    for namespace in ["", "public", "public//default", "a/b/c/d"] {
        client
            .send(CommandGetTopicsOfNamespace {
                request_id: 5,
                namespace: namespace.to_owned(),
                ..CommandGetTopicsOfNamespace::default()
            })
            .await;
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(
            (refused.request_id, refused.error()),
            (5, ServerError::MetadataError)
        );
    }
    client.send(CommandPing {}).await;
    assert!(matches!(client.receive().await, Command::Pong(_)));
    // LOOKUP with a request id and no topic: only this client is to blame.
    let frame = pulsegate::protocol::frame::Frame {
        command: Bytes::from_static(&[8, 23, 0xba, 1, 2, 16, 9]),
        payload: Bytes::new(),
    };
    client.send_frame(&frame).await;
    client.closed().await;
    assert!(broker.received_of(Type::GetTopicsOfNamespace).is_empty());
    assert!(broker.received_of(Type::Lookup).is_empty());
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

/// R08 of the reports about proxies: lookups failed for a minute after a restart, or named the dead broker.
#[tokio::test]
async fn while_brokers_are_down_lookups_fail_at_once_and_soon_after_they_are_back_they_succeed() {
    let broker = ScriptedBroker::start(Script::new()).await;
    broker.set_script(owner(&broker).on(Type::PartitionedMetadata, |received| {
        vec![Step::Send(partitions(received.request_id(), 3))]
    }));
    let address = broker.socket_address();
    let gateway = TestGateway::in_front_of(&[&broker]);
    gateway
        .wait_for_metric("pulsegate_gateway_brokers_healthy", 1.0)
        .await;
    let mut clients = [
        RawClient::established(gateway.address(), lookup_connect()).await,
        RawClient::established(gateway.address(), with_token(b"alice")).await,
    ];
    for client in &mut clients {
        client.send(lookup(1, TOPIC)).await;
        assert_eq!(
            client.lookup_response().await.response(),
            LookupType::Connect
        );
    }
    broker.stop().await;
    for request_id in 2..12 {
        for client in &mut clients {
            let began = Instant::now();
            client.send(lookup(request_id, TOPIC)).await;
            let response = client.lookup_response().await;
            assert_eq!(
                (response.request_id, response.error()),
                (request_id, ServerError::ServiceNotReady)
            );
            assert_eq!(response.broker_service_url, None);
            let took = began.elapsed();
            assert!(took < Duration::from_secs(1), "{took:?}");
            client
                .send(CommandPartitionedTopicMetadata {
                    topic: TOPIC.to_owned(),
                    request_id,
                    ..CommandPartitionedTopicMetadata::default()
                })
                .await;
            let Command::PartitionedMetadataResponse(response) = client.receive().await else {
                panic!("no metadata")
            };
            assert_eq!(response.error(), ServerError::ServiceNotReady);
        }
    }
    gateway
        .wait_for_metric("pulsegate_gateway_brokers_healthy", 0.0)
        .await;
    assert!(!gateway.handle.is_ready());

    let broker = ScriptedBroker::start_at(address, Script::new()).await;
    broker.set_script(owner(&broker));
    let back = Instant::now();
    for client in &mut clients {
        let mut request_id = 100;
        loop {
            client.send(lookup(request_id, TOPIC)).await;
            if client.lookup_response().await.response() == LookupType::Connect {
                break;
            }
            request_id += 1;
        }
        let took = back.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    gateway
        .wait_for_metric("pulsegate_gateway_brokers_healthy", 1.0)
        .await;
    assert!(gateway.handle.is_ready());
    drop(clients);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_does_not_answer_is_asked_nothing_until_it_does() {
    let (a, b) = (
        ScriptedBroker::start(Script::new()).await,
        ScriptedBroker::start(Script::new()).await,
    );
    a.set_script(owner(&a));
    b.set_script(owner(&b));
    let gateway = TestGateway::in_front_of(&[&a, &b]);
    gateway
        .wait_for_metric("pulsegate_gateway_brokers_known", 2.0)
        .await;
    gateway
        .wait_for_metric("pulsegate_gateway_brokers_healthy", 2.0)
        .await;
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    for request_id in 0..8 {
        client.send(lookup(request_id, TOPIC)).await;
        assert_eq!(
            client.lookup_response().await.response(),
            LookupType::Connect
        );
    }
    assert!(
        !a.received_of(Type::Lookup).is_empty(),
        "both are asked in turn"
    );
    assert!(
        !b.received_of(Type::Lookup).is_empty(),
        "both are asked in turn"
    );
    let address = b.socket_address();
    b.stop().await;
    gateway
        .wait_for_metric("pulsegate_gateway_brokers_healthy", 1.0)
        .await;
    for request_id in 10..18 {
        client.send(lookup(request_id, TOPIC)).await;
        assert_eq!(
            client.lookup_response().await.response(),
            LookupType::Connect
        );
    }
    assert!(gateway.handle.is_ready());
    let b = ScriptedBroker::start_at(address, Script::new()).await;
    b.set_script(owner(&b));
    gateway
        .wait_for_metric("pulsegate_gateway_brokers_healthy", 2.0)
        .await;
    within(async {
        for request_id in 20.. {
            client.send(lookup(request_id, TOPIC)).await;
            client.lookup_response().await;
            if !b.received_of(Type::Lookup).is_empty() {
                break;
            }
        }
    })
    .await;
    drop(client);
    gateway.stop().await;
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn lookups_name_the_configured_listener_where_the_client_names_none() {
    let broker = ScriptedBroker::start(Script::new()).await;
    broker.set_script(owner(&broker));
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.discovery.broker_listener_name = Some("inside".to_owned());
    });
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    for (named, expected) in [
        (None, "inside"),
        (Some(""), "inside"),
        (Some("mine"), "mine"),
    ] {
        client
            .send(CommandLookupTopic {
                advertised_listener_name: named.map(str::to_owned),
                ..lookup(1, TOPIC)
            })
            .await;
        client.lookup_response().await;
        let Some(Command::Lookup(asked)) = broker
            .received_of(Type::Lookup)
            .pop()
            .map(|last| last.command)
        else {
            panic!("not asked")
        };
        assert_eq!(asked.advertised_listener_name.as_deref(), Some(expected));
    }
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_lookup_service_names_brokers_and_connects_nobody_to_them() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let (url, tls_url) = (broker.url(), "pulsar+ssl://outside:6651");
    let answered = url.clone();
    broker.set_script(Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(
            CommandLookupTopicResponse {
                request_id: received.request_id(),
                response: Some(LookupType::Connect.into()),
                broker_service_url: Some(answered.clone()),
                broker_service_url_tls: Some(tls_url.to_owned()),
                authoritative: Some(false),
                proxy_through_service_url: Some(true),
                ..CommandLookupTopicResponse::default()
            }
            .into(),
        )]
    }));
    let gateway = TestGateway::with(&[&broker], |settings| settings.discovery.lookup_only = true);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    client.send(lookup(3, TOPIC)).await;
    let response = client.lookup_response().await;
    assert_eq!(response.broker_service_url(), url);
    assert_eq!(response.broker_service_url_tls(), tls_url);
    assert_eq!(response.proxy_through_service_url, Some(false));
    assert_eq!(response.authoritative, Some(false));
    drop(client);
    let connects = broker.received_of(Type::Connect).len();
    for target in [broker.address().to_string(), String::new()] {
        let mut client = RawClient::connect(gateway.address()).await;
        client.send(direct_connect(&target)).await;
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(refused.error(), ServerError::NotAllowedError);
        client.closed().await;
    }
    assert_eq!(broker.received_of(Type::Connect).len(), connects);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn equal_schema_requests_are_one_and_get_their_own_ids() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    for request_id in [1, 2] {
        client
            .send(CommandGetSchema {
                request_id,
                topic: TOPIC.to_owned(),
                ..CommandGetSchema::default()
            })
            .await;
    }
    gateway
        .wait_for_metric("pulsar_proxy_get_schema_requests_total", 2.0)
        .await;
    let asked = broker.wait_for(Type::GetSchema, 1).await;
    broker.push(vec![Step::Send(
        pulsegate::testing::scripted_broker::error(
            asked[0].request_id(),
            ServerError::TopicNotFound,
            "no topic",
        ),
    )]);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(refused.error(), ServerError::TopicNotFound);
        ids.push(refused.request_id);
    }
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert_eq!(broker.received_of(Type::GetSchema).len(), 1);
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_named_by_an_address_that_is_no_brokers_is_not_connected() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    for target in [
        "169.254.169.254:80",
        "0.0.0.0:6650",
        "[fe80::1]:6650",
        "224.0.0.1:6650",
    ] {
        let url = format!("pulsar://{target}");
        broker.set_script(Script::new().on(Type::Lookup, move |received| {
            vec![Step::Send(answer_connect(received.request_id(), &url))]
        }));
        let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
        client.send(lookup(1, target)).await;
        client.lookup_response().await;
        // It is on the list now, as a broker named it.
        let mut client = RawClient::connect(gateway.address()).await;
        client.send(direct_connect(target)).await;
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
    }
    gateway.stop().await;
    broker.stop().await;
}
