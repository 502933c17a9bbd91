//! Where a client's TLS settings come from: fixed, or files that may be replaced while we run.

use std::{fmt, path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use tracing::warn;

use super::error::ConnectError;
use crate::{
    config::{CredentialError, read_credential_file},
    net::{TlsClient, TlsConfigError, TlsIdentity, TlsOptions},
};

/// How connections to addresses with TLS are made.
#[derive(Debug, Clone, Default)]
pub enum TlsSource {
    /// The operating system's trusted issuers, no client certificate.
    #[default]
    System,
    /// This client.
    Client(Arc<TlsClient>),
    /// Files, looked at for every new connection.
    Files(Arc<TlsFiles>),
}

impl TlsSource {
    pub(crate) fn client(&self) -> Result<Arc<TlsClient>, ConnectError> {
        match self {
            Self::System => TlsClient::system().map_err(ConnectError::TlsConfig),
            Self::Client(client) => Ok(Arc::clone(client)),
            Self::Files(files) => Ok(files.client()),
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
pub struct TlsFiles {
    paths: TlsFilePaths,
    current: Mutex<Current>,
}

struct Current {
    content: Content,
    client: Arc<TlsClient>,
    /// The content that was of no use is complained about once.
    refused: Option<Result<Content, CredentialError>>,
}

#[derive(Clone, PartialEq, Eq)]
struct Content {
    trusted: Option<Vec<u8>>,
    identity: Option<TlsIdentity>,
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// See [`TlsFilesError`].
    pub fn open(paths: TlsFilePaths) -> Result<Self, TlsFilesError> {
        let content = paths.read()?;
        let client = Arc::new(paths.client_of(&content)?);
        Ok(Self {
            paths,
            current: Mutex::new(Current {
                content,
                client,
                refused: None,
            }),
        })
    }

    /// The client of the files as they are now.
    fn client(&self) -> Arc<TlsClient> {
        let found = self.paths.read();
        let mut current = self.current.lock();
        let is_known = match &found {
            Ok(content) => *content == current.content,
            Err(_) => false,
        };
        if is_known || current.refused.as_ref() == Some(&found) {
            return Arc::clone(&current.client);
        }
        let client = match &found {
            Ok(content) => self.paths.client_of(content).map_err(TlsFilesError::from),
            Err(error) => Err(error.clone().into()),
        };
        match (client, found) {
            (Ok(client), Ok(content)) => {
                *current = Current {
                    content,
                    client: Arc::new(client),
                    refused: None,
                };
            }
            (Err(error), found) => {
                warn!(%error, "the TLS files changed and cannot be used; going on with what they held before");
                current.refused = Some(found);
            }
            (Ok(_), Err(_)) => unreachable!("a client is made of content only"),
        }
        Arc::clone(&current.client)
    }
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.paths.fmt(f)
    }
}

impl TlsFilePaths {
    fn read(&self) -> Result<Content, CredentialError> {
        let read = |path: &PathBuf| read_credential_file(path);
        let trusted = self.trusted.as_ref().map(read).transpose()?;
        let identity = match &self.identity {
            Some((certificate, key)) => Some(TlsIdentity {
                certificate_chain: read(certificate)?,
                key: read(key)?,
            }),
            None => None,
        };
        Ok(Content { trusted, identity })
    }

    fn client_of(&self, content: &Content) -> Result<TlsClient, TlsConfigError> {
        TlsClient::new(&TlsOptions {
            trusted: content.trusted.clone(),
            identity: content.identity.clone(),
            allow_insecure: self.allow_insecure,
            verify_host_name: self.verify_host_name,
        })
    }
}
