//! Writing commands as frames.
