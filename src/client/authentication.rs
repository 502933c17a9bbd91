//! Who a client says it is: CONNECT's `auth_method_name` and `auth_data`, and the answers to AUTH_CHALLENGE.
//!
//! The credential is read anew for every connection and every challenge, so that one that expires can be replaced outside.

use std::{fmt, pin::Pin, sync::Arc};

use bytes::Bytes;

use crate::{
    config::{CredentialError, CredentialSource, Secret},
    protocol::proto::pulsar::{
        AuthData, CommandAuthChallenge, CommandAuthResponse, CommandConnect,
    },
};

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Speaks for somebody else, as a gateway does for its clients: what it says may differ from connection to connection, and may
/// have to be waited for. The time that it takes counts as that of the handshake.
pub trait Introducer: Send + Sync {
    /// Completes the CONNECT of a new connection.
    fn introduce<'a>(
        &'a self,
        connect: &'a mut CommandConnect,
    ) -> BoxFuture<'a, Result<(), CredentialError>>;

    /// The answer to an AUTH_CHALLENGE; `None`: there is none to give.
    fn answer(
        &self,
        challenge: CommandAuthChallenge,
    ) -> BoxFuture<'static, Result<Option<AuthData>, CredentialError>>;
}

/// Gives a credential when it is wanted, on a connection's task: it must not block.
pub type CredentialSupplier = Arc<dyn Fn() -> Result<Bytes, CredentialError> + Send + Sync>;

/// The authentication method of a client and where its credential comes from.
#[derive(Clone, Default)]
pub struct Authentication {
    /// `None`: CONNECT says nothing of authentication, and challenges are not answered.
    method: Option<Arc<str>>,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Settings(CredentialSource),
    Supplier(CredentialSupplier),
    Introducer(Arc<dyn Introducer>),
}

/// The answer to an AUTH_CHALLENGE while it is being made.
pub(crate) type Answering =
    BoxFuture<'static, Result<Option<CommandAuthResponse>, CredentialError>>;

impl Default for Source {
    fn default() -> Self {
        Self::Settings(CredentialSource::Empty)
    }
}

impl Authentication {
    /// No authentication.
    pub fn none() -> Self {
        Self::default()
    }

    /// Method `token`: a JWT from anywhere.
    pub fn token(source: CredentialSource) -> Self {
        Self::of_method("token", source)
    }

    /// Method `token` with a token that the application supplies.
    pub fn token_from(supplier: CredentialSupplier) -> Self {
        Self::supplied("token", supplier)
    }

    /// Method `basic`: a user and a password, sent as they are, so only over TLS.
    pub fn basic(user_id: &str, password: &Secret) -> Self {
        let pair = Secret::new(format!("{user_id}:{}", password.reveal()));
        Self::of_method("basic", CredentialSource::Text(pair))
    }

    /// Method `tls`: the client certificate of the TLS options says who we are.
    pub fn tls() -> Self {
        Self::of_method("tls", CredentialSource::Empty)
    }

    /// Any method of the broker that wants one piece of data.
    pub fn of_method(method: &str, source: CredentialSource) -> Self {
        Self {
            method: Some(method.into()),
            source: Source::Settings(source),
        }
    }

    /// Any method of the broker, with data that the application supplies.
    pub fn supplied(method: &str, supplier: CredentialSupplier) -> Self {
        Self {
            method: Some(method.into()),
            source: Source::Supplier(supplier),
        }
    }

    /// Whatever this introducer says.
    pub fn introduced_by(introducer: Arc<dyn Introducer>) -> Self {
        Self {
            method: None,
            source: Source::Introducer(introducer),
        }
    }

    /// The method's name on the wire, if there is a method.
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// The method, and the credential as it is now; `None` without a method of its own.
    ///
    /// # Errors
    /// When the credential cannot be read.
    pub fn auth_data(&self) -> Result<Option<AuthData>, CredentialError> {
        let Some(method) = &self.method else {
            return Ok(None);
        };
        let credential = match &self.source {
            Source::Settings(source) => source.read().map(Bytes::from)?,
            Source::Supplier(supplier) => supplier()?,
            Source::Introducer(_) => return Ok(None),
        };
        Ok(Some(AuthData {
            auth_method_name: Some(method.to_string()),
            auth_data: Some(credential),
        }))
    }

    /// Puts method and credential into CONNECT; without a method it stays as it is.
    pub(crate) async fn introduce(
        &self,
        connect: &mut CommandConnect,
    ) -> Result<(), CredentialError> {
        if let Source::Introducer(introducer) = &self.source {
            return introducer.introduce(connect).await;
        }
        if let Some(data) = self.auth_data()? {
            connect.auth_method_name = data.auth_method_name;
            connect.auth_data = data.auth_data;
        }
        Ok(())
    }

    /// Whether there may be an answer to an AUTH_CHALLENGE.
    pub(crate) fn answers_challenges(&self) -> bool {
        self.method.is_some() || matches!(self.source, Source::Introducer(_))
    }

    /// The answer to an AUTH_CHALLENGE, `None` without a method.
    ///
    /// Of a credential of our own, what the challenge says makes no difference: the broker's refresh (its data is then
    /// `PulsarAuthRefresh`, PIP-30) asks for the credential again, and the methods here have nothing else to say. The method that
    /// it names is not looked at: behind a proxy it is the proxy's.
    pub(crate) fn answer(
        &self,
        challenge: CommandAuthChallenge,
        client_version: &str,
        protocol_version: Option<i32>,
    ) -> Answering {
        let answer: BoxFuture<'static, _> = match &self.source {
            Source::Introducer(introducer) => introducer.answer(challenge),
            _ => Box::pin(std::future::ready(self.auth_data())),
        };
        let client_version = client_version.to_owned();
        Box::pin(async move {
            Ok(answer.await?.map(|response| CommandAuthResponse {
                client_version: Some(client_version),
                response: Some(response),
                protocol_version,
            }))
        })
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authentication")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}
