//! What it costs to decode and encode the hot commands and message metadata, by hand and by generated code, in one run.
//!
//! `cargo bench --bench codec -- [--rounds N] [--millis N] [--case NAME] [--json]`. Rounds of the contestants take turns, and figures
//! are medians over rounds: nanoseconds per operation, and how many times as long the generated code takes. `library`
//! is prost over the whole `BaseCommand` with boxed fields, which checks no required field; `generated` is the way of
//! the cold commands here: one sub-message, required fields checked. "Encode" starts from a command that is there;
//! "publish", "push" and "acknowledge" start from numbers, so that of the library it takes the boxes as well. Without `--bench` (as in `cargo test --benches`)
//! everything runs for a moment.

#![expect(
    clippy::print_stdout,
    reason = "figures are the product of a benchmark"
)]

mod cases;

use std::hint::black_box;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;

use crate::cases::{Case, cases};

#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds of each contestant.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Length of one round in milliseconds.
    #[arg(long, default_value_t = 20)]
    millis: u64,
    /// Only cases whose name contains this; may be given several times.
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    // Anything but `cargo bench` wants to know whether this works and not how fast it is.
    let arguments = if std::env::args().any(|argument| argument == "--bench") {
        Arguments::parse()
    } else {
        Arguments {
            rounds: 1,
            millis: 1,
            cases: Vec::new(),
            json: false,
            bench: false,
        }
    };
    let wanted = |case: &&Case| {
        let mut names = arguments.cases.iter();
        arguments.cases.is_empty() || names.any(|name| case.name.contains(name))
    };
    let results: Vec<Measured> = cases()
        .iter()
        .filter(wanted)
        .map(|case| measure(case, &arguments))
        .collect();
    if arguments.json {
        let results: Vec<_> = results.iter().map(Measured::to_json).collect();
        println!("{:#}", json!({ "cases": results }));
    } else {
        println!(
            "{:<40}{:>10}{:>12}{:>10}{:>14}{:>12}",
            "ns per operation", "by hand", "generated", "library", "generated/hand", "library/hand"
        );
        for measured in results {
            println!("{}", measured.to_line());
        }
    }
}

/// Medians of a case in nanoseconds per operation.
struct Measured {
    name: String,
    by_hand: f64,
    generated: Option<f64>,
    library: f64,
}

impl Measured {
    fn to_line(&self) -> String {
        let ratio = |other: f64| other / self.by_hand;
        let shown = |figure: Option<f64>| figure.map_or("-".to_owned(), |f| format!("{f:.1}"));
        format!(
            "{:<40}{:>10.1}{:>12}{:>10.1}{:>14}{:>12.1}",
            self.name,
            self.by_hand,
            shown(self.generated),
            self.library,
            shown(self.generated.map(ratio)),
            ratio(self.library)
        )
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "name": self.name,
            "by_hand_ns": self.by_hand,
            "generated_ns": self.generated,
            "library_ns": self.library,
        })
    }
}

fn measure(case: &Case, arguments: &Arguments) -> Measured {
    let length = Duration::from_millis(arguments.millis);
    let (mut by_hand, mut generated, mut library) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        by_hand.push(round(case.by_hand.as_ref(), length));
        if let Some(work) = &case.generated {
            generated.push(round(work.as_ref(), length));
        }
        library.push(round(case.library.as_ref(), length));
    }
    Measured {
        name: case.name.clone(),
        by_hand: median(by_hand).unwrap_or_default(),
        generated: median(generated),
        library: median(library).unwrap_or_default(),
    }
}

/// Nanoseconds per operation while `work`, which does as many operations as it is told, runs for so long.
fn round(work: &dyn Fn(u32), length: Duration) -> f64 {
    let (begin, mut operations) = (Instant::now(), 0.0);
    loop {
        work(black_box(OPERATIONS));
        operations += f64::from(OPERATIONS);
        let taken = begin.elapsed();
        if taken >= length {
            return taken.as_secs_f64() * 1e9 / operations;
        }
    }
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// Operations between two looks at the clock.
const OPERATIONS: u32 = 1000;
