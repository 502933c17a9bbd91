//! The types that `build.rs` generates from `proto/`.
//!
//! `proto/UPSTREAM` names the version of Pulsar whose field numbers they follow. Encoding writes fields in the order of
//! their numbers, as Pulsar's own libraries do. Decoding drops fields that are not declared there; whoever passes a
//! command on keeps the bytes instead (see [`crate::protocol::rewrite`]).

#![expect(
    missing_docs,
    reason = "generated from the files in proto/, where the comments are"
)]

/// Commands and message metadata, from `PulsarApi.proto`.
pub mod pulsar {
    include!(concat!(env!("OUT_DIR"), "/pulsar.proto.rs"));
}

/// Payloads of marker messages, from `PulsarMarkers.proto`.
pub mod markers {
    include!(concat!(env!("OUT_DIR"), "/pulsar.markers.rs"));
}

/// Records of the managed ledger in metadata store and cursor ledgers, from `MLDataFormats.proto`.
pub mod ml_data {
    include!(concat!(env!("OUT_DIR"), "/pulsar.ml_data.rs"));
}
