//! Compression codecs of message payloads.
