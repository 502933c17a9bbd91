//! `pulsegate perf produce`.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;

use super::load_args::{LoadArgs, LoadDefaults, LoadSettings, MESSAGES_MAX, is_count};
use crate::cli::files;
use crate::cli::problems::Problems;
use crate::client::producer::{
    BatchingOptions, CompressionType, ProducerAccessMode, ProducerOptions,
};
use crate::perf::produce::{KeyMode, ProduceLoad};
use crate::perf::report::{LatencyFrom, LoadKind};

/// Arguments of `pulsegate perf produce`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct ProduceArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Messages per second of all producers; 0 is as many as possible [default: 100].
    #[arg(short = 'r', long, value_name = "N")]
    rate: Option<String>,
    /// Bytes of each message, at most 64 MiB [default: 1024].
    #[arg(short = 's', long, value_name = "BYTES")]
    size: Option<String>,
    /// Producers on each topic, of each thread [default: 1].
    #[arg(short = 'n', long, value_name = "N")]
    num_producers: Option<String>,
    /// Messages of each producer without receipt; 0 is as many as seem useful [default: 0].
    #[arg(short = 'o', long, value_name = "N")]
    max_outstanding: Option<String>,
    /// Messages in all; 0 is without end [default: 0].
    #[arg(short = 'm', long, value_name = "N")]
    num_messages: Option<String>,
    /// How long a message may wait for others in its batch [default: 1].
    #[arg(short = 'b', long, value_name = "MILLISECONDS")]
    batch_time_window: Option<String>,
    /// Most messages of a batch (-bm) [default: 1000].
    #[arg(long, value_name = "N")]
    batch_max_messages: Option<String>,
    /// Most bytes of a batch (-bb) [default: 4194304].
    #[arg(long, value_name = "BYTES")]
    batch_max_bytes: Option<String>,
    /// Send every message alone (-db).
    #[arg(long)]
    disable_batching: bool,
    /// Split messages that are larger than the broker takes (-ch).
    #[arg(long)]
    chunking: bool,
    /// NONE, LZ4, ZLIB, ZSTD or SNAPPY [default: NONE].
    #[arg(short = 'z', long, value_name = "CODEC")]
    compression: Option<String>,
    /// Take the payloads from the lines of this file, in turn.
    #[arg(short = 'f', long, value_name = "FILE")]
    payload_file: Option<String>,
    /// Shared, Exclusive, ExclusiveWithFencing or WaitForExclusive (-am) [default: Shared].
    #[arg(long, value_name = "MODE")]
    access_mode: Option<String>,
    /// Name of the producers: only one of a topic can have it (-pn).
    #[arg(long, value_name = "NAME")]
    producer_name: Option<String>,
    /// Give messages keys: autoIncrement or random (-mk).
    #[arg(long, value_name = "MODE")]
    message_key_generation_mode: Option<String>,
    /// Give messages an event time (-set).
    #[arg(long)]
    set_event_time: bool,
    /// End the test when a message fails (-ef).
    #[arg(long)]
    exit_on_failure: bool,
    /// How long a message may wait for its receipt; 0 is for ever [default: 0].
    #[arg(long, value_name = "MILLISECONDS")]
    send_timeout: Option<String>,
    /// What is between TOPIC and its number [default: -].
    #[arg(long, value_name = "TEXT")]
    separator: Option<String>,
}

impl ProduceArgs {
    pub(super) fn plan(
        &self,
        terminal: bool,
        problems: &mut Problems,
    ) -> (LoadSettings, ProduceLoad) {
        let rate = problems.number("--rate", self.rate.as_deref(), RATE_MAX);
        let rate = Some(rate.unwrap_or(100.0)).filter(|rate| *rate > 0.0);
        let defaults = LoadDefaults {
            kind: LoadKind::Produce,
            latency_from: match rate {
                Some(_) => LatencyFrom::IntendedSend,
                None => LatencyFrom::SendCall,
            },
            warm_up: Duration::from_secs(1),
            terminal,
        };
        let separator = self.separator.as_deref().unwrap_or("-");
        let settings = self.load.settings(separator, defaults, problems);
        let payloads = self.payloads(problems);
        let largest = payloads.iter().map(Bytes::len).max().unwrap_or_default();
        let producers = problems.count(
            "--num-producers",
            self.num_producers.as_deref(),
            1..=PRODUCERS_MAX,
        );
        let messages = self.num_messages.as_deref();
        let load = ProduceLoad {
            service_url: settings.service_url.clone(),
            client: settings.client.clone(),
            topics: settings.topics.clone(),
            producers_per_topic: producers.unwrap_or(1),
            producer: self.producer(largest, problems),
            rate,
            messages: problems.limit("--num-messages", messages, MESSAGES_MAX),
            payloads,
            keys: self.message_key_generation_mode.as_deref().map(|mode| {
                let modes = [
                    ("autoIncrement", KeyMode::AutoIncrement),
                    ("random", KeyMode::Random),
                ];
                let mode = problems.choice("--message-key-generation-mode", Some(mode), &modes);
                mode.unwrap_or(KeyMode::Random)
            }),
            event_time: self.set_event_time,
            exit_on_failure: self.exit_on_failure,
        };
        (settings, load)
    }

    /// Whether the load ends by itself.
    pub(super) fn has_message_count(&self) -> bool {
        is_count(self.num_messages.as_deref())
    }

