//! TLS of outgoing connections (rustls, aws-lc).
//!
//! Owns what is trusted, what is presented and what went wrong, as types. It gets certificates and keys as bytes: reading files
//! is the caller's.

use std::{
    fmt, io,
    path::Path,
    sync::{Arc, OnceLock},
};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
    SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs},
    pki_types::{
        CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
    server::ParsedCertificate,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::certificate;
use super::tls_stream::{MaybeTls, ReadAhead, Stream};
use super::version_1::{self, Version1};
use crate::config::{
    CredentialError, TlsCipherSuite, TlsParameters, TlsVersion, read_credential_file,
};

/// What a [`TlsClient`] trusts and presents.
#[derive(Clone)]
pub struct TlsOptions {
    /// PEM certificates of the issuers that are trusted, and of no others. `None`: those that the operating system trusts.
    pub trusted: Option<Vec<u8>>,
    /// What a server that asks for it (mTLS) gets.
    pub identity: Option<TlsIdentity>,
    /// Takes any certificate of anybody, for any host: encrypted, but to whom is not known.
    pub allow_insecure: bool,
    /// Whether the certificate must be for the host that is connected to (its `subjectAltName`), beside being of a trusted
    /// issuer.
    pub verify_host_name: bool,
    /// Versions and cipher suites.
    pub parameters: TlsParameters,
}

impl Default for TlsOptions {
    /// The operating system's issuers, host names checked, no client certificate.
    fn default() -> Self {
        Self {
            trusted: None,
            identity: None,
            allow_insecure: false,
            verify_host_name: true,
            parameters: TlsParameters::default(),
        }
    }
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("own_issuers", &self.trusted.is_some())
            .field("identity", &self.identity.is_some())
            .field("allow_insecure", &self.allow_insecure)
            .field("verify_host_name", &self.verify_host_name)
            .field("parameters", &self.parameters)
            .finish()
    }
}

/// A certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsIdentity {
    /// PEM: the own certificate first, then those between it and the issuer that the other side trusts.
    pub certificate_chain: Vec<u8>,
    /// PEM: the private key in the form PKCS#1, PKCS#8 or SEC1, not encrypted.
    pub key: Vec<u8>,
}

impl TlsIdentity {
    /// Reads both files. Blocks.
    ///
    /// # Errors
    /// When one cannot be read; what is in them is not looked at.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, CredentialError> {
        Ok(Self {
            certificate_chain: read_credential_file(certificate)?,
            key: read_credential_file(key)?,
        })
    }
}

/// Why no TLS client or server can be made of some options.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TlsConfigError {
    /// The trusted certificates are no PEM text.
    #[error("the trusted certificates are not PEM: {0}")]
    TrustedPem(String),
    /// There is none among them, or none that can be used.
    #[error("there is no usable trusted certificate")]
    NothingTrusted,
    /// The operating system has no trusted certificates, or they cannot be read.
    #[error("the operating system's trusted certificates cannot be used: {0}")]
    SystemTrust(String),
    /// The own certificate is no PEM text.
    #[error("the certificate is not PEM: {0}")]
    CertificatePem(String),
    /// There is no certificate in it.
    #[error("there is no certificate")]
    NoCertificate,
    /// The key is no PEM text, of another form, or encrypted.
    #[error("the private key is not a PEM key of the form PKCS#1, PKCS#8 or SEC1: {0}")]
    Key(String),
    /// The key is not the certificate's, or of an algorithm that is not supported.
    #[error("the certificate and its key cannot be used: {0}")]
    Identity(rustls::Error),
    /// The cryptography library refused.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

impl TlsConfigError {
    /// Whether it is about the issuers that are trusted, and not about what is presented.
    #[must_use]
    pub fn is_about_trust(&self) -> bool {
        match self {
            Self::TrustedPem(_) | Self::NothingTrusted | Self::SystemTrust(_) => true,
            Self::CertificatePem(_)
            | Self::NoCertificate
            | Self::Key(_)
            | Self::Identity(_)
            | Self::Setup(_) => false,
        }
    }
}

