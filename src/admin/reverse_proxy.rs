//! The reverse proxy in front of the brokers' HTTP service.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::{
    CONTENT_LENGTH, CONTENT_LOCATION, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
};
use hyper::{Method, StatusCode, Uri};
use tokio::net::lookup_host;
use tokio::time::{Instant, Sleep, sleep_until, timeout, timeout_at};
use tracing::{debug, warn};

use super::access::Caller;
use super::forwarding::{self, Client};
use super::replay::{Gate, ReplayMemory, Upload, UploadFailure};
use super::targets::WebBrokers;
use crate::config::{ProxyRoute, ProxySettings};
use crate::http::{
    Answer, Body, BodyError, HttpClient, HttpClientError, HttpClientOptions, Request, Response,
    TlsProvider,
};
use crate::naming::{WebOrigin, WebUrl};
use crate::telemetry::LogThrottle;

/// What a [`ReverseProxy`] goes by.
pub struct ReverseProxyOptions {
    /// The services.
    pub brokers: WebBrokers,
    /// Bound on connecting to one.
    pub connect_timeout: Duration,
    /// TLS to services whose URL asks for it.
    pub tls: Option<TlsProvider>,
    /// What brokers are told as `X-Forwarded-Server`; `None`: the address that the client connected to.
    pub server_name: Option<String>,
}

/// Passes requests on to brokers and other services and their answers back.
pub struct ReverseProxy {
    client: HttpClient,
    brokers: WebBrokers,
    settings: ProxySettings,
    server_name: Option<String>,
    memory: Arc<ReplayMemory>,
    epoch: Instant,
    failures: LogThrottle,
}

impl fmt::Debug for ReverseProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReverseProxy")
            .field("brokers", &self.brokers)
            .finish_non_exhaustive()
    }
}

/// Why a client gets an answer of ours.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("the path has segments that lead elsewhere")]
    Path,
    #[error("the role of the client cannot be passed on")]
    Role,
    #[error("this gateway has no HTTP service of brokers: brokerWebServiceURL is not set")]
    NoBroker,
    #[error("no answer of {0}: {1}")]
    Client(WebOrigin, #[source] HttpClientError),
    #[error("no answer of {0}: its header fields are larger than httpMaxResponseHeaderSize")]
    HeadTooLarge(WebOrigin),
    #[error("no answer within httpProxyTimeout")]
    Late,
    #[error(
        "{from} redirects to {to}, which is not known to be a broker: name it in brokerWebServiceURL or \
         brokerProxyAllowedHostNames"
    )]
    Stranger { from: WebOrigin, to: WebOrigin },
    #[error("{0} redirects to something that is no URL")]
    BadRedirect(WebOrigin),
    #[error("{0}, the last of {REDIRECTS_MAX} redirects, redirects again")]
    Circle(WebOrigin),
    #[error(
        "{0} redirects, and the request body, of which more was sent than httpInputMaxReplayBufferSize, cannot be sent \
         again"
    )]
    Gone(WebOrigin),
    #[error(transparent)]
    Upload(#[from] UploadFailure),
}

impl Problem {
    fn status(&self) -> u16 {
        match self {
            // As brokers, which find nothing there.
            Self::Path => 404,
            Self::Role => 403,
            Self::NoBroker => 503,
            Self::Late => 504,
            Self::Upload(UploadFailure::Silent) => 408,
            Self::Upload(UploadFailure::Cut) => 400,
            Self::Client(..)
            | Self::HeadTooLarge(_)
            | Self::Stranger { .. }
            | Self::BadRedirect(_)
            | Self::Circle(_)
            | Self::Gone(_) => 502,
        }
    }
}

/// What is sent, to whatever service.
struct Outgoing {
    method: Method,
    headers: HeaderMap,
    upload: Upload,
    /// Whether the server is asked before the body is sent, so that a redirect can come first.
    ask_first: bool,
}

impl ReverseProxy {
    /// A proxy by these settings. Nothing is connected yet.
    #[must_use]
    pub fn new(settings: ProxySettings, options: ReverseProxyOptions) -> Arc<Self> {
        let client = HttpClient::new(HttpClientOptions {
            connect_timeout: options.connect_timeout,
            idle_timeout: settings.idle_timeout,
            connections_max: settings.max_requests.unwrap_or(CONNECTIONS_MAX),
            head_max: settings.response_head_max,
            tls: options.tls,
            ..HttpClientOptions::default()
        });
        Arc::new(Self {
            client,
            brokers: options.brokers,
            memory: ReplayMemory::new(REPLAY_MEMORY.max(settings.replay_max)),
            settings,
            server_name: options.server_name,
            epoch: Instant::now(),
            failures: LogThrottle::new(LOG_PERIOD),
        })
    }

