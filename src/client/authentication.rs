//! Who a client says it is: CONNECT's `auth_method_name` and `auth_data`, and the answers to AUTH_CHALLENGE.
//!
//! The credential is read anew for every connection and every challenge, so that one that expires can be replaced outside.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::{
    config::{CredentialError, CredentialSource, Secret},
    protocol::proto::pulsar::{AuthData, CommandAuthResponse, CommandConnect},
};

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
}

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

    /// The method's name on the wire, if there is a method.
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    fn credential(&self) -> Result<Bytes, CredentialError> {
        match &self.source {
            Source::Settings(source) => source.read().map(Bytes::from),
            Source::Supplier(supplier) => supplier(),
        }
    }

    /// Puts method and credential into CONNECT; without a method it stays as it is.
    pub(crate) fn introduce(&self, connect: &mut CommandConnect) -> Result<(), CredentialError> {
        if let Some(method) = &self.method {
            connect.auth_method_name = Some(method.to_string());
            connect.auth_data = Some(self.credential()?);
        }
        Ok(())
    }

    /// The answer to an AUTH_CHALLENGE, `None` without a method.
    ///
    /// What the challenge says makes no difference: the broker's refresh (its data is then `PulsarAuthRefresh`, PIP-30) asks for
    /// the credential again, and the methods here have nothing else to say. The method that it names is not looked at: behind a
    /// proxy it is the proxy's.
    pub(crate) fn answer(
        &self,
        client_version: &str,
        protocol_version: Option<i32>,
    ) -> Result<Option<CommandAuthResponse>, CredentialError> {
        let Some(method) = &self.method else {
            return Ok(None);
        };
        Ok(Some(CommandAuthResponse {
            client_version: Some(client_version.to_owned()),
            response: Some(AuthData {
                auth_method_name: Some(method.to_string()),
                auth_data: Some(self.credential()?),
            }),
            protocol_version,
        }))
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authentication")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}
