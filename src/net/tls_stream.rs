//! A stream with TLS or without, as one type. // hot path
//!
//! Owns how a TLS stream is read: from the socket in large pieces, and all records of a piece at once. Left alone, the library
//! reads 4 KiB at a time and hands out one record at a time, which costs a relay more than the cryptography. Between two polls
//! nothing is held but the bytes of an unfinished record.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{client, server};

use super::scratch;

/// A connection that we opened.
pub type Stream = MaybeTls<client::TlsStream<ReadAhead<TcpStream>>>;
/// A connection that we accepted.
pub type ServerStream = MaybeTls<server::TlsStream<ReadAhead<TcpStream>>>;

/// A connection, with TLS or without. The end of a TLS stream counts as such with and without a close_notify before it: what is
/// read here knows by itself where it ends.
pub enum MaybeTls<T> {
    /// Without.
    Plain(TcpStream),
    /// With; the state of TLS is large.
    Tls(Box<T>),
}

impl ServerStream {
    /// The certificate (DER) that the client presented: one of a trusted issuer, or any where the settings take any. `None`
    /// without TLS, and where the client has none.
    #[must_use]
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => {
                let certificates = stream.get_ref().1.peer_certificates()?;
                certificates.first().map(AsRef::as_ref)
            }
        }
    }

    /// The socket below, for its options and addresses.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.get_ref().0.stream,
        }
    }
}

impl Stream {
    /// The socket below, for its addresses.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.get_ref().0.stream,
        }
    }
}

/// What the two TLS streams of the library have in common for us.
pub trait HasReadAhead {
    /// The reading side below TLS.
    fn ahead(&mut self) -> &mut ReadAhead<TcpStream>;
}

impl HasReadAhead for client::TlsStream<ReadAhead<TcpStream>> {
    fn ahead(&mut self) -> &mut ReadAhead<TcpStream> {
        self.get_mut().0
    }
}

impl HasReadAhead for server::TlsStream<ReadAhead<TcpStream>> {
    fn ahead(&mut self) -> &mut ReadAhead<TcpStream> {
        self.get_mut().0
    }
}

impl<T> MaybeTls<T>
where
    T: AsyncRead + Unpin + HasReadAhead,
{
    /// TLS whose handshake is over.
    pub(super) fn tls(mut stream: T) -> Self {
        stream.ahead().is_on = true;
        Self::Tls(Box::new(stream))
    }
}

impl<T> fmt::Debug for MaybeTls<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(stream) => f.debug_tuple("Plain").field(stream).finish(),
            Self::Tls(_) => f.debug_tuple("Tls").finish_non_exhaustive(),
        }
    }
}

/// Reads until nothing is there, or there is no room, or what is left below TLS is no whole record.
fn poll_read_tls<T>(
    stream: &mut T,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>>
where
    T: AsyncRead + Unpin + HasReadAhead,
{
    let before = buf.filled().len();
    let polled = loop {
        let filled = buf.filled().len();
        match Pin::new(&mut *stream).poll_read(cx, buf) {
            Poll::Ready(Ok(()))
                if buf.filled().len() > filled
                    && buf.remaining() > 0
                    && stream.ahead().has_bytes() => {}
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                break Poll::Ready(Ok(()));
            }
            // What was read before is told first, and the rest at the next call.
            Poll::Ready(Err(error)) if buf.filled().len() > before => {
                stream.ahead().failed = Some(error);
                break Poll::Ready(Ok(()));
            }
            Poll::Pending if buf.filled().len() > before => break Poll::Ready(Ok(())),
            polled => break polled,
        }
    };
    stream.ahead().settle();
    polled
}

impl<T> AsyncRead for MaybeTls<T>
where
    T: AsyncRead + Unpin + HasReadAhead,
{
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => poll_read_tls(&mut **stream, cx, buf),
        }
    }
}

