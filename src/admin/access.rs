//! Who may ask, and how much at a time.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::HeaderMap;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::rate::RateLimit;
use crate::http::{Answer, AnswerFuture, Body, BodyError, Handler, Peer, Request, Response};
use crate::telemetry::{MetricError, MetricRegistry};

/// Finds out who asks, from the headers, the trusted certificate of the connection in DER, and the address. `Ok(None)` is
/// somebody without a name.
pub type HttpAuthenticator =
    Arc<dyn Fn(&HeaderMap, Option<&[u8]>, SocketAddr) -> Authenticating + Send + Sync>;
/// What an [`HttpAuthenticator`] does, and its outcome.
pub type Authenticating = Pin<
    Box<dyn Future<Output = Result<Option<Arc<str>>, HttpAuthenticationError>> + Send + 'static>,
>;

/// A credential is missing or not accepted. The text is for the client, and says nothing of the credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HttpAuthenticationError(pub String);

/// What a request has to prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// A credential that is accepted, where authentication is on.
    Authentication,
    /// That it is of a super user, where authorization is on.
    SuperUser,
}

/// Who asks.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its connection.
    pub peer: Peer,
    /// Its role, where it was authenticated.
    pub role: Option<Arc<str>>,
}

/// What an [`Access`] goes by.
#[derive(Default)]
pub struct AccessOptions {
    /// `None`: authentication is off.
    pub authenticator: Option<HttpAuthenticator>,
    /// `superUserRoles`, where authorization is on.
    pub super_users: Option<BTreeSet<String>>,
    /// Requests at a time.
    pub max_requests: Option<usize>,
    /// Requests a second.
    pub requests_per_second: Option<f64>,
}

impl fmt::Debug for AccessOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessOptions")
            .field("authenticates", &self.authenticator.is_some())
            .field("authorizes", &self.super_users.is_some())
            .field("max_requests", &self.max_requests)
            .field("requests_per_second", &self.requests_per_second)
            .finish()
    }
}

/// The way in for all requests but those about health.
pub struct Access {
    authenticator: Option<HttpAuthenticator>,
    super_users: Option<BTreeSet<String>>,
    places: Option<Arc<Semaphore>>,
    rate: Option<Mutex<RateLimit>>,
    epoch: Instant,
    rejected: IntCounter,
    answers: IntCounterVec,
    requests: IntCounter,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("authenticates", &self.authenticator.is_some())
            .field("authorizes", &self.super_users.is_some())
            .finish_non_exhaustive()
    }
}

impl Access {
    /// Access by these options; registers its metrics.
    ///
    /// # Errors
    /// When a metric is registered already.
    pub fn new(
        options: AccessOptions,
        registry: &MetricRegistry,
    ) -> Result<Arc<Self>, MetricError> {
        let places = options
            .max_requests
            .map(|max| Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))));
        Ok(Arc::new(Self {
            authenticator: options.authenticator,
            super_users: options.super_users,
            places,
            rate: options
                .requests_per_second
                .map(|rate| Mutex::new(RateLimit::new(rate))),
            epoch: Instant::now(),
            // The name is the broker's and the Apache proxy's, without the usual ending.
            rejected: registry.counter(
                "pulsar_broker_http_rejected_requests",
                "HTTP requests refused because there were too many a second.",
            )?,
            answers: registry.counter_vec(
                "pulsegate_gateway_http_requests_total",
                "HTTP requests answered, health endpoints not counted, by class of the answer's status.",
                &["status"],
            )?,
            // Dashboards of the Apache proxy ask for it.
            requests: registry.counter(
                "jetty_requests_total",
                "HTTP requests answered, health endpoints not counted.",
            )?,
        }))
    }

    /// A handler that answers only what is let in, by `handler`.
    pub fn guard(
        self: &Arc<Self>,
        need: Need,
        handler: impl Fn(Request, Caller) -> AnswerFuture + Send + Sync + 'static,
    ) -> Handler {
        let access = Arc::clone(self);
        let handler = Arc::new(handler);
        Arc::new(move |request, peer| {
            let (access, handler) = (Arc::clone(&access), Arc::clone(&handler));
            Box::pin(async move {
                let admitted = match access.enter() {
                    Ok(place) => {
                        let role = access.ask(need, request.headers(), &peer);
                        let role = access.judge(need, role.await);
                        role.map(|role| (Caller { peer, role }, place))
                    }
                    Err(refused) => Err(refused),
                };
                let answer = match admitted {
                    Ok((caller, place)) => {
                        let answer = handler(request, caller).await;
                        answer.map(|body| {
                            Body::new(PlacedBody {
                                body,
                                _place: place,
                            })
                        })
                    }
                    Err(refused) => refused.into(),
                };
                access.count(&answer);
                answer
            })
        })
    }

    /// A place among the requests at a time.
    fn enter(&self) -> Result<Option<OwnedSemaphorePermit>, Response> {
        let refuse = |status, text: &str| Err(Response::text(status, format!("{text}\n")));
        if let Some(rate) = &self.rate
            && !rate.lock().admit(self.epoch.elapsed())
        {
            self.rejected.inc();
            return refuse(429, "Too Many Requests");
        }
        match &self.places {
            None => Ok(None),
            Some(places) => match Arc::clone(places).try_acquire_owned() {
                Ok(place) => Ok(Some(place)),
                Err(_) => refuse(503, "too many requests at a time"),
            },
        }
    }

    /// Who asks, where that matters.
    fn ask(&self, need: Need, headers: &HeaderMap, peer: &Peer) -> Authenticating {
        match (&self.authenticator, need) {
            (_, Need::Nothing) | (None, _) => Box::pin(std::future::ready(Ok(None))),
            (Some(authenticator), _) => {
                authenticator(headers, peer.certificate.as_deref(), peer.address)
            }
        }
    }

    /// The role, if it is enough.
    fn judge(
        &self,
        need: Need,
        role: Result<Option<Arc<str>>, HttpAuthenticationError>,
    ) -> Result<Option<Arc<str>>, Response> {
        let role = role.map_err(|error| Response::text(401, format!("{error}\n")))?;
        if need == Need::SuperUser
            && let Some(super_users) = &self.super_users
            && !role
                .as_deref()
                .is_some_and(|role| super_users.contains(role))
        {
            // 401 and this text: as the Apache proxy.
            let reason = r#"{"reason":"Client is not authorized to perform operation"}"#;
            return Err(Response::json(401, reason));
        }
        Ok(role)
    }

    fn count(&self, answer: &Answer) {
        let class = match answer.status().as_u16() {
            ..200 => "1xx",
            200..300 => "2xx",
            300..400 => "3xx",
            400..500 => "4xx",
            _ => "5xx",
        };
        self.requests.inc();
        self.answers.with_label_values(&[class]).inc();
    }
}

/// A body that keeps the place of its request until it is gone.
struct PlacedBody {
    body: Body,
    _place: Option<OwnedSemaphorePermit>,
}

impl HttpBody for PlacedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
