//! One client connection of the null broker: a chunk in, all its answers out in one write. // hot path
//!
//! Owns the socket. Nothing is read while the client does not take what it was sent, so an unread answer costs at most
//! [`OUT_MAX`] bytes and what one chunk is answered with.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::scanner::CommandScanner;
use super::state::{Session, SessionError};
use crate::net::scratch;
use crate::protocol::frame::FrameLimits;

/// Why a connection ended, other than by the client's own end.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Serves a client until it ends. Dropped early, the connection is cut.
///
/// # Errors
/// See [`ConnectionError`].
pub(super) async fn serve<S>(stream: S, session: Session) -> Result<(), ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = Connection {
        stream,
        session,
        scanner: CommandScanner::new(FrameLimits::default()),
        out: BytesMut::new(),
        written: 0,
    };
    poll_fn(|cx| connection.poll(cx)).await
}

struct Connection<S> {
    stream: S,
    session: Session,
    scanner: CommandScanner,
    out: BytesMut,
    /// How much of `out` the socket has taken; `written <= out.len()`.
    written: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        loop {
            let mut waits = true;
            if self.out.len() < OUT_MAX {
                match self.poll_read(cx)? {
                    Poll::Ready(0) => return Poll::Ready(Ok(())),
                    Poll::Ready(_) => waits = false,
                    Poll::Pending => {}
                }
            }
            if self.out.len() < PUSH_LEN && self.session.wants_messages() {
                self.session.push(unix_millis(), PUSH_LEN, &mut self.out);
            }
            if !self.out.is_empty() && self.poll_write(cx)?.is_ready() {
                // The next messages, if there are any; then the client's next commands.
                waits = false;
            }
            if waits {
                return Poll::Pending;
            }
        }
    }

    /// Reads one chunk and answers it into `out`; returns the bytes read, 0 at the client's end.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<Poll<usize>, ConnectionError> {
        scratch::with(|chunk| {
            let mut chunk = ReadBuf::new(chunk);
            match Pin::new(&mut self.stream).poll_read(cx, &mut chunk) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(read) => read?,
            }
            let (session, out) = (&mut self.session, &mut self.out);
            self.scanner
                .scan(chunk.filled(), |command| session.on_command(command, out))?;
            session.count();
            Ok(Poll::Ready(chunk.filled().len()))
        })
    }

    /// Writes `out`; pending while the socket has not taken all of it.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => self.written += written?,
            }
        }
        self.out.clear();
        self.written = 0;
        if self.out.capacity() > OUT_KEPT {
            self.out = BytesMut::new();
        }
        Ok(Poll::Ready(()))
    }
}

/// Milliseconds of the Unix epoch: what consumers take as the time of publication.
fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// From so many unwritten bytes on nothing more is read.
const OUT_MAX: usize = 256 * 1024;
/// Messages are appended until so many bytes wait to be written.
const PUSH_LEN: usize = 128 * 1024;
/// The largest buffer that is kept for the next answers.
const OUT_KEPT: usize = 1024 * 1024;
