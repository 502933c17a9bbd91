//! The two metadata stores of a cluster as two types, so that a path is never used on the wrong one.
//!
//! A cluster keeps what only it needs in its own store, and what several clusters may share in the configuration store. Often
//! that is one and the same; then both types hold the same store, and a mistake would show only where it is not.
//!
//! ```
//! # use pulsegate::metadata::{ConfigurationMetadata, LocalMetadata, paths};
//! async fn right(local: &LocalMetadata, configuration: &ConfigurationMetadata) {
//!     let _ = configuration.get(&paths::clusters()).await;
//!     let _ = local.get(&paths::brokers()).await;
//! }
//! ```
//!
//! ```compile_fail,E0308
//! # use pulsegate::metadata::{LocalMetadata, paths};
//! async fn wrong(local: &LocalMetadata) {
//!     let _ = local.get(&paths::clusters()).await;
//! }
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use super::{
    CreateMode, Created, Expected, MetadataError, MetadataStore, Node, NodePath, PathError,
    Session, Stat, Version, Watch, WatchScope,
};

/// One of the two stores.
pub trait Side: sealed::Sealed + Copy + fmt::Debug {}

/// The cluster's own store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Local;

/// The store that clusters may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Configuration;

impl Side for Local {}
impl Side for Configuration {}

mod sealed {
    /// There are two stores and no third.
    pub trait Sealed {}
    impl Sealed for super::Local {}
    impl Sealed for super::Configuration {}
}

/// A path in one of the two stores. [`super::paths`] makes them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidePath<S> {
    path: NodePath,
    side: PhantomData<S>,
}

/// A path in the cluster's own store.
pub type LocalPath = SidePath<Local>;
/// A path in the store that clusters may share.
pub type ConfigurationPath = SidePath<Configuration>;

impl<S: Side> SidePath<S> {
    /// Only [`super::paths`] knows which path belongs where.
    pub(super) fn new(path: NodePath) -> Self {
        Self {
            path,
            side: PhantomData,
        }
    }

    /// The path without its store.
    #[must_use]
    pub fn node_path(&self) -> &NodePath {
        &self.path
    }

    /// A path directly below, in the same store. Its name is taken as it is, as [`SideMetadata::children`] gives it.
    ///
    /// # Errors
    /// When it is no name.
    pub fn child(&self, name: &str) -> Result<Self, PathError> {
        self.path.child(name).map(Self::new)
    }
}

impl<S> fmt::Display for SidePath<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.path, f)
    }
}

/// One of the two stores. Cheap to clone. Each method is that of [`MetadataStore`] with its name, and as cancel-safe.
#[derive(Debug, Clone)]
pub struct SideMetadata<S> {
    store: Arc<dyn MetadataStore>,
    side: PhantomData<S>,
}

/// The cluster's own store.
pub type LocalMetadata = SideMetadata<Local>;
/// The store that clusters may share.
pub type ConfigurationMetadata = SideMetadata<Configuration>;

impl<S: Side> SideMetadata<S> {
    /// This store is the one of this side. It may be that of the other side as well.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        Self {
            store,
            side: PhantomData,
        }
    }

    /// The node at `path`, if there is one.
    ///
    /// # Errors
    /// See [`MetadataError`].
    pub async fn get(&self, path: &SidePath<S>) -> Result<Option<Node>, MetadataError> {
        self.store.get(&path.path).await
    }

    /// The names directly below `path`, sorted.
    ///
    /// # Errors
    /// See [`MetadataError`].
    pub async fn children(&self, path: &SidePath<S>) -> Result<Vec<String>, MetadataError> {
        self.store.children(&path.path).await
    }

    /// Sets the value of a node, or makes a persistent one, as `expected` allows.
    ///
    /// # Errors
    /// See [`MetadataError`].
    pub async fn put(
        &self,
        path: &SidePath<S>,
        value: Bytes,
        expected: Expected,
    ) -> Result<Stat, MetadataError> {
        self.store.put(&path.path, value, expected).await
    }

    /// Makes a node.
    ///
    /// # Errors
    /// See [`MetadataError`].
    pub async fn create(
        &self,
        path: &SidePath<S>,
        value: Bytes,
        mode: CreateMode,
    ) -> Result<Created, MetadataError> {
        self.store.create(&path.path, value, mode).await
    }

    /// Deletes a node without any below it.
    ///
    /// # Errors
    /// See [`MetadataError`].
    pub async fn delete(
        &self,
        path: &SidePath<S>,
        expected: Option<Version>,
    ) -> Result<(), MetadataError> {
        self.store.delete(&path.path, expected).await
    }

    /// Deletes a node and all below it.
    ///
    /// # Errors
    /// See [`MetadataError`].
    pub async fn delete_recursive(&self, path: &SidePath<S>) -> Result<(), MetadataError> {
        self.store.delete_recursive(&path.path).await
    }

    /// Waits until reads see what was there before this call.
    ///
    /// # Errors
    /// See [`MetadataError`].
    pub async fn sync(&self, path: &SidePath<S>) -> Result<(), MetadataError> {
        self.store.sync(&path.path).await
    }

    /// What happens to `path`, or also to all below it.
    ///
    /// # Errors
    /// See [`MetadataError`].
    pub async fn watch(
        &self,
        path: &SidePath<S>,
        scope: WatchScope,
    ) -> Result<Watch, MetadataError> {
        self.store.watch(&path.path, scope).await
    }

    /// How the connection to the store stands.
    #[must_use]
    pub fn session(&self) -> watch::Receiver<Session> {
        self.store.session()
    }
}
