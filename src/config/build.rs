//! From texts to typed settings: every value is parsed and checked, everything wrong is collected.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::authentication::AuthenticationSettings;
use super::keys::{GATEWAY_KEYS, KeySpec, KeyStatus};
use super::problem::{ConfigErrors, Origin, Problem};
use super::raw::{RawSettings, RawValue, Sources};
use super::settings::{GatewaySettings, HttpSettings};
use super::tls;
use crate::naming::{AddressRange, BrokerAddress, ServiceUrl};

/// Valid settings, and what is worth telling whoever wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedGateway {
    /// The settings.
    pub settings: GatewaySettings,
    /// To be logged once, at warn.
    pub warnings: Vec<Problem>,
}

/// Reads all sources and builds the settings of the gateway.
///
/// # Errors
/// With everything that is wrong in any source.
pub fn load_gateway(sources: &Sources) -> Result<LoadedGateway, ConfigErrors> {
    let mut builder = Builder::new(sources, GATEWAY_KEYS);
    builder.refuse_unsupported();
    let settings = builder.gateway();
    match settings {
        Some(settings) if builder.problems.is_empty() => Ok(LoadedGateway {
            settings,
            warnings: builder.warnings,
        }),
        _ => Err(ConfigErrors {
            problems: builder.problems,
            warnings: builder.warnings,
        }),
    }
}

/// The settings of one role on their way from texts to types.
pub(super) struct Builder {
    keys: &'static [KeySpec],
    pub(super) values: BTreeMap<&'static str, RawValue>,
    /// What sources call by names that are no settings.
    unknown: BTreeMap<String, RawValue>,
    pub(super) families: BTreeMap<String, RawValue>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

impl Builder {
    pub(super) fn new(sources: &Sources, keys: &'static [KeySpec]) -> Self {
        let RawSettings {
            values,
            unknown,
            families,
            problems,
            warnings,
            ..
        } = RawSettings::collect(sources, keys);
        Self {
            keys,
            values,
            unknown,
            families,
            problems,
            warnings,
        }
    }

    /// Refuses what asks for protection that this version cannot give: ignoring it would be unsafe.
    pub(super) fn refuse_unsupported(&mut self) {
        for spec in self.keys {
            let refused = match spec.status {
                KeyStatus::RefusedWhenSet => self.text(spec.name).is_some(),
                KeyStatus::RefusedWhenOn => self.parse(spec.name, false, BOOLEAN, boolean),
                _ => false,
            };
            if refused && let Some(value) = self.values.get(spec.name) {
                let what = format!("not supported by this version: {}", spec.meaning);
                self.problems
                    .push(Problem::new(value.origin.clone(), spec.name, what));
            }
        }
    }

