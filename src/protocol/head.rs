//! Frame heads of a relayed byte stream, found without copying or changing a byte. // hot path
//!
//! The gateway forwards bytes as they come and only wants to know which frames pass: their size, their command and, of a
//! frame with a payload, the start of its message metadata. [`HeadScanner`] is fed every chunk of one direction in order and
//! reports each frame once its head is complete. It owns no more than one incomplete head ([`HEAD_BYTES_MAX`] bytes) and never
//! holds a byte back: the caller forwards the chunk whatever the scanner is still waiting for.

use super::frame::{FrameDecoder, FrameError, FrameLimits, HEAD_LEN, Head};

/// How much of one frame is kept until its head is complete, in bytes. A command or metadata that is longer is reported cut.
pub const HEAD_BYTES_MAX: usize = 4 * 1024;

/// The start of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead<'a> {
    /// Size of the whole frame on the wire, both length fields included, in bytes.
    pub wire_len: usize,
    /// The encoded BaseCommand, cut at [`HEAD_BYTES_MAX`].
    pub command: &'a [u8],
    /// The start of what follows the command (checksum, metadata, payload), as far as it lies within [`HEAD_BYTES_MAX`].
    pub payload: &'a [u8],
}

/// A frame that cannot be: where in the chunk its head ended, and why.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad frame {offset} bytes into the chunk: {error}")]
pub struct ScanError {
    /// Offset in the chunk just behind the length fields that do not hold.
    pub offset: usize,
    /// What is wrong with them.
    pub error: FrameError,
}

/// Finds the frames of one direction of a connection; see the module doc.
#[derive(Debug)]
pub struct HeadScanner {
    decoder: FrameDecoder,
    /// An incomplete head; empty unless a frame's head straddles chunks. `partial.len() < HEAD_BYTES_MAX`.
    partial: Vec<u8>,
    /// Bytes of a reported frame that are still to come.
    skip: usize,
}

impl HeadScanner {
    /// A scanner at a frame boundary that refuses frames beyond `limits`.
    pub fn new(limits: FrameLimits) -> Self {
        Self {
            decoder: FrameDecoder::new(limits),
            partial: Vec::new(),
            skip: 0,
        }
    }

    /// Whether all that was scanned so far are whole frames.
    pub fn at_boundary(&self) -> bool {
        self.skip == 0 && self.partial.is_empty()
    }

    /// Looks through the next bytes of the stream and calls `found` for every frame whose head is complete, in order. Returns
    /// the offset in `chunk` of the last frame boundary in it: 0 when it starts at one and completes no frame, `None` when it
    /// lies wholly inside a frame.
    ///
    /// # Errors
    /// A length field that no frame can have. The scanner is of no use afterwards: where frames begin is no longer known.
    pub fn scan<F: FnMut(FrameHead<'_>)>(
        &mut self,
        chunk: &[u8],
        mut found: F,
    ) -> Result<Option<usize>, ScanError> {
        let mut rest = chunk;
        let mut boundary = None;
        loop {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = rest.get(skipped..).unwrap_or_default();
            if self.at_boundary() {
                boundary = Some(chunk.len() - rest.len());
            }
            if rest.is_empty() {
                return Ok(boundary);
            }
            if self.partial.is_empty() {
                match self
                    .whole_head(rest)
                    .map_err(|error| at(chunk, rest, HEAD_LEN, error))?
                {
                    Some(head) => {
                        found(head);
                        self.skip = head.wire_len;
                    }
                    None => {
                        self.partial.extend_from_slice(rest);
                        return Ok(boundary);
                    }
                }
            } else {
                rest = self.complete_partial(chunk, rest, &mut found)?;
            }
        }
    }

    /// The head at the front of `bytes` if all of it is there.
    fn whole_head<'a>(&self, bytes: &'a [u8]) -> Result<Option<FrameHead<'a>>, FrameError> {
        let Some(Head {
            wire_len,
            command_len: Some(command_len),
        }) = self.decoder.head(bytes)?
        else {
            return Ok(None);
        };
        let Some(head) = bytes.get(HEAD_LEN..wire_len.min(HEAD_BYTES_MAX)) else {
            return Ok(None);
        };
        let (command, payload) = head.split_at(command_len.min(head.len()));
        Ok(Some(FrameHead {
            wire_len,
            command,
            payload,
        }))
    }

    /// Adds bytes to the incomplete head until it is whole, reports it, and returns what of `rest` lies behind the added bytes.
    fn complete_partial<'c, F: FnMut(FrameHead<'_>)>(
        &mut self,
        chunk: &[u8],
        mut rest: &'c [u8],
        found: &mut F,
    ) -> Result<&'c [u8], ScanError> {
        loop {
            let have = self.partial.len();
            let want = match self.decoder.head(&self.partial) {
                Ok(Some(Head {
                    wire_len,
                    command_len: Some(_),
                })) => wire_len.min(HEAD_BYTES_MAX),
                _ => HEAD_LEN,
            };
            let take = want.saturating_sub(have).min(rest.len());
            let (added, behind) = rest.split_at(take);
            self.partial.extend_from_slice(added);
            rest = behind;
            let partial = std::mem::take(&mut self.partial);
            match self
                .whole_head(&partial)
                .map_err(|error| at(chunk, rest, 0, error))?
            {
                Some(head) => {
                    found(head);
                    self.skip = head.wire_len - partial.len();
                    return Ok(rest);
                }
                None => self.partial = partial,
            }
            if rest.is_empty() {
                return Ok(rest);
            }
        }
    }
}

