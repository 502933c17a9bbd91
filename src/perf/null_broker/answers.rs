//! The answers of the null broker to requests that keep no state.

use std::collections::BTreeSet;
use std::str::FromStr as _;

use bytes::Bytes;

use crate::naming::{NameError, NamespaceName, TopicDomain, TopicName};
use crate::protocol::command::Command;
use crate::protocol::frame::DEFAULT_MAX_MESSAGE_SIZE;
use crate::protocol::proto::pulsar::command_get_topics_of_namespace::Mode;
use crate::protocol::proto::pulsar::command_lookup_topic_response::LookupType;
use crate::protocol::proto::pulsar::command_partitioned_topic_metadata_response::LookupType as MetadataType;
use crate::protocol::proto::pulsar::{self as pb, ServerError};
use crate::protocol::server_error::{CONNECTION_REQUEST_ID, UserFacingError, error_command};
use crate::protocol::version;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the null broker does not serve {name}")]
    NotServed { name: &'static str },
    #[error("too many producers or consumers on one connection")]
    TooMany,
    #[error("there is no such consumer on this connection")]
    UnknownConsumer,
    #[error("{0}")]
    Topic(NameError),
}

impl UserFacingError for Refusal {
    fn code(&self) -> ServerError {
        match self {
            Self::NotServed { .. } => ServerError::NotAllowedError,
            Self::TooMany => ServerError::TooManyRequests,
            Self::UnknownConsumer => ServerError::MetadataError,
            Self::Topic(_) => ServerError::InvalidTopicName,
        }
    }

    fn retryable(&self) -> bool {
        false
    }

    fn client_message(&self) -> String {
        self.to_string()
    }
}

pub(super) fn connected(connect: &pb::CommandConnect) -> Command {
    Command::from(pb::CommandConnected {
        server_version: concat!("pulsegate-null-broker-", env!("CARGO_PKG_VERSION")).to_owned(),
        protocol_version: Some(version::common(
            version::CURRENT,
            connect.protocol_version(),
        )),
        max_message_size: i32::try_from(DEFAULT_MAX_MESSAGE_SIZE).ok(),
        feature_flags: Some(pb::FeatureFlags {
            supports_get_partitioned_metadata_without_auto_creation: Some(true),
            ..pb::FeatureFlags::default()
        }),
    })
}

pub(super) fn success(request_id: u64) -> Command {
    Command::from(pb::CommandSuccess {
        request_id,
        schema: None,
    })
}

pub(super) fn close_consumer(consumer_id: u64) -> Command {
    Command::from(pb::CommandCloseConsumer {
        consumer_id,
        request_id: CONNECTION_REQUEST_ID,
        ..pb::CommandCloseConsumer::default()
    })
}

pub(super) fn acknowledged(ack: &pb::CommandAck) -> Command {
    Command::from(pb::CommandAckResponse {
        consumer_id: ack.consumer_id,
        txnid_least_bits: ack.txnid_least_bits,
        txnid_most_bits: ack.txnid_most_bits,
        request_id: ack.request_id,
        ..pb::CommandAckResponse::default()
    })
}

pub(super) fn lookup(lookup: &pb::CommandLookupTopic, url: &str) -> Command {
    let mut answer = pb::CommandLookupTopicResponse {
        request_id: lookup.request_id,
        ..pb::CommandLookupTopicResponse::default()
    };
    match TopicName::parse(&lookup.topic) {
        Ok(_) => {
            // Clients that came by TLS take the second field; what ends TLS in front of this is named by `--advertised`.
            if url.starts_with("pulsar+ssl://") {
                answer.broker_service_url_tls = Some(url.to_owned());
            } else {
                answer.broker_service_url = Some(url.to_owned());
            }
            answer.response = Some(LookupType::Connect as i32);
            answer.authoritative = Some(true);
        }
        Err(error) => {
            answer.response = Some(LookupType::Failed as i32);
            answer.error = Some(ServerError::InvalidTopicName as i32);
            answer.message = Some(error.to_string());
        }
    }
    Command::from(answer)
}

pub(super) fn partitions(
    request: &pb::CommandPartitionedTopicMetadata,
    partitions: u32,
) -> Command {
    let mut answer = pb::CommandPartitionedTopicMetadataResponse {
        request_id: request.request_id,
        ..pb::CommandPartitionedTopicMetadataResponse::default()
    };
    match TopicName::parse(&request.topic) {
        Ok(topic) => {
            // A partition has none of its own.
            let partitions = match topic.partition() {
                Some(_) => 0,
                None => partitions,
            };
            answer.partitions = Some(partitions);
            answer.response = Some(MetadataType::Success as i32);
        }
        Err(error) => {
            answer.response = Some(MetadataType::Failed as i32);
            answer.error = Some(ServerError::InvalidTopicName as i32);
            answer.message = Some(error.to_string());
        }
    }
    Command::from(answer)
}

/// The topics of a namespace among those in use. They are not filtered: clients do that where a broker says it did not.
pub(super) fn topics(
    request: &pb::CommandGetTopicsOfNamespace,
    known: &BTreeSet<String>,
) -> Command {
    let namespace = match NamespaceName::from_str(&request.namespace) {
        Ok(namespace) => namespace,
        Err(error) => return error_command(request.request_id, &Refusal::Topic(error)),
    };
    let wanted = |name: &String| {
        let Ok(topic) = TopicName::parse(name) else {
            return false;
        };
        let mode = match request.mode() {
            Mode::Persistent => topic.domain() == TopicDomain::Persistent,
            Mode::NonPersistent => topic.domain() == TopicDomain::NonPersistent,
            Mode::All => true,
        };
        mode && *topic.namespace() == namespace
    };
    Command::from(pb::CommandGetTopicsOfNamespaceResponse {
        request_id: request.request_id,
        topics: known.iter().filter(|name| wanted(name)).cloned().collect(),
        filtered: Some(false),
        topics_hash: None,
        changed: Some(true),
    })
}

/// No topic has a schema.
pub(super) fn no_schema(request_id: u64) -> Command {
    Command::from(pb::CommandGetSchemaResponse {
        request_id,
        error_code: Some(ServerError::TopicNotFound as i32),
        error_message: Some("the null broker keeps no schemas".to_owned()),
        ..pb::CommandGetSchemaResponse::default()
    })
}

pub(super) fn schema_created(request_id: u64) -> Command {
    Command::from(pb::CommandGetOrCreateSchemaResponse {
        request_id,
        schema_version: Some(schema_version()),
        ..pb::CommandGetOrCreateSchemaResponse::default()
    })
}

/// The version of every schema: the first one, a big-endian 0.
pub(super) fn schema_version() -> Bytes {
    Bytes::from_static(&[0; 8])
}

pub(super) fn consumer_stats(request: &pb::CommandConsumerStats) -> Command {
    Command::from(pb::CommandConsumerStatsResponse {
        request_id: request.request_id,
        ..pb::CommandConsumerStatsResponse::default()
    })
}
