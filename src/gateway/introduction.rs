//! What brokers are told about the gateway's clients: CONNECT towards brokers, field by field.
//!
//! Three ways. Where clients are not authenticated and the gateway has no credential, brokers get the client's CONNECT and see the
//! client itself. With a credential of its own the gateway says who it is itself; where it authenticated the client, it also names
//! the client's role (`original_principal`) and, if it is to, passes the client's credential on (`original_auth_data`). Without a
//! credential of its own it then says `none` for itself, as Apache's proxy does: whoever trusts `original_principal` has to be
//! told by whom, so the client's credential never stands for the gateway's.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use super::connection::state::{AuthenticatedClient, ConnectRequest, Credential};
use crate::auth::{REFRESH, UnixTime, clock};
use crate::client::{Authentication, BoxFuture, Introducer};
use crate::config::CredentialError;
use crate::protocol::command::CommandError;
use crate::protocol::fields::connect;
use crate::protocol::proto::pulsar::{
    AuthData, AuthMethod, CommandAuthChallenge, CommandConnect, FeatureFlags,
};
use crate::protocol::rewrite::CommandEditor;

/// The rules of one gateway.
#[derive(Debug, Clone)]
pub(crate) struct Introductions {
    /// What the gateway says of itself.
    own: Authentication,
    /// Whether brokers get the client's credential beside its role.
    forward: bool,
}

/// CONNECT for one direct connection. Not `Debug`: it holds credentials.
pub(crate) struct Introduction {
    /// The encoded command.
    pub(crate) command: Bytes,
    /// Whose credential it is, and so who answers the broker's challenges during the handshake: the gateway with this.
    pub(crate) own: Option<Authentication>,
}

/// What brokers are told on the lookup connections of a client.
#[derive(Debug, Clone)]
pub(crate) struct LookupIntroduction {
    /// CONNECT, where `authentication` says who we are without that.
    pub(crate) connect: CommandConnect,
    /// Who adds the credential and answers challenges.
    pub(crate) authentication: Authentication,
    /// Whether brokers get a credential of the client's own, so that nobody else may use these connections.
    pub(crate) credential_of_client: bool,
}

