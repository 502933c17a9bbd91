//! The step that waits until everything is answered and nothing is under way.

use std::time::Duration;

use serde_yaml::Value;
use tokio::time::{Instant, sleep};

use super::{Named, Runner, Stopped, WITHIN};
use crate::connection::Arrival;
use crate::wire;

impl Runner<'_> {
    /// See [`Step::Settle`].
    pub(super) async fn settle(&mut self, time: Duration) -> Result<(), Stopped> {
        if self.environment.replay.is_some() {
            return self.quiet(&[], true, time).await;
        }
        let start = Instant::now();
        let mut arrivals = Vec::new();
        // A round without a word, with a PING there and back on each connection: whatever was under way has come by then,
        // however slow the way is.
        let mut silent_rounds = 0;
        while silent_rounds < ROUNDS && start.elapsed() < ANSWERS {
            let came = self.arrived(&mut arrivals) | std::mem::take(&mut self.came_in_barrier);
            let gives_up_acks = start.elapsed() > ACKS;
            if !self.is_answered(gives_up_acks) {
                sleep(Duration::from_millis(5)).await;
                continue;
            }
            silent_rounds = if came { 0 } else { silent_rounds + 1 };
            self.barrier(&mut arrivals).await?;
            sleep(time / ROUNDS).await;
        }
        for named in &mut self.connections {
            // What was never answered is not waited for again.
            named.asked.clear();
        }
        self.write_down(arrivals, true)
    }

    pub(super) fn is_answered(&self, gives_up_acks: bool) -> bool {
        let is_over = |asked: &Asked| gives_up_acks && matches!(asked, Asked::Ack(_));
        self.connections
            .iter()
            .all(|named| named.is_closed || named.asked.iter().all(is_over))
    }

    /// Moves arrivals to those of the step; whether there were any.
    pub(super) fn arrived(&mut self, arrivals: &mut Vec<(String, Vec<Arrival>)>) -> bool {
        let mut some = false;
        for named in &mut self.connections {
            let mut came = named.connection.take_waiting();
            for arrival in &came {
                named.answered(arrival);
            }
            if named.hidden_pings > 0 {
                came.retain(|arrival| {
                    let is_pong = matches!(arrival, Arrival::Frame(frame)
                        if named.hidden_pings > 0 && wire::decode_frame(frame).name == "PONG");
                    named.hidden_pings -= usize::from(is_pong);
                    !is_pong
                });
            }
            if came.is_empty() {
                continue;
            }
            some = true;
            match arrivals.iter_mut().find(|(name, _)| *name == named.name) {
                Some((_, known)) => known.extend(came),
                None => arrivals.push((named.name.clone(), came)),
            }
        }
        some
    }

    /// Sends a PING on each connection that would answer it, and waits for the answers; neither is written down.
    pub(super) async fn barrier(
        &mut self,
        arrivals: &mut Vec<(String, Vec<Arrival>)>,
    ) -> Result<(), Stopped> {
        let ping = wire::encode_frame("PING", &Value::Null, None)?;
        for named in &mut self.connections {
            if !named.is_closed && !named.is_mute {
                named.connection.send(&ping).await;
                named.hidden_pings += 1;
            }
        }
        let end = Instant::now() + WITHIN;
        while Instant::now() < end {
            // Arrivals are put aside here, so that the round is not silent.
            let before: usize = arrivals.iter().map(|(_, came)| came.len()).sum();
            self.arrived(arrivals);
            let after: usize = arrivals.iter().map(|(_, came)| came.len()).sum();
            self.came_in_barrier |= after != before;
            let is_open = |named: &Named| named.hidden_pings > 0 && !named.is_closed;
            if !self.connections.iter().any(is_open) {
                return Ok(());
            }
            sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
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

/// So many rounds without a word make it settled.
const ROUNDS: u32 = 3;

/// How long `settle` waits for answers.
const ANSWERS: Duration = Duration::from_secs(10);

/// How long it waits for those to acknowledgements.
const ACKS: Duration = Duration::from_millis(1500);
