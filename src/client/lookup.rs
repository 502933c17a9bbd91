//! Lookups: which broker serves a topic, how many partitions it has, which topics a namespace has.
//!
//! [`follow`] works on encoded commands, for a gateway that changes nothing it does not have to;
//! [`LookupClient`] is the typed form on top of the same pool.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;

use super::{
    error::{ConnectError, RequestError},
    handshake::server_error,
    pool::{BrokerPool, PoolError},
};
use crate::{
    naming::{BrokerAddress, NameError, NamespaceName, TopicName},
    protocol::{
        command::{Command, CommandError, name_of},
        fields,
        frame::Frame,
        proto::pulsar::{
            CommandGetSchema, CommandGetTopicsOfNamespace, CommandLookupTopic,
            CommandLookupTopicResponse, CommandPartitionedTopicMetadata, Schema, ServerError,
            command_get_topics_of_namespace::Mode, command_lookup_topic_response::LookupType,
            command_partitioned_topic_metadata_response,
        },
        rewrite::CommandEditor,
        server_error::UserFacingError,
    },
};

/// The caller's judgement that a broker must not be connected or named to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this broker is not an allowed target")]
pub struct Denied;

/// Why a lookup has no answer of a broker to return.
#[derive(Debug, thiserror::Error)]
pub enum LookupFailure {
    /// No broker can be connected, or not the one that the lookup was redirected to.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The broker that was asked did not answer.
    #[error("broker {address}: {error}")]
    Request {
        /// The broker.
        address: BrokerAddress,
        /// What happened.
        error: RequestError,
    },
    /// The lookup was redirected more often than allowed.
    #[error("more than {0} redirects")]
    TooManyRedirects(usize),
    /// The lookup came back to a broker in the same way as before.
    #[error("redirected to {0} for the second time")]
    Loop(BrokerAddress),
    /// The answer names its broker in a way that cannot be understood.
    #[error("the answer names a malformed broker URL: {0}")]
    BadUrl(#[from] NameError),
    /// The answer is to connect or to go on, and names no broker.
    #[error("the answer names no broker")]
    NoUrl,
    /// The answer names a broker that the caller does not allow.
    #[error("the answer names {0}, which is not an allowed target")]
    Denied(BrokerAddress),
    /// What came, or was to be sent, cannot be read as a command.
    #[error("malformed command: {0}")]
    Command(#[from] CommandError),
}

/// Asks the cluster with an encoded LOOKUP, follows redirects, and returns the last answer as it came (its request id is
/// that of the connection): a LOOKUP_RESPONSE that says Connect or Failed, or an ERROR.
///
/// The first broker is any of the service URL. Each redirect goes to its `brokerServiceUrl` (`brokerServiceUrlTls` where the service URL is
/// one with TLS), carrying the `authoritative`
/// flag of the answer and all other fields unchanged. `check` judges every broker named, redirect targets before they are
/// connected. A broker that ends the connection instead of answering is asked once more (the first time: another one of
/// the service URL), since looking up changes nothing. Cancel-safe.
///
/// # Errors
/// See [`LookupFailure`].
pub async fn follow(
    pool: &BrokerPool,
    command: Bytes,
    check: &(dyn Fn(&BrokerAddress) -> Result<(), Denied> + Sync),
    max_redirects: usize,
) -> Result<Frame, LookupFailure> {
    let mut command = command;
    let mut target = None;
    let mut visited = HashSet::new();
    let tls = pool.tls();
    for _ in 0..=max_redirects {
        let frame = ask(pool, target.as_ref(), &command).await?;
        let Command::LookupResponse(response) = Command::decode(&frame.command)? else {
            return Ok(frame);
        };
        // A type that this version does not know is the caller's to judge, like a failure.
        let named = response
            .response
            .map_or(Ok(LookupType::Redirect), LookupType::try_from);
        match named.unwrap_or(LookupType::Failed) {
            LookupType::Failed => return Ok(frame),
            LookupType::Connect => {
                let address = broker_of(&response, tls)?;
                check(&address).map_err(|Denied| LookupFailure::Denied(address))?;
                return Ok(frame);
            }
            LookupType::Redirect => {
                let address = broker_of(&response, tls)?;
                if check(&address).is_err() {
                    return Err(LookupFailure::Denied(address));
                }
                // Coming back with another flag is a way on: the first broker may be the one that decides.
                if !visited.insert((address.clone(), response.authoritative())) {
                    return Err(LookupFailure::Loop(address));
                }
                let mut editor = CommandEditor::new(&command)?;
                editor.set_bool(fields::lookup::AUTHORITATIVE, response.authoritative());
                command = editor.finish();
                target = Some(address);
            }
        }
    }
    Err(LookupFailure::TooManyRedirects(max_redirects))
}

/// Sends a command to `target`, or to any broker of the service URL, and once more if the connection ends meanwhile. Where any
/// broker will do, the one that did not answer is spared like one that cannot be connected, and another one is asked. Cancel-safe.
///
/// # Errors
/// [`LookupFailure::Pool`] and [`LookupFailure::Request`].
pub async fn ask(
    pool: &BrokerPool,
    target: Option<&BrokerAddress>,
    command: &Bytes,
) -> Result<Frame, LookupFailure> {
    let mut attempts_left = 1;
    loop {
        let (address, connection) = match target {
            Some(address) => (address.clone(), pool.get(address).await?),
            None => pool.any().await?,
        };
        match connection.request_raw(command.clone()).await {
            Err(RequestError::Closed(_) | RequestError::Timeout(_))
                if attempts_left > 0 && target.is_none() =>
            {
                pool.spare(&address);
            }
            Err(RequestError::Closed(_)) if attempts_left > 0 => {}
            result => return result.map_err(|error| LookupFailure::Request { address, error }),
        }
        attempts_left -= 1;
    }
}

/// The broker that an answer names: the address with TLS for a client that came over TLS, which may be all that reaches it.
fn broker_of(
    response: &CommandLookupTopicResponse,
    tls: bool,
) -> Result<BrokerAddress, LookupFailure> {
    let url = if tls {
        &response.broker_service_url_tls
    } else {
        &response.broker_service_url
    };
    let url = url
        .as_deref()
        .filter(|url| !url.is_empty())
        .ok_or(LookupFailure::NoUrl)?;
    Ok(BrokerAddress::from_url(url)?)
}

/// The owner of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerLookup {
    /// The broker that serves the topic.
    pub address: BrokerAddress,
    /// Whether it is to be reached through the service URL, naming it in `proxy_to_broker_url`.
    pub proxy_through_service_url: bool,
}

/// Why a typed lookup failed.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// There is no answer.
    #[error(transparent)]
    Failure(#[from] LookupFailure),
    /// A broker answered that it cannot or will not.
    #[error("the broker refused the lookup: {code:?}: {message}")]
    Refused {
        /// The broker's code, [`ServerError::UnknownError`] when it is none that we know.
        code: ServerError,
        /// The broker's text.
        message: String,
    },
    /// A broker answered with something else.
    #[error("the broker answered the lookup with {0}")]
    UnexpectedAnswer(&'static str),
}

/// Typed lookups over a pool.
#[derive(Debug, Clone)]
pub struct LookupClient {
    pool: BrokerPool,
    /// Which of the brokers' `advertisedListeners` answers should name (`advertised_listener_name`, PIP-61).
    listener_name: Option<Arc<str>>,
    /// Whether the last answer said so.
    through_service_url: Arc<AtomicBool>,
}

impl LookupClient {
    /// Lookups that use these connections.
    pub fn new(pool: BrokerPool) -> Self {
        Self {
            pool,
            listener_name: None,
            through_service_url: Arc::default(),
        }
    }

    /// The same, asking for this advertised listener.
    #[must_use]
    pub fn with_listener_name(mut self, name: Option<&str>) -> Self {
        self.listener_name = name.map(Arc::from);
        self
    }

    /// Whether brokers are reached through the service URL, as far as lookups have told.
    pub(crate) fn goes_through_service_url(&self) -> bool {
        self.through_service_url.load(Ordering::Relaxed)
    }

    /// The broker that serves a topic. Cancel-safe.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn lookup(&self, topic: &TopicName) -> Result<BrokerLookup, LookupError> {
        let command = Command::from(CommandLookupTopic {
            topic: topic.to_string(),
            authoritative: Some(false),
            advertised_listener_name: self.listener_name.as_deref().map(str::to_owned),
            ..CommandLookupTopic::default()
        });
        let frame = follow(
            &self.pool,
            command.encode_command(),
            &|_| Ok(()),
            MAX_REDIRECTS,
        )
        .await?;
        match decode(&frame)? {
            Command::LookupResponse(response) if response.response() == LookupType::Connect => {
                let through = response.proxy_through_service_url();
                let tls = self.pool.tls();
                self.through_service_url.store(through, Ordering::Relaxed);
                Ok(BrokerLookup {
                    address: broker_of(&response, tls)?,
                    proxy_through_service_url: through,
                })
            }
            answer => Err(refused(answer)),
        }
    }

    /// The number of partitions of a topic; 0 when it is not partitioned. Creates nothing. Cancel-safe.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn partitions(&self, topic: &TopicName) -> Result<u32, LookupError> {
        self.ask_partitions(topic, false).await
    }

