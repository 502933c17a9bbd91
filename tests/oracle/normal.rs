//! What differs from run to run gets a name that does not: ledger ids by order of appearance, the unique part of topic names,
//! generated names, addresses, times, free text. [`Normaliser`] writes the names, [`Actual`] puts values back for a replay.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_yaml::{Mapping, Value};

use crate::value::replace_scalars;

/// Gives names to the values of one run.
#[derive(Debug, Default)]
pub(crate) struct Normaliser {
    /// The unique part of all names of the run; written as `~`.
    token: String,
    /// `host:port` and the name of what listens there.
    pub(crate) addresses: Vec<(String, String)>,
    ledgers: Vec<u64>,
    producers: Vec<String>,
    hashes: Vec<String>,
    transactions: Vec<(u64, u64)>,
}

/// Where a value comes from. Only what a server sent can be a ledger: other numbers are the scenario's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Client,
    Server,
}

impl Normaliser {
    /// A normaliser of a run whose names have `token` in them.
    pub(crate) fn new(token: String, addresses: Vec<(String, String)>) -> Self {
        Self {
            token,
            addresses,
            ..Self::default()
        }
    }

    /// Normalises the fields of a frame, or what follows it.
    pub(crate) fn frame(&mut self, name: &str, value: &mut Value, origin: Origin) {
        if name == "SEND_RECEIPT"
            && let Some(fields) = value.as_mapping_mut()
            && matches!(
                fields.get("highest_sequence_id").and_then(Value::as_i64),
                Some(-1 | 0)
            )
        {
            // Of a message that is no batch Apache sends -1, 0 or nothing, as its recycled objects have it.
            fields.shift_remove("highest_sequence_id");
        }
        self.transaction_ids(value, name == "NEW_TXN_RESPONSE");
        replace_scalars(value, "", &mut |key, value| {
            self.scalar(key, value, origin);
        });
    }

    /// Normalises the body of an HTTP answer.
    pub(crate) fn body(&mut self, value: &mut Value) {
        replace_scalars(value, "", &mut |key, value| {
            self.scalar(key, value, Origin::Server);
            if let Value::String(text) = value
                && is_position_key(key)
            {
                *value = self.positions(text).into();
            }
        });
    }

    /// A text with the run's own part and addresses replaced.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if !self.token.is_empty() {
            text = text.replace(&self.token, "~");
        }
        for (address, name) in &self.addresses {
            text = text.replace(address, name);
        }
        text
    }

    fn scalar(&mut self, key: &str, value: &mut Value, origin: Origin) {
        match value {
            Value::Number(number) => {
                let Some(number) = number.as_u64() else {
                    if RATES.contains(&key) {
                        *value = "<rate>".into();
                    }
                    return;
                };
                if key == "ledgerId" {
                    if let Some(name) = self.ledger(number, origin) {
                        *value = name.into();
                    }
                } else if TIMES.contains(&key)
                    && let Some(name) = time_name(number)
                {
                    *value = name.into();
                }
            }
            Value::String(text) => {
                if origin == Origin::Server && FREE_TEXT.contains(&key) && !text.is_empty() {
                    *value = "<text>".into();
                } else if key == "topics_hash" && !text.is_empty() && !text.starts_with('<') {
                    *value = format!("<hash {}>", place_of(&mut self.hashes, text)).into();
                } else if is_generated_producer_name(text) {
                    *value = format!("<producer {}>", place_of(&mut self.producers, text)).into();
                } else {
                    *value = self.text(text).into();
                }
            }
            _ => {}
        }
    }

    /// Ledger 0 is what non-persistent topics have.
    fn ledger(&mut self, number: u64, origin: Origin) -> Option<String> {
        if number == 0 {
            return None;
        }
        let known = self.ledgers.iter().position(|known| *known == number);
        if known.is_none() && origin == Origin::Client {
            return None;
        }
        let place = known.unwrap_or_else(|| {
            self.ledgers.push(number);
            self.ledgers.len() - 1
        });
        Some(format!("L{place}"))
    }

    /// Replaces the ledger of each `ledger:entry` in a text.
    fn positions(&mut self, text: &str) -> String {
        let is_digit = |c: char| c.is_ascii_digit();
        let mut out = String::new();
        let mut rest = text;
        while let Some(start) = rest.find(is_digit) {
            let (before, from) = rest.split_at(start);
            out.push_str(before);
            let end = from.find(|c| !is_digit(c)).unwrap_or(from.len());
            let (digits, after) = from.split_at(end);
            let ledger = match (digits.parse(), after.strip_prefix(':')) {
                (Ok(number), Some(_)) => self.ledger(number, Origin::Server),
                _ => None,
            };
            out.push_str(ledger.as_deref().unwrap_or(digits));
            // The entry id is no ledger, even when something follows it.
            let entry = after.strip_prefix(':').map_or(0, |entry| {
                1 + entry
                    .find(|c| !is_digit(c) && c != '-')
                    .unwrap_or(entry.len())
            });
            let (entry, after) = after.split_at(entry);
            out.push_str(entry);
            rest = after;
        }
        out.push_str(rest);
        out
    }

    /// `T0`, `T1`, ... for the transactions that a coordinator opened.
    fn transaction_ids(&mut self, value: &mut Value, opens: bool) {
        if let Value::Sequence(items) = value {
            for item in items {
                self.transaction_ids(item, false);
            }
            return;
        }
        let Some(fields) = value.as_mapping_mut() else {
            return;
        };
        let number = |key| fields.get(key).and_then(Value::as_u64);
        if let Some(least) = number("txnid_least_bits") {
            let id = (number("txnid_most_bits").unwrap_or(0), least);
            let known = self.transactions.iter().position(|known| *known == id);
            let place = known.or_else(|| {
                opens.then(|| {
                    self.transactions.push(id);
                    self.transactions.len() - 1
                })
            });
            if let Some(place) = place {
                fields.insert("txnid_least_bits".into(), format!("T{place}").into());
            }
        }
        for (_, value) in fields.iter_mut() {
            self.transaction_ids(value, false);
        }
    }
}