/// Why a TLS connection could not be made, or ended.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate could be for this host.
    #[error("{host:?} is not a host name that a certificate can be for: {error}")]
    HostName {
        /// The host that was to be connected to.
        host: String,
        /// What is wrong with it.
        error: InvalidDnsNameError,
    },
    /// The certificate is of a trusted issuer, but for other hosts.
    #[error("the certificate is not for {host} but for {}", list(presented))]
    WrongHost {
        /// The host that was connected to.
        host: String,
        /// The names in the certificate (its `subjectAltName`); none at all when it has none.
        presented: Vec<String>,
    },
    /// The certificate is of nobody that is trusted.
    #[error("the certificate of {host} is of no trusted issuer")]
    UnknownIssuer {
        /// The host that was connected to.
        host: String,
    },
    /// The certificate cannot be accepted for another reason: expired, malformed and so on.
    #[error("the certificate of {host} cannot be accepted: {error}")]
    Certificate {
        /// The host that was connected to.
        host: String,
        /// The reason.
        error: CertificateError,
    },
    /// The server answered with something that is not TLS.
    #[error("the server does not speak TLS on this port")]
    NotTls,
    /// The server ended the connection: it may not speak TLS on this port, or refuses without a word.
    #[error("the server closed the connection during the TLS handshake")]
    Closed,
    /// The server refused, such as for want of a client certificate that it accepts.
    #[error("the server refused with TLS alert {0:?}")]
    Alert(AlertDescription),
    /// Anything else in the TLS protocol.
    #[error("TLS failed: {0}")]
    Protocol(rustls::Error),
    /// The network failed.
    #[error("the connection failed during the TLS handshake: {0}")]
    Io(#[source] io::Error),
}

impl TlsError {
    /// Whether it is about the certificates of either side, and so the same the next time.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::HostName { .. }
            | Self::WrongHost { .. }
            | Self::UnknownIssuer { .. }
            | Self::Certificate { .. }
            | Self::NotTls
            | Self::Alert(_) => true,
            Self::Closed | Self::Protocol(_) | Self::Io(_) => false,
        }
    }

    /// The error of a handshake with `host`.
    fn of_handshake(error: io::Error, host: &str) -> Self {
        // The library reports its own errors through the type of the stream's, so they have to be taken out again.
        let inner = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match (inner, error.kind()) {
            (Some(inner), _) => Self::of_protocol(inner.clone(), host),
            (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => Self::Closed,
            (None, _) => Self::Io(error),
        }
    }

    fn of_protocol(error: rustls::Error, host: &str) -> Self {
        let host = host.to_owned();
        match error {
            rustls::Error::InvalidCertificate(error) => match error {
                CertificateError::UnknownIssuer => Self::UnknownIssuer { host },
                CertificateError::NotValidForName => Self::WrongHost {
                    host,
                    presented: Vec::new(),
                },
                CertificateError::NotValidForNameContext { presented, .. } => {
                    Self::WrongHost { host, presented }
                }
                error => Self::Certificate { host, error },
            },
            rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } => {
                Self::NotTls
            }
            rustls::Error::AlertReceived(alert) => Self::Alert(alert),
            error => Self::Protocol(error),
        }
    }

    /// What TLS says in an error of a stream that was established: with TLS 1.3 a server judges the client's certificate only
    /// after the client's side of the handshake is done. `None` when it is an error of the network.
    pub fn of_stream(error: &io::Error) -> Option<Self> {
        let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(match inner {
            rustls::Error::AlertReceived(alert) => Self::Alert(*alert),
            error => Self::Protocol(error.clone()),
        })
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "no host at all (it has no subjectAltName)".to_owned()
    } else {
        names.join(", ")
    }
}

/// Opens TLS connections of one kind; cheap to share, and remembers sessions for quicker handshakes.
pub struct TlsClient {
    config: Arc<ClientConfig>,
    expires_at: Option<i64>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").finish_non_exhaustive()
    }
}

impl TlsClient {
    /// A client of these options: TLS 1.2 and 1.3 unless they say less, no ALPN, the server's host name sent (SNI).
    ///
    /// # Errors
    /// See [`TlsConfigError`].
    pub fn new(options: &TlsOptions) -> Result<Self, TlsConfigError> {
        let provider = Arc::new(provider(&options.parameters));
        let verifier = Verifier {
            roots: if options.allow_insecure {
                None
            } else {
                Some(roots(options.trusted.as_deref())?)
            },
            verify_host_name: options.verify_host_name,
            algorithms: provider.signature_verification_algorithms,
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions(&options.parameters))
            .map_err(TlsConfigError::Setup)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut expires_at = None;
        let config = match &options.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = parse_identity(identity)?;
                expires_at = chain
                    .first()
                    .and_then(|leaf| certificate::expires_at(leaf.as_ref()));
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(TlsConfigError::Identity)?
            }
        };
        Ok(Self {
            config: Arc::new(config),
            expires_at,
        })
    }

    /// When the client's certificate expires, in seconds since 1970; `None` without one.
    #[must_use]
    pub fn expires_at(&self) -> Option<i64> {
        self.expires_at
    }

    /// The client of the default options, made once per process: reading the operating system's certificates takes some
    /// milliseconds.
    ///
    /// # Errors
    /// [`TlsConfigError::SystemTrust`].
    pub fn system() -> Result<Arc<Self>, TlsConfigError> {
        static SYSTEM: OnceLock<Result<Arc<TlsClient>, TlsConfigError>> = OnceLock::new();
        SYSTEM
            .get_or_init(|| TlsClient::new(&TlsOptions::default()).map(Arc::new))
            .clone()
    }

    /// Performs the handshake with the server of this host name or IP address. Takes as long as the server does: the caller sets
    /// a limit. Cancel-safe in that the stream is closed.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub async fn connect(&self, stream: TcpStream, host: &str) -> Result<Stream, TlsError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| TlsError::HostName {
            host: host.to_owned(),
            error,
        })?;
        TlsConnector::from(Arc::clone(&self.config))
            .connect(name, ReadAhead::new(stream))
            .await
            .map(MaybeTls::tls)
            .map_err(|error| TlsError::of_handshake(error, host))
    }
}

