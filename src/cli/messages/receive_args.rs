//! The arguments of `pulsegate consume` and `pulsegate read`, and what they mean.

use clap::Args;

use regex::Regex;

use super::{CommonArgs, produce_args::topic, text::Style};
use crate::{
    cli::problems::{Problems, WrongArguments},
    client::{
        MessageId,
        consumer::{TopicMode, Topics},
    },
    naming::{NameError, NamespaceName, TopicName},
};

/// Arguments of `consume`; names and meaning are those of `pulsar-client consume`.
#[derive(Debug, Args)]
#[command(after_long_help = CONSUME_EXAMPLES)]
pub struct ConsumeArgs {
    /// The topic, or with --regex a pattern of topics.
    topic: Option<String>,
    /// The subscription.
    #[arg(short, long, value_name = "NAME", allow_hyphen_values = true)]
    subscription_name: Option<String>,
    /// Exclusive, Shared, Failover or Key_Shared (default Exclusive).
    #[arg(short = 't', long, value_name = "TYPE")]
    subscription_type: Option<String>,
    /// Durable or NonDurable (default Durable).
    #[arg(short = 'm', long, value_name = "MODE")]
    subscription_mode: Option<String>,
    /// Where a new subscription begins: Latest or Earliest (default Latest).
    #[arg(short = 'p', long, value_name = "POSITION")]
    subscription_position: Option<String>,
    /// The topic is a regular expression: persistent://tenant/namespace/EXPRESSION.
    #[arg(long)]
    regex: bool,
    /// [-rs] Carry the subscription's position to other clusters.
    #[arg(long)]
    replicated: bool,
    /// [-stp] Begin with messages published at this time, in milliseconds since 1970.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    start_timestamp: Option<String>,
    /// [-etp] End before messages published after this time, in milliseconds since 1970.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    end_timestamp: Option<String>,
    #[command(flatten)]
    receive: ReceiveArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

/// Arguments of `read`; names and meaning are those of `pulsar-client read`.
#[derive(Debug, Args)]
#[command(after_long_help = READ_EXAMPLES)]
pub struct ReadArgs {
    /// The topic.
    topic: Option<String>,
    /// Where to begin: latest, earliest or LEDGER:ENTRY (default latest).
    #[arg(short = 'm', long, value_name = "POSITION", allow_hyphen_values = true)]
    start_message_id: Option<String>,
    /// Begin with the message at -m, not behind it.
    #[arg(short = 'i', long)]
    start_message_id_inclusive: bool,
    #[command(flatten)]
    receive: ReceiveArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

/// What `consume` and `read` have in common.
#[derive(Debug, Args)]
struct ReceiveArgs {
    /// How many messages to take; 0 is without end (default 1).
    #[arg(short, long, value_name = "N", allow_hyphen_values = true)]
    num_messages: Option<String>,
    /// Show payloads in hexadecimal.
    #[arg(long)]
    hex: bool,
    /// Do not show payloads.
    #[arg(long)]
    hide_content: bool,
    /// [-mp] Show all that messages carry beside the payload.
    #[arg(long)]
    print_metadata: bool,
    /// Messages a second; 0, the default, is as fast as they come.
    #[arg(short, long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,
    /// How many messages the broker sends ahead (default 1000).
    #[arg(short, long, value_name = "N", allow_hyphen_values = true)]
    queue_size: Option<String>,
    /// [-mc] How many chunked messages may be incomplete at a time (default 10).
    #[arg(long = "max_chunked_msg", value_name = "N", allow_hyphen_values = true)]
    max_chunked_msg: Option<String>,
    /// [-ac] Acknowledge the oldest incomplete chunked message when there are too many.
    #[arg(long = "auto_ack_chunk_q_full")]
    auto_ack_chunk_q_full: bool,
    /// [-st] bytes, or auto_consume to show payloads by the topic's schema (default bytes).
    #[arg(long, value_name = "TYPE")]
    schema_type: Option<String>,
    /// [-ca] What to do with encrypted messages, which cannot be decrypted: FAIL, DISCARD or CONSUME (default FAIL).
    #[arg(long, value_name = "ACTION")]
    crypto_failure_action: Option<String>,
    /// [-ekv] Not supported: messages are not decrypted.
    #[arg(long, value_name = "URI")]
    encryption_key_value: Option<String>,
    /// [-pm] true or false; without effect.
    #[arg(long, value_name = "FLAG")]
    pool_messages: Option<String>,
}

/// What `consume` is to do.
#[derive(Debug)]
pub(super) struct ConsumeSettings {
    pub(super) source: Source,
    pub(super) subscription: String,
    pub(super) subscription_type: SubscriptionType,
    pub(super) durable: bool,
    pub(super) earliest: bool,
    pub(super) replicated: bool,
    /// Milliseconds since 1970.
    pub(super) start_time: Option<u64>,
    /// Milliseconds since 1970.
    pub(super) end_time: Option<u64>,
    pub(super) receive: ReceiveSettings,
}

/// What is consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Topic(TopicName),
    /// The topics of a namespace whose names match.
    Pattern {
        namespace: NamespaceName,
        /// The whole names without their scheme.
        pattern: String,
        mode: TopicMode,
    },
}

impl Source {
    /// As the client takes it.
    pub(super) fn topics(&self) -> Topics {
        match self.clone() {
            Self::Topic(topic) => Topics::One(topic),
            Self::Pattern {
                namespace,
                pattern,
                mode,
            } => Topics::Pattern {
                namespace,
                pattern,
                mode,
            },
        }
    }
}

/// How messages are shared among the consumers of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubscriptionType {
    Exclusive,
    Shared,
    Failover,
    KeyShared,
}

