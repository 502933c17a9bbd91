//! Random sequences of commands, by a seed. They are steps of scenarios: what fails is printed as one.

use serde_yaml::{Mapping, Value};

use crate::value::mapping;

/// A sequence of random operations; each is a list of steps that only make sense together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sequence {
    pub(crate) operations: Vec<Vec<Value>>,
}

impl Sequence {
    /// The sequence of a seed.
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let count = 6 + random.below(12);
        let mut operations = Vec::new();
        // Most sequences begin with something to work on.
        for connection in ["a", "b"] {
            if random.one_in(4) {
                continue;
            }
            operations.push(subscribe(&mut random, connection));
            operations.push(producer(&mut random, connection));
        }
        for _ in 0..count {
            let operation = operation(&mut random);
            operations.push(operation);
        }
        Self { operations }
    }

    /// The steps of the scenario: three connections, the operations, with everything answered in between.
    pub(crate) fn steps(&self) -> Value {
        let mut steps = vec![
            mapping([("connect", "a".into())]),
            mapping([("connect", "b".into())]),
            mapping([(
                "connect",
                mapping([("connection", "l".into()), ("service", true.into())]),
            )]),
        ];
        for operation in &self.operations {
            steps.extend(operation.iter().cloned());
            steps.push(mapping([("settle", SETTLE_MILLIS.into())]));
        }
        Value::Sequence(steps)
    }
}

/// A SplitMix64 sequence: the same on every machine and in every version.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        let place = usize::try_from(self.below(choices.len() as u64)).expect("small");
        choices[place]
    }
}

fn operation(random: &mut Random) -> Vec<Value> {
    let connection = random.of(&["a", "a", "a", "b", "b", "l"]);
    if connection == "l" {
        return lookups(random);
    }
    match random.below(100) {
        0..26 => send(random, connection),
        26..36 => flow(random, connection),
        36..52 => ack(random, connection),
        52..60 => redeliver(random, connection),
        60..68 => producer(random, connection),
        68..76 => subscribe(random, connection),
        76..80 => seek(random, connection),
        80..92 => ask(random, connection),
        92..95 => watch(random, connection),
        95..98 => again(random, connection),
        _ => garbage(random, connection),
    }
}

fn command(
    random: &mut Random,
    connection: &str,
    name: &str,
    fields: Mapping,
    message: Option<Value>,
) -> Value {
    let mut step = Mapping::new();
    step.insert(
        format!("{connection} > {name}").into(),
        Value::Mapping(fields),
    );
    if let Some(message) = message {
        step.insert("message".into(), message);
    }
    // A frame that comes in two pieces is still one.
    if random.one_in(8) {
        step.insert("split".into(), (1 + random.below(24)).into());
    }
    Value::Mapping(step)
}

fn fields<const N: usize>(entries: [(&str, Value); N]) -> Mapping {
    match mapping(entries) {
        Value::Mapping(fields) => fields,
        _ => Mapping::new(),
    }
}

fn topic(random: &mut Random) -> Value {
    random
        .of(&[
            "persistent://public/default/f-~-0",
            "persistent://public/default/f-~-0",
            "persistent://public/default/f-~-0",
            "persistent://public/default/f-~-1",
            "non-persistent://public/default/f-~-n",
        ])
        .into()
}

/// Mostly an id that is in use.
fn id(random: &mut Random) -> Value {
    random.of(&[0, 0, 0, 0, 1, 1, 2]).into()
}

fn producer(random: &mut Random, connection: &str) -> Vec<Value> {
    let mut fields = fields([("topic", topic(random)), ("producer_id", id(random))]);
    if random.one_in(3) {
        fields.insert("producer_name".into(), random.of(&["n0-~", "n1-~"]).into());
    }
    if random.one_in(6) {
        let mode = random.of(&["Exclusive", "WaitForExclusive", "Shared"]);
        fields.insert("producer_access_mode".into(), mode.into());
    }
    if random.one_in(10) {
        fields.insert("schema".into(), schema(random));
    }
    vec![command(random, connection, "PRODUCER", fields, None)]
}

