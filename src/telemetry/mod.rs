//! Logging and metrics.
//!
//! Owns how log lines look and how the metric registry is rendered. Never writes a payload or a credential. Components
//! register their metrics in a [`MetricRegistry`] that is passed to them; there is no global one.

mod logging;
mod metrics;
mod throttle;

pub use logging::{LogError, LogFormat, LogGuard, LogSettings, check_level, init_logging};
pub use metrics::{
    MetricError, MetricKind, MetricRegistry, SampleCollector, write_header, write_sample,
};
pub use throttle::LogThrottle;
