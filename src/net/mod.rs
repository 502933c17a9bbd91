//! Sockets: what the gateway, the broker and the client put between a TCP stream and the protocol layer.
//!
//! Owns the listener with its admission limits, the frame reader, the two outbound lanes and TLS of both directions. It knows frames and
//! how to queue them, never what a command means: no byte is interpreted here but by `protocol`.
//!
//! Start at [`frame_reader::FrameReader`] for the way in, at [`outbound::channel`] for the way out and at
//! [`listener::Listener`] for new connections.

mod certificate;
pub mod frame_reader;
pub mod listener;
pub mod outbound;
pub mod reload;
pub mod scratch;
pub mod socket;
pub mod tls;
pub mod tls_server;
pub mod tls_stream;
mod version_1;

pub use frame_reader::{FrameReader, ReadError};
pub use listener::{Admission, ConnectionPermit, Listener, ListenerLimits, RejectReason};
pub use outbound::{Outbound, OutboundError, OutboundLimits, OutboundWriter, Outgoing};
pub use tls::{TlsClient, TlsConfigError, TlsError, TlsIdentity, TlsOptions};
pub use tls_server::{
    ClientRules, TlsAcceptError, TlsServer, TlsServerFiles, TlsServerFilesError, TlsServerPaths,
};
pub use tls_stream::{ServerStream, Stream};
