//! Receiving load: consumers and readers that take what comes. // hot path
//!
//! Each thread has a client of its own and its consumers on every topic and subscription. Each consumer is a loop that takes
//! all messages that are there, reads the clock once for them, and acknowledges them together. Where a number of messages is
//! wanted, each is taken off it before it is counted: what comes besides is neither counted nor acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::measure::{Measured, Meter};
use super::pacing::Schedule;
use super::run::{LoadError, LoadThread, RunClock};
use crate::client::consumer::{Consumer, ConsumerOptions, HasMessageId, MessageView, ReceiveError};
use crate::client::reader::{Reader, ReaderOptions};
use crate::client::{ClientOptions, MessageId, PulsarClient};
use crate::naming::{ServiceUrl, TopicName};

/// What is to be received.
#[derive(Debug, Clone)]
pub struct ConsumeLoad {
    /// Where.
    pub service_url: ServiceUrl,
    /// How the clients behave; each thread has one.
    pub client: ClientOptions,
    /// The topics. Not empty.
    pub topics: Vec<TopicName>,
    /// Consumers or readers.
    pub source: SourceOptions,
    /// The most messages per second that all consumers together take, above 0; `None` is no limit.
    pub rate: Option<f64>,
    /// Messages in all, after which the run ends; `None` is without end.
    pub messages: Option<u64>,
}

/// How messages are received.
#[derive(Debug, Clone)]
pub enum SourceOptions {
    /// Through subscriptions.
    Consumers {
        /// How the consumers behave, but for the subscription.
        options: ConsumerOptions,
        /// The subscriptions of each topic. Not empty.
        subscriptions: Vec<String>,
        /// Consumers of each subscription, of each thread. At least 1.
        consumers: usize,
    },
    /// By readers, one on each topic of each thread.
    Readers(ReaderOptions),
}

/// What all threads of one run share.
#[derive(Debug)]
pub struct Consumption {
    load: ConsumeLoad,
    /// Messages that are still wanted.
    left: AtomicU64,
    /// Messages that were wanted and are not measured yet.
    missing: AtomicU64,
    /// Cancelled when none is.
    done: CancellationToken,
}

impl Consumption {
    /// A run of a load.
    #[must_use]
    pub fn new(load: ConsumeLoad) -> Self {
        Self {
            left: AtomicU64::new(load.messages.unwrap_or(u64::MAX)),
            missing: AtomicU64::new(load.messages.unwrap_or(u64::MAX)),
            done: CancellationToken::new(),
            load,
        }
    }

    /// Takes a message off what is wanted; false when none is.
    fn take(&self) -> bool {
        self.load.messages.is_none()
            || self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }

    /// Notes that `count` messages that were taken are measured.
    fn measured(&self, count: u64) {
        if self.load.messages.is_some()
            && self.missing.fetch_sub(count, Ordering::Relaxed) == count
            && count > 0
        {
            self.done.cancel();
        }
    }
}

/// Receives until the run ends or the messages are there.
///
/// # Errors
/// When a consumer cannot be opened or is lost.
pub async fn consume(run: Arc<Consumption>, mut thread: LoadThread) -> Result<(), LoadError> {
    let client = PulsarClient::new(run.load.service_url.clone(), run.load.client.clone());
    let stop = thread.stop.clone();
    let opening = Box::pin(open(&client, &run.load));
    let Some(opened) = stop.run_until_cancelled(opening).await else {
        return Ok(());
    };
    let sources = opened?;
    let Some(start) = thread.connected().await else {
        return Ok(());
    };
    let all = thread.threads * sources.len();
    // Ends the consumers of this thread: all of them when one has failed.
    let end = stop.child_token();
    let mut loops = JoinSet::new();
    for source in sources {
        let receiving = Receiving {
            source,
            run: Arc::clone(&run),
            meter: thread.meter.clone(),
            clock: thread.clock,
            schedule: run.load.rate.map(|rate| share_of(rate, all, start)),
            taken: 0,
            received: Vec::new(),
        };
        loops.spawn(receiving.run(end.clone()));
    }
    let done = async {
        run.done.cancelled().await;
        thread.finished().await;
        // The last acknowledgements are sent while the consumers close.
        end.cancel();
    };
    let (failure, ()) = tokio::join!(first_failure(&mut loops, &end), async {
        end.run_until_cancelled(done).await;
    });
    client.close();
    failure.map_or(Ok(()), Err)
}

