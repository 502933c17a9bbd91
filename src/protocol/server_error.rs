//! The map from our errors to the error codes of the protocol.
//!
//! Owns the form in which a failure reaches a client. An error type that can reach one implements [`UserFacingError`];
//! nothing else builds an ERROR command out of an error. Clients decide by the code whether to try again, so the code
//! matters more than the text.

use crate::protocol::command::Command;
use crate::protocol::proto::pulsar::{CommandError, CommandSendError, ServerError};

/// The request id of an error that belongs to the connection, not to a request: -1 as Pulsar's clients write it.
pub const CONNECTION_REQUEST_ID: u64 = u64::MAX;

/// An error that may be shown to a client.
pub trait UserFacingError {
    /// The code for the client.
    fn code(&self) -> ServerError;

    /// Whether the same request may succeed if it is sent again, perhaps after another lookup.
    fn retryable(&self) -> bool;

    /// The text for the client. It must not contain paths, addresses or credentials of our side.
    fn client_message(&self) -> String;
}

/// The ERROR command that answers a request, or with [`CONNECTION_REQUEST_ID`] a whole connection.
pub fn error_command(request_id: u64, error: &dyn UserFacingError) -> Command {
    Command::from(CommandError {
        request_id,
        error: error.code() as i32,
        message: error.client_message(),
    })
}

/// The SEND_ERROR command that answers a SEND.
pub fn send_error_command(
    producer_id: u64,
    sequence_id: u64,
    error: &dyn UserFacingError,
) -> Command {
    Command::from(CommandSendError {
        producer_id,
        sequence_id,
        error: error.code() as i32,
        message: error.client_message(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Busy;

    impl UserFacingError for Busy {
        fn code(&self) -> ServerError {
            ServerError::ServiceNotReady
        }

        fn retryable(&self) -> bool {
            true
        }

        fn client_message(&self) -> String {
            "the topic is moving".to_owned()
        }
    }

    #[test]
    fn an_error_becomes_the_answer_to_its_request() {
        let command = error_command(7, &Busy);
        assert_eq!(command.request_id(), Some(7));
        let Command::Error(error) = &command else {
            panic!("{command:?}")
        };
        assert_eq!(error.error(), ServerError::ServiceNotReady);
        assert_eq!(error.message, "the topic is moving");
    }

    #[test]
    fn a_send_error_names_producer_and_sequence_id() {
        let Command::SendError(error) = send_error_command(1, 2, &Busy) else {
            panic!()
        };
        assert_eq!(
            (error.producer_id, error.sequence_id, error.error),
            (1, 2, 6)
        );
    }
}
