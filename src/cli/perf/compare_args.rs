//! `pulsegate perf compare`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser};

use super::load::{Load, exit_code, until_second_signal};
use super::load_args::LoadSettings;
use super::progress::{Progress, on_terminal, print_json};
use super::{LoadCommand, names};
use crate::cli::EXIT_INTERRUPTED;
use crate::cli::parse::{self, Faults};
use crate::cli::problems::Problems;
use crate::naming::ServiceUrl;
use crate::perf::compare::{Comparison, TargetRuns, order};
use crate::perf::run::RunError;
use crate::perf::watch::WatchedProcess;

/// Arguments of `pulsegate perf compare`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct CompareArgs {
    /// A cluster to measure, at least two; ratios are to the first.
    #[arg(long = "target", value_name = "NAME=URL")]
    targets: Vec<String>,
    /// How often every target is measured, at most 10,000 times [default: 5].
    #[arg(long, value_name = "N")]
    rounds: Option<String>,
    /// A process of a target, whose CPU time and memory are reported; may be repeated.
    #[arg(long = "pid", value_name = "NAME=PID")]
    pids: Vec<String>,
    /// End with one JSON document on standard output.
    #[arg(long)]
    json: bool,
    /// The load: produce, consume or read with its flags.
    #[arg(last = true, value_name = "LOAD FLAGS")]
    load: Vec<OsString>,
}

/// The load behind `--`, parsed like a command line of its own.
#[derive(Debug, Parser)]
#[command(
    name = "load",
    bin_name = "pulsegate perf compare ... --",
    disable_version_flag = true
)]
struct LoadArguments {
    #[command(subcommand)]
    command: LoadCommand,
}

/// A comparison to be run.
#[derive(Debug)]
pub(super) struct ComparePlan {
    targets: Vec<Target>,
    rounds: usize,
    json: bool,
}

#[derive(Debug)]
struct Target {
    name: String,
    settings: LoadSettings,
    load: Load,
}

impl CompareArgs {
    /// What is to be run, `None` when it is not known what the load is; an exit code after help was printed.
    pub(super) fn plan(&self, problems: &mut Problems) -> Result<Option<ComparePlan>, ExitCode> {
        let load = self.load(problems)?;
        if self.targets.len() < 2 {
            problems.add("--target", "at least two targets are needed");
        }
        self.check_targets(problems);
        self.check_pids(problems);
        let rounds = problems.count("--rounds", self.rounds.as_deref(), 1..=ROUNDS_MAX);
        let targets = load.map(|(settings, load)| {
            let targets = self.targets.iter();
            targets
                .filter_map(|target| self.target(target, &settings, &load, problems))
                .collect()
        });
        Ok(targets.map(|targets| ComparePlan {
            targets,
            rounds: rounds.unwrap_or(5),
            json: self.json,
        }))
    }

    /// The load behind `--`, if it is one.
    fn load(&self, problems: &mut Problems) -> Result<Option<(LoadSettings, Load)>, ExitCode> {
        let mut faults = Faults::default();
        let name = OsString::from("load");
        let arguments = [name].into_iter().chain(self.load.iter().cloned());
        let arguments = names::prepare(arguments.collect(), &mut faults);
        let command = parse::with_negative_numbers(LoadArguments::command());
        let matches = parse::parse(&command, arguments, &mut faults, names::describe_unknown);
        let parsed = matches.and_then(|matches| LoadArguments::from_arg_matches(&matches));
        let command = match parsed {
            Ok(LoadArguments { command }) => command,
            Err(error) if is_about_subcommand(&error) => {
                let given = self.load.first().map(|word| word.to_string_lossy());
                let expected = "produce, consume or read with its flags, behind --";
                problems.append(faults.problems);
                match given {
                    Some(word) => problems.refuse("LOAD", &word, expected),
                    None => problems.add("LOAD", format_args!("is missing; expected {expected}")),
                }
                return Ok(None);
            }
            Err(error) => return Err(super::super::print(&error, &faults)),
        };
        let mut of_load = Problems::default();
        let (mut settings, load) = command.plan(on_terminal(), &mut of_load);
        faults.append(of_load.into_wrong().into_lines());
        problems.append(faults.problems);
        if settings.plan.duration.is_none() && !command.has_message_count() {
            settings.plan.duration = Some(settings.plan.warm_up + ROUND_TIME);
        }
        Ok(Some((settings, load)))
    }

    fn check_targets(&self, problems: &mut Problems) {
        let mut names = BTreeSet::new();
        for target in &self.targets {
            match target.split_once('=') {
                None => problems.add("--target", format_args!("{target:?} is not NAME=URL")),
                Some((name, _)) if !names.insert(name) => {
                    problems.add(
                        "--target",
                        format_args!("two targets have the name {name:?}"),
                    );
                }
                Some((name, url)) => {
                    if let Err(error) = url.parse::<ServiceUrl>() {
                        problems.add("--target", format_args!("{name}: {error}"));
                    }
                }
            }
        }
    }

