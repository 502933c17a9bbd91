//! Whether a client that comes now can be served: some configured broker takes connections.
//!
//! Found out by asking, not from traffic: a gateway that a load balancer has turned away from gets none and would never learn
//! that its brokers are back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use super::Shared;
use crate::client::handshake::dial;

/// The last answer.
#[derive(Debug, Default)]
pub(crate) struct BrokerHealth(AtomicBool);

impl BrokerHealth {
    /// Whether the last probe reached a broker. `false` before the first one.
    pub(crate) fn is_reachable(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Probes for ever: each round goes through the configured brokers until one takes a connection. Cancel-safe.
pub(crate) async fn probe(shared: &Shared) -> std::convert::Infallible {
    let mut first = true;
    loop {
        let mut reached = false;
        for broker in &shared.settings.broker.addresses {
            match dial(broker, PROBE_TIMEOUT, None).await {
                Ok(_) => {
                    reached = true;
                    break;
                }
                Err(error) => tracing::debug!(%broker, "probe: {error}"),
            }
        }
        let before = shared.health.0.swap(reached, Ordering::Relaxed);
        match (before, reached) {
            (true, false) => warn!("no configured broker takes connections"),
            (false, false) if first => warn!("no configured broker takes connections yet"),
            (false, true) => info!("a configured broker takes connections"),
            _ => {}
        }
        first = false;
        sleep(if reached { PROBE_PERIOD } else { RETRY_PERIOD }).await;
    }
}

/// Between probes while brokers are there.
const PROBE_PERIOD: Duration = Duration::from_secs(5);
/// Between probes while none is.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
