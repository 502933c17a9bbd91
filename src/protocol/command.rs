//! Commands: a `BaseCommand` as an enum.
//!
//! Owns the list of command types and the way from bytes to [`Command`]; the way back is in
//! [`crate::protocol::encode`]. Decoding reads the type and then only the sub-message that the type names, so that no
//! caller ever has to handle a command whose content is missing. What to do with a command is not decided here.
// hot path

use bytes::Bytes;
use prost::Message;
use thiserror::Error;

use crate::protocol::hot;
use crate::protocol::proto::pulsar as pb;
use crate::protocol::required::{self, Violation};
use crate::protocol::wire::{self, Fields, Value, WireError};

/// Why the bytes of a command cannot be decoded. The peer is at fault: the connection is to be closed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum CommandError {
    /// The bytes are not a protobuf message.
    #[error("malformed command: {0}")]
    Wire(#[from] WireError),
    /// The type is missing, or is not an integer.
    #[error("a command without a type")]
    TypeMissing,
    /// The type names a sub-message that is not there, or is not a message.
    #[error("a command of type {} without its content", name_of(*command_type))]
    BodyMissing {
        /// The type.
        command_type: i32,
    },
    /// The sub-message cannot be decoded.
    #[error("a malformed command of type {}: {source}", name_of(*command_type))]
    Body {
        /// The type.
        command_type: i32,
        /// What is wrong with it.
        source: prost::DecodeError,
    },
    /// A required field of the sub-message, or of a message in it, is missing.
    #[error("a command of type {} without its required field {field}", name_of(*command_type))]
    RequiredFieldMissing {
        /// The type.
        command_type: i32,
        /// The number of the field in the (innermost) message that lacks it.
        field: u32,
    },
    /// Commands of this type have no request id (or the type is unknown).
    #[error("commands of type {} have no request id", name_of(*command_type))]
    NoRequestId {
        /// The type.
        command_type: i32,
    },
}

/// Defines [`Command`] and everything that is one line per command type. A row is the variant, the type of its content,
/// the number and the name of the command type, and where the request id is.
macro_rules! commands {
    ($( $variant:ident ( $($content:tt)+ ) = $number:literal $name:literal $request:tt; )+) => {
        /// A command, in either direction. The variants have the names and the meaning of `BaseCommand.Type` in
        /// `proto/PulsarApi.proto`; contents larger than that of
        /// `SEND`, the largest on the hot path, are boxed.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Command {
            $(
                #[doc = concat!("`", $name, "`, type ", stringify!($number), ".")]
                $variant(commands!(@type $($content)+)),
            )+
            /// A type that is not known here. The content is not kept; whoever passes commands on keeps the bytes.
            Unknown {
                /// The type, as sent.
                command_type: i32,
            },
        }

        impl Command {
            /// The command type, a `BaseCommand.Type` where it is known.
            pub fn command_type(&self) -> i32 {
                match self {
                    $( Command::$variant(_) => $number, )+
                    Command::Unknown { command_type } => *command_type,
                }
            }

            /// The request id, where the command has one. CLOSE_PRODUCER and CLOSE_CONSUMER of a broker carry one that
            /// nobody waits for.
            pub fn request_id(&self) -> Option<u64> {
                match self {
                    $( Command::$variant(content) => commands!(@request_id content $request), )+
                    Command::Unknown { .. } => None,
                }
            }

            fn decode_body(command_type: i32, body: Bytes) -> Result<Command, prost::DecodeError> {
                match command_type {
                    $( $number => Ok(Command::$variant(Message::decode(body)?)), )+
                    _ => Ok(Command::Unknown { command_type }),
                }
            }

            /// The length of the sub-message by the generated code, in bytes.
            pub(crate) fn generated_body_len(&self) -> usize {
                match self {
                    $( Command::$variant(content) => content.encoded_len(), )+
                    Command::Unknown { .. } => 0,
                }
            }

            /// Encodes the sub-message by the generated code.
            pub(crate) fn put_generated_body(&self, out: &mut impl bytes::BufMut) {
                match self {
                    $( Command::$variant(content) => content.encode_raw(out), )+
                    Command::Unknown { .. } => {}
                }
            }
        }

        /// The name of a command type as in `BaseCommand.Type`, `UNKNOWN` for others.
        pub fn name_of(command_type: i32) -> &'static str {
            match command_type {
                $( $number => $name, )+
                _ => "UNKNOWN",
            }
        }

        /// Whether the type is one of `BaseCommand.Type`.
        pub fn is_known(command_type: i32) -> bool {
            matches!(command_type, $( $number )|+)
        }

        /// The number of the field in the sub-message of this type that holds the request id.
        pub fn request_id_field(command_type: i32) -> Option<u32> {
            match command_type {
                $( $number => commands!(@request_field $request), )+
                _ => None,
            }
        }

        /// Every known command type, in ascending order.
        pub const COMMAND_TYPES: &[i32] = &[ $( $number ),+ ];

        $( commands!(@from $variant $($content)+); )+
    };
    (@type box $content:ident) => { Box<pb::$content> };
    (@type $content:ident) => { pb::$content };
    (@request_id $content:ident none) => {{ let _ = $content; None }};
    (@request_id $content:ident [required $field:literal]) => { Some($content.request_id) };
    (@request_id $content:ident [optional $field:literal]) => { $content.request_id };
    (@request_field none) => { None };
    (@request_field [$presence:ident $field:literal]) => { Some($field) };
    (@from $variant:ident box $content:ident) => {
        impl From<pb::$content> for Command {
            fn from(content: pb::$content) -> Self {
                Command::$variant(Box::new(content))
            }
        }
    };
    (@from $variant:ident $content:ident) => {
        impl From<pb::$content> for Command {
            fn from(content: pb::$content) -> Self {
                Command::$variant(content)
            }
        }
    };
}