    fn target(
        &self,
        text: &str,
        settings: &LoadSettings,
        load: &Load,
        problems: &mut Problems,
    ) -> Option<Target> {
        // What is wrong with it was told.
        let (name, url) = text.split_once('=')?;
        let url: ServiceUrl = url.parse().ok()?;
        let mut settings = settings.clone();
        settings.plan.watch = self.processes(name, problems);
        let load = load.with_url(&url);
        settings.service_url = url;
        Some(Target {
            name: name.to_owned(),
            settings,
            load,
        })
    }

    fn processes(&self, target: &str, problems: &mut Problems) -> Vec<WatchedProcess> {
        let of_target = self.pids.iter().filter_map(|pid| {
            let (name, pid) = pid.split_once('=')?;
            (name == target).then(|| pid.parse().map(WatchedProcess::new))
        });
        let mut processes = Vec::new();
        for process in of_target {
            match process {
                Ok(Ok(process)) => processes.push(process),
                Ok(Err(error)) => problems.add("--pid", error),
                Err(_) => problems.add("--pid", "not a process id"),
            }
        }
        processes
    }

    fn check_pids(&self, problems: &mut Problems) {
        let is_target = |name: &str| {
            let named = |target: &String| target.split('=').next() == Some(name);
            self.targets.iter().any(named)
        };
        for pid in &self.pids {
            match pid.split_once('=') {
                Some((name, _)) if is_target(name) => {}
                Some((name, _)) => problems.add("--pid", format_args!("{name:?} is no target")),
                None => problems.add("--pid", format_args!("{pid:?} is not NAME=PID")),
            }
        }
    }
}

impl ComparePlan {
    /// Runs all rounds and prints what they say.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut runs: Vec<TargetRuns> = self
            .targets
            .iter()
            .map(|target| TargetRuns {
                name: target.name.clone(),
                url: target.settings.service_url.to_string(),
                runs: Vec::new(),
            })
            .collect();
        let measured = until_second_signal(async |stop| {
            let mut lost = 0_u64;
            'rounds: for round in 0..self.rounds {
                for place in order(round, self.targets.len()) {
                    let (Some(target), Some(runs)) = (self.targets.get(place), runs.get_mut(place))
                    else {
                        continue;
                    };
                    let label = format!("round {} {}: ", round + 1, target.name);
                    let mut progress = Progress::new(label);
                    let ran = target
                        .load
                        .run(&target.settings.plan, stop.cancelled(), &mut progress)
                        .await;
                    progress.end();
                    let report = match ran {
                        // What was measured before is worth telling.
                        Err(RunError::Interrupted) => break 'rounds,
                        ran => ran.with_context(|| format!("target {}", target.name))?,
                    };
                    if report.interrupted {
                        break 'rounds;
                    }
                    lost = lost.saturating_add(report.lost());
                    runs.runs.push(report);
                }
            }
            Ok(lost)
        });
        let Some(lost) = measured? else {
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        };
        let comparison = Comparison::new(runs);
        self.print(&comparison).context("print the comparison")?;
        Ok(exit_code(lost))
    }

    fn print(&self, comparison: &Comparison) -> io::Result<()> {
        if self.json {
            print_json(comparison)
        } else {
            write!(io::stdout(), "{comparison}")
        }
    }
}

fn is_about_subcommand(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidSubcommand
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

impl Load {
    /// The same load on another cluster.
    fn with_url(&self, url: &ServiceUrl) -> Self {
        match self {
            Self::Produce(load) => {
                let mut load = (**load).clone();
                load.service_url = url.clone();
                Self::Produce(Arc::new(load))
            }
            Self::Consume(load) => {
                let mut load = (**load).clone();
                load.service_url = url.clone();
                Self::Consume(Arc::new(load))
            }
        }
    }
}

/// Each round's reports are kept to its end.
const ROUNDS_MAX: usize = 10_000;
/// Length of a run where the load's flags give none, warm-up excluded.
const ROUND_TIME: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Example:
  pulsegate perf compare --target apache=pulsar://a:6650 --target ours=pulsar://b:6650 --rounds 7 \\
      --pid apache=4711 --pid ours=4712 -- produce -r 20000 -time 20 my-topic

Every round runs the load on all targets, one after the other, and begins with another one. Each metric of a target is divided
by that of the first target in the same round; printed are the median, the least and the greatest of these ratios. Of a load
without -time and -m every run takes 10 s besides its warm-up. Flags for the cluster (-u) in the load are not used.

Exit codes are those of the load: 1 when messages failed or were never answered in any run.";
