//! Behaviour over real sockets: one file per subject.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a failed expectation is how a test fails"
)]

mod client_tls;
mod gateway_direct;
mod gateway_http;
mod gateway_http_limits;
mod gateway_http_redirects;
mod gateway_lifecycle;
mod gateway_lookup;
mod perf_null_broker;
mod support;
mod web;
