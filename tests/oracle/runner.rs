//! Carries out a scenario against a server and writes down what happened.
//!
//! What arrives is written down when a step asks for it and not when it arrives, so that the order of a transcript does not
//! depend on how fast either side was.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::BytesMut;
use serde_yaml::{Mapping, Value};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{Arrival, Connection};
use crate::environment::Environment;
use crate::http;
use crate::normal::{Normaliser, Origin, now_millis, set_default};
use crate::scenario::{Opening, Scenario, Step, Wanted, plain};
use crate::transcript::{Direction, Entry};
use crate::value::{at_path, flow, includes, mapping, replace_scalars};
use crate::variables::Variables;
use crate::wire::{self, Decoded};

/// Why a run ended early. What happened so far is in the transcript all the same.
#[derive(Debug)]
pub(crate) struct Stopped(pub(crate) String);

impl From<&str> for Stopped {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

impl From<String> for Stopped {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

/// A run of one scenario.
pub(crate) struct Runner<'a> {
    environment: &'a Environment,
    connections: Vec<Named>,
    variables: Variables,
    normaliser: Normaliser,
    looked_up: BTreeSet<String>,
    looks_up: bool,
    log: Vec<Entry>,
}

/// A connection and what is known about it.
struct Named {
    name: String,
    connection: Connection,
    /// The address asked for in CONNECT, which a direct connection has no need of.
    injected_target: Option<String>,
    /// Whether CONNECT was sent.
    has_connected: bool,
    next_request_id: u64,
    /// By id, the names of the producers: messages carry them.
    producers: Vec<(u64, String)>,
    last_lookup: Option<Value>,
    /// What was not answered yet.
    asked: Vec<Asked>,
    is_closed: bool,
}

impl<'a> Runner<'a> {
    /// Runs a scenario; the transcript is that of the whole run or up to the step that failed, whose reason is its last entry.
    pub(crate) async fn run(
        scenario: &Scenario,
        environment: &'a Environment,
        token: String,
    ) -> (Vec<Entry>, Result<(), Stopped>) {
        let mut runner = Self {
            environment,
            connections: Vec::new(),
            variables: Variables::new(&token),
            normaliser: Normaliser::new(token, environment.names()),
            looked_up: BTreeSet::new(),
            looks_up: scenario.looks_up,
            log: Vec::new(),
        };
        let mut result = runner.steps(&scenario.steps).await;
        let is_settled = matches!(scenario.steps.last(), Some(Step::Settle(_)));
        if result.is_ok() && !is_settled {
            result = runner.quiet(&[], false, Duration::from_millis(300)).await;
        }
        if let Err(Stopped(reason)) = &result {
            let reason = runner.normaliser.text(reason);
            runner.log.push(Entry::event("stopped", reason.into()));
        }
        (crate::transcript::without_repeats(runner.log), result)
    }