commands! {
    Connect(box CommandConnect) = 2 "CONNECT" none;
    Connected(CommandConnected) = 3 "CONNECTED" none;
    Subscribe(box CommandSubscribe) = 4 "SUBSCRIBE" [required 5];
    Producer(box CommandProducer) = 5 "PRODUCER" [required 3];
    Send(CommandSend) = 6 "SEND" none;
    SendReceipt(CommandSendReceipt) = 7 "SEND_RECEIPT" none;
    SendError(CommandSendError) = 8 "SEND_ERROR" none;
    Message(CommandMessage) = 9 "MESSAGE" none;
    Ack(CommandAck) = 10 "ACK" [optional 8];
    Flow(CommandFlow) = 11 "FLOW" none;
    Unsubscribe(CommandUnsubscribe) = 12 "UNSUBSCRIBE" [required 2];
    Success(CommandSuccess) = 13 "SUCCESS" [required 1];
    Error(CommandError) = 14 "ERROR" [required 1];
    CloseProducer(CommandCloseProducer) = 15 "CLOSE_PRODUCER" [required 2];
    CloseConsumer(CommandCloseConsumer) = 16 "CLOSE_CONSUMER" [required 2];
    ProducerSuccess(CommandProducerSuccess) = 17 "PRODUCER_SUCCESS" [required 1];
    Ping(CommandPing) = 18 "PING" none;
    Pong(CommandPong) = 19 "PONG" none;
    RedeliverUnacknowledgedMessages(CommandRedeliverUnacknowledgedMessages) = 20
        "REDELIVER_UNACKNOWLEDGED_MESSAGES" none;
    PartitionedMetadata(CommandPartitionedTopicMetadata) = 21 "PARTITIONED_METADATA" [required 2];
    PartitionedMetadataResponse(CommandPartitionedTopicMetadataResponse) = 22
        "PARTITIONED_METADATA_RESPONSE" [required 2];
    Lookup(box CommandLookupTopic) = 23 "LOOKUP" [required 2];
    LookupResponse(CommandLookupTopicResponse) = 24 "LOOKUP_RESPONSE" [required 4];
    ConsumerStats(CommandConsumerStats) = 25 "CONSUMER_STATS" [required 1];
    ConsumerStatsResponse(box CommandConsumerStatsResponse) = 26 "CONSUMER_STATS_RESPONSE" [required 1];
    ReachedEndOfTopic(CommandReachedEndOfTopic) = 27 "REACHED_END_OF_TOPIC" none;
    Seek(CommandSeek) = 28 "SEEK" [required 2];
    GetLastMessageId(CommandGetLastMessageId) = 29 "GET_LAST_MESSAGE_ID" [required 2];
    GetLastMessageIdResponse(CommandGetLastMessageIdResponse) = 30 "GET_LAST_MESSAGE_ID_RESPONSE" [required 2];
    ActiveConsumerChange(CommandActiveConsumerChange) = 31 "ACTIVE_CONSUMER_CHANGE" none;
    GetTopicsOfNamespace(CommandGetTopicsOfNamespace) = 32 "GET_TOPICS_OF_NAMESPACE" [required 1];
    GetTopicsOfNamespaceResponse(CommandGetTopicsOfNamespaceResponse) = 33
        "GET_TOPICS_OF_NAMESPACE_RESPONSE" [required 1];
    GetSchema(CommandGetSchema) = 34 "GET_SCHEMA" [required 1];
    GetSchemaResponse(box CommandGetSchemaResponse) = 35 "GET_SCHEMA_RESPONSE" [required 1];
    AuthChallenge(CommandAuthChallenge) = 36 "AUTH_CHALLENGE" none;
    AuthResponse(CommandAuthResponse) = 37 "AUTH_RESPONSE" none;
    AckResponse(CommandAckResponse) = 38 "ACK_RESPONSE" [optional 6];
    GetOrCreateSchema(CommandGetOrCreateSchema) = 39 "GET_OR_CREATE_SCHEMA" [required 1];
    GetOrCreateSchemaResponse(CommandGetOrCreateSchemaResponse) = 40 "GET_OR_CREATE_SCHEMA_RESPONSE" [required 1];
    NewTxn(CommandNewTxn) = 50 "NEW_TXN" [required 1];
    NewTxnResponse(CommandNewTxnResponse) = 51 "NEW_TXN_RESPONSE" [required 1];
    AddPartitionToTxn(CommandAddPartitionToTxn) = 52 "ADD_PARTITION_TO_TXN" [required 1];
    AddPartitionToTxnResponse(CommandAddPartitionToTxnResponse) = 53 "ADD_PARTITION_TO_TXN_RESPONSE" [required 1];
    AddSubscriptionToTxn(CommandAddSubscriptionToTxn) = 54 "ADD_SUBSCRIPTION_TO_TXN" [required 1];
    AddSubscriptionToTxnResponse(CommandAddSubscriptionToTxnResponse) = 55
        "ADD_SUBSCRIPTION_TO_TXN_RESPONSE" [required 1];
    EndTxn(CommandEndTxn) = 56 "END_TXN" [required 1];
    EndTxnResponse(CommandEndTxnResponse) = 57 "END_TXN_RESPONSE" [required 1];
    EndTxnOnPartition(CommandEndTxnOnPartition) = 58 "END_TXN_ON_PARTITION" [required 1];
    EndTxnOnPartitionResponse(CommandEndTxnOnPartitionResponse) = 59 "END_TXN_ON_PARTITION_RESPONSE" [required 1];
    EndTxnOnSubscription(CommandEndTxnOnSubscription) = 60 "END_TXN_ON_SUBSCRIPTION" [required 1];
    EndTxnOnSubscriptionResponse(CommandEndTxnOnSubscriptionResponse) = 61
        "END_TXN_ON_SUBSCRIPTION_RESPONSE" [required 1];
    TcClientConnectRequest(CommandTcClientConnectRequest) = 62 "TC_CLIENT_CONNECT_REQUEST" [required 1];
    TcClientConnectResponse(CommandTcClientConnectResponse) = 63 "TC_CLIENT_CONNECT_RESPONSE" [required 1];
    WatchTopicList(CommandWatchTopicList) = 64 "WATCH_TOPIC_LIST" [required 1];
    WatchTopicListSuccess(CommandWatchTopicListSuccess) = 65 "WATCH_TOPIC_LIST_SUCCESS" [required 1];
    WatchTopicUpdate(CommandWatchTopicUpdate) = 66 "WATCH_TOPIC_UPDATE" none;
    WatchTopicListClose(CommandWatchTopicListClose) = 67 "WATCH_TOPIC_LIST_CLOSE" [required 1];
    TopicMigrated(CommandTopicMigrated) = 68 "TOPIC_MIGRATED" none;
}