#[expect(clippy::cast_precision_loss, reason = "numbers of consumers are small")]
fn share_of(rate: f64, consumers: usize, start: u64) -> Schedule {
    Schedule::new(start, rate / consumers.max(1) as f64)
}

/// Waits until all loops have ended, and ends all when one fails; returns the first failure.
async fn first_failure(
    loops: &mut JoinSet<Result<(), LoadError>>,
    end: &CancellationToken,
) -> Option<LoadError> {
    let mut failure = None;
    while let Some(ended) = loops.join_next().await {
        let panicked = |error| LoadError(format!("a consumer's task failed: {error}"));
        if let Err(error) = ended.map_err(panicked).flatten() {
            failure.get_or_insert(error);
            end.cancel();
        }
    }
    failure
}

async fn open(client: &PulsarClient, load: &ConsumeLoad) -> Result<Vec<Source>, LoadError> {
    let failed = |topic: &TopicName, error| LoadError(format!("cannot open {topic}: {error}"));
    let mut sources = Vec::new();
    for topic in &load.topics {
        match &load.source {
            SourceOptions::Readers(options) => {
                let opened = client.reader(topic, options.clone());
                let reader = Box::pin(opened).await;
                sources.push(Source::Reader(
                    reader.map_err(|error| failed(topic, error))?,
                ));
            }
            SourceOptions::Consumers {
                options,
                subscriptions,
                consumers,
            } => {
                for subscription in subscriptions {
                    for _ in 0..*consumers {
                        let options = ConsumerOptions {
                            subscription: subscription.clone(),
                            ..options.clone()
                        };
                        let opened = Box::pin(client.consumer(topic.clone(), options)).await;
                        let consumer = opened.map_err(|error| failed(topic, error))?;
                        sources.push(Source::Consumer(consumer));
                    }
                }
            }
        }
    }
    Ok(sources)
}

#[derive(Debug)]
enum Source {
    Consumer(Consumer),
    Reader(Reader),
}

impl Source {
    async fn receive_each(
        &self,
        most: usize,
        visit: impl FnMut(MessageView<'_>),
    ) -> Result<usize, ReceiveError> {
        match self {
            Self::Consumer(consumer) => consumer.receive_each(most, visit).await,
            Self::Reader(reader) => reader.receive_each(most, visit).await,
        }
    }

    async fn close(&self) {
        match self {
            Self::Consumer(consumer) => consumer.close().await,
            Self::Reader(reader) => reader.close().await,
        }
    }

    /// Readers keep no position, so they acknowledge by themselves.
    fn acknowledges(&self) -> bool {
        matches!(self, Self::Consumer(_))
    }
}

/// The loop of one consumer.
struct Receiving {
    source: Source,
    run: Arc<Consumption>,
    meter: Meter,
    clock: RunClock,
    /// When messages may be taken, where the rate is limited.
    schedule: Option<Schedule>,
    taken: u64,
    /// What is to be acknowledged next.
    received: Vec<Received>,
}

/// A message that is to be acknowledged.
struct Received {
    id: MessageId,
    topic: Arc<str>,
}

impl HasMessageId for Received {
    fn message_id(&self) -> &MessageId {
        &self.id
    }

    fn topic(&self) -> Option<&str> {
        Some(&self.topic)
    }
}

impl Receiving {
    /// Receives until it fails or is to end, and closes.
    async fn run(mut self, end: CancellationToken) -> Result<(), LoadError> {
        let received = end.run_until_cancelled(self.receive_all()).await;
        // Whatever fails here fails after the measurement.
        let _ = timeout(CLOSE_TIME, self.source.close()).await;
        received.map_or(Ok(()), Err)
    }

    async fn receive_all(&mut self) -> LoadError {
        loop {
            self.wait_for_rate().await;
            if let Err(error) = self.receive().await {
                return LoadError(error.to_string());
            }
        }
    }

