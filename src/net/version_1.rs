//! Certificates of X.509 version 1, which the TLS library refuses: they have no extensions, so nothing says what they are for. Java
//! accepts them, and `openssl x509 -req` without an extension file makes them, so that they are what many clients of Pulsar have.
//!
//! One is trusted when a trusted issuer itself signed it, and it is within its validity. It never is an issuer.

use rustls::{
    CertificateError, DigitallySignedStruct, RootCertStore,
    client::danger::HandshakeSignatureValid,
    crypto::WebPkiSupportedAlgorithms,
    pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime},
};

use super::certificate::{BIT_STRING, Reader, SEQUENCE, seconds};

/// What there is in such a certificate (RFC 5280, section 4.1), as far as it matters here.
pub(super) struct Version1<'a> {
    /// What is signed.
    to_be_signed: &'a [u8],
    /// The algorithm of the signature, without its tag.
    algorithm: &'a [u8],
    signature: &'a [u8],
    /// The name of the issuer, without its tag.
    issuer: &'a [u8],
    not_before: i64,
    not_after: i64,
    /// The key with its algorithm, tag included.
    key: &'a [u8],
}

impl<'a> Version1<'a> {
    /// `None`: something else, or a certificate of a later version.
    pub(super) fn parse(certificate: &'a [u8]) -> Option<Self> {
        let mut outer = Reader(certificate);
        let mut parts = Reader(outer.value_of(SEQUENCE)?);
        let to_be_signed = parts.whole()?;
        let algorithm = parts.value_of(SEQUENCE)?;
        let signature = bits(parts.value_of(BIT_STRING)?)?;
        if !outer.0.is_empty() || !parts.0.is_empty() {
            return None;
        }
        let mut fields = Reader(Reader(to_be_signed).value_of(SEQUENCE)?);
        // A version stands before the serial number, of all but the first.
        fields.value_of(INTEGER)?;
        let same_algorithm = fields.value_of(SEQUENCE)? == algorithm;
        let issuer = fields.value_of(SEQUENCE)?;
        let mut validity = Reader(fields.value_of(SEQUENCE)?);
        let mut time = || {
            let (tag, text) = validity.next()?;
            seconds(tag, std::str::from_utf8(text).ok()?)
        };
        let (not_before, not_after) = (time()?, time()?);
        fields.value_of(SEQUENCE)?;
        let key = fields.whole()?;
        (same_algorithm && fields.0.is_empty()).then_some(Self {
            to_be_signed,
            algorithm,
            signature,
            issuer,
            not_before,
            not_after,
            key,
        })
    }

    /// Whether one of `roots` signed it, and it is valid now.
    pub(super) fn verify(
        &self,
        roots: &RootCertStore,
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), rustls::Error> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < self.not_before {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > self.not_after {
            return Err(CertificateError::Expired.into());
        }
        let mut issuers = roots
            .roots
            .iter()
            .filter(|root| root.subject.as_ref() == self.issuer)
            .peekable();
        if issuers.peek().is_none() {
            return Err(CertificateError::UnknownIssuer.into());
        }
        let signed = issuers.any(|issuer| {
            let Some((key_algorithm, key)) = key_of(issuer.subject_public_key_info.as_ref()) else {
                return false;
            };
            algorithms
                .all
                .iter()
                .filter(|algorithm| {
                    algorithm.signature_alg_id().as_ref() == self.algorithm
                        && algorithm.public_key_alg_id().as_ref() == key_algorithm
                })
                .any(|algorithm| {
                    algorithm
                        .verify_signature(key, self.to_be_signed, self.signature)
                        .is_ok()
                })
        });
        if signed {
            Ok(())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    /// Whether its owner signed the handshake.
    fn signed_handshake(
        &self,
        message: &[u8],
        signature: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let bad = || rustls::Error::from(CertificateError::BadSignature);
        let (key_algorithm, key) = Reader(self.key)
            .value_of(SEQUENCE)
            .and_then(key_of)
            .ok_or(CertificateError::BadEncoding)?;
        let scheme = algorithms
            .mapping
            .iter()
            .find(|(scheme, _)| *scheme == signature.scheme);
        let (_, of_scheme) = scheme.ok_or_else(bad)?;
        of_scheme
            .iter()
            .filter(|algorithm| algorithm.public_key_alg_id().as_ref() == key_algorithm)
            .any(|algorithm| {
                algorithm
                    .verify_signature(key, message, signature.signature())
                    .is_ok()
            })
            .then(HandshakeSignatureValid::assertion)
            .ok_or_else(bad)
    }
}

/// As the library's function of this name, of certificates of any version.
pub(super) fn verify_tls12_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    match Version1::parse(certificate) {
        Some(old) => old.signed_handshake(message, signature, algorithms),
        None => rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms),
    }
}

/// As the library's function of this name, of certificates of any version.
pub(super) fn verify_tls13_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    match Version1::parse(certificate) {
        Some(old) => rustls::crypto::verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(old.key),
            signature,
            algorithms,
        ),
        None => rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms),
    }
}

/// Algorithm and bits of a public key, of what is in its outer tag.
fn key_of(info: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut info = Reader(info);
    Some((info.value_of(SEQUENCE)?, bits(info.value_of(BIT_STRING)?)?))
}

