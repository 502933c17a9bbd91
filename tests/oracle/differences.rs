//! What may differ between two targets. Everything that is not here is a failure.

use serde_yaml::Value;

use crate::transcript::{Direction, Entry};

/// A difference that is meant.
struct Difference {
    /// What differs, and why.
    reason: &'static str,
    /// Makes both sides equal where they differ for this reason and for no other.
    level: fn(&mut Entry, &Context),
}

/// What levelling has to know of the transcript.
struct Context {
    /// Connections for lookups only.
    services: Vec<String>,
}

impl Context {
    /// Whether the entry is this command, received on a connection for lookups.
    fn is_answer(&self, entry: &Entry, name: &str) -> bool {
        matches!(
            entry.parts(),
            Some((connection, Direction::Received, command))
                if command == name && self.services.iter().any(|service| service == connection)
        )
    }
}

/// Between a client of a broker and the same client behind the gateway. All three are about connections for lookups:
/// what is relayed to a broker comes through as it is.
const GATEWAY: &[Difference] = &[
    Difference {
        reason: "LOOKUP_RESPONSE: the gateway follows redirects and sends the client through itself \
                 (proxy_through_service_url), so that a redirect becomes the final answer of the broker that it led to",
        level: follow_redirects,
    },
    Difference {
        reason: "LOOKUP_RESPONSE: the gateway puts the broker into brokerServiceUrlTls as well, as the Apache proxy does",
        level: no_tls_url,
    },
    Difference {
        reason: "CONNECTED: topics cannot be watched on a connection for lookups (docs/compatibility.md)",
        level: no_topic_watchers,
    },
];

/// Two transcripts with the listed differences levelled.
pub(crate) fn level_both(first: &[Entry], second: &[Entry]) -> (Vec<Entry>, Vec<Entry>) {
    let level_all = |entries: &[Entry]| {
        GATEWAY
            .iter()
            .fold(entries.to_vec(), |entries, difference| {
                level(&entries, difference)
            })
    };
    (level_all(first), level_all(second))
}

/// The reasons of all listed differences.
pub(crate) fn reasons() -> impl Iterator<Item = &'static str> {
    GATEWAY.iter().map(|difference| difference.reason)
}

fn level(entries: &[Entry], difference: &Difference) -> Vec<Entry> {
    let context = Context {
        services: entries
            .iter()
            .filter(|entry| entry.key == "open" && entry.value.get("service").is_some())
            .filter_map(|entry| entry.value.get("connection")?.as_str().map(str::to_owned))
            .collect(),
    };
    let mut entries = entries.to_vec();
    for entry in &mut entries {
        (difference.level)(entry, &context);
    }
    entries
}

fn follow_redirects(entry: &mut Entry, context: &Context) {
    if context.is_answer(entry, "LOOKUP_RESPONSE")
        && let Some(fields) = entry.value.as_mapping_mut()
        && fields.get("brokerServiceUrl").is_some()
        && matches!(
            fields.get("response").and_then(Value::as_str),
            Some("Redirect" | "Connect")
        )
    {
        fields.insert("response".into(), "Connect".into());
        fields.shift_remove("authoritative");
        fields.shift_remove("proxy_through_service_url");
    }
}

fn no_tls_url(entry: &mut Entry, context: &Context) {
    if context.is_answer(entry, "LOOKUP_RESPONSE")
        && let Some(fields) = entry.value.as_mapping_mut()
        && fields.get("brokerServiceUrlTls") == fields.get("brokerServiceUrl")
    {
        fields.shift_remove("brokerServiceUrlTls");
    }
}

fn no_topic_watchers(entry: &mut Entry, context: &Context) {
    if context.is_answer(entry, "CONNECTED")
        && let Some(flags) = entry.value.get_mut("feature_flags")
        && let Some(flags) = flags.as_mapping_mut()
    {
        flags.shift_remove("supports_topic_watchers");
    }
}
