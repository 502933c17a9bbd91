//! Consumers against brokers that do what they are told, well or badly.

use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;

use super::*;
use crate::{
    client::{BackoffPolicy, ClientOptions},
    naming::TopicName,
    protocol::{
        batch::{BatchBuilder, BatchLimits},
        command::Command,
        frame::Frame,
        message::{self, MessageForm},
        proto::pulsar::{
            CommandAckResponse, CommandActiveConsumerChange, CommandCloseConsumer,
            CommandConnected, CommandGetLastMessageIdResponse, CommandGetTopicsOfNamespaceResponse,
            CommandMessage, CommandReachedEndOfTopic, CommandSubscribe, CommandSuccess,
            CommandWatchTopicListSuccess, CommandWatchTopicUpdate, CompressionType, FeatureFlags,
            MessageIdData, MessageMetadata, ServerError, SingleMessageMetadata,
            base_command::Type,
            command_ack::{AckType, ValidationError},
        },
    },
    testing::scripted_broker::{
        Received, Script, ScriptedBroker, Step, error, lookup_connect, partitions,
    },
};

/// A broker that serves every topic itself and subscribes whoever asks.
pub(super) async fn broker_with(
    change: impl FnOnce(Script) -> Script,
) -> (ScriptedBroker, PulsarClient) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("pulsar://{}", listener.local_addr().unwrap());
    let of_lookup = url.clone();
    let script = Script::new()
        .on(Type::PartitionedMetadata, |received| {
            vec![Step::Send(partitions(received.request_id(), 0))]
        })
        .on(Type::Lookup, move |received| {
            vec![Step::Send(lookup_connect(
                received.request_id(),
                &of_lookup,
            ))]
        })
        .on(Type::Subscribe, succeed)
        .on(Type::CloseConsumer, succeed);
    let broker = ScriptedBroker::start_on(listener, change(script));
    let mut options = ClientOptions {
        operation_timeout: Duration::from_secs(2),
        backoff: BackoffPolicy {
            initial: Duration::from_millis(5),
            max: Duration::from_millis(50),
            ..BackoffPolicy::default()
        },
        ..ClientOptions::default()
    };
    options.connection.request_timeout = Duration::from_millis(500);
    let client = PulsarClient::new(url.parse().unwrap(), options);
    (broker, client)
}

pub(super) fn succeed(received: &Received) -> Vec<Step> {
    vec![Step::Send(Command::from(CommandSuccess {
        request_id: received.request_id(),
        schema: None,
    }))]
}

pub(super) fn topic() -> TopicName {
    TopicName::parse("persistent://public/default/t").unwrap()
}

pub(super) async fn subscribe(client: &PulsarClient, options: ConsumerOptions) -> Consumer {
    client.consumer(topic(), options).await.expect("subscribed")
}

pub(super) fn options() -> ConsumerOptions {
    ConsumerOptions {
        ack_grouping: None,
        ..ConsumerOptions::new("s")
    }
}

/// The `count`th SUBSCRIBE, counted from 1.
pub(super) async fn subscribed(broker: &ScriptedBroker, count: usize) -> CommandSubscribe {
    let received = broker.wait_for(Type::Subscribe, count).await;
    match &received[count - 1].command {
        Command::Subscribe(subscribe) => (**subscribe).clone(),
        other => panic!("{other:?}"),
    }
}

/// The permits of the `count`th FLOW, counted from 1.
pub(super) async fn flow(broker: &ScriptedBroker, count: usize) -> u32 {
    let received = broker.wait_for(Type::Flow, count).await;
    match &received[count - 1].command {
        Command::Flow(flow) => flow.message_permits,
        other => panic!("{other:?}"),
    }
}

pub(super) fn metadata() -> MessageMetadata {
    MessageMetadata {
        producer_name: "p".to_owned(),
        publish_time: 1,
        ..MessageMetadata::default()
    }
}

pub(super) fn entry(metadata: &MessageMetadata, payload: &[u8]) -> Bytes {
    message::encode(
        metadata,
        Bytes::copy_from_slice(payload),
        MessageForm::default(),
    )
    .to_bytes()
}

pub(super) fn batch(payloads: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    for payload in payloads {
        builder
            .push(SingleMessageMetadata::default(), payload.as_bytes())
            .unwrap();
    }
    let (metadata, payload) = builder
        .finish(metadata(), CompressionType::None)
        .unwrap()
        .unwrap();
    entry(&metadata, &payload)
}

