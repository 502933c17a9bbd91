//! The rules of one partition's producer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::{
    error::SendError,
    options::{BatchingOptions, OutgoingMessage, RawEntry},
    state::{
        AfterSendError, BadReceipt, Now, Opened, Outcome, Outgoing, ProducerState, StateOptions,
        compress,
    },
};
use crate::protocol::{
    batch::BatchReader,
    chunk::{Assembler, AssemblerLimits, ChunkOutcome},
    command::Command,
    compression,
    frame::FrameDecoder,
    message::{MessageParts, split_payload},
    proto::pulsar::{CommandSend, CommandSendReceipt, CompressionType, MessageIdData, ServerError},
};

pub(super) const MAX_MESSAGE: usize = 20_000;
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn options() -> StateOptions {
    StateOptions {
        producer_id: 7,
        partition: None,
        batching: None,
        compression: CompressionType::None,
        compression_min_size: 0,
        chunking: false,
        chunk_max_size: None,
        max_pending: 1000,
        max_pending_bytes: 1 << 20,
        send_timeout: Some(TIMEOUT),
        initial_sequence_id: None,
    }
}

pub(super) fn batching() -> StateOptions {
    StateOptions {
        batching: Some(BatchingOptions {
            max_messages: 3,
            max_bytes: 1000,
            max_delay: Duration::from_millis(10),
            key_based: false,
        }),
        ..options()
    }
}

/// A state whose completions are the numbers of messages, and its connection.
pub(super) struct Harness {
    pub(super) state: ProducerState<usize>,
    pub(super) options: StateOptions,
    pub(super) now: Now,
    pushed: usize,
    pub(super) outcomes: Vec<Outcome<usize>>,
}

/// What a connection got.
pub(super) struct Sent {
    pub(super) send: CommandSend,
    pub(super) parts: MessageParts,
}

impl Harness {
    pub(super) fn new(options: StateOptions) -> Self {
        let mut harness = Self {
            state: ProducerState::new(options.clone()),
            options,
            now: Now {
                elapsed: Duration::ZERO,
                publish_time: 1_700_000_000_000,
            },
            pushed: 0,
            outcomes: Vec::new(),
        };
        harness.open(None);
        harness
    }

    pub(super) fn open(&mut self, last_sequence_id: Option<u64>) {
        self.state.open(Opened {
            name: "name".to_owned(),
            last_sequence_id,
            schema_version: None,
            max_message_size: MAX_MESSAGE,
        });
        self.take();
    }

    pub(super) fn take(&mut self) {
        let mut taken = Vec::new();
        self.state.take_outcomes(&mut taken);
        self.outcomes.extend(taken);
    }

    pub(super) fn push(&mut self, message: OutgoingMessage) -> Result<(), SendError> {
        self.push_many(message, 1)
    }

    fn push_many(&mut self, message: OutgoingMessage, count: usize) -> Result<(), SendError> {
        let (mut metadata, mut payload, sequence_id) = message.into_parts();
        let batching = self.options.batching.as_ref();
        if !ProducerState::<usize>::is_for_batch(batching, &metadata, payload.len()) {
            payload = compress(&self.options, &mut metadata, payload)?;
        }
        let first = self.pushed;
        let outgoing = Outgoing {
            metadata,
            payload,
            sequence_id,
            count,
        };
        let result = self.state.push(outgoing, self.now, |index| first + index);
        if result.is_ok() {
            self.pushed += count;
        }
        self.take();
        result
    }

    /// What is new for the connection.
    pub(super) fn send(&mut self) -> Vec<Sent> {
        let mut bytes = BytesMut::new();
        while let Some(segment) = self.state.unsent() {
            bytes.extend_from_slice(&segment.head);
            bytes.extend_from_slice(&segment.payload);
            self.state.mark_sent();
        }
        let mut sent = Vec::new();
        while let Some(frame) = FrameDecoder::default().decode(&mut bytes).unwrap() {
            let Command::Send(send) = Command::decode(&frame.command).unwrap() else {
                panic!("only SEND is sent");
            };
            let parts = split_payload(frame.payload).unwrap();
            parts.verify_checksum().unwrap();
            assert!(parts.checksum.is_some());
            assert_eq!(send.producer_id, 7);
            sent.push(Sent { send, parts });
        }
        assert!(bytes.is_empty(), "whole frames are sent");
        sent
    }

