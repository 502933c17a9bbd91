//! `pulsegate inspect`: what is in a data directory that no process has open, and making one start again that is refused.
//!
//! Owns what the arguments mean, what is shown, and the exit codes. Nothing is written without `--repair`: the directory is then
//! opened through [`ReadOnlyDisk`], which cannot. Start at [`InspectArgs::run`].

mod decode;
mod look;
mod repair;
mod report;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use self::look::Look;
use self::report::Report;
use super::problems::{Problems, WrongArguments};
use super::{complain, refuse};
use crate::disk::{DiskErrorKind, ReadOnlyDisk};
use crate::journal::JournalError;
use crate::journal::audit::{hold, read_superblock};
use crate::journal::superblock::Superblock;

/// Arguments of `pulsegate inspect`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct InspectArgs {
    /// The data directory. No process may have it open.
    #[arg(value_name = "DATA")]
    data: Option<PathBuf>,
    /// What to show: summary (default), space, topics, ledgers, cursors, metadata, entries, verify.
    #[arg(value_name = "WHAT")]
    what: Option<String>,
    /// The cluster that it has to be of.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// The ledger whose entries are shown.
    #[arg(long, value_name = "ID")]
    ledger: Option<String>,
    /// The first entry that is shown (default: the first there is).
    #[arg(long, value_name = "ENTRY")]
    from: Option<String>,
    /// How many entries are shown at most (default 100).
    #[arg(long, value_name = "N")]
    count: Option<String>,
    /// One JSON document, for programs.
    #[arg(long)]
    json: bool,
    /// Make the store start again when it is refused: cut the log where it is damaged. What is cut is kept in files repair-*, and told.
    #[arg(long)]
    repair: bool,
}

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Summary,
    Space,
    Topics,
    Ledgers,
    Cursors,
    Metadata,
    Entries,
    Verify,
}

/// What the arguments come to.
#[derive(Debug)]
struct Plan {
    data: PathBuf,
    what: What,
    cluster: Option<String>,
    entries: Option<EntriesWanted>,
    json: bool,
    repair: bool,
}

/// Which entries are shown.
#[derive(Debug, Clone, Copy)]
struct EntriesWanted {
    ledger: u64,
    from: Option<u64>,
    count: usize,
}

/// Why a directory was not looked at, or not to the end.
#[derive(Debug, thiserror::Error)]
enum InspectError {
    /// The store, or the disk.
    #[error("{directory}: {error}")]
    Store {
        directory: String,
        error: JournalError,
    },
    /// Standard output does not take what was to be shown.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    /// There is no such thing in it.
    #[error("{directory}: {what}")]
    Missing { directory: String, what: String },
}

/// Exit code when a store has damage that was shown, or is refused for it.
const EXIT_DAMAGED: u8 = 2;
/// Exit code when a process has the directory open.
const EXIT_IN_USE: u8 = 4;

const ENTRIES_SHOWN: usize = 100;

impl InspectArgs {
    /// A line for everything that is wrong with the arguments.
    pub(super) fn problems(&self) -> Vec<String> {
        match self.plan() {
            Ok(_) => Vec::new(),
            Err(wrong) => wrong.into_lines(),
        }
    }

    /// Shows what was asked for. Everything the user is told is printed here.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let plan = match self.plan() {
            Ok(plan) => plan,
            Err(wrong) => return refuse(&wrong),
        };
        match plan.run() {
            Ok(report) if report.is_damaged() => ExitCode::from(EXIT_DAMAGED),
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&error);
                error.exit_code()
            }
        }
    }

    fn plan(&self) -> Result<Plan, WrongArguments> {
        let mut problems = Problems::default();
        if self.data.is_none() {
            problems.add("DATA", "is missing");
        }
        let what = problems
            .choice("WHAT", self.what.as_deref(), WHAT)
            .unwrap_or(What::Summary);
        let ledger = number(&mut problems, "--ledger", self.ledger.as_deref());
        let from = number(&mut problems, "--from", self.from.as_deref());
        let count = problems.count("--count", self.count.as_deref(), 1..=usize::MAX);
        let of_entries = [
            ("--ledger", self.ledger.is_some()),
            ("--from", self.from.is_some()),
            ("--count", self.count.is_some()),
        ];
        if what == What::Entries {
            problems.required("--ledger", self.ledger.as_deref());
        } else if self.what.as_deref().is_none_or(is_one) {
            for (option, _) in of_entries.into_iter().filter(|(_, given)| *given) {
                problems.add(option, "goes with WHAT entries only");
            }
        }
        if self.repair && self.what.is_some() {
            problems.add("--repair", "shows what it does, so it takes no WHAT");
        }
        let entries = ledger.map(|ledger| EntriesWanted {
            ledger,
            from,
            count: count.unwrap_or(ENTRIES_SHOWN),
        });
        let plan = self.data.clone().map(|data| Plan {
            data,
            what,
            cluster: self.cluster.clone(),
            entries,
            json: self.json,
            repair: self.repair,
        });
        problems.finish(plan)
    }
}

