//! What may differ between two targets. Everything that is not here is a failure.

use serde_yaml::Value;

use crate::transcript::{Direction, Entry};

/// A difference that is meant.
pub(crate) struct Difference {
    /// What differs, and why.
    pub(crate) reason: &'static str,
    /// Makes both sides equal where they differ for this reason and for no other.
    level: fn(&mut Entry, &Context),
}

/// What levelling has to know of the transcript.
pub(crate) struct Context {
    /// Connections for lookups only.
    services: Vec<String>,
}

/// Between a client of a broker and the same client behind the gateway.
pub(crate) const GATEWAY: &[Difference] = &[Difference {
    reason: "LOOKUP_RESPONSE on a connection for lookups: the gateway follows redirects and sends the client through itself \
             (proxy_through_service_url), so that a redirect becomes the answer of the broker that it led to, which is final",
    level: follow_redirects,
}];

/// A transcript with the listed differences levelled.
pub(crate) fn level(entries: &[Entry], differences: &[Difference]) -> Vec<Entry> {
    let context = Context {
        services: entries
            .iter()
            .filter(|entry| entry.key == "open" && entry.value.get("service").is_some())
            .filter_map(|entry| entry.value.get("connection")?.as_str().map(str::to_owned))
            .collect(),
    };
    let mut entries = entries.to_vec();
    for entry in &mut entries {
        for difference in differences {
            (difference.level)(entry, &context);
        }
    }
    entries
}

fn follow_redirects(entry: &mut Entry, context: &Context) {
    let is_answer = matches!(
        entry.parts(),
        Some((connection, Direction::Received, "LOOKUP_RESPONSE"))
            if context.services.iter().any(|service| service == connection)
    );
    if !is_answer {
        return;
    }
    if let Some(fields) = entry.value.as_mapping_mut()
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
