//! The metrics of the gateway: names and labels of Apache's proxy where it has them, our own beside.

use std::net::SocketAddr;
use std::sync::Arc;

use prometheus::{Histogram, HistogramTimer, IntCounter, IntCounterVec, IntGauge};

use super::rates::{OpenRelays, RelayMeter, RelayTotals};
use super::topics::TopicTable;
use crate::protocol::proto::pulsar::ServerError;
use crate::telemetry::{MetricError, MetricRegistry};

/// Counters of one gateway, shared by all its connections.
#[derive(Debug)]
pub(crate) struct GatewayMetrics {
    active_connections: IntGauge,
    new_connections: IntCounter,
    rejected_connections: IntCounter,
    broker_connections: IntGauge,
    connection_ends: IntCounterVec,
    tls_handshake_failures: IntCounterVec,
    relayed: RelayTotals,
    request_seconds: Histogram,
    request_errors: IntCounterVec,
    dial_seconds: Histogram,
    requests: [RequestCounters; 4],
    /// Open relays.
    pub(crate) relays: Arc<OpenRelays>,
    /// Traffic per topic.
    pub(crate) topics: Arc<TopicTable>,
}

#[derive(Debug)]
struct RequestCounters {
    received: IntCounter,
    rejected: Option<IntCounter>,
}

/// A request that the gateway answers from a broker's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupRequest {
    Lookup,
    PartitionedMetadata,
    TopicsOfNamespace,
    Schema,
}

impl LookupRequest {
    /// Whether its answer may be megabytes.
    pub(crate) fn may_be_large(self) -> bool {
        match self {
            Self::Lookup | Self::PartitionedMetadata => false,
            Self::TopicsOfNamespace | Self::Schema => true,
        }
    }
}

/// Why a client connection ended; a label value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// A peer closed.
    Closed,
    /// The client sent what no client sends.
    ClientProtocol,
    /// The broker sent what no broker sends.
    BrokerProtocol,
    /// The client asked for a target that is not allowed.
    TargetDenied,
    /// The broker could not be reached.
    BrokerUnreachable,
    /// The broker answered CONNECT by an error.
    BrokerRefused,
    /// The CONNECT was refused by the gateway.
    Refused,
    /// Nobody knows the client's credential.
    AuthenticationFailed,
    /// The client's credential expired.
    CredentialExpired,
    /// The gateway's own credential cannot be read, or a broker wants one and there is none.
    GatewayCredential,
    /// The TLS handshake came to nothing.
    TlsHandshake,
    /// A peer was silent for too long.
    Timeout,
    /// A socket failed.
    Io,
    /// The client does not read its answers.
    SlowReader,
    /// The gateway stops.
    Drained,
}

impl EndReason {
    fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ClientProtocol => "client_protocol_error",
            Self::BrokerProtocol => "broker_protocol_error",
            Self::TargetDenied => "target_denied",
            Self::BrokerUnreachable => "broker_unreachable",
            Self::BrokerRefused => "broker_refused",
            Self::Refused => "refused",
            Self::AuthenticationFailed => "authentication_failed",
            Self::CredentialExpired => "credential_expired",
            Self::GatewayCredential => "gateway_credential",
            Self::TlsHandshake => "tls_handshake_failed",
            Self::Timeout => "timeout",
            Self::Io => "io_error",
            Self::SlowReader => "slow_reader",
            Self::Drained => "drained",
        }
    }
}

