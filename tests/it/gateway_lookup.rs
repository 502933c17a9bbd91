//! Connections for lookups: answered by the gateway from what brokers say.

use pulsegate::protocol::command::Command;
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::command_lookup_topic_response::LookupType;
use pulsegate::protocol::proto::pulsar::{
    CommandCloseProducer, CommandConnect, CommandConnected, CommandFlow, CommandGetSchema,
    CommandGetSchemaResponse, CommandGetTopicsOfNamespace, CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopic, CommandPartitionedTopicMetadata, CommandPing, CommandPong, CommandProducer,
    CommandWatchTopicList, CommandWatchTopicListSuccess, CommandWatchTopicUpdate, FeatureFlags,
    KeyValue, ServerError,
};
use pulsegate::testing::scripted_broker::{
    Received, Script, ScriptedBroker, Step, auth_challenge, error,
    lookup_connect as answer_connect, lookup_failed, lookup_redirect, partitions,
};

use pulsegate::config::GatewaySettings;
use pulsegate::naming::AddressRange;

use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect};

const TOPIC: &str = "persistent://public/default/orders";

fn lookup(request_id: u64) -> CommandLookupTopic {
    CommandLookupTopic {
        topic: TOPIC.to_owned(),
        request_id,
        advertised_listener_name: Some("external".to_owned()),
        properties: vec![KeyValue {
            key: "zone".to_owned(),
            value: "a".to_owned(),
        }],
        ..CommandLookupTopic::default()
    }
}

#[tokio::test]
async fn a_client_learns_what_the_broker_can_less_what_needs_a_connection_to_it() {
    let script = Script::new().on(Type::Connect, |_| {
        vec![Step::Send(Command::from(CommandConnected {
            server_version: "Pulsar Server4.0.8".to_owned(),
            protocol_version: Some(21),
            max_message_size: Some(1_024_000),
            feature_flags: Some(FeatureFlags {
                supports_topic_watchers: Some(true),
                supports_get_partitioned_metadata_without_auto_creation: Some(true),
                ..FeatureFlags::default()
            }),
        }))]
    });
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(lookup_connect()).await;
    let Command::Connected(connected) = client.receive().await else {
        panic!("no CONNECTED")
    };
    assert_eq!(connected.server_version, "Pulsar Server4.0.8");
    assert_eq!(connected.protocol_version, Some(19));
    assert_eq!(connected.max_message_size, Some(1_024_000));
    let flags = connected.feature_flags.unwrap();
    assert_eq!(flags.supports_topic_watchers, Some(false));
    assert_eq!(
        flags.supports_get_partitioned_metadata_without_auto_creation,
        Some(true)
    );
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_lookup_is_followed_over_redirects_and_sent_back_through_the_gateway() {
    let owner = ScriptedBroker::start(Script::new()).await;
    let owner_url = owner.url();
    let url = owner_url.clone();
    owner.set_script(Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(answer_connect(received.request_id(), &url))]
    }));
    let first = ScriptedBroker::start(Script::new()).await;
    let url = owner_url.clone();
    first.set_script(Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(lookup_redirect(
            received.request_id(),
            &url,
            true,
        ))]
    }));
    let gateway = TestGateway::in_front_of(&[&first]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    client
        .send(CommandLookupTopic {
            authoritative: Some(true),
            original_principal: Some("forged".to_owned()),
            ..lookup(77)
        })
        .await;
    let response = client.lookup_response().await;
    assert_eq!(response.request_id, 77);
    assert_eq!(response.response(), LookupType::Connect);
    assert_eq!(
        response.broker_service_url.as_deref(),
        Some(owner_url.as_str())
    );
    assert_eq!(
        response.broker_service_url_tls.as_deref(),
        Some(owner_url.as_str())
    );
    assert_eq!(response.proxy_through_service_url, Some(true));
    assert_eq!(response.authoritative, Some(true));

    let asked = |broker: &ScriptedBroker| match &broker.received_of(Type::Lookup)[0].command {
        Command::Lookup(lookup) => lookup.clone(),
        other => panic!("{other:?}"),
    };
    let (at_first, at_owner) = (asked(&first), asked(&owner));
    assert!(
        !at_first.authoritative(),
        "a client behind a gateway cannot know"
    );
    assert!(at_owner.authoritative(), "the redirect says so");
    for lookup in [at_first, at_owner] {
        assert_eq!(lookup.original_principal, None);
        assert_eq!(lookup.advertised_listener_name.as_deref(), Some("external"));
        assert_eq!(lookup.properties.len(), 1);
    }
    drop(client);
    gateway.stop().await;
    first.stop().await;
    owner.stop().await;
}