/// Why a client cannot be introduced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IntroductionError {
    #[error("the credential of the gateway cannot be read: {0}")]
    Credential(#[from] CredentialError),
    #[error("the client's CONNECT: {0}")]
    Command(#[from] CommandError),
    #[error("the credential of the gateway cannot be read in time")]
    TooLong,
}

impl Introductions {
    pub(crate) fn new(own: Authentication, forward: bool) -> Self {
        Self { own, forward }
    }

    /// Whether the gateway says itself who it is.
    pub(crate) fn has_own(&self) -> bool {
        self.own.method().is_some()
    }

    /// Whether brokers get the client's own CONNECT.
    fn passes_on(&self, request: &ConnectRequest) -> bool {
        request.client.is_none() && !self.has_own()
    }

    /// Whether an expiring credential of this client is renewed for brokers.
    pub(crate) fn renews(&self, request: &ConnectRequest) -> bool {
        let supported = request
            .connect
            .feature_flags
            .as_ref()
            .is_some_and(FeatureFlags::supports_auth_refresh);
        // A trusted proxy's answer would be of the one that it acts for.
        let itself = |client: &AuthenticatedClient| client.identity.original.is_none();
        self.forward && supported && request.client.as_ref().is_some_and(itself)
    }

    /// Whether nobody but the gateway can end this client's direct connection when its credential expires. Brokers that got a token of
    /// the client's own may do so themselves, or ask it for another; of anything else they do not know when it ends.
    pub(crate) fn ends_at_expiry(&self, client: &AuthenticatedClient) -> bool {
        let is_token = |credential: &&Credential| credential.method == "token";
        let token = client.credential.as_ref().filter(is_token);
        client.identity.original.is_some() || self.forwarded(token).is_none()
    }

    /// The CONNECT of a direct connection, with the gateway's credential as it is now. Takes as long as reading that does: the caller sets
    /// a limit. Cancel-safe.
    ///
    /// # Errors
    /// See [`IntroductionError`].
    pub(crate) async fn direct(
        &self,
        request: &ConnectRequest,
    ) -> Result<Introduction, IntroductionError> {
        if self.passes_on(request) {
            let command = if claims_certificate(&request.connect) {
                let mut editor = CommandEditor::new(&request.encoded)?;
                editor.set_bytes(connect::AUTH_METHOD_NAME, b"none");
                editor.set_bytes(connect::AUTH_DATA, b"");
                editor.finish()
            } else {
                request.encoded.clone()
            };
            return Ok(Introduction { command, own: None });
        }
        let own = self.own_data().await?;
        let mut editor = CommandEditor::new(&request.encoded)?;
        editor.remove(connect::AUTH_METHOD);
        editor.set_bytes(connect::AUTH_DATA, own.auth_data());
        editor.set_bytes(connect::AUTH_METHOD_NAME, own.auth_method_name().as_bytes());
        match &request.client {
            Some(client) => {
                editor.set_bytes(
                    connect::ORIGINAL_PRINCIPAL,
                    client.identity.role().as_bytes(),
                );
                if let Some((data, method)) = self.forwarded(client.credential.as_ref()) {
                    editor.set_bytes(connect::ORIGINAL_AUTH_DATA, data.as_bytes());
                    editor.set_bytes(connect::ORIGINAL_AUTH_METHOD, method.as_bytes());
                }
            }
            // The broker would ask the client for a credential that is ours. Told not to, it closes instead, and the client
            // comes back over a connection with the one that we have then.
            None => {
                if let Some(flags) = editor.bytes(connect::FEATURE_FLAGS) {
                    let flags = [flags, NO_AUTH_REFRESH].concat();
                    editor.set_bytes(connect::FEATURE_FLAGS, &flags);
                }
            }
        }
        Ok(Introduction {
            command: editor.finish(),
            own: Some(self.own.clone()),
        })
    }

    /// What is said, and answered, on the lookup connections of one client. `current` is the client's credential.
    pub(crate) fn lookups(
        &self,
        request: &ConnectRequest,
        renews: bool,
        current: watch::Receiver<Current>,
    ) -> LookupIntroduction {
        let mut connect = request.connect.clone();
        if self.passes_on(request) {
            if claims_certificate(&connect) {
                connect.auth_method_name = Some("none".to_owned());
                connect.auth_data = Some(Bytes::new());
            }
            // A challenge could not be passed on, so none must be sent: a broker closes an expired connection instead, and the
            // client comes back with new credentials.
            if let Some(flags) = &mut connect.feature_flags {
                flags.supports_auth_refresh = Some(false);
            }
            return LookupIntroduction {
                credential_of_client: has_credential(&connect),
                connect,
                authentication: Authentication::none(),
            };
        }
        connect.auth_method = None;
        connect.auth_method_name = None;
        connect.auth_data = None;
        let flags = connect.feature_flags.get_or_insert_default();
        let about_the_client = self.forward && request.client.is_some();
        flags.supports_auth_refresh = Some(renews || !about_the_client);
        connect.original_principal = request
            .client
            .as_ref()
            .map(|client| client.identity.role().to_owned());
        let speaker = Speaker {
            introductions: self.clone(),
            about_the_client,
            renews,
            current,
        };
        LookupIntroduction {
            connect,
            authentication: Authentication::introduced_by(Arc::new(speaker)),
            credential_of_client: about_the_client,
        }
    }

    /// The gateway's own credential; method `none` without one.
    async fn own_data(&self) -> Result<AuthData, CredentialError> {
        Ok(self.own.auth_data().await?.unwrap_or_else(|| AuthData {
            auth_method_name: Some("none".to_owned()),
            auth_data: Some(Bytes::new()),
        }))
    }

    /// `original_auth_data` and `original_auth_method`. The protocol has the former as text: other bytes cannot be forwarded, and
    /// a broker that wants them refuses the client.
    fn forwarded<'a>(&self, credential: Option<&'a Credential>) -> Option<(&'a str, &'a str)> {
        // A broker would look for a certificate in the handshake with the gateway, and find the gateway's.
        let is_certificate = |credential: &&Credential| credential.method == "tls";
        let credential =
            credential.filter(|credential| self.forward && !is_certificate(credential))?;
        let Ok(data) = std::str::from_utf8(&credential.data) else {
            tracing::debug!(
                method = credential.method,
                "a credential that is not UTF-8 cannot be forwarded"
            );
            return None;
        };
        Some((data, &credential.method))
    }
}

/// Whether a client says that its certificate tells who it is. No broker may hear that through us: it would look at the certificate
/// of the connection, which is the gateway's.
fn claims_certificate(connect: &CommandConnect) -> bool {
    connect.auth_method_name.as_deref() == Some("tls")
}

