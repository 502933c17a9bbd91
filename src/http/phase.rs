//! The phases of a server process, seen by everything that must act on them.
//!
//! They live beside the health endpoints, which answer by them, because both the composition root that sets them and the
//! servers that follow them may look here.

use tokio::sync::watch;

/// Where the process stands between start and end. It only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Accepts and serves.
    Serving,
    /// Shutdown was asked for: `/readyz` answers 503, everything is still served.
    NotReady,
    /// No new connection is accepted; open ones are asked to leave and may finish what they have begun.
    Draining,
    /// The deadline passed or everything left: whatever still runs ends now.
    Stopped,
}

impl Phase {
    /// The name in answers and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::NotReady => "shutting down",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

/// Follows the phase. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Phases(watch::Receiver<Phase>);

/// Moves the phase forward; only the composition root has it.
#[derive(Debug)]
pub struct PhaseSender(watch::Sender<Phase>);

/// A new phase, at [`Phase::Serving`].
#[must_use]
pub fn phases() -> (PhaseSender, Phases) {
    let (sender, receiver) = watch::channel(Phase::Serving);
    (PhaseSender(sender), Phases(receiver))
}

impl Phases {
    /// The phase now.
    #[must_use]
    pub fn current(&self) -> Phase {
        *self.0.borrow()
    }

    /// Waits until the phase is `phase` or a later one, or its sender is gone. Cancel-safe.
    pub async fn reached(&self, phase: Phase) {
        // An error means that the sender is gone: the process is ending, so every phase counts as reached.
        let _ = self.0.clone().wait_for(|current| *current >= phase).await;
    }
}

impl PhaseSender {
    /// Moves to `phase`, unless the phase is there or beyond already.
    pub fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|current| {
            let forward = phase > *current;
            if forward {
                *current = phase;
            }
            forward
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn phases_only_move_forward() {
        let (sender, phases) = phases();
        assert_eq!(phases.current(), Phase::Serving);
        sender.advance(Phase::Draining);
        sender.advance(Phase::NotReady);
        assert_eq!(phases.current(), Phase::Draining);
        phases.reached(Phase::NotReady).await;
        phases.reached(Phase::Draining).await;
        drop(sender);
        phases.reached(Phase::Stopped).await;
    }
}
