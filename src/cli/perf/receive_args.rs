//! `pulsegate perf consume` and `pulsegate perf read`.

use std::time::Duration;

use clap::Args;

use super::load_args::{LoadArgs, LoadDefaults, LoadSettings, MESSAGES_MAX, is_count};
use crate::cli::problems::Problems;
use crate::client::MessageId;
use crate::client::consumer::{AckGrouping, ConsumerOptions, InitialPosition, SubscriptionType};
use crate::client::reader::ReaderOptions;
use crate::perf::consume::{ConsumeLoad, SourceOptions};
use crate::perf::report::{LatencyFrom, LoadKind};

/// Arguments of `pulsegate perf consume`.
#[derive(Debug, Args)]
#[command(after_long_help = CONSUME_EXAMPLES)]
pub(super) struct ConsumeArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Most messages per second of all consumers, as slow consumers have it; 0 is no limit [default: 0].
    #[arg(short = 'r', long, value_name = "N")]
    rate: Option<String>,
    /// Consumers of each subscription, of each thread [default: 1].
    #[arg(short = 'n', long, value_name = "N")]
    num_consumers: Option<String>,
    /// Subscriptions of each topic (-ns) [default: 1].
    #[arg(long, value_name = "N")]
    num_subscriptions: Option<String>,
    /// Their names, or the one that the others are named after: NAME-0, NAME-1, ... (-ss) [default: sub].
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    subscriptions: Vec<String>,
    /// Exclusive, Shared, Failover or Key_Shared (-st) [default: Exclusive].
    #[arg(long, value_name = "TYPE")]
    subscription_type: Option<String>,
    /// Where a new subscription begins: Latest or Earliest (-sp) [default: Latest].
    #[arg(long, value_name = "POSITION")]
    subscription_position: Option<String>,
    /// Messages that a broker may send ahead [default: 1000].
    #[arg(short = 'q', long, value_name = "N")]
    receiver_queue_size: Option<String>,
    /// How long acknowledgements are collected; 0 sends each at once [default: 100].
    #[arg(long, value_name = "MILLISECONDS")]
    acks_delay_millis: Option<String>,
    /// Acknowledge single messages of a batch.
    #[arg(long)]
    batch_index_ack: bool,
    /// Replicate the state of the subscriptions (-rs).
    #[arg(long)]
    replicated: bool,
    /// Messages in all; 0 is without end [default: 0].
    #[arg(short = 'm', long, value_name = "N")]
    num_messages: Option<String>,
}

/// Arguments of `pulsegate perf read`.
#[derive(Debug, Args)]
#[command(after_long_help = READ_EXAMPLES)]
pub(super) struct ReadArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Most messages per second of all readers; 0 is no limit [default: 0].
    #[arg(short = 'r', long, value_name = "N")]
    rate: Option<String>,
    /// Where to begin: earliest, latest or LEDGER:ENTRY [default: earliest].
    #[arg(short = 'm', long, value_name = "POSITION")]
    start_message_id: Option<String>,
    /// Messages that a broker may send ahead [default: 1000].
    #[arg(short = 'q', long, value_name = "N")]
    receiver_queue_size: Option<String>,
    /// Messages in all; 0 is without end [default: 0].
    #[arg(short = 'n', long, value_name = "N")]
    num_messages: Option<String>,
}

impl ConsumeArgs {
    pub(super) fn plan(
        &self,
        terminal: bool,
        problems: &mut Problems,
    ) -> (LoadSettings, ConsumeLoad) {
        let settings = self
            .load
            .settings("-", defaults(LoadKind::Consume, terminal), problems);
        let consumers = problems.count(
            "--num-consumers",
            self.num_consumers.as_deref(),
            1..=CONSUMERS_MAX,
        );
        let consumers = consumers.unwrap_or(1);
        let options = self.consumer(problems);
        if consumers > 1 && options.subscription_type == SubscriptionType::Exclusive {
            problems.add(
                "--num-consumers",
                "an Exclusive subscription has one consumer; see --subscription-type",
            );
        }
        let source = SourceOptions::Consumers {
            options,
            subscriptions: self.subscriptions(problems),
            consumers,
        };
        let rate = self.rate.as_deref();
        let messages = problems.limit("--num-messages", self.num_messages.as_deref(), MESSAGES_MAX);
        let load = load(&settings, source, rate, messages, problems);
        (settings, load)
    }

    /// Whether the load ends by itself.
    pub(super) fn has_message_count(&self) -> bool {
        is_count(self.num_messages.as_deref())
    }

    fn consumer(&self, problems: &mut Problems) -> ConsumerOptions {
        let delay = problems.milliseconds("--acks-delay-millis", self.acks_delay_millis.as_deref());
        let delay = delay.unwrap_or(Duration::from_millis(100));
        let subscription_type = problems.choice(
            "--subscription-type",
            self.subscription_type.as_deref(),
            TYPES,
        );
        let initial_position = problems.choice(
            "--subscription-position",
            self.subscription_position.as_deref(),
            POSITIONS,
        );
        ConsumerOptions {
            subscription_type: subscription_type.unwrap_or(SubscriptionType::Exclusive),
            initial_position: initial_position.unwrap_or(InitialPosition::Latest),
            receiver_queue_size: queue(self.receiver_queue_size.as_deref(), problems),
            ack_grouping: (delay > Duration::ZERO).then(|| AckGrouping {
                max_delay: delay,
                ..AckGrouping::default()
            }),
            batch_index_ack: self.batch_index_ack,
            replicate_subscription_state: self.replicated.then_some(true),
            ..ConsumerOptions::new("")
        }
    }