    pub(super) fn receipt(&mut self, sent: &Sent, entry_id: u64) -> Result<(), BadReceipt> {
        let receipt = CommandSendReceipt {
            producer_id: 7,
            sequence_id: sent.send.sequence_id,
            message_id: Some(MessageIdData {
                ledger_id: 1,
                entry_id,
                ..MessageIdData::default()
            }),
            highest_sequence_id: sent.send.highest_sequence_id,
        };
        let result = self.state.on_receipt(&receipt);
        self.take();
        result
    }

    pub(super) fn on_time(&mut self, elapsed: Duration) {
        self.now.elapsed = elapsed;
        self.state.on_time(self.now);
        self.take();
    }

    pub(super) fn send_error(&mut self, sequence_id: u64, code: ServerError) -> AfterSendError {
        let after = self.state.on_send_error(sequence_id, code, "no".to_owned());
        self.take();
        after
    }

    pub(super) fn stored(&self) -> Vec<usize> {
        let stored = self
            .outcomes
            .iter()
            .filter(|outcome| outcome.result.is_ok());
        stored.map(|outcome| outcome.completion).collect()
    }

    pub(super) fn failed(&self) -> Vec<usize> {
        let failed = self
            .outcomes
            .iter()
            .filter(|outcome| outcome.result.is_err());
        failed.map(|outcome| outcome.completion).collect()
    }
}

pub(super) fn text(text: &str) -> OutgoingMessage {
    OutgoingMessage::new(text.to_owned())
}

pub(super) fn large(len: usize) -> OutgoingMessage {
    OutgoingMessage::new(vec![b'x'; len])
}

pub(super) fn sequence_ids(sent: &[Sent]) -> Vec<u64> {
    sent.iter().map(|sent| sent.send.sequence_id).collect()
}

#[test]
fn a_message_is_an_entry_with_metadata_and_checksum() {
    let mut harness = Harness::new(options());
    harness
        .push(OutgoingMessage {
            key: Some("k".into()),
            properties: vec![("a".to_owned(), "b".to_owned())],
            event_time: Some(5),
            ..text("hello")
        })
        .unwrap();
    let sent = harness.send();
    let [sent] = sent.as_slice() else {
        panic!("one frame")
    };
    let metadata = &sent.parts.metadata;
    assert_eq!(metadata.producer_name, "name");
    assert_eq!(metadata.publish_time, 1_700_000_000_000);
    assert_eq!(metadata.sequence_id, 0);
    assert_eq!(metadata.partition_key.as_deref(), Some("k"));
    assert_eq!(metadata.properties[0].value, "b");
    assert_eq!(metadata.event_time, Some(5));
    assert_eq!(metadata.uncompressed_size, Some(5));
    assert_eq!(metadata.num_messages_in_batch, None);
    assert_eq!(sent.parts.payload, "hello");
    harness.receipt(sent, 3).unwrap();
    let id = harness.outcomes[0].result.clone().unwrap();
    assert_eq!((id.ledger_id, id.entry_id, id.batch_index), (1, 3, None));
}

#[test]
fn sequence_ids_go_on_from_what_the_broker_knows() {
    let mut harness = Harness {
        state: ProducerState::new(options()),
        ..Harness::new(options())
    };
    harness.open(Some(41));
    assert_eq!(harness.state.last_sequence_id(), Some(41));
    harness.push(text("a")).unwrap();
    // What a later broker knows changes nothing: it does not know what waits here.
    harness.open(Some(99));
    harness.push(text("b")).unwrap();
    let sent = harness.send();
    assert_eq!(sequence_ids(&sent), [42, 43]);
    harness.receipt(&sent[0], 0).unwrap();
    assert_eq!(harness.state.last_sequence_id(), Some(42));
}

