//! Logging and metrics.
//!
//! Owns how log lines look and how the metric registry is rendered. Never writes a payload or a credential. Components
//! register their metrics in a [`MetricRegistry`] that is passed to them; there is no global one.

mod log_writer;
mod logging;
mod metrics;
mod throttle;

pub use log_writer::LogGuard;
pub use logging::{LogError, LogFormat, LogSettings, check_level, init_logging};
pub use metrics::{
    MetricError, MetricKind, MetricRegistry, SampleCollector, write_header, write_sample,
};
pub use throttle::LogThrottle;
