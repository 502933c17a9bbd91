//! Clusters: `/admin/clusters/<cluster>` and what is below it.

use std::collections::BTreeMap;
use std::fmt;

use super::{Word, json_values};

/// The isolation policies of a cluster by their names: one value.
pub type NamespaceIsolationPolicies = BTreeMap<String, NamespaceIsolationData>;

/// How other clusters reach a cluster: `/admin/clusters/<cluster>`. Its `Debug` shows no secrets.
#[derive(Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterData {
    /// `http://` URLs of its brokers, comma separated; so in the next ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_url: Option<String>,
    /// `https://`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_url_tls: Option<String>,
    /// `pulsar://`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_service_url: Option<String>,
    /// `pulsar+ssl://`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_service_url_tls: Option<String>,
    /// The proxy in front of its brokers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_service_url: Option<String>,
    /// How that proxy is spoken to: `SNI`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<Word>,
    /// Java class of the authentication to use there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_plugin: Option<String>,
    /// Its parameters: a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_parameters: Option<String>,
    /// Clusters that a namespace must not share with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_cluster_names: Option<Vec<String>>,
    /// Whether brokers speak TLS to it.
    pub broker_client_tls_enabled: bool,
    /// Whether its certificate is not checked.
    pub tls_allow_insecure_connection: bool,
    /// Whether keys are in Java's key stores.
    pub broker_client_tls_enabled_with_key_store: bool,
    /// `JKS` or `PKCS12`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_tls_trust_store_type: Option<String>,
    /// A file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_tls_trust_store: Option<String>,
    /// A secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_tls_trust_store_password: Option<String>,
    /// `JKS` or `PKCS12`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_tls_key_store_type: Option<String>,
    /// A file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_tls_key_store: Option<String>,
    /// A secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_tls_key_store_password: Option<String>,
    /// A file of certificates that are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_trust_certs_file_path: Option<String>,
    /// A file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_key_file_path: Option<String>,
    /// A file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_client_certificate_file_path: Option<String>,
    /// The listener at which it is asked for topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener_name: Option<String>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub other: super::OtherFields,
}

impl fmt::Debug for ClusterData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterData")
            .field("service_url", &self.service_url)
            .field("service_url_tls", &self.service_url_tls)
            .field("broker_service_url", &self.broker_service_url)
            .field("broker_service_url_tls", &self.broker_service_url_tls)
            .field("proxy_service_url", &self.proxy_service_url)
            .field("peer_cluster_names", &self.peer_cluster_names)
            .field("listener_name", &self.listener_name)
            .finish_non_exhaustive()
    }
}

json_values! {
    /// Whether a cluster has been left for another one: `/admin/clusters/<cluster>/policies`.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct ClusterPolicies {
        /// Whether clients are to go elsewhere.
        migrated: bool,
        /// Where.
        #[serde(skip_serializing_if = "Option::is_none")]
        migrated_cluster_url: Option<ClusterUrl>,
    }

    /// Where clients of a cluster that has been left go. Pulsar also writes `empty`, which says of these whether all are
    /// missing; it is among the other fields.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct ClusterUrl {
        /// `http://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        service_url: Option<String>,
        /// `https://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        service_url_tls: Option<String>,
        /// `pulsar://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        broker_service_url: Option<String>,
        /// `pulsar+ssl://`.
        #[serde(skip_serializing_if = "Option::is_none")]
        broker_service_url_tls: Option<String>,
    }

    /// Brokers that fail together: `/admin/clusters/<cluster>/failureDomain/<domain>`.
    #[derive(Default)]
    pub struct FailureDomain {
        /// Their addresses.
        brokers: Vec<String>,
    }

    /// Which brokers serve some namespaces.
    #[derive(Default)]
    pub struct NamespaceIsolationData {
        /// Regular expressions of namespaces.
        namespaces: Vec<String>,
        /// Regular expressions of the brokers that serve them.
        primary: Vec<String>,
        /// Those that serve them when too few of these are left.
        secondary: Vec<String>,
        /// When that is.
        #[serde(skip_serializing_if = "Option::is_none")]
        auto_failover_policy: Option<AutoFailoverPolicyData>,
    }

    /// When secondary brokers are used.
    #[derive(Default)]
    pub struct AutoFailoverPolicyData {
        /// `min_available`.
        policy_type: Word,
        /// `min_limit` and `usage_threshold`, numbers as text.
        parameters: BTreeMap<String, String>,
    }
}
