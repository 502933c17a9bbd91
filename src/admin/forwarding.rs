//! What becomes of paths and headers on the way to a broker and back; pure.

use std::net::IpAddr;

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};

/// Whether a path means what it says: no segment of it is `..` or `.`, however it is escaped or given a parameter, and none that
/// shows only when escaped slashes are taken for slashes leads above the first `floor` segments. Jetty, behind which the brokers
/// are, does all of these; a topic name may have escaped slashes, and even dots between them.
pub(super) fn is_plain_path(raw: &str, floor: usize) -> bool {
    let is_dots = |segment: &[u8]| matches!(without_parameter(segment), b"." | b"..");
    let literal = raw.split('/').map(unescape);
    if literal
        .into_iter()
        .any(|segment| segment.split(|byte| *byte == b'\\').any(is_dots))
    {
        return false;
    }
    let mut depth = 0;
    for segment in unescape(raw).split(|byte| *byte == b'/') {
        match without_parameter(segment) {
            b"" | b"." => {}
            b".." if depth <= floor => return false,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    true
}

fn without_parameter(segment: &[u8]) -> &[u8] {
    segment
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
}

/// Escapes taken out once; an incomplete one stays.
fn unescape(raw: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let [first, tail @ ..] = rest {
        match tail {
            [high, low, after @ ..] if *first == b'%' => {
                if let (Some(high), Some(low)) = (hex(*high), hex(*low)) {
                    out.push(high << 4 | low);
                    rest = after;
                    continue;
                }
                out.push(*first);
                rest = tail;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

/// Whether a path is served by function workers. As in the Apache proxy these are beginnings of paths: `function` is `functions`,
/// too.
pub(super) fn is_function_path(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/admin/") else {
        return false;
    };
    let (version, rest) = match rest.strip_prefix("v2/") {
        Some(rest) => (2, rest),
        None => match rest.strip_prefix("v3/") {
            Some(rest) => (3, rest),
            None => (1, rest),
        },
    };
    let names: &[&str] = if version == 3 {
        &["function", "source", "sink"]
    } else {
        &["function", "source", "sink", "worker"]
    };
    names.iter().any(|name| rest.starts_with(name))
}

/// Who asks, as a broker is told.
pub(super) struct Client<'a> {
    pub(super) address: IpAddr,
    pub(super) tls: bool,
    pub(super) role: Option<&'a str>,
    /// Whether what the client says of those before it is passed on.
    pub(super) trusted: bool,
}

/// The headers of a request as a broker gets them, but for `Host` and those of the body's length.
///
/// # Errors
/// When the role cannot stand in a header.
pub(super) fn request_headers(
    mut headers: HeaderMap,
    client: &Client<'_>,
    server: &str,
) -> Result<HeaderMap, UnprintableRole> {
    let host = headers.remove(HOST);
    // Before anything is added, so that a client cannot have it taken out again by naming it in `Connection`.
    remove_hop_by_hop(&mut headers);
    headers.remove(EXPECT);
    headers.remove(CONTENT_LENGTH);
    headers.remove(ORIGINAL_PRINCIPAL);
    if !client.trusted {
        headers.remove(FORWARDED);
        let spoofed: Vec<HeaderName> = headers
            .keys()
            .filter(|name| {
                name.as_str().starts_with("x-forwarded-") || name.as_str() == "x-real-ip"
            })
            .cloned()
            .collect();
        for name in spoofed {
            headers.remove(name);
        }
    }
    if let Some(role) = client.role {
        headers.insert(ORIGINAL_PRINCIPAL, header_of_role(role)?);
    }
    append_to_list(&mut headers, VIA, VIA_VALUE);
    append_to_list(
        &mut headers,
        HeaderName::from_static("x-forwarded-for"),
        &client.address.to_string(),
    );
    // Of these the first proxy's word stands, where it is trusted.
    let proto = if client.tls { "https" } else { "http" };
    let first = [
        ("x-forwarded-proto", HeaderValue::from_static(proto)),
        (
            "x-forwarded-server",
            HeaderValue::from_str(server).unwrap_or(HeaderValue::from_static("pulsegate")),
        ),
    ];
    let host = host.map(|host| ("x-forwarded-host", host));
    for (name, value) in first.into_iter().chain(host) {
        headers
            .entry(HeaderName::from_static(name))
            .or_insert(value);
    }
    Ok(headers)
}

/// A role as a header says it. Blanks around it are no part of a header's value, and what is not ASCII is read as Latin-1 (RFC 9110,
/// 5.5): the broker would take another role out of it, so both are refused.
fn header_of_role(role: &str) -> Result<HeaderValue, UnprintableRole> {
    if role.is_empty() || role.trim() != role || !role.is_ascii() {
        return Err(UnprintableRole);
    }
    HeaderValue::from_str(role).map_err(|_| UnprintableRole)
}

/// A role that no header can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnprintableRole;

/// Takes out the headers that are about the connection and not about the message (RFC 9110, 7.6.1).
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    for name in [
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
    ] {
        headers.remove(name);
    }
}

/// Adds to a header that is a list, as one line.
fn append_to_list(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    let before: Vec<&str> = headers
        .get_all(&name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let joined = if before.is_empty() {
        value.to_owned()
    } else {
        format!("{}, {value}", before.join(", "))
    };
    if let Ok(joined) = HeaderValue::from_str(&joined) {
        headers.insert(name, joined);
    }
}

/// The role of the client behind a proxy, to brokers of Apache Pulsar.
pub(super) const ORIGINAL_PRINCIPAL: HeaderName = HeaderName::from_static("x-original-principal");
const VIA_VALUE: &str = "1.1 pulsegate";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_told() {
        for plain in [
            "/admin/v2/persistent/public/default/a%2Fb",
            "/admin/v2/namespaces/public/default",
            "/admin//v2",
            "/admin/..a/b..",
            "/admin/%252e%252e/x",
            "/admin/%",
            "/admin/%2",
            "/admin/%zz",
            "/admin/a;b=c",
            "/admin/v2/persistent/t/n/..%2F..%2Fx/stats",
            "/admin/a%2f..%2fb",
        ] {
            assert!(is_plain_path(plain, 1), "{plain}");
        }
        for other in [
            "/admin/../metrics",
            "/admin/..",
            "/admin/./x",
            "/admin/%2e%2E/x",
            "/admin/.%2e/x",
            "/admin/..%2fmetrics",
            "/admin/a%2f..%2f..%2fb",
            "/admin/a/b%2f..%2f..%2f..;%2fmetrics",
            "/admin//..%2fmetrics",
            "/admin/..%5cx",
            "/admin/..\\x",
            "/admin/..;/x",
            "/admin/..;a=b/x",
            "/admin/%2e%2e%3b/x",
        ] {
            assert!(!is_plain_path(other, 1), "{other}");
        }
    }

    #[test]
    fn paths_of_a_route_stay_below_it() {
        assert!(is_plain_path("/a/b/x%2f..%2fy", 2));
        assert!(!is_plain_path("/a/b/..%2fy", 2));
        assert!(is_plain_path("/a/b/..%2fy", 1));
    }

    #[test]
    fn functions_have_paths_of_their_own() {
        for path in [
            "/admin/v3/functions/public/default",
            "/admin/v3/function/x",
            "/admin/v2/functions",
            "/admin/functions",
            "/admin/v3/sources/x",
            "/admin/v3/sinks/x",
            "/admin/v2/worker/cluster",
            "/admin/v2/worker-stats/x",
            "/admin/worker-stats",
        ] {
            assert!(is_function_path(path), "{path}");
        }
        for path in [
            "/admin/v2/persistent/public/default/functions",
            "/admin/v3/worker",
            "/lookup/v2/topic/functions",
            "/admin/v2/namespaces",
            "/admin",
        ] {
            assert!(!is_function_path(path), "{path}");
        }
    }

    fn forwarded(sent: &[(&str, &str)], role: Option<&str>, trusted: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(
                name.parse::<HeaderName>().expect("a name"),
                value.parse().expect("a value"),
            );
        }
        let client = Client {
            address: "10.0.0.9".parse().expect("an address"),
            tls: false,
            role,
            trusted,
        };
        request_headers(headers, &client, "gate").expect("a role that can be printed")
    }

    fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        headers.get(name).map(|value| value.to_str().expect("text"))
    }

    #[test]
    fn a_client_cannot_say_who_it_is_but_by_its_credential() {
        let spoof = [
            ("X-Original-Principal", "admin"),
            ("x-original-principal", "other"),
        ];
        assert_eq!(
            text(&forwarded(&spoof, None, true), "x-original-principal"),
            None
        );
        let named = forwarded(&spoof, Some("me"), true);
        let values: Vec<_> = named.get_all("x-original-principal").iter().collect();
        assert_eq!(values, ["me"]);
        let listed = [("Connection", "X-Original-Principal, x-forwarded-for, via")];
        let headers = forwarded(&listed, Some("me"), false);
        assert_eq!(text(&headers, "x-original-principal"), Some("me"));
        assert_eq!(text(&headers, "x-forwarded-for"), Some("10.0.0.9"));
        assert_eq!(text(&headers, "via"), Some("1.1 pulsegate"));
    }

    #[test]
    fn headers_of_the_connection_stay_on_it() {
        let headers = forwarded(
            &[
                ("Connection", "close, X-Private"),
                ("X-Private", "1"),
                ("Keep-Alive", "1"),
                ("TE", "trailers"),
                ("Trailer", "X"),
                ("Transfer-Encoding", "chunked"),
                ("Upgrade", "h2c"),
                ("Proxy-Authorization", "x"),
                ("Proxy-Connection", "x"),
                ("Expect", "100-continue"),
                ("Authorization", "Bearer t"),
                ("Accept", "text/plain"),
            ],
            None,
            false,
        );
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = [
            "accept",
            "authorization",
            "via",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-server",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn forwarding_headers_of_clients_count_only_where_they_are_trusted() {
        let sent = [
            ("Host", "pulsar.example"),
            ("X-Forwarded-For", "1.2.3.4"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "outer"),
            ("X-Real-IP", "1.2.3.4"),
            ("Forwarded", "for=1.2.3.4"),
            ("Via", "1.1 outer"),
        ];
        let headers = forwarded(&sent, None, false);
        assert_eq!(text(&headers, "x-forwarded-for"), Some("10.0.0.9"));
        assert_eq!(text(&headers, "x-forwarded-proto"), Some("http"));
        assert_eq!(text(&headers, "x-forwarded-host"), Some("pulsar.example"));
        assert_eq!(text(&headers, "x-forwarded-server"), Some("gate"));
        assert_eq!(text(&headers, "x-real-ip"), None);
        assert_eq!(text(&headers, "forwarded"), None);
        assert_eq!(text(&headers, "via"), Some("1.1 outer, 1.1 pulsegate"));
        let headers = forwarded(&sent, None, true);
        assert_eq!(text(&headers, "x-forwarded-for"), Some("1.2.3.4, 10.0.0.9"));
        assert_eq!(text(&headers, "x-forwarded-proto"), Some("https"));
        assert_eq!(text(&headers, "x-forwarded-host"), Some("outer"));
        assert_eq!(text(&headers, "forwarded"), Some("for=1.2.3.4"));
    }

    #[test]
    fn a_role_that_would_break_the_request_or_become_another_is_refused() {
        // Blanks around the value of a header are no part of it (RFC 9110, 5.5).
        for role in [
            "a\r\nX-Evil: 1",
            " admin",
            "admin ",
            "\tadmin",
            "admin\t",
            "",
            "\u{e9}",
        ] {
            let client = Client {
                address: "10.0.0.9".parse().expect("an address"),
                tls: false,
                role: Some(role),
                trusted: false,
            };
            assert_eq!(
                request_headers(HeaderMap::new(), &client, "gate").map(|_| ()),
                Err(UnprintableRole),
                "{role:?}"
            );
        }
    }
}
