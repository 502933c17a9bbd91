//! What a case needs: a client, topic names of its own, the few admin calls, and small checks.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use pulsegate::{
    client::{
        ClientOptions, Consumer, ConsumerOptions, MessageId, OutgoingMessage, Producer,
        ProducerOptions, PulsarClient,
        consumer::{InitialPosition, ReceivedMessage, SubscriptionType},
    },
    config::{Sources, load_client},
    naming::TopicName,
};
use tokio::time::{Instant, timeout};

/// For whatever has to come.
pub(crate) const RECEIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// After this time what has not come does not come.
pub(crate) const QUIET_TIME: Duration = Duration::from_millis(1500);

pub(crate) struct Service {
    pub(crate) client: PulsarClient,
    admin_url: String,
    admin_token: Option<String>,
    pub(crate) namespace: String,
    pub(crate) run: String,
}

impl Service {
    /// The options are those of the command line.
    pub(crate) fn new(options: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let option = |name: &str| options.get(name).cloned().unwrap_or_default();
        let sets = [
            ("brokerServiceUrl", "--service-url"),
            ("tlsTrustCertsFilePath", "--trust"),
            ("authPlugin", "--auth-plugin"),
            ("authParams", "--auth-params"),
        ];
        let settings = load_client(&Sources {
            sets: sets
                .map(|(setting, name)| format!("{setting}={}", option(name)))
                .to_vec(),
            ..Sources::default()
        })?
        .settings;
        let client = ClientOptions {
            operation_timeout: Duration::from_secs(60),
            ..ClientOptions::of_settings(&settings)?
        };
        Ok(Self {
            client: PulsarClient::new(settings.service_url, client),
            admin_url: option("--admin-url"),
            admin_token: options.get("--admin-token").cloned(),
            namespace: option("--namespace"),
            run: option("--run"),
        })
    }

    /// A topic of this run that the client creates on first use.
    pub(crate) fn topic(&self, name: &str) -> TopicName {
        let full = format!("persistent://{}/rust-{name}-{}", self.namespace, self.run);
        TopicName::parse(&full).expect("a topic name")
    }

    /// A topic of this run with partitions, created here.
    pub(crate) fn partitioned_topic(
        &self,
        name: &str,
        partitions: u32,
    ) -> anyhow::Result<TopicName> {
        let topic = self.topic(name);
        let path = topic.to_string().replace("://", "/");
        self.put(
            &format!("/admin/v2/{path}/partitions"),
            &partitions.to_string(),
        )?;
        Ok(topic)
    }

    fn put(&self, path: &str, body: &str) -> anyhow::Result<()> {
        let host = self
            .admin_url
            .trim_start_matches("http://")
            .trim_end_matches('/');
        let authorization = self.admin_token.as_ref().map_or_else(String::new, |token| {
            format!("Authorization: Bearer {token}\r\n")
        });
        let mut stream = TcpStream::connect(host)?;
        write!(
            stream,
            "PUT {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 2"), "PUT {path}: {answer}");
        Ok(())
    }

    pub(crate) async fn producer(
        &self,
        topic: &TopicName,
        options: ProducerOptions,
    ) -> anyhow::Result<Producer> {
        Ok(self.client.producer(topic, options).await?)
    }

    /// Subscribes to everything the topic has.
    pub(crate) async fn subscribe(
        &self,
        topic: &TopicName,
        kind: SubscriptionType,
    ) -> anyhow::Result<Consumer> {
        self.subscribe_with(topic, kind, |_| ()).await
    }

    pub(crate) async fn subscribe_with(
        &self,
        topic: &TopicName,
        kind: SubscriptionType,
        change: impl FnOnce(&mut ConsumerOptions),
    ) -> anyhow::Result<Consumer> {
        let mut options = consumer_options(kind);
        change(&mut options);
        Ok(self.client.consumer(topic.clone(), options).await?)
    }
}