#[test]
fn a_given_baseline_counts_instead_of_what_the_broker_knows() {
    let options = StateOptions {
        initial_sequence_id: Some(9),
        ..options()
    };
    let mut harness = Harness::new(options);
    harness.push(text("a")).unwrap();
    assert_eq!(sequence_ids(&harness.send()), [10]);
}

#[test]
fn all_without_receipt_is_sent_again_in_order_on_the_next_connection() {
    let mut harness = Harness::new(options());
    for len in [1, 5000, 2, 3, 9000] {
        harness.push(large(len)).unwrap();
    }
    harness.push_many(text("many"), 5).unwrap();
    let sent = harness.send();
    assert_eq!(sequence_ids(&sent), (0..10).collect::<Vec<_>>());
    harness.receipt(&sent[0], 0).unwrap();
    harness.receipt(&sent[1], 1).unwrap();
    for (at, sent) in sent.iter().enumerate().take(7).skip(2) {
        harness.receipt(sent, at as u64).unwrap();
    }
    harness.state.detach();
    harness.push(text("while away")).unwrap();
    harness.open(None);
    let again = harness.send();
    assert_eq!(sequence_ids(&again), [7, 8, 9, 10]);
    assert_eq!(again[0].parts, sent[7].parts);
    for (at, sent) in again.iter().enumerate() {
        harness.receipt(sent, at as u64).unwrap();
    }
    assert_eq!(harness.stored(), (0..11).collect::<Vec<_>>());
    assert_eq!(harness.state.messages(), 0);
}

#[test]
fn a_receipt_out_of_order_means_that_nothing_is_known() {
    let mut harness = Harness::new(options());
    harness.push_many(text("x"), 3).unwrap();
    let sent = harness.send();
    assert!(harness.receipt(&sent[1], 0).is_err());
    harness.receipt(&sent[0], 0).unwrap();
    // Twice: the second says nothing.
    harness.receipt(&sent[0], 0).unwrap();
    assert_eq!(harness.stored(), [0]);
    harness.receipt(&sent[1], 0).unwrap();
    harness.receipt(&sent[2], 0).unwrap();
    harness.receipt(&sent[2], 0).unwrap();
    assert_eq!(harness.stored(), [0, 1, 2]);
}

#[test]
fn a_receipt_for_what_was_not_sent_is_a_lie() {
    let mut harness = Harness::new(options());
    harness.push(text("x")).unwrap();
    let sent = harness.send();
    harness.state.detach();
    assert!(harness.receipt(&sent[0], 0).is_err());
    assert!(harness.outcomes.is_empty());
}

#[test]
fn messages_become_a_batch() {
    let mut harness = Harness::new(batching());
    for at in 0..3 {
        harness
            .push(OutgoingMessage {
                key: Some(format!("k{at}").into()),
                properties: vec![("at".to_owned(), at.to_string())],
                null_value: at == 1,
                ..text(&format!("payload {at}"))
            })
            .unwrap();
    }
    let sent = harness.send();
    let [sent] = sent.as_slice() else {
        panic!("one batch, full with the third message")
    };
    assert_eq!(sent.send.num_messages, Some(3));
    assert_eq!(sent.send.sequence_id, 0);
    assert_eq!(sent.send.highest_sequence_id, Some(2));
    let metadata = &sent.parts.metadata;
    assert_eq!(metadata.num_messages_in_batch, Some(3));
    assert_eq!(metadata.highest_sequence_id, Some(2));
    assert!(metadata.properties.is_empty());
    let messages: Vec<_> = BatchReader::new(sent.parts.payload.clone(), 3)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for (at, (single, payload)) in messages.iter().enumerate() {
        assert_eq!(*payload, format!("payload {at}"));
        assert_eq!(single.sequence_id, Some(at as u64));
        assert_eq!(single.partition_key, Some(format!("k{at}")));
        assert_eq!(single.properties[0].value, at.to_string());
        assert_eq!(single.null_value, (at == 1).then_some(true));
    }
    harness.receipt(sent, 8).unwrap();
    let ids: Vec<_> = harness
        .outcomes
        .iter()
        .map(|o| o.result.clone().unwrap())
        .collect();
    assert_eq!(ids[2].batch_index, Some(2));
    assert_eq!(ids[2].batch_size, Some(3));
    assert_eq!(harness.state.last_sequence_id(), Some(2));
}

