//! The command line: one module per subcommand, and the exit codes.
//!
//! Owns what users type and what they are told when it is wrong. Never serves anything itself: a subcommand turns
//! arguments into settings and hands them to [`crate::app`]. Start at [`parse`].

mod client_args;
mod files;
mod gateway;
mod messages;
mod perf;
mod runtime;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use client_args::{ClientArgs, ClientArgsError, ClientTarget, HiddenText};
pub use gateway::GatewayArgs;
pub use messages::{ConsumeArgs, ProduceArgs, ReadArgs};
pub use perf::PerfArgs;
pub use runtime::start_runtime;

use crate::app::Ended;

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
}

/// Reads the arguments of the process, the program's name first.
///
/// # Errors
/// With the exit code, after help, version or an error was printed: 0 for the former two, [`EXIT_USAGE`] for an error.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, ExitCode> {
    let arguments = messages::from_pulsar_client(arguments)
        .into_iter()
        .collect();
    parse_known(perf::prepare(arguments)?)
}

fn parse_known(arguments: Vec<OsString>) -> Result<Arguments, ExitCode> {
    Arguments::try_parse_from(arguments).map_err(|error| print(&error))
}

/// Prints help, the version or an error of the parser; returns the exit code that goes with it.
fn print(error: &clap::Error) -> ExitCode {
    // Nothing is left to do when even the error cannot be printed.
    let _ = error.print();
    if error.use_stderr() {
        ExitCode::from(EXIT_USAGE)
    } else {
        ExitCode::SUCCESS
    }
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
