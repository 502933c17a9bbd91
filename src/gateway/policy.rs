//! Which brokers a client may name in `CommandConnect.proxy_to_broker_url`: without a limit a gateway is an open relay
//! (CVE-2022-24280 was one).
//!
//! The default list is learned: the configured brokers, and those that a trusted broker named in a lookup answer or when it
//! moved a topic. Settings of Apache's proxy (`brokerProxyAllowedHostNames`, `…IPAddresses`, `…TargetPorts`) replace it by fixed
//! rules with Apache's meaning and defaults.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

use parking_lot::RwLock;

use crate::config::GatewaySettings;
use crate::naming::BrokerAddress;

/// Decides about targets; shared by all connections.
#[derive(Debug)]
pub(crate) enum TargetPolicy {
    Learned(RwLock<KnownTargets>),
    Rules(TargetRules),
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
    #[error("address {0} is not in brokerProxyAllowedIPAddresses")]
    Address(IpAddr),
}

/// A rule of the three settings that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {value:?} is not {expected}")]
pub struct BadTargetRule {
    setting: &'static str,
    value: String,
    expected: &'static str,
}

impl TargetPolicy {
    /// The policy that the settings ask for; `settings.broker` is always known.
    pub(crate) fn new(settings: &GatewaySettings) -> Result<Self, BadTargetRule> {
        let rules = [
            &settings.allowed_host_names,
            &settings.allowed_ip_addresses,
            &settings.allowed_target_ports,
        ];
        if rules.iter().any(|rule| rule.is_some()) {
            return TargetRules::new(settings).map(Self::Rules);
        }
        let mut known = KnownTargets::default();
        for address in &settings.broker.addresses {
            known.configured.insert(key(address));
        }
        Ok(Self::Learned(RwLock::new(known)))
    }

    /// Checks what can be checked before the host name is resolved.
    pub(crate) fn check(&self, target: &BrokerAddress) -> Result<(), Denied> {
        match self {
            Self::Learned(known) => {
                if known.read().contains(&key(target)) {
                    Ok(())
                } else {
                    Err(Denied::Unknown(target.to_string()))
                }
            }
            Self::Rules(rules) => rules.check(target),
        }
    }

    /// Checks the address that is about to be dialled.
    pub(crate) fn check_resolved(&self, address: IpAddr) -> Result<(), Denied> {
        match self {
            Self::Learned(_) => Ok(()),
            Self::Rules(rules) => rules.check_resolved(address),
        }
    }

    /// A broker was named by a broker.
    pub(crate) fn learn(&self, address: &BrokerAddress) {
        if let Self::Learned(known) = self {
            let key = key(address);
            if !known.read().contains(&key) {
                known.write().learn(key);
            }
        }
    }
}

/// The list that is learned. `learned.len() == order.len() <= LEARNED_MAX`; the oldest gives way.
#[derive(Debug, Default)]
pub(crate) struct KnownTargets {
    configured: HashSet<Target>,
    learned: HashSet<Target>,
    order: VecDeque<Target>,
}

type Target = (String, u16);

fn key(address: &BrokerAddress) -> Target {
    (address.host.to_ascii_lowercase(), address.port)
}

impl KnownTargets {
    fn contains(&self, target: &Target) -> bool {
        self.configured.contains(target) || self.learned.contains(target)
    }

