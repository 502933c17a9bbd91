//! Credentials that expire while their connection is open.

use std::time::Duration;

use bytes::Bytes;
use pulsegate::config::GatewayAuthenticationSettings;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::proto::pulsar::base_command::Type;
use pulsegate::protocol::proto::pulsar::{
    AuthData, CommandAuthChallenge, CommandAuthResponse, CommandConnect, CommandLookupTopic,
    CommandPing, FeatureFlags, ServerError,
};
use pulsegate::testing::scripted_broker::{
    Received, Script, ScriptedBroker, Step, connected, lookup_connect as found, lookup_redirect,
};

use tokio::time::timeout;

use crate::credentials::{
    authenticating, expired_token, forwarding, longer_token, short_token, token, with_token,
};
use crate::support::{RawClient, TestGateway, direct_connect, lookup_connect, within};

const ENDED: &str = "pulsegate_gateway_connection_ends_total{reason=\"credential_expired\"}";

async fn gateway(
    broker: &ScriptedBroker,
    authentication: GatewayAuthenticationSettings,
) -> TestGateway {
    TestGateway::with(&[broker], |settings| {
        settings.authentication = authentication;
    })
}

fn refresh() -> Command {
    Command::from(CommandAuthChallenge {
        challenge: Some(AuthData {
            auth_method_name: Some("token".to_owned()),
            auth_data: Some(Bytes::from_static(b"PulsarAuthRefresh")),
        }),
        ..CommandAuthChallenge::default()
    })
}

fn answer(token: &str) -> CommandAuthResponse {
    CommandAuthResponse {
        client_version: Some("test".to_owned()),
        response: Some(AuthData {
            auth_method_name: Some("token".to_owned()),
            auth_data: Some(Bytes::copy_from_slice(token.as_bytes())),
        }),
        protocol_version: Some(19),
    }
}

fn lookup(request_id: u64) -> CommandLookupTopic {
    CommandLookupTopic {
        topic: "persistent://public/default/t".to_owned(),
        request_id,
        ..CommandLookupTopic::default()
    }
}

/// The next frame that is no PING.
async fn next(client: &mut RawClient) -> Command {
    loop {
        match client.receive().await {
            Command::Ping(_) => {}
            command => return command,
        }
    }
}

async fn asked_to_renew(client: &mut RawClient) {
    let Command::AuthChallenge(asked) = next(client).await else {
        panic!("no AUTH_CHALLENGE")
    };
    let challenge = asked.challenge.unwrap();
    assert_eq!(challenge.auth_method_name(), "token");
    assert_eq!(challenge.auth_data(), b"PulsarAuthRefresh");
    assert_eq!(asked.protocol_version, Some(19));
}

fn original_token(received: &Received) -> String {
    match &received.command {
        Command::Connect(connect) => connect.original_auth_data().to_owned(),
        other => panic!("{other:?}"),
    }
}

/// With a few seconds to answer.
fn renewing() -> GatewayAuthenticationSettings {
    GatewayAuthenticationSettings {
        refresh_check: Some(Duration::from_secs(15)),
        ..forwarding()
    }
}

