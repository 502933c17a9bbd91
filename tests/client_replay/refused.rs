//! What brokers refuse, and the codes that the application gets.

use bytes::Bytes;
use pulsegate::{
    client::{
        Authentication, ClientError, ClientOptions, ConnectionOptions, ConsumerOptions,
        LookupError, ProducerOptions, PulsarClient, RequestError, SendError,
        producer::{ProducerAccessMode, Schema},
    },
    config::{CredentialSource, Secret},
    naming::TopicName,
    protocol::proto::pulsar::{ServerError, schema},
};

use crate::support::{Recorded, consumer_options, message, producer_options, receive, text, topic};

/// The code with which the topic's broker refused.
fn refusal<T>(result: Result<T, ClientError>) -> ServerError {
    match result {
        Err(ClientError::Request(RequestError::Refused { code, .. })) => code,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// The code with which a lookup, or what is asked before it, was refused.
fn lookup_refusal<T>(result: Result<T, ClientError>) -> ServerError {
    match result.map_err(|error| (error.is_retryable(), error)) {
        Err((false, ClientError::Lookup(error))) => match &*error {
            LookupError::Refused { code, .. } => *code,
            error => panic!("{error:?}"),
        },
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was not refused"),
    }
}

async fn produce(
    client: &PulsarClient,
    topic: &TopicName,
    options: ProducerOptions,
) -> Result<(), ClientError> {
    client.producer(topic, options).await.map(drop)
}

async fn consume(
    client: &PulsarClient,
    topic: &TopicName,
    options: ConsumerOptions,
) -> Result<(), ClientError> {
    client.consumer(topic.clone(), options).await.map(drop)
}

#[tokio::test]
async fn producers_and_consumers_are_told_that_another_one_is_there() {
    Recorded::run("refused", &[], |broker| async move {
        let topic = topic("refused");
        let taken = ProducerOptions {
            name: Some("other-~".to_owned()),
            ..producer_options()
        };
        let taken = produce(&broker.client, &topic, taken).await;
        assert_eq!(refusal(taken), ServerError::ProducerBusy);
        let exclusive = ProducerOptions {
            access_mode: ProducerAccessMode::Exclusive,
            ..producer_options()
        };
        let exclusive = produce(&broker.client, &topic, exclusive).await;
        assert_eq!(refusal(exclusive), ServerError::ProducerFenced);
        let busy = consume(&broker.client, &topic, consumer_options("s")).await;
        assert_eq!(refusal(busy), ServerError::ConsumerBusy);
        // The other one has left.
        let consumer = broker.consumer(&topic, consumer_options("s")).await;
        consumer.close().await;
    })
    .await;
}

#[tokio::test]
async fn what_does_not_exist_is_told_before_anything_is_opened() {
    Recorded::run("missing", &[], |broker| async move {
        let elsewhere = TopicName::parse("persistent://public/none-here/t-~").unwrap();
        let client = &broker.client;
        let no_namespace = produce(client, &elsewhere, producer_options()).await;
        assert_eq!(lookup_refusal(no_namespace), ServerError::TopicNotFound);
        let absent = topic("absent");
        let options = ConsumerOptions {
            force_topic_creation: false,
            ..consumer_options("s")
        };
        let no_topic = consume(client, &absent, options).await;
        assert_eq!(lookup_refusal(no_topic), ServerError::TopicNotFound);
        let no_broker = client.lookups().lookup(&elsewhere).await;
        let no_broker = no_broker.map_err(ClientError::from);
        assert_eq!(lookup_refusal(no_broker), ServerError::TopicNotFound);
        assert!(matches!(
            client.lookups().schema(&absent, None).await,
            Ok(None)
        ));
    })
    .await;
}

#[tokio::test]
async fn rights_are_asked_for_by_the_lookup_and_by_the_broker() {
    let options = ClientOptions {
        connection: ConnectionOptions {
            authentication: Authentication::token(CredentialSource::Text(Secret::new(TOKEN))),
            ..ConnectionOptions::default()
        },
        ..ClientOptions::default()
    };
    Recorded::run_with("unauthorized", &[], options, |broker| async move {
        let topic = topic("rights");
        let nothing = consume(&broker.client, &topic, consumer_options("s")).await;
        assert_eq!(lookup_refusal(nothing), ServerError::AuthorizationError);
        let nowhere = broker.client.lookups().lookup(&topic).await;
        let nowhere = nowhere.map_err(ClientError::from);
        assert_eq!(lookup_refusal(nowhere), ServerError::AuthorizationError);
        // To consume is allowed since.
        let consumer = broker.consumer(&topic, consumer_options("s")).await;
        let produced = produce(&broker.client, &topic, producer_options()).await;
        assert_eq!(refusal(produced), ServerError::AuthorizationError);
        consumer.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_does_not_go_with_the_topic_is_refused() {
    Recorded::run("schema", &[], |broker| async move {
        let topic = topic("schema");
        let schema = |kind: schema::Type, data: &'static str| {
            Some(Schema {
                name: "t".to_owned(),
                schema_data: data.into(),
                r#type: kind.into(),
                properties: Vec::new(),
            })
        };
        let record = schema(schema::Type::Json, RECORD);
        let text_schema = schema(schema::Type::String, "");
        let options = ProducerOptions {
            schema: record.clone(),
            ..producer_options()
        };
        let producer = broker.client.producer(&topic, options).await.unwrap();
        let version = Bytes::from_static(&[0; 8]);
        assert_eq!(producer.schema_version(), Some(version.clone()));
        let stored = producer.send(message(r#"{"a":"x"}"#)).await.unwrap();

        let options = ProducerOptions {
            name: Some("q-~".to_owned()),
            schema: text_schema.clone(),
            ..producer_options()
        };
        let refused = produce(&broker.client, &topic, options).await;
        assert_eq!(refusal(refused), ServerError::IncompatibleSchema);
        let with = |schema| ConsumerOptions {
            schema,
            ..consumer_options("s")
        };
        let refused = consume(&broker.client, &topic, with(text_schema)).await;
        assert_eq!(refusal(refused), ServerError::IncompatibleSchema);

        let consumer = broker.consumer(&topic, with(record)).await;
        let received = consumer.recv().await.unwrap();
        assert_eq!(text(&received), r#"{"a":"x"}"#);
        assert_eq!(received.id, stored);
        assert_eq!(received.schema_version, Some(version));
        consumer.close().await;
        producer.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_topic_is_told_to_all() {
    Recorded::run("terminated", &[], |broker| async move {
        let topic = topic("ended");
        let producer = broker.producer(&topic).await;
        let stored = producer.send(message("m0")).await.unwrap();
        let late = producer.send(message("m1")).await;
        assert!(matches!(late, Err(SendError::Terminated)), "{late:?}");
        let options = ProducerOptions {
            name: Some("q-~".to_owned()),
            ..producer_options()
        };
        let refused = produce(&broker.client, &topic, options).await;
        assert_eq!(refusal(refused), ServerError::TopicTerminatedError);

        let consumer = broker.consumer(&topic, consumer_options("s")).await;
        let mut changes = consumer.changes();
        let messages = receive(&consumer, 1).await;
        assert_eq!((text(&messages[0]), &messages[0].id), ("m0", &stored));
        consumer.ack(&messages[0]).await.unwrap();
        while !consumer.topics()[0].has_reached_end {
            changes.changed().await.unwrap();
        }
        consumer.close().await;
    })
    .await;
}

const RECORD: &str = r#"{"type":"record","name":"T","fields":[{"name":"a","type":"string"}]}"#;
/// That of the scenario.
const TOKEN: &str =
    "eyJhbGciOiAiSFMyNTYifQ.eyJzdWIiOiAiY2xpZW50In0.Pimt43ttnfS9feso8ZOQCawBJlvuzsZ4f6rnILA3YTI";
