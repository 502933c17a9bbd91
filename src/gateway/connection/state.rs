//! What the first frames of a client connection lead to; pure.
//!
//! `AwaitingConnect` takes frames until the CONNECT. Where clients are authenticated, `Authenticating` follows until their
//! credential is good. Then the CONNECT decides: a connection that names a broker is a direct one, any other answers lookups. Gone
//! after that decision: the relay and the lookup loop keep their own state.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::auth::{ANONYMOUS_METHOD, Identity, Principal};
use crate::naming::{BrokerAddress, NameError};
use crate::protocol::command::{Command, CommandError, name_of};
use crate::protocol::fields::connect;
use crate::protocol::frame::Frame;
use crate::protocol::proto::pulsar::{
    AuthData, AuthMethod, CommandAuthChallenge, CommandAuthResponse, CommandConnect, CommandPong,
    ServerError,
};
use crate::protocol::rewrite::CommandEditor;
use crate::protocol::server_error::UserFacingError;
use crate::protocol::version;

/// A client connection up to the decision what it is for.
#[derive(Debug)]
pub(crate) struct Handshake<'a> {
    /// Our own version, which brokers see as `proxy_version`.
    proxy_version: &'static str,
    rules: Rules<'a>,
    phase: Phase,
}

/// Whom the gateway lets in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    /// Whether clients are authenticated.
    pub(crate) authenticates: bool,
    /// Roles that may connect as a proxy does.
    pub(crate) trusted_proxy_roles: &'a [String],
}

#[derive(Debug)]
enum Phase {
    AwaitingConnect,
    Authenticating(Box<Authenticating>),
}

/// Between CONNECT and the decision.
struct Authenticating {
    /// As the client sent it.
    connect: CommandConnect,
    /// Without what is between proxies.
    encoded: Bytes,
    target: Option<Target>,
    /// The first one: what brokers get where credentials are forwarded.
    credential: Credential,
    /// Answers that the client was asked for.
    challenges: u32,
    /// An answer of the client is due.
    challenged: bool,
}

impl fmt::Debug for Authenticating {
    /// Without the command, which holds the credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticating")
            .field("target", &self.target)
            .field("credential", &self.credential)
            .field("challenges", &self.challenges)
            .finish_non_exhaustive()
    }
}

/// The broker that a client names; `None` is any.
type Target = Option<BrokerAddress>;

/// What to do next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send this and go on waiting.
    Answer(Command),
    /// Nothing to do; go on waiting.
    Wait,
    /// Find out whose credential this is, and tell [`Handshake::on_checked`].
    Check(Credential),
    /// The client wants lookups.
    Lookup(Box<ConnectRequest>),
    /// The client wants a relay to a broker; `None` is any broker.
    Direct(Box<ConnectRequest>, Option<BrokerAddress>),
    /// Send the error and close.
    Refuse(Refusal),
    /// Close without a word, as a broker does.
    Close(ProtocolViolation),
}

/// What came of checking a credential.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The client has to answer a question first.
    Challenge(Bytes),
    /// It is somebody.
    Good(Principal),
    /// It is nobody whom we know.
    Refused,
    /// Nobody has found out in time.
    Busy,
}

/// What a client says who it is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credential {
    /// The name of the method.
    pub(crate) method: String,
    pub(crate) data: Bytes,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl Credential {
    fn of_connect(connect: &CommandConnect) -> Self {
        let method = match (&connect.auth_method_name, connect.auth_method) {
            (Some(name), _) => name.clone(),
            (None, Some(_)) => match connect.auth_method() {
                AuthMethod::None => "none",
                AuthMethod::YcaV1 => "ycav1",
                AuthMethod::Athens => "athens",
            }
            .to_owned(),
            (None, None) => "none".to_owned(),
        };
        Self {
            method,
            data: connect.auth_data.clone().unwrap_or_default(),
        }
    }

    /// That of an AUTH_RESPONSE; one that names no method is of the method asked for.
    pub(crate) fn of_response(response: CommandAuthResponse, method: &str) -> Option<Self> {
        let AuthData {
            auth_method_name,
            auth_data,
        } = response.response?;
        Some(Self {
            method: auth_method_name.unwrap_or_else(|| method.to_owned()),
            data: auth_data?,
        })
    }
}

