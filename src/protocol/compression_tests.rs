use proptest::prelude::*;

use super::*;

const CODECS: [CompressionType; 5] = [
    CompressionType::None,
    CompressionType::Lz4,
    CompressionType::Zlib,
    CompressionType::Zstd,
    CompressionType::Snappy,
];

const LIMIT: usize = 1 << 20;

/// The inputs that the blocks in `testdata/compression_java.txt` were made from.
fn java_input(name: &str) -> Bytes {
    match name {
        "empty" => Bytes::new(),
        "one" => Bytes::from_static(b"x"),
        "text" => Bytes::from_static(
            b"Apache Pulsar is a messaging system. Apache Pulsar has topics. \
              Apache Pulsar has subscriptions.",
        ),
        "zeros" => Bytes::from(vec![0; 100_000]),
        "noise" => {
            let mut state = 1_u32;
            let mut next = || {
                state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
                state.to_be_bytes()[1]
            };
            (0..300).map(|_| next()).collect()
        }
        other => panic!("no input {other}"),
    }
}

fn from_hex(text: &str) -> Bytes {
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        .collect()
}

fn size_of(data: &Bytes) -> u32 {
    u32::try_from(data.len()).unwrap()
}

fn packed(codec: CompressionType) -> (Bytes, Bytes) {
    let data = java_input("text");
    let block = compress(codec, &data).unwrap();
    (data, block)
}

#[test]
fn reads_the_blocks_of_the_java_client() {
    let mut read = 0;
    for line in include_str!("testdata/compression_java.txt").lines() {
        let mut words = line.split(' ');
        let codec = match words.next().unwrap() {
            "#" => continue,
            name => CompressionType::from_str_name(name).unwrap(),
        };
        let data = java_input(words.next().unwrap());
        let block = from_hex(words.next().unwrap_or(""));
        assert_eq!(
            decompress(codec, &block, size_of(&data), LIMIT),
            Ok(data),
            "{line:.20}"
        );
        read += 1;
    }
    assert_eq!(read, 20);
}

/// For checking by hand that the Java classes read our blocks: prints them in the form of `testdata/compression_java.txt`.
#[test]
#[ignore = "prints blocks for a check against the Java client"]
fn print_blocks_for_java() {
    for codec in &CODECS[1..] {
        for name in ["empty", "one", "text", "noise", "zeros"] {
            let block = compress(*codec, &java_input(name)).unwrap();
            let hex: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("{} {name} {hex}", codec.as_str_name());
        }
    }
}

#[test]
fn without_compression_the_claimed_size_is_ignored_and_nothing_copied() {
    let data = Bytes::from_static(b"abc");
    assert_eq!(
        compress(CompressionType::None, &data).unwrap().as_ptr(),
        data.as_ptr()
    );
    let output = decompress(CompressionType::None, &data, 77, 3).unwrap();
    assert_eq!(output.as_ptr(), data.as_ptr());
    let error = CompressionError::TooLarge { size: 3, limit: 2 };
    assert_eq!(decompress(CompressionType::None, &data, 0, 2), Err(error));
}

#[test]
fn refuses_a_claim_above_the_limit() {
    for codec in &CODECS[1..] {
        let (data, block) = packed(*codec);
        let limit = data.len() - 1;
        let error = CompressionError::TooLarge {
            size: data.len(),
            limit,
        };
        assert_eq!(
            decompress(*codec, &block, size_of(&data), limit),
            Err(error)
        );
        assert_eq!(
            decompress(*codec, &block, size_of(&data), data.len()),
            Ok(data)
        );
    }
}

