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
    Access, AccessOptions, HttpAuthenticationError, HttpAuthenticator, ReverseProxy,
    ReverseProxyOptions, RouteOptions, WebBrokers, routes,
};
use crate::auth::{
    self, AuthenticationError, AuthenticationService, Presented, Principal, SetupErrors,
};
use crate::config::{self, GatewaySettings};
use crate::gateway::{Gateway, GatewayHandle};
use crate::http::{HttpLimits, HttpServer, Phase, Phases, Response, Router, phases};
use crate::telemetry::MetricRegistry;

/// Looks at what settings hold or name beyond their form: keys and password files have to be usable.
///
/// # Errors
/// With everything that is not.
pub fn check_gateway(settings: &GatewaySettings) -> Result<(), SetupErrors> {
    let Some(clients) = &settings.authentication.clients else {
        return Ok(());
    };
    AuthenticationService::new(clients, &MetricRegistry::new("")).map(drop)
}

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
    let gateway =
        Gateway::bind(settings.clone(), &registry, phases.clone()).context("start the gateway")?;
    let handle = gateway.handle();
    let web = bind_http(&settings, &handle)?;

    let ready_line = ReadyLine {
        broker: handle.local_addr(),
        http: web.local_addr(),
        broker_tls: handle.tls_local_addr(),
        https: web.tls_local_addr(),
    }
    .text(settings.advertised_address.as_deref());
    let tasks = TaskTracker::new();
    let stop_http = CancellationToken::new();
    let router = router(&settings, &registry, handle, phases)?;
    tasks.spawn(web.serve(router, stop_http.clone()));
    let ran = TaskTracker::new();
    ran.spawn(gateway.run());
    ran.close();
    print_line(&ready_line).context("print the ready line")?;
    let brokers = match &settings.discovery.metadata_store {
        Some(store) if settings.broker.addresses.is_empty() => store.to_string(),
        _ => settings.broker.to_string(),
    };
    tracing::info!(%brokers, "{ready_line}");

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

/// Binds the HTTP ports that are on.
fn bind_http(settings: &GatewaySettings, gateway: &GatewayHandle) -> anyhow::Result<HttpServer> {
    let limits = HttpLimits {
        max_connections: settings.http.max_connections,
        max_header_size: settings.http.max_request_header_size,
        idle_timeout: settings.http.idle_timeout,
        header_timeout: settings.http.idle_timeout,
        ..HttpLimits::default()
    };
    let mut server = HttpServer::unbound(limits);
    let ports = [
        ("HTTP", settings.web_service_port, None),
        ("HTTPS", settings.tls.web_service_port, gateway.web_tls()),
    ];
    for (name, port, tls) in ports {
        if let Some(port) = port {
            let addr = SocketAddr::new(settings.bind_address, port);
            server = server
                .and_bind(addr, tls)
                .with_context(|| format!("bind the {name} port {addr}"))?;
        }
    }
    Ok(server)
}

