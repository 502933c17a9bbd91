//! The Pulsar wire protocol, sans-IO: bytes in, typed values out, and back.
//!
//! Owns every rule about bytes on a connection and in an entry; nothing outside parses bytes from the network. It must
//! never do I/O, read a clock, or trust a size that a peer claims. Start at [`frame`] (bytes to frames), then
//! [`command`] (frames to commands) and [`message`] (what follows SEND and MESSAGE in a frame).

pub mod batch;
pub mod broker_entry;
pub mod checksum;
pub mod chunk;
pub mod command;
pub mod compression;
pub mod encode;
pub mod fields;
pub mod frame;
pub mod head;
mod hot;
pub mod message;
pub mod peek;
pub mod proto;
pub mod required;
pub mod rewrite;
pub mod server_error;
pub mod version;
pub mod wire;
