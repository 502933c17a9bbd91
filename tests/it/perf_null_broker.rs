//! The null broker over real sockets: what clients of every language need of it.

use std::net::SocketAddr;

use bytes::BytesMut;
use pulsegate::client::{Connection, ConnectionOptions};
use pulsegate::naming::BrokerAddress;
use pulsegate::perf::null_broker::{NullBroker, NullBrokerOptions, Served};
use pulsegate::protocol::command::Command;
use pulsegate::protocol::message::split_payload;
use pulsegate::protocol::proto::pulsar::command_lookup_topic_response::LookupType;
use pulsegate::protocol::proto::pulsar::command_subscribe::SubType;
use pulsegate::protocol::proto::pulsar::{self as pb, CommandSend, ServerError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::{RawClient, lookup_connect, within};

/// A null broker that runs until it is stopped.
struct TestNullBroker {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Served>,
}

impl TestNullBroker {
    fn start(change: impl FnOnce(&mut NullBrokerOptions)) -> Self {
        let mut options = NullBrokerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            ..NullBrokerOptions::default()
        };
        change(&mut options);
        let broker = NullBroker::bind(&options).unwrap();
        let address = broker.local_addr();
        let (stop, stopped) = oneshot::channel();
        #[expect(clippy::disallowed_methods, reason = "joined by `stop`")]
        let running = tokio::spawn(broker.run(async {
            // A test that failed has dropped the sender: that is an end as well.
            let _ = stopped.await;
        }));
        Self {
            address,
            stop,
            running,
        }
    }

    async fn client(&self) -> RawClient {
        RawClient::established(self.address, lookup_connect()).await
    }

    async fn stop(self) -> Served {
        let _ = self.stop.send(());
        within(self.running).await.unwrap()
    }
}

fn topic() -> String {
    "persistent://public/default/t".to_owned()
}

fn producer(producer_id: u64) -> pb::CommandProducer {
    pb::CommandProducer {
        topic: topic(),
        producer_id,
        request_id: producer_id + 100,
        ..pb::CommandProducer::default()
    }
}

fn subscribe(consumer_id: u64) -> pb::CommandSubscribe {
    pb::CommandSubscribe {
        topic: topic(),
        subscription: "s".to_owned(),
        sub_type: SubType::Exclusive as i32,
        consumer_id,
        request_id: consumer_id + 200,
        ..pb::CommandSubscribe::default()
    }
}

fn flow(consumer_id: u64, message_permits: u32) -> pb::CommandFlow {
    pb::CommandFlow {
        consumer_id,
        message_permits,
    }
}

async fn success(client: &mut RawClient, request_id: u64) {
    let answer = client.receive().await;
    assert!(
        matches!(&answer, Command::Success(success) if success.request_id == request_id),
        "{answer:?}"
    );
}

async fn message(client: &mut RawClient, consumer_id: u64) -> (u64, u64) {
    let Command::Message(message) = client.receive().await else {
        panic!("no MESSAGE");
    };
    assert_eq!(message.consumer_id, consumer_id);
    (message.message_id.ledger_id, message.message_id.entry_id)
}

/// Nothing else comes: the next frame is the answer to a PING.
async fn nothing_more(client: &mut RawClient) {
    client.send(pb::CommandPing {}).await;
    assert_eq!(client.receive().await, Command::from(pb::CommandPong {}));
}

#[tokio::test]
async fn lookups_lead_to_the_address_that_the_client_came_to() {
    let broker = TestNullBroker::start(|options| options.partitions = 3);
    let mut client = broker.client().await;
    client
        .send(pb::CommandLookupTopic {
            topic: topic(),
            request_id: 1,
            ..pb::CommandLookupTopic::default()
        })
        .await;
    let Command::LookupResponse(found) = client.receive().await else {
        panic!("no LOOKUP_RESPONSE");
    };
    assert_eq!(found.response(), LookupType::Connect);
    assert_eq!(
        found.broker_service_url,
        Some(format!("pulsar://{}", broker.address))
    );

    for (topic, partitions) in [(topic(), 3), (format!("{}-partition-1", topic()), 0)] {
        client
            .send(pb::CommandPartitionedTopicMetadata {
                topic,
                request_id: 2,
                ..pb::CommandPartitionedTopicMetadata::default()
            })
            .await;
        let Command::PartitionedMetadataResponse(answer) = client.receive().await else {
            panic!("no PARTITIONED_METADATA_RESPONSE");
        };
        assert_eq!(
            (answer.request_id, answer.partitions),
            (2, Some(partitions))
        );
    }
    broker.stop().await;
}

