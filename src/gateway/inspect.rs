//! What the frame heads of a relayed connection tell: which topics its producers and consumers use, how much flows on each, and
//! which brokers the broker names. Pure; it never changes or delays a byte. // hot path

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::policy::NamedBroker;
use super::topics::{Role, TopicTable, TopicUse};
use crate::naming::{BrokerAddress, TopicName};
use crate::protocol::fields;
use crate::protocol::head::FrameHead;
use crate::protocol::peek::{self, FieldValue, Fields};
use crate::protocol::proto::pulsar::base_command::Type;

/// Follows the commands of one connection, both directions.
#[derive(Debug)]
pub(crate) struct Inspector {
    topics: Arc<TopicTable>,
    producers: Flow,
    consumers: Flow,
    pending: PendingRequests,
    /// Set when the broker asks the client for a credential, where somebody wants to know.
    challenged: Option<Arc<AtomicBool>>,
}

/// Requests whose success changes what is open: at most [`TRACKED_MAX`] with at most [`PENDING_NAME_BYTES_MAX`] of names. Those
/// beyond are relayed and not followed.
#[derive(Debug, Default)]
struct PendingRequests {
    by_id: HashMap<u64, Pending>,
    /// The request that opens a producer or consumer. Each names an entry of `by_id`.
    opening: HashMap<(Role, u64), u64>,
    name_bytes: usize,
}

impl PendingRequests {
    fn insert(&mut self, request_id: u64, pending: Pending) {
        self.remove(request_id);
        let name_bytes = self.name_bytes + pending.name_len();
        if self.by_id.len() < TRACKED_MAX && name_bytes <= PENDING_NAME_BYTES_MAX {
            self.name_bytes = name_bytes;
            if let Pending::Open { role, id, .. } = pending {
                self.opening.insert((role, id), request_id);
            }
            self.by_id.insert(request_id, pending);
        }
    }

    fn remove(&mut self, request_id: u64) -> Option<Pending> {
        let pending = self.by_id.remove(&request_id)?;
        self.name_bytes -= pending.name_len();
        if let Pending::Open { role, id, .. } = pending
            && self.opening.get(&(role, id)) == Some(&request_id)
        {
            self.opening.remove(&(role, id));
        }
        Some(pending)
    }

    /// The client closes what it has just asked to open; its success does not open it any more.
    fn forget(&mut self, role: Role, id: Option<u64>) {
        if let Some(request_id) = id.and_then(|id| self.opening.get(&(role, id)).copied()) {
            self.remove(request_id);
        }
    }
}

#[derive(Debug)]
enum Pending {
    Open {
        role: Role,
        id: u64,
        /// `None`: too long for a label.
        topic: Option<Box<str>>,
    },
    Unsubscribe {
        consumer_id: u64,
    },
}

/// Where PRODUCER and SUBSCRIBE have what they have in common.
#[derive(Clone, Copy)]
struct OpenFields {
    topic: u32,
    id: u32,
    request_id: u32,
}

const PRODUCER_FIELDS: OpenFields = OpenFields {
    topic: fields::producer::TOPIC,
    id: fields::producer::PRODUCER_ID,
    request_id: fields::producer::REQUEST_ID,
};
const SUBSCRIBE_FIELDS: OpenFields = OpenFields {
    topic: fields::subscribe::TOPIC,
    id: fields::subscribe::CONSUMER_ID,
    request_id: fields::subscribe::REQUEST_ID,
};

impl Pending {
    fn name_len(&self) -> usize {
        match self {
            Self::Open { topic, .. } => topic.as_ref().map_or(0, |topic| topic.len()),
            Self::Unsubscribe { .. } => 0,
        }
    }
}

impl Inspector {
    /// A connection on which nothing is open yet.
    pub(crate) fn new(topics: Arc<TopicTable>) -> Self {
        Self {
            topics,
            producers: Flow::default(),
            consumers: Flow::default(),
            pending: PendingRequests::default(),
            challenged: None,
        }
    }

    /// Sets this when the broker asks the client for a credential (AUTH_CHALLENGE).
    pub(crate) fn noting_challenges(mut self, challenged: Arc<AtomicBool>) -> Self {
        self.challenged = Some(challenged);
        self
    }

