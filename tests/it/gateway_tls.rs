//! The gateway with TLS, towards clients and towards brokers.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pulsegate::config::{CertificateFiles, GatewaySettings};
use pulsegate::http::Phase;
use pulsegate::naming::ServiceUrl;
use pulsegate::net::{Stream, TlsClient, TlsError, TlsIdentity, TlsOptions};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::frame::Frame;
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::command_lookup_topic_response::LookupType;
use pulsegate::protocol::proto::pulsar::{
    CommandCloseProducer, CommandConnect, CommandLookupTopic, CommandLookupTopicResponse,
    CommandPing, CommandSend, ServerError,
};
use pulsegate::testing::certificates::{Authority, SignedCertificate};
use pulsegate::testing::scripted_broker::{Received, Script, ScriptedBroker, Step};
use pulsegate::testing::tls::acceptor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect, within};

/// PEM files of one side; gone when dropped.
pub(crate) struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn of(certificate: &SignedCertificate) -> Self {
        let files = Self::new();
        files.replace(certificate);
        files
    }

    pub(crate) fn replace(&self, certificate: &SignedCertificate) {
        self.write("cert.pem", &certificate.certificate);
        self.write("key.pem", &certificate.key);
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn certificate(&self) -> Option<CertificateFiles> {
        Some(CertificateFiles {
            certificate: self.path("cert.pem"),
            key: self.path("key.pem"),
        })
    }

    /// Turns the TLS port on, with files that are looked at for each connection.
    pub(crate) fn serve(&self, settings: &mut GatewaySettings) {
        settings.tls.service_port = Some(0);
        settings.tls.certificate = self.certificate();
        settings.tls.check_period = Duration::ZERO;
    }
}

pub(crate) fn trusting(authority: &Authority) -> TlsOptions {
    TlsOptions {
        trusted: Some(authority.pem().into_bytes()),
        ..TlsOptions::default()
    }
}

fn presenting(certificate: &SignedCertificate, options: TlsOptions) -> TlsOptions {
    TlsOptions {
        identity: Some(TlsIdentity {
            certificate_chain: certificate.certificate.clone().into_bytes(),
            key: certificate.key.clone().into_bytes(),
        }),
        ..options
    }
}

pub(crate) fn tls_address(gateway: &TestGateway) -> SocketAddr {
    gateway.handle.tls_local_addr().unwrap()
}

pub(crate) async fn secured(address: SocketAddr, options: &TlsOptions) -> Result<Stream, TlsError> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    within(
        TlsClient::new(options)
            .unwrap()
            .connect(stream, "localhost"),
    )
    .await
}

async fn client(gateway: &TestGateway, options: &TlsOptions) -> RawClient<Stream> {
    RawClient::over(secured(tls_address(gateway), options).await.unwrap())
}

pub(crate) async fn established(
    gateway: &TestGateway,
    options: &TlsOptions,
    connect: CommandConnect,
) -> RawClient<Stream> {
    let mut client = client(gateway, options).await;
    client.send(connect).await;
    let answer = client.receive().await;
    assert!(matches!(answer, Command::Connected(_)), "{answer:?}");
    client
}

/// A frame with `len` bytes of payload, each message another one.
fn send_frame(sequence_id: u64, len: usize) -> Frame {
    let byte = u8::try_from(sequence_id % 251).unwrap();
    Frame {
        command: Command::from(CommandSend {
            producer_id: 1,
            sequence_id,
            ..CommandSend::default()
        })
        .encode_command(),
        payload: Bytes::from(vec![byte; len]),
    }
}

fn echo(script: Script) -> Script {
    script.on(Type::Send, |received| {
        vec![Step::Frame(received.frame.clone())]
    })
}

/// Answers lookups with itself, by both addresses.
fn owner(plain: String, tls: String) -> impl Fn(&Received) -> Vec<Step> + Send + Sync {
    move |received| {
        vec![Step::Send(Command::from(CommandLookupTopicResponse {
            broker_service_url: Some(plain.clone()),
            broker_service_url_tls: Some(tls.clone()),
            response: Some(LookupType::Connect.into()),
            request_id: received.request_id(),
            authoritative: Some(true),
            ..CommandLookupTopicResponse::default()
        }))]
    }
}

