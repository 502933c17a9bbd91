//! Certificates for tests, made anew each time.

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
