//! Read buffers per thread, shared by all connections that this thread polls.
//!
//! A connection that waits for bytes needs no buffer; one that has just received some needs it only until they are
//! copied out. So the buffers belong to the thread, and 100,000 idle connections cost none. Of plain connections one is in use at
//! a time; TLS needs a second one for what is not decrypted yet.

use std::cell::RefCell;

/// Length of a buffer in bytes: one read takes what a fast sender puts into the socket between two polls.
pub const SCRATCH_LEN: usize = 128 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with a buffer of this thread of [`SCRATCH_LEN`] bytes, whose content is arbitrary.
///
/// `f` is synchronous, so the buffer can never be held over an await. A call inside `f` gets a buffer of its own.
pub fn with<T>(f: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = take();
    let result = f(&mut buffer);
    give(buffer);
    result
}

/// A buffer out of this thread's, for a caller that gives it back before its poll ends.
pub(super) fn take() -> Box<[u8]> {
    SCRATCH
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| vec![0; SCRATCH_LEN].into_boxed_slice())
}

/// Gives a buffer of [`take`] back.
pub(super) fn give(buffer: Box<[u8]>) {
    SCRATCH.with_borrow_mut(|buffers| buffers.push(buffer));
}

#[cfg(test)]
mod tests {
    use super::{SCRATCH_LEN, with};

    #[test]
    fn the_same_buffer_serves_calls_in_turn() {
        let first = with(|buffer| buffer.as_ptr() as usize);
        let second = with(|buffer| buffer.as_ptr() as usize);
        assert_eq!(first, second);
    }

    #[test]
    fn a_nested_call_gets_another_buffer_and_the_same_one_each_time() {
        let nested = || {
            with(|outer| {
                assert_eq!(outer.len(), SCRATCH_LEN);
                let outer_address = outer.as_ptr() as usize;
                let inner_address = with(|inner| inner.as_ptr() as usize);
                assert_ne!(outer_address, inner_address);
                [outer_address, inner_address]
            })
        };
        let (mut first, mut second) = (nested(), nested());
        first.sort_unstable();
        second.sort_unstable();
        assert_eq!(first, second);
    }
}
