//! When messages are to be sent, and from when on the latency of each counts; pure. // hot path
//!
//! Owns the schedule of one producer. Times are nanoseconds of a clock that starts with the run and that the caller reads.
//! With a rate, message `n` is due at a fixed time whatever became of those before it, and its latency counts from that time:
//! a broker that stops answering for a second is charged for all messages that should have been sent in it, not only for
//! those that happened to be on their way (coordinated omission). Without a rate there is no such time, and latency counts
//! from the call that sent the message.

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

    /// Whole nanoseconds between two messages.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as in `due`"
    )]
    fn step(&self) -> u64 {
        self.interval as u64
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

/// The messages of one producer: how many are to be sent now, and from when on the latency of each counts.
#[derive(Debug, Clone)]
pub struct Pacer {
    pace: Pace,
    /// Messages handed to the client.
    sent: u64,
    /// Messages there are to be in all.
    limit: u64,
}

impl Pacer {
    /// Of a producer that has sent nothing yet, and is to send `limit` messages at most.
    #[must_use]
    pub fn new(pace: Pace, limit: Option<u64>) -> Self {
        Self {
            pace,
            sent: 0,
            limit: limit.unwrap_or(u64::MAX),
        }
    }

    /// How many messages are to be sent now, at most `most`.
    #[must_use]
    pub fn wanted(&self, now: u64, most: u64) -> u64 {
        let left = self.limit - self.sent;
        match self.pace {
            Pace::Maximum => left.min(most),
            Pace::Scheduled(schedule) => {
                let due = schedule.due(now).saturating_sub(self.sent);
                due.min(left).min(most)
            }
        }
    }

    /// When the next message is due: a time that has passed for at once. `None` when there is none.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        if self.sent >= self.limit {
            return None;
        }
        Some(match self.pace {
            Pace::Maximum => 0,
            Pace::Scheduled(schedule) => schedule.at(self.sent),
        })
    }

    /// From when on the latency of the next message counts, and how much later that is for each one behind it.
    #[must_use]
    pub fn counts_from(&self, now: u64) -> (u64, u64) {
        match self.pace {
            Pace::Maximum => (now, 0),
            Pace::Scheduled(schedule) => (schedule.at(self.sent), schedule.step()),
        }
    }

    /// Messages that were due until `until` and were not sent: when, and how many about then. At most `GROUPS_MAX` groups,
    /// however many messages there are. Without a rate nothing was ever due.
    pub fn unsent(&self, until: u64) -> impl Iterator<Item = (u64, u64)> {
        let scheduled = match self.pace {
            Pace::Maximum => None,
            Pace::Scheduled(schedule) => Some((schedule, self.wanted(until, u64::MAX))),
        };
        let sent = self.sent;
        scheduled.into_iter().flat_map(move |(schedule, count)| {
            let group = count.div_ceil(GROUPS_MAX).max(1);
            let firsts = (0..GROUPS_MAX).map(move |number| number * group);
            firsts
                .take_while(move |first| *first < count)
                .map(move |first| {
                    let size = group.min(count - first);
                    // The middle one speaks for its group.
                    (schedule.at(sent + first + size / 2), size)
                })
        })
    }

    /// Notes that `count` messages were handed to the client.
    pub fn on_sent(&mut self, count: u64) {
        self.sent = self.sent.saturating_add(count).min(self.limit);
    }

    /// Messages handed to the client.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

const NANOS: f64 = 1e9;
/// Into so many groups the messages of one producer are put that were never sent.
const GROUPS_MAX: u64 = 10_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::perf::latency::LatencyHistogram;

    const SECOND: u64 = 1_000_000_000;

    fn scheduled(rate: f64) -> Pacer {
        Pacer::new(Pace::Scheduled(Schedule::new(0, rate)), None)
    }

    #[test]
    fn a_rate_is_kept_over_time_whatever_the_steps() {
        let mut pacer = scheduled(7.0);
        let mut now = 0;
        for step in [1, 100, 3_000_000, SECOND / 3, 5 * SECOND, 40 * SECOND].repeat(20) {
            now += step;
            let wanted = pacer.wanted(now, u64::MAX);
            pacer.on_sent(wanted);
        }
        let expected = now * 7 / SECOND + 1;
        assert_eq!(pacer.sent(), expected);
        assert!(pacer.next_due().is_some_and(|due| due > now));
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
        // 1000 messages a second; nothing can be sent between 1 s and 2 s, and everything is answered at once.
        let mut pacer = scheduled(1000.0);
        let mut latencies = LatencyHistogram::new();
        let mut now = 0;
        while now < 3 * SECOND {
            if !(SECOND..2 * SECOND).contains(&now) {
                let wanted = pacer.wanted(now, u64::MAX);
                let (first, step) = pacer.counts_from(now);
                pacer.on_sent(wanted);
                for number in 0..wanted {
                    latencies.record(now - (first + number * step), 1);
                }
            }
            now += 1_000_000;
        }
        let summary = latencies.summary();
        assert_eq!(latencies.count(), 3000);
        // A third of all messages waited between 0 and 1 s: 0.5 s on average.
        assert!((summary.mean_ms - 166.8).abs() < 1.0, "{summary:?}");
        assert!((summary.max_ms - 1000.0).abs() < 2.0, "{summary:?}");
        assert!((summary.p95_ms - 850.0).abs() < 5.0, "{summary:?}");
    }

    #[test]
    fn without_a_rate_latency_counts_from_the_send() {
        let mut pacer = Pacer::new(Pace::Maximum, Some(700));
        assert_eq!(pacer.wanted(5, 500), 500);
        assert_eq!(pacer.counts_from(5), (5, 0));
        assert_eq!(pacer.next_due(), Some(0));
        pacer.on_sent(500);
        assert_eq!(pacer.wanted(9, 500), 200);
        pacer.on_sent(200);
        assert_eq!((pacer.wanted(9, 500), pacer.next_due()), (0, None));
    }

    #[test]
    fn a_schedule_ends_at_its_limit() {
        let mut pacer = Pacer::new(Pace::Scheduled(Schedule::new(0, 1e3)), Some(3));
        assert_eq!(pacer.wanted(SECOND, 10), 3);
        pacer.on_sent(3);
        assert_eq!((pacer.wanted(SECOND, 10), pacer.next_due()), (0, None));
    }

    #[test]
    fn what_was_due_and_not_sent_is_told_with_its_times() {
        let mut pacer = scheduled(1000.0);
        pacer.on_sent(100);
        let unsent: Vec<(u64, u64)> = pacer.unsent(SECOND / 10 + 2_000_000).collect();
        assert_eq!(
            unsent,
            [(100_000_000, 1), (101_000_000, 1), (102_000_000, 1)]
        );
        assert_eq!(pacer.unsent(SECOND / 20).count(), 0);
        // A million messages in few groups, of which none is lost and the mean time stays.
        let pacer = scheduled(1e6);
        let (mut groups, mut count, mut times) = (0, 0, 0.0);
        for (due, size) in pacer.unsent(SECOND - 1) {
            groups += 1;
            count += size;
            times +=
                f64::from(u32::try_from(due).unwrap()) * f64::from(u32::try_from(size).unwrap());
        }
        assert_eq!((groups, count), (10_000, 1_000_000));
        assert!((times / 1e6 / 5e8 - 1.0).abs() < 1e-3, "{times}");
        let maximum = Pacer::new(Pace::Maximum, Some(5));
        assert_eq!(maximum.unsent(SECOND).count(), 0);
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
