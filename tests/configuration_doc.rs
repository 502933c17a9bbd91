//! `docs/configuration.md` lists the settings that the code has, and says the same of them.

use std::fs;
use std::path::Path;

use pulsegate::config::{CLIENT_KEYS, GATEWAY_KEYS, KeySpec, KeyStatus};

#[test]
fn the_document_and_the_code_list_the_same_settings_of_the_gateway() {
    same(
        "## Settings of the gateway",
        "## Client tools",
        GATEWAY_KEYS,
    );
}

#[test]
fn the_document_and_the_code_list_the_same_settings_of_the_clients() {
    same("### Settings of the clients", "\n## ", CLIENT_KEYS);
}

fn same(begin: &str, end: &str, keys: &[KeySpec]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = fs::read_to_string(path).expect("docs/configuration.md");
    let section = text.split_once(begin).expect("the section").1;
    let section = section.split_once(end).map_or(section, |(until, _)| until);
    let documented: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let expected: Vec<String> = keys.iter().map(row).collect();
    for (documented, expected) in documented.iter().zip(&expected) {
        assert_eq!(documented, expected);
    }
    assert_eq!(
        documented.len(),
        expected.len(),
        "the document misses or invents settings at its end"
    );
}

/// The row of a setting in the document.
fn row(spec: &KeySpec) -> String {
    let default = match spec.defaults.first() {
        Some(default) if !default.is_empty() => format!("`{default}`"),
        _ => "empty".to_owned(),
    };
    let (status, meaning) = match spec.status {
        KeyStatus::Used => ("used", spec.meaning.to_owned()),
        KeyStatus::NoEffect => ("no effect", spec.meaning.to_owned()),
        KeyStatus::ForOthers => ("not needed", spec.meaning.to_owned()),
        KeyStatus::RefusedWhenOn => ("refused when true", spec.meaning.to_owned()),
        KeyStatus::RefusedWhenSet => ("refused when set", spec.meaning.to_owned()),
        KeyStatus::AliasOf(name) => (
            "deprecated",
            format!("another name of `{name}`, which wins when both have a value"),
        ),
    };
    format!("| `{}` | {default} | {status} | {meaning} |", spec.name)
}
