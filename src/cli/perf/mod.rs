//! `pulsegate perf`: measuring brokers.
//!
//! Turns flags into what [`crate::perf`] takes. The flags have the names of Apache Pulsar's `pulsar-perf`; wrong ones are told
//! all at once.

mod compare_args;
mod load;
mod load_args;
mod names;
mod null_broker;
mod produce_args;
mod progress;
mod receive_args;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tokio::runtime::Runtime;

use super::problems::Problems;
use super::runtime::start_runtime;
use super::{complain, refuse};
use load::Load;
use load_args::LoadSettings;
pub(super) use names::{describe_unknown, prepare};
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
    /// A line for everything that is wrong.
    pub(super) fn problems(&self) -> Result<Vec<String>, ExitCode> {
        let mut problems = Problems::default();
        self.plan(&mut problems)?;
        Ok(problems.into_wrong().into_lines())
    }

    /// Does what was asked for. Everything the user is told is printed here.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let mut problems = Problems::default();
        let plan = match self.plan(&mut problems) {
            Ok(plan) => plan,
            Err(code) => return code,
        };
        let plan = match problems.finish(plan) {
            Ok(plan) => plan,
            Err(wrong) => return refuse(&wrong),
        };
        let ended = match plan {
            Plan::Load(settings, load) => load::run_one(&settings, &load),
            Plan::Compare(plan) => plan.run(),
            Plan::NullBroker(plan) => plan.run(),
        };
        ended.unwrap_or_else(|error| {
            complain(&format_args!("{error:#}"));
            ExitCode::FAILURE
        })
    }

    /// What is to be done; `None` only when a problem was noted.
    fn plan(&self, problems: &mut Problems) -> Result<Option<Plan>, ExitCode> {
        Ok(match &self.command {
            PerfCommand::Load(command) => {
                let (settings, load) = command.plan(on_terminal(), problems);
                Some(Plan::Load(Box::new(settings), load))
            }
            PerfCommand::Compare(arguments) => arguments.plan(problems)?.map(Plan::Compare),
            PerfCommand::NullBroker(arguments) => Some(Plan::NullBroker(arguments.plan(problems))),
        })
    }
}

/// A runtime with so many threads; with one, everything runs on the caller's.
fn runtime(threads: usize) -> anyhow::Result<Runtime> {
    start_runtime(Some(threads)).context("cannot start the runtime")
}
