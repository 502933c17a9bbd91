//! Measuring brokers: load generators, a broker that stores nothing to measure the generators against, and the reports.
//!
//! Owns what `pulsegate perf` does; what users type and read is in `cli`. Latencies go into HDR histograms, rates follow an
//! absolute schedule, so that a broker that stalls is not measured as if nobody had wanted anything of it meanwhile.
//!
//! Start at [`run`] for how a run goes, at [`produce`] and [`consume`] for the load, at [`report`] for what is told of it, and
//! at [`null_broker`] for the broker.

mod alarm;
pub mod compare;
pub mod consume;
pub mod latency;
pub mod measure;
pub mod null_broker;
pub mod pacing;
pub mod produce;
pub mod report;
pub mod run;
pub mod watch;
