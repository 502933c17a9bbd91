//! Tests of [`super::connection`] against a scripted broker in memory, under paused time.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::DuplexStream;

use super::*;
use crate::{
    config::CredentialError,
    net::{OutboundError, OutboundLimits, Outgoing},
    protocol::{
        command::Command,
        proto::pulsar::{
            AuthData, CommandAuthResponse, CommandCloseProducer, CommandConnect,
            CommandLookupTopic, CommandMessage, CommandPartitionedTopicMetadata, CommandPing,
            CommandProducer, CommandProducerSuccess, CommandSendReceipt, CommandSuccess,
            MessageIdData, ServerError, base_command::Type,
        },
        rewrite,
        server_error::CONNECTION_REQUEST_ID,
    },
    testing::scripted_broker::{
        Received, Script, ScriptedBroker, Step, auth_challenge, connected_with, error,
        lookup_connect, lookup_failed, partitions,
    },
};

/// What the broker does, and whether the error is the one expected of it.
type Case<E> = (Vec<Step>, fn(&E) -> bool);

fn connect_command() -> CommandConnect {
    CommandConnect {
        client_version: "test".to_owned(),
        protocol_version: Some(21),
        ..CommandConnect::default()
    }
}

fn options() -> ConnectionOptions {
    ConnectionOptions {
        keep_alive_interval: None,
        ..ConnectionOptions::default()
    }
}

async fn establish(
    stream: DuplexStream,
    options: &ConnectionOptions,
) -> Result<(Connection, ConnectionEvents), ConnectError> {
    let (reader, writer) = tokio::io::split(stream);
    Connection::establish(reader, writer, connect_command(), options.clone()).await
}

async fn open(
    broker: &ScriptedBroker,
    options: &ConnectionOptions,
) -> Result<(Connection, ConnectionEvents), ConnectError> {
    establish(broker.connect(64 * 1024), options).await
}

/// Waits for the tasks of both sides: nothing may be left.
async fn nothing_is_left(broker: ScriptedBroker, options: ConnectionOptions) {
    options.tracker.close();
    options.tracker.wait().await;
    broker.stop().await;
}

fn lookup(topic: &str) -> Command {
    Command::from(CommandLookupTopic {
        topic: topic.to_owned(),
        ..CommandLookupTopic::default()
    })
}

fn message(consumer_id: u64) -> Command {
    Command::from(CommandMessage {
        consumer_id,
        message_id: MessageIdData::default(),
        ..CommandMessage::default()
    })
}

/// Lets all other tasks run until they wait.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

async fn is_pending<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    let mut future = future;
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[tokio::test(start_paused = true)]
async fn handshake_sends_connect_and_adopts_the_brokers_frame_limit() {
    let large = Bytes::from(vec![0; 6 * 1024 * 1024]);
    let frame = crate::protocol::frame::Frame {
        command: message(1).encode_command(),
        payload: large,
    };
    let script = Script::new().on(Type::Connect, move |_| {
        let connected = connected_with(20, Some(8 * 1024 * 1024));
        vec![Step::Send(connected), Step::Frame(frame.clone())]
    });
    let broker = ScriptedBroker::without_listener(script);
    let options = options();
    let (connection, mut events) = open(&broker, &options).await.unwrap();
    assert_eq!(connection.connected().protocol_version(), 20);
    assert_eq!(
        Command::decode(&connection.connected_frame().command),
        Ok(connected_with(20, Some(8 * 1024 * 1024)))
    );
    assert_eq!(events.recv().await.unwrap().payload.len(), 6 * 1024 * 1024);
    let received = broker.wait_for(Type::Connect, 1).await;
    assert_eq!(received[0].command, Command::from(connect_command()));
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_connect_keeps_the_brokers_answer() {
    let answer = error(
        CONNECTION_REQUEST_ID,
        ServerError::AuthenticationError,
        "who are you",
    );
    let sent = answer.clone();
    let script = Script::new().on(Type::Connect, move |_| {
        vec![Step::Send(sent.clone()), Step::Close]
    });
    let broker = ScriptedBroker::without_listener(script);
    let options = options();
    let Err(ConnectError::Refused {
        code,
        message,
        frame,
    }) = open(&broker, &options).await
    else {
        panic!("not refused");
    };
    assert_eq!(code, ServerError::AuthenticationError);
    assert_eq!(message, "who are you");
    assert_eq!(frame.command, answer.encode_command());
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_does_not_come_is_no_fault_of_the_broker() {
    struct Silent;
    impl Introducer for Silent {
        fn introduce<'a>(
            &'a self,
            _: &'a mut CommandConnect,
        ) -> BoxFuture<'a, Result<(), CredentialError>> {
            Box::pin(std::future::pending())
        }

        fn answer(
            &self,
            _: crate::protocol::proto::pulsar::CommandAuthChallenge,
        ) -> BoxFuture<'static, Result<Option<AuthData>, CredentialError>> {
            Box::pin(std::future::ready(Ok(None)))
        }
    }
    let options = ConnectionOptions {
        authentication: Authentication::introduced_by(Arc::new(Silent)),
        ..options()
    };
    let broker = ScriptedBroker::without_listener(Script::new());
    let error = open(&broker, &options).await.unwrap_err();
    assert!(matches!(error, ConnectError::Credential(_)), "{error:?}");
    assert!(error.is_about_the_client());
}

