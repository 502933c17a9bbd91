//! Four kinds of subscriptions kept busy while the harness unloads bundles and kills a broker.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{bail, ensure};
use pulsegate::{
    client::{
        Consumer, MessageId, OutgoingMessage, Producer, ProducerOptions, SendError,
        consumer::{ReceivedMessage, SubscriptionType},
        producer::BatchingOptions,
    },
    naming::TopicName,
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::service::{Service, text, unbatched};

const TIME_BETWEEN_MESSAGES: Duration = Duration::from_millis(10);
const DRAIN_TIME: Duration = Duration::from_secs(90);
const NUMBER_OF_KEYS: usize = 8;
const RECEIPTS_WAITED_FOR: usize = 2000;

/// What became of a numbered message.
type Answer = (usize, Result<MessageId, SendError>);

/// One topic: what was sent, acknowledged by the broker and received.
struct Flow {
    name: &'static str,
    kind: SubscriptionType,
    seen: Mutex<Seen>,
    stopping: CancellationToken,
    drained: CancellationToken,
}

#[derive(Default)]
struct Seen {
    sent: usize,
    receipted: BTreeSet<usize>,
    received: BTreeSet<usize>,
    /// The first arrivals of each stream: a partition, or one key of it.
    order: BTreeMap<String, Vec<usize>>,
    repeats: usize,
    /// The longest time between two messages, and when the newest one came.
    pause: Duration,
    last: Option<Instant>,
    errors: Vec<String>,
}

impl Flow {
    fn note(&self, what: &str, error: impl std::fmt::Display) {
        self.seen
            .lock()
            .expect("no holder panics")
            .errors
            .push(format!("{what}: {error}"));
    }

    /// Sends numbered messages until told to stop, then waits for the receipts.
    async fn produce(self: Arc<Self>, producer: Producer) {
        let mut ticks = interval(TIME_BETWEEN_MESSAGES);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut receipts = JoinSet::new();
        for number in 0.. {
            tokio::select! {
                () = self.stopping.cancelled() => break,
                _ = ticks.tick() => {}
            }
            let message = if self.kind == SubscriptionType::KeyShared {
                let key = format!("k{}", number % NUMBER_OF_KEYS);
                OutgoingMessage {
                    key: Some(key.clone().into()),
                    ..OutgoingMessage::new(format!("{key}:{number}"))
                }
            } else {
                OutgoingMessage::new(format!("all:{number}"))
            };
            self.seen.lock().expect("no holder panics").sent += 1;
            match producer.enqueue(message).await {
                Ok(receipt) => {
                    receipts.spawn(async move { (number, receipt.await) });
                }
                Err(error) => self.note("send", error),
            }
            while receipts.len() > RECEIPTS_WAITED_FOR {
                self.on_receipt(receipts.join_next().await);
            }
            while let Some(receipt) = receipts.try_join_next() {
                self.on_receipt(Some(receipt));
            }
        }
        if let Err(error) = producer.flush().await {
            self.note("flush", error);
        }
        while let Some(receipt) = receipts.join_next().await {
            self.on_receipt(Some(receipt));
        }
        if let Err(error) = producer.close().await {
            self.note("close", error);
        }
    }

    fn on_receipt(&self, receipt: Option<Result<Answer, tokio::task::JoinError>>) {
        match receipt {
            Some(Ok((number, Ok(_)))) => {
                self.seen
                    .lock()
                    .expect("no holder panics")
                    .receipted
                    .insert(number);
            }
            Some(Ok((number, Err(error)))) => self.note(&format!("receipt of {number}"), error),
            Some(Err(error)) => self.note("receipt", error),
            None => {}
        }
    }

    /// Receives, notes and acknowledges until all that was sent has come.
    async fn consume(self: Arc<Self>, consumer: Consumer) {
        loop {
            let message = tokio::select! {
                () = self.drained.cancelled() => break,
                message = consumer.recv() => message,
            };
            match message {
                Ok(message) => {
                    self.on_message(&message);
                    if let Err(error) = consumer.ack(&message).await {
                        self.note("acknowledge", error);
                    }
                }
                Err(error) => {
                    self.note("receive", error);
                    break;
                }
            }
        }
        consumer.close().await;
    }

    fn on_message(&self, message: &ReceivedMessage) {
        let content = text(message);
        let mut seen = self.seen.lock().expect("no holder panics");
        let Some((stream, number)) = content
            .split_once(':')
            .and_then(|(stream, number)| Some((stream, number.parse::<usize>().ok()?)))
        else {
            seen.errors.push(format!("message {content:?}"));
            return;
        };
        let now = Instant::now();
        let pause = seen.last.map_or(Duration::ZERO, |last| now - last);
        seen.pause = seen.pause.max(pause);
        seen.last = Some(now);
        if !seen.received.insert(number) {
            seen.repeats += 1;
            return;
        }
        let stream = format!("{} {stream}", message.topic);
        seen.order.entry(stream).or_default().push(number);
    }

    /// Receipted messages that no consumer has seen yet.
    fn missing(&self) -> usize {
        let seen = self.seen.lock().expect("no holder panics");
        seen.receipted.difference(&seen.received).count()
    }

    /// All that went wrong.
    fn problems(&self) -> Vec<String> {
        let missing = self.missing();
        let seen = self.seen.lock().expect("no holder panics");
        let mut found: Vec<String> = seen
            .errors
            .iter()
            .take(3)
            .map(|error| format!("{}: client error {error}", self.name))
            .collect();
        if missing > 0 {
            found.push(format!(
                "{}: {missing} acknowledged messages lost",
                self.name
            ));
        }
        if seen.receipted.len() < seen.sent {
            let unsent = seen.sent - seen.receipted.len();
            found.push(format!(
                "{}: {unsent} messages never got a receipt",
                self.name
            ));
        }
        if self.kind != SubscriptionType::Shared {
            for (stream, numbers) in &seen.order {
                if let Some(pair) = numbers.windows(2).find(|pair| pair[1] < pair[0]) {
                    found.push(format!(
                        "{}: order lost in {stream}: {} came before {}",
                        self.name, pair[0], pair[1]
                    ));
                }
            }
        }
        found
    }
}

async fn start(
    service: &Service,
    tasks: &mut JoinSet<()>,
    (name, topic, kind, consumers): (&'static str, &TopicName, SubscriptionType, usize),
    options: ProducerOptions,
) -> anyhow::Result<Arc<Flow>> {
    let flow = Arc::new(Flow {
        name,
        kind,
        seen: Mutex::default(),
        stopping: CancellationToken::new(),
        drained: CancellationToken::new(),
    });
    for index in 0..consumers {
        let named = |options: &mut pulsegate::client::ConsumerOptions| {
            options.consumer_name = Some(format!("{name}-{index}"));
        };
        let consumer = service.subscribe_with(topic, kind, named).await?;
        tasks.spawn(Arc::clone(&flow).consume(consumer));
    }
    // No time limit: what cannot be sent now has to be sent after reconnecting.
    let options = ProducerOptions {
        send_timeout: None,
        ..options
    };
    let producer = service.producer(topic, options).await?;
    tasks.spawn(Arc::clone(&flow).produce(producer));
    Ok(flow)
}

/// Says "RUNNING disturbance" when messages flow, then runs until a line (or the end) comes on standard input.
pub(crate) async fn disturbance(service: &Service) -> anyhow::Result<String> {
    let halves = service.partitioned_topic("disturbance-failover", 2)?;
    let key_based = ProducerOptions {
        batching: Some(BatchingOptions {
            key_based: true,
            ..BatchingOptions::default()
        }),
        ..ProducerOptions::default()
    };
    let exclusive = service.topic("disturbance-exclusive");
    let shared = service.topic("disturbance-shared");
    let key_shared = service.topic("disturbance-key-shared");
    let kinds = [
        (
            ("exclusive", &exclusive, SubscriptionType::Exclusive, 1),
            ProducerOptions::default(),
        ),
        (
            ("failover", &halves, SubscriptionType::Failover, 2),
            unbatched(),
        ),
        (
            ("shared", &shared, SubscriptionType::Shared, 2),
            ProducerOptions::default(),
        ),
        (
            ("key-shared", &key_shared, SubscriptionType::KeyShared, 2),
            key_based,
        ),
    ];
    let mut tasks = JoinSet::new();
    let mut flows = Vec::new();
    for (what, options) in kinds {
        flows.push(start(service, &mut tasks, what, options).await?);
    }
    println!("RUNNING disturbance");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    judge(&flows, tasks).await
}

/// Stops the producers, waits until everything came, and says what is wrong.
async fn judge(flows: &[Arc<Flow>], mut tasks: JoinSet<()>) -> anyhow::Result<String> {
    for flow in flows {
        flow.stopping.cancel();
    }
    let end = Instant::now() + DRAIN_TIME;
    loop {
        let unanswered = flows.iter().any(|flow| {
            let seen = flow.seen.lock().expect("no holder panics");
            seen.receipted.len() < seen.sent && seen.errors.is_empty()
        });
        if !unanswered && flows.iter().all(|flow| flow.missing() == 0) || Instant::now() > end {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    for flow in flows {
        flow.drained.cancel();
    }
    let ended = timeout(DRAIN_TIME, async {
        while tasks.join_next().await.is_some() {}
    })
    .await;
    ensure!(ended.is_ok(), "a producer or consumer did not end");
    let problems: Vec<String> = flows.iter().flat_map(|flow| flow.problems()).collect();
    if !problems.is_empty() {
        bail!(problems.join("; "));
    }
    let count = |value: fn(&Seen) -> usize| -> usize {
        flows
            .iter()
            .map(|flow| value(&flow.seen.lock().expect("no holder panics")))
            .sum()
    };
    let pauses = flows
        .iter()
        .map(|flow| flow.seen.lock().expect("no holder panics").pause);
    Ok(format!(
        "{} messages, {} repeats, longest pause {:.1} s",
        count(|seen| seen.sent),
        count(|seen| seen.repeats),
        pauses.max().unwrap_or_default().as_secs_f64()
    ))
}
