//! How a connection to a metadata store stands.

use std::time::Duration;

/// A session: ephemeral nodes live as long as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Grows with every new session of this connection. Who sees another number than before has lost its ephemeral
    /// nodes, also when it never saw [`SessionState::Expired`].
    pub epoch: u64,
    /// How it stands.
    pub state: SessionState,
}

/// The states of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// The store answers.
    Connected,
    /// The store cannot be reached. The session may have ended without our knowing; its nodes cannot be counted on once
    /// the time that the session was agreed for has gone by.
    Lost {
        /// Since when, on the store's [`super::Clock::monotonic`].
        since: Duration,
    },
    /// The session is over. A store that can makes a new one, with the next epoch.
    Expired,
}
