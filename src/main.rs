//! The `pulsegate` binary.

fn main() {}
