//! Tests of [`super`] against streams in memory.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio_util::task::TaskTracker;

use super::*;
use crate::protocol::proto::pulsar::{CommandPing, CommandPong};

const LIMITS: OutboundLimits = OutboundLimits {
    high_watermark: 4096,
    urgent_max: 2,
};

fn raw(byte: u8, len: usize) -> Outgoing<'static> {
    Outgoing::Raw(Bytes::from(vec![byte; len]))
}

async fn read_to_end(mut peer: DuplexStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// Polls the writer until it waits for the socket or for work.
async fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    let mut future = future;
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

#[tokio::test]
async fn sends_in_order_and_shuts_down_after_the_flush() {
    let (outbound, writer) = channel(LIMITS);
    let (io, peer) = duplex(64 * 1024);
    let ping = Command::from(CommandPing {});
    let frame = Frame {
        command: ping.encode_command(),
        payload: Bytes::new(),
    };
    let mut expected = BytesMut::new();
    ping.encode(&mut expected);
    frame.encode(&mut expected);
    expected.put_slice(&[1; 10]);
    expected.put_slice(b"head");
    expected.put_slice(&[2; 2000]);
    expected.put_slice(b"head");
    expected.put_slice(&[3; 20]);

    outbound.send(Outgoing::Command(&ping)).unwrap();
    outbound.send(Outgoing::Frame(frame)).unwrap();
    outbound.send(raw(1, 10)).unwrap();
    for payload in [vec![2; 2000], vec![3; 20]] {
        let (header, payload) = (Bytes::from_static(b"head"), Bytes::from(payload));
        outbound
            .send(Outgoing::Message { header, payload })
            .unwrap();
    }
    outbound.close_after_flush();
    assert_eq!(outbound.send(raw(1, 1)), Err(OutboundError::Closed));
    assert_eq!(outbound.send_urgent(raw(1, 1)), Err(OutboundError::Closed));
    writer.run(io).await.unwrap();
    assert_eq!(read_to_end(peer).await, expected);
}

#[tokio::test]
async fn a_frame_with_a_large_payload_has_a_right_head() {
    let (outbound, writer) = channel(LIMITS);
    let (io, peer) = duplex(64 * 1024);
    let frame = Frame {
        command: Bytes::from_static(b"command"),
        payload: Bytes::from(vec![7; 5000]),
    };
    let mut expected = BytesMut::new();
    frame.encode(&mut expected);
    outbound.send(Outgoing::Frame(frame)).unwrap();
    drop(outbound);
    writer.run(io).await.unwrap();
    assert_eq!(read_to_end(peer).await, expected);
}

#[tokio::test]
async fn a_peer_that_stops_reading_bounds_the_memory_and_ready_wakes_when_it_reads_on() {
    let (outbound, writer) = channel(LIMITS);
    let (io, mut peer) = duplex(16);
    let tracker = TaskTracker::new();
    let written = tracker.spawn(writer.run(io));

    let mut sent = 0;
    let refused = loop {
        match outbound.send(raw(0, 100)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(refused, OutboundError::Full);
    assert!(outbound.queued_bytes() <= LIMITS.high_watermark + 100 + FRAME_OVERHEAD);
    assert!(sent * 100 <= LIMITS.high_watermark);

    let waiting = {
        let outbound = outbound.clone();
        tracker.spawn(async move { outbound.ready().await })
    };
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "ready while the lane is full");
    let mut bytes = vec![0; sent * 100];
    peer.read_exact(&mut bytes).await.unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(()));

    outbound.close_after_flush();
    written.await.unwrap().unwrap();
    assert_eq!(outbound.queued_bytes(), 0);
    tracker.close();
    tracker.wait().await;
}

#[tokio::test]
async fn empty_frames_are_bounded_as_well() {
    let (outbound, _writer) = channel(LIMITS);
    let sent = (0..1_000_000)
        .take_while(|_| outbound.send(raw(0, 0)).is_ok())
        .count();
    assert_eq!(sent, LIMITS.high_watermark / FRAME_OVERHEAD);
}

#[tokio::test]
async fn sends_of_nothing_do_not_end_the_writer() {
    let (outbound, writer) = channel(LIMITS);
    let (io, peer) = duplex(64);
    outbound.send(raw(0, 0)).unwrap();
    let mut running = std::pin::pin!(writer.run(io));
    assert!(poll_once(running.as_mut()).await.is_pending());
    assert_eq!(outbound.queued_bytes(), 0);
    outbound.send(raw(9, 3)).unwrap();
    outbound.close_after_flush();
    running.await.unwrap();
    assert_eq!(read_to_end(peer).await, [9, 9, 9]);
}

#[tokio::test]
async fn urgent_frames_are_bounded_and_overtake_at_the_end_of_a_frame() {
    let (outbound, writer) = channel(OutboundLimits {
        high_watermark: 1024 * 1024,
        ..LIMITS
    });
    let (io, peer) = duplex(1000);
    let (header, payload) = (Bytes::from(vec![1; 500]), Bytes::from(vec![2; 300_000]));
    outbound
        .send(Outgoing::Message { header, payload })
        .unwrap();
    let mut running = std::pin::pin!(writer.run(io));
    assert!(poll_once(running.as_mut()).await.is_pending());
    // The large frame is half out now.
    outbound.send(raw(3, 2000)).unwrap();
    let pong = Command::from(CommandPong {});
    let mut expected_pong = BytesMut::new();
    pong.encode(&mut expected_pong);
    outbound.send_urgent(Outgoing::Command(&pong)).unwrap();
    outbound.send_urgent(Outgoing::Command(&pong)).unwrap();
    assert_eq!(
        outbound.send_urgent(Outgoing::Command(&pong)),
        Err(OutboundError::Full)
    );

    outbound.close_after_flush();
    let (result, bytes) = tokio::join!(running, read_to_end(peer));
    result.unwrap();
    let mut expected = vec![1; 500];
    expected.extend(vec![2; 300_000]);
    expected.extend_from_slice(&expected_pong);
    expected.extend_from_slice(&expected_pong);
    expected.extend(vec![3; 2000]);
    assert!(bytes == expected);
}

#[tokio::test]
async fn a_failed_socket_ends_the_writer_and_closes_the_lanes() {
    let (outbound, writer) = channel(LIMITS);
    let (io, peer) = duplex(16);
    drop(peer);
    outbound.send(raw(0, 4000)).unwrap();
    outbound.send(raw(0, 4000)).unwrap();
    assert_eq!(outbound.send(raw(0, 1)), Err(OutboundError::Full));
    let (result, ready) = tokio::join!(writer.run(io), outbound.ready());
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(ready, Err(OutboundError::Closed));
    assert_eq!(outbound.send(raw(0, 1)), Err(OutboundError::Closed));
    assert_eq!(outbound.queued_bytes(), 0);
    assert!(outbound.is_closed());
}

#[tokio::test]
async fn an_idle_writer_keeps_no_room() {
    let (outbound, writer) = channel(LIMITS);
    let (io, _peer) = duplex(64 * 1024);
    let mut running = std::pin::pin!(writer.run(io));
    for _ in 0..20 {
        outbound.send(raw(0, 150)).unwrap();
    }
    outbound.send_urgent(raw(0, 100)).unwrap();
    assert!(poll_once(running.as_mut()).await.is_pending());
    let lanes = outbound.handle.shared.lanes.lock();
    assert_eq!(lanes.charged, 0);
    assert_eq!(lanes.ordered.capacity(), 0);
    assert_eq!(lanes.urgent.capacity(), 0);
}

/// Takes a few bytes per write, never from two segments, and counts writes.
struct Choppy {
    bytes: Vec<u8>,
    largest: usize,
    vectored: bool,
    writes: usize,
}

impl AsyncWrite for Choppy {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = buf.len().min(self.largest);
        self.bytes.extend_from_slice(&buf[..taken]);
        self.writes += 1;
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut left = self.largest;
        for buf in bufs {
            let taken = buf.len().min(left);
            self.bytes.extend_from_slice(&buf[..taken]);
            left -= taken;
        }
        self.writes += 1;
        Poll::Ready(Ok(self.largest - left))
    }

    fn is_write_vectored(&self) -> bool {
        self.vectored
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn write_all(sizes: &[usize], largest: usize, vectored: bool) -> (Vec<u8>, Choppy) {
    let (outbound, writer) = channel(OutboundLimits {
        high_watermark: usize::MAX,
        ..LIMITS
    });
    let mut expected = Vec::new();
    for (i, size) in sizes.iter().enumerate() {
        let bytes: Vec<u8> = (0..*size)
            .map(|at| u8::try_from((at + i) % 251).unwrap())
            .collect();
        expected.extend_from_slice(&bytes);
        let cut = size / 3;
        let outgoing = match i % 2 {
            0 => Outgoing::Raw(Bytes::from(bytes)),
            _ => Outgoing::Message {
                header: Bytes::copy_from_slice(&bytes[..cut]),
                payload: Bytes::copy_from_slice(&bytes[cut..]),
            },
        };
        outbound.send(outgoing).unwrap();
    }
    drop(outbound);
    let mut io = Choppy {
        bytes: Vec::new(),
        largest,
        vectored,
        writes: 0,
    };
    writer.run(&mut io).await.unwrap();
    (expected, io)
}

#[tokio::test]
async fn many_small_frames_need_few_writes() {
    let (expected, io) = write_all(&[100; 1280], usize::MAX, true).await;
    assert_eq!(io.bytes, expected);
    assert!(io.writes <= 11, "{} writes", io.writes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_come_out_as_they_went_in(
        sizes in proptest::collection::vec(prop_oneof![0_usize..60, 900..1200_usize, 2000..70_000_usize], 0..200),
        largest in prop_oneof![1_usize..2000, Just(usize::MAX)],
        vectored: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (expected, io) = runtime.block_on(write_all(&sizes, largest.max(37), vectored));
        prop_assert!(io.bytes == expected);
    }
}
