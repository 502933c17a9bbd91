use proptest::prelude::*;

use super::*;

fn template() -> MessageMetadata {
    MessageMetadata {
        producer_name: "p".into(),
        sequence_id: 4,
        ..Default::default()
    }
}

fn chunks(uuid: &str, payload: &'static [u8], max_chunk: usize) -> Vec<(MessageMetadata, Bytes)> {
    split(&template(), Bytes::from_static(payload), uuid, max_chunk)
        .unwrap()
        .collect()
}

fn chunk(uuid: &str, chunk_id: i32, count: i32, total: i32) -> MessageMetadata {
    MessageMetadata {
        uuid: Some(uuid.to_owned()),
        chunk_id: Some(chunk_id),
        num_chunks_from_msg: Some(count),
        total_chunk_msg_size: Some(total),
        ..template()
    }
}

fn assembler() -> Assembler {
    Assembler::new(AssemblerLimits {
        max_incomplete: 2,
        max_bytes: 100,
        max_message: 50,
    })
}

fn outcome(
    assembler: &mut Assembler,
    (metadata, payload): &(MessageMetadata, Bytes),
) -> Result<ChunkOutcome, ChunkError> {
    assembler
        .push(metadata, payload)
        .map(|assembled| assembled.outcome)
}

#[test]
fn cuts_a_payload_into_marked_chunks() {
    let chunks = chunks("u", b"abcdefg", 3);
    let parts: Vec<_> = chunks.iter().map(|(_, payload)| payload.as_ref()).collect();
    assert_eq!(parts, [&b"abc"[..], b"def", b"g"]);
    for (id, (metadata, _)) in (0..).zip(&chunks) {
        assert_eq!(metadata, &chunk("u", id, 3, 7));
        assert!(is_chunk(metadata));
    }
}

#[test]
fn a_payload_that_fits_is_no_chunk() {
    for payload in [&b""[..], b"abc"] {
        let chunks = chunks("u", payload, 3);
        assert_eq!(chunks, [(template(), Bytes::from_static(payload))]);
        assert!(!is_chunk(&chunks[0].0));
    }
}

#[test]
fn refuses_to_cut_into_nothing() {
    let error = split(&template(), Bytes::new(), "u", 0).err();
    assert_eq!(error, Some(ChunkError::NoRoom));
}

#[test]
fn puts_mixed_messages_together() {
    let (a, b) = (chunks("a", b"abcdef", 3), chunks("b", b"uvwxyz", 3));
    let mut assembler = assembler();
    assert_eq!(
        outcome(&mut assembler, &a[0]),
        Ok(ChunkOutcome::Waiting { next: 1 })
    );
    assert_eq!(
        outcome(&mut assembler, &b[0]),
        Ok(ChunkOutcome::Waiting { next: 1 })
    );
    assert_eq!(assembler.incomplete(), 2);
    assert_eq!(
        outcome(&mut assembler, &b[1]),
        Ok(ChunkOutcome::Complete("uvwxyz".into()))
    );
    assert_eq!(
        outcome(&mut assembler, &a[1]),
        Ok(ChunkOutcome::Complete("abcdef".into()))
    );
    assert_eq!((assembler.incomplete(), assembler.held_bytes()), (0, 0));
}

#[test]
fn ignores_a_chunk_that_is_there_already() {
    let chunks = chunks("a", b"abcdef", 2);
    let mut assembler = assembler();
    outcome(&mut assembler, &chunks[0]).unwrap();
    outcome(&mut assembler, &chunks[1]).unwrap();
    assert_eq!(
        outcome(&mut assembler, &chunks[1]),
        Ok(ChunkOutcome::Duplicate)
    );
    assert_eq!(
        outcome(&mut assembler, &chunks[2]),
        Ok(ChunkOutcome::Complete("abcdef".into()))
    );
}

