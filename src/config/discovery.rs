//! Where the gateway's brokers are known from, and how lookups are asked of them.

use std::fmt;
use std::time::Duration;

use super::build::{BOOLEAN, Builder, boolean};
use super::problem::Problem;
use crate::naming::BrokerAddress;

/// Settings of discovery and of lookups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoverySettings {
    /// `metadataStoreUrl`: where the live list of brokers is kept. `None`: the list is not asked for, either because it is not
    /// set or because `brokerServiceURL` says which brokers there are and `checkActiveBrokers` is off.
    pub metadata_store: Option<ZooKeeperUrl>,
    /// `metadataStoreSessionTimeoutMillis`: after how long without a word ZooKeeper gives a session up.
    pub session_timeout: Duration,
    /// `checkActiveBrokers`: clients are connected to brokers of the live list only.
    pub check_active_brokers: bool,
    /// `lookupOnly`: clients are told the brokers' own addresses and never connected to them.
    pub lookup_only: bool,
    /// `brokerListenerName`: which of the brokers' `advertisedListeners` lookups ask for where the client names none, and which
    /// discovered brokers are asked at.
    pub broker_listener_name: Option<String>,
}

impl Default for DiscoverySettings {
    fn default() -> Self {
        Self {
            metadata_store: None,
            session_timeout: Duration::from_millis(30_000),
            check_active_brokers: false,
            lookup_only: false,
            broker_listener_name: None,
        }
    }
}

/// The servers of a ZooKeeper ensemble, and the path under which Pulsar's nodes are.
#[derive(Clone, PartialEq, Eq)]
pub struct ZooKeeperUrl {
    servers: Vec<BrokerAddress>,
    /// Empty, or a path with a slash in front and none behind.
    chroot: String,
}

/// Why a text is no URL of a ZooKeeper.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ZooKeeperUrlError {
    #[error("brokers are discovered in ZooKeeper only, not in {0}:")]
    OtherStore(&'static str),
    #[error("no server is named")]
    Empty,
    #[error("{0:?} is no host:port")]
    BadServer(String),
    #[error("more than {SERVERS_MAX} servers")]
    TooMany,
    #[error("{0:?} is no path of ZooKeeper")]
    BadPath(String),
}

impl ZooKeeperUrl {
    /// Parses `zk:host:port,host:port/path`; `zk:` may be missing, as in Apache's older settings, and a port that is missing is 2181.
    pub(super) fn parse(text: &str) -> Result<Self, ZooKeeperUrlError> {
        for store in OTHER_STORES {
            if text
                .strip_prefix(store)
                .is_some_and(|rest| rest.starts_with(':') && !is_port(rest))
            {
                return Err(ZooKeeperUrlError::OtherStore(store));
            }
        }
        // `zk:2181` is a server of that name.
        let text = match text.strip_prefix("zk:") {
            Some(_) if text.strip_prefix("zk").is_some_and(is_port) => text,
            Some(rest) => rest,
            None => text,
        };
        let text = text.strip_prefix("//").unwrap_or(text);
        let (servers, chroot) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let chroot = chroot.trim_end_matches('/');
        let is_path = |path: &str| {
            path.len() <= PATH_MAX
                && path.split('/').skip(1).all(|part| {
                    !matches!(part, "" | "." | "..")
                        && part.bytes().all(|byte| byte.is_ascii_graphic())
                })
        };
        if !is_path(chroot) {
            return Err(ZooKeeperUrlError::BadPath(excerpt(chroot)));
        }
        let mut parsed = Vec::new();
        for server in servers.split(',').map(str::trim) {
            if server.is_empty() {
                return Err(ZooKeeperUrlError::Empty);
            }
            if parsed.len() == SERVERS_MAX {
                return Err(ZooKeeperUrlError::TooMany);
            }
            let address = BrokerAddress::from_host_port(server)
                .or_else(|_| BrokerAddress::from_host_port(&format!("{server}:{PORT}")))
                .ok()
                .filter(|_| !server.contains("://"))
                .ok_or_else(|| ZooKeeperUrlError::BadServer(excerpt(server)))?;
            parsed.push(address);
        }
        Ok(Self {
            servers: parsed,
            chroot: chroot.to_owned(),
        })
    }

    /// `host:port,host:port/path`, the form that ZooKeeper's clients take.
    #[must_use]
    pub fn connect_string(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        format!("{}{}", servers.join(","), self.chroot)
    }
}

impl fmt::Debug for ZooKeeperUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ZooKeeperUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zk:{}", self.connect_string())
    }
}

impl Builder {
    pub(super) fn discovery(&mut self) -> DiscoverySettings {
        let defaults = DiscoverySettings::default();
        let check_active_brokers = self.parse(
            "checkActiveBrokers",
            defaults.check_active_brokers,
            BOOLEAN,
            boolean,
        );
        DiscoverySettings {
            metadata_store: self.metadata_store(check_active_brokers),
            session_timeout: Duration::from_millis(self.number(
                "metadataStoreSessionTimeoutMillis",
                30_000,
                1_000,
                SESSION_TIMEOUT_MAX,
            )),
            check_active_brokers,
            lookup_only: self.parse("lookupOnly", defaults.lookup_only, BOOLEAN, boolean),
            broker_listener_name: self.parse("brokerListenerName", None, LISTENER_NAME, |text| {
                listener_name(text).map(Some)
            }),
        }
    }

