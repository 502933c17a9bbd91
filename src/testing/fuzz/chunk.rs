use std::collections::BTreeMap;

use bytes::Bytes;

use super::Input;
use crate::protocol::chunk::{self, Assembler, AssemblerLimits, ChunkError, ChunkOutcome};
use crate::protocol::proto::pulsar::MessageMetadata;

/// The assembler of chunks: any number of `u8 kind and message | numbers | u8 length | bytes`, each one a chunk.
///
/// The numbers are one signed byte each, or four bytes when the kind says so.
///
/// - Neither messages nor bytes go over the limits.
/// - A completed message is what its chunks held, in order, and has the claimed size.
/// - The bytes, cut into chunks and put together, are the same.
pub fn chunk(data: &[u8]) {
    let mut input = Input::new(data);
    let mut assembler = Assembler::new(LIMITS);
    // What a message must be if it is completed: all that was taken since its first chunk.
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    while !input.is_empty() {
        let (metadata, payload) = next_chunk(&mut input);
        let uuid = metadata.uuid().to_owned();
        let answer = assembler.push(&metadata, payload);
        assert!(assembler.incomplete() <= LIMITS.max_incomplete);
        assert!(assembler.held_bytes() <= LIMITS.max_bytes);
        let Ok(assembled) = answer else {
            model.remove(&uuid);
            continue;
        };
        for evicted in &assembled.evicted {
            assert!(model.remove(evicted).is_some(), "evicts what is not there");
        }
        if assembled.outcome == ChunkOutcome::Duplicate {
            assert!(model.contains_key(&uuid), "a duplicate of nothing");
            continue;
        }
        let taken = model.entry(uuid.clone()).or_default();
        if metadata.chunk_id == Some(0) {
            taken.clear();
        }
        taken.extend_from_slice(payload);
        if let ChunkOutcome::Complete(whole) = assembled.outcome {
            assert_eq!(Some(whole.to_vec()), model.remove(&uuid));
            assert_eq!(
                i32::try_from(whole.len()).ok(),
                metadata.total_chunk_msg_size
            );
        }
        assert_eq!(model.len(), assembler.incomplete());
    }
    survives(data);
}

fn next_chunk<'a>(input: &mut Input<'a>) -> (MessageMetadata, &'a [u8]) {
    let kind = input.u8();
    let mut number = |present: u8| {
        let value = if kind & WIDE == 0 {
            i32::from(i8::from_be_bytes([input.u8()]))
        } else {
            input.i32()
        };
        (kind & present == 0).then_some(value)
    };
    let metadata = MessageMetadata {
        chunk_id: number(NO_ID),
        num_chunks_from_msg: number(NO_COUNT),
        total_chunk_msg_size: number(NO_TOTAL),
        uuid: Some(format!("message {}", kind & MESSAGE)),
        ..Default::default()
    };
    let len = usize::from(input.u8());
    (metadata, input.take(len))
}

fn survives(data: &[u8]) {
    let mut input = Input::new(data);
    let max_chunk = usize::from(input.u8());
    let payload = Bytes::copy_from_slice(input.rest);
    // Thousands of chunks would show nothing that a hundred do not, and take the fuzzer's time.
    let max_chunk = max_chunk * payload.len().div_ceil(CHUNKS_MAX);
    let template = MessageMetadata::default();
    let chunks = match chunk::split(&template, payload.clone(), "u", max_chunk) {
        Ok(chunks) => chunks,
        Err(error) => {
            assert_eq!((error, max_chunk), (ChunkError::NoRoom, 0));
            return;
        }
    };
    let max = payload.len();
    let limits = AssemblerLimits {
        max_incomplete: 1,
        max_bytes: max + 1,
        max_message: max,
    };
    let mut assembler = Assembler::new(limits);
    let mut whole = None;
    for (metadata, part) in chunks {
        assert_eq!(whole, None, "goes on after the last chunk");
        if !chunk::is_chunk(&metadata) {
            whole = Some(part);
            continue;
        }
        let assembled = assembler
            .push(&metadata, &part)
            .expect("chunks in order are taken");
        if let ChunkOutcome::Complete(payload) = assembled.outcome {
            whole = Some(payload);
        }
    }
    assert_eq!(whole, Some(payload));
}

/// The most chunks that the bytes are cut into.
const CHUNKS_MAX: usize = 100;

const LIMITS: AssemblerLimits = AssemblerLimits {
    max_incomplete: 3,
    max_bytes: 300,
    max_message: 200,
};

/// The bits of the kind: which of the messages, and which fields its chunk has and how wide they are.
const MESSAGE: u8 = 0b0000_1111;
const WIDE: u8 = 0b0001_0000;
const NO_ID: u8 = 0b0010_0000;
const NO_COUNT: u8 = 0b0100_0000;
const NO_TOTAL: u8 = 0b1000_0000;
