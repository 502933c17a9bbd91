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

    /// Forgets the entries up to this one.
    pub(crate) fn remove_to(&mut self, last: Position) {
        self.due.retain(|position, _| *position > last);
        self.trim();
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.due.clear();
        self.order.clear();
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
