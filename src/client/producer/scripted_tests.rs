//! Producers against brokers that follow a script, honest or not.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::*;
use crate::{
    client::{backoff::BackoffPolicy, connection::ConnectionOptions, pulsar_client::ClientOptions},
    naming::ServiceUrl,
    protocol::proto::pulsar::{
        CommandCloseProducer, CommandProducer, CommandProducerSuccess, CommandSend,
        CommandSendError, CommandSendReceipt, CommandSuccess, CommandTopicMigrated, MessageIdData,
        ServerError, base_command::Type, command_topic_migrated::ResourceType,
    },
    testing::scripted_broker::{
        Received, Script, ScriptedBroker, Step, error, lookup_connect, partitions,
    },
};

fn topic() -> TopicName {
    TopicName::parse("public/default/scripted").unwrap()
}

fn options() -> ProducerOptions {
    ProducerOptions {
        batching: None,
        ..ProducerOptions::default()
    }
}

fn client_of(broker: &ScriptedBroker) -> PulsarClient {
    client_with_delays_of(broker, Duration::from_millis(1))
}

/// With attempts at least that far from each other.
fn client_with_delays_of(broker: &ScriptedBroker, initial: Duration) -> PulsarClient {
    let options = ClientOptions {
        connection: ConnectionOptions {
            request_timeout: Duration::from_millis(500),
            ..ConnectionOptions::default()
        },
        operation_timeout: Duration::from_secs(3),
        backoff: BackoffPolicy {
            initial,
            max: initial * 10,
            ..BackoffPolicy::default()
        },
        ..ClientOptions::default()
    };
    PulsarClient::new(ServiceUrl::from(broker.address()), options)
}

fn send_of(received: &Received) -> &CommandSend {
    match &received.command {
        Command::Send(send) => send,
        other => panic!("{other:?}"),
    }
}

fn producer_of(received: &Received) -> &CommandProducer {
    match &received.command {
        Command::Producer(producer) => producer,
        other => panic!("{other:?}"),
    }
}

fn success(received: &Received) -> CommandProducerSuccess {
    CommandProducerSuccess {
        request_id: received.request_id(),
        producer_name: "given".to_owned(),
        last_sequence_id: Some(-1),
        ..CommandProducerSuccess::default()
    }
}

fn receipt(producer_id: u64, sequence_id: u64) -> Command {
    Command::from(CommandSendReceipt {
        producer_id,
        sequence_id,
        message_id: Some(MessageIdData {
            ledger_id: 1,
            entry_id: sequence_id,
            ..MessageIdData::default()
        }),
        highest_sequence_id: None,
    })
}

fn close_producer(producer_id: u64) -> Command {
    Command::from(CommandCloseProducer {
        producer_id,
        request_id: u64::MAX,
        ..CommandCloseProducer::default()
    })
}

fn ok(received: &Received) -> Vec<Step> {
    let success = CommandSuccess {
        request_id: received.request_id(),
        schema: None,
    };
    vec![Step::Send(success.into())]
}

/// A broker that does all right.
fn honest(url: &str) -> Script {
    let url = url.to_owned();
    Script::new()
        .on(Type::PartitionedMetadata, |received| {
            vec![Step::Send(partitions(received.request_id(), 0))]
        })
        .on(Type::Lookup, move |received| {
            vec![Step::Send(lookup_connect(received.request_id(), &url))]
        })
        .on(Type::Producer, |received| {
            vec![Step::Send(success(received).into())]
        })
        .on(Type::Send, |received| {
            let send = send_of(received);
            vec![Step::Send(receipt(send.producer_id, send.sequence_id))]
        })
        .on(Type::CloseProducer, ok)
}

async fn start() -> (ScriptedBroker, Script) {
    let broker = ScriptedBroker::start(Script::new()).await;
    let script = honest(&broker.url());
    broker.set_script(script.clone());
    (broker, script)
}

