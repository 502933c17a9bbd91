//! Checks of credentials that take long, such as hashed passwords: a few at a time, in turn between the addresses that ask.
//!
//! Anybody may ask for such a check, and whoever asks often must not keep others from theirs. So an address has one line, however
//! many connections come from it, and lines take turns. Bounded per address and in all; who is beyond that is told to come
//! again. Hashing itself happens on threads that nobody else waits for.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::auth::AuthenticationError;

/// The checks under way and those that wait; shared.
#[derive(Debug, Default)]
pub(crate) struct CostlyChecks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `running <= RUNNING_MAX`, and nobody waits while it is less.
    running: usize,
    waiting: Lines<oneshot::Sender<Place>>,
}

/// A place among the checks under way. Dropping it gives it to the next who waits.
#[derive(Debug)]
struct Place {
    /// `None`: given away.
    checks: Option<Arc<CostlyChecks>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(checks) = self.checks.take() {
            checks.release();
        }
    }
}

impl CostlyChecks {
    /// Performs a check for a client of this address, as soon as it has its turn. Dropping it gives up the turn, not a check that
    /// has begun.
    ///
    /// # Errors
    /// That of the check; [`AuthenticationError::Busy`] when its turn does not come `within` that time, or too many wait.
    pub(crate) fn check<T, F>(
        self: &Arc<Self>,
        tracker: &TaskTracker,
        from: IpAddr,
        within: Duration,
        check: F,
    ) -> impl Future<Output = Result<T, AuthenticationError>> + Send + 'static + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, AuthenticationError> + Send + 'static,
    {
        let (checks, tracker) = (Arc::clone(self), tracker.clone());
        async move {
            let place = timeout(within, checks.place(from)).await;
            let place = place.map_err(|_| AuthenticationError::Busy)??;
            let checked = tracker.spawn_blocking(move || {
                let _place = place;
                check()
            });
            checked
                .await
                .unwrap_or(Err(AuthenticationError::Interrupted))
        }
    }

    async fn place(self: &Arc<Self>, from: IpAddr) -> Result<Place, AuthenticationError> {
        let turn = {
            let mut state = self.state.lock();
            if state.running < RUNNING_MAX {
                state.running += 1;
                return Ok(self.new_place());
            }
            let (give, turn) = oneshot::channel();
            let is_waited_for = |give: &oneshot::Sender<Place>| !give.is_closed();
            // Who has to go learns it by losing its sender.
            drop(state.waiting.push(line_of(from), give, is_waited_for));
            turn
        };
        turn.await.map_err(|_| AuthenticationError::Busy)
    }

    fn new_place(self: &Arc<Self>) -> Place {
        Place {
            checks: Some(Arc::clone(self)),
        }
    }

    /// Gives a place to the next who still waits.
    fn release(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state.lock();
                let Some(next) = state.waiting.pop() else {
                    state.running -= 1;
                    return;
                };
                next
            };
            match next.send(self.new_place()) {
                Ok(()) => return,
                // It waits no more; the place is still ours.
                Err(mut place) => place.checks = None,
            }
        }
    }
}

/// What counts as one address: of IPv6 the network, of which a single host has as many addresses as it likes.
fn line_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK_MASK).into(),
    }
}