#[tokio::test]
async fn lookups_lead_to_the_advertised_url_if_there_is_one() {
    for url in ["pulsar://elsewhere:6650", "pulsar+ssl://elsewhere:6651"] {
        let broker = TestNullBroker::start(|options| options.advertised = Some(url.to_owned()));
        let mut client = broker.client().await;
        client
            .send(pb::CommandLookupTopic {
                topic: topic(),
                ..pb::CommandLookupTopic::default()
            })
            .await;
        let Command::LookupResponse(found) = client.receive().await else {
            panic!("no LOOKUP_RESPONSE");
        };
        // Clients that came by TLS read only the second field.
        let urls = [found.broker_service_url, found.broker_service_url_tls];
        let tls = url.starts_with("pulsar+ssl");
        let wanted = [!tls, tls].map(|has| has.then(|| url.to_owned()));
        assert_eq!(urls, wanted);
        broker.stop().await;
    }
}

#[tokio::test]
async fn every_send_gets_its_receipt_in_order() {
    let broker = TestNullBroker::start(|_| ());
    let mut client = broker.client().await;
    let named = pb::CommandProducer {
        producer_name: Some("mine".to_owned()),
        ..producer(2)
    };
    let mut names = Vec::new();
    for open in [producer(1), named] {
        client.send(open).await;
        let Command::ProducerSuccess(opened) = client.receive().await else {
            panic!("no PRODUCER_SUCCESS");
        };
        names.push(opened.producer_name);
    }
    assert_eq!(names.get(1).map(String::as_str), Some("mine"));
    assert!(names.first().is_some_and(|name| !name.is_empty()));

    let payload = vec![7; 1000];
    let mut sends = BytesMut::new();
    for sequence_id in 0..500 {
        for producer_id in [1, 2] {
            let send = CommandSend {
                producer_id,
                sequence_id,
                ..CommandSend::default()
            };
            Command::from(send).encode_with_payload(&[&payload], &mut sends);
        }
    }
    client.send_bytes(&sends).await;
    let mut ledgers = [0, 0];
    for sequence_id in 0..500 {
        for producer_id in [1, 2] {
            let Command::SendReceipt(receipt) = client.receive().await else {
                panic!("no SEND_RECEIPT");
            };
            let id = receipt.message_id.unwrap();
            assert_eq!(
                (receipt.producer_id, receipt.sequence_id, id.entry_id),
                (producer_id, sequence_id, sequence_id)
            );
            let ledger = &mut ledgers[usize::try_from(producer_id).unwrap() - 1];
            assert!(*ledger == 0 || *ledger == id.ledger_id);
            *ledger = id.ledger_id;
        }
    }
    assert_ne!(ledgers[0], ledgers[1]);
    let served = broker.stop().await;
    assert_eq!((served.acknowledged, served.pushed), (1000, 0));
}