    fn learn(&mut self, target: Target) {
        if self.configured.contains(&target) || !self.learned.insert(target.clone()) {
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

/// Apache's rules. An empty list stands for `*`: that check is off.
#[derive(Debug)]
pub(crate) struct TargetRules {
    ports: Vec<u16>,
    hosts: Vec<String>,
    addresses: Vec<AddressRange>,
}

impl TargetRules {
    fn new(settings: &GatewaySettings) -> Result<Self, BadTargetRule> {
        Ok(Self {
            ports: rules(
                settings.allowed_target_ports.as_deref(),
                &["6650", "6651"],
                |value| {
                    value.parse().map_err(|_| BadTargetRule {
                        setting: "brokerProxyAllowedTargetPorts",
                        value: value.to_owned(),
                        expected: "a port number or *",
                    })
                },
            )?,
            hosts: rules(settings.allowed_host_names.as_deref(), &["*"], |value| {
                Ok(value.to_ascii_lowercase())
            })?,
            addresses: rules(settings.allowed_ip_addresses.as_deref(), &["*"], |value| {
                AddressRange::parse(value).ok_or_else(|| BadTargetRule {
                    setting: "brokerProxyAllowedIPAddresses",
                    value: value.to_owned(),
                    expected: "an IP address, a CIDR block, a range a-b or a pattern with * for whole groups",
                })
            })?,
        })
    }

    fn check(&self, target: &BrokerAddress) -> Result<(), Denied> {
        if !self.ports.is_empty() && !self.ports.contains(&target.port) {
            return Err(Denied::Port(target.port));
        }
        let host = target.host.to_ascii_lowercase();
        if !self.hosts.is_empty()
            && !self
                .hosts
                .iter()
                .any(|pattern| wildcard_matches(pattern, &host))
        {
            return Err(Denied::Host(target.host.clone()));
        }
        Ok(())
    }

    fn check_resolved(&self, address: IpAddr) -> Result<(), Denied> {
        let address = address.to_canonical();
        if self.addresses.is_empty() || self.addresses.iter().any(|range| range.contains(address)) {
            Ok(())
        } else {
            Err(Denied::Address(address))
        }
    }
}

/// Parses each value; a `*` among them turns the check off, which is an empty list.
fn rules<T>(
    values: Option<&[String]>,
    default: &[&str],
    parse: impl Fn(&str) -> Result<T, BadTargetRule>,
) -> Result<Vec<T>, BadTargetRule> {
    let values: Vec<&str> = match values {
        Some(values) => values.iter().map(|value| value.trim()).collect(),
        None => default.to_vec(),
    };
    if values.contains(&"*") {
        return Ok(Vec::new());
    }
    values.into_iter().map(parse).collect()
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

/// Inclusive range of addresses of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    fn parse(text: &str) -> Option<Self> {
        if let Some((address, bits)) = text.split_once('/') {
            return Self::block(address.parse().ok()?, bits.parse().ok()?);
        }
        if text.contains('*') {
            let first = text.replace('*', "0").parse().ok()?;
            let all = if text.contains(':') { "ffff" } else { "255" };
            let last = text.replace('*', all).parse().ok()?;
            // A `*` in front of a fixed group would be no range.
            let star = text.find('*')?;
            let tail = text.get(star..)?;
            return tail
                .chars()
                .all(|c| "*.:".contains(c))
                .then_some(Self { first, last });
        }
        if let Some((first, last)) = text.split_once('-') {
            let first: IpAddr = first.trim().parse().ok()?;
            let last = match last.trim().parse::<IpAddr>() {
                Ok(last) => last,
                Err(_) => {
                    // `10.0.0.1-20`: the end of the last group alone.
                    let text = first.to_string();
                    let cut = text.rfind(['.', ':'])? + 1;
                    format!("{}{}", text.get(..cut)?, last.trim())
                        .parse()
                        .ok()?
                }
            };
            return (first.is_ipv4() == last.is_ipv4() && first <= last)
                .then_some(Self { first, last });
        }
        let address = text.parse().ok()?;
        Some(Self {
            first: address,
            last: address,
        })
    }

    fn block(address: IpAddr, bits: u32) -> Option<Self> {
        Some(match address {
            IpAddr::V4(address) => {
                let host = u32::MAX.checked_shr(bits).unwrap_or(0);
                let address = u32::from(address);
                (bits <= 32).then(|| Self {
                    first: IpAddr::V4((address & !host).into()),
                    last: IpAddr::V4((address | host).into()),
                })?
            }
            IpAddr::V6(address) => {
                let host = u128::MAX.checked_shr(bits).unwrap_or(0);
                let address = u128::from(address);
                (bits <= 128).then(|| Self {
                    first: IpAddr::V6((address & !host).into()),
                    last: IpAddr::V6((address | host).into()),
                })?
            }
        })
    }

    fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && self.first <= address && address <= self.last
    }
}

/// Bound of the learned list: more brokers than any one cluster behind a gateway has.
const LEARNED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> BrokerAddress {
        BrokerAddress::from_host_port(text).unwrap()
    }

    fn known(hosts: &[&str]) -> TargetPolicy {
        let mut known = KnownTargets::default();
        known
            .configured
            .extend(hosts.iter().map(|host| key(&address(host))));
        TargetPolicy::Learned(RwLock::new(known))
    }

    #[test]
    fn allows_configured_and_learned_brokers_only() {
        let policy = known(&["broker-0:6650"]);
        assert!(policy.check(&address("BROKER-0:6650")).is_ok());
        assert!(policy.check(&address("broker-0:22")).is_err());
        assert!(policy.check(&address("broker-1:6650")).is_err());
        policy.learn(&address("broker-1:6650"));
        assert!(policy.check(&address("broker-1:6650")).is_ok());
    }

    #[test]
    fn learned_list_is_bounded_and_keeps_the_configured_ones() {
        let policy = known(&["broker-0:6650"]);
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
    fn address_ranges_of_every_form() {
        for (range, inside, outside) in [
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("10.1.0.0/16", "10.1.255.255", "10.2.0.0"),
            ("0.0.0.0/0", "255.1.1.1", "::1"),
            ("10.1.2.*", "10.1.2.200", "10.1.3.1"),
            ("10.1.2.3-9", "10.1.2.9", "10.1.2.10"),
            ("10.1.2.3-10.1.3.1", "10.1.2.255", "10.1.3.2"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("::1", "::1", "127.0.0.1"),
        ] {
            let range = AddressRange::parse(range).unwrap();
            assert!(range.contains(inside.parse().unwrap()), "{inside}");
            assert!(!range.contains(outside.parse().unwrap()), "{outside}");
        }
        for bad in [
            "",
            "10.1",
            "10.0.0.0/33",
            "10.*.0.1",
            "9-1",
            "10.0.0.9-1",
            "host",
        ] {
            assert_eq!(AddressRange::parse(bad), None, "{bad}");
        }
    }
}