#[test]
fn the_first_chunk_again_starts_over() {
    let chunks = chunks("a", b"abcdef", 2);
    let mut assembler = assembler();
    outcome(&mut assembler, &chunks[0]).unwrap();
    outcome(&mut assembler, &chunks[1]).unwrap();
    assert_eq!(
        outcome(&mut assembler, &chunks[0]),
        Ok(ChunkOutcome::Waiting { next: 1 })
    );
    outcome(&mut assembler, &chunks[1]).unwrap();
    assert_eq!(
        outcome(&mut assembler, &chunks[2]),
        Ok(ChunkOutcome::Complete("abcdef".into()))
    );
}

#[test]
fn a_gap_discards_the_message() {
    let chunks = chunks("a", b"abcdef", 2);
    let mut assembler = assembler();
    let missing_first = ChunkError::OutOfOrder {
        expected: 0,
        chunk_id: 1,
    };
    assert_eq!(outcome(&mut assembler, &chunks[1]), Err(missing_first));
    outcome(&mut assembler, &chunks[0]).unwrap();
    let gap = ChunkError::OutOfOrder {
        expected: 1,
        chunk_id: 2,
    };
    assert_eq!(outcome(&mut assembler, &chunks[2]), Err(gap));
    assert_eq!((assembler.incomplete(), assembler.held_bytes()), (0, 0));
}

#[test]
fn refuses_what_is_no_chunk() {
    let mut assembler = assembler();
    assert_eq!(assembler.push(&template(), b""), Err(ChunkError::NoChunk));
    for field in 0..3 {
        let mut metadata = chunk("a", 0, 2, 4);
        match field {
            0 => metadata.chunk_id = None,
            1 => metadata.num_chunks_from_msg = None,
            _ => metadata.total_chunk_msg_size = None,
        }
        assert_eq!(assembler.push(&metadata, b"ab"), Err(ChunkError::NoChunk));
    }
}

#[test]
fn refuses_numbers_that_exclude_each_other() {
    let mut assembler = assembler();
    for (chunk_id, count, total) in [(-1, 2, 4), (2, 2, 4), (0, 0, 4), (0, -1, 4), (0, 2, -1)] {
        let error = ChunkError::Impossible {
            chunk_id,
            count,
            total,
        };
        assert_eq!(
            assembler.push(&chunk("a", chunk_id, count, total), b""),
            Err(error)
        );
    }
}

#[test]
fn refuses_totals_that_lie() {
    let mut assembler = assembler();
    let total = ChunkError::WrongTotal { total: 4, size: 5 };
    assert_eq!(assembler.push(&chunk("a", 0, 2, 4), b"abcde"), Err(total));

    assembler.push(&chunk("a", 0, 2, 4), b"ab").unwrap();
    let total = ChunkError::WrongTotal { total: 4, size: 3 };
    assert_eq!(assembler.push(&chunk("a", 1, 2, 4), b"c"), Err(total));

    for second in [chunk("a", 1, 3, 4), chunk("a", 1, 2, 5)] {
        assembler.push(&chunk("a", 0, 2, 4), b"ab").unwrap();
        assert_eq!(
            assembler.push(&second, b"cd"),
            Err(ChunkError::Contradiction)
        );
    }
    assert_eq!(assembler.incomplete(), 0);
}

#[test]
fn refuses_a_message_above_the_limit_at_its_first_chunk() {
    let error = ChunkError::TooLarge { size: 51, max: 50 };
    assert_eq!(assembler().push(&chunk("a", 0, 2, 51), b"ab"), Err(error));
    let error = ChunkError::TooLarge {
        size: 0x7fff_ffff,
        max: 50,
    };
    assert_eq!(
        assembler().push(&chunk("a", 0, 2, i32::MAX), b"ab"),
        Err(error)
    );
}

#[test]
fn names_the_oldest_message_it_discards_for_a_third() {
    let mut assembler = assembler();
    assembler.push(&chunk("a", 0, 2, 4), b"a").unwrap();
    assembler.push(&chunk("b", 0, 2, 4), b"b").unwrap();
    let assembled = assembler.push(&chunk("c", 0, 2, 4), b"c").unwrap();
    assert_eq!(assembled.evicted, ["a"]);
    let error = ChunkError::OutOfOrder {
        expected: 0,
        chunk_id: 1,
    };
    assert_eq!(assembler.push(&chunk("a", 1, 2, 4), b"aaa"), Err(error));
}