#[tokio::test]
async fn a_consumer_gets_as_many_messages_as_it_has_permits() {
    let broker = TestNullBroker::start(|options| options.size = 10);
    let mut client = broker.client().await;
    for consumer_id in [1, 2] {
        client.send(subscribe(consumer_id)).await;
        success(&mut client, consumer_id + 200).await;
    }
    nothing_more(&mut client).await;
    client.send(flow(1, 2000)).await;
    let mut entries = Vec::new();
    for _ in 0..2000 {
        let frame = client.receive_frame().await;
        let Command::Message(message) = Command::decode(&frame.command).unwrap() else {
            panic!("no MESSAGE");
        };
        assert_eq!(message.consumer_id, 1);
        entries.push(message.message_id.entry_id);
        let parts = split_payload(frame.payload).unwrap();
        assert_eq!(parts.verify_checksum(), Ok(()));
        assert_eq!(parts.payload.len(), 10);
        assert!(parts.metadata.publish_time > 1_600_000_000_000);
    }
    assert_eq!(entries, (0..2000).collect::<Vec<u64>>());
    nothing_more(&mut client).await;
    client.send(flow(2, 1)).await;
    assert_eq!(message(&mut client, 2).await.1, 0);
    nothing_more(&mut client).await;
    assert_eq!(broker.stop().await.pushed, 2001);
}

#[tokio::test]
async fn a_batch_uses_a_permit_for_each_of_its_messages() {
    let broker = TestNullBroker::start(|options| options.batch = Some(10));
    let mut client = broker.client().await;
    client.send(subscribe(1)).await;
    success(&mut client, 201).await;
    client.send(flow(1, 25)).await;
    for entry in 0..3 {
        assert_eq!(message(&mut client, 1).await.1, entry);
    }
    // The last batch was larger than what was left: five permits less than none.
    client.send(flow(1, 5)).await;
    nothing_more(&mut client).await;
    client.send(flow(1, 1)).await;
    assert_eq!(message(&mut client, 1).await.1, 3);
    broker.stop().await;
}

#[tokio::test]
async fn a_seek_closes_the_consumer_which_can_come_back() {
    let broker = TestNullBroker::start(|_| ());
    let mut client = broker.client().await;
    client.send(subscribe(1)).await;
    success(&mut client, 201).await;
    client.send(flow(1, 1)).await;
    let (ledger, _) = message(&mut client, 1).await;
    client
        .send(pb::CommandSeek {
            consumer_id: 1,
            request_id: 7,
            ..pb::CommandSeek::default()
        })
        .await;
    let closed = client.receive().await;
    assert!(matches!(&closed, Command::CloseConsumer(close) if close.consumer_id == 1));
    success(&mut client, 7).await;
    client.send(flow(1, 5)).await;
    nothing_more(&mut client).await;

    client.send(subscribe(1)).await;
    success(&mut client, 201).await;
    client.send(flow(1, 1)).await;
    assert!(message(&mut client, 1).await.0 > ledger);
    broker.stop().await;
}

#[tokio::test]
async fn a_failover_consumer_is_told_that_it_is_the_active_one() {
    let broker = TestNullBroker::start(|_| ());
    let mut client = broker.client().await;
    let failover = pb::CommandSubscribe {
        sub_type: SubType::Failover as i32,
        ..subscribe(1)
    };
    client.send(failover).await;
    success(&mut client, 201).await;
    let active = client.receive().await;
    assert!(matches!(active, Command::ActiveConsumerChange(change) if change.is_active()));
    broker.stop().await;
}

#[tokio::test]
async fn requests_of_consumers_and_producers_are_answered() {
    let broker = TestNullBroker::start(|_| ());
    let mut client = broker.client().await;
    client.send(producer(1)).await;
    client.receive().await;
    client.send(subscribe(1)).await;
    success(&mut client, 201).await;

    client
        .send(pb::CommandAck {
            consumer_id: 1,
            request_id: Some(3),
            ..pb::CommandAck::default()
        })
        .await;
    let acknowledged = client.receive().await;
    assert!(
        matches!(&acknowledged, Command::AckResponse(answer) if answer.request_id == Some(3) && answer.error.is_none())
    );
    client.send(pb::CommandAck::default()).await;
    client
        .send(pb::CommandRedeliverUnacknowledgedMessages::default())
        .await;
    nothing_more(&mut client).await;

    client
        .send(pb::CommandGetLastMessageId {
            consumer_id: 1,
            request_id: 4,
        })
        .await;
    let last = client.receive().await;
    assert!(
        matches!(&last, Command::GetLastMessageIdResponse(answer) if answer.last_message_id.entry_id > 1_000_000)
    );

    client
        .send(pb::CommandGetTopicsOfNamespace {
            request_id: 5,
            namespace: "public/default".to_owned(),
            ..pb::CommandGetTopicsOfNamespace::default()
        })
        .await;
    let topics = client.receive().await;
    assert!(
        matches!(&topics, Command::GetTopicsOfNamespaceResponse(answer) if answer.topics == [topic()]),
        "{topics:?}"
    );

    for command in [
        Command::from(pb::CommandUnsubscribe {
            consumer_id: 1,
            request_id: 9,
            ..pb::CommandUnsubscribe::default()
        }),
        Command::from(pb::CommandCloseConsumer {
            consumer_id: 1,
            request_id: 9,
            ..pb::CommandCloseConsumer::default()
        }),
        Command::from(pb::CommandCloseProducer {
            producer_id: 1,
            request_id: 9,
            ..pb::CommandCloseProducer::default()
        }),
    ] {
        client.send(command).await;
        success(&mut client, 9).await;
    }
    broker.stop().await;
}

