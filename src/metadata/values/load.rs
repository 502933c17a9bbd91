//! Who serves what, and how busy they are: `/namespace` and `/loadbalance`, as Apache Pulsar's ModularLoadManager writes them.

use std::collections::BTreeMap;

use super::{Word, json_values};

json_values! {
    /// The owner of a bundle: `/namespace/<tenant>/<namespace>/<bundle>`, ephemeral.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct NamespaceEphemeralData {
        /// `pulsar://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        native_url: Option<String>,
        /// `pulsar+ssl://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        native_url_tls: Option<String>,
        /// `http://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        http_url: Option<String>,
        /// `https://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        http_url_tls: Option<String>,
        /// The bundle is being given up.
        disabled: bool,
        /// Where the broker is reached by those who name a listener.
        #[serde(skip_serializing_if = "Option::is_none")]
        advertised_listeners: Option<BTreeMap<String, AdvertisedListener>>,
    }

    /// A listener of a broker.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct AdvertisedListener {
        /// `pulsar://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        broker_service_url: Option<String>,
        /// `pulsar+ssl://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        broker_service_url_tls: Option<String>,
        /// `http://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        broker_http_url: Option<String>,
        /// `https://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        broker_https_url: Option<String>,
    }

    /// A broker that runs, and its load: `/loadbalance/brokers/<broker>`, ephemeral. Rates are of the last minute, bundles
    /// are named `<tenant>/<namespace>/<range>`.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct LocalBrokerData {
        /// `http://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        web_service_url: Option<String>,
        /// `https://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        web_service_url_tls: Option<String>,
        /// `pulsar://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pulsar_service_url: Option<String>,
        /// `pulsar+ssl://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pulsar_service_url_tls: Option<String>,
        /// Whether it serves stored topics.
        persistent_topics_enabled: bool,
        /// Whether it serves the others.
        non_persistent_topics_enabled: bool,
        /// Per cent of one core; the limit is 100 for each core.
        cpu: ResourceUsage,
        /// Megabytes of the Java heap.
        memory: ResourceUsage,
        /// Megabytes beside the heap.
        direct_memory: ResourceUsage,
        /// Kilobits a second.
        bandwidth_in: ResourceUsage,
        /// Kilobits a second.
        bandwidth_out: ResourceUsage,
        /// Bytes a second published.
        msg_throughput_in: f64,
        /// Bytes a second dispatched.
        msg_throughput_out: f64,
        /// Messages a second published.
        msg_rate_in: f64,
        /// Messages a second dispatched.
        msg_rate_out: f64,
        /// Milliseconds since 1970.
        last_update: i64,
        /// By bundle.
        last_stats: BTreeMap<String, NamespaceBundleStats>,
        /// Topics.
        num_topics: i32,
        /// Bundles.
        num_bundles: i32,
        /// Consumers.
        num_consumers: i32,
        /// Producers.
        num_producers: i32,
        /// The bundles it serves.
        bundles: Vec<String>,
        /// Those that it took over since it last wrote this.
        last_bundle_gains: Vec<String>,
        /// Those that it gave up since then.
        last_bundle_losses: Vec<String>,
        /// The version of its program.
        #[serde(skip_serializing_if = "Option::is_none")]
        broker_version_string: Option<String>,
        /// Addresses of other protocols.
        protocols: BTreeMap<String, String>,
        /// Where it is reached by those who name a listener.
        #[serde(skip_serializing_if = "Option::is_none")]
        advertised_listeners: Option<BTreeMap<String, AdvertisedListener>>,
        /// The Java class of its load manager.
        #[serde(skip_serializing_if = "Option::is_none")]
        load_manager_class_name: Option<String>,
        /// Milliseconds since 1970.
        start_timestamp: i64,
        /// The largest share that it uses of any of these, from 0 to 1.
        max_resource_usage: f64,
        /// `LocalBrokerData`: which kind of value this is.
        #[serde(skip_serializing_if = "Option::is_none")]
        load_report_type: Option<Word>,
    }

    /// How much of something is used.
    #[derive(Default)]
    pub struct ResourceUsage {
        /// So much.
        usage: f64,
        /// Of so much; negative: not known.
        limit: f64,
    }

    /// What happens in a bundle.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct NamespaceBundleStats {
        /// Messages a second published.
        msg_rate_in: f64,
        /// Bytes a second published.
        msg_throughput_in: f64,
        /// Messages a second dispatched.
        msg_rate_out: f64,
        /// Bytes a second dispatched.
        msg_throughput_out: f64,
        /// Consumers.
        consumer_count: i32,
        /// Producers.
        producer_count: i32,
        /// Topics.
        topics: i64,
        /// Bytes of entries in memory.
        cache_size: i64,
    }

    /// What the leader knows of a bundle: `/loadbalance/bundle-data/<tenant>/<namespace>/<bundle>`.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct BundleData {
        /// Of the last samples.
        short_term_data: TimeAverageMessageData,
        /// Of many.
        long_term_data: TimeAverageMessageData,
        /// Topics.
        topics: i32,
    }

    /// Averages of rates.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct TimeAverageMessageData {
        /// Samples that count.
        max_samples: i32,
        /// Samples so far.
        num_samples: i32,
        /// Bytes a second published.
        msg_throughput_in: f64,
        /// Bytes a second dispatched.
        msg_throughput_out: f64,
        /// Messages a second published.
        msg_rate_in: f64,
        /// Messages a second dispatched.
        msg_rate_out: f64,
    }

    /// What the leader knows of a broker: `/loadbalance/broker-time-average/<broker>`.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct TimeAverageBrokerData {
        /// Bytes a second published, lately.
        short_term_msg_throughput_in: f64,
        /// Bytes a second dispatched, lately.
        short_term_msg_throughput_out: f64,
        /// Messages a second published, lately.
        short_term_msg_rate_in: f64,
        /// Messages a second dispatched, lately.
        short_term_msg_rate_out: f64,
        /// Bytes a second published.
        long_term_msg_throughput_in: f64,
        /// Bytes a second dispatched.
        long_term_msg_throughput_out: f64,
        /// Messages a second published.
        long_term_msg_rate_in: f64,
        /// Messages a second dispatched.
        long_term_msg_rate_out: f64,
    }

    /// What a bundle is counted as: `/loadbalance/resource-quota/default` and `…/<tenant>/<namespace>/<bundle>`.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct ResourceQuota {
        /// Messages a second published.
        msg_rate_in: f64,
        /// Messages a second dispatched.
        msg_rate_out: f64,
        /// Bytes a second published.
        bandwidth_in: f64,
        /// Bytes a second dispatched.
        bandwidth_out: f64,
        /// Megabytes.
        memory: f64,
        /// Whether brokers change it.
        dynamic: bool,
    }

    /// The broker that balances the load: `/loadbalance/leader`, ephemeral.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct LeaderBroker {
        /// Its name below `/loadbalance/brokers`.
        broker_id: String,
        /// `http://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        service_url: Option<String>,
    }
}