    /// As [`partitions`](Self::partitions), but a topic that is not there may be created, as the cluster is configured.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn partitions_or_create(&self, topic: &TopicName) -> Result<u32, LookupError> {
        self.ask_partitions(topic, true).await
    }

    async fn ask_partitions(&self, topic: &TopicName, create: bool) -> Result<u32, LookupError> {
        let command = Command::from(CommandPartitionedTopicMetadata {
            topic: topic.to_string(),
            metadata_auto_creation_enabled: Some(create),
            ..CommandPartitionedTopicMetadata::default()
        });
        let frame = ask(&self.pool, None, &command.encode_command()).await?;
        match decode(&frame)? {
            Command::PartitionedMetadataResponse(response)
                if response.response()
                    == command_partitioned_topic_metadata_response::LookupType::Success =>
            {
                Ok(response.partitions())
            }
            answer => Err(refused(answer)),
        }
    }

    /// The full names of the topics of a namespace, partitions one by one. Cancel-safe.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn topics_of_namespace(
        &self,
        namespace: &NamespaceName,
        mode: Mode,
    ) -> Result<Vec<String>, LookupError> {
        let command = Command::from(CommandGetTopicsOfNamespace {
            namespace: namespace.to_string(),
            mode: Some(mode.into()),
            ..CommandGetTopicsOfNamespace::default()
        });
        let frame = ask(&self.pool, None, &command.encode_command()).await?;
        match decode(&frame)? {
            Command::GetTopicsOfNamespaceResponse(response) => Ok(response.topics),
            answer => Err(refused(answer)),
        }
    }

    /// A topic's schema in a version, or the latest; `None` when the topic has none. Cancel-safe.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn schema(
        &self,
        topic: &TopicName,
        version: Option<Bytes>,
    ) -> Result<Option<Schema>, LookupError> {
        let command = Command::from(CommandGetSchema {
            topic: topic.to_string(),
            schema_version: version,
            ..CommandGetSchema::default()
        });
        let frame = ask(&self.pool, None, &command.encode_command()).await?;
        match decode(&frame)? {
            Command::GetSchemaResponse(response) => match response.error_code {
                None => Ok(response.schema),
                // What a broker says when the topic, or this version of it, has no schema.
                Some(code) if code == i32::from(ServerError::TopicNotFound) => Ok(None),
                Some(code) => Err(LookupError::Refused {
                    code: server_error(code),
                    message: response.error_message.unwrap_or_default(),
                }),
            },
            answer => Err(refused(answer)),
        }
    }
}