#[tokio::test(start_paused = true)]
async fn each_failed_handshake_has_its_error() {
    let cases: Vec<Case<ConnectError>> = vec![
        (vec![Step::Close], |e| {
            matches!(e, ConnectError::ClosedDuringHandshake)
        }),
        (vec![], |e| matches!(e, ConnectError::HandshakeTimeout(_))),
        (vec![Step::Raw(Bytes::from_static(b"HTTP/1.1 400"))], |e| {
            matches!(e, ConnectError::Frame(_))
        }),
        (
            vec![Step::Raw(Bytes::from_static(b"\0\0\0\x08\0\0\0\x04abcd"))],
            |e| matches!(e, ConnectError::Command(_)),
        ),
        (
            vec![
                Step::Raw(Bytes::from_static(b"\0\0\0\x08\0\0")),
                Step::Close,
            ],
            |e| matches!(e, ConnectError::ClosedDuringHandshake),
        ),
        (vec![Step::Send(message(1))], |e| {
            matches!(e, ConnectError::UnexpectedAnswer("MESSAGE"))
        }),
        (vec![Step::Send(auth_challenge())], |e| {
            matches!(e, ConnectError::ChallengeUnsupported)
        }),
    ];
    for (steps, expected) in cases {
        let described = format!("{steps:?}");
        let script = Script::new().on(Type::Connect, move |_| steps.clone());
        let broker = ScriptedBroker::without_listener(script);
        let options = options();
        let error = open(&broker, &options).await.unwrap_err();
        assert!(expected(&error), "{described}: {error:?}");
        nothing_is_left(broker, options).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_challenges_without_end_is_given_up() {
    let challenge = |_: &Received| vec![Step::Send(auth_challenge())];
    let script = Script::empty()
        .on(Type::Connect, challenge)
        .on(Type::AuthResponse, challenge);
    let broker = ScriptedBroker::without_listener(script);
    let supplier = || Ok(Bytes::from_static(b"token"));
    let options = ConnectionOptions {
        authentication: Authentication::token_from(Arc::new(supplier)),
        ..options()
    };
    let error = open(&broker, &options).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::TooManyChallenges(10)),
        "{error:?}"
    );
    assert_eq!(broker.received_of(Type::AuthResponse).len(), 10);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn connect_and_each_challenge_carry_a_freshly_read_credential() {
    let script = Script::new()
        .on(Type::Connect, |_| vec![Step::Send(auth_challenge())])
        .on(Type::AuthResponse, |_| {
            vec![Step::Send(connected_with(21, None))]
        });
    let broker = ScriptedBroker::without_listener(script);
    let credentials = Mutex::new(["first", "second", "third"].into_iter());
    let supplier = move || Ok(Bytes::from(credentials.lock().next().unwrap()));
    let options = ConnectionOptions {
        authentication: Authentication::token_from(Arc::new(supplier)),
        ..options()
    };
    let (connection, mut events) = open(&broker, &options).await.unwrap();
    broker.set_script(Script::new());
    broker.push(vec![Step::Send(auth_challenge())]);
    let responses = broker.wait_for(Type::AuthResponse, 2).await;
    let answer = |credential: &'static str| {
        Command::from(CommandAuthResponse {
            client_version: Some("test".to_owned()),
            response: Some(AuthData {
                auth_method_name: Some("token".to_owned()),
                auth_data: Some(Bytes::from(credential)),
            }),
            protocol_version: Some(21),
        })
    };
    let sent: Vec<_> = responses.into_iter().map(|each| each.command).collect();
    assert_eq!(sent, [answer("second"), answer("third")]);
    let connect = CommandConnect {
        auth_method_name: Some("token".to_owned()),
        auth_data: Some(Bytes::from("first")),
        ..connect_command()
    };
    assert_eq!(
        broker.received_of(Type::Connect)[0].command,
        Command::from(connect)
    );
    drop(connection);
    assert!(events.recv().await.is_none());
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn a_broker_may_challenge_as_often_as_it_likes_but_not_as_fast() {
    let broker = ScriptedBroker::without_listener(Script::new());
    let options = ConnectionOptions {
        authentication: Authentication::token_from(Arc::new(|| Ok(Bytes::from("t")))),
        // No PING says that time goes by.
        keep_alive_interval: None,
        ..options()
    };
    let (connection, _events) = open(&broker, &options).await.unwrap();
    for count in 1..=250 {
        broker.push(vec![Step::Send(auth_challenge())]);
        tokio::select! {
            reason = connection.closed() => panic!("{reason} at challenge {count}"),
            _ = broker.wait_for(Type::AuthResponse, count) => {}
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert!(!connection.is_closed());
    broker.push((0..101).map(|_| Step::Send(auth_challenge())).collect());
    let reason = connection.closed().await;
    assert!(matches!(reason, CloseReason::Violation(_)), "{reason:?}");
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_cannot_be_read_fails_the_handshake_and_ends_an_open_connection() {
    let broker = ScriptedBroker::without_listener(Script::new());
    let credentials = Mutex::new(vec![Ok(Bytes::from("good"))].into_iter());
    let lost = || CredentialError::Supplier("lost".to_owned());
    let supplier = move || credentials.lock().next().unwrap_or_else(|| Err(lost()));
    let options = ConnectionOptions {
        authentication: Authentication::supplied("custom", Arc::new(supplier)),
        ..options()
    };
    let (connection, _events) = open(&broker, &options).await.unwrap();
    broker.push(vec![Step::Send(auth_challenge())]);
    let reason = connection.closed().await;
    assert!(
        matches!(&reason, CloseReason::Credential(error) if *error == lost()),
        "{reason:?}"
    );
    let refused = open(&broker, &options).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Credential(error) if error == lost()));
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn requests_get_their_own_answers_in_any_order() {
    let broker = ScriptedBroker::without_listener(Script::new());
    let options = options();
    let (connection, _events) = open(&broker, &options).await.unwrap();
    let answers = async {
        let received = broker.wait_for(Type::Lookup, 3).await;
        let steps = received.iter().rev().map(|received| {
            let Command::Lookup(lookup) = &received.command else {
                panic!("not a lookup");
            };
            Step::Send(lookup_connect(received.request_id(), &lookup.topic))
        });
        broker.push(steps.collect());
    };
    let ask = |topic: &'static str| {
        let connection = connection.clone();
        async move {
            match connection.request(lookup(topic)).await {
                Ok(Command::LookupResponse(answer)) => answer.broker_service_url.unwrap(),
                other => panic!("{other:?}"),
            }
        }
    };
    let (a, b, c, ()) = tokio::join!(ask("a"), ask("b"), ask("c"), answers);
    assert_eq!([a, b, c], ["a", "b", "c"]);
    assert_eq!(connection.in_flight(), 0);
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn a_raw_request_changes_only_the_request_id_and_the_answer_nothing() {
    let script = Script::new().on(Type::PartitionedMetadata, |received| {
        // What the Apache proxy does when the broker refused.
        let answer = lookup_failed(received.request_id(), ServerError::TopicNotFound, "none");
        vec![Step::Send(answer)]
    });
    let broker = ScriptedBroker::without_listener(script);
    let options = options();
    let (connection, _events) = open(&broker, &options).await.unwrap();
    let command = Command::from(CommandPartitionedTopicMetadata {
        topic: "persistent://t/n/x".to_owned(),
        request_id: 77,
        original_principal: Some("someone".to_owned()),
        ..CommandPartitionedTopicMetadata::default()
    });
    let answer = connection
        .request_raw(command.encode_command())
        .await
        .unwrap();
    let received = broker.received_of(Type::PartitionedMetadata);
    let ours = received[0].request_id();
    let restored = rewrite::with_request_id(&received[0].frame.command, 77).unwrap();
    assert_eq!(restored, command.encode_command());
    assert_eq!(
        answer.command,
        lookup_failed(ours, ServerError::TopicNotFound, "none").encode_command()
    );
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn an_error_answer_refuses_a_typed_request() {
    let script = Script::new().on(Type::Lookup, |received| {
        vec![Step::Send(error(
            received.request_id(),
            ServerError::TooManyRequests,
            "later",
        ))]
    });
    let broker = ScriptedBroker::without_listener(script);
    let options = options();
    let (connection, _events) = open(&broker, &options).await.unwrap();
    let Err(RequestError::Refused { code, message }) = connection.request(lookup("x")).await else {
        panic!("not refused");
    };
    assert_eq!(
        (code, message.as_str()),
        (ServerError::TooManyRequests, "later")
    );
    assert!(!connection.is_closed());
    let no_request = Command::from(CommandPing {});
    let result = connection.request(no_request).await;
    assert!(
        matches!(result, Err(RequestError::Command(_))),
        "{result:?}"
    );
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn a_producer_that_is_not_ready_is_waited_for() {
    let success = |request_id, ready| {
        Step::Send(Command::from(CommandProducerSuccess {
            request_id,
            producer_name: "p".to_owned(),
            producer_ready: Some(ready),
            ..CommandProducerSuccess::default()
        }))
    };
    let script = Script::new().on(Type::Producer, move |received| {
        let id = received.request_id();
        vec![
            success(id, false),
            Step::Delay(Duration::from_secs(5)),
            success(id, true),
        ]
    });
    let broker = ScriptedBroker::without_listener(script);
    let options = options();
    let (connection, _events) = open(&broker, &options).await.unwrap();
    let answer = connection
        .request(Command::from(CommandProducer::default()))
        .await;
    assert!(matches!(answer, Ok(Command::ProducerSuccess(success)) if success.producer_ready()));
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_times_out_and_its_late_answer_is_dropped() {
    let script = Script::new().on(Type::Lookup, |received| {
        let answer = lookup_connect(received.request_id(), "late");
        vec![
            Step::Delay(Duration::from_secs(40)),
            Step::Send(answer),
            Step::Send(message(1)),
        ]
    });
    let broker = ScriptedBroker::without_listener(script);
    let options = options();
    let (connection, mut events) = open(&broker, &options).await.unwrap();
    let result = connection.request(lookup("x")).await;
    assert!(
        matches!(result, Err(RequestError::Timeout(limit)) if limit == options.request_timeout)
    );
    assert_eq!(connection.in_flight(), 0);
    let event = events.recv().await.unwrap();
    assert_eq!(
        Command::peek_type(&event.command),
        Ok(Type::Message as i32),
        "the answer is no event"
    );
    assert!(!connection.is_closed());
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_is_forgotten_and_its_place_is_free() {
    let broker = ScriptedBroker::without_listener(Script::new());
    let options = ConnectionOptions {
        max_in_flight: 1,
        ..options()
    };
    let (connection, _events) = open(&broker, &options).await.unwrap();
    {
        let mut request = std::pin::pin!(connection.request(lookup("a")));
        assert!(is_pending(request.as_mut()).await);
        assert_eq!(connection.in_flight(), 1);
        let mut second = std::pin::pin!(connection.request(lookup("b")));
        assert!(is_pending(second.as_mut()).await);
        assert_eq!(connection.in_flight(), 1, "the second waits for a place");
    }
    assert_eq!(connection.in_flight(), 0);
    broker.set_script(Script::new().on(Type::Lookup, |received| {
        vec![Step::Send(lookup_connect(received.request_id(), "url"))]
    }));
    // The forgotten request may still have been sent: its answer must not be taken for this one's.
    assert!(connection.request(lookup("c")).await.is_ok());
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_connection_fails_all_requests_with_its_reason() {
    let cases: Vec<Case<CloseReason>> = vec![
        (vec![Step::Close], |r| matches!(r, CloseReason::EndOfStream)),
        (vec![Step::HalfClose], |r| {
            matches!(r, CloseReason::EndOfStream)
        }),
        (vec![Step::Raw(Bytes::from_static(&[0xff; 20]))], |r| {
            matches!(r, CloseReason::Frame(_))
        }),
        (
            vec![Step::Raw(Bytes::from_static(b"\0\0\0\x08\0\0\0\x04abcd"))],
            |r| matches!(r, CloseReason::Command(_)),
        ),
        (
            vec![Step::Send(error(
                CONNECTION_REQUEST_ID,
                ServerError::ServiceNotReady,
                "gone",
            ))],
            |r| matches!(r, CloseReason::Broker { code: ServerError::ServiceNotReady, message } if &**message == "gone"),
        ),
    ];
    for (steps, expected) in cases {
        let described = format!("{steps:?}");
        let broker = ScriptedBroker::without_listener(Script::new());
        let options = ConnectionOptions {
            max_in_flight: 2,
            ..options()
        };
        let (connection, mut events) = open(&broker, &options).await.unwrap();
        let end = async {
            broker.wait_for(Type::Lookup, 2).await;
            broker.push(steps);
        };
        // The third one waits for a place.
        let (a, b, c, ()) = tokio::join!(
            connection.request(lookup("a")),
            connection.request(lookup("b")),
            connection.request(lookup("c")),
            end
        );
        for result in [a, b, c, connection.request(lookup("later")).await] {
            let Err(RequestError::Closed(reason)) = result else {
                panic!("{described}: {result:?}");
            };
            assert!(expected(&reason), "{described}: {reason:?}");
        }
        assert!(expected(&connection.closed().await));
        assert!(connection.is_closed());
        let ping = Command::from(CommandPing {});
        assert_eq!(
            connection.send(Outgoing::Command(&ping)),
            Err(OutboundError::Closed)
        );
        assert!(events.recv().await.is_none());
        nothing_is_left(broker, options).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_ping_is_answered_with_pong() {
    let broker = ScriptedBroker::without_listener(Script::new());
    let options = options();
    let (connection, _events) = open(&broker, &options).await.unwrap();
    broker.push(vec![Step::Send(Command::from(CommandPing {}))]);
    broker.wait_for(Type::Pong, 1).await;
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn pings_keep_a_connection_alive_that_says_nothing_else() {
    let broker = ScriptedBroker::without_listener(Script::new());
    let options = ConnectionOptions {
        keep_alive_interval: Some(Duration::from_secs(30)),
        ..options()
    };
    let (connection, _events) = open(&broker, &options).await.unwrap();
    let start = tokio::time::Instant::now();
    broker.wait_for(Type::Ping, 10).await;
    assert_eq!(start.elapsed(), Duration::from_secs(300));
    assert!(!connection.is_closed());
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_broker_is_given_up_after_two_intervals() {
    let broker = ScriptedBroker::without_listener(Script::new().ignore(Type::Ping));
    let options = ConnectionOptions {
        keep_alive_interval: Some(Duration::from_secs(30)),
        ..options()
    };
    let (connection, _events) = open(&broker, &options).await.unwrap();
    let start = tokio::time::Instant::now();
    assert!(matches!(
        connection.closed().await,
        CloseReason::KeepAliveTimeout
    ));
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    assert_eq!(broker.received_of(Type::Ping).len(), 1);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn unsolicited_frames_come_in_order_with_their_payload() {
    let broker = ScriptedBroker::without_listener(Script::new());
    let options = options();
    let (connection, mut events) = open(&broker, &options).await.unwrap();
    let frames = [
        crate::protocol::frame::Frame {
            command: message(1).encode_command(),
            payload: Bytes::from_static(b"payload"),
        },
        crate::protocol::frame::Frame {
            command: Command::from(CommandSendReceipt::default()).encode_command(),
            payload: Bytes::new(),
        },
        crate::protocol::frame::Frame {
            command: Command::from(CommandCloseProducer {
                producer_id: 1,
                request_id: CONNECTION_REQUEST_ID,
                ..CommandCloseProducer::default()
            })
            .encode_command(),
            payload: Bytes::new(),
        },
        crate::protocol::frame::Frame {
            command: auth_challenge().encode_command(),
            payload: Bytes::new(),
        },
    ];
    broker.push(frames.iter().cloned().map(Step::Frame).collect());
    for frame in frames {
        assert_eq!(events.recv().await, Some(frame));
    }
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn full_events_stop_the_reading_and_do_not_count_as_silence() {
    let script = Script::new().on(Type::Lookup, |received| {
        let answer = Command::from(CommandSuccess {
            request_id: received.request_id(),
            schema: None,
        });
        vec![Step::Send(answer)]
    });
    let broker = ScriptedBroker::without_listener(script);
    let options = ConnectionOptions {
        max_events: 2,
        request_timeout: Duration::from_secs(1000),
        keep_alive_interval: Some(Duration::from_secs(30)),
        ..options()
    };
    let (connection, mut events) = open(&broker, &options).await.unwrap();
    broker.push((0..5).map(|id| Step::Send(message(id))).collect());
    settle().await;
    let asking = connection.clone();
    let mut request = Box::pin(async move { asking.request(lookup("x")).await });
    let waited = tokio::time::timeout(Duration::from_secs(300), request.as_mut()).await;
    assert!(waited.is_err(), "an answer behind full events");
    assert!(!connection.is_closed());
    for id in 0..5 {
        assert_eq!(
            events.recv().await.unwrap().command,
            message(id).encode_command()
        );
    }
    assert!(request.await.is_ok());
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn events_that_nobody_wants_are_discarded() {
    let script = Script::new().on(Type::Lookup, |received| {
        vec![Step::Send(lookup_connect(received.request_id(), "url"))]
    });
    let broker = ScriptedBroker::without_listener(script);
    let options = ConnectionOptions {
        max_events: 1,
        ..options()
    };
    let (connection, events) = open(&broker, &options).await.unwrap();
    broker.push((0..5).map(|id| Step::Send(message(id))).collect());
    settle().await;
    drop(events);
    assert!(connection.request(lookup("x")).await.is_ok());
    drop(connection);
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_before_the_last_handle_is_dropped_still_goes_out() {
    let broker = ScriptedBroker::without_listener(Script::new());
    let options = options();
    let (connection, events) = open(&broker, &options).await.unwrap();
    drop(events);
    let other = connection.clone();
    drop(connection);
    settle().await;
    assert!(!other.is_closed());
    other
        .send(Outgoing::Command(&Command::from(CommandCloseProducer {
            producer_id: 5,
            request_id: 9,
            ..CommandCloseProducer::default()
        })))
        .unwrap();
    drop(other);
    broker.wait_for(Type::CloseProducer, 1).await;
    broker.wait_for_open(0).await;
    nothing_is_left(broker, options).await;
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_a_broker_that_stopped_reading() {
    let broker =
        ScriptedBroker::without_listener(Script::new().on(Type::Flow, |_| vec![Step::StopReading]));
    let options = ConnectionOptions {
        outbound: OutboundLimits {
            high_watermark: 4096,
            urgent_max: 16,
        },
        ..options()
    };
    let (connection, _events) = establish(broker.connect(256), &options).await.unwrap();
    let flow = Command::from(crate::protocol::proto::pulsar::CommandFlow::default());
    connection.send(Outgoing::Command(&flow)).unwrap();
    settle().await;
    while connection
        .send(Outgoing::Raw(Bytes::from(vec![0; 500])))
        .is_ok()
    {
        settle().await;
    }
    // A request waits for room, then for the answer, and no longer than its timeout.
    let result = connection.request(lookup("x")).await;
    assert!(matches!(result, Err(RequestError::Timeout(_))));

    let start = tokio::time::Instant::now();
    connection.close();
    assert!(matches!(connection.closed().await, CloseReason::Local));
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    nothing_is_left(broker, options).await;
}

#[tokio::test]
async fn opens_over_a_real_socket_and_reports_a_refused_one() {
    let script = Script::new().on(Type::PartitionedMetadata, |received| {
        vec![Step::Send(partitions(received.request_id(), 3))]
    });
    let broker = ScriptedBroker::start(script).await;
    let options = options();
    let connection = Connection::open(&broker.address(), connect_command(), options.clone())
        .await
        .unwrap();
    let answer = connection
        .request(Command::from(CommandPartitionedTopicMetadata::default()))
        .await
        .unwrap();
    assert!(matches!(answer, Command::PartitionedMetadataResponse(r) if r.partitions() == 3));
    drop(connection);
    broker.wait_for_open(0).await;

    nothing_is_left(broker, options.clone()).await;

    // Bound but not listening: nobody else gets the port, and connections are refused.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let address = crate::naming::BrokerAddress::from_host_port(&address).unwrap();
    let refused = Connection::open(&address, connect_command(), options.clone()).await;
    assert!(matches!(refused, Err(ConnectError::Dial(_))), "{refused:?}");
}
