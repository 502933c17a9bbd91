use bytes::BytesMut;

use super::Input;
use crate::protocol::frame::{Frame, FrameDecoder, FrameError, FrameLimits};

/// The frame decoder: `u16 limit | u8 length of a read | stream`.
///
/// - Every byte is either in a frame, which encodes to the same bytes, or left in the buffer.
/// - However the stream is cut into reads, the frames and the error are the same.
/// - A reader never needs more room than the limit allows.
pub fn frame(data: &[u8]) {
    let mut input = Input::new(data);
    let max_frame = usize::from(input.u16());
    let read_len = usize::from(input.u8()).max(1);
    let stream = input.rest;
    let decoder = FrameDecoder::new(FrameLimits { max_frame });

    let mut buffer = BytesMut::from(stream);
    let (frames, error) = decode_all(&decoder, &mut buffer);
    let mut encoded = BytesMut::new();
    for frame in &frames {
        assert!(frame.wire_len() <= max_frame + 4, "frame above the limit");
        frame.encode(&mut encoded);
    }
    assert_eq!(
        encoded.len(),
        frames.iter().map(Frame::wire_len).sum::<usize>()
    );
    encoded.extend_from_slice(&buffer);
    assert_eq!(encoded, stream, "bytes got lost or changed");

    let mut buffer = BytesMut::new();
    let mut frames_in_reads = Vec::new();
    let mut error_in_reads = None;
    for read in stream.chunks(read_len) {
        buffer.extend_from_slice(read);
        let (frames, error) = decode_all(&decoder, &mut buffer);
        frames_in_reads.extend(frames);
        error_in_reads = error;
        if error.is_some() {
            break;
        }
        let missing = decoder.missing(&buffer);
        assert!(missing <= max_frame + 4, "asks for more than the limit");
        assert!(
            missing > 0 || buffer.len() < 4,
            "does not know what an incomplete frame needs"
        );
    }
    assert_eq!((frames_in_reads, error_in_reads), (frames, error));
}

fn decode_all(decoder: &FrameDecoder, buffer: &mut BytesMut) -> (Vec<Frame>, Option<FrameError>) {
    let mut frames = Vec::new();
    loop {
        match decoder.decode(buffer) {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}
