//! The relay over sockets in memory, whose capacity is known, so that what the relay itself holds can be counted.

use std::future::pending;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufStream, DuplexStream, duplex,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::forward::{LINGER, Passthrough, RelayContext, RelayError, Side, relay};
use super::inspect::Inspector;
use super::policy::TargetPolicy;
use super::stats::GatewayMetrics;
use crate::config::GatewaySettings;
use crate::naming::BrokerAddress;
use crate::net::scratch;
use crate::protocol::command::Command;
use crate::protocol::frame::{Frame, FrameLimits};
use crate::protocol::proto::pulsar::CommandSend;
use crate::telemetry::MetricRegistry;

struct Ends {
    client: DuplexStream,
    broker: DuplexStream,
    /// Completing it (or dropping it) does nothing until it is sent.
    drain: Option<oneshot::Sender<()>>,
    relay: JoinHandle<Result<(), RelayError>>,
}

/// A relay between two streams that take `capacity` bytes before they block.
fn relayed(capacity: usize, early_from_client: Bytes, early_from_broker: Bytes) -> Ends {
    let (client, client_end) = duplex(capacity);
    let (broker, broker_end) = duplex(capacity);
    let early = (early_from_client, early_from_broker);
    let (drain, relay) = relay_of(client_end, broker_end, early);
    Ends {
        client,
        broker,
        drain: Some(drain),
        relay,
    }
}

/// What completes the drain, and the relay.
type Running = (oneshot::Sender<()>, JoinHandle<Result<(), RelayError>>);

/// A relay between two streams, with the early bytes of client and broker.
fn relay_of<B>(
    client: DuplexStream,
    broker: B,
    (early_from_client, early_from_broker): (Bytes, Bytes),
) -> Running
where
    B: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (drain, drained) = oneshot::channel::<()>();
    let relay = tokio_util::task::TaskTracker::new().spawn(async move {
        let registry = MetricRegistry::new("");
        let metrics = GatewayMetrics::register(&registry, 10).unwrap();
        let address = BrokerAddress::from_host_port("broker:6650").unwrap();
        let policy = TargetPolicy::new(&GatewaySettings::for_broker(address.into()));
        let pair = Passthrough {
            client,
            broker,
            early_from_client,
            early_from_broker,
            limits: FrameLimits::default(),
        };
        let context = RelayContext {
            metrics: &metrics.meter("127.0.0.1:1".parse().unwrap(), None),
            policy: &policy,
            idle_timeout: Some(Duration::from_secs(75)),
        };
        let inspector = Inspector::new(std::sync::Arc::clone(&metrics.topics));
        let drain = async {
            if drained.await.is_err() {
                pending::<()>().await;
            }
        };
        relay(pair, inspector, context, drain).await
    });
    (drain, relay)
}

fn frame(payload: usize) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    Frame {
        command: Command::from(CommandSend {
            producer_id: 1,
            sequence_id: 1,
            ..CommandSend::default()
        })
        .encode_command(),
        payload: vec![3; payload].into(),
    }
    .encode(&mut bytes);
    bytes.to_vec()
}

/// Writes until the stream takes no more for a while; returns how much it took.
async fn fill(stream: &mut DuplexStream) -> usize {
    let block = frame(1_000_000);
    let mut taken = 0;
    while let Ok(written) = timeout(
        Duration::from_secs(1),
        stream.write(&block[taken % block.len()..]),
    )
    .await
    {
        taken += written.unwrap();
        assert!(taken < 64 * 1024 * 1024, "taken without end");
    }
    taken
}

