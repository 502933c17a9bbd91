//! Sockets: what the gateway, the broker and the client put between a TCP stream and the protocol layer.
//!
//! Owns the listener with its admission limits, the frame reader, the two outbound lanes and TLS of outgoing connections. It knows frames and how to
//! queue them, never what a command means: no byte is interpreted here but by `protocol`.
//!
//! Start at [`frame_reader::FrameReader`] for the way in, at [`outbound::channel`] for the way out and at
//! [`listener::Listener`] for new connections.

pub mod frame_reader;
pub mod listener;
pub mod outbound;
pub mod scratch;
pub mod socket;
pub mod tls;

pub use frame_reader::{FrameReader, ReadError};
pub use listener::{Admission, ConnectionPermit, Listener, ListenerLimits, RejectReason};
pub use outbound::{Outbound, OutboundError, OutboundLimits, OutboundWriter, Outgoing};
pub use tls::{Stream, TlsClient, TlsConfigError, TlsError, TlsIdentity, TlsOptions};
