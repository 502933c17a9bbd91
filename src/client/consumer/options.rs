//! What a consumer is asked for, in the words of Apache's clients (`ConsumerBuilder`).

use std::time::Duration;

pub use crate::protocol::proto::pulsar::{
    Schema,
    command_get_topics_of_namespace::Mode as TopicMode,
    command_subscribe::{InitialPosition, SubType as SubscriptionType},
};
use crate::{
    client::{error::ClientError, message_id::MessageId},
    naming::{NamespaceName, TopicName},
};

/// Which topics a consumer reads.
#[derive(Debug, Clone)]
pub enum Topics {
    /// One topic: all its partitions if it is partitioned.
    One(TopicName),
    /// Several, each with its partitions.
    Many(Vec<TopicName>),
    /// Those of a namespace whose names match, those created later included.
    Pattern {
        /// The namespace.
        namespace: NamespaceName,
        /// A regular expression that the whole name has to match, without `persistent://` and without the suffix of a
        /// partition, as `topicsPattern` of Apache's clients: `public/default/orders-.*`.
        pattern: String,
        /// Which kinds of topics (`RegexSubscriptionMode`).
        mode: TopicMode,
    },
}

impl From<TopicName> for Topics {
    fn from(topic: TopicName) -> Self {
        Self::One(topic)
    }
}

/// How a consumer behaves. The defaults are those of Apache's Java client where nothing else is said.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {
    /// The name of the subscription.
    pub subscription: String,
    /// How its messages are spread over its consumers.
    pub subscription_type: SubscriptionType,
    /// The name of this consumer; without one it gets a random name, as Apache's clients have it.
    pub consumer_name: Option<String>,
    /// Where a subscription that is created begins.
    pub initial_position: InitialPosition,
    /// Whether the subscription stays when its consumers have left. A reader's does not.
    pub durable: bool,
    /// Where a subscription that is not durable begins; [`MessageId::latest`] without it.
    pub start_message_id: Option<MessageId>,
    /// Whether the message that a start or a seek names is delivered itself.
    pub start_message_inclusive: bool,
    /// Begin this long before now, by publish time. Whole seconds count.
    pub start_rollback: Option<Duration>,
    /// Read the compacted topic: only the latest message of each key.
    pub read_compacted: bool,
    /// Lower ones are served first.
    pub priority_level: i32,
    /// Messages that the broker may send ahead. 0: one at a time, when it is asked for; then only one topic can be read.
    pub receiver_queue_size: u32,
    /// The same for all topics of the consumer together: each gets its share, and at least 1.
    pub max_total_receiver_queue_size: u32,
    /// Bytes of messages that may wait, of all topics of the consumer together: each gets its share, and at least one message.
    /// A broker is asked for no more messages than have room by the size of those that came last, so that it sends fewer
    /// ahead than [`receiver_queue_size`](Self::receiver_queue_size) says where messages are large. Whoever sends twice as
    /// many bytes and 32 MiB all the same is subscribed to anew, with fewer messages asked for.
    pub receiver_queue_bytes: usize,
    /// Which keys a consumer of a Key_Shared subscription gets.
    pub key_shared: Option<KeySharedPolicy>,
    /// Whether the position is replicated to the other clusters (PIP-33). `None`: as the subscription is.
    pub replicate_subscription_state: Option<bool>,
    /// Messages that are not acknowledged in this time are delivered again. `None` = never.
    pub ack_timeout: Option<Duration>,
    /// How long after a negative acknowledgement a message is delivered again.
    pub negative_ack_delay: Duration,
    /// Collects acknowledgements. `None`: each is sent at once.
    pub ack_grouping: Option<AckGrouping>,
    /// Whether acknowledging waits for the broker's answer.
    pub ack_receipt: bool,
    /// Whether single messages of a batch are acknowledged to the broker (PIP-54). Brokers ignore that where
    /// `acknowledgmentAtBatchIndexLevelEnabled` is off, so switch it on only where it is on.
    pub batch_index_ack: bool,
    /// Properties of the consumer, shown in its statistics.
    pub properties: Vec<(String, String)>,
    /// Properties of a subscription that is created.
    pub subscription_properties: Vec<(String, String)>,
    /// The schema that the topic has to be readable with.
    pub schema: Option<Schema>,
    /// Whether a topic that does not exist is created, where the broker allows it.
    pub force_topic_creation: bool,
    /// Messages in several entries.
    pub chunks: ChunkOptions,
    /// How large a message or batch in one entry may be when decompressed, in bytes. Larger ones are dropped as
    /// [unreadable](super::Consumer::discarded).
    pub max_message_size: usize,
    /// How often is looked for new partitions. `None` = never.
    pub auto_update_partitions: Option<Duration>,
    /// How often is looked for topics of a pattern.
    pub pattern_discovery: Duration,
}

