//! The arguments of `pulsegate produce`, and what they mean.

use bytes::Bytes;
use clap::Args;

use super::{
    CommonArgs,
    schema::{self, KeyValueEncoding, PayloadSchema},
};
use crate::{
    cli::{
        files,
        problems::{Problems, WrongArguments},
    },
    naming::TopicName,
    protocol::proto::pulsar::Schema,
};

/// Arguments of `produce`; names and meaning are those of `pulsar-client produce`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ProduceArgs {
    /// The topic: persistent://tenant/namespace/name, or a name in public/default.
    topic: Option<String>,
    /// Messages to send; may be repeated. Each is split at the separator (-s).
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    messages: Vec<String>,
    /// Files to send, a message each; may be repeated.
    #[arg(short, long, value_name = "FILE")]
    files: Vec<String>,
    /// How often to send all messages and files (default 1).
    #[arg(short, long, value_name = "N", allow_hyphen_values = true)]
    num_produce: Option<String>,
    /// Messages a second; 0, the default, is as fast as receipts come.
    #[arg(short, long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,
    /// Where -m is split (default a comma; with an empty one nothing is split).
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    separator: Option<String>,
    /// Properties of each message: k1=v1,k2=v2; may be repeated.
    #[arg(short, long, value_name = "KEY=VALUE[,...]")]
    properties: Vec<String>,
    /// Key of each message; messages with one key stay in order, in one partition.
    #[arg(short, long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<String>,
    /// Split messages larger than the broker takes into chunks; turns batching off.
    #[arg(short, long)]
    chunking: bool,
    /// [-db] Send each message by itself.
    #[arg(long)]
    disable_batching: bool,
    /// [-dr] Do not replicate the messages to other clusters.
    #[arg(long)]
    disable_replication: bool,
    /// [-vs] What values are: bytes, string, json:DEFINITION or avro:DEFINITION (default bytes).
    #[arg(long, value_name = "SCHEMA")]
    value_schema: Option<String>,
    /// [-ks] What keys of key-value messages are (default string).
    #[arg(long, value_name = "SCHEMA")]
    key_schema: Option<String>,
    /// [-kvet] Send key-value messages, the key separated or inline.
    #[arg(long, value_name = "ENCODING")]
    key_value_encoding_type: Option<String>,
    /// [-kvk] The key of key-value messages (default that of -k).
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    key_value_key: Option<String>,
    /// [-kvkf] A file with the key of key-value messages.
    #[arg(long, value_name = "FILE")]
    key_value_key_file: Option<String>,
    /// [-ekn] Not supported: messages are not encrypted.
    #[arg(long, value_name = "NAME")]
    encryption_key_name: Option<String>,
    /// [-ekv] Not supported: messages are not encrypted.
    #[arg(long, value_name = "URI")]
    encryption_key_value: Option<String>,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

/// What `produce` is to do.
#[derive(Debug)]
pub(super) struct ProduceSettings {
    pub(super) topic: TopicName,
    /// What is sent in each of `rounds`.
    pub(super) payloads: Vec<Bytes>,
    pub(super) rounds: u64,
    pub(super) rate: Option<f64>,
    pub(super) batching: bool,
    pub(super) chunking: bool,
    pub(super) properties: Vec<(String, String)>,
    pub(super) key: Option<MessageKey>,
    pub(super) schema: Option<Schema>,
    pub(super) disable_replication: bool,
}

/// The key that messages carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MessageKey {
    Text(String),
    Bytes(Bytes),
}

