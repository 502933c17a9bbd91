//! One client connection of the null broker: commands in, answers and messages out; pure. // hot path
//!
//! Owns the producers and consumers of the connection. Stores nothing: a SEND is acknowledged under the next entry id of its
//! producer, a consumer with permits always gets another message. Start at [`Session::on_command`] and [`Session::push`].

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use super::answers::{self, Refusal};
use super::outgoing::{MessageTemplate, MessageWriter};
use crate::naming::TopicName;
use crate::protocol::command::Command;
use crate::protocol::frame::FrameError;
use crate::protocol::proto::pulsar::command_subscribe::SubType;
use crate::protocol::proto::pulsar::{
    self as pb, CommandMessage, CommandSend, CommandSendReceipt, MessageIdData,
};
use crate::protocol::server_error::error_command;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Partitions of every topic that is no partition itself.
    pub(super) partitions: u32,
    pub(super) template: Arc<MessageTemplate>,
    /// The last ledger id given out; each producer and each consumer has a ledger of its own.
    ledgers: AtomicU64,
    producer_names: AtomicU64,
    /// Topics that somebody has produced to or subscribed to, at most [`TOPICS_MAX`].
    topics: Mutex<BTreeSet<String>>,
    pub(super) counts: Counts,
}

/// What was done, over all connections.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Entries acknowledged: a batch is one.
    pub(super) acknowledged: AtomicU64,
    /// Entries sent to consumers.
    pub(super) pushed: AtomicU64,
}

impl Shared {
    pub(super) fn new(partitions: u32, template: MessageTemplate) -> Self {
        Self {
            partitions,
            template: Arc::new(template),
            ledgers: AtomicU64::new(0),
            producer_names: AtomicU64::new(0),
            topics: Mutex::new(BTreeSet::new()),
            counts: Counts::default(),
        }
    }

    fn next_ledger(&self) -> u64 {
        self.ledgers.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn remember(&self, topic: String) {
        let mut topics = self.topics.lock();
        if topics.len() < TOPICS_MAX {
            topics.insert(topic);
        }
    }
}

/// Why the connection is closed; the client is at fault.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Command(#[from] crate::protocol::command::CommandError),
    /// No command that a client may send, or not at this time.
    #[error("an unexpected {0}")]
    Unexpected(&'static str),
    #[error("a SEND of producer {0}, which is not open")]
    UnknownProducer(u64),
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    shared: Arc<Shared>,
    /// Where clients are sent by a lookup: the URL of this broker.
    url: String,
    connected: bool,
    /// By producer id, at most [`OPEN_MAX`].
    producers: HashMap<u64, Producer>,
    /// At most [`OPEN_MAX`].
    consumers: Vec<Consumer>,
    /// Whose turn it is; beyond the end is the first one's.
    turn: usize,
    writer: MessageWriter,
    /// Not yet added to the shared counts.
    acknowledged: u64,
}

#[derive(Debug)]
struct Producer {
    ledger_id: u64,
    next_entry: u64,
    partition: Option<i32>,
}

#[derive(Debug)]
struct Consumer {
    id: u64,
    ledger_id: u64,
    next_entry: u64,
    partition: Option<i32>,
    /// Messages the client has asked for; below 0 where the last batch was larger than what was left.
    permits: i64,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, url: String) -> Self {
        Self {
            writer: MessageWriter::new(Arc::clone(&shared.template)),
            shared,
            url,
            connected: false,
            producers: HashMap::new(),
            consumers: Vec::new(),
            turn: 0,
            acknowledged: 0,
        }
    }

    /// Takes an encoded command and appends what it is answered with.
    ///
    /// # Errors
    /// When the connection is to be closed.
    pub(super) fn on_command(
        &mut self,
        command: &[u8],
        out: &mut BytesMut,
    ) -> Result<(), SessionError> {
        match Command::decode_borrowed(command)? {
            Command::Send(send) if self.connected => self.on_send(&send, out),
            other => self.on_other(other, out),
        }
    }

    /// Adds what was acknowledged since the last call to the counts of all connections: once per chunk, not per message.
    pub(super) fn count(&mut self) {
        let acknowledged = std::mem::take(&mut self.acknowledged);
        if acknowledged > 0 {
            let total = &self.shared.counts.acknowledged;
            total.fetch_add(acknowledged, Ordering::Relaxed);
        }
    }

    /// Whether a consumer waits for messages.
    pub(super) fn wants_messages(&self) -> bool {
        self.consumers.iter().any(|consumer| consumer.permits > 0)
    }

