//! The steps that wait for what comes, and how it is written down.

use std::time::Duration;

use serde_yaml::Value;
use tokio::time::{Instant, sleep, timeout};

use super::sending::pending;
use super::{POLL, Runner, Stopped, WITHIN};
use crate::connection::Arrival;
use crate::normal::Origin;
use crate::scenario::{Wanted, plain};
use crate::transcript::{Direction, Entry};
use crate::value::{flow, includes};
use crate::wire::{self, Decoded};

impl Runner<'_> {
    /// Writes down arrivals up to the wanted frame and returns that one's content as it came.
    pub(super) async fn expect(
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

    pub(super) async fn expect_any_order(
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

    pub(super) async fn expect_closed(
        &mut self,
        connection: &str,
        within: Duration,
    ) -> Result<(), Stopped> {
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

    pub(super) async fn quiet(
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
    pub(super) fn write_down(
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
    pub(super) async fn silence(&mut self, is_chosen: &impl Fn(&str) -> bool, time: Duration) {
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

    pub(super) fn received(&mut self, connection: &str, decoded: Decoded) -> Entry {
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

    pub(super) fn log_closed(&mut self, connection: &str) {
        self.log.push(Entry::of(
            connection,
            Direction::Received,
            "closed",
            Value::Null,
        ));
    }

    /// Keeps what later steps need of an answer.
    pub(super) fn note(&mut self, connection: &str, decoded: &Decoded) -> Result<(), Stopped> {
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
                    .find(|known| Some(&known.1) == asked.as_ref());
                if let Some(known) = known {
                    known.1 = name.unwrap_or_default();
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn sort_from(&mut self, start: usize) {
        if let Some(part) = self.log.get_mut(start..) {
            part.sort_by_cached_key(|entry| crate::transcript::print(std::slice::from_ref(entry)));
        }
    }

    pub(super) fn wanted(&self, wanted: &Wanted) -> Result<Wanted, Stopped> {
        Ok(Wanted {
            command: wanted.command.clone(),
            fields: self.variables.resolve(&wanted.fields)?,
        })
    }
}

/// The fields of a frame, with the message beside them: what `capture` and the fields of an expected frame look at.
fn content_of(decoded: &Decoded) -> Value {
    let mut content = decoded.fields.clone();
    if let (Some(content), Some(message)) = (content.as_mapping_mut(), &decoded.message) {
        content.insert("message".into(), message.clone());
    }
    content
}
