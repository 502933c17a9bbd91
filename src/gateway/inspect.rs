//! What the frame heads of a relayed connection tell: which topics its producers and consumers use, how much flows on each, and
//! which brokers the broker names. Pure; it never changes or delays a byte. // hot path

use std::collections::HashMap;
use std::sync::Arc;

use super::topics::{Role, TopicTable, TopicUse};
use crate::naming::{BrokerAddress, TopicName};
use crate::protocol::head::FrameHead;
use crate::protocol::peek::{self, FieldValue, Fields};
use crate::protocol::proto::pulsar::base_command::Type;

/// Follows the commands of one connection, both directions.
#[derive(Debug)]
pub(crate) struct Inspector {
    topics: Arc<TopicTable>,
    producers: Flow,
    consumers: Flow,
    /// Requests whose success changes what is open. `pending.len() <= TRACKED_MAX`.
    pending: HashMap<u64, Pending>,
}

#[derive(Debug)]
enum Pending {
    Open {
        role: Role,
        id: u64,
        topic: Box<str>,
    },
    Unsubscribe {
        consumer_id: u64,
    },
}

impl Inspector {
    /// A connection on which nothing is open yet.
    pub(crate) fn new(topics: Arc<TopicTable>) -> Self {
        Self {
            topics,
            producers: Flow::default(),
            consumers: Flow::default(),
            pending: HashMap::new(),
        }
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
            Ok(Type::Producer) => self.opens(Role::Producer, body, PRODUCER_ID_AND_REQUEST),
            Ok(Type::Subscribe) => self.opens(Role::Consumer, body, CONSUMER_ID_AND_REQUEST),
            Ok(Type::CloseProducer) => self.producers.close(peek::varint_field(body, 1)),
            Ok(Type::CloseConsumer) => self.consumers.close(peek::varint_field(body, 1)),
            Ok(Type::Unsubscribe) => {
                if let (Some(consumer_id), Some(request_id)) =
                    (peek::varint_field(body, 1), peek::varint_field(body, 2))
                {
                    self.expect(request_id, Pending::Unsubscribe { consumer_id });
                }
            }
            _ => {}
        }
    }

    /// A frame from the broker passes. Returns a broker that it names, if any: clients will want to go there.
    pub(crate) fn broker_frame(&mut self, head: FrameHead<'_>) -> Option<BrokerAddress> {
        let (command_type, body) = peek::command(head.command)?;
        match Type::try_from(command_type) {
            Ok(Type::Message) => {
                let id = peek::varint_field(body, MESSAGE_CONSUMER_ID);
                self.consumers
                    .count(id, peek::messages_in_payload(head.payload), head.wire_len);
                None
            }
            Ok(Type::ProducerSuccess) => {
                // A producer that waits for exclusive access is told so first (PIP-68) and is not open yet.
                if peek::varint_field(body, PRODUCER_READY) != Some(0) {
                    self.succeeded(peek::varint_field(body, 1));
                }
                None
            }
            Ok(Type::Success) => {
                self.succeeded(peek::varint_field(body, 1));
                None
            }
            Ok(Type::Error) => {
                if let Some(request_id) = peek::varint_field(body, 1) {
                    self.pending.remove(&request_id);
                }
                None
            }
            Ok(Type::CloseProducer) => {
                self.producers.close(peek::varint_field(body, 1));
                broker_named_in(body, ASSIGNED_BROKER_URL)
            }
            Ok(Type::CloseConsumer) => {
                self.consumers.close(peek::varint_field(body, 1));
                broker_named_in(body, ASSIGNED_BROKER_URL)
            }
            Ok(Type::TopicMigrated) => broker_named_in(body, MIGRATED_BROKER_URL),
            Ok(Type::LookupResponse) => broker_named_in(body, LOOKUP_BROKER_URL),
            _ => None,
        }
    }

    /// The chunk ends: what was counted becomes visible.
    pub(crate) fn flush(&mut self) {
        self.producers.flush();
        self.consumers.flush();
    }

    fn opens(&mut self, role: Role, body: &[u8], (id_field, request_field): (u64, u64)) {
        let (mut topic, mut id, mut request_id) = (None, None, None);
        for (field, value) in Fields::of(body) {
            match value {
                FieldValue::Bytes(bytes) if field == 1 => topic = std::str::from_utf8(bytes).ok(),
                FieldValue::Varint(value) if field == id_field => id = Some(value),
                FieldValue::Varint(value) if field == request_field => request_id = Some(value),
                _ => {}
            }
        }
        if let (Some(topic), Some(id), Some(request_id)) = (topic, id, request_id) {
            let topic = topic.into();
            self.expect(request_id, Pending::Open { role, id, topic });
        }
    }

    fn expect(&mut self, request_id: u64, pending: Pending) {
        if self.pending.len() < TRACKED_MAX {
            self.pending.insert(request_id, pending);
        }
    }

    fn succeeded(&mut self, request_id: Option<u64>) {
        let Some(pending) = request_id.and_then(|request_id| self.pending.remove(&request_id))
        else {
            return;
        };
        match pending {
            Pending::Open { role, id, topic } => {
                let topics = &self.topics;
                // The broker accepted the name, so it parses; names it spells differently are one topic.
                let open = || match TopicName::parse(&topic) {
                    Ok(name) => topics.open(&name.to_string(), role),
                    Err(_) => topics.open_other(role),
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
        if self.messages > 0 {
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

/// The address in the first of two URL fields (plain, then TLS) that is there.
fn broker_named_in(body: &[u8], first_field: u64) -> Option<BrokerAddress> {
    Fields::of(body)
        .filter_map(|(field, value)| match value {
            FieldValue::Bytes(url) if field == first_field || field == first_field + 1 => Some(url),
            _ => None,
        })
        .find_map(|url| BrokerAddress::from_url(std::str::from_utf8(url).ok()?).ok())
}

/// Bound of producers, of consumers and of open requests that are followed on one connection.
const TRACKED_MAX: usize = 10_000;

// Field numbers of PulsarApi.proto.
const MESSAGE_CONSUMER_ID: u64 = 1;
const PRODUCER_ID_AND_REQUEST: (u64, u64) = (2, 3);
const CONSUMER_ID_AND_REQUEST: (u64, u64) = (4, 5);
const PRODUCER_READY: u64 = 6;
const ASSIGNED_BROKER_URL: u64 = 3;
const MIGRATED_BROKER_URL: u64 = 3;
const LOOKUP_BROKER_URL: u64 = 1;
