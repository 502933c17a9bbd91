//! The monotonic time that pure states are told.

use std::{future::Future, time::Duration};

use tokio::time::Instant;

/// Counts from when it was made. Copies count the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that stands at zero.
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// The time since it was made.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until this time; for ever without one. Cancel-safe.
    pub(crate) fn sleep_until(&self, time: Option<Duration>) -> impl Future<Output = ()> + use<> {
        // A time that no clock reaches is none.
        let deadline = time.and_then(|time| self.start.checked_add(time));
        async move {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        }
    }
}
