//! The metric registry and the Prometheus text it renders.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

/// Writes series straight into the text at scrape time, complete lines in the Prometheus text format. Use
/// [`write_header`] once a metric and [`write_sample`] for its series.
pub type SampleCollector = Box<dyn Fn(&mut String) + Send + Sync>;

/// The metrics of the process. A cheap handle: clones share the same registry.
///
/// Every sample carries the `cluster` label, as the Apache proxy's do; a [`SampleCollector`] writes it itself, from
/// [`Self::cluster`].
#[derive(Clone)]
pub struct MetricRegistry {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Registry,
    collectors: RwLock<Vec<SampleCollector>>,
    cluster: String,
    /// Names without `_total` of the counters that tell since when they count.
    dated: RwLock<Vec<String>>,
    /// When counting began, in seconds since 1970.
    started: f64,
}

/// A metric could not be registered: its name is malformed or already taken.
#[derive(Debug, thiserror::Error)]
#[error("cannot register metric {name}: {source}")]
pub struct MetricError {
    name: String,
    source: prometheus::Error,
}

impl MetricRegistry {
    /// An empty registry whose samples carry `cluster` as the label of that name; it may be empty.
    #[must_use]
    pub fn new(cluster: &str) -> Self {
        let labels = [("cluster".to_owned(), cluster.to_owned())]
            .into_iter()
            .collect();
        let registry =
            Registry::new_custom(None, Some(labels)).expect("no prefix, so nothing to refuse");
        let shared = Shared {
            registry,
            collectors: RwLock::new(Vec::new()),
            cluster: cluster.to_owned(),
            dated: RwLock::new(Vec::new()),
            started: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The value of the `cluster` label.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.shared.cluster
    }

    /// Registers a counter without labels of its own. One named `pulsar_..._total` has a series `pulsar_..._created` beside it,
    /// as the Apache proxy's counters have: since when it counts, in seconds since 1970.
    ///
    /// # Errors
    /// When the name is malformed or taken. So for the other constructors.
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, MetricError> {
        let counter = self.register(name, IntCounter::new(name, help))?;
        if let Some(base) = name.strip_suffix("_total")
            && base.starts_with("pulsar_")
        {
            self.shared.dated.write().push(base.to_owned());
        }
        Ok(counter)
    }

    /// Registers a family of counters with the labels named.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn counter_vec(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, MetricError> {
        self.register(name, IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Registers a gauge without labels of its own.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, MetricError> {
        self.register(name, IntGauge::new(name, help))
    }

    /// Registers a histogram whose buckets end at `buckets`, rising.
    ///
    /// # Errors
    /// As [`Self::counter`], and when the buckets do not rise.
    pub fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
    ) -> Result<Histogram, MetricError> {
        self.register(
            name,
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets)),
        )
    }

    /// Registers the `process_*` metrics: memory, CPU, file descriptors and start time of this process.
    ///
    /// # Errors
    /// When they are registered already.
    pub fn register_process_metrics(&self) -> Result<(), MetricError> {
        self.register(
            "process",
            Ok(ProcessMetrics(Arc::new(ProcessCollector::for_self()))),
        )
        .map(drop)
    }

    /// Adds a collector that is called at each scrape, after the registered metrics.
    pub fn add_collector(&self, collector: SampleCollector) {
        self.shared.collectors.write().push(collector);
    }

    /// All metrics in the Prometheus text format 0.0.4.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        if let Err(error) = TextEncoder::new().encode_utf8(&self.shared.registry.gather(), &mut out)
        {
            tracing::warn!(%error, "registered metrics could not be rendered");
        }
        let labels = [("cluster", self.cluster())];
        for base in self.shared.dated.read().iter() {
            let name = format!("{base}_created");
            // A counter there, too, since it belongs to one.
            write_header(
                &mut out,
                &name,
                "Since when it counts.",
                MetricKind::Counter,
            );
            write_sample(&mut out, &name, &labels, self.shared.started);
        }
        for collector in self.shared.collectors.read().iter() {
            collector(&mut out);
        }
        out
    }

    fn register<C>(&self, name: &str, made: prometheus::Result<C>) -> Result<C, MetricError>
    where
        C: Collector + Clone + 'static,
    {
        let failed = |source| MetricError {
            name: name.to_owned(),
            source,
        };
        let metric = made.map_err(failed)?;
        self.shared
            .registry
            .register(Box::new(metric.clone()))
            .map_err(failed)?;
        Ok(metric)
    }
}

