//! Which messages are to be delivered again, and when: those acknowledged negatively and those not acknowledged in time.
//! Pure.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use super::acknowledgements::Position;

/// Entries that are due a fixed time after they were added. Each is due once, however often it was added before.
#[derive(Debug)]
pub(crate) struct Delayed {
    delay: Duration,
    /// In the order of their times, since all have the same delay. May hold entries that were removed.
    order: VecDeque<(Duration, Position)>,
    /// When each is due.
    due: BTreeMap<Position, Duration>,
}

impl Delayed {
    /// Nothing, with this delay.
    pub(crate) fn new(delay: Duration) -> Self {
        Self {
            delay,
            order: VecDeque::new(),
            due: BTreeMap::new(),
        }
    }

    /// Adds an entry. One that is there already keeps its time.
    pub(crate) fn add(&mut self, position: Position, now: Duration) {
        let time = now.saturating_add(self.delay);
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.due.entry(position) {
            vacant.insert(time);
            self.order.push_back((time, position));
        }
    }

    /// Forgets an entry.
    pub(crate) fn remove(&mut self, position: Position) {
        self.due.remove(&position);
        self.trim();
    }

    /// Forgets the entries up to this one, and says which they were, in their order.
    pub(crate) fn remove_to(&mut self, last: Position) -> Vec<Position> {
        let mut removed = Vec::new();
        self.due.retain(|position, _| {
            let stays = *position > last;
            if !stays {
                removed.push(*position);
            }
            stays
        });
        self.trim();
        removed
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.due.clear();
        self.order.clear();
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// When the next one is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.order.front().map(|(time, _)| *time)
    }

    /// Takes those that are due.
    pub(crate) fn take_due(&mut self, now: Duration, taken: &mut BTreeSet<Position>) {
        while let Some((time, position)) = self.order.front().copied() {
            if time > now {
                break;
            }
            self.order.pop_front();
            if self.due.get(&position) == Some(&time) {
                self.due.remove(&position);
                taken.insert(position);
            }
        }
        self.trim();
    }

    /// Keeps what was removed out of the front, so that the deadline is that of an entry, and out of the way where it is
    /// most.
    fn trim(&mut self) {
        if self.due.is_empty() {
            self.order.clear();
        }
        let is_there = |due: &BTreeMap<Position, Duration>,
                        (time, position): &(Duration, Position)| {
            due.get(position) == Some(time)
        };
        while self
            .order
            .front()
            .is_some_and(|entry| !is_there(&self.due, entry))
        {
            self.order.pop_front();
        }
        if self.order.len() > 2 * self.due.len() + SPARE {
            self.order.retain(|entry| is_there(&self.due, entry));
        }
    }
}

/// Removed entries that are not worth a walk over all.
const SPARE: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Add(u64),
        Remove(u64),
        RemoveTo(u64),
        Take,
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..20).prop_map(Step::Add),
            2 => (0u64..20).prop_map(Step::Remove),
            1 => (0u64..20).prop_map(Step::RemoveTo),
            2 => Just(Step::Take),
            3 => (0u64..8).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn each_is_due_once_a_delay_after_it_was_added(steps in proptest::collection::vec(step(), 0..200)) {
            let mut delayed = Delayed::new(Duration::from_millis(10));
            let mut model: BTreeMap<Position, Duration> = BTreeMap::new();
            let mut now = Duration::ZERO;
            for step in steps {
                match step {
                    Step::Add(entry) => {
                        delayed.add((0, entry), now);
                        model.entry((0, entry)).or_insert(now + Duration::from_millis(10));
                    }
                    Step::Remove(entry) => {
                        delayed.remove((0, entry));
                        model.remove(&(0, entry));
                    }
                    Step::RemoveTo(entry) => {
                        let removed = delayed.remove_to((0, entry));
                        let later = model.split_off(&(0, entry + 1));
                        let expected: Vec<Position> = std::mem::replace(&mut model, later).into_keys().collect();
                        prop_assert_eq!(removed, expected);
                    }
                    Step::Take => {
                        let mut taken = BTreeSet::new();
                        delayed.take_due(now, &mut taken);
                        let due = |(position, time): (&Position, &Duration)| (*time <= now).then_some(*position);
                        let expected: BTreeSet<Position> = model.iter().filter_map(due).collect();
                        model.retain(|_, time| *time > now);
                        prop_assert_eq!(taken, expected);
                    }
                    Step::Wait(ms) => now += Duration::from_millis(ms),
                }
                prop_assert_eq!(delayed.deadline(), model.values().min().copied());
            }
        }
    }

    #[test]
    fn what_is_removed_takes_no_memory_for_long() {
        let mut delayed = Delayed::new(Duration::from_secs(1));
        delayed.add((0, 0), Duration::ZERO);
        for entry in 1..100_000 {
            delayed.add((0, entry), Duration::ZERO);
            delayed.remove((0, entry));
        }
        assert!(delayed.order.len() < 3000, "{}", delayed.order.len());
    }
}