fn router(
    settings: &GatewaySettings,
    registry: &MetricRegistry,
    gateway: GatewayHandle,
    phases: Phases,
) -> anyhow::Result<Router> {
    let authentication = &settings.authentication;
    let super_users = authentication
        .authorization_enabled
        .then(|| authentication.super_user_roles.iter().cloned().collect());
    let access = AccessOptions {
        authenticator: gateway
            .authentication()
            .cloned()
            .map(|service| authenticator(gateway.clone(), service)),
        super_users,
        trusted_proxy_roles: authentication.trusted_proxy_roles.clone(),
        max_requests: settings.proxy.max_requests,
        requests_per_second: settings.proxy.requests_per_second,
    };
    let known = gateway.clone();
    let mut brokers = WebBrokers::new(&settings.proxy, settings.tls.brokers.enabled)
        .with_known_hosts(Arc::new(move |host| known.knows_broker_host(host)));
    if settings.discovery.metadata_store.is_some() {
        let discovered = gateway.clone();
        brokers = brokers.with_discovered(move || {
            let services = discovered.discovered_web_services();
            services.iter().filter_map(|url| url.parse().ok()).collect()
        });
    }
    let connect_timeout = match settings.broker_connect_timeout {
        Duration::ZERO => settings.proxy.timeout,
        limit => limit,
    };
    let tls = gateway.broker_tls();
    let proxy = ReverseProxyOptions {
        brokers,
        connect_timeout,
        tls: Some(Arc::new(move || {
            let tls = tls.clone();
            Box::pin(async move { tls.client().await.map_err(Into::into) })
        })),
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

/// Who asks over HTTP, by the rules that hold for clients.
fn authenticator(gateway: GatewayHandle, service: AuthenticationService) -> HttpAuthenticator {
    Arc::new(move |headers, certificate, address| {
        let presented = Presented {
            address,
            certificate,
        };
        let role = |principal: Result<Principal, AuthenticationError>| {
            principal
                .map(|principal| Some(principal.role))
                .map_err(|error| match error {
                    AuthenticationError::Busy => HttpAuthenticationError::Busy,
                    error => HttpAuthenticationError::Refused(error.to_string()),
                })
        };
        if !service.is_costly_http(headers, &presented) {
            let principal = service.authenticate_http(headers, &presented, auth::clock::now());
            return Box::pin(std::future::ready(role(principal)));
        }
        let (service, headers) = (service.clone(), headers.clone());
        let certificate = certificate.map(<[u8]>::to_vec);
        let checked = gateway.check_costly(address.ip(), move || {
            let presented = Presented {
                address,
                certificate: certificate.as_deref(),
            };
            service.authenticate_http(&headers, &presented, auth::clock::now())
        });
        Box::pin(async move { role(checked.await) })
    })
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

/// The line that says where everything listens: `ready broker=pulsar://ADDR http=http://ADDR broker-tls=pulsar+ssl://ADDR
/// https=https://ADDR`, of which each part is there when its port is on.
struct ReadyLine {
    broker: Option<SocketAddr>,
    http: Option<SocketAddr>,
    broker_tls: Option<SocketAddr>,
    https: Option<SocketAddr>,
}

impl ReadyLine {
    fn text(&self, advertised: Option<&str>) -> String {
        let parts = [
            ("broker=pulsar", self.broker),
            ("http=http", self.http),
            ("broker-tls=pulsar+ssl", self.broker_tls),
            ("https=https", self.https),
        ];
        let mut line = "ready".to_owned();
        for (name, address) in parts {
            if let Some(address) = address {
                line.push_str(&format!(" {name}://{}", reachable(address, advertised)));
            }
        }
        line
    }
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
    }

    #[test]
    fn the_ready_line_has_a_part_for_each_port_that_is_on() {
        let all: SocketAddr = "0.0.0.0:5".parse().expect("address");
        let line = |parts: [bool; 4]| {
            let [broker, http, broker_tls, https] = parts.map(|on| on.then_some(all));
            let line = ReadyLine {
                broker,
                http,
                broker_tls,
                https,
            };
            line.text(Some("gate"))
        };
        assert_eq!(
            line([true, true, false, false]),
            "ready broker=pulsar://gate:5 http=http://gate:5"
        );
        assert_eq!(
            line([true, false, false, false]),
            "ready broker=pulsar://gate:5"
        );
        assert_eq!(
            line([true; 4]),
            "ready broker=pulsar://gate:5 http=http://gate:5 broker-tls=pulsar+ssl://gate:5 https=https://gate:5"
        );
        assert_eq!(
            line([false, false, true, true]),
            "ready broker-tls=pulsar+ssl://gate:5 https=https://gate:5"
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

    #[tokio::test]
    async fn passwords_over_http_wait_for_their_turn_unless_they_were_good_before() {
        let users = b"me:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\n";
        let clients = config::IncomingAuthenticationSettings {
            providers: vec![config::ProviderSettings::Basic(config::SecretBytes::new(
                *users,
            ))],
            anonymous_role: None,
        };
        let url = "pulsar://127.0.0.1:1".parse().expect("a URL");
        let mut settings = GatewaySettings::for_broker(url);
        settings.bind_address = Ipv4Addr::LOCALHOST.into();
        settings.service_port = Some(0);
        settings.authentication.clients = Some(clients);
        let (_phase, phases) = phases();
        let gateway = Gateway::bind(settings, &MetricRegistry::new(""), phases).expect("bound");
        let handle = gateway.handle();
        let service = handle.authentication().expect("it is on").clone();
        let ask = authenticator(handle.clone(), service);
        let from: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let mut headers = hyper::HeaderMap::new();
        let mut with = |password: &str| {
            use base64::Engine as _;
            let text = base64::engine::general_purpose::STANDARD.encode(format!("me:{password}"));
            let value = format!("Basic {text}").parse().expect("a header");
            headers.insert("authorization", value);
            ask(&headers, None, from)
        };

        let tasks = TaskTracker::new();
        // Takes all places until what it returns is dropped.
        let take_all = || {
            let (began, begins) = std::sync::mpsc::channel();
            let mut ends = Vec::new();
            for _ in 0..2 {
                let (end, ended) = std::sync::mpsc::channel::<()>();
                let began = began.clone();
                tasks.spawn(handle.check_costly(from.ip(), move || {
                    let _ = began.send(());
                    let _ = ended.recv();
                    Err(AuthenticationError::NoCredential)
                }));
                ends.push(end);
            }
            let began = tasks.spawn_blocking(move || begins.iter().take(2).count());
            async move {
                assert_eq!(began.await.expect("no panic"), 2);
                ends
            }
        };
        let taken = take_all().await;
        let mut waiting = std::pin::pin!(with("secret"));
        assert!(
            tokio::time::timeout(Duration::ZERO, waiting.as_mut())
                .await
                .is_err(),
            "a third is hashed beside two"
        );
        drop(taken);
        assert_eq!(waiting.await, Ok(Some("me".into())));
        let taken = take_all().await;
        let remembered = tokio::time::timeout(Duration::ZERO, with("secret")).await;
        assert_eq!(
            remembered,
            Ok(Ok(Some("me".into()))),
            "what was good waits for nobody"
        );
        drop(taken);
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
