//! One read buffer per thread, shared by all connections that this thread polls.
//!
//! A connection that waits for bytes needs no buffer; one that has just received some needs it only until they are
//! copied out. So the buffer belongs to the thread, and 100,000 idle connections cost none.

use std::cell::RefCell;

/// Length of the buffer in bytes: one read takes what a fast sender puts into the socket between two polls.
pub const SCRATCH_LEN: usize = 128 * 1024;

thread_local! {
    static SCRATCH: RefCell<Option<Box<[u8]>>> = const { RefCell::new(None) };
}

/// Runs `f` with this thread's buffer of [`SCRATCH_LEN`] bytes, whose content is arbitrary.
///
/// `f` is synchronous, so the buffer can never be held over an await. A call inside `f` gets a buffer of its own.
pub fn with<T>(f: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = SCRATCH
        .with(|slot| slot.borrow_mut().take())
        .unwrap_or_else(|| vec![0; SCRATCH_LEN].into_boxed_slice());
    let result = f(&mut buffer);
    SCRATCH.with(|slot| *slot.borrow_mut() = Some(buffer));
    result
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
    fn a_nested_call_gets_another_buffer() {
        with(|outer| {
            assert_eq!(outer.len(), SCRATCH_LEN);
            let outer_address = outer.as_ptr() as usize;
            let inner_address = with(|inner| inner.as_ptr() as usize);
            assert_ne!(outer_address, inner_address);
        });
    }
}