    /// The names given, or as many as are wanted, named after the one given.
    fn subscriptions(&self, problems: &mut Problems) -> Vec<String> {
        let count = problems.count(
            "--num-subscriptions",
            self.num_subscriptions.as_deref(),
            1..=SUBSCRIPTIONS_MAX,
        );
        let is_right = count.is_some() || self.num_subscriptions.is_none();
        let count = count.unwrap_or(1);
        if self.subscriptions.iter().any(|name| name.trim().is_empty()) {
            problems.add("--subscriptions", "a subscription has no name");
        }
        let names = match self.subscriptions.as_slice() {
            [] => numbered(DEFAULT_SUBSCRIPTION, count),
            [one] => numbered(one, count),
            several => several.to_vec(),
        };
        if names.len() != count && is_right {
            problems.add(
                "--num-subscriptions",
                format_args!("{count} are wanted, {} are named", names.len()),
            );
        }
        names
    }
}

impl ReadArgs {
    pub(super) fn plan(
        &self,
        terminal: bool,
        problems: &mut Problems,
    ) -> (LoadSettings, ConsumeLoad) {
        let settings = self
            .load
            .settings("-", defaults(LoadKind::Read, terminal), problems);
        let source = SourceOptions::Readers(ReaderOptions {
            receiver_queue_size: queue(self.receiver_queue_size.as_deref(), problems),
            ..ReaderOptions::new(self.start(problems))
        });
        let rate = self.rate.as_deref();
        let messages = problems.limit("--num-messages", self.num_messages.as_deref(), MESSAGES_MAX);
        let load = load(&settings, source, rate, messages, problems);
        (settings, load)
    }

    /// Whether the load ends by itself.
    pub(super) fn has_message_count(&self) -> bool {
        is_count(self.num_messages.as_deref())
    }

    fn start(&self, problems: &mut Problems) -> MessageId {
        let text = self.start_message_id.as_deref().unwrap_or("earliest");
        let position = text.split_once(':');
        let position =
            position.and_then(|(ledger, entry)| Some((ledger.parse().ok()?, entry.parse().ok()?)));
        match (text, position) {
            ("earliest", _) => MessageId::earliest(),
            ("latest", _) => MessageId::latest(),
            (_, Some((ledger, entry))) => MessageId::of_entry(ledger, entry),
            _ => {
                problems.add(
                    "--start-message-id",
                    format_args!("{text:?} is none of earliest, latest, LEDGER:ENTRY"),
                );
                MessageId::earliest()
            }
        }
    }
}

fn defaults(kind: LoadKind, terminal: bool) -> LoadDefaults {
    LoadDefaults {
        kind,
        latency_from: LatencyFrom::PublishTime,
        warm_up: Duration::ZERO,
        terminal,
    }
}

fn load(
    settings: &LoadSettings,
    source: SourceOptions,
    rate: Option<&str>,
    messages: Option<u64>,
    problems: &mut Problems,
) -> ConsumeLoad {
    let rate = problems.number("--rate", rate, RATE_MAX);
    ConsumeLoad {
        service_url: settings.service_url.clone(),
        client: settings.client.clone(),
        topics: settings.topics.clone(),
        source,
        rate: rate.filter(|rate| *rate > 0.0),
        messages,
    }
}

fn queue(size: Option<&str>, problems: &mut Problems) -> u32 {
    let size = problems.count("--receiver-queue-size", size, 0..=QUEUE_MAX);
    u32::try_from(size.unwrap_or(1000)).unwrap_or(u32::MAX)
}

fn numbered(name: &str, count: usize) -> Vec<String> {
    if count == 1 {
        return vec![name.to_owned()];
    }
    (0..count)
        .map(|number| format!("{name}-{number}"))
        .collect()
}

const TYPES: &[(&str, SubscriptionType)] = &[
    ("Exclusive", SubscriptionType::Exclusive),
    ("Shared", SubscriptionType::Shared),
    ("Failover", SubscriptionType::Failover),
    ("Key_Shared", SubscriptionType::KeyShared),
];
const POSITIONS: &[(&str, InitialPosition)] = &[
    ("Latest", InitialPosition::Latest),
    ("Earliest", InitialPosition::Earliest),
];
const DEFAULT_SUBSCRIPTION: &str = "sub";
/// Messages per second.
const RATE_MAX: f64 = 1e9;
const QUEUE_MAX: usize = 1_000_000;
const SUBSCRIPTIONS_MAX: usize = 100_000;
/// Consumers of one subscription, of one thread.
const CONSUMERS_MAX: usize = 100_000;

const CONSUME_EXAMPLES: &str = "\
Examples:
  pulsegate perf consume my-topic
  pulsegate perf consume -u pulsar://broker:6650 -st Shared -n 4 -time 60 --json my-topic

Flags have the names of pulsar-perf consume, its short ones of several letters (-st, -ss, -time) included. Latency is end to
end: from the publish time in the message, in milliseconds of the publisher's clock, to its arrival.

Exit codes:
  0    the test ended
  1    a consumer failed, or the test could not begin
  64   wrong flags
  130  ended at once by a second signal, without a report";
const READ_EXAMPLES: &str = "\
Examples:
  pulsegate perf read my-topic
  pulsegate perf read -u pulsar://broker:6650 -m latest -time 60 --json my-topic

Flags have the names of pulsar-perf read. As there, -m is where to begin and -n how many messages to read. Latency is end to
end: from the publish time in the message, in milliseconds of the publisher's clock, to its arrival.

Exit codes:
  0    the test ended
  1    a reader failed, or the test could not begin
  64   wrong flags
  130  ended at once by a second signal, without a report";
