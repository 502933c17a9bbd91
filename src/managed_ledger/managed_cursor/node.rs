//! The node of a cursor: `ManagedCursorInfo` at Apache Pulsar's path, changed by its version alone.

use std::pin::Pin;
use std::sync::Arc;

use super::super::formats::{ManagedCursorInfo, decode_node, encode_node};
use super::{CursorError, CursorFailure, CursorStorage};
use crate::metadata::{Expected, LocalPath, MetadataError, UnknownFields, Version};

/// Something that takes a while, kept until it is done.
pub(super) type Step<T> = Pin<Box<dyn Future<Output = Result<T, CursorFailure>> + Send>>;

/// The node of an open cursor.
#[derive(Debug, Clone)]
pub(super) struct CursorNode {
    storage: Arc<CursorStorage>,
    path: LocalPath,
    version: Version,
    /// Fields of later versions: they are written again.
    unknown: UnknownFields,
}

impl CursorNode {
    /// Makes the node, which must not be there.
    pub(super) async fn create(
        storage: Arc<CursorStorage>,
        path: LocalPath,
        info: ManagedCursorInfo,
    ) -> Result<Self, CursorError> {
        let value = encode_node(&info, storage.compression)?;
        let made = storage.metadata.put(&path, value, Expected::Absent).await;
        let version = match made {
            Ok(stat) => stat.version,
            Err(MetadataError::AlreadyExists(_)) => return Err(CursorError::AlreadyExists),
            Err(error) => return Err(CursorFailure::from(error).into()),
        };
        Ok(Self {
            storage,
            path,
            version,
            unknown: UnknownFields::default(),
        })
    }

    /// Whether there is one.
    pub(super) async fn exists(
        storage: &CursorStorage,
        path: &LocalPath,
    ) -> Result<bool, CursorError> {
        let node = storage.metadata.get(path).await;
        Ok(node.map_err(CursorFailure::from)?.is_some())
    }

    /// Reads the node.
    pub(super) async fn read(
        storage: Arc<CursorStorage>,
        path: LocalPath,
    ) -> Result<(Self, ManagedCursorInfo), CursorError> {
        let node = storage.metadata.get(&path).await;
        let node = node.map_err(CursorFailure::from)?;
        let node = node.ok_or(CursorError::NotFound)?;
        let info: ManagedCursorInfo = decode_node(&node.value)?;
        let known = Self {
            storage,
            path,
            version: node.stat.version,
            unknown: info.unknown.clone(),
        };
        Ok((known, info))
    }

    /// Deletes a node; what stood in it, when there was one and it could be read.
    pub(super) async fn delete(
        storage: &CursorStorage,
        path: &LocalPath,
    ) -> Result<Option<ManagedCursorInfo>, CursorError> {
        loop {
            let node = storage.metadata.get(path).await;
            let Some(node) = node.map_err(CursorFailure::from)? else {
                return Ok(None);
            };
            let deleted = storage.metadata.delete(path, Some(node.stat.version)).await;
            match deleted {
                Ok(()) => return Ok(decode_node(&node.value).ok()),
                // Its owner wrote it in between: the ledger that it names now is the one to delete.
                Err(MetadataError::BadVersion(_) | MetadataError::NotFound(_)) => {}
                Err(error) => return Err(CursorFailure::from(error).into()),
            }
        }
    }

    /// Writes the node; it is to have the version that is known. The new one is to be given to [`Self::written`].
    pub(super) fn write(&self, mut info: ManagedCursorInfo) -> Step<Version> {
        let storage = Arc::clone(&self.storage);
        let (path, version) = (self.path.clone(), self.version);
        info.unknown = self.unknown.clone();
        Box::pin(async move {
            let value = encode_node(&info, storage.compression)?;
            let expected = Expected::Version(version);
            let written = storage.metadata.put(&path, value.clone(), expected).await;
            match written {
                Ok(stat) => Ok(stat.version),
                // Whether it was written is not known.
                Err(error @ MetadataError::ConnectionLost) => {
                    match storage.metadata.get(&path).await {
                        Ok(Some(node)) if node.value == value => Ok(node.stat.version),
                        _ => Err(error.into()),
                    }
                }
                Err(error) => Err(error.into()),
            }
        })
    }

    /// The node has this version now.
    pub(super) fn written(&mut self, version: Version) {
        self.version = version;
    }
}
