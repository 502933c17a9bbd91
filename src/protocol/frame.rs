//! Frames of the Pulsar wire protocol: splitting a byte stream into them, and writing them.
//!
//! A frame is `u32 total size | u32 command size | command | payload`, all integers big-endian; the total size counts
//! everything after itself, and the payload is empty for all commands but SEND and MESSAGE (Apache Pulsar's "Binary
//! protocol specification", section "Framing"). This module knows nothing of what the command says. It never copies and
//! never allocates: a frame is a slice of the buffer that the bytes were read into, and whoever reads them asks
//! [`FrameDecoder::missing`] how much room is needed, which answers only after the limits were checked.
//!
//! Start at [`FrameDecoder`].
// hot path

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Splits a byte stream into frames.
///
/// It has no state but its limits: an incomplete frame stays in the caller's buffer, and the same bytes give the same
/// answer again, so an error is final for the stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct FrameDecoder {
    limits: FrameLimits,
}

impl FrameDecoder {
    /// A decoder that accepts frames within `limits`.
    #[must_use]
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits }
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> FrameLimits {
        self.limits
    }

    /// Replaces the limits for all frames not yet decoded: a client takes `max_message_size` from CONNECTED.
    pub fn set_limits(&mut self, limits: FrameLimits) {
        self.limits = limits;
    }

    /// Takes the first frame out of `buffer`, or returns `None` when it is not complete yet (see [`Self::missing`]).
    ///
    /// The frame shares the memory of `buffer`; nothing is copied or allocated.
    ///
    /// # Errors
    /// [`FrameError`] as soon as the sizes at the front are readable and cannot be right. `buffer` is left as it was;
    /// the stream has lost its frame boundaries and must be closed.
    pub fn decode(&self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(Head {
            wire_len,
            command_len: Some(command_len),
        }) = self.head(buffer)?
        else {
            return Ok(None);
        };
        if buffer.len() < wire_len {
            return Ok(None);
        }
        let mut payload = buffer.split_to(wire_len).freeze();
        payload.advance(HEAD_LEN);
        let command = payload.split_to(command_len);
        if payload.is_empty() {
            // An empty slice would still hold on to the whole read buffer.
            payload = Bytes::new();
        }
        Ok(Some(Frame { command, payload }))
    }

    /// How many bytes after those in `buffer` the frame at its front needs to be complete.
    ///
    /// `0` when this is not known (fewer than four bytes), when the frame is complete, and when its sizes are refused by
    /// [`Self::decode`]; so it is never more than the limit, and a reader may reserve what it says.
    #[must_use]
    pub fn missing(&self, buffer: &[u8]) -> usize {
        match self.head(buffer) {
            Ok(Some(head)) => head.wire_len.saturating_sub(buffer.len()),
            Ok(None) | Err(_) => 0,
        }
    }

    /// Reads and checks what is there of the two sizes at the front of `buffer`; `None` with fewer than four bytes.
    ///
    /// # Errors
    /// [`FrameError`] for sizes that no frame within the limits can have.
    pub(crate) fn head(&self, buffer: &[u8]) -> Result<Option<Head>, FrameError> {
        let Some(total) = read_u32(buffer, 0) else {
            return Ok(None);
        };
        // A negative size of the peer's signed arithmetic is a huge one here.
        let total_len = usize::try_from(total).unwrap_or(usize::MAX);
        if total_len > self.limits.max_frame {
            return Err(FrameError::TooLarge {
                size: total,
                max: self.limits.max_frame,
            });
        }
        if total_len < SIZE_FIELD_LEN {
            return Err(FrameError::TooShort { size: total });
        }
        let wire_len = total_len.saturating_add(SIZE_FIELD_LEN);
        let Some(command) = read_u32(buffer, SIZE_FIELD_LEN) else {
            return Ok(Some(Head {
                wire_len,
                command_len: None,
            }));
        };
        let command_len = usize::try_from(command).unwrap_or(usize::MAX);
        if command_len > total_len - SIZE_FIELD_LEN {
            return Err(FrameError::CommandBeyondFrame { command, total });
        }
        Ok(Some(Head {
            wire_len,
            command_len: Some(command_len),
        }))
    }
}

/// The sizes at the front of a frame, checked against the limits and each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Both size fields, the command and the payload.
    pub(crate) wire_len: usize,
    /// `None` while the second size field is incomplete. Otherwise `HEAD_LEN + command_len <= wire_len`.
    pub(crate) command_len: Option<usize>,
}

/// One frame of the wire protocol.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// The encoded `BaseCommand`.
    pub command: Bytes,
    /// Everything after the command: of a SEND or MESSAGE the message with its optional broker entry metadata and
    /// checksum. Empty for all other commands.
    pub payload: Bytes,
}