#[test]
fn counts_uuids_into_the_bytes_it_holds() {
    let mut assembler = assembler();
    let uuid = "u".repeat(99);
    let error = ChunkError::TooLarge {
        size: 101,
        max: 100,
    };
    assert_eq!(assembler.push(&chunk(&uuid, 0, 2, 4), b"ab"), Err(error));
    assert_eq!(assembler.held_bytes(), 0);
}

#[test]
fn forgets_what_it_is_told_to() {
    let mut assembler = assembler();
    assembler.push(&chunk("a", 0, 2, 4), b"a").unwrap();
    assembler.push(&chunk("b", 0, 2, 4), b"b").unwrap();
    assembler.discard("a");
    assert_eq!(assembler.incomplete(), 1);
    assembler.clear();
    assert_eq!(assembler.held_bytes(), 0);
}

proptest! {
    #[test]
    fn puts_together_what_it_cut(
        payload in proptest::collection::vec(any::<u8>(), 1..200),
        max_chunk in 1_usize..60,
    ) {
        let payload = Bytes::from(payload);
        let limits = AssemblerLimits { max_incomplete: 1, max_bytes: 256, max_message: 200 };
        let mut assembler = Assembler::new(limits);
        let chunks = split(&template(), payload.clone(), "u", max_chunk).unwrap();
        prop_assert_eq!(chunks.len(), payload.len().div_ceil(max_chunk));
        let mut completed = None;
        for (metadata, part) in chunks {
            prop_assert!(part.len() <= max_chunk);
            if !is_chunk(&metadata) {
                completed = Some(part);
                continue;
            }
            prop_assert_eq!(completed.as_ref(), None);
            if let ChunkOutcome::Complete(whole) = assembler.push(&metadata, &part).unwrap().outcome {
                completed = Some(whole);
            }
        }
        prop_assert_eq!(completed, Some(payload));
        prop_assert_eq!(assembler.held_bytes(), 0);
    }

    /// Against a model that keeps every chunk of every message and knows no limits.
    #[test]
    fn what_it_completes_is_what_was_cut_whatever_the_order(
        order in proptest::collection::vec((0_usize..3, 0_usize..4), 0..40),
    ) {
        let messages = [
            chunks("a", b"0123456789", 3),
            chunks("b", b"abcdefghij", 3),
            chunks("c", b"ABCDEFGHIJ", 3),
        ];
        let mut assembler = assembler();
        let mut next = [0; 3];
        for (message, id) in order {
            let answer = assembler.push(&messages[message][id].0, &messages[message][id].1);
            if let Ok(assembled) = &answer {
                for uuid in &assembled.evicted {
                    next[messages.iter().position(|m| m[0].0.uuid() == uuid).unwrap()] = 0;
                }
            }
            let expected = match id {
                0 => Ok(ChunkOutcome::Waiting { next: 1 }),
                id if id < next[message] => Ok(ChunkOutcome::Duplicate),
                id if id > next[message] => Err(()),
                3 => Ok(ChunkOutcome::Complete(
                    messages[message].iter().flat_map(|(_, part)| part.to_vec()).collect(),
                )),
                id => Ok(ChunkOutcome::Waiting { next: u32::try_from(id).unwrap() + 1 }),
            };
            next[message] = match &expected {
                Ok(ChunkOutcome::Waiting { .. }) => id + 1,
                Ok(ChunkOutcome::Duplicate) => next[message],
                _ => 0,
            };
            prop_assert_eq!(answer.map(|assembled| assembled.outcome).map_err(|_| ()), expected);
            prop_assert!(assembler.incomplete() <= 2 && assembler.held_bytes() <= 100);
        }
    }
}
