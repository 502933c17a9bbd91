//! What scenarios run against: Apache Pulsar, direct or behind the gateway, a broker by its address, or a replay.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pulsegate::config::GatewaySettings;
use pulsegate::gateway::Gateway;
use pulsegate::http::{Phase, PhaseSender, phases};
use pulsegate::naming::ServiceUrl;
use pulsegate::telemetry::MetricRegistry;
use serde_yaml::Value;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::connection::{Arrival, Connection};
use crate::http;
use crate::replay::{Broker, Replay};
use crate::scenario::Kind;
use crate::value::mapping;
use crate::wire;

/// A place to run scenarios in.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) brokers: Vec<Broker>,
    /// The gateway's address; without one, connections go to the brokers.
    pub(crate) front: Option<String>,
    pub(crate) replay: Option<Arc<Replay>>,
    peers: Option<Arc<Peers>>,
    /// Whether brokers were stopped or topics moved: lookups may then have to wait.
    is_moving: AtomicBool,
    dead: Mutex<Vec<String>>,
}

impl Environment {
    /// Brokers and nothing else.
    pub(crate) fn direct(brokers: Vec<Broker>) -> Self {
        Self {
            brokers,
            front: None,
            replay: None,
            peers: None,
            is_moving: AtomicBool::new(false),
            dead: Mutex::new(Vec::new()),
        }
    }

    /// Apache Pulsar, direct.
    pub(crate) fn of_peers(peers: &Arc<Peers>) -> Self {
        Self {
            peers: Some(Arc::clone(peers)),
            ..Self::direct(peers.brokers.clone())
        }
    }

    /// The same behind a gateway.
    #[must_use]
    pub(crate) fn behind(mut self, gateway: &RunningGateway) -> Self {
        self.front = Some(gateway.address.clone());
        self
    }

    /// A replay behind a gateway.
    pub(crate) fn of_replay(replay: &Arc<Replay>, gateway: &RunningGateway) -> Self {
        Self {
            replay: Some(Arc::clone(replay)),
            ..Self::direct(replay.brokers())
        }
        .behind(gateway)
    }

