//! How fast messages are sent and taken (`--rate`).

use std::time::Duration;

use tokio::time::Instant;

/// Lets one message pass at a time, so many a second. A stall is caught up for one second at most.
#[derive(Debug)]
pub(super) struct Pace {
    schedule: Option<Schedule>,
    begin: Instant,
}

impl Pace {
    /// So many messages a second from now on; `None` is no limit.
    pub(super) fn new(rate: Option<f64>) -> Self {
        Self {
            schedule: rate.map(Schedule::new),
            begin: Instant::now(),
        }
    }

    /// Waits until the next message may pass. Cancel-safe: dropped while it waits, that message's turn is lost.
    pub(super) async fn next(&mut self) {
        let Some(schedule) = &mut self.schedule else {
            return;
        };
        let due = schedule.next(self.begin.elapsed());
        // A rate so low that its turn is never: the end of time as far as the clock reaches.
        match self.begin.checked_add(due) {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }
}

/// When each message may pass, in time since the begin.
#[derive(Debug)]
struct Schedule {
    gap: Duration,
    next: Duration,
}

impl Schedule {
    fn new(rate: f64) -> Self {
        Self {
            gap: Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX),
            next: Duration::ZERO,
        }
    }

    fn next(&mut self, now: Duration) -> Duration {
        let due = self.next.max(now.saturating_sub(CATCH_UP));
        self.next = due.saturating_add(self.gap);
        due
    }
}

const CATCH_UP: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_pass_evenly_and_a_stall_is_caught_up_for_a_second() {
        let mut schedule = Schedule::new(2.0);
        let half = Duration::from_millis(500);
        assert_eq!(schedule.next(Duration::ZERO), Duration::ZERO);
        assert_eq!(schedule.next(Duration::ZERO), half);
        assert_eq!(schedule.next(Duration::ZERO), 2 * half);
        let late = Duration::from_secs(100);
        assert_eq!(schedule.next(late), late - 2 * half);
        assert_eq!(schedule.next(late), late - half);
        assert_eq!(schedule.next(late), late);
        assert_eq!(schedule.next(late), late + half);
    }

    #[test]
    fn a_rate_of_almost_nothing_waits_for_ever() {
        let mut schedule = Schedule::new(f64::MIN_POSITIVE);
        assert_eq!(schedule.next(Duration::ZERO), Duration::ZERO);
        assert_eq!(schedule.next(Duration::ZERO), Duration::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn ten_messages_at_ten_a_second_take_nine_gaps() {
        let mut pace = Pace::new(Some(10.0));
        let begin = Instant::now();
        for _ in 0..10 {
            pace.next().await;
        }
        assert_eq!(begin.elapsed().as_millis(), 900);
        Pace::new(None).next().await;
    }
}
