//! pulsegate: a drop-in Apache Pulsar gateway in one binary.
//!
//! The modules, lowest layer first; imports only point down (checked by `tests/layering.rs`):
//!
//! - [`naming`]: topic, namespace and broker names as types.
//! - [`protocol`]: the Pulsar wire protocol, sans-IO: frames, commands, message metadata, batches.
//! - [`config`]: files, environment and flags into typed settings.
//! - [`telemetry`]: logging and the metric registry.
//! - [`disk`]: the files of durable storage.
//! - [`net`]: sockets: listener, frame reader, outbound lanes.
//! - [`http`]: HTTP server and client.
//! - [`metadata`]: small shared state in Apache Pulsar's tree: stores, paths, values.
//! - [`journal`]: the shared durable log: group commit, segments, recovery.
//! - [`ledger`]: append-only ledgers and the state of cursors, in memory or in the journal.
//! - [`auth`]: who somebody is who connects: tokens, certificates, passwords.
//! - [`managed_ledger`]: one log per topic over ledgers: its formats, positions, the state of cursors.
//! - [`store`]: ledgers, cursors and metadata of one data directory.
//! - [`client`]: our outgoing Pulsar connection.
//! - [`gateway`]: the protocol-aware TCP gateway.
//! - [`admin`]: HTTP in front of the brokers' HTTP service, and what passes through.
//! - [`perf`]: load generators, a broker that stores nothing, latency histograms and reports.
//! - [`app`]: the composition root: wiring, phases, signals.
//! - [`cli`]: the command line.

pub mod admin;
pub mod app;
pub mod auth;
pub mod cli;
pub mod client;
pub mod config;
pub mod disk;
pub mod gateway;
pub mod http;
pub mod journal;
pub mod ledger;
pub mod managed_ledger;
pub mod metadata;
pub mod naming;
pub mod net;
pub mod perf;
pub mod protocol;
pub mod store;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