#[tokio::test]
async fn connections_end_with_their_credential_where_it_is_not_forwarded() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = gateway(&broker, authenticating()).await;
    let never = GatewayAuthenticationSettings {
        refresh_check: None,
        ..authenticating()
    };
    let unwatched = self::gateway(&broker, never).await;
    let target = broker.address().to_string();
    let short = short_token("client");
    let connects =
        || [direct_connect(&target), lookup_connect()].map(|connect| with_token(connect, &short));
    let mut ending = Vec::new();
    let mut staying = Vec::new();
    for connect in connects() {
        ending.push(RawClient::established(gateway.address(), connect.clone()).await);
        staying.push(RawClient::established(unwatched.address(), connect).await);
    }
    for connect in [direct_connect(&target), lookup_connect()] {
        let connect = with_token(connect, &token("client"));
        staying.push(RawClient::established(gateway.address(), connect).await);
    }
    for mut client in ending {
        client.closed().await;
    }
    gateway.wait_for_metric(ENDED, 2.0).await;
    for mut client in staying {
        client.send(CommandPing {}).await;
        assert!(matches!(client.receive().await, Command::Pong(_)));
    }
    gateway.stop().await;
    unwatched.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_token_that_expires_while_the_broker_is_asked_ends_the_connection_behind_connected() {
    // Longer than the token is good.
    let slow = Script::new().on(Type::Connect, |_| {
        vec![
            Step::Delay(Duration::from_millis(3500)),
            Step::Send(connected()),
        ]
    });
    let broker = ScriptedBroker::start(slow).await;
    let gateway = gateway(&broker, authenticating()).await;
    let target = broker.address().to_string();
    for connect in [direct_connect(&target), lookup_connect()] {
        let connect = with_token(connect, &short_token("client"));
        let mut client = RawClient::established(gateway.address(), connect).await;
        client.closed().await;
    }
    gateway.wait_for_metric(ENDED, 2.0).await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_lookup_connection_goes_on_with_a_new_credential() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let url = broker.url();
    broker.set_script(Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(found(received.request_id(), &url))]
    }));
    let gateway = gateway(&broker, renewing()).await;
    let (first, second) = (short_token("client"), longer_token("client"));
    let connect = with_token(lookup_connect(), &first);
    let mut client = RawClient::established(gateway.address(), connect).await;
    // While it is good, the broker gets what the client said, and the client is not asked.
    broker.push(vec![Step::Send(refresh())]);
    let answers = broker.wait_for(Type::AuthResponse, 1).await;
    assert_eq!(answers[0].command, told_by_the_gateway(&first));

    asked_to_renew(&mut client).await;
    // Now the broker waits for the client's answer, and the client is not asked again.
    broker.push(vec![Step::Send(refresh())]);
    client.send(lookup(1)).await;
    assert!(matches!(
        next(&mut client).await,
        Command::LookupResponse(_)
    ));
    assert_eq!(broker.received_of(Type::AuthResponse).len(), 1);
    client.send(answer(&second)).await;
    let answers = broker.wait_for(Type::AuthResponse, 2).await;
    assert_eq!(answers[1].command, told_by_the_gateway(&second));
    client.send(lookup(2)).await;
    assert!(matches!(
        next(&mut client).await,
        Command::LookupResponse(_)
    ));
    assert_eq!(broker.received_of(Type::Connect).len(), 1);
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}

/// The AUTH_RESPONSE that brokers get for a client of [`lookup_connect`].
fn told_by_the_gateway(token: &str) -> Command {
    Command::from(CommandAuthResponse {
        client_version: Some(lookup_connect().client_version),
        ..answer(token)
    })
}

/// apache/pulsar#10816, #17831, #20067.
#[tokio::test]
async fn a_new_broker_connection_carries_the_newest_credential_of_the_client() {
    let first = ScriptedBroker::start(Script::new()).await;
    let second = ScriptedBroker::start(Script::new()).await;
    let url = second.url();
    second.set_script(Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(found(received.request_id(), &url))]
    }));
    let url = second.url();
    first.set_script(Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(lookup_redirect(
            received.request_id(),
            &url,
            true,
        ))]
    }));
    let gateway = gateway(&first, renewing()).await;
    let old = short_token("client");
    let connect = with_token(lookup_connect(), &old);
    let mut client = RawClient::established(gateway.address(), connect).await;
    asked_to_renew(&mut client).await;
    // What is known has expired: the broker that the lookup leads to must not see it.
    client.send(lookup(1)).await;
    let early = timeout(
        Duration::from_millis(500),
        second.wait_for(Type::Connect, 1),
    )
    .await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(second.accepted(), 1);
    let new = longer_token("client");
    client.send(answer(&new)).await;
    assert!(matches!(
        next(&mut client).await,
        Command::LookupResponse(_)
    ));
    let seen = second.wait_for(Type::Connect, 1).await;
    assert_eq!(seen.len(), 1);
    assert_eq!(original_token(&seen[0]), new);
    assert_eq!(original_token(&first.received_of(Type::Connect)[0]), old);
    drop(client);
    gateway.stop().await;
    for broker in [first, second] {
        broker.stop().await;
    }
}

