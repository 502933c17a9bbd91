//! How fast a relay is, beside HAProxy and beside no relay at all, all in one interleaved run.
//!
//! `cargo bench --bench relay -- [--seconds N] [--rounds N] [--case NAME]... [--splice] [--baseline BINARY] [--json]`.
//! Without `--bench` (as in `cargo test --benches`) each case runs for a moment through a gateway in this process, and only
//! what must hold is checked. Client and broker are one thread each, so on two cores they share them with the relay: compare
//! relays within a run, and CPU time rather than throughput. Start at [`measure`].

#![expect(
    clippy::print_stdout,
    reason = "figures are the product of a benchmark"
)]

mod broker;
mod cases;
mod frames;
mod memory;
mod pipe;
mod relays;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::cases::{CASES, Case};
use crate::relays::{Kind, Relay};
use crate::report::{Rounds, Sample};

#[derive(Debug, Parser)]
struct Arguments {
    /// Length of one run of one case through one relay.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Runs of each case through each relay, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only this case; may be repeated. `stalled` and `idle` are about memory.
    #[arg(long)]
    case: Vec<String>,
    /// Another gateway binary to compare with.
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Measure HAProxy with splice(2) as well.
    #[arg(long)]
    splice: bool,
    /// Print one JSON document instead of tables.
    #[arg(long)]
    json: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Anything but `cargo bench` wants to know whether this works and not how fast it is.
    if !std::env::args().any(|argument| argument == "--bench") {
        return runtime.block_on(check());
    }
    runtime.block_on(measure(&Arguments::parse()))
}

/// Runs every case for a moment, without other processes.
async fn check() -> anyhow::Result<()> {
    let broker = Broker::start()?;
    for kind in [Kind::Direct, Kind::InProcess] {
        let relay = kind.start(broker.address)?;
        for case in CASES {
            let time = Duration::from_millis(50);
            let outcome = case.run(&relay, &broker, time).await;
            outcome.with_context(|| format!("{} through {}", case.name, kind.name()))?;
        }
        memory::idle(&relay, &broker, 20).await?;
        let held = memory::stalled(&relay, &broker, 2).await?;
        println!("{}: {held:?}", kind.name());
        ensure!(
            held.upward.max(held.downward) <= HELD_MAX,
            "{} holds {held:?}",
            kind.name()
        );
    }
    println!("all cases run");
    Ok(())
}

/// Measures what the arguments ask for.
async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let known = CASES.iter().map(|case| case.name).chain([STALLED, IDLE]);
    let known: Vec<&str> = known.collect();
    for name in &arguments.case {
        ensure!(
            known.contains(&name.as_str()),
            "no case {name}; there are {known:?}"
        );
    }
    let wanted = |name: &str| arguments.case.is_empty() || arguments.case.iter().any(|n| n == name);
    let mut run = Run {
        broker: Broker::start()?,
        kinds: kinds(arguments),
        arguments,
        document: json!({}),
    };
    for case in CASES.into_iter().filter(|case| wanted(case.name)) {
        let rounds = run.rounds(case).await?;
        run.show(report::table(case.name, &rounds));
        run.add("cases", report::case_json(case.name, &rounds));
    }
    if wanted(STALLED) {
        run.stalled().await?;
    }
    if wanted(IDLE) {
        run.idle().await?;
    }
    if arguments.json {
        println!("{:#}", run.document);
    }
    Ok(())
}

/// The relays that are asked for and can be had.
fn kinds(arguments: &Arguments) -> Vec<Kind> {
    let mut kinds = vec![Kind::Direct, Kind::HaProxy { splice: false }];
    if arguments.splice {
        kinds.push(Kind::HaProxy { splice: true });
    }
    if let Some(binary) = arguments.baseline.clone() {
        let name = "gateway-baseline";
        kinds.push(Kind::Gateway { name, binary });
    }
    kinds.push(Kind::Gateway {
        name: "gateway",
        binary: env!("CARGO_BIN_EXE_pulsegate").into(),
    });
    kinds.retain(|kind| match kind.missing() {
        None => true,
        Some(why) => {
            if !arguments.json {
                println!("SKIPPED {}: {why}", kind.name());
            }
            false
        }
    });
    kinds
}

