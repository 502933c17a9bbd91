//! The syntax of Java properties files, which Apache Pulsar's `*.conf` files have.
//!
//! Lines starting with `#` or `!` are comments; a key ends at the first `=`, `:` or blank that is not escaped; a line that
//! ends in an odd number of backslashes goes on in the next one, whose leading blanks are dropped; `\t`, `\n`, `\r`, `\f`
//! and `\uXXXX` are escapes, and any other escaped character stands for itself.

use std::str::Chars;

use super::source_file::{Entry, SyntaxProblem};

/// All entries, in order, repetitions included, and what could not be read.
pub(super) fn parse(text: &str) -> (Vec<Entry>, Vec<SyntaxProblem>) {
    let mut entries = Vec::new();
    let mut problems = Vec::new();
    let mut lines = text
        .split('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
        .enumerate();
    while let Some((index, first)) = lines.next() {
        let first = first.trim_start_matches(BLANKS);
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let number = index + 1;
        let mut logical = first.to_owned();
        while ends_escaped(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start_matches(BLANKS)),
                None => break,
            }
        }
        let (raw_key, raw_value) = split(&logical);
        match (unescape(raw_key), unescape(raw_value)) {
            (Some(key), Some(value)) if !key.is_empty() => entries.push(Entry {
                key,
                value,
                line: Some(number),
            }),
            (Some(_), Some(_)) => problems.push(problem(number, "the line has no key")),
            (None, _) | (_, None) => {
                problems.push(problem(
                    number,
                    "malformed \\u escape; expected four hexadecimal digits of a character",
                ));
            }
        }
    }
    (entries, problems)
}

fn problem(line: usize, what: &str) -> SyntaxProblem {
    SyntaxProblem {
        line: Some(line),
        key: None,
        what: what.to_owned(),
    }
}

/// Whether the line ends in an odd number of backslashes.
fn ends_escaped(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits at the first separator that is not escaped: blanks, then at most one `=` or `:`, then blanks.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let mut end = line.len();
    for (at, character) in line.char_indices() {
        if escaped {
            escaped = false;
        } else if character == '\\' {
            escaped = true;
        } else if character == '=' || character == ':' || BLANKS.contains(&character) {
            end = at;
            break;
        }
    }
    let (key, rest) = line.split_at_checked(end).unwrap_or((line, ""));
    let rest = rest.trim_start_matches(BLANKS);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, value.trim_start_matches(BLANKS))
}

/// Resolves escapes; `None` when a `\u` escape is malformed. Pairs of surrogates are joined.
fn unescape(text: &str) -> Option<String> {
    if !text.contains('\\') {
        return Some(text.to_owned());
    }
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let plain = match character {
            '\\' => match characters.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some('u') => {
                    units.push(hex_unit(&mut characters)?);
                    continue;
                }
                Some(other) => other,
                None => continue,
            },
            other => other,
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).ok()
}

fn hex_unit(characters: &mut Chars<'_>) -> Option<u16> {
    let mut unit: u16 = 0;
    for _ in 0..4 {
        let digit = characters.next()?.to_digit(16)?;
        unit = (unit << 4) | u16::try_from(digit).ok()?;
    }
    Some(unit)
}

/// What Java counts as blank within a line.
const BLANKS: [char; 3] = [' ', '\t', '\u{c}'];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let (entries, problems) = parse(text);
        assert_eq!(problems, Vec::new(), "{text:?}");
        entries
            .into_iter()
            .map(|entry| (entry.key, entry.value))
            .collect()
    }

    #[test]
    fn separators_comments_and_escapes_are_those_of_java() {
        let cases = [
            ("a=b", "a", "b"),
            ("  a \t= b ", "a", "b "),
            ("a:b", "a", "b"),
            ("a b", "a", "b"),
            ("a = = b", "a", "= b"),
            ("a", "a", ""),
            ("a=", "a", ""),
            ("# c\n! d\n\na=b#c", "a", "b#c"),
            ("a=pulsar://h:1,h2:2", "a", "pulsar://h:1,h2:2"),
            ("a=b\\\n   c\\\n  d", "a", "bcd"),
            ("a=b\\\\\n#", "a", "b\\"),
            ("a=b\\", "a", "b"),
            ("a\\ b\\=c=d", "a b=c", "d"),
            (
                "a=\\t\\u0041\\u00e4\\ud83d\\ude00\\q",
                "a",
                "\tA\u{e4}\u{1f600}q",
            ),
            ("a=\u{e4}\r", "a", "\u{e4}"),
            ("a\\\n=b", "a", "b"),
        ];
        for (text, key, value) in cases {
            assert_eq!(
                pairs(text),
                vec![(key.to_owned(), value.to_owned())],
                "{text:?}"
            );
        }
    }

    #[test]
    fn malformed_lines_are_named_and_the_others_read() {
        let (entries, problems) = parse("a=1\nb=\\u12\n=c\nd=\\ud800\ne=\\\n  2\nf=3");
        let read: Vec<_> = entries
            .iter()
            .map(|entry| (entry.key.as_str(), entry.line))
            .collect();
        assert_eq!(read, vec![("a", Some(1)), ("e", Some(5)), ("f", Some(7))]);
        let lines: Vec<_> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, vec![Some(2), Some(3), Some(4)]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[a=: \\\\\n\tu0-9#!\u{e4}]{0,60}") {
            let (entries, _) = parse(&text);
            prop_assert!(entries.iter().all(|entry| !entry.key.is_empty()));
        }

        #[test]
        fn what_is_escaped_reads_back(key in "[a-zA-Z.=: ]{1,12}", value in "[ -~\u{e4}\n]{0,20}") {
            let escape = |text: &str| text.chars().map(|character| match character {
                '\n' => "\\n".to_owned(),
                other => format!("\\u{:04x}", u32::from(other)),
            }).collect::<String>();
            prop_assert_eq!(pairs(&format!("{}={}", escape(&key), escape(&value))), vec![(key, value)]);
        }
    }
}
