//! `pulsegate perf`: measuring brokers.
//!
//! Turns flags into what [`crate::perf`] takes. The flags have the names of Apache Pulsar's `pulsar-perf`; wrong ones are told
//! all at once.

mod names;
mod null_broker;
mod problems;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Subcommand};
use tokio::runtime::{Builder, Runtime};

use super::{Arguments, EXIT_USAGE};
use problems::Problems;

/// Arguments of `pulsegate perf`.
#[derive(Debug, Args)]
pub struct PerfArgs {
    /// What to do.
    #[command(subcommand)]
    command: PerfCommand,
}

/// The subcommands of `pulsegate perf`.
#[derive(Debug, Subcommand)]
enum PerfCommand {
    /// Serve as a broker that stores nothing, to measure clients against.
    NullBroker(null_broker::NullBrokerArgs),
}

impl PerfArgs {
    /// Does what was asked for. Everything the user is told is printed here.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let mut problems = Problems::default();
        let ended = match &self.command {
            PerfCommand::NullBroker(arguments) => {
                let plan = arguments.plan(&mut problems);
                refuse(problems.into_lines()).map_or_else(|| plan.run(), Ok)
            }
        };
        ended.unwrap_or_else(|error| {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        })
    }
}

/// Prepares the arguments of the process for the parser: short names become long ones, and flags that are unknown are told
/// all at once.
///
/// # Errors
/// With the exit code, after unknown flags were printed.
pub(super) fn prepare(arguments: Vec<OsString>) -> Result<Vec<OsString>, ExitCode> {
    if arguments.get(1).is_none_or(|first| first != "perf") {
        return Ok(arguments);
    }
    let arguments = names::with_long_names(arguments);
    let (rest, unknown) = names::without_unknown(&Arguments::command(), arguments);
    if unknown.is_empty() {
        return Ok(rest);
    }
    let mut lines = unknown;
    // What is wrong besides is told as well, but for topics: values of unknown flags look like them.
    if let Ok(Arguments {
        command: super::Command::Perf(perf),
    }) = super::parse_known(rest)
    {
        let mut problems = Problems::default();
        match &perf.command {
            PerfCommand::NullBroker(arguments) => drop(arguments.plan(&mut problems)),
        }
        lines.append(&mut problems.into_lines());
    }
    Err(refuse(lines).unwrap_or(ExitCode::from(EXIT_USAGE)))
}

/// Tells the user of wrong flags; `None` when there are none.
fn refuse(problems: Vec<String>) -> Option<ExitCode> {
    if problems.is_empty() {
        return None;
    }
    let count = problems.len();
    let noun = if count == 1 { "problem" } else { "problems" };
    complain(&format!(
        "the flags have {count} {noun}:\n  {}",
        problems.join("\n  ")
    ));
    Some(ExitCode::from(EXIT_USAGE))
}

/// A runtime with so many threads; with one, everything runs on the caller's.
fn runtime(threads: usize) -> anyhow::Result<Runtime> {
    let mut builder = match threads {
        0 | 1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder
        .worker_threads(threads.max(1))
        .enable_all()
        .build()
        .context("start the runtime")
}

/// Tells the user on standard error; there is nobody to tell when that fails.
fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "pulsegate: {what}");
}
