//! Tests of [`super::session`], [`super::sessions`] and [`super::pulsar_client`] against scripted brokers on real sockets.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{net::TcpSocket, sync::mpsc, time::timeout};

use super::{
    session::{ConsumerEvents, Detached, ProducerEvents, Session},
    sessions::Sessions,
    *,
};
use crate::{
    naming::{BrokerAddress, ServiceUrl, TopicName},
    net::{TlsClient, TlsError, TlsOptions},
    protocol::{
        command::Command,
        frame::Frame,
        proto::pulsar::{
            CommandActiveConsumerChange, CommandCloseConsumer, CommandCloseProducer,
            CommandConnect, CommandLookupTopicResponse, CommandMessage, CommandReachedEndOfTopic,
            CommandSendError, CommandSendReceipt, CommandTopicMigrated, MessageIdData, ServerError,
            base_command::Type, command_lookup_topic_response::LookupType,
            command_topic_migrated::ResourceType,
        },
    },
    testing::{
        certificates::Authority,
        scripted_broker::{
            Script, ScriptedBroker, Step, auth_challenge, connected, error, lookup_connect,
        },
        tls::acceptor,
    },
};

/// A producer and a consumer that write down what they are told.
struct Recorder {
    name: &'static str,
    told: mpsc::UnboundedSender<String>,
}

impl Recorder {
    fn tell(&self, what: &str) {
        let _ = self.told.send(format!("{} {what}", self.name));
    }

    fn detached(&self, detached: &Detached) {
        let address = |address: &Option<BrokerAddress>| {
            address
                .as_ref()
                .map_or("nowhere".to_owned(), ToString::to_string)
        };
        match detached {
            Detached::ByBroker { assigned } => self.tell(&format!("closed: {}", address(assigned))),
            Detached::Migrated { to } => self.tell(&format!("migrated: {}", address(to))),
            Detached::Disconnected(reason) => self.tell(&format!("disconnected: {reason}")),
        }
    }
}

impl ProducerEvents for Recorder {
    fn on_receipts(&self, receipts: &[CommandSendReceipt]) -> Result<(), CloseReason> {
        let ids: Vec<u64> = receipts.iter().map(|receipt| receipt.sequence_id).collect();
        self.tell(&format!("receipts {ids:?}"));
        Ok(())
    }

    fn on_send_error(&self, error: CommandSendError) -> Result<(), CloseReason> {
        self.tell(&format!("refused {}", error.sequence_id));
        Ok(())
    }

    fn on_detached(&self, detached: Detached) {
        self.detached(&detached);
    }
}

impl ConsumerEvents for Recorder {
    fn on_messages(&self, messages: &mut Vec<(CommandMessage, Bytes)>) -> Result<(), CloseReason> {
        for (message, entry) in messages.drain(..) {
            self.tell(&format!(
                "message {} {entry:?}",
                message.message_id.entry_id
            ));
            if entry == "too much" {
                return Err(CloseReason::KeepAliveTimeout);
            }
        }
        Ok(())
    }

    fn on_active_change(&self, is_active: bool) {
        self.tell(&format!("active {is_active}"));
    }

    fn on_end_of_topic(&self) {
        self.tell("end of topic");
    }

    fn on_detached(&self, detached: Detached) {
        self.detached(&detached);
    }
}

/// What all recorders of a test were told, in order.
struct Told {
    sender: mpsc::UnboundedSender<String>,
    told: mpsc::UnboundedReceiver<String>,
}

impl Told {
    fn new() -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        Self { sender, told }
    }

    fn recorder(&self, name: &'static str) -> Arc<Recorder> {
        Arc::new(Recorder {
            name,
            told: self.sender.clone(),
        })
    }

    async fn expect(&mut self, expected: &[&str]) {
        for expected in expected {
            let told = within(self.told.recv()).await;
            assert_eq!(told.as_deref(), Some(*expected));
        }
    }
}

async fn within<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_secs(20), future)
        .await
        .expect("nothing happened in time")
}

async fn session(broker: &ScriptedBroker, options: ConnectionOptions) -> Session {
    let connect = CommandConnect::default();
    within(Session::open(&broker.address(), connect, options))
        .await
        .unwrap()
}

fn receipt(producer_id: u64, sequence_id: u64) -> Command {
    Command::from(CommandSendReceipt {
        producer_id,
        sequence_id,
        ..CommandSendReceipt::default()
    })
}

