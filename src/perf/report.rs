//! What is told of a run: while it goes on and at its end.
//!
//! Owns wording and rounding; measures nothing.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::latency::LatencySummary;
use super::measure::Measured;
use super::watch::{ProcessReport, per_second};

/// What the load was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadKind {
    /// Messages were published.
    Produce,
    /// Messages were received through subscriptions.
    Consume,
    /// Messages were received by readers.
    Read,
}

impl LoadKind {
    fn done(self) -> &'static str {
        match self {
            Self::Produce => "acknowledged",
            Self::Consume => "received",
            Self::Read => "read",
        }
    }
}

/// From when on the latency of a message counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyFrom {
    /// From the time at which the rate wants the message sent, to its receipt.
    IntendedSend,
    /// From the call that sent the message, to its receipt: there is no intended time at maximum rate.
    SendCall,
    /// From the publish time in the message, which the clock of its publisher gave in milliseconds, to its arrival.
    PublishTime,
}

impl fmt::Display for LatencyFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IntendedSend => "from the intended send time to the receipt",
            Self::SendCall => {
                "from the send call to the receipt: at maximum rate there is no intended send time"
            }
            Self::PublishTime => {
                "end to end, from publish_time, which the publisher's clock gave in ms"
            }
        })
    }
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    /// What the load was.
    pub kind: LoadKind,
    /// Whether the run was ended early by a signal.
    pub interrupted: bool,
    /// Time measured, warm-up excluded, in seconds.
    pub seconds: f64,
    /// Messages acknowledged or received in it.
    pub messages: u64,
    /// Their payloads, in bytes.
    pub bytes: u64,
    /// Messages per second.
    pub messages_per_second: f64,
    /// Payload per second, in millions of bytes.
    pub megabytes_per_second: f64,
    /// From when on latency counts.
    pub latency_from: LatencyFrom,
    /// Latencies in milliseconds.
    pub latency: LatencySummary,
    /// Messages that failed, warm-up included.
    pub failed: u64,
    /// The same by reason.
    pub failures: Vec<Failure>,
    /// Messages that were sent and never answered. They are in the latencies, with the time that they waited.
    pub unanswered: u64,
    /// Messages that were due and never sent, because too many others were unanswered. They are in the latencies as well.
    pub unsent: u64,
    /// What this process used, warm-up excluded.
    pub generator: GeneratorReport,
    /// What the processes under test used, warm-up excluded.
    pub watched: Vec<ProcessReport>,
}

/// Messages that failed for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The reason.
    pub reason: String,
    /// How many.
    pub messages: u64,
}

/// What the generator itself used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GeneratorReport {
    /// User and system time, in seconds.
    pub cpu_seconds: f64,
    /// Messages for each of these seconds.
    pub messages_per_cpu_second: f64,
}

/// What the end report is made of.
#[derive(Debug)]
pub struct RunMeasures<'a> {
    /// What the load was.
    pub kind: LoadKind,
    /// From when on latency counts.
    pub latency_from: LatencyFrom,
    /// Whether a signal ended the run early.
    pub interrupted: bool,
    /// Time measured, in seconds.
    pub seconds: f64,
    /// What was measured in it; its failures are of the whole run.
    pub measured: &'a Measured,
    /// CPU time of this process in it, in seconds.
    pub cpu_seconds: f64,
    /// Processes under test.
    pub watched: Vec<ProcessReport>,
}

impl RunReport {
    /// The report of a run.
    #[must_use]
    pub fn new(run: RunMeasures<'_>) -> Self {
        let measured = run.measured;
        let failures = measured.failures().iter();
        Self {
            kind: run.kind,
            interrupted: run.interrupted,
            seconds: run.seconds,
            messages: measured.messages,
            bytes: measured.bytes,
            messages_per_second: per_second(measured.messages, run.seconds).unwrap_or(0.0),
            megabytes_per_second: per_second(measured.bytes, run.seconds).unwrap_or(0.0) / MEGA,
            latency_from: run.latency_from,
            latency: measured.latencies.summary(),
            failed: measured.failed(),
            failures: failures
                .map(|(reason, messages)| Failure {
                    reason: reason.clone(),
                    messages: *messages,
                })
                .collect(),
            unanswered: measured.unanswered,
            unsent: measured.unsent,
            generator: GeneratorReport {
                cpu_seconds: run.cpu_seconds,
                messages_per_cpu_second: per_second(measured.messages, run.cpu_seconds)
                    .unwrap_or(0.0),
            },
            watched: run.watched,
        }
    }
}

