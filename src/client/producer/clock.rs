//! The clocks and the randomness of producers, and nothing else: all other files get them from here.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Time since the producer was created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at zero.
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// The time since the start.
    pub(crate) fn now(self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until the time since the start is `deadline`. Cancel-safe.
    pub(crate) async fn sleep_until(self, deadline: Duration) {
        match self.start.checked_add(deadline) {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            // No clock reaches it.
            None => std::future::pending().await,
        }
    }

    /// Now, in milliseconds since 1970, as messages carry it.
    pub(crate) fn publish_time(self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or_default()
        })
    }

    /// A number that nobody can guess.
    pub(crate) fn random(self) -> u64 {
        rand::random()
    }
}
