//! A gateway and raw clients for the tests.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pulsegate::config::GatewaySettings;
use pulsegate::gateway::{Gateway, GatewayHandle};
use pulsegate::http::{Phase, PhaseSender, phases};
use pulsegate::naming::ServiceUrl;
use pulsegate::net::FrameReader;
use pulsegate::protocol::command::Command;
use pulsegate::protocol::frame::{Frame, FrameLimits};
use pulsegate::protocol::proto::pulsar::{
    CommandConnect, CommandLookupTopicResponse, FeatureFlags,
};
use pulsegate::telemetry::MetricRegistry;
use pulsegate::testing::scripted_broker::ScriptedBroker;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// A gateway that runs in this process until [`stop`](Self::stop).
pub(crate) struct TestGateway {
    pub(crate) handle: GatewayHandle,
    pub(crate) registry: MetricRegistry,
    phase: PhaseSender,
    running: TaskTracker,
}

impl TestGateway {
    pub(crate) fn in_front_of(brokers: &[&ScriptedBroker]) -> Self {
        Self::with(brokers, |_| ())
    }

    pub(crate) fn with(
        brokers: &[&ScriptedBroker],
        change: impl FnOnce(&mut GatewaySettings),
    ) -> Self {
        let addresses: Vec<String> = brokers
            .iter()
            .map(|broker| broker.address().to_string())
            .collect();
        let url = match addresses.join(",").as_str() {
            // The caller names them.
            "" => "pulsar://127.0.0.1:1".to_owned(),
            addresses => format!("pulsar://{addresses}"),
        };
        let url: ServiceUrl = url.parse().unwrap();
        let mut settings = GatewaySettings::for_broker(url);
        settings.bind_address = "127.0.0.1".parse().unwrap();
        settings.service_port = Some(0);
        settings.cluster_name = "test".to_owned();
        change(&mut settings);
        let registry = MetricRegistry::new(&settings.cluster_name);
        let (phase, phases) = phases();
        let gateway = Gateway::bind(settings, &registry, phases).unwrap();
        let handle = gateway.handle();
        let running = TaskTracker::new();
        running.spawn(gateway.run());
        running.close();
        Self {
            handle,
            registry,
            phase,
            running,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.handle.local_addr().unwrap()
    }

    pub(crate) fn advance(&self, phase: Phase) {
        self.phase.advance(phase);
    }

    /// The value of a metric, by its whole name with labels but for `cluster`; a series that has no sample yet counts as 0.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let wanted = match name.split_once('{') {
            Some((name, labels)) => [
                format!("{name}{{cluster=\"test\",{labels} "),
                format!(
                    "{name}{{{},cluster=\"test\"}} ",
                    labels.trim_end_matches('}')
                ),
            ],
            None => [format!("{name}{{cluster=\"test\"}} "), format!("{name} ")],
        };
        let text = self.registry.render();
        text.lines()
            .find_map(|line| wanted.iter().find_map(|wanted| line.strip_prefix(wanted)))
            .map_or(0.0, |value| value.parse().unwrap())
    }

    /// Waits until a metric has the value.
    pub(crate) async fn wait_for_metric(&self, name: &str, value: f64) {
        within(async {
            while (self.metric(name) - value).abs() > f64::EPSILON {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Waits until the gateway has ended.
    pub(crate) async fn finished(&self) {
        self.running.wait().await;
    }

    /// Ends the gateway; every connection must be gone then.
    pub(crate) async fn stop(self) {
        self.phase.advance(Phase::Stopped);
        within(self.running.wait()).await;
        assert!(self.metric("pulsar_proxy_active_connections").abs() < f64::EPSILON);
        assert!(self.metric("pulsegate_gateway_broker_connections").abs() < f64::EPSILON);
    }
}

/// A client that says exactly what a test wants.
pub(crate) struct RawClient<S = TcpStream> {
    frames: FrameReader<S>,
}

impl RawClient {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            frames: FrameReader::new(stream, FrameLimits::default()),
        }
    }

    /// As [`connect`](Self::connect), of a client whose system takes only a few kilobytes that it has not read.
    pub(crate) async fn connect_with_little_room(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            frames: FrameReader::new(stream, FrameLimits::default()),
        }
    }

    /// Sends `bytes` again and again, without reading, until the other side has taken no more for a moment or has closed, or
    /// until `max` bytes are sent. Returns how many bytes were sent.
    pub(crate) async fn send_until_refused(&mut self, bytes: &[u8], max: usize) -> usize {
        let stream = self.frames.get_mut();
        let mut sent = 0;
        while sent < max {
            let writable = timeout(Duration::from_millis(500), stream.writable()).await;
            if writable.is_err() {
                break;
            }
            match stream.try_write(&bytes[sent % bytes.len()..]) {
                Ok(taken) => sent += taken,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        sent
    }

    /// Connects and completes the handshake with this CONNECT.
    pub(crate) async fn established(address: SocketAddr, connect: CommandConnect) -> Self {
        let mut client = Self::connect(address).await;
        client.send(connect).await;
        let answer = client.receive().await;
        assert!(matches!(answer, Command::Connected(_)), "{answer:?}");
        client
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> RawClient<S> {
    /// A client that speaks over this stream.
    pub(crate) fn over(stream: S) -> Self {
        Self {
            frames: FrameReader::new(stream, FrameLimits::default()),
        }
    }

    /// The stream, and what was read and belongs to no frame that was received.
    pub(crate) fn into_parts(self) -> (S, Bytes) {
        self.frames.into_parts()
    }

    pub(crate) async fn send(&mut self, command: impl Into<Command>) {
        let mut bytes = BytesMut::new();
        command.into().encode(&mut bytes);
        self.send_bytes(&bytes).await;
    }

    pub(crate) async fn send_frame(&mut self, frame: &Frame) {
        let mut bytes = BytesMut::new();
        frame.encode(&mut bytes);
        self.send_bytes(&bytes).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        let stream = self.frames.get_mut();
        within(async {
            stream.write_all(bytes).await?;
            stream.flush().await
        })
        .await
        .unwrap();
    }

    pub(crate) async fn receive(&mut self) -> Command {
        let frame = self.receive_frame().await;
        Command::decode(&frame.command).unwrap()
    }

    pub(crate) async fn receive_frame(&mut self) -> Frame {
        within(self.frames.next())
            .await
            .unwrap()
            .expect("the connection ended")
    }

    /// Waits for the end of the connection, which must come without a further frame and without a reset.
    pub(crate) async fn closed(&mut self) {
        let end = within(self.frames.next()).await;
        assert!(matches!(end, Ok(None)), "{end:?}");
    }

    /// Ends the client's side.
    pub(crate) async fn end(&mut self) {
        self.frames.get_mut().shutdown().await.unwrap();
    }

    /// Everything until the end of the connection.
    pub(crate) async fn rest(self) -> Vec<u8> {
        let (mut stream, early) = self.frames.into_parts();
        let mut bytes = early.to_vec();
        within(stream.read_to_end(&mut bytes)).await.unwrap();
        bytes
    }
}

impl RawClient {
    /// The next frame, which has to be the answer to a lookup.
    pub(crate) async fn lookup_response(&mut self) -> CommandLookupTopicResponse {
        match self.receive().await {
            Command::LookupResponse(response) => response,
            other => panic!("{other:?}"),
        }
    }
}

/// A CONNECT as the C++ client sends it, for lookups.
pub(crate) fn lookup_connect() -> CommandConnect {
    CommandConnect {
        client_version: "Pulsar-CPP-v4.2.0".to_owned(),
        auth_method_name: Some("none".to_owned()),
        auth_data: Some(Bytes::new()),
        protocol_version: Some(19),
        feature_flags: Some(FeatureFlags {
            supports_auth_refresh: Some(true),
            supports_broker_entry_metadata: Some(true),
            ..FeatureFlags::default()
        }),
        ..CommandConnect::default()
    }
}

/// The same for a broker.
pub(crate) fn direct_connect(target: &str) -> CommandConnect {
    CommandConnect {
        proxy_to_broker_url: Some(target.to_owned()),
        ..lookup_connect()
    }
}

/// A test that waits for more than this waits in vain.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_secs(20), future)
        .await
        .expect("nothing happened in time")
}