pub(super) fn message_command(consumer_id: u64, entry_id: u64) -> CommandMessage {
    CommandMessage {
        consumer_id,
        message_id: MessageIdData {
            ledger_id: 7,
            entry_id,
            ..MessageIdData::default()
        },
        ..CommandMessage::default()
    }
}

pub(super) fn deliver_as(command: CommandMessage, entry: Bytes) -> Step {
    Step::Frame(Frame {
        command: Command::from(command).encode_command(),
        payload: entry,
    })
}

pub(super) fn deliver(consumer_id: u64, entry_id: u64, payload: &str) -> Step {
    let entry = entry(&metadata(), payload.as_bytes());
    deliver_as(message_command(consumer_id, entry_id), entry)
}

pub(super) async fn next(consumer: &Consumer) -> ReceivedMessage {
    tokio::time::timeout(Duration::from_secs(5), consumer.recv())
        .await
        .expect("a message in time")
        .expect("a message")
}

pub(super) async fn next_text(consumer: &Consumer) -> String {
    String::from_utf8(next(consumer).await.payload.to_vec()).unwrap()
}

#[tokio::test]
async fn permits_are_given_for_the_whole_queue_and_then_for_its_half() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(
        &client,
        ConsumerOptions {
            receiver_queue_size: 10,
            ..options()
        },
    )
    .await;
    let id = subscribed(&broker, 1).await.consumer_id;
    assert_eq!(flow(&broker, 1).await, 10);
    // A batch of which the broker says that the first message is acknowledged takes two permits.
    let command = CommandMessage {
        ack_set: vec![0b110],
        ..message_command(id, 0)
    };
    let mut steps = vec![deliver_as(command, batch(&["a", "b", "c"]))];
    steps.extend((1..4).map(|entry| deliver(id, entry, "d")));
    broker.push(steps);
    let mut texts = Vec::new();
    for _ in 0..5 {
        texts.push(next_text(&consumer).await);
    }
    assert_eq!(texts, ["b", "c", "d", "d", "d"]);
    assert_eq!(flow(&broker, 2).await, 5);
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_floods_loses_the_connection_and_gets_the_consumer_back() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(
        &client,
        ConsumerOptions {
            receiver_queue_size: 10,
            ..options()
        },
    )
    .await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push((0..100).map(|entry| deliver(id, entry, "x")).collect());
    let again = subscribed(&broker, 2).await;
    assert_ne!(again.consumer_id, id);
    flow(&broker, 2).await;
    broker.push(vec![deliver(again.consumer_id, 0, "first")]);
    assert_eq!(next_text(&consumer).await, "first");
    broker.stop().await;
}

#[tokio::test]
async fn what_is_for_nobody_is_ignored() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push(vec![
        deliver(id + 99, 0, "not ours"),
        Step::Send(Command::from(CommandSuccess {
            request_id: 12_345,
            schema: None,
        })),
        Step::Send(Command::from(CommandActiveConsumerChange {
            consumer_id: id + 99,
            is_active: Some(true),
        })),
        Step::Send(Command::from(CommandAckResponse {
            consumer_id: id,
            request_id: Some(77),
            ..CommandAckResponse::default()
        })),
        deliver(id, 1, "ours"),
    ]);
    assert_eq!(next_text(&consumer).await, "ours");
    broker.stop().await;
}

#[tokio::test]
async fn entries_that_cannot_be_read_are_acknowledged_with_the_reason() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(
        &client,
        ConsumerOptions {
            receiver_queue_size: 10,
            ..options()
        },
    )
    .await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let mut flipped = entry(&metadata(), b"x").to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    let compressed = |codec: CompressionType, claimed: u32| {
        entry(
            &MessageMetadata {
                compression: Some(codec.into()),
                uncompressed_size: Some(claimed),
                ..metadata()
            },
            b"no block of it",
        )
    };
    let claims = |count: i32| {
        entry(
            &MessageMetadata {
                num_messages_in_batch: Some(count),
                ..metadata()
            },
            b"no batch at all",
        )
    };
    let bad = [
        (Bytes::from_static(b""), ValidationError::ChecksumMismatch),
        (
            Bytes::from_static(&[0xff; 64]),
            ValidationError::ChecksumMismatch,
        ),
        (Bytes::from(flipped), ValidationError::ChecksumMismatch),
        (
            compressed(CompressionType::Lz4, u32::MAX),
            ValidationError::UncompressedSizeCorruption,
        ),
        (
            compressed(CompressionType::Zstd, 100),
            ValidationError::DecompressionError,
        ),
        (claims(2), ValidationError::BatchDeSerializeError),
        (claims(0), ValidationError::BatchDeSerializeError),
        (claims(i32::MAX), ValidationError::BatchDeSerializeError),
        (claims(-1), ValidationError::BatchDeSerializeError),
    ];
    for (number, (entry, _)) in (0..).zip(&bad) {
        broker.push(vec![
            deliver_as(message_command(id, number), entry.clone()),
            deliver(id, 100 + number, "good"),
        ]);
        assert_eq!(next_text(&consumer).await, "good");
    }
    let acks = broker.wait_for(Type::Ack, bad.len()).await;
    for ((number, (_, expected)), ack) in (0..).zip(&bad).zip(acks) {
        let Command::Ack(ack) = ack.command else {
            panic!("{ack:?}")
        };
        assert_eq!(ack.message_id[0].entry_id, number);
        assert_eq!(ack.validation_error, Some((*expected).into()), "{number}");
    }
    assert_eq!(consumer.discarded(), 9);
    assert!(consumer.is_connected());
    broker.stop().await;
}

