//! Admin requests.

use serde_yaml::{Mapping, Value};

use super::{Runner, Stopped};
use crate::http;
use crate::scenario::plain;
use crate::value::{at_path, mapping};

impl Runner<'_> {
    /// Sends an admin request and writes the answer down; returns the decoded body.
    pub(super) async fn admin(
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
