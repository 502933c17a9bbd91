//! Which partition of a topic a message goes to. Pure.
//!
//! Messages with a key go by the hash of the key, so that all producers send a key to the same partition; the hashes are
//! those of Apache's clients (`JavaStringHash`, `Murmur3Hash32`).

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::options::{BatchingOptions, CustomRouting, MessageKey, OutgoingMessage};

/// Which partition a message goes to. Except with `Custom`, a key decides where there is one.
#[derive(Clone)]
pub enum Routing {
    /// All messages without key to one partition, chosen at random when the producer is created.
    SinglePartition,
    /// Messages without key to one partition after the other: with batches another one every ten batching delays, so
    /// that batches fill, else with every message.
    RoundRobin,
    /// By the application: the message and the number of partitions give the partition.
    Custom(CustomRouting),
}

impl fmt::Debug for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SinglePartition => "SinglePartition",
            Self::RoundRobin => "RoundRobin",
            Self::Custom(_) => "Custom",
        })
    }
}

/// The hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashingScheme {
    /// `String.hashCode()` of Java.
    JavaStringHash,
    /// MurmurHash3, 32 bits, seed 0, of the key in UTF-8.
    Murmur3_32Hash,
}

impl HashingScheme {
    /// The hash, without its sign: 0 to 2^31 - 1.
    pub fn hash(self, key: &str) -> u32 {
        let hash = match self {
            Self::JavaStringHash => key.encode_utf16().fold(0_u32, |hash, unit| {
                hash.wrapping_mul(31).wrapping_add(unit.into())
            }),
            Self::Murmur3_32Hash => murmur3(key.as_bytes()),
        };
        hash & 0x7fff_ffff
    }
}

/// Chooses partitions for one producer.
#[derive(Debug)]
pub(crate) struct Router {
    routing: Routing,
    hashing: HashingScheme,
    /// How long messages without key go to the same partition; `None`: one message.
    switch_after: Option<Duration>,
    /// Where round robin starts, so that producers that start together do not go together; the chosen partition.
    start: u64,
    turn: AtomicU64,
}

impl Router {
    /// `start` is random.
    pub(crate) fn new(
        routing: Routing,
        hashing: HashingScheme,
        batching: Option<&BatchingOptions>,
        start: u64,
    ) -> Self {
        Self {
            routing,
            hashing,
            switch_after: batching.map(|batching| batching.max_delay * SWITCH_AFTER_DELAYS),
            start,
            turn: AtomicU64::new(start),
        }
    }

    /// The partition, below `partitions`, which is not 0. `now` is the time since some fixed moment.
    pub(crate) fn route(
        &self,
        message: &OutgoingMessage,
        partitions: u32,
        now: impl FnOnce() -> Duration,
    ) -> u32 {
        let partitions = partitions.max(1);
        if let Routing::Custom(choose) = &self.routing {
            return choose(message, partitions).min(partitions - 1);
        }
        if let Some(key) = &message.key {
            let hash = match key {
                MessageKey::Text(key) => self.hashing.hash(key),
                MessageKey::Bytes(key) => self.hashing.hash(&super::base64::encode(key)),
            };
            return hash % partitions;
        }
        let turn = match (&self.routing, self.switch_after) {
            (Routing::RoundRobin, Some(period)) => {
                let period = period.as_millis().max(1);
                let periods = u64::try_from(now().as_millis() / period).unwrap_or_default();
                self.start.wrapping_add(periods)
            }
            (Routing::RoundRobin, None) => self.turn.fetch_add(1, Ordering::Relaxed),
            _ => self.start,
        };
        u32::try_from(turn % u64::from(partitions)).unwrap_or_default()
    }
}

fn murmur3(bytes: &[u8]) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let mix = |word: u32| word.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
    let mut hash = 0_u32;
    let (words, tail) = bytes.as_chunks::<4>();
    for word in words {
        hash = (hash ^ mix(u32::from_le_bytes(*word)))
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64);
    }
    let mut last = 0_u32;
    for (at, &byte) in tail.iter().enumerate() {
        last |= u32::from(byte) << (8 * at);
    }
    if !tail.is_empty() {
        hash ^= mix(last);
    }
    // The length counts modulo 2^32.
    let [a, b, c, d, ..] = bytes.len().to_le_bytes();
    hash ^= u32::from_le_bytes([a, b, c, d]);
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// `batchingPartitionSwitchFrequencyByPublishDelay` of the Java client.
const SWITCH_AFTER_DELAYS: u32 = 10;
