//! The gateway in front of a real Apache Pulsar that authenticates and authorizes: whom the broker lets in through it.
//!
//! Starts Pulsar with `tests/peers/pulsar.py`. Needs Python, openssl, a JDK, and in `PULSEGATE_PULSAR_JARS` the folder with
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
use std::time::Duration;

use pulsegate::client::{
    Authentication, ClientError, ClientOptions, ConnectError, Connection, ConnectionOptions,
    OutgoingMessage, ProducerOptions, PulsarClient,
};
use pulsegate::config::{CredentialSource, Secret, Sources, load_gateway};
use pulsegate::gateway::Gateway;
use pulsegate::http::{Phase, PhaseSender, phases};
use pulsegate::naming::{BrokerAddress, ServiceUrl, TopicName};
use pulsegate::protocol::proto::pulsar::{CommandConnect, ServerError};
use pulsegate::telemetry::MetricRegistry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

const JARS: &str = "PULSEGATE_PULSAR_JARS";
const NAMESPACE: &str = "public/default";
const TOPIC: &str = "persistent://public/default/authorized";

/// A standalone with authorization on, stopped when dropped.
struct Broker {
    folder: tempfile::TempDir,
    info: serde_json::Value,
}

impl Broker {
    fn start(overrides: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut broker = Self {
            folder,
            info: serde_json::Value::Null,
        };
        let [standalone, credentials] = ["standalone", "credentials"].map(|name| broker.path(name));
        let mut arguments = vec!["standalone", &standalone, "authorizationEnabled=true"];
        arguments.extend(overrides);
        arguments.extend(["--secure", &credentials]);
        broker.info = serde_json::from_str(&pulsar(&arguments)).unwrap();
        broker
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("credentials").join(name)
    }

    /// A token of this role, which expires in so many seconds.
    fn token(&self, role: &str, seconds: u32) -> String {
        let seconds = seconds.to_string();
        let token = pulsar(&["token", &self.path("credentials"), role, &seconds]);
        token.trim().to_owned()
    }

    fn url(&self) -> ServiceUrl {
        self.info["service_url"].as_str().unwrap().parse().unwrap()
    }

