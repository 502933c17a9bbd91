//! Log output: one line an event on standard error, as text or as JSON.

use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

use super::log_writer::{self, LogGuard};

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people; with colours only when standard error is a terminal.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(LogError::UnknownFormat {
                text: text.to_owned(),
            }),
        }
    }
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`, `off`) or a comma list of `target=level`.
    pub level: String,
    /// How lines are written.
    pub format: LogFormat,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Text,
        }
    }
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The level is none.
    #[error(
        "{text:?} is no log level; expected error, warn, info, debug, trace or off, or a list of target=level"
    )]
    BadLevel {
        /// What was given.
        text: String,
    },
    /// The format is none.
    #[error("{text:?} is no log format; expected text or json")]
    UnknownFormat {
        /// What was given.
        text: String,
    },
    /// There is no thread for writing the lines.
    #[error("cannot start the thread that writes the log: {0}")]
    Thread(#[source] io::Error),
    /// Something else in this process already set up logging.
    #[error("logging is already set up")]
    AlreadySet,
}

/// Checks a level without setting anything up.
///
/// # Errors
/// [`LogError::BadLevel`].
pub fn check_level(level: &str) -> Result<(), LogError> {
    filter(level).map(drop)
}

/// Sets up logging for the whole process, on standard error. Call once, before any task is spawned.
///
/// A thread of its own writes the lines: when nobody reads them, up to 10,000 wait and further ones are dropped,
/// and nothing else stops.
///
/// # Errors
/// When the level is malformed or logging is already set up.
pub fn init_logging(settings: &LogSettings) -> Result<LogGuard, LogError> {
    let (writer, guard) = log_writer::start(io::stderr()).map_err(LogError::Thread)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(&settings.level)?)
        .with_writer(writer)
        // Else a line that cannot be written, because nobody reads them any more, would end the thread that wrote it.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    let done = match settings.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_ansi(false)
            .try_init(),
    };
    done.map_err(|_| LogError::AlreadySet)?;
    Ok(guard)
}

/// A word alone must be a level: the filter syntax would take a misspelt one for a target and log everything of it.
fn filter(level: &str) -> Result<EnvFilter, LogError> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let bad = || LogError::BadLevel {
        text: level.chars().take(80).collect(),
    };
    for directive in level.split(',') {
        let last = directive
            .rsplit_once('=')
            .map_or(directive, |(_, level)| level);
        if !LEVELS
            .iter()
            .any(|known| known.eq_ignore_ascii_case(last.trim()))
        {
            return Err(bad());
        }
    }
    let tidy: String = level
        .chars()
        .filter(|character| *character != ' ')
        .collect();
    // The last one for a target counts: whoever names it gets its lines.
    EnvFilter::try_new(format!("{QUIET},{tidy}")).map_err(|_| bad())
}

/// The TLS library writes a line for each odd handshake, so strangers could fill the log. What ends a handshake is told by us.
const QUIET: &str = "rustls=off";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_lists_of_levels_are_accepted() {
        for level in [
            "info",
            "WARN",
            "off",
            "info,pulsegate::gateway=debug",
            "error, pulsegate=trace",
        ] {
            assert!(check_level(level).is_ok(), "{level}");
        }
    }

    #[test]
    fn strangers_cannot_make_the_tls_library_write_lines_unless_it_is_asked_to() {
        let writes = |level: &str| {
            let subscriber = tracing_subscriber::fmt()
                .with_env_filter(filter(level).expect("a level"))
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                (
                    tracing::enabled!(target: "rustls::msgs::handshake", tracing::Level::WARN),
                    tracing::enabled!(target: "pulsegate::gateway", tracing::Level::WARN),
                )
            })
        };
        assert_eq!(writes("info"), (false, true));
        assert_eq!(writes("trace"), (false, true));
        assert_eq!(writes("info,rustls=warn"), (true, true));
        assert_eq!(writes("off"), (false, false));
    }

    #[test]
    fn misspelt_levels_are_refused() {
        for level in [
            "",
            "inof",
            "info,",
            "pulsegate",
            "pulsegate=loud",
            "info;debug",
            "3",
        ] {
            assert!(check_level(level).is_err(), "{level}");
        }
    }

    #[test]
    fn formats_are_text_and_json() {
        assert_eq!("text".parse::<LogFormat>().ok(), Some(LogFormat::Text));
        assert_eq!("json".parse::<LogFormat>().ok(), Some(LogFormat::Json));
        assert!("JSON ".parse::<LogFormat>().is_err());
    }
}
