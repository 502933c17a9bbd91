//! Several targets under the same load, in turn: how much better or worse they are than the first.
//!
//! Owns the order of the runs and the arithmetic. Rounds are interleaved and each begins with another target, so that whatever
//! changes on the machine over time, and whatever one run leaves to the next, does not always hit the same target.

use std::fmt;

use serde::Serialize;

use super::report::RunReport;

/// The order in which `targets` targets run in a round: each round begins one later.
pub fn order(round: usize, targets: usize) -> impl Iterator<Item = usize> {
    (0..targets).map(move |place| (round + place) % targets.max(1))
}

/// All runs of a comparison and what they say.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The targets; ratios are to the first.
    pub targets: Vec<TargetRuns>,
    /// Each metric of each target but the first, against the first.
    pub ratios: Vec<MetricRatio>,
}

/// A target and its runs, one per round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TargetRuns {
    /// The name that the user gave it.
    pub name: String,
    /// Its service URL.
    pub url: String,
    /// Its runs, in the order of the rounds.
    pub runs: Vec<RunReport>,
}

/// A metric of a target, divided by that of the first target in the same round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricRatio {
    /// The target.
    pub target: String,
    /// The metric, by its name in the report.
    pub metric: &'static str,
    /// Rounds in which both have the metric.
    pub rounds: usize,
    /// The middle one of the rounds' ratios, or the mean of the middle two.
    pub median: f64,
    /// The least ratio.
    pub min: f64,
    /// The greatest ratio.
    pub max: f64,
}

impl Comparison {
    /// Compares the runs of the targets round by round.
    #[must_use]
    pub fn new(targets: Vec<TargetRuns>) -> Self {
        let mut ratios = Vec::new();
        if let Some((first, others)) = targets.split_first() {
            for target in others {
                for (metric, of) in METRICS {
                    ratios.extend(metric_ratio(first, target, metric, *of));
                }
            }
        }
        Self { targets, ratios }
    }
}

/// A metric of a run; `None` where it was not measured.
type Metric = fn(&RunReport) -> Option<f64>;

