//! What a relay holds: with readers that stop, and of connections on which nothing happens.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::task::JoinSet;

use crate::broker::{Behaviour, Broker, Stalled};
use crate::cases::{CASES, Client, Flow, Subject, open};
use crate::frames::{Block, BlockOf};
use crate::pipe;
use crate::relays::Relay;

/// What a relay holds while nobody reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// The most unsent bytes in the relay (not in the kernel) of one connection, client to broker.
    pub(crate) upward: i64,
    /// The same from broker to client.
    pub(crate) downward: i64,
    /// Growth of the relay's process by all connections, in KiB.
    pub(crate) rss_kib: u64,
}

/// Opens connections on which both sides send and neither reads, waits until nothing moves, and counts what went in at one
/// end and is neither in the other end's socket nor in any socket on the way.
pub(crate) async fn stalled(
    relay: &Relay,
    broker: &Broker,
    connections: usize,
) -> anyhow::Result<Held> {
    broker.seen.stalled.lock().clear();
    // What a relay keeps once it has relayed anything is there once and not per connection.
    for case in CASES.iter().filter(|case| case.flow == Flow::Both) {
        case.run(relay, broker, WARM_UP_TIME).await?;
    }
    let rss = relay.rss_kib()?;
    let block = Block::new(BlockOf::Send, 1024).bytes;
    let mut clients = Vec::new();
    let mut writing = JoinSet::new();
    for id in 0..connections {
        let Client { stream, early } = open(
            relay.address,
            broker.address,
            Behaviour::Stall(id),
            Subject::Producer,
        )
        .await?;
        let client = Stalled {
            local: stream.local_addr()?,
            remote: stream.peer_addr()?,
            sent: Arc::default(),
        };
        let (sent, block) = (Arc::clone(&client.sent), block.clone());
        writing.spawn(async move { pipe::push_for_ever(&stream, &block, &sent).await });
        clients.push((client, early));
    }
    wait_until_still(broker, &clients).await?;
    let queues = Queues::read()?;
    let mut held = Held {
        upward: 0,
        downward: 0,
        rss_kib: relay.rss_kib()?.saturating_sub(rss),
    };
    let ends = broker.seen.stalled.lock().clone();
    for (id, (client, early)) in clients.iter().enumerate() {
        let end = ends.get(&id).context("the broker has the connection")?;
        let upward = client.sent.load(Ordering::Relaxed);
        let downward = end.sent.load(Ordering::Relaxed) - early;
        let upward = i64::try_from(upward)? - queues.between(client, end);
        let downward = i64::try_from(downward)? - queues.between(end, client);
        held.upward = held.upward.max(upward);
        held.downward = held.downward.max(downward);
    }
    Ok(held)
}

async fn wait_until_still(broker: &Broker, clients: &[(Stalled, u64)]) -> anyhow::Result<()> {
    let total = || {
        let load = |sent: &AtomicU64| sent.load(Ordering::Relaxed);
        let up: u64 = clients.iter().map(|(client, _)| load(&client.sent)).sum();
        let ends = broker.seen.stalled.lock();
        up + ends.values().map(|end| load(&end.sent)).sum::<u64>()
    };
    let deadline = Instant::now() + STILL_MAX;
    let mut last = 0;
    while total() != last {
        ensure!(Instant::now() < deadline, "the senders are never blocked");
        last = total();
        tokio::time::sleep(STILL).await;
    }
    ensure!(last > 0, "nothing was sent");
    Ok(())
}

/// Bytes in the sockets of this network namespace, from `/proc/net/tcp`: by (local, remote) port, unacknowledged and unread.
struct Queues(HashMap<(u16, u16), (i64, i64)>);

impl Queues {
    fn read() -> anyhow::Result<Self> {
        let text = fs::read_to_string("/proc/net/tcp")?;
        let sockets = text.lines().skip(1).filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let mut port = || u16::from_str_radix(fields.next()?.rsplit_once(':')?.1, 16).ok();
            let ports = (port()?, port()?);
            let (unacknowledged, unread) = fields.nth(1)?.split_once(':')?;
            let unacknowledged = i64::from_str_radix(unacknowledged, 16).ok()?;
            Some((
                ports,
                (unacknowledged, i64::from_str_radix(unread, 16).ok()?),
            ))
        });
        Ok(Self(sockets.collect()))
    }

    /// Bytes in the kernel on the way from `source` to `target`, through a relay or without one.
    fn between(&self, source: &Stalled, target: &Stalled) -> i64 {
        let socket = |local: SocketAddr, remote: SocketAddr| {
            let ports = (local.port(), remote.port());
            self.0.get(&ports).copied().unwrap_or_default()
        };
        let (sent, _) = socket(source.local, source.remote);
        let (_, delivered) = socket(target.local, target.remote);
        if source.remote == target.local {
            return sent + delivered;
        }
        let (_, relay_unread) = socket(source.remote, source.local);
        let (relay_sent, _) = socket(target.remote, target.local);
        sent + relay_unread + relay_sent + delivered
    }
}

/// KiB that the relay's process grows by for each connection on which a producer is open and silent.
pub(crate) async fn idle(
    relay: &Relay,
    broker: &Broker,
    connections: usize,
) -> anyhow::Result<f64> {
    // What the first connections cost is there once and not per connection.
    let mut clients = open_idle(relay, broker, WARM_UP).await?;
    let before = relay.rss_kib()?;
    clients.extend(open_idle(relay, broker, connections).await?);
    let grown = relay.rss_kib()?.saturating_sub(before);
    ensure!(clients.len() == WARM_UP + connections, "all are open");
    Ok(grown as f64 / connections as f64)
}

async fn open_idle(relay: &Relay, broker: &Broker, count: usize) -> anyhow::Result<Vec<Client>> {
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        let client = open(
            relay.address,
            broker.address,
            Behaviour::Discard,
            Subject::Producer,
        );
        clients.push(client.await?);
    }
    Ok(clients)
}

/// Nothing moves when no byte was taken for this long; longer than a delayed acknowledgement.
const STILL: Duration = Duration::from_millis(500);
const STILL_MAX: Duration = Duration::from_secs(30);
const WARM_UP: usize = 50;
const WARM_UP_TIME: Duration = Duration::from_millis(200);
