//! A broker that answers as a transcript says: the stand-in for Apache Pulsar where there is no Java.
//!
//! ```ignore
//! let replay = Replay::from_transcript(Path::new("tests/oracle/transcripts/producer/batch.yaml"), 1)?;
//! // connect to `replay.brokers()[0].address` and do what the scenario does; then
//! assert_eq!(replay.problems(), Vec::<String>::new());
//! ```
//!
//! A frame that arrives is matched with the first recorded one of its connection that was not seen yet and has the same
//! type and fields; which connection it is, its CONNECT tells. A recorded answer is sent when everything that was sent or
//! done before it in the transcript has happened. What happened beside the connections (an unload, a kill) is told by
//! [`happened`](Replay::happened), or not waited for ([`without_events`](Replay::without_events)). Request ids need not be the
//! recorded ones.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use parking_lot::Mutex;
use pulsegate::net::FrameReader;
use pulsegate::protocol::frame::{Frame, FrameLimits};
use serde_yaml::Value;
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::normal::Actual;
use crate::transcript::{self, Direction, Entry};
use crate::value::flow;
use crate::wire::{self, Decoded};

/// A broker.
#[derive(Debug, Clone)]
pub(crate) struct Broker {
    /// The name in steps.
    pub(crate) name: String,
    /// `host:port` of the binary protocol.
    pub(crate) address: String,
    /// `http://host:port`.
    pub(crate) web: Option<String>,
}

/// The stand-in. Dropping it ends its connections.
#[derive(Debug)]
pub(crate) struct Replay {
    entries: Vec<Entry>,
    actual: Actual,
    brokers: Vec<Broker>,
    /// Whether clients connect to it themselves, and not through a gateway.
    faces_clients: bool,
    state: Mutex<State>,
    /// Counts changes of `state`.
    changed: watch::Sender<u64>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// By entry: whether it was sent, received, or happened.
    done: Vec<bool>,
    problems: Vec<String>,
    /// By connection and recorded request id: the stream that asked, and the id it used.
    requests: HashMap<(String, u64), (usize, u64)>,
    /// By connection: the stream that answers without a request id go to.
    streams: HashMap<String, usize>,
    next_stream: usize,
}

/// What a stream has to do next.
enum Action {
    Send(BytesMut),
    Close,
}