impl<T> AsyncWrite for MaybeTls<T>
where
    T: AsyncWrite + Unpin,
{
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A stream that is read in large pieces for a reader that takes small ones.
#[derive(Debug)]
pub struct ReadAhead<S> {
    stream: S,
    /// Off during the handshake: strangers get no buffer.
    is_on: bool,
    ahead: Ahead,
    /// To be told at the next read.
    failed: Option<io::Error>,
}

/// Bytes that were read and not taken yet; never none of them.
#[derive(Debug)]
enum Ahead {
    Nothing,
    /// In a buffer of the thread, from `start` to `end`; only within one poll.
    Leased {
        buffer: Box<[u8]>,
        start: usize,
        end: usize,
    },
    /// In memory of their own.
    Kept(Bytes),
}

impl<S> ReadAhead<S> {
    /// Passes everything through until the handshake is over.
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            is_on: false,
            ahead: Ahead::Nothing,
            failed: None,
        }
    }

    /// The stream alone.
    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    fn has_bytes(&self) -> bool {
        !matches!(self.ahead, Ahead::Nothing)
    }

    /// Gives the thread's buffer back at the end of a poll.
    fn settle(&mut self) {
        self.ahead = match std::mem::replace(&mut self.ahead, Ahead::Nothing) {
            Ahead::Leased { buffer, start, end } => {
                let left = buffer.get(start..end).unwrap_or_default();
                let left = Bytes::copy_from_slice(left);
                scratch::give(buffer);
                Ahead::Kept(left)
            }
            other => other,
        };
    }

    /// Hands out what is there. Returns whether something was.
    fn take(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let is_empty = match &mut self.ahead {
            Ahead::Nothing => return false,
            Ahead::Leased { buffer, start, end } => {
                let left = buffer.get(*start..*end).unwrap_or_default();
                let taken = left.len().min(buf.remaining());
                buf.put_slice(left.get(..taken).unwrap_or_default());
                *start += taken;
                *start >= *end
            }
            Ahead::Kept(bytes) => {
                let taken = bytes.len().min(buf.remaining());
                buf.put_slice(bytes.get(..taken).unwrap_or_default());
                bytes.advance(taken);
                bytes.is_empty()
            }
        };
        if is_empty {
            match std::mem::replace(&mut self.ahead, Ahead::Nothing) {
                Ahead::Leased { buffer, .. } => scratch::give(buffer),
                Ahead::Kept(_) | Ahead::Nothing => {}
            }
        }
        true
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(error) = this.failed.take() {
            return Poll::Ready(Err(error));
        }
        if !this.is_on {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        if this.take(buf) {
            return Poll::Ready(Ok(()));
        }
        let mut buffer = scratch::take();
        let mut piece = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut this.stream).poll_read(cx, &mut piece);
        let end = piece.filled().len();
        if end == 0 {
            scratch::give(buffer);
            return polled;
        }
        this.ahead = Ahead::Leased {
            buffer,
            start: 0,
            end,
        };
        this.take(buf);
        ready!(polled)?;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::net::{TlsClient, TlsOptions};
    use crate::testing::certificates::Authority;
    use crate::testing::tls::acceptor;

    /// Reads `total` bytes with room for `room` at a time.
    async fn read_in_pieces(stream: &mut Stream, room: usize, total: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = vec![0; room];
        while all.len() < total {
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0, "it ended after {} bytes", all.len());
            all.extend_from_slice(&buffer[..read]);
        }
        all
    }

    #[tokio::test]
    async fn every_byte_arrives_in_order_whatever_room_there_is() {
        let authority = Authority::new("ours");
        let tls = acceptor(&authority.sign(&["localhost"]), &[], None);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sent: Arc<[u8]> = (0..1_000_000_u32).map(|n| (n % 253) as u8).collect();
        let rooms = [1, 31, 4_096, 16_384, 100_000, 2_000_000];
        let tracker = tokio_util::task::TaskTracker::new();
        let bytes = Arc::clone(&sent);
        tracker.spawn(async move {
            for _ in rooms {
                let (socket, _) = listener.accept().await.unwrap();
                let mut stream = tls.accept(socket).await.unwrap();
                stream.write_all(&bytes).await.unwrap();
                // No close_notify.
                stream.flush().await.unwrap();
            }
        });
        let client = TlsClient::new(&TlsOptions {
            trusted: Some(authority.pem().into_bytes()),
            ..TlsOptions::default()
        });
        let client = client.unwrap();
        for room in rooms {
            let socket = TcpStream::connect(address).await.unwrap();
            let mut stream = client.connect(socket, "localhost").await.unwrap();
            let received = read_in_pieces(&mut stream, room, sent.len()).await;
            assert!(received == sent[..], "{room}");
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "its end is an end");
            let Stream::Tls(mut inner) = stream else {
                panic!("no TLS")
            };
            assert!(!inner.ahead().has_bytes(), "an idle stream holds nothing");
        }
    }
}
