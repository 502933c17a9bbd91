//! What is wrong with the arguments of one command, all of it at once.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Collects what is wrong while arguments are read. `Display` prints a line for each.
#[derive(Debug, Default)]
pub(super) struct Problems {
    lines: Vec<String>,
}

/// All that is wrong with the arguments. `Display` prints a line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrongArguments {
    lines: Vec<String>,
}

impl Problems {
    /// Notes what is wrong with an option, named as users type it.
    pub(super) fn add(&mut self, option: &str, what: impl Display) {
        self.lines.push(format!("{option}: {what}"));
    }

    /// Notes a whole line, which names its place.
    pub(super) fn note(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Adds all of `other`.
    pub(super) fn append(&mut self, other: Self) {
        self.lines.extend(other.lines);
    }

    /// Whether nothing is wrong so far.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Notes a value that is not accepted.
    pub(super) fn refuse(&mut self, option: &str, value: &str, expected: impl Display) {
        self.add(
            option,
            format_args!("{} is not accepted; expected {expected}", quoted(value)),
        );
    }

    /// Notes an option that this version does not have, if it is used.
    pub(super) fn unsupported(&mut self, option: &str, is_used: bool, why: &str) {
        if is_used {
            self.add(option, format_args!("not supported by this version: {why}"));
        }
    }

    /// A value that has to be given.
    pub(super) fn required<'a>(&mut self, option: &str, value: Option<&'a str>) -> Option<&'a str> {
        let value = value.filter(|value| !value.trim().is_empty());
        if value.is_none() {
            self.add(option, "is missing");
        }
        value
    }

    /// A value of a type, if it is given and is `accepted`.
    pub(super) fn value<T: FromStr>(
        &mut self,
        option: &str,
        value: Option<&str>,
        expected: impl Display,
        accepted: impl FnOnce(&T) -> bool,
    ) -> Option<T> {
        let value = value?;
        let parsed = value.trim().parse().ok().filter(accepted);
        if parsed.is_none() {
            self.refuse(option, value, expected);
        }
        parsed
    }

    /// A whole number of a range.
    pub(super) fn count(
        &mut self,
        option: &str,
        value: Option<&str>,
        range: RangeInclusive<usize>,
    ) -> Option<usize> {
        let (least, most) = (range.start(), range.end());
        let expected = format!("a whole number from {least} to {most}");
        self.value(option, value, expected, |count| range.contains(count))
    }

    /// As `pulsar-perf` has it: 0 and below mean that there is no such limit.
    pub(super) fn limit(&mut self, option: &str, value: Option<&str>, most: u64) -> Option<u64> {
        let expected = format!("a whole number up to {most}; 0 is no limit");
        let limit = self.value(option, value, expected, |limit: &i64| {
            u64::try_from(*limit).unwrap_or(0) <= most
        });
        limit
            .and_then(|limit| u64::try_from(limit).ok())
            .filter(|limit| *limit > 0)
    }

    /// A number that may have a fraction, from 0 to `most`.
    pub(super) fn number(&mut self, option: &str, value: Option<&str>, most: f64) -> Option<f64> {
        let expected = format!("a number from 0 to {most}");
        self.value(option, value, expected, |number| {
            (0.0..=most).contains(number)
        })
    }

    /// A time in seconds, which may have a fraction; at most [`SECONDS_MAX`].
    pub(super) fn seconds(&mut self, option: &str, value: Option<&str>) -> Option<Duration> {
        let seconds = self.number(option, value, f64::from(SECONDS_MAX));
        seconds.map(Duration::from_secs_f64)
    }

    /// A time in milliseconds, which may have a fraction.
    pub(super) fn milliseconds(&mut self, option: &str, value: Option<&str>) -> Option<Duration> {
        let milliseconds = self.number(option, value, f64::from(SECONDS_MAX) * 1000.0);
        milliseconds.map(|milliseconds| Duration::from_secs_f64(milliseconds / 1000.0))
    }

    /// One of several names, whatever its case.
    pub(super) fn choice<T: Copy>(
        &mut self,
        option: &str,
        value: Option<&str>,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let value = value?;
        let chosen = choices
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(value.trim()));
        if chosen.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.refuse(option, value, names.join(", "));
        }
        chosen.map(|(_, choice)| *choice)
    }

    /// Messages a second; 0, and no value, mean as fast as possible.
    pub(super) fn rate(&mut self, option: &str, value: Option<&str>) -> Option<f64> {
        let rate = self.value(
            option,
            value,
            "a number of messages a second",
            |rate: &f64| rate.is_finite() && *rate >= 0.0,
        );
        rate.filter(|rate| *rate > 0.0)
    }

    /// What the arguments were read into, if nothing is wrong. `value` is `None` only when a problem was noted.
    ///
    /// # Errors
    /// With everything that was noted.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<T, WrongArguments> {
        match value {
            Some(value) if self.lines.is_empty() => Ok(value),
            _ => Err(WrongArguments { lines: self.lines }),
        }
    }

    /// Everything that was noted.
    pub(super) fn into_wrong(self) -> WrongArguments {
        WrongArguments { lines: self.lines }
    }
}

