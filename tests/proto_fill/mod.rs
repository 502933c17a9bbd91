//! Fills messages from their descriptors, so that a field added to `proto/` is tested without a change here.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "values are made up from random bits, any of them will do"
)]

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value,
};
use pulsegate::protocol::proto::{DESCRIPTOR_SET, markers, ml_data, pulsar};

pub(crate) const ENVELOPE: &str = "pulsar.proto.BaseCommand";

/// What values to use, and which fields to leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    /// Every field, values small and positive.
    All,
    /// Every field, values at the ends of their types' ranges, negative where that is possible.
    Extreme,
    /// Any optional fields and any values, from the seed.
    Random(u64),
}

pub(crate) fn pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(DESCRIPTOR_SET).expect("made by build.rs"));
    &POOL
}

/// Every message but the envelope, whose fields exclude each other.
pub(crate) fn messages() -> Vec<MessageDescriptor> {
    pool()
        .all_messages()
        .filter(|message| message.full_name() != ENVELOPE)
        .collect()
}

/// The command types with the fields of their sub-messages.
pub(crate) fn bodies() -> Vec<(i32, FieldDescriptor)> {
    let envelope = pool().get_message_by_name(ENVELOPE).expect("declared");
    let bodies = envelope
        .fields()
        .filter(|field| matches!(field.kind(), Kind::Message(_)));
    bodies
        .map(|field| (i32::try_from(field.number()).expect("small"), field))
        .collect()
}

pub(crate) fn body_descriptor(field: &FieldDescriptor) -> MessageDescriptor {
    match field.kind() {
        Kind::Message(message) => message,
        other => panic!("{} is no message but {other:?}", field.full_name()),
    }
}

/// A `BaseCommand` with the given sub-message.
pub(crate) fn command(field: &FieldDescriptor, filling: Filling) -> DynamicMessage {
    let mut command = DynamicMessage::new(field.parent_message().clone());
    let number = i32::try_from(field.number()).expect("small");
    command.set_field_by_name("type", Value::EnumNumber(number));
    command.set_field(
        field,
        Value::Message(message(&body_descriptor(field), filling)),
    );
    command
}

pub(crate) fn message(descriptor: &MessageDescriptor, filling: Filling) -> DynamicMessage {
    let seed = match filling {
        Filling::Random(seed) => seed,
        Filling::All | Filling::Extreme => 0,
    };
    Filler {
        filling,
        state: seed,
    }
    .message(descriptor, 0)
}

/// Decodes with the generated type of the message and encodes that again. `None` if there is no such type.
pub(crate) fn through_generated_type(
    full_name: &str,
    bytes: &[u8],
) -> Option<Result<Vec<u8>, prost::DecodeError>> {
    fn through<M: Message + Default>(bytes: &[u8]) -> Result<Vec<u8>, prost::DecodeError> {
        M::decode(bytes).map(|message| message.encode_to_vec())
    }
    macro_rules! generated {
        ($( $package:literal $module:ident { $( $message:ident )+ } )+) => {
            match full_name {
                $( $( concat!($package, ".", stringify!($message)) => through::<$module::$message>(bytes), )+ )+
                "pulsar.ml_data.ManagedLedgerInfo.LedgerInfo" => {
                    through::<ml_data::managed_ledger_info::LedgerInfo>(bytes)
                }
                _ => return None,
            }
        };
    }
    Some(generated! {
        "pulsar.proto" pulsar {
            BaseCommand FeatureFlags CommandConnect CommandConnected AuthData CommandAuthChallenge CommandAuthResponse
            CommandPing CommandPong CommandSuccess CommandError CommandPartitionedTopicMetadata
            CommandPartitionedTopicMetadataResponse CommandLookupTopic CommandLookupTopicResponse
            CommandGetTopicsOfNamespace CommandGetTopicsOfNamespaceResponse CommandWatchTopicList
            CommandWatchTopicListSuccess CommandWatchTopicUpdate CommandWatchTopicListClose CommandTopicMigrated
            CommandProducer CommandProducerSuccess CommandSend CommandSendReceipt CommandSendError CommandCloseProducer
            IntRange KeySharedMeta CommandSubscribe CommandMessage CommandAck CommandAckResponse CommandFlow
            CommandRedeliverUnacknowledgedMessages CommandActiveConsumerChange CommandReachedEndOfTopic CommandSeek
            CommandGetLastMessageId CommandGetLastMessageIdResponse CommandUnsubscribe CommandCloseConsumer
            CommandConsumerStats CommandConsumerStatsResponse Schema CommandGetSchema CommandGetSchemaResponse
            CommandGetOrCreateSchema CommandGetOrCreateSchemaResponse CommandTcClientConnectRequest
            CommandTcClientConnectResponse CommandNewTxn CommandNewTxnResponse CommandAddPartitionToTxn
            CommandAddPartitionToTxnResponse Subscription CommandAddSubscriptionToTxn
            CommandAddSubscriptionToTxnResponse CommandEndTxn CommandEndTxnResponse CommandEndTxnOnPartition
            CommandEndTxnOnPartitionResponse CommandEndTxnOnSubscription CommandEndTxnOnSubscriptionResponse
            EncryptionKeys MessageMetadata SingleMessageMetadata BrokerEntryMetadata MessageIdData KeyValue KeyLongValue
        }
        "pulsar.markers" markers {
            ReplicatedSubscriptionsSnapshotRequest ReplicatedSubscriptionsSnapshotResponse
            ReplicatedSubscriptionsSnapshot ReplicatedSubscriptionsUpdate ClusterMessageId MarkersMessageIdData
        }
        "pulsar.ml_data" ml_data {
            ManagedLedgerInfo ManagedCursorInfo PositionInfo NestedPositionInfo MessageRange
            BatchedEntryDeletionIndexInfo LongListMap LongProperty StringProperty KeyValue OffloadContext OffloadSegment
            OffloadDriverMetadata ManagedLedgerInfoMetadata ManagedCursorInfoMetadata
        }
    })
}

