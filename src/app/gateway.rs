//! The gateway role: its components, their wiring and their end.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::lifecycle::{Ended, Shutdown, ShutdownTimes, shut_down};
use super::limits;
use crate::admin::{
    Access, AccessOptions, ReverseProxy, ReverseProxyOptions, RouteOptions, WebBrokers, routes,
};
use crate::config::{self, GatewaySettings};
use crate::gateway::{Gateway, GatewayHandle};
use crate::http::{HttpLimits, HttpServer, Phase, Phases, Response, Router, phases};
use crate::telemetry::MetricRegistry;

/// Runs the gateway until a signal ends it.
///
/// Binds all listeners, prints the ready line on standard output, serves, and at SIGTERM or SIGINT drains. Not
/// cancel-safe: dropped, connections end without being drained.
///
/// # Errors
/// When a listener cannot be bound or the process cannot set up what it needs. Nothing is served then.
pub async fn run_gateway(settings: GatewaySettings) -> anyhow::Result<Ended> {
    limits::raise_open_files(&settings);
    let mut shutdown = Shutdown::listen().context("catch signals")?;
    let registry = MetricRegistry::new(&settings.cluster_name);
    registry.register_process_metrics()?;
    let (phase, phases) = phases();
    let web = match settings.web_service_port {
        Some(port) => Some(bind_http(&settings, port)?),
        None => None,
    };
    let gateway =
        Gateway::bind(settings.clone(), &registry, phases.clone()).with_context(|| {
            format!(
                "bind the binary port {:?} on {}",
                settings.service_port, settings.bind_address
            )
        })?;
    let handle = gateway.handle();

    let ready_line = ready_line(
        &settings,
        handle.local_addr(),
        web.as_ref().map(HttpServer::local_addr),
    );
    let tasks = TaskTracker::new();
    let stop_http = CancellationToken::new();
    if let Some(server) = web {
        let router = router(&settings, &registry, handle, phases)?;
        let stop = stop_http.clone();
        tasks.spawn(server.serve(router, stop));
    }
    let ran = TaskTracker::new();
    ran.spawn(gateway.run());
    ran.close();
    print_line(&ready_line).context("print the ready line")?;
    tracing::info!(brokers = %settings.broker, "{ready_line}");

    tokio::select! {
        () = shutdown.requested() => {}
        () = ran.wait() => anyhow::bail!("the gateway ended by itself"),
    }
    let times = ShutdownTimes {
        not_ready: settings.not_ready_period,
        total: settings.drain_timeout,
    };
    let ended = shut_down(&phase, times, ran.wait(), shutdown.requested()).await;
    stop_http.cancel();
    tasks.close();
    if ended != Ended::Interrupted {
        tasks.wait().await;
        // After the deadline the gateway cuts what is left, which takes no time; nothing may wait for more.
        let _ = tokio::time::timeout(CUT_TIME, ran.wait()).await;
    }
    Ok(ended)
}

fn bind_http(settings: &GatewaySettings, port: u16) -> anyhow::Result<HttpServer> {
    let addr = SocketAddr::new(settings.bind_address, port);
    let limits = HttpLimits {
        max_connections: settings.http.max_connections,
        max_header_size: settings.http.max_request_header_size,
        idle_timeout: settings.http.idle_timeout,
        header_timeout: settings.http.idle_timeout,
        ..HttpLimits::default()
    };
    HttpServer::bind(addr, limits).with_context(|| format!("bind the HTTP port {addr}"))
}

fn router(
    settings: &GatewaySettings,
    registry: &MetricRegistry,
    gateway: GatewayHandle,
    phases: Phases,
) -> anyhow::Result<Router> {
    let access = AccessOptions {
        max_requests: settings.proxy.max_requests,
        requests_per_second: settings.proxy.requests_per_second,
        ..AccessOptions::default()
    };
    let known = gateway.clone();
    let brokers = WebBrokers::new(&settings.proxy, false)
        .with_known_hosts(Arc::new(move |host| known.knows_broker_host(host)));
    let connect_timeout = match settings.broker_connect_timeout {
        Duration::ZERO => settings.proxy.timeout,
        limit => limit,
    };
    let proxy = ReverseProxyOptions {
        brokers,
        connect_timeout,
        tls: None,
        server_name: settings.advertised_address.clone(),
    };
    let options = RouteOptions {
        settings: &settings.proxy,
        access: Access::new(access, registry)?,
        proxy: ReverseProxy::new(settings.proxy.clone(), proxy),
        stats: settings.http.metrics_enabled,
        registry: registry.clone(),
        gateway: gateway.clone(),
    };
    let status_file = settings.http.status_file.clone();
    Ok(routes(Router::new(), options)
        .route("/livez", || Response::text(200, "ok\n"))
        .route("/readyz", move || {
            readiness(phases.current(), gateway.is_ready())
        })
        .route("/status.html", move || status(status_file.as_deref())))
}

