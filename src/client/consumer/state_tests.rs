//! What a consumer of one topic knows, tested without a broker.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    chunks::ChunkBytes,
    error::AckError,
    message::QueuedEntry,
    options::{ConsumerOptions, SubscriptionType},
    permits::{PermitsExceeded, QueueSize},
    ready::ReadyTopics,
    state::{Consumed, State, Ticket},
    topic::{Shared, TopicConsumer},
};
use crate::{
    client::{clock::Clock, message_id::MessageId},
    naming::TopicName,
    protocol::command::Command,
};

/// Ten messages, in any number of bytes.
const TEN: QueueSize = QueueSize {
    messages: 10,
    bytes: usize::MAX,
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
    let mut state = State::new(&options(), TEN);
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
    let mut state = State::new(&options(), TEN);
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
        notices: Arc::default(),
        chunk_bytes: Arc::new(ChunkBytes::new(0)),
    };
    let name = TopicName::parse("persistent://public/default/t").unwrap();
    let topic = TopicConsumer::new(name, TEN, &shared);
    let id = MessageId::of_entry(1, 1);
    let receipt = topic.acknowledge(&mut std::iter::once(&id)).unwrap();
    topic.begin_seek(Some(MessageId::earliest()));
    let told = receipt.expect("a receipt is wanted").try_recv();
    assert!(matches!(told, Ok(Err(AckError::Sought))), "{told:?}");
    topic.stop.cancel();
    let refused = topic.acknowledge(&mut std::iter::once(&id));
    assert!(matches!(refused, Err(AckError::Closed)), "{refused:?}");
}

/// A consumer with a queue of 1000 messages and 64 MiB, and the permits of its first FLOW.
fn with_bytes() -> (State, Ticket, u32) {
    let queue_size = QueueSize {
        messages: 1000,
        bytes: 64 << 20,
    };
    let mut state = State::new(&options(), queue_size);
    let ticket = state.attach(1);
    state.subscribed(ticket);
    let permits = permits(&mut state);
    (state, ticket, permits)
}

/// The permits that are due now.
fn permits(state: &mut State) -> u32 {
    let mut commands = Vec::new();
    state.commands(Duration::ZERO, &mut commands);
    let permits = commands.iter().map(|command| match command {
        Command::Flow(flow) => flow.message_permits,
        other => panic!("{other:?}"),
    });
    permits.sum()
}

fn sized(entry_id: u64, size: usize) -> QueuedEntry {
    QueuedEntry {
        payload: Bytes::from(vec![0; size]),
        ..queued(entry_id, 1)
    }
}

/// Takes and consumes one entry.
fn consume(state: &mut State, ticket: Ticket) {
    let mut taken = VecDeque::new();
    state.take(1, &mut taken);
    let position = taken[0].position();
    state.consumed(ticket, 1, Some(Consumed::entry(position)));
}

#[test]
fn large_messages_are_asked_for_as_there_is_room_for_their_bytes() {
    const LARGE: usize = 4 << 20;
    let (mut state, ticket, mut outstanding) = with_bytes();
    let mut queued = 0;
    let mut most = 0;
    for entry_id in 0..1000 {
        // The broker sends all that it may, and one is received.
        while outstanding > 0 {
            state
                .on_entries(ticket, &mut vec![sized(entry_id, LARGE)])
                .unwrap();
            outstanding -= 1;
            queued += 1;
        }
        most = most.max(queued);
        consume(&mut state, ticket);
        queued -= 1;
        outstanding += permits(&mut state);
        assert!(
            queued > 0 || outstanding > 0,
            "nothing would ever come again"
        );
    }
    assert!((2..=16).contains(&most), "{most} messages waited");
    assert!(!state.is_overfull());
}

#[test]
fn small_messages_are_asked_for_by_their_number() {
    let (mut state, ticket, first) = with_bytes();
    let mut outstanding = first;
    for entry_id in 0..5000 {
        if outstanding > 0 {
            state
                .on_entries(ticket, &mut vec![sized(entry_id, 100)])
                .unwrap();
            outstanding -= 1;
            consume(&mut state, ticket);
        }
        outstanding += permits(&mut state);
    }
    assert!((500..=1000).contains(&outstanding), "{outstanding}");
}

