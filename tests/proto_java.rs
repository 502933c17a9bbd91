//! Holds `proto/` against the classes of Apache Pulsar: every message, field, number, type and default, and the bytes
//! that both sides write.
//!
//! Needs a JDK on the path and in `PULSEGATE_PULSAR_JARS` the folder with the jars of the Pulsar version that
//! `proto/UPSTREAM` names. Skipped, with a line on standard error, where the variable is not set.

mod proto_fill;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use prost::Message;
use prost_reflect::{
    Cardinality, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, Value,
};

use proto_fill::{ENVELOPE, Filling, bodies, messages, pool, through_generated_type};

const JARS: &str = "PULSEGATE_PULSAR_JARS";
const PROGRAM: &str = "tests/compat/java/proto-check/ProtoCheck.java";

#[test]
fn messages_are_those_of_pulsar() {
    let Some(jars) = env::var_os(JARS) else {
        // Not `eprintln`, which the test harness would swallow.
        let mut stderr = std::io::stderr();
        writeln!(
            stderr,
            "SKIPPED messages_are_those_of_pulsar: {JARS} names no folder with Pulsar's jars"
        )
        .expect("standard error");
        return;
    };
    let complete = messages_filled(&[Filling::All, Filling::Extreme], "");
    let partial = messages_filled(&[0, 1, 2, 3].map(Filling::Random), "partial ");
    let sent = [complete.clone(), partial].concat();
    let answer = run_java(Path::new(&jars), &sent);

    assert_eq!(answer.back.len(), sent.len());
    for ((name, back), (_, bytes)) in answer.back.iter().zip(&sent) {
        assert_eq!(
            hex(back),
            hex(bytes),
            "{name}: encoded by Pulsar (left) and by us (right)"
        );
    }
    let ours = descriptions();
    let only_ours: Vec<_> = ours.difference(&answer.descriptions).collect();
    let only_theirs: Vec<_> = answer.descriptions.difference(&ours).collect();
    assert_eq!(
        (only_ours, only_theirs),
        (Vec::new(), Vec::new()),
        "only in proto/ (first), only in Pulsar (second)"
    );
    assert_eq!(
        names(&answer.filled),
        names(&complete),
        "messages filled by Pulsar (left) and by us (right)"
    );
    for (name, bytes) in &answer.filled {
        let full_name = full_name(name);
        let back = through_generated_type(&full_name, bytes)
            .expect("a generated type")
            .expect("well-formed");
        assert_eq!(&back, bytes, "{name}");
        let descriptor = pool().get_message_by_name(&full_name).expect("declared");
        let message = DynamicMessage::decode(descriptor, bytes.as_slice()).expect("well-formed");
        require_all_set(&message, 0);
        if full_name == ENVELOPE {
            let bytes = bytes.clone().into();
            let command =
                pulsegate::protocol::command::Command::decode(&bytes).expect("well-formed");
            assert_eq!(command.encode_command(), bytes);
        }
    }
}

/// Encoded messages by name, in the order of sending.
type Named = Vec<(String, Vec<u8>)>;

struct Answer {
    /// What was sent, decoded and encoded again.
    back: Named,
    /// Every message with all fields set in Java.
    filled: Named,
    descriptions: BTreeSet<String>,
}

/// Every message and every command in each filling, encoded by our own types, so that these are checked and not only
/// the descriptors.
fn messages_filled(fillings: &[Filling], prefix: &str) -> Named {
    let mut all = Named::new();
    for &filling in fillings {
        for descriptor in messages() {
            let bytes = proto_fill::message(&descriptor, filling).encode_to_vec();
            let ours =
                through_generated_type(descriptor.full_name(), &bytes).expect("a generated type");
            all.push((
                format!("{prefix}{}", java_name(&descriptor)),
                ours.expect("well-formed"),
            ));
        }
        for (_, field) in bodies() {
            let bytes = proto_fill::command(&field, filling).encode_to_vec();
            let command =
                pulsegate::protocol::command::Command::decode(&bytes.into()).expect("well-formed");
            let name = format!("{prefix}{}", java_name(field.parent_message()));
            all.push((name, command.encode_command().to_vec()));
        }
    }
    all
}

fn run_java(jars: &Path, sent: &Named) -> Answer {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let input = dir.path().join("messages");
    let mut lines = unsigned_fields();
    for (name, bytes) in sent {
        writeln!(lines, "{name} {}", hex(bytes)).expect("a string");
    }
    std::fs::write(&input, lines).expect("writable");
    let output = Command::new("java")
        .arg("-cp")
        .arg(jars.join("*"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(PROGRAM))
        .arg(&input)
        .output()
        .expect("a java command on the path");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut answer = Answer {
        back: Named::new(),
        filled: Named::new(),
        descriptions: BTreeSet::new(),
    };
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        let (kind, rest) = line.split_once(' ').expect("a word");
        if kind == "field" || kind == "value" {
            answer.descriptions.insert(line.to_owned());
            continue;
        }
        let (name, bytes) = rest.rsplit_once(' ').expect("a name");
        let messages = if kind == "back" {
            &mut answer.back
        } else {
            &mut answer.filled
        };
        messages.push((name.to_owned(), unhex(bytes)));
    }
    answer
}

