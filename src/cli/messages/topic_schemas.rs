//! The schemas of received messages (`--schema-type auto_consume`), asked for once and kept.

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;

use super::{
    CommandError,
    schema::{ReceivedSchema, Shown},
};
use crate::{
    client::{PulsarClient, consumer::ReceivedMessage},
    naming::TopicName,
};

/// What brokers said of the schemas of topics, by topic and version.
pub(super) struct TopicSchemas<'a> {
    client: &'a PulsarClient,
    /// `None` for a schema that is not read here.
    known: HashMap<(String, Option<Bytes>), Option<ReceivedSchema>>,
}

impl<'a> TopicSchemas<'a> {
    pub(super) fn new(client: &'a PulsarClient) -> Self {
        Self {
            client,
            known: HashMap::new(),
        }
    }

    /// The payload by its schema; `None` when that is not read here or does not fit, which is logged: the payload is then
    /// shown as it is. Without a schema it is bytes.
    ///
    /// # Errors
    /// When the schema cannot be asked for.
    pub(super) async fn show(
        &mut self,
        message: &ReceivedMessage,
    ) -> Result<Option<Shown>, CommandError> {
        if message.is_null || message.is_encrypted {
            return Ok(None);
        }
        let Ok(topic) = TopicName::parse(&message.topic) else {
            return Ok(None);
        };
        // Partitions share the schema of their topic.
        let topic = topic.partitioned_topic();
        let place = (topic.to_string(), message.schema_version.clone());
        if !self.known.contains_key(&place) {
            // Whoever sends new versions without end gets them asked for again, but fills no memory.
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            let limit = self.client.options().operation_timeout;
            let lookups = self.client.lookups();
            let asked = lookups.schema(&topic, message.schema_version.clone());
            let schema = match tokio::time::timeout(limit, asked).await {
                Ok(schema) => schema?,
                Err(_) => return Err(CommandError::SchemaTimeout(limit)),
            };
            let schema = schema.map_or(Ok(ReceivedSchema::Bytes), |schema| {
                ReceivedSchema::read(&schema)
            });
            let schema = schema
                .inspect_err(
                    |error| tracing::warn!(%topic, "payloads are shown as they are: {error}"),
                )
                .ok();
            self.known.insert(place.clone(), schema);
        }
        let Some(Some(schema)) = self.known.get(&place) else {
            return Ok(None);
        };
        let key = message.key.as_deref().map(|key| {
            if message.is_key_base64 {
                let decoded = BASE64.decode(key);
                decoded.unwrap_or_else(|_| key.as_bytes().to_vec())
            } else {
                key.as_bytes().to_vec()
            }
        });
        Ok(schema
            .show(&message.payload, key.as_deref())
            .inspect_err(|error| {
                tracing::warn!(id = %message.id, "a message is shown as it is: {error}");
            })
            .ok())
    }
}

const KNOWN_MAX: usize = 1000;
