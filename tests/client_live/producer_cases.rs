//! What producers have to do at a real cluster. Payloads are `index` or `key:index`, padded with dots.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use pulsegate::client::{
    ClientError, MessageId, OutgoingMessage, Producer, ProducerOptions, SendError,
    producer::{
        BatchingOptions, CompressionType, HashingScheme, ProducerAccessMode, Routing, Schema,
    },
};
use pulsegate::naming::TopicName;
use serde_json::json;
use tokio::task::JoinSet;

use crate::context::{Case, Context};

/// The table that `main.rs` runs.
pub(crate) const CASES: &[(&str, Case)] = &[
    ("unbatched", |context| Box::pin(unbatched(context))),
    ("batched", |context| Box::pin(batched(context))),
    ("key_based", |context| Box::pin(key_based(context))),
    ("compression", |context| Box::pin(compression(context))),
    ("chunked_20mb", |context| Box::pin(chunked(context))),
    ("partitioned", |context| Box::pin(partitioned(context))),
    ("metadata", |context| Box::pin(metadata(context))),
    ("exclusive", |context| Box::pin(exclusive(context))),
    ("wait_for_exclusive", |context| {
        Box::pin(wait_for_exclusive(context))
    }),
    ("fencing", |context| Box::pin(fencing(context))),
    ("deduplication", |context| Box::pin(deduplication(context))),
    ("schema", |context| Box::pin(schema(context))),
    ("too_large", |context| Box::pin(too_large(context))),
    ("disturbed", |context| Box::pin(disturbed(context))),
];

fn unbatched_options() -> ProducerOptions {
    ProducerOptions {
        batching: None,
        ..ProducerOptions::default()
    }
}

fn text(index: usize, len: usize) -> OutgoingMessage {
    OutgoingMessage::new(format!("{index}{}", ".".repeat(len)))
}

/// Tells `read_back.py` what has to be there: all of `indices` at least once, first arrivals in order.
fn wrote(topic: &TopicName, indices: &[usize], more: serde_json::Value) {
    println!(
        "WROTE {}",
        json!({"topic": topic.to_string(), "indices": indices, "expect": more})
    );
}

async fn send_all(
    producer: &Producer,
    messages: impl IntoIterator<Item = OutgoingMessage>,
) -> anyhow::Result<Vec<MessageId>> {
    let mut receipts = Vec::new();
    for message in messages {
        receipts.push(producer.enqueue(message).await?);
    }
    producer.flush().await?;
    let mut ids = Vec::new();
    for receipt in receipts {
        ids.push(receipt.await?);
    }
    Ok(ids)
}

async fn unbatched(context: Context) -> anyhow::Result<()> {
    let topic = context.topic("unbatched");
    let producer = context.client.producer(&topic, unbatched_options()).await?;
    let ids = send_all(&producer, (0..2000).map(|index| text(index, index))).await?;
    ensure!(ids.iter().is_sorted(), "ids go up");
    ensure!(ids.iter().all(|id| id.batch_index.is_none()));
    ensure!(producer.last_sequence_id() == Some(1999));
    producer.close().await?;
    wrote(
        &topic,
        &(0..2000).collect::<Vec<_>>(),
        json!({"once": true, "batched": false}),
    );
    Ok(())
}

async fn batched(context: Context) -> anyhow::Result<()> {
    let topic = context.topic("batched");
    let options = ProducerOptions {
        batching: Some(BatchingOptions {
            max_messages: 100,
            max_delay: Duration::from_millis(50),
            ..BatchingOptions::default()
        }),
        ..ProducerOptions::default()
    };
    let producer = context.client.producer(&topic, options).await?;
    let ids = send_all(&producer, (0..5000).map(|index| text(index, index % 300))).await?;
    ensure!(ids.iter().is_sorted(), "ids go up");
    ensure!(ids.iter().filter(|id| id.batch_size == Some(100)).count() > 4000);
    // By the delay alone, and one alone is no batch.
    let id = producer.send(text(5000, 0)).await?;
    ensure!(id.batch_index.is_none(), "{id:?}");
    producer.close().await?;
    wrote(
        &topic,
        &(0..=5000).collect::<Vec<_>>(),
        json!({"once": true, "batched": true}),
    );
    Ok(())
}

