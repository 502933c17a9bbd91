//! Apache Avro values, as far as the command line needs them: messages typed as JSON become Avro binary, and what comes
//! back becomes JSON.
//!
//! Definitions come from users and, when consuming, from brokers; data comes from anybody. So everything that could grow
//! is bounded: the nesting of definitions by the JSON parser, the nesting of values by [`DEPTH_MAX`] and their number by
//! [`VALUES_MAX`]. Facts are from the Avro 1.11 specification, "Binary Encoding" and "JSON Encoding".

mod decode;
mod definition;
mod encode;

pub(super) use decode::DecodeError;
pub(super) use definition::{Definition, DefinitionError};
pub(super) use encode::EncodeError;

/// Deepest nesting of a value; as deep as the JSON parser goes.
const DEPTH_MAX: usize = 128;
/// Most values in one message, nested ones and those without bytes included.
const VALUES_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const DEFINITION: &str = r#"{"type":"record","name":"R","namespace":"a.b","fields":[
        {"name":"i","type":"int"}, {"name":"l","type":"long"}, {"name":"f","type":"float"}, {"name":"d","type":"double"},
        {"name":"s","type":["null","string",{"type":"map","values":"boolean"}]},
        {"name":"b","type":"bytes"},
        {"name":"e","type":{"type":"enum","name":"E","symbols":["X","Y"]}},
        {"name":"again","type":{"type":"array","items":"E"}},
        {"name":"x","type":{"type":"fixed","name":"F","size":2}},
        {"name":"next","type":["null","R"]}]}"#;

    fn typed() -> impl Strategy<Value = serde_json::Value> {
        let union = prop_oneof![
            Just(json!(null)),
            ".*".prop_map(|text| json!({ "string": text })),
            any::<bool>().prop_map(|flag| json!({"map": {"k": flag}})),
        ];
        let leaf = (
            any::<i32>(),
            any::<i64>(),
            (-1e6f32..1e6).prop_map(|f| f.to_string().parse::<f64>().expect("a number")),
            -1e9f64..1e9,
            union,
            proptest::collection::vec(any::<u8>(), 0..9),
            prop::sample::select(vec!["X", "Y"]),
            0..70usize,
        )
            .prop_map(|(i, l, f, d, s, b, e, n)| {
                let text: String = b.into_iter().map(char::from).collect();
                json!({"i": i, "l": l, "f": f, "d": d, "s": s, "b": text, "e": e, "again": vec![e; n],
                       "x": "\u{0}\u{ff}", "next": null})
            });
        (leaf.clone(), proptest::option::of(leaf)).prop_map(|(mut outer, inner)| {
            if let Some(inner) = inner {
                outer["next"] = json!({ "a.b.R": inner });
            }
            outer
        })
    }

    /// What the JSON that was typed reads as, with the names of union branches left out.
    fn plain(value: serde_json::Value) -> serde_json::Value {
        use serde_json::Value::{Array, Object};
        match value {
            Object(fields) if fields.len() == 1 => {
                let (name, inner) = fields.into_iter().next().expect("one field");
                match name.as_str() {
                    "string" | "map" | "a.b.R" => plain(inner),
                    _ => json!({ name: plain(inner) }),
                }
            }
            Object(fields) => Object(fields.into_iter().map(|(k, v)| (k, plain(v))).collect()),
            Array(items) => Array(items.into_iter().map(plain).collect()),
            other => other,
        }
    }

    proptest! {
        #[test]
        fn what_was_typed_comes_back(value in typed()) {
            let definition = Definition::parse(DEFINITION).expect("valid");
            let encoded = definition.encode(&value).expect("fits");
            prop_assert_eq!(definition.decode(&encoded).expect("reads"), plain(value));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let definition = Definition::parse(DEFINITION).expect("valid");
            let _ = definition.decode(&bytes);
        }
    }
}
