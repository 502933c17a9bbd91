//! JSON Web Tokens: the signature, and claims as they stand (RFC 7515, 7518, 7519).
//!
//! The algorithms that a key can be used for are fixed when the key is read; the header of a token only picks among them. So no
//! token can have its signature checked with a key of another kind, or not at all.

use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{self, ParsedPublicKey, VerificationAlgorithm};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rustls::pki_types::{SubjectPublicKeyInfoDer, pem::PemObject as _};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::PublicKeyKind;

/// Why a token is not good. Quotes nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is no token.
    #[error("missing")]
    Missing,
    /// It is no compact JWS, or its parts are not what they have to be.
    #[error("malformed")]
    Malformed,
    /// It is larger than any token.
    #[error("larger than {TOKEN_LEN_MAX} bytes")]
    TooLarge,
    /// Its algorithm is none that the configured key is for.
    #[error("signed by an algorithm that the configured key is not for")]
    Algorithm,
    /// It uses extensions that have to be understood and are not.
    #[error("uses extensions that are not supported")]
    Extension,
    /// It was not signed with the configured key.
    #[error("the signature is not that of the configured key")]
    Signature,
    /// A claim has a type that it must not have.
    #[error("a claim has the wrong type")]
    Claim,
    /// It is not good any more.
    #[error("expired")]
    Expired,
    /// It is not good yet.
    #[error("not valid yet")]
    Premature,
    /// It is for somebody else.
    #[error("for another audience")]
    Audience,
    /// It names no role.
    #[error("names no role")]
    NoRole,
}

impl TokenError {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Missing => "INVALID_AUTH_DATA",
            Self::Audience => "INVALID_AUDIENCES",
            _ => "INVALID_TOKEN",
        }
    }
}

/// Why no tokens can be verified with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyError {
    /// It is no RSA key of 2048 to 8192 bits.
    #[error("no RSA public key of 2048 to 8192 bits, in DER (SubjectPublicKeyInfo) or PEM")]
    Rsa,
    /// It is no key of the curves that tokens are signed with.
    #[error(
        "no public key of the curves P-256, P-384 or P-521, in DER (SubjectPublicKeyInfo) or PEM"
    )]
    EllipticCurve,
    /// It is shorter than the hash of every algorithm.
    #[error("shorter than 32 bytes")]
    Short,
}

/// Verifies signatures with one key.
pub(super) struct Verifier {
    /// By the name of the algorithm in a token's header; at most one for each.
    keys: Vec<(&'static str, Key)>,
}

enum Key {
    Secret(Box<hmac::Key>),
    Public(ParsedPublicKey),
}

impl Verifier {
    /// For tokens of a shared secret. It is used for the algorithms whose hash is not longer than it (RFC 7518, section 3.2).
    pub(super) fn of_secret(secret: &[u8]) -> Result<Self, KeyError> {
        let algorithms = [
            ("HS256", hmac::HMAC_SHA256, 32),
            ("HS384", hmac::HMAC_SHA384, 48),
            ("HS512", hmac::HMAC_SHA512, 64),
        ];
        let keys: Vec<_> = algorithms
            .into_iter()
            .filter(|(_, _, hash_len)| secret.len() >= *hash_len)
            .map(|(name, algorithm, _)| {
                (
                    name,
                    Key::Secret(Box::new(hmac::Key::new(algorithm, secret))),
                )
            })
            .collect();
        if keys.is_empty() {
            return Err(KeyError::Short);
        }
        Ok(Self { keys })
    }

    /// For tokens of a private key whose public one this is, in DER or PEM.
    pub(super) fn of_public_key(bytes: &[u8], kind: PublicKeyKind) -> Result<Self, KeyError> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(bytes);
        let der: &[u8] = der.as_ref().map_or(bytes, |der| der.as_ref());
        let algorithms = match kind {
            PublicKeyKind::Rsa => RSA,
            PublicKeyKind::EllipticCurve => ELLIPTIC_CURVE,
        };
        let keys: Vec<_> = algorithms
            .iter()
            .filter_map(|(name, algorithm)| {
                let key = ParsedPublicKey::new(*algorithm, der).ok()?;
                Some((*name, Key::Public(key)))
            })
            .collect();
        match (keys.is_empty(), kind) {
            (false, _) => Ok(Self { keys }),
            (true, PublicKeyKind::Rsa) => Err(KeyError::Rsa),
            (true, PublicKeyKind::EllipticCurve) => Err(KeyError::EllipticCurve),
        }
    }

    /// The claims of a token whose signature is good. They are not looked at before it was found to be.
    pub(super) fn claims(&self, token: &str) -> Result<Map<String, Value>, TokenError> {
        if token.len() > TOKEN_LEN_MAX {
            return Err(TokenError::TooLarge);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let decode = |part: &str| {
            URL_SAFE_NO_PAD
                .decode(part)
                .map_err(|_| TokenError::Malformed)
        };
        let header: Header =
            serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Malformed)?;
        if header.crit.is_some() || header.zip.is_some() {
            return Err(TokenError::Extension);
        }
        let key = self.keys.iter().find(|(name, _)| *name == header.alg);
        let (_, key) = key.ok_or(TokenError::Algorithm)?;
        let signature = decode(signature)?;
        let good = match key {
            Key::Secret(key) => hmac::verify(key, signed.as_bytes(), &signature).is_ok(),
            Key::Public(key) => key.verify_sig(signed.as_bytes(), &signature).is_ok(),
        };
        if !good {
            return Err(TokenError::Signature);
        }
        serde_json::from_slice(&decode(claims)?).map_err(|_| TokenError::Malformed)
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.keys.iter().map(|(name, _)| name))
            .finish()
    }
}

/// The JOSE header, as far as it matters.
#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions that have to be understood.
    crit: Option<Value>,
    /// Compression.
    zip: Option<Value>,
}

type Algorithms = &'static [(&'static str, &'static dyn VerificationAlgorithm)];
const RSA: Algorithms = &[
    ("RS256", &signature::RSA_PKCS1_2048_8192_SHA256),
    ("RS384", &signature::RSA_PKCS1_2048_8192_SHA384),
    ("RS512", &signature::RSA_PKCS1_2048_8192_SHA512),
    ("PS256", &signature::RSA_PSS_2048_8192_SHA256),
    ("PS384", &signature::RSA_PSS_2048_8192_SHA384),
    ("PS512", &signature::RSA_PSS_2048_8192_SHA512),
];
const ELLIPTIC_CURVE: Algorithms = &[
    ("ES256", &signature::ECDSA_P256_SHA256_FIXED),
    ("ES384", &signature::ECDSA_P384_SHA384_FIXED),
    ("ES512", &signature::ECDSA_P521_SHA512_FIXED),
];
/// Largest token that is looked at, in bytes.
pub(super) const TOKEN_LEN_MAX: usize = 64 * 1024;