    /// The settings; `None` when there is no broker to put into them. Other problems leave defaults behind.
    fn gateway(&mut self) -> Option<GatewaySettings> {
        let broker = self.broker();
        let placeholder = BrokerAddress {
            host: "localhost".to_owned(),
            port: 6650,
            tls: false,
        };
        let defaults =
            GatewaySettings::for_broker(broker.clone().unwrap_or_else(|| placeholder.into()));
        let brokers_with_tls = broker.as_ref().is_some_and(ServiceUrl::tls) || self.asks_for_tls();
        let mut settings = GatewaySettings {
            bind_address: self.parse(
                "bindAddress",
                defaults.bind_address,
                "an IP address",
                ip_address,
            ),
            service_port: self.port("servicePort", defaults.service_port),
            web_service_port: self.port("webServicePort", defaults.web_service_port),
            advertised_address: self.parse(
                "advertisedAddress",
                None,
                "a host name or IP address",
                |text| host(text).map(Some),
            ),
            cluster_name: self.parse("clusterName", String::new(), CLUSTER_NAME, cluster_name),
            broker_connect_timeout: Duration::from_millis(self.number(
                "brokerProxyConnectTimeoutMs",
                10_000,
                0,
                JAVA_INT_MAX,
            )),
            broker_read_timeout: none_if_zero(Duration::from_millis(self.number(
                "brokerProxyReadTimeoutMs",
                75_000,
                0,
                JAVA_INT_MAX,
            ))),
            keep_alive_interval: none_if_zero(Duration::from_secs(self.number(
                "keepAliveIntervalSeconds",
                30,
                0,
                DAY_SECONDS,
            ))),
            max_message_size: self.number("maxMessageSize", 5_242_880, 1, MESSAGE_SIZE_MAX),
            max_connections: self
                .bound("maxConcurrentInboundConnections", defaults.max_connections),
            max_connections_per_ip: self.bound(
                "maxConcurrentInboundConnectionsPerIp",
                defaults.max_connections_per_ip,
            ),
            max_unauthenticated_connections: self.bound(
                "gatewayMaxUnauthenticatedConnections",
                defaults.max_unauthenticated_connections,
            ),
            max_lookups: self.number(
                "maxConcurrentLookupRequests",
                defaults.max_lookups,
                1,
                COUNT_MAX,
            ),
            max_topic_list_bytes: self
                .bound("maxTopicListInFlightDirectMemSizeMB", Some(100))
                .map(|megabytes| megabytes.saturating_mul(1024 * 1024)),
            max_tracked_topics: self.number(
                "gatewayMaxTrackedTopics",
                defaults.max_tracked_topics,
                0,
                COUNT_MAX,
            ),
            allowed_host_names: self.allowed_host_names(),
            allowed_ip_addresses: self.allowed_ip_addresses(),
            allowed_target_ports: self.allowed_target_ports(),
            not_ready_period: Duration::from_secs(self.number(
                "gatewayNotReadySeconds",
                0,
                0,
                DAY_SECONDS,
            )),
            drain_timeout: Duration::from_secs(self.number(
                "gatewayDrainTimeoutSeconds",
                15,
                0,
                DAY_SECONDS,
            )),
            http: self.http(),
            discovery: self.discovery(),
            authentication: self.authentication(),
            tls: tls::build(self, brokers_with_tls),
            proxy: self.http_proxy(),
            ..defaults
        };
        self.identify_by_certificate(&mut settings);
        self.check_together(&settings);
        broker.is_some().then_some(settings)
    }

    fn http(&mut self) -> HttpSettings {
        let defaults = HttpSettings::default();
        HttpSettings {
            status_file: self.text("statusFilePath").map(PathBuf::from),
            metrics_enabled: self.parse(
                "enableProxyStatsEndpoints",
                defaults.metrics_enabled,
                BOOLEAN,
                boolean,
            ),
            max_connections: self.bound("maxHttpServerConnections", defaults.max_connections),
            max_request_header_size: self
                .number(
                    "httpMaxRequestHeaderSize",
                    defaults.max_request_header_size,
                    1,
                    HEADER_SIZE_MAX,
                )
                .max(defaults.max_request_header_size),
            idle_timeout: Duration::from_millis(self.number(
                "httpServerIdleTimeout",
                30_000,
                1,
                JAVA_INT_MAX,
            )),
        }
    }

    /// `AuthenticationTls` shows brokers the certificate of the TLS handshake.
    fn identify_by_certificate(&mut self, settings: &mut GatewaySettings) {
        let AuthenticationSettings::Tls(files) = &settings.authentication.broker_credential else {
            return;
        };
        let brokers = &mut settings.tls.brokers;
        if let Some(files) = files {
            brokers.identity = Some(files.clone());
        }
        let key = "brokerClientAuthenticationPlugin";
        let (what, expected) = if !brokers.enabled {
            (
                "a certificate is shown only where brokers are reached over TLS",
                "tlsEnabledWithBroker=true",
            )
        } else if brokers.identity.is_none() {
            (
                "AuthenticationTls without a certificate",
                "tlsCertFile and tlsKeyFile in brokerClientAuthenticationParameters, or brokerClientCertificateFilePath",
            )
        } else {
            return;
        };
        let origin = self.origin(key);
        self.problems
            .push(Problem::new(origin, key, what).expected(expected));
    }

