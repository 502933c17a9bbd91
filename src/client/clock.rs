//! The clocks and the randomness that states of producers and consumers are told, since they have none themselves.

use std::{
    future::Future,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::error::{ClientError, RequestError};

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
        unix_ms()
    }

    /// A number that nobody can guess.
    pub(crate) fn random(&self) -> u64 {
        rand::random()
    }
}

/// Now, in milliseconds since 1970, by the clock of the machine.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or_default()
    })
}

/// By when all steps of an operation have to be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// `None`: no clock reaches so far.
    at: Option<Instant>,
    limit: Duration,
}

impl Deadline {
    /// So much later than now.
    pub(crate) fn within(limit: Duration) -> Self {
        Self {
            at: Instant::now().checked_add(limit),
            limit,
        }
    }

    /// The time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.at.map_or(self.limit, |at| {
            at.saturating_duration_since(Instant::now())
        })
    }

    /// What came of a step; `None` when the time is over before. Cancel-safe if the step is.
    pub(crate) async fn keep<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        match self.at {
            Some(at) => tokio::time::timeout_at(at, step).await.ok(),
            None => Some(step.await),
        }
    }

    /// The error of an operation whose time is over, with what went wrong last.
    pub(crate) fn error(&self, last: Option<ClientError>) -> ClientError {
        let limit = self.limit;
        ClientError::Timeout {
            limit,
            last: Box::new(last.unwrap_or(RequestError::Timeout(limit).into())),
        }
    }
}
