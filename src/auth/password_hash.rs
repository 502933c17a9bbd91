//! Hashed passwords as `htpasswd` and `crypt` write them: APR1, MD5 (`$1$`), SHA-256 (`$5$`), SHA-512 (`$6$`) and bcrypt.
//!
//! APR1 and MD5 are old and weak; they are here because Apache Pulsar's own files have them. How long a hash takes is bounded
//! when it is read: its cost is the operator's choice, but a check must end.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest;
use md5::{Digest as _, Md5};

/// The hash of one password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PasswordHash {
    kind: Kind,
    salt: Vec<u8>,
    /// What follows the salt; all of the text for bcrypt.
    hash: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Md5 { magic: &'static str },
    Sha256 { rounds: u32 },
    Sha512 { rounds: u32 },
    Bcrypt,
}

/// Why a hash cannot be used. Quotes nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum PasswordHashError {
    #[error(
        "the hash is of a kind that is not supported; supported are $apr1$, $1$, $5$, $6$ and $2a$, $2b$, $2y$ (bcrypt)"
    )]
    Unsupported,
    #[error("the hash is malformed")]
    Malformed,
    #[error(
        "the hash takes too long: at most {ROUNDS_MAX} rounds, or cost {BCRYPT_COST_MAX} of bcrypt"
    )]
    TooCostly,
}

impl PasswordHash {
    pub(super) fn parse(text: &str) -> Result<Self, PasswordHashError> {
        let mut parts = text.split('$');
        let (Some(""), Some(id)) = (parts.next(), parts.next()) else {
            return Err(PasswordHashError::Unsupported);
        };
        if matches!(id, "2a" | "2b" | "2y") {
            return Self::bcrypt(text);
        }
        let mut next = parts.next().ok_or(PasswordHashError::Malformed)?;
        let (kind, salt_len_max, hash_len) = match id {
            "apr1" => (Kind::Md5 { magic: "$apr1$" }, 8, 22),
            "1" => (Kind::Md5 { magic: "$1$" }, 8, 22),
            "5" | "6" => {
                let mut rounds = ROUNDS_DEFAULT;
                if let Some(given) = next.strip_prefix("rounds=") {
                    let given: u32 = given.parse().map_err(|_| PasswordHashError::TooCostly)?;
                    rounds = given.max(ROUNDS_MIN);
                    next = parts.next().ok_or(PasswordHashError::Malformed)?;
                }
                if rounds > ROUNDS_MAX {
                    return Err(PasswordHashError::TooCostly);
                }
                match id {
                    "5" => (Kind::Sha256 { rounds }, 16, 43),
                    _ => (Kind::Sha512 { rounds }, 16, 86),
                }
            }
            _ => return Err(PasswordHashError::Unsupported),
        };
        let hash = parts.next().ok_or(PasswordHashError::Malformed)?;
        if parts.next().is_some() || hash.len() != hash_len {
            return Err(PasswordHashError::Malformed);
        }
        let salt = next.as_bytes();
        Ok(Self {
            kind,
            salt: salt.get(..salt_len_max).unwrap_or(salt).to_vec(),
            hash: hash.to_owned(),
        })
    }

    fn bcrypt(text: &str) -> Result<Self, PasswordHashError> {
        let parts: bcrypt::HashParts = text.parse().map_err(|_| PasswordHashError::Malformed)?;
        if parts.get_cost() > BCRYPT_COST_MAX {
            return Err(PasswordHashError::TooCostly);
        }
        Ok(Self {
            kind: Kind::Bcrypt,
            salt: Vec::new(),
            hash: text.to_owned(),
        })
    }