fn decode(frame: &Frame) -> Result<Command, LookupFailure> {
    Ok(Command::decode(&frame.command)?)
}

/// The error of an answer that is not the success that was asked for. A refused PARTITIONED_METADATA may come as a
/// LOOKUP_RESPONSE: the Apache proxy sends it so.
fn refused(answer: Command) -> LookupError {
    let (code, message) = match answer {
        Command::Error(error) => (Some(error.error), Some(error.message)),
        Command::LookupResponse(response) => (response.error, response.message),
        Command::PartitionedMetadataResponse(response) => (response.error, response.message),
        answer => return LookupError::UnexpectedAnswer(name_of(answer.command_type())),
    };
    LookupError::Refused {
        code: code.map_or(ServerError::UnknownError, server_error),
        message: message.unwrap_or_default(),
    }
}

impl LookupFailure {
    /// The code with which a broker refused the connection for the lookup, if that is what happened.
    pub(crate) fn refusal(&self) -> Option<ServerError> {
        match self {
            Self::Pool(PoolError::Connect { error, .. }) => match &**error {
                ConnectError::Refused { code, .. } => Some(*code),
                _ => None,
            },
            _ => None,
        }
    }
}

impl UserFacingError for LookupFailure {
    /// ServiceNotReady for whatever may be different a moment later: clients then connect and look up again.
    fn code(&self) -> ServerError {
        match self {
            Self::Pool(PoolError::Connect { error, .. }) => match &**error {
                ConnectError::Refused { code, .. } => *code,
                ConnectError::ChallengeUnsupported => ServerError::AuthenticationError,
                _ => ServerError::ServiceNotReady,
            },
            Self::Pool(_) | Self::Request { .. } | Self::TooManyRedirects(_) | Self::Loop(_) => {
                ServerError::ServiceNotReady
            }
            Self::BadUrl(_) | Self::NoUrl => ServerError::MetadataError,
            Self::Denied(_) => ServerError::NotAllowedError,
            Self::Command(_) => ServerError::UnknownError,
        }
    }

    fn retryable(&self) -> bool {
        self.code() == ServerError::ServiceNotReady
    }

    fn client_message(&self) -> String {
        match self {
            Self::Pool(PoolError::Connect { error, .. }) => match &**error {
                ConnectError::Refused { message, .. } => message.clone(),
                ConnectError::ChallengeUnsupported => {
                    "Authentication in several steps is not supported".to_owned()
                }
                _ => "No broker can be reached".to_owned(),
            },
            Self::Pool(_) => "No active broker is available".to_owned(),
            Self::Request {
                error: RequestError::Timeout(_),
                ..
            } => "The broker did not answer in time".to_owned(),
            Self::Request { .. } => "The broker closed the connection".to_owned(),
            Self::TooManyRedirects(_) | Self::Loop(_) => {
                "Reached max number of redirections".to_owned()
            }
            Self::BadUrl(_) | Self::NoUrl => {
                "The broker's answer names no usable broker URL".to_owned()
            }
            Self::Denied(_) => "The target broker is not allowed".to_owned(),
            Self::Command(_) => "The broker's answer is malformed".to_owned(),
        }
    }
}

/// Redirects that Apache's clients and proxy follow.
pub const MAX_REDIRECTS: usize = 10;
