//! The client against a real Apache Pulsar that wants TLS and a credential, directly, through the Apache proxy, and through our
//! gateway with TLS on both sides.
//!
//! Starts both with `tests/peers/pulsar.py`. Needs Python, openssl, a JDK, and in `PULSEGATE_PULSAR_JARS` the folder with
//! Pulsar's jars. Skipped, with a line on standard error, where the variable is not set.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed expectation is how a test fails"
)]

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pulsegate::client::{
    Authentication, BrokerLookup, ClientOptions, CloseReason, ConnectError, Connection,
    ConnectionOptions, ConsumerOptions, LookupError, LookupFailure, OutgoingMessage, PoolError,
    ProducerOptions, PulsarClient, TlsFilePaths, TlsFiles, TlsSource, Topics,
};
use pulsegate::config::{
    CertificateFiles, CredentialSource, GatewaySettings, Secret, TlsParameters,
};
use pulsegate::gateway::Gateway;
use pulsegate::http::{Phase, PhaseSender, phases};
use pulsegate::naming::{BrokerAddress, ServiceUrl, TopicName};
use pulsegate::net::TlsError;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::proto::pulsar::{
    CommandConnect, CommandProducer, FeatureFlags, ServerError,
};
use pulsegate::telemetry::MetricRegistry;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

const JARS: &str = "PULSEGATE_PULSAR_JARS";

/// A standalone and a proxy in front of it, stopped when dropped.
struct Peers {
    folder: tempfile::TempDir,
    direct: serde_json::Value,
    proxy: serde_json::Value,
}

impl Peers {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut peers = Self {
            folder,
            direct: serde_json::Value::Null,
            proxy: serde_json::Value::Null,
        };
        let [standalone, proxy, credentials] =
            ["standalone", "proxy", "credentials"].map(|name| peers.path(name));
        peers.direct = json(&["standalone", &standalone, "--secure", &credentials]);
        peers.proxy = json(&[
            "proxy",
            &proxy,
            "--of",
            &standalone,
            "--secure",
            &credentials,
        ]);
        peers
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("credentials").join(name)
    }

    fn token(&self, seconds: u32) -> String {
        let seconds = seconds.to_string();
        let token = pulsar(&["token", &self.path("credentials"), "client", &seconds]);
        token.trim().to_owned()
    }

    fn tls(&self, authority: &str, identity: Option<(&str, &str)>) -> TlsSource {
        let files = TlsFiles::open(TlsFilePaths {
            trusted: Some(self.file(authority)),
            identity: identity.map(|(certificate, key)| (self.file(certificate), self.file(key))),
            allow_insecure: false,
            verify_host_name: true,
            parameters: TlsParameters::default(),
        });
        TlsSource::Files(Arc::new(files.unwrap()))
    }

    fn options(&self, authentication: Authentication) -> ConnectionOptions {
        ConnectionOptions {
            authentication,
            tls: self.tls("ca.pem", None),
            ..ConnectionOptions::default()
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for name in ["proxy", "standalone"] {
            if Path::new(&self.path(name)).join("state.json").exists() {
                pulsar(&["stop", &self.path(name)]);
            }
        }
    }
}

fn pulsar(arguments: &[&str]) -> String {
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/pulsar.py");
    let output = Program::new(kit).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&pulsar(arguments)).unwrap()
}

fn url(peer: &serde_json::Value, name: &str) -> ServiceUrl {
    peer[name].as_str().unwrap().parse().unwrap()
}

/// Looks a topic up, goes to its broker in the way that the answer says, and makes a producer.
async fn produce(url: &ServiceUrl, options: &ConnectionOptions) -> Result<Connection, LookupError> {
    let client = PulsarClient::new(
        url.clone(),
        ClientOptions {
            connection: options.clone(),
            ..ClientOptions::default()
        },
    );
    let topic: TopicName = "persistent://public/default/secured".parse().unwrap();
    let found = client.lookups().lookup(&topic).await;
    client.close();
    let connection = connect(url, &found?, options).await.unwrap();
    let answer = connection.request(Command::from(CommandProducer {
        topic: topic.to_string(),
        producer_id: 1,
        ..CommandProducer::default()
    }));
    let answer = answer.await.unwrap();
    assert!(matches!(answer, Command::ProducerSuccess(_)), "{answer:?}");
    Ok(connection)
}

async fn connect(
    url: &ServiceUrl,
    broker: &BrokerLookup,
    options: &ConnectionOptions,
) -> Result<Connection, ConnectError> {
    let through = broker.proxy_through_service_url;
    let connect = CommandConnect {
        client_version: "pulsegate-test".to_owned(),
        protocol_version: Some(21),
        proxy_to_broker_url: through.then(|| broker.address.to_string()),
        feature_flags: Some(FeatureFlags {
            supports_auth_refresh: Some(true),
            ..FeatureFlags::default()
        }),
        ..CommandConnect::default()
    };
    let address = if through {
        &url.addresses[0]
    } else {
        &broker.address
    };
    Connection::open(address, connect, options.clone()).await
}

