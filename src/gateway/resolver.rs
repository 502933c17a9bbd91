//! Answers lookups of one client from the brokers behind the gateway.
//!
//! The client's command goes to a broker as it came, but for its request id and the fields that are between proxies; the
//! broker's answer goes back as it came, but for its request id and, in a found lookup, the URLs. So error codes, frame types
//! and fields that this version does not know get through in both directions. Only what no broker answered is answered here.
//!
//! Clients may share connections to brokers (`pools`), so nothing goes out that would make a broker close one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tracing::debug;

use super::Shared;
use super::answers::{NoRoom, Room};
use super::pools::{ClientPools, LookupPool, is_broken_off, is_refused};
use super::stats::LookupRequest;
use crate::client::lookup::{LookupFailure, MAX_REDIRECTS, ask, follow};
use crate::client::{BrokerPool, Denied};
use crate::naming::BrokerAddress;
use crate::protocol::command::{Command, CommandError};
use crate::protocol::fields;
use crate::protocol::frame::Frame;
use crate::protocol::proto::pulsar::base_command::Type;
use crate::protocol::proto::pulsar::command_lookup_topic_response::LookupType;
use crate::protocol::proto::pulsar::{
    CommandLookupTopicResponse, CommandPartitionedTopicMetadataResponse, ServerError,
    command_lookup_topic_response, command_partitioned_topic_metadata_response,
};
use crate::protocol::rewrite::{self, CommandEditor};
use crate::protocol::server_error::{UserFacingError, error_command};

/// Asks brokers for one client, under the client's own identity.
#[derive(Debug, Clone)]
pub(crate) struct Resolver {
    shared: Arc<Shared>,
    pools: Arc<ClientPools>,
}

/// Why no broker's answer can be given.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("Too many concurrent lookup and partitionsMetadata requests")]
    TooMany,
    #[error("Too many topic lists and schemas wait for their clients")]
    NoRoom,
    #[error("the brokers did not answer within {0:?}")]
    TooLong(Duration),
    #[error("{0}")]
    Broker(#[from] Arc<LookupFailure>),
    #[error("the command: {0}")]
    Command(#[from] CommandError),
    #[error("the command names no topic or namespace")]
    Unnamed,
}

impl UserFacingError for NoAnswer {
    fn code(&self) -> ServerError {
        match self {
            Self::TooMany | Self::NoRoom => ServerError::TooManyRequests,
            Self::TooLong(_) => ServerError::ServiceNotReady,
            Self::Broker(failure) => failure.code(),
            Self::Command(_) | Self::Unnamed => ServerError::MetadataError,
        }
    }

    fn retryable(&self) -> bool {
        match self {
            Self::TooMany | Self::NoRoom | Self::TooLong(_) => true,
            Self::Broker(failure) => failure.retryable(),
            Self::Command(_) | Self::Unnamed => false,
        }
    }

    fn client_message(&self) -> String {
        match self {
            Self::TooMany | Self::NoRoom => self.to_string(),
            Self::TooLong(_) => "The broker did not answer in time".to_owned(),
            Self::Broker(failure) => failure.client_message(),
            Self::Command(_) | Self::Unnamed => "The lookup could not be understood".to_owned(),
        }
    }
}

/// What a client gets.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The encoded command.
    pub(crate) command: Bytes,
    /// What it takes of the room for large answers, until the client has it.
    pub(crate) room: Option<Room>,
}

impl Resolver {
    pub(crate) fn new(shared: Arc<Shared>, pools: ClientPools) -> Self {
        Self {
            shared,
            pools: Arc::new(pools),
        }
    }

