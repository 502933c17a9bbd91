//! Opening and deleting logs.
//!
//! Opening leaves the list of ledgers as the stores have them: ledgers whose end is not listed are recovered, which fences whoever
//! wrote them, and their ends are written with the version that was read, which fences whoever wants to write the list. Ledgers that say
//! they are this log's and are not listed are deleted. Deleting marks the list first, so that it is finished whenever it is begun.

use super::event::LogEnd;
use super::list::{Closed, LedgerList};
use super::settings::LogSettings;
use super::state::{LogState, ledger_id, position_id};
use super::{LogContext, LogFailure, ManagedLedger};
use crate::ledger::{CursorName, LedgerError};
use crate::managed_ledger::formats::{FormatError, ManagedCursorInfo, decode_node};
use crate::metadata::{Expected, LocalPath, MetadataError, PathError, Version, decode_name, paths};
use crate::naming::TopicName;

/// Why a log was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such log.
    #[error("there is no such topic")]
    NotFound,
    /// No store takes this name.
    #[error("the topic's name cannot be stored: {0}")]
    Name(#[from] PathError),
    /// What is stored of it is not what it should be.
    #[error("the list of ledgers cannot be read: {0}")]
    List(#[from] FormatError),
    /// Somebody else opens or has it.
    #[error("fenced: somebody else has taken over the log")]
    Fenced,
    /// A store failed.
    #[error(transparent)]
    Store(#[from] LogFailure),
    /// It was being deleted, and could not be.
    #[error("it is being deleted: {0}")]
    Deleting(#[from] DeleteError),
}

/// Why a log was not deleted, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// What is stored of it is not what it should be: what belongs to it is not known.
    #[error("what is stored of it cannot be read: {0}")]
    Format(#[from] FormatError),
    /// No store takes its name, or a cursor's.
    #[error("a name cannot be stored: {0}")]
    Name(#[from] PathError),
    /// Somebody else has taken it over.
    #[error("fenced: somebody else has taken over the log")]
    Fenced,
    /// A store failed.
    #[error(transparent)]
    Store(#[from] LogFailure),
}

/// Custom metadata of a ledger: the log that it belongs to.
pub(super) const OWNER: &str = "pulsar/managed-ledger";
/// Custom metadata of a ledger: the cursor that it belongs to. Such a ledger is none of the log's own.
const CURSOR: &str = "pulsar/cursor";
/// A property of a list of ledgers: the topic is being deleted.
const DELETED_PROPERTY: &str = "pulsegate.deleted";

impl ManagedLedger {
    /// Opens the log of a topic or partition, and makes it when there is none and `create` says so.
    ///
    /// What others appended and was not confirmed to them is kept if it is found. Cancelled, it may have been made.
    ///
    /// # Errors
    /// It is not open.
    pub async fn open(
        context: &LogContext,
        topic: &TopicName,
        settings: LogSettings,
        create: bool,
    ) -> Result<Self, OpenError> {
        let path = paths::managed_ledger(topic)?;
        let metadata = &context.metadata;
        let mut node = metadata.get(&path).await.map_err(LogFailure::from)?;
        if let Some(found) = &node
            && LedgerList::decode(&found.value)?
                .property(DELETED_PROPERTY)
                .is_some()
        {
            delete_log(context, topic, Some(found.stat.version)).await?;
            node = None;
        }
        if node.is_none() && !create {
            return Err(OpenError::NotFound);
        }
        let (list, version) = match node {
            Some(node) => {
                let list = LedgerList::decode(&node.value)?;
                recover(context, &path, &settings, list, node.stat.version).await?
            }
            None => (LedgerList::default(), None),
        };
        delete_unlisted(context, &path, Some(&list)).await?;
        let state = LogState::new(settings, list, version);
        let mut log = Self::new(context.clone(), topic.clone(), path, state);
        let mut out = Vec::new();
        log.state.start(&mut out);
        let now = context.clock.unix_millis();
        log.perform(out, now);
        log.settled().await;
        if version.is_none() && !log.state.is_open() {
            return Err(match log.state.end().cloned() {
                Some(LogEnd::Failed(error)) => error.into(),
                Some(_) => OpenError::Fenced,
                None => LogFailure::NoLedger.into(),
            });
        }
        Ok(log)
    }

    /// Deletes a log that nobody has open. It is no error when there is none. Cancelled or failed, it is deleted when it is opened or
    /// deleted the next time.
    ///
    /// # Errors
    /// It is not deleted, or not all of it.
    pub async fn delete_closed(context: &LogContext, topic: &TopicName) -> Result<(), DeleteError> {
        delete_log(context, topic, None).await
    }
}

/// The name of a log by its path.
pub(super) fn log_name(path: &LocalPath) -> &str {
    let path = path.node_path().as_str();
    path.strip_prefix("/managed-ledgers/").unwrap_or(path)
}

/// Finds out how ledgers ended of which that is not listed, and lists it.
async fn recover(
    context: &LogContext,
    path: &LocalPath,
    settings: &LogSettings,
    mut list: LedgerList,
    version: Version,
) -> Result<(LedgerList, Option<Version>), OpenError> {
    let mut changed = false;
    let mut missing = Vec::new();
    for ledger in &mut list.ledgers {
        let (None, Some(id)) = (ledger.closed, ledger_id(ledger.id)) else {
            continue;
        };
        changed = true;
        let at = context.clock.unix_millis();
        match context.ledgers.recover(id).await {
            Ok(sealed) => {
                let last = sealed
                    .last_entry
                    .map_or(-1, |last| i64::try_from(last).unwrap_or(i64::MAX - 1));
                ledger.closed = Some(Closed {
                    entries: last + 1,
                    bytes: i64::try_from(sealed.length).unwrap_or(i64::MAX),
                    at,
                });
            }
            // It was listed by a broker that makes ledgers later than it lists them, or deleted with the topic.
            Err(LedgerError::NoLedger(_)) => {
                missing.push(ledger.id);
                ledger.closed = Some(Closed {
                    entries: 0,
                    bytes: 0,
                    at,
                });
            }
            Err(error) => return Err(LogFailure::from(error).into()),
        }
    }
    if !changed {
        return Ok((list, Some(version)));
    }
    if !missing.is_empty() {
        tracing::warn!("ledgers {missing:?} of {path} are listed and do not exist");
    }
    let gone = list.remove_empty();
    let value = list.encode(settings.compression)?;
    let written = context
        .metadata
        .put(path, value, Expected::Version(version))
        .await;
    let version = match written {
        Ok(stat) => stat.version,
        Err(MetadataError::BadVersion(_) | MetadataError::NotFound(_)) => {
            return Err(OpenError::Fenced);
        }
        Err(error) => return Err(LogFailure::from(error).into()),
    };
    for id in gone.into_iter().filter_map(ledger_id) {
        context.ledgers.delete(id).await.map_err(LogFailure::from)?;
    }
    Ok((list, Some(version)))
}

/// Deletes ledgers of the log that its list does not name: what a crash left between making one and listing it, or between taking one
/// off the list and deleting it. Without a list, those of its cursors as well.
async fn delete_unlisted(
    context: &LogContext,
    path: &LocalPath,
    list: Option<&LedgerList>,
) -> Result<(), LogFailure> {
    let store = &context.ledgers;
    let ours = store.find(OWNER, log_name(path).as_bytes()).await?;
    for (id, options) in ours {
        let is_cursor = options
            .custom_metadata
            .iter()
            .any(|(name, _)| name == CURSOR);
        let stays = list.is_some_and(|list| is_cursor || list.contains(position_id(id)));
        if !stays {
            store.delete(id).await?;
        }
    }
    Ok(())
}

/// Deletes a log. With a version: unless its list has another.
pub(super) async fn delete_log(
    context: &LogContext,
    topic: &TopicName,
    version: Option<Version>,
) -> Result<(), DeleteError> {
    let path = &paths::managed_ledger(topic)?;
    let metadata = &context.metadata;
    let node = metadata.get(path).await.map_err(LogFailure::from)?;
    let mut list = LedgerList::default();
    if let Some(node) = node {
        let version = version.unwrap_or(node.stat.version);
        list = LedgerList::decode(&node.value)?;
        list.set_property(DELETED_PROPERTY, Some("true".to_owned()));
        let value = list.encode(crate::managed_ledger::formats::NodeCompression::NEVER)?;
        let marked = metadata.put(path, value, Expected::Version(version)).await;
        match marked {
            Ok(_) => {}
            Err(MetadataError::BadVersion(_) | MetadataError::NotFound(_)) => {
                return Err(DeleteError::Fenced);
            }
            Err(error) => return Err(LogFailure::from(error).into()),
        }
    }
    for id in list
        .ledgers
        .iter()
        .filter_map(|ledger| ledger_id(ledger.id))
    {
        context.ledgers.delete(id).await.map_err(LogFailure::from)?;
    }
    delete_unlisted(context, path, None).await?;
    delete_cursors(context, topic, path).await?;
    metadata
        .delete_recursive(path)
        .await
        .map_err(LogFailure::from)?;
    Ok(())
}

async fn delete_cursors(
    context: &LogContext,
    topic: &TopicName,
    path: &LocalPath,
) -> Result<(), DeleteError> {
    let metadata = &context.metadata;
    let children = metadata.children(path).await.map_err(LogFailure::from)?;
    for child in children {
        let below = path.child(&child)?;
        let node = metadata.get(&below).await.map_err(LogFailure::from)?;
        let value = node
            .map(|node| node.value)
            .filter(|value| !value.is_empty());
        if let Some(value) = value {
            let info: ManagedCursorInfo = decode_node(&value)?;
            if let Some(id) = ledger_id(info.cursors_ledger_id) {
                context.ledgers.delete(id).await.map_err(LogFailure::from)?;
            }
        }
        if let Some(cursors) = &context.cursors {
            let name = CursorName {
                topic: topic.to_string(),
                // A name that is not encoded is one that somebody wrote by hand.
                cursor: decode_name(&child).unwrap_or(child),
            };
            cursors
                .delete_cursor(&name)
                .await
                .map_err(LogFailure::from)?;
        }
    }
    Ok(())
}
