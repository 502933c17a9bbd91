//! Settings of the HTTP reverse proxy: where requests go, and the bounds on them.

use std::time::Duration;

use super::build::{BOOLEAN, Builder, boolean};
use super::problem::Problem;
use crate::naming::WebUrl;

/// Settings of the HTTP side of the gateway that lies in front of brokers.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxySettings {
    /// `brokerWebServiceURL`: base URLs of the brokers' HTTP service, all `http`; may be empty.
    pub brokers: Vec<WebUrl>,
    /// `brokerWebServiceURLTLS`: the same over TLS, all `https`.
    pub brokers_tls: Vec<WebUrl>,
    /// `functionWorkerWebServiceURL`: base URL of the function workers.
    pub functions: Option<WebUrl>,
    /// `functionWorkerWebServiceURLTLS`: the same over TLS.
    pub functions_tls: Option<WebUrl>,
    /// `httpReverseProxy.<name>.path` and `.proxyTo`: further routes, none of which shadows another path.
    pub routes: Vec<ProxyRoute>,
    /// `webServiceTrustXForwardedFor`: whether forwarding headers of clients are believed and passed on.
    pub trust_forwarded: bool,
    /// `httpProxyTimeout`: bound on a whole request.
    pub timeout: Duration,
    /// `httpProxyIdleTimeout`: a body of which nothing comes from the broker, or is taken by it, for so long fails.
    pub idle_timeout: Duration,
    /// `httpInputMaxReplayBufferSize`: bytes of a request body that are kept for a redirect.
    pub replay_max: usize,
    /// `httpMaxResponseHeaderSize`: largest head of a broker's answer, at least 8192.
    pub response_head_max: usize,
    /// `maxConcurrentHttpRequests`: requests at a time; `None` is no bound.
    pub max_requests: Option<usize>,
    /// `httpRequestsMaxPerSecond`, where `httpRequestsLimitEnabled`.
    pub requests_per_second: Option<f64>,
    /// `proxyHttpResponseHeadersJson`: name and value of the headers of every answer.
    pub response_headers: Vec<(String, String)>,
    /// `authenticateMetricsEndpoint`: whether `/metrics` needs authentication where that is on.
    pub authenticate_metrics: bool,
}

// A rate that is no number never passes validation.
impl Eq for ProxySettings {}

/// A further route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyRoute {
    /// The name in the settings.
    pub name: String,
    /// The path that leads there, with all below it; begins with `/` and does not end with it.
    pub path: String,
    /// The URL that takes the place of the path.
    pub target: WebUrl,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            brokers: Vec::new(),
            brokers_tls: Vec::new(),
            functions: None,
            functions_tls: None,
            routes: Vec::new(),
            trust_forwarded: false,
            timeout: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(30),
            replay_max: 5 * 1024 * 1024,
            response_head_max: 8192,
            max_requests: Some(1024),
            requests_per_second: None,
            response_headers: Vec::new(),
            authenticate_metrics: true,
        }
    }
}

impl Builder {
    pub(super) fn http_proxy(&mut self) -> ProxySettings {
        let defaults = ProxySettings::default();
        let limited = self.parse("httpRequestsLimitEnabled", false, BOOLEAN, boolean);
        let rate = self.parse(
            "httpRequestsMaxPerSecond",
            100.0,
            "a number above 0",
            requests_per_second,
        );
        ProxySettings {
            brokers: self.web_urls("brokerWebServiceURL", false),
            brokers_tls: self.web_urls("brokerWebServiceURLTLS", true),
            functions: self.web_url("functionWorkerWebServiceURL", false),
            functions_tls: self.web_url("functionWorkerWebServiceURLTLS", true),
            routes: self.routes(),
            trust_forwarded: self.parse(
                "webServiceTrustXForwardedFor",
                defaults.trust_forwarded,
                BOOLEAN,
                boolean,
            ),
            timeout: self.milliseconds("httpProxyTimeout", 300_000),
            idle_timeout: self.milliseconds("httpProxyIdleTimeout", 30_000),
            replay_max: self.number(
                "httpInputMaxReplayBufferSize",
                defaults.replay_max,
                0,
                REPLAY_MAX,
            ),
            response_head_max: self
                .number(
                    "httpMaxResponseHeaderSize",
                    defaults.response_head_max,
                    1,
                    HEAD_MAX,
                )
                .max(defaults.response_head_max),
            max_requests: self.bound("maxConcurrentHttpRequests", defaults.max_requests),
            requests_per_second: limited.then_some(rate),
            response_headers: self.parse(
                "proxyHttpResponseHeadersJson",
                Vec::new(),
                "a JSON object of header names and values, none of them a header of connections or lengths",
                response_headers,
            ),
            authenticate_metrics: self.parse(
                "authenticateMetricsEndpoint",
                defaults.authenticate_metrics,
                BOOLEAN,
                boolean,
            ),
        }
    }