impl WrongArguments {
    /// The same with further problems, each of which names its place.
    pub(super) fn and(mut self, further: impl IntoIterator<Item = impl Display>) -> Self {
        let further = further.into_iter().map(|problem| problem.to_string());
        self.lines.extend(further);
        self
    }

    /// Nothing wrong so far.
    pub(super) fn none() -> Self {
        Self { lines: Vec::new() }
    }

    /// A line for each.
    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines
    }
}

impl Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(&self.lines, f)
    }
}

impl Display for WrongArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(&self.lines, f)
    }
}

fn list(lines: &[String], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let count = lines.len();
    let plural = if count == 1 { "" } else { "s" };
    write!(f, "the arguments have {count} problem{plural}:")?;
    lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
}

impl std::error::Error for WrongArguments {}

/// A value of the user's between quotation marks, cut where it is long.
fn quoted(value: &str) -> String {
    match value.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{:?}...", value.get(..end).unwrap_or_default()),
        None => format!("{value:?}"),
    }
}

/// About ten years.
pub(super) const SECONDS_MAX: u32 = 300_000_000;
/// As much of a value is repeated, in characters.
const QUOTED_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_wrong_is_listed() {
        let mut problems = Problems::default();
        assert_eq!(problems.required("TOPIC", None), None);
        assert_eq!(problems.required("-s", Some(" ")), None);
        assert_eq!(
            problems.value("-n", Some("x"), "a number", |_: &u32| true),
            None
        );
        assert_eq!(problems.rate("-r", Some("-1")), None);
        assert_eq!(
            problems.choice("-t", Some("any"), &[("Shared", 1), ("Exclusive", 2)]),
            None
        );
        problems.unsupported("-ekv", true, "no encryption");
        problems.unsupported("-ekn", false, "no encryption");
        assert_eq!(problems.count("-a", Some("0"), 1..=9), None);
        assert_eq!(problems.seconds("-b", Some("NaN")), None);
        assert_eq!(problems.limit("-c", Some("10"), 9), None);
        assert_eq!(
            problems.limit("-d", Some("18446744073709551615"), u64::MAX),
            None
        );
        let long = "y".repeat(100_000);
        problems.refuse("-e", &long, "less");
        let error = problems.finish(Some(())).expect_err("problems").to_string();
        let expected = [
            "the arguments have 11 problems:",
            "TOPIC: is missing",
            "-s: is missing",
            "-n: \"x\" is not accepted; expected a number",
            "-r: \"-1\" is not accepted; expected a number of messages a second",
            "-t: \"any\" is not accepted; expected Shared, Exclusive",
            "-ekv: not supported by this version: no encryption",
            "-a: \"0\" is not accepted; expected a whole number from 1 to 9",
            "-b: \"NaN\" is not accepted; expected a number from 0 to 300000000",
            "-c: \"10\" is not accepted; expected a whole number up to 9; 0 is no limit",
            "-d: \"18446744073709551615\" is not accepted; expected a whole number up to 18446744073709551615; \
             0 is no limit",
        ];
        assert!(error.starts_with(&expected.join("\n  ")), "{error}");
        assert!(error.ends_with("y\"... is not accepted; expected less"));
        assert!(error.len() < 2000);
    }

    #[test]
    fn right_values_are_taken() {
        let mut problems = Problems::default();
        assert_eq!(
            problems.value("-n", Some(" 7"), "", |_: &u32| true),
            Some(7)
        );
        assert_eq!(problems.value::<u32>("-n", None, "", |_| true), None);
        assert_eq!(problems.rate("-r", Some("0")), None);
        assert_eq!(problems.rate("-r", Some("2.5")), Some(2.5));
        assert_eq!(
            problems.choice("-t", Some("shared"), &[("Shared", 1)]),
            Some(1)
        );
        assert_eq!(problems.count("-n", Some("7"), 1..=7), Some(7));
        assert_eq!(problems.limit("-m", Some("-1"), 9), None);
        assert_eq!(problems.limit("-m", Some("9"), 9), Some(9));
        assert_eq!(
            problems.milliseconds("-b", Some("1.5")),
            Some(Duration::from_micros(1500))
        );
        assert_eq!(problems.finish(Some(1)), Ok(1));
    }
}
