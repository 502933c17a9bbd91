//! Variables of a scenario: `$name` as a whole value, `${name}` in a text, `~` for the run's own part of names.

use serde_yaml::{Mapping, Value};

use crate::normal::now_millis;
use crate::scenario::plain;
use crate::value::{at_path, flow, mapping};

/// The variables of a run.
#[derive(Debug)]
pub(crate) struct Variables {
    token: String,
    values: Mapping,
    /// The message ids that came, each once.
    seen: Vec<Value>,
}

impl Variables {
    pub(crate) fn new(token: &str) -> Self {
        Self {
            token: token.to_owned(),
            values: Mapping::new(),
            seen: Vec::new(),
        }
    }

    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.values.insert(name.into(), value);
    }

    /// Keeps the ledger and entry of a message id for `{seen: n}`.
    pub(crate) fn saw(&mut self, id: &Value) {
        let part = |key: &str| id.get(key).cloned().unwrap_or(Value::from(0));
        let id = mapping([("ledgerId", part("ledgerId")), ("entryId", part("entryId"))]);
        if !self.seen.contains(&id) {
            self.seen.push(id);
        }
    }

    /// Takes parts of a value into variables: `{variable: path}`.
    pub(crate) fn capture(
        &mut self,
        captures: &Mapping,
        from: Option<&Value>,
    ) -> Result<(), crate::runner::Stopped> {
        for (name, path) in captures {
            let path = plain(path);
            let value = from
                .and_then(|from| at_path(from, &path))
                .ok_or_else(|| format!("there is no {path} to capture"))?;
            self.set(&plain(name), value.clone());
        }
        Ok(())
    }

    /// A value with all variables replaced. `{of: $id, batch_index: 1}` is the mapping `$id` with a field more or another;
    /// `{now: -5000}` the time five seconds ago, in milliseconds since 1970; `{seen: 3}` the fourth message id that came,
    /// counted round, or one that does not exist when none came.
    pub(crate) fn resolve(&self, value: &Value) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) => match text.strip_prefix('$') {
                Some(path) if !path.starts_with('{') => self.lookup(path)?.clone(),
                _ => self.text(text)?.into(),
            },
            Value::Sequence(items) => {
                let items = items.iter().map(|item| self.resolve(item));
                Value::Sequence(items.collect::<Result<_, _>>()?)
            }
            Value::Mapping(fields) => {
                if let (Some(offset), 1) = (fields.get("now").and_then(Value::as_i64), fields.len())
                {
                    return Ok(now_millis().saturating_add_signed(offset).into());
                }
                if let (Some(place), 1) = (fields.get("seen").and_then(Value::as_u64), fields.len())
                {
                    let place = usize::try_from(place).unwrap_or_default();
                    let seen = self.seen.get(place % self.seen.len().max(1));
                    let unknown = [("ledgerId", Value::from(1)), ("entryId", Value::from(0))];
                    return Ok(seen.cloned().unwrap_or_else(|| mapping(unknown)));
                }
                let mut out = Mapping::new();
                if let Some(base) = fields.get("of") {
                    match self.resolve(base)? {
                        Value::Mapping(base) => out = base,
                        other => return Err(format!("{} has no fields", flow(&other))),
                    }
                }
                for (key, value) in fields {
                    if key.as_str() != Some("of") {
                        out.insert(self.resolve(key)?, self.resolve(value)?);
                    }
                }
                Value::Mapping(out)
            }
            other => other.clone(),
        })
    }

    /// A text with `${name}`, a leading `$name` and `~` replaced.
    pub(crate) fn text(&self, text: &str) -> Result<String, String> {
        if let Some(path) = text.strip_prefix('$')
            && !path.starts_with('{')
        {
            return Ok(plain(self.lookup(path)?));
        }
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, from)) = rest.split_once("${") {
            let (path, after) = from
                .split_once('}')
                .ok_or_else(|| format!("{text}: a brace is not closed"))?;
            out.push_str(before);
            out.push_str(&plain(self.lookup(path)?));
            rest = after;
        }
        out.push_str(rest);
        Ok(out.replace('~', &self.token))
    }

    fn lookup(&self, path: &str) -> Result<&Value, String> {
        let (name, rest) = path.split_once('.').unwrap_or((path, ""));
        self.values
            .get(name)
            .and_then(|value| at_path(value, rest))
            .ok_or_else(|| format!("there is no variable {path}"))
    }
}
