//! A received message as text for people, in the form of `pulsar-client`, and as one JSON object for programs.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value, json};

use super::schema::Shown;

/// The line before each message.
pub(super) const BOUNDARY: &str = "----- got message -----";

/// What is printed of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Style {
    /// Payloads in hexadecimal (`--hex`).
    pub(super) hex: bool,
    /// What more the message carries (`--print-metadata`). JSON always has it.
    pub(super) metadata: bool,
    /// No payload (`--hide-content`).
    pub(super) hide_content: bool,
}

/// A message as far as it is printed.
#[derive(Debug, Clone, Default)]
pub(super) struct MessageView<'a> {
    pub(super) topic: &'a str,
    /// As Apache's clients print it.
    pub(super) id: String,
    /// The key as the message carries it: base64 where the sender's key is bytes.
    pub(super) key: Option<&'a str>,
    pub(super) ordering_key: Option<&'a [u8]>,
    pub(super) properties: Vec<(&'a str, &'a str)>,
    /// When it was published and when it happened, milliseconds since 1970; 0 where it is not known.
    pub(super) publish_time: u64,
    pub(super) event_time: u64,
    pub(super) producer_name: &'a str,
    pub(super) sequence_id: u64,
    pub(super) redelivery_count: u32,
    pub(super) replicated_from: Option<&'a str>,
    pub(super) schema_version: Option<&'a [u8]>,
    /// `None` for a message without a value.
    pub(super) payload: Option<&'a [u8]>,
    /// The payload by the topic's schema, where that was asked for.
    pub(super) shown: Option<&'a Shown>,
}

impl MessageView<'_> {
    /// The line that `pulsar-client` prints. What is no UTF-8 is shown with replacement characters.
    pub(super) fn for_people(&self, style: Style) -> String {
        let bytes = |raw: &[u8]| {
            if style.hex {
                hex_dump(raw)
            } else {
                String::from_utf8_lossy(raw).into_owned()
            }
        };
        let content = match (self.payload, self.shown) {
            (None, _) => "null".to_owned(),
            (_, Some(shown)) => shown.text(&bytes),
            (Some(payload), None) => bytes(payload),
        };
        let properties: Vec<String> = self
            .properties
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let mut line = format!(
            "publishTime:[{}], eventTime:[{}], key:[{}], properties:[{}], content:{content}",
            self.publish_time,
            self.event_time,
            self.key.unwrap_or("null"),
            properties.join(", "),
        );
        if style.metadata {
            // Writing to a string does not fail.
            let _ = write!(
                line,
                ", event-time:{}, message-id:{}, producer-name:{}, sequence-id:{}, replicated-from:{}, \
                 redelivery-count:{}, ordering-key:{}, schema-version:{}",
                instant(self.event_time),
                self.id,
                self.producer_name,
                self.sequence_id,
                self.replicated_from.unwrap_or("null"),
                self.redelivery_count,
                String::from_utf8_lossy(self.ordering_key.unwrap_or_default()),
                hex(self.schema_version.unwrap_or_default()),
            );
        }
        line
    }

    /// One JSON object. docs/cli.md lists its fields.
    pub(super) fn for_programs(&self, style: Style) -> String {
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| {
            object.insert(name.to_owned(), value);
        };
        put("topic", json!(self.topic));
        put("messageId", json!(self.id));
        put("key", json!(self.key));
        let properties = self
            .properties
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        put("properties", Value::Object(properties));
        put("publishTime", json!(self.publish_time));
        put("eventTime", json!(self.event_time));
        put("producerName", json!(self.producer_name));
        put("sequenceId", json!(self.sequence_id));
        put("redeliveryCount", json!(self.redelivery_count));
        if let Some(cluster) = self.replicated_from {
            put("replicatedFrom", json!(cluster));
        }
        if let Some(key) = self.ordering_key {
            put("orderingKey", json!(BASE64.encode(key)));
        }
        if let Some(version) = self.schema_version {
            put("schemaVersion", json!(hex(version)));
        }
        put("size", json!(self.payload.map_or(0, <[u8]>::len)));
        if !style.hide_content {
            match (self.payload, style.hex) {
                (None, _) => put("payload", Value::Null),
                (Some(payload), true) => put("payloadHex", json!(hex(payload))),
                (Some(payload), false) => match std::str::from_utf8(payload) {
                    Ok(text) => put("payload", json!(text)),
                    Err(_) => put("payloadBase64", json!(BASE64.encode(payload))),
                },
            }
            if let Some(value) = self.shown.and_then(Shown::json) {
                put("value", value);
            }
        }
        Value::Object(object).to_string()
    }
}

