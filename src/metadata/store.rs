//! What a metadata store offers: the trait, and the types of its answers.

use std::fmt;
use std::pin::Pin;

use bytes::Bytes;
use tokio::sync::watch;

use super::{NodePath, Session, Watch, WatchScope};

/// What a store answers later. Calls take effect in the order in which they were made, once they are polled.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, MetadataError>> + Send + 'a>>;

/// A tree of small values with versions, shared by those who are connected to it. [`super`] numbers what every engine
/// keeps (M1..).
///
/// All futures are cancel-safe in so far as the store stays intact; a change whose future is dropped may or may not have
/// happened.
pub trait MetadataStore: fmt::Debug + Send + Sync {
    /// The node at `path`, if there is one.
    fn get<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Option<Node>>;

    /// The names of the nodes directly below `path`, sorted. None when there is no such node.
    fn children<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, Vec<String>>;

    /// Sets the value of a node, or makes a persistent node with it, as `expected` allows.
    fn put<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        expected: Expected,
    ) -> StoreFuture<'a, Stat>;

    /// Makes a node that must not exist yet. The path in the answer differs from `path` when `mode` is a sequential one.
    fn create<'a>(
        &'a self,
        path: &'a NodePath,
        value: Bytes,
        mode: CreateMode,
    ) -> StoreFuture<'a, Created>;

    /// Deletes a node that has none below it, when it has this version; without one, whatever it has.
    fn delete<'a>(&'a self, path: &'a NodePath, expected: Option<Version>) -> StoreFuture<'a, ()>;

    /// Deletes a node and all below it, deepest first. It is no error when there is none. Not the root.
    fn delete_recursive<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, ()>;

    /// After this, reads see at least what was there when it was called, whoever wrote it.
    fn sync<'a>(&'a self, path: &'a NodePath) -> StoreFuture<'a, ()>;

    /// What happens from now on to `path`, or also to all below it.
    fn watch<'a>(&'a self, path: &'a NodePath, scope: WatchScope) -> StoreFuture<'a, Watch>;

    /// How this connection to the store stands. Ends with the store.
    fn session(&self) -> watch::Receiver<Session>;
}

/// A node with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The value. Empty for nodes that were only made because something is below them.
    pub value: Bytes,
    /// What is known of it.
    pub stat: Stat,
}

/// What is known of a node beside its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// 0 when the node is made, 1 more with every change of its value.
    pub version: Version,
    /// When the node was made, in milliseconds since 1970.
    pub created: i64,
    /// When its value was set last, in milliseconds since 1970.
    pub modified: i64,
    /// Whose node it is.
    pub owner: Owner,
}

/// How long a node lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Until it is deleted.
    Nobody,
    /// Until it is deleted or this session ends.
    ThisSession,
    /// Until it is deleted or the session of somebody else ends.
    OtherSession,
}

/// The version of a node's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u32);

/// What a put wants to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Anything, or nothing.
    Any,
    /// No node.
    Absent,
    /// A node of this version.
    Version(Version),
}

/// What kind of node is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// It lives until it is deleted.
    Persistent,
    /// It ends with the session. Nothing can be below it.
    Ephemeral,
    /// As persistent; a number follows the name.
    PersistentSequential,
    /// As ephemeral; a number follows the name.
    EphemeralSequential,
}

impl CreateMode {
    /// Whether the node ends with the session.
    #[must_use]
    pub const fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }

    /// Whether a number follows the name.
    #[must_use]
    pub const fn is_sequential(self) -> bool {
        matches!(self, Self::PersistentSequential | Self::EphemeralSequential)
    }
}

/// A node that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Where it is.
    pub path: NodePath,
    /// What is known of it.
    pub stat: Stat,
}

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// There is no such node.
    #[error("{0} does not exist")]
    NotFound(NodePath),
    /// There is such a node.
    #[error("{0} exists already")]
    AlreadyExists(NodePath),
    /// The node has another version than expected: somebody else changed it.
    #[error("{0} has another version than expected")]
    BadVersion(NodePath),
    /// There are nodes below it.
    #[error("{0} has nodes below it")]
    NotEmpty(NodePath),
    /// The node above ends with a session, so nothing can be below it.
    #[error("{0} is ephemeral and can have nothing below it")]
    BelowEphemeral(NodePath),
    /// The root cannot be made or deleted.
    #[error("the root stays as it is")]
    Root,
    /// The value is longer than the store takes.
    #[error("a value of {len} bytes is too long, at most {max} are taken")]
    ValueTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes taken.
        max: usize,
    },
    /// There is no room. Nothing was changed; deletions still work.
    #[error("the metadata store is full")]
    Full,
    /// The connection is lost: whether the change happened is not known. It may come back.
    #[error("the connection to the metadata store is lost")]
    ConnectionLost,
    /// The session has ended, and its ephemeral nodes with it.
    #[error("the session with the metadata store has ended")]
    SessionExpired,
    /// The store does not work any more. Whether the change happened is not known.
    #[error("the metadata store has failed")]
    Failed,
}
