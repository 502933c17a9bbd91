//! Base64 of keys that are bytes: the Java client sends them so (RFC 4648 section 4, with padding).

/// Encodes with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut word = 0_u32;
        for at in 0..3 {
            word = word << 8 | u32::from(group.get(at).copied().unwrap_or_default());
        }
        for at in 0..4 {
            // A group of n bytes takes n + 1 digits.
            let digit = (word >> (18 - 6 * at)) & 0x3f;
            let digit = usize::try_from(digit).ok().and_then(|at| ALPHABET.get(at));
            match digit {
                Some(&digit) if at <= group.len() => text.push(char::from(digit)),
                _ => text.push('='),
            }
        }
    }
    text
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::encode;

    #[test]
    fn encodes_the_vectors_of_rfc_4648() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (bytes, text) in vectors {
            assert_eq!(encode(bytes.as_bytes()), text);
        }
        assert_eq!(encode(&[0xfb, 0xff, 0xbf]), "+/+/");
    }
}
