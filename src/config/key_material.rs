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
    #[error(
        "there is no such file; a key in Base64 that looks like a path has to be written data:;base64,.."
    )]
    Missing,
    #[error("it is empty")]
    Empty,
}

/// The bytes that a setting means: those of a `data:` URL (`data:;base64,..`), of the file that a `file:` URL or a path names,
/// or the text itself in Base64; in this order, as Apache's brokers decide (`AuthTokenUtils.readKeyFromUrl`). A file's bytes are
/// taken as they are. What looks like the path of a file that is missing is not taken for Base64.
pub(super) fn read(text: &str) -> Result<SecretBytes, KeyMaterialError> {
    let bytes = if let Some(data) = text.strip_prefix("data:") {
        of_data_url(data)?
    } else if text.starts_with("file:") {
        let path = file_of_url(text).map_err(|_| KeyMaterialError::FileUrl)?;
        read_credential_file(&path)?
    } else if Path::new(text).is_file() {
        read_credential_file(&PathBuf::from(text))?
    } else if looks_like_path(text) {
        return Err(KeyMaterialError::Missing);
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

/// Whether a text that is no file's path was meant to be one. Base64 has slashes as well, so that such a path could pass for a key;
/// but the Base64 of a key has capitals, and does not begin with a folder that exists.
fn looks_like_path(text: &str) -> bool {
    let Some((first, _)) = text.trim_start_matches('/').split_once('/') else {
        let is_below_root = text.starts_with('/');
        return is_below_root && !has_marks_of_base64(text);
    };
    let folder = if text.starts_with('/') {
        Path::new("/").join(first)
    } else {
        PathBuf::from(first)
    };
    !has_marks_of_base64(text) || (!first.is_empty() && folder.is_dir())
}

/// Whether a text has characters that Base64 makes of any key and that paths of keys seldom have.
fn has_marks_of_base64(text: &str) -> bool {
    text.bytes()
        .any(|byte| byte.is_ascii_uppercase() || matches!(byte, b'+' | b'='))
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
    fn the_path_of_a_file_that_is_missing_is_not_taken_for_base64() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let folder = directory.path().display();
        // All of these are Base64 as well, whatever the folder is called.
        let mut missing = vec![
            "/no/such/place/for/keys/of/ourssssss".to_owned(),
            "keys/secretss".to_owned(),
        ];
        missing.push(format!("{folder}/MIIBsecretKeys12"));
        for path in &missing {
            assert_eq!(read(path), Err(KeyMaterialError::Missing), "{path}");
        }
        // Keys that begin, or go on, as paths do.
        for key in [
            "/0gq1bFhX+2wN0rJ4Lk3mA==",
            "/9j/4AAQSkZJRgABAQAASABIAAD/",
            "MIIB/IjANBgkqhkiG9w0BAQEFAAO",
        ] {
            assert!(read(key).is_ok(), "{key}");
        }
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
            ("/no/such/file.key", KeyMaterialError::Missing),
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
