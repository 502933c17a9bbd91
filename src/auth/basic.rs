//! Method `basic`: a user and a password, from a file as `htpasswd` writes them.

use std::collections::BTreeMap;
use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{hmac, rand};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;

use super::password_hash::PasswordHash;
use super::{AuthenticationError, Presented, Principal, Provider, Step, UnixTime};

/// Why user and password are not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BasicError {
    /// There is neither.
    #[error("missing")]
    Missing,
    /// It is not UTF-8, has no colon, or is longer than anybody's.
    #[error("malformed")]
    Malformed,
    /// There is no such user, or the password is another.
    #[error("unknown user or wrong password")]
    Wrong,
}

impl BasicError {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Missing => "EMPTY_AUTH_DATA",
            Self::Malformed => "INVALID_AUTH_DATA",
            Self::Wrong => "INVALID_TOKEN",
        }
    }
}

/// Checks passwords as `AuthenticationProviderBasic` does, and knows bcrypt as well.
pub(super) struct BasicProvider {
    users: BTreeMap<String, User>,
    /// What an unknown user's password is compared with, so that the time does not tell who exists.
    decoy: Option<PasswordHash>,
    /// Of the memory of good passwords; made anew in each process.
    key: hmac::Key,
}

struct User {
    hash: PasswordHash,
    /// The password that was good last, under a key that is only in this process: hashing it again for every connection and
    /// every HTTP request would cost a thousand times as much as all else.
    last_good: Mutex<Option<hmac::Tag>>,
}

impl User {
    /// Whether this is the tag of the password that was good last.
    fn remembers(&self, tag: &hmac::Tag) -> bool {
        let last_good = *self.last_good.lock();
        last_good.is_some_and(|good| verify_slices_are_equal(good.as_ref(), tag.as_ref()).is_ok())
    }
}

impl BasicProvider {
    /// Reads `user:hash` lines; empty ones and those that begin with `#` say nothing.
    ///
    /// # Errors
    /// With everything that is wrong, by line. Quotes nothing.
    pub(super) fn new(content: &[u8]) -> Result<Self, Vec<String>> {
        let text = std::str::from_utf8(content).map_err(|_| vec!["not UTF-8".to_owned()])?;
        let (mut users, mut problems) = (BTreeMap::new(), Vec::new());
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut problem =
                |what: &dyn fmt::Display| problems.push(format!("line {}: {what}", index + 1));
            let (user, hash) = match line.split_once(':') {
                Some((user, hash)) if !user.trim().is_empty() => (user.trim(), hash.trim()),
                _ => {
                    problem(&"not of the form user:hash");
                    continue;
                }
            };
            match PasswordHash::parse(hash) {
                Ok(hash) => {
                    let last_good = Mutex::new(None);
                    let user = users.insert(user.to_owned(), User { hash, last_good });
                    if user.is_some() {
                        problem(&"the user was on an earlier line");
                    }
                }
                Err(error) => problem(&error),
            }
        }
        if users.is_empty() && problems.is_empty() {
            problems.push("there is no user".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new())
            .map_err(|_| vec!["the system has no random numbers".to_owned()])?;
        let decoy = users.values().next().map(|user: &User| user.hash.clone());
        Ok(Self { users, decoy, key })
    }

    fn check(&self, data: &[u8]) -> Result<Principal, BasicError> {
        if data.is_empty() {
            return Err(BasicError::Missing);
        }
        let (user, password) = parse(data).ok_or(BasicError::Malformed)?;
        let Some(known) = self.users.get(user) else {
            let _ = self
                .decoy
                .as_ref()
                .map(|hash| hash.is_of(password.as_bytes()));
            return Err(BasicError::Wrong);
        };
        let tag = hmac::sign(&self.key, password.as_bytes());
        if !known.remembers(&tag) {
            if !known.hash.is_of(password.as_bytes()) {
                return Err(BasicError::Wrong);
            }
            *known.last_good.lock() = Some(tag);
        }
        Ok(Principal {
            role: user.into(),
            method: METHOD.into(),
            expires_at: None,
        })
    }
}

impl Provider for BasicProvider {
    fn method(&self) -> &'static str {
        METHOD
    }

    fn name(&self) -> &'static str {
        "AuthenticationProviderBasic"
    }

    fn begin(
        &self,
        data: &[u8],
        _: &Presented<'_>,
        _: UnixTime,
    ) -> Result<Step, AuthenticationError> {
        Ok(Step::Done(self.check(data)?))
    }

    fn of_http(&self, authorization: Option<&str>, _: &Presented<'_>) -> Option<Vec<u8>> {
        let encoded = authorization?.strip_prefix("Basic ")?;
        // What cannot be decoded is a credential, and a wrong one.
        Some(STANDARD.decode(encoded.trim()).unwrap_or_default())
    }

    fn is_costly(&self, data: &[u8]) -> bool {
        // What is no user and password is refused without being hashed.
        let Some((user, password)) = parse(data) else {
            return false;
        };
        // Of every kind of hash: the cheapest takes a thousand rounds over what a stranger sends.
        let remembered = self.users.get(user).is_some_and(|known| {
            let tag = hmac::sign(&self.key, password.as_bytes());
            known.remembers(&tag)
        });
        !remembered
    }
}

impl fmt::Debug for BasicProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasicProvider")
            .field("users", &self.users.len())
            .finish_non_exhaustive()
    }
}

/// User and password; `None` where the data cannot be such.
fn parse(data: &[u8]) -> Option<(&str, &str)> {
    let (user, password) = std::str::from_utf8(data).ok()?.split_once(':')?;
    (!user.is_empty() && password.len() <= PASSWORD_LEN_MAX).then_some((user, password))
}

const METHOD: &str = "basic";
/// Longest password that is hashed, in bytes: the time that hashing takes grows with it, and with the most rounds that a hash may
/// have (a million) it has to end within a second or two.
const PASSWORD_LEN_MAX: usize = 256;
