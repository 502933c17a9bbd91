//! The client over TLS, against a scripted broker.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use pulsegate::client::{
    Authentication, ClientOptions, ConnectError, Connection, ConnectionOptions, LookupError,
    LookupFailure, PoolError, PulsarClient, TlsFilePaths, TlsFiles, TlsSource,
};
use pulsegate::config::{CredentialSource, TlsParameters};
use pulsegate::naming::{BrokerAddress, ServiceUrl, TopicName};
use pulsegate::net::{TlsClient, TlsConfigError, TlsError, TlsIdentity, TlsOptions};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::command_lookup_topic_response::LookupType;
use pulsegate::protocol::proto::pulsar::{CommandConnect, CommandLookupTopicResponse};
use pulsegate::testing::certificates::{Authority, SignedCertificate};
use pulsegate::testing::scripted_broker::{Script, ScriptedBroker, Step};
use pulsegate::testing::tls::acceptor;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::support::within;

fn trusting(authority: &Authority) -> TlsOptions {
    TlsOptions {
        trusted: Some(authority.pem().into_bytes()),
        ..TlsOptions::default()
    }
}

fn identity(certificate: &SignedCertificate) -> Option<TlsIdentity> {
    Some(TlsIdentity {
        certificate_chain: certificate.certificate.clone().into_bytes(),
        key: certificate.key.clone().into_bytes(),
    })
}

fn with(options: &TlsOptions) -> ConnectionOptions {
    ConnectionOptions {
        tls: TlsSource::Client(Arc::new(TlsClient::new(options).unwrap())),
        ..ConnectionOptions::default()
    }
}

async fn open(
    address: &BrokerAddress,
    options: ConnectionOptions,
) -> Result<Connection, ConnectError> {
    within(Connection::open(
        address,
        CommandConnect::default(),
        options,
    ))
    .await
}

async fn broker_with(certificate: &SignedCertificate) -> ScriptedBroker {
    ScriptedBroker::start_tls(Script::new(), acceptor(certificate, &[], None)).await
}

#[tokio::test]
async fn speaks_over_tls_with_a_host_name_and_with_an_address() {
    let authority = Authority::new("ours");
    let broker = broker_with(&authority.sign(&["localhost", "127.0.0.1"])).await;
    for host in ["localhost", "127.0.0.1"] {
        let connection = open(&broker.tls_address(host), with(&trusting(&authority))).await;
        assert_eq!(
            connection.unwrap().connected().server_version,
            "Scripted Broker"
        );
    }
}

#[tokio::test]
async fn a_chain_of_issuers_is_followed() {
    let root = Authority::new("root");
    let below = root.intermediate("below");
    let certificate = below.sign(&["localhost"]);
    let tls = acceptor(&certificate, &[below.pem()], None);
    let broker = ScriptedBroker::start_tls(Script::new(), tls).await;
    let address = broker.tls_address("localhost");
    assert!(open(&address, with(&trusting(&root))).await.is_ok());
    let other = with(&trusting(&Authority::new("other")));
    let refused = open(&address, other).await.unwrap_err();
    assert!(
        matches!(&refused, ConnectError::Tls(TlsError::UnknownIssuer { host }) if host == "localhost")
    );
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused_by_name_unless_names_are_not_looked_at() {
    let authority = Authority::new("ours");
    let broker = broker_with(&authority.sign(&["elsewhere.example"])).await;
    let address = broker.tls_address("localhost");
    let refused = open(&address, with(&trusting(&authority)))
        .await
        .unwrap_err();
    let text = refused.to_string();
    assert!(
        matches!(refused, ConnectError::Tls(TlsError::WrongHost { .. })),
        "{text}"
    );
    assert!(
        text.contains("localhost") && text.contains("elsewhere.example"),
        "{text}"
    );

    let nameless = TlsOptions {
        verify_host_name: false,
        ..trusting(&authority)
    };
    assert!(open(&address, with(&nameless)).await.is_ok());
    // The issuer still counts.
    let stranger = TlsOptions {
        verify_host_name: false,
        ..trusting(&Authority::new("other"))
    };
    let refused = open(&address, with(&stranger)).await.unwrap_err();
    assert!(matches!(
        refused,
        ConnectError::Tls(TlsError::UnknownIssuer { .. })
    ));
}

#[tokio::test]
async fn an_expired_certificate_is_refused_and_insecure_takes_all() {
    let authority = Authority::new("ours");
    let broker = broker_with(&authority.sign_expired(&["localhost"])).await;
    let address = broker.tls_address("localhost");
    let refused = open(&address, with(&trusting(&authority)))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, ConnectError::Tls(TlsError::Certificate { .. })),
        "{refused}"
    );
    let insecure = TlsOptions {
        allow_insecure: true,
        ..TlsOptions::default()
    };
    assert!(open(&address, with(&insecure)).await.is_ok());
}

