//! How long a client's credential is good, and when it is asked for another; pure.

use std::sync::Arc;
use std::time::Duration;

use crate::auth::{Principal, UnixTime};

/// The credential of one client from its CONNECT on.
#[derive(Debug)]
pub(crate) struct Renewal {
    role: Arc<str>,
    /// How long the client has to answer when it is asked; `None`: it is not asked, and its connection ends at expiry.
    answer_within: Option<Duration>,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Good until then, or for ever.
    Good(Option<UnixTime>),
    /// Asked for another, which must come until then.
    Asked(UnixTime),
}

/// What has to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Ask the client for another credential.
    Ask,
    /// Close its connection.
    Close,
}

impl Renewal {
    pub(crate) fn new(principal: &Principal, answer_within: Option<Duration>) -> Self {
        Self {
            role: Arc::clone(&principal.role),
            answer_within,
            phase: Phase::Good(principal.expires_at),
        }
    }

    /// When something has to be done.
    pub(crate) fn deadline(&self) -> Option<UnixTime> {
        match self.phase {
            Phase::Good(until) => until,
            Phase::Asked(until) => Some(until),
        }
    }

    /// What has to be done now.
    pub(crate) fn on_time(&mut self, now: UnixTime) -> Option<Due> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        match (self.phase, self.answer_within) {
            (Phase::Good(_), Some(answer_within)) => {
                self.phase = Phase::Asked(now.checked_add(answer_within).unwrap_or(now));
                Some(Due::Ask)
            }
            _ => Some(Due::Close),
        }
    }

    /// Whether an answer of the client is due.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.phase, Phase::Asked(_))
    }

    /// Takes the client's new credential; `false`: it is of another role, which brokers do not allow either.
    pub(crate) fn on_renewed(&mut self, principal: &Principal) -> bool {
        if principal.role != self.role {
            return false;
        }
        self.phase = Phase::Good(principal.expires_at);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> UnixTime {
        UnixTime::new(Duration::from_secs(seconds))
    }

    fn principal(role: &str, expires_at: Option<u64>) -> Principal {
        Principal {
            role: role.into(),
            method: "token".into(),
            expires_at: expires_at.map(at),
        }
    }

    #[test]
    fn a_client_that_cannot_renew_ends_at_expiry() {
        let mut renewal = Renewal::new(&principal("me", Some(10)), None);
        assert_eq!(renewal.deadline(), Some(at(10)));
        assert_eq!(renewal.on_time(at(9)), None);
        assert_eq!(renewal.on_time(at(10)), Some(Due::Close));
        let mut renewal = Renewal::new(&principal("me", None), None);
        assert_eq!(
            (renewal.deadline(), renewal.on_time(at(u64::MAX))),
            (None, None)
        );
    }

    #[test]
    fn a_client_is_asked_once_and_has_one_interval_to_answer() {
        let mut renewal = Renewal::new(&principal("me", Some(10)), Some(Duration::from_secs(5)));
        assert_eq!(renewal.on_time(at(12)), Some(Due::Ask));
        assert!(renewal.is_asked());
        assert_eq!(renewal.on_time(at(16)), None);
        assert_eq!(renewal.deadline(), Some(at(17)));
        assert_eq!(renewal.on_time(at(17)), Some(Due::Close));
    }

    #[test]
    fn an_answer_of_the_same_role_begins_anew_and_one_of_another_does_not() {
        let mut renewal = Renewal::new(&principal("me", Some(10)), Some(Duration::from_secs(5)));
        assert_eq!(renewal.on_time(at(10)), Some(Due::Ask));
        assert!(!renewal.on_renewed(&principal("you", Some(100))));
        assert!(renewal.is_asked());
        assert!(renewal.on_renewed(&principal("me", Some(100))));
        assert!(!renewal.is_asked());
        assert_eq!(renewal.deadline(), Some(at(100)));
    }
}
