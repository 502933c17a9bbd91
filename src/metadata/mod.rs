//! Small shared state: a tree of versioned values, and what Apache Pulsar keeps where in it.
//!
//! Owns the trait [`MetadataStore`] with its engines, the paths and the values of Pulsar's tree. Knows no topic and no
//! broker at work: it only reads and writes what they keep. It never interprets a value when it stores one.
//!
//! Start at [`MetadataStore`]; callers use it through [`LocalMetadata`] and [`ConfigurationMetadata`], which take only the
//! paths that belong to them ([`paths`]). Engines: [`MemoryMetadata`], [`EmbeddedMetadata`].
//!
//! # What every engine keeps
//!
//! `tests/metadata_contract.rs` runs these on every engine, ZooKeeper among them.
//!
//! - **M1** A node that was made can be read until it is deleted; its version is 0 and grows by 1 with each put. One that is made
//!   again begins at 0 again.
//! - **M2** A put that expects a version changes nothing unless the node has it: [`MetadataError::BadVersion`], or
//!   [`MetadataError::NotFound`] where there is no node. Of several that expect the same version one succeeds.
//! - **M3** What expects no node ([`Expected::Absent`], create) fails with [`MetadataError::AlreadyExists`] where there is one.
//! - **M4** Nodes missing above a node that is made are made as well: persistent, empty.
//! - **M5** [`MetadataStore::children`] gives the names directly below, sorted, and none where there is no node.
//! - **M6** [`MetadataStore::delete`] fails with [`MetadataError::NotFound`], [`MetadataError::BadVersion`] or
//!   [`MetadataError::NotEmpty`] and then changes nothing.
//! - **M7** [`MetadataStore::delete_recursive`] leaves nothing at or below the path and changes nothing beside it. It is no error
//!   when there is nothing. The root cannot be deleted.
//! - **M8** A sequential node's name ends in a number of at least ten digits: how many nodes were made directly below the same
//!   parent before. Numbers rise, also over deletions, and never come twice.
//! - **M9** Ephemeral nodes are seen by all, and are gone when their session ends; nothing else is. Nothing can be below one:
//!   [`MetadataError::BelowEphemeral`].
//! - **M10** A session sees its own changes at once, in order. After [`MetadataStore::sync`] it sees all that were made before.
//! - **M11** A watch is told of every change to what it covers, in order, after the change can be read: a node made or deleted
//!   (and its parent: `ChildrenChanged`), a value set. What it cannot be told becomes one [`Event::Lagged`].
//! - **M12** The session's epoch grows when its ephemeral nodes are lost; a state change is seen by all receivers.
//! - **M13** What was answered with success is there after a restart, where the engine is a durable one.

mod clock;
mod embedded;
mod encoding;
mod memory;
mod node_path;
pub mod paths;
pub(crate) mod protobuf;
mod session;
mod sides;
mod store;
mod tree;
pub mod values;
mod watch;

pub use clock::{Clock, SystemClock};
pub use embedded::{
    AppendError, ChangeLog, EmbeddedMetadata, JournalLog, KeyChange, LogProgress, MemoryLog,
    RecordError, RecoverError, Room, StoredNode,
};
pub use encoding::{decode_name, encode_name};
pub use memory::{MemoryMetadata, MemorySession};
pub use node_path::{NodePath, PATH_LEN_MAX, PathError};
pub(crate) use protobuf::protobuf_messages;
pub use protobuf::{Message, MessageError, UnknownFields};
pub use session::{Session, SessionState};
pub use sides::{
    Configuration, ConfigurationMetadata, ConfigurationPath, Local, LocalMetadata, LocalPath, Side,
    SideMetadata, SidePath,
};
pub use store::{
    CreateMode, Created, Expected, MetadataError, MetadataStore, Node, Owner, Stat, StoreFuture,
    Version,
};
pub use tree::VALUE_LEN_MAX;
pub use watch::{Event, WATCH_EVENTS_MAX, Watch, WatchScope, WatchSender};
