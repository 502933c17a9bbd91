//! When messages are to be sent, and since when each of them is on its way; pure. // hot path
//!
//! Owns the schedule of one producer. Times are nanoseconds of a clock that starts with the run and that the caller reads.
//! With a rate, message `n` is due at a fixed time whatever became of those before it, and its latency counts from that time:
//! a broker that stops answering for a second is charged for all messages that should have been sent in it, not only for
//! those that happened to be on their way (coordinated omission). Without a rate there is no such time, and latency counts
//! from the call that sent the message.

use std::collections::VecDeque;

use super::latency::LatencyHistogram;

/// When the messages of one producer are due: number `n` at `start + n / rate`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// When the first message is due.
    start: u64,
    /// Nanoseconds between two messages; above 0.
    interval: f64,
}

impl Schedule {
    /// A schedule of `rate` messages a second, which is above 0, of which the first is due at `start`.
    #[must_use]
    pub fn new(start: u64, rate: f64) -> Self {
        Self {
            start,
            interval: (NANOS / rate).max(f64::MIN_POSITIVE),
        }
    }

    /// How many messages are due until `now`, that time included.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a run is far shorter than 2^53 ns, and the conversion back saturates"
    )]
    pub fn due(&self, now: u64) -> u64 {
        let Some(elapsed) = now.checked_sub(self.start) else {
            return 0;
        };
        let mut due = ((elapsed as f64 / self.interval) as u64).saturating_add(1);
        // Division and multiplication need not round the same way; the time of each message decides.
        while due > 0 && self.at(due - 1) > now {
            due -= 1;
        }
        while self.at(due) <= now {
            due += 1;
        }
        due
    }

    /// When message `number` is due.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as in `due`"
    )]
    pub fn at(&self, number: u64) -> u64 {
        self.start
            .saturating_add((number as f64 * self.interval) as u64)
    }
}

/// How a producer decides when to send.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// At fixed times.
    Scheduled(Schedule),
    /// As fast as the broker lets it.
    Maximum,
}

/// The messages of one producer from when they are due to when they are acknowledged, in order.
#[derive(Debug)]
pub struct InFlight {
    pace: Pace,
    /// Messages handed to the client.
    sent: u64,
    /// Messages that were acknowledged or failed; `done <= sent`.
    done: u64,
    /// Without a schedule: up to which number messages were sent at which time. Bounded by the messages on their way.
    sends: VecDeque<(u64, u64)>,
}

impl InFlight {
    /// Of a producer that has sent nothing.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            sent: 0,
            done: 0,
            sends: VecDeque::new(),
        }
    }

    /// How many messages are to be sent now, at most `most`.
    #[must_use]
    pub fn wanted(&self, now: u64, most: u64) -> u64 {
        match self.pace {
            Pace::Maximum => most,
            Pace::Scheduled(schedule) => schedule.due(now).saturating_sub(self.sent).min(most),
        }
    }

    /// When the next message is due; `None` for at once.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        match self.pace {
            Pace::Maximum => None,
            Pace::Scheduled(schedule) => Some(schedule.at(self.sent)),
        }
    }

    /// Messages handed to the client.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Messages on their way.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.sent - self.done
    }

    /// Notes that `count` messages were handed to the client at `now`.
    pub fn on_sent(&mut self, count: u64, now: u64) {
        self.sent += count;
        if self.pace == Pace::Maximum && count > 0 {
            self.sends.push_back((self.sent, now));
        }
    }

    /// Notes that the next `count` messages were acknowledged at `now`, and records how long each took.
    pub fn on_acknowledged(&mut self, count: u64, now: u64, latencies: &mut LatencyHistogram) {
        let until = self.done.saturating_add(count).min(self.sent);
        match self.pace {
            Pace::Scheduled(schedule) => {
                for number in self.done..until {
                    latencies.record(now.saturating_sub(schedule.at(number)), 1);
                }
                self.done = until;
            }
            Pace::Maximum => {
                while self.done < until {
                    let Some(&(last, at)) = self.sends.front() else {
                        break;
                    };
                    let next = last.min(until);
                    latencies.record(now.saturating_sub(at), next - self.done);
                    self.step_to(next);
                }
            }
        }
    }

    /// Notes that the next `count` messages failed.
    pub fn on_failed(&mut self, count: u64) {
        self.step_to(self.done.saturating_add(count).min(self.sent));
    }

    fn step_to(&mut self, done: u64) {
        self.done = done;
        while self.sends.front().is_some_and(|(last, _)| *last <= done) {
            self.sends.pop_front();
        }
    }
}

