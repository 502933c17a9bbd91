//! Apache Pulsar's `authPlugin` and `authParams`.

use std::{collections::BTreeMap, path::PathBuf};

use super::credential::{CredentialSource, Secret};

/// How a client authenticates itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AuthenticationSettings {
    /// Not at all.
    #[default]
    None,
    /// `AuthenticationToken`: a JWT.
    Token(CredentialSource),
    /// `AuthenticationBasic`: user and password.
    Basic {
        /// The user.
        user_id: String,
        /// The password.
        password: Secret,
    },
    /// `AuthenticationTls`: the client certificate; the files, unless the TLS settings name them.
    Tls(Option<CertificateFiles>),
}

/// PEM files of a client certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// What is wrong with `authPlugin` or `authParams`. It never quotes the latter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    Plugin(&'static str),
    Params(&'static str),
}

/// Reads the plugin's class name, or its short name, and its parameters.
pub(super) fn parse(plugin: &str, params: &str) -> Result<AuthenticationSettings, Refused> {
    let name = plugin
        .strip_prefix("org.apache.pulsar.client.impl.auth.")
        .unwrap_or(plugin);
    match name {
        "none" | "AuthenticationDisabled" => Ok(AuthenticationSettings::None),
        "token" | "AuthenticationToken" => token(params).map(AuthenticationSettings::Token),
        "basic" | "AuthenticationBasic" => basic(params),
        "tls" | "AuthenticationTls" => tls(params).map(AuthenticationSettings::Tls),
        _ => Err(Refused::Plugin("this plugin is not supported")),
    }
}

/// `token:JWT`, `file:///path`, `env:NAME`, `{"token":"JWT"}` or the JWT itself.
fn token(params: &str) -> Result<CredentialSource, Refused> {
    let text = |token: &str| match token.trim() {
        "" => Err(Refused::Params("the token is missing")),
        token => Ok(CredentialSource::Text(Secret::new(token))),
    };
    if let Some(token) = params.strip_prefix("token:") {
        return text(token);
    }
    if params.starts_with("file:") {
        return file_of_url(params).map(CredentialSource::File);
    }
    if let Some(name) = params.strip_prefix("env:") {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        return is_name
            .then(|| CredentialSource::Environment(name.to_owned()))
            .ok_or(Refused::Params("env: is followed by no variable's name"));
    }
    if params.starts_with('{') {
        return text(field(&json(params)?, "token")?);
    }
    text(params)
}

fn basic(params: &str) -> Result<AuthenticationSettings, Refused> {
    let fields = fields(params)?;
    let user_id = field(&fields, "userId")?.to_owned();
    if user_id.is_empty() || user_id.contains(':') {
        return Err(Refused::Params("userId is empty or has a colon"));
    }
    Ok(AuthenticationSettings::Basic {
        user_id,
        password: Secret::new(field(&fields, "password")?),
    })
}

fn tls(params: &str) -> Result<Option<CertificateFiles>, Refused> {
    if params.is_empty() {
        return Ok(None);
    }
    let fields = fields(params)?;
    let path = |name| {
        let path = field(&fields, name)?;
        match path {
            "" => Err(Refused::Params(
                "the path of the certificate or the key is empty",
            )),
            url if url.starts_with("file:") => file_of_url(url),
            path => Ok(PathBuf::from(path)),
        }
    };
    Ok(Some(CertificateFiles {
        certificate: path("tlsCertFile")?,
        key: path("tlsKeyFile")?,
    }))
}

/// A JSON object of texts, or `key:value,key:value`.
fn fields(params: &str) -> Result<BTreeMap<String, String>, Refused> {
    if params.starts_with('{') {
        return json(params);
    }
    let pairs = params.split(',').map(|pair| {
        let (key, value) = pair
            .split_once(':')
            .ok_or(Refused::Params("a part has no colon"))?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    });
    pairs.collect()
}

fn json(params: &str) -> Result<BTreeMap<String, String>, Refused> {
    serde_json::from_str(params)
        .map_err(|_| Refused::Params("it begins like JSON and is no JSON object of texts"))
}

fn field<'a>(fields: &'a BTreeMap<String, String>, name: &'static str) -> Result<&'a str, Refused> {
    fields
        .get(name)
        .map(String::as_str)
        .ok_or(Refused::Params(match name {
            "token" => "token is missing",
            "userId" => "userId is missing",
            "password" => "password is missing",
            "tlsCertFile" => "tlsCertFile is missing",
            _ => "tlsKeyFile is missing",
        }))
}

