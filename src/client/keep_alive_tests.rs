//! Tests of the keep-alive of [`super::connection`] in real time: a runtime that stands still has to be a real one.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::Duration,
};

use bytes::BytesMut;

use super::{Connection, ConnectionOptions};
use crate::{
    naming::BrokerAddress,
    protocol::{
        command::Command,
        proto::pulsar::{CommandConnect, CommandPong, base_command::Type},
    },
    testing::scripted_broker::connected,
};

/// A broker on a thread of its own: the runtime of the test stands still meanwhile.
struct Broker {
    stream: TcpStream,
}

impl Broker {
    fn receive(&mut self) -> Type {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).unwrap();
        let mut frame = vec![0; usize::try_from(u32::from_be_bytes(size)).unwrap()];
        self.stream.read_exact(&mut frame).unwrap();
        let command = Command::decode(&bytes::Bytes::from(frame.split_off(4))).unwrap();
        Type::try_from(command.command_type()).unwrap()
    }

    fn send(&mut self, command: Command) {
        let mut bytes = BytesMut::new();
        command.encode(&mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }
}

/// A connection whose first PING has been sent when the runtime stands still for `pause`; the broker answers the PING
/// meanwhile or not. Whether the connection lives when the next PING of the runtime has had time to be sent.
fn lives_after_a_pause(interval: Duration, pause: Duration, answers: bool) -> bool {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let address = BrokerAddress::from_host_port(&address).unwrap();
    let (has_ping, ping_came) = mpsc::channel();
    let (paused, is_paused) = mpsc::channel::<()>();
    let (answered, has_answered) = mpsc::channel::<()>();
    let broker = thread::spawn(move || {
        let stream = listener.accept().unwrap().0;
        let mut broker = Broker { stream };
        assert_eq!(broker.receive(), Type::Connect);
        broker.send(connected());
        assert_eq!(broker.receive(), Type::Ping);
        has_ping.send(()).unwrap();
        is_paused.recv().unwrap();
        if answers {
            broker.send(Command::from(CommandPong {}));
        }
        answered.send(()).unwrap();
        let mut size = [0; 4];
        // The second PING, or the end.
        broker.stream.read_exact(&mut size).is_ok()
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let options = ConnectionOptions {
            keep_alive_interval: Some(interval),
            ..ConnectionOptions::default()
        };
        let connection = Connection::open(&address, CommandConnect::default(), options)
            .await
            .unwrap();
        while ping_came.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        paused.send(()).unwrap();
        has_answered.recv().unwrap();
        // Nobody sends here: it is a pause of the whole runtime.
        let (_sender, nothing) = mpsc::channel::<()>();
        let _ = nothing.recv_timeout(pause);
        let second_ping = tokio::task::spawn_blocking(move || broker.join().unwrap());
        let lives = second_ping.await.unwrap();
        connection.close();
        lives
    })
}

#[test]
fn an_answer_that_came_while_we_stood_still_counts() {
    let interval = Duration::from_millis(200);
    assert!(lives_after_a_pause(interval, interval * 2, true));
}

#[test]
fn a_silence_while_we_stood_still_is_not_the_brokers() {
    let interval = Duration::from_millis(200);
    assert!(lives_after_a_pause(
        interval,
        Duration::from_millis(1500),
        false
    ));
    assert!(!lives_after_a_pause(interval, Duration::ZERO, false));
}
