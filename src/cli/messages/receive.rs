//! Takes and prints the messages that `consume` and `read` were told to take.

use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio_util::sync::CancellationToken;

use super::{
    CommandError, Session, Tally,
    acknowledging::Acknowledging,
    output::Output,
    pace::Pace,
    receive_args::{
        ConsumeSettings, EncryptedAction, ReadSettings, ReceiveSettings, SubscriptionType,
    },
    schema::Shown,
    text::{BOUNDARY, MessageView},
    topic_schemas::TopicSchemas,
};
use crate::client::{
    ClientError, PulsarClient,
    consumer::{
        AckError, Consumer, ConsumerOptions, InitialPosition, ReceiveError, ReceivedMessage,
        SeekTo, SubscriptionType as ClientSubscriptionType,
    },
    reader::{Reader, ReaderOptions},
};

/// Takes, prints and acknowledges messages of a subscription until there were enough or `stop`. The tally is of those that
/// were printed.
///
/// # Errors
/// With the first thing that fails.
pub(super) async fn consume<W: AsyncWrite + Unpin>(
    session: Session<'_, W>,
    settings: &ConsumeSettings,
) -> Result<(), CommandError> {
    let Session {
        client,
        output,
        stop,
        tally,
    } = session;
    let options = consumer_options(settings);
    let consumer = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        consumer = client.consumer(settings.source.topics(), options) => consumer?,
    };
    let receiving = Receiving {
        client,
        settings: &settings.receive,
        end_time: settings.end_time,
        stop,
    };
    let received = match seek(&consumer, settings.start_time, stop).await {
        Ok(()) => {
            receiving
                .run(
                    Incoming::Consumer(&consumer, Acknowledging::new(&consumer)),
                    output,
                    tally,
                )
                .await
        }
        Err(error) => Err(error.into()),
    };
    tally.discarded = consumer.discarded();
    consumer.close().await;
    received
}

/// Takes and prints messages of a topic until there were enough or `stop`.
///
/// # Errors
/// With the first thing that fails.
pub(super) async fn read<W: AsyncWrite + Unpin>(
    session: Session<'_, W>,
    settings: &ReadSettings,
) -> Result<(), CommandError> {
    let Session {
        client,
        output,
        stop,
        tally,
    } = session;
    let receive = &settings.receive;
    let mut options = ReaderOptions::new(settings.start.clone());
    options.start_inclusive = settings.inclusive;
    if let Some(size) = receive.queue_size {
        options.receiver_queue_size = size;
    }
    if let Some(count) = receive.max_incomplete_chunked {
        options.chunks.max_incomplete = count;
    }
    options.chunks.ack_oldest_when_full = receive.acknowledge_incomplete_chunked;
    let reader = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        reader = client.reader(&settings.topic, options) => reader?,
    };
    let receiving = Receiving {
        client,
        settings: receive,
        end_time: None,
        stop,
    };
    let received = receiving
        .run(Incoming::Reader(&reader), output, tally)
        .await;
    tally.discarded = reader.consumer().discarded();
    reader.close().await;
    received
}

/// Goes to the first message that was published at this time or later, unless `stop` comes first.
async fn seek(
    consumer: &Consumer,
    time: Option<u64>,
    stop: &CancellationToken,
) -> Result<(), ClientError> {
    let Some(time) = time else { return Ok(()) };
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        sought = consumer.seek(SeekTo::Time(time)) => sought,
    }
}

fn consumer_options(settings: &ConsumeSettings) -> ConsumerOptions {
    let receive = &settings.receive;
    let mut options = ConsumerOptions::new(settings.subscription.clone());
    options.subscription_type = match settings.subscription_type {
        SubscriptionType::Exclusive => ClientSubscriptionType::Exclusive,
        SubscriptionType::Shared => ClientSubscriptionType::Shared,
        SubscriptionType::Failover => ClientSubscriptionType::Failover,
        SubscriptionType::KeyShared => ClientSubscriptionType::KeyShared,
    };
    options.initial_position = if settings.earliest {
        InitialPosition::Earliest
    } else {
        InitialPosition::Latest
    };
    options.durable = settings.durable;
    options.ack_receipt = true;
    options.replicate_subscription_state = settings.replicated.then_some(true);
    if let Some(size) = receive.queue_size {
        options.receiver_queue_size = size;
    }
    if let Some(count) = receive.max_incomplete_chunked {
        options.chunks.max_incomplete = count;
    }
    options.chunks.ack_oldest_when_full = receive.acknowledge_incomplete_chunked;
    options
}

/// Where messages come from.
enum Incoming<'a> {
    Consumer(&'a Consumer, Acknowledging<'a>),
    Reader(&'a Reader),
}

