//! What we want to know of a certificate and the TLS library does not tell: when it expires (RFC 5280, section 4.1).

/// The end of a certificate's validity (`notAfter`) in seconds since 1970; negative before. `None` when the bytes are no
/// certificate.
pub(super) fn expires_at(certificate: &[u8]) -> Option<i64> {
    let mut outer = Reader(certificate);
    let mut certificate = Reader(outer.value_of(SEQUENCE)?);
    let mut to_be_signed = Reader(certificate.value_of(SEQUENCE)?);
    // version, which may be absent; serial number, algorithm, issuer.
    if to_be_signed.tag() == Some(VERSION) {
        to_be_signed.next()?;
    }
    for _ in 0..3 {
        to_be_signed.next()?;
    }
    let mut validity = Reader(to_be_signed.value_of(SEQUENCE)?);
    validity.next()?;
    let (tag, text) = validity.next()?;
    seconds(tag, std::str::from_utf8(text).ok()?)
}

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const BIT_STRING: u8 = 0x03;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Values of DER, one after the other.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The bytes of the next value, its tag and length included.
    pub(super) fn whole(&mut self) -> Option<&'a [u8]> {
        let before = self.0;
        self.next()?;
        before.get(..before.len() - self.0.len())
    }

    /// The next value and its tag.
    pub(super) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut len = usize::from(first & 0x7f);
        if first & 0x80 != 0 {
            // So many bytes of length follow; no certificate needs more than four.
            let (bytes, behind) = rest.split_at_checked(len).filter(|_| len <= 4)?;
            len = bytes
                .iter()
                .fold(0, |len, byte| len << 8 | usize::from(*byte));
            rest = behind;
        }
        let (value, behind) = rest.split_at_checked(len)?;
        self.0 = behind;
        Some((tag, value))
    }

    /// The next value, which has to have this tag.
    pub(super) fn value_of(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(tag, _)| *tag == wanted)
            .map(|(_, value)| value)
    }
}

/// `YYMMDDhhmmssZ`, with years from 1950 to 2049, or `YYYYMMDDhhmmssZ`.
pub(super) fn seconds(tag: u8, text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z')?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let mut rest = rest;
    let mut two = || {
        let (digits, behind) = rest.split_at_checked(2)?;
        rest = behind;
        digits.parse::<i64>().ok()
    };
    let [month, day, hour, minute, second] = [two()?, two()?, two()?, two()?, two()?];
    if !rest.is_empty() || !(1..=12).contains(&month) {
        return None;
    }
    Some(((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Days from 1970-01-01. Years are counted from March, so that the leap day is the last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    365 * year + leap_days + day_of_year - DAYS_BEFORE_1970
}

/// From 0000-03-01 to 1970-01-01.
const DAYS_BEFORE_1970: i64 = 719_468;

#[cfg(test)]
mod tests {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};

    use super::*;
    use crate::testing::certificates::Authority;

    #[test]
    fn reads_the_end_of_a_certificates_validity() {
        let authority = Authority::new("a");
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let expired = authority.sign_expired(&["localhost"]);
        assert_eq!(expires_at(&der(&expired.certificate)), Some(1_009_843_200));
        // rcgen's default, beyond what UTCTime can say.
        let endless = authority.sign(&["localhost"]);
        assert_eq!(expires_at(&der(&endless.certificate)), Some(67_090_118_400));
    }

    #[test]
    fn knows_the_calendar() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "500101000000Z", Some(-631_152_000)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "000229120000Z", Some(951_825_600)),
            (GENERALIZED_TIME, "21000301000000Z", Some(4_107_542_400)),
            (GENERALIZED_TIME, "20261201001845Z", Some(1_796_084_325)),
            (GENERALIZED_TIME, "20261301001845Z", None),
            (GENERALIZED_TIME, "202612010018", None),
            (UTC_TIME, "7001010000001Z", None),
            (UTC_TIME, "70010100000+Z", None),
            (4, "700101000000Z", None),
        ] {
            assert_eq!(seconds(tag, text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let authority = Authority::new("a");
        let der = CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap();
        for len in 0..der.len() {
            let _ = expires_at(der.get(..len).unwrap());
        }
        for bytes in [
            &b""[..],
            b"\x30",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x89\x01",
            b"text",
        ] {
            assert_eq!(expires_at(bytes), None);
        }
    }
}
