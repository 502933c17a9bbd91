//! Consumers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use pulsegate::{
    client::{
        MessageId, ReaderOptions,
        consumer::{
            Consumer, ConsumerOptions, InitialPosition, ReceivedMessage, SeekTo, SubscriptionType,
            TopicMode, Topics,
        },
    },
    naming::{NamespaceName, TopicName},
};

use crate::context::{Context, next, nothing, text};

cases![
    receives_in_order,
    receives_batches,
    acknowledged_is_not_delivered_again,
    exclusive_refuses_the_second,
    shared_spreads,
    failover_has_one_active,
    key_shared_keeps_keys_together,
    partitions_come_in_order,
    partitions_are_added,
    chunks_become_one_message,
    seeks,
    negative_acks_are_delivered_again,
    ack_timeouts_are_delivered_again,
    redelivers_all,
    cumulative_in_a_batch,
    batch_index_acks,
    ack_receipts,
    queue_of_size_zero,
    small_queue_and_large_batches,
    unsubscribes,
    ends_with_a_terminated_topic,
    pauses,
    patterns,
    unloaded_topics_come_back,
    killed_broker,
];

pub(crate) fn earliest(subscription: &str) -> ConsumerOptions {
    ConsumerOptions {
        initial_position: InitialPosition::Earliest,
        ..ConsumerOptions::new(subscription)
    }
}

async fn receives_in_order(context: Context) -> Result<()> {
    let topic = context.topic("t");
    context.produce(&topic, 3000, &["--key", "k%d"]).await?;
    let consumer = context.client.consumer(topic, earliest("s")).await?;
    for number in 0..3000u64 {
        let message = next(&consumer).await?;
        ensure!(text(&message) == format!("message-{number}"), "{message:?}");
        ensure!(message.key == Some(format!("k{number}")), "{message:?}");
        ensure!(message.event_time == Some(1000 + number), "{message:?}");
        let property = ("number".to_owned(), number.to_string());
        ensure!(message.properties == [property], "{message:?}");
        consumer.ack(&message).await?;
    }
    nothing(&consumer, Duration::from_millis(300)).await?;
    consumer.close().await;
    Ok(())
}

async fn receives_batches(context: Context) -> Result<()> {
    for codec in ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"] {
        let topic = context.topic(codec);
        context
            .produce(&topic, 3000, &["--batch", "100", "--compression", codec])
            .await?;
        let consumer = context.client.consumer(topic, earliest("s")).await?;
        for number in 0..3000u32 {
            let message = next(&consumer).await?;
            ensure!(
                text(&message) == format!("message-{number}"),
                "{codec} {message:?}"
            );
            ensure!(message.id.batch_size == Some(100), "{message:?}");
            ensure!(message.id.batch_index == Some(number % 100), "{message:?}");
            consumer.ack(&message).await?;
        }
        consumer.close().await;
    }
    Ok(())
}

async fn acknowledged_is_not_delivered_again(context: Context) -> Result<()> {
    for batch in ["1", "10"] {
        let topic = context.topic(batch);
        context.produce(&topic, 100, &["--batch", batch]).await?;
        let options = ConsumerOptions {
            subscription_type: SubscriptionType::Shared,
            ..earliest("s")
        };
        let consumer = context
            .client
            .consumer(topic.clone(), options.clone())
            .await?;
        let mut left = BTreeSet::new();
        for number in 0..100 {
            let message = next(&consumer).await?;
            // Whole batches of 10.
            if number / 10 % 2 == 0 {
                consumer.ack(&message).await?;
            } else {
                left.insert(text(&message));
            }
        }
        consumer.close().await;
        let consumer = context.client.consumer(topic, options).await?;
        let mut again = BTreeSet::new();
        for _ in 0..50 {
            again.insert(text(&next(&consumer).await?));
        }
        ensure!(left == again, "left {left:?}, delivered again {again:?}");
        nothing(&consumer, Duration::from_millis(300)).await?;
        consumer.close().await;
    }
    Ok(())
}

fn shared(subscription: &str) -> ConsumerOptions {
    of_type(SubscriptionType::Shared, subscription)
}

fn of_type(subscription_type: SubscriptionType, subscription: &str) -> ConsumerOptions {
    ConsumerOptions {
        subscription_type,
        ..earliest(subscription)
    }
}

