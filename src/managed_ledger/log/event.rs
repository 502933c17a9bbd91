//! What goes into the state of a log and what comes out of it. Pure.

use std::ops::Range;

use bytes::Bytes;

use crate::ledger::{LedgerError, LedgerId, Sealed};
use crate::managed_ledger::Position;
use crate::metadata::{Expected, MetadataError, Version};

/// Why a log takes nothing more.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogEnd {
    /// It is terminated; this is its last entry.
    #[error("the topic is terminated")]
    Terminated(Position),
    /// Somebody else has taken it over. What was not confirmed may be stored or not.
    #[error("fenced: somebody else has taken over the log")]
    Fenced,
    /// It was closed, or deleted.
    #[error("the log is closed")]
    Closed,
    /// The store does not work any more. What was not confirmed may be stored or not.
    #[error("the log has failed: {0}")]
    Failed(LogFailure),
}

/// What made a log fail, or refuse something.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogFailure {
    /// Its ledgers.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Its list of ledgers.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A ledger could not be made a short time ago.
    #[error("no ledger could be made")]
    NoLedger,
    /// The log takes nothing more.
    #[error("the log has ended")]
    Ended,
}

/// Why an entry was not taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The log takes nothing more.
    #[error(transparent)]
    Ended(#[from] LogEnd),
    /// The store did not take it, or made no ledger for it; a later one may be taken.
    #[error(transparent)]
    Refused(#[from] LogFailure),
    /// A ledger could not be made a short time ago; that is tried again later.
    #[error("no ledger could be made a short time ago")]
    TryLater,
}

/// What happened to a log, in the order in which it happened.
#[derive(Debug, Clone)]
pub enum LogEvent {
    /// Entries are durable. The entry with the first of these numbers is at `first`, the others behind it in the same ledger.
    Confirmed {
        /// Their numbers, as [`super::ManagedLedger::append`] gave them.
        numbers: Range<u64>,
        /// Where they are.
        first: Position,
    },
    /// Entries that had been taken will not be stored after all; with [`AppendError::Ended`] they may be.
    Refused {
        /// Their numbers.
        numbers: Range<u64>,
        /// Why.
        error: AppendError,
    },
    /// A change of properties was written, or not.
    Properties {
        /// The number of the change.
        request: u64,
        /// Why it was not written.
        result: Result<(), LogFailure>,
    },
    /// The log could not be terminated; it takes entries again.
    NotTerminated(LogFailure),
    /// The log takes nothing more. Nothing comes behind this.
    Ended(LogEnd),
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Effect {
    /// Make a ledger: [`Input::Created`].
    Create,
    /// Take this number's ledger as the one to write to.
    UseCreated,
    /// End the present ledger with its writer: [`Input::Closed`].
    Seal,
    /// End a ledger whose writer failed: [`Input::Closed`].
    Recover(LedgerId),
    /// Write the list: [`Input::Listed`].
    WriteList(Bytes, Expected),
    /// Read the list: [`Input::ListRead`].
    ReadList,
    /// Delete ledgers: [`Input::Deleted`].
    Delete(Vec<LedgerId>),
    /// Entries of a ledger below one are not needed.
    Trim(LedgerId, u64),
    /// Entries are confirmed.
    Confirmed {
        first_number: u64,
        first: Position,
        entries: Vec<Bytes>,
    },
    /// The view is another one.
    Publish,
    Tell(LogEvent),
}

/// What happened.
#[derive(Debug)]
pub(super) enum Input {
    Created(Result<LedgerId, LedgerError>),
    Progress {
        confirmed: Option<u64>,
        failed: Option<LedgerError>,
    },
    Closed(Result<Sealed, LedgerError>),
    Listed(Result<Version, MetadataError>),
    ListRead(Result<Option<(Version, Bytes)>, MetadataError>),
    /// These were not deleted.
    Deleted(Vec<LedgerId>),
    Tick,
}

/// Where effects go.
pub(super) type Effects = Vec<Effect>;
