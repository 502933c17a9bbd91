//! HTTP of the gateway beyond its health: the reverse proxy in front of the brokers' HTTP service, and the endpoints that tell
//! what passes through.
//!
//! Owns who may ask ([`Access`]), where a request goes and what becomes of its headers and of redirects ([`ReverseProxy`]).
//! Never gives a client's credentials to a host that is not known to be a broker. Start at [`routes`].

mod access;
mod forwarding;
mod proxy_stats;
mod rate;
mod replay;
mod reverse_proxy;
mod routes;
mod targets;

pub use access::{
    Access, AccessOptions, Authenticating, Caller, HttpAuthenticationError, HttpAuthenticator, Need,
};
pub use reverse_proxy::{ReverseProxy, ReverseProxyOptions};
pub use routes::{RouteOptions, routes};
pub use targets::{KnownHosts, WebBrokers};