/// Puts values in the place of the names that a [`Normaliser`] gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct Actual {
    /// `host:port` and the name of what listens there. What has no entry is at the first address.
    pub(crate) addresses: Vec<(String, String)>,
}

impl Actual {
    /// Replaces all names in a value.
    pub(crate) fn put(&self, value: &mut Value) {
        replace_scalars(value, "", &mut |key, value| {
            let Value::String(text) = value else { return };
            if let Some(number) = numbered(text, "L").filter(|_| key == "ledgerId") {
                *value = (FIRST_LEDGER + number).into();
            } else if let Some(number) = numbered(text, "T").filter(|_| key == "txnid_least_bits") {
                *value = (FIRST_TRANSACTION + number).into();
            } else if let Some(hours) = named_hours(text) {
                let offset = hours.saturating_mul(HOUR_MILLIS);
                *value = now_millis().saturating_add_signed(offset).into();
            } else if text == "<rate>" {
                *value = 0.0.into();
            } else if let Some(rest) = text.strip_prefix("pulsar://") {
                *value = format!("pulsar://{}", self.address(rest)).into();
            }
        });
    }

    /// The inverse of [`put`](Self::put), for frames that come back.
    pub(crate) fn take(&self, name: &str, value: &mut Value) {
        let mut normaliser = Normaliser::new(String::new(), self.addresses.clone());
        replace_scalars(value, "", &mut |key, value| {
            let number = value.as_u64().unwrap_or_default();
            if key == "ledgerId" && number.wrapping_sub(FIRST_LEDGER) < MANY {
                *value = format!("L{}", number - FIRST_LEDGER).into();
            } else if key == "txnid_least_bits" && number.wrapping_sub(FIRST_TRANSACTION) < MANY {
                *value = format!("T{}", number - FIRST_TRANSACTION).into();
            }
        });
        normaliser.frame(name, value, Origin::Client);
    }

    fn address(&self, name: &str) -> String {
        let named = self.addresses.iter().find(|(_, known)| known == name);
        match named.or(self.addresses.first()) {
            Some((address, _)) => address.clone(),
            None => name.to_owned(),
        }
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let millis = since.expect("the clock is right").as_millis();
    u64::try_from(millis).expect("fits for a long time")
}

/// Sets a key of a mapping unless it is there.
pub(crate) fn set_default(fields: &mut Mapping, key: &str, value: impl Into<Value>) {
    if !fields.contains_key(key) {
        fields.insert(key.into(), value.into());
    }
}

/// A time near the present by whole hours: `<now>`, `<now-1h>`. The hour begins half an hour before.
fn time_name(millis: u64) -> Option<String> {
    let offset = millis
        .cast_signed()
        .checked_sub(now_millis().cast_signed())?;
    let hours = offset.checked_add(HOUR_MILLIS / 2)?.div_euclid(HOUR_MILLIS);
    match hours {
        0 => Some("<now>".to_owned()),
        -72..=72 => Some(format!("<now{hours:+}h>")),
        _ => None,
    }
}

/// The inverse of [`time_name`].
fn named_hours(text: &str) -> Option<i64> {
    let hours = text.strip_prefix("<now")?.strip_suffix('>')?;
    match hours.strip_suffix('h') {
        Some(hours) => hours.parse().ok(),
        None => hours.is_empty().then_some(0),
    }
}

fn numbered(text: &str, prefix: &str) -> Option<u64> {
    text.strip_prefix(prefix)?.parse().ok()
}

fn place_of(seen: &mut Vec<String>, text: &str) -> usize {
    seen.iter()
        .position(|known| known == text)
        .unwrap_or_else(|| {
            seen.push(text.to_owned());
            seen.len() - 1
        })
}

/// `standalone-0-17`: the cluster's name and two counters.
fn is_generated_producer_name(text: &str) -> bool {
    let rest = ["standalone-", "cluster-"]
        .iter()
        .find_map(|cluster| text.strip_prefix(cluster));
    let counters = rest.and_then(|rest| rest.split_once('-'));
    counters.is_some_and(|(first, second)| {
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number(first) && is_number(second)
    })
}

fn is_position_key(key: &str) -> bool {
    key.ends_with("Position") || matches!(key, "lastConfirmedEntry" | "individuallyDeletedMessages")
}

/// Times in milliseconds since 1970.
const TIMES: [&str; 6] = [
    "publish_time",
    "event_time",
    "deliver_at_time",
    "broker_timestamp",
    "message_publish_time",
    "brokerTimestamp",
];

const HOUR_MILLIS: i64 = 60 * 60 * 1000;

/// Text for people, or of the server's own making.
const FREE_TEXT: [&str; 6] = [
    "server_version",
    "message",
    "error_message",
    "address",
    "connectedSince",
    "reason",
];

const RATES: [&str; 5] = [
    "msgRateOut",
    "msgThroughputOut",
    "msgRateRedeliver",
    "msgRateExpired",
    "messageAckRate",
];

/// What `L0` is in a replay: a number that no scenario uses by itself.
const FIRST_LEDGER: u64 = 0x4c00_0000;
/// What `T0` is in a replay.
const FIRST_TRANSACTION: u64 = 0x5400_0000;
/// More ledgers or transactions than a scenario has.
const MANY: u64 = 1_000_000;
