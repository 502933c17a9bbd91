//! Which brokers a client may name in `CommandConnect.proxy_to_broker_url`: without a limit a gateway is an open relay
//! (CVE-2022-24280 was one).
//!
//! The default list is learned: the configured brokers, and those that a trusted broker named in a lookup answer or when it
//! moved a topic. `brokerProxyAllowedHostNames` replaces the list by host patterns; `brokerProxyAllowedIPAddresses` and
//! `brokerProxyAllowedTargetPorts` narrow either.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

use parking_lot::RwLock;

use crate::config::GatewaySettings;
use crate::naming::{AddressRange, BrokerAddress};

/// Decides about targets; shared by all connections. A target that is not configured must pass all three checks; a configured
/// one is the operator's own word.
#[derive(Debug)]
pub(crate) struct TargetPolicy {
    configured: HashSet<Target>,
    hosts: Hosts,
    /// `None`: every port.
    ports: Option<Vec<u16>>,
    /// `None`: every address.
    addresses: Option<Vec<AddressRange>>,
}

#[derive(Debug)]
enum Hosts {
    Learned(RwLock<KnownTargets>),
    /// In lower case.
    Patterns(Vec<String>),
}

/// Why a target is refused. The text is for the log; a client is told no more than that it is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error("{0} is neither a configured broker nor was it named by one")]
    Unknown(String),
    #[error("port {0} is not in brokerProxyAllowedTargetPorts")]
    Port(u16),
    #[error("host {0} is not in brokerProxyAllowedHostNames")]
    Host(String),
}

impl TargetPolicy {
    /// The policy that the settings ask for.
    pub(crate) fn new(settings: &GatewaySettings) -> Self {
        let hosts = match &settings.allowed_host_names {
            Some(patterns) => Hosts::Patterns(
                patterns
                    .iter()
                    .map(|pattern| pattern.to_ascii_lowercase())
                    .collect(),
            ),
            None => Hosts::Learned(RwLock::default()),
        };
        Self {
            configured: settings.broker.addresses.iter().map(key).collect(),
            hosts,
            ports: settings.allowed_target_ports.clone(),
            addresses: settings.allowed_ip_addresses.clone(),
        }
    }

    /// Checks what can be checked before the host name is resolved.
    pub(crate) fn check(&self, target: &BrokerAddress) -> Result<(), Denied> {
        if self.configured.contains(&key(target)) {
            return Ok(());
        }
        if self
            .ports
            .as_ref()
            .is_some_and(|ports| !ports.contains(&target.port))
        {
            return Err(Denied::Port(target.port));
        }
        match &self.hosts {
            Hosts::Learned(known) if known.read().learned.contains(&key(target)) => Ok(()),
            Hosts::Learned(_) => Err(Denied::Unknown(target.to_string())),
            Hosts::Patterns(patterns) => {
                let host = target.host.to_ascii_lowercase();
                if patterns
                    .iter()
                    .any(|pattern| wildcard_matches(pattern, &host))
                {
                    Ok(())
                } else {
                    Err(Denied::Host(target.host.clone()))
                }
            }
        }
    }

    /// Whether an address that the target's host name resolved to may be dialled.
    pub(crate) fn allows_address(&self, target: &BrokerAddress, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.configured.contains(&key(target))
            || self
                .addresses
                .as_ref()
                .is_none_or(|ranges| ranges.iter().any(|range| range.contains(address)))
    }

    /// Whether a host, in lower case, is that of a broker, whatever the port: a configured or learned one, or one that the
    /// operator's patterns allow.
    pub(crate) fn knows_host(&self, host: &str) -> bool {
        let named = |targets: &HashSet<Target>| targets.iter().any(|(name, _)| name == host);
        named(&self.configured)
            || match &self.hosts {
                Hosts::Learned(known) => named(&known.read().learned),
                Hosts::Patterns(patterns) => patterns
                    .iter()
                    .any(|pattern| wildcard_matches(pattern, host)),
            }
    }

    /// A broker was named by a broker.
    pub(crate) fn learn(&self, address: &BrokerAddress) {
        if let Hosts::Learned(known) = &self.hosts {
            let key = key(address);
            if !self.configured.contains(&key) && !known.read().learned.contains(&key) {
                known.write().learn(key);
            }
        }
    }
}

/// The list that is learned. `learned.len() == order.len() <= LEARNED_MAX`; the oldest gives way.
#[derive(Debug, Default)]
pub(crate) struct KnownTargets {
    learned: HashSet<Target>,
    order: VecDeque<Target>,
}

type Target = (String, u16);