/// apache/pulsar#7824, #16016.
#[tokio::test]
async fn a_client_that_does_not_renew_its_credential_is_closed_and_not_asked_again() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let brief = GatewayAuthenticationSettings {
        refresh_check: Some(Duration::from_secs(1)),
        ..forwarding()
    };
    let gateway = gateway(&broker, brief).await;
    let short = short_token("client");
    let connect = with_token(lookup_connect(), &short);
    let flagless = CommandConnect {
        feature_flags: Some(FeatureFlags::default()),
        ..connect.clone()
    };
    let mut silent = RawClient::established(gateway.address(), connect.clone()).await;
    let mut without = RawClient::established(gateway.address(), flagless).await;
    let empty = CommandAuthResponse::default();
    let mut stubborn = Vec::new();
    for wrong in [
        answer(&short),
        answer(&expired_token("client")),
        answer(&longer_token("another")),
        answer("x"),
        empty,
    ] {
        let client = RawClient::established(gateway.address(), connect.clone()).await;
        stubborn.push((client, wrong));
    }
    for (client, wrong) in &mut stubborn {
        asked_to_renew(client).await;
        client.send(wrong.clone()).await;
        let Command::Error(error) = next(client).await else {
            panic!("no error")
        };
        assert_eq!(error.error(), ServerError::AuthenticationError);
        assert_eq!(error.message, "Failed to authenticate");
        client.closed().await;
    }
    asked_to_renew(&mut silent).await;
    silent.closed().await;
    without.closed().await;
    gateway.wait_for_metric(ENDED, 2.0).await;
    drop(stubborn);
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_ends_a_lookup_connection() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = gateway(&broker, renewing()).await;
    let connect = with_token(lookup_connect(), &longer_token("client"));
    let mut client = RawClient::established(gateway.address(), connect).await;
    client.send(answer(&longer_token("client"))).await;
    let Command::Error(error) = next(&mut client).await else {
        panic!("no error")
    };
    assert_eq!(error.message, "Unable to handleAuthResponse");
    client.closed().await;
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn challenges_pass_through_a_relay_where_credentials_are_forwarded() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = gateway(&broker, renewing()).await;
    let target = broker.address().to_string();
    let connect = with_token(direct_connect(&target), &short_token("client"));
    let mut client = RawClient::established(gateway.address(), connect).await;
    // A lookup connection of the same token tells when it has expired.
    let connect = with_token(lookup_connect(), &short_token("client"));
    let mut clock = RawClient::established(gateway.address(), connect).await;
    asked_to_renew(&mut clock).await;
    broker.push(vec![Step::Send(refresh())]);
    assert_eq!(client.receive().await, refresh());
    let response = answer(&longer_token("client"));
    client.send(response.clone()).await;
    let answers = within(async {
        loop {
            let answers = broker.received_of(Type::AuthResponse);
            if answers
                .iter()
                .any(|seen| seen.command == Command::from(response.clone()))
            {
                return answers;
            }
            tokio::task::yield_now().await;
        }
    });
    assert!(!answers.await.is_empty());
    client.send(CommandPing {}).await;
    assert!(matches!(client.receive().await, Command::Pong(_)));
    drop((client, clock));
    gateway.stop().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_forwarded_token_that_the_broker_does_not_watch_ends_its_relay() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let watching = ScriptedBroker::start(Script::new()).await;
    let settings = GatewayAuthenticationSettings {
        refresh_check: Some(Duration::from_secs(1)),
        ..forwarding()
    };
    let gateway = TestGateway::with(&[&broker, &watching], |gateway| {
        gateway.authentication = settings;
    });
    let short = short_token("client");
    let to =
        |broker: &ScriptedBroker| with_token(direct_connect(&broker.address().to_string()), &short);
    let mut unwatched = RawClient::established(gateway.address(), to(&broker)).await;
    let mut watched = RawClient::established(gateway.address(), to(&watching)).await;
    // Nobody can ask this one for another token.
    let old = CommandConnect {
        feature_flags: None,
        ..to(&watching)
    };
    let mut old = RawClient::established(gateway.address(), old).await;
    let refreshes = watching.received_of(Type::Connect).len();
    assert_eq!(refreshes, 2);
    watching.push(vec![Step::Send(refresh())]);
    assert_eq!(watched.receive().await, refresh());
    assert_eq!(old.receive().await, refresh());
    old.closed().await;
    unwatched.closed().await;
    gateway.wait_for_metric(ENDED, 2.0).await;
    // What comes of the answer is the broker's to say, which has asked.
    watched.send(CommandPing {}).await;
    assert!(matches!(watched.receive().await, Command::Pong(_)));
    drop(watched);
    gateway.stop().await;
    broker.stop().await;
    watching.stop().await;
}

#[tokio::test]
async fn a_challenge_for_the_gateways_own_credential_on_a_lookup_connection_is_answered_by_it() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let gateway = gateway(&broker, authenticating()).await;
    let connect = with_token(lookup_connect(), &token("client"));
    let client = RawClient::established(gateway.address(), connect).await;
    broker.push(vec![Step::Send(refresh())]);
    let answers = broker.wait_for(Type::AuthResponse, 1).await;
    assert_eq!(answers[0].command, told_by_the_gateway("gateway-token"));
    drop(client);
    gateway.stop().await;
    broker.stop().await;
}
