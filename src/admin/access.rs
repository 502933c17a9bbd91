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

use super::forwarding::ORIGINAL_PRINCIPAL;
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

/// Why nobody knows who asks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpAuthenticationError {
    /// A credential is missing or not accepted. The text is for the client, and says nothing of the credential.
    #[error("{0}")]
    Refused(String),
    /// So many checks of credentials wait that this one has not had its turn.
    #[error("too many clients are being authenticated")]
    Busy,
}

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
    /// Its role, where it was authenticated; of a trusted proxy that asks for another, the role of that one.
    pub role: Option<Arc<str>>,
}

/// What an [`Access`] goes by.
#[derive(Default)]
pub struct AccessOptions {
    /// `None`: authentication is off.
    pub authenticator: Option<HttpAuthenticator>,
    /// `superUserRoles`, where authorization is on.
    pub super_users: Option<BTreeSet<String>>,
    /// `trustedProxyRoles`: roles whose `X-Original-Principal` says whom they ask for.
    pub trusted_proxy_roles: Vec<String>,
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
    trusted_proxy_roles: Vec<String>,
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
            trusted_proxy_roles: options.trusted_proxy_roles,
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
                let answer = match access.admit(need, request.headers(), peer).await {
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

    /// Lets a request in, or says why not. Whose password waits to be checked has no place yet: strangers' would take those of
    /// everybody else.
    async fn admit(
        &self,
        need: Need,
        headers: &HeaderMap,
        peer: Peer,
    ) -> Result<(Caller, Option<OwnedSemaphorePermit>), Response> {
        if let Some(rate) = &self.rate
            && !rate.lock().admit(self.epoch.elapsed())
        {
            self.rejected.inc();
            return Err(Response::text(429, "Too Many Requests\n".to_owned()));
        }
        let role = self.ask(need, headers, &peer).await;
        let role = self.judge(need, role, headers)?;
        Ok((Caller { peer, role }, self.place()?))
    }

    /// A place among the requests at a time.
    fn place(&self) -> Result<Option<OwnedSemaphorePermit>, Response> {
        let refuse = |status, text: &str| Err(Response::text(status, format!("{text}\n")));
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

    /// The role that the request is for, if that and the one who asks are enough.
    fn judge(
        &self,
        need: Need,
        role: Result<Option<Arc<str>>, HttpAuthenticationError>,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<str>>, Response> {
        let role = role.map_err(|error| {
            let status = match error {
                HttpAuthenticationError::Refused(_) => 401,
                HttpAuthenticationError::Busy => 503,
            };
            Response::text(status, format!("{error}\n"))
        })?;
        let original = match role.as_deref() {
            Some(role) => self.original(role, headers)?,
            None => None,
        };
        if need == Need::SuperUser
            && let Some(super_users) = &self.super_users
        {
            let is_super_user = |role: &Arc<str>| super_users.contains(&**role);
            if !role.as_ref().is_some_and(is_super_user)
                || !original.as_ref().is_none_or(is_super_user)
            {
                // 401 and this text: as the Apache proxy.
                let reason = r#"{"reason":"Client is not authorized to perform operation"}"#;
                return Err(Response::json(401, reason));
            }
        }
        Ok(original.or(role))
    }

    /// Whom a trusted proxy asks for, by the rules of CONNECT: one role, which is not a proxy's. Of anybody else the header says
    /// nothing.
    fn original(&self, role: &str, headers: &HeaderMap) -> Result<Option<Arc<str>>, Response> {
        let is_proxys = |role: &str| self.trusted_proxy_roles.iter().any(|proxy| proxy == role);
        let mut named = headers.get_all(ORIGINAL_PRINCIPAL).iter();
        let Some(first) = named.next().filter(|_| is_proxys(role)) else {
            return Ok(None);
        };
        first
            .to_str()
            .ok()
            .filter(|name| !name.trim().is_empty() && !is_proxys(name) && named.next().is_none())
            .map(|name| Some(name.into()))
            .ok_or_else(|| {
                Response::text(
                    403,
                    "X-Original-Principal must name one role, which must not be a proxy's\n",
                )
            })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> Peer {
        Peer {
            address: ([127, 0, 0, 1], port).into(),
            local: None,
            tls: false,
            certificate: None,
        }
    }

    #[tokio::test]
    async fn who_waits_to_be_authenticated_takes_no_place_of_others() {
        let authenticator: HttpAuthenticator = Arc::new(|_, _, address| {
            if address.port() == 1 {
                return Box::pin(std::future::pending());
            }
            Box::pin(std::future::ready(Ok(Some("role".into()))))
        });
        let options = AccessOptions {
            authenticator: Some(authenticator),
            max_requests: Some(1),
            ..AccessOptions::default()
        };
        let access = Access::new(options, &MetricRegistry::new("test")).unwrap();
        let headers = HeaderMap::new();
        let mut waits = std::pin::pin!(access.admit(Need::Authentication, &headers, peer(1)));
        let is_pending =
            std::future::poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending()));
        assert!(is_pending.await);
        let admitted = access.admit(Need::Authentication, &headers, peer(2)).await;
        assert_eq!(admitted.unwrap().0.role.as_deref(), Some("role"));
    }
}
