//! Scenarios: data, read from `scenarios/THEME/NAME.yaml`. README.md shows the format.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_yaml::{Mapping, Value};

use crate::transcript::{Direction, split_key};
use crate::value::{flow, list};

/// A scenario.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    /// `theme/name`.
    pub(crate) name: String,
    /// What is recorded from.
    pub(crate) target: Kind,
    /// Settings of the server beside the harness's own; scenarios with the same ones share a server.
    pub(crate) settings: Vec<(String, String)>,
    /// Whether topics are looked up, unseen, before the first PRODUCER or SUBSCRIBE, as clients do.
    pub(crate) looks_up: bool,
    /// Whether drift and compare leave the gateway out: it could not be a proxy of these servers.
    pub(crate) is_direct: bool,
    pub(crate) steps: Vec<Step>,
}

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Standalone,
    Cluster,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Cluster => "cluster",
        }
    }
}

/// One step. Values may hold variables.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Opens a connection without a word.
    Open(Opening),
    /// Opens a connection, sends CONNECT with these fields and waits for CONNECTED.
    Connect {
        opening: Opening,
        fields: Value,
    },
    Send(Outgoing),
    Bytes {
        connection: String,
        bytes: Value,
    },
    /// Closes the connection, or only the direction to the server.
    End {
        connection: String,
        half: bool,
    },
    /// Waits for as many frames; all that come before them are taken as well.
    Expect {
        connection: String,
        wanted: Wanted,
        count: u64,
        within: Duration,
        capture: Mapping,
    },
    /// Waits for all of these frames; what came meanwhile is sorted.
    ExpectAnyOrder {
        connection: String,
        wanted: Vec<Wanted>,
        within: Duration,
    },
    ExpectClosed {
        connection: String,
        within: Duration,
    },
    /// Waits until nothing has come for this long on these connections (all when none is named).
    Quiet {
        connections: Vec<String>,
        sorted: bool,
        time: Duration,
    },
    /// Waits until everything asked for is answered and nothing has come for this long; writes down what came, sorted by
    /// connection.
    Settle(Duration),
    Admin {
        request: String,
        body: Value,
        /// Whether the names and types of all fields of the answer are recorded.
        has_shape: bool,
        /// Fields of the answer whose values are recorded; `*` is any part of a path.
        show: Vec<String>,
        capture: Mapping,
    },
    /// Waits until the answer to a GET includes this; not written down.
    Until {
        path: String,
        wanted: Value,
    },
    Unload(String),
    /// `kill`, `start`, `restart` of a broker.
    Process {
        action: String,
        broker: String,
    },
    /// Names the broker that owns the topic, and another one.
    Owner {
        topic: String,
        owner: String,
        other: Option<String>,
    },
    /// Names the broker that decides where topics go, and another one.
    Leader {
        leader: String,
        other: String,
    },
    Lookup(String),
    Sleep(Duration),
    Set(Mapping),
    Repeat {
        times: u64,
        variable: String,
        steps: Vec<Step>,
    },
}

/// A frame to send.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) connection: String,
    pub(crate) command: String,
    pub(crate) fields: Value,
    pub(crate) message: Option<Value>,
    /// Where the frame is cut into two writes, in bytes.
    pub(crate) split: Option<usize>,
}

/// Where a connection goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Opening {
    pub(crate) connection: String,
    /// The broker, by name; the first one when nothing is said.
    pub(crate) broker: Option<String>,
    /// The broker that owns this topic.
    pub(crate) topic: Option<String>,
    /// The broker that the last LOOKUP_RESPONSE on this connection named.
    pub(crate) as_told: Option<String>,
    /// A connection for lookups: through a gateway its CONNECT names no broker.
    pub(crate) is_service: bool,
    /// Leaves the server's PING unanswered.
    pub(crate) is_silent: bool,
}

/// A frame that is waited for: the name, and what its fields must include.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) command: String,
    pub(crate) fields: Value,
}