/// Who waits, in a line for each address.
#[derive(Debug)]
struct Lines<T> {
    /// None is empty.
    lines: HashMap<IpAddr, VecDeque<T>>,
    /// The addresses of `lines`, each once, the next one first.
    turns: VecDeque<IpAddr>,
    /// Of all lines together.
    len: usize,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self {
            lines: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> Lines<T> {
    /// Adds one at the end of its line. Returns who has to go for that, which may be itself. Those that are not `alive` go first.
    fn push(&mut self, from: IpAddr, item: T, alive: impl Fn(&T) -> bool) -> Option<T> {
        if self.len >= WAITING_MAX || self.len_of(from) >= LINE_MAX {
            self.retain(alive);
        }
        let len = self.len_of(from);
        if len >= LINE_MAX {
            return Some(item);
        }
        let mut gone = None;
        if self.len >= WAITING_MAX {
            let longest = self.lines.values_mut().max_by_key(|line| line.len());
            // Who has a much longer line makes room for who has a shorter one.
            match longest.filter(|longest| longest.len() > len + 1) {
                Some(longest) => gone = longest.pop_back(),
                None => return Some(item),
            }
            self.len -= 1;
        }
        let line = self.lines.entry(from).or_default();
        if line.is_empty() {
            self.turns.push_back(from);
        }
        line.push_back(item);
        self.len += 1;
        gone
    }

    /// The first of the line whose turn it is.
    fn pop(&mut self) -> Option<T> {
        let from = self.turns.pop_front()?;
        let line = self.lines.get_mut(&from)?;
        let first = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&from);
        } else {
            self.turns.push_back(from);
        }
        self.len -= 1;
        first
    }

    fn len_of(&self, from: IpAddr) -> usize {
        self.lines.get(&from).map_or(0, VecDeque::len)
    }

    fn retain(&mut self, alive: impl Fn(&T) -> bool) {
        self.lines.retain(|_, line| {
            line.retain(&alive);
            !line.is_empty()
        });
        self.turns.retain(|from| self.lines.contains_key(from));
        self.len = self.lines.values().map(VecDeque::len).sum();
    }
}

