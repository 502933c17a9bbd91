//! The commands: which scenarios run against what, and what becomes of their transcripts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::arguments::{Arguments, Target, Verb};
use crate::differences::{level_both, reasons};
use crate::environment::{Environment, Peers, RunningGateway};
use crate::fuzz::{self, Effort};
use crate::normal::now_millis;
use crate::replay::{Broker, Replay};
use crate::runner::{Runner, Stopped};
use crate::scenario::{self, Kind, Scenario};
use crate::transcript::{self, Direction, Entry, diff};

/// A run: what happened, and why it ended if it did so early.
type Run = (Vec<Entry>, Result<(), Stopped>);

/// Carries out a command; false when something is not as it should be.
pub(crate) async fn run(arguments: Arguments) -> Result<bool, String> {
    if arguments.verb == Verb::ListTests {
        println!("check: test");
        return Ok(true);
    }
    if arguments.verb == Verb::Fuzz {
        return fuzz::run(Effort {
            sequences: arguments.sequences,
            seed: arguments.seed,
            jobs: arguments.jobs.unwrap_or(32),
        })
        .await;
    }
    let mut scenarios = scenario::load(&root(), &arguments.names)?;
    if let Some(kind) = arguments.kind {
        scenarios.retain(|scenario| scenario.target == kind);
    }
    let began = Instant::now();
    let mut outcome = match arguments.verb {
        Verb::Check => check(&scenarios, arguments.jobs.unwrap_or(4)).await?,
        Verb::Record | Verb::Show => record(&scenarios, &arguments).await?,
        Verb::Drift => drift(&scenarios, &arguments).await?,
        Verb::Compare => compare(&scenarios, &arguments).await?,
        Verb::List | Verb::ListTests | Verb::Fuzz => {
            for scenario in &scenarios {
                println!("{} ({})", scenario.name, scenario.target.as_str());
            }
            println!("\nMay differ behind the gateway:");
            for reason in reasons() {
                println!("- {reason}");
            }
            return Ok(true);
        }
    };
    outcome.sort_by(|first, second| first.name.cmp(&second.name));
    let failed: Vec<_> = outcome
        .iter()
        .filter(|done| done.problem.is_some())
        .collect();
    for done in &failed {
        println!("---- {} ----", done.name);
        println!("{}\n", done.problem.as_deref().unwrap_or_default());
    }
    for done in &failed {
        println!("FAILED {}", done.name);
    }
    let passed = outcome.len() - failed.len();
    println!(
        "test result: {}. {passed} passed; {} failed; finished in {:.2}s",
        if failed.is_empty() { "ok" } else { "FAILED" },
        failed.len(),
        began.elapsed().as_secs_f64()
    );
    println!("{passed} passed, {} failed", failed.len());
    Ok(failed.is_empty())
}

/// What became of one scenario.
struct Done {
    name: String,
    problem: Option<String>,
}

async fn check(scenarios: &[Scenario], jobs: usize) -> Result<Vec<Done>, String> {
    let mut tasks = JoinSet::new();
    let permits = Arc::new(Semaphore::new(jobs * 4));
    for scenario in scenarios.iter().cloned() {
        let permits = Arc::clone(&permits);
        tasks.spawn(async move {
            let _permit = permits.acquire_owned().await;
            let problem = check_one(&scenario).await.err();
            Done {
                name: scenario.name,
                problem,
            }
        });
    }
    let mut outcome = tasks.join_all().await;
    outcome.extend(orphans(scenarios)?);
    if scenarios.iter().any(|scenario| scenario.name == SELF_TEST) {
        outcome.push(Done {
            name: format!("harness: a change of {SELF_TEST} is noticed"),
            problem: notices_changes().await.err(),
        });
    }
    Ok(outcome)
}

/// Replays a transcript in which one thing was changed, for each of its frames: the check must fail each time.
async fn notices_changes() -> Result<(), String> {
    let scenario = scenario::load(&root(), &[SELF_TEST.to_owned()])?;
    let scenario = scenario.first().ok_or("the scenario is gone")?;
    let good = recorded(SELF_TEST)?;
    for place in 0..good.len() {
        let mut changed = good.clone();
        let Some(entry) = changed.get_mut(place).filter(|entry| entry.is_frame()) else {
            continue;
        };
        let key = entry.key.clone();
        let mut is_changed = false;
        crate::value::replace_scalars(&mut entry.value, "", &mut |key, value| {
            // These are not compared as they are.
            let is_free = matches!(key, "request_id" | "message" | "server_version");
            if let (Some(number), false) = (value.as_u64(), is_free || is_changed) {
                *value = (number + 1).into();
                is_changed = true;
            }
        });
        // A frame of the client that never comes would be waited for; what its reply says is changed at other places.
        let is_received = matches!(entry.parts(), Some((_, Direction::Received, _)));
        if !is_changed || !is_received {
            continue;
        }
        if check_against(scenario, changed, &good).await.is_ok() {
            return Err(format!("a change of entry {place}, {key}, was not noticed"));
        }
    }
    Ok(())
}

