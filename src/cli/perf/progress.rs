//! What is seen of a run while it goes on, and at its end.

use std::io::{self, IsTerminal as _, Write as _};

use crate::perf::report::{Interval, RunReport};

/// Tells progress on standard error: on a terminal in one line that is written anew, else in a line for each interval.
#[derive(Debug)]
pub(super) struct Progress {
    terminal: bool,
    /// Put in front of every line.
    label: String,
    /// Whether the terminal's line has text.
    open: bool,
}

impl Progress {
    pub(super) fn new(label: String) -> Self {
        Self {
            terminal: on_terminal(),
            label,
            open: false,
        }
    }

    /// Tells of an interval.
    pub(super) fn tell(&mut self, interval: Interval<'_>) {
        let (label, mut out) = (&self.label, io::stderr().lock());
        // A terminal that is gone is no reason to stop measuring.
        let _ = if self.terminal {
            self.open = true;
            write!(out, "\r\x1b[K{label}{interval}").and_then(|()| out.flush())
        } else {
            writeln!(out, "{label}{interval}")
        };
    }

    /// Ends the line on a terminal.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            let _ = writeln!(io::stderr());
        }
    }
}

/// Whether progress goes to a terminal.
pub(super) fn on_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Prints the end report on standard output, as text or as one JSON document.
///
/// # Errors
/// When standard output is closed.
pub(super) fn print_report(report: &RunReport, json: bool) -> io::Result<()> {
    if json {
        return print_json(report);
    }
    writeln!(io::stdout(), "{report}")
}

/// Prints a JSON document on standard output.
///
/// # Errors
/// When standard output is closed.
pub(super) fn print_json(document: &impl serde::Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, document)?;
    writeln!(out)
}