    /// The answer to the client's `command`, with the client's request id. `None`: a broker does not take the client's
    /// credential any more, and only a new connection can bring another.
    pub(crate) async fn answer(
        &self,
        request: LookupRequest,
        command: Bytes,
        request_id: u64,
    ) -> Option<Answer> {
        let _timer = self.shared.metrics.request_received(request);
        let answer = async {
            let _permit = self
                .shared
                .lookups
                .try_acquire()
                .map_err(|_| NoAnswer::TooMany)?;
            let command = self.to_brokers(request, &command)?;
            if !request.may_be_large() {
                let frame = self.ask(request, &command).await?;
                let command = rewrite::with_request_id(&frame.command, request_id)?;
                return Ok(Answer {
                    command,
                    room: None,
                });
            }
            let large_answers = &self.shared.large_answers;
            let turn = large_answers.turn().await;
            let frame = self.ask(request, &command).await?;
            let room = large_answers.room(frame.command.len(), turn).await;
            let room = room.map_err(|NoRoom| NoAnswer::NoRoom)?;
            Ok(Answer {
                command: rewrite::with_request_id(&frame.command, request_id)?,
                room: Some(room),
            })
        };
        // Where nobody answers a PING, no answer is to be waited for.
        let limit = if self.shared.brokers.all_silent() {
            SILENT_LOOKUP_TIMEOUT
        } else {
            LOOKUP_TIMEOUT
        };
        let error = match timeout(limit, answer).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => error,
            Err(_) => NoAnswer::TooLong(limit),
        };
        debug!(?request, "no answer for a client: {error}");
        match &error {
            NoAnswer::TooMany | NoAnswer::NoRoom => {
                self.shared.metrics.request_rejected(request);
            }
            NoAnswer::Broker(failure) if is_refused(failure) && !self.pools.current().1 => {
                return None;
            }
            // Told already.
            NoAnswer::Broker(failure) if matches!(**failure, LookupFailure::Denied(_)) => {}
            NoAnswer::Command(_) | NoAnswer::Unnamed => {}
            NoAnswer::Broker(_) | NoAnswer::TooLong(_) => self.shared.notices.unreachable(&error),
        }
        self.shared.metrics.request_failed(error.code());
        Some(Answer {
            command: failure(request, request_id, &error).encode_command(),
            room: None,
        })
    }

    /// The client's command as brokers get it. Its request id is always the same, so that equal requests have equal bytes.
    fn to_brokers(&self, request: LookupRequest, command: &[u8]) -> Result<Bytes, NoAnswer> {
        let mut editor = CommandEditor::new(command)?;
        // A broker closes the connection over a command without its required fields, and over a namespace that is none.
        let named = match request {
            LookupRequest::Lookup => fields::lookup::TOPIC,
            LookupRequest::PartitionedMetadata => fields::partitioned_metadata::TOPIC,
            LookupRequest::TopicsOfNamespace => fields::topics_of_namespace::NAMESPACE,
            LookupRequest::Schema => fields::get_schema::TOPIC,
        };
        let name = editor.bytes(named).ok_or(NoAnswer::Unnamed)?;
        match request {
            LookupRequest::Lookup => {
                // A client behind a gateway sees no redirect, so none of its lookups is authoritative.
                editor.set_bool(fields::lookup::AUTHORITATIVE, false);
                let listener = fields::lookup::ADVERTISED_LISTENER_NAME;
                if let Some(name) = &self.shared.settings.discovery.broker_listener_name
                    && editor.bytes(listener).is_none_or(<[u8]>::is_empty)
                {
                    editor.set_bytes(listener, name.as_bytes());
                }
                without(&mut editor, &LOOKUP_ORIGINALS);
            }
            LookupRequest::PartitionedMetadata => {
                without(&mut editor, &PARTITIONED_METADATA_ORIGINALS);
            }
            LookupRequest::TopicsOfNamespace => {
                if !is_namespace(name) {
                    return Err(NoAnswer::Unnamed);
                }
            }
            LookupRequest::Schema => {}
        }
        Ok(rewrite::with_request_id(&editor.finish(), 0)?)
    }

    /// Asks over the connections that this client shares with others, and where a broker broke these off, over some of its own.
    async fn ask(
        &self,
        request: LookupRequest,
        command: &Bytes,
    ) -> Result<Frame, Arc<LookupFailure>> {
        let (pool, common) = self.pools.current();
        match self.ask_at(pool, request, command).await {
            Err(failure) if common && is_broken_off(&failure) => {
                debug!("a client gets connections to brokers of its own: {failure}");
                self.ask_at(self.pools.own(), request, command).await
            }
            answer => answer,
        }
    }

    async fn ask_at(
        &self,
        pool: &Arc<LookupPool>,
        request: LookupRequest,
        command: &Bytes,
    ) -> Result<Frame, Arc<LookupFailure>> {
        let start = || {
            let (shared, brokers) = (Arc::clone(&self.shared), pool.brokers().clone());
            let command = command.clone();
            async move {
                match request {
                    LookupRequest::Lookup => lookup(&shared, &brokers, command).await,
                    LookupRequest::PartitionedMetadata
                    | LookupRequest::TopicsOfNamespace
                    | LookupRequest::Schema => ask(&brokers, None, &command).await,
                }
            }
        };
        pool.once(self.shared.pools.tracker(), command, start).await
    }
}