/// The path of `file:///path` or `file:/path`, percent signs resolved.
pub(super) fn file_of_url(url: &str) -> Result<PathBuf, Refused> {
    let rest = url.strip_prefix("file:").unwrap_or(url);
    let path = match rest.strip_prefix("//") {
        Some(after) => after.strip_prefix("localhost").unwrap_or(after),
        None => rest,
    };
    if !path.starts_with('/') || path.len() < 2 {
        return Err(Refused::Params("the file URL has no absolute path"));
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let value = digit()
            .zip(digit())
            .and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(value.ok_or(Refused::Params("the file URL has a malformed % escape"))?);
    }
    String::from_utf8(bytes)
        .map(PathBuf::from)
        .map_err(|_| Refused::Params("the file URL is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: &str = "org.apache.pulsar.client.impl.auth.Authentication";

    fn text(text: &str) -> CredentialSource {
        CredentialSource::Text(Secret::new(text))
    }

    #[test]
    fn tokens_come_from_where_apaches_plugin_takes_them() {
        let file = |path: &str| CredentialSource::File(PathBuf::from(path));
        let cases = [
            ("token:a.b.c", text("a.b.c")),
            ("a.b.c", text("a.b.c")),
            (r#"{"token":"a.b.c"}"#, text("a.b.c")),
            ("file:///run/token", file("/run/token")),
            ("file:/run/token", file("/run/token")),
            ("file:///my%20run/t%C3%B6ken", file("/my run/t\u{f6}ken")),
            (
                "env:PULSAR_TOKEN",
                CredentialSource::Environment("PULSAR_TOKEN".to_owned()),
            ),
        ];
        for (params, expected) in cases {
            for plugin in ["token".to_owned(), format!("{CLASSES}Token")] {
                let parsed = parse(&plugin, params);
                assert_eq!(
                    parsed,
                    Ok(AuthenticationSettings::Token(expected.clone())),
                    "{params}"
                );
            }
        }
    }

    #[test]
    fn basic_takes_json_and_pairs() {
        let expected = AuthenticationSettings::Basic {
            user_id: "me".to_owned(),
            password: Secret::new("p:w"),
        };
        for params in [
            r#"{"userId":"me","password":"p:w"}"#,
            "userId:me,password:p:w",
        ] {
            assert_eq!(
                parse(&format!("{CLASSES}Basic"), params),
                Ok(expected.clone())
            );
        }
    }

    #[test]
    fn tls_takes_files_or_leaves_them_to_the_settings() {
        let files = CertificateFiles {
            certificate: PathBuf::from("/c.pem"),
            key: PathBuf::from("/k.pem"),
        };
        for params in [
            "tlsCertFile:/c.pem,tlsKeyFile:/k.pem",
            r#"{"tlsCertFile":"/c.pem","tlsKeyFile":"/k.pem"}"#,
            "tlsCertFile:file:///c.pem,tlsKeyFile:/k.pem",
        ] {
            let parsed = parse(&format!("{CLASSES}Tls"), params);
            assert_eq!(
                parsed,
                Ok(AuthenticationSettings::Tls(Some(files.clone()))),
                "{params}"
            );
        }
        assert_eq!(parse("tls", ""), Ok(AuthenticationSettings::Tls(None)));
        assert_eq!(parse("none", "x"), Ok(AuthenticationSettings::None));
    }

    #[test]
    fn malformed_parameters_are_refused_without_being_quoted() {
        for (plugin, params) in [
            ("token", ""),
            ("token", "token: "),
            ("token", "{secret"),
            ("token", "{\"other\":\"secret\"}"),
            ("token", "file://secret"),
            ("token", "file:///a%2"),
            ("token", "file:///a%FF"),
            ("token", "env:"),
            ("basic", "secret"),
            ("basic", "userId:me"),
            ("basic", "userId:,password:secret"),
            ("tls", "tlsCertFile:/secret"),
            ("tls", "tlsCertFile:,tlsKeyFile:/secret"),
        ] {
            let refused = parse(plugin, params).expect_err(params);
            assert!(matches!(refused, Refused::Params(_)), "{params}");
            assert!(!format!("{refused:?}").contains("secret"), "{params}");
        }
        assert!(matches!(parse("oauth2", ""), Err(Refused::Plugin(_))));
        let athenz = parse(
            "org.apache.pulsar.client.impl.auth.AuthenticationAthenz",
            "",
        );
        assert!(matches!(athenz, Err(Refused::Plugin(_))));
    }
}
