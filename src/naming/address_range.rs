//! Ranges of IP addresses, as settings name them.

use std::net::IpAddr;

/// An inclusive range of addresses of one family. `first <= last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    /// Parses an address, a network (`10.0.0.0/8`), a range (`10.0.0.1-10.0.0.9`, `10.0.0.1-9`) or an address whose last
    /// groups are `*`: the forms of Apache's `brokerProxyAllowedIPAddresses`. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > TEXT_MAX {
            return None;
        }
        if let Some((address, bits)) = text.split_once('/') {
            return Self::block(address.parse().ok()?, bits.parse().ok()?);
        }
        if let Some(star) = text.find('*') {
            // A `*` in front of a fixed group would be no range, and "**" no group.
            let tail = text.get(star..)?;
            if text.contains("**") || !tail.chars().all(|c| "*.:".contains(c)) {
                return None;
            }
            let all = if text.contains(':') { "ffff" } else { "255" };
            return Some(Self {
                first: text.replace('*', "0").parse().ok()?,
                last: text.replace('*', all).parse().ok()?,
            });
        }
        if let Some((first, last)) = text.split_once('-') {
            let first: IpAddr = first.trim().parse().ok()?;
            let last = match last.trim().parse::<IpAddr>() {
                Ok(last) => last,
                Err(_) => {
                    // `10.0.0.1-20`: the end of the last group alone.
                    let text = first.to_string();
                    let cut = text.rfind(['.', ':'])? + 1;
                    format!("{}{}", text.get(..cut)?, last.trim())
                        .parse()
                        .ok()?
                }
            };
            return (first.is_ipv4() == last.is_ipv4() && first <= last)
                .then_some(Self { first, last });
        }
        let address = text.parse().ok()?;
        Some(Self {
            first: address,
            last: address,
        })
    }

    fn block(address: IpAddr, bits: u32) -> Option<Self> {
        Some(match address {
            IpAddr::V4(address) => {
                let host = u32::MAX.checked_shr(bits).unwrap_or(0);
                let address = u32::from(address);
                (bits <= 32).then(|| Self {
                    first: IpAddr::V4((address & !host).into()),
                    last: IpAddr::V4((address | host).into()),
                })?
            }
            IpAddr::V6(address) => {
                let host = u128::MAX.checked_shr(bits).unwrap_or(0);
                let address = u128::from(address);
                (bits <= 128).then(|| Self {
                    first: IpAddr::V6((address & !host).into()),
                    last: IpAddr::V6((address | host).into()),
                })?
            }
        })
    }

    /// Whether `address` lies in the range.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && self.first <= address && address <= self.last
    }

    /// Whether all its addresses fulfil `kind`, which must hold for all between any two addresses for which it holds.
    pub fn is_wholly(self, kind: impl Fn(IpAddr) -> bool) -> bool {
        kind(self.first) && kind(self.last)
    }
}

/// Longest text of a range: two IPv6 addresses and some.
const TEXT_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_every_form_contain_what_they_say() {
        for (range, inside, outside) in [
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("10.1.0.0/16", "10.1.255.255", "10.2.0.0"),
            ("0.0.0.0/0", "255.1.1.1", "::1"),
            ("10.1.2.*", "10.1.2.200", "10.1.3.1"),
            ("10.1.*.*", "10.1.200.0", "10.2.0.0"),
            ("fe80::1:*", "fe80::1:abcd", "fe80::2:1"),
            ("10.1.2.3-9", "10.1.2.9", "10.1.2.10"),
            ("10.1.2.3 - 10.1.3.1", "10.1.2.255", "10.1.3.2"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("::1", "::1", "127.0.0.1"),
        ] {
            let range = AddressRange::parse(range).unwrap();
            assert!(range.contains(inside.parse().unwrap()), "{inside}");
            assert!(!range.contains(outside.parse().unwrap()), "{outside}");
        }
    }

    #[test]
    fn other_texts_are_no_range() {
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
            "10.0.0.9-1",
            "10.0.0.1-::1",
            "10.0.0.1-x",
            "10.0.0.1-300",
            "1-2-3",
        ] {
            assert_eq!(AddressRange::parse(bad), None, "{bad}");
        }
        assert_eq!(AddressRange::parse(&"1".repeat(1000)), None);
    }
}
