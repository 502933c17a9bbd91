//! Opening a stream to a broker: resolve, connect, and TLS where the address asks for it.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpStream, lookup_host},
    time::{Instant, timeout_at},
};

use super::{
    connection::{AddressCheck, ConnectionOptions},
    error::ConnectError,
    tls::TlsSource,
};
use crate::{
    naming::BrokerAddress,
    net::{Stream, TlsClient, socket},
};

/// Opens a connection to a broker, with TLS where its address asks for it. A host name is resolved and its addresses are tried in
/// turn, each for an equal share of the time that is left, so that one that swallows packets does not keep the others from being
/// tried; all of that takes at most `connect_timeout`, and a TLS handshake as much again. The address that `allowed` judged is the
/// one that is connected to. Cancel-safe in that nothing is left behind.
///
/// # Errors
/// [`ConnectError::Dial`], [`ConnectError::DialTimeout`], [`ConnectError::AddressDenied`] (of several addresses the last
/// one's), [`ConnectError::TlsConfig`], [`ConnectError::Tls`] and [`ConnectError::TlsTimeout`].
pub async fn dial(
    address: &BrokerAddress,
    connect_timeout: Duration,
    allowed: Option<&AddressCheck>,
    tls: &TlsSource,
) -> Result<Stream, ConnectError> {
    let tls = client_for(address, tls).await?;
    let stream = dial_tcp(address, connect_timeout, allowed).await?;
    secure(stream, tls, &address.host, connect_timeout).await
}

/// Who performs the TLS handshake with this address, where it asks for one.
async fn client_for(
    address: &BrokerAddress,
    tls: &TlsSource,
) -> Result<Option<Arc<TlsClient>>, ConnectError> {
    if address.tls {
        tls.client().await.map(Some)
    } else {
        Ok(None)
    }
}

async fn dial_tcp(
    address: &BrokerAddress,
    connect_timeout: Duration,
    allowed: Option<&AddressCheck>,
) -> Result<TcpStream, ConnectError> {
    let deadline = Instant::now() + connect_timeout;
    let resolve = lookup_host((address.host.as_str(), address.port));
    let resolved: Vec<SocketAddr> = timeout_at(deadline, resolve)
        .await
        .map_err(|_| ConnectError::DialTimeout(connect_timeout))?
        .map_err(ConnectError::Dial)?
        .take(ADDRESSES_MAX)
        .collect();
    let mut last = ConnectError::Dial(io::ErrorKind::AddrNotAvailable.into());
    for (tried, target) in resolved.iter().enumerate() {
        if allowed.is_some_and(|allowed| !allowed(address, target.ip())) {
            last = ConnectError::AddressDenied;
            continue;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(resolved.len() - tried).unwrap_or(1);
        match timeout_at(Instant::now() + share, TcpStream::connect(target)).await {
            Ok(Ok(stream)) => {
                socket::prepare(&stream).map_err(ConnectError::Dial)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = ConnectError::Dial(error),
            Err(_) => last = ConnectError::DialTimeout(share),
        }
    }
    Err(last)
}

/// Opens the stream that an address and the options ask for. TLS is for the host of `address`, whatever addresses it has and
/// whether or not it is reached through [`ConnectionOptions::sni_proxy`]. Cancel-safe as [`dial`].
pub(crate) async fn open_stream(
    address: &BrokerAddress,
    options: &ConnectionOptions,
) -> Result<Stream, ConnectError> {
    let limit = options.connect_timeout;
    let next_hop = match &options.sni_proxy {
        Some(proxy) if address.tls => proxy,
        _ => address,
    };
    let tls = client_for(address, &options.tls).await?;
    let stream = dial_tcp(next_hop, limit, options.allowed.as_ref()).await?;
    secure(stream, tls, &address.host, limit).await
}

/// TLS for this host over the connection, or the connection as it is.
async fn secure(
    stream: TcpStream,
    tls: Option<Arc<TlsClient>>,
    host: &str,
    limit: Duration,
) -> Result<Stream, ConnectError> {
    let Some(tls) = tls else {
        return Ok(Stream::Plain(stream));
    };
    let secured = timeout_at(Instant::now() + limit, tls.connect(stream, host)).await;
    Ok(secured.map_err(|_| ConnectError::TlsTimeout(limit))??)
}

/// Addresses of one host name that are tried.
const ADDRESSES_MAX: usize = 16;