#[tokio::test]
async fn a_subscribe_that_is_refused_never_answered_or_answered_wrongly_is_a_typed_error() {
    let refuse = |code| {
        move |received: &Received| vec![Step::Send(error(received.request_id(), code, "no"))]
    };
    let (broker, client) =
        broker_with(|script| script.on(Type::Subscribe, refuse(ServerError::AuthorizationError)))
            .await;
    let result = client.consumer(topic(), options()).await;
    let code = result.err().and_then(|error| error.server_error());
    assert_eq!(code, Some(ServerError::AuthorizationError));

    broker.set_script(broker_script(&broker).ignore(Type::Subscribe));
    let result = client.consumer(topic(), options()).await;
    assert!(
        matches!(result, Err(ClientError::Timeout { .. })),
        "{result:?}"
    );
    // What may have been carried out is undone.
    broker.wait_for(Type::CloseConsumer, 1).await;

    broker.set_script(broker_script(&broker).on(Type::Subscribe, |received| {
        vec![Step::Send(partitions(received.request_id(), 1))]
    }));
    let result = client.consumer(topic(), options()).await;
    assert!(
        matches!(result, Err(ClientError::UnexpectedAnswer(_))),
        "{result:?}"
    );

    broker.set_script(broker_script(&broker).on(Type::Subscribe, |_| vec![Step::Close]));
    let result = client.consumer(topic(), options()).await;
    assert!(
        matches!(result, Err(ClientError::Timeout { .. })),
        "{result:?}"
    );
    broker.stop().await;
}

/// The script of a broker that does all well.
pub(super) fn broker_script(broker: &ScriptedBroker) -> Script {
    let url = broker.url();
    Script::new()
        .on(Type::PartitionedMetadata, |received| {
            vec![Step::Send(partitions(received.request_id(), 0))]
        })
        .on(Type::Lookup, move |received| {
            vec![Step::Send(lookup_connect(received.request_id(), &url))]
        })
        .on(Type::Subscribe, succeed)
        .on(Type::CloseConsumer, succeed)
}

#[tokio::test]
async fn a_closed_consumer_comes_back_and_sends_what_was_acknowledged_meanwhile() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(
        &client,
        ConsumerOptions {
            ack_grouping: Some(AckGrouping {
                max_delay: Duration::from_millis(50),
                max_messages: 1000,
            }),
            ..options()
        },
    )
    .await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push(vec![deliver(id, 0, "a"), deliver(id, 1, "b")]);
    let first = next(&consumer).await;
    broker.push(vec![Step::Send(Command::from(CommandCloseConsumer {
        consumer_id: id,
        request_id: 0,
        ..CommandCloseConsumer::default()
    }))]);
    let mut changes = consumer.changes();
    let again = subscribed(&broker, 2).await.consumer_id;
    flow(&broker, 2).await;
    while !consumer.is_connected() {
        changes.changed().await.unwrap();
    }
    consumer.ack(&first).await.unwrap();
    let acks = broker.wait_for(Type::Ack, 1).await;
    let Command::Ack(ack) = &acks[0].command else {
        panic!("{acks:?}")
    };
    assert_eq!((ack.consumer_id, ack.message_id[0].entry_id), (again, 0));
    // What waited was from before; it comes again.
    broker.push(vec![deliver(id, 5, "stale"), deliver(again, 1, "b")]);
    assert_eq!(next_text(&consumer).await, "b");
    broker.stop().await;
}

