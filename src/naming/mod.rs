//! Names of Pulsar things as types: topics, namespaces and broker addresses.
//!
//! Owns parsing, validation and printing of names. Never does IO, never resolves a host. A name that exists as one of
//! these types is well-formed and bounded in size; everything above works with the types, not with strings.
//! Start at [`TopicName`] and [`BrokerAddress`].

mod address;
mod address_range;
mod topic;
mod web_url;

pub use address::{BrokerAddress, ServiceUrl};
pub use address_range::AddressRange;
pub use topic::{NamespaceName, TopicDomain, TopicName};
pub use web_url::{WebOrigin, WebUrl};

/// Longest topic name accepted, in bytes. Pulsar itself sets none; this one keeps names far above every real use from
/// being copied into maps and labels.
pub const MAX_TOPIC_NAME_LEN: usize = 32 * 1024;
/// Longest tenant, cluster or namespace name accepted, in bytes.
pub const MAX_NAME_PART_LEN: usize = 4 * 1024;
/// Longest host name accepted, in bytes (RFC 1035 allows 253 characters; the rest is room for an IPv6 zone).
pub const MAX_HOST_LEN: usize = 255;
/// Longest service URL accepted, in bytes.
pub const MAX_SERVICE_URL_LEN: usize = 64 * 1024;
/// Most addresses a service URL may list.
pub const MAX_SERVICE_URL_ADDRESSES: usize = 1024;

/// Why a text is not a name. The message quotes at most a short piece of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty where a name is needed.
    #[error("{what} is empty")]
    Empty {
        /// Which name or part.
        what: &'static str,
    },
    /// The text is longer than the bound.
    #[error("{what} is {len} bytes long, at most {max} are allowed")]
    TooLong {
        /// Which name or part.
        what: &'static str,
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A part holds a character that Pulsar does not allow there.
    #[error("{what} {text:?} holds a character that is not allowed")]
    BadCharacter {
        /// Which name or part.
        what: &'static str,
        /// The start of the text.
        text: String,
    },
    /// The text has not the form of this kind of name.
    #[error("{text:?} is no {expected}")]
    BadForm {
        /// The start of the text.
        text: String,
        /// The form wanted.
        expected: &'static str,
    },
    /// The scheme of a URL is none of those allowed.
    #[error("{text:?} has an unknown scheme, expected {expected}")]
    UnknownScheme {
        /// The start of the text.
        text: String,
        /// The schemes allowed.
        expected: &'static str,
    },
    /// The port is missing where there is no default.
    #[error("{text:?} has no port")]
    MissingPort {
        /// The start of the text.
        text: String,
    },
    /// The port is not a number from 1 to 65535.
    #[error("{text:?} has a port that is not a number from 1 to 65535")]
    BadPort {
        /// The start of the text.
        text: String,
    },
    /// A service URL mixes `pulsar://` and `pulsar+ssl://`.
    #[error("a service URL must not mix pulsar:// and pulsar+ssl://")]
    MixedSchemes,
    /// A service URL lists too many addresses.
    #[error("a service URL lists {count} addresses, at most {max} are allowed")]
    TooManyAddresses {
        /// Addresses given.
        count: usize,
        /// Addresses allowed.
        max: usize,
    },
}

/// The start of `text`, short enough for a message and a log line.
fn excerpt(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}

fn check_len(what: &'static str, text: &str, max: usize) -> Result<(), NameError> {
    if text.len() > max {
        return Err(NameError::TooLong {
            what,
            len: text.len(),
            max,
        });
    }
    Ok(())
}