/// Transcripts of scenarios that do not exist any more, when all are checked.
fn orphans(scenarios: &[Scenario]) -> Result<Vec<Done>, String> {
    let all = scenario::load(&root(), &[])?;
    if all.len() != scenarios.len() {
        return Ok(Vec::new());
    }
    let mut orphans = Vec::new();
    let themes =
        std::fs::read_dir(root().join("transcripts")).map_err(|error| error.to_string())?;
    for theme in themes.flatten().filter(|theme| theme.path().is_dir()) {
        for file in std::fs::read_dir(theme.path())
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = format!(
                "{}/{}",
                theme.file_name().to_string_lossy(),
                file.file_name().to_string_lossy().trim_end_matches(".yaml")
            );
            if all.iter().all(|scenario| scenario.name != name) {
                orphans.push(Done {
                    name,
                    problem: Some("a transcript without a scenario".to_owned()),
                });
            }
        }
    }
    Ok(orphans)
}

async fn check_one(scenario: &Scenario) -> Result<(), String> {
    let recorded = recorded(&scenario.name)?;
    check_against(scenario, recorded.clone(), &recorded).await
}

/// Runs a scenario through the gateway against a replay, and compares with what should happen.
async fn check_against(
    scenario: &Scenario,
    replayed: Vec<Entry>,
    wanted: &[Entry],
) -> Result<(), String> {
    let brokers = match scenario.target {
        Kind::Standalone => 1,
        Kind::Cluster => 2,
    };
    let replay = Replay::start(replayed, brokers)?;
    let gateway = RunningGateway::start(&replay.brokers())?;
    let environment = Environment::of_replay(&replay, &gateway);
    let (entries, _) = Runner::run(scenario, &environment, "~".to_owned()).await;
    replay.settled().await;
    let problems = replay.problems();
    gateway.stop().await;
    let mut text = difference(wanted, &entries);
    if !problems.is_empty() {
        text.push_str("to the broker:\n");
        text.push_str(&problems.join("\n"));
    }
    if text.is_empty() { Ok(()) } else { Err(text) }
}

/// The unlisted differences of two transcripts.
pub(crate) fn difference(recorded: &[Entry], entries: &[Entry]) -> String {
    let (recorded, entries) = level_both(recorded, entries);
    diff(&transcript::print(&recorded), &transcript::print(&entries))
}

async fn record(scenarios: &[Scenario], arguments: &Arguments) -> Result<Vec<Done>, String> {
    let runs = run_against(&[Target::Apache], scenarios, arguments.jobs.unwrap_or(4)).await?;
    let mut outcome = Vec::new();
    for (scenario, (entries, result)) in scenarios.iter().zip(runs.into_iter().flatten()) {
        let text = transcript::print(&entries);
        let problem = match result {
            Err(_) => Some(text),
            Ok(()) => {
                if arguments.verb == Verb::Show {
                    println!("==== {}\n{text}", scenario.name);
                } else {
                    write(scenario, &text)?;
                }
                None
            }
        };
        outcome.push(Done {
            name: scenario.name.clone(),
            problem,
        });
    }
    Ok(outcome)
}

async fn drift(scenarios: &[Scenario], arguments: &Arguments) -> Result<Vec<Done>, String> {
    let default = vec![Target::Apache, Target::Gateway];
    let targets = if arguments.targets.is_empty() {
        &default
    } else {
        &arguments.targets
    };
    let jobs = arguments.jobs.unwrap_or(4);
    let mut outcome = Vec::new();
    for is_direct in [false, true] {
        let mut scenarios = scenarios.to_vec();
        scenarios.retain(|scenario| scenario.is_direct == is_direct);
        let mut targets = targets.clone();
        targets.retain(|target| !(is_direct && *target == Target::Gateway));
        let runs = run_against(&targets, &scenarios, jobs).await?;
        for (target, runs) in targets.iter().zip(runs) {
            for (scenario, (entries, _)) in scenarios.iter().zip(runs) {
                let text = difference(&recorded(&scenario.name)?, &entries);
                outcome.push(Done {
                    name: format!("{} {target:?}", scenario.name),
                    problem: (!text.is_empty()).then_some(text),
                });
            }
        }
    }
    Ok(outcome)
}

