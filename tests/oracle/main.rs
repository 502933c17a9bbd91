//! The differential harness: scenarios run against Apache Pulsar, and what happened is kept as transcripts that the gateway
//! is checked against. README.md in this folder tells how to use it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::large_futures,
    reason = "a harness may fail loudly, and talks on standard output"
)]

mod arguments;
mod commands;
mod connection;
mod differences;
mod environment;
mod fuzz;
mod http;
mod normal;
mod replay;
mod runner;
mod scenario;
mod sequence;
mod transcript;
mod value;
mod variables;
mod wire;

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(problem) => {
            eprintln!("oracle: {problem}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let ran = runtime.block_on(async {
        tokio::select! {
            ran = commands::run(command) => ran,
            // Servers are stopped when what runs is dropped.
            () = interrupted() => Err("interrupted".to_owned()),
        }
    });
    drop(runtime);
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("oracle: {problem}");
            ExitCode::FAILURE
        }
    }
}

async fn interrupted() {
    let mut terminated = signal(SignalKind::terminate()).expect("signals can be caught");
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
