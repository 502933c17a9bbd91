//! Publishing load. // hot path
//!
//! Each thread has a client of its own and its producers on every topic, and one loop that hands out messages: as many as are
//! due, or as many as there is room for, with one call and one reading of the clock for all of them. A token goes with each
//! message and comes back with its receipt: the time from which its latency counts.
//!
//! At the end receipts are waited for `GRACE`. What has none then is given up: the client hands its token back, and the
//! message counts with the time that it waited, so that a broker that stops answering does not look better than one that is
//! slow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::alarm::Alarm;
use super::measure::{Measured, Meter};
use super::pacing::{Pace, Pacer, Schedule};
use super::run::{LoadError, LoadThread, RunClock};
use crate::client::producer::{
    Acknowledgement, MessageKey, OutgoingMessage, Producer, ProducerOptions, ReceiptSink,
    SendError, Tokens,
};
use crate::client::{ClientOptions, PulsarClient};
use crate::naming::{ServiceUrl, TopicName};

/// What is to be published.
#[derive(Debug, Clone)]
pub struct ProduceLoad {
    /// Where.
    pub service_url: ServiceUrl,
    /// How the clients behave; each thread has one.
    pub client: ClientOptions,
    /// The topics; each thread has producers on all of them. Not empty.
    pub topics: Vec<TopicName>,
    /// Producers on each topic, of each thread. At least 1.
    pub producers_per_topic: usize,
    /// How the producers behave; `max_pending` is the window of each.
    pub producer: ProducerOptions,
    /// Messages per second of all producers together, above 0; `None` is the maximum.
    pub rate: Option<f64>,
    /// Messages of all producers together; `None` is without end.
    pub messages: Option<u64>,
    /// The payloads, taken in turn. Not empty.
    pub payloads: Vec<Bytes>,
    /// Keys of the messages.
    pub keys: Option<KeyMode>,
    /// Whether messages carry an event time.
    pub event_time: bool,
    /// Whether the first message that fails ends the run.
    pub exit_on_failure: bool,
}

/// Which keys messages have (`--message-key-generation-mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyMode {
    /// The number of the message within its producer.
    AutoIncrement,
    /// Numbers that look random, the same in every run.
    Random,
}

/// Publishes until the run ends or the messages are sent.
///
/// # Errors
/// When a producer cannot be opened or no producer is left.
pub async fn produce(load: Arc<ProduceLoad>, mut thread: LoadThread) -> Result<(), LoadError> {
    let client = PulsarClient::new(load.service_url.clone(), load.client.clone());
    let room = Arc::new(Room::default());
    let failure = CancellationToken::new();
    let receipts = Arc::new(Receipts {
        clock: thread.clock,
        meter: thread.meter.clone(),
        payload_len: mean_len(&load.payloads),
        room: Arc::clone(&room),
        failure: load.exit_on_failure.then(|| failure.clone()),
        given_up: AtomicBool::new(false),
    });
    let sink: Arc<dyn ReceiptSink> = Arc::<Receipts>::clone(&receipts);
    let stop = thread.stop.clone();
    let opening = Box::pin(open(&client, &load, &sink));
    let Some(opened) = stop.run_until_cancelled(opening).await else {
        return Ok(());
    };
    let producers = opened?;
    let Some(start) = thread.connected().await else {
        return Ok(());
    };
    let mut generator = Generator {
        pacers: pacers(&load, &thread, producers.len(), start),
        payloads: load.payloads.iter().cloned().cycle(),
        due: BinaryHeap::new(),
        blocked: Vec::new(),
        keys: 0,
        load: &load,
        producers: &producers,
        thread: &thread,
        room: &room,
        failure: &failure,
    };
    let generated = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        () = failure.cancelled() => Some(Ok(())),
        generated = generator.run() => Some(generated),
    };
    let was_stopped = generated.is_none();
    let result = match generated {
        // All is sent, or nothing more is to be: what is on its way belongs to the measurement.
        Some(Ok(())) => {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = failure.cancelled() => thread.gave_up().await,
                () = flush(&producers) => thread.finished().await,
            }
            Ok(())
        }
        Some(Err(error)) => Err(error),
        None => {
            generator.send_rest();
            Ok(())
        }
    };
    let stopped = thread.clock.now();
    let answered = timeout(GRACE, flush(&producers)).await.is_ok();
    if was_stopped {
        generator.charge_unsent(stopped);
    }
    if answered {
        // Whatever fails here fails after the measurement.
        let _ = timeout(CLOSE_TIME, close(&producers)).await;
    }
    receipts.given_up.store(true, Ordering::Relaxed);
    client.close();
    // The tasks of the producers end with the client, and hand the tokens back.
    let given_up = async {
        while producers.iter().any(|producer| producer.pending() > 0) {
            tokio::task::yield_now().await;
        }
    };
    let _ = timeout(CLOSE_TIME, given_up).await;
    result
}