impl Replay {
    /// A replay of a transcript's file for clients, with so many brokers.
    #[allow(dead_code, reason = "for tests that include this file")]
    pub(crate) fn from_transcript(path: &Path, brokers: usize) -> Result<Arc<Self>, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path:?}: {error}"))?;
        Self::listen(transcript::parse(&text)?, brokers, true)
    }

    /// A replay of these entries for a gateway. Must be called within a runtime.
    #[allow(dead_code, reason = "a test of a client has no gateway")]
    pub(crate) fn start(entries: Vec<Entry>, brokers: usize) -> Result<Arc<Self>, String> {
        Self::listen(entries, brokers, false)
    }

    fn listen(
        entries: Vec<Entry>,
        brokers: usize,
        faces_clients: bool,
    ) -> Result<Arc<Self>, String> {
        let text = |error: std::io::Error| error.to_string();
        let mut listeners = Vec::new();
        for _ in 0..brokers {
            let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(text)?;
            listener.set_nonblocking(true).map_err(text)?;
            listeners.push(TcpListener::from_std(listener).map_err(text)?);
        }
        let mut replay = Self {
            actual: Actual::default(),
            brokers: Vec::new(),
            faces_clients,
            state: Mutex::new(State { ..State::default() }),
            entries,
            changed: watch::channel(0).0,
            tasks: Mutex::new(JoinSet::new()),
        };
        for (place, listener) in listeners.iter().enumerate() {
            let address = listener.local_addr().map_err(text)?.to_string();
            replay.brokers.push(Broker {
                name: format!("broker{place}"),
                address,
                web: None,
            });
        }
        replay.actual.addresses = replay.names();
        replay.state.get_mut().done = of_the_gateway(&replay.entries);
        let replay = Arc::new(replay);
        for listener in listeners {
            let accepting = Arc::downgrade(&replay);
            replay.tasks.lock().spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let Some(replay) = accepting.upgrade() else {
                        return;
                    };
                    let serving = Arc::downgrade(&replay);
                    let changes = replay.changed.subscribe();
                    replay.tasks.lock().spawn(serve(serving, changes, stream));
                }
            });
        }
        Ok(replay)
    }

    /// The brokers; all of them answer alike.
    pub(crate) fn brokers(&self) -> Vec<Broker> {
        self.brokers.clone()
    }

    /// Puts values in the place of names, as the frames of this replay have them.
    pub(crate) fn actual(&self) -> &Actual {
        &self.actual
    }

    /// Waits until all that was recorded has come, but not for ever: what was sent last may still be on its way.
    pub(crate) async fn settled(&self) {
        let mut changes = self.changed.subscribe();
        let settled =
            async { while self.missing().is_some() && changes.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(SETTLE_TIME, settled).await;
    }

    /// What came that was not recorded, and the first of what was recorded and did not come.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.state.lock().problems.clone();
        if let Some(missing) = self.missing() {
            let content = content(&missing.value, missing.message.as_ref());
            problems.push(format!("did not come: {} {content}", missing.key));
        }
        problems
    }

    /// The first frame of a client that was recorded and has not come.
    fn missing(&self) -> Option<&Entry> {
        let state = self.state.lock();
        let mut entries = self.entries.iter().zip(&state.done);
        let missing = entries.find(|(entry, done)| {
            let is_sent = matches!(entry.parts(), Some((_, Direction::Sent, _)));
            is_sent && entry.is_frame() && !**done
        });
        missing.map(|(entry, _)| entry)
    }

    /// A recorded entry.
    pub(crate) fn recorded(&self, place: usize) -> Option<Entry> {
        self.entries.get(place).cloned()
    }

    /// How many frames were received in a row from this place on, on these connections.
    pub(crate) fn received_next(&self, place: usize, is_chosen: &impl Fn(&str) -> bool) -> usize {
        let next = self.entries.iter().skip(place);
        next.take_while(|entry| {
            matches!(entry.parts(), Some((connection, Direction::Received, _)) if is_chosen(connection))
        })
        .count()
    }

    /// Says that the entry at this place, which is no frame, happened.
    pub(crate) fn happened(&self, place: usize) {
        if let Some(done) = self.state.lock().done.get_mut(place) {
            *done = true;
        }
        self.wake();
    }

    /// Waits for nothing but frames from now on.
    #[allow(dead_code, reason = "for tests that include this file")]
    pub(crate) fn without_events(&self) {
        let mut state = self.state.lock();
        for (place, entry) in self.entries.iter().enumerate() {
            if !entry.is_frame()
                && !matches!(entry.parts(), Some((_, Direction::Received, _)))
                && let Some(done) = state.done.get_mut(place)
            {
                *done = true;
            }
        }
        drop(state);
        self.wake();
    }

    /// The broker that a name in the transcript stands for.
    pub(crate) fn place_of(&self, name: &str) -> Option<usize> {
        let named = self
            .actual
            .addresses
            .iter()
            .find(|(_, known)| known == name);
        let (address, _) = named?;
        self.brokers
            .iter()
            .position(|broker| broker.address == *address)
    }

    /// Each name of a broker in the transcript gets one of the addresses: those that frames tell, then those of connections.
    fn names(&self) -> Vec<(String, String)> {
        let mut names = Vec::new();
        for entry in &self.entries {
            let mut value = entry.value.clone();
            crate::value::replace_scalars(&mut value, "", &mut |_, value| {
                if let Some(name) = value
                    .as_str()
                    .and_then(|text| text.strip_prefix("pulsar://"))
                    && !names.contains(&name.to_owned())
                {
                    names.push(name.to_owned());
                }
            });
        }
        for entry in self.entries.iter().filter(|entry| entry.key == "open") {
            if let Some(name) = entry.value.get("broker").and_then(Value::as_str)
                && !names.contains(&name.to_owned())
            {
                names.push(name.to_owned());
            }
        }
        if names.is_empty() {
            names.push("broker0".to_owned());
        }
        names
            .into_iter()
            .enumerate()
            .map(|(place, name)| {
                let broker = &self.brokers[place % self.brokers.len()];
                (broker.address.clone(), name)
            })
            .collect()
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Takes a frame of a stream; `label` is the name of its connection once that is known.
    fn arrived(&self, stream: usize, label: &mut Option<String>, frame: &Frame) -> Option<Action> {
        let mut decoded = wire::decode_frame(frame);
        let request_id = decoded.fields.get("request_id").and_then(Value::as_u64);
        self.actual.take(&decoded.name, &mut decoded.fields);
        if let Some(message) = &mut decoded.message {
            self.actual.take(&decoded.name, message);
        }
        let goes_to_broker = self.faces_clients && self.take_target(&mut decoded);
        let mut state = self.state.lock();
        let found = self.find(&state, label.as_deref(), &decoded, goes_to_broker);
        let Some(place) = found else {
            return self.unmatched(&mut state, label, &decoded);
        };
        state.done[place] = true;
        let entry = &self.entries[place];
        let connection = entry.parts().map(|(connection, ..)| connection.to_owned());
        if let Some(connection) = connection {
            if decoded.name == "CONNECT" {
                state.streams.insert(connection.clone(), stream);
                *label = Some(connection.clone());
            }
            let recorded = entry.value.get("request_id").and_then(Value::as_u64);
            if let (Some(recorded), Some(actual)) = (recorded, request_id) {
                state
                    .requests
                    .insert((connection, recorded), (stream, actual));
            }
        }
        drop(state);
        self.wake();
        None
    }

    /// Takes the broker out of a CONNECT that names one of ours: a client that a lookup sent through the service URL does so,
    /// and a scenario is recorded on a connection to that very broker. Says whether there was one.
    fn take_target(&self, decoded: &mut Decoded) -> bool {
        const TARGET: &str = "proxy_to_broker_url";
        let target = decoded.fields.get(TARGET).and_then(Value::as_str);
        let is_ours = target.is_some_and(|target| {
            let mut addresses = self.actual.addresses.iter();
            addresses.any(|(_, name)| name == target)
        });
        if is_ours && let Some(fields) = decoded.fields.as_mapping_mut() {
            fields.shift_remove(TARGET);
        }
        is_ours
    }

    /// The first recorded frame like this one that has not come yet. One that names its broker is of no connection for lookups.
    fn find(
        &self,
        state: &State,
        label: Option<&str>,
        decoded: &Decoded,
        goes_to_broker: bool,
    ) -> Option<usize> {
        self.entries
            .iter()
            .zip(&state.done)
            .position(|(entry, done)| {
                let Some((connection, Direction::Sent, name)) = entry.parts() else {
                    return false;
                };
                !done
                    && name == decoded.name
                    && label.map_or(name == "CONNECT", |label| label == connection)
                    && !(goes_to_broker && is_service(&self.entries, connection))
                    && same_frame(entry, decoded, self.is_asked_by_gateway(connection))
            })
    }

    /// Whether what comes on a connection is a gateway's own, which stands between it and a client that wants lookups.
    fn is_asked_by_gateway(&self, connection: &str) -> bool {
        !self.faces_clients && is_service(&self.entries, connection)
    }

    fn unmatched(
        &self,
        state: &mut State,
        label: &mut Option<String>,
        decoded: &Decoded,
    ) -> Option<Action> {
        let answer = |name: &str, fields: &Value| wire::encode_frame(name, fields, None).ok();
        // Frames that a scenario gives as bytes are not recorded as frames; their answers are.
        let raw = label.as_deref().map(|label| format!("{label} > bytes"));
        let has_bytes = self
            .entries
            .iter()
            .any(|entry| Some(&entry.key) == raw.as_ref());
        match decoded.name.as_str() {
            "PING" if !has_bytes => return answer("PONG", &Value::Null).map(Action::Send),
            "PONG" => return None,
            // A gateway opens further connections for a lookup; they are the client's in all they say.
            "CONNECT" => {
                let known = self.entries.iter().find(|entry| {
                    entry.key.ends_with(" > CONNECT")
                        && entry.value.get("client_version") == decoded.fields.get("client_version")
                });
                if let Some((connection, ..)) = known.and_then(Entry::parts) {
                    *label = Some(connection.to_owned());
                    let connected = format!("{connection} < CONNECTED");
                    let connected = self.entries.iter().find(|entry| entry.key == connected)?;
                    return answer("CONNECTED", &connected.value).map(Action::Send);
                }
            }
            // A gateway follows redirects: the answer is the one that another connection got there.
            "LOOKUP" => {
                let found = self.found_lookup(decoded.fields.get("topic")?);
                if let Some(mut fields) = found {
                    self.actual.put(&mut fields);
                    if let (Some(fields), Some(id)) =
                        (fields.as_mapping_mut(), decoded.fields.get("request_id"))
                    {
                        fields.insert("request_id".into(), id.clone());
                    }
                    return answer("LOOKUP_RESPONSE", &fields).map(Action::Send);
                }
            }
            _ => {}
        }
        let name = label.as_deref().unwrap_or("?");
        if !has_bytes {
            let content = content(&decoded.fields, decoded.message.as_ref());
            let problem = format!("not recorded: {name} > {} {content}", decoded.name);
            state.problems.push(problem);
        }
        None
    }

    /// The recorded answer that says who serves a topic.
    fn found_lookup(&self, topic: &Value) -> Option<Value> {
        let asked = self.entries.iter().filter(|entry| {
            entry.key.ends_with(" > LOOKUP") && entry.value.get("topic") == Some(topic)
        });
        asked
            .filter_map(|entry| {
                let (connection, ..) = entry.parts()?;
                let key = format!("{connection} < LOOKUP_RESPONSE");
                self.entries.iter().find(|answer| {
                    answer.key == key
                        && answer.value.get("request_id") == entry.value.get("request_id")
                        && answer.value.get("response").and_then(Value::as_str) == Some("Connect")
                })
            })
            .map(|answer| answer.value.clone())
            .next()
    }

    /// What this stream may send now; marks it as sent.
    fn due(&self, stream: usize, label: &str) -> Option<Action> {
        let mut state = self.state.lock();
        let (place, request) = self.next_due(&state, stream, label)?;
        state.done[place] = true;
        drop(state);
        self.wake();
        let entry = &self.entries[place];
        let (_, _, name) = entry.parts()?;
        if name == "closed" {
            return Some(Action::Close);
        }
        let mut fields = entry.value.clone();
        let mut message = entry.message.clone();
        self.actual.put(&mut fields);
        if let Some(message) = &mut message {
            self.actual.put(message);
        }
        if let (Some(id), Some(fields)) = (request, fields.as_mapping_mut()) {
            fields.insert("request_id".into(), id.into());
        }
        match wire::encode_frame(name, &fields, message.as_ref()) {
            Ok(bytes) => Some(Action::Send(bytes)),
            Err(reason) => {
                let problem = format!("cannot be sent: {}: {reason}", entry.key);
                self.state.lock().problems.push(problem);
                None
            }
        }
    }

    /// The first entry of the connection that was not sent yet, if it is this stream's and nothing before it is missing.
    fn next_due(&self, state: &State, stream: usize, label: &str) -> Option<(usize, Option<u64>)> {
        for (place, entry) in self.entries.iter().enumerate() {
            let done = state.done.get(place).copied().unwrap_or(true);
            match entry.parts() {
                Some((connection, Direction::Received, _)) => {
                    if done || connection != label {
                        continue;
                    }
                    let id = entry.value.get("request_id").and_then(Value::as_u64);
                    let asked = id.and_then(|id| state.requests.get(&(connection.to_owned(), id)));
                    let to = asked.map(|(stream, _)| stream).or(state.streams.get(label));
                    return (to == Some(&stream)).then_some((place, asked.map(|(_, id)| *id)));
                }
                _ if !done => return None,
                _ => {}
            }
        }
        None
    }
}

