//! Cases of what this client has besides: access modes, negative acknowledgement, receipts of acknowledgements, patterns and
//! entries as they lie.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{bail, ensure};
use pulsegate::{
    client::{
        ConsumerOptions, OutgoingMessage, ProducerOptions, SendError, Topics,
        consumer::{SubscriptionType, TopicMode},
        producer::{ProducerAccessMode, RawEntry},
    },
    naming::NamespaceName,
    protocol::message::EncodedParts,
};
use tokio::time::timeout;

use crate::{
    cases::{by_key, keyed, keys_stay},
    service::{
        RECEIVE_TIMEOUT, Service, check_equal, consumer_options, expect_quiet, next, payloads,
        receive_exactly, receive_shared, send_all, send_messages, text, unbatched,
    },
};

fn access(access_mode: ProducerAccessMode) -> ProducerOptions {
    ProducerOptions {
        access_mode,
        ..ProducerOptions::default()
    }
}

pub(crate) async fn exclusive_producer(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("exclusive-producer");
    let first = service
        .producer(&topic, access(ProducerAccessMode::Exclusive))
        .await?;
    for mode in [ProducerAccessMode::Exclusive, ProducerAccessMode::Shared] {
        if service.producer(&topic, access(mode)).await.is_ok() {
            bail!("a second producer with access {mode:?} was let in");
        }
    }
    first.send(OutgoingMessage::new("only")).await?;
    first.close().await?;
    let next = service
        .producer(&topic, access(ProducerAccessMode::Exclusive))
        .await?;
    next.close().await?;
    Ok(())
}

pub(crate) async fn fenced_producer(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("fenced-producer");
    let first = service
        .producer(&topic, access(ProducerAccessMode::Exclusive))
        .await?;
    first.send(OutgoingMessage::new("before")).await?;
    let fencing = access(ProducerAccessMode::ExclusiveWithFencing);
    let second = service.producer(&topic, fencing).await?;
    second.send(OutgoingMessage::new("after")).await?;
    match timeout(RECEIVE_TIMEOUT, first.send(OutgoingMessage::new("late"))).await? {
        Ok(id) => bail!("the fenced producer sent {id}"),
        Err(SendError::Fenced) => {}
        Err(error) => bail!("the fenced producer was told {error}"),
    }
    let consumer = service
        .subscribe(&topic, SubscriptionType::Exclusive)
        .await?;
    receive_exactly(
        &consumer,
        &["before".to_owned(), "after".to_owned()],
        "messages",
    )
    .await?;
    expect_quiet(&consumer).await?;
    consumer.close().await;
    second.close().await?;
    Ok(())
}

pub(crate) async fn waiting_producer(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("waiting-producer");
    let first = service
        .producer(&topic, access(ProducerAccessMode::Exclusive))
        .await?;
    let waiting = service.producer(&topic, access(ProducerAccessMode::WaitForExclusive));
    let mut waiting = std::pin::pin!(waiting);
    if timeout(Duration::from_millis(1500), &mut waiting)
        .await
        .is_ok()
    {
        bail!("it did not wait");
    }
    first.close().await?;
    let second = timeout(RECEIVE_TIMEOUT, waiting).await??;
    second.send(OutgoingMessage::new("mine now")).await?;
    second.close().await?;
    Ok(())
}

pub(crate) async fn negative_ack(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("negative-ack");
    let soon =
        |options: &mut ConsumerOptions| options.negative_ack_delay = Duration::from_millis(500);
    let consumer = service
        .subscribe_with(&topic, SubscriptionType::Shared, soon)
        .await?;
    let producer = service.producer(&topic, ProducerOptions::default()).await?;
    send_all(&producer, &payloads(0, 10)).await?;
    let mut refused = BTreeSet::new();
    for index in 0..10 {
        let message = next(&consumer).await?;
        if index % 2 == 0 {
            refused.insert(text(&message));
            consumer.negative_ack(&message)?;
        } else {
            consumer.ack(&message).await?;
        }
    }
    // Without acknowledgement by batch index the whole batch comes again, else only what was refused.
    while !refused.is_empty() {
        let message = next(&consumer).await?;
        ensure!(
            message.redelivery_count > 0,
            "{} came again as if for the first time",
            text(&message)
        );
        refused.remove(&text(&message));
        consumer.ack(&message).await?;
    }
    consumer.close().await;
    producer.close().await?;
    Ok(())
}

pub(crate) async fn ack_receipts(service: &Service) -> anyhow::Result<()> {
    let topic = service.topic("ack-receipts");
    let with_receipt = |options: &mut ConsumerOptions| options.ack_receipt = true;
    let consumer = service
        .subscribe_with(&topic, SubscriptionType::Shared, with_receipt)
        .await?;
    let producer = service.producer(&topic, unbatched()).await?;
    send_all(&producer, &payloads(0, 10)).await?;
    for _ in 0..10 {
        let message = next(&consumer).await?;
        timeout(RECEIVE_TIMEOUT, consumer.ack(&message)).await??;
    }
    consumer.close().await;
    let again = service.subscribe(&topic, SubscriptionType::Shared).await?;
    expect_quiet(&again).await?;
    again.close().await;
    producer.close().await?;
    Ok(())
}

