//! Where the commands write: messages to standard output, the summary to where nobody takes it for a message.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::Tally;

/// Writes the lines of one command.
#[derive(Debug)]
pub(super) struct Output<W> {
    out: W,
    form: Form,
    /// Cancelled by the first signal: from then on a write is not waited for long.
    stop: CancellationToken,
    /// A line was given up half-way: nothing may follow it.
    is_stuck: bool,
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
    pub(super) fn new(out: W, form: Form, stop: CancellationToken) -> Self {
        Self {
            out,
            form,
            stop,
            is_stuck: false,
        }
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Writes a text and a line feed, and waits until both are written. Not cancel-safe: dropped, a part may be written.
    ///
    /// # Errors
    /// When they cannot be written, or nobody has read them soon after the first signal.
    pub(super) async fn line(&mut self, text: &str) -> io::Result<()> {
        let mut line = String::with_capacity(text.len() + 1);
        line.push_str(text);
        line.push('\n');
        let unread = || io::Error::new(io::ErrorKind::TimedOut, "nobody reads it");
        if self.is_stuck {
            return Err(unread());
        }
        let written = async {
            self.out.write_all(line.as_bytes()).await?;
            self.out.flush().await
        };
        let given_up = async {
            self.stop.cancelled().await;
            tokio::time::sleep(PATIENCE).await;
        };
        tokio::select! {
            biased;
            written = written => written,
            () = given_up => {
                self.is_stuck = true;
                Err(unread())
            }
        }
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

/// How long after the first signal a line may take.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    async fn written(form: Form, discarded: u64) -> String {
        let mut out = Vec::new();
        let mut output = Output::new(&mut out, form, CancellationToken::new());
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

    #[tokio::test(start_paused = true)]
    async fn what_nobody_reads_is_given_up_a_second_after_the_signal() {
        let (_unread, out) = tokio::io::duplex(8);
        let stop = CancellationToken::new();
        let begin = tokio::time::Instant::now();
        let mut output = Output::new(out, form(), stop.clone());
        let signal = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            stop.cancel();
        };
        let (written, ()) = tokio::join!(output.line("more than eight bytes"), signal);
        assert_eq!(written.expect_err("unread").kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed().as_secs(), 61);
        assert!(output.line("x").await.is_err());
        assert_eq!(begin.elapsed().as_secs(), 61);
    }

    fn form() -> Form {
        Form {
            json: false,
            quiet: false,
        }
    }
}