async fn lookup(
    shared: &Shared,
    brokers: &BrokerPool,
    command: Bytes,
) -> Result<Frame, LookupFailure> {
    let learn = |broker: &BrokerAddress| {
        shared.policy.learn(broker);
        // Apache's rules, where they are set, hold for redirects as well.
        shared.policy.check(broker).map_err(|denied| {
            shared.notices.denied(&denied);
            Denied
        })
    };
    let frame = follow(brokers, command, &learn, MAX_REDIRECTS).await?;
    Ok(to_client(
        frame,
        shared.settings.discovery.lookup_only,
        shared.settings.tls.brokers.enabled,
    )?)
}

/// Makes a found lookup one that the client follows through the gateway: both URLs name the broker as we reach it, with TLS or
/// without, for the client takes host and port from whichever it prefers and comes back with them in `proxy_to_broker_url`.
/// Where clients are not connected to brokers, it is one that the client follows by itself.
fn to_client(frame: Frame, lookup_only: bool, tls: bool) -> Result<Frame, CommandError> {
    let mut editor = CommandEditor::new(&frame.command)?;
    let connect = u64::try_from(LookupType::Connect as i32).ok();
    if editor.command_type() != Type::LookupResponse as i32
        || editor.varint(fields::lookup_response::RESPONSE) != connect
    {
        return Ok(frame);
    }
    if !lookup_only {
        let ours = if tls {
            fields::lookup_response::BROKER_SERVICE_URL_TLS
        } else {
            fields::lookup_response::BROKER_SERVICE_URL
        };
        let Some(url) = editor.bytes(ours) else {
            return Ok(frame);
        };
        editor.set_bytes(fields::lookup_response::BROKER_SERVICE_URL, url);
        editor.set_bytes(fields::lookup_response::BROKER_SERVICE_URL_TLS, url);
        editor.set_bool(fields::lookup_response::AUTHORITATIVE, true);
    }
    editor.set_bool(
        fields::lookup_response::PROXY_THROUGH_SERVICE_URL,
        !lookup_only,
    );
    Ok(Frame {
        command: editor.finish(),
        payload: frame.payload.clone(),
    })
}

/// Whether a name has the form of a namespace, `tenant/namespace` or the old one with a cluster in between. Which characters it may
/// have is for brokers to say.
fn is_namespace(name: &[u8]) -> bool {
    let parts = || name.split(|byte| *byte == b'/');
    matches!(parts().count(), 2 | 3) && parts().all(|part| !part.is_empty())
}

fn without(editor: &mut CommandEditor<'_>, fields: &[u32]) {
    for field in fields {
        editor.remove(*field);
    }
}

/// The answer of the gateway itself, in the frame type that the client waits for.
fn failure(request: LookupRequest, request_id: u64, error: &NoAnswer) -> Command {
    let code = Some(error.code() as i32);
    let message = Some(error.client_message());
    match request {
        LookupRequest::Lookup => Command::LookupResponse(CommandLookupTopicResponse {
            request_id,
            response: Some(command_lookup_topic_response::LookupType::Failed as i32),
            error: code,
            message,
            ..Default::default()
        }),
        LookupRequest::PartitionedMetadata => {
            Command::PartitionedMetadataResponse(CommandPartitionedTopicMetadataResponse {
                request_id,
                response: Some(
                    command_partitioned_topic_metadata_response::LookupType::Failed as i32,
                ),
                error: code,
                message,
                ..Default::default()
            })
        }
        LookupRequest::TopicsOfNamespace | LookupRequest::Schema => {
            error_command(request_id, error)
        }
    }
}

/// Fields between proxies, which a client has no business in.
const PARTITIONED_METADATA_ORIGINALS: [u32; 3] = [
    fields::partitioned_metadata::ORIGINAL_PRINCIPAL,
    fields::partitioned_metadata::ORIGINAL_AUTH_DATA,
    fields::partitioned_metadata::ORIGINAL_AUTH_METHOD,
];
const LOOKUP_ORIGINALS: [u32; 3] = [
    fields::lookup::ORIGINAL_PRINCIPAL,
    fields::lookup::ORIGINAL_AUTH_DATA,
    fields::lookup::ORIGINAL_AUTH_METHOD,
];

/// Longest time for one request, redirects and other brokers included: what clients wait.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);
/// The same while no broker answers a PING: an answer that says so is of more use to a client than none.
const SILENT_LOOKUP_TIMEOUT: Duration = Duration::from_millis(900);
