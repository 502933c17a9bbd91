//! TLS of accepted connections: certificates, keys and trusted issuers from files, the handshake, and what goes wrong in it.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, PeerIncompatible,
    RootCertStore, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, aws_lc_rs},
    pki_types::{CertificateDer, UnixTime},
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::{
    certificate,
    reload::{Files, Reloading},
    tls::{self, TlsConfigError, TlsIdentity},
    tls_stream::{MaybeTls, ReadAhead, ServerStream},
    version_1::{self, Version1},
};
use crate::config::{CredentialError, TlsParameters, read_credential_file};

/// Who may connect, beside the versions and cipher suites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientRules {
    /// Clients without a certificate are refused; else a client that has none is taken without.
    pub require_certificate: bool,
    /// Certificates of anybody are accepted, and clients are asked for one even where no issuer is trusted. That a client has the
    /// key of its certificate is checked all the same.
    pub allow_insecure: bool,
}

/// Accepts TLS connections with one certificate; cheap to share.
pub struct TlsServer {
    acceptor: TlsAcceptor,
    expires_at: Option<i64>,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

/// Why a client has no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsAcceptError {
    /// It sent something that is not TLS.
    #[error("the client does not speak TLS")]
    NotTls,
    /// It ended the connection.
    #[error("the client closed the connection during the TLS handshake")]
    Closed,
    /// It has no certificate, and must have one.
    #[error("the client has no certificate")]
    NoCertificate,
    /// Its certificate is not accepted.
    #[error("the client's certificate is not accepted: {0}")]
    Certificate(CertificateError),
    /// There is no version or cipher suite that both sides take.
    #[error("the client and we have nothing in common: {0:?}")]
    Incompatible(PeerIncompatible),
    /// It refused, such as for a certificate of ours that it does not trust.
    #[error("the client refused with TLS alert {0:?}")]
    Alert(AlertDescription),
    /// Anything else in the TLS protocol.
    #[error("TLS failed: {0}")]
    Protocol(rustls::Error),
    /// The network failed.
    #[error("the connection failed during the TLS handshake: {0}")]
    Io(#[source] io::Error),
}

impl TlsAcceptError {
    /// The reason in one word, as metrics have it.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::Closed => "closed",
            Self::NoCertificate => "no_client_certificate",
            Self::Certificate(_) => "client_certificate",
            Self::Incompatible(_) => "incompatible",
            Self::Alert(_) => "alert",
            Self::Protocol(_) => "protocol",
            Self::Io(_) => "io",
        }
    }

    fn of(error: io::Error) -> Self {
        // The library reports its own errors through the type of the stream's, so they have to be taken out again.
        let inner = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match (inner, error.kind()) {
            (Some(inner), _) => match inner.clone() {
                rustls::Error::InvalidMessage(_)
                | rustls::Error::InappropriateMessage { .. }
                | rustls::Error::InappropriateHandshakeMessage { .. } => Self::NotTls,
                rustls::Error::NoCertificatesPresented => Self::NoCertificate,
                rustls::Error::InvalidCertificate(error) => Self::Certificate(error),
                rustls::Error::PeerIncompatible(why) => Self::Incompatible(why),
                rustls::Error::AlertReceived(alert) => Self::Alert(alert),
                error => Self::Protocol(error),
            },
            (
                None,
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe,
            ) => Self::Closed,
            (None, _) => Self::Io(error),
        }
    }
}

impl TlsServer {
    /// A server with this certificate. `trusted` (PEM) are the issuers of clients' certificates; clients are asked for one where it
    /// is given.
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn new(
        identity: &TlsIdentity,
        trusted: Option<&[u8]>,
        rules: ClientRules,
        parameters: &TlsParameters,
    ) -> Result<Self, TlsConfigError> {
        let provider = Arc::new(tls::provider(parameters));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&tls::versions(parameters))
            .map_err(TlsConfigError::Setup)?;
        let (chain, key) = tls::parse_identity(identity)?;
        let expires_at = chain
            .first()
            .and_then(|leaf| certificate::expires_at(leaf.as_ref()));
        let builder = if rules.allow_insecure {
            builder.with_client_cert_verifier(Arc::new(AnyCertificate {
                is_mandatory: rules.require_certificate,
                algorithms: provider.signature_verification_algorithms,
            }))
        } else if let Some(trusted) = trusted {
            let roots = tls::roots(Some(trusted))?;
            let algorithms = provider.signature_verification_algorithms;
            let mut verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider);
            if !rules.require_certificate {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier = verifier
                .build()
                .map_err(|_| TlsConfigError::NothingTrusted)?;
            builder.with_client_cert_verifier(Arc::new(TrustedCertificate {
                verifier,
                roots,
                algorithms,
            }))
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(TlsConfigError::Identity)?;
        if rules.allow_insecure || trusted.is_some() {
            // A resumed session would keep a certificate that has expired meanwhile.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        } else {
            // The clients keep their sessions: however many come back at once, none needs memory here.
            config.ticketer = aws_lc_rs::Ticketer::new().map_err(TlsConfigError::Setup)?;
        }
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            expires_at,
        })
    }

    /// When the certificate expires, in seconds since 1970.
    #[must_use]
    pub fn expires_at(&self) -> Option<i64> {
        self.expires_at
    }

    /// Performs the handshake. Takes as long as the client does: the caller sets a limit. Dropping it closes the connection.
    ///
    /// # Errors
    /// See [`TlsAcceptError`]; with the connection, on which an alert may have told the client why, and which the caller ends.
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<ServerStream, (TlsAcceptError, TcpStream)> {
        let accepted = self
            .acceptor
            .accept(ReadAhead::new(stream))
            .into_fallible()
            .await;
        match accepted {
            Ok(stream) => Ok(MaybeTls::tls(stream)),
            Err((error, stream)) => Err((TlsAcceptError::of(error), stream.into_inner())),
        }
    }
}

