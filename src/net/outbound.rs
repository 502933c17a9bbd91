//! The way out of a connection: two lanes in memory, written by one task. // hot path
//!
//! Whoever has something to send puts it into a lane and never waits; the [`OutboundWriter`] alone waits for the socket.
//! The *urgent* lane holds a few frames that must not stand behind bulk data (PING, PONG, AUTH_CHALLENGE) and is taken
//! whenever a frame has ended; the *ordered* lane holds all else and is bounded by bytes. A peer that stops reading
//! makes [`Outbound::send`] answer [`OutboundError::Full`]; it can never make the lanes grow.
//!
//! Frames below 1 KiB are copied into shared segments, since one write of many small frames is cheaper than a vector of
//! them; larger ones are passed on as they are.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::Arc,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::Notify,
};

use crate::protocol::{
    command::Command,
    frame::{self, Frame},
};

/// Bounds of the two lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboundLimits {
    /// Bytes of the ordered lane, those being written included, from which on [`Outbound::send`] answers `Full`. The
    /// lane holds at most this and one frame. Each frame counts 64 bytes more than it is long. The low watermark is half
    /// of it.
    pub high_watermark: usize,
    /// Frames that the urgent lane holds.
    pub urgent_max: usize,
}

impl Default for OutboundLimits {
    /// 1 MiB and 16 urgent frames.
    fn default() -> Self {
        Self {
            high_watermark: 1024 * 1024,
            urgent_max: 16,
        }
    }
}

/// Makes the two ends of a connection's way out.
pub fn channel(limits: OutboundLimits) -> (Outbound, OutboundWriter) {
    let shared = Arc::new(Shared {
        limits,
        lanes: Mutex::new(Lanes::default()),
        work: Notify::new(),
        drained: Notify::new(),
    });
    let handle = Arc::new(Handle {
        shared: Arc::clone(&shared),
    });
    (Outbound { handle }, OutboundWriter { shared })
}

/// The sending end; clones share the lanes. When the last clone is gone the writer flushes and ends.
#[derive(Debug, Clone)]
pub struct Outbound {
    handle: Arc<Handle>,
}

/// One thing to send.
#[derive(Debug, Clone)]
pub enum Outgoing<'a> {
    /// A command without payload; encoded at once, straight into the lane.
    Command(&'a Command),
    /// A frame whose length fields are still to be written.
    Frame(Frame),
    /// Bytes of whole frames, length fields included. Counted as one frame.
    Raw(Bytes),
    /// One frame in two parts.
    Message {
        /// The frame up to its payload, length fields included.
        header: Bytes,
        /// The rest of the frame.
        payload: Bytes,
    },
}

/// Why something was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutboundError {
    /// The lane has reached its bound: the peer reads more slowly than we send. Wait for [`Outbound::ready`].
    #[error("the outbound queue is full")]
    Full,
    /// The connection ended or is being closed.
    #[error("the connection is closed")]
    Closed,
}

impl Outbound {
    /// Queues behind all that was sent before. Never waits.
    ///
    /// # Errors
    /// `Full` at the bound and `Closed` after the end; nothing was queued then.
    pub fn send(&self, outgoing: Outgoing<'_>) -> Result<(), OutboundError> {
        let mut lanes = self.handle.shared.lanes.lock();
        lanes.check_open()?;
        if lanes.charged >= self.handle.shared.limits.high_watermark {
            return Err(OutboundError::Full);
        }
        lanes.push_ordered(outgoing);
        drop(lanes);
        self.handle.shared.work.notify_one();
        Ok(())
    }

    /// Queues in front of the ordered lane, at the next end of a frame. Never waits.
    ///
    /// # Errors
    /// `Full` when `urgent_max` frames wait and `Closed` after the end; nothing was queued then.
    pub fn send_urgent(&self, outgoing: Outgoing<'_>) -> Result<(), OutboundError> {
        let mut lanes = self.handle.shared.lanes.lock();
        lanes.check_open()?;
        if lanes.urgent_frames >= self.handle.shared.limits.urgent_max {
            return Err(OutboundError::Full);
        }
        lanes.urgent_frames += 1;
        write_whole(outgoing, &mut lanes.urgent);
        drop(lanes);
        self.handle.shared.work.notify_one();
        Ok(())
    }

