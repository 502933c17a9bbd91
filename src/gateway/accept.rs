//! What an accepted connection goes through before it is served: its place among the limits, and TLS on the port that has it.
//!
//! All of it happens on a task of the connection's own, so that a client that takes its time delays nobody else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Shared;
use super::connection::{self, PendingHandshake};
use super::stats::EndReason;
use crate::net::{Admission, RejectReason, ServerStream, TlsAcceptError, TlsServerFiles};
use crate::protocol::proto::pulsar::ServerError;
use crate::protocol::server_error::UserFacingError;

/// Starts what an accepted connection needs; `tls` is that of the port it came to.
pub(super) fn admit(
    shared: &Arc<Shared>,
    cut: &CancellationToken,
    tls: Option<&Arc<TlsServerFiles>>,
    admission: Admission,
) {
    let (stream, peer, permit) = match admission {
        Admission::Accepted {
            stream,
            peer,
            permit,
        } => (stream, peer, permit),
        Admission::Rejected {
            stream,
            peer,
            reason,
        } => return reject(shared, cut, tls, (stream, peer), Rejection::Limit(reason)),
    };
    let Ok(place) = shared.unauthenticated_place() else {
        drop(permit);
        return reject(shared, cut, tls, (stream, peer), Rejection::Unauthenticated);
    };
    let pending = PendingHandshake {
        deadline: Instant::now() + shared.handshake_timeout(),
        place,
    };
    let active = shared.metrics.connection_opened();
    let (shared, cut, tls) = (Arc::clone(shared), cut.clone(), tls.map(Arc::clone));
    let connections = shared.connections.clone();
    connections.spawn(async move {
        let metrics = Arc::clone(&shared);
        let serve = async {
            let client = match &tls {
                None => ServerStream::Plain(stream),
                // Boxed, since it is large and gone before the long part begins.
                Some(tls) => match Box::pin(secure(&shared, tls, stream, pending.deadline)).await {
                    Ok(client) => client,
                    Err(reason) => return reason,
                },
            };
            connection::serve(shared, client, peer, pending).await
        };
        tokio::select! {
            biased;
            () = cut.cancelled() => metrics.metrics.connection_ended(EndReason::Drained),
            reason = serve => {
                metrics.metrics.connection_ended(reason);
                debug!(%peer, ?reason, "connection ended");
            }
        }
        drop((active, permit));
    });
}

/// The TLS handshake with a client.
async fn secure(
    shared: &Shared,
    tls: &TlsServerFiles,
    stream: TcpStream,
    deadline: Instant,
) -> Result<ServerStream, EndReason> {
    let accepted = async { tls.server().await.accept(stream).await };
    let accepted = tokio::select! {
        biased;
        () = shared.draining.cancelled() => return Err(EndReason::Drained),
        accepted = timeout_at(deadline, accepted) => accepted,
    };
    match accepted {
        Ok(Ok(client)) => Ok(client),
        Ok(Err((error, mut stream))) => {
            shared.metrics.tls_handshake_failed(error.label());
            shared.notices.tls_handshake(&error);
            // Closing with bytes unread would reset the connection under the alert that says why.
            if !matches!(error, TlsAcceptError::Closed | TlsAcceptError::Io(_)) {
                connection::close(&mut stream).await;
            }
            Err(EndReason::TlsHandshake)
        }
        Err(_) => {
            shared.metrics.tls_handshake_failed("timeout");
            shared
                .notices
                .tls_handshake(&"it is not over in time, as when a client without TLS waits");
            Err(EndReason::TlsHandshake)
        }
    }
}

/// Tells a client that there is no place for it, if that is cheap.
fn reject(
    shared: &Arc<Shared>,
    cut: &CancellationToken,
    tls: Option<&Arc<TlsServerFiles>>,
    (stream, peer): (TcpStream, SocketAddr),
    rejection: Rejection,
) {
    shared.metrics.connection_rejected();
    shared
        .notices
        .rejected(&format_args!("{peer}: {}", rejection.client_message()));
    // More than these at a time are closed without an answer: refusing must stay cheaper than asking.
    let Some(place) = shared.refusal_place(tls.is_some()) else {
        return;
    };
    let tls = tls.map(Arc::clone);
    let cut = cut.clone();
    shared.connections.spawn(async move {
        tokio::select! {
            biased;
            () = cut.cancelled() => {}
            () = tell(tls, stream, rejection) => {}
        }
        drop(place);
    });
}

async fn tell(tls: Option<Arc<TlsServerFiles>>, mut stream: TcpStream, rejection: Rejection) {
    match tls {
        None => connection::refuse(&mut stream, &rejection).await,
        Some(tls) => {
            let accepted = async { tls.server().await.accept(stream).await };
            let accepted = timeout(REFUSAL_HANDSHAKE_TIMEOUT, accepted).await;
            if let Ok(Ok(mut client)) = accepted {
                connection::refuse(&mut client, &rejection).await;
            }
        }
    }
}

/// Why a connection is beyond a limit.
#[derive(Debug, Clone, Copy)]
enum Rejection {
    Limit(RejectReason),
    Unauthenticated,
}

impl UserFacingError for Rejection {
    /// NotAllowedError where it is a matter of how many clients there are, so that they do not come back in a tight loop.
    /// ServiceNotReady where it is a matter of moments.
    fn code(&self) -> ServerError {
        match self {
            Self::Limit(_) => ServerError::NotAllowedError,
            Self::Unauthenticated => ServerError::ServiceNotReady,
        }
    }

    fn retryable(&self) -> bool {
        matches!(self, Self::Unauthenticated)
    }

    fn client_message(&self) -> String {
        match self {
            Self::Limit(RejectReason::TooManyConnections) => {
                "Reached the maximum number of connections"
            }
            Self::Limit(RejectReason::TooManyFromIp) => {
                "Reached the maximum number of connections on address"
            }
            Self::Unauthenticated => "Too many connections are in their handshake",
        }
        .to_owned()
    }
}

/// A place among the connections whose handshake is not over; `None` where these are not bounded.
pub(super) type Place = Option<OwnedSemaphorePermit>;

/// How long a client that is to be refused has for its TLS handshake.
const REFUSAL_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
