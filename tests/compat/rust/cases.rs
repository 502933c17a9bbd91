//! The cases that all the programs have and that need no disturbance.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{bail, ensure};
use pulsegate::{
    client::{
        Consumer, MessageId, OutgoingMessage, ProducerOptions,
        consumer::{ReceivedMessage, SeekTo, SubscriptionType},
        producer::BatchingOptions,
    },
    naming::TopicName,
    protocol::proto::pulsar::{CompressionType, ServerError},
};

use crate::service::{
    RECEIVE_TIMEOUT, Service, check_equal, expect_quiet, next, payloads, receive, receive_exactly,
    receive_shared, send_all, send_messages, text, unbatched,
};

pub(crate) async fn produce_consume(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("plain");
    let consumer = service
        .subscribe(&topic, SubscriptionType::Exclusive)
        .await?;
    let producer = service.producer(&topic, ProducerOptions::default()).await?;
    for content in payloads(0, 10) {
        let message = OutgoingMessage {
            key: Some("k".into()),
            properties: vec![("p".to_owned(), "v".to_owned())],
            event_time: Some(12345),
            ..OutgoingMessage::new(content)
        };
        producer.send(message).await?;
    }
    let first = next(&consumer).await?;
    check_equal(&text(&first), &"message 0".to_owned(), "first message")?;
    check_equal(&first.key.as_deref(), &Some("k"), "key")?;
    check_equal(
        &first.properties,
        &vec![("p".to_owned(), "v".to_owned())],
        "properties",
    )?;
    check_equal(&first.event_time, &Some(12345), "event time")?;
    consumer.ack(&first).await?;
    receive_exactly(&consumer, &payloads(1, 9), "messages").await?;
    expect_quiet(&consumer).await?;
    consumer.close().await;
    producer.close().await?;
    Ok(())
}

/// Messages of several keys, interleaved, and the payloads by key.
pub(crate) fn keyed(
    keys: usize,
    each: usize,
) -> (Vec<OutgoingMessage>, BTreeMap<String, Vec<String>>) {
    let mut messages = Vec::new();
    let mut by_key = BTreeMap::<String, Vec<String>>::new();
    for index in 0..each {
        for number in 0..keys {
            let (key, content) = (
                format!("key {number}"),
                format!("message {}", 100 * number + index),
            );
            messages.push(OutgoingMessage {
                key: Some(key.clone().into()),
                ..OutgoingMessage::new(content.clone())
            });
            by_key.entry(key).or_default().push(content);
        }
    }
    (messages, by_key)
}

/// The payloads by key, in the order in which they came.
pub(crate) fn by_key<'a>(
    messages: impl IntoIterator<Item = &'a ReceivedMessage>,
) -> BTreeMap<String, Vec<String>> {
    let mut seen = BTreeMap::<String, Vec<String>>::new();
    for message in messages {
        let key = message.key.clone().unwrap_or_default();
        seen.entry(key).or_default().push(text(message));
    }
    seen
}

pub(crate) async fn partitioned(service: &Service) -> anyhow::Result<()> {
    let topic = service.partitioned_topic("partitioned", 3)?;
    check_equal(
        &service.client.lookups().partitions(&topic).await?,
        &3,
        "partitions",
    )?;
    let consumer = service
        .subscribe(&topic, SubscriptionType::Exclusive)
        .await?;
    let producer = service.producer(&topic, ProducerOptions::default()).await?;
    let (messages, sent) = keyed(6, 10);
    send_messages(&producer, messages).await?;
    let mut seen = Vec::new();
    for _ in 0..60 {
        let message = next(&consumer).await?;
        consumer.ack(&message).await?;
        seen.push(message);
    }
    let partitions: BTreeSet<_> = seen.iter().map(|message| &message.topic).collect();
    ensure!(partitions.len() > 1, "all keys went to one partition");
    check_equal(&by_key(&seen), &sent, "messages by key")?;
    consumer.close().await;
    producer.close().await?;
    Ok(())
}

pub(crate) async fn exclusive(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("exclusive");
    let consumer = service
        .subscribe(&topic, SubscriptionType::Exclusive)
        .await?;
    match service.subscribe(&topic, SubscriptionType::Exclusive).await {
        Ok(_) => bail!("a second exclusive consumer was let in"),
        Err(error) => {
            let code = error
                .downcast_ref::<pulsegate::client::ClientError>()
                .and_then(pulsegate::client::ClientError::server_error);
            check_equal(&code, &Some(ServerError::ConsumerBusy), "the refusal")?;
        }
    }
    produce_and_receive(
        service,
        &consumer,
        &topic,
        ProducerOptions::default(),
        &payloads(0, 20),
    )
    .await?;
    consumer.close().await;
    Ok(())
}

