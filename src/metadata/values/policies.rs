//! The parts that policies of namespaces are made of. Topic policies have the same ones.
//!
//! Numbers are as Pulsar has them: -1 and 0 often mean no limit; their defaults are those of Pulsar's classes.

use std::collections::BTreeMap;

use super::{Word, json_values};

json_values! {
    /// How much may wait for consumers.
    #[serde(rename_all = "camelCase")]
    pub struct BacklogQuota {
        /// The old name of `limit_size`; Pulsar writes both.
        limit: i64,
        /// Bytes; -1: no limit.
        limit_size: i64,
        /// Seconds; -1: no limit.
        limit_time: i32,
        /// `producer_request_hold`, `producer_exception` or `consumer_backlog_eviction`.
        #[serde(skip_serializing_if = "Option::is_none")]
        policy: Option<Word>,
    }

    /// How fast messages are dispatched.
    #[serde(rename_all = "camelCase")]
    pub struct DispatchRate {
        /// Messages in a period; -1: no limit.
        dispatch_throttling_rate_in_msg: i32,
        /// Bytes in a period; -1: no limit.
        dispatch_throttling_rate_in_byte: i64,
        /// Whether the rate of publishing is added.
        relative_to_publish_rate: bool,
        /// Seconds.
        rate_period_in_second: i32,
    }

    /// How fast messages are published.
    #[serde(rename_all = "camelCase")]
    pub struct PublishRate {
        /// Messages a second; -1: no limit.
        publish_throttling_rate_in_msg: i32,
        /// Bytes a second; -1: no limit.
        publish_throttling_rate_in_byte: i64,
    }

    /// How often a consumer subscribes.
    #[serde(rename_all = "camelCase")]
    pub struct SubscribeRate {
        /// Times in a period; -1: no limit.
        subscribe_throttling_rate_per_consumer: i32,
        /// Seconds.
        rate_period_in_second: i32,
    }

    /// How entries are stored.
    #[serde(rename_all = "camelCase")]
    pub struct PersistencePolicies {
        /// Bookies of a ledger.
        bookkeeper_ensemble: i32,
        /// Copies of an entry.
        bookkeeper_write_quorum: i32,
        /// Copies that are waited for.
        bookkeeper_ack_quorum: i32,
        /// Cursor updates a second.
        managed_ledger_max_mark_delete_rate: f64,
        /// The storage of a broker that has several.
        #[serde(skip_serializing_if = "Option::is_none")]
        managed_ledger_storage_class_name: Option<String>,
    }

    /// How long messages are kept that all subscriptions have acknowledged.
    #[derive(Default)]
    pub struct RetentionPolicies {
        /// Minutes; 0: none, -1: for ever.
        #[serde(rename = "retentionTimeInMinutes")]
        retention_time_in_minutes: i32,
        /// Megabytes; 0: none, -1: all.
        #[serde(rename = "retentionSizeInMB")]
        retention_size_in_mb: i64,
    }

    /// Delayed delivery.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct DelayedDeliveryPolicies {
        /// Milliseconds between looks for what is due.
        tick_time: i64,
        /// Whether messages may be delayed.
        active: bool,
        /// Longest delay in milliseconds; 0: no limit.
        max_delivery_delay_in_millis: i64,
    }

    /// When topics that nobody uses are deleted.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct InactiveTopicPolicies {
        /// `delete_when_no_subscriptions` or `delete_when_subscriptions_caught_up`.
        #[serde(skip_serializing_if = "Option::is_none")]
        inactive_topic_delete_mode: Option<Word>,
        /// After how many seconds.
        max_inactive_duration_seconds: i32,
        /// Whether they are.
        delete_while_inactive: bool,
    }

    /// Whether topics are made by those who use them.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct AutoTopicCreationOverride {
        /// Whether they are.
        allow_auto_topic_creation: bool,
        /// `partitioned` or `non-partitioned`.
        #[serde(skip_serializing_if = "Option::is_none")]
        topic_type: Option<Word>,
        /// Partitions of a partitioned one.
        #[serde(skip_serializing_if = "Option::is_none")]
        default_num_partitions: Option<i32>,
    }

    /// Whether subscriptions are made by those who use them.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct AutoSubscriptionCreationOverride {
        /// Whether they are.
        allow_auto_subscription_creation: bool,
    }

    /// Filters in front of dispatching.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct EntryFilters {
        /// Their names, comma separated.
        #[serde(skip_serializing_if = "Option::is_none")]
        entry_filter_names: Option<String>,
    }

    /// When and whereto ledgers are copied. The settings of the single drivers are among the other fields.
    #[derive(Default)]
    #[serde(rename_all = "camelCase")]
    pub struct OffloadPolicies {
        /// A folder.
        #[serde(skip_serializing_if = "Option::is_none")]
        offloaders_directory: Option<String>,
        /// Which driver; none: nothing is copied.
        #[serde(skip_serializing_if = "Option::is_none")]
        managed_ledger_offload_driver: Option<Word>,
        /// Ledgers older than that many seconds are copied; -1: none.
        #[serde(skip_serializing_if = "Option::is_none")]
        managed_ledger_offload_threshold_in_seconds: Option<i64>,
        /// What is older than so many bytes is copied; -1: nothing.
        #[serde(skip_serializing_if = "Option::is_none")]
        managed_ledger_offload_threshold_in_bytes: Option<i64>,
        /// Milliseconds after which a copied ledger is deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        managed_ledger_offload_deletion_lag_in_millis: Option<i64>,
        /// `TIERED_STORAGE_FIRST` or `BOOKKEEPER_FIRST`.
        #[serde(skip_serializing_if = "Option::is_none")]
        managed_ledger_offloaded_read_priority: Option<Word>,
        /// More settings.
        #[serde(skip_serializing_if = "Option::is_none")]
        managed_ledger_extra_configurations: Option<BTreeMap<String, String>>,
    }
}

impl Default for BacklogQuota {
    fn default() -> Self {
        Self {
            limit: -1,
            limit_size: -1,
            limit_time: -1,
            policy: None,
            other: super::OtherFields::new(),
        }
    }
}

impl Default for DispatchRate {
    fn default() -> Self {
        Self {
            dispatch_throttling_rate_in_msg: -1,
            dispatch_throttling_rate_in_byte: -1,
            relative_to_publish_rate: false,
            rate_period_in_second: 1,
            other: super::OtherFields::new(),
        }
    }
}

impl Default for PublishRate {
    fn default() -> Self {
        Self {
            publish_throttling_rate_in_msg: -1,
            publish_throttling_rate_in_byte: -1,
            other: super::OtherFields::new(),
        }
    }
}

impl Default for SubscribeRate {
    fn default() -> Self {
        Self {
            subscribe_throttling_rate_per_consumer: -1,
            rate_period_in_second: 30,
            other: super::OtherFields::new(),
        }
    }
}

impl Default for PersistencePolicies {
    fn default() -> Self {
        Self {
            bookkeeper_ensemble: 2,
            bookkeeper_write_quorum: 2,
            bookkeeper_ack_quorum: 2,
            managed_ledger_max_mark_delete_rate: -1.0,
            managed_ledger_storage_class_name: None,
            other: super::OtherFields::new(),
        }
    }
}