/// Whether a credential of the client's own is in its CONNECT. Any method but none counts: what it says may be elsewhere than in
/// the data.
fn has_credential(connect: &CommandConnect) -> bool {
    let method = connect.auth_method_name.as_deref().unwrap_or_default();
    !matches!(method, "" | "none")
        || connect
            .auth_method
            .is_some_and(|method| method != i32::from(AuthMethod::None))
        || connect
            .auth_data
            .as_ref()
            .is_some_and(|data| !data.is_empty())
}

/// A client's credential as it is now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Current {
    pub(crate) credential: Option<Credential>,
    pub(crate) expires_at: Option<UnixTime>,
}

/// Says on each lookup connection to a broker who the gateway is and whom it asks for.
struct Speaker {
    introductions: Introductions,
    /// Whether brokers know the client's credential, so that their challenges are about it.
    about_the_client: bool,
    /// Whether the client is asked for another credential when this one expires.
    renews: bool,
    current: watch::Receiver<Current>,
}

impl Speaker {
    /// The client's credential. One that expired is waited for to be renewed: a broker must never see it.
    fn good(&self) -> impl Future<Output = Result<Option<Credential>, CredentialError>> + use<> {
        let (mut current, renews) = (self.current.clone(), self.renews);
        async move {
            loop {
                let now = current.borrow_and_update().clone();
                let expired = now.expires_at.is_some_and(|end| end <= clock::now());
                if !(renews && expired) {
                    return Ok(now.credential);
                }
                current
                    .changed()
                    .await
                    .map_err(|_| CredentialError::Supplier("the client is gone".to_owned()))?;
            }
        }
    }
}

impl Introducer for Speaker {
    fn introduce<'a>(
        &'a self,
        connect: &'a mut CommandConnect,
    ) -> BoxFuture<'a, Result<(), CredentialError>> {
        Box::pin(async move {
            let own = self.introductions.own_data().await?;
            connect.auth_method_name = own.auth_method_name;
            connect.auth_data = own.auth_data;
            if self.about_the_client {
                let credential = self.good().await?;
                let forwarded = self.introductions.forwarded(credential.as_ref());
                connect.original_auth_data = forwarded.map(|(data, _)| data.to_owned());
                connect.original_auth_method = forwarded.map(|(_, method)| method.to_owned());
            }
            Ok(())
        })
    }

    fn answer(
        &self,
        challenge: CommandAuthChallenge,
    ) -> BoxFuture<'static, Result<Option<AuthData>, CredentialError>> {
        let asked = challenge.challenge.unwrap_or_default();
        if !(self.about_the_client && asked.auth_data() == REFRESH) {
            let own = self.introductions.own.clone();
            return Box::pin(async move { own.auth_data().await });
        }
        let good = self.good();
        Box::pin(async move {
            Ok(good.await?.map(|credential| AuthData {
                auth_method_name: Some(credential.method),
                auth_data: Some(credential.data),
            }))
        })
    }
}