impl Command {
    /// Decodes the bytes of a `BaseCommand` (the command part of a frame). Fields of bytes share memory with `bytes`.
    ///
    /// As in Pulsar's own libraries the last sub-message wins if there are several, and a missing required field is an
    /// error. Sub-messages that the type does not name are not looked at.
    #[inline]
    pub fn decode(bytes: &Bytes) -> Result<Command, CommandError> {
        hot::decode_or(bytes, || Command::decode_generated(bytes))
    }

    /// As [`Command::decode`], from memory that cannot be shared: commands that are not hot are copied first.
    ///
    /// # Errors
    /// As [`Command::decode`].
    #[inline]
    pub fn decode_borrowed(bytes: &[u8]) -> Result<Command, CommandError> {
        hot::decode_or(bytes, || {
            Command::decode_generated(&Bytes::copy_from_slice(bytes))
        })
    }

    /// As [`Command::decode`], by the generated code alone: the reference for the hand-written code.
    pub(crate) fn decode_generated(bytes: &Bytes) -> Result<Command, CommandError> {
        let command_type = Command::peek_type(bytes)?;
        if !is_known(command_type) {
            return Ok(Command::Unknown { command_type });
        }
        let body =
            body_of(bytes, command_type)?.ok_or(CommandError::BodyMissing { command_type })?;
        required::check_command(command_type, body).map_err(|violation| match violation {
            Violation::Missing(field) => CommandError::RequiredFieldMissing {
                command_type,
                field,
            },
            Violation::Malformed(error) => CommandError::Wire(error),
        })?;
        Command::decode_body(command_type, bytes.slice_ref(body)).map_err(|source| {
            CommandError::Body {
                command_type,
                source,
            }
        })
    }