async fn key_based(context: Context) -> anyhow::Result<()> {
    let topic = context.topic("key-based");
    let options = ProducerOptions {
        batching: Some(BatchingOptions {
            max_delay: Duration::from_millis(50),
            key_based: true,
            ..BatchingOptions::default()
        }),
        ..ProducerOptions::default()
    };
    let producer = context.client.producer(&topic, options).await?;
    let messages = (0..1000).map(|index| OutgoingMessage {
        key: Some(format!("k{}", index % 5).into()),
        ..OutgoingMessage::new(format!("k{}:{index}", index % 5))
    });
    let ids = send_all(&producer, messages).await?;
    ensure!(
        ids.iter()
            .all(|id| id.batch_size.is_some_and(|size| size > 1))
    );
    producer.close().await?;
    let more = json!({"once": true, "batched": true, "by_key": true, "one_key_per_batch": true});
    wrote(&topic, &(0..1000).collect::<Vec<_>>(), more);
    Ok(())
}

async fn compression(context: Context) -> anyhow::Result<()> {
    let codecs = [
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ];
    for codec in codecs {
        for batching in [None, Some(BatchingOptions::default())] {
            let kind = if batching.is_some() {
                "batched"
            } else {
                "unbatched"
            };
            let topic = context.topic(&format!("{}-{kind}", codec.as_str_name()));
            let options = ProducerOptions {
                compression: codec,
                compression_min_size: 100,
                batching,
                ..ProducerOptions::default()
            };
            let producer = context.client.producer(&topic, options).await?;
            send_all(&producer, (0..500).map(|index| text(index, index * 10))).await?;
            producer.close().await?;
            wrote(&topic, &(0..500).collect::<Vec<_>>(), json!({"once": true}));
        }
    }
    Ok(())
}

async fn chunked(context: Context) -> anyhow::Result<()> {
    let topic = context.topic("chunked");
    let options = ProducerOptions {
        chunking: true,
        ..unbatched_options()
    };
    let producer = context.client.producer(&topic, options).await?;
    let ids = send_all(&producer, (0..3).map(|index| text(index, 20 * 1024 * 1024))).await?;
    for id in &ids {
        let first = id.first_chunk.as_deref().context("a first chunk")?;
        ensure!(
            first.0 == id.ledger_id && first.1 + 4 == id.entry_id,
            "{id:?}"
        );
    }
    producer.close().await?;
    wrote(
        &topic,
        &[0, 1, 2],
        json!({"once": true, "length": 20 * 1024 * 1024 + 1}),
    );
    Ok(())
}

async fn partitioned(context: Context) -> anyhow::Result<()> {
    let topic = context.topic("partitioned");
    let partitions = crate::consumer_cases::path(&topic, "partitions");
    context.helper(&["admin", "PUT", &partitions, "4"]).await?;
    for hashing in [HashingScheme::JavaStringHash, HashingScheme::Murmur3_32Hash] {
        let options = ProducerOptions {
            hashing,
            ..ProducerOptions::default()
        };
        let producer = context.client.producer(&topic, options).await?;
        ensure!(
            producer.partition_count() == 4,
            "{}",
            producer.partition_count()
        );
        let messages = (0..400).map(|index| OutgoingMessage {
            key: Some(format!("k{}", index % 20).into()),
            ..OutgoingMessage::new(format!("k{}:{index}", index % 20))
        });
        let ids = send_all(&producer, messages).await?;
        for (index, id) in ids.iter().enumerate() {
            let expected = hashing.hash(&format!("k{}", index % 20)) % 4;
            ensure!(id.partition == Some(expected), "{id:?}");
        }
        producer.close().await?;
    }
    let options = ProducerOptions {
        routing: Routing::SinglePartition,
        ..unbatched_options()
    };
    let producer = context.client.producer(&topic, options).await?;
    let ids = send_all(&producer, (400..450).map(|index| text(index, 0))).await?;
    ensure!(
        ids.iter()
            .all(|id| Some(id.partition) == ids.first().map(|first| first.partition))
    );
    producer.close().await?;
    let producer = context.client.producer(&topic, unbatched_options()).await?;
    let ids = send_all(&producer, (450..500).map(|index| text(index, 0))).await?;
    let mut counts = BTreeMap::new();
    for id in ids {
        *counts.entry(id.partition).or_insert(0) += 1;
    }
    ensure!(
        counts.len() == 4 && counts.values().all(|count| *count >= 12),
        "{counts:?}"
    );
    producer.close().await?;
    let more = json!({"by_key": true});
    wrote(&topic, &(0..500).collect::<Vec<_>>(), more);
    Ok(())
}

