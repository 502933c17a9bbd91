//! What one connection knows about its requests and its peer. Pure: no IO, no clock.

use std::collections::{BTreeMap, BTreeSet};

use super::error::CloseReason;
use crate::protocol::{proto::pulsar::base_command::Type, server_error::CONNECTION_REQUEST_ID};

/// The requests that wait for an answer, and the keep-alive. `W` is what waits.
#[derive(Debug)]
pub(crate) struct ConnectionState<W> {
    /// By request id. Ordered, so that waiters are failed in the order of their requests. At most `max_in_flight`.
    pending: BTreeMap<u64, W>,
    max_in_flight: usize,
    /// Of `pending`, those whose answer the broker has announced for some later time.
    deferred: BTreeSet<u64>,
    /// All smaller ids have been used. Never reaches [`CONNECTION_REQUEST_ID`].
    next_request_id: u64,
    keep_alive: KeepAlive,
    ended: Option<CloseReason>,
}

/// Why a request was not registered; the waiter comes back.
#[derive(Debug)]
pub(crate) enum RegisterError {
    /// `max_in_flight` requests wait.
    TooMany,
    /// The connection has ended.
    Ended(CloseReason),
}

/// What a frame from the broker is to us.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming<W> {
    /// The answer that `W` waits for.
    Answer(W),
    /// To be answered with PONG at once.
    Ping,
    /// Nothing to do: it only showed that the broker lives.
    Alive,
    /// The answer to a request that nobody waits for any more.
    Late,
    /// An error of the whole connection.
    ConnectionError,
    /// Not an answer to any request of ours.
    Unsolicited,
}

/// What a tick of the keep-alive timer asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeepAliveAction {
    SendPing,
    Close,
}

impl<W> ConnectionState<W> {
    pub(crate) fn new(max_in_flight: usize) -> Self {
        Self {
            pending: BTreeMap::new(),
            max_in_flight,
            deferred: BTreeSet::new(),
            next_request_id: 0,
            keep_alive: KeepAlive {
                ping_unanswered: false,
            },
            ended: None,
        }
    }

    /// Takes a waiter in under a new request id.
    pub(crate) fn register(&mut self, waiter: W) -> Result<u64, RegisterError> {
        if let Some(reason) = &self.ended {
            return Err(RegisterError::Ended(reason.clone()));
        }
        if self.pending.len() >= self.max_in_flight {
            return Err(RegisterError::TooMany);
        }
        let request_id = self.next_request_id;
        self.next_request_id += 1;
        self.pending.insert(request_id, waiter);
        Ok(request_id)
    }

    /// Nobody waits for this answer any more.
    pub(crate) fn forget(&mut self, request_id: u64) {
        self.pending.remove(&request_id);
        self.deferred.remove(&request_id);
    }

    /// The broker has taken this request up and will answer when its time has come.
    pub(crate) fn defer(&mut self, request_id: u64) {
        if self.pending.contains_key(&request_id) {
            self.deferred.insert(request_id);
        }
    }

    /// Whether the answer to this request may take as long as it takes.
    pub(crate) fn is_deferred(&self, request_id: u64) -> bool {
        self.deferred.contains(&request_id)
    }

    /// Decides about a frame of this command type; `request_id` is the one its command carries, if any.
    ///
    /// The request id alone decides whose answer it is, never the type: the Apache proxy answers PARTITIONED_METADATA
    /// with a LOOKUP_RESPONSE when the broker refused, and ERROR may answer anything.
    pub(crate) fn on_frame(&mut self, command_type: i32, request_id: Option<u64>) -> Incoming<W> {
        match Type::try_from(command_type) {
            Ok(Type::Ping) => return Incoming::Ping,
            Ok(Type::Pong) => return Incoming::Alive,
            Ok(Type::Error) if request_id == Some(CONNECTION_REQUEST_ID) => {
                return Incoming::ConnectionError;
            }
            // The broker's own requests, whose ids are not ours.
            Ok(Type::CloseProducer | Type::CloseConsumer) => return Incoming::Unsolicited,
            _ => {}
        }
        let Some(request_id) = request_id else {
            return Incoming::Unsolicited;
        };
        match self.pending.remove(&request_id) {
            Some(waiter) => Incoming::Answer(waiter),
            None if request_id < self.next_request_id => Incoming::Late,
            None => Incoming::Unsolicited,
        }
    }

    /// Frames came, whatever they are.
    pub(crate) fn on_alive(&mut self) {
        self.keep_alive.ping_unanswered = false;
    }

    /// To be called once per keep-alive interval. While we do not read (`reading` false) silence is our own doing and
    /// says nothing about the broker.
    pub(crate) fn on_keep_alive_tick(&mut self, reading: bool) -> KeepAliveAction {
        if self.keep_alive.ping_unanswered && reading {
            return KeepAliveAction::Close;
        }
        self.keep_alive.ping_unanswered = reading;
        KeepAliveAction::SendPing
    }