/// The CONNECT that goes to a broker for the client.
#[derive(Clone)]
pub(crate) struct ConnectRequest {
    /// As decoded from what the client sent, without the fields that are between proxies.
    pub(crate) connect: CommandConnect,
    /// The encoded command: the client's bytes, fields unknown to us included, but for the fields that are between proxies.
    pub(crate) encoded: Bytes,
    /// Who the client is, where that was found out.
    pub(crate) client: Option<AuthenticatedClient>,
}

/// A client whose credential was good.
#[derive(Debug, Clone)]
pub(crate) struct AuthenticatedClient {
    pub(crate) identity: Identity,
    /// What it said at first. Of a trusted proxy that acts for another, what that one said, if anything.
    pub(crate) credential: Option<Credential>,
}

impl fmt::Debug for ConnectRequest {
    /// Without the command, which holds the credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// A CONNECT that is answered by an ERROR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("Must not provide proxyVersion")]
    FromProxy,
    #[error("Must provide originalPrincipal, which must not be a proxy's")]
    BadOriginal,
    #[error("proxy_to_broker_url: {0}")]
    BadTarget(NameError),
    #[error("Failed to authenticate")]
    Unauthenticated,
    #[error("Too many clients are being authenticated")]
    Busy,
}

impl UserFacingError for Refusal {
    fn code(&self) -> ServerError {
        match self {
            Self::Unauthenticated => ServerError::AuthenticationError,
            Self::Busy => ServerError::ServiceNotReady,
            _ => ServerError::NotAllowedError,
        }
    }

    fn retryable(&self) -> bool {
        matches!(self, Self::Busy)
    }

    fn client_message(&self) -> String {
        self.to_string()
    }
}

