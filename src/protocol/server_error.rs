//! The map from our errors to the error codes of the protocol.
