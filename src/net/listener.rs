//! Accepting connections: backlog, limits in total and per address, and errors that must not stop the accept loop.
//!
//! A permit is a value: as long as it lives its connection counts, and dropping it gives the place back. The listener
//! never closes a refused connection itself, since what a refused peer is told is the caller's decision.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tracing::{debug, warn};

use super::socket;

/// How many connections a [`Listener`] admits at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Connections in total; `None` = no limit.
    pub max_connections: Option<usize>,
    /// Connections from one IP address; `None` = no limit.
    pub max_per_ip: Option<usize>,
}

/// A bound TCP listener that counts the connections it admitted.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    counts: Arc<Counts>,
}

/// What became of one connection attempt.
#[derive(Debug)]
pub enum Admission {
    /// The connection is within the limits.
    Accepted {
        /// The connection, `TCP_NODELAY` set.
        stream: TcpStream,
        /// The peer's address.
        peer: SocketAddr,
        /// Keeps the connection counted; drop it when the connection has ended.
        permit: ConnectionPermit,
    },
    /// The connection is above a limit and is not counted; the caller answers it or drops it.
    Rejected {
        /// The connection, `TCP_NODELAY` set.
        stream: TcpStream,
        /// The peer's address.
        peer: SocketAddr,
        /// Which limit it met.
        reason: RejectReason,
    },
}

/// The limit that a refused connection met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// [`ListenerLimits::max_connections`] are open.
    TooManyConnections,
    /// [`ListenerLimits::max_per_ip`] are open from the peer's address.
    TooManyFromIp,
}

impl Listener {
    /// Binds `addr` (port 0 = a free port) with `SO_REUSEADDR` and listens.
    ///
    /// # Errors
    /// What the operating system says, for instance that the address is in use.
    pub fn bind(addr: SocketAddr, limits: ListenerLimits) -> io::Result<Self> {
        Self::bind_counting(addr, Arc::new(Counts::new(limits)))
    }

    /// As [`bind`](Self::bind); the limits of `other` are those of both listeners together.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_beside(addr: SocketAddr, other: &Self) -> io::Result<Self> {
        Self::bind_counting(addr, Arc::clone(&other.counts))
    }

    fn bind_counting(addr: SocketAddr, counts: Arc<Counts>) -> io::Result<Self> {
        let socket = match addr {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        Ok(Self {
            listener: socket.listen(BACKLOG)?,
            counts,
        })
    }

    /// The address that is bound, with the real port.
    ///
    /// # Errors
    /// What the operating system says; not expected on a bound socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Number of admitted connections whose permit is alive, those of listeners beside it included.
    pub fn connections(&self) -> usize {
        self.counts.total.load(Ordering::Relaxed)
    }

    /// Waits for the next connection.
    ///
    /// Never fails: an attempt that died before it was accepted is skipped, and when the process or the machine has run
    /// out of file descriptors or memory it waits (5 ms doubling to 1 s) and tries again, so that neither ends the
    /// accept loop nor makes it spin. Cancel-safe: no accepted connection is lost.
    pub async fn accept(&self) -> Admission {
        let mut backoff = AcceptBackoff::default();
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => return self.admit(stream, peer),
                Err(error) => {
                    let delay = backoff.after(&error);
                    if delay >= ACCEPT_BACKOFF_MIN {
                        warn!(%error, ?delay, "cannot accept connections; trying again");
                    } else {
                        debug!(%error, "a connection ended before it was accepted");
                    }
                    // The zero delay still yields, so that a storm of aborted attempts cannot keep a worker busy.
                    if delay.is_zero() {
                        tokio::task::yield_now().await;
                    } else {
                        tokio::time::sleep(delay).await;
                    }
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream, peer: SocketAddr) -> Admission {
        if let Err(error) = socket::prepare(&stream) {
            debug!(%error, %peer, "cannot set the options of a connection");
        }
        match self.counts.admit(peer.ip()) {
            Ok(permit) => Admission::Accepted {
                stream,
                peer,
                permit,
            },
            Err(reason) => Admission::Rejected {
                stream,
                peer,
                reason,
            },
        }
    }
}

/// One admitted connection's place among the limits; given back when dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    counts: Arc<Counts>,
    /// The address that is counted, or `None` where addresses are not limited.
    ip: Option<IpAddr>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.counts.total.fetch_sub(1, Ordering::Relaxed);
        let Some(ip) = self.ip else { return };
        let mut per_ip = self.counts.per_ip.lock();
        if let Some(count) = per_ip.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                per_ip.remove(&ip);
            }
        }
    }
}

