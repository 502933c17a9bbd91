//! All methods of authentication of a server role together.

use std::fmt;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use super::basic::BasicProvider;
use super::certificate::CertificateProvider;
use super::metrics::AuthenticationMetrics;
use super::token::TokenProvider;
use super::{AuthenticationError, Challenge, Presented, Principal, Provider, Step, UnixTime};
use crate::config::{
    IncomingAuthenticationSettings, ProviderSettings, TokenKeySettings, TokenProviderSettings,
};
use crate::telemetry::{MetricError, MetricRegistry};

/// Authenticates those who connect; clones share all.
#[derive(Debug, Clone)]
pub struct AuthenticationService {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// In the order in which they are tried.
    providers: Vec<Box<dyn Provider>>,
    anonymous_role: Option<Arc<str>>,
    metrics: Option<AuthenticationMetrics>,
}

/// What keeps authentication from being set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A setting holds, or names, something of no use. Quotes nothing of it.
    #[error("{setting}: {what}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A metric name is taken.
    #[error(transparent)]
    Metric(#[from] MetricError),
}

/// All that keeps authentication from being set up; never empty. `Display` prints them in one line.
#[derive(Debug)]
pub struct SetupErrors(pub Vec<SetupError>);

impl fmt::Display for SetupErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().take(SHOWN_MAX).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        match self.0.len().checked_sub(SHOWN_MAX) {
            Some(more) if more > 0 => write!(f, "; and {more} more"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for SetupErrors {}

impl AuthenticationService {
    /// Sets up what the settings ask for, and registers the metrics.
    ///
    /// # Errors
    /// With everything that is wrong.
    pub fn new(
        settings: &IncomingAuthenticationSettings,
        registry: &MetricRegistry,
    ) -> Result<Self, SetupErrors> {
        let metrics = AuthenticationMetrics::register(registry)
            .map_err(|error| SetupErrors(vec![error.into()]))?;
        let mut providers: Vec<Box<dyn Provider>> = Vec::new();
        let mut errors = Vec::new();
        for provider in &settings.providers {
            match provider {
                ProviderSettings::Token(token) => {
                    match TokenProvider::new(token, Some(metrics.token.clone())) {
                        Ok(provider) => providers.push(Box::new(provider)),
                        Err(error) => errors.push(SetupError::Setting {
                            setting: token_key_setting(token),
                            what: error.to_string(),
                        }),
                    }
                }
                ProviderSettings::Tls => providers.push(Box::new(CertificateProvider)),
                ProviderSettings::Basic(content) => match BasicProvider::new(content.reveal()) {
                    Ok(provider) => providers.push(Box::new(provider)),
                    Err(problems) => {
                        let problem = |what| SetupError::Setting {
                            setting: "basicAuthConf",
                            what,
                        };
                        errors.extend(problems.into_iter().map(problem));
                    }
                },
            }
        }
        if !errors.is_empty() {
            return Err(SetupErrors(errors));
        }
        let anonymous_role = settings.anonymous_role.as_deref().map(Arc::from);
        let mut service = Self::of_providers(providers, anonymous_role);
        if let Some(inner) = Arc::get_mut(&mut service.inner) {
            inner.metrics = Some(metrics);
        }
        Ok(service)
    }

    pub(crate) fn of_providers(
        providers: Vec<Box<dyn Provider>>,
        anonymous_role: Option<Arc<str>>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                providers,
                anonymous_role,
                metrics: None,
            }),
        }
    }

    /// Whether checking this credential may take milliseconds and more, so that a task that others wait for should not do it
    /// itself.
    #[must_use]
    pub fn is_costly(&self, method: &str, data: &[u8]) -> bool {
        self.of_method(method)
            .any(|provider| provider.is_costly(data))
    }

    /// The same of the credential of an HTTP request.
    #[must_use]
    pub fn is_costly_http(&self, headers: &HeaderMap, presented: &Presented<'_>) -> bool {
        let authorization = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        self.inner.providers.iter().any(|provider| {
            provider
                .of_http(authorization, presented)
                .is_some_and(|data| provider.is_costly(&data))
        })
    }

    /// Begins with the first credential of a peer. Of several providers of one method the first that is content decides. The
    /// anonymous role is for methods that no provider has, never for a credential that is not good.
    ///
    /// # Errors
    /// See [`AuthenticationError`]; that of the provider tried last.
    pub fn begin(
        &self,
        method: &str,
        data: &[u8],
        presented: &Presented<'_>,
        now: UnixTime,
    ) -> Result<Step, AuthenticationError> {
        let mut last = None;
        for provider in self.of_method(method) {
            let step = provider.begin(data, presented, now);
            self.count(provider.name(), provider.method(), &step);
            match step {
                Ok(step) => return Ok(step),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(error),
            None => self.anonymous(method).map(Step::Done),
        }
    }

    /// Takes the peer's answer to a challenge.
    ///
    /// # Errors
    /// See [`AuthenticationError`].
    pub fn respond(
        &self,
        challenge: Challenge,
        data: &[u8],
        now: UnixTime,
    ) -> Result<Step, AuthenticationError> {
        let method = challenge.method;
        let step = challenge.exchange.respond(data, now);
        let name = self.of_method(method).next().map_or("", Provider::name);
        self.count(name, method, &step);
        step
    }

    /// Takes a credential that must say everything at once.
    ///
    /// # Errors
    /// See [`AuthenticationError`].
    pub fn authenticate(
        &self,
        method: &str,
        data: &[u8],
        presented: &Presented<'_>,
        now: UnixTime,
    ) -> Result<Principal, AuthenticationError> {
        match self.begin(method, data, presented, now)? {
            Step::Done(principal) => Ok(principal),
            Step::Challenge(_) => Err(AuthenticationError::Exchange),
        }
    }

    /// Authenticates an HTTP request: by the method that `X-Pulsar-Auth-Method-Name` names, else by those that it has a
    /// credential for. A request without any has the anonymous role, if there is one. May take up to a second where passwords
    /// are hashed; a task that others wait for should do it as blocking work.
    ///
    /// # Errors
    /// See [`AuthenticationError`].
    pub fn authenticate_http(
        &self,
        headers: &HeaderMap,
        presented: &Presented<'_>,
        now: UnixTime,
    ) -> Result<Principal, AuthenticationError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let authorization = text(AUTHORIZATION.as_str());
        let method = text(METHOD_HEADER);
        let mut last = None;
        for provider in &self.inner.providers {
            if method.is_some_and(|method| method != provider.method()) {
                continue;
            }
            let Some(data) = provider.of_http(authorization, presented) else {
                continue;
            };
            match self.authenticate(provider.method(), &data, presented, now) {
                Ok(principal) => return Ok(principal),
                Err(error) => last = Some(error),
            }
        }
        match (last, method) {
            (Some(error), _) => Err(error),
            (None, Some(method)) if self.of_method(method).next().is_none() => {
                Err(self.refuse_unknown(method))
            }
            (None, Some(_)) => Err(AuthenticationError::NoCredential),
            // What is in the header is for nobody here: it must not pass for nothing.
            (None, None) if authorization.is_some() => Err(AuthenticationError::NoCredential),
            (None, None) => self
                .anonymous(ANONYMOUS_METHOD)
                .map_err(|_| AuthenticationError::NoCredential),
        }
    }

    fn of_method(&self, method: &str) -> impl Iterator<Item = &dyn Provider> {
        self.inner
            .providers
            .iter()
            .map(|provider| &**provider)
            .filter(move |provider| provider.method() == method)
    }

    fn anonymous(&self, method: &str) -> Result<Principal, AuthenticationError> {
        let role = self.inner.anonymous_role.clone();
        let role = role.ok_or_else(|| self.refuse_unknown(method))?;
        Ok(Principal {
            role,
            method: ANONYMOUS_METHOD.into(),
            expires_at: None,
        })
    }

    fn refuse_unknown(&self, method: &str) -> AuthenticationError {
        let error = AuthenticationError::NoProvider(method.chars().take(METHOD_SHOWN).collect());
        if let Some(metrics) = &self.inner.metrics {
            metrics.failed("", "", error.reason());
        }
        error
    }

    /// A challenge counts for nothing yet.
    fn count(&self, name: &str, method: &str, step: &Result<Step, AuthenticationError>) {
        let Some(metrics) = &self.inner.metrics else {
            return;
        };
        match step {
            Ok(Step::Done(_)) => metrics.succeeded(name, method),
            Ok(Step::Challenge(_)) => {}
            Err(error) => metrics.failed(name, method, error.reason()),
        }
    }
}

fn token_key_setting(token: &TokenProviderSettings) -> &'static str {
    match token.key {
        TokenKeySettings::Secret(_) => "tokenSecretKey",
        TokenKeySettings::Public(..) => "tokenPublicKey",
    }
}

/// The method name of those who are anonymous.
pub(crate) const ANONYMOUS_METHOD: &str = "none";
/// The header by which HTTP clients name their method.
const METHOD_HEADER: &str = "x-pulsar-auth-method-name";
/// Errors that are printed.
const SHOWN_MAX: usize = 20;
/// Characters of a method's name that go into an error.
const METHOD_SHOWN: usize = 64;