impl Incoming<'_> {
    async fn next(&self) -> Result<ReceivedMessage, ReceiveError> {
        match self {
            Self::Consumer(consumer, _) => consumer.recv().await,
            Self::Reader(reader) => reader.recv().await,
        }
    }

    async fn acknowledge(&mut self, message: &ReceivedMessage) -> Result<(), AckError> {
        match self {
            Self::Consumer(_, acknowledging) => acknowledging.add(message).await,
            Self::Reader(_) => Ok(()),
        }
    }

    /// Waits a while until the broker has taken what was acknowledged.
    async fn settle(self, limit: Duration) -> Result<(), AckError> {
        match self {
            Self::Consumer(_, acknowledging) => acknowledging.settle(limit).await,
            Self::Reader(_) => Ok(()),
        }
    }
}

struct Receiving<'a> {
    client: &'a PulsarClient,
    settings: &'a ReceiveSettings,
    end_time: Option<u64>,
    /// Ends what waits. What a message is printed and acknowledged with is not cut: one that was seen would come again.
    stop: &'a CancellationToken,
}

impl Receiving<'_> {
    async fn run<W: AsyncWrite + Unpin>(
        &self,
        mut source: Incoming<'_>,
        output: &mut Output<W>,
        tally: &mut Tally,
    ) -> Result<(), CommandError> {
        let shown = self.show_all(&mut source, output, tally).await;
        let limit = if self.stop.is_cancelled() {
            SETTLE_AFTER_SIGNAL
        } else {
            SETTLE
        };
        let settled = source.settle(limit).await;
        let settled = settled.map_err(CommandError::Acknowledge);
        match shown {
            // That nobody reads on may be no failure: it must not hide one.
            Err(CommandError::Output(_)) => settled.and(shown),
            shown => shown.and(settled),
        }
    }

    async fn show_all<W: AsyncWrite + Unpin>(
        &self,
        source: &mut Incoming<'_>,
        output: &mut Output<W>,
        tally: &mut Tally,
    ) -> Result<(), CommandError> {
        let mut pace = Pace::new(self.settings.rate);
        let mut schemas = TopicSchemas::new(self.client);
        while self
            .settings
            .count
            .is_none_or(|wanted| tally.messages < wanted)
        {
            let message = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                message = async { pace.next().await; source.next().await } => message?,
            };
            if self.end_time.is_some_and(|end| message.publish_time > end) {
                break;
            }
            if message.is_encrypted {
                match self.settings.encrypted {
                    EncryptedAction::Fail => return Err(CommandError::Encrypted(message.id)),
                    EncryptedAction::Discard => {
                        source.acknowledge(&message).await?;
                        continue;
                    }
                    EncryptedAction::Consume => {}
                }
            }
            let shown = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                shown = self.by_schema(&message, &mut schemas) => shown?,
            };
            self.print(&message, shown.as_ref(), output, tally.messages + 1)
                .await?;
            tally.messages += 1;
            // Only what was shown is acknowledged; what was not comes again.
            source.acknowledge(&message).await?;
        }
        Ok(())
    }

    async fn by_schema(
        &self,
        message: &ReceivedMessage,
        schemas: &mut TopicSchemas<'_>,
    ) -> Result<Option<Shown>, CommandError> {
        if self.settings.by_schema && !self.settings.style.hide_content {
            schemas.show(message).await
        } else {
            Ok(None)
        }
    }

    async fn print<W: AsyncWrite + Unpin>(
        &self,
        message: &ReceivedMessage,
        shown: Option<&Shown>,
        output: &mut Output<W>,
        number: u64,
    ) -> Result<(), CommandError> {
        let style = self.settings.style;
        let json = output.form().json;
        let lines = if json || !style.hide_content {
            let view = MessageView {
                topic: &message.topic,
                id: message.id.to_string(),
                key: message.key.as_deref(),
                ordering_key: message.ordering_key.as_deref(),
                properties: message
                    .properties
                    .iter()
                    .map(|(key, value)| (key.as_str(), value.as_str()))
                    .collect(),
                publish_time: message.publish_time,
                event_time: message.event_time.unwrap_or(0),
                producer_name: &message.producer_name,
                sequence_id: message.sequence_id,
                redelivery_count: message.redelivery_count,
                replicated_from: message.replicated_from.as_deref(),
                schema_version: message.schema_version.as_deref(),
                payload: (!message.is_null).then_some(&*message.payload),
                shown,
            };
            if json {
                view.for_programs(style)
            } else {
                format!("{BOUNDARY}\n{}", view.for_people(style))
            }
        } else if number.is_multiple_of(PROGRESS) {
            format!("Received {number} messages")
        } else {
            return Ok(());
        };
        output.line(&lines).await.map_err(CommandError::Output)
    }
}

/// How long the end waits until the broker has taken what was acknowledged.
const SETTLE: Duration = Duration::from_secs(5);
/// The same after a signal.
const SETTLE_AFTER_SIGNAL: Duration = Duration::from_secs(1);

/// How many messages without content are one line of output.
const PROGRESS: u64 = 1000;
