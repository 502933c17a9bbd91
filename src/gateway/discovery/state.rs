//! Which brokers there are, and which of them can be asked. Pure: time is passed in, counted from the start of the gateway.
//!
//! Two things make a broker one that is not asked: it does not answer probes, which ends with the first probe that it answers; or
//! it takes connections and then fails their handshakes, which no probe shows: then it is ejected for a time that doubles.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::naming::BrokerAddress;

/// A broker as discovery or the settings name it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Announced {
    /// Where it is asked; `None`: it only serves HTTP to us.
    pub(crate) address: Option<BrokerAddress>,
    /// Every address under which clients may know it.
    pub(crate) aliases: BTreeSet<BrokerAddress>,
    /// Base URLs of its HTTP service.
    pub(crate) web: Vec<String>,
}

/// The brokers of the gateway's cluster.
#[derive(Debug, Default)]
pub(crate) struct BrokerTable {
    brokers: Vec<Broker>,
    /// Grows with each choice, so that brokers are asked in turn.
    turn: u32,
}

#[derive(Debug)]
struct Broker {
    address: BrokerAddress,
    aliases: BTreeSet<BrokerAddress>,
    web: Vec<String>,
    /// What the last probe or connect said; `None` before the first.
    answers: Option<bool>,
    /// What probes have told the log.
    told: Option<bool>,
    /// Probes in a row that were not answered.
    unanswered: u32,
    /// When it is to be probed again; `None` while it is being probed.
    next_probe: Option<Duration>,
    /// Ejections that follow each other; each is twice as long as the one before.
    ejections: u32,
    ejected_until: Duration,
    /// From when on `ejections` count no more. Successes in between do not bring it nearer: a broker that fails every second
    /// handshake has them as well.
    forgiven_at: Duration,
}

/// What a probe changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The broker answers for the first time, or again.
    Answers,
    /// The broker does not answer any more, or has never done so.
    Silent,
}

impl BrokerTable {
    /// Takes the place of the list before. Brokers that are on both keep what is known of their health.
    pub(crate) fn replace(&mut self, list: impl IntoIterator<Item = Announced>, now: Duration) {
        let mut before = std::mem::take(&mut self.brokers);
        for announced in list {
            let Some(address) = announced.address else {
                continue;
            };
            if self.brokers.iter().any(|broker| broker.address == address) {
                continue;
            }
            let known = before.iter().position(|broker| broker.address == address);
            let mut broker = match known {
                Some(place) => before.swap_remove(place),
                None => Broker::new(address, now),
            };
            broker.aliases = announced.aliases;
            broker.web = announced.web;
            self.brokers.push(broker);
        }
    }

    /// All brokers that can be asked, each time beginning with the next one; those of which nothing is known yet come last. Where
    /// none can be asked, all are returned: they may be back, and trying costs less than refusing.
    pub(crate) fn in_turn(&mut self, now: Duration) -> Vec<BrokerAddress> {
        let chosen = self.choose(now, |broker| Some(broker.address.clone()));
        self.turn = self.turn.wrapping_add(1);
        chosen
    }

    /// Base URLs of the brokers' HTTP service, in the order of [`in_turn`](Self::in_turn).
    pub(crate) fn web_in_turn(&mut self, now: Duration) -> Vec<String> {
        let chosen = self.choose(now, |broker| broker.web.first().cloned());
        self.turn = self.turn.wrapping_add(1);
        chosen
    }

    fn choose<T>(&self, now: Duration, get: impl Fn(&Broker) -> Option<T>) -> Vec<T> {
        let rotated = || {
            let count = self.brokers.len();
            // Even, also for one who takes every second or third turn.
            let place = u64::from(self.turn.wrapping_mul(GOLDEN_STEP)) * count as u64;
            let first = usize::try_from(place >> 32).unwrap_or(0);
            self.brokers.iter().cycle().skip(first).take(count)
        };
        let mut good: Vec<&Broker> = rotated().filter(|broker| broker.is_usable(now)).collect();
        good.sort_by_key(|broker| broker.answers.is_none());
        let mut chosen: Vec<T> = good.into_iter().filter_map(&get).collect();
        if chosen.is_empty() {
            chosen = rotated().filter_map(get).collect();
        }
        chosen
    }

    /// Whether a broker of the list has this address.
    #[cfg(test)]
    pub(crate) fn is_known(&self, address: &BrokerAddress) -> bool {
        let same = |known: &BrokerAddress| known.host == address.host && known.port == address.port;
        self.brokers
            .iter()
            .any(|broker| same(&broker.address) || broker.aliases.iter().any(same))
    }

