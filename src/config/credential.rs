//! Credentials and certificates: where they are, and reading them.

use std::{env, fmt, fs::File, io, io::Read as _, path::PathBuf};

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for sending it to whom it is meant for.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Where the credential of a client comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CredentialSource {
    /// There is none: the TLS certificate says enough, or nobody asks.
    #[default]
    Empty,
    /// It is this text.
    Text(Secret),
    /// The content of a file without white space around it, read each time it is wanted: it may be replaced while we run.
    File(PathBuf),
    /// The value of an environment variable.
    Environment(String),
}

/// Why a credential or a certificate cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// A file cannot be opened or read.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// What the operating system says.
        error: String,
    },
    /// It is a device, a pipe or a directory: reading it might never end.
    #[error("{0} is not a regular file")]
    NotAFile(String),
    /// It is larger than [`CREDENTIAL_SIZE_MAX`].
    #[error("{0} is larger than {CREDENTIAL_SIZE_MAX} bytes")]
    TooLarge(String),
    /// It holds something else than text.
    #[error("{0} is not UTF-8 text")]
    NotText(String),
    /// There is nothing in it.
    #[error("{0} is empty")]
    Nothing(String),
    /// The environment variable is not set.
    #[error("the environment variable {0} is not set")]
    NoVariable(String),
    /// A supplier of the application failed.
    #[error("{0}")]
    Supplier(String),
}

impl CredentialSource {
    /// The credential as it is now. Blocks for as long as reading a file takes.
    ///
    /// # Errors
    /// See [`CredentialError`].
    pub fn read(&self) -> Result<String, CredentialError> {
        let (name, text) = match self {
            Self::Empty => return Ok(String::new()),
            Self::Text(secret) => return Ok(secret.reveal().to_owned()),
            Self::File(path) => {
                let name = path.display().to_string();
                let bytes = read_credential_file(path)?;
                let text =
                    String::from_utf8(bytes).map_err(|_| CredentialError::NotText(name.clone()))?;
                (name, text)
            }
            Self::Environment(variable) => {
                let text = env::var(variable)
                    .map_err(|_| CredentialError::NoVariable(variable.clone()))?;
                (format!("the environment variable {variable}"), text)
            }
        };
        match text.trim() {
            "" => Err(CredentialError::Nothing(name)),
            trimmed => Ok(trimmed.to_owned()),
        }
    }
}

/// Reads a file of a credential, certificates or a key, at most [`CREDENTIAL_SIZE_MAX`] bytes.
///
/// # Errors
/// See [`CredentialError`].
pub fn read_credential_file(path: &std::path::Path) -> Result<Vec<u8>, CredentialError> {
    let name = || path.display().to_string();
    let failed = |error: io::Error| CredentialError::File {
        path: name(),
        error: error.to_string(),
    };
    // Asked before it is opened: opening a pipe that nobody writes to would never end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(CredentialError::NotAFile(name()));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(failed)?
        .take(CREDENTIAL_SIZE_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > CREDENTIAL_SIZE_MAX {
        return Err(CredentialError::TooLarge(name()));
    }
    Ok(bytes)
}

/// Largest file of a credential or of certificates, in bytes: bundles of all public issuers have less than half of it.
pub const CREDENTIAL_SIZE_MAX: u64 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_anew_each_time_and_trimmed() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("token");
        let source = CredentialSource::File(path.clone());
        assert!(matches!(source.read(), Err(CredentialError::File { .. })));
        std::fs::write(&path, "  first\n").expect("write");
        assert_eq!(source.read(), Ok("first".to_owned()));
        std::fs::write(&path, "second").expect("write");
        assert_eq!(source.read(), Ok("second".to_owned()));
        std::fs::write(&path, " \n").expect("write");
        assert!(matches!(source.read(), Err(CredentialError::Nothing(_))));
        std::fs::write(&path, [0xff, 0xfe]).expect("write");
        assert!(matches!(source.read(), Err(CredentialError::NotText(_))));
        std::fs::write(&path, vec![b'a'; 1024 * 1024 + 1]).expect("write");
        assert!(matches!(source.read(), Err(CredentialError::TooLarge(_))));
        let folder = CredentialSource::File(directory.path().to_owned());
        assert!(matches!(folder.read(), Err(CredentialError::NotAFile(_))));
    }

    #[test]
    fn secrets_are_not_printed() {
        let source = CredentialSource::Text(Secret::new("hunter2"));
        assert!(!format!("{source:?}").contains("hunter2"));
        assert_eq!(source.read(), Ok("hunter2".to_owned()));
    }

    #[test]
    fn a_missing_environment_variable_is_named() {
        let source = CredentialSource::Environment("PULSEGATE_TEST_IS_NOT_SET".to_owned());
        assert_eq!(
            source.read(),
            Err(CredentialError::NoVariable(
                "PULSEGATE_TEST_IS_NOT_SET".to_owned()
            ))
        );
    }
}