/// What `read` is to do.
#[derive(Debug)]
pub(super) struct ReadSettings {
    pub(super) topic: TopicName,
    pub(super) start: MessageId,
    pub(super) inclusive: bool,
    pub(super) receive: ReceiveSettings,
}

/// What `consume` and `read` have in common.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReceiveSettings {
    /// `None` is without end.
    pub(super) count: Option<u64>,
    pub(super) rate: Option<f64>,
    pub(super) style: Style,
    pub(super) queue_size: Option<u32>,
    pub(super) max_incomplete_chunked: Option<usize>,
    pub(super) acknowledge_incomplete_chunked: bool,
    /// Whether payloads are shown by the topic's schema.
    pub(super) by_schema: bool,
    pub(super) encrypted: EncryptedAction,
}

/// What is done with an encrypted message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EncryptedAction {
    /// The command ends.
    Fail,
    /// It is acknowledged and not shown.
    Discard,
    /// It is shown as it is.
    Consume,
}

impl ConsumeArgs {
    /// # Errors
    /// With everything that is wrong.
    pub(super) fn settings(&self) -> Result<ConsumeSettings, WrongArguments> {
        let mut problems = Problems::default();
        let source = if self.regex {
            let text = problems.required("TOPIC", self.topic.as_deref());
            text.and_then(|text| {
                pattern(text)
                    .map_err(|error| problems.add("TOPIC", format_args!("{text:?}: {error}")))
                    .ok()
            })
        } else {
            topic(&mut problems, self.topic.as_deref()).map(Source::Topic)
        };
        let subscription = problems
            .required("-s, --subscription-name", self.subscription_name.as_deref())
            .map(str::to_owned);
        let subscription_type = problems.choice(
            "-t, --subscription-type",
            self.subscription_type.as_deref(),
            &[
                ("Exclusive", SubscriptionType::Exclusive),
                ("Shared", SubscriptionType::Shared),
                ("Failover", SubscriptionType::Failover),
                ("Key_Shared", SubscriptionType::KeyShared),
            ],
        );
        let durable = problems.choice(
            "-m, --subscription-mode",
            self.subscription_mode.as_deref(),
            &[("Durable", true), ("NonDurable", false)],
        );
        let earliest = problems.choice(
            "-p, --subscription-position",
            self.subscription_position.as_deref(),
            &[("Latest", false), ("Earliest", true)],
        );
        let mut time = |option, text: &Option<String>| {
            problems.value(
                option,
                text.as_deref(),
                "milliseconds since 1970",
                |time: &u64| i64::try_from(*time).is_ok(),
            )
        };
        let start_time = time("-stp, --start-timestamp", &self.start_timestamp);
        let end_time = time("-etp, --end-timestamp", &self.end_timestamp);
        if end_time < start_time && end_time.is_some() {
            problems.add("-etp, --end-timestamp", "lies before --start-timestamp");
        }
        let receive = self.receive.settings(&mut problems);
        let settings = source
            .zip(subscription)
            .map(|(source, subscription)| ConsumeSettings {
                source,
                subscription,
                subscription_type: subscription_type.unwrap_or(SubscriptionType::Exclusive),
                durable: durable.unwrap_or(true),
                earliest: earliest.unwrap_or(false),
                replicated: self.replicated,
                start_time: start_time.filter(|time| *time > 0),
                end_time,
                receive,
            });
        problems.finish(settings)
    }
}