/// `FeatureFlags.supports_auth_refresh = false`, encoded. Of a repeated field the last one counts.
const NO_AUTH_REFRESH: &[u8] = &[1 << 3, 0];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Identity, Principal};
    use crate::config::{CredentialSource, Secret};
    use crate::protocol::command::Command;

    fn own() -> Authentication {
        Authentication::token(CredentialSource::Text(Secret::new("ours")))
    }

    /// A client's CONNECT with a field, and a feature flag, that no version of the protocol has.
    fn request(client: Option<AuthenticatedClient>) -> ConnectRequest {
        let connect = CommandConnect {
            client_version: "newer".to_owned(),
            auth_method_name: Some("token".to_owned()),
            auth_data: Some(Bytes::from_static(b"theirs")),
            ..CommandConnect::default()
        };
        let encoded = Command::from(connect.clone()).encode_command();
        let mut editor = CommandEditor::new(&encoded).expect("a command");
        editor.set_bytes(connect::FEATURE_FLAGS, UNKNOWN_FLAG);
        editor.set_bytes(UNKNOWN_FIELD, b"unknown");
        ConnectRequest {
            connect,
            encoded: editor.finish(),
            client,
        }
    }

    fn client(original: Option<&str>, data: &'static [u8]) -> AuthenticatedClient {
        AuthenticatedClient {
            identity: Identity {
                authenticated: Principal {
                    role: "me".into(),
                    method: "token".into(),
                    expires_at: None,
                },
                original: original.map(Into::into),
            },
            credential: Some(Credential {
                method: "token".to_owned(),
                data: Bytes::from_static(data),
            }),
        }
    }

    async fn told(introductions: &Introductions, request: &ConnectRequest) -> CommandConnect {
        let introduction = introductions.direct(request).await.expect("introduced");
        let editor = CommandEditor::new(&introduction.command).expect("a command");
        assert_eq!(editor.bytes(UNKNOWN_FIELD), Some(&b"unknown"[..]));
        let flags = editor.bytes(connect::FEATURE_FLAGS).expect("kept");
        assert!(flags.starts_with(UNKNOWN_FLAG), "{flags:?}");
        match Command::decode(&introduction.command) {
            Ok(Command::Connect(connect)) => *connect,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_this_version_does_not_know_gets_through_beside_what_it_says() {
        let passing = Introductions::new(Authentication::none(), true);
        let seen = told(&passing, &request(None)).await;
        assert_eq!(seen.auth_data(), b"theirs");
        for (forward, forwarded) in [(false, None), (true, Some("theirs".to_owned()))] {
            let seen = told(
                &Introductions::new(own(), forward),
                &request(Some(client(None, b"theirs"))),
            )
            .await;
            assert_eq!(seen.auth_data(), b"ours");
            assert_eq!(seen.original_principal(), "me");
            assert_eq!(seen.original_auth_data, forwarded);
            assert_eq!(
                seen.feature_flags.map(|flags| flags.supports_auth_refresh),
                Some(None)
            );
        }
        let seen = told(&Introductions::new(own(), true), &request(None)).await;
        assert_eq!(
            (seen.original_principal, seen.original_auth_data),
            (None, None)
        );
        assert_eq!(
            seen.feature_flags.map(|flags| flags.supports_auth_refresh),
            Some(Some(false))
        );
    }

    #[tokio::test]
    async fn a_trusted_proxys_client_is_named_and_bytes_that_are_no_text_stay_here() {
        let introductions = Introductions::new(own(), true);
        let seen = told(
            &introductions,
            &request(Some(client(Some("you"), b"yours"))),
        )
        .await;
        assert_eq!(seen.original_principal(), "you");
        assert_eq!(seen.original_auth_data(), "yours");
        let seen = told(&introductions, &request(Some(client(None, b"\xff")))).await;
        assert_eq!(seen.original_principal(), "me");
        assert_eq!(
            (seen.original_auth_data, seen.original_auth_method),
            (None, None)
        );
    }

    #[tokio::test]
    async fn a_certificate_is_not_forwarded_and_only_a_forwarded_token_is_left_to_brokers() {
        let with = |method: &str, original| {
            let mut client = client(original, b"x");
            client.credential = Some(Credential {
                method: method.to_owned(),
                data: Bytes::from_static(b"x"),
            });
            client
        };
        let forwarding = Introductions::new(own(), true);
        let seen = told(&forwarding, &request(Some(with("tls", None)))).await;
        assert_eq!(seen.original_principal(), "me");
        assert_eq!(
            (seen.original_auth_data, seen.original_auth_method),
            (None, None)
        );
        for (method, original, ends) in [
            ("token", None, false),
            ("token", Some("you"), true),
            ("tls", None, true),
            ("basic", None, true),
        ] {
            let client = with(method, original);
            assert_eq!(forwarding.ends_at_expiry(&client), ends, "{method}");
            assert!(Introductions::new(own(), false).ends_at_expiry(&client));
        }
        let binary = client(None, b"\xff");
        assert!(forwarding.ends_at_expiry(&binary));
    }

    #[test]
    fn a_credential_is_renewed_only_for_a_client_that_can_and_that_acts_for_itself() {
        let refreshing = |mut request: ConnectRequest, supported| {
            request.connect.feature_flags = Some(FeatureFlags {
                supports_auth_refresh: Some(supported),
                ..FeatureFlags::default()
            });
            request
        };
        let itself = || request(Some(client(None, b"x")));
        let forwarding = Introductions::new(own(), true);
        assert!(forwarding.renews(&refreshing(itself(), true)));
        assert!(!forwarding.renews(&refreshing(itself(), false)));
        assert!(!forwarding.renews(&itself()));
        assert!(!forwarding.renews(&refreshing(request(None), true)));
        let other = request(Some(client(Some("you"), b"x")));
        assert!(!forwarding.renews(&refreshing(other, true)));
        assert!(!Introductions::new(own(), false).renews(&refreshing(itself(), true)));
    }

    const UNKNOWN_FIELD: u32 = 1000;
    /// Field 100 with the value 1.
    const UNKNOWN_FLAG: &[u8] = &[0xa0, 0x06, 1];
}