/// Does something else on the first commands of a type, one list of steps for each, and the honest thing from then on.
fn first(
    script: Script,
    command_type: Type,
    instead: impl Fn(usize, &Received) -> Option<Vec<Step>> + Send + Sync + 'static,
    honest: impl Fn(&Received) -> Vec<Step> + Send + Sync + 'static,
) -> Script {
    let count = AtomicUsize::new(0);
    script.on(command_type, move |received| {
        let count = count.fetch_add(1, Ordering::SeqCst);
        instead(count, received).unwrap_or_else(|| honest(received))
    })
}

fn honest_receipt(received: &Received) -> Vec<Step> {
    let send = send_of(received);
    vec![Step::Send(receipt(send.producer_id, send.sequence_id))]
}

fn text(text: &str) -> OutgoingMessage {
    OutgoingMessage::new(text.to_owned())
}

/// Sends ten messages with this answer to the first ones, and checks that all were stored in the end.
async fn survives(
    connections: usize,
    instead: impl Fn(usize, &Received) -> Option<Vec<Step>> + Send + Sync + 'static,
) {
    let (broker, script) = start().await;
    broker.set_script(first(script, Type::Send, instead, honest_receipt));
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    let mut receipts = Vec::new();
    for at in 0..10 {
        receipts.push(producer.enqueue(text(&at.to_string())).await.unwrap());
    }
    for (at, receipt) in receipts.into_iter().enumerate() {
        assert_eq!(receipt.await.unwrap().entry_id, at as u64);
    }
    // One for lookups.
    assert_eq!(broker.accepted(), connections + 1);
    producer.close().await.unwrap();
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn sends_and_closes() {
    let (broker, _) = start().await;
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    assert_eq!(producer.name(), "given");
    assert!(producer.is_connected());
    assert_eq!(producer.send(text("a")).await.unwrap().entry_id, 0);
    assert_eq!(producer.last_sequence_id(), Some(0));
    producer.close().await.unwrap();
    assert_eq!(broker.received_of(Type::CloseProducer).len(), 1);
    assert!(matches!(
        producer.send(text("b")).await,
        Err(SendError::Closed)
    ));
    assert!(!producer.is_connected());
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_producer_that_is_dropped_is_closed_at_the_broker() {
    let (broker, _) = start().await;
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    drop(producer);
    broker.wait_for(Type::CloseProducer, 1).await;
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn goes_on_after_the_connection_is_lost_without_receipts() {
    survives(2, |count, _| match count {
        0..9 => Some(vec![]),
        9 => Some(vec![Step::Close]),
        _ => None,
    })
    .await;
}

#[tokio::test]
async fn goes_on_after_a_receipt_for_a_message_that_is_not_next() {
    survives(2, |count, received| {
        let id = send_of(received).producer_id;
        (count == 0).then(|| vec![Step::Send(receipt(id, 5))])
    })
    .await;
}

#[tokio::test]
async fn goes_on_after_a_receipt_for_a_message_from_the_future() {
    survives(2, |count, received| {
        let id = send_of(received).producer_id;
        (count == 3).then(|| vec![Step::Send(receipt(id, u64::MAX))])
    })
    .await;
}

#[tokio::test]
async fn does_not_mind_receipts_that_come_twice_or_for_others() {
    survives(1, |_, received| {
        let send = send_of(received);
        Some(vec![
            Step::Send(receipt(send.producer_id + 1, send.sequence_id)),
            Step::Send(receipt(send.producer_id, send.sequence_id)),
            Step::Send(receipt(send.producer_id, send.sequence_id)),
        ])
    })
    .await;
}

#[tokio::test]
async fn goes_on_after_bytes_that_are_no_frame() {
    for garbage in [
        &b"\xff\xff\xff\xff\xff\xff\xff\xff"[..],
        b"\0\0\0\x02\0\0",
        b"\0\0\0\x08\0\0\0\x09\x08\x07\x3a\0",
        b"\0\0\0\x07\0\0\0\x03\x08\x07\x3a",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ] {
        survives(2, move |count, _| {
            (count == 2).then(|| vec![Step::Raw(Bytes::from_static(garbage)), Step::Delay(SHORT)])
        })
        .await;
    }
}

#[tokio::test]
async fn goes_on_after_a_passing_refusal() {
    survives(2, |count, received| {
        let send = send_of(received);
        let refused = CommandSendError {
            producer_id: send.producer_id,
            sequence_id: send.sequence_id,
            error: ServerError::PersistenceError.into(),
            message: "no".to_owned(),
        };
        (count == 0).then(|| vec![Step::Send(refused.into())])
    })
    .await;
}

#[tokio::test]
async fn goes_on_where_the_broker_moves_the_topic() {
    survives(1, |count, received| {
        let id = send_of(received).producer_id;
        (count == 4).then(|| vec![Step::Send(close_producer(id))])
    })
    .await;
}

#[tokio::test]
async fn goes_to_the_cluster_that_the_topic_was_migrated_to() {
    let (broker, script) = start().await;
    let (other, _) = start().await;
    let url = other.url();
    broker.set_script(script.on(Type::Send, move |received| {
        let migrated = CommandTopicMigrated {
            resource_id: send_of(received).producer_id,
            resource_type: ResourceType::Producer.into(),
            broker_service_url: Some(url.clone()),
            broker_service_url_tls: None,
        };
        vec![Step::Send(migrated.into())]
    }));
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    producer.send(text("a")).await.unwrap();
    assert_eq!(other.received_of(Type::Send).len(), 1);
    assert_eq!(other.received_of(Type::Lookup).len(), 1);
    client.close();
    broker.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn opens_at_the_broker_that_is_named_without_a_lookup() {
    let (broker, script) = start().await;
    let (other, _) = start().await;
    let url = other.url();
    broker.set_script(script.on(Type::Send, move |received| {
        let close = CommandCloseProducer {
            producer_id: send_of(received).producer_id,
            request_id: u64::MAX,
            assigned_broker_service_url: Some(url.clone()),
            ..CommandCloseProducer::default()
        };
        vec![Step::Send(close.into())]
    }));
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    producer.send(text("a")).await.unwrap();
    assert_eq!(other.received_of(Type::Send).len(), 1);
    assert!(other.received_of(Type::Lookup).is_empty());
    let again = other.received_of(Type::Producer);
    let again = producer_of(&again[0]);
    assert_eq!(again.producer_name.as_deref(), Some("given"));
    assert_eq!(again.user_provided_producer_name, Some(false));
    assert_eq!(again.epoch, Some(1));
    client.close();
    broker.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_broker_that_never_answers_fails_messages_by_their_time() {
    let (broker, script) = start().await;
    broker.set_script(script.ignore(Type::Send));
    let client = client_of(&broker);
    let options = ProducerOptions {
        send_timeout: Some(Duration::from_millis(50)),
        ..options()
    };
    let producer = client.producer(&topic(), options).await.unwrap();
    let error = producer.send(text("a")).await.unwrap_err();
    assert!(matches!(error, SendError::Timeout { .. }), "{error}");
    assert_eq!(producer.pending(), 0);
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_message_without_receipt_fails_with_what_the_broker_said_last() {
    let (broker, script) = start().await;
    let client = client_of(&broker);
    for (code, message, expected) in [
        (2, "disk full", "PersistenceError: disk full"),
        (4242, "who knows", "UnknownError: code 4242: who knows"),
    ] {
        broker.set_script(script.clone().on(Type::Send, move |received| {
            let send = send_of(received);
            let error = CommandSendError {
                producer_id: send.producer_id,
                sequence_id: send.sequence_id,
                error: code,
                message: message.to_owned(),
            };
            vec![Step::Send(error.into())]
        }));
        let options = ProducerOptions {
            send_timeout: Some(Duration::from_millis(200)),
            ..options()
        };
        let producer = client.producer(&topic(), options).await.unwrap();
        let error = producer.send(text("a")).await.unwrap_err().to_string();
        assert!(
            error.starts_with("no receipt within 200ms; last: "),
            "{error}"
        );
        assert!(error.ends_with(expected), "{error}");
    }
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_never_takes_the_producer_is_given_up_and_told_so() {
    let (broker, script) = start().await;
    broker.set_script(script.ignore(Type::Producer));
    let client = client_of(&broker);
    let error = client.producer(&topic(), options()).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    // An answer may be on its way, and the name would stay taken.
    broker.wait_for(Type::CloseProducer, 1).await;
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_refusal_that_will_not_pass_is_told_at_once() {
    let (broker, script) = start().await;
    broker.set_script(script.on(Type::Producer, |received| {
        let refused = error(
            received.request_id(),
            ServerError::ProducerFenced,
            "somebody else has it",
        );
        vec![Step::Send(refused)]
    }));
    let client = client_of(&broker);
    let error = client.producer(&topic(), options()).await.unwrap_err();
    assert_eq!(error.server_error(), Some(ServerError::ProducerFenced));
    assert_eq!(broker.received_of(Type::Producer).len(), 1);
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_full_backlog_fails_what_waits_and_does_not_end_the_producer() {
    let (broker, script) = start().await;
    let script = first(
        script,
        Type::Send,
        |count, _| (count == 0).then(|| vec![Step::Close]),
        honest_receipt,
    );
    broker.set_script(first(
        script,
        Type::Producer,
        |count, received| {
            let code = ServerError::ProducerBlockedQuotaExceededException;
            let refused = error(received.request_id(), code, "backlog");
            (1..3).contains(&count).then(|| vec![Step::Send(refused)])
        },
        |received| vec![Step::Send(success(received).into())],
    ));
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    let error = producer.send(text("a")).await.unwrap_err();
    assert!(matches!(error, SendError::Client(_)), "{error}");
    broker.wait_for(Type::Producer, 4).await;
    assert_eq!(producer.send(text("b")).await.unwrap().entry_id, 1);
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn creating_waits_while_a_full_backlog_holds_producers_back() {
    let (broker, script) = start().await;
    broker.set_script(first(
        script,
        Type::Producer,
        |count, received| {
            let code = ServerError::ProducerBlockedQuotaExceededError;
            let refused = error(received.request_id(), code, "backlog");
            (count < 2).then(|| vec![Step::Send(refused)])
        },
        |received| vec![Step::Send(success(received).into())],
    ));
    let client = client_of(&broker);
    client.producer(&topic(), options()).await.unwrap();
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_refusal_that_may_pass_is_tried_again() {
    let (broker, script) = start().await;
    broker.set_script(first(
        script,
        Type::Producer,
        |count, received| {
            let refused = error(received.request_id(), ServerError::ServiceNotReady, "wait");
            (count < 3).then(|| vec![Step::Send(refused)])
        },
        |received| vec![Step::Send(success(received).into())],
    ));
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    producer.send(text("a")).await.unwrap();
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn an_answer_of_another_kind_is_an_error() {
    let (broker, script) = start().await;
    broker.set_script(script.on(Type::Producer, ok));
    let client = client_of(&broker);
    let error = client.producer(&topic(), options()).await.unwrap_err();
    assert!(matches!(error, ClientError::UnexpectedAnswer(_)), "{error}");
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_with_too_many_partitions_is_not_believed() {
    let (broker, script) = start().await;
    broker.set_script(script.on(Type::PartitionedMetadata, |received| {
        vec![Step::Send(partitions(received.request_id(), u32::MAX))]
    }));
    let client = client_of(&broker);
    let error = client.producer(&topic(), options()).await.unwrap_err();
    assert!(matches!(error, ClientError::UnexpectedAnswer(_)), "{error}");
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn sizes_and_ids_that_lie_do_no_harm() {
    let (broker, script) = start().await;
    broker.set_script(
        script
            .on(Type::Connect, |_| {
                let connected = crate::testing::scripted_broker::connected_with(21, Some(-5));
                vec![Step::Send(connected)]
            })
            .on(Type::Producer, |received| {
                let success = CommandProducerSuccess {
                    last_sequence_id: Some(i64::MAX),
                    topic_epoch: Some(u64::MAX),
                    schema_version: Some(Bytes::from_static(&[0xff; 1000])),
                    ..success(received)
                };
                vec![Step::Send(success.into())]
            }),
    );
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    assert_eq!(producer.schema_version(), None);
    producer.send(text("a")).await.unwrap();
    assert_eq!(producer.last_sequence_id(), Some(1 << 63));
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn waits_for_exclusive_access_longer_than_for_an_answer() {
    let (broker, script) = start().await;
    let waiting = Arc::new(Mutex::new(None));
    let asked = Arc::clone(&waiting);
    broker.set_script(script.on(Type::Producer, move |received| {
        *asked.lock() = Some(success(received));
        let not_yet = CommandProducerSuccess {
            producer_ready: Some(false),
            ..success(received)
        };
        vec![Step::Send(not_yet.into())]
    }));
    let client = client_of(&broker);
    let options = ProducerOptions {
        access_mode: ProducerAccessMode::WaitForExclusive,
        ..options()
    };
    let topic = topic();
    let mut producer = std::pin::pin!(client.producer(&topic, options));
    let early = tokio::time::timeout(Duration::from_secs(1), producer.as_mut()).await;
    assert!(
        early.is_err(),
        "the request timeout of 500 ms does not count"
    );
    assert_eq!(broker.received_of(Type::Producer).len(), 1);
    let ready = waiting.lock().take().unwrap();
    broker.push(vec![Step::Send(ready.into())]);
    let producer = producer.await.unwrap();
    producer.send(text("a")).await.unwrap();
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_fenced_producer_ends() {
    let (broker, script) = start().await;
    broker.set_script(first(
        script.on(Type::Send, |_| vec![Step::Close]),
        Type::Producer,
        |count, received| {
            let fenced = error(received.request_id(), ServerError::ProducerFenced, "fenced");
            (count > 0).then(|| vec![Step::Send(fenced)])
        },
        |received| {
            let success = CommandProducerSuccess {
                topic_epoch: Some(4),
                ..success(received)
            };
            vec![Step::Send(success.into())]
        },
    ));
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    assert_eq!(producer.topic_epoch(), Some(4));
    let error = producer.send(text("a")).await.unwrap_err();
    assert!(matches!(error, SendError::Fenced), "{error}");
    let error = producer.flush().await.unwrap_err();
    assert!(matches!(error, SendError::Fenced), "{error}");
    let asked = broker.received_of(Type::Producer);
    assert_eq!(producer_of(&asked[1]).topic_epoch, Some(4));
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_terminated_topic_ends_the_producer() {
    let (broker, script) = start().await;
    broker.set_script(script.on(Type::Send, |received| {
        let send = send_of(received);
        let refused = CommandSendError {
            producer_id: send.producer_id,
            sequence_id: send.sequence_id,
            error: ServerError::TopicTerminatedError.into(),
            message: "no more".to_owned(),
        };
        vec![Step::Send(refused.into())]
    }));
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    let error = producer.send(text("a")).await.unwrap_err();
    assert!(matches!(error, SendError::Terminated), "{error}");
    let error = producer.send(text("b")).await.unwrap_err();
    assert!(matches!(error, SendError::Terminated), "{error}");
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_does_not_read_fills_the_queue_and_no_more() {
    let (broker, script) = start().await;
    broker.set_script(script.on(Type::Send, |_| vec![Step::StopReading]));
    let client = client_of(&broker);
    let options = ProducerOptions {
        max_pending: 100_000,
        max_pending_bytes: 16 * 1024 * 1024,
        send_timeout: Some(Duration::from_millis(500)),
        ..options()
    };
    let producer = client.producer(&topic(), options).await.unwrap();
    let message = OutgoingMessage::new(vec![0; 64 * 1024]);
    let mut receipts = Vec::new();
    loop {
        match producer.try_enqueue(message.clone()) {
            Ok(receipt) => receipts.push(receipt),
            Err(SendError::QueueFull) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(receipts.len() <= 256);
    // Waiting for room ends when the messages have had their time.
    producer.ready().await.unwrap();
    for receipt in receipts {
        assert!(matches!(receipt.await, Err(SendError::Timeout { .. })));
    }
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_producer_that_is_dropped_is_closed_at_a_broker_that_is_behind_with_reading() {
    let (broker, script) = start().await;
    broker.set_script(first(
        script,
        Type::Send,
        |count, _| (count == 0).then(|| vec![Step::Delay(SHORT)]),
        |_| vec![],
    ));
    let client = client_of(&broker);
    let options = ProducerOptions {
        max_pending: 100_000,
        max_pending_bytes: 32 * 1024 * 1024,
        ..options()
    };
    let producer = client.producer(&topic(), options).await.unwrap();
    let message = OutgoingMessage::new(vec![0; 64 * 1024]);
    while producer.try_enqueue(message.clone()).is_ok() {}
    drop(producer);
    broker.wait_for(Type::CloseProducer, 1).await;
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn brokers_that_hand_a_producer_on_and_on_are_not_asked_without_pause() {
    let (broker, script) = start().await;
    let url = broker.url();
    broker.set_script(script.on(Type::Send, move |received| {
        let close = CommandCloseProducer {
            producer_id: send_of(received).producer_id,
            request_id: u64::MAX,
            assigned_broker_service_url: Some(url.clone()),
            ..CommandCloseProducer::default()
        };
        vec![Step::Send(close.into())]
    }));
    let client = client_with_delays_of(&broker, Duration::from_millis(100));
    let options = ProducerOptions {
        send_timeout: Some(Duration::from_millis(500)),
        ..options()
    };
    let producer = client.producer(&topic(), options).await.unwrap();
    let error = producer.send(text("a")).await.unwrap_err();
    assert!(matches!(error, SendError::Timeout { .. }), "{error}");
    let attempts = broker.received_of(Type::Producer).len();
    assert!((2..20).contains(&attempts), "{attempts}");
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn the_end_of_the_client_fails_what_waits() {
    let (broker, script) = start().await;
    broker.set_script(script.ignore(Type::Send));
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    let receipt = producer.enqueue(text("a")).await.unwrap();
    client.close();
    assert!(matches!(receipt.await, Err(SendError::Closed)));
    let tracker = client.options().connection.tracker.clone();
    tracker.close();
    tracker.wait().await;
    broker.stop().await;
}

#[derive(Default)]
struct Counted {
    tokens: Mutex<Vec<u64>>,
    changed: Notify,
}

impl ReceiptSink for Counted {
    fn on_receipts(&self, receipts: &[Acknowledgement]) {
        for receipt in receipts {
            assert!(receipt.result.is_ok());
            self.tokens.lock().push(receipt.token);
        }
        self.changed.notify_one();
    }
}

#[tokio::test]
async fn tokens_come_back_in_order() {
    for batching in [None, Some(BatchingOptions::default())] {
        let (broker, script) = start().await;
        broker.set_script(script.on(Type::Send, |received| {
            let send = send_of(received);
            let receipt = CommandSendReceipt {
                producer_id: send.producer_id,
                sequence_id: send.sequence_id,
                message_id: None,
                highest_sequence_id: send.highest_sequence_id,
            };
            vec![Step::Send(receipt.into())]
        }));
        let client = client_of(&broker);
        let sink = Arc::new(Counted::default());
        let options = ProducerOptions {
            max_pending: 1000,
            batching,
            ..ProducerOptions::default()
        };
        let producer = client
            .producer_with_sink(&topic(), options, Arc::clone(&sink) as Arc<dyn ReceiptSink>)
            .await
            .unwrap();
        let mut first = 0;
        while first < 5000 {
            let tokens = Tokens { first, step: 1 };
            let wanted = usize::try_from(5000 - first).unwrap().min(300);
            let taken = producer.enqueue_many(&text("x"), wanted, tokens).unwrap();
            first += taken as u64;
            if taken < wanted {
                producer.ready().await.unwrap();
            }
        }
        producer.flush().await.unwrap();
        while sink.tokens.lock().len() < 5000 {
            sink.changed.notified().await;
        }
        assert_eq!(*sink.tokens.lock(), (0..5000).collect::<Vec<_>>());
        client.close();
        broker.stop().await;
    }
}

#[tokio::test]
async fn a_custom_routing_runs_while_partitions_may_change() {
    let (broker, script) = start().await;
    broker.set_script(script.on(Type::PartitionedMetadata, |received| {
        vec![Step::Send(partitions(received.request_id(), 2))]
    }));
    let client = client_of(&broker);
    let own = Arc::new(OnceLock::<Producer>::new());
    let asked = Arc::clone(&own);
    let options = ProducerOptions {
        routing: Routing::Custom(Arc::new(move |_, _| {
            let producer = asked.get().unwrap();
            u32::from(producer.inner.partitions.try_write().is_some())
        })),
        ..options()
    };
    let producer = client.producer(&topic(), options).await.unwrap();
    own.set(producer.clone()).unwrap();
    let id = producer.send(text("a")).await.unwrap();
    assert_eq!(id.partition, Some(1));
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn a_partition_that_hangs_holds_up_the_closing_of_no_other() {
    let (broker, script) = start().await;
    let script = script.on(Type::PartitionedMetadata, |received| {
        vec![Step::Send(partitions(received.request_id(), 3))]
    });
    // The first is answered when the last has come.
    let waiting = Mutex::new(Vec::new());
    broker.set_script(script.on(Type::CloseProducer, move |received| {
        let mut waiting = waiting.lock();
        waiting.extend(ok(received));
        if waiting.len() < 3 {
            return vec![];
        }
        std::mem::take(&mut *waiting)
    }));
    let client = client_of(&broker);
    let producer = client.producer(&topic(), options()).await.unwrap();
    producer.close().await.unwrap();
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn each_partition_has_its_own_time_to_be_opened() {
    let [step, limit, request] = [14, 25, 60].map(Duration::from_secs); // Two steps are too long.
    let (broker, script) = start().await;
    let two = |received: &Received| vec![Step::Send(partitions(received.request_id(), 2))];
    let script = script.on(Type::PartitionedMetadata, two);
    broker.set_script(script.on(Type::Producer, |_| vec![]));
    let mut patient = client_of(&broker).options().clone();
    patient.operation_timeout = limit;
    patient.connection.request_timeout = request;
    let client = PulsarClient::new(broker.url().parse().unwrap(), patient);
    let answer = async {
        for count in 1..=2 {
            let received = broker.wait_for(Type::Producer, count).await;
            tokio::time::pause();
            tokio::time::advance(step).await;
            tokio::time::resume();
            broker.push(vec![Step::Send(success(&received[count - 1]).into())]);
        }
    };
    let topic = topic();
    let (producer, ()) = tokio::join!(client.producer(&topic, options()), answer);
    assert_eq!(producer.unwrap().partition_count(), 2);
    client.close();
    broker.stop().await;
}

#[tokio::test]
async fn new_partitions_are_used() {
    let (broker, script) = start().await;
    let count = Arc::new(AtomicUsize::new(1));
    let told = Arc::clone(&count);
    broker.set_script(script.on(Type::PartitionedMetadata, move |received| {
        let count = u32::try_from(told.load(Ordering::SeqCst)).unwrap();
        vec![Step::Send(partitions(received.request_id(), count))]
    }));
    let client = client_of(&broker);
    let options = ProducerOptions {
        auto_update_partitions: Some(Duration::from_millis(20)),
        ..options()
    };
    let producer = client.producer(&topic(), options).await.unwrap();
    assert_eq!(producer.partition_count(), 1);
    count.store(3, Ordering::SeqCst);
    broker.wait_for(Type::Producer, 3).await;
    let received = broker.received_of(Type::Producer);
    let last = producer_of(&received[2]).topic.clone();
    assert!(last.ends_with("scripted-partition-2"), "{last}");
    client.close();
    broker.stop().await;
}

const SHORT: Duration = Duration::from_millis(100);
