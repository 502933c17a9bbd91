//! Medians, spreads and ratios of what was measured, as a table and as JSON.

use serde_json::{Value, json};

use crate::cases::Outcome;
use crate::memory::Held;
use crate::relays::HAPROXY;

/// One run of one case through one relay.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) relay: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_rss_kib: u64,
}

impl Sample {
    fn gigabytes_per_second(&self) -> f64 {
        self.outcome.bytes as f64 / 1e9 / self.outcome.seconds
    }

    fn cpu_per_gigabyte(&self) -> f64 {
        self.cpu_seconds / (self.outcome.bytes as f64 / 1e9)
    }
}

/// The rounds of one case: in each every relay has one sample, at the same place.
pub(crate) type Rounds = Vec<Vec<Sample>>;

/// One line of the report: a relay in a case.
#[derive(Debug)]
struct Line {
    relay: &'static str,
    speed: Spread,
    cpu: Spread,
    /// To HAProxy in the same round.
    speed_ratio: Option<Spread>,
    cpu_ratio: Option<Spread>,
    round_trips: Option<RoundTrips>,
    peak_rss_kib: u64,
}

#[derive(Debug)]
struct RoundTrips {
    per_second: f64,
    p50_micros: u32,
    p99_micros: u32,
    cpu_seconds_per_million: f64,
}

#[derive(Debug, Clone, Copy)]
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Some(Self {
            low: *values.first()?,
            median: *values.get(values.len() / 2)?,
            high: *values.last()?,
        })
    }

    fn json(self) -> Value {
        json!({"median": self.median, "low": self.low, "high": self.high})
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { low, median, high } = self;
        f.pad(&format!("{median:.3} ({low:.3}-{high:.3})"))
    }
}

fn lines(rounds: &Rounds) -> Vec<Line> {
    let relays = rounds.first().map_or(0, Vec::len);
    (0..relays).filter_map(|at| line(rounds, at)).collect()
}

fn line(rounds: &Rounds, at: usize) -> Option<Line> {
    let samples: Vec<&Sample> = rounds.iter().filter_map(|round| round.get(at)).collect();
    let ratio = |value: fn(&Sample) -> f64| {
        let ratios = rounds.iter().filter_map(|round| {
            let peer = round.iter().find(|sample| sample.relay == HAPROXY)?;
            Some(value(round.get(at)?) / value(peer))
        });
        Spread::of(ratios)
    };
    let has_process = samples.iter().any(|sample| sample.peak_rss_kib > 0);
    Some(Line {
        relay: samples.first()?.relay,
        speed: Spread::of(samples.iter().map(|sample| sample.gigabytes_per_second()))?,
        cpu: Spread::of(samples.iter().map(|sample| sample.cpu_per_gigabyte()))?,
        speed_ratio: ratio(Sample::gigabytes_per_second),
        cpu_ratio: ratio(Sample::cpu_per_gigabyte).filter(|_| has_process),
        round_trips: round_trips(&samples),
        peak_rss_kib: samples.iter().map(|sample| sample.peak_rss_kib).max()?,
    })
}

fn round_trips(samples: &[&Sample]) -> Option<RoundTrips> {
    let all = samples
        .iter()
        .flat_map(|sample| &sample.outcome.round_trips);
    let mut micros: Vec<u32> = all.copied().collect();
    micros.sort_unstable();
    let seconds: f64 = samples.iter().map(|sample| sample.outcome.seconds).sum();
    let cpu: f64 = samples.iter().map(|sample| sample.cpu_seconds).sum();
    Some(RoundTrips {
        p50_micros: *micros.get(micros.len() / 2)?,
        p99_micros: *micros.get(micros.len() * 99 / 100)?,
        per_second: micros.len() as f64 / seconds,
        cpu_seconds_per_million: cpu / (micros.len() as f64 / 1e6),
    })
}

/// The table of one case; `HAPROXY` without its ratio when that peer was not there.
pub(crate) fn table(case: &str, rounds: &Rounds) -> String {
    let mut out = format!(
        "{case}\n  {:<18}{:>24}{:>24}{:>22}{:>22}{:>10}\n",
        "", "GB/s", "CPU s/GB", "GB/s : haproxy", "CPU : haproxy", "peak RSS"
    );
    let ratio = |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |s| s.to_string());
    for line in lines(rounds) {
        out.push_str(&format!(
            "  {:<18}{:>24}{:>24}{:>22}{:>22}{:>6} KiB\n",
            line.relay,
            line.speed,
            line.cpu,
            ratio(line.speed_ratio),
            ratio(line.cpu_ratio),
            line.peak_rss_kib
        ));
        if let Some(trips) = line.round_trips {
            out.push_str(&format!(
                "  {:<18}{:.0} round trips/s, p50 {} us, p99 {} us, {:.2} CPU s per million\n",
                "",
                trips.per_second,
                trips.p50_micros,
                trips.p99_micros,
                trips.cpu_seconds_per_million
            ));
        }
    }
    out
}

/// The same as JSON.
pub(crate) fn case_json(case: &str, rounds: &Rounds) -> Value {
    let relays = lines(rounds).into_iter().map(|line| {
        let mut value = json!({
            "relay": line.relay,
            "gigabytes_per_second": line.speed.json(),
            "cpu_seconds_per_gigabyte": line.cpu.json(),
            "speed_to_haproxy": line.speed_ratio.map(Spread::json),
            "cpu_to_haproxy": line.cpu_ratio.map(Spread::json),
            "peak_rss_kib": line.peak_rss_kib,
        });
        if let (Some(trips), Some(fields)) = (line.round_trips, value.as_object_mut()) {
            let trips = json!({
                "per_second": trips.per_second,
                "p50_micros": trips.p50_micros,
                "p99_micros": trips.p99_micros,
                "cpu_seconds_per_million": trips.cpu_seconds_per_million,
            });
            fields.insert("round_trips".to_owned(), trips);
        }
        value
    });
    json!({"case": case, "relays": relays.collect::<Vec<_>>()})
}

/// One line about memory with readers that stop.
pub(crate) fn held_line(relay: &str, connections: usize, held: Held) -> String {
    format!(
        "  {relay:<18}holds at most {} bytes up, {} bytes down of one connection; RSS +{} KiB for {connections} connections\n",
        held.upward, held.downward, held.rss_kib
    )
}

/// The same as JSON.
pub(crate) fn held_json(relay: &str, connections: usize, held: Held) -> Value {
    json!({
        "relay": relay,
        "connections": connections,
        "held_upward_bytes": held.upward,
        "held_downward_bytes": held.downward,
        "rss_growth_kib": held.rss_kib,
    })
}