fn message(consumer_id: u64, entry_id: u64, entry: &'static str) -> Frame {
    let command = Command::from(CommandMessage {
        consumer_id,
        message_id: MessageIdData {
            entry_id,
            ..MessageIdData::default()
        },
        ..CommandMessage::default()
    });
    Frame {
        command: command.encode_command(),
        payload: Bytes::from(entry),
    }
}

fn close_producer(producer_id: u64, plain: &str, tls: &str) -> Command {
    Command::from(CommandCloseProducer {
        producer_id,
        assigned_broker_service_url: Some(plain.to_owned()),
        assigned_broker_service_url_tls: Some(tls.to_owned()),
        ..CommandCloseProducer::default()
    })
}

/// All in one write, so that one read brings them.
fn at_once(commands: impl IntoIterator<Item = Command>) -> Vec<Step> {
    let mut bytes = BytesMut::new();
    for command in commands {
        command.encode(&mut bytes);
    }
    vec![Step::Raw(bytes.freeze())]
}

#[tokio::test]
async fn receipts_that_come_together_are_told_together_and_before_what_follows() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let session = session(&broker, ConnectionOptions::default()).await;
    let mut told = Told::new();
    let _one = session.attach_producer(1, told.recorder("one")).unwrap();
    let _two = session.attach_producer(2, told.recorder("two")).unwrap();
    broker.push(at_once([
        receipt(1, 10),
        receipt(1, 11),
        receipt(2, 20),
        receipt(1, 12),
        close_producer(1, "pulsar://next:1", "pulsar+ssl://next:2"),
        // Of a producer that is gone, and of one that never was.
        receipt(1, 13),
        receipt(3, 30),
        receipt(2, 21),
        Command::from(CommandSendError {
            producer_id: 2,
            sequence_id: 22,
            error: ServerError::ChecksumError.into(),
            message: String::new(),
        }),
    ]));
    told.expect(&[
        "one receipts [10, 11]",
        "two receipts [20]",
        "one receipts [12]",
        "one closed: next:1",
        "two receipts [21]",
        "two refused 22",
    ])
    .await;
}

#[tokio::test]
async fn what_is_for_a_consumer_reaches_that_consumer() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let session = session(&broker, ConnectionOptions::default()).await;
    let mut told = Told::new();
    let _seven = session.attach_consumer(7, told.recorder("seven")).unwrap();
    let _eight = session.attach_consumer(8, told.recorder("eight")).unwrap();
    broker.push(vec![
        Step::Frame(message(7, 1, "a")),
        Step::Frame(message(8, 2, "b")),
        Step::Frame(message(9, 3, "nobody's")),
        Step::Send(Command::from(CommandActiveConsumerChange {
            consumer_id: 8,
            is_active: Some(true),
        })),
        Step::Send(Command::from(CommandReachedEndOfTopic { consumer_id: 7 })),
        Step::Send(Command::from(CommandCloseConsumer {
            consumer_id: 7,
            ..CommandCloseConsumer::default()
        })),
        Step::Frame(message(7, 4, "after the end")),
        Step::Send(Command::from(CommandTopicMigrated {
            resource_id: 8,
            resource_type: ResourceType::Consumer.into(),
            broker_service_url: Some("pulsar://blue:1".to_owned()),
            broker_service_url_tls: None,
        })),
    ]);
    told.expect(&[
        "seven message 1 b\"a\"",
        "eight message 2 b\"b\"",
        "eight active true",
        "seven end of topic",
        "seven closed: nowhere",
        "eight migrated: blue:1",
    ])
    .await;
    assert!(!session.connection().is_closed());
}

#[tokio::test]
async fn the_end_of_the_connection_detaches_everybody_and_nobody_is_attached_afterwards() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let session = session(&broker, ConnectionOptions::default()).await;
    let mut told = Told::new();
    let _producer = session.attach_producer(1, told.recorder("one")).unwrap();
    let _consumer = session.attach_consumer(1, told.recorder("two")).unwrap();
    let mut steps = at_once([receipt(1, 5)]);
    steps.push(Step::Close);
    broker.push(steps);
    told.expect(&[
        "one receipts [5]",
        "one disconnected: closed by the broker",
        "two disconnected: closed by the broker",
    ])
    .await;
    within(session.connection().closed()).await;
    assert!(session.attach_producer(2, told.recorder("three")).is_none());
    assert!(session.attach_consumer(2, told.recorder("four")).is_none());
}