    fn milliseconds(&mut self, key: &str, default: u64) -> Duration {
        Duration::from_millis(self.number(key, default, 1, i32::MAX.unsigned_abs().into()))
    }

    fn web_urls(&mut self, key: &str, tls: bool) -> Vec<WebUrl> {
        let expected = if tls { HTTPS_URLS } else { HTTP_URLS };
        self.list(key, expected, |text| base_url(text, tls))
            .unwrap_or_default()
    }

    fn web_url(&mut self, key: &str, tls: bool) -> Option<WebUrl> {
        let expected = if tls { HTTPS_URL } else { HTTP_URL };
        self.parse(key, None, expected, |text| base_url(text, tls).map(Some))
    }

    /// The routes; a name needs both of its settings.
    fn routes(&mut self) -> Vec<ProxyRoute> {
        let prefix = "httpReverseProxy.";
        let given: Vec<(String, String)> = self
            .families
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.text.clone()))
            .collect();
        if given.len() > ROUTE_SETTINGS_MAX {
            let what = format!("more than {ROUTE_SETTINGS_MAX} settings of routes");
            self.route_problem(prefix, what, ROUTE_KEYS);
            return Vec::new();
        }
        let mut routes: Vec<ProxyRoute> = Vec::new();
        for (key, text) in &given {
            let rest = key.strip_prefix(prefix).unwrap_or_default();
            let Some((name, part)) = rest
                .rsplit_once('.')
                .filter(|(name, part)| !name.is_empty() && matches!(*part, "path" | "proxyTo"))
            else {
                self.route_problem(key, "no setting of a route".to_owned(), ROUTE_KEYS);
                continue;
            };
            let of = |part: &str| {
                let key = format!("{prefix}{name}.{part}");
                let found = given.iter().find(|(given, _)| *given == key);
                found
                    .map(|(_, text)| text.as_str())
                    .filter(|text| !text.is_empty())
            };
            let other = if part == "path" { "proxyTo" } else { "path" };
            if text.is_empty() || of(other).is_none() {
                let what = format!("route {name} needs a path and a proxyTo");
                self.route_problem(key, what, ROUTE_KEYS);
                continue;
            }
            // Each route comes up twice, once for each of its settings.
            if part == "proxyTo" {
                if target_url(text).is_none() {
                    self.route_problem(key, refused(text), HTTP_URL);
                }
                continue;
            }
            let Some(path) = route_path(text) else {
                self.route_problem(key, refused(text), ROUTE_PATH);
                continue;
            };
            let shadowed = RESERVED
                .iter()
                .copied()
                .chain(routes.iter().map(|route| route.path.as_str()))
                .find(|taken| overlap(taken, &path))
                .map(str::to_owned);
            if let Some(taken) = shadowed {
                let what = format!("{path} overlaps {taken}, which is served already");
                self.route_problem(key, what, "a path of its own");
                continue;
            }
            if let Some(target) = of("proxyTo").and_then(target_url) {
                routes.push(ProxyRoute {
                    name: name.to_owned(),
                    path,
                    target,
                });
            }
        }
        routes
    }

    fn route_problem(&mut self, key: &str, what: String, expected: &str) {
        let origin = self
            .families
            .get(key)
            .map_or(super::Origin::Settings, |value| value.origin.clone());
        self.problems
            .push(Problem::new(origin, key, what).expected(expected));
    }
}

