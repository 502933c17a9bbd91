//! The arguments that all client tools share, by the names of `pulsar-client` and `pulsar-perf`.

use std::env;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::client::{ClientOptions, TlsFilesError};
use crate::config::{self, ConfigErrors, FlagValue, LoadedClient, Problem, Secret, Sources};
use crate::naming::ServiceUrl;

/// Where the cluster is and how to get in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Connection")]
pub struct ClientArgs {
    /// Settings file: Apache Pulsar's client.conf as it is, or YAML.
    #[arg(
        long,
        visible_alias = "conf-file",
        value_name = "FILE",
        env = "PULSAR_CLIENT_CONF"
    )]
    pub config: Option<PathBuf>,
    /// The brokers or a proxy: pulsar://host:port,host:port, with TLS pulsar+ssl:// (setting brokerServiceUrl,
    /// default pulsar://localhost:6650).
    #[arg(long, short = 'u', visible_alias = "service-url", value_name = "URL")]
    pub url: Option<String>,
    /// Authentication: token, basic, tls or the class of Apache's plugin (setting authPlugin).
    #[arg(long, value_name = "PLUGIN")]
    pub auth_plugin: Option<String>,
    /// Parameters of the authentication, such as token:JWT, file:///path, env:NAME (setting authParams).
    #[arg(long, value_name = "PARAMS")]
    pub auth_params: Option<HiddenText>,
    /// PEM file of the issuers that are trusted; without it the operating system's (setting tlsTrustCertsFilePath).
    #[arg(
        long = "tlsTrustCertsFilePath",
        visible_aliases = ["trust-cert-file", "tls-trust-cert-path"],
        value_name = "FILE"
    )]
    pub tls_trust_certs_file_path: Option<String>,
    /// PEM file of a client certificate (setting tlsCertificateFilePath).
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<String>,
    /// PEM file of its private key (setting tlsKeyFilePath).
    #[arg(long, value_name = "FILE")]
    pub tls_key_file: Option<String>,
    /// Accept any certificate of any server (setting tlsAllowInsecureConnection).
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub tls_allow_insecure: Option<String>,
    /// Check that certificates are for the host (setting tlsEnableHostnameVerification, default true).
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub tls_enable_hostname_verification: Option<String>,
    /// Which of the brokers' advertised listeners to use (setting listenerName).
    #[arg(long, value_name = "NAME")]
    pub listener_name: Option<String>,
    /// A proxy that tells brokers apart by the server name in TLS (setting proxyServiceUrl); with --proxy-protocol.
    #[arg(long, value_name = "URL")]
    pub proxy_url: Option<String>,
    /// SNI, the one protocol of such proxies (setting proxyProtocol).
    #[arg(long, value_name = "PROTOCOL")]
    pub proxy_protocol: Option<String>,
}

/// What the arguments come to.
#[derive(Debug)]
pub struct ClientTarget {
    /// The address of the cluster.
    pub service_url: ServiceUrl,
    /// For [`PulsarClient::new`](crate::client::PulsarClient::new).
    pub options: ClientOptions,
    /// To be printed once on standard error.
    pub warnings: Vec<Problem>,
}

/// Why arguments come to nothing; each is a mistake of the user ([`EXIT_USAGE`](super::EXIT_USAGE)).
#[derive(Debug, thiserror::Error)]
pub enum ClientArgsError {
    /// Values that are not accepted, each with its place.
    #[error(transparent)]
    Settings(#[from] ConfigErrors),
    /// The certificates or the key cannot be used.
    #[error("the TLS files cannot be used: {0}")]
    TlsFiles(#[from] TlsFilesError),
}

impl ClientArgs {
    /// Reads and checks the settings of every source: file, environment, flags.
    ///
    /// # Errors
    /// With everything that is wrong.
    pub fn load(&self) -> Result<LoadedClient, ConfigErrors> {
        // A variable that is not UTF-8 cannot hold a legal value; its replacement characters make it a reported one.
        let environment = env::vars_os().map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        });
        config::load_client(&self.sources(environment.collect()))
    }

    /// The cluster and the options of a client for it.
    ///
    /// # Errors
    /// See [`ClientArgsError`].
    pub fn target(&self) -> Result<ClientTarget, ClientArgsError> {
        let LoadedClient { settings, warnings } = self.load()?;
        Ok(ClientTarget {
            options: ClientOptions::of_settings(&settings)?,
            service_url: settings.service_url,
            warnings,
        })
    }