async fn metadata(context: Context) -> anyhow::Result<()> {
    for batching in [None, Some(BatchingOptions::default())] {
        let kind = if batching.is_some() {
            "batched"
        } else {
            "unbatched"
        };
        let topic = context.topic(&format!("metadata-{kind}"));
        let options = ProducerOptions {
            name: Some("named".to_owned()),
            batching,
            ..ProducerOptions::default()
        };
        let producer = context.client.producer(&topic, options).await?;
        ensure!(producer.name() == "named");
        let messages = (0..10).map(|index| OutgoingMessage {
            key: Some(format!("key-{index}").into()),
            ordering_key: Some(Bytes::from(format!("order-{index}"))),
            properties: vec![("index".to_owned(), index.to_string())],
            event_time: Some(1_000_000 + index as u64),
            ..text(index, 0)
        });
        send_all(&producer, messages).await?;
        producer.close().await?;
        wrote(
            &topic,
            &(0..10).collect::<Vec<_>>(),
            json!({"once": true, "metadata": true}),
        );
    }
    Ok(())
}

fn with_mode(access_mode: ProducerAccessMode) -> ProducerOptions {
    ProducerOptions {
        access_mode,
        ..unbatched_options()
    }
}

async fn exclusive(context: Context) -> anyhow::Result<()> {
    let topic = context.topic("exclusive");
    let mode = with_mode(ProducerAccessMode::Exclusive);
    let first = context.client.producer(&topic, mode.clone()).await?;
    ensure!(first.topic_epoch() == Some(0), "{:?}", first.topic_epoch());
    let second = context.client.producer(&topic, mode).await;
    let error = second.err().context("the second must be refused")?;
    ensure!(format!("{error}").contains("Fenced"), "{error}");
    let shared = context.client.producer(&topic, unbatched_options()).await;
    let error = shared.err().context("a shared one must be refused")?;
    ensure!(format!("{error}").contains("Busy"), "{error}");
    first.send(text(0, 0)).await?;
    first.close().await?;
    wrote(&topic, &[0], json!({"once": true}));
    Ok(())
}

async fn wait_for_exclusive(context: Context) -> anyhow::Result<()> {
    let topic = context.topic("wait-for-exclusive");
    let mode = with_mode(ProducerAccessMode::WaitForExclusive);
    let first = context.client.producer(&topic, mode.clone()).await?;
    first.send(text(0, 0)).await?;
    let (client, other_topic) = (context.client.clone(), topic.clone());
    let mut second = JoinSet::new();
    second.spawn(async move { client.producer(&other_topic, mode).await });
    let early = tokio::time::timeout(Duration::from_secs(2), second.join_next()).await;
    ensure!(early.is_err(), "the second must wait");
    first.close().await?;
    let second = tokio::time::timeout(Duration::from_secs(10), second.join_next()).await?;
    let second = second.context("one task")???;
    ensure!(
        second.topic_epoch() == Some(1),
        "{:?}",
        second.topic_epoch()
    );
    second.send(text(1, 0)).await?;
    second.close().await?;
    wrote(&topic, &[0, 1], json!({"once": true}));
    Ok(())
}

async fn fencing(context: Context) -> anyhow::Result<()> {
    let topic = context.topic("fencing");
    let first = with_mode(ProducerAccessMode::Exclusive);
    let first = context.client.producer(&topic, first).await?;
    first.send(text(0, 0)).await?;
    let second = with_mode(ProducerAccessMode::ExclusiveWithFencing);
    let second = context.client.producer(&topic, second).await?;
    second.send(text(1, 0)).await?;
    let error = first.send(text(99, 0)).await.err();
    ensure!(matches!(error, Some(SendError::Fenced)), "{error:?}");
    let error = first.send(text(99, 0)).await.err();
    ensure!(matches!(error, Some(SendError::Fenced)), "{error:?}");
    second.send(text(2, 0)).await?;
    second.close().await?;
    wrote(&topic, &[0, 1, 2], json!({"once": true}));
    Ok(())
}

