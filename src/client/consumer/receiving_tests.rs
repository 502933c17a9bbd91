//! Entries that are far more than they look like, and ways of receiving that are mixed.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;

use super::{scripted_tests::*, *};
use crate::{
    protocol::{
        batch::{BatchBuilder, BatchLimits},
        command::Command,
        message::{self, EncodedParts, MessageForm},
        proto::pulsar::{
            BrokerEntryMetadata, CommandMessage, CompressionType, MessageMetadata,
            SingleMessageMetadata, base_command::Type, command_ack::ValidationError,
        },
    },
    testing::scripted_broker::{ScriptedBroker, Step},
};

/// One entry with as many messages without content, by a producer of this name.
fn empty_messages(count: usize, producer_name: &str) -> Bytes {
    let mut builder = BatchBuilder::new(BatchLimits {
        max_messages: i32::MAX,
        max_bytes: usize::MAX,
    });
    for _ in 0..count {
        let message = SingleMessageMetadata::default();
        builder.push(message, b"").unwrap();
    }
    let metadata = MessageMetadata {
        producer_name: producer_name.to_owned(),
        schema_version: Some(vec![7; 100].into()),
        replicated_from: Some("east".to_owned()),
        ..metadata()
    };
    let (metadata, payload) = builder
        .finish(metadata, CompressionType::Zlib)
        .unwrap()
        .unwrap();
    entry(&metadata, &payload)
}

async fn with_entries(entries: Vec<Bytes>) -> (ScriptedBroker, Consumer) {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let deliver = |(entry_id, entry)| deliver_as(message_command(id, entry_id), entry);
    broker.push((0..).zip(entries).map(deliver).collect::<Vec<Step>>());
    (broker, consumer)
}

#[tokio::test]
async fn the_messages_of_a_batch_share_what_their_entry_says() {
    let name = "n".repeat(1 << 20);
    let (broker, consumer) = with_entries(vec![empty_messages(3, &name)]).await;
    let first = next(&consumer).await;
    let second = next(&consumer).await;
    assert_eq!(*first.producer_name, *name);
    assert!(Arc::ptr_eq(&first.producer_name, &second.producer_name));
    let versions = [first.schema_version, second.schema_version].map(Option::unwrap);
    assert_eq!(versions[0].as_ptr(), versions[1].as_ptr());
    assert_eq!(second.replicated_from.as_deref(), Some("east"));
    assert_eq!(second.id.batch_index, Some(1));
    broker.stop().await;
}

#[tokio::test]
async fn messages_of_a_batch_are_made_when_they_are_wanted() {
    // Of three messages the last one is cut off.
    let payload = batch(&["a", "b", "c"]);
    let mut cut = EncodedParts::split(payload).unwrap().payload;
    cut.truncate(cut.len() - 1);
    let metadata = MessageMetadata {
        num_messages_in_batch: Some(3),
        ..metadata()
    };
    let (broker, consumer) =
        with_entries(vec![entry(&metadata, &cut), entry(&self::metadata(), b"d")]).await;
    let mut texts = vec![next_text(&consumer).await];
    // What is wrong with it nobody knows before the third one is wanted.
    assert_eq!(consumer.discarded(), 0);
    texts.push(next_text(&consumer).await);
    texts.push(next_text(&consumer).await);
    assert_eq!(texts, ["a", "b", "d"]);
    assert_eq!(consumer.discarded(), 1);
    let acks = broker.wait_for(Type::Ack, 1).await;
    let Command::Ack(ack) = &acks[0].command else {
        panic!("{acks:?}")
    };
    let expected = ValidationError::BatchDeSerializeError.into();
    assert_eq!(ack.validation_error, Some(expected));
    broker.stop().await;
}

#[tokio::test]
async fn a_batch_of_very_many_messages_is_handed_out_in_parts() {
    const COUNT: usize = 70_000;
    let (broker, consumer) = with_entries(vec![empty_messages(COUNT, "p")]).await;
    let mut parts = Vec::new();
    let mut indexes = 0..;
    while parts.iter().sum::<usize>() < COUNT {
        let mut messages = Vec::new();
        let count = consumer.receive_many(&mut messages, 10).await.unwrap();
        assert_eq!(count, messages.len());
        for (message, index) in messages.iter().zip(&mut indexes) {
            assert_eq!(message.id.batch_index, Some(index));
        }
        parts.push(count);
    }
    assert_eq!(parts, [65_536, COUNT - 65_536]);
    // All permits are given back: with 1000 messages of queue, far more than were asked for.
    assert!(flow(&broker, 2).await >= 1000);
    broker.stop().await;
}