/// The admitted connections; `per_ip` never holds a zero, so it is no larger than the number of connections.
#[derive(Debug)]
struct Counts {
    limits: ListenerLimits,
    total: AtomicUsize,
    per_ip: Mutex<HashMap<IpAddr, usize>>,
}

impl Counts {
    fn new(limits: ListenerLimits) -> Self {
        Self {
            limits,
            total: AtomicUsize::new(0),
            per_ip: Mutex::new(HashMap::new()),
        }
    }

    fn admit(self: &Arc<Self>, ip: IpAddr) -> Result<ConnectionPermit, RejectReason> {
        let max = self.limits.max_connections.unwrap_or(usize::MAX);
        self.total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
                (open < max).then_some(open + 1)
            })
            .map_err(|_| RejectReason::TooManyConnections)?;
        // From here on the permit gives the place back, also when the address is above its own limit.
        let mut permit = ConnectionPermit {
            counts: Arc::clone(self),
            ip: None,
        };
        if let Some(max_per_ip) = self.limits.max_per_ip {
            // One host is one address, also where a dual-stack socket shows its IPv4 form inside IPv6.
            let ip = ip.to_canonical();
            let mut per_ip = self.per_ip.lock();
            let open = per_ip.get(&ip).copied().unwrap_or(0);
            if open >= max_per_ip {
                drop(per_ip);
                return Err(RejectReason::TooManyFromIp);
            }
            per_ip.insert(ip, open + 1);
            drop(per_ip);
            permit.ip = Some(ip);
        }
        Ok(permit)
    }
}

/// How long to wait after each failed accept in a row.
#[derive(Debug, Default)]
struct AcceptBackoff {
    last: Duration,
}

impl AcceptBackoff {
    /// Zero for an error of the one attempt, a growing delay for an error that the next attempt would meet again.
    fn after(&mut self, error: &io::Error) -> Duration {
        if is_of_one_attempt(error) {
            return Duration::ZERO;
        }
        self.last = (self.last * 2).clamp(ACCEPT_BACKOFF_MIN, ACCEPT_BACKOFF_MAX);
        self.last
    }
}

/// Whether the error belongs to the connection that was to be accepted (and is gone with it), as accept(2) lists them.
fn is_of_one_attempt(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
            | io::ErrorKind::TimedOut
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
    )
}

