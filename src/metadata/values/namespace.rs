//! Namespaces: `/admin/policies/<tenant>/<namespace>`, which clusters may share, and
//! `/admin/local-policies/<tenant>/<namespace>`, which they do not.

use std::collections::BTreeMap;

use super::{
    AutoSubscriptionCreationOverride, AutoTopicCreationOverride, BacklogQuota,
    DelayedDeliveryPolicies, DispatchRate, EntryFilters, InactiveTopicPolicies, OffloadPolicies,
    OtherFields, PersistencePolicies, PublishRate, RetentionPolicies, SubscribeRate, Word,
    json_values,
};

json_values! {
    /// The policies of a namespace. What is left out is the broker's setting. The maps of rates have clusters as keys.
    pub struct Policies {
        /// Who may do what.
        auth_policies: AuthPolicies,
        /// Clusters that its messages are replicated to; its own is among them.
        replication_clusters: Vec<String>,
        /// Clusters that may be among these; empty: those of the tenant.
        allowed_clusters: Vec<String>,
        /// How it was divided when it was made. Later divisions are in [`LocalPolicies`], too.
        #[serde(skip_serializing_if = "Option::is_none")]
        bundles: Option<BundlesData>,
        /// By `destination_storage` and `message_age`.
        backlog_quota_map: BTreeMap<Word, BacklogQuota>,
        /// Of topics, in former versions.
        #[serde(rename = "clusterDispatchRate")]
        cluster_dispatch_rate: BTreeMap<String, DispatchRate>,
        /// Of topics.
        #[serde(rename = "topicDispatchRate")]
        topic_dispatch_rate: BTreeMap<String, DispatchRate>,
        /// Of subscriptions.
        #[serde(rename = "subscriptionDispatchRate")]
        subscription_dispatch_rate: BTreeMap<String, DispatchRate>,
        /// Of replicators.
        #[serde(rename = "replicatorDispatchRate")]
        replicator_dispatch_rate: BTreeMap<String, DispatchRate>,
        /// Of consumers.
        #[serde(rename = "clusterSubscribeRate")]
        cluster_subscribe_rate: BTreeMap<String, SubscribeRate>,
        /// How entries are stored.
        #[serde(skip_serializing_if = "Option::is_none")]
        persistence: Option<PersistencePolicies>,
        /// Whether messages sent twice are stored once.
        #[serde(rename = "deduplicationEnabled", skip_serializing_if = "Option::is_none")]
        deduplication_enabled: Option<bool>,
        /// Whether topics are made by those who use them.
        #[serde(rename = "autoTopicCreationOverride", skip_serializing_if = "Option::is_none")]
        auto_topic_creation_override: Option<AutoTopicCreationOverride>,
        /// Whether subscriptions are made by those who use them.
        #[serde(rename = "autoSubscriptionCreationOverride", skip_serializing_if = "Option::is_none")]
        auto_subscription_creation_override: Option<AutoSubscriptionCreationOverride>,
        /// How fast messages are published.
        #[serde(rename = "publishMaxMessageRate")]
        publish_max_message_rate: BTreeMap<String, PublishRate>,
        /// Not used by Pulsar any more.
        latency_stats_sample_rate: BTreeMap<String, i32>,
        /// Seconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        message_ttl_in_seconds: Option<i32>,
        /// Minutes without a consumer.
        #[serde(skip_serializing_if = "Option::is_none")]
        subscription_expiration_time_minutes: Option<i32>,
        /// How long messages are kept that all have acknowledged.
        #[serde(skip_serializing_if = "Option::is_none")]
        retention_policies: Option<RetentionPolicies>,
        /// It is being deleted.
        deleted: bool,
        /// Whether messages have to be encrypted.
        encryption_required: bool,
        /// Delayed delivery.
        #[serde(skip_serializing_if = "Option::is_none")]
        delayed_delivery_policies: Option<DelayedDeliveryPolicies>,
        /// When topics that nobody uses are deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        inactive_topic_policies: Option<InactiveTopicPolicies>,
        /// `None` or `Prefix`: whether a subscription's name has to begin with its role.
        subscription_auth_mode: Word,
        /// Producers.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_producers_per_topic: Option<i32>,
        /// Consumers.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_consumers_per_topic: Option<i32>,
        /// Consumers.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_consumers_per_subscription: Option<i32>,
        /// Messages.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_unacked_messages_per_consumer: Option<i32>,
        /// Messages.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_unacked_messages_per_subscription: Option<i32>,
        /// Subscriptions.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_subscriptions_per_topic: Option<i32>,
        /// Bytes of backlog.
        #[serde(skip_serializing_if = "Option::is_none")]
        compaction_threshold: Option<i64>,
        /// Bytes; -1: `offload_policies` says.
        offload_threshold: i64,
        /// Seconds; -1: `offload_policies` says.
        offload_threshold_in_seconds: i64,
        /// Milliseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        offload_deletion_lag_ms: Option<i64>,
        /// Topics.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_topics_per_namespace: Option<i32>,
        /// The former form of the next one: `Forward`, `AutoUpdateDisabled` and so on.
        #[serde(skip_serializing_if = "Option::is_none")]
        schema_auto_update_compatibility_strategy: Option<Word>,
        /// `FORWARD`, `UNDEFINED` and so on.
        schema_compatibility_strategy: Word,
        /// Whether a producer may bring a new schema.
        #[serde(skip_serializing_if = "Option::is_none")]
        is_allow_auto_update_schema: Option<bool>,
        /// Whether a producer needs a schema where the topic has one.
        schema_validation_enforced: bool,
        /// When and whereto ledgers are copied.
        #[serde(skip_serializing_if = "Option::is_none")]
        offload_policies: Option<OffloadPolicies>,
        /// Seconds.
        #[serde(rename = "deduplicationSnapshotIntervalSeconds", skip_serializing_if = "Option::is_none")]
        deduplication_snapshot_interval_seconds: Option<i32>,
        /// `Exclusive`, `Shared`, `Failover`, `Key_Shared`; empty: all.
        subscription_types_enabled: Vec<Word>,
        /// What the administrator noted.
        properties: BTreeMap<String, String>,
        /// The resource group whose limits it shares.
        #[serde(skip_serializing_if = "Option::is_none")]
        resource_group_name: Option<String>,
        /// Whether clients are to go to another cluster.
        migrated: bool,
        /// Whether dispatching stops where a cursor's state is too large to be stored.
        #[serde(rename = "dispatcherPauseOnAckStatePersistentEnabled", skip_serializing_if = "Option::is_none")]
        dispatcher_pause_on_ack_state_persistent_enabled: Option<bool>,
        /// Filters in front of dispatching.
        #[serde(rename = "entryFilters", skip_serializing_if = "Option::is_none")]
        entry_filters: Option<EntryFilters>,
    }

    /// Who may do what. Actions are `produce`, `consume`, `functions`, `sources`, `sinks`, `packages`.
    #[derive(Default)]
    pub struct AuthPolicies {
        /// Actions in the namespace, by role.
        namespace_auth: BTreeMap<String, Vec<Word>>,
        /// Actions on a topic, by topic and role.
        destination_auth: BTreeMap<String, BTreeMap<String, Vec<Word>>>,
        /// Roles, by subscription.
        subscription_auth_roles: BTreeMap<String, Vec<String>>,
    }

    /// How a namespace is divided.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct BundlesData {
        /// Limits of hashes, `0x` and eight digits, from the lowest to the highest one.
        boundaries: Vec<String>,
        /// One less than there are limits.
        num_bundles: i32,
    }

    /// What only one cluster knows of a namespace.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct LocalPolicies {
        /// How it is divided here.
        #[serde(skip_serializing_if = "Option::is_none")]
        bundles: Option<BundlesData>,
        /// Which bookies take its entries.
        #[serde(skip_serializing_if = "Option::is_none")]
        bookie_affinity_group: Option<BookieAffinityGroup>,
        /// Namespaces of one group are spread over failure domains.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace_anti_affinity_group: Option<String>,
        /// Whether clients are to go to another cluster.
        migrated: bool,
    }

    /// Groups of bookies.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct BookieAffinityGroup {
        /// The groups that are used, comma separated.
        #[serde(skip_serializing_if = "Option::is_none")]
        bookkeeper_affinity_group_primary: Option<String>,
        /// Those that are used when these have too few bookies.
        #[serde(skip_serializing_if = "Option::is_none")]
        bookkeeper_affinity_group_secondary: Option<String>,
    }
}