#[tokio::test]
async fn every_request_of_a_lookup_connection_gets_the_brokers_own_answer() {
    let script = Script::new()
        .on(Type::Lookup, |received| {
            let text = "the broker do not have external listener";
            vec![Step::Send(lookup_failed(
                received.request_id(),
                ServerError::ServiceNotReady,
                text,
            ))]
        })
        .on(Type::PartitionedMetadata, |received| {
            vec![Step::Send(partitions(received.request_id(), 12))]
        })
        .on(Type::GetTopicsOfNamespace, |received| {
            vec![Step::Send(Command::from(
                CommandGetTopicsOfNamespaceResponse {
                    request_id: received.request_id(),
                    topics: vec![TOPIC.to_owned()],
                    filtered: Some(true),
                    topics_hash: Some("abcd".to_owned()),
                    changed: Some(true),
                },
            ))]
        })
        .on(Type::GetSchema, |received| {
            vec![Step::Send(Command::from(CommandGetSchemaResponse {
                request_id: received.request_id(),
                error_code: Some(ServerError::TopicNotFound.into()),
                error_message: Some("no schema".to_owned()),
                ..CommandGetSchemaResponse::default()
            }))]
        });
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;

    client.send(lookup(1)).await;
    let response = client.lookup_response().await;
    assert_eq!(
        (response.request_id, response.error()),
        (1, ServerError::ServiceNotReady)
    );
    assert_eq!(
        response.message(),
        "the broker do not have external listener"
    );

    client
        .send(CommandPartitionedTopicMetadata {
            topic: TOPIC.to_owned(),
            request_id: 2,
            metadata_auto_creation_enabled: Some(false),
            original_principal: Some("forged".to_owned()),
            ..CommandPartitionedTopicMetadata::default()
        })
        .await;
    let Command::PartitionedMetadataResponse(response) = client.receive().await else {
        panic!("no metadata")
    };
    assert_eq!((response.request_id, response.partitions), (2, Some(12)));
    let Command::PartitionedMetadata(asked) =
        &broker.received_of(Type::PartitionedMetadata)[0].command
    else {
        panic!("not asked")
    };
    assert_eq!(asked.metadata_auto_creation_enabled, Some(false));
    assert_eq!(asked.original_principal, None);

    client
        .send(CommandGetTopicsOfNamespace {
            request_id: 3,
            namespace: "public/default".to_owned(),
            ..CommandGetTopicsOfNamespace::default()
        })
        .await;
    let Command::GetTopicsOfNamespaceResponse(response) = client.receive().await else {
        panic!("no topics")
    };
    assert_eq!((response.request_id, response.topics_hash()), (3, "abcd"));

    client
        .send(CommandGetSchema {
            request_id: 4,
            topic: TOPIC.to_owned(),
            ..CommandGetSchema::default()
        })
        .await;
    let Command::GetSchemaResponse(response) = client.receive().await else {
        panic!("no schema")
    };
    assert_eq!(
        (response.request_id, response.error_message()),
        (4, "no schema")
    );

    for (metric, value) in [
        ("pulsar_proxy_lookup_requests_total", 1.0),
        ("pulsar_proxy_partitions_metadata_requests_total", 1.0),
        ("pulsar_proxy_get_topics_of_namespace_requests_total", 1.0),
        ("pulsar_proxy_get_schema_requests_total", 1.0),
    ] {
        gateway.wait_for_metric(metric, value).await;
    }
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_refuses_the_client_is_heard_by_it() {
    let script = Script::empty().on(Type::Connect, |_| {
        vec![
            Step::Send(error(
                u64::MAX,
                ServerError::AuthenticationError,
                "bad token",
            )),
            Step::Close,
        ]
    });
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(lookup_connect()).await;
    let Command::Error(refused) = client.receive().await else {
        panic!("no error")
    };
    assert_eq!(refused.request_id, u64::MAX);
    assert_eq!(refused.error(), ServerError::AuthenticationError);
    assert_eq!(refused.message, "bad token");
    client.closed().await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_lookup_connection_without_a_broker_is_refused_as_temporary() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    broker.stop().await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(lookup_connect()).await;
    let Command::Error(refused) = client.receive().await else {
        panic!("no error")
    };
    assert_eq!(refused.error(), ServerError::ServiceNotReady);
    client.closed().await;
    gateway.stop().await;
}

#[tokio::test]
async fn another_broker_is_asked_when_one_breaks_off() {
    let dying =
        ScriptedBroker::start(Script::new().on(Type::PartitionedMetadata, |_| vec![Step::Close]))
            .await;
    let healthy = ScriptedBroker::start(Script::new().on(Type::PartitionedMetadata, |received| {
        vec![Step::Send(partitions(received.request_id(), 3))]
    }))
    .await;
    let gateway = TestGateway::in_front_of(&[&dying, &healthy]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    for request_id in 0..8 {
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
        assert_eq!(
            (response.request_id, response.partitions),
            (request_id, Some(3))
        );
    }
    drop(client);
    gateway.stop().await;
    dying.stop().await;
    healthy.stop().await;
}

#[tokio::test]
async fn a_command_that_needs_a_broker_is_answered_and_the_connection_goes_on() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    client
        .send(CommandProducer {
            topic: TOPIC.to_owned(),
            producer_id: 1,
            request_id: 9,
            ..CommandProducer::default()
        })
        .await;
    client
        .send(CommandCloseProducer {
            producer_id: 1,
            request_id: 10,
            ..CommandCloseProducer::default()
        })
        .await;
    for request_id in [9, 10] {
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(
            (refused.request_id, refused.error()),
            (request_id, ServerError::NotAllowedError)
        );
    }
    client.send(CommandPing {}).await;
    assert!(matches!(client.receive().await, Command::Pong(_)));
    // Nothing could answer this one.
    client
        .send(CommandFlow {
            consumer_id: 1,
            message_permits: 10,
        })
        .await;
    client.closed().await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn lookups_beyond_the_limit_are_refused_as_too_many_and_the_connection_goes_on() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| settings.max_lookups = 1);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    client.send(lookup(1)).await;
    broker.wait_for(Type::Lookup, 1).await;
    client.send(lookup(2)).await;
    let response = client.lookup_response().await;
    assert_eq!(
        (response.request_id, response.error()),
        (2, ServerError::TooManyRequests)
    );
    let url = broker.url();
    let request_id = broker.received_of(Type::Lookup)[0].request_id();
    broker.push(vec![Step::Send(answer_connect(request_id, &url))]);
    assert_eq!(client.lookup_response().await.request_id, 1);
    assert!(
        (gateway.metric("pulsar_proxy_rejected_lookup_requests_total") - 1.0).abs() < f64::EPSILON
    );
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn large_answers_wait_for_a_client_that_reads_slowly_and_none_is_lost() {
    let topics: Vec<String> = (0..20_000)
        .map(|n| format!("persistent://public/default/a-topic-with-a-long-name-{n:08}"))
        .collect();
    let script = Script::new().on(Type::GetTopicsOfNamespace, move |received| {
        vec![Step::Send(Command::from(
            CommandGetTopicsOfNamespaceResponse {
                request_id: received.request_id(),
                topics: topics.clone(),
                ..CommandGetTopicsOfNamespaceResponse::default()
            },
        ))]
    });
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    for request_id in 0..12 {
        client
            .send(CommandGetTopicsOfNamespace {
                request_id,
                namespace: "public/default".to_owned(),
                ..CommandGetTopicsOfNamespace::default()
            })
            .await;
    }
    broker.wait_for(Type::GetTopicsOfNamespace, 1).await;
    let mut answered = Vec::new();
    for _ in 0..12 {
        let Command::GetTopicsOfNamespaceResponse(response) = client.receive().await else {
            panic!("no topics")
        };
        assert_eq!(response.topics.len(), 20_000);
        answered.push(response.request_id);
    }
    answered.sort_unstable();
    assert_eq!(answered, (0..12).collect::<Vec<_>>());
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

/// R05: a peer that asks and never answers counted as alive, and a silent one was waited for.
#[tokio::test]
async fn a_silent_client_of_a_lookup_connection_is_closed_and_one_that_answers_stays() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.keep_alive_interval = Some(std::time::Duration::from_secs(1));
    });
    let mut silent = RawClient::established(gateway.address(), lookup_connect()).await;
    let mut alive = RawClient::established(gateway.address(), lookup_connect()).await;
    let answering = async {
        loop {
            assert!(matches!(alive.receive().await, Command::Ping(_)));
            alive.send(CommandPong {}).await;
        }
    };
    let closing = async {
        assert!(matches!(silent.receive().await, Command::Ping(_)));
        silent.closed().await;
    };
    tokio::select! {
        never = answering => never,
        () = closing => {}
    }
    gateway
        .wait_for_metric(
            "pulsegate_gateway_connection_ends_total{reason=\"timeout\"}",
            1.0,
        )
        .await;
    assert!((gateway.metric("pulsar_proxy_active_connections") - 1.0).abs() < f64::EPSILON);
    drop(alive);
    gateway.stop().await;
    broker.stop().await;
}