/// Sends with a producer of its own and expects the same from the consumer.
async fn produce_and_receive(
    service: &Service,
    consumer: &Consumer,
    topic: &TopicName,
    options: ProducerOptions,
    contents: &[String],
) -> anyhow::Result<()> {
    let producer = service.producer(topic, options).await?;
    send_all(&producer, contents).await?;
    receive_exactly(consumer, contents, "messages").await?;
    producer.close().await?;
    Ok(())
}

pub(crate) async fn shared(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("shared");
    let mut consumers = Vec::new();
    for _ in 0..2 {
        let few =
            |options: &mut pulsegate::client::ConsumerOptions| options.receiver_queue_size = 5;
        consumers.push(
            service
                .subscribe_with(&topic, SubscriptionType::Shared, few)
                .await?,
        );
    }
    let producer = service.producer(&topic, unbatched()).await?;
    send_all(&producer, &payloads(0, 100)).await?;
    let lists = receive_shared(&consumers, 100).await?;
    ensure!(
        lists.iter().all(|list| !list.is_empty()),
        "a consumer got nothing"
    );
    let mut seen: Vec<String> = lists.iter().flatten().map(text).collect();
    let mut expected = payloads(0, 100);
    seen.sort();
    expected.sort();
    check_equal(&seen, &expected, "messages")?;
    for consumer in consumers {
        consumer.close().await;
    }
    producer.close().await?;
    Ok(())
}

pub(crate) async fn failover(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("failover");
    let mut consumers = Vec::new();
    for name in ["a", "b"] {
        let named = |options: &mut pulsegate::client::ConsumerOptions| {
            options.consumer_name = Some(name.to_owned())
        };
        consumers.push(
            service
                .subscribe_with(&topic, SubscriptionType::Failover, named)
                .await?,
        );
    }
    let producer = service.producer(&topic, ProducerOptions::default()).await?;
    send_all(&producer, &payloads(0, 20)).await?;
    let lists = receive_shared(&consumers, 20).await?;
    let active = usize::from(lists[0].is_empty());
    let seen: Vec<String> = lists[active].iter().map(text).collect();
    check_equal(&seen, &payloads(0, 20), "messages of the active consumer")?;
    ensure!(
        lists[1 - active].is_empty(),
        "the waiting consumer got messages"
    );
    consumers.remove(active).close().await;
    send_all(&producer, &payloads(20, 20)).await?;
    receive_exactly(
        &consumers[0],
        &payloads(20, 20),
        "messages after the switch",
    )
    .await?;
    consumers[0].close().await;
    producer.close().await?;
    Ok(())
}

pub(crate) async fn key_shared(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("key-shared");
    keys_stay(service, &topic).await
}

/// Each key goes to one of two consumers, in order, and both get some.
pub(crate) async fn keys_stay(service: &Service, topic: &TopicName) -> anyhow::Result<()> {
    let mut consumers = Vec::new();
    for _ in 0..2 {
        consumers.push(
            service
                .subscribe(topic, SubscriptionType::KeyShared)
                .await?,
        );
    }
    let options = ProducerOptions {
        batching: Some(BatchingOptions {
            key_based: true,
            ..BatchingOptions::default()
        }),
        ..ProducerOptions::default()
    };
    let producer = service.producer(topic, options).await?;
    let (messages, sent) = keyed(20, 10);
    send_messages(&producer, messages).await?;
    let lists = receive_shared(&consumers, 200).await?;
    ensure!(
        lists.iter().all(|list| !list.is_empty()),
        "a consumer got no key"
    );
    let [first, second] = [by_key(&lists[0]), by_key(&lists[1])];
    let both: Vec<_> = first
        .keys()
        .filter(|key| second.contains_key(*key))
        .collect();
    ensure!(both.is_empty(), "{both:?} went to both consumers");
    check_equal(&by_key(lists.iter().flatten()), &sent, "messages by key")?;
    for consumer in consumers {
        consumer.close().await;
    }
    producer.close().await?;
    Ok(())
}

pub(crate) async fn batched(service: &Service) -> anyhow::Result<()> {
    let options = ProducerOptions {
        batching: Some(BatchingOptions {
            max_messages: 50,
            max_delay: Duration::from_millis(200),
            ..BatchingOptions::default()
        }),
        ..ProducerOptions::default()
    };
    let largest = largest_batch(service, &service.topic("batched"), options).await?;
    ensure!(largest > 1, "nothing was batched");
    Ok(())
}

pub(crate) async fn unbatched_alone(service: &Service) -> anyhow::Result<()> {
    let largest = largest_batch(service, &service.topic("unbatched"), unbatched()).await?;
    ensure!(largest <= 1, "messages came in a batch of {largest}");
    Ok(())
}

/// Sends and receives 200 messages; the size of the largest batch.
async fn largest_batch(
    service: &Service,
    topic: &TopicName,
    options: ProducerOptions,
) -> anyhow::Result<u32> {
    let consumer = service
        .subscribe(topic, SubscriptionType::Exclusive)
        .await?;
    let producer = service.producer(topic, options).await?;
    send_all(&producer, &payloads(0, 200)).await?;
    let mut largest = 0;
    for content in payloads(0, 200) {
        let message = next(&consumer).await?;
        largest = largest.max(message.id.batch_size.unwrap_or_default());
        check_equal(&text(&message), &content, "message")?;
        consumer.ack_cumulative(&message).await?;
    }
    consumer.close().await;
    producer.close().await?;
    Ok(largest)
}