    /// Whether [`ready`](Self::ready) would return at once.
    pub fn is_ready(&self) -> bool {
        let shared = &self.handle.shared;
        let lanes = shared.lanes.lock();
        lanes.charged <= shared.low_watermark()
    }

    /// Waits until the ordered lane is at or below its low watermark. Cancel-safe.
    ///
    /// # Errors
    /// `Closed` when the connection ends or is being closed, also while waiting.
    pub async fn ready(&self) -> Result<(), OutboundError> {
        let shared = &self.handle.shared;
        loop {
            let mut drained = std::pin::pin!(shared.drained.notified());
            // Registered before looking, so that a drain between the look and the wait is not missed.
            drained.as_mut().enable();
            {
                let lanes = shared.lanes.lock();
                lanes.check_open()?;
                if lanes.charged <= shared.low_watermark() {
                    return Ok(());
                }
            }
            drained.await;
        }
    }

    /// Refuses further sends; the writer sends what is queued, shuts its side of the socket down and ends.
    ///
    /// A peer that does not read can hold the writer for ever, so its owner gives it a deadline.
    pub fn close_after_flush(&self) {
        self.handle.shared.close_after_flush();
    }

    /// Whether sends are refused because the connection ended or is being closed.
    pub fn is_closed(&self) -> bool {
        self.handle.shared.lanes.lock().phase != Phase::Open
    }

    /// Bytes that count against the high watermark now.
    pub fn queued_bytes(&self) -> usize {
        self.handle.shared.lanes.lock().charged
    }
}

/// The writing end: owned by the one task that may wait for the socket. Dropping it closes the lanes and frees them.
#[derive(Debug)]
pub struct OutboundWriter {
    shared: Arc<Shared>,
}

impl OutboundWriter {
    /// Writes until [`Outbound::close_after_flush`] or until the last [`Outbound`] is gone, and all is flushed; then
    /// shuts the writing side down. Not cancel-safe: dropped early, it may leave half a frame in the socket.
    ///
    /// # Errors
    /// The first error of the socket; what was queued is dropped and senders see `Closed`.
    pub async fn run<W: AsyncWrite + Unpin>(mut self, mut writer: W) -> io::Result<()> {
        self.drain(&mut writer).await?;
        writer.shutdown().await
    }

    /// As [`run`](Self::run), but leaves the writing side open, for a caller that goes on with the socket.
    ///
    /// # Errors
    /// The first error of the socket.
    pub async fn drain<W: AsyncWrite + Unpin>(&mut self, writer: &mut W) -> io::Result<()> {
        let mut batch = Batch::default();
        let mut unflushed = false;
        loop {
            let phase = self.shared.lanes.lock().take(&mut batch);
            if batch.has_remaining() || batch.charge > 0 {
                let written = writer.write_all_buf(&mut batch).await;
                self.shared.release(std::mem::take(&mut batch.charge));
                written?;
                unflushed = true;
                continue;
            }
            if std::mem::take(&mut unflushed) {
                // What is queued meanwhile is seen by the next turn.
                writer.flush().await?;
                continue;
            }
            match phase {
                Phase::Open => {
                    // An idle connection keeps no room for segments.
                    batch = Batch::default();
                    self.shared.work.notified().await;
                }
                Phase::Flushing | Phase::Closed => return Ok(()),
            }
        }
    }
}

impl Drop for OutboundWriter {
    fn drop(&mut self) {
        *self.shared.lanes.lock() = Lanes {
            phase: Phase::Closed,
            ..Lanes::default()
        };
        self.shared.drained.notify_waiters();
    }
}

/// What all clones of [`Outbound`] hold; the last one to go closes the lanes.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close_after_flush();
    }
}

