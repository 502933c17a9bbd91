//! Log lines that strangers can cause, kept few.

use std::time::Duration;

use parking_lot::Mutex;

/// Lets one line through per period and counts those it held back in between. One for each kind of event.
#[derive(Debug)]
pub struct LogThrottle {
    period: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the next line may come; `None` before the first.
    next: Option<Duration>,
    held_back: u64,
}

impl LogThrottle {
    /// Lets the first line through, and then one per `period`.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self {
            period,
            state: Mutex::default(),
        }
    }

    /// Whether a line may be written at `now` (since any fixed point in time), and then how many were held back since the last
    /// one.
    pub fn pass(&self, now: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        if state.next.is_some_and(|next| now < next) {
            state.held_back += 1;
            return None;
        }
        state.next = Some(now + self.period);
        Some(std::mem::take(&mut state.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_period_passes_and_says_how_many_did_not() {
        let throttle = LogThrottle::new(Duration::from_secs(10));
        let at = |seconds| throttle.pass(Duration::from_secs(seconds));
        assert_eq!(at(100), Some(0));
        assert_eq!(at(100), None);
        assert_eq!(at(109), None);
        assert_eq!(at(110), Some(2));
        assert_eq!(at(111), None);
        assert_eq!(at(500), Some(1));
    }
}
