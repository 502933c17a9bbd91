//! Keys and password files that a setting holds or names: Apache's forms of `tokenSecretKey` and its like.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::authentication::file_of_url;
use super::credential::{CREDENTIAL_SIZE_MAX, CredentialError, read_credential_file};

/// Bytes that are never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// Wraps bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes, for the one use that they are meant for.
    #[must_use]
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(..)")
    }
}

/// Why a setting gives no bytes. Quotes nothing but paths.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyMaterialError {
    #[error(transparent)]
    File(#[from] CredentialError),
    #[error("the file URL is malformed")]
    FileUrl,
    #[error("the data URL has no comma")]
    DataUrl,
    #[error("the data URL is not Base64")]
    DataBase64,
    #[error("it is neither a data or file URL, nor the path of a file that exists, nor Base64")]
    Neither,
    #[error("it is empty")]
    Empty,
}

/// The bytes that a setting means: those of a `data:` URL (`data:;base64,..`), of the file that a `file:` URL or a path names,
/// or the text itself in Base64; in this order, as Apache's brokers decide (`AuthTokenUtils.readKeyFromUrl`). A file's bytes are
/// taken as they are.
pub(super) fn read(text: &str) -> Result<SecretBytes, KeyMaterialError> {
    let bytes = if let Some(data) = text.strip_prefix("data:") {
        of_data_url(data)?
    } else if text.starts_with("file:") {
        let path = file_of_url(text).map_err(|_| KeyMaterialError::FileUrl)?;
        read_credential_file(&path)?
    } else if Path::new(text).is_file() {
        read_credential_file(&PathBuf::from(text))?
    } else {
        // A text as large as this would not be a path either.
        let plausible = u64::try_from(text.len()).is_ok_and(|len| len <= CREDENTIAL_SIZE_MAX);
        let decoded = plausible.then(|| STANDARD.decode(text).ok()).flatten();
        decoded.ok_or(KeyMaterialError::Neither)?
    };
    if bytes.is_empty() {
        return Err(KeyMaterialError::Empty);
    }
    Ok(SecretBytes(bytes))
}

/// The part behind `data:`; only Base64 is marked, everything else stands for itself.
fn of_data_url(data: &str) -> Result<Vec<u8>, KeyMaterialError> {
    let (kind, data) = data.split_once(',').ok_or(KeyMaterialError::DataUrl)?;
    if kind == "base64" || kind.ends_with(";base64") {
        let data: String = data.split_ascii_whitespace().collect();
        return STANDARD
            .decode(data)
            .map_err(|_| KeyMaterialError::DataBase64);
    }
    Ok(data.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_that_apache_takes_give_the_same_key() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("my key");
        let key: Vec<u8> = (0..40).collect();
        std::fs::write(&path, &key).expect("write");
        let encoded = STANDARD.encode(&key);
        for text in [
            format!("data:;base64,{encoded}"),
            format!("data:application/octet-stream;base64,{encoded}"),
            format!("file://{}", path.display().to_string().replace(' ', "%20")),
            path.display().to_string(),
            encoded.clone(),
        ] {
            assert_eq!(read(&text), Ok(SecretBytes::new(key.clone())), "{text}");
        }
        assert_eq!(
            read("data:,a plain secret"),
            Ok(SecretBytes::new(*b"a plain secret"))
        );
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_quoted() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let empty = directory.path().join("empty");
        std::fs::write(&empty, "").expect("write");
        let folder = format!("file://{}", directory.path().display());
        for (text, expected) in [
            ("data:;base64", KeyMaterialError::DataUrl),
            ("data:;base64,%%secret", KeyMaterialError::DataBase64),
            ("file:secret", KeyMaterialError::FileUrl),
            ("no secret!", KeyMaterialError::Neither),
            ("/no/such/file.key", KeyMaterialError::Neither),
            (&empty.display().to_string(), KeyMaterialError::Empty),
        ] {
            let refused = read(text).expect_err(text);
            assert_eq!(refused, expected, "{text}");
            assert!(!refused.to_string().contains("secret"), "{refused}");
        }
        assert!(matches!(
            read(&folder),
            Err(KeyMaterialError::File(CredentialError::NotAFile(_)))
        ));
        assert_eq!(
            format!("{:?}", SecretBytes::new(*b"secret")),
            "SecretBytes(..)"
        );
    }
}
