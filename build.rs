//! Compiles `proto/` into Rust types, without a `protoc` executable.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use protox::Compiler;

const PROTO_FILES: [&str; 3] = [
    "PulsarApi.proto",
    "PulsarMarkers.proto",
    "MLDataFormats.proto",
];

/// The message whose fields are boxed: it has some sixty of them, and at most one is set.
const ENVELOPE: &str = "BaseCommand";
/// The only field of the envelope that is not a message.
const TYPE_FIELD: i32 = 1;

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

    let descriptors = compiler.file_descriptor_set();
    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    for file in &descriptors.file {
        for message in file
            .message_type
            .iter()
            .filter(|message| message.name() == ENVELOPE)
        {
            for field in message
                .field
                .iter()
                .filter(|field| field.number() != TYPE_FIELD)
            {
                config.boxed(format!(".{}.{ENVELOPE}.{}", file.package(), field.name()));
            }
        }
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