impl Scenario {
    /// Reads a scenario from its text.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let root: Mapping = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
        only(
            &root,
            &["summary", "target", "settings", "lookup", "direct", "steps"],
            "a scenario",
        )?;
        if root.get("summary").and_then(Value::as_str).is_none() {
            return Err("a scenario needs a summary".to_owned());
        }
        let target = match root.get("target").and_then(Value::as_str) {
            None | Some("standalone") => Kind::Standalone,
            Some("cluster") => Kind::Cluster,
            Some(other) => return Err(format!("there is no target {other}")),
        };
        let settings = match root.get("settings") {
            Some(Value::Mapping(settings)) => settings
                .iter()
                .map(|(key, value)| (plain(key), plain(value)))
                .collect(),
            _ => Vec::new(),
        };
        Ok(Self {
            name: name.to_owned(),
            target,
            settings,
            looks_up: root.get("lookup").and_then(Value::as_bool) != Some(false),
            is_direct: root.get("direct").and_then(Value::as_bool) == Some(true),
            steps: steps(root.get("steps").unwrap_or(&Value::Null))?,
        })
    }

    /// Whether it disturbs what runs beside it.
    pub(crate) fn runs_alone(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, Step::Process { .. }))
    }
}

/// All scenarios whose name contains one of the filters; all without filters. In the order of their names.
pub(crate) fn load(root: &Path, filters: &[String]) -> Result<Vec<Scenario>, String> {
    let mut files = Vec::new();
    for theme in entries(&root.join("scenarios"))? {
        if theme.is_dir() {
            files.extend(entries(&theme)?);
        }
    }
    files.sort();
    let mut scenarios = Vec::new();
    for file in files {
        let name = name_of(&file);
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let scenario = Scenario::parse(&name, &text);
        scenarios.push(scenario.map_err(|error| format!("{name}: {error}"))?);
    }
    Ok(scenarios)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let read = std::fs::read_dir(folder).map_err(|error| format!("{folder:?}: {error}"))?;
    read.map(|entry| {
        entry
            .map(|entry| entry.path())
            .map_err(|error| error.to_string())
    })
    .collect()
}

