//! Paths to handlers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use hyper::header::{
    ALLOW, CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING,
};
use hyper::{Method, StatusCode, Version};

use super::body::Body;

/// A request with its body still to be read.
pub type Request = hyper::Request<Body>;
/// An answer, its body whole or streamed.
pub type Answer = hyper::Response<Body>;

/// What is known of the connection that a request came on.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Where the other side is.
    pub address: SocketAddr,
    /// The address that it connected to, where it is known.
    pub local: Option<SocketAddr>,
    /// DER of its certificate, where it presented one that is trusted.
    pub certificate: Option<Arc<[u8]>>,
    /// Whether the connection has TLS.
    pub tls: bool,
}

/// An answer whose body is a text; a HEAD gets the same without the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// HTTP status code, 200 to 599.
    pub status: u16,
    /// Value of the `Content-Type` header.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Response {
    /// A plain text answer.
    #[must_use]
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }

    /// A JSON answer.
    #[must_use]
    pub fn json(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "application/json",
            body: body.into(),
        }
    }
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        let mut answer = Self::new(Body::full(response.body));
        *answer.status_mut() =
            StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        answer.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static(response.content_type),
        );
        answer
    }
}

/// 405, naming the methods that are served.
#[must_use]
pub fn method_not_allowed(allowed: &'static str) -> Answer {
    let methods = allowed.replace(", ", " and ");
    let mut answer = Answer::from(Response::text(
        405,
        format!("only {methods} are served here\n"),
    ));
    answer
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// An answer in the making.
pub type AnswerFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;
/// Answers requests. Handlers run on the runtime: they must not block.
pub type Handler = Arc<dyn Fn(Request, Peer) -> AnswerFuture + Send + Sync>;

/// A map of paths to handlers, and what holds for all requests.
///
/// Paths are compared as they were sent: an escaped path matches none.
#[derive(Default)]
pub struct Router {
    exact: BTreeMap<String, Handler>,
    below: BTreeMap<String, Handler>,
    headers: HeaderMap,
}

impl Router {
    /// A router that answers 404 to everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path that answers GET and HEAD by `respond`; one added before is replaced.
    #[must_use]
    pub fn route(self, path: &str, respond: impl Fn() -> Response + Send + Sync + 'static) -> Self {
        self.handle(path, text_handler(respond))
    }

    /// Adds a path for every method.
    #[must_use]
    pub fn handle(mut self, path: &str, handler: Handler) -> Self {
        self.exact.insert(path.to_owned(), handler);
        self
    }

    /// Adds `path` and all paths below it, for every method; exact paths and longer ones win.
    #[must_use]
    pub fn handle_below(mut self, path: &str, handler: Handler) -> Self {
        self.below.insert(path.to_owned(), handler);
        self
    }

    /// Headers of every answer, in place of what the handler says of the same name.
    #[must_use]
    pub fn headers(mut self, headers: HeaderMap) -> Self {
        self.headers = headers;
        self
    }

    /// The handler of `path`.
    pub(super) fn find(&self, path: &str) -> Option<&Handler> {
        if let Some(handler) = self.exact.get(path) {
            return Some(handler);
        }
        let mut prefix = path;
        loop {
            if let Some(handler) = self.below.get(prefix) {
                return Some(handler);
            }
            prefix = prefix.rsplit_once('/')?.0;
        }
    }

    /// Answers a request whose head has at most `head_max` bytes.
    pub(super) async fn answer(&self, request: Request, peer: Peer, head_max: usize) -> Answer {
        let close = closes(&request);
        let mut answer = match refusal(&request, head_max) {
            Some(refused) => refused,
            None => match self.find(request.uri().path()) {
                Some(handler) => handler(request, peer).await,
                None => Response::text(404, "not found\n").into(),
            },
        };
        for (name, value) in &self.headers {
            answer.headers_mut().insert(name, value.clone());
        }
        if close {
            answer
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.exact.keys())
            .entries(self.below.keys())
            .finish()
    }
}

/// A handler of GET and HEAD.
#[must_use]
pub fn text_handler(respond: impl Fn() -> Response + Send + Sync + 'static) -> Handler {
    Arc::new(move |request, _| {
        let answer = if *request.method() == Method::GET || *request.method() == Method::HEAD {
            respond().into()
        } else {
            method_not_allowed("GET, HEAD")
        };
        Box::pin(std::future::ready(answer))
    })
}

/// Whether the connection ends with the answer. A chunked request may have had a `Content-Length` as well, which hyper takes out;
/// whoever passed both on to us may see another end of the request than we do, and what follows is not to be trusted (RFC 9112,
/// 6.1).
fn closes(request: &Request) -> bool {
    request.headers().contains_key(TRANSFER_ENCODING)
        || *request.method() == Method::CONNECT
        || *request.method() == Method::TRACE
}

/// The answer to a request that no handler gets.
fn refusal(request: &Request, head_max: usize) -> Option<Answer> {
    let headers = request.headers();
    let refuse = |status, text| Some(Response::text(status, text).into());
    if *request.method() == Method::CONNECT || *request.method() == Method::TRACE {
        return Some(method_not_allowed(
            "GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS",
        ));
    }
    let hosts = headers.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        return refuse(400, "exactly one Host header is needed\n");
    }
    let target = request.uri().to_string().len();
    if target > head_max {
        return refuse(414, "the URI is too long\n");
    }
    let fields: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD)
        .sum();
    if target + fields > head_max {
        return refuse(431, "the request head is too large\n");
    }
    None
}

/// `: ` and the line end.
const FIELD_OVERHEAD: usize = 4;