#[tokio::test]
async fn a_dropped_route_gets_nothing_and_frees_its_id() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let session = session(&broker, ConnectionOptions::default()).await;
    let mut told = Told::new();
    drop(session.attach_consumer(1, told.recorder("first")));
    let _second = session.attach_consumer(1, told.recorder("second"));
    let _witness = session.attach_consumer(2, told.recorder("witness"));
    broker.push(vec![
        Step::Frame(message(1, 1, "x")),
        Step::Frame(message(2, 2, "y")),
    ]);
    told.expect(&["second message 1 b\"x\"", "witness message 2 b\"y\""])
        .await;
}

#[tokio::test]
async fn a_consumer_that_refuses_a_message_ends_the_connection() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let session = session(&broker, ConnectionOptions::default()).await;
    let told = Told::new();
    let _consumer = session.attach_consumer(1, told.recorder("one")).unwrap();
    broker.push(vec![Step::Frame(message(1, 1, "too much"))]);
    let reason = within(session.connection().closed()).await;
    assert!(matches!(reason, CloseReason::KeepAliveTimeout));
}

#[tokio::test]
async fn a_challenge_on_a_session_is_answered_with_a_fresh_credential() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let counter = std::sync::atomic::AtomicUsize::new(0);
    let supplier = move || {
        let count = counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok(Bytes::from(format!("token {count}")))
    };
    let options = ConnectionOptions {
        authentication: Authentication::token_from(Arc::new(supplier)),
        ..ConnectionOptions::default()
    };
    let session = session(&broker, options).await;
    broker.push(vec![Step::Send(auth_challenge())]);
    let answer = within(broker.wait_for(Type::AuthResponse, 1)).await;
    let Command::AuthResponse(answer) = &answer[0].command else {
        panic!("{answer:?}");
    };
    let data = answer.response.as_ref().and_then(|it| it.auth_data.clone());
    assert_eq!(data.as_deref(), Some(&b"token 1"[..]));
    assert!(!session.connection().is_closed());
}

#[tokio::test]
async fn a_broker_that_challenges_an_open_connection_without_end_loses_it() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let supplier = || Ok(Bytes::from_static(b"token"));
    let options = ConnectionOptions {
        authentication: Authentication::token_from(Arc::new(supplier)),
        ..ConnectionOptions::default()
    };
    let session = session(&broker, options).await;
    broker.push(vec![Step::Send(auth_challenge()); 101]);
    let reason = within(session.connection().closed()).await;
    assert!(matches!(reason, CloseReason::Violation(_)), "{reason}");
}

fn sessions(
    addresses: &[BrokerAddress],
    options: ConnectionOptions,
    per_broker: usize,
) -> Sessions {
    let service_url = ServiceUrl {
        addresses: addresses.to_vec(),
    };
    Sessions::new(service_url, CommandConnect::default(), options, per_broker)
}

fn direct(address: BrokerAddress) -> BrokerLookup {
    BrokerLookup {
        address,
        proxy_through_service_url: false,
    }
}

#[tokio::test]
async fn callers_share_one_attempt_and_one_connection() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let sessions = sessions(&[broker.address()], ConnectionOptions::default(), 1);
    let wanted = direct(broker.address());
    let (a, b, c) = within(async {
        tokio::join!(
            sessions.to(&wanted),
            sessions.to(&wanted),
            sessions.to(&wanted)
        )
    })
    .await;
    let [a, b, c] = [a, b, c].map(Result::unwrap);
    assert!(a.is_same(&b) && b.is_same(&c));
    assert_eq!(broker.accepted(), 1);
    // One that ended is replaced.
    a.connection().close();
    within(a.connection().closed()).await;
    let d = within(sessions.to(&wanted)).await.unwrap();
    assert!(!d.is_same(&a));
    assert_eq!(broker.accepted(), 2);
    sessions.close();
    within(d.connection().closed()).await;
}

#[tokio::test]
async fn another_caller_goes_on_when_the_first_one_gives_up() {
    let broker = ScriptedBroker::start(Script::empty()).await;
    let sessions = sessions(&[broker.address()], ConnectionOptions::default(), 1);
    let wanted = direct(broker.address());
    tokio::select! {
        _ = sessions.to(&wanted) => panic!("the broker does not answer"),
        _ = broker.wait_for(Type::Connect, 1) => {}
    }
    broker.set_script(Script::new());
    within(sessions.to(&wanted)).await.unwrap();
}

