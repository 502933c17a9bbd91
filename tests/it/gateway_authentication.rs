//! Who a gateway lets in, and what it tells brokers of them.

use bytes::Bytes;
use pulsegate::config::{
    AuthenticationSettings, CredentialSource, GatewayAuthenticationSettings,
    IncomingAuthenticationSettings,
};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::{AuthMethod, CommandConnect, FeatureFlags, ServerError};
use pulsegate::testing::scripted_broker::{
    Script, ScriptedBroker, Step, auth_challenge, connected,
};

use crate::credentials::{authenticating, expired_token, forwarding, own_token, token, with_token};
use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect};

async fn gateway(authentication: GatewayAuthenticationSettings) -> (ScriptedBroker, TestGateway) {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = TestGateway::with(&[&broker], |settings| {
        settings.authentication = authentication;
    });
    (broker, gateway)
}

/// What the broker is told when the client connects with this CONNECT, for a relay and for lookups.
async fn told(
    authentication: &GatewayAuthenticationSettings,
    connect: &CommandConnect,
) -> [CommandConnect; 2] {
    let (broker, gateway) = gateway(authentication.clone()).await;
    let direct = CommandConnect {
        proxy_to_broker_url: Some(broker.address().to_string()),
        ..connect.clone()
    };
    drop(RawClient::established(gateway.address(), direct).await);
    drop(RawClient::established(gateway.address(), connect.clone()).await);
    let seen = broker.wait_for(Type::Connect, 2).await;
    let told = [0, 1].map(|index| match &seen[index].command {
        Command::Connect(connect) => (**connect).clone(),
        other => panic!("{other:?}"),
    });
    gateway.stop().await;
    broker.stop().await;
    told
}

/// The ERROR that this CONNECT is answered by; no broker has heard of it.
async fn refusal(
    authentication: &GatewayAuthenticationSettings,
    connect: &CommandConnect,
) -> (ServerError, String) {
    let (broker, gateway) = gateway(authentication.clone()).await;
    let mut error = None;
    let direct = CommandConnect {
        proxy_to_broker_url: Some(broker.address().to_string()),
        ..connect.clone()
    };
    for connect in [direct, connect.clone()] {
        let mut client = RawClient::connect(gateway.address()).await;
        client.send(connect).await;
        let Command::Error(refused) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(refused.request_id, u64::MAX);
        client.closed().await;
        let refused = (refused.error(), refused.message.clone());
        assert!(error.is_none_or(|before| before == refused));
        error = Some(refused);
    }
    assert!(broker.received_of(Type::Connect).is_empty());
    gateway.stop().await;
    broker.stop().await;
    error.unwrap()
}

fn text(bytes: Option<&Bytes>) -> &str {
    bytes.map_or("", |bytes| std::str::from_utf8(bytes).unwrap())
}

#[tokio::test]
async fn brokers_are_told_the_gateways_credential_and_the_clients_role() {
    let client = CommandConnect {
        original_principal: Some("forged".to_owned()),
        original_auth_data: Some("forged".to_owned()),
        original_auth_method: Some("forged".to_owned()),
        auth_method: Some(AuthMethod::Athens.into()),
        ..with_token(lookup_connect(), &token("client"))
    };
    for seen in told(&authenticating(), &client).await {
        assert_eq!(seen.auth_method_name(), "token");
        assert_eq!(text(seen.auth_data.as_ref()), "gateway-token");
        assert_eq!(seen.auth_method, None);
        assert_eq!(seen.original_principal(), "client");
        assert_eq!(
            (seen.original_auth_data, seen.original_auth_method),
            (None, None)
        );
        assert_eq!(seen.client_version, client.client_version);
        assert_eq!(seen.protocol_version, client.protocol_version);
        assert_eq!(seen.feature_flags, client.feature_flags);
        assert!(seen.proxy_version.unwrap().starts_with("pulsegate-"));
        assert_eq!(seen.proxy_to_broker_url, None);
    }
}