/// What the Java program has to know beside the messages: the fields that are `uint32`.
fn unsigned_fields() -> String {
    let mut lines = String::new();
    for message in pool().all_messages() {
        for field in message
            .fields()
            .filter(|field| field.kind() == Kind::Uint32)
        {
            writeln!(lines, "unsigned {} {}", java_name(&message), field.number())
                .expect("a string");
        }
    }
    lines
}

/// How often each message occurs.
fn names(messages: &Named) -> BTreeMap<&str, usize> {
    let mut names = BTreeMap::new();
    for (name, _) in messages {
        *names.entry(name.as_str()).or_default() += 1;
    }
    names
}

/// The lines with which the Java program describes Pulsar's classes, made from our descriptors.
fn descriptions() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for message in pool().all_messages() {
        for field in message.fields() {
            lines.insert(description(&message, &field));
        }
    }
    for of in pool().all_enums() {
        for value in of.values() {
            lines.insert(format!(
                "value {} {} {}",
                java_enum_name(&of),
                value.name(),
                value.number()
            ));
        }
    }
    lines
}

fn description(message: &MessageDescriptor, field: &FieldDescriptor) -> String {
    let exact = message.package_name() == "pulsar.ml_data";
    let label = match field.cardinality() {
        Cardinality::Required => "required",
        Cardinality::Optional => "optional",
        Cardinality::Repeated => "repeated",
    };
    let type_name = match field.kind() {
        Kind::Message(inner) => java_name(&inner),
        Kind::Enum(of) => java_enum_name(&of),
        Kind::Bool if exact => "bool".to_owned(),
        Kind::Bool => "boolean".to_owned(),
        // The classes made by LightProto do not tell signed from unsigned.
        Kind::Int32 | Kind::Uint32 if !exact => "int".to_owned(),
        Kind::Int64 | Kind::Uint64 if !exact => "long".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    };
    // The names of LightProto's constants are all that is left of the names of fields.
    let name = if exact {
        field.name().to_owned()
    } else {
        upper_snake(field.name())
    };
    let mut line = format!(
        "field {} {} {name} {label} {type_name}",
        java_name(message),
        field.number()
    );
    if let Some(default) = &field.field_descriptor_proto().default_value {
        write!(line, " default={default}").expect("a string");
    }
    line
}

/// As the Java program names messages: by the generator of the class.
fn java_name(message: &MessageDescriptor) -> String {
    java(message.full_name())
}

fn java_enum_name(of: &EnumDescriptor) -> String {
    java(of.full_name())
}

fn java(full_name: &str) -> String {
    for (ours, theirs) in PACKAGES {
        if let Some(name) = full_name.strip_prefix(ours) {
            return format!("{theirs}{name}");
        }
    }
    panic!("{full_name} is in no known package");
}

/// Our name of a message that the Java program named.
fn full_name(java_name: &str) -> String {
    PACKAGES
        .iter()
        .filter_map(|(ours, theirs)| Some(format!("{ours}{}", java_name.strip_prefix(theirs)?)))
        .find(|name| pool().get_message_by_name(name).is_some())
        .unwrap_or_else(|| panic!("{java_name} is not declared in proto/"))
}

const PACKAGES: [(&str, &str); 3] = [
    ("pulsar.proto.", "api."),
    ("pulsar.markers.", "api."),
    ("pulsar.ml_data.", "ml."),
];

fn upper_snake(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            out.push('_');
        }
        out.extend(letter.to_uppercase());
    }
    out
}

fn require_all_set(message: &DynamicMessage, depth: usize) {
    use prost_reflect::ReflectMessage as _;
    let descriptor = message.descriptor();
    assert_eq!(
        message.unknown_fields().count(),
        0,
        "{}",
        descriptor.full_name()
    );
    for field in descriptor.fields() {
        let recursive = matches!(field.kind(), Kind::Message(inner) if inner == descriptor);
        let other_command = descriptor.full_name() == ENVELOPE && !message.has_field(&field);
        if other_command || (recursive && depth > 0) {
            continue;
        }
        assert!(
            message.has_field(&field),
            "{} is not set",
            field.full_name()
        );
        let depth = if recursive { depth + 1 } else { 0 };
        match message.get_field(&field).as_ref() {
            Value::Message(inner) => require_all_set(inner, depth),
            Value::List(list) => list
                .iter()
                .filter_map(Value::as_message)
                .for_each(|m| require_all_set(m, depth)),
            _ => {}
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        write!(out, "{byte:02x}").expect("a string");
        out
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |digit: char| {
        digit
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
            .expect("a digit")
    };
    let mut digits = text.chars().map(digit);
    let mut bytes = Vec::new();
    while let (Some(high), Some(low)) = (digits.next(), digits.next()) {
        bytes.push(high << 4 | low);
    }
    bytes
}
