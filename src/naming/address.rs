//! Addresses of brokers: `host:port` with or without a `pulsar://` scheme, and service URLs that list several.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use super::{
    MAX_HOST_LEN, MAX_SERVICE_URL_ADDRESSES, MAX_SERVICE_URL_LEN, NameError, check_len, excerpt,
};

const PLAIN_SCHEME: &str = "pulsar://";
const TLS_SCHEME: &str = "pulsar+ssl://";
const SCHEMES: &str = "pulsar:// or pulsar+ssl://";
/// Port of the binary protocol without TLS when a URL names none (Pulsar's default `brokerServicePort`).
const PLAIN_PORT: u16 = 6650;
/// Port of the binary protocol over TLS when a URL names none (Pulsar's default `brokerServicePortTls`).
const TLS_PORT: u16 = 6651;

/// Where a broker listens for the binary protocol.
///
/// The host is lower case, never empty, at most [`MAX_HOST_LEN`] bytes, and an IPv6 literal is kept without brackets. Use
/// the constructors; they keep that true. `Display` prints `host:port`, IPv6 literals in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BrokerAddress {
    /// Host name or IP literal, lower case, IPv6 without brackets.
    pub host: String,
    /// TCP port, never 0.
    pub port: u16,
    /// Whether the broker expects TLS on this port.
    pub tls: bool,
}

impl BrokerAddress {
    /// Parses `pulsar://host[:port]` or `pulsar+ssl://host[:port]` (default ports 6650 and 6651).
    ///
    /// One trailing slash is allowed; a path, a query and user information are not.
    ///
    /// # Errors
    /// When the scheme is another one or missing, or host or port are malformed.
    pub fn from_url(url: &str) -> Result<Self, NameError> {
        check_len("broker URL", url, MAX_SERVICE_URL_LEN)?;
        match split_scheme(url)? {
            Some((tls, authority)) => Self::from_authority(authority, tls, Some(default_port(tls))),
            None => Err(NameError::UnknownScheme {
                text: excerpt(url),
                expected: SCHEMES,
            }),
        }
    }

    /// Parses `host:port`, the form of `proxy_to_broker_url` in CommandConnect, or a URL as [`Self::from_url`].
    ///
    /// The text is split at its last `:`, so that an IPv6 literal works with and without brackets (as the Apache proxy).
    ///
    /// # Errors
    /// When the port is missing (no scheme gives a default), or host or port are malformed.
    pub fn from_host_port(text: &str) -> Result<Self, NameError> {
        check_len("broker address", text, MAX_SERVICE_URL_LEN)?;
        match split_scheme(text)? {
            Some((tls, authority)) => Self::from_authority(authority, tls, Some(default_port(tls))),
            None => Self::from_authority(text, false, None),
        }
    }

    /// The address as a URL: `pulsar://host:port` or `pulsar+ssl://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}{self}", scheme(self.tls))
    }

    fn from_authority(
        authority: &str,
        tls: bool,
        default_port: Option<u16>,
    ) -> Result<Self, NameError> {
        let authority = match default_port {
            Some(_) => authority.strip_suffix('/').unwrap_or(authority),
            None => authority,
        };
        let bad_form = || NameError::BadForm {
            text: excerpt(authority),
            expected: "host:port",
        };
        let (host, port_text) = if let Some(rest) = authority.strip_prefix('[') {
            let (host, after) = rest.split_once(']').ok_or_else(bad_form)?;
            check_ipv6(host).ok_or_else(bad_form)?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(bad_form()),
            }
        } else {
            match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            }
        };
        let port = match (port_text, default_port) {
            (Some(text), _) => parse_port(text).ok_or_else(|| NameError::BadPort {
                text: excerpt(authority),
            })?,
            (None, Some(port)) => port,
            (None, None) => {
                return Err(NameError::MissingPort {
                    text: excerpt(authority),
                });
            }
        };
        check_host(host)?;
        Ok(Self {
            host: host.to_ascii_lowercase(),
            port,
            tls,
        })
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The address of a cluster: one or more brokers, all with or all without TLS.
///
/// Parses `pulsar://a:6650,b:6650` and `pulsar://a:6650,pulsar://b:6650`; an address named twice is kept once. It is
/// never empty and lists at most [`MAX_SERVICE_URL_ADDRESSES`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceUrl {
    /// The brokers, in the order given, without repetition.
    pub addresses: Vec<BrokerAddress>,
}

impl ServiceUrl {
    /// Whether the brokers expect TLS.
    #[must_use]
    pub fn tls(&self) -> bool {
        self.addresses.first().is_some_and(|first| first.tls)
    }
}

