//! Settings of the clients: Apache Pulsar's `client.conf`, environment and flags.

use std::path::{Path, PathBuf};

use super::authentication::{self, AuthenticationSettings, CertificateFiles, Refused};
use super::build::{BOOLEAN, Builder, boolean, refusal};
use super::credential::{CredentialError, CredentialSource, read_credential_file};
use super::keys::{KeySpec, KeyStatus, is_secret, keys};
use super::problem::{ConfigErrors, Problem};
use super::raw::Sources;
use crate::naming::{BrokerAddress, ServiceUrl};

/// Settings of a client: plain data, validated, built once by [`load_client`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSettings {
    /// `brokerServiceUrl`: the brokers, or the proxy in front of them.
    pub service_url: ServiceUrl,
    /// `authPlugin` and `authParams`.
    pub authentication: AuthenticationSettings,
    /// The settings of TLS.
    pub tls: ClientTlsSettings,
    /// `listenerName`: which of the brokers' advertised listeners lookups ask for.
    pub listener_name: Option<String>,
    /// `proxyServiceUrl` with `proxyProtocol` SNI: where connections with TLS go, whoever they are for.
    pub sni_proxy: Option<BrokerAddress>,
}

/// Settings of TLS. The files could be read when the settings were loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTlsSettings {
    /// `tlsTrustCertsFilePath`: PEM certificates of the trusted issuers; `None`: those of the operating system.
    pub trust_certificates: Option<PathBuf>,
    /// `tlsCertificateFilePath` and `tlsKeyFilePath`, or the files in `authParams`.
    pub identity: Option<CertificateFiles>,
    /// `tlsAllowInsecureConnection`: take any certificate.
    pub allow_insecure: bool,
    /// `tlsEnableHostnameVerification`.
    pub verify_host_name: bool,
}

/// Valid settings, and what is worth telling whoever wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedClient {
    /// The settings.
    pub settings: ClientSettings,
    /// To be logged or printed once.
    pub warnings: Vec<Problem>,
}

/// Reads all sources and builds the settings of a client. Files of certificates and tokens are looked at, so that a wrong path
/// is a problem of the settings and not of the first connection.
///
/// # Errors
/// With everything that is wrong in any source.
pub fn load_client(sources: &Sources) -> Result<LoadedClient, ConfigErrors> {
    let mut builder = Builder::new(sources, CLIENT_KEYS);
    builder.refuse_unsupported();
    let service_url = service_url(&mut builder);
    let settings = ClientSettings {
        authentication: authentication(&mut builder),
        listener_name: builder.text("listenerName").map(str::to_owned),
        sni_proxy: sni_proxy(&mut builder, &service_url),
        tls: ClientTlsSettings {
            trust_certificates: certificate_file(&mut builder, "tlsTrustCertsFilePath"),
            identity: identity(&mut builder, "tlsCertificateFilePath", "tlsKeyFilePath"),
            allow_insecure: builder.parse("tlsAllowInsecureConnection", false, BOOLEAN, boolean),
            verify_host_name: builder.parse(
                "tlsEnableHostnameVerification",
                true,
                BOOLEAN,
                boolean,
            ),
        },
        service_url,
    };
    let settings = merge_certificate(&mut builder, settings);
    let Builder {
        problems, warnings, ..
    } = builder;
    if problems.is_empty() {
        Ok(LoadedClient { settings, warnings })
    } else {
        Err(ConfigErrors { problems, warnings })
    }
}

fn service_url(builder: &mut Builder) -> ServiceUrl {
    let default = BrokerAddress {
        host: "localhost".to_owned(),
        port: 6650,
        tls: false,
    };
    builder.parse(
        "brokerServiceUrl",
        default.into(),
        "pulsar://host:port[,host:port] or pulsar+ssl://host:port[,host:port]",
        |text| text.parse().ok(),
    )
}

fn authentication(builder: &mut Builder) -> AuthenticationSettings {
    let plugin = builder.text("authPlugin").unwrap_or_default().to_owned();
    let params = builder.text("authParams").unwrap_or_default().to_owned();
    if plugin.is_empty() {
        if !params.is_empty() {
            let problem = Problem::new(
                builder.origin("authParams"),
                "authParams",
                "is of no use without authPlugin",
            );
            builder.problems.push(problem);
        }
        return AuthenticationSettings::None;
    }
    let settings = match authentication::parse(&plugin, &params) {
        Ok(settings) => settings,
        Err(refused) => {
            let problem = match refused {
                Refused::Plugin(_) => {
                    let what = refusal(CLIENT_KEYS, "authPlugin", &plugin);
                    Problem::new(builder.origin("authPlugin"), "authPlugin", what).expected(PLUGINS)
                }
                Refused::Params(what) => {
                    Problem::new(builder.origin("authParams"), "authParams", what).expected(PARAMS)
                }
            };
            builder.problems.push(problem);
            return AuthenticationSettings::None;
        }
    };
    if let AuthenticationSettings::Token(source) = &settings {
        check_source(builder, source);
    }
    settings
}