/// The Java client looks a topic up and watches over a direct connection to the broker that serves it.
#[tokio::test]
async fn watchers_are_relayed_on_direct_connections_and_answered_on_lookup_connections() {
    let watched = |received: &Received| {
        let Command::WatchTopicList(watch) = &received.command else {
            panic!("{received:?}")
        };
        let watcher_id = watch.watcher_id;
        vec![
            Step::Send(Command::from(CommandWatchTopicListSuccess {
                request_id: watch.request_id,
                watcher_id,
                topic: Vec::new(),
                topics_hash: "none".to_owned(),
            })),
            Step::Send(Command::from(CommandWatchTopicUpdate {
                watcher_id,
                new_topics: vec!["persistent://public/default/t".to_owned()],
                deleted_topics: Vec::new(),
                topics_hash: "one".to_owned(),
            })),
        ]
    };
    let broker = ScriptedBroker::start(Script::new().on(Type::WatchTopicList, watched)).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let watch = CommandWatchTopicList {
        request_id: 5,
        watcher_id: 7,
        namespace: "public/default".to_owned(),
        topics_pattern: "public/default/.*".to_owned(),
        topics_hash: None,
    };
    let target = direct_connect(&broker.address().to_string());
    let mut direct = RawClient::established(gateway.address(), target).await;
    direct.send(watch.clone()).await;
    assert!(matches!(
        direct.receive().await,
        Command::WatchTopicListSuccess(success) if success.request_id == 5
    ));
    assert!(matches!(
        direct.receive().await,
        Command::WatchTopicUpdate(update) if update.watcher_id == 7
    ));
    let mut lookups = RawClient::established(gateway.address(), lookup_connect()).await;
    lookups.send(watch).await;
    let Command::Error(refused) = lookups.receive().await else {
        panic!("no error")
    };
    assert_eq!(
        (refused.request_id, refused.error()),
        (5, ServerError::NotAllowedError)
    );
    lookups.send(CommandPing {}).await;
    assert!(matches!(lookups.receive().await, Command::Pong(_)));
    drop((direct, lookups));
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn many_pings_at_once_do_not_end_a_lookup_connection() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    let mut pings = bytes::BytesMut::new();
    for _ in 0..100 {
        Command::from(CommandPing {}).encode(&mut pings);
    }
    client.send_bytes(&pings).await;
    client.send(lookup(1)).await;
    broker.wait_for(Type::Lookup, 1).await;
    assert!(matches!(client.receive().await, Command::Pong(_)));
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_client_whose_credential_is_refused_meanwhile_is_disconnected_to_come_back() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let connect = CommandConnect {
        auth_method_name: Some("token".to_owned()),
        auth_data: Some("secret".into()),
        ..lookup_connect()
    };
    let mut client = RawClient::established(gateway.address(), connect).await;
    let Command::Connect(seen) = &broker.received_of(Type::Connect)[0].command else {
        panic!("no CONNECT")
    };
    let flags = seen.feature_flags.as_ref().unwrap();
    assert_eq!(
        flags.supports_auth_refresh,
        Some(false),
        "a challenge could not be passed on"
    );
    // The broker closes at expiry, and does not take the credential again.
    broker.set_script(Script::empty().on(Type::Connect, |_| {
        vec![
            Step::Send(error(u64::MAX, ServerError::AuthenticationError, "expired")),
            Step::Close,
        ]
    }));
    broker.push(vec![Step::Close]);
    broker.wait_for_open(0).await;
    // An answer would be final for the client; the end of the connection makes it come back with what it has now.
    client.send(lookup(1)).await;
    client.closed().await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn authentication_in_several_steps_is_refused_for_good_on_lookup_connections() {
    let script = Script::empty().on(Type::Connect, |_| vec![Step::Send(auth_challenge())]);
    let broker = ScriptedBroker::start(script).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(lookup_connect()).await;
    let Command::Error(refused) = client.receive().await else {
        panic!("no error")
    };
    assert_eq!(refused.error(), ServerError::AuthenticationError);
    client.closed().await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn an_owner_that_is_not_allowed_is_a_refusal_and_is_never_contacted() {
    let stranger = ScriptedBroker::start(Script::new()).await;
    let broker = ScriptedBroker::start(Script::new()).await;
    for redirect in [false, true] {
        let url = stranger.url();
        broker.set_script(Script::new().on(Type::Lookup, move |received| {
            let answer = if redirect {
                lookup_redirect(received.request_id(), &url, true)
            } else {
                answer_connect(received.request_id(), &url)
            };
            vec![Step::Send(answer)]
        }));
        for narrow in [
            |settings: &mut GatewaySettings| settings.allowed_target_ports = Some(vec![6650]),
            |settings: &mut GatewaySettings| {
                settings.allowed_host_names = Some(vec!["*.svc".to_owned()]);
            },
        ] {
            let gateway = TestGateway::with(&[&broker], narrow);
            let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
            client.send(lookup(1)).await;
            let response = client.lookup_response().await;
            assert_eq!(response.error(), ServerError::NotAllowedError);
            drop(client);
            gateway.stop().await;
        }
        // Addresses are known once a name is resolved.
        let gateway = TestGateway::with(&[&broker], |settings| {
            settings.allowed_ip_addresses =
                AddressRange::parse("10.0.0.0/8").map(|range| vec![range]);
        });
        let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
        client.send(lookup(1)).await;
        let response = client.lookup_response().await;
        assert_eq!(response.response() == LookupType::Failed, redirect);
        drop(client);
        let target = stranger.address().to_string();
        let mut client = RawClient::connect(gateway.address()).await;
        client.send(direct_connect(&target)).await;
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(refused.error(), ServerError::ServiceNotReady);
        drop(client);
        gateway.stop().await;
    }
    assert_eq!(stranger.accepted(), 0);
    broker.stop().await;
    stranger.stop().await;
}

#[tokio::test]
async fn a_broker_that_takes_connections_and_says_nothing_does_not_hide_the_others() {
    let silent = ScriptedBroker::start(Script::empty()).await;
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&silent, &broker], |settings| {
        settings.keep_alive_interval = Some(std::time::Duration::from_secs(9));
    });
    // Some of these meet the silent one first.
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = RawClient::connect(gateway.address()).await;
        client.send(lookup_connect()).await;
        clients.push(client);
    }
    for client in &mut clients {
        assert!(matches!(client.receive().await, Command::Connected(_)));
    }
    drop(clients);
    gateway.stop().await;
    silent.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn lookups_that_wait_for_a_broker_are_bounded_in_bytes() {
    // None is answered.
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let mut client = RawClient::established(gateway.address(), lookup_connect()).await;
    let mut large = bytes::BytesMut::new();
    // Equal ones would be asked once.
    for n in 0..64 {
        Command::from(CommandLookupTopic {
            topic: format!("{n:0>50000}"),
            ..lookup(1)
        })
        .encode(&mut large);
    }
    // What the systems' socket buffers hold is much less than this.
    let max = 100 * 1024 * 1024;
    let sent = client.send_until_refused(&large, max).await;
    assert!(sent < max, "{sent} bytes were taken");
    let asked = broker.wait_for(Type::Lookup, 10).await.len();
    assert!((10..=21).contains(&asked), "{asked} lookups of 50 kB");
    assert!((gateway.metric("pulsar_proxy_active_connections") - 1.0).abs() < f64::EPSILON);
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_refusal_is_heard_although_another_broker_is_down() {
    let gone = ScriptedBroker::start(Script::new()).await;
    let refusing = ScriptedBroker::start(Script::empty().on(Type::Connect, |_| {
        vec![Step::Send(error(
            u64::MAX,
            ServerError::AuthenticationError,
            "bad token",
        ))]
    }))
    .await;
    let gateway = TestGateway::in_front_of(&[&gone, &refusing]);
    gone.stop().await;
    // Half of them meet the broker that is down first.
    for _ in 0..8 {
        let mut client = RawClient::connect(gateway.address()).await;
        client.send(lookup_connect()).await;
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(refused.error(), ServerError::AuthenticationError);
    }
    gateway.stop().await;
    refusing.stop().await;
}