#[derive(Debug)]
struct Shared {
    limits: OutboundLimits,
    lanes: Mutex<Lanes>,
    /// Wakes the writer; keeps one permit, so a send before the wait is not lost.
    work: Notify,
    /// Wakes all that wait in `ready`.
    drained: Notify,
}

impl Shared {
    fn low_watermark(&self) -> usize {
        self.limits.high_watermark / 2
    }

    fn close_after_flush(&self) {
        let mut lanes = self.lanes.lock();
        if lanes.phase == Phase::Open {
            lanes.phase = Phase::Flushing;
        }
        drop(lanes);
        self.work.notify_one();
        self.drained.notify_waiters();
    }

    fn release(&self, charge: usize) {
        let mut lanes = self.lanes.lock();
        lanes.charged = lanes.charged.saturating_sub(charge);
        let drained = lanes.charged <= self.low_watermark();
        drop(lanes);
        if drained {
            self.drained.notify_waiters();
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Nothing more is taken in; what is queued is still written.
    Flushing,
    /// The writer is gone.
    Closed,
}

#[derive(Debug, Default)]
struct Lanes {
    phase: Phase,
    urgent: BytesMut,
    /// Frames in `urgent`.
    urgent_frames: usize,
    ordered: VecDeque<Segment>,
    /// What the ordered lane and the batch being written count against the high watermark.
    charged: usize,
}

/// Bytes that are adjacent in the ordered lane. One that does not end a frame is followed by the rest of that frame.
#[derive(Debug)]
struct Segment {
    bytes: SegmentBytes,
    /// Frames that begin in this segment.
    frames: usize,
    ends_frame: bool,
    charge: usize,
}

#[derive(Debug)]
enum SegmentBytes {
    /// Small frames copied together.
    Copied(BytesMut),
    /// A large piece as it came.
    Shared(Bytes),
}

impl Segment {
    fn len(&self) -> usize {
        match &self.bytes {
            SegmentBytes::Copied(bytes) => bytes.len(),
            SegmentBytes::Shared(bytes) => bytes.len(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self.bytes {
            SegmentBytes::Copied(bytes) => bytes.freeze(),
            SegmentBytes::Shared(bytes) => bytes,
        }
    }
}

impl Lanes {
    fn check_open(&self) -> Result<(), OutboundError> {
        match self.phase {
            Phase::Open => Ok(()),
            Phase::Flushing | Phase::Closed => Err(OutboundError::Closed),
        }
    }

    fn push_ordered(&mut self, outgoing: Outgoing<'_>) {
        let mut charge = FRAME_OVERHEAD;
        match outgoing {
            Outgoing::Command(command) => {
                charge += self.copy(true, |buffer| command.encode(buffer))
            }
            Outgoing::Frame(Frame { command, payload }) => {
                let payload_len = payload.len();
                let head = |buffer: &mut BytesMut| {
                    frame::put_head(buffer, command.len(), payload_len);
                    buffer.put_slice(&command);
                };
                charge += self.push_parts(head, payload);
            }
            Outgoing::Raw(bytes) if bytes.len() < COPY_BELOW => {
                charge += self.copy(true, |b| b.put_slice(&bytes))
            }
            Outgoing::Raw(bytes) => charge += self.share(bytes, 1),
            Outgoing::Message { header, payload } => {
                charge += self.push_parts(|buffer| buffer.put_slice(&header), payload);
            }
        }
        self.charged += charge;
        if let Some(last) = self.ordered.back_mut() {
            last.charge += charge;
        }
    }

    fn push_parts(&mut self, head: impl FnOnce(&mut BytesMut), payload: Bytes) -> usize {
        if payload.len() < COPY_BELOW {
            return self.copy(true, |buffer| {
                head(buffer);
                buffer.put_slice(&payload);
            });
        }
        let head_len = self.copy(false, head);
        head_len + self.share(payload, 0)
    }

    /// Appends one frame, or the beginning of one, to the copied segment at the end; returns the bytes added.
    fn copy(&mut self, ends_frame: bool, write: impl FnOnce(&mut BytesMut)) -> usize {
        let room = matches!(
            self.ordered.back(),
            Some(Segment { bytes: SegmentBytes::Copied(bytes), frames, .. })
                if bytes.len() < SEGMENT_LEN && *frames < BATCH_FRAMES
        );
        if !room {
            self.ordered.push_back(Segment {
                bytes: SegmentBytes::Copied(BytesMut::new()),
                frames: 0,
                ends_frame,
                charge: 0,
            });
        }
        let Some(Segment {
            bytes: SegmentBytes::Copied(bytes),
            frames,
            ends_frame: ends,
            ..
        }) = self.ordered.back_mut()
        else {
            unreachable!("a copied segment is at the end of the lane");
        };
        let before = bytes.len();
        write(bytes);
        *frames += 1;
        *ends = ends_frame;
        bytes.len() - before
    }

    fn share(&mut self, bytes: Bytes, frames: usize) -> usize {
        let len = bytes.len();
        self.ordered.push_back(Segment {
            bytes: SegmentBytes::Shared(bytes),
            frames,
            ends_frame: true,
            charge: 0,
        });
        len
    }

    /// Moves the next whole frames into the empty `batch`: the urgent ones, then ordered ones up to the batch's bounds.
    fn take(&mut self, batch: &mut Batch) -> Phase {
        if self.urgent_frames > 0 {
            self.urgent_frames = 0;
            batch.push(std::mem::take(&mut self.urgent).freeze());
        }
        let (mut frames, mut bytes, mut at_boundary) = (0, 0, true);
        while let Some(segment) = self.ordered.front() {
            let within =
                frames + segment.frames <= BATCH_FRAMES && bytes + segment.len() <= BATCH_BYTES;
            if at_boundary && bytes > 0 && !within {
                break;
            }
            let Some(segment) = self.ordered.pop_front() else {
                break;
            };
            frames += segment.frames;
            bytes += segment.len();
            at_boundary = segment.ends_frame;
            batch.charge += segment.charge;
            batch.push(segment.into_bytes());
        }
        if self.ordered.is_empty() {
            // The room that a burst needed is not kept by an idle connection.
            self.ordered = VecDeque::new();
        }
        self.phase
    }
}

/// What is being written: whole frames in order.
#[derive(Debug, Default)]
struct Batch {
    /// None of them is empty.
    segments: VecDeque<Bytes>,
    charge: usize,
}

impl Batch {
    fn push(&mut self, bytes: Bytes) {
        // An empty segment would make the writer take a write of nothing for a closed socket.
        if !bytes.is_empty() {
            self.segments.push_back(bytes);
        }
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.segments.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.segments.front().map_or(&[], |bytes| bytes)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slice, bytes) in slices.iter_mut().zip(&self.segments) {
            *slice = IoSlice::new(bytes);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(front) = self.segments.front_mut() {
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.segments.pop_front();
        }
        assert_eq!(count, 0, "a writer took more bytes than it was given");
    }

    fn has_remaining(&self) -> bool {
        !self.segments.is_empty()
    }
}

fn write_whole(outgoing: Outgoing<'_>, buffer: &mut BytesMut) {
    match outgoing {
        Outgoing::Command(command) => command.encode(buffer),
        Outgoing::Frame(frame) => frame.encode(buffer),
        Outgoing::Raw(bytes) => buffer.put_slice(&bytes),
        Outgoing::Message { header, payload } => {
            buffer.put_slice(&header);
            buffer.put_slice(&payload);
        }
    }
}

/// Below this copying beats an entry of its own in a vectored write (measured: 1.65 times at 64 bytes, even at 1 KiB).
const COPY_BELOW: usize = 1024;
/// A copied segment at least this long takes no further frame.
const SEGMENT_LEN: usize = 16 * 1024;
/// Frames in one write.
const BATCH_FRAMES: usize = 128;
/// Bytes in one write; a single frame may be longer.
const BATCH_BYTES: usize = 256 * 1024;
/// What a frame counts beyond its bytes, so that empty ones are bounded as well.
const FRAME_OVERHEAD: usize = 64;

#[cfg(test)]
mod tests;