impl Plan {
    fn run(&self) -> Result<Report, InspectError> {
        let report = self.report().map_err(|error| match error {
            Failed::Journal(error) => InspectError::Store {
                directory: self.data.display().to_string(),
                error,
            },
            Failed::Missing(what) => InspectError::Missing {
                directory: self.data.display().to_string(),
                what,
            },
        })?;
        let mut out = io::stdout().lock();
        if self.json {
            let text = serde_json::to_string_pretty(&report).map_err(io::Error::from)?;
            writeln!(out, "{text}")?;
        } else {
            write!(out, "{report}")?;
        }
        out.flush()?;
        Ok(report)
    }

    fn report(&self) -> Result<Report, Failed> {
        let disk = ReadOnlyDisk::open(&self.data).map_err(JournalError::from)?;
        let superblock = self.superblock(&disk)?;
        if self.repair {
            return Ok(Report::Repaired(repair::repair(&self.data, &superblock)?));
        }
        let _held = hold(&disk)?;
        let look = Look::at(&disk, superblock)?;
        Ok(match (self.what, self.entries) {
            (What::Space, _) => Report::Space(look.space()?),
            (What::Topics, _) => Report::Topics(look.topics()?),
            (What::Ledgers, _) => Report::Ledgers(look.ledgers()),
            (What::Cursors, _) => Report::Cursors(look.cursors()?),
            (What::Metadata, _) => Report::Metadata(look.metadata()?),
            (What::Entries, Some(wanted)) => Report::Entries(look.entries(wanted)?),
            (What::Verify, _) => Report::Verified(look.verify()?),
            _ => Report::Summary(Box::new(look.summary()?)),
        })
    }

    fn superblock(&self, disk: &ReadOnlyDisk) -> Result<Superblock, JournalError> {
        let superblock = read_superblock(disk)?;
        match &self.cluster {
            Some(expected) if *expected != superblock.cluster => Err(JournalError::OtherCluster {
                found: superblock.cluster,
                expected: expected.clone(),
            }),
            _ => Ok(superblock),
        }
    }
}

/// Why there is no report.
#[derive(Debug)]
enum Failed {
    Journal(JournalError),
    Missing(String),
}

impl From<JournalError> for Failed {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl InspectError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Store {
                error: JournalError::Damaged { .. },
                ..
            } => ExitCode::from(EXIT_DAMAGED),
            Self::Store {
                error: JournalError::Disk(error),
                ..
            } if error.kind == DiskErrorKind::Locked => ExitCode::from(EXIT_IN_USE),
            _ => ExitCode::FAILURE,
        }
    }
}

fn number(problems: &mut Problems, option: &str, value: Option<&str>) -> Option<u64> {
    problems.value(option, value, "a whole number", |_: &u64| true)
}

fn is_one(what: &str) -> bool {
    WHAT.iter().any(|(name, _)| name.eq_ignore_ascii_case(what))
}

/// Tells somebody where a file of the directory is.
fn in_directory(directory: &Path, file: impl Display) -> String {
    directory.join(file.to_string()).display().to_string()
}

const WHAT: &[(&str, What)] = &[
    ("summary", What::Summary),
    ("space", What::Space),
    ("topics", What::Topics),
    ("ledgers", What::Ledgers),
    ("cursors", What::Cursors),
    ("metadata", What::Metadata),
    ("entries", What::Entries),
    ("verify", What::Verify),
];

const EXAMPLES: &str = "\
Examples:
  pulsegate inspect data
  pulsegate inspect data topics --json
  pulsegate inspect data entries --ledger 6553600000 --from 17 --count 5
  pulsegate inspect data verify
  pulsegate inspect data --repair

Without --repair nothing in the directory is changed, whatever is found.

Exit codes:
  0   shown, and nothing is wrong with it; or repaired, or nothing was to be repaired
  1   cannot be looked at: not a data directory, of another cluster, of a newer version, not readable
  2   damaged: what is wrong was printed
  4   a process has the directory open
  64  wrong arguments";
