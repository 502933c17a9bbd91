//! A replay and a client of it.

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use pulsegate::{
    client::{
        ClientOptions, Consumer, ConsumerOptions, OutgoingMessage, Producer, ProducerOptions,
        PulsarClient,
        consumer::{AckGrouping, InitialPosition, ReceivedMessage},
    },
    naming::{ServiceUrl, TopicName},
};

use crate::replay::Replay;

/// The connection of scenarios that is not our client's.
const OTHER: &str = "other";

/// A broker that answers as it was recorded.
pub(crate) struct Recorded {
    replay: Arc<Replay>,
    pub(crate) client: PulsarClient,
}

impl Recorded {
    /// Runs `test` against the transcript `client/NAME` and checks that the client sent what was recorded, all of it and
    /// nothing else. What happened beside the client happens at once, but for entries that have one of the texts in `held`:
    /// these by [`happen`](Self::happen).
    pub(crate) async fn run<F: Future<Output = ()>>(
        name: &str,
        held: &[&str],
        test: impl FnOnce(Arc<Self>) -> F,
    ) {
        Self::run_with(name, held, ClientOptions::default(), test).await;
    }

    /// The same with a client that has these options.
    pub(crate) async fn run_with<F: Future<Output = ()>>(
        name: &str,
        held: &[&str],
        options: ClientOptions,
        test: impl FnOnce(Arc<Self>) -> F,
    ) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/transcripts/client");
        let replay = Replay::from_transcript(&folder.join(format!("{name}.yaml")), 1).unwrap();
        let url = format!("pulsar://{}", replay.brokers()[0].address);
        let url: ServiceUrl = url.parse().unwrap();
        let options = ClientOptions {
            client_version: "client".to_owned(),
            operation_timeout: LIMIT,
            ..options
        };
        let recorded = Arc::new(Self {
            client: PulsarClient::new(url, options),
            replay: Arc::clone(&replay),
        });
        recorded.tell(|text, is_of_client| {
            !is_of_client && !held.iter().any(|held| text.contains(held))
        });
        let result = tokio::time::timeout(LIMIT, test(Arc::clone(&recorded))).await;
        if result.is_ok() {
            replay.settled().await;
        }
        assert_eq!(replay.problems(), Vec::<String>::new());
        assert!(result.is_ok(), "the test did not end within {LIMIT:?}");
        recorded.client.close();
    }

    /// What has this text in its entry happens, beside the client.
    pub(crate) fn happen(&self, text: &str) {
        let mut is_there = false;
        self.tell(|entry, is_of_client| {
            let is_it = !is_of_client && entry.contains(text);
            is_there |= is_it;
            is_it
        });
        assert!(is_there, "nothing that was recorded has {text}");
    }

    /// Tells the replay of the entries that are chosen by their text and whether they are frames of our client or for it.
    fn tell(&self, mut is_chosen: impl FnMut(&str, bool) -> bool) {
        let mut place = 0;
        while let Some(entry) = self.replay.recorded(place) {
            let text = format!("{}: {}", entry.key, crate::value::flow(&entry.value));
            let is_of_client = entry
                .parts()
                .is_some_and(|(connection, ..)| connection != OTHER);
            if is_chosen(&text, is_of_client) {
                self.replay.happened(place);
            }
            place += 1;
        }
    }

    /// A producer of the name `p-~` that sends each message by itself.
    pub(crate) async fn producer(&self, topic: &TopicName) -> Producer {
        let options = producer_options();
        self.client.producer(topic, options).await.unwrap()
    }

    /// A consumer.
    pub(crate) async fn consumer(&self, topic: &TopicName, options: ConsumerOptions) -> Consumer {
        self.client.consumer(topic.clone(), options).await.unwrap()
    }
}

/// The topic of a scenario: `~` is what each run has of its own.
pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::parse(&format!("persistent://public/default/{name}-~")).unwrap()
}

/// Those of the producers in scenarios.
pub(crate) fn producer_options() -> ProducerOptions {
    ProducerOptions {
        name: Some("p-~".to_owned()),
        batching: None,
        ..ProducerOptions::default()
    }
}

/// Those of the consumers in scenarios: from the first message on, every acknowledgement is sent at once and answered.
pub(crate) fn consumer_options(subscription: &str) -> ConsumerOptions {
    ConsumerOptions {
        consumer_name: Some("c".to_owned()),
        initial_position: InitialPosition::Earliest,
        ack_grouping: None::<AckGrouping>,
        ack_receipt: true,
        // Permits by the number of messages alone, as Apache's Java client gives them.
        receiver_queue_bytes: usize::MAX,
        ..ConsumerOptions::new(subscription)
    }
}

/// A message of this text.
pub(crate) fn message(text: &str) -> OutgoingMessage {
    OutgoingMessage::new(text.to_owned())
}

/// The next messages.
pub(crate) async fn receive(consumer: &Consumer, count: usize) -> Vec<ReceivedMessage> {
    let mut messages = Vec::new();
    for _ in 0..count {
        messages.push(consumer.recv().await.unwrap());
    }
    messages
}

/// The payloads as text.
pub(crate) fn texts(messages: &[ReceivedMessage]) -> Vec<&str> {
    messages.iter().map(text).collect()
}

/// The payload as text.
pub(crate) fn text(message: &ReceivedMessage) -> &str {
    std::str::from_utf8(&message.payload).unwrap()
}

/// By message: how often it was delivered before.
pub(crate) fn counts(messages: &[ReceivedMessage]) -> Vec<(&str, u32)> {
    let count = |message| (text(message), message.redelivery_count);
    messages.iter().map(count).collect()
}

/// Far more than any of it takes.
const LIMIT: Duration = Duration::from_secs(30);
