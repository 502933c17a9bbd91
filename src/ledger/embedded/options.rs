//! The options of a ledger as its record keeps them. Pure.

use bytes::{BufMut, Bytes};

use crate::journal::format::{Malformed, Reader};
use crate::ledger::{Digest, LedgerOptions};

const VERSION: u8 = 1;

/// Their bytes; `docs/storage-format.md` has the table.
pub(super) fn encode(options: &LedgerOptions) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u8(VERSION);
    out.put_u32(options.ensemble);
    out.put_u32(options.write_quorum);
    out.put_u32(options.ack_quorum);
    out.put_u8(match options.digest {
        Digest::Crc32 => 1,
        Digest::Mac => 2,
        Digest::Crc32c => 3,
        Digest::Dummy => 4,
    });
    put_prefixed(&mut out, &options.password);
    for (name, value) in &options.custom_metadata {
        put_prefixed(&mut out, name.as_bytes());
        put_prefixed(&mut out, value);
    }
    out
}

/// Reads them.
///
/// # Errors
/// They are not of this version, or cut short.
pub fn decode(bytes: &Bytes) -> Result<LedgerOptions, Malformed> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != VERSION {
        return Err(Malformed("options of a ledger of an unknown version"));
    }
    let mut options = LedgerOptions {
        ensemble: reader.u32()?,
        write_quorum: reader.u32()?,
        ack_quorum: reader.u32()?,
        digest: match reader.u8()? {
            1 => Digest::Crc32,
            2 => Digest::Mac,
            3 => Digest::Crc32c,
            4 => Digest::Dummy,
            _ => return Err(Malformed("digest of a ledger")),
        },
        password: reader.prefixed()?,
        custom_metadata: Vec::new(),
    };
    while !reader.is_empty() {
        let name = String::from_utf8_lossy(&reader.prefixed()?).into_owned();
        options.custom_metadata.push((name, reader.prefixed()?));
    }
    Ok(options)
}

fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    // Longer ones make the whole too large for a record, which `create` refuses.
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_read_back() {
        let options = LedgerOptions {
            ensemble: 3,
            write_quorum: 2,
            ack_quorum: 1,
            digest: Digest::Mac,
            password: Bytes::from_static(b"secret"),
            custom_metadata: vec![(
                "component".to_owned(),
                Bytes::from_static(b"managed-ledger"),
            )],
        };
        let bytes = Bytes::from(encode(&options));
        assert_eq!(decode(&bytes), Ok(options));
        for length in [0, 5, 13, bytes.len() - 1] {
            decode(&bytes.slice(..length)).expect_err("cut");
        }
    }
}