    /// Addresses and what they are called in transcripts. Which broker of several serves what is chance, until a step
    /// names them.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let mut names = Vec::new();
        for broker in &self.brokers {
            let name = match self.brokers.len() {
                1 => broker.name.clone(),
                _ => "broker".to_owned(),
            };
            if let Some(web) = &broker.web {
                names.push((web.trim_start_matches("http://").to_owned(), name.clone()));
            }
            names.push((broker.address.clone(), name));
        }
        if let Some(front) = &self.front {
            names.push((front.clone(), "gateway".to_owned()));
        }
        names
    }

    /// The address of a broker by name.
    pub(crate) fn address_of(&self, name: &str) -> Result<String, String> {
        self.brokers
            .iter()
            .find(|broker| broker.name == name)
            .map(|broker| broker.address.clone())
            .ok_or_else(|| format!("there is no broker {name}"))
    }

    /// The base URL of a broker's REST interface.
    pub(crate) fn web(&self) -> Result<String, String> {
        let dead = self.dead.lock();
        self.brokers
            .iter()
            .filter(|broker| !dead.contains(&broker.name))
            .find_map(|broker| broker.web.clone())
            .ok_or_else(|| "no broker has a REST interface".to_owned())
    }

    pub(crate) fn is_moving(&self) -> bool {
        self.is_moving.load(Ordering::Relaxed)
    }

    /// Says that ownership is about to change.
    pub(crate) fn moves(&self) {
        self.is_moving.store(true, Ordering::Relaxed);
    }

    /// Kills, starts or restarts (kill and start) a broker.
    pub(crate) async fn process(&self, action: &str, broker: &str) -> Result<(), String> {
        if self.replay.is_some() {
            return Ok(());
        }
        self.moves();
        let peers = self.peers.clone().ok_or("these brokers cannot be killed")?;
        for action in match action {
            "restart" => vec!["kill", "start"],
            action => vec![action],
        } {
            match action {
                "kill" => self.dead.lock().push(broker.to_owned()),
                _ => self.dead.lock().retain(|dead| dead != broker),
            }
            let (peers, action, broker) =
                (Arc::clone(&peers), action.to_owned(), broker.to_owned());
            let done = tokio::task::spawn_blocking(move || peers.process(&action, &broker));
            done.await.map_err(|error| error.to_string())??;
        }
        Ok(())
    }

    /// Asks the REST interface until its answer includes what is wanted. A replay does not wait.
    pub(crate) async fn until(&self, path: &str, wanted: &Value) -> Result<(), String> {
        if self.replay.is_some() {
            return Ok(());
        }
        let end = Instant::now() + UNTIL_TIME;
        loop {
            let answer = http::request(&self.web()?, "GET", path, None).await?;
            let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            if crate::value::includes(&body, wanted) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("{path} stays {}", crate::value::flow(&body)));
            }
            tokio::time::sleep(UNTIL_POLL).await;
        }
    }

    /// The address of the broker that decides where topics go.
    pub(crate) async fn leader(&self) -> Result<String, String> {
        if self.replay.is_some() {
            return Ok(self.brokers[0].address.clone());
        }
        let path = "/admin/v2/brokers/leaderBroker";
        let answer = http::request(&self.web()?, "GET", path, None).await?;
        let leader: Value =
            serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        // The broker's id is the host and port of its REST interface.
        let id = leader.get("brokerId").and_then(Value::as_str);
        let url = format!("http://{}", id.unwrap_or_default());
        self.brokers
            .iter()
            .find(|broker| broker.web.as_ref() == Some(&url))
            .map(|broker| broker.address.clone())
            .ok_or_else(|| format!("no broker is {}", crate::value::flow(&leader)))
    }

    /// Looks a topic up once, over redirects, and returns the address of the broker that serves it.
    pub(crate) async fn look_up(&self, topic: &str) -> Result<String, String> {
        let first = {
            let dead = self.dead.lock();
            let alive = self
                .brokers
                .iter()
                .find(|broker| !dead.contains(&broker.name));
            alive.unwrap_or(&self.brokers[0]).address.clone()
        };
        let mut address = self.front.clone().unwrap_or(first);
        let mut is_authoritative = false;
        for request_id in 1..=REDIRECTS {
            let mut connection = Connection::open(&address, true)
                .await
                .map_err(|error| error.to_string())?;
            let connect = mapping([
                ("client_version", "oracle".into()),
                ("protocol_version", 21.into()),
            ]);
            ask(&mut connection, "CONNECT", &connect).await?;
            let lookup = mapping([
                ("topic", topic.into()),
                ("request_id", request_id.into()),
                ("authoritative", is_authoritative.into()),
            ]);
            let (name, answer) = ask(&mut connection, "LOOKUP", &lookup).await?;
            let text = |key: &str| answer.get(key).and_then(Value::as_str).map(str::to_owned);
            let url = text("brokerServiceUrl");
            match (text("response").as_deref(), url) {
                (Some("Connect"), Some(url)) => {
                    return Ok(url.trim_start_matches("pulsar://").to_owned());
                }
                (Some("Redirect"), Some(url)) => {
                    address = url.trim_start_matches("pulsar://").to_owned();
                    is_authoritative =
                        answer.get("authoritative").and_then(Value::as_bool) == Some(true);
                }
                _ => return Err(format!("{name} {}", crate::value::flow(&answer))),
            }
        }
        Err("redirected too often".to_owned())
    }
}

async fn ask(
    connection: &mut Connection,
    command: &str,
    fields: &Value,
) -> Result<(String, Value), String> {
    let bytes = wire::encode_frame(command, fields, None)?;
    connection.send(&bytes).await;
    match connection.next(Instant::now() + ANSWER_TIME).await {
        Some(Arrival::Frame(frame)) => {
            let decoded = wire::decode_frame(&frame);
            Ok((decoded.name, decoded.fields))
        }
        Some(Arrival::Closed) => Err(format!("closed after {command}")),
        None => Err(format!("no answer to {command}")),
    }
}

/// A gateway in this process.
#[derive(Debug)]
pub(crate) struct RunningGateway {
    pub(crate) address: String,
    phase: PhaseSender,
    running: TaskTracker,
}

