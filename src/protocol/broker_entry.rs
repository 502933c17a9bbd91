//! Broker entry metadata: what a broker puts in front of an entry.
