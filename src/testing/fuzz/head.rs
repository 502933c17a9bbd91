use bytes::BytesMut;

use super::Input;
use crate::protocol::command::Command;
use crate::protocol::frame::{FrameDecoder, FrameLimits};
use crate::protocol::head::{HEAD_BYTES_MAX, HeadScanner};
use crate::protocol::peek;

/// The frame heads of a relay: `u16 limit | u8 length of a chunk | stream`.
///
/// - The heads are those of the frames that the decoder finds, however the stream is cut into chunks.
/// - A reported boundary is one between frames, and an error lies behind all of them.
/// - What is peeked at in a head that is whole is what a full decode says.
pub fn head(data: &[u8]) {
    let mut input = Input::new(data);
    let limits = FrameLimits {
        max_frame: usize::from(input.u16()),
    };
    let chunk_len = usize::from(input.u8()).max(1);
    let stream = input.rest;

    let mut frames = Vec::new();
    let mut ends = vec![0];
    let mut buffer = BytesMut::from(stream);
    let decoder = FrameDecoder::new(limits);
    let failed = loop {
        match decoder.decode(&mut buffer) {
            Ok(Some(frame)) => {
                ends.push(ends.last().copied().unwrap_or_default() + frame.wire_len());
                frames.push(frame);
            }
            Ok(None) => break false,
            Err(_) => break true,
        }
    };

    let mut scanner = HeadScanner::new(limits);
    let (mut heads, mut start, mut error) = (0, 0, false);
    for chunk in stream.chunks(chunk_len) {
        let scanned = scanner.scan(chunk, |head| {
            if let Some(frame) = frames.get(heads) {
                assert_eq!(head.wire_len, frame.wire_len());
                let room = HEAD_BYTES_MAX - 8;
                let command = frame.command.get(..room).unwrap_or(&frame.command);
                assert_eq!(head.command, command);
                let room = room - command.len();
                let payload = frame.payload.get(..room).unwrap_or(&frame.payload);
                assert_eq!(head.payload, payload);
                if command.len() == frame.command.len()
                    && let Ok(decoded) = Command::decode(&frame.command)
                {
                    let peeked = peek::command(head.command).map(|(command_type, _)| command_type);
                    assert_eq!(peeked, Some(decoded.command_type()));
                    if let (Command::Send(send), Some((_, body))) =
                        (&decoded, peek::command(head.command))
                    {
                        let (id, _) = peek::send(body);
                        assert_eq!(id, Some(send.producer_id));
                    }
                }
            }
            peek::messages_in_payload(head.payload);
            heads += 1;
        });
        match scanned {
            Ok(Some(boundary)) => assert!(ends.contains(&(start + boundary))),
            Ok(None) => {}
            Err(found) => {
                assert!(found.offset <= chunk.len());
                assert!(start + found.offset >= ends.last().copied().unwrap_or_default());
                error = true;
                break;
            }
        }
        start += chunk.len();
    }
    assert_eq!(error, failed);
    // The head of a frame whose end has not come is reported as soon as it is whole.
    assert!(heads == frames.len() || heads == frames.len() + 1);
}