impl ProduceArgs {
    /// Reads and checks everything, files included.
    ///
    /// # Errors
    /// With everything that is wrong.
    pub(super) fn settings(&self) -> Result<ProduceSettings, WrongArguments> {
        let mut problems = Problems::default();
        let no_encryption = "messages are not encrypted";
        problems.unsupported(
            "-ekn, --encryption-key-name",
            self.encryption_key_name.is_some(),
            no_encryption,
        );
        problems.unsupported(
            "-ekv, --encryption-key-value",
            self.encryption_key_value.is_some(),
            no_encryption,
        );
        let topic = topic(&mut problems, self.topic.as_deref());
        let rounds = problems.value(
            "-n, --num-produce",
            self.num_produce.as_deref(),
            "a number from 1 on",
            |rounds: &u64| *rounds > 0,
        );
        let rate = problems.rate("-r, --rate", self.rate.as_deref());
        let properties = properties(&mut problems, &self.properties);
        let mut schema = |option, text: Option<&str>, default| match text {
            None => default,
            Some(text) => PayloadSchema::parse(text).unwrap_or_else(|error| {
                problems.add(option, error);
                PayloadSchema::Bytes
            }),
        };
        let value_schema = schema(
            "-vs, --value-schema",
            self.value_schema.as_deref(),
            PayloadSchema::Bytes,
        );
        let key_schema = schema(
            "-ks, --key-schema",
            self.key_schema.as_deref(),
            PayloadSchema::Text,
        );
        let encoding = problems.choice(
            "-kvet, --key-value-encoding-type",
            self.key_value_encoding_type.as_deref(),
            &[
                ("separated", KeyValueEncoding::Separated),
                ("inline", KeyValueEncoding::Inline),
            ],
        );
        let values = self.values(&mut problems, &value_schema);
        let pair_key = self.pair_key(&mut problems, &key_schema);
        let (payloads, key, schema) = match encoding {
            None => {
                let key = self.key.clone().filter(|key| !key.is_empty());
                (
                    values,
                    key.map(MessageKey::Text),
                    value_schema.on_the_wire(),
                )
            }
            Some(encoding) => {
                let schema = schema::key_value_schema(&key_schema, &value_schema, encoding);
                let (payloads, key) = match encoding {
                    KeyValueEncoding::Separated => {
                        (values, pair_key.map(|key| MessageKey::Bytes(key.into())))
                    }
                    // The message has no key of its own then, so that it may go to any partition.
                    KeyValueEncoding::Inline => {
                        let pair =
                            |value: Bytes| Bytes::from(schema::inline(pair_key.as_deref(), &value));
                        (values.into_iter().map(pair).collect(), None)
                    }
                };
                (payloads, key, Some(schema))
            }
        };
        let settings = topic.map(|topic| ProduceSettings {
            topic,
            payloads,
            rounds: rounds.unwrap_or(1),
            rate,
            batching: !self.disable_batching && !self.chunking,
            chunking: self.chunking,
            properties,
            key,
            schema,
            disable_replication: self.disable_replication,
        });
        problems.finish(settings)
    }

    /// What -m and -f give, in this order.
    fn values(&self, problems: &mut Problems, schema: &PayloadSchema) -> Vec<Bytes> {
        let separator = self.separator.as_deref().unwrap_or(",");
        let texts: Vec<&str> = self
            .messages
            .iter()
            .flat_map(|messages| split(messages, separator))
            .collect();
        // Neither is given, or there is nothing between the separators.
        if texts.is_empty() && self.files.is_empty() {
            problems.add("-m, --messages", "there is nothing to send; give -m or -f");
        }
        let mut values = Vec::new();
        for text in texts {
            match schema.of_text(text) {
                Ok(payload) => values.push(Bytes::from(payload)),
                Err(error) => problems.add("-m, --messages", format_args!("{text:?}: {error}")),
            }
        }
        for name in &self.files {
            let read = read(problems, "-f, --files", name);
            if let Some(payload) = read {
                if let Err(error) = schema.check(&payload) {
                    problems.add("-f, --files", format_args!("{name}: {error}"));
                }
                values.push(payload.into());
            }
        }
        values
    }

    /// The key of key-value messages.
    fn pair_key(&self, problems: &mut Problems, schema: &PayloadSchema) -> Option<Vec<u8>> {
        const TEXT: &str = "-kvk, --key-value-key";
        const FILE: &str = "-kvkf, --key-value-key-file";
        let is_pair = self.key_value_encoding_type.is_some();
        for (option, is_used) in [
            (TEXT, self.key_value_key.is_some()),
            (FILE, self.key_value_key_file.is_some()),
        ] {
            if is_used && !is_pair {
                problems.add(option, "needs -kvet, --key-value-encoding-type");
            }
        }
        let (option, text) = match (&self.key_value_key, &self.key_value_key_file, &self.key) {
            (Some(text), _, _) => (TEXT, text),
            (None, Some(name), _) => {
                let key = read(problems, FILE, name)?;
                if let Err(error) = schema.check(&key) {
                    problems.add(FILE, format_args!("{name}: {error}"));
                }
                return Some(key);
            }
            (None, None, Some(text)) if is_pair => ("-k, --key", text),
            (None, None, _) => return None,
        };
        schema
            .of_text(text)
            .map_err(|error| problems.add(option, format_args!("{text:?}: {error}")))
            .ok()
    }
}

