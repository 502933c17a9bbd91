//! From the settings of a client to its options.

use std::sync::Arc;

use super::{
    authentication::Authentication,
    connection::ConnectionOptions,
    pulsar_client::ClientOptions,
    tls::{TlsFilePaths, TlsFiles, TlsFilesError, TlsSource},
};
use crate::config::{AuthenticationSettings, ClientSettings, TlsParameters};

impl Authentication {
    /// The authentication that settings ask for.
    pub fn of_settings(settings: &AuthenticationSettings) -> Self {
        match settings {
            AuthenticationSettings::None => Self::none(),
            AuthenticationSettings::Token(source) => Self::token(source.clone()),
            AuthenticationSettings::Basic { user_id, password } => Self::basic(user_id, password),
            AuthenticationSettings::Tls(_) => Self::tls(),
        }
    }
}

impl ClientOptions {
    /// The default options with what settings say; the service URL is [`ClientSettings::service_url`].
    ///
    /// # Errors
    /// When the TLS files cannot be used.
    pub fn of_settings(settings: &ClientSettings) -> Result<Self, TlsFilesError> {
        let tls = &settings.tls;
        let paths = TlsFilePaths {
            trusted: tls.trust_certificates.clone(),
            identity: tls
                .identity
                .clone()
                .map(|files| (files.certificate, files.key)),
            allow_insecure: tls.allow_insecure,
            verify_host_name: tls.verify_host_name,
            parameters: TlsParameters::default(),
        };
        // Without TLS nothing is read: the operating system may have no trusted issuers at all.
        let tls = if settings.service_url.tls() {
            TlsSource::Files(Arc::new(TlsFiles::open(paths)?))
        } else {
            TlsSource::System
        };
        Ok(Self {
            connection: ConnectionOptions {
                authentication: Authentication::of_settings(&settings.authentication),
                tls,
                sni_proxy: settings.sni_proxy.clone(),
                ..ConnectionOptions::default()
            },
            listener_name: settings.listener_name.clone(),
            ..Self::default()
        })
    }
}