/// Connections that may wait to be accepted: a restarted gateway is met by all its clients at once.
const BACKLOG: u32 = 4096;
const ACCEPT_BACKOFF_MIN: Duration = Duration::from_millis(5);
const ACCEPT_BACKOFF_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn localhost() -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
    }

    async fn connect_and_accept(listener: &Listener) -> (TcpStream, Admission) {
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        (client, listener.accept().await)
    }

    #[tokio::test]
    async fn admits_up_to_the_total_and_counts_back_to_zero() {
        let limits = ListenerLimits {
            max_connections: Some(2),
            max_per_ip: None,
        };
        let listener = Listener::bind(localhost(), limits).unwrap();
        let (_a, first) = connect_and_accept(&listener).await;
        let (_b, second) = connect_and_accept(&listener).await;
        let (_c, third) = connect_and_accept(&listener).await;
        assert!(matches!(first, Admission::Accepted { .. }));
        assert!(matches!(second, Admission::Accepted { .. }));
        assert!(matches!(
            third,
            Admission::Rejected {
                reason: RejectReason::TooManyConnections,
                ..
            }
        ));
        assert_eq!(listener.connections(), 2);

        drop(first);
        let (_d, fourth) = connect_and_accept(&listener).await;
        assert!(matches!(fourth, Admission::Accepted { .. }));

        drop((second, fourth));
        assert_eq!(listener.connections(), 0);
    }

    #[tokio::test]
    async fn admits_up_to_the_limit_of_an_address_and_forgets_it_afterwards() {
        let limits = ListenerLimits {
            max_connections: None,
            max_per_ip: Some(1),
        };
        let listener = Listener::bind(localhost(), limits).unwrap();
        let (_a, first) = connect_and_accept(&listener).await;
        let (_b, second) = connect_and_accept(&listener).await;
        assert!(matches!(first, Admission::Accepted { .. }));
        assert!(matches!(
            second,
            Admission::Rejected {
                reason: RejectReason::TooManyFromIp,
                ..
            }
        ));
        assert_eq!(listener.connections(), 1);

        drop(first);
        assert_eq!(listener.connections(), 0);
        assert!(listener.counts.per_ip.lock().is_empty());
    }

    #[tokio::test]
    async fn listeners_beside_each_other_share_their_limits() {
        let limits = ListenerLimits {
            max_connections: Some(2),
            max_per_ip: Some(1),
        };
        let first = Listener::bind(localhost(), limits).unwrap();
        let second = Listener::bind_beside(localhost(), &first).unwrap();
        let (_a, admitted) = connect_and_accept(&first).await;
        let (_b, refused) = connect_and_accept(&second).await;
        assert!(matches!(
            refused,
            Admission::Rejected {
                reason: RejectReason::TooManyFromIp,
                ..
            }
        ));
        assert_eq!(second.connections(), 1);
        drop(admitted);
        let (_c, admitted) = connect_and_accept(&second).await;
        assert!(matches!(admitted, Admission::Accepted { .. }));
        assert_eq!(first.connections(), 1);
    }

    #[tokio::test]
    async fn accepted_streams_have_nagle_off_and_keep_alive_on() {
        let listener = Listener::bind(localhost(), ListenerLimits::default()).unwrap();
        let (_client, admission) = connect_and_accept(&listener).await;
        let Admission::Accepted { stream, peer, .. } = admission else {
            panic!("refused without limits")
        };
        assert!(stream.nodelay().unwrap());
        assert!(socket2::SockRef::from(&stream).keepalive().unwrap());
        assert!(peer.ip().is_loopback());
    }

    #[tokio::test]
    async fn a_cancelled_accept_loses_no_connection() {
        let listener = Listener::bind(localhost(), ListenerLimits::default()).unwrap();
        {
            let mut accept = std::pin::pin!(listener.accept());
            let polled = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(accept.as_mut().poll(cx).is_pending())
            })
            .await;
            assert!(polled);
        }
        let (_client, admission) = connect_and_accept(&listener).await;
        assert!(matches!(admission, Admission::Accepted { .. }));
    }

    #[test]
    fn one_host_is_one_address_in_either_notation() {
        let counts = Arc::new(Counts::new(ListenerLimits {
            max_connections: None,
            max_per_ip: Some(1),
        }));
        let ipv4: IpAddr = "192.0.2.1".parse().unwrap();
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        let _permit = counts.admit(ipv4).unwrap();
        assert_eq!(
            counts.admit(mapped).unwrap_err(),
            RejectReason::TooManyFromIp
        );
        assert_eq!(counts.total.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn running_out_of_descriptors_backs_off_up_to_a_second() {
        for errno in [
            24, /* EMFILE */
            23, /* ENFILE */
            12, /* ENOMEM */
        ] {
            let error = io::Error::from_raw_os_error(errno);
            let mut backoff = AcceptBackoff::default();
            assert_eq!(backoff.after(&error), Duration::from_millis(5));
            assert_eq!(backoff.after(&error), Duration::from_millis(10));
            for _ in 0..10 {
                backoff.after(&error);
            }
            assert_eq!(backoff.after(&error), Duration::from_secs(1));
        }
    }

    #[test]
    fn an_aborted_attempt_does_not_delay_the_next() {
        let mut backoff = AcceptBackoff::default();
        let aborted = io::Error::from_raw_os_error(103 /* ECONNABORTED */);
        assert_eq!(backoff.after(&aborted), Duration::ZERO);
    }
}