    /// Lets a role do this in the namespace, as soon as that is there: standalone makes it after it answers.
    async fn grant(&self, role: &str, actions: &str) {
        let authority = self.info["admin_url"].as_str().unwrap();
        let authority = authority.strip_prefix("http://").unwrap();
        let token = std::fs::read_to_string(self.file("admin.token")).unwrap();
        let request = format!(
            "POST /admin/v2/namespaces/{NAMESPACE}/permissions/{role} HTTP/1.1\r\nHost: {authority}\r\n\
             Authorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{actions}",
            token.trim(),
            actions.len()
        );
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let mut stream = TcpStream::connect(authority).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            if answer.starts_with("HTTP/1.1 204") {
                return;
            }
            let not_yet = answer.starts_with("HTTP/1.1 404") && Instant::now() < until;
            assert!(not_yet, "{answer}");
            sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let standalone = self.path("standalone");
        if Path::new(&standalone).join("state.json").exists() {
            pulsar(&["stop", &standalone]);
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

/// A gateway in this process, with settings as an Apache proxy has them.
struct TestGateway {
    url: ServiceUrl,
    phase: PhaseSender,
    running: TaskTracker,
}

impl TestGateway {
    fn start(broker: &Broker, sets: &[&str]) -> Self {
        let proxy_token = format!(
            "brokerClientAuthenticationParameters=file://{}",
            broker.file("proxy.token").display()
        );
        let defaults = [
            format!("brokerServiceURL={}", broker.url()),
            "bindAddress=127.0.0.1".to_owned(),
            "servicePort=0".to_owned(),
            "webServicePort=".to_owned(),
            "authenticationEnabled=true".to_owned(),
            "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken,\
             org.apache.pulsar.broker.authentication.AuthenticationProviderBasic"
                .to_owned(),
            format!("tokenSecretKey=file://{}", broker.file("token.secret").display()),
            format!("basicAuthConf=file://{}", broker.file("htpasswd").display()),
            "brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken"
                .to_owned(),
            proxy_token,
        ];
        let sets = sets.iter().map(|set| (*set).to_owned());
        let loaded = load_gateway(&Sources {
            sets: defaults.into_iter().chain(sets).collect(),
            ..Sources::default()
        });
        let settings = loaded.unwrap().settings;
        let (phase, phases) = phases();
        let gateway = Gateway::bind(settings, &MetricRegistry::new(""), phases).unwrap();
        let address = gateway.handle().local_addr().unwrap();
        let running = TaskTracker::new();
        running.spawn(gateway.run());
        running.close();
        Self {
            url: format!("pulsar://{address}").parse().unwrap(),
            phase,
            running,
        }
    }

    async fn stop(self) {
        self.phase.advance(Phase::Stopped);
        self.running.wait().await;
    }

    fn client(&self, authentication: Authentication) -> PulsarClient {
        let options = ClientOptions {
            connection: ConnectionOptions {
                authentication,
                ..ConnectionOptions::default()
            },
            operation_timeout: Duration::from_secs(10),
            ..ClientOptions::default()
        };
        PulsarClient::new(self.url.clone(), options)
    }

    /// Sends one message; the code with which that was refused.
    async fn produce(&self, authentication: Authentication) -> Result<(), ServerError> {
        let client = self.client(authentication);
        let sent = send(&client).await;
        client.close();
        sent.map_err(|error| error.server_error().unwrap_or_else(|| panic!("{error}")))
    }

    /// The code with which a CONNECT is refused.
    async fn connect(&self, connect: CommandConnect, token: &str) -> Result<(), ServerError> {
        let options = ConnectionOptions {
            authentication: text_token(token),
            ..ConnectionOptions::default()
        };
        match Connection::open(&self.url.addresses[0], connect, options).await {
            Ok(_) => Ok(()),
            Err(ConnectError::Refused { code, .. }) => Err(code),
            Err(error) => panic!("{error}"),
        }
    }
}

async fn send(client: &PulsarClient) -> Result<(), ClientError> {
    let topic: TopicName = TOPIC.parse().unwrap();
    let producer = client.producer(&topic, ProducerOptions::default()).await?;
    let sent = producer.send(OutgoingMessage::new("x")).await;
    sent.unwrap();
    producer.close().await
}

fn text_token(token: &str) -> Authentication {
    Authentication::token(CredentialSource::Text(Secret::new(token)))
}

fn connect_to(broker: Option<&BrokerAddress>) -> CommandConnect {
    CommandConnect {
        client_version: "pulsegate-test".to_owned(),
        protocol_version: Some(21),
        proxy_to_broker_url: broker.map(ToString::to_string),
        ..CommandConnect::default()
    }
}

fn skipped(test: &str) -> bool {
    let skipped = env::var_os(JARS).is_none();
    if skipped {
        // Not `eprintln`, which the test harness would swallow.
        let line = format!("SKIPPED {test}: {JARS} names no folder with Pulsar's jars");
        let mut stderr = std::io::stderr();
        writeln!(stderr, "{line}").unwrap();
    }
    skipped
}

/// Whether the broker obeys `original_principal`: only its own decisions tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_decides_by_the_role_that_the_gateway_names() {
    if skipped("the_broker_decides_by_the_role_that_the_gateway_names") {
        return;
    }
    let start = || Broker::start(&["authenticateOriginalAuthData=false"]);
    let broker = tokio::task::spawn_blocking(start).await.unwrap();
    broker.grant("client", r#"["produce","consume"]"#).await;
    broker.grant("reader", r#"["consume"]"#).await;
    let role = |role: &str| text_token(&broker.token(role, 3600));
    for forward in ["false", "true"] {
        let forward = format!("forwardAuthorizationCredentials={forward}");
        let gateway = TestGateway::start(&broker, &[&forward]);
        assert_eq!(gateway.produce(role("client")).await, Ok(()));
        let password = Authentication::basic("client", &Secret::new("secret"));
        assert_eq!(gateway.produce(password).await, Ok(()));
        for denied in ["reader", "stranger"] {
            let refused = gateway.produce(role(denied)).await;
            assert_eq!(refused, Err(ServerError::AuthorizationError), "{denied}");
        }
        for bad in [
            Authentication::none(),
            Authentication::basic("client", &Secret::new("wrong")),
            text_token("x"),
        ] {
            let refused = gateway.produce(bad).await;
            assert_eq!(refused, Err(ServerError::AuthenticationError));
        }
        gateway.stop().await;
    }

    // Who is no proxy may not name others, and the client learns it from the broker.
    let no_proxy = format!(
        "brokerClientAuthenticationParameters=token:{}",
        broker.token("client", 3600)
    );
    let gateway = TestGateway::start(&broker, &[&no_proxy]);
    let refused = gateway.produce(role("client")).await;
    assert_eq!(refused, Err(ServerError::AuthorizationError));
    gateway.stop().await;
    let gateway = TestGateway::start(&broker, &["brokerClientAuthenticationPlugin="]);
    let refused = gateway.produce(role("client")).await;
    assert_eq!(refused, Err(ServerError::AuthenticationError));
    gateway.stop().await;

    // A client that says it was somebody else is itself; one that says it was a proxy is refused.
    let gateway = TestGateway::start(&broker, &[]);
    let target = broker.url().addresses[0].clone();
    let forged = CommandConnect {
        original_principal: Some("proxy".to_owned()),
        ..connect_to(Some(&target))
    };
    // The broker refuses an original principal that is a proxy's: had it got there, this would fail.
    assert_eq!(
        gateway.connect(forged, &broker.token("client", 3600)).await,
        Ok(())
    );
    for target in [None, Some(&target)] {
        let proxy = CommandConnect {
            proxy_version: Some("1".to_owned()),
            original_principal: Some("client".to_owned()),
            ..connect_to(target)
        };
        let refused = gateway.connect(proxy, &broker.token("proxy", 3600)).await;
        assert_eq!(refused, Err(ServerError::NotAllowedError));
    }
    gateway.stop().await;

    // A proxy before the gateway, which trusts it.
    let gateway = TestGateway::start(&broker, &["trustedProxyRoles=edge"]);
    for (original, expected) in [
        ("client", Ok(())),
        ("edge", Err(ServerError::NotAllowedError)),
    ] {
        let chained = CommandConnect {
            proxy_version: Some("1".to_owned()),
            original_principal: Some(original.to_owned()),
            ..connect_to(Some(&target))
        };
        let found = gateway.connect(chained, &broker.token("edge", 3600)).await;
        assert_eq!(found, expected, "{original}");
    }
    gateway.stop().await;
    no_relay_outlives_its_token(&broker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_credentials_are_checked_and_renewed() {
    if skipped("forwarded_credentials_are_checked_and_renewed") {
        return;
    }
    let broker = tokio::task::spawn_blocking(|| Broker::start(&[]))
        .await
        .unwrap();
    broker.grant("client", r#"["produce","consume"]"#).await;
    // The broker wants the client's credential as well.
    let gateway = TestGateway::start(&broker, &[]);
    let client = text_token(&broker.token("client", 3600));
    let refused = gateway.produce(client.clone()).await;
    assert_eq!(refused, Err(ServerError::AuthenticationError));
    gateway.stop().await;
    let forward = [
        "forwardAuthorizationCredentials=true",
        "authenticationRefreshCheckSeconds=5",
    ];
    let gateway = TestGateway::start(&broker, &forward);
    assert_eq!(gateway.produce(client).await, Ok(()));
    outlives(&broker, &gateway).await;
    gateway.stop().await;
}

/// This broker does not look at the tokens that it gets for clients, and so asks for no other one.
async fn no_relay_outlives_its_token(broker: &Broker) {
    let forward = [
        "forwardAuthorizationCredentials=true",
        "authenticationRefreshCheckSeconds=2",
    ];
    let gateway = TestGateway::start(broker, &forward);
    let connect = CommandConnect {
        feature_flags: Some(pulsegate::protocol::proto::pulsar::FeatureFlags {
            supports_auth_refresh: Some(true),
            ..Default::default()
        }),
        proxy_to_broker_url: Some(broker.url().addresses[0].to_string()),
        ..connect_to(None)
    };
    let options = ConnectionOptions {
        authentication: text_token(&broker.token("client", 4)),
        ..ConnectionOptions::default()
    };
    let opened = Connection::open(&gateway.url.addresses[0], connect, options);
    let connection = opened.await.unwrap();
    let ended = timeout(Duration::from_secs(30), connection.closed()).await;
    assert!(ended.is_ok(), "a connection outlives its token");
    gateway.stop().await;
}

/// A client outlives its first token on both kinds of connection, by one that it is asked for.
async fn outlives(broker: &Broker, gateway: &TestGateway) {
    let file = broker.file("short.token");
    std::fs::write(&file, broker.token("client", 6)).unwrap();
    let client = gateway.client(Authentication::token(CredentialSource::File(file.clone())));
    let topic: TopicName = TOPIC.parse().unwrap();
    let producer = client
        .producer(&topic, ProducerOptions::default())
        .await
        .unwrap();
    let connect = CommandConnect {
        feature_flags: Some(pulsegate::protocol::proto::pulsar::FeatureFlags {
            supports_auth_refresh: Some(true),
            ..Default::default()
        }),
        ..connect_to(None)
    };
    let mut connections = Vec::new();
    for connect in [
        connect.clone(),
        CommandConnect {
            proxy_to_broker_url: Some(broker.url().addresses[0].to_string()),
            ..connect
        },
    ] {
        let options = ConnectionOptions {
            authentication: Authentication::token(CredentialSource::File(file.clone())),
            ..ConnectionOptions::default()
        };
        let opened = Connection::open(&gateway.url.addresses[0], connect, options);
        connections.push(opened.await.unwrap());
    }
    std::fs::write(&file, broker.token("client", 3600)).unwrap();
    // Longer than the token, the broker's check each second and twice the gateway's interval together.
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        timeout(
            Duration::from_secs(5),
            producer.send(OutgoingMessage::new("x")),
        )
        .await
        .unwrap()
        .unwrap();
        client.lookups().lookup(&topic).await.unwrap();
        sleep(Duration::from_millis(500)).await;
    }
    for connection in &connections {
        let ended = timeout(Duration::from_millis(100), connection.closed()).await;
        assert!(ended.is_err(), "{ended:?}");
    }
    client.close();
}
