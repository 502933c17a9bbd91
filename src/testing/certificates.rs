//! Certificates for tests, made anew each time.

use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};

/// An authority that signs certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate with its key, both in PEM.
#[derive(Debug, Clone)]
pub struct SignedCertificate {
    /// The certificate alone, without its issuer.
    pub certificate: String,
    /// The key, in PKCS#8.
    pub key: String,
}

impl Authority {
    /// A new one of this name.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Its own certificate, for those who trust it.
    #[must_use]
    pub fn pem(&self) -> String {
        self.pem.clone()
    }

    /// An authority below it, and its certificate.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    pub fn intermediate(&self, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        Self {
            pem: signed.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate for these host names and addresses.
    ///
    /// # Panics
    /// When one of them is malformed.
    #[must_use]
    pub fn sign(&self, names: &[&str]) -> SignedCertificate {
        self.sign_params(params(names))
    }

    /// One of X.509 version 1 with this common name, as `openssl x509 -req` makes without an extension file.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    pub fn sign_version_1(&self, name: &str) -> SignedCertificate {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let later = params.signed_by(&key, &self.issuer).expect("a certificate");
        let parts = values(content(later.der()));
        let [to_be_signed, algorithm, ..] = parts.as_slice() else {
            panic!("a certificate has three parts");
        };
        // Without the version in front and the extensions behind.
        let fields = values(content(to_be_signed));
        let old = sequence(&fields.get(1..7).expect("seven fields").concat());
        let signature = rcgen::SigningKey::sign(self.issuer.key(), &old).expect("a signature");
        let bits = [&[0], signature.as_slice()].concat();
        let certificate = sequence(&[old, algorithm.to_vec(), tagged(0x03, &bits)].concat());
        let text = base64::engine::general_purpose::STANDARD.encode(certificate);
        SignedCertificate {
            certificate: format!(
                "-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"
            ),
            key: key.serialize_pem(),
        }
    }

    /// The same, expired for years.
    ///
    /// # Panics
    /// When one of them is malformed.
    #[must_use]
    pub fn sign_expired(&self, names: &[&str]) -> SignedCertificate {
        let mut params = params(names);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign_params(params)
    }

    fn sign_params(&self, params: CertificateParams) -> SignedCertificate {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer);
        SignedCertificate {
            certificate: certificate.expect("a certificate").pem(),
            key: key.serialize_pem(),
        }
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("well-formed names");
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params
}

/// What is in the DER value at the front, of less than 64 KiB.
fn content(der: &[u8]) -> &[u8] {
    let (head, len) = match der.get(1..4) {
        Some([0x82, high, low]) => (4, usize::from(*high) << 8 | usize::from(*low)),
        Some([0x81, len, _]) => (3, usize::from(*len)),
        Some([len, ..]) => (2, usize::from(*len)),
        _ => (0, 0),
    };
    der.get(head..head + len).expect("a whole value")
}

/// The DER values one after the other, each with its tag.
fn values(mut der: &[u8]) -> Vec<&[u8]> {
    let mut values = Vec::new();
    while !der.is_empty() {
        let inner = content(der);
        let head = inner.as_ptr() as usize - der.as_ptr() as usize;
        let (value, rest) = der.split_at(head + inner.len());
        values.push(value);
        der = rest;
    }
    values
}

fn sequence(content: &[u8]) -> Vec<u8> {
    tagged(0x30, content)
}

fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).expect("short").to_be_bytes();
    let len: &[u8] = match content.len() {
        0..0x80 => &[low],
        0x80..0x100 => &[0x81, low],
        _ => &[0x82, high, low],
    };
    [&[tag], len, content].concat()
}