fn at(chunk: &[u8], rest: &[u8], ahead: usize, error: FrameError) -> ScanError {
    let offset = (chunk.len() - rest.len() + ahead).min(chunk.len());
    ScanError { offset, error }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::frame::Frame;

    /// Size of the frame, command and payload start.
    type OwnedHead = (usize, Vec<u8>, Vec<u8>);

    fn frame(command: usize, payload: usize) -> Vec<u8> {
        let mut out = BytesMut::new();
        let fill = u8::try_from(command % 251).unwrap();
        Frame {
            command: vec![fill; command].into(),
            payload: vec![fill ^ 0xff; payload].into(),
        }
        .encode(&mut out);
        out.to_vec()
    }

    /// Size, command and payload start of each frame of `stream` when it is scanned in pieces that end at `cuts`, and the
    /// absolute boundaries that were reported.
    fn scan_in_pieces(stream: &[u8], cuts: &[usize]) -> (Vec<OwnedHead>, Vec<usize>) {
        let mut scanner = HeadScanner::new(FrameLimits::default());
        let (mut heads, mut boundaries, mut start) = (Vec::new(), Vec::new(), 0);
        for end in cuts.iter().copied().chain([stream.len()]) {
            let boundary = scanner
                .scan(&stream[start..end], |head| {
                    heads.push((head.wire_len, head.command.to_vec(), head.payload.to_vec()));
                })
                .unwrap();
            boundaries.extend(boundary.map(|offset| start + offset));
            start = end;
        }
        assert!(scanner.at_boundary());
        assert_eq!(
            scanner.partial.capacity(),
            0,
            "an idle scanner holds no buffer"
        );
        (heads, boundaries)
    }

    proptest! {
        #[test]
        fn finds_the_same_heads_however_the_stream_is_cut(
            sizes in proptest::collection::vec((0_usize..6000, 0_usize..9000), 1..6),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12),
        ) {
            let mut stream = Vec::new();
            let mut ends = vec![0];
            let mut expected = Vec::new();
            for (command, payload) in &sizes {
                let frame = frame(*command, *payload);
                let head = &frame[HEAD_LEN..frame.len().min(HEAD_BYTES_MAX)];
                let (c, p) = head.split_at((*command).min(head.len()));
                expected.push((frame.len(), c.to_vec(), p.to_vec()));
                stream.extend_from_slice(&frame);
                ends.push(stream.len());
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.sort_unstable();
            let (heads, boundaries) = scan_in_pieces(&stream, &cuts);
            prop_assert_eq!(heads, expected);
            for boundary in boundaries {
                prop_assert!(ends.contains(&boundary));
            }
        }

        #[test]
        fn garbage_never_panics(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..8)) {
            let mut scanner = HeadScanner::new(FrameLimits::default());
            for chunk in chunks {
                if let Err(error) = scanner.scan(&chunk, |_| ()) {
                    prop_assert!(error.offset <= chunk.len());
                    break;
                }
                prop_assert!(scanner.partial.len() < HEAD_BYTES_MAX);
            }
        }
    }

    #[test]
    fn reports_the_last_boundary_of_each_chunk() {
        let mut scanner = HeadScanner::new(FrameLimits::default());
        let (first, second) = (frame(10, 0), frame(20, 5000));
        let mut chunk = first.clone();
        chunk.extend_from_slice(&second[..100]);
        assert_eq!(scanner.scan(&chunk, |_| ()), Ok(Some(first.len())));
        assert_eq!(scanner.scan(&second[100..200], |_| ()), Ok(None));
        assert!(!scanner.at_boundary());
        assert_eq!(
            scanner.scan(&second[200..], |_| ()),
            Ok(Some(second.len() - 200))
        );
        assert_eq!(scanner.scan(&[], |_| ()), Ok(Some(0)));
    }

    #[test]
    fn a_length_that_no_frame_has_is_an_error_just_behind_it() {
        let mut scanner = HeadScanner::new(FrameLimits::default());
        let mut chunk = frame(10, 0);
        let good = chunk.len();
        chunk.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 7, 7]);
        let mut heads = 0;
        let error = scanner.scan(&chunk, |_| heads += 1).unwrap_err();
        assert_eq!((heads, error.offset), (1, good + HEAD_LEN));
        assert!(matches!(error.error, FrameError::TooLarge { .. }));

        let mut scanner = HeadScanner::new(FrameLimits::default());
        assert_eq!(scanner.scan(&[0, 0], |_| ()), Ok(Some(0)));
        assert!(
            scanner
                .scan(&[0, 1, 0, 0, 0xff, 0xff, 0xff], |_| ())
                .is_err()
        );
    }
}