#[tokio::test]
async fn what_was_acknowledged_and_not_sent_is_not_handed_out_again() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(
        &client,
        ConsumerOptions {
            ack_grouping: Some(AckGrouping {
                max_delay: Duration::from_secs(600),
                max_messages: 1000,
            }),
            ..options()
        },
    )
    .await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push(vec![deliver(id, 0, "a")]);
    consumer.ack(next(&consumer).await).await.unwrap();
    broker.push(vec![Step::Close]);
    let again = subscribed(&broker, 2).await.consumer_id;
    flow(&broker, 2).await;
    broker.push(vec![deliver(again, 0, "a"), deliver(again, 1, "b")]);
    assert_eq!(next_text(&consumer).await, "b");
    broker.stop().await;
}

#[tokio::test]
async fn a_topic_that_is_gone_ends_the_consumer() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    subscribed(&broker, 1).await;
    broker.set_script(broker_script(&broker).on(Type::Subscribe, |received| {
        let code = ServerError::TopicNotFound;
        vec![Step::Send(error(received.request_id(), code, "gone"))]
    }));
    broker.push(vec![Step::Close]);
    let result = consumer.recv().await;
    assert!(
        matches!(&result, Err(ReceiveError::Failed(error)) if error.server_error() == Some(ServerError::TopicNotFound)),
        "{result:?}"
    );
    broker.stop().await;
}

#[tokio::test]
async fn a_seek_drops_what_is_on_its_way_even_if_the_broker_keeps_the_consumer() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push(vec![deliver(id, 0, "a"), deliver(id, 1, "b")]);
    assert_eq!(next_text(&consumer).await, "a");
    broker.set_script(broker_script(&broker).on(Type::Seek, move |received| {
        let mut steps = vec![deliver(id, 2, "c")];
        steps.extend(succeed(received));
        steps
    }));
    consumer
        .seek(SeekTo::Id(MessageId::earliest()))
        .await
        .unwrap();
    let again = subscribed(&broker, 2).await.consumer_id;
    flow(&broker, 2).await;
    broker.push(vec![deliver(again, 0, "a"), deliver(again, 1, "b")]);
    assert_eq!(next_text(&consumer).await, "a");
    assert_eq!(next_text(&consumer).await, "b");
    broker.stop().await;
}

#[tokio::test]
async fn a_seek_that_is_refused_or_not_answered_leaves_the_reader_where_it_was() {
    let (broker, client) = broker_with(|script| script).await;
    let reader = client
        .reader(
            &topic(),
            crate::client::ReaderOptions::new(MessageId::earliest()),
        )
        .await
        .unwrap();
    let first = subscribed(&broker, 1).await;
    assert_eq!(first.durable, Some(false));
    assert_eq!(first.start_message_id.unwrap().ledger_id, u64::MAX);
    flow(&broker, 1).await;
    broker.push(vec![deliver(first.consumer_id, 4, "a")]);
    reader.recv().await.unwrap();
    let refuse = |received: &Received| {
        let code = ServerError::MetadataError;
        vec![Step::Send(error(received.request_id(), code, "no"))]
    };
    broker.set_script(broker_script(&broker).on(Type::Seek, refuse));
    let result = reader.seek(SeekTo::Time(5)).await;
    assert_eq!(
        result.err().and_then(|error| error.server_error()),
        Some(ServerError::MetadataError)
    );
    let start = subscribed(&broker, 2).await.start_message_id.unwrap();
    assert_eq!((start.ledger_id, start.entry_id), (7, 4));
    flow(&broker, 2).await;
    broker.set_script(broker_script(&broker));
    let result = reader.seek(SeekTo::Id(MessageId::latest())).await;
    assert!(result.is_err(), "nobody answered");
    let start = subscribed(&broker, 3).await.start_message_id.unwrap();
    assert_eq!((start.ledger_id, start.entry_id), (7, 4));
    broker.stop().await;
}

#[tokio::test]
async fn a_seek_that_is_given_up_half_way_leaves_a_consumer_that_receives() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    subscribed(&broker, 1).await;
    flow(&broker, 1).await;
    {
        let mut seek = std::pin::pin!(consumer.seek(SeekTo::Id(MessageId::earliest())));
        tokio::select! {
            biased;
            result = &mut seek => panic!("nobody answered: {result:?}"),
            _ = broker.wait_for(Type::Seek, 1) => {}
        }
    }
    let again = subscribed(&broker, 2).await.consumer_id;
    flow(&broker, 2).await;
    broker.push(vec![deliver(again, 0, "a")]);
    assert_eq!(next_text(&consumer).await, "a");
    broker.stop().await;
}