/// `count` messages, acknowledged.
async fn take(consumer: &Consumer, count: usize) -> Result<Vec<ReceivedMessage>> {
    let mut messages = Vec::new();
    for number in 0..count {
        let message = next(consumer)
            .await
            .with_context(|| format!("message {number} of {count}"))?;
        consumer.ack(&message).await?;
        messages.push(message);
    }
    Ok(messages)
}

pub(crate) fn texts<'a>(messages: impl IntoIterator<Item = &'a ReceivedMessage>) -> Vec<String> {
    messages.into_iter().map(text).collect()
}

pub(crate) fn numbered(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    let text = |number| format!("message-{number}");
    numbers.into_iter().map(text).collect()
}

pub(crate) fn path(topic: &TopicName, what: &str) -> String {
    format!(
        "/admin/v2/persistent/public/default/{}/{what}",
        topic.local_name()
    )
}

pub(crate) fn now_ms() -> Result<u64> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(time.as_millis())?)
}

async fn exclusive_refuses_the_second(context: Context) -> Result<()> {
    let topic = context.topic("t");
    let client = &context.client;
    let first = client.consumer(topic.clone(), earliest("s")).await?;
    let second = client.consumer(topic.clone(), earliest("s")).await;
    let error = second.err().context("the second one was let in")?;
    ensure!(format!("{error}").contains("ConsumerBusy"), "{error}");
    first.close().await;
    let third = client.consumer(topic, earliest("s")).await?;
    third.close().await;
    Ok(())
}

async fn shared_spreads(context: Context) -> Result<()> {
    let topic = context.topic("t");
    let options = ConsumerOptions {
        receiver_queue_size: 10,
        ..shared("s")
    };
    let client = &context.client;
    let first = client.consumer(topic.clone(), options.clone()).await?;
    let second = client.consumer(topic.clone(), options).await?;
    let mut got = BTreeSet::new();
    let mut counts = [0, 0];
    context.produce(&topic, 200, &[]).await?;
    while got.len() < 200 {
        let (which, message) = tokio::select! {
            message = next(&first) => (0, message?),
            message = next(&second) => (1, message?),
        };
        counts[which] += 1;
        [&first, &second][which].ack(&message).await?;
        ensure!(got.insert(text(&message)), "{:?} came twice", message.id);
    }
    ensure!(counts[0] > 20 && counts[1] > 20, "{counts:?}");
    let cumulative = first.ack_cumulative(MessageId::of_entry(0, 0)).await;
    ensure!(cumulative.is_err(), "cumulative in a shared subscription");
    first.close().await;
    second.close().await;
    Ok(())
}

async fn failover_has_one_active(context: Context) -> Result<()> {
    let topic = context.topic("t");
    let options = |name: &str| ConsumerOptions {
        consumer_name: Some(name.to_owned()),
        ..of_type(SubscriptionType::Failover, "s")
    };
    let client = &context.client;
    let first = client.consumer(topic.clone(), options("a")).await?;
    let second = client.consumer(topic.clone(), options("b")).await?;
    let active = |consumer: &Consumer| consumer.topics()[0].is_active;
    let mut changes = [first.changes(), second.changes()];
    let (active_one, other) = loop {
        match (active(&first), active(&second)) {
            (Some(true), Some(false)) => break (first, second),
            (Some(false), Some(true)) => break (second, first),
            _ => {}
        }
        let [one, two] = &mut changes;
        tokio::select! {
            changed = one.changed() => changed?,
            changed = two.changed() => changed?,
        }
    };
    context.produce(&topic, 100, &[]).await?;
    let mut messages = Vec::new();
    for number in 0..100 {
        let message = next(&active_one).await;
        messages.push(message.with_context(|| format!("message {number}"))?);
    }
    ensure!(texts(&messages) == numbered(0..100), "order");
    // Only now: Apache 4.0.8 has to be done with what it pushes before its consumer leaves. A write that ends between the
    // departure and the failover begins a read at the end of the topic on behalf of the next consumer, and the failover, which
    // finds that read, begins none of its own. The next consumer then gets nothing until somebody publishes.
    for message in messages.iter().take(60) {
        active_one.ack(message).await?;
    }
    active_one.close().await;
    let messages = take(&other, 40).await?;
    ensure!(
        texts(&messages) == numbered(60..100),
        "{:?}",
        texts(&messages)
    );
    ensure!(active(&other) == Some(true), "not told that it is active");
    other.close().await;
    Ok(())
}

