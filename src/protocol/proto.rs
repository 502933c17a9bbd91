//! The types that `build.rs` generates from `proto/`.
//!
//! `proto/UPSTREAM` names the version of Pulsar whose field numbers they follow. Encoding writes fields in the order of
//! their numbers, as Pulsar's own libraries do. Decoding drops fields that are not declared there; whoever passes a
//! command on keeps the bytes instead (see [`crate::protocol::rewrite`]).

#![expect(
    missing_docs,
    reason = "generated from the files in proto/, where the comments are"
)]

/// The encoded `FileDescriptorSet` of `proto/`, for tests that go through all messages and fields.
#[cfg(any(test, feature = "testing"))]
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Commands and message metadata, from `PulsarApi.proto`.
pub mod pulsar {
    use std::fmt;

    include!(concat!(env!("OUT_DIR"), "/pulsar.proto.rs"));

    /// Stands for credentials in `Debug` output: whether they are there, and how many bytes.
    fn hidden<T: AsRef<[u8]>>(credentials: Option<&T>) -> Option<Hidden> {
        credentials.map(|secret| Hidden {
            len: secret.as_ref().len(),
        })
    }

    struct Hidden {
        len: usize,
    }

    impl fmt::Debug for Hidden {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "<{} bytes>", self.len)
        }
    }

    impl fmt::Debug for CommandConnect {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("CommandConnect")
                .field("client_version", &self.client_version)
                .field("auth_method", &self.auth_method)
                .field("auth_data", &hidden(self.auth_data.as_ref()))
                .field("protocol_version", &self.protocol_version)
                .field("auth_method_name", &self.auth_method_name)
                .field("proxy_to_broker_url", &self.proxy_to_broker_url)
                .field("original_principal", &self.original_principal)
                .field(
                    "original_auth_data",
                    &hidden(self.original_auth_data.as_ref()),
                )
                .field("original_auth_method", &self.original_auth_method)
                .field("feature_flags", &self.feature_flags)
                .field("proxy_version", &self.proxy_version)
                .finish()
        }
    }

    impl fmt::Debug for AuthData {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("AuthData")
                .field("auth_method_name", &self.auth_method_name)
                .field("auth_data", &hidden(self.auth_data.as_ref()))
                .finish()
        }
    }

    impl fmt::Debug for CommandLookupTopic {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("CommandLookupTopic")
                .field("topic", &self.topic)
                .field("request_id", &self.request_id)
                .field("authoritative", &self.authoritative)
                .field("original_principal", &self.original_principal)
                .field(
                    "original_auth_data",
                    &hidden(self.original_auth_data.as_ref()),
                )
                .field("original_auth_method", &self.original_auth_method)
                .field("advertised_listener_name", &self.advertised_listener_name)
                .field("properties", &self.properties)
                .finish()
        }
    }

    impl fmt::Debug for CommandPartitionedTopicMetadata {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("CommandPartitionedTopicMetadata")
                .field("topic", &self.topic)
                .field("request_id", &self.request_id)
                .field("original_principal", &self.original_principal)
                .field(
                    "original_auth_data",
                    &hidden(self.original_auth_data.as_ref()),
                )
                .field("original_auth_method", &self.original_auth_method)
                .field(
                    "metadata_auto_creation_enabled",
                    &self.metadata_auto_creation_enabled,
                )
                .finish()
        }
    }
}

/// Payloads of marker messages, from `PulsarMarkers.proto`.
pub mod markers {
    include!(concat!(env!("OUT_DIR"), "/pulsar.markers.rs"));
}

/// Records of the managed ledger in metadata store and cursor ledgers, from `MLDataFormats.proto`.
pub mod ml_data {
    include!(concat!(env!("OUT_DIR"), "/pulsar.ml_data.rs"));
}
