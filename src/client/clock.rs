//! The clocks and the randomness that states of producers and consumers are told, since they have none themselves.

use std::{
    future::Future,
    time::{Duration, SystemTime},
};

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

    /// Now, in milliseconds since 1970, as messages carry it.
    pub(crate) fn publish_time(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or_default()
        })
    }

    /// A number that nobody can guess.
    pub(crate) fn random(&self) -> u64 {
        rand::random()
    }
}
