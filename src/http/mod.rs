//! The small HTTP/1.1 server under `/metrics` and the health endpoints.
//!
//! Owns connections, their limits and the routing of paths to handlers. Never interprets a request body and never does
//! IO in a handler. Start at [`HttpServer::bind`] and [`Router`].

mod phase;
mod router;
mod server;
#[cfg(test)]
mod tests;

pub use phase::{Phase, PhaseSender, Phases, phases};
pub use router::{Response, Router};
pub use server::{HttpLimits, HttpServer, Peer};
