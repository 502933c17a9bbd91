//! Protocol versions.
//!
//! Each end announces its highest version in CONNECT and CONNECTED, and both use what the lower one allows. Source:
//! `ProtocolVersion` in `proto/PulsarApi.proto`, and for commands that are not named there the version that was current
//! when Pulsar added them.

use crate::protocol::proto::pulsar::base_command::Type;

/// The version that is spoken here.
pub const CURRENT: i32 = 21;

/// From this version on a client answers PING.
pub const KEEP_ALIVE: i32 = 1;
/// From this version on a client understands batches.
pub const BATCH: i32 = 4;
/// From this version on a client keeps its connection when the broker sends CLOSE_PRODUCER or CLOSE_CONSUMER.
pub const BROKER_CLOSE: i32 = 5;
/// From this version on SEND carries a checksum.
pub const CHECKSUM: i32 = 6;
/// From this version on a client can reach a broker through a proxy.
pub const PROXY: i32 = 10;
/// From this version on every client handles the checksum in MESSAGE.
pub const CHECKSUM_TO_CONSUMER: i32 = 11;
/// From this version on a consumer may subscribe with a schema of type AutoConsume.
pub const AUTO_CONSUME: i32 = 21;

/// The version that two ends use together.
pub fn common(ours: i32, theirs: i32) -> i32 {
    ours.min(theirs)
}

/// The version that added a command type; `None` for types that are not known here.
pub fn first_version(command_type: i32) -> Option<i32> {
    let version = match Type::try_from(command_type).ok()? {
        Type::Connect
        | Type::Connected
        | Type::Subscribe
        | Type::Producer
        | Type::Send
        | Type::SendReceipt
        | Type::SendError
        | Type::Message
        | Type::Ack
        | Type::Flow
        | Type::Unsubscribe
        | Type::Success
        | Type::Error
        | Type::CloseProducer
        | Type::CloseConsumer
        | Type::ProducerSuccess => 0,
        Type::Ping | Type::Pong => KEEP_ALIVE,
        Type::RedeliverUnacknowledgedMessages => 2,
        Type::PartitionedMetadata
        | Type::PartitionedMetadataResponse
        | Type::Lookup
        | Type::LookupResponse => 7,
        Type::ConsumerStats | Type::ConsumerStatsResponse => 8,
        Type::ReachedEndOfTopic | Type::Seek => 9,
        Type::GetLastMessageId
        | Type::GetLastMessageIdResponse
        | Type::ActiveConsumerChange
        | Type::GetTopicsOfNamespace
        | Type::GetTopicsOfNamespaceResponse => 12,
        Type::GetSchema | Type::GetSchemaResponse => 13,
        Type::AuthChallenge | Type::AuthResponse => 14,
        Type::GetOrCreateSchema | Type::GetOrCreateSchemaResponse => 15,
        Type::NewTxn
        | Type::NewTxnResponse
        | Type::AddPartitionToTxn
        | Type::AddPartitionToTxnResponse
        | Type::AddSubscriptionToTxn
        | Type::AddSubscriptionToTxnResponse
        | Type::EndTxn
        | Type::EndTxnResponse
        | Type::EndTxnOnPartition
        | Type::EndTxnOnPartitionResponse
        | Type::EndTxnOnSubscription
        | Type::EndTxnOnSubscriptionResponse => 16,
        Type::AckResponse => 17,
        Type::TcClientConnectRequest | Type::TcClientConnectResponse => 19,
        Type::WatchTopicList
        | Type::WatchTopicListSuccess
        | Type::WatchTopicUpdate
        | Type::WatchTopicListClose
        | Type::TopicMigrated => 20,
    };
    Some(version)
}

/// Whether a command of this type may be sent to a peer of this version. Unknown types may not.
///
/// A peer's version says nothing about abilities that have a feature flag (topic watchers, refreshed credentials).
pub fn allowed(command_type: i32, version: i32) -> bool {
    first_version(command_type).is_some_and(|first| first <= version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::COMMAND_TYPES;
    use crate::protocol::proto::pulsar::ProtocolVersion;

    #[test]
    fn every_known_command_has_a_version_up_to_the_current_one() {
        for &command_type in COMMAND_TYPES {
            let first = first_version(command_type).expect("known");
            assert!((0..=CURRENT).contains(&first), "{command_type}");
            assert!(allowed(command_type, CURRENT));
            assert!(!allowed(command_type, first - 1));
        }
        assert_eq!(first_version(70), None);
        assert!(!allowed(70, CURRENT));
    }

    #[test]
    fn the_current_version_is_the_last_of_the_protocol() {
        assert!(ProtocolVersion::try_from(CURRENT).is_ok());
        assert!(ProtocolVersion::try_from(CURRENT + 1).is_err());
        assert_eq!(common(CURRENT, 12), 12);
        assert_eq!(common(CURRENT, 30), CURRENT);
    }

    #[test]
    fn an_old_client_gets_no_active_consumer_change() {
        assert!(!allowed(Type::ActiveConsumerChange as i32, 11));
        assert!(allowed(Type::ActiveConsumerChange as i32, 12));
    }
}
