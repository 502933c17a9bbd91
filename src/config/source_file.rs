//! Reading a settings file: bounded, UTF-8, in one of two formats.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::problem::{Origin, Problem};
use super::{properties, yaml};

/// Largest settings file read, in bytes.
pub const MAX_FILE_SIZE: u64 = 1024 * 1024;

/// One `key = value` of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: String,
    /// Line, from 1, where known.
    pub(super) line: Option<usize>,
}

/// What is wrong with the text of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyntaxProblem {
    pub(super) line: Option<usize>,
    pub(super) key: Option<String>,
    pub(super) what: String,
}

/// The formats of a settings file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFormat {
    /// Apache Pulsar's key=value files (Java properties).
    Properties,
    /// A flat YAML mapping.
    Yaml,
}

/// The entries of a file, and how to take unknown keys.
pub(super) struct ReadFile {
    pub(super) format: FileFormat,
    pub(super) entries: Vec<Entry>,
}

/// Reads `path`. What can be read is returned even when some of it is malformed, so that all problems are found at once.
pub(super) fn read(path: &Path, problems: &mut Vec<Problem>) -> Option<ReadFile> {
    let name = path.display().to_string();
    let origin = |line| Origin::File {
        path: name.clone(),
        line,
    };
    let bytes = match read_bounded(path) {
        Ok(bytes) => bytes,
        Err(what) => {
            problems.push(Problem::general(origin(None), what));
            return None;
        }
    };
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) => {
            let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
            problems.push(Problem::general(
                origin(Some(line)),
                "the file is not UTF-8 text",
            ));
            return None;
        }
    };
    let format = format_of(path, text);
    let (entries, found) = match format {
        FileFormat::Properties => properties::parse(text),
        FileFormat::Yaml => yaml::parse(text),
    };
    for SyntaxProblem { line, key, what } in found {
        problems.push(Problem {
            origin: origin(line),
            key,
            what,
            expected: None,
        });
    }
    Some(ReadFile { format, entries })
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_SIZE + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_SIZE {
        return Err(format!(
            "is larger than {MAX_FILE_SIZE} bytes, so it is no settings file"
        ));
    }
    Ok(bytes)
}

/// By extension; else by the first line that says something: a `=` before any `:` makes it key=value.
fn format_of(path: &Path, text: &str) -> FileFormat {
    let extension = path
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "conf" | "properties" => return FileFormat::Properties,
        "yaml" | "yml" => return FileFormat::Yaml,
        _ => {}
    }
    let mut lines = text.lines().map(str::trim_start);
    let first = lines
        .find(|line| !line.is_empty() && !line.starts_with(['#', '!']))
        .unwrap_or_default();
    match first.find(['=', ':']).and_then(|at| first.get(at..)) {
        Some(rest) if rest.starts_with('=') => FileFormat::Properties,
        _ => FileFormat::Yaml,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_follows_extension_then_content() {
        let cases = [
            ("a.conf", "x: y", FileFormat::Properties),
            ("a.PROPERTIES", "", FileFormat::Properties),
            ("a.yml", "x=y", FileFormat::Yaml),
            ("a", "# c\n\n! d\nx=pulsar://y", FileFormat::Properties),
            ("a", "# c\nx: a=b", FileFormat::Yaml),
            ("a.txt", "", FileFormat::Yaml),
        ];
        for (path, text, expected) in cases {
            assert_eq!(
                format_of(Path::new(path), text),
                expected,
                "{path} {text:?}"
            );
        }
    }
}
