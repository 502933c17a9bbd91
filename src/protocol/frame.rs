//! Frames: the unit of a connection.
