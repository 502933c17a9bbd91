//! Carries out a scenario against a server and writes down what happened.
//!
//! What arrives is written down when a step asks for it and not when it arrives, so that the order of a transcript does not
//! depend on how fast either side was.

mod admin;
mod receiving;
mod sending;
mod settling;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_yaml::{Mapping, Value};
use tokio::time::{Instant, sleep};

use self::settling::Asked;
use crate::connection::Connection;
use crate::environment::Environment;
use crate::normal::Normaliser;
use crate::scenario::{Opening, Outgoing, Scenario, Step, Wanted, plain};
use crate::transcript::Entry;
use crate::value::replace_scalars;
use crate::variables::Variables;

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
    /// Whether something came while a barrier was waited for.
    came_in_barrier: bool,
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
    /// Whether a PING would not be answered: the stream has ended, or lost its frame boundaries.
    is_mute: bool,
    /// PINGs of barriers that were not answered yet.
    hidden_pings: usize,
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
            came_in_barrier: false,
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
            Step::Send(outgoing) => self.send(outgoing).await,
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
            is_mute: false,
            hidden_pings: 0,
        });
        Ok(injected_target)
    }

    async fn connect(&mut self, opening: &Opening, fields: &Value) -> Result<(), Stopped> {
        self.open(opening).await?;
        self.send(&Outgoing {
            connection: opening.connection.clone(),
            command: "CONNECT".to_owned(),
            fields: fields.clone(),
            message: None,
            split: None,
        })
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

    fn named(&mut self, name: &str) -> Result<&mut Named, Stopped> {
        self.connections
            .iter_mut()
            .find(|named| named.name == name)
            .ok_or_else(|| Stopped(format!("there is no connection {name}")))
    }
}

/// Something that is answered.
/// How long an answer is waited for.
const WITHIN: Duration = Duration::from_secs(10);
/// How long a lookup is tried again while ownership moves.
const LOOKUP_TIME: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(10);
