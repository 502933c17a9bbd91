//! TLS of a gateway: towards clients, of the HTTPS port, and towards brokers; and what metrics say of its files.

use std::path::Path;
use std::sync::Arc;

use crate::client::{TlsFilePaths, TlsFiles, TlsFilesError, TlsSource};
use crate::config::{CertificateFiles, TlsParameters, TlsSettings};
use crate::net::{ClientRules, TlsServerFiles, TlsServerFilesError, TlsServerPaths};
use crate::telemetry::{MetricKind, MetricRegistry, write_header, write_sample};

/// What the settings ask for, with the files read.
#[derive(Debug)]
pub(crate) struct GatewayTls {
    /// Of the binary port with TLS.
    pub(crate) clients: Option<Arc<TlsServerFiles>>,
    /// Of the HTTPS port.
    pub(crate) web: Option<Arc<TlsServerFiles>>,
    /// Of connections to brokers.
    pub(crate) brokers: TlsSource,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsStartError {
    /// Towards clients.
    #[error("TLS towards clients: {0}")]
    Clients(#[from] TlsServerFilesError),
    /// There is a port, and no certificate for it.
    #[error("tlsCertificateFilePath and tlsKeyFilePath are not set, and a TLS port is")]
    NoCertificate,
    /// Towards brokers.
    #[error("TLS towards brokers: {files}: {error}")]
    Brokers {
        /// The files that it is about.
        files: String,
        /// What is wrong.
        error: TlsFilesError,
    },
}

impl GatewayTls {
    /// Reads the files.
    ///
    /// # Errors
    /// See [`TlsStartError`].
    pub(crate) fn open(settings: &TlsSettings) -> Result<Self, TlsStartError> {
        let server = |port: Option<u16>, parameters: &TlsParameters| match port {
            None => Ok(None),
            Some(_) => server_files(settings, parameters).map(Some),
        };
        Ok(Self {
            clients: server(settings.service_port, &settings.parameters)?,
            web: server(settings.web_service_port, &settings.web_parameters)?,
            brokers: brokers(settings)?,
        })
    }

    /// Adds the metrics of the files, where there are any.
    pub(crate) fn register(&self, registry: &MetricRegistry) {
        let cluster = registry.cluster().to_owned();
        let servers = [("clients", &self.clients), ("https", &self.web)];
        let servers: Vec<_> = servers
            .into_iter()
            .filter_map(|(side, files)| Some((side, Arc::clone(files.as_ref()?))))
            .collect();
        let brokers = match &self.brokers {
            TlsSource::Files(files) => Some(Arc::clone(files)),
            TlsSource::System | TlsSource::Client(_) => None,
        };
        if servers.is_empty() && brokers.is_none() {
            return;
        }
        registry.add_collector(Box::new(move |out| {
            // Asking is also what notices a replacement where no connection comes; the next scrape tells it.
            let servers = servers.iter().map(|(side, files)| {
                let expires_at = files.latest_server().expires_at();
                (*side, files.is_up_to_date(), expires_at)
            });
            let brokers = brokers.iter().map(|files| {
                let expires_at = files.latest_client().expires_at();
                ("brokers", files.is_up_to_date(), expires_at)
            });
            render(&cluster, &servers.chain(brokers).collect::<Vec<_>>(), out);
        }));
    }
}

/// A side, whether its files were of use at the last look, and when its certificate expires.
type FileState = (&'static str, bool, Option<i64>);

fn render(cluster: &str, states: &[FileState], out: &mut String) {
    write_header(
        out,
        RELOADED,
        "Whether the TLS files were of use when they were last read.",
        MetricKind::Gauge,
    );
    for (side, is_up_to_date, _) in states {
        let labels = [("cluster", cluster), ("side", side)];
        write_sample(out, RELOADED, &labels, u64::from(*is_up_to_date));
    }
    write_header(
        out,
        EXPIRY,
        "When the TLS certificate in use expires, in seconds since 1970.",
        MetricKind::Gauge,
    );
    for (side, _, expires_at) in states {
        // One that expired before 1970 has expired all the same.
        if let Some(expires_at) = expires_at {
            let labels = [("cluster", cluster), ("side", side)];
            write_sample(
                out,
                EXPIRY,
                &labels,
                u64::try_from(*expires_at).unwrap_or(0),
            );
        }
    }
}

fn server_files(
    settings: &TlsSettings,
    parameters: &TlsParameters,
) -> Result<Arc<TlsServerFiles>, TlsStartError> {
    let CertificateFiles { certificate, key } = settings
        .certificate
        .clone()
        .ok_or(TlsStartError::NoCertificate)?;
    let paths = TlsServerPaths {
        certificate,
        key,
        trusted: settings.trust_certificates.clone(),
        rules: ClientRules {
            require_certificate: settings.require_client_certificate,
            allow_insecure: settings.allow_insecure,
        },
        parameters: parameters.clone(),
    };
    Ok(Arc::new(TlsServerFiles::open(
        paths,
        settings.check_period,
    )?))
}

/// Without TLS nothing is read: the operating system may have no trusted issuers at all.
fn brokers(settings: &TlsSettings) -> Result<TlsSource, TlsStartError> {
    let brokers = &settings.brokers;
    if !brokers.enabled {
        return Ok(TlsSource::System);
    }
    let paths = TlsFilePaths {
        trusted: brokers.trust_certificates.clone(),
        identity: brokers
            .identity
            .clone()
            .map(|files| (files.certificate, files.key)),
        allow_insecure: settings.allow_insecure,
        verify_host_name: brokers.verify_host_name,
        parameters: brokers.parameters.clone(),
    };
    let named = paths.clone();
    let files = TlsFiles::open_with_period(paths, settings.check_period);
    let files = files.map_err(|error| TlsStartError::Brokers {
        files: files_of(&named, &error),
        error,
    })?;
    Ok(TlsSource::Files(Arc::new(files)))
}

/// The files that an error is about.
fn files_of(paths: &TlsFilePaths, error: &TlsFilesError) -> String {
    let is_of_trust = matches!(error, TlsFilesError::Config(error) if error.is_about_trust());
    let name = |path: &Path| path.display().to_string();
    match (&paths.trusted, &paths.identity) {
        (Some(trusted), _) if is_of_trust => name(trusted),
        (None, _) if is_of_trust => "the operating system's certificates".to_owned(),
        (_, Some((certificate, key))) => format!("{} and {}", name(certificate), name(key)),
        (trusted, None) => trusted.as_deref().map_or_else(String::new, name),
    }
}

const RELOADED: &str = "pulsegate_gateway_tls_last_reload_success";
const EXPIRY: &str = "pulsegate_gateway_tls_certificate_expiry_time_seconds";
