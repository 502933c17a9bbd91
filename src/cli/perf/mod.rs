//! `pulsegate perf`: measuring brokers.
//!
//! Turns flags into what [`crate::perf`] takes. The flags have the names of Apache Pulsar's `pulsar-perf`; wrong ones are told
//! all at once.

mod compare_args;
mod load;
mod load_args;
mod names;
mod null_broker;
mod problems;
mod produce_args;
mod progress;
mod receive_args;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Subcommand};
use tokio::runtime::Runtime;

use super::runtime::start_runtime;
use super::{Arguments, EXIT_USAGE};
use load::Load;
use load_args::LoadSettings;
use problems::Problems;
use progress::on_terminal;

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
    #[command(flatten)]
    Load(LoadCommand),
    /// Put several clusters under the same load in turn, and print how they differ.
    Compare(compare_args::CompareArgs),
    /// Serve as a broker that stores nothing, to measure clients against.
    NullBroker(null_broker::NullBrokerArgs),
}

/// The load generators.
#[derive(Debug, Subcommand)]
enum LoadCommand {
    /// Publish messages and measure how long they take to be acknowledged.
    Produce(Box<produce_args::ProduceArgs>),
    /// Receive messages through subscriptions and measure how long they were on their way.
    Consume(Box<receive_args::ConsumeArgs>),
    /// Read messages without a subscription and measure how long they were on their way.
    Read(Box<receive_args::ReadArgs>),
}

impl LoadCommand {
    fn plan(&self, terminal: bool, problems: &mut Problems) -> (LoadSettings, Load) {
        match self {
            Self::Produce(arguments) => {
                let (settings, load) = arguments.plan(terminal, problems);
                (settings, Load::Produce(Arc::new(load)))
            }
            Self::Consume(arguments) => {
                let (settings, load) = arguments.plan(terminal, problems);
                (settings, Load::Consume(Arc::new(load)))
            }
            Self::Read(arguments) => {
                let (settings, load) = arguments.plan(terminal, problems);
                (settings, Load::Consume(Arc::new(load)))
            }
        }
    }

    /// Whether the load ends by itself.
    fn has_message_count(&self) -> bool {
        match self {
            Self::Produce(arguments) => arguments.has_message_count(),
            Self::Consume(arguments) => arguments.has_message_count(),
            Self::Read(arguments) => arguments.has_message_count(),
        }
    }
}

/// What is to be done.
enum Plan {
    Load(Box<LoadSettings>, Load),
    Compare(compare_args::ComparePlan),
    NullBroker(null_broker::NullBrokerPlan),
}

impl PerfArgs {
    /// Does what was asked for. Everything the user is told is printed here.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let mut problems = Problems::default();
        let plan = match self.plan(&mut problems) {
            Ok(plan) => plan,
            Err(code) => return code,
        };
        if let Some(code) = refuse(problems.into_lines()) {
            return code;
        }
        let ended = match plan {
            Plan::Load(settings, load) => load::run_one(&settings, &load),
            Plan::Compare(plan) => plan.run(),
            Plan::NullBroker(plan) => plan.run(),
        };
        ended.unwrap_or_else(|error| {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        })
    }

    fn plan(&self, problems: &mut Problems) -> Result<Plan, ExitCode> {
        Ok(match &self.command {
            PerfCommand::Load(command) => {
                let (settings, load) = command.plan(on_terminal(), problems);
                Plan::Load(Box::new(settings), load)
            }
            PerfCommand::Compare(arguments) => Plan::Compare(arguments.plan(problems)?),
            PerfCommand::NullBroker(arguments) => Plan::NullBroker(arguments.plan(problems)),
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
    let mut problems = Problems::default();
    for line in &unknown {
        problems.note(line);
    }
    // What is wrong besides is told as well.
    if let super::Command::Perf(perf) = super::parse_known(rest)?.command {
        let mut others = Problems::default();
        perf.plan(&mut others)?;
        problems.append(others, true);
    }
    Err(refuse(problems.into_lines()).unwrap_or(ExitCode::from(EXIT_USAGE)))
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
    start_runtime(Some(threads)).context("cannot start the runtime")
}

/// Tells the user on standard error; there is nobody to tell when that fails.
fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "pulsegate: {what}");
}