impl ReadArgs {
    /// # Errors
    /// With everything that is wrong.
    pub(super) fn settings(&self) -> Result<ReadSettings, WrongArguments> {
        let mut problems = Problems::default();
        let topic = topic(&mut problems, self.topic.as_deref());
        let start = self.start_message_id.as_deref().unwrap_or("latest");
        let position = position(start);
        if position.is_none() {
            problems.refuse(
                "-m, --start-message-id",
                start,
                "latest, earliest or LEDGER:ENTRY",
            );
        }
        let receive = self.receive.settings(&mut problems);
        let settings = topic.zip(position).map(|(topic, start)| ReadSettings {
            topic,
            start,
            inclusive: self.start_message_id_inclusive,
            receive,
        });
        problems.finish(settings)
    }
}

impl ReceiveArgs {
    fn settings(&self, problems: &mut Problems) -> ReceiveSettings {
        problems.unsupported(
            "-ekv, --encryption-key-value",
            self.encryption_key_value.is_some(),
            "messages are not decrypted",
        );
        problems.choice(
            "-pm, --pool-messages",
            self.pool_messages.as_deref(),
            &[("true", ()), ("false", ())],
        );
        let by_schema = problems.choice(
            "-st, --schema-type",
            self.schema_type.as_deref(),
            &[("bytes", false), ("auto_consume", true)],
        );
        let encrypted = problems.choice(
            "-ca, --crypto-failure-action",
            self.crypto_failure_action.as_deref(),
            &[
                ("FAIL", EncryptedAction::Fail),
                ("DISCARD", EncryptedAction::Discard),
                ("CONSUME", EncryptedAction::Consume),
            ],
        );
        let count = problems.value(
            "-n, --num-messages",
            self.num_messages.as_deref(),
            "a number from 0 on",
            |_: &u64| true,
        );
        // As in pulsar-client, 0 of these two stands for the default.
        let queue_size = problems.value(
            "-q, --queue-size",
            self.queue_size.as_deref(),
            "a number from 0 to 1000000",
            |size: &u32| *size <= 1_000_000,
        );
        let max_incomplete_chunked = problems.value(
            "-mc, --max_chunked_msg",
            self.max_chunked_msg.as_deref(),
            "a number from 0 to 100000",
            |count: &usize| *count <= 100_000,
        );
        ReceiveSettings {
            count: Some(count.unwrap_or(1)).filter(|count| *count > 0),
            rate: problems.rate("-r, --rate", self.rate.as_deref()),
            style: Style {
                hex: self.hex,
                metadata: self.print_metadata,
                hide_content: self.hide_content,
            },
            queue_size: queue_size.filter(|size| *size > 0),
            max_incomplete_chunked: max_incomplete_chunked.filter(|count| *count > 0),
            acknowledge_incomplete_chunked: self.auto_ack_chunk_q_full,
            by_schema: by_schema.unwrap_or(false),
            encrypted: encrypted.unwrap_or(EncryptedAction::Fail),
        }
    }
}

