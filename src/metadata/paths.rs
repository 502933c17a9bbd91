//! Apache Pulsar's tree: what stands where, and in which of the two stores.
//!
//! | path | store | value |
//! | --- | --- | --- |
//! | `/admin/clusters/<cluster>` | configuration | `ClusterData` |
//! | `/admin/clusters/<cluster>/failureDomain/<domain>` | configuration | `FailureDomain` |
//! | `/admin/clusters/<cluster>/namespaceIsolationPolicies` | configuration | map of `NamespaceIsolationData` |
//! | `/admin/clusters/<cluster>/policies` | local | `ClusterPolicies` |
//! | `/admin/policies/<tenant>` | configuration | `TenantInfo` |
//! | `/admin/policies/<tenant>/<namespace>` | configuration | `Policies` |
//! | `/admin/partitioned-topics/<tenant>/<namespace>/<domain>/<topic>` | configuration | `PartitionedTopicMetadata` |
//! | `/admin/resourcegroups/<group>` | configuration | `ResourceGroup` |
//! | `/admin/local-policies/<tenant>/<namespace>` | local | `LocalPolicies` |
//! | `/admin/configuration` | local | map of settings |
//! | `/bookies` | local | map of racks |
//! | `/managed-ledgers/<tenant>/<namespace>/<domain>/<topic>` | local | `ManagedLedgerInfo` |
//! | `/managed-ledgers/<tenant>/<namespace>/<domain>/<topic>/<cursor>` | local | `ManagedCursorInfo` |
//! | `/schemas/<tenant>/<namespace>/<topic>` | local | `SchemaLocator` |
//! | `/namespace/<tenant>/<namespace>/<bundle>` | local, ephemeral | `NamespaceEphemeralData` |
//! | `/loadbalance/brokers/<broker>` | local, ephemeral | `LocalBrokerData` |
//! | `/loadbalance/leader` | local, ephemeral | `LeaderBroker` |
//! | `/loadbalance/bundle-data/<tenant>/<namespace>/<bundle>` | local | `BundleData` |
//! | `/loadbalance/broker-time-average/<broker>` | local | `TimeAverageBrokerData` |
//! | `/loadbalance/resource-quota/default`, `…/<tenant>/<namespace>/<bundle>` | local | `ResourceQuota` |
//! | `/counters/producer-name` | local | none; sequential ephemeral nodes below it |
//!
//! Which store: by the constructors of `PulsarResources` and `ClusterResources` of Apache Pulsar 4.0.8. What stands in the tree of
//! such a cluster is in `tests/fixtures/metadata`. Topic, cursor and schema names are encoded ([`super::encode_name`]); names
//! of clusters, tenants and namespaces need no encoding. A bundle is `0x` and eight digits, twice, with a `_` between them.
//!
//! A function fails when a name is one that no store takes, which is `.` or `..`, or too long.

use super::sides::{Side, SidePath};
use super::{ConfigurationPath, LocalPath, NodePath, PathError, encode_name};
use crate::naming::{NamespaceName, TopicDomain, TopicName};

/// The clusters known to this one.
#[must_use]
pub fn clusters() -> ConfigurationPath {
    fixed(CLUSTERS)
}

/// A cluster: where it is reached.
///
/// # Errors
/// See [`self`].
pub fn cluster(cluster: &str) -> Result<ConfigurationPath, PathError> {
    clusters().child(cluster)
}

/// The failure domains of a cluster.
///
/// # Errors
/// See [`self`].
pub fn failure_domains(cluster: &str) -> Result<ConfigurationPath, PathError> {
    self::cluster(cluster)?.child("failureDomain")
}

/// The namespace isolation policies of a cluster, all in one value.
///
/// # Errors
/// See [`self`].
pub fn namespace_isolation_policies(cluster: &str) -> Result<ConfigurationPath, PathError> {
    self::cluster(cluster)?.child("namespaceIsolationPolicies")
}