#[tokio::test]
async fn brokers_get_the_clients_credential_where_it_is_forwarded() {
    let client = with_token(lookup_connect(), &token("client"));
    for seen in told(&forwarding(), &client).await {
        assert_eq!(text(seen.auth_data.as_ref()), "gateway-token");
        assert_eq!(seen.original_principal(), "client");
        assert_eq!(seen.original_auth_data(), text(client.auth_data.as_ref()));
        assert_eq!(seen.original_auth_method(), "token");
        assert!(seen.feature_flags.unwrap().supports_auth_refresh());
    }
    let basic = CommandConnect {
        auth_method_name: Some("basic".to_owned()),
        auth_data: Some(Bytes::from_static(b"me:secret")),
        ..lookup_connect()
    };
    for seen in told(&forwarding(), &basic).await {
        assert_eq!(seen.original_principal(), "me");
        assert_eq!(seen.original_auth_data(), "me:secret");
        assert_eq!(seen.original_auth_method(), "basic");
    }
}

#[tokio::test]
async fn the_clients_credential_never_stands_for_the_gateways() {
    let settings = GatewayAuthenticationSettings {
        broker_credential: AuthenticationSettings::None,
        ..authenticating()
    };
    for seen in told(&settings, &with_token(lookup_connect(), &token("client"))).await {
        assert_eq!(seen.auth_method_name(), "none");
        assert_eq!(text(seen.auth_data.as_ref()), "");
        assert_eq!(seen.original_principal(), "client");
    }
}

#[tokio::test]
async fn without_authentication_the_gateways_credential_takes_the_place_of_the_clients() {
    let settings = GatewayAuthenticationSettings {
        broker_credential: own_token("gateway-token"),
        forward_credentials: true,
        ..GatewayAuthenticationSettings::default()
    };
    let [direct, lookups] = told(&settings, &with_token(lookup_connect(), "whatever")).await;
    for seen in [&direct, &lookups] {
        assert_eq!(text(seen.auth_data.as_ref()), "gateway-token");
        assert_eq!(seen.original_principal, None);
        assert_eq!(seen.original_auth_data, None);
    }
    // The client must not be asked for a credential that is the gateway's; where the gateway can answer, it may be.
    assert!(!direct.feature_flags.unwrap().supports_auth_refresh());
    assert!(
        direct
            .feature_flags
            .unwrap()
            .supports_broker_entry_metadata()
    );
    assert!(lookups.feature_flags.unwrap().supports_auth_refresh());
}

#[tokio::test]
async fn a_clients_certificate_is_not_claimed_over_the_gateways_own_connection() {
    // A broker would take the certificate of that connection, which is the gateway's, for the client's.
    let client = CommandConnect {
        auth_method_name: Some("tls".to_owned()),
        auth_data: Some(Bytes::from_static(b"x")),
        ..lookup_connect()
    };
    for seen in told(&GatewayAuthenticationSettings::default(), &client).await {
        assert_eq!(seen.auth_method_name(), "none");
        assert_eq!(text(seen.auth_data.as_ref()), "");
        assert_eq!(seen.client_version, client.client_version);
    }
}

#[tokio::test]
async fn clients_without_a_method_that_anybody_knows_have_the_anonymous_role_or_none() {
    let mut settings = authenticating();
    let sasl = CommandConnect {
        auth_method_name: Some("sasl".to_owned()),
        auth_data: Some(Bytes::from_static(b"\xff\xfe")),
        ..lookup_connect()
    };
    let failed = (
        ServerError::AuthenticationError,
        "Failed to authenticate".to_owned(),
    );
    for connect in [&lookup_connect(), &sasl] {
        assert_eq!(refusal(&settings, connect).await, failed);
    }
    settings.clients = Some(IncomingAuthenticationSettings {
        anonymous_role: Some("nobody".to_owned()),
        ..settings.clients.unwrap()
    });
    for connect in [&lookup_connect(), &sasl] {
        for seen in told(&settings, connect).await {
            assert_eq!(seen.original_principal(), "nobody");
        }
    }
    // The protocol has no place for bytes that are no text.
    settings.forward_credentials = true;
    for seen in told(&settings, &sasl).await {
        assert_eq!(seen.original_principal(), "nobody");
        assert_eq!(
            (seen.original_auth_data, seen.original_auth_method),
            (None, None)
        );
    }
    assert_eq!(
        refusal(&settings, &with_token(lookup_connect(), "bad")).await,
        failed
    );
}