    fn sources(&self, environment: Vec<(String, String)>) -> Sources {
        let hidden = self
            .auth_params
            .clone()
            .map(|HiddenText(secret)| secret.reveal().to_owned());
        let flags = [
            ("--url", "brokerServiceUrl", &self.url),
            ("--auth-plugin", "authPlugin", &self.auth_plugin),
            ("--auth-params", "authParams", &hidden),
            (
                "--tlsTrustCertsFilePath",
                "tlsTrustCertsFilePath",
                &self.tls_trust_certs_file_path,
            ),
            (
                "--tls-cert-file",
                "tlsCertificateFilePath",
                &self.tls_cert_file,
            ),
            ("--tls-key-file", "tlsKeyFilePath", &self.tls_key_file),
            (
                "--tls-allow-insecure",
                "tlsAllowInsecureConnection",
                &self.tls_allow_insecure,
            ),
            (
                "--tls-enable-hostname-verification",
                "tlsEnableHostnameVerification",
                &self.tls_enable_hostname_verification,
            ),
            ("--listener-name", "listenerName", &self.listener_name),
            ("--proxy-url", "proxyServiceUrl", &self.proxy_url),
            ("--proxy-protocol", "proxyProtocol", &self.proxy_protocol),
        ];
        let flags = flags.into_iter().filter_map(|(flag, key, value)| {
            let value = value.clone()?;
            Some(FlagValue { flag, key, value })
        });
        Sources {
            file: self.config.clone(),
            environment,
            sets: Vec::new(),
            flags: flags.collect(),
        }
    }
}

/// An argument that is not printed with the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenText(Secret);

impl FromStr for HiddenText {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(Secret::new(text)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::{AuthenticationSettings, ClientSettings, CredentialSource};

    #[derive(Debug, Parser)]
    struct Tool {
        #[command(flatten)]
        client: ClientArgs,
    }

    fn load(arguments: &[&str]) -> Result<ClientSettings, ConfigErrors> {
        let arguments = ["tool"].iter().chain(arguments);
        let client = Tool::try_parse_from(arguments).expect("arguments").client;
        config::load_client(&client.sources(Vec::new())).map(|loaded| loaded.settings)
    }

    #[test]
    fn the_names_of_both_apache_tools_are_taken() {
        let plugin = [
            "--auth-plugin",
            "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        ];
        for url in ["--url", "--service-url", "-u"] {
            let mut arguments = vec![
                url,
                "pulsar+ssl://b:1",
                "--auth-params",
                "token:t",
                "--listener-name",
                "l",
            ];
            arguments.extend(plugin);
            arguments.extend([
                "--tls-allow-insecure",
                "--tls-enable-hostname-verification=false",
            ]);
            let settings = load(&arguments).expect("valid");
            assert_eq!(settings.service_url.to_string(), "pulsar+ssl://b:1");
            let token = CredentialSource::Text(Secret::new("t"));
            assert_eq!(
                settings.authentication,
                AuthenticationSettings::Token(token)
            );
            assert_eq!(settings.listener_name.as_deref(), Some("l"));
            assert!(settings.tls.allow_insecure && !settings.tls.verify_host_name);
        }
        for trust in [
            "--tlsTrustCertsFilePath",
            "--trust-cert-file",
            "--tls-trust-cert-path",
        ] {
            let errors = load(&[trust, "/does/not/exist"]).expect_err(trust);
            assert_eq!(errors.problems.len(), 1);
        }
        let sni = [
            "--proxy-url",
            "p:1",
            "--proxy-protocol",
            "SNI",
            "--url",
            "pulsar+ssl://b:1",
        ];
        assert!(load(&sni).expect("valid").sni_proxy.is_some());
    }

    #[test]
    fn wrong_values_are_listed_by_their_flags() {
        let arguments = [
            "--url",
            "b",
            "--tls-allow-insecure=perhaps",
            "--auth-plugin",
            "x",
            "--auth-params",
            "hunter2",
        ];
        let errors = load(&arguments).expect_err("wrong").to_string();
        for flag in [
            "--url: brokerServiceUrl",
            "--tls-allow-insecure: ",
            "--auth-plugin: ",
        ] {
            assert!(errors.contains(flag), "{errors}");
        }
        assert!(!errors.contains("hunter2"));
        let tool = Tool::try_parse_from(["tool", "--auth-params", "hunter2"]).expect("arguments");
        assert!(!format!("{tool:?}").contains("hunter2"));
    }

    #[test]
    fn files_that_hold_no_certificate_are_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("ca.pem");
        std::fs::write(
            &path,
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        )
        .expect("write");
        let client = ClientArgs {
            url: Some("pulsar+ssl://b:1".to_owned()),
            tls_trust_certs_file_path: Some(path.display().to_string()),
            ..ClientArgs::default()
        };
        let refused = client.target().expect_err("no certificate");
        assert!(matches!(refused, ClientArgsError::TlsFiles(_)), "{refused}");
    }
}
