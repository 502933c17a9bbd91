//! `pulsegate produce`, `consume` and `read`: messages by hand, with the options and the output of Apache Pulsar's
//! `pulsar-client`.
//!
//! Owns what the options mean and how messages look. Never speaks the protocol: that is [`crate::client`]'s. Start at
//! [`ProduceArgs`].

mod acknowledging;
mod avro;
mod output;
mod pace;
mod produce_args;
mod receive;
mod receive_args;
mod schema;
mod send;
mod spelling;
mod text;
mod topic_schemas;

use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::io::Stdout;
use tokio_util::sync::CancellationToken;

pub use produce_args::ProduceArgs;
pub use receive_args::{ConsumeArgs, ReadArgs};
pub(super) use spelling::from_pulsar_client;

use self::output::{Form, Output};
use super::{
    EXIT_INTERRUPTED,
    client_args::{ClientArgs, ClientArgsError, ClientTarget},
    complain,
    problems::WrongArguments,
    refuse,
    runtime::start_runtime,
};
use crate::{
    app::Shutdown,
    client::{
        ClientError, LookupError, MessageId, PulsarClient,
        consumer::{AckError, ReceiveError},
        producer::SendError,
    },
    telemetry::{self, LogError, LogFormat, LogSettings, check_level},
};

/// What the commands have in common.
#[derive(Debug, Args)]
struct CommonArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// [-ml] Without effect: what is not sent yet is bounded by 64 MiB for each partition.
    #[arg(long, value_name = "SIZE", help_heading = "Connection")]
    memory_limit: Option<String>,
    /// One JSON object a message, for programs.
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// No summary at the end.
    #[arg(long, help_heading = "Output")]
    quiet: bool,
    /// What to log to standard error: error, warn, info, debug, trace, off, or a list of target=level.
    #[arg(long, value_name = "LEVEL", env = "PULSEGATE_LOG", default_value = "warn", value_parser = parse_level,
        help_heading = "Output")]
    log_level: String,
}

impl CommonArgs {
    /// The cluster, and what the command is to do, if nothing is wrong with either.
    fn with<T>(
        &self,
        settings: Result<T, WrongArguments>,
    ) -> Result<(ClientTarget, T), WrongArguments> {
        match (self.client.target(), settings) {
            (Ok(target), Ok(settings)) => Ok((target, settings)),
            (Ok(_), Err(wrong)) => Err(wrong),
            (Err(error), settings) => {
                let wrong = settings.err().unwrap_or_else(WrongArguments::none);
                Err(match error {
                    ClientArgsError::Settings(errors) => wrong.and(errors.problems),
                    error @ ClientArgsError::TlsFiles(_) => wrong.and([error]),
                })
            }
        }
    }
}

/// Why a command did not do all that it was told to.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    /// The topic cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A message has no receipt.
    #[error(transparent)]
    Send(#[from] SendError),
    /// There is no further message.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// A message was shown and is not acknowledged.
    #[error("a message cannot be acknowledged: {0}")]
    Acknowledge(#[from] AckError),
    /// The schema of a topic cannot be asked for.
    #[error("the schema cannot be read: {0}")]
    Schema(#[from] LookupError),
    /// Nobody answers what the schema of a topic is.
    #[error("the schema cannot be read: no answer within {0:?}")]
    SchemaTimeout(Duration),
    /// A message is encrypted.
    #[error("message {0} is encrypted; -ca CONSUME shows it as it is, -ca DISCARD leaves it out")]
    Encrypted(MessageId),
    /// Standard output does not take what was to be shown.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

impl ProduceArgs {
    /// A line for everything that is wrong.
    pub(super) fn problems(&self) -> Vec<String> {
        let wrong = self.common.with(self.settings()).err();
        wrong.map(WrongArguments::into_lines).unwrap_or_default()
    }

    /// Sends messages, and returns the exit code of the process.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let (target, settings) = match self.common.with(self.settings()) {
            Ok(right) => right,
            Err(wrong) => return refuse(&wrong),
        };
        run(&self.common, target, PRODUCE, async |session| {
            send::send(session, &settings).await
        })
    }
}

impl ConsumeArgs {
    /// A line for everything that is wrong.
    pub(super) fn problems(&self) -> Vec<String> {
        let wrong = self.common.with(self.settings()).err();
        wrong.map(WrongArguments::into_lines).unwrap_or_default()
    }

    /// Consumes messages, and returns the exit code of the process.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let (target, settings) = match self.common.with(self.settings()) {
            Ok(right) => right,
            Err(wrong) => return refuse(&wrong),
        };
        run(&self.common, target, CONSUME, async |session| {
            receive::consume(session, &settings).await
        })
    }
}

impl ReadArgs {
    /// A line for everything that is wrong.
    pub(super) fn problems(&self) -> Vec<String> {
        let wrong = self.common.with(self.settings()).err();
        wrong.map(WrongArguments::into_lines).unwrap_or_default()
    }

