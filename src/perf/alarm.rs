//! Waiting to the microsecond.
//!
//! The runtime's timers count milliseconds, and a message that is sent up to a millisecond late would have that in its latency.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A timer of the kernel; one per thread is enough.
#[derive(Debug)]
pub(super) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    /// A timer that waits in the present runtime.
    ///
    /// # Errors
    /// When the operating system gives none.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe, for types whose file may change; an OwnedFd keeps its own"
        )]
        let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
        Ok(Self(timer))
    }

    /// Waits for this time, at least a microsecond. Cancel-safe; one call at a time.
    ///
    /// # Errors
    /// What the operating system says; not expected.
    pub(super) async fn wait(&self, time: Duration) -> io::Result<()> {
        let time = time.max(Duration::from_micros(1));
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: time.subsec_nanos().into(),
            },
        };
        // What a call that was cancelled left is gone with this.
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let mut expirations = [0; 8];
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer, &mut expirations)?));
            if let Ok(read) = read {
                return read.map(drop);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn waits_as_long_as_it_should() {
        let alarm = Alarm::new().unwrap();
        for micros in [0, 300, 2500] {
            let start = Instant::now();
            alarm.wait(Duration::from_micros(micros)).await.unwrap();
            assert!(start.elapsed() >= Duration::from_micros(micros));
        }
    }

    #[tokio::test]
    async fn a_wait_that_was_given_up_does_not_cut_the_next_one_short() {
        let alarm = Alarm::new().unwrap();
        let given_up = alarm.wait(Duration::from_millis(5));
        tokio::select! {
            biased;
            _ = given_up => panic!("the time is not over"),
            () = std::future::ready(()) => {}
        }
        let start = Instant::now();
        alarm.wait(Duration::from_millis(30)).await.unwrap();
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