impl RunReport {
    /// Messages of which nobody can say that they arrived: with any of them a run has failed.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.failed.saturating_add(self.unanswered)
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let early = if self.interrupted {
            ", ended early"
        } else {
            ""
        };
        writeln!(
            f,
            "{} {} messages in {:.1} s{early}",
            self.kind.done(),
            self.messages,
            self.seconds
        )?;
        writeln!(
            f,
            "throughput  {:.1} msg/s, {:.3} MB/s",
            self.messages_per_second, self.megabytes_per_second
        )?;
        let latency = &self.latency;
        writeln!(f, "latency ms  {}", percentiles(latency))?;
        writeln!(f, "            ({})", self.latency_from)?;
        writeln!(f, "errors      {}", self.failed)?;
        for failure in &self.failures {
            writeln!(f, "            {} x {}", failure.messages, failure.reason)?;
        }
        if self.unanswered > 0 {
            let unanswered = self.unanswered;
            writeln!(
                f,
                "unanswered  {unanswered} (in the latency with the time that they waited)"
            )?;
        }
        if self.unsent > 0 {
            let unsent = self.unsent;
            writeln!(
                f,
                "unsent      {unsent} (due, but there was no room; in the latency as well)"
            )?;
        }
        write!(
            f,
            "generator   {:.2} CPU s, {:.0} msg per CPU s",
            self.generator.cpu_seconds, self.generator.messages_per_cpu_second
        )?;
        for process in &self.watched {
            write!(f, "\npid {:<7} {}", process.pid, process_line(process))?;
        }
        Ok(())
    }
}

fn process_line(process: &ProcessReport) -> String {
    let mut line = match process.cpu_seconds {
        Some(cpu) => format!("{cpu:.2} CPU s"),
        None => return "ended during the run".to_owned(),
    };
    // Writing to a String cannot fail.
    if let Some(rate) = process.messages_per_cpu_second {
        let _ = write!(line, ", {rate:.0} msg per CPU s");
    }
    if let Some(peak) = process.peak_rss_bytes {
        let _ = write!(
            line,
            ", peak RSS {:.1} MiB since its start",
            mebibytes(peak)
        );
    }
    line
}

fn percentiles(latency: &LatencySummary) -> String {
    format!(
        "mean {:.3}, p50 {:.3}, p95 {:.3}, p99 {:.3}, p99.9 {:.3}, p99.99 {:.3}, max {:.3}",
        latency.mean_ms,
        latency.p50_ms,
        latency.p95_ms,
        latency.p99_ms,
        latency.p99_9_ms,
        latency.p99_99_ms,
        latency.max_ms
    )
}

/// One interval of a run, on one line.
#[derive(Debug, Clone, Copy)]
pub struct Interval<'a> {
    /// Whether this is still warm-up, which is not part of the report.
    pub warm_up: bool,
    /// Time since the start of the run, in seconds.
    pub at: f64,
    /// Length of the interval, in seconds.
    pub seconds: f64,
    /// What was measured in it.
    pub measured: &'a Measured,
}

