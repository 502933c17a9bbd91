//! Streams that give up when nothing moves.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Says whether silence on a stream is to be expected, as while an answer is being made.
#[derive(Debug, Clone, Default)]
pub(super) struct IdleControl(Arc<AtomicBool>);

impl IdleControl {
    /// Silence is to be expected from now on.
    pub(super) fn pause(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Silence counts again.
    pub(super) fn resume(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_paused(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that fails with `TimedOut` when neither direction moves for a while and [`IdleControl`] does not say that this is
/// to be expected. So neither a silent peer nor one that does not read holds a connection for ever.
pub(super) struct IdleStream<S> {
    stream: S,
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    control: IdleControl,
}

impl<S> IdleStream<S> {
    pub(super) fn new(stream: S, timeout: Duration, control: IdleControl) -> Self {
        Self {
            stream,
            timeout,
            deadline: Box::pin(tokio::time::sleep(timeout)),
            control,
        }
    }

    fn restart(&mut self) {
        if let Some(next) = Instant::now().checked_add(self.timeout) {
            self.deadline.as_mut().reset(next);
        }
    }

    /// Passes `polled` on; pending beyond the deadline becomes an error.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.restart();
            return polled;
        }
        while self.deadline.as_mut().poll(cx).is_ready() {
            if !self.control.is_paused() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            // Polled again, so that the new deadline wakes this task.
            self.restart();
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.watch(cx, polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
