//! Tests of [`super::pool`] and [`super::lookup`] against scripted brokers on real sockets.

use std::time::Duration;

use tokio::net::TcpSocket;

use super::*;
use crate::{
    naming::{BrokerAddress, NamespaceName, ServiceUrl, TopicName},
    protocol::{
        command::Command,
        proto::pulsar::{
            CommandConnect, CommandGetTopicsOfNamespaceResponse, CommandLookupTopic, KeyValue,
            ServerError, base_command::Type, command_get_topics_of_namespace::Mode,
        },
        server_error::UserFacingError,
    },
    testing::scripted_broker::{
        Script, ScriptedBroker, Step, error, lookup_connect, lookup_failed, lookup_redirect,
        partitions,
    },
};

const QUICK: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(1),
    max: Duration::from_millis(5),
    jitter: 0.5,
    deadline: None,
};

/// The first attempt after a failure is an hour away.
const SLOW: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_secs(3600),
    max: Duration::from_secs(3600),
    jitter: 0.0,
    deadline: None,
};

fn pool_of(brokers: &[&BrokerAddress], policy: BackoffPolicy) -> (BrokerPool, ConnectionOptions) {
    let options = ConnectionOptions::default();
    let service_url = ServiceUrl {
        addresses: brokers.iter().map(|address| (*address).clone()).collect(),
    };
    let connect = CommandConnect {
        client_version: "test".to_owned(),
        ..CommandConnect::default()
    };
    (
        BrokerPool::new(service_url, connect, options.clone(), policy),
        options,
    )
}

/// Drops the pool and waits for the tasks of both sides.
async fn nothing_is_left(
    pool: BrokerPool,
    options: ConnectionOptions,
    brokers: impl IntoIterator<Item = ScriptedBroker>,
) {
    drop(pool);
    options.tracker.close();
    options.tracker.wait().await;
    for broker in brokers {
        broker.wait_for_open(0).await;
        broker.stop().await;
    }
}

/// An address where connections are refused as long as nobody listens on the socket.
fn dead_address() -> (TcpSocket, BrokerAddress) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, BrokerAddress::from_host_port(&address).unwrap())
}

#[tokio::test]
async fn concurrent_callers_share_one_attempt_and_one_connection() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let address = broker.address();
    let (pool, options) = pool_of(&[&address], QUICK);
    let (a, b, c) = tokio::join!(pool.get(&address), pool.get(&address), pool.any());
    let connections = [a.unwrap(), b.unwrap(), c.unwrap().1];
    assert!(connections.iter().all(|connection| !connection.is_closed()));
    assert_eq!(broker.accepted(), 1);
    drop(connections);
    assert_eq!(pool.brokers(), [address]);
    nothing_is_left(pool, options, [broker]).await;
}

#[tokio::test]
async fn a_cancelled_caller_does_not_stop_the_attempt_of_others() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let address = broker.address();
    let (pool, options) = pool_of(&[&address], QUICK);
    {
        let mut first = std::pin::pin!(pool.get(&address));
        let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(first.as_mut().poll(cx)));
        assert!(poll.await.is_pending());
    }
    assert!(pool.get(&address).await.is_ok());
    assert_eq!(broker.accepted(), 1);
    nothing_is_left(pool, options, [broker]).await;
}

#[tokio::test]
async fn a_closed_connection_is_replaced_when_it_is_wanted_again() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let address = broker.address();
    let (pool, options) = pool_of(&[&address], QUICK);
    let first = pool.get(&address).await.unwrap();
    broker.push(vec![Step::Close]);
    first.closed().await;
    let second = pool.get(&address).await.unwrap();
    assert!(!second.is_closed());
    assert_eq!(broker.accepted(), 2);
    drop((first, second));
    nothing_is_left(pool, options, [broker]).await;
}