impl fmt::Display for Interval<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latency = self.measured.latencies.summary();
        write!(
            f,
            "{:>7.1} s  {:>10.1} msg/s  {:>9.3} MB/s  p50 {:.3}  p99 {:.3}  max {:.3} ms",
            self.at,
            per_second(self.measured.messages, self.seconds).unwrap_or(0.0),
            per_second(self.measured.bytes, self.seconds).unwrap_or(0.0) / MEGA,
            latency.p50_ms,
            latency.p99_ms,
            latency.max_ms
        )?;
        let failed = self.measured.failed();
        if failed > 0 {
            write!(f, "  {failed} failed")?;
        }
        if self.warm_up {
            f.write_str("  (warm-up)")?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

const MEGA: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        let mut measured = Measured {
            messages: 2000,
            bytes: 2_048_000,
            ..Measured::default()
        };
        measured.latencies.record(2_000_000, 1999);
        measured.latencies.record(50_000_000, 1);
        measured.fail(|| "the broker refused it".to_owned(), 3);
        measured.unanswered = 4;
        measured.unsent = 5;
        measured
    }

    fn report() -> RunReport {
        RunReport::new(RunMeasures {
            kind: LoadKind::Produce,
            latency_from: LatencyFrom::IntendedSend,
            interrupted: true,
            seconds: 2.0,
            measured: &measured(),
            cpu_seconds: 0.5,
            watched: vec![ProcessReport {
                pid: 42,
                cpu_seconds: Some(0.25),
                messages_per_cpu_second: Some(8000.0),
                peak_rss_bytes: Some(3 << 20),
            }],
        })
    }

    #[test]
    fn the_text_tells_everything() {
        assert_eq!(
            report().to_string(),
            "\
acknowledged 2000 messages in 2.0 s, ended early
throughput  1000.0 msg/s, 1.024 MB/s
latency ms  mean 2.024, p50 2.001, p95 2.001, p99 2.001, p99.9 2.001, p99.99 50.004, max 50.004
            (from the intended send time to the receipt)
errors      3
            3 x the broker refused it
unanswered  4 (in the latency with the time that they waited)
unsent      5 (due, but there was no room; in the latency as well)
generator   0.50 CPU s, 4000 msg per CPU s
pid 42      0.25 CPU s, 8000 msg per CPU s, peak RSS 3.0 MiB since its start"
        );
    }

    #[test]
    fn the_document_has_the_same_under_stable_names() {
        let document = serde_json::to_value(report()).unwrap();
        for (pointer, expected) in [
            ("/kind", serde_json::json!("produce")),
            ("/interrupted", serde_json::json!(true)),
            ("/messages", serde_json::json!(2000)),
            ("/messages_per_second", serde_json::json!(1000.0)),
            ("/megabytes_per_second", serde_json::json!(1.024)),
            ("/latency_from", serde_json::json!("intended-send")),
            ("/failed", serde_json::json!(3)),
            ("/unanswered", serde_json::json!(4)),
            ("/unsent", serde_json::json!(5)),
            (
                "/failures/0/reason",
                serde_json::json!("the broker refused it"),
            ),
            (
                "/generator/messages_per_cpu_second",
                serde_json::json!(4000.0),
            ),
            ("/watched/0/peak_rss_bytes", serde_json::json!(3 << 20)),
        ] {
            assert_eq!(document.pointer(pointer), Some(&expected), "{pointer}");
        }
        for name in ["mean", "p50", "p95", "p99", "p99_9", "p99_99", "max"] {
            let value = document.pointer(&format!("/latency/{name}_ms"));
            assert!(value.is_some_and(serde_json::Value::is_number), "{name}");
        }
    }

    #[test]
    fn an_interval_is_one_line() {
        let interval = Interval {
            warm_up: true,
            at: 1.0,
            seconds: 1.0,
            measured: &measured(),
        };
        assert_eq!(
            interval.to_string(),
            "    1.0 s      2000.0 msg/s      2.048 MB/s  p50 2.001  p99 2.001  max 50.004 ms  3 failed  (warm-up)"
        );
    }

    #[test]
    fn a_run_of_no_time_and_no_messages_is_reported_as_zero() {
        let report = RunReport::new(RunMeasures {
            kind: LoadKind::Read,
            latency_from: LatencyFrom::PublishTime,
            interrupted: false,
            seconds: 0.0,
            measured: &Measured::default(),
            cpu_seconds: 0.0,
            watched: Vec::new(),
        });
        assert!(report.to_string().contains("0.0 msg/s"), "{report}");
        assert!(!serde_json::to_string(&report).unwrap().contains("null"));
    }
}
