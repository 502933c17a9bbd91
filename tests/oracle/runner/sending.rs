//! The steps that send.

use std::time::Duration;

use bytes::BytesMut;
use pulsegate::protocol::frame::{FrameDecoder, FrameLimits};
use serde_yaml::{Mapping, Value};
use tokio::time::sleep;

use super::settling::Asked;
use super::{Named, Runner, Stopped};
use crate::normal::{Origin, now_millis, set_default};
use crate::scenario::Outgoing;
use crate::transcript::{Direction, Entry};
use crate::value::mapping;
use crate::wire::{self, Decoded};

impl Runner<'_> {
    pub(super) async fn send(&mut self, outgoing: &Outgoing) -> Result<(), Stopped> {
        let Outgoing {
            connection,
            command,
            fields,
            message,
            split,
        } = outgoing;
        let command = command.as_str();
        let fields = self.variables.resolve(fields)?;
        let mut fields = match fields {
            Value::Mapping(fields) => fields,
            _ => Mapping::new(),
        };
        let mut message = message
            .as_ref()
            .map(|message| self.variables.resolve(message))
            .transpose()?;
        if self.looks_up
            && matches!(command, "PRODUCER" | "SUBSCRIBE")
            && let Some(topic) = fields.get("topic").and_then(Value::as_str)
        {
            let topic = topic.to_owned();
            if !self.looked_up.contains(&topic) {
                // Whether it succeeds is not the step's business.
                let _ = self.owner_of(&topic).await;
            }
        }
        let named = self.named(connection)?;
        complete(named, command, &mut fields, &mut message)?;
        let bytes = wire::encode_frame(command, &Value::Mapping(fields), message.as_ref())?;
        match split.filter(|split| *split < bytes.len()) {
            Some(split) => {
                named.connection.send(&bytes[..split]).await;
                sleep(Duration::from_millis(1)).await;
                named.connection.send(&bytes[split..]).await;
            }
            None => named.connection.send(&bytes).await,
        }
        self.log_sent(connection, &bytes)
    }

    /// Writes down what was sent as a server sees it.
    pub(super) fn log_sent(&mut self, connection: &str, bytes: &BytesMut) -> Result<(), Stopped> {
        let Decoded {
            name,
            mut fields,
            mut message,
        } = decode(bytes)?;
        let injected = self.named(connection)?.injected_target.clone();
        if let (Some(injected), Some(fields)) = (injected, fields.as_mapping_mut())
            && fields.get("proxy_to_broker_url").and_then(Value::as_str) == Some(&injected)
        {
            fields.shift_remove("proxy_to_broker_url");
        }
        self.normaliser.frame(&name, &mut fields, Origin::Client);
        if let Some(message) = &mut message {
            self.normaliser.frame(&name, message, Origin::Client);
        }
        let mut entry = Entry::of(connection, Direction::Sent, &name, fields);
        entry.message = message;
        self.log.push(entry);
        Ok(())
    }

    pub(super) async fn bytes(&mut self, connection: &str, bytes: &Value) -> Result<(), Stopped> {
        let spec = self.variables.resolve(bytes)?;
        let bytes = wire::payload_bytes(&spec)?;
        let named = self.named(connection)?;
        named.connection.send(&bytes).await;
        named.is_mute = true;
        self.event(&format!("{connection} > bytes"), spec);
        Ok(())
    }

    pub(super) async fn end(&mut self, connection: &str, half: bool) -> Result<(), Stopped> {
        let named = self.named(connection)?;
        if half {
            named.connection.half_close().await;
            named.asked.push(Asked::Close);
            named.is_mute = true;
            self.event(&format!("{connection} > half close"), Value::Null);
        } else {
            self.connections.retain(|named| named.name != connection);
            self.event(&format!("{connection} > close"), Value::Null);
        }
        Ok(())
    }
}

/// Sets what a step may leave out: request ids, what CONNECT says of this client, and the metadata of a message.
fn complete(
    named: &mut Named,
    command: &str,
    fields: &mut Mapping,
    message: &mut Option<Value>,
) -> Result<(), String> {
    if wire::takes_request_id(command)? {
        set_default(fields, "request_id", named.next_request_id);
        let used = fields.get("request_id").and_then(Value::as_u64);
        named.next_request_id = used.map_or(named.next_request_id, |used| used.wrapping_add(1));
    }
    let request_id = fields.get("request_id").and_then(Value::as_u64);
    match (command, request_id) {
        ("SEND", _) => named.asked.push(Asked::Send),
        ("PING", _) => named.asked.push(Asked::Ping),
        ("ACK", Some(id)) => named.asked.push(Asked::Ack(id)),
        (_, Some(id)) => named.asked.push(Asked::Request(id)),
        _ => {}
    }
    match command {
        "CONNECT" => {
            set_default(fields, "client_version", format!("oracle {}", named.name));
            set_default(fields, "protocol_version", 21);
            if let Some(target) = named
                .injected_target
                .clone()
                .filter(|_| !named.has_connected)
            {
                set_default(fields, "proxy_to_broker_url", target);
            }
            named.has_connected = true;
        }
        "PRODUCER" => {
            let id = fields.get("producer_id").and_then(Value::as_u64);
            let request_id = fields.get("request_id").and_then(Value::as_u64);
            if let (Some(id), Some(request_id)) = (id, request_id) {
                named.producers.retain(|(known, _)| *known != id);
                named.producers.push((id, pending(request_id)));
            }
        }
        "SEND" => {
            let message = message.get_or_insert_with(|| mapping([]));
            if let Some(batch) = message.get("batch").and_then(Value::as_sequence) {
                set_default(fields, "num_messages", batch.len());
            }
            let producer = fields.get("producer_id").and_then(Value::as_u64);
            let name = named
                .producers
                .iter()
                .find(|(id, _)| Some(*id) == producer)
                .map(|(_, name)| name.as_str());
            let sequence_id = fields.get("sequence_id").cloned();
            if let Some(message) = message.as_mapping_mut()
                && !message.contains_key("bytes")
            {
                let metadata = message
                    .entry("metadata".into())
                    .or_insert_with(|| mapping([]));
                if let Some(metadata) = metadata.as_mapping_mut() {
                    set_default(metadata, "producer_name", name.unwrap_or("nobody"));
                    set_default(metadata, "sequence_id", sequence_id.unwrap_or(0.into()));
                    set_default(metadata, "publish_time", now_millis());
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn decode(bytes: &BytesMut) -> Result<Decoded, String> {
    let decoder = FrameDecoder::new(FrameLimits {
        max_frame: usize::MAX,
    });
    let frame = decoder
        .decode(&mut bytes.clone())
        .map_err(|error| error.to_string())?
        .ok_or("half a frame")?;
    Ok(wire::decode_frame(&frame))
}

/// Stands for the name of a producer that the broker has not told yet.
pub(super) fn pending(request_id: u64) -> String {
    format!("<request {request_id}>")
}