#[test]
fn a_message_larger_than_the_bound_comes_alone() {
    let queue_size = QueueSize {
        messages: 1000,
        bytes: 1,
    };
    let mut state = State::new(&options(), queue_size);
    let ticket = state.attach(1);
    state.subscribed(ticket);
    for entry_id in 0..5 {
        assert_eq!(permits(&mut state), 1);
        let mut entries = vec![sized(entry_id, 40 << 20)];
        assert_eq!(state.on_entries(ticket, &mut entries), Ok(true));
        assert_eq!(permits(&mut state), 0);
        consume(&mut state, ticket);
    }
}

#[test]
fn a_broker_that_sends_many_more_bytes_than_fit_is_to_be_subscribed_to_anew() {
    let (mut state, ticket, _) = with_bytes();
    // Messages were small until they are not: what was asked for is far too much now.
    let mut received = 0;
    for entry_id in 0..2000 {
        state
            .on_entries(ticket, &mut vec![sized(entry_id, 100)])
            .unwrap();
        consume(&mut state, ticket);
        permits(&mut state);
    }
    while !state.is_overfull() {
        state
            .on_entries(ticket, &mut vec![sized(received, 5 << 20)])
            .unwrap();
        received += 1;
    }
    assert!(received <= 33, "{received} came");
    let held = state.queued();
    state.on_entries(ticket, &mut vec![sized(99, 1)]).unwrap();
    assert_eq!(state.queued(), held);
    let ticket = state.attach(2);
    state.subscribed(ticket);
    assert!(!state.is_overfull());
    assert_eq!(state.queued(), 0);
    assert!(permits(&mut state) <= 13);
}

#[test]
fn a_queue_that_becomes_smaller_or_larger_is_what_is_asked_for_altogether() {
    let of = |messages| QueueSize { messages, ..TEN };
    let mut state = State::new(&options(), of(10));
    let ticket = state.attach(1);
    state.subscribed(ticket);
    let mut outstanding = permits(&mut state);
    assert_eq!(outstanding, 10);
    state.set_queue_size(of(4));
    // All of them may still come.
    let mut entries = (0..10).map(|entry_id| queued(entry_id, 1)).collect();
    assert_eq!(state.on_entries(ticket, &mut entries), Ok(true));
    outstanding -= 10;
    for left in (0..10).rev() {
        consume(&mut state, ticket);
        outstanding += permits(&mut state);
        assert!(outstanding + left <= 4 || outstanding == 0);
    }
    assert!((2..=4).contains(&outstanding), "{outstanding}");
    state.set_queue_size(of(20));
    outstanding += permits(&mut state);
    assert_eq!(outstanding, 20);
}

#[test]
fn what_gave_way_is_asked_for_once_and_not_at_once() {
    for is_shared in [true, false] {
        let subscription_type = match is_shared {
            true => SubscriptionType::Shared,
            false => SubscriptionType::Exclusive,
        };
        let options = ConsumerOptions {
            subscription_type,
            negative_ack_delay: Duration::ZERO,
            ..options()
        };
        let mut state = State::new(&options, TEN);
        let ticket = state.attach(1);
        state.subscribed(ticket);
        state.commands(Duration::ZERO, &mut Vec::new());
        let second = Duration::from_secs(1);
        let positions = [(1, 1), (1, 2), (1, 1)];
        state.redeliver_later(positions, Duration::ZERO);
        assert!(!state.is_due(second / 2));
        assert_eq!(state.deadline(), Some(second));
        let mut commands = Vec::new();
        state.commands(second, &mut commands);
        let ids: Vec<u64> = match &commands[..] {
            [Command::RedeliverUnacknowledgedMessages(asked)] => {
                asked.message_ids.iter().map(|id| id.entry_id).collect()
            }
            other => panic!("{other:?}"),
        };
        let expected: &[u64] = if is_shared { &[1, 2] } else { &[] };
        assert_eq!(ids, expected);
        assert_eq!(state.deadline(), None);
    }
}

#[test]
fn what_gave_way_and_is_delivered_again_anyway_is_not_asked_for() {
    let mut state = State::new(&options(), TEN);
    let ticket = state.attach(1);
    state.subscribed(ticket);
    let gives_way = |state: &mut State| state.redeliver_later([(1, 1)], Duration::ZERO);
    gives_way(&mut state);
    state.attach(2);
    assert_eq!(state.deadline(), None);
    gives_way(&mut state);
    state.redeliver_all();
    assert_eq!(state.deadline(), None);
    gives_way(&mut state);
    let acknowledged = MessageId::of_entry(1, 1);
    state
        .acknowledge_cumulative(&acknowledged, Duration::ZERO)
        .unwrap();
    state.acknowledgements().take(2, &mut Vec::new());
    assert_eq!(state.deadline(), None);
}
