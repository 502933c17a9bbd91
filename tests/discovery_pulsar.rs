//! A gateway that is told of ZooKeeper alone, in front of a real cluster of two brokers that come and go.
//!
//! Starts the cluster with `tests/peers/pulsar.py`. Needs Python, a JDK, and in `PULSEGATE_PULSAR_JARS` the folder with Pulsar's
//! jars. Skipped, with a line on standard error, where the variable is not set.

#![cfg(feature = "zookeeper")]
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation is how a test fails"
)]

use std::env;
use std::io::Write as _;
use std::path::Path;
use std::process::Command as Program;
use std::time::{Duration, Instant};

use pulsegate::client::{
    ClientOptions, Consumer, ConsumerOptions, OutgoingMessage, Producer, ProducerOptions,
    PulsarClient, Topics,
};
use pulsegate::config::{Sources, load_gateway};
use pulsegate::gateway::{Gateway, GatewayHandle};
use pulsegate::http::{Phase, PhaseSender, phases};
use pulsegate::naming::{ServiceUrl, TopicName};
use pulsegate::telemetry::MetricRegistry;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

const JARS: &str = "PULSEGATE_PULSAR_JARS";

/// A cluster of ZooKeeper, a bookie and two brokers, stopped when dropped.
struct Cluster {
    folder: tempfile::TempDir,
    metadata_url: String,
}

impl Cluster {
    fn start() -> Self {
        let mut cluster = Self {
            folder: tempfile::tempdir().unwrap(),
            metadata_url: String::new(),
        };
        let started = cluster.run(&["cluster"], &[]);
        let info: serde_json::Value = serde_json::from_str(&started).unwrap();
        let url = info.get("metadata_url").and_then(serde_json::Value::as_str);
        cluster.metadata_url = url.unwrap().to_owned();
        cluster
    }

    fn path(&self) -> String {
        self.folder.path().join("cluster").display().to_string()
    }