/// The reason for which the lookup had no connection.
fn refusal(result: Result<Connection, LookupError>) -> Arc<ConnectError> {
    match result {
        Err(LookupError::Failure(LookupFailure::Pool(PoolError::Connect { error, .. }))) => error,
        other => panic!("not refused: {other:?}"),
    }
}

fn is_authentication_error(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::Refused {
            code: ServerError::AuthenticationError,
            ..
        }
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secured_pulsar_is_used_directly_and_through_its_proxy() {
    if env::var_os(JARS).is_none() {
        // Not `eprintln`, which the test harness would swallow.
        let line = format!("SKIPPED a_secured_pulsar: {JARS} names no folder with Pulsar's jars");
        writeln!(std::io::stderr(), "{line}").unwrap();
        return;
    }
    let peers = tokio::task::spawn_blocking(Peers::start).await.unwrap();
    for (name, peer) in [("direct", &peers.direct), ("proxy", &peers.proxy)] {
        let step = |what: &str| writeln!(std::io::stderr(), "{name}: {what}").unwrap();
        let (plain, tls) = (url(peer, "service_url"), url(peer, "tls_service_url"));
        step("tokens, passwords");
        credentials(&peers, &plain, &tls).await;
        step("certificates");
        let through = if name == "direct" {
            Through::Nobody
        } else {
            Through::Proxy
        };
        certificates(&peers, &tls, through).await;
        step("expiry");
        expiry(&peers, &tls).await;
    }
    let step = |what: &str| writeln!(std::io::stderr(), "gateway: {what}").unwrap();
    let gateway = TestGateway::start(&peers);
    step("tokens, passwords");
    credentials(&peers, &gateway.plain, &gateway.tls).await;
    step("messages");
    messages(&peers, &gateway.tls).await;
    step("certificates");
    certificates(&peers, &gateway.tls, Through::Gateway).await;
    gateway.stop().await;
}

/// Our gateway in front of the standalone, which it reaches with TLS and a certificate of its own.
struct TestGateway {
    plain: ServiceUrl,
    tls: ServiceUrl,
    metrics: MetricRegistry,
    phase: PhaseSender,
    running: TaskTracker,
}

impl TestGateway {
    fn start(peers: &Peers) -> Self {
        let mut settings = GatewaySettings::for_broker(url(&peers.direct, "tls_service_url"));
        let files = |name: &str| CertificateFiles {
            certificate: peers.file(&format!("{name}.pem")),
            key: peers.file(&format!("{name}.key")),
        };
        settings.bind_address = [127, 0, 0, 1].into();
        settings.service_port = Some(0);
        settings.tls.service_port = Some(0);
        settings.tls.certificate = Some(files("server"));
        settings.tls.trust_certificates = Some(peers.file("ca.pem"));
        settings.tls.brokers.trust_certificates = Some(peers.file("ca.pem"));
        settings.tls.brokers.identity = Some(files("client"));
        let metrics = MetricRegistry::new("secured");
        let (phase, phases) = phases();
        let gateway = Gateway::bind(settings, &metrics, phases).unwrap();
        let handle = gateway.handle();
        let at = |scheme: &str, port: u16| format!("{scheme}://localhost:{port}").parse().unwrap();
        let running = TaskTracker::new();
        running.spawn(gateway.run());
        running.close();
        Self {
            plain: at("pulsar", handle.local_addr().unwrap().port()),
            tls: at("pulsar+ssl", handle.tls_local_addr().unwrap().port()),
            metrics,
            phase,
            running,
        }
    }

    async fn stop(self) {
        self.phase.advance(Phase::Stopped);
        self.running.wait().await;
        let metrics = self.metrics.render();
        for line in [
            "pulsar_proxy_active_connections{cluster=\"secured\"} 0",
            "pulsegate_gateway_tls_last_reload_success{cluster=\"secured\",side=\"brokers\"} 1",
        ] {
            assert!(metrics.contains(line), "{metrics}");
        }
    }
}

/// Messages of several sizes, small and large, go to the broker and come back.
async fn messages(peers: &Peers, url: &ServiceUrl) {
    let token = Authentication::token(CredentialSource::File(peers.file("client.token")));
    let client = PulsarClient::new(
        url.clone(),
        ClientOptions {
            connection: peers.options(token),
            ..ClientOptions::default()
        },
    );
    let topic: TopicName = "persistent://public/default/secured-messages"
        .parse()
        .unwrap();
    let topics = Topics::from(topic.clone());
    let consumer = client.consumer(topics, ConsumerOptions::new("s")).await;
    let consumer = consumer.unwrap();
    let producer = client.producer(&topic, ProducerOptions::default()).await;
    let producer = producer.unwrap();
    for size in [0, 1, 1_000, 100_000, 4_000_000] {
        let payload = Bytes::from(vec![7; size]);
        let sent = producer.send(OutgoingMessage::new(payload.clone()));
        timeout(Duration::from_secs(20), sent)
            .await
            .unwrap()
            .unwrap();
        let received = timeout(Duration::from_secs(20), consumer.recv()).await;
        let received = received.unwrap().unwrap();
        assert_eq!(received.payload, payload, "{size}");
        consumer.ack(&received).await.unwrap();
    }
    producer.close().await.unwrap();
    consumer.unsubscribe(false).await.unwrap();
    client.close();
}

async fn credentials(peers: &Peers, plain: &ServiceUrl, tls: &ServiceUrl) {
    let token = Authentication::token(CredentialSource::File(peers.file("client.token")));
    let password = Authentication::basic("client", &Secret::new("secret"));
    for url in [plain, tls] {
        for good in [&token, &password] {
            produce(url, &peers.options(good.clone())).await.unwrap();
        }
        let expired = CredentialSource::File(peers.file("expired.token"));
        for bad in [
            Authentication::token(expired),
            Authentication::basic("client", &Secret::new("wrong")),
            Authentication::none(),
        ] {
            let refused = refusal(produce(url, &peers.options(bad)).await);
            assert!(is_authentication_error(&refused), "{refused}");
        }
    }
}

/// How the broker is reached.
#[derive(Clone, Copy)]
enum Through {
    Nobody,
    /// Which authenticates the client itself.
    Proxy,
    /// Which does not, and has a certificate for the broker.
    Gateway,
}

async fn certificates(peers: &Peers, tls: &ServiceUrl, through: Through) {
    for identity in [
        ("client.pem", "client.key"),
        ("client.pem", "client.pkcs1.key"),
        ("client-ec.pem", "client-ec.key"),
    ] {
        let options = ConnectionOptions {
            tls: peers.tls("ca.pem", Some(identity)),
            ..peers.options(Authentication::tls())
        };
        let itself = BrokerLookup {
            address: tls.addresses[0].clone(),
            proxy_through_service_url: false,
        };
        match through {
            Through::Nobody => drop(produce(tls, &options).await.unwrap()),
            // The broker behind would see the proxy's certificate in place of the client's.
            Through::Proxy => drop(connect(tls, &itself, &options).await.unwrap()),
            // It must not: the gateway claims nobody's certificate for the client.
            Through::Gateway => {
                let refused = connect(tls, &itself, &options).await.unwrap_err();
                assert!(is_authentication_error(&refused), "{refused}");
            }
        }
    }
    let good = Authentication::token(CredentialSource::File(peers.file("client.token")));
    let options = ConnectionOptions {
        tls: peers.tls("other-ca.pem", None),
        ..peers.options(good.clone())
    };
    let refused = refusal(produce(tls, &options).await);
    assert!(
        matches!(&*refused, ConnectError::Tls(TlsError::UnknownIssuer { .. })),
        "{refused}"
    );

    let real = tls.addresses[0].clone();
    let elsewhere = BrokerAddress {
        host: "elsewhere.example".to_owned(),
        ..real.clone()
    };
    let options = ConnectionOptions {
        sni_proxy: Some(real),
        ..peers.options(good)
    };
    let refused = refusal(produce(&elsewhere.into(), &options).await);
    assert!(
        matches!(&*refused, ConnectError::Tls(TlsError::WrongHost { host, .. }) if host == "elsewhere.example"),
        "{refused}"
    );
}

/// A connection outlives its first token by one that is read when the broker asks, and no other way.
async fn expiry(peers: &Peers, tls: &ServiceUrl) {
    let file = peers.file("short.token");
    std::fs::write(&file, peers.token(4)).unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let supplier = {
        let (source, reads) = (CredentialSource::File(file.clone()), Arc::clone(&reads));
        move || {
            reads.fetch_add(1, Ordering::SeqCst);
            source.read().map(Bytes::from)
        }
    };
    let fresh = peers.options(Authentication::token_from(Arc::new(supplier)));
    let stale = CredentialSource::Text(Secret::new(peers.token(4)));
    let stale = peers.options(Authentication::token(stale));
    let outlives = produce(tls, &fresh).await.unwrap();
    let ends = produce(tls, &stale).await.unwrap();
    let reads_before = reads.load(Ordering::SeqCst);
    std::fs::write(&file, peers.token(3600)).unwrap();

    let reason = timeout(Duration::from_secs(20), ends.closed()).await;
    assert!(
        matches!(
            reason,
            Ok(CloseReason::EndOfStream | CloseReason::Broker { .. } | CloseReason::Io(_))
        ),
        "{reason:?}"
    );
    // Longer than the token, the period of the broker's check, and the check of an unanswered challenge together.
    let reason = timeout(Duration::from_secs(8), outlives.closed()).await;
    assert!(reason.is_err(), "{reason:?}");
    assert!(reads.load(Ordering::SeqCst) > reads_before);
    let answer = outlives.request(Command::from(CommandProducer {
        topic: "persistent://public/default/secured".to_owned(),
        producer_id: 2,
        ..CommandProducer::default()
    }));
    assert!(matches!(answer.await, Ok(Command::ProducerSuccess(_))));
}