fn metric_ratio(
    first: &TargetRuns,
    target: &TargetRuns,
    metric: &'static str,
    of: Metric,
) -> Option<MetricRatio> {
    let mut ratios: Vec<f64> = first
        .runs
        .iter()
        .zip(&target.runs)
        .filter_map(|(first, run)| {
            let base = of(first).filter(|base| *base > 0.0)?;
            Some(of(run)? / base)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let middle = |at: usize| ratios.get(at).copied();
    let upper = middle(ratios.len() / 2)?;
    let lower = middle((ratios.len() - 1) / 2)?;
    Some(MetricRatio {
        target: target.name.clone(),
        metric,
        rounds: ratios.len(),
        median: f64::midpoint(lower, upper),
        min: ratios.first().copied()?,
        max: ratios.last().copied()?,
    })
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.targets.first().map_or("", |target| &target.name);
        for target in &self.targets {
            let sum = |of: fn(&RunReport) -> u64| target.runs.iter().map(of).sum::<u64>();
            let (failed, unanswered) = (sum(|run| run.failed), sum(|run| run.unanswered));
            if failed > 0 || unanswered > 0 {
                let name = &target.name;
                writeln!(
                    f,
                    "{name}: {failed} messages failed, {unanswered} were never answered"
                )?;
            }
        }
        let mut shown = None;
        for ratio in &self.ratios {
            if shown != Some(&ratio.target) {
                if shown.is_some() {
                    writeln!(f)?;
                }
                writeln!(
                    f,
                    "{} / {first}, over {} rounds",
                    ratio.target, ratio.rounds
                )?;
                writeln!(
                    f,
                    "  {:<32} {:>8} {:>8} {:>8}",
                    "metric", "median", "min", "max"
                )?;
                shown = Some(&ratio.target);
            }
            writeln!(
                f,
                "  {:<32} {:>8.3} {:>8.3} {:>8.3}",
                ratio.metric, ratio.median, ratio.min, ratio.max
            )?;
        }
        Ok(())
    }
}

/// The metrics that are compared, by their names in the report.
const METRICS: &[(&str, Metric)] = &[
    ("messages_per_second", |run| Some(run.messages_per_second)),
    ("megabytes_per_second", |run| Some(run.megabytes_per_second)),
    ("latency.mean_ms", |run| Some(run.latency.mean_ms)),
    ("latency.p50_ms", |run| Some(run.latency.p50_ms)),
    ("latency.p95_ms", |run| Some(run.latency.p95_ms)),
    ("latency.p99_ms", |run| Some(run.latency.p99_ms)),
    ("latency.p99_9_ms", |run| Some(run.latency.p99_9_ms)),
    ("latency.p99_99_ms", |run| Some(run.latency.p99_99_ms)),
    ("latency.max_ms", |run| Some(run.latency.max_ms)),
    ("generator.messages_per_cpu_second", |run| {
        Some(run.generator.messages_per_cpu_second)
    }),
    ("watched.messages_per_cpu_second", |run| {
        watched(run, |cpu, _| cpu).and_then(|cpu| super::watch::per_second(run.messages, cpu))
    }),
    ("watched.peak_rss_bytes", |run| watched(run, |_, peak| peak)),
];

/// A sum over the processes of a target; `None` when there are none or one has ended.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn watched(run: &RunReport, which: fn(f64, f64) -> f64) -> Option<f64> {
    if run.watched.is_empty() {
        return None;
    }
    let each = run.watched.iter().map(|process| {
        let peak = process.peak_rss_bytes? as f64;
        Some(which(process.cpu_seconds?, peak))
    });
    each.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::measure::Measured;
    use crate::perf::report::{LatencyFrom, LoadKind, RunMeasures};
    use crate::perf::watch::ProcessReport;

    fn run(messages: u64, cpu: Option<f64>) -> RunReport {
        let measured = Measured {
            messages,
            ..Measured::default()
        };
        let watched = cpu.map(|cpu| ProcessReport {
            pid: 1,
            cpu_seconds: Some(cpu),
            messages_per_cpu_second: None,
            peak_rss_bytes: Some(100),
        });
        RunReport::new(RunMeasures {
            kind: LoadKind::Produce,
            latency_from: LatencyFrom::SendCall,
            interrupted: false,
            seconds: 1.0,
            measured: &measured,
            cpu_seconds: 1.0,
            watched: watched.into_iter().collect(),
        })
    }

    fn target(name: &str, runs: Vec<RunReport>) -> TargetRuns {
        TargetRuns {
            name: name.to_owned(),
            url: format!("pulsar://{name}"),
            runs,
        }
    }

    #[test]
    fn every_target_begins_and_ends_a_round() {
        let rounds: Vec<Vec<usize>> = (0..4).map(|round| order(round, 3).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
        assert_eq!(order(5, 1).collect::<Vec<_>>(), [0]);
        assert_eq!(order(5, 0).count(), 0);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let comparison = Comparison::new(vec![
            target(
                "a",
                vec![
                    run(100, None),
                    run(200, None),
                    run(50, None),
                    run(100, None),
                ],
            ),
            target(
                "b",
                vec![
                    run(200, None),
                    run(200, None),
                    run(150, None),
                    run(50, None),
                ],
            ),
        ]);
        let rate = &comparison.ratios[0];
        assert_eq!((rate.metric, rate.rounds), ("messages_per_second", 4));
        assert_eq!((rate.median, rate.min, rate.max), (1.5, 0.5, 3.0));
        // Nothing took any time, so there is nothing to compare.
        assert!(
            !comparison
                .ratios
                .iter()
                .any(|ratio| ratio.metric == "latency.p50_ms")
        );
        assert!(
            !comparison
                .ratios
                .iter()
                .any(|ratio| ratio.metric.starts_with("watched"))
        );
    }

    #[test]
    fn what_was_lost_is_told_beside_the_ratios() {
        let mut dead = run(100, None);
        dead.unanswered = 7;
        let comparison = Comparison::new(vec![
            target("a", vec![run(100, None), run(100, None)]),
            target("b", vec![dead.clone(), dead]),
        ]);
        let text = comparison.to_string();
        assert!(
            text.starts_with("b: 0 messages failed, 14 were never answered\n"),
            "{text}"
        );
    }

    #[test]
    fn processes_under_test_are_compared_where_they_are_watched() {
        let comparison = Comparison::new(vec![
            target("a", vec![run(100, Some(1.0))]),
            target("b", vec![run(100, Some(2.0))]),
            target("c", vec![run(100, None)]),
        ]);
        let of = |target: &str| {
            let found = comparison.ratios.iter().find(|ratio| {
                ratio.target == target && ratio.metric == "watched.messages_per_cpu_second"
            });
            found.map(|ratio| ratio.median)
        };
        assert_eq!((of("b"), of("c")), (Some(0.5), None));
        let text = comparison.to_string();
        assert!(text.contains("b / a, over 1 rounds"), "{text}");
        assert!(text.contains("c / a, over 1 rounds"), "{text}");
    }
}