    /// Up to `max` brokers that are to be probed now; each counts as being probed until [`probed`](Self::probed).
    pub(crate) fn due(&mut self, now: Duration, max: usize) -> Vec<BrokerAddress> {
        let due = |broker: &&mut Broker| broker.next_probe.is_some_and(|at| at <= now);
        let mut due: Vec<&mut Broker> = self.brokers.iter_mut().filter(due).collect();
        // Who has waited longest comes first: brokers that do not answer must not keep the others from being asked.
        due.sort_by_key(|broker| broker.next_probe);
        due.into_iter()
            .take(max)
            .map(|broker| {
                broker.next_probe = None;
                broker.address.clone()
            })
            .collect()
    }

    /// The outcome of a probe. A broker that went off the list meanwhile is of no interest.
    pub(crate) fn probed(
        &mut self,
        address: &BrokerAddress,
        answered: bool,
        now: Duration,
    ) -> Option<Change> {
        let period = self.probe_period();
        let broker = self.find(address)?;
        // Not what was known before: connections find out, too, and do not tell.
        let changed = broker.told.replace(answered) != Some(answered);
        broker.answers = Some(answered);
        broker.unanswered = if answered {
            0
        } else {
            broker.unanswered.saturating_add(1)
        };
        let wait = if answered {
            period
        } else {
            doubled(RETRY_PERIOD, broker.unanswered, RETRY_PERIOD_MAX)
        };
        broker.next_probe = Some(now.saturating_add(wait));
        changed.then_some(if answered {
            Change::Answers
        } else {
            Change::Silent
        })
    }

    /// Nothing was found out, so it is probed once more.
    pub(crate) fn not_probed(&mut self, address: &BrokerAddress, now: Duration) {
        if let Some(broker) = self.find(address) {
            broker.next_probe = Some(now.saturating_add(RETRY_PERIOD));
        }
    }

    /// It could not be connected. The next probe, which is due now, says whether that is over.
    pub(crate) fn unreachable(&mut self, address: &BrokerAddress, now: Duration) {
        if let Some(broker) = self.find(address)
            && broker.answers != Some(false)
        {
            broker.answers = Some(false);
            if broker.next_probe.is_some() {
                broker.next_probe = Some(now);
            }
        }
    }

    /// It took a connection and failed its handshake.
    pub(crate) fn failed_handshake(&mut self, address: &BrokerAddress, now: Duration) {
        let Some(broker) = self.find(address) else {
            return;
        };
        // Many connections that fail at once are one failure.
        if now < broker.ejected_until {
            return;
        }
        if now >= broker.forgiven_at {
            broker.ejections = 0;
        }
        broker.ejections = broker.ejections.saturating_add(1);
        let time = doubled(EJECTION, broker.ejections, EJECTION_MAX);
        broker.ejected_until = now.saturating_add(time);
        broker.forgiven_at = broker.ejected_until.saturating_add(FORGIVEN_AFTER);
    }

    /// A handshake with it succeeded.
    pub(crate) fn succeeded(&mut self, address: &BrokerAddress) {
        if let Some(broker) = self.find(address) {
            broker.answers = Some(true);
            broker.unanswered = 0;
            broker.ejected_until = Duration::ZERO;
        }
    }

    /// How many brokers are known, and how many of them can be asked.
    pub(crate) fn counts(&self, now: Duration) -> (usize, usize) {
        let healthy = |broker: &&Broker| broker.answers == Some(true) && broker.is_usable(now);
        (
            self.brokers.len(),
            self.brokers.iter().filter(healthy).count(),
        )
    }

    /// Whether a broker answered its last probe.
    pub(crate) fn any_answers(&self) -> bool {
        self.brokers
            .iter()
            .any(|broker| broker.answers == Some(true))
    }

    /// Whether it is known of every broker that it does not answer.
    pub(crate) fn all_silent(&self) -> bool {
        self.brokers
            .iter()
            .all(|broker| broker.answers == Some(false))
    }

    fn find(&mut self, address: &BrokerAddress) -> Option<&mut Broker> {
        self.brokers
            .iter_mut()
            .find(|broker| broker.address == *address)
    }

    /// Between two probes of a broker that answers: longer where there are so many that probing them were traffic.
    fn probe_period(&self) -> Duration {
        let count = u32::try_from(self.brokers.len()).unwrap_or(u32::MAX);
        PROBE_PERIOD.max(PROBE_SPACING.saturating_mul(count))
    }
}

impl Broker {
    fn new(address: BrokerAddress, now: Duration) -> Self {
        Self {
            address,
            aliases: BTreeSet::new(),
            web: Vec::new(),
            answers: None,
            told: None,
            unanswered: 0,
            next_probe: Some(now),
            ejections: 0,
            ejected_until: Duration::ZERO,
            forgiven_at: Duration::ZERO,
        }
    }

