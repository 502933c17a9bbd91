//! What becomes of a message, and of those who wait for it, where a part of it fails.

use std::time::Duration;

use super::{
    error::SendError,
    options::{BatchingOptions, OutgoingMessage},
    state::{Opened, StateOptions},
    state_tests::{Harness, MAX_MESSAGE, batching, large, options, text},
};
use crate::protocol::proto::pulsar::ServerError;

/// A message whose key alone makes its batch larger than the broker takes.
fn refused() -> OutgoingMessage {
    OutgoingMessage {
        key: Some("k".repeat(MAX_MESSAGE).into()),
        ..text("x")
    }
}

fn unbounded_batches() -> StateOptions {
    let mut options = batching();
    options.batching = options.batching.map(|batching| BatchingOptions {
        max_bytes: 10 * MAX_MESSAGE,
        ..batching
    });
    options
}

#[test]
fn a_chunked_message_fails_as_a_whole_where_only_its_last_chunk_fits_a_smaller_broker() {
    let mut harness = Harness::new(StateOptions {
        chunking: true,
        ..options()
    });
    harness.push(large(2 * MAX_MESSAGE)).unwrap();
    harness.push(text("b")).unwrap();
    harness.state.detach();
    harness.state.open(Opened {
        name: "name".to_owned(),
        last_sequence_id: None,
        schema_version: None,
        max_message_size: 1000,
    });
    harness.take();
    assert_eq!(harness.failed(), [0]);
    let sent = harness.send();
    assert_eq!(sent.len(), 1);
    harness.receipt(&sent[0], 7).unwrap();
    assert_eq!(harness.stored(), [1]);
}

#[test]
fn a_flush_tells_of_a_batch_that_is_refused_before_it_is_sent() {
    let mut harness = Harness::new(unbounded_batches());
    harness.push(text("a")).unwrap();
    harness.state.flush_batches(harness.now);
    harness.push(refused()).unwrap();
    let flush = harness.state.begin_flush(harness.now);
    let sent = harness.send();
    harness.receipt(&sent[0], 0).unwrap();
    assert!(harness.state.first_ordinal() >= flush.end());
    assert!(matches!(flush.result(), Err(SendError::TooLarge { .. })));
    // One that begins later has nothing to do with it.
    let flush = harness.state.begin_flush(harness.now);
    assert!(flush.result().is_ok());
}

#[test]
fn a_failure_after_a_flush_does_not_hide_one_within_it() {
    let mut harness = Harness::new(options());
    harness.push(text("a")).unwrap();
    harness.push(text("b")).unwrap();
    let first = harness.state.begin_flush(harness.now);
    harness.push(text("c")).unwrap();
    let second = harness.state.begin_flush(harness.now);
    let sent = harness.send();
    harness.send_error(0, ServerError::NotAllowedError);
    let late = harness.state.begin_flush(harness.now);
    harness.receipt(&sent[1], 0).unwrap();
    harness.on_time(Duration::from_secs(60));
    assert!(matches!(first.result(), Err(SendError::Refused { .. })));
    assert!(matches!(second.result(), Err(SendError::Refused { .. })));
    assert!(matches!(late.result(), Err(SendError::Timeout { .. })));
}

#[test]
fn a_failure_after_a_flush_is_none_of_its_own() {
    let mut harness = Harness::new(options());
    harness.push(text("a")).unwrap();
    let flush = harness.state.begin_flush(harness.now);
    harness.push(text("b")).unwrap();
    let sent = harness.send();
    harness.receipt(&sent[0], 0).unwrap();
    harness.send_error(1, ServerError::NotAllowedError);
    assert_eq!(harness.failed(), [1]);
    assert!(flush.result().is_ok());
}

#[test]
fn flushes_that_nobody_waits_for_any_more_take_no_room() {
    let mut harness = Harness::new(options());
    harness.push(text("a")).unwrap();
    for _ in 0..1000 {
        harness.state.begin_flush(harness.now);
    }
    assert_eq!(harness.state.flushes.len(), 1);
    let sent = harness.send();
    harness.receipt(&sent[0], 0).unwrap();
    assert!(harness.state.flushes.is_empty());
}