    async fn receive(&mut self) -> Result<(), ReceiveError> {
        let most = match self.schedule {
            None => ENTRIES_MAX,
            Some(_) => 1,
        };
        let mut arrival = Arrival::default();
        let (meter, received) = (&self.meter, &mut self.received);
        let acknowledges = self.source.acknowledges();
        let run = &self.run;
        let visit = |message: MessageView<'_>| {
            if !run.take() {
                return;
            }
            arrival.add(message.publish_time(), message.payload().len(), meter);
            if acknowledges {
                received.push(Received {
                    id: message.id(),
                    topic: Arc::clone(message.topic()),
                });
            }
        };
        self.source.receive_each(most, visit).await?;
        arrival.finish(&self.meter);
        self.taken += arrival.messages;
        self.run.measured(arrival.messages);
        if let Source::Consumer(consumer) = &self.source
            && !self.received.is_empty()
        {
            if let Err(error) = consumer.ack_many(&self.received).await {
                let failed = self.received.len() as u64;
                self.meter
                    .measure(|measured| measured.fail(|| error.to_string(), failed));
            }
            self.received.clear();
        }
        Ok(())
    }

    async fn wait_for_rate(&self) {
        let Some(schedule) = self.schedule else {
            return;
        };
        let wait = schedule.at(self.taken).saturating_sub(self.clock.now());
        if wait > 0 {
            tokio::time::sleep(Duration::from_nanos(wait)).await;
        }
    }
}

/// Messages that arrived together.
#[derive(Debug, Default)]
struct Arrival {
    /// In nanoseconds of the Unix epoch; read when the first message is there.
    now: Option<u64>,
    messages: u64,
    bytes: u64,
    /// The last publish time, and how many messages had it.
    same: (u64, u64),
}

impl Arrival {
    fn add(&mut self, publish_time: u64, len: usize, meter: &Meter) {
        self.now.get_or_insert_with(unix_nanos);
        self.messages += 1;
        self.bytes += len as u64;
        if self.same.0 == publish_time {
            self.same.1 += 1;
            return;
        }
        let before = std::mem::replace(&mut self.same, (publish_time, 1));
        if before.1 > 0 {
            meter.measure(|measured| self.record(before, measured));
        }
    }

    fn finish(&self, meter: &Meter) {
        meter.measure(|measured| {
            self.record(self.same, measured);
            measured.messages += self.messages;
            measured.bytes += self.bytes;
        });
    }

    fn record(&self, (publish_time, count): (u64, u64), measured: &mut Measured) {
        let published = publish_time.saturating_mul(NANOS_PER_MILLI);
        // Clocks of two machines may differ; a message cannot arrive before it was sent.
        let latency = self.now.unwrap_or_default().saturating_sub(published);
        measured.latencies.record(latency, count);
    }
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// Entries that are taken at once.
const ENTRIES_MAX: usize = 256;
const NANOS_PER_MILLI: u64 = 1_000_000;
/// How long a consumer may take to send its last acknowledgements and to close.
const CLOSE_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn consumption(messages: Option<u64>) -> Consumption {
        Consumption::new(ConsumeLoad {
            service_url: "pulsar://localhost:6650".parse().unwrap(),
            client: ClientOptions::default(),
            topics: Vec::new(),
            source: SourceOptions::Readers(ReaderOptions::new(MessageId::earliest())),
            rate: None,
            messages,
        })
    }

    #[test]
    fn no_more_is_taken_than_is_wanted_and_the_end_is_when_all_is_measured() {
        let run = consumption(Some(3));
        let taken = (0..5).filter(|_| run.take()).count();
        assert_eq!(taken, 3);
        run.measured(2);
        run.measured(0);
        assert!(!run.done.is_cancelled());
        run.measured(1);
        assert!(run.done.is_cancelled());
        let endless = consumption(None);
        assert!(endless.take());
        endless.measured(1);
        assert!(!endless.done.is_cancelled());
    }

    #[test]
    fn messages_count_from_their_own_publish_time() {
        let meter = Meter::default();
        let mut arrival = Arrival {
            now: Some(1_000_000 * NANOS_PER_MILLI),
            ..Arrival::default()
        };
        for publish_time in [999_990, 999_990, 999_980, 1_000_005] {
            arrival.add(publish_time, 10, &meter);
        }
        arrival.finish(&meter);
        let mut measured = Measured::default();
        meter.take_into(&mut measured);
        assert_eq!((measured.messages, measured.bytes), (4, 40));
        assert_eq!(measured.latencies.count(), 4);
        let summary = measured.latencies.summary();
        assert!((summary.mean_ms - 10.0).abs() < 0.05, "{summary:?}");
        assert!((summary.max_ms - 20.0).abs() < 0.05, "{summary:?}");
    }
}