    /// A frame from the client passes.
    pub(crate) fn client_frame(&mut self, head: FrameHead<'_>) {
        let Some((command_type, body)) = peek::command(head.command) else {
            return;
        };
        match Type::try_from(command_type) {
            Ok(Type::Send) => {
                let (id, messages) = peek::send(body);
                self.producers.count(id, messages, head.wire_len);
            }
            Ok(Type::Producer) => self.opens(Role::Producer, body, PRODUCER_FIELDS),
            Ok(Type::Subscribe) => self.opens(Role::Consumer, body, SUBSCRIBE_FIELDS),
            Ok(Type::CloseProducer) => {
                let id = peek::varint_field(body, fields::close_producer::PRODUCER_ID);
                self.producers.close(id);
                self.pending.forget(Role::Producer, id);
            }
            Ok(Type::CloseConsumer) => {
                let id = peek::varint_field(body, fields::close_consumer::CONSUMER_ID);
                self.consumers.close(id);
                self.pending.forget(Role::Consumer, id);
            }
            Ok(Type::Unsubscribe) => {
                if let (Some(consumer_id), Some(request_id)) = (
                    peek::varint_field(body, fields::unsubscribe::CONSUMER_ID),
                    peek::varint_field(body, fields::unsubscribe::REQUEST_ID),
                ) {
                    self.pending
                        .insert(request_id, Pending::Unsubscribe { consumer_id });
                }
            }
            _ => {}
        }
    }

    /// A frame from the broker passes. Returns a broker that it names, if any: clients will want to go there.
    pub(crate) fn broker_frame(&mut self, head: FrameHead<'_>) -> Option<NamedBroker> {
        let (command_type, body) = peek::command(head.command)?;
        match Type::try_from(command_type) {
            Ok(Type::Message) => {
                let id = peek::varint_field(body, fields::message::CONSUMER_ID);
                self.consumers
                    .count(id, peek::messages_in_payload(head.payload), head.wire_len);
                None
            }
            Ok(Type::ProducerSuccess) => {
                // A producer that waits for exclusive access is told so first (PIP-68) and is not open yet.
                if peek::varint_field(body, fields::producer_success::PRODUCER_READY) != Some(0) {
                    self.succeeded(peek::varint_field(
                        body,
                        fields::producer_success::REQUEST_ID,
                    ));
                }
                None
            }
            Ok(Type::Success) => {
                self.succeeded(peek::varint_field(body, fields::success::REQUEST_ID));
                None
            }
            Ok(Type::Error) => {
                if let Some(request_id) = peek::varint_field(body, fields::error::REQUEST_ID) {
                    self.pending.remove(request_id);
                }
                None
            }
            Ok(Type::CloseProducer) => {
                self.producers.close(peek::varint_field(
                    body,
                    fields::close_producer::PRODUCER_ID,
                ));
                broker_named_in(body, CLOSE_PRODUCER_URLS)
            }
            Ok(Type::CloseConsumer) => {
                self.consumers.close(peek::varint_field(
                    body,
                    fields::close_consumer::CONSUMER_ID,
                ));
                broker_named_in(body, CLOSE_CONSUMER_URLS)
            }
            Ok(Type::AuthChallenge) => {
                if let Some(challenged) = &self.challenged {
                    challenged.store(true, Ordering::Relaxed);
                }
                None
            }
            Ok(Type::TopicMigrated) => broker_named_in(body, MIGRATED_URLS),
            Ok(Type::LookupResponse) => broker_named_in(body, LOOKUP_URLS),
            _ => None,
        }
    }

    /// The chunk ends: what was counted becomes visible.
    pub(crate) fn flush(&mut self) {
        self.producers.flush();
        self.consumers.flush();
    }

