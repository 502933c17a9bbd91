//! Settings of TLS, towards clients and towards brokers.

use std::path::PathBuf;
use std::time::Duration;

use super::authentication::CertificateFiles;
use super::build::{BOOLEAN, Builder, boolean};
use super::client::{certificate_file, identity};
use super::problem::Problem;
use super::tls_names::{TlsCipherSuite, TlsParameters, TlsVersion};

/// Settings of TLS of a server role. All files could be read when the settings were loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// `servicePortTls`: TCP port of the binary protocol over TLS; 0 picks a free one, `None` is off.
    pub service_port: Option<u16>,
    /// `webServicePortTls`: TCP port of the HTTP endpoints over TLS; 0 picks a free one, `None` is off.
    pub web_service_port: Option<u16>,
    /// `tlsCertificateFilePath` and `tlsKeyFilePath`; never `None` where a port is on.
    pub certificate: Option<CertificateFiles>,
    /// `tlsTrustCertsFilePath`: PEM certificates of the issuers whose client certificates are accepted. `None`: clients are not
    /// asked for a certificate.
    pub trust_certificates: Option<PathBuf>,
    /// `tlsRequireTrustedClientCertOnConnect`: whether clients must have a certificate.
    pub require_client_certificate: bool,
    /// `tlsAllowInsecureConnection`: accept any certificate, of clients and of brokers.
    pub allow_insecure: bool,
    /// `tlsCertRefreshCheckDurationSec`: how often it is looked whether files have changed; zero: at each new connection.
    pub check_period: Duration,
    /// `tlsProtocols` and `tlsCiphers`, of the binary port.
    pub parameters: TlsParameters,
    /// `webServiceTlsProtocols` and `webServiceTlsCiphers`, of the HTTPS port.
    pub web_parameters: TlsParameters,
    /// TLS towards brokers.
    pub brokers: BrokerTlsSettings,
}

/// Settings of TLS towards brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerTlsSettings {
    /// `tlsEnabledWithBroker`, or a `brokerServiceURL` with TLS: brokers are reached at their addresses with TLS, and at no
    /// others.
    pub enabled: bool,
    /// `brokerClientTrustCertsFilePath`, else `tlsTrustCertsFilePath`: PEM certificates of the issuers of brokers. `None`: those
    /// that the operating system trusts.
    pub trust_certificates: Option<PathBuf>,
    /// `brokerClientCertificateFilePath` and `brokerClientKeyFilePath`: what brokers that ask for a certificate get.
    pub identity: Option<CertificateFiles>,
    /// `tlsHostnameVerificationEnabled`: whether the certificate must be for the broker's host.
    pub verify_host_name: bool,
    /// `brokerClientTlsProtocols` and `brokerClientTlsCiphers`.
    pub parameters: TlsParameters,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            service_port: None,
            web_service_port: None,
            certificate: None,
            trust_certificates: None,
            require_client_certificate: false,
            allow_insecure: false,
            check_period: Duration::from_secs(300),
            parameters: TlsParameters::default(),
            web_parameters: TlsParameters::default(),
            brokers: BrokerTlsSettings::default(),
        }
    }
}

impl Default for BrokerTlsSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            trust_certificates: None,
            identity: None,
            verify_host_name: true,
            parameters: TlsParameters::default(),
        }
    }
}