fn name_of(file: &Path) -> String {
    let part = |path: Option<&std::ffi::OsStr>| {
        path.map(|part| part.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let theme = part(file.parent().and_then(Path::file_name));
    format!("{theme}/{}", part(file.file_stem()))
}

/// Parses a list of steps.
pub(crate) fn steps(value: &Value) -> Result<Vec<Step>, String> {
    let steps = list(value).into_iter().enumerate();
    steps
        .map(|(place, value)| {
            step(&value).map_err(|error| format!("step {}, {}: {error}", place + 1, flow(&value)))
        })
        .collect()
}

fn step(value: &Value) -> Result<Step, String> {
    let Value::Mapping(options) = value else {
        return Err("a step is a mapping".to_owned());
    };
    let (key, value) = options.iter().next().ok_or("an empty step")?;
    let key = plain(key);
    if let Some((connection, direction, name)) = split_key(&key) {
        return match direction {
            Direction::Sent => sent(connection, name, value, options, &key),
            Direction::Received => received(connection, name, value, options, &key),
        };
    }
    let allow = |names: &[&str]| {
        let mut names = names.to_vec();
        names.push(&key);
        only(options, &names, &key)
    };
    match key.as_str() {
        "open" => {
            allow(&[])?;
            Ok(Step::Open(opening(value)?))
        }
        "connect" => {
            allow(&["fields"])?;
            Ok(Step::Connect {
                opening: opening(value)?,
                fields: options.get("fields").cloned().unwrap_or(Value::Null),
            })
        }
        "quiet" => {
            allow(&["sorted", "for"])?;
            let names = list(value).iter().map(plain).collect::<Vec<_>>();
            Ok(Step::Quiet {
                connections: if names == ["all"] { Vec::new() } else { names },
                sorted: options.get("sorted").and_then(Value::as_bool) == Some(true),
                time: millis(options, "for", QUIET),
            })
        }
        "settle" => {
            allow(&[])?;
            let time = value.as_u64().ok_or("settle takes milliseconds")?;
            Ok(Step::Settle(Duration::from_millis(time)))
        }
        "admin" => {
            allow(&["body", "show", "capture"])?;
            Ok(Step::Admin {
                request: plain(value),
                body: options.get("body").cloned().unwrap_or(Value::Null),
                has_shape: true,
                show: list(options.get("show").unwrap_or(&Value::Null))
                    .iter()
                    .map(plain)
                    .collect(),
                capture: captures(options),
            })
        }
        "stats" | "internal stats" => {
            allow(&["show"])?;
            let (path, fields) = if key == "stats" {
                ("stats", STATS)
            } else {
                ("internalStats", INTERNAL_STATS)
            };
            let topic = plain(value).replace("://", "/");
            let more = list(options.get("show").unwrap_or(&Value::Null));
            let fields = fields.iter().map(|field| (*field).to_owned());
            Ok(Step::Admin {
                request: format!("GET /admin/v2/{topic}/{path}"),
                body: Value::Null,
                has_shape: false,
                show: fields.chain(more.iter().map(plain)).collect(),
                capture: Mapping::new(),
            })
        }
        "until" => {
            allow(&["is"])?;
            Ok(Step::Until {
                path: plain(value),
                wanted: options.get("is").cloned().unwrap_or(Value::Null),
            })
        }
        "unload" => {
            allow(&[])?;
            Ok(Step::Unload(plain(value)))
        }
        "kill" | "start" | "restart" => {
            allow(&[])?;
            Ok(Step::Process {
                broker: plain(value),
                action: key,
            })
        }
        "owner" => {
            allow(&[])?;
            let part = |name| value.get(name).map(plain);
            Ok(Step::Owner {
                topic: part("topic").ok_or("owner needs a topic")?,
                owner: part("owner").unwrap_or_else(|| "owner".to_owned()),
                other: part("other"),
            })
        }
        "leader" => {
            allow(&[])?;
            let part = |name: &str| value.get(name).map_or_else(|| name.to_owned(), plain);
            Ok(Step::Leader {
                leader: part("leader"),
                other: part("other"),
            })
        }
        "lookup" => {
            allow(&[])?;
            Ok(Step::Lookup(plain(value)))
        }
        "sleep" => {
            allow(&[])?;
            let time = value.as_u64().ok_or("sleep takes milliseconds")?;
            Ok(Step::Sleep(Duration::from_millis(time)))
        }
        "set" => {
            allow(&[])?;
            let variables = value.as_mapping().ok_or("set takes variables")?;
            Ok(Step::Set(variables.clone()))
        }
        "repeat" => {
            allow(&["as", "steps"])?;
            Ok(Step::Repeat {
                times: value.as_u64().ok_or("repeat takes a number")?,
                variable: options.get("as").map_or_else(|| "i".to_owned(), plain),
                steps: steps(options.get("steps").unwrap_or(&Value::Null))?,
            })
        }
        _ => Err(format!("there is no step {key}")),
    }
}

fn sent(
    connection: &str,
    name: &str,
    value: &Value,
    options: &Mapping,
    key: &str,
) -> Result<Step, String> {
    let connection = connection.to_owned();
    match name {
        "bytes" => Ok(Step::Bytes {
            connection,
            bytes: value.clone(),
        }),
        "close" | "half close" => Ok(Step::End {
            connection,
            half: name == "half close",
        }),
        _ => {
            only(options, &[key, "message", "split"], key)?;
            let split = options.get("split").and_then(Value::as_u64);
            crate::wire::takes_request_id(name)?;
            Ok(Step::Send(Outgoing {
                connection,
                command: name.to_owned(),
                fields: value.clone(),
                message: options.get("message").cloned(),
                split: split.and_then(|split| split.try_into().ok()),
            }))
        }
    }
}

fn received(
    connection: &str,
    name: &str,
    value: &Value,
    options: &Mapping,
    key: &str,
) -> Result<Step, String> {
    only(options, &[key, "count", "within", "capture"], key)?;
    let connection = connection.to_owned();
    let within = millis(options, "within", WITHIN);
    match name {
        "closed" => Ok(Step::ExpectClosed { connection, within }),
        "any order" => {
            let wanted = list(value).iter().map(wanted).collect::<Result<_, _>>()?;
            Ok(Step::ExpectAnyOrder {
                connection,
                wanted,
                within,
            })
        }
        _ => {
            crate::wire::takes_request_id(name)?;
            Ok(Step::Expect {
                connection,
                wanted: Wanted {
                    command: name.to_owned(),
                    fields: value.clone(),
                },
                count: options.get("count").and_then(Value::as_u64).unwrap_or(1),
                within,
                capture: captures(options),
            })
        }
    }
}

/// `COMMAND` or `{COMMAND: {fields}}`.
fn wanted(value: &Value) -> Result<Wanted, String> {
    let (command, fields) = match value {
        Value::Mapping(mapping) => match mapping.iter().next() {
            Some((name, fields)) => (plain(name), fields.clone()),
            None => return Err("an empty frame".to_owned()),
        },
        other => (plain(other), Value::Null),
    };
    crate::wire::takes_request_id(&command)?;
    Ok(Wanted { command, fields })
}

fn opening(value: &Value) -> Result<Opening, String> {
    let Value::Mapping(options) = value else {
        return Ok(Opening {
            connection: plain(value),
            ..Opening::default()
        });
    };
    only(
        options,
        &[
            "connection",
            "broker",
            "topic",
            "as_told",
            "service",
            "silent",
        ],
        "a connection",
    )?;
    let part = |name| options.get(name).map(plain);
    let is = |name| options.get(name).and_then(Value::as_bool) == Some(true);
    Ok(Opening {
        connection: part("connection").ok_or("the connection has no name")?,
        broker: part("broker"),
        topic: part("topic"),
        as_told: part("as_told"),
        is_service: is("service"),
        is_silent: is("silent"),
    })
}

fn captures(options: &Mapping) -> Mapping {
    match options.get("capture") {
        Some(Value::Mapping(captures)) => captures.clone(),
        _ => Mapping::new(),
    }
}

fn millis(options: &Mapping, key: &str, default: Duration) -> Duration {
    let millis = options.get(key).and_then(Value::as_u64);
    millis.map_or(default, Duration::from_millis)
}

/// Refuses keys that mean nothing: a misspelt option must not be ignored.
fn only(options: &Mapping, names: &[&str], what: &str) -> Result<(), String> {
    let unknown = options
        .keys()
        .map(plain)
        .find(|key| !names.contains(&key.as_str()));
    match unknown {
        Some(unknown) => Err(format!("{what} has no option {unknown}")),
        None => Ok(()),
    }
}

/// A scalar as text.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => flow(other),
    }
}

/// How long a frame is waited for.
const WITHIN: Duration = Duration::from_secs(10);
/// For how long nothing comes until it is quiet.
const QUIET: Duration = Duration::from_millis(300);

/// What `stats` shows of a topic.
const STATS: &[&str] = &[
    "msgInCounter",
    "publishers.*.accessMode",
    "subscriptions.*.type",
    "subscriptions.*.msgBacklog",
    "subscriptions.*.unackedMessages",
    "subscriptions.*.isDurable",
    "subscriptions.*.isReplicated",
    "subscriptions.*.consumers.*.consumerName",
    "subscriptions.*.consumers.*.unackedMessages",
];

/// What `internal stats` shows of a topic.
const INTERNAL_STATS: &[&str] = &[
    "state",
    "entriesAddedCounter",
    "numberOfEntries",
    "lastConfirmedEntry",
    "ledgers.*.entries",
    "cursors.*.markDeletePosition",
    "cursors.*.readPosition",
    "cursors.*.individuallyDeletedMessages",
    "cursors.*.messagesConsumedCounter",
];
