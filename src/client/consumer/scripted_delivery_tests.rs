//! Nothing is lost and nobody waits for ever, whatever happens in between.

use std::time::Duration;

use super::{scripted_tests::*, *};
use crate::{
    client::ReaderOptions,
    protocol::{
        command::Command,
        proto::pulsar::{MessageMetadata, base_command::Type},
    },
    testing::scripted_broker::{Received, ScriptedBroker, Step},
};

/// The first chunk of two, as a message to this consumer.
fn first_chunk(consumer_id: u64, entry_id: u64) -> Step {
    let metadata = MessageMetadata {
        uuid: Some("u".to_owned()),
        num_chunks_from_msg: Some(2),
        total_chunk_msg_size: Some(8),
        chunk_id: Some(0),
        ..metadata()
    };
    deliver_as(
        message_command(consumer_id, entry_id),
        entry(&metadata, b"half"),
    )
}

#[tokio::test]
async fn a_reader_begins_again_before_the_chunks_that_wait_for_the_rest_of_their_message() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ReaderOptions::new(MessageId::earliest());
    let reader = client.reader(&topic(), options).await.unwrap();
    let first = subscribed(&broker, 1).await;
    flow(&broker, 1).await;
    broker.push(vec![
        deliver(first.consumer_id, 4, "a"),
        first_chunk(first.consumer_id, 5),
    ]);
    reader.recv().await.unwrap();
    {
        // Takes the chunk and waits for more, until the connection is lost.
        let mut rest = std::pin::pin!(reader.recv());
        tokio::select! {
            biased;
            received = &mut rest => panic!("{received:?}"),
            () = async {
                broker.push(vec![Step::Close]);
                let start = subscribed(&broker, 2).await.start_message_id.unwrap();
                assert_eq!((start.ledger_id, start.entry_id), (7, 4));
            } => {}
        }
    }
    broker.stop().await;
}

#[tokio::test]
async fn entries_taken_many_at_a_time_leave_waiting_chunks_to_be_delivered_again() {
    let (broker, client) = broker_with(|script| script).await;
    let options = ConsumerOptions {
        durable: false,
        start_message_id: Some(MessageId::earliest()),
        ..options()
    };
    let consumer = subscribe(&client, options).await;
    let first = subscribed(&broker, 1).await;
    flow(&broker, 1).await;
    broker.push(vec![
        deliver(first.consumer_id, 4, "a"),
        first_chunk(first.consumer_id, 5),
    ]);
    let mut messages = Vec::new();
    consumer.receive_many(&mut messages, 1).await.unwrap();
    {
        let mut rest = std::pin::pin!(consumer.receive_many(&mut messages, 10));
        tokio::select! {
            biased;
            received = &mut rest => panic!("{received:?}"),
            () = async {
                broker.push(vec![Step::Close]);
                let start = subscribed(&broker, 2).await.start_message_id.unwrap();
                assert_eq!((start.ledger_id, start.entry_id), (7, 4));
            } => {}
        }
    }
    broker.stop().await;
}
