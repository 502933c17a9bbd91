//! Differential fuzzing: random sequences of commands against Apache Pulsar, direct and behind the gateway.
//!
//! Both runs of a sequence go to one server at the same time, on topics of their own. Brokers have races, too: a difference
//! counts when it comes again each time while runs against the same target agree.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::commands::{difference, token};
use crate::environment::{Environment, Peers, RunningGateway};
use crate::runner::Runner;
use crate::scenario::{self, Kind, Scenario};
use crate::sequence::Sequence;
use crate::transcript::Entry;
use crate::value::flow;

/// How much is done.
#[derive(Debug, Clone)]
pub(crate) struct Effort {
    pub(crate) sequences: u64,
    pub(crate) seed: u64,
    pub(crate) jobs: usize,
}

/// What became of a sequence.
enum Verdict {
    Same,
    /// The server itself does not do the same each time.
    Chance,
    /// No two runs agree.
    Unclear(String),
    Differs {
        sequence: Sequence,
        text: String,
    },
}

/// Runs the sequences of seeds from `seed` on; false when one differs.
pub(crate) async fn run(effort: Effort) -> Result<bool, String> {
    let began = Instant::now();
    let mut figures: BTreeMap<&str, u64> = BTreeMap::new();
    let mut differing = 0_u64;
    let mut entries = 0_u64;
    let end = effort.seed + effort.sequences;
    let mut seed = effort.seed;
    while seed < end {
        // Topics stay in the memory of a server, so that one takes a part only.
        let part = seed..end.min(seed + SEQUENCES_PER_SERVER);
        seed = part.end;
        let peers = Peers::start(Kind::Standalone, settings()).await?;
        let gateway = RunningGateway::start(peers.brokers())?;
        let targets = Arc::new((
            Environment::of_peers(&peers),
            Environment::of_peers(&peers).behind(&gateway),
        ));
        // A broker that owns no bundle yet refuses producers.
        for place in 0..BUNDLES * 8 {
            let topic = format!("persistent://public/default/warm-{place}");
            let _ = targets.0.look_up(&topic).await;
        }
        // The first sequences wait for a cold machine; what they show is not looked at.
        let warm_up = (0..WARM_UP).map(|place| judge(u64::MAX - place, &targets));
        for one in warm_up {
            one.await;
        }
        let permits = Arc::new(Semaphore::new(effort.jobs));
        let mut tasks = JoinSet::new();
        for seed in part {
            let (targets, permits) = (Arc::clone(&targets), Arc::clone(&permits));
            tasks.spawn(async move {
                let _permit = permits.acquire_owned().await;
                judge(seed, &targets).await
            });
        }
        while let Some(done) = tasks.join_next().await {
            let (seed, seen, verdict) = done.map_err(|error| error.to_string())?;
            entries += seen;
            let kind = match verdict {
                Verdict::Same => "same",
                Verdict::Chance => "chance",
                Verdict::Unclear(text) => {
                    println!("seed {seed} is unclear:\n{text}");
                    "unclear"
                }
                Verdict::Differs { sequence, text } => {
                    differing += 1;
                    println!("seed {seed} differs:\n{text}");
                    if differing <= SHRUNK {
                        let sequence = shrink(sequence, &targets).await;
                        println!("{}", print(seed, &sequence));
                    }
                    "different"
                }
            };
            *figures.entry(kind).or_default() += 1;
            let total: u64 = figures.values().sum();
            if total.is_multiple_of(250) {
                println!("{total} sequences, {figures:?}, {:.0?}", began.elapsed());
            }
        }
        gateway.stop().await;
    }
    println!(
        "{} sequences, {entries} frames and events compared, {differing} differences, {figures:?}, {:.0?}",
        effort.sequences,
        began.elapsed()
    );
    Ok(differing == 0)
}

/// The two environments.
type Targets = (Environment, Environment);

async fn judge(seed: u64, targets: &Targets) -> (u64, u64, Verdict) {
    let sequence = Sequence::random(seed);
    let (direct, gateway) = both(&sequence, targets).await;
    let seen = direct.len() as u64;
    let text = difference(&direct, &gateway);
    if text.is_empty() {
        return (seed, seen, Verdict::Same);
    }
    let verdict = match confirm(&sequence, targets, (direct, gateway)).await {
        Confirmed::Same => Verdict::Chance,
        Confirmed::Different => Verdict::Differs { sequence, text },
        Confirmed::Unclear => Verdict::Unclear(text),
    };
    (seed, seen, verdict)
}