impl Default for Policies {
    /// What a namespace has that was made without any.
    fn default() -> Self {
        Self {
            auth_policies: AuthPolicies::default(),
            replication_clusters: Vec::new(),
            allowed_clusters: Vec::new(),
            bundles: None,
            backlog_quota_map: BTreeMap::new(),
            cluster_dispatch_rate: BTreeMap::new(),
            topic_dispatch_rate: BTreeMap::new(),
            subscription_dispatch_rate: BTreeMap::new(),
            replicator_dispatch_rate: BTreeMap::new(),
            cluster_subscribe_rate: BTreeMap::new(),
            persistence: None,
            deduplication_enabled: None,
            auto_topic_creation_override: None,
            auto_subscription_creation_override: None,
            publish_max_message_rate: BTreeMap::new(),
            latency_stats_sample_rate: BTreeMap::new(),
            message_ttl_in_seconds: None,
            subscription_expiration_time_minutes: None,
            retention_policies: None,
            deleted: false,
            encryption_required: false,
            delayed_delivery_policies: None,
            inactive_topic_policies: None,
            subscription_auth_mode: Word::new("None"),
            max_producers_per_topic: None,
            max_consumers_per_topic: None,
            max_consumers_per_subscription: None,
            max_unacked_messages_per_consumer: None,
            max_unacked_messages_per_subscription: None,
            max_subscriptions_per_topic: None,
            compaction_threshold: None,
            offload_threshold: -1,
            offload_threshold_in_seconds: -1,
            offload_deletion_lag_ms: None,
            max_topics_per_namespace: None,
            schema_auto_update_compatibility_strategy: None,
            schema_compatibility_strategy: Word::new("UNDEFINED"),
            is_allow_auto_update_schema: None,
            schema_validation_enforced: false,
            offload_policies: None,
            deduplication_snapshot_interval_seconds: None,
            subscription_types_enabled: Vec::new(),
            properties: BTreeMap::new(),
            resource_group_name: None,
            migrated: false,
            dispatcher_pause_on_ack_state_persistent_enabled: None,
            entry_filters: None,
            other: OtherFields::new(),
        }
    }
}