#[test]
fn a_receipt_for_a_part_of_a_batch_is_a_lie() {
    let mut harness = Harness::new(batching());
    harness.push_many(text("x"), 3).unwrap();
    let mut sent = harness.send();
    sent[0].send.highest_sequence_id = Some(1);
    assert!(harness.receipt(&sent[0], 0).is_err());
}

#[test]
fn a_batch_waits_for_its_time() {
    let mut harness = Harness::new(batching());
    harness.push_many(text("x"), 2).unwrap();
    assert!(harness.send().is_empty());
    assert_eq!(harness.state.deadline(), Some(Duration::from_millis(10)));
    harness.on_time(Duration::from_millis(9));
    assert!(harness.send().is_empty());
    harness.on_time(Duration::from_millis(10));
    assert_eq!(harness.send().len(), 1);
    assert_eq!(harness.state.deadline(), Some(TIMEOUT));
}

#[test]
fn a_batch_is_full_by_its_bytes() {
    let mut harness = Harness::new(batching());
    harness.push(large(600)).unwrap();
    harness.push(large(600)).unwrap();
    let sent = harness.send();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].parts.payload.len(), 600, "one alone is no batch");
    // As large as a whole batch: it goes alone, behind those before it.
    harness.push(large(1000)).unwrap();
    assert_eq!(sequence_ids(&harness.send()), [1, 2]);
}

#[test]
fn a_message_alone_in_its_batch_is_sent_as_it_is() {
    let mut harness = Harness::new(batching());
    harness
        .push(OutgoingMessage {
            properties: vec![("a".to_owned(), "b".to_owned())],
            ..text("x")
        })
        .unwrap();
    harness.on_time(Duration::from_millis(10));
    let sent = harness.send();
    assert_eq!(sent[0].parts.metadata.num_messages_in_batch, None);
    assert_eq!(sent[0].parts.metadata.properties.len(), 1);
    assert_eq!(sent[0].parts.payload, "x");
    harness.receipt(&sent[0], 0).unwrap();
    assert_eq!(
        harness.outcomes[0].result.as_ref().unwrap().batch_index,
        None
    );
}

#[test]
fn a_delayed_message_is_not_part_of_a_batch_and_overtakes_none() {
    let mut harness = Harness::new(batching());
    harness.push(text("a")).unwrap();
    harness
        .push(OutgoingMessage {
            deliver_at: Some(9),
            ..text("b")
        })
        .unwrap();
    let sent = harness.send();
    assert_eq!(sequence_ids(&sent), [0, 1]);
    assert_eq!(sent[1].parts.metadata.deliver_at_time, Some(9));
}

#[test]
fn what_may_be_a_duplicate_shares_no_batch_with_what_is_not() {
    let mut harness = Harness::new(batching());
    let with_id = |id| OutgoingMessage {
        sequence_id: Some(id),
        ..text("x")
    };
    for id in [5, 6, 7] {
        harness.push(with_id(id)).unwrap();
    }
    for id in [6, 7, 8] {
        harness.push(with_id(id)).unwrap();
    }
    harness.state.flush_batches(harness.now);
    assert_eq!(sequence_ids(&harness.send()), [5, 6, 8]);
}