impl Frame {
    /// The length of the frame on the wire in bytes, both size fields included.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        HEAD_LEN + self.command.len() + self.payload.len()
    }

    /// Appends the frame to `buffer`, byte for byte what it was decoded from.
    ///
    /// # Panics
    /// When command and payload together reach 4 GiB, which no decoded frame does.
    pub fn encode(&self, buffer: &mut BytesMut) {
        buffer.reserve(self.wire_len());
        put_head(buffer, self.command.len(), self.payload.len());
        buffer.put_slice(&self.command);
        buffer.put_slice(&self.payload);
    }
}

/// Appends the two size fields of a frame with a command of `command_len` and a payload of `payload_len` bytes.
///
/// # Panics
/// When the total does not fit into the 32 bits of its field; callers keep to message sizes far below.
pub fn put_head(buffer: &mut BytesMut, command_len: usize, payload_len: usize) {
    let total = SIZE_FIELD_LEN
        .saturating_add(command_len)
        .saturating_add(payload_len);
    let total = u32::try_from(total).expect("a frame is smaller than 4 GiB");
    let command = u32::try_from(command_len).expect("a command is smaller than its frame");
    buffer.put_u32(total);
    buffer.put_u32(command);
}

/// What a [`FrameDecoder`] accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// The largest value of the total size field in bytes.
    pub max_frame: usize,
}

impl FrameLimits {
    /// The limits of a peer that takes messages of up to `max_message_size` bytes: 10 KiB more, for the command and the
    /// metadata, as Apache Pulsar has it (`Commands.MESSAGE_SIZE_FRAME_PADDING`).
    #[must_use]
    pub fn for_max_message_size(max_message_size: u32) -> Self {
        let max_message_size = usize::try_from(max_message_size).unwrap_or(usize::MAX);
        Self {
            max_frame: max_message_size.saturating_add(FRAME_PADDING),
        }
    }
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self::for_max_message_size(DEFAULT_MAX_MESSAGE_SIZE)
    }
}

/// Sizes at the front of a frame that cannot be right. The stream must be closed: where its next frame begins is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The total size is above the limit.
    #[error("frame of {size} bytes is larger than the limit of {max} bytes")]
    TooLarge {
        /// The total size field.
        size: u32,
        /// [`FrameLimits::max_frame`].
        max: usize,
    },
    /// The total size leaves no room for the command size field.
    #[error("frame of {size} bytes is too short to hold a command size")]
    TooShort {
        /// The total size field.
        size: u32,
    },
    /// The command would end after the frame.
    #[error("command of {command} bytes in a frame of {total} bytes")]
    CommandBeyondFrame {
        /// The command size field.
        command: u32,
        /// The total size field.
        total: u32,
    },
}

fn read_u32(buffer: &[u8], at: usize) -> Option<u32> {
    buffer
        .get(at..)?
        .first_chunk()
        .map(|bytes| u32::from_be_bytes(*bytes))
}

/// `maxMessageSize` of an Apache broker that was not configured otherwise, in bytes (`Commands.DEFAULT_MAX_MESSAGE_SIZE`).
pub const DEFAULT_MAX_MESSAGE_SIZE: u32 = 5 * 1024 * 1024;

/// What a frame may be larger than the largest message, in bytes (`Commands.MESSAGE_SIZE_FRAME_PADDING`).
pub const FRAME_PADDING: usize = 10 * 1024;

/// The length of both size fields in bytes.
pub const HEAD_LEN: usize = 2 * SIZE_FIELD_LEN;

