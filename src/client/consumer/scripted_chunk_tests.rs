//! Messages in chunks that do not become whole at once, or never.

use std::time::{Duration, SystemTime};

use super::{scripted_tests::*, *};
use crate::{
    naming::TopicName,
    protocol::{
        command::Command,
        proto::pulsar::{CompressionType, MessageMetadata, base_command::Type},
    },
    testing::scripted_broker::{Received, ScriptedBroker, Step},
};

/// What the chunks of these tests hold, each.
const PIECE: &[u8] = b"piece";

/// Metadata of one of the two chunks of a message that was published long ago.
fn half(uuid: &str, chunk_id: i32) -> MessageMetadata {
    MessageMetadata {
        uuid: Some(uuid.to_owned()),
        num_chunks_from_msg: Some(2),
        total_chunk_msg_size: Some(10),
        chunk_id: Some(chunk_id),
        ..metadata()
    }
}

fn deliver_chunk(consumer_id: u64, entry_id: u64, metadata: &MessageMetadata) -> Step {
    deliver_as(
        message_command(consumer_id, entry_id),
        entry(metadata, PIECE),
    )
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_millis()).unwrap()
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(10);
    tokio::time::timeout(limit, what).await.expect("in time")
}

/// Entries of all ACKs so far.
fn acknowledged(broker: &ScriptedBroker) -> Vec<u64> {
    let ids = |received: Received| match received.command {
        Command::Ack(ack) => ack.message_id,
        other => panic!("{other:?}"),
    };
    let acks = broker.received_of(Type::Ack).into_iter();
    acks.flat_map(ids).map(|id| id.entry_id).collect()
}

/// Waits until these entries, and no others, were asked for again.
async fn asked_again(broker: &ScriptedBroker, expected: &[u64]) {
    let mut count = 1;
    loop {
        let asked = broker.wait_for(Type::RedeliverUnacknowledgedMessages, count);
        let asked = in_time(asked).await;
        let mut entries = Vec::new();
        for received in &asked {
            let Command::RedeliverUnacknowledgedMessages(asked) = &received.command else {
                panic!("{received:?}")
            };
            entries.extend(asked.message_ids.iter().map(|id| id.entry_id));
        }
        entries.sort_unstable();
        if entries == expected {
            return;
        }
        assert!(entries.len() < expected.len(), "{entries:?}");
        count = asked.len() + 1;
    }
}

/// A consumer of a Shared subscription with room for so many incomplete messages.
fn shared(max_incomplete: usize) -> ConsumerOptions {
    ConsumerOptions {
        subscription_type: SubscriptionType::Shared,
        negative_ack_delay: Duration::from_millis(10),
        chunks: ChunkOptions {
            max_incomplete,
            ..ChunkOptions::default()
        },
        ..options()
    }
}

#[tokio::test]
async fn a_message_that_gave_way_to_others_is_delivered_again_whole() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, shared(10)).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    // Ten others begin before the rest of the first one comes.
    let uuids: Vec<String> = (0..11).map(|number| format!("u{number}")).collect();
    let first = (0..)
        .zip(&uuids)
        .map(|(entry, uuid)| deliver_chunk(id, entry, &half(uuid, 0)));
    let second = (11..)
        .zip(&uuids)
        .map(|(entry, uuid)| deliver_chunk(id, entry, &half(uuid, 1)));
    broker.push(first.chain(second).collect());
    for entry in 12..22 {
        let message = next(&consumer).await;
        assert_eq!(message.id.entry_id, entry);
        consumer.ack(&message).await.unwrap();
    }
    // However old it is, and both its chunks.
    asked_again(&broker, &[0, 11]).await;
    broker.push(vec![
        deliver_chunk(id, 0, &half("u0", 0)),
        deliver_chunk(id, 11, &half("u0", 1)),
    ]);
    let message = next(&consumer).await;
    assert_eq!(*message.payload, [PIECE, PIECE].concat());
    let before = acknowledged(&broker);
    assert!(!before.contains(&0) && !before.contains(&11), "{before:?}");
    consumer.ack(&message).await.unwrap();
    broker.wait_for(Type::Ack, 11).await;
    let mut all = acknowledged(&broker);
    all.sort_unstable();
    assert_eq!(all, (0..22).collect::<Vec<u64>>());
    assert_eq!(consumer.discarded(), 0);
    broker.stop().await;
}

#[tokio::test]
async fn a_chunk_whose_message_is_not_known_is_given_up_only_when_it_is_old() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, shared(10)).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let young = MessageMetadata {
        publish_time: now_ms(),
        ..half("young", 1)
    };
    broker.push(vec![
        deliver_chunk(id, 0, &young),
        deliver_chunk(id, 1, &half("old", 1)),
        // Of a message of which the second of three chunks is missing, the third one.
        deliver_chunk(
            id,
            2,
            &MessageMetadata {
                num_chunks_from_msg: Some(3),
                publish_time: now_ms(),
                ..half("gap", 0)
            },
        ),
        deliver_chunk(
            id,
            3,
            &MessageMetadata {
                num_chunks_from_msg: Some(3),
                publish_time: now_ms(),
                ..half("gap", 2)
            },
        ),
        deliver(id, 4, "next"),
    ]);
    assert_eq!(next_text(&consumer).await, "next");
    asked_again(&broker, &[0, 2, 3]).await;
    assert_eq!(acknowledged(&broker), [1]);
    assert_eq!(consumer.discarded(), 1);
    broker.stop().await;
}

