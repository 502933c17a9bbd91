//! How long to wait between attempts. Pure: no clock, and randomness from a seed.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// The shape of a [`Backoff`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackoffPolicy {
    /// The first delay before jitter.
    pub initial: Duration,
    /// The longest delay before jitter; each delay is twice the one before until it is reached.
    pub max: Duration,
    /// The part of each delay, 0 to 1, that is random: a delay is drawn from `(1 - jitter) * d` to `d`, so that clients
    /// that lost the same broker do not come back together.
    pub jitter: f64,
    /// The delays together never exceed this; then there is none left. `None` = never give up.
    pub deadline: Option<Duration>,
}

impl Default for BackoffPolicy {
    /// 100 ms doubling to 60 s as Apache's clients have it, a fifth of it random, without end.
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(60),
            jitter: 0.2,
            deadline: None,
        }
    }
}

/// Exponentially growing delays with jitter. As an iterator it yields the delay before each further attempt, and `None`
/// when the deadline is used up.
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: BackoffPolicy,
    random: SmallRng,
    /// The next delay before jitter.
    delay: Duration,
    /// The sum of the delays since the last reset.
    spent: Duration,
}

impl Backoff {
    /// A backoff at its shortest delay. Equal seeds give equal delays.
    pub fn new(policy: BackoffPolicy, seed: u64) -> Self {
        Self {
            policy,
            random: SmallRng::seed_from_u64(seed),
            delay: policy.initial.min(policy.max),
            spent: Duration::ZERO,
        }
    }

    /// Begins again at the shortest delay: an attempt succeeded.
    pub fn reset(&mut self) {
        self.delay = self.policy.initial.min(self.policy.max);
        self.spent = Duration::ZERO;
    }

    /// An attempt succeeded and what it gave did not last: the next delay is `most` at the longest, so that many short
    /// successes neither come at once after each other nor cost ever longer pauses.
    pub fn ease(&mut self, most: Duration) {
        self.delay = self.delay.min(most);
        self.spent = Duration::ZERO;
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let jitter = self.policy.jitter.clamp(0.0, 1.0);
        let mut delay = self
            .delay
            .mul_f64(1.0 - jitter * self.random.random::<f64>());
        self.delay = self.delay.saturating_mul(2).min(self.policy.max);
        if let Some(deadline) = self.policy.deadline {
            let left = deadline.saturating_sub(self.spent);
            if left.is_zero() {
                return None;
            }
            delay = delay.min(left);
        }
        self.spent = self.spent.saturating_add(delay);
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WITHOUT_JITTER: BackoffPolicy = BackoffPolicy {
        initial: Duration::from_millis(100),
        max: Duration::from_secs(1),
        jitter: 0.0,
        deadline: None,
    };

    #[test]
    fn doubles_up_to_the_maximum_and_begins_again_after_a_reset() {
        let mut backoff = Backoff::new(WITHOUT_JITTER, 1);
        let delays: Vec<u128> = backoff
            .by_ref()
            .take(6)
            .map(|delay| delay.as_millis())
            .collect();
        assert_eq!(delays, [100, 200, 400, 800, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.next(), Some(Duration::from_millis(100)));
    }

    #[test]
    fn short_successes_bound_the_delay_and_do_not_shorten_it_to_nothing() {
        let policy = BackoffPolicy {
            max: Duration::from_secs(60),
            ..WITHOUT_JITTER
        };
        let mut backoff = Backoff::new(policy, 1);
        let most = Duration::from_secs(1);
        let mut after_success = || {
            backoff.ease(most);
            backoff.next().unwrap().as_millis()
        };
        let delays: Vec<u128> = (0..7).map(|_| after_success()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1000, 1000, 1000]);
    }

    #[test]
    fn ends_when_the_deadline_is_used_up() {
        let policy = BackoffPolicy {
            deadline: Some(Duration::from_millis(500)),
            ..WITHOUT_JITTER
        };
        let mut backoff = Backoff::new(policy, 1);
        let delays: Vec<u128> = backoff.by_ref().map(|delay| delay.as_millis()).collect();
        assert_eq!(delays, [100, 200, 200]);
        assert_eq!(backoff.next(), None);
        backoff.reset();
        assert!(backoff.next().is_some());
    }

    proptest! {
        #[test]
        fn a_delay_is_within_the_jitter_and_repeats_with_its_seed(seed: u64, jitter in 0.0_f64..1.0, count in 1_usize..80) {
            let policy = BackoffPolicy { jitter, ..WITHOUT_JITTER };
            let delays: Vec<Duration> = Backoff::new(policy, seed).take(count).collect();
            let plain = Backoff::new(WITHOUT_JITTER, 0);
            for (delay, plain) in delays.iter().zip(plain) {
                prop_assert!(*delay <= plain);
                prop_assert!(*delay + Duration::from_micros(1) >= plain.mul_f64(1.0 - jitter));
            }
            prop_assert_eq!(delays, Backoff::new(policy, seed).take(count).collect::<Vec<_>>());
        }
    }
}
