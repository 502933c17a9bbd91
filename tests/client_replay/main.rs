//! Our client against a broker that answers as Apache Pulsar did (`tests/oracle/transcripts/client/`): what the application
//! sees, and that the client sends exactly the frames of the scenario that was recorded.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed expectation is how a test fails"
)]

mod consuming;
mod producing;
mod refused;
mod support;

#[allow(dead_code, reason = "the harness uses all of it")]
#[path = "../oracle/normal.rs"]
mod normal;
#[allow(dead_code, reason = "the harness uses all of it")]
#[path = "../oracle/replay.rs"]
mod replay;
#[allow(dead_code, reason = "the harness uses all of it")]
#[path = "../oracle/transcript.rs"]
mod transcript;
#[allow(dead_code, reason = "the harness uses all of it")]
#[path = "../oracle/value.rs"]
mod value;
#[allow(dead_code, reason = "the harness uses all of it")]
#[path = "../oracle/wire.rs"]
mod wire;
