//! Where the schemas of a topic are: `/schemas/<tenant>/<namespace>/<topic>`, protobuf (`SchemaStorageFormat` of Apache Pulsar's
//! broker). The schemas themselves are entries of ledgers.

use bytes::Bytes;

use crate::metadata::protobuf::protobuf_messages;

protobuf_messages! {
    /// All versions of a topic's schema.
    pub struct SchemaLocator {
        /// The latest one.
        1 info: SchemaIndexEntry;
        /// All that are in the ledger of the latest one, oldest first.
        2 index: Vec<SchemaIndexEntry>;
    }

    /// One version.
    pub struct SchemaIndexEntry {
        /// Counts from 0.
        1 version: i64;
        /// The entry that holds it.
        2 position: SchemaPosition;
        /// SHA-256 of the schema's data.
        3 hash: Bytes;
    }

    /// An entry of a ledger.
    pub struct SchemaPosition {
        /// The ledger.
        1 ledger_id: i64;
        /// The entry.
        2 entry_id: i64;
    }
}
