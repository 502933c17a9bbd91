//! Starting a runtime so that a machine without threads to give is an error and no panic.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

/// A runtime with so many threads, with as many as there are processors for `None`. With one, everything runs on the caller's.
///
/// # Errors
/// When the operating system does not give what the runtime needs.
pub fn start_runtime(threads: Option<usize>) -> io::Result<Runtime> {
    let processors = || thread::available_parallelism().map_or(1, NonZero::get);
    let mut builder = match threads {
        Some(0 | 1) => Builder::new_current_thread(),
        _ => {
            let threads = threads.unwrap_or_else(processors);
            // One more for what blocks, such as looking up a name.
            try_threads(threads.saturating_add(1))?;
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
    };
    builder.enable_all().build()
}

/// Whether so many threads can run at a time. The runtime panics where they cannot.
fn try_threads(count: usize) -> io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let mut threads = Vec::new();
    let started = (0..count).try_for_each(|_| {
        let gate = Arc::clone(&gate);
        threads.push(thread::Builder::new().spawn(move || drop(gate.lock()))?);
        Ok(())
    });
    drop(closed);
    for thread in threads {
        // It does nothing that could fail.
        let _ = thread.join();
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_of_any_size_run() {
        for threads in [Some(1), Some(3), None] {
            let runtime = start_runtime(threads).expect("threads");
            assert_eq!(runtime.block_on(async { 7 }), 7);
        }
    }
}
