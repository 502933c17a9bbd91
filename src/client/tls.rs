//! Where a client's TLS settings come from: fixed, or files that may be replaced while we run.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use super::error::ConnectError;
use crate::{
    config::{CredentialError, TlsParameters, read_credential_file},
    net::{
        TlsClient, TlsConfigError, TlsIdentity, TlsOptions,
        reload::{Files, Reloading},
    },
};

/// How connections to addresses with TLS are made.
#[derive(Debug, Clone, Default)]
pub enum TlsSource {
    /// The operating system's trusted issuers, no client certificate.
    #[default]
    System,
    /// This client.
    Client(Arc<TlsClient>),
    /// Files, looked at for new connections.
    Files(Arc<TlsFiles>),
}

impl TlsSource {
    /// The client to use now. Cancel-safe.
    ///
    /// # Errors
    /// Where the system trusts nobody.
    pub async fn client(&self) -> Result<Arc<TlsClient>, ConnectError> {
        match self {
            Self::System => TlsClient::system().map_err(ConnectError::TlsConfig),
            Self::Client(client) => Ok(Arc::clone(client)),
            Self::Files(files) => Ok(files.client().await),
        }
    }
}

/// Where certificates and keys are, and how they are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFilePaths {
    /// PEM file of the trusted issuers; `None`: those of the operating system.
    pub trusted: Option<PathBuf>,
    /// PEM files of the client's certificate chain and of its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// As [`TlsOptions::allow_insecure`].
    pub allow_insecure: bool,
    /// As [`TlsOptions::verify_host_name`].
    pub verify_host_name: bool,
    /// As [`TlsOptions::parameters`].
    pub parameters: TlsParameters,
}

/// Why TLS cannot be set up from files.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TlsFilesError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] CredentialError),
    /// What is in them cannot be used.
    #[error(transparent)]
    Config(#[from] TlsConfigError),
}

/// A [`TlsClient`] of files. When their content changes, new connections use the new content; when that is of no use, as in the
/// middle of a replacement, they go on with the old one.
pub struct TlsFiles(Reloading<TlsFilePaths>);

/// What the files of a [`TlsFilePaths`] hold.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsContent {
    trusted: Option<Vec<u8>>,
    identity: Option<TlsIdentity>,
}

impl TlsFiles {
    /// Reads the files, and looks at them for every new connection.
    ///
    /// # Errors
    /// See [`TlsFilesError`].
    pub fn open(paths: TlsFilePaths) -> Result<Self, TlsFilesError> {
        Self::open_with_period(paths, Duration::ZERO)
    }

    /// As [`open`](Self::open), looking at the files for a new connection only when `period` has passed since the last look.
    ///
    /// # Errors
    /// See [`TlsFilesError`].
    pub fn open_with_period(paths: TlsFilePaths, period: Duration) -> Result<Self, TlsFilesError> {
        Reloading::open(paths, period).map(Self)
    }

    /// The client of the files as they were at the last look, which is now if it is time for one; see [`Reloading::current`].
    pub async fn client(&self) -> Arc<TlsClient> {
        self.0.current().await
    }

    /// As [`client`](Self::client), for who cannot wait: a look that is due is only begun.
    pub fn latest_client(&self) -> Arc<TlsClient> {
        self.0.latest()
    }

    /// Whether the files were of use at the last look.
    pub fn is_up_to_date(&self) -> bool {
        self.0.is_up_to_date()
    }
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.files().fmt(f)
    }
}

impl Files for TlsFilePaths {
    type Content = TlsContent;
    type Made = TlsClient;
    type Error = TlsFilesError;
    const WHAT: &'static str = "the TLS files for connections to brokers";

    fn read(&self) -> Result<TlsContent, CredentialError> {
        let trusted = self
            .trusted
            .as_deref()
            .map(read_credential_file)
            .transpose()?;
        let identity = match &self.identity {
            Some((certificate, key)) => Some(TlsIdentity::read(certificate, key)?),
            None => None,
        };
        Ok(TlsContent { trusted, identity })
    }

    fn make(&self, content: &TlsContent) -> Result<TlsClient, TlsFilesError> {
        let client = TlsClient::new(&TlsOptions {
            trusted: content.trusted.clone(),
            identity: content.identity.clone(),
            allow_insecure: self.allow_insecure,
            verify_host_name: self.verify_host_name,
            parameters: self.parameters.clone(),
        });
        Ok(client?)
    }
}
