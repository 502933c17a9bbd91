//! Traffic per topic: counters that relays add to, bounded by `gatewayMaxTrackedTopics`.
//!
//! Names are chosen by strangers, so a name becomes a label only when a broker accepted a producer or consumer of it, and no
//! more than the maximum are held: what does not fit is counted under [`OTHER`]. A topic that nobody uses gives its place to a
//! new one when the table is full; its series end then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use super::rates::Rate;
use crate::telemetry::{MetricKind, write_header, write_sample};

/// Label of all topics beyond the maximum.
pub(crate) const OTHER: &str = "__other__";

/// The counters of one topic, in the direction that clients see: `in` is what producers publish.
#[derive(Debug, Default)]
pub(crate) struct TopicCounters {
    messages_in: AtomicU64,
    bytes_in: AtomicU64,
    messages_out: AtomicU64,
    bytes_out: AtomicU64,
    producers: AtomicI64,
    consumers: AtomicI64,
    /// Open uses. Grows only under the table's lock, so that a topic without any can be evicted under the exclusive one.
    uses: AtomicUsize,
    rates: TopicRates,
}

#[derive(Debug, Default)]
struct TopicRates {
    messages_in: Rate,
    bytes_in: Rate,
    messages_out: Rate,
    bytes_out: Rate,
}

/// Rates of a topic, a second, in the direction that clients see.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicStats {
    /// Full name of the topic.
    pub topic: String,
    /// Messages that producers publish.
    pub messages_in: f64,
    /// Bytes of their SEND frames.
    pub bytes_in: f64,
    /// Messages that consumers receive.
    pub messages_out: f64,
    /// Bytes of their MESSAGE frames.
    pub bytes_out: f64,
}

/// What a client does on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Producer,
    Consumer,
}

/// One open producer or consumer of a topic; counted as such until it is dropped.
#[derive(Debug)]
pub(crate) struct TopicUse {
    counters: Arc<TopicCounters>,
    table: Arc<TopicTable>,
    role: Role,
}

impl TopicUse {
    /// Adds relayed messages and bytes (whole frames).
    pub(crate) fn add(&self, messages: u64, bytes: u64) {
        let (m, b) = match self.role {
            Role::Producer => (&self.counters.messages_in, &self.counters.bytes_in),
            Role::Consumer => (&self.counters.messages_out, &self.counters.bytes_out),
        };
        m.fetch_add(messages, Ordering::Relaxed);
        b.fetch_add(bytes, Ordering::Relaxed);
    }

    fn gauge(&self) -> &AtomicI64 {
        match self.role {
            Role::Producer => &self.counters.producers,
            Role::Consumer => &self.counters.consumers,
        }
    }
}

impl Drop for TopicUse {
    fn drop(&mut self) {
        self.gauge().fetch_sub(1, Ordering::Relaxed);
        // In this order: a sweep that still saw the use has set `crowded` before it looked.
        self.counters.uses.fetch_sub(1, Ordering::SeqCst);
        self.table.crowded.store(false, Ordering::SeqCst);
    }
}

/// All tracked topics.
#[derive(Debug)]
pub(crate) struct TopicTable {
    topics: RwLock<HashMap<Box<str>, Arc<TopicCounters>>>,
    other: Arc<TopicCounters>,
    topics_max: usize,
    /// Full, and the last sweep found nobody to evict; reset when a use ends, so that a full table is not swept each time.
    crowded: AtomicBool,
}

impl TopicTable {
    /// A table for at most `topics_max` topics beside [`OTHER`].
    pub(crate) fn new(topics_max: usize) -> Arc<Self> {
        Arc::new(Self {
            topics: RwLock::default(),
            other: Arc::default(),
            topics_max,
            crowded: AtomicBool::new(false),
        })
    }

    /// Counts one producer or consumer of `topic` (its full name) until the returned guard is dropped.
    pub(crate) fn open(self: &Arc<Self>, topic: &str, role: Role) -> TopicUse {
        let counters = self.counters(topic);
        self.opened(counters.unwrap_or_else(|| self.other_used()), role)
    }

    /// One producer or consumer whose topic is not told apart.
    pub(crate) fn open_other(self: &Arc<Self>, role: Role) -> TopicUse {
        self.opened(self.other_used(), role)
    }

    /// `counters` count the use already.
    fn opened(self: &Arc<Self>, counters: Arc<TopicCounters>, role: Role) -> TopicUse {
        let opened = TopicUse {
            counters,
            table: Arc::clone(self),
            role,
        };
        opened.gauge().fetch_add(1, Ordering::Relaxed);
        opened
    }