pub(crate) async fn shared_partitioned(service: &Service) -> anyhow::Result<()> {
    let topic = service.partitioned_topic("shared-partitioned", 3)?;
    let mut consumers = Vec::new();
    for _ in 0..2 {
        let few = |options: &mut ConsumerOptions| options.receiver_queue_size = 6;
        consumers.push(
            service
                .subscribe_with(&topic, SubscriptionType::Shared, few)
                .await?,
        );
    }
    let producer = service.producer(&topic, unbatched()).await?;
    send_all(&producer, &payloads(0, 120)).await?;
    let lists = receive_shared(&consumers, 120).await?;
    let seen: BTreeSet<String> = lists.iter().flatten().map(text).collect();
    check_equal(&seen, &payloads(0, 120).into_iter().collect(), "messages")?;
    for consumer in consumers {
        consumer.close().await;
    }
    producer.close().await?;
    Ok(())
}

pub(crate) async fn key_shared_partitioned(service: &Service) -> anyhow::Result<()> {
    let topic = service.partitioned_topic("key-shared-partitioned", 3)?;
    keys_stay(service, &topic).await
}

pub(crate) async fn failover_partitioned(service: &Service) -> anyhow::Result<()> {
    let topic = service.partitioned_topic("failover-partitioned", 4)?;
    let mut consumers = Vec::new();
    for name in ["a", "b"] {
        let named = |options: &mut ConsumerOptions| options.consumer_name = Some(name.to_owned());
        consumers.push(
            service
                .subscribe_with(&topic, SubscriptionType::Failover, named)
                .await?,
        );
    }
    let producer = service.producer(&topic, ProducerOptions::default()).await?;
    let (messages, sent) = keyed(12, 5);
    send_messages(&producer, messages).await?;
    let lists = receive_shared(&consumers, 60).await?;
    check_equal(&by_key(lists.iter().flatten()), &sent, "messages by key")?;
    for consumer in consumers {
        consumer.close().await;
    }
    producer.close().await?;
    Ok(())
}

pub(crate) async fn pattern(service: &Service) -> anyhow::Result<()> {
    let mut options = consumer_options(SubscriptionType::Exclusive);
    options.pattern_discovery = Duration::from_secs(1);
    let names = [service.topic("pattern-a"), service.topic("pattern-b")];
    let first = service
        .producer(&names[0], ProducerOptions::default())
        .await?;
    let topics = Topics::Pattern {
        namespace: NamespaceName::parse(&service.namespace)?,
        pattern: format!("{}/rust-pattern-.*-{}", service.namespace, service.run),
        mode: TopicMode::Persistent,
    };
    let consumer = service.client.consumer(topics, options).await?;
    first.send(OutgoingMessage::new("of the first")).await?;
    receive_exactly(&consumer, &["of the first".to_owned()], "message").await?;
    // A topic that is created later joins.
    let second = service
        .producer(&names[1], ProducerOptions::default())
        .await?;
    second.send(OutgoingMessage::new("of the second")).await?;
    receive_exactly(
        &consumer,
        &["of the second".to_owned()],
        "message of the new topic",
    )
    .await?;
    consumer.close().await;
    first.close().await?;
    second.close().await?;
    Ok(())
}

/// Entries taken from one topic to another as they are, as a replicator does it: batches stay batches.
pub(crate) async fn raw_entries(service: &Service) -> anyhow::Result<()> {
    let (from, to) = (service.topic("raw-from"), service.topic("raw-to"));
    let source = service
        .subscribe(&from, SubscriptionType::Exclusive)
        .await?;
    let target = service.subscribe(&to, SubscriptionType::Exclusive).await?;
    let producer = service.producer(&from, ProducerOptions::default()).await?;
    send_all(&producer, &payloads(0, 50)).await?;
    let carrier = service.producer(&to, unbatched()).await?;
    let mut messages = 0;
    while messages < 50 {
        let entry = timeout(RECEIVE_TIMEOUT, source.recv_entry()).await??;
        messages += entry.messages;
        let parts = EncodedParts::split(entry.entry.clone())?;
        let metadata = pulsegate::protocol::message::decode_metadata(parts.metadata.clone())?;
        carrier.send_entry(RawEntry {
            sequence_id: metadata.sequence_id,
            highest_sequence_id: metadata.highest_sequence_id,
            num_messages: metadata.num_messages_in_batch(),
            is_chunk: false,
            marker: false,
            headers_and_payload: parts.headers_and_payload,
            token: 0,
        })?;
        source.ack(&entry).await?;
    }
    carrier.flush().await?;
    receive_exactly(&target, &payloads(0, 50), "messages").await?;
    source.close().await;
    target.close().await;
    producer.close().await?;
    carrier.close().await?;
    Ok(())
}