#[tokio::test]
async fn a_client_certificate_is_presented_and_its_absence_is_told() {
    let authority = Authority::new("ours");
    let server = authority.sign(&["localhost"]);
    let tls = acceptor(&server, &[], Some(&authority.pem()));
    let broker = ScriptedBroker::start_tls(Script::new(), tls).await;
    let address = broker.tls_address("localhost");
    let known = TlsOptions {
        identity: identity(&authority.sign(&["client"])),
        ..trusting(&authority)
    };
    let options = ConnectionOptions {
        authentication: Authentication::tls(),
        ..with(&known)
    };
    open(&address, options).await.unwrap();
    let connect = &broker.wait_for(Type::Connect, 1).await[0].command;
    assert!(matches!(connect, Command::Connect(connect) if connect.auth_method_name() == "tls"));

    let refused = open(&address, with(&trusting(&authority)))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, ConnectError::Tls(TlsError::Alert(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_used_is_told_before_anything_is_connected() {
    let authority = Authority::new("ours");
    let ours = authority.sign(&["client"]);
    let other = authority.sign(&["client"]);
    let mixed = SignedCertificate {
        key: other.key,
        ..ours.clone()
    };
    let keyless = SignedCertificate {
        key: String::new(),
        ..ours.clone()
    };
    let empty = SignedCertificate {
        certificate: String::new(),
        ..ours
    };
    let error = |certificate: &SignedCertificate| {
        let options = TlsOptions {
            identity: identity(certificate),
            ..trusting(&authority)
        };
        TlsClient::new(&options).unwrap_err()
    };
    assert!(matches!(error(&mixed), TlsConfigError::Identity(_)));
    assert!(matches!(error(&keyless), TlsConfigError::Key(_)));
    assert_eq!(error(&empty), TlsConfigError::NoCertificate);
    let untrusting = TlsOptions {
        trusted: Some(Vec::new()),
        ..TlsOptions::default()
    };
    assert_eq!(
        TlsClient::new(&untrusting).unwrap_err(),
        TlsConfigError::NothingTrusted
    );
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_an_error_and_no_hang() {
    let authority = Authority::new("ours");
    let plain = ScriptedBroker::start(Script::new()).await;
    // A broker takes the handshake for a frame that is too large, and closes.
    let closed = open(&plain.tls_address("localhost"), with(&trusting(&authority))).await;
    assert!(
        matches!(closed, Err(ConnectError::Tls(TlsError::Closed))),
        "{closed:?}"
    );
    let greeting =
        Script::empty().greet(vec![Step::Raw("HTTP/1.1 400 Bad Request\r\n\r\n".into())]);
    plain.set_script(greeting);
    let talks = open(&plain.tls_address("localhost"), with(&trusting(&authority))).await;
    assert!(
        matches!(talks, Err(ConnectError::Tls(TlsError::NotTls))),
        "{talks:?}"
    );
}

#[tokio::test]
async fn a_server_that_never_answers_the_handshake_is_given_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = BrokerAddress {
        host: "localhost".to_owned(),
        port: listener.local_addr().unwrap().port(),
        tls: true,
    };
    let limit = Duration::from_millis(200);
    let options = ConnectionOptions {
        connect_timeout: limit,
        ..with(&trusting(&Authority::new("ours")))
    };
    let silent = async {
        let mut stream = listener.accept().await.unwrap().0;
        let mut taken = Vec::new();
        stream.read_to_end(&mut taken).await.unwrap();
        taken
    };
    let (opened, taken) = tokio::join!(open(&address, options), within(silent));
    assert!(
        matches!(opened, Err(ConnectError::TlsTimeout(at)) if at == limit),
        "{opened:?}"
    );
    assert!(!taken.is_empty(), "the handshake was begun, then closed");
}

#[tokio::test]
async fn replaced_files_are_used_by_the_next_connection() {
    let directory = tempfile::tempdir().unwrap();
    let trusted = directory.path().join("ca.pem");
    let [ours, other] = ["ours", "other"].map(Authority::new);
    std::fs::write(&trusted, other.pem()).unwrap();
    let files = TlsFiles::open(TlsFilePaths {
        trusted: Some(trusted.clone()),
        identity: None,
        allow_insecure: false,
        verify_host_name: true,
        parameters: TlsParameters::default(),
    });
    let options = ConnectionOptions {
        tls: TlsSource::Files(Arc::new(files.unwrap())),
        ..ConnectionOptions::default()
    };
    let broker = broker_with(&ours.sign(&["localhost"])).await;
    let address = broker.tls_address("localhost");
    assert!(open(&address, options.clone()).await.is_err());
    std::fs::write(&trusted, ours.pem()).unwrap();
    assert!(open(&address, options.clone()).await.is_ok());
    // Half of a replacement changes nothing.
    std::fs::write(&trusted, "").unwrap();
    assert!(open(&address, options.clone()).await.is_ok());
    std::fs::remove_file(&trusted).unwrap();
    assert!(open(&address, options).await.is_ok());
}

#[tokio::test]
async fn a_proxy_by_server_name_is_dialled_and_the_brokers_certificate_wanted() {
    let authority = Authority::new("ours");
    let broker = broker_with(&authority.sign(&["broker.example"])).await;
    let options = ConnectionOptions {
        sni_proxy: Some(broker.tls_address("localhost")),
        ..with(&trusting(&authority))
    };
    // Nobody could resolve or reach this one.
    let address = BrokerAddress {
        host: "broker.example".to_owned(),
        port: 1,
        tls: true,
    };
    open(&address, options).await.unwrap();
}

#[tokio::test]
async fn lookups_follow_the_addresses_with_tls_and_ask_for_the_listener() {
    let authority = Authority::new("ours");
    let certificate = authority.sign(&["localhost"]);
    let owner = broker_with(&certificate).await;
    let first = broker_with(&certificate).await;
    let answer = |to: &ScriptedBroker, response: LookupType| {
        let tls = to.tls_address("localhost").url();
        move |received: &pulsegate::testing::scripted_broker::Received| {
            vec![Step::Send(Command::from(CommandLookupTopicResponse {
                broker_service_url: Some("pulsar://nowhere.invalid:1".to_owned()),
                broker_service_url_tls: Some(tls.clone()),
                response: Some(response.into()),
                request_id: received.request_id(),
                authoritative: Some(true),
                ..CommandLookupTopicResponse::default()
            }))]
        }
    };
    first.set_script(Script::new().on(Type::Lookup, answer(&owner, LookupType::Redirect)));
    owner.set_script(Script::new().on(Type::Lookup, answer(&owner, LookupType::Connect)));
    let url = ServiceUrl::from(first.tls_address("localhost"));
    let client = PulsarClient::new(
        url,
        ClientOptions {
            connection: ConnectionOptions {
                authentication: Authentication::token(CredentialSource::Environment(
                    "PATH".to_owned(),
                )),
                ..with(&trusting(&authority))
            },
            listener_name: Some("outside".to_owned()),
            ..ClientOptions::default()
        },
    );
    let topic: TopicName = "persistent://public/default/t".parse().unwrap();
    let found = within(client.lookups().lookup(&topic)).await.unwrap();
    assert_eq!(found.address, owner.tls_address("localhost"));
    let asked = &owner.received_of(Type::Lookup)[0].command;
    assert!(
        matches!(asked, Command::Lookup(lookup) if lookup.advertised_listener_name() == "outside")
    );
    let connect = &owner.received_of(Type::Connect)[0].command;
    assert!(matches!(connect, Command::Connect(connect) if connect.auth_method_name() == "token"));
    client.close();
}

#[tokio::test]
async fn a_wrong_certificate_fails_the_lookup_with_its_reason() {
    let broker = broker_with(&Authority::new("ours").sign(&["localhost"])).await;
    let client = PulsarClient::new(
        ServiceUrl::from(broker.tls_address("localhost")),
        ClientOptions {
            connection: with(&trusting(&Authority::new("other"))),
            ..ClientOptions::default()
        },
    );
    let topic: TopicName = "persistent://public/default/t".parse().unwrap();
    let failed = within(client.lookups().lookup(&topic)).await.unwrap_err();
    let LookupError::Failure(LookupFailure::Pool(PoolError::Connect { error, .. })) = failed else {
        panic!("{failed:?}");
    };
    assert!(matches!(
        *error,
        ConnectError::Tls(TlsError::UnknownIssuer { .. })
    ));
    client.close();
}