async fn key_shared_keeps_keys_together(context: Context) -> Result<()> {
    let topic = context.topic("t");
    let options = of_type(SubscriptionType::KeyShared, "s");
    let client = &context.client;
    let first = client.consumer(topic.clone(), options.clone()).await?;
    let second = client.consumer(topic.clone(), options).await?;
    let mut owners = BTreeMap::new();
    // The same keys each time.
    for _ in 0..3 {
        context.produce(&topic, 50, &["--key", "k%d"]).await?;
        for _ in 0..50 {
            let (which, message) = tokio::select! {
                message = next(&first) => (0, message?),
                message = next(&second) => (1, message?),
            };
            [&first, &second][which].ack(&message).await?;
            let key = message.key.clone().context("no key")?;
            let owner = *owners.entry(key).or_insert(which);
            ensure!(owner == which, "{:?} went to the other one", message.key);
        }
    }
    let of_first = owners.values().filter(|owner| **owner == 0).count();
    ensure!((1..50).contains(&of_first), "one has all keys");
    first.close().await;
    second.close().await;
    Ok(())
}

pub(crate) async fn partitioned(context: &Context, suffix: &str, count: u32) -> Result<TopicName> {
    let topic = context.topic(suffix);
    let path = path(&topic, "partitions");
    context
        .helper(&["admin", "PUT", &path, &count.to_string()])
        .await?;
    Ok(topic)
}

async fn partitions_come_in_order(context: Context) -> Result<()> {
    let topic = partitioned(&context, "t", 4).await?;
    let batched = ["--batch", "50", "--from", "2000", "--compression", "LZ4"];
    context.produce(&topic, 2000, &[]).await?;
    context.produce(&topic, 2000, &batched).await?;
    let client = &context.client;
    let consumer = client.consumer(topic.clone(), earliest("s")).await?;
    ensure!(consumer.topics().len() == 4, "{:?}", consumer.topics());
    let mut last: BTreeMap<_, MessageId> = BTreeMap::new();
    let mut got = BTreeSet::new();
    let mut received = 0;
    while received < 4000 {
        let mut ids = Vec::new();
        let mut disorder = None;
        received += consumer
            .receive_each(100, |view| {
                let id = view.id();
                if let Some(before) = last.get(view.topic())
                    && *before >= id
                {
                    disorder = Some(id.clone());
                }
                last.insert(view.topic().clone(), id.clone());
                got.insert(view.payload().clone());
                ids.push(id);
            })
            .await?;
        ensure!(disorder.is_none(), "{disorder:?} after a later one");
        consumer.ack_many(&ids).await?;
    }
    ensure!(got.len() == 4000, "{} different ones", got.len());
    consumer.close().await;
    let consumer = client.consumer(topic, earliest("s")).await?;
    nothing(&consumer, Duration::from_millis(500)).await?;
    consumer.close().await;
    Ok(())
}

async fn partitions_are_added(context: Context) -> Result<()> {
    let topic = partitioned(&context, "t", 2).await?;
    let options = ConsumerOptions {
        auto_update_partitions: Some(Duration::from_millis(300)),
        ..earliest("s")
    };
    let consumer = context.client.consumer(topic.clone(), options).await?;
    context
        .helper(&["admin", "POST", &path(&topic, "partitions"), "5"])
        .await?;
    let mut changes = consumer.changes();
    while consumer.topics().len() < 5 || !consumer.is_connected() {
        changes.changed().await?;
    }
    context.produce(&topic, 100, &[]).await?;
    let messages = take(&consumer, 100).await?;
    let partition = |message: &ReceivedMessage| message.id.partition;
    let partitions: BTreeSet<_> = messages.iter().map(partition).collect();
    ensure!(partitions.len() == 5, "{partitions:?}");
    consumer.close().await;
    Ok(())
}

async fn chunks_become_one_message(context: Context) -> Result<()> {
    for kind in [SubscriptionType::Exclusive, SubscriptionType::Shared] {
        let topic = context.topic(&format!("{kind:?}"));
        let size = 20 << 20;
        context
            .produce(&topic, 3, &["--size", &size.to_string(), "--chunked"])
            .await?;
        let client = &context.client;
        let consumer = client.consumer(topic.clone(), of_type(kind, "s")).await?;
        for number in 0..3 {
            let message = next(&consumer).await?;
            let payload = &message.payload;
            ensure!(payload.len() == size, "{} bytes", payload.len());
            let start = format!("message-{number}-x");
            ensure!(payload.starts_with(start.as_bytes()), "content");
            ensure!(message.id.first_chunk.is_some(), "{:?}", message.id);
            consumer.ack(&message).await?;
        }
        consumer.close().await;
        let consumer = client.consumer(topic, of_type(kind, "s")).await?;
        nothing(&consumer, Duration::from_millis(500)).await?;
        consumer.close().await;
    }
    Ok(())
}

