//! The entries that wait for their receipts, in the order in which they are sent. Pure.
//!
//! Frames are kept as the bytes that went out, so that sending them again after a reconnect costs nothing but the write:
//! a producer keeps its id over all its connections. Frames of one call share a segment, and so does what the connection
//! holds of them.
// hot path

use std::{collections::VecDeque, time::Duration};

use bytes::{Buf, Bytes, BytesMut};

use crate::protocol::{frame::FrameDecoder, message::EncodedParts};

/// One SEND that waits for its receipt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// What SEND names, and the receipt as well.
    pub(crate) sequence_id: u64,
    /// Of a batch, the last sequence id, which the receipt repeats.
    pub(crate) highest_sequence_id: Option<u64>,
    /// The messages whose receipt this is: of a chunked message the last chunk has it.
    pub(crate) messages: u32,
    /// Whether `messages` are a batch.
    pub(crate) is_batch: bool,
    /// Of a chunk: whether it is the first of its message.
    pub(crate) chunk: Option<ChunkPlace>,
    /// What it counts against the bound of bytes.
    pub(crate) charge: usize,
    /// When its first message was enqueued.
    pub(crate) created: Duration,
    /// The length of its frame.
    pub(crate) frame_len: usize,
    /// How often the broker said that its checksum is wrong.
    pub(crate) checksum_errors: u8,
}

/// Which of the chunks of its message an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkPlace {
    First,
    Middle,
    Last,
}

/// Whole frames, to be sent together.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// Frames, or one frame up to `payload`.
    pub(crate) head: Bytes,
    /// The rest of the one frame, if it is large.
    pub(crate) payload: Bytes,
}

/// The queue. `C` is who is told what became of a message.
#[derive(Debug)]
pub(crate) struct Pending<C> {
    entries: VecDeque<Entry>,
    /// One for each message of the entries.
    completions: VecDeque<C>,
    /// The frames of `entries`.
    segments: VecDeque<Segment>,
    /// How many of the first segments the present connection took.
    sent: usize,
    bytes: usize,
    /// Of the entry at the front; those behind it count on.
    first_ordinal: u64,
    /// Where frames are written.
    buffer: BytesMut,
}

impl<C> Pending<C> {
    pub(crate) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            completions: VecDeque::new(),
            segments: VecDeque::new(),
            sent: 0,
            bytes: 0,
            first_ordinal: 0,
            buffer: BytesMut::new(),
        }
    }

    /// Messages that wait.
    pub(crate) fn messages(&self) -> usize {
        self.completions.len()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The charges of all entries.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of the entry at the front, counted from the first that the producer ever sent.
    pub(crate) fn first_ordinal(&self) -> u64 {
        self.first_ordinal
    }

    /// The number that the next entry gets.
    pub(crate) fn next_ordinal(&self) -> u64 {
        self.first_ordinal + self.entries.len() as u64
    }

    /// Where the next frames are written, with room for so many bytes. [`push_written`](Self::push_written) follows.
    pub(crate) fn buffer(&mut self, room: usize) -> &mut BytesMut {
        if self.buffer.capacity() - self.buffer.len() < room {
            // What was written before stays where it is: others hold it.
            self.push_written(Bytes::new());
            self.buffer = BytesMut::with_capacity(room.max(BUFFER_LEN));
        }
        &mut self.buffer
    }

    /// Adds an entry whose frame ends what was written to the buffer, followed by `payload`.
    pub(crate) fn push_entry(&mut self, entry: Entry, completions: impl Iterator<Item = C>) {
        self.bytes += entry.charge;
        self.completions.extend(completions);
        self.entries.push_back(entry);
    }

    /// All that was written to the buffer since the last call becomes a segment.
    pub(crate) fn push_written(&mut self, payload: Bytes) {
        let head = self.buffer.split().freeze();
        if !head.is_empty() {
            self.segments.push_back(Segment { head, payload });
        }
    }

    /// The next frames that the present connection has not got.
    pub(crate) fn unsent(&self) -> Option<&Segment> {
        self.segments.get(self.sent)
    }

    /// The connection took what [`unsent`](Self::unsent) gave.
    pub(crate) fn mark_sent(&mut self) {
        self.sent += 1;
    }

    /// The connection is gone: all has to be sent again.
    pub(crate) fn rewind(&mut self) {
        self.sent = 0;
    }

    /// The entry at the front, and whether the present connection got it.
    pub(crate) fn front(&self) -> Option<(&Entry, bool)> {
        Some((self.entries.front()?, self.sent > 0))
    }

    /// As [`front`](Self::front), to change it.
    pub(crate) fn front_mut(&mut self) -> Option<&mut Entry> {
        self.entries.front_mut()
    }

    /// Takes the entry at the front out; its completions go to `complete` with their index among them.
    pub(crate) fn pop(&mut self, mut complete: impl FnMut(u32, C)) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.first_ordinal += 1;
        self.bytes = self.bytes.saturating_sub(entry.charge);
        self.forget_frame(entry.frame_len);
        for index in 0..entry.messages {
            if let Some(completion) = self.completions.pop_front() {
                complete(index, completion);
            }
        }
        Some(entry)
    }

    /// Whether the frame at the front is still what was written. Copies it: for the rare case.
    pub(crate) fn is_front_intact(&self) -> bool {
        let (Some(entry), Some(segment)) = (self.entries.front(), self.segments.front()) else {
            return false;
        };
        let mut frame = BytesMut::from(segment.head.as_ref());
        frame.extend_from_slice(&segment.payload);
        frame.truncate(entry.frame_len);
        let decoded = FrameDecoder::default().decode(&mut frame);
        let Ok(Some(frame)) = decoded else {
            return false;
        };
        EncodedParts::split(frame.payload).is_ok_and(|parts| parts.verify_checksum().is_ok())
    }

    /// Gives the room for frames back, where nothing waits.
    pub(crate) fn release_buffer(&mut self) {
        if self.entries.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    fn forget_frame(&mut self, len: usize) {
        let Some(segment) = self.segments.front_mut() else {
            return;
        };
        if segment.payload.is_empty() && len < segment.head.len() {
            segment.head.advance(len);
        } else {
            self.segments.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
    }
}

/// Frames of small messages are written into pieces of memory of this many bytes.
const BUFFER_LEN: usize = 64 * 1024;
