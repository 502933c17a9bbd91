//! A broker that stores nothing: it acknowledges what is published and sends made-up messages to consumers, so that what a
//! client can do at most is measured by the client, not by a broker.
//!
//! Owns its listener and the tasks of its connections. It must never keep a message or look into one: checksums are not
//! verified, topics have no content, each consumer gets messages of its own. Start at [`NullBroker::bind`].

mod answers;
mod connection;
mod outgoing;
mod scanner;
mod state;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::net::{Admission, Listener, ListenerLimits};
use crate::protocol::frame::DEFAULT_MAX_MESSAGE_SIZE;
use outgoing::MessageTemplate;
use state::{Session, Shared};

/// What a null broker is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NullBrokerOptions {
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The URL that lookups answer with; `None` is the address that the client has connected to.
    pub advertised: Option<String>,
    /// Partitions of every topic; 0 is a topic without partitions.
    pub partitions: u32,
    /// Size of each message to a consumer, in bytes.
    pub size: usize,
    /// Messages in one batch; `None` sends each message alone.
    pub batch: Option<u32>,
}

impl NullBrokerOptions {
    /// Whether clients would take what is sent.
    ///
    /// # Errors
    /// [`NullBrokerError::EntryTooLarge`].
    pub fn check(&self) -> Result<(), NullBrokerError> {
        let messages = self.batch.unwrap_or(1).max(1);
        let single = self.size.saturating_add(BATCH_OVERHEAD);
        let len = single.saturating_mul(usize::try_from(messages).unwrap_or(usize::MAX));
        if len > usize::try_from(DEFAULT_MAX_MESSAGE_SIZE).unwrap_or(usize::MAX) {
            return Err(NullBrokerError::EntryTooLarge { len });
        }
        Ok(())
    }
}

impl Default for NullBrokerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 6650)),
            advertised: None,
            partitions: 0,
            size: 1024,
            batch: None,
        }
    }
}

/// Why a null broker cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NullBrokerError {
    /// The address cannot be bound.
    #[error("cannot listen on {listen}")]
    Bind {
        /// The address.
        listen: SocketAddr,
        /// What the operating system says.
        source: io::Error,
    },
    /// Entries would be larger than clients accept.
    #[error(
        "entries of {len} bytes are larger than {DEFAULT_MAX_MESSAGE_SIZE} bytes, the most that clients accept"
    )]
    EntryTooLarge {
        /// About how large they would be, in bytes.
        len: usize,
    },
}

/// What a null broker has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Served {
    /// Entries acknowledged; a batch is one.
    pub acknowledged: u64,
    /// Entries sent to consumers.
    pub pushed: u64,
}

/// A null broker that listens.
#[derive(Debug)]
pub struct NullBroker {
    listener: Listener,
    local: SocketAddr,
    advertised: Option<String>,
    shared: Arc<Shared>,
}

impl NullBroker {
    /// Listens; connections are served by [`Self::run`].
    ///
    /// # Errors
    /// See [`NullBrokerError`].
    pub fn bind(options: &NullBrokerOptions) -> Result<Self, NullBrokerError> {
        options.check()?;
        let bind = || {
            let limits = ListenerLimits {
                max_connections: Some(CONNECTIONS_MAX),
                max_per_ip: None,
            };
            let listener = Listener::bind(options.listen, limits)?;
            let local = listener.local_addr()?;
            Ok((listener, local))
        };
        let (listener, local) = bind().map_err(|source| NullBrokerError::Bind {
            listen: options.listen,
            source,
        })?;
        let template = MessageTemplate::new(options.size, options.batch);
        Ok(Self {
            listener,
            local,
            advertised: options.advertised.clone(),
            shared: Arc::new(Shared::new(options.partitions, template)),
        })
    }

    /// The address that is bound, with the real port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Serves clients until `stop` completes; then cuts their connections. Not cancel-safe: dropped, connections go on until
    /// their clients end.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Served {
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                admission = self.listener.accept() => {
                    let Admission::Accepted { stream, peer, permit } = admission else {
                        continue;
                    };
                    let url = self.url_for(stream.local_addr().unwrap_or(self.local));
                    let session = Session::new(Arc::clone(&self.shared), url);
                    let cut = cut.clone();
                    connections.spawn(async move {
                        let served = connection::serve(stream, session);
                        if let Some(Err(error)) = cut.run_until_cancelled(served).await {
                            tracing::debug!(%peer, %error, "a connection ended");
                        }
                        drop(permit);
                    });
                }
            }
        }
        cut.cancel();
        connections.close();
        connections.wait().await;
        let counts = &self.shared.counts;
        Served {
            acknowledged: counts.acknowledged.load(Ordering::Relaxed),
            pushed: counts.pushed.load(Ordering::Relaxed),
        }
    }

    fn url_for(&self, local: SocketAddr) -> String {
        match &self.advertised {
            Some(url) => url.clone(),
            None => format!("pulsar://{local}"),
        }
    }
}

/// Connections at a time; further ones are closed at once.
const CONNECTIONS_MAX: usize = 20_000;
/// What a message in a batch has besides its payload, at most, in bytes.
const BATCH_OVERHEAD: usize = 32;