fn refused(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    format!("{short:?} is not accepted")
}

/// A URL that paths are appended to.
fn base_url(text: &str, tls: bool) -> Option<WebUrl> {
    let mut url: WebUrl = text.parse().ok()?;
    let fits = url.origin.tls == tls && !url.path.contains('?');
    url.path.truncate(url.path.trim_end_matches('/').len());
    fits.then_some(url)
}

fn target_url(text: &str) -> Option<WebUrl> {
    base_url(text, false).or_else(|| base_url(text, true))
}

/// `/name` or `/name/name`, of characters that need no escape.
fn route_path(text: &str) -> Option<String> {
    let path = text.strip_suffix('/').unwrap_or(text);
    let segments = path.strip_prefix('/')?;
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let fits = |segment: &str| {
        !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(plain)
    };
    segments.split('/').all(fits).then(|| path.to_owned())
}

/// Whether one of the paths is the other or lies below it.
fn overlap(a: &str, b: &str) -> bool {
    let below = |long: &str, short: &str| {
        long.strip_prefix(short)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    below(a, b) || below(b, a)
}

fn requests_per_second(text: &str) -> Option<f64> {
    text.parse::<f64>()
        .ok()
        .filter(|rate| rate.is_finite() && *rate > 0.0 && *rate <= 1e9)
}

fn response_headers(text: &str) -> Option<Vec<(String, String)>> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
    object
        .into_iter()
        .map(|(name, value)| {
            let value = match value {
                serde_json::Value::String(text) => text,
                serde_json::Value::Number(number) => number.to_string(),
                serde_json::Value::Bool(on) => on.to_string(),
                _ => return None,
            };
            let token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            let named = !name.is_empty() && name.bytes().all(token);
            let framed = FRAMING
                .iter()
                .any(|framing| name.eq_ignore_ascii_case(framing));
            let printable = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            (named && !framed && printable).then_some((name, value))
        })
        .collect()
}