#[tokio::test]
async fn ways_of_receiving_can_be_mixed_in_the_middle_of_a_batch() {
    let entries = vec![
        batch(&["a", "b", "c", "d"]),
        entry(&metadata(), b"e"),
        batch(&["f", "g"]),
    ];
    let (broker, consumer) = with_entries(entries).await;
    let mut texts = vec![next_text(&consumer).await];
    assert!(consumer.has_message_available().await.unwrap());
    assert!(consumer.has_message_available().await.unwrap());
    let mut count = 0;
    while count < 4 {
        let text = |view: MessageView<'_>| {
            texts.push(String::from_utf8(view.payload().to_vec()).unwrap());
        };
        count += consumer.receive_each(1, text).await.unwrap();
    }
    texts.push(next_text(&consumer).await);
    if let Some(message) = consumer.try_recv().unwrap() {
        texts.push(String::from_utf8(message.payload.to_vec()).unwrap());
    }
    assert_eq!(texts, ["a", "b", "c", "d", "e", "f", "g"]);
    assert!(consumer.try_recv().unwrap().is_none());
    let notices = &consumer.set().shared.notices;
    assert_eq!(notices.discarded.load(Ordering::Relaxed), 0);
    broker.stop().await;
}

#[tokio::test]
async fn what_is_acknowledged_while_it_is_visited_is_acknowledged_whole() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ConsumerOptions {
        ack_timeout: Some(Duration::from_secs(600)),
        ..options()
    };
    let consumer = subscribe(&client, options).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let chunk = |chunk_id| MessageMetadata {
        uuid: Some("u".to_owned()),
        num_chunks_from_msg: Some(2),
        total_chunk_msg_size: Some(4),
        chunk_id: Some(chunk_id),
        ..metadata()
    };
    let partly = CommandMessage {
        ack_set: vec![0b100],
        ..message_command(id, 0)
    };
    broker.push(vec![
        deliver_as(partly, batch(&["a", "b", "c"])),
        deliver_as(message_command(id, 1), entry(&chunk(0), b"de")),
        deliver_as(message_command(id, 2), entry(&chunk(1), b"fg")),
    ]);
    let mut texts = Vec::new();
    while texts.len() < 2 {
        let acknowledge = |view: MessageView<'_>| {
            texts.push(String::from_utf8(view.payload().to_vec()).unwrap());
            consumer.ack_later(view.id()).unwrap();
        };
        consumer.receive_each(10, acknowledge).await.unwrap();
    }
    assert_eq!(texts, ["c", "defg"]);
    // Nothing is waited for any more.
    let topic = consumer.set().topics().remove(0);
    assert_eq!(topic.inner.lock().state.deadline(), None);
    consumer.close().await;
    let acks = broker.received_of(Type::Ack).into_iter();
    let ids = acks.flat_map(|ack| match ack.command {
        Command::Ack(ack) => ack.message_id,
        other => panic!("{other:?}"),
    });
    let entries: Vec<u64> = ids.map(|id| id.entry_id).collect();
    assert_eq!(entries, [0, 1, 2]);
    broker.stop().await;
}

#[tokio::test]
async fn a_message_that_was_looked_at_before_is_shown_with_all_that_is_known_of_it() {
    let (broker, client) = broker_with(|script| script).await;
    let consumer = subscribe(&client, options()).await;
    let id = subscribed(&broker, 1).await.consumer_id;
    flow(&broker, 1).await;
    let numbered = |metadata: &MessageMetadata, payload: Bytes| {
        let broker_entry = BrokerEntryMetadata {
            broker_timestamp: Some(77),
            index: Some(41),
        };
        let form = MessageForm {
            checksum: true,
            broker_entry: Some(&broker_entry),
        };
        message::encode(metadata, payload, form).to_bytes()
    };
    let chunk = |chunk_id| MessageMetadata {
        uuid: Some("u".to_owned()),
        num_chunks_from_msg: Some(2),
        total_chunk_msg_size: Some(4),
        chunk_id: Some(chunk_id),
        ..metadata()
    };
    let mut builder = BatchBuilder::new(BatchLimits::default());
    for payload in [b"a", b"b"] {
        let single = SingleMessageMetadata::default();
        builder.push(single, payload).unwrap();
    }
    let (batch, payload) = builder
        .finish(metadata(), CompressionType::None)
        .unwrap()
        .unwrap();
    broker.push(vec![
        deliver_as(message_command(id, 1), entry(&chunk(0), b"de")),
        deliver_as(
            message_command(id, 2),
            numbered(&chunk(1), Bytes::from_static(b"fg")),
        ),
        deliver_as(message_command(id, 3), numbered(&batch, payload)),
    ]);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let topic = consumer.set().topics().remove(0);
        while !topic.has_message_here() {
            tokio::task::yield_now().await;
        }
        let see = |view: MessageView<'_>| {
            let times = view.broker_entry().map(|entry| entry.broker_timestamp);
            seen.push((view.id().first_chunk, view.index(), times));
        };
        consumer.receive_each(1, see).await.unwrap();
    }
    let time = Some(Some(77));
    let expected = [
        (Some(Box::new((7, 1))), Some(41), time),
        (None, Some(40), time),
        (None, Some(41), time),
    ];
    assert_eq!(seen, expected);
    broker.stop().await;
}
