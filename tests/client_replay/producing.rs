//! Producers.

use std::time::Duration;

use pulsegate::client::{
    MessageId, OutgoingMessage, ProducerOptions, SendError,
    producer::{BatchingOptions, ProducerAccessMode, Routing},
};

use crate::support::{Recorded, consumer_options, message, producer_options, receive, text, topic};

#[tokio::test]
async fn messages_alone_and_in_a_batch_get_the_ids_of_their_receipts() {
    Recorded::run("publish", &[], |broker| async move {
        let topic = topic("published");
        let producer = broker.producer(&topic).await;
        let full = OutgoingMessage {
            key: Some("k".into()),
            properties: vec![("a".to_owned(), "b".to_owned())],
            event_time: Some(7),
            ..message("m0")
        };
        let first = producer.enqueue(full).await.unwrap();
        let second = producer.enqueue(message("m1")).await.unwrap();
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert_eq!((first.entry_id, first.batch_index), (0, None));
        assert_eq!(
            second,
            MessageId {
                entry_id: 1,
                ..first
            }
        );
        assert_eq!(producer.last_sequence_id(), Some(1));

        let options = ProducerOptions {
            name: None,
            batching: Some(BatchingOptions {
                max_messages: 3,
                max_delay: Duration::from_secs(60),
                ..BatchingOptions::default()
            }),
            ..producer_options()
        };
        let batching = broker.client.producer(&topic, options).await.unwrap();
        assert_eq!(batching.name(), "<producer 0>");
        let keyed = OutgoingMessage {
            key: Some("k".into()),
            ..message("b0")
        };
        let with_property = OutgoingMessage {
            properties: vec![("x".to_owned(), "y".to_owned())],
            ..message("b2")
        };
        let mut receipts = Vec::new();
        for message in [keyed, message("b1"), with_property] {
            receipts.push(batching.enqueue(message).await.unwrap());
        }
        for (index, receipt) in (0..).zip(receipts) {
            let id = receipt.await.unwrap();
            assert_eq!(id.entry_id, 2);
            assert_eq!((id.batch_index, id.batch_size), (Some(index), Some(3)));
        }
        producer.close().await.unwrap();
        batching.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn partitions_are_written_and_read_one_by_one() {
    Recorded::run("partitions", &[], |broker| async move {
        let topic = topic("parts");
        let options = ProducerOptions {
            routing: Routing::Custom(std::sync::Arc::new(|message, _| {
                u32::from(message.payload == "one")
            })),
            ..producer_options()
        };
        let producer = broker.client.producer(&topic, options).await.unwrap();
        assert_eq!(producer.partition_count(), 2);
        let zero = producer.send(message("zero")).await.unwrap();
        let one = producer.send(message("one")).await.unwrap();
        assert_eq!((zero.partition, one.partition), (Some(0), Some(1)));
        assert_ne!(zero.ledger_id, one.ledger_id);

        let consumer = broker.consumer(&topic, consumer_options("s")).await;
        let messages = receive(&consumer, 2).await;
        let seen: Vec<_> = messages
            .iter()
            .map(|message| (text(message), &message.id, message.topic.to_string()))
            .collect();
        let partition = |number: u32| format!("{topic}-partition-{number}");
        let expected = [("zero", &zero, partition(0)), ("one", &one, partition(1))];
        assert_eq!(seen, expected);
        for message in &messages {
            consumer.ack(message).await.unwrap();
        }
        consumer.close().await;
        producer.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_producer_that_was_fenced_ends_with_what_it_had_not_sent() {
    Recorded::run("fenced", &["other"], |broker| async move {
        let options = ProducerOptions {
            access_mode: ProducerAccessMode::Exclusive,
            ..producer_options()
        };
        let topic = topic("fenced");
        let producer = broker.client.producer(&topic, options).await.unwrap();
        assert_eq!(producer.topic_epoch(), Some(0));
        assert_eq!(producer.send(message("m0")).await.unwrap().entry_id, 0);
        broker.happen("other");
        let late = producer.send(message("m1")).await;
        assert!(matches!(late, Err(SendError::Fenced)), "{late:?}");
        assert!(matches!(producer.ended(), Some(SendError::Fenced)));
    })
    .await;
}

#[tokio::test]
async fn what_has_no_receipt_at_an_unload_is_sent_again_in_order() {
    Recorded::run("pending", &[], |broker| async move {
        let producer = broker.producer(&topic("pending")).await;
        let first = producer.send(message("m0")).await.unwrap();
        let second = producer.enqueue(message("m1")).await.unwrap();
        let third = producer.enqueue(message("m2")).await.unwrap();
        let (second, third) = (second.await.unwrap(), third.await.unwrap());
        assert_eq!(first.entry_id, 0);
        assert!(first < second && second < third);
        // The topic has a new ledger since.
        assert_ne!(first.ledger_id, second.ledger_id);
        assert_eq!((second.entry_id, third.entry_id), (0, 1));
        assert_eq!(producer.last_sequence_id(), Some(2));
        producer.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn producer_and_consumer_come_back_on_the_connection_after_an_unload() {
    Recorded::run("unload", &["unload"], |broker| async move {
        let topic = topic("moved");
        let producer = broker.producer(&topic).await;
        let consumer = broker.consumer(&topic, consumer_options("s")).await;
        let before = producer.send(message("m0")).await.unwrap();
        let received = receive(&consumer, 1).await;
        assert_eq!((text(&received[0]), &received[0].id), ("m0", &before));
        broker.happen("unload");
        // It was not acknowledged: that it comes again says that the consumer is back.
        let again = receive(&consumer, 1).await;
        assert_eq!((text(&again[0]), &again[0].id), ("m0", &before));
        let after = producer.send(message("m1")).await.unwrap();
        assert!(after.ledger_id > before.ledger_id);
        let received = receive(&consumer, 1).await;
        assert_eq!((text(&received[0]), &received[0].id), ("m1", &after));
        consumer.close().await;
        producer.close().await.unwrap();
    })
    .await;
}
