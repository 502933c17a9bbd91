//! The typed settings that the rest of the program sees.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use super::discovery::DiscoverySettings;
use super::gateway_authentication::GatewayAuthenticationSettings;
use super::http_proxy::ProxySettings;
use super::tls::{BrokerTlsSettings, TlsSettings};
use crate::naming::{AddressRange, ServiceUrl};

/// Settings of the gateway: plain data, validated, built once by [`super::load_gateway`].
///
/// Each field names the setting it comes from; `docs/configuration.md` says more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// `brokerServiceURL`, or `brokerServiceURLTLS` where `tlsEnabledWithBroker` is on: the brokers that lookups are asked of.
    /// Names none where they are discovered.
    pub broker: ServiceUrl,
    /// `bindAddress`: the address of all listeners.
    pub bind_address: IpAddr,
    /// `servicePort`: TCP port of the binary protocol; 0 picks a free one, `None` turns it off, which passes validation only
    /// where the port with TLS is on.
    pub service_port: Option<u16>,
    /// `webServicePort`: TCP port of the HTTP endpoints; 0 picks a free one, `None` turns them off.
    pub web_service_port: Option<u16>,
    /// `advertisedAddress`: host name by which others reach this process; used in the ready line.
    pub advertised_address: Option<String>,
    /// `clusterName`: value of the `cluster` label of every metric; may be empty.
    pub cluster_name: String,
    /// `brokerProxyConnectTimeoutMs`: bound on a TCP connect to a broker, within that of the handshake; zero: only that
    /// one.
    pub broker_connect_timeout: Duration,
    /// `brokerProxyReadTimeoutMs`: a relayed connection of which one side sends nothing for so long is closed; `None`
    /// is off.
    pub broker_read_timeout: Option<Duration>,
    /// `keepAliveIntervalSeconds`: ping interval and handshake timeout; `None`: no pings, and handshakes within 30 s.
    pub keep_alive_interval: Option<Duration>,
    /// `maxMessageSize`: largest message in bytes; a frame may be 10 KiB larger.
    pub max_message_size: u32,
    /// `maxConcurrentInboundConnections`: client connections at a time; `None` is no bound.
    pub max_connections: Option<usize>,
    /// `maxConcurrentInboundConnectionsPerIp`: the same per client address; `None` is no bound.
    pub max_connections_per_ip: Option<usize>,
    /// `gatewayMaxUnauthenticatedConnections`: of these, connections whose handshake is not over; `None` is no bound.
    pub max_unauthenticated_connections: Option<usize>,
    /// `maxConcurrentLookupRequests`: lookups in flight at a time; at least 1.
    pub max_lookups: usize,
    /// `maxTopicListInFlightDirectMemSizeMB`: bytes of topic lists and schemas that wait for clients, all together; `None` is no bound.
    pub max_topic_list_bytes: Option<usize>,
    /// `gatewayMaxTrackedTopics`: topics with metric series of their own; later ones share one series.
    pub max_tracked_topics: usize,
    /// `brokerProxyAllowedHostNames`: host patterns that a client may ask to be connected to. `None`: only the
    /// configured brokers and those that lookup answers named.
    pub allowed_host_names: Option<Vec<String>>,
    /// `brokerProxyAllowedIPAddresses`: addresses, networks and ranges that may be connected to; `None` allows all that
    /// the other checks allow.
    pub allowed_ip_addresses: Option<Vec<AddressRange>>,
    /// `brokerProxyAllowedTargetPorts`: ports that may be connected to; `None` allows all that the other checks allow.
    /// Where host patterns are given and no ports, these are Apache's 6650 and 6651.
    pub allowed_target_ports: Option<Vec<u16>>,
    /// `gatewayNotReadySeconds`: at shutdown, how long `/readyz` already answers 503 while connections are still
    /// accepted, so that load balancers can turn away first.
    pub not_ready_period: Duration,
    /// `gatewayDrainTimeoutSeconds`: bound on the whole shutdown, the not-ready period included.
    pub drain_timeout: Duration,
    /// Settings of the HTTP endpoints.
    pub http: HttpSettings,
    /// Settings of discovery and of lookups.
    pub discovery: DiscoverySettings,
    /// Settings of authentication, of clients and of the gateway itself.
    pub authentication: GatewayAuthenticationSettings,
    /// Settings of TLS, towards clients and towards brokers.
    pub tls: TlsSettings,
    /// Settings of the HTTP reverse proxy.
    pub proxy: ProxySettings,
}

impl GatewaySettings {
    /// The default settings in front of `broker`.
    #[must_use]
    pub fn for_broker(broker: ServiceUrl) -> Self {
        let tls = TlsSettings {
            brokers: BrokerTlsSettings {
                enabled: broker.tls(),
                ..BrokerTlsSettings::default()
            },
            ..TlsSettings::default()
        };
        Self {
            broker,
            bind_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            service_port: Some(6650),
            web_service_port: Some(8080),
            advertised_address: None,
            cluster_name: String::new(),
            broker_connect_timeout: Duration::from_millis(10_000),
            broker_read_timeout: Some(Duration::from_millis(75_000)),
            keep_alive_interval: Some(Duration::from_secs(30)),
            max_message_size: 5 * 1024 * 1024,
            max_connections: Some(10_000),
            max_connections_per_ip: None,
            max_unauthenticated_connections: Some(5_000),
            max_lookups: 50_000,
            max_topic_list_bytes: Some(100 * 1024 * 1024),
            max_tracked_topics: 10_000,
            allowed_host_names: None,
            allowed_ip_addresses: None,
            allowed_target_ports: None,
            not_ready_period: Duration::ZERO,
            drain_timeout: Duration::from_secs(15),
            http: HttpSettings::default(),
            discovery: DiscoverySettings::default(),
            authentication: GatewayAuthenticationSettings::default(),
            tls,
            proxy: ProxySettings::default(),
        }
    }
}

/// Settings of the HTTP endpoints of a server role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// `statusFilePath`: `/status.html` answers 200 only while this file exists; `None` answers 404.
    pub status_file: Option<PathBuf>,
    /// `enableProxyStatsEndpoints`: whether `/metrics` and `/proxy-stats` are served.
    pub metrics_enabled: bool,
    /// `maxHttpServerConnections`: HTTP connections at a time; `None` is no bound.
    pub max_connections: Option<usize>,
    /// `httpMaxRequestHeaderSize`: largest request head in bytes, at least 8192.
    pub max_request_header_size: usize,
    /// `httpServerIdleTimeout`: a connection on which nothing moves for so long is closed.
    pub idle_timeout: Duration,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            status_file: None,
            metrics_enabled: true,
            max_connections: Some(2048),
            max_request_header_size: 8192,
            idle_timeout: Duration::from_millis(30_000),
        }
    }
}
