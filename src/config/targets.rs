//! The forms of the rules that say which brokers clients may be connected to. What they mean is the gateway's; here a
//! malformed one is refused before anything starts.

use std::net::IpAddr;

/// A host name, in which `*` stands for any characters.
pub(super) fn is_host_pattern(text: &str) -> bool {
    let allowed = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'.' | b'-' | b'_' | b'*' | b':' | b'[' | b']')
    };
    text.len() <= PATTERN_MAX && text.bytes().all(allowed)
}

/// An address, a network (`10.0.0.0/8`), a range (`10.0.0.1-10.0.0.9`, `10.0.0.1-9`) or an address whose last groups are
/// `*`; the forms of Apache's setting.
pub(super) fn is_ip_pattern(text: &str) -> bool {
    if text == "*" {
        return true;
    }
    if text.len() > PATTERN_MAX {
        return false;
    }
    if let Some((address, bits)) = text.split_once('/') {
        let width = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        return match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
            (Ok(address), Ok(bits)) => bits <= width(address),
            _ => false,
        };
    }
    if let Some(star) = text.find('*') {
        let tail = text.get(star..).unwrap_or_default();
        let groups = tail.chars().all(|character| "*.:".contains(character));
        return groups && !text.contains("**") && text.replace('*', "0").parse::<IpAddr>().is_ok();
    }
    match text.split_once('-') {
        Some((first, last)) => is_range(first.trim(), last.trim()),
        None => text.parse::<IpAddr>().is_ok(),
    }
}

/// A port, or `*` for all.
pub(super) fn is_port_pattern(text: &str) -> bool {
    text == "*" || text.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Whether `last` is an address of the same family not before `first`, or such an address's last group alone.
fn is_range(first: &str, last: &str) -> bool {
    let Ok(begin) = first.parse::<IpAddr>() else {
        return false;
    };
    let end = last.parse::<IpAddr>().ok().or_else(|| {
        let cut = first.rfind(['.', ':'])?;
        format!("{}{last}", first.get(..=cut)?).parse().ok()
    });
    end.is_some_and(|end| begin.is_ipv4() == end.is_ipv4() && begin <= end)
}

const PATTERN_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_addresses_are_those_of_apache() {
        for good in [
            "*",
            "10.0.0.1",
            "::1",
            "10.0.0.0/8",
            "fe80::/10",
            "10.0.0.1-10.0.0.9",
            "10.0.0.1-9",
            "10.0.*.*",
            "10.0.0.*",
            "10.0.0.1 - 10.0.0.2",
            "fe80::1:*",
        ] {
            assert!(is_ip_pattern(good), "{good}");
        }
        for bad in [
            "",
            "broker",
            "10.0.0",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "/8",
            "10.*.0.1",
            "10.0.0.**",
            "10.0.0.9-10.0.0.1",
            "10.0.0.1-::1",
            "10.0.0.1-x",
            "10.0.0.1-300",
            "1-2-3",
        ] {
            assert!(!is_ip_pattern(bad), "{bad}");
        }
    }

    #[test]
    fn ports_are_numbers_or_a_star() {
        assert!(is_port_pattern("*") && is_port_pattern("1") && is_port_pattern("65535"));
        for bad in ["", "0", "65536", "1-2", "**", "x"] {
            assert!(!is_port_pattern(bad), "{bad}");
        }
    }
}