async fn open(
    client: &PulsarClient,
    load: &ProduceLoad,
    sink: &Arc<dyn ReceiptSink>,
) -> Result<Vec<Producer>, LoadError> {
    let mut producers = Vec::new();
    for _ in 0..load.producers_per_topic {
        for topic in &load.topics {
            let opened = client.producer_with_sink(topic, load.producer.clone(), Arc::clone(sink));
            let producer = Box::pin(opened).await.map_err(|error| {
                LoadError(format!("cannot open a producer of {topic}: {error}"))
            })?;
            producers.push(producer);
        }
    }
    Ok(producers)
}

async fn flush(producers: &[Producer]) {
    for producer in producers {
        // What failed was told to the sink.
        let _ = producer.flush().await;
    }
}

/// Closes all at once.
async fn close(producers: &[Producer]) {
    let mut closing = JoinSet::new();
    for producer in producers {
        let producer = producer.clone();
        closing.spawn(async move { producer.close().await });
    }
    while closing.join_next().await.is_some() {}
}

/// Each producer has its share of the rate, and they begin one after the other within one interval of theirs.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of producers are small, and an interval in nanoseconds saturates"
)]
fn pacers(load: &ProduceLoad, thread: &LoadThread, producers: usize, start: u64) -> Vec<Pacer> {
    let all = (thread.threads * producers).max(1);
    let pacer = |producer: usize| {
        let place = producer * thread.threads + thread.number;
        let limit = load.messages.map(|messages| share(messages, place, all));
        let pace = match load.rate {
            None => Pace::Maximum,
            Some(rate) => {
                let offset = place as f64 * 1e9 / rate;
                let start = start.saturating_add(offset as u64);
                Pace::Scheduled(Schedule::new(start, rate / all as f64))
            }
        };
        Pacer::new(pace, limit)
    };
    (0..producers).map(pacer).collect()
}

/// The share of `place` when `total` is given out to `all` one by one.
fn share(total: u64, place: usize, all: usize) -> u64 {
    let (place, all) = (place as u64, (all as u64).max(1));
    total / all + u64::from(place < total % all)
}

/// The loop of one thread.
struct Generator<'a, P> {
    load: &'a ProduceLoad,
    thread: &'a LoadThread,
    producers: &'a [Producer],
    /// One for each producer.
    pacers: Vec<Pacer>,
    payloads: P,
    /// Producers by the time their next message is due.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// Producers with messages to send and no room for them.
    blocked: Vec<usize>,
    /// The last random key.
    keys: u64,
    room: &'a Room,
    /// Cancelled by the first failure, if that is to end the run.
    failure: &'a CancellationToken,
}