    /// Whether it is that of this password. The time does not tell how much of the hash is right.
    pub(super) fn is_of(&self, password: &[u8]) -> bool {
        let computed = match self.kind {
            Kind::Md5 { magic } => md5_crypt(password, &self.salt, magic.as_bytes()),
            Kind::Sha256 { rounds } => sha_crypt(password, &self.salt, rounds, &SHA256),
            Kind::Sha512 { rounds } => sha_crypt(password, &self.salt, rounds, &SHA512),
            Kind::Bcrypt => return bcrypt::verify(password, &self.hash).unwrap_or(false),
        };
        verify_slices_are_equal(computed.as_bytes(), self.hash.as_bytes()).is_ok()
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordHash")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// `crypt`'s hash of MD5, which APR1 differs from by its magic only.
fn md5_crypt(password: &[u8], salt: &[u8], magic: &[u8]) -> String {
    let alternate = md5(&[password, salt, password]);
    let mut first = Md5::new();
    for part in [password, magic, salt] {
        first.update(part);
    }
    for chunk in password.chunks(alternate.len()) {
        first.update(alternate.get(..chunk.len()).unwrap_or_default());
    }
    let mut length = password.len();
    while length > 0 {
        let first_byte = password.get(..1).unwrap_or_default();
        first.update(if length & 1 == 1 { &[0] } else { first_byte });
        length >>= 1;
    }
    let mut hash: [u8; 16] = first.finalize().into();
    for round in 0..1000_u32 {
        hash = md5(&round_parts(round, &hash, password, salt));
    }
    encode(&hash, MD5_ORDER)
}

/// What is hashed in one round, the same for MD5 and SHA.
fn round_parts<'a>(
    round: u32,
    hash: &'a [u8],
    password: &'a [u8],
    salt: &'a [u8],
) -> [&'a [u8]; 4] {
    let (first, last) = if round & 1 == 1 {
        (password, hash)
    } else {
        (hash, password)
    };
    let salt = if round.is_multiple_of(3) { &[] } else { salt };
    let again = if round.is_multiple_of(7) {
        &[]
    } else {
        password
    };
    [first, salt, again, last]
}

fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Md5::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// One of the hashes of `crypt` that are made of SHA-2 (Ulrich Drepper, "Unix crypt using SHA-256 and SHA-512").
struct ShaCrypt {
    algorithm: &'static digest::Algorithm,
    order: &'static [&'static [usize]],
}

fn sha_crypt(password: &[u8], salt: &[u8], rounds: u32, kind: &ShaCrypt) -> String {
    let hash = |parts: &[&[u8]]| {
        let mut context = digest::Context::new(kind.algorithm);
        for part in parts {
            context.update(part);
        }
        context.finish()
    };
    let repeated =
        |hash: &[u8], len: usize| -> Vec<u8> { hash.iter().copied().cycle().take(len).collect() };
    let alternate = hash(&[password, salt, password]);
    let mut first = digest::Context::new(kind.algorithm);
    for part in [
        password,
        salt,
        &repeated(alternate.as_ref(), password.len()),
    ] {
        first.update(part);
    }
    let mut length = password.len();
    while length > 0 {
        first.update(if length & 1 == 1 {
            alternate.as_ref()
        } else {
            password
        });
        length >>= 1;
    }
    let first = first.finish();
    let of_password = hash(&vec![password; password.len()]);
    let password = repeated(of_password.as_ref(), password.len());
    let times = 16 + first.as_ref().first().copied().map_or(0, usize::from);
    let of_salt = hash(&vec![salt; times]);
    let salt = repeated(of_salt.as_ref(), salt.len());
    let mut last = first;
    for round in 0..rounds {
        last = hash(&round_parts(round, last.as_ref(), &password, &salt));
    }
    encode(last.as_ref(), kind.order)
}

/// `crypt`'s own Base64: groups of bytes in an order of their own, least significant bits first.
fn encode(hash: &[u8], order: &[&[usize]]) -> String {
    const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut out = String::new();
    for group in order {
        let mut value = 0_usize;
        for place in *group {
            value = value << 8 | hash.get(*place).copied().map_or(0, usize::from);
        }
        // 8, 16 and 24 bits take 2, 3 and 4 digits.
        for _ in 0..=group.len() {
            let digit = DIGITS.get(value & 63).copied().unwrap_or(b'.');
            out.push(char::from(digit));
            value >>= 6;
        }
    }
    out
}