/// Brokers with TLS in place of those that the gateway was started for.
pub(crate) fn reach_with_tls(
    settings: &mut GatewaySettings,
    broker: &ScriptedBroker,
    trusted: PathBuf,
) {
    settings.broker = ServiceUrl::from(broker.tls_address("localhost"));
    settings.tls.brokers.enabled = true;
    settings.tls.brokers.trust_certificates = Some(trusted);
    settings.tls.check_period = Duration::ZERO;
}

#[tokio::test]
async fn clients_with_tls_are_served_like_those_without() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let broker = ScriptedBroker::start(echo(Script::new())).await;
    let url = broker.url();
    broker.set_script(echo(Script::new().on(
        Type::Lookup,
        owner(url, "pulsar+ssl://nowhere:1".to_owned()),
    )));
    let gateway = TestGateway::with(&[&broker], |settings| files.serve(settings));

    let mut lookups = established(&gateway, &trusting(&authority), lookup_connect()).await;
    lookups
        .send(CommandLookupTopic {
            topic: "t".to_owned(),
            request_id: 7,
            ..CommandLookupTopic::default()
        })
        .await;
    let Command::LookupResponse(found) = lookups.receive().await else {
        panic!("no lookup response")
    };
    // A client with TLS prefers the URL with TLS; it has to name the broker as we reach it.
    assert_eq!(found.broker_service_url(), broker.url());
    assert_eq!(found.broker_service_url_tls(), broker.url());
    assert!(found.proxy_through_service_url());

    let target = broker.address().to_string();
    let mut direct = established(&gateway, &trusting(&authority), direct_connect(&target)).await;
    for sequence_id in 0..20 {
        let frame = send_frame(sequence_id, 200_000);
        direct.send_frame(&frame).await;
        assert_eq!(direct.receive_frame().await, frame);
    }
    // The plain port is served beside.
    let mut plain = RawClient::established(gateway.address(), direct_connect(&target)).await;
    plain.send(CommandPing {}).await;
    assert!(matches!(plain.receive().await, Command::Pong(_)));
    drop((lookups, direct, plain));
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn brokers_with_tls_are_reached_for_lookups_relays_and_health() {
    let authority = Authority::new("ours");
    let files = Files::new();
    let trusted = files.write("ca.pem", &authority.pem());
    let certificate = authority.sign(&["localhost"]);
    let tls = acceptor(&certificate, &[], None);
    let broker = ScriptedBroker::start_tls(Script::new(), tls).await;
    let url = broker.tls_address("localhost").url();
    broker.set_script(echo(Script::new().on(
        Type::Lookup,
        owner("pulsar://nowhere.invalid:1".to_owned(), url.clone()),
    )));
    let gateway = TestGateway::with(&[], |settings| reach_with_tls(settings, &broker, trusted));
    within(async {
        while !gateway.handle.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let mut lookups = RawClient::established(gateway.address(), lookup_connect()).await;
    lookups
        .send(CommandLookupTopic {
            topic: "t".to_owned(),
            request_id: 7,
            ..CommandLookupTopic::default()
        })
        .await;
    let Command::LookupResponse(found) = lookups.receive().await else {
        panic!("no lookup response")
    };
    assert_eq!(found.broker_service_url(), url);
    assert_eq!(found.broker_service_url_tls(), url);

    let target = broker.tls_address("localhost").to_string();
    let mut direct = RawClient::established(gateway.address(), direct_connect(&target)).await;
    for sequence_id in 0..20 {
        let frame = send_frame(sequence_id, 200_000);
        direct.send_frame(&frame).await;
        assert_eq!(direct.receive_frame().await, frame);
    }
    let any = RawClient::established(gateway.address(), direct_connect("")).await;
    drop((lookups, direct, any));
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn both_legs_with_tls_carry_every_byte_and_hold_back_who_is_not_read() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let trusted = files.write("ca.pem", &authority.pem());
    let tls = acceptor(&authority.sign(&["localhost"]), &[], None);
    let broker = ScriptedBroker::start_tls(echo(Script::new()), tls).await;
    let gateway = TestGateway::with(&[], |settings| {
        files.serve(settings);
        reach_with_tls(settings, &broker, trusted);
    });
    let target = broker.tls_address("localhost").to_string();
    let mut direct = established(&gateway, &trusting(&authority), direct_connect(&target)).await;
    let sizes = [0, 1, 4_000, 16_384, 16_385, 70_000, 1_000_000, 5_000_000];
    for (sequence_id, size) in (0..).zip(sizes) {
        let frame = send_frame(sequence_id, size);
        direct.send_frame(&frame).await;
        assert_eq!(direct.receive_frame().await, frame, "{size}");
    }

    // Who sends and does not read is stopped: the broker's answers stop first, then the broker, then the client.
    let mut bytes = BytesMut::new();
    send_frame(1, 1_000_000).encode(&mut bytes);
    let (mut stuck, _) = direct.into_parts();
    let mut sent = 0;
    while let Ok(written) = tokio::time::timeout(
        Duration::from_millis(300),
        stuck.write(&bytes[sent % bytes.len()..]),
    )
    .await
    {
        sent += written.unwrap();
        assert!(sent < 128 * 1024 * 1024, "the gateway takes without end");
    }
    // Another client is served meanwhile.
    let mut other = established(&gateway, &trusting(&authority), direct_connect(&target)).await;
    other.send(CommandPing {}).await;
    assert!(matches!(other.receive().await, Command::Pong(_)));
    // And what was stopped goes on when it is read. Of a frame whose end is not sent, or still in the client's own TLS, the broker
    // cannot know.
    let whole = (sent - 128 * 1024) / bytes.len() * bytes.len();
    let mut received = 0;
    let mut buffer = vec![0; 64 * 1024];
    while received < whole {
        received += within(stuck.read(&mut buffer)).await.unwrap();
    }
    drop((stuck, other));
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn the_end_of_either_side_is_the_end_of_both_with_close_notify_and_without() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let trusted = files.write("ca.pem", &authority.pem());
    let tls = acceptor(&authority.sign(&["localhost"]), &[], None);
    let broker = ScriptedBroker::start_tls(Script::new(), tls).await;
    let gateway = TestGateway::with(&[], |settings| {
        files.serve(settings);
        reach_with_tls(settings, &broker, trusted);
    });
    let target = broker.tls_address("localhost").to_string();
    let options = trusting(&authority);
    let open = || established(&gateway, &options, direct_connect(&target));

    let mut client = open().await;
    client.end().await;
    client.closed().await;
    broker.wait_for_open(0).await;

    // The client's process is killed: no close_notify.
    drop(open().await);
    broker.wait_for_open(0).await;

    let client = open().await;
    broker.push(vec![Step::Close]);
    assert!(client.rest().await.is_empty());
    gateway
        .wait_for_metric(
            "pulsegate_gateway_connection_ends_total{reason=\"closed\"}",
            3.0,
        )
        .await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn clients_judge_the_gateways_certificate() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["elsewhere.example"]));
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| files.serve(settings));
    let wrong = secured(tls_address(&gateway), &trusting(&authority)).await;
    assert!(
        matches!(wrong, Err(TlsError::WrongHost { .. })),
        "{wrong:?}"
    );
    let other = Authority::new("other");
    let unknown = secured(tls_address(&gateway), &trusting(&other)).await;
    assert!(
        matches!(unknown, Err(TlsError::UnknownIssuer { .. })),
        "{unknown:?}"
    );
    gateway
        .wait_for_metric(
            "pulsegate_gateway_tls_handshake_failures_total{reason=\"alert\"}",
            2.0,
        )
        .await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_client_certificate_is_asked_for_and_required_only_where_the_settings_say_so() {
    let authority = Authority::new("ours");
    let stranger = Authority::new("stranger").sign(&["client"]);
    let known = authority.sign(&["client"]);
    let expired = authority.sign_expired(&["client"]);
    let files = Files::of(&authority.sign(&["localhost"]));
    let trusted = files.write("ca.pem", &authority.pem());
    let broker = ScriptedBroker::start(Script::new()).await;
    let anonymous = trusting(&authority);
    for (required, insecure) in [(false, false), (true, false), (false, true), (true, true)] {
        let gateway = TestGateway::with(&[&broker], |settings| {
            files.serve(settings);
            settings.tls.trust_certificates = Some(trusted.clone());
            settings.tls.require_client_certificate = required;
            settings.tls.allow_insecure = insecure;
        });
        for (options, accepted) in [
            (presenting(&known, anonymous.clone()), true),
            (anonymous.clone(), !required),
            (presenting(&stranger, anonymous.clone()), insecure),
            (presenting(&expired, anonymous.clone()), insecure),
        ] {
            // With TLS 1.3 the client's handshake is over before its certificate is judged.
            let stream = secured(tls_address(&gateway), &options).await.unwrap();
            let mut connect = BytesMut::new();
            Command::from(lookup_connect()).encode(&mut connect);
            let (mut read, mut write) = tokio::io::split(stream);
            let _ = write.write_all(&connect).await;
            let _ = write.flush().await;
            let mut first = [0; 1];
            let answered = within(read.read(&mut first)).await;
            match &answered {
                Ok(1) => assert!(accepted, "{required} {insecure} {options:?}"),
                Ok(_) => panic!("closed without a word"),
                Err(error) => {
                    assert!(!accepted, "{required} {insecure} {options:?}: {error}");
                    let alert = TlsError::of_stream(error);
                    assert!(matches!(alert, Some(TlsError::Alert(_))), "{error:?}");
                }
            }
        }
        let refused = [
            (false, false, 0.0, 2.0),
            (true, false, 1.0, 2.0),
            (false, true, 0.0, 0.0),
            (true, true, 1.0, 0.0),
        ];
        let (.., nameless, bad) = refused
            .into_iter()
            .find(|case| (case.0, case.1) == (required, insecure))
            .unwrap();
        for (reason, count) in [
            ("no_client_certificate", nameless),
            ("client_certificate", bad),
        ] {
            let name =
                format!("pulsegate_gateway_tls_handshake_failures_total{{reason=\"{reason}\"}}");
            gateway.wait_for_metric(&name, count).await;
        }
        gateway.stop().await;
    }
    broker.stop().await;
}

