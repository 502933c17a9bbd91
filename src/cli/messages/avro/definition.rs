//! Avro schema definitions (`.avsc`).

use std::collections::HashMap;

use serde_json::{Map, Value};

/// A parsed definition. Types refer to each other by [`TypeId`], so that a record may contain itself.
#[derive(Debug, Clone)]
pub(in crate::cli::messages) struct Definition {
    types: Vec<Type>,
    root: TypeId,
}

/// The place of a type in its definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TypeId(usize);

/// A type. Logical types are not told from what they are encoded as.
#[derive(Debug, Clone)]
pub(super) enum Type {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Array(TypeId),
    Map(TypeId),
    Union(Vec<TypeId>),
    Record { name: String, fields: Vec<Field> },
    Enum { name: String, symbols: Vec<String> },
    Fixed { name: String, size: usize },
}

#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) of: TypeId,
}

/// Why a text is no Avro definition.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli::messages) enum DefinitionError {
    /// It is no JSON.
    #[error("the definition is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A type is named that is neither Avro's nor defined before.
    #[error("the type {0:?} is not known")]
    UnknownType(String),
    /// Something needed is missing or is of another kind.
    #[error("{what} needs {needed}")]
    Missing {
        /// What the definition is of.
        what: String,
        /// What it needs.
        needed: &'static str,
    },
    /// A name is defined a second time.
    #[error("the name {0:?} is defined twice")]
    DefinedTwice(String),
}

impl Definition {
    /// Reads a definition, as its JSON text.
    ///
    /// # Errors
    /// When it is none.
    pub(in crate::cli::messages) fn parse(text: &str) -> Result<Self, DefinitionError> {
        let json: Value = serde_json::from_str(text)?;
        let mut parser = Parser::default();
        let root = parser.any(&json, "")?;
        Ok(Self {
            types: parser.types,
            root,
        })
    }

    pub(super) fn root(&self) -> TypeId {
        self.root
    }

    pub(super) fn get(&self, id: TypeId) -> &Type {
        self.types.get(id.0).expect("ids come from this definition")
    }

    /// The name of a type: of a named type with its namespace, else Avro's word. Union branches are told by it.
    pub(super) fn name(&self, id: TypeId) -> &str {
        match self.get(id) {
            Type::Null => "null",
            Type::Boolean => "boolean",
            Type::Int => "int",
            Type::Long => "long",
            Type::Float => "float",
            Type::Double => "double",
            Type::Bytes => "bytes",
            Type::String => "string",
            Type::Array(_) => "array",
            Type::Map(_) => "map",
            Type::Union(_) => "union",
            Type::Record { name, .. } | Type::Enum { name, .. } | Type::Fixed { name, .. } => name,
        }
    }

