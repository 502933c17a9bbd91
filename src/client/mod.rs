//! Our outgoing Pulsar connections: to the brokers behind the gateway, and whatever else of us speaks to a broker.
//!
//! Owns the handshake, the matching of answers to requests, keep-alive, the pool of broker connections and lookups that
//! follow redirects. It decides nothing about who may connect where: a caller passes that decision in.
//!
//! Start at [`Connection`] for one broker, at [`BrokerPool`] for a cluster and at [`lookup`] for the owner of a topic.

pub mod authentication;
pub mod backoff;
mod clock;
pub mod connection;
pub mod consumer;
pub mod dial;
pub mod error;
pub mod handshake;
pub mod lookup;
pub mod message_id;
pub mod pool;
pub mod producer;
pub mod pulsar_client;
pub mod reader;
pub(crate) mod session;
mod sessions;
mod settings;
mod state;
mod throttle;
pub mod tls;

#[cfg(test)]
mod connection_tests;
#[cfg(test)]
mod keep_alive_tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod session_tests;

pub use authentication::{Authentication, BoxFuture, CredentialSupplier, Introducer};
pub use backoff::{Backoff, BackoffPolicy};
pub use connection::{AddressCheck, Connection, ConnectionEvents, ConnectionOptions};
pub use consumer::{Consumer, ConsumerOptions, Topics};
pub use error::{ClientError, CloseReason, ConnectError, RequestError};
pub use lookup::{BrokerLookup, Denied, LookupClient, LookupError, LookupFailure};
pub use message_id::MessageId;
pub use pool::{BrokerPool, BrokerSource, Choice, PoolError};
pub use producer::{OutgoingMessage, Producer, ProducerOptions, Receipt, SendError};
pub use pulsar_client::{ClientOptions, PulsarClient};
pub use reader::{Reader, ReaderOptions};
pub use tls::{TlsFilePaths, TlsFiles, TlsFilesError, TlsSource};