async fn compare(scenarios: &[Scenario], arguments: &Arguments) -> Result<Vec<Done>, String> {
    let (first, second) = match arguments.targets.as_slice() {
        [] => (Target::Apache, Target::Gateway),
        [first, second] => (first.clone(), second.clone()),
        _ => return Err("--targets takes two".to_owned()),
    };
    let mut scenarios = scenarios.to_vec();
    if [&first, &second].contains(&&Target::Gateway) {
        scenarios.retain(|scenario| !scenario.is_direct);
    }
    let mut runs = run_against(&[first, second], &scenarios, arguments.jobs.unwrap_or(4))
        .await?
        .into_iter();
    let (first, second) = (
        runs.next().unwrap_or_default(),
        runs.next().unwrap_or_default(),
    );
    let runs = scenarios.iter().zip(first.into_iter().zip(second));
    Ok(runs
        .map(|(scenario, ((first, _), (second, _)))| {
            let text = difference(&first, &second);
            Done {
                name: scenario.name.clone(),
                problem: (!text.is_empty()).then_some(text),
            }
        })
        .collect())
}

/// Runs scenarios against targets, one target after the other; one server is started for all that need the same. By target, the
/// runs are in the order of the scenarios.
async fn run_against(
    targets: &[Target],
    scenarios: &[Scenario],
    jobs: usize,
) -> Result<Vec<Vec<Run>>, String> {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (place, scenario) in scenarios.iter().enumerate() {
        let needs = (scenario.target, scenario.settings.clone());
        groups.entry(needs).or_default().push(place);
    }
    let mut runs: Vec<BTreeMap<usize, Run>> = targets.iter().map(|_| BTreeMap::new()).collect();
    for ((kind, settings), places) in groups {
        let group: Vec<(usize, Scenario)> = places
            .into_iter()
            .map(|place| (place, scenarios[place].clone()))
            .collect();
        let mut server = None;
        for (target, runs) in targets.iter().zip(&mut runs) {
            let environment = match target {
                Target::Address { binary, web } => Environment::direct(vec![Broker {
                    name: "broker0".to_owned(),
                    address: binary.clone(),
                    web: web.clone(),
                }]),
                Target::Apache | Target::Gateway => {
                    if server.is_none() {
                        server = Some(Peers::start(kind, settings.clone()).await?);
                    }
                    Environment::of_peers(server.as_ref().expect("it was started"))
                }
            };
            if *target == Target::Gateway {
                let gateway = RunningGateway::start(&environment.brokers)?;
                let environment = Arc::new(environment.behind(&gateway));
                runs.extend(run_group(environment, group.clone(), jobs).await);
                gateway.stop().await;
            } else {
                runs.extend(run_group(Arc::new(environment), group.clone(), jobs).await);
            }
        }
    }
    Ok(runs
        .into_iter()
        .map(|runs| runs.into_values().collect())
        .collect())
}

/// Runs scenarios in one environment: several at a time, those that disturb others one by one at the end.
async fn run_group(
    environment: Arc<Environment>,
    group: Vec<(usize, Scenario)>,
    jobs: usize,
) -> Vec<(usize, Run)> {
    let (alone, beside): (Vec<_>, Vec<_>) = group
        .into_iter()
        .partition(|(_, scenario)| scenario.runs_alone());
    let permits = Arc::new(Semaphore::new(jobs));
    let mut tasks = JoinSet::new();
    for (place, scenario) in beside {
        let (environment, permits) = (Arc::clone(&environment), Arc::clone(&permits));
        tasks.spawn(async move {
            let _permit = permits.acquire_owned().await;
            (
                place,
                Runner::run(&scenario, &environment, token(place)).await,
            )
        });
    }
    let mut runs = tasks.join_all().await;
    for (place, scenario) in alone {
        let run = Runner::run(&scenario, &environment, token(place)).await;
        runs.push((place, run));
    }
    runs
}

/// What makes the names of a run its own, also on a server that saw runs before.
pub(crate) fn token(place: usize) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("r{:x}x{place}x{count}z", now_millis() & 0xff_ffff)
}

fn recorded(name: &str) -> Result<Vec<Entry>, String> {
    let path = transcript_path(name);
    let text = std::fs::read_to_string(&path)
        .map_err(|_| "there is no transcript; record it".to_owned())?;
    transcript::parse(&text)
}

fn write(scenario: &Scenario, text: &str) -> Result<(), String> {
    let path = transcript_path(&scenario.name);
    let folder = path.parent().expect("a file in a theme's folder");
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let text = format!(
        "# Recorded from Apache Pulsar 4.0.8, {}. See tests/oracle/README.md.\n{text}",
        scenario.target.as_str()
    );
    std::fs::write(path, text).map_err(|error| error.to_string())
}

fn transcript_path(name: &str) -> PathBuf {
    root().join("transcripts").join(format!("{name}.yaml"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle")
}

/// The scenario that the harness is tested with.
const SELF_TEST: &str = "producer/batch";