    fn check_together(&mut self, settings: &GatewaySettings) {
        let ports = [
            ("servicePort", settings.service_port),
            ("servicePortTls", settings.tls.service_port),
            ("webServicePort", settings.web_service_port),
            ("webServicePortTls", settings.tls.web_service_port),
        ];
        for (index, (key, port)) in ports.iter().enumerate() {
            let Some(port) = port.filter(|port| *port != 0) else {
                continue;
            };
            let earlier = ports.iter().take(index);
            if let Some((other, _)) = earlier.into_iter().find(|(_, other)| *other == Some(port)) {
                let what = format!("{port} is the {other} too");
                self.problems.push(
                    Problem::new(self.origin(key), key, what).expected("two different ports"),
                );
            }
        }
        if settings.service_port.is_none() && settings.tls.service_port.is_none() {
            let origin = self.origin("servicePort");
            let what = "without it and without servicePortTls no client could connect";
            self.problems
                .push(Problem::new(origin, "servicePort", what).expected(PORT));
        }
        if settings.not_ready_period > settings.drain_timeout {
            let origin = self.origin("gatewayNotReadySeconds");
            let what = "is longer than the whole shutdown";
            let expected = "at most gatewayDrainTimeoutSeconds";
            self.problems
                .push(Problem::new(origin, "gatewayNotReadySeconds", what).expected(expected));
        }
    }

    /// `tlsEnabledWithBroker`.
    fn asks_for_tls(&self) -> bool {
        self.text("tlsEnabledWithBroker").and_then(boolean) == Some(true)
    }

    /// The setting whose URL is the brokers': with `tlsEnabledWithBroker` the one with TLS, if there is one.
    fn broker_url_key(&mut self) -> &'static str {
        self.parse("tlsEnabledWithBroker", false, BOOLEAN, boolean);
        let (plain, tls) = ("brokerServiceURL", "brokerServiceURLTLS");
        let has_tls_url = self.text(tls).is_some();
        if self.asks_for_tls() && has_tls_url {
            return tls;
        }
        if has_tls_url && self.text(plain).is_none() {
            let what = "is not used without tlsEnabledWithBroker";
            self.warnings
                .push(Problem::new(self.origin(tls), tls, what));
        }
        plain
    }

    fn broker(&mut self) -> Option<ServiceUrl> {
        let key = self.broker_url_key();
        let Some(value) = self
            .values
            .get(key)
            .filter(|value| !value.text.is_empty())
            .cloned()
        else {
            if self.discovers_brokers() {
                return Some(ServiceUrl {
                    addresses: Vec::new(),
                });
            }
            let missing = Problem::new(self.origin(key), key, "missing").expected(SERVICE_URL);
            self.problems.push(missing);
            return None;
        };
        let wants_tls = self.asks_for_tls();
        let problem = match ServiceUrl::from_str(&value.text) {
            Ok(url) if wants_tls && !url.tls() => {
                let what = "names addresses without TLS, and tlsEnabledWithBroker is on";
                Problem::new(value.origin, key, what).expected(TLS_SERVICE_URL)
            }
            Ok(url) => return Some(url),
            Err(error) => Problem::new(value.origin, key, error.to_string()).expected(SERVICE_URL),
        };
        self.problems.push(problem);
        None
    }

    /// `brokerProxyAllowedHostNames`: without it only brokers are reached that are configured or that answers named.
    fn allowed_host_names(&mut self) -> Option<Vec<String>> {
        let key = "brokerProxyAllowedHostNames";
        if self.is_shipped_value(key, &["*"]) {
            let what = "* of the Apache file is taken as not set: clients reach only the configured brokers and those \
                        that lookup answers named";
            self.warnings
                .push(Problem::new(self.origin(key), key, what));
            return None;
        }
        self.list(key, HOST_PATTERN, host_pattern)
    }