fn subscribe(random: &mut Random, connection: &str) -> Vec<Value> {
    let kind = random.of(&["Exclusive", "Shared", "Shared", "Failover", "Key_Shared"]);
    let mut fields = fields([
        ("topic", topic(random)),
        ("subscription", random.of(&["s0", "s0", "s1"]).into()),
        ("subType", kind.into()),
        ("consumer_id", id(random)),
        ("consumer_name", format!("c-{connection}").into()),
        // Which of two consumers of one priority is active is chance.
        ("priority_level", i32::from(connection == "b").into()),
    ]);
    if random.one_in(2) {
        fields.insert("initialPosition".into(), "Earliest".into());
    }
    if random.one_in(8) {
        fields.insert("durable".into(), false.into());
        fields.insert("start_message_id".into(), message_id(random));
    }
    let id = fields.get("consumer_id").cloned().unwrap_or(Value::Null);
    let mut steps = vec![command(random, connection, "SUBSCRIBE", fields, None)];
    if !random.one_in(4) {
        let permits = random.of(&[1, 2, 5, 100]);
        steps.push(mapping([("settle", SETTLE_MILLIS.into())]));
        let fields = self::fields([("consumer_id", id), ("messagePermits", permits.into())]);
        steps.push(command(random, connection, "FLOW", fields, None));
    }
    steps
}

fn send(random: &mut Random, connection: &str) -> Vec<Value> {
    let producer = id(random);
    let first = random.below(40);
    let count = random.of(&[1, 1, 1, 2, 5]);
    let mut steps = Vec::new();
    for place in 0..count {
        let sequence_id = first + place;
        let mut fields = fields([
            ("producer_id", producer.clone()),
            ("sequence_id", sequence_id.into()),
        ]);
        let mut message = Mapping::new();
        let mut metadata = Mapping::new();
        if random.one_in(3) {
            metadata.insert("partition_key".into(), random.of(&["k0", "k1"]).into());
        }
        if random.one_in(5) {
            metadata.insert("compression".into(), random.of(&["LZ4", "ZSTD"]).into());
        }
        // How far a broker sends beyond the permits depends on how many batches it finds at once, so on the time between them.
        if count == 1 && random.one_in(4) {
            let batch: Vec<Value> = (0..1 + random.below(3))
                .map(|place| format!("m{sequence_id}.{place}").into())
                .collect();
            let last = sequence_id + batch.len() as u64 - 1;
            fields.insert("highest_sequence_id".into(), last.into());
            metadata.insert("highest_sequence_id".into(), last.into());
            message.insert("batch".into(), Value::Sequence(batch));
        } else if random.one_in(6) {
            let large = mapping([
                ("repeat", "x".into()),
                ("count", random.of(&[70, 5000, 70_000]).into()),
            ]);
            message.insert("payload".into(), large);
        } else {
            message.insert("payload".into(), format!("m{sequence_id}").into());
        }
        if random.one_in(20) {
            message.insert("checksum".into(), random.of(&["wrong", "none"]).into());
        }
        if !metadata.is_empty() {
            message.insert("metadata".into(), Value::Mapping(metadata));
        }
        let message = Some(Value::Mapping(message));
        steps.push(command(random, connection, "SEND", fields, message));
    }
    steps
}

fn flow(random: &mut Random, connection: &str) -> Vec<Value> {
    let fields = fields([
        ("consumer_id", id(random)),
        ("messagePermits", random.of(&[1, 2, 3, 10, 100]).into()),
    ]);
    vec![command(random, connection, "FLOW", fields, None)]
}

fn message_id(random: &mut Random) -> Value {
    match random.below(12) {
        0 => "earliest".into(),
        1 => "latest".into(),
        2 => mapping([("ledgerId", 999_999_999.into()), ("entryId", 3.into())]),
        3 => mapping([
            ("of", mapping([("seen", random.below(8).into())])),
            ("batch_size", 3.into()),
            (
                "ack_set",
                Value::Sequence(vec![random.of(&[1, 5, 6]).into()]),
            ),
        ]),
        _ => mapping([("seen", random.below(8).into())]),
    }
}

fn ack(random: &mut Random, connection: &str) -> Vec<Value> {
    let is_cumulative = random.one_in(3);
    let count = if is_cumulative {
        1
    } else {
        1 + random.below(3)
    };
    let ids: Vec<Value> = (0..count).map(|_| message_id(random)).collect();
    let kind = if is_cumulative {
        "Cumulative"
    } else {
        "Individual"
    };
    let mut fields = fields([
        ("consumer_id", id(random)),
        ("ack_type", kind.into()),
        ("message_id", Value::Sequence(ids)),
    ]);
    if random.one_in(2) {
        fields.insert("request_id".into(), (1000 + random.below(1000)).into());
    }
    vec![command(random, connection, "ACK", fields, None)]
}

fn redeliver(random: &mut Random, connection: &str) -> Vec<Value> {
    let mut fields = fields([("consumer_id", id(random))]);
    if random.one_in(2) {
        let id = mapping([("seen", random.below(8).into())]);
        fields.insert("message_ids".into(), Value::Sequence(vec![id]));
    }
    let name = "REDELIVER_UNACKNOWLEDGED_MESSAGES";
    vec![command(random, connection, name, fields, None)]
}