#[tokio::test]
async fn a_message_in_chunks_that_is_too_large_when_decompressed_is_left_for_others() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, shared(10)).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let claims = |chunk_id| MessageMetadata {
        compression: Some(CompressionType::Lz4.into()),
        uncompressed_size: Some((512 << 20) + 1),
        ..half("large", chunk_id)
    };
    broker.push(vec![
        deliver_chunk(id, 0, &claims(0)),
        deliver_chunk(id, 1, &claims(1)),
        deliver(id, 2, "next"),
    ]);
    let message = next(&consumer).await;
    assert_eq!(message.id.entry_id, 2);
    consumer.ack(&message).await.unwrap();
    broker.wait_for(Type::Ack, 1).await;
    assert_eq!(acknowledged(&broker), [2]);
    assert_eq!(consumer.discarded(), 0);
    broker.stop().await;
}

#[tokio::test]
async fn the_bytes_of_incomplete_messages_are_bounded_for_all_topics_together() {
    for subscription_type in [SubscriptionType::Shared, SubscriptionType::Exclusive] {
        bytes_are_bounded_for_all_topics_together(subscription_type).await;
    }
}

async fn bytes_are_bounded_for_all_topics_together(subscription_type: SubscriptionType) {
    let (broker, client) = broker_with(|script| script).await;
    let names = ["a", "b"].map(|name| {
        let name = format!("persistent://public/default/{name}");
        TopicName::parse(&name).unwrap()
    });
    let mut options = ConsumerOptions {
        subscription_type,
        ..shared(10)
    };
    // A message with its name has room, and not the halves of two.
    options.chunks.max_bytes = 11;
    let consumer = client
        .consumer(Topics::Many(names.to_vec()), options)
        .await
        .unwrap();
    let mut ids = Vec::new();
    for count in 1..=2 {
        flow(&broker, count).await;
        ids.push(subscribed(&broker, count).await.consumer_id);
    }
    let begin = |at: usize, uuid: &str| deliver_chunk(ids[at], 0, &half(uuid, 0));
    let complete = |at: usize, uuid: &str| deliver_chunk(ids[at], 1, &half(uuid, 1));
    let whole = [PIECE, PIECE].concat();
    broker.push(vec![begin(0, "x"), deliver(ids[0], 2, "plain")]);
    assert_eq!(next_text(&consumer).await, "plain");
    broker.push(vec![begin(1, "y"), deliver(ids[1], 2, "plain")]);
    assert_eq!(next_text(&consumer).await, "plain");
    // The second one gives way, and comes again.
    let consumer_of =
        |asked: &[crate::testing::scripted_broker::Received], at: usize| match &asked[at].command {
            Command::RedeliverUnacknowledgedMessages(asked) => asked.consumer_id,
            other => panic!("{other:?}"),
        };
    let asked = in_time(broker.wait_for(Type::RedeliverUnacknowledgedMessages, 1)).await;
    assert_eq!(consumer_of(&asked, 0), ids[1]);
    broker.push(vec![complete(0, "x")]);
    assert_eq!(*next(&consumer).await.payload, whole);
    broker.push(vec![begin(1, "y"), complete(1, "y")]);
    assert_eq!(*next(&consumer).await.payload, whole);
    // One that is never completed gives way to another that comes for the second time.
    broker.push(vec![begin(0, "never"), deliver(ids[0], 3, "plain")]);
    assert_eq!(next_text(&consumer).await, "plain");
    for round in 0..2 {
        broker.push(vec![begin(1, "z"), deliver(ids[1], 3, "plain")]);
        assert_eq!(next_text(&consumer).await, "plain");
        if round == 0 {
            let asked = broker.wait_for(Type::RedeliverUnacknowledgedMessages, 2);
            assert_eq!(consumer_of(&in_time(asked).await, 1), ids[1]);
        }
    }
    broker.push(vec![begin(1, "z"), complete(1, "z")]);
    assert_eq!(*in_time(next(&consumer)).await.payload, whole);
    let mut count = 3;
    loop {
        let asked = broker.wait_for(Type::RedeliverUnacknowledgedMessages, count);
        let asked = in_time(asked).await;
        if (2..asked.len()).any(|at| consumer_of(&asked, at) == ids[0]) {
            break;
        }
        count = asked.len() + 1;
    }
    assert!(acknowledged(&broker).is_empty());
    broker.stop().await;
}

