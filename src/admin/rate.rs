//! How many requests a second are let in; pure.

use std::time::Duration;

/// A bucket that fills with time and gives one token a request. It holds what a second brings, but at least one.
#[derive(Debug)]
pub(super) struct RateLimit {
    per_second: f64,
    tokens: f64,
    /// Since an epoch of the caller's.
    last: Duration,
}

impl RateLimit {
    pub(super) fn new(per_second: f64) -> Self {
        Self {
            per_second,
            tokens: per_second.max(1.0),
            last: Duration::ZERO,
        }
    }

    /// Whether a request that comes now is let in.
    pub(super) fn admit(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        self.tokens =
            (self.tokens + passed.as_secs_f64() * self.per_second).min(self.per_second.max(1.0));
        let admitted = self.tokens >= 1.0;
        if admitted {
            self.tokens -= 1.0;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_in_what_the_rate_allows_and_a_second_of_it_at_once() {
        let mut limit = RateLimit::new(10.0);
        let admitted = |limit: &mut RateLimit, at: u64| {
            (0..100)
                .filter(|_| limit.admit(Duration::from_millis(at)))
                .count()
        };
        assert_eq!(admitted(&mut limit, 0), 10);
        assert_eq!(admitted(&mut limit, 0), 0);
        assert_eq!(admitted(&mut limit, 300), 3);
        assert_eq!(admitted(&mut limit, 60_000), 10);
        // A clock that steps back gives nothing.
        assert_eq!(admitted(&mut limit, 1_000), 0);
    }

    #[test]
    fn a_rate_below_one_lets_in_one_after_its_time() {
        let mut limit = RateLimit::new(0.5);
        assert!(limit.admit(Duration::ZERO));
        assert!(!limit.admit(Duration::from_secs(1)));
        assert!(limit.admit(Duration::from_secs(2)));
    }
}