    fn run(&self, verb: &[&str], arguments: &[&str]) -> String {
        let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/pulsar.py");
        let mut program = Program::new(kit);
        let output = program
            .args(verb)
            .arg(self.path())
            .args(arguments)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{verb:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn kill(&self, name: &str) {
        self.run(&["kill"], &[name]);
    }

    fn start_again(&self, name: &str) {
        self.run(&["start"], &[name]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if Path::new(&self.path()).join("state.json").exists() {
            self.run(&["stop"], &[]);
        }
    }
}

/// A gateway in this process.
struct TestGateway {
    handle: GatewayHandle,
    registry: MetricRegistry,
    phase: PhaseSender,
    running: TaskTracker,
}

impl TestGateway {
    fn start(metadata_url: &str, sets: &[&str]) -> Self {
        let discovery = format!("metadataStoreUrl={metadata_url}");
        let common = ["bindAddress=127.0.0.1", "servicePort=0", &discovery];
        let loaded = load_gateway(&Sources {
            sets: common
                .iter()
                .chain(sets)
                .map(|set| (*set).to_owned())
                .collect(),
            ..Sources::default()
        });
        let registry = MetricRegistry::new("test");
        let (phase, phases) = phases();
        let gateway = Gateway::bind(loaded.unwrap().settings, &registry, phases).unwrap();
        let handle = gateway.handle();
        let running = TaskTracker::new();
        running.spawn(gateway.run());
        running.close();
        Self {
            handle,
            registry,
            phase,
            running,
        }
    }

    fn url(&self) -> ServiceUrl {
        format!("pulsar://{}", self.handle.local_addr().unwrap())
            .parse()
            .unwrap()
    }

    fn metric(&self, name: &str) -> String {
        let text = self.registry.render();
        let prefix = format!("{name}{{cluster=\"test\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&prefix))
            .unwrap_or_else(|| panic!("no metric {name}"))
            .to_owned()
    }

    async fn wait_for_brokers(&self, known: u32, healthy: u32) {
        let expected = (known.to_string(), healthy.to_string());
        let began = Instant::now();
        loop {
            let found = (
                self.metric("pulsegate_gateway_brokers_known"),
                self.metric("pulsegate_gateway_brokers_healthy"),
            );
            if found == expected {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{found:?} and not {expected:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn stop(self) {
        self.phase.advance(Phase::Stopped);
        timeout(PATIENCE, self.running.wait()).await.unwrap();
    }
}

/// Producers of several topics, which both brokers serve, and a consumer of all.
struct Traffic {
    client: PulsarClient,
    producers: Vec<Producer>,
    consumer: Consumer,
    sent: u32,
}

impl Traffic {
    async fn start(url: ServiceUrl, name: &str) -> Self {
        let client = PulsarClient::new(url, ClientOptions::default());
        let topics: Vec<TopicName> = (0..8)
            .map(|n| {
                format!("persistent://public/default/{name}-{n}")
                    .parse()
                    .unwrap()
            })
            .collect();
        let options = ConsumerOptions::new("discovery");
        let consumer = client
            .consumer(Topics::Many(topics.clone()), options)
            .await
            .unwrap();
        let mut producers = Vec::new();
        for topic in &topics {
            producers.push(
                client
                    .producer(topic, ProducerOptions::default())
                    .await
                    .unwrap(),
            );
        }
        Self {
            client,
            producers,
            consumer,
            sent: 0,
        }
    }

    /// A message to each topic, and all of them received and acknowledged.
    async fn round(&mut self) {
        let mut expected = Vec::new();
        for producer in &self.producers {
            self.sent += 1;
            let text = format!("message {}", self.sent);
            expected.push(text.clone());
            let sent = timeout(PATIENCE, producer.send(OutgoingMessage::new(text))).await;
            sent.unwrap().unwrap();
        }
        while !expected.is_empty() {
            let message = timeout(PATIENCE, self.consumer.recv())
                .await
                .unwrap()
                .unwrap();
            let text = String::from_utf8(message.payload.to_vec()).unwrap();
            // What was sent twice, after a lost receipt, may come twice.
            expected.retain(|other| *other != text);
            self.consumer.ack(&message).await.unwrap();
        }
    }

    fn stop(self) {
        self.client.close();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_are_found_in_zookeeper_and_followed_as_they_come_and_go() {
    if env::var_os(JARS).is_none() {
        // Not `eprintln`, which the test harness would swallow.
        let line = format!("SKIPPED discovery: {JARS} names no folder with Pulsar's jars");
        writeln!(std::io::stderr(), "{line}").unwrap();
        return;
    }
    let began = Instant::now();
    let step = |what: &str| {
        let seconds = began.elapsed().as_secs();
        writeln!(std::io::stderr(), "{seconds:4} s {what}").unwrap();
    };
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let gateway = TestGateway::start(
        &cluster.metadata_url,
        &["checkActiveBrokers=true", "zookeeperSessionTimeoutMs=6000"],
    );
    gateway.wait_for_brokers(2, 2).await;
    assert!(gateway.handle.is_ready());
    step("produce and consume");
    let mut traffic = Traffic::start(gateway.url(), "discovered").await;
    traffic.round().await;

    step("a broker is killed");
    cluster.kill("broker1");
    gateway.wait_for_brokers(2, 1).await;
    assert!(gateway.handle.is_ready());
    // ZooKeeper notices when the session of the broker is over.
    gateway.wait_for_brokers(1, 1).await;
    traffic.round().await;
    step("and started again");
    cluster.start_again("broker1");
    gateway.wait_for_brokers(2, 2).await;
    traffic.round().await;

    step("ZooKeeper is killed");
    cluster.kill("zookeeper");
    traffic.round().await;
    gateway.wait_for_brokers(2, 2).await;
    assert!(gateway.handle.is_ready());
    cluster.start_again("zookeeper");
    traffic.round().await;
    step("the list is followed again");
    cluster.kill("broker0");
    gateway.wait_for_brokers(1, 1).await;
    traffic.round().await;
    traffic.stop();
    gateway.stop().await;

    step("lookups alone");
    let gateway = TestGateway::start(&cluster.metadata_url, &["lookupOnly=true"]);
    gateway.wait_for_brokers(1, 1).await;
    let mut traffic = Traffic::start(gateway.url(), "looked-up").await;
    traffic.round().await;
    assert_eq!(gateway.metric("pulsegate_gateway_broker_connections"), "0");
    assert_eq!(gateway.metric("pulsar_proxy_binary_bytes_total"), "0");
    traffic.stop();
    gateway.stop().await;
    tokio::task::spawn_blocking(move || drop(cluster))
        .await
        .unwrap();
}

/// What takes longer does not happen. Sessions of brokers end after 10 s.
const PATIENCE: Duration = Duration::from_secs(60);
