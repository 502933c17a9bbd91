//! The commands of a byte stream, without the payloads behind them. // hot path
//!
//! Owns the bytes of one incomplete command; payloads are stepped over as they come and never kept. A command is handed out
//! as a slice of the chunk that it came in, or of the one copy that was needed because it came in two.

use crate::protocol::frame::{FrameDecoder, FrameError, FrameLimits, HEAD_LEN, Head};

/// Finds the commands of one direction of a connection.
#[derive(Debug)]
pub(super) struct CommandScanner {
    decoder: FrameDecoder,
    /// The front of a frame whose command is not complete; no longer than the limit of a frame.
    partial: Vec<u8>,
    /// Bytes of the frame found last that are still to come.
    skip: usize,
}

impl CommandScanner {
    /// A scanner at a frame boundary that refuses frames beyond `limits`.
    pub(super) fn new(limits: FrameLimits) -> Self {
        Self {
            decoder: FrameDecoder::new(limits),
            partial: Vec::new(),
            skip: 0,
        }
    }

    /// Looks through the next bytes of the stream and calls `found` with each command that is complete, in order.
    ///
    /// # Errors
    /// What `found` says, and sizes that no frame can have. Nothing can be read afterwards.
    pub(super) fn scan<E: From<FrameError>>(
        &mut self,
        chunk: &[u8],
        mut found: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = chunk;
        loop {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = rest.get(skipped..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(());
            }
            if !self.partial.is_empty() {
                rest = self.complete_partial(rest, &mut found)?;
                continue;
            }
            match self.front(rest)? {
                Front::Whole { command, wire_len } => {
                    found(command)?;
                    self.skip = wire_len;
                }
                Front::Needs(_) => {
                    self.partial.extend_from_slice(rest);
                    return Ok(());
                }
            }
        }
    }

    /// Adds bytes to the incomplete command until it is complete or they are used up; returns those behind.
    fn complete_partial<'c, E: From<FrameError>>(
        &mut self,
        mut rest: &'c [u8],
        found: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<&'c [u8], E> {
        loop {
            match self.front(&self.partial)? {
                Front::Whole { command, wire_len } => {
                    found(command)?;
                    self.skip = wire_len - self.partial.len();
                    self.partial = Vec::new();
                    return Ok(rest);
                }
                Front::Needs(missing) => {
                    let (added, behind) = rest.split_at(missing.min(rest.len()));
                    self.partial.extend_from_slice(added);
                    rest = behind;
                    if added.len() < missing {
                        return Ok(rest);
                    }
                }
            }
        }
    }

    fn front<'a>(&self, bytes: &'a [u8]) -> Result<Front<'a>, FrameError> {
        let Some(Head {
            wire_len,
            command_len: Some(command_len),
        }) = self.decoder.head(bytes)?
        else {
            return Ok(Front::Needs(HEAD_LEN.saturating_sub(bytes.len())));
        };
        let end = HEAD_LEN + command_len;
        Ok(match bytes.get(HEAD_LEN..end) {
            Some(command) => Front::Whole { command, wire_len },
            None => Front::Needs(end.saturating_sub(bytes.len())),
        })
    }
}

/// What stands at the front of some bytes.
enum Front<'a> {
    /// A whole command, in a frame of `wire_len` bytes.
    Whole { command: &'a [u8], wire_len: usize },
    /// Not yet a command: so many bytes more, at least one.
    Needs(usize),
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::frame::Frame;

    fn scanner() -> CommandScanner {
        CommandScanner::new(FrameLimits { max_frame: 10_000 })
    }

    fn bytes_of(len: usize) -> Bytes {
        (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
    }

    proptest! {
        #[test]
        fn the_same_commands_are_found_however_the_stream_is_cut(
            frames in proptest::collection::vec((0_usize..200, 0_usize..600), 1..20),
            cuts in proptest::collection::vec(1_usize..300, 1..20),
        ) {
            let mut stream = BytesMut::new();
            for (command, payload) in &frames {
                let frame = Frame { command: bytes_of(*command), payload: bytes_of(*payload) };
                frame.encode(&mut stream);
            }
            let mut scanner = scanner();
            let mut found = Vec::new();
            for cut in cuts.iter().cycle() {
                let chunk = stream.split_to(stream.len().min(*cut));
                let scanned: Result<(), FrameError> = scanner.scan(&chunk, |command| {
                    found.push(command.to_vec());
                    Ok(())
                });
                prop_assert_eq!(scanned, Ok(()));
                if stream.is_empty() {
                    break;
                }
            }
            let expected: Vec<_> = frames.iter().map(|(command, _)| bytes_of(*command)).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!((scanner.skip, scanner.partial.capacity()), (0, 0));
        }
    }

    #[test]
    fn a_size_beyond_the_limit_ends_the_stream() {
        let scanned: Result<(), FrameError> =
            scanner().scan(&u32::MAX.to_be_bytes(), |_| panic!("no command"));
        assert!(matches!(scanned, Err(FrameError::TooLarge { .. })));
    }

    #[test]
    fn what_the_caller_says_ends_the_scan() {
        let mut stream = BytesMut::new();
        for _ in 0..2 {
            Frame::default().encode(&mut stream);
        }
        let mut calls = 0;
        let scanned = scanner().scan(&stream, |_| {
            calls += 1;
            Err(FrameError::TooShort { size: 7 })
        });
        assert_eq!(scanned, Err(FrameError::TooShort { size: 7 }));
        assert_eq!(calls, 1);
    }
}