    /// Answers by a broker, or by a function worker where the path is of functions and there is a service for them. Redirects
    /// are followed.
    pub(super) async fn to_brokers(self: Arc<Self>, request: Request, caller: Caller) -> Answer {
        let is_function = forwarding::is_function_path(request.uri().path());
        let targets = match self.brokers.functions() {
            Some(functions) if is_function => vec![functions.clone()],
            _ => self.brokers.in_turn(self.epoch.elapsed()),
        };
        let deadline = Instant::now() + self.settings.timeout;
        let exchange = self.follow(request, &caller, targets);
        let outcome = timeout_at(deadline, exchange).await;
        self.finish(outcome.unwrap_or(Err(Problem::Late)), deadline)
    }

    /// Answers by the service of a further route. Its redirects are the client's to follow.
    pub(super) async fn to_route(
        self: Arc<Self>,
        request: Request,
        caller: Caller,
        route: &ProxyRoute,
    ) -> Answer {
        let deadline = Instant::now() + self.settings.timeout;
        let exchange = async {
            let path = path_of(&request, route.path.matches('/').count())?;
            let rest = path.strip_prefix(route.path.as_str()).unwrap_or(path);
            let slash = if rest.starts_with('/') { "" } else { "/" };
            let path = format!("{}{slash}{rest}", route.target.path);
            let outgoing = self.outgoing(request, &caller)?;
            let target = WebUrl {
                origin: route.target.origin.clone(),
                path,
            };
            let mut answer = self.send(&outgoing, &target, &target.origin).await?;
            outgoing.upload.settle();
            rewrite_locations(answer.headers_mut(), |url| {
                let rest = url.path.strip_prefix(route.target.path.as_str())?;
                let ours = url.origin == route.target.origin;
                (ours && (rest.is_empty() || rest.starts_with('/')))
                    .then(|| format!("{}{rest}", route.path))
            });
            Ok(answer)
        };
        let outcome = timeout_at(deadline, exchange).await;
        self.finish(outcome.unwrap_or(Err(Problem::Late)), deadline)
    }

    fn finish(&self, outcome: Result<Answer, Problem>, deadline: Instant) -> Answer {
        let problem = match outcome {
            Ok(answer) => return answer.map(|body| Body::new(DatedBody::new(body, deadline))),
            Err(problem) => problem,
        };
        let status = problem.status();
        if status >= 500
            && let Some(more) = self.failures.pass(self.epoch.elapsed())
        {
            warn!(more, "an HTTP request was not served: {problem}");
        } else {
            debug!(status, "an HTTP request was not served: {problem}");
        }
        Response::text(status, format!("{problem}\n")).into()
    }

    fn outgoing(&self, request: Request, caller: &Caller) -> Result<Outgoing, Problem> {
        let (parts, body) = request.into_parts();
        let local = caller
            .peer
            .local
            .map(|local: SocketAddr| local.ip().to_string());
        let server = self.server_name.clone().or(local).unwrap_or_default();
        let client = Client {
            address: caller.peer.address.ip().to_canonical(),
            tls: caller.peer.tls,
            role: caller.role.as_deref(),
            trusted: self.settings.trust_forwarded,
        };
        let asked = parts.headers.contains_key(EXPECT);
        let headers = forwarding::request_headers(parts.headers, &client, &server)
            .map_err(|_| Problem::Role)?;
        let memory = Arc::clone(&self.memory);
        let upload = Upload::new(body, self.settings.replay_max, memory);
        let fits = upload
            .exact_size()
            .and_then(|size| usize::try_from(size).ok())
            .is_some_and(|size| size <= self.settings.replay_max);
        Ok(Outgoing {
            method: parts.method,
            headers,
            ask_first: !upload.is_empty() && (asked || !fits),
            upload,
        })
    }

