//! What a consumer has to send and its connection had no room for, in order.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::error::AckError;
use crate::{
    client::{
        connection::{Connection, LaterAnswer},
        error::{ClientError, RequestError},
        handshake::server_error,
    },
    net::{OutboundError, Outgoing},
    protocol::{
        command::{Command, name_of},
        proto::pulsar::{CommandAck, CommandGetLastMessageId},
    },
};

/// Waits for the answer to an acknowledgement.
pub(super) type Receipt = oneshot::Sender<Result<(), AckError>>;

/// One thing to send.
pub(super) enum Unsent {
    /// Without an answer.
    Command(Command),
    /// With answers that somebody waits for.
    Acknowledgements(Acknowledging),
}

/// Acknowledgements whose answers are wanted. They are queued as everything else is, so that they leave before what is sent
/// after them; only the answers are waited for elsewhere.
pub(super) struct Acknowledging {
    unsent: VecDeque<CommandAck>,
    answers: Vec<LaterAnswer>,
    /// The consumer of acknowledgements that this broker does not answer, until it is asked something else behind them.
    unanswered: Option<u64>,
    /// What it was asked.
    asked: Option<LaterAnswer>,
    result: Result<(), AckError>,
    receipts: Vec<Receipt>,
}

impl Acknowledging {
    /// Nothing of it was sent.
    pub(super) fn new(acks: Vec<CommandAck>, receipts: Vec<Receipt>) -> Self {
        Self {
            unsent: acks.into(),
            answers: Vec::new(),
            unanswered: None,
            asked: None,
            result: Ok(()),
            receipts,
        }
    }

    /// Sends as long as there is room; says whether all was sent.
    fn send(&mut self, connection: &Connection) -> bool {
        let version = connection.connected().protocol_version();
        let has_answers = version >= ACK_RECEIPTS;
        while let Some(ack) = self.unsent.front_mut() {
            if !has_answers {
                let command = Command::from(ack.clone());
                match connection.send(Outgoing::Command(&command)) {
                    Ok(()) if version >= LAST_MESSAGE_IDS => {
                        self.unanswered = Some(ack.consumer_id);
                    }
                    Ok(()) => {}
                    Err(OutboundError::Full) => return false,
                    Err(OutboundError::Closed) => {
                        self.result = Err(AckError::Client(ClientError::NotConnected));
                    }
                }
                self.unsent.pop_front();
                continue;
            }
            ack.request_id = Some(0);
            match connection.request_later(Command::from(ack.clone())) {
                Ok(Some(answer)) => self.answers.push(answer),
                Ok(None) => return false,
                Err(error) => self.result = Err(AckError::Client(error.into())),
            }
            self.unsent.pop_front();
        }
        if let Some(consumer_id) = self.unanswered {
            let ask = CommandGetLastMessageId {
                consumer_id,
                request_id: 0,
            };
            match connection.request_later(Command::from(ask)) {
                Ok(Some(answer)) => self.asked = Some(answer),
                Ok(None) => return false,
                Err(error) => self.result = Err(AckError::Client(error.into())),
            }
            self.unanswered = None;
        }
        true
    }

    /// Waits for the answers and passes the worst of them on.
    async fn wait(mut self) {
        for answer in std::mem::take(&mut self.answers) {
            if let Err(error) = outcome(answer.wait().await) {
                self.result = Err(error);
            }
        }
        if let Some(asked) = self.asked.take() {
            match asked.wait().await {
                // Whatever it answers: it has read what came before.
                Ok(_) | Err(RequestError::Refused { .. }) => {}
                Err(error) => self.result = Err(AckError::Client(error.into())),
            }
        }
        let result = self.result;
        for receipt in self.receipts {
            let _ = receipt.send(result.clone());
        }
    }
}

fn outcome(answer: Result<Command, RequestError>) -> Result<(), AckError> {
    match answer {
        Ok(Command::AckResponse(response)) => match response.error {
            None => Ok(()),
            Some(code) => Err(AckError::Refused {
                code: server_error(code),
                message: response.message.unwrap_or_default(),
            }),
        },
        Ok(answer) => Err(AckError::Client(ClientError::UnexpectedAnswer(name_of(
            answer.command_type(),
        )))),
        Err(error) => Err(AckError::Client(error.into())),
    }
}

/// Sends in order until there is no room; says whether all was sent. After the end of the connection nothing is kept.
pub(super) fn send_all(
    connection: &Connection,
    unsent: &mut VecDeque<Unsent>,
    tracker: &TaskTracker,
) -> bool {
    while let Some(mut next) = unsent.pop_front() {
        let is_sent = match &mut next {
            Unsent::Command(command) => {
                // What cannot be sent any more belongs to a connection that has ended.
                connection.send(Outgoing::Command(command)) != Err(OutboundError::Full)
            }
            Unsent::Acknowledgements(acks) => acks.send(connection),
        };
        if !is_sent {
            unsent.push_front(next);
            return false;
        }
        if let Unsent::Acknowledgements(acks) = next {
            tracker.spawn(acks.wait());
        }
    }
    true
}

/// The protocol version from which on brokers answer acknowledgements (`v17` of `ProtocolVersion`). Older ones are asked
/// for the last message behind them: they do what they are told on a connection in order, so the answer says that it was done.
const ACK_RECEIPTS: i32 = 17;

/// The protocol version from which on brokers can be asked for the last message (`v12`). Older ones are believed without an
/// answer, as Apache's clients do.
const LAST_MESSAGE_IDS: i32 = 12;

/// Tells who waits for what was not sent, and will not be, why.
pub(super) fn give_up(unsent: &mut VecDeque<Unsent>, error: &AckError) {
    for unsent in unsent.drain(..) {
        if let Unsent::Acknowledgements(acks) = unsent {
            for receipt in acks.receipts {
                let _ = receipt.send(Err(error.clone()));
            }
        }
    }
}