    async fn steps(&mut self, steps: &[Step]) -> Result<(), Stopped> {
        for step in steps {
            Box::pin(self.step(step)).await?;
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), Stopped> {
        match step {
            Step::Open(opening) => self.open(opening).await.map(|_| ()),
            Step::Connect { opening, fields } => self.connect(opening, fields).await,
            Step::Send {
                connection,
                command,
                fields,
                message,
                split,
            } => {
                let (message, split) = (message.as_ref(), *split);
                self.send(connection, command, fields, message, split).await
            }
            Step::Bytes { connection, bytes } => self.bytes(connection, bytes).await,
            Step::End { connection, half } => self.end(connection, *half).await,
            Step::Expect {
                connection,
                wanted,
                count,
                within,
                capture,
            } => {
                let wanted = self.wanted(wanted)?;
                let mut last = None;
                for _ in 0..*count {
                    last = Some(self.expect(connection, &wanted, *within).await?);
                }
                self.variables.capture(capture, last.as_ref())
            }
            Step::ExpectAnyOrder {
                connection,
                wanted,
                within,
            } => self.expect_any_order(connection, wanted, *within).await,
            Step::ExpectClosed { connection, within } => {
                self.expect_closed(connection, *within).await
            }
            Step::Quiet {
                connections,
                sorted,
                time,
            } => self.quiet(connections, *sorted, *time).await,
            Step::Settle(time) => self.settle(*time).await,
            Step::Repeat {
                times,
                variable,
                steps,
            } => {
                for turn in 0..*times {
                    self.variables.set(variable, turn.into());
                    self.steps(steps).await?;
                }
                Ok(())
            }
            Step::Set(variables) => {
                for (name, value) in variables {
                    let value = self.variables.resolve(value)?;
                    self.variables.set(&plain(name), value);
                }
                Ok(())
            }
            beside => self.beside(beside).await,
        }
    }

    /// The steps that are not about connections. A replay only repeats what was recorded of them.
    async fn beside(&mut self, step: &Step) -> Result<(), Stopped> {
        match step {
            Step::Admin {
                request,
                body,
                has_shape,
                show,
                capture,
            } => {
                let request = self.variables.text(request)?;
                let shown: Vec<String> = show
                    .iter()
                    .map(|path| self.variables.text(path))
                    .collect::<Result<_, _>>()?;
                let body = self.variables.resolve(body)?;
                let answer = self.admin(&request, &body, *has_shape, &shown).await?;
                self.variables.capture(capture, answer.as_ref())
            }
            Step::Until { path, wanted } => {
                let path = self.variables.text(path)?;
                let wanted = self.variables.resolve(wanted)?;
                Ok(self.environment.until(&path, &wanted).await?)
            }
            Step::Unload(topic) => {
                let topic = self.variables.text(topic)?;
                self.looked_up.clear();
                self.environment.moves();
                let request = format!("PUT /admin/v2/{}/unload", topic.replacen("://", "/", 1));
                self.admin(&request, &Value::Null, true, &[]).await?;
                Ok(())
            }
            Step::Process { action, broker } => {
                let broker = self.variables.text(broker)?;
                self.looked_up.clear();
                let shown = self.normaliser.text(&self.environment.address_of(&broker)?);
                self.environment.process(action, &broker).await?;
                self.event(action, shown.into());
                Ok(())
            }
            Step::Owner {
                topic,
                owner,
                other,
            } => {
                let topic = self.variables.text(topic)?;
                let address = self.owner_of(&topic).await?;
                self.name_broker(owner, |broker| broker == address)?;
                if let Some(other) = other {
                    self.name_broker(other, |broker| broker != address)?;
                }
                Ok(())
            }
            Step::Leader { leader, other } => {
                let address = self.environment.leader().await?;
                self.name_broker(leader, |broker| broker == address)?;
                self.name_broker(other, |broker| broker != address)
            }
            Step::Lookup(topic) => {
                let topic = self.variables.text(topic)?;
                self.owner_of(&topic).await.map(|_| ())
            }
            Step::Sleep(time) => {
                if self.environment.replay.is_none() {
                    sleep(*time).await;
                }
                Ok(())
            }
            other => Err(Stopped(format!("{other:?} is no step beside connections"))),
        }
    }

    /// Gives the first broker that `is` accepts a name, for steps and for the transcript.
    fn name_broker(&mut self, name: &str, is: impl Fn(&str) -> bool) -> Result<(), Stopped> {
        let replay = self.environment.replay.as_ref();
        let place = replay.and_then(|replay| replay.place_of(name)).or_else(|| {
            let mut brokers = self.environment.brokers.iter();
            brokers.position(|broker| is(&broker.address))
        });
        let place = place.ok_or_else(|| format!("no broker can be {name}"))?;
        let broker = &self.environment.brokers[place];
        self.variables.set(name, broker.name.as_str().into());
        // A replay has no REST interface: the name itself will do.
        let web_name = format!("{name}-web");
        let web = broker.web.as_deref().unwrap_or(&web_name);
        let web = web.trim_start_matches("http://").to_owned();
        self.variables.set(&web_name, web.as_str().into());
        self.normaliser
            .addresses
            .retain(|(address, _)| *address != web);
        self.normaliser.addresses.push((web, web_name));
        self.normaliser
            .addresses
            .retain(|(address, _)| *address != broker.address);
        self.normaliser
            .addresses
            .push((broker.address.clone(), name.to_owned()));
        Ok(())
    }

    async fn open(&mut self, opening: &Opening) -> Result<Option<String>, Stopped> {
        let mut target = match (&opening.broker, &opening.topic, &opening.as_told) {
            (Some(broker), _, _) => {
                let broker = self.variables.text(broker)?;
                Some(self.environment.address_of(&broker)?)
            }
            (_, Some(topic), _) => {
                let topic = self.variables.text(topic)?;
                Some(self.owner_of(&topic).await?)
            }
            (_, _, Some(told)) => Some(self.told(told)?),
            _ => None,
        };
        let default = &self.environment.brokers[0].address;
        let target_or_default = target.take().unwrap_or_else(|| default.clone());
        let (address, injected_target) = match (&self.environment.front, opening.is_service) {
            (None, _) => (target_or_default, None),
            (Some(front), true) => (front.clone(), None),
            (Some(front), false) => (front.clone(), Some(target_or_default)),
        };
        let connection = Connection::open(&address, !opening.is_silent)
            .await
            .map_err(|error| format!("connect to {address}: {error}"))?;
        let mut shown = Mapping::new();
        shown.insert("connection".into(), opening.connection.as_str().into());
        if let Some(broker) = &opening.broker {
            shown.insert("broker".into(), broker.trim_start_matches('$').into());
        }
        if opening.is_service {
            shown.insert("service".into(), true.into());
        }
        self.event("open", Value::Mapping(shown));
        self.connections
            .retain(|known| known.name != opening.connection);
        self.connections.push(Named {
            name: opening.connection.clone(),
            connection,
            injected_target: injected_target.clone(),
            has_connected: false,
            next_request_id: 1,
            producers: Vec::new(),
            last_lookup: None,
            asked: Vec::new(),
            is_closed: false,
        });
        Ok(injected_target)
    }

    async fn connect(&mut self, opening: &Opening, fields: &Value) -> Result<(), Stopped> {
        self.open(opening).await?;
        self.send(&opening.connection, "CONNECT", fields, None, None)
            .await?;
        let connected = Wanted {
            command: "CONNECTED".to_owned(),
            fields: Value::Null,
        };
        self.expect(&opening.connection, &connected, WITHIN).await?;
        Ok(())
    }

    /// The broker that a lookup answer named.
    fn told(&mut self, connection: &str) -> Result<String, Stopped> {
        let answer = self.named(connection)?.last_lookup.clone();
        let url = answer
            .as_ref()
            .and_then(|answer| answer.get("brokerServiceUrl"));
        let url = url.and_then(Value::as_str).unwrap_or_default();
        match url.strip_prefix("pulsar://") {
            Some(address) => Ok(address.to_owned()),
            None => Err(Stopped(format!("{connection} was not told a broker"))),
        }
    }

    async fn send(
        &mut self,
        connection: &str,
        command: &str,
        fields: &Value,
        message: Option<&Value>,
        split: Option<usize>,
    ) -> Result<(), Stopped> {
        let fields = self.variables.resolve(fields)?;
        let mut fields = match fields {
            Value::Mapping(fields) => fields,
            _ => Mapping::new(),
        };
        let mut message = message
            .map(|message| self.variables.resolve(message))
            .transpose()?;
        if self.looks_up
            && matches!(command, "PRODUCER" | "SUBSCRIBE")
            && let Some(topic) = fields.get("topic").and_then(Value::as_str)
        {
            let topic = topic.to_owned();
            if !self.looked_up.contains(&topic) {
                // Whether it succeeds is not the step's business.
                let _ = self.owner_of(&topic).await;
            }
        }
        let named = self.named(connection)?;
        complete(named, command, &mut fields, &mut message)?;
        let bytes = wire::encode_frame(command, &Value::Mapping(fields), message.as_ref())?;
        match split.filter(|split| *split < bytes.len()) {
            Some(split) => {
                named.connection.send(&bytes[..split]).await;
                sleep(Duration::from_millis(1)).await;
                named.connection.send(&bytes[split..]).await;
            }
            None => named.connection.send(&bytes).await,
        }
        self.log_sent(connection, &bytes)
    }

    /// Writes down what was sent as a server sees it.
    fn log_sent(&mut self, connection: &str, bytes: &BytesMut) -> Result<(), Stopped> {
        let Decoded {
            name,
            mut fields,
            mut message,
        } = decode(bytes)?;
        let injected = self.named(connection)?.injected_target.clone();
        if let (Some(injected), Some(fields)) = (injected, fields.as_mapping_mut())
            && fields.get("proxy_to_broker_url").and_then(Value::as_str) == Some(&injected)
        {
            fields.shift_remove("proxy_to_broker_url");
        }
        self.normaliser.frame(&name, &mut fields, Origin::Client);
        if let Some(message) = &mut message {
            self.normaliser.frame(&name, message, Origin::Client);
        }
        let mut entry = Entry::of(connection, Direction::Sent, &name, fields);
        entry.message = message;
        self.log.push(entry);
        Ok(())
    }

    async fn bytes(&mut self, connection: &str, bytes: &Value) -> Result<(), Stopped> {
        let spec = self.variables.resolve(bytes)?;
        let bytes = wire::payload_bytes(&spec)?;
        let named = self.named(connection)?;
        named.connection.send(&bytes).await;
        self.event(&format!("{connection} > bytes"), spec);
        Ok(())
    }

    async fn end(&mut self, connection: &str, half: bool) -> Result<(), Stopped> {
        let named = self.named(connection)?;
        if half {
            named.connection.half_close().await;
            named.asked.push(Asked::Close);
            self.event(&format!("{connection} > half close"), Value::Null);
        } else {
            self.connections.retain(|named| named.name != connection);
            self.event(&format!("{connection} > close"), Value::Null);
        }
        Ok(())
    }

    /// Writes down arrivals up to the wanted frame and returns that one's content as it came.
    async fn expect(
        &mut self,
        connection: &str,
        wanted: &Wanted,
        within: Duration,
    ) -> Result<Value, Stopped> {
        let deadline = Instant::now() + within;
        loop {
            match self.named(connection)?.connection.next(deadline).await {
                Some(Arrival::Frame(frame)) => {
                    let decoded = wire::decode_frame(&frame);
                    let content = content_of(&decoded);
                    let is_wanted =
                        decoded.name == wanted.command && includes(&content, &wanted.fields);
                    self.note(connection, &decoded)?;
                    let entry = self.received(connection, decoded);
                    self.log.push(entry);
                    if is_wanted {
                        return Ok(content);
                    }
                }
                Some(Arrival::Closed) => {
                    self.log_closed(connection);
                    return Err(Stopped(format!(
                        "{connection} was closed before {} came",
                        wanted.command
                    )));
                }
                None => {
                    let fields = flow(&wanted.fields);
                    return Err(Stopped(format!(
                        "no {} {fields} on {connection} within {within:?}",
                        wanted.command
                    )));
                }
            }
        }
    }

    async fn expect_any_order(
        &mut self,
        connection: &str,
        wanted: &[Wanted],
        within: Duration,
    ) -> Result<(), Stopped> {
        let start = self.log.len();
        let mut missing = wanted
            .iter()
            .map(|wanted| self.wanted(wanted))
            .collect::<Result<Vec<_>, _>>()?;
        let deadline = Instant::now() + within;
        while !missing.is_empty() {
            match self.named(connection)?.connection.next(deadline).await {
                Some(Arrival::Frame(frame)) => {
                    let decoded = wire::decode_frame(&frame);
                    let content = content_of(&decoded);
                    let found = missing.iter().position(|wanted| {
                        wanted.command == decoded.name && includes(&content, &wanted.fields)
                    });
                    if let Some(found) = found {
                        missing.remove(found);
                    }
                    self.note(connection, &decoded)?;
                    let entry = self.received(connection, decoded);
                    self.log.push(entry);
                }
                Some(Arrival::Closed) => {
                    self.log_closed(connection);
                    break;
                }
                None => break,
            }
        }
        self.sort_from(start);
        match missing.first() {
            Some(missing) => Err(Stopped(format!("no {} on {connection}", missing.command))),
            None => Ok(()),
        }
    }

    async fn expect_closed(&mut self, connection: &str, within: Duration) -> Result<(), Stopped> {
        let deadline = Instant::now() + within;
        loop {
            match self.named(connection)?.connection.next(deadline).await {
                Some(Arrival::Frame(frame)) => {
                    let entry = self.received(connection, wire::decode_frame(&frame));
                    self.log.push(entry);
                }
                Some(Arrival::Closed) => {
                    self.log_closed(connection);
                    return Ok(());
                }
                None => return Err(Stopped(format!("{connection} was not closed"))),
            }
        }
    }

    async fn quiet(
        &mut self,
        names: &[String],
        sorted: bool,
        time: Duration,
    ) -> Result<(), Stopped> {
        for name in names {
            self.named(name)?;
        }
        let is_chosen = |name: &str| names.is_empty() || names.iter().any(|chosen| chosen == name);
        if let Some(replay) = &self.environment.replay {
            // What was recorded next must come; how long it takes does not matter.
            let expected = replay.received_next(self.log.len(), &is_chosen);
            let arrived = async {
                loop {
                    let waiting: usize = self
                        .connections
                        .iter_mut()
                        .filter(|named| is_chosen(&named.name))
                        .map(|named| named.connection.waiting())
                        .sum();
                    if waiting >= expected {
                        return;
                    }
                    sleep(POLL).await;
                }
            };
            let _ = timeout(WITHIN, arrived).await;
            sleep(POLL).await;
        } else {
            self.silence(&is_chosen, time).await;
        }
        let mut arrivals = Vec::new();
        for named in &mut self.connections {
            if is_chosen(&named.name) {
                let waiting = named.connection.take_waiting();
                arrivals.push((named.name.clone(), waiting));
            }
        }
        self.write_down(arrivals, sorted)
    }

    /// Writes arrivals down, by connection.
    fn write_down(
        &mut self,
        mut arrivals: Vec<(String, Vec<Arrival>)>,
        sorted: bool,
    ) -> Result<(), Stopped> {
        arrivals.sort_by(|(first, _), (second, _)| first.cmp(second));
        for (name, waiting) in arrivals {
            let start = self.log.len();
            for arrival in waiting {
                match arrival {
                    Arrival::Frame(frame) => {
                        let decoded = wire::decode_frame(&frame);
                        self.note(&name, &decoded)?;
                        let entry = self.received(&name, decoded);
                        self.log.push(entry);
                    }
                    Arrival::Closed => self.log_closed(&name),
                }
            }
            if sorted {
                self.sort_from(start);
            }
        }
        Ok(())
    }

    /// Waits until nothing has arrived for `time`, but not for ever.
    async fn silence(&mut self, is_chosen: &impl Fn(&str) -> bool, time: Duration) {
        let end = Instant::now() + WITHIN;
        let mut last = (0, Instant::now());
        while Instant::now() < end && last.1.elapsed() < time {
            sleep(POLL).await;
            let waiting: usize = self
                .connections
                .iter_mut()
                .filter(|named| is_chosen(&named.name))
                .map(|named| named.connection.waiting())
                .sum();
            if waiting != last.0 {
                last = (waiting, Instant::now());
            }
        }
    }

    /// See [`Step::Settle`].
    async fn settle(&mut self, time: Duration) -> Result<(), Stopped> {
        if self.environment.replay.is_some() {
            return self.quiet(&[], true, time).await;
        }
        let start = Instant::now();
        let mut arrivals: Vec<(String, Vec<Arrival>)> = Vec::new();
        let mut last = Instant::now();
        loop {
            for named in &mut self.connections {
                let came = named.connection.take_waiting();
                if came.is_empty() {
                    continue;
                }
                last = Instant::now();
                for arrival in &came {
                    named.answered(arrival);
                }
                match arrivals.iter_mut().find(|(name, _)| *name == named.name) {
                    Some((_, known)) => known.extend(came),
                    None => arrivals.push((named.name.clone(), came)),
                }
            }
            let now = Instant::now();
            let gives_up_acks = now.duration_since(start) > ACKS;
            let is_answered = |asked: &Asked| gives_up_acks && matches!(asked, Asked::Ack(_));
            let is_done = self
                .connections
                .iter()
                .all(|named| named.is_closed || named.asked.iter().all(is_answered));
            if is_done && now.duration_since(last) >= time || now >= start + ANSWERS {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        // What was never answered is not waited for again.
        for named in &mut self.connections {
            named.asked.clear();
        }
        self.write_down(arrivals, true)
    }

    /// Sends an admin request and writes the answer down; returns the decoded body.
    async fn admin(
        &mut self,
        request: &str,
        body: &Value,
        has_shape: bool,
        show: &[String],
    ) -> Result<Option<Value>, Stopped> {
        if let Some(replay) = &self.environment.replay {
            let recorded = replay.recorded(self.log.len());
            let recorded = recorded.filter(|entry| entry.key == "admin");
            let recorded = recorded.ok_or_else(|| format!("no answer to {request} is recorded"))?;
            let mut answer = Value::Mapping(Mapping::new());
            for (path, value) in recorded
                .value
                .get("show")
                .and_then(Value::as_mapping)
                .into_iter()
                .flatten()
            {
                insert_at(&mut answer, &plain(path), value.clone());
            }
            replay.actual().put(&mut answer);
            self.event("admin", recorded.value);
            return Ok(Some(answer));
        }
        let (method, path) = request.split_once(' ').ok_or("METHOD /path is needed")?;
        let body = match body {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            body => Some(serde_json::to_string(body).map_err(|error| error.to_string())?),
        };
        let base = self.environment.web()?;
        let answer = http::request(&base, method, path, body.as_deref()).await?;
        let decoded: Option<Value> = serde_json::from_slice(&answer.body).ok();
        let mut shown = Mapping::new();
        shown.insert("request".into(), self.normaliser.text(request).into());
        shown.insert("status".into(), answer.status.into());
        let mut body = decoded
            .clone()
            .unwrap_or_else(|| String::from_utf8_lossy(&answer.body).into_owned().into());
        self.normaliser.body(&mut body);
        if has_shape && !answer.body.is_empty() {
            shown.insert("shape".into(), shape(&body));
        }
        let mut values = Mapping::new();
        for path in show {
            let path = self.normaliser.text(path);
            collect(&body, &path, "", &mut values);
        }
        if !values.is_empty() {
            shown.insert("show".into(), Value::Mapping(values));
        }
        self.event("admin", Value::Mapping(shown));
        Ok(decoded)
    }

    /// Looks a topic up as a client does, on connections of its own, and returns the address of the broker that serves it.
    async fn owner_of(&mut self, topic: &str) -> Result<String, Stopped> {
        self.looked_up.insert(topic.to_owned());
        if self.environment.replay.is_some() {
            return Ok(self.environment.brokers[0].address.clone());
        }
        let start = Instant::now();
        loop {
            let answer = self.environment.look_up(topic).await;
            match answer {
                Ok(address) => return Ok(address),
                // A broker that has just started, or a bundle on its way, is not there at once.
                Err(_) if start.elapsed() < LOOKUP_TIME && self.environment.is_moving() => {
                    sleep(Duration::from_millis(200)).await;
                }
                Err(reason) => return Err(Stopped(format!("lookup of {topic}: {reason}"))),
            }
        }
    }

    /// Writes down what the runner did, and tells the replay that it happened.
    fn event(&mut self, key: &str, mut value: Value) {
        replace_scalars(&mut value, "", &mut |_, value| {
            if let Value::String(text) = value {
                *value = self.normaliser.text(text).into();
            }
        });
        if let Some(replay) = &self.environment.replay {
            replay.happened(self.log.len());
        }
        self.log.push(Entry::event(key, value));
    }

    fn received(&mut self, connection: &str, decoded: Decoded) -> Entry {
        let Decoded {
            name,
            mut fields,
            mut message,
        } = decoded;
        self.normaliser.frame(&name, &mut fields, Origin::Server);
        if let Some(message) = &mut message {
            self.normaliser.frame(&name, message, Origin::Server);
        }
        let mut entry = Entry::of(connection, Direction::Received, &name, fields);
        entry.message = message;
        entry
    }

    fn log_closed(&mut self, connection: &str) {
        self.log.push(Entry::of(
            connection,
            Direction::Received,
            "closed",
            Value::Null,
        ));
    }

    /// Keeps what later steps need of an answer.
    fn note(&mut self, connection: &str, decoded: &Decoded) -> Result<(), Stopped> {
        if matches!(decoded.name.as_str(), "SEND_RECEIPT" | "MESSAGE")
            && let Some(id) = decoded.fields.get("message_id")
        {
            self.variables.saw(id);
        }
        let named = self.named(connection)?;
        match decoded.name.as_str() {
            "LOOKUP_RESPONSE" => named.last_lookup = Some(decoded.fields.clone()),
            "PRODUCER_SUCCESS" => {
                let name = decoded.fields.get("producer_name").map(plain);
                let request_id = decoded.fields.get("request_id").and_then(Value::as_u64);
                let asked = request_id.map(pending);
                let known = named
                    .producers
                    .iter_mut()
                    .find(|(_, name)| Some(&*name) == asked.as_ref());
                if let Some(known) = known {
                    known.1 = name.unwrap_or_default();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn sort_from(&mut self, start: usize) {
        if let Some(part) = self.log.get_mut(start..) {
            part.sort_by_cached_key(|entry| crate::transcript::print(std::slice::from_ref(entry)));
        }
    }

    fn wanted(&self, wanted: &Wanted) -> Result<Wanted, Stopped> {
        Ok(Wanted {
            command: wanted.command.clone(),
            fields: self.variables.resolve(&wanted.fields)?,
        })
    }

    fn named(&mut self, name: &str) -> Result<&mut Named, Stopped> {
        self.connections
            .iter_mut()
            .find(|named| named.name == name)
            .ok_or_else(|| Stopped(format!("there is no connection {name}")))
    }
}

/// Something that is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Request(u64),
    /// Not answered when the consumer does not exist.
    Ack(u64),
    Send,
    Ping,
    /// The other side closes as well.
    Close,
}

impl Named {
    /// Notes what an arrival answers.
    fn answered(&mut self, arrival: &Arrival) {
        let Arrival::Frame(frame) = arrival else {
            self.is_closed = true;
            return;
        };
        let decoded = wire::decode_frame(frame);
        match decoded.name.as_str() {
            "SEND_RECEIPT" | "SEND_ERROR" => self.answer(Asked::Send),
            "PONG" => self.answer(Asked::Ping),
            // These carry an id that nobody asked with.
            "CLOSE_PRODUCER" | "CLOSE_CONSUMER" => {}
            _ => {
                if let Some(id) = decoded.fields.get("request_id").and_then(Value::as_u64) {
                    self.answer(Asked::Request(id));
                    self.answer(Asked::Ack(id));
                }
            }
        }
    }

    fn answer(&mut self, answered: Asked) {
        if let Some(place) = self.asked.iter().position(|asked| *asked == answered) {
            self.asked.remove(place);
        }
    }
}

/// Sets what a step may leave out: request ids, what CONNECT says of this client, and the metadata of a message.
fn complete(
    named: &mut Named,
    command: &str,
    fields: &mut Mapping,
    message: &mut Option<Value>,
) -> Result<(), String> {
    if wire::takes_request_id(command)? {
        set_default(fields, "request_id", named.next_request_id);
        let used = fields.get("request_id").and_then(Value::as_u64);
        named.next_request_id = used.map_or(named.next_request_id, |used| used.wrapping_add(1));
    }
    let request_id = fields.get("request_id").and_then(Value::as_u64);
    match (command, request_id) {
        ("SEND", _) => named.asked.push(Asked::Send),
        ("PING", _) => named.asked.push(Asked::Ping),
        ("ACK", Some(id)) => named.asked.push(Asked::Ack(id)),
        (_, Some(id)) => named.asked.push(Asked::Request(id)),
        _ => {}
    }
    match command {
        "CONNECT" => {
            set_default(fields, "client_version", format!("oracle {}", named.name));
            set_default(fields, "protocol_version", 21);
            if let Some(target) = named
                .injected_target
                .clone()
                .filter(|_| !named.has_connected)
            {
                set_default(fields, "proxy_to_broker_url", target);
            }
            named.has_connected = true;
        }
        "PRODUCER" => {
            let id = fields.get("producer_id").and_then(Value::as_u64);
            let request_id = fields.get("request_id").and_then(Value::as_u64);
            if let (Some(id), Some(request_id)) = (id, request_id) {
                named.producers.retain(|(known, _)| *known != id);
                named.producers.push((id, pending(request_id)));
            }
        }
        "SEND" => {
            let message = message.get_or_insert_with(|| mapping([]));
            if let Some(batch) = message.get("batch").and_then(Value::as_sequence) {
                set_default(fields, "num_messages", batch.len());
            }
            let producer = fields.get("producer_id").and_then(Value::as_u64);
            let name = named
                .producers
                .iter()
                .find(|(id, _)| Some(*id) == producer)
                .map(|(_, name)| name.as_str());
            let sequence_id = fields.get("sequence_id").cloned();
            if let Some(message) = message.as_mapping_mut()
                && !message.contains_key("bytes")
            {
                let metadata = message
                    .entry("metadata".into())
                    .or_insert_with(|| mapping([]));
                if let Some(metadata) = metadata.as_mapping_mut() {
                    set_default(metadata, "producer_name", name.unwrap_or("nobody"));
                    set_default(metadata, "sequence_id", sequence_id.unwrap_or(0.into()));
                    set_default(metadata, "publish_time", now_millis());
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Stands for the name of a producer that the broker has not told yet.
fn pending(request_id: u64) -> String {
    format!("<request {request_id}>")
}

/// The fields of a frame, with the message beside them: what `capture` and the fields of an expected frame look at.
fn content_of(decoded: &Decoded) -> Value {
    let mut content = decoded.fields.clone();
    if let (Some(content), Some(message)) = (content.as_mapping_mut(), &decoded.message) {
        content.insert("message".into(), message.clone());
    }
    content
}

fn decode(bytes: &BytesMut) -> Result<Decoded, String> {
    let decoder =
        pulsegate::protocol::frame::FrameDecoder::new(pulsegate::protocol::frame::FrameLimits {
            max_frame: usize::MAX,
        });
    let frame = decoder
        .decode(&mut bytes.clone())
        .map_err(|error| error.to_string())?
        .ok_or("half a frame")?;
    Ok(wire::decode_frame(&frame))
}

/// The names and types of a JSON value; a list is described by its first item.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "boolean".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Sequence(items) => items.iter().take(1).map(shape).collect(),
        Value::Mapping(fields) => {
            let mut keys: Vec<_> = fields.iter().collect();
            keys.sort_by_key(|(key, _)| plain(key));
            let mut out = Mapping::new();
            for (key, value) in keys {
                out.insert(key.clone(), shape(value));
            }
            Value::Mapping(out)
        }
        Value::Tagged(tagged) => shape(&tagged.value),
    }
}

/// Puts the values at a path, in which `*` stands for every part, into `out` under their full paths.
fn collect(value: &Value, path: &str, prefix: &str, out: &mut Mapping) {
    let join = |key: &str| {
        if prefix.is_empty() {
            key.to_owned()
        } else {
            format!("{prefix}.{key}")
        }
    };
    let (part, rest) = match path.split_once('.') {
        Some((part, rest)) => (part, Some(rest)),
        None => (path, None),
    };
    let parts: Vec<(String, &Value)> = match (part, value) {
        ("*", Value::Mapping(fields)) => fields
            .iter()
            .map(|(key, value)| (plain(key), value))
            .collect(),
        ("*", Value::Sequence(items)) => items
            .iter()
            .enumerate()
            .map(|(place, value)| (place.to_string(), value))
            .collect(),
        ("", value) => vec![("value".to_owned(), value)],
        _ => at_path(value, part)
            .map(|value| (part.to_owned(), value))
            .into_iter()
            .collect(),
    };
    for (key, value) in parts {
        match rest {
            Some(rest) => collect(value, rest, &join(&key), out),
            None => {
                out.insert(join(&key).into(), value.clone());
            }
        }
    }
}

/// The inverse of [`collect`] for one value.
fn insert_at(root: &mut Value, path: &str, value: Value) {
    let mut place = root;
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        let Some(fields) = place.as_mapping_mut() else {
            return;
        };
        if parts.peek().is_none() {
            fields.insert(part.into(), value);
            return;
        }
        place = fields.entry(part.into()).or_insert_with(|| mapping([]));
    }
}

/// How long an answer is waited for.
const WITHIN: Duration = Duration::from_secs(10);
/// How long `settle` waits for answers.
const ANSWERS: Duration = Duration::from_secs(10);
/// How long it waits for those to acknowledgements.
const ACKS: Duration = Duration::from_millis(1500);
/// How long a lookup is tried again while ownership moves.
const LOOKUP_TIME: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(10);