/// How long what was sent last is waited for.
const SETTLE_TIME: std::time::Duration = std::time::Duration::from_secs(3);

/// The frames that no broker sees when a gateway is in front: those of connections that have not said CONNECT yet, and PING and
/// PONG of connections for lookups. A gateway answers them itself.
fn of_the_gateway(entries: &[Entry]) -> Vec<bool> {
    let mut waiting: Vec<String> = Vec::new();
    entries
        .iter()
        .map(|entry| {
            if entry.key == "open" {
                let opened = entry.value.get("connection").and_then(Value::as_str);
                waiting.extend(opened.map(str::to_owned));
            }
            let Some((connection, _, name)) = entry.parts() else {
                return false;
            };
            if matches!(name, "CONNECT" | "bytes") {
                waiting.retain(|waiting| waiting != connection);
            }
            let is_before_connect = waiting.iter().any(|waiting| waiting == connection);
            let is_ping = matches!(name, "PING" | "PONG") && is_service(entries, connection);
            entry.is_frame() && (is_before_connect || is_ping)
        })
        .collect()
}

fn is_service(entries: &[Entry], connection: &str) -> bool {
    entries.iter().any(|entry| {
        entry.key == "open"
            && entry.value.get("connection").and_then(Value::as_str) == Some(connection)
            && entry.value.get("service").is_some()
    })
}

