//! Frames from a socket. // hot path
//!
//! Waiting costs no memory: bytes are read into the thread's [`scratch`] buffer and copied out in one
//! allocation that the frames share as slices. Only an incomplete frame stays in the reader, in a buffer of exactly the
//! size that its (limit-checked) length says; when much of it is missing, the rest is read straight into that buffer.
//! Nothing is kept once a frame is complete, so a connection that saw one large frame is as small as any other.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use super::scratch;
use crate::protocol::frame::{Frame, FrameDecoder, FrameError, FrameLimits};

/// Reads frames from `R`.
#[derive(Debug)]
pub struct FrameReader<R> {
    io: R,
    decoder: FrameDecoder,
    /// Bytes from the boundary of a frame on.
    buffer: BytesMut,
    /// Whether `buffer` is an allocation of its own with room for the rest of its frame, where that is known.
    owned: bool,
    /// Bytes that follow `buffer`. Not empty only while `buffer` holds exactly one frame that was completed by a read
    /// which brought more; they are kept apart so that the frame is not copied again.
    behind: BytesMut,
}

/// Why no more frames can be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The socket failed.
    #[error("reading from the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The bytes are no frame, or one above the limit; the stream has no further frame boundary.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The stream ended inside a frame.
    #[error("the connection ended {received} bytes into a frame")]
    Truncated {
        /// Bytes of the frame that had come, its length fields included.
        received: usize,
    },
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader of frames no longer than `limits` say.
    pub fn new(io: R, limits: FrameLimits) -> Self {
        Self {
            io,
            decoder: FrameDecoder::new(limits),
            buffer: BytesMut::new(),
            owned: false,
            behind: BytesMut::new(),
        }
    }

    /// Changes the limits for the frames that follow.
    pub fn set_limits(&mut self, limits: FrameLimits) {
        self.decoder.set_limits(limits);
    }

    /// The next frame, or `None` when the peer ended the stream after a whole frame. Cancel-safe: bytes that were read
    /// stay in the reader.
    ///
    /// The frame shares the allocation of what one read brought (at most 128 KiB), so whoever keeps a small one for long
    /// copies it.
    ///
    /// # Errors
    /// See [`ReadError`]; nothing more can be read afterwards.
    pub async fn next(&mut self) -> Result<Option<Frame>, ReadError> {
        loop {
            if let Some(frame) = self.decode()? {
                return Ok(Some(frame));
            }
            if self.fill().await? == 0 {
                return match self.buffer.len() {
                    0 => Ok(None),
                    received => Err(ReadError::Truncated { received }),
                };
            }
        }
    }

    /// A frame that is already here whole, without reading.
    ///
    /// # Errors
    /// [`ReadError::Frame`].
    pub fn next_buffered(&mut self) -> Result<Option<Frame>, ReadError> {
        self.decode()
    }

    /// The stream and the bytes that were read from it but not returned as frames.
    pub fn into_parts(self) -> (R, Bytes) {
        let mut unread = self.buffer;
        if unread.is_empty() {
            unread = self.behind;
        } else {
            unread.extend_from_slice(&self.behind);
        }
        (self.io, unread.freeze())
    }

    /// The stream.
    pub fn get_ref(&self) -> &R {
        &self.io
    }

    /// The stream; reading from it takes bytes away from the frames.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.io
    }

    fn decode(&mut self) -> Result<Option<Frame>, ReadError> {
        let mut frame = self.decoder.decode(&mut self.buffer)?;
        if self.buffer.is_empty() {
            // Taken as a whole, the bytes before keep their allocation alive only as long as a frame does.
            self.buffer = std::mem::take(&mut self.behind);
            if frame.is_none() && !self.buffer.is_empty() {
                frame = self.decoder.decode(&mut self.buffer)?;
            }
            self.owned = false;
        }
        self.owned &= frame.is_none();
        Ok(frame)
    }

    /// Reads once; returns the bytes read, 0 at the end of the stream. Only called when no whole frame is here.
    async fn fill(&mut self) -> io::Result<usize> {
        let missing = self.decoder.missing(&self.buffer);
        if missing >= DIRECT_READ_MIN {
            self.own_buffer(missing);
            return self
                .io
                .read_buf(&mut (&mut self.buffer).limit(missing))
                .await;
        }
        poll_fn(|cx| self.poll_fill(cx, missing)).await
    }

    /// Reads through the scratch buffer, which is given back before this returns.
    fn poll_fill(&mut self, cx: &mut Context<'_>, missing: usize) -> Poll<io::Result<usize>> {
        if !self.buffer.is_empty() {
            // Before waiting: what is waited with must not pin the chunk that it came in.
            self.own_buffer(missing);
        }
        scratch::with(|scratch| {
            let mut read = ReadBuf::new(scratch);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
            let bytes = read.filled();
            self.take_in(bytes, missing);
            Poll::Ready(Ok(bytes.len()))
        })
    }

    fn take_in(&mut self, bytes: &[u8], missing: usize) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::from(bytes);
            self.owned = false;
            return;
        }
        if missing == 0 {
            // Less than a length field is here: begin anew with both parts in one allocation.
            let mut joined = BytesMut::with_capacity(self.buffer.len() + bytes.len());
            joined.extend_from_slice(&self.buffer);
            joined.extend_from_slice(bytes);
            self.buffer = joined;
            self.owned = false;
            return;
        }
        let (rest_of_frame, behind) = bytes.split_at(missing.min(bytes.len()));
        self.buffer.extend_from_slice(rest_of_frame);
        if !behind.is_empty() {
            self.behind = BytesMut::from(behind);
        }
    }

    /// Gives the incomplete frame in `buffer` an allocation of its own that has room for the `missing` bytes.
    fn own_buffer(&mut self, missing: usize) {
        if self.owned {
            return;
        }
        let mut own = BytesMut::with_capacity(self.buffer.len() + missing);
        own.extend_from_slice(&self.buffer);
        self.buffer = own;
        self.owned = true;
    }
}