#[tokio::test]
async fn slow_and_foreign_handshakes_end_in_time_and_hurt_nobody() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        files.serve(settings);
        settings.keep_alive_interval = Some(Duration::from_secs(2));
    });
    let failures = |reason: &str| {
        format!("pulsegate_gateway_tls_handshake_failures_total{{reason=\"{reason}\"}}")
    };
    // Slow ones: nothing, and the beginning of a ClientHello.
    let mut slow = Vec::new();
    for begun in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(tls_address(&gateway)).await.unwrap();
            stream.write_all(begun).await.unwrap();
            slow.push(stream);
        }
    }
    // Foreign ones: Pulsar without TLS, HTTP, and SSH.
    let mut connect = BytesMut::new();
    Command::from(lookup_connect()).encode(&mut connect);
    for bytes in [
        &connect[..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ] {
        let mut stream = TcpStream::connect(tls_address(&gateway)).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.len() < 16, "an alert at most: {answer:?}");
    }
    gateway.wait_for_metric(&failures("not_tls"), 3.0).await;
    // Others are served meanwhile.
    let target = broker.address().to_string();
    drop(established(&gateway, &trusting(&authority), direct_connect(&target)).await);
    gateway.wait_for_metric(&failures("timeout"), 40.0).await;
    for mut stream in slow {
        let mut rest = Vec::new();
        let _ = within(stream.read_to_end(&mut rest)).await;
    }
    // One that has shaken hands and says nothing has no more time than they.
    let silent = client(&gateway, &trusting(&authority)).await;
    assert!(silent.rest().await.is_empty());
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn tls_on_the_plain_port_is_refused_and_hurts_nobody() {
    let authority = Authority::new("ours");
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::in_front_of(&[&broker]);
    let refused = secured(gateway.address(), &trusting(&authority)).await;
    assert!(matches!(refused, Err(TlsError::Closed)), "{refused:?}");
    drop(RawClient::established(gateway.address(), lookup_connect()).await);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn limits_count_the_connections_of_both_ports_and_refusals_arrive_over_tls() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        files.serve(settings);
        settings.max_connections_per_ip = Some(2);
    });
    let plain = RawClient::established(gateway.address(), lookup_connect()).await;
    let tls = established(&gateway, &trusting(&authority), lookup_connect()).await;
    let mut third = RawClient::connect(gateway.address()).await;
    let mut fourth = client(&gateway, &trusting(&authority)).await;
    for answer in [third.receive().await, fourth.receive().await] {
        let Command::Error(refused) = answer else {
            panic!("no error")
        };
        assert_eq!(refused.error(), ServerError::NotAllowedError);
        assert_eq!(
            refused.message,
            "Reached the maximum number of connections on address"
        );
    }
    third.closed().await;
    fourth.closed().await;
    assert!((gateway.metric("pulsar_proxy_rejected_connections_total") - 2.0).abs() < f64::EPSILON);
    drop((plain, tls));
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 0.0)
        .await;
    drop(established(&gateway, &trusting(&authority), lookup_connect()).await);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn handshakes_that_are_not_over_have_a_bound_of_their_own() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        files.serve(settings);
        settings.max_unauthenticated_connections = Some(2);
    });
    // Those whose handshake is over do not count.
    let mut served = Vec::new();
    for _ in 0..4 {
        served.push(RawClient::established(gateway.address(), lookup_connect()).await);
    }
    let silent = RawClient::connect(gateway.address()).await;
    let silent_tls = TcpStream::connect(tls_address(&gateway)).await.unwrap();
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 6.0)
        .await;
    let mut refused_plain = RawClient::connect(gateway.address()).await;
    let mut refused_tls = client(&gateway, &trusting(&authority)).await;
    for answer in [refused_plain.receive().await, refused_tls.receive().await] {
        let Command::Error(refused) = answer else {
            panic!("no error")
        };
        assert_eq!(refused.error(), ServerError::ServiceNotReady);
        assert_eq!(
            refused.message,
            "Too many connections are in their handshake"
        );
    }
    drop((silent, silent_tls));
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 4.0)
        .await;
    drop(established(&gateway, &trusting(&authority), lookup_connect()).await);
    drop(served);
    gateway.stop().await;
    broker.stop().await;
}

