//! Settings files in YAML: one flat mapping of setting to scalar or list of scalars.

use std::collections::HashMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::source_file::{Entry, SyntaxProblem};

/// All entries, in order, repetitions included, and what could not be read. A list becomes its items joined by commas,
/// the form that Apache's files have.
pub(super) fn parse(text: &str) -> (Vec<Entry>, Vec<SyntaxProblem>) {
    if let Some(line) = too_deep(text) {
        let what =
            "brackets are nested too deeply; expected a value or a list of values for each setting";
        return (Vec::new(), vec![problem(Some(line), None, what)]);
    }
    let document: Document = match serde_yaml::from_str(text) {
        Ok(document) => document,
        Err(error) => {
            let line = error.location().map(|location| location.line());
            let problem = SyntaxProblem {
                line,
                key: None,
                what: format!("malformed YAML: {error}"),
            };
            return (Vec::new(), vec![problem]);
        }
    };
    let lines = key_lines(text);
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut entries = Vec::new();
    let mut problems = Vec::new();
    for (key, value) in document.0 {
        let Node::Scalar(key) = key else {
            problems.push(problem(
                None,
                None,
                "a key is no plain text; expected the name of a setting",
            ));
            continue;
        };
        let occurrence = seen
            .entry(key.clone())
            .and_modify(|count| *count += 1)
            .or_insert(0);
        let line = lines
            .get(key.as_str())
            .and_then(|found| found.get(*occurrence))
            .copied();
        match value {
            Node::Scalar(value) | Node::List(value) => entries.push(Entry { key, value, line }),
            Node::Nested => problems.push(problem(
                line,
                Some(key),
                "the value is a mapping or holds one; expected a value or a list of values (settings are not nested)",
            )),
        }
    }
    (entries, problems)
}

fn problem(line: Option<usize>, key: Option<String>, what: &str) -> SyntaxProblem {
    SyntaxProblem {
        line,
        key,
        what: what.to_owned(),
    }
}

/// The line where brackets pass a depth that no settings file has. The parser's time grows with the square of it.
fn too_deep(text: &str) -> Option<usize> {
    let mut depth: usize = 0;
    for (index, line) in text.lines().enumerate() {
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > BRACKET_DEPTH_MAX {
                return Some(index + 1);
            }
        }
    }
    None
}

/// The lines on which each top-level key stands. The parser does not tell where a key is, so they are found in the
/// text: a key of the outermost block mapping is the only text before a `:` that is not indented further than the first.
fn key_lines(text: &str) -> HashMap<&str, Vec<usize>> {
    let mut found: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut outermost = None;
    for (index, line) in text.lines().enumerate() {
        let body = line.trim_start();
        let Some((key, after)) = body.split_once(':') else {
            continue;
        };
        if body.starts_with(['#', '-', '{', '[', '%'])
            || !(after.is_empty() || after.starts_with([' ', '\t']))
        {
            continue;
        }
        let indent = line.len() - body.len();
        if *outermost.get_or_insert(indent) == indent {
            let key = key.trim_end().trim_matches(['"', '\'']);
            found.entry(key).or_default().push(index + 1);
        }
    }
    found
}

/// A mapping that keeps repeated keys, so that they can be reported with their lines.
struct Document(Vec<(Node, Node)>);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping of settings to values")
    }

    fn visit_unit<E>(self) -> Result<Document, E> {
        Ok(Document(Vec::new()))
    }

    fn visit_none<E>(self) -> Result<Document, E> {
        Ok(Document(Vec::new()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let mut pairs: Vec<(Node, Node)> = Vec::new();
        let mut bytes: usize = 0;
        while let Some((key, value)) = map.next_entry()? {
            bytes = bytes
                .saturating_add(key_or_value_len(&key))
                .saturating_add(key_or_value_len(&value));
            if bytes > VALUE_BYTES_MAX {
                return Err(de::Error::custom("aliases repeat values too often"));
            }
            pairs.push((key, value));
        }
        Ok(Document(pairs))
    }
}

/// A key or a value as text; what is nested is skipped, not kept.
#[derive(Debug, PartialEq, Eq)]
enum Node {
    Scalar(String),
    /// The items, joined by commas.
    List(String),
    Nested,
}

fn key_or_value_len(node: &Node) -> usize {
    match node {
        Node::Scalar(text) | Node::List(text) => text.len(),
        Node::Nested => 0,
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(String::new()))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(String::new()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut joined = String::new();
        let mut first = true;
        let mut nested = false;
        while let Some(item) = items.next_element::<Item>()? {
            match item.0 {
                Some(text) => {
                    if !first {
                        joined.push(',');
                    }
                    first = false;
                    joined.push_str(&text);
                }
                None => nested = true,
            }
        }
        Ok(if nested {
            Node::Nested
        } else {
            Node::List(joined)
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Node::Nested)
    }

    fn visit_enum<A: de::EnumAccess<'de>>(self, tagged: A) -> Result<Node, A::Error> {
        let (IgnoredAny, content) = tagged.variant()?;
        let IgnoredAny = de::VariantAccess::newtype_variant(content)?;
        Ok(Node::Nested)
    }
}

/// An item of a list: a scalar, or `None` for anything deeper.
struct Item(Option<String>);

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Node::deserialize(deserializer)? {
            Node::Scalar(text) => Self(Some(text)),
            Node::List(_) | Node::Nested => Self(None),
        })
    }
}

