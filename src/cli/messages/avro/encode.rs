//! JSON to Avro binary.

use serde_json::Value;

use super::definition::{Definition, Type, TypeId};

/// Why a JSON value is none of the type.
#[derive(Debug, thiserror::Error)]
#[error("{path}: expected {expected}")]
pub(in crate::cli::messages) struct EncodeError {
    /// Where in the value, `$` being the whole.
    path: String,
    expected: String,
}

impl Definition {
    /// The Avro binary form of a value in Avro's JSON form, in which a value of a union stands in an object with the name
    /// of its type: `{"string": "x"}`.
    ///
    /// # Errors
    /// When the value is none of this type.
    pub(in crate::cli::messages) fn encode(&self, json: &Value) -> Result<Vec<u8>, EncodeError> {
        let mut encoder = Encoder {
            definition: self,
            path: Vec::new(),
            out: Vec::new(),
        };
        encoder.any(self.root(), json)?;
        Ok(encoder.out)
    }
}

struct Encoder<'a> {
    definition: &'a Definition,
    path: Vec<String>,
    out: Vec<u8>,
}

impl Encoder<'_> {
    /// The recursion is as deep as the JSON, which its parser bounds.
    fn any(&mut self, of: TypeId, json: &Value) -> Result<(), EncodeError> {
        let definition = self.definition;
        match definition.get(of) {
            Type::Null if json.is_null() => {}
            Type::Null => return Err(self.expected("null")),
            Type::Boolean => {
                let flag = json
                    .as_bool()
                    .ok_or_else(|| self.expected("true or false"))?;
                self.out.push(u8::from(flag));
            }
            Type::Int => {
                let number = json.as_i64().and_then(|number| i32::try_from(number).ok());
                let number = number.ok_or_else(|| self.expected("an int"))?;
                self.long(number.into());
            }
            Type::Long => {
                let number = json.as_i64().ok_or_else(|| self.expected("a long"))?;
                self.long(number);
            }
            Type::Float => {
                let number = json.as_f64().ok_or_else(|| self.expected("a float"))?;
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "a float keeps what it can of a number"
                )]
                let number = number as f32;
                self.out.extend_from_slice(&number.to_le_bytes());
            }
            Type::Double => {
                let number = json.as_f64().ok_or_else(|| self.expected("a double"))?;
                self.out.extend_from_slice(&number.to_le_bytes());
            }
            Type::String => {
                let text = json.as_str().ok_or_else(|| self.expected("a string"))?;
                self.length(text.len());
                self.out.extend_from_slice(text.as_bytes());
            }
            Type::Bytes => {
                let bytes = self.bytes(json)?;
                self.length(bytes.len());
                self.out.extend_from_slice(&bytes);
            }
            Type::Fixed { size, .. } => {
                let bytes = self.bytes(json)?;
                if bytes.len() != *size {
                    return Err(self.expected(&format!("{size} characters")));
                }
                self.out.extend_from_slice(&bytes);
            }
            Type::Enum { symbols, .. } => {
                let place = json
                    .as_str()
                    .and_then(|given| symbols.iter().position(|symbol| symbol == given));
                let place = place.ok_or_else(|| self.expected(&format!("one of {symbols:?}")))?;
                self.length(place);
            }
            Type::Array(items) => {
                let values = json.as_array().ok_or_else(|| self.expected("an array"))?;
                if !values.is_empty() {
                    self.length(values.len());
                }
                for (index, value) in values.iter().enumerate() {
                    self.at(&format!("[{index}]"), |this| this.any(*items, value))?;
                }
                self.out.push(0);
            }
            Type::Map(values) => {
                let entries = json.as_object().ok_or_else(|| self.expected("an object"))?;
                if !entries.is_empty() {
                    self.length(entries.len());
                }
                for (key, value) in entries {
                    self.length(key.len());
                    self.out.extend_from_slice(key.as_bytes());
                    self.at(&format!(".{key}"), |this| this.any(*values, value))?;
                }
                self.out.push(0);
            }
            Type::Union(branches) => self.union(branches, json)?,
            Type::Record { fields, .. } => {
                let values = json.as_object().ok_or_else(|| self.expected("an object"))?;
                for field in fields {
                    let value = values.get(&field.name).ok_or_else(|| {
                        self.expected(&format!("an object with the field {:?}", field.name))
                    })?;
                    self.at(&format!(".{}", field.name), |this| {
                        this.any(field.of, value)
                    })?;
                }
            }
        }
        Ok(())
    }

    fn union(&mut self, branches: &[TypeId], json: &Value) -> Result<(), EncodeError> {
        let (name, inner) = match json {
            Value::Null => ("null", json),
            Value::Object(object) if object.len() == 1 => match object.iter().next() {
                Some((name, inner)) => (name.as_str(), inner),
                None => ("", json),
            },
            _ => ("", json),
        };
        let place = branches
            .iter()
            .position(|branch| self.definition.name(*branch) == name);
        let Some((place, branch)) = place.and_then(|at| Some((at, *branches.get(at)?))) else {
            let forms: Vec<String> = branches
                .iter()
                .map(|branch| match self.definition.name(*branch) {
                    "null" => "null".to_owned(),
                    name => format!("{{{name:?}: ...}}"),
                })
                .collect();
            return Err(self.expected(&forms.join(" or ")));
        };
        self.length(place);
        self.any(branch, inner)
    }

    /// Bytes are characters up to U+00FF in Avro's JSON form.
    fn bytes(&self, json: &Value) -> Result<Vec<u8>, EncodeError> {
        let text = json.as_str();
        let bytes = text.and_then(|text| text.chars().map(|c| u8::try_from(c).ok()).collect());
        bytes.ok_or_else(|| self.expected("a string of characters up to \\u00ff"))
    }

    fn at(
        &mut self,
        step: &str,
        inner: impl FnOnce(&mut Self) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.path.push(step.to_owned());
        let done = inner(self);
        self.path.pop();
        done
    }

    fn expected(&self, expected: &str) -> EncodeError {
        EncodeError {
            path: format!("${}", self.path.concat()),
            expected: expected.to_owned(),
        }
    }

    fn length(&mut self, length: usize) {
        self.long(i64::try_from(length).unwrap_or(i64::MAX));
    }

    /// Zig-zag, then seven bits a byte, the lowest first.
    fn long(&mut self, number: i64) {
        let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
        loop {
            let low = u8::try_from(rest & 0x7f).unwrap_or(0x7f);
            rest >>= 7;
            if rest == 0 {
                self.out.push(low);
                return;
            }
            self.out.push(low | 0x80);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn encoded(definition: &str, json: Value) -> Result<Vec<u8>, String> {
        let definition = Definition::parse(definition).expect("valid");
        definition.encode(&json).map_err(|error| error.to_string())
    }

    #[test]
    fn values_have_the_bytes_of_the_specification() {
        for (definition, json, bytes) in [
            ("\"int\"", json!(-64), &[0x7f][..]),
            ("\"long\"", json!(64), &[0x80, 0x01]),
            ("\"string\"", json!("foo"), &[0x06, 0x66, 0x6f, 0x6f]),
            (
                r#"{"type":"array","items":"long"}"#,
                json!([3, 27]),
                &[0x04, 0x06, 0x36, 0x00],
            ),
            (r#"["null","string"]"#, json!(null), &[0x00]),
            (
                r#"["null","string"]"#,
                json!({"string": "a"}),
                &[0x02, 0x02, 0x61],
            ),
            ("\"bytes\"", json!("\u{ff}"), &[0x02, 0xff]),
            ("\"double\"", json!(1), &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f]),
        ] {
            assert_eq!(
                encoded(definition, json).as_deref(),
                Ok(bytes),
                "{definition}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_named_by_its_place() {
        let record = r#"{"type":"record","name":"r","fields":[{"name":"u","type":["null","string"]},
            {"name":"l","type":{"type":"array","items":"int"}}]}"#;
        for (json, expected) in [
            (
                json!({"u": null}),
                "$: expected an object with the field \"l\"",
            ),
            (
                json!({"u": "x", "l": []}),
                "$.u: expected null or {\"string\": ...}",
            ),
            (json!({"u": null, "l": [1, "x"]}), "$.l[1]: expected an int"),
            (json!([]), "$: expected an object"),
        ] {
            assert_eq!(encoded(record, json), Err(expected.to_owned()));
        }
    }
}
