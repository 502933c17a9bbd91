//! Who a client says it is: CONNECT's `auth_method_name` and `auth_data`, and the answers to AUTH_CHALLENGE.
//!
//! The credential is read anew for every connection and every challenge, so that one that expires can be replaced outside.

use std::{fmt, pin::Pin, sync::Arc};

use bytes::Bytes;
use tokio::sync::Semaphore;

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
    reads: Reads,
}

/// Reads of credentials that may block: a few at a time where they keep nobody else waiting, so that a disk that hangs takes a few threads
/// that serve no connection.
#[derive(Clone)]
struct Reads(Arc<Semaphore>);

impl Default for Reads {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(READS_MAX)))
    }
}

impl Reads {
    async fn read(&self, source: &CredentialSource) -> Result<String, CredentialError> {
        match source {
            CredentialSource::File(_) => {
                let source = source.clone();
                self.blocking(move || source.read()).await
            }
            CredentialSource::Empty
            | CredentialSource::Text(_)
            | CredentialSource::Environment(_) => source.read(),
        }
    }

    /// Cancel-safe; a read that has begun keeps its place until it is over.
    async fn blocking<F>(&self, read: F) -> Result<String, CredentialError>
    where
        F: FnOnce() -> Result<String, CredentialError> + Send + 'static,
    {
        let place = Arc::clone(&self.0).acquire_owned().await;
        let reading = tokio::task::spawn_blocking(move || {
            let _place = place;
            read()
        });
        let interrupted =
            |error: tokio::task::JoinError| CredentialError::Supplier(error.to_string());
        reading.await.map_err(interrupted)?
    }
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
            ..Self::default()
        }
    }

    /// Any method of the broker, with data that the application supplies.
    pub fn supplied(method: &str, supplier: CredentialSupplier) -> Self {
        Self {
            method: Some(method.into()),
            source: Source::Supplier(supplier),
            ..Self::default()
        }
    }

    /// Whatever this introducer says.
    pub fn introduced_by(introducer: Arc<dyn Introducer>) -> Self {
        Self {
            source: Source::Introducer(introducer),
            ..Self::default()
        }
    }

    /// The method's name on the wire, if there is a method.
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// The method, and the credential as it is now; `None` without a method of its own. A file takes as long as the disk does: the
    /// caller sets a limit. Cancel-safe.
    ///
    /// # Errors
    /// When the credential cannot be read.
    pub async fn auth_data(&self) -> Result<Option<AuthData>, CredentialError> {
        let Some(method) = &self.method else {
            return Ok(None);
        };
        let credential = match &self.source {
            Source::Settings(source) => self.reads.read(source).await.map(Bytes::from)?,
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
        if let Some(data) = self.auth_data().await? {
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
            _ => {
                let own = self.clone();
                Box::pin(async move { own.auth_data().await })
            }
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

/// Reads of one credential at a time.
const READS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::Duration};

    use tokio::{sync::mpsc, time::timeout};

    use super::*;

    /// Whether it waits.
    async fn waits<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
        timeout(Duration::ZERO, future).await.is_err()
    }

    /// On one thread, which a read in place would stop.
    #[tokio::test]
    async fn reads_that_hang_take_a_few_threads_and_stop_nobody_who_reads_no_file() {
        let reads = Reads::default();
        let (began, mut begun) = mpsc::unbounded_channel();
        let (go_on, gone_on) = std::sync::mpsc::channel::<()>();
        let gone_on = Arc::new(parking_lot::Mutex::new(gone_on));
        let read = |text: &'static str| {
            let (began, gone_on) = (began.clone(), Arc::clone(&gone_on));
            reads.blocking(move || {
                began.send(()).expect("the test waits");
                gone_on.lock().recv().expect("the test says so");
                Ok(text.to_owned())
            })
        };
        let mut hanging: Vec<_> = (0..READS_MAX).map(|_| Box::pin(read("old"))).collect();
        for hanging in &mut hanging {
            assert!(waits(hanging.as_mut()).await);
            begun.recv().await.expect("it began");
        }
        // Whoever gave up has not given back the thread.
        drop(hanging.pop());
        let mut next = pin!(read("new"));
        assert!(waits(next.as_mut()).await);
        assert!(begun.try_recv().is_err(), "one more thread");
        let text = CredentialSource::Text(Secret::new("text"));
        assert_eq!(reads.read(&text).await, Ok("text".to_owned()));
        for _ in 0..=READS_MAX {
            go_on.send(()).expect("they wait");
        }
        assert_eq!(next.await, Ok("new".to_owned()));
        for hanging in hanging {
            assert_eq!(hanging.await, Ok("old".to_owned()));
        }
    }
}