#[tokio::test]
async fn callers_share_the_error_of_one_attempt() {
    let broker = ScriptedBroker::start(Script::empty()).await;
    let options = ConnectionOptions {
        handshake_timeout: Duration::from_millis(100),
        ..ConnectionOptions::default()
    };
    let sessions = sessions(&[broker.address()], options, 1);
    let wanted = direct(broker.address());
    let (a, b, c) = within(async {
        tokio::join!(
            sessions.to(&wanted),
            sessions.to(&wanted),
            sessions.to(&wanted)
        )
    })
    .await;
    let [a, b, c] = [a, b, c].map(Result::unwrap_err);
    assert!(matches!(*a, ConnectError::HandshakeTimeout(_)), "{a:?}");
    assert!(Arc::ptr_eq(&a, &b) && Arc::ptr_eq(&b, &c));
    assert_eq!(broker.accepted(), 1);
    assert!(format!("{sessions:?}").contains("open: 0"), "{sessions:?}");
}

#[tokio::test]
async fn an_attempt_goes_on_for_others_when_its_first_caller_gives_up() {
    let broker = ScriptedBroker::start(Script::new().on(Type::Connect, |_| {
        vec![
            Step::Delay(Duration::from_millis(100)),
            Step::Send(connected()),
        ]
    }))
    .await;
    let sessions = sessions(&[broker.address()], ConnectionOptions::default(), 1);
    let wanted = direct(broker.address());
    let mut first = Box::pin(sessions.to(&wanted));
    let mut second = Box::pin(sessions.to(&wanted));
    tokio::select! {
        biased;
        _ = &mut first => panic!("the broker waits"),
        _ = &mut second => panic!("the broker waits"),
        _ = broker.wait_for(Type::Connect, 1) => {}
    }
    drop(first);
    within(second).await.unwrap();
    assert_eq!(broker.accepted(), 1);
}

#[tokio::test]
async fn a_failed_attempt_does_not_keep_the_next_one_from_success() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let wanted = direct(BrokerAddress::from_host_port(&address.to_string()).unwrap());
    let sessions = sessions(
        std::slice::from_ref(&wanted.address),
        ConnectionOptions::default(),
        1,
    );
    let failed = within(sessions.to(&wanted)).await;
    let error = failed.unwrap_err();
    assert!(matches!(*error, ConnectError::Dial(_)), "{error:?}");
    let _broker = ScriptedBroker::start_on(socket.listen(16).unwrap(), Script::new());
    within(sessions.to(&wanted)).await.unwrap();
}

#[tokio::test]
async fn several_connections_to_a_broker_are_used_in_turn() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let sessions = sessions(&[broker.address()], ConnectionOptions::default(), 2);
    let wanted = direct(broker.address());
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(within(sessions.to(&wanted)).await.unwrap());
    }
    assert_eq!(broker.accepted(), 2);
    assert!(open[0].is_same(&open[2]) && open[1].is_same(&open[3]));
    assert!(!open[0].is_same(&open[1]));
}

#[tokio::test]
async fn a_broker_behind_the_service_url_is_reached_through_any_of_its_addresses_over_tls() {
    let authority = Authority::new("ours");
    let script = Script::new;
    let good = acceptor(&authority.sign(&["localhost"]), &[], None);
    let wrong = acceptor(&authority.sign(&["broker.internal"]), &[], None);
    let good = ScriptedBroker::start_tls(script(), good).await;
    // It presents the certificate of the broker, which is not whom we dial.
    let wrong = ScriptedBroker::start_tls(script(), wrong).await;
    let options = ConnectionOptions {
        tls: TlsSource::Client(Arc::new(
            TlsClient::new(&TlsOptions {
                trusted: Some(authority.pem().into_bytes()),
                ..TlsOptions::default()
            })
            .unwrap(),
        )),
        ..ConnectionOptions::default()
    };
    let [wrong_address, good_address] =
        [&wrong, &good].map(|broker| broker.tls_address("localhost"));
    let behind = BrokerLookup {
        address: BrokerAddress::from_url("pulsar+ssl://broker.internal:6651").unwrap(),
        proxy_through_service_url: true,
    };
    let both = sessions(&[wrong_address.clone(), good_address], options.clone(), 1);
    within(both.to(&behind)).await.unwrap();
    let connect = &good.received_of(Type::Connect)[0].command;
    let Command::Connect(connect) = connect else {
        panic!("{connect:?}");
    };
    assert_eq!(connect.proxy_to_broker_url(), "broker.internal:6651");

    let alone = sessions(&[wrong_address], options, 1);
    let refused = within(alone.to(&behind)).await.unwrap_err();
    assert!(
        matches!(&*refused, ConnectError::Tls(TlsError::WrongHost { host, .. }) if host == "localhost"),
        "{refused}"
    );
}