/// Whether a cluster has migrated to another one. Beside the cluster itself, but in the local store.
///
/// # Errors
/// See [`self`].
pub fn cluster_policies(cluster: &str) -> Result<LocalPath, PathError> {
    fixed::<super::Local>(CLUSTERS)
        .child(cluster)?
        .child("policies")
}

/// The tenants.
#[must_use]
pub fn tenants() -> ConfigurationPath {
    fixed(POLICIES)
}

/// A tenant; its namespaces are below it.
///
/// # Errors
/// See [`self`].
pub fn tenant(tenant: &str) -> Result<ConfigurationPath, PathError> {
    tenants().child(tenant)
}

/// The policies of a namespace.
///
/// # Errors
/// See [`self`].
pub fn namespace(namespace: &NamespaceName) -> Result<ConfigurationPath, PathError> {
    below_namespace(POLICIES, namespace)
}

/// What only this cluster knows of a namespace: its bundles, and where its bundles and entries go.
///
/// # Errors
/// See [`self`].
pub fn local_policies(namespace: &NamespaceName) -> Result<LocalPath, PathError> {
    below_namespace("/admin/local-policies", namespace)
}

/// The partitioned topics of a namespace, in both domains.
///
/// # Errors
/// See [`self`].
pub fn partitioned_topics(
    namespace: &NamespaceName,
    domain: TopicDomain,
) -> Result<ConfigurationPath, PathError> {
    below_namespace::<super::Configuration>("/admin/partitioned-topics", namespace)?
        .child(domain.as_str())
}

/// A partitioned topic: how many partitions it has. Names a partition's topic when `topic` is a partition.
///
/// # Errors
/// See [`self`].
pub fn partitioned_topic(topic: &TopicName) -> Result<ConfigurationPath, PathError> {
    let whole = topic.partitioned_topic();
    partitioned_topics(whole.namespace(), whole.domain())?.child(&encode_name(whole.local_name()))
}

/// The resource groups.
#[must_use]
pub fn resource_groups() -> ConfigurationPath {
    fixed("/admin/resourcegroups")
}

/// Settings that are changed while brokers run.
#[must_use]
pub fn dynamic_configuration() -> LocalPath {
    fixed("/admin/configuration")
}

/// In which racks the bookies are.
#[must_use]
pub fn bookie_racks() -> LocalPath {
    fixed("/bookies")
}

/// The managed ledgers of a namespace: one for each stored topic and partition.
///
/// # Errors
/// See [`self`].
pub fn managed_ledgers(
    namespace: &NamespaceName,
    domain: TopicDomain,
) -> Result<LocalPath, PathError> {
    below_namespace::<super::Local>("/managed-ledgers", namespace)?.child(domain.as_str())
}

/// The managed ledger of a topic or partition; its cursors are below it.
///
/// # Errors
/// See [`self`].
pub fn managed_ledger(topic: &TopicName) -> Result<LocalPath, PathError> {
    managed_ledgers(topic.namespace(), topic.domain())?.child(&encode_name(topic.local_name()))
}

/// A cursor of a topic or partition.
///
/// # Errors
/// See [`self`].
pub fn cursor(topic: &TopicName, cursor: &str) -> Result<LocalPath, PathError> {
    managed_ledger(topic)?.child(&encode_name(cursor))
}

/// Where the schemas of a topic are. Partitions share those of their topic.
///
/// # Errors
/// See [`self`].
pub fn schema(topic: &TopicName) -> Result<LocalPath, PathError> {
    let whole = topic.partitioned_topic();
    let namespace = whole.namespace();
    // Without the cluster that namespaces of the old form have.
    fixed::<super::Local>("/schemas")
        .child(namespace.tenant())?
        .child(namespace.local_name())?
        .child(&encode_name(whole.local_name()))
}

