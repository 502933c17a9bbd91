//! How a server process ends: what asks for it, and the order of its phases.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::http::{Phase, PhaseSender};

/// How a server role ended; `main` makes the exit code of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A shutdown was asked for, and everything finished in time.
    Drained,
    /// A shutdown was asked for, and at its deadline something was still open and was cut.
    DeadlinePassed,
    /// A second signal asked to end at once.
    Interrupted,
}

/// The signals that ask for a shutdown: SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// How long a shutdown may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownTimes {
    /// How long the process stays in [`Phase::NotReady`].
    pub not_ready: Duration,
    /// Bound on everything, [`Self::not_ready`] included.
    pub total: Duration,
}

/// Moves through the phases until `drained` completes, the deadline passes, or `again` (a second signal) does.
///
/// `drained` completes when everything that drains has finished. Not cancel-safe: dropped, the phase stays where it is.
pub async fn shut_down(
    phase: &PhaseSender,
    times: ShutdownTimes,
    drained: impl Future<Output = ()>,
    again: impl Future<Output = ()>,
) -> Ended {
    let deadline = Instant::now() + times.total.max(LEAST_TIME);
    tokio::pin!(drained, again);
    phase.advance(Phase::NotReady);
    tracing::info!(not_ready = ?times.not_ready, total = ?times.total, "shutting down");
    let waited = tokio::time::timeout(times.not_ready.min(times.total), async {
        tokio::select! {
            biased;
            () = &mut again => Ended::Interrupted,
            () = &mut drained => Ended::Drained,
        }
    });
    let early = waited.await.ok();
    let ended = match early {
        Some(ended) => ended,
        None => {
            phase.advance(Phase::Draining);
            tokio::select! {
                biased;
                () = &mut again => Ended::Interrupted,
                () = &mut drained => Ended::Drained,
                () = tokio::time::sleep_until(deadline) => Ended::DeadlinePassed,
            }
        }
    };
    phase.advance(Phase::Stopped);
    match ended {
        Ended::Drained => tracing::info!("everything drained"),
        Ended::DeadlinePassed => {
            tracing::warn!("the shutdown deadline passed; open connections are cut")
        }
        Ended::Interrupted => tracing::warn!("a second signal came; open connections are cut"),
    }
    ended
}

/// What a process without open connections needs to see that it has none, whatever the settings say.
const LEAST_TIME: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::http::phases;

    const TIMES: ShutdownTimes = ShutdownTimes {
        not_ready: Duration::from_secs(3),
        total: Duration::from_secs(10),
    };

    #[tokio::test(start_paused = true)]
    async fn no_time_at_all_is_enough_for_nothing_to_drain() {
        let (sender, phases) = phases();
        let none = ShutdownTimes {
            not_ready: Duration::ZERO,
            total: Duration::ZERO,
        };
        let drained = async move {
            phases.reached(Phase::Draining).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert_eq!(
            shut_down(&sender, none, drained, pending()).await,
            Ended::Drained
        );
    }

    #[tokio::test(start_paused = true)]
    async fn passes_through_not_ready_before_it_drains() {
        let (sender, phases) = phases();
        let begin = Instant::now();
        let seen = phases.clone();
        let drained = async move {
            seen.reached(Phase::NotReady).await;
            assert_eq!(seen.current(), Phase::NotReady);
            seen.reached(Phase::Draining).await;
            assert_eq!(begin.elapsed(), TIMES.not_ready);
        };
        assert_eq!(
            shut_down(&sender, TIMES, drained, pending()).await,
            Ended::Drained
        );
        assert_eq!(phases.current(), Phase::Stopped);
        assert_eq!(begin.elapsed(), TIMES.not_ready);
    }

    #[tokio::test(start_paused = true)]
    async fn one_deadline_bounds_all_phases() {
        let (sender, phases) = phases();
        let begin = Instant::now();
        assert_eq!(
            shut_down(&sender, TIMES, pending(), pending()).await,
            Ended::DeadlinePassed
        );
        assert_eq!(begin.elapsed(), TIMES.total);
        assert_eq!(phases.current(), Phase::Stopped);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_at_once_in_every_phase() {
        for after in [
            Duration::ZERO,
            Duration::from_secs(1),
            Duration::from_secs(5),
        ] {
            let (sender, phases) = phases();
            let begin = Instant::now();
            let again = tokio::time::sleep(after);
            assert_eq!(
                shut_down(&sender, TIMES, pending(), again).await,
                Ended::Interrupted
            );
            assert!(begin.elapsed() <= after + Duration::from_millis(1));
            assert_eq!(phases.current(), Phase::Stopped);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_drained_already_ends_without_waiting() {
        let (sender, _phases) = phases();
        assert_eq!(
            shut_down(&sender, TIMES, ready(()), pending()).await,
            Ended::Drained
        );
    }
}