#[tokio::test]
async fn what_is_not_served_is_refused_and_the_connection_goes_on() {
    let broker = TestNullBroker::start(|_| ());
    let mut client = broker.client().await;
    for command in [
        Command::from(pb::CommandNewTxn {
            request_id: 11,
            ..pb::CommandNewTxn::default()
        }),
        Command::from(pb::CommandWatchTopicList {
            request_id: 11,
            ..pb::CommandWatchTopicList::default()
        }),
        Command::from(pb::CommandTcClientConnectRequest {
            request_id: 11,
            ..pb::CommandTcClientConnectRequest::default()
        }),
    ] {
        client.send(command).await;
        let Command::Error(error) = client.receive().await else {
            panic!("no ERROR");
        };
        assert_eq!(
            (error.request_id, error.error()),
            (11, ServerError::NotAllowedError)
        );
    }
    client
        .send(pb::CommandProducer {
            topic: "a/b".to_owned(),
            ..producer(1)
        })
        .await;
    let Command::Error(error) = client.receive().await else {
        panic!("no ERROR");
    };
    assert_eq!(error.error(), ServerError::InvalidTopicName);
    nothing_more(&mut client).await;
    broker.stop().await;
}

#[tokio::test]
async fn what_no_client_may_send_closes_the_connection() {
    let broker = TestNullBroker::start(|_| ());
    let mut before_connect = RawClient::connect(broker.address).await;
    before_connect.send(producer(1)).await;
    before_connect.closed().await;
    let mut unknown_producer = broker.client().await;
    unknown_producer.send(CommandSend::default()).await;
    unknown_producer.closed().await;
    let mut a_frame_too_large = broker.client().await;
    a_frame_too_large.send_bytes(&[0xff; 8]).await;
    a_frame_too_large.closed().await;
    broker.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_sent_only_what_sockets_hold() {
    let broker = TestNullBroker::start(|options| options.size = 100_000);
    let mut client = RawClient::connect_with_little_room(broker.address).await;
    client.send(lookup_connect()).await;
    client.receive().await;
    client.send(subscribe(1)).await;
    success(&mut client, 201).await;
    client.send(flow(1, 1_000_000)).await;
    // It goes on when the client does.
    for entry in 0..100 {
        assert_eq!(message(&mut client, 1).await.1, entry);
    }
    let served = broker.stop().await;
    assert!(served.pushed < 1000, "{}", served.pushed);
}

#[tokio::test]
async fn our_own_connection_works_against_it() {
    let broker = TestNullBroker::start(|_| ());
    let address = BrokerAddress::from_host_port(&broker.address.to_string()).unwrap();
    let connection = Connection::open(&address, lookup_connect(), ConnectionOptions::default());
    let connection = within(connection).await.unwrap();
    let answer = within(connection.request(producer(1).into()))
        .await
        .unwrap();
    assert!(matches!(answer, Command::ProducerSuccess(_)), "{answer:?}");
    connection.close();
    broker.stop().await;
}