fn seek(random: &mut Random, connection: &str) -> Vec<Value> {
    let mut fields = fields([("consumer_id", id(random))]);
    if random.one_in(3) {
        let time = random.of(&[-3_600_000, 3_600_000]);
        let time = mapping([("now", time.into())]);
        fields.insert("message_publish_time".into(), time);
    } else {
        fields.insert("message_id".into(), message_id(random));
    }
    vec![command(random, connection, "SEEK", fields, None)]
}

/// Requests that only need an id.
fn ask(random: &mut Random, connection: &str) -> Vec<Value> {
    let (name, key) = random.of(&[
        ("GET_LAST_MESSAGE_ID", "consumer_id"),
        ("GET_LAST_MESSAGE_ID", "consumer_id"),
        ("UNSUBSCRIBE", "consumer_id"),
        ("CLOSE_CONSUMER", "consumer_id"),
        ("CLOSE_PRODUCER", "producer_id"),
        ("PING", ""),
    ]);
    let mut fields = Mapping::new();
    if !key.is_empty() {
        fields.insert(key.into(), id(random));
    }
    vec![command(random, connection, name, fields, None)]
}

fn watch(random: &mut Random, connection: &str) -> Vec<Value> {
    if random.one_in(3) {
        let fields = fields([("watcher_id", id(random))]);
        return vec![command(
            random,
            connection,
            "WATCH_TOPIC_LIST_CLOSE",
            fields,
            None,
        )];
    }
    let fields = fields([
        ("watcher_id", id(random)),
        ("namespace", "public/default".into()),
        (
            "topics_pattern",
            "persistent://public/default/f-~-.*".into(),
        ),
    ]);
    vec![command(
        random,
        connection,
        "WATCH_TOPIC_LIST",
        fields,
        None,
    )]
}

/// Comes back on a new connection of the same name.
fn again(random: &mut Random, connection: &str) -> Vec<Value> {
    let key = format!(
        "{connection} > {}",
        random.of(&["close", "close", "half close"])
    );
    vec![
        mapping([(&key, Value::Null)]),
        mapping([("settle", SETTLE_MILLIS.into())]),
        mapping([("connect", connection.into())]),
    ]
}

fn garbage(random: &mut Random, connection: &str) -> Vec<Value> {
    let key = format!("{connection} > bytes");
    let bytes: Value = random
        .of(&[
            // A command size beyond its frame, a type that nobody knows, half a frame.
            "hex:0000000800000010ffffffff",
            "hex:0000000700000003 08e807",
            "hex:00000100000000f0 0812",
            "hex:ffffffff",
        ])
        .into();
    let mut steps = vec![mapping([(&key, bytes)])];
    steps.extend(again(random, connection));
    steps
}

fn schema(random: &mut Random) -> Value {
    let kind = random.of(&["String", "Json", "Int32"]);
    let data = if kind == "Json" {
        r#"{"type":"record","name":"R","fields":[{"name":"x","type":"int"}]}"#
    } else {
        ""
    };
    mapping([
        ("name", "s".into()),
        ("schema_data", data.into()),
        ("type", kind.into()),
    ])
}

/// Requests on the connection for lookups, one to three at once.
fn lookups(random: &mut Random) -> Vec<Value> {
    let count = 1 + random.below(3);
    (0..count)
        .map(|_| {
            let topic: Value = random
                .of(&[
                    "persistent://public/default/f-~-0",
                    "persistent://public/default/f-~-1",
                    "non-persistent://public/default/f-~-n",
                    "persistent://public/default/f-~-0-partition-3",
                    "persistent://public/none-~/t",
                    "persistent://none-~/ns/t",
                    "persistent://public/default/",
                    "strange://public/default/t",
                    "public/default/f-~-0",
                    "f-~-0",
                    "",
                ])
                .into();
            let (name, fields) = match random.below(8) {
                0..3 => ("LOOKUP", fields([("topic", topic)])),
                3..5 => ("PARTITIONED_METADATA", fields([("topic", topic)])),
                5 => ("GET_SCHEMA", fields([("topic", topic)])),
                6 => {
                    // At a namespace that is no name Apache closes the connection; behind the gateway that is an error.
                    let namespace = random.of(&["public/none-~", "none-~/ns"]);
                    let mode = random.of(&["PERSISTENT", "NON_PERSISTENT", "ALL"]);
                    let fields = fields([("namespace", namespace.into()), ("mode", mode.into())]);
                    ("GET_TOPICS_OF_NAMESPACE", fields)
                }
                _ => ("PING", Mapping::new()),
            };
            command(random, "l", name, fields, None)
        })
        .collect()
}

/// How long nothing must come after each operation.
const SETTLE_MILLIS: u64 = 60;