async fn seeks(context: Context) -> Result<()> {
    for (batch, inclusive) in [("1", false), ("1", true), ("10", false), ("10", true)] {
        let topic = context.topic(&format!("{batch}-{inclusive}"));
        context.produce(&topic, 100, &["--batch", batch]).await?;
        let options = ConsumerOptions {
            start_message_inclusive: inclusive,
            ..earliest("s")
        };
        let consumer = context.client.consumer(topic.clone(), options).await?;
        let messages = take(&consumer, 100).await?;
        let first = if inclusive { 34 } else { 35 };
        consumer.seek(SeekTo::Id(messages[34].id.clone())).await?;
        let again = texts(&take(&consumer, 100 - first).await?);
        ensure!(
            again == numbered(first..100),
            "{batch} {inclusive}: {again:?}"
        );
        nothing(&consumer, Duration::from_millis(200)).await?;
        consumer.seek(SeekTo::Id(MessageId::earliest())).await?;
        let again = texts(&take(&consumer, 100).await?);
        ensure!(again == numbered(0..100), "earliest: {again:?}");
        consumer.seek(SeekTo::Id(MessageId::latest())).await?;
        nothing(&consumer, Duration::from_millis(300)).await?;
        let time = now_ms()? + 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
        context
            .produce(&topic, 100, &["--batch", batch, "--from", "100"])
            .await?;
        take(&consumer, 100).await?;
        consumer.seek(SeekTo::Time(time)).await?;
        let again = take(&consumer, 100).await?;
        ensure!(
            texts(&again) == numbered(100..200),
            "time: {:?}",
            texts(&again)
        );
        let last = MessageId {
            batch_size: None,
            ..again[99].id.clone()
        };
        let told = consumer.last_message_id().await?;
        ensure!(told == last, "last: {told:?} {last:?}");
        ensure!(!consumer.has_message_available().await?, "there is more");
        consumer.close().await;
    }
    Ok(())
}

async fn negative_acks_are_delivered_again(context: Context) -> Result<()> {
    for kind in [SubscriptionType::Shared, SubscriptionType::Exclusive] {
        let topic = context.topic(&format!("{kind:?}"));
        context.produce(&topic, 30, &[]).await?;
        let options = ConsumerOptions {
            negative_ack_delay: Duration::from_millis(300),
            ..of_type(kind, "s")
        };
        let consumer = context.client.consumer(topic, options).await?;
        for number in 0..30 {
            let message = next(&consumer).await?;
            if number % 3 == 0 {
                consumer.negative_ack(&message)?;
            } else {
                consumer.ack(&message).await?;
            }
        }
        let again = take(&consumer, 10).await?;
        // Brokers count only where each message goes its own way.
        let count = u32::from(kind == SubscriptionType::Shared);
        let counted = again
            .iter()
            .all(|message| message.redelivery_count == count);
        ensure!(counted, "{again:?}");
        let again: BTreeSet<String> = texts(&again).into_iter().collect();
        let expected = numbered((0..30).step_by(3)).into_iter().collect();
        ensure!(again == expected, "{again:?}");
        nothing(&consumer, Duration::from_millis(600)).await?;
        consumer.close().await;
    }
    Ok(())
}

async fn ack_timeouts_are_delivered_again(context: Context) -> Result<()> {
    let topic = context.topic("t");
    context.produce(&topic, 20, &["--batch", "5"]).await?;
    let options = ConsumerOptions {
        ack_timeout: Some(Duration::from_secs(1)),
        ..shared("s")
    };
    let consumer = context.client.consumer(topic, options).await?;
    for number in 0..20 {
        let message = next(&consumer).await?;
        if number >= 5 {
            consumer.ack(&message).await?;
        }
    }
    let again = take(&consumer, 5).await?;
    ensure!(texts(&again) == numbered(0..5), "{:?}", texts(&again));
    let counted = again.iter().all(|message| message.redelivery_count == 1);
    ensure!(counted, "{again:?}");
    nothing(&consumer, Duration::from_millis(1500)).await?;
    consumer.close().await;
    Ok(())
}

