//! The values in Apache Pulsar's tree, as [`super::paths`] lists them: JSON but for schemas and managed ledgers
//! (`crate::managed_ledger` has the latter).
//!
//! A JSON value names the fields that Apache Pulsar 4.0.8 writes; every other field is kept in `other` and written again. What Pulsar
//! leaves out where it has nothing to say is an `Option` here; a `null`, which it never writes, counts as left out. Words
//! of a fixed set that a later version may extend are kept as they are ([`Word`]).
//!
//! What is in the fields is not checked here: whoever acts on them does.

mod bookies;
mod cluster;
mod load;
mod namespace;
mod policies;
mod schema;
mod tenant;
mod word;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use bookies::{BookieInfo, BookieRacks};
pub use cluster::{
    AutoFailoverPolicyData, ClusterData, ClusterPolicies, ClusterUrl, FailureDomain,
    NamespaceIsolationData, NamespaceIsolationPolicies,
};
pub use load::{
    AdvertisedListener, BundleData, LeaderBroker, LocalBrokerData, NamespaceBundleStats,
    NamespaceEphemeralData, ResourceQuota, ResourceUsage, TimeAverageBrokerData,
    TimeAverageMessageData,
};
pub use namespace::{AuthPolicies, BookieAffinityGroup, BundlesData, LocalPolicies, Policies};
pub use policies::{
    AutoSubscriptionCreationOverride, AutoTopicCreationOverride, BacklogQuota,
    DelayedDeliveryPolicies, DispatchRate, EntryFilters, InactiveTopicPolicies, OffloadPolicies,
    PersistencePolicies, PublishRate, RetentionPolicies, SubscribeRate,
};
pub use schema::{SchemaIndexEntry, SchemaLocator, SchemaPosition};
pub use tenant::{DynamicConfiguration, PartitionedTopicMetadata, ResourceGroup, TenantInfo};
pub use word::Word;

/// Fields that are not known here.
pub type OtherFields = serde_json::Map<String, serde_json::Value>;

/// A value is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// It is no JSON, or a field has another type.
    #[error("it is no such JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is no such protobuf message.
    #[error("it is no such message: {0}")]
    Message(#[from] super::MessageError),
}

/// A value that is stored as JSON.
pub trait JsonValue: Serialize + DeserializeOwned {
    /// Reads a value.
    ///
    /// # Errors
    /// When the bytes are no JSON, or a field has another type than it should.
    fn from_json(bytes: &[u8]) -> Result<Self, ValueError> {
        let error = match serde_json::from_slice(bytes) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        // A field that has no `Option` here may still be null in what somebody wrote by hand.
        let mut value: serde_json::Value = serde_json::from_slice(bytes)?;
        leave_out_nulls(&mut value);
        serde_json::from_value(value).map_err(|_| error.into())
    }

    /// The value as JSON.
    ///
    /// # Errors
    /// When a map has a key that JSON does not take, which none of the values here has.
    fn to_json(&self) -> Result<Bytes, ValueError> {
        Ok(serde_json::to_vec(self)?.into())
    }
}

impl<T: Serialize + DeserializeOwned> JsonValue for T {}

/// Takes out the fields that are null, in all objects. Depth is bounded by the parser, which takes 128 levels.
fn leave_out_nulls(value: &mut serde_json::Value) {
    if let serde_json::Value::Object(fields) = value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(leave_out_nulls);
    }
}

/// Declares a JSON value. A field is named in JSON as the attribute in front of the struct says; one of type `Option` is
/// left out when it is `None`, every other one may be missing where `Default` gives what Pulsar takes then.
macro_rules! json_values {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty, )*
        }
    )+) => { $(
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        $(#[$meta])*
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
            /// Fields of other versions.
            #[serde(flatten)]
            pub other: $crate::metadata::values::OtherFields,
        }
    )+ };
}