/// What a client gets that asks for a relay to a broker with TLS.
async fn refusal_by_tls(
    broker: &ScriptedBroker,
    change: impl FnOnce(&mut GatewaySettings),
) -> (ServerError, String) {
    let gateway = TestGateway::with(&[], change);
    let mut client = RawClient::connect(gateway.address()).await;
    let target = broker.tls_address("localhost").to_string();
    client.send(direct_connect(&target)).await;
    let Command::Error(refused) = client.receive().await else {
        panic!("no error")
    };
    client.closed().await;
    let mut lookups = RawClient::connect(gateway.address()).await;
    lookups.send(lookup_connect()).await;
    let Command::Error(no_broker) = lookups.receive().await else {
        panic!("no error")
    };
    assert_eq!(no_broker.error(), ServerError::ServiceNotReady);
    assert!(!gateway.handle.is_ready());
    gateway.stop().await;
    (refused.error(), refused.message)
}

#[tokio::test]
async fn a_broker_that_is_not_trusted_is_not_reached_and_the_client_is_told() {
    let [ours, other] = ["ours", "other"].map(Authority::new);
    let files = Files::new();
    let trusted = files.write("ca.pem", &ours.pem());
    let unreached = (
        ServerError::ServiceNotReady,
        "Target broker cannot be reached.".to_owned(),
    );
    for certificate in [
        other.sign(&["localhost"]),
        ours.sign(&["elsewhere.example"]),
        ours.sign_expired(&["localhost"]),
    ] {
        let broker =
            ScriptedBroker::start_tls(Script::new(), acceptor(&certificate, &[], None)).await;
        let refused = refusal_by_tls(&broker, |settings| {
            reach_with_tls(settings, &broker, trusted.clone());
        });
        assert_eq!(refused.await, unreached);
        // Names are not looked at where the settings say so, and insecure takes all.
        let gateway = TestGateway::with(&[], |settings| {
            reach_with_tls(settings, &broker, trusted.clone());
            settings.tls.allow_insecure = true;
        });
        let target = broker.tls_address("localhost").to_string();
        drop(RawClient::established(gateway.address(), direct_connect(&target)).await);
        gateway.stop().await;
        broker.stop().await;
    }
    let certificate = ours.sign(&["elsewhere.example"]);
    let broker = ScriptedBroker::start_tls(Script::new(), acceptor(&certificate, &[], None)).await;
    let gateway = TestGateway::with(&[], |settings| {
        reach_with_tls(settings, &broker, trusted.clone());
        settings.tls.brokers.verify_host_name = false;
    });
    let target = broker.tls_address("localhost").to_string();
    drop(RawClient::established(gateway.address(), direct_connect(&target)).await);
    gateway.stop().await;
    broker.stop().await;
    // A broker without TLS where TLS is wanted.
    let plain = ScriptedBroker::start(Script::new()).await;
    let refused = refusal_by_tls(&plain, |settings| {
        reach_with_tls(settings, &plain, trusted.clone());
    });
    assert_eq!(refused.await, unreached);
    plain.stop().await;
}

