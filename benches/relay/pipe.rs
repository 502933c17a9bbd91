//! Raw sockets: the loops that move bytes as fast as a socket takes them, with no buffer per connection.

use std::future::Future;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, thread};

use pulsegate::net::scratch;
use tokio::net::TcpStream;

/// A listener on a free port of the loopback interface that holds a burst of thousands of connections.
pub(crate) fn listen() -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(4096)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Runs `work` on a thread and a runtime of its own.
pub(crate) fn on_a_thread(
    work: impl Future<Output = ()> + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be built")
            .block_on(work);
    })
}

/// Reads until the peer ends and adds what came to `received`.
pub(crate) async fn read_to_end(stream: &TcpStream, received: &AtomicU64) -> io::Result<()> {
    loop {
        stream.readable().await?;
        match scratch::with(|buffer| stream.try_read(buffer)) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                received.fetch_add(read as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads what is there, or waits for the first bytes; `chunk` has them afterwards. 0 is the end.
pub(crate) async fn read_some(stream: &TcpStream, chunk: &mut Vec<u8>) -> io::Result<usize> {
    chunk.clear();
    loop {
        stream.readable().await?;
        let read: io::Result<usize> = scratch::with(|buffer| {
            let read = stream.try_read(buffer)?;
            chunk.extend(buffer.iter().take(read));
            Ok(read)
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

/// Writes `block` over and over, and adds what the socket took to `sent`. Returns only by an error.
pub(crate) async fn push_for_ever(
    stream: &TcpStream,
    block: &[u8],
    sent: &AtomicU64,
) -> io::Result<()> {
    let mut rest = block;
    loop {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(taken) => {
                sent.fetch_add(taken as u64, Ordering::Relaxed);
                rest = rest
                    .get(taken..)
                    .filter(|rest| !rest.is_empty())
                    .unwrap_or(block);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
