//! Wrong flags, collected so that all of them are told at once.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// What is wrong with the flags so far.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<String>);

impl Problems {
    /// Notes a problem of one flag.
    pub(super) fn add(&mut self, flag: &str, problem: impl Display) {
        self.0.push(format!("{flag}: {problem}"));
    }

    /// Notes a whole line.
    pub(super) fn note(&mut self, line: &str) {
        self.0.push(line.to_owned());
    }

    /// Adds the problems of a part of the command line; without those of topics where values of unknown flags look like some.
    pub(super) fn append(&mut self, other: Self, without_topics: bool) {
        let lines = other.0.into_iter();
        self.0
            .extend(lines.filter(|line| !without_topics || !is_of_topics(line)));
    }

    /// Everything that was noted, in order.
    pub(super) fn into_lines(self) -> Vec<String> {
        self.0
    }

    /// The value of a flag that may be absent; the default when it is wrong, which is noted.
    pub(super) fn parse<T: FromStr>(
        &mut self,
        flag: &str,
        value: Option<&str>,
        default: T,
        expected: &str,
    ) -> T {
        let Some(text) = value else { return default };
        match text.trim().parse() {
            Ok(value) => value,
            Err(_) => {
                self.add(flag, format_args!("{text:?} is not {expected}"));
                default
            }
        }
    }

    /// A whole number of at least `least`.
    pub(super) fn count(
        &mut self,
        flag: &str,
        value: Option<&str>,
        default: usize,
        least: usize,
    ) -> usize {
        let count = self.parse(flag, value, default, "a whole number");
        self.at_least(flag, count, least)
    }

    /// As the real tool has it: 0 and below mean that there is no such limit.
    pub(super) fn limit(&mut self, flag: &str, value: Option<&str>) -> Option<u64> {
        let limit: i64 = self.parse(flag, value, 0, "a whole number");
        u64::try_from(limit).ok().filter(|limit| *limit > 0)
    }

    /// A number that may have a fraction, not below 0 and not beyond `most`.
    pub(super) fn number(
        &mut self,
        flag: &str,
        value: Option<&str>,
        default: f64,
        most: f64,
    ) -> f64 {
        let number = self.parse(flag, value, default, "a number");
        if (0.0..=most).contains(&number) {
            return number;
        }
        self.add(flag, format_args!("{number} is not between 0 and {most}"));
        default
    }

    /// A time in seconds, which may have a fraction.
    pub(super) fn seconds(&mut self, flag: &str, value: Option<&str>, default: f64) -> Duration {
        Duration::from_secs_f64(self.number(flag, value, default, SECONDS_MAX))
    }

    /// A time in milliseconds, which may have a fraction.
    pub(super) fn milliseconds(
        &mut self,
        flag: &str,
        value: Option<&str>,
        default: f64,
    ) -> Duration {
        let milliseconds = self.number(flag, value, default, SECONDS_MAX * 1000.0);
        Duration::from_secs_f64(milliseconds / 1000.0)
    }

    /// One of several words, whatever their case.
    pub(super) fn choice<T: Copy>(
        &mut self,
        flag: &str,
        value: Option<&str>,
        choices: &[(&str, T)],
        default: T,
    ) -> T {
        let Some(text) = value else { return default };
        let chosen = choices
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text.trim()));
        if let Some((_, value)) = chosen {
            return *value;
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        self.add(
            flag,
            format_args!("{text:?} is none of {}", names.join(", ")),
        );
        default
    }

    fn at_least(&mut self, flag: &str, count: usize, least: usize) -> usize {
        if count < least {
            self.add(flag, format_args!("{count} is below {least}"));
        }
        count.max(least)
    }
}

fn is_of_topics(line: &str) -> bool {
    line.starts_with("TOPIC:") || line.starts_with("--num-topics:")
}

/// About ten years.
const SECONDS_MAX: f64 = 3e8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_value_is_noted_and_right_ones_are_taken() {
        let mut problems = Problems::default();
        assert_eq!(problems.count("--n", Some("7"), 1, 1), 7);
        assert_eq!(problems.count("--n", None, 3, 1), 3);
        assert_eq!(problems.limit("--m", Some("-1")), None);
        assert_eq!(problems.limit("--m", Some("9")), Some(9));
        let window = problems.milliseconds("-b", Some("1.5"), 1.0);
        assert_eq!(window, Duration::from_micros(1500));
        assert_eq!(
            problems.choice("-z", Some("lz4"), &[("NONE", 0), ("LZ4", 1)], 0),
            1
        );
        assert!(problems.0.is_empty());

        problems.count("--a", Some("x"), 1, 1);
        problems.count("--b", Some("0"), 1, 1);
        problems.seconds("--c", Some("-1"), 1.0);
        problems.seconds("--d", Some("NaN"), 1.0);
        problems.choice("--e", Some("q"), &[("NONE", 0), ("LZ4", 1)], 0);
        assert_eq!(
            problems.into_lines(),
            [
                "--a: \"x\" is not a whole number",
                "--b: 0 is below 1",
                "--c: -1 is not between 0 and 300000000",
                "--d: NaN is not between 0 and 300000000",
                "--e: \"q\" is none of NONE, LZ4",
            ]
        );
    }
}
