//! The paths of the gateway's HTTP service that are not about its health.

use std::fmt;
use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::access::{Access, Need};
use super::proxy_stats::ProxyStats;
use super::reverse_proxy::ReverseProxy;
use crate::config::ProxySettings;
use crate::gateway::GatewayHandle;
use crate::http::{Response, Router, method_not_allowed};
use crate::telemetry::MetricRegistry;

/// What the paths lead to.
pub struct RouteOptions<'a> {
    /// Their settings.
    pub settings: &'a ProxySettings,
    /// Who may ask.
    pub access: Arc<Access>,
    /// The way to the brokers.
    pub proxy: Arc<ReverseProxy>,
    /// Whether `/metrics` and `/proxy-stats` are served (`enableProxyStatsEndpoints`).
    pub stats: bool,
    /// The metrics.
    pub registry: MetricRegistry,
    /// The gateway.
    pub gateway: GatewayHandle,
}

impl fmt::Debug for RouteOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteOptions")
            .field("settings", &self.settings)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// Adds the paths to a router: `/admin` and `/lookup`, further routes, `/metrics` and `/proxy-stats`; and the headers of all
/// answers.
#[must_use]
pub fn routes(mut router: Router, options: RouteOptions<'_>) -> Router {
    let RouteOptions {
        settings,
        access,
        proxy,
        stats,
        registry,
        gateway,
    } = options;
    for path in ["/admin", "/lookup"] {
        let proxy = Arc::clone(&proxy);
        let handler = access.guard(Need::Authentication, move |request, caller| {
            Box::pin(Arc::clone(&proxy).to_brokers(request, caller))
        });
        router = router.handle_below(path, handler);
    }
    for route in &settings.routes {
        let proxy = Arc::clone(&proxy);
        let target = Arc::new(route.clone());
        let handler = access.guard(Need::Authentication, move |request, caller| {
            let (proxy, target) = (Arc::clone(&proxy), Arc::clone(&target));
            Box::pin(async move { proxy.to_route(request, caller, &target).await })
        });
        router = router.handle_below(&route.path, handler);
    }
    if stats {
        let need = if settings.authenticate_metrics {
            Need::Authentication
        } else {
            Need::Nothing
        };
        for path in ["/metrics", "/metrics/"] {
            let registry = registry.clone();
            let handler = access.guard(need, move |request, _| {
                let method = request.method().as_str();
                let answer = if matches!(method, "GET" | "HEAD") {
                    metrics(&registry).into()
                } else {
                    method_not_allowed("GET, HEAD")
                };
                Box::pin(std::future::ready(answer))
            });
            router = router.handle(path, handler);
        }
        let stats = ProxyStats::new(gateway, 0);
        let handler = access.guard(Need::SuperUser, move |request, _| {
            let answer = stats.answer(request.method(), request.uri().path());
            Box::pin(std::future::ready(answer))
        });
        router = router.handle_below("/proxy-stats", handler);
    }
    router.headers(answer_headers(&settings.response_headers))
}

fn metrics(registry: &MetricRegistry) -> Response {
    Response {
        status: 200,
        content_type: "text/plain; version=0.0.4; charset=utf-8",
        body: registry.render(),
    }
}

fn answer_headers(settings: &[(String, String)]) -> HeaderMap {
    settings
        .iter()
        .filter_map(|(name, value)| {
            let name: HeaderName = name.parse().ok()?;
            Some((name, HeaderValue::from_str(value).ok()?))
        })
        .collect()
}
