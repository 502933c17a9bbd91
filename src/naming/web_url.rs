//! Addresses of HTTP services: `http://host[:port][/path]`.

use std::fmt;
use std::str::FromStr;

use super::{BrokerAddress, MAX_SERVICE_URL_LEN, NameError, check_len, excerpt};

const FORM: &str = "URL of the form http://host[:port] or https://host[:port]";

/// Where an HTTP service listens.
///
/// The host is as that of a [`BrokerAddress`]. `Display` prints it as a URL with the port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WebOrigin {
    /// Whether the service expects TLS.
    pub tls: bool,
    /// Host name or IP literal, lower case, IPv6 without brackets.
    pub host: String,
    /// TCP port, never 0.
    pub port: u16,
}

impl WebOrigin {
    /// What a `Host` header says of it: `host[:port]`, the port only where it is not the scheme's own.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = self.host_in_url();
        if self.port == default_port(self.tls) {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }

    fn host_in_url(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        }
    }
}

impl fmt::Display for WebOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host_in_url(), self.port)
    }
}

/// A URL of an HTTP service, as a base that paths are appended to, or as a target with a query.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WebUrl {
    /// Where the service listens.
    pub origin: WebOrigin,
    /// What follows the authority: empty, or it begins with `/`. As it was written, escapes included.
    pub path: String,
}

impl FromStr for WebUrl {
    type Err = NameError;

    /// Scheme and host are taken without regard to case. User information and fragments are refused, and so are bytes that no
    /// URL has.
    fn from_str(text: &str) -> Result<Self, NameError> {
        check_len("URL", text, MAX_SERVICE_URL_LEN)?;
        let bad = || NameError::BadForm {
            text: excerpt(text),
            expected: FORM,
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(bad()),
        };
        let allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'#' | b'\\');
        if !rest.bytes().all(allowed) {
            return Err(bad());
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(bad());
        }
        let address = BrokerAddress::from_host_port(authority)
            .or_else(|_| {
                BrokerAddress::from_host_port(&format!("{authority}:{}", default_port(tls)))
            })
            .map_err(|_| bad())?;
        let path = if path.starts_with('?') {
            format!("/{path}")
        } else {
            path.to_owned()
        };
        Ok(Self {
            origin: WebOrigin {
                tls,
                host: address.host,
                port: address.port,
            },
            path,
        })
    }
}

impl fmt::Display for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path)
    }
}

/// Port of a URL that names none (RFC 9110, 4.2).
const fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        for (text, tls, host, port, path) in [
            ("http://b1:8080", false, "b1", 8080, ""),
            ("HTTP://B1", false, "b1", 80, ""),
            ("https://b1/", true, "b1", 443, "/"),
            (
                "https://b1:8443/base/x%2Fy",
                true,
                "b1",
                8443,
                "/base/x%2Fy",
            ),
            (
                "http://[::1]:8080/a?b=http://c",
                false,
                "::1",
                8080,
                "/a?b=http://c",
            ),
            ("http://[::1]", false, "::1", 80, ""),
            ("http://b1?q", false, "b1", 80, "/?q"),
        ] {
            let url: WebUrl = text
                .parse()
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(
                (url.origin.tls, url.origin.host.as_str()),
                (tls, host),
                "{text}"
            );
            assert_eq!((url.origin.port, url.path.as_str()), (port, path), "{text}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "",
            "b1:8080",
            "ftp://b1",
            "http://",
            "http:///x",
            "http://user@b1",
            "http://b1:0",
            "http://b1:x",
            "http://b1/a b",
            "http://b1/#x",
            "http://b1\r\nX: y",
            "http://b1\\x",
            "//b1",
            "pulsar://b1:6650",
            "http://pulsar://b1:6650",
        ] {
            assert!(text.parse::<WebUrl>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_port_of_the_scheme_is_left_out_of_host_headers() {
        for (text, authority) in [
            ("http://b1:80", "b1"),
            ("http://b1:443", "b1:443"),
            ("https://b1", "b1"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            let url: WebUrl = text.parse().expect(text);
            assert_eq!(url.origin.authority(), authority);
        }
    }
}