impl From<BrokerAddress> for ServiceUrl {
    fn from(address: BrokerAddress) -> Self {
        Self {
            addresses: vec![address],
        }
    }
}

impl FromStr for ServiceUrl {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check_len("service URL", text, MAX_SERVICE_URL_LEN)?;
        if text.trim().is_empty() {
            return Err(NameError::Empty {
                what: "service URL",
            });
        }
        let count = text.split(',').count();
        if count > MAX_SERVICE_URL_ADDRESSES {
            return Err(NameError::TooManyAddresses {
                count,
                max: MAX_SERVICE_URL_ADDRESSES,
            });
        }
        let mut url_tls = None;
        let mut addresses: Vec<BrokerAddress> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (tls, authority) = match (split_scheme(part)?, url_tls) {
                (Some((tls, _)), Some(first)) if tls != first => {
                    return Err(NameError::MixedSchemes);
                }
                (Some(found), _) => found,
                (None, Some(tls)) => (tls, part),
                (None, None) => {
                    return Err(NameError::UnknownScheme {
                        text: excerpt(part),
                        expected: SCHEMES,
                    });
                }
            };
            url_tls = Some(tls);
            let address = BrokerAddress::from_authority(authority, tls, Some(default_port(tls)))?;
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(Self { addresses })
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.addresses.iter().enumerate() {
            f.write_str(if index == 0 { scheme(address.tls) } else { "," })?;
            write!(f, "{address}")?;
        }
        Ok(())
    }
}

/// The scheme and the rest; `None` without any scheme, an error with an unknown one.
fn split_scheme(text: &str) -> Result<Option<(bool, &str)>, NameError> {
    if let Some(rest) = strip_prefix_ignoring_case(text, PLAIN_SCHEME) {
        return Ok(Some((false, rest)));
    }
    if let Some(rest) = strip_prefix_ignoring_case(text, TLS_SCHEME) {
        return Ok(Some((true, rest)));
    }
    if text.contains("://") {
        return Err(NameError::UnknownScheme {
            text: excerpt(text),
            expected: SCHEMES,
        });
    }
    Ok(None)
}

fn strip_prefix_ignoring_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

const fn scheme(tls: bool) -> &'static str {
    if tls { TLS_SCHEME } else { PLAIN_SCHEME }
}

const fn default_port(tls: bool) -> u16 {
    if tls { TLS_PORT } else { PLAIN_PORT }
}

fn parse_port(text: &str) -> Option<u16> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|port| *port != 0)
}

fn check_host(host: &str) -> Result<(), NameError> {
    if host.is_empty() {
        return Err(NameError::Empty { what: "host" });
    }
    check_len("host", host, MAX_HOST_LEN)?;
    let bad = || NameError::BadCharacter {
        what: "host",
        text: excerpt(host),
    };
    if host.contains(':') {
        return check_ipv6(host).ok_or_else(bad);
    }
    // Underscores are no part of a legal host name, but service names of container networks have them.
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if host.bytes().all(allowed) {
        Ok(())
    } else {
        Err(bad())
    }
}

