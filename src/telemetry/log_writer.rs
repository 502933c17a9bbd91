//! The way of log lines to standard error, which must never stop what logs.
//!
//! One thread writes; lines wait in a bounded queue, and those that find it full are dropped. Neither a reader that does not read
//! nor one that is gone is noticed anywhere else, and at the end what waits has a moment to be written.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Writes out at its end what is still to be written; hold it until the process ends.
#[derive(Debug)]
#[must_use = "what is logged last is lost without it"]
pub struct LogGuard {
    lines: SyncSender<Message>,
    ended: Receiver<()>,
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        // A full queue means that nobody reads: then there is nothing to wait for.
        if self.lines.try_send(Message::End).is_ok() {
            let _ = self.ended.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    End,
}

/// Makes the writer of each line; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct LogWriter(SyncSender<Message>);

/// Starts the thread that writes to `out`.
///
/// # Errors
/// When the operating system gives no thread.
pub(super) fn start<W: Write + Send + 'static>(mut out: W) -> io::Result<(LogWriter, LogGuard)> {
    let (lines, waiting) = sync_channel(LINES_WAITING_MAX);
    let (end, ended) = sync_channel(1);
    thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || {
            while let Ok(Message::Line(line)) = waiting.recv() {
                // There is nobody to tell that a line cannot be written.
                let _ = out.write_all(&line);
            }
            let _ = out.flush();
            let _ = end.try_send(());
        })?;
    let guard = LogGuard {
        lines: lines.clone(),
        ended,
    };
    Ok((LogWriter(lines), guard))
}

impl MakeWriter<'_> for LogWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Dropped when the queue is full.
        let _ = self.0.try_send(Message::Line(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const LINES_WAITING_MAX: usize = 10_000;
/// How long the end of the process waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Takes nothing before its sender is gone.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_order_and_the_last_ones_before_the_end() {
        let out = Shared::default();
        let (writer, guard) = start(out.clone()).unwrap();
        for n in 0..100 {
            writer
                .make_writer()
                .write_all(format!("{n}\n").as_bytes())
                .unwrap();
        }
        drop(guard);
        let expected: String = (0..100).map(|n| format!("{n}\n")).collect();
        assert_eq!(*out.0.lock(), expected.into_bytes());
    }

    #[test]
    fn a_reader_that_does_not_read_holds_neither_a_line_nor_the_end() {
        let (_release, held) = sync_channel(0);
        let (writer, guard) = start(Stuck(held)).unwrap();
        for _ in 0..LINES_WAITING_MAX * 2 {
            writer.make_writer().write_all(b"line\n").unwrap();
        }
        drop(guard);
    }
}