const MD5_ORDER: &[&[usize]] = &[
    &[0, 6, 12],
    &[1, 7, 13],
    &[2, 8, 14],
    &[3, 9, 15],
    &[4, 10, 5],
    &[11],
];
const SHA256: ShaCrypt = ShaCrypt {
    algorithm: &digest::SHA256,
    order: &[
        &[0, 10, 20],
        &[21, 1, 11],
        &[12, 22, 2],
        &[3, 13, 23],
        &[24, 4, 14],
        &[15, 25, 5],
        &[6, 16, 26],
        &[27, 7, 17],
        &[18, 28, 8],
        &[9, 19, 29],
        &[31, 30],
    ],
};
const SHA512: ShaCrypt = ShaCrypt {
    algorithm: &digest::SHA512,
    order: &[
        &[0, 21, 42],
        &[22, 43, 1],
        &[44, 2, 23],
        &[3, 24, 45],
        &[25, 46, 4],
        &[47, 5, 26],
        &[6, 27, 48],
        &[28, 49, 7],
        &[50, 8, 29],
        &[9, 30, 51],
        &[31, 52, 10],
        &[53, 11, 32],
        &[12, 33, 54],
        &[34, 55, 13],
        &[56, 14, 35],
        &[15, 36, 57],
        &[37, 58, 16],
        &[59, 17, 38],
        &[18, 39, 60],
        &[40, 61, 19],
        &[62, 20, 41],
        &[63],
    ],
};
const ROUNDS_DEFAULT: u32 = 5000;
const ROUNDS_MIN: u32 = 1000;
/// About a second.
const ROUNDS_MAX: u32 = 1_000_000;
/// About a second.
const BCRYPT_COST_MAX: u32 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with `openssl passwd` and with `crypt` of the C library.
    const KNOWN: &[(&str, &str)] = &[
        ("secret", "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/"),
        (
            "a longer password than sixteen bytes",
            "$apr1$x$DSxH0urCtYDzHIjorjYbR1",
        ),
        ("secret", "$1$saltsalt$9xy1btjgzLYfb7hivXtC//"),
        (
            "pässwörd",
            "$5$0123456789abcdef$spDqErTuRkJk.7971KjbjahW1SJ1JGUutlqu5csbQMA",
        ),
        (
            "secret",
            "$6$salty$KvzWKWLYEXXyw/4wzxu854gkPY3lhi7u.wm/HJabfYGIHFFddhyZ3xA43wiP4pG2CNfejds7h3eeku.O.9PSx0",
        ),
        (
            "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
            "$6$s$Rn0CQ/sWAwl5Qybj6pbHLYcQmtidc1qgNmxG3ZsMBW3v29SzB8C2RcIFmMNIvlZydPvlA0V5y/tXyUM.U4ZM31",
        ),
        (
            "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
            "$5$s$deyzr/9ktmO.WMedyFoT1ZnHxjOVaao/rI5FqZowKn.",
        ),
        (
            "Hello world!",
            "$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5",
        ),
        (
            "Hello world!",
            "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1",
        ),
        (
            "Hello world!",
            "$6$rounds=10000$saltstringsaltst$OW1/O6BYHV6BcXZu8QVeXbDWra3Oeqh0sbHbbMCVNSnCM/UrjmM0Dp8vOuZeHBy/YTBmSK6H9qs/y3RnOaw5v.",
        ),
        (
            "allmine",
            "$2a$10$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga",
        ),
    ];

    #[test]
    fn passwords_are_those_of_the_hashes_that_others_made() {
        for (password, hash) in KNOWN {
            let hash = PasswordHash::parse(hash).expect(hash);
            assert!(hash.is_of(password.as_bytes()), "{password}: {hash:?}");
            assert!(!hash.is_of(format!("{password}x").as_bytes()), "{hash:?}");
            assert!(!hash.is_of(b""), "{hash:?}");
        }
    }

    #[test]
    fn hashes_of_other_kinds_or_without_end_are_refused() {
        for (text, expected) in [
            ("", PasswordHashError::Unsupported),
            ("secret", PasswordHashError::Unsupported),
            ("{SHA}secret", PasswordHashError::Unsupported),
            ("$7$salt$secret", PasswordHashError::Unsupported),
            ("$apr1$salt", PasswordHashError::Malformed),
            ("$apr1$salt$tooshort", PasswordHashError::Malformed),
            (
                "$apr1$salt$0123456789012345678901$x",
                PasswordHashError::Malformed,
            ),
            ("$5$rounds=1000", PasswordHashError::Malformed),
            ("$5$rounds=999999999$salt$x", PasswordHashError::TooCostly),
            ("$2y$31$secret", PasswordHashError::Malformed),
            (
                "$2y$31$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga",
                PasswordHashError::TooCostly,
            ),
        ] {
            let refused = PasswordHash::parse(text).expect_err(text);
            assert_eq!(refused, expected, "{text}");
            assert!(!refused.to_string().contains("secret"));
        }
    }
}
