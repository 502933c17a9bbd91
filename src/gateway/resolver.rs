//! Answers lookups of one client from the brokers behind the gateway.
//!
//! The client's command goes to a broker as it came, but for its request id and the fields that are between proxies; the
//! broker's answer goes back as it came, but for its request id and, in a found lookup, the URLs. So error codes, frame types
//! and fields that this version does not know get through in both directions. Only what no broker answered is answered here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tracing::debug;

use super::Shared;
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
    brokers: BrokerPool,
}

/// Why no broker's answer can be given.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("Too many concurrent lookup and partitionsMetadata requests")]
    TooMany,
    #[error("the brokers did not answer within {LOOKUP_TIMEOUT:?}")]
    TooLong,
    #[error("{0}")]
    Broker(#[from] LookupFailure),
    #[error("the command: {0}")]
    Command(#[from] CommandError),
}

impl UserFacingError for NoAnswer {
    fn code(&self) -> ServerError {
        match self {
            Self::TooMany => ServerError::TooManyRequests,
            Self::TooLong => ServerError::ServiceNotReady,
            Self::Broker(failure) => failure.code(),
            Self::Command(_) => ServerError::MetadataError,
        }
    }

    fn retryable(&self) -> bool {
        match self {
            Self::TooMany | Self::TooLong => true,
            Self::Broker(failure) => failure.retryable(),
            Self::Command(_) => false,
        }
    }

    fn client_message(&self) -> String {
        match self {
            Self::TooMany => self.to_string(),
            Self::TooLong => "The broker did not answer in time".to_owned(),
            Self::Broker(failure) => failure.client_message(),
            Self::Command(_) => "The lookup could not be understood".to_owned(),
        }
    }
}

impl Resolver {
    pub(crate) fn new(shared: Arc<Shared>, brokers: BrokerPool) -> Self {
        Self { shared, brokers }
    }

    /// The encoded answer to the client's `command`, with the client's request id. `None`: a broker does not take the client's
    /// credential any more, and only a new connection can bring another.
    pub(crate) async fn answer(
        &self,
        request: LookupRequest,
        command: Bytes,
        request_id: u64,
    ) -> Option<Bytes> {
        let _timer = self.shared.metrics.request_received(request);
        let answer = async {
            let _permit = self
                .shared
                .lookups
                .try_acquire()
                .map_err(|_| NoAnswer::TooMany)?;
            let frame = match request {
                LookupRequest::Lookup => self.lookup(&command).await?,
                LookupRequest::PartitionedMetadata => {
                    ask(
                        &self.brokers,
                        None,
                        &without(&command, &PARTITIONED_METADATA_ORIGINALS)?,
                    )
                    .await?
                }
                LookupRequest::TopicsOfNamespace | LookupRequest::Schema => {
                    ask(&self.brokers, None, &command).await?
                }
            };
            Ok(rewrite::with_request_id(&frame.command, request_id)?)
        };
        let error = match timeout(LOOKUP_TIMEOUT, answer).await {
            Ok(Ok(command)) => return Some(command),
            Ok(Err(error)) => error,
            Err(_) => NoAnswer::TooLong,
        };
        debug!(?request, "no answer for a client: {error}");
        match &error {
            NoAnswer::TooMany => self.shared.metrics.request_rejected(request),
            NoAnswer::Broker(LookupFailure::Pool(pool)) if pool.is_about_the_client() => {
                return None;
            }
            // Told already.
            NoAnswer::Broker(LookupFailure::Denied(_)) | NoAnswer::Command(_) => {}
            NoAnswer::Broker(_) | NoAnswer::TooLong => self.shared.notices.unreachable(&error),
        }
        self.shared.metrics.request_failed(error.code());
        Some(failure(request, request_id, &error).encode_command())
    }

    async fn lookup(&self, command: &[u8]) -> Result<Frame, NoAnswer> {
        let mut first = CommandEditor::new(command)?;
        // A client behind a gateway sees no redirect, so none of its lookups is authoritative.
        first.set_bool(fields::lookup::AUTHORITATIVE, false);
        for field in LOOKUP_ORIGINALS {
            first.remove(field);
        }
        let first = first.finish();
        let learn = |broker: &BrokerAddress| {
            self.shared.policy.learn(broker);
            // Apache's rules, where they are set, hold for redirects as well.
            self.shared.policy.check(broker).map_err(|denied| {
                self.shared.notices.denied(&denied);
                Denied
            })
        };
        let frame = follow(&self.brokers, first, &learn, MAX_REDIRECTS).await?;
        Ok(through_gateway(frame)?)
    }
}

/// Makes a found lookup one that the client follows through the gateway: both URLs name the broker, for the client takes host
/// and port from whichever it prefers and comes back with them in `proxy_to_broker_url`.
fn through_gateway(frame: Frame) -> Result<Frame, CommandError> {
    let mut editor = CommandEditor::new(&frame.command)?;
    let connect = u64::try_from(LookupType::Connect as i32).ok();
    if editor.command_type() != Type::LookupResponse as i32
        || editor.varint(fields::lookup_response::RESPONSE) != connect
    {
        return Ok(frame);
    }
    let Some(url) = editor.bytes(fields::lookup_response::BROKER_SERVICE_URL) else {
        return Ok(frame);
    };
    editor.set_bytes(fields::lookup_response::BROKER_SERVICE_URL, url);
    editor.set_bytes(fields::lookup_response::BROKER_SERVICE_URL_TLS, url);
    editor.set_bool(fields::lookup_response::AUTHORITATIVE, true);
    editor.set_bool(fields::lookup_response::PROXY_THROUGH_SERVICE_URL, true);
    Ok(Frame {
        command: editor.finish(),
        payload: frame.payload.clone(),
    })
}

fn without(command: &[u8], fields: &[u32]) -> Result<Bytes, CommandError> {
    let mut editor = CommandEditor::new(command)?;
    for field in fields {
        editor.remove(*field);
    }
    Ok(editor.finish())
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