impl RunningGateway {
    /// Starts a gateway in front of these brokers.
    pub(crate) fn start(brokers: &[Broker]) -> Result<Self, String> {
        let addresses: Vec<&str> = brokers
            .iter()
            .map(|broker| broker.address.as_str())
            .collect();
        let url: ServiceUrl = format!("pulsar://{}", addresses.join(","))
            .parse()
            .map_err(|error| format!("{error}"))?;
        let mut settings = GatewaySettings::for_broker(url);
        settings.bind_address = [127, 0, 0, 1].into();
        settings.service_port = Some(0);
        settings.cluster_name = "oracle".to_owned();
        let registry = MetricRegistry::new(&settings.cluster_name);
        let (phase, phases) = phases();
        let gateway =
            Gateway::bind(settings, &registry, phases).map_err(|error| error.to_string())?;
        let address = gateway.handle().local_addr();
        let address = address.ok_or("no port")?.to_string();
        let running = TaskTracker::new();
        running.spawn(gateway.run());
        running.close();
        Ok(Self {
            address,
            phase,
            running,
        })
    }

    /// Ends it and waits for its connections.
    pub(crate) async fn stop(self) {
        self.phase.advance(Phase::Stopped);
        let _ = tokio::time::timeout(ANSWER_TIME, self.running.wait()).await;
    }
}

/// Apache Pulsar, started by `tests/peers/pulsar.py`. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Peers {
    path: PathBuf,
    kind: Kind,
    brokers: Vec<Broker>,
    /// Removed after the server was stopped, whose state is in it.
    _folder: TempDir,
}

impl Peers {
    /// Starts a server. Not cancel-safe in that the start goes on; what it started is stopped then.
    pub(crate) async fn start(
        kind: Kind,
        settings: Vec<(String, String)>,
    ) -> Result<Arc<Self>, String> {
        let starting = tokio::task::spawn_blocking(move || {
            Self::start_blocking(kind, &settings).map(Arc::new)
        });
        starting.await.map_err(|error| error.to_string())?
    }

    fn start_blocking(kind: Kind, settings: &[(String, String)]) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = folder.path().join("peer");
        let mut arguments = vec![kind.as_str().to_owned(), path.display().to_string()];
        let mut peers = Self {
            path,
            kind,
            brokers: Vec::new(),
            _folder: folder,
        };
        let ours = SETTINGS
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let ours = ours.filter(|(key, _)| settings.iter().all(|(other, _)| other != key));
        for (key, value) in ours.chain(settings.iter().cloned()) {
            arguments.push(format!("{key}={value}"));
        }
        let state = kit(&arguments)?;
        let brokers = crate::value::at_path(&state, "brokers").map(crate::value::list);
        for (place, broker) in brokers.unwrap_or_default().iter().enumerate() {
            let url = |key: &str| {
                let url = broker.get(key).and_then(Value::as_str);
                url.unwrap_or_default().to_owned()
            };
            peers.brokers.push(Broker {
                name: format!("broker{place}"),
                address: url("service_url")
                    .trim_start_matches("pulsar://")
                    .to_owned(),
                web: Some(url("admin_url")),
            });
        }
        if peers.brokers.is_empty() {
            return Err(format!("no brokers in {}", crate::value::flow(&state)));
        }
        Ok(peers)
    }

    pub(crate) fn brokers(&self) -> &[Broker] {
        &self.brokers
    }

    fn process(&self, action: &str, broker: &str) -> Result<(), String> {
        let name = match self.kind {
            Kind::Standalone => "standalone",
            Kind::Cluster => broker,
        };
        let folder = self.path.display().to_string();
        kit(&[action.to_owned(), folder, name.to_owned()]).map(|_| ())
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let _ = kit(&["stop".to_owned(), self.path.display().to_string()]);
    }
}

/// Runs the kit and returns the JSON that it prints.
fn kit(arguments: &[String]) -> Result<Value, String> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/pulsar.py");
    let output = Command::new("python3")
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// What all servers run with, beside the kit's own settings: features that scenarios are about are on.
const SETTINGS: &[(&str, &str)] = &[
    ("acknowledgmentAtBatchIndexLevelEnabled", "true"),
    ("transactionCoordinatorEnabled", "true"),
    ("systemTopicEnabled", "true"),
    ("topicLevelPoliciesEnabled", "true"),
    ("numIOThreads", "2"),
];

const REDIRECTS: u64 = 10;
/// How long a state is waited for: the session of a broker that was killed lasts 30 s.
const UNTIL_TIME: Duration = Duration::from_secs(90);
const UNTIL_POLL: Duration = Duration::from_millis(100);
const ANSWER_TIME: Duration = Duration::from_secs(10);