#[tokio::test]
async fn draining_ends_connections_with_tls_at_a_frame_boundary() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let broker = ScriptedBroker::start(echo(Script::new())).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        files.serve(settings);
        settings.drain_timeout = Duration::from_millis(200);
    });
    let target = broker.address().to_string();
    let lookups = established(&gateway, &trusting(&authority), lookup_connect()).await;
    let mut direct = established(&gateway, &trusting(&authority), direct_connect(&target)).await;
    let mut waiting = TcpStream::connect(tls_address(&gateway)).await.unwrap();
    gateway
        .wait_for_metric("pulsar_proxy_active_connections", 3.0)
        .await;
    let mut frame = BytesMut::new();
    send_frame(1, 100_000).encode(&mut frame);
    let (begun, missing) = frame.split_at(60_000);
    direct.send_bytes(begun).await;
    // Until the gateway has seen it, the connection is at a boundary.
    within(async {
        while gateway.metric("pulsar_proxy_binary_bytes_total") < 60_000.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let address = tls_address(&gateway);
    gateway.advance(Phase::Draining);
    within(async { while TcpStream::connect(address).await.is_ok() {} }).await;
    direct.send_bytes(missing).await;
    within(broker.wait_for(Type::Send, 1)).await;
    let rest = direct.rest().await;
    assert!(
        rest.is_empty() || rest == frame[..],
        "{} bytes of an answer",
        rest.len()
    );
    assert!(lookups.rest().await.is_empty());
    let mut nothing = Vec::new();
    within(waiting.read_to_end(&mut nothing)).await.unwrap();
    assert!(nothing.is_empty());
    broker.wait_for_open(0).await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_broker_that_was_named_by_both_addresses_is_reached_by_the_one_of_our_side() {
    let authority = Authority::new("ours");
    let files = Files::of(&authority.sign(&["localhost"]));
    let first = ScriptedBroker::start(Script::new()).await;
    let assigned = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&first], |settings| files.serve(settings));
    let target = first.address().to_string();
    let mut client = established(&gateway, &trusting(&authority), direct_connect(&target)).await;
    first.push(vec![Step::Send(Command::from(CommandCloseProducer {
        producer_id: 1,
        request_id: 1,
        assigned_broker_service_url: Some(assigned.url()),
        assigned_broker_service_url_tls: Some("pulsar+ssl://nowhere.invalid:6651".to_owned()),
    }))]);
    assert!(matches!(client.receive().await, Command::CloseProducer(_)));
    // A client with TLS goes for the address with TLS; the brokers' side has none.
    let named = direct_connect("nowhere.invalid:6651");
    drop(established(&gateway, &trusting(&authority), named).await);
    assert_eq!(assigned.accepted(), 1);
    drop(client);
    gateway.stop().await;
    first.stop().await;
    assigned.stop().await;
}
