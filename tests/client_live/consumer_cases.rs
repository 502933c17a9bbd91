//! Consumers.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use pulsegate::client::consumer::{ConsumerOptions, InitialPosition, SubscriptionType};

use crate::context::{Case, Context, next, nothing, text};

macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<(&'static str, Case)> {
            vec![$( (stringify!($name), |context| Box::pin($name(context))) ),+]
        }
    };
}

cases![
    receives_in_order,
    receives_batches,
    acknowledged_is_not_delivered_again,
];

fn earliest(subscription: &str) -> ConsumerOptions {
    ConsumerOptions {
        initial_position: InitialPosition::Earliest,
        ..ConsumerOptions::new(subscription)
    }
}

async fn receives_in_order(context: Context) -> Result<()> {
    let topic = context.topic("t");
    context.produce(&topic, 3000, &["--key", "k%d"]).await?;
    let consumer = context.client.consumer(topic, earliest("s")).await?;
    for number in 0..3000u64 {
        let message = next(&consumer).await?;
        ensure!(text(&message) == format!("message-{number}"), "{message:?}");
        ensure!(message.key == Some(format!("k{number}")), "{message:?}");
        ensure!(message.event_time == Some(1000 + number), "{message:?}");
        let property = ("number".to_owned(), number.to_string());
        ensure!(message.properties == [property], "{message:?}");
        consumer.ack(&message).await?;
    }
    nothing(&consumer, Duration::from_millis(300)).await?;
    consumer.close().await;
    Ok(())
}

async fn receives_batches(context: Context) -> Result<()> {
    for codec in ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"] {
        let topic = context.topic(codec);
        context
            .produce(&topic, 3000, &["--batch", "100", "--compression", codec])
            .await?;
        let consumer = context.client.consumer(topic, earliest("s")).await?;
        for number in 0..3000u32 {
            let message = next(&consumer).await?;
            ensure!(
                text(&message) == format!("message-{number}"),
                "{codec} {message:?}"
            );
            ensure!(message.id.batch_size == Some(100), "{message:?}");
            ensure!(message.id.batch_index == Some(number % 100), "{message:?}");
            consumer.ack(&message).await?;
        }
        consumer.close().await;
    }
    Ok(())
}

async fn acknowledged_is_not_delivered_again(context: Context) -> Result<()> {
    for batch in ["1", "10"] {
        let topic = context.topic(batch);
        context.produce(&topic, 100, &["--batch", batch]).await?;
        let options = ConsumerOptions {
            subscription_type: SubscriptionType::Shared,
            ..earliest("s")
        };
        let consumer = context
            .client
            .consumer(topic.clone(), options.clone())
            .await?;
        let mut left = BTreeSet::new();
        for number in 0..100 {
            let message = next(&consumer).await?;
            // Whole batches of 10.
            if number / 10 % 2 == 0 {
                consumer.ack(&message).await?;
            } else {
                left.insert(text(&message));
            }
        }
        consumer.close().await;
        let consumer = context.client.consumer(topic, options).await?;
        let mut again = BTreeSet::new();
        for _ in 0..50 {
            again.insert(text(&next(&consumer).await?));
        }
        ensure!(left == again, "left {left:?}, delivered again {again:?}");
        nothing(&consumer, Duration::from_millis(300)).await?;
        consumer.close().await;
    }
    Ok(())
}