pub(crate) async fn compressed(service: &Service, codec: &str) -> anyhow::Result<()> {
    let compression = match codec {
        "none" => CompressionType::None,
        "lz4" => CompressionType::Lz4,
        "zlib" => CompressionType::Zlib,
        "zstd" => CompressionType::Zstd,
        _ => CompressionType::Snappy,
    };
    let topic = service.topic(&format!("compression-{codec}"));
    let consumer = service
        .subscribe(&topic, SubscriptionType::Exclusive)
        .await?;
    let contents: Vec<String> = (0..20)
        .map(|index| format!("line {index} ").repeat(500))
        .collect();
    for batching in [None, Some(BatchingOptions::default())] {
        let options = ProducerOptions {
            compression,
            batching,
            ..ProducerOptions::default()
        };
        produce_and_receive(service, &consumer, &topic, options, &contents).await?;
    }
    consumer.close().await;
    Ok(())
}

pub(crate) async fn chunked(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("chunked");
    let consumer = service
        .subscribe(&topic, SubscriptionType::Exclusive)
        .await?;
    let options = ProducerOptions {
        chunking: true,
        send_timeout: Some(RECEIVE_TIMEOUT),
        ..unbatched()
    };
    let producer = service.producer(&topic, options).await?;
    // Not to be compressed by whoever is on the way: a generator of Knuth's.
    let mut state = 20_u64;
    let content: Vec<u8> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    })
    .take(20 * 1024 * 1024)
    .collect();
    producer.send(OutgoingMessage::new(content.clone())).await?;
    producer.send(OutgoingMessage::new("after")).await?;
    let message = next(&consumer).await?;
    ensure!(
        message.payload == content,
        "{} other bytes came back",
        message.payload.len()
    );
    consumer.ack(&message).await?;
    receive_exactly(&consumer, &["after".to_owned()], "message after it").await?;
    consumer.close().await;
    producer.close().await?;
    Ok(())
}

pub(crate) async fn reader(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("reader");
    let producer = service.producer(&topic, ProducerOptions::default()).await?;
    let ids = send_all(&producer, &payloads(0, 20)).await?;
    read_exactly(service, &topic, MessageId::earliest(), &payloads(0, 20)).await?;
    read_exactly(service, &topic, ids[9].clone(), &payloads(10, 10)).await?;
    producer.close().await?;
    Ok(())
}

/// Reads from behind a message to the end of the topic and expects exactly these messages.
async fn read_exactly(
    service: &Service,
    topic: &TopicName,
    start: MessageId,
    expected: &[String],
) -> anyhow::Result<()> {
    let options = pulsegate::client::ReaderOptions::new(start);
    let reader = service.client.reader(topic, options).await?;
    let mut seen = Vec::new();
    while reader.has_message_available().await? {
        let message = tokio::time::timeout(RECEIVE_TIMEOUT, reader.recv()).await??;
        seen.push(text(&message));
    }
    check_equal(&seen.as_slice(), &expected, "messages read")?;
    reader.close().await;
    Ok(())
}

pub(crate) async fn seek_by_id(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("seek-id");
    let consumer = service
        .subscribe(&topic, SubscriptionType::Exclusive)
        .await?;
    let producer = service.producer(&topic, unbatched()).await?;
    let ids = send_all(&producer, &payloads(0, 20)).await?;
    receive_exactly(&consumer, &payloads(0, 20), "messages").await?;
    consumer.seek(SeekTo::Id(ids[5].clone())).await?;
    receive_exactly(&consumer, &payloads(6, 14), "messages after the seek").await?;
    consumer.seek(SeekTo::Id(MessageId::earliest())).await?;
    receive_exactly(&consumer, &payloads(0, 20), "messages from the start").await?;
    consumer.close().await;
    producer.close().await?;
    Ok(())
}

pub(crate) async fn seek_by_time(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("seek-time");
    let consumer = service
        .subscribe(&topic, SubscriptionType::Exclusive)
        .await?;
    let producer = service.producer(&topic, unbatched()).await?;
    send_all(&producer, &payloads(0, 10)).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let middle = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    tokio::time::sleep(Duration::from_millis(500)).await;
    send_all(&producer, &payloads(10, 10)).await?;
    receive_exactly(&consumer, &payloads(0, 20), "messages").await?;
    consumer.seek(SeekTo::Time(u64::try_from(middle)?)).await?;
    let seen = receive(&consumer, 10).await?;
    check_equal(&seen, &payloads(10, 10), "messages after the seek")?;
    consumer.close().await;
    producer.close().await?;
    Ok(())
}
