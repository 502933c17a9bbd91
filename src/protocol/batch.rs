//! Batches: several messages in one entry.