pub(crate) fn consumer_options(kind: SubscriptionType) -> ConsumerOptions {
    ConsumerOptions {
        subscription_type: kind,
        initial_position: InitialPosition::Earliest,
        ..ConsumerOptions::new("subscription")
    }
}

/// The note of a case that returns one, or nothing.
pub(crate) fn note(note: impl Into<Note>) -> String {
    note.into().0
}

pub(crate) struct Note(String);

impl From<()> for Note {
    fn from((): ()) -> Self {
        Self(String::new())
    }
}

impl From<String> for Note {
    fn from(text: String) -> Self {
        Self(text)
    }
}

pub(crate) fn unbatched() -> ProducerOptions {
    ProducerOptions {
        batching: None,
        ..ProducerOptions::default()
    }
}

/// Distinct payloads.
pub(crate) fn payloads(start: usize, count: usize) -> Vec<String> {
    (start..start + count)
        .map(|index| format!("message {index}"))
        .collect()
}

/// Sends without waiting in between, then waits for every receipt.
pub(crate) async fn send_all(
    producer: &Producer,
    contents: &[String],
) -> anyhow::Result<Vec<MessageId>> {
    let messages = contents
        .iter()
        .map(|content| OutgoingMessage::new(content.clone()));
    send_messages(producer, messages.collect()).await
}

pub(crate) async fn send_messages(
    producer: &Producer,
    messages: Vec<OutgoingMessage>,
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

pub(crate) fn text(message: &ReceivedMessage) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

/// The next message; fails when none comes.
pub(crate) async fn next(consumer: &Consumer) -> anyhow::Result<ReceivedMessage> {
    Ok(timeout(RECEIVE_TIMEOUT, consumer.recv())
        .await
        .context("no message in time")??)
}

/// Receives and acknowledges that many messages; returns their payloads in order.
pub(crate) async fn receive(consumer: &Consumer, count: usize) -> anyhow::Result<Vec<String>> {
    let mut contents = Vec::new();
    for index in 0..count {
        let message = next(consumer)
            .await
            .with_context(|| format!("after {index} messages"))?;
        contents.push(text(&message));
        consumer.ack(&message).await?;
    }
    Ok(contents)
}

/// Fails unless exactly these messages come next.
pub(crate) async fn receive_exactly(
    consumer: &Consumer,
    expected: &[String],
    what: &str,
) -> anyhow::Result<()> {
    let seen = receive(consumer, expected.len())
        .await
        .context(what.to_owned())?;
    check_equal(&seen.as_slice(), &expected, what)
}

/// Fails when a further message comes.
pub(crate) async fn expect_quiet(consumer: &Consumer) -> anyhow::Result<()> {
    match timeout(QUIET_TIME, consumer.recv()).await {
        Ok(message) => bail!("unexpected message {:?}", message?.payload),
        Err(_) => Ok(()),
    }
}

/// Receives from several consumers in turn until that many came: one list per consumer.
pub(crate) async fn receive_shared(
    consumers: &[Consumer],
    count: usize,
) -> anyhow::Result<Vec<Vec<ReceivedMessage>>> {
    let mut lists: Vec<Vec<ReceivedMessage>> = consumers.iter().map(|_| Vec::new()).collect();
    let end = Instant::now() + RECEIVE_TIMEOUT;
    let mut received = 0;
    while received < count && Instant::now() < end {
        for (consumer, list) in consumers.iter().zip(&mut lists) {
            while let Ok(message) = timeout(Duration::from_millis(50), consumer.recv()).await {
                let message = message?;
                consumer.ack(&message).await?;
                list.push(message);
                received += 1;
            }
        }
    }
    ensure!(received == count, "{received} of {count} messages came");
    Ok(lists)
}

pub(crate) fn check_equal<T: PartialEq + Debug>(
    seen: &T,
    expected: &T,
    what: &str,
) -> anyhow::Result<()> {
    ensure!(
        seen == expected,
        "{what}: expected {expected:.300?}, got {seen:.300?}"
    );
    Ok(())
}
