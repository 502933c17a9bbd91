//! Behaviour over real sockets: one file per subject.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a failed expectation is how a test fails"
)]

mod client_tls;
mod credentials;
mod gateway_authentication;
mod gateway_brokers;
mod gateway_direct;
mod gateway_hostile;
mod gateway_http;
mod gateway_http_limits;
mod gateway_http_redirects;
mod gateway_lifecycle;
mod gateway_lookup;
mod gateway_renewal;
mod gateway_slow_readers;
mod gateway_tls;
mod gateway_tls_files;
mod perf_null_broker;
mod support;
mod web;
