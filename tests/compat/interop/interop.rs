//! Writes or reads the messages of a specification with the project's own client. See ../README.md.
#![allow(clippy::print_stdout, clippy::indexing_slicing)]

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, bail};
use bytes::Bytes;
use pulsegate::{
    client::{
        ClientOptions, ConsumerOptions, OutgoingMessage, ProducerOptions, PulsarClient,
        consumer::{InitialPosition, ReceivedMessage},
        producer::BatchingOptions,
    },
    naming::TopicName,
    protocol::proto::pulsar::{CompressionType, Schema, schema},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name);
        let value = at.and_then(|at| arguments.get(at + 1));
        value.with_context(|| format!("{name} is missing"))
    };
    let spec: Value = serde_json::from_slice(&std::fs::read(option("--spec")?)?)?;
    let topic = TopicName::parse(option("--topic")?)?;
    let client = PulsarClient::new(option("--service-url")?.parse()?, ClientOptions::default());
    match arguments.first().map(String::as_str) {
        Some("produce") => produce(&client, &topic, &spec).await?,
        Some("consume") => consume(&client, &topic, &spec).await?,
        _ => bail!("produce or consume?"),
    }
    client.close();
    Ok(())
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name)?.as_str()
}

fn messages(spec: &Value) -> anyhow::Result<&Vec<Value>> {
    spec.get("messages")
        .and_then(Value::as_array)
        .context("messages")
}

async fn produce(client: &PulsarClient, topic: &TopicName, spec: &Value) -> anyhow::Result<()> {
    let mode = text(spec, "mode").context("mode")?;
    let options = ProducerOptions {
        compression: CompressionType::from_str_name(text(spec, "codec").context("codec")?)
            .context("codec")?,
        compression_min_size: 0,
        batching: (mode == "batched").then(|| BatchingOptions {
            max_delay: Duration::from_millis(50),
            ..BatchingOptions::default()
        }),
        chunking: mode == "chunked",
        schema: spec.get("schema").map(schema_of).transpose()?,
        ..ProducerOptions::default()
    };
    let producer = client.producer(topic, options).await?;
    let mut receipts = Vec::new();
    for message in messages(spec)? {
        receipts.push(producer.enqueue(outgoing(message)?).await?);
    }
    producer.flush().await?;
    for receipt in receipts {
        receipt.await?;
    }
    producer.close().await?;
    Ok(())
}

fn schema_of(given: &Value) -> anyhow::Result<Schema> {
    let kind = match text(given, "type") {
        Some("STRING") => schema::Type::String,
        Some("JSON") => schema::Type::Json,
        Some("AVRO") => schema::Type::Avro,
        other => bail!("schema of type {other:?}"),
    };
    Ok(Schema {
        name: "given".to_owned(),
        schema_data: text(given, "definition")
            .unwrap_or_default()
            .to_owned()
            .into(),
        r#type: kind.into(),
        properties: Vec::new(),
    })
}

fn outgoing(message: &Value) -> anyhow::Result<OutgoingMessage> {
    let pattern = text(message, "payload").context("payload")?;
    let pattern: Result<Vec<u8>, _> = (0..pattern.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&pattern[at..at + 2], 16))
        .collect();
    let repeat = message
        .get("repeat")
        .and_then(Value::as_u64)
        .context("repeat")?;
    let properties = message
        .get("properties")
        .and_then(Value::as_object)
        .context("properties")?;
    Ok(OutgoingMessage {
        key: text(message, "key").map(Into::into),
        ordering_key: text(message, "ordering_key")
            .map(|key| Bytes::copy_from_slice(key.as_bytes())),
        properties: properties
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect(),
        event_time: message.get("event_time").and_then(Value::as_u64),
        ..OutgoingMessage::new(pattern?.repeat(usize::try_from(repeat)?))
    })
}

async fn consume(client: &PulsarClient, topic: &TopicName, spec: &Value) -> anyhow::Result<()> {
    let options = ConsumerOptions {
        initial_position: InitialPosition::Earliest,
        ..ConsumerOptions::new("own")
    };
    let consumer = client.consumer(topic.clone(), options).await?;
    for _ in messages(spec)? {
        let message = timeout(Duration::from_secs(60), consumer.recv())
            .await
            .context("no message in time")??;
        consumer.ack(&message).await?;
        println!("{}", line(&message));
    }
    consumer.close().await;
    Ok(())
}

fn line(message: &ReceivedMessage) -> Value {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let properties: BTreeMap<_, _> = message.properties.iter().cloned().collect();
    json!({
        "batched": message.id.batch_index.is_some(),
        "event_time": message.event_time,
        "key": message.key,
        "length": message.payload.len(),
        "ordering_key": message.ordering_key.as_ref().map(|key| String::from_utf8_lossy(key)),
        "properties": properties,
        "schema_version": message.schema_version.as_deref().map(hex).unwrap_or_default(),
        "sha256": hex(&Sha256::digest(&message.payload)),
    })
}