/// The topic that is named, which has to be.
pub(super) fn topic(problems: &mut Problems, name: Option<&str>) -> Option<TopicName> {
    let name = problems.required("TOPIC", name)?;
    TopicName::parse(name)
        .map_err(|error| problems.add("TOPIC", format_args!("{name:?}: {error}")))
        .ok()
}

fn read(problems: &mut Problems, option: &str, name: &str) -> Option<Vec<u8>> {
    files::read(name)
        .map_err(|error| problems.add(option, format_args!("{name}: {error}")))
        .ok()
}

/// The parts between separators. As with Java's `split`, empty parts at the end are dropped; a text that is empty is one
/// empty message.
fn split<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    if text.is_empty() || separator.is_empty() {
        return vec![text];
    }
    let mut parts: Vec<&str> = text.split(separator).collect();
    while parts.last().is_some_and(|part| part.is_empty()) {
        parts.pop();
    }
    parts
}

/// `k=v` pairs, separated by commas. What has no `=` belongs to the value before it, so that values may have commas.
fn properties(problems: &mut Problems, given: &[String]) -> Vec<(String, String)> {
    let mut properties: Vec<(String, String)> = Vec::new();
    for list in given {
        let first = properties.len();
        for part in list.split(',') {
            match (part.split_once('='), properties.get_mut(first..)) {
                (Some((key, value)), _) if !key.is_empty() => {
                    properties.push((key.to_owned(), value.to_owned()));
                }
                (None, Some([.., (_, value)])) => {
                    value.push(',');
                    value.push_str(part);
                }
                _ => problems.refuse("-p, --properties", list, "KEY=VALUE[,KEY=VALUE...]"),
            }
        }
    }
    properties
}

const EXAMPLES: &str = "\
Examples:
  pulsegate produce my-topic -m hello
  pulsegate produce my-topic -m one,two -n 10 -r 5 -k user-1 -p source=test
  pulsegate produce my-topic -f picture.png -c
  pulsegate produce my-topic -s '#' -m '{\"id\": 1}' \\
      -vs 'json:{\"type\":\"record\",\"name\":\"User\",\"fields\":[{\"name\":\"id\",\"type\":\"int\"}]}'

