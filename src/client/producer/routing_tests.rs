//! Routing, against what the Java client does.

use std::{sync::Arc, time::Duration};

use super::{
    options::{BatchingOptions, MessageKey, OutgoingMessage},
    routing::{HashingScheme, Router, Routing},
};

/// Keys and what `JavaStringHash.makeHash` and `Murmur3Hash32.makeHash` of the Java client 4.0.8 make of them.
const HASHES: &[(&str, u32, u32)] = &[
    ("", 0, 0),
    ("a", 97, 1009084850),
    ("key1", 3288498, 462881061),
    ("key2", 3288499, 1936800180),
    ("abc", 96354, 870159354),
    ("0123456789", 1584875013, 1891213601),
    ("hello world", 1794106052, 1586663183),
    ("ключ", 33309882, 442048578),
    ("鍵", 37749, 1288634188),
    ("😀 emoji", 574868297, 300550334),
    ("AAECAwQF", 1211059881, 922306861),
    (
        "the quick brown fox jumps over the lazy dog",
        64664947,
        48128767,
    ),
    ("ÿ", 255, 831084814),
    ("aaaaaaa", 910622721, 1497565372),
];

fn keyed(key: &str) -> OutgoingMessage {
    OutgoingMessage {
        key: Some(key.into()),
        ..OutgoingMessage::default()
    }
}

fn at(millis: u64) -> impl FnOnce() -> Duration {
    move || Duration::from_millis(millis)
}

#[test]
fn hashes_are_those_of_the_java_client() {
    for (key, java, murmur) in HASHES {
        assert_eq!(HashingScheme::JavaStringHash.hash(key), *java, "{key}");
        assert_eq!(HashingScheme::Murmur3_32Hash.hash(key), *murmur, "{key}");
    }
}

#[test]
fn a_key_decides_whatever_the_routing() {
    for routing in [Routing::SinglePartition, Routing::RoundRobin] {
        let router = Router::new(routing, HashingScheme::JavaStringHash, None, 3);
        for (key, java, _) in HASHES {
            assert_eq!(router.route(&keyed(key), 7, at(0)), java % 7);
        }
    }
}

#[test]
fn a_key_of_bytes_is_hashed_in_base64() {
    let message = OutgoingMessage {
        key: Some(MessageKey::Bytes(vec![0, 1, 2, 3, 4, 5].into())),
        ..OutgoingMessage::default()
    };
    let router = Router::new(Routing::RoundRobin, HashingScheme::Murmur3_32Hash, None, 0);
    assert_eq!(router.route(&message, 1000, at(0)), 922306861 % 1000);
}

#[test]
fn without_key_a_single_partition_stays_the_same() {
    let router = Router::new(
        Routing::SinglePartition,
        HashingScheme::JavaStringHash,
        Some(&BatchingOptions::default()),
        10,
    );
    for millis in [0, 5, 1000] {
        assert_eq!(router.route(&OutgoingMessage::default(), 4, at(millis)), 2);
    }
}

#[test]
fn round_robin_takes_the_next_partition_with_every_message() {
    let router = Router::new(Routing::RoundRobin, HashingScheme::JavaStringHash, None, 2);
    let routed: Vec<_> = (0..6)
        .map(|_| router.route(&OutgoingMessage::default(), 3, at(0)))
        .collect();
    assert_eq!(routed, [2, 0, 1, 2, 0, 1]);
}

#[test]
fn round_robin_with_batches_stays_for_ten_delays() {
    let batching = BatchingOptions {
        max_delay: Duration::from_millis(2),
        ..BatchingOptions::default()
    };
    let router = Router::new(
        Routing::RoundRobin,
        HashingScheme::JavaStringHash,
        Some(&batching),
        1,
    );
    let routed: Vec<_> = [0, 19, 20, 39, 40]
        .map(|millis| router.route(&OutgoingMessage::default(), 3, at(millis)))
        .into();
    assert_eq!(routed, [1, 1, 2, 2, 0]);
}

#[test]
fn a_custom_routing_cannot_leave_the_partitions() {
    let routing = Routing::Custom(Arc::new(|_, partitions| partitions + 5));
    let router = Router::new(routing, HashingScheme::JavaStringHash, None, 0);
    assert_eq!(router.route(&keyed("a"), 3, at(0)), 2);
}