/// The bytes of a bit string of whole bytes.
fn bits(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(&[0])
}

const INTEGER: u8 = 0x02;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{
        ClientConfig, SignatureScheme, SupportedProtocolVersion,
        client::ResolvesClientCert,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
        sign::CertifiedKey,
    };
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::{
        net::{ClientRules, TlsIdentity, TlsServer},
        testing::certificates::{Authority, SignedCertificate},
    };

    fn der(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    }

    fn roots(authority: &Authority) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(der(&authority.pem())).unwrap();
        roots
    }

    fn verify(certificate: &[u8], by: &Authority, now: u64) -> Result<(), rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
        let parsed = Version1::parse(certificate).expect("of version 1");
        parsed.verify(&roots(by), now, &algorithms)
    }

    const NOW: u64 = 1_700_000_000;

    #[test]
    fn is_trusted_when_a_trusted_issuer_signed_it_and_it_is_valid() {
        let (authority, same_name) = (Authority::new("a"), Authority::new("a"));
        let certificate = der(&authority.sign_version_1("client").certificate);
        assert_eq!(verify(&certificate, &authority, NOW), Ok(()));
        let unknown = CertificateError::UnknownIssuer.into();
        assert_eq!(
            verify(&certificate, &Authority::new("b"), NOW),
            Err(unknown)
        );
        let forged = CertificateError::BadSignature.into();
        assert_eq!(verify(&certificate, &same_name, NOW), Err(forged));
        let early = CertificateError::NotValidYet.into();
        assert_eq!(verify(&certificate, &authority, 0), Err(early));
        let late = CertificateError::Expired.into();
        assert_eq!(verify(&certificate, &authority, 1 << 40), Err(late));
    }

    #[test]
    fn a_certificate_of_version_3_is_none() {
        let authority = Authority::new("a");
        assert!(Version1::parse(&der(&authority.sign(&["localhost"]).certificate)).is_none());
        assert!(Version1::parse(&der(&authority.pem())).is_none());
    }

    /// Shows one certificate, which the library would not take for our own.
    #[derive(Debug)]
    struct Shown(Arc<CertifiedKey>);

    impl ResolvesClientCert for Shown {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            Some(Arc::clone(&self.0))
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    /// The certificate that a server which trusts `trusted` saw.
    async fn handshake(
        trusted: &Authority,
        shown: &SignedCertificate,
        version: &'static SupportedProtocolVersion,
    ) -> Option<Vec<u8>> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes()).unwrap();
        let key = provider.key_provider.load_private_key(key).unwrap();
        let shown = Shown(Arc::new(CertifiedKey::new(
            vec![der(&shown.certificate)],
            key,
        )));
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots(trusted))
            .with_client_cert_resolver(Arc::new(shown));
        let own = trusted.sign(&["localhost"]);
        let identity = TlsIdentity {
            certificate_chain: own.certificate.into_bytes(),
            key: own.key.into_bytes(),
        };
        let rules = ClientRules {
            require_certificate: true,
            allow_insecure: false,
        };
        let pem = trusted.pem();
        let server = TlsServer::new(&identity, Some(pem.as_bytes()), rules, &Default::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap());
        let (accepted, dialled) = tokio::join!(listener.accept(), dialled);
        let connector = TlsConnector::from(Arc::new(client));
        let name = ServerName::try_from("localhost").unwrap();
        let (server, accepted) = (server.unwrap(), accepted.unwrap().0);
        let (seen, _client) = tokio::join!(
            server.accept(accepted),
            connector.connect(name, dialled.unwrap())
        );
        seen.ok()?.peer_certificate().map(<[u8]>::to_vec)
    }

    #[tokio::test]
    async fn a_client_that_has_one_of_a_trusted_issuer_is_let_in_by_either_version_of_tls() {
        let authority = Authority::new("a");
        let certificate = authority.sign_version_1("client");
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let seen = handshake(&authority, &certificate, version).await;
            assert_eq!(seen.as_deref(), Some(&*der(&certificate.certificate)));
            let other_key = SignedCertificate {
                key: authority.sign_version_1("other").key,
                ..certificate.clone()
            };
            assert_eq!(handshake(&authority, &other_key, version).await, None);
            let stranger = Authority::new("b").sign_version_1("client");
            assert_eq!(handshake(&authority, &stranger, version).await, None);
        }
    }

    proptest! {
        #[test]
        fn one_that_was_changed_is_not_trusted_and_never_panics(
            place in any::<proptest::sample::Index>(),
            change in 1..=255_u8,
            len in any::<proptest::sample::Index>(),
        ) {
            let authority = Authority::new("a");
            let certificate = der(&authority.sign_version_1("client").certificate);
            let mut changed = certificate.to_vec();
            changed[place.index(certificate.len())] ^= change;
            let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW));
            if let Some(parsed) = Version1::parse(&changed) {
                prop_assert!(parsed.verify(&roots(&authority), now, &algorithms).is_err());
            }
            let cut = &certificate[..len.index(certificate.len())];
            prop_assert!(Version1::parse(cut).is_none());
        }
    }
}