#[test]
fn batches_by_key_are_named_by_their_last_id() {
    let mut options = batching();
    options.batching = options.batching.map(|batching| BatchingOptions {
        max_messages: 5,
        key_based: true,
        ..batching
    });
    let mut harness = Harness::new(options);
    for key in ["a", "b", "b", "a", "a"] {
        harness
            .push(OutgoingMessage {
                key: Some(key.into()),
                ..text(key)
            })
            .unwrap();
    }
    let sent = harness.send();
    assert_eq!(sequence_ids(&sent), [2, 4]);
    assert!(
        sent.iter()
            .all(|sent| sent.send.highest_sequence_id.is_none())
    );
    assert_eq!(sent[0].parts.metadata.partition_key.as_deref(), Some("b"));
    harness.receipt(&sent[0], 0).unwrap();
    assert_eq!(harness.stored(), [1, 2]);
    harness.receipt(&sent[1], 1).unwrap();
    assert_eq!(harness.stored(), [1, 2, 0, 3, 4]);
}

#[test]
fn a_large_message_is_cut_into_chunks() {
    let mut harness = Harness::new(StateOptions {
        chunking: true,
        ..options()
    });
    harness.push(large(90_000)).unwrap();
    harness.push(text("behind")).unwrap();
    let sent = harness.send();
    assert_eq!(sent.len(), 6);
    let mut assembler = Assembler::new(AssemblerLimits::default());
    let mut whole = None;
    for sent in &sent[..5] {
        assert_eq!(sent.send.is_chunk, Some(true));
        assert_eq!(sent.send.sequence_id, 0);
        let size = sent.parts.headers_and_payload.len() + 6;
        assert!(size <= MAX_MESSAGE, "{size}");
        assert_eq!(sent.parts.metadata.uuid.as_deref(), Some("name-0"));
        let assembled = assembler.push(&sent.parts.metadata, &sent.parts.payload);
        if let ChunkOutcome::Complete(payload) = assembled.unwrap().outcome {
            whole = Some(payload);
        }
    }
    assert_eq!(whole.unwrap(), large(90_000).payload);
    assert_eq!(sent[5].send.is_chunk, None);
    for (at, sent) in sent.iter().enumerate() {
        assert_eq!(harness.stored().len(), at / 5);
        harness.receipt(sent, at as u64).unwrap();
    }
    let id = harness.outcomes[0].result.clone().unwrap();
    assert_eq!(id.entry_id, 4);
    assert_eq!(id.first_chunk.as_deref(), Some(&(1, 0)));
}

#[test]
fn a_message_too_large_is_refused_at_once() {
    let mut harness = Harness::new(options());
    let error = harness.push(large(MAX_MESSAGE)).unwrap_err();
    assert!(matches!(
        error,
        SendError::TooLarge {
            max: MAX_MESSAGE,
            ..
        }
    ));
    assert_eq!(harness.state.messages(), 0);
    harness.push(large(MAX_MESSAGE - 100)).unwrap();
}

#[test]
fn a_batch_that_the_broker_would_not_take_fails_here() {
    let mut options = batching();
    options.batching = options.batching.map(|batching| BatchingOptions {
        max_bytes: 10 * MAX_MESSAGE,
        ..batching
    });
    let mut harness = Harness::new(options);
    let error = harness.push(large(MAX_MESSAGE + 1)).unwrap_err();
    assert!(matches!(error, SendError::TooLarge { .. }));
    // By its key alone.
    harness
        .push(OutgoingMessage {
            key: Some("k".repeat(MAX_MESSAGE).into()),
            ..text("x")
        })
        .unwrap();
    harness.state.flush_batches(harness.now);
    harness.take();
    assert_eq!(harness.failed(), [0]);
    assert!(harness.send().is_empty());
    // Batches keep to the broker's limit, whatever the options say.
    harness.push_many(large(MAX_MESSAGE / 2), 3).unwrap();
    harness.state.flush_batches(harness.now);
    assert_eq!(harness.send().len(), 3);
}