impl<P: Iterator<Item = Bytes>> Generator<'_, P> {
    /// Sends until all producers have sent their share.
    async fn run(&mut self) -> Result<(), LoadError> {
        let alarm = Alarm::new().map_err(|error| LoadError(format!("no timer: {error}")))?;
        for index in 0..self.pacers.len() {
            self.schedule(index);
        }
        loop {
            let now = self.thread.clock.now();
            while let Some(Reverse((due, index))) = self.due.peek().copied()
                && due <= now
            {
                self.due.pop();
                self.send(index, now)?;
            }
            self.wait(&alarm).await?;
            if self.due.is_empty() && self.blocked.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits for the next message to be due, or for room.
    async fn wait(&mut self, alarm: &Alarm) -> Result<(), LoadError> {
        let now = self.thread.clock.now();
        let next = self.due.peek().map(|Reverse((due, _))| *due);
        if next.is_some_and(|due| due <= now) {
            // The connections run on this thread as well.
            tokio::task::yield_now().await;
            return Ok(());
        }
        let alarm_time = next.map(|due| {
            // Closer together than this, waking up costs more than it brings.
            Duration::from_nanos(due.saturating_sub(now)).max(WAIT_MIN)
        });
        if self.blocked.is_empty() {
            if let Some(time) = alarm_time {
                let waited = alarm.wait(time).await;
                waited.map_err(|error| LoadError(format!("the timer failed: {error}")))?;
            }
            return Ok(());
        }
        self.room.wanted.store(true, Ordering::Relaxed);
        tokio::select! {
            () = self.room.made.notified() => {}
            _ = async { alarm.wait(alarm_time.unwrap_or_default()).await }, if alarm_time.is_some() => {}
            // A producer that fails tells nobody.
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        self.room.wanted.store(false, Ordering::Relaxed);
        let now = self.thread.clock.now();
        for index in std::mem::take(&mut self.blocked) {
            self.send(index, now)?;
        }
        Ok(())
    }

    /// Sends what is due of one producer, as far as there is room.
    fn send(&mut self, index: usize, now: u64) -> Result<(), LoadError> {
        let (Some(pacer), Some(producer)) = (self.pacers.get(index), self.producers.get(index))
        else {
            return Ok(());
        };
        let window = self.load.producer.max_pending;
        // At maximum rate a few large calls cost less than many small ones.
        if self.load.rate.is_none() && producer.pending() > window / 2 {
            self.blocked.push(index);
            return Ok(());
        }
        let most = if self.load.keys.is_some() { 1 } else { window };
        let wanted = pacer.wanted(now, most as u64);
        let (first, step) = pacer.counts_from(now);
        let message = self.message(index);
        let count = usize::try_from(wanted).unwrap_or(usize::MAX);
        let taken = producer.enqueue_many(&message, count, Tokens { first, step });
        match taken {
            Ok(taken) => {
                if let Some(pacer) = self.pacers.get_mut(index) {
                    pacer.on_sent(taken as u64);
                }
                if taken < count {
                    self.blocked.push(index);
                } else {
                    self.schedule(index);
                }
            }
            Err(SendError::QueueFull) => self.blocked.push(index),
            Err(error) => self.refused(index, wanted, &error)?,
        }
        Ok(())
    }

    /// Messages that the client did not even take. A producer that has ended is left out from then on.
    fn refused(&mut self, index: usize, count: u64, error: &SendError) -> Result<(), LoadError> {
        let ended = self.producers.get(index).and_then(Producer::ended);
        if ended.is_some() && self.producers.len() == 1 {
            return Err(LoadError(error.to_string()));
        }
        self.thread
            .meter
            .measure(|measured| measured.fail(|| error.to_string(), count));
        if self.load.exit_on_failure {
            self.failure.cancel();
        }
        if let Some(pacer) = self.pacers.get_mut(index) {
            pacer.on_sent(count);
        }
        if ended.is_none() {
            self.schedule(index);
        }
        Ok(())
    }

    /// Sends what has become due and was not looked at yet, as far as there is room: all the rest had none.
    fn send_rest(&mut self) {
        let now = self.thread.clock.now();
        for index in 0..self.pacers.len() {
            let sent = |generator: &Self| generator.pacers.get(index).map_or(0, Pacer::sent);
            while self.is_due(index, now) {
                let before = sent(self);
                // A producer that has ended takes nothing, and was told of already.
                if self.send(index, now).is_err() || sent(self) == before {
                    break;
                }
            }
        }
    }

    fn is_due(&self, index: usize, now: u64) -> bool {
        let pacer = self.pacers.get(index);
        self.load.rate.is_some() && pacer.is_some_and(|pacer| pacer.wanted(now, 1) > 0)
    }

    /// Counts what was due until `stopped` and never sent, with the time that it has waited.
    fn charge_unsent(&self, stopped: u64) {
        let now = self.thread.clock.now();
        self.thread.meter.measure(|measured| {
            for (due, count) in self.pacers.iter().flat_map(|pacer| pacer.unsent(stopped)) {
                measured.latencies.record(now.saturating_sub(due), count);
                measured.unsent += count;
            }
        });
    }

    fn schedule(&mut self, index: usize) {
        if let Some(due) = self.pacers.get(index).and_then(Pacer::next_due) {
            self.due.push(Reverse((due, index)));
        }
    }

    fn message(&mut self, index: usize) -> OutgoingMessage {
        let key = self.load.keys.map(|mode| {
            let number = match mode {
                KeyMode::AutoIncrement => self.pacers.get(index).map_or(0, Pacer::sent),
                KeyMode::Random => {
                    self.keys = scramble(self.keys);
                    self.keys
                }
            };
            MessageKey::Text(number.to_string())
        });
        OutgoingMessage {
            key,
            event_time: self.load.event_time.then(unix_millis),
            ..OutgoingMessage::new(self.payloads.next().unwrap_or_default())
        }
    }
}

/// Told by receipts that there is room again, where somebody waits for it.
#[derive(Debug, Default)]
struct Room {
    wanted: AtomicBool,
    made: Notify,
}

/// Takes the receipts of all producers of a thread.
#[derive(Debug)]
struct Receipts {
    clock: RunClock,
    meter: Meter,
    /// Of one message, in bytes.
    payload_len: u64,
    room: Arc<Room>,
    /// To be cancelled by the first failure, if that is to end the run.
    failure: Option<CancellationToken>,
    /// Whether what comes back without a receipt was given up by this program.
    given_up: AtomicBool,
}

impl ReceiptSink for Receipts {
    fn on_receipts(&self, receipts: &[Acknowledgement]) {
        let now = self.clock.now();
        let given_up = self.given_up.load(Ordering::Relaxed);
        let has_failure = self
            .meter
            .measure(|measured| record(receipts, now, self.payload_len, given_up, measured));
        if has_failure && let Some(failure) = &self.failure {
            failure.cancel();
        }
        if self.room.wanted.load(Ordering::Relaxed) {
            self.room.made.notify_one();
        }
    }
}

/// Measures what came back, and says whether a message failed.
fn record(
    receipts: &[Acknowledgement],
    now: u64,
    payload_len: u64,
    given_up: bool,
    measured: &mut Measured,
) -> bool {
    // Messages of one call have the same token at maximum rate.
    let mut run = (0, 0);
    let mut messages = 0;
    let mut has_failure = false;
    for receipt in receipts {
        match &receipt.result {
            Ok(_) => messages += 1,
            Err(SendError::Closed) if given_up => measured.unanswered += 1,
            Err(error) => {
                measured.fail(|| error.to_string(), 1);
                has_failure = true;
                continue;
            }
        }
        if run.0 == receipt.token {
            run.1 += 1;
        } else {
            let before = std::mem::replace(&mut run, (receipt.token, 1));
            measured
                .latencies
                .record(now.saturating_sub(before.0), before.1);
        }
    }
    measured.latencies.record(now.saturating_sub(run.0), run.1);
    measured.messages += messages;
    measured.bytes += messages * payload_len;
    has_failure
}

fn mean_len(payloads: &[Bytes]) -> u64 {
    let total: usize = payloads.iter().map(Bytes::len).sum();
    (total / payloads.len().max(1)) as u64
}

/// The next of a sequence of numbers that look random (SplitMix64).
fn scramble(last: u64) -> u64 {
    let mut z = last.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// The least that is waited for the next message: so much later it may be sent.
const WAIT_MIN: Duration = Duration::from_micros(50);
/// How often producers without room are looked at though no receipt came.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long receipts are waited for at the end.
const GRACE: Duration = Duration::from_secs(2);
/// How long producers of which everything was answered may take to close.
const CLOSE_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::MessageId;

    #[test]
    fn messages_are_given_out_evenly() {
        let shares: Vec<u64> = (0..4).map(|place| share(10, place, 4)).collect();
        assert_eq!(shares, [3, 3, 2, 2]);
    }

    fn receipt(token: u64, ok: bool) -> Acknowledgement {
        let id = MessageId::earliest();
        Acknowledgement {
            token,
            result: if ok { Ok(id) } else { Err(SendError::Closed) },
        }
    }

    #[test]
    fn every_receipt_is_recorded_with_its_own_latency() {
        let mut measured = Measured::default();
        let receipts = [
            receipt(1_000_000, true),
            receipt(1_000_000, true),
            receipt(5_000_000, false),
            receipt(3_000_000, true),
        ];
        assert!(record(&receipts, 11_000_000, 100, false, &mut measured));
        assert_eq!(
            (measured.messages, measured.bytes, measured.failed()),
            (3, 300, 1)
        );
        let summary = measured.latencies.summary();
        assert_eq!(measured.latencies.count(), 3);
        assert!((summary.mean_ms - 28.0 / 3.0).abs() < 0.02, "{summary:?}");
        assert!((summary.p50_ms - 10.0).abs() < 0.02, "{summary:?}");
    }

    #[test]
    fn what_was_given_up_counts_with_the_time_that_it_waited() {
        let mut measured = Measured::default();
        let receipts = [receipt(1_000_000, false), receipt(1_000_000, false)];
        assert!(!record(&receipts, 9_000_000, 100, true, &mut measured));
        assert_eq!((measured.messages, measured.failed()), (0, 0));
        assert_eq!((measured.unanswered, measured.latencies.count()), (2, 2));
        assert!((measured.latencies.summary().max_ms - 8.0).abs() < 0.02);
    }

    #[test]
    fn random_keys_differ() {
        let first = scramble(0);
        assert_ne!(first, scramble(first));
    }
}
