//! TLS versions and cipher suites by the names that settings give them: Java's, which are those of IANA, and OpenSSL's.

/// Which versions and cipher suites TLS may use. Both empty, the default, allow all that there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsParameters {
    /// The versions; empty: all.
    pub versions: Vec<TlsVersion>,
    /// The cipher suites, the preferred ones first; empty: all.
    pub cipher_suites: Vec<TlsCipherSuite>,
}

/// A version of TLS. Older ones than these are not safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    V12,
    /// TLS 1.3.
    V13,
}

impl TlsVersion {
    /// The version of Java's name, also in OpenSSL's spelling of 1.2.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "TLSv1.2" => Some(Self::V12),
            "TLSv1.3" => Some(Self::V13),
            _ => None,
        }
    }
}

/// Makes the enum and its table of names.
macro_rules! cipher_suites {
    ($($variant:ident $version:ident $iana:literal $openssl:literal;)*) => {
        /// A cipher suite, by its name at IANA. All have forward secrecy and authenticated encryption.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names say it")]
        pub enum TlsCipherSuite {
            $($variant),*
        }

        impl TlsCipherSuite {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// IANA's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $iana),*
                }
            }

            /// The version of TLS that it belongs to.
            #[must_use]
            pub fn version(self) -> TlsVersion {
                match self {
                    $(Self::$variant => TlsVersion::$version),*
                }
            }

            fn openssl_name(self) -> &'static str {
                match self {
                    $(Self::$variant => $openssl),*
                }
            }
        }
    };
}

cipher_suites! {
    Aes256GcmSha384 V13 "TLS_AES_256_GCM_SHA384" "TLS_AES_256_GCM_SHA384";
    Aes128GcmSha256 V13 "TLS_AES_128_GCM_SHA256" "TLS_AES_128_GCM_SHA256";
    Chacha20Poly1305Sha256 V13 "TLS_CHACHA20_POLY1305_SHA256" "TLS_CHACHA20_POLY1305_SHA256";
    EcdheEcdsaAes256GcmSha384 V12 "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" "ECDHE-ECDSA-AES256-GCM-SHA384";
    EcdheEcdsaAes128GcmSha256 V12 "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" "ECDHE-ECDSA-AES128-GCM-SHA256";
    EcdheEcdsaChacha20Poly1305Sha256 V12 "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" "ECDHE-ECDSA-CHACHA20-POLY1305";
    EcdheRsaAes256GcmSha384 V12 "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" "ECDHE-RSA-AES256-GCM-SHA384";
    EcdheRsaAes128GcmSha256 V12 "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" "ECDHE-RSA-AES128-GCM-SHA256";
    EcdheRsaChacha20Poly1305Sha256 V12 "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" "ECDHE-RSA-CHACHA20-POLY1305";
}

impl TlsCipherSuite {
    /// The suite of a name, whichever of the two ways it is spelt.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let named = |suite: &&Self| {
            suite.name().eq_ignore_ascii_case(name)
                || suite.openssl_name().eq_ignore_ascii_case(name)
        };
        Self::ALL.iter().find(named).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_have_the_names_of_iana_and_of_openssl() {
        for suite in TlsCipherSuite::ALL {
            assert_eq!(TlsCipherSuite::parse(suite.name()), Some(*suite));
            assert_eq!(TlsCipherSuite::parse(suite.openssl_name()), Some(*suite));
        }
        let lower = TlsCipherSuite::parse("ecdhe-rsa-aes128-gcm-sha256");
        assert_eq!(lower, Some(TlsCipherSuite::EcdheRsaAes128GcmSha256));
        for unknown in ["TLS_RSA_WITH_AES_128_CBC_SHA", "HIGH", "!aNULL", ""] {
            assert_eq!(TlsCipherSuite::parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn versions_that_are_not_safe_are_none() {
        assert_eq!(TlsVersion::parse("TLSv1.2"), Some(TlsVersion::V12));
        assert_eq!(TlsVersion::parse("TLSv1.3"), Some(TlsVersion::V13));
        for unknown in ["TLSv1.1", "TLSv1", "SSLv3", "1.3"] {
            assert_eq!(TlsVersion::parse(unknown), None, "{unknown}");
        }
    }
}