/// Builds the settings; `brokers_with_tls` says whether the brokers' URL is one with TLS.
pub(super) fn build(builder: &mut Builder, brokers_with_tls: bool) -> TlsSettings {
    let defaults = TlsSettings::default();
    let trust_certificates = certificate_file(builder, "tlsTrustCertsFilePath");
    let broker_trust_key = "brokerClientTrustCertsFilePath";
    let broker_trust = if builder.text(broker_trust_key).is_some() {
        certificate_file(builder, broker_trust_key)
    } else {
        trust_certificates.clone()
    };
    let settings = TlsSettings {
        service_port: builder.port("servicePortTls", None),
        web_service_port: builder.port("webServicePortTls", None),
        certificate: identity(builder, "tlsCertificateFilePath", "tlsKeyFilePath"),
        trust_certificates,
        require_client_certificate: builder.parse(
            REQUIRE_CLIENT_CERTIFICATE,
            defaults.require_client_certificate,
            BOOLEAN,
            boolean,
        ),
        allow_insecure: builder.parse(ALLOW_INSECURE, defaults.allow_insecure, BOOLEAN, boolean),
        check_period: Duration::from_secs(builder.number(
            "tlsCertRefreshCheckDurationSec",
            defaults.check_period.as_secs(),
            0,
            YEAR_SECONDS,
        )),
        parameters: parameters(builder, "tlsProtocols", "tlsCiphers"),
        web_parameters: parameters(builder, "webServiceTlsProtocols", "webServiceTlsCiphers"),
        brokers: BrokerTlsSettings {
            enabled: brokers_with_tls,
            trust_certificates: broker_trust,
            identity: identity(
                builder,
                "brokerClientCertificateFilePath",
                "brokerClientKeyFilePath",
            ),
            verify_host_name: builder.parse(
                "tlsHostnameVerificationEnabled",
                defaults.brokers.verify_host_name,
                BOOLEAN,
                boolean,
            ),
            parameters: parameters(
                builder,
                "brokerClientTlsProtocols",
                "brokerClientTlsCiphers",
            ),
        },
    };
    check_together(builder, &settings);
    settings
}

/// What is wrong with several settings together.
fn check_together(builder: &mut Builder, settings: &TlsSettings) {
    let ports = ["servicePortTls", "webServicePortTls"];
    let on = ports.map(|key| builder.text(key).is_some());
    for (key, on) in ports.into_iter().zip(on) {
        let has_files = ["tlsCertificateFilePath", "tlsKeyFilePath"]
            .map(|key| builder.text(key).is_some())
            == [true, true];
        if on && !has_files {
            let problem = Problem::new(builder.origin(key), key, "there is no certificate for it")
                .expected("PEM files in tlsCertificateFilePath and tlsKeyFilePath");
            builder.problems.push(problem);
        }
    }
    let has_port = on.contains(&true);
    if settings.require_client_certificate
        && has_port
        && !settings.allow_insecure
        && builder.text("tlsTrustCertsFilePath").is_none()
    {
        let origin = builder.origin(REQUIRE_CLIENT_CERTIFICATE);
        let what = "there is no issuer whose certificates could be accepted";
        let problem = Problem::new(origin, REQUIRE_CLIENT_CERTIFICATE, what)
            .expected("a PEM file in tlsTrustCertsFilePath");
        builder.problems.push(problem);
    }
    if settings.allow_insecure && (has_port || settings.brokers.enabled) {
        let what = "certificates of clients and of brokers are accepted whoever signed them";
        let warning = Problem::new(builder.origin(ALLOW_INSECURE), ALLOW_INSECURE, what);
        builder.warnings.push(warning);
    }
}

/// Versions and cipher suites of one side. What is not known is an error that names it: left out in silence, it could leave less
/// protection than was asked for.
fn parameters(
    builder: &mut Builder,
    versions_key: &'static str,
    suites_key: &'static str,
) -> TlsParameters {
    let versions = builder.list(versions_key, "TLSv1.2, TLSv1.3 or both", TlsVersion::parse);
    let names: Vec<_> = TlsCipherSuite::ALL
        .iter()
        .map(|suite| suite.name())
        .collect();
    let expected = format!("of {}, comma separated", names.join(", "));
    let suites = builder.list(suites_key, &expected, TlsCipherSuite::parse);
    let parameters = TlsParameters {
        versions: versions.unwrap_or_default(),
        cipher_suites: suites.unwrap_or_default(),
    };
    let usable = |suite: &TlsCipherSuite| {
        parameters.versions.is_empty() || parameters.versions.contains(&suite.version())
    };
    if !parameters.cipher_suites.is_empty() && !parameters.cipher_suites.iter().any(usable) {
        let what = format!("none of these is of a version in {versions_key}");
        let problem = Problem::new(builder.origin(suites_key), suites_key, what);
        builder.problems.push(problem);
    }
    parameters
}

const REQUIRE_CLIENT_CERTIFICATE: &str = "tlsRequireTrustedClientCertOnConnect";
const ALLOW_INSECURE: &str = "tlsAllowInsecureConnection";
const YEAR_SECONDS: u64 = 366 * 86_400;

#[cfg(test)]
mod tests {
    use super::super::{ConfigErrors, GatewaySettings, LoadedGateway, Sources, load_gateway};
    use super::*;