    /// Reads messages, and returns the exit code of the process.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let (target, settings) = match self.common.with(self.settings()) {
            Ok(right) => right,
            Err(wrong) => return refuse(&wrong),
        };
        run(&self.common, target, READ, async |session| {
            receive::read(session, &settings).await
        })
    }
}

/// What a command works with.
struct Session<'a, W> {
    client: &'a PulsarClient,
    output: &'a mut Output<W>,
    /// Cancelled by the first signal.
    stop: &'a CancellationToken,
    /// For the summary.
    tally: &'a mut Tally,
}

/// What a command does to messages.
#[derive(Debug, Clone, Copy)]
struct Words {
    /// While it does.
    doing: &'static str,
    /// Once it has done.
    done: &'static str,
    /// Whether it is over when nobody wants to see more.
    takes: bool,
}

const PRODUCE: Words = Words {
    doing: "producing",
    done: "produced",
    takes: false,
};
const CONSUME: Words = Words {
    doing: "consuming",
    done: "consumed",
    takes: true,
};
const READ: Words = Words {
    doing: "reading",
    done: "read",
    takes: true,
};

/// What a command came to so far.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    /// Messages that were sent or shown.
    messages: u64,
    /// Entries that could not be read.
    discarded: u64,
}

fn parse_level(text: &str) -> Result<String, LogError> {
    check_level(text).map(|()| text.to_owned())
}

/// Runs a command with a client until it is done or a signal ends it: the first one in order, with a summary, the second
/// one at once.
fn run(
    arguments: &CommonArgs,
    target: ClientTarget,
    words: Words,
    work: impl AsyncFnOnce(Session<'_, Stdout>) -> Result<(), CommandError>,
) -> ExitCode {
    let log = telemetry::init_logging(&LogSettings {
        level: arguments.log_level.clone(),
        format: LogFormat::Text,
    });
    let _log = match log {
        Ok(guard) => guard,
        // The level was checked with the arguments.
        Err(error) => return fail(&error),
    };
    let runtime = match start_runtime(None) {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format_args!("cannot start the runtime: {error}")),
    };
    let code = runtime.block_on(async {
        let mut signals = match Shutdown::listen() {
            Ok(signals) => signals,
            Err(error) => return fail(&format_args!("cannot catch signals: {error}")),
        };
        let stop = CancellationToken::new();
        let interrupted = async {
            signals.requested().await;
            stop.cancel();
            signals.requested().await;
        };
        tokio::select! {
            code = with_client(arguments, target, words, &stop, work) => code,
            () = interrupted => ExitCode::from(EXIT_INTERRUPTED),
        }
    });
    // A write to standard output that nobody reads is not waited for.
    runtime.shutdown_background();
    code
}

async fn with_client(
    arguments: &CommonArgs,
    target: ClientTarget,
    Words { doing, done, takes }: Words,
    stop: &CancellationToken,
    work: impl AsyncFnOnce(Session<'_, Stdout>) -> Result<(), CommandError>,
) -> ExitCode {
    for warning in &target.warnings {
        tracing::warn!("{warning}");
    }
    let client = PulsarClient::new(target.service_url, target.options);
    let mut output = Output::new(
        tokio::io::stdout(),
        Form {
            json: arguments.json,
            quiet: arguments.quiet,
        },
        stop.clone(),
    );
    let mut tally = Tally::default();
    let worked = work(Session {
        client: &client,
        output: &mut output,
        stop,
        tally: &mut tally,
    })
    .await;
    client.close();
    let summed_up = output.summary(tally, done).await;
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    let worked = match worked {
        // The reader of a pipe has gone, such as `head`: a reason to take no more messages, not a failure.
        Err(CommandError::Output(error)) if takes && is_gone(&error) => Ok(()),
        worked => worked,
    };
    let ended = match summed_up {
        Err(error) if !is_gone(&error) => worked.and(Err(CommandError::Output(error))),
        _ => worked,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format_args!("error while {doing} messages: {error}")),
    }
}

/// What failed may be told in a broker's words: what would move the cursor of a terminal is shown as what it is.
fn fail(what: &dyn Display) -> ExitCode {
    complain(&visible(&what.to_string()));
    ExitCode::FAILURE
}

/// A text of others on one line, without anything that a terminal acts on.
fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            visible.extend(character.escape_default());
        } else {
            visible.push(character);
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_a_broker_does_nothing_to_a_terminal() {
        let text = "no\u{1b}[2J\n0 messages\u{9b}31m\r\u{7f} zu\u{df}";
        let expected = "no\\u{1b}[2J\\n0 messages\\u{9b}31m\\r\\u{7f} zu\u{df}";
        assert_eq!(visible(text), expected);
    }
}