/// From this many missing bytes on, one more read call costs less than copying them out of the scratch buffer.
const DIRECT_READ_MIN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn frame(len: usize) -> Frame {
        let payload: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
        Frame {
            command: Bytes::from_static(b"command"),
            payload: Bytes::from(payload),
        }
    }

    fn wire(frames: &[Frame]) -> BytesMut {
        let mut wire = BytesMut::new();
        for frame in frames {
            frame.encode(&mut wire);
        }
        wire
    }

    fn pair(capacity: usize) -> (DuplexStream, FrameReader<DuplexStream>) {
        let (peer, io) = duplex(capacity);
        (peer, FrameReader::new(io, FrameLimits::default()))
    }

    /// Polls `next` once and drops it.
    async fn poll_once(
        reader: &mut FrameReader<DuplexStream>,
    ) -> Option<Result<Option<Frame>, ReadError>> {
        let mut next = std::pin::pin!(reader.next());
        poll_fn(|cx| match next.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn reads_frames_that_come_together_and_ends_at_a_boundary() {
        let (mut peer, mut reader) = pair(4096);
        let frames = [frame(0), frame(10), frame(100)];
        peer.write_all(&wire(&frames)).await.unwrap();
        drop(peer);
        for expected in &frames {
            assert_eq!(reader.next().await.unwrap().as_ref(), Some(expected));
        }
        assert!(reader.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn an_end_inside_a_frame_is_an_error() {
        let (mut peer, mut reader) = pair(4096);
        peer.write_all(&wire(&[frame(10)])[..9]).await.unwrap();
        drop(peer);
        assert!(matches!(
            reader.next().await,
            Err(ReadError::Truncated { received: 9 })
        ));
    }

    #[tokio::test]
    async fn a_size_above_the_limit_reserves_nothing() {
        let (mut peer, mut reader) = pair(64);
        peer.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
        assert!(matches!(
            reader.next().await,
            Err(ReadError::Frame(FrameError::TooLarge { .. }))
        ));
        assert!(reader.buffer.capacity() <= 64);
    }

    #[tokio::test]
    async fn waiting_holds_no_buffer_also_after_a_large_frame() {
        let (mut peer, mut reader) = pair(8 * 1024 * 1024);
        let large = frame(3 * 1024 * 1024);
        peer.write_all(&wire(&[frame(5), large.clone(), frame(6)]))
            .await
            .unwrap();
        assert_eq!(reader.next().await.unwrap(), Some(frame(5)));
        assert_eq!(reader.next().await.unwrap(), Some(large));
        assert_eq!(reader.next().await.unwrap(), Some(frame(6)));
        assert!(poll_once(&mut reader).await.is_none());
        assert_eq!(reader.buffer.capacity() + reader.behind.capacity(), 0);
    }

    #[tokio::test]
    async fn an_incomplete_frame_does_not_pin_the_chunk_it_came_in() {
        let (mut peer, mut reader) = pair(256 * 1024);
        let mut bytes = wire(&[frame(100_000), frame(20)]);
        let last = bytes.split_off(bytes.len() - 5);
        peer.write_all(&bytes).await.unwrap();
        drop(reader.next().await.unwrap());
        assert!(poll_once(&mut reader).await.is_none());
        assert_eq!(reader.buffer.capacity(), frame(20).wire_len());

        peer.write_all(&last).await.unwrap();
        assert_eq!(reader.next().await.unwrap(), Some(frame(20)));
    }

    #[tokio::test]
    async fn fewer_bytes_than_a_length_field_do_not_pin_the_chunk_either() {
        let (mut peer, mut reader) = pair(256 * 1024);
        let bytes = wire(&[frame(100_000), frame(20)]);
        let cut = frame(100_000).wire_len() + 3;
        peer.write_all(&bytes[..cut]).await.unwrap();
        drop(reader.next().await.unwrap());
        assert!(poll_once(&mut reader).await.is_none());
        assert!(reader.buffer.capacity() < 64);
        peer.write_all(&bytes[cut..]).await.unwrap();
        assert_eq!(reader.next().await.unwrap(), Some(frame(20)));
    }

    #[tokio::test]
    async fn new_limits_apply_to_the_next_frame() {
        let (mut peer, mut reader) = pair(4096);
        reader.set_limits(FrameLimits { max_frame: 20 });
        peer.write_all(&wire(&[frame(5), frame(50)])).await.unwrap();
        assert_eq!(reader.next().await.unwrap(), Some(frame(5)));
        reader.set_limits(FrameLimits { max_frame: 100 });
        assert_eq!(reader.next_buffered().unwrap(), Some(frame(50)));
        assert_eq!(reader.next_buffered().unwrap(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Whatever the sizes of writes and frames, and however often `next` is cancelled, the same frames come out, and
        /// what is not decoded is returned by `into_parts`.
        #[test]
        fn frames_survive_any_split_and_any_cancellation(
            sizes in proptest::collection::vec(prop_oneof![0_usize..50, 900..1100_usize, 60_000..200_000_usize], 1..6),
            cuts in proptest::collection::vec(prop_oneof![1_usize..8, 100..2000_usize, 60_000..300_000_usize], 1..20),
            tail in 0_usize..12,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let frames: Vec<Frame> = sizes.iter().map(|size| frame(*size)).collect();
                let mut stream = wire(&frames);
                let unread = frame(100).wire_len().min(tail);
                let extra = wire(&[frame(100)]);
                stream.extend_from_slice(&extra[..unread]);
                let (mut peer, mut reader) = pair(2 * 1024 * 1024);
                let mut read = Vec::new();
                let mut cuts = cuts.iter().cycle();
                while !stream.is_empty() {
                    let cut = stream.len().min(*cuts.next().unwrap());
                    peer.write_all(&stream.split_to(cut)).await.unwrap();
                    while let Some(result) = poll_once(&mut reader).await {
                        read.push(result.unwrap().unwrap());
                    }
                }
                assert_eq!(read, frames);
                let (_, rest) = reader.into_parts();
                assert_eq!(rest, &extra[..unread]);
            });
        }
    }
}