    /// Those of all topics beyond the maximum, with one use more.
    fn other_used(&self) -> Arc<TopicCounters> {
        used(&self.other)
    }

    /// Those of the topic, with one use more; `None` where there is no place for it.
    fn counters(&self, topic: &str) -> Option<Arc<TopicCounters>> {
        if let Some(counters) = self.topics.read().get(topic) {
            return Some(used(counters));
        }
        if self.topics_max == 0 || self.crowded.load(Ordering::SeqCst) {
            return None;
        }
        let mut topics = self.topics.write();
        if !topics.contains_key(topic) && topics.len() >= self.topics_max {
            // Before it is looked who uses what: a use that ends meanwhile takes it back.
            self.crowded.store(true, Ordering::SeqCst);
            topics.retain(|_, counters| counters.uses.load(Ordering::SeqCst) > 0);
            if topics.len() >= self.topics_max {
                return None;
            }
            self.crowded.store(false, Ordering::SeqCst);
        }
        Some(used(topics.entry(topic.into()).or_default()))
    }

    fn all(&self) -> Vec<(Box<str>, Arc<TopicCounters>)> {
        let topics = self.topics.read();
        topics
            .iter()
            .map(|(name, counters)| (name.clone(), Arc::clone(counters)))
            .collect()
    }

    pub(crate) fn sample(&self, elapsed: Duration) {
        for (_, topic) in self.all() {
            let rates = [
                (&topic.rates.messages_in, &topic.messages_in),
                (&topic.rates.bytes_in, &topic.bytes_in),
                (&topic.rates.messages_out, &topic.messages_out),
                (&topic.rates.bytes_out, &topic.bytes_out),
            ];
            for (rate, counter) in rates {
                rate.sample(counter.load(Ordering::Relaxed), elapsed);
            }
        }
    }

    /// The topics with series of their own.
    pub(crate) fn stats(&self) -> Vec<TopicStats> {
        let all = self.all().into_iter();
        all.map(|(topic, counters)| TopicStats {
            topic: topic.into(),
            messages_in: counters.rates.messages_in.per_second(),
            bytes_in: counters.rates.bytes_in.per_second(),
            messages_out: counters.rates.messages_out.per_second(),
            bytes_out: counters.rates.bytes_out.per_second(),
        })
        .collect()
    }

    /// Appends the series in Prometheus text format, each sample with the `cluster` label.
    pub(crate) fn render(&self, cluster: &str, out: &mut String) {
        let topics = self.all();
        let other: (Box<str>, _) = (OTHER.into(), Arc::clone(&self.other));
        for series in SERIES {
            write_header(out, series.name, series.help, series.kind);
            for (topic, counters) in topics.iter().chain(std::iter::once(&other)) {
                let labels = [("cluster", cluster), ("topic", topic.as_ref())];
                write_sample(out, series.name, &labels, (series.value)(counters));
            }
        }
    }
}

/// One use more of these. Under the table's lock, unless they are those that are never evicted.
fn used(counters: &Arc<TopicCounters>) -> Arc<TopicCounters> {
    counters.uses.fetch_add(1, Ordering::SeqCst);
    Arc::clone(counters)
}

struct Series {
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    value: fn(&TopicCounters) -> i128,
}

