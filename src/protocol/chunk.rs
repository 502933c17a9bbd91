//! Chunks: one large message in several entries.
