//! What an operator should learn from the log about clients that were not served. Each kind has a throttle, since strangers
//! decide how often it happens; the metrics count all of them.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::telemetry::LogThrottle;

/// The log lines of one gateway that clients can cause.
#[derive(Debug)]
pub(crate) struct Notices {
    started: Instant,
    denied: LogThrottle,
    unreachable: LogThrottle,
    rejected: LogThrottle,
    protocol: LogThrottle,
    unauthenticated: LogThrottle,
    own_credential: LogThrottle,
    refused: LogThrottle,
    tls: LogThrottle,
}

impl Notices {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            denied: LogThrottle::new(PERIOD),
            unreachable: LogThrottle::new(PERIOD),
            rejected: LogThrottle::new(PERIOD),
            protocol: LogThrottle::new(PERIOD),
            unauthenticated: LogThrottle::new(PERIOD),
            own_credential: LogThrottle::new(PERIOD),
            refused: LogThrottle::new(PERIOD),
            tls: LogThrottle::new(PERIOD),
        }
    }

    /// A client asked for, or was sent to, a target that is not allowed.
    pub(crate) fn denied(&self, why: &dyn Display) {
        if let Some(more) = self.denied.pass(self.started.elapsed()) {
            info!(more, "target refused: {why}");
        }
    }

    /// No broker could be asked, or the one that a client asked for not be reached.
    pub(crate) fn unreachable(&self, why: &dyn Display) {
        if let Some(more) = self.unreachable.pass(self.started.elapsed()) {
            warn!(more, "a client was not served: {why}");
        }
    }

    /// A connection was beyond a limit.
    pub(crate) fn rejected(&self, why: &dyn Display) {
        if let Some(more) = self.rejected.pass(self.started.elapsed()) {
            warn!(more, "a client connection was refused: {why}");
        }
    }

    /// A client's credential is not good. The client is not told why.
    pub(crate) fn unauthenticated(&self, why: &dyn Display) {
        if let Some(more) = self.unauthenticated.pass(self.started.elapsed()) {
            info!(more, "a client was not authenticated: {why}");
        }
    }

    /// The gateway could not say who it is itself.
    pub(crate) fn own_credential(&self, why: &dyn Display) {
        if let Some(more) = self.own_credential.pass(self.started.elapsed()) {
            warn!(more, "a client was not introduced to a broker: {why}");
        }
    }

    /// A broker does not take a client under the gateway's credential: the fault may be the gateway's, and only its operator can
    /// know.
    pub(crate) fn refused_by_broker(&self, why: &dyn Display) {
        if let Some(more) = self.refused.pass(self.started.elapsed()) {
            warn!(
                more,
                "a broker refused a client that the gateway introduced: {why}"
            );
        }
    }

    /// A client's TLS handshake came to nothing.
    pub(crate) fn tls_handshake(&self, why: &dyn Display) {
        if let Some(more) = self.tls.pass(self.started.elapsed()) {
            info!(more, "TLS handshake with a client failed: {why}");
        }
    }

    /// A broker did not behave like one.
    pub(crate) fn broker_protocol(&self, why: &dyn Display) {
        if let Some(more) = self.protocol.pass(self.started.elapsed()) {
            warn!(more, "a broker answered CONNECT with something else: {why}");
        }
    }
}

/// At most one line of a kind in this time; it says how many more there were.
const PERIOD: Duration = Duration::from_secs(10);
