//! The command line: one module per subcommand, and the exit codes.
//!
//! Owns what users type and what they are told when it is wrong. Never serves anything itself: a subcommand turns
//! arguments into settings and hands them to [`crate::app`]. Start at [`parse`].

mod client_args;
mod files;
mod gateway;
mod inspect;
mod messages;
mod parse;
mod perf;
mod problems;
mod runtime;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub use client_args::{ClientArgs, ClientArgsError, ClientTarget, HiddenText};
pub use gateway::GatewayArgs;
pub use inspect::InspectArgs;
pub use messages::{ConsumeArgs, ProduceArgs, ReadArgs};
pub use perf::PerfArgs;
pub use runtime::start_runtime;

use crate::app::Ended;
use parse::Faults;

/// Exit code of wrong arguments or settings (`EX_USAGE` of BSD's sysexits).
pub const EXIT_USAGE: u8 = 64;
/// Exit code when a second signal cut a shutdown short.
pub const EXIT_INTERRUPTED: u8 = 130;
/// Exit code when the deadline of a shutdown passed with connections still open.
pub const EXIT_DEADLINE: u8 = 3;

/// A drop-in Apache Pulsar gateway.
#[derive(Debug, Parser)]
#[command(name = "pulsegate", version, about, long_about = None, max_term_width = 100)]
pub struct Arguments {
    /// What to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve Pulsar clients in front of brokers that they cannot reach themselves.
    Gateway(GatewayArgs),
    /// Send messages to a topic.
    Produce(Box<ProduceArgs>),
    /// Take messages of a subscription, and acknowledge them.
    Consume(Box<ConsumeArgs>),
    /// Read a topic without a subscription.
    Read(Box<ReadArgs>),
    /// Measure brokers: a load generator, and a broker that stores nothing.
    Perf(PerfArgs),
    /// Show what is in a data directory, check it, or repair it, while no process has it open.
    Inspect(InspectArgs),
}

impl Command {
    /// A line for everything that is wrong with the arguments.
    fn problems(&self) -> Result<Vec<String>, ExitCode> {
        Ok(match self {
            Self::Gateway(arguments) => arguments.problems(),
            Self::Produce(arguments) => arguments.problems(),
            Self::Consume(arguments) => arguments.problems(),
            Self::Read(arguments) => arguments.problems(),
            Self::Perf(arguments) => arguments.problems()?,
            Self::Inspect(arguments) => arguments.problems(),
        })
    }
}

/// Reads the arguments of the process, the program's name first.
///
/// # Errors
/// With the exit code, after help, version or errors were printed: 0 for the former two, [`EXIT_USAGE`] for errors.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, ExitCode> {
    let mut faults = Faults::default();
    let mut arguments = messages::from_pulsar_client(arguments);
    if arguments.get(1).is_some_and(|first| first == "perf") {
        arguments = perf::prepare(arguments, &mut faults);
    }
    let command = parse::with_negative_numbers(Arguments::command());
    let matches = parse::parse(&command, arguments, &mut faults, perf::describe_unknown)
        .map_err(|error| print(&error, &faults))?;
    let parsed = Arguments::from_arg_matches(&matches).map_err(|error| print(&error, &faults))?;
    if faults.problems.is_empty() {
        return Ok(parsed);
    }
    faults.append(parsed.command.problems()?);
    Err(refuse(&faults.problems.into_wrong()))
}

/// Prints help, the version or an error of the parser; returns the exit code that goes with it. What was found besides is
/// told with an error.
fn print(error: &clap::Error, faults: &Faults) -> ExitCode {
    // Nothing is left to do when even the error cannot be printed.
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    if !faults.problems.is_empty() {
        complain(&faults.problems);
    }
    ExitCode::from(EXIT_USAGE)
}

/// Tells the user of wrong arguments.
fn refuse(what: &dyn Display) -> ExitCode {
    complain(what);
    ExitCode::from(EXIT_USAGE)
}

/// Tells the user on standard error; there is nobody to tell when that fails.
fn complain(what: &dyn Display) {
    let _ = writeln!(io::stderr(), "pulsegate: {what}");
}

/// The exit code of a server role that ended.
#[must_use]
pub fn exit_code(ended: Ended) -> ExitCode {
    match ended {
        Ended::Drained => ExitCode::SUCCESS,
        Ended::DeadlinePassed => ExitCode::from(EXIT_DEADLINE),
        Ended::Interrupted => ExitCode::from(EXIT_INTERRUPTED),
    }
}