    /// `brokerProxyAllowedTargetPorts`; `*` is no rule. Host patterns alone open Apache's default ports and no other.
    fn allowed_target_ports(&mut self) -> Option<Vec<u16>> {
        let key = "brokerProxyAllowedTargetPorts";
        let chosen = self.text(key).is_some() && !self.is_shipped_value(key, &["6650,6651"]);
        if chosen {
            return self.list(key, PORT_PATTERN, |item| {
                item.parse().ok().filter(|port| *port != 0)
            });
        }
        let hosts = "brokerProxyAllowedHostNames";
        let hosts_chosen = self.text(hosts).is_some() && !self.is_shipped_value(hosts, &["*"]);
        hosts_chosen.then(|| vec![6650, 6651])
    }

    /// `brokerProxyAllowedIPAddresses`; `*` is no rule.
    fn allowed_ip_addresses(&mut self) -> Option<Vec<AddressRange>> {
        self.list(
            "brokerProxyAllowedIPAddresses",
            IP_PATTERN,
            AddressRange::parse,
        )
    }

    /// Whether a value is one that Apache's file ships with: everybody who runs that file has it, so it is nobody's word
    /// to open what is closed here by default.
    fn is_shipped_value(&self, key: &str, shipped: &[&str]) -> bool {
        self.values
            .get(key)
            .is_some_and(|value| value.apache_file && shipped.contains(&value.text.as_str()))
    }

    /// Takes the values of these settings from names that begin with `prefix`, and from nowhere else. What was said of those
    /// names being unknown is taken back.
    pub(super) fn take_prefixed(&mut self, prefix: &str, names: &[&'static str]) {
        for name in names {
            let prefixed = format!("{prefix}{name}");
            self.values.remove(name);
            let Some(value) = self.unknown.remove(&prefixed) else {
                continue;
            };
            let others = |problem: &Problem| problem.key.as_deref() != Some(&prefixed);
            self.problems.retain(others);
            self.warnings.retain(others);
            self.values.insert(name, value);
        }
    }

    /// The text of a setting, when it has one.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.values
            .get(key)
            .map(|value| value.text.as_str())
            .filter(|text| !text.is_empty())
    }

    pub(super) fn origin(&self, key: &str) -> Origin {
        self.values
            .get(key)
            .map_or(Origin::Settings, |value| value.origin.clone())
    }

    /// A value; without text the default, with a wrong one the default and a problem.
    pub(super) fn parse<T>(
        &mut self,
        key: &str,
        default: T,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        let Some(text) = self.text(key) else {
            return default;
        };
        if let Some(value) = parse(text) {
            return value;
        }
        let what = refusal(self.keys, key, text);
        self.problems
            .push(Problem::new(self.origin(key), key, what).expected(expected));
        default
    }

    pub(super) fn number<T>(&mut self, key: &str, default: T, min: u64, max: u64) -> T
    where
        T: TryFrom<u64>,
    {
        let expected = format!("a number from {min} to {max}");
        self.parse(key, default, &expected, |text| {
            let number = text
                .parse::<u64>()
                .ok()
                .filter(|number| (min..=max).contains(number))?;
            T::try_from(number).ok()
        })
    }

    /// A bound that 0 or less turns off.
    pub(super) fn bound(&mut self, key: &str, default: Option<usize>) -> Option<usize> {
        self.parse(key, default, "a number; 0 for no bound", |text| {
            let number = text
                .parse::<i64>()
                .ok()
                .filter(|number| number.unsigned_abs() <= COUNT_MAX)?;
            Some(usize::try_from(number).ok().filter(|number| *number > 0))
        })
    }