#[tokio::test]
async fn receipts_tell_what_the_broker_answered_and_that_it_did_not() {
    let (broker, client) = broker_with(|script| {
        script.on(Type::Ack, |received| {
            let Command::Ack(ack) = &received.command else {
                return Vec::new();
            };
            let refused = ack.message_id[0].entry_id == 1;
            if ack.message_id[0].entry_id == 2 {
                return Vec::new();
            }
            vec![Step::Send(Command::from(CommandAckResponse {
                consumer_id: ack.consumer_id,
                request_id: ack.request_id,
                error: refused.then_some(ServerError::MetadataError.into()),
                ..CommandAckResponse::default()
            }))]
        })
    })
    .await;
    let consumer = subscribe(
        &client,
        ConsumerOptions {
            ack_receipt: true,
            ..options()
        },
    )
    .await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push((0..3).map(|entry| deliver(id, entry, "x")).collect());
    consumer.ack(next(&consumer).await).await.unwrap();
    let refused = consumer.ack(next(&consumer).await).await;
    assert!(
        matches!(
            refused,
            Err(AckError::Refused {
                code: ServerError::MetadataError,
                ..
            })
        ),
        "{refused:?}"
    );
    let unanswered = consumer.ack(next(&consumer).await).await;
    assert!(
        matches!(unanswered, Err(AckError::Client(ClientError::Request(_)))),
        "{unanswered:?}"
    );
    broker.stop().await;
}

#[tokio::test]
async fn entries_of_before_a_redelivery_of_everything_are_dropped() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let of_epoch = |entry_id, epoch, text: &str| {
        let command = CommandMessage {
            consumer_epoch: Some(epoch),
            ..message_command(id, entry_id)
        };
        deliver_as(command, entry(&metadata(), text.as_bytes()))
    };
    broker.push(vec![of_epoch(0, 0, "a"), of_epoch(1, 0, "b")]);
    assert_eq!(next_text(&consumer).await, "a");
    consumer.redeliver_all();
    let asked = broker
        .wait_for(Type::RedeliverUnacknowledgedMessages, 1)
        .await;
    let Command::RedeliverUnacknowledgedMessages(asked) = &asked[0].command else {
        panic!("{asked:?}")
    };
    assert_eq!(asked.consumer_epoch, Some(1));
    assert!(asked.message_ids.is_empty());
    broker.push(vec![of_epoch(2, 0, "c"), of_epoch(0, 1, "a")]);
    assert_eq!(next_text(&consumer).await, "a");
    broker.stop().await;
}

#[tokio::test]
async fn a_batch_is_acknowledged_when_all_of_it_is() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push(vec![
        deliver_as(message_command(id, 3), batch(&["a", "b", "c"])),
        deliver_as(message_command(id, 4), batch(&["d", "e"])),
    ]);
    let mut messages = Vec::new();
    for _ in 0..5 {
        messages.push(next(&consumer).await);
    }
    consumer.ack(&messages[3]).await.unwrap();
    consumer.ack_many(&messages[..3]).await.unwrap();
    let acks = broker.wait_for(Type::Ack, 1).await;
    let Command::Ack(ack) = &acks[0].command else {
        panic!("{acks:?}")
    };
    assert_eq!(ack.message_id.len(), 1);
    assert_eq!(ack.message_id[0].entry_id, 3);
    assert!(ack.message_id[0].ack_set.is_empty());
    // The first message of a batch: all before that batch.
    consumer.ack_cumulative(&messages[3]).await.unwrap();
    let acks = broker.wait_for(Type::Ack, 2).await;
    let Command::Ack(ack) = &acks[1].command else {
        panic!("{acks:?}")
    };
    assert_eq!(ack.ack_type, i32::from(AckType::Cumulative));
    assert_eq!(ack.message_id[0].entry_id, 3);
    broker.stop().await;
}