/// What further runs of a sequence say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confirmed {
    /// A run against one target was equal to a run against the other.
    Same,
    /// All runs against one target were equal, and none was as those against the other.
    Different,
    /// Each run was another.
    Unclear,
}

async fn confirm(
    sequence: &Sequence,
    targets: &Targets,
    first: (Vec<Entry>, Vec<Entry>),
) -> Confirmed {
    let (mut direct, mut gateway) = (vec![first.0], vec![first.1]);
    for _ in 0..CONFIRMATIONS {
        let runs = both(sequence, targets).await;
        direct.push(runs.0);
        gateway.push(runs.1);
        let are_same = |one: &[Entry], other: &[Entry]| difference(one, other).is_empty();
        if direct
            .iter()
            .any(|direct| gateway.iter().any(|gateway| are_same(direct, gateway)))
        {
            return Confirmed::Same;
        }
    }
    let are_one = |runs: &[Vec<Entry>]| {
        runs.windows(2)
            .all(|pair| difference(&pair[0], &pair[1]).is_empty())
    };
    if are_one(&direct) && are_one(&gateway) {
        Confirmed::Different
    } else {
        Confirmed::Unclear
    }
}

async fn both(sequence: &Sequence, (direct, gateway): &Targets) -> (Vec<Entry>, Vec<Entry>) {
    tokio::join!(one(sequence, direct), one(sequence, gateway))
}

async fn one(sequence: &Sequence, environment: &Environment) -> Vec<Entry> {
    let scenario = Scenario {
        name: "fuzz".to_owned(),
        target: Kind::Standalone,
        settings: Vec::new(),
        looks_up: false,
        is_direct: false,
        steps: scenario::steps(&sequence.steps()).expect("a sequence has good steps"),
    };
    let (entries, _) = Runner::run(&scenario, environment, token(0)).await;
    entries
}

/// Leaves operations out as long as the difference stays.
async fn shrink(mut sequence: Sequence, targets: &Targets) -> Sequence {
    let began = Instant::now();
    let mut size = sequence.operations.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        while start < sequence.operations.len() && began.elapsed() < SHRINK_TIME {
            let mut shorter = sequence.clone();
            let end = (start + size).min(shorter.operations.len());
            shorter.operations.drain(start..end);
            let (direct, gateway) = both(&shorter, targets).await;
            let differs = !difference(&direct, &gateway).is_empty()
                && confirm(&shorter, targets, (direct, gateway)).await == Confirmed::Different;
            if differs {
                sequence = shorter;
            } else {
                start += size;
            }
        }
        size /= 2;
    }
    sequence
}

/// The sequence as the text of a scenario.
fn print(seed: u64, sequence: &Sequence) -> String {
    let mut text = format!("summary: Found by fuzzing with seed {seed}.\nlookup: false\nsteps:\n");
    for step in crate::value::list(&sequence.steps()) {
        let options = step.as_mapping().cloned().unwrap_or_default();
        for (place, (key, value)) in options.iter().enumerate() {
            let dash = if place == 0 { '-' } else { ' ' };
            text.push_str(&format!(
                "{dash} {}: {}\n",
                scenario::plain(key),
                flow(value)
            ));
        }
    }
    text
}

/// The active consumer of a failover subscription changes at once, not a second later.
fn settings() -> Vec<(String, String)> {
    let delay = "activeConsumerFailoverDelayTimeMillis";
    vec![(delay.to_owned(), "0".to_owned())]
}

/// How often a difference must come again.
const CONFIRMATIONS: usize = 3;
/// How many differing sequences are shrunk: one defect shows in many.
const SHRUNK: u64 = 5;
/// How long that may take for each.
const SHRINK_TIME: Duration = Duration::from_secs(60);
/// How many sequences a server begins with.
const WARM_UP: u64 = 10;
/// How many sequences a server is given.
const SEQUENCES_PER_SERVER: u64 = 1500;
/// Bundles of public/default.
const BUNDLES: usize = 4;
