//! Sends what `produce` was told to send.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWrite;
use tokio_util::sync::CancellationToken;

use super::{
    CommandError, Session, Tally, complain,
    output::Output,
    pace::Pace,
    produce_args::{MessageKey, ProduceSettings},
    visible,
};
use crate::client::{
    MessageId,
    producer::{
        BatchingOptions, MessageKey as OutgoingKey, OutgoingMessage, Producer, ProducerOptions,
    },
};

/// Sends one message after the other, each when the one before has its receipt, until all are sent or `stop`. The tally
/// is of those that have one.
///
/// # Errors
/// With the first that is not known to be stored.
pub(super) async fn send<W: AsyncWrite + Unpin>(
    session: Session<'_, W>,
    settings: &ProduceSettings,
) -> Result<(), CommandError> {
    let Session {
        client,
        output,
        stop,
        tally,
    } = session;
    let options = ProducerOptions {
        batching: settings.batching.then(BatchingOptions::default),
        chunking: settings.chunking,
        schema: settings.schema.clone(),
        ..ProducerOptions::default()
    };
    let producer = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        producer = client.producer(&settings.topic, options) => producer?,
    };
    send_all(&producer, settings, output, stop, tally).await?;
    if stop.is_cancelled() {
        // Closing would wait for a receipt as long as the broker is away.
        return Ok(());
    }
    // All have their receipts: how the broker takes leave makes no difference to them.
    let closed = tokio::time::timeout(CLOSE, producer.close()).await;
    let untold = match closed {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {CLOSE:?}"),
    };
    complain(&format_args!(
        "the broker did not confirm the end of the producer: {}",
        visible(&untold)
    ));
    Ok(())
}

async fn send_all<W: AsyncWrite + Unpin>(
    producer: &Producer,
    settings: &ProduceSettings,
    output: &mut Output<W>,
    stop: &CancellationToken,
    tally: &mut Tally,
) -> Result<(), CommandError> {
    let mut pace = Pace::new(settings.rate);
    for _ in 0..settings.rounds {
        for payload in &settings.payloads {
            let message = OutgoingMessage {
                payload: payload.clone(),
                key: settings.key.clone().map(|key| match key {
                    MessageKey::Text(text) => OutgoingKey::Text(text),
                    MessageKey::Bytes(bytes) => OutgoingKey::Bytes(bytes),
                }),
                properties: settings.properties.clone(),
                disable_replication: settings.disable_replication,
                ..OutgoingMessage::default()
            };
            // A message that is cut here may be stored all the same.
            let id = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                id = async { pace.next().await; producer.send(message).await } => id?,
            };
            tally.messages += 1;
            if output.form().json {
                let line = receipt(settings, &id, payload.len());
                output.line(&line).await.map_err(CommandError::Output)?;
            }
        }
    }
    Ok(())
}

/// How long is waited for the broker to take leave of the producer.
const CLOSE: Duration = Duration::from_secs(5);

fn receipt(settings: &ProduceSettings, id: &MessageId, size: usize) -> String {
    json!({"topic": settings.topic.to_string(), "messageId": id.to_string(), "size": size})
        .to_string()
}
