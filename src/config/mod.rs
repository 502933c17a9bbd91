//! Settings: defaults, files, environment and flags into typed, validated structs.

mod settings;

pub use settings::{GatewaySettings, HttpSettings};
