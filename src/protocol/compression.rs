//! The compression codecs of message payloads: none, LZ4 (raw block), ZLIB, ZSTD and SNAPPY (raw).
//!
//! A batch or message is compressed as one block and its metadata names the codec and the size before compression
//! (`MessageMetadata.compression` and `uncompressed_size`). That size comes from the publisher and is distrusted: it is
//! compared with the caller's limit and with what the codec can possibly make of the data before anything is
//! allocated, and the output must be exactly that long. Nothing is ever allocated beyond it but the fixed state of a
//! decoder (at most [`DECODER_STATE_MAX`]).
//!
//! What each codec writes is what the Java client's `CompressionCodecProvider` reads, and the other way round; the tests
//! hold blocks which that class wrote.

use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};

use crate::protocol::proto::pulsar::CompressionType;

/// Compresses `data` as one block of `codec`. `CompressionType::None` returns `data` itself.
///
/// # Errors
/// [`CompressionError::Encoder`] when the codec refuses, which the data alone cannot cause.
pub fn compress(codec: CompressionType, data: &Bytes) -> Result<Bytes, CompressionError> {
    match codec {
        CompressionType::None => Ok(data.clone()),
        CompressionType::Lz4 => Ok(lz4_flex::block::compress(data).into()),
        CompressionType::Zlib => compress_zlib(data),
        CompressionType::Zstd => zstd::bulk::compress(data, zstd::DEFAULT_COMPRESSION_LEVEL)
            .map(Bytes::from)
            .map_err(|_| CompressionError::Encoder { codec }),
        CompressionType::Snappy => snap::raw::Encoder::new()
            .compress_vec(data)
            .map(Bytes::from)
            .map_err(|_| CompressionError::Encoder { codec }),
    }
}

/// Decompresses one block of `codec` that claims to hold `claimed` bytes, of which `limit` are accepted.
///
/// `CompressionType::None` returns `data` itself and ignores `claimed`: publishers leave `uncompressed_size` out then.
/// For the others the output has exactly `claimed` bytes, in one allocation of that size.
///
/// # Errors
/// [`CompressionError::TooLarge`] and [`CompressionError::Implausible`] before any allocation,
/// [`CompressionError::Corrupt`] and [`CompressionError::SizeMismatch`] after it.
pub fn decompress(
    codec: CompressionType,
    data: &Bytes,
    claimed: u32,
    limit: usize,
) -> Result<Bytes, CompressionError> {
    let size = match codec {
        CompressionType::None => data.len(),
        _ => usize::try_from(claimed).unwrap_or(usize::MAX),
    };
    if size > limit {
        return Err(CompressionError::TooLarge { size, limit });
    }
    if codec == CompressionType::None {
        return Ok(data.clone());
    }
    if size > largest_output(codec, data.len()) {
        return Err(CompressionError::Implausible {
            codec,
            claimed,
            compressed: data.len(),
        });
    }
    if data.is_empty() {
        // `size` is zero then. Some encoders make nothing of nothing, which not all decoders take.
        return Ok(Bytes::new());
    }
    let output = match codec {
        CompressionType::None => return Ok(data.clone()),
        CompressionType::Lz4 => decompress_lz4(data, size)?,
        CompressionType::Zlib => decompress_zlib(data, size)?,
        CompressionType::Zstd => decompress_zstd(data, size)?,
        CompressionType::Snappy => decompress_snappy(data, size)?,
    };
    Ok(output.into())
}

/// An upper bound of what `compressed` bytes of `codec` can decompress to.
///
/// A few bytes that claim to be megabytes are so refused without allocating those megabytes.
fn largest_output(codec: CompressionType, compressed: usize) -> usize {
    let factor = match codec {
        CompressionType::None => 1,
        // The best is a match length byte: 255 bytes of output.
        CompressionType::Lz4 => 255,
        // The best is a copy of 64 bytes written in three.
        CompressionType::Snappy => 22,
        // Two bits, one for the length code 258 and one for the distance: 1032 times.
        CompressionType::Zlib => 1032,
        // A block of 128 KiB that repeats one byte takes a header of three bytes and that byte.
        CompressionType::Zstd => 32 * 1024,
    };
    compressed.saturating_mul(factor)
}

fn compress_zlib(data: &Bytes) -> Result<Bytes, CompressionError> {
    use std::io::Write;

    let error = |_| CompressionError::Encoder {
        codec: CompressionType::Zlib,
    };
    let output = Vec::with_capacity(data.len() / 2 + 64);
    let mut encoder = flate2::write::ZlibEncoder::new(output, flate2::Compression::default());
    encoder.write_all(data).map_err(error)?;
    encoder.finish().map(Bytes::from).map_err(error)
}

fn decompress_lz4(data: &[u8], size: usize) -> Result<Vec<u8>, CompressionError> {
    let codec = CompressionType::Lz4;
    let mut output = vec![0; size];
    let written =
        lz4_flex::block::decompress_into(data, &mut output).map_err(|error| match error {
            lz4_flex::block::DecompressError::OutputTooSmall { .. } => {
                CompressionError::SizeMismatch {
                    codec,
                    claimed: size,
                    actual: None,
                }
            }
            _ => CompressionError::Corrupt { codec },
        })?;
    exactly(codec, output, written)
}