/// Time of the runtime goes on for so long, at once.
async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn what_gave_way_and_is_acknowledged_cumulatively_is_told() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let uuids: Vec<String> = (0..11).map(|number| format!("u{number}")).collect();
    let first = (0..)
        .zip(&uuids)
        .map(|(entry, uuid)| deliver_chunk(id, entry, &half(uuid, 0)));
    let second = (11..)
        .zip(&uuids[..2])
        .map(|(entry, uuid)| deliver_chunk(id, entry, &half(uuid, 1)));
    broker.push(first.chain(second).collect());
    let message = next(&consumer).await;
    assert_eq!(message.id.entry_id, 12);
    assert_eq!(consumer.discarded(), 0);
    consumer.ack_cumulative(&message).await.unwrap();
    // Both chunks of the first one.
    assert_eq!(consumer.discarded(), 2);
    consumer.ack_cumulative(&message).await.unwrap();
    assert_eq!(consumer.discarded(), 2);
    broker.stop().await;
}

#[tokio::test]
async fn a_chunk_without_those_before_it_is_given_up_where_all_comes_in_order() {
    for subscription_type in [SubscriptionType::Exclusive, SubscriptionType::Failover] {
        let (broker, client) = broker_with(|script| script).await;
        let options = ConsumerOptions {
            subscription_type,
            ..shared(10)
        };
        let consumer = subscribe(&client, options).await;
        let id = subscribed(&broker, 1).await.consumer_id;
        flow(&broker, 1).await;
        let young = MessageMetadata {
            publish_time: now_ms(),
            ..half("young", 1)
        };
        broker.push(vec![deliver_chunk(id, 0, &young), deliver(id, 1, "next")]);
        assert_eq!(next_text(&consumer).await, "next");
        assert_eq!(consumer.discarded(), 1);
        broker.wait_for(Type::Ack, 1).await;
        assert_eq!(acknowledged(&broker), [0]);
        let topic = consumer.set().topics().remove(0);
        assert_eq!(topic.inner.lock().state.deadline(), None);
        broker.stop().await;
    }
}

#[tokio::test]
async fn a_message_that_gave_way_and_does_not_begin_anew_is_given_up_where_all_comes_in_order() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ConsumerOptions {
        subscription_type: SubscriptionType::Exclusive,
        ..shared(1)
    };
    let consumer = subscribe(&client, options).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    broker.push(vec![
        deliver_chunk(id, 0, &half("first", 0)),
        deliver_chunk(id, 1, &half("other", 0)),
        deliver_chunk(id, 2, &half("first", 1)),
        deliver(id, 3, "next"),
    ]);
    assert_eq!(next_text(&consumer).await, "next");
    assert_eq!(consumer.discarded(), 0);
    in_time(broker.wait_for(Type::RedeliverUnacknowledgedMessages, 1)).await;
    // Its beginning is gone meanwhile.
    broker.push(vec![
        deliver_chunk(id, 2, &half("first", 1)),
        deliver(id, 3, "next"),
    ]);
    assert_eq!(next_text(&consumer).await, "next");
    assert_eq!(consumer.discarded(), 1);
    broker.wait_for(Type::Ack, 1).await;
    assert_eq!(acknowledged(&broker), [2]);
    broker.stop().await;
}

#[tokio::test]
async fn a_chunk_without_those_before_it_is_not_waited_for_without_end() {
    let (broker, client) = broker_with(|script| script).await;
    let mut options = shared(10);
    options.chunks.expire_after = None;
    let consumer = subscribe(&client, options).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let since = |uuid, age: Duration| MessageMetadata {
        publish_time: now_ms() - u64::try_from(age.as_millis()).unwrap(),
        ..half(uuid, 1)
    };
    broker.push(vec![
        deliver_chunk(id, 0, &since("young", Duration::from_secs(59 * 60))),
        deliver_chunk(id, 1, &since("old", Duration::from_secs(61 * 60))),
        deliver(id, 2, "next"),
    ]);
    assert_eq!(next_text(&consumer).await, "next");
    broker.wait_for(Type::Ack, 1).await;
    assert_eq!(acknowledged(&broker), [1]);
    assert_eq!(consumer.discarded(), 1);
    broker.stop().await;
}

#[tokio::test]
async fn the_age_of_a_chunk_is_told_by_the_clock_of_the_wall() {
    let (broker, client) = broker_with(|script| script).await;
    let mut options = shared(10);
    options.chunks.expire_after = Some(Duration::from_secs(10));
    let consumer = subscribe(&client, options).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    // The other clock is no measure of it: that of the wall may be set while it runs.
    skip(Duration::from_secs(20)).await;
    let young = MessageMetadata {
        publish_time: now_ms(),
        ..half("young", 1)
    };
    broker.push(vec![deliver_chunk(id, 0, &young), deliver(id, 1, "next")]);
    assert_eq!(next_text(&consumer).await, "next");
    assert_eq!(consumer.discarded(), 0);
    broker.stop().await;
}