    /// The connection is over; returns the waiters to fail. Only the first reason is kept.
    pub(crate) fn end(&mut self, reason: CloseReason) -> Vec<W> {
        self.ended.get_or_insert(reason);
        std::mem::take(&mut self.pending).into_values().collect()
    }

    /// Why the connection ended, or `None` while it lives.
    pub(crate) fn ended(&self) -> Option<&CloseReason> {
        self.ended.as_ref()
    }

    /// Requests that wait.
    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

#[derive(Debug)]
struct KeepAlive {
    /// We sent a PING and nothing has come since.
    ping_unanswered: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_frame<W>(
        state: &mut ConnectionState<W>,
        command_type: Type,
        request_id: u64,
    ) -> Incoming<W> {
        state.on_frame(command_type.into(), Some(request_id))
    }

    #[test]
    fn an_answer_finds_its_request_whatever_its_type() {
        let mut state = ConnectionState::new(10);
        let metadata = state.register("metadata").unwrap();
        let lookup = state.register("lookup").unwrap();
        assert_eq!(
            on_frame(&mut state, Type::LookupResponse, metadata),
            Incoming::Answer("metadata")
        );
        assert_eq!(
            on_frame(&mut state, Type::Error, lookup),
            Incoming::Answer("lookup")
        );
        assert_eq!(state.in_flight(), 0);
    }

    #[test]
    fn a_second_answer_and_one_to_a_forgotten_request_are_late() {
        let mut state = ConnectionState::new(10);
        let answered = state.register(()).unwrap();
        let forgotten = state.register(()).unwrap();
        state.forget(forgotten);
        assert_eq!(
            on_frame(&mut state, Type::Success, answered),
            Incoming::Answer(())
        );
        assert_eq!(
            on_frame(&mut state, Type::Success, answered),
            Incoming::Late
        );
        assert_eq!(
            on_frame(&mut state, Type::Success, forgotten),
            Incoming::Late
        );
    }

    #[test]
    fn what_answers_nothing_is_unsolicited() {
        let mut state = ConnectionState::new(10);
        let request = state.register(()).unwrap();
        assert_eq!(
            on_frame(&mut state, Type::Success, request + 1),
            Incoming::Unsolicited
        );
        assert_eq!(
            state.on_frame(Type::Message.into(), None),
            Incoming::Unsolicited
        );
        assert_eq!(
            on_frame(&mut state, Type::CloseConsumer, request),
            Incoming::Unsolicited
        );
        assert_eq!(state.on_frame(9999, None), Incoming::Unsolicited);
        assert_eq!(state.in_flight(), 1);
    }

    #[test]
    fn an_error_without_a_request_is_of_the_connection() {
        let mut state = ConnectionState::<()>::new(10);
        assert_eq!(
            on_frame(&mut state, Type::Error, CONNECTION_REQUEST_ID),
            Incoming::ConnectionError
        );
    }

    #[test]
    fn requests_in_flight_are_bounded() {
        let mut state = ConnectionState::new(2);
        let first = state.register(()).unwrap();
        state.register(()).unwrap();
        assert!(matches!(state.register(()), Err(RegisterError::TooMany)));
        on_frame(&mut state, Type::Success, first);
        assert!(state.register(()).is_ok());
    }

    #[test]
    fn the_end_returns_all_waiters_in_order_and_keeps_its_first_reason() {
        let mut state = ConnectionState::new(10);
        for waiter in 0..5 {
            state.register(waiter).unwrap();
        }
        assert_eq!(state.end(CloseReason::KeepAliveTimeout), [0, 1, 2, 3, 4]);
        assert!(state.end(CloseReason::Local).is_empty());
        assert!(matches!(state.ended(), Some(CloseReason::KeepAliveTimeout)));
        let refused = state.register(6);
        assert!(matches!(
            refused,
            Err(RegisterError::Ended(CloseReason::KeepAliveTimeout))
        ));
    }

    #[test]
    fn silence_for_a_whole_interval_after_a_ping_closes() {
        let mut state = ConnectionState::<()>::new(1);
        assert_eq!(state.on_keep_alive_tick(true), KeepAliveAction::SendPing);
        assert_eq!(state.on_keep_alive_tick(true), KeepAliveAction::Close);
    }

    #[test]
    fn any_frame_shows_that_the_broker_lives() {
        let mut state = ConnectionState::<()>::new(1);
        for _ in 0..3 {
            assert_eq!(state.on_keep_alive_tick(true), KeepAliveAction::SendPing);
            state.on_alive();
        }
    }

    #[test]
    fn silence_while_we_do_not_read_does_not_count() {
        let mut state = ConnectionState::<()>::new(1);
        for _ in 0..3 {
            assert_eq!(state.on_keep_alive_tick(false), KeepAliveAction::SendPing);
        }
        assert_eq!(state.on_keep_alive_tick(true), KeepAliveAction::SendPing);
        assert_eq!(state.on_keep_alive_tick(true), KeepAliveAction::Close);
    }
}
