//! Options that every TCP connection of ours has, whoever opened it.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Sets `TCP_NODELAY`, since a frame that waits for more costs a round trip, and TCP keep-alive, so that a peer that vanished
/// without a word is noticed also where no time-out of the protocol is set.
///
/// # Errors
/// What the operating system says; the connection is usable all the same.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_IDLE)
        .with_interval(KEEP_ALIVE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&keep_alive)
}

const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