    /// Appends messages for consumers with permits, in turn, until `out` holds `limit` bytes or no permits are left.
    pub(super) fn push(&mut self, publish_time: u64, limit: usize, out: &mut BytesMut) {
        self.writer.set_publish_time(publish_time);
        let messages = i64::from(self.shared.template.messages());
        let mut pushed = 0;
        let mut idle = 0;
        while out.len() < limit && idle < self.consumers.len() {
            if self.turn >= self.consumers.len() {
                self.turn = 0;
            }
            let Some(consumer) = self.consumers.get_mut(self.turn) else {
                break;
            };
            idle += 1;
            self.turn += 1;
            let mut burst = 0;
            while consumer.permits > 0 && burst < BURST && out.len() < limit {
                consumer.permits -= messages;
                self.writer.put(consumer.next_message(), out);
                burst += 1;
                idle = 0;
            }
            pushed += burst;
        }
        let total = &self.shared.counts.pushed;
        total.fetch_add(pushed, Ordering::Relaxed);
    }

    fn on_send(&mut self, send: &CommandSend, out: &mut BytesMut) -> Result<(), SessionError> {
        let producer = self
            .producers
            .get_mut(&send.producer_id)
            .ok_or(SessionError::UnknownProducer(send.producer_id))?;
        let receipt = CommandSendReceipt {
            producer_id: send.producer_id,
            sequence_id: send.sequence_id,
            message_id: Some(MessageIdData {
                ledger_id: producer.ledger_id,
                entry_id: producer.next_entry,
                partition: producer.partition,
                ..MessageIdData::default()
            }),
            highest_sequence_id: send.highest_sequence_id,
        };
        producer.next_entry += 1;
        self.acknowledged += 1;
        Command::SendReceipt(receipt).encode(out);
        Ok(())
    }

    fn on_other(&mut self, command: Command, out: &mut BytesMut) -> Result<(), SessionError> {
        let name = crate::protocol::command::name_of(command.command_type());
        let answer = match command {
            Command::Connect(connect) if !self.connected => {
                self.connected = true;
                answers::connected(&connect)
            }
            Command::Ping(_) => Command::from(pb::CommandPong {}),
            Command::Pong(_) => return Ok(()),
            _ if !self.connected => return Err(SessionError::Unexpected(name)),
            Command::Flow(flow) => return self.on_flow(&flow),
            Command::Ack(ack) => match ack.request_id {
                Some(_) => answers::acknowledged(&ack),
                None => return Ok(()),
            },
            // Nothing was stored that could come again.
            Command::RedeliverUnacknowledgedMessages(_) | Command::AuthResponse(_) => return Ok(()),
            Command::Producer(producer) => self.on_producer(*producer),
            Command::Subscribe(subscribe) => return self.on_subscribe(*subscribe, out),
            Command::CloseProducer(close) => {
                self.producers.remove(&close.producer_id);
                answers::success(close.request_id)
            }
            Command::CloseConsumer(close) => {
                self.remove_consumer(close.consumer_id);
                answers::success(close.request_id)
            }
            Command::Unsubscribe(unsubscribe) => {
                self.remove_consumer(unsubscribe.consumer_id);
                answers::success(unsubscribe.request_id)
            }
            Command::Seek(seek) => {
                // As a broker does: the consumer comes back by itself, with new permits.
                if self.remove_consumer(seek.consumer_id) {
                    answers::close_consumer(seek.consumer_id).encode(out);
                }
                answers::success(seek.request_id)
            }
            Command::GetLastMessageId(request) => self.on_last_message_id(&request),
            Command::Lookup(lookup) => answers::lookup(&lookup, &self.url),
            Command::PartitionedMetadata(request) => {
                answers::partitions(&request, self.shared.partitions)
            }
            Command::GetTopicsOfNamespace(request) => {
                answers::topics(&request, &self.shared.topics.lock())
            }
            Command::GetSchema(request) => answers::no_schema(request.request_id),
            Command::GetOrCreateSchema(request) => answers::schema_created(request.request_id),
            Command::ConsumerStats(request) => answers::consumer_stats(&request),
            other => match other.request_id() {
                Some(request_id) => error_command(request_id, &Refusal::NotServed { name }),
                None => return Err(SessionError::Unexpected(name)),
            },
        };
        answer.encode(out);
        Ok(())
    }

