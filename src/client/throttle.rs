//! What may repeat without end and is to be logged now and then.

use std::time::Duration;

use parking_lot::Mutex;

/// Lets one pass each second and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: nothing passed yet.
    next: Option<Duration>,
    held_back: u64,
}

impl Throttle {
    /// Whether something may pass at this time, with how many were held back since the last one that did.
    pub(crate) fn pass(&self, now: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        if state.next.is_some_and(|next| now < next) {
            state.held_back = state.held_back.saturating_add(1);
            return None;
        }
        state.next = Some(now.saturating_add(INTERVAL));
        Some(std::mem::take(&mut state.held_back))
    }
}

const INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_passes_and_says_how_many_did_not() {
        let throttle = Throttle::default();
        let at = |ms| throttle.pass(Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        assert_eq!(at(1), None);
        assert_eq!(at(999), None);
        assert_eq!(at(1000), Some(2));
        assert_eq!(at(1999), None);
        assert_eq!(at(5000), Some(1));
    }
}