use json_values;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Message;

    #[test]
    fn a_namespace_without_policies_is_what_pulsar_writes_of_one() {
        // What Pulsar 4.0.8 wrote of a namespace that was made with nothing but a cluster and one bundle.
        let theirs = r#"{"auth_policies":{"namespace_auth":{},"destination_auth":{},"subscription_auth_roles":{}},"replication_clusters":["cluster"],"allowed_clusters":[],"bundles":{"boundaries":["0x00000000","0xffffffff"],"numBundles":1},"backlog_quota_map":{},"clusterDispatchRate":{},"topicDispatchRate":{},"subscriptionDispatchRate":{},"replicatorDispatchRate":{},"clusterSubscribeRate":{},"publishMaxMessageRate":{},"latency_stats_sample_rate":{},"deleted":false,"encryption_required":false,"subscription_auth_mode":"None","offload_threshold":-1,"offload_threshold_in_seconds":-1,"schema_compatibility_strategy":"UNDEFINED","schema_validation_enforced":false,"subscription_types_enabled":[],"properties":{},"migrated":false}"#;
        let ours = Policies {
            replication_clusters: vec!["cluster".to_owned()],
            bundles: Some(BundlesData {
                boundaries: vec!["0x00000000".to_owned(), "0xffffffff".to_owned()],
                num_bundles: 1,
                ..BundlesData::default()
            }),
            ..Policies::default()
        };
        assert_eq!(ours.to_json().expect("written"), theirs);
    }

    #[test]
    fn what_is_missing_is_what_pulsar_takes_then() {
        let policies = Policies::from_json(b"{}").expect("nothing is needed");
        assert_eq!(policies, Policies::default());
        let rate = DispatchRate::from_json(b"{\"relativeToPublishRate\":true}").expect("valid");
        assert_eq!(
            (
                rate.dispatch_throttling_rate_in_msg,
                rate.rate_period_in_second,
                rate.relative_to_publish_rate
            ),
            (-1, 1, true)
        );
        let null = Policies::from_json(b"{\"retention_policies\":null}").expect("null is nothing");
        assert_eq!(null.retention_policies, None);
        let null =
            br#"{"properties":null,"persistence":{"bookkeeperEnsemble":null},"deleted":null}"#;
        let null = Policies::from_json(null).expect("null is nothing");
        assert_eq!(null.persistence, Some(PersistencePolicies::default()));
    }

    #[test]
    fn words_of_later_versions_are_kept() {
        let text = br#"{"subscription_auth_mode":"Suffix"}"#;
        let policies = Policies::from_json(text).expect("any word");
        assert_eq!(policies.subscription_auth_mode, "Suffix");
        let written = policies.to_json().expect("written");
        assert!(String::from_utf8_lossy(&written).contains(r#""subscription_auth_mode":"Suffix""#));
    }

    #[test]
    fn numbers_come_back_to_the_last_digit() {
        for number in [
            0.106_650_449_335_575_1,
            8.504_999_999_999_999,
            5e-324,
            f64::MAX,
        ] {
            let usage = ResourceUsage {
                usage: number,
                ..ResourceUsage::default()
            };
            let again = ResourceUsage::from_json(&usage.to_json().expect("written"));
            assert_eq!(again.expect("its own JSON"), usage);
        }
    }

    #[test]
    fn what_is_no_such_value_is_an_error() {
        for text in [
            &b""[..],
            b"[]",
            b"{",
            b"{\"replication_clusters\":7}",
            b"\xff",
        ] {
            assert!(Policies::from_json(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn secrets_of_a_cluster_are_not_shown() {
        let text = br#"{"authenticationParameters":"token:hidden","brokerClientTlsKeyStorePassword":"hidden","later":"hidden"}"#;
        let cluster = ClusterData::from_json(text).expect("valid");
        assert_eq!(
            cluster.authentication_parameters.as_deref(),
            Some("token:hidden")
        );
        assert!(!format!("{cluster:?}").contains("hidden"));
    }

    #[test]
    fn schema_locators_keep_fields_of_later_versions() {
        let entry = [0x08, 1, 0x12, 4, 8, 7, 16, 9, 0x1a, 1, 0xaa, 0x20, 5];
        let mut bytes = vec![0x0a, 13];
        bytes.extend_from_slice(&entry);
        bytes.extend_from_slice(&[0x12, 13]);
        bytes.extend_from_slice(&entry);
        bytes.extend_from_slice(&[0x1a, 1, b'x']);
        let locator = SchemaLocator::decode(&bytes).expect("valid");
        assert_eq!((locator.info.version, locator.index.len()), (1, 1));
        assert_eq!(locator.info.position.entry_id, 9);
        assert_eq!(locator.encode(), bytes);
    }
}