impl GatewayMetrics {
    /// Registers all series.
    ///
    /// # Errors
    /// When the registry has one of the names already.
    pub(crate) fn register(
        registry: &MetricRegistry,
        tracked_topics_max: usize,
    ) -> Result<Self, MetricError> {
        let topics = TopicTable::new(tracked_topics_max);
        let scraped = Arc::clone(&topics);
        let cluster = registry.cluster().to_owned();
        registry.add_collector(Box::new(move |out| scraped.render(&cluster, out)));
        let request = |name: &str, what: &str, limited: bool| {
            let rejected = limited
                .then(|| {
                    registry.counter(
                        &format!("pulsar_proxy_rejected_{name}_requests_total"),
                        &format!("{what} requests refused because too many were in flight."),
                    )
                })
                .transpose()?;
            Ok::<_, MetricError>(RequestCounters {
                received: registry.counter(
                    &format!("pulsar_proxy_{name}_requests_total"),
                    &format!("{what} requests of clients."),
                )?,
                rejected,
            })
        };
        Ok(Self {
            active_connections: registry.gauge(
                "pulsar_proxy_active_connections",
                "Open client connections.",
            )?,
            new_connections: registry.counter(
                "pulsar_proxy_new_connections_total",
                "Client connections accepted.",
            )?,
            rejected_connections: registry.counter(
                "pulsar_proxy_rejected_connections_total",
                "Client connections refused by a limit.",
            )?,
            broker_connections: registry.gauge(
                "pulsegate_gateway_broker_connections",
                "Open relayed connections to brokers.",
            )?,
            connection_ends: registry.counter_vec(
                "pulsegate_gateway_connection_ends_total",
                "Client connections that ended, by reason.",
                &["reason"],
            )?,
            tls_handshake_failures: registry.counter_vec(
                "pulsegate_gateway_tls_handshake_failures_total",
                "TLS handshakes of clients that came to nothing, by reason.",
                &["reason"],
            )?,
            relayed: RelayTotals {
                chunks: registry.counter(
                    "pulsar_proxy_binary_ops_total",
                    "Buffers relayed, both directions.",
                )?,
                bytes: registry.counter(
                    "pulsar_proxy_binary_bytes_total",
                    "Bytes relayed, both directions.",
                )?,
            },
            request_seconds: registry.histogram(
                "pulsegate_gateway_request_seconds",
                "Time from a request of a lookup connection to its answer.",
                LATENCIES.to_vec(),
            )?,
            request_errors: registry.counter_vec(
                "pulsegate_gateway_request_errors_total",
                "Requests of lookup connections that the gateway answered by an error of its own, by its code.",
                &["code"],
            )?,
            dial_seconds: registry.histogram(
                "pulsegate_gateway_broker_connect_seconds",
                "Time that connecting to the broker of a direct connection took, failures included.",
                LATENCIES.to_vec(),
            )?,
            requests: [
                request("lookup", "Topic lookup", true)?,
                request("partitions_metadata", "Partition metadata", true)?,
                request("get_topics_of_namespace", "Topics of namespace", true)?,
                request("get_schema", "Schema", false)?,
            ],
            relays: Arc::default(),
            topics,
        })
    }

    /// A client connection was accepted; it counts as active until the guard is dropped.
    pub(crate) fn connection_opened(&self) -> GaugeGuard {
        self.new_connections.inc();
        GaugeGuard::new(&self.active_connections)
    }

    pub(crate) fn connection_rejected(&self) {
        self.rejected_connections.inc();
    }

    pub(crate) fn connection_ended(&self, reason: EndReason) {
        self.connection_ends
            .with_label_values(&[reason.label()])
            .inc();
    }

    pub(crate) fn tls_handshake_failed(&self, reason: &str) {
        self.tls_handshake_failures
            .with_label_values(&[reason])
            .inc();
    }

    /// A relay has its broker; counted until the guard is dropped.
    pub(crate) fn broker_connected(&self) -> GaugeGuard {
        GaugeGuard::new(&self.broker_connections)
    }

    /// Counts what one relay moves; the relay counts as open until the meter is dropped.
    pub(crate) fn meter(&self, client: SocketAddr, broker: Option<SocketAddr>) -> RelayMeter {
        self.relays.open(client, broker, self.relayed.clone())
    }

    /// A request came; the time until the guard is dropped is how long its answer took.
    pub(crate) fn request_received(&self, request: LookupRequest) -> HistogramTimer {
        self.counters(request).received.inc();
        self.request_seconds.start_timer()
    }

    /// A request is answered by an error of the gateway's own.
    pub(crate) fn request_failed(&self, code: ServerError) {
        self.request_errors
            .with_label_values(&[code.as_str_name()])
            .inc();
    }

    /// A broker is being connected to until the guard is dropped.
    pub(crate) fn dialling(&self) -> HistogramTimer {
        self.dial_seconds.start_timer()
    }

    pub(crate) fn request_rejected(&self, request: LookupRequest) {
        if let Some(rejected) = &self.counters(request).rejected {
            rejected.inc();
        }
    }

    fn counters(&self, request: LookupRequest) -> &RequestCounters {
        let [lookup, partitions, topics, schema] = &self.requests;
        match request {
            LookupRequest::Lookup => lookup,
            LookupRequest::PartitionedMetadata => partitions,
            LookupRequest::TopicsOfNamespace => topics,
            LookupRequest::Schema => schema,
        }
    }
}

/// Bounds of the buckets of latencies, in seconds.
const LATENCIES: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

/// Holds a gauge one higher until it is dropped.
#[derive(Debug)]
pub(crate) struct GaugeGuard(IntGauge);

impl GaugeGuard {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
