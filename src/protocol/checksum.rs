//! CRC32C (Castagnoli), the checksum of Pulsar messages.
//!
//! It covers the metadata size, the metadata and the payload of a message, in this order, but not the broker entry
//! metadata in front of it and not the command (Apache Pulsar's "Binary protocol specification", section "Framing").

/// The CRC32C of `data`.
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    ::crc32c::crc32c(data)
}

/// The CRC32C of the bytes behind `checksum` followed by `data`: `crc32c(ab)` is `crc32c_append(crc32c(a), b)`.
#[must_use]
pub fn crc32c_append(checksum: u32, data: &[u8]) -> u32 {
    ::crc32c::crc32c_append(checksum, data)
}

/// The CRC32C of two pieces behind each other, of the checksums of both and the length of the second in bytes:
/// `crc32c(ab)` is `crc32c_combine(crc32c(a), crc32c(b), b.len())`. For a piece that many messages share.
#[must_use]
pub fn crc32c_combine(first: u32, second: u32, second_len: usize) -> u32 {
    ::crc32c::crc32c_combine(first, second, second_len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bitwise definition (reflected polynomial 0x82f63b78): slow and easy to check.
    fn naive(data: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in data {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 {
                    (crc >> 1) ^ 0x82f6_3b78
                } else {
                    crc >> 1
                };
            }
        }
        !crc
    }

    #[test]
    fn agrees_with_the_published_check_values() {
        // The check value of CRC-32/ISCSI and two vectors of RFC 3720, appendix B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b""), 0);
    }

    proptest! {
        #[test]
        fn agrees_with_the_bitwise_definition(data in proptest::collection::vec(any::<u8>(), 0..2048)) {
            prop_assert_eq!(crc32c(&data), naive(&data));
        }

        #[test]
        fn appending_is_the_checksum_of_the_whole(
            data in proptest::collection::vec(any::<u8>(), 0..512),
            cut in any::<proptest::sample::Index>(),
        ) {
            let (head, tail) = data.split_at(cut.index(data.len() + 1));
            prop_assert_eq!(crc32c_append(crc32c(head), tail), crc32c(&data));
        }
    }
}