    /// Sends to the first of the services that can be reached, and on to where it redirects.
    async fn follow(
        &self,
        request: Request,
        caller: &Caller,
        targets: Vec<WebUrl>,
    ) -> Result<Answer, Problem> {
        let path = path_of(&request, 1)?.to_owned();
        let outgoing = self.outgoing(request, caller)?;
        let (mut answer, mut at) = self.send_to_any(&outgoing, targets, &path).await?;
        let mut redirects = 0;
        while let Some(location) = redirect(&answer) {
            let next = resolve(&at, location).ok_or_else(|| Problem::BadRedirect(at.clone()))?;
            let server = if self.brokers.is_known(&next.origin) {
                Some(next.origin.clone())
            } else {
                self.known_by_address(&next.origin).await
            };
            let Some(server) = server else {
                return Err(Problem::Stranger {
                    from: at,
                    to: next.origin,
                });
            };
            if redirects == REDIRECTS_MAX {
                return Err(Problem::Circle(at));
            }
            redirects += 1;
            // Read to its end, which is near, so that the connection can serve again.
            let _ = timeout(DRAIN_TIME, answer.into_body().read(DRAIN_MAX)).await;
            answer =
                self.send(&outgoing, &next, &server)
                    .await
                    .map_err(|problem| match problem {
                        Problem::Gone(_) => Problem::Gone(at),
                        other => other,
                    })?;
            at = next.origin;
        }
        outgoing.upload.settle();
        rewrite_locations(answer.headers_mut(), |url| {
            self.brokers.is_known(&url.origin).then(|| url.path.clone())
        });
        Ok(answer)
    }

    /// The answer of the first service that can be connected to, and which one it is.
    async fn send_to_any(
        &self,
        outgoing: &Outgoing,
        targets: Vec<WebUrl>,
        path: &str,
    ) -> Result<(Answer, WebOrigin), Problem> {
        let mut last = Problem::NoBroker;
        for base in targets {
            let target = WebUrl {
                path: format!("{}{path}", base.path),
                origin: base.origin,
            };
            match self.send(outgoing, &target, &target.origin).await {
                Ok(answer) => return Ok((answer, target.origin)),
                Err(Problem::Client(origin, error)) if error.is_unsent() => {
                    debug!(%origin, "an HTTP service of a broker cannot be asked: {error}");
                    self.brokers.failed(&origin, self.epoch.elapsed());
                    last = Problem::Client(origin, error);
                }
                Err(problem) => return Err(problem),
            }
        }
        Err(last)
    }

    /// The server of an unknown name, when it has the address of a configured service and so is one that gets requests anyway:
    /// the address that was compared, or the name where the certificate is compared with it.
    async fn known_by_address(&self, origin: &WebOrigin) -> Option<WebOrigin> {
        let services = self.brokers.at_port_of(origin);
        if services.is_empty() {
            return None;
        }
        let theirs = addresses(origin).await;
        for service in services {
            let ours = addresses(&service).await;
            let Some(same) = theirs.iter().find(|address| ours.contains(address)) else {
                continue;
            };
            return Some(if origin.tls {
                origin.clone()
            } else {
                WebOrigin {
                    host: same.to_string(),
                    ..origin.clone()
                }
            });
        }
        None
    }

