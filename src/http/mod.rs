//! HTTP/1.1 on hyper: a server within limits, the routing of paths to handlers, and a client.
//!
//! Owns connections, their limits and time-outs, in both directions, and what makes a request acceptable as such. Never
//! interprets a body. Start at [`HttpServer::bind`] and [`Router`], or at [`HttpClient`].

mod body;
mod client;
#[cfg(test)]
mod client_tests;
mod idle;
mod phase;
mod router;
mod server;
#[cfg(test)]
mod tests;

pub use body::{Body, BodyError, BodyTimedOut, ReadBodyError};
pub use client::{
    AddressCheck, HttpClient, HttpClientError, HttpClientOptions, TlsProvider, TlsProviding,
};
pub use phase::{Phase, PhaseSender, Phases, phases};
pub use router::{
    Answer, AnswerFuture, Handler, Peer, Request, Response, Router, method_not_allowed,
    text_handler,
};
pub use server::{HttpLimits, HttpServer};