    fn opens(&mut self, role: Role, body: &[u8], names: OpenFields) {
        let (mut topic, mut id, mut request_id) = (None, None, None);
        for (field, value) in Fields::of(body) {
            match value {
                FieldValue::Bytes(bytes) if field == names.topic => {
                    topic = std::str::from_utf8(bytes).ok()
                }
                FieldValue::Varint(value) if field == names.id => id = Some(value),
                FieldValue::Varint(value) if field == names.request_id => request_id = Some(value),
                _ => {}
            }
        }
        if let (Some(topic), Some(id), Some(request_id)) = (topic, id, request_id) {
            let topic = (topic.len() <= LABEL_LEN_MAX).then(|| topic.into());
            self.pending
                .insert(request_id, Pending::Open { role, id, topic });
        }
    }

    fn succeeded(&mut self, request_id: Option<u64>) {
        let Some(pending) = request_id.and_then(|request_id| self.pending.remove(request_id))
        else {
            return;
        };
        match pending {
            Pending::Open { role, id, topic } => {
                let topics = &self.topics;
                // The broker accepted the name, so it parses; names it spells differently are one topic.
                let name = topic.and_then(|topic| TopicName::parse(&topic).ok());
                let open = || match name {
                    Some(name) => topics.open(&name.to_string(), role),
                    None => topics.open_other(role),
                };
                match role {
                    Role::Producer => self.producers.open(id, open),
                    Role::Consumer => self.consumers.open(id, open),
                }
            }
            Pending::Unsubscribe { consumer_id } => self.consumers.close(Some(consumer_id)),
        }
    }
}

/// The open producers, or consumers, and what was counted for one of them since the last flush.
#[derive(Debug, Default)]
struct Flow {
    /// `uses.len() <= TRACKED_MAX`; ids beyond are relayed and not counted.
    uses: HashMap<u64, TopicUse>,
    current: u64,
    messages: u64,
    bytes: u64,
}

impl Flow {
    fn count(&mut self, id: Option<u64>, messages: u64, bytes: usize) {
        let Some(id) = id else { return };
        if id != self.current {
            self.flush();
            self.current = id;
        }
        self.messages += messages;
        self.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
    }

    fn flush(&mut self) {
        if self.bytes > 0 {
            if let Some(counted) = self.uses.get(&self.current) {
                counted.add(self.messages, self.bytes);
            }
            self.messages = 0;
            self.bytes = 0;
        }
    }

    /// An id that is open already stays what it is, as at the broker.
    fn open(&mut self, id: u64, open: impl FnOnce() -> TopicUse) {
        if self.uses.len() < TRACKED_MAX {
            self.uses.entry(id).or_insert_with(open);
        }
    }

    fn close(&mut self, id: Option<u64>) {
        self.flush();
        if let Some(id) = id {
            self.uses.remove(&id);
        }
    }
}

/// The addresses in the URL fields that are there.
fn broker_named_in(body: &[u8], [plain, tls]: [u32; 2]) -> Option<NamedBroker> {
    let mut named = NamedBroker::default();
    for (field, value) in Fields::of(body) {
        let place = match field {
            field if field == plain => &mut named.plain,
            field if field == tls => &mut named.tls,
            _ => continue,
        };
        if let FieldValue::Bytes(url) = value
            && let Ok(url) = std::str::from_utf8(url)
        {
            *place = BrokerAddress::from_url(url).ok();
        }
    }
    (named != NamedBroker::default()).then_some(named)
}

// Fields that name a broker: plain, then TLS.
const CLOSE_PRODUCER_URLS: [u32; 2] = [
    fields::close_producer::ASSIGNED_BROKER_SERVICE_URL,
    fields::close_producer::ASSIGNED_BROKER_SERVICE_URL_TLS,
];
const CLOSE_CONSUMER_URLS: [u32; 2] = [
    fields::close_consumer::ASSIGNED_BROKER_SERVICE_URL,
    fields::close_consumer::ASSIGNED_BROKER_SERVICE_URL_TLS,
];
const MIGRATED_URLS: [u32; 2] = [
    fields::topic_migrated::BROKER_SERVICE_URL,
    fields::topic_migrated::BROKER_SERVICE_URL_TLS,
];
const LOOKUP_URLS: [u32; 2] = [
    fields::lookup_response::BROKER_SERVICE_URL,
    fields::lookup_response::BROKER_SERVICE_URL_TLS,
];

