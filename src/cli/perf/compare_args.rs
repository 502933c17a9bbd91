//! `pulsegate perf compare`.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser};

use super::load::{Load, exit_code, until_second_signal};
use super::load_args::LoadSettings;
use super::problems::Problems;
use super::progress::{Progress, on_terminal, print_json};
use super::{LoadCommand, names};
use crate::cli::EXIT_INTERRUPTED;
use crate::naming::ServiceUrl;
use crate::perf::compare::{Comparison, TargetRuns, order};
use crate::perf::run::RunError;
use crate::perf::watch::WatchedProcess;

/// Arguments of `pulsegate perf compare`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct CompareArgs {
    /// A cluster to measure, at least two; ratios are to the first.
    #[arg(long = "target", value_name = "NAME=URL", required = true)]
    targets: Vec<String>,
    /// How often every target is measured [default: 5].
    #[arg(long, value_name = "N")]
    rounds: Option<String>,
    /// A process of a target, whose CPU time and memory are reported; may be repeated.
    #[arg(long = "pid", value_name = "NAME=PID")]
    pids: Vec<String>,
    /// End with one JSON document on standard output.
    #[arg(long)]
    json: bool,
    /// The load: produce, consume or read with its flags.
    #[arg(last = true, value_name = "LOAD FLAGS", required = true)]
    load: Vec<OsString>,
}

/// The load behind `--`, parsed like a command line of its own.
#[derive(Debug, Parser)]
#[command(name = "pulsegate perf compare ... --", disable_version_flag = true)]
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
    /// What is to be run; an exit code after help or an error of the load's flags was printed.
    pub(super) fn plan(&self, problems: &mut Problems) -> Result<ComparePlan, ExitCode> {
        let name = OsString::from("load");
        let arguments = [name]
            .into_iter()
            .chain(self.load.iter().cloned())
            .collect();
        let command = <LoadArguments as clap::CommandFactory>::command();
        let (arguments, unknown) =
            names::without_unknown(&command, names::with_long_names(arguments));
        for line in &unknown {
            problems.note(line);
        }
        let parsed = LoadArguments::try_parse_from(arguments)
            .map_err(|error| super::super::print(&error))?;
        let mut of_load = Problems::default();
        let (mut settings, load) = parsed.command.plan(on_terminal(), &mut of_load);
        problems.append(of_load, !unknown.is_empty());
        if settings.plan.duration.is_none() && !parsed.command.has_message_count() {
            settings.plan.duration = Some(settings.plan.warm_up + ROUND_TIME);
        }
        if self.targets.len() < 2 {
            problems.add("--target", "at least two targets are needed");
        }
        let targets = self
            .targets
            .iter()
            .filter_map(|target| self.target(target, &settings, &load, problems))
            .collect();
        self.check_pids(problems);
        Ok(ComparePlan {
            targets,
            rounds: problems.count("--rounds", self.rounds.as_deref(), 5, 1),
            json: self.json,
        })
    }

    fn target(
        &self,
        text: &str,
        settings: &LoadSettings,
        load: &Load,
        problems: &mut Problems,
    ) -> Option<Target> {
        let Some((name, url)) = text.split_once('=') else {
            problems.add("--target", format_args!("{text:?} is not NAME=URL"));
            return None;
        };
        let url: ServiceUrl = url
            .parse()
            .map_err(|error| problems.add("--target", error))
            .ok()?;
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
