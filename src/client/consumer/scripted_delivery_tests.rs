//! Nothing is lost and nobody waits for ever, whatever happens in between.

use std::time::Duration;

use super::{scripted_tests::*, *};
use crate::{
    client::{ReaderOptions, clock::Deadline},
    naming::TopicName,
    protocol::{
        command::Command,
        proto::pulsar::{CommandAckResponse, MessageMetadata, base_command::Type},
    },
    testing::scripted_broker::{Received, ScriptedBroker, Step},
};

/// The first chunk of two, as a message to this consumer.
fn first_chunk(consumer_id: u64, entry_id: u64) -> Step {
    let metadata = MessageMetadata {
        uuid: Some("u".to_owned()),
        num_chunks_from_msg: Some(2),
        total_chunk_msg_size: Some(8),
        chunk_id: Some(0),
        ..metadata()
    };
    deliver_as(
        message_command(consumer_id, entry_id),
        entry(&metadata, b"half"),
    )
}

#[tokio::test]
async fn a_reader_begins_again_before_the_chunks_that_wait_for_the_rest_of_their_message() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ReaderOptions::new(MessageId::earliest());
    let reader = client.reader(&topic(), options).await.unwrap();
    let first = subscribed(&broker, 1).await;
    flow(&broker, 1).await;
    broker.push(vec![
        deliver(first.consumer_id, 4, "a"),
        first_chunk(first.consumer_id, 5),
    ]);
    reader.recv().await.unwrap();
    {
        // Takes the chunk and waits for more, until the connection is lost.
        let mut rest = std::pin::pin!(reader.recv());
        tokio::select! {
            biased;
            received = &mut rest => panic!("{received:?}"),
            () = async {
                broker.push(vec![Step::Close]);
                let start = subscribed(&broker, 2).await.start_message_id.unwrap();
                assert_eq!((start.ledger_id, start.entry_id), (7, 4));
            } => {}
        }
    }
    broker.stop().await;
}

#[tokio::test]
async fn entries_taken_many_at_a_time_leave_waiting_chunks_to_be_delivered_again() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ConsumerOptions {
        durable: false,
        start_message_id: Some(MessageId::earliest()),
        ..options()
    };
    let consumer = subscribe(&client, options).await;
    let first = subscribed(&broker, 1).await;
    flow(&broker, 1).await;
    broker.push(vec![
        deliver(first.consumer_id, 4, "a"),
        first_chunk(first.consumer_id, 5),
    ]);
    let mut messages = Vec::new();
    consumer.receive_many(&mut messages, 1).await.unwrap();
    {
        let mut rest = std::pin::pin!(consumer.receive_many(&mut messages, 10));
        tokio::select! {
            biased;
            received = &mut rest => panic!("{received:?}"),
            () = async {
                broker.push(vec![Step::Close]);
                let start = subscribed(&broker, 2).await.start_message_id.unwrap();
                assert_eq!((start.ledger_id, start.entry_id), (7, 4));
            } => {}
        }
    }
    broker.stop().await;
}

#[tokio::test]
async fn without_a_queue_everyone_who_waits_gets_a_message() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ConsumerOptions {
        receiver_queue_size: 0,
        ..options()
    };
    let consumer = subscribe(&client, options).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    let both = async { tokio::join!(next_text(&consumer), next_text(&consumer)) };
    let answers = async {
        for (count, entry_id, text) in [(1, 0, "a"), (2, 1, "b")] {
            assert_eq!(flow(&broker, count).await, 1);
            broker.push(vec![deliver(id, entry_id, text)]);
        }
    };
    let ((first, second), ()) = tokio::join!(both, answers);
    let mut texts = [first, second];
    texts.sort();
    assert_eq!(texts, ["a", "b"]);
    broker.stop().await;
}

#[tokio::test]
async fn an_acknowledgement_that_names_another_topic_is_refused() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    let id = MessageId::of_entry(7, 0);
    let other: Arc<str> = "persistent://public/default/other".into();
    let result = consumer.ack((other, id.clone())).await;
    assert!(matches!(result, Err(AckError::UnknownTopic)), "{result:?}");
    let ours: Arc<str> = topic().to_string().into();
    consumer.ack((ours, id.clone())).await.unwrap();
    consumer.ack(id).await.unwrap();
    broker.stop().await;
}

#[tokio::test]
async fn acknowledgements_with_receipts_leave_before_the_consumer_is_closed() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ConsumerOptions {
        ack_receipt: true,
        ack_grouping: Some(AckGrouping {
            max_delay: Duration::from_secs(600),
            max_messages: 1000,
        }),
        ..options()
    };
    let consumer = subscribe(&client, options).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push(vec![deliver(id, 0, "a")]);
    let message = next(&consumer).await;
    let acknowledged = consumer.ack(&message);
    let mut acknowledged = std::pin::pin!(acknowledged);
    tokio::select! {
        biased;
        result = &mut acknowledged => panic!("{result:?}"),
        () = std::future::ready(()) => {}
    }
    consumer.close().await;
    let received = broker.received();
    let order: Vec<Type> = received
        .iter()
        .map(|received| received.command.command_type())
        .filter_map(|command_type| Type::try_from(command_type).ok())
        .filter(|command_type| matches!(command_type, Type::Ack | Type::CloseConsumer))
        .collect();
    assert_eq!(order, [Type::Ack, Type::CloseConsumer]);
    broker.stop().await;
}