    /// Reads only the type of an encoded `BaseCommand`; its sub-messages are not looked into. The last type wins if
    /// there are several.
    pub fn peek_type(bytes: &[u8]) -> Result<i32, CommandError> {
        let mut found = None;
        for field in Fields::new(bytes) {
            let field = field?;
            if field.number == TYPE_FIELD {
                found = Some(field.value.varint().ok_or(CommandError::TypeMissing)?);
            }
        }
        found.map(wire::low_i32).ok_or(CommandError::TypeMissing)
    }
}

/// Whether frames of this type carry a payload behind the command: SEND and MESSAGE.
pub fn has_payload(command_type: i32) -> bool {
    command_type == pb::base_command::Type::Send as i32
        || command_type == pb::base_command::Type::Message as i32
}

/// Finds the last field with the number `command_type`: the sub-message of a type has the type's number. `None` if
/// there is none, an error if it is not a message.
pub(crate) fn body_of(command: &[u8], command_type: i32) -> Result<Option<&[u8]>, CommandError> {
    let number =
        u32::try_from(command_type).map_err(|_| CommandError::BodyMissing { command_type })?;
    let mut found = None;
    for field in Fields::new(command) {
        let field = field?;
        if field.number == number {
            let Value::Bytes(bytes) = field.value else {
                return Err(CommandError::BodyMissing { command_type });
            };
            found = Some(bytes);
        }
    }
    Ok(found)
}

/// A command is moved a few times on its way, and every variant is as large as the largest that is not boxed.
const _: () = assert!(
    size_of::<Command>() <= 160,
    "box what is larger than a SEND"
);

/// The number of the field `type` in `BaseCommand`.
pub(crate) const TYPE_FIELD: u32 = 1;
