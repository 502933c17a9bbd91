//! Many ledgers with two cursors each, and nothing to do.

use std::time::Instant;

use bytes::Bytes;
use pulsegate::ledger::{CursorName, CursorStore as _, CursorUpdate};

use super::space::fill;
use super::{Arguments, Outcome, Writers, open, resident};

/// Bytes of a cursor that has acknowledged a few entries out of order.
const CURSOR: usize = 64;

/// Makes them, closes the store, and reports what the next start takes.
pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let ledgers = arguments.size(arguments.ledgers, 100_000, 200);
    let opened = open(&arguments.directory)?;
    let mut writers = Writers::create(&opened.store, ledgers).await?;
    fill(&mut writers, 1).await?;
    for topic in 0..ledgers {
        let mut last = None;
        for cursor in ["first", "second"] {
            let name = CursorName {
                topic: format!("public/default/persistent/topic-{topic}"),
                cursor: cursor.to_owned(),
            };
            let (_, mut writer) = opened.store.open_cursor(&name).await?;
            writer.append(CursorUpdate::Snapshot(Bytes::from(vec![7; CURSOR])))?;
            last = Some(writer);
        }
        if topic % 1000 == 999 || topic == ledgers - 1 {
            let mut progress = last.ok_or("no cursor")?.progress();
            progress
                .wait_for(|now| now.durable > 0 || now.failed.is_some())
                .await?;
        }
    }
    drop(writers);
    opened.close();
    let (memory, began) = (resident()?, Instant::now());
    let opened = open(&arguments.directory)?;
    let milliseconds = began.elapsed().as_millis();
    println!(
        "idle: {ledgers} ledgers with two cursors each: open after {milliseconds} ms, {:.2} KiB more memory for each (what the process had \
         freed before not counted)",
        resident()?.saturating_sub(memory) as f64 / 1024.0 / ledgers as f64
    );
    opened.close();
    Ok(())
}
