//! `pulsegate produce`, `consume` and `read`: messages by hand, with the options and the output of Apache Pulsar's
//! `pulsar-client`.
//!
//! Owns what the options mean and how messages look. Never speaks the protocol: that is [`crate::client`]'s. Start at
//! [`ProduceArgs`].

mod avro;
mod output;
mod pace;
mod problems;
mod produce_args;
mod receive_args;
mod schema;
mod spelling;
mod text;

use std::fmt::Display;
use std::io::Write as _;

use clap::Args;

pub use produce_args::ProduceArgs;
pub use receive_args::{ConsumeArgs, ReadArgs};
pub(super) use spelling::from_pulsar_client;

use crate::telemetry::{LogError, check_level};

/// How the commands talk.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// One JSON object a message, for programs.
    #[arg(long)]
    json: bool,
    /// No summary at the end.
    #[arg(long)]
    quiet: bool,
    /// What to log to standard error: error, warn, info, debug, trace, off, or a list of target=level.
    #[arg(long, value_name = "LEVEL", env = "PULSEGATE_LOG", default_value = "warn", value_parser = parse_level)]
    log_level: String,
}

fn parse_level(text: &str) -> Result<String, LogError> {
    check_level(text).map(|()| text.to_owned())
}

/// Tells the user on standard error; there is nobody to tell when that fails.
fn complain(what: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "pulsegate: {what}");
}