struct Filler {
    filling: Filling,
    state: u64,
}

impl Filler {
    fn message(&mut self, descriptor: &MessageDescriptor, depth: usize) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            let recursive = matches!(field.kind(), Kind::Message(inner) if inner == *descriptor);
            let wanted =
                field.is_required() || !(self.is_random() && self.next().is_multiple_of(3));
            if !wanted || (recursive && depth >= RECURSION) {
                continue;
            }
            let depth = if recursive { depth + 1 } else { 0 };
            let value = if field.is_list() {
                let count = if self.is_random() { self.next() % 4 } else { 2 };
                Value::List((0..count).map(|_| self.value(&field, depth)).collect())
            } else {
                self.value(&field, depth)
            };
            message.set_field(&field, value);
        }
        message
    }

    fn value(&mut self, field: &FieldDescriptor, depth: usize) -> Value {
        let bits = self.next();
        let small = u64::from(field.number()) + bits % 100;
        let extreme = self.filling == Filling::Extreme;
        let pick = |all: u64, extreme_value: u64| match self.filling {
            Filling::All => all,
            Filling::Extreme => extreme_value,
            Filling::Random(_) => bits >> (bits % 64),
        };
        match field.kind() {
            Kind::Message(inner) => Value::Message(self.message(&inner, depth)),
            Kind::Enum(of) => {
                let values: Vec<i32> = of.values().map(|value| value.number()).collect();
                let last = values.last().copied();
                let any = values.get(bits as usize % values.len()).copied();
                Value::EnumNumber(
                    if self.is_random() { any } else { last }.expect("an enum has values"),
                )
            }
            Kind::Bool => Value::Bool(if self.is_random() {
                bits & 1 == 1
            } else {
                !extreme
            }),
            Kind::String => Value::String(if extreme {
                "ünïcode \u{1F980}".repeat(20)
            } else {
                self.text(field, bits)
            }),
            Kind::Bytes => Value::Bytes(if extreme {
                vec![0xff; 300].into()
            } else {
                self.text(field, bits).into()
            }),
            Kind::Int32 => Value::I32(pick(small, i32::MIN as u64) as i32),
            Kind::Int64 => Value::I64(pick(small, i64::MIN as u64) as i64),
            Kind::Uint32 => Value::U32(pick(small, UINT32_MAX) as u32 & UINT32_MAX as u32),
            Kind::Uint64 => Value::U64(pick(small, u64::MAX)),
            Kind::Double => Value::F64(if extreme {
                f64::MIN
            } else {
                small as f64 + 0.5
            }),
            other => panic!(
                "{} has the kind {other:?}, which no field had so far",
                field.full_name()
            ),
        }
    }

    fn text(&self, field: &FieldDescriptor, bits: u64) -> String {
        if self.is_random() && bits.is_multiple_of(5) {
            String::new()
        } else {
            format!("{}-{}", field.name(), bits % 1000)
        }
    }

    fn is_random(&self) -> bool {
        matches!(self.filling, Filling::Random(_))
    }

    /// The next number of a SplitMix64 sequence.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

/// How deep a message is put into one of its own kind.
const RECURSION: usize = 1;
/// The highest value of unsigned fields of 32 bits: above it Pulsar's own library writes other bytes than all others.
const UINT32_MAX: u64 = i32::MAX as u64;