/// Deepest nesting of brackets that is parsed at all.
const BRACKET_DEPTH_MAX: usize = 64;
/// Bytes that all keys and values may have together; more than a file has only when aliases repeat them.
const VALUE_BYTES_MAX: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(key: &str, value: &str, line: Option<usize>) -> Entry {
        Entry {
            key: key.to_owned(),
            value: value.to_owned(),
            line,
        }
    }

    #[test]
    fn scalars_and_lists_become_text() {
        let text = "# c\na: pulsar://h:1\n\"b\": 6650\nc: true\nd:\ne: [x, 1]\nf:\n  - y\n  - z\ng: 'q: r'\nh: |\n  a: b\n";
        let (entries, problems) = parse(text);
        assert_eq!(problems, Vec::new());
        let expected = vec![
            entry("a", "pulsar://h:1", Some(2)),
            entry("b", "6650", Some(3)),
            entry("c", "true", Some(4)),
            entry("d", "", Some(5)),
            entry("e", "x,1", Some(6)),
            entry("f", "y,z", Some(7)),
            entry("g", "q: r", Some(10)),
            entry("h", "a: b\n", Some(11)),
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn repeated_keys_keep_their_lines() {
        let (entries, _) = parse("---\na: 1\nb: 2\na: 3\n");
        assert_eq!(
            entries,
            vec![
                entry("a", "1", Some(2)),
                entry("b", "2", Some(3)),
                entry("a", "3", Some(4))
            ]
        );
    }

    #[test]
    fn nested_values_are_refused_by_key_and_line() {
        let (entries, problems) = parse("a: 1\nb:\n  a: 2\nc: [[1]]\nd: !x 1\n");
        assert_eq!(entries, vec![entry("a", "1", Some(1))]);
        let found: Vec<_> = problems
            .iter()
            .map(|problem| (problem.key.as_deref(), problem.line))
            .collect();
        assert_eq!(
            found,
            vec![
                (Some("b"), Some(2)),
                (Some("c"), Some(4)),
                (Some("d"), Some(5))
            ]
        );
    }

    #[test]
    fn malformed_documents_are_one_problem_with_a_line() {
        for (text, line) in [
            ("a: 1\nb: [1\n", Some(3)),
            ("a: 1\n  b: 2\n", Some(2)),
            ("- a\n", Some(1)),
            ("a: 1\n---\nb: 2\n", None),
        ] {
            let (entries, problems) = parse(text);
            assert!(entries.is_empty(), "{text:?}");
            assert_eq!(problems.len(), 1, "{text:?}");
            assert!(
                line.is_none() || problems[0].line == line,
                "{text:?}: {problems:?}"
            );
        }
    }

    #[test]
    fn an_empty_file_has_no_entries() {
        for text in ["", "# nothing\n", "---\n", "{}"] {
            assert_eq!(parse(text), (Vec::new(), Vec::new()), "{text:?}");
        }
    }

    #[test]
    fn aliases_cannot_blow_up() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..30 {
            let previous = level - 1;
            let items = vec![format!("*a{previous}"); 10].join(",");
            text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
        }
        let (_, problems) = parse(&text);
        assert!(!problems.is_empty());
    }

    #[test]
    fn deep_nesting_is_an_error() {
        for (open, count) in [
            ("[", 100_000),
            ("{", 100_000),
            ("- ", 20_000),
            ("? ", 20_000),
            ("[", BRACKET_DEPTH_MAX),
        ] {
            let (entries, problems) = parse(&format!("a: 1\nb:\n  {}", open.repeat(count)));
            assert!(entries.len() <= 1, "{open}");
            assert_eq!(problems.len(), 1, "{open}");
        }
    }

    #[test]
    fn repeated_aliases_of_a_long_list_are_an_error() {
        let mut text = format!("a: &a [{}]\n", vec!["x".repeat(100); 1000].join(","));
        for number in 0..1000 {
            text.push_str(&format!("b{number}: *a\n"));
        }
        let (entries, problems) = parse(&text);
        assert!(entries.is_empty());
        assert!(
            problems[0].what.contains("aliases repeat values"),
            "{problems:?}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[a-c:\\- \n\\[\\]{}&*!|>'\"#0-9\u{e4}]{0,60}") {
            let _ = parse(&text);
        }
    }
}