    /// Sends to one service, at `server`. A request that changes nothing is sent once more when its connection ends without an answer: a
    /// connection that was kept may have ended just then.
    async fn send(
        &self,
        outgoing: &Outgoing,
        target: &WebUrl,
        server: &WebOrigin,
    ) -> Result<Answer, Problem> {
        let safe = matches!(
            outgoing.method,
            Method::GET | Method::HEAD | Method::OPTIONS
        );
        let mut ask_first = outgoing.ask_first;
        let mut again = safe && outgoing.upload.is_empty();
        loop {
            let mut request = self.request(outgoing, target)?;
            let gate = ask_first.then(|| {
                let (gate, key) = Gate::new(EXPECT_TIME);
                request
                    .headers_mut()
                    .insert(EXPECT, HeaderValue::from_static("100-continue"));
                hyper::ext::on_informational(&mut request, move |answer| {
                    if answer.status() == StatusCode::CONTINUE {
                        key.open();
                    }
                });
                gate
            });
            let Some(body) = outgoing.upload.attempt(gate) else {
                return Err(Problem::Gone(target.origin.clone()));
            };
            let sent = self.client.send(server, request.map(|()| body));
            let error = match sent.await {
                Ok(answer) if ask_first && answer.status() == StatusCode::EXPECTATION_FAILED => {
                    ask_first = false;
                    continue;
                }
                Ok(mut answer) => {
                    clean(&mut answer, &outgoing.method);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if let Some(failure) = outgoing.upload.failure() {
                return Err(failure.into());
            }
            if error.is_head_too_large() {
                return Err(Problem::HeadTooLarge(target.origin.clone()));
            }
            if error.is_unsent() || !again {
                return Err(Problem::Client(target.origin.clone(), error));
            }
            again = false;
        }
    }

    fn request(&self, outgoing: &Outgoing, target: &WebUrl) -> Result<hyper::Request<()>, Problem> {
        let bad = || Problem::BadRedirect(target.origin.clone());
        let path = if target.path.is_empty() {
            "/"
        } else {
            &target.path
        };
        let uri: Uri = path.parse().map_err(|_| bad())?;
        let host = HeaderValue::from_str(&target.origin.authority()).map_err(|_| bad())?;
        let mut request = hyper::Request::new(());
        *request.method_mut() = outgoing.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = outgoing.headers.clone();
        request.headers_mut().insert(HOST, host);
        // A length of 0 is not told by a body that is not there, and some servers want it.
        let changes = matches!(outgoing.method, Method::POST | Method::PUT | Method::PATCH);
        if changes && outgoing.upload.is_empty() {
            request
                .headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        Ok(request)
    }
}

/// Path and query as they were sent, the scheme and host of an absolute form left out. The path stays below its first `floor`
/// segments.
fn path_of(request: &Request, floor: usize) -> Result<&str, Problem> {
    if !forwarding::is_plain_path(request.uri().path(), floor) {
        return Err(Problem::Path);
    }
    Ok(request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str()))
}

/// The addresses of a host; none where it cannot be resolved.
async fn addresses(origin: &WebOrigin) -> Vec<IpAddr> {
    let resolve = lookup_host((origin.host.as_str(), origin.port));
    match timeout(RESOLVE_TIME, resolve).await {
        Ok(Ok(found)) => found
            .map(|address| address.ip())
            .take(ADDRESSES_MAX)
            .collect(),
        _ => Vec::new(),
    }
}

/// Where an answer redirects to.
fn redirect(answer: &Answer) -> Option<HeaderValue> {
    matches!(answer.status().as_u16(), 301 | 302 | 307 | 308)
        .then(|| answer.headers().get(LOCATION).cloned())
        .flatten()
}

/// The target of a redirect that came from `at`: a URL, `//host/path` or `/path`.
fn resolve(at: &WebOrigin, location: HeaderValue) -> Option<WebUrl> {
    let location = location.to_str().ok()?.trim();
    let location = location.split('#').next().unwrap_or_default();
    let scheme = if at.tls { "https" } else { "http" };
    if location.starts_with("//") {
        return format!("{scheme}:{location}").parse().ok();
    }
    if location.starts_with('/') {
        return format!("{scheme}://{}{location}", at.authority())
            .parse()
            .ok();
    }
    location.parse().ok()
}

/// Takes out of an answer what is about the connection to the broker.
fn clean(answer: &mut Answer, method: &Method) {
    let without_body = *method == Method::HEAD || answer.status() == StatusCode::NOT_MODIFIED;
    forwarding::remove_hop_by_hop(answer.headers_mut());
    if !without_body && answer.body().size_hint().exact().is_none() {
        answer.headers_mut().remove(CONTENT_LENGTH);
    }
}

/// Puts other paths in place of URLs, where `path` has one.
fn rewrite_locations(headers: &mut HeaderMap, path: impl Fn(&WebUrl) -> Option<String>) {
    let names: [HeaderName; 2] = [LOCATION, CONTENT_LOCATION];
    for name in names {
        let rewritten = headers
            .get(&name)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.parse::<WebUrl>().ok())
            .and_then(|url| path(&url))
            .map(|path| {
                if path.is_empty() {
                    "/".to_owned()
                } else {
                    path
                }
            })
            .and_then(|path| HeaderValue::from_str(&path).ok());
        if let Some(value) = rewritten {
            headers.insert(name, value);
        }
    }
}

/// A body that has to be over by a time.
struct DatedBody {
    body: Body,
    deadline: Pin<Box<Sleep>>,
}

impl DatedBody {
    fn new(body: Body, deadline: Instant) -> Self {
        Self {
            body,
            deadline: Box::pin(sleep_until(deadline)),
        }
    }
}

impl HttpBody for DatedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Problem::Late.into())));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// As brokers' lookups; a broker that redirects more often is in a circle.
const REDIRECTS_MAX: usize = 10;
/// Connections to brokers where requests have no bound.
const CONNECTIONS_MAX: usize = 1024;
/// Memory for bodies that may have to be sent again, of all requests together; one may always keep what it is allowed to.
const REPLAY_MEMORY: usize = 64 * 1024 * 1024;
/// How long a server has to say that it wants a body.
const EXPECT_TIME: Duration = Duration::from_secs(1);
/// The body of a redirect is read within this time and size.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const DRAIN_MAX: usize = 16 * 1024;
/// For finding out whether a host has the address of a broker.
const RESOLVE_TIME: Duration = Duration::from_secs(2);
/// More brokers than stand behind one name.
const ADDRESSES_MAX: usize = 1024;
const LOG_PERIOD: Duration = Duration::from_secs(10);