const SIZE_FIELD_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoder(max_frame: usize) -> FrameDecoder {
        FrameDecoder::new(FrameLimits { max_frame })
    }

    fn decode_all(decoder: &FrameDecoder, buffer: &mut BytesMut) -> Result<Vec<Frame>, FrameError> {
        let mut frames = Vec::new();
        while let Some(frame) = decoder.decode(buffer)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn splits_command_and_payload() {
        let mut buffer = BytesMut::from(&b"\0\0\0\x09\0\0\0\x02cmdatarest"[..]);
        let frame = decoder(64).decode(&mut buffer).unwrap().unwrap();
        assert_eq!(frame.command, "cm");
        assert_eq!(frame.payload, "dat");
        assert_eq!(frame.wire_len(), 13);
        assert_eq!(buffer, &b"arest"[..]);
    }

    #[test]
    fn a_frame_is_a_slice_of_the_read_buffer() {
        let mut buffer = BytesMut::from(&b"\0\0\0\x09\0\0\0\x02cmdat"[..]);
        let range = buffer.as_ptr_range();
        let frame = decoder(64).decode(&mut buffer).unwrap().unwrap();
        assert!(range.contains(&frame.command.as_ptr()));
        assert!(range.contains(&frame.payload.as_ptr()));
    }

    #[test]
    fn refuses_a_size_above_the_limit_before_the_rest_arrives() {
        for size in [65_u32, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let mut buffer = BytesMut::from(&size.to_be_bytes()[..]);
            assert_eq!(
                decoder(64).decode(&mut buffer),
                Err(FrameError::TooLarge { size, max: 64 })
            );
            assert_eq!(decoder(64).missing(&buffer), 0);
            assert_eq!(buffer.len(), 4, "the buffer is left as it was");
        }
    }

    #[test]
    fn takes_a_frame_exactly_at_the_limit() {
        let frame = Frame {
            command: Bytes::from_static(b"c"),
            payload: Bytes::from(vec![7; 59]),
        };
        let mut buffer = BytesMut::new();
        frame.encode(&mut buffer);
        assert_eq!(decoder(64).decode(&mut buffer.clone()), Ok(Some(frame)));
        assert_eq!(
            decoder(63).decode(&mut buffer),
            Err(FrameError::TooLarge { size: 64, max: 63 })
        );
    }

    #[test]
    fn refuses_a_size_without_room_for_the_command_size() {
        for size in 0..4_u32 {
            let mut buffer = BytesMut::from(&size.to_be_bytes()[..]);
            assert_eq!(
                decoder(64).decode(&mut buffer),
                Err(FrameError::TooShort { size })
            );
        }
    }

    #[test]
    fn refuses_a_command_beyond_its_frame_before_the_rest_arrives() {
        for command in [7_u32, 0x8000_0000, u32::MAX] {
            let mut buffer = BytesMut::from(&b"\0\0\0\x0a"[..]);
            buffer.put_u32(command);
            let expected = FrameError::CommandBeyondFrame { command, total: 10 };
            assert_eq!(decoder(64).decode(&mut buffer), Err(expected));
            assert_eq!(decoder(64).missing(&buffer), 0);
        }
    }

    #[test]
    fn an_empty_command_is_a_frame() {
        let mut buffer = BytesMut::from(&b"\0\0\0\x04\0\0\0\0"[..]);
        assert_eq!(decoder(64).decode(&mut buffer), Ok(Some(Frame::default())));
        assert!(buffer.is_empty());
    }

    #[test]
    fn limits_count_the_padding() {
        assert_eq!(
            FrameLimits::default().max_frame,
            5 * 1024 * 1024 + 10 * 1024
        );
        assert_eq!(FrameLimits::for_max_message_size(0).max_frame, 10 * 1024);
        assert!(FrameLimits::for_max_message_size(u32::MAX).max_frame > 0xffff_ffff);
    }

    #[test]
    fn new_limits_apply_to_the_next_frame() {
        let mut decoder = decoder(4);
        let mut buffer = BytesMut::from(&b"\0\0\0\x05\0\0\0\x01x"[..]);
        assert!(decoder.decode(&mut buffer).is_err());
        decoder.set_limits(FrameLimits { max_frame: 5 });
        assert_eq!(decoder.limits().max_frame, 5);
        assert_eq!(decoder.decode(&mut buffer).unwrap().unwrap().command, "x");
    }

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let frame = (bytes(), bytes()).prop_map(|(command, payload)| Frame { command, payload });
        proptest::collection::vec(frame, 0..8)
    }

    proptest! {
        #[test]
        fn decodes_what_was_encoded_however_the_stream_is_split(
            frames in frames(),
            cuts in proptest::collection::vec(1_usize..30, 1..40),
        ) {
            let mut stream = BytesMut::new();
            for frame in &frames {
                frame.encode(&mut stream);
            }
            let whole = decode_all(&decoder(1000), &mut stream.clone()).unwrap();
            prop_assert_eq!(&whole, &frames);

            let mut decoded = Vec::new();
            let mut buffer = BytesMut::new();
            let mut cuts = cuts.iter().cycle();
            while !stream.is_empty() {
                let cut = (*cuts.next().unwrap()).min(stream.len());
                buffer.extend_from_slice(&stream.split_to(cut));
                decoded.extend(decode_all(&decoder(1000), &mut buffer).unwrap());
            }
            prop_assert!(buffer.is_empty());
            prop_assert_eq!(decoded, frames);
        }

        #[test]
        fn exactly_the_missing_bytes_complete_a_frame(
            frame in frames().prop_filter_map("one frame", |frames| frames.into_iter().next()),
            at in any::<proptest::sample::Index>(),
        ) {
            let mut wire = BytesMut::new();
            frame.encode(&mut wire);
            let mut buffer = BytesMut::from(&wire[..at.index(wire.len())]);
            let expected = if buffer.len() < 4 { 0 } else { wire.len() - buffer.len() };
            prop_assert_eq!(decoder(1000).missing(&buffer), expected);
            prop_assert_eq!(decoder(1000).decode(&mut buffer), Ok(None));
            buffer.extend_from_slice(&wire[buffer.len()..]);
            prop_assert_eq!(decoder(1000).missing(&buffer), 0);
            prop_assert_eq!(decoder(1000).decode(&mut buffer), Ok(Some(frame)));
        }
    }
}