    /// Whether the brokers are to be found in a metadata store, as `brokerServiceURL` names none.
    pub(super) fn discovers_brokers(&self) -> bool {
        self.text("brokerServiceURL").is_none() && self.text("metadataStoreUrl").is_some()
    }

    fn metadata_store(&mut self, check_active_brokers: bool) -> Option<ZooKeeperUrl> {
        let key = "metadataStoreUrl";
        let Some(text) = self.text(key).map(str::to_owned) else {
            if check_active_brokers {
                let what = "only a metadata store knows which brokers are active";
                let problem = Problem::new(
                    self.origin("checkActiveBrokers"),
                    "checkActiveBrokers",
                    what,
                );
                self.problems
                    .push(problem.expected("metadataStoreUrl as well"));
            }
            return None;
        };
        if !check_active_brokers && !self.discovers_brokers() {
            let what = "not asked: brokerServiceURL says which brokers there are";
            self.warnings
                .push(Problem::new(self.origin(key), key, what));
            return None;
        }
        let what = match ZooKeeperUrl::parse(&text) {
            Ok(_) if !cfg!(feature = "zookeeper") => {
                "this program was built without the feature zookeeper".to_owned()
            }
            Ok(url) => return Some(url),
            Err(error) => error.to_string(),
        };
        let problem = Problem::new(self.origin(key), key, what);
        self.problems.push(problem.expected(METADATA_STORE));
        None
    }
}

/// Whether a text begins as `:2181` does: what stands before it is a host then.
fn is_port(text: &str) -> bool {
    let digits = text.strip_prefix(':').unwrap_or_default();
    let end = digits.find([',', '/']).unwrap_or(digits.len());
    digits
        .get(..end)
        .is_some_and(|port| port.parse::<u16>().is_ok())
}

fn excerpt(text: &str) -> String {
    const SHOWN: usize = 80;
    text.chars().take(SHOWN).collect()
}

/// The name of a listener as brokers take it in `advertisedListeners`, where `:` and `,` separate.
fn listener_name(text: &str) -> Option<String> {
    (text.len() <= LISTENER_NAME_MAX
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b':' | b',')))
    .then(|| text.to_owned())
}

/// The metadata stores of Apache Pulsar in which brokers cannot be discovered, and how their URLs begin.
const OTHER_STORES: [&str; 4] = ["oxia", "etcd", "rocksdb", "memory"];
const METADATA_STORE: &str =
    "zk:host:port[,host:port][/path], or the brokers in brokerServiceURL or --broker";
const LISTENER_NAME: &str = "the name of an advertised listener of the brokers";
/// ZooKeeper's port where a URL names none.
const PORT: u16 = 2181;
const SERVERS_MAX: usize = 64;
const PATH_MAX: usize = 1024;
const LISTENER_NAME_MAX: usize = 255;
/// An hour: ZooKeeper grants no more than its own maximum anyway.
const SESSION_TIMEOUT_MAX: u64 = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_every_form_name_servers_and_path() {
        for (text, expected) in [
            ("zk:zk-1:2181", "zk-1:2181"),
            (
                "zk:zk-1:2181,zk-2:2182,zk-3:2183/my/pulsar",
                "zk-1:2181,zk-2:2182,zk-3:2183/my/pulsar",
            ),
            ("zk-1:2181,zk-2:2181", "zk-1:2181,zk-2:2181"),
            ("zk://zk-1:2181/pulsar/", "zk-1:2181/pulsar"),
            ("zk-1", "zk-1:2181"),
            ("zk:127.0.0.1:2181", "127.0.0.1:2181"),
            ("zk:[::1]:2181", "[::1]:2181"),
            // A host may have the name of a store.
            ("etcd:2181/pulsar", "etcd:2181/pulsar"),
            ("memory:2181,oxia:2181", "memory:2181,oxia:2181"),
            ("zk:2181/pulsar", "zk:2181/pulsar"),
            ("zk:zk:2181", "zk:2181"),
        ] {
            let url = ZooKeeperUrl::parse(text).map(|url| url.connect_string());
            assert_eq!(url.as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_stores_and_malformed_urls_are_refused_by_name() {
        for (text, expected) in [
            ("oxia://localhost:6648", "not in oxia:"),
            ("etcd:http://localhost:2379", "not in etcd:"),
            ("rocksdb:/var/lib/metadata", "not in rocksdb:"),
            ("rocksdb:///var/lib/metadata", "not in rocksdb:"),
            ("memory:local", "not in memory:"),
            ("zk:", "no server"),
            ("zk:a:2181,,b:2181", "no server"),
            ("zk:a:0", "no host:port"),
            ("zk:a:b:c", "no host:port"),
            ("zk:pulsar://a:2181", "no path"),
            ("zk:a:2181/x//y", "no path"),
            ("zk:a:2181/../x", "no path"),
        ] {
            let error = ZooKeeperUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let many = vec!["a:1"; SERVERS_MAX + 1].join(",");
        assert_eq!(ZooKeeperUrl::parse(&many), Err(ZooKeeperUrlError::TooMany));
    }
}
