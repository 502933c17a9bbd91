//! CRC32-C.
