//! Whether a client that comes now can be served: some configured broker answers.
//!
//! Found out by asking, not from traffic: a gateway that a load balancer has turned away from gets none and would never learn
//! that its brokers are back. The question is a PING, which brokers answer before CONNECT: it needs no credential, and what
//! answers it speaks Pulsar's protocol.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::Shared;
use crate::client::dial::dial;
use crate::client::{ConnectError, TlsSource};
use crate::naming::BrokerAddress;
use crate::net::{FrameReader, ReadError};
use crate::protocol::command::{Command, CommandError, name_of};
use crate::protocol::frame::FrameLimits;
use crate::protocol::proto::pulsar::CommandPing;

/// Why a broker does not count as reachable.
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

/// The last answer.
#[derive(Debug, Default)]
pub(crate) struct BrokerHealth(AtomicBool);

impl BrokerHealth {
    /// Whether the last probe reached a broker. `false` before the first one.
    pub(crate) fn is_reachable(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Probes for ever: each round goes through the configured brokers until one answers. Cancel-safe.
pub(crate) async fn probe(shared: &Shared) -> std::convert::Infallible {
    let mut failed_rounds = 0_u32;
    loop {
        match probe_all(&shared.settings.broker.addresses, &shared.tls.brokers).await {
            Ok(()) => {
                if !shared.health.0.swap(true, Ordering::Relaxed) {
                    info!("a configured broker answers");
                }
                failed_rounds = 0;
                sleep(PROBE_PERIOD).await;
            }
            Err((broker, error)) => {
                shared.health.0.store(false, Ordering::Relaxed);
                if failed_rounds.is_multiple_of(ROUNDS_PER_WARNING) {
                    warn!("no configured broker answers; the last one asked was {broker}: {error}");
                }
                failed_rounds = failed_rounds.wrapping_add(1);
                sleep(RETRY_PERIOD).await;
            }
        }
    }
}

/// Asks one broker after the other; the error is that of the last one.
async fn probe_all<'a>(
    brokers: &'a [BrokerAddress],
    tls: &TlsSource,
) -> Result<(), (&'a BrokerAddress, ProbeError)> {
    let mut last = Ok(());
    for broker in brokers {
        let asked = timeout(PROBE_TIMEOUT, ping(broker, tls)).await;
        match asked.unwrap_or(Err(ProbeError::Silent)) {
            Ok(()) => return Ok(()),
            Err(error) => {
                debug!(%broker, "probe: {error}");
                last = Err((broker, error));
            }
        }
    }
    last
}

async fn ping(broker: &BrokerAddress, tls: &TlsSource) -> Result<(), ProbeError> {
    let mut stream = dial(broker, PROBE_TIMEOUT, None, tls).await?;
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

/// Between probes while brokers are there.
const PROBE_PERIOD: Duration = Duration::from_secs(5);
/// Between probes while none is.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// Failed rounds from one warning to the next: a minute, or a little more.
const ROUNDS_PER_WARNING: u32 = 60;
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
