//! Cases of roles that may not do everything. Each returns the words of the refusal: they are the broker's own.
//!
//! They have a topic in common: the first one fills it, the second one takes from it.

use std::fmt::Display;

use anyhow::{bail, ensure};
use pulsegate::{
    client::{ClientError, ProducerOptions, consumer::SubscriptionType},
    naming::TopicName,
    protocol::proto::pulsar::ServerError,
};

use crate::service::{Service, consumer_options, payloads, receive_exactly, send_all};

pub(crate) async fn produce_only(service: &Service) -> anyhow::Result<String> {
    let topic = service.topic("roles");
    let producer = service.producer(&topic, ProducerOptions::default()).await?;
    send_all(&producer, &payloads(0, 10)).await?;
    producer.close().await?;
    subscribing_is_refused(service, &topic).await
}

pub(crate) async fn consume_only(service: &Service) -> anyhow::Result<String> {
    let topic = service.topic("roles");
    let consumer = service
        .subscribe(&topic, SubscriptionType::Exclusive)
        .await?;
    receive_exactly(&consumer, &payloads(0, 10), "messages").await?;
    consumer.close().await;
    producing_is_refused(service, &topic).await
}

pub(crate) async fn stranger(service: &Service) -> anyhow::Result<String> {
    let topic = service.topic("roles");
    producing_is_refused(service, &topic).await?;
    subscribing_is_refused(service, &topic).await
}

async fn producing_is_refused(service: &Service, topic: &TopicName) -> anyhow::Result<String> {
    let producer = service.client.producer(topic, ProducerOptions::default());
    refusal("a producer", producer.await)
}

async fn subscribing_is_refused(service: &Service, topic: &TopicName) -> anyhow::Result<String> {
    let options = consumer_options(SubscriptionType::Exclusive);
    let consumer = service.client.consumer(topic.clone(), options);
    refusal("a consumer", consumer.await)
}

/// The words of an error that has to be one of authorization.
fn refusal<T>(what: impl Display, opened: Result<T, ClientError>) -> anyhow::Result<String> {
    let Err(error) = opened else {
        bail!("{what} was opened without the right to it");
    };
    ensure!(
        error.server_error() == Some(ServerError::AuthorizationError),
        "{what} was refused for another reason: {error}"
    );
    Ok(error.to_string())
}