#[test]
fn a_broker_that_takes_nothing_makes_no_dust_of_a_message() {
    let mut harness = Harness::new(StateOptions {
        chunking: true,
        ..options()
    });
    for max_message_size in [1, 130] {
        harness.state.open(Opened {
            name: "name".to_owned(),
            last_sequence_id: None,
            schema_version: None,
            max_message_size,
        });
        let error = harness.push(large(10_000_000)).unwrap_err();
        assert!(matches!(error, SendError::TooLarge { .. }));
    }
}

#[test]
fn payloads_and_batches_are_compressed() {
    for codec in [
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ] {
        for options in [options(), batching()] {
            let mut harness = Harness::new(StateOptions {
                compression: codec,
                compression_min_size: 100,
                ..options
            });
            harness.push_many(large(300), 3).unwrap();
            harness.push(text("small")).unwrap();
            harness.state.flush_batches(harness.now);
            let sent = harness.send();
            let metadata = &sent[0].parts.metadata;
            assert_eq!(metadata.compression(), codec);
            let size = metadata.uncompressed_size.unwrap();
            let payload =
                compression::decompress(codec, &sent[0].parts.payload, size, 10_000).unwrap();
            assert!(payload.ends_with(&[b'x'; 300]));
            let last = sent.last().unwrap();
            assert_eq!(last.parts.metadata.compression, None);
            assert_eq!(last.parts.payload, "small");
        }
    }
}

#[test]
fn the_queue_is_bounded_by_messages_and_bytes() {
    let mut harness = Harness::new(StateOptions {
        max_pending: 4,
        max_pending_bytes: 3000,
        ..options()
    });
    assert_eq!(harness.state.room(10_000), 1, "one always fits");
    assert_eq!(harness.state.room(1000), 3);
    assert_eq!(harness.state.room(1), 4);
    harness.push_many(large(1000), 2).unwrap();
    assert_eq!(harness.state.room(1000), 0);
    assert_eq!(harness.state.room(1), 2);
    assert!(!harness.state.is_half_empty());
    let sent = harness.send();
    harness.receipt(&sent[0], 0).unwrap();
    assert!(harness.state.is_half_empty());
}

#[test]
fn a_timeout_fails_all_that_waits() {
    let mut harness = Harness::new(batching());
    harness.push_many(text("a"), 3).unwrap();
    let sent = harness.send();
    harness.now.elapsed = TIMEOUT - Duration::from_millis(1);
    harness.push(text("b")).unwrap();
    harness.on_time(TIMEOUT);
    assert_eq!(harness.failed(), [0, 1, 2, 3]);
    let error = harness.outcomes[0].result.clone().unwrap_err();
    assert!(matches!(error, SendError::Timeout { limit: TIMEOUT, .. }));
    // The receipt comes all the same, and another message is next.
    harness.receipt(&sent[0], 0).unwrap();
    harness.push_many(text("c"), 3).unwrap();
    harness.receipt(&sent[0], 0).unwrap();
    let sent = harness.send();
    harness.receipt(&sent[0], 0).unwrap();
    assert_eq!(harness.stored(), [4, 5, 6]);
}

#[test]
fn a_refused_message_fails_alone() {
    let mut harness = Harness::new(options());
    harness.push_many(text("a"), 3).unwrap();
    let sent = harness.send();
    assert_eq!(
        harness.send_error(0, ServerError::NotAllowedError),
        AfterSendError::GoOn
    );
    assert_eq!(harness.failed(), [0]);
    // Not the next one: it was given up, or never was.
    assert_eq!(
        harness.send_error(2, ServerError::NotAllowedError),
        AfterSendError::GoOn
    );
    harness.receipt(&sent[1], 0).unwrap();
    harness.receipt(&sent[2], 1).unwrap();
    assert_eq!(harness.stored(), [1, 2]);
}