fn decompress_snappy(data: &[u8], size: usize) -> Result<Vec<u8>, CompressionError> {
    let codec = CompressionType::Snappy;
    // The block states its own size; both claims must agree before memory is spent on either.
    let stated =
        snap::raw::decompress_len(data).map_err(|_| CompressionError::Corrupt { codec })?;
    if stated != size {
        return Err(CompressionError::SizeMismatch {
            codec,
            claimed: size,
            actual: Some(stated),
        });
    }
    let mut output = vec![0; size];
    let written = snap::raw::Decoder::new()
        .decompress(data, &mut output)
        .map_err(|_| CompressionError::Corrupt { codec })?;
    exactly(codec, output, written)
}

/// ZSTD is decompressed in one step into the output and not as a stream: a stream decoder allocates the window that
/// the frame asks for, up to 128 MiB, whatever the output may be.
fn decompress_zstd(data: &[u8], size: usize) -> Result<Vec<u8>, CompressionError> {
    let codec = CompressionType::Zstd;
    let mut output = vec![0; size];
    let written = zstd::bulk::Decompressor::new()
        .and_then(|mut decoder| decoder.decompress_to_buffer(data, output.as_mut_slice()))
        .map_err(|_| CompressionError::Corrupt { codec })?;
    exactly(codec, output, written)
}

/// The Java client flushes its ZLIB stream and does not finish it, so the end of the stream may be missing; all that
/// counts is that the data yields the claimed bytes and no more.
fn decompress_zlib(data: &[u8], size: usize) -> Result<Vec<u8>, CompressionError> {
    let codec = CompressionType::Zlib;
    let mut output = vec![0; size];
    let mut decoder = Decompress::new(true);
    let written = inflate(&mut decoder, data, &mut output)?;
    let rest = data.get(consumed(&decoder)..).unwrap_or_default();
    let mut spare = [0];
    if written == size && inflate(&mut decoder, rest, &mut spare)? > 0 {
        return Err(CompressionError::SizeMismatch {
            codec,
            claimed: size,
            actual: None,
        });
    }
    exactly(codec, output, written)
}

/// Inflates until the input or the room is used up or the stream ends; returns the bytes written.
fn inflate(
    decoder: &mut Decompress,
    mut input: &[u8],
    mut room: &mut [u8],
) -> Result<usize, CompressionError> {
    let mut written = 0;
    loop {
        let (read_before, written_before) = (decoder.total_in(), decoder.total_out());
        let status = decoder
            .decompress(input, room, FlushDecompress::None)
            .map_err(|_| CompressionError::Corrupt {
                codec: CompressionType::Zlib,
            })?;
        let read = usize::try_from(decoder.total_in() - read_before).unwrap_or(usize::MAX);
        let wrote = usize::try_from(decoder.total_out() - written_before).unwrap_or(usize::MAX);
        written += wrote;
        input = input.get(read..).unwrap_or_default();
        room = room.get_mut(wrote..).unwrap_or_default();
        if status == Status::StreamEnd || room.is_empty() || (read == 0 && wrote == 0) {
            return Ok(written);
        }
    }
}

fn consumed(decoder: &Decompress) -> usize {
    usize::try_from(decoder.total_in()).unwrap_or(usize::MAX)
}

fn exactly(
    codec: CompressionType,
    output: Vec<u8>,
    written: usize,
) -> Result<Vec<u8>, CompressionError> {
    if written == output.len() {
        Ok(output)
    } else {
        let claimed = output.len();
        Err(CompressionError::SizeMismatch {
            codec,
            claimed,
            actual: Some(written),
        })
    }
}

/// Why a block could not be compressed or decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// The block is larger than the caller takes.
    #[error("{size} bytes uncompressed are more than the limit of {limit} bytes")]
    TooLarge {
        /// The claimed size in bytes; without compression the real one.
        size: usize,
        /// The caller's limit in bytes.
        limit: usize,
    },
    /// The claim is more than the codec can make of so little data.
    #[error("{compressed} bytes of {codec:?} cannot hold the claimed {claimed} bytes")]
    Implausible {
        /// The codec.
        codec: CompressionType,
        /// The claimed size in bytes.
        claimed: u32,
        /// The length of the compressed data in bytes.
        compressed: usize,
    },
    /// The block holds another number of bytes than claimed.
    #[error("{codec:?} block does not hold the claimed {claimed} bytes")]
    SizeMismatch {
        /// The codec.
        codec: CompressionType,
        /// The claimed size in bytes.
        claimed: usize,
        /// The real size in bytes where it is known: not when the block is longer than claimed.
        actual: Option<usize>,
    },
    /// The data is no block of this codec.
    #[error("corrupt {codec:?} block")]
    Corrupt {
        /// The codec.
        codec: CompressionType,
    },
    /// The codec failed to compress.
    #[error("{codec:?} encoder failed")]
    Encoder {
        /// The codec.
        codec: CompressionType,
    },
}

/// What a decoder may allocate besides its output, in bytes: the contexts of ZSTD and the window of ZLIB.
pub const DECODER_STATE_MAX: usize = 256 * 1024;

#[cfg(test)]
#[path = "compression_tests.rs"]
mod tests;
