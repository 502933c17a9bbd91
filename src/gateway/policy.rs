//! Which brokers a client may name in `CommandConnect.proxy_to_broker_url`: without a limit a gateway is an open relay
//! (CVE-2022-24280 was one).
//!
//! The default list is learned: the configured and the discovered brokers, and those that a trusted broker named in a lookup answer
//! or when it moved a topic. `brokerProxyAllowedHostNames` replaces the list by host patterns; `brokerProxyAllowedIPAddresses` and
//! `brokerProxyAllowedTargetPorts` narrow either.
//!
//! A name may resolve to anything, so addresses are judged as well: link-local ones (where clouds serve their credentials),
//! multicast and unspecified ones are no broker's, unless a broker is configured there or the address setting names just them.
//! Loopback is where brokers of a small set-up are, but a name that only matches a pattern must not lead there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::RwLock;

use crate::config::GatewaySettings;
use crate::naming::{AddressRange, BrokerAddress};

/// Decides about targets; shared by all connections. A target that is not configured must pass all three checks; a configured
/// one is the operator's own word.
#[derive(Debug)]
pub(crate) struct TargetPolicy {
    configured: HashSet<Target>,
    /// Brokers that discovery or other brokers named.
    known: RwLock<KnownTargets>,
    /// In lower case; they take the place of the known brokers. `None`: those are the list.
    patterns: Option<Vec<String>>,
    /// `None`: every port.
    ports: Option<Vec<u16>>,
    /// `None`: every address.
    addresses: Option<Vec<AddressRange>>,
    /// `checkActiveBrokers`.
    active_only: bool,
    /// Of brokers that were named with both addresses, each by the other. At most [`LEARNED_MAX`].
    counterparts: RwLock<HashMap<Target, BrokerAddress>>,
}

/// The addresses by which a broker names one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NamedBroker {
    /// Without TLS.
    pub(crate) plain: Option<BrokerAddress>,
    /// With TLS.
    pub(crate) tls: Option<BrokerAddress>,
}

/// Why a target is refused. The text is for the log; a client is told no more than that it is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error("{0} is neither a configured or discovered broker nor was it named by one")]
    Unknown(String),
    #[error("port {0} is not in brokerProxyAllowedTargetPorts")]
    Port(u16),
    #[error("host {0} is not in brokerProxyAllowedHostNames")]
    Host(String),
    #[error("{0} is not among the active brokers")]
    NotActive(String),
}

impl TargetPolicy {
    /// The policy that the settings ask for.
    pub(crate) fn new(settings: &GatewaySettings) -> Self {
        let lower = |patterns: &Vec<String>| {
            let lower = patterns.iter().map(|pattern| pattern.to_ascii_lowercase());
            lower.collect()
        };
        Self {
            configured: settings.broker.addresses.iter().map(key).collect(),
            known: RwLock::default(),
            patterns: settings.allowed_host_names.as_ref().map(lower),
            ports: settings.allowed_target_ports.clone(),
            addresses: settings.allowed_ip_addresses.clone(),
            active_only: settings.discovery.check_active_brokers,
            counterparts: RwLock::default(),
        }
    }

