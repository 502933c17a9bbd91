//! What happened in a run of a scenario: frames in both directions and what was done beside them, as YAML text.

use std::fmt::Write as _;

use serde_yaml::{Mapping, Value};

use crate::value::flow;

/// One line of a transcript: `a > PRODUCER: {...}`, `a < closed: {}`, `admin: {...}`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// `connection > NAME` (to the server), `connection < NAME` (from it), or what was done.
    pub(crate) key: String,
    /// Fields.
    pub(crate) value: Value,
    /// What follows the command in a SEND or MESSAGE.
    pub(crate) message: Option<Value>,
}

/// The two sides of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the scenario to the server.
    Sent,
    /// From the server.
    Received,
}

impl Entry {
    /// An entry of a connection.
    pub(crate) fn of(connection: &str, direction: Direction, name: &str, value: Value) -> Self {
        let arrow = match direction {
            Direction::Sent => '>',
            Direction::Received => '<',
        };
        Self {
            key: format!("{connection} {arrow} {name}"),
            value,
            message: None,
        }
    }

    /// An entry of no connection.
    pub(crate) fn event(name: &str, value: Value) -> Self {
        Self {
            key: name.to_owned(),
            value,
            message: None,
        }
    }

    /// Connection, direction and name of an entry of a connection.
    pub(crate) fn parts(&self) -> Option<(&str, Direction, &str)> {
        split_key(&self.key)
    }

    /// Whether this is a frame and not something done with a socket.
    pub(crate) fn is_frame(&self) -> bool {
        self.parts()
            .is_some_and(|(_, _, name)| name.starts_with(|first: char| first.is_ascii_uppercase()))
    }
}

/// A transcript that tells each consumer of the end of its topic once: how often Apache says it is chance.
pub(crate) fn without_repeats(entries: Vec<Entry>) -> Vec<Entry> {
    let mut told: Vec<(String, Value)> = Vec::new();
    let mut out = Vec::new();
    for entry in entries {
        let consumer = entry.value.get("consumer_id").cloned().unwrap_or_default();
        match entry.parts() {
            Some((connection, Direction::Sent, "SUBSCRIBE")) => {
                told.retain(|(name, id)| name != connection || *id != consumer);
            }
            Some((connection, Direction::Received, "REACHED_END_OF_TOPIC")) => {
                let now = (connection.to_owned(), consumer);
                if told.contains(&now) {
                    continue;
                }
                told.push(now);
            }
            _ => {}
        }
        out.push(entry);
    }
    out
}

/// Splits `a > PRODUCER`.
pub(crate) fn split_key(key: &str) -> Option<(&str, Direction, &str)> {
    let at = |arrow: &str, direction| {
        let (connection, name) = key.split_once(arrow)?;
        Some((connection.trim(), direction, name.trim()))
    };
    at(" > ", Direction::Sent).or_else(|| at(" < ", Direction::Received))
}

/// The text of a transcript.
pub(crate) fn print(entries: &[Entry]) -> String {
    let mut out = String::new();
    for entry in entries {
        let _ = writeln!(out, "- {}: {}", entry.key, flow(&entry.value));
        if let Some(message) = &entry.message {
            let _ = writeln!(out, "  message: {}", flow(message));
        }
    }
    out
}

/// The entries of a transcript's text.
pub(crate) fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let lines: Vec<Mapping> = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
    lines
        .into_iter()
        .map(|mut line| {
            let message = line.shift_remove("message");
            match line.into_iter().next() {
                Some((Value::String(key), value)) => Ok(Entry {
                    key,
                    value,
                    message,
                }),
                _ => Err("an entry without a name".to_owned()),
            }
        })
        .collect()
}

/// The differing lines of two texts with a little of what is around them: `-` only in the first, `+` only in the second.
/// Empty when they are equal.
pub(crate) fn diff(first: &str, second: &str) -> String {
    let (first, second): (Vec<_>, Vec<_>) = (first.lines().collect(), second.lines().collect());
    // Longest common subsequence; transcripts have some hundred lines.
    let columns = second.len() + 1;
    let mut lengths = vec![0_usize; (first.len() + 1) * columns];
    let at = |row: usize, column: usize| row * columns + column;
    for row in (0..first.len()).rev() {
        for column in (0..second.len()).rev() {
            lengths[at(row, column)] = if first[row] == second[column] {
                lengths[at(row + 1, column + 1)] + 1
            } else {
                lengths[at(row + 1, column)].max(lengths[at(row, column + 1)])
            };
        }
    }
    let (mut row, mut column) = (0, 0);
    let mut lines = Vec::new();
    while row < first.len() || column < second.len() {
        if row < first.len() && column < second.len() && first[row] == second[column] {
            lines.push((' ', first[row]));
            row += 1;
            column += 1;
        } else if column == second.len()
            || row < first.len() && lengths[at(row + 1, column)] >= lengths[at(row, column + 1)]
        {
            lines.push(('-', first[row]));
            row += 1;
        } else {
            lines.push(('+', second[column]));
            column += 1;
        }
    }
    let near = |place: usize| {
        let from = place.saturating_sub(CONTEXT);
        lines[from..lines.len().min(place + CONTEXT + 1)]
            .iter()
            .any(|(mark, _)| *mark != ' ')
    };
    let mut out = String::new();
    for (place, (mark, line)) in lines.iter().enumerate() {
        if near(place) {
            let _ = writeln!(out, "{mark} {line}");
        }
    }
    out
}

/// Equal lines shown before and behind a difference.
const CONTEXT: usize = 2;