    fn is_usable(&self, now: Duration) -> bool {
        self.answers != Some(false) && now >= self.ejected_until
    }
}

/// `first`, doubled for each of `times` after the first, up to `max`.
fn doubled(first: Duration, times: u32, max: Duration) -> Duration {
    let factor = 1_u32
        .checked_shl(times.saturating_sub(1))
        .unwrap_or(u32::MAX);
    first.saturating_mul(factor.max(1)).min(max)
}

/// 2^32 divided by the golden ratio: its multiples lie evenly, however many are taken.
const GOLDEN_STEP: u32 = 2_654_435_769;
/// Between probes of a broker that answers.
const PROBE_PERIOD: Duration = Duration::from_secs(5);
/// Share of each broker in the time between two probes of one.
const PROBE_SPACING: Duration = Duration::from_millis(25);
/// Between probes of a broker that does not answer: the first time, and the longest.
const RETRY_PERIOD: Duration = Duration::from_millis(500);
const RETRY_PERIOD_MAX: Duration = Duration::from_secs(4);
/// How long a broker whose handshakes fail is not asked: the first time, and the longest.
const EJECTION: Duration = Duration::from_secs(1);
const EJECTION_MAX: Duration = Duration::from_secs(30);
/// A broker without failures for so long after its last ejection begins at the shortest again.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(name: &str) -> BrokerAddress {
        BrokerAddress::from_host_port(&format!("{name}:6650")).expect(name)
    }

    fn announced(name: &str) -> Announced {
        Announced {
            address: Some(address(name)),
            web: vec![format!("http://{name}:8080")],
            ..Announced::default()
        }
    }

    fn table(names: &[&str]) -> BrokerTable {
        let mut table = BrokerTable::default();
        table.replace(names.iter().map(|name| announced(name)), Duration::ZERO);
        for name in names {
            table.due(Duration::ZERO, 1);
            table.probed(&address(name), true, Duration::ZERO);
        }
        table
    }

    fn asked(table: &mut BrokerTable, now: Duration) -> Vec<String> {
        let mut hosts: Vec<String> = table
            .in_turn(now)
            .into_iter()
            .map(|broker| broker.host)
            .collect();
        hosts.sort();
        hosts
    }

    #[test]
    fn every_broker_is_the_first_in_turn() {
        let mut table = table(&["a", "b", "c"]);
        // Whoever takes each turn, or each second or third, meets them all alike.
        for step in 1..4 {
            let mut firsts = std::collections::BTreeMap::<String, u32>::new();
            for turn in 0..30 * step {
                let first = table.in_turn(SECOND).remove(0).host;
                if turn % step == 0 {
                    *firsts.entry(first).or_default() += 1;
                }
            }
            assert!(
                firsts.len() == 3 && firsts.values().all(|count| (8..=12).contains(count)),
                "{firsts:?}"
            );
        }
        assert_eq!(table.web_in_turn(SECOND).len(), 3);
        assert!(BrokerTable::default().in_turn(SECOND).is_empty());
    }

    #[test]
    fn a_broker_that_does_not_answer_is_left_out_until_a_probe_is_answered() {
        let mut table = table(&["a", "b"]);
        assert_eq!(
            table.probed(&address("a"), false, SECOND),
            Some(Change::Silent)
        );
        assert_eq!(table.probed(&address("a"), false, SECOND), None);
        assert_eq!(asked(&mut table, SECOND), ["b"]);
        assert_eq!(table.counts(SECOND), (2, 1));
        // Of two that are silent it is as well to ask both.
        table.unreachable(&address("b"), SECOND);
        assert!(table.all_silent() && !table.any_answers());
        assert_eq!(asked(&mut table, SECOND), ["a", "b"]);
        assert_eq!(
            table.probed(&address("a"), true, SECOND),
            Some(Change::Answers)
        );
        assert_eq!(asked(&mut table, SECOND), ["a"]);
    }

    #[test]
    fn that_a_broker_is_silent_and_answers_again_is_told_though_connections_find_out_first() {
        let mut table = table(&["a"]);
        let probed =
            |table: &mut BrokerTable, answered| table.probed(&address("a"), answered, SECOND);
        probed(&mut table, true);
        table.unreachable(&address("a"), SECOND);
        assert_eq!(probed(&mut table, false), Some(Change::Silent));
        assert_eq!(probed(&mut table, false), None);
        table.succeeded(&address("a"));
        assert_eq!(probed(&mut table, true), Some(Change::Answers));
        assert_eq!(probed(&mut table, true), None);
    }

    #[test]
    fn failed_handshakes_eject_for_a_time_that_doubles_and_is_bounded() {
        let mut table = table(&["a", "b"]);
        let mut now = SECOND;
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            table.failed_handshake(&address("a"), now);
            // Further ones at the same time change nothing, nor does a probe.
            table.failed_handshake(&address("a"), now);
            table.probed(&address("a"), true, now);
            let end = now + SECOND * seconds;
            assert_eq!(asked(&mut table, end - Duration::from_millis(1)), ["b"]);
            assert_eq!(asked(&mut table, end), ["a", "b"]);
            now = end;
        }
        table.failed_handshake(&address("b"), now);
        table.failed_handshake(&address("a"), now);
        assert_eq!(asked(&mut table, now), ["a", "b"], "never none");
        table.succeeded(&address("a"));
        assert_eq!(asked(&mut table, now), ["a"]);
        // After a long good time it is as if nothing had been.
        now += FORGIVEN_AFTER * 2;
        table.failed_handshake(&address("a"), now);
        assert_eq!(asked(&mut table, now + SECOND), ["a", "b"]);
    }

    #[test]
    fn a_broker_that_fails_again_and_again_between_successes_is_ejected_ever_longer() {
        let mut table = table(&["a", "b"]);
        // Long after the start, when everything of then is forgiven.
        let mut now = FORGIVEN_AFTER * 10;
        for seconds in [1, 2, 4, 8] {
            table.failed_handshake(&address("a"), now);
            let end = now + SECOND * seconds;
            assert_eq!(asked(&mut table, end - Duration::from_millis(1)), ["b"]);
            assert_eq!(asked(&mut table, end), ["a", "b"]);
            table.succeeded(&address("a"));
            now = end + SECOND;
        }
        now += FORGIVEN_AFTER * 2;
        table.failed_handshake(&address("a"), now);
        assert_eq!(asked(&mut table, now + SECOND), ["a", "b"]);
    }

    #[test]
    fn silent_brokers_are_probed_more_often_and_none_twice_at_a_time() {
        let mut table = table(&["a", "b"]);
        assert!(table.due(SECOND, 9).is_empty(), "both were asked just now");
        assert_eq!(table.due(PROBE_PERIOD, 1).len(), 1);
        assert_eq!(table.due(PROBE_PERIOD, 9), [address("b")]);
        assert!(
            table.due(PROBE_PERIOD * 9, 9).is_empty(),
            "both are being asked"
        );
        let mut now = PROBE_PERIOD;
        let mut waits = Vec::new();
        for _ in 0..6 {
            table.probed(&address("a"), false, now);
            let before = now;
            while table.due(now, 9).is_empty() {
                now += Duration::from_millis(100);
            }
            waits.push((now - before).as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 4000, 4000]);
        table.not_probed(&address("a"), now);
        assert!(table.due(now, 9).is_empty());
        assert_eq!(table.due(now + RETRY_PERIOD, 9), [address("a")]);
        // A failure seen elsewhere does not wait for the next probe.
        table.probed(&address("b"), true, now);
        table.unreachable(&address("b"), now);
        assert_eq!(table.due(now, 9), [address("b")]);
    }

    #[test]
    fn who_waited_longest_is_probed_first_wherever_it_is_on_the_list() {
        let mut table = table(&["a", "b"]);
        assert_eq!(table.due(PROBE_PERIOD, 1), [address("a")]);
        table.probed(&address("a"), false, PROBE_PERIOD);
        let later = PROBE_PERIOD + RETRY_PERIOD * 20;
        assert_eq!(table.due(later, 1), [address("b")]);
    }

    #[test]
    fn a_new_list_keeps_what_is_known_of_brokers_that_stay() {
        let mut table = table(&["a", "b"]);
        table.probed(&address("b"), false, SECOND);
        table.replace([announced("b"), announced("c"), announced("c")], SECOND);
        assert_eq!(table.counts(SECOND), (2, 0));
        // Nothing is known of c, which is better than what is known of b.
        assert_eq!(asked(&mut table, SECOND), ["c"]);
        assert!(table.is_known(&address("b")) && !table.is_known(&address("a")));
        assert_eq!(
            table.probed(&address("a"), true, SECOND),
            None,
            "it is gone"
        );
        assert_eq!(table.due(SECOND, 9), [address("c")]);
    }

    #[test]
    fn brokers_known_by_another_listener_are_known() {
        let mut table = BrokerTable::default();
        let other = BrokerAddress::from_url("pulsar+ssl://outside:6651").expect("url");
        table.replace(
            [Announced {
                aliases: BTreeSet::from([other]),
                ..announced("a")
            }],
            SECOND,
        );
        // A client names host and port and no scheme.
        let named = BrokerAddress::from_host_port("outside:6651").expect("address");
        assert!(table.is_known(&named));
    }
}
