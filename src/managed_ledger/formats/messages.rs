//! The messages. Times are milliseconds since 1970, sizes are bytes.

use crate::metadata::protobuf_messages;

protobuf_messages! {
    /// The ledgers of a topic: the value of its managed ledger's node.
    pub struct ManagedLedgerInfo {
        /// In the order of writing.
        1 ledgers: Vec<LedgerInfo>;
        /// Present: the topic is terminated, and this was its last entry.
        2 terminated_position: Option<NestedPositionInfo>;
        /// The topic's properties.
        3 properties: Vec<KeyValue>;
    }

    /// One ledger of a topic.
    pub struct LedgerInfo {
        /// The ledger.
        1 ledger_id: i64;
        /// Absent until the ledger is closed, as is the size; the time is 0 then.
        2 entries: Option<i64>;
        /// Bytes of its entries.
        3 size: Option<i64>;
        /// When it was closed.
        4 timestamp: Option<i64>;
        /// Where it was copied to.
        5 offload_context: Option<OffloadContext>;
    }

    /// A position.
    pub struct NestedPositionInfo {
        /// The ledger.
        1 ledger_id: i64;
        /// The entry; -1 stands before the first one.
        2 entry_id: i64;
    }

    /// A name and its value.
    pub struct KeyValue {
        /// The name.
        1 key: String;
        /// The value.
        2 value: String;
    }

    /// Where a ledger was copied to for tiered storage. The two halves of a UUID name the copy.
    pub struct OffloadContext {
        /// Upper half.
        1 uid_msb: Option<i64>;
        /// Lower half.
        2 uid_lsb: Option<i64>;
        /// Whether the copy is complete.
        3 complete: Option<bool>;
        /// Whether the ledger itself is gone.
        4 bookkeeper_deleted: Option<bool>;
        /// When it was copied.
        5 timestamp: Option<i64>;
        /// Which driver has it.
        6 driver_metadata: Option<OffloadDriverMetadata>;
        /// Parts of the copy.
        7 offload_segments: Vec<OffloadSegment>;
    }

    /// A part of a copy.
    pub struct OffloadSegment {
        /// Upper half.
        1 uid_msb: Option<i64>;
        /// Lower half.
        2 uid_lsb: Option<i64>;
        /// Whether it is complete.
        3 complete: Option<bool>;
        /// When it was begun.
        4 assigned_timestamp: Option<i64>;
        /// When it was complete.
        5 offloaded_timestamp: Option<i64>;
        /// Its last entry.
        6 end_entry_id: Option<i64>;
        /// Which driver has it.
        7 driver_metadata: Option<OffloadDriverMetadata>;
    }

    /// A driver of tiered storage.
    pub struct OffloadDriverMetadata {
        /// Its name.
        1 name: String;
        /// Its settings for this copy.
        2 properties: Vec<KeyValue>;
    }

    /// A cursor: the value of its node.
    pub struct ManagedCursorInfo {
        /// The ledger whose last entry tells the position; -1: there is none, and the position is the one here.
        1 cursors_ledger_id: i64;
        /// Everything up to here is acknowledged. Beside a cursor ledger it is where the cursor was when that was made.
        2 mark_delete_ledger_id: Option<i64>;
        /// See there.
        3 mark_delete_entry_id: Option<i64>;
        /// What is acknowledged beyond.
        4 individual_deleted_messages: Vec<MessageRange>;
        /// Properties of the position.
        5 properties: Vec<LongProperty>;
        /// When it was last used.
        6 last_active: Option<i64>;
        /// Batches of which only some messages are acknowledged.
        7 batched_entry_deletion_index_info: Vec<BatchedEntryDeletionIndexInfo>;
        /// Properties of the cursor.
        8 cursor_properties: Vec<StringProperty>;
    }

    /// An entry of a cursor ledger: the position, and what is acknowledged beyond. The last entry counts.
    pub struct PositionInfo {
        /// Everything up to here is acknowledged.
        1 ledger_id: i64;
        /// See there.
        2 entry_id: i64;
        /// What is acknowledged beyond, as ranges.
        3 individual_deleted_messages: Vec<MessageRange>;
        /// Properties of the position.
        4 properties: Vec<LongProperty>;
        /// Batches of which only some messages are acknowledged.
        5 batched_entry_deletion_index_info: Vec<BatchedEntryDeletionIndexInfo>;
        /// What is acknowledged beyond, as bit sets by ledger: takes the place of the ranges, or stands beside them.
        6 individual_deleted_message_ranges: Vec<LongListMap>;
    }

    /// Positions from behind the lower end to the upper end. The lower end is either of the same ledger or, when the range
    /// begins with a ledger's first entry, entry -1 of it.
    pub struct MessageRange {
        /// Not in the range.
        1 lower_endpoint: NestedPositionInfo;
        /// In the range.
        2 upper_endpoint: NestedPositionInfo;
    }

    /// A batch of which only some messages are acknowledged.
    pub struct BatchedEntryDeletionIndexInfo {
        /// The entry.
        1 position: NestedPositionInfo;
        /// Bit set, 64 bits a word, lowest first: the messages that are not acknowledged.
        2 delete_set: Vec<i64>;
    }

    /// A bit set with a key, 64 bits a word, lowest first.
    pub struct LongListMap {
        /// The ledger.
        1 key: i64;
        /// Its entries.
        2 values: Vec<i64>;
    }

    /// A name and a number.
    pub struct LongProperty {
        /// The name.
        1 name: String;
        /// The number.
        2 value: i64;
    }

    /// A name and a text.
    pub struct StringProperty {
        /// The name.
        1 name: String;
        /// The text.
        2 value: String;
    }

    /// What stands before a compressed value: Pulsar's `ManagedLedgerInfoMetadata` and `ManagedCursorInfoMetadata`.
    pub struct CompressionHeader {
        /// The codec: 1 LZ4, 2 ZLIB, 3 ZSTD, 4 SNAPPY.
        1 compression_type: i32;
        /// Bytes before compression.
        2 uncompressed_size: i32;
    }
}
