//! Settings: defaults, files, environment and flags into typed, validated structs.
//!
//! Owns the lists of every setting ([`GATEWAY_KEYS`], [`CLIENT_KEYS`]), the file formats and their precedence. The way of a value:
//! `properties` or `yaml` (text to key, value, line) -> `raw` (all sources merged, unknown keys reported) -> `settings`
//! (typed). Everything wrong is collected and reported together as [`ConfigErrors`]; nothing falls back in silence.
//! Values of secret and of unknown settings are never quoted. Start at [`load_gateway`] and [`load_client`].
//! Credentials and certificates are read here, too: no other module opens files that a user names.

mod authentication;
mod build;
mod client;
mod credential;
mod discovery;
mod gateway_authentication;
mod http_proxy;
mod key_material;
mod keys;
mod problem;
mod properties;
mod raw;
mod settings;
mod source_file;
mod tls;
mod tls_names;
mod yaml;

#[cfg(test)]
mod tests;

pub use authentication::{AuthenticationSettings, CertificateFiles};
pub use build::{LoadedGateway, load_gateway};
pub use client::{CLIENT_KEYS, ClientSettings, ClientTlsSettings, LoadedClient, load_client};
pub use credential::{
    CREDENTIAL_SIZE_MAX, CredentialError, CredentialSource, Secret, read_credential_file,
};
pub use discovery::{DiscoverySettings, ZooKeeperUrl};
pub use gateway_authentication::{
    GatewayAuthenticationSettings, IncomingAuthenticationSettings, ProviderSettings, PublicKeyKind,
    TokenKeySettings, TokenProviderSettings,
};
pub use http_proxy::{ProxyRoute, ProxySettings};
pub use key_material::SecretBytes;
pub use keys::{GATEWAY_KEYS, KeySpec, KeyStatus};
pub use problem::{ConfigErrors, Origin, Problem};
pub use raw::{FlagValue, Sources};
pub use settings::{GatewaySettings, HttpSettings};
pub use source_file::MAX_FILE_SIZE;
pub use tls::{BrokerTlsSettings, TlsSettings};
pub use tls_names::{TlsCipherSuite, TlsParameters, TlsVersion};

use std::path::Path;

/// Whether the file that `statusFilePath` names exists. Looks at the file system; a few microseconds on a local one.
#[must_use]
pub fn status_file_exists(path: &Path) -> bool {
    std::fs::metadata(path).is_ok()
}