/// Why a text is no pattern of topics.
#[derive(Debug, thiserror::Error)]
enum PatternError {
    #[error("it names no namespace: {0}")]
    Namespace(#[from] NameError),
    #[error("it is no regular expression: {0}")]
    Expression(String),
}

/// The topics whose names match `[persistent://]tenant/namespace/EXPRESSION`, or `EXPRESSION` in public/default.
fn pattern(text: &str) -> Result<Source, PatternError> {
    let (mode, rest) = match text.split_once("://") {
        Some(("non-persistent", rest)) => (TopicMode::NonPersistent, rest),
        Some((_, rest)) => (TopicMode::Persistent, rest),
        None => (TopicMode::Persistent, text),
    };
    let mut parts = rest.splitn(3, '/');
    let (namespace, pattern) = match (parts.next(), parts.next(), parts.next()) {
        (Some(tenant), Some(namespace), Some(_)) => {
            (format!("{tenant}/{namespace}"), rest.to_owned())
        }
        _ => (
            "public/default".to_owned(),
            format!("public/default/{rest}"),
        ),
    };
    let namespace = NamespaceName::parse(&namespace)?;
    // As the client compiles it.
    if let Err(error) = Regex::new(&format!("^(?:{pattern})$")) {
        // The text of the error draws the place on several lines; what is wrong is on the last one.
        let error = error.to_string();
        let what = error.lines().last().unwrap_or_default();
        let what = what.trim_start_matches("error: ").to_owned();
        return Err(PatternError::Expression(what));
    }
    Ok(Source::Pattern {
        namespace,
        pattern,
        mode,
    })
}

/// A place in a topic: latest, earliest, or ledger and entry in decimal.
fn position(text: &str) -> Option<MessageId> {
    match text {
        "latest" => Some(MessageId::latest()),
        "earliest" => Some(MessageId::earliest()),
        _ => {
            let (ledger, entry) = text.split_once(':')?;
            let number = |text: &str| text.parse::<i64>().ok().map(i64::cast_unsigned);
            Some(MessageId::of_entry(number(ledger)?, number(entry)?))
        }
    }
}

const CONSUME_EXAMPLES: &str = "\
Examples:
  pulsegate consume my-topic -s my-subscription
  pulsegate consume my-topic -s my-subscription -p Earliest -n 0 --json
  pulsegate consume 'persistent://public/default/my-.*' --regex -s all -n 100
  pulsegate consume my-topic -s workers -t Shared -n 0 -r 10 --hide-content

Exit codes:
  0    all messages that were asked for are acknowledged, or it was interrupted
  1    messages could not be consumed
  64   wrong arguments
  130  ended at once by a second signal";

const READ_EXAMPLES: &str = "\
Examples:
  pulsegate read my-topic -m earliest -n 10
  pulsegate read my-topic -m 3:14 -i -mp
  pulsegate read my-topic -n 0 --json

Exit codes:
  0    all messages that were asked for are read, or it was interrupted
  1    messages could not be read
  64   wrong arguments
  130  ended at once by a second signal";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::messages::spelling::from_pulsar_client;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: Either,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Either {
        Consume(Box<ConsumeArgs>),
        Read(Box<ReadArgs>),
    }

    fn parse(arguments: &[&str]) -> Either {
        let line = ["pulsegate"].iter().chain(arguments);
        let line = from_pulsar_client(line.map(Into::into));
        Line::try_parse_from(line).expect("known").command
    }

    fn consume(arguments: &[&str]) -> Result<ConsumeSettings, String> {
        match parse(&[&["consume"], arguments].concat()) {
            Either::Consume(arguments) => arguments.settings().map_err(|error| error.to_string()),
            Either::Read(_) => unreachable!("another subcommand"),
        }
    }

    fn read(arguments: &[&str]) -> Result<ReadSettings, String> {
        match parse(&[&["read"], arguments].concat()) {
            Either::Read(arguments) => arguments.settings().map_err(|error| error.to_string()),
            Either::Consume(_) => unreachable!("another subcommand"),
        }
    }

    #[test]
    fn consume_has_the_defaults_of_pulsar_client() {
        let settings = consume(&["t", "-s", "x"]).expect("right");
        assert_eq!(settings.subscription, "x");
        assert_eq!(settings.subscription_type, SubscriptionType::Exclusive);
        assert!(settings.durable && !settings.earliest && !settings.replicated);
        assert_eq!((settings.start_time, settings.end_time), (None, None));
        assert_eq!(settings.receive.count, Some(1));
        assert_eq!(settings.receive.queue_size, None);
        assert_eq!(settings.receive.encrypted, EncryptedAction::Fail);
    }

    #[test]
    fn consume_takes_all_its_options() {
        let settings = consume(&[
            "persistent://a/b/c.*",
            "--regex",
            "-s",
            "x",
            "-t",
            "key_shared",
            "-m",
            "NonDurable",
            "-p",
            "Earliest",
            "-n",
            "0",
            "-q",
            "5",
            "-mc",
            "3",
            "-ac",
            "-rs",
            "-ca",
            "consume",
            "-st",
            "auto_consume",
            "-pm",
            "false",
            "-mp",
            "--hex",
            "--hide-content",
            "-r",
            "2",
            "-stp",
            "5",
            "-etp",
            "9",
        ])
        .expect("right");
        assert_eq!(
            settings.source,
            Source::Pattern {
                namespace: NamespaceName::parse("a/b").expect("a name"),
                pattern: "a/b/c.*".to_owned(),
                mode: TopicMode::Persistent,
            }
        );
        assert_eq!(settings.subscription_type, SubscriptionType::KeyShared);
        assert!(!settings.durable && settings.earliest && settings.replicated);
        assert_eq!((settings.start_time, settings.end_time), (Some(5), Some(9)));
        assert_eq!(
            settings.receive,
            ReceiveSettings {
                count: None,
                rate: Some(2.0),
                style: Style {
                    hex: true,
                    metadata: true,
                    hide_content: true
                },
                queue_size: Some(5),
                max_incomplete_chunked: Some(3),
                acknowledge_incomplete_chunked: true,
                by_schema: true,
                encrypted: EncryptedAction::Consume,
            }
        );
    }

    #[test]
    fn everything_wrong_is_listed_at_once() {
        let error = consume(&[
            "-t",
            "any",
            "-m",
            "x",
            "-p",
            "Middle",
            "-n",
            "-1",
            "-q",
            "x",
            "-mc",
            "-5",
            "-ca",
            "IGNORE",
            "-st",
            "json",
            "-pm",
            "perhaps",
            "-r",
            "NaN",
            "-stp",
            "9",
            "-etp",
            "5",
            "-ekv",
            "file:///x",
        ])
        .expect_err("wrong");
        for expected in [
            "the arguments have 14 problems:",
            "TOPIC: is missing",
            "-s, --subscription-name: is missing",
            "-t, --subscription-type: \"any\" is not accepted; expected Exclusive, Shared, Failover, Key_Shared",
            "-m, --subscription-mode: \"x\"",
            "-p, --subscription-position: \"Middle\"",
            "-n, --num-messages: \"-1\" is not accepted",
            "-q, --queue-size: \"x\"",
            "-mc, --max_chunked_msg: \"-5\"",
            "-ca, --crypto-failure-action: \"IGNORE\"",
            "-st, --schema-type: \"json\" is not accepted; expected bytes, auto_consume",
            "-pm, --pool-messages: \"perhaps\"",
            "-r, --rate: \"NaN\"",
            "-etp, --end-timestamp: lies before",
            "-ekv, --encryption-key-value: not supported",
        ] {
            assert!(error.contains(expected), "{expected} is not in {error}");
        }
    }

    #[test]
    fn patterns_name_their_namespace() {
        for (given, expected) in [
            (
                "persistent://a/b/c.*",
                ("a/b", "a/b/c.*", TopicMode::Persistent),
            ),
            ("a/b/c/d.*", ("a/b", "a/b/c/d.*", TopicMode::Persistent)),
            (
                "c.*",
                (
                    "public/default",
                    "public/default/c.*",
                    TopicMode::Persistent,
                ),
            ),
            (
                "non-persistent://a/b/(x|y)",
                ("a/b", "a/b/(x|y)", TopicMode::NonPersistent),
            ),
        ] {
            let Ok(Source::Pattern {
                namespace,
                pattern,
                mode,
            }) = pattern(given)
            else {
                panic!("{given} is a pattern");
            };
            assert_eq!(
                (namespace.to_string().as_str(), pattern.as_str(), mode),
                expected
            );
        }
    }

    #[test]
    fn a_pattern_that_matches_nothing_ever_is_a_wrong_argument() {
        for (wrong, why) in [
            (
                "t(",
                "TOPIC: \"t(\": it is no regular expression: unclosed group",
            ),
            ("a//b", "TOPIC: \"a//b\": it names no namespace: "),
            ("persistent:////x", "it names no namespace: "),
            ("", "TOPIC: is missing"),
        ] {
            let error = consume(&[wrong, "--regex", "-s", " "]).expect_err(wrong);
            assert!(error.contains(why), "{why} is not in {error}");
            assert!(
                error.contains("-s, --subscription-name: is missing"),
                "{error}"
            );
        }
    }

    #[test]
    fn reading_begins_where_it_is_told_to() {
        assert!(read(&["t"]).expect("right").start.is_latest());
        let settings = read(&["t", "-m", "earliest", "-i"]).expect("right");
        assert!(settings.start.is_earliest() && settings.inclusive);
        let settings = read(&["t", "-m", "3:14", "-n", "7"]).expect("right");
        assert_eq!(settings.start, MessageId::of_entry(3, 14));
        assert_eq!(settings.receive.count, Some(7));
        assert!(
            read(&["t", "-m", "-1:-1"])
                .expect("right")
                .start
                .is_earliest()
        );
        for wrong in ["foo", "1:", ":1", "1:2:3", "1", ""] {
            let error = read(&["t", "-m", wrong]).expect_err(wrong);
            assert!(
                error.contains("expected latest, earliest or LEDGER:ENTRY"),
                "{error}"
            );
        }
    }
}