/// A consumer whose connection takes one frame at a time, with many messages.
async fn with_little_room(ack_receipt: bool) -> (ScriptedBroker, Consumer, Vec<ReceivedMessage>) {
    let (broker, client) = broker_with(|script| script).await;
    let mut little = client.options().clone();
    little.connection.outbound.high_watermark = 1;
    let client = PulsarClient::new(broker.url().parse().unwrap(), little);
    let options = ConsumerOptions {
        ack_receipt,
        ..options()
    };
    let consumer = subscribe(&client, options).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push((0..COUNT).map(|entry| deliver(id, entry, "x")).collect());
    let mut messages = Vec::new();
    for _ in 0..COUNT {
        messages.push(next(&consumer).await);
    }
    (broker, consumer, messages)
}

const COUNT: u64 = 50;

/// How many messages were acknowledged by these commands.
fn acknowledged(received: &[Received]) -> usize {
    let ids = |received: &Received| match &received.command {
        Command::Ack(ack) => ack.message_id.len(),
        _ => 0,
    };
    received.iter().map(ids).sum()
}

#[tokio::test]
async fn acknowledgements_that_a_connection_has_no_room_for_are_sent_as_it_drains() {
    let (broker, consumer, messages) = with_little_room(false).await;
    for message in &messages {
        consumer.ack(message).await.unwrap();
    }
    // What waits for room leaves together.
    let mut count = 1;
    while acknowledged(&broker.wait_for(Type::Ack, count).await) < messages.len() {
        count += 1;
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_consumer_is_closed_behind_all_acknowledgements_even_without_room_for_them() {
    for ack_receipt in [false, true] {
        let (broker, consumer, messages) = with_little_room(ack_receipt).await;
        let topic = consumer.set().topics().remove(0);
        for message in &messages {
            topic
                .acknowledge(&mut std::iter::once(&message.id))
                .unwrap();
        }
        consumer.close().await;
        let received = broker.received();
        let is_close = |received: &Received| matches!(received.command, Command::CloseConsumer(_));
        let before: Vec<Received> = received
            .into_iter()
            .take_while(|received| !is_close(received))
            .collect();
        let count = acknowledged(&before);
        assert_eq!(count, messages.len(), "with receipts: {ack_receipt}");
        broker.stop().await;
    }
}

#[tokio::test]
async fn an_acknowledgement_for_later_has_its_answer_when_the_broker_gave_it() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ConsumerOptions {
        ack_receipt: true,
        ..options()
    };
    let consumer = subscribe(&client, options).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push(vec![deliver(id, 0, "a")]);
    let message = next(&consumer).await;
    let mut receipt = consumer.ack_later(&message).unwrap();
    broker.wait_for(Type::Ack, 1).await;
    assert!(receipt.try_answer().is_none());
    // The connection is lost before there was one: nobody knows.
    broker.push(vec![Step::Close]);
    let lost = receipt.await.unwrap_err();
    assert!(
        matches!(&lost, AckError::Client(error) if error.is_retryable()),
        "{lost:?}"
    );
    broker.set_script(broker_script(&broker).on(Type::Ack, |received| {
        let Command::Ack(ack) = &received.command else {
            panic!("ACK has its rule")
        };
        vec![Step::Send(Command::from(CommandAckResponse {
            consumer_id: ack.consumer_id,
            request_id: ack.request_id,
            ..CommandAckResponse::default()
        }))]
    }));
    consumer.ack_later(&message).unwrap().await.unwrap();
    broker.stop().await;
}

#[tokio::test]
async fn a_seek_whose_connection_is_lost_is_asked_for_again() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    subscribed(&broker, 1).await;
    let script = broker_script(&broker);
    broker.set_script(script.on(Type::Seek, |received| match received.connection {
        // The first one of topics; before it was that of lookups.
        1 => vec![Step::Close],
        _ => succeed(received),
    }));
    consumer.seek(SeekTo::Time(7)).await.unwrap();
    assert_eq!(broker.received_of(Type::Seek).len(), 2);
    broker.stop().await;
}