#[tokio::test]
async fn any_stays_with_one_broker_and_leaves_failed_ones_out() {
    let (a, b) = (
        ScriptedBroker::start(Script::new()).await,
        ScriptedBroker::start(Script::new()).await,
    );
    let (_socket, dead) = dead_address();
    let (pool, options) = pool_of(&[&dead, &a.address(), &b.address()], SLOW);
    let (chosen, _) = pool.any().await.unwrap();
    for _ in 0..6 {
        assert_eq!(pool.any().await.unwrap().0, chosen);
    }
    assert_ne!(chosen, dead);
    assert_eq!(a.accepted() + b.accepted(), 1);
    // When it is gone, the other one takes its place.
    let (gone, left) = if chosen == a.address() {
        (a, b)
    } else {
        (b, a)
    };
    gone.stop().await;
    let other = async {
        loop {
            match pool.any().await {
                Ok((address, _)) if address != chosen => break address,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    assert_eq!(other.await, left.address());
    nothing_is_left(pool, options, [left]).await;
}

#[tokio::test]
async fn a_broker_that_comes_back_is_found_after_its_backoff() {
    let (socket, dead) = dead_address();
    let (pool, options) = pool_of(&[&dead], QUICK);
    for _ in 0..3 {
        assert!(matches!(pool.any().await, Err(PoolError::Connect { .. })));
    }
    let broker = ScriptedBroker::start_on(socket.listen(16).unwrap(), Script::new());
    assert!(pool.any().await.is_ok());
    nothing_is_left(pool, options, [broker]).await;
}

#[tokio::test]
async fn brokers_are_bounded_and_the_idle_one_makes_room() {
    let mut brokers = Vec::new();
    for _ in 0..3 {
        brokers.push(ScriptedBroker::start(Script::new()).await);
    }
    let options = ConnectionOptions::default();
    let service_url = ServiceUrl {
        addresses: vec![brokers[0].address()],
    };
    let connect = CommandConnect::default();
    let pool = BrokerPool::with_max_brokers(service_url, connect, options.clone(), QUICK, 2);
    let first = pool.get(&brokers[0].address()).await.unwrap();
    let second = pool.get(&brokers[1].address()).await.unwrap();
    let third = pool.get(&brokers[2].address()).await;
    assert!(
        matches!(third, Err(PoolError::TooManyBrokers(2))),
        "{third:?}"
    );
    drop((first, second));
    // The first one was used last.
    pool.get(&brokers[0].address()).await.unwrap();
    pool.get(&brokers[2].address()).await.unwrap();
    brokers[1].wait_for_open(0).await;
    assert_eq!((brokers[0].open(), brokers[2].open()), (1, 1));
    nothing_is_left(pool, options, brokers).await;
}

#[tokio::test]
async fn closing_the_pool_ends_connections_and_attempts() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let silent = ScriptedBroker::start(Script::empty()).await;
    let (address, silent_address) = (broker.address(), silent.address());
    let (pool, options) = pool_of(&[&address], QUICK);
    let held = pool.get(&address).await.unwrap();
    let close = async {
        silent.wait_for(Type::Connect, 1).await;
        pool.close();
    };
    let (attempt, ()) = tokio::join!(pool.get(&silent_address), close);
    assert!(matches!(attempt, Err(PoolError::Closed)), "{attempt:?}");
    assert!(matches!(held.closed().await, CloseReason::Local));
    assert!(matches!(pool.get(&address).await, Err(PoolError::Closed)));
    nothing_is_left(pool, options, [broker, silent]).await;
}

fn lookup_command() -> Command {
    Command::from(CommandLookupTopic {
        topic: "persistent://t/n/x".to_owned(),
        request_id: 4242,
        advertised_listener_name: Some("outside".to_owned()),
        properties: vec![KeyValue {
            key: "k".to_owned(),
            value: "v".to_owned(),
        }],
        ..CommandLookupTopic::default()
    })
}

async fn follow(pool: &BrokerPool) -> Result<Command, LookupFailure> {
    let command = lookup_command().encode_command();
    let frame = lookup::follow(pool, command, &|_| Ok(()), lookup::MAX_REDIRECTS).await?;
    Ok(Command::decode(&frame.command).unwrap())
}

fn answer_lookups(
    broker: &ScriptedBroker,
    answer: impl Fn(u64) -> Command + Send + Sync + 'static,
) {
    broker.set_script(Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(answer(received.request_id()))]
    }));
}

