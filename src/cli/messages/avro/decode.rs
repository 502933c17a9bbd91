//! Avro binary to JSON.

use serde_json::{Map, Number, Value};

use super::{
    DEPTH_MAX, VALUES_MAX,
    definition::{Definition, Type, TypeId},
};

/// Why bytes are no value of the type.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli::messages) enum DecodeError {
    /// The bytes end inside the value.
    #[error("it ends too early")]
    Truncated,
    /// Bytes are left behind the value.
    #[error("{0} bytes follow the value")]
    TooLong(usize),
    /// A number, place or text is none.
    #[error("it holds no valid {0}")]
    Malformed(&'static str),
    /// It is nested deeper, or has more values, than is read here.
    #[error("it is nested too deeply or has too many values")]
    TooLarge,
}

impl Definition {
    /// The value that the bytes are, as JSON with the names of union branches left out. Bytes and fixed are strings of
    /// characters up to U+00FF; a float that is no number is a string.
    ///
    /// # Errors
    /// When they are none, or are too large for this reader.
    pub(in crate::cli::messages) fn decode(&self, bytes: &[u8]) -> Result<Value, DecodeError> {
        let mut decoder = Decoder {
            definition: self,
            rest: bytes,
            values: 0,
        };
        let value = decoder.any(self.root(), 0)?;
        match decoder.rest.len() {
            0 => Ok(value),
            left => Err(DecodeError::TooLong(left)),
        }
    }
}

struct Decoder<'a> {
    definition: &'a Definition,
    rest: &'a [u8],
    values: usize,
}

impl Decoder<'_> {
    fn any(&mut self, of: TypeId, depth: usize) -> Result<Value, DecodeError> {
        self.values += 1;
        if depth > DEPTH_MAX || self.values > VALUES_MAX {
            return Err(DecodeError::TooLarge);
        }
        let definition = self.definition;
        Ok(match definition.get(of) {
            Type::Null => Value::Null,
            Type::Boolean => match self.take(1)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                _ => return Err(DecodeError::Malformed("boolean")),
            },
            Type::Int => {
                let number = i32::try_from(self.long()?);
                Value::from(number.map_err(|_| DecodeError::Malformed("int"))?)
            }
            Type::Long => Value::from(self.long()?),
            Type::Float => {
                let number = f32::from_le_bytes(self.array()?);
                // By its shortest text, so that 0.1 does not become 0.10000000149011612.
                number_or_text(number.to_string().parse().unwrap_or(f64::NAN), number)
            }
            Type::Double => {
                let number = f64::from_le_bytes(self.array()?);
                number_or_text(number, number)
            }
            Type::Bytes => {
                let length = self.length()?;
                characters(self.take(length)?)
            }
            Type::Fixed { size, .. } => characters(self.take(*size)?),
            Type::String => Value::String(self.text()?),
            Type::Enum { symbols, .. } => {
                let symbol = symbols.get(self.length()?);
                let symbol = symbol.ok_or(DecodeError::Malformed("enum symbol"))?;
                Value::String(symbol.clone())
            }
            Type::Array(items) => {
                let mut values = Vec::new();
                self.blocks(|this| {
                    values.push(this.any(*items, depth + 1)?);
                    Ok(())
                })?;
                Value::Array(values)
            }
            Type::Map(of) => {
                let mut entries = Map::new();
                self.blocks(|this| {
                    let key = this.text()?;
                    entries.insert(key, this.any(*of, depth + 1)?);
                    Ok(())
                })?;
                Value::Object(entries)
            }
            Type::Union(branches) => {
                let branch = branches.get(self.length()?);
                let branch = branch.ok_or(DecodeError::Malformed("union branch"))?;
                self.any(*branch, depth + 1)?
            }
            Type::Record { fields, .. } => {
                let mut values = Map::new();
                for field in fields {
                    values.insert(field.name.clone(), self.any(field.of, depth + 1)?);
                }
                Value::Object(values)
            }
        })
    }

    /// The items of an array or a map: blocks of a count and so many items, up to an empty block. A negative count is
    /// followed by the block's length in bytes.
    fn blocks(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        loop {
            let count = self.long()?;
            if count == 0 {
                return Ok(());
            }
            if count < 0 {
                self.long()?;
            }
            // Each item counts as a value, so an absurd count of items without bytes ends as well.
            for _ in 0..count.unsigned_abs() {
                item(self)?;
            }
        }
    }

    fn text(&mut self) -> Result<String, DecodeError> {
        let length = self.length()?;
        let text = std::str::from_utf8(self.take(length)?);
        Ok(text
            .map_err(|_| DecodeError::Malformed("string"))?
            .to_owned())
    }

    fn length(&mut self) -> Result<usize, DecodeError> {
        usize::try_from(self.long()?).map_err(|_| DecodeError::Malformed("length"))
    }

    fn long(&mut self) -> Result<i64, DecodeError> {
        let mut raw = 0u64;
        for place in 0..10 {
            let [byte] = self.array()?;
            raw |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed());
            }
        }
        Err(DecodeError::Malformed("number"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }

    fn take(&mut self, length: usize) -> Result<&[u8], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

fn characters(bytes: &[u8]) -> Value {
    Value::String(bytes.iter().copied().map(char::from).collect())
}

fn number_or_text(number: f64, shown: impl ToString) -> Value {
    Number::from_f64(number).map_or_else(|| Value::String(shown.to_string()), Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decoded(definition: &str, bytes: &[u8]) -> Result<Value, String> {
        let definition = Definition::parse(definition).expect("valid");
        definition.decode(bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn a_block_with_its_length_is_read() {
        let array = r#"{"type":"array","items":"long"}"#;
        assert_eq!(
            decoded(array, &[0x03, 0x04, 0x06, 0x36, 0x00]),
            Ok(json!([3, 27]))
        );
    }

    #[test]
    fn floats_keep_their_shortest_form() {
        assert_eq!(decoded("\"float\"", &0.1f32.to_le_bytes()), Ok(json!(0.1)));
        assert_eq!(
            decoded("\"double\"", &f64::NAN.to_le_bytes()),
            Ok(json!("NaN"))
        );
    }

    #[test]
    fn malformed_values_are_refused() {
        for (definition, bytes, expected) in [
            ("\"int\"", &[0x80][..], "it ends too early"),
            ("\"int\"", &[0xff; 11], "it holds no valid number"),
            ("\"int\"", &[0x02, 0x02], "1 bytes follow the value"),
            ("\"string\"", &[0x01], "it holds no valid length"),
            ("\"string\"", &[0x02, 0xff], "it holds no valid string"),
            ("\"boolean\"", &[2], "it holds no valid boolean"),
            ("[\"null\"]", &[0x02], "it holds no valid union branch"),
        ] {
            assert_eq!(decoded(definition, bytes), Err(expected.to_owned()));
        }
    }

    #[test]
    fn values_without_bytes_and_values_within_themselves_are_bounded() {
        let large = "it is nested too deeply or has too many values".to_owned();
        // 2^62 nulls.
        let count = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
        assert_eq!(
            decoded(r#"{"type":"array","items":"null"}"#, &count),
            Err(large.clone())
        );
        let endless = r#"{"type":"record","name":"r","fields":[{"name":"r","type":"r"}]}"#;
        assert_eq!(decoded(endless, &[]), Err(large.clone()));
        let list = r#"{"type":"record","name":"r","fields":[{"name":"r","type":["null","r"]}]}"#;
        assert_eq!(decoded(list, &[0x02; 10_000]), Err(large));
    }
}