/// Lines of sixteen bytes: offset, bytes, and the printable ones as characters. Each line ends with a line feed.
fn hex_dump(bytes: &[u8]) -> String {
    let mut dump = String::new();
    for (index, line) in bytes.chunks(16).enumerate() {
        let _ = write!(dump, "{:08X} ", index * 16);
        for place in 0..16 {
            match line.get(place) {
                Some(byte) => {
                    let _ = write!(dump, "{byte:02X} ");
                }
                None => dump.push_str("   "),
            }
        }
        dump.extend(line.iter().map(|byte| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '.',
        }));
        dump.push('\n');
    }
    dump
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Milliseconds since 1970 in ISO 8601, UTC, as Java's `Instant` prints them: fractions only when there are some.
fn instant(milliseconds: u64) -> String {
    let (seconds, fraction) = (milliseconds / 1000, milliseconds % 1000);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let date = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    match fraction {
        0 => format!("{date}Z"),
        _ => format!("{date}.{fraction:03}Z"),
    }
}

/// Year, month and day of a day since 1970 in the Gregorian calendar: years begin with March, so that the leap day is the
/// last of its year, and 400 of them make an era of 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let since_era_0 = days + 719_468;
    let (era, day_of_era) = (since_era_0 / 146_097, since_era_0 % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::messages::schema::Primitive;

    fn view<'a>() -> MessageView<'a> {
        MessageView {
            topic: "persistent://public/default/t",
            id: "3:4:-1".to_owned(),
            key: Some("key1"),
            properties: vec![("k1", "v1"), ("k2", "v2")],
            publish_time: 1_796_072_716_985,
            producer_name: "standalone-0-1",
            sequence_id: 2,
            payload: Some(b"c"),
            ..MessageView::default()
        }
    }

    #[test]
    fn a_message_is_printed_as_pulsar_client_prints_it() {
        let plain = "publishTime:[1796072716985], eventTime:[0], key:[key1], properties:[k1=v1, k2=v2], content:c";
        assert_eq!(view().for_people(Style::default()), plain);
        let metadata = Style {
            metadata: true,
            ..Style::default()
        };
        assert_eq!(
            view().for_people(metadata),
            format!(
                "{plain}, event-time:1970-01-01T00:00:00Z, message-id:3:4:-1, producer-name:standalone-0-1, \
                 sequence-id:2, replicated-from:null, redelivery-count:0, ordering-key:, schema-version:"
            )
        );
        let bare = MessageView::default();
        assert_eq!(
            bare.for_people(Style::default()),
            "publishTime:[0], eventTime:[0], key:[null], properties:[], content:null"
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_or_dumped() {
        let bytes = b"\x00\x01\xff\xfe hello \xc3\xa9 long enough for two lines";
        let message = MessageView {
            payload: Some(bytes),
            ..MessageView::default()
        };
        let text = message.for_people(Style::default());
        assert!(
            text.ends_with("content:\0\u{1}\u{fffd}\u{fffd} hello é long enough for two lines"),
            "{text:?}"
        );
        let hex = Style {
            hex: true,
            ..Style::default()
        };
        let text = message.for_people(hex);
        assert!(
            text.ends_with(
                "content:00000000 00 01 FF FE 20 68 65 6C 6C 6F 20 C3 A9 20 6C 6F .... hello .. lo\n\
                 00000010 6E 67 20 65 6E 6F 75 67 68 20 66 6F 72 20 74 77 ng enough for tw\n\
                 00000020 6F 20 6C 69 6E 65 73                            o lines\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_message_is_one_json_object() {
        assert_eq!(
            view().for_programs(Style::default()),
            r#"{"topic":"persistent://public/default/t","messageId":"3:4:-1","key":"key1","properties":{"k1":"v1","k2":"v2"},"publishTime":1796072716985,"eventTime":0,"producerName":"standalone-0-1","sequenceId":2,"redeliveryCount":0,"size":1,"payload":"c"}"#
        );
        let read = |view: &MessageView<'_>, style| -> Value {
            serde_json::from_str(&view.for_programs(style)).expect("JSON")
        };
        let mut message = view();
        message.payload = Some(b"\xff\n");
        message.schema_version = Some(&[0, 1]);
        message.ordering_key = Some(b"o");
        message.replicated_from = Some("east");
        let shown = Shown::Primitive(Primitive::Int8, json!(5));
        message.shown = Some(&shown);
        let object = read(&message, Style::default());
        assert_eq!(object["payloadBase64"], "/wo=");
        assert_eq!(object["schemaVersion"], "0001");
        assert_eq!(object["orderingKey"], "bw==");
        assert_eq!(object["replicatedFrom"], "east");
        assert_eq!(object["value"], 5);
        let style = Style {
            hex: true,
            ..Style::default()
        };
        assert_eq!(read(&message, style)["payloadHex"], "ff0a");
        let style = Style {
            hide_content: true,
            ..Style::default()
        };
        let object = read(&message, style);
        assert_eq!(object["size"], 2);
        assert!(object.get("value").is_none() && object.get("payloadBase64").is_none());
        assert_eq!(
            read(&MessageView::default(), Style::default())["payload"],
            Value::Null
        );
    }

    #[test]
    fn times_are_printed_in_utc() {
        for (milliseconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_001, "2000-02-29T00:00:00.001Z"),
            (1_796_072_716_985, "2026-11-30T21:05:16.985Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(instant(milliseconds), expected);
        }
        assert!(instant(u64::MAX).ends_with("Z"));
    }
}