struct Run<'a> {
    broker: Broker,
    kinds: Vec<Kind>,
    arguments: &'a Arguments,
    /// What `--json` prints.
    document: Value,
}

impl Run<'_> {
    /// All rounds of a case. Each relay is started afresh for the case, and who begins changes from round to round.
    async fn rounds(&self, case: Case) -> anyhow::Result<Rounds> {
        let relays: Vec<Relay> = self
            .kinds
            .iter()
            .map(|kind| kind.start(self.broker.address))
            .collect::<Result<_, _>>()?;
        for relay in &relays {
            case.run(relay, &self.broker, WARM_UP).await?;
        }
        let mut rounds = Rounds::new();
        for round in 0..self.arguments.rounds {
            let mut samples: Vec<Option<Sample>> = vec![None; relays.len()];
            for turn in 0..relays.len() {
                let at = (turn + round) % relays.len();
                let (Some(relay), Some(kind)) = (relays.get(at), self.kinds.get(at)) else {
                    continue;
                };
                let sample = self.sample(case, kind, relay).await;
                let sample =
                    sample.with_context(|| format!("{} through {}", case.name, kind.name()))?;
                if let Some(place) = samples.get_mut(at) {
                    *place = Some(sample);
                }
            }
            rounds.push(samples.into_iter().flatten().collect());
        }
        Ok(rounds)
    }

    async fn sample(&self, case: Case, kind: &Kind, relay: &Relay) -> anyhow::Result<Sample> {
        let time = Duration::from_secs_f64(self.arguments.seconds);
        let before = relay.cpu_seconds()?;
        let outcome = case.run(relay, &self.broker, time).await?;
        Ok(Sample {
            relay: kind.name(),
            outcome,
            cpu_seconds: relay.cpu_seconds()? - before,
            peak_rss_kib: relay.peak_rss_kib()?,
        })
    }

    async fn stalled(&mut self) -> anyhow::Result<()> {
        self.show("stalled: both sides send, nobody reads\n".to_owned());
        for kind in self.kinds.clone() {
            let relay = kind.start(self.broker.address)?;
            let held = memory::stalled(&relay, &self.broker, STALLED_CONNECTIONS).await?;
            self.show(report::held_line(kind.name(), STALLED_CONNECTIONS, held));
            let held = report::held_json(kind.name(), STALLED_CONNECTIONS, held);
            self.add(STALLED, held);
        }
        Ok(())
    }

    async fn idle(&mut self) -> anyhow::Result<()> {
        self.show(format!(
            "idle: {IDLE_CONNECTIONS} connections with a silent producer each\n"
        ));
        for kind in self.kinds.clone() {
            let relay = kind.start(self.broker.address)?;
            if relay.pid().is_none() {
                continue;
            }
            let kib = memory::idle(&relay, &self.broker, IDLE_CONNECTIONS).await?;
            self.show(format!(
                "  {:<18}{kib:.2} KiB of RSS per pair\n",
                kind.name()
            ));
            self.add(IDLE, json!({"relay": kind.name(), "kib_per_pair": kib}));
        }
        Ok(())
    }

    fn show(&self, text: String) {
        if !self.arguments.json {
            print!("{text}");
        }
    }

    fn add(&mut self, list: &str, value: Value) {
        if let Some(document) = self.document.as_object_mut()
            && let Some(list) = document
                .entry(list)
                .or_insert_with(|| json!([]))
                .as_array_mut()
        {
            list.push(value);
        }
    }
}

const STALLED: &str = "stalled";
const IDLE: &str = "idle";
const STALLED_CONNECTIONS: usize = 32;
const IDLE_CONNECTIONS: usize = 2_000;
const WARM_UP: Duration = Duration::from_millis(300);
/// Unsent bytes that a gateway may hold in each direction of a connection.
const HELD_MAX: i64 = 128 * 1024;