impl fmt::Debug for MetricRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricRegistry")
            .field("cluster", &self.shared.cluster)
            .finish_non_exhaustive()
    }
}

/// The process collector behind a clonable handle.
#[derive(Clone)]
struct ProcessMetrics(Arc<ProcessCollector>);

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.0.collect()
    }
}

/// The type of a metric in the text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Writes the `# HELP` and `# TYPE` lines of a metric; once, before its first sample.
pub fn write_header(out: &mut String, name: &str, help: &str, kind: MetricKind) {
    let kind = match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
    };
    out.push_str("# HELP ");
    out.push_str(name);
    out.push(' ');
    escape(out, help, false);
    out.push_str("\n# TYPE ");
    out.push_str(name);
    out.push(' ');
    out.push_str(kind);
    out.push('\n');
}

/// Writes one sample line. Label values are escaped; names must be legal already.
pub fn write_sample(
    out: &mut String,
    name: &str,
    labels: &[(&str, &str)],
    value: impl fmt::Display,
) {
    out.push_str(name);
    for (index, (label, label_value)) in labels.iter().enumerate() {
        out.push(if index == 0 { '{' } else { ',' });
        out.push_str(label);
        out.push_str("=\"");
        escape(out, label_value, true);
        out.push('"');
    }
    if !labels.is_empty() {
        out.push('}');
    }
    // Writing to a String cannot fail.
    let _ = writeln!(out, " {value}");
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_sample_has_the_cluster_label() {
        let registry = MetricRegistry::new("east");
        registry
            .counter("pulsar_proxy_new_connections_total", "Accepted.")
            .expect("new")
            .inc_by(3);
        let by_code = registry
            .counter_vec("errors_total", "Errors.", &["code"])
            .expect("new");
        by_code.with_label_values(&["timeout"]).inc();
        registry.register_process_metrics().expect("new");
        let text = registry.render();
        assert!(
            text.contains("# TYPE pulsar_proxy_new_connections_total counter\n"),
            "{text}"
        );
        assert!(
            text.contains("pulsar_proxy_new_connections_total{cluster=\"east\"} 3\n"),
            "{text}"
        );
        assert!(
            text.contains("process_start_time_seconds{cluster=\"east\"}"),
            "{text}"
        );
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.contains("cluster=\"east\""), "{line}");
        }
    }

    #[test]
    fn an_empty_cluster_name_is_still_a_label() {
        let registry = MetricRegistry::new("");
        registry
            .gauge("pulsar_proxy_active_connections", "Open.")
            .expect("new")
            .set(2);
        assert!(
            registry
                .render()
                .contains("pulsar_proxy_active_connections{cluster=\"\"} 2\n")
        );
    }

    #[test]
    fn counters_with_names_of_pulsar_tell_since_when_they_count() {
        let registry = MetricRegistry::new("east");
        registry.counter("pulsar_a_total", "A.").expect("new");
        registry.counter("other_total", "B.").expect("new");
        let text = registry.render();
        let sample = "pulsar_a_created{cluster=\"east\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(sample));
        let since: f64 = line.expect("a sample").parse().expect("a number");
        assert!(since > 1.7e9, "{since}");
        assert!(!text.contains("other_created"), "{text}");
    }

    #[test]
    fn a_name_is_registered_once() {
        let registry = MetricRegistry::new("");
        registry.counter("a_total", "A.").expect("new");
        assert!(registry.counter("a_total", "A.").is_err());
        assert!(registry.counter("no name", "A.").is_err());
    }

    #[test]
    fn collectors_write_escaped_samples_at_each_scrape() {
        let registry = MetricRegistry::new("east");
        let cluster = registry.cluster().to_owned();
        registry.add_collector(Box::new(move |out| {
            write_header(
                out,
                "topic_bytes_total",
                "Bytes\nrelayed.",
                MetricKind::Counter,
            );
            write_sample(
                out,
                "topic_bytes_total",
                &[("cluster", &cluster), ("topic", "a\"b\\c\nd")],
                7,
            );
        }));
        let expected = "# HELP topic_bytes_total Bytes\\nrelayed.\n# TYPE topic_bytes_total counter\n\
                        topic_bytes_total{cluster=\"east\",topic=\"a\\\"b\\\\c\\nd\"} 7\n";
        assert_eq!(registry.render(), expected);
        assert_eq!(registry.render(), expected);
    }
}
