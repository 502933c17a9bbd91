use bytes::Bytes;

use super::Input;
use crate::protocol::compression;
use crate::protocol::proto::pulsar::CompressionType;

/// The decompression of payloads: `u8 codec | u32 claimed size | data`.
///
/// - The output has the claimed size and is within the limit.
/// - Output and data both survive being compressed and decompressed again.
pub fn decompress(data: &[u8]) {
    let mut input = Input::new(data);
    let codec = CODECS.get(usize::from(input.u8()) % CODECS.len()).copied();
    let codec = codec.expect("the index is below the length");
    let claimed = input.u32();
    let block = Bytes::copy_from_slice(input.rest);
    match compression::decompress(codec, &block, claimed, LIMIT) {
        Ok(output) if codec == CompressionType::None => assert_eq!(output, block),
        Ok(output) => {
            assert_eq!(u32::try_from(output.len()), Ok(claimed));
            assert!(output.len() <= LIMIT);
            survives(codec, &output);
        }
        Err(_) if block.len() <= LIMIT => survives(codec, &block),
        Err(_) => {}
    }
}

fn survives(codec: CompressionType, data: &Bytes) {
    let size = u32::try_from(data.len()).expect("the limit is below 4 GiB");
    let block = compression::compress(codec, data).expect("encoders take any data");
    let output = compression::decompress(codec, &block, size, LIMIT);
    assert_eq!(output.as_ref(), Ok(data));
}

const CODECS: [CompressionType; 5] = [
    CompressionType::None,
    CompressionType::Lz4,
    CompressionType::Zlib,
    CompressionType::Zstd,
    CompressionType::Snappy,
];

/// What a caller accepts, in bytes. Small, for the sake of speed.
const LIMIT: usize = 64 * 1024;