#[tokio::test(start_paused = true)]
async fn no_more_than_one_scratch_buffer_per_direction_is_held_for_a_side_that_does_not_read() {
    const CAPACITY: usize = 4096;
    let mut ends = relayed(CAPACITY, Bytes::new(), Bytes::new());
    // Client's stream, what the relay holds, broker's stream.
    let up = fill(&mut ends.client).await;
    let held = up - 2 * CAPACITY;
    assert!(
        held <= scratch::SCRATCH_LEN,
        "{held} bytes towards the broker"
    );
    let down = fill(&mut ends.broker).await;
    let held = down - 2 * CAPACITY;
    assert!(
        held <= scratch::SCRATCH_LEN,
        "{held} bytes towards the client"
    );

    // Nothing of it is lost once both sides read.
    let mut received = vec![0; up];
    ends.broker.read_exact(&mut received).await.unwrap();
    let block = frame(1_000_000);
    assert!(
        received.iter().eq(block.iter().cycle().take(up)),
        "changed on the way"
    );
    ends.client.read_exact(&mut vec![0; down]).await.unwrap();
    ends.relay.abort();
}

#[tokio::test(start_paused = true)]
async fn early_bytes_come_first_and_the_end_of_a_side_comes_last() {
    let (early, late) = (frame(10), frame(20));
    let mut ends = relayed(64 * 1024, early.clone().into(), early.clone().into());
    ends.client.write_all(&late).await.unwrap();
    ends.client.shutdown().await.unwrap();
    let mut at_broker = Vec::new();
    ends.broker.read_to_end(&mut at_broker).await.unwrap();
    assert_eq!(at_broker, [early.clone(), late.clone()].concat());
    // The broker may still answer.
    ends.broker.write_all(&late).await.unwrap();
    ends.broker.shutdown().await.unwrap();
    let mut at_client = Vec::new();
    ends.client.read_to_end(&mut at_client).await.unwrap();
    assert_eq!(at_client, [early, late].concat());
    ends.relay.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_side_that_never_ends_is_cut_some_seconds_after_the_other_has() {
    let mut ends = relayed(64 * 1024, Bytes::new(), Bytes::new());
    ends.client.shutdown().await.unwrap();
    let begun = Instant::now();
    ends.relay.await.unwrap().unwrap();
    assert_eq!(begun.elapsed().as_secs(), LINGER.as_secs());
    let mut rest = Vec::new();
    ends.broker.read_to_end(&mut rest).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bad_frame_is_shown_to_its_receiver_up_to_the_head_and_named_as_the_reason() {
    let mut ends = relayed(64 * 1024, Bytes::new(), Bytes::new());
    let good = frame(10);
    let mut bytes = good.clone();
    bytes.extend_from_slice(&[0xff; 100]);
    ends.broker.write_all(&bytes).await.unwrap();
    let mut at_client = vec![0; good.len() + 8];
    ends.client.read_exact(&mut at_client).await.unwrap();
    assert_eq!(at_client, bytes[..at_client.len()]);
    assert_eq!(ends.client.read(&mut [0; 10]).await.unwrap(), 0);
    drop(ends.client);
    let ended = ends.relay.await.unwrap();
    assert!(
        matches!(ended, Err(RelayError::BadFrame(Side::Broker, _))),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_answers_pass_and_cuts_at_frame_boundaries() {
    let mut ends = relayed(1024 * 1024, Bytes::new(), Bytes::new());
    let whole = frame(5000);
    let (begun, rest) = whole.split_at(100);
    ends.client.write_all(begun).await.unwrap();
    ends.broker.write_all(begun).await.unwrap();
    let mut part = vec![0; begun.len()];
    ends.broker.read_exact(&mut part).await.unwrap();
    ends.client.read_exact(&mut part).await.unwrap();
    ends.drain.take().unwrap().send(()).unwrap();
    // The begun frame and the whole one behind it pass; the one that is begun in the same write does not.
    let passing = [rest, &whole].concat();
    let written = [&passing, begun].concat();
    ends.client.write_all(&written).await.unwrap();
    let mut at_broker = vec![0; passing.len()];
    ends.broker.read_exact(&mut at_broker).await.unwrap();
    assert_eq!(at_broker, passing);
    ends.broker.write_all(&passing).await.unwrap();
    let mut at_client = vec![0; passing.len()];
    ends.client.read_exact(&mut at_client).await.unwrap();
    assert_eq!(at_client, passing);
    // Both ends come without a further byte, while what either still sends is taken and dropped.
    assert_eq!(ends.broker.read(&mut [0; 10]).await.unwrap(), 0);
    assert_eq!(ends.client.read(&mut [0; 10]).await.unwrap(), 0);
    for _ in 0..100 {
        ends.client.write_all(&whole).await.unwrap();
        ends.broker.write_all(&whole).await.unwrap();
        tokio::task::yield_now().await;
    }
    drop((ends.client, ends.broker));
    ends.relay.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_last_frame_before_a_drain_is_not_held_back_by_a_stream_that_has_to_be_flushed() {
    // As TLS does, this one keeps what is written until it is flushed.
    let (mut client, client_end) = duplex(64 * 1024);
    let (mut broker, broker_end) = duplex(64 * 1024);
    let buffered = BufStream::new(broker_end);
    let (drain, relay) = relay_of(client_end, buffered, (Bytes::new(), Bytes::new()));
    let whole = frame(100);
    let (begun, rest) = whole.split_at(20);
    client.write_all(begun).await.unwrap();
    let mut at_broker = vec![0; begun.len()];
    broker.read_exact(&mut at_broker).await.unwrap();
    drain.send(()).unwrap();
    tokio::task::yield_now().await;
    let begun = Instant::now();
    client.write_all(rest).await.unwrap();
    let mut at_broker = vec![0; rest.len()];
    broker.read_exact(&mut at_broker).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    drop((client, broker));
    relay.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_over_as_soon_as_both_sides_have_ended() {
    let mut ends = relayed(64 * 1024, Bytes::new(), Bytes::new());
    ends.drain.take().unwrap().send(()).unwrap();
    tokio::task::yield_now().await;
    let begun = Instant::now();
    ends.broker.shutdown().await.unwrap();
    assert_eq!(ends.client.read(&mut [0; 10]).await.unwrap(), 0);
    assert_eq!(ends.broker.read(&mut [0; 10]).await.unwrap(), 0);
    drop(ends.client);
    ends.relay.await.unwrap().unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_explains_a_broken_connection_still_arrives() {
    let mut ends = relayed(64 * 1024, Bytes::new(), Bytes::new());
    let answer = frame(30);
    ends.broker.write_all(&answer).await.unwrap();
    drop(ends.broker);
    // Writing to the broker fails from here on.
    ends.client.write_all(&frame(1000)).await.unwrap();
    let mut at_client = Vec::new();
    ends.client.read_to_end(&mut at_client).await.unwrap();
    assert_eq!(at_client, answer);
    drop(ends.client);
    let _ = ends.relay.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_side_that_is_not_read_from_is_not_silent() {
    let mut ends = relayed(4096, Bytes::new(), Bytes::new());
    let sent = fill(&mut ends.broker).await;
    // The client does not read for longer than the time-out, and shows that it is alive.
    for _ in 0..4 {
        ends.client.write_all(&frame(1)).await.unwrap();
        ends.broker
            .read_exact(&mut vec![0; frame(1).len()])
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    ends.client.read_exact(&mut vec![0; sent]).await.unwrap();
    // From now on the broker is silent.
    for _ in 0..4 {
        ends.client.write_all(&frame(1)).await.ok();
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    let ended = ends.relay.await.unwrap();
    assert!(
        matches!(ended, Err(RelayError::Idle(Side::Broker))),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pair_of_which_neither_side_reads_is_closed_after_the_time_out() {
    let mut ends = relayed(4096, Bytes::new(), Bytes::new());
    fill(&mut ends.broker).await;
    fill(&mut ends.client).await;
    let begun = Instant::now();
    let ended = ends.relay.await.unwrap();
    assert!(matches!(ended, Err(RelayError::Idle(_))), "{ended:?}");
    assert!(begun.elapsed() <= Duration::from_secs(75));
}
