//! What stands in the nodes of managed ledgers and cursors, and in cursor ledgers: Apache Pulsar's `MLDataFormats`.
//!
//! - [`ManagedLedgerInfo`] is the value of a managed ledger's node, [`ManagedCursorInfo`] that of a cursor's. Both may be
//!   compressed ([`decode_node`], [`encode_node`]).
//! - [`PositionInfo`] is an entry of a cursor ledger, never compressed.
//!
//! The numbers are those of `proto/MLDataFormats.proto`. Fields of later versions are kept, which is why these are not the types
//! generated from there; tests compare the two.

mod compression;
mod messages;

pub use compression::{FormatError, NodeCompression, decode_node, encode_node};
pub use messages::{
    BatchedEntryDeletionIndexInfo, CompressionHeader, KeyValue, LedgerInfo, LongListMap,
    LongProperty, ManagedCursorInfo, ManagedLedgerInfo, MessageRange, NestedPositionInfo,
    OffloadContext, OffloadDriverMetadata, OffloadSegment, PositionInfo, StringProperty,
};