    /// A port; a setting without text turns it off.
    pub(super) fn port(&mut self, key: &str, default: Option<u16>) -> Option<u16> {
        if self
            .values
            .get(key)
            .is_some_and(|value| value.text.is_empty())
        {
            return None;
        }
        self.parse(key, default, PORT, |text| text.parse().ok().map(Some))
    }

    /// A comma list; `None` when it has no item, or a `*` that `parse` does not take: then everything is meant.
    pub(super) fn list<T>(
        &mut self,
        key: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<Vec<T>> {
        let text = self.text(key)?;
        let items: Vec<&str> = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .collect();
        let mut everything = false;
        let mut parsed = Vec::new();
        let mut bad = None;
        for item in &items {
            match parse(item) {
                Some(value) => parsed.push(value),
                None if *item == "*" => everything = true,
                None => bad = bad.or(Some(refusal(self.keys, key, item))),
            }
        }
        let too_many =
            (items.len() > LIST_MAX).then(|| format!("lists more than {LIST_MAX} items"));
        if let Some(what) = bad.or(too_many) {
            self.problems
                .push(Problem::new(self.origin(key), key, what).expected(expected));
            return None;
        }
        (!everything && !parsed.is_empty()).then_some(parsed)
    }
}

/// What a message says of a wrong value; credentials are not quoted.
pub(super) fn refusal(keys: &'static [KeySpec], key: &str, text: &str) -> String {
    if KeySpec::find(keys, key).is_none_or(|spec| spec.secret) {
        return "the value is not accepted".to_owned();
    }
    const SHOWN: usize = 80;
    let short: String = text.chars().take(SHOWN).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("{short:?}{dots} is not accepted")
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

pub(super) fn none_if_zero(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

fn ip_address(text: &str) -> Option<IpAddr> {
    if text.eq_ignore_ascii_case("localhost") {
        return Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    bare.parse().ok()
}

fn host(text: &str) -> Option<String> {
    BrokerAddress::from_host_port(&format!("{text}:1"))
        .ok()
        .map(|address| address.host)
}

fn cluster_name(text: &str) -> Option<String> {
    (text.len() <= CLUSTER_NAME_MAX && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// A host name, in which `*` stands for any characters.
fn host_pattern(text: &str) -> Option<String> {
    let allowed = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'.' | b'-' | b'_' | b'*' | b':' | b'[' | b']')
    };
    (text.len() <= HOST_PATTERN_MAX && text.bytes().all(allowed)).then(|| text.to_owned())
}

pub(super) const BOOLEAN: &str = "true or false";
const PORT: &str = "a port from 0 (any free one) to 65535";
const SERVICE_URL: &str = "pulsar://host:port[,host:port] or pulsar+ssl://host:port[,host:port]";
const TLS_SERVICE_URL: &str = "pulsar+ssl://host:port[,host:port], in brokerServiceURLTLS or here";
const CLUSTER_NAME: &str = "at most 256 bytes without control characters";
const HOST_PATTERN: &str = "host names or patterns with *, comma separated";
const IP_PATTERN: &str = "addresses, networks, ranges or patterns, comma separated";
const PORT_PATTERN: &str = "ports from 1 to 65535 or *, comma separated";
/// Largest value of Apache's settings, which are Java `int`s.
const JAVA_INT_MAX: u64 = 2_147_483_647;
/// The length field of a frame is a Java `int`, and a frame may be 10 KiB larger than a message.
const MESSAGE_SIZE_MAX: u64 = JAVA_INT_MAX - 10 * 1024;
pub(super) const DAY_SECONDS: u64 = 86_400;
const COUNT_MAX: u64 = JAVA_INT_MAX;
const HEADER_SIZE_MAX: u64 = 1024 * 1024;
const CLUSTER_NAME_MAX: usize = 256;
const HOST_PATTERN_MAX: usize = 255;
pub(super) const LIST_MAX: usize = 1024;
