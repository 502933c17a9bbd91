//! Which brokers answer: each known one is probed.
//!
//! Found out by asking, not from traffic: a gateway that a load balancer has turned away from gets none and would never learn
//! that its brokers are back. The question is a PING, which brokers answer before CONNECT: it needs no credential, and what
//! answers it speaks Pulsar's protocol.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, info, warn};

use super::Shared;
use super::discovery::{Change, is_our_own};
use crate::client::ConnectError;
use crate::client::dial::dial;
use crate::naming::BrokerAddress;
use crate::net::{FrameReader, ReadError};
use crate::protocol::command::{Command, CommandError, name_of};
use crate::protocol::frame::FrameLimits;
use crate::protocol::proto::pulsar::CommandPing;

/// Why a broker does not count as answering.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("it does not answer PING within {PROBE_TIMEOUT:?}")]
    Silent,
    #[error("it closes the connection")]
    Closed,
    #[error("sending PING: {0}")]
    Send(#[source] io::Error),
    #[error("what listens there does not speak Pulsar's protocol: {0}")]
    Read(#[from] ReadError),
    #[error("what listens there does not speak Pulsar's protocol: {0}")]
    Command(#[from] CommandError),
    #[error("it answers PING by {0}")]
    Unexpected(&'static str),
}

/// Probes for ever, each broker at a time of its own. Cancel-safe.
pub(crate) async fn watch(shared: &Arc<Shared>) -> Infallible {
    let mut probes: JoinSet<(BrokerAddress, Result<(), ProbeError>)> = JoinSet::new();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut none_answers = NoneAnswers::default();
    loop {
        tokio::select! {
            Some(probed) = probes.join_next() => {
                // One that panicked has no broker to tell of, and there is none.
                if let Ok((broker, result)) = probed {
                    on_probed(shared, &broker, result);
                }
            }
            _ = ticks.tick() => {
                shared.brokers.tick();
                shared.pools.close_unused();
                none_answers.tick(shared.brokers.all_silent());
                for broker in shared.brokers.due(PROBES_MAX.saturating_sub(probes.len())) {
                    let shared = Arc::clone(shared);
                    probes.spawn(async move {
                        let asked = timeout(PROBE_TIMEOUT, ping(&shared, &broker)).await;
                        (broker, asked.unwrap_or(Err(ProbeError::Silent)))
                    });
                }
            }
        }
    }
}

fn on_probed(shared: &Shared, broker: &BrokerAddress, result: Result<(), ProbeError>) {
    if let Err(ProbeError::Connect(error)) = &result
        && is_our_own(error)
    {
        debug!(%broker, "the broker cannot be probed: {error}");
        shared.brokers.not_probed(broker);
        return;
    }
    match (shared.brokers.probed(broker, result.is_ok()), result) {
        (Some(Change::Answers), _) => info!(%broker, "the broker answers"),
        (Some(Change::Silent), Err(error)) => warn!(%broker, "the broker does not answer: {error}"),
        (_, Err(error)) => debug!(%broker, "probe: {error}"),
        _ => {}
    }
}

/// Says now and then that nobody can be served.
#[derive(Debug, Default)]
struct NoneAnswers {
    ticks: u32,
}

impl NoneAnswers {
    fn tick(&mut self, all_silent: bool) {
        if !all_silent {
            self.ticks = 0;
            return;
        }
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(TICKS_PER_WARNING) {
            warn!("no known broker answers");
        }
    }
}

async fn ping(shared: &Shared, broker: &BrokerAddress) -> Result<(), ProbeError> {
    let check = shared.address_check();
    let mut stream = dial(broker, PROBE_TIMEOUT, Some(&check), &shared.tls.brokers).await?;
    let mut bytes = BytesMut::new();
    Command::Ping(CommandPing::default()).encode(&mut bytes);
    stream.write_all(&bytes).await.map_err(ProbeError::Send)?;
    stream.flush().await.map_err(ProbeError::Send)?;
    let frame = FrameReader::new(stream, FrameLimits::default())
        .next()
        .await?
        .ok_or(ProbeError::Closed)?;
    match Command::decode(&frame.command)? {
        Command::Pong(_) => Ok(()),
        other => Err(ProbeError::Unexpected(name_of(other.command_type()))),
    }
}

/// How often is looked whether a broker is to be probed.
const TICK: Duration = Duration::from_millis(200);
/// Probes at a time.
const PROBES_MAX: usize = 16;
/// A minute.
const TICKS_PER_WARNING: u32 = 300;
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