/// 200 while new clients can be served; else 503 with the reason.
fn readiness(phase: Phase, gateway_ready: bool) -> Response {
    match (phase, gateway_ready) {
        (Phase::Serving, true) => Response::text(200, "ready\n"),
        (Phase::Serving, false) => {
            Response::text(503, "not ready: the gateway cannot serve clients now\n")
        }
        (other, _) => Response::text(503, format!("not ready: {}\n", other.as_str())),
    }
}

/// As the Apache proxy: `OK` while the configured file exists, else 404.
fn status(file: Option<&Path>) -> Response {
    match file {
        Some(path) if config::status_file_exists(path) => Response::text(200, "OK"),
        _ => Response::text(404, "not found\n"),
    }
}

/// `ready broker=pulsar://ADDR http=http://ADDR`; the second part only where HTTP is on.
fn ready_line(settings: &GatewaySettings, broker: SocketAddr, http: Option<SocketAddr>) -> String {
    let advertised = settings.advertised_address.as_deref();
    let mut line = format!("ready broker=pulsar://{}", reachable(broker, advertised));
    if let Some(http) = http {
        line.push_str(" http=http://");
        line.push_str(&reachable(http, advertised));
    }
    line
}

/// An address that can be connected to: the one bound; for a listener on every address the advertised host, or else the
/// loopback address.
fn reachable(bound: SocketAddr, advertised: Option<&str>) -> String {
    if !bound.ip().is_unspecified() {
        return bound.to_string();
    }
    match advertised {
        Some(host) if host.contains(':') => format!("[{host}]:{}", bound.port()),
        Some(host) => format!("{host}:{}", bound.port()),
        None => {
            let loopback = match bound.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            };
            SocketAddr::new(loopback, bound.port()).to_string()
        }
    }
}

fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Bound on the time in which cut connections are taken down.
const CUT_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naming::BrokerAddress;

    fn settings() -> GatewaySettings {
        let broker = BrokerAddress::from_host_port("broker:6650").expect("well-formed");
        GatewaySettings::for_broker(broker.into())
    }

    #[test]
    fn the_ready_line_names_addresses_that_can_be_reached() {
        let cases = [
            ("127.0.0.1:5", None, "127.0.0.1:5"),
            ("127.0.0.1:5", Some("gate"), "127.0.0.1:5"),
            ("0.0.0.0:5", None, "127.0.0.1:5"),
            ("0.0.0.0:5", Some("gate"), "gate:5"),
            ("0.0.0.0:5", Some("fe80::1"), "[fe80::1]:5"),
            ("[::]:5", None, "[::1]:5"),
        ];
        for (bound, advertised, expected) in cases {
            let bound: SocketAddr = bound.parse().expect(bound);
            assert_eq!(reachable(bound, advertised), expected);
        }
        let addr: SocketAddr = "127.0.0.1:5".parse().expect("address");
        assert_eq!(
            ready_line(&settings(), addr, Some(addr)),
            "ready broker=pulsar://127.0.0.1:5 http=http://127.0.0.1:5"
        );
        assert_eq!(
            ready_line(&settings(), addr, None),
            "ready broker=pulsar://127.0.0.1:5"
        );
    }

    #[test]
    fn readiness_follows_phase_and_gateway() {
        assert_eq!(readiness(Phase::Serving, true).status, 200);
        assert_eq!(readiness(Phase::Serving, false).status, 503);
        let draining = readiness(Phase::Draining, true);
        assert_eq!(
            (draining.status, draining.body.as_str()),
            (503, "not ready: draining\n")
        );
        assert_eq!(readiness(Phase::NotReady, true).status, 503);
    }

    #[test]
    fn status_html_needs_a_file_that_exists() {
        assert_eq!(status(None).status, 404);
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("status");
        assert_eq!(status(Some(&path)).status, 404);
        std::fs::write(&path, "").expect("write");
        assert_eq!(status(Some(&path)), Response::text(200, "OK"));
    }
}