#[test]
fn a_refused_batch_is_named_by_its_last_id() {
    let mut harness = Harness::new(batching());
    harness.push_many(text("a"), 3).unwrap();
    harness.send();
    assert_eq!(
        harness.send_error(2, ServerError::NotAllowedError),
        AfterSendError::GoOn
    );
    assert_eq!(harness.failed(), [0, 1, 2]);
}

#[test]
fn a_checksum_error_has_all_sent_again_and_in_the_end_fails_the_message() {
    let mut harness = Harness::new(options());
    harness.push_many(text("a"), 2).unwrap();
    harness.send();
    for _ in 0..2 {
        assert_eq!(
            harness.send_error(0, ServerError::ChecksumError),
            AfterSendError::Resend
        );
        assert_eq!(sequence_ids(&harness.send()), [0, 1]);
    }
    assert_eq!(
        harness.send_error(0, ServerError::ChecksumError),
        AfterSendError::GoOn
    );
    assert_eq!(harness.failed(), [0]);
    assert!(matches!(
        harness.outcomes[0].result,
        Err(SendError::Checksum)
    ));
    assert_eq!(
        harness.send_error(9, ServerError::ChecksumError),
        AfterSendError::GoOn
    );
}

#[test]
fn a_terminated_topic_ends_the_producer() {
    let mut harness = Harness::new(batching());
    harness.push_many(text("a"), 4).unwrap();
    harness.send();
    let after = harness.send_error(0, ServerError::TopicTerminatedError);
    assert_eq!(after, AfterSendError::Terminated);
    assert_eq!(harness.failed(), [0, 1, 2, 3]);
    assert!(matches!(
        harness.push(text("b")),
        Err(SendError::Terminated)
    ));
}

#[test]
fn other_errors_have_the_producer_reconnect() {
    let mut harness = Harness::new(options());
    harness.push(text("a")).unwrap();
    harness.send();
    for code in [ServerError::PersistenceError, ServerError::UnknownError] {
        assert_eq!(harness.send_error(0, code), AfterSendError::Reconnect);
    }
    assert!(harness.outcomes.is_empty());
}

#[test]
fn a_smaller_broker_fails_what_it_would_never_take() {
    let mut harness = Harness::new(options());
    harness.push(large(MAX_MESSAGE - 200)).unwrap();
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
    assert_eq!(sequence_ids(&harness.send()), [1]);
}

#[test]
fn a_raw_entry_is_sent_as_it_is() {
    let mut other = Harness::new(batching());
    other.push_many(text("x"), 3).unwrap();
    for padding in [0, 8000] {
        let entry = other_entry(padding);
        let mut harness = Harness::new(batching());
        harness.push(text("before")).unwrap();
        let raw = RawEntry {
            sequence_id: 100,
            highest_sequence_id: Some(102),
            num_messages: 3,
            is_chunk: false,
            marker: false,
            headers_and_payload: entry.clone(),
            token: 0,
        };
        harness.state.push_raw(raw, harness.now, 77).unwrap();
        let sent = harness.send();
        assert_eq!(sequence_ids(&sent), [0, 100]);
        assert_eq!(sent[1].send.highest_sequence_id, Some(102));
        assert_eq!(sent[1].send.num_messages, Some(3));
        assert_eq!(sent[1].parts.headers_and_payload, entry);
        harness.receipt(&sent[0], 0).unwrap();
        harness.receipt(&sent[1], 1).unwrap();
        assert_eq!(harness.stored(), [0, 77]);
    }
}

fn other_entry(padding: usize) -> Bytes {
    let mut harness = Harness::new(options());
    harness.push(large(10 + padding)).unwrap();
    harness.send().remove(0).parts.headers_and_payload
}