    fn producer(&self, largest: usize, problems: &mut Problems) -> ProducerOptions {
        let window = problems.count(
            "--max-outstanding",
            self.max_outstanding.as_deref(),
            0..=OUTSTANDING_MAX,
        );
        let send_timeout = problems.milliseconds("--send-timeout", self.send_timeout.as_deref());
        let access_mode =
            problems.choice("--access-mode", self.access_mode.as_deref(), ACCESS_MODES);
        let compression = problems.choice("--compression", self.compression.as_deref(), CODECS);
        let batching = self.batching(problems);
        ProducerOptions {
            name: self.producer_name.clone(),
            access_mode: access_mode.unwrap_or(ProducerAccessMode::Shared),
            batching: batching.filter(|_| !self.disable_batching),
            compression: compression.unwrap_or(CompressionType::None),
            compression_min_size: 0,
            chunking: self.chunking,
            max_pending: match window.unwrap_or(0) {
                0 => (WINDOW_BYTES / largest.max(1)).clamp(1, WINDOW_MAX),
                given => given,
            },
            max_pending_bytes: usize::MAX,
            send_timeout: send_timeout.filter(|time| !time.is_zero()),
            ..ProducerOptions::default()
        }
    }

    fn batching(&self, problems: &mut Problems) -> Option<BatchingOptions> {
        let max_delay =
            problems.milliseconds("--batch-time-window", self.batch_time_window.as_deref());
        let max_messages = problems.count(
            "--batch-max-messages",
            self.batch_max_messages.as_deref(),
            1..=OUTSTANDING_MAX,
        );
        let max_bytes = problems.count(
            "--batch-max-bytes",
            self.batch_max_bytes.as_deref(),
            1..=SIZE_MAX,
        );
        Some(BatchingOptions {
            max_messages: u32::try_from(max_messages.unwrap_or(1000)).unwrap_or(u32::MAX),
            max_bytes: max_bytes.unwrap_or(4 << 20),
            // As the real tool: no time to wait is a batch for each message.
            max_delay: max_delay
                .unwrap_or(Duration::from_millis(1))
                .max(Duration::from_micros(1)),
            key_based: false,
        })
    }

    fn payloads(&self, problems: &mut Problems) -> Vec<Bytes> {
        let size = problems.count("--size", self.size.as_deref(), 0..=SIZE_MAX);
        let Some(path) = &self.payload_file else {
            return vec![Bytes::from(vec![b'x'; size.unwrap_or(1024)])];
        };
        let text = match files::read(path) {
            Ok(text) => Bytes::from(text),
            Err(error) => {
                problems.add("--payload-file", format_args!("{path}: {error}"));
                return Vec::new();
            }
        };
        let lines = text.split(|byte| *byte == b'\n');
        let payloads: Vec<Bytes> = lines
            .filter(|line| !line.is_empty())
            .map(|line| text.slice_ref(line))
            .collect();
        if payloads.iter().any(|line| line.len() > SIZE_MAX) {
            problems.add(
                "--payload-file",
                format_args!("{path} has a line of more than {SIZE_MAX} bytes"),
            );
        }
        if payloads.is_empty() {
            problems.add(
                "--payload-file",
                format_args!("{path} has no line with text"),
            );
        }
        payloads
    }
}

const ACCESS_MODES: &[(&str, ProducerAccessMode)] = &[
    ("Shared", ProducerAccessMode::Shared),
    ("Exclusive", ProducerAccessMode::Exclusive),
    (
        "ExclusiveWithFencing",
        ProducerAccessMode::ExclusiveWithFencing,
    ),
    ("WaitForExclusive", ProducerAccessMode::WaitForExclusive),
];
const CODECS: &[(&str, CompressionType)] = &[
    ("NONE", CompressionType::None),
    ("LZ4", CompressionType::Lz4),
    ("ZLIB", CompressionType::Zlib),
    ("ZSTD", CompressionType::Zstd),
    ("SNAPPY", CompressionType::Snappy),
];
/// Messages per second.
const RATE_MAX: f64 = 1e9;
/// Bytes of one message: far above what brokers take, unless it is sent in chunks.
const SIZE_MAX: usize = 64 << 20;
/// Producers on one topic, of one thread.
const PRODUCERS_MAX: usize = 100_000;
/// Messages of one producer without receipt.
const OUTSTANDING_MAX: usize = 10_000_000;
/// Without a window of the user's, so many bytes may be on their way, but not more than so many messages: enough for every
/// connection, and not more than caches hold.
const WINDOW_BYTES: usize = 4 << 20;
const WINDOW_MAX: usize = 10_000;

const EXAMPLES: &str = "\
Examples:
  pulsegate perf produce my-topic
  pulsegate perf produce -u pulsar://broker:6650 -r 50000 -s 1024 -time 60 --json my-topic
  pulsegate perf produce -r 0 -db -n 4 -t 10 --watch-pid 4711 my-topic

Flags have the names of pulsar-perf produce, its short ones of several letters (-time, -db, -bm) included. Different from it:
  -r 0        sends as fast as possible
  -o 0        keeps up to 4 MiB of messages on their way, at most 10,000
  latency     counts from the time at which the rate wants a message sent, so that a slow broker cannot hide its delays;
              at maximum rate from the call that sent it
  the end     waits up to 2 s for receipts; what has none then is reported as unanswered, with the time that it waited
  --json, --watch-pid

Exit codes:
  0    the test ended, and every message was answered
  1    messages failed or were never answered, or the test could not begin
  64   wrong flags
  130  ended at once by a second signal, without a report";