async fn redelivers_all(context: Context) -> Result<()> {
    for kind in [
        SubscriptionType::Exclusive,
        SubscriptionType::Failover,
        SubscriptionType::Shared,
    ] {
        let topic = context.topic(&format!("{kind:?}"));
        context.produce(&topic, 100, &["--batch", "4"]).await?;
        let consumer = context.client.consumer(topic, of_type(kind, "s")).await?;
        take(&consumer, 40).await?;
        for _ in 0..10 {
            next(&consumer).await?;
        }
        consumer.redeliver_all();
        if kind == SubscriptionType::Shared {
            // What was on its way when it was asked for again comes twice: only the other types have epochs (PIP-84).
            let mut again = BTreeSet::new();
            while again.len() < 60 {
                again.extend(texts(&take(&consumer, 1).await?));
            }
            let expected = numbered(40..100).into_iter().collect();
            ensure!(again == expected, "{kind:?}: {again:?}");
        } else {
            let again = texts(&take(&consumer, 60).await?);
            ensure!(again == numbered(40..100), "{kind:?}: {again:?}");
            let silence = nothing(&consumer, Duration::from_millis(300)).await;
            silence.with_context(|| format!("{kind:?}"))?;
        }
        consumer.close().await;
    }
    Ok(())
}

async fn receive(consumer: &Consumer, count: usize) -> Result<Vec<ReceivedMessage>> {
    let mut messages = Vec::new();
    for _ in 0..count {
        messages.push(next(consumer).await?);
    }
    Ok(messages)
}

async fn cumulative_in_a_batch(context: Context) -> Result<()> {
    let topic = context.topic("t");
    context.produce(&topic, 40, &["--batch", "10"]).await?;
    let client = &context.client;
    let consumer = client.consumer(topic.clone(), earliest("s")).await?;
    let messages = receive(&consumer, 40).await?;
    consumer.ack_cumulative(&messages[24]).await?;
    consumer.close().await;
    let consumer = client.consumer(topic.clone(), earliest("s")).await?;
    let again = next(&consumer).await?;
    ensure!(text(&again) == "message-20", "{again:?}");
    consumer.ack_cumulative(&messages[39]).await?;
    consumer.close().await;
    let consumer = client.consumer(topic, earliest("s")).await?;
    nothing(&consumer, Duration::from_millis(500)).await?;
    consumer.close().await;
    Ok(())
}

/// Needs `acknowledgmentAtBatchIndexLevelEnabled` at the broker.
async fn batch_index_acks(context: Context) -> Result<()> {
    let client = &context.client;
    let options = |kind| ConsumerOptions {
        batch_index_ack: true,
        receiver_queue_size: 200,
        ..of_type(kind, "s")
    };
    for kind in [SubscriptionType::Shared, SubscriptionType::Exclusive] {
        let topic = context.topic(&format!("{kind:?}"));
        context.produce(&topic, 100, &["--batch", "100"]).await?;
        let consumer = client.consumer(topic.clone(), options(kind)).await?;
        for message in receive(&consumer, 100).await?.iter().step_by(3) {
            consumer.ack(message).await?;
        }
        consumer.close().await;
        let consumer = client.consumer(topic.clone(), options(kind)).await?;
        let left: Vec<usize> = (0..100).filter(|number| number % 3 != 0).collect();
        let again = texts(&take(&consumer, left.len()).await?);
        ensure!(again == numbered(left), "{kind:?}: {again:?}");
        consumer.close().await;
        let consumer = client.consumer(topic.clone(), options(kind)).await?;
        nothing(&consumer, Duration::from_millis(500)).await?;
        consumer.close().await;
    }
    let topic = context.topic("cumulative");
    context.produce(&topic, 20, &["--batch", "10"]).await?;
    let exclusive = SubscriptionType::Exclusive;
    let consumer = client.consumer(topic.clone(), options(exclusive)).await?;
    let messages = receive(&consumer, 20).await?;
    consumer.ack_cumulative(&messages[13]).await?;
    consumer.close().await;
    let consumer = client.consumer(topic, options(exclusive)).await?;
    let again = texts(&take(&consumer, 6).await?);
    ensure!(again == numbered(14..20), "{again:?}");
    consumer.close().await;
    Ok(())
}