#[tokio::test]
async fn follows_redirects_carrying_authoritative_and_all_other_fields() {
    let mut brokers = Vec::new();
    for _ in 0..3 {
        brokers.push(ScriptedBroker::start(Script::new()).await);
    }
    let (second, third) = (brokers[1].url(), brokers[2].url());
    let owner = third.clone();
    answer_lookups(&brokers[0], move |id| lookup_redirect(id, &second, true));
    answer_lookups(&brokers[1], move |id| lookup_redirect(id, &third, false));
    let url = owner.clone();
    answer_lookups(&brokers[2], move |id| lookup_connect(id, &url));
    let (pool, options) = pool_of(&[&brokers[0].address()], QUICK);

    let Ok(Command::LookupResponse(answer)) = follow(&pool).await else {
        panic!("no answer");
    };
    assert_eq!(answer.broker_service_url(), owner);
    for (broker, authoritative) in brokers.iter().zip([None, Some(true), Some(false)]) {
        let received = broker.received_of(Type::Lookup);
        let Command::Lookup(mut lookup) = received[0].command.clone() else {
            panic!("not a lookup");
        };
        assert_eq!(lookup.authoritative, authoritative);
        lookup.authoritative = None;
        lookup.request_id = 4242;
        assert_eq!(Command::Lookup(lookup), lookup_command());
    }
    nothing_is_left(pool, options, brokers).await;
}

#[tokio::test]
async fn answers_that_refuse_are_returned_as_they_came() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let (pool, options) = pool_of(&[&broker.address()], QUICK);
    answer_lookups(&broker, |id| {
        lookup_failed(id, ServerError::ServiceNotReady, "is being unloaded")
    });
    assert!(
        matches!(follow(&pool).await, Ok(Command::LookupResponse(r)) if r.message() == "is being unloaded")
    );
    answer_lookups(&broker, |id| {
        error(id, ServerError::TooManyRequests, "later")
    });
    assert!(matches!(follow(&pool).await, Ok(Command::Error(e)) if e.message == "later"));
    nothing_is_left(pool, options, [broker]).await;
}

#[tokio::test]
async fn redirects_that_lead_nowhere_have_typed_errors() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let (pool, options) = pool_of(&[&broker.address()], QUICK);
    let own_url = broker.url();

    let url = own_url.clone();
    answer_lookups(&broker, move |id| lookup_redirect(id, &url, true));
    let failure = follow(&pool).await.unwrap_err();
    assert!(matches!(failure, LookupFailure::Loop(_)), "{failure:?}");
    assert_eq!(failure.code(), ServerError::ServiceNotReady);
    assert!(failure.retryable());
    assert_eq!(
        broker.received_of(Type::Lookup).len(),
        2,
        "coming back once, with authority, is no loop"
    );

    let Err(failure) =
        lookup::follow(&pool, lookup_command().encode_command(), &|_| Ok(()), 0).await
    else {
        panic!("redirect followed");
    };
    assert!(matches!(failure, LookupFailure::TooManyRedirects(0)));
    assert_eq!(
        failure.client_message(),
        "Reached max number of redirections"
    );

    for (url, code) in [
        ("http://host:80", ServerError::MetadataError),
        ("", ServerError::MetadataError),
        ("pulsar+ssl://localhost:6651", ServerError::ServiceNotReady),
    ] {
        answer_lookups(&broker, move |id| lookup_redirect(id, url, true));
        let failure = follow(&pool).await.unwrap_err();
        assert_eq!(failure.code(), code, "{url}: {failure:?}");
    }
    answer_lookups(&broker, |id| lookup_connect(id, "nonsense"));
    assert!(matches!(follow(&pool).await, Err(LookupFailure::BadUrl(_))));
    nothing_is_left(pool, options, [broker]).await;
}