/// Frames that no client sends before its CONNECT was answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolViolation {
    #[error("undecodable command: {0}")]
    Undecodable(#[from] CommandError),
    #[error("{0} before CONNECT was answered")]
    Unexpected(&'static str),
}

impl<'a> Handshake<'a> {
    /// A new connection.
    pub(crate) fn new(proxy_version: &'static str, rules: Rules<'a>) -> Self {
        Self {
            proxy_version,
            rules,
            phase: Phase::AwaitingConnect,
        }
    }

    /// Takes the next frame of the client.
    pub(crate) fn on_frame(&mut self, frame: &Frame) -> Step {
        let command = match Command::decode(&frame.command) {
            Ok(command) => command,
            Err(error) => return Step::Close(error.into()),
        };
        match (command, &mut self.phase) {
            (Command::Ping(_), _) => Step::Answer(Command::Pong(CommandPong::default())),
            (Command::Pong(_), _) => Step::Wait,
            (Command::Connect(connect), Phase::AwaitingConnect) => {
                self.on_connect(*connect, &frame.command)
            }
            (Command::AuthResponse(response), Phase::Authenticating(pending))
                if pending.challenged =>
            {
                pending.challenged = false;
                match Credential::of_response(response, &pending.credential.method) {
                    Some(credential) => Step::Check(credential),
                    None => Step::Refuse(Refusal::Unauthenticated),
                }
            }
            (other, _) => Step::Close(ProtocolViolation::Unexpected(name_of(other.command_type()))),
        }
    }

    fn on_connect(&mut self, connect: CommandConnect, raw: &[u8]) -> Step {
        // Who is trusted to be a proxy is known only of those who are authenticated.
        let none_trusted = !self.rules.authenticates || self.rules.trusted_proxy_roles.is_empty();
        if connect.proxy_version.is_some() && none_trusted {
            return Step::Refuse(Refusal::FromProxy);
        }
        let target = match connect.proxy_to_broker_url.as_deref() {
            None => None,
            Some("") => Some(None),
            Some(target) => match BrokerAddress::from_host_port(target) {
                Ok(target) => Some(Some(target)),
                Err(error) => return Step::Refuse(Refusal::BadTarget(error)),
            },
        };
        let encoded = match self.encode(raw) {
            Ok(encoded) => encoded,
            Err(error) => return Step::Close(error.into()),
        };
        let credential = Credential::of_connect(&connect);
        if !self.rules.authenticates {
            return self.decide(connect, encoded, target, None);
        }
        self.phase = Phase::Authenticating(Box::new(Authenticating {
            connect,
            encoded,
            target,
            credential: credential.clone(),
            challenges: 0,
            challenged: false,
        }));
        Step::Check(credential)
    }

    /// Takes what came of [`Step::Check`].
    pub(crate) fn on_checked(&mut self, verdict: Verdict) -> Step {
        let Phase::Authenticating(pending) = &mut self.phase else {
            return Step::Refuse(Refusal::Unauthenticated);
        };
        match verdict {
            Verdict::Refused => Step::Refuse(Refusal::Unauthenticated),
            Verdict::Busy => Step::Refuse(Refusal::Busy),
            Verdict::Challenge(_) if pending.challenges >= CHALLENGES_MAX => {
                Step::Refuse(Refusal::Unauthenticated)
            }
            Verdict::Challenge(data) => {
                pending.challenges += 1;
                pending.challenged = true;
                let method = pending.credential.method.clone();
                let protocol_version = pending.connect.protocol_version;
                Step::Answer(challenge(
                    self.proxy_version,
                    &method,
                    data,
                    protocol_version,
                ))
            }
            Verdict::Good(principal) => {
                match std::mem::replace(&mut self.phase, Phase::AwaitingConnect) {
                    Phase::Authenticating(pending) => self.admit(*pending, principal),
                    Phase::AwaitingConnect => Step::Refuse(Refusal::Unauthenticated),
                }
            }
        }
    }

    /// The client is somebody: whom does it act for?
    fn admit(&self, pending: Authenticating, principal: Principal) -> Step {
        let Authenticating {
            connect,
            encoded,
            target,
            credential,
            ..
        } = pending;
        let is_proxys = |role: &str| {
            let trusted = self.rules.trusted_proxy_roles.iter();
            trusted.into_iter().any(|trusted| trusted == role)
        };
        let trusted = is_proxys(&principal.role);
        if connect.proxy_version.is_some() && !trusted {
            return Step::Refuse(Refusal::FromProxy);
        }
        let original = connect.original_principal.as_deref().filter(|_| trusted);
        let named = match original {
            // What a broker asks of its proxies.
            Some(role) => !role.trim().is_empty() && !is_proxys(role),
            None => connect.proxy_version.is_none(),
        };
        if !named {
            return Step::Refuse(Refusal::BadOriginal);
        }
        let credential = match original {
            // What somebody without a name said is nobody's credential.
            None => (principal.method.as_ref() != ANONYMOUS_METHOD).then_some(credential),
            Some(_) => connect.original_auth_data.as_ref().map(|data| Credential {
                method: connect
                    .original_auth_method
                    .clone()
                    .unwrap_or_else(|| "none".to_owned()),
                data: Bytes::copy_from_slice(data.as_bytes()),
            }),
        };
        let client = AuthenticatedClient {
            identity: Identity {
                authenticated: principal,
                original: original.map(Arc::from),
            },
            credential,
        };
        self.decide(connect, encoded, target, Some(client))
    }

    fn decide(
        &self,
        mut connect: CommandConnect,
        encoded: Bytes,
        target: Option<Target>,
        client: Option<AuthenticatedClient>,
    ) -> Step {
        connect.proxy_to_broker_url = None;
        connect.original_principal = None;
        connect.original_auth_data = None;
        connect.original_auth_method = None;
        connect.proxy_version = Some(self.proxy_version.to_owned());
        let request = Box::new(ConnectRequest {
            connect,
            encoded,
            client,
        });
        match target {
            None => Step::Lookup(request),
            Some(target) => Step::Direct(request, target),
        }
    }

    fn encode(&self, raw: &[u8]) -> Result<Bytes, CommandError> {
        let mut editor = CommandEditor::new(raw)?;
        for field in BETWEEN_PROXIES {
            editor.remove(field);
        }
        editor.set_bytes(connect::PROXY_VERSION, self.proxy_version.as_bytes());
        Ok(editor.finish())
    }
}

/// An AUTH_CHALLENGE of ours.
pub(crate) fn challenge(
    server_version: &str,
    method: &str,
    data: Bytes,
    protocol_version: Option<i32>,
) -> Command {
    let offered = protocol_version.unwrap_or(0).min(version::CURRENT);
    Command::from(CommandAuthChallenge {
        server_version: Some(server_version.to_owned()),
        challenge: Some(AuthData {
            auth_method_name: Some(method.to_owned()),
            auth_data: Some(data),
        }),
        protocol_version: Some(offered),
    })
}

/// What is between proxies in `CommandConnect`.
const BETWEEN_PROXIES: [u32; 4] = [
    connect::PROXY_TO_BROKER_URL,
    connect::ORIGINAL_PRINCIPAL,
    connect::ORIGINAL_AUTH_DATA,
    connect::ORIGINAL_AUTH_METHOD,
];
/// Questions that a client is asked before it is given up.
const CHALLENGES_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AUTHENTICATED: Rules<'static> = Rules {
        authenticates: true,
        trusted_proxy_roles: &[],
    };

    fn frame(command: impl Into<Command>) -> Frame {
        Frame {
            command: command.into().encode_command(),
            payload: Bytes::new(),
        }
    }

    fn connect() -> CommandConnect {
        CommandConnect {
            client_version: "test".to_owned(),
            auth_method_name: Some("questions".to_owned()),
            auth_data: Some(Bytes::from_static(b"first")),
            protocol_version: Some(99),
            ..CommandConnect::default()
        }
    }

    fn answer(data: Option<&'static [u8]>) -> CommandAuthResponse {
        CommandAuthResponse {
            response: Some(AuthData {
                auth_method_name: None,
                auth_data: data.map(Bytes::from_static),
            }),
            ..CommandAuthResponse::default()
        }
    }

    fn somebody() -> Principal {
        Principal {
            role: "me".into(),
            method: "questions".into(),
            expires_at: None,
        }
    }

    /// A client that has been asked a question.
    fn asked() -> Handshake<'static> {
        let mut state = Handshake::new("us", AUTHENTICATED);
        let Step::Check(credential) = state.on_frame(&frame(connect())) else {
            panic!("nothing to check")
        };
        assert_eq!(
            (&*credential.method, &*credential.data),
            ("questions", &b"first"[..])
        );
        let question = Verdict::Challenge(Bytes::from_static(b"and?"));
        let Step::Answer(Command::AuthChallenge(challenge)) = state.on_checked(question) else {
            panic!("no challenge")
        };
        let asked = challenge.challenge.expect("a question");
        assert_eq!(
            (asked.auth_method_name(), asked.auth_data()),
            ("questions", &b"and?"[..])
        );
        assert_eq!(challenge.protocol_version, Some(version::CURRENT));
        state
    }

    #[test]
    fn a_client_that_answers_its_challenge_is_let_in() {
        let mut state = asked();
        let ping = crate::protocol::proto::pulsar::CommandPing::default();
        assert!(matches!(
            state.on_frame(&frame(ping)),
            Step::Answer(Command::Pong(_))
        ));
        let Step::Check(credential) = state.on_frame(&frame(answer(Some(b"second")))) else {
            panic!("nothing to check")
        };
        assert_eq!(
            (&*credential.method, &*credential.data),
            ("questions", &b"second"[..])
        );
        let Step::Lookup(request) = state.on_checked(Verdict::Good(somebody())) else {
            panic!("not let in")
        };
        let client = request.client.expect("authenticated");
        assert_eq!(client.identity.role(), "me");
        // Brokers get what it said first, as it is with Apache's proxy.
        assert_eq!(client.credential.expect("kept").data, "first");
    }

    #[test]
    fn answers_that_say_nothing_and_challenges_without_end_are_refused() {
        let refused = |step: &Step| matches!(step, Step::Refuse(Refusal::Unauthenticated));
        assert!(refused(&asked().on_frame(&frame(answer(None)))));
        assert!(refused(
            &asked().on_frame(&frame(CommandAuthResponse::default()))
        ));
        assert!(refused(&asked().on_checked(Verdict::Refused)));
        let mut state = asked();
        let mut rounds = 1;
        loop {
            let Step::Check(_) = state.on_frame(&frame(answer(Some(b"x")))) else {
                panic!("nothing to check")
            };
            match state.on_checked(Verdict::Challenge(Bytes::new())) {
                Step::Answer(_) => rounds += 1,
                step => {
                    assert!(refused(&step));
                    break;
                }
            }
        }
        assert_eq!(rounds, CHALLENGES_MAX);
    }

    #[test]
    fn what_does_not_belong_there_closes_the_connection() {
        let mut state = Handshake::new("us", AUTHENTICATED);
        let unasked = state.on_frame(&frame(answer(Some(b"x"))));
        assert!(matches!(unasked, Step::Close(_)));
        assert!(matches!(
            asked().on_frame(&frame(connect())),
            Step::Close(_)
        ));
    }

    /// What a client, or the check of its credential, may do next.
    #[derive(Debug, Clone)]
    enum Event {
        Frame(Vec<u8>),
        Checked(u8),
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let text = || proptest::option::of(prop_oneof![Just("edge".to_owned()), "[a-z:0-9]{0,8}"]);
        let connect =
            (text(), text(), text(), text()).prop_map(|(version, original, target, method)| {
                frame(CommandConnect {
                    proxy_version: version,
                    original_principal: original,
                    proxy_to_broker_url: target,
                    auth_method_name: method,
                    ..connect()
                })
            });
        let others = prop_oneof![
            Just(frame(answer(Some(b"x")))),
            Just(frame(answer(None))),
            Just(frame(CommandPong::default())),
            Just(frame(
                crate::protocol::proto::pulsar::CommandLookupTopic::default()
            )),
        ];
        prop_oneof![
            3 => connect.prop_map(|frame| Event::Frame(frame.command.to_vec())),
            3 => others.prop_map(|frame| Event::Frame(frame.command.to_vec())),
            1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Event::Frame),
            4 => (0_u8..4).prop_map(Event::Checked),
        ]
    }

    proptest! {
        /// Whatever a client sends, in whichever order.
        #[test]
        fn nobody_gets_in_but_who_was_checked_and_as_nobody_else(
            events in proptest::collection::vec(any_event(), 1..20),
        ) {
            let trusted = ["edge".to_owned()];
            let rules = Rules { trusted_proxy_roles: &trusted, ..AUTHENTICATED };
            let mut state = Handshake::new("us", rules);
            let mut checking = false;
            for event in events {
                let (step, role) = match event {
                    Event::Frame(command) => {
                        let frame = Frame { command: command.into(), payload: Bytes::new() };
                        (state.on_frame(&frame), None)
                    }
                    Event::Checked(kind) if checking => {
                        let role = if kind == 0 { "edge" } else { "me" };
                        let good = Principal { role: role.into(), ..somebody() };
                        match kind {
                            0 | 1 => (state.on_checked(Verdict::Good(good)), Some(role)),
                            2 => (state.on_checked(Verdict::Challenge(Bytes::new())), None),
                            _ => (state.on_checked(Verdict::Refused), None),
                        }
                    }
                    Event::Checked(_) => continue,
                };
                checking = matches!(step, Step::Check(_));
                match step {
                    Step::Lookup(request) | Step::Direct(request, _) => {
                        let identity = request.client.expect("authenticated").identity;
                        prop_assert_eq!(Some(&*identity.authenticated.role), role);
                        prop_assert!(identity.original.is_none() || role == Some("edge"));
                        prop_assert_ne!(identity.original.as_deref(), Some("edge"));
                        prop_assert_eq!(request.connect.original_principal, None);
                        prop_assert_eq!(request.connect.proxy_version.as_deref(), Some("us"));
                        return Ok(());
                    }
                    Step::Refuse(_) | Step::Close(_) => return Ok(()),
                    Step::Answer(_) | Step::Wait | Step::Check(_) => {}
                }
            }
        }
    }

    #[test]
    fn the_method_is_named_or_that_of_the_old_enumeration_or_none() {
        let of = |name: Option<&str>, old: Option<AuthMethod>| {
            Credential::of_connect(&CommandConnect {
                auth_method_name: name.map(str::to_owned),
                auth_method: old.map(Into::into),
                ..CommandConnect::default()
            })
            .method
        };
        assert_eq!(of(Some("token"), Some(AuthMethod::YcaV1)), "token");
        assert_eq!(of(None, Some(AuthMethod::YcaV1)), "ycav1");
        assert_eq!(of(None, Some(AuthMethod::Athens)), "athens");
        assert_eq!(of(None, Some(AuthMethod::None)), "none");
        assert_eq!(of(None, None), "none");
    }
}