/// The fields of a frame and what follows them, as text.
fn content(fields: &Value, message: Option<&Value>) -> String {
    match message {
        Some(message) => format!("{} message: {}", flow(fields), flow(message)),
        None => flow(fields),
    }
}

/// Whether a frame that came is the recorded one. A proxy says its version, has request ids of its own, and writes
/// `authoritative: false` out; for a lookup that it makes itself it does not say `authoritative` at first, and it can pass no
/// challenge on.
fn same_frame(entry: &Entry, decoded: &Decoded, is_asked_by_gateway: bool) -> bool {
    let plain = |fields: &Value| {
        let mut fields = fields.clone();
        if let Some(fields) = fields.as_mapping_mut() {
            fields.shift_remove("proxy_version");
            fields.shift_remove("request_id");
            if is_asked_by_gateway || fields.get("authoritative") == Some(&Value::Bool(false)) {
                fields.shift_remove("authoritative");
            }
            let flags = fields.get_mut("feature_flags");
            if is_asked_by_gateway && let Some(flags) = flags.and_then(Value::as_mapping_mut) {
                flags.shift_remove("supports_auth_refresh");
            }
        }
        fields
    };
    plain(&entry.value) == plain(&decoded.fields) && entry.message == decoded.message
}

async fn serve(
    replay: std::sync::Weak<Replay>,
    mut changes: watch::Receiver<u64>,
    stream: TcpStream,
) {
    let _ = stream.set_nodelay(true);
    let id = match replay.upgrade() {
        Some(replay) => {
            let mut state = replay.state.lock();
            state.next_stream += 1;
            state.next_stream
        }
        None => return,
    };
    let (reader, mut writer): (ReadHalf<TcpStream>, WriteHalf<TcpStream>) =
        tokio::io::split(stream);
    let limits = FrameLimits {
        max_frame: 32 * 1024 * 1024,
    };
    let mut reader = FrameReader::new(reader, limits);
    let mut label = None;
    let mut is_reading = true;
    loop {
        changes.mark_unchanged();
        let due = {
            let Some(replay) = replay.upgrade() else {
                return;
            };
            label.as_deref().and_then(|label| replay.due(id, label))
        };
        let action = match due {
            Some(action) => Some(action),
            None => tokio::select! {
                frame = reader.next(), if is_reading => match frame {
                    Ok(Some(frame)) => {
                        let Some(replay) = replay.upgrade() else { return };
                        replay.arrived(id, &mut label, &frame)
                    }
                    // What was recorded after a half close, or after bytes that are no frame, is still to be sent.
                    Ok(None) | Err(_) => {
                        is_reading = false;
                        None
                    }
                },
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    None
                }
            },
        };
        let written = match action {
            Some(Action::Send(bytes)) => writer.write_all(&bytes).await,
            Some(Action::Close) => return,
            None => Ok(()),
        };
        if written.is_err() {
            return;
        }
    }
}
