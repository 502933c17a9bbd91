//! How long a store takes to be ready after its process was killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::space::fill as append;
use super::{Arguments, ENTRY, Outcome, Writers, bytes_on_disk, open, remove, resident};

/// For each size: a process writes so much and is killed, and this one opens what it left.
pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let sizes = if arguments.megabytes.is_empty() {
        arguments.size(None, vec![1000, 4000, 10_000], vec![2, 4])
    } else {
        arguments.megabytes.clone()
    };
    let ledgers = arguments.size(arguments.ledgers, 1000, 20);
    for megabytes in sizes {
        let mut filling = Command::new(std::env::current_exe()?)
            .arg("--directory")
            .arg(&arguments.directory)
            .args(["--fill", &format!("{megabytes}")])
            .args(["--ledgers", &ledgers.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = filling.stdout.take().ok_or("no output")?;
        let read = BufReader::new(output).read_line(&mut line);
        filling.kill()?;
        filling.wait()?;
        read?;
        if line != "full\n" {
            return Err("the filling process failed".into());
        }
        let on_disk = bytes_on_disk(&arguments.directory)?;
        let is_cold = std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok();
        let (memory, began) = (resident()?, Instant::now());
        let opened = open(&arguments.directory)?;
        let milliseconds = began.elapsed().as_millis();
        let counted = opened.counts.now();
        println!(
            "restart: {megabytes} MB in {ledgers} ledgers, {on_disk} B on disk, caches dropped: {is_cold}\n  ready after {milliseconds} ms, \
             {} reads of {} B, {} B written, {} KiB more memory",
            counted.reads,
            counted.read,
            counted.written,
            resident()?.saturating_sub(memory) / 1024
        );
        opened.close();
        remove(&arguments.directory)?;
    }
    Ok(())
}

/// The process that is killed.
pub(crate) async fn fill(arguments: &Arguments, megabytes: &str) -> Outcome {
    let ledgers = arguments.size(arguments.ledgers, 1000, 20);
    let bytes = megabytes.parse::<u64>()? * 1_000_000;
    let opened = open(&arguments.directory)?;
    let mut writers = Writers::create(&opened.store, ledgers).await?;
    append(&mut writers, (bytes / (ledgers * ENTRY) as u64).max(1)).await?;
    println!("full");
    std::future::pending().await
}
