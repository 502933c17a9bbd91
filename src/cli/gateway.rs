//! `pulsegate gateway`.

use std::env;
use std::path::PathBuf;

use clap::Args;

use crate::config::{self, ConfigErrors, FlagValue, LoadedGateway, Sources};
use crate::telemetry::{LogError, LogFormat, LogSettings, check_level};

/// Arguments of the gateway role.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct GatewayArgs {
    /// Settings file: YAML, or Apache Pulsar's proxy.conf as it is.
    #[arg(
        long,
        value_name = "FILE",
        long_help = "Settings file: YAML with Apache Pulsar's setting names as keys, or \
        Apache Pulsar's own key=value form (proxy.conf as it is). The extension decides (.yaml, .yml, .conf, \
        .properties), else the content."
    )]
    config: Option<PathBuf>,
    /// Give any setting a value, by its Apache Pulsar name; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// The brokers: pulsar://host:port[,host:port] (setting brokerServiceURL).
    #[arg(long, value_name = "URL[,URL]")]
    broker: Option<String>,
    /// The brokers' HTTP service: http://host:port (setting brokerWebServiceURL).
    #[arg(long, value_name = "URL[,URL]")]
    web: Option<String>,
    /// Port for Pulsar clients; 0 picks a free one (setting servicePort, default 6650).
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    /// Port for metrics and health; 0 picks a free one (setting webServicePort, default 8080).
    #[arg(long, value_name = "PORT")]
    http_port: Option<String>,
    /// Address to listen on (setting bindAddress, default 0.0.0.0).
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// What to log: error, warn, info, debug, trace, off, or a list of target=level.
    #[arg(long, value_name = "LEVEL", env = "PULSEGATE_LOG", default_value = "info", value_parser = parse_level)]
    log_level: String,
    /// How to write log lines: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = parse_format)]
    log_format: LogFormat,
    /// Check all settings, print what is wrong with them, and exit.
    #[arg(long)]
    check_config: bool,
}

impl GatewayArgs {
    /// What is logged, and how.
    #[must_use]
    pub fn log_settings(&self) -> LogSettings {
        LogSettings {
            level: self.log_level.clone(),
            format: self.log_format,
        }
    }

    /// Whether to exit after the settings were checked.
    #[must_use]
    pub const fn check_only(&self) -> bool {
        self.check_config
    }

    /// A line for everything that is wrong with the settings.
    pub(super) fn problems(&self) -> Vec<String> {
        let wrong = self.load().err();
        let problems = wrong.into_iter().flat_map(|errors| errors.problems);
        problems.map(|problem| problem.to_string()).collect()
    }

    /// Reads and checks the settings of every source: file, environment, `--set`, flags.
    ///
    /// # Errors
    /// With everything that is wrong.
    pub fn load(&self) -> Result<LoadedGateway, ConfigErrors> {
        let flags = [
            ("--broker", "brokerServiceURL", &self.broker),
            ("--web", "brokerWebServiceURL", &self.web),
            ("--port", "servicePort", &self.port),
            ("--http-port", "webServicePort", &self.http_port),
            ("--bind", "bindAddress", &self.bind),
        ];
        let flags = flags.into_iter().filter_map(|(flag, key, value)| {
            let value = value.clone()?;
            Some(FlagValue { flag, key, value })
        });
        // A variable that is not UTF-8 cannot hold a legal value; its replacement characters make it a reported one.
        let environment = env::vars_os().map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        });
        config::load_gateway(&Sources {
            file: self.config.clone(),
            environment: environment.collect(),
            sets: self.sets.clone(),
            flags: flags.collect(),
        })
    }
}

fn parse_level(text: &str) -> Result<String, LogError> {
    check_level(text).map(|()| text.to_owned())
}

fn parse_format(text: &str) -> Result<LogFormat, LogError> {
    text.parse()
}

const EXAMPLES: &str = "\
Examples:
  pulsegate gateway --broker pulsar://broker-1:6650,broker-2:6650
  pulsegate gateway --config conf/proxy.conf --set maxConcurrentInboundConnections=50000
  pulsegate gateway --broker pulsar://localhost:6650 --port 0 --http-port 0 --bind 127.0.0.1
  pulsegate gateway --config gateway.yaml --check-config

Settings, later ones winning: defaults, --config, the environment (PULSAR_PREFIX_<setting>, then
PULSEGATE_<setting>), --set, the other flags. docs/configuration.md lists them all.

When everything listens, one line goes to standard output, with a part for each port that is on:
  ready broker=pulsar://ADDRESS http=http://ADDRESS broker-tls=pulsar+ssl://ADDRESS https=https://ADDRESS

Exit codes:
  0    drained after SIGTERM or SIGINT
  1    could not run
  3    the drain deadline passed with connections open
  64   wrong arguments or settings
  130  ended at once by a second signal";