#[test]
fn refuses_a_claim_that_so_little_data_cannot_hold() {
    for codec in [
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Snappy,
    ] {
        let (_, block) = packed(codec);
        let error = decompress(codec, &block, u32::MAX, usize::MAX).unwrap_err();
        assert!(
            matches!(error, CompressionError::Implausible { .. }),
            "{error}"
        );
    }
    for block in [&[][..], &[0; 4]] {
        let block = Bytes::from_static(block);
        let claimed = 128 * 1024 * 4 + 1;
        let error = decompress(CompressionType::Zstd, &block, claimed, LIMIT).unwrap_err();
        assert!(
            matches!(error, CompressionError::Implausible { .. }),
            "{error}"
        );
    }
    for codec in &CODECS[1..] {
        assert_eq!(
            decompress(*codec, &Bytes::new(), 0, LIMIT),
            Ok(Bytes::new())
        );
        assert!(decompress(*codec, &Bytes::new(), 1, LIMIT).is_err());
    }
}

#[test]
fn refuses_a_block_longer_or_shorter_than_claimed() {
    for codec in &CODECS[1..] {
        let (data, block) = packed(*codec);
        for claimed in [0, 1, size_of(&data) - 1, size_of(&data) + 1, 1000] {
            let error = decompress(*codec, &block, claimed, LIMIT).unwrap_err();
            assert!(
                matches!(
                    error,
                    CompressionError::SizeMismatch { .. } | CompressionError::Corrupt { .. }
                ),
                "{codec:?} {claimed}: {error}"
            );
        }
    }
}

#[test]
fn reads_a_zlib_stream_without_its_end_but_not_without_data() {
    let (data, block) = packed(CompressionType::Zlib);
    // The last four bytes are the Adler-32 checksum.
    let without_checksum = block.slice(..block.len() - 4);
    assert_eq!(
        decompress(
            CompressionType::Zlib,
            &without_checksum,
            size_of(&data),
            LIMIT
        ),
        Ok(data.clone())
    );
    let cut = block.slice(..block.len() / 2);
    assert!(decompress(CompressionType::Zlib, &cut, size_of(&data), LIMIT).is_err());
}

#[test]
fn the_densest_blocks_of_each_codec_are_plausible() {
    let data = Bytes::from(vec![0; 8 << 20]);
    for codec in CODECS {
        let block = compress(codec, &data).unwrap();
        assert!(
            data.len() <= largest_output(codec, block.len()),
            "{codec:?} {}",
            block.len()
        );
        assert_eq!(
            decompress(codec, &block, size_of(&data), data.len()).as_ref(),
            Ok(&data)
        );
    }
}

fn codec() -> impl Strategy<Value = CompressionType> {
    proptest::sample::select(CODECS.to_vec())
}

fn data() -> impl Strategy<Value = Bytes> {
    let run = (any::<u8>(), 1_usize..300).prop_map(|(byte, times)| vec![byte; times]);
    let noise = proptest::collection::vec(any::<u8>(), 0..300);
    proptest::collection::vec(prop_oneof![run, noise], 0..8).prop_map(|parts| parts.concat().into())
}

proptest! {
    #[test]
    fn decompresses_what_it_compressed(codec in codec(), data in data()) {
        let block = compress(codec, &data).unwrap();
        prop_assert_eq!(decompress(codec, &block, size_of(&data), LIMIT), Ok(data));
    }

    #[test]
    fn mutated_and_truncated_blocks_give_the_claimed_length_or_an_error(
        codec in codec(),
        data in data(),
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<proptest::sample::Index>(),
        claimed in prop_oneof![Just(None), (0_u32..5000).prop_map(Some), any::<u32>().prop_map(Some)],
    ) {
        let mut block = compress(codec, &data).unwrap().to_vec();
        for (at, byte) in flips {
            if !block.is_empty() {
                let at = at.index(block.len());
                block[at] ^= byte;
            }
        }
        block.truncate(cut.index(block.len() + 1).max(block.len() / 2));
        let claimed = claimed.unwrap_or(size_of(&data));
        if let Ok(output) = decompress(codec, &block.into(), claimed, LIMIT)
            && codec != CompressionType::None
        {
            prop_assert_eq!(size_of(&output), claimed);
        }
    }
}