#[tokio::test]
async fn targets_are_checked_before_they_are_connected_or_named() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let forbidden = ScriptedBroker::start(Script::new()).await;
    let (pool, options) = pool_of(&[&broker.address()], QUICK);
    let denied = forbidden.address();
    let check = |address: &BrokerAddress| {
        if *address == denied {
            Err(Denied)
        } else {
            Ok(())
        }
    };
    for answer in [lookup_connect, |id, url: &str| {
        lookup_redirect(id, url, true)
    }] {
        let url = forbidden.url();
        answer_lookups(&broker, move |id| answer(id, &url));
        let command = lookup_command().encode_command();
        let failure = lookup::follow(&pool, command, &check, 10)
            .await
            .unwrap_err();
        assert!(matches!(&failure, LookupFailure::Denied(address) if *address == denied));
        assert!(!failure.client_message().contains(&denied.to_string()));
    }
    assert_eq!(forbidden.accepted(), 0);
    nothing_is_left(pool, options, [broker, forbidden]).await;
}

#[tokio::test]
async fn a_lookup_survives_one_closed_connection_but_not_two() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let (pool, options) = pool_of(&[&broker.address()], QUICK);
    let url = broker.url();
    broker.set_script(
        Script::new().on(Type::Lookup, move |received| match received.connection {
            0 => vec![Step::Close],
            _ => vec![Step::Send(lookup_connect(received.request_id(), &url))],
        }),
    );
    assert!(follow(&pool).await.is_ok());
    broker.set_script(Script::new().on(Type::Lookup, |_| vec![Step::Close]));
    let failure = follow(&pool).await.unwrap_err();
    assert!(
        matches!(
            failure,
            LookupFailure::Request {
                error: RequestError::Closed(_),
                ..
            }
        ),
        "{failure:?}"
    );
    nothing_is_left(pool, options, [broker]).await;
}

#[tokio::test]
async fn a_broker_that_refuses_us_gives_its_code_to_the_client() {
    let broker = ScriptedBroker::start(Script::new().on(Type::Connect, |_| {
        let refusal = error(u64::MAX, ServerError::AuthenticationError, "bad token");
        vec![Step::Send(refusal), Step::Close]
    }))
    .await;
    let (pool, options) = pool_of(&[&broker.address()], QUICK);
    let failure = follow(&pool).await.unwrap_err();
    assert_eq!(failure.code(), ServerError::AuthenticationError);
    assert_eq!(failure.client_message(), "bad token");
    assert!(!failure.retryable());
    nothing_is_left(pool, options, [broker]).await;
}

#[tokio::test]
async fn typed_lookups_read_the_answers() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let owner = broker.address();
    let (pool, options) = pool_of(&[&owner], QUICK);
    let url = broker.url();
    broker.set_script(
        Script::new()
            .on(Type::Lookup, move |received| {
                vec![Step::Send(lookup_connect(received.request_id(), &url))]
            })
            .on(Type::PartitionedMetadata, |received| {
                vec![Step::Send(partitions(received.request_id(), 7))]
            })
            .on(Type::GetTopicsOfNamespace, |received| {
                let answer = CommandGetTopicsOfNamespaceResponse {
                    request_id: received.request_id(),
                    topics: vec!["persistent://t/n/x".to_owned()],
                    ..CommandGetTopicsOfNamespaceResponse::default()
                };
                vec![Step::Send(answer.into())]
            }),
    );
    let client = LookupClient::new(pool.clone());
    let topic = TopicName::parse("persistent://t/n/x").unwrap();
    let namespace = NamespaceName::parse("t/n").unwrap();
    let found = client.lookup(&topic).await.unwrap();
    assert_eq!(
        found,
        BrokerLookup {
            address: owner,
            proxy_through_service_url: false
        }
    );
    assert_eq!(client.partitions(&topic).await.unwrap(), 7);
    let topics = client.topics_of_namespace(&namespace, Mode::All).await;
    assert_eq!(topics.unwrap(), ["persistent://t/n/x"]);

    broker.set_script(Script::new().on(Type::PartitionedMetadata, |received| {
        let answer = lookup_failed(received.request_id(), ServerError::TopicNotFound, "none");
        vec![Step::Send(answer)]
    }));
    let refused = client.partitions(&topic).await;
    assert!(
        matches!(&refused, Err(LookupError::Refused { code: ServerError::TopicNotFound, message }) if message == "none"),
        "{refused:?}"
    );
    drop(client);
    nothing_is_left(pool, options, [broker]).await;
}