Exit codes:
  0    all messages have a receipt, or it was interrupted
  1    a message could not be sent
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
        command: Only,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Only {
        Produce(ProduceArgs),
    }

    fn settings(arguments: &[&str]) -> Result<ProduceSettings, String> {
        let line = ["pulsegate", "produce"].iter().chain(arguments);
        let line = from_pulsar_client(line.map(Into::into));
        let Only::Produce(arguments) = Line::try_parse_from(line).expect("known").command;
        arguments.settings().map_err(|error| error.to_string())
    }

    fn payloads(settings: &ProduceSettings) -> Vec<&str> {
        let text = |payload| std::str::from_utf8(payload).expect("text");
        settings
            .payloads
            .iter()
            .map(|payload| text(payload))
            .collect()
    }

    #[test]
    fn messages_are_split_as_pulsar_client_splits_them() {
        for (arguments, expected) in [
            (&["-m", "a,b", "-m", "c"][..], &["a", "b", "c"][..]),
            (&["-m", "a,,b,,", "-m", ""], &["a", "", "b", ""]),
            (&["-m", "a,b;c", "-s", ";"], &["a,b", "c"]),
            (&["-m", "a,b", "-s", ""], &["a,b"]),
            (&["-m", "-1"], &["-1"]),
        ] {
            let settings = settings(&[&["t"], arguments].concat()).expect("right");
            assert_eq!(payloads(&settings), expected, "{arguments:?}");
        }
    }

    #[test]
    fn files_follow_the_messages() {
        let file = tempfile::NamedTempFile::new().expect("file");
        std::fs::write(file.path(), "in a file").expect("write");
        let path = file.path().to_str().expect("UTF-8");
        let settings = settings(&["t", "-f", path, "-m", "typed"]).expect("right");
        assert_eq!(payloads(&settings), ["typed", "in a file"]);
    }

    #[test]
    fn options_are_taken_by_all_their_names() {
        let short = settings(&[
            "t",
            "-m",
            "x",
            "-n",
            "3",
            "-r",
            "1.5",
            "-k",
            "key",
            "-p",
            "a=1,2,b=3",
            "-p",
            "c==",
            "-db",
            "-dr",
        ])
        .expect("right");
        assert_eq!(short.topic.to_string(), "persistent://public/default/t");
        assert_eq!((short.rounds, short.rate), (3, Some(1.5)));
        assert_eq!(short.key, Some(MessageKey::Text("key".to_owned())));
        let properties: Vec<String> = short
            .properties
            .iter()
            .map(|(key, value)| format!("{key}:{value}"))
            .collect();
        assert_eq!(properties, ["a:1,2", "b:3", "c:="]);
        assert!(!short.batching && short.disable_replication && !short.chunking);
        let long = settings(&["t", "--messages", "x", "--chunking", "--num-produce=2"]);
        let long = long.expect("right");
        assert!(long.chunking && !long.batching && long.rounds == 2);
        assert!(settings(&["t", "-m", "x"]).expect("right").batching);
    }

    #[test]
    fn key_value_messages_are_separated_or_inline() {
        let separated = settings(&[
            "t",
            "-m",
            "v",
            "-kvet",
            "separated",
            "-kvk",
            "k",
            "-vs",
            "string",
        ])
        .expect("right");
        assert_eq!(payloads(&separated), ["v"]);
        assert_eq!(separated.key, Some(MessageKey::Bytes("k".into())));
        assert_eq!(separated.schema.expect("a schema").name, "KeyValue");
        let inline = settings(&["t", "-m", "v", "-kvet", "inline", "-k", "k"]).expect("right");
        assert_eq!(payloads(&inline), ["\0\0\0\u{1}k\0\0\0\u{1}v"]);
        assert_eq!(inline.key, None);
        let without = settings(&["t", "-m", "v", "-kvet", "separated"]).expect("right");
        assert_eq!(without.key, None);
    }

    #[test]
    fn everything_wrong_is_listed_at_once() {
        let error = settings(&[
            "bad://x/y",
            "-n",
            "0",
            "-r",
            "fast",
            "-p",
            "novalue",
            "-vs",
            "xml",
            "-ks",
            "avro:{",
            "-kvk",
            "x",
            "-ekn",
            "name",
            "-ekv",
            "uri",
            "-f",
            "/no/such/file",
        ])
        .expect_err("wrong");
        for expected in [
            "the arguments have 10 problems:",
            "-ekn, --encryption-key-name: not supported",
            "-ekv, --encryption-key-value: not supported",
            "TOPIC: \"bad://x/y\": ",
            "-n, --num-produce: \"0\" is not accepted; expected a number from 1 on",
            "-r, --rate: \"fast\" is not accepted",
            "-p, --properties: \"novalue\" is not accepted",
            "-vs, --value-schema: expected bytes, string",
            "-ks, --key-schema: the definition is no JSON",
            "-kvk, --key-value-key: needs -kvet",
            "-f, --files: /no/such/file: ",
        ] {
            assert!(error.contains(expected), "{expected} is not in {error}");
        }
        let error = settings(&[]).expect_err("wrong");
        assert!(error.contains("TOPIC: is missing"), "{error}");
        assert!(error.contains("there is nothing to send"), "{error}");
    }

    #[test]
    fn messages_that_do_not_fit_their_schema_are_refused_before_anything_is_sent() {
        let schema = r#"avro:{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}"#;
        let error = settings(&["t", "-s", "#", "-m", r#"{"a":"x"}"#, "-vs", schema]);
        assert!(error.expect_err("wrong").contains("$.a: expected an int"));
        let error = settings(&[
            "t", "-m", "v", "-kvet", "inline", "-kvk", "{", "-ks", schema,
        ]);
        assert!(
            error
                .expect_err("wrong")
                .contains("-kvk, --key-value-key: \"{\": it is no JSON")
        );
    }
}
