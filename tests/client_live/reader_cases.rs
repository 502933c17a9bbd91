//! Readers.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use pulsegate::client::{
    MessageId, Reader, ReaderOptions,
    consumer::{ReceivedMessage, SeekTo},
};

use crate::{
    consumer_cases::{now_ms, numbered, partitioned, path, texts},
    context::{Context, text},
};

cases![
    readers,
    reader_of_batches,
    reader_of_partitions,
    reader_starts_back_in_time,
    reads_compacted,
];

async fn read(reader: &Reader) -> Result<ReceivedMessage> {
    let message = tokio::time::timeout(Duration::from_secs(30), reader.recv()).await;
    Ok(message.context("no message came")??)
}

/// Reads while there is something.
async fn read_all(reader: &Reader) -> Result<Vec<ReceivedMessage>> {
    let mut messages = Vec::new();
    while reader.has_message_available().await? {
        messages.push(read(reader).await?);
    }
    Ok(messages)
}

async fn readers(context: Context) -> Result<()> {
    reads_from_everywhere(&context, "1").await
}

async fn reader_of_batches(context: Context) -> Result<()> {
    reads_from_everywhere(&context, "10").await
}

async fn reads_from_everywhere(context: &Context, batch: &str) -> Result<()> {
    let topic = context.topic("t");
    let client = &context.client;
    let open = |start: MessageId, start_inclusive| {
        let topic = topic.clone();
        let options = ReaderOptions {
            start_inclusive,
            ..ReaderOptions::new(start)
        };
        async move { client.reader(&topic, options).await }
    };
    let reader = open(MessageId::earliest(), false).await?;
    let available = reader.has_message_available().await?;
    ensure!(!available, "an empty topic has a message");
    context.produce(&topic, 100, &["--batch", batch]).await?;
    let all = read_all(&reader).await?;
    ensure!(texts(&all) == numbered(0..100), "all: {:?}", texts(&all));
    reader.close().await;

    for (inclusive, index) in [false, true]
        .into_iter()
        .flat_map(|inclusive| [0, 34, 39, 99].map(|index| (inclusive, index)))
    {
        let reader = open(all[index].id.clone(), inclusive).await?;
        let first = if inclusive { index } else { index + 1 };
        let got = texts(&read_all(&reader).await?);
        ensure!(
            got == numbered(first..100),
            "from {index}, inclusive {inclusive}: {got:?}"
        );
        reader.seek(SeekTo::Id(all[50].id.clone())).await?;
        let first = if inclusive { 50 } else { 51 };
        let got = texts(&read_all(&reader).await?);
        ensure!(got == numbered(first..100), "sought: {got:?}");
        reader.close().await;
    }
    let reader = open(MessageId::latest(), false).await?;
    let available = reader.has_message_available().await?;
    ensure!(!available, "behind the last message is one");
    let time = now_ms()? + 1;
    tokio::time::sleep(Duration::from_millis(50)).await;
    context
        .produce(&topic, 20, &["--batch", batch, "--from", "100"])
        .await?;
    let got = texts(&read_all(&reader).await?);
    ensure!(got == numbered(100..120), "latest: {got:?}");
    reader.seek(SeekTo::Id(MessageId::earliest())).await?;
    let got = texts(&read_all(&reader).await?);
    ensure!(got == numbered(0..120), "earliest: {got:?}");
    reader.seek(SeekTo::Time(time)).await?;
    let got = texts(&read_all(&reader).await?);
    ensure!(got == numbered(100..120), "time: {got:?}");
    reader.close().await;
    Ok(())
}

async fn reader_of_partitions(context: Context) -> Result<()> {
    let topic = partitioned(&context, "t", 3).await?;
    context.produce(&topic, 300, &["--batch", "10"]).await?;
    let options = ReaderOptions::new(MessageId::earliest());
    let reader = context.client.reader(&topic, options).await?;
    let got: BTreeSet<String> = texts(&read_all(&reader).await?).into_iter().collect();
    ensure!(got.len() == 300, "{}", got.len());
    reader.seek(SeekTo::Id(MessageId::earliest())).await?;
    ensure!(read_all(&reader).await?.len() == 300, "again");
    reader.close().await;
    Ok(())
}

async fn reader_starts_back_in_time(context: Context) -> Result<()> {
    let topic = context.topic("t");
    context.produce(&topic, 10, &[]).await?;
    let between = now_ms()?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    context.produce(&topic, 10, &["--from", "10"]).await?;
    let passed = Duration::from_millis(now_ms()? - between);
    let options = ReaderOptions {
        start_rollback: Some(passed.saturating_sub(Duration::from_secs(2))),
        ..ReaderOptions::new(MessageId::earliest())
    };
    let reader = context.client.reader(&topic, options).await?;
    for number in 10..20 {
        let message = read(&reader).await?;
        ensure!(text(&message) == format!("message-{number}"), "{message:?}");
    }
    reader.close().await;
    Ok(())
}

async fn reads_compacted(context: Context) -> Result<()> {
    let topic = context.topic("t");
    for from in ["0", "100", "200"] {
        let options = ["--batch", "10", "--from", from, "--key", "%d"];
        context.produce(&topic, 100, &options).await?;
    }
    // Some of the keys once more.
    context.produce(&topic, 50, &["--key", "%d"]).await?;
    let compaction = path(&topic, "compaction");
    context.helper(&["admin", "PUT", &compaction]).await?;
    let mut attempts = 0;
    loop {
        let status = context.helper(&["admin", "GET", &compaction]).await?;
        if status.contains("SUCCESS") {
            break;
        }
        if status.contains("ERROR") {
            // What fails here is Apache's work, as when its bookie was slow to answer, and it does not try again by itself.
            attempts += 1;
            ensure!(attempts < 10, "compaction: {status}");
            tokio::time::sleep(Duration::from_secs(2)).await;
            context.helper(&["admin", "PUT", &compaction]).await?;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    context
        .produce(&topic, 5, &["--from", "300", "--key", "%d"])
        .await?;
    let options = ReaderOptions {
        read_compacted: true,
        ..ReaderOptions::new(MessageId::earliest())
    };
    let reader = context.client.reader(&topic, options).await?;
    let got = texts(&read_all(&reader).await?);
    let expected = (50..300).chain(0..50).chain(300..305);
    ensure!(got == numbered(expected), "{got:?}");
    reader.close().await;
    Ok(())
}
