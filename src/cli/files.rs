//! Files that a user names to be sent: read with a bound on their size and on the time that nothing comes.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    /// What the operating system says.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is larger, or has no end.
    #[error("has more than {0} bytes, the most that is read of {1}")]
    TooLarge(u64, &'static str),
    /// Nothing came, as of a pipe that nobody writes to.
    #[error("gave nothing for {0:?}")]
    Silent(Duration),
}

/// Reads a file, a pipe or a device to its end.
///
/// # Errors
/// See [`FileError`].
pub(super) fn read(name: &str) -> Result<Vec<u8>, FileError> {
    read_within(name, SILENCE_MAX)
}

/// The thread that reads is left to the end of the process where the file has none, or does not even open, as pipes do
/// until somebody writes to them.
fn read_within(name: &str, silence: Duration) -> Result<Vec<u8>, FileError> {
    let path = PathBuf::from(name);
    let (pieces, incoming) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("file".to_owned())
        .spawn(move || {
            let ended = read_pieces(&path, &pieces).err().map(Err);
            // Whoever waits no longer is not told.
            ended.map(|error| pieces.send(error))
        })?;
    let mut all = Vec::new();
    loop {
        match incoming.recv_timeout(silence) {
            Ok(Ok(piece)) => all.extend_from_slice(&piece),
            Ok(Err(error)) => return Err(error),
            Err(RecvTimeoutError::Disconnected) => return Ok(all),
            Err(RecvTimeoutError::Timeout) => return Err(FileError::Silent(silence)),
        }
    }
}

type Piece = Result<Vec<u8>, FileError>;

fn read_pieces(path: &PathBuf, pieces: &SyncSender<Piece>) -> Result<(), FileError> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    // Files of the kernel say that they are regular and empty.
    let (most, what) = if metadata.is_file() && metadata.len() > 0 {
        (REGULAR_MAX, "a file")
    } else {
        (OTHER_MAX, "a pipe or a device")
    };
    if metadata.len() > most {
        return Err(FileError::TooLarge(most, what));
    }
    let mut total: u64 = 0;
    let mut buffer = vec![0; PIECE_LEN];
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        total = total.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        if total > most {
            return Err(FileError::TooLarge(most, what));
        }
        let piece = buffer.get(..read).unwrap_or_default();
        if pieces.send(Ok(piece.to_vec())).is_err() {
            return Ok(());
        }
    }
}

/// The most that Apache's tool reads: an array of Java.
const REGULAR_MAX: u64 = 2_147_483_639;
/// Of what has no size of its own, and maybe no end.
const OTHER_MAX: u64 = 64 << 20;
const PIECE_LEN: usize = 64 << 10;
/// How long nothing may come.
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_file_is_read_whole() {
        let file = tempfile::NamedTempFile::new().expect("file");
        let content = vec![7; 3_000_000];
        std::fs::write(file.path(), &content).expect("write");
        let read = read(file.path().to_str().expect("UTF-8")).expect("readable");
        assert!(read == content);
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let refused = read("/dev/zero").expect_err("endless");
        assert_eq!(
            refused.to_string(),
            "has more than 67108864 bytes, the most that is read of a pipe or a device"
        );
        assert!(matches!(read("/no/such"), Err(FileError::Io(_))));
        assert!(matches!(read("/"), Err(FileError::Io(_))));
    }

    #[test]
    fn a_file_that_claims_to_be_enormous_is_refused_unread() {
        let file = tempfile::NamedTempFile::new().expect("file");
        file.as_file().set_len(1 << 40).expect("sparse");
        let refused = read(file.path().to_str().expect("UTF-8")).expect_err("too large");
        assert!(matches!(refused, FileError::TooLarge(REGULAR_MAX, _)));
    }

    #[test]
    fn a_pipe_that_nobody_writes_to_is_given_up() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("pipe");
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        let path = path.to_str().expect("UTF-8");
        let refused = read_within(path, Duration::from_millis(50)).expect_err("silent");
        assert!(matches!(refused, FileError::Silent(_)), "{refused}");
        // The thread of before waits as well: whoever writes is read by one of the two.
        let written = std::fs::write(path, "x");
        written.expect("somebody reads");
    }
}