/// A token that cannot be read now is a mistake; what it is later is seen later.
fn check_source(builder: &mut Builder, source: &CredentialSource) {
    if let Err(error) = source.read() {
        let problem = Problem::new(
            builder.origin("authParams"),
            "authParams",
            error.to_string(),
        );
        builder.problems.push(problem);
    }
}

fn sni_proxy(builder: &mut Builder, service_url: &ServiceUrl) -> Option<BrokerAddress> {
    let (url, protocol) = ("proxyServiceUrl", "proxyProtocol");
    let proxy = builder.parse(url, None, "pulsar+ssl://host:port or host:port", |text| {
        BrokerAddress::from_host_port(text).ok().map(Some)
    });
    let is_sni = builder.parse(protocol, false, "SNI", |text| {
        text.eq_ignore_ascii_case("SNI").then_some(true)
    });
    let problem = match (
        builder.text(url).is_some(),
        builder.text(protocol).is_some(),
    ) {
        (true, false) => Some((url, "is of no use without proxyProtocol", "SNI")),
        (false, true) => Some((
            protocol,
            "is of no use without proxyServiceUrl",
            "its address",
        )),
        (true, true) if is_sni && !service_url.tls() => Some((
            protocol,
            "needs TLS: the proxy learns from it which broker is meant",
            "a brokerServiceUrl of the form pulsar+ssl://host:port",
        )),
        _ => None,
    };
    if let Some((key, what, expected)) = problem {
        let problem = Problem::new(builder.origin(key), key, what).expected(expected);
        builder.problems.push(problem);
    }
    proxy.filter(|_| is_sni)
}

/// The path of a PEM file that can be read.
pub(super) fn certificate_file(builder: &mut Builder, key: &'static str) -> Option<PathBuf> {
    let path = PathBuf::from(builder.text(key)?);
    check_pem(builder, key, &path).then_some(path)
}

fn check_pem(builder: &mut Builder, key: &'static str, path: &Path) -> bool {
    let what = match read_pem(path) {
        Ok(true) => return true,
        Ok(false) => format!("{} holds nothing in PEM form", path.display()),
        Err(error) => error.to_string(),
    };
    let problem = Problem::new(builder.origin(key), key, what).expected("a readable PEM file");
    builder.problems.push(problem);
    false
}

fn read_pem(path: &Path) -> Result<bool, CredentialError> {
    let bytes = read_credential_file(path)?;
    Ok(bytes.windows(PEM.len()).any(|window| window == PEM))
}

/// The PEM files of a certificate and its key: both or none.
pub(super) fn identity(
    builder: &mut Builder,
    certificate_key: &'static str,
    key_key: &'static str,
) -> Option<CertificateFiles> {
    let present = [certificate_key, key_key].map(|key| builder.text(key).is_some());
    let certificate = certificate_file(builder, certificate_key);
    let key = certificate_file(builder, key_key);
    let lone = match present {
        [true, false] => Some((certificate_key, key_key)),
        [false, true] => Some((key_key, certificate_key)),
        _ => None,
    };
    if let Some((given, missing)) = lone {
        let what = format!("is of no use without {missing}");
        let problem = Problem::new(builder.origin(given), given, what);
        builder.problems.push(problem);
    }
    Some(CertificateFiles {
        certificate: certificate?,
        key: key?,
    })
}

/// The files in `authParams` of the TLS plugin are the identity, and win over the others, as in Apache's client.
fn merge_certificate(builder: &mut Builder, mut settings: ClientSettings) -> ClientSettings {
    let AuthenticationSettings::Tls(files) = &settings.authentication else {
        return settings;
    };
    match files {
        Some(files) => {
            let readable =
                [&files.certificate, &files.key].map(|path| check_pem(builder, "authParams", path));
            if readable == [true, true] {
                settings.tls.identity = Some(files.clone());
            }
        }
        None if settings.tls.identity.is_none() => {
            let problem = Problem::new(builder.origin("authPlugin"), "authPlugin", "there is no client certificate")
                .expected("tlsCertFile and tlsKeyFile in authParams, or tlsCertificateFilePath and tlsKeyFilePath");
            builder.problems.push(problem);
        }
        None => {}
    }
    if !settings.service_url.tls() {
        let problem = Problem::new(
            builder.origin("authPlugin"),
            "authPlugin",
            "a certificate needs TLS",
        )
        .expected("a brokerServiceUrl of the form pulsar+ssl://host:port");
        builder.problems.push(problem);
    }
    settings
}

const PLUGINS: &str = "token, basic, tls or none, or the class AuthenticationToken, AuthenticationBasic or \
     AuthenticationTls of org.apache.pulsar.client.impl.auth";