    const BROKER: &str = "brokerServiceURL=pulsar://b:1";

    fn load(sets: &[&str]) -> Result<LoadedGateway, ConfigErrors> {
        load_gateway(&Sources {
            sets: sets.iter().map(|set| (*set).to_owned()).collect(),
            ..Sources::default()
        })
    }

    fn settings(sets: &[&str]) -> GatewaySettings {
        let loaded = load(sets).unwrap_or_else(|errors| panic!("{sets:?}: {errors}"));
        loaded.settings
    }

    /// The problems as `key: what`.
    fn problems(sets: &[&str]) -> Vec<String> {
        let errors = load(sets).expect_err("problems");
        let short = |problem: &Problem| {
            let key = problem.key.as_deref().unwrap_or_default();
            format!("{key}: {}", problem.what)
        };
        errors.problems.iter().map(short).collect()
    }

    /// A PEM file, and `KEY=path` for it.
    struct Pem(tempfile::NamedTempFile);

    impl Pem {
        fn new() -> Self {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), "-----BEGIN CERTIFICATE-----").expect("write");
            Self(file)
        }

        fn of(&self, key: &str) -> String {
            format!("{key}={}", self.0.path().display())
        }
    }

    #[test]
    fn a_tls_port_needs_a_certificate_and_may_stand_alone() {
        let missing = "servicePortTls: there is no certificate for it";
        assert_eq!(problems(&[BROKER, "servicePortTls=6651"]), [missing]);
        let pem = Pem::new();
        let [certificate, key] =
            ["tlsCertificateFilePath", "tlsKeyFilePath"].map(|key| pem.of(key));
        let lone = problems(&[BROKER, "servicePortTls=0", &certificate]);
        assert_eq!(
            lone,
            [
                "tlsCertificateFilePath: is of no use without tlsKeyFilePath",
                missing
            ]
        );
        let files = [certificate.as_str(), key.as_str()];
        let both = settings(&[
            BROKER,
            "servicePortTls=6651",
            "webServicePortTls=8443",
            files[0],
            files[1],
        ]);
        assert_eq!(both.service_port, Some(6650));
        assert_eq!(both.tls.service_port, Some(6651));
        assert_eq!(both.tls.web_service_port, Some(8443));
        let alone = settings(&[
            BROKER,
            "servicePort=",
            "servicePortTls=0",
            files[0],
            files[1],
        ]);
        assert_eq!(alone.service_port, None);
        assert_eq!(
            problems(&[BROKER, "servicePort=", "servicePortTls="]),
            ["servicePort: without it and without servicePortTls no client could connect"]
        );
        assert_eq!(
            problems(&[BROKER, "servicePortTls=6650", files[0], files[1]]),
            ["servicePortTls: 6650 is the servicePort too"]
        );
    }

    #[test]
    fn client_certificates_can_be_required_of_known_issuers_only() {
        let pem = Pem::new();
        let [certificate, key, trusted] = [
            "tlsCertificateFilePath",
            "tlsKeyFilePath",
            "tlsTrustCertsFilePath",
        ]
        .map(|key| pem.of(key));
        let require = "tlsRequireTrustedClientCertOnConnect=true";
        let port = vec![BROKER, "servicePortTls=0", &certificate, &key, require];
        assert_eq!(
            problems(&port),
            [
                "tlsRequireTrustedClientCertOnConnect: there is no issuer whose certificates could be accepted"
            ]
        );
        let required = [&port[..], &[trusted.as_str()]].concat();
        assert!(settings(&required).tls.require_client_certificate);
        let insecure = [&port[..], &["tlsAllowInsecureConnection=true"]].concat();
        let insecure = load(&insecure).expect("valid");
        assert!(insecure.settings.tls.allow_insecure);
        assert_eq!(insecure.warnings.len(), 1);
        // Without a TLS port nobody is asked.
        assert!(load(&[BROKER, require]).is_ok());
    }

    #[test]
    fn brokers_are_reached_with_tls_by_the_setting_or_by_the_scheme() {
        let tls_url = "brokerServiceURLTLS=pulsar+ssl://b:2";
        let on = "tlsEnabledWithBroker=true";
        let url = |sets: &[&str]| {
            let settings = settings(sets);
            assert_eq!(settings.broker.tls(), settings.tls.brokers.enabled);
            settings.broker.to_string()
        };
        assert_eq!(url(&[BROKER]), "pulsar://b:1");
        assert_eq!(url(&[BROKER, tls_url]), "pulsar://b:1");
        assert_eq!(url(&[BROKER, tls_url, on]), "pulsar+ssl://b:2");
        assert_eq!(url(&[tls_url, on]), "pulsar+ssl://b:2");
        assert_eq!(
            url(&["brokerServiceURL=pulsar+ssl://b"]),
            "pulsar+ssl://b:6651"
        );
        assert_eq!(
            url(&["brokerServiceURL=pulsar+ssl://b", on]),
            "pulsar+ssl://b:6651"
        );
        let without = "names addresses without TLS, and tlsEnabledWithBroker is on";
        assert_eq!(
            problems(&[BROKER, on]),
            [format!("brokerServiceURL: {without}")]
        );
        assert_eq!(
            problems(&["brokerServiceURLTLS=pulsar://b:2", on]),
            [format!("brokerServiceURLTLS: {without}")]
        );
        assert_eq!(problems(&[tls_url]), ["brokerServiceURL: missing"]);
    }

    #[test]
    fn brokers_issuers_are_those_of_clients_unless_there_are_others() {
        let (clients, brokers) = (Pem::new(), Pem::new());
        let of_clients = clients.of("tlsTrustCertsFilePath");
        let of_brokers = brokers.of("brokerClientTrustCertsFilePath");
        let trusted = |sets: &[&str]| settings(sets).tls.brokers.trust_certificates;
        assert_eq!(trusted(&[BROKER]), None);
        assert_eq!(
            trusted(&[BROKER, &of_clients]),
            Some(clients.0.path().to_owned())
        );
        assert_eq!(
            trusted(&[BROKER, &of_clients, &of_brokers]),
            Some(brokers.0.path().to_owned())
        );
    }

    #[test]
    fn versions_and_cipher_suites_are_known_or_named_in_the_problem() {
        let parameters = settings(&[
            BROKER,
            "tlsProtocols=TLSv1.3, TLSv1.2",
            "tlsCiphers=TLS_AES_256_GCM_SHA384,ECDHE-RSA-AES128-GCM-SHA256",
            "webServiceTlsProtocols=TLSv1.3",
        ])
        .tls;
        assert_eq!(
            parameters.parameters.versions,
            [TlsVersion::V13, TlsVersion::V12]
        );
        assert_eq!(
            parameters.parameters.cipher_suites,
            [
                TlsCipherSuite::Aes256GcmSha384,
                TlsCipherSuite::EcdheRsaAes128GcmSha256
            ]
        );
        assert_eq!(parameters.web_parameters.versions, [TlsVersion::V13]);
        assert_eq!(
            problems(&[
                BROKER,
                "tlsProtocols=TLSv1.3,TLSv1.1",
                "tlsCiphers=TLS_RSA_WITH_AES_128_CBC_SHA",
                "brokerClientTlsProtocols=SSLv3",
                "webServiceTlsProtocols=TLSv1.2",
                "webServiceTlsCiphers=TLS_AES_256_GCM_SHA384",
            ]),
            [
                "tlsProtocols: \"TLSv1.1\" is not accepted",
                "tlsCiphers: \"TLS_RSA_WITH_AES_128_CBC_SHA\" is not accepted",
                "webServiceTlsCiphers: none of these is of a version in webServiceTlsProtocols",
                "brokerClientTlsProtocols: \"SSLv3\" is not accepted",
            ]
        );
    }

    #[test]
    fn files_that_cannot_be_used_are_all_named() {
        let missing = |key: &str| format!("{key}=/does/not/exist");
        let keys = [
            "brokerClientCertificateFilePath",
            "brokerClientKeyFilePath",
            "brokerClientTrustCertsFilePath",
            "tlsCertificateFilePath",
            "tlsKeyFilePath",
            "tlsTrustCertsFilePath",
        ];
        let sets: Vec<String> = keys.iter().map(|key| missing(key)).collect();
        let mut sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        sets.push(BROKER);
        let mut found = problems(&sets);
        found.sort_unstable();
        assert_eq!(found.len(), keys.len());
        for (problem, key) in found.iter().zip(keys) {
            assert!(
                problem.starts_with(&format!("{key}: /does/not/exist")),
                "{problem}"
            );
        }
    }
}