/// Checks under way at a time: each takes a thread for up to a second or two.
const RUNNING_MAX: usize = 2;
/// Who may wait of one address, which may be that of a load balancer with many clients behind it.
const LINE_MAX: usize = 512;
/// Who may wait in all.
const WAITING_MAX: usize = 8192;
/// The first 64 bits.
const NETWORK_MASK: u128 = !0 << 64;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn address(last: usize) -> IpAddr {
        let last = u32::try_from(last).expect("few");
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + last).into()
    }

    fn push<T>(lines: &mut Lines<T>, from: usize, item: T) -> Option<T> {
        lines.push(address(from), item, |_| true)
    }

    #[test]
    fn addresses_take_turns_however_many_wait_of_one() {
        let mut lines = Lines::default();
        for number in 0..100 {
            assert_eq!(push(&mut lines, 1, ("stranger", number)), None);
        }
        push(&mut lines, 2, ("client", 0));
        push(&mut lines, 3, ("other", 0));
        push(&mut lines, 2, ("client", 1));
        let order: Vec<_> = (0..6).filter_map(|_| lines.pop()).collect();
        let expected = [
            ("stranger", 0),
            ("client", 0),
            ("other", 0),
            ("stranger", 1),
            ("client", 1),
            ("stranger", 2),
        ];
        assert_eq!(order, expected);
        assert_eq!(std::iter::from_fn(|| lines.pop()).count(), 97);
        assert!(lines.lines.is_empty() && lines.turns.is_empty() && lines.len == 0);
    }

    #[test]
    fn a_line_has_an_end_and_the_longest_gives_way_when_all_is_full() {
        let mut lines = Lines::default();
        for number in 0..LINE_MAX {
            assert_eq!(push(&mut lines, 0, number), None);
        }
        assert_eq!(push(&mut lines, 0, 7), Some(7), "its own line is full");
        for from in 1..=WAITING_MAX - LINE_MAX {
            assert_eq!(push(&mut lines, from, from), None);
        }
        assert_eq!(push(&mut lines, 9000, 9), Some(LINE_MAX - 1));
        assert_eq!(lines.len, WAITING_MAX);
        // Those that wait no more go before anybody else.
        let even = |number: &usize| number.is_multiple_of(2);
        assert_eq!(lines.push(address(9001), 10, even), None);
        assert!(lines.len < WAITING_MAX);
        assert_eq!(lines.turns.len(), lines.lines.len());
    }

    #[test]
    fn one_network_of_ipv6_is_one_address_and_ipv4_is_the_same_in_either_form() {
        let line = |text: &str| line_of(text.parse().expect(text));
        assert_eq!(line("2001:db8::1"), line("2001:db8::ffff:1"));
        assert_ne!(line("2001:db8::1"), line("2001:db8:0:1::1"));
        assert_eq!(line("::ffff:10.0.0.1"), line("10.0.0.1"));
    }

    /// Checks that end when they are told to, and say in which order they began.
    struct Checks {
        checks: Arc<CostlyChecks>,
        tracker: TaskTracker,
        began: mpsc::Receiver<&'static str>,
        begin: mpsc::Sender<&'static str>,
    }

    impl Checks {
        fn new() -> Self {
            let (begin, began) = mpsc::channel();
            Self {
                checks: Arc::default(),
                tracker: TaskTracker::new(),
                began,
                begin,
            }
        }

        /// The next that begins.
        async fn next(&self) -> &'static str {
            loop {
                match self.began.try_recv() {
                    Ok(name) => return name,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        }

        /// A check that was asked for, and what ends it.
        fn ask(
            &self,
            name: &'static str,
            from: usize,
            within: Duration,
        ) -> (
            impl Future<Output = Result<(), AuthenticationError>> + Send + 'static + use<>,
            mpsc::Sender<()>,
        ) {
            let (end, ended) = mpsc::channel();
            let begin = self.begin.clone();
            let check = move || {
                let _ = begin.send(name);
                let _ = ended.recv();
                Ok(())
            };
            let check = self
                .checks
                .check(&self.tracker, address(from), within, check);
            (check, end)
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_client_waits_for_one_check_of_a_stranger_and_not_for_all() {
        let checks = Checks::new();
        let mut ends = Vec::new();
        for _ in 0..RUNNING_MAX {
            let (check, end) = checks.ask("first", 1, LONG);
            checks.tracker.spawn(check);
            ends.push(end);
        }
        for _ in 0..RUNNING_MAX {
            assert_eq!(checks.next().await, "first");
        }
        let mut strangers = Vec::new();
        for _ in 0..50 {
            let (check, end) = checks.ask("stranger", 1, LONG);
            strangers.push((checks.tracker.spawn(check), end));
        }
        // Until they are in the line.
        while checks.checks.state.lock().waiting.len < 50 {
            tokio::task::yield_now().await;
        }
        let (client, end) = checks.ask("client", 2, LONG);
        let client = checks.tracker.spawn(client);
        while checks.checks.state.lock().waiting.len < 51 {
            tokio::task::yield_now().await;
        }
        drop(ends);
        let next = [checks.next().await, checks.next().await];
        assert!(next.contains(&"client"), "{next:?}");
        drop(end);
        assert_eq!(client.await.expect("no panic"), Ok(()));
        for (check, end) in strangers {
            drop(end);
            assert_eq!(check.await.expect("no panic"), Ok(()));
        }
        assert_eq!(checks.checks.state.lock().running, 0);
    }

    #[tokio::test]
    async fn a_turn_that_does_not_come_in_time_or_is_given_up_is_lost_to_nobody() {
        let checks = Checks::new();
        let mut ends = Vec::new();
        for _ in 0..RUNNING_MAX {
            let (check, end) = checks.ask("first", 1, LONG);
            checks.tracker.spawn(check);
            ends.push(end);
        }
        for _ in 0..RUNNING_MAX {
            assert_eq!(checks.next().await, "first");
        }
        let (late, _end) = checks.ask("late", 2, Duration::ZERO);
        assert_eq!(late.await, Err(AuthenticationError::Busy));
        let (given_up, _end) = checks.ask("given up", 2, LONG);
        assert!(timeout(Duration::ZERO, given_up).await.is_err());
        let (patient, end) = checks.ask("patient", 2, LONG);
        drop((ends, end));
        assert_eq!(patient.await, Ok(()));
        checks.tracker.close();
        checks.tracker.wait().await;
        let state = checks.checks.state.lock();
        assert_eq!((state.running, state.waiting.len), (0, 0));
    }
}
