//! How free names stand in paths: as Pulsar's `Codec` writes them, which is Java's URL encoding of UTF-8. Pure.

use std::fmt::Write as _;

/// Encodes a name: letters, digits and `.-*_` stay, a space becomes `+`, every other byte `%` and two digits.
///
/// An encoded name holds no slash and no control character. It may still be `.` or `..`, which no path takes.
#[must_use]
pub fn encode_name(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => {
                encoded.push(char::from(byte));
            }
            b' ' => encoded.push('+'),
            // Writing to a string does not fail.
            other => drop(write!(encoded, "%{other:02X}")),
        }
    }
    encoded
}

/// Decodes a name. `None`: what stands there was not written by the encoder, such as a `%` without two digits or bytes
/// that are no UTF-8. Like Java's decoder it leaves single what the encoder would have encoded.
#[must_use]
pub fn decode_name(encoded: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'+' => decoded.push(b' '),
            b'%' => {
                let (digits, after) = rest.split_first_chunk::<2>()?;
                rest = after;
                let digits = std::str::from_utf8(digits).ok()?;
                // `from_str_radix` takes a sign.
                if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return None;
                }
                decoded.push(u8::from_str_radix(digits, 16).ok()?);
            }
            other => decoded.push(other),
        }
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writes_what_pulsar_writes() {
        // A topic's name in a metadata store that Pulsar 4.0.8 wrote (tests/fixtures/metadata/cluster.txt).
        assert_eq!(
            encode_name("a b+c*d~e%f-\u{fc}.x_y:z\u{20ac}\u{1f600}"),
            "a+b%2Bc*d%7Ee%25f-%C3%BC.x_y%3Az%E2%82%AC%F0%9F%98%80"
        );
        assert_eq!(encode_name("a/b\n\0"), "a%2Fb%0A%00");
    }

    #[test]
    fn decodes_what_it_can() {
        assert_eq!(decode_name("a+b%2fc%2F~").as_deref(), Some("a b/c/~"));
        for broken in ["%", "%2", "a%zz", "%+1", "%C3"] {
            assert_eq!(decode_name(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_comes_back(name in any::<String>()) {
            let encoded = encode_name(&name);
            prop_assert!(encoded.is_ascii() && !encoded.contains('/'));
            prop_assert_eq!(decode_name(&encoded), Some(name));
        }

        #[test]
        fn decoding_never_panics(text in "[%+a-f0-9/]{0,12}|.{0,8}") {
            let _ = decode_name(&text);
        }
    }
}