/// One step of a producer's life.
#[derive(Debug, Clone)]
enum Step {
    Push {
        len: usize,
        count: usize,
        delayed: bool,
    },
    Send,
    /// The broker stores the next entries, and their receipts arrive.
    Store(usize),
    /// The broker stores them, and the connection is lost before their receipts.
    StoreAndLose(usize),
    Wait(u64),
    Refuse,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (prop_oneof![0..300_usize, 3900..4200_usize, Just(30_000_usize)], 1..4_usize, any::<bool>())
            .prop_map(|(len, count, delayed)| Step::Push { len, count, delayed: delayed && len % 3 == 0 }),
        3 => Just(Step::Send),
        3 => (0..5_usize).prop_map(Step::Store),
        1 => (0..3_usize).prop_map(Step::StoreAndLose),
        1 => (0..40_u64).prop_map(Step::Wait),
        1 => Just(Step::Wait(31_000)),
        1 => Just(Step::Refuse),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// The broker is a list. Whatever happens, every message is answered once, in order, and what was acknowledged is in the
    /// list, first arrivals in order.
    #[test]
    fn what_is_acknowledged_is_stored_in_order(steps in steps(), batches: bool, chunking: bool) {
        let base = if batches { batching() } else { options() };
        let mut harness = Harness::new(StateOptions { chunking, ..base });
        let mut wire: std::collections::VecDeque<Sent> = Default::default();
        let mut stored: Vec<u64> = Vec::new();
        for step in steps {
            match step {
                Step::Push { len, count, delayed } => {
                    let message = OutgoingMessage {
                        deliver_at: delayed.then_some(1),
                        ..large(len)
                    };
                    let room = harness.state.room(len).min(count);
                    if room > 0 {
                        let result = harness.push_many(message, room);
                        prop_assert_eq!(result.is_err(), len > MAX_MESSAGE && !chunking);
                    }
                }
                Step::Send => wire.extend(harness.send()),
                Step::Store(count) => {
                    for _ in 0..count {
                        let Some(sent) = wire.pop_front() else { break };
                        store(&sent, &mut stored);
                        prop_assert!(harness.receipt(&sent, stored.len() as u64).is_ok());
                    }
                }
                Step::StoreAndLose(count) => {
                    for _ in 0..count {
                        let Some(sent) = wire.pop_front() else { break };
                        store(&sent, &mut stored);
                    }
                    wire.clear();
                    harness.state.detach();
                    harness.open(None);
                }
                Step::Wait(millis) => {
                    let now = harness.now.elapsed + Duration::from_millis(millis);
                    harness.on_time(now);
                }
                Step::Refuse => {
                    if let Some(sent) = wire.pop_front() {
                        let id = sent.send.highest_sequence_id.unwrap_or(sent.send.sequence_id);
                        harness.send_error(id, ServerError::NotAllowedError);
                        // The chunks behind a refused one mean nothing.
                        while wire.front().is_some_and(|next| next.send.sequence_id == id && sent.send.is_chunk.is_some()) {
                            wire.pop_front();
                        }
                    }
                }
            }
        }
        harness.state.flush_batches(harness.now);
        wire.extend(harness.send());
        for sent in wire {
            store(&sent, &mut stored);
            prop_assert!(harness.receipt(&sent, 0).is_ok());
        }
        let answered: Vec<usize> = harness.outcomes.iter().map(|outcome| outcome.completion).collect();
        prop_assert_eq!(answered, (0..harness.pushed).collect::<Vec<_>>());
        prop_assert_eq!(harness.state.messages(), 0);
        let mut first_arrivals = stored.clone();
        let mut seen = std::collections::BTreeSet::new();
        first_arrivals.retain(|id| seen.insert(*id));
        prop_assert!(first_arrivals.is_sorted());
        // What was refused used up no sequence id.
        for acknowledged in harness.stored() {
            prop_assert!(seen.contains(&(acknowledged as u64)), "{} is lost", acknowledged);
        }
    }
}

fn store(sent: &Sent, stored: &mut Vec<u64>) {
    let last = sent
        .send
        .highest_sequence_id
        .unwrap_or(sent.send.sequence_id);
    stored.extend(sent.send.sequence_id..=last);
}