    /// The names of the fields, when the whole is a record.
    pub(in crate::cli::messages) fn fields(&self) -> Option<impl Iterator<Item = &str>> {
        match self.get(self.root) {
            Type::Record { fields, .. } => Some(fields.iter().map(|field| field.name.as_str())),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Parser {
    types: Vec<Type>,
    named: HashMap<String, TypeId>,
}

impl Parser {
    /// A type in any of its three forms. The recursion is as deep as the JSON, which its parser bounds.
    fn any(&mut self, json: &Value, namespace: &str) -> Result<TypeId, DefinitionError> {
        match json {
            Value::String(name) => self.by_name(name, namespace),
            Value::Array(branches) => {
                let branches: Result<_, _> = branches
                    .iter()
                    .map(|branch| self.any(branch, namespace))
                    .collect();
                Ok(self.add(Type::Union(branches?)))
            }
            Value::Object(object) => self.object(object, namespace),
            _ => Err(missing("a type", "a name, a list or an object")),
        }
    }

    fn object(
        &mut self,
        object: &Map<String, Value>,
        namespace: &str,
    ) -> Result<TypeId, DefinitionError> {
        let of = object.get("type").ok_or(missing("a type", "\"type\""))?;
        let Value::String(of) = of else {
            return self.any(of, namespace);
        };
        match of.as_str() {
            "array" => {
                let items = object.get("items").ok_or(missing("array", "\"items\""))?;
                let items = self.any(items, namespace)?;
                Ok(self.add(Type::Array(items)))
            }
            "map" => {
                let values = object.get("values").ok_or(missing("map", "\"values\""))?;
                let values = self.any(values, namespace)?;
                Ok(self.add(Type::Map(values)))
            }
            "record" | "error" | "enum" | "fixed" => self.named(of, object, namespace),
            name => self.by_name(name, namespace),
        }
    }

    fn named(
        &mut self,
        of: &str,
        object: &Map<String, Value>,
        namespace: &str,
    ) -> Result<TypeId, DefinitionError> {
        let name = text(object, "name").ok_or(missing(of, "\"name\""))?;
        let namespace = text(object, "namespace").unwrap_or(namespace);
        let full_name = full_name(name, namespace);
        let namespace = full_name.rsplit_once('.').map_or("", |(space, _)| space);
        // The name is known inside its own definition, so it gets a place before it is read.
        let id = self.add(Type::Null);
        if self.named.insert(full_name.clone(), id).is_some() {
            return Err(DefinitionError::DefinedTwice(full_name));
        }
        let defined = match of {
            "enum" => Type::Enum {
                symbols: symbols(object).ok_or(missing(&full_name, "\"symbols\""))?,
                name: full_name,
            },
            "fixed" => Type::Fixed {
                size: object
                    .get("size")
                    .and_then(Value::as_u64)
                    .and_then(|size| usize::try_from(size).ok())
                    .ok_or(missing(&full_name, "\"size\""))?,
                name: full_name,
            },
            _ => Type::Record {
                fields: self.fields(object, &full_name, namespace)?,
                name: full_name.clone(),
            },
        };
        *self.types.get_mut(id.0).expect("added above") = defined;
        Ok(id)
    }

    fn fields(
        &mut self,
        object: &Map<String, Value>,
        record: &str,
        namespace: &str,
    ) -> Result<Vec<Field>, DefinitionError> {
        let fields = object.get("fields").and_then(Value::as_array);
        let fields = fields.ok_or(missing(record, "\"fields\""))?.iter();
        fields
            .map(|field| {
                let field = field
                    .as_object()
                    .ok_or(missing(record, "objects as fields"))?;
                let name = text(field, "name").ok_or(missing(record, "a name for each field"))?;
                let of = field
                    .get("type")
                    .ok_or(missing(record, "a type for each field"))?;
                Ok(Field {
                    name: name.to_owned(),
                    of: self.any(of, namespace)?,
                })
            })
            .collect()
    }

    fn by_name(&mut self, name: &str, namespace: &str) -> Result<TypeId, DefinitionError> {
        let primitive = match name {
            "null" => Type::Null,
            "boolean" => Type::Boolean,
            "int" => Type::Int,
            "long" => Type::Long,
            "float" => Type::Float,
            "double" => Type::Double,
            "bytes" => Type::Bytes,
            "string" => Type::String,
            _ => {
                let full_name = full_name(name, namespace);
                return self
                    .named
                    .get(&full_name)
                    .or_else(|| self.named.get(name))
                    .copied()
                    .ok_or(DefinitionError::UnknownType(full_name));
            }
        };
        Ok(self.add(primitive))
    }

    fn add(&mut self, of: Type) -> TypeId {
        self.types.push(of);
        TypeId(self.types.len() - 1)
    }
}

fn missing(what: &str, needed: &'static str) -> DefinitionError {
    DefinitionError::Missing {
        what: what.to_owned(),
        needed,
    }
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str)
}

fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}.{name}")
    }
}

fn symbols(object: &Map<String, Value>) -> Option<Vec<String>> {
    let symbols = object.get("symbols")?.as_array()?.iter();
    symbols
        .map(|symbol| symbol.as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_definition_is_said() {
        for (text, expected) in [
            ("{", "no JSON"),
            ("7", "a type needs a name, a list or an object"),
            ("\"Other\"", "the type \"Other\" is not known"),
            ("{\"name\":\"x\"}", "a type needs \"type\""),
            ("{\"type\":\"record\"}", "record needs \"name\""),
            ("{\"type\":\"record\",\"name\":\"x\"}", "x needs \"fields\""),
            (
                "{\"type\":\"record\",\"name\":\"x\",\"fields\":[{\"name\":\"y\"}]}",
                "x needs a type for each field",
            ),
            ("{\"type\":\"enum\",\"name\":\"x\"}", "x needs \"symbols\""),
            (
                "{\"type\":\"fixed\",\"name\":\"x\",\"size\":-1}",
                "x needs \"size\"",
            ),
            ("{\"type\":\"array\"}", "array needs \"items\""),
            (
                "[{\"type\":\"fixed\",\"name\":\"x\",\"size\":1},{\"type\":\"fixed\",\"name\":\"x\",\"size\":1}]",
                "the name \"x\" is defined twice",
            ),
        ] {
            let error = Definition::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn deep_definitions_are_refused_and_not_followed() {
        let deep = "{\"type\":".repeat(100_000);
        assert!(Definition::parse(&deep).is_err());
    }

    #[test]
    fn fields_of_a_record_are_named_in_their_order() {
        let definition = Definition::parse(
            r#"{"type":"record","name":"x","fields":[{"name":"z","type":{"type":"int","logicalType":"date"}},
            {"name":"a","type":"string"}]}"#,
        )
        .expect("valid");
        let fields: Vec<&str> = definition.fields().expect("a record").collect();
        assert_eq!(fields, ["z", "a"]);
        assert!(
            Definition::parse("\"int\"")
                .expect("valid")
                .fields()
                .is_none()
        );
    }
}
