//! Compiles `proto/` into Rust types, without a `protoc` executable.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;

use protox::Compiler;
use protox::prost_reflect::{Cardinality, DescriptorPool, Kind, MessageDescriptor};

const PROTO_FILES: [&str; 3] = [
    "PulsarApi.proto",
    "PulsarMarkers.proto",
    "MLDataFormats.proto",
];

/// The message whose sub-messages are boxed: it has some sixty of them, and at most one is set.
const ENVELOPE: &str = "pulsar.proto.BaseCommand";

/// Messages with credentials: their `Debug` is written by hand in `src/protocol/proto.rs`, so that none gets into a log.
const WITH_CREDENTIALS: [&str; 4] = [
    "pulsar.proto.AuthData",
    "pulsar.proto.CommandConnect",
    "pulsar.proto.CommandLookupTopic",
    "pulsar.proto.CommandPartitionedTopicMetadata",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    for file in PROTO_FILES {
        println!("cargo:rerun-if-changed=proto/{file}");
    }
    let mut compiler = Compiler::new(["proto"])?;
    compiler.include_source_info(true).open_files(PROTO_FILES)?;
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    // Tests fill messages generically from this, so that a new field is covered without a change there.
    std::fs::write(
        out_dir.join("descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    std::fs::write(
        out_dir.join("required.rs"),
        required_fields(&compiler.descriptor_pool())?,
    )?;

    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    config.skip_debug(WITH_CREDENTIALS.map(|name| format!(".{name}")));
    let envelope = compiler
        .descriptor_pool()
        .get_message_by_name(ENVELOPE)
        .ok_or("no envelope")?;
    for field in envelope
        .fields()
        .filter(|field| matches!(field.kind(), Kind::Message(_)))
    {
        config.boxed(format!(".{}", field.full_name()));
    }
    config.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// The tables that `src/protocol/required.rs` checks messages with.
fn required_fields(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let places: BTreeMap<String, usize> = pool
        .all_messages()
        .enumerate()
        .map(|(place, message)| (message.full_name().to_owned(), place))
        .collect();
    let mut out = String::from(
        "/// By message, in the order of the descriptors.\nconst REQUIREMENTS: &[Requirement] = &[\n",
    );
    for message in pool.all_messages() {
        let mut fields = 0_u64;
        let mut messages = Vec::new();
        for field in message.fields() {
            if field.cardinality() == Cardinality::Required {
                fields |= 1_u64
                    .checked_shl(field.number())
                    .ok_or("a required field above 63")?;
            }
            if let Kind::Message(inner) = field.kind()
                && needs_something(&inner)
            {
                messages.push((
                    field.number(),
                    *places
                        .get(inner.full_name())
                        .ok_or("an undeclared message")?,
                ));
            }
        }
        if message.full_name() == ENVELOPE {
            messages.clear();
        }
        writeln!(out, "    // {}", message.full_name())?;
        writeln!(
            out,
            "    Requirement {{ fields: {fields}, messages: &{messages:?} }},"
        )?;
    }
    out.push_str("];\n\n/// The place of the sub-message of a command type.\n");
    out.push_str("fn requirement_of_command(command_type: i32) -> Option<usize> {\n    match command_type {\n");
    let envelope = pool.get_message_by_name(ENVELOPE).ok_or("no envelope")?;
    for field in envelope.fields() {
        if let Kind::Message(inner) = field.kind() {
            writeln!(
                out,
                "        {} => Some({}),",
                field.number(),
                *places
                    .get(inner.full_name())
                    .ok_or("an undeclared message")?
            )?;
        }
    }
    out.push_str("        _ => None,\n    }\n}\n");
    for (constant, message) in [
        ("MESSAGE_METADATA", "MessageMetadata"),
        ("SINGLE_MESSAGE_METADATA", "SingleMessageMetadata"),
    ] {
        let place = places
            .get(&format!("pulsar.proto.{message}"))
            .ok_or("no message metadata")?;
        writeln!(
            out,
            "\n/// The place of `{message}`.\nconst {constant}: usize = {place};"
        )?;
    }
    Ok(out)
}

/// Whether a message, or one inside it, has a required field.
fn needs_something(message: &MessageDescriptor) -> bool {
    fn search(message: &MessageDescriptor, seen: &mut Vec<String>) -> bool {
        if seen.iter().any(|name| name == message.full_name()) {
            return false;
        }
        seen.push(message.full_name().to_owned());
        message.fields().any(|field| {
            field.cardinality() == Cardinality::Required
                || matches!(field.kind(), Kind::Message(inner) if search(&inner, seen))
        })
    }
    search(message, &mut Vec::new())
}