#[tokio::test]
async fn a_bad_credential_is_refused_without_the_reason_and_no_broker_hears_of_it() {
    let failed = (
        ServerError::AuthenticationError,
        "Failed to authenticate".to_owned(),
    );
    let good = token("client");
    let (signed, _) = good.rsplit_once('.').unwrap();
    let unsigned = format!("{signed}.");
    let huge = "x".repeat(50_000);
    for bad in ["", "x", &unsigned, &expired_token("client"), &huge] {
        let connect = with_token(lookup_connect(), bad);
        assert_eq!(refusal(&authenticating(), &connect).await, failed, "{bad}");
    }
    let connect = CommandConnect {
        auth_method_name: Some("basic".to_owned()),
        auth_data: Some(Bytes::from_static(b"me:wrong")),
        ..lookup_connect()
    };
    assert_eq!(refusal(&authenticating(), &connect).await, failed);
    let (broker, gateway) = gateway(authenticating()).await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(connect).await;
    client.receive().await;
    client.closed().await;
    let ended = "pulsegate_gateway_connection_ends_total{reason=\"authentication_failed\"}";
    gateway.wait_for_metric(ended, 1.0).await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_password_is_good_on_both_kinds_of_connection() {
    let connect = CommandConnect {
        auth_method_name: Some("basic".to_owned()),
        auth_data: Some(Bytes::from_static(b"me:secret")),
        ..lookup_connect()
    };
    for seen in told(&authenticating(), &connect).await {
        assert_eq!(seen.original_principal(), "me");
    }
}

#[tokio::test]
async fn only_trusted_proxies_say_whom_they_connect_for() {
    let settings = GatewayAuthenticationSettings {
        trusted_proxy_roles: vec!["edge".to_owned(), "edge2".to_owned()],
        ..forwarding()
    };
    let proxys = |role: &str, original: Option<&str>| CommandConnect {
        proxy_version: Some("pulsar-4".to_owned()),
        original_principal: original.map(str::to_owned),
        original_auth_data: original.map(|_| "the client's".to_owned()),
        original_auth_method: original.map(|_| "token".to_owned()),
        ..with_token(lookup_connect(), &token(role))
    };
    for seen in told(&settings, &proxys("edge", Some("client"))).await {
        assert_eq!(seen.original_principal(), "client");
        assert_eq!(seen.original_auth_data(), "the client's");
        assert_eq!(seen.original_auth_method(), "token");
        assert!(seen.proxy_version().starts_with("pulsegate-"));
    }
    // What the role may do itself, it may do without being a proxy.
    for seen in told(&settings, &with_token(lookup_connect(), &token("edge"))).await {
        assert_eq!(seen.original_principal(), "edge");
    }
    let not_allowed = |text: &str| (ServerError::NotAllowedError, text.to_owned());
    for (connect, text) in [
        (
            proxys("client", Some("admin")),
            "Must not provide proxyVersion",
        ),
        (
            proxys("edge", None),
            "Must provide originalPrincipal, which must not be a proxy's",
        ),
        (
            proxys("edge", Some(" ")),
            "Must provide originalPrincipal, which must not be a proxy's",
        ),
        (
            proxys("edge", Some("edge2")),
            "Must provide originalPrincipal, which must not be a proxy's",
        ),
    ] {
        assert_eq!(refusal(&settings, &connect).await, not_allowed(text));
    }
    // Without trusted roles nobody is asked who it is.
    let nobody = proxys("edge", Some("client"));
    let expected = not_allowed("Must not provide proxyVersion");
    assert_eq!(refusal(&authenticating(), &nobody).await, expected);
}

#[tokio::test]
async fn the_broker_asks_the_gateway_and_not_the_client_for_the_gateways_credential() {
    let script = Script::new()
        .on(Type::Connect, |_| vec![Step::Send(auth_challenge())])
        .on(Type::AuthResponse, |_| vec![Step::Send(connected())]);
    let (broker, gateway) = gateway(authenticating()).await;
    broker.set_script(script);
    let connect = with_token(
        direct_connect(&broker.address().to_string()),
        &token("client"),
    );
    // The first frame that the client sees is CONNECTED.
    drop(RawClient::established(gateway.address(), connect).await);
    let connect = with_token(lookup_connect(), &token("client"));
    drop(RawClient::established(gateway.address(), connect).await);
    for answer in broker.received_of(Type::AuthResponse) {
        let Command::AuthResponse(answer) = answer.command else {
            panic!("no AUTH_RESPONSE")
        };
        let response = answer.response.unwrap();
        assert_eq!(response.auth_method_name(), "token");
        assert_eq!(response.auth_data(), b"gateway-token");
    }
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_gateway_without_a_credential_says_so_when_a_broker_asks_for_one() {
    let settings = GatewayAuthenticationSettings {
        broker_credential: AuthenticationSettings::None,
        ..authenticating()
    };
    let (broker, gateway) = gateway(settings).await;
    broker.set_script(Script::new().on(Type::Connect, |_| vec![Step::Send(auth_challenge())]));
    let mut client = RawClient::connect(gateway.address()).await;
    let connect = direct_connect(&broker.address().to_string());
    client.send(with_token(connect, &token("client"))).await;
    let Command::Error(error) = client.receive().await else {
        panic!("no error")
    };
    assert_eq!(
        error.message,
        "The gateway cannot authenticate itself to the target broker."
    );
    client.closed().await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn the_gateways_token_is_read_anew_for_every_connection() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let settings = GatewayAuthenticationSettings {
        broker_credential: AuthenticationSettings::Token(CredentialSource::File(path.clone())),
        ..authenticating()
    };
    let (broker, gateway) = gateway(settings).await;
    let target = broker.address().to_string();
    let connects = [direct_connect(&target), lookup_connect()];
    for (index, connect) in connects.into_iter().cycle().take(4).enumerate() {
        std::fs::write(&path, format!("token-{index}\n")).unwrap();
        // Clients that differ do not share connections for lookups.
        let connect = CommandConnect {
            client_version: format!("client {index}"),
            ..with_token(connect, &token("client"))
        };
        drop(RawClient::established(gateway.address(), connect).await);
        let seen = broker.wait_for(Type::Connect, index + 1).await;
        let Command::Connect(seen) = &seen[index].command else {
            panic!("no CONNECT")
        };
        assert_eq!(text(seen.auth_data.as_ref()), format!("token-{index}"));
    }
    std::fs::remove_file(&path).unwrap();
    for connect in [direct_connect(&target), lookup_connect()] {
        let mut client = RawClient::connect(gateway.address()).await;
        let connect = CommandConnect {
            client_version: "client after that".to_owned(),
            ..with_token(connect, &token("client"))
        };
        client.send(connect).await;
        let Command::Error(error) = client.receive().await else {
            panic!("no error")
        };
        assert_eq!(error.error(), ServerError::ServiceNotReady);
        assert!(!error.message.contains("token"), "{}", error.message);
        client.closed().await;
    }
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn flags_that_this_version_does_not_know_reach_the_broker() {
    let connect = CommandConnect {
        feature_flags: Some(FeatureFlags {
            supports_topic_watchers: Some(true),
            supports_repl_dedup_by_lid_and_eid: Some(false),
            ..FeatureFlags::default()
        }),
        protocol_version: Some(99),
        ..with_token(lookup_connect(), &token("client"))
    };
    let [direct, _] = told(&authenticating(), &connect).await;
    assert_eq!(direct.feature_flags, connect.feature_flags);
    assert_eq!(direct.protocol_version, Some(99));
}