/// Bound of producers, of consumers and of open requests that are followed on one connection.
const TRACKED_MAX: usize = 10_000;
/// Bound of the topic names in open requests, in bytes.
const PENDING_NAME_BYTES_MAX: usize = 1024 * 1024;
/// Longest topic name that becomes a label, in bytes; longer ones, of which a head may hold only the start, are counted together.
const LABEL_LEN_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::Command;
    use crate::protocol::proto::pulsar::{
        CommandCloseConsumer, CommandCloseProducer, CommandError, CommandProducer,
        CommandProducerSuccess, CommandSend, CommandSubscribe, CommandSuccess,
        CommandTopicMigrated, CommandUnsubscribe,
    };

    struct Connection {
        inspector: Inspector,
        topics: Arc<TopicTable>,
    }

    impl Connection {
        fn new() -> Self {
            let topics = TopicTable::new(100);
            Self {
                inspector: Inspector::new(Arc::clone(&topics)),
                topics,
            }
        }

        fn client(&mut self, command: impl Into<Command>) {
            let bytes = command.into().encode_command();
            self.inspector.client_frame(head(&bytes));
            self.inspector.flush();
        }

        fn broker(&mut self, command: impl Into<Command>) -> Option<NamedBroker> {
            let bytes = command.into().encode_command();
            self.inspector.broker_frame(head(&bytes))
        }

        fn produce(&mut self, topic: &str, producer_id: u64, request_id: u64) {
            self.client(CommandProducer {
                topic: topic.to_owned(),
                producer_id,
                request_id,
                ..CommandProducer::default()
            });
        }

        fn produced(&mut self, request_id: u64, ready: Option<bool>) {
            self.broker(CommandProducerSuccess {
                request_id,
                producer_ready: ready,
                ..CommandProducerSuccess::default()
            });
        }

        fn subscribe(&mut self, topic: &str, consumer_id: u64, request_id: u64) {
            self.client(CommandSubscribe {
                topic: topic.to_owned(),
                consumer_id,
                request_id,
                ..CommandSubscribe::default()
            });
            self.broker(CommandSuccess {
                request_id,
                schema: None,
            });
        }

        /// The value of a series of a topic of public/default; `None` when the topic has none.
        fn series(&self, name: &str, topic: &str) -> Option<u64> {
            let mut text = String::new();
            self.topics.render("c", &mut text);
            let wanted = format!(
                "pulsegate_gateway_topic_{name}{{cluster=\"c\",topic=\"persistent://public/default/{topic}\"}} "
            );
            let value = text.lines().find_map(|line| line.strip_prefix(&wanted))?;
            Some(value.parse().unwrap())
        }
    }

    fn head(command: &[u8]) -> FrameHead<'_> {
        FrameHead {
            wire_len: command.len() + 8,
            command,
            payload: &[],
        }
    }

    #[test]
    fn a_producer_that_waits_for_exclusive_access_is_open_once_it_is_ready() {
        let mut connection = Connection::new();
        connection.produce("t", 1, 1);
        connection.produced(1, Some(false));
        assert_eq!(connection.series("producers", "t"), None);
        connection.produced(1, Some(true));
        assert_eq!(connection.series("producers", "t"), Some(1));
    }

    #[test]
    fn an_id_that_is_open_stays_on_its_topic() {
        let mut connection = Connection::new();
        connection.produce("a", 1, 1);
        connection.produced(1, None);
        connection.produce("b", 1, 2);
        connection.produced(2, None);
        connection.client(CommandSend {
            producer_id: 1,
            num_messages: Some(3),
            ..CommandSend::default()
        });
        assert_eq!(connection.series("in_messages_total", "a"), Some(3));
        assert_eq!(connection.series("producers", "b"), None);
    }

    #[test]
    fn unsubscribing_and_closing_end_a_consumer() {
        let mut connection = Connection::new();
        connection.subscribe("t", 1, 1);
        connection.subscribe("t", 2, 2);
        assert_eq!(connection.series("consumers", "t"), Some(2));
        connection.client(CommandUnsubscribe {
            consumer_id: 1,
            request_id: 3,
            ..CommandUnsubscribe::default()
        });
        assert_eq!(connection.series("consumers", "t"), Some(2));
        connection.broker(CommandSuccess {
            request_id: 3,
            schema: None,
        });
        assert_eq!(connection.series("consumers", "t"), Some(1));
        let named = connection.broker(CommandCloseConsumer {
            consumer_id: 2,
            request_id: 4,
            assigned_broker_service_url_tls: Some("pulsar+ssl://b:6651".to_owned()),
            ..CommandCloseConsumer::default()
        });
        assert_eq!(connection.series("consumers", "t"), Some(0));
        assert_eq!(named.unwrap().tls.unwrap().to_string(), "b:6651");
    }

    #[test]
    fn a_refused_request_leaves_nothing_behind() {
        let mut connection = Connection::new();
        connection.produce("t", 1, 1);
        connection.broker(CommandError {
            request_id: 1,
            error: 11,
            message: String::new(),
        });
        connection.produced(1, None);
        assert_eq!(connection.series("producers", "t"), None);
    }

    #[test]
    fn a_migrated_topic_names_its_new_broker() {
        let mut connection = Connection::new();
        let named = connection.broker(CommandTopicMigrated {
            broker_service_url: Some("pulsar://blue:6650".to_owned()),
            ..CommandTopicMigrated::default()
        });
        assert_eq!(named.unwrap().plain.unwrap().to_string(), "blue:6650");
    }

    #[test]
    fn a_producer_that_is_closed_before_it_is_open_never_opens() {
        let mut connection = Connection::new();
        connection.produce("t", 1, 1);
        connection.client(CommandCloseProducer {
            producer_id: 1,
            request_id: 2,
            ..CommandCloseProducer::default()
        });
        connection.produced(1, None);
        assert_eq!(connection.series("producers", "t"), None);
    }

    #[test]
    fn invented_counts_do_not_spoil_the_metric() {
        let mut connection = Connection::new();
        connection.produce("t", 1, 1);
        connection.produced(1, None);
        for num_messages in [-1, -1, i32::MAX, 0, 2] {
            let bytes = Command::from(CommandSend {
                producer_id: 1,
                num_messages: Some(num_messages),
                ..CommandSend::default()
            })
            .encode_command();
            connection.inspector.client_frame(head(&bytes));
        }
        connection.inspector.flush();
        assert_eq!(connection.series("in_messages_total", "t"), Some(5));
    }

    #[test]
    fn names_too_long_for_a_label_are_counted_together() {
        let mut connection = Connection::new();
        connection.produce(&"t".repeat(LABEL_LEN_MAX + 1), 1, 1);
        connection.produced(1, None);
        let mut text = String::new();
        connection.topics.render("c", &mut text);
        assert!(text.contains("topic_producers{cluster=\"c\",topic=\"__other__\"} 1\n"));
        for request_id in 0..10_000 {
            connection.produce(&"t".repeat(LABEL_LEN_MAX), request_id, request_id);
        }
        assert!(connection.inspector.pending.name_bytes <= PENDING_NAME_BYTES_MAX);
        assert!(connection.inspector.pending.by_id.len() <= PENDING_NAME_BYTES_MAX / LABEL_LEN_MAX);
    }

    #[test]
    fn what_a_client_can_make_grow_is_bounded() {
        let mut connection = Connection::new();
        let many = u64::try_from(TRACKED_MAX).unwrap() + 100;
        for id in 0..many {
            connection.produce("t", id, id);
            connection.produced(id, None);
        }
        assert_eq!(
            connection.series("producers", "t"),
            u64::try_from(TRACKED_MAX).ok()
        );
        for id in 0..many {
            connection.produce("t", id, id);
        }
        assert_eq!(connection.inspector.pending.by_id.len(), TRACKED_MAX);
        let topics = Arc::clone(&connection.topics);
        drop(connection.inspector);
        let mut text = String::new();
        topics.render("c", &mut text);
        assert!(text.contains(
            "topic_producers{cluster=\"c\",topic=\"persistent://public/default/t\"} 0\n"
        ));
    }
}
