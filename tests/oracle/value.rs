//! YAML values: printing them on one line, and finding and replacing parts of them.

use serde_yaml::{Mapping, Value};

/// A value in YAML's flow style, on one line.
pub(crate) fn flow(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => scalar(text),
        Value::Sequence(items) => {
            let items: Vec<String> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Mapping(mapping) => {
            let fields: Vec<String> = mapping
                .iter()
                .map(|(key, value)| format!("{}: {}", flow(key), flow(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Tagged(tagged) => flow(&tagged.value),
    }
}

/// Names as they are, all other strings in the quotes of JSON, which YAML reads as well.
fn scalar(text: &str) -> String {
    let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '~'));
    let is_word_of_yaml = matches!(
        text.to_ascii_lowercase().as_str(),
        "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    if is_name && !is_word_of_yaml {
        text.to_owned()
    } else {
        serde_json::to_string(text).expect("a string is JSON")
    }
}

/// A mapping of these entries.
pub(crate) fn mapping<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let mut mapping = Mapping::new();
    for (key, value) in entries {
        mapping.insert(key.into(), value);
    }
    Value::Mapping(mapping)
}

/// The part of a value at a path such as `message_ids.0.ledgerId`; the whole value for an empty path.
pub(crate) fn at_path<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .filter(|part| !part.is_empty())
        .try_fold(value, |value, part| match value {
            Value::Sequence(items) => items.get(part.parse::<usize>().ok()?),
            other => other.get(part),
        })
}

/// Whether `value` has all that `wanted` names: mappings may have more keys, all else must be equal.
pub(crate) fn includes(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (_, Value::Null) => true,
        (Value::Mapping(value), Value::Mapping(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| value.get(key).is_some_and(|value| includes(value, wanted))),
        (Value::Sequence(value), Value::Sequence(wanted)) => {
            value.len() == wanted.len()
                && value
                    .iter()
                    .zip(wanted)
                    .all(|(value, wanted)| includes(value, wanted))
        }
        (value, wanted) => same_scalar(value, wanted),
    }
}

fn same_scalar(value: &Value, wanted: &Value) -> bool {
    if let (Value::Number(value), Value::Number(wanted)) = (value, wanted) {
        // A YAML -1 and the largest number of an unsigned field are the same bits.
        let bits = |number: &serde_yaml::Number| {
            number
                .as_u64()
                .or_else(|| number.as_i64().map(i64::cast_unsigned))
        };
        return bits(value) == bits(wanted);
    }
    value == wanted
}

/// Replaces every scalar of a value, with the key that it stands under (that of the list, inside a list).
pub(crate) fn replace_scalars(
    value: &mut Value,
    key: &str,
    replace: &mut impl FnMut(&str, &mut Value),
) {
    match value {
        Value::Mapping(mapping) => {
            for (key, value) in mapping.iter_mut() {
                let key = key.as_str().unwrap_or_default().to_owned();
                replace_scalars(value, &key, replace);
            }
        }
        Value::Sequence(items) => {
            for item in items {
                replace_scalars(item, key, replace);
            }
        }
        scalar => replace(key, scalar),
    }
}

/// A list; a single value is a list of one, null an empty one.
pub(crate) fn list(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => Vec::new(),
        Value::Sequence(items) => items.clone(),
        other => vec![other.clone()],
    }
}