const NANOS: f64 = 1e9;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn scheduled(rate: f64) -> InFlight {
        InFlight::new(Pace::Scheduled(Schedule::new(0, rate)))
    }

    #[test]
    fn a_rate_is_kept_over_time_whatever_the_steps() {
        let mut in_flight = scheduled(7.0);
        let mut now = 0;
        for step in [1, 100, 3_000_000, SECOND / 3, 5 * SECOND, 40 * SECOND].repeat(20) {
            now += step;
            let wanted = in_flight.wanted(now, u64::MAX);
            in_flight.on_sent(wanted, now);
        }
        let seconds = now / SECOND;
        assert!(in_flight.sent() / 7 == seconds || in_flight.sent() / 7 == seconds + 1);
        assert!(in_flight.next_due().is_some_and(|due| due > now));
    }

    #[test]
    fn nothing_is_due_before_the_start() {
        let schedule = Schedule::new(100, 1e9);
        assert_eq!(
            (schedule.due(99), schedule.due(100), schedule.due(102)),
            (0, 1, 3)
        );
    }

    #[test]
    fn a_stall_is_charged_to_every_message_that_was_due_in_it() {
        // 1000 messages a second; nothing can be sent between 1 s and 2 s.
        let mut in_flight = scheduled(1000.0);
        let mut latencies = LatencyHistogram::new();
        let mut now = 0;
        while now < 3 * SECOND {
            if now < SECOND || now >= 2 * SECOND {
                let wanted = in_flight.wanted(now, u64::MAX);
                in_flight.on_sent(wanted, now);
                in_flight.on_acknowledged(wanted, now, &mut latencies);
            }
            now += 1_000_000;
        }
        let summary = latencies.summary();
        assert_eq!(latencies.count(), 3000);
        // A third of all messages waited between 0 and 1 s: 0.5 s on average.
        assert!((summary.mean_ms - 166.0).abs() < 2.0, "{summary:?}");
        assert!((summary.max_ms - 1000.0).abs() < 2.0, "{summary:?}");
        assert!((summary.p95_ms - 850.0).abs() < 5.0, "{summary:?}");
    }

    #[test]
    fn without_a_rate_latency_counts_from_the_send() {
        let mut in_flight = InFlight::new(Pace::Maximum);
        let mut latencies = LatencyHistogram::new();
        assert_eq!(in_flight.wanted(0, 500), 500);
        in_flight.on_sent(10, 0);
        in_flight.on_sent(10, 5_000_000);
        in_flight.on_acknowledged(15, 10_000_000, &mut latencies);
        assert_eq!((in_flight.waiting(), in_flight.sends.len()), (5, 1));
        in_flight.on_failed(5);
        assert_eq!((in_flight.waiting(), in_flight.sends.len()), (0, 0));
        let summary = latencies.summary();
        assert_eq!(latencies.count(), 15);
        assert!(
            (summary.mean_ms - (10.0 * 10.0 + 5.0 * 5.0) / 15.0).abs() < 0.05,
            "{summary:?}"
        );
        in_flight.on_acknowledged(3, 10_000_000, &mut latencies);
        assert_eq!(latencies.count(), 15);
    }

    proptest! {
        #[test]
        fn due_is_the_number_of_times_that_have_come(
            start in 0..10 * SECOND,
            rate in 0.01_f64..5e6,
            now in 0..3600 * SECOND,
        ) {
            let schedule = Schedule::new(start, rate);
            let due = schedule.due(now);
            prop_assert!(schedule.at(due) > now);
            prop_assert!(due == 0 || schedule.at(due - 1) <= now);
        }
    }
}