const PARAMS: &str = "token:JWT, file:///path or env:NAME for token; {\"userId\":\"..\",\"password\":\"..\"} for basic; \
     tlsCertFile:path,tlsKeyFile:path for tls";
const PEM: &[u8] = b"-----BEGIN ";

/// All settings of the clients, in the order of `docs/configuration.md`. The Apache names are those of `client.conf` of the
/// releases 4.0 to 4.2 and of what the Apache tools read besides.
pub const CLIENT_KEYS: &[KeySpec] = keys! {
    "brokerServiceUrl" ["pulsar://localhost:6650", "pulsar://localhost:6650/"] Used: "service URL of the brokers or of a proxy, `pulsar://host:port[,host:port]`, with TLS `pulsar+ssl://`";
    "webServiceUrl" ["", "http://localhost:8080/"] ForOthers: "base URL of the brokers' HTTP service, which administrating tools use";
    "serviceUrl" [""] AliasOf("brokerServiceUrl"): "";
    "listenerName" [""] Used: "which of the brokers' `advertisedListeners` lookups ask for";
    "proxyServiceUrl" [""] Used: "address of a proxy that tells brokers apart by the server name in TLS; with `proxyProtocol`";
    "proxyServiceURL" [""] AliasOf("proxyServiceUrl"): "";
    "proxyProtocol" [""] Used: "`SNI`, the one protocol of such proxies (PIP-60)";
    "authPlugin" [""] Used: "`token`, `basic`, `tls` or `none`, or the class of Apache's plugin";
    @secret "authParams" [""] Used: "its parameters: `token:JWT`, `file:///path`, `env:NAME`; `{\"userId\":\"..\",\"password\":\"..\"}`; `tlsCertFile:path,tlsKeyFile:path`";
    "tlsTrustCertsFilePath" [""] Used: "PEM file of the issuers that are trusted; without it those that the operating system trusts";
    "tlsAllowInsecureConnection" ["false"] Used: "accept any certificate of any server";
    "tlsEnableHostnameVerification" ["true"] Used: "check that the certificate is for the host that is connected to; Apache's file says `false`";
    "tlsCertificateFilePath" [""] Used: "PEM file of the client certificate and those between it and its issuer; with `tlsKeyFilePath`";
    "tlsKeyFilePath" [""] Used: "PEM file of its private key: PKCS#8, PKCS#1 or SEC1";
    "useTls" ["false"] NoEffect: "the scheme of the service URL decides";
    "useKeyStoreTls" ["false"] RefusedWhenOn: "Java key stores in place of PEM files";
    "tlsTrustStoreType" ["JKS"] NoEffect: "type of the trust store";
    "tlsTrustStorePath" [""] NoEffect: "trust store";
    @secret "tlsTrustStorePassword" [""] NoEffect: "password of the trust store";
    "tlsKeyStoreType" ["JKS"] NoEffect: "type of the key store";
    "tlsKeyStorePath" [""] NoEffect: "key store";
    @secret "tlsKeyStorePassword" [""] NoEffect: "password of the key store";
    "webserviceTlsProvider" [""] NoEffect: "Java security provider";
    "sslFactoryPlugin" [""] NoEffect: "Java class that makes TLS contexts";
    "sslFactoryPluginParams" [""] NoEffect: "configuration of that class";
    "memoryLimit" [""] NoEffect: "memory of the Java client";
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FlagValue, Secret};

    fn load(
        text: &str,
        flags: &[(&'static str, &'static str)],
    ) -> Result<LoadedClient, ConfigErrors> {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("client.conf");
        std::fs::write(&path, text).expect("write");
        let flag = |(key, value): &(&'static str, &str)| FlagValue {
            flag: "--flag",
            key,
            value: (*value).to_owned(),
        };
        load_client(&Sources {
            file: Some(path),
            flags: flags.iter().map(flag).collect(),
            ..Sources::default()
        })
    }

    fn problems(text: &str) -> Vec<String> {
        let errors = load(text, &[]).expect_err(text);
        let problem = |problem: &Problem| {
            format!(
                "{}: {}",
                problem.key.clone().unwrap_or_default(),
                problem.what
            )
        };
        errors.problems.iter().map(problem).collect()
    }

    #[test]
    fn apaches_file_as_it_is_shipped_loads_in_silence() {
        let mut text = String::new();
        for spec in CLIENT_KEYS
            .iter()
            .filter(|spec| !matches!(spec.status, KeyStatus::AliasOf(_)))
        {
            text.push_str(&format!(
                "{}={}\n",
                spec.name,
                spec.defaults.last().expect("a default")
            ));
        }
        let loaded = load(&text, &[]).expect("valid");
        assert_eq!(loaded.warnings, Vec::new());
        let web = load("webServiceUrl=https://admin.example:8443/", &[]).expect("valid");
        assert_eq!(web.warnings, Vec::new());
        assert_eq!(loaded, load("", &[]).expect("valid"));
        assert_eq!(
            loaded.settings.service_url.to_string(),
            "pulsar://localhost:6650"
        );
        assert_eq!(loaded.settings.authentication, AuthenticationSettings::None);
        assert!(loaded.settings.tls.verify_host_name);
        let off = load("tlsEnableHostnameVerification=false", &[]).expect("valid");
        assert!(!off.settings.tls.verify_host_name);
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = "brokerServiceUrl=pulsar://a:1\nauthPlugin=token\nauthParams=token:file";
        let loaded = load(
            file,
            &[
                ("brokerServiceUrl", "pulsar+ssl://b"),
                ("authParams", "token:flag"),
            ],
        );
        let settings = loaded.expect("valid").settings;
        assert_eq!(settings.service_url.to_string(), "pulsar+ssl://b:6651");
        let token = CredentialSource::Text(Secret::new("flag"));
        assert_eq!(
            settings.authentication,
            AuthenticationSettings::Token(token)
        );
    }

    #[test]
    fn a_proxy_by_server_name_needs_both_settings_and_tls() {
        let sni = "proxyServiceUrl=pulsar+ssl://p:4443\nproxyProtocol=sni\n";
        let settings = load(&format!("{sni}brokerServiceUrl=pulsar+ssl://b:1"), &[])
            .expect("valid")
            .settings;
        assert_eq!(
            settings.sni_proxy.map(|proxy| proxy.to_string()),
            Some("p:4443".to_owned())
        );
        assert_eq!(
            problems(sni),
            ["proxyProtocol: needs TLS: the proxy learns from it which broker is meant"]
        );
        assert_eq!(
            problems("proxyServiceUrl=p:1"),
            ["proxyServiceUrl: is of no use without proxyProtocol"]
        );
        assert_eq!(
            problems("proxyProtocol=SNI"),
            ["proxyProtocol: is of no use without proxyServiceUrl"]
        );
    }

    #[test]
    fn everything_wrong_is_listed_and_no_secret_is_printed() {
        let errors = load(
            "brokerServiceUrl=http://b:1\nauthPlugin=basic\nauthParams=hunter2\ntlsTrustCertsFilePath=/does/not/exist\n\
             tlsKeyFilePath=/does/not/exist\ntlsAllowInsecureConnection=maybe\nuseKeyStoreTls=true\n",
            &[],
        )
        .expect_err("wrong");
        let mut keys: Vec<_> = errors
            .problems
            .iter()
            .filter_map(|problem| problem.key.as_deref())
            .collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "authParams",
                "brokerServiceUrl",
                "tlsAllowInsecureConnection",
                "tlsKeyFilePath",
                "tlsKeyFilePath",
                "tlsTrustCertsFilePath",
                "useKeyStoreTls"
            ]
        );
        assert!(!errors.to_string().contains("hunter2"));
        assert_eq!(
            problems("authParams=x"),
            ["authParams: is of no use without authPlugin"]
        );
        assert_eq!(
            problems("authPlugin=x.Y"),
            ["authPlugin: \"x.Y\" is not accepted"]
        );
        assert_eq!(
            problems("authPlugin=token\nauthParams=file:///does/not/exist").len(),
            1
        );
        assert_eq!(problems("authPlugin=tls").len(), 2);
    }

    #[test]
    fn the_files_of_the_plugin_are_the_identity() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let [own, other] = ["own.pem", "other.pem"].map(|name| directory.path().join(name));
        std::fs::write(&own, "-----BEGIN CERTIFICATE-----").expect("write");
        std::fs::write(&other, "-----BEGIN CERTIFICATE-----").expect("write");
        let (own, other) = (own.display(), other.display());
        let tls = "brokerServiceUrl=pulsar+ssl://b:1\n";
        let both = format!(
            "{tls}tlsCertificateFilePath={other}\ntlsKeyFilePath={other}\n\
             authPlugin=tls\nauthParams=tlsCertFile:{own},tlsKeyFile:{own}"
        );
        let files = |path: &dyn std::fmt::Display| {
            let path = PathBuf::from(path.to_string());
            Some(CertificateFiles {
                certificate: path.clone(),
                key: path,
            })
        };
        assert_eq!(
            load(&both, &[]).expect("valid").settings.tls.identity,
            files(&own)
        );
        let settings =
            format!("{tls}tlsCertificateFilePath={other}\ntlsKeyFilePath={other}\nauthPlugin=tls");
        assert_eq!(
            load(&settings, &[]).expect("valid").settings.tls.identity,
            files(&other)
        );
        std::fs::write(directory.path().join("own.pem"), "no certificate").expect("write");
        assert_eq!(problems(&both).len(), 2);
    }
}