/// Accepts the certificates of trusted issuers.
#[derive(Debug)]
struct TrustedCertificate {
    /// The library's, which knows those of version 3 only.
    verifier: Arc<dyn ClientCertVerifier>,
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for TrustedCertificate {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match Version1::parse(end_entity) {
            Some(old) => old
                .verify(&self.roots, now, &self.algorithms)
                .map(|()| ClientCertVerified::assertion()),
            None => self
                .verifier
                .verify_client_cert(end_entity, intermediates, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        version_1::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        version_1::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Accepts every client certificate whose key the client has.
#[derive(Debug)]
struct AnyCertificate {
    is_mandatory: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        version_1::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        version_1::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The files of a [`TlsServer`] and how they are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsServerPaths {
    /// PEM file of the certificate chain.
    pub certificate: PathBuf,
    /// PEM file of the key.
    pub key: PathBuf,
    /// PEM file of the issuers of clients' certificates.
    pub trusted: Option<PathBuf>,
    /// Who may connect.
    pub rules: ClientRules,
    /// Versions and cipher suites.
    pub parameters: TlsParameters,
}

/// Why TLS cannot be served from files; names the files.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TlsServerFilesError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] CredentialError),
    /// What is in it cannot be used.
    #[error("{files}: {error}")]
    Config {
        /// The file or files.
        files: String,
        /// What is wrong.
        error: TlsConfigError,
    },
}

/// What the files of a [`TlsServerPaths`] hold.
#[derive(PartialEq, Eq)]
pub struct TlsServerContent {
    identity: TlsIdentity,
    trusted: Option<Vec<u8>>,
}

impl Files for TlsServerPaths {
    type Content = TlsServerContent;
    type Made = TlsServer;
    type Error = TlsServerFilesError;
    const WHAT: &'static str = "the files of certificate, key and trusted issuers for clients";

    fn read(&self) -> Result<TlsServerContent, CredentialError> {
        Ok(TlsServerContent {
            identity: TlsIdentity::read(&self.certificate, &self.key)?,
            trusted: self
                .trusted
                .as_deref()
                .map(read_credential_file)
                .transpose()?,
        })
    }

    fn make(&self, content: &TlsServerContent) -> Result<TlsServer, TlsServerFilesError> {
        TlsServer::new(
            &content.identity,
            content.trusted.as_deref(),
            self.rules,
            &self.parameters,
        )
        .map_err(|error| TlsServerFilesError::Config {
            files: self.files_of(&error),
            error,
        })
    }
}

impl TlsServerPaths {
    fn files_of(&self, error: &TlsConfigError) -> String {
        let name = |path: &Path| path.display().to_string();
        match error {
            error if error.is_about_trust() => {
                self.trusted.as_deref().map_or_else(String::new, name)
            }
            TlsConfigError::CertificatePem(_) | TlsConfigError::NoCertificate => {
                name(&self.certificate)
            }
            TlsConfigError::Key(_) => name(&self.key),
            _ => format!("{} and {}", name(&self.certificate), name(&self.key)),
        }
    }
}

/// A [`TlsServer`] of files. New connections use what the files hold; connections that are open stay as they are.
pub struct TlsServerFiles(Reloading<TlsServerPaths>);

impl TlsServerFiles {
    /// Reads the files, and looks at them again when a connection comes and `period` has passed since the last look.
    ///
    /// # Errors
    /// See [`TlsServerFilesError`].
    pub fn open(paths: TlsServerPaths, period: Duration) -> Result<Self, TlsServerFilesError> {
        Reloading::open(paths, period).map(Self)
    }

    /// The server of the files as they were at the last look, which is now if it is time for one; see [`Reloading::current`].
    pub async fn server(&self) -> Arc<TlsServer> {
        self.0.current().await
    }

    /// As [`server`](Self::server), for who cannot wait: a look that is due is only begun.
    #[must_use]
    pub fn latest_server(&self) -> Arc<TlsServer> {
        self.0.latest()
    }

    /// Whether the files were of use at the last look.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.0.is_up_to_date()
    }
}

impl fmt::Debug for TlsServerFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.files().fmt(f)
    }
}
