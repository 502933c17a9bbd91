//! Tenants, partitioned topics, resource groups, and settings that are changed while brokers run.

use std::collections::BTreeMap;

use super::json_values;

/// Settings by their names in `broker.conf`.
pub type DynamicConfiguration = BTreeMap<String, String>;

json_values! {
    /// A tenant: `/admin/policies/<tenant>`.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct TenantInfo {
        /// Roles that may administer it.
        admin_roles: Vec<String>,
        /// Clusters that its namespaces may use.
        allowed_clusters: Vec<String>,
    }

    /// A partitioned topic: `/admin/partitioned-topics/<tenant>/<namespace>/<domain>/<topic>`.
    #[derive(Default)]
    pub struct PartitionedTopicMetadata {
        /// How many partitions it has.
        partitions: i32,
        /// It is about to be deleted, and is not to be made again by whoever connects.
        deleted: bool,
        /// What the administrator noted.
        #[serde(skip_serializing_if = "Option::is_none")]
        properties: Option<BTreeMap<String, String>>,
    }

    /// A resource group: `/admin/resourcegroups/<group>`. What is left out has no limit.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct ResourceGroup {
        /// Messages a second that may be published.
        #[serde(skip_serializing_if = "Option::is_none")]
        publish_rate_in_msgs: Option<i32>,
        /// Bytes a second that may be published.
        #[serde(skip_serializing_if = "Option::is_none")]
        publish_rate_in_bytes: Option<i64>,
        /// Messages a second that may be dispatched.
        #[serde(skip_serializing_if = "Option::is_none")]
        dispatch_rate_in_msgs: Option<i32>,
        /// Bytes a second that may be dispatched.
        #[serde(skip_serializing_if = "Option::is_none")]
        dispatch_rate_in_bytes: Option<i64>,
    }
}