    /// Checks what can be checked before the host name is resolved.
    pub(crate) fn check(&self, target: &BrokerAddress) -> Result<(), Denied> {
        let key = key(target);
        if self.configured.contains(&key) {
            return Ok(());
        }
        if self
            .ports
            .as_ref()
            .is_some_and(|ports| !ports.contains(&target.port))
        {
            return Err(Denied::Port(target.port));
        }
        match &self.patterns {
            None if self.known.read().contains(&key) => Ok(()),
            None => Err(Denied::Unknown(target.to_string())),
            Some(patterns) => {
                let (host, _) = key;
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

    /// As [`check`](Self::check), of a target that a client names.
    pub(crate) fn check_named(&self, target: &BrokerAddress) -> Result<(), Denied> {
        self.check(target)?;
        if self.active_only && !self.known.read().is_active(&key(target)) {
            return Err(Denied::NotActive(target.to_string()));
        }
        Ok(())
    }

    /// Whether an address that the target's host name resolved to may be dialled.
    pub(crate) fn allows_address(&self, target: &BrokerAddress, address: IpAddr) -> bool {
        let key = key(target);
        if self.configured.contains(&key) {
            return true;
        }
        let address = address.to_canonical();
        let ranges = self.addresses.as_deref();
        if ranges.is_some_and(|ranges| !ranges.iter().any(|range| range.contains(address))) {
            return false;
        }
        // A range that holds other addresses as well does not mean these.
        let is_meant = |kind: fn(IpAddr) -> bool| {
            let mut ranges = ranges.into_iter().flatten();
            ranges.any(|range| range.contains(address) && range.is_wholly(kind))
        };
        let kind = FORBIDDEN.into_iter().find(|kind| kind(address));
        match kind {
            Some(kind) => is_meant(kind),
            None if is_loopback(address) => {
                is_meant(is_loopback) || self.known.read().contains(&key)
            }
            None => true,
        }
    }

    /// Whether a host, in lower case, is that of a broker, whatever the port: a configured or learned one, or one that the
    /// operator's patterns allow.
    pub(crate) fn knows_host(&self, host: &str) -> bool {
        let is_configured = self.configured.iter().any(|(name, _)| name == host);
        is_configured
            || match &self.patterns {
                None => self.known.read().has_host(host),
                Some(patterns) => patterns
                    .iter()
                    .any(|pattern| wildcard_matches(pattern, host)),
            }
    }

    /// A broker was named by a broker.
    pub(crate) fn learn(&self, address: &BrokerAddress) {
        let key = key(address);
        if !self.configured.contains(&key) && !self.known.read().learned.contains(&key) {
            self.known.write().learn(key);
        }
    }

    /// The list of the metadata store as it is now, whole. Returns whether it is another one than before.
    pub(crate) fn discovered<'a>(
        &self,
        list: impl Iterator<Item = &'a BrokerAddress>,
        now: Duration,
    ) -> bool {
        self.known.write().discovered(list.map(key).collect(), now)
    }

    /// Forgets brokers that have been off the list for [`GONE_GRACE`].
    pub(crate) fn forget_gone(&self, now: Duration) {
        if !self.known.read().gone.is_empty() {
            self.known.write().forget_gone(now);
        }
    }

    /// A broker was named by a broker, by one address or both.
    pub(crate) fn learn_both(&self, named: &NamedBroker) {
        for address in named.plain.iter().chain(&named.tls) {
            self.learn(address);
        }
        let (Some(plain), Some(tls)) = (&named.plain, &named.tls) else {
            return;
        };
        if self.counterparts.read().get(&key(tls)) == Some(plain) {
            return;
        }
        let mut counterparts = self.counterparts.write();
        // Brokers name those that are still in use again.
        if counterparts.len() + 2 > LEARNED_MAX {
            counterparts.clear();
        }
        counterparts.insert(key(tls), plain.clone());
        counterparts.insert(key(plain), tls.clone());
    }

    /// The address at which the broker that a client names is reached with TLS, or without: a client names the one that it would
    /// use itself (PIP-307), and its side may have TLS where the brokers' has not.
    pub(crate) fn as_reached(&self, target: &BrokerAddress, tls: bool) -> BrokerAddress {
        match self.counterparts.read().get(&key(target)) {
            Some(counterpart) if counterpart.tls == tls => counterpart.clone(),
            _ => BrokerAddress {
                tls,
                ..target.clone()
            },
        }
    }
}

/// The list that is learned.
#[derive(Debug, Default)]
struct KnownTargets {
    /// Brokers in the metadata store now. As bounded as the list there.
    active: HashSet<Target>,
    /// Brokers that were there, and when they are forgotten: clients still come for a broker that is restarting. At most
    /// [`GONE_MAX`].
    gone: HashMap<Target, Duration>,
    /// `learned.len() == order.len() <= LEARNED_MAX`; the oldest gives way.
    learned: HashSet<Target>,
    order: VecDeque<Target>,
}

type Target = (String, u16);

fn key(address: &BrokerAddress) -> Target {
    (address.host.to_ascii_lowercase(), address.port)
}

impl KnownTargets {
    fn contains(&self, target: &Target) -> bool {
        self.active.contains(target)
            || self.learned.contains(target)
            || self.gone.contains_key(target)
    }

    fn has_host(&self, host: &str) -> bool {
        let listed = self.active.iter().chain(&self.learned);
        listed.chain(self.gone.keys()).any(|(name, _)| name == host)
    }

    fn is_active(&self, target: &Target) -> bool {
        self.active.contains(target)
    }

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

    fn discovered(&mut self, list: HashSet<Target>, now: Duration) -> bool {
        if self.active == list {
            return false;
        }
        let until = now.saturating_add(GONE_GRACE);
        for target in std::mem::take(&mut self.active) {
            if !list.contains(&target) && self.gone.len() < GONE_MAX {
                self.gone.insert(target, until);
            }
        }
        self.gone.retain(|target, _| !list.contains(target));
        self.active = list;
        true
    }

    /// What is known to be gone is not kept because it was also named in an answer, long ago perhaps.
    fn forget_gone(&mut self, now: Duration) {
        let Self {
            gone,
            learned,
            order,
            ..
        } = self;
        let before = learned.len();
        gone.retain(|target, until| {
            let keep = now < *until;
            if !keep {
                learned.remove(target);
            }
            keep
        });
        if learned.len() != before {
            order.retain(|target| learned.contains(target));
        }
    }
}

/// Kinds of addresses that are no broker's.
const FORBIDDEN: [fn(IpAddr) -> bool; 3] = [is_link_local, is_unspecified, is_multicast];

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// `0.0.0.0/8` and `::`, which systems take for the host itself.
fn is_unspecified(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets().starts_with(&[0]),
        IpAddr::V6(address) => address.is_unspecified(),
    }
}

fn is_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.is_loopback()
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
/// Bound of the brokers that went off the list lately.
const GONE_MAX: usize = 10_000;
/// How long clients may still be connected to a broker that went off the list.
const GONE_GRACE: Duration = Duration::from_secs(300);

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
    fn a_broker_is_reached_with_tls_or_without_by_whichever_address_it_is_named() {
        let policy = policy(|_| ());
        let url = |url: &str| BrokerAddress::from_url(url).unwrap();
        let (plain, tls) = (url("pulsar://b:6650"), url("pulsar+ssl://b:6651"));
        policy.learn_both(&NamedBroker {
            plain: Some(plain.clone()),
            tls: Some(tls.clone()),
        });
        for named in [&plain, &tls] {
            // As clients write them.
            let named = address(&named.to_string());
            assert!(policy.check(&named).is_ok());
            assert_eq!(policy.as_reached(&named, false), plain);
            assert_eq!(policy.as_reached(&named, true), tls);
        }
        let other = address("c:1");
        assert_eq!(policy.as_reached(&other, true), url("pulsar+ssl://c:1"));
        for n in 0..LEARNED_MAX {
            policy.learn_both(&NamedBroker {
                plain: Some(address(&format!("host-{n}:6650"))),
                tls: Some(address(&format!("host-{n}:6651"))),
            });
        }
        assert!(policy.counterparts.read().len() <= LEARNED_MAX);
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

    #[test]
    fn discovered_brokers_are_allowed_and_forgotten_some_time_after_they_are_gone() {
        let policy = policy(|_| ());
        let (a, b) = (address("broker-a:6650"), address("broker-b:6650"));
        let start = Duration::from_secs(9);
        assert!(policy.discovered([&a, &b].into_iter(), start));
        assert!(!policy.discovered([&b, &a].into_iter(), start));
        // Named in an answer as well, which must not keep it for ever.
        policy.learn(&a);
        assert!(policy.check(&a).is_ok() && policy.check(&b).is_ok());
        assert!(policy.discovered([&b].into_iter(), start));
        policy.forget_gone(start + GONE_GRACE - Duration::from_millis(1));
        assert!(policy.check(&a).is_ok(), "it may be restarting");
        policy.forget_gone(start + GONE_GRACE);
        assert!(policy.check(&a).is_err());
        assert!(policy.check(&b).is_ok());
        // Back within the time, it is not forgotten.
        policy.discovered([&a].into_iter(), start);
        policy.discovered([&a, &b].into_iter(), start);
        policy.forget_gone(start + GONE_GRACE * 2);
        assert!(policy.check(&b).is_ok());
        policy.learn(&a);
        assert!(policy.check(&a).is_ok());
    }

    #[test]
    fn only_active_brokers_are_connected_where_that_is_asked_for() {
        let policy = policy(|settings| settings.discovery.check_active_brokers = true);
        let (active, configured) = (address("broker-a:6650"), address("broker-0:6650"));
        policy.discovered([&active].into_iter(), Duration::ZERO);
        assert!(policy.check_named(&active).is_ok());
        assert_eq!(
            policy.check_named(&configured),
            Err(Denied::NotActive("broker-0:6650".to_owned()))
        );
        assert!(policy.check(&configured).is_ok(), "it may be asked");
    }

    #[test]
    fn addresses_that_are_no_brokers_are_refused_unless_they_are_named() {
        let (configured, learned) = (address("broker-0:6650"), address("broker-1:6650"));
        let default = policy(|_| ());
        default.learn(&learned);
        let forbidden = [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
        ];
        for text in forbidden {
            let ip = text.parse().unwrap();
            assert!(!default.allows_address(&learned, ip), "{text}");
            assert!(default.allows_address(&configured, ip), "{text}");
        }
        for text in [
            "10.0.0.1",
            "192.168.1.1",
            "8.8.8.8",
            "fd00::1",
            "127.0.0.1",
            "::1",
        ] {
            assert!(
                default.allows_address(&learned, text.parse().unwrap()),
                "{text}"
            );
        }
        // Everything is not these.
        let ranges = |texts: &[&str]| {
            let ranges = texts.iter().map(|text| AddressRange::parse(text).unwrap());
            let ranges: Vec<_> = ranges.collect();
            policy(|settings| settings.allowed_ip_addresses = Some(ranges))
        };
        let wide = ranges(&["0.0.0.0/0", "::/0"]);
        let narrow = ranges(&["169.254.7.0/24", "fe80::/64"]);
        for text in ["169.254.7.1", "fe80::1"] {
            let ip = text.parse().unwrap();
            assert!(!wide.allows_address(&learned, ip), "{text}");
            assert!(narrow.allows_address(&learned, ip), "{text}");
        }
        assert!(!narrow.allows_address(&learned, "169.254.8.1".parse().unwrap()));
    }

    #[test]
    fn a_name_that_only_matches_a_pattern_does_not_lead_to_loopback() {
        let policy = policy(|settings| {
            settings.allowed_host_names = Some(vec!["*.example.org".to_owned()]);
        });
        let loopback = "127.0.0.1".parse().unwrap();
        let (stranger, broker) = (address("a.example.org:6650"), address("b.example.org:6650"));
        policy.learn(&broker);
        assert!(policy.check(&stranger).is_ok());
        assert!(!policy.allows_address(&stranger, loopback));
        assert!(policy.allows_address(&broker, loopback));
        assert!(policy.allows_address(&address("broker-0:6650"), loopback));
    }
}
