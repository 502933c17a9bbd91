//! Rates of counters, and the relays that are open with theirs: what `/proxy-stats` tells.
//!
//! A sampler compares counters with what they were a moment ago; readers get the rates of the last sample.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntCounter;

/// How fast a counter grows.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    last: AtomicU64,
    /// The bits of a float.
    per_second: AtomicU64,
}

impl Rate {
    /// Takes the counter's value `elapsed` after the sample before.
    pub(crate) fn sample(&self, count: u64, elapsed: Duration) {
        let grown = count.saturating_sub(self.last.swap(count, Ordering::Relaxed));
        // A rate is not known to more digits than a float has.
        #[expect(clippy::cast_precision_loss, reason = "see above")]
        let grown = grown as f64;
        let seconds = elapsed.as_secs_f64();
        let rate = if seconds > 0.0 { grown / seconds } else { 0.0 };
        self.per_second.store(rate.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn per_second(&self) -> f64 {
        f64::from_bits(self.per_second.load(Ordering::Relaxed))
    }
}

/// A relayed connection as others see it. Rates are of what the client sends, as in the Apache proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionStats {
    /// Reads from the client a second.
    pub request_rate: f64,
    /// Bytes from the client a second.
    pub byte_rate: f64,
    /// The client.
    pub client: SocketAddr,
    /// The broker, where its address is known.
    pub broker: Option<SocketAddr>,
}

/// One open relay.
#[derive(Debug)]
struct OpenRelay {
    client: SocketAddr,
    broker: Option<SocketAddr>,
    reads: AtomicU64,
    bytes: AtomicU64,
    read_rate: Rate,
    byte_rate: Rate,
}

/// All open relays; as many as there are connections.
#[derive(Debug, Default)]
pub(crate) struct OpenRelays(Mutex<Relays>);

#[derive(Debug, Default)]
struct Relays {
    open: HashMap<u64, Arc<OpenRelay>>,
    next: u64,
}

impl OpenRelays {
    /// Counts a relay as open until the guard is dropped; what it relays is added to the totals, too.
    pub(crate) fn open(
        self: &Arc<Self>,
        client: SocketAddr,
        broker: Option<SocketAddr>,
        totals: RelayTotals,
    ) -> RelayMeter {
        let relay = Arc::new(OpenRelay {
            client,
            broker,
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            read_rate: Rate::default(),
            byte_rate: Rate::default(),
        });
        let mut relays = self.0.lock();
        let id = relays.next;
        relays.next += 1;
        relays.open.insert(id, Arc::clone(&relay));
        RelayMeter {
            all: Arc::clone(self),
            id,
            relay,
            totals,
        }
    }

    pub(crate) fn sample(&self, elapsed: Duration) {
        let relays: Vec<Arc<OpenRelay>> = self.0.lock().open.values().cloned().collect();
        for relay in relays {
            let reads = relay.reads.load(Ordering::Relaxed);
            relay.read_rate.sample(reads, elapsed);
            let bytes = relay.bytes.load(Ordering::Relaxed);
            relay.byte_rate.sample(bytes, elapsed);
        }
    }

    pub(crate) fn stats(&self) -> Vec<ConnectionStats> {
        let relays = self.0.lock();
        relays
            .open
            .values()
            .map(|relay| ConnectionStats {
                request_rate: relay.read_rate.per_second(),
                byte_rate: relay.byte_rate.per_second(),
                client: relay.client,
                broker: relay.broker,
            })
            .collect()
    }
}

/// Counters of all relays together.
#[derive(Debug, Clone)]
pub(crate) struct RelayTotals {
    pub(crate) chunks: IntCounter,
    pub(crate) bytes: IntCounter,
}

/// Counts what one relay moves.
#[derive(Debug)]
pub(crate) struct RelayMeter {
    all: Arc<OpenRelays>,
    id: u64,
    relay: Arc<OpenRelay>,
    totals: RelayTotals,
}

impl RelayMeter {
    /// One chunk was relayed.
    pub(crate) fn relayed(&self, from_client: bool, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.totals.chunks.inc();
        self.totals.bytes.inc_by(bytes);
        if from_client {
            self.relay.reads.fetch_add(1, Ordering::Relaxed);
            self.relay.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for RelayMeter {
    fn drop(&mut self) {
        self.all.0.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals() -> RelayTotals {
        RelayTotals {
            chunks: IntCounter::new("chunks", "c").expect("a name"),
            bytes: IntCounter::new("bytes", "b").expect("a name"),
        }
    }

    #[test]
    fn rates_are_those_of_the_last_sample() {
        let rate = Rate::default();
        rate.sample(100, Duration::from_secs(10));
        assert!((rate.per_second() - 10.0).abs() < f64::EPSILON);
        rate.sample(100, Duration::from_secs(10));
        assert!(rate.per_second().abs() < f64::EPSILON);
        rate.sample(150, Duration::ZERO);
        assert!(rate.per_second().abs() < f64::EPSILON);
        rate.sample(150 + (1 << 36), Duration::from_secs(1));
        assert!((rate.per_second() - 68_719_476_736.0).abs() < 1.0);
    }

    #[test]
    fn open_relays_are_listed_with_the_rates_of_their_clients() {
        let relays = Arc::new(OpenRelays::default());
        let client: SocketAddr = "10.0.0.1:5".parse().expect("an address");
        let totals = totals();
        let meter = relays.open(client, None, totals.clone());
        let other = relays.open(client, Some(client), totals.clone());
        meter.relayed(true, 1000);
        meter.relayed(false, 9);
        relays.sample(Duration::from_secs(2));
        drop(other);
        let expected = ConnectionStats {
            request_rate: 0.5,
            byte_rate: 500.0,
            client,
            broker: None,
        };
        assert_eq!(relays.stats(), [expected]);
        assert_eq!((totals.chunks.get(), totals.bytes.get()), (2, 1009));
        drop(meter);
        assert_eq!(relays.stats(), []);
    }
}
