//! What a consumer of one topic knows, tested without a broker.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    error::AckError,
    message::QueuedEntry,
    options::ConsumerOptions,
    ready::ReadyTopics,
    state::{PermitsExceeded, State},
    topic::{Shared, TopicConsumer},
};
use crate::{
    client::{clock::Clock, message_id::MessageId},
    naming::TopicName,
};

fn options() -> ConsumerOptions {
    ConsumerOptions {
        ack_grouping: None,
        ..ConsumerOptions::new("s")
    }
}

fn queued(entry_id: u64, count: u32) -> QueuedEntry {
    QueuedEntry {
        ledger_id: 1,
        entry_id,
        redelivery_count: 0,
        ack_set: Vec::new(),
        epoch: None,
        count,
        payload: Bytes::new(),
    }
}

#[test]
fn entries_that_take_no_permits_are_bounded_all_the_same() {
    let mut state = State::new(&options(), 10);
    let ticket = state.attach(1);
    state.subscribed(ticket);
    state.commands(Duration::ZERO, &mut Vec::new());
    let mut taken_in = 0;
    let refused = (0..10_000).find_map(|entry_id| {
        let result = state.on_entries(ticket, &mut vec![queued(entry_id, 0)]);
        taken_in = entry_id;
        result.err()
    });
    assert_eq!(refused, Some(PermitsExceeded), "{taken_in} were taken in");
}

#[test]
fn nothing_is_due_while_a_seek_is_under_way() {
    let mut state = State::new(&options(), 10);
    let ticket = state.attach(1);
    state.subscribed(ticket);
    state.seek(Some(MessageId::earliest()));
    let now = Duration::from_secs(1);
    state.acknowledge(&MessageId::of_entry(1, 1), now).unwrap();
    assert!(!state.is_due(now));
    assert_eq!(state.deadline(), None);
    state.attach(2);
    assert_eq!(state.deadline(), Some(now));
}

#[test]
fn a_seek_tells_who_waits_that_the_acknowledgement_is_forgotten() {
    let shared = Shared {
        options: Arc::new(ConsumerOptions {
            ack_receipt: true,
            ..options()
        }),
        clock: Clock::new(),
        stop: CancellationToken::new(),
        operation_timeout: Duration::from_secs(1),
        ready: Arc::new(ReadyTopics::default()),
        changes: Arc::new(watch::Sender::new(0)),
        tracker: TaskTracker::new(),
    };
    let name = TopicName::parse("persistent://public/default/t").unwrap();
    let topic = TopicConsumer::new(name, 10, &shared);
    let id = MessageId::of_entry(1, 1);
    let receipt = topic.acknowledge(&mut std::iter::once(&id)).unwrap();
    topic.begin_seek(Some(MessageId::earliest()));
    let told = receipt.expect("a receipt is wanted").try_recv();
    assert!(matches!(told, Ok(Err(AckError::Sought))), "{told:?}");
    topic.stop.cancel();
    let refused = topic.acknowledge(&mut std::iter::once(&id));
    assert!(matches!(refused, Err(AckError::Closed)), "{refused:?}");
}