async fn ack_receipts(context: Context) -> Result<()> {
    let topic = context.topic("t");
    context.produce(&topic, 20, &["--batch", "2"]).await?;
    let options = ConsumerOptions {
        ack_receipt: true,
        ..shared("s")
    };
    let client = &context.client;
    let consumer = client.consumer(topic.clone(), options.clone()).await?;
    for message in &receive(&consumer, 20).await? {
        tokio::time::timeout(Duration::from_secs(10), consumer.ack(message)).await??;
    }
    consumer.close().await;
    let consumer = client.consumer(topic, options).await?;
    nothing(&consumer, Duration::from_millis(300)).await?;
    consumer.close().await;
    Ok(())
}

async fn queue_of_size_zero(context: Context) -> Result<()> {
    for batch in ["1", "7"] {
        let topic = context.topic(batch);
        context.produce(&topic, 70, &["--batch", batch]).await?;
        let options = ConsumerOptions {
            receiver_queue_size: 0,
            ..shared("s")
        };
        let client = &context.client;
        let first = client.consumer(topic.clone(), options.clone()).await?;
        let second = client.consumer(topic, options).await?;
        let mut got = BTreeSet::new();
        for _ in 0..35 {
            for consumer in [&first, &second] {
                let message = next(consumer).await?;
                let ahead = consumer.topics()[0].queued_entries;
                ensure!(ahead == 0, "{ahead} were sent ahead");
                consumer.ack(&message).await?;
                got.insert(text(&message));
            }
        }
        ensure!(got.len() == 70, "{} different ones", got.len());
        first.close().await;
        second.close().await;
    }
    Ok(())
}

/// Brokers send as many entries as there are permits, whatever is in them.
async fn small_queue_and_large_batches(context: Context) -> Result<()> {
    for kind in [
        SubscriptionType::Exclusive,
        SubscriptionType::Shared,
        SubscriptionType::KeyShared,
    ] {
        let topic = context.topic(&format!("{kind:?}"));
        context.produce(&topic, 5000, &["--batch", "100"]).await?;
        let options = ConsumerOptions {
            receiver_queue_size: 3,
            ..of_type(kind, "s")
        };
        let consumer = context.client.consumer(topic, options).await?;
        let messages = take(&consumer, 5000).await?;
        ensure!(texts(&messages) == numbered(0..5000), "order");
        consumer.close().await;
    }
    Ok(())
}

async fn unsubscribes(context: Context) -> Result<()> {
    let topic = context.topic("t");
    context.produce(&topic, 10, &[]).await?;
    let client = &context.client;
    let consumer = client.consumer(topic.clone(), earliest("s")).await?;
    take(&consumer, 10).await?;
    consumer.unsubscribe(false).await?;
    ensure!(consumer.recv().await.is_err(), "not closed");
    let consumer = client.consumer(topic, earliest("s")).await?;
    take(&consumer, 10).await?;
    consumer.close().await;
    Ok(())
}

async fn ends_with_a_terminated_topic(context: Context) -> Result<()> {
    let topic = context.topic("t");
    context.produce(&topic, 10, &[]).await?;
    let client = &context.client;
    let consumer = client.consumer(topic.clone(), earliest("s")).await?;
    context
        .helper(&["admin", "POST", &path(&topic, "terminate")])
        .await?;
    take(&consumer, 10).await?;
    let mut changes = consumer.changes();
    while !consumer.topics()[0].has_reached_end {
        changes.changed().await?;
    }
    consumer.close().await;
    Ok(())
}

async fn pauses(context: Context) -> Result<()> {
    let topic = context.topic("t");
    let options = ConsumerOptions {
        receiver_queue_size: 10,
        ..earliest("s")
    };
    let consumer = context.client.consumer(topic.clone(), options).await?;
    consumer.pause();
    context.produce(&topic, 100, &[]).await?;
    let messages = take(&consumer, 10).await?;
    nothing(&consumer, Duration::from_millis(300)).await?;
    consumer.resume();
    let more = take(&consumer, 90).await?;
    let all = texts(messages.iter().chain(&more));
    ensure!(all == numbered(0..100), "order");
    consumer.close().await;
    Ok(())
}