fn key(address: &BrokerAddress) -> Target {
    (address.host.to_ascii_lowercase(), address.port)
}

impl KnownTargets {
    fn learn(&mut self, target: Target) {
        if !self.learned.insert(target.clone()) {
            return;
        }
        self.order.push_back(target);
        if self.order.len() > LEARNED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.learned.remove(&oldest);
        }
    }
}

/// Whether `text` matches `pattern`, in which `*` stands for any run of characters, dots included.
fn wildcard_matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|prefix| text.strip_prefix(prefix)) else {
        return false;
    };
    let Some(suffix) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(suffix)
}

/// Bound of the learned list: more brokers than any one cluster behind a gateway has.
const LEARNED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> BrokerAddress {
        BrokerAddress::from_host_port(text).unwrap()
    }

    fn policy(change: impl FnOnce(&mut GatewaySettings)) -> TargetPolicy {
        let mut settings = GatewaySettings::for_broker(address("broker-0:6650").into());
        change(&mut settings);
        TargetPolicy::new(&settings)
    }

    #[test]
    fn allows_configured_and_learned_brokers_only() {
        let policy = policy(|_| ());
        assert!(policy.check(&address("BROKER-0:6650")).is_ok());
        assert!(policy.check(&address("broker-0:22")).is_err());
        assert!(policy.check(&address("broker-1:6650")).is_err());
        policy.learn(&address("broker-1:6650"));
        assert!(policy.check(&address("broker-1:6650")).is_ok());
    }

    #[test]
    fn learned_list_is_bounded_and_keeps_the_configured_ones() {
        let policy = policy(|_| ());
        for n in 0..LEARNED_MAX + 10 {
            policy.learn(&address(&format!("host-{n}:6650")));
        }
        assert!(policy.check(&address("broker-0:6650")).is_ok());
        assert!(policy.check(&address("host-0:6650")).is_err());
        assert!(
            policy
                .check(&address(&format!("host-{}:6650", LEARNED_MAX + 9)))
                .is_ok()
        );
    }

    #[test]
    fn host_patterns_match_any_run_of_characters() {
        for (pattern, host, expected) in [
            ("*", "a.b", true),
            ("broker-*", "broker-0.pulsar.svc", true),
            ("broker-*.svc", "broker-0.pulsar.svc", true),
            ("broker-*.svc", "broker-0.pulsar.com", false),
            ("*a*b*", "xxaxxbxx", true),
            ("a*a", "a", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(
                wildcard_matches(pattern, host),
                expected,
                "{pattern} {host}"
            );
        }
    }

    #[test]
    fn rules_for_ports_and_addresses_narrow_and_never_open() {
        let policy = policy(|settings| {
            settings.allowed_target_ports = Some(vec![6650]);
            settings.allowed_ip_addresses =
                AddressRange::parse("10.0.0.0/8").map(|range| vec![range]);
        });
        assert!(policy.check(&address("broker-0:6650")).is_ok());
        assert!(policy.check(&address("stranger:6650")).is_err());
        policy.learn(&address("broker-1:6651"));
        assert_eq!(
            policy.check(&address("broker-1:6651")),
            Err(Denied::Port(6651))
        );
        let learned = address("broker-1:6651");
        for (ip, allowed) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("127.0.0.1", false),
        ] {
            assert_eq!(
                policy.allows_address(&learned, ip.parse().unwrap()),
                allowed,
                "{ip}"
            );
        }
    }

    #[test]
    fn hosts_of_brokers_are_known_whatever_the_port() {
        let learned = policy(|_| ());
        learned.learn(&address("broker-1:6650"));
        assert!(learned.knows_host("broker-0") && learned.knows_host("broker-1"));
        assert!(!learned.knows_host("broker-2"));
        let patterns = policy(|settings| {
            settings.allowed_host_names = Some(vec!["*.pulsar.svc".to_owned()]);
        });
        assert!(patterns.knows_host("broker-0") && patterns.knows_host("b.pulsar.svc"));
        assert!(!patterns.knows_host("broker-1"));
    }

    #[test]
    fn host_patterns_take_the_place_of_the_learned_list() {
        let policy = policy(|settings| {
            settings.allowed_host_names = Some(vec!["*.Pulsar.svc".to_owned()]);
        });
        assert!(policy.check(&address("b.pulsar.svc:6650")).is_ok());
        assert!(
            policy.check(&address("broker-0:6650")).is_ok(),
            "it is configured"
        );
        policy.learn(&address("stranger:6650"));
        assert!(policy.check(&address("stranger:6650")).is_err());
    }
}
