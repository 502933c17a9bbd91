//! Where the commands write: messages to standard output, the summary to where nobody takes it for a message.

use std::io;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::Tally;

/// Writes the lines of one command.
#[derive(Debug)]
pub(super) struct Output<W> {
    out: W,
    form: Form,
}

/// For whom is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// JSON objects, one a line (`--json`).
    pub(super) json: bool,
    /// No summary (`--quiet`).
    pub(super) quiet: bool,
}

impl<W: AsyncWrite + Unpin> Output<W> {
    pub(super) fn new(out: W, form: Form) -> Self {
        Self { out, form }
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Writes a text and a line feed, and waits until both are written. Not cancel-safe: dropped, a part may be written.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) async fn line(&mut self, text: &str) -> io::Result<()> {
        let mut line = String::with_capacity(text.len() + 1);
        line.push_str(text);
        line.push('\n');
        self.out.write_all(line.as_bytes()).await?;
        self.out.flush().await
    }

    /// Says how many messages there were, as `pulsar-client` says it; to standard error where standard output is for
    /// programs. What could not be read is always told there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) async fn summary(&mut self, tally: Tally, done: &str) -> io::Result<()> {
        let Tally {
            messages,
            discarded,
        } = tally;
        let mut text = format!("{messages} messages successfully {done}");
        if discarded > 0 {
            let unreadable = format!("{discarded} entries could not be read and were dropped");
            super::complain(&unreadable);
            text = format!("{text}\n{unreadable}");
        }
        match self.form {
            Form { quiet: true, .. } => Ok(()),
            Form { json: true, .. } => {
                super::complain(&format_args!("{messages} messages successfully {done}"));
                Ok(())
            }
            Form { json: false, .. } => self.line(&text).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn written(form: Form, discarded: u64) -> String {
        let mut out = Vec::new();
        let mut output = Output::new(&mut out, form);
        output.line("x").await.expect("written");
        let tally = Tally {
            messages: 3,
            discarded,
        };
        output.summary(tally, "read").await.expect("written");
        String::from_utf8(out).expect("text")
    }

    #[tokio::test]
    async fn the_summary_is_never_among_objects_for_programs() {
        let form = |json, quiet| Form { json, quiet };
        assert_eq!(
            written(form(false, false), 0).await,
            "x\n3 messages successfully read\n"
        );
        assert_eq!(
            written(form(false, false), 2).await,
            "x\n3 messages successfully read\n2 entries could not be read and were dropped\n"
        );
        assert_eq!(written(form(false, true), 2).await, "x\n");
        assert_eq!(written(form(true, false), 2).await, "x\n");
    }
}
