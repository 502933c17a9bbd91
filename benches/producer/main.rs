//! What sending costs: messages per second of processor time of a process that does nothing but send.
//!
//! `cargo bench --bench producer -- [--seconds N] [--size BYTES] [--calls N]`. The receiver is a process of its own: it
//! answers what a producer asks, acknowledges every SEND and looks at nothing else. The processor time is that of the
//! sending process, the kernel's part of writing and reading included. Without `--bench` (as in `cargo test --benches`) it
//! runs for a moment.

#![expect(
    clippy::print_stdout,
    reason = "figures are the product of a benchmark"
)]

mod receiver;

use std::{
    io::BufRead,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Parser;
use pulsegate::{
    client::{
        OutgoingMessage, Producer, ProducerOptions, PulsarClient,
        producer::{Acknowledgement, BatchingOptions, ReceiptSink, Tokens},
    },
    naming::TopicName,
};

#[derive(Debug, Parser)]
struct Arguments {
    /// Length of each measurement.
    #[arg(long)]
    seconds: Option<f64>,
    /// Payload of a message in bytes; several are measured by default.
    #[arg(long)]
    size: Vec<usize>,
    /// Messages that are enqueued at a time.
    #[arg(long, default_value_t = 128)]
    at_a_time: usize,
    /// Messages without receipt.
    #[arg(long, default_value_t = 4000)]
    max_pending: usize,
    /// The receiver.
    #[arg(long, hide = true)]
    receive: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    if arguments.receive {
        return receiver::run();
    }
    let seconds = arguments
        .seconds
        .unwrap_or(if arguments.bench { 4.0 } else { 0.05 });
    let sizes = if arguments.size.is_empty() {
        vec![100, 1024]
    } else {
        arguments.size.clone()
    };
    let mut receiver = Receiver::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    println!(
        "{:>6} {:>10} {:>12} {:>16} {:>8}",
        "bytes", "way", "messages/s", "per cpu second", "cpu"
    );
    for size in sizes {
        for way in [Way::Many, Way::ManyBatched, Way::OneByOne] {
            let url = receiver.url.parse().expect("a URL");
            let client = PulsarClient::new(url, Default::default());
            let measured = runtime.block_on(measure(&client, way, size, seconds, &arguments));
            client.close();
            let (messages, wall, cpu) = measured;
            println!(
                "{size:>6} {:>10} {:>12.0} {:>16.0} {:>7.2}s",
                way.name(),
                messages / wall,
                messages / cpu.max(0.001),
                cpu,
            );
        }
    }
    receiver.child.kill().expect("the receiver ran until now");
    receiver.child.wait().expect("a child");
}

/// How messages are enqueued.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// Many in one call, each an entry.
    Many,
    /// Many in one call, in batches.
    ManyBatched,
    /// One call each, a future each, each an entry.
    OneByOne,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Many => "many",
            Self::ManyBatched => "batched",
            Self::OneByOne => "one by one",
        }
    }
}

#[derive(Default)]
struct Count(AtomicU64);

impl ReceiptSink for Count {
    fn on_receipts(&self, receipts: &[Acknowledgement]) {
        assert!(receipts.iter().all(|receipt| receipt.result.is_ok()));
        self.0.fetch_add(receipts.len() as u64, Ordering::Relaxed);
    }
}

/// Messages, and seconds by the clock and of processor time.
async fn measure(
    client: &PulsarClient,
    way: Way,
    size: usize,
    seconds: f64,
    arguments: &Arguments,
) -> (f64, f64, f64) {
    let count = Arc::new(Count::default());
    let options = ProducerOptions {
        batching: matches!(way, Way::ManyBatched).then(BatchingOptions::default),
        max_pending: arguments.max_pending,
        ..ProducerOptions::default()
    };
    let topic = TopicName::parse("bench").expect("a name");
    let sink = Arc::clone(&count) as Arc<dyn ReceiptSink>;
    let producer = client
        .producer_with_sink(&topic, options, sink)
        .await
        .expect("the receiver takes every producer");
    let message = OutgoingMessage::new(vec![7_u8; size]);
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let end = started + Duration::from_secs_f64(seconds);
    let messages = match way {
        Way::OneByOne => one_by_one(&producer, &message, end).await,
        Way::Many | Way::ManyBatched => {
            many(&producer, &message, end, arguments.at_a_time).await;
            count.0.load(Ordering::Relaxed)
        }
    };
    let measured = (
        messages as f64,
        started.elapsed().as_secs_f64(),
        cpu_seconds() - cpu,
    );
    producer.close().await.expect("the receiver answers");
    measured
}

async fn many(producer: &Producer, message: &OutgoingMessage, end: Instant, at_a_time: usize) {
    let tokens = Tokens { first: 0, step: 0 };
    while Instant::now() < end {
        let taken = producer.enqueue_many(message, at_a_time, tokens);
        if taken.expect("nothing fails") < at_a_time {
            producer.ready().await.expect("nothing fails");
        }
    }
    producer.flush().await.expect("nothing fails");
}

async fn one_by_one(producer: &Producer, message: &OutgoingMessage, end: Instant) -> u64 {
    let mut sent = 0;
    let mut receipts = std::collections::VecDeque::new();
    while sent % 64 != 0 || Instant::now() < end {
        if receipts.len() >= 1000 {
            for receipt in receipts.drain(..500) {
                let receipt: pulsegate::client::Receipt = receipt;
                receipt.await.expect("nothing fails");
            }
        }
        receipts.push_back(
            producer
                .enqueue(message.clone())
                .await
                .expect("nothing fails"),
        );
        sent += 1;
    }
    for receipt in receipts {
        receipt.await.expect("nothing fails");
    }
    sent
}

struct Receiver {
    child: Child,
    url: String,
}

impl Receiver {
    fn start() -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .arg("--receive")
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let mut url = String::new();
        let output = child.stdout.take().expect("it is piped");
        std::io::BufReader::new(output)
            .read_line(&mut url)
            .expect("the receiver names its address");
        Self {
            child,
            url: url.trim().to_owned(),
        }
    }
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let (_, fields) = text.rsplit_once(')').expect("the form of the file");
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<f64>().expect("a number"))
        .sum();
    ticks / TICKS_PER_SECOND
}

/// `USER_HZ`, which is fixed on Linux.
const TICKS_PER_SECOND: f64 = 100.0;
