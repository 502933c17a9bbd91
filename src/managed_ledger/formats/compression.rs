//! Values of nodes, compressed or not.
//!
//! With `managedLedgerInfoCompressionType` or `managedCursorInfoCompressionType` Apache Pulsar compresses values that are longer than
//! a threshold (`MetaStoreImpl`): `u16` 0x4778, `u32` length of the header, the header, the compressed message. A bare message
//! never begins so: 0x47 would be a field of a wire type that does not exist. Either form is read whatever the setting is.

use bytes::{BufMut, Bytes, BytesMut};

use super::CompressionHeader;
use crate::metadata::{Message, MessageError};
use crate::protocol::compression::{CompressionError, compress, decompress};
use crate::protocol::proto::pulsar::CompressionType;

/// When a value is compressed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCompression {
    /// With which codec. `CompressionType::None`: never.
    pub codec: CompressionType,
    /// Only what is longer than so many bytes.
    pub threshold: usize,
}

impl NodeCompression {
    /// Values are never compressed.
    pub const NEVER: Self = Self {
        codec: CompressionType::None,
        threshold: 0,
    };
}

/// Why a value is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It is no such message.
    #[error("it is no such message: {0}")]
    Message(#[from] MessageError),
    /// It begins as a compressed value does, and its header does not fit it.
    #[error("its compression header does not fit it")]
    Header,
    /// It names a codec that is not known.
    #[error("it is compressed with the unknown codec {0}")]
    Codec(i32),
    /// It does not decompress.
    #[error("it does not decompress: {0}")]
    Compression(#[from] CompressionError),
}

/// Reads the value of a node.
///
/// # Errors
/// See [`FormatError`].
pub fn decode_node<M: Message>(value: &Bytes) -> Result<M, FormatError> {
    let Some(rest) = value.strip_prefix(&MAGIC) else {
        return Ok(M::decode(value)?);
    };
    let (len, rest) = rest.split_first_chunk::<4>().ok_or(FormatError::Header)?;
    let len = usize::try_from(u32::from_be_bytes(*len)).map_err(|_| FormatError::Header)?;
    let (header, compressed) = rest.split_at_checked(len).ok_or(FormatError::Header)?;
    let header = CompressionHeader::decode(header)?;
    let codec = codec(header.compression_type)?;
    let size = u32::try_from(header.uncompressed_size).map_err(|_| FormatError::Header)?;
    let message = decompress(codec, &value.slice_ref(compressed), size, UNCOMPRESSED_MAX)?;
    Ok(M::decode(&message)?)
}

/// Writes the value of a node.
///
/// # Errors
/// When the codec fails, which the value alone cannot cause.
pub fn encode_node<M: Message>(
    message: &M,
    compression: NodeCompression,
) -> Result<Bytes, FormatError> {
    let bare = Bytes::from(message.encode());
    let number = match compression.codec {
        CompressionType::None => return Ok(bare),
        CompressionType::Lz4 => 1,
        CompressionType::Zlib => 2,
        CompressionType::Zstd => 3,
        CompressionType::Snappy => 4,
    };
    // What cannot be read again is not compressed.
    let Ok(uncompressed_size) = i32::try_from(bare.len()) else {
        return Ok(bare);
    };
    if bare.len() <= compression.threshold || bare.len() > UNCOMPRESSED_MAX {
        return Ok(bare);
    }
    let header = CompressionHeader {
        compression_type: number,
        uncompressed_size,
        ..CompressionHeader::default()
    };
    let header = header.encode();
    let compressed = compress(compression.codec, &bare)?;
    let mut value = BytesMut::with_capacity(MAGIC.len() + 4 + header.len() + compressed.len());
    value.put_slice(&MAGIC);
    value.put_u32(u32::try_from(header.len()).map_err(|_| FormatError::Header)?);
    value.put_slice(&header);
    value.put_slice(&compressed);
    Ok(value.freeze())
}

/// The numbers of `MLDataFormats.CompressionType` are those of messages, with another name for none.
fn codec(number: i32) -> Result<CompressionType, FormatError> {
    match number {
        0 => Ok(CompressionType::None),
        1 => Ok(CompressionType::Lz4),
        2 => Ok(CompressionType::Zlib),
        3 => Ok(CompressionType::Zstd),
        4 => Ok(CompressionType::Snappy),
        other => Err(FormatError::Codec(other)),
    }
}

const MAGIC: [u8; 2] = [0x47, 0x78];
/// Longest value after decompression, in bytes: far beyond what a topic with a million ledgers has.
const UNCOMPRESSED_MAX: usize = 64 * 1024 * 1024;
