//! The flags that all load generators have, with the names of `pulsar-perf`.

use std::time::Duration;

use clap::Args;

use crate::cli::client_args::{ClientArgs, ClientArgsError, ClientTarget};
use crate::cli::problems::{Problems, SECONDS_MAX};
use crate::client::ClientOptions;
use crate::naming::{ServiceUrl, TopicName};
use crate::perf::report::{LatencyFrom, LoadKind};
use crate::perf::run::RunPlan;
use crate::perf::watch::WatchedProcess;

/// Which cluster, for how long, and what is told.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    /// The topic; with several topics either all of them, or one that the others are named after: TOPIC-0, TOPIC-1, ...
    #[arg(value_name = "TOPIC")]
    topics: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Number of topics, at most 100,000 [default: 1].
    #[arg(
        short = 't',
        long = "num-topics",
        visible_alias = "num-topic",
        value_name = "N"
    )]
    num_topics: Option<String>,
    /// Connections to one broker, at most 1,000 [default: 1].
    #[arg(short = 'c', long, value_name = "N")]
    max_connections: Option<String>,
    /// Threads, each with connections of its own, at most 1,000 (-threads) [default: 1].
    #[arg(long = "num-test-threads", visible_alias = "threads", value_name = "N")]
    threads: Option<String>,
    /// How often progress is told; 0 is never [default: 1 on a terminal, else 10].
    #[arg(short = 'i', long, value_name = "SECONDS")]
    stats_interval_seconds: Option<String>,
    /// Length of the test, warm-up included; 0 is without end (-time) [default: 0].
    #[arg(long, value_name = "SECONDS")]
    test_duration: Option<String>,
    /// Time at the start that is not reported [default: 1 for produce, else 0].
    #[arg(long, value_name = "SECONDS")]
    warmup_time: Option<String>,
    /// Report CPU time and memory of this process as well; may be repeated.
    #[arg(long, value_name = "PID")]
    watch_pid: Vec<String>,
    /// End with one JSON document on standard output.
    #[arg(long)]
    json: bool,
}

/// What the common flags say.
#[derive(Debug, Clone)]
pub(super) struct LoadSettings {
    pub(super) service_url: ServiceUrl,
    pub(super) client: ClientOptions,
    pub(super) topics: Vec<TopicName>,
    pub(super) plan: RunPlan,
    pub(super) json: bool,
}

/// What differs between the generators.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadDefaults {
    pub(super) kind: LoadKind,
    pub(super) latency_from: LatencyFrom,
    pub(super) warm_up: Duration,
    /// Whether progress goes to a terminal.
    pub(super) terminal: bool,
}

impl LoadArgs {
    pub(super) fn settings(
        &self,
        separator: &str,
        defaults: LoadDefaults,
        problems: &mut Problems,
    ) -> LoadSettings {
        let duration = problems.limit(
            "--test-duration",
            self.test_duration.as_deref(),
            u64::from(SECONDS_MAX),
        );
        let duration = duration.map(Duration::from_secs);
        let warm_up = problems.seconds("--warmup-time", self.warmup_time.as_deref());
        let warm_up = warm_up.unwrap_or(defaults.warm_up);
        if duration.is_some_and(|duration| duration <= warm_up) {
            problems.add("--test-duration", "nothing is left after the warm-up");
        }
        let stats_interval = problems
            .seconds(
                "--stats-interval-seconds",
                self.stats_interval_seconds.as_deref(),
            )
            .unwrap_or(Duration::from_secs(if defaults.terminal { 1 } else { 10 }));
        let threads = problems.count(
            "--num-test-threads",
            self.threads.as_deref(),
            1..=THREADS_MAX,
        );
        let plan = RunPlan {
            kind: defaults.kind,
            latency_from: defaults.latency_from,
            threads: threads.unwrap_or(1),
            warm_up,
            duration,
            stats_interval: Some(stats_interval).filter(|interval| !interval.is_zero()),
            watch: self.watched(problems),
        };
        let target = self.target(problems);
        let connections = problems.count(
            "--max-connections",
            self.max_connections.as_deref(),
            1..=CONNECTIONS_MAX,
        );
        let client = ClientOptions {
            connections_per_broker: connections.unwrap_or(1),
            ..target.options
        };
        LoadSettings {
            service_url: target.service_url,
            client,
            topics: self.topics(separator, problems),
            plan,
            json: self.json,
        }
    }

    /// The cluster and the way in; a stand-in when something is wrong, which is noted.
    fn target(&self, problems: &mut Problems) -> ClientTarget {
        let error = match self.client.target() {
            Ok(target) => {
                for warning in &target.warnings {
                    super::complain(&format_args!("warning: {warning}"));
                }
                return target;
            }
            Err(error) => error,
        };
        match error {
            ClientArgsError::Settings(errors) => {
                for problem in &errors.problems {
                    problems.note(problem.to_string());
                }
            }
            other @ ClientArgsError::TlsFiles(_) => problems.note(other.to_string()),
        }
        ClientTarget {
            service_url: STAND_IN.parse().expect("a well-formed constant"),
            options: ClientOptions::default(),
            warnings: Vec::new(),
        }
    }

    fn watched(&self, problems: &mut Problems) -> Vec<WatchedProcess> {
        let mut watched = Vec::new();
        for text in &self.watch_pid {
            match text.parse().map(WatchedProcess::new) {
                Ok(Ok(process)) => watched.push(process),
                Ok(Err(error)) => problems.add("--watch-pid", error),
                Err(_) => problems.add("--watch-pid", format_args!("{text:?} is no process id")),
            }
        }
        watched
    }

    /// As many topics as are wanted: those given, or names made of the one given.
    fn topics(&self, separator: &str, problems: &mut Problems) -> Vec<TopicName> {
        let count = problems.count("--num-topics", self.num_topics.as_deref(), 1..=TOPICS_MAX);
        let is_right = count.is_some() || self.num_topics.is_none();
        let count = count.unwrap_or(1);
        let names: Vec<String> = match self.topics.as_slice() {
            [] => {
                problems.add("TOPIC", "at least one topic is needed");
                return Vec::new();
            }
            [one] if count > 1 => (0..count)
                .map(|number| format!("{one}{separator}{number}"))
                .collect(),
            several => several.to_vec(),
        };
        if names.len() != count && is_right {
            problems.add(
                "--num-topics",
                format_args!("{count} topics are wanted, {} are given", names.len()),
            );
        }
        let mut topics = Vec::new();
        for name in &names {
            match TopicName::parse(name) {
                Ok(topic) => topics.push(topic),
                Err(error) => problems.add("TOPIC", error),
            }
        }
        topics
    }
}

/// Whether a number of messages is given, so that the load ends by itself.
pub(super) fn is_count(messages: Option<&str>) -> bool {
    messages.is_some_and(|count| count.trim().parse::<u64>().is_ok_and(|count| count > 0))
}

/// Nothing connects to it: wrong flags end the program.
const STAND_IN: &str = "pulsar://localhost:6650";
/// More topics than one process can have producers on.
const TOPICS_MAX: usize = 100_000;
/// Messages of a run: a number of which 64 bits with a sign hold any.
pub(super) const MESSAGES_MAX: u64 = i64::MAX.cast_unsigned();
/// More threads than help on any machine.
pub(super) const THREADS_MAX: usize = 1000;
const CONNECTIONS_MAX: usize = 1000;
