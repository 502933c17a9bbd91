//! The protocol-aware TCP gateway.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::config::GatewaySettings;
use crate::http::{Phase, Phases};
use crate::telemetry::MetricRegistry;

/// A bound gateway.
#[derive(Debug)]
pub struct Gateway {
    listener: TcpListener,
    phases: Phases,
    local_addr: SocketAddr,
}

/// What health endpoints and the composition root see of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayHandle {
    local_addr: SocketAddr,
}

impl Gateway {
    /// Binds the listeners.
    ///
    /// # Errors
    /// When an address cannot be bound.
    pub fn bind(
        settings: GatewaySettings,
        _registry: &MetricRegistry,
        phases: Phases,
    ) -> io::Result<Self> {
        let addr = (
            settings.bind_address,
            settings.service_port.unwrap_or_default(),
        );
        let listener = std::net::TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let local_addr = listener.local_addr()?;
        Ok(Self {
            listener,
            phases,
            local_addr,
        })
    }

    /// The handle for others.
    #[must_use]
    pub const fn handle(&self) -> GatewayHandle {
        GatewayHandle {
            local_addr: self.local_addr,
        }
    }

    /// Serves until drained.
    pub async fn run(self) {
        self.phases.reached(Phase::Draining).await;
        drop(self.listener);
    }
}

impl GatewayHandle {
    /// The address bound for the binary protocol.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Whether clients can be served.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        true
    }
}