/// The cryptography with the cipher suites of the parameters, and no others.
pub(super) fn provider(parameters: &TlsParameters) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    if !parameters.cipher_suites.is_empty() {
        let suites = parameters.cipher_suites.iter().copied();
        provider.cipher_suites = suites.map(cipher_suite).collect();
    }
    provider
}

pub(super) fn versions(parameters: &TlsParameters) -> Vec<&'static SupportedProtocolVersion> {
    let all = [
        (TlsVersion::V13, &rustls::version::TLS13),
        (TlsVersion::V12, &rustls::version::TLS12),
    ];
    let wanted = |version: &TlsVersion| {
        parameters.versions.is_empty() || parameters.versions.contains(version)
    };
    all.into_iter()
        .filter(|(version, _)| wanted(version))
        .map(|(_, version)| version)
        .collect()
}

fn cipher_suite(suite: TlsCipherSuite) -> SupportedCipherSuite {
    use aws_lc_rs::cipher_suite as suites;
    match suite {
        TlsCipherSuite::Aes256GcmSha384 => suites::TLS13_AES_256_GCM_SHA384,
        TlsCipherSuite::Aes128GcmSha256 => suites::TLS13_AES_128_GCM_SHA256,
        TlsCipherSuite::Chacha20Poly1305Sha256 => suites::TLS13_CHACHA20_POLY1305_SHA256,
        TlsCipherSuite::EcdheEcdsaAes256GcmSha384 => {
            suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        }
        TlsCipherSuite::EcdheEcdsaAes128GcmSha256 => {
            suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        }
        TlsCipherSuite::EcdheEcdsaChacha20Poly1305Sha256 => {
            suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        }
        TlsCipherSuite::EcdheRsaAes256GcmSha384 => suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        TlsCipherSuite::EcdheRsaAes128GcmSha256 => suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        TlsCipherSuite::EcdheRsaChacha20Poly1305Sha256 => {
            suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
        }
    }
}

pub(super) fn roots(trusted: Option<&[u8]>) -> Result<Arc<RootCertStore>, TlsConfigError> {
    let mut roots = RootCertStore::empty();
    match trusted {
        Some(pem) => {
            let certificates = certificates(pem).map_err(TlsConfigError::TrustedPem)?;
            // Bundles often hold certificates of forms that nobody can use; the others are trusted all the same.
            roots.add_parsable_certificates(certificates);
            if roots.is_empty() {
                return Err(TlsConfigError::NothingTrusted);
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let what = found.errors.first().map(ToString::to_string);
                let what = what.unwrap_or_else(|| "there are none".to_owned());
                return Err(TlsConfigError::SystemTrust(what));
            }
        }
    }
    Ok(Arc::new(roots))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, pem::Error>>()
        .map_err(|error| error.to_string())
}

pub(super) fn parse_identity(
    identity: &TlsIdentity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsConfigError> {
    let chain =
        certificates(&identity.certificate_chain).map_err(TlsConfigError::CertificatePem)?;
    if chain.is_empty() {
        return Err(TlsConfigError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(&identity.key)
        .map_err(|error| TlsConfigError::Key(error.to_string()))?;
    Ok((chain, key))
}

/// Judges certificates of servers. Pulsar's settings can leave out the host name alone, which the library's own verifier cannot.
#[derive(Debug)]
struct Verifier {
    /// `None`: everybody is trusted.
    roots: Option<Arc<RootCertStore>>,
    verify_host_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(roots) = &self.roots else {
            return Ok(ServerCertVerified::assertion());
        };
        // One of version 1 names no host.
        if !self.verify_host_name
            && let Some(old) = Version1::parse(end_entity)
        {
            old.verify(roots, now, &self.algorithms)?;
            return Ok(ServerCertVerified::assertion());
        }
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        if self.verify_host_name {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
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