/// Whether `host` is an IPv6 literal, with or without a `%zone`.
fn check_ipv6(host: &str) -> Option<()> {
    let (literal, zone) = match host.split_once('%') {
        Some((literal, zone)) => (literal, Some(zone)),
        None => (host, None),
    };
    let zone_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if zone.is_some_and(|zone| zone.is_empty() || !zone.bytes().all(zone_byte)) {
        return None;
    }
    Ipv6Addr::from_str(literal).ok().map(drop)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(host: &str, port: u16, tls: bool) -> BrokerAddress {
        BrokerAddress {
            host: host.to_owned(),
            port,
            tls,
        }
    }

    #[test]
    fn parses_urls_with_and_without_port() {
        let cases = [
            (
                "pulsar://Broker-1.example:7000",
                address("broker-1.example", 7000, false),
            ),
            ("pulsar://broker", address("broker", 6650, false)),
            ("pulsar+ssl://broker", address("broker", 6651, true)),
            ("PULSAR://broker/", address("broker", 6650, false)),
            ("pulsar://[::1]", address("::1", 6650, false)),
            (
                "pulsar://[FE80::1%eth0]:1",
                address("fe80::1%eth0", 1, false),
            ),
            ("pulsar://10.0.0.1:6650", address("10.0.0.1", 6650, false)),
        ];
        for (text, expected) in cases {
            assert_eq!(BrokerAddress::from_url(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn splits_a_bare_address_at_the_last_colon() {
        assert_eq!(
            BrokerAddress::from_host_port("::1:6650"),
            Ok(address("::1", 6650, false))
        );
        assert_eq!(
            BrokerAddress::from_host_port("[::1]:6650"),
            Ok(address("::1", 6650, false))
        );
        assert_eq!(
            BrokerAddress::from_host_port("my_broker:6650"),
            Ok(address("my_broker", 6650, false))
        );
        assert_eq!(
            BrokerAddress::from_host_port("pulsar+ssl://b:1"),
            Ok(address("b", 1, true))
        );
    }

    #[test]
    fn refuses_malformed_addresses() {
        for text in [
            "",
            "broker",
            ":6650",
            "broker:",
            "broker:0",
            "broker:65536",
            "broker:+1",
            "bro ker:1",
            "broker/x:1",
            "user@broker:1",
            "[::1",
            "[::1]x:1",
            "[broker]:1",
            "a:b:1",
            "http://broker:1",
            "pulsar://",
            "pulsar://b:1/p",
            "pulsar://b:1//",
            "broker:1/",
            "pulsar://a:1,b:2",
            "br\u{f6}ker:1",
            "broker:6650\n",
            "fe80::1%:1",
        ] {
            assert!(BrokerAddress::from_host_port(text).is_err(), "{text:?}");
        }
        let long = format!("{}:1", "a".repeat(MAX_HOST_LEN + 1));
        assert!(matches!(
            BrokerAddress::from_host_port(&long),
            Err(NameError::TooLong { .. })
        ));
        assert!(matches!(
            BrokerAddress::from_url("broker:1"),
            Err(NameError::UnknownScheme { .. })
        ));
        assert!(matches!(
            BrokerAddress::from_host_port("broker"),
            Err(NameError::MissingPort { .. })
        ));
    }

    #[test]
    fn service_urls_list_addresses_once() {
        let expected = vec![address("a", 1, false), address("b", 2, false)];
        for text in [
            "pulsar://a:1,b:2",
            "pulsar://a:1,pulsar://b:2",
            "pulsar://a:1, b:2",
            "pulsar://A:1,b:2,a:1",
        ] {
            let url: ServiceUrl = text.parse().expect(text);
            assert_eq!(url.addresses, expected, "{text}");
            assert_eq!(url.to_string(), "pulsar://a:1,b:2");
        }
        let tls: ServiceUrl = "pulsar+ssl://a,b:7".parse().expect("tls url");
        assert_eq!(
            tls.addresses,
            vec![address("a", 6651, true), address("b", 7, true)]
        );
        assert!(tls.tls());
    }

    #[test]
    fn refuses_malformed_service_urls() {
        for text in [
            "",
            " ",
            ",",
            "a:1",
            "pulsar://a:1,",
            "pulsar://a:1,,b:1",
            "http://a:1",
            "pulsar://a:1,pulsar+ssl://b:1",
        ] {
            assert!(text.parse::<ServiceUrl>().is_err(), "{text:?}");
        }
        let many = format!(
            "pulsar://{}",
            vec!["a:1"; MAX_SERVICE_URL_ADDRESSES + 1].join(",")
        );
        assert!(matches!(
            many.parse::<ServiceUrl>(),
            Err(NameError::TooManyAddresses { .. })
        ));
    }

    proptest! {
        #[test]
        fn printed_addresses_parse_back(
            host in "[a-z0-9_][a-z0-9._-]{0,40}", port in 1u16.., tls: bool, v6: Option<u128>,
        ) {
            let host = v6.map_or(host, |bits| Ipv6Addr::from_bits(bits).to_string());
            let address = BrokerAddress { host, port, tls };
            prop_assert_eq!(BrokerAddress::from_url(&address.url()), Ok(address.clone()));
            let plain = BrokerAddress { tls: false, ..address };
            prop_assert_eq!(BrokerAddress::from_host_port(&plain.to_string()), Ok(plain));
        }

        #[test]
        fn any_text_gives_a_bounded_address_or_an_error(text in "\\PC{0,80}") {
            if let Ok(found) = BrokerAddress::from_host_port(&text) {
                prop_assert!(!found.host.is_empty() && found.port != 0);
                prop_assert_eq!(BrokerAddress::from_url(&found.url()), Ok(found));
            }
            if let Ok(url) = text.parse::<ServiceUrl>() {
                prop_assert_eq!(url.to_string().parse::<ServiceUrl>(), Ok(url));
            }
        }
    }
}
