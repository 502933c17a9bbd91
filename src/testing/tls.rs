//! The server's half of TLS, for scripted brokers.

use std::sync::Arc;

use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio_rustls::TlsAcceptor;

use super::certificates::SignedCertificate;

/// Presents this certificate, followed by those of `chain`. With `clients`, the certificate of an authority, clients must
/// present one of its certificates.
///
/// # Panics
/// When a PEM text is malformed.
#[must_use]
pub fn acceptor(
    certificate: &SignedCertificate,
    chain: &[String],
    clients: Option<&str>,
) -> TlsAcceptor {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions of the provider");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(der(authority)).expect("an authority");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .expect("a verifier");
            builder.with_client_cert_verifier(verifier)
        }
    };
    let certificates = std::iter::once(&certificate.certificate).chain(chain);
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).expect("a key");
    let config = builder.with_single_cert(certificates.map(|pem| der(pem)).collect(), key);
    TlsAcceptor::from(Arc::new(config.expect("a certificate and its key")))
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}