impl ConsumerOptions {
    /// The defaults, for this subscription.
    pub fn new(subscription: impl Into<String>) -> Self {
        Self {
            subscription: subscription.into(),
            subscription_type: SubscriptionType::Exclusive,
            consumer_name: None,
            initial_position: InitialPosition::Latest,
            durable: true,
            start_message_id: None,
            start_message_inclusive: false,
            start_rollback: None,
            read_compacted: false,
            priority_level: 0,
            receiver_queue_size: 1000,
            max_total_receiver_queue_size: 50_000,
            receiver_queue_bytes: 64 << 20,
            key_shared: None,
            replicate_subscription_state: None,
            ack_timeout: None,
            negative_ack_delay: Duration::from_secs(60),
            ack_grouping: Some(AckGrouping::default()),
            ack_receipt: false,
            batch_index_ack: false,
            properties: Vec::new(),
            subscription_properties: Vec::new(),
            schema: None,
            force_topic_creation: true,
            chunks: ChunkOptions::default(),
            max_message_size: 64 << 20,
            auto_update_partitions: Some(Duration::from_secs(60)),
            pattern_discovery: Duration::from_secs(60),
        }
    }

    /// Whether several consumers share the messages of the subscription, so that each is acknowledged by itself.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(
            self.subscription_type,
            SubscriptionType::Shared | SubscriptionType::KeyShared
        )
    }

    /// What no broker would take, or what does not fit together.
    pub(crate) fn check(&self, topics: usize) -> Result<(), ClientError> {
        let fault = if self.subscription.trim().is_empty() {
            "the subscription has no name"
        } else if self.receiver_queue_size == 0 && topics != 1 {
            "a receiver queue of size 0 is for one topic that is not partitioned"
        } else if self.read_compacted && self.is_shared() {
            "a compacted topic is read by one consumer at a time"
        } else if self.key_shared.is_some()
            && self.subscription_type != SubscriptionType::KeyShared
            && self.subscription_type != SubscriptionType::Exclusive
        {
            "a policy for keys is for Key_Shared subscriptions"
        } else if self.receiver_queue_size > RECEIVER_QUEUE_MAX {
            "the receiver queue is larger than a million messages"
        } else {
            return Ok(());
        };
        Err(ClientError::InvalidOptions(fault))
    }
}

/// How acknowledgements are collected before they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckGrouping {
    /// The longest that one waits.
    pub max_delay: Duration,
    /// How many are sent together. At least 1.
    pub max_messages: usize,
}

impl Default for AckGrouping {
    /// 100 ms, 1000 messages.
    fn default() -> Self {
        Self {
            max_delay: Duration::from_millis(100),
            max_messages: 1000,
        }
    }
}

/// How messages in several entries are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkOptions {
    /// Messages of one topic that may be incomplete at a time (`maxPendingChunkedMessage`); the oldest gives way. At least 1.
    pub max_incomplete: usize,
    /// Bytes that all incomplete messages together may hold, of all topics of the consumer. One that has no room beside those
    /// of other topics comes again after [`ConsumerOptions::negative_ack_delay`]; when it has none then either, the oldest of
    /// the others give way.
    pub max_bytes: usize,
    /// How large a message may be, before and after it is decompressed, in bytes; no more than `max_bytes`. One that says that
    /// it is larger, in its chunks or behind its compression, is left out with a warning and is not acknowledged: others may take it.
    pub max_message_size: usize,
    /// How long the rest of a message is waited for; then its chunks are acknowledged
    /// (`expireTimeOfIncompleteChunkedMessage`). `None` = for ever. A chunk that comes without those before it is acknowledged
    /// at once where all comes in order (Exclusive, Failover), unless its message has given way; where it does not, when it
    /// was published so long ago (with `None`: an hour), and a younger one is delivered again.
    pub expire_after: Option<Duration>,
    /// Whether a message that gives way is acknowledged, and so lost (`autoAckOldestChunkedMessageOnQueueFull`). Otherwise it
    /// is delivered again after [`ConsumerOptions::negative_ack_delay`], and at least a second: unless a later message is
    /// acknowledged cumulatively before that, as a reader does with each one that it hands out. Then it is lost as well, with
    /// a warning, and counts as discarded.
    pub ack_oldest_when_full: bool,
}

impl Default for ChunkOptions {
    /// 10 messages, 512 MiB for one and for all together, one minute.
    fn default() -> Self {
        Self {
            max_incomplete: 10,
            max_bytes: 512 << 20,
            max_message_size: 512 << 20,
            expire_after: Some(Duration::from_secs(60)),
            ack_oldest_when_full: false,
        }
    }
}

/// Which keys a consumer of a Key_Shared subscription gets (PIP-34, PIP-119).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySharedPolicy {
    /// The broker spreads the keys over the consumers.
    AutoSplit {
        /// Whether a key may be with two consumers for a while, so that nothing waits for acknowledgements.
        allow_out_of_order: bool,
    },
    /// Keys whose hash, 0 to 65535, lies in one of these ranges, both ends included. Ranges of consumers must not overlap.
    Sticky {
        /// Start and end of each.
        ranges: Vec<(u16, u16)>,
        /// As in `AutoSplit`.
        allow_out_of_order: bool,
    },
}

/// Where a seek goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeekTo {
    /// Behind this message, or to it with [`ConsumerOptions::start_message_inclusive`].
    Id(MessageId),
    /// The first message that was published at this time or later, in milliseconds since 1970.
    Time(u64),
}

/// More than this a consumer cannot ask for; keeps a slip from becoming gigabytes of queue.
const RECEIVER_QUEUE_MAX: u32 = 1_000_000;