async fn deduplication(context: Context) -> anyhow::Result<()> {
    let namespace = format!("public/{}", context.name());
    let path = format!("/admin/v2/namespaces/{namespace}");
    context.helper(&["admin", "PUT", &path]).await?;
    let path = format!("{path}/deduplication");
    context.helper(&["admin", "POST", &path, "true"]).await?;
    let topic = TopicName::parse(&format!("persistent://{namespace}/deduplication"))?;
    let options = ProducerOptions {
        name: Some("dedup".to_owned()),
        ..unbatched_options()
    };
    let with_id = |index: usize| OutgoingMessage {
        sequence_id: Some(index as u64),
        ..text(index, 0)
    };
    let producer = context.client.producer(&topic, options.clone()).await?;
    ensure!(producer.last_sequence_id().is_none());
    send_all(&producer, (0..100).map(with_id)).await?;
    let again = send_all(&producer, (50..100).map(with_id)).await?;
    ensure!(
        again.iter().all(MessageId::is_earliest),
        "duplicates have no place"
    );
    producer.close().await?;
    let producer = context.client.producer(&topic, options).await?;
    ensure!(
        producer.last_sequence_id() == Some(99),
        "{:?}",
        producer.last_sequence_id()
    );
    send_all(&producer, (90..150).map(with_id)).await?;
    send_all(&producer, (150..200).map(|index| text(index, 0))).await?;
    producer.close().await?;
    wrote(
        &topic,
        &(0..150).collect::<Vec<_>>(),
        json!({"deduplicated": true, "at_most": 200}),
    );
    Ok(())
}

async fn schema(context: Context) -> anyhow::Result<()> {
    use pulsegate::client::producer::Schema as S;
    let topic = context.topic("schema");
    let of_type = |kind: pulsegate::protocol::proto::pulsar::schema::Type| Schema {
        name: "s".to_owned(),
        r#type: kind.into(),
        ..S::default()
    };
    let string = of_type(pulsegate::protocol::proto::pulsar::schema::Type::String);
    let options = ProducerOptions {
        schema: Some(string.clone()),
        ..ProducerOptions::default()
    };
    let producer = context.client.producer(&topic, options).await?;
    let version = producer.schema_version().context("a version")?;
    ensure!(version.as_ref() == [0; 8], "{version:?}");
    ensure!(producer.register_schema(string).await? == version);
    producer.send(text(0, 0)).await?;
    let long = of_type(pulsegate::protocol::proto::pulsar::schema::Type::Int64);
    let refused = producer.register_schema(long.clone()).await.err();
    ensure!(
        format!("{refused:?}").contains("IncompatibleSchema"),
        "{refused:?}"
    );
    let options = ProducerOptions {
        schema: Some(long),
        ..ProducerOptions::default()
    };
    let refused = context.client.producer(&topic, options).await.err();
    ensure!(
        format!("{refused:?}").contains("IncompatibleSchema"),
        "{refused:?}"
    );
    producer.close().await?;
    wrote(&topic, &[0], json!({"once": true}));
    Ok(())
}

async fn too_large(context: Context) -> anyhow::Result<()> {
    let topic = context.topic("too-large");
    let producer = context
        .client
        .producer(&topic, ProducerOptions::default())
        .await?;
    producer.send(text(0, 5 * 1024 * 1024 - 200)).await?;
    let error = producer.send(text(1, 5 * 1024 * 1024)).await.err();
    ensure!(
        matches!(error, Some(SendError::TooLarge { .. })),
        "{error:?}"
    );
    producer.send(text(2, 0)).await?;
    producer.close().await?;
    let error = producer.send(text(3, 0)).await.err();
    ensure!(matches!(error, Some(SendError::Closed)), "{error:?}");
    let bad = TopicName::parse("persistent://no-tenant/none/x")?;
    match context
        .client
        .producer(&bad, ProducerOptions::default())
        .await
    {
        Err(ClientError::Lookup(_) | ClientError::Request(_)) => {}
        other => bail!("a topic of no tenant: {other:?}"),
    }
    wrote(&topic, &[0, 2], json!({"once": true}));
    Ok(())
}

/// Sends until a line comes on standard input, while the driver kills brokers and unloads topics.
async fn disturbed(context: Context) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    for (name, batching) in [("u", None), ("b", Some(BatchingOptions::default()))] {
        let topic = context.topic(&format!("disturbed-{name}"));
        let options = ProducerOptions {
            batching,
            send_timeout: None,
            ..ProducerOptions::default()
        };
        let producer = context.client.producer(&topic, options).await?;
        streams.push((topic, producer));
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        let _ = stop.send(true);
    });
    println!("READY");
    let mut tasks = JoinSet::new();
    for (topic, producer) in streams {
        let stopped = stopped.clone();
        tasks.spawn(async move {
            let mut receipts = Vec::new();
            let mut index = 0;
            while !*stopped.borrow() {
                receipts.push(producer.enqueue(text(index, index % 200)).await?);
                index += 1;
                if index % 10 == 0 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
            println!(
                "STOPPED {topic}: {index} sent, {} without receipt",
                producer.pending()
            );
            producer.flush().await?;
            for receipt in receipts {
                receipt.await?;
            }
            producer.close().await?;
            wrote(&topic, &(0..index).collect::<Vec<_>>(), json!({}));
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
