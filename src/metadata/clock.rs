//! The clock of a metadata store, passed in so that tests and simulations give their own.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

/// Tells the time.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Milliseconds since 1970.
    fn unix_millis(&self) -> i64;

    /// Time since some moment in the past; never goes back.
    fn monotonic(&self) -> Duration;
}

/// The clock of the machine.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn unix_millis(&self) -> i64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}
