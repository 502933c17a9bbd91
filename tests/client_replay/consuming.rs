//! Consumers and readers.

use std::time::Duration;

use pulsegate::client::{
    ConsumerOptions, MessageId, ReaderOptions,
    consumer::{SeekTo, SubscriptionType},
};

use crate::support::{Recorded, consumer_options, counts, receive, text, texts, topic};

#[tokio::test]
async fn what_was_acknowledged_does_not_come_again() {
    Recorded::run("acknowledge", &[], |broker| async move {
        let topic = topic("acked");
        let options = ConsumerOptions {
            batch_index_ack: true,
            ..consumer_options("s")
        };
        let consumer = broker.consumer(&topic, options.clone()).await;
        let all = receive(&consumer, 8).await;
        assert_eq!(
            texts(&all),
            ["m0", "m1", "m2", "m3", "m4", "b0", "b1", "b2"]
        );
        assert_eq!(all[6].id.batch_index, Some(1));
        assert_eq!(all[6].sequence_id, 5);
        consumer.ack(&all[1]).await.unwrap();
        consumer.ack(&all[5]).await.unwrap();
        consumer.close().await;

        let consumer = broker.consumer(&topic, options.clone()).await;
        let rest = receive(&consumer, 6).await;
        assert_eq!(texts(&rest), ["m0", "m2", "m3", "m4", "b1", "b2"]);
        consumer.ack_cumulative(&rest[3]).await.unwrap();
        consumer.close().await;

        let consumer = broker.consumer(&topic, options).await;
        assert_eq!(texts(&receive(&consumer, 2).await), ["b1", "b2"]);
        consumer.close().await;
    })
    .await;
}

#[tokio::test]
async fn what_was_acknowledged_negatively_comes_again_and_is_counted() {
    Recorded::run("redeliver", &[], |broker| async move {
        let topic = topic("again");
        let options = ConsumerOptions {
            subscription_type: SubscriptionType::Shared,
            negative_ack_delay: Duration::from_millis(10),
            ..consumer_options("shared")
        };
        let consumer = broker.consumer(&topic, options).await;
        let first = receive(&consumer, 3).await;
        assert_eq!(counts(&first), [("m0", 0), ("m1", 0), ("m2", 0)]);
        consumer.negative_ack(&first[1]).unwrap();
        assert_eq!(counts(&receive(&consumer, 1).await), [("m1", 1)]);
        consumer.redeliver_all();
        let again = receive(&consumer, 3).await;
        assert_eq!(counts(&again), [("m0", 1), ("m1", 2), ("m2", 1)]);
        consumer.ack_many(&again).await.unwrap();
        consumer.close().await;

        let options = ConsumerOptions {
            negative_ack_delay: Duration::from_millis(10),
            ..consumer_options("alone")
        };
        let consumer = broker.consumer(&topic, options).await;
        // Those behind it are thrown away, whether they are here already or not.
        assert_eq!(texts(&receive(&consumer, 1).await), ["m0"]);
        consumer.redeliver_all();
        let again = receive(&consumer, 3).await;
        assert_eq!(texts(&again), ["m0", "m1", "m2"]);
        consumer.negative_ack(&again[1]).unwrap();
        assert_eq!(texts(&receive(&consumer, 3).await), ["m0", "m1", "m2"]);
        consumer.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_seek_goes_behind_a_message_or_to_a_time() {
    Recorded::run("seek", &[], |broker| async move {
        let consumer = broker
            .consumer(&topic("sought"), consumer_options("s"))
            .await;
        let all = receive(&consumer, 4).await;
        let times = all
            .iter()
            .map(|message| (text(message), message.publish_time));
        let expected = [("m0", 1000), ("m1", 2000), ("m2", 3000), ("m3", 4000)];
        assert_eq!(times.collect::<Vec<_>>(), expected);
        consumer.seek(SeekTo::Id(all[1].id.clone())).await.unwrap();
        assert_eq!(texts(&receive(&consumer, 2).await), ["m2", "m3"]);
        consumer.seek(SeekTo::Time(4000)).await.unwrap();
        assert_eq!(texts(&receive(&consumer, 1).await), ["m3"]);
        consumer.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_reader_begins_with_the_first_message_or_a_given_one() {
    Recorded::run("read", &[], |broker| async move {
        let topic = topic("read");
        let options = |start| ReaderOptions {
            name: Some("c".to_owned()),
            subscription: Some("r".to_owned()),
            receiver_queue_bytes: usize::MAX,
            ..ReaderOptions::new(start)
        };
        let first = options(MessageId::earliest());
        let reader = broker.client.reader(&topic, first).await.unwrap();
        let mut ids = Vec::new();
        for expected in ["m0", "m1", "m2"] {
            let message = reader.recv().await.unwrap();
            assert_eq!(text(&message), expected);
            ids.push(message.id);
        }
        assert!(!reader.has_message_available().await.unwrap());
        reader.close().await;

        let given = ReaderOptions {
            start_inclusive: true,
            ..options(ids[1].clone())
        };
        let reader = broker.client.reader(&topic, given).await.unwrap();
        for expected in ["m1", "m2"] {
            assert_eq!(text(&reader.recv().await.unwrap()), expected);
        }
        reader.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_subscription_that_was_deleted_begins_anew() {
    Recorded::run("unsubscribe", &[], |broker| async move {
        let topic = topic("left");
        let consumer = broker.consumer(&topic, consumer_options("s")).await;
        let messages = receive(&consumer, 2).await;
        assert_eq!(texts(&messages), ["m0", "m1"]);
        consumer.ack_cumulative(&messages[1]).await.unwrap();
        consumer.unsubscribe(false).await.unwrap();
        assert!(consumer.recv().await.is_err());
        let consumer = broker.consumer(&topic, consumer_options("s")).await;
        assert_eq!(texts(&receive(&consumer, 2).await), ["m0", "m1"]);
        consumer.close().await;
    })
    .await;
}