    fn on_producer(&mut self, producer: pb::CommandProducer) -> Command {
        let request_id = producer.request_id;
        let topic = match TopicName::parse(&producer.topic) {
            Ok(topic) => topic,
            Err(error) => return error_command(request_id, &Refusal::Topic(error)),
        };
        let known = self.producers.contains_key(&producer.producer_id);
        if !known && self.producers.len() >= OPEN_MAX {
            return error_command(request_id, &Refusal::TooMany);
        }
        let opened = Producer {
            ledger_id: self.shared.next_ledger(),
            next_entry: 0,
            partition: partition_of(&topic),
        };
        self.producers.insert(producer.producer_id, opened);
        self.shared.remember(topic.to_string());
        let generated = || {
            let number = self.shared.producer_names.fetch_add(1, Ordering::Relaxed);
            format!("null-broker-{number}")
        };
        let given = producer.producer_name.filter(|name| !name.is_empty());
        Command::from(pb::CommandProducerSuccess {
            request_id,
            producer_name: given.unwrap_or_else(generated),
            last_sequence_id: Some(-1),
            schema_version: Some(match producer.schema {
                Some(_) => answers::schema_version(),
                None => Bytes::new(),
            }),
            topic_epoch: Some(0),
            producer_ready: Some(true),
        })
    }

    fn on_subscribe(
        &mut self,
        subscribe: pb::CommandSubscribe,
        out: &mut BytesMut,
    ) -> Result<(), SessionError> {
        let request_id = subscribe.request_id;
        let answer = match TopicName::parse(&subscribe.topic) {
            Err(error) => error_command(request_id, &Refusal::Topic(error)),
            Ok(_) if self.consumers.len() >= OPEN_MAX => {
                error_command(request_id, &Refusal::TooMany)
            }
            Ok(topic) => {
                self.remove_consumer(subscribe.consumer_id);
                self.consumers.push(Consumer {
                    id: subscribe.consumer_id,
                    ledger_id: self.shared.next_ledger(),
                    next_entry: 0,
                    partition: partition_of(&topic),
                    permits: 0,
                });
                self.shared.remember(topic.to_string());
                answers::success(request_id)
            }
        };
        let opened = matches!(answer, Command::Success(_));
        answer.encode(out);
        if opened && subscribe.sub_type == SubType::Failover as i32 {
            let active = pb::CommandActiveConsumerChange {
                consumer_id: subscribe.consumer_id,
                is_active: Some(true),
            };
            Command::from(active).encode(out);
        }
        Ok(())
    }

    fn on_flow(&mut self, flow: &pb::CommandFlow) -> Result<(), SessionError> {
        // One that was closed by a seek may still be asking.
        if let Some(consumer) = self.consumer(flow.consumer_id) {
            let permits = i64::from(flow.message_permits);
            consumer.permits = consumer.permits.saturating_add(permits);
        }
        Ok(())
    }

    fn on_last_message_id(&mut self, request: &pb::CommandGetLastMessageId) -> Command {
        match self.consumer(request.consumer_id) {
            // There is always another message: what is last is never reached.
            Some(consumer) => Command::from(pb::CommandGetLastMessageIdResponse {
                request_id: request.request_id,
                last_message_id: consumer.id_of(ENTRY_NEVER_REACHED),
                consumer_mark_delete_position: None,
            }),
            None => error_command(request.request_id, &Refusal::UnknownConsumer),
        }
    }

    fn consumer(&mut self, id: u64) -> Option<&mut Consumer> {
        self.consumers.iter_mut().find(|consumer| consumer.id == id)
    }

    fn remove_consumer(&mut self, id: u64) -> bool {
        let before = self.consumers.len();
        self.consumers.retain(|consumer| consumer.id != id);
        self.consumers.len() < before
    }
}

impl Consumer {
    fn id_of(&self, entry_id: u64) -> MessageIdData {
        MessageIdData {
            ledger_id: self.ledger_id,
            entry_id,
            partition: self.partition,
            ..MessageIdData::default()
        }
    }

    fn next_message(&mut self) -> CommandMessage {
        let message_id = self.id_of(self.next_entry);
        self.next_entry += 1;
        CommandMessage {
            consumer_id: self.id,
            message_id,
            ..CommandMessage::default()
        }
    }
}

fn partition_of(topic: &TopicName) -> Option<i32> {
    topic
        .partition()
        .and_then(|partition| i32::try_from(partition).ok())
}

/// Producers, and consumers, that may be open on one connection.
const OPEN_MAX: usize = 10_000;
/// Topics that are remembered for GET_TOPICS_OF_NAMESPACE.
const TOPICS_MAX: usize = 10_000;
/// Messages that a consumer gets before it is the next one's turn.
const BURST: u64 = 32;
/// Below 2^53, so that languages without 64-bit integers can show it.
const ENTRY_NEVER_REACHED: u64 = (1 << 53) - 1;
