//! The bodies of the fuzz targets, one for each parser of bytes from a peer or from a store.
//!
//! A body takes any bytes and panics when a property of the parser does not hold. The targets in `fuzz/` run them under a
//! fuzzer; `tests/fuzz_corpus.rs` runs them over the checked-in corpus and over mutations of it. A new parser gets a
//! body here, a target there and a few seeds in `fuzz/corpus/<target>/`; [`BODIES`] lists them all.

mod chunk;
mod command;
mod decompress;
mod frame;
mod head;
mod message;
mod stored;

pub use self::chunk::chunk;
pub use self::command::{command, rewrite};
pub use self::decompress::decompress;
pub use self::frame::frame;
pub use self::head::head;
pub use self::message::{batch, message};
pub use self::stored::stored;

/// A fuzz body.
pub type Body = fn(&[u8]);

/// Every body under the name of its target and corpus directory.
pub const BODIES: &[(&str, Body)] = &[
    ("batch", batch),
    ("chunk", chunk),
    ("command", command),
    ("decompress", decompress),
    ("frame", frame),
    ("head", head),
    ("message", message),
    ("rewrite", rewrite),
    ("stored", stored),
];

/// Reads the parameters of a body from the front of the fuzzer's bytes. At the end it goes on with zeros.
struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes([self.u8(), self.u8(), self.u8(), self.u8()])
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.u32().to_be_bytes())
    }

    /// The next `len` bytes, or as many as are left.
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}