#[tokio::test]
async fn the_same_address_directly_and_through_the_service_url_are_two_connections() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let sessions = sessions(&[broker.address()], ConnectionOptions::default(), 1);
    let near = direct(broker.address());
    let far = BrokerLookup {
        proxy_through_service_url: true,
        ..near.clone()
    };
    let near = within(sessions.to(&near)).await.unwrap();
    let far = within(sessions.to(&far)).await.unwrap();
    assert!(!near.is_same(&far));
    sessions.close();
    within(near.connection().closed()).await;
    within(far.connection().closed()).await;
}

fn client(broker: &ScriptedBroker) -> PulsarClient {
    PulsarClient::new(broker.address().into(), ClientOptions::default())
}

fn topic() -> TopicName {
    "persistent://public/default/t".parse().unwrap()
}

#[tokio::test]
async fn a_topic_is_looked_up_and_an_assigned_broker_is_gone_to_at_once() {
    let owner = ScriptedBroker::start(Script::new()).await;
    let next = ScriptedBroker::start(Script::new()).await;
    let url = owner.url();
    let lookups = Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(lookup_connect(received.request_id(), &url))]
    });
    let service = ScriptedBroker::start(lookups).await;
    let client = client(&service);
    let first = within(client.session_for(&topic(), None)).await.unwrap();
    assert_eq!(owner.accepted(), 1);
    let assigned = Some(next.address());
    let second = within(client.session_for(&topic(), assigned)).await;
    assert!(!second.unwrap().is_same(&first));
    assert_eq!(
        (service.received_of(Type::Lookup).len(), next.accepted()),
        (1, 1)
    );
    client.close();
    within(first.connection().closed()).await;
    let closed = within(client.session_for(&topic(), None)).await;
    assert!(matches!(closed, Err(ClientError::Closed)));
}

#[tokio::test]
async fn behind_a_proxy_an_assigned_broker_is_looked_up_all_the_same() {
    let script = Script::new().on(Type::Lookup, |received| {
        vec![Step::Send(Command::from(CommandLookupTopicResponse {
            broker_service_url: Some("pulsar://inside:6650".to_owned()),
            response: Some(LookupType::Connect.into()),
            request_id: received.request_id(),
            proxy_through_service_url: Some(true),
            ..CommandLookupTopicResponse::default()
        }))]
    });
    let proxy = ScriptedBroker::start(script).await;
    let client = client(&proxy);
    let first = within(client.session_for(&topic(), None)).await.unwrap();
    let assigned = BrokerAddress::from_url("pulsar://other:6650").ok();
    let second = within(client.session_for(&topic(), assigned))
        .await
        .unwrap();
    assert!(first.is_same(&second));
    assert_eq!(proxy.received_of(Type::Lookup).len(), 2);
    let connects = proxy.received_of(Type::Connect);
    let targets = connects.iter().map(|received| match &received.command {
        Command::Connect(connect) => connect.proxy_to_broker_url().to_owned(),
        other => panic!("{other:?}"),
    });
    assert_eq!(targets.collect::<Vec<_>>(), ["", "inside:6650"]);
    client.close();
}

#[tokio::test]
async fn an_owner_that_refuses_is_named_in_the_error() {
    let refusing = Script::new().on(Type::Connect, |_| {
        let refusal = error(u64::MAX, ServerError::AuthenticationError, "no");
        vec![Step::Send(refusal), Step::Close]
    });
    let owner = ScriptedBroker::start(refusing).await;
    let url = owner.url();
    let lookups = Script::new().on(Type::Lookup, move |received| {
        vec![Step::Send(lookup_connect(received.request_id(), &url))]
    });
    let service = ScriptedBroker::start(lookups).await;
    let client = client(&service);
    let failed = within(client.session_for(&topic(), None)).await;
    let failed = failed.expect_err("refused");
    assert_eq!(
        failed.server_error(),
        Some(ServerError::AuthenticationError)
    );
    assert!(!failed.is_retryable());
    assert!(
        matches!(&failed, ClientError::Connect { address, .. } if *address == owner.address()),
        "{failed}"
    );
    client.close();
}

#[tokio::test]
async fn ids_of_a_client_are_used_once() {
    let broker = ScriptedBroker::start(Script::new()).await;
    let client = client(&broker);
    let other = client.clone();
    let ids = [client.next_id(), other.next_id(), client.next_id()];
    assert_eq!(ids, [0, 1, 2]);
}