/// The owned bundles of a namespace.
///
/// # Errors
/// See [`self`].
pub fn owned_bundles(namespace: &NamespaceName) -> Result<LocalPath, PathError> {
    below_namespace("/namespace", namespace)
}

/// The brokers that run.
#[must_use]
pub fn brokers() -> LocalPath {
    fixed("/loadbalance/brokers")
}

/// The broker that balances the load.
#[must_use]
pub fn leader() -> LocalPath {
    fixed("/loadbalance/leader")
}

/// What the leader knows of the load of a namespace's bundles.
///
/// # Errors
/// See [`self`].
pub fn bundle_data(namespace: &NamespaceName) -> Result<LocalPath, PathError> {
    below_namespace("/loadbalance/bundle-data", namespace)
}

/// What the leader knows of the load of brokers.
#[must_use]
pub fn broker_time_averages() -> LocalPath {
    fixed("/loadbalance/broker-time-average")
}

/// The resource quota of bundles that have none of their own.
///
/// # Errors
/// None; the others can fail.
pub fn default_resource_quota() -> Result<LocalPath, PathError> {
    fixed::<super::Local>("/loadbalance/resource-quota").child("default")
}

/// The resource quotas of a namespace's bundles.
///
/// # Errors
/// See [`self`].
pub fn resource_quotas(namespace: &NamespaceName) -> Result<LocalPath, PathError> {
    below_namespace("/loadbalance/resource-quota", namespace)
}

/// Brokers make a sequential node `-` below this one and take its number for the producers that they name.
#[must_use]
pub fn producer_name_counter() -> LocalPath {
    fixed("/counters/producer-name")
}

fn fixed<S: Side>(path: &'static str) -> SidePath<S> {
    SidePath::new(NodePath::parse(path).expect("a path written here"))
}

/// The nodes of a namespace have one name for each part of its name.
fn below_namespace<S: Side>(
    top: &'static str,
    namespace: &NamespaceName,
) -> Result<SidePath<S>, PathError> {
    let tenant = fixed::<S>(top).child(namespace.tenant())?;
    let above = match namespace.cluster() {
        Some(cluster) => tenant.child(cluster)?,
        None => tenant,
    };
    above.child(namespace.local_name())
}

const CLUSTERS: &str = "/admin/clusters";
const POLICIES: &str = "/admin/policies";

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> TopicName {
        TopicName::parse(name).expect(name)
    }

    fn text<S: Side>(path: Result<SidePath<S>, PathError>) -> String {
        path.expect("valid").to_string()
    }

    #[test]
    fn topics_of_the_old_form_keep_their_cluster() {
        let old = topic("persistent://t/c/n/x/y");
        assert_eq!(
            text(managed_ledger(&old)),
            "/managed-ledgers/t/c/n/persistent/x%2Fy"
        );
        assert_eq!(text(namespace(old.namespace())), "/admin/policies/t/c/n");
        assert_eq!(text(schema(&old)), "/schemas/t/n/x%2Fy");
    }

    #[test]
    fn partitions_share_what_belongs_to_their_topic() {
        let partition = topic("persistent://t/n/x-partition-3");
        assert_eq!(
            text(partitioned_topic(&partition)),
            "/admin/partitioned-topics/t/n/persistent/x"
        );
        assert_eq!(text(schema(&partition)), "/schemas/t/n/x");
        assert_eq!(
            text(cursor(&partition, "a/b")),
            "/managed-ledgers/t/n/persistent/x-partition-3/a%2Fb"
        );
    }

    #[test]
    fn names_that_no_store_takes_are_refused() {
        assert_eq!(
            managed_ledger(&topic("persistent://t/n/..")),
            Err(PathError::Dots)
        );
        assert_eq!(
            namespace(topic("persistent://t/./x").namespace()),
            Err(PathError::Dots)
        );
        assert_eq!(tenant("a/b"), Err(PathError::Slash));
        assert_eq!(cursor(&topic("x"), ""), Err(PathError::EmptyName));
    }
}