#[tokio::test]
async fn the_end_of_a_topic_and_the_active_consumer_are_told() {
    let (broker, client) = broker_with(|script| {
        script.on(Type::GetLastMessageId, |received| {
            vec![Step::Send(Command::from(CommandGetLastMessageIdResponse {
                last_message_id: MessageIdData {
                    ledger_id: u64::MAX,
                    entry_id: u64::MAX,
                    ..MessageIdData::default()
                },
                request_id: received.request_id(),
                consumer_mark_delete_position: None,
            }))]
        })
    })
    .await;
    let consumer = subscribe(&client, options()).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    let mut changes = consumer.changes();
    broker.push(vec![
        Step::Send(Command::from(CommandActiveConsumerChange {
            consumer_id: id,
            is_active: Some(true),
        })),
        Step::Send(Command::from(CommandReachedEndOfTopic { consumer_id: id })),
    ]);
    while !consumer.topics()[0].has_reached_end {
        changes.changed().await.unwrap();
    }
    assert_eq!(consumer.topics()[0].is_active, Some(true));
    assert!(!consumer.has_message_available().await.unwrap());
    consumer.close().await;
    assert_eq!(broker.received_of(Type::CloseConsumer).len(), 1);
    assert!(matches!(consumer.recv().await, Err(ReceiveError::Closed)));
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_watches_topics_has_new_ones_found_at_once() {
    let topics = Arc::new(parking_lot::Mutex::new(vec![
        "persistent://public/default/a-1",
    ]));
    let listed = Arc::clone(&topics);
    let (broker, client) = broker_with(|script| {
        script
            .on(Type::Connect, |_| {
                let connected = CommandConnected {
                    server_version: "Scripted Broker".to_owned(),
                    protocol_version: Some(21),
                    feature_flags: Some(FeatureFlags {
                        supports_topic_watchers: Some(true),
                        ..FeatureFlags::default()
                    }),
                    ..CommandConnected::default()
                };
                vec![Step::Send(Command::from(connected))]
            })
            .on(Type::GetTopicsOfNamespace, move |received| {
                let response = CommandGetTopicsOfNamespaceResponse {
                    request_id: received.request_id(),
                    topics: listed
                        .lock()
                        .iter()
                        .map(|name| (*name).to_owned())
                        .collect(),
                    ..CommandGetTopicsOfNamespaceResponse::default()
                };
                vec![Step::Send(Command::from(response))]
            })
            .on(Type::WatchTopicList, |received| {
                let Command::WatchTopicList(watch) = &received.command else {
                    return Vec::new();
                };
                let success = CommandWatchTopicListSuccess {
                    request_id: received.request_id(),
                    watcher_id: watch.watcher_id,
                    topic: Vec::new(),
                    topics_hash: String::new(),
                };
                vec![Step::Send(Command::from(success))]
            })
    })
    .await;
    let pattern = Topics::Pattern {
        namespace: crate::naming::NamespaceName::parse("public/default").unwrap(),
        pattern: "public/default/a-.*".to_owned(),
        mode: TopicMode::Persistent,
    };
    let never = ConsumerOptions {
        pattern_discovery: Duration::from_secs(3600),
        ..options()
    };
    let consumer = client.consumer(pattern, never).await.unwrap();
    let watched = broker.wait_for(Type::WatchTopicList, 1).await;
    let Command::WatchTopicList(watch) = &watched[0].command else {
        panic!("{watched:?}")
    };
    // The look behind the answer.
    broker.wait_for(Type::GetTopicsOfNamespace, 2).await;
    topics.lock().extend([
        "persistent://public/default/a-2",
        "persistent://public/default/b-3",
    ]);
    broker.push(vec![Step::Send(Command::from(CommandWatchTopicUpdate {
        watcher_id: watch.watcher_id,
        ..CommandWatchTopicUpdate::default()
    }))]);
    subscribed(&broker, 2).await;
    let mut changes = consumer.changes();
    while !consumer.is_connected() || consumer.topics().len() < 2 {
        changes.changed().await.unwrap();
    }
    let names: Vec<Arc<str>> = consumer
        .topics()
        .into_iter()
        .map(|topic| topic.topic)
        .collect();
    assert_eq!(
        names,
        [
            "persistent://public/default/a-1",
            "persistent://public/default/a-2"
        ]
        .map(Arc::from)
    );
    consumer.close().await;
    let closed = broker.wait_for(Type::WatchTopicListClose, 1).await;
    assert!(
        matches!(&closed[0].command, Command::WatchTopicListClose(close) if close.watcher_id == watch.watcher_id),
        "{closed:?}"
    );
    broker.stop().await;
}

#[tokio::test]
async fn a_consumer_that_is_dropped_is_closed() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    drop(consumer);
    broker.wait_for(Type::CloseConsumer, 1).await;
    broker.stop().await;
}