#[tokio::test]
async fn all_steps_of_subscribing_have_one_time_together() {
    // Each step alone would be in time.
    const STEP: Duration = Duration::from_millis(700);
    let late = |answer: fn(&Received) -> Vec<Step>| {
        move |received: &Received| {
            let mut steps = vec![Step::Delay(STEP)];
            steps.extend(answer(received));
            steps
        }
    };
    let (broker, client) = broker_with(|script| {
        script
            .on(
                Type::PartitionedMetadata,
                late(|received| {
                    vec![Step::Send(crate::testing::scripted_broker::partitions(
                        received.request_id(),
                        0,
                    ))]
                }),
            )
            .on(Type::Subscribe, late(succeed))
    })
    .await;
    let mut patient = client.options().clone();
    patient.operation_timeout = Duration::from_secs(1);
    patient.connection.request_timeout = Duration::from_secs(60);
    let client = PulsarClient::new(broker.url().parse().unwrap(), patient);
    let result = client.consumer(topic(), options()).await;
    assert!(
        matches!(result, Err(ClientError::Timeout { .. })),
        "{result:?}"
    );
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_sends_too_many_bytes_is_asked_for_fewer_messages() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ConsumerOptions {
        receiver_queue_bytes: 10_000_000,
        ..options()
    };
    let consumer = subscribe(&client, options).await;
    let first = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    // Small messages, so that all of the queue is asked for.
    let mut asked = 0;
    for entry_id in 0..600 {
        broker.push(vec![deliver(first, entry_id, "x")]);
        next(&consumer).await;
        asked = broker.received_of(Type::Flow).len();
    }
    assert!(asked > 1, "nothing more was asked for");
    let large = "x".repeat(4_000_000);
    broker.push(
        (600..620)
            .map(|entry| deliver(first, entry, &large))
            .collect(),
    );
    let again = subscribed(&broker, 2).await.consumer_id;
    broker.wait_for(Type::Flow, asked + 1).await;
    let flows = broker.received_of(Type::Flow);
    let permits = flows.iter().find_map(|received| match &received.command {
        Command::Flow(flow) if flow.consumer_id == again => Some(flow.message_permits),
        _ => None,
    });
    assert!(permits.is_some_and(|permits| permits <= 10), "{permits:?}");
    // What did not fit comes again, and is handed out.
    broker.push(vec![deliver(again, 600, "again")]);
    while next_text(&consumer).await != "again" {}
    broker.stop().await;
}

#[tokio::test]
async fn a_consumer_that_was_sent_too_much_comes_back_at_once() {
    let (broker, client) = broker_with(|script| script).await;
    let mut slow = client.options().clone();
    // After a failure it would be away for good.
    slow.backoff.initial = Duration::from_secs(3600);
    slow.backoff.max = Duration::from_secs(3600);
    let client = PulsarClient::new(broker.url().parse().unwrap(), slow);
    let options = ConsumerOptions {
        receiver_queue_bytes: 10_000_000,
        ..options()
    };
    let consumer = subscribe(&client, options).await;
    let first = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let mut asked = 0;
    for entry_id in 0..600 {
        broker.push(vec![deliver(first, entry_id, "x")]);
        next(&consumer).await;
        asked = broker.received_of(Type::Flow).len();
    }
    assert!(asked > 1, "nothing more was asked for");
    let large = "x".repeat(4_000_000);
    broker.push(
        (600..620)
            .map(|entry| deliver(first, entry, &large))
            .collect(),
    );
    let again = tokio::time::timeout(Duration::from_secs(10), subscribed(&broker, 2)).await;
    let again = again.expect("in time").consumer_id;
    broker.wait_for(Type::Flow, asked + 1).await;
    broker.push(vec![deliver(again, 600, "again")]);
    while next_text(&consumer).await != "again" {}
    broker.stop().await;
}

#[tokio::test]
async fn topics_that_come_later_get_their_share_of_the_others() {
    let names = ["a", "b"].map(|name| {
        let name = format!("persistent://public/default/{name}");
        TopicName::parse(&name).unwrap()
    });
    let (broker, client) = broker_with(|script| script).await;
    let options = ConsumerOptions {
        receiver_queue_size: 100,
        max_total_receiver_queue_size: 100,
        receiver_queue_bytes: 1 << 40,
        ..options()
    };
    let consumer = client
        .consumer(Topics::Many(names[..1].to_vec()), options)
        .await
        .unwrap();
    let first = subscribed(&broker, 1).await.consumer_id;
    assert_eq!(flow(&broker, 1).await, 100);
    let deadline = Deadline::within(Duration::from_secs(5));
    let added = consumer.set().add(names.to_vec(), deadline).await;
    added.unwrap();
    broker.push((0..100).map(|entry| deliver(first, entry, "x")).collect());
    for _ in 0..100 {
        next(&consumer).await;
    }
    consumer.close().await;
    let granted = broker.received_of(Type::Flow).into_iter();
    let granted = granted.map(|received| match received.command {
        Command::Flow(flow) if flow.consumer_id == first => flow.message_permits,
        _ => 0,
    });
    // All that was asked for came: half of the queue of both may be asked for now.
    let outstanding = granted.sum::<u32>() - 100;
    assert!((25..=50).contains(&outstanding), "{outstanding}");
    broker.stop().await;
}