async fn patterns(context: Context) -> Result<()> {
    let one = context.topic("orders-1");
    let other = context.topic("other");
    let parts = partitioned(&context, "orders-parts", 2).await?;
    for topic in [&one, &other, &parts] {
        context.produce(topic, 10, &[]).await?;
    }
    let options = ConsumerOptions {
        pattern_discovery: Duration::from_millis(500),
        ..earliest("s")
    };
    let topics = Topics::Pattern {
        namespace: NamespaceName::parse("public/default")?,
        pattern: format!("persistent://public/default/{}-orders-.*", context.name()),
        mode: TopicMode::Persistent,
    };
    let consumer = context.client.consumer(topics, options).await?;
    ensure!(consumer.topics().len() == 3, "{:?}", consumer.topics());
    take(&consumer, 20).await?;
    let new = context.topic("orders-new");
    context.produce(&new, 10, &[]).await?;
    let messages = take(&consumer, 10).await?;
    let name = new.to_string();
    let are_new = messages.iter().all(|message| *message.topic == *name);
    ensure!(are_new, "{messages:?}");
    nothing(&consumer, Duration::from_millis(300)).await?;
    consumer.close().await;
    Ok(())
}

/// Receives until all messages were there. First arrivals have to come in the order in which they lie in the topic, however
/// often some come again; says how often that was, and how often a message lies behind one that was published later.
async fn all_in_order(consumer: &Consumer, count: usize) -> Result<String> {
    let mut numbers = BTreeSet::new();
    let mut ids = BTreeSet::new();
    let (mut repeated, mut misplaced) = (0, 0);
    while numbers.len() < count {
        // A broker takes its time to come back, and a client to notice.
        let message = tokio::time::timeout(Duration::from_secs(120), consumer.recv())
            .await
            .with_context(|| format!("{} of {count}", numbers.len()))??;
        let content = text(&message);
        let number = content.split('-').nth(1).context("no number")?;
        let number: usize = number.parse()?;
        let id = message.id.clone();
        if ids.contains(&id) {
            repeated += 1;
        } else if let Some(last) = ids.last()
            && *last > id
        {
            bail!("message {number} at {id} came only after {last}");
        }
        if numbers.last().is_some_and(|last| *last > number) && !numbers.contains(&number) {
            misplaced += 1;
        }
        ids.insert(id);
        numbers.insert(number);
        consumer.ack(&message).await?;
    }
    Ok(format!(
        "{repeated} repeated, {misplaced} misplaced in the topic"
    ))
}

async fn unloaded_topics_come_back(context: Context) -> Result<()> {
    let topic = context.topic("t");
    let client = &context.client;
    let consumer = client.consumer(topic.clone(), earliest("s")).await?;
    let unload = path(&topic, "unload");
    let disturb = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            context.helper(&["admin", "PUT", &unload]).await?;
        }
        anyhow::Ok(())
    };
    let load = ["--size", "300", "--pause", "0.0001"];
    let (produced, disturbed, repeated) = tokio::join!(
        context.produce(&topic, 20_000, &load),
        disturb,
        all_in_order(&consumer, 20_000)
    );
    produced?;
    disturbed?;
    println!("     {}", repeated?);
    consumer.close().await;
    Ok(())
}

/// Needs `CLIENT_LIVE_PEER`: `FOLDER:NAME` of the broker to be killed.
async fn killed_broker(context: Context) -> Result<()> {
    let Ok(peer) = std::env::var("CLIENT_LIVE_PEER") else {
        println!("     skipped: no CLIENT_LIVE_PEER");
        return Ok(());
    };
    let topic = context.topic("t");
    let client = &context.client;
    let options = ReaderOptions::new(MessageId::earliest());
    let reader = client.reader(&topic, options).await?;
    let consumer = client.consumer(topic.clone(), earliest("s")).await?;
    // A reader holds nothing back: what the consumer has acknowledged may be deleted before the reader comes back.
    let keeper = client.consumer(topic.clone(), earliest("keeper")).await?;
    keeper.pause();
    let disturb = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        context.peer(&["kill", &peer]).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        context.peer(&["start", &peer]).await
    };
    let load = ["--size", "300", "--pause", "0.0001"];
    let (produced, disturbed, repeated, read) = tokio::join!(
        context.produce(&topic, 30_000, &load),
        disturb,
        all_in_order(&consumer, 30_000),
        all_in_order(reader.consumer(), 30_000)
    );
    produced?;
    disturbed?;
    println!("     consumer: {}; reader: {}", repeated?, read?);
    consumer.close().await;
    reader.close().await;
    keeper.close().await;
    Ok(())
}