const SERIES: [Series; 6] = [
    Series {
        name: "pulsegate_gateway_topic_in_messages_total",
        help: "Messages that producers published to the topic through this gateway.",
        kind: MetricKind::Counter,
        value: |topic| topic.messages_in.load(Ordering::Relaxed).into(),
    },
    Series {
        name: "pulsegate_gateway_topic_in_bytes_total",
        help: "Bytes of the SEND frames of these messages.",
        kind: MetricKind::Counter,
        value: |topic| topic.bytes_in.load(Ordering::Relaxed).into(),
    },
    Series {
        name: "pulsegate_gateway_topic_out_messages_total",
        help: "Messages of the topic that consumers received through this gateway.",
        kind: MetricKind::Counter,
        value: |topic| topic.messages_out.load(Ordering::Relaxed).into(),
    },
    Series {
        name: "pulsegate_gateway_topic_out_bytes_total",
        help: "Bytes of the MESSAGE frames of these messages.",
        kind: MetricKind::Counter,
        value: |topic| topic.bytes_out.load(Ordering::Relaxed).into(),
    },
    Series {
        name: "pulsegate_gateway_topic_producers",
        help: "Producers that are open on the topic through this gateway.",
        kind: MetricKind::Gauge,
        value: |topic| topic.producers.load(Ordering::Relaxed).into(),
    },
    Series {
        name: "pulsegate_gateway_topic_consumers",
        help: "Consumers that are open on the topic through this gateway.",
        kind: MetricKind::Gauge,
        value: |topic| topic.consumers.load(Ordering::Relaxed).into(),
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tells_the_rates_of_the_last_sample() {
        let table = TopicTable::new(10);
        let producer = table.open("persistent://t/n/x", Role::Producer);
        producer.add(6, 300);
        table.sample(Duration::from_secs(3));
        let expected = TopicStats {
            topic: "persistent://t/n/x".to_owned(),
            messages_in: 2.0,
            bytes_in: 100.0,
            messages_out: 0.0,
            bytes_out: 0.0,
        };
        assert_eq!(table.stats(), [expected]);
    }

    fn rendered(table: &Arc<TopicTable>) -> String {
        let mut out = String::new();
        table.render("c", &mut out);
        out
    }

    #[test]
    fn counts_both_directions_and_open_uses() {
        let table = TopicTable::new(10);
        let producer = table.open("persistent://t/n/x", Role::Producer);
        let consumer = table.open("persistent://t/n/x", Role::Consumer);
        producer.add(3, 300);
        consumer.add(2, 200);
        let text = rendered(&table);
        assert!(text.contains("in_messages_total{cluster=\"c\",topic=\"persistent://t/n/x\"} 3\n"));
        assert!(text.contains("out_bytes_total{cluster=\"c\",topic=\"persistent://t/n/x\"} 200\n"));
        assert!(text.contains("topic_producers{cluster=\"c\",topic=\"persistent://t/n/x\"} 1\n"));
        drop((producer, consumer));
        let text = rendered(&table);
        assert!(text.contains("topic_producers{cluster=\"c\",topic=\"persistent://t/n/x\"} 0\n"));
        assert!(text.contains("topic_consumers{cluster=\"c\",topic=\"persistent://t/n/x\"} 0\n"));
    }

    #[test]
    fn topics_beyond_the_maximum_are_counted_together_until_a_place_is_free() {
        let table = TopicTable::new(2);
        let a = table.open("a", Role::Producer);
        let b = table.open("b", Role::Producer);
        table.open("c", Role::Producer).add(5, 50);
        assert!(
            rendered(&table)
                .contains("topic_in_messages_total{cluster=\"c\",topic=\"__other__\"} 5\n")
        );
        assert!(!rendered(&table).contains("topic=\"c\""));
        drop(a);
        table.open("d", Role::Producer).add(7, 70);
        let text = rendered(&table);
        assert!(text.contains("topic_in_messages_total{cluster=\"c\",topic=\"d\"} 7\n"));
        assert!(!text.contains("topic=\"a\""));
        drop(b);
    }

    #[test]
    fn a_place_is_free_as_soon_as_nobody_uses_the_topic_whoever_looks_at_it() {
        let table = TopicTable::new(1);
        drop(table.open("a", Role::Producer));
        // As a scrape does while it writes.
        let seen = table.all();
        table.open("b", Role::Producer).add(1, 10);
        drop(seen);
        let text = rendered(&table);
        assert!(text.contains("topic_in_messages_total{cluster=\"c\",topic=\"b\"} 1\n"));
    }

    /// What happens to a table.
    #[derive(Debug, Clone)]
    enum Event {
        Open { topic: usize, role: Role },
        OpenOther(Role),
        Close(prop::sample::Index),
        Add(prop::sample::Index, u64, u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let role = || prop_oneof![Just(Role::Producer), Just(Role::Consumer)];
        prop_oneof![
            4 => (0..6_usize, role()).prop_map(|(topic, role)| Event::Open { topic, role }),
            1 => role().prop_map(Event::OpenOther),
            4 => any::<prop::sample::Index>().prop_map(Event::Close),
            4 => (any::<prop::sample::Index>(), 0..100_u64, 0..10_000_u64)
                .prop_map(|(at, messages, bytes)| Event::Add(at, messages, bytes)),
        ]
    }

    /// Values of the series, in their order.
    type Row = [i128; 6];

    fn add(row: &mut Row, role: Role, messages: u64, bytes: u64) {
        let at = if role == Role::Producer { 0 } else { 2 };
        row[at] += i128::from(messages);
        row[at + 1] += i128::from(bytes);
    }

    fn count(row: &mut Row, role: Role, change: i128) {
        row[if role == Role::Producer { 4 } else { 5 }] += change;
    }

    fn uses(row: &Row) -> i128 {
        row[4] + row[5]
    }

    /// A table that does everything at once and by the book.
    #[derive(Debug, Default)]
    struct Model {
        topics: BTreeMap<String, Row>,
        other: Row,
        /// What the series of topics that gave way had counted.
        gone: Row,
    }

    impl Model {
        /// Where a use of the topic is counted.
        fn open(&mut self, topic: &str, max: usize) -> String {
            if !self.topics.contains_key(topic) && self.topics.len() >= max {
                let gone = &mut self.gone;
                self.topics.retain(|_, row| {
                    if uses(row) == 0 {
                        for (sum, value) in gone.iter_mut().zip(row.iter()) {
                            *sum += value;
                        }
                    }
                    uses(row) > 0
                });
                if self.topics.len() >= max {
                    return OTHER.to_owned();
                }
            }
            self.topics.entry(topic.to_owned()).or_default();
            topic.to_owned()
        }

        fn row(&mut self, place: &str) -> &mut Row {
            match self.topics.get_mut(place) {
                Some(row) => row,
                None => &mut self.other,
            }
        }
    }

    fn rows(table: &TopicTable) -> BTreeMap<String, Row> {
        let mut rows = BTreeMap::new();
        let other = (OTHER.into(), Arc::clone(&table.other));
        for (topic, counters) in table.all().into_iter().chain(std::iter::once(other)) {
            let row = SERIES.map(|series| (series.value)(&counters));
            rows.insert(topic.into(), row);
        }
        rows
    }

    proptest! {
        /// Whatever comes and goes: never more topics than the maximum, each with what was counted for it, all else together in
        /// one, and nothing that was counted lost but with a series that ended.
        #[test]
        fn counts_are_those_of_a_table_by_the_book(
            max in 0..4_usize,
            events in prop::collection::vec(event(), 0..200),
        ) {
            let table = TopicTable::new(max);
            let mut model = Model::default();
            let mut open: Vec<(TopicUse, String, Role)> = Vec::new();
            let mut total = 0;
            for event in events {
                match event {
                    Event::Open { topic, role } => {
                        let topic = format!("persistent://t/n/{topic}");
                        let place = model.open(&topic, max);
                        count(model.row(&place), role, 1);
                        open.push((table.open(&topic, role), place, role));
                    }
                    Event::OpenOther(role) => {
                        count(&mut model.other, role, 1);
                        open.push((table.open_other(role), OTHER.to_owned(), role));
                    }
                    Event::Close(_) | Event::Add(..) if open.is_empty() => {}
                    Event::Close(at) => {
                        let (used, place, role) = open.swap_remove(at.index(open.len()));
                        drop(used);
                        count(model.row(&place), role, -1);
                    }
                    Event::Add(at, messages, bytes) => {
                        let (used, place, role) = &open[at.index(open.len())];
                        used.add(messages, bytes);
                        add(model.row(place), *role, messages, bytes);
                        total += i128::from(messages) + i128::from(bytes);
                    }
                }
                let mut expected = model.topics.clone();
                expected.insert(OTHER.to_owned(), model.other);
                prop_assert_eq!(rows(&table), expected);
                prop_assert!(table.topics.read().len() <= max);
                let mut counted: i128 = model.gone[..4].iter().sum();
                for row in rows(&table).values() {
                    counted += row[..4].iter().sum::<i128>();
                }
                prop_assert_eq!(counted, total);
            }
            drop(open);
            for row in rows(&table).values() {
                prop_assert_eq!(uses(row), 0);
            }
        }
    }

    /// Many threads at once: the bound holds at every moment, and what is counted in all is what was added.
    #[test]
    fn the_bound_holds_and_nothing_is_lost_while_many_open_and_close_at_once() {
        const MAX: usize = 3;
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 2_000;
        let table = TopicTable::new(MAX);
        // Keeps its place, so what is counted for it cannot go with its series.
        let kept = table.open("kept", Role::Consumer);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let topic = format!("{}", (thread * 7 + round) % 6);
                        let used = table.open(&topic, Role::Producer);
                        let always = table.open("kept", Role::Producer);
                        let beside = table.open_other(Role::Consumer);
                        used.add(1, 10);
                        always.add(1, 10);
                        beside.add(1, 10);
                        assert!(table.topics.read().len() <= MAX);
                    }
                });
            }
        });
        let rows = rows(&table);
        let expected = i128::from(THREADS * ROUNDS);
        assert_eq!(rows["kept"], [expected, expected * 10, 0, 0, 0, 1]);
        let other = rows[OTHER];
        assert_eq!(other[2..], [expected, expected * 10, 0, 0]);
        assert!(other[0] <= expected && other[1] == other[0] * 10);
        for (topic, row) in &rows {
            assert!(topic == "kept" || uses(row) == 0, "{topic}: {row:?}");
        }
        drop(kept);
    }
}