/// Paths that the gateway serves itself, or will.
const RESERVED: [&str; 8] = [
    "/admin",
    "/lookup",
    "/metrics",
    "/proxy-stats",
    "/status.html",
    "/livez",
    "/readyz",
    "/ws",
];
/// Headers that say where a message ends or what becomes of its connection.
const FRAMING: [&str; 8] = [
    "connection",
    "content-length",
    "transfer-encoding",
    "keep-alive",
    "upgrade",
    "trailer",
    "te",
    "content-encoding",
];
const HTTP_URL: &str = "http://host:port";
const HTTPS_URL: &str = "https://host:port";
const HTTP_URLS: &str = "http://host:port, comma separated";
const HTTPS_URLS: &str = "https://host:port, comma separated";
const ROUTE_KEYS: &str = "httpReverseProxy.NAME.path and httpReverseProxy.NAME.proxyTo";
const ROUTE_PATH: &str = "a path of letters, digits and -_.~, such as /name";
const ROUTE_SETTINGS_MAX: usize = 200;
/// Largest buffer for a body that one request may have.
const REPLAY_MAX: u64 = 1024 * 1024 * 1024;
const HEAD_MAX: u64 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::super::{ConfigErrors, GatewaySettings, Sources, load_gateway};
    use super::*;

    fn load(sets: &[&str]) -> Result<GatewaySettings, ConfigErrors> {
        let mut all = vec!["brokerServiceURL=pulsar://b:6650".to_owned()];
        all.extend(sets.iter().map(|set| (*set).to_owned()));
        load_gateway(&Sources {
            sets: all,
            ..Sources::default()
        })
        .map(|loaded| loaded.settings)
    }

    fn proxy(sets: &[&str]) -> ProxySettings {
        load(sets).unwrap_or_else(|errors| panic!("{errors}")).proxy
    }

    #[test]
    fn without_settings_the_defaults_are_those_of_apache() {
        assert_eq!(proxy(&[]), ProxySettings::default());
    }

    #[test]
    fn every_setting_reaches_its_field() {
        let read = proxy(&[
            "brokerWebServiceURL=http://b1:8080, http://b2:8080/base/",
            "brokerWebServiceURLTLS=https://b1:8443",
            "functionWorkerWebServiceURL=http://f:6750",
            "functionWorkerWebServiceURLTLS=https://f:6751",
            "httpReverseProxy.ui.path=/ui/",
            "httpReverseProxy.ui.proxyTo=http://ui:9000/base/",
            "webServiceTrustXForwardedFor=true",
            "httpProxyTimeout=1000",
            "httpProxyIdleTimeout=2000",
            "httpInputMaxReplayBufferSize=17",
            "httpMaxResponseHeaderSize=16384",
            "maxConcurrentHttpRequests=0",
            "httpRequestsLimitEnabled=true",
            "httpRequestsMaxPerSecond=2.5",
            "proxyHttpResponseHeadersJson={\"X-Frame-Options\":\"DENY\",\"X-N\":1}",
            "authenticateMetricsEndpoint=false",
        ]);
        let url = |text: &str| -> WebUrl { text.parse().expect(text) };
        let expected = ProxySettings {
            brokers: vec![url("http://b1:8080"), url("http://b2:8080/base")],
            brokers_tls: vec![url("https://b1:8443")],
            functions: Some(url("http://f:6750")),
            functions_tls: Some(url("https://f:6751")),
            routes: vec![ProxyRoute {
                name: "ui".to_owned(),
                path: "/ui".to_owned(),
                target: url("http://ui:9000/base"),
            }],
            trust_forwarded: true,
            timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(2),
            replay_max: 17,
            response_head_max: 16_384,
            max_requests: None,
            requests_per_second: Some(2.5),
            response_headers: vec![
                ("X-Frame-Options".to_owned(), "DENY".to_owned()),
                ("X-N".to_owned(), "1".to_owned()),
            ],
            authenticate_metrics: false,
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn everything_wrong_is_listed_at_once() {
        let wrong = [
            "brokerWebServiceURL=https://b1:8443",
            "brokerWebServiceURLTLS=http://b1:8080",
            "functionWorkerWebServiceURL=http://f1:1,http://f2:1",
            "httpProxyTimeout=0",
            "httpRequestsMaxPerSecond=-1",
            "proxyHttpResponseHeadersJson={\"Content-Length\":\"1\"}",
            "httpReverseProxy.a.path=/admin/x",
            "httpReverseProxy.a.proxyTo=http://a",
            "httpReverseProxy.b.path=/b",
            "httpReverseProxy.c=/b",
            "httpReverseProxy.d.path=/",
            "httpReverseProxy.d.proxyTo=http://a",
            "httpReverseProxy.e.path=/e",
            "httpReverseProxy.e.proxyTo=ftp://a",
            "httpReverseProxy.f.path=/same",
            "httpReverseProxy.f.proxyTo=http://a",
            "httpReverseProxy.g.path=/same/below",
            "httpReverseProxy.g.proxyTo=http://a",
        ];
        let errors = load(&wrong).expect_err("all wrong").to_string();
        for key in [
            "brokerWebServiceURL",
            "brokerWebServiceURLTLS",
            "functionWorkerWebServiceURL",
            "httpProxyTimeout",
            "httpRequestsMaxPerSecond",
            "proxyHttpResponseHeadersJson",
            "httpReverseProxy.a.path: /admin/x overlaps /admin",
            "httpReverseProxy.b.path: route b needs",
            "httpReverseProxy.c: no setting of a route",
            "httpReverseProxy.d.path",
            "httpReverseProxy.e.proxyTo",
            "httpReverseProxy.g.path: /same/below overlaps /same",
        ] {
            assert!(errors.contains(&format!(": {key}")), "{key}: {errors}");
        }
        assert!(errors.contains("12 problems"), "{errors}");
    }

    #[test]
    fn headers_that_could_split_an_answer_are_refused() {
        for json in [
            "{\"X-A\":\"b\\r\\nX-C: d\"}",
            "{\"X A\":\"b\"}",
            "{\"\":\"b\"}",
            "{\"X-A\":[1]}",
            "[1]",
            "nothing",
        ] {
            assert_eq!(response_headers(json), None, "{json}");
        }
    }
}
